/* What brickOS's task manager needs of the machine; Debian's source package has no such file. */
#ifndef SYS_IRQ_H
#define SYS_IRQ_H

#define enable_irqs() __asm volatile("sti" ::: "memory")
#define disable_irqs() __asm volatile("cli" ::: "memory")

/* The switcher while there are no tasks: returns. */
extern void rom_dummy_handler(void);
/* Only its address is used, in the part of a new task's stack that an H8 would read. */
extern void rom_ocia_return(void);

#endif
