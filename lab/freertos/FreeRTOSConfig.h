/* FreeRTOS in the lab: https://www.freertos.org/a00110.html says what each of these is. */
#ifndef FREERTOS_CONFIG_H
#define FREERTOS_CONFIG_H

#define configUSE_PREEMPTION 1
#define configUSE_TIME_SLICING 1
#define configUSE_PORT_OPTIMISED_TASK_SELECTION 1
#define configCPU_CLOCK_HZ 1000000000ul /* of QEMU's local APIC timer */
#define configTICK_RATE_HZ 1000
#define configMAX_PRIORITIES 8
#define configMINIMAL_STACK_SIZE 512 /* words */
#define configISR_STACK_SIZE 1024
#define configMAX_TASK_NAME_LEN 12
#define configTICK_TYPE_WIDTH_IN_BITS TICK_TYPE_WIDTH_32_BITS
#define configTOTAL_HEAP_SIZE (256 * 1024)
#define configSUPPORT_STATIC_ALLOCATION 0
#define configUSE_MUTEXES 0
#define configUSE_TIMERS 0
#define configUSE_IDLE_HOOK 1
#define configUSE_TICK_HOOK 0
#define configCHECK_FOR_STACK_OVERFLOW 0
#define configSUPPORT_FPU 0
#define configUSE_COMMON_INTERRUPT_ENTRY_POINT 0
#define configMAX_API_CALL_INTERRUPT_PRIORITY 15

#define INCLUDE_vTaskDelay 1
#define INCLUDE_xTaskDelayUntil 1
#define INCLUDE_vTaskDelete 1
#define INCLUDE_vTaskPrioritySet 1
#define INCLUDE_vTaskSuspend 1
#define INCLUDE_xTaskGetCurrentTaskHandle 1
#define INCLUDE_xTaskGetIdleTaskHandle 1

#ifndef __ASSEMBLER__ /* the port has assembly that includes this */
void guest_failed(const char *file, int line);
#endif
#define configASSERT(holds) do { if (!(holds)) guest_failed(__FILE__, __LINE__); } while (0)

#include "timevisor-freertos.h"

#endif
