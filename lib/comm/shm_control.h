/* shm_control: the parent's side of the engine shm: shared memory for the ranks of one node.
 *
 * The parent creates one control block and one (empty) region per rank. All are memfds with
 * close-on-exec. It passes the descriptors to its workers. When a worker dies, the parent marks its
 * rank as dead: all waiting ranks wake within milliseconds and fail with that reason.
 *
 *     hd_shm_control_new(world, &ctl);
 *     hd_shm_control_format(ctl, text, sizeof text);        // "5,6,7": control, rank 0, rank 1
 *     if (!fork()) { hd_shm_control_keep_over_exec(ctl); setenv(..., text); execv(worker); }
 *     ...
 *     hd_shm_control_mark_dead(ctl, rank, "rank 1 was killed by signal 9");
 *
 * The worker calls hd_shm_control_parse(getenv(...), &fds), then hd_comm_open_shm.
 *
 * Do not mark a rank dead that exited successfully: its peers may finish without it.
 *
 * Used by: supervisor, worker, tests.   Uses: base, comm.h (the limit).
 * Threads: any thread may use a control; one thread creates it, one frees it. */
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
    HD_SHM_REASON_MAX = 512, /* bytes of a reason including its NUL; longer reasons are truncated */
    /* size of hd_shm_control_format's text */
    HD_SHM_FDS_TEXT_MAX = (HD_COMM_SHM_RANKS_MAX + 1) * 12,
};

enum hd_status hd_shm_control_new(int world, struct hd_shm_control **ret_ctl);
void hd_shm_control_free(struct hd_shm_control *ctl); /* frees the parent's mappings and
                                                         descriptors; ranks that have attached keep
                                                         theirs */

int hd_shm_control_world(const struct hd_shm_control *ctl);
int hd_shm_control_fd(const struct hd_shm_control *ctl); /* descriptor of the control block */
/* Returns the descriptors of the ranks' regions, [world]. */
const int *hd_shm_control_rank_fds(const struct hd_shm_control *ctl);

/* Clears close-on-exec of all descriptors of the control, so that the worker inherits them; call it
 * in the child between fork and exec. Async-signal-safe (only fcntl). */
void hd_shm_control_keep_over_exec(const struct hd_shm_control *ctl);

/* The descriptors, passed as text in an argument or the environment. */
struct hd_shm_fds {
    int control_fd, world;
    int rank_fds[HD_COMM_SHM_RANKS_MAX]; /* [world]; of the regions */
};
enum hd_status hd_shm_control_format(const struct hd_shm_control *ctl, char *ret_text,
                                     size_t size_bytes);
enum hd_status hd_shm_control_parse(const char *text, struct hd_shm_fds *ret_fds);

/* Reports to all ranks that `rank` is dead. Only the first failure of the job counts: when `rank`
 * aborted before it died, all ranks report that abort's reason. */
void hd_shm_control_mark_dead(struct hd_shm_control *ctl, int rank, const char *reason);

/* Makes the operations of all ranks fail with a reason that the parent gives (a stop request, a
 * hang that it detected). */
void hd_shm_control_abort(struct hd_shm_control *ctl, const char *reason);

/* Sets the ret_ arguments to the job's first failure. Returns false if there is none. *ret_rank:
 * the rank that failed first; -1: the parent, by hd_shm_control_abort. */
bool hd_shm_control_failure(const struct hd_shm_control *ctl, int *ret_rank,
                            enum hd_status *ret_status, char ret_reason[HD_SHM_REASON_MAX]);

/* Copies the flight records of a rank to ret_records, also of a dead rank. Returns the number of
 * records, oldest first. A record that is being written is left out. */
int hd_shm_control_flight(const struct hd_shm_control *ctl, int rank,
                          struct hd_flight_record ret_records[HD_FLIGHT_MAX]);

/* Sets *ret_wait to the wait on the host that a rank last reported. */
void hd_shm_control_wait(const struct hd_shm_control *ctl, int rank,
                         struct hd_flight_wait *ret_wait);

/* Suspends the deadlines of waits on the host until until_ms (hd_clock_now_ms): a peer lives, but
 * is slow for a reason that the parent knows. A later call may shorten the time. */
void hd_shm_control_be_patient(struct hd_shm_control *ctl, int64_t until_ms);

/* The status page of a rank whose engine does not use this memory, because the job has several
 * nodes: the rank reports to its parent the rank that it waits for. `index`: number of this rank
 * among the `world_here` ranks of the block. */
struct hd_comm_status_page;
enum hd_status hd_comm_status_page_open(int control_fd, int index, int world_here,
                                        struct hd_comm_status_page **ret_status_page);
void hd_comm_status_page_close(struct hd_comm_status_page *status_page);
/* Reports the rank that this one waits for while it connects to the others; -1: none. Call it
 * several times a second. */
void hd_comm_status_page_waiting_on(struct hd_comm_status_page *status_page, int rank);
/* Makes the endpoint write its flight record and its waits to the status page, where the parent can
 * read both. The endpoint takes ownership of the status page. Call it before the first operation,
 * and before an engine is opened on top of the endpoint. */
void hd_comm_show_in(struct hd_comm *comm, struct hd_comm_status_page *status_page);

#endif
