/* checkpoint.async: a checkpoint that is written while training goes on has the weights and
 * counters of the step at which it began; one that fails or is dropped leaves the one before it;
 * its memory is in the plan.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "compare.h"
#include "tests/program/test.h"

static struct hd_job job_of(const struct harness *h, int dp, int pp, int zero)
{
    struct hd_job job = harness_job(h, "gpt2", dp);

    job.pp = pp;
    job.zero = zero;
    job.micro_batch = 1;
    job.checkpoint_async = true;
    memcpy(job.schedule, "1f1b", 5);
    job.precision = HD_JOB_PRECISION_BF16;
    return job;
}

/* Ranks that have taken their steps after begin; a shard is written when all have. */
static atomic_int stepped;
static int ranks;

enum hd_status __real_hd_ckpt_write_shard(const char *dir, int rank,
                                          const struct hd_ckpt_entry *entries, size_t count,
                                          hd_ckpt_bytes_fn *bytes_of, void *context,
                                          struct hd_ckpt_shard *ret_shard);
enum hd_status __wrap_hd_ckpt_write_shard(const char *dir, int rank,
                                          const struct hd_ckpt_entry *entries, size_t count,
                                          hd_ckpt_bytes_fn *bytes_of, void *context,
                                          struct hd_ckpt_shard *ret_shard);

enum hd_status __wrap_hd_ckpt_write_shard(const char *dir, int rank,
                                          const struct hd_ckpt_entry *entries, size_t count,
                                          hd_ckpt_bytes_fn *bytes_of, void *context,
                                          struct hd_ckpt_shard *ret_shard)
{
    while (atomic_load(&stepped) < ranks)
        (void)usleep(1000);
    return __real_hd_ckpt_write_shard(dir, rank, entries, count, bytes_of, context, ret_shard);
}

struct course {
    struct hd_saved saved;
    struct run *then, *loaded; /* at the step of the save; after the load of it */
    int64_t steps;             /* after the load */
    bool blocks;               /* a file has the name of the checkpoint's folder: the save fails */
    bool drops;                /* the trainer is freed while it writes */
    char said[512];
};

static enum hd_status steps(struct hd_trainer *t, int count)
{
    struct hd_step_result result;
    enum hd_status st = HD_OK;

    for (int s = 0; !st && s < count; s++)
        st = hd_trainer_step(t, 0, &result);
    return st;
}

static enum hd_status train(struct harness_rank *r)
{
    struct course *c = r->context;
    struct hd_saved saved;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = steps(t, 2);
    if (!st)
        run_copy_saved(t, c->then);
    if (!st)
        st = hd_trainer_save_begin(t);
    if (!st && c->drops) {
        atomic_fetch_add(&stepped, 1);
        hd_trainer_free(t);
        return HD_OK;
    }
    if (!st && !hd_trainer_is_saving(t))
        st = hd_err(HD_INTERNAL, "nothing is being saved");
    if (!st)
        st = steps(t, 2);
    atomic_fetch_add(&stepped, 1);
    if (!st) {
        st = hd_trainer_save_finish(t, &saved);
        if (c->blocks && r->rank == 0)
            (void)snprintf(c->said, sizeof c->said, "%d %s", st, hd_err_message());
        st = c->blocks && st ? steps(t, 1) : st; /* training can go on */
    }
    if (!st && hd_trainer_is_saving(t))
        st = hd_err(HD_INTERNAL, "a save is under way still");
    if (!st && !c->blocks && r->rank == 0)
        c->saved = saved;
    if (!st && !c->blocks)
        st = hd_trainer_load(t, saved.path, saved.hash, NULL);
    if (!st) {
        run_copy_saved(t, c->loaded);
        c->steps = hd_trainer_steps_done(t);
    }
    hd_trainer_free(t);
    return st;
}

static struct course course_new(int world, bool blocks, bool drops)
{
    atomic_store(&stepped, 0);
    ranks = world;
    return (struct course){
        .then = run_new(1), .loaded = run_new(1), .blocks = blocks, .drops = drops};
}

static void course_free(struct course *c)
{
    run_free(c->then);
    run_free(c->loaded);
}

static void it_has_the_step_at_which_it_began(void **state)
{
    static const int layouts[][3] = {{1, 1, 0}, {2, 2, 1}, {4, 1, 3}}; /* dp, pp, zero */

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct course c = course_new(layouts[i][0] * layouts[i][1], false, false);
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = job_of(&h, layouts[i][0], layouts[i][1], layouts[i][2]);
        if (harness_threads(&job, run_world(&job), &c, train))
            fail_msg("%s", hd_err_message());
        assert_int_equal(c.saved.step, 2);
        assert_int_equal(c.steps, 2);
        assert_memory_equal(c.loaded->weights, c.then->weights, sizeof c.then->weights);
        assert_memory_equal(c.loaded->moments, c.then->moments, sizeof c.then->moments);
        course_free(&c);
        harness_teardown(&h);
    }
}

