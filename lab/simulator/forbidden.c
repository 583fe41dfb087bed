/* Calls that a simulator may not know, or that the single-threaded path must not make. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "simulator.h"

void forbidden(const char *call) {
	fprintf(stderr, "simulator: forbidden: %s\n", call);
	abort();
}

#define FORBID(result, name, ...)                                                                          \
	result name(__VA_ARGS__) { forbidden(#name); }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* Other ways to wait. */
FORBID(int, epoll_create, int size)
FORBID(int, epoll_create1, int flags)
FORBID(int, ppoll, struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
FORBID(int, select, int count, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
FORBID(int, pselect, int count, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask)
FORBID(int, timerfd_create, int clock, int flags)
FORBID(int, eventfd, unsigned count, int flags)
FORBID(int, timer_create, clockid_t clock, struct sigevent *event, timer_t *timer)
/* Other ways to use a socket. */
FORBID(int, connect, int fd, const struct sockaddr *address, socklen_t length)
FORBID(int, bind, int fd, const struct sockaddr *address, socklen_t length)
FORBID(int, accept4, int fd, struct sockaddr *address, socklen_t *length, int flags)
FORBID(int, setsockopt, int fd, int level, int option, const void *value, socklen_t length)
FORBID(ssize_t, send, int fd, const void *data, size_t length, int flags)
FORBID(ssize_t, sendmsg, int fd, const struct msghdr *message, int flags)
FORBID(ssize_t, recv, int fd, void *data, size_t room, int flags)
FORBID(ssize_t, recvmsg, int fd, struct msghdr *message, int flags)
/* Other ways to read or set a clock, and ways around libc. */
FORBID(int, clock_settime, clockid_t clock, const struct timespec *time)
FORBID(int, adjtimex, struct timex *state)
FORBID(long, syscall, long number, ...)
/* Threads do not wait for virtual time. */
FORBID(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
#pragma GCC diagnostic pop

int fcntl(int fd, int command, ...) {
	static int (*real)(int, int, ...);
	va_list rest;
	void *argument;

	if (is_ours(fd))
		forbidden("fcntl on a socket");
	if (!real)
		real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl");
	va_start(rest, command);
	argument = va_arg(rest, void *);
	va_end(rest);
	return real(fd, command, argument);
}
