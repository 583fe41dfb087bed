// Timevisor's client: bind to a timeline, read it as an interval, wait on it. The same program runs
// on a host, in a container and in a guest. docs/reference/clients/c.md begins with a first
// program.
//
// Units: instants are nanoseconds since the timeline's epoch, spans are nanoseconds, stamps are
// ticks of the counter.
//
// Codes: functions return 0 or a number that their comment explains, or a negative errno value.
// Then timevisor_strerror says what the code means, and timevisor_last_error what went wrong and
// what to do about it.
//
// Pointers: where a comment does not allow NULL, it is answered with -EINVAL. A handle is used only
// between its making and its freeing. Texts are UTF-8 and end with a zero byte. What a function
// gives in a structure or as a text may not be written to by another thread at that time.
//
// Structures: initialize every one with its TIMEVISOR_..._INIT, so that it says how large it is.
// Programs and libraries of different versions then understand each other: only as many bytes are
// read and written as both know. What a newer program sets and an older library does not know is
// refused with -E2BIG.
//
// Threads: "Any thread" means any number of them at the same time, with the same handle. There
// are no signals, and no signal handlers except for SIGBUS where a page file is named: see
// timevisor_survive_truncation. After a fork, connect again in the child: see timevisor_client.
//
// Generated from clients/c/src: change that, and run `make -C clients/c header`.

#ifndef TIMEVISOR_H
#define TIMEVISOR_H

#include <stddef.h>
#include <stdint.h>

// Structures to begin with: all zeroes but for the size.
#define TIMEVISOR_OPTIONS_INIT {(uint32_t)sizeof(timevisor_options), 0, NULL, NULL, NULL, 0}
#define TIMEVISOR_REQUIREMENT_INIT {(uint32_t)sizeof(timevisor_requirement), 0, 0, 0, 0, 0}
#define TIMEVISOR_ACHIEVED_INIT {(uint32_t)sizeof(timevisor_achieved), 0, 0, 0, 0, 0}
#define TIMEVISOR_BIND_OPTIONS_INIT {(uint32_t)sizeof(timevisor_bind_options), 0, 0, 0, NULL}
#define TIMEVISOR_READING_INIT {(uint32_t)sizeof(timevisor_reading), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define TIMEVISOR_MEASURED_SPAN_INIT {(uint32_t)sizeof(timevisor_measured_span), 0, 0, 0, 0}
#define TIMEVISOR_VALIDITY_INIT {(uint32_t)sizeof(timevisor_validity), 0, 0, 0}
#define TIMEVISOR_TIMELINE_ROW_INIT {(uint32_t)sizeof(timevisor_timeline_row), 0, NULL, 0, 0, NULL, NULL}
#define TIMEVISOR_WAIT_OPTIONS_INIT {(uint32_t)sizeof(timevisor_wait_options), 0, 0, 0, NULL, 0}
#define TIMEVISOR_WAITED_INIT {(uint32_t)sizeof(timevisor_waited), 0, 0, NULL}
#define TIMEVISOR_TICK_INIT {(uint32_t)sizeof(timevisor_tick), 0, 0, 0, 0, NULL}
#define TIMEVISOR_AT_RESULT_INIT {(uint32_t)sizeof(timevisor_at_result), 0, 0, 0, 0, NULL}
#define TIMEVISOR_EVENT_INIT {(uint32_t)sizeof(timevisor_event), 0, NULL, NULL}
#define TIMEVISOR_HOST_CPU_TIME_INIT {(uint32_t)sizeof(timevisor_host_cpu_time), 0, 0, 0, 0}
#define TIMEVISOR_PIN_EVENT_INIT {(uint32_t)sizeof(timevisor_pin_event), 0, 0, 0, 0, 0, NULL}
#define TIMEVISOR_CHANGED_INIT {(uint32_t)sizeof(timevisor_changed), 0, 0, 0, 0, 0, NULL}
#define TIMEVISOR_PULSE_INIT {(uint32_t)sizeof(timevisor_pulse), 0, 0, 0, 0, 0, NULL}
#define TIMEVISOR_PTP_PIN_INIT {(uint32_t)sizeof(timevisor_ptp_pin), 0, 0, 0, {0}}
#define TIMEVISOR_JOIN_OPTIONS_INIT {(uint32_t)sizeof(timevisor_join_options), 0, NULL, NULL, NULL, NULL, NULL, 0, NULL}
#define TIMEVISOR_MEMBER_INIT {(uint32_t)sizeof(timevisor_member), 0, {0}, 0, 0, 0, 0, 0}
#define TIMEVISOR_MESSAGE_INIT {(uint32_t)sizeof(timevisor_message), 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0}
#define TIMEVISOR_REPORT_INIT {(uint32_t)sizeof(timevisor_report), 0, {0}, 0, {0}, 0, 0, 0, 0, 0, NULL}
#define TIMEVISOR_PROPOSE_OPTIONS_INIT {(uint32_t)sizeof(timevisor_propose_options), 0, NULL, 0}
#define TIMEVISOR_PROPOSED_INIT {(uint32_t)sizeof(timevisor_proposed), 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0}
#define TIMEVISOR_GROUP_OUTCOME_INIT {(uint32_t)sizeof(timevisor_group_outcome), 0, 0, 0, 0, 0}
#define TIMEVISOR_PART_INIT {(uint32_t)sizeof(timevisor_part), 0, {0}, 0, 0, 0}

// A span that is not known: as wide as can be, so that comparisons with a limit come out on the
// safe side.
#define TIMEVISOR_UNKNOWN_NS INT64_MAX

// For timevisor_at: any error will do.
#define TIMEVISOR_ANY_ERROR_NS INT64_MAX

// TAI - UTC is not known.
#define TIMEVISOR_UNKNOWN_TAI_OFFSET INT32_MIN

// Room for a PTP pin's name, and the zero byte at the end.
#define TIMEVISOR_PIN_NAME_SIZE 64

// Room for a name of a group, member, topic, barrier or office: at most 32 bytes, and the zero byte
// at the end.
#define TIMEVISOR_NAME_SIZE 40

// How far to trust a reading.
typedef enum timevisor_status {
    // Nothing is known.
    TIMEVISOR_STATUS_UNKNOWN = 0,
    // The first synchronization is under way; bounds, if any, hold.
    TIMEVISOR_STATUS_INITIALIZING = 1,
    // Follows its references; bounds hold.
    TIMEVISOR_STATUS_SYNCHRONIZED = 2,
    // Lost its references or its daemon: bounds hold and grow.
    TIMEVISOR_STATUS_FREE_RUNNING = 3,
    // Assumptions were contradicted: bounds are being rebuilt and must not be relied on.
    TIMEVISOR_STATUS_UNRELIABLE = 4,
} timevisor_status;

// What instants are counted on.
typedef enum timevisor_timescale {
    // ns since 1970-01-01 00:00:00 UTC without leap seconds, as POSIX counts; steps at leap
    // seconds.
    TIMEVISOR_TIMESCALE_UTC = 0,
    // ns since 1970-01-01 00:00:00 TAI.
    TIMEVISOR_TIMESCALE_TAI = 1,
    // ns since the timeline was made; belongs to nobody else's clock.
    TIMEVISOR_TIMESCALE_LOCAL = 2,
} timevisor_timescale;

// The order of two moments.
typedef enum timevisor_comparison {
    // Not known: the intervals overlap, or bounds must not be relied on.
    TIMEVISOR_COMPARISON_UNCERTAIN = 0,
    // The first is surely before the second.
    TIMEVISOR_COMPARISON_BEFORE = 1,
    // The first is surely after the second.
    TIMEVISOR_COMPARISON_AFTER = 2,
} timevisor_comparison;

// What to wait for.
typedef enum timevisor_when {
    // The estimate has reached `ns`.
    TIMEVISOR_WHEN_UNTIL = 0,
    // `ns` has surely passed: earliest > ns (Spanner's commit-wait).
    TIMEVISOR_WHEN_PAST = 1,
    // `ns` on the timeline, counted from the estimate at the beginning.
    TIMEVISOR_WHEN_FOR = 2,
    // The time is known and meets the handle's requirement; `ns` is not used. Disruptions do not
    // end this wait.
    TIMEVISOR_WHEN_MET = 3,
    // `lead_ns` (of timevisor_wait_options) before the last moment that is surely before `ns`:
    // latest + lead_ns >= ns > latest.
    TIMEVISOR_WHEN_SURELY_BEFORE = 4,
} timevisor_when;

// What becomes of ticks whose time came before the program was back to wait for them.
typedef enum timevisor_missed_ticks {
    // They are dropped: the next tick is the first one that is not yet due.
    TIMEVISOR_MISSED_TICKS_SKIP = 0,
    // They come at once, one after the other, in order.
    TIMEVISOR_MISSED_TICKS_CATCH_UP = 1,
    // Only the newest comes, at once.
    TIMEVISOR_MISSED_TICKS_COALESCE = 2,
} timevisor_missed_ticks;

// Whether an age counts the time in which nothing ran: the blackout of a migration, a stopped VM,
// the time between a checkpoint and its restore.
typedef enum timevisor_blackouts {
    // It does: the age is what a clock on the wall says.
    TIMEVISOR_BLACKOUTS_COUNT = 0,
    // It does not, as far as CLOCK_MONOTONIC_RAW stood still: in a guest over a migration, in a
    // container that CRIU has restored.
    TIMEVISOR_BLACKOUTS_EXCLUDE = 1,
} timevisor_blackouts;

// What became of an action that was to be done at a time. Only 0 says: do it.
typedef enum timevisor_outcome {
    // Do it now.
    TIMEVISOR_OUTCOME_FIRED = 0,
    // Do not: it is later than the latest that was allowed.
    TIMEVISOR_OUTCOME_TOO_LATE = 1,
    // Do not: the clock is not as good as it must be.
    TIMEVISOR_OUTCOME_QOT_VIOLATED = 2,
    // Do not: the clock may have stepped since this began.
    TIMEVISOR_OUTCOME_DISRUPTED = 3,
} timevisor_outcome;

// What happened to a timeline.
typedef enum timevisor_change {
    // The handle's requirement is met now (said at the beginning, too). Only with a requirement.
    TIMEVISOR_CHANGE_MET = 0,
    // The handle's requirement is not met now (said at the beginning, too). Only with a
    // requirement.
    TIMEVISOR_CHANGE_VIOLATED = 1,
    // The clock lost its references or its daemon: bounds hold and grow.
    TIMEVISOR_CHANGE_HOLDOVER = 2,
    // The clock follows its references again.
    TIMEVISOR_CHANGE_SYNCHRONIZED = 3,
    // The clock may have stepped.
    TIMEVISOR_CHANGE_DISRUPTED = 4,
} timevisor_change;

// For how long a bound holds if nothing new is learned.
typedef enum timevisor_validity_kind {
    // It does not hold now.
    TIMEVISOR_VALIDITY_KIND_EXCEEDED = 0,
    // Up to the estimate and the counter value beside it.
    TIMEVISOR_VALIDITY_KIND_UNTIL = 1,
    // For longer than the counter runs.
    TIMEVISOR_VALIDITY_KIND_UNLIMITED = 2,
} timevisor_validity_kind;

