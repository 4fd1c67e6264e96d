#include "controller/cli/plan_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "controller/cli/table.h"
#include "job/data_stages.h"
#include "plan/best.h"
#include "spec/spec.h"

static const struct table_column columns[] = {
    {"#", true},          {"TP", true},    {"PP", true},     {"DP", true},
    {"CP", true},         {"EP", true},    {"MICRO", true},  {"SCHEDULE", false},
    {"RECOMPUTE", false}, {"ZERO", false}, {"MEMORY", true}, {"STEP", true},
    {"TOK/S", true},      {"MFU", true},   {"BUBBLE", true}, {"WAITS", true}};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

/* Writes the cells of a layout's sizes. */
static void format_sizes(const struct hd_layout_sizes *s, char ret_cells[256])
{
    char chunks[32] = "", shard[32] = "";

    if (s->virtual_stages > 1 && strcmp(s->schedule, "interleaved") == 0)
        (void)snprintf(chunks, sizeof chunks, " x%lld", (long long)s->virtual_stages);
    if (s->zero_shard)
        (void)snprintf(shard, sizeof shard, " of %lld", (long long)s->zero_shard);
    (void)snprintf(ret_cells, 256, "%lld\t%lld\t%lld\t%lld\t%lld\t%lld\t%s%s\t%s\t%lld%s",
                   (long long)s->tp, (long long)s->pp, (long long)s->dp, (long long)s->cp,
                   (long long)s->ep, (long long)s->micro_batch, s->schedule, chunks, s->recompute,
                   (long long)s->zero, shard);
}

static void format_seconds(double s, char text[32])
{
    if (s >= 1)
        (void)snprintf(text, 32, "%.3g s", s);
    else
        (void)snprintf(text, 32, "%.3g ms", 1e3 * s);
}

/* Returns how long communication does not overlap with computation, per step. */
static double exposed(const struct hd_step_cost *p)
{
    double s = 0;

    for (int g = 0; g < HD_GROUP_COUNT; g++)
        s += p->communication_s[g];
    return s;
}

static void add_layout_row(struct table *t, int number, const struct hd_search_plan *p)
{
    char bytes[32], seconds[32], rate[32], mfu[32] = "-", sizes[256];

    hd_text_format_bytes(p->needed_bytes, bytes);
    format_seconds(p->cost.step_s, seconds);
    cli_format_count(p->cost.tokens_per_s, rate);
    format_sizes(&p->job.layout, sizes);
    if (p->cost.mfu > 0)
        (void)snprintf(mfu, sizeof mfu, "%.1f%%", 100 * p->cost.mfu);
    table_add_row(t, "%d\t%s\t%s%s\t%s\t%s\t%s\t%.1f%%\t%.1f%%", number, sizes, bytes,
                  p->fits ? "" : " (too much)", seconds, rate, mfu, 100 * p->cost.bubble,
                  100 * exposed(&p->cost) / p->cost.step_s);
}

static void add_where(const struct hd_step_cost *p, struct hd_text *out)
{
    char text[32];

    hd_text_add(out, "where the step goes, on the busiest stage:");
    format_seconds(p->compute_s, text);
    hd_text_add(out, " kernels %s", text);
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        if (p->communication_s[g] > 0) {
            format_seconds(p->communication_s[g], text);
            hd_text_add(out, ", waits for %s %s", hd_group_text((enum hd_group_name)g), text);
        }
    format_seconds(p->update_s, text);
    hd_text_add(out, ", update %s", text);
    format_seconds(p->bubble_s, text);
    hd_text_add(out, ", bubble %s\n", text);
    if (p->rollout_s <= 0)
        return;
    format_seconds(p->step_s - p->rollout_s, text);
    hd_text_add(out, "of the step, training %s", text);
    format_seconds(p->rollout_s, text);
    hd_text_add(out, ", writing answers, if all have train.rollout.max_tokens, %s\n", text);
}

enum { MAP_RANKS_SHOWN_MAX = 128 };

/* Appends the devices of the ranks, if a node's devices differ from each other: one line per node,
 * "0  0-3  0 4, 1 5" for ranks 0 to 3 on devices 0, 4, 1, 5 of node 0, with tp 2; only the first
 * nodes. Else appends nothing. */
