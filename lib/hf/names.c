#include "hf/hf_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED_MAX = 4 }; /* most names of tensors in one error message */

int64_t hd_hf_part_rows(const struct hd_job *job, const char *name, int64_t rows)
{
    int64_t heads = 0;

    if (strstr(name, "delta.q.") || strstr(name, "delta.k.") || strstr(name, "conv_q.") ||
        strstr(name, "conv_k."))
        return job->delta_key_heads * job->delta_key_width;
    if (strstr(name, "delta.v.") || strstr(name, "delta.z.") || strstr(name, "conv_v."))
        return job->delta_value_heads * job->delta_value_width;
    if (strstr(name, "attention.q.") || strstr(name, "attention.gate."))
        heads = job->heads;
    else if (strstr(name, "attention.k.") || strstr(name, "attention.v."))
        heads = job->kv_heads;
    return heads * job->head_width > 0 ? heads * job->head_width : rows;
}

int64_t hd_hf_groups_of(const struct hd_job *job, const struct hd_hf_row *row)
{
    return row->groups == HD_HF_BY_HEAD       ? job->heads
           : row->groups == HD_HF_BY_KEY_HEAD ? job->delta_key_heads
                                              : 1;
}

int64_t hd_hf_tensors_of(const struct hd_hf_row *row, const struct hd_job *job)
{
    if (!hd_hf_per_expert(row))
        return 1;
    return strstr(row->ours, ".moe.") ? job->experts : job->heads;
}

bool hd_hf_per_expert(const struct hd_hf_row *row)
{
    return strchr(row->theirs, '*') != NULL;
}

/* ---- the map ---- */

struct found_name {
    const struct hd_weight **weights; /* their tensors: [1], or [E] with one tensor per expert */
    /* [1] or [E], like `weights`; quant is NONE for a plain tensor */
    struct hd_hf_quantized *quantized;
    bool per_expert, transposed;
    const struct hd_job
        *by_heads; /* the joined tensor is one by key/value heads; NULL: it is not */
    int place;     /* index of our part in it */
    int64_t first; /* first row of our part in a joined tensor */
    /* rows of a group in their tensor, and those of our part among them, from `first` on; 0: there
     * are no groups */
    int64_t group_rows, part_rows;
    int64_t step;           /* rows from one of our part to the next */
    int64_t first_column;   /* first column of our part in a joined tensor */
    enum hd_hf_stack stack; /* form of a factor of all experts */
    int64_t experts;        /* of such a factor */
};

struct hd_hf_map {
    struct hd_arena arena;
    struct found_name *found; /* [count] their tensors of each parameter, by index in `wanted` */
    const struct hd_ckpt_entry *wanted;
    size_t count;
    bool *used; /* [tensors of the weights] whether a wanted parameter uses the tensor */
};

struct search {
    const struct hd_weights *weights;
    const struct hd_job *job;
    const struct hd_hf_row *rows;
    size_t row_count;
    /* names of the blocks of layers that predict further tokens, which may have another form */
    const struct hd_hf_row *further_rows;
    size_t further_count;
    struct hd_hf_prefixes prefixes; /* prefixes of the tensors' names in this directory */
    bool adapter;                   /* the weights are PEFT's factors, not a model */
    struct hd_text missing, unexpected;
    size_t missing_count, unexpected_count;
};

static void list(struct hd_text *names, size_t *count, const char *name)
{
    if (++*count <= LISTED_MAX)
        hd_text_add(names, "%s%s", *count > 1 ? ", " : "", name);
}

static void format_shape(const int64_t *shape, int dim_count, char ret_text[96])
{
    size_t n = 1;

    (void)snprintf(ret_text, 96, "[");
    for (int d = 0; d < dim_count; d++)
        n += (size_t)snprintf(ret_text + n, 96 - n, "%s%" PRId64, d ? ", " : "", shape[d]);
    (void)snprintf(ret_text + n, 96 - n, "]");
}

/* Returns the rows of the first `place` parts of the tensor of a row, of whose own part `rows` is the
 * size: that of q differs from that of k and v. */
