/* save_names: names of a checkpoint's tensors, counters and facts, for save.c and load.c; and the
 * exchange in which the ranks agree on the outcome of a save or load. */
#include <stdio.h>
#include <string.h>

#include "train/save_internal.h"

struct hd_ckpt_entry save_entry_of(const struct hd_param *p, int kind, struct save_names *ret_name)
{
    struct hd_ckpt_entry e;

    (void)snprintf(ret_name->text, sizeof ret_name->text, "%s%s",
                   kind == HD_SAVED_EMA ? HD_CKPT_EMA_PREFIX
                   : kind == HD_SAVED_WEIGHT
                       ? ""
                       : hd_rule_row(p->rule)->prefix[kind - HD_SAVED_MOMENT1],
                   p->name);
    e = hd_ckpt_entry_whole(ret_name->text, HD_F32, p->dim_count, p->shape);
    for (int d = 0; d < p->dim_count; d++)
        if (p->real[d] != p->shape[d])
            hd_ckpt_entry_cut(&e, d, p->start[d], p->real[d]);
    return e;
}

void save_name_buffer(const struct hd_buffer *b, struct save_names *ret_name)
{
    (void)snprintf(ret_name->text, sizeof ret_name->text, HD_CKPT_BUFFER_PREFIX "%s", b->name);
}

float *save_buffer_at(const struct hd_trainer *t, const struct hd_buffer *b)
{
    return (float *)hd_trainer_global(t, HD_GLOBAL_BUFFERS) + b->first;
}

struct save_outcome save_outcome_of(enum hd_status st)
{
    struct save_outcome o = {.status = st};

    if (st)
        (void)snprintf(o.message, sizeof o.message, "%s", hd_err_message());
    return o;
}

enum hd_status save_agree(struct hd_trainer *t, const struct save_outcome *mine,
                          struct save_outcome *ret_all)
{
    const char *all;
    enum hd_status st = hd_trainer_exchange(t, mine, sizeof *mine, &all);

    if (st)
        return st;
    for (int r = 0; r < t->rank_program.mesh.world; r++)
        memcpy(&ret_all[r], all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, sizeof *ret_all);
    for (int r = 0; r < t->rank_program.mesh.world; r++)
        if (ret_all[r].status)
            return hd_err(ret_all[r].status, "rank %d: %.*s", r, (int)sizeof ret_all[r].message,
                          ret_all[r].message);
    return HD_OK;
}

void save_name_guard(int index, char ret_text[16])
{
    (void)snprintf(ret_text, 16, "guard_%d", index);
}

void save_number_text(int64_t value, char ret_text[24])
{
    (void)snprintf(ret_text, 24, "%lld", (long long)value);
}

/* Returns the compute precision as text for the manifest, with TF32 if it is used, because TF32
 * changes the bits of fp32 GEMMs on a GPU. */
const char *save_precision_fact(const struct hd_trainer *t)
{
    const struct hd_job *job = &t->rank_program.job;

    return job->tf32 && hd_traits_is_cuda(&t->traits) && job->precision == HD_JOB_PRECISION_FP32
               ? "tf32"
               : hd_job_precision_words[job->precision];
}

/* Writes how sums over ranks are computed as text for the manifest. train.native_reduction has an
 * effect only with NCCL. */
const char *save_sums_fact(const struct hd_trainer *t, char ret_text[SAVE_SUMS_TEXT])
{
    const struct hd_rank_program *l = &t->rank_program;
    const int32_t shard = l->mesh.sizes.zero_shard, replicas = l->mesh.sizes.dp * l->mesh.sizes.cp;
    int used = snprintf(ret_text, SAVE_SUMS_TEXT, "%s",
                        hd_comm_sums_natively(t->open.comm) ? "native" : "ordered");

    if (l->registry.zero >= 2 && replicas > 1)
        used += snprintf(ret_text + used, (size_t)(SAVE_SUMS_TEXT - used), " in each micro-batch");
    if (l->job.reduce == HD_JOB_REDUCE_BF16 && replicas > 1)
        used += snprintf(ret_text + used, (size_t)(SAVE_SUMS_TEXT - used), " of bf16");
    if (l->registry.zero && shard < replicas)
        (void)snprintf(ret_text + used, (size_t)(SAVE_SUMS_TEXT - used), " by blocks of %d",
                       (int)shard);
    return ret_text;
}
