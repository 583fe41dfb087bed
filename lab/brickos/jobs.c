/*
 * Tasks of several priorities under brickOS. Their calls are logged in one order, which the lab
 * compares with what Timevisor saw. The tasks start when a byte arrives over the serial port.
 */
#include "port.h"

#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "guest.h"

enum { STACK = 4096, CONTROL_JOBS = 200, SENSOR_JOBS = 100, SPIN_JOBS = 60, SHOTS = 25 };

/* LOG 0: all tasks' calls. The first word of each is its task, 0 before there are tasks. */
static struct log calls;
/* Tasks that have done their work: of control, sensor, two that spin, and the shots. */
static uint32_t ended;

void guest_log(char kind, uint32_t target, uint32_t value)
{
	const uint32_t words[] = { ctid == &td_single ? 0 : (uint32_t)ctid, target, value };

	log_words(&calls, kind, words, 3);
}

/* A call and its log are one piece. brickOS keeps whether interrupts are enabled for each task. */

static void sleeps(uint32_t ms)
{
	disable_irqs();
	guest_log(LOG_SLEEP, 0, ms);
	msleep(ms);
	enable_irqs();
}

static void changes(tid_t task, priority_t priority)
{
	disable_irqs();
	guest_log(LOG_PRIORITY, task ? (uint32_t)task : (uint32_t)ctid, priority);
	set_priority(task, priority);
	enable_irqs();
}

static void ends_job(void)
{
	disable_irqs();
	guest_log(LOG_YIELD, 0, 0);
	task_yield();
	enable_irqs();
}

static void ends(void)
{
	__atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
}

static int control(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (uint32_t job = 0; job < CONTROL_JOBS; job++)
		sleeps(5);
	ends();
	return 3;
}

static int sensor(int argc, char **argv)
{
	(void)argv;
	for (uint32_t job = 0; job < SENSOR_JOBS; job++)
		sleeps(job * 7 % 12);
	ends();
	return argc;
}

/* Both are at one priority: they share the processor by time slices. */
static int spins(int argc, char **argv)
{
	(void)argc, (void)argv;
	for (uint32_t job = 0; job < SPIN_JOBS; job++) {
		for (uint32_t n = 0; n < 20000 + job * 7919 % 100000; n++)
			__asm volatile("");
		ends_job();
	}
	ends();
	return 0;
}

/*
 * Is killed wherever it is. Its interrupts are always disabled, so that exit() and its log are one
 * piece too.
 */
static int victim(int argc, char **argv)
{
	(void)argc, (void)argv;
	disable_irqs();
	for (;;) {
		guest_log(LOG_SLEEP, 0, 13);
		msleep(13);
	}
	return 0;
}

static int shot(int argc, char **argv)
{
	(void)argv;
	sleeps(1);
	ends();
	disable_irqs();
	exit(argc - SHOTS / 2);
}

static tid_t create(int (*code)(int, char **), int argc, char **argv, priority_t priority)
{
	tid_t task = execi(code, argc, argv, priority, STACK);

	if (task == -1) {
		put("FAILED: no memory\n");
		for (;;)
			__asm volatile("cli; hlt");
	}
	return task;
}

static int boss(int argc, char **argv)
{
	static char *shot_names[] = { "shot-of-a-long-name", NULL };
	tid_t prey = create(victim, 0, NULL, 12);

	(void)argc, (void)argv;
	for (int n = 0; n < SHOTS; n++) {
		/* Some tasks have no name. */
		create(shot, n, n % 5 ? shot_names : NULL, (priority_t)(3 + n % 9));
		sleeps(20);
		changes(prey, (priority_t)(2 + n * 4 % 15));
		changes(0, (priority_t)(9 + n % 3));
	}
	kill(prey);
	while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) != SHOTS + 4)
		sleeps(50);
	/* Those that have done their work still return, at a lower priority. */
	sleeps(50);
	disable_irqs();
	log_put(&calls);
	put("DONE\n");
	/*
	 * The timer must go on waking the processor: QEMU cannot remove trap points while it is
	 * halted, and detaching then takes 30 s.
	 */
	enable_irqs();
	for (;;)
		__asm volatile("hlt");
	return 0;
}

int main(void)
{
	static char *control_names[] = { "control", NULL };
	static char *sensor_names[] = { "sensor", NULL };
	static char *boss_names[] = { "boss", NULL };

	serial_start();
	log_start(&calls, 0);
	put("READY\n");
	serial_get();
	port_start();
	tm_init();
	create(control, 1, control_names, 15);
	create(sensor, 1, sensor_names, 10);
	create(boss, 1, boss_names, 8);
	create(spins, 0, NULL, 5);
	create(spins, 0, NULL, 5);
	tm_start();
	return 0;
}
