/* Job files: how they are read, the words of other programs, and the reference of the keys. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "spec/spec_internal.h"

/* Keys of other programs, and ours in their place. */
static const struct {
    const char *group, *name, *hint;
} foreign[] = {
    /* config.json of GPT-2, and nanoGPT */
    {"model", "n_layer", "layers?"},
    {"model", "n_head", "heads?"},
    {"model", "n_embd", "hidden?"},
    {"model", "n_positions", "context?"},
    {"model", "n_inner", "ffn_hidden?"},
    {"model", "block_size", "context?"},
    {"train", "max_iters", "steps?"},
    {"train", "warmup_iters", "lr.warmup?"},
    {"train", "min_lr", "lr.min?"},
    {"train", "grad_clip", "clip?"},
    {"train", "eval_interval", "validate.every?"},
    {"train", "recompute-method", "parallel.recompute?"},
    {"train", "apply_lora_to_mlp", "adapter.targets?"},
    {"train", "early_stopping_patience", "validate.stop.patience?"},
    /* of Llama and its like */
    {"model", "num_hidden_layers", "layers?"},
    {"model", "hidden_size", "hidden?"},
    {"model", "intermediate_size", "ffn_hidden?"},
    {"model", "num_attention_heads", "heads?"},
    {"model", "num_key_value_heads", "kv_heads?"},
    {"model", "head_dim", "head_width?"},
    {"model", "vocab_size", "vocab?"},
    {"model", "max_position_embeddings", "context?"},
    {"model", "tie_word_embeddings", "tie_embeddings?"},
    {"model", "num_local_experts", "experts?"},
    {"model", "num_experts_per_tok", "experts_per_token?"},
    {"model", "router_aux_loss_coef",
     "router.balance? The loss is 1 at balance in each block, "
     "and summed over the blocks."},
    /* TrainingArguments */
    {"train", "learning_rate", "lr?"},
    {"train", "max_steps", "steps?"},
    {"train", "warmup_steps", "lr.warmup?"},
    {"train", "batch_size", "global_batch?"},
    {"train", "per_device_train_batch_size", "parallel.micro_batch?"},
    {"train", "gradient_accumulation_steps",
     "global_batch? A step accumulates micro-batches of parallel.micro_batch sequences until it "
     "has that many."},
    {"train", "max_grad_norm", "clip?"},
    {"train", "adam_beta2", "beta2?"},
    {"train", "save_steps", "checkpoint.every?"},
    {"train", "bf16", "precision?"},
    /* Megatron-LM, also as options are written there */
    {"model", "num_layers", "layers?"},
    {"model", "ffn-hidden-size", "ffn_hidden?"},
    {"model", "seq_length", "context?"},
    {"model", "width", "hidden?"}, /* no key of another group that ends so */
    {"model", "ctx", "context?"},
    {"parallel", "tensor_model_parallel_size", "tp?"},
    {"parallel", "tensor_parallel_size", "tp?"},
    {"parallel", "micro_batch_size", "micro_batch?"},
    {"train", "Train-Iters", "steps?"},
    {"train", "tensor_model_parallel_size", "parallel.tp?"},
    /* a key of ours in another group */
    {"train", "context", "model.context?"},
    {"model", "seed", "train.seed?"},
    {"train", "tp", "parallel.tp?"},
};

static void names_of_other_programs_are_answered_with_ours(void **state)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        char override[96], message[400];
        struct hd_job *spec = NULL;

        (void)snprintf(override, sizeof override, "%s.%s=1", foreign[i].group, foreign[i].name);
        (void)snprintf(message, sizeof message, "--set %s: %s.%s: unknown key; did you mean %s",
                       override, foreign[i].group, foreign[i].name, foreign[i].hint);
        assert_int_equal(read_bytes(good, good_bytes, override, &spec), HD_INVALID);
        assert_string_equal(hd_err_message(), message);
    }
}

/* Goal: a hint names a key that a job file can have, and no name of ours is called foreign. Method:
 * every key of ours by its last part; it is found, or several groups have it. */
static void hints_name_keys_that_exist(void **state)
{
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const char *path = hd_job_keys[i].path, *dot = strrchr(path, '.');
        const char *note, *hint = spec_find_foreign(dot ? dot + 1 : path, &note);

        assert_true(!hint || hd_job_find_key(hint));
        if (hint && dot) /* the same word, or it would be called by another program's name */
            assert_string_equal(strrchr(hint, '.') + 1, dot + 1);
    }
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        const char *note, *hint = spec_find_meant(foreign[i].group, foreign[i].name, &note);

        assert_non_null(hint);
        if (!spec_find_key(hint))
            fail_msg("%s: a job file has no key %s", foreign[i].name, hint);
    }
}