static void the_first_folder(const struct hd_job *job, char path[HD_JOB_PATH_MAX])
{
    (void)snprintf(path, HD_JOB_PATH_MAX, "%s/checkpoints/step-00000002", job->attempt_dir);
}

static void a_save_that_fails_ends_and_training_goes_on(void **state)
{
    struct course c = course_new(2, true, false);
    char path[HD_JOB_PATH_MAX], parent[HD_JOB_PATH_MAX];
    struct harness h;
    struct hd_job job;
    FILE *file;

    harness_setup(&h, 20000);
    job = job_of(&h, 2, 1, 1);
    the_first_folder(&job, path);
    (void)mkdir(job.attempt_dir, 0755);
    (void)snprintf(parent, sizeof parent, "%s/checkpoints", job.attempt_dir);
    (void)mkdir(parent, 0755);
    file = fopen(path, "w"); /* no folder can be made there */
    assert_non_null(file);
    (void)fclose(file);
    if (harness_threads(&job, 2, &c, train))
        fail_msg("%s", hd_err_message());
    assert_non_null(strstr(c.said, "checkpoint of step 2: rank 0: "));
    assert_int_equal(c.steps, 5);
    course_free(&c);
    harness_teardown(&h);
}

static void a_save_that_is_dropped_is_no_checkpoint(void **state)
{
    struct course c = course_new(2, false, true);
    char path[HD_JOB_PATH_MAX];
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, 2, 1, 0);
    if (harness_threads(&job, 2, &c, train))
        fail_msg("%s", hd_err_message());
    the_first_folder(&job, path);
    (void)strncat(path, "/manifest.json", sizeof path - strlen(path) - 1);
    assert_int_not_equal(access(path, F_OK), 0);
    course_free(&c);
    harness_teardown(&h);
}

/* The jobs directory is unmounted under the attempt, and mounted again; in both ways of saving. */
static enum hd_status save_around_an_unmount(struct harness_rank *r)
{
    char *away = r->context;
    struct hd_trainer *t = NULL;
    struct hd_saved saved;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = steps(t, 1);
    if (!st)
        st = hd_trainer_save(t, &saved);
    if (!st && rename(r->job->attempt_dir, away) < 0)
        st = hd_err(HD_IO, "cannot rename it");
    if (!st)
        st = steps(t, 1);
    if (!st && (hd_trainer_save(t, &saved) != HD_STORAGE ||
                hd_trainer_save_begin(t) != HD_STORAGE || access(r->job->attempt_dir, F_OK) == 0))
        st = hd_err(HD_INTERNAL, "it was saved below the place of the mount");
    if (!st && rename(away, r->job->attempt_dir) < 0)
        st = hd_err(HD_IO, "cannot rename it back");
    if (!st)
        st = hd_trainer_save(t, &saved);
    hd_trainer_free(t);
    return st;
}

static void nothing_is_saved_where_the_attempts_folder_is_gone(void **state)
{
    char away[HD_JOB_PATH_MAX];
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, 1, 1, 0);
    (void)snprintf(away, sizeof away, "%s/away", h.dir);
    (void)mkdir(job.attempt_dir, 0755); /* as heddled does */
    atomic_store(&stepped, 0);
    ranks = 0;
    if (harness_threads(&job, 1, away, save_around_an_unmount))
        fail_msg("%s", hd_err_message());
    harness_teardown(&h);
}

/* Masters and both moments of every element, each once: 12 bytes, over all ranks; every rank has
 * room for what it owns, rounded up to whole lines of the plan. */
static void the_copy_is_in_the_plan(void **state)
{
    static const int layouts[][3] = {{1, 1, 0}, {2, 2, 1}, {4, 1, 3}};
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct hd_job job = job_of(&h, layouts[i][0], layouts[i][1], layouts[i][2]);
        int64_t bytes = 0, elements = 0;

        for (int rank = 0; rank < run_world(&job); rank++) {
            struct hd_rank_program with, without;
            struct hd_arena arena;

            hd_arena_init(&arena, 0);
            job.checkpoint_async = true;
            run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &with);
            job.checkpoint_async = false;
            run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &without);
            elements = hd_registry_global_count(&with.registry);
            bytes += with.snapshot_bytes;
            assert_in_range(with.memory.snapshot, with.snapshot_bytes, with.snapshot_bytes + 63);
            assert_int_equal(with.memory.private_bytes - without.memory.private_bytes,
                             with.memory.snapshot);
            assert_int_equal(without.memory.snapshot, 0);
            hd_arena_done(&arena);
        }
        assert_int_equal(bytes, 12 * elements);
    }
    harness_teardown(&h);
}

RUN_CASES()
