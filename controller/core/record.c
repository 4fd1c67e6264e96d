#include "controller/core/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ------------------------------------------------------------------------------------*/

#define X(name, number, text) \
    case number:              \
        return text;
#define NAME_FUNCTION(function, LIST)      \
    const char *function(int number_given) \
    {                                      \
        switch (number_given) {            \
            LIST(X)                        \
        default:                           \
            return "unknown";              \
        }                                  \
    }
NAME_FUNCTION(hd_job_state_name, HD_JOB_STATE_LIST)
NAME_FUNCTION(hd_attempt_state_name, HD_ATTEMPT_STATE_LIST)
NAME_FUNCTION(hd_end_cause_name, HD_END_CAUSE_LIST)
NAME_FUNCTION(hd_node_state_name, HD_NODE_STATE_LIST)
NAME_FUNCTION(hd_device_kind_name, HD_DEVICE_KIND_LIST)
NAME_FUNCTION(hd_credential_kind_name, HD_CREDENTIAL_KIND_LIST)
#undef NAME_FUNCTION
#undef X

const char *hd_event_kind_name(enum hd_event_kind kind)
{
    static const char *const names[] = {
#define X(name, word, subject, meaning) word,
        HD_EVENT_KIND_LIST(X)
#undef X
    };

    return (unsigned)kind < HD_EVENT_KIND_COUNT ? names[kind] : "";
}

enum hd_device_kind hd_device_kind_of(const char *word)
{
#define X(name, number, text)    \
    if (strcmp(word, text) == 0) \
        return HD_DEVICE_KIND_##name;
    HD_DEVICE_KIND_LIST(X)
#undef X
    return HD_DEVICE_KIND_ANY;
}

/* ---- texts ------------------------------------------------------------------------------------*/

bool hd_record_is_better(const struct hd_checkpoint_record *c,
                         const struct hd_checkpoint_record *than)
{
    if (isnan(c->val_loss) || !than)
        return !isnan(c->val_loss);
    if (c->val_loss != than->val_loss)
        return c->val_loss < than->val_loss;
    return c->step != than->step ? c->step < than->step : c->attempt < than->attempt;
}

size_t hd_record_fit(const char *text, size_t bytes_max)
{
    size_t count = strnlen(text, bytes_max + 1);

    if (count <= bytes_max)
        return count;
    for (count = bytes_max; count && ((unsigned char)text[count] & 0xC0) == 0x80; count--)
        ; /* move back to the first byte of a character */
    return count;
}

/* ---- copies -----------------------------------------------------------------------------------*/

static const char *copy_text(struct hd_arena *arena, const char *text)
{
    const char *copy;

    if (!text || !*text)
        return "";
    copy = hd_arena_strdup(arena, text);
    return copy ? copy : ""; /* "" when out of memory: hd_arena_failed tells the caller */
}

static void *copy_bytes(struct hd_arena *arena, const void *bytes, size_t count)
{
    void *copy = count ? hd_arena_alloc(arena, count) : NULL;

    if (copy)
        memcpy(copy, bytes, count);
    return copy;
}

struct hd_job_record hd_record_copy_job(struct hd_arena *arena, const struct hd_job_record *job)
{
    struct hd_job_record copy = *job;

    copy.request_id = copy_text(arena, job->request_id);
    copy.owner = copy_text(arena, job->owner);
    copy.name = copy_text(arena, job->name);
    copy.reason = copy_text(arena, job->reason);
    copy.queue = copy_text(arena, job->queue);
    copy.spec = copy_bytes(arena, job->spec, job->spec_bytes);
    if (!copy.spec)
        copy.spec_bytes = 0;
    return copy;
}

