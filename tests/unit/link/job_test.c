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
    job->seed = INT64_MAX;
    files[0] = (struct hd_job_file){"/x y.txt", 12};
    files[1] = (struct hd_job_file){"/z.txt", INT64_MAX};
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
        cmocka_unit_test(anything_else_is_refused),
    };
    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
