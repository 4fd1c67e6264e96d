/* fiber: stacks to run on in turn, within one OS thread.
 *
 * A switch saves the registers that a call preserves and goes on where the other fiber left off; on
 * x86-64 that is a dozen instructions, elsewhere ucontext. Switches are announced to the address
 * and thread sanitizers. Below each stack lies a page that may not be touched.
 *
 * Used by: the emulator's engine.   Uses: libc.
 * Threads: a fiber lives and runs on the OS thread that made it.
 */
#ifndef HD_CUDASIM_FIBER_H
#define HD_CUDASIM_FIBER_H

#include <stddef.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct hd_fiber {
    void *map; /* guard page and stack; NULL for the fiber that the OS gave the thread */
    void *bottom;
    size_t size_bytes;
    void *fake; /* AddressSanitizer's stack of this fiber while it is away */
    void *tsan;
    void (*entry)(void);
#if defined(__x86_64__)
    void *pointer; /* top of the saved registers */
#else
    ucontext_t context;
#endif
};

/* `fiber` becomes the calling thread itself, to switch away from and back to. */
void hd_fiber_here(struct hd_fiber *fiber);

/* A stack of its own; returns 0, or -1 without memory. */
int hd_fiber_init(struct hd_fiber *fiber, size_t stack_bytes);
void hd_fiber_done(struct hd_fiber *fiber);

/* The next switch to `fiber` calls entry, which never returns: its last act is hd_fiber_leave. */
void hd_fiber_prepare(struct hd_fiber *fiber, void (*entry)(void));

void hd_fiber_switch(struct hd_fiber *from, struct hd_fiber *to);

/* What entry does first, and last: `from` may be prepared again. */
void hd_fiber_entered(struct hd_fiber *self, struct hd_fiber *from);
void hd_fiber_leave(struct hd_fiber *from, struct hd_fiber *to);

#endif