/* ---- limits ---- */

static void a_job_file_is_at_most_256_kib(void **state)
{
    size_t max = HD_SPEC_FILE_BYTES_MAX;
    char *big = malloc(max + 1);
    struct hd_job *spec = NULL;

    assert_non_null(big);
    memset(big, ' ', max + 1); /* trailing blanks: still a good job */
    memcpy(big, good, good_bytes);
    for (size_t i = good_bytes + 1; i < max + 1; i += 80)
        big[i] = '\n';
    assert_int_equal(read_bytes(big, max, NULL, &spec), HD_OK);
    spec = NULL;
    assert_int_equal(read_bytes(big, max + 1, NULL, &spec), HD_INVALID);
    assert_string_equal(hd_err_message(), "job.yaml: larger than 256 KiB, the limit of a job file");
    free(big);
}

static void a_byte_order_mark_is_no_part_of_the_first_key(void **state)
{
    struct hd_text text = {0};
    struct hd_job *spec = NULL;

    hd_text_add(&text, "\xef\xbb\xbf%s", good);
    assert_int_equal(read_bytes(text.data, text.len_bytes, NULL, &spec), HD_OK);
    hd_text_free(&text);
}

static void nothing_is_not_a_job(void **state)
{
    static const char *const rows[][2] = {
        {"", "job.yaml:1: no keys are given; README.md has an example"},
        {"# only a comment\n", "job.yaml:2: no keys are given; README.md has an example"},
        {"--- \n", "job.yaml:2: expected keys such as name: and model:, not a plain value"},
        {"hello", "job.yaml:1: expected keys such as name: and model:, not a plain value"},
        {"- a", "job.yaml:1: expected keys such as name: and model:, not a list"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job *spec = NULL;

        assert_int_equal(read_bytes(rows[i][0], strlen(rows[i][0]), NULL, &spec), HD_INVALID);
        assert_string_equal(hd_err_message(), rows[i][1]);
    }
}

/* Goal: no cut file crashes the reader or is taken for a whole one. Method: every prefix; one that
 * is accepted must end after the last required line (14). */
static void every_prefix_is_refused_or_whole(void **state)
{
    for (size_t n = 0; n < good_bytes; n++) {
        struct hd_job *spec = NULL;
        char *copy = malloc(n + 1); /* exactly n bytes: a sanitizer sees a read behind them */

        assert_non_null(copy);
        memcpy(copy, good, n);
        if (read_bytes(copy, n, NULL, &spec) == HD_OK)
            assert_non_null(memmem(copy, n, "lr: 1", 5));
        free(copy);
    }
}

/* ---- the reference ---- */

/* Goal: the table of docs/job-file.md is the table of keys. Method: the rows that `heddle keys`
 * prints stand there, as they are. */
static void the_reference_is_the_table_of_keys(void **state)
{
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    struct hd_text path = {0}, document = {0}, rows = {0};

    hd_file_join(&path, root ? root : ".", "docs/job-file.md");
    assert_int_equal(hd_file_read(path.data, 1 << 20, &document), HD_OK);
    hd_spec_document("", &rows);
    if (!strstr(document.data, rows.data))
        fail_msg(
            "docs/job-file.md differs from the keys of lib/job/keys.def: put what `heddle keys "
            "--markdown` prints in the place of its table");
    hd_text_free(&path);
    hd_text_free(&document);
    hd_text_free(&rows);
}

static void the_nearest_word_is_what_was_meant(void **state)
{
    static const char *const words[] = {"submit", "show", "watch", "wait"};

    assert_string_equal(hd_text_nearest("sumbit", words, 4), "submit"); /* neighbours swapped */
    assert_string_equal(hd_text_nearest("shwo", words, 4), "show");
    assert_string_equal(hd_text_nearest("WAIT", words, 4), "wait");
    assert_null(hd_text_nearest("train", words, 4)); /* wait is 3 letters away, of 5 */
    assert_null(hd_text_nearest("", words, 4));
    assert_string_equal(hd_text_nearest("vocabulary", (const char *[]){"layers", "vocab"}, 2),
                        "vocab");
    assert_string_equal(hd_text_nearest("ffn", (const char *[]){"hidden", "ffn_hidden"}, 2),
                        "ffn_hidden");
    assert_null(hd_text_nearest("vo", (const char *[]){"vocab"}, 1)); /* too little is said */
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
