/* batch_table: the spans of train.batch_schedule for people: steps, sequences and tokens. */
#ifndef HD_CLI_BATCH_TABLE_H
#define HD_CLI_BATCH_TABLE_H

#include "base/text.h"
#include "job/job.h"

/* Appends a table of the job's spans, and the tokens of the whole run; nothing without a schedule. */
void batch_table_add(const struct hd_job *job, struct hd_text *out);

#endif
