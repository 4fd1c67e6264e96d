/* every_family: what a family gets by being a row of families.def. Each row decodes as it evaluates,
 * takes pairs and rewards, and tunes adapters beside codes. (Gradients: gradient_test. Layouts:
 * grid_kinds_test. Files: unit/hf and interop.)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "decoding.h"
#include "pairs.h"
#include "tests/program/test.h"

enum { CONTEXT = 24, VOCAB = 256 };

/* ---- decoding ---- */

struct model {
    struct hd_saved saved;
    double loss; /* mean loss of the first window of the corpus */
    int64_t targets;
};

static enum hd_status make_model(struct harness_rank *r)
{
    struct model *m = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trained(r, &t);

    if (!st)
        st = hd_trainer_save(t, &m->saved);
    if (!st)
        st = hd_trainer_validate(t, &m->loss, &m->targets);
    hd_trainer_free(t);
    return st;
}

static double minus_log_p(const float *logits, int target)
{
    double largest = -INFINITY, sum = 0;

    for (int v = 0; v < VOCAB; v++)
        largest = fmax(largest, (double)logits[v]);
    for (int v = 0; v < VOCAB; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum) - (double)logits[target];
}

/* Returns the mean loss of the window, read token by token behind a prompt of four. */
static double decoded_loss(const struct model *m, const unsigned char *window)
{
    struct decoding d = decoding_open(m->saved.path);
    int32_t prompt[4];
    double sum = 0;

    for (int i = 1; i < CONTEXT + 1; i++) {
        const float *logits;

        for (int k = 0; k < 4; k++)
            prompt[k] = window[k];
        logits = i <= 4 ? decoding_prompt(&d, prompt, i) : decoding_next(&d, window[i - 1]);
        sum += minus_log_p(logits, window[i]);
    }
    decoding_close(&d);
    return sum / CONTEXT;
}

static void a_row_decodes_as_it_evaluates(void **state)
{
    unsigned char window[CONTEXT + 1];

    for (size_t f = 0; f < hd_family_count; f++) {
        struct model m = {0};
        struct harness h;
        struct hd_job job;
        FILE *file;
        double loss;

        harness_setup(&h, 4000);
        job = harness_job(&h, hd_families[f].name, 1);
        job.context = CONTEXT;
        job.validate_batches = 1;
        job.val = &h.file;
        job.val_count = 1;
        job.val_split = 0;
        job.global_batch = job.micro_batch = 1;
        if (harness_threads(&job, 1, &m, make_model))
            fail_msg("%s: %s", job.family, hd_err_message());
        assert_int_equal(m.targets, CONTEXT);
        file = fopen(h.corpus, "rb");
        assert_non_null(file);
        assert_int_equal(fread(window, 1, sizeof window, file), sizeof window);
        (void)fclose(file);
        loss = decoded_loss(&m, window);
        if (!(m.loss > 2 && fabs(loss - m.loss) <= 1e-5 * m.loss))
            fail_msg("%s: loss %.7f token by token, %.7f in validation", job.family, loss, m.loss);
        harness_teardown(&h);
    }
}

/* ---- pairs ---- */

static struct hd_job pair_job(const struct harness *h, const char *family, const char *objective,
                              struct hd_job_file *file)
{
    struct hd_job job = harness_job(h, family, 1);

    job.train = file;
    job.val_split = 0;
    job.validate_every = 0;
    job.context = PAIRS_WINDOW;
    job.global_batch = job.micro_batch = 2;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.objective = hd_job_find_word(hd_job_objective_words, objective);
    return job;
}

/* Takes a step; a reward model begins with a vector of zeros. */
static enum hd_status take_step(struct harness_rank *r)
{
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    for (int i = 0; i < hd_trainer_rank_program(t)->registry.param_count; i++) {
        const struct hd_param *p = &hd_trainer_rank_program(t)->registry.params[i];

        if (strcmp(p->name, "head.score.weight") == 0)
            harness_put(t, i, HD_STATE_WEIGHT, calloc((size_t)p->count, sizeof(float)));
    }
    st = hd_trainer_step(t, 0, r->context);
    hd_trainer_free(t);
    return st;
}

