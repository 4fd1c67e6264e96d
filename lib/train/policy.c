#include "train/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/policy_feed.h"
#include "train/trainer.h"

/* Arrays for packing `count` completions into at most `windows_max` windows. */
struct packing {
    const struct hd_policy_completion *all;
    int64_t count;      /* completions that take rows */
    int64_t *by_length; /* [count], their indices, the longest first */
    int64_t *window;    /* [count], window of each, in the order of by_length */
    int64_t *filled;    /* [windows_max], rows in use */
    int64_t *holds;     /* [windows_max], completions in it */
    int64_t context, holds_max;
};

/* Returns whether the completion takes rows. */
static bool takes_rows(const struct hd_policy_completion *c)
{
    return !c->masked && c->count > 0;
}

/* Returns whether token i of the completion is a target. */
static bool counts(const struct hd_packed_completions *k, const struct hd_policy_completion *c,
                   int64_t i)
{
    return k->scores ||
           (isfinite(c->sampled[i]) && (!k->has_reference || isfinite(c->reference[i])));
}

/* ---- packing ---- */

/* An index beside its length, for sorting. */
struct length {
    int64_t rows, index;
};

static int longest_first(const void *a, const void *b)
{
    const struct length *x = a, *y = b;

    if (x->rows != y->rows)
        return x->rows < y->rows ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

static enum hd_status sort_by_length(struct packing *p, int64_t count)
{
    struct length *list = calloc((size_t)count + 1, sizeof *list);

    if (!list)
        return hd_err(HD_NO_MEMORY, "no memory to sort %lld completions", (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (takes_rows(&p->all[i]))
            list[p->count++] = (struct length){hd_policy_rows(&p->all[i]), i};
    qsort(list, (size_t)p->count, sizeof *list, longest_first);
    for (int64_t i = 0; i < p->count; i++)
        p->by_length[i] = list[i].index;
    free(list);
    return HD_OK;
}

/* Puts each completion into a window that has room for it: into the one with the fewest rows, or, if
 * `tight`, with the most. Returns whether all have a window. */
static bool pack_into(struct packing *p, int64_t windows, bool tight)
{
    memset(p->filled, 0, (size_t)windows * sizeof *p->filled);
    memset(p->holds, 0, (size_t)windows * sizeof *p->holds);
    for (int64_t i = 0; i < p->count; i++) {
        const int64_t rows = hd_policy_rows(&p->all[p->by_length[i]]);
        int64_t best = -1;

        for (int64_t w = 0; w < windows; w++)
            if (p->filled[w] + rows <= p->context && p->holds[w] < p->holds_max &&
                (best < 0 ||
                 (tight ? p->filled[w] > p->filled[best] : p->filled[w] < p->filled[best])))
                best = w;
        if (best < 0)
            return false;
        p->filled[best] += rows;
        p->holds[best]++;
        p->window[i] = best;
    }
    return true;
}

/* Sets *ret_micro_batches to the number of micro-batches whose windows hold all completions. */
static enum hd_status find_windows(const struct hd_trainer *t, struct packing *p,
                                   int64_t *ret_micro_batches)
{
    const struct hd_rank_program *l = &t->rank_program;
    const int64_t together = l->mesh.sizes.dp * l->job.micro_batch, most = l->micro_batches;
    int64_t rows = 0, m;

    for (int64_t i = 0; i < p->count; i++)
        rows += hd_policy_rows(&p->all[p->by_length[i]]);
    m = (rows + together * p->context - 1) / (together * p->context);
    for (m = m > 1 ? m : 1; m <= most; m++) {
        m = hd_rank_program_round_micro_batches(most, m);
        if (pack_into(p, m * together, false)) {
            *ret_micro_batches = m;
            return HD_OK;
        }
    }
    *ret_micro_batches = most;
    if (pack_into(p, most * together, true))
        return HD_OK;
    return hd_err(
        HD_INVALID,
        "%lld completions with %lld tokens do not fit into the %lld windows of %lld tokens of "
        "a step; raise train.global_batch or model.context, or sample fewer or shorter "
        "completions",
        (long long)p->count, (long long)rows, (long long)(most * together), (long long)p->context);
}

/* Lists the completions by window. */
static enum hd_status list_windows(const struct packing *p, struct hd_packed_completions *k)
{
    int64_t at = 0;

    k->begins = calloc((size_t)k->windows + 1, sizeof *k->begins);
    k->order = calloc((size_t)p->count + 1, sizeof *k->order);
    if (!k->begins || !k->order)
        return hd_err(HD_NO_MEMORY, "no memory for %lld completions", (long long)p->count);
    for (int64_t w = 0; w < k->windows; w++) {
        k->begins[w] = at;
        at += p->holds[w];
    }
    k->begins[k->windows] = at;
    for (int64_t w = 0; w < k->windows; w++)
        p->holds[w] = k->begins[w];
    for (int64_t i = 0; i < p->count; i++)
        k->order[p->holds[p->window[i]]++] = p->by_length[i];
    return HD_OK;
}

static enum hd_status pack_all(const struct hd_trainer *t, int64_t count,
                               struct hd_packed_completions *k)
{
    const struct hd_job *job = &t->rank_program.job;
    const size_t n = (size_t)count + 1, windows = (size_t)job->global_batch + 1;
    struct packing p = {.all = k->all,
                        .by_length = calloc(n, sizeof *p.by_length),
                        .window = calloc(n, sizeof *p.window),
                        .filled = calloc(windows, sizeof *p.filled),
                        .holds = calloc(windows, sizeof *p.holds),
                        .context = job->context,
                        .holds_max = hd_answers_max(job->context)};
    enum hd_status st = HD_OK;

    if (!p.by_length || !p.window || !p.filled || !p.holds)
        st = hd_err(HD_NO_MEMORY, "no memory to pack %lld completions", (long long)count);
    if (!st)
        st = sort_by_length(&p, count);
    if (!st)
        st = find_windows(t, &p, &k->micro_batches);
    k->windows = k->micro_batches * t->rank_program.mesh.sizes.dp * job->micro_batch;
    if (!st)
        st = list_windows(&p, k);
    free(p.by_length);
    free(p.window);
    free(p.filled);
    free(p.holds);
    return st;
}

/* ---- the completions ---- */

static enum hd_status check_ids(const int32_t *ids, int64_t count, int64_t vocab, int64_t index)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return hd_err(HD_INVALID,
                          "completion %lld has the token %d, outside the vocabulary of %lld",
                          (long long)index, ids[i], (long long)vocab);
    return HD_OK;
}

static enum hd_status check(const struct hd_job *job, const struct hd_packed_completions *k,
                            const struct hd_policy_completion *c, int64_t index)
{
    enum hd_status st;

    if (!takes_rows(c))
        return HD_OK;
    if (c->prompt_count < 1)
        return hd_err(HD_INVALID,
                      "completion %lld has no prompt: its first token would have no input",
                      (long long)index);
    if (hd_policy_rows(c) > job->context)
        return hd_err(HD_INVALID,
                      "completion %lld takes %lld rows with its prompt, and model.context is %lld",
                      (long long)index, (long long)hd_policy_rows(c), (long long)job->context);
    if (!c->reference && k->has_reference)
        return hd_err(HD_INVALID,
                      "completion %lld has no log-probabilities of the reference model, with which "
                      "train.policy.kl: %s compares",
                      (long long)index, hd_job_policy_kl_words[job->policy_kl]);
    st = check_ids(c->prompt, c->prompt_count, job->vocab, index);
    return st ? st : check_ids(c->ids, c->count, job->vocab, index);
}

static void count_completion(const struct hd_policy_factors *f,
                             const struct hd_policy_completion *c, struct hd_packed_completions *k)
{
    struct hd_policy_totals *total = &k->totals;
    int64_t targets = 0;

    for (int64_t i = 0; i < c->count; i++)
        targets += counts(k, c, i);
    total->tokens += hd_policy_rows(c);
    total->targets += targets;
    total->dropped += c->count - targets;
    if (targets > 0)
        total->terms += f->mean == HD_POLICY_MEAN_TOKENS        ? targets
                        : f->mean == HD_POLICY_MEAN_COMPLETIONS ? 1
                                                                : f->max_tokens;
}

void hd_packed_completions_free(struct hd_packed_completions *packed)
{
    if (!packed)
        return;
    free(packed->begins);
    free(packed->order);
    free(packed);
}

enum hd_status hd_policy_pack(const struct hd_trainer *t,
                              const struct hd_policy_completion *completions, int64_t count,
                              bool scores, struct hd_packed_completions **ret_packed)
{
    const struct hd_job *job = &t->rank_program.job;
    const struct hd_policy_factors f = hd_rank_program_policy(job);
    struct hd_packed_completions *k;
    enum hd_status st = HD_OK;

    if (!hd_job_has_policy(job) && !scores)
        return hd_err(HD_INTERNAL, "completions for a job of %s",
                      hd_job_objective_words[job->objective]);
    k = calloc(1, sizeof *k);
    if (!k)
        return hd_err(HD_NO_MEMORY, "no memory for completions");
    k->all = completions;
    k->scores = scores;
    k->has_reference = !scores && f.kl != HD_POLICY_KL_NONE;
    for (int64_t i = 0; !st && i < count; i++) {
        st = check(job, k, &completions[i], i);
        if (!st && takes_rows(&completions[i]))
            count_completion(&f, &completions[i], k);
    }
    if (!st)
        st = pack_all(t, count, k);
    if (st) {
        hd_packed_completions_free(k);
        return st;
    }
    *ret_packed = k;
    return HD_OK;
}

enum hd_status hd_trainer_set_completions(struct hd_trainer *t,
                                          const struct hd_policy_completion *completions,
                                          int64_t count)
{
    struct hd_packed_completions *packed;
    enum hd_status st = hd_policy_pack(t, completions, count, false, &packed);

    if (st)
        return st;
    st = hd_trainer_set_micro_batches(t, packed->micro_batches);
    if (st) {
        hd_packed_completions_free(packed);
        return st;
    }
    hd_packed_completions_free(t->completions);
    t->completions = packed;
    return HD_OK;
}

struct hd_policy_totals hd_policy_count(const struct hd_trainer *t)
{
    return t->completions->totals;
}

/* ---- batches ---- */

/* Returns the window of sample `sample` of the step. The samples of a dp rank are consecutive; windows
 * alternate between dp ranks. */
static int64_t window_of(const struct hd_trainer *t, int64_t sample)
{
    const struct hd_rank_program *l = &t->rank_program;
    const int64_t B = l->job.micro_batch, each = t->micro_batches * B;
    const int64_t dp = sample / each, micro_batch = sample % each / B;

    return (micro_batch * l->mesh.sizes.dp + dp) * B + sample % B;
}

/* Sets rows [from, to) of a field; nothing if there is no such field. */
static void put_ids(int32_t *field, int64_t from, int64_t to, int64_t value, int64_t grows)
{
    for (int64_t j = from; field && j < to; j++)
        field[j] = (int32_t)(value + grows * (j - from));
}

static void put_floats(float *field, int64_t from, int64_t to, float value)
{
    for (int64_t j = from; field && j < to; j++)
        field[j] = value;
}

/* Fills rows [from, to) with what a document of them has: its positions, and no targets. length: of the
 * document, 0: padding. answer: its number, -1: none. */
static void put_document(const struct hd_data_batch *row, int64_t from, int64_t to, int64_t length,
                         int64_t answer)
{
    put_ids(row->targets, from, to, HD_DATA_TARGET_NONE, 0);
    put_ids(row->positions, from, to, 0, 1);
    put_ids(row->index, from, to, from, 1);
    put_ids(row->bounds, from, to, from, 0);
    put_ids(row->begins, from, to, from, 0);
    put_ids(row->lengths, from, to, length, 0);
    put_ids(row->answers, from, to, answer, 0);
    put_floats(row->reference, from, to, 0);
    put_floats(row->sampled, from, to, 0);
    put_floats(row->advantage, from, to, 0);
}

/* Fills rows from `at` on with a completion behind its prompt. The row of a token has the next token as
 * its target. Returns the row behind them. */
static int64_t put_completion(const struct hd_packed_completions *k,
                              const struct hd_policy_completion *c, int64_t at, int64_t answer,
                              const struct hd_data_batch *row)
{
    const int64_t rows = hd_policy_rows(c), first = at + c->prompt_count - 1;

    put_document(row, at, at + rows, rows, row->answer_ends ? -1 : answer);
    put_ids(row->answers, first + c->count - 1, at + rows, answer, 0);
    put_floats(row->advantage, at, at + rows, c->advantage);
    for (int64_t j = 0; row->tokens && j < rows; j++)
        row->tokens[at + j] = j < c->prompt_count ? c->prompt[j] : c->ids[j - c->prompt_count];
    for (int64_t i = 0; i < c->count; i++) {
        if (!counts(k, c, i))
            continue;
        if (row->targets)
            row->targets[first + i] = c->ids[i];
        if (row->sampled && !k->scores)
            row->sampled[first + i] = c->sampled[i];
        if (row->reference && k->has_reference)
            row->reference[first + i] = c->reference[i];
    }
    return at + rows;
}

static void put_window(const struct hd_packed_completions *k, int64_t window, int64_t S,
                       int32_t empty_token, const struct hd_data_batch *row)
{
    const bool empty = window >= k->windows;
    const int64_t begin = empty ? 0 : k->begins[window], end = empty ? 0 : k->begins[window + 1];
    int64_t at = 0;

    for (int64_t i = begin; i < end; i++)
        at = put_completion(k, &k->all[k->order[i]], at, i - begin, row);
    put_ids(row->tokens, at, S, empty_token, 0);
    put_document(row, at, S, 0, -1);
}

enum hd_status hd_policy_fill_windows(struct hd_trainer *t, const void *packed, int64_t first,
                                      int64_t count, const struct hd_data_batch *b)
{
    const struct hd_packed_completions *k = packed;
    const int64_t S = t->rank_program.job.context;

    for (int64_t i = 0; i < count; i++) {
        const struct hd_data_batch row = hd_data_batch_row(b, i, S);

        put_window(k, first + i, S, b->empty_token, &row);
    }
    return HD_OK;
}

enum hd_status hd_policy_fill(struct hd_trainer *t, const void *from, int64_t first, int64_t count,
                              const struct hd_data_batch *b)
{
    const int64_t S = t->rank_program.job.context;

    (void)from;
    for (int64_t i = 0; i < count; i++) {
        const struct hd_data_batch row = hd_data_batch_row(b, i, S);

        put_window(t->completions, window_of(t, first + i), S, b->empty_token, &row);
    }
    return HD_OK;
}

/* ---- results ---- */

struct hd_policy_result hd_policy_read_result(const struct hd_trainer *t)
{
    const double *sum = t->block.policy_total, tokens = sum[HD_POLICY_TOKENS];
    const double each = tokens > 0 ? 1 / tokens : 0;

    return (struct hd_policy_result){.tokens = (int64_t)tokens,
                                     .completions = (int64_t)sum[HD_POLICY_COMPLETIONS],
                                     .dropped = t->completions->totals.dropped,
                                     .clipped_low = sum[HD_POLICY_CLIPPED_LOW] * each,
                                     .clipped_high = sum[HD_POLICY_CLIPPED_HIGH] * each,
                                     .kl = sum[HD_POLICY_KL_SUM] * each,
                                     .difference = sum[HD_POLICY_DIFFERENCE_SUM] * each,
                                     .difference_max = sum[HD_POLICY_DIFFERENCE_MAX],
                                     .ratio = sum[HD_POLICY_RATIO_SUM] * each,
                                     .ratio_max = sum[HD_POLICY_RATIO_MAX],
                                     .entropy = sum[HD_POLICY_ENTROPY_SUM] * each};
}
