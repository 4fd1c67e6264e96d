/* data: files as one sequence of tokens, and which of them each sample of a run gets.
 *
 * A corpus maps its files into memory and reads them as one sequence of tokens, in the order given:
 * text by its bytes, token files (token_file.h) by the ids in them. It knows where documents end:
 * at the end of a file, where Megatron's index says so, and behind the id that ends a text. Told to
 * bound documents, it makes batches in which each stands alone: the bounds that attention honours,
 * positions from 0 in each document, and no target in the next document.
 *
 * A range is a part of that sequence. A range is cut into windows of `context` tokens that
 * do not overlap; a sample is one window with its targets, the same tokens one place later, and so
 * reads context + 1 tokens. What is left at the end of the range is dropped.
 *
 * The sampler is a pure function: the sample with the global id g = step * global_batch + i is
 * window g % windows of epoch g / windows, in order or by a keyed permutation of (seed, epoch). In
 * a mixture, sample g is the n-th of a source k, both functions of g (mixture.h), and reads window
 * n % windows of epoch n / windows of that source. There is no state and no index in memory: to
 * resume is to know the step, and which rank computes sample i is the plan's business.
 *
 * Used by: train, worker, generation.   Uses: base.
 * Threads: a corpus, a sampler and a validation set are immutable after they are made: any thread.
 */
#ifndef HD_DATA_DATA_H
#define HD_DATA_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "data/mixture.h"

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

/* Maps the files: .npy arrays, .bin token files of llm.c, or of Megatron where an .idx is beside
 * them, and all others as text. A file that is damaged, missing, unreadable, no regular file, or of
 * another size than recorded is an error that names it. Empty files are allowed. The paths are
 * copied. */
enum hd_status hd_corpus_open(const struct hd_corpus_file *files, size_t count,
                              struct hd_corpus **ret_corpus);
void hd_corpus_close(struct hd_corpus *corpus); /* NULL is fine */

int64_t hd_corpus_token_count(const struct hd_corpus *corpus);
int64_t hd_corpus_byte_count(const struct hd_corpus *corpus); /* of the files, indexes included */
/* What the files themselves tell of documents; -1 where one does not. */
int64_t hd_corpus_told_documents(const struct hd_corpus *corpus);

/* Have the files changed since they were opened (size, time, identity)? An error names the first
 * that has. A mapped file that is cut short kills its reader by SIGBUS; this is for the places,
 * such as a checkpoint, where a clear word is still possible. */
enum hd_status hd_corpus_check(const struct hd_corpus *corpus);

size_t hd_corpus_file_count(const struct hd_corpus *corpus);
/* "text", "npy", "llm.c", "megatron", or "mixed": what the files are. */
const char *hd_corpus_kind(const struct hd_corpus *corpus);
bool hd_corpus_has_text(const struct hd_corpus *corpus); /* files that are no token files */

/* From now on an id that is not below `vocab` is HD_INVALID, naming file, place and id: at once for
 * what is looked at here (files up to 1 Mi tokens whole, larger ones in 256 places), later where it
 * is read. */
enum hd_status hd_corpus_set_vocab(struct hd_corpus *corpus, int64_t vocab);

/* From now on samples have bounds of documents. end_of_text: the id that is a document's last; -1:
 * there is none. */
void hd_corpus_set_bounds(struct hd_corpus *corpus, int64_t end_of_text);
bool hd_corpus_is_bounded(const struct hd_corpus *corpus);

/* Tokens [first, first + count) as ids. The caller keeps within the corpus. */
enum hd_status hd_corpus_read(const struct hd_corpus *corpus, int64_t first, int64_t count,
                              int32_t *ret_tokens);

struct hd_data_range {
    const struct hd_corpus *corpus;
    int64_t first, count; /* tokens [first, first + count) */
};

struct hd_data_range hd_corpus_all(const struct hd_corpus *corpus);
/* The tokens of `count` >= 1 files from number `first_file` on, as given to hd_corpus_open. */
struct hd_data_range hd_corpus_files(const struct hd_corpus *corpus, size_t first_file,
                                     size_t count);

