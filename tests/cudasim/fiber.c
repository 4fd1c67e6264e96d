#include "tests/cudasim/fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif

#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef WITH_TSAN
#include <sanitizer/tsan_interface.h>
#endif

enum { PAGE_BYTES = 4096 };

#if defined(__x86_64__)
/* void hd_cudasim_switch(void **save, void *load): saves the registers on this stack, stores the
 * stack pointer in *save, switches to the stack `load` and restores its registers. */
__asm__(".text\n"
        ".globl hd_cudasim_switch\n"
        ".hidden hd_cudasim_switch\n"
        ".type hd_cudasim_switch, @function\n"
        "hd_cudasim_switch:\n"
        "    .cfi_startproc\n"
        "    pushq %rbp\n    .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %rbp, 0\n"
        "    pushq %rbx\n    .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %rbx, 0\n"
        "    pushq %r12\n    .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %r12, 0\n"
        "    pushq %r13\n    .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %r13, 0\n"
        "    pushq %r14\n    .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %r14, 0\n"
        "    pushq %r15\n    .cfi_adjust_cfa_offset 8\n    .cfi_rel_offset %r15, 0\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %r14\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %r13\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %r12\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %rbx\n    .cfi_adjust_cfa_offset -8\n"
        "    popq %rbp\n    .cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size hd_cudasim_switch, . - hd_cudasim_switch\n");
void hd_cudasim_switch(void **save, void *load);
#endif

void hd_fiber_here(struct hd_fiber *fiber)
{
    pthread_attr_t attr;

    *fiber = (struct hd_fiber){0};
    if (!pthread_getattr_np(pthread_self(), &attr)) {
        (void)pthread_attr_getstack(&attr, &fiber->bottom, &fiber->size_bytes);
        (void)pthread_attr_destroy(&attr);
    }
#ifdef WITH_TSAN
    fiber->tsan = __tsan_get_current_fiber();
#endif
}

int hd_fiber_init(struct hd_fiber *fiber, size_t stack_bytes)
{
    *fiber = (struct hd_fiber){.size_bytes = stack_bytes};
    fiber->map = mmap(NULL, stack_bytes + PAGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber->map == MAP_FAILED) {
        fiber->map = NULL;
        return -1;
    }
    if (mprotect(fiber->map, PAGE_BYTES, PROT_NONE) < 0) {
        hd_fiber_done(fiber);
        return -1;
    }
    fiber->bottom = (char *)fiber->map + PAGE_BYTES;
#ifdef WITH_TSAN
    fiber->tsan = __tsan_create_fiber(0);
#endif
    return 0;
}

void hd_fiber_done(struct hd_fiber *fiber)
{
#ifdef WITH_TSAN
    if (fiber->tsan)
        __tsan_destroy_fiber(fiber->tsan);
#endif
    if (fiber->map)
        (void)munmap(fiber->map, fiber->size_bytes + PAGE_BYTES);
    *fiber = (struct hd_fiber){0};
}

void hd_fiber_prepare(struct hd_fiber *fiber, void (*entry)(void))
{
    fiber->entry = entry;
    fiber->fake = NULL;
#if defined(__x86_64__)
    void **top = (void **)((char *)fiber->bottom + fiber->size_bytes);

    *--top = NULL; /* ends a debugger's backtrace, and aligns the stack as after a call */
    *--top = (void *)(uintptr_t)entry;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    fiber->pointer = top;
#else
    (void)getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->bottom;
    fiber->context.uc_stack.ss_size = fiber->size_bytes;
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, entry, 0);
#endif
}

static void change(struct hd_fiber *from, struct hd_fiber *to)
{
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if defined(__x86_64__)
    hd_cudasim_switch(&from->pointer, to->pointer);
#else
    (void)swapcontext(&from->context, &to->context);
#endif
}

void hd_fiber_switch(struct hd_fiber *from, struct hd_fiber *to)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size_bytes);
#endif
    change(from, to);
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

void hd_fiber_entered(struct hd_fiber *self, struct hd_fiber *from)
{
#ifdef WITH_ASAN
    const void *bottom;
    size_t size_bytes;

    __sanitizer_finish_switch_fiber(self->fake, &bottom, &size_bytes);
    from->bottom = (void *)(uintptr_t)bottom; /* exact, also for the thread's first stack */
    from->size_bytes = size_bytes;
#endif
}

void hd_fiber_leave(struct hd_fiber *from, struct hd_fiber *to)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(NULL, to->bottom, to->size_bytes);
#endif
    change(from, to);
    abort(); /* not reached: hd_fiber_prepare must precede the next switch to this fiber */
}
