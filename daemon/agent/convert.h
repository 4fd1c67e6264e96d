/* convert: turns a node's reports, identity and checkpoints into messages of fleet.proto. The arena
 * owns all memory.
 *
 * Used by: agent.   Uses: base, link, the messages.   Threads: none of its own.
 */
#ifndef HD_DAEMON_AGENT_CONVERT_H
#define HD_DAEMON_AGENT_CONVERT_H

#include "base/arena.h"
#include "daemon/agent/identity.h"
#include "daemon/agent/local.h"
#include "heddle/v1/fleet.pb-c.h"

/* Converts a report; NULL: no memory. Keep `report` until the message was packed. Replaces bytes of
 * its texts that are not UTF-8 by '?'. A report without a message type of its own becomes an event.
 */
Heddle__V1__Report *convert_report(struct hd_arena *arena, const char *node,
                                   struct hd_link_report *report);
Heddle__V1__EndReport *convert_end(struct hd_arena *arena, const char *node,
                                   struct hd_link_report *end);
Heddle__V1__NodeInventory *convert_inventory(struct hd_arena *arena,
                                             const struct hd_inventory *inventory,
                                             const struct hd_devices *devices); /* inventory.c */
Heddle__V1__Hello *convert_hello(struct hd_arena *arena, const struct agent_identity *identity);

/* Replaces bytes that are not UTF-8 by '?', in place; otherwise the peer could not parse the
 * message. Returns `text`. */
char *convert_text_of(char *text);

/* Appends the complete checkpoints in a directory (folders with a manifest) to the message. A
 * missing directory counts as empty. */
void convert_checkpoints(struct hd_arena *arena, const char *checkpoint_dir, int64_t attempt,
                         Heddle__V1__ObservedAttempt *observed);

#endif
