/* Several ranks that share a model for generation say what one rank says that has all of it. On the
 * emulator each rank has a device, and they exchange by the stand-in for NCCL.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoding.h"
#include "harness.h"
#include "tests/program/test.h"

enum { CONTEXT = 96, CORPUS_BYTES = 4000 };

struct model {
    struct harness h;
    struct hd_job job;
    struct hd_saved saved;
    int32_t text[CONTEXT];
};

/* A model of three blocks. adapter: NULL: none, of codes LoRA, whose bases they are. */
struct shape {
    const char *family, *weights, *adapter; /* "dora": LoRA with magnitudes */
    bool dora;
    int64_t ffn, vocab; /* 0: the harness's */
};

static void model_setup(struct model *m, const struct shape *shape)
{
    FILE *file;

    harness_setup(&m->h, CORPUS_BYTES);
    m->job = harness_job(&m->h, shape->family, 1);
    m->job.layers = 3;
    m->job.context = CONTEXT;
    m->job.global_batch = m->job.micro_batch = 1;
    m->job.adapter_width = 6;
    m->job.adapter_tokens = 7;
    m->job.adapter_dora = shape->dora;
    if (shape->ffn)
        m->job.ffn_hidden = shape->ffn;
    if (shape->vocab)
        m->job.vocab = shape->vocab;
    m->job.adapter_dora = shape->adapter && strcmp(shape->adapter, "dora") == 0;
    if (shape->adapter)
        m->job.adapter =
            hd_job_find_word(hd_job_adapter_words, m->job.adapter_dora ? "lora" : shape->adapter);
    if (shape->weights)
        m->job.model_weights = hd_job_find_word(hd_job_model_weights_words, shape->weights);
    file = fopen(m->h.corpus, "rb");
    assert_non_null(file);
    for (int i = 0; i < CONTEXT; i++)
        m->text[i] = fgetc(file);
    (void)fclose(file);
    if (harness_threads(&m->job, 1, &m->saved, harness_save_trained))
        fail_msg("%s", hd_err_message());
}

/* max |a - b| / max |b| */
static double apart(const struct model *m, const float *a, const float *b)
{
    double difference = 0, size = 0;

    for (int64_t v = 0; v < m->job.vocab; v++) {
        difference = fmax(difference, fabs((double)a[v] - (double)b[v]));
        size = fmax(size, fabs((double)b[v]));
    }
    return difference / size;
}

/* A prompt of a chunk of 64 rows and a rest, which stages read at the same time, and tokens behind
 * it. Sums of two or four parts: fp32 rounding, a few 1e-7. Stages alone compute what one rank
 * does, bit for bit. */
static void share(struct shape shape, struct hd_decoder_options options)
{
    enum { PROMPT = 70, END = 76 };
    const double limit = options.tp > 1 ? 1e-5 : 0;
    struct model m = {0};
    struct decoding alone, shared;

    model_setup(&m, &shape);
    alone =
        decoding_open_as(m.saved.path, (struct hd_decoder_options){.precision = options.precision});
    shared = decoding_open_as(m.saved.path, options);
    for (int i = PROMPT; i < END; i++) {
        const bool first = i == PROMPT;
        const float *a =
            first ? decoding_prompt(&alone, m.text, PROMPT) : decoding_next(&alone, m.text[i - 1]);
        const float *b = first ? decoding_prompt(&shared, m.text, PROMPT)
                               : decoding_next(&shared, m.text[i - 1]);

        if (!(apart(&m, b, a) <= limit))
            fail_msg("%s by tp %d, pp %d: logits behind %d tokens are %g apart", shape.family,
                     options.tp, options.pp, i, apart(&m, b, a));
    }
    decoding_close(&alone);
    decoding_close(&shared);
    harness_teardown(&m.h);
}

/* llama has two key/value heads, so that of four ranks two have the same one; gpt2 has biases and a
 * head that is its embedding; mixtral has experts; codes have a scale for each row. */
static void ranks_that_share_blocks_say_what_one_says(void **state)
{
    if (harness_backend()->device) {
        share((struct shape){.family = "llama"}, (struct hd_decoder_options){.tp = 2, .pp = 2});
        return;
    }
    share((struct shape){.family = "llama"}, (struct hd_decoder_options){.tp = 4});
    share((struct shape){.family = "llama", .weights = "int8", .adapter = "lora", .dora = true},
          (struct hd_decoder_options){.tp = 2, .pp = 2});
    share((struct shape){.family = "gpt2"}, (struct hd_decoder_options){.tp = 2});
    share((struct shape){.family = "mixtral"}, (struct hd_decoder_options){.tp = 2, .pp = 2});
}

/* Three blocks on three stages: one each; or, where embedding and head weigh more than all of them,
 * the three on the stage in the middle. On two stages they are cut unevenly. The positions are
 * learned ones, and those behind a prefix, too. */
