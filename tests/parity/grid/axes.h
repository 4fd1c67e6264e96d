/* axes: in how many ways a model's training can be laid out over ranks, as a table.
 *
 * An axis has values, of which the first is the one at rest; a layout picks one of each. Which
 * layouts there are is said by rules, each with its reason in words, and by the engine: an axis
 * that it does not have yet is left out for as long as it says so itself.
 *
 * Threads: grid_ask_engine and grid_model_find are called before anything else, by one thread.
 */
#ifndef HD_TESTS_GRID_AXES_H
#define HD_TESTS_GRID_AXES_H

#include "runs.h"
#include "tests/sanitized.h"

enum grid_axis_name {
    GRID_TP,
    GRID_SEQUENCE,
    GRID_CP,
    GRID_EXCHANGE,
    GRID_DP,
    GRID_EP,
    GRID_PP,
    GRID_MICRO_BATCHES,
    GRID_SCHEDULE,
    GRID_ZERO,
    GRID_SHARD,
    GRID_RECOMPUTE,
    GRID_REDUCE,
    GRID_OFFLOAD, /* of a device; on the CPU it changes nothing */
    /* what is trained and how it is kept: of one rank too, so each of their values has a reference
     */
    GRID_ADAPTER,
    GRID_OBJECTIVE,
    GRID_WEIGHTS,
    GRID_AXES
};
enum { GRID_FIRST_OF_TUNING = GRID_ADAPTER };
enum { GRID_VALUES_MAX = 5, GRID_LAYOUTS_MAX = 4096, GRID_TEXT_MAX = 200 };
enum { GRID_STEPS = HD_TEST_SANITIZED ? 4 : 5 };

struct grid_layout {
    signed char value[GRID_AXES]; /* which of the axis' values; 0: at rest */
};

struct grid_axis {
    const char *name;
    int count;
    struct {
        const char *text;
        int number;
    } values[GRID_VALUES_MAX];
    void (*set)(struct hd_job *job, struct hd_rank_program_options *options, int number);
    bool may_be_missing; /* the engine may refuse it as not supported; else that is a failure */
};
extern const struct grid_axis grid_axes[GRID_AXES];

/* A model that is trained in all these ways. */
struct grid_model {
    const char *name, *family;
    int64_t vocab;
    bool bounded; /* each line of the corpus is a document, which sees nothing else */
    bool tuned; /* the corpus is pairs of answers (train/pairs.h), and every weight of the start is
                   disturbed, so that no factor of an adapter is zero */
    unsigned axes; /* a bit for each that takes part; the others stay at rest */
    const char *what;
    void (*change)(struct hd_job *job); /* of the family's job; NULL: nothing */
};
const struct grid_model *grid_model_find(const char *name); /* aborts when there is none */
unsigned grid_axes_of(const struct grid_model *model);      /* those that change anything here */

/* The model on one rank, as the run that everything is held against. */
struct hd_job grid_reference(const struct grid_model *model, const struct harness *harness);
/* Returns the reference job with the adapter, objective and weights of this layout. */
struct hd_job grid_reference_of(const struct grid_model *model, const struct harness *harness,
                                const struct grid_layout *layout);
bool grid_same_reference(const struct grid_layout *a, const struct grid_layout *b);
/* Returns the job of the model in this layout. */
struct hd_job grid_job(const struct grid_model *model, const struct harness *harness,
                       const struct grid_layout *layout,
                       struct hd_rank_program_options *ret_options);

/* Whether the engine can lay out this job; what it says if not. */
enum hd_status grid_ask(const struct hd_job *job, const struct hd_rank_program_options *options);

/* Asks the engine for every value of the model's axes, as far as possible alone, which of them it
 * has. A failure other than that it is not supported yet is handed back. */
enum hd_status grid_ask_engine(const struct grid_model *model, const struct harness *harness);

/* NULL for a layout that must train; else why there is none. */
const char *grid_exclusion(const struct grid_layout *layout);

/* "tp=2 sequence=on dp=2": what is not at rest, world's axes always. */
void grid_write(const struct grid_layout *layout, char ret_text[GRID_TEXT_MAX]);
/* A wish: a layout with -1 where any value will do. From words "tp=2 cp=1"; NULL: no wish.
 * HD_INVALID names the word that is none. */
enum hd_status grid_read(const char *words, struct grid_layout *ret_wish);
bool grid_grants(const struct grid_layout *layout, const struct grid_layout *wish);

/* The legal layout with this wish that leaves most at rest; false: there is none. */
bool grid_least(const struct grid_model *model, const struct grid_layout *wish,
                struct grid_layout *ret_layout);

/* Every layout of the model, legal or not, with adapter, objective and weights at rest: call with
 * *layout zeroed first, then until false. */
bool grid_next(const struct grid_model *model, struct grid_layout *layout);

#endif
