/* stage_table: the spans of train.batch_schedule and the stages of a job's data as tables for people.
 *
 * Used by: cmd_validate.c, cmd_plan.c.   Uses: table, job.   Threads: any; no state.
 */
#ifndef HD_CLI_STAGE_TABLE_H
#define HD_CLI_STAGE_TABLE_H

#include "base/text.h"
#include "job/job.h"

/* Appends spans and stages of the job; nothing if it has none. tokens: [sources], tokens of each source,
 * -1: unknown. */
void stage_table_add(const struct hd_job *job, const int64_t *tokens, struct hd_text *out);

#endif