static void stages_say_what_one_rank_says(void **state)
{
    if (harness_backend()->device)
        return; /* above */
    share((struct shape){.family = "llama"}, (struct hd_decoder_options){.pp = 3});
    share((struct shape){.family = "qwen2", .vocab = 4096}, (struct hd_decoder_options){.pp = 3});
    share((struct shape){.family = "gpt2", .adapter = "bottleneck"},
          (struct hd_decoder_options){.pp = 2});
    share((struct shape){.family = "mistral", .weights = "fp8", .adapter = "dora"},
          (struct hd_decoder_options){.pp = 2, .precision = "bf16"});
    share((struct shape){.family = "qwen3", .adapter = "prefix"},
          (struct hd_decoder_options){.pp = 2});
}

/* 33 sequences are parts of 17 and 16; each has a slot of its own in the caches of each stage, and
 * other tokens. One rank reads all of them by a program that adds in another order. */
static void many_sequences_go_through_the_stages_in_parts(void **state)
{
    enum { MANY = 33, TOKENS = 3 };
    struct hd_decoder_options options = {.slots = MANY};
    struct hd_decoder_rows rows[MANY];
    struct model m = {0};
    struct decoding alone, shared;

    if (harness_backend()->device)
        return; /* dear */
    model_setup(&m, &(struct shape){.family = "llama"});
    alone = decoding_open_as(m.saved.path, options);
    options.pp = 2;
    shared = decoding_open_as(m.saved.path, options);
    for (int t = 0; t < TOKENS; t++) {
        for (int k = 0; k < MANY; k++) /* slots in another order than the rows */
            rows[k] = (struct hd_decoder_rows){
                .slot = MANY - 1 - k, .filled = t, .tokens = m.text + k + t, .count = 1};
        assert_int_equal(hd_decoder_run(alone.decoder, rows, MANY), HD_OK);
        assert_int_equal(hd_decoder_run(shared.decoder, rows, MANY), HD_OK);
        for (int k = 0; k < MANY; k++) {
            const float *a, *b;

            assert_int_equal(hd_decoder_logits(alone.decoder, k, 0, &a), HD_OK);
            assert_int_equal(hd_decoder_logits(shared.decoder, k, 0, &b), HD_OK);
            if (!(apart(&m, b, a) <= 1e-5))
                fail_msg("sequence %d, token %d: logits are %g apart", k, t, apart(&m, b, a));
        }
    }
    decoding_close(&alone);
    decoding_close(&shared);
    harness_teardown(&m.h);
}

/* The middle one of three stages has one block and nothing else: of what one rank has it lacks two
 * blocks, whose feed-forward alone is 3 matrices of 32 x 2048 in fp32, but has the hidden rows of 3
 * lanes, [64, 32] that come in and that go out. Whatever ranks have beside it, such as work, is
 * smaller on a stage. */
static void a_stage_holds_its_own_blocks_alone(void **state)
{
    const int64_t block = INT64_C(3) * 32 * 2048 * 4, rows = INT64_C(3) * 2 * 64 * 32 * 4;
    struct model m = {0};
    struct decoding alone, shared;

    if (harness_backend()->device)
        return; /* the same reservations */
    model_setup(&m, &(struct shape){.family = "llama", .ffn = 2048});
    alone = decoding_open(m.saved.path);
    shared = decoding_open_as(m.saved.path, (struct hd_decoder_options){.pp = 3});
    assert_int_equal(hd_decoder_ranks(shared.decoder), 3);
    assert_true(hd_decoder_memory_bytes(shared.decoder, 1) <=
                hd_decoder_memory_bytes(alone.decoder, 0) - 2 * block + rows);
    decoding_close(&alone);
    decoding_close(&shared);
    harness_teardown(&m.h);
}

static void refuse(struct hd_decoder_options options, enum hd_status st, const char *words)
{
    struct hd_decoder *d;

    options.backend = harness_backend();
    options.threads = 1;
    assert_int_equal(hd_decoder_open(&options, &d), st);
    assert_non_null(strstr(hd_err_message(), words));
}

static void ranks_that_cannot_share_it_are_refused(void **state)
{
    struct hd_source_dirs dirs = {0};
    struct model m = {0};

    model_setup(&m, &(struct shape){.family = "llama"});
    dirs.dir = m.saved.path;
    refuse((struct hd_decoder_options){.dirs = dirs, .tp = 3}, HD_INVALID,
           "--tp: 3 ranks cannot share 4 heads, 2 key/value");
    assert_non_null(strstr(hd_err_message(), "use 2, 4"));
    refuse((struct hd_decoder_options){.dirs = dirs, .pp = 4}, HD_INVALID,
           "--pp: 4 stages, but the model has 3 blocks");
    refuse((struct hd_decoder_options){.dirs = dirs, .tp = 4, .pp = 17}, HD_INVALID,
           "at most 64 ranks");
    dirs.dir = "/nowhere";
    refuse((struct hd_decoder_options){.dirs = dirs, .tp = 2, .pp = 2}, HD_NOT_FOUND, "/nowhere");
    harness_teardown(&m.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    (void)setenv("HD_CUDASIM_DEVICES", "4", 1); /* of the emulator */
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
