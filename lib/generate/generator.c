/* A sequence has read history[0 .. filled) of history[0 .. count). The remaining tokens are read
 * next: many tokens of a prompt, or the token that was sampled last. After the last of them the
 * next token is sampled. */
#include "generate/generator.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job/job.h"

struct hd_sequence {
    struct hd_sequence *next; /* next sequence in the list of those that wait for a slot */
    struct hd_generation what;
    struct hd_stops stops;
    int32_t *prompt;
    int32_t last;  /* last token of a prompt that is only reported, not read; -1: none */
    int64_t drawn; /* number of tokens sampled */
    bool reads_prompt;
    bool ended; /* true: a callback has ended the sequence in the current call of
                   hd_generator_step */
};

struct generator_slot {
    struct hd_sequence *sequence; /* sequence that has the slot; NULL: the slot is free */
    int32_t *history;             /* [context] */
    int64_t filled, count;
    uint64_t order; /* serial number of the sequence in the slot: a smaller number was added
                       earlier */
};

struct hd_generator {
    struct hd_decoder *decoder;
    struct generator_slot *slots;
    struct hd_sequence *waiting, **waiting_end;
    int32_t *order; /* workspace of hd_sample_token */
    int64_t drawn_max, running_count;
    uint64_t started;
    int slot_count;
    bool prompts_last; /* true if the last step read prompts */
    struct hd_decoder_rows *rows;
    int *slot_of_rows;
    struct hd_drafts *drafts;          /* NULL: the decoder does not draft */
    struct hd_draft_request *requests; /* [slots] */
    bool
        keeps_state; /* true: layers without attention keep a state of all that a slot has read, which
                         cannot go back: a sequence shares all of it, or nothing */
    struct hd_likely top[HD_GENERATE_TOP_MAX]; /* candidates for the token that is being reported */
};

/* ---- new and free ---- */

enum hd_status hd_generator_new(struct hd_decoder *decoder, int64_t drawn_max,
                                struct hd_generator **ret_generator)
{
    const int slots = hd_decoder_slots(decoder);
    const int64_t context = hd_decoder_context(decoder), vocab = hd_decoder_vocab(decoder);
    struct hd_generator *g = calloc(1, sizeof *g);

    if (!g)
        return hd_err(HD_NO_MEMORY, "no memory for a generator");
    g->decoder = decoder;
    g->slot_count = slots;
    g->keeps_state = hd_job_keeps_state(hd_decoder_job(decoder));
    g->drawn_max = drawn_max > 0 && drawn_max < vocab ? drawn_max : vocab;
    g->waiting_end = &g->waiting;
    g->slots = calloc((size_t)slots, sizeof *g->slots);
    g->rows = calloc((size_t)slots, sizeof *g->rows);
    g->slot_of_rows = calloc((size_t)slots, sizeof *g->slot_of_rows);
    g->order = calloc((size_t)g->drawn_max, sizeof *g->order);
    g->requests = calloc((size_t)slots, sizeof *g->requests);
    if (!g->slots || !g->rows || !g->slot_of_rows || !g->order || !g->requests)
        goto no_memory;
    if (hd_decoder_drafts(decoder) && hd_drafts_new(decoder, g->drawn_max, &g->drafts))
        goto no_memory;
    for (int i = 0; i < slots; i++) {
        g->slots[i].history = calloc((size_t)context, sizeof *g->slots[i].history);
        if (!g->slots[i].history)
            goto no_memory;
    }
    *ret_generator = g;
    return HD_OK;

no_memory:
    hd_generator_free(g);
    return hd_err(HD_NO_MEMORY, "no memory for %d sequences of %lld tokens", slots,
                  (long long)context);
}

static void free_sequence(struct hd_sequence *s)
{
    if (s)
        free(s->prompt);
    free(s);
}

