/* Members of a group over a real timevisor-bus, with a clock that a thread moves: members SOCKET KEY_SOCKET KEY */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define MS 1000000LL
#define SECOND 1000000000LL
#define LONG_ (60 * SECOND)

static timevisor_manual_clock *clock_;
static timevisor_timeline *tai;
static const char *socket_;
static volatile int stops;

static int64_t monotonic(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * SECOND + now.tv_nsec;
}

/* The clock goes as this machine's does. */
static void *drive(void *nothing) {
    const struct timespec pause = {0, MS};
    int64_t last = monotonic();

    (void)nothing;
    while (!__atomic_load_n(&stops, __ATOMIC_RELAXED)) {
        int64_t now;
        nanosleep(&pause, NULL);
        now = monotonic();
        CHECK(timevisor_manual_advance(clock_, now - last) == 0);
        last = now;
    }
    return NULL;
}

static int64_t in_a_second(void) {
    timevisor_reading now = TIMEVISOR_READING_INIT;
    CHECK(timevisor_now(tai, &now) == 0);
    return now.latest_ns + SECOND;
}

static timevisor_group *join(const char *group, const char *member) {
    timevisor_join_options options = TIMEVISOR_JOIN_OPTIONS_INIT;
    timevisor_group *joined;

    options.bus = socket_;
    CHECK(timevisor_group_join_on(tai, group, member, &options, &joined) == 0);
    CHECK(timevisor_group_accept(joined, TIMEVISOR_ACCEPT_ALL) == 0);
    return joined;
}

static void both(const char *group, timevisor_group **a, timevisor_group **b) {
    static const char *const names[] = {"a", "b"};
    *a = join(group, "a");
    *b = join(group, "b");
    CHECK(timevisor_group_wait_for(*a, 2, LONG_) == 0);
    CHECK(timevisor_group_wait_for_names(*b, names, 2, LONG_) == 0);
}

static int readable(int fd, int timeout_ms) {
    struct pollfd poll_fd = {fd, POLLIN, 0};
    CHECK(fd >= 0);
    return poll(&poll_fd, 1, timeout_ms) == 1;
}

static void members_come_and_go(void) {
    timevisor_join_options options = TIMEVISOR_JOIN_OPTIONS_INIT;
    timevisor_requirement within = timevisor_within(100000);
    timevisor_member member = TIMEVISOR_MEMBER_INIT;
    timevisor_report report = TIMEVISOR_REPORT_INIT;
    timevisor_group_watch *watch;
    timevisor_member_list *list;
    timevisor_group *a, *b;

    a = join("members", "a");
    CHECK(timevisor_group_watch_start(a, &watch) == 0);
    options.bus = socket_;
    options.requirement = &within;
    options.lease_ns = 2 * SECOND;
    CHECK(timevisor_group_join_on(tai, "members", "b", &options, &b) == 0);
    CHECK(timevisor_group_wait_for(a, 2, LONG_) == 0);
    CHECK(timevisor_group_members(a, &list) == 0 && timevisor_member_list_count(list) == 2);
    CHECK(timevisor_member_list_get(list, 0, &member) == 0 && strcmp(member.name, "a") == 0);
    CHECK(member.met == 1 && member.needs_below_ns == TIMEVISOR_UNKNOWN_NS);
    CHECK(timevisor_member_list_get(list, 1, &member) == 0 && strcmp(member.name, "b") == 0);
    CHECK(member.met == 1 && member.needs_below_ns == 100000 && member.needs_above_ns == 100000 && member.below_ns >= 50000);
    FAILS(timevisor_member_list_get(list, 2, &member), ENOENT, "there are 2 members");
    timevisor_member_list_free(list);
    FAILS(timevisor_group_wait_for(a, 3, MS), ETIMEDOUT, "in time");
    timevisor_group_leave(b);
    do CHECK(timevisor_group_watch_next(watch, LONG_, &report) == 0);
    while (report.kind != TIMEVISOR_REPORT_KIND_GONE);
    CHECK(strcmp(report.member, "b") == 0 && report.incarnation == member.incarnation);
    CHECK(report.why == TIMEVISOR_GONE_LEFT && report.text[0] == 0 && report.subject[0] == 0);
    CHECK(timevisor_group_watch_on_ready(watch, &report) == -EAGAIN && !readable(timevisor_group_watch_fd(watch), 0));
    timevisor_group_leave(a);
    CHECK(readable(timevisor_group_watch_fd(watch), 0));
    FAILS(timevisor_group_watch_next(watch, LONG_, NULL), ESHUTDOWN, "join it again");
    CHECK(timevisor_group_watch_dropped(watch) == 0);
    timevisor_group_watch_free(watch);
}

