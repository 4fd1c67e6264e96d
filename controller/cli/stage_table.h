/* stage_table: the stages of a job's data as a table for people.
 *
 * Used by: cmd_validate.c, cmd_plan.c.   Uses: table, job.   Threads: any; no state.
 */
#ifndef HD_CLI_STAGE_TABLE_H
#define HD_CLI_STAGE_TABLE_H

#include "base/text.h"
#include "job/job.h"

/* Appends the stages of the job; nothing if it has none. tokens: [sources], tokens of each source,
 * -1: unknown. */
void stage_table_add(const struct hd_job *job, const int64_t *tokens, struct hd_text *out);

#endif
