/* loaded: a model, or a tp rank's share of one, with its weights and without what only training
 * needs, on one device; for generation and evaluation. Only for lib/train.
 *
 * The order of calls: read_job, declare (the job may be changed between them), compile for each
 * program, open, reserve, bind, read_weights. With several ranks each makes all of these calls, in
 * its own thread; `tp` and `rank` are set before declare. The memory may be a device's, which the
 * host reaches by `staging`.
 */
#ifndef HD_TRAIN_LOADED_H
#define HD_TRAIN_LOADED_H

#include "comm/shm_control.h"
#include "program/run.h"
#include "train/layout.h"
#include "train/source.h"
#include "train/staging.h"

struct hd_loaded {
    struct hd_arena arena;
    struct hd_job job; /* a checkpoint's; of a Hugging Face model the model's members alone */
    int tp, rank;      /* 1, 0 */
    struct hd_mesh mesh;
    struct hd_registry registry;
    struct hd_model model;
    struct hd_bases bases;
    const struct hd_backend_table *table;
    struct hd_backend_options options;
    struct hd_backend *backend;
    struct hd_comm *comm; /* NULL: one rank */
    struct hd_runner *runner;
    struct hd_staging staging;
    char *memory;          /* on the device, if there is one; without what collectives reach */
    int64_t memory_bytes;  /* with it */
    bool is_checkpoint;    /* or a Hugging Face model directory */
    int64_t step;          /* of the checkpoint */
    const char *tokenizer; /* data.tokenizer, or the path of a tokenizer.json; "": unknown */
};

void hd_loaded_init(struct hd_loaded *l, const struct hd_backend_table *backend, int threads);
void hd_loaded_done(struct hd_loaded *l);

/* A Hugging Face model computes in fp32. With dirs->adapter it has that adapter. */
enum hd_status hd_loaded_read_job(struct hd_loaded *l, const struct hd_source_dirs *dirs);
/* Sets job->precision to `wish`; NULL: as it is, but bf16 instead of fp8, which only training has.
 */
enum hd_status hd_loaded_choose_precision(struct hd_job *job, const char *wish);
enum hd_status hd_loaded_declare(struct hd_loaded *l);
enum hd_status hd_loaded_compile(struct hd_loaded *l, const struct hd_rec_shape *shape,
                                 struct hd_chunk **ret_chunk);
/* meeting: of the ranks, which are threads of this process; NULL with one. On a device rank r has
 * that of index r, and waits here for the others. */
enum hd_status hd_loaded_open(struct hd_loaded *l, const struct hd_shm_control *meeting);
/* One allocation: weights, then the chunks' constants and caches (chunks of one model have them at
 * the same offsets), then work. */
enum hd_status hd_loaded_reserve(struct hd_loaded *l, struct hd_chunk *const *chunks, int count);
enum hd_status hd_loaded_bind(struct hd_loaded *l, const struct hd_chunk *chunk, enum hd_call call,
                              struct hd_bound **ret_bound);
enum hd_status hd_loaded_read_weights(struct hd_loaded *l, const struct hd_source_dirs *dirs);

#endif
