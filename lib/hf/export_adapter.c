/* export_adapter: exports the factors of an adapter, added to the weights of a model folder, or
 * alone in PEFT's form:
 *
 *     adapter_config.json          rank, alpha, targets; or the length and heads of a prefix
 *     adapter_model.safetensors    base_model.model.MODULE.lora_A.weight [r, in], lora_B.weight
 *                                  [out, r]; with DoRA lora_magnitude_vector [out]; or
 *                                  prompt_embeddings [tokens, L, 2, G * D], as two dimensions
 *
 * A and B have the same order in both forms, also for gpt2, whose weights are transposed; the B of
 * c_attn has the rows of q, k and v.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/words.h"
#include "hf/config_internal.h"
#include "hf/export_internal.h"

bool hd_export_is_factor(const char *name)
{
    const char *last = strrchr(name, '.');

    return last && (strcmp(last, ".lora_a") == 0 || strcmp(last, ".lora_b") == 0 ||
                    strcmp(last, ".lora_m") == 0);
}

/* Returns the entry of a factor (A or B) of a weight's adapter; the parts of a matrix that is one
 * module share one A. NULL: none. */
static const struct hd_ckpt_entry *find_factor(const struct hd_exporter *x, const char *weight,
                                               const char *factor)
{
    static const char *const shared[] = {"qkv", "gate_up"};
    const size_t stem = strlen(weight) - strlen(".weight");
    const struct hd_ckpt_entry *found;
    char name[HD_CKPT_NAME_MAX], *end;

    (void)snprintf(name, sizeof name, "%.*s.%s", (int)stem, weight, factor);
    found = hd_ckpt_find_tensor(x->ckpt, name);
    for (size_t i = 0; !found && strcmp(factor, "lora_a") == 0 && i < 2; i++) {
        (void)snprintf(name, sizeof name, "%.*s", (int)stem, weight);
        end = strrchr(name, '.');
        if (!end)
            return NULL;
        (void)snprintf(end, sizeof name - (size_t)(end - name), ".%s.lora_a", shared[i]);
        found = hd_ckpt_find_tensor(x->ckpt, name);
    }
    return found;
}

/* Computes w [N, K] += s B [N, r] A [r, K] in fp32, for a matrix or one expert's matrix. */
static enum hd_status add_product(struct hd_exporter *x, const struct hd_ckpt_entry *a,
                                  const struct hd_ckpt_entry *b, float *w)
{
    const int d = b->dim_count - 2;
    const int64_t N = b->shape[d], r = b->shape[d + 1], K = a->shape[d + 1];
    const float s = (float)hd_job_adapter_scale(&x->job);
    float *factors = calloc((size_t)((N + K) * r), sizeof *factors), *up = factors + r * K;
    enum hd_status st = factors ? hd_export_read(x, a, factors) : hd_export_no_memory();

    if (!st)
        st = hd_export_read(x, b, up);
    for (int64_t n = 0; !st && n < N; n++)
        for (int64_t i = 0; i < r; i++)
            for (int64_t k = 0; k < K; k++)
                w[n * K + k] += s * up[n * r + i] * factors[i * K + k];
    free(factors);
    return st;
}

/* Scales each row of w [N, K] to the norm m [N], its magnitude. A row of zeros stays zero. */
static enum hd_status set_norms(struct hd_exporter *x, const struct hd_ckpt_entry *m, int64_t K,
                                float *w)
{
    const int64_t N = m->shape[0];
    float *magnitudes = calloc((size_t)N, sizeof *magnitudes);
    enum hd_status st = magnitudes ? hd_export_read(x, m, magnitudes) : hd_export_no_memory();

    for (int64_t n = 0; !st && n < N; n++) {
        float *row = w + n * K;
        double squares = 0, factor;

        for (int64_t k = 0; k < K; k++)
            squares += (double)row[k] * (double)row[k];
        factor = squares > 0 ? (double)magnitudes[n] / sqrt(squares) : 0;
        for (int64_t k = 0; k < K; k++)
            row[k] = (float)((double)row[k] * factor);
    }
    free(magnitudes);
    return st;
}

