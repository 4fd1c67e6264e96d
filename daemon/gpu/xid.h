/* xid: errors of GPUs in the kernel's log, "NVRM: Xid (PCI:0000:3b:00): 79, ...".
 *
 * NVML tells of an Xid only while somebody waits for it; the kernel's log has those since the
 * machine was started, or since the log was last overwritten. Reading it may need CAP_SYSLOG.
 *
 * Used by: worker.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_GPU_XID_H
#define HD_DAEMON_GPU_XID_H

#include "daemon/gpu/gpu.h"

#define HD_XID_LOG "/dev/kmsg"

/* Sets xid, xid_count, xid_fatal and xid_fatal_at of each GPU in the list by its bus address. On a
 * failure they stay unknown. */
enum hd_status hd_xid_read(const char *log, struct hd_gpu_list *list);

/* What a person should make of one: whether the GPU itself is to be suspected, whether it computes
 * no more until it was reset, and what to do. */
struct hd_xid_meaning {
    bool hardware, fatal;
    const char *text;
};
struct hd_xid_meaning hd_xid_explain(int64_t xid);

#endif
