/* ranks: runs one function as several ranks, as threads of this process or as forked processes, and
 * plays the supervisor for them. Both ways attach by the same path.
 *
 * A body says CHECK and returns at the first failure; what it found comes back in its report.
 */
#ifndef HD_TESTS_COMM_RANKS_H
#define HD_TESTS_COMM_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "comm/comm.h"
#include "comm/shm_control.h"
#include "kernels/kernels.h"

enum ranks_as { AS_THREADS, AS_PROCESSES };

/* Which engine connects the ranks. The same cases run once for each. */
/* NODES: nccl over gloo between processes, the first half of which are on another node. */
enum ranks_engine { ENGINE_SHM, ENGINE_GLOO, ENGINE_LOCAL, ENGINE_NCCL, ENGINE_NODES };
extern enum ranks_engine ranks_engine; /* ENGINE_SHM, unless the test says otherwise */
#define RANKS_ON_DEVICE (ranks_engine >= ENGINE_LOCAL)

/* Takes `--engine shm|gloo|local|nccl|nodes` from the command line. */
void ranks_read_engine(int argc, char **argv);

enum { RANKS_MAX = 8, NUMBERS_MAX = 64 };

/* Results of one rank; in memory shared with the parent. */
struct report {
    bool finished;
    char failed[512]; /* the check that failed, "" for none */
    enum hd_status status;
    char message[HD_ERR_MAX];
    int64_t took_ms;
    uint64_t hash; /* of results, to compare runs */
    uint64_t numbers[NUMBERS_MAX];
    _Atomic int mark; /* to meet the parent at a point */
};

struct rank {
    int rank, world;
    struct hd_comm *comm; /* attached, with registered memory */
    char *base;           /* of registered memory */
    int32_t *counts;      /* [64], also there, at its end: what a device reads of an all_to_all_v */
    const struct hd_backend_table *table; /* on a device: of the rank's own backend; else NULL */
    struct hd_backend *backend;
    struct report *report;
    const void *arg;
};

/* How to run. On one device all ranks are threads, on nodes processes, whatever is asked. Zero
 * fields: as threads, 1 MiB visible, a deadline of 60 s. */
enum { RANKS_PIECE = 1 << 20 };

struct ranks {
    int world;
    enum ranks_as as;
    size_t registered_bytes;
    int64_t deadline_ms;
    void (*body)(struct rank *self);
    const void *arg;
    bool native; /* nccl: sums in its own order */
    int64_t
        piece_bytes; /* nccl: of a sum; 0: RANKS_PIECE, so that tests of large sums have several */
    /* called in the parent while the ranks run; may be NULL. ctl: NULL on gloo, which has none;
     * pids: NULL of threads */
    void (*parent)(struct hd_shm_control *ctl, const pid_t *pids, struct report *reports);
};

/* Runs on ranks_engine, waits for all ranks, fails the test when a rank failed a check or did not
 * finish (unless `may_die`). *ret_reports: [world], valid until the next run; free with ranks_free.
 */
#define ranks_run(ranks, may_die) ranks_run_on(ranks_engine, ranks, may_die)
struct report *ranks_run_on(enum ranks_engine engine, const struct ranks *ranks, bool may_die);
void ranks_free(struct report *reports);

/* ---- for bodies ---- */

/* How a call ended that began at `since_ms`, with this thread's story if it failed. */
void note_end(struct rank *self, enum hd_status st, int64_t since_ms);
/* All ranks (threads) have come so far; from now on nothing may stand for longer. */
void set_deadline_together(struct rank *self, int64_t deadline_ms);
/* Far more operations than a flight record holds, on the stream pipeline. Of three ranks: in groups
 * of the first two and of the last, so that nobody waits for that one. */
void meet_elsewhere(struct rank *self);

/* ---- for the parent ---- */

/* Until the first `count` ranks have set their mark. */
void wait_for_marks(struct report *reports, int count);
void assert_says(const struct report *report, const char *text);

void rank_failed(struct rank *self, const char *file, int line, const char *what);
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count);

#define CHECK(self, condition)                                 \
    do {                                                       \
        if (!(condition)) {                                    \
            rank_failed(self, __FILE__, __LINE__, #condition); \
            return;                                            \
        }                                                      \
    } while (0)

#define CHECK_OK(self, call)                              \
    do {                                                  \
        if ((call) != HD_OK) {                            \
            rank_failed(self, __FILE__, __LINE__, #call); \
            return;                                       \
        }                                                 \
    } while (0)

#endif
