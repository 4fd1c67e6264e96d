/* optimizer: the rules by which parameters are updated, one row each: the moments that a rule keeps,
 * their encoding and names in checkpoints, and whether it updates whole matrices.
 *
 * An optimizer (train.optimizer) is a rule for the matrices of linears of blocks, and one for all
 * other parameters. A bucket (registry.h) has parameters of one rule.
 *
 * Used by: program, optim, train, plan.   Uses: base (encoding), kernels.
 * Threads: pure functions.
 */
#ifndef HD_PROGRAM_OPTIMIZER_H
#define HD_PROGRAM_OPTIMIZER_H

#include <stdbool.h>

#include "base/encoding.h"
#include "kernels/kernels.h"

enum hd_rule { HD_RULE_ADAMW, HD_RULE_LION, HD_RULE_MUON, HD_RULE_COUNT };

enum { HD_RULE_MOMENTS_MAX = 2 };

struct hd_rule_traits {
    const char *name;                        /* word of train.optimizer */
    int moments;                             /* moments per parameter, 1 to HD_RULE_MOMENTS_MAX */
    const char *prefix[HD_RULE_MOMENTS_MAX]; /* prefixes of the moments' names in checkpoints */
    enum hd_map map[HD_RULE_MOMENTS_MAX];    /* maps of their 8-bit codes */
    bool matrices; /* true: a step needs the whole matrix, which one rank computes (matrices.h) */
};
const struct hd_rule_traits *hd_rule_row(enum hd_rule rule);
/* Returns the rule with this name; AdamW for any other text. */
enum hd_rule hd_rule_named(const char *name);

/* How a step of Muon is scaled, for a matrix [out, in]: MOONLIGHT 0.2 sqrt(max(out, in)), by which a
 * step is about as large as one of AdamW (Liu et al. 2025); KELLER sqrt(max(1, out / in)) (Jordan et
 * al. 2024). */
enum hd_step_scale { HD_SCALE_MOONLIGHT, HD_SCALE_KELLER };

/* Settings of an optimizer. Zeros: AdamW. */
struct hd_optimizer {
    enum hd_rule matrices, others; /* rules of the matrices of linears, and of other parameters */
    float momentum;
    bool nesterov;
    int iterations;
    enum hd_step_scale scale;
    double others_lr; /* factor on the learning rate of the others; 0: 1 */
};

/* Returns the factor of the step of a matrix [out, in]. */
float hd_optimizer_scale(const struct hd_optimizer *optimizer, int64_t out, int64_t in);

/* Adds to `costs` the update of N parameters by a rule, with a copy of the weights. */
void hd_rule_update_costs(enum hd_rule rule, int64_t N, int64_t moment_bytes, enum hd_dtype copy,
                          struct hd_costs *costs);

#endif
