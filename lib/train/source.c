#include "train/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct hd_source {
    struct hd_arena arena;
    struct hd_ckpt *ckpt;       /* of a checkpoint of Heddle; NULL: a Hugging Face model */
    struct hd_weights *weights; /* of a Hugging Face model, */
    struct hd_hf_map *map;      /* and which of its tensors are which parameters */
    int *wanted;                /* [parameters]: the index in the map, or 0; -1: it is not there */
};

static void format_shape(const int64_t *shape, int dim_count, char ret_text[96])
{
    size_t n = (size_t)snprintf(ret_text, 96, "[");

    for (int d = 0; d < dim_count; d++)
        n += (size_t)snprintf(ret_text + n, 96 - n, "%s%" PRId64, d ? ", " : "", shape[d]);
    (void)snprintf(ret_text + n, 96 - n, "]");
}

static enum hd_status check_tensor(const char *dir, const struct hd_ckpt *ckpt,
                                   const struct hd_param *p)
{
    const struct hd_ckpt_entry *is = hd_ckpt_find_tensor(ckpt, p->name);
    char theirs[96], ours[96];
    bool same;

    if (!is && p->adapter)
        return hd_err(
            HD_INVALID,
            "%s has another adapter, without %s; use the same train.adapter, or begin with "
            "a model that has none",
            dir, p->name);
    if (!is)
        return hd_err(HD_INVALID, "%s has no weight %s: it belongs to another model", dir, p->name);
    same = is->dim_count == p->dim_count;
    for (int d = 0; same && d < p->dim_count; d++)
        same = is->shape[d] == p->shape[d];
    if (same)
        return HD_OK;
    format_shape(is->shape, is->dim_count, theirs);
    format_shape(p->shape, p->dim_count, ours);
    return hd_err(HD_INVALID, "%s: weight %s has the shape %s, the model needs %s", dir, p->name,
                  theirs, ours);
}

static bool has_adapter(const struct hd_ckpt *ckpt, const struct hd_registry *registry)
{
    for (int i = 0; i < registry->param_count; i++)
        if (registry->params[i].adapter && hd_ckpt_find_tensor(ckpt, registry->params[i].name))
            return true;
    return false;
}

static enum hd_status open_checkpoint(struct hd_source *s, const char *dir,
                                      const struct hd_registry *registry)
{
    enum hd_status st = hd_ckpt_open(dir, &s->ckpt);
    const bool adapted = !st && has_adapter(s->ckpt, registry);
    size_t weights = 0, expected = 0;

    for (size_t i = 0; !st && i < hd_ckpt_tensor_count(s->ckpt); i++)
        weights += hd_ckpt_is_weight(hd_ckpt_tensor(s->ckpt, i)->name);
    for (int i = 0; !st && i < registry->param_count; i++) {
        if (registry->params[i].adapter && !adapted) {
            s->wanted[i] = -1;
            continue;
        }
        st = check_tensor(dir, s->ckpt, &registry->params[i]);
        expected++;
    }
    if (!st && weights != expected)
        st = hd_err(HD_INVALID, "%s has %zu weights, the model %zu: it belongs to another model",
                    dir, weights, expected);
    return st;
}

static enum hd_status open_model(struct hd_source *s, const char *dir, const struct hd_job *job,
                                 const struct hd_registry *registry)
{
    struct hd_ckpt_entry *wanted =
        hd_arena_array(&s->arena, (size_t)registry->param_count, sizeof *wanted);
    enum hd_status st = hd_weights_open(dir, &s->weights);
    size_t count = 0;

    if (st)
        return st;
    if (!wanted)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", dir);
    for (int i = 0; i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];

        s->wanted[i] = p->adapter ? -1 : (int)count;
        if (!p->adapter)
            wanted[count++] = hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);
    }
    st = hd_hf_map_open(s->weights, job, wanted, count, &s->map);
    return st ? hd_err_prefix(st, "%s", dir) : HD_OK;
}

bool hd_source_has(const struct hd_source *s, int param)
{
    return s->wanted[param] >= 0;
}

enum hd_status hd_source_open(const char *dir, const struct hd_job *job,
                              const struct hd_registry *registry, struct hd_source **ret_source)
{
    struct hd_source *s = calloc(1, sizeof *s);
    enum hd_status st;

    if (!s)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", dir);
    hd_arena_init(&s->arena, 0);
    s->wanted = hd_arena_array(&s->arena, (size_t)registry->param_count, sizeof *s->wanted);
    if (!s->wanted)
        st = hd_err(HD_NO_MEMORY, "no memory to read %s", dir);
    else
        st = hd_source_is_checkpoint(dir) ? open_checkpoint(s, dir, registry)
                                          : open_model(s, dir, job, registry);
    if (st)
        hd_source_close(s);
    else
        *ret_source = s;
    return st;
}

void hd_source_close(struct hd_source *s)
{
    if (!s)
        return;
    hd_hf_map_close(s->map);
    hd_weights_close(s->weights);
    hd_ckpt_close(s->ckpt);
    hd_arena_done(&s->arena);
    free(s);
}

enum hd_status hd_source_read_checkpoint(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want,
                                         float *ret_values)
{
    const enum hd_status st = hd_ckpt_read(ckpt, want, ret_values);
    const int64_t bad = st ? -1 : hd_f32_find_nonfinite(ret_values, want->flat_count);

    return bad < 0 ? st
                   : hd_err(HD_CORRUPT,
                            "%s: tensor %s holds the value %g, from which nothing can be trained",
                            hd_ckpt_dir(ckpt), want->name, (double)ret_values[bad]);
}

enum hd_status hd_source_read(struct hd_source *s, int param, const struct hd_ckpt_entry *want,
                              float *ret_values)
{
    return s->ckpt ? hd_source_read_checkpoint(s->ckpt, want, ret_values)
                   : hd_hf_read(s->map, (size_t)s->wanted[param], want, ret_values);
}

bool hd_source_codes(const struct hd_source *s, int param, int64_t expert, enum hd_quant quant,
                     struct hd_quant_whole *ret_whole)
{
    return s->map && hd_hf_codes(s->map, (size_t)s->wanted[param], expert, quant, ret_whole);
}

enum hd_status hd_source_check_identity(const char *dir, const char *identity)
{
    char is[HD_HASH_TEXT_MAX];
    uint64_t hash = 0;
    enum hd_status st = *identity ? hd_source_identity(dir, &hash) : HD_OK;

    if (st || !*identity)
        return st;
    hd_hash_format(hash, is);
    if (strcmp(is, identity) == 0)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s has changed since the job was submitted: its identity is %s, was %s; restore "
                  "the files, or submit the job again",
                  dir, is, identity);
}
