/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* RVEC on hosts whose counter is not invariant: the age of every core and of registered tasks,
 * consolidated where a core's frequency changes and where a task moves to another core.
 *
 * | program | event |
 * | --- | --- |
 * | cpu_frequency | a core's frequency changes |
 * | sched_migrate_task | a task is to run on another core |
 * | sched_switch | it leaves the one, it arrives on the other: the only moments at which that core's counter can be read |
 * | own_pid | none: tells a thread its number |
 * | enroll | none: gives a record to a task, or takes it back |
 * | attend | none: says that somebody looks after the records |
 * | fed_* | the same with counter and time as arguments, for BPF_PROG_TEST_RUN alone; never attached |
 *
 * The counter is the TSC, read through the kernel's perf event msr/tsc of each core: BPF has no
 * instruction for it, and bpf_ktime_get_ns is CLOCK_MONOTONIC, which is slewed. Kernels 5.12 and
 * newer (atomics).
 */
#include "elapsed.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

/* include/uapi/linux/bpf.h */
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERF_EVENT_ARRAY = 4 };
#define F_MMAPABLE (1U << 10)
#define F_CURRENT_CPU 0xffffffffULL

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u32 (*const processor_id)(void) = (void *)8;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static long (*const perf_event_read_value)(void *map, u64 flags, void *out, u32 size) = (void *)55;
static long (*const probe_read_kernel)(void *out, u32 size, const void *from) = (void *)113;

/* The same numbers as in crates/linux/src/bpf/record.rs. */
#define CORES 512
#define TASKS 512

/* The cores, and one more element: struct service. The loader freezes this map and the next one, so
 * that programs alone can write them, and gives them to every process that asks. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, CORES + 1);
	__uint(map_flags, F_MMAPABLE);
	__type(key, u32);
	__type(value, struct core);
} cores SEC(".maps");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, TASKS);
	__uint(map_flags, F_MMAPABLE);
	__type(key, u32);
	__type(value, struct task);
} tasks SEC(".maps");

/* pid to place in `tasks`. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, TASKS);
	__type(key, u32);
	__type(value, u32);
} places SEC(".maps");

/* Each core's TSC. */
struct {
	__uint(type, MAP_PERF_EVENT_ARRAY);
	__uint(max_entries, CORES);
	__uint(key_size, 4);
	__uint(value_size, 4);
} counters SEC(".maps");

/* The kernel's own has a hundred fields more; where this one lies, its BTF says at load time. */
struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

struct arguments {
	u64 word[5];
};

/* This core's counter; 0 where it cannot be read. */
INLINE u64 counter(void)
{
	struct {
		u64 counter, enabled, running;
	} value = { 0, 0, 0 };
	return perf_event_read_value(&counters, F_CURRENT_CPU, &value, sizeof(value)) ? 0 : value.counter;
}

/* This core's counter and the kernel's clock at one moment. */
struct moment {
	u64 count;
	u64 ns;
};

#define READINGS 4
#define NARROW_NS 2000

/* Reads the counter between two readings of the clock: a core that has just woken up, or is
 * emulated, is slow. */
INLINE struct moment this_moment(void)
{
	struct moment best = { 0, 0 };
	u64 width = ~0ULL;
	for (int i = 0; i < READINGS && width > NARROW_NS; i++) {
		u64 before = ktime_get_ns();
		u64 count = counter();
		u64 after = ktime_get_ns();
		if (after - before < width) {
			width = after - before;
			best.count = count;
			best.ns = before + width / 2;
		}
	}
	return best;
}

#define ATTEMPTS 64

/* Takes the lock of a record. The limit is there because an event must not wait for ever. */
INLINE int begin(u64 *sequence)
{
	for (int i = 0; i < ATTEMPTS; i++) {
		u64 seen = *(volatile u64 *)sequence;
		if (!(seen & 1) && __sync_val_compare_and_swap(sequence, seen, seen + 1) == seen)
			return 1;
	}
	return 0;
}

/* Stores are seen in order on x86, the only machine that this is built for. */
INLINE void end(u64 *sequence)
{
	asm volatile("" ::: "memory");
	*(volatile u64 *)sequence += 1;
	asm volatile("" ::: "memory");
}

INLINE struct core *find_core(u32 cpu)
{
	struct core *core = map_lookup(&cores, &cpu);
	return core && core->period ? core : 0;
}

INLINE struct task *find_task(u32 pid)
{
	u32 *place = pid ? map_lookup(&places, &pid) : 0;
	return place ? map_lookup(&tasks, place) : 0;
}

INLINE int frequency(u64 khz, u32 cpu, u32 here, u64 count, u64 now)
{
	struct core *core = find_core(cpu);
	if (!core)
		return 0;
	if (!begin(&core->sequence)) {
		__sync_fetch_and_add(&core->missed, 1);
		return 0;
	}
	/* Without a reading of its counter, this core can report no more than another one could. */
	if (cpu == here && count)
		change_here(core, khz, count, now);
	else
		change_elsewhere(core, khz, now);
	end(&core->sequence);
	return 0;
}

INLINE int migrated(u32 pid)
{
	struct task *task = find_task(pid);
	if (!task)
		return 0;
	if (!begin(&task->sequence)) {
		__sync_fetch_and_add(&task->missed, 1);
		return 0;
	}
	move(task);
	end(&task->sequence);
	return 0;
}

