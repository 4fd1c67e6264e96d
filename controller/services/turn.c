/* turn: core steps first, then the commit, then everything that others can see.
 *
 *   turn_begin  turn_step..  turn_when_durable..  turn_end
 *                   |               |                |
 *                 batch          effects           commit --> (writer thread) --> effects in order
 *
 * A turn with nothing to write still waits for the turns before it, because its effects may depend
 * on their steps.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/services/internal.h"

void controller_fail(struct controller *c, enum hd_status st)
{
    struct hd_error error;

    hd_err_save(st, &error);
    if (c->stopping)
        return;
    c->stopping = true;
    if (c->options.on_fatal)
        c->options.on_fatal(c->options.user, &error);
}

void turn_begin(struct controller *c)
{
    struct turn *turn;

    if (c->turn_depth++)
        return;
    turn = calloc(1, sizeof *turn);
    if (turn)
        turn->batch = hd_batch_new();
    if (!turn || !turn->batch) {
        free(turn);
        controller_fail(c, hd_err(HD_NO_MEMORY, "out of memory for the controller's state"));
        return;
    }
    turn->c = c;
    turn->end = &turn->first;
    c->turn = turn;
}

static void add_job(struct controller *c, uint64_t job)
{
    struct turn *turn = c->turn;
    size_t bigger;
    uint64_t *moved;

    for (size_t i = 0; i < turn->job_count; i++) {
        if (turn->jobs[i] == job)
            return;
    }
    if (turn->job_count == turn->job_size) {
        bigger = turn->job_size ? turn->job_size * 2 : 8;
        moved = realloc(turn->jobs, bigger * sizeof *moved);
        if (!moved)
            return; /* watchers are notified at the next change instead */
        turn->jobs = moved;
        turn->job_size = bigger;
    }
    turn->jobs[turn->job_count++] = job;
}

enum hd_status turn_step(struct controller *c, const struct hd_core_event *event)
{
    struct hd_batch_op **before;
    enum hd_status st;

    if (!c->turn || c->stopping)
        return hd_err(HD_UNAVAILABLE, "the controller is stopping");
    hd_core_out_clear(&c->out);
    c->out.batch = c->turn->batch;
    before = c->turn->batch->end;
    st = hd_core_step(c->core, event, controller_now(), &c->out);
    if (st == HD_NO_MEMORY)
        controller_fail(c, st);
    if (st)
        return st;
    for (const struct hd_batch_op *op = *before; op; op = op->next)
        if (op->kind == HD_OP_JOB_NEW || op->kind == HD_OP_JOB)
            hd_usages_see_job(c->usages, &op->job);
    for (size_t i = 0; i < c->out.job_count; i++)
        add_job(c, c->out.jobs[i]);
    for (size_t i = 0; i < c->out.search_count; i++)
        search_begin(c, &c->out.searches[i]);
    if (c->out.asked_count)
        planner_ask(c, &c->out);
    for (size_t i = 0; i < c->out.node_count; i++)
        fleet_send_desired(c, c->out.nodes[i]);
    return HD_OK;
}

void turn_when_durable(struct controller *c, struct effect *effect)
{
    if (!c->turn) { /* turn_begin ran out of memory: the controller has failed */
        effect->run(effect, c, HD_ABORTED);
        return;
    }
    effect->next = NULL;
    *c->turn->end = effect;
    c->turn->end = &effect->next;
}

static void on_durable(void *user, enum hd_status st)
{
    struct turn *turn = user;
    struct controller *c = turn->c;

    if (!st)
        hd_prom_observe(&c->seen.commits,
                        1e-9 * (double)(hd_clock_now_ns() - turn->handed_over_ns));
    while (turn->first) {
        struct effect *effect = turn->first;

        turn->first = effect->next;
        effect->run(effect, c, st);
    }
    for (size_t i = 0; !st && i < turn->job_count; i++) {
        watch_announce(c, turn->jobs[i]);
        web_announce(c, turn->jobs[i]);
    }
    free(turn->jobs);
    free(turn);
}

void turn_end(struct controller *c)
{
    struct turn *turn = c->turn;
    struct hd_batch *batch;

    if (--c->turn_depth || !turn)
        return;
    c->turn = NULL;
    fence_count(c, turn);
    batch = turn->batch;
    turn->batch = NULL;
    seen_take(&c->seen, batch);
    turn->handed_over_ns = hd_clock_now_ns();
    if (!batch->count && !turn->first && !turn->job_count) { /* for example a heartbeat */
        hd_batch_free(batch);
        free(turn);
        return;
    }
    if (hd_batch_failed(batch)) { /* turn_step has called controller_fail */
        hd_batch_free(batch);
        on_durable(turn, HD_ABORTED);
        return;
    }
    hd_store_commit(c->store, batch, on_durable, turn);
}
