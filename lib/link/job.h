/* job: the resolved job, what a rank needs to know to run one attempt, and its text form.
 *
 * The controller's side decides everything (defaults, layout, directories, the checkpoint to start
 * from); this is the result, with nothing left to choose. It travels as a file of "key value" lines
 * that libc alone can read, so that the engine stands on a bare machine, and it is stored verbatim
 * in every checkpoint.
 *
 *     HEDDLE-JOB 1
 *     model.family llama
 *     model.layers 6
 *     data.train 1048576 /data/corpus/a.txt
 *     end
 *
 * Every scalar key stands exactly once, lists stand once per item, in order. In a mixture a line
 * "data.source WEIGHT" stands before each source's files. Unknown, missing or
 * repeated keys are HD_INVALID: writer and reader are one build.
 *
 * Used by: spec (writes), heddled (writes), worker, train, checkpoint tools (read).   Uses: base.
 * Threads: immutable once filled.
 */
#ifndef HD_LINK_JOB_H
#define HD_LINK_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

enum {
    HD_JOB_WORD_MAX = 64,
    HD_JOB_PATH_MAX = 4096,
    HD_JOB_FILE_BYTES_MAX = 4 << 20,
    HD_JOB_SOURCES_MAX = 64,
    HD_JOB_RANKS_MAX = 64 /* as many as the engines shm and gloo connect */
};
enum { HD_JOB_PROFILE_STEPS_MAX = 100 }; /* in one trace */

/* kind, member, key in the text, smallest, largest (numbers only)
 * WORD: a name without blanks; PATH: one line, may be empty; INT: int64_t; REAL: double; BOOL: 0 or
 * 1 */