static int64_t rows_before(const struct search *s, const struct hd_hf_row *row, int place,
                           int64_t rows)
{
    const struct hd_hf_row *first = row - row->place;
    int64_t sum = 0;

    for (int i = 0; i < place; i++)
        sum += row->parts == 1 ? rows : hd_hf_part_rows(s->job, first[i].ours, rows);
    return sum;
}

/* Returns whether the parts of a tensor alternate along its columns: those of experts' biases. */
static bool joins_columns(const struct hd_hf_row *row, const struct hd_ckpt_entry *want)
{
    return row->alternate && want->dim_count == 2;
}

static enum hd_status wrong_shape(const struct hd_weight *w, const int64_t *expected, int dims)
{
    char is[96], should[96];

    format_shape(w->shape, w->dim_count, is);
    format_shape(expected, dims, should);
    return hd_err(HD_INVALID, "%s: tensor %s has the shape %s, the model needs %s", w->file,
                  w->name, is, should);
}

static enum hd_status check_dtype(const struct hd_weight *w)
{
    if (w->dtype != HD_F32 && w->dtype != HD_F16 && w->dtype != HD_BF16 && w->dtype != HD_F64)
        return hd_err(HD_UNSUPPORTED,
                      "%s: tensor %s is neither F32, F16, BF16 nor F64; convert the model to one "
                      "of these",
                      w->file, w->name);
    return HD_OK;
}

/* Checks shape and dtype of a tensor with factors of all experts. */
static enum hd_status check_stack(const struct search *s, const struct hd_hf_row *row,
                                  const struct hd_ckpt_entry *want, const struct hd_weight *w)
{
    const int64_t ours[3] = {want->shape[0], rows_before(s, row, row->parts, want->shape[1]),
                             want->shape[2]};
    int64_t expected[2];

    hd_hf_stack_shape(row->stack, row->transposed, ours, expected);
    if (w->dim_count != 2 || w->shape[0] != expected[0] || w->shape[1] != expected[1])
        return wrong_shape(w, expected, 2);
    return check_dtype(w);
}

/* Checks shape and dtype of a tensor of the Hugging Face model. Its table of positions may be longer
 * than the job's context: the job then uses the first rows. */
static enum hd_status check_tensor_shape(const struct search *s, const struct hd_hf_row *row,
                                         const struct hd_ckpt_entry *want,
                                         const struct hd_weight *w)
{
    const bool positions = strcmp(row->ours, "embedding.positions") == 0;
    int64_t expected[HD_CKPT_DIMS_MAX] = {0};
    const bool one_row = row->one_row && w->dim_count == 2 && w->shape[0] == 1;
    const int left_out = hd_hf_per_expert(row), dims = want->dim_count - left_out;
    const bool flat = row->middle && w->dim_count == 3 && w->shape[1] == 1;
    const bool columns = row->columns || joins_columns(row, want);
    const int merged = columns ? dims - 1 : want->dim_count > 2 ? want->dim_count - 2 : 0;
    bool same = w->dim_count == dims + one_row + flat;

    for (int d = 0; d < dims; d++) {
        const bool turned = row->transposed && dims > 1 && d >= dims - 2;
        const int from = (turned ? 2 * dims - 3 - d : d) + left_out;

        expected[d] = from != merged ? want->shape[from]
                      : columns      ? want->shape[from] * row->parts
                                     : rows_before(s, row, row->parts, want->shape[from]);
    }
    for (int d = 0; same && d < dims; d++)
        same = w->shape[d + one_row + (flat && d)] == expected[d] ||
               (positions && d == 0 && w->shape[d] > expected[d]);
    if (!same)
        return wrong_shape(w, expected, dims);
    return check_dtype(w);
}

/* Returns whether the tensor is a quantized matrix: it consists of bytes. Stacks of experts are
 * quantized in mxfp4 only. */
static bool is_quantized(const struct hd_weight *w, const struct hd_ckpt_entry *want)
{
    return (w->dtype == HD_U8 || strcmp(w->form, "I8") == 0) && want->dim_count > 1 &&
           w->dim_count == 2;
}

/* Finds one of their tensors for a parameter; if it is missing, adds it to the list of missing
 * tensors. */
static enum hd_status find_tensor(struct search *s, struct hd_hf_map *map,
                                  const struct hd_hf_row *row, const struct hd_ckpt_entry *want,
                                  int64_t layer, int64_t expert,
                                  const struct hd_weight **ret_weight,
                                  struct hd_hf_quantized *ret_quantized)
{
    char plain[HD_CKPT_NAME_MAX], name[HD_WEIGHTS_NAME_MAX];

