/*
 * Lets Timevisor introspect a FreeRTOS guest: include this at the end of FreeRTOSConfig.h, add this
 * directory to the include directories, and compile tasks.c with `-pg -mfentry -mnop-mcount`, which
 * gives every function a NOP of 5 bytes at its beginning. docs/how-to/introspect-rtos.md explains
 * its use. Its only cost is one call for each task that is created.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef TIMEVISOR_FREERTOS_H
#define TIMEVISOR_FREERTOS_H

/* Makes tasks.c include freertos_tasks_c_additions.h: only there the task control block is a complete type. */
#define configINCLUDE_FREERTOS_TASK_C_ADDITIONS_H 1

#ifdef traceTASK_CREATE
#error "traceTASK_CREATE is defined: have it call timevisor_task_created(tcb), and define it after this header"
#endif
/* No function of the kernel has both a complete new task and its arguments where the ABI says. */
#define traceTASK_CREATE(tcb) timevisor_task_created(tcb)

#ifndef __ASSEMBLER__ /* ports have assembly that includes FreeRTOSConfig.h */
void timevisor_task_created(const void *tcb);
#endif

#endif
