/* identity: what of a job its plan depends on. Two jobs of equal identity, on equal devices and
 * with the same members of `parallel` left open, have the same best layout.
 *
 * Used by: controller (services), the heddle command.   Uses: base, job.   Threads: any; no state.
 */
#ifndef HD_PLAN_IDENTITY_H
#define HD_PLAN_IDENTITY_H

#include "base/text.h"
#include "job/job.h"

/* Appends the keys of a job that a plan depends on and does not decide, in the text form of job.h.
 */
enum hd_status hd_plan_identity(const struct hd_job *spec, struct hd_text *ret_text);

/* HD_INVALID: the job is not the one that was planned; the message names what changed. planned: the
 * identity of then. */
enum hd_status hd_plan_identity_compare(const char *planned, const struct hd_job *spec);

#endif
