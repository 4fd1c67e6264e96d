/* notify: tells systemd how this program is, when it asked to be told (Type=notify).
 *
 *     ready --SIGHUP--> reloading --what was asked for is done--> ready --signal--> stopping
 *
 * The protocol is one datagram to the socket that NOTIFY_SOCKET names, so no library is needed.
 * Without NOTIFY_SOCKET every function does nothing.
 * Used by: the daemon, the controller.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_NOTIFY_H
#define HD_BASE_NOTIFY_H

void hd_notify_ready(void); /* the start is over, or a reload */
void hd_notify_reloading(void);
void hd_notify_stopping(void);
/* One line for people, which `systemctl status` shows. Control characters become blanks: a line
 * break would begin another message to systemd. */
void hd_notify_status(const char *text);

#endif
