/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* What a guest's tasks ask of their kernel, seen where KVM emulates the instruction that timevisord has put in place of a NOP
 * (KVM's forced emulation prefix: arch/x86/kvm/x86.c, handle_ud; or a write to a port: kvm_fast_pio).
 *
 * | program | where |
 * | --- | --- |
 * | handle_ud | KVM begins to handle an invalid instruction, AMD: the guest is at the prefix |
 * | kvm_fast_pio | KVM begins to handle a write to a port or a read from one, AMD: the guest is there |
 * | kvm_emulate_insn | KVM is about to emulate an instruction, Intel: the guest was five bytes before. NOT VERIFIED ON HARDWARE |
 *
 * Kprobes, because they are not preempted. On a tracepoint of Linux 7.3 a program is: the one of another vCPU that comes to the same processor
 * meanwhile is not run, and nobody counts it (seen: 69 of 70 events). Intel's has that flaw still.
 *
 * The guest's memory is read through QEMU's mapping of it, because the thread that runs here is a vCPU of QEMU's. Guest-virtual addresses
 * are where the guest's kernel has all memory in order, or are walked by its page tables, at most five entries for each page. Nothing is
 * written, nobody waits; what does not fit into the ring is counted. Where things are in KVM's structures is told by timevisord, by the
 * kernel's BTF. Tested with Linux 6.1 and 7.3.
 *
 * An exit of a guest leaves little in the processor's caches: what is read here, and how often, is what it costs.
 */
#include "introspect.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

/* include/uapi/linux/bpf.h */
enum { MAP_HASH = 1, MAP_ARRAY = 2 };
#define F_MMAPABLE (1U << 10)

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static long (*const probe_read_user)(void *out, u32 size, const void *from) = (void *)112;
static long (*const probe_read_kernel)(void *out, u32 size, const void *from) = (void *)113;

/* Address to point, beyond the first address of each. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, MORE);
	__type(key, u64);
	__type(value, u32);
} more SEC(".maps");

/* What is asked for, and events on their way to timevisord. The kernel's own ring buffer (BPF_MAP_TYPE_RINGBUF) does the same, with a lock, in five pages more. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, F_MMAPABLE);
	__type(key, u32);
	__type(value, struct shared);
} shared SEC(".maps");

struct arguments {
	u64 word[5];
};

/* arch/x86/include/asm/ptrace.h */
struct pt_regs {
	u64 before_di[14];
	u64 di;
};

static const u8 nothing[DATA];

/* The one element of a map; its key is on the stack, because a constant would be in a page of its own. */
#define ONLY(map)                            \
	({                                   \
		u32 key_ = 0;                \
		map_lookup(&(map), &key_);   \
	})

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

/* Not static: the verifier looks at such a function once, and not anew for each call. That keeps all of it far below the limit of Linux 6.1, which
 * follows every way through a loop. */
#define ONCE __attribute__((noinline))

/* What the compiler knows of a size, the verifier does not always: the mask that comes next has to be there. */
#define FORGET(size) __asm__ volatile("" : "+r"(size))

/* Guest-virtual to where QEMU has it; 0: it is not mapped. Not more than to the end of its page is there. */
ONCE u64 translate(u64 address)
{
	struct shared *all = ONLY(shared);
	if (!all)
		return 0;
	struct target *target = &all->target;
	if (target->linear && address >= target->linear) {
		u64 from = mapped(target, address - target->linear, 1);
		if (from)
			return from;
	}
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

INLINE struct slot *slot_of(struct shared *all, u64 turn)
{
	return &all->slots[turn & (SLOTS - 1)];
}

/* `len` bytes, in up to two pages, to the event's byte `at`; all of them 0 if it fails. */
ONCE int read_guest(u64 turn, u64 address, u32 at, u32 len)
{
	struct shared *all = ONLY(shared);
	if (!all || len > DATA)
		return -1;
	u8 *out = slot_of(all, turn)->event.data + (at & (DATA - 1));
	u32 first = 4096 - (address & 4095);
	if (first > len)
		first = len;
	u32 rest = len - first;
	u64 from = translate(address);
	FORGET(first);
	if (!from || probe_read_user(out, first & (2 * DATA - 1), (void *)from))
		goto failed;
	if (!rest)
		return 0;
	from = translate(address + first);
	FORGET(first);
	FORGET(rest);
	if (from && first < DATA && !probe_read_user(out + (first & (DATA - 1)), rest & (DATA - 1), (void *)from))
		return 0;
failed:
	FORGET(len);
	probe_read_kernel(out, len & (2 * DATA - 1), nothing);
	return -1;
}

/* What a register of the guest holds. */
ONCE u64 register_value(u64 vcpu, u64 of)
{
	u64 value = 0, vmcb = 0;
	struct shared *all = ONLY(shared);
	if (!all)
		return 0;
	struct target *target = &all->target;
	if (of < REGISTERS) {
		probe_read_kernel(&value, sizeof(value), (void *)(vcpu + target->registers + 8 * of));
	} else if (target->vmcb) {
		u64 at = of == CR3 ? target->cr3 : target->gs_base;
		if (!probe_read_kernel(&vmcb, sizeof(vmcb), (void *)(vcpu + target->vmcb)))
			probe_read_kernel(&value, sizeof(value), (void *)(vmcb + at));
	} else if (of == GS_BASE) {
		u32 id = 0;
		probe_read_kernel(&id, sizeof(id), (void *)(vcpu + target->vcpu_id));
		/* In one page, as every array of long in the kernel is aligned. */
		u64 base = translate(target->bases + 8ULL * id);
		if (!base || probe_read_user(&value, sizeof(value), (void *)base))
			return 0;
	}
	return value;
}

/* Makes one read of a point. 0: no further. */
ONCE int make(u64 turn, u64 vcpu, u64 place, u64 n)
{
	struct shared *all = ONLY(shared);
	if (!all || n >= READS)
		return 0;
	struct slot *slot = slot_of(all, turn);
	struct point *point = &all->points[place & (POINTS - 1)];
	struct read *read = &point->reads[n & (READS - 1)];
	u32 used = slot->event.len, at = used & (DATA - 1), len = read->len, of = read->of;
	if (len > DATA || used + len > DATA)
		return 0;
	FORGET(at);
	FORGET(len);
	slot->begins[n & (READS - 1)] = at;
	u64 value = 0;
	int failed = 0;
	if (read->base == BASE_EARLIER) {
		u32 from = slot->begins[of & (READS - 1)] & (DATA - 1);
		failed = (slot->event.failed >> (of & 15)) & 1;
		__builtin_memcpy(&value, slot->event.data + from, sizeof(value));
		/* A pointer of 32 bits. */
		if (point->reads[of & (READS - 1)].len == 4)
			value = (u32)value;
	} else if (read->base != BASE_ABSOLUTE) {
		value = register_value(vcpu, of);
	}
	if (read->base == BASE_VALUE)
		__builtin_memcpy(slot->event.data + at, &value, sizeof(value));
	else if (failed)
		probe_read_kernel(slot->event.data + at, len & (2 * DATA - 1), nothing);
	else
		failed = read_guest(turn, value + read->offset, at, len) != 0;
	if (failed)
		slot->event.failed |= 1 << (n & 15);
	slot->event.len = used + len;
	return 1;
}

INLINE int wanted(struct point *point, struct slot *slot)
{
	if (point->filter == NO_FILTER)
		return 1;
	u32 value, at = slot->begins[point->filter & (READS - 1)] & (DATA - 1);
	__builtin_memcpy(&value, slot->event.data + at, sizeof(value));
	/* What could not be read is told: it is not known to be unwanted. */
	if ((slot->event.failed >> (point->filter & 15)) & 1)
		return 1;
	return value < 64 && ((point->mask >> (value & 63)) & 1);
}

/* Other processors take slots, too: so often it is tried. */
#define TRIES 8

/* Takes a slot; 0: there is none, which is counted. */
INLINE int take(struct shared *all, u64 *turn)
{
	for (int n = 0; n < TRIES; n++) {
		u64 head = *(volatile u64 *)&all->head;
		if (head - *(volatile u64 *)&all->tail >= SLOTS)
			break;
		if (__sync_val_compare_and_swap(&all->head, head, head + 1) == head) {
			*turn = head;
			return 1;
		}
	}
	__sync_fetch_and_add(&all->dropped, 1);
	return 0;
}

/* Which point is at this address; POINTS: none. */
INLINE u32 find(struct shared *all, u64 address)
{
	for (u32 place = 0; place < POINTS; place++) {
		u64 at = all->places[place];
		if (!at)
			break;
		if (at == address)
			return place;
	}
	u32 *place = map_lookup(&more, &address);
	return place ? *place : POINTS;
}

INLINE int hit(u64 vcpu, u64 before)
{
	struct shared *all = ONLY(shared);
	if (!all || !vcpu || current_pid_tgid() >> 32 != all->target.tgid)
		return 0;
	u64 rip = 0;
	probe_read_kernel(&rip, sizeof(rip), (void *)(vcpu + all->target.rip));
	u32 place = find(all, rip - before), id = 0;
	u64 turn;
	if (place >= POINTS || !take(all, &turn))
		return 0;
	struct slot *slot = slot_of(all, turn);
	struct point *point = &all->points[place & (POINTS - 1)];
	slot->event.ns = ktime_get_ns();
	slot->event.failed = 0;
	slot->event.len = 0;
	slot->event.point = point->id;
	probe_read_kernel(&id, sizeof(id), (void *)(vcpu + all->target.vcpu_id));
	slot->event.vcpu = id;
	u32 reads = point->count;
	for (u32 n = 0; n < READS; n++)
		if (n >= reads || !make(turn, vcpu, place, n))
			break;
	if (!wanted(point, slot)) {
		/* Given back, if no other processor has taken the next one meanwhile. */
		if (__sync_val_compare_and_swap(&all->head, turn + 1, turn) == turn + 1)
			return 0;
		slot->event.len = NOTHING;
	}
	/* x86 keeps stores in order, and so must the compiler. */
	__asm__ volatile("" ::: "memory");
	*(volatile u64 *)&slot->turn = turn + 1;
	return 0;
}

SEC("kprobe/handle_ud")
int handle_ud(struct pt_regs *ctx)
{
	return hit(ctx->di, 0);
}

SEC("kprobe/kvm_fast_pio")
int kvm_fast_pio(struct pt_regs *ctx)
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
