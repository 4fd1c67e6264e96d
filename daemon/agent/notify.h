/* notify: tells systemd that the daemon is ready or leaves, when it asked to be told.
 *
 * The protocol is one datagram to the socket that NOTIFY_SOCKET names, so no library is needed.
 * Used by: agent.   Uses: libc.   Threads: any.
 */
#ifndef HD_DAEMON_AGENT_NOTIFY_H
#define HD_DAEMON_AGENT_NOTIFY_H

void notify_ready(void);
void notify_stopping(void);

#endif
