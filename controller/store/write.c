/* write: writes one batch into the open transaction. */
#include "controller/store/store_internal.h"

static const char *checkpoint_state_name(enum hd_checkpoint_state state)
{
    switch (state) {
#define X(name, number, text)        \
    case HD_CHECKPOINT_STATE_##name: \
        return text;
        HD_CHECKPOINT_STATE_LIST(X)
#undef X
    }
    return "unknown";
}

static const char *queue_of(const struct hd_job_record *j)
{
    return j->queue && *j->queue ? j->queue : "default";
}

static enum hd_status insert_job(struct store_db *db, const struct hd_job_record *j)
{
    return store_db_run(
        db, STORE_INSERT_JOB, "itttttnnniniiinnbitnni", (int64_t)j->job, j->request_id, j->owner,
        j->name, hd_job_state_name((int)j->state), j->reason, (int)j->cancel, (int)j->cancel_now,
        (int)j->attempt_count, j->steps, (int)j->devices, j->submitted_ms, j->started_ms,
        j->ended_ms, (int)j->resumed_attempt, (int)j->removal, j->spec, j->spec_bytes,
        (int64_t)j->request_hash, queue_of(j), (int)j->priority, (int)j->held, j->planned_start_ms);
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
    enum hd_status st = store_db_run(db, STORE_UPDATE_JOB, "ittnnnniinnni", (int64_t)j->job,
                                     hd_job_state_name((int)j->state), j->reason, (int)j->cancel,
                                     (int)j->cancel_now, (int)j->attempt_count, (int)j->devices,
                                     j->started_ms, j->ended_ms, (int)j->resumed_attempt,
                                     (int)j->removal, (int)j->held, j->planned_start_ms);

    if (!st && j->spec_changed)
        st = store_db_run(db, STORE_UPDATE_SPEC, "itibtn", (int64_t)j->job, j->name, j->steps,
                          j->spec, j->spec_bytes, queue_of(j), (int)j->priority);
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

/* Inserts the row of an attempt if it is new, with plan and base, which never change; then updates
 * the rest. */
static enum hd_status put_attempt(struct store_db *db, const struct hd_attempt_record *a)
{
    struct hd_text layout = {0};
    enum hd_status st = hd_layout_write(&a->plan.layout, &layout);

    if (!st && layout.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a plan");
    if (!st)
        st = store_db_run(db, STORE_INSERT_ATTEMPT, "inttzzttidint", (int64_t)a->job,
                          (int)a->attempt, hd_attempt_state_name((int)a->state), layout.data,
                          (int64_t)a->base_attempt, a->base_attempt ? a->base_step : (int64_t)0,
                          a->base_path, a->base_hash, a->created_ms, a->plan.step_s,
                          a->plan.memory_bytes, (int)a->borrows, a->run_as ? a->run_as : "");
    hd_text_free(&layout);
    if (!st && sqlite3_changes(db->sqlite) == 1)
        st = insert_allocations(db, a);
    if (!st)
        st = store_db_run(db, STORE_UPDATE_ATTEMPT, "intiitnttnnnti", (int64_t)a->job,
                          (int)a->attempt, hd_attempt_state_name((int)a->state), a->running_ms,
                          a->ended_ms, hd_end_cause_name((int)a->end.cause), (int)a->end.rank,
                          a->end.node, a->end.message, (int)a->end.exit_code, (int)a->end.signal,
                          (int)a->end.bad_input, hd_end_cause_name((int)a->stop_cause),
                          (int64_t)a->stop_job);
    return st;
}

static enum hd_status put_node(struct store_db *db, const struct hd_node_record *n)
{
    enum hd_status st =
        store_db_run(db, STORE_PUT_NODE, "tttttntniin", n->uuid, n->name, n->boot_id, n->build,
                     hd_node_state_name((int)n->state), (int)n->drain, n->drain_reason,
                     (int)n->retired, n->seen_ms, n->drain_deadline_ms, (int)n->saw_jobs_dir);

