/* notify: sd_notify without libsystemd: tells systemd that this program is ready or stopping.
 *
 * One datagram to the socket named by NOTIFY_SOCKET; nothing happens when it is unset. Errors are
 * ignored.
 * Used by: the daemon, the controller.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_NOTIFY_H
#define HD_BASE_NOTIFY_H

void hd_notify_ready(void);
void hd_notify_stopping(void);

#endif
