/* Generation computes what training computed: token by token against a cache, in chunks, and over
 * whole windows the model says the same; and the next token is drawn from exactly those odds.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "runs.h"
#include "train/generate.h"

enum { CONTEXT = 256, VOCAB = 256, WINDOWS = 3, CORPUS_BYTES = 20000 };

/* ---- a checkpoint to generate from ---- */

struct model {
    bool damaged; /* the head's weights are finite, but so large that logits are not */
    bool alibi;   /* and six heads, no power of two */
    struct harness h;
    struct hd_job job;
    struct hd_saved saved;
    double loss; /* of the trainer's validation, which is the first WINDOWS windows of `text` */
    int64_t targets;
    unsigned char text[WINDOWS * CONTEXT + 1];
};

/* Loading what was saved renews the compute copies. */
static enum hd_status make_checkpoint(struct harness_rank *r)
{
    struct model *m = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trained(r, &t);

    if (!st && m->damaged) {
        const int last = hd_trainer_layout(t)->registry.param_count - 1;
        float *weights = harness_take(t, last, HD_STATE_WEIGHT);

        for (int64_t i = 0; i < hd_trainer_layout(t)->registry.params[last].count; i++)
            weights[i] = FLT_MAX;
        harness_put(t, last, HD_STATE_WEIGHT, weights);
    }
    if (!st)
        st = hd_trainer_save(t, &m->saved);
    if (!st)
        st = hd_trainer_load(t, m->saved.path, m->saved.hash, NULL);
    if (!st)
        st = hd_trainer_validate(t, &m->loss, &m->targets);
    hd_trainer_free(t);
    return st;
}

static void model_setup(struct model *m, const char *family, const char *precision)
{
    FILE *file;

    harness_setup(&m->h, CORPUS_BYTES);
    m->job = harness_job(&m->h, family, 1);
    if (m->alibi) {
        m->job.heads = 6;
        (void)snprintf(m->job.positions, sizeof m->job.positions, "alibi");
    }
    m->job.context = CONTEXT;
    m->job.global_batch = m->job.micro_batch = WINDOWS;
    m->job.validate_batches = 1;
    m->job.val = &m->h.file; /* the corpus itself, from its beginning */
    m->job.val_count = 1;
    m->job.val_split = 0;
    (void)snprintf(m->job.precision, sizeof m->job.precision, "%s", precision);
    file = fopen(m->h.corpus, "rb");
    assert_non_null(file);
    assert_int_equal(fread(m->text, 1, sizeof m->text, file), sizeof m->text);
    (void)fclose(file);
    if (harness_threads(&m->job, 1, m, make_checkpoint))
        fail_msg("%s", hd_err_message());
    assert_int_equal(m->targets, WINDOWS * CONTEXT);
}

static struct hd_generator *open_model(const struct model *m)
{
    struct hd_generator *g;

    if (hd_generator_open(&(struct hd_source_dirs){.dir = m->saved.path}, hd_backend_cpu(), 1, &g))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_generator_context(g), CONTEXT);
    assert_int_equal(hd_generator_vocab(g), VOCAB);
    assert_int_equal(hd_generator_step(g), 2);
    assert_string_equal(hd_generator_tokenizer(g), "bytes");
    return g;
}

/* Logits after text[first .. first+count): read at once (the prompt), or token by token. */
static const float *read_at_once(struct hd_generator *g, const struct model *m, int64_t first,
                                 int64_t count)
{
    int32_t *tokens = malloc((size_t)count * sizeof *tokens);
    const float *logits = NULL;
    enum hd_status st;

    for (int64_t i = 0; i < count; i++)
        tokens[i] = m->text[first + i];
    st = hd_generator_prompt(g, tokens, count, &logits);
    free(tokens);
    if (st)
        fail_msg("%s", hd_err_message());
    return logits;
}

static const float *read_next(struct hd_generator *g, int32_t token)
{
    const float *logits = NULL;

    if (hd_generator_next(g, token, &logits))
        fail_msg("%s", hd_err_message());
    return logits;
}

/* ---- the same model ---- */

static double minus_log_p(const float *logits, int target)
{
    double largest = -INFINITY, sum = 0;

    for (int v = 0; v < VOCAB; v++)
        largest = fmax(largest, (double)logits[v]);
    for (int v = 0; v < VOCAB; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum) - (double)logits[target];
}

