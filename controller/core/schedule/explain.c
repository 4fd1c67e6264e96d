/* explain: why queued jobs wait, and what is wrong with running ones. The sentences are in
 * wait_reasons.c. */
#include <stdlib.h>

#include "controller/core/schedule/schedule.h"
#include "controller/core/state/texts.h"

enum { NODES_NAMED_MAX = 8 }; /* most nodes that a reason names */

/* Returns how many devices of the kind on the node have a problem; sets *ret_problem to the problem
 * of the first one, and leaves it unchanged if there is none. */
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

/* Returns whether any node has devices of this kind: free, held or with a problem. */
static bool cluster_has_kind(const struct hd_core *core, enum hd_device_kind kind)
{
    const char *problem;

    for (size_t i = 0; i < hd_core_node_count(core); i++)
        if (core_count_devices(NULL, core->nodes[i], kind, false) ||
            count_unusable(core->nodes[i], kind, &problem))
            return true;
    return false;
}

/* Lists the device kinds that a reason names: those that some node has, and for `auto` always the
 * last one. */
static size_t kinds_to_show(const struct hd_core *core, const struct hd_job_needs *needs,
                            enum hd_device_kind ret_kinds[HD_DEVICE_KIND_COUNT])
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(needs, kinds), count = 0;

    for (size_t k = 0; k < kind_count; k++)
        if (k == kind_count - 1 || cluster_has_kind(core, kinds[k]))
            ret_kinds[count++] = kinds[k];
    return count;
}

static struct core_need need_of(const struct hd_core *core, const struct hd_job_needs *needs,
                                const struct hd_checkpoint_record *base)
{
    struct core_need need = {.memory_min = needs->memory_min};

    need.kind_count = kinds_to_show(core, needs, need.kinds);
    for (size_t k = 0; k < need.kind_count; k++)
        need.devices[k] = core_devices_needed(needs, need.kinds[k]);
    if (!core_may_span(base))
        need.on_one_node = need.devices[need.kind_count - 1] > 1;
    else if (hd_plan_unit(&needs->wish) > 1)
        need.multiple_of = (int32_t)needs->wish.sizes.tp;
    return need;
}

static void add_need(const struct hd_core *core, const struct hd_job_needs *needs,
                     const struct hd_checkpoint_record *base, struct hd_text *text)
{
    const struct core_need need = need_of(core, needs, base);

    core_add_need(&need, text);
}

/* Appends why the nodes that are known can never run the job; nothing if they can. */
static void add_never_fits(const struct hd_core *core, const struct hd_job_needs *needs,
                           struct hd_text *text)
{
    const struct core_need need = need_of(core, needs, NULL);
    int64_t all[HD_DEVICE_KIND_COUNT] = {0};
    int32_t biggest[HD_DEVICE_KIND_COUNT] = {0};

    for (size_t i = 0; i < core->node_count; i++) {
        const struct hd_node_record *node = &core->nodes[i]->rec;

        for (size_t k = 0; k < need.kind_count; k++) {
            int32_t count = 0;

            for (int32_t d = 0; d < node->device_count; d++)
                count += node->devices[d].kind == need.kinds[k] &&
                         core_device_suits(needs, core->nodes[i], d);
            if (node->retired || node->state == HD_NODE_STATE_LOST)
                count = 0;
            if (need.multiple_of)
                count -= count % need.multiple_of;
            all[k] += count;
            biggest[k] = count > biggest[k] ? count : biggest[k];
        }
    }
    for (size_t k = 0; k < need.kind_count; k++)
        if (need.devices[k] && need.devices[k] <= all[k])
            return;
    core_add_need(&need, text);
    if (hd_core_node_count(core))
        core_add_capacity(&need, all, biggest, text);
    else
        core_add_no_node(text);
}

/* Appends a node's state to a reason, such as "n1 has 1 of 2 free", "n2 is draining: disk", "n3 has
 * 1". */
