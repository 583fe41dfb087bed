/* brickOS 0.9.0 on x86 with 32 bits. The Makefile includes this file before brickOS's tm.c. */
#ifndef PORT_H
#define PORT_H

#include <stdint.h>
#include <sys/irq.h>
#include <sys/tm.h>

/* Words from a suspended task's stack pointer to its instruction pointer (see port.S). */
#undef SP_RETURN_OFFSET
#define SP_RETURN_OFFSET 13
/* Interrupts and the scheduler run on the stack of the task that they interrupt. */
#undef IDLE_STACK_SIZE
#define IDLE_STACK_SIZE 4096

/* Handles interrupts from now on, and makes the timer tick. The first task enables interrupts. */
void port_start(void);
/* The stack pointer of a task that has not run yet. */
size_t *port_stack(size_t *sp, int (*code)(int, char **), int argc, char **argv);

static inline uint32_t save_irqs(void)
{
	uint32_t flags;

	__asm volatile("pushfl; popl %0; cli" : "=r"(flags) : : "memory");
	return flags;
}

static inline void restore_irqs(uint32_t flags)
{
	__asm volatile("pushl %0; popfl" : : "r"(flags) : "memory", "cc");
}

/* brickOS 0.9.0 cannot change a priority. The task 0 is the caller. */
void set_priority(tid_t task, priority_t priority);
/* The end of a job that the task itself declares. */
void task_yield(void);
/* Exists to be trapped: this task is complete. */
void timevisor_brickos_created(tdata_t *task);

/*
 * Calls, for the guest's log. Nothing may switch tasks between a call that Timevisor traps and its
 * log.
 */
#define LOG_CREATE 'C' /* whom, priority */
#define LOG_PRIORITY 'P' /* whose, priority */
#define LOG_SLEEP 'S' /* 0, ms */
#define LOG_YIELD 'Y' /* 0, 0 */
#define LOG_EXIT 'D' /* 0, the low 8 bits of the code: more is in no exit status */
void guest_log(char kind, uint32_t target, uint32_t value);

#endif
