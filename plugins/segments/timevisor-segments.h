/*
 * Real-time segments, as ChronOS has them: a guest says where a piece of real-time work begins and ends, how much processor time it
 * needs and by when. Timevisor reads that from outside; in the guest the calls do nothing, and cost a few nanoseconds.
 *
 *   struct timevisor_segment control = { .id = 1, .wcet_ns = 200000, .deadline_ns = 1000000, .period_ns = 1000000 };
 *   for (;;) {
 *           timevisor_begin_segment(&control);
 *           ...
 *           timevisor_end_segment(1);
 *           wait_for_the_next_period();
 *   }
 *
 * For x86 programs in a single flat address space (an RTOS, a program without an operating system), linked at the addresses at which
 * they run. Compile timevisor-segments.c with the program and keep sections that begin with .note; docs/how-to/introspect-rtos.md.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef TIMEVISOR_SEGMENTS_H
#define TIMEVISOR_SEGMENTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one segment asks for. It is read at the call and may change afterwards. */
struct timevisor_segment {
	uint32_t id; /* the program's own number, from 1 on */
	uint32_t zero;
	uint64_t wcet_ns; /* processor time that one pass takes at most */
	uint64_t deadline_ns; /* from the beginning of a pass; 0: the period */
	uint64_t period_ns; /* between two beginnings, at least */
};

/* A pass of this segment begins. */
void timevisor_begin_segment(const struct timevisor_segment *segment);

/* The pass of this segment has ended. */
void timevisor_end_segment(uint32_t id);

/* There will be no further pass: what was asked for it is not needed any more. */
void timevisor_retire_segment(uint32_t id);

#ifdef __cplusplus
}
#endif

#endif
