#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/pieces.h"
#include "base/random.h"
#include "data/data_internal.h"
#include "data/packing.h"

/* Returns the key for the order of samples in an epoch; it differs from keys that other users, such
 * as dropout, derive from the job's seed. */
static uint64_t epoch_key(uint64_t seed, int64_t epoch)
{
    return hd_random_key(hd_random_key(seed, hd_random_hash("sampler")), (uint64_t)epoch);
}

static enum hd_status check_windows(const char *what, struct hd_data_range range, int64_t context)
{
    if (context < 1 || context > HD_DATA_CONTEXT_MAX)
        return hd_err(HD_INVALID, "a context of %" PRId64 " tokens; it must be 1 to %d", context,
                      HD_DATA_CONTEXT_MAX);
    if (hd_data_window_count(range.count, context) < 1)
        return hd_err(HD_INVALID,
                      "the %s data has %" PRId64 " tokens; a context of %" PRId64
                      " tokens needs at least %" PRId64
                      ": add data, or take a shorter context (model.context "
                      "of a job file, --context of heddle eval)",
                      what, range.count, context, context + 1);
    return HD_OK;
}

enum hd_status hd_sampler_init_mixture(struct hd_sampler *ret_sampler,
                                       const struct hd_data_range *ranges,
                                       struct hd_packing *const *packings, const double *weights,
                                       int64_t count, int64_t context, int64_t global_batch,
                                       enum hd_data_order order, uint64_t seed)
{
    struct hd_sampler s = {.context = context, .order = order};

    if (count < 1 || count > HD_MIXTURE_SOURCES_MAX)
        return hd_err(HD_INVALID, "a mixture of %" PRId64 " sources; it has 1 to %d", count,
                      HD_MIXTURE_SOURCES_MAX);
    if (global_batch < 1)
        return hd_err(HD_INVALID, "train.global_batch is %" PRId64 "; it must be at least 1",
                      global_batch);
    s.batches = hd_batch_spans_even(global_batch);
    for (int64_t k = 0; k < count; k++) {
        const struct hd_packing *packing = packings ? packings[k] : NULL;
        const enum hd_status st = packing ? HD_OK : check_windows("training", ranges[k], context);

        if (st)
            return count > 1 ? hd_err_prefix(st, "source %" PRId64, k) : st;
        s.sources[k] = (struct hd_sampler_source){
            .range = ranges[k],
            .packing = packing,
            .window_count = packing ? hd_packing_get_facts(packing)->windows
                                    : hd_data_window_count(ranges[k].count, context),
            .seed =
                /* a key for each source, so that each has an order of its own */
            k ? hd_random_key(seed, (uint64_t)k) : seed};
        s.window_count += s.sources[k].window_count;
    }
    hd_mixture_init(&s.mixture, weights, count, seed);
    *ret_sampler = s;
    return HD_OK;
}

enum hd_status hd_sampler_init(struct hd_sampler *ret_sampler, struct hd_data_range range,
                               int64_t context, int64_t global_batch, enum hd_data_order order,
                               uint64_t seed)
{
    return hd_sampler_init_mixture(ret_sampler, &range, NULL, (const double[]){1}, 1, context,
                                   global_batch, order, seed);
}

/* Initialises the sampler of one stage. before: [sources], samples of each in earlier stages. */
static void init_stage(const struct hd_sampler *all, const double *weights, int64_t stages,
                       const int64_t *before, struct hd_sampler *ret_sampler)
{
    double own[HD_MIXTURE_SOURCES_MAX];
    int64_t count = 0;

    *ret_sampler =
        (struct hd_sampler){.context = all->context, .batches = all->batches, .order = all->order};
    for (int64_t k = 0; k < all->mixture.count; k++) {
        if (!(weights[k * stages] > 0))
            continue;
        own[count] = weights[k * stages];
        ret_sampler->sources[count] = all->sources[k];
        ret_sampler->sources[count++].before = before[k];
        ret_sampler->window_count += all->sources[k].window_count;
    }
    assert(count > 0);
    hd_mixture_init(&ret_sampler->mixture, own, count, all->sources[0].seed);
}