/* Mean over all targets of the windows, each read from its first token on, one token at a time. */
static double loss_token_by_token(const struct model *m)
{
    struct hd_generator *g = open_model(m);
    double sum = 0;

    for (int64_t w = 0; w < WINDOWS; w++) {
        const unsigned char *window = m->text + w * CONTEXT;
        const float *logits = read_at_once(g, m, w * CONTEXT, 1);

        for (int i = 0; i < CONTEXT; i++) {
            sum += minus_log_p(logits, window[i + 1]);
            if (i + 1 < CONTEXT)
                logits = read_next(g, window[i + 1]);
        }
    }
    hd_generator_close(g);
    return sum / (WINDOWS * CONTEXT);
}

static void loss_case(const char *family, bool alibi, double bound)
{
    struct model m = {.alibi = alibi};
    double loss;

    model_setup(&m, family, "fp32");
    assert_true(m.loss > 2); /* noise does not predict: agreement at 0 would mean nothing */
    loss = loss_token_by_token(&m);
    if (!(fabs(loss - m.loss) <= bound))
        fail_msg("%s%s: loss %.7f token by token, %.7f in validation", family,
                 alibi ? " with alibi" : "", loss, m.loss);
    harness_teardown(&m.h);
}

static void token_by_token_the_loss_is_that_of_validation(void **state)
{
    (void)state;
    loss_case("llama", false, 1e-5);
    loss_case("gpt2", false, 1e-5);
    loss_case("llama", true, 1e-5);
}

/* The same encodings at the same places: only sums in another order, which may round one value in
 * many the other way, by 2^-8 of itself in bf16 and 2^-11 in fp16. As errors of 768 targets that is
 * at most as much of the loss. */
static void in_bf16_and_fp16_the_loss_is_that_of_validation_but_for_rounding(void **state)
{
    static const struct {
        const char *precision;
        double rounding;
    } all[] = {{"bf16", 0x1p-8}, {"fp16", 0x1p-11}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct model m = {0};

        model_setup(&m, "llama", all[i].precision);
        assert_true(fabs(loss_token_by_token(&m) - m.loss) <= m.loss * all[i].rounding);
        harness_teardown(&m.h);
    }
}

/* max |a - b| / max |b| */
static double apart(const float *a, const float *b)
{
    double difference = 0, size = 0;

    for (int v = 0; v < VOCAB; v++) {
        difference = fmax(difference, fabs((double)a[v] - (double)b[v]));
        size = fmax(size, fabs((double)b[v]));
    }
    return difference / size;
}

/* Prompts around the chunk of 64 rows: none, one short of a chunk, one chunk, one more, three and a
 * rest. Products of other shapes add in another order: fp32 rounding, a few 1e-7. */
static void chunks_of_a_prompt_do_not_show(void **state)
{
    static const int64_t counts[] = {1, 63, 64, 65, 200};
    static const char *const families[] = {"llama", "gpt2"};

    (void)state;
    for (int f = 0; f < 2; f++) {
        struct model m = {0};
        struct hd_generator *chunks, *ones;

        model_setup(&m, families[f], "fp32");
        chunks = open_model(&m);
        ones = open_model(&m);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            const float *a = read_at_once(chunks, &m, 0, counts[c]);
            const float *b = read_at_once(ones, &m, 0, 1);

            for (int64_t i = 1; i < counts[c]; i++)
                b = read_next(ones, m.text[i]);
            if (!(apart(a, b) <= 1e-5))
                fail_msg("%s: logits after %lld tokens are %g apart", families[f],
                         (long long)counts[c], apart(a, b));
        }
        hd_generator_close(chunks);
        hd_generator_close(ones);
        harness_teardown(&m.h);
    }
}

/* ---- the limits of the context ---- */

static void check_equal(const float *a, const float *b)
{
    assert_memory_equal(a, b, VOCAB * sizeof *a);
}

/* When the cache is full the last half and the new token begin a new one, and so on for ever. */
static void generation_goes_on_behind_the_context(void **state)
{
    struct model m = {0};
    struct hd_generator *g, *fresh;

    (void)state;
    model_setup(&m, "llama", "fp32");
    g = open_model(&m);
    fresh = open_model(&m);
    (void)read_at_once(g, &m, 0, CONTEXT);
    for (int64_t i = CONTEXT; i < 2 * CONTEXT + 10; i++) {
        const float *logits = read_next(g, m.text[i]);

        if ((i - CONTEXT) % (CONTEXT / 2) == 0) /* full again: what is left of it is all there is */
            check_equal(logits, read_at_once(fresh, &m, i - CONTEXT / 2, CONTEXT / 2 + 1));
        else
            check_equal(logits, read_next(fresh, m.text[i]));
    }
    hd_generator_close(g);
    hd_generator_close(fresh);
    harness_teardown(&m.h);
}

