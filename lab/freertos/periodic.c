/*
 * Periodic tasks under FreeRTOS that do a known number of jobs, and tell at their end what they called: the lab compares that with
 * what Timevisor saw. It begins when a byte comes over the serial port.
 */
#include "FreeRTOS.h"
#include "task.h"

#include "guest.h"

#define MAIN_PRIORITY 6
#define SLEEPER_DELAYS 100
#define CHANGES 20

/* Calls, for the logs. */
#define CREATE 'C' /* of whom, priority */
#define SLEEP 'S' /* 1: until, 0: for; ticks */
#define PRIORITY 'P' /* of whom, priority */
#define DELETE 'D' /* of itself, by whomever */

static struct task {
	const char *name;
	TickType_t period;
	uint32_t jobs;
	UBaseType_t priority;
	TaskHandle_t handle;
	struct log log;
} tasks[] = {
	{ "ctl 2ms", 2, 2500, 5, NULL, { 0 } },
	{ "nav 5ms", 5, 1000, 4, NULL, { 0 } },
	{ "log 10ms", 10, 500, 3, NULL, { 0 } },
};

enum { TASKS = sizeof(tasks) / sizeof(tasks[0]) };

/* What is called before the scheduler runs belongs to nobody: its log is of 0. */
static struct log before_all, main_log, sleeper_log, victim_log;
static TaskHandle_t main_task, sleeper, victim;
static volatile uint32_t work;

void guest_failed(const char *file, int line)
{
	put("FAILED ");
	put(file);
	put(" ");
	put_number((uint32_t)line);
	put("\n");
	for (;;)
		__asm volatile("cli; hlt");
}

static uint32_t number(TaskHandle_t task)
{
	return (uint32_t)(uintptr_t)task;
}

static void periodic(void *of)
{
	struct task *task = of;
	TickType_t wake = xTaskGetTickCount();

	for (uint32_t job = 0; job < task->jobs; job++) {
		for (uint32_t n = 0; n < 1000; n++)
			work += n;
		log_call(&task->log, SLEEP, 1, wake + task->period);
		xTaskDelayUntil(&wake, task->period);
	}
	log_call(&task->log, DELETE, 0, 0);
	vTaskDelete(NULL);
}

static void delay(struct log *log, TickType_t ticks)
{
	log_call(log, SLEEP, 0, ticks);
	vTaskDelay(ticks);
}

static void sleeps(void *unused)
{
	(void)unused;
	for (uint32_t n = 0; n < SLEEPER_DELAYS; n++)
		delay(&sleeper_log, n % 7);
	for (;;)
		vTaskSuspend(NULL);
}

static void waits(void *unused)
{
	(void)unused;
	for (;;)
		vTaskSuspend(NULL);
}

static TaskHandle_t create(struct log *by, TaskFunction_t code, const char *name, void *of, UBaseType_t priority, struct log *its)
{
	TaskHandle_t handle;

	/* None runs before its log is begun: all are below their creator. */
	if (xTaskCreate(code, name, configMINIMAL_STACK_SIZE, of, priority, &handle) != pdPASS)
		guest_failed(__FILE__, __LINE__);
	log_start(its, number(handle));
	log_call(by, CREATE, number(handle), priority);
	return handle;
}

static void set_priority(TaskHandle_t task, UBaseType_t priority)
{
	log_call(&main_log, PRIORITY, number(task ? task : main_task), priority);
	vTaskPrioritySet(task, priority);
}

static void first(void *unused)
{
	static struct log idle; /* not told: it calls nothing */

	(void)unused;
	log_start(&idle, number(xTaskGetIdleTaskHandle()));
	log_call(&before_all, CREATE, idle.who, tskIDLE_PRIORITY);
	for (struct task *task = tasks; task < tasks + TASKS; task++)
		task->handle = create(&main_log, periodic, task->name, task, task->priority, &task->log);
	sleeper = create(&main_log, sleeps, "sleeper", NULL, 2, &sleeper_log);
	victim = create(&main_log, waits, "a name that is too long", NULL, 1, &victim_log);
	for (uint32_t n = 0; n < CHANGES; n++) {
		set_priority(sleeper, 1 + n % 3);
		delay(&main_log, 3);
	}
	set_priority(NULL, MAIN_PRIORITY + 1);
	log_call(&victim_log, DELETE, 0, 0);
	vTaskDelete(victim);
	/* The sleeper and the idle task are left. */
	while (uxTaskGetNumberOfTasks() > 3 || sleeper_log.count < SLEEPER_DELAYS)
		delay(&main_log, 5);
	log_put(&before_all);
	log_put(&main_log);
	for (struct task *task = tasks; task < tasks + TASKS; task++)
		log_put(&task->log);
	log_put(&sleeper_log);
	log_put(&victim_log);
	put("DONE\n");
	for (;;)
		vTaskSuspend(NULL);
}

void vApplicationIdleHook(void)
{
	/*
	 * The port counts once before it makes the timer periodic. Where that takes longer than a tick, as on a slow host, the timer has
	 * stopped: begin it anew.
	 */
	static uint32_t begun;

	if (!begun++)
		portAPIC_TIMER_INITIAL_COUNT = (configCPU_CLOCK_HZ >> 4) / configTICK_RATE_HZ - 1;
	__asm volatile("hlt");
}

int main(void)
{
	serial_start();
	log_start(&before_all, 0);
	put("READY\n");
	serial_get();
	main_task = create(&before_all, first, "main", NULL, MAIN_PRIORITY, &main_log);
	vTaskStartScheduler();
	return 0;
}
