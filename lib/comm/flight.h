/* flight: the flight recorder: the last HD_FLIGHT_MAX operations of a rank, each with its state and
 * the time when the state began. It also keeps the number of collectives entered per group, which
 * operations of other groups do not overwrite.
 *
 * Every endpoint records its own rank. On shm the record is in the control block, where the parent
 * and the peers can read it even after the rank has died (shm_control.h). The message of a failed
 * collective names the rank that is behind; the worker writes the records to its log.
 *
 * An endpoint also publishes the rank that it waits for on the host, refreshed ten times a second:
 * a wait that is not refreshed is over, or its process is stopped.
 *
 * Used by: supervisor, worker, tests.   Uses: base.
 * Threads: any; a record that is being written during the read is left out. */
#ifndef HD_COMM_FLIGHT_H
#define HD_COMM_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

enum { HD_FLIGHT_MAX = 64 }; /* operations recorded per rank */

enum hd_flight_state {
    HD_FLIGHT_QUEUED,  /* launched, but waits for earlier operations of its stream */
    HD_FLIGHT_ENTERED, /* this rank waits for the other members to enter */
    HD_FLIGHT_MOVING,  /* bytes are being copied or added; on a device: the work is enqueued */
    HD_FLIGHT_LEAVING, /* this rank's work is done; it waits for the other members to finish
                          theirs */
    HD_FLIGHT_COMPLETE,
};

struct hd_flight_record {
    uint64_t launch;  /* number of the operation on this rank, from 1 */
    uint64_t seq;     /* sequence number in the group (shift, send and recv: in the pair), from 1 */
    uint64_t bytes;   /* count * bytes of an element; all_to_all_v: bytes of one row */
    int64_t since_ms; /* hd_clock_now_ms when the state began */
    char kind[16];    /* kind of operation, such as "all_reduce" */
    char group[16];   /* name of the group, such as "dp" */
    char stream[16];  /* name of the stream, such as "reduce" */
    int32_t peer;     /* rank of the peer (send, receive) or of the root (broadcast); -1: none */
    bool is_of_a_pair;
    enum hd_flight_state state;
};

/* The wait that a rank last published. */
struct hd_flight_wait {
    bool is_reported; /* false: the rank's waits are not visible, because it waits for its peers on
                         a device, or its endpoint is not open */
    bool waits;
    int rank;                  /* rank that is waited for; -1: unknown */
    int64_t since_ms, seen_ms; /* hd_clock_now_ms: when the wait last made progress; when the rank
                                  last refreshed this report */
    bool has_record;           /* false: the operation's record was overwritten */
    struct hd_flight_record record;
};

const char *hd_flight_state_name(enum hd_flight_state state);

/* Writes "all_reduce #41 of group dp (1.2 MiB), entered". */
void hd_flight_describe(const struct hd_flight_record *record, char *ret_text, size_t size_bytes);

/* Describes the operations of a dead or stopped rank, as a continuation of a message: "; it was in
 * send #3 of group F 0>2 (2.0 KiB), entered and all_gather #9 of group dp (1.2 MiB), moving". Lists
 * the operations that have begun and are not complete, oldest first, at most HD_FLIGHT_OPEN_MAX; a
 * pipeline stage has several at once, among them prefetched transfers. If the newest operation is
 * not among them, adds "; its last collective was .., complete". Writes "" if there are no records.
 */
enum { HD_FLIGHT_OPEN_MAX = 4 };
void hd_flight_describe_open(const struct hd_flight_record *records, int count, char *ret_text,
                             size_t size_bytes);

/* Appends to the text a heading with the rank, then one line per flight record, oldest first.
 * now_ms: hd_clock_now_ms, from which the age of each state is computed. */
void hd_flight_add_text(const struct hd_flight_record *records, int count, int rank, int64_t now_ms,
                        struct hd_text *text);

#endif
