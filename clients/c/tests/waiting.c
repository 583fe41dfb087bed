/* Waits of every kind on a clock that stands where it is put: blocking in threads, and with poll. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "check.h"

static timevisor_manual_clock *clock_;
static timevisor_timeline *tai;

static int readable(int fd) {
    struct pollfd poll_fd = {fd, POLLIN, 0};
    CHECK(fd >= 0);
    return poll(&poll_fd, 1, 0) == 1;
}

static void *advance_1000(void *nothing) {
    (void)nothing;
    CHECK(timevisor_manual_advance(clock_, 1000) == 0);
    return NULL;
}

static void *cancel_it(void *token) {
    timevisor_cancel(token);
    return NULL;
}

static void at_once(void) {
    timevisor_reading reading = TIMEVISOR_READING_INIT;
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    pthread_t thread;

    waited.reading = &reading;
    CHECK(timevisor_wait_until(tai, -5, &waited) == 0 && waited.lateness_ns == 5 && reading.estimate_ns == 0);
    CHECK(pthread_create(&thread, NULL, advance_1000, NULL) == 0);
    CHECK(timevisor_wait_until(tai, 990, &waited) == 0 && waited.lateness_ns == 10 && reading.estimate_ns == 1000);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(timevisor_manual_set_error(clock_, 100) == 0);
    CHECK(pthread_create(&thread, NULL, advance_1000, NULL) == 0);
    CHECK(timevisor_wait_past(tai, 1850, &waited) == 0 && waited.lateness_ns == 50 && reading.earliest_ns == 1900);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(timevisor_sleep(tai, 0, NULL) == 0);
    CHECK(timevisor_wait_met(tai, 0, NULL) == 0);
}

static void *advance_855(void *nothing) {
    (void)nothing;
    CHECK(timevisor_manual_advance(clock_, 855) == 0);
    return NULL;
}

/* Latest is 100 ns ahead of the estimate. */
static void surely_before(void) {
    timevisor_wait_options options = TIMEVISOR_WAIT_OPTIONS_INIT;
    timevisor_reading reading = TIMEVISOR_READING_INIT;
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    timevisor_wait_handle *wait, *late;
    pthread_t thread;

    waited.reading = &reading;
    CHECK(timevisor_manual_step(clock_, 0) == 0);
    CHECK(timevisor_manual_set_error(clock_, 100) == 0);
    CHECK(pthread_create(&thread, NULL, advance_855, NULL) == 0);
    CHECK(timevisor_wait_surely_before(tai, 1000, 50, &waited) == 0 && waited.lateness_ns == 5 && reading.latest_ns == 955);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(timevisor_reading_compare_to(&reading, 1000) == TIMEVISOR_COMPARISON_BEFORE);
    /* The last nanosecond, and the first one that is none. */
    CHECK(timevisor_wait_surely_before(tai, 956, 1, &waited) == 0 && waited.lateness_ns == 0);
    FAILS(timevisor_wait_surely_before(tai, 955, 1, &waited), ETIME, "up to 0 ns");
    memset(&reading.earliest_ns, 0, sizeof reading - offsetof(timevisor_reading, earliest_ns));
    FAILS(timevisor_wait_surely_before(tai, 950, 1, &waited), ETIME, "up to 5 ns");
    CHECK(reading.latest_ns == 955 && reading.known == 1);
    FAILS(timevisor_wait_surely_before(tai, 950, 1, NULL), ETIME, "too late");

    /* With options, where the lead is. */
    options.lead_ns = 50;
    options.timeout_ns = 1;
    CHECK(timevisor_wait(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 1000, &options, &waited) == 0 && waited.lateness_ns == 5);
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 1006, &options, &waited), ETIMEDOUT, "time-out");
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 955, &options, &waited), ETIME, "too late");
    CHECK(timevisor_wait(tai, TIMEVISOR_WHEN_UNTIL, 855, &options, &waited) == 0 && waited.lateness_ns == 0);

    /* In an event loop. */
    CHECK(timevisor_wait_surely_before_start(tai, 1010, 50, 0, &wait) == 0);
    CHECK(timevisor_wait_surely_before_start(tai, 1010, 50, 0, &late) == 0);
    CHECK(readable(timevisor_wait_fd(wait)));
    CHECK(timevisor_wait_on_ready(wait, &waited) == -EAGAIN && timevisor_wait_on_ready(late, &waited) == -EAGAIN);
    CHECK(timevisor_manual_advance(clock_, 54) == 0);
    CHECK(readable(timevisor_wait_fd(wait)));
    CHECK(timevisor_wait_on_ready(wait, &waited) == 0 && waited.lateness_ns == 49 && reading.latest_ns == 1009);
    CHECK(timevisor_manual_set_error(clock_, 103) == 0);
    FAILS(timevisor_wait_on_ready(late, &waited), ETIME, "up to 2 ns");
    CHECK(reading.latest_ns == 1012);
    CHECK(timevisor_wait_on_ready(late, &waited) == -EAGAIN);
    timevisor_wait_free(wait);
    timevisor_wait_free(late);

    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_UNRELIABLE) == 0);
    FAILS(timevisor_wait_surely_before(tai, 2000, 50, &waited), EBADMSG, "unreliable");
    CHECK(reading.status == TIMEVISOR_STATUS_UNRELIABLE);
    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_SYNCHRONIZED) == 0);
}

