/* inference_rank: a model, or one rank's shard of it, with weights but without the state that only
 * training needs, on one device; for generation and evaluation. Only for lib/train.
 *
 * Order of calls: read_job, cut if pp > 1, declare (the caller may change the job between read_job
 * and declare), compile for each program, open, reserve, bind, read_weights. With several ranks
 * each rank makes all of these calls, in its own thread; `pp`, `tp` and `rank` are set before cut.
 * The memory may be a device's, which the host reaches through `staging`.
 *
 * *Lanes* are calls of programs whose results are needed at the same time: each lane has its own
 * hidden rows to and from other stages and, on the stage with the head, its own output.
 */
#ifndef HD_TRAIN_INFERENCE_RANK_H
#define HD_TRAIN_INFERENCE_RANK_H

#include "train/opened_rank.h"
#include "train/rank_program.h"
#include "train/source.h"

struct hd_inference_rank {
    struct hd_arena arena;
    /* job of the checkpoint; for a Hugging Face model directory only the job's model keys are
     * set */
    struct hd_job job;
    /* pipeline stages, ranks per stage, and this rank's number; defaults: 1, 1, 0 */
    int pp, tp, rank;
    /* set before read_job: the rank also has the first layer that predicts further tokens, which
     * drafts tokens (hd_model_record_draft) */
    bool drafts;
    /* [pp], the units (embedding, blocks, head) of each pipeline stage; NULL: one stage has all
     * units */
    struct hd_units *stages;
    struct hd_mesh mesh;
    struct hd_registry registry;
    struct hd_model model;
    struct hd_bases bases;
    struct hd_backend_options options;
    struct hd_opened_rank open;
    int64_t memory_bytes; /* private and registered memory together */
    /* distance in bytes from one lane's work memory to the next lane's; 0: all lanes share one */
    int64_t micro_batch_bytes;
    /* hidden rows of all lanes: per lane the input rows, then the output rows */
    char *stage_io;
    int64_t stage_io_bytes; /* bytes of one lane's input, and of its output */
    char *draft_state;      /* constants and caches of the chunks that draft */
    bool is_checkpoint;     /* false: a Hugging Face model directory */
    int64_t step;           /* training step of the checkpoint; unset for a model directory */
    const char *tokenizer;  /* data.tokenizer, or the path of a tokenizer.json; "": unknown */
};

void hd_inference_rank_init(struct hd_inference_rank *l, const struct hd_backend_table *backend,
                            int threads);
void hd_inference_rank_done(struct hd_inference_rank *l);

/* Reads the job of a checkpoint or makes one from a Hugging Face model directory, whose precision
 * is fp32. With dirs->adapter the job has that adapter. */
enum hd_status hd_inference_rank_read_job(struct hd_inference_rank *l,
                                          const struct hd_source_dirs *dirs);
/* Sets job->precision to `wish`. If `wish` is NULL, the job keeps its precision, except that fp8,
 * which exists in training only, becomes bf16. */
enum hd_status hd_inference_rank_choose_precision(struct hd_job *job, const char *wish);
/* Divides the model's units among pp stages so that the largest stage needs the least memory: the
 * bytes of its weights, plus block_bytes (caches) for each block. Needs at least one block per
 * stage. */
enum hd_status hd_inference_rank_cut(struct hd_inference_rank *l, int64_t block_bytes);
enum hd_status hd_inference_rank_declare(struct hd_inference_rank *l);
/* Returns true on ranks of the last stage, which compute the logits. */
bool hd_inference_rank_has_head(const struct hd_inference_rank *l);
/* Records and compiles a chunk. input_rows 0: of the model; else one that drafts, on a rank with the
 * head, and the most rows of any chunk of the rank. */
enum hd_status hd_inference_rank_compile(struct hd_inference_rank *l,
                                         const struct hd_rec_shape *shape, int64_t input_rows,
                                         struct hd_chunk **ret_chunk);
/* Opens the backend and, with several ranks, their communication. connecting: shared by the ranks,
 * which are threads of this process; NULL with one rank. On a device rank r opens the device of
 * index r, and waits here for the others. */
enum hd_status hd_inference_rank_open(struct hd_inference_rank *l,
                                      const struct hd_shm_control *connecting);
/* Chunks that have their constants and caches at the same offsets of the same memory. */
struct hd_inference_chunks {
    struct hd_chunk *const *list;
    int count;
};
/* Reserves the rank's memory: weights, then constants and caches of the model's chunks and of those
 * that draft, then work memory. */
enum hd_status hd_inference_rank_reserve(struct hd_inference_rank *l,
                                         const struct hd_inference_chunks *model,
                                         const struct hd_inference_chunks *drafts,
                                         int micro_batches);
/* Returns the base addresses of the memory regions that a program uses in lane `micro_batch`. */
struct hd_bases hd_inference_rank_bases(const struct hd_inference_rank *l, int micro_batch);
/* Returns those of a program that drafts. It reads the hidden rows that the model, or the draft
 * before it, wrote in the lane, and writes its own in their place: its first op has read them by
 * then. */
struct hd_bases hd_inference_rank_draft_bases(const struct hd_inference_rank *l, int micro_batch);
enum hd_status hd_inference_rank_bind(struct hd_inference_rank *l, const struct hd_chunk *chunk,
                                      enum hd_call call, const struct hd_bases *bases,
                                      struct hd_bound **ret_bound);
/* Reads the weights that this rank holds. Rank 0 first verifies a checkpoint for all ranks. */
enum hd_status hd_inference_rank_read_weights(struct hd_inference_rank *l,
                                              const struct hd_source_dirs *dirs);

#endif
