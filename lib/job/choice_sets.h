/* choice_sets: the files of questions that validations answer: validate.choices, of which the right
 * choice is to be likelier, and validate.tasks.files, whose answers are written and rated.
 *
 * The job has either as one line of text, "arc 5120 256:0123456789abcdef /data/arc.jsonl", with a tab
 * between two sets: name, bytes (-1: not looked up), fingerprint ("-": none) and path.
 *
 * Used by: spec, train, worker, controller.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_JOB_CHOICE_SETS_H
#define HD_JOB_CHOICE_SETS_H

#include "job/job.h"

enum { HD_CHOICE_SETS_MAX = HD_JOB_VAL_SETS_MAX };

enum hd_question_kind { HD_QUESTIONS_CHOICES, HD_QUESTIONS_TASKS, HD_QUESTION_KINDS };

/* Returns the key of a kind, "validate.choices". */
const char *hd_choice_set_key(enum hd_question_kind kind);
/* Returns the number of files of a kind; 0: validations answer no such questions. */
int64_t hd_choice_set_count(const struct hd_job *job, enum hd_question_kind kind);

struct hd_choice_set {
    char name[HD_JOB_VAL_NAME_MAX];
    int64_t size_bytes;   /* -1: not looked up */
    char fingerprint[48]; /* fingerprint of the file (data/fingerprint.h); "": none is recorded */
    char path[HD_JOB_PATH_MAX];
};

/* Reads set `index`, from 0. HD_INVALID: the text is no list of sets, or has fewer. */
enum hd_status hd_choice_set_read(const struct hd_job *job, enum hd_question_kind kind,
                                  int64_t index, struct hd_choice_set *ret_set);
/* Appends a set to the job's. HD_INVALID: the path has a tab or a line break. HD_LIMIT: the text
 * would become too long, or there are HD_CHOICE_SETS_MAX sets. */
enum hd_status hd_choice_set_add(const struct hd_choice_set *set, enum hd_question_kind kind,
                                 struct hd_job *job);

#endif
