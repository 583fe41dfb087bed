/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* RVEC's state and arithmetic (the paper "RVEC and HPGC", sections 3 and 3.1), as the BPF programs
 * keep it in maps.
 *
 * Ages are in nanoseconds with a fraction of 32 bits, periods in 2^-32 ns: BPF has neither 128-bit
 * integers nor floats. The layout is read by crates/linux/src/bpf/record.rs: 64-bit words only, 16
 * of them a record.
 */
#ifndef TIMEVISOR_ELAPSED_H
#define TIMEVISOR_ELAPSED_H

typedef unsigned int u32;
typedef unsigned long long u64;

#define INLINE static __attribute__((always_inline)) inline

/* A length of time; `fraction` is in 2^-32 ns and below 2^32. */
struct age {
	u64 ns;
	u64 fraction;
};

/* One core: its age at counter value `base`, and the length of a tick since then. */
struct core {
	/* Odd while it is being written; lock and sequence in one. */
	u64 sequence;
	u64 base;
	struct age age;
	/* 2^-32 ns; 0 while the core has no counter. */
	u64 period;
	/* period * kHz: what a frequency is divided out of. */
	u64 scale;
	/* A change that another core reported: the counter at that moment is not known here. 0:
	 * none. */
	u64 pending_khz;
	/* When the last of them came, kernel's ns, and what the ones before it amount to. */
	u64 pending_since;
	u64 pending_ns;
	u64 pending_ticks;
	/* The age may be this much too great: a faster clock was noticed late, and an age never
	 * goes back. */
	u64 excess_ns;
	u64 changes;
	/* Events that were lost because the record was being written. */
	u64 missed;
	/* The processor's counter less ours, and how well that is known, in ticks. Written once,
	 * by the loader. */
	u64 offset;
	u64 offset_error;
	u64 reserved;
};

/* The element behind the cores: who looks after the records. */
struct service {
	/* CLOCK_MONOTONIC, ns, when they were last looked after; 0: nobody needs to. */
	u64 attended_ns;
	/* What readers are told: crates/linux/src/bpf/record.rs. */
	u64 state;
	u64 reserved[14];
};

enum status { UNUSED, NEW, HERE, MOVED };

/* One task: its age when its stretch on `core` began, and that core's age then. */
struct task {
	u64 sequence;
	u64 pid;
	u64 status;
	u64 core;
	struct age age;
	struct age base;
	/* The core's age, and the kernel's ns, when the task last ran there. */
	struct age left;
	u64 left_at;
	u64 migrations;
	/* Nanoseconds of the age that were counted by the kernel's clock: between two cores. */
	u64 bridged_ns;
	u64 missed;
	u64 reserved[2];
};

INLINE struct age sum(struct age a, struct age b)
{
	u64 fraction = a.fraction + b.fraction;
	struct age out = { a.ns + b.ns + (fraction >> 32), fraction & 0xffffffff };
	return out;
}

INLINE int later(struct age a, struct age b)
{
	return a.ns > b.ns || (a.ns == b.ns && a.fraction > b.fraction);
}

/* a - b, or nothing where b is later. */
INLINE struct age difference(struct age a, struct age b)
{
	struct age out = { 0, 0 };
	if (later(a, b)) {
		u64 borrow = a.fraction < b.fraction;
		out.ns = a.ns - b.ns - borrow;
		out.fraction = (a.fraction - b.fraction) & 0xffffffff;
	}
	return out;
}

/* ticks * period, exactly: the product of 128 bits from four of 64. */
INLINE struct age span(u64 ticks, u64 period)
{
	u64 tl = ticks & 0xffffffff, th = ticks >> 32, pl = period & 0xffffffff, ph = period >> 32;
	u64 low = tl * pl;
	u64 middle = th * pl + (low >> 32);
	u64 middle2 = tl * ph + (middle & 0xffffffff);
	/* The lowest 32 bits of the product are 2^-32 ns. */
	struct age out = { ((th * ph + (middle >> 32)) << 32) + middle2, low & 0xffffffff };
	return out;
}

