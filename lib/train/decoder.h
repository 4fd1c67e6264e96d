/* decoder: the logits behind new tokens of many sequences, with key/value caches.
 *
 * The caches have `slots`, each for one sequence of at most `context` tokens. A call reads the next
 * tokens of some slots, of each as many as are given, and leaves the logits behind every one of
 * them. It runs one of a few D programs, which differ in sequences and tokens per call:
 *
 *     tokens 1     for 1, 2, 4 .. slots sequences: generation
 *     tokens 16    for 1 and 4 sequences: short prompts, and what is left of long ones
 *     tokens 64    for 1 sequence: long prompts
 *
 * A program computes all of its rows. Rows that no token is given for are padding: what they write
 * into a slot is behind its end and is overwritten by the next call.
 *
 * The logits of a sequence do not depend on the other sequences, but the programs add in different
 * orders, so they may differ in the last bits with the number of sequences in a call.
 *
 * Several ranks may share the model and the caches, so that it need not fit one device: rank r has
 * the GPU of index r, or its part of the CPU's threads. With `tp` they share each block (Shoeybi et
 * al. 2019, "Megatron-LM"). With `pp` the blocks are shared out among stages of tp ranks each
 * (Huang et al. 2019, "GPipe"): a stage has the caches of its blocks, and sends hidden rows to the
 * next one. The stages work at the same time on the parts of a call: 64 tokens of a long prompt
 * each, or 16 sequences or more.
 *
 * Used by: generate, worker.   Uses: model, program, checkpoint, comm.
 * Threads: a decoder belongs to one thread; it starts those of its other ranks, and the backend's.
 */
#ifndef HD_TRAIN_DECODER_H
#define HD_TRAIN_DECODER_H

#include <stdint.h>

#include "base/status.h"
#include "job/job.h"
#include "kernels/kernels.h"
#include "train/source.h"

enum {
    HD_DECODER_ROWS = 64,          /* most tokens of a call, with pp of each of its parts */
    HD_DECODER_SLOTS_MAX = 256,    /* sequences */
    HD_DECODER_RANKS_MAX = 64,     /* tp x pp */
    HD_DECODER_CONTEXT_MAX = 4096, /* of a Hugging Face model, where nothing else is asked for */
};

struct hd_decoder;

struct hd_decoder_options {
    struct hd_source_dirs dirs; /* a checkpoint, or a Hugging Face model directory */
    const struct hd_backend_table *backend;
    int threads;           /* of the CPU backend, of all ranks together */
    int tp;                /* ranks that share each block; 0: 1 */
    int pp;                /* stages that share the blocks; 0: 1 */
    int slots;             /* 0: 1 */
    int64_t context;       /* 0: the model's, of a model directory at most HD_DECODER_CONTEXT_MAX */
    const char *precision; /* "fp32", "bf16", "fp16"; NULL: the job's, of a directory fp32 */
    const char *weights;   /* encoding of the matrices of blocks (model.weights): "nf4", "int8",
                              "fp8", "plain"; NULL: as the job or the directory says */
};

/* HD_INVALID: the options, or directories that do not fit together; the message names the flag of
 * the same name. HD_NO_MEMORY: weights and caches do not fit. */
enum hd_status hd_decoder_open(const struct hd_decoder_options *options,
                               struct hd_decoder **ret_decoder);
void hd_decoder_close(struct hd_decoder *decoder); /* NULL is fine */

int64_t hd_decoder_vocab(const struct hd_decoder *decoder);
int64_t hd_decoder_context(const struct hd_decoder *decoder);
int hd_decoder_slots(const struct hd_decoder *decoder);
int hd_decoder_ranks(const struct hd_decoder *decoder);
/* Weights, caches and work of a rank. */
int64_t hd_decoder_memory_bytes(const struct hd_decoder *decoder, int rank);
/* data.tokenizer of the job, or the path of a tokenizer.json; "": unknown. */
const char *hd_decoder_tokenizer(const struct hd_decoder *decoder);
/* The job of a checkpoint; of a model directory only its members of the model are set. */
const struct hd_job *hd_decoder_job(const struct hd_decoder *decoder);
bool hd_decoder_is_checkpoint(const struct hd_decoder *decoder);
int64_t hd_decoder_step(const struct hd_decoder *decoder); /* of the checkpoint */

/* The next tokens of one slot. */
struct hd_decoder_rows {
    int slot;
    int64_t filled; /* tokens of the slot that count: those behind them are forgotten */
    const int32_t *tokens;
    int64_t count; /* at least 1, at most hd_decoder_rows_max of the number of slots in the call */
};

/* Tokens of each slot that a call for `slots` slots takes at most. 0: too many slots. */
int64_t hd_decoder_rows_max(const struct hd_decoder *decoder, int slots);

/* Reads the tokens; no slot twice. HD_INVALID: a token is outside the vocabulary, or a slot would
 * have more than `context`; no slot has changed then. */
enum hd_status hd_decoder_run(struct hd_decoder *decoder, const struct hd_decoder_rows *rows,
                              int count);

/* Logits [V] behind token `row` of slot rows[index] of the last call; valid until the next call of
 * this function or of hd_decoder_run. HD_CORRUPT: one is not finite. */
enum hd_status hd_decoder_logits(struct hd_decoder *decoder, int index, int64_t row,
                                 const float **ret_logits);

#endif
