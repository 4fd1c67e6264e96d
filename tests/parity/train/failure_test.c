/* A failure of one rank, wherever in a step it happens, ends the step on every rank at once, with a
 * story that names the rank. Nobody waits for the dead.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "runs.h"
#include "tests/program/test.h"

enum { LIMIT_MS = 2000, STORY_MAX = 600, STEPS_MAX = 50 };

struct report {
    enum hd_status status, next_status; /* of the step that failed, and of the one asked after it */
    int64_t steps;                      /* that succeeded */
    int64_t began_ms, ended_ms;         /* of the step that failed */
    char story[STORY_MAX];
};

struct failure {
    int victim;
    int64_t at;       /* the launch of a step that fails */
    bool killed;      /* the process, by a signal */
    int64_t died_ms;  /* when */
    int64_t seen;     /* launches so far */
    char op[64];      /* the victim's operation */
    atomic_int ready; /* ranks that are about to step */
    struct report report[HARNESS_WORLD_MAX];
};

static void note_victim(void *context, const struct hd_launch_event *event)
{
    struct failure *f = context;

    if (f->seen++ != f->at)
        return;
    (void)snprintf(f->op, sizeof f->op, "%s",
                   event->node->is_comm ? hd_comm_kind_name(event->node->comm)
                                        : hd_kernel_get_info(event->node->kernel)->name);
    if (f->killed) {
        f->died_ms = hd_clock_now_ms();
        (void)raise(SIGKILL);
    }
}

/* Steps until one fails. A rank whose victim fails behind the last exchange of a step has done that
 * step, and fails in the next. */
static void step_until_failure(struct hd_trainer *t, struct report *report)
{
    struct hd_step_result result;

    do {
        report->began_ms = hd_clock_now_ms();
        report->status = hd_trainer_step(t, 0, &result);
        report->ended_ms = hd_clock_now_ms();
    } while (!report->status && ++report->steps < STEPS_MAX);
    (void)snprintf(report->story, sizeof report->story, "%s",
                   report->status ? hd_err_message() : "");
    report->next_status = hd_trainer_step(t, 0, &result);
}

/* Nobody fails before everybody has left the last collective of the beginning. */
static void wait_for_all(struct harness_rank *r, struct failure *f)
{
    atomic_fetch_add(&f->ready, 1);
    while (atomic_load(&f->ready) < r->world && !hd_comm_failure(r->comm))
        (void)usleep(100);
}

static enum hd_status meet_failure(struct harness_rank *r)
{
    struct failure *f = r->shared ? r->shared : r->context;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    wait_for_all(r, f);
    if (r->rank == f->victim) {
        hd_runner_observe(hd_trainer_runner(t), note_victim, f);
        if (!f->killed)
            hd_runner_fail_at(hd_trainer_runner(t), f->at);
    }
    step_until_failure(t, &f->report[r->rank]);
    hd_trainer_free(t);
    return HD_OK;
}

/* Two micro-batches a rank, so that every variant of a program has its turn. */
static struct hd_job failure_job(const struct harness *h, int dp)
{
    struct hd_job job = harness_job(h, "llama", dp);

    job.layers = 1;
    job.micro_batch = job.global_batch / dp / 2;
    return job;
}

/* ---- an operation fails ---- */

static enum hd_status count_launches(struct harness_rank *r)
{
    struct failure *f = r->context;
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    if (r->rank == f->victim)
        hd_runner_observe(hd_trainer_runner(t), note_victim, f);
    st = hd_trainer_step(t, 0, &result);
    hd_trainer_free(t);
    return st;
}

/* Ranks differ in the update: a gradient that several hold is counted in the norm by one of them.
 */
static int64_t launches_of_a_step(const struct hd_job *job, int rank)
{
    struct failure f = {.victim = rank, .at = -1};

    if (harness_threads(job, (int)job->dp, &f, count_launches))
        fail_msg("%s", hd_err_message());
    assert_true(f.seen > 20); /* forward and backward of three units, twice, and the update */
    return f.seen;
}

static void check_injected(const struct failure *f, int world)
{
    char rank[32], cause[128];

    (void)snprintf(rank, sizeof rank, "rank %d failed first", f->victim);
    (void)snprintf(cause, sizeof cause, "%s: injected failure", f->op);
    for (int r = 0; r < world; r++) {
        const struct report *p = &f->report[r];

        if (!p->status || p->ended_ms - p->began_ms > LIMIT_MS || !strstr(p->story, cause) ||
            (r != f->victim && !strstr(p->story, rank)))
            fail_msg("launch %lld (%s) of rank %d: rank %d has status %d after %lld ms: %s",
                     (long long)f->at, f->op, f->victim, r, (int)p->status,
                     (long long)(p->ended_ms - p->began_ms), p->story);
        assert_true(p->steps <= (r == f->victim ? 0 : 1));
        assert_int_equal(p->next_status, p->status); /* it sticks */
    }
}

static void fail_every(int world, int64_t stride)
{
    struct harness h;
    struct hd_job job;
    int64_t launches[HARNESS_WORLD_MAX], longest = 0;

    harness_setup(&h, 20000);
    job = failure_job(&h, world);
    for (int r = 0; r < world; r++) {
        launches[r] = launches_of_a_step(&job, r);
        longest = launches[r] > longest ? launches[r] : longest;
    }
    for (int64_t n = 0; n < longest; n += stride) {
        struct failure f = {.victim = (int)(n / stride) % world, .at = n};

        if (n >= launches[f.victim])
            continue;
        if (harness_threads(&job, world, &f, meet_failure))
            fail_msg("%s", hd_err_message());
        check_injected(&f, world);
    }
    harness_teardown(&h);
}

static void a_failure_at_any_launch_of_a_step_reaches_both_ranks(void **state)
{
    fail_every(2, 1);
}

static void a_failure_of_one_of_four_ranks_reaches_all(void **state)
{
    fail_every(4, 9);
}

/* ---- a process dies ---- */

static void kill_case(int world, int victim, int64_t at)
{
    struct failure *f = harness_shared(sizeof *f);
    struct harness h;
    struct hd_job job;
    char rank[32];

    f->victim = victim;
    f->at = at;
    f->killed = true;
    harness_setup(&h, 20000);
    job = failure_job(&h, world);
    assert_int_equal(harness_processes(&job, world, f, meet_failure), HD_ABORTED);
    assert_true(f->died_ms > 0);
    (void)snprintf(rank, sizeof rank, "rank %d died first: killed by signal 9", victim);
    for (int r = 0; r < world; r++) {
        const struct report *p = &f->report[r];

        if (r == victim)
            continue;
        if (!p->status || p->ended_ms - f->died_ms > LIMIT_MS || !strstr(p->story, rank))
            fail_msg("rank %d, %lld ms after the death of rank %d at launch %lld: %s", r,
                     (long long)(p->ended_ms - f->died_ms), victim, (long long)at, p->story);
        assert_int_equal(p->next_status, p->status);
    }
    harness_shared_free(f, sizeof *f);
    harness_teardown(&h);
}

/* In the first kernel, in forward, in backward, and in later steps: at any time.
 * First in the list: the parent must not have started threads when it forks. */
static void a_killed_process_ends_the_step_of_the_others(void **state)
{
    static const int64_t places[] = {0, 11, 30, 47, 200};

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        kill_case(2, (int)i % 2, places[i]);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i += 2)
        kill_case(4, 3 - (int)i % 4, places[i]);
}

RUN_CASES()
