#include "train/decoder.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "train/decoder_rank.h"

/* Task that all ranks do next. */
enum decoder_task { TASK_OPEN, TASK_RUN, TASK_DRAFT, TASK_LOGITS, TASK_END };

enum {
    PART_SEQUENCES =
        /* fewest sequences per part of a call; a smaller part would take as long as one of twice
         * its size */
    16
};

/* Rank 0 works in the caller's thread, the others in threads of their own. The caller publishes a
 * task, runs rank 0's share of it, and waits for the others. */
struct hd_decoder {
    struct decoder_rank *ranks; /* [world] */
    int world, pp;
    float *logits;                            /* [V] */
    const struct hd_decoder_options *options; /* set only while the decoder opens */
    struct hd_shm_control *connecting;
    struct follower {
        struct hd_decoder *decoder;
        int rank;
        pthread_t thread;
        bool started;
        uint64_t done;         /* number of the newest task that this follower has finished */
        struct hd_error error; /* result of the follower's newest task */
    } * followers;             /* [world - 1] */
    pthread_mutex_t lock;
    pthread_cond_t given, taken;
    uint64_t number; /* number of the current task, counted from 1 */
    enum decoder_task task;
    /* [pp], the parts into which the last hd_decoder_run was divided */
    struct decoder_part *parts;
    /* [pp], consecutive pieces of one long prompt, one piece per part */
    struct hd_decoder_rows *pieces;
    int part_count;
    /* the sequences of the last hd_decoder_draft, in the order of the last hd_decoder_run: their rows,
     * and what each continues; [slots], or [pp] with pieces of a prompt, one a part */
    struct hd_decoder_rows *draft_rows;
    int64_t *draft_from;
    /* [pp], rows of a part's last call before the first one of this part, if a prompt is divided among
     * the parts */
    int64_t *piece_begins;
    bool in_pieces; /* true: the last hd_decoder_run divided one prompt */
    /* part that has the requested logits; index of the sequence within that part */
    int part, index;
    /* index, among the tokens of that sequence in the call, of the token whose logits are
     * requested */
    int64_t row;
};

static const struct hd_inference_rank *model_of(const struct hd_decoder *d)
{
    return &d->ranks[0].model;
}

/* ---- the ranks ---- */

static enum hd_status do_task(struct hd_decoder *d, int rank)
{
    struct decoder_rank *r = &d->ranks[rank];

    switch (d->task) {
    case TASK_OPEN:
        return decoder_rank_open(r, d->options, rank, d->connecting);
    case TASK_RUN:
        return decoder_rank_run(r, d->parts, d->part_count);
    case TASK_DRAFT:
        return decoder_rank_draft(r, d->parts, d->part_count);
    case TASK_LOGITS:
        return decoder_rank_logits(r, d->part, d->index, d->row, d->logits);
    case TASK_END:
        decoder_rank_close(r);
        return HD_OK;
    }
    return HD_OK;
}

/* Runs the current task on one rank. A failure marks the rank dead, which ends the waits of the
 * other ranks. */
static enum hd_status do_part(struct hd_decoder *d, int rank)
{
    const enum hd_status st = do_task(d, rank);

    if (st && d->connecting)
        hd_shm_control_mark_dead(d->connecting, rank, hd_err_message());
    return st;
}

static void *follow(void *argument)
{
    struct follower *f = argument;
    struct hd_decoder *d = f->decoder;
    bool ended = false;

    for (uint64_t done = 0; !ended; done++) {
        struct hd_error error;

        (void)pthread_mutex_lock(&d->lock);
        while (d->number == done)
            (void)pthread_cond_wait(&d->given, &d->lock);
        (void)pthread_mutex_unlock(&d->lock);
        hd_err_save(do_part(d, f->rank), &error);
        ended = d->task == TASK_END;
        (void)pthread_mutex_lock(&d->lock);
        f->error = error;
        f->done = done + 1;
        (void)pthread_cond_signal(&d->taken);
        (void)pthread_mutex_unlock(&d->lock);
    }
    return NULL;
}

/* Returns the first rank's error that is not HD_ABORTED: the other ranks only report that a rank
 * has failed, the failed rank's own message says why. */
static enum hd_status first_of(enum hd_status own, const struct hd_decoder *d)
{
    const struct hd_error *reported = NULL;
    struct hd_error error;

