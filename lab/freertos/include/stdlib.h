/* What FreeRTOS needs of the C library's header. */
#ifndef STDLIB_H
#define STDLIB_H
#include <stddef.h>
#endif
