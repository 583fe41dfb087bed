/* Requirements, against a running timevisord: bound PAGE CHANNEL */
#include <errno.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void no_vm(timevisor_client *client) {
    timevisor_host_cpu_time time = TIMEVISOR_HOST_CPU_TIME_INIT;

    /* This is a host. */
    FAILS(timevisor_read_host_cpu_time(client, 0, &time), ENODATA, "vCPU 0");
    FAILS(timevisor_read_host_cpu_time(client, SIZE_MAX, &time), ENODATA, "timevisor vm list");
    CHECK(timevisor_read_notice(client) == TIMEVISOR_NOTICE_NONE);
    FAILS(timevisor_read_notice(NULL), EINVAL, "client");
    FAILS(timevisor_read_vm_generation(client, NULL), ENODATA, "vmclock device");
}

static void refused(timevisor_client *client) {
    timevisor_requirement impossible = timevisor_within(1), within = timevisor_within(1000000000);
    timevisor_bind_options options = TIMEVISOR_BIND_OPTIONS_INIT;
    timevisor_achieved achieved = TIMEVISOR_ACHIEVED_INIT;
    timevisor_timeline *timeline;

    options.achieved = &achieved;
    FAILS(timevisor_bind(client, "tai", &impossible, &options, &timeline), ERANGE, "cannot be met");
    CHECK(timeline == NULL);
    CHECK(achieved.below_ns > 1 && achieved.below_ns < TIMEVISOR_UNKNOWN_NS);
    CHECK(achieved.above_ns > 1 && achieved.resolution_ns >= 1);
    FAILS(timevisor_bind(client, "no.such", &within, NULL, &timeline), ENOENT, "no.such");
    FAILS(timevisor_bind(client, "a name", &within, NULL, &timeline), EINVAL, "name");
    FAILS(timevisor_timeline_open(client, "no.such", &timeline), ENOENT, "no.such");
    options.achieved = NULL;
    options.best_effort = 1;
    CHECK(timevisor_bind(client, "tai", &impossible, &options, &timeline) == 0);
    timevisor_timeline_free(timeline);
}

static void changed(timevisor_client *client) {
    timevisor_requirement within = timevisor_within(1000000000), impossible = timevisor_within(1);
    timevisor_bind_options options = TIMEVISOR_BIND_OPTIONS_INIT;
    timevisor_achieved achieved = TIMEVISOR_ACHIEVED_INIT, refused = TIMEVISOR_ACHIEVED_INIT;
    timevisor_reading now = TIMEVISOR_READING_INIT;
    timevisor_timeline *tai;

    CHECK(timevisor_bind(client, "tai", &within, NULL, &tai) == 0);
    CHECK(timevisor_timeline_lease(tai) == 0);
    CHECK(timevisor_timeline_timescale(tai) == TIMEVISOR_TIMESCALE_TAI);
    CHECK(timevisor_timeline_achieved(tai, &achieved) == 0);
    CHECK(achieved.below_ns > 0 && achieved.below_ns < 1000000000);
    CHECK(timevisor_now(tai, &now) == 0 && now.met == 1 && now.earliest_ns < now.estimate_ns);
    CHECK(now.timescale == TIMEVISOR_TIMESCALE_TAI && now.estimate_ns > 1700000000000000000);

    options.achieved = &refused;
    FAILS(timevisor_update(tai, &impossible, &options), ERANGE, "cannot be met");
    CHECK(refused.below_ns > 1);
    CHECK(timevisor_now(tai, &now) == 0 && now.met == 1); /* the old one stays in force */
    options.best_effort = 1;
    CHECK(timevisor_update(tai, &impossible, &options) == 0);
    CHECK(timevisor_now(tai, &now) == 0 && now.met == 0);
    options.create = 1;
    FAILS(timevisor_update(tai, &within, &options), EINVAL, "create");
    CHECK(timevisor_update(tai, NULL, NULL) == 0);
    CHECK(timevisor_now(tai, &now) == 0 && now.met == 1);

    CHECK(timevisor_unbind(tai) == 0);
    FAILS(timevisor_unbind(tai), EINVAL, "not bound");
    FAILS(timevisor_update(tai, &within, NULL), EINVAL, "not bound");
    CHECK(timevisor_now(tai, &now) == 0); /* reading goes on: tai is always there */
    timevisor_timeline_free(tai);
}

static void listed(timevisor_client *client) {
    timevisor_requirement within = timevisor_within(123456789), required = TIMEVISOR_REQUIREMENT_INIT;
    timevisor_timeline_row row = TIMEVISOR_TIMELINE_ROW_INIT;
    timevisor_achieved achieved = TIMEVISOR_ACHIEVED_INIT;
    timevisor_timeline_list *list;
    timevisor_timeline *tai;
    size_t i, found = 0;

    row.required = &required;
    row.achieved = &achieved;
    within.probability = 0.75;
    CHECK(timevisor_bind(client, "tai", &within, NULL, &tai) == 0);
    CHECK(timevisor_timelines(client, &list) == 0);
    for (i = 0; timevisor_timeline_list_get(list, i, &row) == 0; i++) {
        CHECK(row.temporary == 0);
        if (strcmp(row.name, "tai") != 0) continue;
        found++;
        CHECK(row.timescale == TIMEVISOR_TIMESCALE_TAI && row.members == 1);
        CHECK(required.below_ns == 123456789 && required.above_ns == 123456789 && required.probability == 0.75);
        CHECK(achieved.above_ns > 0 && achieved.above_ns < TIMEVISOR_UNKNOWN_NS);
    }
    CHECK(found == 1 && i == timevisor_timeline_list_count(list) && i >= 2);
    FAILS(timevisor_timeline_list_get(list, i, &row), ENOENT, "index");
    timevisor_timeline_list_free(list);
    timevisor_timeline_free(tai);
}

