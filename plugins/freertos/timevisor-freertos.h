/*
 * Makes a FreeRTOS guest known to Timevisor: include this at the end of FreeRTOSConfig.h, have this directory among the include
 * directories, and compile tasks.c with `-pg -mfentry -mnop-mcount`, which gives every function a NOP of 5 bytes at its beginning.
 * docs/how-to/introspect-rtos.md says how it is used. It costs one call for each task that is created, and nothing else.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef TIMEVISOR_FREERTOS_H
#define TIMEVISOR_FREERTOS_H

/* Has tasks.c include freertos_tasks_c_additions.h, which alone sees what a task control block is. */
#define configINCLUDE_FREERTOS_TASK_C_ADDITIONS_H 1

#ifdef traceTASK_CREATE
#error "traceTASK_CREATE is defined: have it call timevisor_task_created(tcb), and define it after this header"
#endif
/* The kernel's own functions have no place where a new task is known and the arguments are where the ABI says. */
#define traceTASK_CREATE(tcb) timevisor_task_created(tcb)

#ifndef __ASSEMBLER__ /* ports have assembly that includes FreeRTOSConfig.h */
void timevisor_task_created(const void *tcb);
#endif

#endif
