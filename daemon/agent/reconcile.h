/* reconcile: computes the actions that turn a node's actual attempts into the desired ones.
 *
 * A pure comparison of two complete sets; it is repeated after every change of either set and is
 * idempotent. The order of messages, restarts and lost connections does not matter, only the two
 * sets do.
 *
 *   wanted \ here   nothing   planned   alive   stopping   dying   ended
 *   running         launch*   launch*   -       -          -       -
 *   stopping        -         forget    stop    -          -       -
 *   stopped         -         forget    kill    kill       -       -
 *   not listed      -         forget    kill    kill       -       forget
 *
 *   *  only when no unlisted attempt is still alive: it may hold the devices. (The controller knows
 *      which devices a listed attempt holds.)
 *
 * Rules
 *  1. An attempt is launched at most once: nothing that was ever alive is launched again.
 *  2. An attempt wanted running is never stopped or killed here; a stop is never taken back.
 *  3. No attempt is forgotten that may have a living process.
 *
 * Used by: agent, tests.   Uses: libc.   Threads: any.
 */
#ifndef HD_DAEMON_AGENT_RECONCILE_H
#define HD_DAEMON_AGENT_RECONCILE_H

#include <stddef.h>
#include <stdint.h>

enum hd_target_state { HD_TARGET_RUNNING, HD_TARGET_STOPPING, HD_TARGET_STOPPED };

struct hd_wanted_attempt {
    int64_t job, attempt;
    enum hd_target_state target;
};

enum hd_here_state {
    HD_HERE_PLANNED,  /* attempt is recorded; its supervisor was not started yet */
    HD_HERE_ALIVE,    /* a supervisor runs, or may run */
    HD_HERE_STOPPING, /* supervisor is alive, and was told to stop */
    HD_HERE_DYING,    /* supervisor is alive, and was told to end at once */
    HD_HERE_ENDED,    /* no process of the attempt is left */
};

struct hd_here {
    int64_t job, attempt;
    enum hd_here_state state;
};

enum hd_deed { HD_DEED_LAUNCH, HD_DEED_STOP, HD_DEED_KILL, HD_DEED_FORGET };

struct hd_action {
    enum hd_deed deed;
    size_t wanted_index; /* index into `wanted` of an attempt to LAUNCH */
    /* index into `here` of the attempt; SIZE_MAX: LAUNCH of an attempt without a record */
    size_t here_index;
};

/* Compares the wanted attempts with those on this node; each set has no repetitions and any order.
 * ret_actions has space for wanted_count + here_count entries; returns the number of actions. Kills
 * and stops come before launches. */
size_t hd_reconcile(const struct hd_wanted_attempt *wanted, size_t wanted_count,
                    const struct hd_here *here, size_t here_count, struct hd_action *ret_actions);

#endif
