/* Several ranks that share a model for generation say what one rank says that has all of it. On the
 * emulator each rank has a device, and they exchange by the stand-in for NCCL.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decoding.h"
#include "harness.h"

enum { CONTEXT = 96, VOCAB = 256, CORPUS_BYTES = 4000 };

struct model {
    struct harness h;
    struct hd_job job;
    struct hd_saved saved;
    int32_t text[CONTEXT];
};

static enum hd_status make_checkpoint(struct harness_rank *r)
{
    struct model *m = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trained(r, &t);

    if (!st)
        st = hd_trainer_save(t, &m->saved);
    hd_trainer_free(t);
    return st;
}

static void model_setup(struct model *m, const char *family, const char *weights)
{
    FILE *file;

    harness_setup(&m->h, CORPUS_BYTES);
    m->job = harness_job(&m->h, family, 1);
    m->job.context = CONTEXT;
    m->job.global_batch = m->job.micro_batch = 1;
    if (strcmp(weights, "plain") != 0) {
        (void)snprintf(m->job.adapter, sizeof m->job.adapter, "lora");
        m->job.adapter_dora = true;
        (void)snprintf(m->job.model_weights, sizeof m->job.model_weights, "%s", weights);
    }
    file = fopen(m->h.corpus, "rb");
    assert_non_null(file);
    for (int i = 0; i < CONTEXT; i++)
        m->text[i] = fgetc(file);
    (void)fclose(file);
    if (harness_threads(&m->job, 1, m, make_checkpoint))
        fail_msg("%s", hd_err_message());
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

/* A prompt of a chunk of 64 rows and a rest, and tokens behind it. Sums of two or four parts: fp32
 * rounding, a few 1e-7. */
static void share(const char *family, const char *weights, int tp)
{
    enum { PROMPT = 70, END = 80 };
    struct model m = {0};
    struct decoding alone, shared;

    model_setup(&m, family, weights);
    alone = decoding_open(m.saved.path);
    shared = decoding_open_shared(m.saved.path, tp);
    for (int i = PROMPT; i < END; i++) {
        const bool first = i == PROMPT;
        const float *a =
            first ? decoding_prompt(&alone, m.text, PROMPT) : decoding_next(&alone, m.text[i - 1]);
        const float *b = first ? decoding_prompt(&shared, m.text, PROMPT)
                               : decoding_next(&shared, m.text[i - 1]);

        if (!(apart(b, a) <= 1e-5))
            fail_msg("%s by %d ranks: logits behind %d tokens are %g apart", family, tp, i,
                     apart(b, a));
    }
    decoding_close(&alone);
    decoding_close(&shared);
    harness_teardown(&m.h);
}

/* llama has two key/value heads, so that of four ranks two have the same one; gpt2 has biases and a
 * head that is its embedding; mixtral has experts; codes have a scale for each row, and an adapter
 * whose norms are made before the first token. */
static void ranks_that_share_a_model_say_what_one_says(void **state)
{
    (void)state;
    if (harness_backend()->device) {
        share("llama", "plain", 2);
        return;
    }
    share("llama", "plain", 4);
    share("llama", "int8", 2);
    share("gpt2", "plain", 2);
    share("mixtral", "plain", 2);
}

static void ranks_that_cannot_share_it_are_refused(void **state)
{
    struct hd_decoder_options options = {.backend = harness_backend(), .threads = 1, .tp = 3};
    struct model m = {0};
    struct hd_decoder *d;

    (void)state;
    model_setup(&m, "llama", "plain");
    options.dirs.dir = m.saved.path;
    assert_int_equal(hd_decoder_open(&options, &d), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "--tp: 3 ranks cannot share 4 heads, 2 key/value"));
    assert_non_null(strstr(hd_err_message(), "use 2, 4"));
    options.tp = 2;
    options.dirs.dir = "/nowhere";
    assert_int_equal(hd_decoder_open(&options, &d), HD_NOT_FOUND);
    harness_teardown(&m.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_share_a_model_say_what_one_says),
        cmocka_unit_test(ranks_that_cannot_share_it_are_refused),
    };

    (void)setenv("HD_CUDASIM_DEVICES", "4", 1); /* of the emulator */
    return cmocka_run_group_tests_name("shared_model", tests, NULL, NULL);
}
