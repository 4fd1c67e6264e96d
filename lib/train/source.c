#include "train/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "train/pissa.h"

/* Directory that a parameter is read from. */
enum place {
    /* a factor of an adapter or a reward model's vector that no directory has, or a quantized
     * matrix of a run that began with random weights */
    NOWHERE,
    IN_CHECKPOINT,
    IN_BASE, /* the checkpoint that the run of this checkpoint began with */
    IN_FOLDER,
    IN_PISSA, /* computed from a weight of the folder (pissa.h) */
    IN_ADAPTER_CHECKPOINT,
    IN_ADAPTER_FOLDER
};

struct folder {
    const char *dir;
    struct hd_weights *weights;
    struct hd_hf_map *map; /* tensors of the folder by parameter */
};

struct hd_source {
    struct hd_arena arena;
    const struct hd_job *job; /* job of the model; used only while opening */
    const struct hd_registry *registry;
    struct hd_ckpt *ckpt, *adapter_ckpt; /* NULL: none */
    struct folder folder, adapter_folder;
    enum place *places; /* [parameters], the directory that each parameter is read from */
    /* [parameters], for a parameter that is read from a model folder: its index in the folder's
     * map */
    size_t *in_map;
    struct hd_source *base;
    struct hd_pissa *pissa; /* NULL: weights of the folder are read as they are */
    uint64_t seed;
};

static enum hd_status no_memory_to_read(const char *dir)
{
    return hd_err(HD_NO_MEMORY, "no memory to read %s", dir);
}

/* ---- a checkpoint ---- */

static void format_shape(const int64_t *shape, int dim_count, char ret_text[96])
{
    size_t n = (size_t)snprintf(ret_text, 96, "[");

    for (int d = 0; d < dim_count; d++)
        n += (size_t)snprintf(ret_text + n, 96 - n, "%s%" PRId64, d ? ", " : "", shape[d]);
    (void)snprintf(ret_text + n, 96 - n, "]");
}

static enum hd_status check_shape(const char *dir, const struct hd_ckpt_entry *is,
                                  const struct hd_param *p)
{
    char theirs[96], ours[96];
    bool same = is->dim_count == p->dim_count;

    for (int d = 0; same && d < p->dim_count; d++)
        same = is->shape[d] == p->shape[d];
    if (same)
        return HD_OK;
    format_shape(is->shape, is->dim_count, theirs);
    format_shape(p->shape, p->dim_count, ours);
    return hd_err(HD_INVALID, "%s: weight %s has the shape %s, the model needs %s", dir, p->name,
                  theirs, ours);
}

static enum hd_status misses(const char *dir, const struct hd_param *p)
{
    if (p->newly_initialized)
        return hd_err(HD_INVALID, "%s is not of a reward model: it has no %s", dir, p->name);
    if (p->adapter)
        return hd_err(
            HD_INVALID,
            "%s has another adapter, without %s; use the same train.adapter, or begin with "
            "a model that has none",
            dir, p->name);
    return hd_err(HD_INVALID, "%s has no weight %s: it belongs to another model", dir, p->name);
}

static bool has_adapter(const struct hd_ckpt *ckpt, const struct hd_registry *registry)
{
    for (int i = 0; i < registry->param_count; i++)
        if (registry->params[i].adapter && hd_ckpt_find_tensor(ckpt, registry->params[i].name))
            return true;
    return false;
}

/* Returns whether the parameter is of a layer for further tokens (model.mtp). */
static bool is_further(const char *name)
{
    return hd_text_starts(name, "mtp.");
}

/* Returns the number of the checkpoint's weights in layers for further tokens. */
static size_t count_further(const struct hd_ckpt *ckpt)
{
    size_t count = 0;

    for (size_t i = 0; i < hd_ckpt_tensor_count(ckpt); i++)
        count += is_further(hd_ckpt_get_tensor(ckpt, i)->name);
    return count;
}

static bool has_newly_initialized(const struct hd_registry *registry)
{
    for (int i = 0; i < registry->param_count; i++)
        if (registry->params[i].newly_initialized)
            return true;
    return false;
}

/* Checks that the checkpoint's head fits: a reward model and a language model have different heads.
 * A reward model may begin with a language model; it then ignores that head (*ret_unused is 1). */
