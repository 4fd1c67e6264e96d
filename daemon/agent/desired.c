/* desired: compares the controller's desired state with this node's attempts and acts on the
 * differences. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/agent/agent.h"
#include "daemon/agent/reconcile.h"

enum { TRY_AGAIN_MS = 2000 };

static enum hd_target_state target_state_of(const Heddle__V1__DesiredAttempt *d)
{
    switch (d->wanted) {
    case HEDDLE__V1__WANTED__WANTED_RUNNING:
        return HD_TARGET_RUNNING;
    case HEDDLE__V1__WANTED__WANTED_STOPPED:
        return HD_TARGET_STOPPED;
    default: /* unknown state of a newer controller: stop without starting anything */
        return HD_TARGET_STOPPING;
    }
}

static enum hd_here_state here_of(const struct agent_attempt *l)
{
    switch (l->state) {
    case LOCAL_PLANNED:
        return HD_HERE_PLANNED;
    case LOCAL_ENDED:
        return HD_HERE_ENDED;
    default:
        return l->kill_wanted ? HD_HERE_DYING : l->stop_wanted ? HD_HERE_STOPPING : HD_HERE_ALIVE;
    }
}

/* Finds the ranks of an attempt's plan that run on this node, with the UUIDs of their GPUs, so that
 * a rank sees only its own GPU. */
static enum hd_status own_ranks(const struct agent *agent, const Heddle__V1__Plan *plan,
                                struct local_ranks *ret_ranks)
{
    const struct hd_devices *devices = &agent->health.devices;
    const bool cuda = plan->device == HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;

    *ret_ranks = (struct local_ranks){.world = (int64_t)plan->n_ranks};
    for (size_t i = 0; i < plan->n_ranks && ret_ranks->count < HD_ATTEMPT_RANKS_MAX; i++) {
        const Heddle__V1__RankPlacement *rank = plan->ranks[i];
        const struct hd_device *device = hd_devices_at(devices, rank->device);

        if (strcmp(rank->node_uuid, agent->identity.node_uuid) != 0)
            continue;
        if (cuda && (!device || !device->cuda))
            return hd_err(HD_INVALID,
                          "the plan gives rank %d GPU %d, which this node does not offer",
                          rank->rank, rank->device);
        ret_ranks->rank[ret_ranks->count] = rank->rank;
        ret_ranks->gpu[ret_ranks->count++] = cuda ? device->uuid : NULL;
    }
    if (!ret_ranks->count)
        return hd_err(HD_INVALID, "the plan has no rank for this node");
    if (ret_ranks->count < ret_ranks->world && !agent->identity.data_address[0])
        return hd_err(HD_CONFLICT, "this node offers no address to ranks of other nodes");
    if (ret_ranks->count > devices->count)
        return hd_err(HD_INVALID, "the plan has %d ranks for this node of %d devices",
                      ret_ranks->count, devices->count);
    return HD_OK;
}

static void launch(struct agent *agent, const Heddle__V1__DesiredAttempt *d,
                   struct agent_attempt *local)
{
    struct local_ranks ranks;
    enum hd_status st = HD_OK;

    if (!local)
        st = locals_add(&agent->locals, (int64_t)d->job, d->attempt, d->attempt_dir,
                        d->checkpoint_dir, d->run_as, &local);
    else if (!local->recorded)
        st = local_record(local);
    if (st) { /* no record was written and nothing was started */
        agent->try_again_ms = hd_clock_now_ms() + TRY_AGAIN_MS;
        agent->disk_space_ms = 0; /* check the disks now, so that users see the reason */
    }
    if (st == HD_STORAGE) {
        local_wait_to_start(local);
        return;
    }
    if (st) {
        hd_log(HD_LOG_ERROR, "job %" PRIu64 " attempt %d: %s", d->job, d->attempt,
               hd_err_message());
        return;
    }
    /* locals_add refused the attempt's folder and ended the attempt */
    if (local->state == LOCAL_ENDED)
        return;
    if (local_take_up(local, d->ran))
        return;
    if (*d->problem)
        st = hd_err(HD_INVALID, "%s", d->problem);
    else if (!*d->resolved_job || !d->plan)
        st = hd_err(HD_INVALID, "the controller sent no resolved job or no plan");
    if (!st)
        st = own_ranks(agent, d->plan, &ranks);
    if (!st)
        probing_yield(agent, (int64_t)d->job);
    if (st)
        local_fail_launch(local, st == HD_INVALID || st == HD_UNSUPPORTED, hd_err_message());
    else
        local_launch(local, d->resolved_job, strlen(d->resolved_job), &ranks);
    if (!st && ranks.count && ranks.rank[0] == 0)
        copies_add(agent->copies, (int64_t)d->job, d->attempt_dir, d->resolved_job);
    if (local->waits)
        agent->try_again_ms = hd_clock_now_ms() + TRY_AGAIN_MS;
}

