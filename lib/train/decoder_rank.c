#include "train/decoder_rank.h"

#include <assert.h>
#include <string.h>

enum { SHORT_ROWS = 16, SHORT_SLOTS = 4 };

/* ---- opening ---- */

static void add_program(struct decode_programs *p, int64_t B, int64_t S)
{
    assert(p->count < DECODER_PROGRAMS_MAX);
    p->list[p->count++] = (struct decode_program){.B = B, .S = S};
}

/* Adds programs for `rows` tokens of 1, 2, 4 .. slots sequences. */
static void add_programs(struct decode_programs *p, int64_t slots, int64_t rows)
{
    int64_t B = 1;

    for (; B < slots; B *= 2)
        add_program(p, B, rows);
    add_program(p, slots, rows);
}

static void choose_programs(const struct decoder_rank *d, struct decode_programs *p)
{
    add_programs(p, d->slots, 1);
    if (d->drafts_max) /* a token and the drafts behind it */
        add_programs(p, d->slots, 1 + d->drafts_max);
    add_program(p, 1, SHORT_ROWS);
    if (d->slots > 1)
        add_program(p, d->slots < SHORT_SLOTS ? d->slots : SHORT_SLOTS, SHORT_ROWS);
    add_program(p, 1, HD_DECODER_ROWS);
}

/* Returns the most rows of any program. */
static int64_t most_rows(const struct decode_programs *p)
{
    int64_t most = 0;

    for (int i = 0; i < p->count; i++)
        most = p->list[i].B * p->list[i].S > most ? p->list[i].B * p->list[i].S : most;
    return most;
}

static enum hd_status choose_decoder_context(struct decoder_rank *d, int64_t wish)
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

static enum hd_status choose_weights(struct decoder_rank *d, const char *wish)
{
    struct hd_job *job = &d->model.job;

    if (!wish)
        return HD_OK;
    if (d->model.is_checkpoint)
        return hd_err(HD_INVALID, "--weights is for a model folder; a checkpoint's weights are in "
                                  "the encoding of its job (model.quantization)");
    job->model_weights = hd_job_find_word(hd_job_model_weights_words, wish);
    if (!job->model_weights)
        return hd_err(HD_INVALID, "--weights: '%.20s' is not plain, nf4, int8 or fp8", wish);
    return HD_OK;
}

static enum hd_status bind(struct decoder_rank *d, struct decode_program *p, bool drafts)
{
    enum hd_status st = HD_OK;

    p->bound = hd_arena_array(&d->model.arena, (size_t)d->micro_batches, sizeof *p->bound);
    if (!p->bound)
        return hd_err(HD_NO_MEMORY, "no memory to bind a program");
    for (int k = 0; !st && k < d->micro_batches; k++) {
        const struct hd_bases bases = drafts ? hd_inference_rank_draft_bases(&d->model, k)
                                             : hd_inference_rank_bases(&d->model, k);

        st = hd_inference_rank_bind(&d->model, p->chunk, HD_CALL_D, &bases, &p->bound[k]);
    }
    return st;
}

/* Compiles the programs, and lists their chunks. input_rows 0: programs of the model; else of the
 * layer that drafts. */
static enum hd_status compile_programs(struct decoder_rank *d, struct decode_programs *programs,
                                       int64_t input_rows,
                                       struct hd_chunk *ret_chunks[DECODER_PROGRAMS_MAX])
{
    enum hd_status st = HD_OK;

    choose_programs(d, programs);
    for (int i = 0; !st && i < programs->count; i++) {
        struct decode_program *p = &programs->list[i];
        const struct hd_rec_shape shape = {.mode = HD_RECORD_DECODE,
                                           .B = p->B,
                                           .S = p->S,
                                           .slots = d->slots,
                                           .context = d->model.job.context,
                                           .first_position = hd_job_first_position(&d->model.job),
                                           .drafts = d->drafts_max > 0};

        p->drafts = input_rows > 0;
        st = hd_inference_rank_compile(&d->model, &shape, input_rows, &p->chunk);
        ret_chunks[i] = p->chunk;
    }
    return st;
}

