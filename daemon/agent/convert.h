/* convert: a node's words into the controller's messages. Everything is made in the arena.
 *
 * Used by: agent.   Uses: base, link, the messages.   Threads: none of its own.
 */
#ifndef HD_DAEMON_AGENT_CONVERT_H
#define HD_DAEMON_AGENT_CONVERT_H

#include "base/arena.h"
#include "daemon/agent/identity.h"
#include "daemon/agent/local.h"
#include "heddle/v1/fleet.pb-c.h"

/* NULL when memory is used up. `report` must stay until the message was packed; texts in it that
 * are not UTF-8 are mended. A kind that the controller has no word for becomes an event. */
Heddle__V1__Report *convert_report(struct hd_arena *arena, const char *node,
                                   struct hd_link_report *report);
Heddle__V1__EndReport *convert_end(struct hd_arena *arena, const char *node,
                                   struct hd_link_report *end);
Heddle__V1__Hello *convert_hello(struct hd_arena *arena, const struct agent_identity *identity);

/* The complete checkpoints in a directory: folders with a manifest. Missing is empty. */
void convert_checkpoints(struct hd_arena *arena, const char *checkpoint_dir, int64_t attempt,
                         Heddle__V1__ObservedAttempt *observed);

#endif
