/* schedule: which queued job starts where, and why the others wait.
 *
 * Gang scheduling, first in, first out. Queued jobs are tried in the order of their numbers; a
 * restarted job keeps its number. A job starts when one placement gives it all its devices at once.
 * A job that would fit if the cluster were idle, but does not fit now, reserves nodes: later jobs
 * do not get them, so the job does not starve. A job that fits on no nodes reserves nothing.
 *
 * Of jobs that wait for the same (waiting.c) a pass looks at as many as start or reserve nodes, and
 * one more. A job that is submitted while nothing else changes is looked at alone: all others come
 * before it, and the newest pass has decided about them. core_schedule_check has the rule in its
 * simplest form.
 *
 * A job gets as many devices as it may use, on as few nodes as possible, and among those where the
 * fewest devices stay unused. On a node it takes the free devices with the lowest positions.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/core_internal.h"

enum { NODES_NAMED_MAX = 8 }; /* nodes that a reason names */

/* ---- what a job may use -----------------------------------------------------------------------*/

size_t core_kinds(const struct hd_job_needs *needs,
                  enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT])
{
    size_t count = 0;

    if (needs->device != HD_DEVICE_KIND_ANY) {
        ret_kinds[count++] = needs->device;
        return count;
    }
    ret_kinds[count++] = HD_DEVICE_KIND_CUDA;
    ret_kinds[count++] = HD_DEVICE_KIND_CPU;
    return count;
}

int32_t core_devices_needed(const struct hd_job_needs *needs, enum hd_device_kind kind)
{
    struct hd_plan_record plan;

    for (int32_t count = needs->devices_min; count <= needs->devices_max; count++) {
        if (core_plan(needs, kind, count, &plan))
            return count;
    }
    return 0;
}

enum hd_status core_check_needs(const struct hd_job_needs *needs)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    struct hd_plan_record plan;
    size_t count = core_kinds(needs, kinds);

    if (needs->devices_min < 1 || needs->devices_max < needs->devices_min ||
        needs->devices_max > HD_CTL_WORLD_MAX)
        return hd_err(HD_INVALID, "resources.devices: needs 1 <= min (%d) <= max (%d) <= %d",
                      needs->devices_min, needs->devices_max, HD_CTL_WORLD_MAX);
    for (size_t i = 0; i < count; i++) {
        if (core_devices_needed(needs, kinds[i]))
            return HD_OK;
    }
    return hd_core_plan(needs, kinds[count - 1], needs->devices_max, &plan);
}

int32_t core_pick_count(const struct hd_job_needs *needs, enum hd_device_kind kind,
                        int32_t available, struct hd_plan_record *ret_plan)
{
    int32_t count = available < needs->devices_max ? available : needs->devices_max;

    for (; count >= needs->devices_min; count--) {
        if (core_plan(needs, kind, count, ret_plan))
            return count;
    }
    return 0;
}

int32_t core_whole_groups(const struct hd_job_needs *needs, int32_t devices)
{
    return devices - devices % hd_plan_unit(&needs->wish);
}

/* ---- nodes ------------------------------------------------------------------------------------*/

int32_t core_count_devices(const struct hd_job_needs *needs, const struct core_node *node,
                           enum hd_device_kind kind, bool free_only)
{
    int32_t count = 0;

    for (int32_t i = 0; i < node->rec.device_count; i++)
        count += node->rec.devices[i].kind == kind && core_device_works(node, i) &&
                 core_device_suits(needs, node, i) && !(free_only && node->holds[i].job);
    return count;
}

/* Devices that have a problem; *ret_problem is that of the first, and unchanged if there is none.
 */
static int32_t count_unusable(const struct core_node *node, enum hd_device_kind kind,
                              const char **ret_problem)
{
    int32_t count = 0;

    for (int32_t i = node->rec.device_count - 1; i >= 0; i--) {
        if (node->rec.devices[i].kind != kind || core_device_works(node, i))
            continue;
        count++;
        *ret_problem = node->rec.devices[i].problem;
    }
    return count;
}

/* The node can read the base checkpoint: it wrote it, or both see the jobs directory. */
static bool can_read_base(const struct hd_checkpoint_record *base, const struct core_node *node)
{
    return !base || core_same(base->node_uuid, node->rec.uuid) ||
           (base->shared && node->jobs_dir_visible);
}

bool core_node_may_come_back(const struct core_node *node)
{
    return !node->rec.retired && !node->rec.drain && node->rec.state != HD_NODE_STATE_LOST;
}

/* Several nodes are possible: all can read the base. */
static bool may_span(const struct hd_checkpoint_record *base)
{
    return !base || base->shared;
}