static bool fits(const struct hd_ckpt_entry *a, const struct hd_ckpt_entry *b,
                 const struct hd_ckpt_entry *weight)
{
    const int dims = weight->dim_count, d = dims - 2;

    return d >= 0 && a->dim_count == dims && b->dim_count == dims && a->dtype == HD_F32 &&
           b->dtype == HD_F32 && a->shape[d] == b->shape[d + 1] &&
           a->shape[d + 1] == weight->shape[d + 1] && b->shape[d] == weight->shape[d] &&
           (!d || (a->shape[0] == weight->shape[0] && b->shape[0] == weight->shape[0]));
}

/* Sets *ret_m to the entry of a weight's DoRA magnitudes; NULL without DoRA. HD_CORRUPT: they do
 * not fit the weight. */
static enum hd_status find_magnitudes(const struct hd_exporter *x,
                                      const struct hd_ckpt_entry *weight,
                                      const struct hd_ckpt_entry **ret_m)
{
    const struct hd_ckpt_entry *m =
        x->job.adapter_dora ? find_factor(x, weight->name, "lora_m") : NULL;

    *ret_m = m;
    if (!x->job.adapter_dora ||
        (m && m->dim_count == 1 && m->dtype == HD_F32 && m->shape[0] == weight->shape[0]))
        return HD_OK;
    return hd_err(HD_CORRUPT, "%s: the adapter of %s has not a magnitude for each row",
                  x->options->checkpoint_dir, weight->name);
}

enum hd_status hd_export_merge(struct hd_exporter *x, const struct hd_ckpt_entry *weight, float *w)
{
    const size_t length = strlen(weight->name);
    const struct hd_ckpt_entry *a, *b, *m = NULL;
    struct hd_ckpt_entry of_a, of_b; /* factors of one expert */
    enum hd_status st;

    if (length < 7 || strcmp(weight->name + length - 7, ".weight") != 0)
        return HD_OK;
    b = find_factor(x, weight->name, "lora_b");
    if (!b)
        return HD_OK;
    a = find_factor(x, weight->name, "lora_a");
    if (!a || !fits(a, b, weight))
        return hd_err(HD_CORRUPT, "%s: the adapter of %s has not the shape of the weight",
                      x->options->checkpoint_dir, weight->name);
    if (weight->dim_count == 2) {
        st = find_magnitudes(x, weight, &m);
        if (!st)
            st = add_product(x, a, b, w);
        return st || !m ? st : set_norms(x, m, weight->shape[1], w);
    }
    of_a = *a;
    of_b = *b;
    hd_ckpt_entry_cut(&of_a, 0, weight->start[0], 1);
    hd_ckpt_entry_cut(&of_b, 0, weight->start[0], 1);
    return add_product(x, &of_a, &of_b, w);
}

/* ---- PEFT's folder ---- */

/* Begins the tensor of one factor, under PEFT's name: that of the row's module and the factor, such
 * as "model.layers.3.self_attn.q_proj" and "lora_A.weight". */
static void begin_factor(struct hd_exporter *x, const struct hd_hf_row *row, int64_t layer,
                         int64_t expert, const char *factor)
{
    struct hd_export_tensor *t = &x->tensors[x->count++];
    char module[HD_CKPT_NAME_MAX];

    hd_hf_format_name(row->theirs, layer, expert, module);
    (void)snprintf(t->name, sizeof t->name, HD_HF_PEFT_PREFIX "%s%.*s.%s",
                   row->top ? x->prefixes.top : x->prefixes.base,
                   (int)(strlen(module) - strlen(".weight")), module, factor);
    t->expert = hd_hf_per_expert(row) ? expert : -1;
    t->by_heads = row->by_heads && strcmp(factor, "lora_A.weight") != 0;
}

/* ---- factors of experts that are one parameter (adapter_stacks.c) ---- */

/* Adds one factor of a block's experts to the export: as a tensor, or as a further part of the last
 * one. */
