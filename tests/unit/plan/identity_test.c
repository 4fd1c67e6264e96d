/* Goal: the keys on which a plan depends: each key of a job is changed alone, and the plan must
 * then still count for the job, or be refused by the key's name.
 */
#include <stdio.h>
#include <string.h>

#include "plan/identity.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

/* When, where and how often a job runs changes no plan, nor do the stages and names of its data, and
 * where checkpoints are copied; these keys are beside the members of `parallel` that a plan
 * decides. */
static bool is_free(const struct hd_key *key)
{
    static const char *const paths[] = {"name",
                                        "queue",
                                        "priority",
                                        "after",
                                        "array.id",
                                        "array.at_once",
                                        "time_limit",
                                        "restart.max",
                                        "data.stages.list",
                                        "data.val.sets",
                                        "checkpoint.best.set",
                                        "validate.choices.list",
                                        "validate.choices_limit",
                                        "validate.choices_every",
                                        "validate.tasks.list",
                                        "validate.tasks.checks",
                                        "validate.tasks.samples",
                                        "validate.tasks.k",
                                        "validate.tasks.tokens",
                                        "validate.tasks.temperature",
                                        "validate.tasks.top_p",
                                        "validate.tasks.seed",
                                        "validate.tasks.limit",
                                        "validate.tasks.every",
                                        "validate.samples.list",
                                        "validate.samples.every",
                                        "validate.samples.tokens",
                                        "validate.samples.temperature",
                                        "validate.samples.top_p",
                                        "validate.samples.seed",
                                        "validate.stop.metric",
                                        "validate.stop.patience",
                                        "validate.stop.min_delta",
                                        "checkpoint.copy_to",
                                        "train.distill.teacher",
                                        "train.distill.identity",
                                        "validate.ema",
                                        "train.rollout.stop",
                                        "train.rewards.list",
                                        "train.rewards.folder",
                                        "train.rewards.identity",
                                        "resources.devices.min",
                                        "resources.devices.max"};

    if (hd_job_key_is_of_layout(key) || strncmp(key->path, "hang.", 5) == 0)
        return true;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (strcmp(key->path, paths[i]) == 0)
            return true;
    return false;
}

/* Sets the member to the first (0) or second (1) of two values that differ. */
static void set(const struct hd_key *key, int which, struct hd_job *job)
{
    void *member = hd_job_member(key, job);

    switch (key->kind) {
    case HD_KEY_INT:
        *(int64_t *)member = 1 + which;
        break;
    case HD_KEY_REAL:
        *(double *)member = 0.25 + which;
        break;
    case HD_KEY_BOOL:
        *(bool *)member = which;
        break;
    case HD_KEY_WORD:
        *(unsigned *)member = 1 + (unsigned)which;
        break;
    default:
        job_set(key, which ? "two" : "one", job);
    }
}

static void a_plan_is_refused_for_what_it_depends_on_and_for_nothing_else(void **state)
{
    int refused = 0, accepted = 0;

    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];
        struct hd_text planned = {0};
        struct hd_job job;
        enum hd_status st;
        uint64_t hash, changed;

        if (key->kind == HD_KEY_FORM)
            continue;
        hd_job_set_defaults(&job);
        for (size_t k = 0; k < hd_job_key_count; k++)
            if (hd_job_keys[k].kind != HD_KEY_FORM)
                set(&hd_job_keys[k], 0, &job);
        if (hd_plan_identity(&job, &planned))
            fail_msg("%s", hd_err_message());
        if (hd_plan_identity_compare(planned.data, &job))
            fail_msg("%s", hd_err_message());
        hash = hd_plan_hash(&job);
        set(key, 1, &job);
        changed = hd_plan_hash(&job);
        st = hd_plan_identity_compare(planned.data, &job);
        if ((changed == hash) != (st == HD_OK)) /* jobs of one identity: one hash */
            fail_msg("%s: the hash does not follow it", key->path);
        if (is_free(key) != (st == HD_OK))
            fail_msg("%s: %s", key->path, st ? hd_err_message() : "not refused");
        if (st) /* by its name */
            assert_non_null(strstr(hd_err_message(), key->path));
        refused += st != HD_OK;
        accepted += st == HD_OK;
        hd_text_free(&planned);
    }
    assert_true(refused > 60 && accepted > 15);
}

/* Goal: of the stages of the data a plan depends on the sizes of their windows and batches, and on
 * nothing else. */
static void a_plan_depends_on_the_windows_of_stages(void **state)
{
    struct hd_text planned = {0};
    struct hd_job job;
    uint64_t hash;

    hd_job_set_defaults(&job);
    for (size_t k = 0; k < hd_job_key_count; k++)
        if (hd_job_keys[k].kind != HD_KEY_FORM)
            set(&hd_job_keys[k], 0, &job);
    job.data_stages = "6@16,8,10000 -;9@16,8,10000 -;0@32,4,10000 -";
    assert_int_equal(hd_plan_identity(&job, &planned), HD_OK);
    hash = hd_plan_hash(&job);
    job.data_stages = "7@16,8,10000 1e-3 0 linear 0 0;0@32,4,10000 -";
    assert_int_equal(hd_plan_identity_compare(planned.data, &job), HD_OK);
    assert_true(hd_plan_hash(&job) == hash);
    job.data_stages = "6@16,16,10000 -;0@32,4,10000 -";
    assert_int_equal(hd_plan_identity_compare(planned.data, &job), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "data.stages.list is"));
    assert_true(hd_plan_hash(&job) != hash);
    hd_text_free(&planned);
}

RUN_CASES()
