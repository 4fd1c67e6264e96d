#include "kernels/cpu/cpu.h"

#include <string.h>

/* Returns the number of filled cache rows of sequence b; a number outside the slot counts as a full
 * slot. */
static int64_t filled_of(const struct hd_cache_append_args *a, int64_t b)
{
    return a->filled[b] < 0 || a->filled[b] > a->rows ? a->rows : a->filled[b];
}

static void append_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_cache_append_args *a = args;
    const int64_t e = (int64_t)hd_dtype_size(a->dtype);

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / a->new_rows, row = filled_of(a, b) + i % a->new_rows;

        if (row < a->rows)
            memcpy((char *)a->cache + (a->slot[b] * a->rows + row) * a->ldc * e,
                   (const char *)a->inp + i * a->ldi * e, (size_t)(a->N * e));
    }
}

enum hd_status KERNEL(cache_append)(struct hd_backend *cpu, const struct hd_cache_append_args *args)
{
    for (int64_t b = 0; b < args->B; b++)
        if (filled_of(args, b) + args->new_rows > args->rows)
            *args->overflow = 1;
    hd_cpu_parallel(cpu, args->B * args->new_rows,
                    hd_cpu_row_grain(args->N * 2 * (int64_t)hd_dtype_size(args->dtype)),
                    append_rows, args);
    return HD_OK;
}
