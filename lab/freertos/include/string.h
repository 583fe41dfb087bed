/* What FreeRTOS and compilers need of the C library's header; guest.c has them. */
#ifndef STRING_H
#define STRING_H
#include <stddef.h>
void *memset(void *to, int value, size_t size);
void *memcpy(void *to, const void *from, size_t size);
#endif
