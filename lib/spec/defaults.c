/* Defaults that come out of other keys, and of keys for which zero can only mean "not given". */
#include <string.h>

#include "spec_internal.h"

/* Two thirds of 4 x hidden, so that three matrices (gated) weigh what two do in gpt2, rounded up to
 * 32 for the kernels (Shazeer 2020, "GLU Variants Improve Transformer"; Llama). */
static int64_t gated_ffn_width(int64_t hidden)
{
    return (8 * hidden + 3 * 32 - 1) / (3 * 32) * 32;
}

/* The values that the papers and the published checkpoints have. */
static void fill_rope_scaling(Heddle__V1__RopeScaling *s)
{
    if (s->type == HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_UNSPECIFIED)
        s->type = HEDDLE__V1__ROPE_SCALING_KIND__ROPE_SCALING_KIND_NONE;
    if (s->factor == 0)
        s->factor = 1;
    if (s->low_freq_factor == 0)
        s->low_freq_factor = 1;
    if (s->high_freq_factor == 0)
        s->high_freq_factor = 4;
    if (s->beta_fast == 0)
        s->beta_fast = 32;
    if (s->beta_slow == 0)
        s->beta_slow = 1;
}

/* The numbers of Jiang et al. 2024, "Mixtral of Experts". */
static void fill_experts(Heddle__V1__ModelSpec *m)
{
    if (!m->experts)
        m->experts = 8;
    if (!m->experts_per_token)
        m->experts_per_token = 2;
}

static void fill_model(Heddle__V1__ModelSpec *m, bool bytes)
{
    bool in_range = m->hidden > 0 && m->hidden <= 1 << 20; /* else check tells, no overflow here */

    if (!m->kv_heads)
        m->kv_heads = m->heads;
    if (!m->ffn_hidden && in_range)
        m->ffn_hidden = strcmp(m->family, "gpt2") == 0 ? 4 * m->hidden : gated_ffn_width(m->hidden);
    if (!m->vocab && bytes)
        m->vocab = 256;
    if (m->positions == HEDDLE__V1__POSITIONS__POSITIONS_UNSPECIFIED)
        m->positions = strcmp(m->family, "gpt2") == 0 ? HEDDLE__V1__POSITIONS__POSITIONS_LEARNED
                                                      : HEDDLE__V1__POSITIONS__POSITIONS_ROPE;
    if (m->rope_theta == 0)
        m->rope_theta = 10000;
    if (m->norm_eps == 0)
        m->norm_eps = 1e-5;
    if (!m->head_width && m->heads > 0)
        m->head_width = m->hidden / m->heads;
    if (strcmp(m->family, "mixtral") == 0)
        fill_experts(m);
    fill_rope_scaling(m->rope_scaling);
}

/* Where something may tell where a document ends, it is listened to. Plain bytes have no ends. */
static void fill_documents(Heddle__V1__DataSpec *d)
{
    bool knows = strcmp(d->tokenizer, "bytes") != 0 ||
                 (*d->end_of_text && strcmp(d->end_of_text, "none") != 0);

    for (size_t i = 0; i < d->n_train; i++)
        knows = knows || spec_is_token_file(d->train[i]->path) || spec_is_lines(d->train[i]->path);
    if (d->documents == HEDDLE__V1__DOCUMENT_ENDS__DOCUMENT_ENDS_UNSPECIFIED)
        d->documents = knows ? HEDDLE__V1__DOCUMENT_ENDS__DOCUMENT_ENDS_BOUNDED
                             : HEDDLE__V1__DOCUMENT_ENDS__DOCUMENT_ENDS_JOINED;
}

static void fill_lr(Heddle__V1__LearningRate *lr, int64_t steps)
{
    int64_t after_warmup = steps > lr->warmup_steps ? steps - lr->warmup_steps : 0;

    if (lr->decay == HEDDLE__V1__DECAY_KIND__DECAY_KIND_UNSPECIFIED)
        lr->decay = HEDDLE__V1__DECAY_KIND__DECAY_KIND_COSINE;
    if (lr->decay_steps || lr->decay == HEDDLE__V1__DECAY_KIND__DECAY_KIND_CONSTANT)
        return;
    lr->decay_steps = after_warmup; /* the fall ends with the run */
    if (lr->decay == HEDDLE__V1__DECAY_KIND__DECAY_KIND_WSD && steps / 10 < after_warmup)
        lr->decay_steps = steps / 10 ? steps / 10 : after_warmup;
}

