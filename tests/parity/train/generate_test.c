/* Generation computes what training computed: token by token against a cache, in chunks, and over
 * whole windows the model says the same; and the next token is drawn from exactly those odds.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoding.h"
#include "generate/generator.h"
#include "runs.h"
#include "tests/program/test.h"

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
        const int last = hd_trainer_rank_program(t)->registry.param_count - 1;
        float *weights = harness_take(t, last, HD_STATE_WEIGHT);

        for (int64_t i = 0; i < hd_trainer_rank_program(t)->registry.params[last].count; i++)
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
        m->job.positions = HD_JOB_POSITIONS_ALIBI;
    }
    m->job.context = CONTEXT;
    m->job.global_batch = m->job.micro_batch = WINDOWS;
    m->job.validate_batches = 1;
    m->job.val = &m->h.file; /* the corpus itself, from its beginning */
    m->job.val_count = 1;
    m->job.val_split = 0;
    m->job.precision = hd_job_find_word(hd_job_precision_words, precision);
    file = fopen(m->h.corpus, "rb");
    assert_non_null(file);
    assert_int_equal(fread(m->text, 1, sizeof m->text, file), sizeof m->text);
    (void)fclose(file);
    if (harness_threads(&m->job, 1, m, make_checkpoint))
        fail_msg("%s", hd_err_message());
    assert_int_equal(m->targets, WINDOWS * CONTEXT);
}

static struct decoding open_model(const struct model *m)
{
    struct decoding d = decoding_open(m->saved.path);

    assert_int_equal(hd_decoder_context(d.decoder), CONTEXT);
    assert_int_equal(hd_decoder_vocab(d.decoder), VOCAB);
    assert_int_equal(hd_decoder_step(d.decoder), 2);
    assert_string_equal(hd_decoder_tokenizer(d.decoder), "bytes");
    return d;
}

/* Logits after text[first .. first+count), read at once. */
static const float *read_at_once(struct decoding *d, const struct model *m, int64_t first,
                                 int64_t count)
{
    int32_t tokens[2 * CONTEXT];

    for (int64_t i = 0; i < count; i++)
        tokens[i] = m->text[first + i];
    return decoding_prompt(d, tokens, count);
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
    struct decoding d = open_model(m);
    double sum = 0;

    for (int64_t w = 0; w < WINDOWS; w++) {
        const unsigned char *window = m->text + w * CONTEXT;
        const float *logits = read_at_once(&d, m, w * CONTEXT, 1);

        for (int i = 0; i < CONTEXT; i++) {
            sum += minus_log_p(logits, window[i + 1]);
            if (i + 1 < CONTEXT)
                logits = decoding_next(&d, window[i + 1]);
        }
    }
    decoding_close(&d);
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
    loss_case("llama", false, 1e-5);
    loss_case("gpt2", false, 1e-5);
    loss_case("llama", true, 1e-5);
}

/* Method: training and generation have one encoding at each place: only sums in another order,
 * which may round one value in many the other way, by 2^-8 of itself in bf16 and 2^-11 in fp16. As
 * errors of 768 targets that is at most as much of the loss. */
static void in_bf16_and_fp16_the_loss_is_that_of_validation_but_for_rounding(void **state)
{
    static const struct {
        const char *precision;
        double rounding;
    } all[] = {{"bf16", 0x1p-8}, {"fp16", 0x1p-11}};

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

    for (int f = 0; f < 2; f++) {
        struct model m = {0};
        struct decoding chunks, ones;

        model_setup(&m, families[f], "fp32");
        chunks = open_model(&m);
        ones = open_model(&m);
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            const float *a = read_at_once(&chunks, &m, 0, counts[c]);
            const float *b = read_at_once(&ones, &m, 0, 1);

            for (int64_t i = 1; i < counts[c]; i++)
                b = decoding_next(&ones, m.text[i]);
            if (!(apart(a, b) <= 1e-5))
                fail_msg("%s: logits after %lld tokens are %g apart", families[f],
                         (long long)counts[c], apart(a, b));
        }
        decoding_close(&chunks);
        decoding_close(&ones);
        harness_teardown(&m.h);
    }
}

/* ---- many sequences ---- */

enum { TOLD_MAX = 2 * CONTEXT + 64 };

/* Texts and tokens that a sequence has received. */
struct told {
    struct hd_generated tokens[TOLD_MAX];
    int count, stop_after; /* on_token says to stop behind so many; 0: never */
    bool ended;
    enum hd_generation_end end;
    enum hd_status st;
};