    hd_hf_format_theirs(row, s->job, &s->prefixes, layer, expert, name);
    *ret_weight = hd_weights_find(s->weights, name);
    if (!*ret_weight && s->job->tie_embeddings && !s->adapter &&
        /* an embedding may be saved under the name of the tied head */
        strcmp(row->ours, "embedding.weight") == 0) {
        (void)snprintf(plain, sizeof plain, "%s" HD_HF_HEAD_NAME, s->prefixes.top);
        *ret_weight = hd_weights_find(s->weights, plain);
    }
    if (!*ret_weight) {
        list(&s->missing, &s->missing_count, name);
        return HD_OK;
    }
    map->used[*ret_weight - hd_weights_at(s->weights, 0)] = true;
    if (row->stack)
        return check_stack(s, row, want, *ret_weight);
    if (hd_hf_is_fp8(*ret_weight) && want->dim_count > 1 && !row->transposed)
        return hd_hf_find_fp8(s->weights, *ret_weight,
                              rows_before(s, row, row->parts, want->shape[want->dim_count - 2]),
                              want->shape[want->dim_count - 1], map->used, ret_quantized);
    if ((*ret_weight)->dtype == HD_U8 && want->dim_count == 3 && (*ret_weight)->dim_count == 4)
        return hd_hf_find_mxfp4(
            s->weights, *ret_weight,
            (const int64_t[3]){want->shape[0], want->shape[1] * row->parts, want->shape[2]},
            map->used, ret_quantized);
    if (is_quantized(*ret_weight, want))
        return hd_hf_find_quantized(
            s->weights, *ret_weight,
            rows_before(s, row, row->parts, want->shape[want->dim_count - 2]),
            want->shape[want->dim_count - 1], map->used, ret_quantized);
    return check_tensor_shape(s, row, want, *ret_weight);
}

static enum hd_status find_one(struct search *s, struct hd_hf_map *map, size_t index)
{
    const struct hd_ckpt_entry *want = &map->wanted[index];
    const int rows_at = want->dim_count > 2 ? want->dim_count - 2 : 0;
    const struct hd_hf_row *row;
    struct found_name *f = &map->found[index];
    int64_t layer = 0, count = 1;
    enum hd_status st = HD_OK;

    row = hd_hf_is_further(want->name)
              ? hd_hf_find_row(s->further_rows, s->further_count, s->job, want->name, &layer)
              : hd_hf_find_row(s->rows, s->row_count, s->job, want->name, &layer);
    if (!row)
        return hd_err(HD_UNSUPPORTED, "%s: family %s has no such tensor in transformers",
                      want->name, s->job->family);
    if (hd_hf_per_expert(row) && want->dim_count < 2)
        return hd_err(HD_INVALID, "%s: has no dimension of experts", want->name);
    if (row->stack && want->dim_count != 3)
        return hd_err(HD_INVALID, "%s: is no factor of experts", want->name);
    f->per_expert = hd_hf_per_expert(row);
    f->transposed = row->transposed;
    f->stack = row->stack;
    f->experts = want->shape[0];
    f->by_heads = row->by_heads ? s->job : NULL;
    f->place = row->place;
    f->step = row->alternate ? row->parts : 1;
    if (row->alternate)
        f->first = row->place;
    else if (row->columns)
        f->first_column = (2 * layer + row->place) * want->shape[1];
    else
        f->first = rows_before(s, row, row->place, want->shape[rows_at]);
    if (row->groups) {
        const int64_t groups = hd_hf_groups_of(s->job, row);

        f->first /= groups;
        f->part_rows = want->shape[rows_at] / groups;
        f->group_rows = rows_before(s, row, row->parts, want->shape[rows_at]) / groups;
    }
    if (f->per_expert)
        count = want->shape[0];
    f->weights = hd_arena_array(&map->arena, (size_t)count, sizeof *f->weights);
    f->quantized = hd_arena_array(&map->arena, (size_t)count, sizeof *f->quantized);
    if (!f->weights || !f->quantized)
        return hd_err(HD_NO_MEMORY, "no memory to find tensors");
    for (int64_t expert = 0; expert < count && !st; expert++)
        st = find_tensor(s, map, row, want, layer, expert, &f->weights[expert],
                         &f->quantized[expert]);
    return st;
}

