#include "kernels/cpu/cpu.h"

#include <string.h>

struct append {
    const struct hd_cache_append_args *args;
    int64_t filled, fits; /* valid rows per sequence before; new rows that fit */
};

static void append_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct append *s = args;
    const struct hd_cache_append_args *a = s->args;
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / s->fits, row = i % s->fits;

        memcpy((char *)a->cache + (b * a->rows + s->filled + row) * a->ldc * e,
               (const char *)a->inp + (b * a->new_rows + row) * a->ldi * e, (size_t)(a->N * e));
    }
}

enum hd_status KERNEL(cache_append)(struct hd_backend *cpu, const struct hd_cache_append_args *args)
{
    struct append append = {.args = args, .filled = *args->filled, .fits = args->new_rows};

    if (append.filled < 0 || append.filled > args->rows)
        append.filled = args->rows; /* invalid: treat the cache as full */
    if (append.filled + append.fits > args->rows)
        append.fits = args->rows - append.filled;
    if (append.fits < args->new_rows)
        *args->overflow = 1;
    if (append.fits > 0)
        hd_cpu_parallel(cpu, args->B * append.fits,
                        hd_cpu_row_grain(args->N * 2 * (int64_t)hd_dtype_size(args->dtype)),
                        append_rows, &append);
    return HD_OK;
}
