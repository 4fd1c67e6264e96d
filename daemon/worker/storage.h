/* storage: handles a disk that accepts no writes (docs/decisions/full-disks.md): reports it, and
 * retries.
 *
 * All ranks of an attempt call these functions together and get the same results; rank 0 reports.
 *
 * Used by: rank.c.   Uses: link, train, checkpoint.   Threads: one.
 */
#ifndef HD_DAEMON_WORKER_STORAGE_H
#define HD_DAEMON_WORKER_STORAGE_H

#include "link/link.h"
#include "train/train.h"

struct storage {
    int64_t rank;
    struct hd_link *link;
    struct hd_trainer *trainer;
    /* Callback that polls for commands; it returns true if this rank was told to stop. */
    bool (*hear_stop)(void *user);
    void *user;

    /* text of the problem reported last, a string literal; NULL: no problem is reported */
    const char *problem;
    int64_t problem_ms; /* time at which `problem` was reported last, ms */
};

/* Reports to the supervisor what the ranks do about the disk (`what`) and why; `what` NULL: the
 * problem is over. A problem whose text differs only in numbers is not reported every second.
 * Returns true if this call sent a report. */
bool storage_report(struct storage *s, const char *what, const char *why);

/* Retries `act` until it does not fail with HD_STORAGE; meanwhile reports the text `what`.
 * *stopped: true if the run is already stopping; the function sets it if the run is told to stop
 * meanwhile. In both cases it gives up: it reports the text `left`, sets *ret_left to true and
 * returns HD_OK. *ret_waited_ms: ms that it waited; -1: `act` did not fail with HD_STORAGE. */
typedef enum hd_status storage_act_fn(void *user);
enum hd_status storage_until_done(struct storage *s, storage_act_fn *act, const char *what,
                                  const char *left, bool *stopped, bool *ret_left,
                                  int64_t *ret_waited_ms);

/* Removes, on rank 0, partial checkpoints of killed ranks of earlier attempts, which use the disk
 * space of the next one. */
void storage_clean_up(const char *attempt_dir, int64_t attempt);

#endif
