/* Averages and documents: a batch is worth the sum of its targets, however it is cut into
 * micro-batches and ranks, and documents that share a sequence are worth what they are worth alone.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/random.h"
#include "harness.h"
#include "tests/program/test.h"

enum { END = '|', S = 24, PARAMS_MAX = 64 };

/* ---- one step's loss and gradients ---- */

struct outcome {
    double loss_sum, targets, norm;
    struct hd_step_result result;
    int param_count;
    struct hd_param params[PARAMS_MAX]; /* as declared: names and sizes */
    float *grad[PARAMS_MAX];            /* sums over targets */
    float *weight[PARAMS_MAX];          /* after the step */
};

static enum hd_status run_step(struct harness_rank *r)
{
    struct outcome *o = r->context;
    const struct hd_registry *registry;
    struct hd_step_result s;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_step(t, 0, &s);
    if (!st && r->rank == 0) {
        registry = &hd_trainer_rank_program(t)->registry;
        o->result = s;
        o->targets = (double)s.targets;
        o->loss_sum = s.loss * (double)s.targets;
        o->norm = s.grad_norm;
        o->param_count = registry->param_count;
        for (int i = 0; i < registry->param_count; i++) {
            o->params[i] = registry->params[i];
            o->grad[i] = harness_take(t, i, HD_STATE_GRAD);
            o->weight[i] = harness_take(t, i, HD_STATE_WEIGHT);
        }
    }
    hd_trainer_free(t);
    return st;
}

static void run(const struct hd_job *job, struct outcome *ret_outcome)
{
    *ret_outcome = (struct outcome){.loss_sum = 0};
    if (harness_threads(job, (int)job->dp, ret_outcome, run_step))
        fail_msg("%s", hd_err_message());
}

static void drop(struct outcome *o)
{
    for (int i = 0; i < o->param_count; i++) {
        free(o->grad[i]);
        free(o->weight[i]);
    }
}

/* |a - b| / |b| over n elements */
static double distance(const float *a, const float *b, int64_t n)
{
    double apart = 0, length = 0;

    for (int64_t i = 0; i < n; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        length += (double)b[i] * (double)b[i];
    }
    return length > 0 ? sqrt(apart / length) : sqrt(apart);
}

/* How far apart gradient i of two outcomes is, relative to its length. Biases of keys move every
 * score of a row alike, so without RoPE their gradient is zero but for rounding, which has no
 * relative size: there, what is beyond 1e-6 for each target counts. */
static double gradient_distance(const struct outcome *a, const struct outcome *b, int i)
{
    const int64_t n = a->params[i].count;
    double most = 0;

    if (!strstr(a->params[i].name, "attention.k.bias"))
        return distance(a->grad[i], b->grad[i], n);
    for (int64_t k = 0; k < n; k++)
        most = fmax(most, fabs((double)a->grad[i][k] - (double)b->grad[i][k]) / a->targets);
    return most < 1e-6 ? 0 : most;
}

/* ---- corpora ---- */

static void write_text(struct harness *h, const void *text, size_t bytes, struct hd_job_file *file)
{
    assert_int_equal(hd_file_write_atomic(h->corpus, text, bytes, 0600), HD_OK);
    *file = (struct hd_job_file){.path = h->corpus, .size_bytes = (int64_t)bytes};
}

/* A document of n tokens, the last of which ends it. */
static void make_document(char *ret_text, int n, uint64_t key)
{
    for (int i = 0; i + 1 < n; i++)
        ret_text[i] = (char)('a' + hd_random_u64(key, (uint64_t)i) % 20);
    ret_text[n - 1] = END;
}

static struct hd_job bounded_job(const struct harness *h, const char *family,
                                 struct hd_job_file *file)
{
    struct hd_job job = harness_job(h, family, 1);

    job.train = file;
    job.val_split = 0;
    job.context = S;
    job.end_of_text = END;
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    return job;
}

/* ---- documents that share a sequence ---- */

/* Two windows of 24: documents of one token and of many, one that fills its window but for two. */
static const int lengths[] = {5, 1, 11, 7, 22, 2};
enum { DOCUMENTS = sizeof lengths / sizeof lengths[0] };

static void adapt(struct hd_job *job, const char *adapter)
{
    job->adapter = hd_job_find_word(hd_job_adapter_words, adapter);
    job->adapter_tokens = 3;
    job->adapter_rank = 4;
}