static enum hd_status check_head(const struct hd_registry *r, const struct hd_ckpt *ckpt,
                                 size_t *ret_unused)
{
    const bool is_reward = hd_ckpt_find_tensor(ckpt, "head.score.weight") != NULL;

    *ret_unused = has_newly_initialized(r) && hd_ckpt_find_tensor(ckpt, "head.weight") ? 1 : 0;
    if (!is_reward || has_newly_initialized(r))
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s is a reward model's: it has no head for tokens; continue from it with "
                  "train.objective: reward, or begin with the model that it was trained from",
                  hd_ckpt_dir(ckpt));
}

/* Notes that the adapter's factors, or with `all` every parameter, are read from the checkpoint.
 * omits: parameters that the checkpoint lacks are read from its base. */
static enum hd_status place_in_checkpoint(struct hd_source *s, const struct hd_ckpt *ckpt,
                                          enum place place, bool all, bool omits)
{
    const struct hd_registry *r = s->registry;
    const char *dir = hd_ckpt_dir(ckpt);
    const bool adapted = has_adapter(ckpt, r);
    const size_t further = count_further(ckpt);
    size_t weights = 0, expected = 0, used_further = 0, unused;
    enum hd_status st = check_head(r, ckpt, &unused);

    for (size_t i = 0; i < hd_ckpt_tensor_count(ckpt); i++)
        weights += hd_ckpt_is_weight(hd_ckpt_get_tensor(ckpt, i)->name);
    for (int i = 0; !st && i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];
        const struct hd_ckpt_entry *is = hd_ckpt_find_tensor(ckpt, p->name);

        if (!all && !p->adapter)
            continue;
        if (!is && (p->newly_initialized || (p->adapter && !adapted && all) ||
                    (!p->adapter && omits) || (is_further(p->name) && !further)))
            continue;
        st = is ? check_shape(dir, is, p) : misses(dir, p);
        s->places[i] = place;
        used_further += is && is_further(p->name);
        expected++;
    }
    unused += further - used_further; /* the model has none of these layers, or not all */
    if (!st && all && weights != expected + unused)
        st = hd_err(HD_INVALID, "%s has %zu weights, the model %zu: it belongs to another model",
                    dir, weights, expected);
    return st;
}

/* ---- a folder ---- */

/* Notes that the factors of an adapter, or all other parameters, are read from the folder, except
 * parameters that the checkpoint has. */
static enum hd_status place_in_folder(struct hd_source *s, const char *dir, struct folder *f,
                                      bool factors)
{
    const struct hd_registry *r = s->registry;
    struct hd_ckpt_entry *wanted =
        hd_arena_array(&s->arena, (size_t)r->param_count, sizeof *wanted);
    const bool has_further = r->further && hd_hf_has_further(f->weights, s->job);
    size_t count = 0;
    enum hd_status st;

    f->dir = hd_arena_strdup(&s->arena, dir);
    if (!wanted || !f->dir)
        return no_memory_to_read(dir);
    for (int i = 0; i < r->param_count; i++) {
        const struct hd_param *p = &r->params[i];

        if (p->adapter != factors || (p->newly_initialized && !hd_hf_has_score(f->weights)) ||
            (is_further(p->name) && !has_further))
            continue;
        if (s->places[i] == NOWHERE) {
            s->places[i] = factors ? IN_ADAPTER_FOLDER : IN_FOLDER;
            s->in_map[i] = count;
        }
        wanted[count++] = hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);
    }
    st = factors ? hd_hf_map_open_adapter(f->weights, s->job, wanted, count, &f->map)
                 : hd_hf_map_open(f->weights, s->job, wanted, count, &f->map);
    return st ? hd_err_prefix(st, "%s", dir) : HD_OK;
}

static enum hd_status read_folder(const struct folder *f, size_t index,
                                  const struct hd_ckpt_entry *want, float *ret_values)
{
    const enum hd_status st = hd_hf_read(f->map, index, want, ret_values);

    return st ? hd_err_prefix(st, "%s", f->dir) : HD_OK;
}

/* ---- the base of a checkpoint ---- */