static enum hd_status add_stacked(struct hd_exporter *x, const struct hd_hf_row *row,
                                  const char *ours, const struct hd_ckpt_entry *entry,
                                  int64_t layer)
{
    struct hd_export_tensor *t = &x->tensors[x->count - (row->place > 0)];
    char theirs[HD_CKPT_NAME_MAX];
    int64_t sizes[3];

    if (!entry || entry->dim_count != 3 || entry->shape[0] != x->job.experts ||
        entry->dtype != HD_F32)
        return hd_err(HD_CORRUPT, "%s: the adapter of the experts has no %s of their number",
                      x->options->checkpoint_dir, ours);
    if (row->place == 0) {
        x->count++;
        hd_hf_format_name(row->theirs, layer, 0, theirs);
        (void)snprintf(t->name, sizeof t->name, HD_HF_PEFT_PREFIX "%s%s", x->prefixes.base, theirs);
        t->stack = row->stack;
        t->turned = row->transposed;
        t->alternate = row->alternate;
        t->expert = -1;
        t->dim_count = 2;
    }
    memcpy(sizes, entry->shape, sizeof sizes);
    sizes[1] *= row->parts;
    t->parts[t->part_count++] = entry;
    hd_hf_stack_shape(t->stack, t->turned, sizes, t->shape);
    t->elements = t->shape[0] * t->shape[1];
    return HD_OK;
}

/* Adds the factors of the experts of a block, those of gate_up_proj and those of down_proj. */
static enum hd_status add_stacks(struct hd_exporter *x, const struct hd_hf_stacks *stacks,
                                 int64_t layer)
{
    const struct hd_ckpt_entry *found[HD_HF_STACK_FACTORS];
    char ours[HD_HF_STACK_FACTORS][HD_CKPT_NAME_MAX];
    struct hd_hf_row rows[HD_HF_STACK_FACTORS];
    enum hd_status st = HD_OK;

    hd_hf_stack_rows(stacks, false, &x->arena, rows);
    for (int i = 0; i < HD_HF_STACK_FACTORS; i++) {
        hd_hf_format_name(rows[i].ours, layer, 0, ours[i]);
        found[i] = hd_ckpt_find_tensor(x->ckpt, ours[i]);
    }
    if (found[0] && found[3])
        hd_hf_stack_rows(stacks, true, &x->arena, rows);
    if (hd_arena_failed(&x->arena))
        return hd_export_no_memory();
    for (int i = 0; !st && i < HD_HF_STACK_FACTORS; i++)
        if (found[i < 3 ? 0 : 3])
            st = add_stacked(x, &rows[i], ours[i], found[i], layer);
    return st;
}

enum hd_status hd_export_assemble_factors(struct hd_exporter *x, const struct hd_export_tensor *t)
{
    const int64_t E = x->job.experts;
    enum hd_status st = HD_OK;
    int64_t before = 0;

    for (int p = 0; !st && p < t->part_count; p++) {
        const int64_t n = t->parts[p]->shape[1], m = t->parts[p]->shape[2];

        st = hd_export_read(x, t->parts[p], x->part);
        for (int64_t r = 0; !st && r < E * n; r++) {
            const int64_t row = t->alternate ? r % n * t->part_count + p : before + r % n;
            const struct hd_hf_stack_place at =
                hd_hf_find_in_stack(t->stack, t->turned, E, t->shape, r / n, row, 0);

            for (int64_t c = 0; c < m; c++)
                x->whole[at.first + c * at.step] = x->part[r * m + c];
        }
        before += n;
    }
    return st;
}

static bool is_weight(const char *name)
{
    const size_t length = strlen(name);

    return length > 7 && strcmp(name + length - 7, ".weight") == 0;
}

static enum hd_status add_factors(struct hd_exporter *x, const struct hd_hf_row *row, int64_t layer)
{
    const int experts = hd_hf_per_expert(row);
    char ours[HD_CKPT_NAME_MAX];
    const struct hd_ckpt_entry *a, *b, *m = NULL;

