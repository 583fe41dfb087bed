/* Reading, converting and comparing on a clock that stands where it is put. */
#include <errno.h>

#include "check.h"

static void what_a_reading_says(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_reading now = TIMEVISOR_READING_INIT;
    timevisor_timeline *judged;
    timevisor_requirement within = timevisor_within(50000);

    CHECK(timevisor_manual_set_errors(clock, 40000, 50000) == 0);
    CHECK(timevisor_manual_set_estimated_error(clock, 700) == 0);
    CHECK(timevisor_now(tai, &now) == 0);
    CHECK(now.earliest_ns == 999960000 && now.estimate_ns == 1000000000 && now.latest_ns == 1000050000);
    CHECK(now.below_ns == 40000 && now.above_ns == 50000 && now.estimated_error_ns == 700);
    CHECK(now.known == 1 && now.met == 1);
    CHECK(now.status == TIMEVISOR_STATUS_SYNCHRONIZED && now.timescale == TIMEVISOR_TIMESCALE_TAI);
    CHECK(now.tai_offset_s == 37);
    CHECK(strcmp(timevisor_status_name(now.status), "synchronized") == 0);
    CHECK(strcmp(timevisor_timeline_name(tai), "tai") == 0);

    CHECK(timevisor_with_requirement(tai, &within, &judged) == 0);
    CHECK(timevisor_now(judged, &now) == 0 && now.met == 1);
    CHECK(timevisor_manual_set_error(clock, 50001) == 0);
    CHECK(timevisor_now(judged, &now) == 0 && now.met == 0);
    CHECK(timevisor_now(tai, &now) == 0 && now.met == 1);
    timevisor_timeline_free(judged);
}

static void where_it_is_certain(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_reading first = TIMEVISOR_READING_INIT, second = TIMEVISOR_READING_INIT;

    CHECK(timevisor_manual_step(clock, 1000000) == 0);
    CHECK(timevisor_manual_set_error(clock, 500) == 0);
    CHECK(timevisor_compare_to(tai, 999499) == TIMEVISOR_COMPARISON_AFTER);
    CHECK(timevisor_compare_to(tai, 1000400) == TIMEVISOR_COMPARISON_UNCERTAIN);
    CHECK(timevisor_compare_to(tai, 1000501) == TIMEVISOR_COMPARISON_BEFORE);
    CHECK(timevisor_is_surely_past(tai, 999499) == 1 && timevisor_is_surely_past(tai, 999500) == 0);
    CHECK(timevisor_is_surely_before(tai, 1000501) == 1 && timevisor_is_surely_before(tai, 1000500) == 0);
    CHECK(timevisor_now(tai, &first) == 0);
    CHECK(timevisor_manual_advance(clock, 1001) == 0);
    CHECK(timevisor_now(tai, &second) == 0);
    CHECK(timevisor_reading_compare(&first, &second) == TIMEVISOR_COMPARISON_BEFORE);
    CHECK(timevisor_reading_compare(&second, &first) == TIMEVISOR_COMPARISON_AFTER);
    CHECK(timevisor_reading_compare(&first, &first) == TIMEVISOR_COMPARISON_UNCERTAIN);
    CHECK(timevisor_reading_compare_to(&second, 1000500) == TIMEVISOR_COMPARISON_AFTER);
}

static void stamps(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_reading then = TIMEVISOR_READING_INIT;
    uint64_t stamp;

    CHECK(timevisor_manual_set_error(clock, 50000) == 0);
    CHECK(timevisor_manual_step(clock, 0) == 0);
    CHECK(timevisor_observe(tai) == 0);
    stamp = timevisor_stamp(tai);
    CHECK(timevisor_manual_advance(clock, 1000000000) == 0);
    CHECK(timevisor_stamp(tai) == stamp + 1000000000);
    CHECK(timevisor_manual_set_error(clock, 10000) == 0);
    CHECK(timevisor_convert(tai, stamp, &then) == 0);
    CHECK(then.earliest_ns == -10000 && then.counter == stamp);
    CHECK(then.latest_ns == 10000 || then.latest_ns == 10001); /* rounded outward */
    CHECK(timevisor_manual_step(clock, 7) == 0);
    FAILS(timevisor_convert(tai, stamp, &then), ESTALE, "disrupted");
}