void hd_generator_free(struct hd_generator *g)
{
    if (!g)
        return;
    for (struct hd_sequence *s = g->waiting, *next; s; s = next) {
        next = s->next;
        free_sequence(s);
    }
    for (int i = 0; g->slots && i < g->slot_count; i++) {
        free_sequence(g->slots[i].sequence);
        free(g->slots[i].history);
    }
    free(g->slots);
    free(g->rows);
    free(g->slot_of_rows);
    free(g->order);
    free(g->requests);
    hd_drafts_free(g->drafts);
    free(g);
}

struct hd_draft_counts hd_generator_drafts(const struct hd_generator *g)
{
    return g->drafts ? hd_drafts_counts(g->drafts) : (struct hd_draft_counts){0};
}

/* ---- adding and removing sequences ---- */

static enum hd_status check(const struct hd_generator *g, const struct hd_generation *what)
{
    const int64_t context = hd_decoder_context(g->decoder), vocab = hd_decoder_vocab(g->decoder);

    if (what->prompt_count < 1)
        return hd_err(HD_INVALID, "a prompt needs at least one token");
    if (what->prompt_count > context && !what->slides)
        return hd_err(HD_INVALID,
                      "the prompt has %lld tokens, and the context is %lld tokens; shorten it, or "
                      "start with a larger --context if the model has one",
                      (long long)what->prompt_count, (long long)context);
    for (int64_t i = 0; i < what->prompt_count; i++)
        if (what->prompt[i] < 0 || what->prompt[i] >= vocab)
            return hd_err(HD_INVALID, "token %d is outside the vocabulary of %lld",
                          (int)what->prompt[i], (long long)vocab);
    assert(what->top >= 0 && what->top <= HD_GENERATE_TOP_MAX);
    return HD_OK;
}

enum hd_status hd_generator_add(struct hd_generator *g, const struct hd_generation *what,
                                struct hd_sequence **ret_sequence)
{
    /* nothing follows the last token of a prompt that is only reported, so the model need not read
     * it */
    const bool keeps_last = what->reports_prompt && what->slides && !what->max_tokens &&
                            what->prompt_count > 1 && what->reported_from < what->prompt_count;
    const int64_t context = hd_decoder_context(g->decoder);
    const int64_t all = what->prompt_count - keeps_last;
    const int64_t count = all < context ? all : context; /* a prompt that is too long is cut at its
                                                            beginning */
    struct hd_sequence *s;
    enum hd_status st = check(g, what);

    if (st)
        return st;
    s = calloc(1, sizeof *s);
    if (s)
        s->prompt = malloc((size_t)count * sizeof *s->prompt);
    if (!s || !s->prompt) {
        free(s);
        return hd_err(HD_NO_MEMORY, "no memory for a sequence");
    }
    memcpy(s->prompt, what->prompt + all - count, (size_t)count * sizeof *s->prompt);
    s->last = keeps_last ? what->prompt[all] : -1;
    s->what = *what;
    s->what.prompt = s->prompt;
    s->what.reported_from -= all - count;
    if (s->what.reported_from < 0)
        s->what.reported_from = 0;
    s->what.prompt_count = count;
    if (what->stops)
        s->stops = *what->stops;
    s->what.stops = &s->stops;
    *g->waiting_end = s;
    g->waiting_end = &s->next;
    if (ret_sequence)
        *ret_sequence = s;
    return HD_OK;
}

static void unqueue(struct hd_generator *g, struct hd_sequence **at)
{
    struct hd_sequence *s = *at;

    *at = s->next;
    s->next = NULL;
    if (g->waiting_end == &s->next)
        g->waiting_end = at;
}

static int index_of(const struct hd_generator *g, const struct generator_slot *slot)
{
    return (int)(slot - g->slots);
}

/* Frees a slot of its sequence. The slot keeps its tokens for a later sequence with the same
 * beginning. */
static void leave_slot(struct hd_generator *g, struct generator_slot *slot)
{
    slot->sequence = NULL;
    slot->count = slot->filled;
    if (g->drafts)
        hd_drafts_drop(g->drafts, index_of(g, slot));
    g->running_count--;
}

