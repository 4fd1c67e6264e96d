/* evaluate: the loss of a model on data, without training.
 *
 * The windows, their bounds and the sum are those of validation (data.h, hd_trainer_validate): of
 * the same weights, data and number of windows the loss is the same, bit for bit if threads and
 * parallel.micro_batch are and the job had one device.
 *
 * Used by: worker (`heddle-worker eval`).   Uses: model, program, checkpoint, data.
 * Threads: one call at a time; it starts the backend's threads and those that tokenize.
 */
#ifndef HD_TRAIN_EVALUATE_H
#define HD_TRAIN_EVALUATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "job/job.h"
#include "kernels/kernels.h"
#include "train/source.h"
#include "train/train.h"

enum { HD_EVALUATE_CONTEXT = 2048 /* of a Hugging Face model, unless it is shorter */ };

struct hd_evaluation_progress {
    bool tokenizing;     /* bytes of text; else windows */
    int64_t done, total; /* of this list of files */
};

struct hd_evaluation_options {
    struct hd_source_dirs dirs;             /* a checkpoint, or a Hugging Face model directory */
    const char *const *files;               /* text or token files, read as one text */
    size_t file_count;                      /* 0: the validation data of the checkpoint's job */
    int64_t windows;                        /* the first so many; 0: all, of the job's own data as
                                               many as the job validates on */
    int64_t context;                        /* tokens of a window; 0: the model's */
    const char *precision;                  /* "fp32", "bf16", "fp16"; NULL: the job's, else fp32 */
    const struct hd_backend_table *backend; /* in host memory */
    int threads;
    /* Called often. False: stop with HD_ABORTED. May be NULL. */
    bool (*progress)(void *user, const struct hd_evaluation_progress *progress);
    void *user;
};

struct hd_evaluation {
    double loss;                 /* mean over the targets, nats; of a reward model over pairs */
    int64_t targets;             /* tokens that were predicted; of a reward model 0 */
    struct hd_pair_result pairs; /* of a reward model; else the count is 0 */
    int64_t bytes; /* of their texts, but for the end-of-text token; 0: there is no tokenizer */
    int64_t windows, all_windows; /* evaluated; in the data */
    int64_t context;              /* tokens of a window */
    bool is_checkpoint;
    int64_t step; /* of the checkpoint */
    char precision[HD_JOB_WORD_MAX];
};

/* HD_INVALID: options, model and data do not fit together; the message names the option.
 * HD_CORRUPT: the loss is not finite, or a file is damaged. */
enum hd_status hd_evaluate(const struct hd_evaluation_options *options,
                           struct hd_evaluation *ret_evaluation);

#endif