static void spans(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_measured_span span = TIMEVISOR_MEASURED_SPAN_INIT;
    timevisor_reading then = TIMEVISOR_READING_INIT;
    timevisor_packet_stamps *packets;
    uint64_t begin, end;

    CHECK(timevisor_manual_set_error(clock, 50000) == 0);
    CHECK(timevisor_manual_set_growth_ppb(clock, 15000) == 0);
    CHECK(timevisor_manual_step(clock, 0) == 0);
    CHECK(timevisor_observe(tai) == 0);
    begin = timevisor_stamp(tai);
    CHECK(timevisor_manual_advance(clock, 10000000) == 0);
    end = timevisor_stamp(tai);
    CHECK(timevisor_span(tai, begin, end, &span) == 0);
    CHECK(span.shortest_ns == 9999849 && span.estimate_ns == 10000000 && span.longest_ns == 10000150);
    CHECK(span.status == TIMEVISOR_STATUS_SYNCHRONIZED);
    CHECK(timevisor_span(tai, end, begin, &span) == 0);
    CHECK(span.shortest_ns == -10000150 && span.longest_ns == -9999849);
    CHECK(timevisor_convert_between(tai, begin, end, &then) == 0);
    CHECK(then.earliest_ns <= -49999 && then.latest_ns >= 10049999);
    FAILS(timevisor_convert_between(tai, end, begin, &then), EINVAL, "before it began");
    FAILS(timevisor_packet_stamps_open(tai, &packets), ENOTSUP, "for tests");
    CHECK(packets == NULL);
    FAILS(timevisor_stamp_of_packet(NULL, 0, &begin, &begin), EINVAL, "same place");
    FAILS(timevisor_stamp_of_packet(NULL, 0, &begin, NULL), EINVAL, "NULL");
    FAILS(timevisor_stamp_of_packet(NULL, 0, &begin, &end), EINVAL, "packet stamps");
    CHECK(timevisor_manual_step(clock, 7) == 0);
    FAILS(timevisor_span(tai, begin, timevisor_stamp(tai), &span), ESTALE, "disrupted");
    CHECK(timevisor_manual_set_growth_ppb(clock, 0) == 0);
}

static void recordings(timevisor_manual_clock *clock, timevisor_timeline *tai, const char *file) {
    timevisor_measured_span span = TIMEVISOR_MEASURED_SPAN_INIT;
    timevisor_reading then = TIMEVISOR_READING_INIT;
    timevisor_recorder *recorder, *other;
    timevisor_recording *recording;
    uint64_t begin, end;

    CHECK(timevisor_manual_set_error(clock, 50000) == 0);
    CHECK(timevisor_manual_step(clock, 3000000000) == 0);
    CHECK(timevisor_record_to(tai, file, &recorder) == 0);
    FAILS(timevisor_record_to(tai, file, &other), EBUSY, "another program");
    CHECK(other == NULL);
    begin = timevisor_stamp(tai);
    CHECK(timevisor_manual_advance(clock, 1000000000) == 0);
    CHECK(timevisor_recorder_observe(recorder) == 1);
    CHECK(timevisor_recorder_observe(recorder) == 0);
    end = timevisor_stamp(tai);
    CHECK(timevisor_recorder_close(recorder) == 0);
    CHECK(timevisor_recording_open(file, &recording) == 0);
    CHECK(timevisor_recording_convert(recording, begin, &then) == 0 && then.estimate_ns == 3000000000);
    CHECK(timevisor_recording_convert_between(recording, begin, end, &then) == 0 && then.estimate_ns / 10 == 349999999);
    CHECK(timevisor_recording_span(recording, begin, end, &span) == 0 && span.estimate_ns == 1000000000);
    FAILS(timevisor_recording_convert(recording, begin - 1, &then), ESTALE, "older");
    FAILS(timevisor_recording_convert(recording, end + 1, &then), ESTALE, "newer");
    timevisor_recording_free(recording);
    FAILS(timevisor_recording_open("/nonexistent/file", &recording), ENOENT, "/nonexistent/file");
    FAILS(timevisor_recording_open(__FILE__, &recording), EILSEQ, "no recording");
    CHECK(recording == NULL);
}

