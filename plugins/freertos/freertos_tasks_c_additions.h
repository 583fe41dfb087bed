/*
 * The end of FreeRTOS's tasks.c: what Timevisor has to know of this kernel, as an ELF note that no program reads at run time.
 * crates/introspection/src/os/freertos/note.rs reads it.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <stddef.h>
#include <stdint.h>

#if configNUMBER_OF_CORES != 1
#error "Timevisor knows FreeRTOS on one core only"
#endif

#define TIMEVISOR_NOTE_FREERTOS 1
#define TIMEVISOR_FREERTOS_LAYOUT 1

/* All in the guest's byte order, which is little endian. */
static const struct {
	uint32_t name_size, size, type;
	char name[12]; /* with its padding */
	uint32_t layout; /* of what follows */
	uint32_t major, minor, build; /* the kernel's version */
	uint32_t pointer_size, tick_size;
	uint32_t tick_rate_hz;
	uint32_t time_slicing; /* 1: tasks of one priority take turns with every tick */
	uint32_t priority, task_name; /* offsets in a task control block */
	uint32_t task_name_size;
} timevisor_freertos_note __attribute__((section(".note.timevisor.freertos"), used, aligned(4))) = {
	.name_size = sizeof("Timevisor"),
	.size = 11 * sizeof(uint32_t),
	.type = TIMEVISOR_NOTE_FREERTOS,
	.name = "Timevisor",
	.layout = TIMEVISOR_FREERTOS_LAYOUT,
	.major = tskKERNEL_VERSION_MAJOR,
	.minor = tskKERNEL_VERSION_MINOR,
	.build = tskKERNEL_VERSION_BUILD,
	.pointer_size = sizeof(void *),
	.tick_size = sizeof(TickType_t),
	.tick_rate_hz = configTICK_RATE_HZ,
	.time_slicing = configUSE_PREEMPTION && configUSE_TIME_SLICING,
	.priority = offsetof(TCB_t, uxPriority),
	.task_name = offsetof(TCB_t, pcTaskName),
	.task_name_size = configMAX_TASK_NAME_LEN,
};

/* A place to trap and nothing else. Not inlined, not cloned: its argument has to be where the ABI says. */
__attribute__((noipa, used)) void timevisor_task_created(const void *tcb)
{
	__asm volatile("" : : "r"(tcb) : "memory");
}
