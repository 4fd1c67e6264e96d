/* train_cpu: what its three files share: the driver, which starts the peers and prints the table;
 * our peer, which trains; and the floor, which measures what a step cannot do without.
 *
 * A peer is a process that says one line about itself and then answers each line `run N` by one
 * line of numbers, so that runs of all of them are interleaved while each keeps what it has warm.
 */
#ifndef HD_TESTS_BENCH_TRAIN_CPU_H
#define HD_TESTS_BENCH_TRAIN_CPU_H

#include <stdbool.h>

#include "job/job.h"

enum { TRAIN_CPU_THREADS = 2 };

/* One kind of training that is measured. */
struct train_case {
    const char *name, *what;
    int64_t layers, hidden, heads, vocab, context, batch;
    int steps; /* per run */
    /* of fine-tuning: a qwen2 model, beside another case of ours instead of floor and PyTorch */
    int64_t kv_heads, ffn_hidden; /* 0: a GPT-2 model */
    const char *beside;           /* NULL: nothing */
    bool adapter;                 /* rank 16 on all linears; else everything trains */
    const char *weights;          /* model.quantization; NULL: plain */
};
const struct train_case *train_case_find(const char *name);

/* The job of a case; its one file lives in `file`. */
struct hd_job train_case_job(const struct train_case *c, const char *precision,
                             struct hd_job_file *file);

/* Peers: serve until their input ends; the exit status. */
int train_cpu_ours(const struct hd_job *job, bool ops);
int train_cpu_floor(const struct hd_job *job);

#endif
