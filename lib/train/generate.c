#include "train/generate.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/hf.h"
#include "program/run.h"
#include "train/layout.h"
#include "train/source.h"

struct hd_generator {
    struct hd_arena arena;
    struct hd_job job;
    struct hd_mesh mesh;
    struct hd_registry registry;
    struct hd_model model;
    struct hd_chunk *chunk[2]; /* prefill, one token */
    struct hd_bound *bound[2];
    struct hd_bases bases;
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_runner *runner;
    char *memory;
    int32_t *history; /* [context] the tokens in the caches */
    int64_t filled, step;
    const char *tokenizer; /* name or path; "": unknown */
};

enum { PREFILL, ONE };

/* ---- opening ---- */

static enum hd_status compile(struct hd_generator *g, int which, const struct hd_traits *traits)
{
    const struct hd_rec_shape shape = {.mode = HD_RECORD_DECODE,
                                       .B = 1,
                                       .S = which == PREFILL ? HD_PREFILL_ROWS : 1,
                                       .context = g->job.context};
    const struct hd_compile_options options = {
        .precision = hd_precision_uniform(hd_layout_compute_dtype(&g->job)),
        .mesh = &g->mesh,
        .traits = *traits,
    };
    struct hd_rec *rec = hd_rec_new(&g->registry, &shape, &g->arena);

    if (!rec)
        return hd_err(HD_NO_MEMORY, "no memory to record the model");
    hd_model_record(&g->model, hd_model_units(&g->model), rec);
    return hd_compile(rec, &options, &g->chunk[which]);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static enum hd_status bind(struct hd_generator *g, int which)
{
    return hd_bind(g->runner, g->chunk[which], HD_CALL_D, true, true, &g->bases, &g->arena,
                   &g->bound[which]);
}

/* One allocation: weights, then constants and caches (at the same offsets in both programs), then
 * work. */
static enum hd_status reserve(struct hd_generator *g)
{
    const struct hd_extent *state = g->chunk[PREFILL]->extent;
    const int64_t own = state[HD_REGION_STATE].private_bytes;
    const int64_t work = larger(g->chunk[PREFILL]->extent[HD_REGION_WORK].private_bytes,
                                g->chunk[ONE]->extent[HD_REGION_WORK].private_bytes);
    const int64_t total = g->registry.private_bytes + own + work;

    assert(own == g->chunk[ONE]->extent[HD_REGION_STATE].private_bytes);
    if (posix_memalign((void **)&g->memory, 4096, (size_t)total)) {
        g->memory = NULL;
        return hd_err(HD_NO_MEMORY, "no memory for a model of %lld bytes", (long long)total);
    }
    memset(g->memory, 0, (size_t)total);
    g->bases.base[HD_REGION_STATE][0] = g->memory;
    g->bases.chunk_state = g->memory + g->registry.private_bytes;
    g->bases.base[HD_REGION_WORK][0] = g->bases.chunk_state + own;
    for (int i = 0; i < g->chunk[PREFILL]->store_count; i++) {
        const struct hd_store *s = g->chunk[PREFILL]->stores[i];

        if (s->kind == HD_STORE_CONSTANT)
            hd_constant_fill(s, hd_store_address(&g->bases, s));
    }
    return HD_OK;
}

static enum hd_status read_weights(struct hd_generator *g, const char *dir)
{
    struct hd_source *source = NULL;
    enum hd_status st = hd_source_open(dir, &g->job, &g->registry, &source);

    for (int i = 0; !st && i < g->registry.param_count; i++) {
        const struct hd_param *p = &g->registry.params[i];
        const struct hd_part *part = &g->registry.parts[p->part];
        const struct hd_ckpt_entry want =
            hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);
        float *master = (float *)(g->memory + part->offset[HD_STATE_WEIGHT]) + p->offset;
        uint16_t *copy = (uint16_t *)(g->memory + part->offset[HD_STATE_COPY]) + p->offset;

        st = hd_source_read(source, i, &want, master);
        for (int64_t k = 0; !st && k < p->count && part->compute != HD_F32; k++)
            copy[k] = hd_f32_to_bf16(master[k]);
    }
    hd_source_close(source);
    return st;
}

