/* The resolved job: what is written is what is read, and nothing else is accepted. */
#include <stdio.h>
#include <string.h>

#include "job/choice_sets.h"
#include "job/frozen_model.h"
#include "job/job.h"
#include "job/pair_factors.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

static void fill(struct hd_job *job, struct hd_job_file *files)
{
    hd_job_set_defaults(job);
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        void *member = hd_job_member(key, job);

        if (key->kind == HD_KEY_NAME)
            job_set(key, "word", job);
        else if (key->kind == HD_KEY_WORD)
            *(unsigned *)member = 1;
        else if (key->kind == HD_KEY_PATH)
            job_set(key, "/a path/b", job);
        else if (key->kind == HD_KEY_INT)
            *(int64_t *)member = key->min > 1 ? (int64_t)key->min : 1;
        else if (key->kind == HD_KEY_REAL) /* not exact in binary */
            *(double *)member = key->max >= 4.0 / 3 ? 4.0 / 3 : 0.1;
        else if (key->kind == HD_KEY_BOOL)
            *(bool *)member = true;
    }
    job->vocab = 256;
    job->rope_theta = 1e4 / 3;
    job->seed = INT64_MAX;
    files[0] = (struct hd_job_file){.path = "/x y.txt", .size_bytes = 12};
    files[1] = (struct hd_job_file){
        .path = "/z.txt", .size_bytes = INT64_MAX, .fingerprint = "4:00000000000000ff"};
    job->train = files;
    job->train_count = 2;
}

/* Checkpoints and hashes depend on each digit, and whole numbers are written without printf. */
static void a_number_is_written_with_the_digits_of_17_places(void **state)
{
    static const double values[] = {
        0,    -0.0, 1,       -7,   1e5,    999999999999999, 1e15,
        1e16, 1e17, 1.0 / 3, -0.1, 5e-324, 1.7e308,         4503599627370497.5};
    const struct hd_key *key = hd_job_find_key("model.attention_cap");
    struct hd_job job = HD_JOB(.arena = NULL);

    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct hd_text text = {0};
        char expected[40];

        job.attention_cap = values[i];
        (void)snprintf(expected, sizeof expected, "%.17g", values[i]);
        assert_int_equal(hd_job_format(key, &job, &text), HD_OK);
        assert_string_equal(text.data, expected);
        hd_text_free(&text);
    }
}

static void what_is_written_is_read_back(void **state)
{
    struct hd_text first = {0}, second = {0};
    struct hd_job_file files[2];
    struct hd_arena arena;
    struct hd_job job, back;

    hd_arena_init(&arena, 0);
    fill(&job, files);
    assert_int_equal(hd_job_write(&job, &first), HD_OK);
    assert_int_equal(hd_job_read(first.data, first.len_bytes, &arena, &back), HD_OK);
    assert_true(back.rope_theta == job.rope_theta);
    assert_int_equal(back.seed, INT64_MAX);
    assert_int_equal(back.train_count, 2);
    assert_string_equal(back.train[0].path, "/x y.txt");
    assert_null(back.train[0].fingerprint);
    assert_string_equal(back.train[1].path, "/z.txt");
    assert_string_equal(back.train[1].fingerprint, "4:00000000000000ff");
    assert_int_equal(back.val_count, 0);
    assert_int_equal(hd_job_write(&back, &second), HD_OK);
    assert_string_equal(first.data, second.data);
    hd_text_free(&first);
    hd_text_free(&second);
    hd_arena_done(&arena);
}

/* Characters that would end the line or its word are not written. */
static void a_fingerprint_is_one_word(void **state)
{
    static const char *const wrong[] = {"", "4:ff\nname x", "4:ff x", "/x"};
    struct hd_text text = {0};
    struct hd_job_file files[2];
    struct hd_job job;

    fill(&job, files);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        files[1].fingerprint = wrong[i];
        hd_text_clear(&text);
        assert_int_equal(hd_job_write(&job, &text), HD_INVALID);
    }
    hd_text_free(&text);
}