// What the host announces of a coming disruption.
typedef enum timevisor_notice {
    // Nothing.
    TIMEVISOR_NOTICE_NONE = 0,
    // This VM will be moved, saved or stopped: take no further work on.
    TIMEVISOR_NOTICE_SOON = 1,
    // That begins now.
    TIMEVISOR_NOTICE_IMMINENT = 2,
} timevisor_notice;

// The order in which messages are given.
typedef enum timevisor_order {
    // As they come.
    TIMEVISOR_ORDER_ARRIVAL = 0,
    // In the order of time: a message is given when every member's clock has surely passed it, or
    // when it has been held for hold_ns.
    TIMEVISOR_ORDER_TIME = 1,
} timevisor_order;

// Which proposals of others a member accepts.
typedef enum timevisor_accept {
    // None; so it is until something else is said.
    TIMEVISOR_ACCEPT_NOTHING = 0,
    // All.
    TIMEVISOR_ACCEPT_ALL = 1,
    // The program decides: timevisor_proposals_next gives them, timevisor_group_answer answers.
    TIMEVISOR_ACCEPT_ASK = 2,
} timevisor_accept;

// What a timevisor_report says.
typedef enum timevisor_report_kind {
    // A member joined, or its clock began or ceased to meet its requirement: member, met.
    TIMEVISOR_REPORT_KIND_PRESENT = 0,
    // A member has gone: member, why (a timevisor_gone).
    TIMEVISOR_REPORT_KIND_GONE = 1,
    // Messages were lost on the way: member (whose; "": this program took them too slowly from the
    // bus), subject (the topic; "": not known, or of those by which members agree), count.
    TIMEVISOR_REPORT_KIND_LOST = 2,
    // A member's stamp surely lies in our future: its clock or ours is wrong: member, ns (by how
    // much at least).
    TIMEVISOR_REPORT_KIND_FROM_THE_FUTURE = 3,
    // A member's stamp is of another origin of the timeline: member.
    TIMEVISOR_REPORT_KIND_ANOTHER_ORIGIN = 4,
    // Not everybody who waited at a barrier was released together: subject (the barrier), count (how
    // many were released), others (how many wait on).
    TIMEVISOR_REPORT_KIND_SPLIT = 5,
    // The connection to the bus is lost. The library connects again.
    TIMEVISOR_REPORT_KIND_DISCONNECTED = 6,
    // It is there again.
    TIMEVISOR_REPORT_KIND_CONNECTED = 7,
    // The bus refuses to let this member join again, for now: text.
    TIMEVISOR_REPORT_KIND_REFUSED = 8,
    // This member leads: subject (the office), ns (it leads while its latest is before this).
    TIMEVISOR_REPORT_KIND_LEADS = 9,
    // It leads no longer: subject (the office).
    TIMEVISOR_REPORT_KIND_LEADS_NO_MORE = 10,
    // Old messages were asked for that the bus had not kept: subject (the topic), count (at least).
    TIMEVISOR_REPORT_KIND_HISTORY_INCOMPLETE = 11,
} timevisor_report_kind;

// Why a member has gone.
typedef enum timevisor_gone {
    // It left.
    TIMEVISOR_GONE_LEFT = 1,
    // Its connection ended.
    TIMEVISOR_GONE_DISCONNECTED = 2,
    // It was silent for longer than its lease.
    TIMEVISOR_GONE_SILENT = 3,
    // Its bus is not heard any more.
    TIMEVISOR_GONE_UNHEARD = 4,
    // Another host has a member of this name, too, and keeps it.
    TIMEVISOR_GONE_TWICE = 5,
} timevisor_gone;

// What a timevisor_proposed says.
typedef enum timevisor_proposed_kind {
    // Somebody asks for an answer: at_ns, late_ns (who wakes up surely later than this does not
    // fire), payload.
    TIMEVISOR_PROPOSED_KIND_ASKED = 0,
    // It is decided: commits.
    TIMEVISOR_PROPOSED_KIND_DECIDED = 1,
    // It is time: earliest_ns, latest_ns, late_ns (how late it surely is), payload.
    TIMEVISOR_PROPOSED_KIND_FIRE = 2,
    // Who fired and who did not: agreed, parts; timevisor_proposals_part has each.
    TIMEVISOR_PROPOSED_KIND_OUTCOME = 3,
} timevisor_proposed_kind;

// What a member did.
typedef enum timevisor_part_kind {
    // It was not heard.
    TIMEVISOR_PART_KIND_UNKNOWN = 0,
    // It fired.
    TIMEVISOR_PART_KIND_FIRED = 1,
    // It voted against it, so nobody has fired.
    TIMEVISOR_PART_KIND_REJECTED = 2,
    // It knows that the proposer gave up, so nobody has fired.
    TIMEVISOR_PART_KIND_ABORTED = 3,
    // It voted for it and did not learn the decision in time, and did not fire. Others may have.
    TIMEVISOR_PART_KIND_UNDECIDED = 4,
    // It woke up too late, and did not fire.
    TIMEVISOR_PART_KIND_LATE = 5,
    // Its clock did not meet its requirement, or had another origin. It did not fire.
    TIMEVISOR_PART_KIND_CLOCK = 6,
} timevisor_part_kind;

// Whether all did the same.
typedef enum timevisor_agreement {
    // Nobody fired.
    TIMEVISOR_AGREEMENT_NONE = 0,
    // All fired.
    TIMEVISOR_AGREEMENT_ALL = 1,
    // They differ, or it is not known.
    TIMEVISOR_AGREEMENT_OPEN = 2,
} timevisor_agreement;

// Edges of a line: rising is from inactive to active.
typedef enum timevisor_edge {
    // Of an event at a PTP clock: it does not say.
    TIMEVISOR_EDGE_UNKNOWN = 0,
    // It became active.
    TIMEVISOR_EDGE_RISING = 1,
    // It became inactive.
    TIMEVISOR_EDGE_FALLING = 2,
    // Either: to ask for.
    TIMEVISOR_EDGE_BOTH = 3,
} timevisor_edge;

// What a PTP pin is used for. Not tested on hardware.
typedef enum timevisor_pin_function {
    // Something that this library does not know.
    TIMEVISOR_PIN_FUNCTION_UNKNOWN = -1,
    // Nothing.
    TIMEVISOR_PIN_FUNCTION_NONE = 0,
    // Its edges are stamped.
    TIMEVISOR_PIN_FUNCTION_TIMESTAMP = 1,
    // A signal is made at it.
    TIMEVISOR_PIN_FUNCTION_OUTPUT = 2,
    // Synchronizes the physical layer.
    TIMEVISOR_PIN_FUNCTION_PHY_SYNC = 3,
} timevisor_pin_function;

// An action's time for an event loop. One thread at a time.
typedef struct timevisor_at_handle timevisor_at_handle;

// Ends waits from another thread; once cancelled it stays so, for later waits too. For any number
// of threads at once.
typedef struct timevisor_cancel_token timevisor_cancel_token;

// Reads timelines, and states requirements of them. For any number of threads at once.
//
// After a fork the child must not use or free the parent's handles, but connect again: there,
// calls that need the channel fail with -ENOTCONN, and freeing does nothing.
typedef struct timevisor_client timevisor_client;

// An age that has begun. For any number of threads at once.
typedef struct timevisor_elapsed timevisor_elapsed;

// A member of a group. For any number of threads at once. A thread of the library holds the
// connection to the bus, answers other members and wakes up when something is due.
//
// After a fork the child must not use the parent's membership, but join again: there, calls fail with
// -ENOTCONN, and leaving does nothing.
typedef struct timevisor_group timevisor_group;

// What happens to a group. One thread at a time. Of more than 65536 reports that nobody takes the
// oldest are dropped.
typedef struct timevisor_group_watch timevisor_group_watch;

// A bus in this process, for tests of programs that use groups: no timevisor-bus runs. Give it as
// timevisor_join_options.manual_bus. It has no keys; leases and faults count this machine's real
// time. For any number of threads at once.
typedef struct timevisor_manual_bus timevisor_manual_bus;

// A clock for tests, which stands still until it is moved. Waits on it wake as soon as it is
// moved, and nothing sleeps. For any number of threads at once.
typedef struct timevisor_manual_clock timevisor_manual_clock;

// The members of a group as they were when it was asked. For any number of threads at once.
typedef struct timevisor_member_list timevisor_member_list;

// A GPIO line as an output. For any number of threads at once.
typedef struct timevisor_output timevisor_output;

// An output's time for an event loop. One thread at a time.
typedef struct timevisor_output_at_handle timevisor_output_at_handle;

// Watches CLOCK_REALTIME, so that stamps of packets can be placed on the counter. For any number
// of threads at once.
typedef struct timevisor_packet_stamps timevisor_packet_stamps;

// A proposal that was made. For any number of threads at once.
typedef struct timevisor_pending timevisor_pending;

// Ticks for ever. One thread at a time.
typedef struct timevisor_periodic timevisor_periodic;

// Edges for ever. One thread at a time.
typedef struct timevisor_pin_events timevisor_pin_events;

// What happens to proposals. One thread at a time. Of more than 65536 entries that nobody takes the
// oldest are dropped.
typedef struct timevisor_proposals timevisor_proposals;

// The pins of a PTP clock. For any number of threads at once. Not tested on hardware.
typedef struct timevisor_ptp_pins timevisor_ptp_pins;

// Appends to a recording. For any number of threads at once.
typedef struct timevisor_recorder timevisor_recorder;

// What was recorded, in memory. For any number of threads at once.
typedef struct timevisor_recording timevisor_recording;

// A topic's messages, oldest first. One thread at a time. Of more than 65536 that nobody takes the
// oldest are dropped.
typedef struct timevisor_subscription timevisor_subscription;

// A timeline: read only, or bound. For any number of threads at once.
typedef struct timevisor_timeline timevisor_timeline;

// The timelines that a client may bind to, as they were when it asked. For any number of threads
// at once.
typedef struct timevisor_timeline_list timevisor_timeline_list;

// A wait for an event loop. One thread at a time.
typedef struct timevisor_wait_handle timevisor_wait_handle;

// Events for ever. One thread at a time.
typedef struct timevisor_watch timevisor_watch;

// Where to look; TIMEVISOR_OPTIONS_INIT finds what there is, on hosts, in containers and in
// guests.
typedef struct timevisor_options {
    // sizeof(timevisor_options)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // Read this page and no other: a page file, a vmclock device below /dev, a PCI resource below
    // /sys. Or NULL.
    const char *page;
    // Send requirements there and nowhere else: a path, or "vsock:CID:PORT". Or NULL.
    const char *channel;
    // What the operator sees in `timevisor timelines`. NULL: the program's name.
    const char *name;
    // How long timevisord may take to answer; 0: 3 s.
    int64_t timeout_ns;
} timevisor_options;

// How far true time may be from the estimate, and how surely.
typedef struct timevisor_requirement {
    // sizeof(timevisor_requirement)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // True time is at most this much before the estimate; 1 or more.
    int64_t below_ns;
    // True time is at most this much after the estimate; 1 or more.
    int64_t above_ns;
    // The clock must tell instants apart that are this far from each other; 0: any resolution will
    // do.
    int64_t resolution_ns;
    // 0: by the hard bounds. Otherwise 0.5 <= probability < 1: by the estimated error, taken for
    // one sigma of a normal distribution.
    double probability;
} timevisor_requirement;

