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

/* Costs of a kernel whose bound of rows is reduced to `rows`. */
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
        WITH_ROWS(regroup, T)
        WITH_ROWS(swiglu_forward, R)
        WITH_ROWS(swiglu_backward, R)
        WITH_ROWS(dropout, R)
    default:
        hd_kernel_cost_add(costs, kernel, args);
    }
}

static struct hd_costs_chunks chunks_of(int64_t R, int64_t rows_min, int64_t count_max)
{
    struct hd_costs_chunks chunks;

    chunks.rows = (R + count_max - 1) / count_max;
    if (chunks.rows < rows_min)
        chunks.rows = rows_min;
    chunks.count = (R + chunks.rows - 1) / chunks.rows;
    return chunks;
}

struct hd_costs_chunks hd_costs_row_chunks(int64_t R)
{
    return chunks_of(R, 64, 64);
}

struct hd_costs_chunks hd_costs_device_row_chunks(int64_t R)
{
    return chunks_of(R, 32, 256);
}

struct hd_costs_chunks hd_costs_row_chunks_on(const struct hd_traits *traits, int64_t R)
{
    return hd_traits_is_cuda(traits) ? hd_costs_device_row_chunks(R) : hd_costs_row_chunks(R);
}

int64_t hd_costs_align(int64_t size_bytes)
{
    return (size_bytes + HD_TENSOR_ALIGN - 1) / HD_TENSOR_ALIGN * HD_TENSOR_ALIGN;
}
