/* True time, the oscillator, random numbers, packets under way, the log. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simulator.h"

#define PACKETS 64
/* clknetsim lets its clocks run ahead by 101 ns at every read, for programs that measure a clock's precision, until a
   packet comes or something has waited until 0.1 s, when they jump back. Here by more, so that nobody overlooks it. */
#define READ_STEP 20e-6L
#define SETTLING 0.1L

static struct {
	Seconds limit, offset, delay, queue;
	double frequency, wander, loss;
	uint64_t random_state;
	FILE *log;
} world;

static Seconds now;        /* true time */
static Seconds oscillator; /* what it counts */
static struct packet packets[PACKETS];
static unsigned long waits, idle_waits, reads;
static bool settled;

static double number(const char *name, double otherwise) {
	const char *text = getenv(name);
	return text ? atof(text) : otherwise;
}

static void log_second(void) {
	fprintf(world.log, "%.12Lf\n", realtime() - now);
}

__attribute__((constructor)) static void start(void) {
	const char *log = getenv("SIMULATOR_LOG");

	if (!log || !(world.log = fopen(log, "we"))) {
		fprintf(stderr, "simulator: SIMULATOR_LOG must name a file to write\n");
		_exit(2);
	}
	world.limit = number("SIMULATOR_SECONDS", 7200);
	world.offset = number("SIMULATOR_OFFSET", 0.01);
	world.frequency = number("SIMULATOR_FREQUENCY", 20e-6);
	world.wander = number("SIMULATOR_WANDER", 1e-9);
	world.delay = number("SIMULATOR_DELAY", 30e-6);
	world.queue = number("SIMULATOR_QUEUE", 20e-6);
	world.loss = number("SIMULATOR_LOSS", 0);
	world.random_state = (uint64_t)number("SIMULATOR_SEED", 1);
	log_second();
}

/* splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t random_bits(void) {
	uint64_t z = (world.random_state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint32_t noise(void) { return (uint32_t)(random_bits() >> 32); }

/* From 0 to 1, both exclusive. */
static double uniform(void) {
	return ((double)(random_bits() >> 11) + 0.5) / 9007199254740992.0;
}

/* Box and Muller. */
static double normal(void) {
	double radius = sqrt(-2 * log(uniform()));

	return radius * cos(2 * M_PI * uniform());
}

Seconds random_delay(void) {
	if (uniform() < world.loss)
		return -1;
	return world.delay - world.queue * logl(uniform());
}

Seconds true_time(void) { return now; }
Seconds oscillator_time(void) { return oscillator; }
Seconds realtime(void) { return oscillator + world.offset; }

/* As clknetsim does: the signal comes while the program waits. */
static void end(void) {
	fclose(world.log);
	fprintf(stderr, "simulator: waits %lu idle %lu\n", waits, idle_waits);
	kill(getpid(), SIGTERM);
	/* A program that handles the signal has a second to end in. */
	sleep(1);
	_exit(3);
}

void put_on_its_way(const struct packet *packet, Seconds sent) {
	Seconds delay = random_delay();
	int i;

	if (delay < 0)
		return;
	for (i = 0; i < PACKETS && packets[i].used; i++)
		;
	if (i == PACKETS)
		forbidden("more than 64 packets unread");
	packets[i] = *packet;
	packets[i].used = true;
	packets[i].arrival = sent + delay;
}

static struct packet *next_packet(void) {
	struct packet *next = NULL;
	int i;

	for (i = 0; i < PACKETS; i++)
		if (packets[i].used && (!next || packets[i].arrival < next->arrival))
			next = &packets[i];
	return next;
}

struct packet *arrived(int socket) {
	struct packet *first = NULL;
	int i;

	for (i = 0; i < PACKETS; i++)
		if (packets[i].used && packets[i].socket == socket && packets[i].arrival <= now &&
		    (!first || packets[i].arrival < first->arrival))
			first = &packets[i];
	return first;
}

Seconds read_ahead(void) {
	return settled ? 0 : READ_STEP * reads++;
}

bool pass_until(Seconds deadline, bool for_packets) {
	Seconds before = now;
	bool packet_came = false;

	waits++;
	for (;;) {
		Seconds rate = 1 + (Seconds)world.frequency;
		Seconds at_deadline = now + (deadline - oscillator) / rate;
		Seconds second = floorl(now) + 1;
		struct packet *packet = for_packets ? next_packet() : NULL;
		Seconds next = second < at_deadline ? second : at_deadline;

		if (packet && packet->arrival <= next) {
			next = packet->arrival > now ? packet->arrival : now;
			packet_came = true;
		}
		if (next > now) {
			oscillator += (next - now) * rate;
			now = next;
		}
		if (now == second) {
			world.frequency += world.wander * normal();
			log_second();
			if (now >= world.limit)
				end();
		}
		if (packet_came || now >= at_deadline)
			break;
	}
	if (now == before)
		idle_waits++;
	if (oscillator >= SETTLING || packet_came)
		settled = true;
	return packet_came;
}