    hd_hf_format_name(row->ours, layer, 0, ours);
    if (!is_weight(ours) || !strchr(row->ours, '#') ||
        (strstr(ours, ".moe.") && hd_hf_stacks_of(x->job.family)))
        return HD_OK;
    b = find_factor(x, ours, "lora_b");
    if (!b)
        return HD_OK;
    a = find_factor(x, ours, "lora_a");
    if (!a || a->dim_count != 2 + experts || b->dim_count != 2 + experts ||
        (experts && (a->shape[0] != x->job.experts || b->shape[0] != x->job.experts)))
        return hd_err(HD_CORRUPT, "%s: the adapter of %s is not whole", x->options->checkpoint_dir,
                      ours);
    m = x->job.adapter_dora ? find_factor(x, ours, "lora_m") : NULL;
    if (x->job.adapter_dora && (!m || m->dim_count != 1 || experts))
        return hd_err(HD_CORRUPT, "%s: the adapter of %s has no magnitudes",
                      x->options->checkpoint_dir, ours);
    for (int64_t e = 0; e < (experts ? x->job.experts : 1); e++) {
        if (row->place == 0) {
            begin_factor(x, row, layer, e, "lora_A.weight");
            hd_export_add_part(&x->tensors[x->count - 1], a);
            begin_factor(x, row, layer, e, "lora_B.weight");
            if (m)
                begin_factor(x, row, layer, e, "lora_magnitude_vector");
        }
        if (m)
            hd_export_add_part(&x->tensors[x->count - 1], m);
        hd_export_add_part(&x->tensors[x->count - (m ? 2 : 1)], b);
    }
    return HD_OK;
}

/* Returns whether a factor of the run's adapter is exported beside the one that it began with. */
static bool is_doubled(const struct hd_exporter *x)
{
    return x->job.adapter == HD_JOB_ADAPTER_LORA &&
           x->job.adapter_init == HD_JOB_ADAPTER_INIT_PISSA;
}

/* Doubles the rank of the tensors of factors. */
static void double_ranks(struct hd_exporter *x)
{
    for (size_t i = 0; i < x->count; i++) {
        struct hd_export_tensor *t = &x->tensors[i];
        const bool is_a = hd_text_ends(t->name, "lora_A.weight");

        if (!is_a && !hd_text_ends(t->name, "lora_B.weight"))
            continue;
        t->doubled = true;
        t->shape[is_a ? 0 : 1] *= 2;
        t->elements *= 2;
    }
}

enum hd_status hd_export_read_doubled(struct hd_exporter *x, const struct hd_ckpt_entry *entry,
                                      float *ret_values)
{
    const struct hd_hf_base *base = x->options->base;
    const struct hd_ckpt_entry *first = hd_export_find_in_base(x, entry->name);
    const bool is_a = hd_text_ends(entry->name, "lora_a");
    const int64_t rows = entry->shape[0], columns = entry->shape[1], count = rows * columns;
    float *values = calloc((size_t)count, 2 * sizeof *values);
    enum hd_status st = values ? HD_OK : hd_export_no_memory();

    if (!st && (!first || !base->read_first))
        st =
            hd_err(HD_INVALID, "%s: the adapter began with directions of its base, which is needed",
                   x->options->checkpoint_dir);
    if (!st)
        st = hd_export_read(x, entry, values);
    if (!st)
        st =
            base->read_first(base->context, (size_t)(first - base->entries), first, values + count);
    for (int64_t r = 0; !st && r < rows; r++) {
        float *to = ret_values + r * columns * (is_a ? 1 : 2);

        memcpy(to, values + r * columns, (size_t)columns * sizeof *to);
        if (is_a)
            memcpy(to + count, values + count + r * columns, (size_t)columns * sizeof *to);
        for (int64_t c = 0; !is_a && c < columns; c++)
            to[columns + c] = -values[count + r * columns + c];
    }
    free(values);
    return st;
}

enum hd_status hd_export_check_adapter(const struct hd_exporter *x)
{
    static const char *const remedy =
        "give the checkpoint itself to --adapter of heddle generate, eval or serve, beside the "
        "model folder, or to train.adapter.from";