/* The best placement on one node with the devices that are free now. */
static void find_node(struct hd_core *core, const struct hd_job_needs *needs,
                      const struct hd_checkpoint_record *base, enum hd_device_kind kind,
                      struct core_placement *ret_best)
{
    struct core_placement best = {0};
    struct core_member member = {0};

    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        struct core_placement place = {.member_count = 1};
        int32_t available;

        if (!core_node_usable(node) || node->reserved_by || !can_read_base(base, node))
            continue;
        available = core_count_devices(needs, node, kind, true);
        place.device_count = core_pick_count(needs, kind, available, &place.plan);
        place.unused_count = available - place.device_count;
        if (place.device_count > best.device_count ||
            (place.device_count && place.device_count == best.device_count &&
             place.unused_count < best.unused_count)) {
            best = place;
            member = (struct core_member){.node = node, .index = i, .count = place.device_count};
        }
    }
    if (!best.device_count)
        return;
    best.members = malloc(sizeof *best.members);
    if (!best.members) {
        core->no_memory = true;
        return;
    }
    best.members[0] = member;
    *ret_best = best;
}

/* The best placement with the devices that are free now; the caller frees its members. */
static struct core_placement find_place(struct hd_core *core, const struct hd_job_needs *needs,
                                        const struct hd_checkpoint_record *base)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(needs, kinds);
    struct core_placement best = {0};

    for (size_t k = 0; k < kind_count && !best.device_count; k++) {
        find_node(core, needs, base, kinds[k], &best);
        if (best.device_count < needs->devices_max && may_span(base))
            core_gang_find(core, needs, kinds[k], &best);
    }
    return best;
}

/* A node on which the job would fit if the node were idle; preferably usable, then with the most
 * free devices. *ret_blocking_job: a job that has reserved such a node; 0: none. */
static struct core_node *find_node_to_reserve(struct hd_core *core,
                                              const struct hd_job_needs *needs,
                                              const struct hd_checkpoint_record *base,
                                              uint64_t *ret_blocking_job)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(needs, kinds);
    struct core_node *best = NULL;
    int32_t best_free = -1;

    *ret_blocking_job = 0;
    for (size_t k = 0; k < kind_count; k++) {
        for (size_t i = 0; i < core->node_count; i++) {
            struct core_node *node = core->nodes[i];
            struct hd_plan_record plan;
            int32_t free_now =
                core_node_usable(node) ? core_count_devices(needs, node, kinds[k], true) : -1;

            if (!core_node_may_come_back(node) || !can_read_base(base, node) ||
                !core_pick_count(needs, kinds[k], core_count_devices(needs, node, kinds[k], false),
                                 &plan))
                continue;
            if (node->reserved_by) {
                *ret_blocking_job = *ret_blocking_job ? *ret_blocking_job : node->reserved_by;
            } else if (!best || free_now > best_free) {
                best = node;
                best_free = free_now;
            }
        }
    }
    return best;
}

/* ---- the scheduling pass ----------------------------------------------------------------------*/

/* Reserves nodes for a job that does not fit now; false: there are none that could be reserved. */
static bool reserve_nodes(struct hd_core *core, struct core_job *job,
                          const struct hd_checkpoint_record *base)
{
    struct core_node *node = find_node_to_reserve(core, &job->needs, base, &job->wait_job);
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(&job->needs, kinds);
    bool reserved = node != NULL;

    if (node)
        node->reserved_by = job->rec.job;
    for (size_t k = 0; k < kind_count && !reserved; k++)
        reserved = may_span(base) &&
                   core_gang_reserve(core, &job->needs, kinds[k], job->rec.job, &job->wait_job);
    if (reserved)
        job->wait = CORE_WAIT_BUSY;
    else
        job->wait = job->wait_job ? CORE_WAIT_RESERVED : CORE_WAIT_NEVER;
    return reserved;
}

static void close_class(struct hd_core *core, const struct core_job *job)
{
    job->class->closed_in = core->pass;
    job->class->wait = job->wait;
    job->class->wait_job = job->wait_job;
}

/* Starts the job or keeps nodes free for it. Where neither is possible its class is closed for this
 * pass: free devices only get fewer in a pass and kept nodes only more, so that no other job of the
 * class would fare better. */
