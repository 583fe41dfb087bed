/*
 * From QEMU's direct boot (PVH: 32 bits, flat segments, no paging, interrupts off) to main(), with descriptors and a stack of our own.
 * https://xenbits.xen.org/docs/unstable/misc/pvh.html
 */
	.section .note.pvh, "a", @note
	.balign 4
	.long 4		/* "Xen" and its zero */
	.long 4
	.long 18	/* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.long entry

	.text
	.globl entry
	.type entry, @function
entry:
	cld
	lgdt descriptors_at
	ljmp $0x08, $segments
segments:
	movw $0x10, %ax
	movw %ax, %ds
	movw %ax, %es
	movw %ax, %fs
	movw %ax, %gs
	movw %ax, %ss
	movl $stack_end, %esp
	xorl %ebp, %ebp
	movl $bss_begin, %edi
	movl $bss_end, %ecx
	subl %edi, %ecx
	xorl %eax, %eax
	rep stosb
	call main
stop:
	cli
	hlt
	jmp stop
	.size entry, . - entry

	.section .rodata
	.balign 8
descriptors:
	.quad 0
	.quad 0x00cf9a000000ffff	/* 0x08: code, all of 4 GiB */
	.quad 0x00cf92000000ffff	/* 0x10: data, the same */
descriptors_at:
	.word . - descriptors - 1
	.long descriptors

	.section .stack, "aw", @nobits
	.balign 16
	.skip 16384
stack_end:
