/* latent: queries, keys and values of multi-head latent attention, joined into rows for attention,
 * and their gradients. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Copies `count` elements of `bytes` each, from element `from_at` on to element `to_at` on. */
INLINE void copy_elements(void *to, int64_t to_at, const void *from, int64_t from_at, int64_t count,
                          int64_t bytes)
{
    memcpy((char *)to + to_at * bytes, (const char *)from + from_at * bytes,
           (size_t)(count * bytes));
}

static void join_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_latent_join_forward_args *a = args;
    const int64_t H = a->H, D = a->nope + a->rope, W = a->nope + a->value, P = a->padded;
    const int64_t bytes = vf_element_bytes(a->dtype);

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const int64_t q = r * H * (2 * D + P), k = q + H * D, v = k + H * D;

        copy_elements(a->out, q, a->q, r * H * D, H * D, bytes);
        for (int64_t h = 0; h < H; h++) {
            const int64_t kv = (r * H + h) * W;

            copy_elements(a->out, k + h * D, a->kv, kv, a->nope, bytes);
            copy_elements(a->out, k + h * D + a->nope, a->k_rope, r * a->rope, a->rope, bytes);
            copy_elements(a->out, v + h * P, a->kv, kv + a->nope, a->value, bytes);
            memset((char *)a->out + (v + h * P + a->value) * bytes, 0,
                   (size_t)((P - a->value) * bytes));
        }
    }
}

enum hd_status KERNEL(latent_join_forward)(struct hd_backend *cpu,
                                           const struct hd_latent_join_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("latent_join_forward", args->dtype);
    const int64_t columns = args->H * (2 * (args->nope + args->rope) + args->padded);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(columns * 4), join_rows, args);
    return st;
}

INLINE void sum_shared_key(const struct hd_latent_join_backward_args *a, int64_t r,
                           enum hd_dtype dtype)
{
    const int64_t D = a->nope + a->rope,
                  first = r * a->H * (2 * D + a->padded) + a->H * D + a->nope;

    FOR_VECTORS (c, n, 0, a->rope) {
        vf sum = {0};

        for (int64_t h = 0; h < a->H; h++)
            sum += vf_load(a->dout, first + h * D + c, n, dtype);
        vf_store(a->dk_rope, r * a->rope + c, n, sum, dtype);
    }
}

static void split_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_latent_join_backward_args *a = args;
    const int64_t H = a->H, D = a->nope + a->rope, W = a->nope + a->value, P = a->padded;
    const int64_t bytes = vf_element_bytes(a->dtype);

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const int64_t q = r * H * (2 * D + P), k = q + H * D, v = k + H * D;

        if (a->dq)
            copy_elements(a->dq, r * H * D, a->dout, q, H * D, bytes);
        for (int64_t h = 0; h < H; h++) {
            copy_elements(a->dkv, (r * H + h) * W, a->dout, k + h * D, a->nope, bytes);
            copy_elements(a->dkv, (r * H + h) * W + a->nope, a->dout, v + h * P, a->value, bytes);
        }
        WITH_FLOATS(a->dtype, T, sum_shared_key(a, r, T));
    }
}

enum hd_status KERNEL(latent_join_backward)(struct hd_backend *cpu,
                                            const struct hd_latent_join_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("latent_join_backward", args->dtype);
    const int64_t columns = args->H * (2 * (args->nope + args->rope) + args->padded);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(columns * 4), split_rows, args);
    return st;
}
