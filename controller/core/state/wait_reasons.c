/* wait_reasons: why queued jobs wait and why running ones stop, in sentences (explain.c decides). */
#include <inttypes.h>

#include "base/clock.h"
#include "controller/core/state/texts.h"

enum { STEPS_NAMED_MAX = 8 }; /* most missing checkpoints that a reason names */

/* ---- reasons of one kind ----------------------------------------------------------------------*/

static void add_last_end(const struct core_job *job, struct hd_text *text)
{
    const struct core_attempt *newest = core_newest(job);
    const char *node = newest && newest->rec.end.node ? newest->rec.end.node : "";

    if (newest)
        hd_text_add(text, "attempt %d ended (%s%s%s); ", newest->rec.attempt,
                    hd_end_cause_name((int)newest->rec.end.cause), *node ? " on " : "", node);
}

static void add_delay(const struct core_wait_reason *reason, struct hd_text *text)
{
    if (reason->is_thrashing)
        hd_text_add(text, "it was preempted more than once soon after its start; ");
    hd_text_add(text, "will be retried in %lld s",
                (long long)(reason->left_ms > 0 ? (reason->left_ms + 999) / 1000 : 0));
}

void core_add_wait(const struct hd_core *core, const struct core_job *job,
                   const struct core_wait_reason *reason, struct hd_text *text)
{
    add_last_end(job, text);
    switch (reason->wait) {
    case CORE_WAIT_HELD:
        hd_text_add(text, "held; heddle release %" PRIu64 " lets it start", job->rec.job);
        break;
    case CORE_WAIT_DELAY:
        add_delay(reason, text);
        break;
    case CORE_WAIT_SEARCH:
        if (reason->lacks_checkpoint)
            core_add_missing(core, job, text);
        else
            hd_text_add(text, "its checkpoints are being searched on the disk");
        break;
    case CORE_WAIT_MISSING:
        core_add_missing(core, job, text);
        break;
    case CORE_WAIT_PLAN:
        hd_text_add(text, "the best layout for its devices is being computed");
        break;
    case CORE_WAIT_BETTER:
        core_add_choice(core, &job->choice, true, text);
        break;
    case CORE_WAIT_ARRAY:
        hd_text_add(
            text,
            "%" PRId32
            " job%s of its array %s %s next, and array.at_once allows no more than %" PRId32,
            reason->array_open, reason->array_open == 1 ? "" : "s", job->array->id,
            reason->array_open == 1 ? "runs or starts" : "run or start", job->array->at_once);
        break;
    case CORE_WAIT_RESERVED:
        hd_text_add(text, "waits behind job %" PRIu64 "; ", reason->behind);
        break;
    case CORE_WAIT_AFTER: /* core_add_after */
    case CORE_WAIT_QUOTA: /* core_add_quota */
    case CORE_WAIT_NEVER: /* its needs and the nodes */
    case CORE_WAIT_BUSY:
    case CORE_WAIT_NONE:
        break;
    }
}

void core_add_after(const struct core_job_list *jobs, struct hd_text *text)
{
    hd_text_add(text, "waits for job%s %s to succeed", jobs->count == 1 ? "" : "s",
                jobs->numbers.data ? jobs->numbers.data : "");
    text->failed |= jobs->numbers.failed;
}

/* ---- queues -----------------------------------------------------------------------------------*/

void core_add_quota(const struct core_job *job, const struct core_quota_reason *reason,
                    struct hd_text *text)
{
    const struct core_account *account = job->account;
    const struct hd_queue_record *queue = &account->queue->rec;

    hd_text_add(text, "needs %d device%s; ", job->needs.devices_min,
                job->needs.devices_min == 1 ? "" : "s");
    if (reason->too_small)
        hd_text_add(
            text,
            "%s may hold only %d, so it cannot start: raise the limit (heddle queue set), or "
            "cancel it and ask for fewer or for another queue",
            reason->by_user ? "one user of its queue" : "its queue", reason->too_small);
    else if (reason->by_user)
        hd_text_add(text, "%s holds %lld of the %d devices that one user may hold in queue %s",
                    job->rec.owner, (long long)account->held, queue->user_devices_max, queue->name);
    else
        hd_text_add(text, "queue %s holds %lld of the %d devices that it may hold", queue->name,
                    (long long)account->queue->held, queue->devices_max);
}

/* ---- needs and nodes --------------------------------------------------------------------------*/

