/* data: data files as one sequence of token ids, and the tokens of each sample of a run.
 *
 * A corpus maps its files into memory and reads them as one sequence of tokens, in the given order:
 * text as bytes, token files (token_file.h) as ids. A document ends at the end of a file, where
 * Megatron's index says so, and after the end-of-text id. With bounds (hd_corpus_set_bounds),
 * documents in a batch are independent: the batch has attention bounds, positions start at 0 in
 * each document, and the last token of a document has no target.
 *
 * A range is a part of that sequence, split into windows of `context` tokens that do not overlap. A
 * sample is one window with its targets, the tokens one place later, so it reads context + 1
 * tokens. An incomplete window at the end of the range is not used. Conversations (token_file.h)
 * are never split: packing.h puts them into windows; only their tokens that count for the loss are
 * targets.
 *
 * The sampler is a pure function: the sample with the global id g = (samples before the step) + i is
 * window g % windows of epoch g / windows, in order or by a keyed permutation of (seed, epoch). In
 * a mixture, sample g is the n-th of a source k, both functions of g (mixture.h), and reads window
 * n % windows of epoch n / windows of that source. There is no state to save and no index in
 * memory; resuming needs only the step. The plan decides which rank computes sample i.
 *
 * A run in stages has a sampler for each stage. A source of several stages has one order: a stage
 * begins where the source was left, so that no window is repeated before all others were read.
 *
 * Used by: train, worker, generation; spec opens files to check them.   Uses: base, chat.
 * Threads: any; a corpus, a sampler and a validation set do not change after their initialisation.
 */
#ifndef HD_DATA_DATA_H
#define HD_DATA_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "chat/conversation.h"
#include "data/mixture.h"
#include "job/batch_spans.h"

enum {
    HD_CORPUS_FILES_MAX = 1 << 20,
    HD_DATA_CONTEXT_MAX = 1 << 24,
    HD_DATA_TARGET_NONE = -1, /* value of a target: the position has none, so the loss ignores it */
    HD_DATA_FURTHER_MAX = 4,  /* most further tokens that a model predicts */
};

/* ---- corpus ---- */

struct hd_corpus;
struct hd_packing; /* packing.h */

struct hd_corpus_file {
    const char *path;
    int64_t size_bytes; /* size in bytes when the job was submitted; -1: not recorded */
    const char *source; /* text file that this file was made from, for messages; NULL: none */
    bool has_gaps; /* true: records of the source may have been left out, so that the number of a
                      document is not that of its record */
    /* the file's fingerprint (fingerprint.h) when the job was submitted; NULL: not recorded */
    const char *fingerprint;
};

/* Opens a corpus: maps the files into memory and copies their paths. The name of a file tells its
 * format: .npy arrays; .bin token files, Megatron's if an .idx file is beside them, else llm.c's;
 * all others text. kind.h refuses other formats. Empty files are allowed. On failure the error
 * names the file, which is missing, unreadable, not a regular file, damaged, or differs from its
 * recorded size or fingerprint. */
enum hd_status hd_corpus_open(const struct hd_corpus_file *files, size_t count,
                              struct hd_corpus **ret_corpus);
void hd_corpus_close(struct hd_corpus *corpus); /* NULL is fine */

int64_t hd_corpus_token_count(const struct hd_corpus *corpus);
/* returns the bytes of all files, with Megatron's .idx files */
int64_t hd_corpus_byte_count(const struct hd_corpus *corpus);
/* Returns the number of documents that Megatron's .idx files list; -1: a file has no .idx. */
int64_t hd_corpus_document_count(const struct hd_corpus *corpus);

/* Fails, naming the file, if a file has changed since it was opened (size, time, inode). Callers
 * must check regularly, for example at a checkpoint: reading a mapped file that was truncated
 * raises SIGBUS. */
enum hd_status hd_corpus_check(const struct hd_corpus *corpus);

size_t hd_corpus_file_count(const struct hd_corpus *corpus);
/* Returns the kind of the files: "text", "npy", "llm.c", "megatron", "conversations", or
 * "mixed". */
