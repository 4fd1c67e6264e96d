/* local: logical ranks on one device in one process, each a thread with its own backend instance.
 *
 *     hd_comm_hub_new(world, &hub);
 *     ... in the thread of rank r, on its own backend:
 *     hd_comm_open_local(hub, r, &device, deadline_ms, &comm);
 *     ... comm.h; hd_comm_visible gives memory of the device ...
 *     hd_comm_free(comm);
 *     ... all threads joined:
 *     hd_comm_hub_free(hub);
 *
 * A world of one on a device is the same engine. Nothing on the device ever spins: ranks meet on
 * the host, and only what can run is enqueued. Results are the same bits as shm's.
 *
 * Of all_to_all_v the counts and the overflow flag are device memory and the counts stay untouched
 * until it is complete; the flag has to be there, for the host never sees the counts, and the bytes
 * that rows take are not counted (hd_comm_count_get).
 *
 * Used by: worker, tests.   Uses: kernels.
 * Threads: a hub may be used by all; new and free by one.
 */
#ifndef HD_COMM_LOCAL_H
#define HD_COMM_LOCAL_H

#include "comm/comm.h"
#include "comm/device.h"

struct hd_comm_hub;
struct hd_shm_control;
struct hd_shm_fds;

enum hd_status hd_comm_hub_new(int world, struct hd_comm_hub **ret_hub);
/* The same on memory of a parent (shm_control.h), who so sees the flight records and may end the
 * collectives; all its ranks are threads of this process. The descriptors stay the caller's. */
enum hd_status hd_comm_hub_on(const struct hd_shm_fds *fds, struct hd_comm_hub **ret_hub);
void hd_comm_hub_free(struct hd_comm_hub *hub); /* behind the last hd_comm_free */

/* What plays the parent (shm_control.h): flight records, mark_dead, abort. NULL: a parent does. */
struct hd_shm_control *hd_comm_hub_control(struct hd_comm_hub *hub);

enum hd_status hd_comm_open_local(struct hd_comm_hub *hub, int rank,
                                  const struct hd_comm_device *device, int64_t deadline_ms,
                                  struct hd_comm **ret_comm);

#endif
