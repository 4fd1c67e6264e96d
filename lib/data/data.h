/* data: text files as one sequence of tokens, and which of them each sample of a run gets.
 *
 * A corpus maps its files into memory and reads them as one sequence of byte tokens, in the order
 * given. A range is a part of that sequence. A range is cut into windows of `context` tokens that
 * do not overlap; a sample is one window with its targets, the same tokens one place later, and so
 * reads context + 1 tokens. What is left at the end of the range is dropped.
 *
 * The sampler is a pure function: the sample with the global id g = step * global_batch + i is
 * window g % windows of epoch g / windows, in order or by a keyed permutation of (seed, epoch).
 * There is no state and no index in memory: to resume is to know the step, and which rank computes
 * sample i is the plan's business.
 *
 * Used by: train, worker, generation.   Uses: base.
 * Threads: a corpus, a sampler and a validation set are immutable after they are made: any thread.
 */
#ifndef HD_DATA_DATA_H
#define HD_DATA_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum {
    HD_CORPUS_FILES_MAX = 1 << 20,
    HD_DATA_CONTEXT_MAX = 1 << 24,
    HD_DATA_TARGET_NONE = -1, /* a target that counts for nothing: padding of a last batch */
};

/* ---- corpus ---- */

struct hd_corpus;

struct hd_corpus_file {
    const char *path;
    int64_t size_bytes; /* as recorded when the job was submitted; -1: not recorded */
};

/* Maps the files. A file that is missing, unreadable, no regular file, or of another size than
 * recorded is an error that names it. Empty files are allowed. The paths are copied. */
enum hd_status hd_corpus_open(const struct hd_corpus_file *files, size_t count,
                              struct hd_corpus **ret_corpus);
void hd_corpus_close(struct hd_corpus *corpus); /* NULL is fine */

int64_t hd_corpus_token_count(const struct hd_corpus *corpus);

/* Have the files changed since they were opened (size, time, identity)? An error names the first
 * that has. A mapped file that is cut short kills its reader by SIGBUS; this is for the places,
 * such as a checkpoint, where a clear word is still possible. */
enum hd_status hd_corpus_check(const struct hd_corpus *corpus);

/* Tokens [first, first + count) as ids. The caller keeps within the corpus. */
void hd_corpus_read(const struct hd_corpus *corpus, int64_t first, int64_t count,
                    int32_t *ret_tokens);

struct hd_data_range {
    const struct hd_corpus *corpus;
    int64_t first, count; /* tokens [first, first + count) */
};

struct hd_data_range hd_corpus_all(const struct hd_corpus *corpus);

/* `data.split`: the last `fraction` (0 < fraction < 1) of the corpus for validation, the rest for
 * training; cut at a multiple of context; no token is in both. Either side holds at least one
 * window or the error says how many bytes are needed. */
enum hd_status hd_corpus_split(const struct hd_corpus *corpus, double fraction, int64_t context,
                               struct hd_data_range *ret_train, struct hd_data_range *ret_val);

/* ---- training samples ---- */

enum hd_data_order { HD_DATA_SEQUENTIAL, HD_DATA_SHUFFLED };

struct hd_sampler { /* read-only after hd_sampler_init */
    struct hd_data_range range;
    int64_t context;      /* S: tokens per window */
    int64_t global_batch; /* samples per step, over all ranks */
    int64_t window_count; /* samples per epoch, at least 1 */
    enum hd_data_order order;
    uint64_t seed;
};

/* HD_INVALID, with the number of bytes needed, when the range holds no whole window. The corpus
 * must outlive the sampler. */
enum hd_status hd_sampler_init(struct hd_sampler *ret_sampler, struct hd_data_range range,
                               int64_t context, int64_t global_batch, enum hd_data_order order,
                               uint64_t seed);

/* Samples first .. first + count - 1 of the global batch of `step` (the number of steps completed
 * before it, so the first step is 0). Any output may be NULL. Allocates nothing. */
