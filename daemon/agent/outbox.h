/* outbox: an attempt's reports on their way to the controller.
 *
 * Reads the spool, remembers which reports were sent and not acknowledged, and removes segments of
 * the spool when they are acknowledged. After a reconnect all unacknowledged reports are sent
 * again; the controller deduplicates them by (job, attempt, rank, seq).
 *
 * Used by: agent.   Uses: daemon/attempt.   Threads: one owner.
 */
#ifndef HD_DAEMON_AGENT_OUTBOX_H
#define HD_DAEMON_AGENT_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "link/report.h"

/* limit of an attempt's reports that are sent and not acknowledged */
enum { AGENT_IN_FLIGHT_MAX = 1024 };

struct agent_outbox;

enum hd_status agent_outbox_open(const char *run_dir, struct agent_outbox **ret_outbox);
void agent_outbox_close(struct agent_outbox *outbox); /* NULL: does nothing */

/* Sets *ret_report to the next report to send, and counts it as sent. HD_UNAVAILABLE: none to send
 * now; HD_LIMIT: too many are unacknowledged; HD_CORRUPT: reports were lost (the message says
 * where), and the next call continues after them. */
enum hd_status agent_outbox_next(struct agent_outbox *outbox, struct hd_link_report *ret_report);
/* Takes back the last agent_outbox_next, because the report could not be sent. */
void agent_outbox_unsend(struct agent_outbox *outbox);

/* Records that the controller has stored all reports of `rank` up to number seq. Removes spool
 * segments from disk that are no longer needed. */
void agent_outbox_ack(struct agent_outbox *outbox, int64_t rank, int64_t seq);

/* Causes all unacknowledged reports to be sent again, after the connection was lost. */
void agent_outbox_rewind(struct agent_outbox *outbox);

/* Returns whether all reports in the spool were acknowledged. */
bool agent_outbox_is_empty(struct agent_outbox *outbox);

#endif
