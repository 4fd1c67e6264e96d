/* shm_control: the memory through which the ranks of one node meet, made by their parent.
 *
 * The parent makes one control block and one (still empty) region per rank, all memfds without a
 * name, close-on-exec. It hands the descriptors to its workers, and tells the block when one of
 * them has died: all waiters wake within milliseconds and return with that reason.
 *
 *     hd_shm_control_new(world, &ctl);
 *     hd_shm_control_format(ctl, text, sizeof text);        // "5,6,7": control, rank 0, rank 1
 *     if (!fork()) { hd_shm_control_keep_over_exec(ctl); setenv(..., text); execv(worker); }
 *     ...
 *     hd_shm_control_mark_dead(ctl, rank, "rank 1 was killed by signal 9");
 *
 * and the worker: hd_shm_control_parse(getenv(...), &fds), then hd_comm_open_shm.
 *
 * Do not mark a rank dead that ended well: what its peers still do may not need it.
 *
 * Used by: supervisor, worker, tests.   Uses: base, comm.h (the limit).
 * Threads: a control may be used by several threads; new and free by one.
 */
#ifndef HD_COMM_SHM_CONTROL_H
#define HD_COMM_SHM_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/comm.h"
#include "comm/flight.h"

struct hd_shm_control;

enum {
    HD_SHM_REASON_MAX = 512, /* bytes of a reason, with its closing NUL; longer ones are cut */
    HD_SHM_FDS_TEXT_MAX = (HD_COMM_SHM_RANKS_MAX + 1) * 12, /* bytes of hd_shm_control_format */
};

enum hd_status hd_shm_control_new(int world, struct hd_shm_control **ret_ctl);
void hd_shm_control_free(struct hd_shm_control *ctl); /* closes the descriptors; ranks live on */

int hd_shm_control_world(const struct hd_shm_control *ctl);
int hd_shm_control_fd(const struct hd_shm_control *ctl); /* of the control block */
int hd_shm_control_rank_fd(const struct hd_shm_control *ctl, int rank);
const int *hd_shm_control_rank_fds(const struct hd_shm_control *ctl); /* [world] */

/* Between fork and exec: the descriptors survive the exec. Safe there (fcntl only). */
void hd_shm_control_keep_over_exec(const struct hd_shm_control *ctl);

/* The descriptors as text for an argument or the environment, and back. */
struct hd_shm_fds {
    int control_fd, world;
    int rank_fds[HD_COMM_SHM_RANKS_MAX]; /* [world] */
};
enum hd_status hd_shm_control_format(const struct hd_shm_control *ctl, char *ret_text,
                                     size_t size_bytes);
enum hd_status hd_shm_control_parse(const char *text, struct hd_shm_fds *ret_fds);

/* Tells all ranks that `rank` is gone. The first failure of the job keeps its place: when `rank`
 * itself aborted before it died, its own reason stays the one that everybody reports. */
void hd_shm_control_mark_dead(struct hd_shm_control *ctl, int rank, const char *reason);

/* Ends the collectives of all ranks for a reason that is no rank's (a stop, a hang seen outside).
 */
void hd_shm_control_abort(struct hd_shm_control *ctl, const char *reason);

/* False when nothing failed. *ret_rank is the rank that failed first, -1 when it is no rank's. */
bool hd_shm_control_failure(const struct hd_shm_control *ctl, int *ret_rank,
                            enum hd_status *ret_status, char ret_reason[HD_SHM_REASON_MAX]);

/* ---- the flight record of each rank, readable after its death ---- */

/* Oldest first; returns how many. Of a living rank the newest record may be half written. */
int hd_shm_control_flight(const struct hd_shm_control *ctl, int rank,
                          struct hd_flight_record ret_records[HD_FLIGHT_MAX]);

#endif