static enum hd_status prepare_programs(struct decoder_rank *d,
                                       const struct hd_shm_control *connecting)
{
    struct hd_chunk *chunks[DECODER_PROGRAMS_MAX], *draft_chunks[DECODER_PROGRAMS_MAX];
    enum hd_status st = compile_programs(d, &d->programs, 0, chunks);

    if (!st && d->drafts_max && hd_inference_rank_has_head(&d->model))
        st = compile_programs(d, &d->drafts, most_rows(&d->programs), draft_chunks);
    if (!st)
        st = hd_inference_rank_open(&d->model, connecting);
    if (!st)
        st = hd_inference_rank_reserve(
            &d->model, &(struct hd_inference_chunks){chunks, d->programs.count},
            &(struct hd_inference_chunks){draft_chunks, d->drafts.count}, d->micro_batches);
    for (int i = 0; !st && i < d->programs.count; i++)
        st = bind(d, &d->programs.list[i], false);
    for (int i = 0; !st && i < d->drafts.count; i++)
        st = bind(d, &d->drafts.list[i], true);
    return st ? st : decoder_link_open(&d->model, d->micro_batches, &d->link);
}

/* Runs program S, which computes values that depend on the weights alone (norms of rows) into
 * caches that all programs read. */
static enum hd_status run_start(struct decoder_rank *d)
{
    const struct hd_chunk *chunk = d->programs.list[0].chunk;
    const struct hd_bases bases = hd_inference_rank_bases(&d->model, 0);
    struct hd_bound *bound = NULL;
    enum hd_status st;

    if (!chunk->program[HD_CALL_S].count)
        return HD_OK;
    st = hd_inference_rank_bind(&d->model, chunk, HD_CALL_S, &bases, &bound);
    if (!st)
        st = hd_run(d->model.open.runner, bound);
    return st ? st : hd_runner_synchronize(d->model.open.runner);
}

/* Returns true if tp ranks can share the model and each rank has at least one row of the head. */
static bool can_split(const struct hd_model_config *config, int64_t tp)
{
    return hd_model_tp_fits(config, tp) && (config->V + tp - 1) / tp * (tp - 1) < config->V;
}

/* Checks tp before hd_model_declare does, whose message would name keys of the job file instead of
 * --tp. */
static enum hd_status check_tp(const struct hd_job *job, int64_t tp)
{
    struct hd_model_config config;
    struct hd_text fit = {0};
    enum hd_status st = hd_model_config_from_job(job, &config);

    if (st || can_split(&config, tp))
        return st;
    for (int64_t n = 2; n <= HD_DECODER_RANKS_MAX; n++)
        if (can_split(&config, n))
            hd_text_add(&fit, "%s%lld", fit.len_bytes ? ", " : "", (long long)n);
    st =
        hd_err(HD_INVALID,
               "--tp: %lld ranks cannot share %lld heads, %lld key/value heads and %lld columns of "
               "the feed-forward evenly; use %s",
               (long long)tp, (long long)job->heads, (long long)job->kv_heads,
               (long long)job->ffn_hidden, fit.len_bytes && !fit.failed ? fit.data : "1");
    hd_text_free(&fit);
    return st;
}

static enum hd_status check_pp(const struct hd_job *job, int64_t pp)
{
    if (pp <= job->layers)
        return HD_OK;
    return hd_err(HD_INVALID,
                  "--pp: %lld stages, but the model has %lld blocks; use at most that many",
                  (long long)pp, (long long)job->layers);
}

/* Returns the bytes of keys and values that a rank keeps for one block. */
static int64_t cache_bytes(const struct decoder_rank *d)
{
    const struct hd_job *job = &d->model.job;
    const int64_t tp = d->model.tp, G = job->kv_heads > tp ? job->kv_heads / tp : 1;

    return 2 * d->slots * job->context * G * job->head_width *
           (int64_t)hd_dtype_size(hd_rank_program_compute_dtype(job));
}