void hd_sampler_init_stages(const struct hd_sampler *all, const double *weights,
                            const int64_t *first_steps, int64_t stages,
                            struct hd_sampler *ret_samplers)
{
    int64_t before[HD_MIXTURE_SOURCES_MAX] = {0};

    for (int64_t s = 0; s < stages; s++) {
        struct hd_sampler *one = &ret_samplers[s];
        const int64_t first = hd_batch_spans_before(&all->batches, first_steps[s]);
        const int64_t samples =
            s + 1 < stages ? hd_batch_spans_before(&all->batches, first_steps[s + 1]) - first : 0;
        int64_t own = 0;

        init_stage(all, weights + s, stages, before, one);
        one->first_sample = first;
        for (int64_t k = 0; k < all->mixture.count; k++)
            if (weights[k * stages + s] > 0)
                before[k] += one->mixture.count > 1
                                 ? hd_mixture_count(&one->mixture, samples, own++)
                                 : samples;
    }
}

int64_t hd_sampler_window(const struct hd_sampler *sampler, int64_t sample_id, int64_t *ret_source)
{
    const struct hd_sampler_source *source = sampler->sources;
    int64_t number = sample_id - sampler->first_sample, k = 0;

    assert(number >= 0);
    if (sampler->mixture.count > 1)
        k = hd_mixture_source(&sampler->mixture, number, &number);
    source += k;
    number += source->before;
    if (ret_source)
        *ret_source = k;
    if (sampler->order == HD_DATA_SEQUENTIAL)
        return number % source->window_count;
    return (int64_t)hd_random_permute(epoch_key(source->seed, number / source->window_count),
                                      (uint64_t)source->window_count,
                                      (uint64_t)(number % source->window_count));
}

struct hd_data_batch hd_data_batch_row(const struct hd_data_batch *b, int64_t i, int64_t S)
{
    struct hd_data_batch row = {.tokens = b->tokens ? b->tokens + i * S : NULL,
                                .targets = b->targets ? b->targets + i * S : NULL,
                                .positions = b->positions ? b->positions + i * S : NULL,
                                .index = b->index ? b->index + i * S : NULL,
                                .bounds = b->bounds ? b->bounds + i * S : NULL,
                                .begins = b->begins ? b->begins + i * S : NULL,
                                .lengths = b->lengths ? b->lengths + i * S : NULL,
                                .answers = b->answers ? b->answers + i * S : NULL,
                                .reference = b->reference ? b->reference + i * S : NULL,
                                .sampled = b->sampled ? b->sampled + i * S : NULL,
                                .advantage = b->advantage ? b->advantage + i * S : NULL,
                                .sample_ids = b->sample_ids ? b->sample_ids + i : NULL,
                                .target_places = b->target_places ? b->target_places + i * S : NULL,
                                .answer_ends = b->answer_ends,
                                .mismatched = b->mismatched,
                                .empty_token = b->empty_token};

    for (int k = 0; k < HD_DATA_FURTHER_MAX; k++) {
        row.ahead[k] = b->ahead[k] ? b->ahead[k] + i * S : NULL;
        row.further[k] = b->further[k] ? b->further[k] + i * S : NULL;
    }
    return row;
}

/* Sets begins and lengths of rows [begin, end), which hold a conversation or window of `length`
 * tokens; length 0: padding. */
static void put_extent(const struct hd_data_batch *row, int64_t begin, int64_t end, int64_t length)
{
    for (int64_t j = begin; row->begins && j < end; j++)
        row->begins[j] = (int32_t)begin;
    for (int64_t j = begin; row->lengths && j < end; j++)
        row->lengths[j] = (int32_t)length;
}

