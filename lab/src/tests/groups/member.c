/* A member of group cell7 that fires whatever is proposed, and says so: member NAME BUS AUTHORITY KEY
 *
 * A line for each fire: fire PAYLOAD EARLIEST LATEST LATE, in ns. It ends when the member called host has gone. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <timevisor.h>

#define SECOND 1000000000LL

static int failed(const char *what, int code) {
    printf("%s: %s: %s\n", what, timevisor_strerror(code), timevisor_last_error());
    return 1;
}

int main(int argc, char **argv) {
    timevisor_join_options join = TIMEVISOR_JOIN_OPTIONS_INIT;
    timevisor_proposed event = TIMEVISOR_PROPOSED_INIT;
    timevisor_report report = TIMEVISOR_REPORT_INIT;
    timevisor_client *client;
    timevisor_group *group;
    timevisor_proposals *proposals;
    timevisor_group_watch *reports;
    int code, gone = 0;

    if (argc != 5) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if ((code = timevisor_connect(NULL, &client)) < 0) return failed("connect", code);
    join.bus = argv[2];
    join.authority = argv[3];
    join.key = argv[4];
    if ((code = timevisor_group_join(client, "cell7", argv[1], &join, &group)) < 0) return failed("join", code);
    if ((code = timevisor_group_proposals(group, &proposals)) < 0) return failed("proposals", code);
    if ((code = timevisor_group_watch_start(group, &reports)) < 0) return failed("watch", code);
    timevisor_group_accept(group, TIMEVISOR_ACCEPT_ALL);
    printf("joined\n");
    while (!gone) {
        code = timevisor_proposals_next(proposals, SECOND, &event);
        if (code == 0 && event.kind == TIMEVISOR_PROPOSED_KIND_FIRE)
            printf("fire %.*s %" PRId64 " %" PRId64 " %" PRId64 "\n", (int)event.length, (const char *)event.payload,
                   event.earliest_ns, event.latest_ns, event.late_ns);
        while (timevisor_group_watch_on_ready(reports, &report) == 0)
            if (report.kind == TIMEVISOR_REPORT_KIND_GONE && strcmp(report.member, "host") == 0) gone = 1;
    }
    timevisor_group_watch_free(reports);
    timevisor_proposals_free(proposals);
    timevisor_group_leave(group);
    timevisor_client_free(client);
    return 0;
}
