#include "controller/core/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ------------------------------------------------------------------------------------*/

#define X(name, number, text) [number] = text,
static const char *const job_states[] = {HD_JOB_STATE_LIST(X)};
static const char *const attempt_states[] = {HD_ATTEMPT_STATE_LIST(X)};
static const char *const end_causes[] = {HD_END_CAUSE_LIST(X)};
static const char *const node_states[] = {HD_NODE_STATE_LIST(X)};
static const char *const device_kinds[] = {HD_DEVICE_KIND_LIST(X)};
static const char *const checkpoint_states[] = {HD_CHECKPOINT_STATE_LIST(X)};
static const char *const credential_kinds[] = {HD_CREDENTIAL_KIND_LIST(X)};
#undef X

/* The words of a type by number; NULL: no word has that number. */
static const struct field_words {
    const char *const *words;
    int count;
} word_lists[] = {
#define WORDS(words)                           \
    {                                          \
        words, sizeof(words) / sizeof *(words) \
    }
    [HD_FIELD_JOB_STATE] = WORDS(job_states),
    [HD_FIELD_ATTEMPT_STATE] = WORDS(attempt_states),
    [HD_FIELD_END_CAUSE] = WORDS(end_causes),
    [HD_FIELD_NODE_STATE] = WORDS(node_states),
    [HD_FIELD_DEVICE_KIND] = WORDS(device_kinds),
    [HD_FIELD_CHECKPOINT_STATE] = WORDS(checkpoint_states),
    [HD_FIELD_CREDENTIAL_KIND] = WORDS(credential_kinds),
#undef WORDS
};

const char *hd_field_word(enum hd_field_type type, int number)
{
    const struct field_words *list = &word_lists[type];

    return number >= 0 && number < list->count && list->words[number] ? list->words[number]
                                                                      : "unknown";
}

int hd_field_number(enum hd_field_type type, const char *word)
{
    const struct field_words *list = &word_lists[type];

    for (int i = 0; i < list->count; i++) {
        if (list->words[i] && strcmp(list->words[i], word) == 0)
            return i;
    }
    return 0;
}

const char *hd_job_state_name(int state)
{
    return hd_field_word(HD_FIELD_JOB_STATE, state);
}

const char *hd_end_cause_name(int cause)
{
    return hd_field_word(HD_FIELD_END_CAUSE, cause);
}

const char *hd_node_state_name(int state)
{
    return hd_field_word(HD_FIELD_NODE_STATE, state);
}

const char *hd_device_kind_name(int kind)
{
    return hd_field_word(HD_FIELD_DEVICE_KIND, kind);
}

const char *hd_credential_kind_name(int kind)
{
    return hd_field_word(HD_FIELD_CREDENTIAL_KIND, kind);
}

enum hd_device_kind hd_device_kind_of(enum hd_job_device device)
{
    switch (device) {
    case HD_JOB_DEVICE_CPU:
        return HD_DEVICE_KIND_CPU;
    case HD_JOB_DEVICE_CUDA:
        return HD_DEVICE_KIND_CUDA;
    case HD_JOB_DEVICE_AUTO:
        break;
    }
    return HD_DEVICE_KIND_ANY;
}

const char *hd_event_kind_name(enum hd_event_kind kind)
{
    static const char *const names[] = {
#define X(name, word, subject, meaning) word,
        HD_EVENT_KIND_LIST(X)
#undef X
    };

    return (unsigned)kind < HD_EVENT_KIND_COUNT ? names[kind] : "";
}

/* ---- tables -----------------------------------------------------------------------------------*/

#define FIELD_KEY(...)  __VA_ARGS__
#define FIELD_NEW(...)  __VA_ARGS__
#define FIELD_PUT(...)  __VA_ARGS__
#define FIELD_SPEC(...) __VA_ARGS__
#define FIELD_LIVE(...)
#define FIELD(R, P, when, type, m, column, ...) \
    FIELD_##when({#column, HD_FIELD_##when, HD_FIELD_##type, offsetof(struct R, P m)}, )
#define TABLE(table, ...)                                             \
    static const struct hd_field table##_fields[] = {__VA_ARGS__};    \
    const struct hd_table hd_table_##table = {#table, table##_fields, \
                                              sizeof table##_fields / sizeof table##_fields[0]};
