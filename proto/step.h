/* step: the metrics of a step <-> StepReport.
 *
 * Metrics that job.proto has as fields of StepReport travel in these, found by their names; every
 * other one as a Metric {id, value}, so that a new metric needs no change of job.proto.
 *
 * Used by: heddled, controller, the heddle command.   Uses: job, the generated messages.
 * Threads: values.
 */
#ifndef HD_PROTO_STEP_H
#define HD_PROTO_STEP_H

#include "base/arena.h"
#include "heddle/v1/job.pb-c.h"
#include "job/metrics.h"

/* Sets the fields of an initialised message; what is added to it lives in `arena`. False: out of
 * memory. */
bool hd_step_to_message(const struct hd_step_metrics *metrics, struct hd_arena *arena,
                        Heddle__V1__StepReport *message);
void hd_step_from_message(const Heddle__V1__StepReport *message,
                          struct hd_step_metrics *ret_metrics);

#endif
