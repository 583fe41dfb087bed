/*
 * Real-time segments without an operating system: a cyclic executive of three segments, that tells at its end what it called. It
 * begins when a byte comes over the serial port.
 */
#include "guest.h"
#include "timevisor-segments.h"

#define CYCLES 600

/* Calls, for the logs. */
#define BEGIN 'B' /* wcet, period */
#define END 'E'
#define RETIRE 'R'

static struct {
	struct timevisor_segment segment;
	uint32_t every; /* cycles */
	struct log log;
} all[] = {
	{ { .id = 1, .wcet_ns = 200000, .deadline_ns = 1000000, .period_ns = 2000000 }, 1, { 0 } },
	{ { .id = 2, .wcet_ns = 300000, .deadline_ns = 0, .period_ns = 4000000 }, 2, { 0 } },
	{ { .id = 3, .wcet_ns = 500000, .deadline_ns = 5000000, .period_ns = 10000000 }, 5, { 0 } },
};

enum { SEGMENTS = sizeof(all) / sizeof(all[0]) };

static volatile uint32_t work;

int main(void)
{
	serial_start();
	for (unsigned n = 0; n < SEGMENTS; n++)
		log_start(&all[n].log, all[n].segment.id);
	put("READY\n");
	serial_get();
	for (uint32_t cycle = 0; cycle < CYCLES; cycle++) {
		for (unsigned n = 0; n < SEGMENTS; n++) {
			/* On the stack, and with another need each time: it is read when it is called. */
			struct timevisor_segment segment = all[n].segment;

			if (cycle % all[n].every)
				continue;
			segment.wcet_ns += cycle;
			log_call(&all[n].log, BEGIN, (uint32_t)segment.wcet_ns, (uint32_t)segment.period_ns);
			timevisor_begin_segment(&segment);
			for (uint32_t step = 0; step < 1000; step++)
				work += step;
			log_call(&all[n].log, END, 0, 0);
			timevisor_end_segment(segment.id);
		}
	}
	log_call(&all[SEGMENTS - 1].log, RETIRE, 0, 0);
	timevisor_retire_segment(all[SEGMENTS - 1].segment.id);
	for (unsigned n = 0; n < SEGMENTS; n++)
		log_put(&all[n].log);
	put("DONE\n");
	return 0;
}
