// LD_PRELOAD: what the kernel says of CLOCK_REALTIME beside systemd-timesyncd or phc2sys: kept, and
// without a declared error. maxerror is set to 0 every four seconds; the kernel adds 500 us each
// second. With MAXERROR_US, maxerror stands still at that value.
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static long seconds(void)
{
    struct timespec now = { 0 };
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static int told(struct timex *state)
{
    static long since = -1;
    const char *constant = getenv("MAXERROR_US");
    int result = (int)syscall(SYS_adjtimex, state);

    if (result < 0)
        return result;
    if (since < 0)
        since = seconds();
    state->status = STA_PLL | STA_NANO;
    state->maxerror = constant ? atol(constant) : 500 * ((seconds() - since) % 4);
    state->esterror = 0;
    return TIME_OK;
}

int adjtimex(struct timex *state)
{
    return told(state);
}

int clock_adjtime(clockid_t id, struct timex *state)
{
    (void)id;
    return told(state);
}