void core_add_need(const struct core_need *need, struct hd_text *text)
{
    char bytes[32];

    for (size_t k = 0; k < need->kind_count; k++) {
        hd_text_add(text, "%s%d %s device%s", k ? " or " : "needs ", need->devices[k],
                    hd_device_kind_name((int)need->kinds[k]), need->devices[k] == 1 ? "" : "s");
        if (need->memory_min) {
            hd_text_format_bytes(need->memory_min - 1, bytes);
            hd_text_add(text, " with more than %s", bytes);
        }
    }
    if (need->on_one_node)
        hd_text_add(text, " on one node");
    if (need->multiple_of)
        hd_text_add(text, ", on each node a multiple of parallel.tp = %d", need->multiple_of);
}

void core_add_capacity(const struct core_need *need, const int64_t all[HD_DEVICE_KIND_COUNT],
                       const int32_t biggest[HD_DEVICE_KIND_COUNT], struct hd_text *text)
{
    hd_text_add(text, "; the cluster has ");
    for (size_t k = 0; k < need->kind_count; k++) {
        hd_text_add(text, "%s%lld %s device%s%s", k ? ", and " : "", (long long)all[k],
                    hd_device_kind_name((int)need->kinds[k]), all[k] == 1 ? "" : "s",
                    need->memory_min || need->multiple_of ? " of that sort in all" : " in all");
        if (biggest[k] && biggest[k] != all[k])
            hd_text_add(text, ", at most %d on one node", biggest[k]);
    }
}

static void add_reservation(const struct core_node_offer *offer, struct hd_text *text)
{
    static const char *const whys[] = {[CORE_PLANNED] = "",
                                       [CORE_CLEARING] = ", for which jobs stop there",
                                       [CORE_MIGRATING] = ", which moves there",
                                       [CORE_SEARCHING] = ", whose checkpoints are being searched",
                                       [CORE_SPARE] = ""};
    const char *why = whys[offer->reservation->why];

    if (offer->reservation->why == CORE_SPARE)
        hd_text_add(text, " (hot spare)");
    else if (offer->reserved_for_it)
        hd_text_add(text, " (reserved for it%s)", why);
    else
        hd_text_add(text, " (reserved for job %" PRIu64 "%s)", offer->reservation->job, why);
}

void core_add_offer(const struct core_node *node, const struct core_node_offer *offer,
                    struct hd_text *text)
{
    if (offer->free == offer->all)
        hd_text_add(text, "has %d", offer->all);
    else
        hd_text_add(text, "has %d of %d free", offer->free, offer->all);
    if (offer->broken)
        hd_text_add(text, " (%d cannot be used: %s)", offer->broken, offer->problem);
    if (offer->in_groups != offer->free)
        hd_text_add(text, " (%d in whole tp groups)", offer->in_groups);
    if (offer->reservation)
        add_reservation(offer, text);
    core_add_gang_obstacle(node, offer->kind, offer->obstacle, text);
}

void core_add_avoided(const struct core_job *job, struct hd_text *text)
{
    for (size_t i = 0; i < job->avoided_count; i++)
        hd_text_add(text, "%s%s", i ? ", " : "; avoids ", job->avoided[i]->rec.name);
    if (job->avoided_count)
        hd_text_add(text, ", where it failed twice");
}

/* ---- missing checkpoints ----------------------------------------------------------------------*/

void core_add_missing_names(const struct hd_core *core, const struct core_job *job, bool all,
                            struct hd_text *text)
{
    const struct hd_checkpoint_record *newest = NULL;
    const struct core_node *node;
    size_t count = 0, named = 1;

    for (size_t i = 0; i < job->checkpoint_count; i++) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i];

        count += c->missing;
        if (c->missing && (!newest || core_checkpoint_is_newer(c, newest)))
            newest = c;
    }
    if (!newest)
        return;
    node = newest->shared ? NULL : core_find_node(core, newest->node_uuid);
    hd_text_add(text, "step %lld of attempt %d (%s%s%s)", (long long)newest->step, newest->attempt,
                newest->path, node ? " on " : "", node ? node->rec.name : "");
    for (size_t i = job->checkpoint_count; all && i > 0 && named < STEPS_NAMED_MAX; i--) {
        const struct hd_checkpoint_record *c = &job->checkpoints[i - 1];

        if (!c->missing || c == newest)
            continue;
        hd_text_add(text, ", step %lld of attempt %d", (long long)c->step, c->attempt);
        named++;
    }
    if (count > named)
        hd_text_add(text, " and %zu more", count - named);
}