static void ends_of_waits(void) {
    timevisor_wait_options options = TIMEVISOR_WAIT_OPTIONS_INIT;
    timevisor_reading reading = TIMEVISOR_READING_INIT;
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    timevisor_wait_handle *wait;
    timevisor_cancel_token *token;
    pthread_t thread;

    options.timeout_ns = 1;
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_FOR, 1, &options, NULL), ETIMEDOUT, "time-out");
    CHECK(timevisor_cancel_new(&token) == 0);
    options.timeout_ns = 0;
    options.cancel = token;
    CHECK(pthread_create(&thread, NULL, cancel_it, token) == 0);
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_FOR, 1, &options, NULL), ECANCELED, "cancelled");
    CHECK(pthread_join(thread, NULL) == 0);
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_FOR, 1, &options, NULL), ECANCELED, "cancelled");
    timevisor_cancel_free(token);

    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_UNRELIABLE) == 0);
    waited.reading = &reading;
    FAILS(timevisor_wait_past(tai, INT64_MAX - 1, &waited), EBADMSG, "unreliable");
    CHECK(reading.status == TIMEVISOR_STATUS_UNRELIABLE);
    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_SYNCHRONIZED) == 0);
    CHECK(timevisor_wait_start(tai, TIMEVISOR_WHEN_UNTIL, 5000, 0, &wait) == 0);
    CHECK(timevisor_wait_on_ready(wait, &waited) == -EAGAIN);
    CHECK(timevisor_manual_step(clock_, 6000) == 0);
    FAILS(timevisor_wait_on_ready(wait, &waited), ESTALE, "disrupted");
    CHECK(reading.estimate_ns == 6000);
    timevisor_wait_free(wait);
    CHECK(timevisor_manual_forget(clock_) == 0);
    FAILS(timevisor_wait_until(tai, 0, NULL), ENODATA, "not known");
    FAILS(timevisor_wait_met(tai, 1, NULL), ETIMEDOUT, "time-out");
    CHECK(timevisor_manual_step(clock_, 0) == 0);
}

static void in_an_event_loop(void) {
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    timevisor_wait_handle *wait;

    CHECK(timevisor_wait_start(tai, TIMEVISOR_WHEN_UNTIL, 1000, 0, &wait) == 0);
    CHECK(readable(timevisor_wait_fd(wait)));
    CHECK(timevisor_wait_on_ready(wait, &waited) == -EAGAIN);
    CHECK(!readable(timevisor_wait_fd(wait)));
    CHECK(timevisor_manual_advance(clock_, 1001) == 0);
    CHECK(readable(timevisor_wait_fd(wait)));
    CHECK(timevisor_wait_on_ready(wait, &waited) == 0 && waited.lateness_ns == 1);
    CHECK(timevisor_wait_on_ready(wait, &waited) == -EAGAIN);
    timevisor_wait_free(wait);
}

