/* xid: fatal errors of GPUs in the kernel's log, "NVRM: Xid (PCI:0000:3b:00): 79, ...".
 *
 * After such an error a GPU may answer every question of the driver and still fail every job, until
 * it is reset. The log has the errors since the machine was started, as far as their records were
 * not overwritten.
 *
 * Used by: worker.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_DEVICES_XID_H
#define HD_DAEMON_DEVICES_XID_H

#include "daemon/devices/gpu.h"

#define HD_XID_LOG "/dev/kmsg"

/* Sets `fault` and `fault_at` of each GPU, found by its bus address. The log is standard input
 * where that is the kernel's log (heddled.service), else it is opened. HD_IO: it cannot be (it may
 * need CAP_SYSLOG). */
enum hd_status hd_xid_read(const char *log, struct hd_gpu_list *list);

#endif
