/* costs: bytes, operations and scratch of a launch, from the rows of kernels.def. */
#include "kernels/costs/costs.h"

#include <string.h>

/* Sets *ret to the bytes of an operand with this many elements. read, written: elements moved; -1:
 * all; as many as are read. */
static void set_bytes(struct hd_operand_bytes *ret, enum hd_access access, enum hd_dtype type,
                      int64_t elements, int64_t read, int64_t written)
{
    const int64_t size = (int64_t)hd_dtype_size(type);

    read = read < 0 ? elements : read;
    written = written < 0 ? read : written;
    *ret = (struct hd_operand_bytes){elements * size, access & HD_READ ? read * size : 0,
                                     access & HD_WRITE ? written * size : 0};
}

/* Functions that set the bytes of all operands of a launch and return its operations. */
#define MOVED(type, elements, read, written, ...) type, elements, read, written
#define BYTES(access, ...)                        set_bytes(ret, access, MOVED(__VA_ARGS__, -1, -1, ))
#define BYTES_READ(...)                           BYTES(HD_READ, __VA_ARGS__)
#define BYTES_WRITE(...)                          BYTES(HD_WRITE, __VA_ARGS__)
#define BYTES_UPDATE(...)                         BYTES(HD_READ_WRITE, __VA_ARGS__)
#define BYTES_ADD(...)                            BYTES(a->accumulate ? HD_READ_WRITE : HD_WRITE, __VA_ARGS__)
#define BYTES_SCRATCH(...)                        (void)0
#define OPERAND(access, absent, member, ...)   \
    *ret = (struct hd_operand_bytes){0, 0, 0}; \
    if (!(absent) || a->member)                \
        BYTES_##access(__VA_ARGS__);           \
    ret++;
#define K(name, operations, operands)                                          \
    static double count_##name(const void *args, struct hd_operand_bytes *ret) \
    {                                                                          \
        const struct hd_##name##_args *a = args;                               \
                                                                               \
        operands return (double)(operations);                                  \
    }
#include "kernels/kernels.def"

#define SCRATCH_READ(...)
#define SCRATCH_WRITE(...)
#define SCRATCH_UPDATE(...)
#define SCRATCH_ADD(...)
#define SCRATCH_SCRATCH(bytes)               return bytes;
#define OPERAND(access, absent, member, ...) SCRATCH_##access(__VA_ARGS__)
#define K(name, operations, operands)                                                  \
    static int64_t scratch_of_##name(const void *args, const struct hd_traits *traits) \
    {                                                                                  \
        const struct hd_##name##_args *a = args;                                       \
                                                                                       \
        (void)a;                                                                       \
        (void)traits;                                                                  \
        operands return 0;                                                             \
    }
#include "kernels/kernels.def"

static double (*const count[])(const void *args, struct hd_operand_bytes *ret) = {
#define K(name, ...) count_##name,
#include "kernels/kernels.def"
};

static int64_t (*const scratch_of[])(const void *args, const struct hd_traits *traits) = {
#define K(name, ...) scratch_of_##name,
#include "kernels/kernels.def"
};

void hd_kernel_operand_bytes(enum hd_kernel kernel, const void *args,
                             struct hd_operand_bytes ret[HD_KERNEL_OPERANDS_MAX])
{
    (void)count[kernel](args, ret);
}

int64_t hd_kernel_scratch_bytes(enum hd_kernel kernel, const void *args,
                                const struct hd_traits *traits)
{
    return scratch_of[kernel](args, traits);
}

void hd_kernel_cost_add(struct hd_costs *costs, enum hd_kernel kernel, const void *args)
{
    struct hd_operand_bytes bytes[HD_KERNEL_OPERANDS_MAX];
    const int operands = hd_kernel_get_info(kernel)->operand_count;

    costs->flops += count[kernel](args, bytes);
    for (int k = 0; k < operands; k++) {
        costs->read_bytes += bytes[k].read_bytes;
        costs->write_bytes += bytes[k].write_bytes;
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
        hd_kernel_cost_add(costs, kernel, &fewer);                \
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
