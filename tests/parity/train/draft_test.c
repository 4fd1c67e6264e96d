/* A decoder that drafts by the layer for further tokens gives what it gives without drafts; the layer
 * computes there what it computed in training. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoding.h"
#include "generate/generator.h"
#include "harness.h"
#include "tests/program/test.h"

enum { CONTEXT = 96, CORPUS_BYTES = 6000, SEQUENCES = 3, TOKENS_MAX = 2 * CONTEXT };

struct model {
    struct harness h;
    struct hd_job job;
    struct hd_saved saved;
    bool bare;      /* without the layer */
    int steps;      /* of training */
    double further; /* mean loss of the token after the next, of a step behind what is saved */
    int32_t text[CORPUS_BYTES];
};

/* Trains, saves, and takes one more step, whose losses are those of the saved weights. */
static enum hd_status train_and_save(struct harness_rank *r)
{
    struct model *m = r->context;
    struct hd_step_result result;
    struct hd_trainer *t = NULL;
    enum hd_status st = m->steps ? harness_trainer(r, &t) : harness_trained(r, &t);

    for (int i = 0; !st && i < m->steps; i++)
        st = hd_trainer_step(t, 0, &result);
    if (!st)
        st = hd_trainer_save(t, &m->saved);
    if (!st)
        st = hd_trainer_load(t, m->saved.path, m->saved.hash, NULL); /* renews compute copies */
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    m->further = result.further.loss[0];
    hd_trainer_free(t);
    return st;
}

static void model_setup(struct model *m, const char *family, int64_t context, int64_t corpus)
{
    FILE *file;

    harness_setup(&m->h, corpus);
    m->job = harness_job(&m->h, family, 1);
    m->job.context = context;
    m->job.mtp_layers = !m->bare;
    m->job.mtp_weight = 1;
    m->job.global_batch = m->job.micro_batch = m->steps ? 4 : 1;
    m->job.steps = m->steps + 10;
    m->job.lr_peak = 1e-2;
    m->job.val_split = 0;
    m->job.validate_every = 0;
    if (m->job.window)
        m->job.window = 24;
    file = fopen(m->h.corpus, "rb");
    assert_non_null(file);
    for (int64_t i = 0; i < corpus; i++)
        m->text[i] = fgetc(file);
    (void)fclose(file);
    if (harness_threads(&m->job, 1, m, train_and_save))
        fail_msg("%s", hd_err_message());
}

/* ---- the layer ---- */

static double minus_log_p(const float *logits, int64_t V, int target)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t v = 0; v < V; v++)
        largest = fmax(largest, (double)logits[v]);
    for (int64_t v = 0; v < V; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum) - (double)logits[target];
}

/* Mean loss of the token after the next in the only window of the corpus, by drafts of the last of
 * `chunk` rows at a time: rows chunk - 1, 2 chunk - 1 ..; of all rows if chunk is 1. */
static double loss_of_drafts(const struct model *m, int64_t window, int64_t chunk, double *ret_last)
{
    struct decoding d = decoding_open_as(m->saved.path, (struct hd_decoder_options){.drafts = 2});
    const int64_t rows = window - 1; /* the last one has no token behind the next in the window */
    double sum = 0;

    for (int64_t at = 0; at < rows; at += chunk) {
        const int64_t n = rows - at < chunk ? rows - at : chunk;
        const struct hd_decoder_rows run = {.filled = at, .tokens = m->text + at, .count = n};
        const struct hd_draft_rows draft = {.filled = at, .tokens = m->text + at + 1, .count = n};
        const float *logits;

        must(hd_decoder_run(d.decoder, &run, 1));
        must(hd_decoder_draft(d.decoder, &draft, 1));
        must(hd_decoder_draft_logits(d.decoder, 0, &logits));
        *ret_last = minus_log_p(logits, m->job.vocab, m->text[at + n + 1]);
        sum += *ret_last;
    }
    decoding_close(&d);
    return sum / (double)rows;
}

/* Method: the corpus is one window, so that the trainer's step is on it, whatever the order. The loss
 * of row t is that of token t + 2; the last of 24 rows has no such token in the window. Chunks of rows
 * give the same last row but for rounding. */
static void a_draft_has_the_loss_of_training(void **state)
{
    static const char *const families[] = {"llama", "deepseek_v3", "glm4_moe"};
    enum { WINDOW = 24 };

    for (int f = 0; f < 3; f++) {
        struct model m = {.steps = 0};
        double loss, last, last_of_chunk;

        model_setup(&m, families[f], WINDOW, WINDOW + 1);
        loss = loss_of_drafts(&m, WINDOW, 1, &last);
        if (!(fabs(loss - m.further) <= 1e-5 * m.further))
            fail_msg("%s: loss %.7f by drafts, %.7f in training", families[f], loss, m.further);
        (void)loss_of_drafts(&m, WINDOW, 9, &last_of_chunk);
        if (!(fabs(last - last_of_chunk) <= 1e-4))
            fail_msg("%s: the last row has %.7f, in chunks %.7f", families[f], last, last_of_chunk);
        harness_teardown(&m.h);
    }
}