static void carry_out(struct agent *agent, const struct hd_action *action,
                      struct agent_attempt **locals, const Heddle__V1__DesiredState *desired)
{
    struct agent_attempt *l = action->here_index == SIZE_MAX ? NULL : locals[action->here_index];

    switch (action->deed) {
    case HD_DEED_LAUNCH:
        launch(agent, desired->attempts[action->wanted_index], l);
        break;
    case HD_DEED_STOP:
        hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": stopping", l->job, l->attempt);
        local_stop(l);
        break;
    case HD_DEED_KILL:
        hd_log(HD_LOG_INFO, "job %" PRId64 " attempt %" PRId64 ": ending at once", l->job,
               l->attempt);
        local_kill(l);
        break;
    case HD_DEED_FORGET:
        local_forget(l);
        break;
    }
    agent->observed_dirty = true;
}

void desired_apply(struct agent *agent)
{
    const Heddle__V1__DesiredState *desired = agent->desired->desired;
    struct hd_action *actions;
    struct hd_wanted_attempt *wanted;
    struct agent_attempt **locals;
    struct hd_here *here;
    struct hd_arena arena;
    size_t count = 0, n;

    for (struct agent_attempt *l = agent->locals.first; l; l = l->next)
        count++;
    hd_arena_init(&arena, 0);
    wanted = hd_arena_array(&arena, desired->n_attempts + 1, sizeof *wanted);
    here = hd_arena_array(&arena, count + 1, sizeof *here);
    locals = hd_arena_array(&arena, count + 1, sizeof *locals);
    actions = hd_arena_array(&arena, desired->n_attempts + count + 1, sizeof *actions);
    if (!hd_arena_failed(&arena)) {
        for (size_t i = 0; i < desired->n_attempts; i++)
            wanted[i] = (struct hd_wanted_attempt){(int64_t)desired->attempts[i]->job,
                                                   desired->attempts[i]->attempt,
                                                   target_state_of(desired->attempts[i])};
        n = 0;
        for (struct agent_attempt *l = agent->locals.first; l; l = l->next, n++) {
            here[n] = (struct hd_here){l->job, l->attempt, here_of(l)};
            locals[n] = l;
        }
        n = hd_reconcile(wanted, desired->n_attempts, here, count, actions);
        for (size_t i = 0; i < n; i++)
            carry_out(agent, &actions[i], locals, desired);
        agent->reconcile_dirty = false;
    }
    hd_arena_done(&arena);
}

/* Forwards requests for a checkpoint when their counter in the desired state has grown. After a
 * restart heddled forwards the latest request again: an extra checkpoint is harmless. */
static void take_saves(struct agent *agent, const Heddle__V1__DesiredState *desired)
{
    for (size_t i = 0; i < desired->n_attempts; i++) {
        const Heddle__V1__DesiredAttempt *d = desired->attempts[i];
        struct agent_attempt *l = locals_find(&agent->locals, (int64_t)d->job, d->attempt);

        if (!l)
            continue;
        if (d->saves_asked > l->saves_asked && l->state == LOCAL_ALIVE)
            local_save(l);
        l->saves_asked = d->saves_asked;
    }
}

void desired_take(struct agent *agent, Heddle__V1__ControllerMessage *message)
{
    if (!message)
        return;
    if (agent->desired)
        hd_rpc_message_free(&agent->desired->base);
    agent->desired = message;
    deletion_take(agent, message->desired);
    desired_apply(agent);
    take_saves(agent, message->desired);
    agent->generation = message->desired->generation;
    agent->observed_dirty = true;
    agent_soon(agent);
}

void desired_forget(struct agent *agent)
{
    if (agent->desired)
        hd_rpc_message_free(&agent->desired->base);
    agent->desired = NULL;
    agent->generation = 0; /* the next stream has not applied any desired state yet */
}