    if (!st)
        st = store_db_run(db, STORE_DELETE_DEVICES, "t", n->uuid);
    if (!st && n->removed)
        st = store_db_run(db, STORE_DELETE_PROBE, "t", n->uuid);
    if (!st && n->removed)
        return store_db_run(db, STORE_DELETE_NODE, "t", n->uuid);
    for (int32_t i = 0; !st && i < n->device_count; i++) {
        const struct hd_device_record *d = &n->devices[i];

        st = store_db_run(db, STORE_INSERT_DEVICE, "tntttini", n->uuid, (int)d->index,
                          hd_device_kind_name((int)d->kind), d->name, d->uuid, d->memory_bytes,
                          (int)d->threads, (int64_t)d->precisions);
    }
    return st;
}

static enum hd_status put_probe(struct store_db *db, const struct hd_probe_record *p)
{
    if (!p->ended_ms)
        return store_db_run(db, STORE_DELETE_PROBE, "t", p->node_uuid);
    return store_db_run(db, STORE_PUT_PROBE, "tittib", p->node_uuid, p->ended_ms, p->problem,
                        p->measured_on, p->measured_ms, p->calibration, p->calibration_bytes);
}

static enum hd_status put_checkpoint(struct store_db *db, const struct hd_checkpoint_record *c)
{
    return store_db_run(db, STORE_PUT_CHECKPOINT, "initttniitindn", (int64_t)c->job,
                        (int)c->attempt, c->step, c->path, c->hash, c->node_uuid, (int)c->shared,
                        c->time_ms, c->size_bytes, checkpoint_state_name(c->state),
                        (int64_t)c->sequence, (int)c->proven, c->val_loss, (int)c->missing);
}

static enum hd_status insert_event(struct store_db *db, const struct hd_event_record *e)
{
    return store_db_run(db, STORE_INSERT_EVENT, "iiinnttt", (int64_t)e->job, (int64_t)e->sequence,
                        e->time_ms, (int)e->attempt, (int)e->rank, e->kind, e->node, e->message);
}

static enum hd_status insert_step(struct store_db *db, const struct hd_step_record *s)
{
    uint8_t metrics[HD_METRICS_BYTES_MAX];
    const size_t size = hd_metrics_pack(&s->metrics, metrics);
    enum hd_status st = HD_OK;

    /* the job's newest step is kept: it shows progress, and a restart needs it */
    if (db->thins)
        st = store_db_run(db, STORE_DROP_STEP, "i", (int64_t)s->job);
    if (st)
        return st;
    return store_db_run(db, STORE_INSERT_STEP, "iiniibb", (int64_t)s->job, (int64_t)s->sequence,
                        (int)s->attempt, s->step, s->time_ms, metrics, size, s->expert_load,
                        s->expert_count * sizeof *s->expert_load);
}

static enum hd_status insert_validation(struct store_db *db, const struct hd_validation_record *v)
{
    return store_db_run(db, STORE_INSERT_VALIDATION, "iiniiidt", (int64_t)v->job,
                        (int64_t)v->sequence, (int)v->attempt, v->step, v->time_ms, v->tokens,
                        v->loss, v->set);
}

static enum hd_status write_op(struct store_db *db, const struct hd_batch_op *op)
{
    switch (op->kind) {
    case HD_OP_JOB_NEW:
        return insert_job(db, &op->job);
    case HD_OP_JOB:
        return update_job(db, &op->job);
    case HD_OP_ATTEMPT:
        return put_attempt(db, &op->attempt);
    case HD_OP_NODE:
        return put_node(db, &op->node);
    case HD_OP_QUEUE:
        if (op->queue.removed)
            return store_db_run(db, STORE_DELETE_QUEUE, "t", op->queue.name);
        return store_db_run(db, STORE_PUT_QUEUE, "tnnnn", op->queue.name,
                            (int)op->queue.devices_max, (int)op->queue.user_devices_max,
                            (int)op->queue.weight, (int)op->queue.closed);
    case HD_OP_CHECKPOINT:
        return put_checkpoint(db, &op->checkpoint);
    case HD_OP_EVENT:
        return insert_event(db, &op->event);
    case HD_OP_STEP:
        return insert_step(db, &op->step);
    case HD_OP_VALIDATION:
        return insert_validation(db, &op->validation);
    case HD_OP_POSITION:
        return store_db_run(db, STORE_PUT_POSITION, "inni", (int64_t)op->position.job,
                            (int)op->position.attempt, (int)op->position.rank,
                            (int64_t)op->position.seq);
    case HD_OP_PROBE:
        return put_probe(db, &op->probe);
    case HD_OP_CREDENTIAL:
        return store_put_credential(db, &op->credential);
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
