#include "train/decoder.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/loaded.h"

enum { PROGRAMS_MAX = 16, SHORT_ROWS = 16, SHORT_SLOTS = 4 };

struct decode_program {
    int64_t B, S; /* sequences, tokens of each */
    struct hd_chunk *chunk;
    struct hd_bound *bound;
};

struct hd_decoder {
    struct hd_loaded model;
    struct decode_program programs[PROGRAMS_MAX];
    int program_count, slots;
    const struct decode_program *last; /* of the last call; NULL: none has been */
    int32_t *fields;                   /* [rows + 3 * slots], for the batch */
    float *logits;                     /* [V], of a device; else NULL */
};

/* ---- opening ---- */

static void add_program(struct hd_decoder *d, int64_t B, int64_t S)
{
    assert(d->program_count < PROGRAMS_MAX);
    d->programs[d->program_count++] = (struct decode_program){.B = B, .S = S};
}

static void choose_programs(struct hd_decoder *d)
{
    int64_t B = 1;

    for (; B < d->slots; B *= 2)
        add_program(d, B, 1);
    add_program(d, d->slots, 1);
    add_program(d, 1, SHORT_ROWS);
    if (d->slots > 1)
        add_program(d, d->slots < SHORT_SLOTS ? d->slots : SHORT_SLOTS, SHORT_ROWS);
    add_program(d, 1, HD_DECODER_ROWS);
}

static enum hd_status choose_context(struct hd_decoder *d, int64_t wish)
{
    struct hd_job *job = &d->model.job;

    if (wish > job->context)
        return hd_err(HD_INVALID, "--context: %lld is more than the model's context of %lld",
                      (long long)wish, (long long)job->context);
    if (wish)
        job->context = wish;
    else if (!d->model.is_checkpoint && job->context > HD_DECODER_CONTEXT_MAX)
        job->context = HD_DECODER_CONTEXT_MAX; /* limits the memory of the caches */
    return HD_OK;
}

static enum hd_status choose_weights(struct hd_decoder *d, const char *wish)
{
    struct hd_job *job = &d->model.job;

    if (!wish)
        return HD_OK;
    if (d->model.is_checkpoint)
        return hd_err(HD_INVALID, "--weights is for a model folder; a checkpoint's weights are in "
                                  "the encoding of its job (model.weights)");
    if (hd_quant_of_word(wish) == HD_QUANT_COUNT)
        return hd_err(HD_INVALID, "--weights: '%.20s' is not plain, nf4, int8 or fp8", wish);
    (void)snprintf(job->model_weights, sizeof job->model_weights, "%s", wish);
    return HD_OK;
}

static enum hd_status prepare(struct hd_decoder *d)
{
    struct hd_chunk *chunks[PROGRAMS_MAX];
    enum hd_status st = HD_OK;

    choose_programs(d);
    for (int i = 0; !st && i < d->program_count; i++) {
        struct decode_program *p = &d->programs[i];
        const struct hd_rec_shape shape = {.mode = HD_RECORD_DECODE,
                                           .B = p->B,
                                           .S = p->S,
                                           .slots = d->slots,
                                           .context = d->model.job.context};

        st = hd_loaded_compile(&d->model, &shape, &p->chunk);
        chunks[i] = p->chunk;
    }
    if (!st)
        st = hd_loaded_open(&d->model);
    if (!st)
        st = hd_loaded_reserve(&d->model, chunks, d->program_count);
    for (int i = 0; !st && i < d->program_count; i++)
        st = hd_loaded_bind(&d->model, d->programs[i].chunk, HD_CALL_D, &d->programs[i].bound);
    return st;
}

static enum hd_status set_up(struct hd_decoder *d, const struct hd_decoder_options *o)
{
    struct hd_arena *arena = &d->model.arena;
    enum hd_status st = hd_loaded_read_job(&d->model, &o->dirs);

