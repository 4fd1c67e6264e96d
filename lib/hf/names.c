#include "hf/hf_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LISTED_MAX = 4 }; /* most names of tensors in one error message */

/* ---- the tables ---- */

#define PART(which, count, our, their)                               \
    {                                                                \
        .ours = our, .theirs = their, .place = which, .parts = count \
    }
#define TURNED_PART(which, count, our, their)                                            \
    {                                                                                    \
        .ours = our, .theirs = their, .transposed = true, .place = which, .parts = count \
    }
#define PLAIN(our, their)  PART(0, 1, our, their)
#define TURNED(our, their) TURNED_PART(0, 1, our, their)
#define OUTSIDE(our, their)                                   \
    {                                                         \
        .ours = our, .theirs = their, .top = true, .parts = 1 \
    }

#define SCORE "score.weight" /* a reward model's tensor in place of lm_head */

static const struct hd_hf_row gpt2_rows[] = {
    PLAIN("embedding.weight", "wte.weight"),
    PLAIN("embedding.positions", "wpe.weight"),
    PLAIN("blocks.#.norm1.weight", "h.#.ln_1.weight"),
    PLAIN("blocks.#.norm1.bias", "h.#.ln_1.bias"),
    TURNED_PART(0, 3, "blocks.#.attention.q.weight", "h.#.attn.c_attn.weight"),
    TURNED_PART(1, 3, "blocks.#.attention.k.weight", "h.#.attn.c_attn.weight"),
    TURNED_PART(2, 3, "blocks.#.attention.v.weight", "h.#.attn.c_attn.weight"),
    PART(0, 3, "blocks.#.attention.q.bias", "h.#.attn.c_attn.bias"),
    PART(1, 3, "blocks.#.attention.k.bias", "h.#.attn.c_attn.bias"),
    PART(2, 3, "blocks.#.attention.v.bias", "h.#.attn.c_attn.bias"),
    TURNED("blocks.#.attention.out.weight", "h.#.attn.c_proj.weight"),
    PLAIN("blocks.#.attention.out.bias", "h.#.attn.c_proj.bias"),
    PLAIN("blocks.#.norm2.weight", "h.#.ln_2.weight"),
    PLAIN("blocks.#.norm2.bias", "h.#.ln_2.bias"),
    TURNED("blocks.#.mlp.up.weight", "h.#.mlp.c_fc.weight"),
    PLAIN("blocks.#.mlp.up.bias", "h.#.mlp.c_fc.bias"),
    TURNED("blocks.#.mlp.down.weight", "h.#.mlp.c_proj.weight"),
    PLAIN("blocks.#.mlp.down.bias", "h.#.mlp.c_proj.bias"),
    PLAIN("head.norm.weight", "ln_f.weight"),
    PLAIN("head.norm.bias", "ln_f.bias"),
    OUTSIDE("head.weight", HD_HF_HEAD_NAME),
    OUTSIDE("head.score.weight", SCORE),
};

/* The rows of all other families are lists of these pieces, in the order of an export. A model
 * need not have every parameter of its table. */
#define EMBEDDING PLAIN("embedding.weight", "embed_tokens.weight")
#define HEAD                                                                        \
    PLAIN("head.norm.weight", "norm.weight"), PLAIN("head.norm.bias", "norm.bias"), \
        OUTSIDE("head.weight", HD_HF_HEAD_NAME), OUTSIDE("head.score.weight", SCORE)
#define NORM(our, their)                                           \
    PLAIN("blocks.#." our ".weight", "layers.#." their ".weight"), \
        PLAIN("blocks.#." our ".bias", "layers.#." their ".bias")
#define QKV                                                                       \
    PLAIN("blocks.#.attention.q.weight", "layers.#.self_attn.q_proj.weight"),     \
        PLAIN("blocks.#.attention.k.weight", "layers.#.self_attn.k_proj.weight"), \
        PLAIN("blocks.#.attention.v.weight", "layers.#.self_attn.v_proj.weight"), \
        PLAIN("blocks.#.attention.q.bias", "layers.#.self_attn.q_proj.bias"),     \
        PLAIN("blocks.#.attention.k.bias", "layers.#.self_attn.k_proj.bias"),     \
        PLAIN("blocks.#.attention.v.bias", "layers.#.self_attn.v_proj.bias")
