#include "train/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/loaded.h"

struct hd_generator {
    struct hd_loaded model;
    struct hd_chunk *chunk[2]; /* prefill, one token */
    struct hd_bound *bound[2];
    int32_t *history; /* [context] the tokens in the caches */
    int64_t filled;
};

enum { PREFILL, ONE };

/* ---- opening ---- */

static enum hd_status compile(struct hd_generator *g, int which)
{
    const struct hd_rec_shape shape = {.mode = HD_RECORD_DECODE,
                                       .B = 1,
                                       .S = which == PREFILL ? HD_PREFILL_ROWS : 1,
                                       .context = g->model.job.context};

    return hd_loaded_compile(&g->model, &shape, &g->chunk[which]);
}

static enum hd_status set_up(struct hd_generator *g, const struct hd_source_dirs *dirs)
{
    struct hd_job *job = &g->model.job;
    enum hd_status st = hd_loaded_read_job(&g->model, dirs);

    if (st)
        return st;
    if (!g->model.is_checkpoint && job->context > HD_GENERATE_CONTEXT_MAX)
        job->context = HD_GENERATE_CONTEXT_MAX; /* limits the memory of the caches */
    st = hd_loaded_declare(&g->model);
    for (int i = 0; !st && i < 2; i++)
        st = compile(g, i);
    if (!st)
        st = hd_loaded_open(&g->model);
    if (!st)
        st = hd_loaded_reserve(&g->model, g->chunk, 2);
    for (int i = 0; !st && i < 2; i++)
        st = hd_loaded_bind(&g->model, g->chunk[i], HD_CALL_D, &g->bound[i]);
    if (!st)
        st = hd_loaded_read_weights(&g->model, dirs);
    g->history = hd_arena_array(&g->model.arena, (size_t)job->context, sizeof *g->history);
    if (!st && !g->history)
        st = hd_err(HD_NO_MEMORY, "no memory for the context");
    return st;
}

enum hd_status hd_generator_open(const struct hd_source_dirs *dirs,
                                 const struct hd_backend_table *backend, int threads,
                                 struct hd_generator **ret_generator)
{
    struct hd_generator *g = calloc(1, sizeof *g);
    enum hd_status st;

    if (!g)
        return hd_err(HD_NO_MEMORY, "no memory for a generator");
    hd_loaded_init(&g->model, backend, threads);
    st = set_up(g, dirs);
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
    hd_loaded_done(&g->model);
    free(g);
}

int64_t hd_generator_vocab(const struct hd_generator *g)
{
    return g->model.job.vocab;
}

int64_t hd_generator_context(const struct hd_generator *g)
{
    return g->model.job.context;
}

const char *hd_generator_tokenizer(const struct hd_generator *g)
{
    return g->model.tokenizer;
}

const struct hd_job *hd_generator_job(const struct hd_generator *g)
{
    return g->model.is_checkpoint ? &g->model.job : NULL;
}

int64_t hd_generator_step(const struct hd_generator *g)
{
    return g->model.step;
}

/* ---- running ---- */

static int32_t *batch(const struct hd_generator *g, int which, enum hd_batch_field field)
{
    const struct hd_store *store = hd_chunk_find_batch(g->chunk[which], field);

    return store ? hd_store_address(&g->model.bases, store) : NULL;
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
    st = hd_run(g->model.runner, g->bound[which]);
    if (!st)
        st = hd_runner_join(g->model.runner);
    if (st)
        return st;
    g->filled += rows;
    *ret_logits =
        (const float *)hd_store_address(&g->model.bases, logits) + (rows - 1) * logits->columns;
    return check_finite(*ret_logits, g->model.job.vocab);
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
    return token >= 0 && token < g->model.job.vocab;
}

static enum hd_status no_token(const struct hd_generator *g, int32_t token)
{
    return hd_err(HD_INVALID, "token %d is outside the vocabulary of %lld", token,
                  (long long)g->model.job.vocab);
}

enum hd_status hd_generator_prompt(struct hd_generator *g, const int32_t *tokens, int64_t count,
                                   const float **ret_logits)
{
    const int64_t context = g->model.job.context;

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
    const int64_t context = g->model.job.context, half = context / 2;

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