static bool on_token(void *user, const struct hd_generated *token)
{
    struct told *t = user;

    assert_false(t->ended);
    assert_true(t->count < TOLD_MAX);
    t->tokens[t->count++] = *token;
    return t->count != t->stop_after;
}

static void on_end(void *user, enum hd_generation_end end, enum hd_status st)
{
    struct told *t = user;

    assert_false(t->ended);
    t->ended = true;
    t->end = end;
    t->st = st;
}

struct many {
    struct hd_decoder *decoder;
    struct hd_generator *generator;
};

static struct many many_open(const struct model *m, int slots)
{
    const struct hd_decoder_options options = {
        .dirs = {.dir = m->saved.path}, .backend = harness_backend(), .threads = 1, .slots = slots};
    struct many many;

    if (hd_decoder_open(&options, &many.decoder) ||
        hd_generator_new(many.decoder, 0, &many.generator))
        fail_msg("%s", hd_err_message());
    return many;
}

static void many_close(struct many *many)
{
    hd_generator_free(many->generator);
    hd_decoder_close(many->decoder);
}

/* A sequence that begins with text[first .. first+count), told all. */
static struct hd_generation begins_with(const struct model *m, int64_t first, int64_t count,
                                        int32_t *tokens, struct told *told)
{
    for (int64_t i = 0; i < count; i++)
        tokens[i] = m->text[first + i];
    *told = (struct told){.count = 0};
    return (struct hd_generation){.prompt = tokens,
                                  .prompt_count = count,
                                  .max_tokens = 9,
                                  .reports_prompt = true,
                                  .reports_odds = true,
                                  .top = 3,
                                  .on_token = on_token,
                                  .on_end = on_end,
                                  .user = told};
}

static struct hd_sequence *add(struct many *many, const struct hd_generation *what)
{
    struct hd_sequence *s;

    if (hd_generator_add(many->generator, what, &s))
        fail_msg("%s", hd_err_message());
    return s;
}

static void run(struct many *many)
{
    bool busy = true;

    while (busy)
        if (hd_generator_step(many->generator, &busy))
            fail_msg("%s", hd_err_message());
}

/* The tokens that a sequence was told, read one by one by themselves: their odds are those that
 * were told, but for rounding, and what was drawn is the most likely. */
static void check_told(const struct model *m, const struct told *t, int64_t prompt, double bound)
{
    struct decoding d = open_model(m);
    const float *logits = NULL;

    for (int i = 0; i < t->count; i++) {
        const struct hd_generated *token = &t->tokens[i];

        assert_int_equal(token->of_prompt, i < prompt);
        if (i == 0)
            assert_true(isnan(token->log_probability));
        else if (!(fabs(token->log_probability + minus_log_p(logits, token->id)) <= bound))
            fail_msg("token %d of a prompt of %lld: log p %g, alone %g", i, (long long)prompt,
                     token->log_probability, -minus_log_p(logits, token->id));
        for (int v = 0; i >= prompt && v < VOCAB; v++)
            assert_true((double)logits[v] <= (double)logits[token->id] + bound);
        if (i + 1 < t->count) /* nothing follows the last one, and the context may be full */
            logits = decoding_next(&d, token->id);
    }
    decoding_close(&d);
}

/* More sequences than slots, of lengths around the programs' 1, 16 and 64 tokens. Sums in another
 * order: fp32 rounding of logits of about 10. */
static void each_of_many_sequences_says_what_it_says_alone(void **state)
{
    static const int64_t counts[] = {1, 17, 5, 64, 2, 65, 200, 16};
    enum { SEQUENCES = sizeof counts / sizeof counts[0] };
    static const char *const families[] = {"llama", "gpt2"};
    static struct told told[SEQUENCES];
    int32_t tokens[CONTEXT];

    for (int f = 0; f < 2; f++) {
        struct model m = {0};
        struct many many;

        model_setup(&m, families[f], "fp32");
        many = many_open(&m, 3);
        for (int i = 0; i < SEQUENCES; i++) {
            const struct hd_generation what = begins_with(&m, 10 * i, counts[i], tokens, &told[i]);

            (void)add(&many, &what);
        }
        run(&many);
        for (int i = 0; i < SEQUENCES; i++) {
            assert_true(told[i].ended);
            assert_int_equal(told[i].end, HD_GENERATION_LENGTH);
            assert_int_equal(told[i].count, counts[i] + 9);
            check_told(&m, &told[i], counts[i], 1e-4);
        }
        many_close(&many);
        harness_teardown(&m.h);
    }
}

