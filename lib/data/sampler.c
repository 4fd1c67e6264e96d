#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/random.h"
#include "data/data_internal.h"

/* The stream of keys that belongs to the order of samples: other users of the job's seed, such as
 * dropout, must not meet the same numbers. */
static uint64_t epoch_key(uint64_t seed, int64_t epoch)
{
    return hd_random_key(hd_random_key(seed, hd_random_hash("sampler")), (uint64_t)epoch);
}

static enum hd_status check_windows(const char *what, struct hd_data_range range, int64_t context)
{
    if (context < 1 || context > HD_DATA_CONTEXT_MAX)
        return hd_err(HD_INVALID, "a context of %" PRId64 " tokens; it must be 1 to %d", context,
                      HD_DATA_CONTEXT_MAX);
    if (hd_data_window_count(range.count, context) < 1)
        return hd_err(HD_INVALID,
                      "the %s text has %" PRId64 " bytes; a context of %" PRId64
                      " tokens needs at least %" PRId64 ": add text or lower model.context",
                      what, range.count, context, context + 1);
    return HD_OK;
}

enum hd_status hd_sampler_init(struct hd_sampler *ret_sampler, struct hd_data_range range,
                               int64_t context, int64_t global_batch, enum hd_data_order order,
                               uint64_t seed)
{
    enum hd_status st = check_windows("training", range, context);

    if (st)
        return st;
    if (global_batch < 1)
        return hd_err(HD_INVALID, "train.global_batch is %" PRId64 "; it must be at least 1",
                      global_batch);
    *ret_sampler = (struct hd_sampler){.range = range,
                                       .context = context,
                                       .global_batch = global_batch,
                                       .window_count = hd_data_window_count(range.count, context),
                                       .order = order,
                                       .seed = seed};
    return HD_OK;
}

int64_t hd_sampler_window(const struct hd_sampler *sampler, int64_t sample_id)
{
    const int64_t epoch = sample_id / sampler->window_count;
    const int64_t index = sample_id % sampler->window_count;

    assert(sample_id >= 0);
    if (sampler->order == HD_DATA_SEQUENTIAL)
        return index;
    return (int64_t)hd_random_permute(epoch_key(sampler->seed, epoch),
                                      (uint64_t)sampler->window_count, (uint64_t)index);
}

/* One row: a window's tokens, its targets (the same one place later), its positions. */
static void fill_row(struct hd_data_range range, int64_t context, int64_t window,
                     int32_t *ret_tokens, int32_t *ret_targets, int32_t *ret_positions)
{
    const int64_t first = range.first + window * context;

    if (ret_tokens)
        hd_corpus_read(range.corpus, first, context, ret_tokens);
    if (ret_targets)
        hd_corpus_read(range.corpus, first + 1, context, ret_targets);
    for (int64_t j = 0; ret_positions && j < context; j++)
        ret_positions[j] = (int32_t)j;
}

static int32_t *row(int32_t *base, int64_t index, int64_t context)
{
    return base ? base + index * context : NULL;
}

void hd_sampler_fill(const struct hd_sampler *sampler, int64_t step, int64_t first, int64_t count,
                     int32_t *ret_tokens, int32_t *ret_targets, int32_t *ret_positions,
                     int64_t *ret_sample_ids)
{
    const int64_t S = sampler->context;

    assert(step >= 0 && step < INT64_MAX / sampler->global_batch);
    assert(first >= 0 && count >= 0 && count <= sampler->global_batch - first);
    for (int64_t i = 0; i < count; i++) {
        const int64_t id = step * sampler->global_batch + first + i;

        fill_row(sampler->range, S, hd_sampler_window(sampler, id), row(ret_tokens, i, S),
                 row(ret_targets, i, S), row(ret_positions, i, S));
        if (ret_sample_ids)
            ret_sample_ids[i] = id;
    }
}

/* ---- validation ---- */

enum hd_status hd_validation_init(struct hd_validation *ret_validation, struct hd_data_range range,
                                  int64_t context, int64_t window_limit)
{
    enum hd_status st = check_windows("validation", range, context);
    int64_t windows;

    if (st)
        return st;
    windows = hd_data_window_count(range.count, context);
    if (window_limit > 0 && window_limit < windows)
        windows = window_limit;
    *ret_validation =
        (struct hd_validation){.range = range, .context = context, .window_count = windows};
    return HD_OK;
}

static void fill_padding(int64_t context, int32_t *ret_tokens, int32_t *ret_targets,
                         int32_t *ret_positions)
{
    for (int64_t j = 0; j < context; j++) {
        if (ret_tokens)
            ret_tokens[j] = 0;
        if (ret_targets)
            ret_targets[j] = HD_DATA_TARGET_NONE;
        if (ret_positions)
            ret_positions[j] = (int32_t)j;
    }
}

void hd_validation_fill(const struct hd_validation *validation, int64_t first, int64_t count,
                        int32_t *ret_tokens, int32_t *ret_targets, int32_t *ret_positions,
                        int64_t *ret_sample_ids)
{
    const int64_t S = validation->context;

    assert(first >= 0 && count >= 0);
    for (int64_t i = 0; i < count; i++) {
        int32_t *tokens = row(ret_tokens, i, S), *targets = row(ret_targets, i, S);
        int32_t *positions = row(ret_positions, i, S);

        if (first + i < validation->window_count)
            fill_row(validation->range, S, first + i, tokens, targets, positions);
        else
            fill_padding(S, tokens, targets, positions);
        if (ret_sample_ids)
            ret_sample_ids[i] = first + i;
    }
}
