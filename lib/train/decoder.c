#include "train/decoder.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "train/decoder_rank.h"

/* What all ranks do next. */
enum decoder_task { TASK_OPEN, TASK_RUN, TASK_LOGITS, TASK_END };

/* Rank 0 works in the caller's thread, the others in threads of their own. The caller gives a task,
 * does its own part, and waits for the others. */
struct hd_decoder {
    struct decoder_rank *ranks; /* [tp] */
    int tp;
    float *logits;                            /* [V] */
    const struct hd_decoder_options *options; /* while it opens */
    struct hd_shm_control *meeting;
    struct follower {
        struct hd_decoder *decoder;
        int rank;
        pthread_t thread;
        bool started;
        uint64_t done;         /* the number of the newest task that it has done, .. */
        struct hd_error error; /* .. and what came of it */
    } * followers;             /* [tp - 1] */
    pthread_mutex_t lock;
    pthread_cond_t given, taken;
    uint64_t number; /* of the task */
    enum decoder_task task;
    const struct hd_decoder_rows *rows;
    int count, index;
    int64_t row;
};

static const struct hd_loaded *model_of(const struct hd_decoder *d)
{
    return &d->ranks[0].model;
}

/* ---- the ranks ---- */

static enum hd_status do_task(struct hd_decoder *d, int rank)
{
    struct decoder_rank *r = &d->ranks[rank];

    switch (d->task) {
    case TASK_OPEN:
        return decoder_rank_open(r, d->options, rank, d->meeting);
    case TASK_RUN:
        return decoder_rank_run(r, d->rows, d->count);
    case TASK_LOGITS:
        return decoder_rank_logits(r, d->index, d->row, d->logits);
    case TASK_END:
        decoder_rank_close(r);
        return HD_OK;
    }
    return HD_OK;
}

/* A failure ends the waits of the other ranks. */
static enum hd_status do_part(struct hd_decoder *d, int rank)
{
    const enum hd_status st = do_task(d, rank);

    if (st && d->meeting)
        hd_shm_control_mark_dead(d->meeting, rank, hd_err_message());
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

/* The others say that a rank has failed; its own message is the one to tell. */
static enum hd_status first_of(enum hd_status own, const struct hd_decoder *d)
{
    const struct hd_error *told = NULL;
    struct hd_error error;

    hd_err_save(own, &error);
    if (own)
        told = &error;
    for (int r = 1; r < d->tp; r++) {
        const struct hd_error *of = &d->followers[r - 1].error;

        if (of->status && (!told || told->status == HD_ABORTED))
            told = of;
    }
    return told ? hd_err_restore(told) : HD_OK;
}

/* All ranks do the task. */
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
    for (int r = 1; r < d->tp; r++)
        while (d->followers[r - 1].started && d->followers[r - 1].done != d->number)
            (void)pthread_cond_wait(&d->taken, &d->lock);
    (void)pthread_mutex_unlock(&d->lock);
    return first_of(st, d);
}

/* ---- opening ---- */

static enum hd_status start_followers(struct hd_decoder *d)
{
    enum hd_status st = d->tp > 1 ? hd_shm_control_new(d->tp, &d->meeting) : HD_OK;

    for (int r = 1; !st && r < d->tp; r++) {
        struct follower *f = &d->followers[r - 1];

        *f = (struct follower){.decoder = d, .rank = r};
        f->started = pthread_create(&f->thread, NULL, follow, f) == 0;
        if (!f->started)
            st = hd_err(HD_NO_MEMORY, "--tp: cannot start a thread for rank %d", r);
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

enum hd_status hd_decoder_open(const struct hd_decoder_options *options,
                               struct hd_decoder **ret_decoder)
{
    struct hd_decoder *d = calloc(1, sizeof *d);
    enum hd_status st;

    if (!d)
        return hd_err(HD_NO_MEMORY, "no memory for a decoder");
    assert(options->slots <= HD_DECODER_SLOTS_MAX && options->tp <= HD_DECODER_TP_MAX);
    d->tp = options->tp > 1 ? options->tp : 1;
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->given, NULL);
    (void)pthread_cond_init(&d->taken, NULL);
    d->ranks = calloc((size_t)d->tp, sizeof *d->ranks);
    d->followers = calloc((size_t)d->tp, sizeof *d->followers);
    st = d->ranks && d->followers ? open_ranks(d, options)
                                  : hd_err(HD_NO_MEMORY, "no memory for a decoder");
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
    for (int r = 1; d->followers && r < d->tp; r++)
        if (d->followers[r - 1].started)
            (void)pthread_join(d->followers[r - 1].thread, NULL);
    hd_shm_control_free(d->meeting);
    (void)pthread_cond_destroy(&d->taken);
    (void)pthread_cond_destroy(&d->given);
    (void)pthread_mutex_destroy(&d->lock);
    free(d->followers);
    free(d->ranks);
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

int64_t hd_decoder_memory_bytes(const struct hd_decoder *d)
{
    int64_t bytes = 0;

    for (int r = 0; r < d->tp; r++)
        bytes += d->ranks[r].model.memory_bytes;
    return bytes;
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

    for (int i = 0; i < d->ranks[0].program_count; i++) {
        const struct decode_program *p = &d->ranks[0].programs[i];

        if (p->B >= slots && p->S > most)
            most = p->S;
    }
    return most;
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

enum hd_status hd_decoder_run(struct hd_decoder *d, const struct hd_decoder_rows *rows, int count)
{
    enum hd_status st = HD_OK;

    for (int b = 0; !st && b < count; b++)
        st = check_rows(d, &rows[b]);
    if (st)
        return st;
    d->rows = rows;
    d->count = count;
    return all_do(d, TASK_RUN);
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
    enum hd_status st;

    d->index = index;
    d->row = row;
    st = all_do(d, TASK_LOGITS);
    *ret_logits = d->logits;
    return st ? st : check_finite(d->logits, model_of(d)->job.vocab);
}
