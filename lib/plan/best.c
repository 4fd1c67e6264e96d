#include "plan/best.h"

#include <string.h>

/* ---- choice by memory ---- */

static enum hd_status by_memory(const struct hd_fit_asked *asked, struct hd_best *best,
                                struct hd_text *why)
{
    struct hd_fit fit;
    const enum hd_status st = hd_fit_choose(asked, &fit);

    if (st)
        return st;
    hd_fit_explain(asked, &fit, why);
    *best =
        (struct hd_best){.sizes = fit.sizes, .fits = fit.fits, .needed_bytes = fit.needed_bytes};
    return HD_OK;
}

/* ---- choice by time ---- */

static void add_axis(const char *name, int64_t ranks, struct hd_text *text)
{
    if (ranks > 1)
        hd_text_add(text, ", %s %lld", name, (long long)ranks);
}

/* Appends "micro-batch 2, tp 2, pp 4 (1f1b), dp 8, zero 1": the members that differ from the layout
 * of a single device. */
static void describe_layout(const struct hd_layout_sizes *s, struct hd_text *text)
{
    hd_text_add(text, "micro-batch %lld", (long long)s->micro_batch);
    add_axis("tp", s->tp, text);
    add_axis("pp", s->pp, text);
    if (s->pp > 1)
        hd_text_add(text, " (%s)", s->schedule);
    add_axis("cp", s->cp, text);
    add_axis("ep", s->ep, text);
    add_axis("dp", s->dp, text);
    if (s->zero > 0)
        hd_text_add(text, ", zero %lld", (long long)s->zero);
    if (strcmp(s->recompute, "none") != 0)
        hd_text_add(text, ", recompute %s", s->recompute);
}

void hd_best_explain(const struct hd_search *search, struct hd_text *text)
{
    const double step_s = search->plan_count ? search->plans[0].cost.step_s : 0;

    if (!(step_s > search->fastest_s) || !(search->fastest_s > 0))
        return;
    describe_layout(&search->fastest, text);
    hd_text_add(
        text,
        " would take %.1f%% less, within the %.0f%% that predictions do not tell apart; this "
        "layout does without %s",
        100 * (1 - search->fastest_s / step_s), 100 * HD_SEARCH_NEAR,
        hd_search_axis_spared(&search->fastest, &search->plans[0].job.layout));
}

static void add_chosen(const struct hd_best_asked *asked, const struct hd_best *best,
                       struct hd_text *why)
{
    char needs[32], has[32];

    hd_text_format_bytes(best->needed_bytes, needs);
    hd_text_format_bytes(asked->fit.memory_bytes, has);
    describe_layout(&best->sizes, why);
    hd_text_add(why, ": predicted %.3g s a step, %s of a device's %s", best->step_s, needs, has);
}

static void add_infeasible(const struct hd_best_asked *asked,
                           const struct hd_search_rejected *least, struct hd_text *why)
{
    char needs[32], has[32];

    hd_text_format_bytes(least->needed_bytes, needs);
    hd_text_format_bytes(asked->fit.memory_bytes, has);
    hd_text_add(why, "no layout fits %d device%s: the one that takes least (", asked->fit.devices,
                asked->fit.devices == 1 ? "" : "s");
    describe_layout(&least->sizes, why);
    hd_text_add(why, ") needs %s of a device's %s", needs, has);
    if (least->activations > 0)
        hd_text_add(why, " on stage %d, %.0f%% of it activations", (int)least->stage,
                    100 * least->activations);
    hd_text_add(why,
                "; give more devices (resources.devices) or devices with more memory, or leave "
                "more members of parallel auto");
}

static enum hd_status by_time(const struct hd_best_asked *asked, struct hd_best *best,
                              struct hd_text *why)
{
    const struct hd_fit_asked *fit = &asked->fit;
    const struct hd_search_asked question = {.spec = fit->spec,
                                             .request = fit->request,
                                             .cluster = asked->cluster,
                                             .devices = fit->devices,
                                             .threads = fit->threads,
                                             .bf16_fast = fit->bf16_fast,
                                             .memory_bytes = fit->memory_bytes,
                                             .peak_flops = asked->peak_flops,
                                             .top = 1,
                                             .deadline_ns = asked->deadline_ns};
    struct hd_search search;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_search_layouts(&question, &arena, &search);
    if (!st && search.plan_count) {
        const struct hd_search_plan *first = &search.plans[0];

        *best = (struct hd_best){.sizes = first->job.layout,
                                 .fits = first->fits,
                                 .step_s = first->cost.step_s,
                                 .needed_bytes = first->needed_bytes,
                                 .hasty = search.is_cut};
    } else if (!st) {
        *best = (struct hd_best){
            .sizes = search.least.sizes, .step_s = 0, .needed_bytes = search.least.needed_bytes};
    }
    if (!st && best->fits) {
        struct hd_text simpler = {0};

        add_chosen(asked, best, why);
        hd_best_explain(&search, &simpler);
        if (simpler.len_bytes)
            hd_text_add(why, "; %s", simpler.data);
        hd_text_free(&simpler);
    }
    /* the job pins every member of the layout, so the search could not choose */
    if (!st && !best->fits && search.plan_count)
        add_infeasible(
            asked,
            &(struct hd_search_rejected){.sizes = best->sizes, .needed_bytes = best->needed_bytes},
            why);
    if (!st && !best->fits && !search.plan_count)
        add_infeasible(asked, &search.least, why);
    hd_arena_done(&arena);
    return st;
}

enum hd_status hd_best_choose(const struct hd_best_asked *asked, struct hd_best *ret_best,
                              struct hd_text *ret_why)
{
    enum hd_status st = HD_TIMEOUT;

    if (asked->cluster)
        st = by_time(asked, ret_best, ret_why);
    if (st != HD_TIMEOUT)
        return st;
    if (asked->cluster)
        hd_text_add(ret_why, "the search for the fastest layout took too long, so it is chosen by "
                             "memory; write some members of parallel down to make it shorter; ");
    st = by_memory(&asked->fit, ret_best, ret_why);
    if (!st)
        ret_best->hasty = asked->cluster != NULL;
    return st;
}
