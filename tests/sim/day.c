/* day: see day.h. */
#include "tests/sim/day.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/fleet.h"
#include "tests/sim/reference.h"
#include "tests/sorted.h"

static const struct {
    const char *word, *text;
} policies[SIM_POLICIES] = {
#define X(name, word, text) {word, text},
    SIM_POLICY_LIST(X)
#undef X
};

const char *sim_policy_word(enum sim_policy_kind policy)
{
    return policies[policy].word;
}

const char *sim_policy_text(enum sim_policy_kind policy)
{
    return policies[policy].text;
}

/* ---- scores -----------------------------------------------------------------------------------*/

/* When it was submitted, or for a job that has not begun: how long it has waited. */
static double wait_minutes(const struct sim_world *world, size_t job)
{
    const struct sim_run *run = &world->runs[job];
    const int64_t begun_ms = run->first_begun_ms ? run->first_begun_ms : world->now_ms;

    return (double)(begun_ms - world->trace->jobs[job].submit_ms) / (double)SIM_MINUTE_MS;
}

static void score_waits(const struct sim_world *world, enum sim_class class, double *waits,
                        struct sim_score *score)
{
    size_t count = 0;

    for (size_t j = 0; j < world->trace->job_count; j++) {
        const struct sim_job *job = &world->trace->jobs[j];

        if (job->class == class && job->after < 0 && !job->cancel_ms)
            waits[count++] = wait_minutes(world, j);
    }
    score->counted[class] = count;
    if (!count)
        return;
    sort_doubles(waits, count);
    score->wait_p50[class] = waits[count / 2];
    score->wait_p95[class] = waits[count * 95 / 100];
}

/* Feitelson et al. 1997, "Theory and Practice in Parallel Job Scheduling":
 * max(1, (wait + run) / max(run, tau)), run: the length undisturbed. */
static double slowdown_of(const struct sim_world *world, size_t job)
{
    const double run_ms = (double)sim_job_length_ms(&world->trace->jobs[job]);
    const double over_ms =
        (double)(world->runs[job].state == SIM_RUN_OVER ? world->runs[job].over_ms : world->now_ms);
    const double slowdown = (over_ms - (double)world->trace->jobs[job].submit_ms) /
                            (run_ms > SIM_TAU_MS ? run_ms : SIM_TAU_MS);

    return slowdown > 1 ? slowdown : 1;
}

static bool is_kept(const struct sim_run *run)
{
    const int64_t wait_ms = run->told_start_ms - run->told_ms;
    const int64_t allowed_ms = wait_ms > 10 * SIM_MINUTE_MS ? wait_ms / 10 : SIM_MINUTE_MS;

    return run->first_begun_ms <= run->told_start_ms + allowed_ms;
}

static void score_promises(const struct sim_world *world, struct sim_score *score)
{
    size_t kept = 0;
    double off_ms = 0;

    for (size_t j = 0; j < world->trace->job_count; j++) {
        const struct sim_run *run = &world->runs[j];

        if (!run->told_start_ms || !run->first_begun_ms)
            continue;
        score->told++;
        kept += is_kept(run);
        off_ms += fabs((double)(run->first_begun_ms - run->told_start_ms));
    }
    if (!score->told)
        return;
    score->kept = (double)kept / (double)score->told;
    score->told_off = off_ms / (double)score->told / (double)SIM_MINUTE_MS;
}

static bool score_jobs(const struct sim_world *world, struct sim_score *score)
{
    double *waits = calloc(world->trace->job_count + 1, sizeof *waits), sum = 0;
    size_t count = 0;

    if (!waits)
        return false;
    for (int c = 0; c < SIM_CLASSES; c++)
        score_waits(world, (enum sim_class)c, waits, score);
    free(waits);
    score->jobs = world->trace->job_count;
    for (size_t j = 0; j < world->trace->job_count; j++) {
        const struct sim_job *job = &world->trace->jobs[j];

        score->done += world->runs[j].outcome == SIM_OUTCOME_DONE;
        score->failed += world->runs[j].outcome == SIM_OUTCOME_FAILED;
        score->cancelled += world->runs[j].outcome == SIM_OUTCOME_CANCELLED;
        score->unfinished += world->runs[j].state != SIM_RUN_OVER;
        if (job->after >= 0 || job->cancel_ms || world->runs[j].outcome == SIM_OUTCOME_FAILED)
            continue;
        sum += slowdown_of(world, j);
        count++;
    }
    score->slowdown = count ? sum / (double)count : 0;
    score_promises(world, score);
    score->leaves_spanned = world->spanned / world->spanned_least;
    score->events = world->happened;
    return true;
}

static void score_devices(const struct sim_world *world, struct sim_score *score)
{
    const double useful = sim_world_useful(world);

    score->utilisation = world->sums.held / world->sums.available;
    score->goodput = useful / world->sums.available;
    score->lost_hours = (world->sums.held - useful) / (double)SIM_HOUR_MS;
    score->starting_hours = world->sums.starting / (double)SIM_HOUR_MS;
    score->dead_hours = world->sums.dead / (double)SIM_HOUR_MS;
}

/* ---- the day ----------------------------------------------------------------------------------*/

static bool live(struct sim_world *world, const char *broken, struct sim_score *score)
{
    const struct sim_trace_job *wish = &world->trace->wish;

    while (!*broken && sim_world_step(world, wish->horizon_ms))
        ;
    score_devices(world, score);
    while (!*broken && world->over_count < world->trace->job_count &&
           sim_world_step(world, wish->horizon_ms + wish->tail_ms))
        ;
    return !world->no_memory && score_jobs(world, score);
}

static bool live_with_core(const struct sim_trace *trace, bool checks_core, struct sim_score *score)
{
    struct sim_fleet fleet = {0};
    struct sim_world *world = sim_world_new(trace, &sim_fleet_policy, &fleet);
    bool lived = world && sim_fleet_init(&fleet, world, checks_core) &&
                 live(world, fleet.watch.broken, score);

    if (lived) {
        score->digest = fleet.watch.digest;
        score->core_steps = fleet.steps;
        score->starts = fleet.watch.starts;
        score->starts_moved = fleet.watch.starts_moved;
        score->preempted = fleet.watch.preempted;
        score->grown = fleet.watch.grown;
        score->core_seconds = (double)fleet.spent_ns / 1e9;
        score->core_longest_ms = (double)fleet.longest_ns / 1e6;
        (void)snprintf(score->broken, sizeof score->broken, "%s", fleet.watch.broken);
    }
    if (world)
        sim_fleet_done(&fleet);
    sim_world_free(world);
    return lived;
}

static bool live_with_reference(const struct sim_trace *trace, enum sim_policy_kind policy,
                                struct sim_score *score)
{
    struct sim_reference reference = {0};
    struct sim_world *world = sim_world_new(trace, &sim_reference_policy, &reference);
    const bool lived =
        world &&
        sim_reference_init(&reference, world, policy != SIM_BY_FIFO, policy == SIM_BY_EASY_OURS) &&
        live(world, "", score);

    if (world)
        sim_reference_done(&reference);
    sim_world_free(world);
    return lived;
}

bool sim_day(const struct sim_trace *trace, enum sim_policy_kind policy, bool checks_core,
             struct sim_score *ret_score)
{
    *ret_score = (struct sim_score){0};
    return policy == SIM_BY_HEDDLE ? live_with_core(trace, checks_core, ret_score)
                                   : live_with_reference(trace, policy, ret_score);
}
