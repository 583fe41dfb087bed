/* Everything that a caller can get wrong without breaking the header's rules on memory: a code and a text, never a crash. */
#include <errno.h>

#include "check.h"

#define NULLS(call) FAILS(call, EINVAL, "NULL")

static void null_handles(void) {
    timevisor_client *client = NULL;
    timevisor_timeline *timeline;
    timevisor_timeline_list *list;
    timevisor_reading reading = TIMEVISOR_READING_INIT;
    timevisor_timeline_row row = TIMEVISOR_TIMELINE_ROW_INIT;
    timevisor_achieved achieved = TIMEVISOR_ACHIEVED_INIT;
    timevisor_validity until = TIMEVISOR_VALIDITY_INIT;
    timevisor_host_cpu_time cpu_time = TIMEVISOR_HOST_CPU_TIME_INIT;
    timevisor_wait_handle *wait;
    timevisor_at_handle *at;
    timevisor_periodic *periodic;
    timevisor_watch *watch;
    timevisor_measured_span span = TIMEVISOR_MEASURED_SPAN_INIT;
    timevisor_recorder *recorder;
    timevisor_recording *recording;
    timevisor_packet_stamps *packets;
    timevisor_pin_events *events;
    timevisor_output *output;
    timevisor_output_at_handle *output_at;
    timevisor_ptp_pins *pins;
    timevisor_ptp_pin pin = TIMEVISOR_PTP_PIN_INIT;
    uint64_t stamp, other;
    char text[8];

    NULLS(timevisor_connect(NULL, NULL));
    NULLS(timevisor_timelines(client, &list));
    NULLS(timevisor_timeline_open(client, "tai", &timeline));
    CHECK(timeline == NULL);
    NULLS(timevisor_bind(client, "tai", NULL, NULL, &timeline));
    NULLS(timevisor_client_describe(client, text, sizeof text));
    NULLS(timevisor_timeline_list_get(NULL, 0, &row));
    NULLS(timevisor_read_host_cpu_time(NULL, 0, &cpu_time));
    NULLS(timevisor_with_requirement(NULL, NULL, &timeline));
    NULLS(timevisor_update(NULL, NULL, NULL));
    NULLS(timevisor_unbind(NULL));
    NULLS(timevisor_timeline_achieved(NULL, &achieved));
    NULLS(timevisor_timeline_timescale(NULL));
    NULLS(timevisor_timeline_lease(NULL));
    NULLS(timevisor_now(NULL, &reading));
    NULLS(timevisor_convert(NULL, 0, &reading));
    NULLS(timevisor_observe(NULL));
    NULLS(timevisor_convert_between(NULL, 0, 0, &reading));
    NULLS(timevisor_span(NULL, 0, 0, &span));
    NULLS(timevisor_record_to(NULL, "/tmp/file", &recorder));
    NULLS(timevisor_recorder_observe(NULL));
    NULLS(timevisor_recording_open(NULL, &recording));
    NULLS(timevisor_recording_convert(NULL, 0, &reading));
    NULLS(timevisor_recording_convert_between(NULL, 0, 0, &reading));
    NULLS(timevisor_recording_span(NULL, 0, 0, &span));
    NULLS(timevisor_packet_stamps_open(NULL, &packets));
    NULLS(timevisor_stamp_of_packet(NULL, 0, &stamp, &other));
    NULLS(timevisor_stamp_of_packet(NULL, 0, &stamp, NULL));
    NULLS(timevisor_line_events_start(NULL, "/dev/null", 0, TIMEVISOR_EDGE_BOTH, &events));
    NULLS(timevisor_ptp_events_start(NULL, "/dev/null", 0, TIMEVISOR_EDGE_BOTH, &events));
    NULLS(timevisor_pin_events_next(NULL, NULL, NULL));
    NULLS(timevisor_pin_events_fd(NULL));
    NULLS(timevisor_pin_events_on_ready(NULL, NULL));
    NULLS(timevisor_output_open(NULL, 0, 0, &output));
    NULLS(timevisor_output_open("/dev/null", 0, 0, NULL));
    NULLS(timevisor_output_set(NULL, 0));
    NULLS(timevisor_output_get(NULL));
    NULLS(timevisor_output_at(NULL, NULL, 0, 1, 0, NULL, NULL));
    NULLS(timevisor_output_at_start(NULL, NULL, 0, 1, 0, 0, &output_at));
    NULLS(timevisor_output_at_fd(NULL));
    NULLS(timevisor_output_at_on_ready(NULL, NULL));
    NULLS(timevisor_ptp_pins_open(NULL, &pins));
    NULLS(timevisor_ptp_pins_count(NULL));
    NULLS(timevisor_ptp_pins_get(NULL, 0, &pin));
    NULLS(timevisor_ptp_pins_set(NULL, 0, TIMEVISOR_PIN_FUNCTION_OUTPUT, 0));
    NULLS(timevisor_ptp_pins_pulse_at(NULL, NULL, 0, 0, 1, NULL));
    NULLS(timevisor_ptp_pins_end_output(NULL, 0));
    NULLS(timevisor_compare_to(NULL, 0));
    NULLS(timevisor_reading_compare_to(NULL, 0));
    NULLS(timevisor_reading_compare(&reading, NULL));
    NULLS(timevisor_reading_compare(NULL, &reading));
    NULLS(timevisor_is_surely_before(NULL, 0));
    NULLS(timevisor_is_surely_past(NULL, 0));
    NULLS(timevisor_valid_until(NULL, 0, &until));
    NULLS(timevisor_cancel_new(NULL));
    NULLS(timevisor_wait_until(NULL, 0, NULL));
    NULLS(timevisor_wait_past(NULL, 0, NULL));
    NULLS(timevisor_wait_surely_before(NULL, 0, 1, NULL));
    NULLS(timevisor_sleep(NULL, 0, NULL));
    NULLS(timevisor_wait_met(NULL, 0, NULL));
    NULLS(timevisor_wait(NULL, TIMEVISOR_WHEN_MET, 0, NULL, NULL));
    NULLS(timevisor_wait_start(NULL, TIMEVISOR_WHEN_MET, 0, 0, &wait));
    NULLS(timevisor_wait_surely_before_start(NULL, 0, 1, 0, &wait));
    NULLS(timevisor_wait_fd(NULL));
    NULLS(timevisor_wait_on_ready(NULL, NULL));
    NULLS(timevisor_at(NULL, 0, 0, 0, NULL, NULL));
    NULLS(timevisor_at_start(NULL, 0, 0, 0, 0, &at));
    NULLS(timevisor_at_fd(NULL));
    NULLS(timevisor_at_on_ready(NULL, NULL));
    NULLS(timevisor_periodic_start(NULL, 1, 0, 0, &periodic));
    NULLS(timevisor_periodic_tick(NULL, NULL, NULL));
    NULLS(timevisor_periodic_fd(NULL));
    NULLS(timevisor_periodic_on_ready(NULL, NULL));
    NULLS(timevisor_watch_start(NULL, &watch));
    NULLS(timevisor_watch_event(NULL, NULL, NULL));
    NULLS(timevisor_watch_fd(NULL));
    NULLS(timevisor_watch_on_ready(NULL, NULL));
    NULLS(timevisor_manual_new(TIMEVISOR_TIMESCALE_TAI, 0, NULL));
    NULLS(timevisor_manual_timeline(NULL, &timeline));
    NULLS(timevisor_manual_now(NULL, NULL));
    NULLS(timevisor_manual_advance(NULL, 0));
    NULLS(timevisor_manual_set_error(NULL, 0));
    NULLS(timevisor_manual_set_errors(NULL, 0, 0));
    NULLS(timevisor_manual_set_growth_ppb(NULL, 0));
    NULLS(timevisor_manual_set_estimated_error(NULL, 0));
    NULLS(timevisor_manual_set_status(NULL, 0));
    NULLS(timevisor_manual_step(NULL, 0));
    NULLS(timevisor_manual_forget(NULL));
    NULLS(timevisor_manual_bus_new(NULL));
    NULLS(timevisor_manual_bus_lose(NULL, 0, 0));
    NULLS(timevisor_manual_bus_delay(NULL, 0));
    NULLS(timevisor_manual_bus_cut(NULL, "a"));
    NULLS(timevisor_manual_bus_heal(NULL));
    NULLS(timevisor_manual_bus_restart(NULL));

    CHECK(timevisor_stamp(NULL) == 0 && timevisor_timeline_list_count(NULL) == 0);
    CHECK(timevisor_client_page(NULL) == NULL && timevisor_timeline_name(NULL) == NULL);
    timevisor_client_free(NULL);
    timevisor_timeline_list_free(NULL);
    timevisor_timeline_free(NULL);
    timevisor_cancel(NULL);
    timevisor_cancel_free(NULL);
    timevisor_wait_free(NULL);
    timevisor_at_free(NULL);
    timevisor_periodic_free(NULL);
    timevisor_watch_free(NULL);
    timevisor_recording_free(NULL);
    timevisor_packet_stamps_free(NULL);
    timevisor_pin_events_free(NULL);
    timevisor_output_free(NULL);
    timevisor_output_at_free(NULL);
    timevisor_ptp_pins_free(NULL);
    CHECK(timevisor_recorder_close(NULL) == 0);
    timevisor_manual_free(NULL);
    timevisor_manual_bus_free(NULL);
}

