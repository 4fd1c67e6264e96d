/* Goal: the job that ranks receive from a job file, and what model directories add to it. */
#include "fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "chat/date.h"
#include "data/fingerprint.h"
#include "job/data_stages.h"
#include "job/frozen_model.h"
#include "spec/spec_internal.h"
#include "tests/program/tells.h"

/* ---- what the ranks get ---- */

static void fill_plan(struct hd_layout_sizes *plan, int64_t ranks)
{
    *plan = (struct hd_layout_sizes){.pp = 1,
                                     .dp = ranks,
                                     .cp = 1,
                                     .tp = 1,
                                     .ep = 1,
                                     .micro_batch = 4,
                                     .threads = 3,
                                     .precision = HD_JOB_PRECISION_BF16,
                                     .schedule = "none",
                                     .recompute = "none",
                                     .offload = HD_JOB_OFFLOAD_NONE,
                                     .cp_exchange = HD_JOB_CP_EXCHANGE_RING,
                                     .stages = "auto",
                                     .device = HD_JOB_DEVICE_CPU};
}

static void the_resolved_job_has_everything_and_reads_back(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 7, .number = 2, .dir = "/j/7"};
    struct hd_job *spec = read_good(NULL);
    struct hd_job *job = calloc(2, sizeof *job);
    struct hd_text text = {0};
    struct hd_arena arena;
    struct hd_layout_sizes plan;

    assert_non_null(job);
    hd_arena_init(&arena, 0);
    fill_plan(&plan, 2);
    assert_false(spec->tf32 || spec->deterministic ||
                 spec->native_reduction); /* only when asked for */
    spec->deterministic = spec->native_reduction = true;
    if (hd_spec_resolve(spec, &plan, &attempt, &job[0]))
        fail_msg("%s", hd_err_message());
    /* its own reader knows every bound: it must accept what was resolved */
    assert_int_equal(hd_job_write(&job[0], &text), HD_OK);
    if (hd_job_read(text.data, text.len_bytes, &arena, &job[1]))
        fail_msg("%s", hd_err_message());
    assert_string_equal(job[1].name, "tiny");
    assert_string_equal(job[1].family, "llama");
    assert_int_equal(job[1].lr_decay, HD_JOB_LR_DECAY_COSINE);
    assert_int_equal(job[1].precision, HD_JOB_PRECISION_BF16);
    assert_true(job[1].deterministic && job[1].native_reduction && !job[1].tf32);
    assert_int_equal(job[1].order, HD_JOB_ORDER_SHUFFLED);
    assert_string_equal(job[1].attempt_dir, "/j/7");
    assert_string_equal(job[1].base_checkpoint, "");
    assert_string_equal(job[1].base_manifest_hash, "-");
    assert_int_equal(job[1].dp, 2);
    assert_int_equal(job[1].threads, 3);
    assert_int_equal(job[1].job_id, 7);
    assert_int_equal(job[1].attempt, 2);
    assert_int_equal(job[1].train_count, 3);
    assert_int_equal(job[1].train[1].size_bytes, 300);
    assert_int_equal(hd_fingerprint_check(job[1].train[1].path, job[1].train[1].fingerprint),
                     HD_OK);
    assert_true(hd_text_starts(job[1].val[0].fingerprint, "256:")); /* 4 files share 1024 places */
    assert_int_equal(job[1].val_count, 1);
    assert_int_equal(job[1].validate_every, 100);
    hd_text_free(&text);
    hd_arena_done(&arena);
    free(job);
}

/* Six experts on the four ranks of cp 2 x dp 2: two blocks of ep 2. */
static void experts_reach_the_ranks(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    struct hd_job *spec =
        read_good("model={family: mixtral, layers: 1, hidden: 64, heads: 4, context: 16, experts: "
                  "6, experts_per_token: 3, shared_ffn_hidden: 32, router: {noisy: true, balance: "
                  "0.5, z_loss: 0.25, capacity_factor: 2}}");
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_layout_sizes plan;

    assert_non_null(job);
    fill_plan(&plan, 4);
    plan.dp = plan.cp = plan.ep = 2;
    plan.expert_rows = 1.5;
    if (hd_spec_resolve(spec, &plan, &attempt, job))
        fail_msg("%s", hd_err_message());
    assert_string_equal(job->family, "mixtral");
    assert_int_equal(job->experts, 6);
    assert_int_equal(job->experts_per_token, 3);
    assert_int_equal(job->shared_ffn_hidden, 32);
    assert_true(job->renormalize && job->noisy);
    assert_true(job->balance == 0.5 && job->z_loss == 0.25 && job->capacity == 2);
    assert_int_equal(job->ep, 2);
    assert_true(job->expert_rows == 1.5);

    plan.ep = 4;
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_INVALID);
    assert_tells(hd_err_message(), "parallel.ep: 4", "model.experts = 6", "use 1 or 2");
    free(job);
}

/* Goal: a mixture reaches the ranks file by file. Method: two sources, one of two files, one of
 * which a pattern finds and data.val has; through JSON and the resolved job. */
