#include "guest.h"

#include <string.h>

enum { COM1 = 0x3f8, DATA = 0, INTERRUPTS = 1, LINE = 3, STATUS = 5 };

static void out(uint16_t port, uint8_t value)
{
	__asm volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static uint8_t in(uint16_t port)
{
	uint8_t value;

	__asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

void serial_start(void)
{
	out(COM1 + INTERRUPTS, 0);
	out(COM1 + LINE, 0x80); /* the divisor's registers: 115200 */
	out(COM1 + DATA, 1);
	out(COM1 + INTERRUPTS, 0);
	out(COM1 + LINE, 3); /* 8 bits, no parity */
	/* The old interrupt controllers: nobody here serves them. */
	out(0x21, 0xff);
	out(0xa1, 0xff);
}

char serial_get(void)
{
	while (!(in(COM1 + STATUS) & 1))
		__asm volatile("pause");
	return (char)in(COM1 + DATA);
}

void put(const char *text)
{
	for (; *text; text++) {
		while (!(in(COM1 + STATUS) & 0x20))
			__asm volatile("pause");
		out(COM1 + DATA, (uint8_t)*text);
	}
}

void put_number(uint32_t number)
{
	char text[11] = { 0 };
	unsigned at = 10;

	do
		text[--at] = (char)('0' + number % 10);
	while (number /= 10);
	put(text + at);
}

void put_hex(uint64_t number)
{
	for (int shift = 60; shift >= 0; shift -= 4) {
		char digit[2] = { "0123456789abcdef"[number >> shift & 15], 0 };

		put(digit);
	}
}

void log_start(struct log *log, uint32_t who)
{
	log->who = who;
	log->count = 0;
	log->hash = 0xcbf29ce484222325u;
}

static void log_word(struct log *log, uint32_t word)
{
	for (unsigned shift = 0; shift < 32; shift += 8) {
		log->hash ^= word >> shift & 0xff;
		log->hash *= 0x100000001b3u;
	}
}

void log_words(struct log *log, char kind, const uint32_t *words, unsigned count)
{
	log_word(log, (uint32_t)kind);
	for (unsigned n = 0; n < count; n++)
		log_word(log, words[n]);
	log->count++;
}

void log_call(struct log *log, char kind, uint32_t first, uint32_t second)
{
	const uint32_t words[2] = { first, second };

	log_words(log, kind, words, 2);
}

void log_put(const struct log *log)
{
	put("LOG ");
	put_number(log->who);
	put(" ");
	put_number(log->count);
	put(" ");
	put_hex(log->hash);
	put("\n");
}

void *memset(void *to, int value, size_t size)
{
	for (uint8_t *at = to; size--; at++)
		*at = (uint8_t)value;
	return to;
}

void *memcpy(void *to, const void *from, size_t size)
{
	uint8_t *at = to;

	for (const uint8_t *source = from; size--; source++)
		*at++ = *source;
	return to;
}