/* A document of n tokens by itself: context n - 1, joined, so that no bound is in the program. */
static void add_alone(struct harness *h, const char *family, const char *adapter, const char *text,
                      int n, struct outcome *sum)
{
    struct hd_job_file file;
    struct hd_job job = harness_job(h, family, 1);
    struct outcome o;

    write_text(h, text, (size_t)n, &file);
    job.train = &file;
    job.val_split = 0;
    job.context = n - 1;
    job.global_batch = job.micro_batch = 1;
    job.lr_peak = job.lr_min = job.weight_decay = 0;
    adapt(&job, adapter);
    run(&job, &o);
    sum->loss_sum += o.loss_sum;
    sum->targets += o.targets;
    for (int i = 0; i < o.param_count; i++) /* a table of positions has `context` rows */
        for (int64_t k = 0; k < o.params[i].count && o.params[i].trainable; k++)
            sum->grad[i][k] += o.grad[i][k];
    drop(&o);
}

static void packed_case(const char *family, const char *adapter, int micro_batch)
{
    char text[2 * S + 1];
    struct outcome packed, alone;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;
    int at = 0;

    for (int d = 0; d < DOCUMENTS; at += lengths[d++])
        make_document(text + at, lengths[d], (uint64_t)d);
    assert_int_equal(at, 2 * S);
    text[2 * S] = 'z'; /* of the next document: nobody's target */
    harness_setup(&h, 64);
    write_text(&h, text, sizeof text, &file);
    job = bounded_job(&h, family, &file);
    job.global_batch = 2;
    job.micro_batch = micro_batch;
    job.lr_peak = job.lr_min = job.weight_decay = 0;
    adapt(&job, adapter);
    run(&job, &packed);
    assert_true(packed.targets == 2 * S - DOCUMENTS);

    alone = packed;
    alone.loss_sum = alone.targets = 0;
    for (int i = 0; i < packed.param_count; i++) {
        alone.grad[i] = calloc((size_t)packed.params[i].count, sizeof(float));
        alone.weight[i] = NULL;
        assert_non_null(alone.grad[i]);
    }
    at = 0;
    for (int d = 0; d < DOCUMENTS; at += lengths[d++])
        if (lengths[d] > 1) /* one token has no target */
            add_alone(&h, family, adapter, text + at, lengths[d], &alone);
    assert_true(alone.targets == packed.targets);
    assert_true(fabs(packed.loss_sum - alone.loss_sum) <= 1e-6 * alone.loss_sum);
    for (int i = 0; i < packed.param_count; i++) {
        const double apart = packed.params[i].trainable ? gradient_distance(&packed, &alone, i) : 0;

        /* sums of some hundred terms, each exact to 6e-8 of the largest: 1e-5 is far above */
        if (apart > 1e-5)
            fail_msg("%s %s %s: %g apart", family, adapter, packed.params[i].name, apart);
    }
    drop(&alone);
    drop(&packed);
    harness_teardown(&h);
}

static void packed_documents_are_worth_what_they_are_worth_alone(void **state)
{
    packed_case("llama", "none", 1);
    packed_case("llama", "none", 2);
    packed_case("gpt2", "none", 1);
    packed_case("gpt2", "none", 2);
    packed_case("llama", "prefix", 2); /* which every document sees, behind its own bounds */
    packed_case("gpt2", "prefix", 1);
    packed_case("llama", "lora", 1);
}

/* Goal: `joined` is what it says. Method: the same text joined has every target, and another loss.
 */
static void joined_documents_see_each_other(void **state)
{
    char text[2 * S + 1];
    struct outcome joined, bounded;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    for (int i = 0; i < 4; i++)
        make_document(text + 12 * i, 12, (uint64_t)i);
    text[2 * S] = 'z';
    harness_setup(&h, 64);
    write_text(&h, text, sizeof text, &file);
    job = bounded_job(&h, "llama", &file);
    job.global_batch = 2;
    run(&job, &bounded);
    job.documents = HD_JOB_DOCUMENTS_JOINED;
    run(&job, &joined);
    assert_true(bounded.targets == 2 * S - 4 && joined.targets == 2 * S);
    assert_true(joined.loss_sum != bounded.loss_sum);
    drop(&joined);
    drop(&bounded);
    harness_teardown(&h);
}

/* ---- accumulation ---- */

enum { BATCH = 24 };

/* 24 windows with documents of 1 to 40 tokens, so that some go on in the next window; windows 4 and
 * 5 are ends alone and have no target. */
