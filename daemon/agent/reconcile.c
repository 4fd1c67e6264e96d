#include "daemon/agent/reconcile.h"

#include <stdbool.h>

static size_t find_wanted(const struct hd_wanted_attempt *wanted, size_t count,
                          const struct hd_here *here)
{
    for (size_t i = 0; i < count; i++)
        if (wanted[i].job == here->job && wanted[i].attempt == here->attempt)
            return i;
    return SIZE_MAX;
}

static size_t find_here(const struct hd_here *here, size_t count,
                        const struct hd_wanted_attempt *wanted)
{
    for (size_t i = 0; i < count; i++)
        if (here[i].job == wanted->job && here[i].attempt == wanted->attempt)
            return i;
    return SIZE_MAX;
}

static bool has_process(enum hd_here_state state)
{
    return state == HD_HERE_ALIVE || state == HD_HERE_STOPPING || state == HD_HERE_DYING;
}

/* Sets the action for a recorded attempt; returns false if none is needed. target NULL: the
 * controller does not list the attempt. */
static bool deed_for_here(enum hd_here_state state, const enum hd_target_state *target,
                          enum hd_deed *ret_deed)
{
    if (target && *target == HD_TARGET_RUNNING)
        return false; /* launches are decided after all attempts were examined */
    switch (state) {
    case HD_HERE_PLANNED:
        *ret_deed = HD_DEED_FORGET;
        return true;
    case HD_HERE_ALIVE:
        *ret_deed = target && *target == HD_TARGET_STOPPING ? HD_DEED_STOP : HD_DEED_KILL;
        return true;
    case HD_HERE_STOPPING:
        *ret_deed = HD_DEED_KILL;
        return !target || *target == HD_TARGET_STOPPED;
    case HD_HERE_DYING:
        return false;
    case HD_HERE_ENDED:
        *ret_deed = HD_DEED_FORGET;
        return !target;
    }
    return false;
}

size_t hd_reconcile(const struct hd_wanted_attempt *wanted, size_t wanted_count,
                    const struct hd_here *here, size_t here_count, struct hd_action *ret_actions)
{
    bool must_go_first = false;
    size_t count = 0;

    for (size_t i = 0; i < here_count; i++) {
        const size_t w = find_wanted(wanted, wanted_count, &here[i]);
        const enum hd_target_state *target = w == SIZE_MAX ? NULL : &wanted[w].target;
        enum hd_deed deed;

        if (has_process(here[i].state) && !target)
            must_go_first = true;
        if (deed_for_here(here[i].state, target, &deed))
            ret_actions[count++] = (struct hd_action){deed, w, i};
    }
    for (size_t w = 0; w < wanted_count && !must_go_first; w++) {
        const size_t i = find_here(here, here_count, &wanted[w]);

        if (wanted[w].target == HD_TARGET_RUNNING &&
            (i == SIZE_MAX || here[i].state == HD_HERE_PLANNED))
            ret_actions[count++] = (struct hd_action){HD_DEED_LAUNCH, w, i};
    }
    return count;
}
