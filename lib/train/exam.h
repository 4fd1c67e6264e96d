/* exam: answers the multiple-choice questions of validate.choices with the programs of validation.
 *
 *     files --hd_exams_open, each rank--> token ids of each prompt with each choice, packed into
 *     windows --program E--> log-probability of each target --summed by choice, over all ranks-->
 *     acc, acc_norm
 *
 * Every layout has the same windows; a rank of the head's stage sums the targets of its rows, the
 * sums of all ranks are added in rank order, and every rank finds the same answers. The rules are
 * those of generate/choices.h, so that `heddle eval --choices` has the same scores for the
 * checkpoint. Programs E of a job with questions have document bounds, whatever data.documents is.
 * The questions are in memory of their own (malloc), like the packing of conversations.
 *
 * Used by: batch, examine, trainer, worker.   Uses: questions, data.   Threads: the trainer's.
 */
#ifndef HD_TRAIN_EXAM_H
#define HD_TRAIN_EXAM_H

#include "job/choice_sets.h"
#include "train/job_tokenizer.h"
#include "train/questions.h"

struct hd_data_batch;

struct hd_exam_sequence { /* a prompt with one of its choices */
    int64_t at;           /* index of its first id in hd_exam.ids */
    int32_t rows;         /* tokens that are fed: all but the last */
    int32_t first;        /* first row whose target is a token of the choice */
    int32_t characters;   /* characters of the choice */
};

struct hd_exam { /* one file of questions; read-only after hd_exams_open */
    char name[HD_JOB_VAL_NAME_MAX];
    struct hd_exam_sequence *sequences;
    int32_t *ids;             /* tokens of all sequences */
    int32_t *choices, *right; /* [questions], number of choices; index of the right one */
    int64_t *windows;         /* [window_count + 1], first sequence of each window */
    int64_t questions, count; /* number of questions; of sequences */
    int64_t id_count, cut;    /* number of ids; of questions whose beginning was cut */
    int64_t window_count;     /* windows of `context` tokens */
    int64_t context;
    int64_t sequence_capacity, id_capacity, question_capacity,
        window_capacity; /* allocated elements */
};

struct hd_exams {
    struct hd_exam list[HD_CHOICE_SETS_MAX];
    int64_t count; /* 0: the job has no validate.choices */
};

/* Reads the first validate.choices_limit questions of each file, encodes and packs them. tokenizer:
 * the job's; NULL: opened for this call if needed. The caller calls hd_exams_close, also after a
 * failure. HD_INVALID: a file has changed since the job was submitted, or a line is no question; the
 * message names key, file and line. */
enum hd_status hd_exams_open(const struct hd_job *job, struct hd_job_tokenizer *tokenizer,
                             struct hd_exams *ret_exams);
void hd_exams_close(struct hd_exams *exams);

/* Fills rows of a batch with windows first .. first + count - 1, as hd_validation_fill does. */
void hd_exam_fill(const struct hd_exam *exam, int64_t first, int64_t count,
                  const struct hd_data_batch *batch);

#endif