/* Opens the model folder from which a checkpoint's run read its frozen parameters. */
static enum hd_status open_base(struct hd_source *s, const char *checkpoint, const char *dir,
                                const struct hd_job *then)
{
    char identity[HD_HASH_TEXT_MAX];
    enum hd_status st = hd_weights_open(dir, &s->folder.weights);

    if (st)
        return hd_err_prefix(st == HD_NOT_FOUND ? HD_INVALID : st,
                             "%s contains only the trained parameters; the others are in the model "
                             "folder %s: restore it, or say where it is now (--base DIR; for a "
                             "job: heddle resume JOB --set model.from=DIR --set "
                             "train.init_from=DIR)",
                             checkpoint, dir);
    hd_hash_format(hd_weights_identity(s->folder.weights), identity);
    if (strcmp(identity, then->init_identity) != 0)
        return hd_err(
            HD_INVALID,
            "%s is not the model that %s was trained on: its identity is %s, was %s; give "
            "the folder with which the job began",
            dir, checkpoint, identity, then->init_identity);
    return place_in_folder(s, dir, &s->folder, false);
}

/* Reads all of a parameter of the folder, as it is there. */
static enum hd_status read_plain_weight(void *of, int param, float *ret_values)
{
    struct hd_source *s = of;
    const struct hd_param *p = &s->registry->params[param];
    const struct hd_ckpt_entry want = hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);

    if (s->places[param] != IN_FOLDER)
        return hd_err(HD_INVALID,
                      "train.adapter.init: pissa begins with the weights of a model folder of "
                      "Hugging Face, which has no %s; export the checkpoint first",
                      p->name);
    return read_folder(&s->folder, s->in_map[param], &want, ret_values);
}

/* Has weights of the folder read without what the adapter of `job` began with. */
static enum hd_status open_pissa(struct hd_source *s, const struct hd_job *job)
{
    return s->pissa || job->adapter != HD_JOB_ADAPTER_LORA ||
                   job->adapter_init != HD_JOB_ADAPTER_INIT_PISSA
               ? HD_OK
               : hd_pissa_new(s->registry, job, read_plain_weight, s, &s->pissa);
}

/* Opens the base of a checkpoint whose run began with another checkpoint. */
static enum hd_status open_base_checkpoint(struct hd_source *s, const char *dir,
                                           const struct hd_job *then)
{
    const struct hd_source_dirs dirs = {.dir = dir};
    enum hd_status st = hd_source_check_identity(dir, then->init_identity);

    if (!st)
        st = hd_source_open(&dirs, s->job, s->registry, &s->base);
    if (st)
        return st;
    s->seed = s->base->seed;
    for (int i = 0; i < s->registry->param_count; i++)
        if (s->places[i] == NOWHERE && !s->registry->params[i].adapter &&
            s->base->places[i] != NOWHERE)
            s->places[i] = IN_BASE;
    return HD_OK;
}

/* Returns the status of reading a base, with HD_CORRUPT turned into HD_INVALID: a damaged base does
 * not mean that the checkpoint is damaged, and a restart would find the same damage. */
static enum hd_status of_base(enum hd_status st)
{
    return st == HD_CORRUPT ? HD_INVALID : st;
}

/* Opens the directories that have the parameters which the checkpoint omits: quantized ones always,
 * with checkpoint.frozen: omit all frozen ones. These parameters come from what the run began with:
 * a folder, a checkpoint, or values drawn by its seed. */
static enum hd_status open_rest(struct hd_source *s, const struct hd_source_dirs *dirs,
                                const struct hd_job *then)
{
    const char *dir = dirs->base && *dirs->base ? dirs->base : then->init_from;
    enum hd_status st;

    if (!*dir)
        return HD_OK;
    st = hd_source_is_checkpoint(dir) ? open_base_checkpoint(s, dir, then)
                                      : open_base(s, dirs->dir, dir, then);
    return of_base(st);
}

static bool has_quantized(const struct hd_job *job)
{
    return job->model_weights && job->model_weights != HD_JOB_MODEL_WEIGHTS_PLAIN;
}

/* Returns true if the checkpoint lacks a weight. A run that trains all weights omits none, so its
 * base may be gone. */
