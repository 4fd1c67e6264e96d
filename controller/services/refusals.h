/* refusals: rows of the audit log for calls that failed, without a row for each of a flood.
 *
 * Failures are alike if caller, role, method, host and result are the same. Of those that are
 * alike, the first of each object has a row of its own at once, for at most REFUSAL_OBJECTS
 * objects. All others are counted, and a row with their number follows at the end of a window: a
 * minute, and while they go on twice as long each time, at most an hour. So a caller who is refused
 * for a whole day leaves a few dozen rows for each method.
 *
 * What is counted and has no row yet is lost if the controller is killed, or
 * ends while its disk takes no writes.
 *
 * Used by: guard, tests.   Uses: core's records, base.   Threads: one owner at a time.
 */
#ifndef HD_CONTROLLER_SERVICES_REFUSALS_H
#define HD_CONTROLLER_SERVICES_REFUSALS_H

#include "controller/core/record.h"

enum {
    REFUSAL_OBJECTS = 8,             /* rows of their own in a window */
    REFUSALS_MAX = 512,              /* kinds at a time; further ones are counted together */
    REFUSAL_WINDOW_MS = 60 * 1000,   /* the first window */
    REFUSAL_WINDOW_MAX_MS = 3600000, /* and the longest */
    REFUSAL_RESULT_MAX = 64,
};

struct refusals;

struct refusals *refusals_new(void); /* NULL: no memory */
void refusals_free(struct refusals *all);

/* True: the row is to be written now; never if it cannot be (!can_write). False: it was counted.
 * now_ms: monotonic. */
bool refusals_take(struct refusals *all, const struct hd_audit_record *record, bool can_write,
                   int64_t now_ms);

/* The next row whose window is over, or with `all_of_them` the next that has counted something.
 * False: there is none. Texts of *ret_record live until the next call. Its time is not set. */
bool refusals_next(struct refusals *all, int64_t now_ms, bool all_of_them,
                   struct hd_audit_record *ret_record);

#endif