// What a timeline gives. TIMEVISOR_UNKNOWN_NS: that is not known.
typedef struct timevisor_achieved {
    // sizeof(timevisor_achieved)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // Estimate minus earliest.
    int64_t below_ns;
    // Latest minus estimate.
    int64_t above_ns;
    // One sigma of the estimate.
    int64_t estimated_error_ns;
    // One tick of the counter.
    int64_t resolution_ns;
} timevisor_achieved;

// One timeline that a client may bind to.
typedef struct timevisor_timeline_row {
    // sizeof(timevisor_timeline_row)
    uint32_t struct_size;
    // A timevisor_timescale.
    int32_t timescale;
    // Its name; belongs to the list.
    const char *name;
    // Bindings to it, of all tenants.
    uint32_t members;
    // 1 when a client made it, and it is gone with its last binding; otherwise 0.
    int32_t temporary;
    // NULL, or where to put the tightest requirement; all 0 when there is none.
    struct timevisor_requirement *required;
    // NULL, or where to put what it gives now.
    struct timevisor_achieved *achieved;
} timevisor_timeline_row;

// What a timeline says of one moment: true time was between earliest and latest when the counter
// was at `counter`.
typedef struct timevisor_reading {
    // sizeof(timevisor_reading)
    uint32_t struct_size;
    // A timevisor_status.
    int32_t status;
    // True time is not before this, rounded down. -(2^63 - 1) when nothing is known.
    int64_t earliest_ns;
    // The best guess, rounded down. 0 when nothing is known.
    int64_t estimate_ns;
    // True time is not after this, rounded up. 2^63 - 1 when nothing is known.
    int64_t latest_ns;
    // The counter value that it is valid for, in ticks.
    uint64_t counter;
    // Changes when the clock may have stepped: readings with different numbers are not of one
    // continuous clock.
    uint64_t disruption;
    // Which clock it is of. Readings of local timelines have an order only where this is the same.
    uint64_t origin;
    // Estimate minus earliest, rounded up, or TIMEVISOR_UNKNOWN_NS.
    int64_t below_ns;
    // Latest minus estimate, rounded up, or TIMEVISOR_UNKNOWN_NS.
    int64_t above_ns;
    // One sigma of the estimate, rounded up, not a bound; or TIMEVISOR_UNKNOWN_NS.
    int64_t estimated_error_ns;
    // A timevisor_timescale: what the instants are counted on.
    int32_t timescale;
    // TAI - UTC in seconds, or TIMEVISOR_UNKNOWN_TAI_OFFSET.
    int32_t tai_offset_s;
    // 0 while nothing is known, otherwise 1.
    int32_t known;
    // 1 when this meets the handle's requirement or there is none, otherwise 0.
    int32_t met;
} timevisor_reading;

// How much true time went by between two stamps, ns: all three are below zero when the first stamp
// is the later one.
typedef struct timevisor_measured_span {
    // sizeof(timevisor_measured_span)
    uint32_t struct_size;
    // A timevisor_status: the least that the clock promised between the two.
    int32_t status;
    // No less time than this went by, rounded down.
    int64_t shortest_ns;
    // The best guess, to the nearest ns: by the clock's mean rate around the stamps.
    int64_t estimate_ns;
    // No more time than this went by, rounded up.
    int64_t longest_ns;
} timevisor_measured_span;

// Until when a bound holds if nothing new is learned.
typedef struct timevisor_validity {
    // sizeof(timevisor_validity)
    uint32_t struct_size;
    // A timevisor_validity_kind.
    int32_t kind;
    // The estimate at that moment; 0 unless kind is TIMEVISOR_VALIDITY_KIND_UNTIL.
    int64_t estimate_ns;
    // The counter at that moment, in ticks; likewise.
    uint64_t counter;
} timevisor_validity;

// How to bind.
typedef struct timevisor_bind_options {
    // sizeof(timevisor_bind_options)
    uint32_t struct_size;
    // Not 0: bind even if the requirement cannot be met; readings then say so.
    int32_t best_effort;
    // Not 0: make the timeline, on `timescale`, where there is none of this name.
    int32_t create;
    // A timevisor_timescale; used with `create`.
    int32_t timescale;
    // NULL, or where to put what the timeline gives; after -ERANGE what it could give.
    struct timevisor_achieved *achieved;
} timevisor_bind_options;

// The processor time that a vCPU has had since it began.
typedef struct timevisor_host_cpu_time {
    // sizeof(timevisor_host_cpu_time)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // Not less.
    uint64_t least_ns;
    // Not more; UINT64_MAX where that is not known.
    uint64_t most_ns;
    // Compare two readings only if this is the same in both.
    uint64_t disruption;
} timevisor_host_cpu_time;

// A wait that ended because its time had come.
typedef struct timevisor_waited {
    // sizeof(timevisor_waited)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // How far beyond the time that was waited for the reading is, never below 0: its estimate
    // (with TIMEVISOR_WHEN_PAST: its earliest; with TIMEVISOR_WHEN_SURELY_BEFORE: its latest +
    // lead_ns) less that time. 0 with TIMEVISOR_WHEN_MET.
    int64_t lateness_ns;
    // NULL, or where to put the reading that ended the wait.
    struct timevisor_reading *reading;
} timevisor_waited;

// How to wait.
typedef struct timevisor_wait_options {
    // sizeof(timevisor_wait_options)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // Read the clock in a loop instead of sleeping this close to the end: costs a processor, saves
    // the wake-up of about 50 us.
    int64_t spin_ns;
    // Give up after this long, on this machine's own clock; 0: never.
    int64_t timeout_ns;
    // NULL, or what lets another thread end the wait.
    const struct timevisor_cancel_token *cancel;
    // With TIMEVISOR_WHEN_SURELY_BEFORE, where it must be 1 or more: what the program needs to
    // wake up (50 to 100 us) and for its work. Not used otherwise.
    int64_t lead_ns;
} timevisor_wait_options;

// What is known when an action's time has come, or has not.
typedef struct timevisor_at_result {
    // sizeof(timevisor_at_result)
    uint32_t struct_size;
    // A timevisor_outcome, the same as what the function returns.
    int32_t outcome;
    // TIMEVISOR_OUTCOME_FIRED: the estimate, never before the time itself. Otherwise 0.
    int64_t actual_ns;
    // TIMEVISOR_OUTCOME_FIRED, TIMEVISOR_OUTCOME_QOT_VIOLATED: true time is within this of the
    // estimate, or TIMEVISOR_UNKNOWN_NS. Otherwise 0.
    int64_t error_ns;
    // TIMEVISOR_OUTCOME_TOO_LATE: by how much. Otherwise 0.
    int64_t too_late_by_ns;
    // NULL, or where to put the reading that decided.
    struct timevisor_reading *reading;
} timevisor_at_result;

// One tick.
typedef struct timevisor_tick {
    // sizeof(timevisor_tick)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // When it was due.
    int64_t scheduled_ns;
    // The reading's estimate less scheduled_ns, never below 0.
    int64_t lateness_ns;
    // Ticks between the last one and this one that do not come.
    uint64_t missed;
    // NULL, or where to put the reading that found it due.
    struct timevisor_reading *reading;
} timevisor_tick;

// A change and what is known at that moment.
typedef struct timevisor_event {
    // sizeof(timevisor_event)
    uint32_t struct_size;
    // A timevisor_change.
    int32_t change;
    // NULL, or where to put until when the requirement stays met if nothing new is learned.
    struct timevisor_validity *valid_until;
    // NULL, or where to put the reading that noticed it.
    struct timevisor_reading *reading;
} timevisor_event;

// An edge at a pin.
typedef struct timevisor_pin_event {
    // sizeof(timevisor_pin_event)
    uint32_t struct_size;
    // A timevisor_edge.
    int32_t edge;
    // So many edges between the last event and this one were not delivered, at least: the kernel's
    // buffer (1024 events) was full, or it took two edges for one. Always 0 at a PTP clock.
    uint32_t lost;
    // 1: an edge came, whose time may be unknown; 0: none came.
    uint32_t came;
    // The counter, no later than the stamp; 0 when the event's time is not known.
    uint64_t first;
    // The counter, no earlier than the stamp; 0 when the event's time is not known.
    uint64_t last;
    // NULL, or where to put when it was stamped. The longer the event waited to be read, the wider
    // this is: +-0.25 ms for each millisecond at a GPIO line.
    struct timevisor_reading *reading;
} timevisor_pin_event;

// What became of an output that was to change at a time.
typedef struct timevisor_changed {
    // sizeof(timevisor_changed)
    uint32_t struct_size;
    // A timevisor_outcome, the same as what the function returns.
    int32_t outcome;
    // The estimate when the line had surely changed, less its time: 0 or more.
    int64_t lateness_ns;
    // TIMEVISOR_OUTCOME_TOO_LATE: by how much. Otherwise 0.
    int64_t too_late_by_ns;
    // The counter, before it changed; 0 when it did not.
    uint64_t first;
    // The counter, after it had changed; 0 when it did not.
    uint64_t last;
    // NULL, or where to put when it changed; when it did not, the reading because of which.
    struct timevisor_reading *reading;
} timevisor_changed;

// A pin of a PTP clock. Not tested on hardware.
typedef struct timevisor_ptp_pin {
    // sizeof(timevisor_ptp_pin)
    uint32_t struct_size;
    // A timevisor_pin_function.
    int32_t function;
    // The channel of that function.
    uint32_t channel;
    // 0
    uint32_t reserved;
    // The driver's name for it.
    char name[TIMEVISOR_PIN_NAME_SIZE];
} timevisor_ptp_pin;

// A pulse that a PTP clock will make. Not tested on hardware.
typedef struct timevisor_pulse {
    // sizeof(timevisor_pulse)
    uint32_t struct_size;
    // A timevisor_outcome, the same as what the function returns.
    int32_t outcome;
    // When it begins, by the PTP clock, ns of its own timescale.
    int64_t device_ns;
    // TIMEVISOR_OUTCOME_TOO_LATE: by how much. Otherwise 0.
    int64_t too_late_by_ns;
    // The counter, no later than that.
    uint64_t first;
    // The counter, no earlier than that.
    uint64_t last;
    // NULL, or where to put when it begins on the timeline; where it was refused, the reading
    // because of which.
    struct timevisor_reading *reading;
} timevisor_pulse;

// How a member joins. TIMEVISOR_JOIN_OPTIONS_INIT: on timeline "tai", without a requirement or key.
typedef struct timevisor_join_options {
    // sizeof(timevisor_join_options)
    uint32_t struct_size;
    // 0
    uint32_t reserved;
    // The group's timeline. NULL: "tai"; with timevisor_group_join_on it must be NULL.
    const char *timeline;
    // What this member needs of it; NULL: nothing. timevisor_group_join has the host meet it.
    const struct timevisor_requirement *requirement;
    // Where the bus listens: a socket, or "tls://HOST:PORT". NULL: $TIMEVISOR_BUS, then
    // timevisor-bus.socket in $XDG_RUNTIME_DIR, then /run/timevisor-bus/socket.
    const char *bus;
    // A PEM file with who signed the certificate of a bus on the network, or that certificate; NULL: the
    // bus is a socket.
    const char *authority;
    // The text of the group's key file; NULL: the group has no key.
    const char *key;
    // After so long without a sign of this program the others count it as gone; 0: 3 s.
    int64_t lease_ns;
    // A bus for tests, instead of `bus`; NULL: none.
    const struct timevisor_manual_bus *manual_bus;
} timevisor_join_options;

