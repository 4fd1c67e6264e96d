/* Job files: what is filled in for absent keys, and overrides of those that are there. */
#include "fixture.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* ---- defaults ---- */

static void absent_keys_get_the_documented_defaults(void **state)
{
    struct hd_job *spec = read_good(NULL);

    assert_int_equal(spec->kv_heads, 8);
    assert_int_equal(spec->ffn_hidden, 192); /* 8 * 64 / 3 = 170.7, up to 6 * 32 */
    assert_int_equal(spec->vocab, 256);
    assert_true(spec->rope_theta == 10000 && spec->norm_eps == 1e-5);
    assert_false(spec->tie_embeddings);
    assert_string_equal(spec->tokenizer, "bytes");
    assert_int_equal(spec->order, HD_JOB_ORDER_SHUFFLED);
    assert_true(spec->weight_decay == 0.1 && spec->beta1 == 0.9 && spec->beta2 == 0.95);
    assert_true(spec->adam_eps == 1e-8 && spec->clip == 1 && spec->seed == 1);
    assert_true(spec->lr_peak == 1e-3 && spec->lr_min == 1e-3 / 10);
    assert_int_equal(spec->lr_warmup_steps, 5); /* 100 / 20 */
    assert_int_equal(spec->lr_decay, HD_JOB_LR_DECAY_COSINE);
    assert_int_equal(spec->lr_decay_steps, 95); /* the rest */
    assert_int_equal(spec->precision, HD_JOB_PRECISION_AUTO);
    assert_int_equal(spec->validate_every, 100);
    assert_int_equal(spec->validate_batches, 8);
    assert_int_equal(spec->zero, -1);
    assert_int_equal(spec->checkpoint_every, 100);
    assert_int_equal(spec->checkpoint_keep, 3);
    assert_int_equal(spec->restart_max, 3);
}

static void check_dropout(const char *override, double embedding, double attention, double residual)
{
    struct hd_job *spec = read_good(override);

    assert_true(spec->dropout_embedding == embedding && spec->dropout_attention == attention &&
                spec->dropout_residual == residual);
}

static void one_share_is_dropped_everywhere_or_each_has_its_own(void **state)
{
    char *text = with_line(14, "  lr: 1e-3\n  dropout: 0.125");
    struct hd_job *spec = NULL;

    check_dropout(NULL, 0, 0, 0);
    check_dropout("train.dropout=0.25", 0.25, 0.25, 0.25);
    check_dropout("train.dropout={attention: 0.25}", 0, 0.25, 0);
    /* dropout: 0.125 in the file sets all three shares; --set changes one, and two keep it */
    if (read_bytes(text, strlen(text), "train.dropout.attention=0.5", &spec))
        fail_msg("%s", hd_err_message());
    assert_true(spec->dropout_attention == 0.5);
    assert_true(spec->dropout_embedding == 0.125);
    assert_true(spec->dropout_residual == 0.125);
    free(text);
}

/* Without data `every: 0` is how people write that nothing is validated. */
static void no_validation_may_be_asked_for_without_data(void **state)
{
    char *text = with_line(10, "validate: {every: 0}");
    struct hd_job *spec = NULL;

    if (read_bytes(text, strlen(text), NULL, &spec))
        fail_msg("%s", hd_err_message());
    assert_int_equal(spec->val_count, 0);
    assert_int_equal(spec->validate_batches, 0);
    free(text);
}

static void positions_are_those_of_the_family_unless_asked_for(void **state)
{
    static const struct {
        const char *override;
        enum hd_job_positions positions;
    } rows[] = {{NULL, HD_JOB_POSITIONS_ROPE},
                {"model.family=gpt2", HD_JOB_POSITIONS_LEARNED},
                {"model.family=mistral", HD_JOB_POSITIONS_ROPE},
                {"model.positions=alibi", HD_JOB_POSITIONS_ALIBI}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job *spec = read_good(rows[i].override);

        assert_int_equal(spec->positions, rows[i].positions);
    }
}

static void a_zero_that_was_written_stays_zero(void **state)
{
    char *text = with_line(14, "  lr: {peak: 1, warmup: 0, min: 0, decay: wsd}\n"
                               "  clip: 0\n  weight_decay: 0\n  beta1: 0\n  seed: 0\n"
                               "  tf32: true\n  deterministic: false\n  native_reduction: true\n"
                               "checkpoint: {every: 0, keep: 0}\nrestart: {max: 0}\n"
                               "validate: {every: 0, batches: 2}");
    struct hd_job *spec = NULL;

    if (read_bytes(text, strlen(text), NULL, &spec))
        fail_msg("%s", hd_err_message());
    assert_int_equal(spec->lr_warmup_steps, 0);
    assert_int_equal(spec->lr_decay_steps, 10); /* wsd: the last tenth of 100 */
    assert_true(spec->lr_min == 0 && spec->clip == 0);
    assert_true(spec->weight_decay == 0 && spec->beta1 == 0);
    assert_int_equal(spec->seed, 0);
    assert_true(spec->tf32 && !spec->deterministic);
    assert_true(spec->native_reduction);
    assert_int_equal(spec->checkpoint_every, 0);
    assert_int_equal(spec->checkpoint_keep, 0);
    assert_int_equal(spec->restart_max, 0);
    assert_int_equal(spec->validate_every, 0);
    free(text);
}

