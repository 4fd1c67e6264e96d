/* rate: limits log lines that an unauthenticated connection can cause to one in ten seconds.
 *
 * Used by: the files of rpc.   Uses: base.   Threads: one.
 */
#ifndef HD_RPC_RATE_H
#define HD_RPC_RATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

enum { HD_RPC_RATE_INTERVAL_MS = 10000 };

struct hd_rpc_rate { /* initialise with {0} */
    int64_t next_ms;
    size_t left_out; /* number of events that were not logged since the last log line */
};

/* Returns whether this event gets a log line. If so, sets *ret_left_out to the number of events
 * that were not logged since the last line. */
static inline bool hd_rpc_rate_allows(struct hd_rpc_rate *rate, size_t *ret_left_out)
{
    int64_t now_ms = hd_clock_now_ms();

    if (now_ms < rate->next_ms) {
        rate->left_out++;
        return false;
    }
    *ret_left_out = rate->left_out;
    rate->left_out = 0;
    rate->next_ms = now_ms + HD_RPC_RATE_INTERVAL_MS;
    return true;
}

#endif