// What everybody in a group knows about a member.
typedef struct timevisor_member {
    // sizeof(timevisor_member)
    uint32_t struct_size;
    // 1 if its page gave what it needs when it last said so, otherwise 0.
    int32_t met;
    // Its name.
    char name[TIMEVISOR_NAME_SIZE];
    // Drawn at random when it joined.
    uint64_t incarnation;
    // What it needs, before the estimate; TIMEVISOR_UNKNOWN_NS: nothing.
    int64_t needs_below_ns;
    // After the estimate.
    int64_t needs_above_ns;
    // What its page gave, before the estimate; TIMEVISOR_UNKNOWN_NS: nothing yet.
    int64_t below_ns;
    // After the estimate.
    int64_t above_ns;
} timevisor_member;

// A message of a topic.
typedef struct timevisor_message {
    // sizeof(timevisor_message)
    uint32_t struct_size;
    // 1 if it was published before this member subscribed, otherwise 0.
    int32_t is_old;
    // Who sent it.
    char sender[TIMEVISOR_NAME_SIZE];
    // Which incarnation of the sender.
    uint64_t incarnation;
    // Counts the sender's messages on this topic.
    uint64_t sequence;
    // 1 if the sender knew the time, otherwise 0.
    int32_t stamped;
    // How many members may still send something older: timevisor_subscription_unheard has their names.
    // 0 in the order of arrival.
    uint32_t unheard;
    // When it was sent, as the sender's page said: not before this.
    int64_t earliest_ns;
    // Not after this.
    int64_t latest_ns;
    // Which clock that was: stamps of different origins have no order.
    uint64_t origin;
    // How much later one that was given before it surely was sent; 0 in the order of arrival.
    int64_t late_ns;
    // What it says; valid until the next call for the same subscription. Never NULL.
    const void *payload;
    // How many bytes that has.
    uint64_t length;
} timevisor_message;

// What happened in a group. The kind says which fields are used; the others are 0 or "".
typedef struct timevisor_report {
    // sizeof(timevisor_report)
    uint32_t struct_size;
    // A timevisor_report_kind.
    int32_t kind;
    // A member's name.
    char member[TIMEVISOR_NAME_SIZE];
    // Which incarnation of that member.
    uint64_t incarnation;
    // The name of a topic, barrier or office.
    char subject[TIMEVISOR_NAME_SIZE];
    // How many.
    uint64_t count;
    // How many others.
    uint64_t others;
    // An instant or a span.
    int64_t ns;
    // A timevisor_gone.
    int32_t why;
    // 1 if the member's clock meets its requirement.
    int32_t met;
    // What the bus says; valid until the next call for the same watch. Never NULL.
    const char *text;
} timevisor_report;

// How to propose. TIMEVISOR_PROPOSE_OPTIONS_INIT: to all members, who may be 10 ms late.
typedef struct timevisor_propose_options {
    // sizeof(timevisor_propose_options)
    uint32_t struct_size;
    // How many names there are; 0: all members.
    uint32_t count;
    // The names of the members that are to fire, this one included.
    const char *const *names;
    // Who wakes up surely later than this does not fire; 0: 10 ms.
    int64_t late_at_most_ns;
} timevisor_propose_options;

// Who fired and who did not, as far as this member knows. What it lists is certain.
typedef struct timevisor_group_outcome {
    // sizeof(timevisor_group_outcome)
    uint32_t struct_size;
    // A timevisor_agreement.
    int32_t agreed;
    // How many fired.
    uint32_t fired;
    // How many did not, and never will.
    uint32_t quiet;
    // How many were not heard.
    uint32_t unknown;
    // 0
    uint32_t reserved;
} timevisor_group_outcome;

// What one member did.
typedef struct timevisor_part {
    // sizeof(timevisor_part)
    uint32_t struct_size;
    // A timevisor_part_kind.
    int32_t kind;
    // Its name.
    char name[TIMEVISOR_NAME_SIZE];
    // Which incarnation.
    uint64_t incarnation;
    // What its page said when it fired: not before this. Otherwise 0.
    int64_t earliest_ns;
    // Not after this. Otherwise 0.
    int64_t latest_ns;
} timevisor_part;

// What happens to a proposal. The kind says which fields are used; the others are 0.
typedef struct timevisor_proposed {
    // sizeof(timevisor_proposed)
    uint32_t struct_size;
    // A timevisor_proposed_kind.
    int32_t kind;
    // Who proposes.
    char proposer[TIMEVISOR_NAME_SIZE];
    // Which incarnation of the proposer.
    uint64_t incarnation;
    // Which of its proposals.
    uint64_t number;
    // When everybody fires.
    int64_t at_ns;
    // What the page says: not before this.
    int64_t earliest_ns;
    // Not after this.
    int64_t latest_ns;
    // See the kind.
    int64_t late_ns;
    // 1: everybody fires; 0: nobody.
    int32_t commits;
    // A timevisor_agreement.
    int32_t agreed;
    // How many members the outcome has.
    uint64_t parts;
    // The proposal's payload; valid until the next call for the same handle. Never NULL.
    const void *payload;
    // How many bytes that has.
    uint64_t length;
} timevisor_proposed;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Finds the page: /run/timevisor/clock, /dev/vmclock0, an ivshmem device with a page; the first
// one that Timevisor fills. The channel to timevisord is opened at the first binding, and served
// by one thread until the last handle is freed.
//
// options: where to look, or NULL. A page that is named there may be truncated by its owner:
// timevisor_survive_truncation is called for it.
// Returns 0; -ENOENT: there is no page (timevisor_last_error says what was tried); -EINVAL. Any
// thread.
int timevisor_connect(const struct timevisor_options *options, struct timevisor_client **client);

// Frees a client; timelines and lists of it go on working. NULL is allowed. Not while another
// thread uses the client.
void timevisor_client_free(struct timevisor_client *client);

// Which page is read. Valid as long as the client; NULL if the client is. Any thread.
const char *timevisor_client_page(const struct timevisor_client *client);

// Which page and (after the first binding) which channel are used, and why others are not, in
// lines of text.
//
// Returns the length without the zero byte at the end; the buffer gets as much as there is room
// for, as with snprintf. -EINVAL. Any thread.
int timevisor_client_describe(const struct timevisor_client *client, char *buffer, size_t size);

// Asks timevisord which timelines this client may bind to.
//
// Returns 0, or as timevisor_bind. Any thread; waits for the answer.
int timevisor_timelines(const struct timevisor_client *client, struct timevisor_timeline_list **list);

// How many there are; 0 if the list is NULL. Any thread.
size_t timevisor_timeline_list_count(const struct timevisor_timeline_list *list);

// One of them.
//
// Returns 0; -ENOENT: there are not so many; -EINVAL. Any thread.
int timevisor_timeline_list_get(const struct timevisor_timeline_list *list, size_t index, struct timevisor_timeline_row *row);

// Frees a list. NULL is allowed.
void timevisor_timeline_list_free(struct timevisor_timeline_list *list);

// Opens a timeline of the page for reading only: sends no message and requires nothing.
//
// Returns 0; -ENOENT: the page has none of this name, it may have to be bound to first; -ENXIO: it
// cannot be read here; -EINVAL. Any thread.
int timevisor_timeline_open(const struct timevisor_client *client, const char *name, struct timevisor_timeline **timeline);

// The same timeline, judged by another requirement: `met` in readings, and the events of a watch.
// Nobody is told; to have the host meet it, bind. The two handles are freed independently.
//
// Returns 0; -EINVAL. Any thread.
int timevisor_with_requirement(const struct timevisor_timeline *timeline,
                               const struct timevisor_requirement *requirement,
                               struct timevisor_timeline **judged);

// Frees a timeline. A requirement is withdrawn without waiting for the answer. What was started on
// it goes on. NULL is allowed. Not while another thread uses the handle.
void timevisor_timeline_free(struct timevisor_timeline *timeline);

// Its name. Valid as long as the handle; NULL if the handle is. Any thread.
const char *timevisor_timeline_name(const struct timevisor_timeline *timeline);

// Now: the counter is read after everything that came before this call. No system call (but
// where an update takes longer than 20 us: it sleeps then), no allocation, no lock.
//
// Returns 0; -EIO: the page's writer died inside an update; -EIDRM: the timeline has ended;
// -EINVAL. Also 0 while nothing is known: see `known` and `status`. Any thread.
int timevisor_now(const struct timevisor_timeline *timeline, struct timevisor_reading *reading);

// A status in a word: "synchronized". "?" if there is no such status. Never NULL. Any thread.
const char *timevisor_status_name(int status);

// The counter, to be converted later: the cheapest stamp there is, in ticks. 0 if the handle is
// NULL. Any thread.
uint64_t timevisor_stamp(const struct timevisor_timeline *timeline);

// The time at which the counter was at `stamp`, from everything that was noted of the clock before
// and since: see timevisor_observe. A stamp of the future is a prediction, which holds unless the
// clock is disrupted before.
//
// Returns 0; -ESTALE: a stamp from before the last disruption, from before the handle was opened,
// from so long ago that it was forgotten (1024 publications), or from where nobody looked for more
// than a minute; -ENODATA: the time is not known; -EBADMSG: bounds contradict each other; -EIO,
// -EIDRM, -EINVAL. Any thread; a short lock.
int timevisor_convert(const struct timevisor_timeline *timeline, uint64_t stamp, struct timevisor_reading *reading);

// The time of something that happened while the counter went from `first` to `last`, such as a
// packet: true time lies between the earliest of the first and the latest of the last.
//
// Returns as timevisor_convert; -EINVAL also when the first one is the later one. Any thread; a
// short lock.
int timevisor_convert_between(const struct timevisor_timeline *timeline,
                              uint64_t first,
                              uint64_t last,
                              struct timevisor_reading *reading);

// How much true time went by between two stamps. It is never wider than the difference of two
// conversions, and for short spans much narrower: only the error of the counter's rate is left (15
// ppm: 150 ns over 10 ms). Below zero when `from` is the later one.
//
// Returns as timevisor_convert; -ESTALE also when the clock was disrupted between the stamps. Any
// thread; a short lock.
int timevisor_span(const struct timevisor_timeline *timeline, uint64_t from, uint64_t to, struct timevisor_measured_span *span);

// Records the present publication for later conversions. Waits, watches and conversions do so,
// too; a program that only takes stamps should call this every few seconds.
//
// Returns 0; -EIO, -EIDRM, -EINVAL. Any thread; a short lock.
int timevisor_observe(const struct timevisor_timeline *timeline);

// Is it surely before t_ns now (TIMEVISOR_COMPARISON_BEFORE: latest < t), surely after it
// (TIMEVISOR_COMPARISON_AFTER: earliest > t), or is that not known
// (TIMEVISOR_COMPARISON_UNCERTAIN)?
//
// Returns a timevisor_comparison; -EIO, -EIDRM, -EINVAL. Any thread.
int timevisor_compare_to(const struct timevisor_timeline *timeline, int64_t t_ns);

// Was the moment of a reading surely before t_ns, surely after it, or is that not known?
//
// Returns a timevisor_comparison; -EINVAL. Any thread.
int timevisor_reading_compare_to(const struct timevisor_reading *reading, int64_t t_ns);

