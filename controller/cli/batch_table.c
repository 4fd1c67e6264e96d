#include "controller/cli/batch_table.h"

#include "controller/cli/cli.h"
#include "controller/cli/table.h"
#include "job/batch_spans.h"

static const struct table_column columns[] = {
    {"STEPS", false}, {"SEQUENCES", true}, {"TOKENS A STEP", true}, {"TOKENS", true}};

/* Adds the row of a span up to step `end`. */
static void add_span(struct table *table, const struct hd_job *job,
                     const struct hd_batch_span *span, int64_t end)
{
    const int64_t steps = end - span->first_step;
    char count[32];

    table_begin_row(table);
    table_add(table, NULL, "%lld to %lld", (long long)span->first_step + 1, (long long)end);
    table_add(table, NULL, "%lld", (long long)span->batch);
    cli_format_count((double)span->batch * (double)job->context, count);
    table_add(table, NULL, "%s", count);
    cli_format_count((double)steps * (double)span->batch * (double)job->context, count);
    table_add(table, NULL, "%s", count);
}

void batch_table_add(const struct hd_job *job, struct hd_text *out)
{
    const struct hd_batch_spans batches = hd_job_batch_spans(job);
    struct table table;
    char count[32];

    if (!*job->batch_schedule)
        return;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (int64_t k = 0; k < batches.count; k++)
        add_span(&table, job, &batches.list[k],
                 k + 1 < batches.count ? batches.list[k + 1].first_step : job->steps);
    cli_format_count((double)hd_batch_spans_before(&batches, job->steps) * (double)job->context,
                     count);
    hd_text_add(out,
                "train.batch_schedule, %s tokens in %lld steps; plans are for the largest "
                "step:\n",
                count, (long long)job->steps);
    table_render(&table, false, 0, out);
    table_done(&table);
}
