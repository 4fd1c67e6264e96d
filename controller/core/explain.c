/* explain: why queued jobs wait, and what is wrong with running ones. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "controller/core/core_schedule.h"
#include "controller/core/core_texts.h"

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
    if (!core_may_span(base)) {
        if (core_devices_needed(needs, kinds[kind_count - 1]) > 1)
            hd_text_add(text, " on one node");
    } else if (hd_plan_unit(&needs->wish) > 1) {
        hd_text_add(text, ", on each node a multiple of parallel.tp = %d",
                    (int)needs->wish.sizes.tp);
    }
}

static void add_infeasible(const struct hd_job_needs *needs, const char *why, struct hd_text *text)
{
    hd_text_add(text, "; %s: %s",
                needs->memory_min ? "less memory is too little" : "fewer are too few", why);
}

/* Appends a node's state to a reason, such as "n1 has 1 of 2 free", "n2 is draining: disk", "n3 has
 * 1". */
static void add_node(const struct hd_core *core, const struct hd_job_needs *needs, uint64_t job,
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
    if (node->hot_spare)
        hd_text_add(text, " (hot spare)");
    if (node->reserved.by && node->reserved.by == job)
        hd_text_add(text, " (reserved for it)");
    else if (node->reserved.by)
        hd_text_add(text, " (reserved for job %" PRIu64 ")", node->reserved.by);
    if (all < needs->devices_min)
        core_gang_obstacle(core, node, kinds[kind_count - 1], text);
}

static void add_nodes(const struct hd_core *core, const struct hd_job_needs *needs, uint64_t job,
                      struct hd_now now, struct hd_text *text)
{
    const size_t count = hd_core_node_count(core);