// Was the moment of `reading` surely before that of `other`, surely after it, or is that not
// known? Readings on different timescales have no order, nor have readings of different local
// timelines or from the two sides of a disruption of one, nor has anything whose status is unknown
// or unreliable. UTC repeats itself at a leap second: order across one needs TAI.
//
// Returns a timevisor_comparison; -EINVAL. Any thread.
int timevisor_reading_compare(const struct timevisor_reading *reading, const struct timevisor_reading *other);

// Has t_ns surely not come yet?
//
// Returns 1 or 0; -EIO, -EIDRM, -EINVAL. Any thread.
int timevisor_is_surely_before(const struct timevisor_timeline *timeline, int64_t t_ns);

// Has t_ns surely passed?
//
// Returns 1 or 0; -EIO, -EIDRM, -EINVAL. Any thread.
int timevisor_is_surely_past(const struct timevisor_timeline *timeline, int64_t t_ns);

// Until when true time stays within half_width_ns of the estimate if nothing new is learned.
//
// Returns 0; -EIO, -EIDRM, -EINVAL. Any thread; a short lock.
int timevisor_valid_until(const struct timevisor_timeline *timeline, int64_t half_width_ns, struct timevisor_validity *until);

// Binds to a timeline and has the host meet a requirement until the handle is unbound or freed, or
// the program ends in any way.
//
// requirement: what is needed; NULL: read only.
// options: how to bind, or NULL.
// Returns 0; -ERANGE: the requirement cannot be met (what can: options->achieved); -ENOTCONN:
// nobody takes requirements here (reading works without: timevisor_timeline_open); -ENOENT: there
// is no such timeline; -EEXIST: `create` with another timescale; -ETIMEDOUT, -ECONNRESET:
// timevisord does not answer; -EDQUOT, -EUSERS: a limit, or no room; -EPROTO; -ENXIO: it cannot be
// read here; -EINVAL. Any thread; waits for the answer.
int timevisor_bind(const struct timevisor_client *client,
                   const char *name,
                   const struct timevisor_requirement *requirement,
                   const struct timevisor_bind_options *options,
                   struct timevisor_timeline **timeline);

// Changes a binding's requirement. If the host refuses, the old one stays in force.
//
// requirement: the new one; NULL drops it.
// options: best_effort and achieved, as for timevisor_bind (create must be 0), or NULL.
// Returns 0; -EINVAL, also when the handle is not bound; otherwise as timevisor_bind. Any thread;
// waits for the answer.
int timevisor_update(const struct timevisor_timeline *timeline,
                     const struct timevisor_requirement *requirement,
                     const struct timevisor_bind_options *options);

// Withdraws a binding's requirement and waits for the host's answer. The handle can still be read,
// and must still be freed.
//
// Returns 0; -EINVAL, also when the handle is not bound (any more); -ETIMEDOUT, -ECONNRESET: the
// requirement ends with the connection. Any thread; waits for the answer.
int timevisor_unbind(const struct timevisor_timeline *timeline);

// What the timeline gave at the bind or the last update.
//
// Returns 0; -EINVAL, also when the handle is not bound. Any thread.
int timevisor_timeline_achieved(const struct timevisor_timeline *timeline, struct timevisor_achieved *achieved);

// What the timeline of a binding counts.
//
// Returns a timevisor_timescale; -EINVAL, also when the handle is not bound (every reading says
// it, too). Any thread.
int timevisor_timeline_timescale(const struct timevisor_timeline *timeline);

// Whether the requirement is in force on the host now. After a lost connection the library states
// it again; reading works either way.
//
// Returns 0; -ENOTCONN: it does not (timevisor_last_error says why); -EINVAL, also when the handle
// is not bound. Any thread.
int timevisor_timeline_lease(const struct timevisor_timeline *timeline);

// Begins an age now. `timeline` is `tai`, and may be freed before the age.
//
// blackouts: a timevisor_blackouts.
// Returns 0; -ENODATA: the time is not known yet; -EINVAL: also for another timeline; otherwise as
// timevisor_now. Any thread.
int timevisor_elapsed_begin(const struct timevisor_timeline *timeline, int blackouts, struct timevisor_elapsed **elapsed);

// Resumes an age that timevisor_elapsed_save has written, here or on another host.
//
// Returns 0; -EINVAL: not a saved age, or another timeline than `tai`; otherwise as timevisor_now.
// Any thread.
int timevisor_elapsed_resume(const struct timevisor_timeline *timeline, const char *saved, struct timevisor_elapsed **elapsed);

// The age now, in ns since it began, on its own timescale. It never goes back.
//
// Returns as timevisor_now; 0 also while the age is not known, after a disruption: see `known` and
// `status`. Any thread.
int timevisor_elapsed_now(const struct timevisor_elapsed *elapsed, struct timevisor_reading *reading);

// The age as text, for a file or another machine: one line of ASCII, at most 1024 bytes with the
// zero byte at its end.
//
// Returns the length without the zero byte; the buffer gets as much as there is room for, as with
// snprintf. Otherwise as timevisor_now. Any thread.
int timevisor_elapsed_save(const struct timevisor_elapsed *elapsed, char *buffer, size_t size);

// Ends the age. NULL is allowed. Not while another thread uses the handle.
void timevisor_elapsed_free(struct timevisor_elapsed *elapsed);

// Records the timeline from now on into a file, so that stamps of any age can be converted later,
// on any machine. A file that is there already is continued. It is made with mode 0644, and not
// through a symbolic link. The timeline may be freed before the recorder.
//
// Returns 0; -EBUSY: another program records into the file; -EILSEQ: it is no recording, or
// damaged; -ENOTSUP: it is one of a newer version; -EINVAL: also for a recording of another
// timeline or machine; the kernel's code for a file that cannot be written; otherwise as
// timevisor_now. Any thread.
int timevisor_record_to(const struct timevisor_timeline *timeline, const char *path, struct timevisor_recorder **recorder);

// Looks at the page, and appends what it says if that is new. Call it about every 100 ms.
// Publications that are missed for up to a minute make conversions wider. After longer, stamps
// from inside the gap are refused, and a span across it is only the difference of two conversions.
//
// Returns 1 when something was appended, otherwise 0; the kernel's code for a file that cannot be
// written; -EINVAL: also when the page is another machine's now; -EIO, -EIDRM. Any thread; a lock.
int timevisor_recorder_observe(const struct timevisor_recorder *recorder);

// Looks once more, hands everything to the disk, and frees the recorder, whatever it returns. NULL
// is allowed. Not while another thread uses the handle.
//
// Returns 0, or a code as timevisor_recorder_observe.
int timevisor_recorder_close(struct timevisor_recorder *recorder);

// Reads a whole recording, of this machine or another one. It needs no page.
//
// Returns 0; -EILSEQ: it is no recording, or damaged; -ENOTSUP: it is one of a newer version; the
// kernel's code for a file that cannot be read; -EINVAL. Any thread.
int timevisor_recording_open(const char *path, struct timevisor_recording **recording);

// The time at which the counter was at `stamp`.
//
// Returns 0; -ESTALE: a stamp from before or after what was recorded, from where the clock was
// disrupted, or from where nobody recorded it for more than a minute; -ENODATA: nothing was
// recorded; -EBADMSG: bounds contradict each other; -ENOTUNIQ: the counter had this value more than
// once; -EINVAL. Any thread.
int timevisor_recording_convert(const struct timevisor_recording *recording, uint64_t stamp, struct timevisor_reading *reading);

// The time of something that happened while the counter went from `first` to `last`: see
// timevisor_convert_between.
//
// Returns as timevisor_recording_convert; -ESTALE also for a disruption between the two. Any
// thread.
int timevisor_recording_convert_between(const struct timevisor_recording *recording,
                                        uint64_t first,
                                        uint64_t last,
                                        struct timevisor_reading *reading);

// How much true time went by between two stamps: see timevisor_span.
//
// Returns as timevisor_recording_convert_between. Any thread.
int timevisor_recording_span(const struct timevisor_recording *recording,
                             uint64_t from,
                             uint64_t to,
                             struct timevisor_measured_span *span);

// Frees a recording. NULL is allowed. Not while another thread uses the handle.
void timevisor_recording_free(struct timevisor_recording *recording);

// Begins to watch CLOCK_REALTIME. Do this before the socket is opened: stamps from before cannot
// be converted. The timeline may be freed first.
//
// Returns 0; -ENOTSUP: a clock for tests, or a kernel that follows a pulse per second; -EMFILE and
// others: the kernel refused a timer; otherwise as timevisor_now. Any thread.
int timevisor_packet_stamps_open(const struct timevisor_timeline *timeline, struct timevisor_packet_stamps **stamps);

// The counter values between which the kernel stamped a packet. Call it soon: a stamp that is 1 ms
// old is known to 0.25 ms, because of how fast CLOCK_REALTIME can be slewed. Give both values to
// timevisor_convert_between, now or later.
//
// realtime_ns: the software stamp of SCM_TIMESTAMPING or SCM_TIMESTAMPNS, tv_sec * 1000000000 +
// tv_nsec.
// Returns 0; -ESTALE: CLOCK_REALTIME was set, and every call from now on says so: discard the
// packets that wait in the socket, and open new packet stamps; -ERANGE: a stamp from before they
// were opened, or from the future; -EINVAL: also when `first` and `last` are the same pointer;
// -EIO, -EIDRM. Any thread; a short lock.
int timevisor_stamp_of_packet(const struct timevisor_packet_stamps *stamps,
                              int64_t realtime_ns,
                              uint64_t *first,
                              uint64_t *last);

// Frees them. NULL is allowed. Not while another thread uses the handle.
void timevisor_packet_stamps_free(struct timevisor_packet_stamps *stamps);

// How much processor time the host has given vCPU `vcpu` of the VM that this program runs in,
// since the vCPU began there. A guest's own clocks also count the time in which its vCPU waited.
// The account is updated every 100 ms.
//
// Returns 0; -ENODATA: not known, and on a host's own page; -ENXIO, -EIO: the page cannot be read;
// -EINVAL. Any thread.
int timevisor_read_host_cpu_time(const struct timevisor_client *client, size_t vcpu, struct timevisor_host_cpu_time *time);

// What the host announces: a timevisor_notice. Cheap; ask as often as you like.
//
// Returns that number; -ENXIO: the page cannot be read; -EINVAL. Any thread.
int timevisor_read_notice(const struct timevisor_client *client);

// The VM generation counter: another number tells that this VM was loaded from a saved state (a
// snapshot, a clone), so that what must be unique has to be made anew. A live migration keeps it.
// NULL is allowed.
//
// Returns 0; -ENODATA: nobody counts here, or timevisord has not noticed yet that the VM was
// loaded; -ENXIO: the page cannot be read; -EINVAL. Any thread.
int timevisor_read_vm_generation(const struct timevisor_client *client, uint64_t *generation);

// Makes a token; nothing is cancelled yet.
//
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_cancel_new(struct timevisor_cancel_token **token);

// Ends all waits that have this token in their options, with -ECANCELED. NULL is allowed. Any
// thread; allowed in a signal handler.
void timevisor_cancel(const struct timevisor_cancel_token *token);

// Frees a token; waits that have it go on, and cannot be cancelled any more. NULL is allowed.
void timevisor_cancel_free(struct timevisor_cancel_token *token);

