/*
 * The plugin's socket and its thread: one timevisord at a time, and no points while none is
 * connected.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "introspect.h"

#define TURN_MS 2 /* between two looks at the rings while there are points */

static struct {
	int fd; /* -1: nobody is connected */
	uint8_t in[MAX_PAYLOAD + 8];
	size_t in_len;
	uint8_t out[65536];
	size_t out_at, out_len;
	bool installed_told;
	uint32_t told_generation, asked_generation;
	uint64_t told_dropped;
} peer = { .fd = -1 };

static uint64_t next_sequence; /* that is taken from a ring */

int listen_at(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	mode_t before;
	int probe;

	if (strlen(path) >= sizeof(address.sun_path)) {
		fprintf(stderr, "timevisor-introspect: %s is too long for a socket, 107 characters at most\n", path);
		return -1;
	}
	strcpy(address.sun_path, path);
	strcpy(plugin.path, path);
	plugin.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Left behind by a QEMU that was killed. */
	if (connect(probe, (struct sockaddr *)&address, sizeof(address)) && errno == ECONNREFUSED)
		unlink(path);
	close(probe);
	/* A client reads the guest's memory, so only the owner and root may connect. */
	before = umask(0177);
	if (bind(plugin.listener, (struct sockaddr *)&address, sizeof(address)) || listen(plugin.listener, 1)) {
		fprintf(stderr, "timevisor-introspect: cannot listen at %s: %s\n", path, strerror(errno));
		umask(before);
		return -1;
	}
	umask(before);
	return 0;
}

static bool put(enum kind kind, const void *head, size_t head_len, const void *data, size_t data_len)
{
	uint32_t length = head_len + data_len;
	uint16_t words[2] = { kind, 0 };

	if (peer.out_at && (peer.out_at == peer.out_len || sizeof(peer.out) - peer.out_len < length + 8)) {
		memmove(peer.out, peer.out + peer.out_at, peer.out_len - peer.out_at);
		peer.out_len -= peer.out_at;
		peer.out_at = 0;
	}
	if (sizeof(peer.out) - peer.out_len < length + 8)
		return false;
	memcpy(peer.out + peer.out_len, &length, 4);
	memcpy(peer.out + peer.out_len + 4, words, 4);
	memcpy(peer.out + peer.out_len + 8, head, head_len);
	if (data_len)
		memcpy(peer.out + peer.out_len + 8 + head_len, data, data_len);
	peer.out_len += length + 8;
	return true;
}

static void want(const struct points *points)
{
	pthread_mutex_lock(&plugin.lock);
	plugin.wanted = *points;
	/* The plugin's count, because a daemon's number may repeat. */
	peer.asked_generation = atomic_fetch_add(&plugin.wanted_generation, 1) + 1;
	pthread_mutex_unlock(&plugin.lock);
}

static void leave(void)
{
	static const struct points none;

	close(peer.fd);
	peer.fd = -1;
	peer.installed_told = true; /* nobody waits for it */
	want(&none);
}

static void greet(void)
{
	struct {
		uint32_t magic;
		uint16_t version, vcpus;
		uint32_t registers, zero;
		uint64_t next, dropped, epoch;
	} hello = { .magic = MAGIC, .version = PROTOCOL_VERSION };

	peer.in_len = peer.out_at = peer.out_len = 0;
	peer.installed_told = true;
	for (unsigned n = 0; n < MAX_VCPUS; n++)
		hello.vcpus += atomic_load(&plugin.vcpus[n]) != NULL;
	hello.registers = atomic_load(&plugin.known_registers);
	hello.next = next_sequence;
	hello.dropped = peer.told_dropped = atomic_load(&plugin.dropped);
	hello.epoch = plugin.epoch;
	put(HELLO, &hello, sizeof(hello), NULL, 0);
}

/* Handles one frame; false: the client is not a timevisord. */
static bool frame(uint16_t kind, const uint8_t *payload, size_t length)
{
	static struct points points;
	const char *wrong;

	if (kind != POINTS)
		return false;
	memset(&points, 0, sizeof(points));
	wrong = parse_points(payload, length, &points);
	if (wrong) {
		struct {
			uint32_t generation;
			uint16_t code, zero;
		} refused = { .generation = points.generation, .code = BAD_POINTS };

		return put(REFUSED, &refused, sizeof(refused), NULL, 0);
	}
	want(&points);
	peer.told_generation = points.generation;
	peer.installed_told = false;
	return true;
}

