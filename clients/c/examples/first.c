/* The first program: bind, read, wait. The same in every language, on a host, in a container and in a guest.
 *
 * first [PAGE [CHANNEL]] */
#include <inttypes.h>
#include <stdio.h>
#include <timevisor.h>

static int failed(const char *what, int code) {
    fprintf(stderr, "%s: %s: %s\n", what, timevisor_strerror(code), timevisor_last_error());
    return 1;
}

int main(int argc, char **argv) {
    timevisor_options options = TIMEVISOR_OPTIONS_INIT;
    timevisor_requirement within = timevisor_within(1000000000);
    timevisor_reading now = TIMEVISOR_READING_INIT;
    timevisor_waited waited = TIMEVISOR_WAITED_INIT;
    timevisor_client *client;
    timevisor_timeline *tai;
    char where[1024];
    int code;

    if (argc > 1) options.page = argv[1];
    if (argc > 2) options.channel = argv[2];
    if ((code = timevisor_connect(&options, &client)) < 0) return failed("connect", code);
    timevisor_client_describe(client, where, sizeof where);
    printf("%s", where);

    if ((code = timevisor_bind(client, "tai", &within, NULL, &tai)) < 0) return failed("bind", code);
    if ((code = timevisor_now(tai, &now)) < 0) return failed("now", code);
    printf("earliest  %" PRId64 " ns\n", now.earliest_ns);
    printf("estimate  %" PRId64 " ns\n", now.estimate_ns);
    printf("latest    %" PRId64 " ns\n", now.latest_ns);
    printf("status    %s\n", timevisor_status_name(now.status));
    printf("met       %s\n", now.met ? "true" : "false");

    code = timevisor_wait_past(tai, now.estimate_ns + 10000000, &waited);
    if (code < 0) return failed("wait", code);
    printf("lateness  %" PRId64 " ns\n", waited.lateness_ns);

    timevisor_timeline_free(tai);
    timevisor_client_free(client);
    return 0;
}