const char *hd_corpus_kind(const struct hd_corpus *corpus);
/* returns whether a file is text, no token file */
bool hd_corpus_has_text(const struct hd_corpus *corpus);

/* Sets the size of the vocabulary: ids must be below `vocab`. HD_INVALID: an id is not below it;
 * the message names file, position and id. Checks all ids of files of up to 1 Mi tokens, and about
 * 256 samples of larger files; hd_corpus_read checks every id that it reads. */
enum hd_status hd_corpus_set_vocab(struct hd_corpus *corpus, int64_t vocab);

/* Makes documents in later samples independent (bounds, at the top of this file). end_of_text: the
 * id that ends a document; -1: none, files and Megatron's indexes alone end documents. */
void hd_corpus_set_bounds(struct hd_corpus *corpus, int64_t end_of_text);
bool hd_corpus_is_bounded(const struct hd_corpus *corpus);

/* Makes the corpus consist of pairs for later samples: documents 2 k and 2 k + 1 of each file are
 * the chosen and the rejected answer to one prompt. */
void hd_corpus_set_pairs(struct hd_corpus *corpus);
/* Makes one answer of each pair enough: the other may be a document without targets. */
void hd_corpus_set_unpaired(struct hd_corpus *corpus);

/* Sets the log-probabilities under the reference model that later batches contain: values[t] is
 * that of token t of the corpus, [hd_corpus_token_count]. The array must outlive the corpus. */
void hd_corpus_set_reference(struct hd_corpus *corpus, const float *values);
/* Sets the same for batches with `mismatched`, in which the tokens of an answer follow another
 * prompt. */
void hd_corpus_set_mismatched_reference(struct hd_corpus *corpus, const float *values);

/* Sets ret_counts[i], for i < count, to whether token first + i of the corpus counts for the
 * loss. */
void hd_corpus_read_counts(const struct hd_corpus *corpus, int64_t first, int64_t count,
                           bool *ret_counts);

/* Sets ret_ids to tokens [first, first + count) of the corpus, all inside it. HD_INVALID: an id is
 * outside the vocabulary. */
enum hd_status hd_corpus_read(const struct hd_corpus *corpus, int64_t first, int64_t count,
                              int32_t *ret_tokens);
/* Adds the ids of all tokens of the corpus to a hash. */
enum hd_status hd_corpus_hash_ids(const struct hd_corpus *corpus, struct hd_hash *hash);

struct hd_data_range {
    const struct hd_corpus *corpus;
    int64_t first, count; /* tokens [first, first + count) of the corpus */
};

struct hd_data_range hd_corpus_all(const struct hd_corpus *corpus);
/* Returns the range of tokens of `count` >= 1 adjacent files, of which the first is
 * files[first_file] of hd_corpus_open. */
struct hd_data_range hd_corpus_files(const struct hd_corpus *corpus, size_t first_file,
                                     size_t count);

/* Sets *ret_conversations to whether the range consists of conversations. HD_INVALID: it has both
 * conversations and text. */
enum hd_status hd_data_range_form(struct hd_data_range range, bool *ret_conversations);

struct hd_conversation_place { /* one conversation, or the two of a pair */
    int64_t first, count;      /* the conversation's tokens: [first, first + count) of the corpus */
    int64_t chosen;            /* number of tokens of a pair's chosen answer; 0: no pair */
    bool unpaired;             /* one answer of the pair is enough (hd_corpus_set_unpaired) */
    const char *path;          /* path of the text or token file that has the conversation */
    int64_t file, document;    /* index of the file, number of the conversation or pair in the file;
                                  both from 0 */
    bool has_gaps; /* whether the file's records are numbered otherwise (struct hd_corpus_file) */
};

typedef void hd_conversation_fn(void *context, struct hd_conversation_place place);

/* Calls `each`, in order, for the conversations (or pairs) that lie entirely in the range, which
 * must not be empty. */
void hd_data_range_each(struct hd_data_range range, hd_conversation_fn *each, void *context);

