/* Time, memory and interrupts for brickOS. */
#include "port.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/critsec.h>
#include <sys/mm.h>
#include <sys/time.h>

#include "guest.h"

enum { MASTER = 0x20, SLAVE = 0xa0, TIMER = 0x40, TIMER_HZ = 1193182 };
enum { VECTORS = 48, FIRST_INTERRUPT = 32, CODE = 0x08 };

static inline void out(uint16_t port, uint8_t value)
{
	__asm volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

/* Time, as in brickOS's kernel/systime.c. */

volatile unsigned char tm_timeslice = TM_DEFAULT_SLICE;
void *tm_switcher_vector = rom_dummy_handler;
atomic_t kernel_critsec_count;
static volatile unsigned char slice_left = TM_DEFAULT_SLICE;
static volatile time_t up_time;

time_t get_system_up_time(void)
{
	return up_time;
}

void systime_set_switcher(void *switcher)
{
	tm_switcher_vector = switcher;
}

void systime_set_timeslice(unsigned char slice)
{
	tm_timeslice = slice;
}

/* Both are called by port.S. */
bool port_tick(void);
void port_new_slice(void);

bool port_tick(void)
{
	out(MASTER, 0x20);
	up_time++;
	if (--slice_left)
		return false;
	/* The kernel may not be interrupted now: try at the next tick. */
	slice_left = 1;
	return !kernel_critsec_count;
}

void port_new_slice(void)
{
	slice_left = tm_timeslice;
}

void atomic_inc(atomic_t *counter)
{
	__asm volatile("incb %0" : "+m"(*counter));
}

void atomic_dec(atomic_t *counter)
{
	__asm volatile("decb %0" : "+m"(*counter));
}

/* Memory: lists of free blocks of 2^n bytes. A block begins with its n. */

enum { HEADER = 16, SMALLEST = 5, LARGEST = 20 };

static uint8_t heap[1 << LARGEST] __attribute__((aligned(HEADER)));
static size_t heap_used;
static void *free_blocks[LARGEST];

void *malloc(size_t size)
{
	uint32_t n = SMALLEST, flags = save_irqs();
	uint8_t *block = NULL;

	while (n < LARGEST && (1u << n) < size + HEADER)
		n++;
	if (n < LARGEST && free_blocks[n]) {
		block = free_blocks[n];
		free_blocks[n] = *(void **)(block + HEADER);
	} else if (n < LARGEST && heap_used + (1u << n) <= sizeof(heap)) {
		block = heap + heap_used;
		heap_used += 1u << n;
		*(uint32_t *)block = n;
	}
	restore_irqs(flags);
	return block ? block + HEADER : NULL;
}

/*
 * Only the first word of the freed memory changes: brickOS's scheduler reads a task that it
 * has just freed.
 */
void free(void *memory)
{
	uint8_t *block = (uint8_t *)memory - HEADER;
	uint32_t flags;

	if (!memory)
		return;
	flags = save_irqs();
	*(void **)memory = free_blocks[*(uint32_t *)block];
	free_blocks[*(uint32_t *)block] = block;
	restore_irqs(flags);
}

/* Would free the memory of the task that ends. The guest's tasks allocate none. */
void mm_reaper(void)
{
}

/* Tasks and interrupts. */

extern void task_returned(void), timer_interrupt(void), other_interrupt(void), fault(void);

size_t *port_stack(size_t *sp, int (*code)(int, char **), int argc, char **argv)
{
	*--sp = (size_t)argv;
	*--sp = (size_t)argc;
	*--sp = (size_t)task_returned;
	*--sp = 0x202; /* eflags: interrupts are enabled */
	*--sp = CODE;
	*--sp = (size_t)code;
	for (unsigned n = 0; n < 8; n++)
		*--sp = 0;
	*--sp = (size_t)&systime_tm_return;
	for (unsigned n = 0; n < 4; n++)
		*--sp = 0;
	return sp;
}

void port_fault(uint32_t first, uint32_t second);

/* Some exceptions push an error code first: the failed instruction is in either word. */
void port_fault(uint32_t first, uint32_t second)
{
	put("FAULT ");
	put_hex(first);
	put(" ");
	put_hex(second);
	put("\n");
	for (;;)
		__asm volatile("cli; hlt");
}

static struct {
	uint16_t low, selector, flags, high;
} gates[VECTORS];

static void gate(unsigned vector, void (*handler)(void))
{
	gates[vector].low = (uint16_t)(size_t)handler;
	gates[vector].high = (uint16_t)((size_t)handler >> 16);
	gates[vector].selector = CODE;
	gates[vector].flags = 0x8e00; /* an interrupt gate, present */
}

static void start_controller(uint16_t port, uint8_t vector, uint8_t wiring, uint8_t masked)
{
	out(port, 0x11);
	out(port + 1, vector);
	out(port + 1, wiring);
	out(port + 1, 1);
	out(port + 1, masked);
}

void port_start(void)
{
	struct {
		uint16_t size;
		void *at;
	} __attribute__((packed)) table = { sizeof(gates) - 1, gates };

	for (unsigned n = 0; n < VECTORS; n++)
		gate(n, n < FIRST_INTERRUPT ? fault : other_interrupt);
	gate(FIRST_INTERRUPT, timer_interrupt);
	__asm volatile("lidt %0" : : "m"(table));
	start_controller(MASTER, FIRST_INTERRUPT, 4, 0xfe);
	start_controller(SLAVE, FIRST_INTERRUPT + 8, 2, 0xff);
	out(TIMER + 3, 0x34); /* channel 0, periodic */
	out(TIMER, TIMER_HZ / TICKS_PER_SEC & 0xff);
	out(TIMER, TIMER_HZ / TICKS_PER_SEC >> 8);
}