static void until_when(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_validity until = TIMEVISOR_VALIDITY_INIT;

    CHECK(timevisor_manual_step(clock, 0) == 0);
    CHECK(timevisor_manual_set_error(clock, 50000) == 0);
    CHECK(timevisor_manual_set_growth_ppb(clock, 1000) == 0);
    CHECK(timevisor_valid_until(tai, 60000, &until) == 0);
    CHECK(until.kind == TIMEVISOR_VALIDITY_KIND_UNTIL);
    CHECK(until.estimate_ns > 9998000000 && until.estimate_ns <= 10000000000);
    CHECK(until.counter > timevisor_stamp(tai));
    CHECK(timevisor_valid_until(tai, 49999, &until) == 0 && until.kind == TIMEVISOR_VALIDITY_KIND_EXCEEDED);
    CHECK(until.estimate_ns == 0 && until.counter == 0);
    CHECK(timevisor_manual_set_growth_ppb(clock, 0) == 0);
}

static void ages(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_reading age = TIMEVISOR_READING_INIT;
    timevisor_elapsed *since, *again;
    char saved[1024], cut[8];
    int length;

    CHECK(timevisor_elapsed_begin(tai, TIMEVISOR_BLACKOUTS_COUNT, &since) == 0);
    CHECK(timevisor_manual_advance(clock, 2000000000) == 0);
    CHECK(timevisor_elapsed_now(since, &age) == 0 && age.known == 1);
    CHECK(age.earliest_ns <= 2000000000 && age.latest_ns >= 2000000000 && age.timescale == TIMEVISOR_TIMESCALE_LOCAL);
    length = timevisor_elapsed_save(since, saved, sizeof saved);
    CHECK(length > 0 && (size_t)length < sizeof saved && strlen(saved) == (size_t)length);
    CHECK(timevisor_elapsed_save(since, cut, sizeof cut) == length && strlen(cut) == sizeof cut - 1);
    CHECK(timevisor_elapsed_resume(tai, saved, &again) == 0);
    timevisor_elapsed_free(since);
    CHECK(timevisor_manual_advance(clock, 1000000000) == 0);
    CHECK(timevisor_elapsed_now(again, &age) == 0);
    CHECK(age.earliest_ns <= 3000000000 && age.latest_ns >= 3000000000);
    timevisor_elapsed_free(again);
    FAILS(timevisor_elapsed_resume(tai, cut, &again), EINVAL, "saved age");
    FAILS(timevisor_elapsed_begin(tai, 2, &again), EINVAL, "timevisor_blackouts");
    CHECK(again == NULL);
    timevisor_elapsed_free(again);
    CHECK(timevisor_manual_step(clock, 0) == 0);
}

static void nothing_known(timevisor_manual_clock *clock, timevisor_timeline *tai) {
    timevisor_reading now = TIMEVISOR_READING_INIT;
    int64_t stands;

    CHECK(timevisor_manual_now(clock, &stands) == 0 && stands == 0);
    CHECK(timevisor_manual_set_status(clock, TIMEVISOR_STATUS_UNRELIABLE) == 0);
    CHECK(timevisor_now(tai, &now) == 0 && now.status == TIMEVISOR_STATUS_UNRELIABLE);
    CHECK(timevisor_reading_compare_to(&now, INT64_MAX) == TIMEVISOR_COMPARISON_UNCERTAIN);
    CHECK(timevisor_manual_forget(clock) == 0);
    FAILS(timevisor_manual_now(clock, &stands), ENODATA, "forget");
    CHECK(timevisor_now(tai, &now) == 0);
    CHECK(now.known == 0 && now.status == TIMEVISOR_STATUS_UNKNOWN && now.below_ns == TIMEVISOR_UNKNOWN_NS);
    FAILS(timevisor_convert(tai, timevisor_stamp(tai), &now), ENODATA, "not known");
}

int main(int argc, char **argv) {
    timevisor_manual_clock *clock;
    timevisor_timeline *tai;

    CHECK(timevisor_manual_new(TIMEVISOR_TIMESCALE_TAI, 1000000000, &clock) == 0);
    CHECK(timevisor_manual_timeline(clock, &tai) == 0);
    what_a_reading_says(clock, tai);
    where_it_is_certain(clock, tai);
    stamps(clock, tai);
    spans(clock, tai);
    CHECK(argc == 2);
    recordings(clock, tai, argv[1]);
    until_when(clock, tai);
    ages(clock, tai);
    nothing_known(clock, tai);
    timevisor_manual_free(clock);
    timevisor_timeline_free(tai);
    return 0;
}
