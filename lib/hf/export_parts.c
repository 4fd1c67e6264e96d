/* export_parts: the parts of an exported tensor, which are entries of a checkpoint; the request for
 * the files besides the weights. */
#include <stdio.h>
#include <string.h>

#include "hf/export_internal.h"

void hd_export_add_part(struct hd_export_tensor *t, const struct hd_ckpt_entry *entry)
{
    const int left_out = t->expert >= 0 || entry->dim_count > 2;
    const int64_t *shape = entry->shape + left_out;
    const bool columns = t->alternate && entry->dim_count == 2;

    t->parts[t->part_count++] = entry;
    t->dim_count = entry->dim_count - left_out;
    t->stacked = left_out && t->expert < 0 ? entry->shape[0] : 0;
    t->elements += hd_ckpt_box_elements(entry) / (t->expert >= 0 ? entry->shape[0] : 1);
    t->shape[0] = columns ? shape[0] : t->shape[0] + shape[0];
    t->shape[1] = t->dim_count < 2 ? 1 : columns ? t->shape[1] + shape[1] : shape[1];
}

struct hd_hf_carry hd_export_carry(struct hd_exporter *x)
{
    return (struct hd_hf_carry){.job = &x->job,
                                .checkpoint_dir = x->options->checkpoint_dir,
                                .base_dir = x->options->base_dir,
                                .adapter = x->options->adapter,
                                .text_only = x->options->text_only,
                                .ends = x->options->ends,
                                .context = x};
}

enum hd_status hd_export_read(struct hd_exporter *x, const struct hd_ckpt_entry *want,
                              float *ret_values)
{
    struct hd_ckpt_entry average = *want;
    char name[256];

    (void)snprintf(name, sizeof name, HD_CKPT_EMA_PREFIX "%s", want->name);
    average.name = name;
    /* a weight that does not train has no average */
    if (x->options->ema && hd_ckpt_find_tensor(x->ckpt, name))
        return hd_ckpt_read(x->ckpt, &average, ret_values);
    return hd_ckpt_read(x->ckpt, want, ret_values);
}

const struct hd_ckpt_entry *hd_export_find_in_base(const struct hd_exporter *x, const char *name)
{
    const struct hd_hf_base *base = x->options->base;

    for (size_t i = 0; base && i < base->count; i++)
        if (strcmp(base->entries[i].name, name) == 0)
            return &base->entries[i];
    return NULL;
}
