#include "kernels/costs/costs.h"

#include <string.h>

int64_t hd_kernel_scratch_bytes(enum hd_kernel kernel, const void *args,
                                const struct hd_traits *traits)
{
    switch (kernel) {
#define K(name, operands) \
    case HD_K_##name:     \
        return hd_scratch_##name(args, traits);
        HD_KERNEL_LIST(K)
#undef K
    case HD_KERNEL_COUNT:
        break;
    }
    return 0;
}

void hd_kernel_cost_add(struct hd_costs *costs, enum hd_kernel kernel, const void *args)
{
    switch (kernel) {
#define K(name, operands)            \
    case HD_K_##name:                \
        hd_cost_##name(costs, args); \
        break;
        HD_KERNEL_LIST(K)
#undef K
    case HD_KERNEL_COUNT:
        break;
    }
}

/* Adds the costs of a kernel whose arguments bound its rows by `member`, with that bound reduced to
 * `rows`. */
#define WITH_ROWS(name, member)                                   \
    case HD_K_##name: {                                           \
        struct hd_##name##_args fewer;                            \
                                                                  \
        memcpy(&fewer, args, sizeof fewer);                       \
        fewer.member = rows < fewer.member ? rows : fewer.member; \
        hd_cost_##name(costs, &fewer);                            \
        return;                                                   \
    }

void hd_kernel_cost_add_rows(struct hd_costs *costs, enum hd_kernel kernel, const void *args,
                             int64_t rows)
{
    switch (kernel) {
        WITH_ROWS(grouped_gemm, T)
        WITH_ROWS(grouped_gemm_weight, T)
        WITH_ROWS(expert_bias_forward, T)
        WITH_ROWS(expert_bias_backward, T)
        WITH_ROWS(regroup, T)
        WITH_ROWS(glu_forward, R)
        WITH_ROWS(glu_backward, R)
        WITH_ROWS(dropout, R)
    default:
        hd_kernel_cost_add(costs, kernel, args);
    }
}