#define HD_JOB_FIELDS(X)                                                                          \
    X(WORD, name, "name", 0, 0)                                                                   \
    X(WORD, family, "model.family", 0, 0) /* a name that model/ knows */                          \
    X(INT, layers, "model.layers", 1, 1024)                                                       \
    X(INT, hidden, "model.hidden", 1, 1 << 20)                                                    \
    X(INT, heads, "model.heads", 1, 4096)                                                         \
    X(INT, kv_heads, "model.kv_heads", 1, 4096)                                                   \
    X(INT, ffn_hidden, "model.ffn_hidden", 1, 1 << 22)                                            \
    X(INT, vocab, "model.vocab", 2, 1 << 22)                                                      \
    X(INT, context, "model.context", 1, 1 << 24)                                                  \
    X(REAL, rope_theta, "model.rope_theta", 1, 1e12)                                              \
    X(REAL, norm_eps, "model.norm_eps", 1e-12, 1)                                                 \
    X(BOOL, tie_embeddings, "model.tie_embeddings", 0, 1)                                         \
    X(INT, head_width, "model.head_width", 1, 4096)                                               \
    X(BOOL, qkv_bias, "model.qkv_bias", 0, 1)                                                     \
    X(BOOL, out_bias, "model.out_bias", 0, 1)                                                     \
    X(BOOL, mlp_bias, "model.mlp_bias", 0, 1)                                                     \
    X(BOOL, qk_norm, "model.qk_norm", 0, 1)                                                       \
    X(WORD, positions, "model.positions", 0, 0)       /* rope | learned | alibi */                \
    X(INT, window, "model.window", 0, 1 << 24)        /* 0: every earlier position is seen */     \
    X(INT, window_from, "model.window_from", 0, 1024) /* first block that has the window */       \
    X(WORD, rope_scaling, "model.rope_scaling", 0, 0) /* none | linear | llama3 | yarn */         \
    X(REAL, rope_factor, "model.rope_scaling.factor", 1, 1e6)                                     \
    X(INT, rope_original_context, "model.rope_scaling.original_context", 0, 1 << 24)              \
    X(REAL, rope_low_freq_factor, "model.rope_scaling.low_freq_factor", 0, 1e6)                   \
    X(REAL, rope_high_freq_factor, "model.rope_scaling.high_freq_factor", 0, 1e6)                 \
    X(REAL, rope_beta_fast, "model.rope_scaling.beta_fast", 0, 1e6)                               \
    X(REAL, rope_beta_slow, "model.rope_scaling.beta_slow", 0, 1e6)                               \
    X(REAL, rope_attention_factor, "model.rope_scaling.attention_factor", 0, 1e6)                 \
    X(INT, experts, "model.experts", 0, 4096) /* of each block's MLP; 0: one, without a router */ \
    X(INT, experts_per_token, "model.experts_per_token", 0, 64)                                   \
    X(INT, shared_ffn_hidden, "model.shared_ffn_hidden", 0, 1 << 22) /* of an expert for all */   \
    X(BOOL, renormalize, "model.router.renormalize", 0, 1) /* gates of the chosen sum to one */   \
    X(BOOL, noisy, "model.router.noisy", 0, 1)             /* Shazeer et al. 2017 */              \
    X(REAL, balance, "model.router.balance", 0, 1e3)       /* coefficients of the losses */       \
    X(REAL, z_loss, "model.router.z", 0, 1e3)                                                     \
    X(REAL, capacity, "model.router.capacity", 0, 1e6) /* in even shares; 0: nothing dropped */   \
    X(PATH, tokenizer, "data.tokenizer", 0, 0)         /* bytes, none, or a tokenizer.json */     \
    X(WORD, order, "data.order", 0, 0)                 /* shuffled | sequential */                \
    X(WORD, documents, "data.documents", 0, 0)         /* bounded | joined */                     \
    X(INT, end_of_text, "data.end_of_text", -2, INT32_MAX) /* -1: none, -2: tokenizer's */        \
    X(REAL, val_split, "data.split", 0, 0.9) /* share of the corpus held out; 0: own files */     \
    X(INT, steps, "train.steps", 1, INT64_C(1) << 40)                                             \
    X(INT, global_batch, "train.global_batch", 1, 1 << 24) /* sequences per step */               \
    X(REAL, lr_peak, "train.lr.peak", 0, 1e3)                                                     \
    X(REAL, lr_min, "train.lr.min", 0, 1e3)                                                       \
    X(INT, lr_warmup_steps, "train.lr.warmup", 0, INT64_C(1) << 40)                               \
    X(WORD, lr_decay, "train.lr.decay", 0, 0) /* cosine | linear | wsd | constant */              \
    X(INT, lr_decay_steps, "train.lr.decay_steps", 0, INT64_C(1) << 40) /* wsd: the final fall */ \
    X(REAL, beta1, "train.beta1", 0, 1)                                                           \
    X(REAL, beta2, "train.beta2", 0, 1)                                                           \
    X(REAL, adam_eps, "train.eps", 1e-30, 1)                                                      \
    X(REAL, weight_decay, "train.weight_decay", 0, 1e3)                                           \
    X(REAL, clip, "train.clip", 0, 1e9) /* largest gradient norm; 0: no clipping */               \
    X(REAL, dropout_embedding, "train.dropout.embedding", 0, 0.99) /* shares that are dropped */  \
    X(REAL, dropout_attention, "train.dropout.attention", 0, 0.99)                                \
    X(REAL, dropout_residual, "train.dropout.residual", 0, 0.99)                                  \
    X(WORD, precision, "train.precision", 0, 0) /* fp32 | bf16 */                                 \
    X(INT, seed, "train.seed", 0, INT64_MAX)                                                      \
    X(BOOL, tf32, "train.tf32", 0, 1) /* of a GPU, as in kernels.h, hd_backend_options */         \
    X(BOOL, deterministic, "train.deterministic", 0, 1)       /* the same */                      \
    X(BOOL, native_reduction, "train.native_reduction", 0, 1) /* of nccl: comm/nccl.h */          \
    X(PATH, init_from, "train.init_from", 0, 0) /* weights of step 0; empty: by the seed */       \
    X(PATH, init_identity, "train.init_identity", 0, 0) /* what they are: 16 hex digits */        \
    X(INT, profile_first, "train.profile.first", 0, INT64_C(1) << 40) /* 0: no trace */           \
    X(INT, profile_last, "train.profile.last", 0, INT64_C(1) << 40)                               \
    X(INT, validate_every, "validate.every", 0, INT64_C(1) << 40) /* 0: never */                  \
    X(INT, validate_batches, "validate.batches", 0, 1 << 20)      /* of global_batch sequences */ \
    X(INT, checkpoint_every, "checkpoint.every", 0, INT64_C(1) << 40) /* 0: only at the end */    \
    X(WORD, device, "plan.device", 0, 0)                              /* cpu | cuda */            \
    X(INT, threads, "plan.threads", 1, 4096)                          /* per rank, of the CPU */  \
    X(INT, pp, "plan.pp", 1, 65536)                                                               \
    X(INT, dp, "plan.dp", 1, 65536)                                                               \
    X(INT, cp, "plan.cp", 1, 65536)                                                               \
    X(INT, tp, "plan.tp", 1, 65536)                                                               \
    X(BOOL, sequence, "plan.sequence", 0, 1)       /* rows of a norm are shared among tp ranks */ \
    X(WORD, cp_exchange, "plan.cp_exchange", 0, 0) /* ring | all_gather */                        \
    X(INT, ep, "plan.ep", 1, 65536)                                                               \
    X(REAL, expert_rows, "plan.expert_rows", 0, 1e6) /* room for rows that experts get from other \
                                                        ranks, in even shares; 0: for all */      \
    X(INT, micro_batch, "plan.micro_batch", 1, 1 << 20) /* sequences per rank and program call */ \
    X(INT, job_id, "attempt.job", 0, INT64_MAX)                                                   \
    X(INT, attempt, "attempt.number", 0, INT64_MAX)                                               \
    X(PATH, attempt_dir, "attempt.dir", 0, 0)      /* checkpoints/ goes below it */               \
    X(PATH, base_checkpoint, "attempt.base", 0, 0) /* directory to resume from; empty: none */    \
    X(WORD, base_manifest_hash, "attempt.base_hash", 0, 0) /* hex, or "-" */