static void messages_come_in_both_orders(void) {
    timevisor_message message = TIMEVISOR_MESSAGE_INIT;
    timevisor_subscription *arrival, *in_time;
    timevisor_group *a, *b;
    static char big[(1 << 20) + 1];
    int64_t last = 0;
    int number;

    both("messages", &a, &b);
    CHECK(timevisor_group_subscribe(a, "poses", TIMEVISOR_ORDER_ARRIVAL, 0, 0, &arrival) == 0);
    CHECK(timevisor_group_publish(a, "poses", "old", 3) == 0);
    CHECK(timevisor_subscription_next(arrival, LONG_, &message) == 0 && message.length == 3);
    CHECK(memcmp(message.payload, "old", 3) == 0 && message.is_old == 0 && strcmp(message.sender, "a") == 0);
    timevisor_subscription_free(arrival);

    CHECK(timevisor_group_subscribe(b, "poses", TIMEVISOR_ORDER_ARRIVAL, 0, 10, &arrival) == 0);
    CHECK(timevisor_subscription_next(arrival, LONG_, &message) == 0 && message.is_old == 1);
    CHECK(timevisor_group_subscribe(b, "poses", TIMEVISOR_ORDER_TIME, 5 * SECOND, 0, &in_time) == 0);
    /* Its own copy says that the bus has heard of the subscriptions. */
    CHECK(timevisor_group_publish(b, "poses", NULL, 0) == 0);
    CHECK(timevisor_subscription_next(arrival, LONG_, &message) == 0 && message.length == 0 && message.payload != NULL);
    for (number = 0; number < 10; number++) CHECK(timevisor_group_publish(a, "poses", &number, sizeof number) == 0);
    for (number = 0; number < 10; number++) {
        CHECK(timevisor_subscription_next(arrival, LONG_, &message) == 0 && message.length == sizeof number);
        CHECK(memcmp(message.payload, &number, sizeof number) == 0 && message.stamped == 1);
    }
    for (number = 0; number < 11; number++) {
        CHECK(timevisor_subscription_next(in_time, LONG_, &message) == 0 && message.latest_ns >= last);
        CHECK(message.late_ns == 0 && message.unheard == 0 && timevisor_subscription_unheard(in_time, 0) == NULL);
        last = message.latest_ns;
    }
    CHECK(timevisor_subscription_on_ready(arrival, &message) == -EAGAIN && !readable(timevisor_subscription_fd(arrival), 0));
    FAILS(timevisor_subscription_next(arrival, MS, NULL), ETIMEDOUT, "in time");
    CHECK(timevisor_group_publish(a, "poses", "x", 1) == 0);
    CHECK(readable(timevisor_subscription_fd(arrival), 60000) && timevisor_subscription_on_ready(arrival, &message) == 0);
    CHECK(timevisor_subscription_dropped(arrival) == 0);

    CHECK(timevisor_group_publish(a, "big", big, sizeof big - 1) == 0);
    FAILS(timevisor_group_publish(a, "big", big, sizeof big), EMSGSIZE, "publish it in parts");
    FAILS(timevisor_group_publish(a, "no topic", big, 1), EINVAL, "cannot be a name");
    FAILS(timevisor_group_publish(a, "big", NULL, 1), EINVAL, "payload is NULL");
    timevisor_subscription_free(in_time);
    FAILS(timevisor_group_subscribe(a, "t", 7, 0, 0, &in_time), EINVAL, "timevisor_order");
    CHECK(in_time == NULL);
    timevisor_subscription_free(arrival);
    timevisor_group_leave(a);
    timevisor_group_leave(b);
}

