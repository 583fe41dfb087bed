/*
 * The functions at which Timevisor traps: each is a NOP of 5 bytes and a return. In assembly, so
 * that no compiler's options matter. The note tells the plugin (crates/introspection/src/os/segments)
 * that a program has them.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "timevisor-segments.h"

#include <stddef.h>

#define FUNCTION(name) \
	".globl " #name "\n" \
	".type " #name ", @function\n" \
	".balign 16\n" \
	#name ":\n" \
	".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n" \
	"ret\n" \
	".size " #name ", . - " #name "\n"

__asm(".text\n"
      FUNCTION(timevisor_begin_segment)
      FUNCTION(timevisor_end_segment)
      FUNCTION(timevisor_retire_segment)
      FUNCTION(timevisor_segment_aborts)
      FUNCTION(timevisor_set_scheduler));

/* Timevisor reads all that is before the handler, which has another size with 64 bits. */
_Static_assert(offsetof(struct timevisor_segment, abort_handler) == 40, "the layout of version 2");

void timevisor_segment_aborts(uint32_t id);

void timevisor_abort_segment(const struct timevisor_segment *segment)
{
	timevisor_segment_aborts(segment->id);
	if (segment->abort_handler)
		segment->abort_handler(segment);
}

static const struct {
	uint32_t name_size, size, type;
	char name[12]; /* with its padding */
	uint32_t version; /* of the functions and of struct timevisor_segment */
} timevisor_segments_note __attribute__((section(".note.timevisor.segments"), used, aligned(4))) = {
	.name_size = sizeof("Timevisor"),
	.size = sizeof(uint32_t),
	.type = 2, /* 1 is FreeRTOS */
	.name = "Timevisor",
	.version = 2,
};