static void a_mixture_reaches_the_ranks(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    struct hd_job *spec = read_good("data.train=[{path: [short.txt, corpus/*.txt], weight: "
                                    "0.7}, {weight: 3, path: long.txt}]");
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_layout_sizes plan;
    size_t first = 0;

    fill_plan(&plan, 1);
    if (hd_spec_resolve(spec, &plan, &attempt, job))
        fail_msg("%s", hd_err_message());
    assert_int_equal(job->weight_count, 2);
    assert_true(job->weights[0] == 0.7 && job->weights[1] == 3);
    assert_int_equal(job->train_count, 5); /* short B a b, without val; long */
    while (first < 5 && job->train[first].source == 0)
        first++;
    assert_int_equal(first, 4);
    assert_int_equal(job->train[4].source, 1);
    assert_int_equal(job->documents, HD_JOB_DOCUMENTS_JOINED);
    assert_int_equal(job->end_of_text, -2);
    free(job);
}

/* Returns the job as it arrives after a submission and a resume: through a message, then through
 * the job file that a resume makes of it. */
static struct hd_job *submitted(const struct hd_job *spec)
{
    struct Heddle__V1__JobSpec *message = hd_spec_to_message(spec, &jobs);
    struct hd_job *job = hd_arena_alloc(&jobs, sizeof *job), *again = NULL;
    struct hd_text text = {0};
    struct hd_json_writer writer = {.out = &text};

    assert_true(message && job);
    assert_int_equal(hd_spec_from_message(message, &jobs, job), HD_OK);
    hd_spec_add_file_json(job, NULL, &writer);
    if (read_bytes(text.data, text.len_bytes, NULL, &again))
        fail_msg("%s", hd_err_message());
    hd_text_free(&text);
    return again;
}

/* Goal: stages reach the ranks. Method: three, the first and the last with the files of a source,
 * once as a pattern and once by name; through JSON, the message and the resolved job. */
static void stages_of_the_data_reach_the_ranks(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    char *text = with_line(9, "  stages:\n"
                              "  - {until: 20, train: [{path: corpus/a*.txt, weight: 2}, {path: "
                              "corpus/b.txt, weight: 0.5}]}\n"
                              "  - {until: 60, train: long.txt, lr: 3e-4}\n"
                              "  - {until: 100, train: corpus/a.txt, lr: {peak: 1e-4, decay: wsd, "
                              "decay_shape: sqrt, warmup: 5, min: 0}}");
    static const double weights[3][3] = {{2, 0, 1}, {0.5, 0, 0}, {0, 1, 0}};
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    struct hd_job *spec = NULL;
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_layout_sizes plan;
    int64_t count;

    if (read_bytes(text, strlen(text), NULL, &spec))
        fail_msg("%s", hd_err_message());
    fill_plan(&plan, 1);
    if (hd_spec_resolve(submitted(spec), &plan, &attempt, job))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_data_stages_read(job, stages, &count), HD_OK);
    assert_int_equal(count, 3);
    assert_int_equal(stages[0].until, 20);
    assert_false(stages[0].has_lr);
    assert_true(stages[1].has_lr && stages[1].lr_peak == 3e-4 && stages[1].lr_min == 3e-4 / 10);
    assert_int_equal(stages[1].lr_decay, HD_JOB_LR_DECAY_COSINE);
    assert_int_equal(stages[1].lr_decay_shape, 0);
    assert_int_equal(stages[2].lr_decay, HD_JOB_LR_DECAY_WSD);
    assert_int_equal(stages[2].lr_decay_shape, HD_JOB_LR_DECAY_SHAPE_SQRT);
    assert_int_equal(stages[2].until, 0);
    assert_int_equal(stages[2].lr_warmup_steps, 5);
    assert_true(stages[2].lr_min == 0);
    assert_int_equal(job->weight_count, 3);
    for (int k = 0; k < 3; k++)
        for (int s = 0; s < 3; s++)
            assert_true(hd_job_weight(job, s, k) == weights[k][s]);
    free(text);
    free(job);
}

/* Goal: validation sets reach the ranks file by file. Method: two sets, the second of two files,
 * the second deciding; through JSON, the message and the resolved job. */
static void validation_sets_reach_the_ranks(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    char *text = with_line(10, "  val: {web: corpus/val.txt, code: [short.txt, corpus/a.txt]}\n"
                               "checkpoint: {best: code}");
    struct hd_job *spec = NULL;
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_layout_sizes plan;
    char name[HD_JOB_VAL_NAME_MAX];

    if (read_bytes(text, strlen(text), "data.train=[long.txt]", &spec))
        fail_msg("%s", hd_err_message());
    fill_plan(&plan, 1);
    if (hd_spec_resolve(submitted(spec), &plan, &attempt, job))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_job_val_set_count(job), 2);
    hd_job_val_set_name(job, 1, name);
    assert_string_equal(name, "code");
    assert_true(job->checkpoint_best);
    assert_int_equal(hd_job_val_set_best(job), 1);
    assert_int_equal(job->val_count, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(job->val[i].source, i > 0);
    free(text);
    free(job);
}

/* Goal: token files bring their own vocabulary and ends of documents, and no tokenizer. Method: one
 * by name and one that a pattern finds, without and with the size of the vocabulary. */
