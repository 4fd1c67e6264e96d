#include "kernels/cpu/drop.h"

enum { CHANNELS = 256 }; /* number of channels whose dropout mask is computed at a time */

struct dropout {
    const struct hd_dropout_args *args;
    struct drop drop;
};

INLINE void drop_row(const struct dropout *f, int64_t r, int64_t head, enum hd_dtype dtype)
{
    const struct hd_dropout_args *a = f->args;
    const struct drop_place place = {(uint32_t)a->index[r], (uint32_t)head, (uint32_t)a->sample[r]};
    uint8_t line[CHANNELS + DROP_LINE_PAD];

    for (int64_t first = 0; first < a->C; first += CHANNELS) {
        const int64_t count = a->C - first < CHANNELS ? a->C - first : CHANNELS;
        const uint8_t *dropped = drop_line(&f->drop, place, line, a->first_channel + first, count);
        const int64_t at = r * a->C + first;

        FOR_VECTORS (c, n, 0, count) {
            const vf x = vf_load(a->inp, at + c, n, dtype) * f->drop.scale;

            vf_store(a->out, at + c, n, drop_from(x, drop_mask(dropped + c)), dtype);
        }
    }
}

static void drop_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct dropout *f = args;
    const struct hd_dropout_args *a = f->args;
    int64_t group = 0, group_end = a->counts && a->groups ? a->counts[0] : a->R;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        while (r >= group_end)
            group_end += a->counts[++group];
        WITH_FLOATS(a->dtype, T, drop_row(f, r, a->first_group + group, T));
    }
}

enum hd_status KERNEL(dropout)(struct hd_backend *cpu, const struct hd_dropout_args *args)
{
    struct dropout f = {.args = args};
    enum hd_status st = hd_cpu_check_float("dropout", args->dtype);

    if (!st)
        st = drop_of("dropout", args->key, args->block, args->p, &f.drop);
    if (!st)
        hd_cpu_parallel(cpu, hd_cpu_rows_in_use(args->counts, args->groups, args->R),
                        hd_cpu_row_grain(args->C * 8), drop_rows, &f);
    return st;
}
