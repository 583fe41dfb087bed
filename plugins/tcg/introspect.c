/*
 * A plugin for QEMU's TCG: tells timevisord about calls of some functions of the guest's kernel, with registers and memory.
 *
 *   qemu-system-x86_64 -plugin libtimevisor-introspect.so,socket=/run/timevisor/web.introspect ...
 *
 * Only translated blocks with a wanted instruction get a call; all other code is what it would be without. Points change by
 * qemu_plugin_reset(): QEMU stops the vCPUs, throws all translations away and lets the plugin register again. That needs a vCPU's
 * thread, so it waits for the next translation, or for a vCPU that goes idle or is resumed (timevisord may stop and resume the VM).
 * A vCPU never waits: what finds its ring full is dropped and counted. Without timevisord there are no points.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include "introspect.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

EXPORT int qemu_plugin_version = 4;

struct plugin plugin = { .lock = PTHREAD_MUTEX_INITIALIZER, .resetting = ATOMIC_FLAG_INIT };

static const char *const names[REGISTERS] = {
	"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8",
	"r9", "r10", "r11", "r12", "r13", "r14", "r15", "gs_base", "cr3",
};

static uint64_t host_counter(void)
{
#ifdef __x86_64__
	return __rdtsc();
#else
	return 0;
#endif
}

static bool register_value(struct vcpu *vcpu, unsigned which, uint64_t *value)
{
	int got;

	*value = 0;
	if (!vcpu->registers[which])
		return false;
	g_byte_array_set_size(vcpu->buffer, 0);
	got = qemu_plugin_read_register(vcpu->registers[which], vcpu->buffer);
	if (got <= 0)
		return false;
	memcpy(value, vcpu->buffer->data, got > 8 ? 8 : got);
	return true;
}

static bool memory(struct vcpu *vcpu, uint64_t address, uint8_t *to, unsigned length)
{
	if (address + length < address || !qemu_plugin_read_memory_vaddr(address, vcpu->buffer, length))
		return false;
	memcpy(to, vcpu->buffer->data, length);
	return true;
}

/* Fills the event's data; false: the filter says that nobody wants it. */
static bool gather(struct vcpu *vcpu, const struct point *point, struct slot *slot)
{
	uint64_t values[MAX_READS] = { 0 };
	unsigned at = 0;

	slot->head.failed = 0;
	for (unsigned r = 0; r < point->head.reads; r++) {
		const struct read *read = &point->reads[r];
		uint64_t base = 0;
		bool good = true;

		if (read->base == EARLIER)
			base = values[read->index], good = base != 0;
		else if (read->base != ABSOLUTE)
			good = register_value(vcpu, read->index, &base);
		base += (uint64_t)read->offset;
		memset(slot->data + at, 0, read->length);
		if (good && read->base == VALUE)
			memcpy(slot->data + at, &base, 8);
		else if (good)
			good = memory(vcpu, base, slot->data + at, read->length);
		if (good)
			memcpy(&values[r], slot->data + at, read->length > 8 ? 8 : read->length);
		else
			slot->head.failed |= 1u << r;
		if (good && r == point->head.filter && (values[r] > 63 || !(point->head.mask >> values[r] & 1)))
			return false;
		at += read->length;
	}
	slot->head.length = at;
	return true;
}

static void hit(unsigned index, void *data)
{
	const struct point *point = data;
	struct vcpu *vcpu = index < MAX_VCPUS ? atomic_load_explicit(&plugin.vcpus[index], memory_order_acquire) : NULL;
	uint64_t head;
	struct slot *slot;
	bool full;

	if (!vcpu) {
		atomic_fetch_add(&plugin.dropped, 1);
		return;
	}
	head = atomic_load_explicit(&vcpu->head, memory_order_relaxed);
	full = head - atomic_load_explicit(&vcpu->tail, memory_order_acquire) >= RING;
	/* Also where there is no place: only what somebody would have been told counts as dropped. */
	slot = full ? &vcpu->spare : &vcpu->ring[head % RING];
	if (!gather(vcpu, point, slot))
		return;
	if (full) {
		atomic_fetch_add(&plugin.dropped, 1);
		return;
	}
	slot->head.counter = host_counter();
	slot->head.point = point->head.id;
	slot->head.vcpu = index;
	/* Taken only by what will be told: sequences have no gaps, and order events across vCPUs. */
	slot->head.sequence = atomic_fetch_add(&plugin.sequence, 1);
	atomic_store_explicit(&vcpu->head, head + 1, memory_order_release);
}

static void install(qemu_plugin_id_t id);