void hd_generator_remove(struct hd_generator *g, struct hd_sequence *s)
{
    for (int i = 0; i < g->slot_count; i++)
        if (g->slots[i].sequence == s) {
            leave_slot(g, &g->slots[i]);
            free_sequence(s);
            return;
        }
    for (struct hd_sequence **at = &g->waiting; *at; at = &(*at)->next)
        if (*at == s) {
            unqueue(g, at);
            free_sequence(s);
            return;
        }
}

static void end(struct hd_generator *g, struct generator_slot *slot, enum hd_generation_end how,
                enum hd_status st)
{
    struct hd_sequence *s = slot->sequence;

    leave_slot(g, slot);
    if (s->what.on_end)
        s->what.on_end(s->what.user, how, st);
    free_sequence(s);
}

/* Returns whether the layer that drafts must read what the sequence reads. */
static bool wants_drafts(const struct hd_generator *g, const struct hd_sequence *s)
{
    return g->drafts && s->what.max_tokens > 0;
}

/* Returns the rows that remain of those the layer that drafts has read in a slot, if its first `common`
 * tokens stay: the last of them has read the token behind it, which may be another one now. */
static int64_t drafts_kept(const struct hd_generator *g, const struct generator_slot *slot,
                           int64_t common)
{
    const int64_t read = hd_drafts_read(g->drafts, index_of(g, slot));
    const int64_t left = common > 0 ? common - 1 : 0;

    return left < read ? left : read;
}

/* Returns the number of tokens that the slot has read and with which the sequence begins. The token
 * before the first one that is reported or sampled is read again, for its logits; a sequence that
 * drafts also reads again what the layer that drafts has not read. */
static int64_t common_beginning(const struct hd_generator *g, const struct generator_slot *slot,
                                const struct hd_sequence *s)
{
    const int64_t next = s->what.reports_prompt ? s->what.reported_from : s->what.prompt_count;
    int64_t n = 0;

    while (n < slot->filled && n + 1 < next && slot->history[n] == s->prompt[n])
        n++;
    if (wants_drafts(g, s))
        n = drafts_kept(g, slot, n);
    return g->keeps_state && n < slot->filled ? 0 : n;
}

/* Returns the free slot that shares the longest beginning with the sequence; among equal ones the
 * slot with the fewest tokens. NULL: all slots are taken. */
static struct generator_slot *choose_slot(const struct hd_generator *g, const struct hd_sequence *s,
                                          int64_t *ret_common)
{
    struct generator_slot *best = NULL;

    *ret_common = 0;
    for (int i = 0; i < g->slot_count; i++) {
        struct generator_slot *slot = &g->slots[i];
        const int64_t common = slot->sequence ? -1 : common_beginning(g, slot, s);

        if (common < 0)
            continue;
        if (!best || common > *ret_common ||
            (common == *ret_common && slot->filled < best->filled)) {
            best = slot;
            *ret_common = common;
        }
    }
    return best;
}

static void report(struct hd_generator *g, struct generator_slot *slot, struct hd_generated *token,
                   const float *logits);

static void start_waiting(struct hd_generator *g)
{
    while (g->waiting) {
        struct hd_sequence *s = g->waiting;
        int64_t common;
        struct generator_slot *slot = choose_slot(g, s, &common);

        if (!slot)
            return;
        unqueue(g, &g->waiting);
        memcpy(slot->history, s->prompt, (size_t)s->what.prompt_count * sizeof *s->prompt);
        if (g->drafts)
            hd_drafts_discard(g->drafts, index_of(g, slot),
                              wants_drafts(g, s) ? common : drafts_kept(g, slot, common));
        slot->filled = common;
        slot->count = s->what.prompt_count;
        slot->sequence = s;
        slot->order = g->started++;
        g->running_count++;
        s->reads_prompt = true;
        if (s->what.reports_prompt && s->what.reported_from == 0) {
            struct hd_generated first = {.id = s->prompt[0], .of_prompt = true};

            report(g, slot, &first, NULL);
        }
    }
}