static void add_node(const struct hd_core *core, const struct hd_job_needs *needs, uint64_t job,
                     const struct core_node *node, struct hd_now now, struct hd_text *text)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    size_t kind_count = core_kinds(needs, kinds);
    struct core_node_offer offer = {.kind = kinds[kind_count - 1]};
    const struct core_job *asked = job ? core_find_job(core, job) : NULL;

    hd_text_add(text, "%s ", node->rec.name);
    if (!core_node_usable(node)) {
        core_node_reason(node, now, text);
        return;
    }
    for (size_t k = 0; k < kind_count; k++) {
        offer.all += core_count_devices(needs, node, kinds[k], false);
        offer.free += core_count_devices(needs, node, kinds[k], true);
        offer.broken += count_unusable(node, kinds[k], &offer.problem);
    }
    offer.in_groups = core_whole_groups(needs, offer.free);
    offer.reservation = core_reservation_of(core, node);
    offer.reserved_for_it = asked && core_is_reserved_for(asked, core_reserved_by(core, node));
    if (offer.all < needs->devices_min)
        offer.obstacle = core_find_gang_obstacle(core, node, offer.kind);
    core_add_offer(node, &offer, text);
}

static void add_nodes(const struct hd_core *core, const struct hd_job_needs *needs, uint64_t job,
                      struct hd_now now, struct hd_text *text)
{
    const size_t count = hd_core_node_count(core);

    if (!count) {
        core_add_no_node(text);
        return;
    }
    if (needs->device != HD_DEVICE_KIND_ANY && !cluster_has_kind(core, needs->device)) {
        core_add_no_device(needs->device, text);
        return;
    }
    for (size_t i = 0; i < count && i < NODES_NAMED_MAX; i++) {
        hd_text_add(text, i ? ", " : "; ");
        add_node(core, needs, job, core->nodes[i], now, text);
    }
    if (count > NODES_NAMED_MAX)
        hd_text_add(text, " and %zu more nodes", count - NODES_NAMED_MAX);
}

static void add_after(const struct hd_core *core, const struct core_job *job, struct hd_text *text)
{
    struct core_job_list jobs = {0};

    for (int32_t i = 0; i < job->needs.after_count; i++)
        if (core_outcome_of(core, job->needs.after[i]) != HD_JOB_STATE_SUCCEEDED)
            core_job_list_add(&jobs, job->needs.after[i]);
    core_add_after(&jobs, text);
    hd_text_free(&jobs.numbers);
}

static void add_quota(const struct core_job *job, struct hd_text *text)
{
    const struct hd_queue_record *queue = &job->account->queue->rec;
    struct core_quota_reason reason = {0};
    int32_t limit = queue->devices_max; /* jobs beyond the limit are refused at submission, but the
                                         * limit may have been lowered since */

    if (queue->closed) {
        core_add_closed(job->account->queue, text);
        return;
    }
    (void)core_quota_left(job->account, &reason.by_user);
    if (!limit || limit >= job->needs.devices_min)
        limit = queue->user_devices_max;
    if (limit < job->needs.devices_min)
        reason.too_small = limit;
    core_add_quota(job, &reason, text);
}

/* Returns whether the node because of which the attempt stops is still drained, or its daemon still
 * exiting. */
static bool still_leaves(const struct core_attempt *attempt)
{
    for (size_t i = 0; i < attempt->alloc_count; i++)
        if (attempt->allocs[i].node->rec.drain || attempt->allocs[i].node->leaves)
            return true;
    return false;
}

/* Returns why an attempt stops; NONE: it does not. */
static enum core_stop_reason find_stop(const struct hd_core *core, const struct core_job *job)
{
    const struct core_attempt *attempt = core_active(job);
    const bool is_asked = core_is_being_preempted(job) && attempt->rec.stop_job;
    const struct core_job *by = is_asked ? core_find_job(core, attempt->rec.stop_job) : NULL;

    if (!attempt || attempt->rec.state != HD_ATTEMPT_STATE_STOPPING)
        return CORE_STOP_NONE;
    if (by && by->rec.state != HD_JOB_STATE_QUEUED)
        return CORE_STOP_NO_LONGER_NEEDED;
    if (by && by->rec.held)
        return CORE_STOP_FOR_HELD_JOB;
    if (job->migration_group && !job->rec.held)
        return CORE_STOP_MOVES;
    if (is_asked)
        return CORE_STOP_PREEMPTED;
    if (core_is_being_preempted(job))
        return still_leaves(attempt) ? CORE_STOP_LEAVES_NODE : CORE_STOP_NEED_NOT_LEAVE;
    if (attempt->rec.stop_cause == HD_END_CAUSE_TIME_LIMIT)
        return CORE_STOP_TIME_LIMIT;
    if (attempt->rec.stop_cause == HD_END_CAUSE_RESIZED)
        return CORE_STOP_RESIZED;
    return (attempt->rec.stop_cause == HD_END_CAUSE_USER || job->rec.cancel) && !job->rec.cancel_now
               ? CORE_STOP_USER
               : CORE_STOP_NONE;
}