/* Sets the places of the targets of rows [at, at + count), of which the first one's is `first`. */
static void put_places(const struct hd_data_batch *row, int64_t at, int64_t count, int64_t first)
{
    for (int64_t j = 0; row->target_places && j < count; j++)
        row->target_places[at + j] = row->targets[at + j] == HD_DATA_TARGET_NONE ? -1 : first + j;
}

/* Sets positions, index and bounds of one sample; removes the targets at ends of documents. */
static void place_row(struct hd_document_walk walk, int64_t S, const struct hd_data_batch *row)
{
    int64_t start = 0;

    for (int64_t j = 0; j < S; j++) {
        if (row->positions)
            row->positions[j] = (int32_t)(j - start);
        if (row->index)
            row->index[j] = (int32_t)j;
        if (row->bounds)
            row->bounds[j] = (int32_t)start;
        if (!hd_document_walk_ends(&walk, row->tokens ? row->tokens[j] : -1))
            continue;
        start = j + 1;
        if (row->targets)
            row->targets[j] = HD_DATA_TARGET_NONE;
    }
    put_extent(row, 0, S, S);
}

/* Fills rows [from, S) of a sample with padding: one document without targets. */
static void fill_padding(int64_t from, int64_t S, const struct hd_data_batch *row)
{
    for (int64_t j = from; j < S; j++) {
        if (row->tokens)
            row->tokens[j] = row->empty_token;
        if (row->targets)
            row->targets[j] = HD_DATA_TARGET_NONE;
        if (row->positions)
            row->positions[j] = (int32_t)(j - from);
        if (row->index)
            row->index[j] = (int32_t)j;
        if (row->bounds)
            row->bounds[j] = (int32_t)from;
        if (row->answers)
            row->answers[j] = -1;
        if (row->reference)
            row->reference[j] = 0;
        if (row->target_places)
            row->target_places[j] = -1;
    }
    put_extent(row, from, S, 0);
}

/* Fills rows [at, at + count) of a sample with the first `count` tokens of a conversation. */
static enum hd_status fill_conversation(const struct hd_corpus *corpus, int64_t first,
                                        int64_t count, int64_t at, const struct hd_data_batch *row)
{
    enum { PIECE = HD_PIECE(512, 7) };
    enum hd_status st = hd_corpus_read(corpus, first, count, row->tokens + at);
    bool counts[PIECE];

    for (int64_t j = 0; !st && j < count; j++) {
        if (j % PIECE == 0) /* counts[] covers the targets of the next PIECE rows */
            hd_corpus_read_counts(corpus, first + j + 1,
                                  count - j - 1 < PIECE ? count - j - 1 : PIECE, counts);
        if (row->targets)
            row->targets[at + j] =
                j + 1 < count && counts[j % PIECE] ? row->tokens[at + j + 1] : HD_DATA_TARGET_NONE;
        if (row->positions)
            row->positions[at + j] = (int32_t)j;
        if (row->index)
            row->index[at + j] = (int32_t)(at + j);
        if (row->bounds)
            row->bounds[at + j] = (int32_t)at;
    }
    put_places(row, at, count, first + 1);
    put_extent(row, at, at + count, count);
    return st;
}

/* Sets answers and reference of rows [at, at + count) of a sample, for pairs. A row's reference is
 * that of the next token, its target; the last row has no target. */
static void fill_answer(const struct hd_corpus *corpus, int64_t first, int64_t count, int64_t at,
                        int32_t answer, const struct hd_data_batch *row)
{
    const float *reference = hd_corpus_reference(corpus);

    for (int64_t j = 0; j < count; j++) {
        if (row->answers)
            row->answers[at + j] = row->answer_ends && j + 1 < count ? -1 : answer;
        if (row->reference)
            row->reference[at + j] = reference && j + 1 < count ? reference[first + j + 1] : 0;
    }
}