bool hd_hf_may_be_absent(const char *name)
{
    bool constant = hd_hf_is_constant(name);
    const struct hd_hf_names *names;

    for (size_t i = 0; !constant && (names = hd_hf_names_at(i)) != NULL; i++)
        constant =
            hd_text_starts(name, names->prefix) && hd_hf_is_constant(name + strlen(names->prefix));
    return constant || hd_hf_is_any_head(name);
}

bool hd_hf_is_extra(const struct hd_weights *weights, const struct hd_job *job, const char *prefix,
                    const char *name)
{
    const size_t n = strlen(prefix);
    char sign[HD_WEIGHTS_NAME_MAX];
    int64_t layer;

    if (!hd_family_named(job->family)->extra_layers)
        return false;
    if (hd_text_starts(name, "mtp."))
        return true;
    if (!hd_text_starts(name, prefix))
        return false;
    if (hd_text_starts(name + n, "mtp_"))
        return true;
    if (!hd_text_starts(name + n, "layers."))
        return false;
    layer = strtoll(name + n + strlen("layers."), NULL, 10);
    (void)snprintf(sign, sizeof sign, "%slayers.%" PRId64 ".eh_proj.weight", prefix, layer);
    return layer >= job->layers && hd_weights_find(weights, sign);
}

static bool may_stay_unused(const struct search *s, const struct hd_weight *w)
{
    const char *name = w->name;

    if (s->adapter)
        return false;
    if (hd_hf_is_extra(s->weights, s->job, s->prefixes.base, name))
        return true;
    if (!w->size_bytes)
        return true; /* a parameter without elements needs no tensor */
    if (!hd_hf_is_of_text(&s->prefixes, name))
        return true; /* a vision tower or its projector */
    if (s->job->tie_embeddings && hd_hf_is_head(&s->prefixes, name))
        return true; /* the output head may be missing: config.json ties it to the embedding */
    if (hd_job_is_reward(s->job) && hd_hf_is_head(&s->prefixes, name))
        return true; /* a reward model may start from a language model */
    return hd_text_starts(name, s->prefixes.base) &&
           hd_hf_is_constant(name + strlen(s->prefixes.base));
}

bool hd_hf_has_further(const struct hd_weights *weights, const struct hd_job *job)
{
    const struct hd_family *family = hd_family_named(job->family);
    const struct hd_hf_row *rows, *own;
    const char *prefix;
    struct hd_hf_prefixes prefixes;
    size_t count, own_count;
    char name[HD_WEIGHTS_NAME_MAX];

    if (hd_hf_rows(job->family, &rows, &count, &prefix) || !hd_hf_further_max(family))
        return false;
    prefixes = hd_hf_find_prefixes(weights, prefix, rows[0].theirs);
    own = hd_hf_further_rows(family, &own_count);
    for (size_t i = 0; i < own_count; i++)
        if (strcmp(own[i].ours, "mtp.#.projection.weight") == 0)
            hd_hf_format_theirs(&own[i], job, &prefixes, job->layers, 0, name);
    return hd_weights_find(weights, name) != NULL;
}

bool hd_hf_has_score(const struct hd_weights *weights)
{
    return hd_weights_find(weights, HD_HF_SCORE_NAME) != NULL;
}

static enum hd_status judge(struct search *s, const struct hd_hf_map *map)
{
    if (!s->adapter && !hd_job_is_reward(s->job) && hd_hf_has_score(s->weights))
        return hd_err(HD_INVALID,
                      "it is a reward model (" HD_HF_SCORE_NAME
                      " in place of lm_head.weight), which has no "
                      "head for tokens; go on from it with train.objective: reward, or begin with "
                      "the model that it was trained from");
    for (size_t i = 0; i < hd_weights_count(s->weights); i++) {
        const struct hd_weight *w = hd_weights_at(s->weights, i);

        if (!map->used[i] && !may_stay_unused(s, w))
            list(&s->unexpected, &s->unexpected_count, w->name);
    }
    if (s->missing.failed || s->unexpected.failed)
        return hd_err(HD_NO_MEMORY, "no memory for names");
    if (s->missing_count)
        return hd_err(HD_INVALID, "%zu of the tensors that %s are missing: %s%s", s->missing_count,
                      s->adapter ? "an adapter of this model with these targets has"
                                 : "config.json requires",
                      s->missing.data, s->missing_count > LISTED_MAX ? " and others" : "");
    if (s->unexpected_count)
        return hd_err(HD_INVALID, "%zu tensors are not part of the model%s: %s%s",
                      s->unexpected_count, s->adapter ? "" : " of config.json", s->unexpected.data,
                      s->unexpected_count > LISTED_MAX ? " and others" : "");
    return HD_OK;
}

