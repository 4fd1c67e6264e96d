#include "job/data_stages.h"

#include <stdio.h>
#include <string.h>

enum { STAGE_TEXT_MAX = 192 };

static enum hd_status read_rate(const char *text, struct hd_data_stage *stage)
{
    char peak[32], min[32], decay[16], shape[16] = "";
    long long warmup, decay_steps;
    enum hd_status st;

    if (strcmp(text, "-") == 0)
        return HD_OK;
    if (sscanf(text, "%31s %lld %15s %lld %31s %15s", peak, &warmup, decay, &decay_steps, min,
               shape) < 5)
        return hd_err(HD_INVALID, "data.stages: '%s' is no learning rate", text);
    stage->has_lr = true;
    stage->lr_decay = hd_job_find_word(hd_job_lr_decay_words, decay);
    stage->lr_decay_shape = hd_job_find_word(hd_job_lr_decay_shape_words, shape);
    if (!stage->lr_decay || (*shape && !stage->lr_decay_shape))
        return hd_err(HD_INVALID, "data.stages: '%s' has a word that this build lacks", text);
    stage->lr_warmup_steps = warmup;
    stage->lr_decay_steps = decay_steps;
    st = hd_text_to_double(peak, 0, 1e9, &stage->lr_peak);
    if (!st)
        st = hd_text_to_double(min, 0, 1e9, &stage->lr_min);
    return st ? hd_err_prefix(st, "data.stages") : HD_OK;
}

/* Reads "4096,512,10000": context, global batch and rope_theta. */
static enum hd_status read_sizes(const char *text, struct hd_data_stage *stage)
{
    char theta[32];
    long long context, batch;
    enum hd_status st;

    if (sscanf(text, "%lld,%lld,%31s", &context, &batch, theta) != 3 || context < 0 || batch < 0)
        return hd_err(HD_INVALID, "data.stages: '%s' is no context, batch and rope_theta", text);
    stage->context = context;
    stage->global_batch = batch;
    st = hd_text_to_double(theta, 0, 1e12, &stage->rope_theta);
    return st ? hd_err_prefix(st, "data.stages") : HD_OK;
}

static enum hd_status read_stage(const char *text, size_t len, struct hd_data_stage *ret_stage)
{
    char copy[STAGE_TEXT_MAX], *blank, *sizes;
    enum hd_status st;

    *ret_stage = (struct hd_data_stage){.until = 0};
    (void)snprintf(copy, sizeof copy, "%.*s", (int)len, text);
    blank = strchr(copy, ' ');
    if (len >= sizeof copy || !blank)
        return hd_err(HD_INVALID, "data.stages: '%s' is no stage", copy);
    *blank = '\0';
    sizes = strchr(copy, '@');
    if (sizes) {
        *sizes = '\0';
        st = read_sizes(sizes + 1, ret_stage);
        if (st)
            return st;
    }
    st = hd_text_to_int64(copy, 0, INT64_C(1) << 40, &ret_stage->until);
    return st ? hd_err_prefix(st, "data.stages") : read_rate(blank + 1, ret_stage);
}

enum hd_status hd_data_stages_read(const struct hd_job *job,
                                   struct hd_data_stage ret_stages[HD_JOB_STAGES_MAX],
                                   int64_t *ret_count)
{
    const char *at = job->data_stages;
    enum hd_status st = HD_OK;
    int64_t count = 0;

    while (*at && !st) {
        const size_t len = strcspn(at, ";");

        if (count == HD_JOB_STAGES_MAX)
            return hd_err(HD_INVALID, "data.stages: more than %d stages", HD_JOB_STAGES_MAX);
        st = read_stage(at, len, &ret_stages[count++]);
        at += len + (at[len] == ';');
    }
    *ret_count = count;
    return st;
}

enum hd_status hd_data_stages_write(const struct hd_data_stage *stages, int64_t count,
                                    struct hd_job *job)
{
    struct hd_text text = {0};
    enum hd_status st = HD_LIMIT;