static bool lacks_weights(const struct hd_source *s)
{
    for (int i = 0; i < s->registry->param_count; i++)
        if (s->places[i] == NOWHERE && !s->registry->params[i].adapter)
            return true;
    return false;
}

static enum hd_status open_checkpoint(struct hd_source *s, const struct hd_source_dirs *dirs)
{
    struct hd_job then;
    bool omits = false;
    enum hd_status st = hd_ckpt_open(dirs->dir, &s->ckpt);

    if (!st)
        st = hd_stored_job_of(s->ckpt, &s->arena, &then);
    if (!st)
        st = open_pissa(s, &then);
    if (!st) {
        omits = then.checkpoint_base == HD_JOB_CHECKPOINT_BASE_OMIT || has_quantized(&then);
        st = place_in_checkpoint(s, s->ckpt, IN_CHECKPOINT, true, omits);
    }
    if (!st && omits)
        s->seed = (uint64_t)then.seed;
    return st || !omits || !lacks_weights(s) ? st : open_rest(s, dirs, &then);
}

/* ---- opening ---- */

static enum hd_status open_adapter(struct hd_source *s, const char *dir)
{
    enum hd_status st;

    for (int i = 0; i < s->registry->param_count; i++)
        if (s->places[i] != NOWHERE && s->registry->params[i].adapter)
            return hd_err(HD_INVALID, "%s: the model has an adapter already", dir);
    if (hd_source_is_checkpoint(dir)) {
        struct hd_job then;

        st = hd_ckpt_open(dir, &s->adapter_ckpt);
        if (!st)
            st = hd_stored_job_of(s->adapter_ckpt, &s->arena, &then);
        if (!st)
            st = open_pissa(s, &then);
        return st ? st
                  : place_in_checkpoint(s, s->adapter_ckpt, IN_ADAPTER_CHECKPOINT, false, false);
    }
    st = hd_hf_open_adapter(dir, &s->adapter_folder.weights);
    return st ? st : place_in_folder(s, dir, &s->adapter_folder, true);
}

/* Has the factors of an adapter that no directory has computed from the weights, if the job says so. */
static enum hd_status begin_pissa(struct hd_source *s)
{
    enum hd_status st = HD_OK;
    bool begins = true;

    for (int i = 0; i < s->registry->param_count; i++)
        begins &= !s->registry->params[i].adapter || s->places[i] == NOWHERE;
    if (begins)
        st = open_pissa(s, s->job);
    for (int i = 0; !st && begins && s->pissa && i < s->registry->param_count; i++)
        if (hd_pissa_is_factor(s->pissa, i))
            s->places[i] = IN_PISSA;
    return st;
}

static enum hd_status open_dirs(struct hd_source *s, const struct hd_source_dirs *dirs)
{
    const size_t count = (size_t)s->registry->param_count;
    enum hd_status st;

    s->places = hd_arena_array(&s->arena, count, sizeof *s->places);
    s->in_map = hd_arena_array(&s->arena, count, sizeof *s->in_map);
    if (!s->places || !s->in_map)
        return no_memory_to_read(dirs->dir);
    if (hd_source_is_checkpoint(dirs->dir)) {
        st = open_checkpoint(s, dirs);
    } else {
        st = hd_weights_open(dirs->dir, &s->folder.weights);
        if (!st)
            st = place_in_folder(s, dirs->dir, &s->folder, false);
    }
    if (!st && dirs->adapter && *dirs->adapter)
        st = open_adapter(s, dirs->adapter);
    else if (!st)
        st = begin_pissa(s);
    for (size_t i = 0; !st && i < count; i++)
        if (s->places[i] == NOWHERE && !s->registry->params[i].adapter &&
            !s->registry->params[i].newly_initialized && !s->registry->params[i].quant &&
            !is_further(s->registry->params[i].name))
            st = misses(dirs->dir, &s->registry->params[i]);
    return st;
}

enum hd_status hd_source_open(const struct hd_source_dirs *dirs, const struct hd_job *job,
                              const struct hd_registry *registry, struct hd_source **ret_source)
{
    struct hd_source *s = calloc(1, sizeof *s);
    enum hd_status st;

    if (!s)
        return no_memory_to_read(dirs->dir);
    hd_arena_init(&s->arena, 0);
    s->job = job;
    s->registry = registry;
    s->seed = (uint64_t)job->seed;
    st = open_dirs(s, dirs);
    if (st)
        hd_source_close(s);
    else
        *ret_source = s;
    return st;
}