/* Selects the tables of names with stacked experts if the weights have their sign in some layer. */
static void choose_form(struct search *s)
{
    const struct hd_family *family = hd_family_named(s->job->family);
    const struct hd_hf_names *names = hd_hf_names_of(family);
    const struct hd_hf_row sign = {.theirs = names->stacked_sign};
    char name[HD_WEIGHTS_NAME_MAX];

    s->further_rows = s->rows;
    s->further_count = s->row_count;
    for (int64_t layer = 0; names->stacked && layer <= s->job->layers; layer++) {
        const bool further = layer == s->job->layers;

        hd_hf_format_theirs(&sign, s->job, &s->prefixes, layer, 0, name);
        if (!hd_weights_find(s->weights, name))
            continue;
        *(further ? &s->further_rows : &s->rows) = names->stacked;
        *(further ? &s->further_count : &s->row_count) = names->stacked_count;
        layer = s->job->layers - 1 + further; /* the sign of one layer will do */
    }
}

/* Returns whether PEFT has wrapped a module of experts twice (adapter_stacks.c). */
static bool is_nested(const struct hd_weights *weights)
{
    for (size_t i = 0; i < hd_weights_count(weights); i++)
        if (strstr(hd_weights_at(weights, i)->name, "experts.base_layer."))
            return true;
    return false;
}

/* Chooses the table of names and the beginnings of names. */
static enum hd_status choose_names(struct search *s, struct hd_hf_map *map,
                                   struct hd_hf_row prefix_rows[2])
{
    const char *prefix = "";
    enum hd_status st;

    if (s->adapter && s->job->adapter == HD_JOB_ADAPTER_PREFIX) {
        hd_hf_prefix_rows(s->job, prefix_rows);
        s->rows = prefix_rows;
        s->row_count = 2;
        s->prefixes = (struct hd_hf_prefixes){"", "", false};
        return HD_OK;
    }
    st = s->adapter ? hd_hf_adapter_rows(s->job->family, is_nested(s->weights), &map->arena,
                                         &s->rows, &s->row_count, &prefix)
                    : hd_hf_rows(s->job->family, &s->rows, &s->row_count, &prefix);
    if (st)
        return st;
    if (!s->adapter) {
        s->prefixes = hd_hf_find_prefixes(s->weights, prefix, s->rows[0].theirs);
        choose_form(s);
        return HD_OK;
    }
    s->prefixes = (struct hd_hf_prefixes){
        hd_hf_find_adapter_prefix(s->weights, prefix, &map->arena), "", false};
    return hd_arena_failed(&map->arena) ? hd_err(HD_NO_MEMORY, "no memory to find tensors") : HD_OK;
}

static enum hd_status search_names(struct search *s, struct hd_hf_map *map)
{
    struct hd_hf_row prefix_rows[2];
    enum hd_status st = choose_names(s, map, prefix_rows);

    for (size_t i = 0; !st && i < map->count; i++)
        st = find_one(s, map, i);
    return st ? st : judge(s, map);
}

static enum hd_status open_map(const struct hd_weights *weights, const struct hd_job *job,
                               const struct hd_ckpt_entry *wanted, size_t count, bool adapter,
                               struct hd_hf_map **ret_map)
{
    struct search s = {.weights = weights, .job = job, .adapter = adapter};
    struct hd_hf_map *map = calloc(1, sizeof *map);
    enum hd_status st;