static void add_rank_map(const struct hd_report *l, const struct hd_search_plan *p,
                         struct hd_text *out)
{
    const int32_t per_node = (int32_t)l->cluster->devices_per_node, tp = (int32_t)p->job.tp;
    int32_t *map = hd_report_map(l, p);

    if (!map)
        return;
    hd_text_add(out, "\ndevices of ranks (the devices of a node are not alike)\nnode  ranks    "
                     "devices, by tp groups\n");
    for (int32_t first = 0, end; first < l->devices && first < MAP_RANKS_SHOWN_MAX; first = end) {
        char ranks[32];

        end = first + per_node < l->devices ? first + per_node : l->devices;
        (void)snprintf(ranks, sizeof ranks, "%d-%d", (int)first, (int)end - 1);
        hd_text_add(out, "%-4d  %-9s", (int)(first / per_node), ranks);
        for (int32_t r = first; r < end; r++)
            hd_text_add(out, "%s%d", r == first ? "" : r % tp == 0 ? ", " : " ", (int)map[r]);
        hd_text_add(out, "\n");
    }
    if (l->devices > MAP_RANKS_SHOWN_MAX)
        hd_text_add(out, "-o json has all %d ranks\n", (int)l->devices);
    free(map);
}

static void add_rejects(const struct cli *cli, const struct hd_report *l, struct hd_text *out)
{
    static const struct table_column few[] = {
        {"TP", true},    {"PP", true},      {"DP", true},        {"CP", true},
        {"EP", true},    {"MICRO", true},   {"SCHEDULE", false}, {"RECOMPUTE", false},
        {"ZERO", false}, {"WHY NOT", false}};
    struct table t;

    if (!l->search.rejected_count)
        return;
    hd_text_add(out, "\nfaster, or as fast by a lower bound, but too large; the first of them:\n");
    table_init(&t, few, sizeof few / sizeof few[0]);
    for (int i = 0; i < l->search.rejected_count; i++) {
        struct hd_text reason = {0};
        char sizes[256];

        format_sizes(&l->search.rejected[i].sizes, sizes);
        hd_report_reason(l, &l->search.rejected[i], &reason);
        table_add_row(&t, "%s\t%s", sizes, reason.failed ? "?" : reason.data);
        hd_text_free(&reason);
    }
    table_end(&t, cli->colour, 0, out);
}

/* Appends why the first layout is taken, though another is faster. */
static void add_nearly_as_fast(const struct hd_search *s, struct hd_text *out)
{
    struct hd_text why = {0};

    hd_best_explain(s, &why);
    if (why.len_bytes)
        hd_text_add(out, "1 is taken: %s\n", why.data);
    hd_text_free(&why);
}

static void add_nothing_fits(const struct hd_report_asked *asked, const struct hd_report *l,
                             struct hd_text *out)
{
    const struct hd_search_rejected *r = &l->search.least;
    const bool searched = asked->request->sizes.offload == HD_JOB_OFFLOAD_AUTO &&
                          l->cluster->host_memory_bytes > 0; /* tried, but the host lacks memory */

    hd_text_add(out,
                "no layout fits: the one that takes least is tp %lld x pp %lld x dp %lld x cp "
                "%lld with zero %lld and recompute %s%s, ",
                (long long)r->sizes.tp, (long long)r->sizes.pp, (long long)r->sizes.dp,
                (long long)r->sizes.cp, (long long)r->sizes.zero, r->sizes.recompute,
                r->sizes.offload == HD_JOB_OFFLOAD_OPTIMIZER ? ", the optimizer on the host" : "");
    hd_report_reason(l, r, out);
    hd_text_add(out, "; give more devices, or devices with more memory%s\n",
                r->sizes.offload == HD_JOB_OFFLOAD_OPTIMIZER || searched ||
                        !hd_traits_is_cuda(&l->cluster->traits)
                    ? ""
                    : ", or keep the optimizer on the host (parallel.offload: optimizer)");
}

