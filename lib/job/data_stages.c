#include "job/data_stages.h"

#include <stdio.h>
#include <string.h>

enum { STAGE_TEXT_MAX = 128 };

static enum hd_status read_rate(const char *text, struct hd_data_stage *stage)
{
    char peak[32], min[32];
    long long warmup, decay_steps;
    enum hd_status st;

    if (strcmp(text, "-") == 0)
        return HD_OK;
    if (sscanf(text, "%31s %lld %15s %lld %31s %15s", peak, &warmup, stage->lr_decay, &decay_steps,
               min, stage->lr_decay_shape) < 5)
        return hd_err(HD_INVALID, "data.stages: '%s' is no learning rate", text);
    stage->has_lr = true;
    stage->lr_warmup_steps = warmup;
    stage->lr_decay_steps = decay_steps;
    st = hd_text_to_double(peak, 0, 1e9, &stage->lr_peak);
    if (!st)
        st = hd_text_to_double(min, 0, 1e9, &stage->lr_min);
    return st ? hd_err_prefix(st, "data.stages") : HD_OK;
}

static enum hd_status read_stage(const char *text, size_t len, struct hd_data_stage *ret_stage)
{
    char copy[STAGE_TEXT_MAX], *blank;
    enum hd_status st;

    *ret_stage = (struct hd_data_stage){.until = 0};
    (void)snprintf(copy, sizeof copy, "%.*s", (int)len, text);
    blank = strchr(copy, ' ');
    if (len >= sizeof copy || !blank)
        return hd_err(HD_INVALID, "data.stages: '%s' is no stage", copy);
    *blank = '\0';
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
    enum hd_status st = HD_OK;

    for (int64_t k = 0; k < count; k++) {
        const struct hd_data_stage *s = &stages[k];

        hd_text_add(&text, "%s%lld ", k ? ";" : "", (long long)s->until);
        if (s->has_lr)
            hd_text_add(&text, "%.17g %lld %s %lld %.17g", s->lr_peak,
                        (long long)s->lr_warmup_steps, s->lr_decay, (long long)s->lr_decay_steps,
                        s->lr_min);
        else
            hd_text_add(&text, "-");
        if (s->has_lr && *s->lr_decay_shape && strcmp(s->lr_decay_shape, "linear") != 0)
            hd_text_add(&text, " %s", s->lr_decay_shape);
    }
    if (count > HD_JOB_STAGES_MAX || text.failed || text.len_bytes >= sizeof job->data_stages)
        st = hd_err(HD_LIMIT, "data.stages: more than %d stages; join some", HD_JOB_STAGES_MAX);
    else
        (void)snprintf(job->data_stages, sizeof job->data_stages, "%s", text.data ? text.data : "");
    hd_text_free(&text);
    return st;
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