/* Appends why a live attempt stops, then problems of its nodes. The text stays the same while
 * nothing changes. */
static void explain_running(const struct hd_core *core, const struct core_job *job,
                            struct hd_text *text)
{
    const struct core_attempt *attempt = core_active(job);

    core_add_stop(core, find_stop(core, job), attempt ? attempt->rec.stop_job : 0, text);
    for (size_t i = 0; attempt && i < attempt->alloc_count; i++) {
        const struct core_node_alloc *alloc = &attempt->allocs[i];

        if (alloc->ended)
            continue;
        if (alloc->node->rec.state == HD_NODE_STATE_UNREACHABLE)
            core_add_silent_node(alloc->node, core_node_has_come(alloc->node),
                                 core_node_lost_at_ms(core, alloc->node), text);
        else if (alloc->problem && *alloc->problem)
            core_add_node_problem(alloc, text);
    }
}

/* Appends why a queued job waits. */
static void explain_wait(const struct hd_core *core, const struct core_job *job, struct hd_now now,
                         struct hd_text *text)
{
    const struct hd_checkpoint_record *base = core_checkpoint_newest(job);
    struct core_wait_reason reason = {.lacks_checkpoint = core_lacks_checkpoint(job),
                                      .is_thrashing = core_is_thrashing(job),
                                      .left_ms = job->not_before_mono_ms - now.mono_ms};

    reason.wait = core_wait_of(core, job, &reason.behind);
    reason.array_open = job->array ? core_array_open(job->array) : 0;
    core_add_wait(core, job, &reason, text);
    if (reason.wait == CORE_WAIT_AFTER)
        add_after(core, job, text);
    if (reason.wait == CORE_WAIT_QUOTA)
        add_quota(job, text);
    if (reason.wait != CORE_WAIT_NONE && reason.wait < CORE_WAIT_BUSY)
        return;
    if (job->is_preemptor)
        core_add_preempting(text);
    add_need(core, &job->needs, base, text);
    if (base && !base->shared)
        core_add_base(base, core_find_node(core, base->node_uuid), text);
    add_nodes(core, &job->needs, job->rec.job, now, text);
    if (job->infeasible)
        core_add_infeasible(&job->needs, job->infeasible, text);
    core_add_avoided(job, text);
    if (job->choice.taken && job->wait == CORE_WAIT_BUSY) {
        hd_text_add(text, "; ");
        core_add_choice(core, &job->choice, true, text);
    }
}

void hd_core_explain(const struct hd_core *core, uint64_t number, struct hd_now now,
                     struct hd_text *ret_reason)
{
    const struct core_job *job = core_find_job(core, number);

    if (job && job->rec.state == HD_JOB_STATE_QUEUED)
        explain_wait(core, job, now, ret_reason);
    else if (job && !job->ended)
        explain_running(core, job, ret_reason);
}

const struct hd_core_choice *hd_core_choice_of(const struct hd_core *core, uint64_t number)
{
    const struct core_job *job = core_find_job(core, number);
    uint64_t behind;

    return job && job->rec.state == HD_JOB_STATE_QUEUED &&
                   core_wait_of(core, job, &behind) == CORE_WAIT_BETTER
               ? &job->choice
               : NULL;
}

/* ---- blockers ---------------------------------------------------------------------------------*/

#define X(name, word, meaning) word,
static const char *const blocker_words[] = {HD_CORE_WAIT_LIST(X)};
#undef X
#define X(name, word, meaning) meaning,
static const char *const blocker_meanings[] = {HD_CORE_WAIT_LIST(X)};
#undef X

const char *hd_core_blocker_word(enum hd_core_blocker blocker)
{
    return blocker_words[blocker];
}

const char *hd_core_blocker_meaning(enum hd_core_blocker blocker)
{
    return blocker_meanings[blocker];
}

/* Finds out, once per pass, why the jobs of this job's class wait: devices that suit them are held, or on
 * nodes that accept no jobs (is_held, is_away); and whether they would fit if disconnected nodes returned
 * (one_would_do, all_would_do). Returns the class; NULL: no pass has evaluated the job yet. */
