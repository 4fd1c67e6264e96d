/* probe_show: shows the measurements of nodes' devices, for people and as JSON.
 *
 * Used by: cmd_probe, cmd_topo.   Uses: base, the messages.   Threads: any; no state.
 */
#ifndef HD_CLI_PROBE_SHOW_H
#define HD_CLI_PROBE_SHOW_H

#include <stdbool.h>

#include "base/json.h"
#include "base/text.h"
#include "heddle/v1/control.pb-c.h"

/* Returns the number that `heddle nodes` shows for a device, by its index in the node's list. */
int32_t probe_show_number(const Heddle__V1__NodeTopology *n, int64_t slot);

/* Writes a member "probe" of a node: an object, or null. n NULL: the node was removed. */
void probe_show_json(struct hd_json_writer *w, const Heddle__V1__NodeTopology *n);

/* Appends "probed 2m ago" or "not probed". probe NULL: never probed. silent: the node does not
 * answer. now_ms: the controller's time (cli_now_ms). */
void probe_show_age(const Heddle__V1__NodeProbe *probe, bool silent, int64_t now_ms,
                    struct hd_text *out);

/* Appends lines about failures and slow devices; printed by every command that shows nodes. */
void probe_show_trouble(const Heddle__V1__NodeTopology *n, int64_t now_ms, struct hd_text *out);

/* Appends tables of all measurements of a node's devices; nothing if there are none. */
void probe_show_figures(const Heddle__V1__NodeTopology *n, struct hd_text *out);

#endif
