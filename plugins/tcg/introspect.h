/*
 * What the plugin and timevisord say to each other, and the plugin's parts. crates/introspection/src/backend/tcg/codec.rs is the other
 * end. Little endian; a frame is a header of 8 bytes (u32 payload length, u16 kind, u16 zero) and its payload.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef TIMEVISOR_INTROSPECT_H
#define TIMEVISOR_INTROSPECT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "qemu-plugin.h"

#define PROTOCOL_VERSION 2
#define MAGIC 0x50495654u /* "TVIP" */
#define MAX_POINTS 32
#define MAX_READS 16
#define MAX_DATA 256 /* bytes that one event carries */
#define MAX_PAYLOAD 16384
#define MAX_VCPUS 256
#define RING 4096 /* events that wait, for each vCPU */

enum kind { POINTS = 1, HELLO = 0x81, INSTALLED, EVENT, MISMATCH, REFUSED, STATUS };
enum base { REGISTER, EARLIER, VALUE, ABSOLUTE };
enum refusal { BAD_POINTS = 1 };

/* On the wire as they are here. */
struct read {
	uint8_t base; /* enum base: memory at a register, at an earlier read's value, a register itself, or memory at the offset */
	uint8_t index;
	uint16_t length;
	uint32_t zero;
	int64_t offset;
};

struct point_head {
	uint16_t id;
	uint8_t reads;
	uint8_t filter; /* which read decides; 0xff: none */
	uint8_t expected_len;
	uint8_t zero[3];
	uint64_t address;
	uint8_t expected[8];
	uint64_t mask; /* of values of the filter's read that pass */
};

struct event_head {
	uint64_t sequence;
	uint64_t counter; /* the host's, 0 where there is none */
	uint64_t dropped; /* events until now that nobody got */
	uint16_t point;
	uint16_t vcpu;
	uint16_t failed; /* reads that could not be made */
	uint16_t length;
};

struct point {
	struct point_head head;
	struct read reads[MAX_READS];
};

struct points {
	uint32_t generation;
	unsigned count;
	bool low; /* some are not in the upper half of the address space, where kernels with processes are */
	struct point all[MAX_POINTS];
};

#define REGISTERS 18 /* as KVM numbers the first 16; then gs_base, cr3 */

struct slot {
	struct event_head head;
	uint8_t data[MAX_DATA];
};

/* One vCPU's: its thread writes at head, the socket's thread reads at tail. */
struct vcpu {
	struct qemu_plugin_register *registers[REGISTERS];
	GByteArray *buffer;
	_Atomic uint64_t head;
	_Atomic uint64_t tail;
	struct slot ring[RING];
	struct slot spare; /* for what finds no place */
};

/* An instruction that is not the one that was expected. */
struct mismatch {
	_Atomic int state; /* 0: none, 1: being written, 2: to be told */
	uint8_t length;
	uint8_t found[8];
};

struct plugin {
	qemu_plugin_id_t id;
	int listener;
	char path[108];
	uint64_t epoch;
	struct vcpu *_Atomic vcpus[MAX_VCPUS];
	_Atomic uint64_t sequence; /* of the next event */
	_Atomic uint64_t dropped;
	_Atomic uint32_t known_registers;
	/* Asked for by the socket's thread, made true in QEMU's exclusive section. */
	pthread_mutex_t lock;
	struct points wanted;
	_Atomic uint32_t wanted_generation;
	_Atomic uint32_t active_generation;
	_Atomic unsigned active_count;
	struct points active; /* changes while no vCPU runs */
	struct mismatch mismatches[MAX_POINTS];
	atomic_flag resetting;
};

extern struct plugin plugin;

/* socket.c */
int listen_at(const char *path);
void *serve(void *unused);
/* points.c: NULL, or what is wrong */
const char *parse_points(const uint8_t *payload, size_t length, struct points *out);

#endif