static void look_at(struct hd_core *core, struct core_job *job)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);
    struct core_placement place;
    struct hd_text why = {0};
    int64_t memory_bytes;

    core->out->looked++;
    job->looked_in = core->pass;
    job->wait = CORE_WAIT_NONE;
    job->wait_job = 0;
    place = find_place(core, &job->needs, base);
    while (place.device_count &&
           !core_choose_layout(core, &job->needs, job->rec.spec, job->rec.spec_bytes, &place,
                               &memory_bytes, &why)) {
        const bool waits = core_take_misfit(core, job, place.device_count, memory_bytes,
                                            why.failed || !why.data ? "" : why.data);

        free(place.members);
        hd_text_clear(&why);
        place = waits ? find_place(core, &job->needs, base) : (struct core_placement){0};
    }
    if (place.device_count)
        core_attempt_start(core, job, &place, why.failed || !why.data ? "" : why.data);
    else if (job->class && !reserve_nodes(core, job, base))
        close_class(core, job);
    core->no_memory |= why.failed;
    hd_text_free(&why);
    free(place.members);
}

/* All jobs of open classes in the order of their numbers: the classes' next jobs, merged. The value
 * of an item is the class, its key the number of that job. */
static void pass_over_classes(struct hd_core *core)
{
    struct core_heap next = {0};

    core->pass++;
    for (size_t i = 0; i < core->node_count; i++)
        core->nodes[i]->reserved_by = 0;
    for (size_t i = 0; i < core->class_count; i++) {
        struct core_class *class = core->classes[i];

        if (class->first)
            core_heap_put(core, &next, class->first->rec.job, (uint64_t)(uintptr_t) class);
    }
    while (next.count) {
        struct core_class *class = (struct core_class *)(uintptr_t)next.items[0].value;
        struct core_job *job = core_find_job(core, next.items[0].key), *after = job->after;

        core_heap_take(&next);
        look_at(core, job);
        if (after && class->closed_in != core->pass)
            core_heap_put(core, &next, after->rec.job, (uint64_t)(uintptr_t) class);
    }
    free(next.items);
}

void core_schedule(struct hd_core *core)
{
    struct core_job *newcomer = core->newcomer;

    core->newcomer = NULL;
    if (core->schedule_due || (newcomer && (core->unsettled || core_waiting_due(core)))) {
        core->schedule_due = core->unsettled = false;
        core_waiting_release(core);
        pass_over_classes(core);
    } else if (newcomer && newcomer->class && newcomer->class->closed_in != core->pass) {
        /* what the newest pass decided of the others stands: none of them would start now */
        look_at(core, newcomer);
    }
    core_waiting_sweep(core);
}

/* A look at one job that decides nothing but which nodes are kept. */
static bool would_start(struct hd_core *core, const struct core_job *job)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);
    struct core_placement place = find_place(core, &job->needs, base);
    struct core_job copy = *job;

    copy.wait_job = 0;
    if (!place.device_count)
        (void)reserve_nodes(core, &copy, base);
    free(place.members);
    return place.device_count > 0;
}

/* The nodes' own marks are changed on the way and put back. */
static enum hd_status look_at_each(struct hd_core *core, uint64_t *kept)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < core->node_count; i++) {
        kept[i] = core->nodes[i]->reserved_by;
        core->nodes[i]->reserved_by = 0;
    }
    for (uint64_t number = 1; number <= core->last_job && !st; number++) {
        const struct core_job *job = core_find_job(core, number);

        if (job && job->class && would_start(core, job))
            st = hd_err(HD_INTERNAL, "I13: job %" PRIu64 " waits and could start", number);
    }
    for (size_t i = 0; i < core->node_count; i++) {
        const uint64_t due = core->nodes[i]->reserved_by;

        core->nodes[i]->reserved_by = kept[i];
        if (!st && due != kept[i])
            st = hd_err(HD_INTERNAL,
                        "I13: %s is reserved for job %" PRIu64 " and not for job %" PRIu64,
                        core->nodes[i]->rec.name, kept[i], due);
    }
    return st;
}

enum hd_status core_schedule_check(const struct hd_core *core)
{
    uint64_t *kept;
    enum hd_status st;

    if (core->schedule_due || core->unsettled)
        return HD_OK; /* the next pass will look */
    kept = calloc(core->node_count + 1, sizeof *kept);
    if (!kept)
        return hd_err(HD_NO_MEMORY, "no memory for a check");
    st = look_at_each((struct hd_core *)(uintptr_t)core, kept);
    free(kept);
    return st;
}

/* ---- reasons ----------------------------------------------------------------------------------*/

/* Some node has devices of this kind, whether free, held or with a problem. */
static bool has_kind(const struct hd_core *core, enum hd_device_kind kind)
{
    const char *problem;

    for (size_t i = 0; i < hd_core_node_count(core); i++)
        if (core_count_devices(NULL, core->nodes[i], kind, false) ||
            count_unusable(core->nodes[i], kind, &problem))
            return true;
    return false;
}

