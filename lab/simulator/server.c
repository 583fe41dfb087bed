/* The NTP server (RFC 5905 section 7.3): right to within its precision, answers at once, stratum 1. Like chronyd it fills
   the bits below its precision with noise, so that half of the answers seem to leave before the request came. */
#include <arpa/inet.h>
#include <math.h>
#include <string.h>

#include "simulator.h"

#define HEADER_BYTES 48
#define MODE_CLIENT 3
#define MODE_SERVER 4
/* 2^-23 s = 119 ns */
#define PRECISION (-23)
#define NOISE_BITS ((1u << (32 + PRECISION)) - 1)
/* Seconds from 1900 to 1970. */
#define ERA_OFFSET 2208988800LL

static void put_timestamp(unsigned char *at, Seconds time) {
	Seconds whole = floorl(time);
	uint32_t fraction = (uint32_t)((time - whole) * 4294967296.0L);
	uint32_t words[2] = {
		htonl((uint32_t)((long long)whole + UNIX_START + ERA_OFFSET)),
		htonl((fraction & ~NOISE_BITS) | (noise() & NOISE_BITS)),
	};

	memcpy(at, words, sizeof words);
}

void answer(const unsigned char *request, size_t length, Seconds at, struct packet *reply) {
	unsigned char *bytes = reply->bytes;
	unsigned version;

	reply->length = 0;
	if (length < HEADER_BYTES || (request[0] & 7) != MODE_CLIENT)
		return;
	version = request[0] >> 3 & 7;
	memset(bytes, 0, HEADER_BYTES);
	bytes[0] = (unsigned char)(version << 3 | MODE_SERVER);
	bytes[1] = 1;                      /* stratum */
	bytes[2] = request[2];             /* poll */
	bytes[3] = (unsigned char)PRECISION;
	memcpy(bytes + 12, "SIM", 4);      /* reference id */
	put_timestamp(bytes + 16, at - 1); /* reference time */
	memcpy(bytes + 24, request + 40, 8);
	put_timestamp(bytes + 32, at);
	put_timestamp(bytes + 40, at);
	reply->length = HEADER_BYTES;
}
