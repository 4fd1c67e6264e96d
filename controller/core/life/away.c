/* away: detects that the controller itself was paused (SIGSTOP, a suspended machine).
 *
 * The services send a tick every second. If no event came for longer, messages of nodes were not
 * read meanwhile, and their streams may have ended because nothing was answered. The pause
 * therefore does not count as silence of the nodes; they have restart_grace_ms to be heard again,
 * as after a start of the controller; and deadlines for answers of nodes move by the length of the
 * pause. Silence before the pause does count: a controller that pauses again and again still loses
 * a node that is gone.
 */
#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

/* Shortest gap between events that counts as a pause, in milliseconds; a shorter one is a busy
 * machine. Much less than unreachable_ms. */
enum { AWAY_MS = 5000 };

static void put_off(struct core_job *job, int64_t away_ms)
{
    struct core_attempt *attempt = core_active(job);

    if (attempt && attempt->rec.state != HD_ATTEMPT_STATE_RUNNING) /* the attempt is STARTING or
                                                                    * STOPPING */
        attempt->state_since_mono_ms += away_ms;
}

void core_away(struct hd_core *core, int64_t before_ms)
{
    const int64_t away_ms = core->now.mono_ms - before_ms;

    if (away_ms < AWAY_MS || !core->listens)
        return;
    core->away_ms += away_ms;
    for (size_t i = 0; i < core->node_count; i++)
        core_node_pardon(core, core->nodes[i], away_ms);
    for (size_t i = 0; i < core->active.count; i++)
        put_off(core->active.items[i], away_ms);
    for (size_t i = 0; i < core->searching.count; i++)
        core->searching.items[i]->search_since_mono += away_ms;
}

void core_report_away(struct hd_core *core)
{
    core->listens = true;
    if (!core->away_ms)
        return;
    core_event_controller_away(core);
    core->away_ms = 0;
}
