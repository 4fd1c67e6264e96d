/* ask: runs a program of ours for what it prints, with a deadline.
 *
 * Used by: agent.   Uses: base.   Threads: the agent's; blocks it.
 */
#ifndef HD_DAEMON_AGENT_ASK_H
#define HD_DAEMON_AGENT_ASK_H

#include <stddef.h>

#include "base/text.h"

enum { AGENT_ASK_MS = 30000 };

/* Starts argv[0], a path, and takes what it writes to its standard output, at most `bytes_max`
 * bytes. HD_TIMEOUT: it did not end in time, and was killed; HD_IO: it cannot be started, or ended
 * with another status than 0; HD_LIMIT: it says too much. */
enum hd_status agent_ask(char *const argv[], size_t bytes_max, int timeout_ms,
                         struct hd_text *ret_answer);

#endif
