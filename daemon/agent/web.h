/* web: heddled's metrics page for Prometheus, over HTTP (docs/metrics.md).
 *
 * GPU values come from `heddle-worker gpu-sample`, run beside the loop while the page is being
 * scraped. If the driver does not answer, they are absent, not zero, and nothing blocks.
 *
 * Used by: agent.c, send.c.   Uses: http, prometheus, daemon/devices.   Threads: the loop's.
 */
#ifndef HD_DAEMON_AGENT_WEB_H
#define HD_DAEMON_AGENT_WEB_H

#include "base/status.h"

struct agent;
struct agent_web;

/* Opens the HTTP endpoint of --http; without --http does nothing. */
enum hd_status web_open(struct agent *agent);
/* Re-reads the endpoint's certificate, after its renewal or at a reload. */
void web_use_certificate(struct agent *agent);
void web_tick(struct agent *agent); /* samples the GPUs when due; call a few times a second */
void web_close(struct agent *agent);

#endif
