/* The calls that a program may make: clocks, sleeping, and UDP by sendto, recvfrom and poll. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "simulator.h"

/* Descriptors that the kernel has never heard of. */
#define FIRST_FD 1000
#define SOCKETS 16
#define FOREVER 1e9L

static bool open_sockets[SOCKETS];

bool is_ours(int fd) {
	return fd >= FIRST_FD && fd < FIRST_FD + SOCKETS && open_sockets[fd - FIRST_FD];
}

int clock_gettime(clockid_t clock, struct timespec *time) {
	Seconds value;

	switch (clock) {
	case CLOCK_REALTIME:
		value = realtime();
		break;
	case CLOCK_MONOTONIC:
	case CLOCK_MONOTONIC_RAW:
		value = oscillator_time();
		break;
	default:
		forbidden("clock_gettime of another clock");
	}
	value += read_ahead();
	time->tv_sec = (time_t)floorl(value);
	time->tv_nsec = (long)((value - floorl(value)) * 1e9L);
	time->tv_sec += clock == CLOCK_REALTIME ? UNIX_START : 0;
	return 0;
}

/* Nobody keeps this clock, and nobody may. */
int clock_adjtime(clockid_t clock, struct timex *state) {
	if (clock != CLOCK_REALTIME || state->modes != 0)
		forbidden("clock_adjtime that changes something");
	memset(state, 0, sizeof *state);
	state->status = STA_UNSYNC;
	state->maxerror = 16000000;
	return TIME_ERROR;
}

int nanosleep(const struct timespec *length, struct timespec *left) {
	pass_until(oscillator_time() + length->tv_sec + length->tv_nsec * 1e-9L, false);
	if (left)
		memset(left, 0, sizeof *left);
	return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *length, struct timespec *left) {
	if ((clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) || flags != 0)
		forbidden("clock_nanosleep until an absolute time");
	return nanosleep(length, left);
}

int socket(int domain, int type, int protocol) {
	int i;

	if (domain != AF_INET || type != SOCK_DGRAM)
		forbidden("socket of another type than SOCK_DGRAM, or with flags");
	(void)protocol;
	for (i = 0; i < SOCKETS; i++)
		if (!open_sockets[i]) {
			open_sockets[i] = true;
			return FIRST_FD + i;
		}
	errno = EMFILE;
	return -1;
}

int close(int fd) {
	static int (*real)(int);

	if (is_ours(fd)) {
		open_sockets[fd - FIRST_FD] = false;
		return 0;
	}
	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "close");
	return real(fd);
}

ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to,
	       socklen_t to_length) {
	const struct sockaddr_in *server = (const struct sockaddr_in *)to;
	struct packet reply = {.socket = fd};
	Seconds delay = random_delay();

	(void)flags;
	if (!is_ours(fd) || !to || to_length < sizeof *server || server->sin_family != AF_INET)
		forbidden("sendto without an Internet address");
	if (length > PACKET_BYTES) {
		errno = EMSGSIZE;
		return -1;
	}
	reply.from_address = server->sin_addr.s_addr;
	reply.from_port = server->sin_port;
	if (delay >= 0) {
		answer(data, length, true_time() + delay, &reply);
		if (reply.length > 0)
			put_on_its_way(&reply, true_time() + delay);
	}
	return (ssize_t)length;
}

ssize_t recvfrom(int fd, void *data, size_t room, int flags, struct sockaddr *from, socklen_t *from_length) {
	struct packet *packet;
	struct sockaddr_in address = {.sin_family = AF_INET};
	size_t length;

	if (!is_ours(fd) || !from || *from_length < sizeof address)
		forbidden("recvfrom without room for the address");
	packet = arrived(fd);
	if (!packet) {
		if (!(flags & MSG_DONTWAIT))
			forbidden("recvfrom that would wait for ever");
		errno = EAGAIN;
		return -1;
	}
	address.sin_addr.s_addr = packet->from_address;
	address.sin_port = packet->from_port;
	memcpy(from, &address, sizeof address);
	*from_length = sizeof address;
	length = packet->length < room ? packet->length : room;
	memcpy(data, packet->bytes, length);
	packet->used = false;
	return (ssize_t)(flags & MSG_TRUNC ? packet->length : length);
}

static int count_ready(struct pollfd *fds, nfds_t count) {
	int ready = 0;
	nfds_t i;

	for (i = 0; i < count; i++) {
		fds[i].revents = fds[i].events & POLLIN && arrived(fds[i].fd) ? POLLIN : 0;
		ready += fds[i].revents != 0;
	}
	return ready;
}

int poll(struct pollfd *fds, nfds_t count, int timeout) {
	Seconds deadline = oscillator_time() + (timeout < 0 ? FOREVER : timeout / 1e3L);
	int ready;
	nfds_t i;

	for (i = 0; i < count; i++)
		/* Runtimes look at descriptors 0 to 2 when they start, for nothing in particular. */
		if (fds[i].events != 0 && !is_ours(fds[i].fd))
			forbidden("poll of something that is no socket");
	while ((ready = count_ready(fds, count)) == 0 && pass_until(deadline, count > 0))
		;
	return ready;
}
