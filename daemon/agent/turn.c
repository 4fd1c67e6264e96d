/* What every file of the daemon may ask of its loop: a turn soon, and the end. */
#include "base/clock.h"
#include "base/log.h"
#include "base/notify.h"
#include "daemon/agent/agent.h"

enum { EPHEMERAL_END_MS = 8000 }; /* for supervisors to end their ranks, with --ephemeral */

void agent_soon(struct agent *agent)
{
    if (!uv_is_active((uv_handle_t *)&agent->soon) && !uv_is_closing((uv_handle_t *)&agent->soon))
        (void)uv_timer_start(&agent->soon, agent->on_soon, 0, 0);
}

void agent_end(struct agent *agent, int exit_code)
{
    if (agent->stopping)
        return;
    agent->stopping = true;
    agent->exit_code = exit_code;
    agent->stop_deadline_ms = hd_clock_now_ms() + EPHEMERAL_END_MS;
    hd_notify_stopping();
    if (locals_any_alive(&agent->locals))
        hd_log(HD_LOG_INFO, "stopping; %s",
               agent->options.ephemeral ? "ending all ranks first (--ephemeral)"
                                        : "ranks go on with their supervisors");
    for (struct agent_attempt *l = agent->locals.first; l && agent->options.ephemeral; l = l->next)
        if (l->state == LOCAL_ALIVE)
            local_kill(l);
}