static void no_page(void) {
    timevisor_options options = TIMEVISOR_OPTIONS_INIT;
    timevisor_client *client;

    options.page = "/nonexistent/clock";
    FAILS(timevisor_connect(&options, &client), ENOENT, "/nonexistent/clock");
    CHECK(client == NULL);
    options.page = "\xff";
    FAILS(timevisor_connect(&options, &client), EINVAL, "UTF-8");
    options.page = NULL;
    options.timeout_ns = -1;
    FAILS(timevisor_connect(&options, &client), EINVAL, "negative");
    options.timeout_ns = 0;
    options.reserved = 1;
    FAILS(timevisor_connect(&options, &client), E2BIG, "reserved");
}

/* What is no chip, and no PTP clock, says what to give. */
static void no_pins(timevisor_timeline *tai) {
    timevisor_pin_events *events;
    timevisor_output *output;
    timevisor_ptp_pins *pins;

    FAILS(timevisor_output_open("/dev/null", 3, 0, &output), ENOTTY, "/dev/gpiochipN");
    CHECK(output == NULL);
    FAILS(timevisor_output_open("/nonexistent", 3, 0, &output), ENOENT, "no such device");
    FAILS(timevisor_ptp_pins_open("/dev/null", &pins), ENOTTY, "/dev/ptpN");
    FAILS(timevisor_line_events_start(tai, "/dev/null", 0, TIMEVISOR_EDGE_UNKNOWN, &events), EINVAL, "timevisor_edge");
    FAILS(timevisor_line_events_start(tai, "/dev/null", 0, TIMEVISOR_EDGE_BOTH, &events), ENOTSUP, "clock for tests");
    CHECK(events == NULL);
}

