/* notify: sd_notify without libsystemd: tells systemd the state of this program (Type=notify).
 *
 *     ready --SIGHUP--> reloading --done--> ready --signal--> stopping
 *
 * One datagram to the socket named by NOTIFY_SOCKET; nothing happens when it is unset. Errors are
 * ignored.
 * Used by: the daemon, the controller.   Uses: libc.   Threads: any.
 */
#ifndef HD_BASE_NOTIFY_H
#define HD_BASE_NOTIFY_H

#include <stdint.h>

void hd_notify_ready(void); /* the start is over, or a reload */
void hd_notify_reloading(void);
void hd_notify_stopping(void);
/* systemd ends the program by SIGABRT, and starts it again, if this is not called at least once in
 * hd_notify_watchdog_ms (WatchdogSec= of the unit; 0: no watchdog). */
void hd_notify_watchdog(void);
int64_t hd_notify_watchdog_ms(void);
/* One line for people, which `systemctl status` shows. Control characters become blanks: a line
 * break would begin another message to systemd. */
void hd_notify_status(const char *text);

#endif
