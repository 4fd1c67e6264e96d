/* rollout: continues prompts on the ranks that train, with the weights as they are between two steps.
 *
 *     sequences of all ranks --dealt over dp and cp ranks--> slots of the caches
 *         --program of prompts: up to hd_rank_decode.rows tokens of each-->
 *         --program of tokens: one token of each--> logits --the head's rank draws-->
 *         --exchange--> every rank has every token
 *
 * The programs read the weights where training has them (rank_decode.h), and the caches are in
 * memory that only steps use, so nothing is copied, and a call of hd_trainer_rollout changes no
 * state of training: neither a weight nor a number that a later step reads.
 *
 * Invariants:
 *  1. All ranks make the same calls of the same programs: their collectives (tp, pp, experts, gathers
 *     of ZeRO 3) meet. A rank whose replica has nothing left to read computes empty rows.
 *  2. Every rank knows the state of the slots of every replica, as it has all prompts and gets every
 *     token; so it knows the next program without asking.
 *  3. Each token of a prompt is read by the program of prompts, in pieces that begin with the prompt,
 *     and each drawn token by the program of tokens, whatever the other slots do. So the logits of a
 *     sequence depend on its own tokens and on the programs alone, not on its neighbours, its slot
 *     or the order in which sequences end. (With experts on other ranks the same holds: each row is
 *     computed by itself.)
 *  4. Token i of a sequence is drawn by hd_sample_token from its seed and i.
 *
 * With equal programs, tokens repeat bit for bit; another layout changes the rounding of logits.
 *
 * For training on its own samples (GRPO and its relatives): `group` sequences of one prompt are on
 * one dp and cp rank, a slot is refilled when it and others are free, and each drawn token, the
 * stop token included, has its log-probability in the encoding of training. The forward pass of a
 * step computes others, which differ by rounding.
 *
 * Used by: samples, tests.   Uses: execute, sample, stops.   Threads: the trainer's.
 */
#ifndef HD_TRAIN_ROLLOUT_H
#define HD_TRAIN_ROLLOUT_H

#include "train/sample.h"
#include "train/stops.h"
#include "train/train.h"

enum hd_rollout_end {
    HD_ROLLOUT_STOP,       /* a stop token was drawn, the last of `ids` */
    HD_ROLLOUT_LENGTH,     /* max_tokens were drawn, or the context is full */
    HD_ROLLOUT_NOT_FINITE, /* the model's output was not finite behind the last of `ids` */
};

struct hd_rollout_sequence {
    const int32_t *prompt;
    int64_t prompt_count; /* 1 to model.context */
    uint64_t seed;        /* of this sequence's random numbers */
    /* results, equal on all ranks, in memory of the caller */
    int32_t *ids;             /* [max_tokens or model.context, the lesser], the drawn tokens */
    float *log_probabilities; /* as many, natural; NULL: not wanted */
    int64_t count;            /* number of drawn tokens */
    enum hd_rollout_end end;
};

struct hd_rollout {
    /* [count], those of all ranks; every rank gives the same */
    struct hd_rollout_sequence *sequences;
    int64_t count;
    int64_t group;      /* sequences of one prompt, which are consecutive; 1: each has its own */
    int64_t max_tokens; /* at least 1 */
    struct hd_sampling sampling;  /* its seed is ignored */
    const struct hd_stops *stops; /* NULL: none */
    int64_t drawn_max;            /* only ids below it are drawn; 0: all of the vocabulary */
    /* temperature of the log-probabilities, by which logits are divided; 0: 1 */
    double probability_temperature;
    void (*alive)(void *user); /* called between calls of programs; may be NULL */
    /* Returns whether this rank is to stop; called for each token that is drawn; may be NULL. When it does
     * on any rank, the rollout ends on all ranks behind that token, *ret_stopped is true, and sequences
     * that have not ended are incomplete. */
    bool (*stops_now)(void *user);
    bool *ret_stopped; /* set if there is stops_now */
    /* called on every rank when a sequence has ended; may be NULL. A failure ends the rollout, and
     * is of this rank alone */
    enum hd_status (*ended)(void *user, int64_t sequence);
    void *user;
};

/* Continues all sequences. Collective, between steps. HD_INVALID: the job decodes nothing
 * (hd_rank_decode.slots), or a prompt is empty, too long or has an id outside the vocabulary. */
enum hd_status hd_trainer_rollout(struct hd_trainer *trainer, const struct hd_rollout *rollout);

/* Binds the programs, for hd_trainer_new; does nothing if the job decodes nothing. */
enum hd_status hd_rollout_bind(struct hd_trainer *trainer);

#endif
