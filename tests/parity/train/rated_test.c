/* Losses of rated answers (kto): the formula, with its KL term, from log-probabilities that other
 * programs make; the same numbers in every layout; gradients by differences; and a run that goes on.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/random.h"
#include "compare.h"
#include "data/token_writer.h"
#include "pairs.h"
#include "tests/program/test.h"

static struct hd_token_writer *open_writer(const struct harness *h, char path[PAIRS_PATH_MAX])
{
    struct hd_token_writer *w;
    char out[PAIRS_PATH_MAX - 4];

    (void)snprintf(out, sizeof out, "%.150s/rated", h->dir);
    (void)snprintf(path, PAIRS_PATH_MAX, "%s.bin", out);
    assert_int_equal(hd_token_writer_open(out, HD_TOKEN_FORMAT_COUNTS, 2, &w), HD_OK);
    return w;
}

static void close_writer(struct hd_token_writer *w, const char *path, struct hd_job_file *file)
{
    struct stat info;

    assert_int_equal(hd_token_writer_finish(w), HD_OK);
    assert_int_equal(stat(path, &info), 0);
    *file = (struct hd_job_file){.path = path, .size_bytes = info.st_size};
}

/* Answers of even numbers are desirable. */
static enum pairs_side side_of(int k)
{
    return k % 2 ? PAIRS_REJECTED : PAIRS_CHOSEN;
}

/* Writes `count` rated answers as hd_conversation_encode_pair does: beside each is a document of two
 * tokens that do not count. With `pairs` both answers of each prompt. */
static void write_rated(const struct harness *h, int count, bool pairs, struct hd_job_file *file)
{
    static char path[PAIRS_PATH_MAX];
    struct hd_token_writer *w = open_writer(h, path);
    const int32_t nothing[2] = {0, 0};

    for (int k = 0; k < count; k++)
        for (int s = PAIRS_CHOSEN; s <= PAIRS_REJECTED; s++) {
            int32_t ids[PAIRS_DOCUMENT_MAX];
            char counts[PAIRS_DOCUMENT_MAX];
            const int n = pairs_document(k, (enum pairs_side)s, ids, counts);

            if (pairs || s == (int)side_of(k))
                assert_int_equal(hd_token_writer_add_document(w, ids, counts, n), HD_OK);
            else
                assert_int_equal(hd_token_writer_add_document(w, nothing, "\0\0", 2), HD_OK);
        }
    close_writer(w, path, file);
}

static struct hd_job rated_job_of(const struct harness *h, const char *family, int dp,
                                  const char *objective, struct hd_job_file *file)
{
    struct hd_job job = harness_job(h, family, dp);

    job.train = file;
    job.val_split = 0;
    job.val = file;
    job.val_count = 1;
    job.validate_batches = 1;
    job.context = PAIRS_WINDOW;
    job.end_of_text = -1;
    job.preference_beta = 0.3;
    job.preference_desirable = 1.5;
    job.preference_undesirable = 0.75;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.objective = hd_job_find_word(hd_job_objective_words, objective);
    return job;
}

static struct hd_job rated_job(const struct harness *h, const char *objective,
                               struct hd_job_file *file)
{
    return rated_job_of(h, "llama", 1, objective, file);
}

/* The weights of the start with some noise, of which a reference knows nothing. This noise makes
 * mismatched answers likelier: the KL term of these tests is above 0. */
static void stir(struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; i < r->param_count; i++) {
        float *w = harness_take(t, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; k < r->params[i].count; k++)
            w[k] += 0.03f * hd_random_normal(hd_random_hash(r->params[i].name) + 3, (uint64_t)k);
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
}

/* ---- the formula ---- */

static enum hd_status rate_text(struct harness_rank *r)
{
    double *ratio = r->context, loss = 0, start;
    struct hd_trainer *t;
    int64_t targets = 0;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    st = hd_trainer_validate(t, &loss, &targets);
    start = -loss * (double)targets;
    stir(t);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    *ratio = -loss * (double)targets - start;
    hd_trainer_free(t);
    return st;
}

/* Returns the log-ratio of the answer of `given` behind the prompt of `asked`, as a text to predict,
 * by a job that knows neither pairs nor ratings. */