static enum hd_status declare(struct hd_generator *g)
{
    struct hd_model_config config;
    enum hd_status st = hd_mesh_init(&g->mesh, &(struct hd_mesh_sizes){0});

    if (!st)
        st = hd_model_config_from_job(&g->job, &config);
    if (st)
        return st;
    hd_registry_init(&g->registry, &g->arena, &g->mesh, 0);
    st = hd_model_declare(&config, &g->registry, &g->arena, &g->model);
    return st ? st : hd_registry_finish(&g->registry, hd_layout_compute_dtype(&g->job), false);
}

/* A checkpoint contains its job. */
static enum hd_status read_stored_job(struct hd_generator *g, const char *dir)
{
    struct hd_ckpt *ckpt = NULL;
    const char *config;
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (st)
        return st;
    config = hd_ckpt_manifest(ckpt)->config;
    g->step = hd_ckpt_manifest(ckpt)->step;
    st = hd_job_read(config, strlen(config), &g->arena, &g->job);
    g->tokenizer = g->job.tokenizer;
    hd_ckpt_close(ckpt);
    return st ? hd_err_prefix(st, "the job stored in the checkpoint") : HD_OK;
}

/* The tokenizer in config.json, which only models exported by Heddle have; else the directory's
 * tokenizer.json. */
static enum hd_status find_tokenizer(struct hd_generator *g, const char *dir)
{
    char *path = hd_arena_printf(&g->arena, "%s/tokenizer.json", dir);

    if (!path)
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    g->tokenizer = g->job.tokenizer;
    if (!*g->tokenizer && hd_file_exists(path))
        g->tokenizer = path;
    return HD_OK;
}

/* A job from a Hugging Face model directory: config.json gives the architecture. */
static enum hd_status make_job(struct hd_generator *g, const char *dir)
{
    enum hd_status st = hd_hf_read_config(dir, &g->job, NULL);

    if (st)
        return st;
    (void)snprintf(g->job.precision, sizeof g->job.precision, "fp32");
    if (g->job.context > HD_GENERATE_CONTEXT_MAX) /* limits the memory of the caches */
        g->job.context = HD_GENERATE_CONTEXT_MAX;
    return find_tokenizer(g, dir);
}

static enum hd_status set_up(struct hd_generator *g, const char *dir, int threads)
{
    const struct hd_backend_options options = {.threads = threads};
    struct hd_traits traits;
    enum hd_status st = hd_source_is_checkpoint(dir) || !hd_hf_has_config(dir)
                            ? read_stored_job(g, dir)
                            : make_job(g, dir);

    if (st)
        return st;
    g->table->describe(&options, &traits);
    st = declare(g);
    for (int i = 0; !st && i < 2; i++)
        st = compile(g, i, &traits);
    if (!st)
        st = g->table->open(&options, &g->backend);
    if (!st)
        st = hd_runner_new(g->table, g->backend, NULL, &g->mesh, &g->runner);
    if (!st)
        st = reserve(g);
    for (int i = 0; !st && i < 2; i++)
        st = bind(g, i);
    if (!st)
        st = read_weights(g, dir);
    g->history = hd_arena_array(&g->arena, (size_t)g->job.context, sizeof *g->history);
    if (!st && !g->history)
        st = hd_err(HD_NO_MEMORY, "no memory for the context");
    return st;
}

enum hd_status hd_generator_open(const char *dir, const struct hd_backend_table *backend,
                                 int threads, struct hd_generator **ret_generator)
{
    struct hd_generator *g = calloc(1, sizeof *g);
    enum hd_status st;

    if (!g)
        return hd_err(HD_NO_MEMORY, "no memory for a generator");
    hd_arena_init(&g->arena, 0);
    g->table = backend;
    st = set_up(g, dir, threads);
    if (st) {
        hd_generator_close(g);
        return st;
    }
    *ret_generator = g;
    return HD_OK;
}

void hd_generator_close(struct hd_generator *g)
{
    if (!g)
        return;
    hd_runner_free(g->runner);
    if (g->backend)
        g->table->close(g->backend);
    free(g->memory);
    hd_arena_done(&g->arena);
    free(g);
}

int64_t hd_generator_vocab(const struct hd_generator *g)
{
    return g->job.vocab;
}

int64_t hd_generator_context(const struct hd_generator *g)
{
    return g->job.context;
}