    if (x->options->adapter && hd_job_is_reward(&x->job) && x->job.adapter == HD_JOB_ADAPTER_PREFIX)
        return hd_err(
            HD_UNSUPPORTED,
            "%s: PEFT's folder of a prefix has no place for the vector of a reward model; "
            "%s",
            x->options->checkpoint_dir, remedy);
    if (x->job.adapter == HD_JOB_ADAPTER_PREFIX)
        return x->options->adapter
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED,
                            "%s: a prefix cannot be added to the weights of its base; export it "
                            "alone, with --adapter, or %s",
                            x->options->checkpoint_dir, remedy);
    if (x->job.adapter != HD_JOB_ADAPTER_BOTTLENECK)
        return HD_OK;
    return x->options->adapter
               ? hd_err(HD_UNSUPPORTED, "%s: PEFT has no bottleneck adapters; %s",
                        x->options->checkpoint_dir, remedy)
               : hd_err(HD_UNSUPPORTED,
                        "%s: a bottleneck adapter cannot be added to the weights of its base; %s",
                        x->options->checkpoint_dir, remedy);
}

/* Sets *ret_entry to the checkpoint's entry of a block's prefix keys (which = 0) or values (which =
 * 1). */
static enum hd_status find_prefix(const struct hd_exporter *x, int64_t layer, int which,
                                  const struct hd_ckpt_entry **ret_entry)
{
    const struct hd_job *job = &x->job;
    struct hd_hf_row rows[2];
    char name[HD_CKPT_NAME_MAX];

    hd_hf_prefix_rows(job, rows);
    hd_hf_format_name(rows[which].ours, layer, 0, name);
    *ret_entry = hd_ckpt_find_tensor(x->ckpt, name);
    if (!*ret_entry || (*ret_entry)->dim_count != 2 || (*ret_entry)->dtype != HD_F32 ||
        (*ret_entry)->shape[0] != job->adapter_tokens ||
        (*ret_entry)->shape[1] != job->kv_heads * job->head_width)
        return hd_err(HD_CORRUPT, "%s: has no %s of the shape of its job",
                      x->options->checkpoint_dir, name);
    return HD_OK;
}

static enum hd_status list_prefix(struct hd_exporter *x)
{
    struct hd_export_tensor *t = &x->tensors[x->count++];
    const struct hd_ckpt_entry *entry;
    enum hd_status st = HD_OK;

    *t = (struct hd_export_tensor){.dim_count = 2, .expert = -1, .prefix = true};
    (void)snprintf(t->name, sizeof t->name, HD_HF_PREFIX_NAME);
    for (int64_t i = 0; !st && i < 2 * x->job.layers; i++)
        st = find_prefix(x, i / 2, (int)(i % 2), &entry);
    t->shape[0] = x->job.adapter_tokens;
    t->shape[1] = 2 * x->job.layers * x->job.kv_heads * x->job.head_width;
    t->elements = t->shape[0] * t->shape[1];
    return st;
}

enum hd_status hd_export_assemble_prefix(struct hd_exporter *x, const struct hd_export_tensor *t)
{
    const int64_t width = t->shape[1] / (2 * x->job.layers);
    const struct hd_ckpt_entry *entry = NULL;
    enum hd_status st = HD_OK;

    for (int64_t i = 0; !st && i < 2 * x->job.layers; i++) {
        st = find_prefix(x, i / 2, (int)(i % 2), &entry);
        if (!st)
            st = hd_export_read(x, entry, x->part);
        for (int64_t r = 0; !st && r < t->shape[0]; r++)
            memcpy(x->whole + r * t->shape[1] + i * width, x->part + r * width,
                   (size_t)width * sizeof *x->part);
    }
    return st;
}

/* Adds to the export the head of a reward model, one vector. It trains beside every adapter, and
 * PEFT stores it in the adapter's folder as a module of its own. */
static enum hd_status add_score(struct hd_exporter *x)
{
    const struct hd_ckpt_entry *score = hd_ckpt_find_tensor(x->ckpt, "head.score.weight");
    struct hd_export_tensor *t = &x->tensors[x->count];