/* A line per stage; a text without an end of line would run into the next key. */
static void an_order_of_stages_is_read_back(void **state)
{
    static const char order[] = "0: F0.0 B0.0\n1: F1.0 B1.0\n";
    struct hd_text text = {0}, wrong = {0};
    struct hd_job_file files[2];
    struct hd_arena arena;
    struct hd_job job, back;

    hd_arena_init(&arena, 0);
    fill(&job, files);
    job.schedule_order = order;
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    assert_non_null(strstr(text.data, "\nparallel.schedule.order 1: F1.0 B1.0\n"));
    assert_int_equal(hd_job_read(text.data, text.len_bytes, &arena, &back), HD_OK);
    assert_string_equal(back.schedule_order, order);
    for (int i = 0; i < 2; i++) {
        job.schedule_order = i ? "0: F0.0\n\n" : "0: F0.0";
        hd_text_clear(&wrong);
        assert_int_equal(hd_job_write(&job, &wrong), HD_INVALID);
    }
    hd_text_free(&text);
    hd_text_free(&wrong);
    hd_arena_done(&arena);
}

/* Goal: each file of a mixture keeps its source. Method: two sources, weights that are no binary
 * fractions. */
static void a_mixture_is_read_back(void **state)
{
    struct hd_text text = {0};
    struct hd_job_file files[3];
    double weights[] = {0.7, 1.0 / 3};
    struct hd_arena arena;
    struct hd_job job, back;

    hd_arena_init(&arena, 0);
    fill(&job, files);
    files[2] = (struct hd_job_file){.path = "/w.npy", .size_bytes = 2, .source = 1};
    job.train_count = 3;
    job.weights = weights;
    job.weight_count = 2;
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    assert_int_equal(hd_job_read(text.data, text.len_bytes, &arena, &back), HD_OK);
    assert_int_equal(back.weight_count, 2);
    assert_true(back.weights[0] == weights[0] && back.weights[1] == weights[1]);
    for (int i = 0; i < 3; i++)
        assert_int_equal(back.train[i].source, i / 2);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

/* Goal: each validation file keeps its set; a text whose sets are not those of the names is refused. */
static void validation_sets_are_read_back(void **state)
{
    struct hd_job_file files[2],
        val[3] = {{.path = "/a"}, {.path = "/b", .source = 1}, {.path = "/c", .source = 1}};
    struct hd_text text = {0};
    struct hd_arena arena;
    struct hd_job job, back;
    char *line;

    hd_arena_init(&arena, 0);
    fill(&job, files);
    job.val_sets = "web,code";
    job.val = val;
    job.val_count = 3;
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    assert_int_equal(hd_job_read(text.data, text.len_bytes, &arena, &back), HD_OK);
    assert_string_equal(back.val_sets, "web,code");
    for (int i = 0; i < 3; i++)
        assert_int_equal(back.val[i].source, i > 0);
    line = strstr(text.data, "data.val.set code");
    assert_non_null(line);
    memcpy(line, "data.val.set cude", 17);
    assert_int_equal(hd_job_read(text.data, text.len_bytes, &arena, &back), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "'cude' is not the validation set"));
    hd_text_free(&text);
    hd_arena_done(&arena);
}

/* Goal: the files of questions are read back, and each number of a validation is found by its name.
 * Method: two sets of losses and two files, the path of one with a blank. */
