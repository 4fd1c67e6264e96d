/* A rank is killed, as a process, in each kind of operation of a step, under tp x pp and under
 * pp x dp with ZeRO 3: its peers end within LIMIT_MS, their message names the rank and what it was
 * in, and an attempt that goes on from the newest checkpoint ends with the bits of a run that
 * nothing disturbed. A rank that is stopped is named, too.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { LIMIT_MS = 5000, SILENCE_MS = 2000, WORLD = 4, STEPS = 6, EVERY = 2, STRUCK_STEP = 5 };

/* The place in a step at which the victim is killed: at the `skip`-th launch that matches, in the
 * launch, or behind it, when the next kernel is to run. */
struct place {
    const char *name;
    int victim;
    enum hd_call call;
    bool is_comm, sends; /* a collective; a send between stages, which is no part of a program */
    enum hd_comm_kind comm;
    enum hd_stream_name stream; /* of a collective */
    int skip;
    bool behind;
    const char *says; /* what the peers are told of it */
};

struct story {
    enum hd_status status;
    int64_t ended_ms;
    int64_t steps; /* done when it failed */
    char text[HD_ERR_MAX];
};

/* One attempt; shared by all ranks. */
struct attempt {
    const struct place *place; /* NULL: undisturbed */
    int signal;
    pid_t pid;              /* of the victim */
    _Atomic int64_t hit_ms; /* when it was struck */
    int seen;
    bool armed, next; /* of the victim's process alone */
    atomic_int ended; /* peers that have ended */
    int64_t from;     /* step of the checkpoint to start from; 0: none */
    struct hd_saved saved;
    int64_t saved_step;
    struct story story[WORLD];
    uint64_t hash[WORLD];
    double loss[STEPS + 1];
};

static struct attempt *mine; /* in the process of a rank */
static int my_rank;

static void strike(struct attempt *a)
{
    a->pid = getpid();
    atomic_store(&a->hit_ms, hd_clock_now_ms());
    (void)raise(a->signal);
}

static bool is_here(const struct place *p, const struct hd_launch_event *e)
{
    if (p->sends || e->call != p->call || e->node->is_comm != p->is_comm)
        return false;
    return !p->is_comm || (e->node->comm == p->comm && e->node->stream == p->stream);
}

static void on_launch(void *context, const struct hd_launch_event *event)
{
    struct attempt *a = context;

    if (!a->armed)
        return;
    if (a->next) {
        a->armed = false;
        strike(a);
        return;
    }
    if (!is_here(a->place, event) || a->seen++ != a->place->skip)
        return;
    a->next = a->place->behind;
    a->armed = a->next;
    if (!a->next)
        strike(a);
}

enum hd_status __real_hd_comm_send(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                   const struct hd_comm_send_args *args);
enum hd_status __wrap_hd_comm_send(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                   const struct hd_comm_send_args *args);
enum hd_status __wrap_hd_comm_send(struct hd_comm_group *group, struct hd_comm_stream *stream,
                                   const struct hd_comm_send_args *args)
{
    const enum hd_status st = __real_hd_comm_send(group, stream, args);
    struct attempt *a = mine;

    if (a && a->armed && a->place->sends && my_rank == a->place->victim &&
        a->seen++ == a->place->skip) {
        a->armed = false;
        strike(a);
    }
    return st;
}

/* A stopped process ends when it is killed: by the last of its peers. */
static void end_stopped(struct attempt *a)
{
    if (a->signal == SIGSTOP && atomic_fetch_add(&a->ended, 1) == WORLD - 2)
        (void)kill(a->pid, SIGKILL);
}

static enum hd_status take_steps(struct hd_trainer *t, struct harness_rank *r, struct attempt *a)
{
    struct hd_step_result result;
    enum hd_status st = HD_OK;

    for (int64_t s = a->from + 1; !st && s <= STEPS; s++) {
        struct hd_saved saved;

        if (a->place && s == STRUCK_STEP) {
            if (r->rank == a->place->victim) /* the others would write over it */
                a->armed = true;
            if (a->signal == SIGSTOP)
                hd_comm_set_deadline(r->comm, SILENCE_MS);
        }
        st = hd_trainer_step(t, 0, &result);
        if (!st && r->rank == 0)
            a->loss[s] = result.loss;
        if (!st)
            a->story[r->rank].steps = s;
        if (st || s % EVERY || s == STEPS)
            continue;
        st = hd_trainer_save(t, &saved);
        if (!st && r->rank == 0) {
            a->saved = saved;
            a->saved_step = s;
        }
    }
    return st;
}