    hd_err_save(own, &error);
    if (own)
        reported = &error;
    for (int r = 1; r < d->world; r++) {
        const struct hd_error *of = &d->followers[r - 1].error;

        if (of->status && (!reported || reported->status == HD_ABORTED))
            reported = of;
    }
    return reported ? hd_err_restore(reported) : HD_OK;
}

/* Runs the task on all ranks and waits for all of them. */
static enum hd_status all_do(struct hd_decoder *d, enum decoder_task task)
{
    enum hd_status st;

    (void)pthread_mutex_lock(&d->lock);
    d->task = task;
    d->number++;
    (void)pthread_cond_broadcast(&d->given);
    (void)pthread_mutex_unlock(&d->lock);
    st = do_part(d, 0);
    (void)pthread_mutex_lock(&d->lock);
    for (int r = 1; r < d->world; r++)
        while (d->followers[r - 1].started && d->followers[r - 1].done != d->number)
            (void)pthread_cond_wait(&d->taken, &d->lock);
    (void)pthread_mutex_unlock(&d->lock);
    return first_of(st, d);
}

/* ---- opening ---- */

static enum hd_status start_followers(struct hd_decoder *d)
{
    enum hd_status st = d->world > 1 ? hd_shm_control_new(d->world, &d->connecting) : HD_OK;

    for (int r = 1; !st && r < d->world; r++) {
        struct follower *f = &d->followers[r - 1];

        *f = (struct follower){.decoder = d, .rank = r};
        f->started = pthread_create(&f->thread, NULL, follow, f) == 0;
        if (!f->started)
            st = hd_err(HD_NO_MEMORY, "--tp, --pp: cannot start a thread for rank %d", r);
    }
    return st;
}

static enum hd_status open_ranks(struct hd_decoder *d, const struct hd_decoder_options *options)
{
    enum hd_status st = start_followers(d);

    d->options = options;
    if (!st)
        st = all_do(d, TASK_OPEN);
    d->options = NULL;
    if (st)
        return st;
    d->logits = calloc((size_t)model_of(d)->job.vocab, sizeof *d->logits);
    return d->logits ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for logits");
}

static enum hd_status allocate(struct hd_decoder *d, int slots)
{
    const size_t most = (size_t)(slots > d->pp ? slots : d->pp);

    d->ranks = calloc((size_t)d->world, sizeof *d->ranks);
    d->followers = calloc((size_t)d->world, sizeof *d->followers);
    d->parts = calloc((size_t)d->pp, sizeof *d->parts);
    d->pieces = calloc((size_t)d->pp, sizeof *d->pieces);
    d->draft_rows = calloc(most, sizeof *d->draft_rows);
    d->draft_from = calloc(most, sizeof *d->draft_from);
    d->piece_begins = calloc((size_t)d->pp, sizeof *d->piece_begins);
    return d->ranks && d->followers && d->parts && d->pieces && d->draft_rows && d->draft_from &&
                   d->piece_begins
               ? HD_OK
               : hd_err(HD_NO_MEMORY, "no memory for a decoder");
}

enum hd_status hd_decoder_open(const struct hd_decoder_options *options,
                               struct hd_decoder **ret_decoder)
{
    const int tp = options->tp > 1 ? options->tp : 1, pp = options->pp > 1 ? options->pp : 1;
    struct hd_decoder *d;
    enum hd_status st;

    assert(options->slots <= HD_DECODER_SLOTS_MAX && options->drafts >= 0 &&
           options->drafts <= HD_DECODER_DRAFTS_MAX);
    if (tp > HD_DECODER_RANKS_MAX / pp)
        return hd_err(HD_INVALID, "--tp %d x --pp %d: at most %d ranks can share a model", tp, pp,
                      (int)HD_DECODER_RANKS_MAX);
    d = calloc(1, sizeof *d);
    if (!d)
        return hd_err(HD_NO_MEMORY, "no memory for a decoder");
    d->world = tp * pp;
    d->pp = pp;
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->given, NULL);
    (void)pthread_cond_init(&d->taken, NULL);
    st = allocate(d, options->slots);
    if (!st)
        st = open_ranks(d, options);
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
    if (d->ranks && d->followers)
        (void)all_do(d, TASK_END);
    for (int r = 1; d->followers && r < d->world; r++)
        if (d->followers[r - 1].started)
            (void)pthread_join(d->followers[r - 1].thread, NULL);
    hd_shm_control_free(d->connecting);
    (void)pthread_cond_destroy(&d->taken);
    (void)pthread_cond_destroy(&d->given);
    (void)pthread_mutex_destroy(&d->lock);
    free(d->followers);
    free(d->ranks);
    free(d->parts);
    free(d->pieces);
    free(d->draft_rows);
    free(d->draft_from);
    free(d->piece_begins);
    free(d->logits);
    free(d);
}