/* The kinds that a reason names: for `auto`, the last one and those that some node has. */
static size_t kinds_to_show(const struct hd_core *core, const struct hd_job_needs *needs,
                            enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT])
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(needs, kinds), count = 0;

    for (size_t k = 0; k < kind_count; k++)
        if (k == kind_count - 1 || has_kind(core, kinds[k]))
            ret_kinds[count++] = kinds[k];
    return count;
}

static void add_need(const struct hd_core *core, const struct hd_job_needs *needs,
                     const struct hd_checkpoint_record *base, struct hd_text *text)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = kinds_to_show(core, needs, kinds);
    char bytes[32];

    for (size_t k = 0; k < kind_count; k++) {
        int32_t need = core_devices_needed(needs, kinds[k]);

        hd_text_add(text, "%s%d %s device%s", k ? " or " : "needs ", need,
                    hd_device_kind_name((int)kinds[k]), need == 1 ? "" : "s");
        if (needs->memory_min) {
            hd_text_format_bytes(needs->memory_min - 1, bytes);
            hd_text_add(text, " with more than %s", bytes);
        }
    }
    if (!may_span(base)) {
        if (core_devices_needed(needs, kinds[kind_count - 1]) > 1)
            hd_text_add(text, " on one node");
    } else if (hd_plan_unit(&needs->wish) > 1) {
        hd_text_add(text, ", on each node a multiple of parallel.tp = %d",
                    (int)needs->wish.sizes.tp);
    }
}

static void add_misfit(const struct hd_job_needs *needs, const char *why, struct hd_text *text)
{
    hd_text_add(text, "; %s: %s", needs->memory_min ? "less is too little" : "fewer are too few",
                why);
}

/* "n1 has 1 of 2 free", "n2 is draining: disk", "n3 has 1" */
static void add_node(const struct hd_core *core, const struct hd_job_needs *needs,
                     const struct core_node *node, struct hd_now now, struct hd_text *text)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(needs, kinds);
    int32_t all = 0, free_now = 0, broken = 0;
    const char *problem = "";

    hd_text_add(text, "%s ", node->rec.name);
    if (!core_node_usable(node)) {
        core_node_reason(node, now, text);
        return;
    }
    for (size_t k = 0; k < kind_count; k++) {
        all += core_count_devices(needs, node, kinds[k], false);
        free_now += core_count_devices(needs, node, kinds[k], true);
        broken += count_unusable(node, kinds[k], &problem);
    }
    if (free_now == all)
        hd_text_add(text, "has %d", all);
    else
        hd_text_add(text, "has %d of %d free", free_now, all);
    if (broken)
        hd_text_add(text, " (%d cannot be used: %s)", broken, problem);
    if (core_whole_groups(needs, free_now) != free_now)
        hd_text_add(text, " (%d in whole tp groups)", core_whole_groups(needs, free_now));
    if (node->reserved_by)
        hd_text_add(text, " (reserved for job %" PRIu64 ")", node->reserved_by);
    if (all < needs->devices_min)
        core_gang_obstacle(core, node, kinds[kind_count - 1], text);
}

static void add_nodes(const struct hd_core *core, const struct hd_job_needs *needs,
                      struct hd_now now, struct hd_text *text)
{
    const size_t count = hd_core_node_count(core);

    if (!count) {
        hd_text_add(text, "; no node has joined yet (start heddled on one)");
        return;
    }
    if (needs->device != HD_DEVICE_KIND_ANY && !has_kind(core, needs->device)) {
        hd_text_add(text, "; no node has a %s device", hd_device_kind_name((int)needs->device));
        if (needs->device == HD_DEVICE_KIND_CUDA)
            hd_text_add(text, " (heddled --doctor on a node with GPUs says why)");
        return;
    }
    for (size_t i = 0; i < count && i < NODES_NAMED_MAX; i++) {
        hd_text_add(text, i ? ", " : "; ");
        add_node(core, needs, core->nodes[i], now, text);
    }
    if (count > NODES_NAMED_MAX)
        hd_text_add(text, " and %zu more nodes", count - NODES_NAMED_MAX);
}

static void add_base(const struct hd_core *core, const struct hd_checkpoint_record *base,
                     struct hd_text *text)
{
    const struct core_node *node = base ? core_find_node(core, base->node_uuid) : NULL;

    if (base && !base->shared)
        hd_text_add(text, "; its checkpoint of step %lld is on %s only", (long long)base->step,
                    node ? node->rec.name : "a node that is unknown now");
}

