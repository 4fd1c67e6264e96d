/* identity: the settings of a job that its plan depends on, as text. Two jobs of equal identity, on
 * equal devices and with the same `auto` members of `parallel`, have the same best layout.
 *
 * Used by: controller (services), the heddle command.   Uses: base, job.   Threads: any; no state.
 */
#ifndef HD_PLAN_IDENTITY_H
#define HD_PLAN_IDENTITY_H

#include <stdint.h>

#include "base/text.h"
#include "job/job.h"

/* Appends the job's keys that a plan depends on and does not decide, in the text form of job.h. */
enum hd_status hd_plan_identity(const struct hd_job *spec, struct hd_text *ret_text);

/* Returns a hash of the identity: of the keys that have not their defaults. It is of this process
 * alone: another build may have other keys. */
uint64_t hd_plan_hash(const struct hd_job *spec);

/* Compares a job with the identity of the job that was planned (`planned`). HD_INVALID: they
 * differ; the message names the changed keys. */
enum hd_status hd_plan_identity_compare(const char *planned, const struct hd_job *spec);

#endif
