/* reconcile: what to do, given what a node should have and what it has.
 *
 * A pure comparison of two complete sets; it is made again after every change of either side, and
 * making it twice changes nothing. No order of messages, restarts or lost connections matters, only
 * the two sets do.
 *
 *   wanted \ here   nothing   planned   alive   stopping   dying   ended
 *   running         launch*   launch*   -       -          -       -
 *   stopping        -         forget    stop    -          -       -
 *   stopped         -         forget    kill    kill       -       -
 *   not listed      -         forget    kill    kill       -       forget
 *
 *   *  only when nothing that is not listed is still alive: it may hold the devices. (The
 * controller knows which devices a listed attempt holds.)
 *
 * Rules
 *  1. An attempt is launched at most once: nothing that was ever alive is launched again.
 *  2. What is wanted running is never stopped or killed here; a stop is never taken back.
 *  3. Nothing is forgotten that may have a living process.
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
    HD_HERE_PLANNED,  /* on record, its supervisor was not started yet */
    HD_HERE_ALIVE,    /* it has, or may have, a supervisor */
    HD_HERE_STOPPING, /* the same, and it was told to stop */
    HD_HERE_DYING,    /* the same, and it was told to end at once */
    HD_HERE_ENDED,    /* no process is left */
};

struct hd_here {
    int64_t job, attempt;
    enum hd_here_state state;
};

enum hd_deed { HD_DEED_LAUNCH, HD_DEED_STOP, HD_DEED_KILL, HD_DEED_FORGET };

struct hd_action {
    enum hd_deed deed;
    size_t wanted_index; /* LAUNCH: into wanted */
    size_t here_index;   /* into here; SIZE_MAX: LAUNCH of what is not on record */
};

/* Compares the sets, each without repetitions, in any order. ret_actions has room for
 * wanted_count + here_count; returns how many there are. Kills and stops come before launches. */
size_t hd_reconcile(const struct hd_wanted_attempt *wanted, size_t wanted_count,
                    const struct hd_here *here, size_t here_count, struct hd_action *ret_actions);

#endif