static void token_files_need_no_tokenizer(void **state)
{
    static const char *const lines[] = {"  train: [ids.npy]",
                                        "  train: [more/*]\n  tokenizer: none"};
    static const char head[] =
        "name: t\nmodel: {family: llama, layers: 1, hidden: 16, heads: 2, "
        "context: 8, vocab: 50257}\ntrain: {steps: 1, global_batch: 2, lr: 1}\n"
        "data:\n";
    struct hd_job *spec = NULL;
    struct hd_text text = {0};

    put_array("ids.npy", "<u2", 20, 7);
    hd_text_add(&text, "%s%s\n", head, lines[0]);
    if (read_bytes(text.data, text.len_bytes, NULL, &spec))
        fail_msg("%s", hd_err_message());
    assert_string_equal(spec->tokenizer, "none");
    assert_int_equal(spec->documents, HD_JOB_DOCUMENTS_BOUNDED);
    assert_int_equal(spec->train[0].size_bytes, 128 + 2 * 20);
    hd_text_free(&text);
    hd_text_add(&text, "%s%s\n", head, lines[1]); /* a pattern may find text */
    assert_int_equal(read_bytes(text.data, text.len_bytes, NULL, &spec), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "none cannot read text"));
    hd_text_free(&text);
}

/* Goal: data files that no rank can read are refused where the job is read, at their line. Method:
 * one array that is good, and each kind of array, line and number that is not. */
static void data_that_no_rank_can_read_is_refused(void **state)
{
    static const struct {
        const char *data, *says;
    } rows[] = {
        {"[float.npy]", "data.train[0]: @/float.npy: elements of type '<f2'; token ids are "
                        "little-endian integers: save a.astype('<u2') or a.astype('<u4')"},
        {"[good.npy, cut.npy]", "data.train[1]: @/cut.npy: 44 bytes after the header, but its 40 "
                                "elements have 2 each; it was truncated or is being written"},
        {"[text.npy]", "data.train[0]: @/text.npy: not a NumPy array file: it does not begin with "
                       "\\x93NUMPY"},
        {"['*t.npy']", "data.train[0]: @/cut.npy: 44 bytes after the header, but its 40 elements "
                       "have 2 each; it was truncated or is being written"},
        {"[good.npy, other.npy]",
         "data.train[1]: @/other.npy: token 39 is 300, but model.vocab allows 0 to 299; it was "
         "made by another tokenizer, or model.vocab is too small"},
        {"[few.npy]", "data.train: 32 tokens are less than one sequence of model.context + 1 = "
                      "33; give more text or lower model.context"},
        {"[{path: good.npy, weight: 1}, {path: few.npy, weight: 1}]",
         "data.train[1]: 32 tokens are less than one sequence of model.context + 1 = 33; give "
         "more text or lower model.context"},
        {"[text.bin]", "data.train[0]: @/text.bin: 100 bytes are less than the header of llm.c; "
                       "and there is no .idx file beside it, as for Megatron"},
        {"[good.npy]\n  val: [few.npy]",
         "data.val: 32 tokens are less than one sequence of model.context + 1 = 33; give more "
         "text or lower model.context"},
        {"[good.npy]\n  val: [none.npy]",
         "data.val[0]: cannot find @/none.npy: No such file or directory; check the path, which "
         "is relative to the job file's folder"},
        {"[good.npy]\n  val_split: 0.5",
         "data.val_split 0.5 splits the 40 tokens into 0 for training and 40 for validation; each "
         "needs at least 33 (the context and one more): 131 tokens are enough, or lower "
         "model.context"},
    };
    static const char head[] =
        "name: t\nmodel: {family: llama, layers: 1, hidden: 16, heads: 2, context: 32, vocab: "
        "300}\ntrain: {steps: 1, global_batch: 2, lr: 1}\ndata:\n  train: ";
    struct hd_job *spec = NULL;

    put_array("good.npy", "<u2", 40, 299);
    put_array("float.npy", "<f2", 40, 7);
    put_array("other.npy", "<u2", 40, 300);
    put_array("few.npy", "<u2", 32, 7);
    put_array("cut.npy", "<u2", 22, 7); /* 44 bytes */
    change_text("cut.npy", "(22,)", "(40,)");
    put_file("text.npy", 100);
    put_file("text.bin", 100);
    put_text("text.jsonl", "\nno json, but more than the thirty-three bytes of a sequence\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_text text = {0}, says = {0};

        hd_text_add(&text, "%s%s\n", head, rows[i].data);
        for (const char *p = rows[i].says; *p; p++)
            hd_text_add_bytes(&says, *p == '@' ? folder : p, *p == '@' ? strlen(folder) : 1);
        assert_int_equal(read_bytes(text.data, text.len_bytes, NULL, &spec) == HD_OK, false);
        if (!strstr(hd_err_message(), says.data) || !strstr(hd_err_message(), "job.yaml:"))
            fail_msg("%s: '%s' is not '%s'", rows[i].data, hd_err_message(), says.data);
        hd_text_free(&text);
        hd_text_free(&says);
    }
}

