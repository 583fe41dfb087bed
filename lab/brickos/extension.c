/*
 * Timevisor's note, two functions to be trapped besides brickOS's own, and what brickOS lacks. The
 * Makefile compiles this file like brickOS's tm.c: every function begins with space for a trap.
 */
#include "port.h"

#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

/* plugins/brickos/brickos.toml reads it. */
static const struct {
	uint32_t name_size, size, type;
	char name[8];
	uint32_t layout, major, minor, build, tick_rate_hz;
	uint32_t stack_base, priority; /* offsets in tdata_t */
	uint32_t level; /* offset in pchain_t */
} note __attribute__((section(".note.timevisor.brickos"), used, aligned(4))) = {
	.name_size = sizeof("brickOS"),
	.size = 8 * sizeof(uint32_t),
	.type = 9,
	.name = "brickOS",
	.layout = 1,
	.major = 0,
	.minor = 9,
	.build = 0,
	.tick_rate_hz = TICKS_PER_SEC,
	.stack_base = __builtin_offsetof(tdata_t, stack_base),
	.priority = __builtin_offsetof(tdata_t, priority),
	.level = __builtin_offsetof(pchain_t, priority),
};

void timevisor_brickos_created(tdata_t *task)
{
	guest_log(LOG_CREATE, (uint32_t)task, task->priority->priority);
}

void task_yield(void)
{
	yield();
}

extern pchain_t *priority_head;

/* Takes the task out of its chain; a chain without tasks ends. */
static void leave(tdata_t *task)
{
	pchain_t *chain = task->priority;

	if (task->next != task) {
		if (chain->ctid == task)
			chain->ctid = task->prev;
		task->next->prev = task->prev;
		task->prev->next = task->next;
		return;
	}
	if (chain->next)
		chain->next->prev = chain->prev;
	if (chain->prev)
		chain->prev->next = chain->next;
	else
		priority_head = chain->next;
	free(chain);
}

/* Puts the task at the back of its new chain, for which there is `fresh` memory. */
static void join(tdata_t *task, priority_t priority, pchain_t *fresh)
{
	pchain_t *before = NULL, *chain = priority_head;

	for (; chain && chain->priority > priority; chain = chain->next)
		before = chain;
	if (chain && chain->priority == priority) {
		free(fresh);
		task->priority = chain;
		task->prev = chain->ctid->prev;
		task->next = chain->ctid;
		task->next->prev = task->prev->next = task;
		return;
	}
	fresh->priority = priority;
	fresh->ctid = task;
	fresh->next = chain;
	fresh->prev = before;
	if (chain)
		chain->prev = fresh;
	if (before)
		before->next = fresh;
	else
		priority_head = fresh;
	task->prev = task->next = task;
	task->priority = fresh;
}

void set_priority(tid_t task, priority_t priority)
{
	tdata_t *whose = task ? (tdata_t *)task : ctid;
	pchain_t *fresh = malloc(sizeof(*fresh));
	uint32_t flags = save_irqs();

	if (fresh) {
		leave(whose);
		join(whose, priority, fresh);
	}
	restore_irqs(flags);
}