/* Splits the corpus into two ranges by `data.val_split`: the last `fraction` (0 < fraction < 1) is
 * for validation, the rest for training. The boundary is a multiple of `context`, or the end of a
 * conversation. HD_INVALID: a side has no whole window; the message says how many tokens are
 * needed. */
enum hd_status hd_corpus_split(const struct hd_corpus *corpus, double fraction, int64_t context,
                               struct hd_data_range *ret_train, struct hd_data_range *ret_val);
/* Sets *ret_cut to the boundary of hd_corpus_split for `total` tokens of text: the number of
 * training tokens. */
enum hd_status hd_data_split(int64_t total, double fraction, int64_t context, int64_t *ret_cut);

/* Everything except the texts that decides which tokens texts become. */
struct hd_text_origin {
    const char *tokenizer;     /* "bytes", or the path of a tokenizer.json */
    const char *template;      /* path of the chat template, "" if none; NULL: no text is a
                                  conversation */
    const char *folder;        /* folder of the tokenizer_config.json; "": none */
    const char *model_dir;     /* folder of the model that model.from names; "": none */
    const char *format, *loss; /* job keys data.format, data.loss */
    const char *date;          /* job key data.date; "": no template reads the date */
};

/* Sets *ret_hash to the hash of the origin, including the contents of its files. */
enum hd_status hd_text_identity(const struct hd_text_origin *origin, uint64_t *ret_hash);
/* Sets both hashes, and reads each file once: that of the origin, and that of the origin without a
 * template (NULL). */
enum hd_status hd_text_identities(const struct hd_text_origin *origin, uint64_t *ret_hash,
                                  uint64_t *ret_text_hash);
/* Writes a hash as text, in the form of the job key data.text_identity. */
enum { HD_TEXT_IDENTITY_MAX = 2 + HD_HASH_TEXT_MAX };
void hd_text_identity_format(uint64_t hash, char ret_text[HD_TEXT_IDENTITY_MAX]);
/* Compares the origin, of which `hash` is the hash, with a recorded identity; reads its files only
 * if that is of an older form. Sets ret_now to the origin's present identity, in the form of the
 * recorded one. */
enum hd_status hd_text_identity_is(const struct hd_text_origin *origin, uint64_t hash,
                                   const char *recorded, bool *ret_same,
                                   char ret_now[HD_TEXT_IDENTITY_MAX]);

/* How the records of a job's files are read: the texts of its keys; NULL or "": not given. */
struct hd_row_rules {
    const char *columns;  /* data.columns */
    const char *roles;    /* data.roles */
    const char *bad_rows; /* data.bad_rows (data/bad_rows.h) */
};

/* Sets *ret_form to the form of the first record of a file; if bad records are left out, of the
 * first good one among its first 1,000. `form`, unless HD_CHAT_AUTO, is the form that it must have.
 * Later records are not checked here; a rank checks them all. rows NULL: no key is given.
 * HD_INVALID, naming file and line: the record has another form, or no valid one. */
enum hd_status hd_jsonl_look(const char *path, const struct hd_row_rules *rows,
                             enum hd_chat_form form, enum hd_chat_form *ret_form);

/* ---- training samples ---- */

enum hd_data_order { HD_DATA_SEQUENTIAL, HD_DATA_SHUFFLED };

/* One source of a mixture, with its own epochs and order. */
struct hd_sampler_source {
    struct hd_data_range range;
    const struct hd_packing *packing; /* packed conversations; NULL: windows of consecutive
                                         tokens */
    int64_t window_count;             /* samples of the source per epoch, at least 1 */
    /* number of its samples before the sampler's first: those of earlier stages */
    int64_t before;
    uint64_t seed;
};

struct hd_sampler {                /* read-only after hd_sampler_init */
    int64_t context;               /* S: tokens per window */
    struct hd_batch_spans batches; /* samples of each step, over all ranks */
    int64_t window_count;          /* windows of an epoch, sum over all sources */
    int64_t first_sample; /* global id of the first sample; not 0: sampler of a later stage */
    enum hd_data_order order;
    struct hd_mixture mixture;
    struct hd_sampler_source sources[HD_MIXTURE_SOURCES_MAX];
};

