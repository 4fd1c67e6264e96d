/* web: heddled's page for Prometheus, by HTTP (docs/metrics.md).
 *
 * Values of GPUs come from `heddle-worker gpu-sample`, run beside the loop while somebody scrapes.
 * A driver that does not answer makes them absent, not zero, and holds up nothing.
 *
 * Used by: agent.c, send.c.   Uses: http, prometheus, daemon/devices.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_WEB_H
#define HD_DAEMON_AGENT_WEB_H

#include "base/status.h"

struct agent;
struct agent_web;

/* Opens the door that --http names; without it nothing. */
enum hd_status web_open(struct agent *agent);
void web_use_certificate(struct agent *agent); /* reads it again: it was renewed, or a reload */
void web_tick(struct agent *agent);            /* a few times a second */
void web_close(struct agent *agent);

#endif
