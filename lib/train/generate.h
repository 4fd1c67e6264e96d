/* generate: the logits of the next token, from a checkpoint, with a key/value cache.
 *
 * Two D programs share the caches: one reads HD_PREFILL_ROWS tokens of the prompt per call, the
 * other one token. When the cache is full, the second half of the context is read again as the
 * beginning of a new one.
 *
 * Used by: worker (`heddle-worker generate`).   Uses: model, program, checkpoint, data.
 * Threads: a generator belongs to one thread.
 */
#ifndef HD_TRAIN_GENERATE_H
#define HD_TRAIN_GENERATE_H

#include <stdint.h>

#include "base/status.h"
#include "job/job.h"
#include "kernels/kernels.h"
#include "train/source.h"

enum { HD_PREFILL_ROWS = 64, HD_GENERATE_CONTEXT_MAX = 4096 /* of a Hugging Face model */ };

/* Settings of sampling, applied in this order: temperature, top-k, top-p. */
struct hd_sampling {
    double temperature; /* logits are divided by it; 0: the most likely token (greedy) */
    int64_t top_k;      /* only the k most likely; 0: all */
    double top_p; /* only the smallest set of most likely tokens whose probability reaches p; 1: all
                     (Holtzman et al. 2020) */
    uint64_t seed;
};

/* Token `index` of the sequence, from logits[V]. Ties go to the smaller id. `order` is workspace
 * for V ids. Deterministic in (logits, sampling, index). */
int32_t hd_sample(const float *logits, int64_t V, const struct hd_sampling *sampling,
                  uint64_t index, int32_t *order);

struct hd_generator;

/* Loads the weights of a checkpoint, or of a Hugging Face model directory, which runs in fp32; with
 * dirs->adapter it has that adapter. */
enum hd_status hd_generator_open(const struct hd_source_dirs *dirs,
                                 const struct hd_backend_table *backend, int threads,
                                 struct hd_generator **ret_generator);
void hd_generator_close(struct hd_generator *generator);

int64_t hd_generator_vocab(const struct hd_generator *generator);
int64_t hd_generator_context(const struct hd_generator *generator);
/* data.tokenizer of the job, or the path of a tokenizer.json; "": unknown. */
const char *hd_generator_tokenizer(const struct hd_generator *generator);
/* The job of a checkpoint; NULL: it is a Hugging Face model directory. */
const struct hd_job *hd_generator_job(const struct hd_generator *generator);
int64_t hd_generator_step(const struct hd_generator *generator); /* of the checkpoint */

/* Clears the caches and reads `count` >= 1 tokens, only the last `context` if there are more.
 * ret_logits [V]: after the last one, valid until the next call. HD_INVALID: no token of the
 * vocabulary. HD_CORRUPT: a logit is not finite. */
enum hd_status hd_generator_prompt(struct hd_generator *generator, const int32_t *tokens,
                                   int64_t count, const float **ret_logits);
/* Reads one more token; results as above. */
enum hd_status hd_generator_next(struct hd_generator *generator, int32_t token,
                                 const float **ret_logits);

#endif