/* Fills rows of a sample with both answers of a pair. */
static enum hd_status fill_pair(const struct hd_corpus *corpus, const struct hd_packed *p,
                                int64_t number, int64_t at, const struct hd_data_batch *row)
{
    const int64_t second = p->first + p->chosen, rest = p->count - p->chosen;
    enum hd_status st = fill_conversation(corpus, p->first, p->chosen, at, row);

    if (!st)
        st = fill_conversation(corpus, second, rest, at + p->chosen, row);
    fill_answer(corpus, p->first, p->chosen, at, (int32_t)(2 * number), row);
    fill_answer(corpus, second, rest, at + p->chosen, (int32_t)(2 * number + 1), row);
    return st;
}

/* ---- mismatched answers ---- */

/* A place in the list of a window's answers: those with targets, pair after pair. */
struct answers {
    const struct hd_corpus *corpus;
    const struct hd_packed *packed;
    int64_t pairs;  /* number of pairs in the window */
    int64_t number; /* number of the present answer in the window, as in `answers` of a batch */
    int64_t first, count; /* its document */
    int64_t prompt;       /* tokens of the document in front of the answer */
};

/* Returns the number of tokens in front of the first one that counts; `count`: none counts. */
static int64_t prompt_of(const struct hd_corpus *corpus, int64_t first, int64_t count)
{
    enum { PIECE = HD_PIECE(512, 7) };
    bool counts[PIECE];

    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;

        hd_corpus_read_counts(corpus, first + at, n, counts);
        for (int64_t i = 0; i < n; i++)
            if (counts[i] && at + i > 0) /* the first token is no target */
                return at + i;
    }
    return count;
}

/* Moves on to the next answer, behind the last one to the first. The window has an answer. */
static void next_answer(struct answers *a)
{
    do {
        const struct hd_packed *p;

        a->number = (a->number + 1) % (2 * a->pairs);
        p = &a->packed[a->number / 2];
        a->first = p->first + (a->number % 2 ? p->chosen : 0);
        a->count = a->number % 2 ? p->count - p->chosen : p->chosen;
        a->prompt = prompt_of(a->corpus, a->first, a->count);
    } while (a->prompt == a->count);
}

/* Returns the place of the list in front of its first answer. Sets *ret_count to the number of
 * answers, and *ret_double to whether a pair has both. */
static struct answers list_answers(const struct hd_corpus *corpus, const struct hd_packed *packed,
                                   int64_t pairs, int64_t *ret_count, bool *ret_double)
{
    const struct answers start = {
        .corpus = corpus, .packed = packed, .pairs = pairs, .number = 2 * pairs - 1};
    struct answers a = start;
    int64_t last = -1, count = 0;

    *ret_double = false;
    for (next_answer(&a); a.number > last; next_answer(&a), count++) {
        *ret_double |= last >= 0 && last / 2 == a.number / 2;
        last = a.number;
    }
    *ret_count = count;
    return start;
}

/* Fills rows from `at` on with the prompt of one answer and with another one. Returns the number of
 * rows in *ret_rows. */