void core_add_missing(const struct hd_core *core, const struct core_job *job, struct hd_text *text)
{
    bool is_shared = false;

    for (size_t i = 0; i < job->checkpoint_count; i++)
        is_shared |= job->checkpoints[i].missing && job->checkpoints[i].shared;
    hd_text_add(text, "its checkpoints are not on the disk: ");
    core_add_missing_names(core, job, true, text);
    if (is_shared)
        hd_text_add(text, "; restore a state of the jobs directory that has one (it is searched "
                          "every minute, and at once after heddle hold and heddle release)");
    else
        hd_text_add(text, "; bring the node's disk back, then heddle hold and heddle release (the "
                          "next attempt that does not find its checkpoint counts against "
                          "restart.max)");
    hd_text_add(text,
                ", or give each of them up, to begin at step 0: heddle checkpoint rm %" PRIu64
                " --step N",
                job->rec.job);
    if (job->search_problem && *job->search_problem)
        hd_text_add(text, "; the last search failed: %s", job->search_problem);
}

/* ---- better placements ------------------------------------------------------------------------*/

void core_add_placement_text(const struct hd_core *core, int32_t nodes, int32_t tier,
                             struct hd_text *text)
{
    const struct hd_node_tree *tree = core->config.tree;

    hd_text_add(text, "%d node%s", nodes, nodes == 1 ? "" : "s");
    if (tier && tree && tree->tier_count && tier <= tree->tier_count)
        hd_text_add(text, " at one switch of tier %s", tree->tiers[tier - 1].name);
    else if (tier && tree && tree->tier_count)
        hd_text_add(text, " at several switches");
}

void core_add_choice(const struct hd_core *core, const struct hd_core_choice *choice, bool waits,
                     struct hd_text *text)
{
    const int64_t differs_ms = choice->saved_ms > 0 ? choice->saved_ms : -choice->saved_ms;
    const char *order = choice->saved_ms > 0 ? "earlier" : "later";
    const bool opens = waits && choice->now_ms > core->now.wall_ms; /* the job does not fit now */
    char later_at[HD_CLOCK_TEXT_MAX], first_at[HD_CLOCK_TEXT_MAX];
    char span[HD_CLOCK_TEXT_MAX], gain[HD_CLOCK_TEXT_MAX];

    hd_clock_format_utc(choice->later_ms, later_at);
    hd_clock_format_utc(choice->now_ms, first_at);
    hd_clock_format_span(differs_ms, span);
    hd_clock_format_span(choice->gain_ms, gain);
    if (opens)
        hd_text_add(text, "could start at %s on ", first_at);
    else
        hd_text_add(text, waits ? "could start now on " : "started on ");
    core_add_placement_text(core, choice->nodes_now, choice->tier_now, text);
    hd_text_add(text, " at %.3g s a step%s", choice->step_now_s,
                waits ? ", but waits for " : "; on ");
    core_add_placement_text(core, choice->nodes_later, choice->tier_later, text);
    hd_text_add(text, " at %.3g s a step, expected free at %s", choice->step_later_s, later_at);
    if (!waits)
        hd_text_add(text, ", it would end %s %s", span, order);
    else
        hd_text_add(text, ": then it ends %s %s", span, order);
    if (waits && choice->saved_ms <= 0)
        hd_text_add(text, ", but uses its devices for %s less, and other jobs wait for devices",
                    gain);
}

/* ---- attempts that stop, and their nodes ------------------------------------------------------*/

void core_add_sentence(const struct core_sentence *sentence, uint64_t number, struct hd_text *text)
{
    if (*sentence->before) /* a text to which nothing was added needs no memory */
        hd_text_add(text, "%s", sentence->before);
    if (sentence->after)
        hd_text_add(text, "%" PRIu64 "%s", number, sentence->after);
}

void core_add_stop(const struct hd_core *core, enum core_stop_reason reason, uint64_t for_job,
                   struct hd_text *text)
{
    static const struct core_sentence sentences[] = {
#define X(name, ...) [CORE_STOP_##name] = {__VA_ARGS__},
        CORE_STOP_LIST(X)
#undef X
    };

    core_add_sentence(&sentences[reason],
                      reason < CORE_STOP_TIME_LIMIT ? for_job
                                                    : (uint64_t)(core->config.stop_grace_ms / 1000),
                      text);
}