/* Declares the model. Quantized weights may not allow this tp; that error names keys of the job
 * file, so --tp is prefixed. */
static enum hd_status declare_rank(struct decoder_rank *d)
{
    enum hd_status st = d->model.pp > 1 ? hd_inference_rank_cut(&d->model, cache_bytes(d)) : HD_OK;

    if (!st)
        st = hd_inference_rank_declare(&d->model);
    if (st == HD_INVALID && d->model.tp > 1)
        st = hd_err_prefix(st, "--tp %d does not fit this model (--pp may)", d->model.tp);
    return st;
}

static enum hd_status set_up_decoder(struct decoder_rank *d, const struct hd_decoder_options *o,
                                     const struct hd_shm_control *connecting)
{
    struct hd_arena *arena = &d->model.arena;
    enum hd_status st = hd_inference_rank_read_job(&d->model, &o->dirs);

    if (!st && hd_job_is_reward(&d->model.job))
        st = hd_err(HD_UNSUPPORTED,
                    "%s is a reward model, which rates answers and writes none: heddle eval %s "
                    "--data PAIRS.jsonl rates pairs; give the model that it was trained from to "
                    "generate",
                    o->dirs.dir, o->dirs.dir);
    if (!st)
        st = hd_inference_rank_choose_precision(&d->model.job, o->precision);
    if (!st)
        st = choose_weights(d, o->weights);
    if (!st)
        st = choose_decoder_context(d, o->context);
    if (!st)
        st = check_tp(&d->model.job, d->model.tp);
    if (!st)
        st = check_pp(&d->model.job, d->model.pp);
    if (!st)
        st = declare_rank(d);
    if (!st)
        st = prepare_programs(d, connecting);
    if (!st)
        st = hd_inference_rank_read_weights(&d->model, &o->dirs);
    if (!st)
        st = run_start(d);
    if (st)
        return st;
    d->fields =
        hd_arena_array(arena, (size_t)(most_rows(&d->programs) + 3 * d->slots), sizeof *d->fields);
    d->last = hd_arena_array(arena, (size_t)d->micro_batches, sizeof *d->last);
    return hd_arena_failed(arena) ? hd_err(HD_NO_MEMORY, "no memory for a batch") : HD_OK;
}

enum hd_status decoder_rank_open(struct decoder_rank *d, const struct hd_decoder_options *o,
                                 int number, const struct hd_shm_control *connecting)
{
    const int tp = o->tp > 1 ? o->tp : 1, pp = o->pp > 1 ? o->pp : 1, ranks = pp * tp;
    const int threads = o->threads / ranks + (number < o->threads % ranks);

    *d = (struct decoder_rank){
        .slots = o->slots > 0 ? o->slots : 1, .micro_batches = pp, .drafts_max = o->drafts};
    hd_inference_rank_init(&d->model, o->backend, threads > 0 ? threads : 1);
    d->model.drafts = o->drafts > 0;
    d->model.pp = pp;
    d->model.tp = tp;
    d->model.rank = number;
    return set_up_decoder(d, o, connecting);
}

void decoder_rank_close(struct decoder_rank *d)
{
    if (d->model.open.table) /* else the rank was never opened */
        hd_inference_rank_done(&d->model);
}

/* ---- running ---- */

/* Returns the program with the fewest rows that can compute B sequences of S tokens; NULL: none
 * is. */
static const struct decode_program *find_program(const struct decode_programs *programs, int64_t B,
                                                 int64_t S)
{
    const struct decode_program *best = NULL;

    for (int i = 0; i < programs->count; i++) {
        const struct decode_program *p = &programs->list[i];

        if (p->B >= B && p->S >= S && (!best || p->B * p->S < best->B * best->S))
            best = p;
    }
    return best;
}

/* Copies the first `count` values of d->fields to a batch field; does nothing if the program has no
 * such field. */
