#include "train/param_reader.h"

#include <stdlib.h>

#include "base/math.h"
#include "train/encoded.h"
#include "train/norms.h"

enum hd_status hd_params_read(const struct hd_param_reading *o)
{
    struct hd_param_reader r = {.staging = o->staging,
                                .registry = o->registry,
                                .ckpt = o->ckpt,
                                .seed = (uint64_t)o->job->seed,
                                .values = calloc(HD_LOCAL_SHARD_CHUNK, sizeof(float))};
    enum hd_status st =
        r.values ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read weights and moments");

    if (!st && o->dirs)
        st = hd_source_open(o->dirs, o->job, o->registry, &r.source);
    if (!st && o->check)
        st = o->check(o->registry, r.source);
    for (int i = 0; !st && i < o->registry->param_count; i++)
        if (hd_param_is_local(o->registry, i))
            st = o->read(o->user, &r, i);
    hd_source_close(r.source);
    free(r.values);
    return st;
}

static bool is_in_source(const struct hd_param_reader *r, int param)
{
    return r->source && hd_source_has(r->source, param);
}

/* Makes the records (codes and scales) of a quantized parameter, in place if they are host memory. */
static enum hd_status read_codes(const struct hd_param_reader *r, int param, char *at)
{
    const struct hd_param *p = &r->registry->params[param];
    char *record = r->staging->device ? malloc((size_t)p->record_bytes) : NULL;
    enum hd_status st = HD_OK;

    if (r->staging->device && !record)
        return hd_err(HD_NO_MEMORY, "no memory to encode %s", p->name);
    for (int64_t i = 0; !st && i < hd_param_matrices(p); i++, at += p->record_bytes) {
        st = hd_encoded_make(r->source, r->registry, param, r->seed, i, record ? record : at);
        if (!st && record)
            st = hd_staging_write(r->staging, at, record, p->record_bytes);
    }
    free(record);
    return st;
}

/* Reads or makes the elements that `want` describes. */
static enum hd_status make_values(const struct hd_param_reader *r, int param, int kind,
                                  const struct hd_ckpt_entry *want, float *ret_values)
{
    const struct hd_param *p = &r->registry->params[param];

    if (kind != HD_SAVED_WEIGHT)
        return hd_source_read_checkpoint(r->ckpt, want, ret_values);
    if (is_in_source(r, param))
        return hd_source_read(r->source, param, want, ret_values);
    if (p->init == HD_INIT_NORMS)
        return hd_norms_make(r->source, r->registry, param, r->seed, want->flat_first,
                             want->flat_count, ret_values);
    hd_param_init_values(p, r->seed, want->flat_first, want->flat_count, ret_values);
    return HD_OK;
}

enum hd_status hd_param_read(const struct hd_param_reader *r, int param, int kind,
                             const struct hd_local_shard *shard)
{
    const struct hd_param *p = &r->registry->params[param];
    const bool plain = hd_local_shard_is_plain(shard), stored = is_in_source(r, param);
    const bool drawn = kind == HD_SAVED_WEIGHT && !stored && p->init != HD_INIT_NORMS;
    /* files have no padding */
    const int64_t count = drawn ? shard->count : hd_min(shard->count, p->real_count - shard->first);
    const int64_t size = (int64_t)sizeof(float);
    struct save_names name;
    struct hd_ckpt_entry want = save_entry_of(p, kind, &name);
    enum hd_status st = HD_OK;

    if (shard->codes)
        return read_codes(r, param, shard->at);
    for (int64_t at = 0; !st && at < count; at += want.flat_count) {
        char *tensor = shard->at + at * size; /* if the shard is plain */

        want.flat_first = shard->first + at;
        want.flat_count = plain ? hd_staging_piece(r->staging, (count - at) * size) / size
                                : hd_min(count - at, HD_LOCAL_SHARD_CHUNK);
        st = make_values(r, param, kind, &want,
                         plain ? hd_staging_view(r->staging, tensor) : r->values);
        if (!st)
            st = plain ? hd_staging_put(r->staging, tensor, want.flat_count * size)
                       : hd_local_shard_write(r->staging, shard, at, want.flat_count, r->values);
    }
    return st;
}