/* Initialises a sampler of one source. The corpus must outlive the sampler. HD_INVALID: the range
 * has no whole window; the message says how many tokens are needed. */
enum hd_status hd_sampler_init(struct hd_sampler *ret_sampler, struct hd_data_range range,
                               int64_t context, int64_t global_batch, enum hd_data_order order,
                               uint64_t seed);

/* Initialises a sampler of `count` sources with weights (mixture.h). packings: [count], for ranges
 * of conversations, else NULL; they must outlive the sampler. A NULL array: no source has a
 * packing. */
enum hd_status hd_sampler_init_mixture(struct hd_sampler *ret_sampler,
                                       const struct hd_data_range *ranges,
                                       struct hd_packing *const *packings, const double *weights,
                                       int64_t count, int64_t context, int64_t global_batch,
                                       enum hd_data_order order, uint64_t seed);

/* Sets the batches of each step; before hd_sampler_init_stages. */
static inline void hd_sampler_set_batches(struct hd_sampler *sampler,
                                          const struct hd_batch_spans *batches)
{
    sampler->batches = *batches;
}

/* Initialises the samplers of `stages` stages over the sources of `all`. weights: [sources,
 * stages], 0: the stage lacks the source, but not all of them. first_steps: [stages], the number of
 * steps before each stage, from 0 on and increasing. */
void hd_sampler_init_stages(const struct hd_sampler *all, const double *weights,
                            const int64_t *first_steps, int64_t stages,
                            struct hd_sampler *ret_samplers);

/* Rows of a batch; the caller owns the arrays. Any array may be NULL; but with document bounds,
 * tokens may be NULL only if all are. */
struct hd_data_batch {
    int32_t *tokens;  /* [count, S] token ids */
    int32_t *targets; /* [count, S] the next token; HD_DATA_TARGET_NONE in padding, with bounds at
                           the last token of a document, and in conversations where the next token
                           does not count for the loss */
    /* [count, S] position of the token: index in the sample; with bounds, index in the document */
    int32_t *positions;
    int32_t *index;  /* [count, S] index in the sample: 0 .. S-1                             */
    int32_t *bounds; /* [count, S] index of the first token of the same document             */
    int32_t *begins; /* [count, S] index of the first token of the same conversation; in text
                           0 */
    /* [count, S] number of tokens of the conversation in `begins`; in text S; 0 in padding */
    int32_t *lengths;
    int32_t *answers; /* [count, S] number of the answer in the sample, for pairs: 2 k for the
                           chosen and 2 k + 1 for the rejected answer of pair k; -1 in padding;
                           with answer_ends only the last row of an answer has the number, the
                           others -1 */
    float *reference; /* [count, S] log-probability of the target under the reference model
                           (hd_corpus_set_reference); 0: no reference */
    /* [count, S] each, of completions that a model has sampled; no sampler or validation set fills these:
     * log-probability of the target when it was sampled, and the completion's advantage */
    float *sampled, *advantage;
    /* for multi-token prediction, at index k - 1, [count, S] each. ahead: the token k places after
     * the row; empty_token if the row's document or window ends before it. further: the target of
     * that token; HD_DATA_TARGET_NONE likewise. Only hd_sampler_fill sets them */
    int32_t *ahead[HD_DATA_FURTHER_MAX], *further[HD_DATA_FURTHER_MAX];
    int64_t *sample_ids; /* [count]    global sample ids                                         */
    int64_t *target_places; /* [count, S] index of the target in the corpus; -1: none. Needs
                               `targets` */
    bool answer_ends;
    bool mismatched; /* true: windows of pairs have each prompt with the answer of another pair of
                        the window (sampler.c: fill_mismatched) */
    int32_t empty_token; /* token id in rows of padding, and of `ahead` without a token */
};

/* Returns the view of row i of a batch of windows of S tokens: the same fields, [1, S] each. */
struct hd_data_batch hd_data_batch_row(const struct hd_data_batch *batch, int64_t i, int64_t S);