/* A timeline of our own: starts at 0, and is gone when nobody is bound to it. */
static void created(timevisor_client *client) {
    timevisor_bind_options options = TIMEVISOR_BIND_OPTIONS_INIT;
    timevisor_reading now = TIMEVISOR_READING_INIT;
    timevisor_timeline *ours, *tai;

    options.create = 1;
    options.timescale = TIMEVISOR_TIMESCALE_LOCAL;
    CHECK(timevisor_bind(client, "ours", NULL, &options, &ours) == 0);
    CHECK(timevisor_timeline_timescale(ours) == TIMEVISOR_TIMESCALE_LOCAL);
    CHECK(timevisor_now(ours, &now) == 0 && now.timescale == TIMEVISOR_TIMESCALE_LOCAL);
    CHECK(now.estimate_ns >= 0 && now.estimate_ns < 60000000000);
    options.timescale = TIMEVISOR_TIMESCALE_TAI;
    FAILS(timevisor_bind(client, "ours", NULL, &options, &tai), EEXIST, "ours");
    options.timescale = 3;
    FAILS(timevisor_bind(client, "ours", NULL, &options, &tai), EINVAL, "timevisor_timescale");
    CHECK(timevisor_unbind(ours) == 0);
    FAILS(timevisor_bind(client, "ours", NULL, NULL, &tai), ENOENT, "ours");
    timevisor_timeline_free(ours);
}

static void waited_for(timevisor_client *client) {
    timevisor_reading now = TIMEVISOR_READING_INIT, then = TIMEVISOR_READING_INIT;
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    timevisor_wait_handle *wait;
    timevisor_timeline *tai;
    struct pollfd poll_fd = {-1, POLLIN, 0};
    int code, polls = 0;

    waited.reading = &then;
    CHECK(timevisor_timeline_open(client, "tai", &tai) == 0);
    CHECK(timevisor_now(tai, &now) == 0);
    CHECK(timevisor_wait_start(tai, TIMEVISOR_WHEN_UNTIL, now.estimate_ns + 50000000, 0, &wait) == 0);
    timevisor_timeline_free(tai);
    poll_fd.fd = timevisor_wait_fd(wait);
    while ((code = timevisor_wait_on_ready(wait, &waited)) == -EAGAIN) {
        CHECK(poll(&poll_fd, 1, 60000) == 1);
        polls++;
    }
    CHECK(code == 0 && waited.lateness_ns >= 0 && polls < 100);
    CHECK(then.estimate_ns == now.estimate_ns + 50000000 + waited.lateness_ns);
    timevisor_wait_free(wait);
}

/* The child has no thread that serves the channel. It reads, is told so where it cannot bind, and ends. */
static void forked(timevisor_client *client, char **argv) {
    timevisor_options options = TIMEVISOR_OPTIONS_INIT;
    timevisor_reading now = TIMEVISOR_READING_INIT;
    timevisor_timeline *tai, *other;
    timevisor_client *own;
    int status;
    pid_t child;

    CHECK(timevisor_bind(client, "tai", NULL, NULL, &tai) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(timevisor_now(tai, &now) == 0 && now.known == 1);
        FAILS(timevisor_bind(client, "tai", NULL, NULL, &other), ENOTCONN, "connect again");
        FAILS(timevisor_update(tai, NULL, NULL), ENOTCONN, "connect again");
        FAILS(timevisor_unbind(tai), ENOTCONN, "connect again");
        timevisor_timeline_free(tai);
        timevisor_client_free(client);
        options.page = argv[1];
        options.channel = argv[2];
        CHECK(timevisor_connect(&options, &own) == 0);
        CHECK(timevisor_bind(own, "tai", NULL, NULL, &tai) == 0 && timevisor_unbind(tai) == 0);
        timevisor_timeline_free(tai);
        timevisor_client_free(own);
        _exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(timevisor_timeline_lease(tai) == 0); /* the child's frees did nothing to the parent's */
    CHECK(timevisor_update(tai, NULL, NULL) == 0);
    timevisor_timeline_free(tai);
}

int main(int argc, char **argv) {
    timevisor_options options = TIMEVISOR_OPTIONS_INIT;
    timevisor_requirement within = timevisor_within(1000000000);
    timevisor_client *client;
    timevisor_timeline *tai;
    char text[512], start[5];
    int length;

    CHECK(argc == 3);
    options.page = argv[1];
    options.channel = "/nonexistent/timelines";
    options.name = "bound";
    CHECK(timevisor_connect(&options, &client) == 0);
    FAILS(timevisor_bind(client, "tai", &within, NULL, &tai), ENOTCONN, "/nonexistent/timelines");
    timevisor_client_free(client);

    options.channel = argv[2];
    CHECK(timevisor_connect(&options, &client) == 0);
    CHECK(strcmp(timevisor_client_page(client), argv[1]) == 0);
    no_vm(client);
    refused(client);
    changed(client);
    listed(client);
    created(client);
    waited_for(client);
    forked(client, argv);
    length = timevisor_client_describe(client, text, sizeof text);
    CHECK(length > 0 && length == (int)strlen(text));
    CHECK(strstr(text, argv[1]) != NULL && strstr(text, argv[2]) != NULL && strstr(text, "uid:") != NULL);
    CHECK(timevisor_client_describe(client, start, sizeof start) == length && strcmp(start, "page") == 0);
    CHECK(timevisor_client_describe(client, NULL, 0) == length);
    /* The client first: its timelines go on. */
    CHECK(timevisor_bind(client, "tai", &within, NULL, &tai) == 0);
    timevisor_client_free(client);
    CHECK(timevisor_update(tai, NULL, NULL) == 0);
    timevisor_timeline_free(tai);
    return 0;
}
