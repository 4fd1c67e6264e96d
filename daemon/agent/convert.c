#include "daemon/agent/convert.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "daemon/agent/agent.h"
#include "proto/step.h"
#include "version/version.h"

enum { CHECKPOINTS_MAX = 4096 };

static char *make_utf8(char *text)
{
    const size_t n = strlen(text);

    if (!hd_text_is_utf8(text, n))
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)text[i] >= 0x80)
                text[i] = '?';
    return text;
}

char *convert_text_of(char *text)
{
    return make_utf8(text);
}

static Heddle__V1__Event *new_event(struct hd_arena *arena, const char *node,
                                    const struct hd_link_report *report, const char *kind,
                                    char *message)
{
    Heddle__V1__Event *event = hd_arena_alloc(arena, sizeof *event);

    if (!event)
        return NULL;
    heddle__v1__event__init(event);
    event->time_unix_ms = report->wall_ms;
    event->kind = (char *)kind;
    event->job = (uint64_t)report->job;
    event->attempt = (int32_t)report->attempt;
    event->node = (char *)node;
    event->rank = (int32_t)report->rank;
    event->message = make_utf8(message);
    return event;
}

/* Copies the loads of the experts (MoE) from a report. Returns false if out of memory. */
static bool fill_loads(struct hd_arena *arena, const struct hd_link_report *report,
                       Heddle__V1__StepReport *step)
{
    const size_t count = (size_t)report->step.expert_load_count;

    if (!count)
        return true;
    step->expert_load = hd_arena_array(arena, count, sizeof *step->expert_load);
    if (!step->expert_load)
        return false;
    memcpy(step->expert_load, report->step.expert_load, count * sizeof *step->expert_load);
    step->n_expert_load = count;
    return true;
}

static Heddle__V1__StepReport *new_step(struct hd_arena *arena, const struct hd_link_report *report)
{
    Heddle__V1__StepReport *step = hd_arena_alloc(arena, sizeof *step);

    if (!step)
        return NULL;
    heddle__v1__step_report__init(step);
    step->step = report->step.step;
    step->time_unix_ms = report->wall_ms;
    return hd_step_to_message(&report->step.metrics, arena, step) && fill_loads(arena, report, step)
               ? step
               : NULL;
}

static Heddle__V1__ValidationReport *new_validation(struct hd_arena *arena,
                                                    const struct hd_link_report *report)
{
    Heddle__V1__ValidationReport *validation = hd_arena_alloc(arena, sizeof *validation);

    if (!validation)
        return NULL;
    heddle__v1__validation_report__init(validation);
    validation->step = report->validation.step;
    validation->loss = report->validation.loss;
    validation->tokens = report->validation.tokens;
    validation->time_unix_ms = report->wall_ms;
    validation->set = hd_arena_strdup(arena, report->validation.set);
    return validation->set ? validation : NULL;
}

static void set_val_loss(Heddle__V1__CheckpointInfo *info, double val_loss)
{
    if (isnan(val_loss))
        return;
    info->_val_loss_case = HEDDLE__V1__CHECKPOINT_INFO___VAL_LOSS_VAL_LOSS;
    info->val_loss = val_loss;
}

static Heddle__V1__CheckpointInfo *new_checkpoint(struct hd_arena *arena,
                                                  struct hd_link_report *report)
{
    Heddle__V1__CheckpointInfo *info = hd_arena_alloc(arena, sizeof *info);

    if (!info)
        return NULL;
    heddle__v1__checkpoint_info__init(info);
    info->attempt = (int32_t)report->attempt;
    info->step = report->checkpoint.step;
    info->path = make_utf8(report->checkpoint.path);
    info->manifest_hash = make_utf8(report->checkpoint.manifest_hash);
    info->time_unix_ms = report->wall_ms;
    info->size_bytes = report->checkpoint.bytes;
    set_val_loss(info, report->checkpoint.val_loss);
    return info;
}

static Heddle__V1__RankExit *new_exit(struct hd_arena *arena, struct hd_link_report *report)
{
    Heddle__V1__RankExit *rank_exit = hd_arena_alloc(arena, sizeof *rank_exit);

    if (!rank_exit)
        return NULL;
    heddle__v1__rank_exit__init(rank_exit);
    rank_exit->exit_code = (int32_t)report->exit.code;
    rank_exit->signal = (int32_t)report->exit.signal;
    rank_exit->message = make_utf8(report->exit.message);
    rank_exit->time_unix_ms = report->wall_ms;
    return rank_exit;
}

static const char *event_kind(int64_t level)
{
    switch ((enum hd_link_level)level) {
    case HD_LINK_LEVEL_HANG:
    case HD_LINK_LEVEL_STRAGGLER:
    case HD_LINK_LEVEL_GUARD:
    case HD_LINK_LEVEL_SAMPLE:
        return hd_link_level_name((enum hd_link_level)level);
    case HD_LINK_LEVEL_WARN:
        return "warning";
    case HD_LINK_LEVEL_ERROR:
        return "error";
    default:
        return "note";
    }
}