static void a_long_prompt_is_read_from_where_it_can_be_seen(void **state)
{
    struct model m = {0};
    struct hd_generator *g, *fresh;
    const float *logits;

    (void)state;
    model_setup(&m, "gpt2", "fp32");
    g = open_model(&m);
    fresh = open_model(&m);
    logits = read_at_once(g, &m, 0, CONTEXT + 100);
    check_equal(logits, read_at_once(fresh, &m, 100, CONTEXT));
    /* a prompt forgets what was before it */
    logits = read_at_once(g, &m, 300, 70);
    hd_generator_close(fresh);
    fresh = open_model(&m);
    check_equal(logits, read_at_once(fresh, &m, 300, 70));
    hd_generator_close(g);
    hd_generator_close(fresh);
    harness_teardown(&m.h);
}

static void prompts_and_places_that_make_no_sense_are_refused(void **state)
{
    static const int32_t bad[] = {1, VOCAB}, negative[] = {-1};
    struct model m = {0};
    struct hd_generator *g;
    const float *logits;

    (void)state;
    model_setup(&m, "llama", "fp32");
    g = open_model(&m);
    assert_int_equal(hd_generator_prompt(g, bad, 0, &logits), HD_INVALID);
    assert_int_equal(hd_generator_prompt(g, bad, 2, &logits), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "token 256 is outside the vocabulary of 256"));
    assert_int_equal(hd_generator_prompt(g, negative, 1, &logits), HD_INVALID);
    assert_int_equal(hd_generator_next(g, VOCAB, &logits), HD_INVALID);
    hd_generator_close(g);
    assert_int_equal(
        hd_generator_open(&(struct hd_source_dirs){.dir = m.h.dir}, hd_backend_cpu(), 1, &g),
        HD_NOT_FOUND);
    harness_teardown(&m.h);
}

/* Goal: no garbage without a word. Method: the head overflows. */
static void a_model_that_is_not_finite_says_so(void **state)
{
    static const int32_t prompt[] = {65};
    struct model m = {.damaged = true};
    struct hd_generator *g;
    const float *logits;

    (void)state;
    model_setup(&m, "llama", "fp32");
    g = open_model(&m);
    assert_int_equal(hd_generator_prompt(g, prompt, 1, &logits), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "not finite"));
    hd_generator_close(g);
    harness_teardown(&m.h);
}

/* ---- sampling ---- */

enum { V = 12, DRAWS = 120000 };

static const float some_logits[V] = {0.5f, 2.0f,  -1.0f, 1.5f, 0.0f, 2.0f,
                                     1.0f, -0.5f, -3.0f, 0.7f, 1.9f, -2.0f};

/* How many ids are more likely; of equals the smaller id goes first. */
static int rank_of(int id)
{
    int before = 0;

    for (int v = 0; v < V; v++)
        before += some_logits[v] > some_logits[id] || (some_logits[v] == some_logits[id] && v < id);
    return before;
}

/* The odds that the settings define, worked out without sorting. */
static void expected_odds(const struct hd_sampling *s, double *ret_odds)
{
    double weight[V], total = 0, kept = 0;

    for (int v = 0; v < V; v++) {
        weight[v] = exp((double)some_logits[v] / s->temperature);
        if (s->top_k && rank_of(v) >= s->top_k)
            weight[v] = 0;
        total += weight[v];
    }
    for (int v = 0; v < V; v++) {
        double before = 0; /* probability of everything more likely: v is needed while below p */

        for (int u = 0; u < V; u++)
            before += rank_of(u) < rank_of(v) ? weight[u] : 0;
        ret_odds[v] = before < s->top_p * total ? weight[v] : 0;
    }
    for (int v = 0; v < V; v++)
        kept += ret_odds[v];
    for (int v = 0; v < V; v++)
        ret_odds[v] /= kept;
}

/* The chi-square value that chance exceeds once in a million (Wilson and Hilferty 1931; 4.75 is
 * that quantile of a normal variable). Seeds are fixed: a pass stays a pass. */
static double chi_square_limit(int freedom)
{
    const double k = 2.0 / (9.0 * freedom);

    return freedom * pow(1 - k + 4.75 * sqrt(k), 3);
}