static void *at_the_barrier(void *group) {
    CHECK(timevisor_group_barrier(group, "start", 2, LONG_, NULL) == 0);
    return NULL;
}

static void two_meet_and_one_leads(void) {
    static const char *const voters[] = {"a", "b"};
    timevisor_report report = TIMEVISOR_REPORT_INIT;
    timevisor_group_watch *watch;
    timevisor_group *a, *b;
    int64_t late_ns = -1;
    pthread_t thread;

    both("meet", &a, &b);
    CHECK(pthread_create(&thread, NULL, at_the_barrier, b) == 0);
    CHECK(timevisor_group_barrier(a, "start", 2, LONG_, &late_ns) == 0 && late_ns >= 0);
    CHECK(pthread_join(thread, NULL) == 0);
    FAILS(timevisor_group_barrier(a, "start", 2, 50 * MS, NULL), ETIMEDOUT, "in time");

    CHECK(timevisor_group_watch_start(a, &watch) == 0);
    CHECK(timevisor_group_stand(a, "chief", voters, 2, SECOND) == 0);
    do CHECK(timevisor_group_watch_next(watch, LONG_, &report) == 0);
    while (report.kind != TIMEVISOR_REPORT_KIND_LEADS);
    CHECK(strcmp(report.subject, "chief") == 0 && report.ns > 0);
    CHECK(timevisor_group_leads(a, "chief") == 1 && timevisor_group_leads(b, "chief") == 0);
    CHECK(timevisor_group_resign(a, "chief") == 0 && timevisor_group_leads(a, "chief") == 0);
    FAILS(timevisor_group_stand(a, "chief", NULL, 0, SECOND), EINVAL, "needs voters");
    timevisor_group_watch_free(watch);
    timevisor_group_leave(a);
    timevisor_group_leave(b);
}

static void until(timevisor_proposals *proposals, int kind, timevisor_proposed *proposed) {
    do CHECK(timevisor_proposals_next(proposals, LONG_, proposed) == 0);
    while (proposed->kind != kind);
}

static void all_fire_or_nobody(void) {
    timevisor_propose_options options = TIMEVISOR_PROPOSE_OPTIONS_INIT;
    timevisor_group_outcome outcome = TIMEVISOR_GROUP_OUTCOME_INIT;
    timevisor_proposed proposed = TIMEVISOR_PROPOSED_INIT;
    timevisor_part part = TIMEVISOR_PART_INIT;
    const char *names[] = {"a", "b"};
    timevisor_proposals *of_b;
    timevisor_pending *pending;
    timevisor_group *a, *b;
    int64_t at_ns;

    both("fire", &a, &b);
    CHECK(timevisor_group_proposals(b, &of_b) == 0);
    at_ns = in_a_second();
    options.late_at_most_ns = SECOND;
    CHECK(timevisor_group_propose(a, at_ns, "grip", 4, &options, &pending) == 0);
    CHECK(timevisor_pending_decided(pending, LONG_) == 1);
    CHECK(timevisor_pending_wait(pending, LONG_, &outcome) == 0);
    CHECK(outcome.agreed == TIMEVISOR_AGREEMENT_ALL && outcome.fired == 2 && outcome.quiet == 0 && outcome.unknown == 0);
    CHECK(timevisor_pending_part(pending, 1, &part) == 0 && strcmp(part.name, "b") == 0);
    CHECK(part.kind == TIMEVISOR_PART_KIND_FIRED && part.latest_ns >= at_ns && part.earliest_ns <= part.latest_ns);
    FAILS(timevisor_pending_part(pending, 2, &part), ENOENT, "has 2 members");
    timevisor_pending_free(pending);
    until(of_b, TIMEVISOR_PROPOSED_KIND_FIRE, &proposed);
    CHECK(proposed.length == 4 && memcmp(proposed.payload, "grip", 4) == 0 && proposed.latest_ns >= at_ns);
    CHECK(strcmp(proposed.proposer, "a") == 0);
    FAILS(timevisor_proposals_part(of_b, 0, &part), ENOENT, "no outcome");
    do until(of_b, TIMEVISOR_PROPOSED_KIND_OUTCOME, &proposed);
    while (proposed.agreed != TIMEVISOR_AGREEMENT_ALL);
    CHECK(proposed.parts == 2 && timevisor_proposals_part(of_b, 0, &part) == 0 && strcmp(part.name, "a") == 0);

    /* b is asked, and refuses. */
    CHECK(timevisor_group_accept(b, TIMEVISOR_ACCEPT_ASK) == 0);
    options.names = names;
    options.count = 2;
    options.late_at_most_ns = 5 * MS;
    CHECK(timevisor_group_propose(a, in_a_second() + SECOND, NULL, 0, &options, &pending) == 0);
    FAILS(timevisor_pending_part(pending, 0, &part), ENOENT, "wait for one");
    until(of_b, TIMEVISOR_PROPOSED_KIND_ASKED, &proposed);
    CHECK(proposed.late_ns == 5 * MS && proposed.length == 0 && proposed.at_ns > at_ns);
    CHECK(timevisor_group_answer(b, &proposed, 0) == 0);
    CHECK(timevisor_pending_decided(pending, LONG_) == 0);
    CHECK(timevisor_pending_wait(pending, LONG_, &outcome) == 0 && outcome.fired == 0);
    timevisor_pending_free(pending);
    CHECK(readable(timevisor_proposals_fd(of_b), 60000) && timevisor_proposals_on_ready(of_b, &proposed) == 0);

    FAILS(timevisor_group_propose(a, at_ns, NULL, 0, NULL, &pending), ETIME, "too close");
    CHECK(pending == NULL);
    names[1] = "c";
    FAILS(timevisor_group_propose(a, in_a_second(), NULL, 0, &options, &pending), ENOENT, "called \"c\"");
    FAILS(timevisor_group_accept(a, 9), EINVAL, "timevisor_accept");
    timevisor_proposals_free(of_b);
    timevisor_group_leave(a);
    timevisor_group_leave(b);
}

