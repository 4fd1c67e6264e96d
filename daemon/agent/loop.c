/* loop: scheduling of the next turn of the daemon's loop, and its end. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/notify.h"
#include "daemon/agent/agent.h"

enum {
    KILL_MS = 8000, /* time for supervisors to end their ranks, if ranks end with heddled, ms */
    RETRY_MIN_MS = 100,
    RETRY_MAX_MS = 5000,
    CONTROLLER_SILENT_MS = 15000,
    SILENT_HEARTBEATS = 5,
};

int64_t agent_retry_ms(int attempts_in_a_row, uint64_t noise)
{
    const int doublings = attempts_in_a_row < 10 ? attempts_in_a_row : 10;
    int64_t wait_ms = RETRY_MIN_MS << doublings;

    if (wait_ms > RETRY_MAX_MS)
        wait_ms = RETRY_MAX_MS;
    return wait_ms / 2 + (int64_t)(noise % (uint64_t)(wait_ms / 2));
}

bool agent_lost_controller(int64_t silent_ms, int64_t heartbeat_ms)
{
    const int64_t limit_ms = SILENT_HEARTBEATS * heartbeat_ms;

    return silent_ms > (limit_ms > CONTROLLER_SILENT_MS ? limit_ms : CONTROLLER_SILENT_MS);
}

void agent_soon(struct agent *agent)
{
    if (!uv_is_active((uv_handle_t *)&agent->soon) && !uv_is_closing((uv_handle_t *)&agent->soon))
        (void)uv_timer_start(&agent->soon, agent->on_soon, 0, 0);
}

bool agent_ends_ranks(const struct agent *agent)
{
    return agent->options.ephemeral || agent->options.leave_within_ms;
}

void agent_leave(struct agent *agent)
{
    const int64_t within_ms = agent->options.leave_within_ms;

    agent->leave_deadline_ms = hd_clock_now_ms() + within_ms;
    (void)snprintf(agent->refuses_attempts, sizeof agent->refuses_attempts,
                   "takes no new jobs: its heddled ends (--leave-within)");
    hd_log(HD_LOG_INFO, "jobs leave this node at a checkpoint, within %" PRId64 " s",
           within_ms / 1000);
    hd_notify_stopping();
    agent->observed_dirty = true;
    agent_soon(agent);
}

void agent_leave_tick(struct agent *agent)
{
    if (!agent->leave_deadline_ms || agent->stopping)
        return;
    if (!agent->locals.first) {
        agent_end(agent, EXIT_SUCCESS);
    } else if (hd_clock_now_ms() >= agent->leave_deadline_ms) {
        hd_log(HD_LOG_WARN, "the time to leave is over: %s",
               agent->welcomed ? "attempts that still run here go on from older checkpoints"
                               : "the controller, which would have stopped them, is not connected");
        agent_end(agent, EXIT_SUCCESS);
    }
}

void agent_end(struct agent *agent, int exit_code)
{
    if (agent->stopping)
        return;
    agent->stopping = true;
    agent->exit_code = exit_code;
    agent->stop_deadline_ms = hd_clock_now_ms() + KILL_MS;
    if (!agent->start_again)
        hd_notify_stopping();
    if (locals_any_alive(&agent->locals))
        hd_log(HD_LOG_INFO, "stopping; %s",
               agent_ends_ranks(agent) ? "ending all ranks first"
                                       : "ranks go on with their supervisors");
    for (struct agent_attempt *l = agent->locals.first; l && agent_ends_ranks(agent); l = l->next)
        if (l->state == LOCAL_ALIVE)
            local_kill(l);
}
