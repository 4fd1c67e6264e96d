/* write: writes one batch into the open transaction. */
#include "controller/store/store_internal.h"

/* Runs a statement of a job; its row always names a queue. */
static enum hd_status run_of_job(struct store_db *db, enum store_statement statement,
                                 const struct hd_job_record *j)
{
    struct hd_job_record row = *j;

    if (!row.queue || !*row.queue)
        row.queue = "default";
    return store_put(db, statement, &hd_table_jobs, &row, NULL);
}

/* Deletes the rows of a removed job: first its history; the attempts, which tell on which nodes it
 * ran, only after its folder is deleted. The job's own row stays. */
static enum hd_status delete_rows(struct store_db *db, const struct hd_job_record *j)
{
    static const enum store_statement history[] = {STORE_DELETE_EVENTS,
                                                   STORE_DELETE_STEPS,
                                                   STORE_DELETE_VALIDATIONS,
                                                   STORE_DELETE_POSITIONS,
                                                   STORE_DELETE_BASES,
                                                   STORE_DELETE_CHECKPOINTS},
                                      rest[] = {STORE_DELETE_ALLOCATIONS, STORE_DELETE_ATTEMPTS,
                                                STORE_EMPTY_SPEC};
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < sizeof history / sizeof history[0]; i++)
        st = store_db_run(db, history[i], "i", (int64_t)j->job);
    for (size_t i = 0; !st && j->removal == HD_REMOVAL_DONE && i < sizeof rest / sizeof rest[0];
         i++)
        st = store_db_run(db, rest[i], "i", (int64_t)j->job);
    return st;
}

static enum hd_status update_job(struct store_db *db, const struct hd_job_record *j)
{
    enum hd_status st = run_of_job(db, STORE_UPDATE_JOB, j);

    if (!st && j->spec_changed)
        st = run_of_job(db, STORE_UPDATE_SPEC, j);
    return st || !j->removal ? st : delete_rows(db, j);
}

static enum hd_status insert_allocations(struct store_db *db, const struct hd_attempt_record *a)
{
    enum hd_status st = HD_OK;

    for (int32_t rank = 0; !st && rank < a->plan.rank_count; rank++) {
        const struct hd_rank_location *place = &a->plan.ranks[rank];

        st = store_db_run(db, STORE_INSERT_ALLOCATION, "innttn", (int64_t)a->job, (int)a->attempt,
                          (int)rank, place->node_uuid, place->node_name, (int)place->device);
    }
    return st;
}

/* Inserts the row of an attempt, with plan and base, which never change; or updates the rest. */
static enum hd_status put_attempt(struct store_db *db, const struct hd_attempt_record *a)
{
    struct hd_attempt_record row = *a;
    enum hd_status st;

    if (!row.base_attempt)
        row.base_step = 0;
    st = store_put(db, STORE_INSERT_ATTEMPT, &hd_table_attempts, &row, NULL);
    if (!st && sqlite3_changes(db->sqlite) == 1)
        return insert_allocations(db, a);
    return st ? st : store_put(db, STORE_UPDATE_ATTEMPT, &hd_table_attempts, &row, NULL);
}

static enum hd_status put_node(struct store_db *db, const struct hd_node_record *n)
{
    enum hd_status st = store_put(db, STORE_PUT_NODE, &hd_table_nodes, n, NULL);

    if (!st)
        st = store_db_run(db, STORE_DELETE_DEVICES, "t", n->uuid);
    if (!st && n->removed)
        st = store_db_run(db, STORE_DELETE_PROBE, "t", n->uuid);
    if (!st && n->removed)
        return store_db_run(db, STORE_DELETE_NODE, "t", n->uuid);
    for (int32_t i = 0; !st && i < n->device_count; i++)
        st = store_put(db, STORE_INSERT_DEVICE, &hd_table_devices, &n->devices[i], n->uuid);
    return st;
}

static enum hd_status insert_step(struct store_db *db, const struct hd_step_record *s)
{
    enum hd_status st = HD_OK;

    /* the job's newest step is kept: it shows progress, and a restart needs it */
    if (db->thins)
        st = store_db_run(db, STORE_DROP_STEP, "i", (int64_t)s->job);
    return st ? st : store_put(db, STORE_INSERT_STEP, &hd_table_step_metrics, s, NULL);
}

static enum hd_status write_op(struct store_db *db, const struct hd_batch_op *op)
{
    switch (op->kind) {
    case HD_OP_JOB_NEW:
        return run_of_job(db, STORE_INSERT_JOB, &op->job);
    case HD_OP_JOB:
        return update_job(db, &op->job);
    case HD_OP_ATTEMPT:
        return put_attempt(db, &op->attempt);
    case HD_OP_NODE:
        return put_node(db, &op->node);
    case HD_OP_QUEUE:
        if (op->queue.removed)
            return store_db_run(db, STORE_DELETE_QUEUE, "t", op->queue.name);
        return store_put(db, STORE_PUT_QUEUE, &hd_table_queues, &op->queue, NULL);
    case HD_OP_CHECKPOINT:
        return store_put(db, STORE_PUT_CHECKPOINT, &hd_table_checkpoints, &op->checkpoint, NULL);
    case HD_OP_EVENT:
        return store_put(db, STORE_INSERT_EVENT, &hd_table_events, &op->event, NULL);
    case HD_OP_STEP:
        return insert_step(db, &op->step);
    case HD_OP_VALIDATION:
        return store_put(db, STORE_INSERT_VALIDATION, &hd_table_validations, &op->validation, NULL);
    case HD_OP_POSITION:
        return store_put(db, STORE_PUT_POSITION, &hd_table_report_positions, &op->position, NULL);
    case HD_OP_PROBE:
        if (!op->probe.ended_ms)
            return store_db_run(db, STORE_DELETE_PROBE, "t", op->probe.node_uuid);
        return store_put(db, STORE_PUT_PROBE, &hd_table_probes, &op->probe, NULL);
    case HD_OP_CREDENTIAL:
        return store_put(db, STORE_PUT_CREDENTIAL, &hd_table_credentials, &op->credential, NULL);
    case HD_OP_PRUNE:
        return store_prune(db, &op->prune);
    case HD_OP_AUDIT:
        return store_insert_audit(db, &op->audit);
    case HD_OP_META:
        return store_db_put_meta(db, op->meta.key, op->meta.value);
    }
    return hd_err(HD_INTERNAL, "unknown batch operation %d", (int)op->kind);
}

enum hd_status store_write_batch(struct store_db *db, const struct hd_batch *batch)
{
    enum hd_status st = HD_OK;

    for (const struct hd_batch_op *op = batch->first; !st && op; op = op->next)
        st = write_op(db, op);
    return st;
}
