/* What the simulator's files know of each other. */
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* world.c. True time in seconds since the start; extended precision, so that nanoseconds survive days. */
typedef long double Seconds;

/* The Unix time of the start: 2010-01-01. */
#define UNIX_START 1262304000LL
#define PACKET_BYTES 1024

struct packet {
	bool used;
	int socket;            /* the client's socket */
	Seconds arrival;       /* true time */
	uint32_t from_address; /* as in sockaddr_in */
	uint16_t from_port;
	size_t length;
	unsigned char bytes[PACKET_BYTES];
};

Seconds true_time(void);
Seconds oscillator_time(void); /* CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW */
Seconds realtime(void);        /* CLOCK_REALTIME since the start */
/* How far a clock is ahead at this read; 0 from soon after the start on. */
Seconds read_ahead(void);
/* Lets time pass until the oscillator says `deadline` or a packet is there for one of the sockets; true for a packet. */
bool pass_until(Seconds deadline, bool for_packets);
/* A packet that has arrived on this socket, or NULL. */
struct packet *arrived(int socket);
/* Puts a packet on its way; it may get lost. */
void put_on_its_way(const struct packet *packet, Seconds sent);
/* Random bits. */
uint32_t noise(void);
/* One random delay; negative when the packet is lost. */
Seconds random_delay(void);

/* server.c. The answer to a request that arrives at true time `at`; length 0 when there is none. */
void answer(const unsigned char *request, size_t length, Seconds at, struct packet *reply);

/* calls.c */
bool is_ours(int fd);

/* forbidden.c */
void forbidden(const char *call) __attribute__((noreturn));

#endif