INLINE int switched(struct core *core, struct task *prev, struct task *next, u32 cpu, u64 count, u64 now)
{
	if (core->pending_khz && begin(&core->sequence)) {
		settle(core, count, now);
		end(&core->sequence);
	}
	/* Meanwhile only other cores' reports of a frequency write here, and they do not touch
	 * the fields of an age. */
	struct age age = core_age(core, count);
	if (prev) {
		if (begin(&prev->sequence)) {
			leave(prev, cpu, age, now);
			end(&prev->sequence);
		} else {
			__sync_fetch_and_add(&prev->missed, 1);
		}
	}
	if (next) {
		if (begin(&next->sequence)) {
			arrive(next, cpu, age, now);
			end(&next->sequence);
		} else {
			__sync_fetch_and_add(&next->missed, 1);
		}
	}
	return 0;
}

INLINE u32 pid_of(u64 address)
{
	const struct task_struct *task = (const void *)address;
	int pid = 0;
	probe_read_kernel(&pid, sizeof(pid), &task->pid);
	return pid;
}

/* frequency in kHz, core */
SEC("raw_tp/cpu_frequency")
int cpu_frequency(struct arguments *ctx)
{
	u32 here = processor_id(), cpu = ctx->word[1];
	return frequency((u32)ctx->word[0], cpu, here, cpu == here ? counter() : 0, ktime_get_ns());
}

/* task, core */
SEC("raw_tp/sched_migrate_task")
int sched_migrate_task(struct arguments *ctx)
{
	return migrated(pid_of(ctx->word[0]));
}

/* The barriers keep clang from testing the pointers with one `or`, which the verifier forbids. */
INLINE int concerns(struct core *core, struct task *prev, struct task *next)
{
	if (!core)
		return 0;
	asm volatile("" ::: "memory");
	if (prev)
		return 1;
	asm volatile("" ::: "memory");
	return next || core->pending_khz;
}

/* preempted?, task before, task after */
SEC("raw_tp/sched_switch")
int sched_switch(struct arguments *ctx)
{
	u32 cpu = processor_id();
	struct core *core = find_core(cpu);
	struct task *prev = find_task(pid_of(ctx->word[1]));
	struct task *next = find_task(pid_of(ctx->word[2]));
	if (!concerns(core, prev, next))
		return 0;
	struct moment moment = this_moment();
	if (!moment.count) {
		__sync_fetch_and_add(&core->missed, 1);
		return 0;
	}
	return switched(core, prev, next, cpu, moment.count, moment.ns);
}

/* Returns the calling thread's number in the initial pid namespace, which the other programs
 * see. For BPF_PROG_TEST_RUN only; never attached. */
SEC("raw_tp/own_pid")
int own_pid(struct arguments *ctx)
{
	(void)ctx;
	return (u32)current_pid_tgid();
}

/* place, pid (0 frees the record), age: ns and fraction. For BPF_PROG_TEST_RUN only. */
SEC("raw_tp/enroll")
int enroll(struct arguments *ctx)
{
	u32 place = ctx->word[0];
	struct task *task = map_lookup(&tasks, &place);
	if (!task || !begin(&task->sequence))
		return 0;
	struct age age = { ctx->word[2], ctx->word[3] }, none = { 0, 0 };
	task->pid = ctx->word[1];
	task->status = task->pid ? NEW : UNUSED;
	task->core = ~0ULL;
	task->age = age;
	task->base = none;
	task->left = none;
	task->left_at = 0;
	task->migrations = 0;
	task->bridged_ns = 0;
	task->missed = 0;
	end(&task->sequence);
	return 1;
}

/* What readers are to know of those who serve them. For BPF_PROG_TEST_RUN only. */
SEC("raw_tp/attend")
int attend(struct arguments *ctx)
{
	u32 index = CORES;
	struct service *service = map_lookup(&cores, &index);
	if (!service)
		return 0;
	/* Each word is read alone. */
	*(volatile u64 *)&service->state = ctx->word[0];
	*(volatile u64 *)&service->attended_ns = ktime_get_ns();
	return 1;
}

/* kHz, core, core that says it, its counter, ns */
SEC("raw_tp/fed_cpu_frequency")
int fed_cpu_frequency(struct arguments *ctx)
{
	return frequency(ctx->word[0], ctx->word[1], ctx->word[2], ctx->word[3], ctx->word[4]);
}

/* pid */
SEC("raw_tp/fed_sched_migrate_task")
int fed_sched_migrate_task(struct arguments *ctx)
{
	return migrated(ctx->word[0]);
}

/* pid before, pid after, core, its counter, ns */
SEC("raw_tp/fed_sched_switch")
int fed_sched_switch(struct arguments *ctx)
{
	struct core *core = find_core(ctx->word[2]);
	if (!core)
		return 0;
	return switched(core, find_task(ctx->word[0]), find_task(ctx->word[1]), ctx->word[2], ctx->word[3], ctx->word[4]);
}

/* The kernel gives its helpers to programs under GPL-compatible terms only. */
char terms[] SEC("license") = "Dual MIT/GPL";