static const struct core_class *seek_nodes(const struct hd_core *core, const struct core_job *job)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(&job->needs, kinds);
    struct core_class *class = job->group ? job->group->key.class : NULL;
    int64_t all[HD_DEVICE_KIND_COUNT] = {0}, away[HD_DEVICE_KIND_COUNT] = {0};
    int32_t need[HD_DEVICE_KIND_COUNT];

    if (!class || class->sought_in == core->pass)
        return class;
    class->sought_in = core->pass;
    class->is_held = class->is_away = class->one_would_do = class->all_would_do = false;
    for (size_t k = 0; k < kind_count; k++)
        need[k] = core_devices_needed(&job->needs, kinds[k]);
    for (size_t i = 0; i < hd_core_node_count(core); i++) {
        const struct core_node *node = core->nodes[i];
        const bool absent = !core_node_usable(node);
        int32_t has = 0, free_now = 0;

        for (size_t k = 0; k < kind_count; k++) {
            const int32_t count = core_count_devices(&job->needs, node, kinds[k], false);
            const int32_t groups = core_whole_groups(&job->needs, count);

            has += count;
            free_now += core_count_devices(&job->needs, node, kinds[k], true);
            if (!need[k] || node->rec.drain || (absent && !core_node_may_come_back(node)))
                continue;
            all[k] += groups;
            away[k] += absent ? groups : 0;
            class->one_would_do |= absent && groups >= need[k];
        }
        if (has && (absent || (core_is_spare(core, node) && !class->key.hot_spares)))
            class->is_away = true;
        else if (free_now < has)
            class->is_held = true;
    }
    for (size_t k = 0; k < kind_count; k++)
        class->all_would_do |= away[k] && all[k] >= need[k];
    return class;
}

/* Returns whether a job is kept queued by nodes that accept no jobs (held false) or by devices that
 * jobs hold (held true); at least one of the two is true. */
static bool waits_for_nodes(const struct hd_core *core, const struct core_job *job, bool held)
{
    const struct core_class *class = seek_nodes(core, job);

    if (!class)
        return held;
    return held ? class->is_held || !class->is_away : class->is_away;
}

static bool awaits_absent_nodes(const struct hd_core *core, const struct core_job *job)
{
    const struct core_class *class = seek_nodes(core, job);

    return class && (class->one_would_do ||
                     (class->all_would_do && core_may_span(core_checkpoint_newest(job))));
}

/* Returns whether the controller, or a node that would otherwise accept jobs, lacks the jobs
 * directory. */
static bool lacks_jobs_dir(const struct hd_core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        if (core->nodes[i]->lacks_jobs_dir && !core->nodes[i]->rec.retired &&
            core->nodes[i]->synced)
            return true;
    return core->jobs_dir_problem && *core->jobs_dir_problem;
}

size_t hd_core_blockers(const struct hd_core *core, uint64_t number,
                        enum hd_core_blocker ret_blockers[HD_CORE_BLOCKERS_MAX])
{
    const struct core_job *job = core_find_job(core, number);
    bool is[HD_CORE_BLOCKERS_MAX] = {false}, is_placed, is_over, by_user;
    enum core_wait wait;
    uint64_t behind;
    size_t count = 0;