static void numbers_of_validations_are_found_by_name(void **state)
{
    static const struct {
        const char *name;
        struct hd_val_metric metric;
    } cases[] = {{"-", {HD_VAL_LOSS, 0}},
                 {"code", {HD_VAL_LOSS, 1}},
                 {"code/ema", {HD_VAL_EMA, 1}},
                 {"arc/ema", {HD_VAL_ACC, -1}},
                 {"mean", {HD_VAL_MEAN, 0}},
                 {"arc", {HD_VAL_ACC, 0}},
                 {"arc/acc", {HD_VAL_ACC, 0}},
                 {"facts/acc_norm", {HD_VAL_ACC_NORM, 1}},
                 {"loss", {HD_VAL_ACC, -1}},
                 {"arc/", {HD_VAL_ACC, -1}},
                 {"code/acc", {HD_VAL_ACC, -1}},
                 {"arc/acc/acc", {HD_VAL_ACC, -1}},
                 {"sums", {HD_VAL_PASS, 0}},
                 {"sums/pass@1", {HD_VAL_PASS, 0}},
                 {"sums/pass@4", {HD_VAL_PASS_K, 0}},
                 {"sums/pass@2", {HD_VAL_ACC, -1}},
                 {"arc/pass@1", {HD_VAL_ACC, -1}},
                 {"sums/acc", {HD_VAL_ACC, -1}}};
    const struct hd_choice_set first = {"arc", 7, "1:0123456789abcdef", "/a b/arc.jsonl"},
                               second = {"facts", -1, "", "/f"}, third = {"sums", -1, "", "/s"};
    struct hd_job_file files[2], val[2] = {{.path = "/a"}, {.path = "/b", .source = 1}};
    struct hd_choice_set set;
    struct hd_text text = {0}, names = {0};
    struct hd_val_metric found;
    struct hd_arena arena;
    struct hd_job job, back;

    hd_arena_init(&arena, 0);
    fill(&job, files);
    job.val_sets = "web,code";
    job.val = val;
    job.val_count = 2;
    job.validate_ema = true;
    job.choices = "";
    assert_int_equal(hd_choice_set_add(&first, HD_QUESTIONS_CHOICES, &job), HD_OK);
    assert_int_equal(hd_choice_set_add(&second, HD_QUESTIONS_CHOICES, &job), HD_OK);
    job.tasks = "";
    job.tasks_k = 4;
    assert_int_equal(hd_choice_set_add(&third, HD_QUESTIONS_TASKS, &job), HD_OK);
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    if (hd_job_read(text.data, text.len_bytes, &arena, &back))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_choice_set_count(&back, HD_QUESTIONS_CHOICES), 2);
    assert_int_equal(hd_choice_set_read(&back, HD_QUESTIONS_CHOICES, 0, &set), HD_OK);
    assert_string_equal(set.path, "/a b/arc.jsonl");
    assert_string_equal(set.fingerprint, "1:0123456789abcdef");
    assert_int_equal(set.size_bytes, 7);
    assert_int_equal(hd_choice_set_read(&back, HD_QUESTIONS_CHOICES, 1, &set), HD_OK);
    assert_string_equal(set.name, "facts");
    assert_int_equal(hd_choice_set_read(&back, HD_QUESTIONS_CHOICES, 2, &set), HD_INVALID);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool there = hd_job_find_metric(&back, cases[i].name, &found);

        assert_int_equal(there, cases[i].metric.set >= 0);
        assert_true(!there ||
                    (found.kind == cases[i].metric.kind && found.set == cases[i].metric.set));
    }
    hd_job_list_metrics(&back, &names);
    assert_string_equal(names.data,
                        "web, code, web/ema, code/ema, mean, arc/acc, arc/acc_norm, facts/acc, "
                        "facts/acc_norm, sums/pass@1, sums/pass@4");
    assert_true(hd_job_val_report_is_possible("sums/pass@16"));
    assert_true(hd_job_val_report_is_score("sums/pass@16"));
    assert_false(hd_job_val_report_is_possible("sums/pass@"));
    assert_false(hd_job_val_report_is_possible("sums/pass@1x"));
    hd_text_free(&names);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

static void expect_refusal(const char *files)
{
    struct hd_text text = {0};
    struct hd_job_file none[2];
    struct hd_arena arena;
    struct hd_job job, back;

    hd_arena_init(&arena, 0);
    fill(&job, none);
    job.train_count = 0;
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    text.data[text.len_bytes - 4] = '\0'; /* without "end\n" */
    text.len_bytes -= 4;
    hd_text_add(&text, "%send\n", files);
    assert_int_equal(hd_job_read(text.data, text.len_bytes, &arena, &back), HD_INVALID);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

static void a_source_without_files_is_refused(void **state)
{
    expect_refusal("data.source 1\n");
    expect_refusal("data.source 1\ndata.source 1\ndata.train 1 /a\n");
    expect_refusal("data.source 1\ndata.train 1 /a\ndata.source 1\n");
    expect_refusal("data.train 1 /a\ndata.source 1\ndata.train 1 /b\n");
    expect_refusal("data.source 0\ndata.train 1 /a\n");
}

/* The text of a job as version 1 had it: what came later is left out, paths are the old ones. */
static void write_version_1(const struct hd_job *job, const char *without, struct hd_text *ret_text)
{
    hd_text_add(ret_text, "HEDDLE-JOB 1\n");
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (key->kind == HD_KEY_FORM || key->since > 1 || strcmp(key->path, without) == 0)
            continue;
        hd_text_add(ret_text, "%s ", key->v1_path ? key->v1_path : hd_job_stored_path(key));
        assert_int_equal(hd_job_format(key, job, ret_text), HD_OK);
        hd_text_add(ret_text, "\n");
    }
    hd_text_add(ret_text, "end\n");
}