    if (!map)
        return hd_err(HD_NO_MEMORY, "no memory to find tensors");
    hd_arena_init(&map->arena, 0);
    map->wanted = wanted;
    map->count = count;
    map->found = hd_arena_array(&map->arena, count + 1, sizeof *map->found);
    map->used = hd_arena_array(&map->arena, hd_weights_count(weights) + 1, sizeof *map->used);
    st = hd_arena_failed(&map->arena) ? hd_err(HD_NO_MEMORY, "no memory to find tensors")
                                      : search_names(&s, map);
    hd_text_free(&s.missing);
    hd_text_free(&s.unexpected);
    if (st)
        hd_hf_map_close(map);
    else
        *ret_map = map;
    return st;
}

enum hd_status hd_hf_map_open(const struct hd_weights *weights, const struct hd_job *job,
                              const struct hd_ckpt_entry *wanted, size_t count,
                              struct hd_hf_map **ret_map)
{
    return open_map(weights, job, wanted, count, false, ret_map);
}

enum hd_status hd_hf_map_open_adapter(const struct hd_weights *weights, const struct hd_job *job,
                                      const struct hd_ckpt_entry *wanted, size_t count,
                                      struct hd_hf_map **ret_map)
{
    return open_map(weights, job, wanted, count, true, ret_map);
}

void hd_hf_map_close(struct hd_hf_map *map)
{
    if (!map)
        return;
    hd_arena_done(&map->arena);
    free(map);
}

/* ---- reading ---- */

/* Converts elements of a tensor, which may be unaligned, to fp32. */
void hd_hf_convert(const struct hd_weight *w, int64_t at, int64_t stride, int64_t count,
                   float *ret_values)
{
    const int64_t size = (int64_t)hd_dtype_size(w->dtype);
    const char *p = (const char *)w->data + at * size;

    if (w->dtype == HD_F32 && stride == 1) {
        memcpy(ret_values, p, (size_t)count * sizeof *ret_values);
        return;
    }
    for (int64_t i = 0; i < count; i++, p += stride * size) {
        uint16_t half;
        double keep_fp32;

        switch (w->dtype) {
        case HD_F32:
            memcpy(&ret_values[i], p, sizeof(float));
            break;
        case HD_F64:
            memcpy(&keep_fp32, p, sizeof keep_fp32);
            ret_values[i] = (float)keep_fp32;
            break;
        case HD_BF16:
            memcpy(&half, p, sizeof half);
            ret_values[i] = hd_bf16_to_f32(half);
            break;
        default: /* check_tensor_shape refuses other dtypes */
            memcpy(&half, p, sizeof half);
            ret_values[i] = hd_f16_to_f32(half);
            break;
        }
    }
}

/* A part of a parameter of up to three dimensions: [experts] [rows] [columns]. */
struct name_piece {
    int64_t expert0, row0, column0; /* indexes of its first element in the whole parameter */
    int64_t rows, columns;          /* rows and columns of the part, per expert */
};

static struct name_piece piece_of(const struct hd_ckpt_entry *want)
{
    const int n = want->dim_count;
    struct name_piece p = {.rows = 1, .columns = 1};

    if (n > 0) {
        p.column0 = want->start[n - 1];
        p.columns = want->extent[n - 1];
    }
    if (n > 1) {
        p.row0 = want->start[n - 2];
        p.rows = want->extent[n - 2];
    }
    if (n > 2)
        p.expert0 = want->start[0];
    return p;
}

/* Returns the row of the joined tensor that has row `row` of our part. */
static int64_t row_of(const struct found_name *f, int64_t row)
{
    if (f->part_rows)
        return row / f->part_rows * f->group_rows + f->first + row % f->part_rows;
    return f->by_heads ? hd_hf_row_by_heads(f->by_heads, f->place, row) : f->first + row * f->step;
}

/* Reads `count` values of a vector from `at` on; the parts of a joined one are concatenated, or
 * alternate by heads. */
static void read_vector(const struct found_name *f, const struct hd_weight *w, int64_t at,
                        int64_t count, float *ret_values)
{
    for (int64_t done = 0, n; done < count; done += n) {
        const int64_t D = f->by_heads ? f->by_heads->head_width : count;
        const int64_t left = f->by_heads ? D - (at + done) % D : count;

        n = left < count - done ? left : count - done;
        hd_hf_convert(w, row_of(f, at + done), 1, n, ret_values + done);
    }
}