struct hd_attempt_record hd_record_copy_attempt(struct hd_arena *arena,
                                                const struct hd_attempt_record *attempt)
{
    struct hd_attempt_record copy = *attempt;
    size_t count = (size_t)attempt->plan.rank_count;

    copy.base_path = copy_text(arena, attempt->base_path);
    copy.base_hash = copy_text(arena, attempt->base_hash);
    copy.run_as = copy_text(arena, attempt->run_as);
    copy.end.node = copy_text(arena, attempt->end.node);
    copy.end.message = copy_text(arena, attempt->end.message);
    copy.plan.ranks = copy_bytes(arena, attempt->plan.ranks, count * sizeof *copy.plan.ranks);
    if (!copy.plan.ranks)
        copy.plan.rank_count = 0;
    for (int32_t i = 0; i < copy.plan.rank_count; i++) {
        copy.plan.ranks[i].node_uuid = copy_text(arena, attempt->plan.ranks[i].node_uuid);
        copy.plan.ranks[i].node_name = copy_text(arena, attempt->plan.ranks[i].node_name);
    }
    return copy;
}

struct hd_node_record hd_record_copy_node(struct hd_arena *arena, const struct hd_node_record *node)
{
    struct hd_node_record copy = *node;
    size_t count = (size_t)node->device_count;

    copy.uuid = copy_text(arena, node->uuid);
    copy.name = copy_text(arena, node->name);
    copy.boot_id = copy_text(arena, node->boot_id);
    copy.build = copy_text(arena, node->build);
    copy.drain_reason = copy_text(arena, node->drain_reason);
    copy.devices = copy_bytes(arena, node->devices, count * sizeof *copy.devices);
    if (!copy.devices)
        copy.device_count = 0;
    for (int32_t i = 0; i < copy.device_count; i++) {
        copy.devices[i].name = copy_text(arena, node->devices[i].name);
        copy.devices[i].uuid = copy_text(arena, node->devices[i].uuid);
        copy.devices[i].problem = ""; /* the problem of a device is not stored */
    }
    return copy;
}

struct hd_checkpoint_record hd_record_copy_checkpoint(struct hd_arena *arena,
                                                      const struct hd_checkpoint_record *checkpoint)
{
    struct hd_checkpoint_record copy = *checkpoint;

    copy.path = copy_text(arena, checkpoint->path);
    copy.hash = copy_text(arena, checkpoint->hash);
    copy.node_uuid = copy_text(arena, checkpoint->node_uuid);
    return copy;
}

/* ---- batches ----------------------------------------------------------------------------------*/

struct hd_batch *hd_batch_new(void)
{
    struct hd_batch *batch = calloc(1, sizeof *batch);

    if (!batch)
        return NULL;
    hd_arena_init(&batch->arena, 0);
    batch->end = &batch->first;
    return batch;
}

void hd_batch_free(struct hd_batch *batch)
{
    if (!batch)
        return;
    hd_arena_done(&batch->arena);
    free(batch);
}

bool hd_batch_failed(const struct hd_batch *batch)
{
    return hd_arena_failed(&batch->arena);
}

static struct hd_batch_op *add_record(struct hd_batch *batch, enum hd_batch_op_kind kind)
{
    struct hd_batch_op *op = hd_arena_alloc(&batch->arena, sizeof *op);

    if (!op)
        return NULL;
    op->kind = kind;
    *batch->end = op;
    batch->end = &op->next;
    batch->count++;
    return op;
}

void hd_batch_add_job(struct hd_batch *batch, bool is_new, const struct hd_job_record *job)
{
    struct hd_batch_op *op = add_record(batch, is_new ? HD_OP_JOB_NEW : HD_OP_JOB);
    struct hd_job_record record = *job;

    if (!op)
        return;
    if (!is_new && !job->spec_changed) { /* HD_OP_JOB then leaves the stored spec unchanged */
        record.spec = NULL;
        record.spec_bytes = 0;
    }
    op->job = hd_record_copy_job(&batch->arena, &record);
}

void hd_batch_add_attempt(struct hd_batch *batch, const struct hd_attempt_record *attempt)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_ATTEMPT);

    if (op)
        op->attempt = hd_record_copy_attempt(&batch->arena, attempt);
}

void hd_batch_add_node(struct hd_batch *batch, const struct hd_node_record *node)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_NODE);

    if (op)
        op->node = hd_record_copy_node(&batch->arena, node);
}

