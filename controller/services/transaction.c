/* transaction: core steps first, then the commit, then everything that others can see.
 *
 *   transaction_begin  transaction_step..  transaction_when_durable..  transaction_end
 *                       |                   |                           |
 *                     batch               post-commit actions         commit (writer thread)
 *                                                                       |
 *                                                             post-commit actions run, in order
 *
 * A transaction with nothing to write still waits for the transactions before it, because its
 * post-commit actions may depend on their steps.
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

void transaction_begin(struct controller *c)
{
    struct transaction *transaction;

    if (c->transaction_depth++)
        return;
    transaction = calloc(1, sizeof *transaction);
    if (transaction)
        transaction->batch = hd_batch_new();
    if (!transaction || !transaction->batch) {
        free(transaction);
        controller_fail(c, hd_err(HD_NO_MEMORY, "out of memory for the controller's state"));
        return;
    }
    transaction->c = c;
    transaction->end = &transaction->first;
    c->transaction = transaction;
}

static void add_job(struct controller *c, uint64_t job)
{
    struct transaction *transaction = c->transaction;
    size_t bigger;
    uint64_t *moved;

    for (size_t i = 0; i < transaction->job_count; i++) {
        if (transaction->jobs[i] == job)
            return;
    }
    if (transaction->job_count == transaction->job_size) {
        bigger = transaction->job_size ? transaction->job_size * 2 : 8;
        moved = realloc(transaction->jobs, bigger * sizeof *moved);
        if (!moved)
            return; /* watchers are notified at the next change instead */
        transaction->jobs = moved;
        transaction->job_size = bigger;
    }
    transaction->jobs[transaction->job_count++] = job;
}

enum hd_status transaction_step(struct controller *c, const struct hd_core_event *event)
{
    struct hd_batch_op **before;
    enum hd_status st;

    if (!c->transaction || c->stopping)
        return hd_err(HD_UNAVAILABLE, "the controller is stopping");
    hd_core_out_clear(&c->out);
    c->out.batch = c->transaction->batch;
    before = c->transaction->batch->end;
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
    for (size_t i = 0; i < c->sink_count; i++)
        if (c->sinks[i].stepped)
            c->sinks[i].stepped(c, &c->out);
    return HD_OK;
}

void transaction_when_durable(struct controller *c, struct post_commit_action *action)
{
    if (!c->transaction) { /* transaction_begin ran out of memory: the controller has failed */
        action->run(action, c, HD_ABORTED);
        return;
    }
    action->next = NULL;
    *c->transaction->end = action;
    c->transaction->end = &action->next;
}

static void on_durable(void *user, enum hd_status st)
{
    struct transaction *transaction = user;
    struct controller *c = transaction->c;

    if (!st)
        hd_prom_observe(&c->stats.commits,
                        1e-9 * (double)(hd_clock_now_ns() - transaction->handed_over_ns));
    while (transaction->first) {
        struct post_commit_action *action = transaction->first;

        transaction->first = action->next;
        action->run(action, c, st);
    }
    for (size_t i = 0; !st && i < transaction->job_count; i++)
        for (size_t k = 0; k < c->sink_count; k++)
            if (c->sinks[k].committed)
                c->sinks[k].committed(c, transaction->jobs[i]);
    free(transaction->jobs);
    free(transaction);
}

void transaction_end(struct controller *c)
{
    struct transaction *transaction = c->transaction;
    struct hd_batch *batch;

    if (--c->transaction_depth || !transaction)
        return;
    c->transaction = NULL;
    for (size_t i = 0; i < c->sink_count; i++)
        if (c->sinks[i].ending)
            c->sinks[i].ending(c, transaction);
    batch = transaction->batch;
    transaction->batch = NULL;
    transaction->handed_over_ns = hd_clock_now_ns();
    if (!batch->count && !transaction->first &&
        !transaction->job_count) { /* nothing to commit, e.g. after a heartbeat */
        hd_batch_free(batch);
        free(transaction);
        return;
    }
    if (hd_batch_failed(batch)) { /* transaction_step has called controller_fail */
        hd_batch_free(batch);
        on_durable(transaction, HD_ABORTED);
        return;
    }
    hd_store_commit(c->store, batch, on_durable, transaction);
}
