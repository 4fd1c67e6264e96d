/* evaluate: computes the loss of a model on data, without training.
 *
 * The windows, their bounds and the sum are those of validation (data.h, hd_trainer_validate): for
 * equal weights, data and number of windows the loss is equal; it is equal bit for bit if also
 * threads and parallel.micro_batch are, and the job had one device.
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

enum { HD_EVALUATE_CONTEXT = 2048 /* tokens; limit for a Hugging Face model */ };

struct hd_evaluation_progress {
    /* true: `done` and `total` count bytes of text being tokenized; false: windows being
     * evaluated */
    bool tokenizing;
    /* amounts done so far and in all, of the files that are tokenized or evaluated now */
    int64_t done, total;
};

struct hd_evaluation_options {
    struct hd_source_dirs dirs; /* the model: a checkpoint, or a Hugging Face model directory */
    const char *const *files;   /* text or token files, read as one text */
    /* number of files; 0: the validation data of the checkpoint's job */
    size_t file_count;
    /* without files: name of the validation set of the checkpoint's job; NULL: the one whose loss
     * checkpoint.best compares */
    const char *set;
    /* windows to evaluate, from the first one of the data; 0: all windows, or for the job's own
     * validation data as many as the job validates on */
    int64_t windows;
    int64_t context; /* tokens of a window; 0: the model's context */
    /* compute precision: "fp32", "bf16", "fp16"; NULL: that of the checkpoint's job; for a model
     * directory fp32 */
    const char *precision;
    const struct hd_backend_table *backend; /* a backend whose tensors are in host memory */
    int threads;
    /* Callback, called often during the evaluation. It returns false to stop with HD_ABORTED. May
     * be NULL. */
    bool (*progress)(void *user, const struct hd_evaluation_progress *progress);
    void *user;
};

struct hd_evaluation {
    /* mean loss per predicted token, in nats; for a reward model the mean per preference pair */
    double loss;
    int64_t targets; /* tokens that were predicted; 0 for a reward model */
    /* results on preference pairs, for a reward model; other models: count 0 */
    struct hd_pair_result pairs;
    /* bytes of the text of the predicted tokens, without end-of-text tokens; 0: there is no
     * tokenizer */
    int64_t bytes;
    int64_t windows, all_windows; /* windows evaluated; windows in the data */
    int64_t context;              /* tokens of a window */
    char set
        [HD_JOB_VAL_NAME_MAX]; /* name of the validation set; "": files, or the job has one list */
    bool is_checkpoint;
    int64_t step; /* training step of the checkpoint */
    char precision[HD_JOB_WORD_MAX];
};

/* Computes the model's loss on the data and sets *ret_evaluation. HD_INVALID: options, model and
 * data do not fit together; the message names the option. HD_CORRUPT: the loss is not finite, or a
 * file is damaged. */
enum hd_status hd_evaluate(const struct hd_evaluation_options *options,
                           struct hd_evaluation *ret_evaluation);

#endif
