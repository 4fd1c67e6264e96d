/* loaded: a model, or a rank's share of one, with its weights and without what only training needs,
 * on one device; for generation and evaluation. Only for lib/train.
 *
 * The order of calls: read_job, cut if pp > 1, declare (the job may be changed between them),
 * compile for each program, open, reserve, bind, read_weights. With several ranks each makes all of
 * these calls, in its own thread; `pp`, `tp` and `rank` are set before cut. The memory may be a
 * device's, which the host reaches by `staging`.
 *
 * *Lanes* are calls of programs whose results are needed at the same time: each has its own hidden
 * rows to and from other stages and, on the stage with the head, its own output.
 */
#ifndef HD_TRAIN_INFERENCE_RANK_H
#define HD_TRAIN_INFERENCE_RANK_H

#include "comm/shm_control.h"
#include "program/run.h"
#include "train/rank_program.h"
#include "train/source.h"
#include "train/staging.h"

struct hd_inference_rank {
    struct hd_arena arena;
    struct hd_job job;       /* a checkpoint's; of a Hugging Face model the model's members alone */
    int pp, tp, rank;        /* 1, 1, 0 */
    struct hd_units *stages; /* [pp] the units of each; NULL: all are on one */
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
    char *memory;              /* on the device, if there is one; without what collectives reach */
    int64_t memory_bytes;      /* with it */
    int64_t micro_batch_bytes; /* from one lane's work memory to the next one's; 0: they share it */
    char *stage_io; /* hidden rows: of each lane those that come in, then those that go out */
    int64_t stage_io_bytes; /* of each of them */
    bool is_checkpoint;     /* or a Hugging Face model directory */
    int64_t step;           /* of the checkpoint */
    const char *tokenizer;  /* data.tokenizer, or the path of a tokenizer.json; "": unknown */
};

void hd_inference_rank_init(struct hd_inference_rank *l, const struct hd_backend_table *backend,
                            int threads);
void hd_inference_rank_done(struct hd_inference_rank *l);

/* A Hugging Face model computes in fp32. With dirs->adapter it has that adapter. */
enum hd_status hd_inference_rank_read_job(struct hd_inference_rank *l,
                                          const struct hd_source_dirs *dirs);
/* Sets job->precision to `wish`; NULL: as it is, but bf16 instead of fp8, which only training has.
 */
enum hd_status hd_inference_rank_choose_precision(struct hd_job *job, const char *wish);
/* Shares the units out among pp stages, so that the stage with the most memory has as little as
 * possible: its weights, and block_bytes more for each block. At most one stage a block. */
enum hd_status hd_inference_rank_cut(struct hd_inference_rank *l, int64_t block_bytes);
enum hd_status hd_inference_rank_declare(struct hd_inference_rank *l);
bool hd_inference_rank_has_head(const struct hd_inference_rank *l); /* this rank does */
enum hd_status hd_inference_rank_compile(struct hd_inference_rank *l,
                                         const struct hd_rec_shape *shape,
                                         struct hd_chunk **ret_chunk);
/* meeting: of the ranks, which are threads of this process; NULL with one. On a device rank r has
 * that of index r, and waits here for the others. */
enum hd_status hd_inference_rank_open(struct hd_inference_rank *l,
                                      const struct hd_shm_control *connecting);
/* One allocation: weights, then the chunks' constants and caches (chunks of one model have them at
 * the same offsets), then work. */
enum hd_status hd_inference_rank_reserve(struct hd_inference_rank *l,
                                         struct hd_chunk *const *chunks, int count,
                                         int micro_batches);
/* Addresses in a lane. */
struct hd_bases hd_inference_rank_bases(const struct hd_inference_rank *l, int micro_batch);
enum hd_status hd_inference_rank_bind(struct hd_inference_rank *l, const struct hd_chunk *chunk,
                                      enum hd_call call, int micro_batch,
                                      struct hd_bound **ret_bound);
/* Those that this rank holds; rank 0 first verifies a checkpoint, for all. */
enum hd_status hd_inference_rank_read_weights(struct hd_inference_rank *l,
                                              const struct hd_source_dirs *dirs);

#endif
