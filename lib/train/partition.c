#include "train/partition.h"

#include <math.h>
#include <string.h>

static enum hd_status check_chunks(int64_t chunks, const struct hd_job *job)
{
    if (chunks <= job->layers + 2)
        return HD_OK;
    return hd_err(
        HD_INVALID,
        "parallel.pp x parallel.virtual_stages = %lld x %lld chunks, but the model has %lld "
        "units (embedding, %lld layers, head); use at most that many",
        (long long)job->pp, (long long)job->virtual_stages, (long long)job->layers + 2,
        (long long)job->layers);
}

/* ---- an even cut ---- */

/* Best division of the first n blocks into the first c + 1 chunks. */
struct cut {
    /* most: work of the largest of these chunks; squares: sum over these chunks of their work
     * squared */
    double most, squares;
    /* number of blocks before the last of these chunks; -1: no division exists */
    int64_t before;
};

static bool is_better(const struct cut *a, const struct cut *b)
{
    const double same = 1e-9 * b->most;

    if (a->most < b->most - same || a->most > b->most + same)
        return a->most < b->most;
    return a->squares < b->squares * (1 - 1e-9);
}

/* Returns the first block b such that a chunk of blocks b to n - 1 has no more work than `most`. */
static int64_t first_within(const double *sum, int64_t n, double most)
{
    int64_t low = 0, high = n;

    while (low < high) {
        const int64_t middle = (low + high) / 2;

        if (sum[n] - sum[middle] <= most)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Finds the best division of blocks into chunks by dynamic programming over (chunks, blocks):
 * best[c, n] divides the first n blocks into c + 1 chunks. load: [units], the quantity whose
 * largest sum over a chunk is minimised. */
static enum hd_status balance(const double *load, int64_t L, int32_t chunks, struct hd_arena *arena,
                              int64_t *ret_blocks)
{
    const int64_t width = L + 1, head = HD_UNIT_FIRST_BLOCK + L;
    struct cut *best = hd_arena_array(arena, (size_t)(chunks * width), sizeof *best);
    double *sum = hd_arena_array(arena, (size_t)width, sizeof *sum);

    if (!best || !sum)
        return hd_err(HD_NO_MEMORY, "no memory to cut the model");
    for (int64_t n = 0; n < L; n++)
        sum[n + 1] = sum[n] + load[HD_UNIT_FIRST_BLOCK + n];
    for (int32_t c = 0; c < chunks; c++) {
        const bool last = c == chunks - 1;
        const double more = (last ? load[head] : 0) + (c == 0 ? load[HD_UNIT_EMBEDDING] : 0);
        /* first block of the last chunk in the division of n - 1 blocks; it gives an upper bound of
         * the largest work for n blocks */
        int64_t guess = 0;

        for (int64_t n = 0; n <= L; n++) {
            struct cut *b = &best[c * width + n];
            const struct cut *known = c ? &best[(c - 1) * width + guess] : NULL;
            double limit = sum[n] - sum[guess] + more;

            if (known && known->most > limit)
                limit = known->most;
            limit = known && known->before < 0 ? HUGE_VAL : limit * (1 + 1e-8);
            b->before = -1; /* no division of n blocks exists so far */
            for (int64_t from = first_within(sum, n, limit - more); from <= n; from++) {
                const struct cut *rest = c ? &best[(c - 1) * width + from] : NULL;
                const double work = sum[n] - sum[from] + more;
                struct cut one = {work, work * work, from};

                if ((c == 0 && from > 0) || (rest && rest->before < 0) ||
                    (from == n && c > 0 && !last))
                    continue;
                if (rest) {
                    one.most = rest->most > work ? rest->most : work;
                    one.squares += rest->squares;
                }
                if (b->before < 0 || is_better(&one, b))
                    *b = one;
                if (rest && rest->most > limit)
                    /* larger values of `from` only increase the work of the chunks before it */
                    break;
            }
            guess = b->before >= 0 ? b->before : guess;
        }
    }
    for (int64_t n = L, c = chunks - 1; c >= 0; c--) {
        const struct cut *b = &best[c * width + n];

        ret_blocks[c] = n - b->before;
        n = b->before;
    }
    return HD_OK;
}

/* Lists the units of each chunk from its number of blocks; the first chunk also has the embedding,
 * the last one the head. */
static void list_units(const int64_t *blocks, int64_t chunks, struct hd_units *ret_units)
{
    int unit = HD_UNIT_EMBEDDING;

    for (int64_t c = 0; c < chunks; c++) {
        ret_units[c].first = unit;
        unit += (int)blocks[c] + (c == 0) + (c == chunks - 1);
        ret_units[c].end = unit;
    }
}

enum hd_status hd_partition_evenly(const double *load, int64_t layers, int32_t chunks,
                                   struct hd_arena *arena, struct hd_units *ret_units)
{
    int64_t *blocks = hd_arena_array(arena, (size_t)chunks, sizeof *blocks);
    enum hd_status st;

    if (!blocks)
        return hd_err(HD_NO_MEMORY, "no memory to cut the model");
    st = balance(load, layers, chunks, arena, blocks);
    if (!st)
        list_units(blocks, chunks, ret_units);
    return st;
}

static enum hd_status partition_by_flops(const struct hd_model_config *config, int64_t chunks,
                                         struct hd_arena *arena, struct hd_units *ret_units)
{
    const int units = hd_model_unit_count(config);
    double *flops = hd_arena_array(arena, (size_t)units, sizeof *flops);

    if (!flops)
        return hd_err(HD_NO_MEMORY, "no memory to cut the model");
    for (int u = 0; u < units; u++)
        flops[u] = hd_model_unit_flops(config, u);
    return hd_partition_evenly(flops, config->L, (int32_t)chunks, arena, ret_units);
}

static enum hd_status partition_units(const struct hd_job *job,
                                      const struct hd_model_config *config, int64_t chunks,
                                      struct hd_arena *arena, struct hd_units **ret_units)
{
    struct hd_units *units = hd_arena_array(arena, (size_t)chunks, sizeof *units);
    int64_t *blocks = hd_arena_array(arena, (size_t)chunks, sizeof *blocks);
    enum hd_status st;

    if (!units || !blocks)
        return hd_err(HD_NO_MEMORY, "no memory to cut the model");
    *ret_units = units;
    if (!*job->stages || strcmp(job->stages, "auto") == 0)
        return partition_by_flops(config, chunks, arena, units);
    st = hd_stages_read_chunks(job->stages, chunks, job->layers, blocks);
    if (!st)
        list_units(blocks, chunks, units);
    return st;
}

enum hd_status hd_partition_model(const struct hd_job *job, const struct hd_model_config *config,
                                  struct hd_units *cut, struct hd_arena *arena,
                                  struct hd_pipeline *ret_pipeline, struct hd_units **ret_units)
{
    const int64_t per_stage = job->virtual_stages > 0 ? job->virtual_stages : 1;
    const int64_t chunks = job->pp * per_stage;
    enum hd_status st = check_chunks(chunks, job);
    struct hd_pipeline own = {0}; /* pipeline of the job's own schedule (schedule_order) */
    int32_t micro_batches;

    if (!st && job->schedule_order)
        st = hd_schedule_measure(job->schedule_order, &own, &micro_batches);
    if (st)
        return st;
    *ret_units = cut;
    if (!cut)
        st = partition_units(job, config, chunks, arena, ret_units);
    *ret_pipeline = (struct hd_pipeline){(int32_t)job->pp, (int32_t)chunks,
                                         own.folded || strcmp(job->schedule, "zb-v") == 0};
    return st;
}