static bool take(void)
{
	ssize_t got = recv(peer.fd, peer.in + peer.in_len, sizeof(peer.in) - peer.in_len, MSG_DONTWAIT);
	size_t at = 0;

	if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
		return false;
	peer.in_len += got > 0 ? (size_t)got : 0;
	while (peer.in_len - at >= 8) {
		uint32_t length;
		uint16_t kind;

		memcpy(&length, peer.in + at, 4);
		memcpy(&kind, peer.in + at + 4, 2);
		if (length > MAX_PAYLOAD)
			return false;
		if (peer.in_len - at < 8 + (size_t)length)
			break;
		if (!frame(kind, peer.in + at + 8, length))
			return false;
		at += 8 + length;
	}
	memmove(peer.in, peer.in + at, peer.in_len - at);
	peer.in_len -= at;
	return true;
}

/* The ring with the next event; NULL: it has not been published yet, or there is none. */
static struct vcpu *next(void)
{
	if (atomic_load(&plugin.sequence) == next_sequence)
		return NULL;
	for (unsigned n = 0; n < MAX_VCPUS; n++) {
		struct vcpu *vcpu = atomic_load_explicit(&plugin.vcpus[n], memory_order_acquire);
		uint64_t tail;

		if (!vcpu)
			continue;
		tail = atomic_load_explicit(&vcpu->tail, memory_order_relaxed);
		if (tail != atomic_load_explicit(&vcpu->head, memory_order_acquire) &&
		    vcpu->ring[tail % RING].head.sequence == next_sequence)
			return vcpu;
	}
	return NULL;
}

static void drain(void)
{
	struct vcpu *vcpu;

	while ((vcpu = next())) {
		uint64_t tail = atomic_load_explicit(&vcpu->tail, memory_order_relaxed);
		struct slot *slot = &vcpu->ring[tail % RING];

		slot->head.dropped = atomic_load(&plugin.dropped);
		if (peer.fd < 0)
			atomic_fetch_add(&plugin.dropped, 1);
		else if (put(EVENT, &slot->head, sizeof(slot->head), slot->data, slot->head.length))
			peer.told_dropped = slot->head.dropped;
		else
			return; /* It waits in the ring, and may come to drop others. */
		next_sequence++;
		atomic_store_explicit(&vcpu->tail, tail + 1, memory_order_release);
	}
}

static void tell(void)
{
	uint64_t status[2] = { next_sequence, atomic_load(&plugin.dropped) };
	struct {
		uint32_t generation;
		uint16_t count, zero;
	} installed = { .generation = peer.told_generation, .count = atomic_load(&plugin.active_count) };

	/* Events of the former points come first. */
	if (!peer.installed_told && atomic_load(&plugin.active_generation) == peer.asked_generation &&
	    atomic_load(&plugin.sequence) == next_sequence)
		peer.installed_told = put(INSTALLED, &installed, sizeof(installed), NULL, 0);
	for (unsigned n = 0; peer.installed_told && n < MAX_POINTS; n++) {
		struct mismatch *mismatch = &plugin.mismatches[n];
		struct {
			uint32_t generation;
			uint16_t point, length;
			uint8_t found[8];
		} told = { .generation = peer.told_generation };

		if (atomic_load(&mismatch->state) != 2)
			continue;
		pthread_mutex_lock(&plugin.lock);
		told.point = plugin.active.all[n].head.id;
		pthread_mutex_unlock(&plugin.lock);
		told.length = mismatch->length;
		memcpy(told.found, mismatch->found, 8);
		if (put(MISMATCH, &told, sizeof(told), NULL, 0))
			atomic_store(&mismatch->state, 3);
	}
	if (status[1] != peer.told_dropped && put(STATUS, status, sizeof(status), NULL, 0))
		peer.told_dropped = status[1];
}

static bool give(void)
{
	while (peer.out_at < peer.out_len) {
		ssize_t sent = send(peer.fd, peer.out + peer.out_at, peer.out_len - peer.out_at, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return errno == EAGAIN;
		peer.out_at += (size_t)sent;
	}
	return true;
}

void *serve(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "introspect");
	for (;;) {
		struct pollfd fds[2] = { { .fd = peer.fd < 0 ? plugin.listener : -1, .events = POLLIN },
					 { .fd = peer.fd, .events = POLLIN } };
		bool busy = atomic_load(&plugin.active_count) || !peer.installed_told ||
			    atomic_load(&plugin.wanted_generation) != atomic_load(&plugin.active_generation) ||
			    atomic_load(&plugin.sequence) != next_sequence;

		if (peer.out_at < peer.out_len)
			fds[1].events |= POLLOUT;
		/* Full buffers wait for the peer, not for the next turn. */
		poll(fds, 2, busy ? TURN_MS : -1);
		if (peer.fd < 0 && (fds[0].revents & POLLIN)) {
			peer.fd = accept4(plugin.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
			if (peer.fd >= 0)
				greet();
		}
		if (peer.fd >= 0 && (fds[1].revents & (POLLIN | POLLHUP | POLLERR)) && !take())
			leave();
		drain();
		if (peer.fd < 0)
			continue;
		tell();
		if (!give())
			leave();
	}
	return NULL;
}
