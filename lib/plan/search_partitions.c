/* search_partitions: partitions of the model into pipeline stages that do not have even work.
 *
 * The even partition (train/partition.h) balances FLOPs. Another one may take less time, as the
 * head's real time differs from its FLOPs and early stages fill the pipeline; or less memory, as
 * early stages save more micro-batches. If there are few partitions, all are tried; else also the
 * one that balances the seconds of the layer profiles. All partitions run the same schedule, so it
 * is computed once.
 */
#include <string.h>

#include "plan/search_internal.h"
#include "train/partition.h"

/* Largest ratio of the slowest chunk's seconds to that of the even partition with which the
 * partition that balances seconds is tried. */
static const double timed_share = 0.995;

/* Counts the ways in which L blocks form `chunks` chunks, of which the first and the last may be
 * empty: binomial (L + 1 over chunks - 1). Stops counting above HD_SEARCH_PARTITIONS_MAX. */
static int64_t count_partitions(int64_t L, int64_t chunks)
{
    int64_t count = 1;

    for (int64_t k = 1; k < chunks && count <= HD_SEARCH_PARTITIONS_MAX; k++)
        count = count * (L + 2 - k) / k;
    return count;
}

bool search_may_partition(const struct layout_search *s, int64_t chunks)
{
    return chunks > 1 && !s->tuned && !s->asked->spec->schedule_order &&
           strcmp(s->asked->request->sizes.stages, "auto") == 0;
}

bool search_has_few_partitions(const struct layout_search *s, int64_t chunks)
{
    return count_partitions(s->config.L, chunks) <= HD_SEARCH_PARTITIONS_MAX;
}

const struct ordered *search_repartition(struct layout_search *s,
                                         const struct search_partition *partition)
{
    s->repartition = *partition->even;
    s->repartition.step.units = s->repartition.shorter.units = partition->units;
    s->repartition.stages = partition->stages;
    return &s->repartition;
}

/* Makes a partition. A stage saves as many micro-batches as in the even partition. NULL: no
 * memory. */
static struct search_partition *make_partition(struct layout_search *s, const struct ordered *even,
                                               const int64_t *blocks)
{
    const struct hd_pipeline *p = &even->step.pipeline;
    struct search_partition *partition = hd_arena_alloc(&s->kept, sizeof *partition);
    struct hd_units *units = hd_arena_array(&s->kept, (size_t)p->chunks, sizeof *units);
    struct ordered_stage *stages = hd_arena_array(&s->kept, (size_t)p->stages, sizeof *stages);
    int32_t unit = HD_UNIT_EMBEDDING, before = 0;

    if (!partition || !units || !stages) {
        s->st = hd_err(HD_NO_MEMORY, "no memory to search layouts");
        return NULL;
    }
    *partition = (struct search_partition){even, units, stages};
    for (int32_t i = 0; i < p->stages; i++)
        stages[i] = (struct ordered_stage){.kept = even->stages[i].kept,
                                           .deferred = even->stages[i].deferred};
    for (int32_t c = 0; c < p->chunks; c++) {
        struct ordered_stage *stage = &stages[hd_pipeline_stage(p, c)];

        units[c].first = unit;
        unit += (int32_t)blocks[c] + (c == 0) + (c == p->chunks - 1);
        units[c].end = unit;
        if (hd_pipeline_index(p, c) == 0)
            stage->before = before;
        before += (int32_t)blocks[c];
        stage->blocks += (int32_t)blocks[c];
        stage->largest = blocks[c] > stage->largest ? (int32_t)blocks[c] : stage->largest;
    }
    return partition;
}

int32_t search_blocks_of(const struct ordered_step *step, int32_t chunk)
{
    const struct hd_units u = step->units[chunk];

    return u.end - u.first - (chunk == 0) - (chunk == step->pipeline.chunks - 1);
}

static bool is_even(const struct ordered *even, const int64_t *blocks)
{
    for (int32_t c = 0; c < even->step.pipeline.chunks; c++)
        if (blocks[c] != search_blocks_of(&even->step, c))
            return false;
    return true;
}

/* Advances to the next partition in lexicographic order; false: it was the last. blocks: [chunks]
 * blocks of each chunk, at least 0 in the first and the last chunk, 1 in the others. */