/* Converts nanoseconds to ticks, to within one tick for every 4 s. */
INLINE u64 ticks_in(u64 ns, u64 period)
{
	if (!period)
		return 0;
	return (ns >> 32) * (~0ULL / period) + ((ns & 0xffffffff) << 32) / period;
}

/* A reader may have a counter value from before the base; it counts as the base. */
INLINE u64 ticks_since(u64 base, u64 count)
{
	u64 ticks = count - base;
	return ticks >> 63 ? 0 : ticks;
}

INLINE struct age core_age(const struct core *core, u64 count)
{
	return sum(core->age, span(ticks_since(core->base, count), core->period));
}

INLINE u64 since(u64 then, u64 now)
{
	return now > then ? now - then : 0;
}

/* The core's counter is at `count`: consolidates a change of rate that another core reported.
 *
 * Ticks before the change had the old period, and the kernel's clock gives the time after it. A
 * reader in between used the old period for all ticks, so the age must not become smaller than
 * that reading. */
INLINE void settle(struct core *core, u64 count, u64 now)
{
	u64 period = core->pending_khz ? core->scale / core->pending_khz : 0;
	if (!period)
		return;
	u64 after_ns = since(core->pending_since, now);
	u64 ticks = ticks_since(core->base, count);
	u64 after = core->pending_ticks + ticks_in(after_ns, period);
	struct age kernels = { core->pending_ns + after_ns, 0 };
	struct age shown = span(ticks, core->period);
	struct age truth = sum(span(ticks > after ? ticks - after : 0, core->period), kernels);
	if (later(shown, truth)) {
		core->excess_ns += difference(shown, truth).ns;
		truth = shown;
	}
	core->age = sum(core->age, truth);
	core->base = count;
	core->period = period;
	core->pending_khz = 0;
	core->pending_ns = 0;
	core->pending_ticks = 0;
	core->changes += 1;
}

/* The core reports that its frequency is `khz` from counter value `count` on. */
INLINE void change_here(struct core *core, u64 khz, u64 count, u64 now)
{
	settle(core, count, now);
	u64 period = khz ? core->scale / khz : 0;
	if (!period)
		return;
	core->age = core_age(core, count);
	core->base = count;
	core->period = period;
	core->changes += 1;
}

/* Another core reports that this core's frequency is `khz` from now on. */
INLINE void change_elsewhere(struct core *core, u64 khz, u64 now)
{
	u64 period = core->pending_khz ? core->scale / core->pending_khz : 0;
	if (!khz || !(core->scale / khz))
		return;
	if (period) {
		u64 ns = since(core->pending_since, now);
		core->pending_ns += ns;
		core->pending_ticks += ticks_in(ns, period);
	}
	core->pending_khz = khz;
	core->pending_since = now;
}

/* The task stops running on core number `cpu`, whose age is `age`. */
INLINE void leave(struct task *task, u64 cpu, struct age age, u64 now)
{
	if (task->status != HERE || task->core != cpu)
		return;
	task->left = age;
	task->left_at = now;
}

/* The task will run on another core. It does not run now: it has left its core before. */
INLINE void move(struct task *task)
{
	task->migrations += 1;
	if (task->status == HERE)
		task->status = MOVED;
}

/* The task begins to run on core number `cpu`, whose age is `age`. The counter of its former
 * core cannot be read here, so the kernel's clock gives the time since it left that core. */
INLINE void arrive(struct task *task, u64 cpu, struct age age, u64 now)
{
	if (task->status == UNUSED || (task->status == HERE && task->core == cpu))
		return;
	if (task->status != NEW) {
		struct age bridge = { since(task->left_at, now), 0 };
		task->age = sum(task->age, sum(difference(task->left, task->base), bridge));
		task->bridged_ns += bridge.ns;
	}
	task->base = age;
	task->left = age;
	task->left_at = now;
	task->core = cpu;
	task->status = HERE;
}

#endif
