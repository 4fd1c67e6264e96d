/* Evaluation computes what validation computed: from a checkpoint or an exported model, of text or
 * of its token ids, in either precision; and it refuses in words what does not fit.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/data.h"
#include "data/token_writer.h"
#include "hf/hf.h"
#include "runs.h"
#include "tests/program/test.h"
#include "train/evaluate.h"

enum { CORPUS_BYTES = 4000, WINDOWS = 16 };

struct model {
    struct harness h;
    struct hd_job job;
    struct hd_saved saved;
    double loss; /* of the trainer's validation: batches 2 x global batch 8 of context 16 */
    int64_t targets;
};

static enum hd_status make_checkpoint(struct harness_rank *r)
{
    struct model *m = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trained(r, &t);

    if (!st)
        st = hd_trainer_save(t, &m->saved);
    if (!st) /* renews the compute copies */
        st = hd_trainer_load(t, m->saved.path, m->saved.hash, NULL);
    if (!st)
        st = hd_trainer_validate(t, &m->loss, &m->targets);
    hd_trainer_free(t);
    return st;
}

static void model_setup(struct model *m, const char *family, const char *precision)
{
    *m = (struct model){.loss = 0};
    harness_setup(&m->h, CORPUS_BYTES);
    m->job = harness_job(&m->h, family, 1);
    m->job.precision = hd_job_find_word(hd_job_precision_words, precision);
    if (harness_threads(&m->job, 1, m, make_checkpoint))
        fail_msg("%s", hd_err_message());
    assert_int_equal(m->targets, WINDOWS * m->job.context);
}

static struct hd_evaluation_options options_of(const struct model *m)
{
    return (struct hd_evaluation_options){.dirs = {.dir = m->saved.path},
                                          .backend = hd_backend_cpu(),
                                          .threads = (int)m->job.threads};
}

static struct hd_evaluation evaluate(const struct hd_evaluation_options *options)
{
    struct hd_evaluation found;

    if (hd_evaluate(options, &found))
        fail_msg("%s", hd_err_message());
    return found;
}

