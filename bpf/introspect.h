/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* What timevisord tells the programs of introspect.bpf.c, and what they tell it. Little endian, no padding that is not named; the
 * other side is crates/introspection/src/backend/kvm/codec.rs, which has the same numbers in its tests.
 */
#ifndef TIMEVISOR_INTROSPECT_H
#define TIMEVISOR_INTROSPECT_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INLINE static __attribute__((always_inline)) inline

/* Limits of one set of points: crates/introspection/src/point.rs. */
#define POINTS 32
#define READS 16
#define DATA 256
/* Addresses beyond the first of each point: those of all system calls, where somebody wants to see what that costs. */
#define MORE 1024
/* Events that wait for timevisord: crates/linux/src/bpf/event_ring.rs. A power of two. */
#define SLOTS 4096

/* Where a read begins. */
enum base { BASE_REGISTER, BASE_EARLIER, BASE_VALUE, BASE_ABSOLUTE };

/* Registers beyond the sixteen that KVM keeps in order. */
enum { REGISTERS = 16, GS_BASE = 16, CR3 = 17 };

struct read {
	u64 offset;
	u8 base;
	/* A register, or an earlier read. */
	u8 of;
	u16 len;
	/* Where its bytes are in the event's: behind those of the reads before. */
	u16 at;
	/* NONE, or an earlier read of the same member through another pointer: if the pointers are the same, so are the bytes. */
	u8 like;
	u8 reserved;
};

#define NONE 0xff

struct point {
	/* Bit n: an event passes if read `filter` gave n. */
	u64 mask;
	u16 id;
	u8 count;
	/* NONE, or a read. */
	u8 filter;
	/* Of all reads' bytes. */
	u16 len;
	u16 reserved;
	struct read reads[READS];
};

/* A piece of the guest's memory, and where QEMU has it. */
struct piece {
	u64 address;
	u64 len;
	u64 mapped;
};

struct target {
	/* QEMU, in the initial pid namespace. */
	u64 tgid;
	/* Guest-physical address of the topmost of the kernel's page tables. */
	u64 root;
	/* 4 or 5. */
	u64 levels;
	struct piece pieces[2];
	/* Where things are in struct kvm_vcpu (the beginning of struct vcpu_svm), by this kernel's BTF. */
	u64 registers;
	u64 rip;
	u64 vcpu_id;
	/* Three words: the offset of the guest's counter, another one, and the guest's counter at the last exit. */
	u64 times;
	/* vcpu_svm.vmcb, and in a VMCB. 0: not AMD. */
	u64 vmcb;
	u64 gs_base;
	u64 cr3;
	/* Not AMD: guest-virtual address of an array with the GS_BASE of each of the guest's processors. */
	u64 bases;
	/* Guest-virtual address from which on the guest's kernel has all of its memory, in order; 0: it has none. */
	u64 linear;
};

/* What is told of a hit; `len` bytes of data follow. */
struct event {
	/* The host's counter at the exit, as KVM read it, times the ratio of the guest's rate to the host's. */
	u64 scaled;
	u16 point;
	u16 vcpu;
	/* Bit n: read n failed, its bytes are 0. */
	u16 failed;
	/* NOTHING: the point's filter did not let it through. */
	u16 len;
	u8 data[DATA];
};

#define NOTHING 0xffff

/* Turn t of a slot is that of event t: it is complete when `turn` is t + 1. */
struct slot {
	u64 turn;
	struct event event;
	/* Whole lines of the cache. */
	u64 reserved[5];
};

/* What does not change as long as a vCPU's guest has the same kernel: its place in KVM, its thread, and what is read there. */
struct known {
	/* 0: this entry is free. CLAIMED: it is being written. */
	u64 vcpu;
	u64 task;
	u64 id;
	u64 gs_base;
};

#define CLAIMED 1

/* So many vCPUs are remembered; those beyond are asked each time. */
#define KNOWN 32

/* What both sides see. In one piece, because each page that is touched after an exit costs: what every hit needs is at its beginning. */
struct shared {
	/* Slots that were taken so far: by the programs. */
	u64 head;
	/* Slots that were given back: by timevisord. */
	u64 tail;
	/* Events that found no slot. */
	u64 dropped;
	/* The programs' own. */
	struct known known[KNOWN];
	/* What is asked for; timevisord writes it before any program runs. */
	struct target target;
	/* Virtual address of each point's trapping instruction; 0: no further ones. */
	u64 places[POINTS];
	struct point points[POINTS];
	struct slot slots[SLOTS];
	/* A read begins within the first DATA bytes, and its second page within DATA from there: room for what the verifier thinks of. */
	u8 room[2 * DATA];
};

#endif