static void ticks(void) {
    timevisor_reading reading = TIMEVISOR_READING_INIT;
    timevisor_tick tick = TIMEVISOR_TICK_INIT;
    timevisor_periodic *periodic;

    tick.reading = &reading;
    CHECK(timevisor_manual_step(clock_, 250) == 0);
    CHECK(timevisor_periodic_start(tai, 1000, 0, TIMEVISOR_MISSED_TICKS_COALESCE, &periodic) == 0);
    CHECK(readable(timevisor_periodic_fd(periodic)));
    CHECK(timevisor_periodic_on_ready(periodic, &tick) == -EAGAIN);
    CHECK(timevisor_manual_advance(clock_, 3755) == 0);
    CHECK(timevisor_periodic_tick(periodic, NULL, &tick) == 0);
    CHECK(tick.scheduled_ns == 4000 && tick.lateness_ns == 5 && tick.missed == 3 && reading.estimate_ns == 4005);
    CHECK(timevisor_manual_step(clock_, 100) == 0);
    FAILS(timevisor_periodic_on_ready(periodic, &tick), ESTALE, "disrupted");
    CHECK(reading.estimate_ns == 100);
    CHECK(timevisor_periodic_on_ready(periodic, &tick) == -EAGAIN);
    CHECK(timevisor_manual_advance(clock_, 900) == 0);
    CHECK(timevisor_periodic_on_ready(periodic, &tick) == 0 && tick.scheduled_ns == 1000);
    timevisor_periodic_free(periodic);
}

static void actions(void) {
    timevisor_at_result result = TIMEVISOR_AT_RESULT_INIT;
    timevisor_at_handle *at;

    CHECK(timevisor_manual_step(clock_, 0) == 0);
    CHECK(timevisor_manual_set_error(clock_, 100) == 0);
    CHECK(timevisor_at(tai, -5, 100, 0, NULL, &result) == TIMEVISOR_OUTCOME_FIRED);
    CHECK(result.outcome == TIMEVISOR_OUTCOME_FIRED && result.actual_ns == 0 && result.error_ns == 100);
    CHECK(timevisor_at(tai, -5, 99, 0, NULL, &result) == TIMEVISOR_OUTCOME_QOT_VIOLATED && result.error_ns == 100);
    CHECK(timevisor_at(tai, -5, TIMEVISOR_ANY_ERROR_NS, -3, NULL, &result) == TIMEVISOR_OUTCOME_TOO_LATE);
    CHECK(result.too_late_by_ns == 3 && result.actual_ns == 0 && result.error_ns == 0);
    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_UNRELIABLE) == 0);
    CHECK(timevisor_at(tai, -5, TIMEVISOR_ANY_ERROR_NS, 0, NULL, &result) == TIMEVISOR_OUTCOME_FIRED);
    CHECK(timevisor_at(tai, -5, TIMEVISOR_ANY_ERROR_NS - 1, 0, NULL, &result) == TIMEVISOR_OUTCOME_QOT_VIOLATED);
    CHECK(result.error_ns == TIMEVISOR_UNKNOWN_NS);
    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_SYNCHRONIZED) == 0);
    CHECK(timevisor_at_start(tai, 10, 100, 20, 0, &at) == 0);
    CHECK(readable(timevisor_at_fd(at)));
    CHECK(timevisor_at_on_ready(at, &result) == -EAGAIN);
    CHECK(timevisor_manual_step(clock_, 15) == 0);
    CHECK(timevisor_at_on_ready(at, &result) == TIMEVISOR_OUTCOME_DISRUPTED);
    CHECK(timevisor_at_on_ready(at, &result) == -EAGAIN);
    timevisor_at_free(at);
}

static void *events_elsewhere(void *watch) {
    FAILS(timevisor_watch_on_ready(watch, NULL), EBUSY, "another thread");
    CHECK(timevisor_manual_set_error(clock_, 101) == 0);
    return NULL;
}