static void structures(timevisor_timeline *tai) {
    timevisor_reading reading = TIMEVISOR_READING_INIT;
    timevisor_requirement within = timevisor_within(1000);
    timevisor_wait_options options = TIMEVISOR_WAIT_OPTIONS_INIT;
    timevisor_timeline *judged;
    struct {
        timevisor_requirement known;
        uint64_t unknown;
    } newer;
    struct {
        timevisor_reading known;
        uint64_t unknown;
    } larger;

    NULLS(timevisor_now(tai, NULL));
    reading.struct_size = 0;
    FAILS(timevisor_now(tai, &reading), EINVAL, "struct_size is 0");
    reading.struct_size = 0x7fffffff;
    FAILS(timevisor_now(tai, &reading), EINVAL, "struct_size");
    FAILS(timevisor_now(tai, (timevisor_reading *)(void *)((char *)&larger + 1)), EINVAL, "aligned");

    /* A newer program, which does not use what is new; and one that does. */
    memset(&newer, 0, sizeof newer);
    newer.known = within;
    newer.known.struct_size = sizeof newer;
    CHECK(timevisor_with_requirement(tai, &newer.known, &judged) == 0);
    timevisor_timeline_free(judged);
    newer.unknown = 1;
    FAILS(timevisor_with_requirement(tai, &newer.known, &judged), E2BIG, "does not know");
    CHECK(judged == NULL);
    memset(&larger, 0xff, sizeof larger);
    larger.known.struct_size = sizeof larger;
    CHECK(timevisor_now(tai, &larger.known) == 0 && larger.unknown == 0 && larger.known.known == 1);
    CHECK(larger.known.struct_size == sizeof larger);
    /* An older one: without `probability`, which is then 0, whatever there is in memory. */
    within.probability = 7;
    within.struct_size -= sizeof within.probability;
    CHECK(timevisor_with_requirement(tai, &within, &judged) == 0);
    timevisor_timeline_free(judged);
    within.struct_size += sizeof within.probability;
    FAILS(timevisor_with_requirement(tai, &within, &judged), EINVAL, "probability 7");
    within.probability = 0;
    within.above_ns = 0;
    FAILS(timevisor_with_requirement(tai, &within, &judged), EINVAL, "0 ns");
    within.above_ns = -1;
    FAILS(timevisor_with_requirement(tai, &within, &judged), EINVAL, "above_ns is -1 ns");
    options.spin_ns = -1;
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_MET, 0, &options, NULL), EINVAL, "spin_ns");
    options.spin_ns = 0;
    options.lead_ns = -1;
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 9, &options, NULL), EINVAL, "lead_ns is -1 ns");
    CHECK(timevisor_wait(tai, TIMEVISOR_WHEN_UNTIL, 0, &options, NULL) == 0);
    /* A program from before there was a lead: whatever there is in memory, it gives none. */
    options.lead_ns = 5;
    CHECK(timevisor_wait(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 5, &options, NULL) == 0);
    options.struct_size -= sizeof options.lead_ns;
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 5, &options, NULL), EINVAL, "lead_ns is 0");
    CHECK(timevisor_wait(tai, TIMEVISOR_WHEN_UNTIL, 0, &options, NULL) == 0);
}