static enum hd_status go(struct harness_rank *r)
{
    struct attempt *a = r->shared;
    struct story *story = &a->story[r->rank];
    const struct hd_trainer_options options = {
        .backend = harness_backend(), .comm = r->comm, .rank = r->rank};
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    mine = a;
    my_rank = r->rank;
    st = a->from ? hd_trainer_load(t, a->saved.path, a->saved.hash, NULL) : hd_trainer_init(t);
    if (!st && a->place && r->rank == a->place->victim)
        hd_runner_observe(hd_trainer_runner(t), on_launch, a);
    if (!st)
        st = take_steps(t, r, a);
    story->status = st;
    story->ended_ms = hd_clock_now_ms();
    (void)snprintf(story->text, sizeof story->text, "%s", st ? hd_err_message() : "");
    if (st && a->place) {
        end_stopped(a);
        st = HD_OK; /* the parent is told by the story */
    }
    if (!st && !story->status) {
        harness_clear_gradients(t); /* no part of a checkpoint */
        a->hash[r->rank] = run_hash_state(t);
    }
    hd_trainer_free(t);
    return st;
}

/* ---- layouts ---- */

static struct hd_job tensors_and_stages(const struct harness *h)
{
    struct hd_job job = harness_job(h, "llama", 1);

    job.steps = STEPS;
    job.tp = job.pp = 2;
    job.sequence = true;
    job.micro_batch = 2; /* four micro-batches */
    (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

static struct hd_job stages_and_shards(const struct harness *h)
{
    struct hd_job job = harness_job(h, "llama", 2);

    job.steps = STEPS;
    job.pp = 2;
    job.zero = 3;
    job.micro_batch = 1;
    (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
    return job;
}

/* Ranks: 2 x stage + tp. */
static const struct place in_tensors_and_stages[] = {
    {.name = "forward", .victim = 0, .call = HD_CALL_F, .skip = 5},
    {.name = "backward", .victim = 3, .call = HD_CALL_B, .skip = 5},
    {.name = "send of hidden rows", .victim = 1, .sends = true, .skip = 1, .says = "send #"},
    {.name = "send of a gradient", .victim = 2, .sends = true, .skip = 2, .says = "send #"},
    {.name = "gather of rows",
     .victim = 2,
     .call = HD_CALL_F,
     .is_comm = true,
     .comm = HD_COMM_ALL_GATHER,
     .stream = HD_STREAM_GATHER},
    {.name = "reduction of rows",
     .victim = 3,
     .call = HD_CALL_B,
     .is_comm = true,
     .comm = HD_COMM_REDUCE_SCATTER,
     .stream = HD_STREAM_GATHER,
     .skip = 1},
    {.name = "update", .victim = 0, .call = HD_CALL_U, .skip = 2},
};

/* Ranks: 2 x stage + dp. */
static const struct place in_stages_and_shards[] = {
    {.name = "forward", .victim = 3, .call = HD_CALL_F, .skip = 5},
    {.name = "backward", .victim = 0, .call = HD_CALL_B, .skip = 5},
    {.name = "send of hidden rows", .victim = 0, .sends = true, .skip = 1, .says = "send #"},
    {.name = "send of a gradient", .victim = 3, .sends = true, .skip = 2, .says = "send #"},
    {.name = "prefetch",
     .victim = 1,
     .call = HD_CALL_F,
     .is_comm = true,
     .comm = HD_COMM_ALL_GATHER,
     .stream = HD_STREAM_PREFETCH,
     .skip = 1,
     .behind = true,
     .says = "all_gather #"},
    {.name = "prefetch, in backward",
     .victim = 2,
     .call = HD_CALL_B,
     .is_comm = true,
     .comm = HD_COMM_ALL_GATHER,
     .stream = HD_STREAM_PREFETCH},
    {.name = "scatter of a bucket",
     .victim = 2,
     .call = HD_CALL_B,
     .is_comm = true,
     .comm = HD_COMM_REDUCE_SCATTER,
     .stream = HD_STREAM_REDUCE,
     .skip = 1,
     .behind = true,
     .says = "reduce_scatter #"},
    {.name = "update", .victim = 1, .call = HD_CALL_U, .skip = 2},
};

static const struct layout {
    const char *name;
    struct hd_job (*job)(const struct harness *h);
    const struct place *places;
    size_t count;
} layouts[] = {
    {"tp 2 x pp 2", tensors_and_stages, in_tensors_and_stages,
     sizeof in_tensors_and_stages / sizeof in_tensors_and_stages[0]},
    {"pp 2 x dp 2, ZeRO 3", stages_and_shards, in_stages_and_shards,
     sizeof in_stages_and_shards / sizeof in_stages_and_shards[0]},
};

/* ---- killed ---- */

static struct attempt *run_attempt(const struct hd_job *job, int number, const char *dir,
                                   const struct place *place, int signal,
                                   const struct attempt *before)
{
    struct attempt *a = harness_shared(sizeof *a);
    struct hd_job copy = *job;
    enum hd_status st;

    copy.attempt = number;
    copy.attempt_dir = job_text("%s/attempt-%d", dir, number);
    a->place = place;
    a->signal = signal;
    if (before) {
        a->from = before->saved_step;
        a->saved = before->saved;
    }
    st = harness_processes(&copy, WORLD, a, go);
    if (!st && place)
        fail_msg("attempt %d: no rank was killed in %s", number, place->name);
    if (st != (place ? HD_ABORTED : HD_OK))
        fail_msg("attempt %d: %s", number, hd_err_message());
    return a;
}

/* How the peers ended; returns the longest time that one took. */
static int64_t check_stories(const struct attempt *a, const char *layout)
{
    const struct place *p = a->place;
    const int64_t hit_ms = atomic_load(&a->hit_ms);
    int64_t longest = 0;
    char rank[96];

    if (!hit_ms)
        fail_msg("%s: there is no %s", layout, p->name);
    (void)snprintf(rank, sizeof rank, "rank %d died first: killed by signal 9; it", p->victim);
    for (int r = 0; r < WORLD; r++) {
        const struct story *s = &a->story[r];
        const char *told = strstr(s->text, rank);

        if (r == p->victim)
            continue;
        if (!s->status || s->ended_ms - hit_ms > LIMIT_MS || !told ||
            (p->says && !strstr(told, p->says)))
            fail_msg("%s, %s of rank %d: rank %d has status %d after %lld ms and step %lld: %s",
                     layout, p->name, p->victim, r, (int)s->status,
                     (long long)(s->ended_ms - hit_ms), (long long)s->steps, s->text);
        longest = s->ended_ms - hit_ms > longest ? s->ended_ms - hit_ms : longest;
    }
    return longest;
}

static void try_places(const struct layout *l)
{
    struct attempt *undisturbed;
    struct harness h;
    struct hd_job job;
    int number = 1;

    harness_setup(&h, 20000);
    job = l->job(&h);
    undisturbed = run_attempt(&job, number++, h.dir, NULL, 0, NULL);
    for (size_t i = 0; i < l->count; i++) {
        struct attempt *struck = run_attempt(&job, number++, h.dir, &l->places[i], SIGKILL, NULL);
        const int64_t longest = check_stories(struck, l->name);
        struct attempt *after = run_attempt(&job, number++, h.dir, NULL, 0, struck);

        assert_int_equal(struck->saved_step, STRUCK_STEP / EVERY * EVERY);
        assert_memory_equal(after->hash, undisturbed->hash, sizeof after->hash);
        for (int s = (int)after->from + 1; s <= STEPS; s++)
            assert_true(after->loss[s] == undisturbed->loss[s]);
        (void)printf("%s, killed in %s: peers ended after %lld ms; %s\n", l->name,
                     l->places[i].name, (long long)longest,
                     struck->story[l->places[i].victim ? 0 : 1].text);
        harness_shared_free(struck, sizeof *struck);
        harness_shared_free(after, sizeof *after);
    }
    harness_shared_free(undisturbed, sizeof *undisturbed);
    harness_teardown(&h);
}

static void a_rank_killed_under_tensors_and_stages_is_named_and_the_job_goes_on(void **state)
{
    try_places(&layouts[0]);
}

static void a_rank_killed_under_stages_and_shards_is_named_and_the_job_goes_on(void **state)
{
    try_places(&layouts[1]);
}

/* ---- stopped ---- */

/* A rank knows for whom it waits, not for whom that one waits: the first whose patience ends speaks
 * for all, and may name a rank that waits itself. So each says where it was, too, and who waits for
 * the stopped rank names it. (A supervisor looks at the processes: tests/chaos/cluster/hang.sh.) */
static void check_stopped(const struct attempt *a, const char *layout)
{
    const struct place *p = a->place;
    const int64_t hit_ms = atomic_load(&a->hit_ms);
    char rank[32];
    int named = 0;

    if (!hit_ms)
        fail_msg("%s: there is no %s", layout, p->name);
    (void)snprintf(rank, sizeof rank, ": rank %d has not ", p->victim);
    for (int r = 0; r < WORLD; r++) {
        const struct story *s = &a->story[r];

        if (r == p->victim)
            continue;
        if (!s->status || s->ended_ms - hit_ms > SILENCE_MS + LIMIT_MS)
            fail_msg("%s, %s of rank %d: rank %d has status %d after %lld ms: %s", layout, p->name,
                     p->victim, r, (int)s->status, (long long)(s->ended_ms - hit_ms), s->text);
        named += strstr(s->text, rank) != NULL;
    }
    if (!named)
        fail_msg("%s, %s: no peer names rank %d: %s", layout, p->name, p->victim,
                 a->story[p->victim ? 0 : 1].text);
}

static void a_stopped_rank_is_named_by_who_waits_for_it(void **state)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout *l = &layouts[i];
        struct harness h;
        struct hd_job job;

        harness_setup(&h, 20000);
        job = l->job(&h);
        for (size_t k = 0; k < l->count; k += 5) {
            struct attempt *a = run_attempt(&job, (int)k + 1, h.dir, &l->places[k], SIGSTOP, NULL);

            check_stopped(a, l->name);
            harness_shared_free(a, sizeof *a);
        }
        harness_teardown(&h);
    }
}

RUN_CASES()