static enum hd_status fill_crossed(const struct answers *asked, const struct answers *given,
                                   int64_t at, const struct hd_data_batch *row, int64_t *ret_rows)
{
    enum { PIECE = HD_PIECE(512, 7) };
    const int64_t begin = asked->prompt, rest = given->count - given->prompt, rows = begin + rest;
    const int64_t source = given->first + given->prompt - begin; /* of row 0, were it of `given` */
    const float *reference = hd_corpus_mismatched_reference(asked->corpus);
    enum hd_status st = hd_corpus_read(asked->corpus, asked->first, begin, row->tokens + at);
    const int32_t first_row = (int32_t)at;
    bool counts[PIECE];

    if (!st)
        st = hd_corpus_read(asked->corpus, source + begin, rest, row->tokens + at + begin);
    for (int64_t j = 0; !st && j < rows; j++) {
        const int64_t next = j + 1 - begin; /* index of the next token in the answer */
        bool target = next >= 0 && next < rest;

        if (target) {
            if (next % PIECE == 0)
                hd_corpus_read_counts(asked->corpus, source + begin + next,
                                      rest - next < PIECE ? rest - next : PIECE, counts);
            target = counts[next % PIECE];
        }
        if (row->targets)
            row->targets[at + j] = target ? row->tokens[at + j + 1] : HD_DATA_TARGET_NONE;
        if (row->positions)
            row->positions[at + j] = (int32_t)j;
        if (row->index)
            row->index[at + j] = (int32_t)(at + j);
        if (row->bounds)
            row->bounds[at + j] = first_row;
        if (row->answers)
            row->answers[at + j] = (int32_t)asked->number;
        if (row->reference)
            row->reference[at + j] = target && reference ? reference[source + j + 1] : 0;
        if (row->target_places)
            row->target_places[at + j] = target ? source + j + 1 : -1;
    }
    put_extent(row, at, at + rows, rows);
    *ret_rows = rows;
    return st;
}

/* Fills one sample with the answers of a packed window, each behind the prompt of another one: answer
 * i of the window follows the prompt of answer i + 1, or, where a pair has both answers, of i + 2, so
 * that prompts differ; the last ones follow the first prompts. A prompt that would get an answer of
 * its own pair is left out. No token occurs twice, so that the rows always suffice; and the result is
 * a function of the window alone, whatever batch or layout it is in. */
static enum hd_status fill_mismatched(const struct hd_corpus *corpus,
                                      const struct hd_packed *packed, int64_t pairs, int64_t S,
                                      const struct hd_data_batch *row)
{
    enum hd_status st = HD_OK;
    struct answers asked, given;
    int64_t count, at = 0, rows;
    bool has_double;

    asked = list_answers(corpus, packed, pairs, &count, &has_double);
    given = asked;
    for (int64_t i = has_double ? 2 : 1; i < count; i++)
        next_answer(&given);
    for (int64_t i = 0; !st && i < count; i++) {
        next_answer(&asked);
        next_answer(&given);
        if (asked.number / 2 == given.number / 2)
            continue;
        st = fill_crossed(&asked, &given, at, row, &rows);
        at += st ? 0 : rows;
    }
    if (!st)
        fill_padding(at, S, row);
    return st;
}

/* Fills one sample with the conversations of a packed window. */
static enum hd_status fill_packed(const struct hd_corpus *corpus, const struct hd_packing *packing,
                                  int64_t S, int64_t window, const struct hd_data_batch *row)
{
    const struct hd_packed *packed;
    const int64_t n = hd_packing_window(packing, window, &packed);
    enum hd_status st = HD_OK;
    int64_t at = 0;

    if (!row->tokens) /* if `tokens` is NULL, so are all arrays of the batch */
        return HD_OK;
    if (row->mismatched)
        return fill_mismatched(corpus, packed, n, S, row);
    for (int64_t i = 0; !st && i < n; i++) {
        st = packed[i].chosen
                 ? fill_pair(corpus, &packed[i], i, at, row)
                 : fill_conversation(corpus, packed[i].first, packed[i].count, at, row);
        at += packed[i].count;
    }
    fill_padding(at, S, row);
    return st;
}

/* Fills one sample with a window of text: tokens, targets (each the next token), positions. */
static enum hd_status fill_row(struct hd_data_range range, int64_t S, int64_t window,
                               const struct hd_data_batch *row)
{
    const int64_t first = range.first + window * S;
    enum hd_status st = HD_OK;

    assert(row->tokens || !hd_corpus_is_bounded(range.corpus));
    if (row->tokens)
        st = hd_corpus_read(range.corpus, first, S, row->tokens);
    if (!st && row->targets)
        st = hd_corpus_read(range.corpus, first + 1, S, row->targets);
    if (!st)
        place_row(hd_document_walk_run(range.corpus, first), S, row);
    if (!st)
        put_places(row, 0, S, first + 1);
    return st;
}