void hd_sampler_fill(const struct hd_sampler *sampler, int64_t step, int64_t first, int64_t count,
                     int32_t *ret_tokens,    /* [count, S]                               */
                     int32_t *ret_targets,   /* [count, S] targets[j] = the token after tokens[j] */
                     int32_t *ret_positions, /* [count, S] 0 .. S-1; also the index in the sample */
                     int64_t *ret_sample_ids); /* [count]    global sample ids            */

/* The window that a global sample id reads, 0 .. window_count - 1. */
int64_t hd_sampler_window(const struct hd_sampler *sampler, int64_t sample_id);

/* ---- validation batches ---- */

struct hd_validation { /* read-only after hd_validation_init */
    struct hd_data_range range;
    int64_t context;
    int64_t window_count; /* windows evaluated; the targets are window_count * context tokens */
};

/* The first windows of the range in order, at most window_limit (0: all of them). */
enum hd_status hd_validation_init(struct hd_validation *ret_validation, struct hd_data_range range,
                                  int64_t context, int64_t window_limit);

/* Windows first .. first + count - 1. Rows past window_count are padding: tokens 0, targets
 * HD_DATA_TARGET_NONE. sample ids are the window numbers. Any output may be NULL. */
void hd_validation_fill(const struct hd_validation *validation, int64_t first, int64_t count,
                        int32_t *ret_tokens, int32_t *ret_targets, int32_t *ret_positions,
                        int64_t *ret_sample_ids);

/* ---- the byte bigram model: what a trained model must beat ---- */

/* p(b | a) = (n(a,b) + p(b)) / (n(a) + 1),   p(b) = (n(b) + 1) / (N + 256)
 *
 * n(a,b): how often b follows a in the training range; n(a) = sum_b n(a,b); n(b): how often b is in
 * the range, N its length. So a pair counts once more than seen, shared out by the smoothed
 * frequency of single bytes, and no byte has probability 0. */
struct hd_bigram;

enum hd_status hd_bigram_fit(struct hd_data_range train, struct hd_bigram **ret_bigram);
void hd_bigram_free(struct hd_bigram *bigram);

double hd_bigram_probability(const struct hd_bigram *bigram, unsigned char before,
                             unsigned char byte);

/* Nats per byte over exactly the targets of the validation windows. */
enum hd_status hd_bigram_entropy(const struct hd_bigram *bigram,
                                 const struct hd_validation *validation, double *ret_nats);

/* ---- tokenizers ---- */

struct hd_tokenizer {
    const char *name; /* data.tokenizer in a job file */
    int32_t vocab;    /* ids are 0 .. vocab - 1 */
    /* Ids of `text`; HD_LIMIT when there are more than id_max. */
    enum hd_status (*encode)(const void *text, size_t text_bytes, int32_t *ret_ids, size_t id_max,
                             size_t *ret_count);
    /* Adds the raw bytes of the ids, which may be cut inside a character. HD_INVALID names an id
     * outside the vocabulary. */
    enum hd_status (*decode)(const int32_t *ids, size_t count, struct hd_text *ret_bytes);
};

/* HD_UNSUPPORTED, with the list of names, when there is none of that name. */
enum hd_status hd_tokenizer_find(const char *name, const struct hd_tokenizer **ret_tokenizer);

/* Turns a stream of raw bytes, in pieces of any size, into text that is safe to print: valid UTF-8,
 * ill-formed bytes as U+FFFD, control characters other than newline and tab as U+FFFD too, so that
 * what a model writes cannot drive a terminal. Start with {0}. */
struct hd_utf8_printer {
    unsigned char pending[4];
    size_t pending_count;
};

void hd_utf8_printer_add(struct hd_utf8_printer *printer, const void *bytes, size_t count,
                         struct hd_text *ret_text);
void hd_utf8_printer_end(struct hd_utf8_printer *printer, struct hd_text *ret_text);

#endif