static void lines_are_documents_and_bytes_are_one_text(void **state)
{
    struct hd_job *lines = read_good("data.train=corpus/x.jsonl"), *bytes = read_good(NULL);

    assert_string_equal(lines->tokenizer, "bytes");
    assert_int_equal(lines->documents, HD_JOB_DOCUMENTS_BOUNDED);
    assert_int_equal(bytes->documents, HD_JOB_DOCUMENTS_JOINED);
}

/* Goal: a text in which a byte was changed is another one, whatever its size and time say. Method:
 * 2 MiB, more than the places of a large file together, changed at places between those, and set
 * back to the time that it had. */
static void a_text_of_the_same_size_and_time_is_another_one(void **state)
{
    enum { BYTES = 2 << 20 };
    static const int at[] = {0, 4096, 5000, BYTES / 2 + 1, BYTES - 4097, BYTES - 1};
    static char text[BYTES + 1];
    char path[128];
    struct hd_job *spec;
    struct stat info;

    (void)snprintf(path, sizeof path, "%s/big.txt", folder);
    memset(text, 'x', BYTES);
    assert_int_equal(hd_file_write_atomic(path, text, BYTES, 0600), HD_OK);
    assert_int_equal(stat(path, &info), 0);
    spec = read_good("data.train=big.txt");
    assert_int_equal(hd_fingerprint_check(path, spec->train[0].fingerprint), HD_OK);
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        const struct timespec times[2] = {info.st_atim, info.st_mtim};

        text[at[i]] = 'y';
        assert_int_equal(hd_file_write_atomic(path, text, BYTES, 0600), HD_OK);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        assert_int_equal(hd_fingerprint_check(path, spec->train[0].fingerprint), HD_INVALID);
        text[at[i]] = 'x';
    }
}

static void refuse_date(const char *template, const char *override, const char *story)
{
    struct hd_job *spec = NULL;

    put_text("t.jinja", template);
    assert_int_equal(read_bytes(good, good_bytes, override, &spec), HD_INVALID);
    if (!strstr(hd_err_message(), story))
        fail_msg("%s: '%s' is not in '%s'", override, story, hd_err_message());
}

/* Goal: a job has one date, which its template gets, decided when it is submitted. Method: a
 * template that asks for it, one that does not, and no template; the identity of the tokens must
 * change with the date, so that no token file of another day is read. */
static void a_template_that_asks_for_the_date_gives_the_job_one(void **state)
{
    static const char asks[] = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}"
                               "{% endfor %}";
    static const char data[] = "data={train: chat.jsonl, template: t.jinja}";
    static const char dated[] = "data={train: chat.jsonl, template: t.jinja, date: 2024-02-29}";
    char today[HD_CHAT_DATE_MAX], later[HD_CHAT_DATE_MAX];
    struct hd_job *spec;

    put_text("chat.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \"aaaaaaaaaaaaaaaa\"}, "
             "{\"role\": \"assistant\", \"content\": \"bbbbbbbbbbbbbbbbbbb\"}]}\n");
    put_text("t.jinja", asks);
    hd_chat_date_today(today);
    spec = read_good(data);
    hd_chat_date_today(later);
    assert_true(strcmp(spec->date, today) == 0 || strcmp(spec->date, later) == 0);
    assert_string_equal(read_good(dated)->date, "2024-02-29");
    assert_string_not_equal(read_good(dated)->text_identity, spec->text_identity);
    assert_string_equal(read_good(dated)->text_identity, read_good(dated)->text_identity);
    put_text("t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_string_equal(read_good(data)->date, "");
    refuse_date(asks, "data={train: chat.jsonl, template: t.jinja, date: 2023-02-29}",
                "data.date: '2023-02-29' is no date");
    refuse_date("{{ messages }}", dated, "data.date: the chat template");
    refuse_date("", "data={train: corpus/x.jsonl, date: 2024-02-29}",
                "data.date: no file of this job");
}

/* Goal: the ranks hear which steps to trace. Method: both forms, and none. */
static void steps_to_trace_reach_the_ranks(void **state)
{
    static const struct {
        const char *override;
        int64_t first, last;
    } cases[] = {{"train.profile.steps=[2,3]", 2, 3}, {"train.profile={steps: 7}", 7, 7}, {0}};
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    struct hd_job *job = calloc(1, sizeof *job);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_job *spec = read_good(cases[i].override);
        struct hd_layout_sizes plan;

        fill_plan(&plan, 2);
        assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_OK);
        assert_int_equal(job->profile_first, cases[i].first);
        assert_int_equal(job->profile_last, cases[i].last);
    }
    free(job);
}

/* `every: 0` is "before the first and after the last step"; `batches: 0` is never. */
static void validation_at_both_ends_is_not_lost(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    struct hd_job *spec = read_good("validate={every: 0, batches: 2}");
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_layout_sizes plan;

    fill_plan(&plan, 2);
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_OK);
    assert_int_equal(job->validate_every, 0);
    assert_int_equal(job->validate_batches, 2);
    spec->validate_batches = 0;
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_OK);
    assert_int_equal(job->validate_batches, 0);
    free(job);
}

