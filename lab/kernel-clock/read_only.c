// LD_PRELOAD: a clock that a program believes to steer. Reading CLOCK_REALTIME and its state is as
// always; setting or slewing it succeeds and changes nothing. The clock is right already, so that
// an NTP client that follows it finds no offset to correct.
#define _GNU_SOURCE
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

static int read_state(struct timex *state)
{
    struct timex asked = *state;
    int result;

    state->modes = 0;
    result = (int)syscall(SYS_adjtimex, state);
    // A program that slews expects the frequency back that it has set.
    if (asked.modes & ADJ_FREQUENCY)
        state->freq = asked.freq;
    return result < 0 ? result : TIME_OK;
}

int adjtimex(struct timex *state)
{
    return read_state(state);
}

int ntp_adjtime(struct timex *state)
{
    return read_state(state);
}

int clock_adjtime(clockid_t id, struct timex *state)
{
    (void)id;
    return read_state(state);
}

int clock_settime(clockid_t id, const struct timespec *time)
{
    (void)id;
    (void)time;
    return 0;
}

int settimeofday(const struct timeval *time, const struct timezone *zone)
{
    (void)time;
    (void)zone;
    return 0;
}