    if (!st && hd_job_is_reward(&d->model.job))
        st = hd_err(HD_UNSUPPORTED,
                    "%s is a reward model, which rates answers and writes none: heddle eval %s "
                    "--data PAIRS.jsonl rates pairs; give the model that it was trained from to "
                    "generate",
                    o->dirs.dir, o->dirs.dir);
    if (!st)
        st = hd_loaded_choose_precision(&d->model.job, o->precision);
    if (!st)
        st = choose_weights(d, o->weights);
    if (!st)
        st = choose_context(d, o->context);
    if (!st)
        st = hd_loaded_declare(&d->model);
    if (!st)
        st = prepare(d);
    if (!st)
        st = hd_loaded_read_weights(&d->model, &o->dirs);
    if (st)
        return st;
    d->fields = hd_arena_array(arena, (size_t)(HD_DECODER_ROWS + 3 * d->slots), sizeof *d->fields);
    if (o->backend->device)
        d->logits = hd_arena_array(arena, (size_t)d->model.job.vocab, sizeof *d->logits);
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for a batch") : HD_OK;
}

enum hd_status hd_decoder_open(const struct hd_decoder_options *options,
                               struct hd_decoder **ret_decoder)
{
    struct hd_decoder *d = calloc(1, sizeof *d);
    enum hd_status st;

    if (!d)
        return hd_err(HD_NO_MEMORY, "no memory for a decoder");
    assert(options->slots <= HD_DECODER_SLOTS_MAX);
    d->slots = options->slots > 0 ? options->slots : 1;
    hd_loaded_init(&d->model, options->backend, options->threads);
    st = set_up(d, options);
    if (st) {
        struct hd_error error;

        hd_err_save(st, &error);
        hd_decoder_close(d);
        return hd_err_restore(&error);
    }
    *ret_decoder = d;
    return HD_OK;
}

void hd_decoder_close(struct hd_decoder *d)
{
    if (!d)
        return;
    hd_loaded_done(&d->model);
    free(d);
}

int64_t hd_decoder_vocab(const struct hd_decoder *d)
{
    return d->model.job.vocab;
}

int64_t hd_decoder_context(const struct hd_decoder *d)
{
    return d->model.job.context;
}

int hd_decoder_slots(const struct hd_decoder *d)
{
    return d->slots;
}

int64_t hd_decoder_memory_bytes(const struct hd_decoder *d)
{
    return d->model.memory_bytes;
}

const char *hd_decoder_tokenizer(const struct hd_decoder *d)
{
    return d->model.tokenizer;
}

const struct hd_job *hd_decoder_job(const struct hd_decoder *d)
{
    return &d->model.job;
}

bool hd_decoder_is_checkpoint(const struct hd_decoder *d)
{
    return d->model.is_checkpoint;
}

int64_t hd_decoder_step(const struct hd_decoder *d)
{
    return d->model.step;
}

/* ---- running ---- */

/* The program with the fewest rows that has room; NULL: there is none. */
static const struct decode_program *find_program(const struct hd_decoder *d, int64_t B, int64_t S)
{
    const struct decode_program *best = NULL;

    for (int i = 0; i < d->program_count; i++) {
        const struct decode_program *p = &d->programs[i];

        if (p->B >= B && p->S >= S && (!best || p->B * p->S < best->B * best->S))
            best = p;
    }
    return best;
}

int64_t hd_decoder_rows_max(const struct hd_decoder *d, int slots)
{
    int64_t most = 0;

    for (int i = 0; i < d->program_count; i++)
        if (d->programs[i].B >= slots && d->programs[i].S > most)
            most = d->programs[i].S;
    return most;
}

static enum hd_status check_rows(const struct hd_decoder *d, const struct hd_decoder_rows *r)
{
    const struct hd_job *job = &d->model.job;

    if (r->filled + r->count > job->context)
        return hd_err(HD_INVALID, "%lld tokens are more than the context of %lld",
                      (long long)(r->filled + r->count), (long long)job->context);
    for (int64_t i = 0; i < r->count; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= job->vocab)
            return hd_err(HD_INVALID, "token %d is outside the vocabulary of %lld", r->tokens[i],
                          (long long)job->vocab);
    return HD_OK;
}