/* Goal: a checkpoint outlives the keys that come after it. Method: a text of version 1; its absent
 * keys get the value with which builds of that version trained, any other absent key is refused. */
static void a_text_of_version_1_is_read(void **state)
{
    struct hd_text text = {0}, cut = {0};
    struct hd_job_file files[2];
    struct hd_arena arena;
    struct hd_job job, back;

    fill(&job, files);
    job.train_count = 0;
    hd_arena_init(&arena, 0);
    write_version_1(&job, "", &text);
    assert_non_null(strstr(text.data, "\nplan.tp 1\n"));
    assert_null(strstr(text.data, "parallel.zero"));
    if (hd_job_read(text.data, text.len_bytes, &arena, &back))
        fail_msg("%s", hd_err_message());
    assert_true(back.tp == 1 && back.layers == 1);
    assert_false(back.tf32 || back.deterministic || back.native_reduction);
    assert_int_equal(back.zero, 0);
    assert_string_equal(back.schedule, "none");
    assert_string_equal(back.recompute, "none");
    assert_int_equal(back.checkpoint_keep, 3);
    write_version_1(&job, "train.seed", &cut);
    assert_int_equal(hd_job_read(cut.data, cut.len_bytes, &arena, &back), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "lacks train.seed"));
    hd_text_free(&text);
    hd_text_free(&cut);
    hd_arena_done(&arena);
}

/* Goal: what the controller stores of a plan comes back. Method: no two sizes alike; then a text
 * without the newer keys, and one with a key of no layout. */
static void a_layout_is_read_back(void **state)
{
    struct hd_layout_sizes sizes = {.pp = 2,
                                    .dp = 3,
                                    .cp = 4,
                                    .tp = 5,
                                    .ep = 6,
                                    .zero = 1,
                                    .micro_batch = 7,
                                    .threads = 8,
                                    .sequence = 1,
                                    .expert_rows = 4.0 / 3};
    struct hd_layout_sizes back;
    struct hd_text text = {0};

    sizes.precision = HD_JOB_PRECISION_BF16;
    sizes.device = HD_JOB_DEVICE_CUDA;
    memcpy(sizes.schedule, "none", 5);
    memcpy(sizes.recompute, "none", 5);
    sizes.offload = HD_JOB_OFFLOAD_NONE;
    sizes.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    memcpy(sizes.stages, "auto", 5);
    assert_int_equal(hd_layout_write(&sizes, &text), HD_OK);
    assert_int_equal(hd_layout_read(text.data, &back), HD_OK);
    assert_memory_equal(&back, &sizes, sizeof sizes);
    assert_int_equal(hd_layout_read("parallel.tp 2\n", &back), HD_OK);
    assert_true(back.tp == 2 && back.zero == 0);
    assert_int_equal(hd_layout_read("train.seed 2\n", &back), HD_INVALID);
    hd_text_free(&text);
}

