/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* What a guest's tasks ask of their kernel, seen where KVM emulates the instruction that timevisord has put in place of a NOP
 * (KVM's forced emulation prefix: arch/x86/kvm/x86.c, handle_ud; or a write to a port: kvm_fast_pio).
 *
 * | program | where |
 * | --- | --- |
 * | handle_ud | KVM begins to handle an invalid instruction, AMD: the guest is at the prefix |
 * | kvm_fast_pio | KVM begins to handle a write to a port or a read from one, AMD: the guest is there |
 * | x86_emulate_instruction | KVM begins to emulate one, Intel: if by the prefix, the guest was five bytes before. NOT VERIFIED ON HARDWARE |
 *
 * Kprobes, because they are not preempted. On a tracepoint of Linux 7.3 a program is: the one of another vCPU that comes to the same processor
 * meanwhile is not run, and nobody counts it (seen: 69 of 70 events). handle_ud is too early on Intel: KVM has not read the guest's place then.
 *
 * The guest's memory is read through QEMU's mapping of it, because the thread that runs here is a vCPU of QEMU's. Guest-virtual addresses
 * are where the guest's kernel has all memory in order, or are walked by its page tables, at most five entries for each page. Nothing is
 * written, nobody waits; what does not fit into the ring is counted. Where things are in KVM's structures is told by timevisord, by the
 * kernel's BTF. Tested with Linux 6.1 and 7.3.
 *
 * An exit of a guest leaves little in the processor's caches: how many pages are touched here, and how often a helper is called, is what it costs. So a
 * vCPU's number and GS_BASE are remembered, the kernel's memory in order is read in one piece, and nothing is read of whom the filter leaves out.
 * The time is KVM's own reading of the counter at the exit (arch/x86/kvm/x86.c, vcpu_enter_guest), because BPF cannot read it.
 */
#include "introspect.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

/* include/uapi/linux/bpf.h */
enum { MAP_HASH = 1, MAP_ARRAY = 2 };
#define F_MMAPABLE (1U << 10)

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static u64 (*const current_task)(void) = (void *)35;
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

/* arch/x86/include/asm/ptrace.h */
struct pt_regs {
	u64 before_dx[12];
	u64 dx;
	u64 si;
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

/* Not static: the verifier checks such a function once, and not again for each call. That keeps all of it far below the limit of Linux 6.1, which
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

/* `len` bytes, in up to two pages that are looked for by the guest's page tables, to the event's byte `at`; all of them 0 if it fails. */
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

/* GS_BASE or CR3 of a vCPU; 0: it could not be read. */
ONCE u64 special_register(u64 vcpu, u64 of)
{
	u64 value = 0, vmcb = 0;
	struct shared *all = ONLY(shared);
	if (!all)
		return 0;
	struct target *target = &all->target;
	if (target->vmcb) {
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

/* Which entry is this vCPU's; KNOWN: none. By its thread, too: the kernel may give the place of one that has ended to another VM's. */
ONCE u32 recall(u64 vcpu, u64 task)
{
	struct shared *all = ONLY(shared);
	if (!all)
		return KNOWN;
	for (u32 n = 0; n < KNOWN; n++) {
		u64 is = *(volatile u64 *)&all->known[n].vcpu;
		if (!is)
			break;
		if (is == vcpu && all->known[n].task == task)
			return n;
	}
	return KNOWN;
}

/* Makes an entry of a vCPU that is at a trap point, where GS_BASE is the kernel's; KNOWN: there is none. All are forgotten with the points (after a reset or a
 * kexec). A vCPU is handled by one thread at a time: nobody else looks for its entry meanwhile. */
ONCE u32 remember(u64 vcpu, u64 task)
{
	struct shared *all = ONLY(shared);
	if (!all)
		return KNOWN;
	for (u32 n = 0; n < KNOWN; n++) {
		struct known *known = &all->known[n];
		if (__sync_val_compare_and_swap(&known->vcpu, 0, CLAIMED))
			continue;
		u32 id = 0;
		known->gs_base = special_register(vcpu, GS_BASE);
		known->task = task;
		if (probe_read_kernel(&id, sizeof(id), (void *)(vcpu + all->target.vcpu_id)) || !known->gs_base) {
			*(volatile u64 *)&known->vcpu = 0;
			return KNOWN;
		}
		known->id = id;
		__asm__ volatile("" ::: "memory");
		*(volatile u64 *)&known->vcpu = vcpu;
		return n;
	}
	return KNOWN;
}

INLINE struct known *known_at(struct shared *all, u64 who)
{
	if (who >= KNOWN)
		return 0;
	FORGET(who);
	return &all->known[who & (KNOWN - 1)];
}

/* What an earlier read of 8 or 4 bytes gave. */
INLINE u64 pointer(struct event *event, struct point *point, u32 of)
{
	u64 value = 0;
	struct read *read = &point->reads[of & (READS - 1)];
	__builtin_memcpy(&value, event->data + (read->at & (DATA - 1)), sizeof(value));
	return read->len == 4 ? (u32)value : value;
}

/* Makes read n, through this pointer, of what an earlier one has given; nonzero: that was through another pointer, or failed. */
ONCE int again(u64 turn, u64 place, u64 n, u64 value)
{
	struct shared *all = ONLY(shared);
	if (!all)
		return -1;
	struct event *event = &slot_of(all, turn)->event;
	struct point *point = &all->points[place & (POINTS - 1)];
	struct read *read = &point->reads[n & (READS - 1)], *like = &point->reads[read->like & (READS - 1)];
	if (pointer(event, point, like->of) != value || (event->failed >> (read->like & (READS - 1))) & 1)
		return -1;
	u32 len = read->len;
	FORGET(len);
	return probe_read_kernel(event->data + (read->at & (DATA - 1)), len & (2 * DATA - 1), event->data + (like->at & (DATA - 1)));
}

/* Makes all reads of a point. 0: its filter has left the event out, and the reads after that one are not made. */
ONCE int gather(u64 turn, u64 vcpu, u64 place, u64 who)
{
	struct shared *all = ONLY(shared);
	if (!all)
		return 0;
	struct target *target = &all->target;
	struct event *event = &slot_of(all, turn)->event;
	struct point *point = &all->points[place & (POINTS - 1)];
	struct known *known = known_at(all, who);
	u32 count = point->count, filter = point->filter;
	/* In memory: the verifier of Linux 6.1 would follow every way in which reads can fail. */
	volatile u16 *failed = &event->failed;
	*failed = 0;
	for (u32 n = 0; n < READS; n++) {
		if (n >= count)
			break;
		struct read *read = &point->reads[n];
		u32 at = read->at & (DATA - 1), len = read->len & (2 * DATA - 1), of = read->of, is = read->base;
		u8 *out = event->data + at;
		u64 value = 0;
		int bad = 0;
		if (is == BASE_EARLIER) {
			value = pointer(event, point, of);
			bad = (*failed >> (of & (READS - 1))) & 1;
			if (read->like != NONE && !bad && !again(turn, place, n, value))
				continue;
		} else if (is != BASE_ABSOLUTE) {
			if (of < REGISTERS)
				probe_read_kernel(&value, sizeof(value), (void *)(vcpu + target->registers + 8 * of));
			else if (of == GS_BASE && known)
				value = known->gs_base;
			else
				value = special_register(vcpu, of);
		}
		if (is == BASE_VALUE) {
			__builtin_memcpy(out, &value, sizeof(value));
		} else if (bad) {
			FORGET(len);
			probe_read_kernel(out, len & (2 * DATA - 1), nothing);
		} else {
			u64 address = value + read->offset, from = 0;
			if (target->linear && address >= target->linear)
				from = mapped(target, address - target->linear, len);
			FORGET(len);
			/* What fails has been filled with 0. */
			bad = from ? probe_read_user(out, len & (2 * DATA - 1), (void *)from) != 0
				   : read_guest(turn, address, at, len) != 0;
		}
		if (bad)
			*failed |= 1 << n;
		/* What could not be read is told: it is not known to be unwanted. */
		if (n == filter && !bad) {
			u32 number;
			__builtin_memcpy(&number, out, sizeof(number));
			if (number >= 64 || !((point->mask >> (number & 63)) & 1))
				return 0;
		}
	}
	event->len = point->len;
	return 1;
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
	if (!all || !vcpu)
		return 0;
	u64 rip = 0, times[3] = {0}, turn, task = current_task();
	u32 who = recall(vcpu, task);
	if (who >= KNOWN && current_pid_tgid() >> 32 != all->target.tgid)
		return 0;
	probe_read_kernel(&rip, sizeof(rip), (void *)(vcpu + all->target.rip));
	u32 place = find(all, rip - before);
	if (place >= POINTS || !take(all, &turn))
		return 0;
	if (who >= KNOWN)
		who = remember(vcpu, task);
	struct slot *slot = slot_of(all, turn);
	struct known *known = known_at(all, who);
	if (known) {
		slot->event.vcpu = known->id;
	} else {
		u32 id = 0;
		probe_read_kernel(&id, sizeof(id), (void *)(vcpu + all->target.vcpu_id));
		slot->event.vcpu = id;
	}
	probe_read_kernel(times, sizeof(times), (void *)(vcpu + all->target.times));
	slot->event.scaled = times[2] - times[0];
	slot->event.point = all->points[place & (POINTS - 1)].id;
	if (!gather(turn, vcpu, place, who)) {
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

/* arch/x86/include/asm/kvm_host.h */
#define EMULTYPE_TRAP_UD_FORCED (1 << 4)

/* vCPU, address, why. Of all other reasons KVM may not have read where the guest is. */
SEC("kprobe/x86_emulate_instruction")
int x86_emulate_instruction(struct pt_regs *ctx)
{
	return (u32)ctx->dx & EMULTYPE_TRAP_UD_FORCED ? hit(ctx->di, 5) : 0;
}

/* The kernel gives its helpers to programs under GPL-compatible terms only. */
char terms[] SEC("license") = "Dual MIT/GPL";