int64_t hd_decoder_vocab(const struct hd_decoder *d)
{
    return model_of(d)->job.vocab;
}

int64_t hd_decoder_context(const struct hd_decoder *d)
{
    return model_of(d)->job.context;
}

int hd_decoder_slots(const struct hd_decoder *d)
{
    return d->ranks[0].slots;
}

int hd_decoder_ranks(const struct hd_decoder *d)
{
    return d->world;
}

int hd_decoder_drafts(const struct hd_decoder *d)
{
    return d->ranks[0].drafts_max;
}

int64_t hd_decoder_memory_bytes(const struct hd_decoder *d, int rank)
{
    return d->ranks[rank].model.memory_bytes;
}

const char *hd_decoder_tokenizer(const struct hd_decoder *d)
{
    return model_of(d)->tokenizer;
}

const struct hd_job *hd_decoder_job(const struct hd_decoder *d)
{
    return &model_of(d)->job;
}

bool hd_decoder_is_checkpoint(const struct hd_decoder *d)
{
    return model_of(d)->is_checkpoint;
}

int64_t hd_decoder_step(const struct hd_decoder *d)
{
    return model_of(d)->step;
}

/* ---- running ---- */

int64_t hd_decoder_rows_max(const struct hd_decoder *d, int slots)
{
    int64_t most = 0;

    for (int i = 0; i < d->ranks[0].programs.count; i++) {
        const struct decode_program *p = &d->ranks[0].programs.list[i];

        if (p->B >= slots && p->S > most)
            most = p->S;
    }
    return slots == 1 ? most * d->pp : most;
}

static enum hd_status check_rows(const struct hd_decoder *d, const struct hd_decoder_rows *r)
{
    const struct hd_job *job = &model_of(d)->job;

    if (r->filled + r->count > job->context)
        return hd_err(HD_INVALID, "%lld tokens are more than the context of %lld",
                      (long long)(r->filled + r->count), (long long)job->context);
    for (int64_t i = 0; i < r->count; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= job->vocab)
            return hd_err(HD_INVALID, "token %d is outside the vocabulary of %lld", r->tokens[i],
                          (long long)job->vocab);
    return HD_OK;
}

/* Splits a long prompt into consecutive pieces of at most 64 tokens, one per part. */
static void part_tokens(struct hd_decoder *d, const struct hd_decoder_rows *rows)
{
    for (int64_t at = 0; at < rows->count; at += HD_DECODER_ROWS) {
        struct hd_decoder_rows *piece = &d->pieces[d->part_count];

        d->piece_begins[d->part_count] = at;
        *piece = *rows;
        piece->filled += at;
        piece->tokens += at;
        piece->count = rows->count - at < HD_DECODER_ROWS ? rows->count - at : HD_DECODER_ROWS;
        d->parts[d->part_count++] = (struct decoder_part){.rows = piece, .count = 1};
    }
}

/* Divides the sequences of a call into parts, so that all pipeline stages can work at the same
 * time; makes one part if there are too few sequences. */
static void choose_parts(struct hd_decoder *d, const struct hd_decoder_rows *rows, int count)
{
    const int most = count / PART_SEQUENCES, parts = most < d->pp ? most : d->pp;

    d->part_count = 0;
    d->in_pieces = count == 1 && rows->count > HD_DECODER_ROWS;
    if (d->in_pieces) {
        part_tokens(d, rows);
        return;
    }
    for (int k = 0, at = 0; at < count; k++) {
        const int n = parts > 1 ? count / parts + (k < count % parts) : count;

        d->parts[d->part_count++] = (struct decoder_part){.rows = rows + at, .count = n};
        at += n;
    }
}

enum hd_status hd_decoder_run(struct hd_decoder *d, const struct hd_decoder_rows *rows, int count)
{
    enum hd_status st = HD_OK;