/* Method: before the first update every log-ratio of DPO is 0, and so is every reward of a vector
 * of zeros: -log sigmoid(0) = ln 2. The gradient of the step is not 0. */
static void a_row_takes_pairs_and_rewards(void **state)
{
    static const char *const objectives[] = {"dpo", "reward"};

    for (size_t f = 0; f < hd_family_count; f++)
        for (int o = 0; o < 2; o++) {
            char path[PAIRS_PATH_MAX];
            struct hd_step_result s;
            struct hd_job_file file;
            struct harness h;
            struct hd_job job;

            harness_setup(&h, 64);
            pairs_write(&h, 0, 6, PAIRS_BOTH, path, &file);
            job = pair_job(&h, hd_families[f].name, objectives[o], &file);
            /* routers have losses beside that of the pairs */
            job.balance = job.z_loss = 0;
            if (harness_threads(&job, 1, &s, take_step))
                fail_msg("%s, %s: %s", job.family, objectives[o], hd_err_message());
            if (!(fabs(s.loss - log(2)) < 1e-12 && s.grad_norm > 0))
                fail_msg("%s, %s: the first loss is %.17g, the gradient's norm %g", job.family,
                         objectives[o], s.loss, s.grad_norm);
            harness_teardown(&h);
        }
}

/* ---- adapters beside codes ---- */

enum { STEPS = 3 };

static struct hd_job tuned_job(const struct harness *h, const char *family, const char *weights)
{
    struct hd_job job = harness_job(h, family, 1);

    job.head_width = 32;
    job.ffn_hidden = 64;
    if (job.shared_ffn_hidden)
        job.shared_ffn_hidden = 64;
    if (job.mla_kv_rank) {
        job.mla_q_rank = job.mla_kv_rank = 32;
        job.mla_nope = 24;
    }
    job.model_weights = hd_job_find_word(hd_job_model_weights_words, weights);
    job.adapter = HD_JOB_ADAPTER_LORA;
    job.adapter_rank = 4;
    job.adapter_alpha = 8;
    job.global_batch = job.micro_batch = 2;
    return job;
}

struct counted {
    int codes, trainable;
};

static void count_params(const struct hd_param *p, int64_t first, void *context)
{
    struct counted *c = context;

    (void)first;
    c->codes += p->quant != HD_QUANT_NONE;
    c->trainable += p->trainable;
}

/* Goal: the matrices of a row are coded, some have an adapter, and the loss is near that of plain
 * weights. Method: a block has at least four matrices; codes of 4 bits move a loss that begins at
 * ln 256 by less than 3%. all-linear leaves out stacks of experts, and gated delta layers take no
 * adapter: one block of attention is left, with two factors for each of three. */
static void a_row_tunes_an_adapter_beside_codes(void **state)
{
    for (size_t f = 0; f < hd_family_count; f++) {
        struct run *plain = run_new(STEPS), *coded = run_new(STEPS);
        struct counted c = {0};
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 4000);
        job = tuned_job(&h, hd_families[f].name, "plain");
        run_threads(job, 1, plain);
        job = tuned_job(&h, hd_families[f].name, "nf4");
        run_threads(job, 1, coded);
        run_for_params(&job, count_params, &c);
        if (c.codes < 8 || c.trainable < 6)
            fail_msg("%s: %d matrices are coded, %d parameters train", job.family, c.codes,
                     c.trainable);
        for (int s = 0; s < STEPS; s++)
            if (!(coded->loss[s] != plain->loss[s] &&
                  fabs(coded->loss[s] - plain->loss[s]) < 0.03 * plain->loss[s]))
                fail_msg("%s, step %d: loss %.6f beside codes, %.6f plain", job.family, s,
                         coded->loss[s], plain->loss[s]);
        run_free(plain);
        run_free(coded);
        harness_teardown(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_decodes_as_it_evaluates),
        cmocka_unit_test(a_row_takes_pairs_and_rewards),
        cmocka_unit_test(a_row_tunes_an_adapter_beside_codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