static void check_counts(const int64_t *counts, const double *odds, int cells, int64_t draws)
{
    double chi_square = 0;
    int freedom = -1;

    for (int i = 0; i < cells; i++) {
        const double expected = odds[i] * (double)draws;

        if (odds[i] == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        chi_square += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
        freedom++;
    }
    if (freedom > 0 && chi_square > chi_square_limit(freedom))
        fail_msg("chi-square %g with %d degrees of freedom, limit %g", chi_square, freedom,
                 chi_square_limit(freedom));
}

static void draws_follow_the_odds_of_the_settings(void **state)
{
    static const struct hd_sampling settings[] = {
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 0.5, .top_p = 1, .seed = 2},
        {.temperature = 2, .top_p = 1, .seed = 3},
        {.temperature = 1, .top_k = 4, .top_p = 1, .seed = 4},
        {.temperature = 1, .top_p = 0.7, .seed = 5},
        {.temperature = 0.8, .top_k = 6, .top_p = 0.9, .seed = 6},
        {.temperature = 1, .top_k = 100, .top_p = 1, .seed = 7}, /* more than there are: all */
    };
    int32_t order[V];

    (void)state;
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        int64_t counts[V] = {0};
        double odds[V];

        for (uint64_t i = 0; i < DRAWS; i++)
            counts[hd_sample(some_logits, V, &settings[s], i, order)]++;
        expected_odds(&settings[s], odds);
        check_counts(counts, odds, V, DRAWS);
    }
}

/* One token says nothing about the next. */
static void draws_are_independent(void **state)
{
    const struct hd_sampling s = {.temperature = 1, .top_p = 1, .seed = 11};
    int64_t counts[V * V] = {0};
    double odds[V], pairs[V * V];
    int32_t order[V];

    (void)state;
    for (uint64_t i = 0; i < DRAWS; i += 2)
        counts[hd_sample(some_logits, V, &s, i, order) * V +
               hd_sample(some_logits, V, &s, i + 1, order)]++;
    expected_odds(&s, odds);
    for (int i = 0; i < V * V; i++)
        pairs[i] = odds[i / V] * odds[i % V];
    check_counts(counts, pairs, V * V, DRAWS / 2);
}

/* Ids 1 and 5 have the largest logit, 2.0. */
static void greedy_takes_the_most_likely_and_the_smaller_id(void **state)
{
    static const struct hd_sampling settings[] = {
        {.temperature = 0, .top_p = 1, .seed = 1},
        {.temperature = 1, .top_k = 1, .top_p = 1, .seed = 2},
        {.temperature = 1, .top_p = 1e-9, .seed = 3},
        {.temperature = 1, .top_p = 0, .seed = 4},
    };
    int32_t order[V];

    (void)state;
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++)
        for (uint64_t i = 0; i < 200; i++)
            assert_int_equal(hd_sample(some_logits, V, &settings[s], i, order), 1);
}

/* A draw depends on seed and index alone. Two seeds agree only by chance: less than half the time,
 * as no id has odds of more than a quarter. */
static void a_seed_repeats_its_draws(void **state)
{
    const struct hd_sampling a = {.temperature = 1, .top_p = 1, .seed = 21};
    struct hd_sampling b = a;
    int32_t order[V], first[1000];
    int same = 0;

    (void)state;
    for (uint64_t i = 0; i < 1000; i++)
        first[i] = hd_sample(some_logits, V, &a, i, order);
    b.seed = 22;
    for (uint64_t i = 1000; i-- > 0;) {
        assert_int_equal(hd_sample(some_logits, V, &a, i, order), first[i]);
        same += hd_sample(some_logits, V, &b, i, order) == first[i];
    }
    assert_in_range(same, 1, 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_by_token_the_loss_is_that_of_validation),
        cmocka_unit_test(in_bf16_and_fp16_the_loss_is_that_of_validation_but_for_rounding),
        cmocka_unit_test(chunks_of_a_prompt_do_not_show),
        cmocka_unit_test(generation_goes_on_behind_the_context),
        cmocka_unit_test(a_long_prompt_is_read_from_where_it_can_be_seen),
        cmocka_unit_test(prompts_and_places_that_make_no_sense_are_refused),
        cmocka_unit_test(a_model_that_is_not_finite_says_so),
        cmocka_unit_test(draws_follow_the_odds_of_the_settings),
        cmocka_unit_test(draws_are_independent),
        cmocka_unit_test(greedy_takes_the_most_likely_and_the_smaller_id),
        cmocka_unit_test(a_seed_repeats_its_draws),
    };
    return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