static enum hd_status put_field(struct decoder_rank *d, const struct decode_program *p,
                                int micro_batch, enum hd_batch_field field, int64_t count)
{
    const struct hd_store *store = hd_chunk_find_batch(p->chunk, field);
    const struct hd_bases bases = hd_inference_rank_bases(&d->model, micro_batch);

    if (!store)
        return HD_OK;
    return hd_staging_write(&d->model.open.staging, hd_store_address(&bases, store), d->fields,
                            count * (int64_t)sizeof *d->fields);
}

/* Fills the batch fields of a call with the tokens to read and their positions. Padding has token
 * 0, length 0 and the positions behind the last token, but no position beyond the context, where
 * the table of rotation angles ends. */
static enum hd_status put_rows(struct decoder_rank *d, const struct decode_program *p,
                               int micro_batch, const struct hd_decoder_rows *rows, int count)
{
    static const enum hd_batch_field names[] = {HD_BATCH_TOKENS, HD_BATCH_POSITIONS, HD_BATCH_INDEX,
                                                HD_BATCH_BEGINS, HD_BATCH_LENGTHS};
    const int64_t context = d->model.job.context;
    enum hd_status st = HD_OK;

    for (int f = 0; !st && f < 5; f++) {
        memset(d->fields, 0, (size_t)(p->B * p->S) * sizeof *d->fields);
        for (int b = 0; b < count; b++)
            for (int64_t i = 0; i < p->S; i++) {
                const int64_t place = rows[b].filled + i;

                d->fields[b * p->S + i] =
                    names[f] == HD_BATCH_TOKENS    ? (i < rows[b].count ? rows[b].tokens[i] : 0)
                    : names[f] == HD_BATCH_LENGTHS ? i < rows[b].count
                    : names[f] == HD_BATCH_BEGINS  ? 0
                    : names[f] == HD_BATCH_POSITIONS && place >= context ? (int32_t)context - 1
                                                                         : (int32_t)place;
            }
        for (int64_t r = 0; names[f] == HD_BATCH_POSITIONS && r < p->B * p->S; r++)
            d->fields[r] += (int32_t)hd_job_first_position(&d->model.job);
        st = put_field(d, p, micro_batch, names[f], p->B * p->S);
    }
    return st;
}

/* Writes, per sequence of the call, its cache slot and the slot's number of tokens before and after
 * the call. A padding sequence, or one without tokens, has its slot full before (so it writes no key
 * or value) and 0 tokens after (so it reads none). */
static enum hd_status put_filled(struct decoder_rank *d, const struct decode_program *p,
                                 int micro_batch, const struct hd_decoder_rows *rows, int count)
{
    int32_t *before = d->fields, *after = before + p->B, *slot = after + p->B;

    for (int b = 0; b < p->B; b++) {
        const bool reads = b < count && rows[b].count > 0;

        before[b] = (int32_t)(reads ? rows[b].filled : d->model.job.context);
        after[b] = reads ? (int32_t)(rows[b].filled + rows[b].count) : 0;
        slot[b] = reads ? rows[b].slot : 0;
    }
    return put_field(d, p, micro_batch, HD_BATCH_FILLED, 3 * p->B);
}

/* Returns the most tokens of a sequence of the part. */
static int64_t most_tokens(const struct decoder_part *part)
{
    int64_t most = 0;

    for (int b = 0; b < part->count; b++)
        most = part->rows[b].count > most ? part->rows[b].count : most;
    return most;
}

static const struct decode_program *program_of(const struct decode_programs *programs,
                                               const struct decoder_part *part)
{
    const struct decode_program *p = find_program(programs, part->count, most_tokens(part));

    assert(p);
    return p;
}

static enum hd_status run_part(struct decoder_rank *d, const struct decoder_part *part,
                               int micro_batch)
{
    const struct decode_program *p = d->last[micro_batch];
    enum hd_status st = put_rows(d, p, micro_batch, part->rows, part->count);

    if (!st)
        st = put_filled(d, p, micro_batch, part->rows, part->count);
    if (!st)
        st = decoder_link_await(&d->link, &d->model, micro_batch);
    if (!st)
        st = hd_run(d->model.open.runner, p->bound[micro_batch]);
    return st ? st : decoder_link_send(&d->link, &d->model, p->chunk, micro_batch);
}

