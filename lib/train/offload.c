#include "train/offload.h"

#include "optim/qk_clip.h"

enum hd_status hd_offload_open(struct hd_trainer *t)
{
    const struct hd_rank_opening opening = {.table = hd_backend_cpu(),
                                            .options.threads = (int)t->rank_program.job.threads};
    enum hd_status st;

    if (!t->rank_program.registry.offload)
        return HD_OK;
    st = hd_rank_open(&opening, &t->host);
    return st ? st
              : t->host.table->stream_open(t->host.backend, HD_STREAM_FOR_COMPUTE, &t->host_stream);
}

void hd_offload_close(struct hd_trainer *t)
{
    if (t->host_stream)
        t->host.table->stream_close(t->host_stream);
    hd_rank_close(&t->host);
}

/* ---- addresses ---- */

static char *on_host(const struct hd_trainer *t, const struct hd_bucket *p, enum hd_state_kind kind)
{
    return t->host_base + t->rank_program.host_state + p->offset[kind];
}

/* Returns the device address of the first element of a bucket that this rank updates. */
static char *on_device(const struct hd_trainer *t, const struct hd_bucket *p,
                       enum hd_state_kind kind)
{
    const enum hd_dtype dtype = kind == HD_STATE_COPY ? p->compute : HD_F32;
    char *base = hd_state_is_registered(p, kind) ? t->registered_base : t->private_base;

    return base + p->offset[kind] +
           (p->shard_begin - hd_bucket_base(p, kind)) * (int64_t)hd_dtype_size(dtype);
}

/* ---- the update ---- */

/* Writes a bucket's weights to the device: `copies`, or in fp32 the state itself. */
static enum hd_status write_weights(struct hd_trainer *t, const struct hd_bucket *p,
                                    enum hd_state_kind from, const char *copies)
{
    const char *weights = p->compute == HD_F32 ? on_host(t, p, from) : copies;

    return hd_staging_write(&t->open.staging, on_device(t, p, HD_STATE_COPY), weights,
                            (p->shard_end - p->shard_begin) * (int64_t)hd_dtype_size(p->compute));
}

/* Runs QK-clip on a bucket's updated weights; `copies` are those in the compute encoding, or NULL. */
static enum hd_status clip_bucket(struct hd_trainer *t, const struct hd_bucket *p,
                                  const struct hd_step_state *block, char *copies)
{
    const struct hd_registry *r = &t->rank_program.registry;
    const struct hd_unit *unit = &r->units[p->unit];
    enum hd_status st = HD_OK;
    struct hd_qk_clip_args args;
    int64_t at;

    for (int i = unit->first_param; !st && i < unit->first_param + unit->param_count; i++) {
        if (&r->buckets[r->params[i].bucket] != p || !hd_qk_clip_of(r, i, &args, &at))
            continue;
        at -= p->shard_begin;
        args.weight = (float *)on_host(t, p, HD_STATE_WEIGHT) + at;
        args.copy = copies ? copies + at * (int64_t)hd_dtype_size(p->compute) : NULL;
        args.top_score = t->scores + p->unit * r->qk_clip.heads;
        args.block = block;
        st = hd_launch(t->host_stream, HD_K_qk_clip, &args);
    }
    return st;
}

static enum hd_status update_bucket(struct hd_trainer *t, const struct hd_bucket *p,
                                    const struct hd_step_state *block)
{
    char *window = t->host_base + t->rank_program.window,
         *copies = window + hd_rank_program_window_copy(p);
    const int64_t count = p->shard_end - p->shard_begin;
    const struct hd_adamw_args args = {
        .weight = (float *)on_host(t, p, HD_STATE_WEIGHT),
        .m = on_host(t, p, HD_STATE_MOMENT1),
        .v = hd_rule_row(p->rule)->moments > 1 ? on_host(t, p, HD_STATE_MOMENT2) : NULL,
        .copy = p->compute == HD_F32 ? NULL : copies,
        .grad = (const float *)window,
        .block = block,
        .ranges = (const struct hd_update_range *)on_host(t, p, HD_STATE_RANGES),
        .N = count,
        .range_count = p->range_count,
        .moment_bytes = p->in_blocks ? p->moment_bytes : 0,
        .copy_dtype = p->compute};
    const struct hd_lion_args lion = {.weight = args.weight,
                                      .m = args.m,
                                      .copy = args.copy,
                                      .grad = args.grad,
                                      .block = args.block,
                                      .ranges = args.ranges,
                                      .N = args.N,
                                      .range_count = args.range_count,
                                      .moment_bytes = args.moment_bytes,
                                      .copy_dtype = args.copy_dtype};
    enum hd_status st = hd_staging_read(&t->open.staging, window, on_device(t, p, HD_STATE_GRAD),
                                        count * (int64_t)sizeof(float));

    if (!st)
        st = p->rule == HD_RULE_LION ? hd_launch(t->host_stream, HD_K_lion, &lion)
                                     : hd_launch(t->host_stream, HD_K_adamw, &args);
    if (!st)
        st = clip_bucket(t, p, block, args.copy);
    if (!st)
        st = write_weights(t, p, HD_STATE_WEIGHT, copies);
    if (st || p->offset[HD_STATE_EMA] < 0)
        return st;
    return hd_launch(t->host_stream, HD_K_ema,
                     &(struct hd_ema_args){.ema = (float *)on_host(t, p, HD_STATE_EMA),
                                           .weight = args.weight,
                                           .block = block,
                                           .N = count,
                                           .rate = t->rank_program.registry.ema_rate});
}

enum hd_status hd_offload_update(struct hd_trainer *t)
{
    const struct hd_registry *r = &t->rank_program.registry;
    struct hd_step_state block;
    enum hd_status st = hd_staging_read(&t->open.staging, &block,
                                        hd_trainer_global(t, HD_GLOBAL_STEP_STATE), sizeof block);

    if (!st && r->qk_clip.threshold > 0)
        st = hd_staging_read(&t->open.staging, t->scores, hd_trainer_global(t, HD_GLOBAL_SCORES),
                             hd_global_bytes(r, HD_GLOBAL_SCORES));
    for (int i = 0; !st && !block.skip_update && i < r->bucket_count; i++) {
        const struct hd_bucket *p = &r->buckets[i];

        if (p->offloaded && p->is_local && p->shard_end > p->shard_begin)
            st = update_bucket(t, p, &block);
    }
    return st;
}

enum hd_status hd_offload_copy(struct hd_trainer *t, const struct hd_bucket *p,
                               enum hd_state_kind from)
{
    char *copies = t->host_base + t->rank_program.window + hd_rank_program_window_copy(p);
    enum hd_status st = HD_OK;

    if (p->compute != HD_F32)
        st = hd_launch(t->host_stream, HD_K_cast,
                       &(struct hd_cast_args){.out = copies,
                                              .inp = on_host(t, p, from),
                                              .N = p->shard_end - p->shard_begin,
                                              .out_dtype = p->compute,
                                              .inp_dtype = HD_F32});
    return st ? st : write_weights(t, p, from, copies);
}
