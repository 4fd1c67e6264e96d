#include "comm/ordered.h"

#include <assert.h>

#include "comm/ordered_isa.h"

bool hd_ordered_runs(enum hd_ordered_isa isa)
{
    switch (isa) {
    case HD_ORDERED_plain:
        return true;
#if defined(ORDERED_X86)
    case HD_ORDERED_avx2:
        return __builtin_cpu_supports("avx2");
    case HD_ORDERED_avx512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    default:
        return false;
    }
}

void hd_ordered_reduce_by(enum hd_ordered_isa isa, void *out, const void *const *in, int in_count,
                          int64_t count, enum hd_dtype dtype, enum hd_comm_reduce reduce,
                          bool keep_fp32)
{
    assert(in_count >= 1 && count >= 0);
    assert(!keep_fp32 || (dtype == HD_BF16 && reduce == HD_COMM_SUM));
    switch (isa) {
#define X(name)                                                                 \
    case HD_ORDERED_##name:                                                     \
        ORDERED_NAME(name)(out, in, in_count, count, dtype, reduce, keep_fp32); \
        return;
        ORDERED_ISA_LIST(X)
#undef X
    case HD_ORDERED_ISA_COUNT:
        break;
    }
    assert(!"unknown instruction set");
}

/* Calls the variant for the best instruction set that this processor supports: the last such one in
 * the list. */
void hd_ordered_reduce(void *out, const void *const *in, int in_count, int64_t count,
                       enum hd_dtype dtype, enum hd_comm_reduce reduce, bool keep_fp32)
{
    int isa = HD_ORDERED_ISA_COUNT - 1;

    while (!hd_ordered_runs((enum hd_ordered_isa)isa))
        isa--;
    hd_ordered_reduce_by((enum hd_ordered_isa)isa, out, in, in_count, count, dtype, reduce,
                         keep_fp32);
}