static void a_plan_that_does_not_fit_is_refused(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    struct hd_job *spec = read_good(NULL);
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_layout_sizes plan;

    fill_plan(&plan, 2);
    plan.dp = 3; /* with micro-batches of 4 */
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_INVALID);
    assert_tells(hd_err_message(), "resources.devices: 3", "train.global_batch = 8",
                 "multiple of 12");
    plan.dp = 2;
    plan.micro_batch = 3;
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_INVALID);
    assert_tells(hd_err_message(), "parallel.micro_batch: 3", "4 sequences of a rank",
                 "use 1, 2 or 4");
    free(job);
}

/* The device of the plan, which the controller decides, is the ranks' and not the job file's. */
static void the_device_of_the_plan_reaches_the_ranks(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    struct hd_job *spec = read_good("resources.device_type=cuda");
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_layout_sizes plan;

    assert_int_equal(spec->device, HD_JOB_DEVICE_CUDA);
    fill_plan(&plan, 2);
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_OK);
    assert_int_equal(job->device, HD_JOB_DEVICE_CPU);
    plan.device = HD_JOB_DEVICE_CUDA;
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_OK);
    assert_int_equal(job->device, HD_JOB_DEVICE_CUDA);
    assert_int_equal(job->threads, 3);
    plan.precision = HD_JOB_PRECISION_AUTO; /* not decided */
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_UNSUPPORTED);
    free(job);
}

/* Goal: what a file says about axes comes back from JSON and reaches the ranks. Method: values that
 * are not the defaults; a plan that is not what the file's sizes allow is refused. */
static void axes_reach_the_ranks(void **state)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/j"};
    struct hd_job *spec = read_good("parallel={tp: 1, cp: 2, sequence: false, cp_exchange: "
                                    "all_gather}");
    struct hd_job *job = calloc(1, sizeof *job);
    struct hd_text text = {0};
    struct hd_json_writer writer = {.out = &text};
    struct hd_layout_sizes plan;

    hd_spec_add_json(spec, NULL, &writer);
    assert_non_null(strstr(text.data, "\"cp\":2,"));
    assert_non_null(strstr(text.data, "\"sequence\":false,\"cp_exchange\":\"all_gather\"}"));
    fill_plan(&plan, 4);
    plan.dp = 1;
    plan.cp = plan.tp = 2;
    plan.sequence = 1;
    plan.cp_exchange = spec->cp_exchange;
    if (hd_spec_resolve(spec, &plan, &attempt, job))
        fail_msg("%s", hd_err_message());
    assert_true(job->tp == 2 && job->cp == 2 && job->dp == 1 && job->sequence);
    assert_int_equal(job->cp_exchange, HD_JOB_CP_EXCHANGE_ALL_GATHER);
    spec->ffn_hidden = 173; /* two ranks cannot share it */
    assert_int_equal(hd_spec_resolve(spec, &plan, &attempt, job), HD_INVALID);
    assert_tells(hd_err_message(), "parallel.tp: 2", "model.ffn_hidden = 173", "use 1");
    hd_text_free(&text);
    free(job);
}

/* ---- a model directory ---- */

