#include "controller/cli/stage_table.h"

#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/table.h"
#include "job/batch_spans.h"
#include "job/data_stages.h"

static const struct table_column columns[] = {
    {"STAGE", true}, {"STEPS", false}, {"TOKENS", true}, {"LR", false},        {"SOURCE", true},
    {"SHARE", true}, {"PASSES", true}, {"SO FAR", true}, {"FIRST FILE", false}};

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

/* Writes the cells of a stage itself, which its first source shows and others leave empty. */
static void format_stage(const struct hd_job *job, const struct hd_data_stage *stages, int64_t k,
                         char ret_cells[160])
{
    const int64_t begin = hd_data_stage_begin(stages, k);
    const int64_t end = hd_data_stage_end(stages, k, job->steps);
    char count[32], lr[64] = "train.lr"; /* it goes on */

    cli_format_count(tokens_of(job, stages, k), count);
    if (stages[k].has_lr)
        (void)snprintf(lr, sizeof lr, "%s, peak %.3g", hd_job_lr_decay_words[stages[k].lr_decay],
                       stages[k].lr_peak);
    (void)snprintf(ret_cells, 160, "%lld\t%lld to %lld\t%s\t%s", (long long)k + 1,
                   (long long)begin + 1, (long long)end, count, lr);
}

/* Formats a number of passes; -1: unknown. */
static void format_passes(double passes, char ret_text[32])
{
    (void)snprintf(ret_text, 32, passes < 0 ? "?" : "%.3g", passes);
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
    char stage[160], now[32], so_far[32];
    double sum = 0;

    format_stage(job, stages, k, stage);
    for (int64_t i = 0; i < job->weight_count; i++)
        sum += hd_job_weight(job, k, i);
    for (int64_t i = 0; i < job->weight_count; i++) {
        const double share = hd_job_weight(job, k, i) / sum;
        const bool known = tokens[i] > 0;

        if (!(share > 0))
            continue;
        if (known)
            passes[i] += share * stage_tokens / (double)tokens[i];
        format_passes(known ? share * stage_tokens / (double)tokens[i] : -1, now);
        format_passes(known ? passes[i] : -1, so_far);
        table_add_row(table, "%s\t%lld\t%.3g%%\t%s\t%s\t%s", stage, (long long)i, 100 * share, now,
                      so_far, first_file(job, i));
        (void)snprintf(stage, sizeof stage, " \t \t \t ");
    }
}

/* ---- train.batch_schedule ---- */

static const struct table_column batch_columns[] = {
    {"STEPS", false}, {"SEQUENCES", true}, {"TOKENS A STEP", true}, {"TOKENS", true}};

/* Adds the row of a span up to step `end`. */
static void add_span(struct table *table, const struct hd_job *job,
                     const struct hd_batch_span *span, int64_t end)
{
    const int64_t steps = end - span->first_step;
    const double tokens = (double)span->batch * (double)job->context;
    char step[32], all[32];

    cli_format_count(tokens, step);
    cli_format_count((double)steps * tokens, all);
    table_add_row(table, "%lld to %lld\t%lld\t%s\t%s", (long long)span->first_step + 1,
                  (long long)end, (long long)span->batch, step, all);
}

/* Appends the spans of train.batch_schedule: steps, sequences and tokens; nothing without one. */
static void add_batches(const struct hd_job *job, struct hd_text *out)
{
    const struct hd_batch_spans batches = hd_job_batch_spans(job);
    struct table table;
    char count[32];

    if (!*job->batch_schedule)
        return;
    table_init(&table, batch_columns, sizeof batch_columns / sizeof batch_columns[0]);
    for (int64_t k = 0; k < batches.count; k++)
        add_span(&table, job, &batches.list[k],
                 k + 1 < batches.count ? batches.list[k + 1].first_step : job->steps);
    cli_format_count((double)hd_batch_spans_before(&batches, job->steps) * (double)job->context,
                     count);
    hd_text_add(out,
                "train.batch_schedule, %s tokens in %lld steps; plans are for the largest "
                "step:\n",
                count, (long long)job->steps);
    table_end(&table, false, 0, out);
}

void stage_table_add(const struct hd_job *job, const int64_t *tokens, struct hd_text *out)
{
    struct hd_data_stage stages[HD_JOB_STAGES_MAX];
    double passes[HD_JOB_SOURCES_MAX] = {0};
    struct table table;
    int64_t count;

    add_batches(job, out);
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
    table_end(&table, false, 0, out);
}
