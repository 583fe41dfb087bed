/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* What a guest's tasks ask of their kernel, seen where KVM emulates the instruction that timevisord has put in place of a NOP
 * (KVM's forced emulation prefix: arch/x86/kvm/x86.c, handle_ud).
 *
 * | program | where |
 * | --- | --- |
 * | handle_ud | KVM begins to handle an invalid instruction, AMD: the guest is at the prefix |
 * | kvm_emulate_insn | KVM has emulated an instruction, Intel: the guest was five bytes before. NOT VERIFIED ON HARDWARE |
 *
 * The guest's memory is read through QEMU's mapping of it, because the thread that runs here is a vCPU of QEMU's. Guest-virtual addresses
 * are walked by the guest kernel's own page tables, at most five entries for each page. Nothing is written, nobody waits; what does
 * not fit into the ring is counted. Where things are in KVM's structures is told by timevisord, by the kernel's BTF. Linux 5.17 and newer (bpf_loop).
 */
#include "introspect.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

/* include/uapi/linux/bpf.h */
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_RINGBUF = 27 };
#define RB_NO_WAKEUP 1

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static long (*const probe_read_user)(void *out, u32 size, const void *from) = (void *)112;
static long (*const probe_read_kernel)(void *out, u32 size, const void *from) = (void *)113;
static long (*const ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static long (*const loop)(u32 times, void *callback, void *context, u64 flags) = (void *)181;

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct target);
} targets SEC(".maps");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, POINTS);
	__type(key, u32);
	__type(value, struct point);
} points SEC(".maps");

/* Address to place in `points`. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, POINTS);
	__type(key, u64);
	__type(value, u32);
} places SEC(".maps");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 1 << 20);
} ring SEC(".maps");

/* One hit while it is looked at. */
struct work {
	u64 registers[REGISTERS + 2];
	u64 place;
	/* Bytes of data so far. */
	u64 len;
	struct event event;
};

/* One for each processor: a probe is not preempted, and the kernel runs no program twice at a time on one. */
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct work);
} works SEC(".maps");

struct arguments {
	u64 word[5];
};

/* arch/x86/include/asm/ptrace.h */
struct pt_regs {
	u64 before_di[14];
	u64 di;
};

static const u32 zero = 0;

INLINE void count(u32 which)
{
	u64 *value = map_lookup(&counts, &which);
	if (value)
		__sync_fetch_and_add(value, 1);
}

/* Guest-physical to where QEMU has it; 0: it is no memory. */
INLINE u64 mapped(struct target *target, u64 address, u64 len)
{
	for (int i = 0; i < 2; i++) {
		struct piece *piece = &target->pieces[i];
		u64 inside = address - piece->address;
		if (address >= piece->address && inside < piece->len && len <= piece->len - inside)
			return piece->mapped + inside;
	}
	return 0;
}

#define ADDRESS 0x000ffffffffff000ULL
#define PRESENT 1
#define HUGE (1 << 7)

/* Guest-virtual to where QEMU has it; 0: it is not mapped. Not more than to the end of its page is there. */
static __attribute__((noinline)) u64 translate(struct target *target, u64 address)
{
	if (!target)
		return 0;
	u64 table = target->root & ADDRESS;
	u64 top = target->levels == 5 ? 5 : 4;
	for (u64 level = 5; level >= 1; level--) {
		if (level > top)
			continue;
		u64 shift = 12 + 9 * (level - 1);
		u64 from = mapped(target, table + 8 * ((address >> shift) & 511), 8);
		u64 entry = 0;
		if (!from || probe_read_user(&entry, sizeof(entry), (void *)from) || !(entry & PRESENT))
			return 0;
		u64 inside = (1ULL << shift) - 1;
		if (level == 1 || (level <= 3 && (entry & HUGE)))
			return mapped(target, (entry & ADDRESS & ~inside) | (address & inside), 1);
		table = entry & ADDRESS;
	}
	return 0;
}

/* In up to two pages. */
INLINE int read_guest(struct target *target, u64 address, u8 *out, u32 len)
{
	if (len > DATA)
		return -1;
	u32 first = 4096 - (address & 4095);
	if (first > len)
		first = len;
	u64 from = translate(target, address);
	if (!from || probe_read_user(out, first & (2 * DATA - 1), (void *)from))
		return -1;
	u32 rest = len - first;
	if (!rest)
		return 0;
	from = translate(target, address + first);
	return from && first < DATA && !probe_read_user(out + (first & (DATA - 1)), rest & (DATA - 1), (void *)from) ? 0 : -1;
}

/* Where an earlier read's bytes begin. */
INLINE u32 beginning(struct point *point, u32 n)
{
	u32 at = 0;
	for (u32 i = 0; i < READS; i++)
		if (i < n)
			at += point->reads[i].len;
	return at;
}

