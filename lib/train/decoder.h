/* decoder: computes the logits behind new tokens of many sequences, with key/value caches.
 *
 * The caches have `slots`, each for one sequence of at most `context` tokens. A call reads the next
 * tokens of some slots (a slot's number of tokens is free) and produces the logits behind each of
 * these tokens. It runs one of a few D programs, which differ in sequences and tokens per call:
 *
 *     tokens 1     for 1, 2, 4 .. slots sequences: generation
 *     tokens 16    for 1 and 4 sequences: short prompts, and the remainders of long ones
 *     tokens 64    for 1 sequence: long prompts
 *
 * A program computes all of its rows. Rows without a token are padding: the keys and values that
 * they write lie behind the end of the slot's sequence, and the next call overwrites them.
 *
 * Drafts: with options.drafts a model's first layer that predicts further tokens (model.mtp) guesses
 * the tokens behind the next one. It has keys and values of its own, and its row t reads the model's
 * hidden row t and the token t + 1. Behind a hd_decoder_run, hd_decoder_draft continues the hidden rows
 * of that call; behind a draft, those of the draft, as if the guess were right. A run that then reads
 * the guessed tokens computes the logits behind each of them at once, in programs for 1 + drafts tokens
 * of 1, 2, 4 .. slots sequences; tokens that the caller refuses are discarded like padding, by the next
 * call's `filled`. Only the ranks of the last stage draft.
 *
 * The logits of a sequence do not depend on the other sequences, but the programs add in different
 * orders, so they may differ in the last bits with the number of sequences in a call.
 *
 * Several ranks may share the model and the caches, so that the model need not fit one device: rank
 * r has the GPU of index r, or its part of the CPU's threads. With `tp` they share each block
 * (Shoeybi et al. 2019, "Megatron-LM"). With `pp` the blocks are divided among stages of tp ranks
 * each (Huang et al. 2019, "GPipe"): a stage has the caches of its blocks, and sends hidden rows to
 * the next stage. The stages work at the same time on different parts of a call: 64 tokens of a
 * long prompt per part, or 16 or more sequences per part.
 *
 * Used by: generate, worker.   Uses: model, program, checkpoint, comm.
 * Threads: a decoder belongs to one thread; it starts the threads of its other ranks and of the
 * backend.
 */
#ifndef HD_TRAIN_DECODER_H
#define HD_TRAIN_DECODER_H

#include <stdint.h>

#include "base/status.h"
#include "job/job.h"
#include "kernels/kernels.h"
#include "train/source.h"

enum {
    HD_DECODER_DRAFTS_MAX = 8,  /* tokens drafted per sequence at a time */
    HD_DECODER_ROWS = 64,       /* tokens per call, or with pp > 1 per part of a call */
    HD_DECODER_SLOTS_MAX = 256, /* sequences in the caches */
    HD_DECODER_RANKS_MAX = 64,  /* ranks of a decoder, tp x pp */
    /* most tokens per sequence, by default, for a Hugging Face model whose own context is longer */
    HD_DECODER_CONTEXT_MAX = 4096,
};

struct hd_decoder;

struct hd_decoder_options {
    struct hd_source_dirs dirs; /* a checkpoint, or a Hugging Face model directory */
    const struct hd_backend_table *backend;
    int threads; /* CPU threads of all ranks together */
    int tp;      /* ranks that share each transformer block (tensor parallelism); 0: 1 */
    int pp;      /* pipeline stages; 0: 1 */
    int slots;   /* sequences that the key/value caches have memory for; 0: 1 */
    /* most tokens per sequence; 0: the model's context, for a model directory at most
     * HD_DECODER_CONTEXT_MAX */
    int64_t context;
    /* compute precision: "fp32", "bf16", "fp16"; NULL: that of the checkpoint's job; for a model
     * directory fp32 */
    const char *precision;
    /* encoding of the weight matrices of the transformer blocks (model.quantization): "nf4", "int8",
     * "fp8", "plain"; NULL: the encoding that the job or the model directory has */
    const char *weights;
    /* most tokens that are drafted for a sequence at a time, at most HD_DECODER_DRAFTS_MAX; 0: none */
    int drafts;
};