    if (!score)
        return hd_err(HD_CORRUPT, "%s: a reward model without head.score.weight",
                      x->options->checkpoint_dir);
    x->count++;
    (void)snprintf(t->name, sizeof t->name, "base_model.model.score.weight");
    t->expert = -1;
    hd_export_add_part(t, score);
    return HD_OK;
}

/* Returns whether train.adapter.trainable names only what a reward model trains anyway. */
static bool also_is_score(const struct hd_job *job)
{
    return hd_job_is_reward(job) &&
           (strcmp(job->adapter_also, "score") == 0 || strcmp(job->adapter_also, "head") == 0);
}

/* Returns whether PEFT (0.21, with transformers 5) drops the factors of this tensor, with a general
 * warning alone: of a feed-forward layer in a model with experts that is none of them, if it renames
 * the modules of experts. (Shared experts have no factors.) */
static bool peft_drops(const struct hd_exporter *x, const struct hd_hf_row *row)
{
    return x->job.experts && strstr(row->ours, ".mlp.") && !hd_hf_stacks_of(x->job.family);
}

static void note_dropped(struct hd_exporter *x)
{
    if (x->options->notes)
        hd_text_add(x->options->notes,
                    "PEFT leaves out factors of this adapter, those of feed-forward layers that "
                    "are no experts, and so computes another model; for PEFT export the whole "
                    "model, without --adapter. train.adapter.from reads all factors");
}

/* Returns whether the export has factors of experts that are one parameter. */
static bool has_stacks(const struct hd_exporter *x)
{
    for (size_t i = 0; i < x->count; i++)
        if (x->tensors[i].stack)
            return true;
    return false;
}

enum hd_status hd_export_list_adapter(struct hd_exporter *x, const struct hd_hf_row *rows,
                                      size_t row_count)
{
    const bool is_prefix = x->job.adapter == HD_JOB_ADAPTER_PREFIX;
    const struct hd_hf_stacks *stacks = hd_hf_stacks_of(x->job.family);
    enum hd_status st = HD_OK;
    bool dropped = false;

    if (!is_prefix && x->job.adapter != HD_JOB_ADAPTER_LORA)
        return hd_err(HD_INVALID, "%s has no adapter; export the model, without --adapter",
                      x->options->checkpoint_dir);
    if (*x->job.adapter_also && !also_is_score(&x->job))
        return hd_err(
            HD_UNSUPPORTED,
            "%s: train.adapter.trainable: %s trained beside the adapter, and an adapter's folder "
            "would not have it; %s",
            x->options->checkpoint_dir, x->job.adapter_also,
            is_prefix ? "give the checkpoint itself to heddle generate, eval or serve"
                      : "export the model, without --adapter");
    if (is_prefix)
        return list_prefix(x);
    for (int64_t layer = 0; !st && layer < x->job.layers; layer++)
        for (size_t i = 0; !st && i < row_count; i++) {
            const size_t before = x->count;

            st = add_factors(x, &rows[i], layer);
            dropped |= x->count > before && peft_drops(x, &rows[i]);
        }
    for (int64_t layer = 0; !st && stacks && layer < x->job.layers; layer++)
        st = add_stacks(x, stacks, layer);
    if (!st && has_stacks(x) && x->job.adapter_dropout > 0 && x->options->notes)
        hd_text_add(x->options->notes,
                    "PEFT has no dropout for factors of experts that are one parameter, so "
                    "adapter_config.json has lora_dropout: 0");
    if (!st && dropped)
        note_dropped(x);
    if (!st && is_doubled(x))
        double_ranks(x);
    return st || !hd_job_is_reward(&x->job) ? st : add_score(x);
}

/* Returns whether a module has a factor A. */
static bool has_modules(const struct hd_exporter *x)
{
    const char *module;
    size_t length;

    for (size_t i = 0; i < x->count; i++)
        if (!x->tensors[i].stack && hd_hf_find_module(x->tensors[i].name, &module, &length))
            return true;
    return false;
}

static void add_escaped(struct hd_text *expression, const char *name)
{
    for (const char *p = name; *p; p++)
        hd_text_add(expression, "%s%c", *p == '.' ? "\\" : "", *p);
}

