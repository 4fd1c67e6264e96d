/* fiber: cooperative threads within one OS thread.
 *
 * A switch saves the callee-saved registers and resumes the other fiber; on x86-64 in a dozen
 * instructions, elsewhere with ucontext. The address and thread sanitizers are told about switches.
 * Below each stack is a guard page.
 *
 * Used by: the emulator's engine.   Uses: libc.
 * Threads: a fiber runs only on the OS thread that created it.
 */
#ifndef HD_CUDASIM_FIBER_H
#define HD_CUDASIM_FIBER_H

#include <stddef.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct hd_fiber {
    void *map; /* guard page and stack; NULL for the OS thread's own stack */
    void *bottom;
    size_t size_bytes;
    void *fake; /* AddressSanitizer's fake stack of this fiber while it is not running */
    void *tsan;
    void (*entry)(void);
#if defined(__x86_64__)
    void *pointer; /* top of the saved registers */
#else
    ucontext_t context;
#endif
};

/* Makes `fiber` represent the calling OS thread, so that it can be switched from and back to. */
void hd_fiber_here(struct hd_fiber *fiber);

/* Allocates a stack; returns 0, or -1 if there is no memory. */
int hd_fiber_init(struct hd_fiber *fiber, size_t stack_bytes);
void hd_fiber_done(struct hd_fiber *fiber);

/* The next switch to `fiber` calls entry, which must end with hd_fiber_leave and never return. */
void hd_fiber_prepare(struct hd_fiber *fiber, void (*entry)(void));

void hd_fiber_switch(struct hd_fiber *from, struct hd_fiber *to);

/* The first and the last call of entry. After hd_fiber_leave, `from` may be prepared again. */
void hd_fiber_entered(struct hd_fiber *self, struct hd_fiber *from);
void hd_fiber_leave(struct hd_fiber *from, struct hd_fiber *to);

#endif