static double ratio_of(const struct harness *h, int asked, int given)
{
    static char path[PAIRS_PATH_MAX];
    int32_t ids[2 * PAIRS_DOCUMENT_MAX], other[PAIRS_DOCUMENT_MAX];
    char counts[2 * PAIRS_DOCUMENT_MAX] = {0}, other_counts[PAIRS_DOCUMENT_MAX];
    const int prompt = 2 + asked % 3, from = 2 + given % 3;
    const int n = pairs_document(given, side_of(given), other, other_counts);
    struct hd_token_writer *w = open_writer(h, path);
    struct hd_job_file file;
    struct hd_job job;
    double ratio = 0;

    (void)pairs_document(asked, side_of(asked), ids, counts);
    memcpy(ids + prompt, other + from, (size_t)(n - from) * sizeof *ids);
    memset(counts + prompt, 1, (size_t)(n - from));
    assert_int_equal(hd_token_writer_add_document(w, ids, counts, prompt + n - from), HD_OK);
    close_writer(w, path, &file);
    job = rated_job(h, "next_token", &file);
    job.global_batch = job.micro_batch = 1;
    if (harness_threads(&job, 1, &ratio, rate_text))
        fail_msg("%s", hd_err_message());
    return ratio;
}

static enum hd_status step_stirred(struct harness_rank *r)
{
    struct hd_step_result s;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st) {
        stir(t);
        st = hd_trainer_step(t, 0, &s);
    }
    if (!st && r->rank == 0)
        *(struct hd_step_result *)r->context = s;
    hd_trainer_free(t);
    return st;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

enum { RATED = 4 };

/* Goal: loss, rewards and KL term of a step are the formulas of Ethayarajh et al. 2024 (section 4.1),
 * with z over mismatched answers. Method: each log-ratio is that of a text, by two other jobs. Windows
 * of 24 rows take answers 0 and 1 (7 + 8 rows), and 2 and 3 (11 + 9): z is of the answers of each two
 * behind the prompts of each other. */
static void a_step_of_rated_answers_is_the_formula(void **state)
{
    const double beta = 0.3f, weight[2] = {1.5, 0.75};
    double s[RATED], z = 0, loss = 0, reward[2] = {0, 0};
    struct hd_step_result got[2];
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    for (int k = 0; k < RATED; k++) {
        s[k] = ratio_of(&h, k, k);
        z += ratio_of(&h, k, k ^ 1) / RATED;
        reward[k % 2] += beta * s[k] / 2;
    }
    write_rated(&h, RATED, false, &file);
    job = rated_job(&h, "kto", &file);
    job.global_batch = job.micro_batch = 2;
    for (int i = 0; i < 2; i++) {
        const double kl = i ? 0 : fmax(0, z);

        job.preference_loss =
            i ? HD_JOB_PREFERENCE_LOSS_APO_ZERO_UNPAIRED : HD_JOB_PREFERENCE_LOSS_SIGMOID;
        if (harness_threads(&job, 1, &got[i], step_stirred))
            fail_msg("%s", hd_err_message());
        loss = 0;
        for (int k = 0; k < RATED; k++)
            loss += weight[k % 2] * sigmoid((k % 2 ? 1 : -1) * beta * (s[k] - kl)) / RATED;
        assert_int_equal(got[i].pairs.answers, RATED);
        assert_int_equal(got[i].pairs.count, 0);
        if (fabs(got[i].loss - loss) > 1e-5 || fabs(got[i].pairs.kl - kl) > 1e-5 ||
            fabs(got[i].pairs.chosen - reward[0]) > 1e-5 ||
            fabs(got[i].pairs.rejected - reward[1]) > 1e-5 ||
            fabs(got[i].pairs.margin - (reward[0] - reward[1])) > 2e-5)
            fail_msg("loss %.8f kl %.8f rewards %.8f %.8f, by the formula %.8f %.8f %.8f %.8f",
                     got[i].loss, got[i].pairs.kl, got[i].pairs.chosen, got[i].pairs.rejected, loss,
                     kl, reward[0], reward[1]);
    }
    assert_true(z > 0.01); /* else the test would not see z */
    harness_teardown(&h);
}

/* ---- layouts ---- */

/* Multiplies each parameter by a number of its own, as any layout can; the KL term is then above 0. */
static enum hd_status step_stretched(struct harness_rank *r)
{
    const struct hd_registry *registry;
    struct hd_step_result s;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    registry = &hd_trainer_rank_program(t)->registry;
    for (int i = 0; i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];
        const float by = 1 + 0.5f * hd_random_normal(hd_random_hash(p->name), 8);
        float *w = harness_take(t, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; w && k < p->count; k++)
            w[k] *= by;
        harness_put(t, i, HD_STATE_WEIGHT, w);
    }
    st = hd_trainer_step(t, 0, &s);
    if (!st && r->rank == 0)
        *(struct hd_step_result *)r->context = s;
    hd_trainer_free(t);
    return st;
}

/* Goal: the KL term is one of the global batch: no layout and no micro-batch changes it. Method: eight
 * windows of single and paired answers in a step, by one rank and by several. */
