/* stage_rules: makes the stages of a job that was read complete, and checks them. */
#include <string.h>

#include "job/data_stages.h"
#include "spec_internal.h"

/* Adds the weights of source `from` to those of `to`, and removes it; its files are [first, first +
 * count) of the job's. */
static void merge_source(struct hd_job *job, int64_t to, int64_t from, int64_t first, int64_t count)
{
    const int64_t each = hd_job_weights_each(job);

    for (int64_t s = 0; s < each; s++)
        job->weights[to * each + s] += job->weights[from * each + s];
    memmove(job->weights + from * each, job->weights + (from + 1) * each,
            (size_t)((job->weight_count - from - 1) * each) * sizeof *job->weights);
    memmove(job->train + first, job->train + first + count,
            (size_t)(job->train_count - first - count) * sizeof *job->train);
    job->train_count -= count;
    job->weight_count--;
    for (int64_t i = first; i < job->train_count; i++)
        job->train[i].source--;
}

/* Returns the first of the job's training files from `first` on that is of another source. */
static int64_t end_of_source(const struct hd_job *job, int64_t first)
{
    int64_t end = first;

    while (end < job->train_count && job->train[end].source == job->train[first].source)
        end++;
    return end;
}

static bool same_list(const struct hd_job *job, int64_t a, int64_t b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (strcmp(job->train[a + i].path, job->train[b + i].path) != 0)
            return false;
    return true;
}

void spec_join_data_stages(struct hd_job *job)
{
    int64_t end;

    for (int64_t b = 0; hd_job_stage_count(job) && b < job->train_count; b = end) {
        end = end_of_source(job, b);
        for (int64_t a = 0, a_end; a < b; a = a_end) {
            a_end = end_of_source(job, a);
            if (a_end - a != end - b || !same_list(job, a, b, end - b))
                continue;
            merge_source(job, job->train[a].source, job->train[b].source, b, end - b);
            end = b; /* the next source is at `b` now */
            break;
        }
    }
}

/* Gives a stage the sizes that it does not state: the job's context and angles, and as many tokens in
 * a step as the job has. */
static enum hd_status fill_sizes(const struct hd_job *job, int64_t index,
                                 struct hd_data_stage *stage)
{
    const int64_t tokens = job->global_batch * job->context;

    if (!stage->context)
        stage->context = job->context;
    if (!(stage->rope_theta > 0))
        stage->rope_theta = job->rope_theta;
    if (stage->global_batch)
        return HD_OK;
    if (tokens % stage->context)
        return hd_err(
            HD_INVALID,
            "data.stages[%lld].context: the %lld tokens of a step (train.global_batch x "
            "model.context) are no whole number of windows of %lld; give another context, "
            "or the stage a global_batch",
            (long long)index, (long long)tokens, (long long)stage->context);
    stage->global_batch = tokens / stage->context;
    return HD_OK;
}

/* Gives all stages their sizes, and the job those of its longest context, if a stage states any. */
static enum hd_status fill_spans(struct hd_job *job, struct hd_data_stage *stages, int64_t count)
{
    const struct hd_data_stage *longest = &stages[0];
    enum hd_status st = HD_OK;
    bool states = false;

    for (int64_t k = 0; k < count; k++)
        states |= stages[k].context || stages[k].global_batch || stages[k].rope_theta > 0;
    if (!states || job->context < 1 || job->global_batch < 1)
        return HD_OK;
    for (int64_t k = 0; !st && k < count; k++) {
        st = fill_sizes(job, k, &stages[k]);
        if (stages[k].context > longest->context ||
            (stages[k].context == longest->context &&
             stages[k].global_batch < longest->global_batch))
            longest = &stages[k];
    }
    if (st)
        return st;
    job->context = longest->context;
    job->global_batch = longest->global_batch;
    job->rope_theta = longest->rope_theta;
    return HD_OK;
}

enum hd_status spec_fill_data_stages(struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count;
    enum hd_status st = hd_data_stages_read(job, stages, &count);

    if (st || !count)
        return st;
    st = fill_spans(job, stages, count);
    if (st)
        return st;
    if (stages[count - 1].until == job->steps)
        stages[count - 1].until = 0;
    return hd_data_stages_write(stages, count, job);
}

