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
 * stay whole: packing.h puts them into windows, and of their tokens those that count are targets.
 *
 * The sampler is a pure function: the sample with the global id g = step * global_batch + i is
 * window g % windows of epoch g / windows, in order or by a keyed permutation of (seed, epoch). In
 * a mixture, sample g is the n-th of a source k, both functions of g (mixture.h), and reads window
 * n % windows of epoch n / windows of that source. There is no state to save and no index in
 * memory; resuming needs only the step. The plan decides which rank computes sample i.
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

enum {
    HD_CORPUS_FILES_MAX = 1 << 20,
    HD_DATA_CONTEXT_MAX = 1 << 24,
    HD_DATA_TARGET_NONE = -1, /* no target: the loss ignores this position */
};

/* ---- corpus ---- */

struct hd_corpus;
struct hd_packing; /* packing.h */

struct hd_corpus_file {
    const char *path;
    int64_t size_bytes;      /* recorded when the job was submitted; -1: not recorded */
    const char *source;      /* the text that it was made from, which messages name; NULL: none */
    const char *fingerprint; /* fingerprint.h, recorded as well; NULL: not recorded */
};

/* Maps the files: .npy arrays; .bin token files, of Megatron if an .idx is beside them, else of
 * llm.c; all others as text, but for those that kind.h refuses. Empty files are allowed. An error
 * names the file: it is missing, unreadable, not a regular file, damaged, or of another size or
 * fingerprint than recorded. Copies the paths. */
enum hd_status hd_corpus_open(const struct hd_corpus_file *files, size_t count,
                              struct hd_corpus **ret_corpus);
void hd_corpus_close(struct hd_corpus *corpus); /* NULL is fine */

int64_t hd_corpus_token_count(const struct hd_corpus *corpus);
int64_t hd_corpus_byte_count(const struct hd_corpus *corpus); /* of the files, including indexes */
/* Number of documents by Megatron's indexes; -1: a file has no index. */
int64_t hd_corpus_document_count(const struct hd_corpus *corpus);

/* Fails, naming the file, if one has changed since it was opened (size, time, inode). Call it now
 * and then, for example at a checkpoint: reading a mapped file that was truncated raises SIGBUS. */
enum hd_status hd_corpus_check(const struct hd_corpus *corpus);

size_t hd_corpus_file_count(const struct hd_corpus *corpus);
/* The kind of the files: "text", "npy", "llm.c", "megatron", or "mixed". */
const char *hd_corpus_kind(const struct hd_corpus *corpus);
bool hd_corpus_has_text(const struct hd_corpus *corpus); /* some file is not a token file */

/* Ids must be below `vocab`. HD_INVALID, naming file, place and id: here, for files of up to 1 Mi
 * tokens and about 256 places of larger ones; later, when a wrong id is read. */
enum hd_status hd_corpus_set_vocab(struct hd_corpus *corpus, int64_t vocab);

/* Later samples respect document bounds. end_of_text: the id that ends a document; -1: none. */
void hd_corpus_set_bounds(struct hd_corpus *corpus, int64_t end_of_text);
bool hd_corpus_is_bounded(const struct hd_corpus *corpus);

/* Conversations are pairs: of each file, two that follow each other, the chosen and the rejected
 * answer to one prompt. */
void hd_corpus_set_pairs(struct hd_corpus *corpus);

/* Later batches have the reference's log-probability of each target: values[t] is that of token t
 * of the corpus, [hd_corpus_token_count]. They must outlive the corpus. */
void hd_corpus_set_reference(struct hd_corpus *corpus, const float *values);

/* Whether each of the tokens [first, first + count) counts for the loss. */
void hd_corpus_read_counts(const struct hd_corpus *corpus, int64_t first, int64_t count,
                           bool *ret_counts);

/* Tokens [first, first + count), which must be inside the corpus, as ids. */
enum hd_status hd_corpus_read(const struct hd_corpus *corpus, int64_t first, int64_t count,
                              int32_t *ret_tokens);

struct hd_data_range {
    const struct hd_corpus *corpus;
    int64_t first, count; /* tokens [first, first + count) */
};

struct hd_data_range hd_corpus_all(const struct hd_corpus *corpus);
/* The tokens of `count` >= 1 files, beginning with files[first_file] of hd_corpus_open. */
struct hd_data_range hd_corpus_files(const struct hd_corpus *corpus, size_t first_file,
                                     size_t count);