static void every_layout_has_one_kl_term(void **state)
{
    static const struct layout {
        int tp, pp, dp, cp, zero, micro_batch;
    } layouts[] = {{1, 1, 1, 1, 0, 8}, {1, 1, 1, 1, 0, 1}, {1, 1, 2, 1, 1, 2},
                   {2, 1, 2, 1, 3, 1}, {1, 2, 1, 1, 0, 2}, {1, 1, 1, 2, 0, 4}};

    for (int pairs = 0; pairs < 2; pairs++) {
        struct hd_step_result one = {.step = 0}, s;

        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            const struct layout *l = &layouts[i];
            struct hd_job_file file;
            struct harness h;
            struct hd_job job;

            harness_setup(&h, 64);
            write_rated(&h, pairs ? 12 : 24, pairs, &file);
            job = rated_job(&h, "kto", &file);
            job.global_batch = 8;
            job.tp = l->tp;
            job.pp = l->pp;
            if (l->pp > 1)
                memcpy(job.schedule, "1f1b", 5);
            job.dp = l->dp;
            job.cp = l->cp;
            job.zero = l->zero;
            job.micro_batch = l->micro_batch;
            if (harness_threads(&job, l->tp * l->pp * l->dp * l->cp, &s, step_stretched))
                fail_msg("layout %zu: %s", i, hd_err_message());
            one = i ? one : s;
            assert_true(s.pairs.answers == one.pairs.answers && s.pairs.kl > 0);
            /* log-probabilities of some 10 nats have errors near 1e-6, their mean less */
            if (fabs(s.pairs.kl - one.pairs.kl) > 2e-6 || fabs(s.loss - one.loss) > 1e-6 ||
                fabs(s.grad_norm - one.grad_norm) > 1e-5 * one.grad_norm)
                fail_msg("layout %zu: loss %.9f kl %.9f norm %.9f, one rank %.9f %.9f %.9f", i,
                         s.loss, s.pairs.kl, s.grad_norm, one.loss, one.pairs.kl, one.grad_norm);
            if (l->tp * l->pp * l->cp == 1) /* rows are computed alike: to the last bit */
                assert_true(s.pairs.kl == one.pairs.kl);
            harness_teardown(&h);
        }
    }
}

/* ---- experts ---- */

/* Goal: log-probabilities for which experts had no memory are refused, as reference and in the KL term,
 * which would take them for those of the model. Method: room for a quarter of an even share is never
 * enough, as one of two ranks gets at least half of all rows; first without a reference, then with the
 * one that a job with room for all rows has made. */
static void rows_without_room_are_no_reference(void **state)
{
    static const double room[] = {0.25, 0, 0.25};
    static const char *const told[] = {"the reference of train.objective: kto: routers sent", NULL,
                                       "the KL term: routers sent"};
    struct hd_step_result s;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_rated(&h, 12, false, &file);
    job = rated_job_of(&h, "mixtral", 2, "kto", &file);
    job.ep = job.global_batch = 2;
    job.micro_batch = 1;
    job.balance = job.z_loss = 0;
    for (int i = 0; i < 3; i++) {
        enum hd_status st;

        job.expert_rows = room[i];
        st = harness_threads(&job, 2, &s, step_stirred);
        /* HD_ABORTED: this rank was stopped because the other one had refused */
        if (told[i] ? st != HD_LIMIT && st != HD_ABORTED : st != HD_OK)
            fail_msg("room %g: %d %s; too many rows %d", room[i], (int)st, hd_err_message(),
                     (int)s.too_many_rows);
        if (told[i] && !strstr(hd_err_message(), told[i]))
            fail_msg("%s", hd_err_message());
    }
    harness_teardown(&h);
}

/* ---- a run that goes on ---- */

/* Goal: nothing of the KL term is saved, and a run goes on as if it had not stopped. Method: two steps
 * and two more; from the checkpoint, with the reference of the first attempt and with one made again. */
static void a_run_of_rated_answers_goes_on(void **state)
{
    enum { HALF = 2, REST = 2 };
    struct run *straight = run_new(REST), *after = run_new(REST);
    struct hd_job_file file;
    struct hd_saved saved;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_rated(&h, 40, false, &file);
    job = rated_job(&h, "kto", &file);
    run_save(&job, HALF, straight, &saved);
    for (int i = 0; i < 2; i++) {
        if (i)
            pairs_forget_reference(&h);
        run_load(&job, &saved, after);
        for (int s = 0; s < REST; s++)
            assert_true(straight->loss[s] == after->loss[s]);
        assert_true(straight->state_hash[0] == after->state_hash[0]);
    }
    run_free(straight);
    run_free(after);
    harness_teardown(&h);
}

RUN_CASES()