static void gpt2_ties_its_embeddings_and_is_four_times_as_wide(void **state)
{
    struct hd_job *spec = read_good("model.family=gpt2");

    assert_true(spec->tie_embeddings);
    assert_int_equal(spec->ffn_hidden, 4 * 64);
    spec = read_good("model={family: gpt2, layers: 1, hidden: 64, heads: 4, context: 16, "
                     "tie_embeddings: false}");
    assert_false(spec->tie_embeddings);
}

/* Goal: a mixture of experts has Mixtral's numbers where the file is silent, what it says where
 * not, and both survive JSON. */
static void experts_get_the_documented_defaults(void **state)
{
    struct hd_job *spec = read_good("model.family=mixtral"), *second = NULL;
    struct hd_text text = {0};
    struct hd_json_writer writer = {.out = &text};

    assert_int_equal(spec->experts, 8);
    assert_int_equal(spec->experts_per_token, 2);
    assert_int_equal(spec->shared_ffn_hidden, 0);
    assert_true(spec->renormalize && !spec->noisy);
    assert_true(spec->balance == 0.01 && spec->z_loss == 0 && spec->capacity == 0);
    assert_int_equal(spec->ep, 0);
    assert_true(spec->expert_rows == 0);

    spec = read_good(
        "model={family: mixtral, layers: 1, hidden: 64, heads: 4, context: 16, "
        "experts: 6, experts_per_token: 1, shared_ffn_hidden: 32, router: "
        "{renormalize: false, noisy: true, balance: 0, z_loss: 1e-3, capacity_factor: 1.25}}");
    assert_int_equal(spec->experts, 6);
    assert_int_equal(spec->experts_per_token, 1);
    assert_int_equal(spec->shared_ffn_hidden, 32);
    assert_true(!spec->renormalize && spec->noisy);
    assert_true(spec->balance == 0 && spec->z_loss == 1e-3 && spec->capacity == 1.25);
    hd_spec_add_json(spec, NULL, &writer);
    assert_non_null(strstr(text.data, "\"expert_rows\":\"auto\""));
    if (read_bytes(text.data, text.len_bytes, "parallel.expert_rows=1.5", &second))
        fail_msg("%s", hd_err_message());
    assert_true(!second->renormalize && second->noisy && second->capacity == 1.25);
    assert_true(second->expert_rows == 1.5);
    hd_text_free(&text);
}

/* ---- overrides ---- */

static void an_override_takes_the_place_of_what_the_file_says(void **state)
{
    struct hd_job *spec = read_good("train.steps=7");

    assert_int_equal(spec->steps, 7);
    assert_int_equal(spec->global_batch, 8); /* its neighbours stay */
    spec = read_good("restart.max=9");       /* a group that the file does not have */
    assert_int_equal(spec->restart_max, 9);
    spec = read_good("parallel.recompute.full=2"); /* a word or a group */
    assert_string_equal(spec->recompute, "full:2");
    spec = read_good("train.lr.warmup=20"); /* the file has the short form: the peak stays */
    assert_true(spec->lr_peak == 1e-3);
    assert_int_equal(spec->lr_warmup_steps, 20);
    spec = read_good("train.lr.decay_steps=98"); /* the default warm-up of 5 leaves room for it */
    assert_int_equal(spec->lr_warmup_steps, 2);
    spec = read_good("data.train=[corpus/a.txt]");
    assert_int_equal(spec->train_count, 1);
    spec = read_good("parallel=auto");
    assert_int_equal(spec->tp, 0);
}

static void a_wrong_override_is_its_own_place(void **state)
{
    static const char *const rows[][2] = {
        {"train.steps", "--set 'train.steps': expected KEY=VALUE, such as train.steps=100"},
        {"=3", "--set '=3': expected KEY=VALUE, such as train.steps=100"},
        {"train.steps=x", "--set train.steps=x: train.steps: 'x' is not a whole number; write "
                          "digits only, such as 1000"},
        {"priority=0.5", "--set priority=0.5: priority: '0.5' is not a whole number; write digits "
                         "only, such as 10, and - in front below zero"},
        {"train.stepz=1", "--set train.stepz=1: train.stepz: unknown key; did you mean steps?"},
        {"trian.steps=1", "--set trian.steps=1: trian: unknown key; did you mean train?"},
        {"train.steps.x=1",
         "--set train.steps.x=1: train.steps: expected a whole number, not a group of keys"},
        {"train.steps=[",
         "--set train.steps=[: not YAML: did not find expected node content, while "
         "parsing a flow node"},
        {"train.steps=", "--set train.steps=: no value is given"},
        {"model.heads=3", "--set model.heads=3: model.heads: 3 does not divide model.hidden = 64; "
                          "use 1, 2, 4 or 8, or give model.head_width, a multiple of 8 up to 256"},
        {"parallel={tp: 2, dp: 3, cp: 1}", /* with 2 devices */
         "--set parallel={tp: 2, dp: 3, cp: 1}: parallel.dp: 3 is in no layout of this model and "
         "batch on resources.devices = 2; use 1"},
        {"train.fp8.history=8", "--set train.fp8.history=8: train.fp8.history: only fp8 has scales "
                                "of tensors, and train.precision is auto; remove it, or set "
                                "train.precision: fp8"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job *spec = NULL;

        assert_int_not_equal(read_bytes(good, good_bytes, rows[i][0], &spec), HD_OK);
        assert_string_equal(hd_err_message(), rows[i][1]);
    }
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