/* Adds a module to the text of an expression, in which its points are escaped. */
static void add_alternative(struct hd_text *expression, const char *module)
{
    hd_text_add(expression, "%s", expression->len_bytes ? "|" : "");
    add_escaped(expression, module);
}

/* Adds target_modules: each module that has a factor A, once, by its name within a block. Blocks of
 * several kinds have different modules. For a wrapped base they are an expression, because names
 * within a block also match those of its vision tower. */
static void add_modules(const struct hd_exporter *x, struct hd_json_writer *w)
{
    char(*modules)[HD_WEIGHTS_NAME_MAX] = calloc(x->count + 1, sizeof *modules);
    struct hd_text expression = {0}, all = {0};
    size_t count = 0, length;
    const bool expression_of_them = x->prefixes.wrapped && has_modules(x);
    const char *module;

    if (!expression_of_them) /* PEFT takes modules of its own choice if there is no list at all */
        hd_json_begin(w, "target_modules", '[');
    for (size_t i = 0; modules && i < x->count; i++) {
        size_t k = 0;

        if (x->tensors[i].stack || !hd_hf_find_module(x->tensors[i].name, &module, &length))
            continue;
        (void)snprintf(modules[count], sizeof modules[count], "%.*s", (int)length, module);
        while (strcmp(modules[k], modules[count]) != 0)
            k++;
        if (k < count)
            continue;
        if (expression_of_them)
            add_alternative(&expression, modules[count]);
        else
            hd_json_add_string(w, NULL, modules[count]);
        count++;
    }
    if (!expression_of_them) {
        hd_json_end(w, ']');
    } else {
        add_escaped(&all, x->prefixes.base);
        hd_text_add(&all, "layers\\.\\d+\\.(%s)", expression.data ? expression.data : "");
    }
    if (all.data)
        hd_json_add_string(w, "target_modules", all.data);
    w->out->failed |= !modules || all.failed || expression.failed;
    hd_text_free(&expression);
    hd_text_free(&all);
    free(modules);
}

/* Adds target_parameters: the parameters that have factors, by their names within a block. */
static void add_parameters(const struct hd_exporter *x, struct hd_json_writer *w)
{
    static const char *const signs[2] = {"moe.gate_up.lora_a", "moe.down.lora_a"};
    static const char *const parameters[2] = {"gate_up_proj", "down_proj"};
    const struct hd_hf_stacks *stacks = hd_hf_stacks_of(x->job.family);
    char name[HD_CKPT_NAME_MAX];

    if (!has_stacks(x))
        return;
    hd_json_begin(w, "target_parameters", '[');
    for (int p = 0; p < 2; p++) {
        bool found = false;

        for (int64_t layer = 0; !found && layer < x->job.layers; layer++) {
            (void)snprintf(name, sizeof name, "blocks.%lld.%s", (long long)layer, signs[p]);
            found = hd_ckpt_find_tensor(x->ckpt, name) != NULL;
        }
        (void)snprintf(name, sizeof name, "%s.%s", stacks->experts, parameters[p]);
        if (found)
            hd_json_add_string(w, NULL, name);
    }
    hd_json_end(w, ']');
}

/* Returns whether the family's linears are transformers' Conv1D, whose weights are [in, out]. */
static bool is_conv1d(const struct hd_job *job)
{
    const struct hd_family *family = hd_family_named(job->family);

    return family && family->names == HD_NAMES_GPT2;
}

static void add_lora(const struct hd_exporter *x, struct hd_json_writer *w)
{
    const struct hd_job *job = &x->job;

    /* with twice the rank the scale stays: alpha / r, or alpha / sqrt(r) */
    const double times = !is_doubled(x) ? 1 : job->adapter_rslora ? sqrt(2) : 2;

    hd_json_add_int64(w, "r", job->adapter_rank * (is_doubled(x) ? 2 : 1));
    hd_json_add_real(w, "lora_alpha", job->adapter_alpha * times);
    hd_json_add_bool(w, "use_rslora", job->adapter_rslora);
    hd_json_add_bool(w, "use_dora", job->adapter_dora);
    hd_json_add_real(w, "lora_dropout", has_stacks(x) ? 0 : job->adapter_dropout);
    hd_json_add_string(w, "bias", "none");
    hd_json_add_bool(w, "fan_in_fan_out", is_conv1d(job));
    add_modules(x, w);
    add_parameters(x, w);
}

