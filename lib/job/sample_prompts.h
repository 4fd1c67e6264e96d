/* sample_prompts: the prompts of validate.samples, as one line of text in the job:
 *
 *     "file 5120 256:0123456789abcdef /data/prompts.txt"   bytes (-1: not looked up), fingerprint
 *                                                          ("-": none) and path of a file
 *     "text\tOnce upon\tQ: 2\\nA:"                         the prompts, each behind a tab; in them a
 *                                                          tab, line break or backslash is \t, \n, \\
 *
 * Used by: spec, train, worker.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_JOB_SAMPLE_PROMPTS_H
#define HD_JOB_SAMPLE_PROMPTS_H

#include "base/text.h"
#include "job/job.h"

enum { HD_SAMPLE_PROMPTS_MAX = 64 };

struct hd_sample_file {
    int64_t size_bytes;   /* -1: not looked up */
    char fingerprint[48]; /* data/fingerprint.h; "": none is recorded */
    char path[HD_JOB_PATH_MAX];
};

/* Returns whether the prompts are in a file. */
bool hd_job_samples_in_file(const struct hd_job *job);
/* HD_INVALID: the text names no file. */
enum hd_status hd_job_read_sample_file(const struct hd_job *job, struct hd_sample_file *ret_file);
/* HD_INVALID: the path has a tab or a line break, or is too long. */
enum hd_status hd_job_set_sample_file(const struct hd_sample_file *file, struct hd_job *job);

/* Appends a prompt to the job's. HD_LIMIT: there are HD_SAMPLE_PROMPTS_MAX, or the text would become
 * too long. */
enum hd_status hd_job_add_sample_prompt(const char *prompt, struct hd_job *job);
/* Appends prompt `index` of the job's text to *ret_prompt; returns false if there are fewer. */
bool hd_job_sample_prompt(const struct hd_job *job, int64_t index, struct hd_text *ret_prompt);

#endif
