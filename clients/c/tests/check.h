/* For the test programs: what must hold, or the program ends with the place and the library's words. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <timevisor.h>

#define CHECK(condition)                                                                                                    \
    do {                                                                                                                    \
        if (!(condition)) {                                                                                                 \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, timevisor_last_error()); \
            exit(1);                                                                                                        \
        }                                                                                                                   \
    } while (0)

/* The code, and a text that says so. */
#define FAILS(call, code, words)                               \
    do {                                                       \
        CHECK((call) == -(code));                              \
        CHECK(strstr(timevisor_last_error(), words) != NULL);  \
    } while (0)

#endif