/* Goal: a cut or edited file is never half understood. Method: every prefix and three edits. */
/* Goal: keys.def keeps the rules that the compiler cannot check. */
static void the_table_of_keys_agrees_with_itself(void **state)
{
    struct hd_job defaults;

    hd_job_set_defaults(&defaults);
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        const bool number = key->kind == HD_KEY_INT || key->kind == HD_KEY_REAL;
        struct hd_text text = {0};

        assert_ptr_equal(hd_job_find_key(key->path), key); /* the first, so the only one */
        assert_true(key->help && *key->help);
        assert_in_range(key->since, 0, HD_JOB_VERSION);
        if (key->kind == HD_KEY_FORM)
            continue;
        if (number && key->since > 1)
            assert_true(hd_job_number_is_possible(key, key->old_default) || key->derived);
        if (key->required || key->derived)
            continue;
        /* the default is a value that a job file may give */
        if (number)
            assert_true(hd_job_number_is_possible(key, key->number));
        assert_int_equal(hd_job_format(key, &defaults, &text), HD_OK);
        if (key->kind != HD_KEY_NAME || text.len_bytes) /* an empty name is none */
            assert_int_equal(hd_job_parse(key, text.data ? text.data : "", &defaults), HD_OK);
        hd_text_free(&text);
    }
}

/* Goal: a reward model never reads by the template, the end or the folder of the model that trains. Method:
 * one that has none of these, in a job that has all. */
static void a_reward_model_reads_texts_in_its_own_way(void **state)
{
    struct hd_job job, theirs, model;
    struct hd_arena arena;

    (void)state;
    hd_arena_init(&arena, 0);
    hd_job_set_defaults(&theirs);
    theirs.family = "llama";
    theirs.context = 64;
    theirs.tokenizer = "/rates/tokenizer.json";
    hd_job_set_defaults(&job);
    job.arena = &arena;
    job.context = 32;
    job.micro_batch = job.dp = 1;
    job.rollout_prompts = job.rollout_group = 2;
    job.from_dir = "/answers";
    job.tokenizer = "bytes";
    job.template = "/answers/chat_template.jinja";
    job.date = "2026-03-01";
    job.end_of_text = 7;
    job.reward_dir = "/rates";
    assert_int_equal(hd_job_set_reward_model(&theirs, &job), HD_OK);
    assert_int_equal(hd_job_of_reward_model(&job, &arena, &model), HD_OK);
    assert_string_equal(model.init_from, "/rates");
    assert_string_equal(model.tokenizer, "/rates/tokenizer.json");
    assert_string_equal(model.template, "");
    assert_string_equal(model.date, "");
    assert_string_equal(model.from_dir, "");
    assert_int_equal(model.end_of_text, -2); /* auto */
    assert_int_equal(model.context, 64);
    job.cp = 3; /* windows are of 2 x 3 x 4 equal parts, of which 64 tokens have 2 each */
    job.tp = 4;
    job.sequence = 1;
    assert_int_equal(hd_job_of_reward_model(&job, &arena, &model), HD_OK);
    assert_int_equal(model.context, 48);
    theirs.tokenizer = "/rates/a\tb/tokenizer.json"; /* a tab separates keys */
    assert_int_equal(hd_job_set_reward_model(&theirs, &job), HD_INVALID);
    hd_arena_done(&arena);
}

static void anything_else_is_refused(void **state)
{
    struct hd_text text = {0}, edited = {0};
    struct hd_job_file files[2];
    struct hd_arena arena;
    struct hd_job job, back;

    fill(&job, files);
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    for (size_t n = 0; n < text.len_bytes; n++) {
        hd_arena_init(&arena, 0);
        assert_int_equal(hd_job_read(text.data, n, &arena, &back), HD_INVALID);
        hd_arena_done(&arena);
    }
    hd_arena_init(&arena, 0);
    hd_text_add(&edited, "HEDDLE-JOB 1\nmodel.layers 1\nmodel.layers 2\nend\n");
    assert_int_equal(hd_job_read(edited.data, edited.len_bytes, &arena, &back), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "line 3: model.layers occurs twice"));
    hd_text_clear(&edited);
    hd_text_add(&edited, "HEDDLE-JOB 1\nmodel.layers 0\nend\n");
    assert_int_equal(hd_job_read(edited.data, edited.len_bytes, &arena, &back), HD_INVALID);
    hd_text_clear(&edited);
    hd_text_add(&edited, "HEDDLE-JOB 2\nend\n");
    assert_int_equal(hd_job_read(edited.data, edited.len_bytes, &arena, &back), HD_INVALID);
    hd_text_clear(&edited);
    hd_text_add(&edited, "HEDDLE-JOB %d\nend\n", HD_JOB_VERSION + 1);
    assert_int_equal(hd_job_read(edited.data, edited.len_bytes, &arena, &back), HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "written by a newer build"));
    job.name = "two words";
    assert_int_equal(hd_job_write(&job, &edited), HD_INVALID);
    hd_arena_done(&arena);
    hd_text_free(&text);
    hd_text_free(&edited);
}