/* ---- rules ---- */

static enum hd_status check_rate(const struct hd_data_stage *s, int64_t index, int64_t steps)
{
    const int64_t left = steps - s->lr_warmup_steps;

    if (!s->has_lr)
        return HD_OK;
    if (s->lr_min > s->lr_peak)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].lr.min: %.6g is above the peak of %.6g; lower "
                      "it",
                      (long long)index, s->lr_min, s->lr_peak);
    if (left < 0)
        return hd_err(
            HD_INVALID,
            "data.stages[%lld].lr.warmup: %lld steps are more than the %lld of the stage; "
            "lower it",
            (long long)index, (long long)s->lr_warmup_steps, (long long)steps);
    if (!spec_rate_has_decay_steps(s->lr_decay) && s->lr_decay_steps)
        return hd_err(HD_INVALID, "data.stages[%lld].lr.decay_steps: %s; remove it",
                      (long long)index, spec_rate_without_end(s->lr_decay));
    if (s->lr_decay != HD_JOB_LR_DECAY_WSD && s->lr_decay_shape &&
        s->lr_decay_shape != HD_JOB_LR_DECAY_SHAPE_LINEAR)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].lr.decay_shape: only the decay of wsd has a shape, and "
                      "decay is %s; remove it, or set decay: wsd",
                      (long long)index, hd_job_lr_decay_words[s->lr_decay]);
    if (s->lr_decay_steps > left)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].lr.decay_steps: %lld steps do not fit after the warm-up; "
                      "at most %lld are left of the stage",
                      (long long)index, (long long)s->lr_decay_steps, (long long)left);
    return HD_OK;
}

static enum hd_status check_end(const struct hd_job *job, const struct hd_data_stage *stages,
                                int64_t count, int64_t k)
{
    const long long until = (long long)stages[k].until, begin = hd_data_stage_begin(stages, k);
    const int64_t batch =
        stages[k].global_batch > job->global_batch ? stages[k].global_batch : job->global_batch;

    if (k + 1 < count && until <= begin)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].until: %lld is not above %lld, the end of the "
                      "stage before",
                      (long long)k, until, begin);
    if (k + 1 < count && until >= job->steps)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].until: %lld leaves no step of train.steps = %lld for the "
                      "stages behind it; lower it, or remove these",
                      (long long)k, until, (long long)job->steps);
    if (until > INT64_MAX / 2 / batch)
        return hd_err(HD_INVALID,
                      "data.stages[%lld].until: %lld steps of %lld sequences are too many to count",
                      (long long)k, until, (long long)batch);
    if (k + 1 == count && until)
        return hd_err(
            HD_INVALID,
            "data.stages[%lld].until: %lld is not train.steps = %lld, with which the last "
            "stage ends; remove it, or make them equal",
            (long long)k, until, (long long)job->steps);
    return HD_OK;
}

/* Checks that each stage has a source, and each source a stage. */
static enum hd_status check_mixtures(const struct hd_job *job, int64_t stages)
{
    bool used[HD_JOB_SOURCES_MAX] = {false}, has[HD_JOB_STAGES_MAX] = {false};

    for (int64_t k = 0; k < job->weight_count && k < HD_JOB_SOURCES_MAX; k++)
        for (int64_t s = 0; s < stages; s++)
            if (hd_job_weight(job, s, k) > 0)
                used[k] = has[s] = true;
    for (int64_t s = 0; s < stages; s++)
        if (!has[s])
            return hd_err(HD_INVALID, "data.stages[%lld]: has no source", (long long)s);
    for (int64_t k = 0; k < job->weight_count; k++)
        if (!used[k])
            return hd_err(HD_INVALID, "data.stages: no stage has source %lld", (long long)k);
    return HD_OK;
}

