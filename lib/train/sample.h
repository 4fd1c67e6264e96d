/* sample: chooses the next token from logits, and computes log-probabilities of tokens.
 *
 * Used by: generator, drafts, rollout, tests.   Uses: base.   Threads: any; pure. */
#ifndef HD_TRAIN_SAMPLE_H
#define HD_TRAIN_SAMPLE_H

#include <stdint.h>

/* Settings of sampling, applied in this order: temperature, top-k, top-p. */
struct hd_sampling {
    double temperature; /* number by which logits are divided; 0: the most likely token is taken
                           (greedy) */
    int64_t top_k;      /* number of most likely tokens among which the token is sampled; 0: all */
    double top_p; /* probability p; the token is sampled from the smallest set of most likely tokens
                     whose total probability reaches p; 1: from all (Holtzman et al. 2020) */
    uint64_t seed;
};

/* Returns token `index` of the sequence, sampled from logits[V]. Ties are broken by the smaller id.
 * `order` is workspace for V ids. Deterministic in (logits, sampling, index). */
int32_t hd_sample_token(const float *logits, int64_t V, const struct hd_sampling *sampling,
                        uint64_t index, int32_t *order);

/* Sets ret_weights[V] to numbers in proportion to the probabilities with which hd_sample_token samples
 * each id, at a temperature above 0. */
void hd_sample_weights(const float *logits, int64_t V, const struct hd_sampling *sampling,
                       int32_t *order, double *ret_weights);

/* Returns log sum exp of logits[V], computed in double: the log-probability of token v is logits[v]
 * minus this number, and the two are of similar size. */
double hd_sample_norm(const float *logits, int64_t V);

/* Sets ret_ids to the `count` <= V most likely token ids, the most likely first; among ids with
 * equal logits the smaller id first. */
void hd_sample_top(const float *logits, int64_t V, int count, int32_t *ret_ids);

#endif