/* A Llama of 2 layers; its weights are one byte, since only the trainer looks for more. */
static void put_model(void)
{
    static const char head[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    char path[160], file[8 + sizeof head] = {sizeof head - 1};

    (void)snprintf(path, sizeof path, "%s/llm", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_text("llm/config.json",
             "{\"model_type\":\"llama\",\"vocab_size\":256,\"hidden_size\":64,"
             "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
             "\"num_key_value_heads\":4,\"max_position_embeddings\":32,\"rms_norm_eps\":1e-6,"
             "\"rope_theta\":50000,\"tie_word_embeddings\":true,\"attention_dropout\":0.25}");
    memcpy(file + 8, head, sizeof head - 1);
    (void)snprintf(path, sizeof path, "%s/llm/model.safetensors", folder);
    assert_int_equal(hd_file_write_atomic(path, file, sizeof file, 0644), HD_OK);
}

/* Lines 3 to 7 of the good job in two forms. */
#define FROM_MODEL "model={from: llm}"

static void a_model_directory_becomes_explicit(void **state)
{
    struct hd_job *spec;
    char path[160];

    put_model();
    spec = read_good(FROM_MODEL);
    (void)snprintf(path, sizeof path, "%s/llm", folder);
    assert_string_equal(spec->from_dir, path);
    assert_string_equal(spec->family, "llama");
    assert_int_equal(spec->layers, 2);
    assert_int_equal(spec->hidden, 64);
    assert_int_equal(spec->heads, 8);
    assert_int_equal(spec->kv_heads, 4);
    assert_int_equal(spec->ffn_hidden, 96);
    assert_int_equal(spec->context, 32);
    assert_true(spec->rope_theta == 50000 && spec->norm_eps == 1e-6);
    assert_true(spec->tie_embeddings);
    assert_int_equal(spec->positions, HD_JOB_POSITIONS_ROPE);
    assert_true(spec->dropout_attention == 0.25 && spec->dropout_residual == 0);
    assert_string_equal(spec->init_from, path); /* architecture and weights */
    assert_int_equal(strlen(spec->init_identity), 16);

    spec = read_good("model={from: llm, context: 16, layers: 2}"); /* shorter, and the same */
    assert_int_equal(spec->context, 16);
}

/* Goal: a teacher that is a model folder is in the spec with its architecture and the hash of its files,
 * from which its job is made again; one with another tokenizer, or with a shorter context, is refused. */
static void a_teacher_s_folder_becomes_explicit(void **state)
{
    static const char job[] =
        "name: t\nmodel: {family: llama, layers: 1, hidden: 32, heads: 4, "
        "context: 16}\n"
        "data: {train: corpus/a.txt, tokenizer: tok/t.json}\n"
        "train: {steps: 9, global_batch: 8, lr: 1e-3, distill: {teacher: llm, "
        "top_k: 2}}\n";
    const char *longer = "model.context=64", *no_model = "train.distill.teacher=nothing";
    struct hd_text notes = {0};
    const struct hd_spec_source without = {.name = "job.yaml",
                                           .folder = folder,
                                           .bytes = job,
                                           .size_bytes = sizeof job - 1,
                                           .overrides = &no_model,
                                           .override_count = 1,
                                           .notes = &notes};
    struct hd_job *spec = NULL, teacher;
    char path[160];

    put_model();
    (void)snprintf(path, sizeof path, "%s/tok", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_text("tok/t.json", "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}");
    put_text("llm/tokenizer.json",
             "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2}, \"merges\": []}}");
    if (read_bytes(job, sizeof job - 1, NULL, &spec))
        fail_msg("%s", hd_err_message());
    (void)snprintf(path, sizeof path, "%s/llm", folder);
    assert_string_equal(spec->distill_teacher, path);
    assert_int_equal(strlen(spec->distill_identity), 16);
    assert_int_equal(spec->distill_vocab, 2);
    (void)strcpy(spec->stages, "0,1"); /* the student's single layer */
    assert_int_equal(hd_job_of_teacher(spec, &jobs, &teacher), HD_OK);
    assert_string_equal(teacher.stages, "auto");
    assert_int_equal(teacher.layers, 2);
    assert_int_equal(teacher.kv_heads, 4);
    assert_true(teacher.rope_theta == 50000 && teacher.tie_embeddings);
    assert_int_equal(teacher.positions, HD_JOB_POSITIONS_ROPE);
    assert_int_equal(teacher.context, 16);
    assert_string_equal(teacher.init_from, path);
    assert_string_equal(teacher.init_identity, spec->distill_identity);

    assert_int_equal(hd_spec_read_yaml(&without, &jobs, spec), HD_OK);
    assert_non_null(strstr(notes.data, "/nothing is neither a model folder nor a checkpoint"));
    hd_text_free(&notes);
    assert_int_equal(read_bytes(job, sizeof job - 1, longer, &spec), HD_INVALID);
    assert_non_null(
        strstr(hd_err_message(), "model.context: 64 is more than the 32 of the teacher"));
    put_text("llm/tokenizer.json",
             "{\"model\": {\"vocab\": {\"a\": 1, \"b\": 0, \"c\": 2}, \"merges\": []}}");
    assert_int_equal(read_bytes(job, sizeof job - 1, NULL, &spec), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has other tokens than data.tokenizer"));
    (void)snprintf(path, sizeof path, "%s/llm/tokenizer.json", folder);
    assert_int_equal(unlink(path), 0);
}

static void a_tokenizer_is_named_or_the_models_own(void **state)
{
    static const char job[] = "name: t\nmodel: {family: llama, layers: 2, hidden: 64, heads: 8, "
                              "context: 32, vocab: 300}\n"
                              "data: {train: corpus/a.txt, tokenizer: t.json}\n"
                              "train: {steps: 9, global_batch: 8, lr: 1e-3}\n";
    struct hd_job *spec = NULL;
    char path[160];

    put_model();
    put_text("t.json", "{}");
    if (read_bytes(job, sizeof job - 1, NULL, &spec))
        fail_msg("%s", hd_err_message());
    (void)snprintf(path, sizeof path, "%s/t.json", folder);
    assert_string_equal(spec->tokenizer, path);
    put_text("llm/tokenizer.json", "{}");
    spec = read_good(FROM_MODEL);
    (void)snprintf(path, sizeof path, "%s/llm/tokenizer.json", folder);
    assert_string_equal(spec->tokenizer, path);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/t.json", folder); /* a pipe has no second reader */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(read_bytes(job, sizeof job - 1, NULL, &spec), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "data.tokenizer: "));
    assert_non_null(strstr(hd_err_message(), "is no regular file"));
    assert_int_equal(unlink(path), 0);
}

/* Goal: without model.vocab the embedding has a row for each id of the tokenizer, up to the next
 * multiple of 64, and the user is told; a vocabulary that is too small is refused, with its line.
 * Method: 3 tokens of the model and 2 added ones, one of them a token of the model: ids 0 to 3;
 * 4 rounds up to 64. Then with a name beside it, which is a fifth token. */
static void the_tokenizer_decides_the_vocabulary(void **state)
{
    static const char job[] = "name: t\nmodel: {family: llama, layers: 2, hidden: 64, heads: 8, "
                              "context: 32}\n"
                              "data: {train: corpus/a.txt, tokenizer: tok/t.json}\n"
                              "train: {steps: 9, global_batch: 8, lr: 1e-3}\n";
    const char *too_small = "model.vocab=4";
    struct hd_text notes = {0};
    struct hd_spec_source source = {.name = "job.yaml",
                                    .folder = folder,
                                    .bytes = job,
                                    .size_bytes = sizeof job - 1,
                                    .notes = &notes};
    char path[160];
    struct hd_job *spec = hd_arena_alloc(&jobs, sizeof *spec);

    (void)snprintf(path, sizeof path, "%s/tok", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_text("tok/t.json", "{\"added_tokens\": [{\"id\": 1, \"content\": \"b\"}, {\"id\": 3, "
                           "\"content\": \"<e>\"}], \"model\": {\"vocab\": {\"a\": 0, \"b\": 1, "
                           "\"c\": 2}, \"merges\": []}}");
    assert_int_equal(hd_spec_read_yaml(&source, &jobs, spec), HD_OK);
    assert_int_equal(spec->vocab, 64);
    assert_string_equal(notes.data, "model.vocab: 64: the tokenizer has 4 ids, rounded up to a "
                                    "multiple of 64\n");
    put_text("tok/tokenizer_config.json", "{\"eos_token\": \"<end>\"}");
    source.overrides = &too_small;
    source.override_count = 1;
    assert_int_equal(hd_spec_read_yaml(&source, &jobs, spec), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "model.vocab: 4 is less than the 5 tokens of "
                                             "data.tokenizer = "));
    put_text("tok/t.json", "{\"model\": {\"type\": \"BPE\"}}");
    source.override_count = 0;
    assert_int_equal(hd_spec_read_yaml(&source, &jobs, spec), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "data.tokenizer: "));
    assert_non_null(strstr(hd_err_message(), "vocab"));
    hd_text_free(&notes);
}

/* Goal: a validation on a copy of training text is told of, on text of its own not. */
static void a_copy_of_training_text_is_no_validation(void **state)
{
    struct hd_text notes = {0};
    struct hd_spec_source source = {.name = "job.yaml",
                                    .folder = folder,
                                    .bytes = good,
                                    .size_bytes = good_bytes,
                                    .notes = &notes};
    const char *val = "data={train: [long.txt], val: [copy.txt, other.txt]}";
    struct hd_job *spec = hd_arena_alloc(&jobs, sizeof *spec);
    struct hd_text text = {0};
    char path[160];

    (void)snprintf(path, sizeof path, "%s/long.txt", folder);
    assert_int_equal(hd_file_read(path, 1 << 20, &text), HD_OK);
    put_text("copy.txt", text.data);
    text.data[text.len_bytes / 2] ^= 1;
    put_text("other.txt", text.data);
    source.overrides = &val;
    source.override_count = 1;
    if (hd_spec_read_yaml(&source, &jobs, spec))
        fail_msg("%s", hd_err_message());
    assert_non_null(notes.data);
    assert_non_null(strstr(notes.data, "/copy.txt has the bytes of "));
    assert_null(strstr(notes.data, "/other.txt"));
    hd_text_free(&notes);
    hd_text_free(&text);
}

/* Goal: the job's values of dropout go before what config.json says, 0.25 for attention. */
static void the_job_decides_what_is_dropped(void **state)
{
    static const char job[] = "name: t\nmodel: {from: llm}\ndata: {train: corpus/a.txt}\n"
                              "train: {steps: 9, global_batch: 8, lr: 1e-3, dropout: %s}\n";
    static const struct {
        const char *dropout;
        double attention, residual;
    } rows[] = {{"0", 0, 0}, {"0.5", 0.5, 0.5}, {"{residual: 0.125}", 0.25, 0.125}};

    put_model();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job *spec = NULL;
        struct hd_text text = {0};

        hd_text_add(&text, job, rows[i].dropout);
        if (read_bytes(text.data, text.len_bytes, NULL, &spec))
            fail_msg("%s", hd_err_message());
        assert_true(spec->dropout_attention == rows[i].attention);
        assert_true(spec->dropout_residual == rows[i].residual);
        hd_text_free(&text);
    }
}

static void the_architecture_alone_is_taken_with_init_from_none(void **state)
{
    static const char job[] = "name: t\nmodel: {from: llm}\ndata: {train: corpus/a.txt}\n"
                              "train: {steps: 9, global_batch: 8, lr: 1e-3, init_from: none}\n";
    struct hd_job *spec = NULL;

    put_model();
    if (read_bytes(job, sizeof job - 1, NULL, &spec))
        fail_msg("%s", hd_err_message());
    assert_string_equal(spec->init_from, "none");
    assert_string_equal(spec->init_identity, "");
}

/* Goal: every key that a job of a folder has resolved can be read again, as a resume does. Method: with the folder's
 * weights, and with new ones. */
static void a_job_of_a_folder_is_read_again(void **state)
{
    static const char *const trains[] = {"", ", init_from: none"};

    put_model();
    for (int i = 0; i < 2; i++) {
        struct hd_job *spec = NULL, *again;
        char job[300];

        (void)snprintf(job, sizeof job,
                       "name: t\nmodel: {from: llm}\ndata: {train: corpus/a.txt}\n"
                       "train: {steps: 9, global_batch: 8, lr: 1e-3%s}\n",
                       trains[i]);
        if (read_bytes(job, strlen(job), NULL, &spec))
            fail_msg("%s", hd_err_message());
        again = submitted(spec);
        assert_string_equal(again->init_from, spec->init_from);
        assert_true(again->hidden == spec->hidden && again->init_std == spec->init_std);
    }
}

static void refuse_model(const char *override, const char *story)
{
    struct hd_job *spec = NULL;

    assert_int_equal(read_bytes(good, good_bytes, override, &spec), HD_INVALID);
    if (!strstr(hd_err_message(), story))
        fail_msg("'%s' does not say '%s'", hd_err_message(), story);
}

/* A model of 32 positions leaves 27 behind a prefix of 5; by default a multiple of 8 of them. */
static void a_prefix_shortens_the_context(void **state)
{
    char *text = with_line(13, "  global_batch: 8\n  adapter: {type: prefix, tokens: 5}");
    struct hd_job *spec = NULL;

    put_model();
    assert_int_equal(read_bytes(text, strlen(text), FROM_MODEL, &spec), HD_OK);
    assert_int_equal(spec->context, 24);
    assert_int_equal(read_bytes(text, strlen(text), "model={from: llm, context: 27}", &spec),
                     HD_OK);
    assert_int_equal(spec->context, 27);
    assert_int_equal(read_bytes(text, strlen(text), "model={from: llm, context: 28}", &spec),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has 32 positions, and those of tokens begin behind "
                                             "the 5 of train.adapter.tokens; give at most 27"));
    free(text);
    text = with_line(13, "  global_batch: 8\n  adapter: {type: prefix, tokens: 31}");
    assert_int_equal(read_bytes(text, strlen(text), FROM_MODEL, &spec), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "train.adapter.tokens: 31 of the 32 positions of "));
    assert_non_null(strstr(hd_err_message(), "give at most half, 16"));
    free(text);
}

