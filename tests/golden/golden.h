/* golden: reads the files that generate.py wrote, and makes the weights and tokens that both sides
 * start from.
 */
#ifndef HD_TESTS_GOLDEN_H
#define HD_TESTS_GOLDEN_H

#include <stdint.h>

#include "base/arena.h"
#include "harness.h"
#include "job/job.h"
#include "train/policy.h"

enum { GOLDEN_TENSORS_MAX = 64, GOLDEN_NAME_MAX = 128 };

struct golden_tensor {
    char name[GOLDEN_NAME_MAX];
    int64_t count;
    const float *values;
};

struct golden {
    struct golden_tensor tensors[GOLDEN_TENSORS_MAX];
    int tensor_count;
    int setting_count; /* keys of the job that the file set */
};

/* Reads tests/golden/values/NAME.golden; its settings replace those of `job`. Fails the test when
 * anything is not as it should be. Everything lives in `arena`. */
void golden_read(const char *name, struct hd_arena *arena, struct hd_job *job,
                 struct golden *ret_golden);
const struct golden_tensor *golden_find(const struct golden *golden, const char *name);

/* Opens a harness, and makes the job of generate.py's recipe with the settings of NAME.golden. */
void golden_open(const char *name, int steps, struct harness *h, struct hd_arena *arena,
                 struct hd_job *ret_job, struct golden *ret_golden);
/* Sets every weight by golden_weight. */
void golden_set_weights(struct hd_trainer *t);

/* Number i of the sequence `name`, in [0, 1): the rule of generate.py. */
double golden_number(const char *name, int64_t i);
/* Element i of parameter `name`. */
float golden_weight(const char *name, int dim_count, int64_t i);

enum { GOLDEN_COMPLETIONS = 6, GOLDEN_COMPLETION_IDS_MAX = 8 };

/* Completions by the rule of policy.py, with log-probabilities of 0, without advantages. They take 4 to 9 rows: one
 * window of 32 is not enough, two are. */
struct golden_completions {
    int32_t prompt[GOLDEN_COMPLETIONS][GOLDEN_COMPLETION_IDS_MAX],
        ids[GOLDEN_COMPLETIONS][GOLDEN_COMPLETION_IDS_MAX];
    struct hd_policy_completion list[GOLDEN_COMPLETIONS];
};
void golden_make_completions(int64_t vocab, struct golden_completions *ret_completions);

#endif
