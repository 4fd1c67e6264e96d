/* storage: what a rank does about a disk that takes no writes (docs/decisions/full-disks.md): it
 * says so, and tries again.
 *
 * All ranks of an attempt call these together and get the same results; rank 0 speaks for them.
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
    /* Hears commands; true: this rank was told to stop. */
    bool (*hear_stop)(void *user);
    void *user;

    const char *problem; /* what is reported now, as a whole text of the program; NULL: nothing */
    int64_t problem_ms;  /* since when */
};

/* Reports `what` the ranks do, and why; `what` NULL: that is over. What differs in its numbers
 * alone is not reported each second. True: it was reported. */
bool storage_report(struct storage *s, const char *what, const char *why);

/* Does `act` until it does not fail with HD_STORAGE; meanwhile `what` is reported. *stopped: the
 * run is to stop, or (set on return) was told to: then it is not waited, `left` is reported,
 * *ret_left is true and HD_OK returned. *ret_waited_ms: -1 without a wait. */
typedef enum hd_status storage_act_fn(void *user);
enum hd_status storage_until_done(struct storage *s, storage_act_fn *act, const char *what,
                                  const char *left, bool *stopped, bool *ret_left,
                                  int64_t *ret_waited_ms);

/* By rank 0: removes what killed ranks of earlier attempts have left of checkpoints, which would
 * take the room of the next one. */
void storage_clean_up(const char *attempt_dir, int64_t attempt);

#endif