enum hd_status hd_spec_fill_defaults(struct Heddle__V1__JobSpec *spec)
{
    if (!spec_make_sections(&spec->base, &spec_root))
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    if (!*spec->data->tokenizer &&
        !spec_set_text(&spec->data->tokenizer, spec_has_text(spec->data) ? "bytes" : "none"))
        return hd_err(HD_NO_MEMORY, "no memory for a job");
    if (spec->data->order == HEDDLE__V1__DATA_ORDER__DATA_ORDER_UNSPECIFIED)
        spec->data->order = HEDDLE__V1__DATA_ORDER__DATA_ORDER_SHUFFLED;
    fill_documents(spec->data);
    fill_model(spec->model, strcmp(spec->data->tokenizer, "bytes") == 0);
    fill_lr(spec->train->lr, spec->train->steps);
    if (spec->train->beta2 == 0)
        spec->train->beta2 = 0.95;
    if (spec->train->eps == 0)
        spec->train->eps = 1e-8;
    if (!spec->resources->devices_min)
        spec->resources->devices_min = 1;
    if (!spec->resources->devices_max)
        spec->resources->devices_max = spec->resources->devices_min;
    return HD_OK;
}

/* ---- keys that are not in the file ---- */

bool spec_has(const struct yaml_node *root, const char *section, const char *key)
{
    const struct yaml_node *node = spec_yaml_find(root, section);

    return node && (!key || spec_yaml_find(node, key));
}

/* `lr: 1e-3` gives the peak alone. */
static bool has_lr(const struct yaml_node *root, const char *key)
{
    const struct yaml_node *train = spec_yaml_find(root, "train");
    const struct yaml_node *lr = train ? spec_yaml_find(train, "lr") : NULL;

    return lr && spec_yaml_find(lr, key);
}

/* A twentieth of the run, not more than 2000 steps, nor than the fall leaves. */
static int64_t default_warmup(const Heddle__V1__TrainSpec *train)
{
    int64_t steps = train->steps / 20 < 2000 ? train->steps / 20 : 2000;
    int64_t left = train->steps - train->lr->decay_steps;

    return left < 0 ? 0 : left < steps ? left : steps;
}

/* What a family has where the file does not say: gpt2 biases everywhere and a tied head, qwen2
 * biases on queries, keys and values, qwen3 their norms. */
static void fill_absent_of_family(const struct yaml_node *root, Heddle__V1__ModelSpec *m)
{
    bool gpt2 = strcmp(m->family, "gpt2") == 0;

    if (!spec_has(root, "model", "tie_embeddings"))
        m->tie_embeddings = gpt2;
    if (!spec_has(root, "model", "qkv_bias"))
        m->qkv_bias = gpt2 || strcmp(m->family, "qwen2") == 0;
    if (!spec_has(root, "model", "out_bias"))
        m->out_bias = gpt2;
    if (!spec_has(root, "model", "mlp_bias"))
        m->mlp_bias = gpt2;
    if (!spec_has(root, "model", "qk_norm"))
        m->qk_norm = strcmp(m->family, "qwen3") == 0;
}

static bool has_router(const struct yaml_node *root, const char *key)
{
    const struct yaml_node *model = spec_yaml_find(root, "model");
    const struct yaml_node *router = model ? spec_yaml_find(model, "router") : NULL;

    return router && spec_yaml_find(router, key);
}

/* The balancing loss is Switch's, a share of choices times a mean probability, and so is its weight
 * (Fedus et al. 2021). Mixtral's paper names none. */
static void fill_absent_of_router(const struct yaml_node *root, Heddle__V1__RouterSpec *router)
{
    if (!has_router(root, "renormalize"))
        router->renormalize = true;
    if (!has_router(root, "balance"))
        router->balance = 0.01;
}

/* The defaults of keys for which zero has a meaning, so that hd_spec_fill_defaults cannot tell that
 * they are absent. docs/job-file.md states them. */
void spec_fill_absent(const struct yaml_node *root, Heddle__V1__JobSpec *spec)
{
    Heddle__V1__TrainSpec *train = spec->train;
    bool has_val_data = spec->data->n_val || spec->data->val_split > 0;

    if (!*spec->model->from_dir) /* which says it all */
        fill_absent_of_family(root, spec->model);
    if (!*spec->model->from_dir && strcmp(spec->model->family, "mixtral") == 0)
        fill_absent_of_router(root, spec->model->router);
    if (!spec_has(root, "train", "seed"))
        train->seed = 1;
    if (!spec_has(root, "train", "weight_decay"))
        train->weight_decay = 0.1;
    if (!spec_has(root, "train", "beta1"))
        train->beta1 = 0.9;
    if (!spec_has(root, "train", "clip"))
        train->clip = 1;
    if (!has_lr(root, "warmup"))
        train->lr->warmup_steps = default_warmup(train);
    if (!has_lr(root, "min"))
        train->lr->min = train->lr->peak / 10;
    if (!spec_has(root, "validate", "batches") &&
        (has_val_data || spec_has(root, "validate", NULL)))
        spec->validate->batches = 8;
    if (!spec_has(root, "validate", "every") && spec->validate->batches)
        spec->validate->every = 100;
    if (!spec_has(root, "checkpoint", "every"))
        spec->checkpoint->every = 100;
    if (!spec_has(root, "checkpoint", "keep"))
        spec->checkpoint->keep = 3;
    if (!spec_has(root, "restart", "max"))
        spec->restart->max = 3;
}