/* Adds `first`, the position of a sequence's first token, to the positions of all rows of a
 * batch. */
static inline void hd_data_move_positions(int32_t *positions, int64_t count, int64_t first)
{
    for (int64_t i = 0; i < count; i++)
        positions[i] += (int32_t)first;
}

/* Fills samples first .. first + count - 1 of the global batch of `step` (from 0). `ahead` and
 * `further` need tokens, targets and, if documents are bounded, bounds. Allocates nothing.
 * HD_INVALID: a token id is outside the vocabulary. */
enum hd_status hd_sampler_fill(const struct hd_sampler *sampler, int64_t step, int64_t first,
                               int64_t count, const struct hd_data_batch *ret_batch);

/* Returns the number of tokens in the first `count` samples of a step's global batch, without
 * padding. Reads no file. */
int64_t hd_sampler_tokens(const struct hd_sampler *sampler, int64_t step, int64_t count);
/* Returns whether it is certain that every row of every window has a target: no source has document
 * bounds or packed conversations. */
bool hd_sampler_fills_windows(const struct hd_sampler *sampler);
/* Sets *ret_targets to the number of targets in the samples that hd_sampler_fill returns for these
 * arguments: those in `targets` with further = 0, else in further[further - 1]. */
enum hd_status hd_sampler_targets(const struct hd_sampler *sampler, int64_t step, int64_t first,
                                  int64_t count, int64_t further, int64_t *ret_targets);

/* Returns the number of the window that a global sample id reads; sets *ret_source (may be NULL) to
 * the index of its source. */
int64_t hd_sampler_window(const struct hd_sampler *sampler, int64_t sample_id, int64_t *ret_source);

/* ---- validation batches ---- */

struct hd_validation { /* read-only after hd_validation_init */
    struct hd_data_range range;
    const struct hd_packing *packing; /* packed conversations; NULL: windows of consecutive
                                         tokens */
    int64_t context;
    /* number of windows that a validation evaluates; for text they have window_count * context
     * targets */
    int64_t window_count;
};

/* Initialises validation on the first windows of the range, at most window_limit (0: all). */
enum hd_status hd_validation_init(struct hd_validation *ret_validation, struct hd_data_range range,
                                  int64_t context, int64_t window_limit);
/* Initialises validation on the first windows of a packing of the range, at most window_limit (0:
 * all). The packing must outlive ret_validation. */
enum hd_status hd_validation_init_packed(struct hd_validation *ret_validation,
                                         struct hd_data_range range,
                                         const struct hd_packing *packing, int64_t window_limit);

/* Fills a batch with validation windows first .. first + count - 1. Rows past window_count are
 * padding: tokens empty_token, targets HD_DATA_TARGET_NONE. The sample ids are the window
 * numbers. */
enum hd_status hd_validation_fill(const struct hd_validation *validation, int64_t first,
                                  int64_t count, const struct hd_data_batch *ret_batch);

/* ---- the bigram model: a baseline for trained models ---- */

/* p(b | a) = (n(a,b) + p(b)) / (n(a) + 1),   p(b) = (n(b) + 1) / (N + V)
 *
 * n(a,b): how often b follows a in the training range (with bounds: within a document); n(a) =
 * sum_b n(a,b); n(b): how often b is in the range; N the length of the range; V the vocabulary. The
 * smoothing adds one observation per a, distributed by p(b), so no token has probability 0. */
struct hd_bigram;

enum hd_status hd_bigram_fit(struct hd_data_range train, int64_t vocab,
                             struct hd_bigram **ret_bigram);
void hd_bigram_free(struct hd_bigram *bigram); /* NULL is fine */

/* Returns p(token | before). Both ids must be below the vocabulary. */
double hd_bigram_probability(const struct hd_bigram *bigram, int32_t before, int32_t token);

/* Sets *ret_entropy to the bigram model's cross entropy over the validation windows, in nats per
 * target. */
enum hd_status hd_bigram_entropy(const struct hd_bigram *bigram,
                                 const struct hd_validation *validation, double *ret_nats);

#endif
