/* only: which parameters train (train.only of the job file).
 *
 * The text is `all`, or items separated by commas; what any of them names trains:
 *
 *   last:K      the last K blocks
 *   embedding   the embedding, with the table of learned positions
 *   norms       all norms
 *   head        the head's weight, which is the embedding's in a model that ties them
 *   score       the vector of a reward model; it trains always, and `head` means it, too
 *   PATTERN     names of parameters with *, ? and [..] as a shell has them: blocks.3.attention.*
 *
 * What does not train has no gradient, no moments and no master weight (program/registry.h).
 * Parameters that are one matrix of one product here train together: queries, keys and values; gate
 * and up; the weight and the bias of a norm.
 *
 * Used by: model, plan.   Uses: program (the registry).   Threads: any; no state.
 */
#ifndef HD_MODEL_ONLY_H
#define HD_MODEL_ONLY_H

#include "program/registry.h"

struct hd_only {
    const char *text;
    int64_t L;       /* blocks */
    bool tied;       /* the head uses the embedding's weight */
    const char *key; /* of the job file, for messages; NULL: train.only */
};

/* Whether everything trains. */
bool hd_only_is_all(const struct hd_only *only);

/* Whether the parameter trains. Items that hd_only_check refuses name nothing. */
bool hd_only_trains(const struct hd_only *only, const char *name);

/* HD_INVALID: an item names no parameter of the registry, or K is no number of blocks; parameters
 * that are one product do not train together; nothing trains. The message says what there is. */
enum hd_status hd_only_check(const struct hd_only *only, const struct hd_registry *registry);

#endif