static void refuse(const struct model *m, const char *words)
{
    const struct hd_decoder_options options = {
        .dirs = {.dir = m->saved.path}, .backend = harness_backend(), .threads = 1, .drafts = 1};
    struct hd_decoder *d = NULL;

    assert_int_equal(hd_decoder_open(&options, &d), HD_UNSUPPORTED);
    if (!strstr(hd_err_message(), words))
        fail_msg("'%s' does not say '%s'", hd_err_message(), words);
}

static void models_that_cannot_draft_are_refused(void **state)
{
    struct model without = {.bare = true}, delta = {.steps = 0};

    model_setup(&without, "llama", 16, 200);
    refuse(&without, "no layers that predict further tokens");
    harness_teardown(&without.h);
    model_setup(&delta, "qwen3_next", 16, 200);
    refuse(&delta, "gated delta layers");
    harness_teardown(&delta.h);
}

/* ---- sequences ---- */

struct told {
    int32_t ids[TOKENS_MAX];
    int count;
    bool ended;
};

static bool on_token(void *user, const struct hd_generated *token)
{
    struct told *t = user;

    assert_true(t->count < TOKENS_MAX);
    t->ids[t->count++] = token->id;
    return true;
}

static void on_end(void *user, enum hd_generation_end end, enum hd_status st)
{
    struct told *t = user;

    if (st)
        fail_msg("%s", hd_err_message());
    assert_int_equal(end, HD_GENERATION_LENGTH);
    t->ended = true;
}

struct asked {
    struct hd_decoder_options options;
    struct hd_sampling sampling;
    int64_t prompt, tokens; /* of sequence 0; others have fewer */
};

/* Generates behind pieces of the corpus, twice each: the second time a slot has a part of the prompt
 * already. */
static struct hd_draft_counts generate(const struct model *m, const struct asked *a,
                                       struct told told[2 * SEQUENCES])
{
    struct decoding d = decoding_open_as(m->saved.path, a->options);
    struct hd_generator *g;
    struct hd_draft_counts counts;
    bool busy = true;

    must(hd_generator_new(d.decoder, 0, &g));
    memset(told, 0, 2 * SEQUENCES * sizeof *told);
    for (int i = 0; i < 2 * SEQUENCES; i++) {
        const int64_t prompt = a->prompt - 7 * (i % SEQUENCES) - i / SEQUENCES;
        const struct hd_generation what = {.prompt = m->text + 31 * (i % SEQUENCES),
                                           .prompt_count = prompt > 1 ? prompt : 1,
                                           .max_tokens = a->tokens - 5 * i,
                                           .sampling = a->sampling,
                                           .slides = true,
                                           .on_token = on_token,
                                           .on_end = on_end,
                                           .user = &told[i]};

        must(hd_generator_add(g, &what, NULL));
    }
    while (busy)
        must(hd_generator_step(g, &busy));
    for (int i = 0; i < 2 * SEQUENCES; i++) {
        assert_true(told[i].ended);
        assert_int_equal(told[i].count, a->tokens - 5 * i);
    }
    counts = hd_generator_drafts(g);
    hd_generator_free(g);
    decoding_close(&d);
    return counts;
}

/* Generates greedily with drafts and without. Returns how many of 100 drafts were kept. */
static int compare(const struct model *m, struct asked a)
{
    static struct told plain[2 * SEQUENCES], drafted[2 * SEQUENCES];
    const int drafts = a.options.drafts;
    struct hd_draft_counts counts;

    a.options.drafts = 0;
    counts = generate(m, &a, plain);
    assert_int_equal(counts.drafted, 0);
    a.options.drafts = drafts;
    counts = generate(m, &a, drafted);
    for (int i = 0; i < 2 * SEQUENCES; i++)
        for (int k = 0; k < plain[i].count; k++)
            if (plain[i].ids[k] != drafted[i].ids[k])
                fail_msg(
                    "%s, %d drafts, %d slots, tp %d, pp %d: token %d of sequence %d is %d, not "
                    "%d",
                    m->job.family, drafts, a.options.slots, a.options.tp, a.options.pp, k, i,
                    (int)drafted[i].ids[k], (int)plain[i].ids[k]);
    assert_true(counts.drafted > 0);
    return (int)(100 * counts.accepted / counts.drafted);
}

/* The corpus is words in random order: inside a word the layer knows the next letters, behind one it
 * guesses, so that some drafts are kept and some are not. The longest sequence has more tokens than the
 * context, and slides. */
