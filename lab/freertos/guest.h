/* What both guest programs need of the machine: a serial port, and a log of what they did that can be compared in one word. */
#ifndef GUEST_H
#define GUEST_H

#include <stdint.h>

void serial_start(void);
char serial_get(void);
void put(const char *text);
void put_number(uint32_t number);
void put_hex(uint64_t number);

/* Calls of one task or segment, in their order. */
struct log {
	uint32_t who;
	uint32_t count;
	uint64_t hash; /* FNV-1a of every call's words, little endian */
};

void log_start(struct log *log, uint32_t who);
void log_call(struct log *log, char kind, uint32_t first, uint32_t second);
/* A call with another number of arguments. */
void log_words(struct log *log, char kind, const uint32_t *words, unsigned count);
/* LOG who count hash */
void log_put(const struct log *log);

#endif
