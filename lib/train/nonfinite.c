/* nonfinite: names the first gradient element that is not finite, after the step that found one. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/trainer.h"

/* Writes a gradient element's name and value, such as "blocks.0.mlp.up.weight[3, 17] is infinite on
 * rank 2". */
static void name_element(const struct hd_trainer *t, int param, int64_t at, float value,
                         char ret_text[HD_NONFINITE_TEXT])
{
    const struct hd_param *p = &t->rank_program.registry.params[param];
    int64_t index = hd_param_global_index(p, at), coordinate[HD_PARAM_DIMS_MAX];
    int used;

    for (int d = p->dim_count - 1; d >= 0; d--) {
        coordinate[d] = index % p->shape[d];
        index /= p->shape[d];
    }
    used = snprintf(ret_text, HD_NONFINITE_TEXT, "%s[", p->name);
    for (int d = 0; d < p->dim_count; d++)
        used += snprintf(ret_text + used, (size_t)(HD_NONFINITE_TEXT - used), "%s%" PRId64,
                         d ? ", " : "", coordinate[d]);
    (void)snprintf(ret_text + used, (size_t)(HD_NONFINITE_TEXT - used), "] is %s on rank %d",
                   isnan(value) ? "NaN" : "infinite", t->rank_program.rank);
}

/* Finds the first non-finite element of a parameter's gradient, piece by piece. */
static enum hd_status find_in(struct hd_trainer *t, int param,
                              const struct hd_local_shard *local_shard,
                              char ret_text[HD_NONFINITE_TEXT])
{
    const int64_t size = (int64_t)sizeof(float);
    enum hd_status st = HD_OK;

    for (int64_t first = 0, n; !st && !*ret_text && first < local_shard->count; first += n) {
        const void *values;
        int64_t at;

        n = hd_staging_piece(&t->open.staging, (local_shard->count - first) * size) / size;
        st = hd_staging_fetch(&t->open.staging, local_shard->at + first * size, n * size, &values);
        at = st ? -1 : hd_f32_find_nonfinite(values, n);
        if (at >= 0)
            name_element(t, param, local_shard->first + first + at, ((const float *)values)[at],
                         ret_text);
    }
    return st;
}

/* Finds the first non-finite gradient element on this rank and writes its name to ret_text; "": all
 * are finite. */
static enum hd_status find_own(struct hd_trainer *t, char ret_text[HD_NONFINITE_TEXT])
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && !*ret_text && i < t->rank_program.registry.param_count; i++) {
        const struct hd_local_shard local_shard = hd_trainer_find(t, i, HD_STATE_GRAD);

        if (local_shard.count && t->rank_program.registry.params[i].trainable)
            st = find_in(t, i, &local_shard, ret_text);
    }
    return st;
}

enum hd_status hd_trainer_find_nonfinite(struct hd_trainer *t, char ret_text[HD_NONFINITE_TEXT])
{
    char own[HD_NONFINITE_TEXT] = "";
    const char *all;
    enum hd_status st = find_own(t, own);

    if (!st)
        st = hd_trainer_exchange(t, own, sizeof own, &all);
    *ret_text = '\0';
    for (int r = t->rank_program.mesh.world - 1; !st && r >= 0; r--)
        if (all[r * (int64_t)HD_EXCHANGE_SLOT_BYTES])
            memcpy(ret_text, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, HD_NONFINITE_TEXT);
    return st;
}
