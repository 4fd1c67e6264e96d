/* continued: train.continue_from, a new job that goes on from a checkpoint of another.
 *
 * The checkpoint becomes train.init_from, too, so that all code that finds, checks and guards initial
 * weights applies; train.continue_from says that moments and counters come with them
 * (train/load.c). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "hf/hf.h"
#include "spec_internal.h"

enum hd_status spec_take_continued(struct hd_job *job)
{
    char *found = NULL, *real = NULL;
    enum hd_status st = hd_ckpt_find_newest(job->continue_from, &found);

    if (!st)
        real = realpath(found, NULL); /* `latest` is soon a link to the new run */
    if (!st && !real)
        st = hd_err(HD_INVALID, "cannot find %s: %s", found, strerror(errno));
    if (!st && strlen(real) >= HD_JOB_PATH_MAX)
        st = hd_err(HD_INVALID, "%s: the path is too long", real);
    if (!st)
        st = hd_job_set_text(job, &job->continue_from, real);
    free(real);
    free(found);
    if (st)
        return hd_err_prefix(st == HD_NOT_FOUND ? HD_INVALID : st, "train.continue_from");
    if (*job->init_from && strcmp(job->init_from, job->continue_from) != 0)
        return hd_err(HD_INVALID, "train.init_from: the weights come from train.continue_from; "
                                  "remove one of the two");
    job->init_from = job->continue_from;
    return HD_OK;
}

/* Checks the job's steps against those that the run before has taken. */
static enum hd_status check_steps(const struct hd_job *job, long long taken)
{
    if (job->steps != HD_SPEC_STEPS_UNKNOWN && job->steps <= taken)
        return hd_err(HD_INVALID,
                      "train.steps: the run of train.continue_from has taken %lld, and its steps "
                      "count; give more than that",
                      taken);
    if (job->lr_after > taken)
        return hd_err(HD_INVALID,
                      "train.lr.after: %lld is above %lld, the steps that the run of "
                      "train.continue_from has taken; give at most that",
                      (long long)job->lr_after, taken);
    return HD_OK;
}

/* Refuses moments of another optimizer than the job's. */
static enum hd_status check_optimizer(const struct hd_job *job, const struct hd_job *then)
{
    if (job->optimizer == then->optimizer)
        return HD_OK;
    return hd_err(
        HD_INVALID,
        "train.continue_from: the checkpoint has moments of %s, and the job's optimizer is "
        "%s; keep that one, or begin with train.init_from: %s, which takes the weights "
        "alone",
        hd_job_optimizer_words[then->optimizer], hd_job_optimizer_words[job->optimizer],
        job->continue_from);
}

enum hd_status spec_check_continued(const struct hd_job *job)
{
    struct hd_ckpt *ckpt = NULL;
    struct hd_arena arena;
    struct hd_job then;
    enum hd_status st;

    if (!*job->continue_from)
        return HD_OK;
    st = hd_ckpt_open(job->continue_from, &ckpt);
    if (st)
        return hd_err_prefix(HD_INVALID, "train.continue_from");
    hd_arena_init(&arena, 0);
    st = hd_stored_job_of(ckpt, &arena, &then);
    if (st)
        st = hd_err_prefix(st, "train.continue_from");
    if (!st)
        st = check_steps(job, (long long)hd_ckpt_get_manifest(ckpt)->step);
    if (!st)
        st = check_optimizer(job, &then);
    hd_arena_done(&arena);
    hd_ckpt_close(ckpt);
    return st;
}