// Waits until the estimate has reached t_ns. `waited` may be NULL.
//
// Returns 0; -ESTALE: the clock may have stepped (waited->reading has the first reading since);
// -ENODATA: the time is not known; -EIO, -EIDRM, -EINVAL. Any thread; blocks.
int timevisor_wait_until(const struct timevisor_timeline *timeline, int64_t t_ns, struct timevisor_waited *waited);

// Waits until t_ns has surely passed on every right clock: earliest > t (Spanner's commit-wait).
// `waited` may be NULL.
//
// Returns as timevisor_wait_until; -EBADMSG: the clock is unreliable. Any thread; blocks.
int timevisor_wait_past(const struct timevisor_timeline *timeline, int64_t t_ns, struct timevisor_waited *waited);

// Waits until lead_ns before the last moment that is surely before t_ns on every right clock, to
// do then what must be done before it: until latest + lead_ns >= t_ns. The reading then has latest
// < t_ns. `waited` may be NULL.
//
// lead_ns: what the program needs to wake up (50 to 100 us) and for its work; 1 or more.
// Returns as timevisor_wait_past; -ETIME: it is not surely before t_ns any more, at the call or at
// the wake-up, by latest_ns - t_ns of waited->reading, which is 0 or more. Any thread; blocks.
int timevisor_wait_surely_before(const struct timevisor_timeline *timeline,
                                 int64_t t_ns,
                                 int64_t lead_ns,
                                 struct timevisor_waited *waited);

// Sleeps for span_ns on this timeline. `waited` may be NULL.
//
// Returns as timevisor_wait_until. Any thread; blocks.
int timevisor_sleep(const struct timevisor_timeline *timeline, int64_t span_ns, struct timevisor_waited *waited);

// Waits until the time is known and meets the handle's requirement: after a start, a disruption,
// or a violation.
//
// timeout_ns: give up after this long; 0: never. `waited` may be NULL.
// Returns 0; -ETIMEDOUT; -EIO, -EIDRM, -EINVAL. Any thread; blocks.
int timevisor_wait_met(const struct timevisor_timeline *timeline, int64_t timeout_ns, struct timevisor_waited *waited);

// Waits, with all options.
//
// when: a timevisor_when, which says what `ns` means. `options` and `waited` may be NULL.
// Returns as timevisor_wait_until; -ETIMEDOUT, -ECANCELED: as the options say; -EBADMSG with
// TIMEVISOR_WHEN_PAST; -EBADMSG and -ETIME with TIMEVISOR_WHEN_SURELY_BEFORE. Any thread; blocks.
int timevisor_wait(const struct timevisor_timeline *timeline,
                   int when,
                   int64_t ns,
                   const struct timevisor_wait_options *options,
                   struct timevisor_waited *waited);

// Begins a wait. An event loop polls a descriptor for its end.
//
// when, ns: as for timevisor_wait, but TIMEVISOR_WHEN_SURELY_BEFORE, which
// timevisor_wait_surely_before_start begins. spin_ns: as in timevisor_wait_options.
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_wait_start(const struct timevisor_timeline *timeline,
                         int when,
                         int64_t ns,
                         int64_t spin_ns,
                         struct timevisor_wait_handle **wait);

// Begins timevisor_wait_surely_before likewise.
//
// t_ns, lead_ns: as there. spin_ns: as in timevisor_wait_options.
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_wait_surely_before_start(const struct timevisor_timeline *timeline,
                                       int64_t t_ns,
                                       int64_t lead_ns,
                                       int64_t spin_ns,
                                       struct timevisor_wait_handle **wait);

// The descriptor to poll for reading; level-triggered; readable right after the start. It belongs
// to the handle: do not read or close it. -EINVAL. Any thread.
int timevisor_wait_fd(const struct timevisor_wait_handle *wait);

// Looks whether the time has come. To be called when the descriptor is readable; may be called at
// any time, and never blocks (but spins within spin_ns of the end). `waited` may be NULL.
//
// Returns 0: it has, and the wait is over; -EAGAIN: not yet, poll again (also after the end);
// otherwise as timevisor_wait, and the wait is over; -EBUSY: another thread is in this function.
int timevisor_wait_on_ready(const struct timevisor_wait_handle *wait, struct timevisor_waited *waited);

// Frees a wait, which cancels it. NULL is allowed.
void timevisor_wait_free(struct timevisor_wait_handle *wait);

// Waits until the estimate has reached t_ns, provided that true time is then within max_error_ns
// of it and that it is not later than latest_ns; both are checked at the beginning, too.
//
// max_error_ns: TIMEVISOR_ANY_ERROR_NS accepts any. `options` and `result` may be NULL.
// Returns a timevisor_outcome, of which only 0 (TIMEVISOR_OUTCOME_FIRED) says: do it; -ENODATA:
// the time is not known; -ETIMEDOUT, -ECANCELED: as the options say; -EIO, -EIDRM; -EINVAL, also
// when latest_ns < t_ns. Any thread; blocks.
int timevisor_at(const struct timevisor_timeline *timeline,
                 int64_t t_ns,
                 int64_t max_error_ns,
                 int64_t latest_ns,
                 const struct timevisor_wait_options *options,
                 struct timevisor_at_result *result);

// Begins to wait for an action's time. An event loop polls a descriptor for the outcome.
//
// Arguments as for timevisor_at; spin_ns as in timevisor_wait_options.
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_at_start(const struct timevisor_timeline *timeline,
                       int64_t t_ns,
                       int64_t max_error_ns,
                       int64_t latest_ns,
                       int64_t spin_ns,
                       struct timevisor_at_handle **at);

// The descriptor to poll: see timevisor_wait_fd.
int timevisor_at_fd(const struct timevisor_at_handle *at);

// Looks whether there is an outcome: see timevisor_wait_on_ready. `result` may be NULL.
//
// Returns a timevisor_outcome, of which only 0 says: do it; -EAGAIN: none yet, poll again (also
// after there was one); -EBUSY: another thread is in this function; otherwise as timevisor_at.
int timevisor_at_on_ready(const struct timevisor_at_handle *at, struct timevisor_at_result *result);

// Frees it, which cancels the wait. NULL is allowed.
void timevisor_at_free(struct timevisor_at_handle *at);

// Begins ticks: every period_ns of the timeline, at phase_ns and multiples of the period before
// and after it, the same on every machine that shares the timeline.
//
// missed_ticks: a timevisor_missed_ticks.
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL, also for a period below 1. Any thread.
int timevisor_periodic_start(const struct timevisor_timeline *timeline,
                             int64_t period_ns,
                             int64_t phase_ns,
                             int missed_ticks,
                             struct timevisor_periodic **periodic);

// Waits for the next tick. `options` and `tick` may be NULL.
//
// Returns 0; -ESTALE: the clock may have stepped (tick->reading has the first reading since), and
// the next call starts over on the grid; -EBUSY: another thread waits with this handle; otherwise
// as timevisor_wait. Blocks.
int timevisor_periodic_tick(const struct timevisor_periodic *periodic,
                            const struct timevisor_wait_options *options,
                            struct timevisor_tick *tick);

// The descriptor to poll: see timevisor_wait_fd.
int timevisor_periodic_fd(const struct timevisor_periodic *periodic);

// Looks whether a tick is due; never blocks. `tick` may be NULL.
//
// Returns 0; -EAGAIN: not yet, poll again; otherwise as timevisor_periodic_tick, and the ticks go
// on.
int timevisor_periodic_on_ready(const struct timevisor_periodic *periodic, struct timevisor_tick *tick);

// Ends the ticks. NULL is allowed.
void timevisor_periodic_free(struct timevisor_periodic *periodic);

// Begins to watch a timeline and the handle's requirement. The page is looked at every 100 ms, and
// when the bounds will have grown too wide.
//
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_watch_start(const struct timevisor_timeline *timeline, struct timevisor_watch **watch);

// Waits for the next event. `options` and `event` may be NULL.
//
// Returns 0; -EBUSY: another thread waits with this handle; -ETIMEDOUT, -ECANCELED: as the options
// say; -EIO, -EIDRM: the page cannot be read, the watch goes on; -EINVAL. Blocks.
int timevisor_watch_event(const struct timevisor_watch *watch, const struct timevisor_wait_options *options, struct timevisor_event *event);

// The descriptor to poll: see timevisor_wait_fd.
int timevisor_watch_fd(const struct timevisor_watch *watch);

// Looks whether something happened; never blocks. `event` may be NULL.
//
// Returns 0; -EAGAIN: nothing, poll again; otherwise as timevisor_watch_event.
int timevisor_watch_on_ready(const struct timevisor_watch *watch, struct timevisor_event *event);

// Ends the watch. NULL is allowed.
void timevisor_watch_free(struct timevisor_watch *watch);

// Begins to take edges of a GPIO line. The kernel stamps them in its interrupt handler: after the
// edge, by the interrupt's latency.
//
// chip: such as "/dev/gpiochip0"; line: its number there; edges: a timevisor_edge, not
// TIMEVISOR_EDGE_UNKNOWN.
// Returns 0; -ENOENT, -ENOTTY: no such chip; -EINVAL: also no such line; -EBUSY: the kernel or
// another program uses it; -EACCES, -EPERM: this user may not; -ENXIO: also lines that cannot
// interrupt; -ENOTSUP: a clock for tests; otherwise as timevisor_now. Any thread.
int timevisor_line_events_start(const struct timevisor_timeline *timeline,
                                const char *chip,
                                uint32_t line,
                                int edges,
                                struct timevisor_pin_events **events);

// Begins to take edges at a channel of a PTP clock, which stamps them itself. Not tested on
// hardware. The pin must have been given to the channel: timevisor_ptp_pins_set. The clock may be
// steered, but must not be set meanwhile.
//
// device: such as "/dev/ptp0".
// Returns 0; -ENOENT: also no such channel; -ENOTSUP: also a clock that cannot be compared with the
// counter closely; otherwise as timevisor_line_events_start. Any thread; takes 0.1 s.
int timevisor_ptp_events_start(const struct timevisor_timeline *timeline,
                               const char *device,
                               uint32_t channel,
                               int edges,
                               struct timevisor_pin_events **events);

// Waits for the next edge. `options` (spin_ns is not used) and `event` may be NULL.
//
// Returns 0; -ESTALE, -EBADMSG, -ENOTSUP, or an error of timevisor_now or of the kernel, with
// `came` 1: there was an edge, but when is not known (`edge` and `lost` are given, later ones may be
// known again); -ENODEV: the device is gone; -EBUSY: another thread waits with this handle;
// -ETIMEDOUT, -ECANCELED: as the options say; -EINVAL. Blocks.
int timevisor_pin_events_next(const struct timevisor_pin_events *events,
                              const struct timevisor_wait_options *options,
                              struct timevisor_pin_event *event);

// The descriptor to poll: readable while there are edges.
int timevisor_pin_events_fd(const struct timevisor_pin_events *events);

// Takes the next edge; never blocks. `event` may be NULL.
//
// Returns 0; -EAGAIN: there is none, poll again; otherwise as timevisor_pin_events_next.
int timevisor_pin_events_on_ready(const struct timevisor_pin_events *events, struct timevisor_pin_event *event);

// Ends the events, and gives the line back. NULL is allowed.
void timevisor_pin_events_free(struct timevisor_pin_events *events);