    if (!job || job->rec.state != HD_JOB_STATE_QUEUED)
        return 0;
    wait = core_wait_of(core, job, &behind);
    is_placed = (wait >= CORE_WAIT_BUSY || wait == CORE_WAIT_NONE) && !job->is_preemptor;
    is_over = core_quota_left(job->account, &by_user) < job->needs.devices_min;
    is[HD_CORE_WAITS_HELD] = job->rec.held;
    is[HD_CORE_WAITS_AFTER] = core_jobs_have(&core->dependents, job);
    is[HD_CORE_WAITS_ARRAY] = wait == CORE_WAIT_ARRAY;
    is[HD_CORE_WAITS_DELAY] = wait == CORE_WAIT_DELAY;
    is[HD_CORE_WAITS_MISSING] = core_lacks_checkpoint(job);
    is[HD_CORE_WAITS_SEARCH] = job->search && !is[HD_CORE_WAITS_MISSING];
    is[HD_CORE_WAITS_PLAN] = wait == CORE_WAIT_PLAN;
    is[HD_CORE_WAITS_BETTER] = wait == CORE_WAIT_BETTER;
    is[HD_CORE_WAITS_CLOSED] = job->account->queue->rec.closed;
    is[HD_CORE_WAITS_QUOTA] = is_over && !by_user;
    is[HD_CORE_WAITS_USER_QUOTA] = is_over && by_user;
    is[HD_CORE_WAITS_RESERVED] = wait == CORE_WAIT_RESERVED;
    is[HD_CORE_WAITS_PREEMPTING] = job->is_preemptor && !job->rec.held;
    is[HD_CORE_WAITS_JOBS_DIR] = is_placed && lacks_jobs_dir(core);
    if (wait == CORE_WAIT_NEVER) {
        is[HD_CORE_WAITS_NODES] = awaits_absent_nodes(core, job);
        is[HD_CORE_WAITS_CAPACITY] = !is[HD_CORE_WAITS_NODES];
    } else if (is_placed) {
        is[HD_CORE_WAITS_DEVICES] = waits_for_nodes(core, job, true);
        is[HD_CORE_WAITS_NODES] = waits_for_nodes(core, job, false);
    }
    for (int b = 0; b < HD_CORE_BLOCKERS_MAX; b++)
        if (is[b])
            ret_blockers[count++] = (enum hd_core_blocker)b;
    return count;
}

/* Writes why a job would wait: its needs, the nodes, and why its needs were raised. */
static void add_wait(const struct hd_core *core, const struct hd_job_needs *needs,
                     const struct hd_text *infeasible, struct hd_now now, struct hd_text *text)
{
    hd_text_clear(text);
    add_need(core, needs, NULL, text);
    add_nodes(core, needs, 0, now, text);
    if (infeasible->len_bytes)
        core_add_infeasible(needs, infeasible->data, text);
}

enum hd_status hd_core_explain_needs(struct hd_core *core, const struct hd_job_needs *needs,
                                     const void *spec, size_t spec_bytes, struct hd_now now,
                                     struct hd_core_out *out, struct hd_core_readiness *ret)
{
    enum hd_status st = core_check_request(core, needs);
    struct hd_job_needs more = *needs;
    struct hd_text infeasible = {0};
    enum core_layout layout = CORE_LAYOUT_INFEASIBLE;
    struct core_placement placement = {.device_count = 1};

    if (!st && core_find_queue(core, needs->queue)->rec.closed) {
        core_add_closed(core_find_queue(core, needs->queue), &ret->reason);
        return HD_OK;
    }
    core->out = out;
    while (!st && layout == CORE_LAYOUT_INFEASIBLE && placement.device_count) {
        const struct core_layout_client client = {
            .needs = &more, .spec = spec, .spec_bytes = spec_bytes};
        const struct core_view view = {.needs = &more,
                                       .hot_spares = core_needs_hot_spares(core, &more)};
        const struct core_cached_layout *entry;
        int64_t memory_bytes;

        placement = core_find_placement(core, &view);
        if (!placement.device_count)
            break;
        hd_text_clear(&ret->reason);
        layout = core_choose_layout(core, &client, &placement, &memory_bytes, &entry, &ret->reason);
        free(placement.members);
        if (layout != CORE_LAYOUT_INFEASIBLE)
            break;
        hd_text_clear(&infeasible);
        hd_text_add(&infeasible, "%s", ret->reason.data ? ret->reason.data : "");
        if (!core_need_more(core, placement.device_count, memory_bytes, &more))
            st = hd_err(HD_INVALID, "%s", infeasible.data ? infeasible.data : "");
    }
    core->out = NULL;
    ret->later = !st && layout == CORE_LAYOUT_LATER;
    ret->fits_now = !st && layout == CORE_LAYOUT_FITS;
    if (!st && layout == CORE_LAYOUT_INFEASIBLE)
        add_never_fits(core, &more, &ret->never_fits);
    if (!st && layout == CORE_LAYOUT_INFEASIBLE)
        add_wait(core, &more, &infeasible, now, &ret->reason);
    hd_text_free(&infeasible);
    return core->no_memory ? hd_err(HD_NO_MEMORY, "no memory for a plan") : st;
}

void hd_core_add_never_fits(const struct hd_core *core, uint64_t number, struct hd_text *text)
{
    const struct core_job *job = core_find_job(core, number);

    if (job && job->rec.state == HD_JOB_STATE_QUEUED && hd_core_node_count(core))
        add_never_fits(core, &job->needs, text);
}