void hd_batch_add_queue(struct hd_batch *batch, const struct hd_queue_record *queue)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_QUEUE);

    if (!op)
        return;
    op->queue = *queue;
    op->queue.name = copy_text(&batch->arena, queue->name);
}

void hd_batch_add_probe(struct hd_batch *batch, const struct hd_probe_record *probe)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_PROBE);
    void *calibration = hd_arena_alloc(&batch->arena, probe->calibration_bytes + 1);

    if (!op || !calibration)
        return;
    if (probe->calibration_bytes)
        memcpy(calibration, probe->calibration, probe->calibration_bytes);
    op->probe = *probe;
    op->probe.node_uuid = copy_text(&batch->arena, probe->node_uuid);
    op->probe.problem = copy_text(&batch->arena, probe->problem);
    op->probe.measured_on = copy_text(&batch->arena, probe->measured_on);
    op->probe.calibration = calibration;
    op->probe.devices = NULL;
    op->probe.device_count = 0;
}

void hd_batch_add_credential(struct hd_batch *batch, const struct hd_credential_record *credential)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_CREDENTIAL);

    if (!op)
        return;
    op->credential = *credential;
    op->credential.name = copy_text(&batch->arena, credential->name);
    op->credential.role = copy_text(&batch->arena, credential->role);
    op->credential.made_by = copy_text(&batch->arena, credential->made_by);
    op->credential.ended_by = copy_text(&batch->arena, credential->ended_by);
}

void hd_batch_add_prune(struct hd_batch *batch, const struct hd_prune_record *prune)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_PRUNE);

    if (op)
        op->prune = *prune;
}

void hd_batch_add_meta(struct hd_batch *batch, const char *key, const char *value)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_META);

    if (!op)
        return;
    op->meta.key = copy_text(&batch->arena, key);
    op->meta.value = copy_text(&batch->arena, value);
}

void hd_batch_add_jobs_share(struct hd_batch *batch, const char *share)
{
    hd_batch_add_meta(batch, "jobs_share", share);
}

void hd_batch_add_audit(struct hd_batch *batch, const struct hd_audit_record *audit)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_AUDIT);

    if (!op)
        return;
    op->audit = (struct hd_audit_record){.time_ms = audit->time_ms,
                                         .who = copy_text(&batch->arena, audit->who),
                                         .role = copy_text(&batch->arena, audit->role),
                                         .method = copy_text(&batch->arena, audit->method),
                                         .object = copy_text(&batch->arena, audit->object),
                                         .source = copy_text(&batch->arena, audit->source),
                                         .result = copy_text(&batch->arena, audit->result)};
}

void hd_batch_add_checkpoint(struct hd_batch *batch, const struct hd_checkpoint_record *checkpoint)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_CHECKPOINT);

    if (op)
        op->checkpoint = hd_record_copy_checkpoint(&batch->arena, checkpoint);
}

void hd_batch_add_event(struct hd_batch *batch, const struct hd_event_record *event)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_EVENT);

    if (!op)
        return;
    op->event = *event;
    op->event.kind = copy_text(&batch->arena, event->kind);
    op->event.node = copy_text(&batch->arena, event->node);
    op->event.message = copy_text(&batch->arena, event->message);
}

const int64_t *hd_record_copy_loads(struct hd_arena *arena, const struct hd_step_record *step)
{
    int64_t *copy;

    if (!step->expert_count)
        return NULL;
    copy = hd_arena_array(arena, step->expert_count, sizeof *copy);
    if (copy)
        memcpy(copy, step->expert_load, step->expert_count * sizeof *copy);
    return copy;
}

void hd_batch_add_step(struct hd_batch *batch, const struct hd_step_record *step)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_STEP);

    if (!op)
        return;
    op->step = *step;
    op->step.expert_load = hd_record_copy_loads(&batch->arena, step);
}

void hd_batch_add_validation(struct hd_batch *batch, const struct hd_validation_record *validation)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_VALIDATION);

    if (op)
        op->validation = *validation;
}

void hd_batch_add_position(struct hd_batch *batch, const struct hd_position_record *position)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_POSITION);

    if (op)
        op->position = *position;
}