static void evaluation_is_validation_to_the_bit(void **state)
{
    static const char *const families[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral"};
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (int p = 0; p < 3; p++) {
            struct model m;
            struct hd_evaluation_options options;
            struct hd_evaluation found;

            model_setup(&m, families[f], precisions[p]);
            options = options_of(&m);
            found = evaluate(&options);
            if (found.loss != m.loss)
                fail_msg("%s %s: evaluation has %.17g, validation %.17g", families[f],
                         precisions[p], found.loss, m.loss);
            assert_int_equal(found.targets, m.targets);
            assert_int_equal(found.windows, WINDOWS);
            assert_int_equal(found.step, 2);
            assert_string_equal(found.precision, precisions[p]);

            /* another precision: another number, and nearly the same */
            options.precision = precisions[(p + 1) % 3];
            found = evaluate(&options);
            assert_true(found.loss != m.loss);
            assert_true(fabs(found.loss - m.loss) < 0.05);
            harness_teardown(&m.h);
        }
}

/* Text, its bytes as token ids, and the same in two files are the same data. All 4000 bytes are
 * 3999 / 16 = 249 windows. */
static void text_and_token_files_give_one_loss(void **state)
{
    struct model m;
    struct hd_evaluation_options options;
    struct hd_evaluation of_text, of_tokens;
    struct hd_token_writer *writer;
    char npy[256];
    const char *text_file[1], *token_file[] = {npy};
    int32_t ids[CORPUS_BYTES];
    struct hd_text bytes = {0};

    model_setup(&m, "llama", "fp32");
    text_file[0] = m.h.corpus;
    (void)snprintf(npy, sizeof npy, "%s/ids.npy", m.h.dir);
    assert_int_equal(hd_file_read(m.h.corpus, CORPUS_BYTES, &bytes), HD_OK);
    for (int i = 0; i < CORPUS_BYTES; i++)
        ids[i] = (unsigned char)bytes.data[i];
    hd_text_free(&bytes);
    assert_int_equal(hd_token_writer_open(npy, HD_TOKEN_FORMAT_NPY, 2, &writer), HD_OK);
    assert_int_equal(hd_token_writer_add(writer, ids, CORPUS_BYTES), HD_OK);
    assert_int_equal(hd_token_writer_finish(writer), HD_OK);

    options = options_of(&m);
    options.files = text_file;
    options.file_count = 1;
    of_text = evaluate(&options);
    assert_int_equal(of_text.windows, 249);
    assert_int_equal(of_text.all_windows, 249);
    assert_int_equal(of_text.targets, 249 * 16);
    assert_int_equal(of_text.bytes, 249 * 16); /* a token is a byte */
    options.files = token_file;
    of_tokens = evaluate(&options);
    assert_true(of_tokens.loss == of_text.loss);
    options.windows = 3;
    of_tokens = evaluate(&options);
    assert_int_equal(of_tokens.windows, 3);
    assert_int_equal(of_tokens.all_windows, 249);
    assert_int_equal(of_tokens.targets, 3 * 16);
    options.windows = 0;
    options.context = 8;
    of_tokens = evaluate(&options);
    assert_int_equal(of_tokens.windows, 499);
    assert_true(of_tokens.loss != of_text.loss);
    harness_teardown(&m.h);
}

/* Goal: the rows of a job whose template asks for no date, as most do not, are evaluated. Method:
 * the job has the identity of its template without a date, which is checked when rows become
 * tokens. The row is 40 bytes: (40 - 1) / 16 = 2 windows. */
static void a_job_without_a_date_keeps_its_identity(void **state)
{
    static const char row[] = "{\"text\": \"0123456789012345678901234567890123456789\"}\n";
    struct model m;
    struct hd_evaluation_options options;
    char template[320], rows[320], folder[HD_JOB_PATH_MAX], identity[HD_TEXT_IDENTITY_MAX];
    const char *files[] = {rows};
    struct hd_text_origin origin = {
        .tokenizer = "bytes", .template = template, .folder = folder, .model_dir = "", .date = ""};
    uint64_t hash = 0;

    (void)state;
    harness_setup(&m.h, CORPUS_BYTES);
    m.job = harness_job(&m.h, "llama", 1);
    (void)snprintf(template, sizeof template, "%s/t.jinja", m.h.dir);
    (void)snprintf(rows, sizeof rows, "%s/rows.jsonl", m.h.dir);
    assert_int_equal(hd_file_write_atomic(template, "{{ 1 }}", 7, 0600), HD_OK);
    assert_int_equal(hd_file_write_atomic(rows, row, sizeof row - 1, 0600), HD_OK);
    m.job.template = template;
    hd_job_chat_folder(&m.job, folder);
    origin.format = hd_job_data_format_words[m.job.data_format];
    origin.loss = hd_job_data_loss_words[m.job.data_loss];
    assert_int_equal(hd_text_identity(&origin, &hash), HD_OK);
    hd_text_identity_format(hash, identity);
    m.job.text_identity = identity;
    if (harness_threads(&m.job, 1, &m, make_checkpoint))
        fail_msg("%s", hd_err_message());
    options = options_of(&m);
    options.files = files;
    options.file_count = 1;
    assert_int_equal(evaluate(&options).windows, 2);
    harness_teardown(&m.h);
}

/* Goal: a folder for transformers is the same model. Method: export; the windows are evaluated in
 * other batches, so that the sums may differ in the last digits. */
static void a_model_folder_gives_the_loss_of_its_checkpoint(void **state)
{
    struct model m;
    struct hd_evaluation_options options;
    struct hd_evaluation of_checkpoint, of_folder;
    char out[256];
    const char *files[1];
    struct hd_hf_export export;

    model_setup(&m, "qwen2", "fp32");
    files[0] = m.h.corpus;
    (void)snprintf(out, sizeof out, "%s/out", m.h.dir);
    export = (struct hd_hf_export){.checkpoint_dir = m.saved.path,
                                   .out_dir = out,
                                   .dtype = HD_F32,
                                   .shard_bytes_max = 1 << 30};
    assert_int_equal(hd_hf_export_run(&export), HD_OK);
    options = options_of(&m);
    options.files = files;
    options.file_count = 1;
    of_checkpoint = evaluate(&options);
    options.dirs.dir = out;
    of_folder = evaluate(&options);
    assert_false(of_folder.is_checkpoint);
    assert_int_equal(of_folder.targets, of_checkpoint.targets);
    assert_true(fabs(of_folder.loss - of_checkpoint.loss) < 1e-6);
    harness_teardown(&m.h);
}

static void assert_refused(const struct hd_evaluation_options *options, const char *words)
{
    struct hd_evaluation found;

    assert_int_equal(hd_evaluate(options, &found), HD_INVALID);
    if (!strstr(hd_err_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", hd_err_message(), words);
}

static void what_does_not_fit_is_refused_in_words(void **state)
{
    const char *files[] = {"/no/such/file.txt"};
    struct hd_evaluation_options options;
    struct model m;

    model_setup(&m, "llama", "fp32");
    options = options_of(&m);
    options.context = 17;
    assert_refused(&options, "--context: 17 is more than the model's context of 16");
    options = options_of(&m);
    options.precision = "fp8";
    assert_refused(&options, "--precision: 'fp8' is not fp32, bf16 or fp16");
    options = options_of(&m);
    options.files = files;
    options.file_count = 1;
    assert_refused(&options, "/no/such/file.txt");
    harness_teardown(&m.h);
}

static bool stop_at_once(void *user, const struct hd_evaluation_progress *progress)
{
    return false;
}

static void an_interrupted_evaluation_says_so(void **state)
{
    struct hd_evaluation_options options;
    struct hd_evaluation found;
    struct model m;

    model_setup(&m, "llama", "fp32");
    options = options_of(&m);
    options.progress = stop_at_once;
    assert_int_equal(hd_evaluate(&options, &found), HD_ABORTED);
    harness_teardown(&m.h);
}

RUN_CASES()