/* Appends how long the job takes by the first layout; nothing where data decides the number of its
 * steps, or where these differ. */
static void add_run_time(const struct hd_report *l, struct hd_text *out)
{
    const struct hd_search_plan *p = &l->search.plans[0];
    char span[HD_CLOCK_TEXT_MAX];

    if (p->job.steps < 2 || hd_job_stage_count(&p->job) > 1 || *p->job.batch_schedule)
        return;
    hd_clock_format_span((int64_t)(1000 * p->cost.step_s * (double)p->job.steps), span);
    hd_text_add(out, "all %lld steps take about %s\n", (long long)p->job.steps, span);
}

void plan_layouts_people(const struct cli *cli, const struct hd_report_asked *asked,
                         const struct hd_report *l, bool explain, struct hd_text *out)
{
    const struct hd_search *s = &l->search;
    const int64_t per_node = l->cluster->devices_per_node;
    const int64_t nodes = (l->devices + per_node - 1) / per_node;
    struct table t;

    hd_text_add(out, "%d x %s on %lld node%s of %lld%s%s; %lld sequences of %lld tokens a step\n\n",
                (int)l->devices, l->cluster->device, (long long)nodes, nodes == 1 ? "" : "s",
                (long long)per_node, *l->cluster->name ? ": " : "", l->cluster->name,
                (long long)asked->spec->global_batch, (long long)asked->spec->context);
    if (s->plan_count) {
        table_init(&t, columns, COLUMNS);
        for (int i = 0; i < s->plan_count; i++)
            add_layout_row(&t, i + 1, &s->plans[i]);
        table_end(&t, cli->colour, 0, out);
        hd_text_add(out,
                    "times are %s: give or take %.0f%%; WAITS: for communication that nothing "
                    "overlaps\n",
                    l->cluster->rates.measured
                        ? "by measured rates"
                        : "by data sheets and what training reaches of them, not measured",
                    100 * l->cluster->rates.error_band);
        add_run_time(l, out);
        add_nearly_as_fast(s, out);
    } else {
        add_nothing_fits(asked, l, out);
    }
    if (explain) {
        if (s->plan_count) {
            add_where(&s->plans[0].cost, out);
            add_rank_map(l, &s->plans[0], out);
        }
        add_rejects(cli, l, out);
        hd_text_add(out,
                    "\nsearched: %lld families of layouts, %lld of them compiled; %lld schedules "
                    "walked; %lld layouts priced, %lld laid out to the byte\n",
                    (long long)s->families, (long long)s->blocks, (long long)s->walked,
                    (long long)s->costed, (long long)s->laid_out);
    }
    hd_report_note_other_kernels(l, out);
    if (!hd_report_has_kernels(&l->cluster->traits))
        hd_text_add(
            out, "note: plans only: the kernels need compute capability %d.%d, and %s has %d.%d\n",
            HD_REPORT_CAPABILITY_MIN / 10, HD_REPORT_CAPABILITY_MIN % 10, l->cluster->device,
            l->cluster->traits.capability / 10, l->cluster->traits.capability % 10);
    else if (s->plan_count && !hd_report_keeps_tp(l, &s->plans[0]))
        hd_text_add(
            out,
            "note: it cannot run: the ranks of a tp group are on one node, and parallel.tp = "
            "%lld does not divide the %lld devices of one\n",
            (long long)s->plans[0].job.tp, (long long)per_node);
    /* otherwise the chosen plan's lines say so */
    else if (!hd_report_runs(l, NULL) && !s->plan_count)
        hd_text_add(out, "note: it cannot run yet: the engine nccl connects at most %d ranks\n",
                    hd_plan_ranks_max(HD_JOB_DEVICE_CUDA, NULL));
}

