/*
 * What brickOS has in H8 assembly: the switch of tasks, yield(), the idle task, and the timer's
 * interrupt.
 *
 * A suspended task's stack, from its saved stack pointer up, in words:
 *   0   ebp edi esi ebx
 *   4   where tm_switcher() returns to
 *   5   eight registers (pushal)
 *   13  eip cs eflags
 */
	.text

	.globl timer_interrupt
	.type timer_interrupt, @function
timer_interrupt:
	pushal
	cld
	call port_tick		/* not 0: the time slice is over */
	testl %eax, %eax
	jz resume
	call *tm_switcher_vector
	.globl systime_tm_return
systime_tm_return:
	call port_new_slice
resume:
	popal
	iret

	/* Looks like an interrupt to the switch, as it does in brickOS. */
	.globl yield
	.type yield, @function
yield:
	popl %eax
	pushfl
	pushl %cs
	pushl %eax
	cli
	pushal
	call tm_switcher
	jmp systime_tm_return

	.globl tm_switcher
	.type tm_switcher, @function
tm_switcher:
	pushl %ebx
	pushl %esi
	pushl %edi
	pushl %ebp
	movl %esp, %eax
	pushl %eax
	call tm_scheduler
	movl %eax, %esp
	popl %ebp
	popl %edi
	popl %esi
	popl %ebx
	.globl rom_dummy_handler
rom_dummy_handler:
	.globl rom_ocia_return
rom_ocia_return:
	ret

	/*
	 * A task's function returned: its result is what exit() gets. exit() is trapped before it
	 * logs, so no other task may run in between.
	 */
	.globl task_returned
task_returned:
	cli
	pushl %eax
	call exit

	.globl other_interrupt
other_interrupt:
	pushl %eax
	movb $0x20, %al
	outb %al, $0x20
	popl %eax
	iret

	.globl fault
fault:
	cli
	cld
	call port_fault

	.globl tm_idle_task
	.type tm_idle_task, @function
tm_idle_task:
	hlt
	jmp tm_idle_task

	/* Tasks whose code is above belong to brickOS's kernel: the idle task. */
	.globl mm_start
mm_start:
