// LD_PRELOAD: a machine whose battery-backed clock is wrong. CLOCK_REALTIME is off by SHIFT_S
// seconds in this process only. The kernel's stamps of packets are not, so they are refused.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, id, now);
    const char *shift = getenv("SHIFT_S");

    if (result == 0 && id == CLOCK_REALTIME && shift)
        now->tv_sec += atoll(shift);
    return result;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    if (level == SOL_SOCKET && name == SO_TIMESTAMPING) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return (int)syscall(SYS_setsockopt, fd, level, name, value, length);
}