enum hd_status decoder_rank_run(struct decoder_rank *d, const struct decoder_part *parts, int count)
{
    enum hd_status st = HD_OK;

    assert(count <= d->micro_batches);
    for (int k = 0; !st && k < count; k++) {
        d->last[k] = program_of(&d->programs, &parts[k]);
        st = decoder_link_receive(&d->link, &d->model, d->last[k]->chunk, k);
    }
    for (int k = 0; !st && k < count; k++)
        st = run_part(d, &parts[k], k);
    return st ? st : hd_runner_synchronize(d->model.open.runner);
}

/* Writes, per row of a draft, the index of the hidden row that it continues, and per sequence the
 * index of its last row. The lane's hidden rows are in the order of the program `before`. */
static enum hd_status put_taken(struct decoder_rank *d, const struct decode_program *p,
                                int micro_batch, const struct decoder_part *part,
                                const struct decode_program *before)
{
    enum hd_status st;

    memset(d->fields, 0, (size_t)(p->B * p->S) * sizeof *d->fields);
    for (int b = 0; b < part->count; b++)
        for (int64_t i = 0; i < part->rows[b].count; i++)
            d->fields[b * p->S + i] = (int32_t)(b * before->S + part->from[b] + i);
    st = put_field(d, p, micro_batch, HD_BATCH_TAKEN, p->B * p->S);
    memset(d->fields, 0, (size_t)p->B * sizeof *d->fields);
    for (int b = 0; b < part->count; b++)
        if (part->rows[b].count)
            d->fields[b] = (int32_t)(b * p->S + part->rows[b].count - 1);
    return st ? st : put_field(d, p, micro_batch, HD_BATCH_LAST, p->B);
}

static enum hd_status draft_part(struct decoder_rank *d, const struct decoder_part *part,
                                 int micro_batch)
{
    const struct decode_program *before = d->last[micro_batch];
    const struct decode_program *p = program_of(&d->drafts, part);
    enum hd_status st = put_rows(d, p, micro_batch, part->rows, part->count);

    d->last[micro_batch] = p;
    if (!st)
        st = put_filled(d, p, micro_batch, part->rows, part->count);
    if (!st)
        st = put_taken(d, p, micro_batch, part, before);
    return st ? st : hd_run(d->model.open.runner, p->bound[micro_batch]);
}

enum hd_status decoder_rank_draft(struct decoder_rank *d, const struct decoder_part *parts,
                                  int count)
{
    enum hd_status st = HD_OK;

    if (!hd_inference_rank_has_head(&d->model))
        return HD_OK;
    for (int k = 0; !st && k < count; k++)
        if (most_tokens(&parts[k]))
            st = draft_part(d, &parts[k], k);
    return st ? st : hd_runner_synchronize(d->model.open.runner);
}

enum hd_status decoder_rank_logits(struct decoder_rank *d, int part, int index, int64_t row,
                                   float *ret_all)
{
    const struct decode_program *p = d->last[part];
    const struct hd_store *store = hd_chunk_find_kind(p->chunk, HD_STORE_OUTPUT);
    const struct hd_param *head = &d->model.registry.params[d->model.model.head];
    const struct hd_bases bases = hd_inference_rank_bases(&d->model, part);
    const int64_t bytes = head->real[0] * (int64_t)sizeof(float);
    const float *own;

    if (!hd_inference_rank_has_head(&d->model))
        return HD_OK;
    own = (const float *)hd_store_address(&bases, store) +
          (p->drafts ? index : index * p->S + row) * store->columns;
    if (d->model.open.table->device)
        return hd_staging_read(&d->model.open.staging, ret_all + head->start[0], own, bytes);
    memcpy(ret_all + head->start[0], own, (size_t)bytes);
    return HD_OK;
}