/* A child is no member, and takes nothing from its parent's queues. */
static void a_fork_is_no_member(void) {
    timevisor_message message = TIMEVISOR_MESSAGE_INIT;
    timevisor_subscription *messages;
    timevisor_pending *pending;
    timevisor_group *a, *b;
    struct pollfd ready;
    int status;
    pid_t child;

    both("forked", &a, &b);
    CHECK(timevisor_group_subscribe(a, "t", TIMEVISOR_ORDER_ARRIVAL, 0, 0, &messages) == 0);
    CHECK(timevisor_group_propose(a, in_a_second() + 100 * SECOND, NULL, 0, NULL, &pending) == 0);
    CHECK(timevisor_group_publish(a, "t", "1", 1) == 0);
    ready.fd = timevisor_subscription_fd(messages);
    ready.events = POLLIN;
    CHECK(poll(&ready, 1, 60000) == 1);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(timevisor_subscription_next(messages, 0, &message), ENOTCONN, "join again");
        FAILS(timevisor_subscription_on_ready(messages, &message), ENOTCONN, "join again");
        FAILS(timevisor_pending_wait(pending, 0, NULL), ENOTCONN, "join again");
        FAILS(timevisor_pending_decided(pending, 0), ENOTCONN, "join again");
        FAILS(timevisor_group_wait_for(a, 2, 0), ENOTCONN, "connect again");
        timevisor_subscription_free(messages);
        timevisor_pending_free(pending);
        timevisor_group_leave(a);
        timevisor_group_leave(b);
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(timevisor_subscription_next(messages, LONG_, &message) == 0 && message.length == 1);
    timevisor_subscription_free(messages);
    timevisor_pending_free(pending);
    timevisor_group_leave(a);
    timevisor_group_leave(b);
}

