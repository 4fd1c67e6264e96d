/* The resolved job: what is written is what is read, and nothing else is accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "link/job.h"

static void fill(struct hd_job *job, struct hd_job_file *files)
{
    *job = (struct hd_job){0};
#define HD_FILL_WORD(member)           memcpy(job->member, "word", 5);
#define HD_FILL_PATH(member)           memcpy(job->member, "/a path/b", 10);
#define HD_FILL_INT(member)            job->member = 1;
#define HD_FILL_REAL(member)           job->member = 0.1; /* not exact in binary */
#define HD_FILL_BOOL(member)           job->member = true;
#define X(kind, member, key, min, max) HD_FILL_##kind(member)
    HD_JOB_FIELDS(X)
#undef X
    job->vocab = 256;
    job->rope_theta = 1e4 / 3;
    job->rope_factor = 4.0 / 3;
    job->seed = INT64_MAX;
    files[0] = (struct hd_job_file){"/x y.txt", 12, 0};
    files[1] = (struct hd_job_file){"/z.txt", INT64_MAX, 0};
    job->train = files;
    job->train_count = 2;
}

static void what_is_written_is_read_back(void **state)
{
    struct hd_text first = {0}, second = {0};
    struct hd_job_file files[2];
    struct hd_arena arena;
    struct hd_job job, back;

    (void)state;
    hd_arena_init(&arena, 0);
    fill(&job, files);
    assert_int_equal(hd_job_write(&job, &first), HD_OK);
    assert_int_equal(hd_job_read(first.data, first.len_bytes, &arena, &back), HD_OK);
    assert_true(back.rope_theta == job.rope_theta);
    assert_int_equal(back.seed, INT64_MAX);
    assert_int_equal(back.train_count, 2);
    assert_string_equal(back.train[0].path, "/x y.txt");
    assert_int_equal(back.val_count, 0);
    assert_int_equal(hd_job_write(&back, &second), HD_OK);
    assert_string_equal(first.data, second.data);
    hd_text_free(&first);
    hd_text_free(&second);
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

    (void)state;
    hd_arena_init(&arena, 0);
    fill(&job, files);
    files[2] = (struct hd_job_file){"/w.npy", 2, 1};
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
    (void)state;
    expect_refusal("data.source 1\n");
    expect_refusal("data.source 1\ndata.source 1\ndata.train 1 /a\n");
    expect_refusal("data.source 1\ndata.train 1 /a\ndata.source 1\n");
    expect_refusal("data.train 1 /a\ndata.source 1\ndata.train 1 /b\n");
    expect_refusal("data.source 0\ndata.train 1 /a\n");
}

/* Goal: checkpoints outlive what jobs learn later. Method: the text without a later key, and
 * without another. */
static void jobs_of_older_checkpoints_are_read(void **state)
{
    static const struct {
        const char *key;
        enum hd_status status;
    } cases[] = {{"train.tf32 ", HD_OK},
                 {"train.deterministic ", HD_OK},
                 {"train.native_reduction ", HD_OK},
                 {"train.seed ", HD_INVALID}};
    struct hd_job_file files[2];
    struct hd_job job, back;

    (void)state;
    fill(&job, files);
    job.tf32 = job.deterministic = job.native_reduction = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_text text = {0};
        struct hd_arena arena;
        char *line, *next;

        hd_arena_init(&arena, 0);
        assert_int_equal(hd_job_write(&job, &text), HD_OK);
        line = strstr(text.data, cases[i].key);
        assert_non_null(line);
        next = strchr(line, '\n') + 1;
        text.len_bytes -= (size_t)(next - line);
        memmove(line, next, strlen(next) + 1);
        assert_int_equal(hd_job_read(text.data, text.len_bytes, &arena, &back), cases[i].status);
        if (cases[i].status == HD_OK) /* what is there is taken, what is not there is off */
            assert_true(back.tf32 == (i != 0) && back.deterministic == (i != 1) &&
                        back.native_reduction == (i != 2));
        hd_text_free(&text);
        hd_arena_done(&arena);
    }
}

/* Goal: a cut or edited file is never half understood. Method: every prefix and three edits. */
static void anything_else_is_refused(void **state)
{
    struct hd_text text = {0}, edited = {0};
    struct hd_job_file files[2];
    struct hd_arena arena;
    struct hd_job job, back;

    (void)state;
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
    assert_non_null(strstr(hd_err_message(), "line 3: model.layers stands twice"));
    hd_text_clear(&edited);
    hd_text_add(&edited, "HEDDLE-JOB 1\nmodel.layers 0\nend\n");
    assert_int_equal(hd_job_read(edited.data, edited.len_bytes, &arena, &back), HD_INVALID);
    hd_text_clear(&edited);
    hd_text_add(&edited, "HEDDLE-JOB 2\nend\n");
    assert_int_equal(hd_job_read(edited.data, edited.len_bytes, &arena, &back), HD_INVALID);
    memcpy(job.name, "two words", 10);
    assert_int_equal(hd_job_write(&job, &edited), HD_INVALID);
    hd_arena_done(&arena);
    hd_text_free(&text);
    hd_text_free(&edited);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(a_mixture_is_read_back),
        cmocka_unit_test(a_source_without_files_is_refused),
        cmocka_unit_test(jobs_of_older_checkpoints_are_read),
        cmocka_unit_test(anything_else_is_refused),
    };
    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
