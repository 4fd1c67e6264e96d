/* veil: what a reader who sees the own jobs alone reads of those of others in texts. */
#include <string.h>

#include "controller/core/core.h"
#include "controller/services/veil.h"
#include "tests/program/test.h"

/* Ann has the even jobs. */
bool hd_core_job_is_of(const struct hd_core *core, uint64_t job, const char *owner)
{
    return job && job % 2 == 0 && strcmp(owner, "ann") == 0;
}

static void check(const char *reader, const char *text, const char *expected)
{
    const struct veil veil = {.jobs_dir = "/srv/jobs", .reader = reader};
    struct hd_text changed = {0};
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    hd_text_add(&changed, "%s", text);
    veil_text(&veil, &changed);
    assert_string_equal(changed.data, expected);
    assert_string_equal(veil_copy(&veil, &arena, text), expected);
    hd_text_free(&changed);
    hd_arena_done(&arena);
}

static void jobs_of_others_have_no_numbers(void **state)
{
    check("ann", "waits behind job 17; n1 has 0 of 2 free (reserved for job 18)",
          "waits behind another job; n1 has 0 of 2 free (reserved for job 18)");
    check("ann", "job 7", "another job");
    check("ann", "jobs 4, 5, 6 and 7, of lower priority",
          "jobs 4, 6 and others, of lower priority");
    check("ann", "jobs 5, 7 go on; jobs 8", "other jobs go on; jobs 8");
    check("ann", "cannot delete /srv/jobs/17/attempt-1, /srv/jobs/8 stays",
          "cannot delete /srv/jobs/(another job)/attempt-1, /srv/jobs/8 stays");
    /* a node that cannot use its state directory tells so to all */
    check("ann",
          "cannot create /state/attempts/17-1.part.99: it is full; /state/attempts/8-2 stays",
          "cannot create /state/attempts/(another job)-1.part.99: it is full; "
          "/state/attempts/8-2 stays");
    check("ann", "job 99999999999999999999", "another job"); /* more than 64 bits */
}

static void the_job_that_a_text_is_about_is_hidden_or_not(void **state)
{
    const struct veil ann = {.jobs_dir = "", .reader = "ann"}, all = {.jobs_dir = ""};

    assert_true(veil_hides_subject(&ann, "job 7 (x) was removed by ann"));
    assert_false(veil_hides_subject(&ann, "job 8 (x) was removed by oli"));
    assert_false(veil_hides_subject(&ann, "job x was removed by oli"));
    assert_false(veil_hides_subject(&ann, "node 7 was removed by oli"));
    assert_false(veil_hides_subject(&all, "job 7 (x) was removed by ann"));
}

static void other_texts_stay(void **state)
{
    static const char *const texts[] = {
        "",           "job",        "job x", "my-job 7",         "no job, 7 nodes",
        "job.yaml:7", "/srv/jobs/", "jobs",  "/state/attempts/", "2 attempts/3 nodes"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        check("ann", texts[i], texts[i]);
    check(NULL, "job 17 and /srv/jobs/17", "job 17 and /srv/jobs/17"); /* who sees all jobs */
}

RUN_CASES()