TABLE(jobs, HD_JOB_FIELDS(FIELD, hd_job_record, ))
TABLE(queues, HD_QUEUE_FIELDS(FIELD, hd_queue_record, ))
TABLE(attempts,
      HD_ATTEMPT_FIELDS(FIELD, hd_attempt_record, ) HD_PLAN_FIELDS(FIELD, hd_attempt_record, plan.)
          HD_END_FIELDS(FIELD, hd_attempt_record, end.))
TABLE(nodes, HD_NODE_FIELDS(FIELD, hd_node_record, ))
TABLE(devices, HD_DEVICE_FIELDS(FIELD, hd_device_record, ))
TABLE(probes, HD_PROBE_FIELDS(FIELD, hd_probe_record, ))
TABLE(checkpoints, HD_CHECKPOINT_FIELDS(FIELD, hd_checkpoint_record, ))
TABLE(events, HD_EVENT_FIELDS(FIELD, hd_event_record, ))
TABLE(step_metrics, HD_STEP_FIELDS(FIELD, hd_step_record, ))
TABLE(validations, HD_VALIDATION_FIELDS(FIELD, hd_validation_record, ))
TABLE(report_positions, HD_POSITION_FIELDS(FIELD, hd_position_record, ))
TABLE(credentials, HD_CREDENTIAL_FIELDS(FIELD, hd_credential_record, ))

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

/* Copies the texts and arrays that a record's fields point to into the arena. */
static void copy_fields(struct hd_arena *arena, const struct hd_table *table, void *record)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct hd_field *field = &table->fields[i];
        void *at = (char *)record + field->offset;

        if (field->type == HD_FIELD_TEXT) {
            const char **text = at;

            *text = copy_text(arena, *text);
        } else if (field->type == HD_FIELD_BYTES || field->type == HD_FIELD_LOADS) {
            const size_t each = field->type == HD_FIELD_LOADS ? sizeof(int64_t) : 1;
            size_t *count = hd_field_count(at);
            const void **items = at;

            *items = copy_bytes(arena, *items, *count * each);
            *count = *items ? *count : 0;
        }
    }
}

struct hd_job_record hd_record_copy_job(struct hd_arena *arena, const struct hd_job_record *job)
{
    struct hd_job_record copy = *job;

    copy_fields(arena, &hd_table_jobs, &copy);
    return copy;
}

struct hd_attempt_record hd_record_copy_attempt(struct hd_arena *arena,
                                                const struct hd_attempt_record *attempt)
{
    struct hd_attempt_record copy = *attempt;
    size_t count = (size_t)attempt->plan.rank_count;

    copy_fields(arena, &hd_table_attempts, &copy);
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

    copy_fields(arena, &hd_table_nodes, &copy);
    copy.devices = copy_bytes(arena, node->devices, count * sizeof *copy.devices);
    if (!copy.devices)
        copy.device_count = 0;
    for (int32_t i = 0; i < copy.device_count; i++) {
        copy_fields(arena, &hd_table_devices, &copy.devices[i]);
        copy.devices[i].problem = ""; /* the problem of a device is not stored */
    }
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

void hd_batch_add_probe(struct hd_batch *batch, const struct hd_probe_record *probe)
{
    struct hd_batch_op *op = add_record(batch, HD_OP_PROBE);

    if (!op)
        return;
    op->probe = *probe;
    op->probe.devices = NULL; /* part of the calibration */
    op->probe.device_count = 0;
    copy_fields(&batch->arena, &hd_table_probes, &op->probe);
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

const int64_t *hd_record_copy_loads(struct hd_arena *arena, const struct hd_step_record *step)
{
    return copy_bytes(arena, step->expert_load, step->expert_count * sizeof *step->expert_load);
}

#define X(record, operation, table)                                                              \
    void hd_batch_add_##record(struct hd_batch *batch, const struct hd_##record##_record *added) \
    {                                                                                            \
        struct hd_batch_op *op = add_record(batch, HD_OP_##operation);                           \
                                                                                                 \
        if (!op)                                                                                 \
            return;                                                                              \
        op->record = *added;                                                                     \
        copy_fields(&batch->arena, &hd_table_##table, &op->record);                              \
    }
HD_BATCH_LIST(X)
#undef X
