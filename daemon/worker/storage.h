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
    /* Polls for commands; returns true if this rank was told to stop. */
    bool (*hear_stop)(void *user);
    void *user;

    const char *problem; /* the problem reported last, a string literal; NULL: none */
    int64_t problem_ms;  /* time of that report */
};

/* Reports `what` the ranks do, and why; `what` NULL: the problem is over. A problem whose text
 * differs only in numbers is not reported every second. Returns true if it was reported. */
bool storage_report(struct storage *s, const char *what, const char *why);

/* Retries `act` until it does not fail with HD_STORAGE; meanwhile `what` is reported. *stopped:
 * true if the run is already stopping; set if it is told to stop while it waits. In both cases the
 * retries end, `left` is reported, *ret_left is true and HD_OK is returned. *ret_waited_ms: -1 if
 * there was no wait. */
typedef enum hd_status storage_act_fn(void *user);
enum hd_status storage_until_done(struct storage *s, storage_act_fn *act, const char *what,
                                  const char *left, bool *stopped, bool *ret_left,
                                  int64_t *ret_waited_ms);

/* Removes, on rank 0, partial checkpoints of killed ranks of earlier attempts, which use the disk
 * space of the next one. */
void storage_clean_up(const char *attempt_dir, int64_t attempt);

#endif