#define FUSED_QKV                                                                        \
    PART(0, 3, "blocks.#.attention.q.weight", "layers.#.self_attn.qkv_proj.weight"),     \
        PART(1, 3, "blocks.#.attention.k.weight", "layers.#.self_attn.qkv_proj.weight"), \
        PART(2, 3, "blocks.#.attention.v.weight", "layers.#.self_attn.qkv_proj.weight")
#define OUT                                                                            \
    PLAIN("blocks.#.attention.out.weight", "layers.#.self_attn.o_proj.weight"),        \
        PLAIN("blocks.#.attention.out.bias", "layers.#.self_attn.o_proj.bias"),        \
        PLAIN("blocks.#.attention.q_norm.weight", "layers.#.self_attn.q_norm.weight"), \
        PLAIN("blocks.#.attention.k_norm.weight", "layers.#.self_attn.k_norm.weight")
#define MLP                                                                 \
    PLAIN("blocks.#.mlp.gate.weight", "layers.#.mlp.gate_proj.weight"),     \
        PLAIN("blocks.#.mlp.up.weight", "layers.#.mlp.up_proj.weight"),     \
        PLAIN("blocks.#.mlp.down.weight", "layers.#.mlp.down_proj.weight"), \
        PLAIN("blocks.#.mlp.gate.bias", "layers.#.mlp.gate_proj.bias"),     \
        PLAIN("blocks.#.mlp.up.bias", "layers.#.mlp.up_proj.bias"),         \
        PLAIN("blocks.#.mlp.down.bias", "layers.#.mlp.down_proj.bias")
#define FUSED_MLP                                                                 \
    PART(0, 2, "blocks.#.mlp.gate.weight", "layers.#.mlp.gate_up_proj.weight"),   \
        PART(1, 2, "blocks.#.mlp.up.weight", "layers.#.mlp.gate_up_proj.weight"), \
        PLAIN("blocks.#.mlp.down.weight", "layers.#.mlp.down_proj.weight")
#define PLAIN_MLP                                                        \
    PLAIN("blocks.#.mlp.up.weight", "layers.#.mlp.c_fc.weight"),         \
        PLAIN("blocks.#.mlp.up.bias", "layers.#.mlp.c_fc.bias"),         \
        PLAIN("blocks.#.mlp.down.weight", "layers.#.mlp.c_proj.weight"), \
        PLAIN("blocks.#.mlp.down.bias", "layers.#.mlp.c_proj.bias")
/* experts with a tensor for each; those of one layer in two stacks, of gate and up, and of down */
#define EXPERTS(gate, up, down)                          \
    PLAIN("blocks.#.moe.gate.weight", "layers.#." gate), \
        PLAIN("blocks.#.moe.up.weight", "layers.#." up), \
        PLAIN("blocks.#.moe.down.weight", "layers.#." down)
#define STACKED_EXPERTS(gate_up, down)                             \
    PART(0, 2, "blocks.#.moe.gate.weight", "layers.#." gate_up),   \
        PART(1, 2, "blocks.#.moe.up.weight", "layers.#." gate_up), \
        PLAIN("blocks.#.moe.down.weight", "layers.#." down)
#define ROUTER(their) PLAIN("blocks.#.moe.router.weight", "layers.#." their)
#define SHARED_EXPERT                                                                            \
    PLAIN("blocks.#.moe.shared.gate.weight", "layers.#.mlp.shared_expert.gate_proj.weight"),     \
        PLAIN("blocks.#.moe.shared.up.weight", "layers.#.mlp.shared_expert.up_proj.weight"),     \
        PLAIN("blocks.#.moe.shared.down.weight", "layers.#.mlp.shared_expert.down_proj.weight"), \
        PLAIN("blocks.#.moe.shared_gate.weight", "layers.#.mlp.shared_expert_gate.weight")
#define NORMS NORM("norm1", "input_layernorm"), NORM("norm2", "post_attention_layernorm")

static const struct hd_hf_row llama_rows[] = {EMBEDDING, NORMS, QKV, OUT, MLP, HEAD};

/* Mixtral's form that every version of transformers reads and that it writes by default, and the one
 * that transformers 5 writes with save_original_format=False. */
static const struct hd_hf_row mixtral_rows[] = {EMBEDDING,
                                                NORMS,
                                                QKV,
                                                OUT,
                                                ROUTER("block_sparse_moe.gate.weight"),
                                                EXPERTS("block_sparse_moe.experts.*.w1.weight",
                                                        "block_sparse_moe.experts.*.w3.weight",
                                                        "block_sparse_moe.experts.*.w2.weight"),
                                                HEAD};
