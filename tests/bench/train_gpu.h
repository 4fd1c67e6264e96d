/* train_gpu: what its files share, and plan_gpu uses: the driver, which reads the command line and
 * starts PyTorch; and our run, which trains and says where the time went.
 */
#ifndef HD_TESTS_BENCH_TRAIN_GPU_H
#define HD_TESTS_BENCH_TRAIN_GPU_H

#include <stdio.h>

#include "job/job.h"
#include "kernels/kernels.h"
#include "train/opened_rank.h"
#include "train/train.h"

/* One case: a model's shape, and how many sequences a step has. */
struct gpu_case {
    const char *name, *what, *family;
    int64_t layers, hidden, heads, kv_heads, head_width, ffn_hidden, vocab, context;
    int64_t micro_batch, global_batch;
    int64_t probe_bytes; /* of each array by which the bandwidth is measured */
};
const struct gpu_case *gpu_case_find(const char *name); /* NULL: none of this name */
const struct gpu_case *gpu_case_at(int i);              /* NULL behind the last */

/* Returns the job that a case asks of a trainer, which reads tokens from `file`. */
struct hd_job gpu_case_job(const struct gpu_case *c, const char *precision,
                           struct hd_job_file *file);

/* Writes random tokens of the whole vocabulary, for a few steps: they are read over and over. */
enum hd_status gpu_case_tokens(const struct gpu_case *c, const char *path, int64_t *ret_bytes);

struct gpu_run {
    const struct hd_backend_table *table; /* of a device */
    const char *precision;
    bool apart;         /* GELU as a pass of its own (epilogues_separate) */
    int warm_up, steps; /* steps that are not timed, and that are */
};

/* One rank that trains on a device, and what it stands on. */
struct gpu_rank {
    struct hd_opened_rank open;
    struct hd_trainer *trainer; /* with its first weights */
};

/* Call gpu_rank_close also when this failed. choices_dir: as of the backend's options. */
enum hd_status gpu_rank_open(const struct hd_job *job, const struct gpu_run *run,
                             const char *choices_dir, struct gpu_rank *ret_rank);
void gpu_rank_close(struct gpu_rank *rank);

/* Trains, prints the report to `out`; ret_ms: the median step. */
enum hd_status train_gpu_ours(const struct gpu_case *c, const struct gpu_run *run, FILE *out,
                              double *ret_ms);

double train_gpu_median(const double *values, int count);
enum { TRAIN_GPU_STEPS_MAX = 1000 };

#endif