/* Refuses what cannot change its window or batch within a run. */
static enum hd_status check_keys_of_spans(const struct hd_job *job)
{
    if (job->positions == HD_JOB_POSITIONS_LEARNED)
        return hd_err(HD_INVALID,
                      "data.stages: learned positions are a table of model.context rows; "
                      "all stages have one context");
    if (hd_job_has_pairs(job) || hd_job_has_policy(job))
        return hd_err(
            HD_INVALID,
            "data.stages: train.objective: %s has one context and one batch in all stages",
            hd_job_objective_words[job->objective]);
    if (job->distill_write)
        return hd_err(HD_INVALID,
                      "train.distill.write: a teacher reads all data in windows of one "
                      "model.context; remove context, global_batch and rope_theta of data.stages, "
                      "which the student's job may have");
    if (job->checkpoint_best)
        return hd_err(HD_INVALID, "checkpoint.best: losses on windows of several lengths cannot be "
                                  "compared; set it to false, or give all stages one context");
    if (job->stop_patience)
        return hd_err(HD_INVALID, "validate.stop: losses on windows of several lengths cannot be "
                                  "compared; remove it, or give all stages one context");
    if (job->schedule_order)
        return hd_err(HD_INVALID,
                      "parallel.schedule: an order in a file has one number of micro-batches, and "
                      "stages with batches of their own have several; name a schedule");
    return HD_OK;
}

/* Checks the sizes of the stages against each other and the job's, which are those of the longest
 * context. */
static enum hd_status check_spans(const struct hd_job *job, const struct hd_data_stage *stages,
                                  int64_t count)
{
    int64_t with = 0, longest = 0;

    for (int64_t k = 0; k < count; k++) {
        with += stages[k].context > 0;
        if (stages[k].context == job->context && stages[k].global_batch == job->global_batch)
            longest++;
    }
    if (!with)
        return HD_OK;
    if (with < count || !longest)
        return hd_err(
            HD_INVALID,
            "data.stages: no stage has the job's context of %lld tokens and batch of %lld",
            (long long)job->context, (long long)job->global_batch);
    for (int64_t k = 0; k < count; k++) {
        const struct hd_data_stage *s = &stages[k];

        if (s->context > job->context || s->global_batch < 1)
            return hd_err(HD_INVALID, "data.stages[%lld].context: %lld is more than the job's %lld",
                          (long long)k, (long long)s->context, (long long)job->context);
        if (s->context <= job->mtp_layers)
            return hd_err(
                HD_INVALID,
                "data.stages[%lld].context: a window of %lld tokens has no token that all "
                "%lld layers of model.mtp predict; give a longer one",
                (long long)k, (long long)s->context, (long long)job->mtp_layers);
        if (s->global_batch % job->global_batch)
            return hd_err(
                HD_INVALID,
                "data.stages[%lld].global_batch: %lld is no multiple of %lld, the batch of "
                "the longest context, by which the ranks divide it; give a multiple",
                (long long)k, (long long)s->global_batch, (long long)job->global_batch);
        if (s->rope_theta != job->rope_theta && job->positions != HD_JOB_POSITIONS_ROPE)
            return hd_err(HD_INVALID,
                          "data.stages[%lld].rope_theta: %s positions are not rotary; remove it",
                          (long long)k, hd_job_positions_words[job->positions]);
    }
    return hd_job_has_spans(job) ? check_keys_of_spans(job) : HD_OK;
}

enum hd_status spec_check_data_stages(const struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count;
    enum hd_status st = hd_data_stages_read(job, stages, &count);

    if (st || !count)
        return st;
    if (!job->weight_count)
        return hd_err(HD_INVALID, "data.stages: has no sources");
    if (job->epochs > 0)
        return hd_err(HD_INVALID,
                      "train.epochs: stages of the data end at steps; give train.steps");
    for (int64_t k = 0; !st && k < count; k++) {
        st = check_end(job, stages, count, k);
        if (!st)
            st = check_rate(&stages[k], k,
                            hd_data_stage_end(stages, k, job->steps) -
                                hd_data_stage_begin(stages, k));
    }
    if (!st)
        st = check_spans(job, stages, count);
    return st ? st : check_mixtures(job, count);
}