/* ---- reporting tokens ---- */

/* Calls on_token of the slot's sequence with one token. logits: the model's output behind the
 * previous token; NULL: no log-probabilities are reported. Sets s->ended if the callback ends the
 * sequence. */
static void report(struct hd_generator *g, struct generator_slot *slot, struct hd_generated *token,
                   const float *logits)
{
    const int64_t V = hd_decoder_vocab(g->decoder);
    struct hd_sequence *s = slot->sequence;
    int32_t ids[HD_GENERATE_TOP_MAX];

    token->log_probability = NAN;
    token->top = g->top;
    if (logits) {
        const double norm = hd_sample_norm(logits, V);

        token->log_probability = (double)logits[token->id] - norm;
        token->top_count = s->what.top < V ? s->what.top : (int)V;
        hd_sample_top(logits, V, token->top_count, ids);
        for (int i = 0; i < token->top_count; i++)
            g->top[i] = (struct hd_likely){ids[i], (double)logits[ids[i]] - norm};
    }
    if (s->what.on_token && !s->what.on_token(s->what.user, token))
        s->ended = true;
}

/* Returns the next token of the slot's sequence: sampled, or the decision on draft `draft`; -1: none
 * is proposed. */
static int32_t choose_token(struct hd_generator *g, const struct generator_slot *slot, int draft,
                            const float *logits)
{
    const struct hd_sequence *s = slot->sequence;
    const uint64_t index = (uint64_t)s->drawn;

    return draft < 0 ? hd_sample_token(logits, g->drawn_max, &s->what.sampling, index, g->order)
                     : hd_drafts_decide(g->drafts, index_of(g, slot), draft, logits,
                                        &s->what.sampling, index, g->order);
}

/* Chooses the next token of the slot's sequence from `logits` and reports it; then the sequence
 * continues or ends. */
static void draw(struct hd_generator *g, struct generator_slot *slot, int draft,
                 const float *logits)
{
    struct hd_sequence *s = slot->sequence;
    const int64_t context = hd_decoder_context(g->decoder), half = context / 2;
    struct hd_generated token = {.id = -1};

    s->reads_prompt = false;
    if (s->what.max_tokens <= s->drawn) {
        end(g, slot, HD_GENERATION_LENGTH, HD_OK);
        return;
    }
    token.id = choose_token(g, slot, draft, logits);
    token.is_stop = hd_stops_has(&s->stops, token.id);
    s->drawn++;
    report(g, slot, &token, s->what.reports_odds ? logits : NULL);
    if (token.is_stop || s->ended) {
        end(g, slot, HD_GENERATION_STOP, HD_OK);
    } else if (s->drawn == s->what.max_tokens || (slot->count == context && !s->what.slides)) {
        end(g, slot, HD_GENERATION_LENGTH, HD_OK);
    } else {
        if (slot->count == context) {
            memmove(slot->history, slot->history + context - half,
                    (size_t)half * sizeof *slot->history);
            slot->count = half;
            slot->filled = 0;
            if (g->drafts)
                hd_drafts_discard(g->drafts, index_of(g, slot), 0);
        }
        slot->history[slot->count++] = token.id;
    }
}

/* Reports the last token of a prompt, which is not read (s->last); the sequence ends with it. */
static void report_last(struct hd_generator *g, struct generator_slot *slot, const float *logits)
{
    struct hd_generated token = {.id = slot->sequence->last, .of_prompt = true};

    report(g, slot, &token, logits);
    end(g, slot, slot->sequence->ended ? HD_GENERATION_STOP : HD_GENERATION_LENGTH, HD_OK);
}

/* ---- a step ---- */

/* Handles the logits behind a sequence's last token and its drafts, which are entry `index` of the
 * decoder call: takes tokens up to the first draft that is not confirmed, and one more. */