/* Opens a decoder with its ranks. HD_INVALID: bad options, or directories that do not fit together;
 * the message names the command-line flag. HD_NO_MEMORY: weights and caches do not fit. */
enum hd_status hd_decoder_open(const struct hd_decoder_options *options,
                               struct hd_decoder **ret_decoder);
void hd_decoder_close(struct hd_decoder *decoder); /* NULL is ignored */

int64_t hd_decoder_vocab(const struct hd_decoder *decoder);
int64_t hd_decoder_context(const struct hd_decoder *decoder);
int hd_decoder_slots(const struct hd_decoder *decoder);
int hd_decoder_ranks(const struct hd_decoder *decoder);
int hd_decoder_drafts(const struct hd_decoder *decoder);
/* Returns the bytes of weights, caches and work memory of a rank. */
int64_t hd_decoder_memory_bytes(const struct hd_decoder *decoder, int rank);
/* Returns data.tokenizer of the job, or the path of a tokenizer.json; "": unknown. */
const char *hd_decoder_tokenizer(const struct hd_decoder *decoder);
/* Returns the job of a checkpoint; for a model directory only the job's model keys are set. */
const struct hd_job *hd_decoder_job(const struct hd_decoder *decoder);
bool hd_decoder_is_checkpoint(const struct hd_decoder *decoder);
/* Returns the training step of the opened checkpoint. */
int64_t hd_decoder_step(const struct hd_decoder *decoder);

/* Next tokens to read into one slot of the key/value caches, which holds one sequence. */
struct hd_decoder_rows {
    int slot;
    /* tokens already in the slot's cache that stay; those after them are discarded */
    int64_t filled;
    const int32_t *tokens;
    int64_t count; /* number of next tokens: 1 to hd_decoder_rows_max(slots of the call) */
};

/* Returns how many next tokens per sequence one hd_decoder_run with `slots` sequences accepts; 0:
 * more sequences than the decoder has slots. */
int64_t hd_decoder_rows_max(const struct hd_decoder *decoder, int slots);

/* Reads the next tokens of each sequence into its cache slot and computes the logits behind each
 * token. No slot may occur twice in `rows`. HD_INVALID: a token is outside the vocabulary, or a
 * slot would have more than `context` tokens; then no slot has changed. */
enum hd_status hd_decoder_run(struct hd_decoder *decoder, const struct hd_decoder_rows *rows,
                              int count);

/* Sets *ret_logits to the logits [V] behind token `row` of sequence rows[index] of the last
 * hd_decoder_run; they are valid until the next call of this function or of hd_decoder_run.
 * HD_CORRUPT: a logit is not finite. */
enum hd_status hd_decoder_logits(struct hd_decoder *decoder, int index, int64_t row,
                                 const float **ret_logits);

/* Rows of the layer that drafts, for one sequence of the last hd_decoder_run. */
struct hd_draft_rows {
    /* index, among the tokens of the sequence in the last hd_decoder_run or hd_decoder_draft, of the
     * row that is continued first; 0 in the first draft behind a run */
    int64_t from;
    int64_t filled;        /* rows already in the layer's cache that stay */
    const int32_t *tokens; /* for each row the token behind it */
    int64_t count;         /* number of rows; 0: the sequence is left out */
};

/* Drafts behind each sequence rows[index] of the last hd_decoder_run, in the order of its rows. */
enum hd_status hd_decoder_draft(struct hd_decoder *decoder, const struct hd_draft_rows *drafts,
                                int count);

/* Sets *ret_logits to the logits [V] of the token that follows the last row of sequence `index` in the
 * last hd_decoder_draft, as hd_decoder_logits does. */
enum hd_status hd_decoder_draft_logits(struct hd_decoder *decoder, int index,
                                       const float **ret_logits);

#endif