/* A stop token is told and ends the sequence; so does on_token; and one that is removed is told
 * nothing more, while the others go on. */
static void sequences_end_each_for_its_own_reason(void **state)
{
    static struct told told[5];
    struct hd_generation what[5];
    struct hd_stops stops = {.count = 1};
    struct hd_sequence *removed;
    struct model m = {0};
    int32_t tokens[CONTEXT];
    struct many many;
    bool busy;

    model_setup(&m, "llama", "fp32");
    many = many_open(&m, 4);
    what[0] = begins_with(&m, 0, 20, tokens, &told[0]);
    (void)add(&many, &what[0]);
    run(&many);
    stops.ids[0] = told[0].tokens[22].id; /* the third one that it draws, or the same before that */
    for (int i = 1; i < 5; i++) {
        what[i] = begins_with(&m, 0, 20, tokens, &told[i]);
        if (i == 1)
            what[i].stops = &stops;
        told[i].stop_after = i == 2 ? 22 : 0;
        what[i].max_tokens = i == 3 ? 0 : 9;
        removed = add(&many, &what[i]);
    }
    for (int step = 0; step < 3; step++)
        assert_int_equal(hd_generator_step(many.generator, &busy), HD_OK);
    hd_generator_remove(many.generator, removed);
    run(&many);
    assert_int_equal(told[1].end, HD_GENERATION_STOP);
    assert_true(told[1].tokens[told[1].count - 1].is_stop);
    assert_int_equal(told[1].tokens[told[1].count - 1].id, stops.ids[0]);
    assert_in_range(told[1].count, 21, 23);
    assert_int_equal(told[2].end, HD_GENERATION_STOP);
    assert_int_equal(told[2].count, 22);
    assert_int_equal(told[3].end, HD_GENERATION_LENGTH);
    assert_int_equal(told[3].count, 20); /* the prompt alone */
    assert_false(told[4].ended);
    many_close(&many);
    harness_teardown(&m.h);
}

/* Goal: what a slot has read of an earlier sequence is used, and is right. Method: the same
 * beginning with another end; the steps are counted: a prompt of 200 tokens takes 4 (of 64, 64, 64,
 * 8 tokens), its last token alone 1. */
static void a_sequence_goes_on_behind_a_beginning_that_a_slot_has_read(void **state)
{
    static struct told told;
    struct model m = {0};
    int32_t tokens[CONTEXT];

    model_setup(&m, "llama", "fp32");
    for (int64_t same = 0; same <= 199; same += 199) {
        struct many many = many_open(&m, 2);
        struct hd_generation what = begins_with(&m, 0, 200, tokens, &told);
        int steps = 0;
        bool busy = true;

        what.max_tokens = 0;
        (void)add(&many, &what);
        run(&many);
        what = begins_with(&m, 0, 200, tokens, &told);
        tokens[same ? 199 : 0] ^= 1;
        what.reported_from = 199;
        what.max_tokens = 0;
        (void)add(&many, &what);
        for (; busy; steps++)
            assert_int_equal(hd_generator_step(many.generator, &busy), HD_OK);
        assert_int_equal(steps - 1, same ? 1 : 4); /* the last one had nothing to do */
        assert_int_equal(told.count, 1);
        {
            struct decoding d = open_model(&m);
            const float *logits = decoding_prompt(&d, tokens, 199);

            assert_true(fabs(told.tokens[0].log_probability + minus_log_p(logits, tokens[199])) <
                        1e-4);
            decoding_close(&d);
        }
        many_close(&many);
    }
    harness_teardown(&m.h);
}

/* ---- the limits of the context ---- */

/* When a slot is full the last half and the new token begin a new one, and so on for ever; without
 * `slides` the sequence ends, with the token behind the last one that fits. */
