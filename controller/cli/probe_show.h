/* probe_show: what nodes have measured of their devices, for people and as JSON.
 *
 * Used by: cmd_probe, cmd_topo.   Uses: base, the messages.   Threads: any; no state.
 */
#ifndef HD_CLI_PROBE_SHOW_H
#define HD_CLI_PROBE_SHOW_H

#include <stdbool.h>

#include "base/json.h"
#include "base/text.h"
#include "heddle/v1/control.pb-c.h"

/* The number that heddle nodes gives a device, by its place in the node's list. */
int32_t probe_show_number(const Heddle__V1__NodeTopology *n, int64_t slot);

/* A member "probe" of a node: an object, or null. n NULL: the node was removed. */
void probe_show_json(struct hd_json_writer *w, const Heddle__V1__NodeTopology *n);

/* "probed 2m ago", "not probed"; probe NULL: it never was. silent: the node does not answer.
 * now_ms: the controller's (cli_now_ms). */
void probe_show_age(const Heddle__V1__NodeProbe *probe, bool silent, int64_t now_ms,
                    struct hd_text *out);

/* Lines of what went wrong and of slow devices, which are always worth saying. */
void probe_show_trouble(const Heddle__V1__NodeTopology *n, int64_t now_ms, struct hd_text *out);

/* Tables of all figures; nothing if there are none. */
void probe_show_figures(const Heddle__V1__NodeTopology *n, struct hd_text *out);

#endif