void plan_layouts_time(const struct hd_report *l, struct hd_text *out)
{
    const struct hd_step_cost *p = &l->search.plans[0].cost;
    char seconds[32], rate[32], answers[80] = "";

    if (p->step_s <= 0)
        return;
    format_seconds(p->rollout_s, seconds);
    if (p->rollout_s > 0)
        (void)snprintf(answers, sizeof answers, " (%s of it for answers of the most tokens)",
                       seconds);
    format_seconds(p->step_s, seconds);
    cli_format_count(p->tokens_per_s, rate);
    hd_text_add(out, "a step takes about %s%s, %s tokens/s, by %s: give or take %.0f%%\n", seconds,
                answers, rate,
                l->cluster->rates.calibration ? "the calibration"
                                              : "this processor's peaks, measured just now",
                100 * l->cluster->rates.error_band);
    add_run_time(l, out);
}

/* ---- spans of data.stages ---- */

static const struct table_column span_columns[] = {
    {"STAGES", false}, {"STEPS", false}, {"CONTEXT", true}, {"BATCH", true}, {"MICRO", true},
    {"THETA", true},   {"MEMORY", true}, {"BYTES", true},   {"STEP", true},  {"TOK/S", true}};

/* Lays out and prices the chosen layout with the sizes of one span alone. */
static enum hd_status cost_span(const struct hd_report *l, int64_t threads,
                                const struct hd_job *now, struct hd_arena *arena,
                                struct hd_search_plan *ret_plan)
{
    struct hd_job *alone = hd_arena_alloc(arena, sizeof *alone);
    const struct hd_search_asked asked = {.spec = alone,
                                          .cluster = l->cluster,
                                          .devices = l->devices,
                                          .threads = threads,
                                          .bf16_fast = l->cluster->traits.bf16_fast,
                                          .memory_bytes = l->memory_bytes,
                                          .top = 1};

    if (!alone)
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    *alone = *now;
    alone->data_stages = "";
    *ret_plan = (struct hd_search_plan){.fits = true};
    return l->cluster->rates.half_flops > 0
               ? hd_search_cost(&asked, &alone->layout, arena, ret_plan)
               : hd_plan_build(alone, &l->cluster->traits, arena, &ret_plan->plan);
}

static void add_span_row(struct table *t, const struct hd_data_span *span, const struct hd_job *now,
                         const struct hd_search_plan *p)
{
    int64_t most = 0;
    char to[32] = "", bytes[32], seconds[32] = "?", rate[32] = "?";

    for (int32_t i = 0; i < p->plan.class_count; i++) {
        const int64_t total = hd_memory_total(&p->plan.classes[i].memory);

        most = total > most ? total : most;
    }
    hd_text_format_bytes(most, bytes);
    if (span->first != span->last)
        (void)snprintf(to, sizeof to, " to %lld", (long long)span->last + 1);
    if (p->cost.step_s > 0) {
        format_seconds(p->cost.step_s, seconds);
        cli_format_count(p->cost.tokens_per_s, rate);
    }
    table_add_row(t, "%lld%s\t%lld to %lld\t%lld\t%lld\t%lld\t%g\t%s\t%lld\t%s\t%s",
                  (long long)span->first + 1, to, (long long)span->begin + 1, (long long)span->end,
                  (long long)now->context, (long long)now->global_batch,
                  (long long)now->micro_batch, now->rope_theta, bytes, (long long)most, seconds,
                  rate);
}

void plan_layouts_spans(const struct hd_report *l, int64_t threads, struct hd_text *out)
{
    const struct hd_job *job = &l->search.plans[0].job;
    struct hd_data_span span = {.end = 0};
    enum hd_status st = HD_OK;
    struct table table;

    if (!hd_job_has_spans(job))
        return;
    table_init(&table, span_columns, sizeof span_columns / sizeof span_columns[0]);
    while (!st && span.end < job->steps) {
        struct hd_search_plan p;
        struct hd_arena arena;
        struct hd_job now;

        hd_arena_init(&arena, 0);
        st = hd_job_at_step(job, span.end + 1, &now, &span);
        if (!st)
            st = cost_span(l, threads, &now, &arena, &p);
        if (!st)
            add_span_row(&table, &span, &now, &p);
        hd_arena_done(&arena);
    }
    hd_text_add(out, "\ndata.stages, memory of the fullest rank and time of a step in each; a rank "
                     "reserves what the largest needs:\n");
    table_end(&table, false, 0, out);
    if (st)
        hd_text_add(out, "%s\n", hd_err_message());
}