/* An outcome must not be lost because there is no place for it. */
static void nothing_is_lost(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    timevisor_wait_handle *wait;

    CHECK(timevisor_wait_start(tai, TIMEVISOR_WHEN_FOR, 0, 0, &wait) == 0);
    CHECK(timevisor_manual_advance(clock, 1) == 0);
    waited.struct_size = 1;
    FAILS(timevisor_wait_on_ready(wait, &waited), EINVAL, "struct_size");
    waited.struct_size = sizeof waited;
    CHECK(timevisor_wait_on_ready(wait, &waited) == 0);
    timevisor_wait_free(wait);
}

static void numbers(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_requirement within = timevisor_within(1);
    timevisor_wait_handle *wait;
    timevisor_at_handle *at;
    timevisor_periodic *periodic;

    FAILS(timevisor_wait(tai, 5, 0, NULL, NULL), EINVAL, "5 is no timevisor_when");
    FAILS(timevisor_wait(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 9, NULL, NULL), EINVAL, "lead_ns is 0");
    FAILS(timevisor_wait_start(tai, TIMEVISOR_WHEN_SURELY_BEFORE, 9, 0, &wait), EINVAL, "timevisor_wait_surely_before_start");
    FAILS(timevisor_wait_surely_before(tai, 9, 0, NULL), EINVAL, "lead_ns is 0");
    FAILS(timevisor_wait_surely_before_start(tai, 9, -1, 0, &wait), EINVAL, "lead_ns is -1 ns");
    FAILS(timevisor_wait_surely_before_start(tai, 9, 1, -1, &wait), EINVAL, "spin_ns is -1 ns");
    CHECK(wait == NULL);
    FAILS(timevisor_wait_start(tai, -1, 0, 0, &wait), EINVAL, "-1 is no timevisor_when");
    FAILS(timevisor_sleep(tai, -1, NULL), EINVAL, "negative");
    FAILS(timevisor_at(tai, 1, 0, 0, NULL, NULL), EINVAL, "before");
    FAILS(timevisor_at_start(tai, 0, -1, 0, 0, &at), EINVAL, "max_error_ns");
    FAILS(timevisor_periodic_start(tai, 0, 0, 0, &periodic), EINVAL, "period");
    FAILS(timevisor_periodic_start(tai, 1, 0, 3, &periodic), EINVAL, "3 is no timevisor_missed_ticks");
    FAILS(timevisor_manual_set_status(clock, 5), EINVAL, "timevisor_status");
    FAILS(timevisor_manual_advance(clock, INT64_MIN), EINVAL, "negative");
    CHECK(strcmp(timevisor_status_name(99), "?") == 0);

    /* Only a binding has a requirement in force. */
    FAILS(timevisor_update(tai, &within, NULL), EINVAL, "not bound");
    FAILS(timevisor_unbind(tai), EINVAL, "not bound");
    FAILS(timevisor_timeline_lease(tai), EINVAL, "not bound");
    FAILS(timevisor_timeline_timescale(tai), EINVAL, "not bound");
}

static void texts(void) {
    int code;

    CHECK(strcmp(timevisor_strerror(0), "success") == 0);
    CHECK(strcmp(timevisor_strerror(-ERANGE), timevisor_strerror(ERANGE)) == 0);
    CHECK(strstr(timevisor_strerror(-ERANGE), "cannot be met") != NULL);
    for (code = -200; code < 200; code++) CHECK(timevisor_strerror(code)[0] != 0);
    CHECK(strstr(timevisor_strerror(-0x7fffffff - 1), "unknown") != NULL);
    CHECK(strchr(timevisor_version(), '.') != NULL);
}

int main(void) {
    timevisor_manual_clock *clock;
    timevisor_timeline *tai;

    CHECK(strcmp(timevisor_last_error(), "") == 0);
    FAILS(timevisor_manual_new(3, 0, &clock), EINVAL, "3 is no timevisor_timescale");
    CHECK(clock == NULL);
    CHECK(timevisor_manual_new(TIMEVISOR_TIMESCALE_LOCAL, 0, &clock) == 0);
    CHECK(timevisor_manual_timeline(clock, &tai) == 0);
    texts();
    null_handles();
    no_page();
    no_pins(tai);
    structures(tai);
    nothing_is_lost(clock, tai);
    numbers(clock, tai);
    /* The clock first: its timelines stand still, but are still there. */
    timevisor_manual_free(clock);
    CHECK(timevisor_sleep(tai, 0, NULL) == 0);
    timevisor_timeline_free(tai);
    return 0;
}
