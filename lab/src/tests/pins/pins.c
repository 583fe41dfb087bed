/* pins.c CHIP SYSFS: edges of line 0 of a gpio-sim chip, and a change of line 1 at a time, beside readings of the page.
   Says nothing but "fine"; ends at what is wrong. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <timevisor.h>

#define EDGES 20
#define LATE_AT_MOST_NS 5000000000

#define CHECK(condition)                                                                                          \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            printf("%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, timevisor_last_error()); \
            exit(1);                                                                                              \
        }                                                                                                         \
    } while (0)

static const char *folder;

static void pull(int line, const char *how) {
    char path[256];
    snprintf(path, sizeof path, "%s/sim_gpio%d/pull", folder, line);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(how, file);
    CHECK(fclose(file) == 0);
}

static int value(int line) {
    char path[256], text[8] = "";
    snprintf(path, sizeof path, "%s/sim_gpio%d/value", folder, line);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL);
    fclose(file);
    return text[0] == '1';
}

static void edges(const timevisor_timeline *tai, const char *chip) {
    timevisor_pin_events *events;
    timevisor_reading before = TIMEVISOR_READING_INIT, after = TIMEVISOR_READING_INIT, then = TIMEVISOR_READING_INIT;
    timevisor_wait_options options = TIMEVISOR_WAIT_OPTIONS_INIT;
    timevisor_pin_event event = TIMEVISOR_PIN_EVENT_INIT;

    options.timeout_ns = 20000000000;
    event.reading = &then;
    pull(0, "pull-down");
    CHECK(timevisor_line_events_start(tai, chip, 0, TIMEVISOR_EDGE_BOTH, &events) == 0);
    CHECK(timevisor_pin_events_on_ready(events, &event) == -11); /* -EAGAIN */
    for (int edge = 0; edge < EDGES; edge++) {
        CHECK(timevisor_now(tai, &before) == 0);
        pull(0, edge % 2 == 0 ? "pull-up" : "pull-down");
        CHECK(timevisor_now(tai, &after) == 0);
        if (edge % 4 == 3) {
            struct pollfd loop = {timevisor_pin_events_fd(events), POLLIN, 0};
            CHECK(poll(&loop, 1, 20000) == 1);
            CHECK(timevisor_pin_events_on_ready(events, &event) == 0);
        } else {
            CHECK(timevisor_pin_events_next(events, &options, &event) == 0);
        }
        CHECK(event.edge == (edge % 2 == 0 ? TIMEVISOR_EDGE_RISING : TIMEVISOR_EDGE_FALLING) && event.lost == 0);
        CHECK(event.first <= event.last && event.first <= after.counter && before.counter <= event.last);
        CHECK(then.earliest_ns <= after.latest_ns && before.earliest_ns <= then.latest_ns);
    }
    options.timeout_ns = 10000000;
    CHECK(timevisor_pin_events_next(events, &options, &event) == -110); /* -ETIMEDOUT */
    timevisor_pin_events_free(events);
}

static void outputs(const timevisor_timeline *tai, const char *chip) {
    timevisor_output *output, *other;
    timevisor_output_at_handle *at;
    timevisor_timeline *strict;
    timevisor_requirement within = timevisor_within(1);
    timevisor_reading now = TIMEVISOR_READING_INIT, then = TIMEVISOR_READING_INIT;
    timevisor_changed changed = TIMEVISOR_CHANGED_INIT;
    int code;

    changed.reading = &then;
    CHECK(timevisor_output_open(chip, 1, 0, &output) == 0 && timevisor_output_get(output) == 0);
    CHECK(timevisor_output_open(chip, 1, 0, &other) == -16 && other == NULL); /* -EBUSY */
    CHECK(timevisor_now(tai, &now) == 0);
    int64_t t_ns = now.latest_ns + 500000000;
    CHECK(timevisor_output_at(output, tai, t_ns, 1, LATE_AT_MOST_NS, NULL, &changed) == TIMEVISOR_OUTCOME_FIRED);
    CHECK(value(1) == 1 && changed.lateness_ns >= 0 && changed.first <= changed.last);
    CHECK(then.latest_ns >= t_ns && then.earliest_ns <= t_ns + changed.lateness_ns);

    /* Its time has come; the clock is not as good; in an event loop. */
    CHECK(timevisor_output_at(output, tai, t_ns, 0, LATE_AT_MOST_NS, NULL, &changed) == TIMEVISOR_OUTCOME_TOO_LATE);
    CHECK(value(1) == 1 && changed.too_late_by_ns > 0 && changed.first == 0);
    CHECK(timevisor_with_requirement(tai, &within, &strict) == 0);
    t_ns = then.latest_ns + 1000000000;
    CHECK(timevisor_output_at(output, strict, t_ns, 0, 0, NULL, &changed) == TIMEVISOR_OUTCOME_QOT_VIOLATED);
    CHECK(value(1) == 1 && then.met == 0);
    CHECK(timevisor_now(tai, &now) == 0);
    t_ns = now.latest_ns + 500000000;
    CHECK(timevisor_output_at_start(output, tai, t_ns, 0, LATE_AT_MOST_NS, 0, &at) == 0);
    struct pollfd loop = {timevisor_output_at_fd(at), POLLIN, 0};
    while ((code = timevisor_output_at_on_ready(at, &changed)) == -11) poll(&loop, 1, -1);
    CHECK(code == TIMEVISOR_OUTCOME_FIRED && value(1) == 0 && then.latest_ns >= t_ns);
    timevisor_output_at_free(at);
    timevisor_timeline_free(strict);
    timevisor_output_free(output);
}

int main(int argc, char **argv) {
    timevisor_client *client;
    timevisor_timeline *tai;
    timevisor_ptp_pins *pins;
    timevisor_ptp_pin pin = TIMEVISOR_PTP_PIN_INIT;

    CHECK(argc == 3);
    folder = argv[2];
    CHECK(timevisor_connect(NULL, &client) == 0 && timevisor_timeline_open(client, "tai", &tai) == 0);
    edges(tai, argv[1]);
    outputs(tai, argv[1]);
    CHECK(timevisor_ptp_pins_open("/dev/ptp0", &pins) == 0 && timevisor_ptp_pins_count(pins) == 0);
    CHECK(timevisor_ptp_pins_get(pins, 0, &pin) == -2); /* -ENOENT */
    CHECK(strstr(timevisor_last_error(), "has 0 pins") != NULL);
    timevisor_ptp_pins_free(pins);
    timevisor_timeline_free(tai);
    timevisor_client_free(client);
    puts("fine");
    return 0;
}
