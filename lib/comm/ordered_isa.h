/* ordered_isa: hd_ordered_reduce for several instruction sets; all give the same bits.
 *
 * Used by: ordered.c, ordered_loops.c, tests.   Uses: ordered.h.   Threads: any.
 */
#ifndef HD_COMM_ORDERED_ISA_H
#define HD_COMM_ORDERED_ISA_H

#include "comm/ordered.h"

#if defined(ORDERED_X86)
#define ORDERED_ISA_LIST(X) X(plain) X(avx2) X(avx512)
#else
#define ORDERED_ISA_LIST(X) X(plain)
#endif

#define ORDERED_NAME_OF(isa) hd_ordered_reduce_##isa
#define ORDERED_NAME(isa)    ORDERED_NAME_OF(isa)

enum hd_ordered_isa {
#define X(isa) HD_ORDERED_##isa,
    ORDERED_ISA_LIST(X)
#undef X
        HD_ORDERED_ISA_COUNT
};

/* Declares one hd_ordered_reduce per instruction set, which the processor must support
 * (hd_ordered_runs). */
#define X(isa)                                                                            \
    void ORDERED_NAME(isa)(void *out, const void *const *in, int in_count, int64_t count, \
                           enum hd_dtype dtype, enum hd_comm_reduce reduce, bool keep_fp32);
ORDERED_ISA_LIST(X)
#undef X

bool hd_ordered_runs(enum hd_ordered_isa isa);
void hd_ordered_reduce_by(enum hd_ordered_isa isa, void *out, const void *const *in, int in_count,
                          int64_t count, enum hd_dtype dtype, enum hd_comm_reduce reduce,
                          bool keep_fp32);

#endif