static void close_folder(struct folder *f)
{
    hd_hf_map_close(f->map);
    hd_weights_close(f->weights);
}

void hd_source_close(struct hd_source *s)
{
    if (!s)
        return;
    close_folder(&s->folder);
    close_folder(&s->adapter_folder);
    hd_source_close(s->base);
    hd_pissa_free(s->pissa);
    hd_ckpt_close(s->ckpt);
    hd_ckpt_close(s->adapter_ckpt);
    hd_arena_done(&s->arena);
    free(s);
}

/* ---- reading ---- */

bool hd_source_has(const struct hd_source *s, int param)
{
    return s->places[param] != NOWHERE;
}

uint64_t hd_source_seed(const struct hd_source *s)
{
    return s->seed;
}

bool hd_source_in_checkpoint(const struct hd_source *s, int param)
{
    return s->places[param] == IN_CHECKPOINT;
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
    enum hd_status st;

    switch (s->places[param]) {
    case IN_CHECKPOINT:
        return hd_source_read_checkpoint(s->ckpt, want, ret_values);
    case IN_BASE:
        return of_base(hd_source_read(s->base, param, want, ret_values));
    case IN_ADAPTER_CHECKPOINT:
        return hd_source_read_checkpoint(s->adapter_ckpt, want, ret_values);
    case IN_FOLDER:
        st = read_folder(&s->folder, s->in_map[param], want, ret_values);
        return st || !s->pissa || !hd_pissa_is_weight(s->pissa, param)
                   ? st
                   : hd_pissa_subtract(s->pissa, param, want, ret_values);
    case IN_PISSA:
        return hd_pissa_factor(s->pissa, param, want, ret_values);
    case IN_ADAPTER_FOLDER:
        return read_folder(&s->adapter_folder, s->in_map[param], want, ret_values);
    case NOWHERE:
        break;
    }
    return hd_err(HD_INTERNAL, "%s is in no directory", want->name);
}

enum hd_status hd_source_read_first(struct hd_source *s, int param,
                                    const struct hd_ckpt_entry *want, float *ret_values)
{
    if (!s->pissa || !hd_pissa_is_factor(s->pissa, param))
        return hd_err(HD_INTERNAL, "%s began with nothing of its base", want->name);
    return hd_pissa_factor(s->pissa, param, want, ret_values);
}

bool hd_source_quantized(const struct hd_source *s, int param, int64_t expert, enum hd_quant quant,
                         struct hd_quant_whole *ret_whole)
{
    if (s->places[param] == IN_BASE)
        return hd_source_quantized(s->base, param, expert, quant, ret_whole);
    return s->places[param] == IN_FOLDER && !(s->pissa && hd_pissa_is_weight(s->pissa, param)) &&
           hd_hf_get_quantized(s->folder.map, s->in_map[param], expert, quant, ret_whole);
}

static enum hd_status check_hash(const char *dir, uint64_t hash, const char *identity)
{
    char is[HD_HASH_TEXT_MAX];

    hd_hash_format(hash, is);
    if (strcmp(is, identity) == 0)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "%s has changed since the job was submitted: its identity is %s, was %s; restore "
                  "the files, or submit the job again",
                  dir, is, identity);
}

enum hd_status hd_source_check_identity(const char *dir, const char *identity)
{
    uint64_t hash = 0;
    const enum hd_status st = *identity ? hd_source_identity(dir, &hash) : HD_OK;

    return st || !*identity ? st : check_hash(dir, hash, identity);
}

enum hd_status hd_source_check_adapter(const char *dir, const char *identity)
{
    struct hd_arena arena;
    struct hd_job form;
    uint64_t hash = 0;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    hd_job_init(&form, &arena);
    st = *identity ? hd_adapter_read(dir, &form, &hash) : HD_OK;
    hd_arena_done(&arena);
    return st || !*identity ? st : check_hash(dir, hash, identity);
}