static void generation_goes_on_behind_the_context(void **state)
{
    static struct told told;
    struct model m = {0};
    int32_t tokens[CONTEXT], all[TOLD_MAX];
    struct hd_generation what;
    struct many many;

    model_setup(&m, "llama", "fp32");
    many = many_open(&m, 2);
    what = begins_with(&m, 0, CONTEXT, tokens, &told);
    what.max_tokens = CONTEXT + 10;
    (void)add(&many, &what);
    run(&many);
    assert_int_equal(told.end, HD_GENERATION_LENGTH);
    assert_int_equal(told.count, CONTEXT + 1);
    what.slides = true;
    told = (struct told){.count = 0};
    (void)add(&many, &what);
    run(&many);
    assert_int_equal(told.count, CONTEXT + CONTEXT + 10);
    for (int i = 0; i < told.count; i++)
        all[i] = told.tokens[i].id;
    for (int i = CONTEXT + 1; i < told.count; i++) {
        /* the slot was full behind CONTEXT tokens, and then behind each further half */
        const int from = (i - 1 - CONTEXT) / (CONTEXT / 2) * (CONTEXT / 2) + CONTEXT / 2;
        struct decoding d;

        if (i % 16 && i != CONTEXT + CONTEXT / 2 && i != CONTEXT + CONTEXT / 2 + 1)
            continue;
        d = open_model(&m);
        if (!(fabs(told.tokens[i].log_probability +
                   minus_log_p(decoding_prompt(&d, all + from, i - from), all[i])) < 1e-4))
            fail_msg("token %d", i);
        decoding_close(&d);
    }
    many_close(&many);
    harness_teardown(&m.h);
}

static void a_long_prompt_is_refused_or_read_from_where_it_can_be_seen(void **state)
{
    static struct told told;
    struct model m = {0};
    int32_t tokens[2 * CONTEXT];
    struct hd_generation what;
    struct many many;

    model_setup(&m, "gpt2", "fp32");
    many = many_open(&m, 1);
    what = begins_with(&m, 0, CONTEXT + 100, tokens, &told);
    assert_int_equal(hd_generator_add(many.generator, &what, NULL), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "356 tokens, and the context is 256"));
    what.slides = true;
    what.max_tokens = 0;
    (void)add(&many, &what);
    run(&many);
    assert_int_equal(told.count, CONTEXT + 1); /* the last one is told, and not read */
    check_told(&m, &told, CONTEXT + 1, 1e-4);
    assert_int_equal(told.tokens[0].id, tokens[99]);
    assert_int_equal(told.tokens[CONTEXT].id, tokens[CONTEXT + 99]);
    many_close(&many);
    harness_teardown(&m.h);
}

static void prompts_and_places_that_make_no_sense_are_refused(void **state)
{
    static const int32_t bad[] = {1, VOCAB}, negative[] = {-1};
    struct hd_generation what = {.prompt = bad};
    struct hd_decoder_rows rows = {.filled = CONTEXT - 1, .tokens = bad, .count = 2};
    struct hd_decoder *d;
    struct model m = {0};
    struct many many;

    model_setup(&m, "llama", "fp32");
    many = many_open(&m, 1);
    assert_int_equal(hd_generator_add(many.generator, &what, NULL), HD_INVALID);
    what.prompt_count = 2;
    assert_int_equal(hd_generator_add(many.generator, &what, NULL), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "token 256 is outside the vocabulary of 256"));
    what = (struct hd_generation){.prompt = negative, .prompt_count = 1};
    assert_int_equal(hd_generator_add(many.generator, &what, NULL), HD_INVALID);
    assert_int_equal(hd_decoder_run(many.decoder, &rows, 1), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "257 tokens are more than the context of 256"));
    rows.filled = 0;
    assert_int_equal(hd_decoder_run(many.decoder, &rows, 1), HD_INVALID);
    many_close(&many);
    assert_int_equal(hd_decoder_open(&(struct hd_decoder_options){.dirs = {.dir = m.h.dir},
                                                                  .backend = harness_backend(),
                                                                  .threads = 1},
                                     &d),
                     HD_NOT_FOUND);
    assert_int_equal(hd_decoder_open(&(struct hd_decoder_options){.dirs = {.dir = m.saved.path},
                                                                  .backend = harness_backend(),
                                                                  .threads = 1,
                                                                  .context = CONTEXT + 1},
                                     &d),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "--context: 257 is more than"));
    harness_teardown(&m.h);
}

/* Goal: no garbage without a word. Method: the head overflows. */
static void a_model_that_is_not_finite_says_so(void **state)
{
    static struct told told;
    struct model m = {.damaged = true};
    int32_t tokens[1];
    struct hd_generation what;
    struct many many;

    model_setup(&m, "llama", "fp32");
    many = many_open(&m, 1);
    what = begins_with(&m, 0, 1, tokens, &told);
    (void)add(&many, &what);
    run(&many);
    assert_int_equal(told.end, HD_GENERATION_FAILED);
    assert_int_equal(told.st, HD_CORRUPT);
    many_close(&many);
    harness_teardown(&m.h);
}

RUN_CASES()