static void write_uneven(struct harness *h, struct hd_job_file *file)
{
    char text[BATCH * S + 64];
    int at = 0;

    for (uint64_t d = 0; at < BATCH * S; d++) {
        const int n = 1 + (int)(hd_random_u64(99, d) % 40);

        make_document(text + at, at + n < (int)sizeof text ? n : (int)sizeof text - at, d + 100);
        at += n;
    }
    memset(text + 4 * S - 1, END, 2 * S + 1);
    write_text(h, text, BATCH * S + 1, file);
}

static void compare(const struct outcome *o, const struct outcome *whole, const char *what, int dp,
                    int micro)
{
    assert_true(o->targets == whole->targets);
    if (fabs(o->loss_sum - whole->loss_sum) > 1e-6 * whole->loss_sum)
        fail_msg("%s dp %d micro %d: loss %.9g, not %.9g", what, dp, micro, o->loss_sum,
                 whole->loss_sum);
    /* the norm is a sum in double of gradients that differ by rounding */
    assert_true(fabs(o->norm - whole->norm) <= 2e-6 * whole->norm);
    for (int i = 0; i < o->param_count; i++) {
        const double apart = gradient_distance(o, whole, i);

        if (apart > 5e-6)
            fail_msg("%s dp %d micro %d: gradient of %s %g apart", what, dp, micro,
                     o->params[i].name, apart);
    }
}

static void accumulation_case(const char *family)
{
    struct outcome whole, bucket;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_uneven(&h, &file);
    job = bounded_job(&h, family, &file);
    job.global_batch = job.micro_batch = BATCH;
    run(&job, &whole);
    assert_true(whole.targets < BATCH * S - 2 * S); /* uneven, two windows empty */
    for (int dp = 1; dp <= 3; dp++)
        for (int micro = 1; micro <= 4; micro *= 2) {
            job.dp = dp;
            job.micro_batch = micro;
            run(&job, &bucket);
            compare(&bucket, &whole, family, dp, micro);
            drop(&bucket);
        }
    drop(&whole);
    harness_teardown(&h);
}

static void micro_batches_and_ranks_average_as_the_big_batch_does(void **state)
{
    accumulation_case("llama");
    accumulation_case("gpt2");
}

/* Goal: a step's average repeats bit for bit. Method: two ranks, micro-batches of 2, twice. */
static void the_same_layout_gives_the_same_bits(void **state)
{
    struct outcome first, second;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 64);
    write_uneven(&h, &file);
    job = bounded_job(&h, "llama", &file);
    job.global_batch = BATCH;
    job.dp = 2;
    run(&job, &first);
    run(&job, &second);
    assert_true(first.loss_sum == second.loss_sum && first.norm == second.norm);
    for (int i = 0; i < first.param_count; i++) {
        const size_t bytes = (size_t)first.params[i].count * sizeof(float);

        assert_memory_equal(first.grad[i], second.grad[i], bytes);
        assert_memory_equal(first.weight[i], second.weight[i], bytes);
    }
    drop(&first);
    drop(&second);
    harness_teardown(&h);
}

/* ---- nothing to learn from ---- */

static enum hd_status validate_nothing(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);
    double loss;
    int64_t targets;

    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    hd_trainer_free(t);
    return st;
}

/* Goal: a step without any target changes nothing and makes no number up. Method: ends alone. */
static void a_step_without_targets_changes_no_weight(void **state)
{
    char text[4 * S + 1];
    struct outcome o, moved;
    struct hd_job_file file;
    struct harness h;
    struct hd_job job;

    memset(text, END, sizeof text);
    harness_setup(&h, 64);
    write_text(&h, text, sizeof text, &file);
    job = bounded_job(&h, "gpt2", &file);
    job.global_batch = 4;
    job.dp = 2;
    run(&job, &o);
    assert_true(o.targets == 0 && o.result.loss == 0 && o.norm == 0 && o.result.skipped);
    job.lr_peak = job.lr_min = job.weight_decay = 0; /* the weights as they began */
    job.documents = HD_JOB_DOCUMENTS_JOINED;
    run(&job, &moved);
    for (int i = 0; i < o.param_count; i++)
        assert_memory_equal(o.weight[i], moved.weight[i],
                            (size_t)o.params[i].count * sizeof(float));
    drop(&o);
    drop(&moved);
    job.documents = HD_JOB_DOCUMENTS_BOUNDED;
    job.val = &file;
    job.val_count = 1;
    job.dp = 1;
    assert_int_equal(harness_threads(&job, 1, NULL, validate_nothing), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "no target"));
    harness_teardown(&h);
}

RUN_CASES()