/* A training or validation file with the size that the submitter saw. */
struct hd_job_file {
    const char *path; /* absolute */
    int64_t size_bytes;
    int64_t source; /* training: of a mixture, the place of its weight; else 0. Never falls. */
};

struct hd_job {
#define HD_JOB_MEMBER_WORD(member)     char member[HD_JOB_WORD_MAX];
#define HD_JOB_MEMBER_PATH(member)     char member[HD_JOB_PATH_MAX];
#define HD_JOB_MEMBER_INT(member)      int64_t member;
#define HD_JOB_MEMBER_REAL(member)     double member;
#define HD_JOB_MEMBER_BOOL(member)     bool member;
#define X(kind, member, key, min, max) HD_JOB_MEMBER_##kind(member)
    HD_JOB_FIELDS(X)
#undef X
    struct hd_job_file *train, *val; /* in the arena given to the reader, or the filler's */
    int64_t train_count, val_count;
    double *weights;      /* of a mixture's sources, each with a file at least */
    int64_t weight_count; /* 0: one source */
};

/* Adds the text form. Doubles are written so that they read back to the same bits. HD_INVALID when
 * a word is empty or has blanks, or a path has a line break. */
enum hd_status hd_job_write(const struct hd_job *job, struct hd_text *ret_text);

/* Reads the text form; file lists and their paths live in `arena`. Errors name the line and the
 * key. */
enum hd_status hd_job_read(const char *text, size_t size_bytes, struct hd_arena *arena,
                           struct hd_job *ret_job);

/* The same from a file of at most HD_JOB_FILE_BYTES_MAX bytes. */
enum hd_status hd_job_read_file(const char *path, struct hd_arena *arena, struct hd_job *ret_job);

#endif