static void events(void) {
    timevisor_requirement within = timevisor_within(100);
    timevisor_validity until = TIMEVISOR_VALIDITY_INIT;
    timevisor_wait_options options = TIMEVISOR_WAIT_OPTIONS_INIT;
    timevisor_event event = TIMEVISOR_EVENT_INIT;
    timevisor_timeline *judged;
    timevisor_watch *watch;

    event.valid_until = &until;
    CHECK(timevisor_manual_set_error(clock_, 100) == 0);
    CHECK(timevisor_with_requirement(tai, &within, &judged) == 0);
    CHECK(timevisor_watch_start(judged, &watch) == 0);
    timevisor_timeline_free(judged); /* what was started on it goes on */
    CHECK(readable(timevisor_watch_fd(watch)));
    CHECK(timevisor_watch_on_ready(watch, &event) == 0 && event.change == TIMEVISOR_CHANGE_MET);
    CHECK(until.kind == TIMEVISOR_VALIDITY_KIND_UNLIMITED);
    CHECK(timevisor_watch_on_ready(watch, &event) == -EAGAIN);
    options.timeout_ns = 1;
    FAILS(timevisor_watch_event(watch, &options, &event), ETIMEDOUT, "time-out");
    CHECK(timevisor_manual_set_error(clock_, 101) == 0);
    CHECK(timevisor_watch_event(watch, NULL, &event) == 0 && event.change == TIMEVISOR_CHANGE_VIOLATED);
    CHECK(until.kind == TIMEVISOR_VALIDITY_KIND_EXCEEDED);
    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_FREE_RUNNING) == 0);
    CHECK(timevisor_watch_event(watch, NULL, &event) == 0 && event.change == TIMEVISOR_CHANGE_HOLDOVER);
    CHECK(timevisor_manual_set_status(clock_, TIMEVISOR_STATUS_SYNCHRONIZED) == 0);
    CHECK(timevisor_watch_event(watch, NULL, &event) == 0 && event.change == TIMEVISOR_CHANGE_SYNCHRONIZED);
    CHECK(timevisor_manual_step(clock_, 0) == 0);
    CHECK(timevisor_watch_event(watch, NULL, &event) == 0 && event.change == TIMEVISOR_CHANGE_DISRUPTED);
    timevisor_watch_free(watch);
}

/* A handle that blocks in one thread does not block another one, nor crash. */
static void *wait_for_violation(void *watch) {
    timevisor_event event = TIMEVISOR_EVENT_INIT;
    int code;
    while ((code = timevisor_watch_event(watch, NULL, &event)) == -EBUSY) { /* the other one looks at it */
    }
    CHECK(code == 0 && event.change == TIMEVISOR_CHANGE_VIOLATED);
    return NULL;
}

static void two_threads_on_one_handle(void) {
    timevisor_requirement within = timevisor_within(100);
    timevisor_timeline *judged;
    timevisor_watch *watch;
    pthread_t thread;

    CHECK(timevisor_manual_set_error(clock_, 100) == 0);
    CHECK(timevisor_with_requirement(tai, &within, &judged) == 0);
    CHECK(timevisor_watch_start(judged, &watch) == 0);
    CHECK(timevisor_watch_event(watch, NULL, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, wait_for_violation, watch) == 0);
    while (timevisor_watch_on_ready(watch, NULL) != -EBUSY) {
    }
    events_elsewhere(watch);
    CHECK(pthread_join(thread, NULL) == 0);
    timevisor_watch_free(watch);
    timevisor_timeline_free(judged);
}

int main(void) {
    CHECK(timevisor_manual_new(TIMEVISOR_TIMESCALE_TAI, 0, &clock_) == 0);
    CHECK(timevisor_manual_timeline(clock_, &tai) == 0);
    at_once();
    surely_before();
    ends_of_waits();
    in_an_event_loop();
    ticks();
    actions();
    events();
    two_threads_on_one_handle();
    timevisor_timeline_free(tai);
    timevisor_manual_free(clock_);
    return 0;
}