static const struct hd_hf_row mixtral_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    ROUTER("mlp.gate.weight"),
    STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    HEAD};

/* Qwen-MoE and OLMoE, also in two forms. */
static const struct hd_hf_row qwen_moe_rows[] = {EMBEDDING,
                                                 NORMS,
                                                 QKV,
                                                 OUT,
                                                 MLP,
                                                 ROUTER("mlp.gate.weight"),
                                                 EXPERTS("mlp.experts.*.gate_proj.weight",
                                                         "mlp.experts.*.up_proj.weight",
                                                         "mlp.experts.*.down_proj.weight"),
                                                 SHARED_EXPERT,
                                                 HEAD};
static const struct hd_hf_row qwen_moe_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    MLP,
    ROUTER("mlp.gate.weight"),
    STACKED_EXPERTS("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    SHARED_EXPERT,
    HEAD};

static const struct hd_hf_row gemma_rows[] = {EMBEDDING,
                                              NORM("norm1", "input_layernorm"),
                                              NORM("norm1_out", "post_attention_layernorm"),
                                              NORM("norm2", "pre_feedforward_layernorm"),
                                              NORM("norm2_out", "post_feedforward_layernorm"),
                                              QKV,
                                              OUT,
                                              MLP,
                                              HEAD};

static const struct hd_hf_row olmo2_rows[] = {EMBEDDING,
                                              NORM("norm1_out", "post_attention_layernorm"),
                                              NORM("norm2_out", "post_feedforward_layernorm"),
                                              QKV,
                                              OUT,
                                              MLP,
                                              HEAD};

static const struct hd_hf_row phi3_rows[] = {EMBEDDING, NORMS, FUSED_QKV, OUT, FUSED_MLP, HEAD};

static const struct hd_hf_row glm_rows[] = {EMBEDDING, NORMS, QKV, OUT, FUSED_MLP, HEAD};

static const struct hd_hf_row glm4_rows[] = {EMBEDDING,
                                             NORM("norm1", "input_layernorm"),
                                             NORM("norm1_out", "post_self_attn_layernorm"),
                                             NORM("norm2", "post_attention_layernorm"),
                                             NORM("norm2_out", "post_mlp_layernorm"),
                                             QKV,
                                             OUT,
                                             FUSED_MLP,
                                             HEAD};

static const struct hd_hf_row granite_moe_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    ROUTER("block_sparse_moe.router.layer.weight"),
    STACKED_EXPERTS("block_sparse_moe.input_linear.weight",
                    "block_sparse_moe.output_linear.weight"),
    HEAD};

