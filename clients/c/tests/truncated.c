/* A page file that is truncated under its readers: truncated PAGE, a copy that nobody else uses */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "check.h"

static volatile sig_atomic_t theirs;

static void sent(int number) {
    (void)number;
    theirs = 1;
}

int main(int count, char **words) {
    timevisor_options options = TIMEVISOR_OPTIONS_INIT;
    timevisor_reading now = TIMEVISOR_READING_INIT;
    struct sigaction action;
    timevisor_client *client;
    timevisor_timeline *tai;
    int turn;

    CHECK(count == 2);
    memset(&action, 0, sizeof action);
    action.sa_handler = sent;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    options.page = words[1];
    CHECK(timevisor_connect(&options, &client) == 0);
    CHECK(timevisor_survive_truncation() == 0); /* any number of times */
    CHECK(timevisor_timeline_open(client, "tai", &tai) == 0);
    CHECK(timevisor_now(tai, &now) == 0 && now.known == 1);
    CHECK(truncate(words[1], 0) == 0);
    for (turn = 0; turn < 3; turn++) {
        FAILS(timevisor_now(tai, &now), ENXIO, "truncated");
        FAILS(timevisor_observe(tai), ENXIO, "truncated");
    }
    /* What is not ours reaches the handler that was there before. */
    CHECK(theirs == 0);
    CHECK(raise(SIGBUS) == 0);
    CHECK(theirs == 1);
    timevisor_timeline_free(tai);
    timevisor_client_free(client);
    return 0;
}