static enum hd_status fill_window(struct hd_data_range range, const struct hd_packing *packing,
                                  int64_t S, int64_t window, const struct hd_data_batch *row)
{
    return packing ? fill_packed(range.corpus, packing, S, window, row)
                   : fill_row(range, S, window, row);
}

/* Sets ahead and further of a filled sample. */
static void look_ahead(int64_t S, const struct hd_data_batch *row)
{
    for (int64_t k = 1; k <= HD_DATA_FURTHER_MAX; k++) {
        int32_t *ahead = row->ahead[k - 1], *further = row->further[k - 1];

        for (int64_t j = 0; (ahead || further) && j < S; j++) {
            const bool has = j + k < S && (!row->bounds || row->bounds[j + k] == row->bounds[j]);

            if (ahead)
                ahead[j] = has ? row->tokens[j + k] : row->empty_token;
            if (further)
                further[j] = has ? row->targets[j + k] : HD_DATA_TARGET_NONE;
        }
    }
}

enum hd_status hd_sampler_fill(const struct hd_sampler *sampler, int64_t step, int64_t first,
                               int64_t count, const struct hd_data_batch *ret_batch)
{
    const int64_t S = sampler->context, before = hd_batch_spans_before(&sampler->batches, step);
    enum hd_status st = HD_OK;

    assert(first >= 0 && count >= 0);
    assert(count <= hd_batch_spans_batch(&sampler->batches, step) - first);
    for (int64_t i = 0; !st && i < count; i++) {
        const int64_t id = before + first + i;
        const struct hd_data_batch row = hd_data_batch_row(ret_batch, i, S);
        int64_t source;
        const int64_t window = hd_sampler_window(sampler, id, &source);

        st = fill_window(sampler->sources[source].range, sampler->sources[source].packing, S,
                         window, &row);
        if (!st)
            look_ahead(S, &row);
        if (row.sample_ids)
            *row.sample_ids = id;
    }
    return st;
}

/* ---- counts ---- */

int64_t hd_sampler_tokens(const struct hd_sampler *sampler, int64_t step, int64_t count)
{
    const int64_t before = hd_batch_spans_before(&sampler->batches, step);
    int64_t tokens = 0;

    for (int64_t i = 0; i < count; i++) {
        int64_t source, n;
        const int64_t window = hd_sampler_window(sampler, before + i, &source);
        const struct hd_packing *packing = sampler->sources[source].packing;
        const struct hd_packed *packed;

        if (!packing) {
            tokens += sampler->context;
            continue;
        }
        n = hd_packing_window(packing, window, &packed);
        for (int64_t k = 0; k < n; k++)
            tokens += packed[k].count;
    }
    return tokens;
}

bool hd_sampler_fills_windows(const struct hd_sampler *sampler)
{
    for (int64_t k = 0; k < sampler->mixture.count; k++)
        if (sampler->sources[k].packing || hd_corpus_is_bounded(sampler->sources[k].range.corpus))
            return false;
    return true;
}

/* Returns the number of targets of a conversation of `count` tokens, or of its tokens from
 * `further` on: those of rows with so many rows before them. */
static int64_t count_conversation(const struct hd_corpus *corpus, int64_t first, int64_t count,
                                  int64_t further)
{
    return further < count ? hd_conversation_targets(corpus, first + further, count - further) : 0;
}

static int64_t count_packed(const struct hd_corpus *corpus, const struct hd_packing *packing,
                            int64_t window, int64_t further)
{
    const struct hd_packed *packed;
    const int64_t n = hd_packing_window(packing, window, &packed);
    int64_t sum = 0;

    for (int64_t i = 0; i < n; i++) {
        const int64_t chosen = packed[i].chosen; /* tokens of a pair's first answer; 0: no pair */

        if (chosen)
            sum += count_conversation(corpus, packed[i].first, chosen, further);
        sum +=
            count_conversation(corpus, packed[i].first + chosen, packed[i].count - chosen, further);
    }
    return sum;
}