/* Adds the keys of a prefix adapter to adapter_config.json. token_dim and num_attention_heads are
 * those of keys and values, as PEFT sets them for grouped queries. */
static void add_prefix(const struct hd_job *job, struct hd_json_writer *w)
{
    hd_json_add_int64(w, "num_virtual_tokens", job->adapter_tokens);
    hd_json_add_int64(w, "num_layers", job->layers);
    hd_json_add_int64(w, "num_attention_heads", job->kv_heads);
    hd_json_add_int64(w, "token_dim", job->kv_heads * job->head_width);
    hd_json_add_int64(w, "encoder_hidden_size", job->kv_heads * job->head_width);
    hd_json_add_int64(w, "num_transformer_submodules", 1);
    hd_json_add_bool(w, "prefix_projection", false);
}

enum hd_status hd_export_adapter_config(const struct hd_exporter *x, struct hd_text *ret_text)
{
    const struct hd_job *job = &x->job;
    const bool prefix = job->adapter == HD_JOB_ADAPTER_PREFIX;
    struct hd_json_writer w = {.out = ret_text};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "peft_type", prefix ? "PREFIX_TUNING" : "LORA");
    hd_json_add_string(&w, "task_type", hd_job_is_reward(job) ? "SEQ_CLS" : "CAUSAL_LM");
    if (hd_job_is_reward(job)) {
        hd_json_begin(&w, "modules_to_save", '[');
        hd_json_add_string(&w, NULL, "score");
        hd_json_end(&w, ']');
    }
    hd_json_add_bool(&w, "inference_mode", true);
    if (*job->init_from)
        hd_json_add_string(&w, "base_model_name_or_path", job->init_from);
    else
        hd_json_add_null(&w, "base_model_name_or_path");
    if (prefix)
        add_prefix(job, &w);
    else
        add_lora(x, &w);
    hd_json_end(&w, '}');
    return ret_text->failed ? hd_export_no_memory() : HD_OK;
}

/* Merges adapter_config.json: the old file's keys with the changed values, then new keys.
 * target_modules and target_parameters of the old file stay: they may be other words for the same
 * names, which the tensors have. revision becomes null: it belongs to the base that the old file names, while the
 * run's base is a folder. */
enum hd_status hd_export_merge_adapter(const struct hd_text *before, const struct hd_text *now,
                                       struct hd_text *ret_text)
{
    const struct hd_json_limits limits = {.values_max = 1 << 16, .depth_max = 16};
    const struct hd_json *was = NULL, *is = NULL;
    struct hd_json_writer w = {.out = ret_text};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse_repeated(&arena, before->data, before->len_bytes, &limits, &was);
    if (!st)
        st = hd_json_parse(&arena, now->data, now->len_bytes, &limits, &is);
    hd_json_begin(&w, NULL, '{');
    for (const struct hd_json *v = st ? NULL : was->first; v; v = v->next) {
        const struct hd_json *other = hd_json_member(is, v->key);

        if (strcmp(v->key, "revision") == 0)
            hd_json_add_null(&w, v->key);
        else if (!other || hd_words_have("target_modules target_parameters", v->key) ||
                 hd_hf_same_value(v, other))
            hd_json_add_value(&w, v->key, v);
        else
            hd_json_add_value(&w, v->key, other);
    }
    for (const struct hd_json *v = st ? NULL : is->first; v; v = v->next)
        if (!hd_json_member(was, v->key))
            hd_json_add_value(&w, v->key, v);
    hd_json_end(&w, '}');
    hd_arena_done(&arena);
    return st                 ? hd_err_prefix(st, "adapter_config.json")
           : ret_text->failed ? hd_export_no_memory()
                              : HD_OK;
}