/* Reads `count` values of a row of one expert's factor, `row` in the tensor of its parts. */
static void read_of_stack(const struct found_name *f, const struct hd_weight *w, int64_t expert,
                          int64_t row, int64_t column, int64_t count, float *ret_values)
{
    const struct hd_hf_stack_place at =
        hd_hf_find_in_stack(f->stack, f->transposed, f->experts, w->shape, expert, row, column);

    hd_hf_convert(w, at.first, at.step, count, ret_values);
}

/* Reads `count` values of one row of one expert. */
static void read_run(const struct found_name *f, int dim_count, int64_t expert, int64_t row,
                     int64_t column, int64_t count, float *ret_values)
{
    const struct hd_weight *w = f->weights[f->per_expert ? expert : 0];
    const struct hd_hf_quantized *quantized = &f->quantized[f->per_expert ? expert : 0];
    const int64_t width = w->dim_count ? w->shape[w->dim_count - 1] : 1;
    const int64_t theirs = row_of(f, row);
    const int64_t stacked =
        w->dim_count > 2 ? expert * w->shape[1] : 0; /* rows before the expert's */

    if (f->stack)
        read_of_stack(f, w, expert, theirs, column, count, ret_values);
    else if (quantized->fp8_blocks)
        hd_hf_decode_fp8(quantized, theirs, column, count, ret_values);
    else if (quantized->quant || quantized->mxfp4)
        hd_hf_decode(quantized, stacked + theirs, column, count, ret_values);
    else if (dim_count < 2)
        read_vector(f, w, column, count, ret_values);
    else if (f->step > 1 && dim_count == 2) /* biases, whose columns alternate */
        hd_hf_convert(w, row * width + f->first + column * f->step, f->step, count, ret_values);
    else if (f->transposed)
        hd_hf_convert(w, (stacked + column) * width + theirs, width, count, ret_values);
    else
        hd_hf_convert(w, (stacked + theirs) * width + f->first_column + column, 1, count,
                      ret_values);
}

static enum hd_status not_finite(const struct found_name *f, int64_t expert)
{
    const struct hd_weight *w = f->weights[f->per_expert ? expert : 0];

    return hd_err(
        HD_INVALID,
        "%s: tensor %s holds values that are not finite (nan or inf): the file is damaged, "
        "or the model had diverged when it was written",
        w->file, w->name);
}

enum hd_status hd_hf_read(const struct hd_hf_map *map, size_t index,
                          const struct hd_ckpt_entry *want, float *ret_values)
{
    const struct found_name *f = &map->found[index];
    const struct name_piece p = piece_of(want);
    enum hd_status st = hd_ckpt_check_entry(want);

    if (!st && (want->dim_count > 3 || want->dim_count != map->wanted[index].dim_count))
        st = hd_err(HD_INVALID, "%s: does not have %d dimensions", want->name, want->dim_count);
    if (st)
        return st;
    for (int64_t done = 0; done < want->flat_count;) {
        const int64_t element = want->flat_first + done, r = element / p.columns;
        const int64_t c = element % p.columns, left = want->flat_count - done;
        const int64_t run = p.columns - c < left ? p.columns - c : left;
        const int64_t row = p.row0 + r % p.rows;
        /* the rows of a matrix may be tensors of their own: those of heads */
        const bool rows_apart = f->per_expert && want->dim_count == 2;
        const int64_t expert = rows_apart ? row : p.expert0 + r / p.rows;

        read_run(f, want->dim_count, expert, rows_apart ? 0 : row, p.column0 + c, run,
                 ret_values + done);
        if (hd_f32_find_nonfinite(ret_values + done, run) >= 0)
            return not_finite(f, expert);
        done += run;
    }
    return HD_OK;
}

bool hd_hf_get_quantized(const struct hd_hf_map *map, size_t index, int64_t expert,
                         enum hd_quant quant, struct hd_quant_whole *ret_whole)
{
    const struct found_name *f = &map->found[index];
    const struct hd_hf_quantized *quantized = &f->quantized[f->per_expert ? expert : 0];

    return quantized->quant == quant && !f->part_rows && !f->by_heads &&
           hd_hf_slice_quantized(quantized, f->first, ret_whole);
}
