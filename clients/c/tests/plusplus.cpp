// The header in C++: twice, with its initializers, linked as C.
#include <timevisor.h>
#include <timevisor.h>

#include "check.h"

int main() {
    timevisor_options options = TIMEVISOR_OPTIONS_INIT;
    timevisor_bind_options bind = TIMEVISOR_BIND_OPTIONS_INIT;
    timevisor_achieved achieved = TIMEVISOR_ACHIEVED_INIT;
    timevisor_timeline_row row = TIMEVISOR_TIMELINE_ROW_INIT;
    timevisor_reading reading = TIMEVISOR_READING_INIT;
    timevisor_measured_span span = TIMEVISOR_MEASURED_SPAN_INIT;
    timevisor_validity until = TIMEVISOR_VALIDITY_INIT;
    timevisor_wait_options wait = TIMEVISOR_WAIT_OPTIONS_INIT;
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    timevisor_tick tick = TIMEVISOR_TICK_INIT;
    timevisor_at_result result = TIMEVISOR_AT_RESULT_INIT;
    timevisor_event event = TIMEVISOR_EVENT_INIT;
    timevisor_requirement between = timevisor_between(1, 2);
    CHECK(options.struct_size == sizeof options && bind.struct_size == sizeof bind);
    CHECK(achieved.struct_size == sizeof achieved && row.struct_size == sizeof row);
    CHECK(span.struct_size == sizeof span && span.longest_ns == 0);
    CHECK(until.struct_size == sizeof until && wait.struct_size == sizeof wait && tick.struct_size == sizeof tick);
    CHECK(result.struct_size == sizeof result && event.struct_size == sizeof event);
    CHECK(between.below_ns == 1 && between.above_ns == 2 && between.probability == 0);

    timevisor_manual_clock *clock = nullptr;
    timevisor_timeline *tai = nullptr;
    CHECK(timevisor_manual_new(TIMEVISOR_TIMESCALE_TAI, 5, &clock) == 0);
    CHECK(timevisor_manual_timeline(clock, &tai) == 0);
    waited.reading = &reading;
    CHECK(timevisor_wait(tai, TIMEVISOR_WHEN_UNTIL, 4, &wait, &waited) == 0 && reading.estimate_ns == 5);
    timevisor_timeline_free(tai);
    timevisor_manual_free(clock);
    return 0;
}