static enum hd_status take_drafts(struct hd_generator *g, struct generator_slot *slot, int index)
{
    const struct hd_sequence *s = slot->sequence;
    int32_t drafts[HD_DECODER_DRAFTS_MAX];
    int count;
    const int32_t *tokens = hd_drafts_of(g->drafts, index_of(g, slot), &count);
    bool goes_on = true;

    memcpy(drafts, tokens, (size_t)count * sizeof *drafts);
    for (int i = 0; goes_on && i <= count; i++) {
        const float *logits;
        const enum hd_status st = hd_decoder_logits(g->decoder, index, i, &logits);

        if (st) {
            end(g, slot, HD_GENERATION_FAILED, st);
            return HD_OK;
        }
        slot->filled++;
        draw(g, slot, i < count ? i : -1, logits);
        goes_on = slot->sequence == s && i < count && slot->count == slot->filled + 1 &&
                  slot->history[slot->filled] == drafts[i];
    }
    return HD_OK;
}

/* Handles the logits that the decoder computed for the `count` tokens read in a slot, which is
 * entry `index` of the decoder call: reports prompt tokens, then samples. */
static enum hd_status take_logits(struct hd_generator *g, struct generator_slot *slot, int index,
                                  int64_t count)
{
    struct hd_sequence *s = slot->sequence;
    const bool reports = s->reads_prompt && s->what.reports_prompt;
    enum hd_status st = HD_OK;

    if (count > slot->count - slot->filled)
        return take_drafts(g, slot, index);
    for (int64_t i = reports ? 0 : count - 1; !st && !s->ended && i < count; i++) {
        const int64_t next = slot->filled + i + 1;
        const float *logits;

        if (next < slot->count && (!reports || next < s->what.reported_from))
            continue;
        st = hd_decoder_logits(g->decoder, index, i, &logits);
        if (!st && next < slot->count) {
            struct hd_generated token = {.id = slot->history[next], .of_prompt = true};

            report(g, slot, &token, logits);
        } else if (!st) {
            slot->filled += count;
            if (s->last >= 0)
                report_last(g, slot, logits);
            else
                draw(g, slot, -1, logits);
            return HD_OK;
        }
    }
    slot->filled += count;
    if (st)
        end(g, slot, HD_GENERATION_FAILED, st);
    else if (s->ended)
        end(g, slot, HD_GENERATION_STOP, HD_OK);
    return HD_OK;
}

static void add_rows(struct hd_generator *g, int slot, int64_t count, int *n)
{
    const struct generator_slot *s = &g->slots[slot];

    g->slot_of_rows[*n] = slot;
    g->rows[(*n)++] = (struct hd_decoder_rows){
        .slot = slot, .filled = s->filled, .tokens = s->history + s->filled, .count = count};
}

/* Returns the slot with the earliest sequence, from order `after` on, that has more than one token
 * to read; -1: none. */
static int next_prompt(const struct hd_generator *g, uint64_t after)
{
    int best = -1;

    for (int i = 0; i < g->slot_count; i++) {
        const struct generator_slot *s = &g->slots[i];

        if (s->sequence && s->count - s->filled > 1 && s->order >= after &&
            (best < 0 || s->order < g->slots[best].order))
            best = i;
    }
    return best;
}

/* Chooses for the next decoder call the slot with the earliest prompt that is not read yet; if few
 * of its tokens remain, also slots whose prompts have few tokens left. Returns their number. */
static int choose_prompts(struct hd_generator *g)
{
    int n = 0, slot = next_prompt(g, 0);
    int64_t most = 0;

    for (; slot >= 0; slot = next_prompt(g, g->slots[slot].order + 1)) {
        const int64_t left = g->slots[slot].count - g->slots[slot].filled;
        const int64_t capacity = hd_decoder_rows_max(g->decoder, n + 1);

        if (n && (capacity <= 1 || left > capacity || most > capacity))
            continue;
        most = left > most ? left : most;
        add_rows(g, slot, left < capacity ? left : capacity, &n);
        if (most > hd_decoder_rows_max(g->decoder, n + 1))
            break;
    }
    return n;
}