    if (!count) {
        hd_text_add(text, "; no node has joined yet (start heddled on one)");
        return;
    }
    if (needs->device != HD_DEVICE_KIND_ANY && !cluster_has_kind(core, needs->device)) {
        hd_text_add(text, "; no node has a %s device", hd_device_kind_name((int)needs->device));
        if (needs->device == HD_DEVICE_KIND_CUDA)
            hd_text_add(text, " (heddled --doctor on a node with GPUs says why)");
        return;
    }
    for (size_t i = 0; i < count && i < NODES_NAMED_MAX; i++) {
        hd_text_add(text, i ? ", " : "; ");
        add_node(core, needs, job, core->nodes[i], now, text);
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

/* Appends a text such as "waits for jobs 5, 6 to succeed". */
static void add_after(const struct hd_core *core, const struct core_job *job, struct hd_text *text)
{
    struct hd_text numbers = {0};
    int count = 0;

    for (int32_t i = 0; i < job->needs.after_count; i++)
        if (core_outcome_of(core, job->needs.after[i]) != HD_JOB_STATE_SUCCEEDED)
            hd_text_add(&numbers, "%s%" PRIu64, count++ ? ", " : "", job->needs.after[i]);
    hd_text_add(text, "waits for job%s %s to succeed", count == 1 ? "" : "s",
                numbers.data ? numbers.data : "");
    text->failed |= numbers.failed;
    hd_text_free(&numbers);
}

static void add_closed(const struct core_queue *queue, struct hd_text *text)
{
    hd_text_add(text, "queue %s is closed: none of its jobs starts; heddle queue set %s --open",
                queue->rec.name, queue->rec.name);
}

static void add_quota(const struct core_job *job, struct hd_text *text)
{
    const struct core_account *account = job->account;
    int32_t limit;
    bool by_user;

    if (account->queue->rec.closed) {
        add_closed(account->queue, text);
        return;
    }
    (void)core_quota_left(account, &by_user);
    hd_text_add(text, "needs %d device%s; ", job->needs.devices_min,
                job->needs.devices_min == 1 ? "" : "s");
    limit = account->queue->rec.devices_max; /* jobs beyond the limit are refused at submission, but
                                              * the limit may have been lowered since */
    if (!limit || limit >= job->needs.devices_min)
        limit = account->queue->rec.user_devices_max;
    if (limit && limit < job->needs.devices_min)
        hd_text_add(
            text,
            "%s may hold only %d, so it cannot start: raise the limit (heddle queue set), or "
            "cancel it and ask for fewer or for another queue",
            by_user ? "one user of its queue" : "its queue", limit);
    else if (by_user)
        hd_text_add(text, "%s holds %lld of the %d devices that one user may hold in queue %s",
                    job->rec.owner, (long long)account->held, account->queue->rec.user_devices_max,
                    account->queue->rec.name);
    else
        hd_text_add(text, "queue %s holds %lld of the %d devices that it may hold",
                    account->queue->rec.name, (long long)account->queue->held,
                    account->queue->rec.devices_max);
}

static void add_avoided(const struct core_job *job, struct hd_text *text)
{
    for (size_t i = 0; i < job->avoided_count; i++)
        hd_text_add(text, "%s%s", i ? ", " : "; avoids ", job->avoided[i]->rec.name);
    if (job->avoided_count)
        hd_text_add(text, ", where it failed twice");
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

/* Appends why an attempt stops; nothing if it does not. */
static void explain_stop(const struct hd_core *core, const struct core_job *job,
                         struct hd_text *text)
{
    const struct core_attempt *attempt = core_active(job);
    const bool asked = core_is_being_preempted(job) && attempt->rec.stop_job;
    const struct core_job *by = asked ? core_find_job(core, attempt->rec.stop_job) : NULL;
    const char *why = NULL;

    if (!attempt || attempt->rec.state != HD_ATTEMPT_STATE_STOPPING)
        return;
    if (by && by->rec.state != HD_JOB_STATE_QUEUED)
        hd_text_add(text,
                    "writes a checkpoint and gives its devices back: job %" PRIu64
                    " asked for them, and needs them no more",
                    attempt->rec.stop_job);
    else if (by && by->rec.held)
        hd_text_add(text,
                    "writes a checkpoint and gives its devices back: job %" PRIu64
                    " asked for them, and is held now",
                    attempt->rec.stop_job);
    else if (job->migration_group && !job->rec.held)
        hd_text_add(
            text,
            "writes a checkpoint and moves to other nodes, so that the devices of job %" PRIu64
            " share fewer switches",
            attempt->rec.stop_job);
    else if (asked)
        hd_text_add(text, "writes a checkpoint and gives its devices back for job %" PRIu64,
                    attempt->rec.stop_job);
    else if (core_is_being_preempted(job))
        hd_text_add(text,
                    still_leaves(attempt)
                        ? "writes a checkpoint and leaves a node that is drained"
                        : "writes a checkpoint and starts again: it was asked to leave a node that "
                          "is not drained any more");
    else if (attempt->rec.stop_cause == HD_END_CAUSE_TIME_LIMIT)
        why = "ends: its time_limit is over";
    else if (attempt->rec.stop_cause == HD_END_CAUSE_RESIZED)
        why = "starts again with other devices";
    else if ((attempt->rec.stop_cause == HD_END_CAUSE_USER || job->rec.cancel) &&
             !job->rec.cancel_now)
        why = "stops, as a user asked";
    if (why)
        hd_text_add(text, "writes a checkpoint, for at most %lld s, and %s",
                    (long long)(core->config.stop_grace_ms / 1000), why);
}

/* Appends why a live attempt stops, then problems of its nodes. The text stays the same while
 * nothing changes. */
static void explain_running(const struct hd_core *core, const struct core_job *job,
                            struct hd_text *text)
{
    const struct core_attempt *attempt = core_active(job);

    explain_stop(core, job, text);
    for (size_t i = 0; attempt && i < attempt->alloc_count; i++) {
        const struct core_node_alloc *alloc = &attempt->allocs[i];
        const struct core_node *node = alloc->node;
        const char *problem = alloc->problem ? alloc->problem : "";
        char since[HD_CLOCK_TEXT_MAX], lost_at[HD_CLOCK_TEXT_MAX];

        if (alloc->ended)
            continue;
        if (node->rec.state == HD_NODE_STATE_UNREACHABLE) {
            hd_clock_format_utc(node->silent_since_ms, since);
            hd_clock_format_utc(core_node_lost_at_ms(core, node), lost_at);
            hd_text_add(text,
                        "%snode %s has %s %s; its ranks may be training; it becomes lost at %s",
                        text->len_bytes ? "; " : "", node->rec.name,
                        core_node_has_come(node) ? "been silent since"
                                                 : "not connected since the controller's start at",
                        since, lost_at);
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
        explain_running(core, job, ret_reason);
    if (!job || job->rec.state != HD_JOB_STATE_QUEUED)
        return;
    add_last_end(job, ret_reason);
    switch (core_wait_of(core, job, &behind)) {
    case CORE_WAIT_HELD:
        hd_text_add(ret_reason, "held; heddle release %" PRIu64 " lets it start", number);
        return;
    case CORE_WAIT_AFTER:
        add_after(core, job, ret_reason);
        return;
    case CORE_WAIT_DELAY:
        left_ms = job->not_before_mono_ms - now.mono_ms;
        hd_text_add(
            ret_reason, "%swill be retried in %lld s",
            core_is_thrashing(job) ? "it was preempted more than once soon after its start; " : "",
            (long long)(left_ms > 0 ? (left_ms + 999) / 1000 : 0));
        return;
    case CORE_WAIT_SEARCH:
        if (core_lacks_checkpoint(job))
            core_add_missing(core, job, ret_reason);
        else
            hd_text_add(ret_reason, "its checkpoints are being searched on the disk");
        return;
    case CORE_WAIT_MISSING:
        core_add_missing(core, job, ret_reason);
        return;
    case CORE_WAIT_PLAN:
        hd_text_add(ret_reason, "the best layout for its devices is being computed");
        return;
    case CORE_WAIT_BETTER:
        core_add_choice(core, &job->choice, true, ret_reason);
        return;
    case CORE_WAIT_QUOTA:
        add_quota(job, ret_reason);
        return;
    case CORE_WAIT_RESERVED:
        hd_text_add(ret_reason, "waits behind job %" PRIu64 "; ", behind);
        break;
    case CORE_WAIT_NEVER:
    case CORE_WAIT_BUSY:
    case CORE_WAIT_NONE:
        break;
    }
    if (job->is_preemptor)
        hd_text_add(ret_reason, "other jobs are being preempted for it and write checkpoints; ");
    add_need(core, &job->needs, core_checkpoint_newest(job), ret_reason);
    add_base(core, core_checkpoint_newest(job), ret_reason);
    add_nodes(core, &job->needs, number, now, ret_reason);
    if (job->infeasible)
        add_infeasible(&job->needs, job->infeasible, ret_reason);
    add_avoided(job, ret_reason);
    if (job->choice.taken && job->wait == CORE_WAIT_BUSY) {
        hd_text_add(ret_reason, "; ");
        core_add_choice(core, &job->choice, true, ret_reason);
    }
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

/* Finds out, once per pass, whether jobs hold devices that suit this job's class, or nodes that
 * accept no jobs have them (class->is_held, is_away). */
static void seek_nodes(const struct hd_core *core, const struct core_job *job,
                       struct core_class *class)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(&job->needs, kinds);

    if (class->sought_in == core->pass)
        return;
    class->sought_in = core->pass;
    class->is_held = class->is_away = false;
    for (size_t i = 0; i < hd_core_node_count(core); i++) {
        const struct core_node *node = core->nodes[i];
        int32_t all = 0, free_now = 0;

        for (size_t k = 0; k < kind_count; k++) {
            all += core_count_devices(&job->needs, node, kinds[k], false);
            free_now += core_count_devices(&job->needs, node, kinds[k], true);
        }
        if (all && (!core_node_usable(node) || (node->hot_spare && !class->key.hot_spares)))
            class->is_away = true;
        else if (free_now < all)
            class->is_held = true;
    }
}

/* Returns whether a job is kept queued by nodes that accept no jobs (held false) or by devices that
 * jobs hold (held true); at least one of the two is true. */
static bool waits_for_nodes(const struct hd_core *core, const struct core_job *job, bool held)
{
    struct core_class *class = job->group ? job->group->key.class : NULL;

    if (!class)
        return held; /* no pass has evaluated the job yet */
    seek_nodes(core, job, class);
    return held ? class->is_held || !class->is_away : class->is_away;
}

/* Finds out, once per pass, whether the jobs of a class that fit nowhere would fit if nodes that
 * are disconnected returned. */
static void seek_returns(const struct hd_core *core, const struct core_job *job,
                         struct core_class *class)
{
    enum hd_device_kind kinds[HD_DEVICE_KIND_COUNT];
    const size_t kind_count = core_kinds(&job->needs, kinds);

    if (class->awaited_in == core->pass)
        return;
    class->awaited_in = core->pass;
    class->one_would_do = class->all_would_do = false;
    for (size_t k = 0; k < kind_count; k++) {
        const int32_t need = core_devices_needed(&job->needs, kinds[k]);
        int64_t all = 0, away = 0;

        for (size_t i = 0; need && i < hd_core_node_count(core); i++) {
            const struct core_node *node = core->nodes[i];
            const bool is_away = !core_node_usable(node);
            int32_t count;

            if (node->rec.drain || (is_away && !core_node_may_come_back(node)))
                continue;
            count = core_whole_groups(&job->needs,
                                      core_count_devices(&job->needs, node, kinds[k], false));
            all += count;
            away += is_away ? count : 0;
            class->one_would_do |= is_away && count >= need;
        }
        class->all_would_do |= away && all >= need;
    }
}

static bool awaits_absent_nodes(const struct hd_core *core, const struct core_job *job)
{
    struct core_class *class = job->group ? job->group->key.class : NULL;

    if (!class)
        return false;
    seek_returns(core, job, class);
    return class->one_would_do ||
           (class->all_would_do && core_may_span(core_checkpoint_newest(job)));
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

/* Returns whether the reason `wait` keeps the job queued, even if another reason applies first. */
static bool is_blocked(const struct hd_core *core, const struct core_job *job,
                       enum hd_core_blocker blocker)
{
    uint64_t behind;
    const enum core_wait wait = core_wait_of(core, job, &behind);
    const bool is_placed = wait >= CORE_WAIT_BUSY || wait == CORE_WAIT_NONE;
    bool by_user;
    const bool is_over = core_quota_left(job->account, &by_user) < job->needs.devices_min;

    switch (blocker) {
    case HD_CORE_WAITS_HELD:
        return job->rec.held;
    case HD_CORE_WAITS_AFTER:
        return core_jobs_have(&core->dependents, job);
    case HD_CORE_WAITS_DELAY:
        return wait == CORE_WAIT_DELAY;
    case HD_CORE_WAITS_SEARCH:
        return job->search != CORE_SEARCH_NONE && !core_lacks_checkpoint(job);
    case HD_CORE_WAITS_MISSING:
        return core_lacks_checkpoint(job);
    case HD_CORE_WAITS_PLAN:
        return wait == CORE_WAIT_PLAN;
    case HD_CORE_WAITS_BETTER:
        return wait == CORE_WAIT_BETTER;
    case HD_CORE_WAITS_CLOSED:
        return job->account->queue->rec.closed;
    case HD_CORE_WAITS_QUOTA:
        return is_over && !by_user;
    case HD_CORE_WAITS_USER_QUOTA:
        return is_over && by_user;
    case HD_CORE_WAITS_DEVICES:
        return is_placed && wait != CORE_WAIT_NEVER && !job->is_preemptor &&
               waits_for_nodes(core, job, true);
    case HD_CORE_WAITS_NODES:
        if (wait == CORE_WAIT_NEVER)
            return awaits_absent_nodes(core, job);
        return is_placed && !job->is_preemptor && waits_for_nodes(core, job, false);
    case HD_CORE_WAITS_JOBS_DIR:
        return (is_placed || wait == CORE_WAIT_NEVER) && !job->is_preemptor && lacks_jobs_dir(core);
    case HD_CORE_WAITS_RESERVED:
        return wait == CORE_WAIT_RESERVED;
    case HD_CORE_WAITS_PREEMPTING:
        return job->is_preemptor && !job->rec.held;
    case HD_CORE_WAITS_CAPACITY:
        return wait == CORE_WAIT_NEVER && !awaits_absent_nodes(core, job);
    case HD_CORE_BLOCKERS_MAX:
        break;
    }
    return false;
}

size_t hd_core_blockers(const struct hd_core *core, uint64_t number,
                        enum hd_core_blocker ret_blockers[HD_CORE_BLOCKERS_MAX])
{
    const struct core_job *job = core_find_job(core, number);
    size_t count = 0;

    if (!job || job->rec.state != HD_JOB_STATE_QUEUED)
        return 0;
    for (int b = 0; b < HD_CORE_BLOCKERS_MAX; b++)
        if (is_blocked(core, job, (enum hd_core_blocker)b))
            ret_blockers[count++] = (enum hd_core_blocker)b;
    return count;
}

/* Checks the needs of a job that is not submitted as a submission would. */
static enum hd_status check_for(const struct hd_core *core, const struct hd_job_needs *needs)
{
    enum hd_status st = core_check_needs(needs);

    if (!st)
        st = core_check_quota(core, needs);
    return st ? st : core_check_after(core, needs);
}

/* Writes why a job would wait: its needs, the nodes, and why its needs were raised. */
static void add_wait(const struct hd_core *core, const struct hd_job_needs *needs,
                     const struct hd_text *infeasible, struct hd_now now, struct hd_text *text)
{
    hd_text_clear(text);
    add_need(core, needs, NULL, text);
    add_nodes(core, needs, 0, now, text);
    if (infeasible->len_bytes)
        add_infeasible(needs, infeasible->data, text);
}

enum hd_status hd_core_explain_needs(struct hd_core *core, const struct hd_job_needs *needs,
                                     const void *spec, size_t spec_bytes, struct hd_now now,
                                     struct hd_core_out *out, struct hd_core_readiness *ret)
{
    enum hd_status st = check_for(core, needs);
    struct hd_job_needs more = *needs;
    struct hd_text infeasible = {0};
    enum core_layout layout = CORE_LAYOUT_INFEASIBLE;
    struct core_placement placement = {.device_count = 1};

    if (!st && core_find_queue(core, needs->queue)->rec.closed) {
        add_closed(core_find_queue(core, needs->queue), &ret->reason);
        return HD_OK;
    }
    core->out = out;
    while (!st && layout == CORE_LAYOUT_INFEASIBLE && placement.device_count) {
        const struct core_layout_client client = {0, &more, spec, spec_bytes, NULL};
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
        add_wait(core, &more, &infeasible, now, &ret->reason);
    hd_text_free(&infeasible);
    return core->no_memory ? hd_err(HD_NO_MEMORY, "no memory for a plan") : st;
}
