/* local: logical ranks on one device in one process, each a thread with its own backend instance.
 *
 *     hd_comm_hub_new(world, &hub);
 *     ... in the thread of rank r, on its own backend:
 *     hd_comm_open_local(hub, r, &device, deadline_ms, &comm);
 *     ... comm.h; hd_comm_alloc_registered gives memory of the device ...
 *     hd_comm_free(comm);
 *     ... all threads joined:
 *     hd_comm_hub_free(hub);
 *
 * A world of one on a device uses this engine, too. No kernel waits for another rank: ranks
 * synchronise on the host, and an operation is enqueued only when it can run. Results are bitwise
 * identical to shm.
 *
 * all_to_all_v: counts and overflow flag are device memory; the caller must not change the counts
 * before completion. The flag is required, because the host never reads the counts. For the same
 * reason hd_comm_count_get does not count its bytes.
 *
 * Used by: worker, tests.   Uses: kernels.
 * Threads: any thread may use a hub; one thread creates it, one frees it. */
#ifndef HD_COMM_LOCAL_H
#define HD_COMM_LOCAL_H

#include "comm/comm.h"
#include "comm/device.h"

struct hd_comm_hub;
struct hd_shm_control;
struct hd_shm_fds;

enum hd_status hd_comm_hub_new(int world, struct hd_comm_hub **ret_hub);
/* Creates a hub on the control block of a parent process (shm_control.h), which can then read the
 * flight records and abort. All ranks are threads of this process. The caller owns the descriptors
 * and keeps them open until all ranks have opened their endpoints. */
enum hd_status hd_comm_hub_on(const struct hd_shm_fds *fds, struct hd_comm_hub **ret_hub);
void hd_comm_hub_free(struct hd_comm_hub *hub); /* call after hd_comm_free of all endpoints of the
                                                   hub */

/* Returns the hub's own control block (flight records, mark_dead, abort); NULL after
 * hd_comm_hub_on. */
struct hd_shm_control *hd_comm_hub_control(struct hd_comm_hub *hub);

enum hd_status hd_comm_open_local(struct hd_comm_hub *hub, int rank,
                                  const struct hd_comm_device *device, int64_t deadline_ms,
                                  struct hd_comm **ret_comm);

#endif
