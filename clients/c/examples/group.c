/* Act together: join a group, wait for another member, propose a time, print who fired.
 *
 * group NAME [PAGE [CHANNEL]]
 *
 * Run it twice, as `left` and as `right`. It needs timevisord and timevisor-bus (docs/how-to/act-together.md). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <timevisor.h>

#define SECOND 1000000000

static int failed(const char *what, int code) {
    fprintf(stderr, "%s: %s: %s\n", what, timevisor_strerror(code), timevisor_last_error());
    return 1;
}

/* A second from now, all that are there. They may be late by 250 ms. */
static int propose(const timevisor_client *client, const timevisor_group *group) {
    static const char payload[] = "grip the part";
    timevisor_propose_options options = TIMEVISOR_PROPOSE_OPTIONS_INIT;
    timevisor_reading now = TIMEVISOR_READING_INIT;
    timevisor_timeline *tai;
    timevisor_pending *pending;
    int code;

    if ((code = timevisor_timeline_open(client, "tai", &tai)) < 0) return code;
    code = timevisor_now(tai, &now);
    timevisor_timeline_free(tai);
    if (code < 0) return code;
    options.late_at_most_ns = SECOND / 4;
    code = timevisor_group_propose(group, now.latest_ns + SECOND, payload, sizeof payload - 1, &options, &pending);
    timevisor_pending_free(pending);
    return code;
}

int main(int argc, char **argv) {
    const char *const both[] = {"left", "right"};
    timevisor_options options = TIMEVISOR_OPTIONS_INIT;
    timevisor_join_options join = TIMEVISOR_JOIN_OPTIONS_INIT;
    timevisor_requirement within = timevisor_within(SECOND);
    timevisor_proposed event = TIMEVISOR_PROPOSED_INIT;
    timevisor_part part = TIMEVISOR_PART_INIT;
    timevisor_client *client;
    timevisor_group *group;
    timevisor_proposals *proposals;
    uint64_t index;
    int code;

    if (argc < 2) return fprintf(stderr, "usage: group NAME [PAGE [CHANNEL]]\n"), 2;
    if (argc > 2) options.page = argv[2];
    if (argc > 3) options.channel = argv[3];
    if ((code = timevisor_connect(&options, &client)) < 0) return failed("connect", code);
    join.requirement = &within;
    if ((code = timevisor_group_join(client, "cell7", argv[1], &join, &group)) < 0) return failed("join", code);
    timevisor_group_accept(group, TIMEVISOR_ACCEPT_ALL);
    if ((code = timevisor_group_proposals(group, &proposals)) < 0) return failed("proposals", code);
    code = timevisor_group_wait_for_names(group, both, 2, 30LL * SECOND);
    if (code < 0) return failed("wait for left and right", code);
    /* Both have an inbox for proposals from here on. */
    code = timevisor_group_barrier(group, "ready", 2, 30LL * SECOND, NULL);
    if (code < 0) return failed("barrier", code);
    if (strcmp(argv[1], "left") == 0 && (code = propose(client, group)) < 0) return failed("propose", code);

    while ((code = timevisor_proposals_next(proposals, 30LL * SECOND, &event)) == 0) {
        if (event.kind == TIMEVISOR_PROPOSED_KIND_FIRE)
            printf("fire      %.*s at %" PRId64 " to %" PRId64 " ns\n", (int)event.length, (const char *)event.payload,
                   event.earliest_ns, event.latest_ns);
        if (event.kind != TIMEVISOR_PROPOSED_KIND_OUTCOME || event.agreed == TIMEVISOR_AGREEMENT_OPEN) continue;
        printf("fired    ");
        for (index = 0; index < event.parts; index++) {
            timevisor_proposals_part(proposals, index, &part);
            if (part.kind == TIMEVISOR_PART_KIND_FIRED) printf(" %s", part.name);
        }
        printf("\n");
        break;
    }
    if (code < 0) return failed("wait for the outcome", code);
    timevisor_proposals_free(proposals);
    timevisor_group_leave(group);
    timevisor_client_free(client);
    return 0;
}