static void add_last_end(const struct core_job *job, struct hd_text *text)
{
    const struct core_attempt *newest = core_newest(job);

    if (newest)
        hd_text_add(text, "attempt %d ended (%s%s%s); ", newest->rec.attempt,
                    hd_end_cause_name((int)newest->rec.end.cause),
                    newest->rec.end.node && *newest->rec.end.node ? " on " : "",
                    newest->rec.end.node ? newest->rec.end.node : "");
}

/* What is wrong with an attempt that has not ended: its nodes, then what these say. The text stays
 * the same while nothing changes. */
static void explain_running(const struct core_job *job, struct hd_text *text)
{
    const struct core_attempt *attempt = core_active(job);

    for (size_t i = 0; attempt && i < attempt->share_count; i++) {
        const struct core_share *share = &attempt->shares[i];
        const struct core_node *node = share->node;
        const char *problem = share->problem ? share->problem : "";
        char since[HD_CLOCK_TEXT_MAX];

        if (share->ended)
            continue;
        if (node->rec.state == HD_NODE_STATE_UNREACHABLE) {
            hd_clock_format_utc(node->rec.seen_ms, since);
            hd_text_add(text,
                        "%snode %s has been silent since %s; its ranks may be training; it counts "
                        "as lost after %lld s",
                        text->len_bytes ? "; " : "", node->rec.name, since,
                        (long long)(node->lost_after_ms / 1000));
        } else if (*problem) {
            hd_text_add(text, "%s%s: %s", text->len_bytes ? "; " : "", node->rec.name, problem);
        }
    }
}

void hd_core_explain(const struct hd_core *core, uint64_t number, struct hd_now now,
                     struct hd_text *ret_reason)
{
    const struct core_job *job = core_find_job(core, number);
    uint64_t behind = 0;
    int64_t left_ms;

    if (job && !job->ended && job->rec.state != HD_JOB_STATE_QUEUED)
        explain_running(job, ret_reason);
    if (!job || job->rec.state != HD_JOB_STATE_QUEUED)
        return;
    add_last_end(job, ret_reason);
    switch (core_wait_of(core, job, &behind)) {
    case CORE_WAIT_DELAY:
        left_ms = job->not_before_mono_ms - now.mono_ms;
        hd_text_add(ret_reason, "will be retried in %lld s",
                    (long long)(left_ms > 0 ? (left_ms + 999) / 1000 : 0));
        return;
    case CORE_WAIT_SEARCH:
        hd_text_add(ret_reason, "looking for checkpoints that the lost node has written");
        return;
    case CORE_WAIT_RESERVED:
        hd_text_add(ret_reason, "waits behind job %" PRIu64 "; ", behind);
        break;
    case CORE_WAIT_NEVER:
    case CORE_WAIT_BUSY:
    case CORE_WAIT_NONE:
        break;
    }
    add_need(core, &job->needs, core_checkpoint_newest(job), ret_reason);
    add_base(core, core_checkpoint_newest(job), ret_reason);
    add_nodes(core, &job->needs, now, ret_reason);
    if (job->misfit)
        add_misfit(&job->needs, job->misfit, ret_reason);
}

enum hd_status hd_core_explain_needs(const struct hd_core *core, const struct hd_job_needs *needs,
                                     const void *spec, size_t spec_bytes, struct hd_now now,
                                     bool *ret_fits_now, struct hd_text *ret_reason)
{
    enum hd_status st = core_check_needs(needs);
    struct hd_job_needs more = *needs;
    struct hd_text misfit = {0};
    int32_t devices;

    if (st)
        return st;
    do {
        struct core_placement place = find_place((struct hd_core *)(uintptr_t)core, &more, NULL);
        int64_t memory_bytes;

        devices = place.device_count;
        hd_text_clear(ret_reason);
        *ret_fits_now = devices && core_choose_layout(core, &more, spec, spec_bytes, &place,
                                                      &memory_bytes, ret_reason);
        free(place.members);
        if (*ret_fits_now)
            break;
        if (devices && !core_need_more(core, devices, memory_bytes, &more))
            st = hd_err(HD_INVALID, "%s", ret_reason->data ? ret_reason->data : "");
        if (devices) {
            hd_text_clear(&misfit);
            hd_text_add(&misfit, "%s", ret_reason->data ? ret_reason->data : "");
        }
    } while (devices && !st);
    if (!st && !*ret_fits_now) {
        add_need(core, &more, NULL, ret_reason);
        add_nodes(core, &more, now, ret_reason);
        if (misfit.len_bytes)
            add_misfit(&more, misfit.data, ret_reason);
    }
    hd_text_free(&misfit);
    return st;
}
