/* data_stages: the stages of data.stages: ranges of a run's steps, each with a mixture of its own
 * and perhaps a schedule of the learning rate, and windows of another length.
 *
 * The job has the list of stages as text, "1000 -;1500@4096,512,10000 3e-4 0 linear 0 0;0 -": for each
 * stage its last step (0, only in the last stage: the last step of the run); behind "@" its context,
 * global batch and rope_theta, if a stage of the job has others than the job; then "-" if it goes on
 * with train.lr, or the peak, warm-up, decay, decay steps and minimum of its learning rate, and the
 * shape of a decay that is not linear. The weights of its sources are in hd_job.weights.
 *
 * While a job file is read, 0 is for what a stage does not give. A span is the longest row of stages with equal context, global batch and rope_theta. A trainer has
 * the sizes of one span (hd_job_at_step); the worker opens another trainer at the next one. In a job
 * whose stages have contexts, all stages have all three numbers, and the job itself has those of the
 * longest context, for which the planner chooses the layout.
 *
 * Used by: spec, optim, train, plan, worker, controller.   Uses: job.   Threads: any; no state.
 */
#ifndef HD_JOB_DATA_STAGES_H
#define HD_JOB_DATA_STAGES_H

#include "job/job.h"

struct hd_data_stage {
    int64_t until; /* last step of the stage; 0: the last step of the run */
    bool has_lr;   /* false: the stage goes on with train.lr, and the next members are 0 */
    double lr_peak, lr_min;
    int64_t lr_warmup_steps; /* steps from the first of the stage */
    /* steps of the decay; 0: to the end of the stage, with wsd a tenth of the stage */
    int64_t lr_decay_steps;
    enum hd_job_lr_decay lr_decay;
    enum hd_job_lr_decay_shape lr_decay_shape; /* 0: linear */
    /* tokens of a window, windows of a step, and model.rope_theta in the stage; 0: those of the
     * job. All stages have them, or none */
    int64_t context, global_batch;
    double rope_theta;
};

/* Steps and stages of a span. */
struct hd_data_span {
    int64_t first, last; /* indices of its stages; both 0 in a job without stages */
    int64_t begin, end;  /* number of steps before the span; its last step */
};

/* Reads the stages of a job; ret_count 0: it has none. HD_INVALID: the text is no list of stages. */
enum hd_status hd_data_stages_read(const struct hd_job *job,
                                   struct hd_data_stage ret_stages[HD_JOB_STAGES_MAX],
                                   int64_t *ret_count);
/* Sets the stages of a job. HD_LIMIT: too many. */
enum hd_status hd_data_stages_write(const struct hd_data_stage *stages, int64_t count,
                                    struct hd_job *job);

/* Returns the number of steps before stage `index` of stages that hd_data_stages_read has read. */
static inline int64_t hd_data_stage_begin(const struct hd_data_stage *stages, int64_t index)
{
    return index ? stages[index - 1].until : 0;
}

/* Returns the last step of a stage of a run of `steps` steps. */
static inline int64_t hd_data_stage_end(const struct hd_data_stage *stages, int64_t index,
                                        int64_t steps)
{
    return stages[index].until ? stages[index].until : steps;
}

/* Returns the index, from 0, of the stage that has the step, which counts from 1; the last stage
 * for a step behind all stages. count: at least 1. */
static inline int64_t hd_data_stage_at(const struct hd_data_stage *stages, int64_t count,
                                       int64_t step)
{
    int64_t k = 0;

    while (k + 1 < count && step > stages[k].until)
        k++;
    return k;
}

/* Returns whether two stages have windows and batches of equal sizes, and equal angles. */
static inline bool hd_data_stages_alike(const struct hd_data_stage *a,
                                        const struct hd_data_stage *b)
{
    return a->context == b->context && a->global_batch == b->global_batch &&
           a->rope_theta == b->rope_theta;
}

/* Returns the span that has the stage with this index. A job without stages has one span, the whole
 * run. */
struct hd_data_span hd_data_span_of(const struct hd_data_stage *stages, int64_t count,
                                    int64_t index, int64_t steps);

/* Sets *ret_job to the job as it is in a step, counted from 1: with the context, the global batch and
 * the angles of the step's span, and with a micro-batch of as many tokens as the job's has, or fewer.
 * Its stages stay, so that the result may be given again. ret_span may be NULL. HD_INVALID: the
 * list of stages cannot be read. */
enum hd_status hd_job_at_step(const struct hd_job *job, int64_t step, struct hd_job *ret_job,
                              struct hd_data_span *ret_span);

/* Returns whether the job has several spans. */
bool hd_job_has_spans(const struct hd_job *job);

#endif