/* On a vCPU's thread. */
static void apply(void)
{
	if (atomic_load(&plugin.wanted_generation) == atomic_load(&plugin.active_generation))
		return;
	if (!atomic_flag_test_and_set(&plugin.resetting))
		qemu_plugin_reset(plugin.id, install);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	apply();
	/* Of programs under a kernel nothing is ever wanted: most translations are left alone. */
	if (!plugin.active.count || !(plugin.active.low || qemu_plugin_tb_vaddr(tb) >> 63))
		return;
	for (size_t i = 0, count = qemu_plugin_tb_n_insns(tb); i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t address = qemu_plugin_insn_vaddr(insn);

		for (unsigned n = 0; n < plugin.active.count; n++) {
			struct point *point = &plugin.active.all[n];
			struct mismatch *mismatch = &plugin.mismatches[n];
			uint8_t bytes[16] = { 0 };
			size_t size = qemu_plugin_insn_size(insn);
			int none = 0;

			if (point->head.address != address)
				continue;
			qemu_plugin_insn_data(insn, bytes, sizeof(bytes));
			if (size >= point->head.expected_len && !memcmp(bytes, point->head.expected, point->head.expected_len)) {
				qemu_plugin_register_vcpu_insn_exec_cb(insn, hit, QEMU_PLUGIN_CB_R_REGS, point);
			} else if (atomic_compare_exchange_strong(&mismatch->state, &none, 1)) {
				mismatch->length = size > 8 ? 8 : size;
				memcpy(mismatch->found, bytes, 8);
				atomic_store(&mismatch->state, 2);
			}
		}
	}
}

static void turned(qemu_plugin_id_t id, unsigned vcpu)
{
	(void)id;
	(void)vcpu;
	apply();
}

static void initialized(qemu_plugin_id_t id, unsigned index)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	extern void start_thread(void);
	struct vcpu *vcpu;
	GArray *all;
	uint32_t known = 0;

	(void)id;
	/* Not earlier: QEMU may have forked into the background since the plugin was loaded. */
	pthread_once(&once, start_thread);
	if (index >= MAX_VCPUS || atomic_load(&plugin.vcpus[index]))
		return;
	vcpu = calloc(1, sizeof(*vcpu));
	if (!vcpu)
		return;
	vcpu->buffer = g_byte_array_new();
	all = qemu_plugin_get_registers();
	for (unsigned i = 0; i < all->len; i++) {
		qemu_plugin_reg_descriptor *one = &((qemu_plugin_reg_descriptor *)all->data)[i];

		for (unsigned r = 0; r < REGISTERS; r++) {
			if (!strcmp(one->name, names[r])) {
				vcpu->registers[r] = one->handle;
				known |= 1u << r;
			}
		}
	}
	g_array_free(all, 1);
	atomic_store(&plugin.known_registers, known);
	atomic_store_explicit(&plugin.vcpus[index], vcpu, memory_order_release);
}

void start_thread(void)
{
	sigset_t all, before;
	pthread_t thread;

	/* QEMU's signals are for QEMU's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* It inherits the vCPU's name, by which others find vCPUs: serve() gives it its own. */
	if (pthread_create(&thread, NULL, serve, NULL))
		fprintf(stderr, "timevisor-introspect: cannot start a thread; nobody will be answered\n");
	else
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void ended(qemu_plugin_id_t id, void *unused)
{
	extern int unlink(const char *);

	(void)id;
	(void)unused;
	unlink(plugin.path);
}

static void register_all(qemu_plugin_id_t id)
{
	qemu_plugin_register_vcpu_init_cb(id, initialized);
	qemu_plugin_register_vcpu_idle_cb(id, turned);
	qemu_plugin_register_vcpu_resume_cb(id, turned);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, ended, NULL);
}

/* With all vCPUs stopped and no translation left. */
static void install(qemu_plugin_id_t id)
{
	pthread_mutex_lock(&plugin.lock);
	plugin.active = plugin.wanted;
	for (unsigned n = 0; n < MAX_POINTS; n++)
		atomic_store(&plugin.mismatches[n].state, 0);
	register_all(id);
	atomic_store(&plugin.active_count, plugin.active.count);
	atomic_store(&plugin.active_generation, atomic_load(&plugin.wanted_generation));
	pthread_mutex_unlock(&plugin.lock);
	atomic_flag_clear(&plugin.resetting);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	const char *path = NULL;
	struct timespec now;

	for (int n = 0; n < argc; n++) {
		if (!strncmp(argv[n], "socket=", 7)) {
			path = argv[n] + 7;
		} else {
			fprintf(stderr, "timevisor-introspect: unknown option %s; it takes socket=PATH\n", argv[n]);
			return 1;
		}
	}
	if (!path || !info->system_emulation || strcmp(info->target_name, "x86_64")) {
		fprintf(stderr, "timevisor-introspect: needs socket=PATH and qemu-system-x86_64\n");
		return 1;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	plugin.epoch = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	plugin.id = id;
	if (listen_at(path))
		return 1;
	register_all(id);
	return 0;
}
