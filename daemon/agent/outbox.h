/* outbox: an attempt's reports on their way to the controller.
 *
 * Reads the spool, remembers what was sent and not acknowledged, and removes segments of the spool
 * as acknowledgements come. After a reconnect everything that is not acknowledged is read and sent
 * again; the controller knows what it has by (job, attempt, rank, seq).
 *
 * Used by: agent.   Uses: daemon/attempt.   Threads: one owner.
 */
#ifndef HD_DAEMON_AGENT_OUTBOX_H
#define HD_DAEMON_AGENT_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "link/report.h"

enum { AGENT_IN_FLIGHT_MAX = 1024 }; /* reports sent and not acknowledged */

struct agent_outbox;

enum hd_status agent_outbox_open(const char *run_dir, struct agent_outbox **ret_outbox);
void agent_outbox_close(struct agent_outbox *outbox); /* NULL is fine */

/* The next report to send; counts as sent from here on. HD_UNAVAILABLE: none now; HD_LIMIT: too
 * many wait for an acknowledgement; HD_CORRUPT: reports were lost (the message says where); the
 * next call goes on with the rest. */
enum hd_status agent_outbox_next(struct agent_outbox *outbox, struct hd_link_report *ret_report);
/* Takes the last one back: it could not be sent. */
void agent_outbox_unsend(struct agent_outbox *outbox);

/* Everything of `rank` up to seq is stored. Removes what is not needed any more from disk. */
void agent_outbox_ack(struct agent_outbox *outbox, int64_t rank, int64_t seq);

/* The connection was lost: what was not acknowledged is sent again. */
void agent_outbox_rewind(struct agent_outbox *outbox);

/* Whether all that the spool has was acknowledged. */
bool agent_outbox_is_empty(struct agent_outbox *outbox);

#endif
