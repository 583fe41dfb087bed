/*
 * The declarations of QEMU's plugin API that introspect.c uses, written from its documentation: API
 * version 4 (QEMU 9.2, 10.0), which no distribution ships a header of. GLib's two array types are
 * declared, too: QEMU brings the functions along.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#ifndef TIMEVISOR_QEMU_PLUGIN_H
#define TIMEVISOR_QEMU_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;

typedef struct {
	const char *target_name;
	struct {
		int min;
		int cur;
	} version;
	bool system_emulation;
	struct {
		int smp_vcpus;
		int max_vcpus;
	} system;
} qemu_info_t;

typedef struct {
	uint8_t *data;
	unsigned len;
} GByteArray;

typedef struct {
	char *data;
	unsigned len;
} GArray;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_register;

typedef struct {
	struct qemu_plugin_register *handle;
	const char *name;
	const char *feature;
} qemu_plugin_reg_descriptor;

enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_CB_R_REGS };

typedef void (*simple_cb)(qemu_plugin_id_t);
typedef void (*vcpu_cb)(qemu_plugin_id_t, unsigned);
typedef void (*trans_cb)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*exec_cb)(unsigned, void *);

extern GByteArray *g_byte_array_new(void);
extern GByteArray *g_byte_array_set_size(GByteArray *, unsigned);
extern char *g_array_free(GArray *, int);

extern void qemu_plugin_reset(qemu_plugin_id_t, simple_cb);
extern void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, vcpu_cb);
extern void qemu_plugin_register_vcpu_idle_cb(qemu_plugin_id_t, vcpu_cb);
extern void qemu_plugin_register_vcpu_resume_cb(qemu_plugin_id_t, vcpu_cb);
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, trans_cb);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, exec_cb, enum qemu_plugin_cb_flags, void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
extern GArray *qemu_plugin_get_registers(void);
extern int qemu_plugin_read_register(struct qemu_plugin_register *, GByteArray *);
extern bool qemu_plugin_read_memory_vaddr(uint64_t, GByteArray *, size_t);

#endif
