/* copies: copies of checkpoints to an object store, for jobs with checkpoint.copy_to.
 *
 *     STATE_DIR/copies/JOB           one job whose checkpoints this node copies: its folder, where to,
 *                                    and how many copies are kept
 *     STATE_DIR/copies/JOB.problem   why its last copy failed; absent: it did not fail
 *
 * The node of rank 0 copies. A thread looks for complete checkpoints in the job's folder and copies
 * the newest that has no copy, to PREFIX/attempt-K/step-N, its manifest last. A copy that fails or is
 * interrupted, also by the end of heddled, begins again and sends only files that are not there.
 * Training never waits: the thread has a low priority, and only the deletion of the checkpoint that
 * is being copied waits for it (copies_is_busy).
 *
 * A checkpoint that is deleted before its turn is not copied. After a copy, older copies are removed
 * but the newest `keep` of them and those whose checkpoints are still there. A job's record is
 * removed when no attempt of it runs here, all its checkpoints have copies, and the controller was
 * told of these.
 *
 * Used by: its own package.   Uses: base, checkpoint, hub, job.
 * Threads: a thread of its own copies; only the agent's loop may call these functions.
 */
#ifndef HD_DAEMON_AGENT_COPIES_H
#define HD_DAEMON_AGENT_COPIES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct agent_copies;

/* A copy that was finished since heddled's start. */
struct copies_done {
    int64_t job, attempt, step;
    int64_t time_ms;   /* wall-clock time of its end; larger for each later one */
    char to[PATH_MAX]; /* name of the copy */
};

enum { COPIES_DONE_MAX = 16 }; /* finished copies that are remembered */

struct copies_stats {
    int64_t done, failed;  /* copies since heddled's start */
    int64_t sent_bytes;    /* bytes that were sent since heddled's start */
    int64_t waiting;       /* complete checkpoints without a copy */
    double oldest_seconds; /* age of the oldest of them, s; 0: none */
};

/* Reads the records. If the S3 settings are valid and their keys come from AWS_ACCESS_KEY_ID, takes
 * the keys out of the environment, which supervisors and ranks inherit; otherwise the environment
 * stays as it is. cluster: id of the cluster, borrowed; part of the owner that claims a prefix
 * (hd_s3_claim). */
enum hd_status copies_open(const char *state_dir, const char *cluster,
                           struct agent_copies **ret_copies);
void copies_close(struct agent_copies *copies); /* interrupts a copy; NULL: does nothing */

/* Records a job, if its resolved text has checkpoint.copy_to. attempt_dir: JOBS_DIR/JOB/attempt-K. */
void copies_add(struct agent_copies *copies, int64_t job, const char *attempt_dir,
                const char *resolved_job);
/* Asks is_alive of each recorded job whether an attempt of it runs on this node. Call from time to
 * time: a job is forgotten only after is_alive has returned false for it. */
void copies_set_alive(struct agent_copies *copies, bool (*is_alive)(const void *user, int64_t job),
                      const void *user);
/* Returns whether the checkpoint in this folder is being copied. copies NULL: false. */
bool copies_is_busy(struct agent_copies *copies, const char *checkpoint_dir);
/* Sets ret_text to why the job's last copy failed; "": it did not fail, or none was tried. */
void copies_get_problem(struct agent_copies *copies, int64_t job, char *ret_text, size_t size);
/* Returns the time of the newest finished copy; 0: none. */
int64_t copies_newest_ms(struct agent_copies *copies);
/* Says that the controller was told of the finished copies up to this time. */
void copies_set_told(struct agent_copies *copies, int64_t time_ms);
/* Sets ret_done to the newest finished copies, the oldest first; returns their number. */
size_t copies_get_done(struct agent_copies *copies, struct copies_done ret_done[COPIES_DONE_MAX]);
void copies_get_stats(struct agent_copies *copies, struct copies_stats *ret_stats);

#endif