static void jobs_before_a_job_are_numbers_with_commas(void **state)
{
    static const char *const wrong[] = {"",
                                        "0",
                                        "12,",
                                        ",12",
                                        "12 13",
                                        "+1",
                                        "1,2,3,4,5,6,7,8,9",
                                        "none,1",
                                        "1x",
                                        "-1",
                                        "1234567890123456789"};
    uint64_t jobs[HD_JOB_AFTER_MAX];
    int count;

    assert_int_equal(hd_after_read("none", jobs, &count), HD_OK);
    assert_int_equal(count, 0);
    assert_int_equal(hd_after_read("12,7", jobs, &count), HD_OK);
    assert_int_equal(count, 2);
    assert_int_equal(jobs[0], 12);
    assert_int_equal(jobs[1], 7);
    assert_int_equal(hd_after_read("12,7,12,9", jobs, &count), HD_OK);
    assert_int_equal(count, 3);
    assert_int_equal(jobs[2], 9);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (hd_after_read(wrong[i], jobs, &count) != HD_INVALID)
            fail_msg("'%s' was read as %d jobs", wrong[i], count);
}

/* Right: transformers takes the short list for a call of at most original_context positions. A prefix
 * takes positions, too. */
static void the_context_chooses_the_factors_of_longrope(void **state)
{
    struct hd_job job;
    double factors[HD_PAIR_FACTORS_MAX];

    hd_job_set_defaults(&job);
    job.rope_short_factor = "1 1.5";
    job.rope_long_factor = " 2  1e1 ";
    job.rope_original_context = job.context = 16;
    assert_string_equal(hd_pair_factors_of(&job), "1 1.5");
    job.context = 17;
    assert_string_equal(hd_pair_factors_of(&job), " 2  1e1 ");
    job.context = 16;
    job.adapter = HD_JOB_ADAPTER_PREFIX;
    job.adapter_tokens = 1;
    assert_string_equal(hd_pair_factors_of(&job), " 2  1e1 ");
    job.head_width = 8; /* half of it rotates: 2 pairs */
    job.rope_fraction = 0.5;
    assert_int_equal(hd_pair_factors_parse(&job, job.rope_long_factor, factors), HD_OK);
    assert_true(factors[0] == 2 && factors[1] == 10);
    assert_int_equal(hd_pair_factors_parse(&job, "1", factors), HD_INVALID);
    assert_int_equal(hd_pair_factors_parse(&job, "1 nan", factors), HD_INVALID);
    assert_int_equal(hd_pair_factors_parse(&job, "1 2,", factors), HD_INVALID);
}

/* Goal: a key that a job gives is never taken for one with its default. Method: change one key after
 * another, each alone; hd_job_is_default, which compares one key's member, says what is expected. */
static void the_given_keys_are_those_without_their_default(void **state)
{
    struct hd_job_file files[2];
    struct hd_job full, job;

    (void)state;
    fill(&full, files);
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = NULL;
        struct hd_key_set given = {0};
        size_t count = 0;

        hd_job_set_defaults(&job);
        job.arena = full.arena; /* the jobs share their texts */
        assert_int_equal(hd_job_copy_member(&hd_job_keys[i], &full, &job), HD_OK);
        hd_job_add_given(&job, &given);
        for (; (key = hd_key_set_next(&given, key)) != NULL; count++)
            assert_ptr_equal(key, &hd_job_keys[i]);
        assert_int_equal(count, !hd_job_is_default(&hd_job_keys[i], &job));
        assert_int_equal(count, hd_key_set_count(&given));
    }
}

RUN_CASES()