/* Whether the range is of conversations. HD_INVALID: partly. */
enum hd_status hd_data_range_form(struct hd_data_range range, bool *ret_conversations);

struct hd_conversation_place { /* of a conversation, or of both of a pair */
    int64_t first, count;      /* tokens of the corpus */
    int64_t chosen;            /* of a pair: tokens of the first one; else 0 */
    const char *path;          /* of its text, or token file, */
    int64_t file, document;    /* index of that, and its number in it, both from 0 */
};

typedef void hd_conversation_fn(void *context, struct hd_conversation_place place);

/* Calls `each` for the conversations, or pairs, that lie whole in the range, which is not empty, in
 * order. */
void hd_data_range_each(struct hd_data_range range, hd_conversation_fn *each, void *context);

/* `data.split`: the last `fraction` (0 < fraction < 1) of the corpus for validation, the rest for
 * training; the boundary is a multiple of `context`, or the end of a conversation. HD_INVALID if a
 * side has no whole window; the message says how many tokens are needed. */
enum hd_status hd_corpus_split(const struct hd_corpus *corpus, double fraction, int64_t context,
                               struct hd_data_range *ret_train, struct hd_data_range *ret_val);
/* The boundary of that split of `total` tokens. */
enum hd_status hd_data_split(int64_t total, double fraction, int64_t context, int64_t *ret_cut);

/* What the tokens of texts depend on beside the texts. */
struct hd_text_origin {
    const char *tokenizer;     /* bytes, or the path of a tokenizer.json */
    const char *template;      /* of conversations, or ""; NULL: no text is one */
    const char *folder;        /* has tokenizer_config.json; "": there is none */
    const char *model_dir;     /* model.from's; "": there is none */
    const char *format, *loss; /* data.format, data.loss */
    const char *date;          /* data.date; "": no template asks for it */
};

/* One hash of all that. */
enum hd_status hd_text_identity(const struct hd_text_origin *origin, uint64_t *ret_hash);
/* Text form of an identity, as in data.text_identity. */
enum { HD_TEXT_IDENTITY_MAX = 2 + HD_HASH_TEXT_MAX };
void hd_text_identity_format(uint64_t hash, char ret_text[HD_TEXT_IDENTITY_MAX]);
/* Compares with a recorded identity, which may be one of an older form. ret_now: the identity in
 * that form. */
enum hd_status hd_text_identity_is(const struct hd_text_origin *origin, const char *recorded,
                                   bool *ret_same, char ret_now[HD_TEXT_IDENTITY_MAX]);

/* The form of a .jsonl file by its first document, which must have `form` if that is not
 * HD_CHAT_AUTO. Only that one is checked here; a rank checks all of them. HD_INVALID, with file and
 * line: it is of another form or none, or wrong. */
enum hd_status hd_jsonl_look(const char *path, enum hd_chat_form form, enum hd_chat_form *ret_form);

/* ---- training samples ---- */

enum hd_data_order { HD_DATA_SEQUENTIAL, HD_DATA_SHUFFLED };

/* One source of a mixture, with its own epochs and order. */
struct hd_sampler_source {
    struct hd_data_range range;
    const struct hd_packing *packing; /* NULL: windows of consecutive tokens */
    int64_t window_count;             /* samples per epoch, at least 1 */
    uint64_t seed;
};

struct hd_sampler {       /* read-only after hd_sampler_init */
    int64_t context;      /* S: tokens per window */
    int64_t global_batch; /* samples per step, over all ranks */
    int64_t window_count; /* of all sources */
    enum hd_data_order order;
    struct hd_mixture mixture;
    struct hd_sampler_source sources[HD_MIXTURE_SOURCES_MAX];
};

/* One source. HD_INVALID: the range has no whole window; the message says how many tokens are
 * needed. The corpus must outlive the sampler. */
enum hd_status hd_sampler_init(struct hd_sampler *ret_sampler, struct hd_data_range range,
                               int64_t context, int64_t global_batch, enum hd_data_order order,
                               uint64_t seed);

/* `count` sources with their weights (mixture.h). packings: [count], of ranges of conversations;
 * they must outlive the sampler. NULL: there are none. */
