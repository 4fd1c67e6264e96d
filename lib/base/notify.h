/* notify: sd_notify without libsystemd: tells systemd the state of this program (Type=notify).
 *
 *     ready --SIGHUP--> reloading --done--> ready --signal--> stopping
 *
 * Each call sends one datagram to the socket named by NOTIFY_SOCKET, and does nothing when the
 * variable is unset. Errors are ignored.
 *
 * Used by: the daemon, the controller.   Uses: libc.   Threads: any. */
#ifndef HD_BASE_NOTIFY_H
#define HD_BASE_NOTIFY_H

#include <stdint.h>

void hd_notify_ready(void); /* call when startup, or a reload, is complete */
void hd_notify_reloading(void);
void hd_notify_stopping(void);
/* Tells systemd that the program is alive. systemd aborts and restarts the program (SIGABRT) if
 * this is not called at least once in hd_notify_watchdog_ms milliseconds (WatchdogSec= of the unit;
 * 0: no watchdog). */
void hd_notify_watchdog(void);
int64_t hd_notify_watchdog_ms(void);
/* Sets the line that `systemctl status` shows. Control characters become blanks, because a line
 * break would begin another message to systemd. */
void hd_notify_status(const char *text);

#endif
