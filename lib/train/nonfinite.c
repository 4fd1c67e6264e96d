/* nonfinite: names a gradient that is not finite, after the step in which it was found. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/trainer.h"

/* "blocks.0.mlp.up.weight[3, 17] is inf on rank 2" */
static void name_element(const struct hd_trainer *t, int param, int64_t at, float value,
                         char ret_text[HD_NONFINITE_TEXT])
{
    const struct hd_param *p = &t->layout.registry.params[param];
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
                   isnan(value) ? "NaN" : "infinite", t->layout.rank);
}

/* The first of this rank; the text stays empty if all are finite. */
static enum hd_status find_own(struct hd_trainer *t, char ret_text[HD_NONFINITE_TEXT])
{
    enum hd_status st = HD_OK;

    for (int i = 0; !st && !*ret_text && i < t->layout.registry.param_count; i++) {
        const struct hd_held held = hd_trainer_find(t, i, HD_STATE_GRAD);
        int64_t at;
        float *values;

        if (!held.count || !t->layout.registry.params[i].trainable)
            continue;
        values = malloc((size_t)held.count * sizeof *values);
        if (!values)
            return hd_err(HD_NO_MEMORY, "no memory to look at the gradients");
        st = hd_staging_read(&t->staging, values, held.at, held.count * (int64_t)sizeof *values);
        at = st ? -1 : hd_f32_find_nonfinite(values, held.count);
        if (at >= 0)
            name_element(t, i, held.first + at, values[at], ret_text);
        free(values);
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
    for (int r = t->layout.mesh.world - 1; !st && r >= 0; r--)
        if (all[r * (int64_t)HD_EXCHANGE_SLOT_BYTES])
            memcpy(ret_text, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, HD_NONFINITE_TEXT);
    return st;
}
