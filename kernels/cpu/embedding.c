/* embedding: rows of tables by index, and their gradient. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

INLINE bool in_table(int64_t index, int64_t V)
{
    return index >= 0 && index < V;
}

INLINE void embedding_row(const struct hd_embedding_forward_args *a, int64_t r, enum hd_dtype dtype)
{
    const int64_t index = a->index[r] - a->first;
    const bool first = in_table(index, a->V);
    const float scale = hd_factor_of(a->scale);
    const bool second = a->index2 && in_table(a->index2[r], a->V2);

    FOR_VECTORS (c, n, 0, a->C) {
        vf x = {0};

        if (first)
            x = scale * vf_load(a->weight, index * a->C + c, n, dtype);
        if (second)
            x += vf_load(a->weight2, a->index2[r] * a->C + c, n, dtype);
        vf_store(a->out, r * a->C + c, n, x, dtype);
    }
}

static void embedding_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_embedding_forward_args *a = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(a->dtype, T, embedding_row(a, r, T));
}

enum hd_status KERNEL(embedding_forward)(struct hd_backend *cpu,
                                         const struct hd_embedding_forward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("embedding_forward", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 8), embedding_rows, args);
    return st;
}

/* Rows of dout sorted by index, ascending in r within an index (a counting sort): rows[begin[v] ..
 * begin[v + 1]) have the index of row v of the table. */
struct sorted {
    const struct hd_embedding_backward_args *args;
    int64_t *begin; /* [V + 1] */
    int64_t *rows;  /* [R]     */
};

static void sort_rows(const struct sorted *s)
{
    const struct hd_embedding_backward_args *a = s->args;
    int64_t place = 0;

    memset(s->begin, 0, (size_t)(a->V + 1) * sizeof *s->begin);
    for (int64_t r = 0; r < a->R; r++)
        if (in_table(a->index[r] - a->first, a->V))
            s->begin[a->index[r] - a->first]++;
    for (int64_t v = 0; v <= a->V; v++) { /* turns the number of rows of each index into the
                                             position of the first one */
        const int64_t count = s->begin[v];

        s->begin[v] = place;
        place += count;
    }
    for (int64_t r = 0; r < a->R; r++)
        if (in_table(a->index[r] - a->first, a->V))
            s->rows[s->begin[a->index[r] - a->first]++] = r;
    for (int64_t v = a->V; v > 0; v--) /* filling moved begin[v] to the begin of v + 1: shift
                                          back */
        s->begin[v] = s->begin[v - 1];
    s->begin[0] = 0;
}

INLINE void embedding_gradient(const struct sorted *s, int64_t v, enum hd_dtype dtype)
{
    const struct hd_embedding_backward_args *a = s->args;
    const float scale = hd_factor_of(a->scale);
    float *sums = a->dweight + v * a->C;

    if (!a->accumulate)
        memset(sums, 0, (size_t)a->C * sizeof *sums);
    for (int64_t i = s->begin[v]; i < s->begin[v + 1]; i++) {
        const int64_t row = s->rows[i] * a->C;

        if (i + 1 < s->begin[a->V]) /* prefetches the next sorted row, even of the next index */
            vf_prefetch(a->dout, s->rows[i + 1] * a->C, dtype);
        FOR_VECTORS (c, n, 0, a->C)
            vf_store_f32(sums + c, n,
                         vf_load_f32(sums + c, n) + scale * vf_load(a->dout, row + c, n, dtype));
    }
}

static void embedding_gradients(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct sorted *s = args;

    (void)thread;
    for (int64_t v = begin; v < end; v++)
        WITH_FLOATS(s->args->dtype, T, embedding_gradient(s, v, T));
}

enum hd_status KERNEL(embedding_backward)(struct hd_backend *cpu,
                                          const struct hd_embedding_backward_args *args)
{
    const enum hd_status st = hd_cpu_check_float("embedding_backward", args->dtype);
    const struct sorted sorted = {
        .args = args, .begin = args->scratch, .rows = (int64_t *)args->scratch + args->V + 1};

    if (!st) {
        sort_rows(&sorted);
        hd_cpu_parallel(cpu, args->V, hd_cpu_row_grain(args->C * 8), embedding_gradients, &sorted);
    }
    return st;
}
