/* flight: the flight recorder, the last collectives of a rank: which, how far each has come, and
 * since when; and how many it has entered in each group, ever, for in a busy group a record is
 * overwritten while ranks of another wait.
 *
 * Every endpoint keeps one for its own rank; on shm it lies in the control block, where the parent
 * and the peers can read it, also after the death of the rank (shm_control.h). Whoever fails in a
 * collective says in its story which rank is behind, and the records go to the rank's log.
 *
 * Used by: supervisor, worker, tests.   Uses: base.
 * Threads: any; of a living rank the newest record may be half written and is left out then.
 */
#ifndef HD_COMM_FLIGHT_H
#define HD_COMM_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

enum { HD_FLIGHT_MAX = 64 }; /* collectives remembered per rank */

enum hd_flight_state {
    HD_FLIGHT_QUEUED,  /* launched, waits for its turn on the stream */
    HD_FLIGHT_ENTERED, /* waits for the other members to enter */
    HD_FLIGHT_MOVING,  /* copies or adds */
    HD_FLIGHT_LEAVING, /* its part is done, waits for the others */
    HD_FLIGHT_COMPLETE,
};

struct hd_flight_record {
    uint64_t launch;  /* counts this rank's launches, 1.. */
    uint64_t seq;     /* place in the order of the group (of the pair, for shift, send and recv) */
    uint64_t bytes;   /* count * bytes of an element; all_to_all_v: of one row */
    int64_t since_ms; /* hd_clock_now_ms when it came into its state */
    char kind[16];    /* "all_reduce" */
    char group[16];   /* "dp" */
    char stream[16];  /* "reduce" */
    int32_t peer;     /* rank of the peer or root; -1: none */
    bool is_of_a_pair;
    enum hd_flight_state state;
};

const char *hd_flight_state_name(enum hd_flight_state state);

/* "all_reduce #41 of group dp (1.2 MiB), entered" */
void hd_flight_describe(const struct hd_flight_record *record, char *ret_text, size_t size_bytes);

/* One line per record, oldest first, under a heading that names the rank. */
void hd_flight_add_text(const struct hd_flight_record *records, int count, int rank, int64_t now_ms,
                        struct hd_text *text);

#endif