/* `data.split`: the last `fraction` (0 < fraction < 1) of the corpus for validation, the rest for
 * training; cut at a multiple of context; no token is in both. Either side holds at least one
 * window or the error says how many bytes are needed. */
enum hd_status hd_corpus_split(const struct hd_corpus *corpus, double fraction, int64_t context,
                               struct hd_data_range *ret_train, struct hd_data_range *ret_val);

/* ---- training samples ---- */

enum hd_data_order { HD_DATA_SEQUENTIAL, HD_DATA_SHUFFLED };

/* One source of a mixture, with epochs and an order of its own. */
struct hd_sampler_source {
    struct hd_data_range range;
    int64_t window_count; /* samples per epoch, at least 1 */
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

/* One source. HD_INVALID, with the number of tokens needed, when the range holds no whole window.
 * The corpus must outlive the sampler. */
enum hd_status hd_sampler_init(struct hd_sampler *ret_sampler, struct hd_data_range range,
                               int64_t context, int64_t global_batch, enum hd_data_order order,
                               uint64_t seed);

/* `count` sources with their weights (mixture.h). */
enum hd_status hd_sampler_init_mixture(struct hd_sampler *ret_sampler,
                                       const struct hd_data_range *ranges, const double *weights,
                                       int64_t count, int64_t context, int64_t global_batch,
                                       enum hd_data_order order, uint64_t seed);

/* Rows of a batch; any may be NULL, but with bounded documents, tokens only when all others are. */
struct hd_data_batch {
    int32_t *tokens;     /* [count, S]                                                           */
    int32_t *targets;    /* [count, S] the token after; HD_DATA_TARGET_NONE behind a bounded
                            document and in padding                                              */
    int32_t *positions;  /* [count, S] place in the sample; in the document where these are
                            bounded                                                              */
    int32_t *index;      /* [count, S] place in the sample: 0 .. S-1                             */
    int32_t *bounds;     /* [count, S] index of the first token of the same document             */
    int64_t *sample_ids; /* [count]    global sample ids                                         */
};

/* Samples first .. first + count - 1 of the global batch of `step` (the number of steps completed
 * before it, so the first step is 0). HD_INVALID: an id outside the vocabulary. Allocates nothing.
 */
enum hd_status hd_sampler_fill(const struct hd_sampler *sampler, int64_t step, int64_t first,
                               int64_t count, const struct hd_data_batch *ret_batch);

/* The window that a global sample id reads: of which source (may be NULL), and which of its
 * windows.
 */
int64_t hd_sampler_window(const struct hd_sampler *sampler, int64_t sample_id, int64_t *ret_source);

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
 * HD_DATA_TARGET_NONE. sample ids are the window numbers. */
enum hd_status hd_validation_fill(const struct hd_validation *validation, int64_t first,
                                  int64_t count, const struct hd_data_batch *ret_batch);

/* ---- the bigram model: what a trained model must beat ---- */

/* p(b | a) = (n(a,b) + p(b)) / (n(a) + 1),   p(b) = (n(b) + 1) / (N + V)
 *
 * n(a,b): how often b follows a in the training range, within a document where these are bounded;
 * n(a) = sum_b n(a,b); n(b): how often b is in the range, N its length, V the vocabulary. So a pair
 * counts once more than seen, shared out by the smoothed frequency of single tokens, and no token
 * has probability 0. */
struct hd_bigram;

enum hd_status hd_bigram_fit(struct hd_data_range train, int64_t vocab,
                             struct hd_bigram **ret_bigram);
void hd_bigram_free(struct hd_bigram *bigram); /* NULL is fine */

/* Both below the vocabulary. */
double hd_bigram_probability(const struct hd_bigram *bigram, int32_t before, int32_t token);

/* Nats per token over exactly the targets of the validation windows. */
enum hd_status hd_bigram_entropy(const struct hd_bigram *bigram,
                                 const struct hd_validation *validation, double *ret_nats);

#endif