/* The form that transformers 5 writes with save_original_format=False. */
static const struct hd_hf_row granite_moe_stacked_rows[] = {
    EMBEDDING,
    NORMS,
    QKV,
    OUT,
    ROUTER("block_sparse_moe.router.weight"),
    STACKED_EXPERTS("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
    HEAD};

static const struct hd_hf_row starcoder2_rows[] = {EMBEDDING, NORMS, QKV, OUT, PLAIN_MLP, HEAD};

/* Constants that older versions of transformers saved with the weights: masks and rotary
 * frequencies. */
static const char *const constants[] = {
    "h.#.attn.bias",
    "h.#.attn.masked_bias",
    "layers.#.self_attn.rotary_emb.inv_freq",
    "layers.#.self_attn.rotary_emb.original_inv_freq",
    "layers.#.self_attn.rotary_emb.cos_cached",
    "layers.#.self_attn.rotary_emb.sin_cached",
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const struct name_table {
    const char *prefix;
    const struct hd_hf_row *rows;
    size_t count;
    /* [stacked_count] table for the form with experts in stacks; NULL: no such form */
    const struct hd_hf_row *stacked;
    size_t stacked_count;
    const char *stacked_sign; /* name of a tensor that exists only in that form */
} tables[HD_NAMES_COUNT] = {
    [HD_NAMES_GPT2] = {"transformer.", gpt2_rows, COUNT(gpt2_rows), NULL, 0, NULL},
    [HD_NAMES_LLAMA] = {"model.", llama_rows, COUNT(llama_rows), NULL, 0, NULL},
    [HD_NAMES_MIXTRAL] = {"model.", mixtral_rows, COUNT(mixtral_rows), mixtral_stacked_rows,
                          COUNT(mixtral_stacked_rows), "layers.#.mlp.gate.weight"},
    [HD_NAMES_QWEN_MOE] = {"model.", qwen_moe_rows, COUNT(qwen_moe_rows), qwen_moe_stacked_rows,
                           COUNT(qwen_moe_stacked_rows), "layers.#.mlp.experts.gate_up_proj"},
    [HD_NAMES_GEMMA] = {"model.", gemma_rows, COUNT(gemma_rows), NULL, 0, NULL},
    [HD_NAMES_OLMO2] = {"model.", olmo2_rows, COUNT(olmo2_rows), NULL, 0, NULL},
    [HD_NAMES_PHI3] = {"model.", phi3_rows, COUNT(phi3_rows), NULL, 0, NULL},
    [HD_NAMES_GLM] = {"model.", glm_rows, COUNT(glm_rows), NULL, 0, NULL},
    [HD_NAMES_GLM4] = {"model.", glm4_rows, COUNT(glm4_rows), NULL, 0, NULL},
    [HD_NAMES_GRANITE_MOE] = {"model.", granite_moe_rows, COUNT(granite_moe_rows),
                              granite_moe_stacked_rows, COUNT(granite_moe_stacked_rows),
                              "layers.#.block_sparse_moe.experts.gate_up_proj"},
    [HD_NAMES_STARCODER2] = {"model.", starcoder2_rows, COUNT(starcoder2_rows), NULL, 0, NULL},
};

enum hd_status hd_hf_rows(const char *family, const struct hd_hf_row **ret_rows, size_t *ret_count,
                          const char **ret_prefix)
{
    const struct hd_family *f = hd_family_named(family);

    if (!f)
        return hd_err(HD_UNSUPPORTED, "model.family: there are no Hugging Face names for %s",
                      family);
    *ret_rows = tables[f->names].rows;
    *ret_count = tables[f->names].count;
    *ret_prefix = tables[f->names].prefix;
    return HD_OK;
}

int64_t hd_hf_part_rows(const struct hd_job *job, const char *name, int64_t rows)
{
    int64_t heads = 0;

    if (strstr(name, "attention.q."))
        heads = job->heads;
    else if (strstr(name, "attention.k.") || strstr(name, "attention.v."))
        heads = job->kv_heads;
    return heads * job->head_width > 0 ? heads * job->head_width : rows;
}

void hd_hf_format_name(const char *pattern, int64_t layer, int64_t expert,
                       char ret_name[HD_CKPT_NAME_MAX])
{
    size_t n = 0;

    for (const char *p = pattern; *p && n < HD_CKPT_NAME_MAX - 24; p++)
        if (*p == '#' || *p == '*')
            n += (size_t)snprintf(ret_name + n, HD_CKPT_NAME_MAX - n, "%" PRId64,
                                  *p == '#' ? layer : expert);
        else
            ret_name[n++] = *p;
    ret_name[n] = '\0';
}

bool hd_hf_per_expert(const struct hd_hf_row *row)
{
    return strchr(row->theirs, '*') != NULL;
}

/* Returns whether `name` is the pattern with a number for '#'; sets *ret_layer to the number, or
 * 0. */
static bool matches(const char *pattern, const char *name, int64_t *ret_layer)
{
    const char *mark = strchr(pattern, '#');
    size_t before, digits;

    *ret_layer = 0;
    if (!mark)
        return strcmp(pattern, name) == 0;
    before = (size_t)(mark - pattern);
    if (strncmp(pattern, name, before) != 0)
        return false;
    digits = strspn(name + before, "0123456789");
    if (digits < 1 || digits > 6 || strcmp(name + before + digits, mark + 1) != 0)
        return false;
    *ret_layer = strtoll(name + before, NULL, 10);
    return true;
}

/* ---- the map ---- */

struct found_name {
    const struct hd_weight **weights; /* their tensors: [1], or [E] with one tensor per expert */
    /* as `weights`: [1] or [E]; quant is NONE for a plain tensor */
    struct hd_hf_quantized *quantized;
    bool per_expert, transposed;
    int64_t first;        /* first row of our part in a joined tensor */
    int64_t first_column; /* first column of our part in a joined tensor */
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
    /* prefix of the tensors' names in this directory; "" for the files of a base model */
    const char *prefix;
    bool adapter; /* the weights are PEFT's factors, not a model */
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

/* Checks shape and dtype of a tensor of the Hugging Face model. Its table of positions may be longer
 * than the job's context: the job then uses the first rows. */
static enum hd_status check_tensor_shape(const struct search *s, const struct hd_hf_row *row,
                                         const struct hd_ckpt_entry *want,
                                         const struct hd_weight *w)
{
    const bool positions = strcmp(row->ours, "embedding.positions") == 0;
    int64_t expected[HD_CKPT_DIMS_MAX] = {0};
    char is[96], should[96];
    const int left_out = hd_hf_per_expert(row), dims = want->dim_count - left_out;
    const int merged = want->dim_count > 2 ? want->dim_count - 2 : 0;
    bool same = w->dim_count == dims;

    for (int d = 0; d < dims; d++) {
        const int from = row->transposed ? dims - 1 - d : d + left_out;
        const bool is_merged = row->columns ? from == dims - 1 : from == merged;

        expected[d] = !is_merged     ? want->shape[from]
                      : row->columns ? want->shape[from] * row->parts
                                     : rows_before(s, row, row->parts, want->shape[from]);
    }
    for (int d = 0; same && d < dims; d++)
        same = w->shape[d] == expected[d] || (positions && d == 0 && w->shape[d] > expected[d]);
    if (!same) {
        format_shape(w->shape, w->dim_count, is);
        format_shape(expected, dims, should);
        return hd_err(HD_INVALID, "%s: tensor %s has the shape %s, the model needs %s", w->file,
                      w->name, is, should);
    }
    if (w->dtype != HD_F32 && w->dtype != HD_F16 && w->dtype != HD_BF16 && w->dtype != HD_F64)
        return hd_err(HD_UNSUPPORTED,
                      "%s: tensor %s is neither F32, F16, BF16 nor F64; convert the model to one "
                      "of these",
                      w->file, w->name);
    return HD_OK;
}

/* Returns whether the tensor is a quantized matrix: it consists of bytes. Fused experts are never
 * quantized and have a third dimension. */
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
    char plain[HD_CKPT_NAME_MAX], name[2 * HD_CKPT_NAME_MAX];

    hd_hf_format_name(row->theirs, layer, expert, plain);
    (void)snprintf(name, sizeof name, "%s%s", row->top ? "" : s->prefix, plain);
    *ret_weight = hd_weights_find(s->weights, name);
    if (!*ret_weight && s->job->tie_embeddings && !s->adapter &&
        /* an embedding may be saved under the name of the tied head */
        strcmp(row->ours, "embedding.weight") == 0)
        *ret_weight = hd_weights_find(s->weights, HD_HF_HEAD_NAME);
    if (!*ret_weight) {
        list(&s->missing, &s->missing_count, name);
        return HD_OK;
    }
    map->used[*ret_weight - hd_weights_at(s->weights, 0)] = true;
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
    const struct hd_hf_row *row = NULL;
    struct found_name *f = &map->found[index];
    int64_t layer = 0, count = 1;
    enum hd_status st = HD_OK;

    for (size_t i = 0; !row && i < s->row_count; i++)
        if (matches(s->rows[i].ours, want->name, &layer))
            row = &s->rows[i];
    if (!row)
        return hd_err(HD_UNSUPPORTED, "%s: family %s has no such tensor in transformers",
                      want->name, s->job->family);
    if (hd_hf_per_expert(row) && want->dim_count < 2)
        return hd_err(HD_INVALID, "%s: has no dimension of experts", want->name);
    f->per_expert = hd_hf_per_expert(row);
    f->transposed = row->transposed;
    if (row->columns)
        f->first_column = (2 * layer + row->place) * want->shape[1];
    else
        f->first = rows_before(s, row, row->place, want->shape[rows_at]);
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

static bool is_constant(const char *name)
{
    int64_t layer;

    for (size_t i = 0; i < COUNT(constants); i++)
        if (matches(constants[i], name, &layer))
            return true;
    return false;
}

bool hd_hf_may_be_absent(const char *name)
{
    bool constant = is_constant(name);

    for (size_t i = 0; i < COUNT(tables) && !constant; i++)
        constant =
            hd_text_starts(name, tables[i].prefix) && is_constant(name + strlen(tables[i].prefix));
    return constant || strcmp(name, HD_HF_HEAD_NAME) == 0;
}

static bool may_stay_unused(const struct search *s, const struct hd_weight *w)
{
    const char *name = w->name;

    if (s->adapter)
        return false;
    if (!w->size_bytes)
        return true; /* a parameter without elements needs no tensor */
    if (s->job->tie_embeddings && strcmp(name, HD_HF_HEAD_NAME) == 0)
        return true; /* the output head may be missing: config.json ties it to the embedding */
    if (hd_job_is_reward(s->job) && strcmp(name, HD_HF_HEAD_NAME) == 0)
        return true; /* a reward model may start from a language model */
    return hd_text_starts(name, s->prefix) && is_constant(name + strlen(s->prefix));
}

bool hd_hf_has_score(const struct hd_weights *weights)
{
    return hd_weights_find(weights, SCORE) != NULL;
}

static enum hd_status judge(struct search *s, const struct hd_hf_map *map)
{
    if (!s->adapter && !hd_job_is_reward(s->job) && hd_hf_has_score(s->weights))
        return hd_err(HD_INVALID,
                      "it is a reward model (" SCORE " in place of lm_head.weight), which has no "
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

/* Selects the table of names with stacked experts if the weights have its sign in some layer. */
static void choose_form(struct search *s)
{
    const struct name_table *names = &tables[hd_family_named(s->job->family)->names];
    char plain[HD_CKPT_NAME_MAX], name[2 * HD_CKPT_NAME_MAX];

    for (int64_t layer = 0; names->stacked && layer < s->job->layers; layer++) {
        hd_hf_format_name(names->stacked_sign, layer, 0, plain);
        (void)snprintf(name, sizeof name, "%s%s", s->prefix, plain);
        if (!hd_weights_find(s->weights, name))
            continue;
        s->rows = names->stacked;
        s->row_count = names->stacked_count;
        return;
    }
}

static enum hd_status search_names(struct search *s, struct hd_hf_map *map)
{
    char first[HD_CKPT_NAME_MAX];
    struct hd_hf_row prefix[2];
    enum hd_status st = HD_OK;

    if (s->adapter && strcmp(s->job->adapter, "prefix") == 0) {
        hd_hf_prefix_rows(s->job, prefix);
        s->rows = prefix;
        s->row_count = 2;
        s->prefix = "";
    } else if (s->adapter) {
        st = hd_hf_adapter_rows(s->job->family, &map->arena, &s->rows, &s->row_count, &s->prefix);
    } else {
        st = hd_hf_rows(s->job->family, &s->rows, &s->row_count, &s->prefix);
    }

    for (size_t i = 0; !st && s->adapter && i < map->count; i++)
        st = find_one(s, map, i);
    if (st || s->adapter)
        return st ? st : judge(s, map);
    (void)snprintf(first, sizeof first, "%s%s", s->prefix, s->rows[0].theirs);
    if (!hd_weights_find(s->weights, first) && hd_weights_find(s->weights, s->rows[0].theirs))
        s->prefix = "";
    choose_form(s);
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

/* Reads `count` values of one row of one expert. */
static void read_run(const struct found_name *f, int dim_count, int64_t expert, int64_t row,
                     int64_t column, int64_t count, float *ret_values)
{
    const struct hd_weight *w = f->weights[f->per_expert ? expert : 0];
    const struct hd_hf_quantized *quantized = &f->quantized[f->per_expert ? expert : 0];
    const int64_t width = w->dim_count ? w->shape[w->dim_count - 1] : 1;

    if (quantized->quant)
        hd_hf_decode(quantized, f->first + row, column, count, ret_values);
    else if (dim_count < 2) /* a vector: its parts are concatenated */
        hd_hf_convert(w, f->first + column, 1, count, ret_values);
    else if (f->transposed)
        hd_hf_convert(w, column * width + f->first + row, width, count, ret_values);
    else if (w->dim_count > 2)
        hd_hf_convert(w, (expert * w->shape[1] + f->first + row) * width + column, 1, count,
                      ret_values);
    else
        hd_hf_convert(w, (f->first + row) * width + f->first_column + column, 1, count, ret_values);
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

        read_run(f, want->dim_count, p.expert0 + r / p.rows, p.row0 + r % p.rows, p.column0 + c,
                 run, ret_values + done);
        if (hd_f32_find_nonfinite(ret_values + done, run) >= 0)
            return not_finite(f, p.expert0 + r / p.rows);
        done += run;
    }
    return HD_OK;
}

bool hd_hf_get_quantized(const struct hd_hf_map *map, size_t index, int64_t expert,
                         enum hd_quant quant, struct hd_quant_whole *ret_whole)
{
    const struct found_name *f = &map->found[index];
    const struct hd_hf_quantized *quantized = &f->quantized[f->per_expert ? expert : 0];

    return quantized->quant == quant && hd_hf_slice_quantized(quantized, f->first, ret_whole);
}
