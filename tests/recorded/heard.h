/* heard: how far the other side of a node's stream has come.
 *
 * The stream is level-triggered (fleet.proto): complete sets may come twice, or not at all if a
 * newer one replaces them. So two conversations are compared by what their last sets say, not by
 * their number of messages. It is read from plain_print's text, by the recorded build's field
 * numbers.
 *
 * Used by: tests/recorded.   Uses: plain, job.   Threads: none of its own.
 */
#ifndef HD_TESTS_RECORDED_HEARD_H
#define HD_TESTS_RECORDED_HEARD_H

#include "plain.h"

enum { HEARD_RANKS_MAX = 16 };

/* The reports of one rank that were acknowledged. */
struct heard_rank {
    int64_t job, attempt, rank, seq;
};

struct heard {
    /* of a controller */
    bool welcome;
    uint64_t generation;
    char desired[256], probe_text[128], jobs_dir[256], probe_file[64];
    struct heard_rank ranks[HEARD_RANKS_MAX];
    int rank_count;
    uint64_t nonce;
    uint64_t log_request; /* the newest */
    /* of a node */
    bool hello;
    char node_uuid[64], observed[256];
};

/* Takes in one message, as text. */
void heard_take(struct heard *heard, const char *text);

/* Whether `other` has said at least what `recorded` had said, heartbeats apart. */
bool heard_reaches(const struct heard *recorded, const struct heard *other);

/* The value behind `name=` of the first line that begins so; false: there is none. Ends at the
 * line's end, cut to size_bytes. */
bool heard_value(const char *text, const char *name, char *ret_value, size_t size_bytes);

/* Removes the lines whose fields differ in any two runs: times, builds, random names, numbers of
 * streams; and the keys of a job that may be left out of it (JobSpec.sparse). */
void heard_mask(const char *text, struct hd_text *ret_text);

/* Whether all lines of `old` are lines of `new`, in their order, places in lists apart. What a
 * newer build says beside that is a key or a fact that the older one did not know. */
bool heard_contains(const char *new, const char *old);

#endif