    for (int b = 0; !st && b < count; b++)
        st = check_rows(d, &rows[b]);
    if (st)
        return st;
    choose_parts(d, rows, count);
    return all_do(d, TASK_RUN);
}

/* Checks all logits, although one NaN in the weights usually makes every logit NaN. */
static enum hd_status check_finite(const float *logits, int64_t V)
{
    for (int64_t v = 0; v < V; v++)
        if (!isfinite(logits[v]))
            return hd_err(HD_CORRUPT,
                          "the model's output is not finite; its weights are damaged: see "
                          "heddle checkpoint verify, or take an older checkpoint");
    return HD_OK;
}

static enum hd_status read_logits(struct hd_decoder *d, int part, int index, int64_t row,
                                  const float **ret_logits)
{
    enum hd_status st;

    d->part = part;
    d->index = index;
    d->row = row;
    st = all_do(d, TASK_LOGITS);
    *ret_logits = d->logits;
    return st ? st : check_finite(d->logits, model_of(d)->job.vocab);
}

/* Returns the part that has sequence *index of the call, and sets *index to its index there. */
static int part_of(const struct hd_decoder *d, int *index)
{
    int part = 0;

    for (; *index >= d->parts[part].count; part++)
        *index -= d->parts[part].count;
    return part;
}

enum hd_status hd_decoder_logits(struct hd_decoder *d, int index, int64_t row,
                                 const float **ret_logits)
{
    int part;

    if (row >= HD_DECODER_ROWS) /* a long prompt, see part_tokens */
        return read_logits(d, (int)(row / HD_DECODER_ROWS), 0, row % HD_DECODER_ROWS, ret_logits);
    part = part_of(d, &index);
    return read_logits(d, part, index, row, ret_logits);
}

/* ---- drafting ---- */

/* Sets the rows of a draft in entry `entry`, of `count` rows from `first` of the draft on. */
static void put_draft(struct hd_decoder *d, int entry, const struct hd_decoder_rows *was,
                      const struct hd_draft_rows *draft, int64_t first, int64_t count, int64_t from)
{
    d->draft_rows[entry] = (struct hd_decoder_rows){.slot = was->slot,
                                                    .filled = draft->filled + first,
                                                    .tokens = draft->tokens + first,
                                                    .count = count};
    d->draft_from[entry] = from;
}

/* Divides a draft behind a prompt in pieces like the prompt: each part continues its own rows. */
static void draft_pieces(struct hd_decoder *d, const struct hd_draft_rows *draft)
{
    for (int k = 0; k < d->part_count; k++) {
        const int64_t begin = d->piece_begins[k], end = begin + d->parts[k].rows->count;
        const int64_t from = draft->from > begin ? draft->from : begin;
        const int64_t to = draft->from + draft->count < end ? draft->from + draft->count : end;
        const int64_t first = from - draft->from;

        put_draft(d, k, d->parts[k].rows, draft, to > from ? first : 0, to > from ? to - from : 0,
                  to > from ? from - begin : 0);
        d->piece_begins[k] = first;
        d->parts[k] =
            (struct decoder_part){.rows = &d->draft_rows[k], .count = 1, .from = &d->draft_from[k]};
    }
}

enum hd_status hd_decoder_draft(struct hd_decoder *d, const struct hd_draft_rows *drafts, int count)
{
    int at = 0;

    assert(count == 1 || !d->in_pieces);
    (void)count; /* without assertions */
    if (d->in_pieces) {
        draft_pieces(d, drafts);
        return all_do(d, TASK_DRAFT);
    }
    for (int k = 0; k < d->part_count; k++) {
        struct decoder_part *part = &d->parts[k];

        for (int b = 0; b < part->count; b++)
            put_draft(d, at + b, &part->rows[b], &drafts[at + b], 0, drafts[at + b].count,
                      drafts[at + b].from);
        part->rows = &d->draft_rows[at];
        part->from = &d->draft_from[at];
        at += part->count;
    }
    assert(at == count);
    return all_do(d, TASK_DRAFT);
}

enum hd_status hd_decoder_draft_logits(struct hd_decoder *d, int index, const float **ret_logits)
{
    int part = 0;

    if (d->in_pieces) {
        for (int k = 0; k < d->part_count; k++)
            part = d->parts[k].rows->count ? k : part;
        return read_logits(d, part, 0, 0, ret_logits);
    }
    part = part_of(d, &index);
    return read_logits(d, part, index, 0, ret_logits);
}
