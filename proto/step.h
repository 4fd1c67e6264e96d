/* step: struct hd_step_metrics <-> the message StepReport.
 *
 * A metric with the name of a field of StepReport is sent in that field, every other metric as
 * Metric {id, value}. So a new metric needs no change of job.proto.
 *
 * Used by: heddled, controller, the heddle command.   Uses: job, the generated messages.
 * Threads: values.
 */
#ifndef HD_PROTO_STEP_H
#define HD_PROTO_STEP_H

#include "base/arena.h"
#include "heddle/v1/job.pb-c.h"
#include "job/metrics.h"

/* Sets the fields of an initialised message; memory comes from `arena`. False: out of memory. */
bool hd_step_to_message(const struct hd_step_metrics *metrics, struct hd_arena *arena,
                        Heddle__V1__StepReport *message);
void hd_step_from_message(const Heddle__V1__StepReport *message,
                          struct hd_step_metrics *ret_metrics);

#endif
