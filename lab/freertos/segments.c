/*
 * Real-time segments without an operating system: a cyclic executive of three segments, that tells at its end what it called. It
 * begins when a byte comes over the serial port.
 */
#include "guest.h"
#include "timevisor-segments.h"

#define CYCLES 600
#define CHOICES 9 /* two of them have numbers that ChronOS does not have */

/* Calls, for the logs. */
#define BEGIN 'B' /* wcet, deadline, period, priority, utility: low half, high half */
#define END 'E'
#define RETIRE 'R'
#define ABORT 'A'
#define CHOOSE 'S' /* scheduler, priority, processors */

/* The program as a whole chooses a scheduler: no segment has this number. */
static struct log program;

static void give_up(const struct timevisor_segment *segment);

static struct {
	struct timevisor_segment segment;
	uint32_t every; /* cycles */
	uint32_t abort_every; /* passes; 0: never */
	uint32_t passes, aborted;
	struct log log;
} all[] = {
	{ .segment = { .id = 1, .priority = 9, .wcet_ns = 200000, .deadline_ns = 1000000, .period_ns = 2000000, .utility = 1000,
		       .abort_handler = give_up },
	  .every = 1, .abort_every = 7 },
	/* No handler: an abort is reported, and calls nothing. */
	{ .segment = { .id = 2, .priority = 9, .wcet_ns = 300000, .deadline_ns = 0, .period_ns = 4000000, .utility = 0xfffffffffff00000 },
	  .every = 2, .abort_every = 50 },
	/* As a program for version 1 has it: neither priority nor utility. */
	{ .segment = { .id = 3, .wcet_ns = 500000, .deadline_ns = 5000000, .period_ns = 10000000 }, .every = 5 },
};

enum { SEGMENTS = sizeof(all) / sizeof(all[0]) };

static volatile uint32_t work;

static void give_up(const struct timevisor_segment *segment)
{
	all[segment->id - 1].aborted++;
}

static void choose(uint32_t scheduler, uint32_t priority, uint32_t processors)
{
	const uint32_t words[] = { scheduler, priority, processors };

	log_words(&program, CHOOSE, words, 3);
	timevisor_set_scheduler(scheduler, priority, processors);
}

static void begin(struct log *log, const struct timevisor_segment *segment)
{
	const uint32_t words[] = {
		(uint32_t)segment->wcet_ns, (uint32_t)segment->deadline_ns, (uint32_t)segment->period_ns, segment->priority,
		(uint32_t)segment->utility, (uint32_t)(segment->utility >> 32),
	};

	log_words(log, BEGIN, words, 6);
	timevisor_begin_segment(segment);
}

int main(void)
{
	serial_start();
	log_start(&program, 0);
	for (unsigned n = 0; n < SEGMENTS; n++)
		log_start(&all[n].log, all[n].segment.id);
	put("READY\n");
	serial_get();
	for (uint32_t scheduler = TIMEVISOR_FIFO; scheduler < CHOICES; scheduler++)
		choose(scheduler, scheduler * scheduler, 0x80000001u >> scheduler);
	for (uint32_t cycle = 0; cycle < CYCLES; cycle++) {
		for (unsigned n = 0; n < SEGMENTS; n++) {
			/* On the stack, and with another need each time: it is read when it is called. */
			struct timevisor_segment segment = all[n].segment;

			if (cycle % all[n].every)
				continue;
			segment.wcet_ns += cycle;
			if (segment.utility)
				segment.utility += cycle;
			begin(&all[n].log, &segment);
			for (uint32_t step = 0; step < 1000; step++)
				work += step;
			/* Nothing here is late: the program gives passes up by their number. */
			if (all[n].abort_every && ++all[n].passes % all[n].abort_every == 0) {
				log_call(&all[n].log, ABORT, 0, 0);
				timevisor_abort_segment(&segment);
			} else {
				log_call(&all[n].log, END, 0, 0);
				timevisor_end_segment(segment.id);
			}
		}
	}
	log_call(&all[SEGMENTS - 1].log, RETIRE, 0, 0);
	timevisor_retire_segment(all[SEGMENTS - 1].segment.id);
	log_put(&program);
	for (unsigned n = 0; n < SEGMENTS; n++) {
		log_put(&all[n].log);
		put("ABORTED ");
		put_number(all[n].segment.id);
		put(" ");
		put_number(all[n].aborted);
		put("\n");
	}
	put("DONE\n");
	return 0;
}