// Takes a GPIO line as an output that begins active (not 0) or inactive.
//
// Returns 0; otherwise as timevisor_line_events_start. Any thread.
int timevisor_output_open(const char *chip, uint32_t line, int active, struct timevisor_output **output);

// Makes it active (not 0) or inactive now.
//
// Returns 0, or the driver's error. Any thread.
int timevisor_output_set(const struct timevisor_output *output, int active);

// Whether it is active: 1 or 0, or the driver's error (some cannot read outputs). Any thread.
int timevisor_output_get(const struct timevisor_output *output);

// Waits until the estimate has reached t_ns, and then makes the line active (not 0) or inactive. It
// does so only if the clock meets the timeline's requirement, at the beginning and then, was not
// disrupted, and it is not later than late_at_most_ns after t_ns.
//
// `options` and `changed` may be NULL.
// Returns a timevisor_outcome, of which only 0 (TIMEVISOR_OUTCOME_FIRED) says that the line has
// changed; TIMEVISOR_OUTCOME_TOO_LATE also when t_ns has come already. Negative: the line was not
// changed (-ENODATA, -ETIMEDOUT, -ECANCELED and others, as timevisor_at), unless `first` is not 0:
// then it has changed, but when is not known, or it reads back as the other value (-EIO). Any
// thread; blocks.
int timevisor_output_at(const struct timevisor_output *output,
                        const struct timevisor_timeline *timeline,
                        int64_t t_ns,
                        int active,
                        int64_t late_at_most_ns,
                        const struct timevisor_wait_options *options,
                        struct timevisor_changed *changed);

// Begins to wait for an output's time. An event loop polls a descriptor; the line changes within
// timevisor_output_at_on_ready.
//
// Arguments as for timevisor_output_at; spin_ns as in timevisor_wait_options.
// Returns 0; -ETIME: t_ns has come already; -ERANGE: the clock does not meet the timeline's
// requirement; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_output_at_start(const struct timevisor_output *output,
                              const struct timevisor_timeline *timeline,
                              int64_t t_ns,
                              int active,
                              int64_t late_at_most_ns,
                              int64_t spin_ns,
                              struct timevisor_output_at_handle **at);

// The descriptor to poll: see timevisor_wait_fd.
int timevisor_output_at_fd(const struct timevisor_output_at_handle *at);

// Changes the line if its time has come. `changed` may be NULL.
//
// Returns a timevisor_outcome, of which only 0 says that the line has changed; -EAGAIN: not yet,
// poll again (also after there was an outcome); -EBUSY: another thread is in this function;
// otherwise as timevisor_output_at.
int timevisor_output_at_on_ready(const struct timevisor_output_at_handle *at, struct timevisor_changed *changed);

// Frees it; before its time the line stays as it is. NULL is allowed.
void timevisor_output_at_free(struct timevisor_output_at_handle *at);

// Gives the line back, once no timevisor_output_at_handle uses it. NULL is allowed. Not while
// another thread uses the handle.
void timevisor_output_free(struct timevisor_output *output);

// Opens a PTP clock such as "/dev/ptp0". Not tested on hardware.
//
// Returns 0; -ENOENT, -ENOTTY: no such clock; -EACCES, -EPERM: this user may not write to it;
// -EINVAL. Any thread.
int timevisor_ptp_pins_open(const char *device, struct timevisor_ptp_pins **pins);

// How many pins have a function that can be chosen; a negative code: NULL. Any thread. Not tested
// on hardware.
int timevisor_ptp_pins_count(const struct timevisor_ptp_pins *pins);

// A pin, counted from 0. Not tested on hardware.
//
// Returns 0; -ENOENT: no such pin; -EINVAL; the driver's errors. Any thread.
int timevisor_ptp_pins_get(const struct timevisor_ptp_pins *pins, uint32_t index, struct timevisor_ptp_pin *pin);

// Uses a pin for a channel of a function. Not tested on hardware.
//
// function: a timevisor_pin_function, not TIMEVISOR_PIN_FUNCTION_UNKNOWN.
// Returns 0; -ENOENT: no such pin; -EINVAL: also a channel or a function that it does not have; the
// driver's errors. Any thread.
int timevisor_ptp_pins_set(const struct timevisor_ptp_pins *pins, uint32_t index, int function, uint32_t channel);

// Has an output's channel make one pulse of width_ns, which begins when the timeline's estimate is
// t_ns, as far as can be told now: sooner is more exact. The clock's hardware makes it. Not tested
// on hardware.
//
// `pulse` may be NULL.
// Returns a timevisor_outcome, of which only 0 says that it will be made; -ENOENT: no such channel;
// -ENOTSUP: also a clock that cannot be compared with the counter closely, or t_ns may have come
// before the clock was told (then `first` is not 0); -EINVAL: also no width; otherwise as
// timevisor_now. Any thread; takes 0.1 s.
int timevisor_ptp_pins_pulse_at(const struct timevisor_ptp_pins *pins,
                                const struct timevisor_timeline *timeline,
                                uint32_t channel,
                                int64_t t_ns,
                                int64_t width_ns,
                                struct timevisor_pulse *pulse);

// Ends what an output's channel does, or is to do. Not tested on hardware.
//
// Returns 0; -ENOENT: no such channel; the driver's errors. Any thread.
int timevisor_ptp_pins_end_output(const struct timevisor_ptp_pins *pins, uint32_t channel);

// Frees them; pins keep their functions. NULL is allowed. Not while another thread uses the handle.
void timevisor_ptp_pins_free(struct timevisor_ptp_pins *pins);

// Joins a group as `member`. options->requirement is stated to the host, for as long as the
// membership lives.
//
// options: how to join, or NULL.
// Returns 0; -ENOTCONN: there is no bus (timevisor_last_error says where it was looked for), or nobody
// takes requirements; -EEXIST: the group has a member of this name; -EACCES: the key does not match,
// or there is none; -EXDEV: the group is on another timeline; -EUSERS: the bus has no room; -EPROTO:
// the bus is of another version; -ETIMEDOUT: it does not answer; -EINVAL: also a name that cannot be
// one, and a text that is no key; otherwise as timevisor_bind. Any thread; waits for the answer.
int timevisor_group_join(const struct timevisor_client *client,
                         const char *group,
                         const char *member,
                         const struct timevisor_join_options *options,
                         struct timevisor_group **joined);

// Joins a group with any timeline, such as that of a manual clock. The timeline's name is the
// group's. options->requirement is not stated to the host.
//
// Returns as timevisor_group_join. The timeline may be freed before the group is left. Any thread;
// waits for the answer.
int timevisor_group_join_on(const struct timevisor_timeline *timeline,
                            const char *group,
                            const char *member,
                            const struct timevisor_join_options *options,
                            struct timevisor_group **joined);

// Leaves, waits until the bus has been told, and frees the handle. Subscriptions and the like end; they
// must still be freed. NULL is allowed. Not while another thread uses the handle.
void timevisor_group_leave(struct timevisor_group *group);

// All members as far as is known, this one included, in the order of their names.
//
// Returns 0; -EINVAL. Any thread.
int timevisor_group_members(const struct timevisor_group *group, struct timevisor_member_list **list);

// How many there are; 0 if the list is NULL. Any thread.
size_t timevisor_member_list_count(const struct timevisor_member_list *list);

// One of them.
//
// Returns 0; -ENOENT: there are not so many; -EINVAL. Any thread.
int timevisor_member_list_get(const struct timevisor_member_list *list, size_t index, struct timevisor_member *member);

// Frees a list. NULL is allowed.
void timevisor_member_list_free(struct timevisor_member_list *list);

// Waits until so many members are there, this one included, whose clocks meet their requirements.
//
// timeout_ns: give up after this long; 0: never.
// Returns 0; -ETIMEDOUT; -EINVAL. Any thread; blocks.
int timevisor_group_wait_for(const struct timevisor_group *group, size_t count, int64_t timeout_ns);

// Waits until the members of these names are there, whose clocks meet their requirements.
//
// names: an array of `count` names.
// Returns as timevisor_group_wait_for. Any thread; blocks.
int timevisor_group_wait_for_names(const struct timevisor_group *group,
                                   const char *const *names,
                                   size_t count,
                                   int64_t timeout_ns);

// Waits at a barrier until so many members have arrived. All are released at one time. If not all of
// them were, a TIMEVISOR_REPORT_KIND_SPLIT says so.
//
// timeout_ns: give up after this long; 0: never. late_ns: how late this member surely was, or NULL.
// Returns 0; -ETIMEDOUT: it does not wait there any more; -EBUSY: another thread waits there;
// -EINVAL. Any thread; blocks.
int timevisor_group_barrier(const struct timevisor_group *group,
                            const char *barrier,
                            uint32_t parties,
                            int64_t timeout_ns,
                            int64_t *late_ns);

// Which proposals of others are accepted from now on: a timevisor_accept.
//
// Returns 0; -EINVAL. Any thread.
int timevisor_group_accept(const struct timevisor_group *group, int accept);

// Wants to lead an office. TIMEVISOR_REPORT_KIND_LEADS says when it does.
//
// voters: an array of the names of the `count` members that vote, the same for all candidates.
// term_ns: how long a lease is.
// Returns 0; -EINVAL: also when nobody can be elected by this. Any thread.
int timevisor_group_stand(const struct timevisor_group *group,
                          const char *office,
                          const char *const *voters,
                          size_t count,
                          int64_t term_ns);

// Does not want to lead any more. Returns 0; -EINVAL. Any thread.
int timevisor_group_resign(const struct timevisor_group *group, const char *office);

// Whether this member leads now. Nobody else does at the same time, as long as bounds hold.
//
// Returns 1 or 0; -EINVAL. Any thread.
int timevisor_group_leads(const struct timevisor_group *group, const char *office);

// Publishes a message of at most 1 MiB with the time of now. It is copied.
//
// payload: `length` bytes; may be NULL if that is 0.
// Returns 0; -EMSGSIZE: it is longer; -ENOTCONN: the bus is not connected, the library connects again;
// -EINVAL. Any thread.
int timevisor_group_publish(const struct timevisor_group *group, const char *topic, const void *payload, size_t length);

// Gets a topic's messages, those that were published before first: `history` of them at most.
//
// order: a timevisor_order. hold_ns: with TIMEVISOR_ORDER_TIME, how long a silent member holds up
// others (0: 500 ms); otherwise 0.
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_group_subscribe(const struct timevisor_group *group,
                              const char *topic,
                              int order,
                              int64_t hold_ns,
                              uint32_t history,
                              struct timevisor_subscription **subscription);

// Waits for the next message. `message` may be NULL.
//
// timeout_ns: give up after this long; 0: never.
// Returns 0; -ETIMEDOUT; -ESHUTDOWN: the member has left, and there is none any more; -EBUSY: another
// thread waits with this handle; -EINVAL. Blocks.
int timevisor_subscription_next(const struct timevisor_subscription *subscription,
                                int64_t timeout_ns,
                                struct timevisor_message *message);

// The descriptor to poll for reading; level-triggered: readable while there are messages, and after
// the member has left. It belongs to the handle: do not read or close it. -EINVAL. Any thread.
int timevisor_subscription_fd(const struct timevisor_subscription *subscription);