/* Puts the drafts of a slot behind its last token, where the next call reads them. Returns their
 * number. */
static int64_t put_drafts(struct hd_generator *g, struct generator_slot *slot)
{
    int count = 0;
    const int32_t *tokens;

    if (!g->drafts)
        return 0;
    tokens = hd_drafts_of(g->drafts, index_of(g, slot), &count);
    memcpy(slot->history + slot->count, tokens, (size_t)count * sizeof *tokens);
    return count;
}

/* Chooses for the next decoder call all slots whose sequence has one token to read, with the drafts
 * behind it. Returns their number. */
static int choose_ones(struct hd_generator *g)
{
    int n = 0;

    for (int i = 0; i < g->slot_count; i++)
        if (g->slots[i].sequence && g->slots[i].count - g->slots[i].filled == 1)
            add_rows(g, i, 1 + put_drafts(g, &g->slots[i]), &n);
    return n;
}

/* Describes what the layer that drafts does for entry i of the last decoder call. A sequence that has
 * ended, or that begins a new context, keeps nothing of the call. */
static struct hd_draft_request draft_request(const struct hd_generator *g, int i)
{
    const struct generator_slot *slot = &g->slots[g->slot_of_rows[i]];
    const struct hd_sequence *s = slot->sequence;
    const int64_t context = hd_decoder_context(g->decoder), filled = g->rows[i].filled;
    struct hd_draft_request r = {.slot = g->slot_of_rows[i], .filled = filled};

    if (!s || !wants_drafts(g, s) || slot->filled <= filled)
        return r;
    r.tokens = slot->history + filled + 1;
    r.count = slot->filled - filled;
    r.sampling = &s->what.sampling;
    r.index = (uint64_t)s->drawn;
    if (slot->count - slot->filled > 1)
        return r; /* the rest of the prompt comes first */
    r.most = hd_decoder_drafts(g->decoder);
    if (r.most > context - slot->count)
        r.most = context - slot->count;
    if (r.most > s->what.max_tokens - s->drawn - 1)
        r.most = s->what.max_tokens - s->drawn - 1;
    if (r.most <= 0)
        r.count = r.most = 0; /* no draft will follow, so the layer need not read on */
    return r;
}

/* Drafts behind the sequences of the last decoder call. */
static enum hd_status draft(struct hd_generator *g, int n)
{
    if (!g->drafts)
        return HD_OK;
    for (int i = 0; i < n; i++)
        g->requests[i] = draft_request(g, i);
    return hd_drafts_run(g->drafts, g->requests, n, g->order);
}

/* Ends sequences that a callback has ended before they read a token. */
static void end_early(struct hd_generator *g)
{
    for (int i = 0; i < g->slot_count; i++)
        if (g->slots[i].sequence && g->slots[i].sequence->ended)
            end(g, &g->slots[i], HD_GENERATION_STOP, HD_OK);
}

enum hd_status hd_generator_step(struct hd_generator *g, bool *ret_busy)
{
    bool prompts = !g->prompts_last;
    enum hd_status st;
    int n;

    start_waiting(g);
    end_early(g);
    n = prompts ? choose_prompts(g) : choose_ones(g);
    if (!n) {
        prompts = !prompts;
        n = prompts ? choose_prompts(g) : choose_ones(g);
    }
    *ret_busy = n > 0 || g->waiting;
    if (!n)
        return HD_OK;
    g->prompts_last = prompts;
    st = hd_decoder_run(g->decoder, g->rows, n);
    for (int i = 0; !st && i < n; i++)
        st = take_logits(g, &g->slots[g->slot_of_rows[i]], i, g->rows[i].count);
    return st ? st : draft(g, n);
}