/* Makes one read, for bpf_loop. 1: no further. */
static long make(u64 n, void *context)
{
	(void)context;
	struct work *work = map_lookup(&works, &zero);
	struct target *target = map_lookup(&targets, &zero);
	if (!work || !target || n >= READS)
		return 1;
	u32 place = work->place;
	struct point *point = map_lookup(&points, &place);
	if (!point)
		return 1;
	struct read *read = &point->reads[n & (READS - 1)];
	u32 at = work->len & (DATA - 1), len = read->len;
	if (len > DATA || work->len + len > DATA)
		return 1;
	u64 value = 0;
	int failed = 0;
	if (read->base == BASE_EARLIER) {
		u32 from = beginning(point, read->of) & (DATA - 1);
		failed = (work->event.failed >> (read->of & 15)) & 1;
		__builtin_memcpy(&value, work->event.data + from, sizeof(value));
		/* A pointer of 32 bits. */
		if (point->reads[read->of & (READS - 1)].len == 4)
			value = (u32)value;
	} else if (read->base != BASE_ABSOLUTE && read->of < REGISTERS + 2) {
		value = work->registers[read->of];
	}
	u8 *out = work->event.data + at;
	if (read->base == BASE_VALUE)
		__builtin_memcpy(out, &value, sizeof(value));
	else if (failed || read_guest(target, value + read->offset, out, len)) {
		failed = 1;
		for (u32 i = 0; i < DATA / 8; i++)
			if (8 * i < len)
				__builtin_memset(out + 8 * i, 0, 8);
	}
	if (failed)
		work->event.failed |= 1 << (n & 15);
	work->len += len;
	return 0;
}

INLINE int wanted(struct point *point, struct work *work)
{
	if (point->filter == NO_FILTER)
		return 1;
	u32 value, at = beginning(point, point->filter) & (DATA - 1);
	__builtin_memcpy(&value, work->event.data + at, sizeof(value));
	/* What could not be read is told: it is not known to be unwanted. */
	if ((work->event.failed >> (point->filter & 15)) & 1)
		return 1;
	return value < 64 && ((point->mask >> (value & 63)) & 1);
}

INLINE int hit(u64 vcpu, u64 before)
{
	struct target *target = map_lookup(&targets, &zero);
	if (!target || !vcpu || current_pid_tgid() >> 32 != target->tgid)
		return 0;
	u64 rip = 0;
	probe_read_kernel(&rip, sizeof(rip), (void *)(vcpu + target->rip));
	rip -= before;
	u32 *place = map_lookup(&places, &rip);
	struct work *work = map_lookup(&works, &zero);
	if (!place || !work)
		return 0;
	u32 index = *place;
	struct point *point = map_lookup(&points, &index);
	if (!point)
		return 0;
	work->place = index;
	work->len = 0;
	work->event.ns = ktime_get_ns();
	work->event.failed = 0;
	work->event.point = point->id;
	u32 id = 0;
	probe_read_kernel(&id, sizeof(id), (void *)(vcpu + target->vcpu_id));
	work->event.vcpu = id;
	probe_read_kernel(work->registers, 8 * REGISTERS, (void *)(vcpu + target->registers));
	u64 vmcb = 0;
	if (target->vmcb && !probe_read_kernel(&vmcb, sizeof(vmcb), (void *)(vcpu + target->vmcb))) {
		probe_read_kernel(&work->registers[GS_BASE], 8, (void *)(vmcb + target->gs_base));
		probe_read_kernel(&work->registers[CR3], 8, (void *)(vmcb + target->cr3));
	} else if (read_guest(target, target->bases + 8ULL * id, (u8 *)&work->registers[GS_BASE], 8)) {
		work->registers[GS_BASE] = 0;
	}
	u32 reads = point->count;
	loop(reads < READS ? reads : READS, make, 0, 0);
	if (!wanted(point, work))
		return 0;
	u32 len = work->len;
	if (len > DATA)
		return 0;
	work->event.len = len;
	count(HITS);
	if (ringbuf_output(&ring, &work->event, sizeof(struct event) - 3 * DATA + len, RB_NO_WAKEUP))
		count(DROPPED);
	return 0;
}

SEC("kprobe/handle_ud")
int handle_ud(struct pt_regs *ctx)
{
	return hit(ctx->di, 0);
}

/* vCPU, whether it failed */
SEC("raw_tp/kvm_emulate_insn")
int kvm_emulate_insn(struct arguments *ctx)
{
	return ctx->word[1] ? 0 : hit(ctx->word[0], 5);
}

/* The kernel gives its helpers to programs under GPL-compatible terms only. */
char terms[] SEC("license") = "Dual MIT/GPL";
