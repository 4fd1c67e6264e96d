#include "controller/cli/stage_table.h"

#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/table.h"
#include "job/batch_spans.h"
#include "job/data_stages.h"

static const struct table_column columns[] = {
    {"STAGE", true}, {"STEPS", false}, {"TOKENS", true}, {"LR", false},        {"SOURCE", true},
    {"SHARE", true}, {"PASSES", true}, {"SO FAR", true}, {"FIRST FILE", false}};

/* Adds the schedule of a stage, or that train.lr goes on. */
static void add_schedule(struct table *table, const struct hd_data_stage *stage)
{
    if (stage->has_lr)
        table_add(table, NULL, "%s, peak %.3g", hd_job_lr_decay_words[stage->lr_decay],
                  stage->lr_peak);
    else
        table_add(table, NULL, "train.lr");
}

/* Returns the tokens of a stage. */
static double tokens_of(const struct hd_job *job, const struct hd_data_stage *stages, int64_t k)
{
    const struct hd_data_stage *s = &stages[k];
    const int64_t begin = hd_data_stage_begin(stages, k);
    const int64_t end = hd_data_stage_end(stages, k, job->steps);
    const struct hd_batch_spans batches = hd_job_batch_spans(job);

    if (s->context)
        return (double)(end - begin) * (double)(s->context * s->global_batch);
    return (double)job->context *
           (double)(hd_batch_spans_before(&batches, end) - hd_batch_spans_before(&batches, begin));
}

/* Adds the cells of a stage itself, which its first source shows and others leave empty. */
static void add_stage(struct table *table, const struct hd_job *job,
                      const struct hd_data_stage *stages, int64_t k, bool first)
{
    const int64_t begin = hd_data_stage_begin(stages, k);
    const int64_t end = hd_data_stage_end(stages, k, job->steps);
    char count[32];

    if (!first) {
        for (int i = 0; i < 4; i++)
            table_add(table, NULL, " ");
        return;
    }
    cli_format_count(tokens_of(job, stages, k), count);
    table_add(table, NULL, "%lld", (long long)k + 1);
    table_add(table, NULL, "%lld to %lld", (long long)begin + 1, (long long)end);
    table_add(table, NULL, "%s", count);
    add_schedule(table, &stages[k]);
}

/* Adds a cell with the number of passes; -1: unknown. */
static void add_passes(struct table *table, double passes)
{
    if (passes < 0)
        table_add(table, NULL, "?");
    else
        table_add(table, NULL, "%.3g", passes);
}

static const char *first_file(const struct hd_job *job, int64_t source)
{
    for (int64_t i = 0; i < job->train_count; i++)
        if (job->train[i].source == source) {
            const char *slash = strrchr(job->train[i].path, '/');

            return slash ? slash + 1 : job->train[i].path;
        }
    return "";
}

/* Adds the rows of a stage. passes: [sources], passes over each source so far. */
static void add_rows(struct table *table, const struct hd_job *job,
                     const struct hd_data_stage *stages, int64_t k, const int64_t *tokens,
                     double *passes)
{
    const double stage_tokens = tokens_of(job, stages, k);
    bool first = true;
    double sum = 0;

    for (int64_t i = 0; i < job->weight_count; i++)
        sum += hd_job_weight(job, k, i);
    for (int64_t i = 0; i < job->weight_count; i++) {
        const double share = hd_job_weight(job, k, i) / sum;
        const bool known = tokens[i] > 0;

        if (!(share > 0))
            continue;
        if (known)
            passes[i] += share * stage_tokens / (double)tokens[i];
        table_begin_row(table);
        add_stage(table, job, stages, k, first);
        table_add(table, NULL, "%lld", (long long)i);
        table_add(table, NULL, "%.3g%%", 100 * share);
        add_passes(table, known ? share * stage_tokens / (double)tokens[i] : -1);
        add_passes(table, known ? passes[i] : -1);
        table_add(table, NULL, "%s", first_file(job, i));
        first = false;
    }
}

void stage_table_add(const struct hd_job *job, const int64_t *tokens, struct hd_text *out)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    double passes[HD_JOB_SOURCES_MAX] = {0};
    struct table table;
    int64_t count;

    if (hd_data_stages_read(job, stages, &count) || !count)
        return;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (int64_t k = 0; k < count; k++)
        add_rows(&table, job, stages, k, tokens, passes);
    if (!hd_job_has_spans(job))
        hd_text_add(out, "data.stages, %s%lld tokens a step:\n",
                    *job->batch_schedule ? "up to " : "",
                    (long long)(job->global_batch * job->context));
    else
        hd_text_add(out, "data.stages:\n");
    for (int64_t k = 0; hd_job_has_spans(job) && k < count; k++)
        hd_text_add(out, "  stage %lld: windows of %lld tokens, %lld in a step, rope_theta %g\n",
                    (long long)k + 1, (long long)stages[k].context,
                    (long long)stages[k].global_batch, stages[k].rope_theta);
    table_render(&table, false, 0, out);
    table_done(&table);
}
