/* generator: many sequences at once: reads prompts, says how likely their tokens are, and goes on
 * with tokens that it draws.
 *
 *   hd_generator_add --waits for a slot--> reads its prompt --> draws token by token --> on_end
 *                                             |                    |
 *                                             '--- on_token -------'
 *
 * hd_generator_step runs the decoder once: either the next tokens of prompts, or one token of every
 * sequence that has read its prompt. These take turns, so that a long prompt does not stop the
 * others, nor they the prompt. Sequences get slots in the order in which they came. A slot keeps
 * the tokens of its last sequence: the next one, if it begins with the same tokens, reads on behind
 * them (the turns of a conversation, the answers to one question).
 *
 * Used by: speech, choices, worker, serve.   Uses: train (decoder), tokenizer.
 * Threads: a generator and all of its callbacks belong to one thread.
 */
#ifndef HD_GENERATE_GENERATOR_H
#define HD_GENERATE_GENERATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "generate/sample.h"
#include "generate/stops.h"
#include "train/decoder.h"

enum { HD_GENERATE_TOP_MAX = 20 };

struct hd_likely {
    int32_t id;
    double log_probability; /* natural */
};

/* A token of the prompt, or one that was drawn. */
struct hd_generated {
    int32_t id;
    bool of_prompt;
    bool is_stop;                /* drawn, and a stop token: the sequence ends with it */
    double log_probability;      /* NaN: not asked for, or the first token, which follows nothing */
    const struct hd_likely *top; /* most likely first; valid during the call */
    int top_count;
};

enum hd_generation_end {
    HD_GENERATION_STOP,   /* a stop token, or on_token said so */
    HD_GENERATION_LENGTH, /* max_tokens, or the context is full */
    HD_GENERATION_FAILED,
};

struct hd_generation {
    const int32_t *prompt; /* copied */
    int64_t prompt_count;  /* at least 1 */
    int64_t max_tokens;    /* to draw; 0: the prompt alone is read */
    struct hd_sampling sampling;
    const struct hd_stops *stops; /* copied; NULL: none */
    bool reports_prompt;          /* on_token for tokens of the prompt, too, with their odds .. */
    int64_t reported_from;        /* .. from this one on; 0: all of them */
    bool reports_odds;            /* log-probabilities of the tokens that are drawn */
    int top;     /* with each token whose odds are told: so many of the most likely */
    bool slides; /* where the context is full: its second half becomes the beginning of a new one,
                    and of a prompt that is too long the end is read: as many tokens as the context
                    has, and one more where the last one is told alone (reports_prompt, max_tokens
                    0). Else the sequence ends, and a prompt that is too long is refused */
    /* Called for the tokens in their order. False: the sequence ends behind this one. May be NULL.
     * Neither callback may call the generator, but on_end may call hd_generator_add. */
    bool (*on_token)(void *user, const struct hd_generated *token);
    /* Called once, unless the sequence is removed. st, with its message, for HD_GENERATION_FAILED:
     * the model's output was not finite. */
    void (*on_end)(void *user, enum hd_generation_end end, enum hd_status st);
    void *user;
};

struct hd_generator;
struct hd_sequence;

/* The decoder outlives the generator. drawn_max: ids below it are drawn, since a vocabulary may be
 * larger than its tokenizer; 0: all. */
enum hd_status hd_generator_new(struct hd_decoder *decoder, int64_t drawn_max,
                                struct hd_generator **ret_generator);
void hd_generator_free(struct hd_generator *generator); /* calls nothing; NULL is fine */

/* HD_INVALID: the prompt is empty, too long, or has a token that the model does not know. The
 * sequence is valid until on_end has been called. */
enum hd_status hd_generator_add(struct hd_generator *generator, const struct hd_generation *what,
                                struct hd_sequence **ret_sequence);
/* Ends a sequence without a call. */
void hd_generator_remove(struct hd_generator *generator, struct hd_sequence *sequence);

/* Runs the decoder once. False in *ret_busy: there is nothing to do. A failure of one sequence goes
 * to its on_end; one that is returned is the decoder's, and no sequence has ended by it. */
enum hd_status hd_generator_step(struct hd_generator *generator, bool *ret_busy);

/* Sequences that have no slot yet, and that have one. */
int64_t hd_generator_waiting(const struct hd_generator *generator);
int64_t hd_generator_running(const struct hd_generator *generator);

#endif