Heddle__V1__Report *convert_report(struct hd_arena *arena, const char *node,
                                   struct hd_link_report *report)
{
    Heddle__V1__Report *r = hd_arena_alloc(arena, sizeof *r);

    if (!r)
        return NULL;
    heddle__v1__report__init(r);
    r->job = (uint64_t)report->job;
    r->attempt = (int32_t)report->attempt;
    r->rank = (int32_t)report->rank;
    r->seq = (uint64_t)report->seq;
    switch (report->kind) {
    case HD_LINK_STEP:
        r->body_case = HEDDLE__V1__REPORT__BODY_STEP;
        r->step = new_step(arena, report);
        break;
    case HD_LINK_VALIDATION:
        r->body_case = HEDDLE__V1__REPORT__BODY_VALIDATION;
        r->validation = new_validation(arena, report);
        break;
    case HD_LINK_CHECKPOINT:
        r->body_case = HEDDLE__V1__REPORT__BODY_CHECKPOINT;
        r->checkpoint = new_checkpoint(arena, report);
        break;
    case HD_LINK_EXIT:
        r->body_case = HEDDLE__V1__REPORT__BODY_RANK_EXIT;
        r->rank_exit = new_exit(arena, report);
        break;
    case HD_LINK_EVENT:
        r->body_case = HEDDLE__V1__REPORT__BODY_EVENT;
        r->event =
            new_event(arena, node, report, event_kind(report->event.level), report->event.text);
        if (r->event && !isnan(report->event.about))
            r->event->rank = (int32_t)report->event.about;
        break;
    default:
        r->body_case = HEDDLE__V1__REPORT__BODY_EVENT;
        r->event = new_event(arena, node, report, "reports_left_out",
                             hd_arena_printf(arena,
                                             "%" PRId64 " step reports up to step %" PRId64
                                             " were left out: the disk was full, or the spool",
                                             report->gap.count, report->gap.last_step));
        break;
    }
    return hd_arena_failed(arena) ? NULL : r;
}

static Heddle__V1__EndCause end_cause(int64_t cause)
{
    static const Heddle__V1__EndCause causes[HD_LINK_CAUSE_COUNT] = {
#define X(code, name) [HD_LINK_CAUSE_##code] = HEDDLE__V1__END_CAUSE__END_CAUSE_##code,
        HD_LINK_CAUSES(X)
#undef X
    };

    return causes[cause];
}

Heddle__V1__EndReport *convert_end(struct hd_arena *arena, const char *node,
                                   struct hd_link_report *end)
{
    Heddle__V1__EndReport *e = hd_arena_alloc(arena, sizeof *e);

    if (!e)
        return NULL;
    heddle__v1__end_report__init(e);
    e->cause = end_cause(end->end.cause);
    e->rank = (int32_t)end->end.first_rank;
    e->node = end->end.cause == HD_LINK_CAUSE_COMPLETED ? (char *)"" : (char *)node;
    e->message = make_utf8(end->end.message);
    if (end->end.operation[0])
        e->message = hd_arena_printf(arena, "%s: %s", make_utf8(end->end.operation), e->message);
    e->exit_code = (int32_t)end->end.code;
    e->signal = (int32_t)end->end.signal;
    e->bad_input = end->end.bad_input != 0;
    e->echo = end->end.secondary != 0;
    return hd_arena_failed(arena) ? NULL : e;
}

/* Appends the precisions that a device supports: fp32 always; bf16 where it is faster than fp32,
 * which decides what precision `auto` means. */
static void add_precisions(struct hd_arena *arena, bool bf16, Heddle__V1__DeviceInfo *device)
{
    device->native_precisions = hd_arena_array(arena, 2, sizeof *device->native_precisions);
    if (!device->native_precisions)
        return;
    device->native_precisions[device->n_native_precisions++] =
        HEDDLE__V1__PRECISION__PRECISION_FP32;
    if (bf16)
        device->native_precisions[device->n_native_precisions++] =
            HEDDLE__V1__PRECISION__PRECISION_BF16;
}

static Heddle__V1__NodeIsolation *convert_isolation(struct hd_arena *arena,
                                                    const struct agent_isolation *isolation)
{
    Heddle__V1__NodeIsolation *m = hd_arena_alloc(arena, sizeof *m);

    if (!m)
        return NULL;
    heddle__v1__node_isolation__init(m);
    m->mode = (char *)isolation->mode;
    m->tier = (char *)isolation->tier;
    m->users = (char *)isolation->users;
    m->locks = isolation->locks.data ? convert_text_of(isolation->locks.data) : (char *)"";
    m->lacks = isolation->lacks.data ? convert_text_of(isolation->lacks.data) : (char *)"";
    return m;
}

static Heddle__V1__Epoch *convert_epoch(struct hd_arena *arena, const struct agent_epoch *epoch)
{
    Heddle__V1__Epoch *m = hd_arena_alloc(arena, sizeof *m);

    if (!m)
        return NULL;
    heddle__v1__epoch__init(m);
    m->number = epoch->number;
    m->instance = (char *)epoch->instance;
    m->place = (char *)epoch->place;
    m->progress = epoch->progress;
    m->proof.data = (uint8_t *)epoch->proof;
    m->proof.len = sizeof epoch->proof;
    m->cluster_id = (char *)epoch->cluster;
    return m;
}