static bool next_partition(int64_t *blocks, int32_t chunks)
{
    const int32_t last = chunks - 1;

    for (int32_t c = last - 1; c >= 0; c--) {
        int64_t rest = 0;

        for (int32_t k = c + 1; k <= last; k++)
            rest += blocks[k] - (k < last);
        /* this chunk gets one more block; the remaining blocks go to the last chunk */
        if (rest > 0) {
            blocks[c]++;
            for (int32_t k = c + 1; k < last; k++)
                blocks[k] = 1;
            blocks[last] = rest - 1;
            return true;
        }
    }
    return false;
}

void search_each_partition(struct layout_search *s, const struct ordered *even,
                           void (*each)(struct layout_search *s,
                                        const struct search_partition *partition, void *context),
                           void *context)
{
    const int32_t chunks = even->step.pipeline.chunks;
    int64_t blocks[HD_PLAN_CHUNKS_MAX] = {0};

    for (int32_t c = 1; c < chunks - 1; c++)
        blocks[c] = 1;
    blocks[chunks - 1] = s->config.L - (chunks - 2);
    do {
        const struct search_partition *partition =
            is_even(even, blocks) ? NULL : make_partition(s, even, blocks);

        if (partition)
            each(s, partition, context);
    } while (!s->st && next_partition(blocks, chunks));
}

/* ---- balanced by seconds ---- */

static double seconds_of(const struct hd_layer_profile *p)
{
    double seconds = 0;

    for (int call = 0; call < HD_LAYER_PROFILE_CALLS; call++)
        seconds += p->time[call][0].run;
    return seconds > 0 ? seconds : 0;
}

/* Returns the largest sum of seconds over a chunk. */
static double slowest(const double *seconds, const struct hd_units *units, int32_t chunks)
{
    double most = 0;

    for (int32_t c = 0; c < chunks; c++) {
        double sum = 0;

        for (int u = units[c].first; u < units[c].end; u++)
            sum += seconds[u];
        most = sum > most ? sum : most;
    }
    return most;
}

/* Returns whether some division into `chunks` chunks could have no chunk above `most`. seconds: of
 * each unit. Chunks are filled one after the other as far as they go, which takes the fewest. */
static bool could_be_below(const double *seconds, int units, int32_t chunks, double most)
{
    int32_t filled = 1;
    double sum = 0;

    for (int u = 0; u < units; u++) {
        if (seconds[u] > most)
            return false;
        if (sum + seconds[u] > most) {
            filled++;
            sum = 0;
        }
        sum += seconds[u];
    }
    return filled <= chunks;
}

const struct search_partition *search_timed_partition(struct layout_search *s,
                                                      const struct ordered *even,
                                                      const struct hd_layer_profiles *profiles)
{
    const int32_t chunks = even->step.pipeline.chunks,
                  head = HD_UNIT_FIRST_BLOCK + (int)s->config.L;
    const struct search_partition *partition = NULL;
    double most; /* seconds below which the slowest chunk must be */
    int64_t blocks[HD_PLAN_CHUNKS_MAX];
    char text[HD_JOB_WORD_MAX];
    struct hd_arena arena;
    struct hd_units *units;
    double *seconds;

    hd_arena_init(&arena, 0);
    seconds = hd_arena_array(&arena, (size_t)head + 1, sizeof *seconds);
    units = hd_arena_array(&arena, (size_t)chunks, sizeof *units);
    if (!seconds || !units) {
        s->st = hd_err(HD_NO_MEMORY, "no memory to search layouts");
    } else {
        seconds[HD_UNIT_EMBEDDING] = seconds_of(&profiles->embedding);
        seconds[head] = seconds_of(&profiles->head);
        for (int64_t layer = 0; layer < s->config.L; layer++)
            seconds[HD_UNIT_FIRST_BLOCK + layer] =
                seconds_of(&profiles->kind[hd_model_layer_kind(&s->config, layer)].block);
        most = timed_share * slowest(seconds, even->step.units, chunks);
        if (could_be_below(seconds, head + 1, chunks, most)) {
            s->st = hd_partition_evenly(seconds, s->config.L, chunks, &arena, units);
            for (int32_t c = 0; !s->st && c < chunks; c++)
                blocks[c] = units[c].end - units[c].first - (c == 0) - (c == chunks - 1);
            if (!s->st && slowest(seconds, units, chunks) < most &&
                !hd_stages_write(blocks, chunks, text))
                partition = make_partition(s, even, blocks);
        }
    }
    hd_arena_done(&arena);
    return partition;
}