/* Copies values [count] of d->fields to a field of the batch, if the program has it. */
static enum hd_status put_field(struct hd_decoder *d, const struct decode_program *p,
                                enum hd_batch_field field, int64_t count)
{
    const struct hd_store *store = hd_chunk_find_batch(p->chunk, field);

    if (!store)
        return HD_OK;
    return hd_staging_write(&d->model.staging, hd_store_address(&d->model.bases, store), d->fields,
                            count * (int64_t)sizeof *d->fields);
}

/* Padding has token 0 and the places behind the tokens. Places of the table of angles end with the
 * context. */
static enum hd_status put_rows(struct hd_decoder *d, const struct decode_program *p,
                               const struct hd_decoder_rows *rows, int count)
{
    static const enum hd_batch_field names[] = {HD_BATCH_TOKENS, HD_BATCH_POSITIONS,
                                                HD_BATCH_INDEX};
    const int64_t context = d->model.job.context;
    enum hd_status st = HD_OK;

    for (int f = 0; !st && f < 3; f++) {
        memset(d->fields, 0, (size_t)(p->B * p->S) * sizeof *d->fields);
        for (int b = 0; b < count; b++)
            for (int64_t i = 0; i < p->S; i++) {
                const int64_t place = rows[b].filled + i;

                d->fields[b * p->S + i] =
                    names[f] == HD_BATCH_TOKENS ? (i < rows[b].count ? rows[b].tokens[i] : 0)
                    : names[f] == HD_BATCH_POSITIONS && place >= context ? (int32_t)context - 1
                                                                         : (int32_t)place;
            }
        st = put_field(d, p, names[f], p->B * p->S);
    }
    return st;
}

/* A sequence of padding alone has a full slot: nothing is written, and nothing read. */
static enum hd_status put_filled(struct hd_decoder *d, const struct decode_program *p,
                                 const struct hd_decoder_rows *rows, int count)
{
    int32_t *before = d->fields, *after = before + p->B, *slot = after + p->B;

    for (int b = 0; b < p->B; b++) {
        before[b] = (int32_t)(b < count ? rows[b].filled : d->model.job.context);
        after[b] = b < count ? (int32_t)(rows[b].filled + rows[b].count) : 0;
        slot[b] = b < count ? rows[b].slot : 0;
    }
    return put_field(d, p, HD_BATCH_FILLED, 3 * p->B);
}

enum hd_status hd_decoder_run(struct hd_decoder *d, const struct hd_decoder_rows *rows, int count)
{
    const struct decode_program *p;
    int64_t most = 1;
    enum hd_status st = HD_OK;

    for (int b = 0; !st && b < count; b++) {
        most = rows[b].count > most ? rows[b].count : most;
        st = check_rows(d, &rows[b]);
    }
    p = find_program(d, count, most);
    assert(st || p);
    if (!st)
        st = put_rows(d, p, rows, count);
    if (!st)
        st = put_filled(d, p, rows, count);
    if (!st)
        st = hd_run(d->model.runner, p->bound);
    if (!st)
        st = hd_runner_join(d->model.runner);
    if (!st)
        d->last = p;
    return st;
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

enum hd_status hd_decoder_logits(struct hd_decoder *d, int index, int64_t row,
                                 const float **ret_logits)
{
    const struct hd_store *store = hd_chunk_find_kind(d->last->chunk, HD_STORE_OUTPUT);
    const int64_t V = d->model.job.vocab;
    const float *logits = (const float *)hd_store_address(&d->model.bases, store) +
                          (index * d->last->S + row) * store->columns;
    enum hd_status st = HD_OK;

    if (d->logits) {
        st = hd_staging_read(&d->model.staging, d->logits, logits, V * (int64_t)sizeof *logits);
        logits = d->logits;
    }
    if (!st)
        st = check_finite(logits, V);
    *ret_logits = logits;
    return st;
}
