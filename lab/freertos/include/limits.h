/* What FreeRTOS's port needs of the C library's header. */
#ifndef LIMITS_H
#define LIMITS_H
#define USHRT_MAX 65535
#endif