enum hd_status hd_sampler_init_mixture(struct hd_sampler *ret_sampler,
                                       const struct hd_data_range *ranges,
                                       struct hd_packing *const *packings, const double *weights,
                                       int64_t count, int64_t context, int64_t global_batch,
                                       enum hd_data_order order, uint64_t seed);

/* Rows of a batch. The caller owns the arrays. Any may be NULL; with bounds, if tokens is NULL, all
 * others must be. */
struct hd_data_batch {
    int32_t *tokens;    /* [count, S]                                                           */
    int32_t *targets;   /* [count, S] the next token; HD_DATA_TARGET_NONE in padding and, with
                           bounds, at the last token of a document; of conversations also where
                           the next token does not count                                        */
    int32_t *positions; /* [count, S] index in the sample; with bounds, in the document         */
    int32_t *index;     /* [count, S] index in the sample: 0 .. S-1                             */
    int32_t *bounds;    /* [count, S] index of the first token of the same document             */
    int32_t *begins;    /* [count, S] index of the first token of the same conversation; of text
                           that is no conversation 0, the window's                              */
    int32_t *lengths;   /* [count, S] tokens of that conversation, or of the window; 0 in padding */
    int32_t *answers;   /* [count, S] of pairs: number of the answer in the sample, of pair k 2 k
                           for the chosen and 2 k + 1 for the rejected one; -1 in padding, and
                           with answer_ends in all rows of an answer but its last */
    float *reference;   /* [count, S] hd_corpus_set_reference of the target; 0 without one      */
    int64_t *sample_ids; /* [count]    global sample ids                                         */
    bool answer_ends;
    int32_t empty_token; /* the token of padding */
};

/* Positions of rows whose first is `first`, not 0. */
static inline void hd_data_move_positions(int32_t *positions, int64_t count, int64_t first)
{
    for (int64_t i = 0; i < count; i++)
        positions[i] += (int32_t)first;
}

/* Samples first .. first + count - 1 of the global batch of `step`; the first step is 0.
 * HD_INVALID: an id outside the vocabulary. Allocates nothing. */
enum hd_status hd_sampler_fill(const struct hd_sampler *sampler, int64_t step, int64_t first,
                               int64_t count, const struct hd_data_batch *ret_batch);

/* Returns the tokens of a step's global batch, without padding. Reads no file. */
int64_t hd_sampler_tokens(const struct hd_sampler *sampler, int64_t step);
/* Returns whether each row of every window is a token with a target: no padding, no ends of
 * documents. */
bool hd_sampler_fills_windows(const struct hd_sampler *sampler);
/* Counts the targets of the samples that hd_sampler_fill gives for the same arguments. */
enum hd_status hd_sampler_targets(const struct hd_sampler *sampler, int64_t step, int64_t first,
                                  int64_t count, int64_t *ret_targets);

/* The window that a global sample id reads, and its source (ret_source may be NULL). */
int64_t hd_sampler_window(const struct hd_sampler *sampler, int64_t sample_id, int64_t *ret_source);

/* ---- validation batches ---- */

struct hd_validation { /* read-only after hd_validation_init */
    struct hd_data_range range;
    const struct hd_packing *packing; /* NULL: windows of consecutive tokens */
    int64_t context;
    int64_t window_count; /* windows evaluated; the targets are window_count * context tokens */
};

/* The first windows of the range in order, at most window_limit (0: all of them). */
enum hd_status hd_validation_init(struct hd_validation *ret_validation, struct hd_data_range range,
                                  int64_t context, int64_t window_limit);
/* The same of a range of conversations. */
enum hd_status hd_validation_init_packed(struct hd_validation *ret_validation,
                                         struct hd_data_range range,
                                         const struct hd_packing *packing, int64_t window_limit);

/* Windows first .. first + count - 1. Rows past window_count are padding: tokens empty_token,
 * targets HD_DATA_TARGET_NONE. sample ids are the window numbers. */
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

/* p(token | before). Both ids must be below the vocabulary. */
double hd_bigram_probability(const struct hd_bigram *bigram, int32_t before, int32_t token);

/* Cross entropy in nats per token over the targets of the validation windows. */
enum hd_status hd_bigram_entropy(const struct hd_bigram *bigram,
                                 const struct hd_validation *validation, double *ret_nats);

#endif
