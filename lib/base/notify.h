/* notify: tells systemd that this program is ready or leaves, when it asked to be told.
 *
 * The protocol is one datagram to the socket that NOTIFY_SOCKET names, so no library is needed.
 * Used by: the daemon, the controller.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_NOTIFY_H
#define HD_BASE_NOTIFY_H

void hd_notify_ready(void);
void hd_notify_stopping(void);

#endif