Heddle__V1__Hello *convert_hello(struct hd_arena *arena, const struct agent_identity *identity)
{
    Heddle__V1__Hello *hello = hd_arena_alloc(arena, sizeof *hello);
    Heddle__V1__DeviceInfo *device;

    if (!hello)
        return NULL;
    heddle__v1__hello__init(hello);
    hello->protocol_min = AGENT_PROTOCOL_MIN;
    hello->protocol_max = AGENT_PROTOCOL_MAX;
    hello->build = (char *)hd_version_text;
    hello->node_uuid = (char *)identity->node_uuid;
    hello->boot_id = (char *)identity->boot_id;
    hello->instance_id = (char *)identity->instance_id;
    hello->node_name = (char *)identity->node_name;
    hello->data_address = (char *)identity->data_address;
    hello->compute = (char *)identity->compute;
    hello->compute_cuda = (char *)identity->devices->compute;
    hello->traits = (char *)identity->traits;
    hello->devices = hd_arena_array(arena, (size_t)identity->devices->count, sizeof device);
    for (int i = 0; hello->devices && i < identity->devices->count; i++) {
        const struct hd_device *d = &identity->devices->list[i];

        device = hd_arena_alloc(arena, sizeof *device);
        if (!device)
            return NULL;
        heddle__v1__device_info__init(device);
        device->index = d->number;
        device->kind = d->cuda ? HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA
                               : HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CPU;
        device->name = (char *)d->name;
        device->uuid = (char *)d->uuid;
        device->problem = hd_arena_strdup(arena, d->problem);
        if (!device->problem)
            return NULL;
        (void)make_utf8(device->problem);
        device->memory_bytes = d->memory_bytes;
        device->threads = d->threads;
        add_precisions(arena, d->bf16, device);
        hello->devices[hello->n_devices++] = device;
    }
    hello->host = (char *)identity->host;
    hello->probes = true;
    if (identity->epoch.number && !(hello->epoch = convert_epoch(arena, &identity->epoch)))
        return NULL;
    if (identity->isolation)
        hello->isolation = convert_isolation(arena, identity->isolation);
    if (identity->inventory && identity->inventory->taken_ms)
        hello->inventory = convert_inventory(arena, identity->inventory, identity->devices);
    return hd_arena_failed(arena) ? NULL : hello;
}

/* ---- checkpoints on disk ---- */

/* Returns the number at the end of a name ("step-00000100"); -1: none. */
static int64_t step_of(const char *name)
{
    const char *digits = name + strlen(name);
    int64_t step;

    while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    return digits > name && hd_text_to_int64(digits, 0, INT64_MAX, &step) == HD_OK ? step : -1;
}

/* Describes the checkpoint in a folder; NULL: the folder has no readable manifest, so it is no
 * complete checkpoint. */
static Heddle__V1__CheckpointInfo *is_expected_folder(struct hd_arena *arena, const char *path,
                                                      int64_t step, int64_t attempt)
{
    struct hd_ckpt_summary summary;
    Heddle__V1__CheckpointInfo *info =
        hd_ckpt_summarize(path, &summary) == HD_OK ? hd_arena_alloc(arena, sizeof *info) : NULL;

    if (!info)
        return NULL;
    heddle__v1__checkpoint_info__init(info);
    info->attempt = (int32_t)attempt;
    info->step = step;
    info->path = (char *)path;
    info->manifest_hash = hd_arena_strdup(arena, summary.hash);
    info->time_unix_ms = summary.time_ms;
    info->size_bytes = summary.size_bytes;
    set_val_loss(info, summary.val_loss);
    return info;
}

static int by_step(const void *a, const void *b)
{
    const int64_t x = (*(Heddle__V1__CheckpointInfo *const *)a)->step;
    const int64_t y = (*(Heddle__V1__CheckpointInfo *const *)b)->step;

    return (x > y) - (x < y);
}

void convert_checkpoints(struct hd_arena *arena, const char *checkpoint_dir, int64_t attempt,
                         Heddle__V1__ObservedAttempt *observed)
{
    DIR *d = opendir(checkpoint_dir);
    const struct dirent *entry;
    Heddle__V1__CheckpointInfo *info;

    if (!d)
        return;
    observed->checkpoints = hd_arena_array(arena, CHECKPOINTS_MAX, sizeof info);
    while (observed->checkpoints && observed->n_checkpoints < CHECKPOINTS_MAX &&
           (entry = readdir(d))) {
        const int64_t step = step_of(entry->d_name);
        const char *path = hd_arena_printf(arena, "%s/%s", checkpoint_dir, entry->d_name);

        info = step >= 0 && path && hd_text_is_utf8(path, strlen(path))
                   ? is_expected_folder(arena, path, step, attempt)
                   : NULL;
        if (info)
            observed->checkpoints[observed->n_checkpoints++] = info;
    }
    (void)closedir(d);
    if (observed->n_checkpoints)
        qsort(observed->checkpoints, observed->n_checkpoints, sizeof info, by_step);
}