// Takes the next message; never blocks. `message` may be NULL.
//
// Returns 0; -EAGAIN: there is none, poll again; otherwise as timevisor_subscription_next.
int timevisor_subscription_on_ready(const struct timevisor_subscription *subscription, struct timevisor_message *message);

// The name of a member that may still send something older than the message that was given last; NULL
// if there are not so many. Valid until the next message is taken. One thread at a time.
const char *timevisor_subscription_unheard(const struct timevisor_subscription *subscription, size_t index);

// How many messages were dropped since the last call, because nobody took them. -EBUSY, -EINVAL.
int timevisor_subscription_dropped(const struct timevisor_subscription *subscription);

// Ends a subscription. NULL is allowed.
void timevisor_subscription_free(struct timevisor_subscription *subscription);

// Begins to watch a group and its messages.
//
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_group_watch_start(const struct timevisor_group *group, struct timevisor_group_watch **watch);

// Waits for the next report. `report` may be NULL.
//
// timeout_ns: give up after this long; 0: never.
// Returns as timevisor_subscription_next. Blocks.
int timevisor_group_watch_next(const struct timevisor_group_watch *watch, int64_t timeout_ns, struct timevisor_report *report);

// The descriptor to poll: see timevisor_subscription_fd.
int timevisor_group_watch_fd(const struct timevisor_group_watch *watch);

// Takes the next report; never blocks. `report` may be NULL.
//
// Returns 0; -EAGAIN: there is none, poll again; otherwise as timevisor_subscription_next.
int timevisor_group_watch_on_ready(const struct timevisor_group_watch *watch, struct timevisor_report *report);

// How many reports were dropped since the last call, because nobody took them. -EBUSY, -EINVAL.
int timevisor_group_watch_dropped(const struct timevisor_group_watch *watch);

// Ends the watch. NULL is allowed.
void timevisor_group_watch_free(struct timevisor_group_watch *watch);

// Proposes that all members, or those that the options name, fire at a time, in ns since the
// timeline's epoch. The payload is copied.
//
// payload: `length` bytes, at most 1 MiB; may be NULL if that is 0. options: with whom, or NULL.
// Returns 0; -ETIME: the time is too close; -ENODATA: the clock does not meet the requirement now;
// -ENOENT: no member has such a name; -EMSGSIZE: a longer payload; -EUSERS: too many proposals, or
// members; -EINVAL: also when this member is not among them. Any thread.
int timevisor_group_propose(const struct timevisor_group *group,
                            int64_t at_ns,
                            const void *payload,
                            size_t length,
                            const struct timevisor_propose_options *options,
                            struct timevisor_pending **pending);

// Waits until it is decided.
//
// timeout_ns: give up after this long; 0: never.
// Returns 1: everybody is to fire; 0: nobody; -ETIMEDOUT; -ESHUTDOWN: this member has left; -EINVAL.
// Any thread; blocks.
int timevisor_pending_decided(const struct timevisor_pending *pending, int64_t timeout_ns);

// Waits for the outcome, which `outcome` (or NULL) gets. With `unknown` members it may be corrected
// later: call this again, or see timevisor_proposals_next.
//
// timeout_ns: give up after this long; 0: never.
// Returns 0; -ETIMEDOUT; -ESHUTDOWN: this member has left; -EINVAL. Any thread; blocks.
int timevisor_pending_wait(const struct timevisor_pending *pending, int64_t timeout_ns, struct timevisor_group_outcome *outcome);

// What one member did, as the last outcome of timevisor_pending_wait has it: first those that fired,
// then those that did not, then those that were not heard.
//
// Returns 0; -ENOENT: there are not so many, or no outcome yet; -EINVAL. Any thread.
int timevisor_pending_part(const struct timevisor_pending *pending, size_t index, struct timevisor_part *part);

// Frees the handle; the proposal stands. NULL is allowed.
void timevisor_pending_free(struct timevisor_pending *pending);

// Proposals of others, to be answered, where TIMEVISOR_ACCEPT_ASK was said; and from now on what is to
// be done because of proposals, and what came of them.
//
// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
int timevisor_group_proposals(const struct timevisor_group *group, struct timevisor_proposals **proposals);

// Answers a proposal that was given with TIMEVISOR_PROPOSED_KIND_ASKED: `accepts` is 1 or 0. Only who
// proposes and which one is read.
//
// Returns 0; -EINVAL. Any thread.
int timevisor_group_answer(const struct timevisor_group *group, const struct timevisor_proposed *asked, int accepts);

// Waits for what happens next. `proposed` may be NULL.
//
// timeout_ns: give up after this long; 0: never.
// Returns as timevisor_subscription_next. Blocks.
int timevisor_proposals_next(const struct timevisor_proposals *proposals,
                             int64_t timeout_ns,
                             struct timevisor_proposed *proposed);

// The descriptor to poll: see timevisor_subscription_fd.
int timevisor_proposals_fd(const struct timevisor_proposals *proposals);

// Takes what happened next; never blocks. `proposed` may be NULL.
//
// Returns 0; -EAGAIN: nothing, poll again; otherwise as timevisor_subscription_next.
int timevisor_proposals_on_ready(const struct timevisor_proposals *proposals, struct timevisor_proposed *proposed);

// What one member did, if what was given last is an outcome: see timevisor_pending_part.
//
// Returns 0; -ENOENT: there are not so many, or it is no outcome; -EBUSY, -EINVAL. One thread at a
// time.
int timevisor_proposals_part(const struct timevisor_proposals *proposals, size_t index, struct timevisor_part *part);

// How many entries were dropped since the last call, because nobody took them. -EBUSY, -EINVAL.
int timevisor_proposals_dropped(const struct timevisor_proposals *proposals);

// Ends it. NULL is allowed.
void timevisor_proposals_free(struct timevisor_proposals *proposals);

// Makes a synchronized clock that stands at now_ns, right to 1 ns.
//
// timescale: a timevisor_timescale.
// Returns 0; -EINVAL. Any thread.
int timevisor_manual_new(int timescale, int64_t now_ns, struct timevisor_manual_clock **clock);

// Frees a clock; its timelines stand still from then on. NULL is allowed. Not while another thread
// uses the handle.
void timevisor_manual_free(struct timevisor_manual_clock *clock);

// A handle, as to a real timeline, for reading only (timevisor_with_requirement judges it), to be
// freed with timevisor_timeline_free.
//
// Returns 0; -EINVAL. Any thread.
int timevisor_manual_timeline(const struct timevisor_manual_clock *clock, struct timevisor_timeline **timeline);

// Where it stands.
//
// Returns 0; -ENODATA after timevisor_manual_forget; -EINVAL. Any thread.
int timevisor_manual_now(const struct timevisor_manual_clock *clock, int64_t *now_ns);

// Advances time, and the counter with it. Returns 0; -EINVAL. Any thread.
int timevisor_manual_advance(const struct timevisor_manual_clock *clock, int64_t by_ns);

// True time is within this of the estimate; at least 1. Returns 0; -EINVAL. Any thread.
int timevisor_manual_set_error(const struct timevisor_manual_clock *clock, int64_t half_width_ns);

// True time is at most below_ns before and at most above_ns after the estimate; at least 1 each.
// Returns 0; -EINVAL. Any thread.
int timevisor_manual_set_errors(const struct timevisor_manual_clock *clock, int64_t below_ns, int64_t above_ns);

// The bounds move out at this rate as time goes by, parts per billion (1000 are 1 us a second).
// Returns 0; -EINVAL. Any thread.
int timevisor_manual_set_growth_ppb(const struct timevisor_manual_clock *clock, uint32_t ppb);

// One sigma of the estimate. Returns 0; -EINVAL. Any thread.
int timevisor_manual_set_estimated_error(const struct timevisor_manual_clock *clock, int64_t sigma_ns);

// Sets the clock's status, a timevisor_status. Returns 0; -EINVAL. Any thread.
int timevisor_manual_set_status(const struct timevisor_manual_clock *clock, int status);

// The clock steps, ahead or back, and signals a disruption. Returns 0; -EINVAL. Any thread.
int timevisor_manual_step(const struct timevisor_manual_clock *clock, int64_t to_ns);

// Forgets the time, which is a disruption. timevisor_manual_step ends it. Returns 0; -EINVAL. Any
// thread.
int timevisor_manual_forget(const struct timevisor_manual_clock *clock);

// Starts one.
//
// Returns 0; -EMFILE, -EAGAIN and the like; -EINVAL. Any thread.
int timevisor_manual_bus_new(struct timevisor_manual_bus **bus);

// Frees the handle; the bus ends with its last member. NULL is allowed. Not while another thread
// uses the handle.
void timevisor_manual_bus_free(struct timevisor_manual_bus *bus);

// From now on it loses so many of a thousand messages, each for each receiver; which ones, `seed`
// decides. Returns 0; -EINVAL. Any thread.
int timevisor_manual_bus_lose(const struct timevisor_manual_bus *bus, uint32_t per_mille, uint64_t seed);

// From now on messages come so much later. Returns 0; -EINVAL. Any thread.
int timevisor_manual_bus_delay(const struct timevisor_manual_bus *bus, int64_t by_ns);

// From now on nothing comes from this member or to it. After its lease the others hear that it has
// gone. Returns 0; -EINVAL. Any thread.
int timevisor_manual_bus_cut(const struct timevisor_manual_bus *bus, const char *member);

// Nobody is cut off any more, nothing is lost and nothing is late. Returns 0; -EINVAL. Any thread.
int timevisor_manual_bus_heal(const struct timevisor_manual_bus *bus);

// Ends all connections, as a bus does that restarts: members connect and join again by themselves.
// What it kept is forgotten. Returns 0; -EINVAL. Any thread.
int timevisor_manual_bus_restart(const struct timevisor_manual_bus *bus);

// What a code means in general; `timevisor_last_error` says more. Codes are negative errno values;
// their absolute values are understood, too. Never NULL. Any thread.
const char *timevisor_strerror(int code);

// What went wrong in the last function that failed in this thread, and what to do about it; ""
// before the first one. -EAGAIN does not count as a failure. Never NULL; valid until the next
// failure in this thread.
const char *timevisor_last_error(void);

// From now on, in the whole process, reading a page whose file was truncated fails with -ENXIO; it
// would otherwise end the process by SIGBUS. timevisor_connect does this by itself for a page that
// options.page names; the pages that it looks for are never made shorter by timevisord, only by
// root.
//
// Installs a handler of SIGBUS, which deals with faults inside of clock pages and passes everything
// else on to the action that was there before. A handler that the program installs later should
// pass on what it does not know.
// Returns 0, or what the kernel says. Any thread.
int timevisor_survive_truncation(void);

// This library's version, such as "0.1.0". Any thread.
const char *timevisor_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#ifdef __cplusplus
extern "C" {
#endif

// True time is at most below_ns before and at most above_ns after the estimate, by the hard bounds.
static inline timevisor_requirement timevisor_between(int64_t below_ns, int64_t above_ns) {
    timevisor_requirement requirement = TIMEVISOR_REQUIREMENT_INIT;
    requirement.below_ns = below_ns;
    requirement.above_ns = above_ns;
    return requirement;
}

// True time is within half_width_ns of the estimate, by the hard bounds.
static inline timevisor_requirement timevisor_within(int64_t half_width_ns) {
    return timevisor_between(half_width_ns, half_width_ns);
}

#ifdef __cplusplus
}
#endif

#endif