    for (int64_t k = 0; k < count; k++) {
        const struct hd_data_stage *s = &stages[k];

        hd_text_add(&text, "%s%lld", k ? ";" : "", (long long)s->until);
        if (s->context || s->global_batch || s->rope_theta > 0)
            hd_text_add(&text, "@%lld,%lld,%.17g", (long long)s->context,
                        (long long)s->global_batch, s->rope_theta);
        hd_text_add(&text, " ");
        if (s->has_lr)
            hd_text_add(&text, "%.17g %lld %s %lld %.17g", s->lr_peak,
                        (long long)s->lr_warmup_steps, hd_job_lr_decay_words[s->lr_decay],
                        (long long)s->lr_decay_steps, s->lr_min);
        else
            hd_text_add(&text, "-");
        if (s->has_lr && s->lr_decay_shape && s->lr_decay_shape != HD_JOB_LR_DECAY_SHAPE_LINEAR)
            hd_text_add(&text, " %s", hd_job_lr_decay_shape_words[s->lr_decay_shape]);
    }
    if (count <= HD_JOB_STAGES_MAX)
        st = hd_job_take_text(job, &job->data_stages, &text);
    hd_text_free(&text);
    return st != HD_LIMIT
               ? st
               : hd_err(HD_LIMIT, "data.stages: more than %d stages; join some", HD_JOB_STAGES_MAX);
}

int64_t hd_job_stage_count(const struct hd_job *job)
{
    int64_t count = *job->data_stages != '\0';

    for (const char *c = job->data_stages; *c; c++)
        count += *c == ';';
    return count;
}

int64_t hd_job_weights_each(const struct hd_job *job)
{
    const int64_t stages = hd_job_stage_count(job);

    return stages ? stages : 1;
}

double hd_job_weight(const struct hd_job *job, int64_t stage, int64_t source)
{
    return job->weights[source * hd_job_weights_each(job) + stage];
}

/* ---- spans ---- */

struct hd_data_span hd_data_span_of(const struct hd_data_stage *stages, int64_t count,
                                    int64_t index, int64_t steps)
{
    struct hd_data_span span = {.first = index, .last = index, .end = steps};

    if (!count)
        return span;
    while (span.first > 0 && hd_data_stages_alike(&stages[span.first - 1], &stages[index]))
        span.first--;
    while (span.last + 1 < count && hd_data_stages_alike(&stages[span.last + 1], &stages[index]))
        span.last++;
    span.begin = hd_data_stage_begin(stages, span.first);
    span.end = hd_data_stage_end(stages, span.last, steps);
    return span;
}

/* Returns the micro-batch of a stage: the most windows, of at most as many tokens as the job's
 * micro-batch has, with which a rank does a multiple of the job's number of micro-batches. The job's
 * own micro-batch is such a number, since the stage's batch is a multiple of the job's. */
static int64_t micro_batch_of(const struct hd_job *job, const struct hd_data_stage *stage)
{
    const int64_t micro_batches = hd_layout_micro_batches(&job->layout, job->global_batch);
    int64_t most;

    if (micro_batches < 1)
        return job->micro_batch; /* auto */
    most = job->micro_batch * job->context / stage->context;
    for (int64_t b = most; b > job->micro_batch; b--)
        if (stage->global_batch % (job->dp * b * micro_batches) == 0)
            return b;
    return job->micro_batch;
}

enum hd_status hd_job_at_step(const struct hd_job *job, int64_t step, struct hd_job *ret_job,
                              struct hd_data_span *ret_span)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count = 0, index = 0;
    enum hd_status st = hd_data_stages_read(job, stages, &count);

    if (st)
        return st;
    *ret_job = *job;
    if (count)
        index = hd_data_stage_at(stages, count, step);
    if (ret_span)
        *ret_span = hd_data_span_of(stages, count, index, job->steps);
    if (!count || !stages[index].context)
        return HD_OK;
    ret_job->micro_batch = micro_batch_of(job, &stages[index]);
    ret_job->context = stages[index].context;
    ret_job->global_batch = stages[index].global_batch;
    ret_job->rope_theta = stages[index].rope_theta;
    return HD_OK;
}

bool hd_job_has_spans(const struct hd_job *job)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    int64_t count;

    if (hd_data_stages_read(job, stages, &count))
        return false;
    for (int64_t k = 1; k < count; k++)
        if (!hd_data_stages_alike(&stages[k - 1], &stages[k]))
            return true;
    return false;
}
