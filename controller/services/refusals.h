/* refusals: audit rows for refused calls, with a bound against floods.
 *
 * Refusals are of one kind if caller, role, method, host and result are equal. Within a kind, the
 * first refusal of each object gets a row of its own at once, for at most REFUSAL_OBJECTS objects
 * per window. All others are counted; one row with their number follows at the end of the window. A
 * window is a minute and doubles while refusals continue, up to an hour. So a caller who is refused
 * for a whole day leaves a few dozen rows per method.
 *
 * Counts that have no row yet are lost if the controller is killed, or ends while its disk takes no
 * writes.
 *
 * Used by: guard, tests.   Uses: core's records, base.   Threads: one owner at a time.
 */
#ifndef HD_CONTROLLER_SERVICES_REFUSALS_H
#define HD_CONTROLLER_SERVICES_REFUSALS_H

#include "controller/core/record.h"

enum {
    /* limit of objects with an audit row of their own per kind and window */
    REFUSAL_OBJECTS = 8,
    /* limit of kinds at a time; refusals of further kinds share one count */
    REFUSALS_MAX = 512,
    REFUSAL_WINDOW_MS = 60 * 1000,   /* length of a kind's first window, ms */
    REFUSAL_WINDOW_MAX_MS = 3600000, /* length of a kind's longest window, ms */
    REFUSAL_RESULT_MAX = 64,
};

struct refusals;

struct refusals *refusals_new(void); /* returns NULL if out of memory */
void refusals_free(struct refusals *all);

/* Counts a refused call. Returns true if the caller must write `record` to the audit log now; false
 * if the refusal goes into a later summary row. can_write false: the log takes no writes, so the
 * refusal always goes into the summary. now_ms: monotonic. */
bool refusals_take(struct refusals *all, const struct hd_audit_record *record, bool can_write,
                   int64_t now_ms);

/* Makes the summary row of the next kind whose window is over; all_of_them: of the next kind with
 * counted refusals. Returns false if there is none. Strings of *ret_record live until the next
 * call; its time is not set. */
bool refusals_next(struct refusals *all, int64_t now_ms, bool all_of_them,
                   struct hd_audit_record *ret_record);

#endif
