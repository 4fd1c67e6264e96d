/* generator: runs many sequences at once: reads prompts, reports log-probabilities of their tokens,
 * and continues them with sampled tokens.
 *
 *   hd_generator_add --waits for a slot--> reads its prompt --> samples token by token --> on_end
 *                                             |                    |
 *                                             '--- on_token -------'
 *
 * hd_generator_step runs the decoder once: either for the next tokens of prompts, or for one token
 * of every sequence that has read its prompt. Prompts and sampling alternate, so that neither a
 * long prompt nor many running sequences delay the others. Sequences get slots in the order of
 * hd_generator_add. A slot keeps the tokens of its last sequence: if the next sequence begins with
 * the same tokens, it continues behind them (the turns of a conversation, the answers to one
 * question).
 *
 * A decoder that drafts (hd_decoder_options.drafts) reads, with the one token of a sequence, tokens that
 * it guesses to follow, and the sequence gets as many of them as the model confirms, and one more
 * (drafts.h). A greedy sequence gets the tokens that it would get without drafts, but for near ties that
 * the other shape of the programs rounds the other way; a sampled one gets tokens of the same
 * distribution.
 *
 * Used by: speech, choices, worker, serve.   Uses: train (decoder), tokenizer.
 * Threads: a generator and all of its callbacks belong to one thread. */
#ifndef HD_GENERATE_GENERATOR_H
#define HD_GENERATE_GENERATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "generate/drafts.h"
#include "train/decoder.h"
#include "train/sample.h"
#include "train/stops.h"

enum { HD_GENERATE_TOP_MAX = 20 };

struct hd_likely {
    int32_t id;
    double log_probability; /* log-probability of the token, natural logarithm */
};

/* A token of the prompt, or a sampled token. */
struct hd_generated {
    int32_t id;
    bool of_prompt;
    bool is_stop;                /* true: the token was sampled and is a stop token, so the sequence
                                    ends with it */
    double log_probability;      /* natural log-probability of the token; NaN: not requested, or the
                                    first token of the prompt */
    const struct hd_likely *top; /* [top_count] most likely tokens at this position, the most likely
                                    first; valid during the call of on_token */
    int top_count;
};

enum hd_generation_end {
    HD_GENERATION_STOP,   /* a stop token was sampled, or on_token returned false */
    HD_GENERATION_LENGTH, /* max_tokens were sampled, or the context is full */
    HD_GENERATION_FAILED,
};

struct hd_generation {
    const int32_t *prompt; /* token ids of the prompt, copied */
    int64_t prompt_count;  /* number of tokens of the prompt, at least 1 */
    int64_t max_tokens;    /* number of tokens to sample; 0: only reads the prompt */
    struct hd_sampling sampling;
    const struct hd_stops *stops; /* stop tokens, copied; NULL: none */
    bool reports_prompt;          /* true: on_token is also called for tokens of the prompt, with
                                     log-probabilities */
    int64_t reported_from;        /* index of the first prompt token that is reported; 0: all of
                                     them */
    bool reports_odds;            /* true: log-probabilities of sampled tokens are computed and
                                     reported */
    int top;     /* number of most likely tokens that are reported with each log-probability; 0:
                    none */
    bool slides; /* true: if the context is full, its second half becomes the beginning of a new
                    one; of a prompt that is too long the last `context` tokens are read, and one
                    more if the last token is only reported (reports_prompt, max_tokens 0). False:
                    the sequence ends, and a prompt that is too long is refused */
    /* called for each token in order. Returning false ends the sequence behind this token. May be
     * NULL. Neither callback may call the generator, except that on_end may call
     * hd_generator_add. */
    bool (*on_token)(void *user, const struct hd_generated *token);
    /* called once, unless the sequence is removed. st, with its message, is set for
     * HD_GENERATION_FAILED: the model's output was not finite. */
    void (*on_end)(void *user, enum hd_generation_end end, enum hd_status st);
    void *user;
};

struct hd_generator;
struct hd_sequence;

/* Sets *ret_generator to a new generator, which the decoder must outlive. drawn_max: only ids below
 * it are sampled, because a vocabulary may be larger than its tokenizer; 0: all ids. */
enum hd_status hd_generator_new(struct hd_decoder *decoder, int64_t drawn_max,
                                struct hd_generator **ret_generator);
void hd_generator_free(struct hd_generator *generator); /* frees it with its sequences, without
                                                           callbacks; NULL is fine */

/* Adds a sequence, which waits for a slot. HD_INVALID: the prompt is empty, too long, or has a
 * token outside the model's vocabulary. The sequence is valid until on_end has been called. */
enum hd_status hd_generator_add(struct hd_generator *generator, const struct hd_generation *what,
                                struct hd_sequence **ret_sequence);
/* Ends a sequence without calling its callbacks. */
void hd_generator_remove(struct hd_generator *generator, struct hd_sequence *sequence);

/* Runs the decoder once. Sets *ret_busy to false if no sequence is waiting or running. A failure of
 * one sequence is passed to its on_end; a failure that is returned is the decoder's, and ends no
 * sequence. */
enum hd_status hd_generator_step(struct hd_generator *generator, bool *ret_busy);

/* Returns the numbers of tokens that were drafted and kept; 0 if the decoder does not draft. */
struct hd_draft_counts hd_generator_drafts(const struct hd_generator *generator);

#endif
