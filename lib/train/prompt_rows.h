/* prompt_rows: the records of data.train of a job that trains on its own answers, or of a file of
 * validate.tasks: prompts as token ids, and the other members, which rewards read. Each rank has all of
 * them.
 *
 * Used by: worker, tests.   Uses: prompts, records (data/lines.h), job.   Threads: immutable after
 * hd_prompt_rows_open.
 */
#ifndef HD_TRAIN_PROMPT_ROWS_H
#define HD_TRAIN_PROMPT_ROWS_H

#include "base/arena.h"
#include "train/prompts.h"

struct hd_prompt_row {
    const char *line;  /* the record, a JSON object in one line */
    const char *shown; /* for people: the prompt, or the last message */
    const int32_t *ids;
    int64_t count;
    /* NULL unless train.distill.on_policy is below 1: the tokens of the row's `completion`, an end token
     * behind them, cut to train.rollout.max_tokens */
    int32_t *completion;
    int64_t completion_count;
    bool is_ended; /* the end token is among them: it was not cut off */
};

struct hd_prompt_rows { /* initialise with {0} */
    struct hd_arena arena;
    struct hd_prompt_row *rows;
    int64_t count;
    int64_t dropped; /* rows that are too long (data.too_long: drop) */
    int64_t longest; /* tokens of the longest prompt */
    struct hd_stops stops;
    int64_t drawn_max; /* ids of the tokenizer's vocabulary */
    bool shuffled;
    uint64_t seed;
};

/* Reads all rows. tokenizer: the job's; NULL: opened for this call. alive: called often, may be
 * NULL. The caller calls hd_prompt_rows_close, also after a failure. HD_INVALID, naming file and
 * line: a row has no prompt, or no completion where one is needed, cannot be encoded, or is longer than hd_job_rollout_prompt_max; or a
 * text of train.rollout.stop is not one token. */
enum hd_status hd_prompt_rows_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                                   void (*alive)(void *user), void *user,
                                   struct hd_prompt_rows *ret_rows);
/* Reads the rows of file `index` of validate.tasks in the same way, the first validate.tasks.limit. */
enum hd_status hd_prompt_rows_open_tasks(const struct hd_job *job, int64_t index,
                                         struct hd_job_tokenizer *tokenizer,
                                         void (*alive)(void *user), void *user,
                                         struct hd_prompt_rows *ret_rows);
void hd_prompt_rows_close(struct hd_prompt_rows *rows);

/* Returns the row of draw `draw`, from 0: a pure function, in which each pass over the rows has an
 * order of its own (data.order). */
const struct hd_prompt_row *hd_prompt_rows_draw(const struct hd_prompt_rows *rows, int64_t draw);

#endif