const char *hd_generator_tokenizer(const struct hd_generator *g)
{
    return g->tokenizer;
}

int64_t hd_generator_step(const struct hd_generator *g)
{
    return g->step;
}

/* ---- running ---- */

static int32_t *batch(const struct hd_generator *g, int which, enum hd_batch_field field)
{
    const struct hd_store *store = hd_chunk_find_batch(g->chunk[which], field);

    return store ? hd_store_address(&g->bases, store) : NULL;
}

static void set_field(const struct hd_generator *g, int which, enum hd_batch_field field,
                      int64_t rows)
{
    int32_t *values = batch(g, which, field);

    for (int64_t i = 0; values && i < rows; i++)
        values[i] = (int32_t)(g->filled + i);
}

/* One NaN in the weights usually makes every logit NaN. */
static enum hd_status check_finite(const float *logits, int64_t V)
{
    for (int64_t v = 0; v < V; v++)
        if (!isfinite(logits[v]))
            return hd_err(HD_CORRUPT,
                          "the model's output is not finite; its weights are damaged: see "
                          "heddle checkpoint verify, or take an older checkpoint");
    return HD_OK;
}

/* Runs one of the programs on the next rows of the history. */
static enum hd_status advance(struct hd_generator *g, int which, const float **ret_logits)
{
    const int64_t rows = g->chunk[which]->shape.S;
    const struct hd_store *logits = hd_chunk_find_kind(g->chunk[which], HD_STORE_OUTPUT);
    int32_t *filled = batch(g, which, HD_BATCH_FILLED);
    enum hd_status st;

    memcpy(batch(g, which, HD_BATCH_TOKENS), g->history + g->filled,
           (size_t)rows * sizeof *g->history);
    set_field(g, which, HD_BATCH_POSITIONS, rows);
    set_field(g, which, HD_BATCH_INDEX, rows);
    filled[0] = (int32_t)g->filled;
    filled[1] = (int32_t)(g->filled + rows);
    st = hd_run(g->runner, g->bound[which]);
    if (!st)
        st = hd_runner_join(g->runner);
    if (st)
        return st;
    g->filled += rows;
    *ret_logits = (const float *)hd_store_address(&g->bases, logits) + (rows - 1) * g->job.vocab;
    return check_finite(*ret_logits, g->job.vocab);
}

/* Reads the first `count` tokens of the history, starting with empty caches. */
static enum hd_status read_history(struct hd_generator *g, int64_t count, const float **ret_logits)
{
    enum hd_status st = HD_OK;

    g->filled = 0;
    while (!st && g->filled < count)
        st = advance(g, count - g->filled >= HD_PREFILL_ROWS ? PREFILL : ONE, ret_logits);
    return st;
}

static bool is_token(const struct hd_generator *g, int32_t token)
{
    return token >= 0 && token < g->job.vocab;
}

static enum hd_status no_token(const struct hd_generator *g, int32_t token)
{
    return hd_err(HD_INVALID, "token %d is outside the vocabulary of %lld", token,
                  (long long)g->job.vocab);
}

enum hd_status hd_generator_prompt(struct hd_generator *g, const int32_t *tokens, int64_t count,
                                   const float **ret_logits)
{
    const int64_t context = g->job.context;

    if (count < 1)
        return hd_err(HD_INVALID, "a prompt needs at least one token");
    for (int64_t i = 0; i < count; i++)
        if (!is_token(g, tokens[i]))
            return no_token(g, tokens[i]);
    if (count > context) { /* only the last `context` tokens are visible */
        tokens += count - context;
        count = context;
    }
    memcpy(g->history, tokens, (size_t)count * sizeof *tokens);
    return read_history(g, count, ret_logits);
}

enum hd_status hd_generator_next(struct hd_generator *g, int32_t token, const float **ret_logits)
{
    const int64_t context = g->job.context, half = context / 2;

    if (!is_token(g, token))
        return no_token(g, token);
    if (g->filled < context) {
        g->history[g->filled] = token;
        return advance(g, ONE, ret_logits);
    }
    memmove(g->history, g->history + context - half, (size_t)half * sizeof *g->history);
    g->history[half] = token;
    return read_history(g, half + 1, ret_logits);
}
