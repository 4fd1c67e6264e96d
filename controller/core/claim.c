/* claim: the place that running jobs make free for a job.
 *
 * When jobs are asked to give way (preempt.c), their devices come free one after another, and all
 * of them are needed at once. So the job remembers the place for which they were asked, and as long
 * as it can still have it, reserves it and no other, first of its priority. Without that each pass
 * would look for a place anew, leave devices that were freed already to others, and ask these to
 * stop in their turn.
 *
 * While a daemon connects anew, those who stop for the job are on a node whose devices are not
 * known to be there: until they are, at most unreachable_ms, it waits for their place and asks no
 * more jobs to stop (core_claim_awaits). After a start of the controller no job asks any to stop,
 * and no expected start moves, until all nodes are back (core_assemble): what is free on those that
 * connect last, or is being given back there, may do.
 *
 * Meanwhile the job also takes another place, if one that is as good is free. It loses its claim
 * when a node of the place is not usable any more, or its devices have gone to a job of higher
 * priority: then it is looked at like any other job, and may ask more jobs to give way.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/core/core_internal.h"

void core_claim_drop(struct core_job *job)
{
    if (job->claim)
        free(job->claim->members);
    free(job->claim);
    job->claim = NULL;
}

void core_claim_end(struct hd_core *core, struct core_job *job)
{
    core->changed_in_pass |= job->claims; /* it came first for that: the order is another one now */
    job->claims = false;
    core_claim_drop(job);
    core_room_end(core, job);
    core_jobs_remove(&core->claimants, job);
}

static struct core_placement *copy_of(const struct core_placement *place)
{
    struct core_placement *copy = malloc(sizeof *copy);

    if (!copy)
        return NULL;
    *copy = *place;
    copy->members = malloc(place->member_count * sizeof *copy->members);
    if (!copy->members) {
        free(copy);
        return NULL;
    }
    memcpy(copy->members, place->members, place->member_count * sizeof *copy->members);
    return copy;
}

void core_claim_place(struct hd_core *core, struct core_job *job, const struct hd_job_needs *needs,
                      const struct core_placement *place)
{
    const struct core_wisher wisher = core_wisher_of(job, needs);
    const struct core_menu_entry *entry;
    struct hd_text why = {0};
    int64_t memory_bytes;

    core_claim_drop(job);
    if (!place->device_count)
        return;
    job->claim = copy_of(place);
    core->no_memory |= !job->claim;
    if (job->claim)
        (void)core_choose_layout(core, &wisher, job->claim, &memory_bytes, &entry, &why);
    hd_text_free(&why);
}

/* Devices of a node that are free, and that will be: then *start is not before that. */
struct opening {
    int32_t free, later;
};

static struct opening open_on(const struct hd_core *core, const struct core_job *job,
                              const struct core_node *node, enum hd_device_kind kind,
                              struct core_start *start)
{
    struct opening opening = {0};
    const struct core_attempt *last = NULL;

    for (int32_t d = 0; d < node->rec.device_count; d++) {
        const struct core_attempt *by = node->holds[d].by;
        int64_t ends_mono_ms;

        if (node->rec.devices[d].kind != kind || !core_device_works(node, d) ||
            !core_device_suits(&job->needs, node, d))
            continue;
        opening.free += !node->holds[d].job;
        if (!by || by->rec.state != HD_ATTEMPT_STATE_STOPPING)
            continue;
        opening.later++;
        if (by == last)
            continue;
        last = by;
        ends_mono_ms = core_predict_end(core, core_find_job(core, by->rec.job), by);
        if (ends_mono_ms > start->mono_ms) {
            start->mono_ms = ends_mono_ms;
            start->after = by->rec.job;
        }
    }
    return opening;
}

static bool is_connecting(const struct core_node *node)
{
    return !node->synced && core_node_may_come_back(node) &&
           node->rec.state != HD_NODE_STATE_UNREACHABLE;
}

void core_assemble(struct hd_core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        if (is_connecting(core->nodes[i]))
            return;
    core->assembled = true;
}

bool core_claim_awaits(const struct hd_core *core, const struct core_job *job)
{
    for (size_t i = 0; job->claims && i < core->active.count; i++) {
        const struct core_attempt *attempt = core_active(core->active.items[i]);

        if (attempt->rec.state != HD_ATTEMPT_STATE_STOPPING ||
            attempt->rec.stop_job != job->rec.job)
            continue;
        for (size_t s = 0; s < attempt->share_count; s++)
            if (!attempt->shares[s].ended && is_connecting(attempt->shares[s].node))
                return true;
    }
    return false;
}

enum core_claim core_claim_of(const struct hd_core *core, const struct core_job *job,
                              struct core_start *ret_start)
{
    const struct core_placement *place = job->claim;
    enum core_claim claim = CORE_CLAIM_OPEN;
    enum hd_device_kind kind;

    if (!place)
        return CORE_CLAIM_NONE;
    kind = hd_device_kind_of(place->plan.layout.device);
    *ret_start = (struct core_start){
        .mono_ms = core->now.mono_ms, .nodes = (int32_t)place->member_count, .tier = place->tier};
    for (size_t i = 0; i < place->member_count; i++) {
        struct core_member *member = &place->members[i];
        const struct core_node *node = member->node;
        const struct opening opening = open_on(core, job, node, kind, ret_start);

        if (!core_node_usable(node) ||
            (node->reserved.by && !core_is_kept_for(job, node->reserved.by)) ||
            opening.free + opening.later < member->count)
            return CORE_CLAIM_NONE;
        member->spare = opening.free + opening.later - member->count;
        if (opening.free < member->count)
            claim = CORE_CLAIM_OPENS;
    }
    return claim;
}

void core_room_drop(struct core_job *job)
{
    if (job->room)
        free(job->room->members);
    free(job->room);
    job->room = NULL;
}

void core_room_end(struct hd_core *core, struct core_job *job)
{
    core_room_drop(job);
    job->room_of = 0;
    core_jobs_remove(&core->movers, job);
}