/* Adds the targets of a window to *sum: all tokens but the last of each document, and without the
 * targets of a document's first `further` rows. */
static enum hd_status count_row(struct hd_data_range range, int64_t S, int64_t window,
                                int64_t further, int64_t *sum)
{
    enum { PIECE = HD_PIECE(512, 7) };
    const int64_t first = range.first + window * S;
    struct hd_document_walk walk = hd_document_walk_run(range.corpus, first);
    enum hd_status st = HD_OK;
    int32_t tokens[PIECE] = {0};
    int64_t before = 0; /* rows of the present document so far */

    for (int64_t at = 0; !st && at < S; at += PIECE) {
        const int64_t n = S - at < PIECE ? S - at : PIECE;

        if (hd_corpus_ends_by_token(range.corpus))
            st = hd_corpus_read(range.corpus, first + at, n, tokens);
        for (int64_t j = 0; !st && j < n; j++) {
            const bool ends = hd_document_walk_ends(&walk, tokens[j]);

            *sum += !ends && before >= further;
            before = ends ? 0 : before + 1;
        }
    }
    return st;
}

enum hd_status hd_sampler_targets(const struct hd_sampler *sampler, int64_t step, int64_t first,
                                  int64_t count, int64_t further, int64_t *ret_targets)
{
    const int64_t S = sampler->context, before = hd_batch_spans_before(&sampler->batches, step);
    enum hd_status st = HD_OK;
    int64_t sum = 0;

    for (int64_t i = 0; !st && i < count; i++) {
        int64_t k;
        const int64_t window = hd_sampler_window(sampler, before + first + i, &k);
        const struct hd_sampler_source *source = &sampler->sources[k];

        if (source->packing)
            sum += count_packed(source->range.corpus, source->packing, window, further);
        else if (hd_corpus_is_bounded(source->range.corpus))
            st = count_row(source->range, S, window, further, &sum);
        else
            sum += further < S ? S - further : 0;
    }
    if (!st)
        *ret_targets = sum;
    return st;
}

/* ---- validation ---- */

enum hd_status hd_validation_init(struct hd_validation *ret_validation, struct hd_data_range range,
                                  int64_t context, int64_t window_limit)
{
    enum hd_status st = check_windows("validation", range, context);
    int64_t windows;

    if (st)
        return st;
    windows = hd_data_window_count(range.count, context);
    if (window_limit > 0 && window_limit < windows)
        windows = window_limit;
    *ret_validation =
        (struct hd_validation){.range = range, .context = context, .window_count = windows};
    return HD_OK;
}

enum hd_status hd_validation_init_packed(struct hd_validation *ret_validation,
                                         struct hd_data_range range,
                                         const struct hd_packing *packing, int64_t window_limit)
{
    const struct hd_packing_facts *facts = hd_packing_get_facts(packing);

    *ret_validation = (struct hd_validation){
        .range = range,
        .packing = packing,
        .context = facts->context,
        .window_count =
            window_limit > 0 && window_limit < facts->windows ? window_limit : facts->windows};
    return HD_OK;
}

enum hd_status hd_validation_fill(const struct hd_validation *validation, int64_t first,
                                  int64_t count, const struct hd_data_batch *ret_batch)
{
    const int64_t S = validation->context;
    enum hd_status st = HD_OK;

    assert(first >= 0 && count >= 0);
    for (int64_t i = 0; !st && i < count; i++) {
        const struct hd_data_batch row = hd_data_batch_row(ret_batch, i, S);

        if (first + i < validation->window_count)
            st = fill_window(validation->range, validation->packing, S, first + i, &row);
        else
            fill_padding(0, S, &row);
        if (row.sample_ids)
            *row.sample_ids = first + i;
    }
    return st;
}
