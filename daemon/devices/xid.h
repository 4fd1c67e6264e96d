/* xid: finds fatal errors of GPUs in the kernel's log, "NVRM: Xid (PCI:0000:3b:00): 79, ...".
 *
 * After a fatal error a GPU may still answer all queries of the driver, but fail every job until it
 * is reset. The log has the errors since boot whose records were not overwritten yet.
 *
 * Used by: worker.   Uses: base.   Threads: any.
 */
#ifndef HD_DAEMON_DEVICES_XID_H
#define HD_DAEMON_DEVICES_XID_H

#include "daemon/devices/gpu.h"

#define HD_XID_LOG "/dev/kmsg"

/* Sets `fault` and `fault_at` of each GPU, matched by bus address. Reads the log from standard
 * input if that is the kernel's log (heddled.service), else opens `log`. HD_IO: the log cannot be
 * opened (that may need CAP_SYSLOG); fault_at is then -1. */
enum hd_status hd_xid_read(const char *log, struct hd_gpu_list *list);

#endif