static void who_cannot_join_is_told_why(const char *key_socket, const char *key) {
    timevisor_join_options options = TIMEVISOR_JOIN_OPTIONS_INIT;
    timevisor_group *a, *b;

    a = join("errors", "a");
    options.bus = socket_;
    FAILS(timevisor_group_join_on(tai, "errors", "a", &options, &b), EEXIST, "a member called a is in group errors");
    CHECK(b == NULL);
    FAILS(timevisor_group_join_on(tai, "errors", "no name", &options, &b), EINVAL, "cannot be a name");
    options.key = "no key";
    FAILS(timevisor_group_join_on(tai, "errors", "b", &options, &b), EINVAL, "timevisor cluster key");
    options.key = NULL;
    options.timeline = "tai";
    FAILS(timevisor_group_join_on(tai, "errors", "b", &options, &b), EINVAL, "options.timeline must be NULL");
    options.timeline = NULL;
    options.bus = "/nowhere/socket";
    FAILS(timevisor_group_join_on(tai, "errors", "b", &options, &b), ENOTCONN, "start timevisor-bus");
    timevisor_group_leave(a);
    timevisor_group_leave(NULL);
    FAILS(timevisor_group_wait_for(NULL, 1, 0), EINVAL, "group is NULL");

    options.bus = key_socket;
    FAILS(timevisor_group_join_on(tai, "cell7", "a", &options, &a), EACCES, "the key of group cell7 does not match");
    options.key = key;
    CHECK(timevisor_group_join_on(tai, "cell7", "a", &options, &a) == 0);
    timevisor_group_leave(a);
}

/* A bus of this process: no file, no other program. */
static void a_bus_in_memory_cuts_and_heals(void) {
    timevisor_manual_bus *bus;
    timevisor_group *a, *b;
    timevisor_join_options options = TIMEVISOR_JOIN_OPTIONS_INIT;

    CHECK(timevisor_manual_bus_new(&bus) == 0);
    options.manual_bus = bus;
    options.lease_ns = SECOND / 2;
    options.bus = socket_;
    FAILS(timevisor_group_join_on(tai, "memory", "a", &options, &a), EINVAL, "where manual_bus is given");
    options.bus = NULL;
    CHECK(timevisor_group_join_on(tai, "memory", "a", &options, &a) == 0);
    CHECK(timevisor_group_join_on(tai, "memory", "b", &options, &b) == 0);
    CHECK(timevisor_group_wait_for(a, 2, 20 * SECOND) == 0);
    CHECK(timevisor_manual_bus_delay(bus, 1000000) == 0 && timevisor_manual_bus_lose(bus, 10, 7) == 0);
    CHECK(timevisor_manual_bus_cut(bus, "b") == 0);
    CHECK(timevisor_manual_bus_delay(bus, -1) == -EINVAL && timevisor_manual_bus_cut(bus, NULL) == -EINVAL);
    timevisor_member_list *members;
    for (size_t count = 2; count != 1;) {
        CHECK(timevisor_group_members(a, &members) == 0);
        count = timevisor_member_list_count(members);
        timevisor_member_list_free(members);
        CHECK(nanosleep(&(struct timespec){0, 10 * MS}, NULL) == 0);
    }
    CHECK(timevisor_manual_bus_heal(bus) == 0 && timevisor_manual_bus_restart(bus) == 0);
    CHECK(timevisor_group_wait_for(b, 2, 20 * SECOND) == 0);
    timevisor_manual_bus_free(bus);
    CHECK(timevisor_group_wait_for(a, 2, 20 * SECOND) == 0);
    timevisor_group_leave(b);
    timevisor_group_leave(a);
}

int main(int argc, char **argv) {
    pthread_t driver;

    CHECK(argc == 4);
    socket_ = argv[1];
    CHECK(timevisor_manual_new(TIMEVISOR_TIMESCALE_TAI, 1000 * SECOND, &clock_) == 0);
    CHECK(timevisor_manual_set_error(clock_, 50000) == 0);
    CHECK(timevisor_manual_timeline(clock_, &tai) == 0);
    CHECK(pthread_create(&driver, NULL, drive, NULL) == 0);
    members_come_and_go();
    messages_come_in_both_orders();
    two_meet_and_one_leads();
    all_fire_or_nobody();
    a_fork_is_no_member();
    a_bus_in_memory_cuts_and_heals();
    who_cannot_join_is_told_why(argv[2], argv[3]);
    __atomic_store_n(&stops, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(driver, NULL) == 0);
    timevisor_timeline_free(tai);
    timevisor_manual_free(clock_);
    return 0;
}