static void greedy_tokens_are_those_without_drafts(void **state)
{
    static const struct {
        const char *family;
        struct asked asked;
    } all[] = {
        {"llama", {{.drafts = 1, .slots = 1}, {.top_p = 1}, 40, 120}},
        {"llama", {{.drafts = 3, .slots = 2}, {.top_p = 1}, 70, 60}},
        {"llama", {{.drafts = 2, .slots = 2, .pp = 2}, {.top_p = 1}, 90, 40}},
        {"llama", {{.drafts = 8, .slots = 3, .tp = 2}, {.top_p = 1}, 33, 40}},
        {"deepseek_v3", {{.drafts = 3, .slots = 3}, {.top_p = 1}, 40, 50}},
        {"mistral", {{.drafts = 2, .slots = 2}, {.top_p = 1}, 40, 70}},
    };
    struct model m = {.steps = 0};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int kept;

        if (harness_backend()->device && (all[i].asked.options.tp || all[i].asked.options.pp))
            continue; /* one device has one rank */
        if (!i || strcmp(all[i].family, all[i - 1].family) != 0) {
            if (i)
                harness_teardown(&m.h);
            m = (struct model){.steps = 80};
            model_setup(&m, all[i].family, CONTEXT, CORPUS_BYTES);
        }
        kept = compare(&m, all[i].asked);
        if (kept < 50 || kept > 95)
            fail_msg("%s, case %zu: %d of 100 drafts are kept", all[i].family, i, kept);
    }
    harness_teardown(&m.h);
}

/* ---- sampling ---- */

enum { SAMPLES = 3000, PROMPT = 12, SLOTS = 8 };

/* Sets ret_odds to the model's odds of the token behind `count` tokens. */
static void odds_behind(const struct model *m, struct decoding *d, const int32_t *tokens,
                        int64_t count, double *ret_odds)
{
    const float *logits = decoding_prompt(d, tokens, count);

    for (int64_t v = 0; v < m->job.vocab; v++)
        ret_odds[v] = exp(-minus_log_p(logits, m->job.vocab, (int)v));
}

/* Sets ret_odds to the odds of the third token behind the prompt: the sum over the first two, of those
 * that are likely; returns what is left out. */
static double odds_of_third(const struct model *m, double *ret_odds)
{
    struct decoding d = decoding_open(m->saved.path);
    const int64_t V = m->job.vocab;
    double first[256], second[256], third[256], rest = 1;
    int32_t tokens[PROMPT + 2];

    memcpy(tokens, m->text, PROMPT * sizeof *tokens);
    memset(ret_odds, 0, (size_t)V * sizeof *ret_odds);
    odds_behind(m, &d, tokens, PROMPT, first);
    for (tokens[PROMPT] = 0; tokens[PROMPT] < V; tokens[PROMPT]++) {
        if (first[tokens[PROMPT]] < 2e-5)
            continue;
        odds_behind(m, &d, tokens, PROMPT + 1, second);
        for (int u = 0; u < V; u++) {
            const double both = first[tokens[PROMPT]] * second[u];

            if (both < 2e-5)
                continue;
            tokens[PROMPT + 1] = u;
            odds_behind(m, &d, tokens, PROMPT + 2, third);
            rest -= both;
            for (int v = 0; v < V; v++)
                ret_odds[v] += both * third[v];
        }
    }
    decoding_close(&d);
    return rest;
}

/* Method: the third token of many sequences, of which the second and third were drafted: counts against
 * the model's odds, by chi-square over the tokens expected 20 times or more. Seeds are fixed: a pass
 * stays a pass. The limit is far above what chance gives (mean k, deviation sqrt(2 k)); a rule that kept
 * every draft, or took the layer's odds for others, is above it by a factor. */
static void sampled_tokens_have_the_odds_of_the_model(void **state)
{
    static struct told told[SAMPLES];
    struct model m = {.steps = 60};
    double odds[256], chi_square = 0, rest;
    int counts[256] = {0}, cells = 0;
    struct hd_draft_counts drafts;
    struct hd_generator *g;
    struct decoding d;
    bool busy = true;

    if (harness_backend()->device)
        return; /* it draws as the cpu does */
    model_setup(&m, "llama", CONTEXT, CORPUS_BYTES);
    rest = odds_of_third(&m, odds);
    d = decoding_open_as(m.saved.path, (struct hd_decoder_options){.drafts = 2, .slots = SLOTS});
    must(hd_generator_new(d.decoder, 0, &g));
    for (int i = 0; i < SAMPLES; i++) {
        const struct hd_generation what = {
            .prompt = m.text,
            .prompt_count = PROMPT,
            .max_tokens = 4,
            .sampling = {.temperature = 1, .top_p = 1, .seed = (uint64_t)i},
            .on_token = on_token,
            .on_end = on_end,
            .user = &told[i]};

        must(hd_generator_add(g, &what, NULL));
    }
    while (busy)
        must(hd_generator_step(g, &busy));
    drafts = hd_generator_drafts(g);
    for (int i = 0; i < SAMPLES; i++)
        counts[told[i].ids[2]]++;
    for (int v = 0; v < 256; v++) {
        const double expected = odds[v] * SAMPLES;

        if (expected < 20)
            continue;
        chi_square += (counts[v] - expected) * (counts[v] - expected) / expected;
        cells++;
    }
    assert_true(rest < 0.05 && cells >= 5);
    assert_true(drafts.accepted > drafts.drafted / 10 && drafts.accepted < drafts.drafted * 9 / 10);
    assert_true(chi_square < 3 * cells + 20);
    hd_generator_free(g);
    decoding_close(&d);
    harness_teardown(&m.h);
}

RUN_CASES()