static void what_contradicts_the_directory_is_refused(void **state)
{
    char path[160];

    put_model();
    refuse_model("model={from: llm, hidden: 128}", "model.hidden: 128 is not the 64 of ");
    refuse_model("model={from: llm, context: 64}", "model.context: 64 is more than the 32 of ");
    refuse_model("model={from: llm, family: gpt2}", "model.family: gpt2 is not the llama of ");
    refuse_model("model={from: llm, tie_embeddings: false}",
                 "model.tie_embeddings: false is not the true of ");
    refuse_model("model={from: llm, positions: alibi}",
                 "model.positions: alibi is not the rope of ");
    refuse_model("model={from: none-there}", "model.from: there is no folder ");
    refuse_model("model={from: org/none}",
                 "/org/none; a model of the Hugging Face hub is written hf://org/none");
    refuse_model("model={from: 'https://huggingface.co/org/none'}", "; write hf://org/none");
    refuse_model("model={from: 'gs://org/none'}", "only hf:// and s3:// are downloaded");
    put_text("a-file", "text");
    refuse_model("model={from: a-file}", "/a-file is a file; give the folder of a model");
    (void)snprintf(path, sizeof path, "%s/step-1", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_text("step-1/manifest.json", "{}");
    refuse_model("model={from: step-1}", "/step-1 is a checkpoint of Heddle; name it as ");
    refuse_model("train.init_from=corpus", "train.init_from: ");
    refuse_model("data.tokenizer=no.json", "data.tokenizer: there is no ");
}

/* Goal: a folder that has its tokenizer in another form says which, and what to do; only a model of
 * 256 tokens reads bytes without being told. */
static void a_model_without_a_tokenizer_json_says_what_it_has(void **state)
{
    char path[160];

    put_model();
    assert_string_equal(read_good(FROM_MODEL)->tokenizer, "bytes");
    put_text("llm/config.json",
             "{\"model_type\":\"llama\",\"vocab_size\":604,\"hidden_size\":64,"
             "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
             "\"num_key_value_heads\":4,\"max_position_embeddings\":32,\"rms_norm_eps\":1e-6,"
             "\"rope_theta\":50000,\"tie_word_embeddings\":true}");
    refuse_model(FROM_MODEL, "/llm has no tokenizer.json or tokenizer.model; or name a "
                             "tokenizer.json with this model's 604 tokens in data.tokenizer");
    put_text("llm/tiktoken.model", "x");
    refuse_model(FROM_MODEL, "/llm has no tokenizer.json or tokenizer.model, only tiktoken.model, "
                             "which Heddle does not read; make one with transformers: "
                             "AutoTokenizer");
    (void)snprintf(path, sizeof path, "%s/llm/tiktoken.model", folder);
    assert_int_equal(unlink(path), 0);
    put_text("llm/tokenizer.model", "x");
    (void)snprintf(path, sizeof path, "%s/llm/tokenizer.model", folder);
    assert_string_equal(read_good(FROM_MODEL)->tokenizer, path);
    put_text("llm/tokenizer.json", "{}"); /* which of the two: the one that says more */
    assert_true(hd_text_ends(read_good(FROM_MODEL)->tokenizer, "/tokenizer.json"));
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/llm/tokenizer.json", folder);
    assert_int_equal(unlink(path), 0);
    put_model();
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
