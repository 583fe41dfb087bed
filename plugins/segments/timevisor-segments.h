/*
 * Real-time segments, as in ChronOS: a guest marks where a piece of real-time work begins and ends,
 * how much processor time it needs and by when. Timevisor reads that from outside; in the guest the
 * calls do nothing (but timevisor_abort_segment, below), and cost a few nanoseconds.
 *
 *   struct timevisor_segment control = { .id = 1, .wcet_ns = 200000, .deadline_ns = 1000000, .period_ns = 1000000 };
 *   for (;;) {
 *           timevisor_begin_segment(&control);
 *           ...
 *           timevisor_end_segment(1);
 *           wait_for_the_next_period();
 *   }
 *
 * For x86 programs in a single flat address space (an RTOS, a program without an operating system),
 * linked at the addresses at which they run. Compile timevisor-segments.c with the program and keep
 * sections that begin with .note; docs/how-to/introspect-rtos.md.
 *
 * This is version 2. A program's note has its version, and Timevisor also reads programs that were
 * built with version 1. Sources for version 1 need no change if they initialize the structure.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef TIMEVISOR_SEGMENTS_H
#define TIMEVISOR_SEGMENTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one segment asks for. Timevisor reads it at the call; it may change afterwards. */
struct timevisor_segment {
	uint32_t id; /* the program's own number, from 1 on */
	uint32_t priority; /* larger is more urgent; the program's own numbers. Version 1 called it zero */
	uint64_t wcet_ns; /* processor time that one pass takes at most, with its abort handler */
	uint64_t deadline_ns; /* from the beginning of a pass; 0: the period */
	uint64_t period_ns; /* between two beginnings, at least */
	uint64_t utility; /* what a pass is worth if it ends in time; the program's own unit */
	/* Called by timevisor_abort_segment; NULL: nothing to do. Timevisor neither reads nor calls it. */
	void (*abort_handler)(const struct timevisor_segment *segment);
};

/* A pass of this segment begins. */
void timevisor_begin_segment(const struct timevisor_segment *segment);

/* The pass of this segment has ended. */
void timevisor_end_segment(uint32_t id);

/* There will be no further pass, so the segment no longer needs its processor time. */
void timevisor_retire_segment(uint32_t id);

/*
 * The pass of this segment exceeded its deadline and is given up: reports that, and then calls the
 * abort handler. The program's scheduler calls this function, for instance in its timer's interrupt:
 * Timevisor calls nothing in a guest. Do not call timevisor_end_segment for such a pass.
 */
void timevisor_abort_segment(const struct timevisor_segment *segment);

/* Schedulers, with ChronOS's names and numbers. */
enum timevisor_scheduler {
	TIMEVISOR_FIFO = 0, /* first in, first out: with priorities, fixed-priority scheduling */
	TIMEVISOR_RMA = 1, /* rate monotonic: the shortest period first */
	TIMEVISOR_EDF = 2, /* the earliest deadline first */
	TIMEVISOR_HVDF = 3, /* the highest value density first: utility by remaining processor time */
	TIMEVISOR_LBESA = 4, /* Locke's best-effort algorithm: EDF that drops the lowest densities in an overload */
	TIMEVISOR_DASA_ND = 5, /* DASA without dependencies */
	TIMEVISOR_DASA = 6, /* dependent activity scheduling: by density, if all that are chosen can be in time */
};

/*
 * From now on the program orders its segments of this priority by this scheduler, on these
 * processors (bit n: processor n; 0: all). Segments of higher priorities go first. Other numbers
 * are schedulers of the program's own. Timevisor reports the choice; the program has to do it.
 */
void timevisor_set_scheduler(uint32_t scheduler, uint32_t priority, uint32_t processors);

#ifdef __cplusplus
}
#endif

#endif
