/* only: which parameters train (train.trainable of the job file).
 *
 * The text is `all`, or items separated by commas; a parameter trains if any item names it:
 *
 *   last:K      the last K blocks
 *   embedding   the embedding, with the table of learned positions
 *   norms       all norms
 *   head        the head's weight; in a model with a tied head the embedding's weight
 *   score       the vector of a reward model; it trains always, and `head` means it, too
 *   PATTERN     names of parameters with a shell's *, ? and [..]: blocks.3.attention.*
 *
 * A parameter that does not train has no gradient, no moments and no master weight
 * (program/registry.h). Parameters that one product or kernel uses together must train together:
 * queries, keys and values; gate and up; the weight and the bias of a norm.
 *
 * Used by: model, plan.   Uses: program (the registry).   Threads: any; no state.
 */
#ifndef HD_MODEL_ONLY_H
#define HD_MODEL_ONLY_H

#include "program/registry.h"

struct hd_only {
    const char *text;
    int64_t L;       /* number of blocks */
    bool tied;       /* true: the head uses the embedding's weight */
    const char *key; /* key of the job file that messages name; NULL: train.trainable */
};

/* Returns true if every parameter trains (the text is `all`). */
bool hd_only_is_all(const struct hd_only *only);

/* Returns true if the parameter with this name trains. Items that hd_only_check refuses name no
 * parameter. */
bool hd_only_trains(const struct hd_only *only, const char *name);

/* Checks the items of the text against the parameters in the registry. HD_INVALID: an item names no
 * parameter, or K is not a number from 1 to L; parameters that must train together do not; no
 * parameter trains. The message lists the valid names. */
enum hd_status hd_only_check(const struct hd_only *only, const struct hd_registry *registry);

#endif
