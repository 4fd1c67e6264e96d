#include "controller/cli/plan_layouts.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"
#include "plan/identity.h"
#include "spec/spec.h"

enum { PLAN_FILE_BYTES_MAX = 64 << 20, PLAN_VALUES_MAX = 4 << 20 };
enum { CAPABILITY_MIN = 80 }; /* of GPUs that the kernels are built for */

/* ---- the search ---- */

/* The largest number of devices that the job may have and the group has, with a legal layout. */
static int32_t devices_of(const struct hd_job *spec, const struct hd_plan_request *request,
                          const struct hd_cluster *c)
{
    const int64_t has = hd_cluster_devices(c);
    const int64_t most = spec->devices_max < has ? spec->devices_max : has;

    return hd_plan_most(request, (int32_t)spec->devices_min, (int32_t)most);
}

static enum hd_status search_group(const struct plan_layouts_asked *asked,
                                   const struct hd_cluster *cluster, struct hd_arena *arena,
                                   struct plan_layouts *l)
{
    const struct hd_gpu_kind *kind = hd_gpu_kind_find(cluster->device);
    const bool cuda = hd_traits_is_cuda(&cluster->traits);
    const char *precision = asked->spec->precision;
    struct hd_plan_request request;
    struct hd_search_asked question = {.spec = asked->spec,
                                       .request = &request,
                                       .cluster = cluster,
                                       .threads = asked->threads > 0 ? asked->threads : 1,
                                       .bf16_fast = cluster->traits.bf16_fast,
                                       .memory_bytes = asked->memory_bytes,
                                       .top = asked->top};

    hd_spec_plan_request(asked->spec, &request);
    (void)snprintf(request.sizes.device, sizeof request.sizes.device, "%s", cuda ? "cuda" : "cpu");
    request.only_planned = true;
    if (cuda && (!question.memory_bytes || question.memory_bytes > cluster->traits.memory_bytes))
        question.memory_bytes = cluster->traits.memory_bytes;
    if (kind)
        question.peak_flops = hd_gpu_kind_rate(kind,
                                               strcmp(precision, "fp32") == 0  ? HD_F32
                                               : strcmp(precision, "fp8") == 0 ? HD_U8
                                                                               : HD_BF16,
                                               asked->spec->tf32);
    question.devices = devices_of(asked->spec, &request, cluster);
    *l = (struct plan_layouts){
        .cluster = cluster, .devices = question.devices, .memory_bytes = question.memory_bytes};
    if (!question.devices)
        return hd_plan_check(&request, (int32_t)asked->spec->devices_min,
                             (int32_t)asked->spec->devices_max);
    return hd_search_layouts(&question, arena, &l->search);
}

static bool is_better(const struct plan_layouts *a, const struct plan_layouts *b)
{
    if (!a->search.plan_count || !b->search.plan_count)
        return a->search.plan_count > b->search.plan_count;
    return a->search.plans[0].price.step_s < b->search.plans[0].price.step_s;
}

enum hd_status plan_layouts_find(const struct plan_layouts_asked *asked, struct hd_arena *arena,
                                 struct plan_layouts *ret_layouts)
{
    int64_t most = 0;
    enum hd_status st = HD_OK;
    bool any = false;

    for (int i = 0; !st && i < asked->cluster_count; i++) {
        const struct hd_cluster *c = &asked->clusters[i];
        struct plan_layouts l;

        most = hd_cluster_devices(c) > most ? hd_cluster_devices(c) : most;
        if (hd_cluster_devices(c) < asked->spec->devices_min)
            continue;
        st = search_group(asked, c, arena, &l);
        if (!st && (!any || is_better(&l, ret_layouts)))
            *ret_layouts = l;
        any = true;
    }
    if (!any)
        return hd_err(HD_INVALID,
                      "resources.devices: %lld, but the largest group of equal devices in %s has "
                      "%lld; ask for fewer, or describe more",
                      (long long)asked->spec->devices_min,
                      asked->cluster_file ? asked->cluster_file : "--devices", (long long)most);
    return st;
}

/* What a plan depends on besides the job: keys of a job, and kernels. */
static void format_build(char ret_build[32])
{
    (void)snprintf(ret_build, 32, "%d-%016llx", (int)HD_JOB_VERSION,
                   (unsigned long long)hd_kernel_list_hash());
}

/* ---- JSON ---- */

static void add_stages(struct hd_json_writer *w, const struct hd_plan *p)
{
    hd_json_begin(w, "stages", '[');
    for (int32_t c = 0; c < p->pipeline.chunks; c++)
        hd_json_add_int64(w, NULL, p->chunks[c].layers);
    hd_json_end(w, ']');
}

/* plan: NULL where it was not laid out. */
static void add_layout(struct hd_json_writer *w, const struct hd_layout_sizes *s,
                       const struct hd_plan *plan)
{
    hd_json_begin(w, "layout", '{');
    hd_json_add_int64(w, "tp", s->tp);
    hd_json_add_int64(w, "pp", s->pp);
    hd_json_add_int64(w, "dp", s->dp);
    hd_json_add_int64(w, "cp", s->cp);
    hd_json_add_int64(w, "ep", s->ep);
    hd_json_add_int64(w, "micro_batch", s->micro_batch);
    hd_json_add_string(w, "schedule", s->schedule);
    hd_json_add_int64(w, "virtual_stages", s->virtual_stages);
    hd_json_add_string(w, "recompute", s->recompute);
    hd_json_add_int64(w, "zero", s->zero);
    hd_json_add_int64(w, "zero_shard", s->zero_shard ? s->zero_shard : s->zero ? s->dp * s->cp : 1);
    hd_json_add_string(w, "offload", s->offload);
    hd_json_add_bool(w, "sequence", s->sequence);
    hd_json_add_string(w, "precision", s->precision);
    if (plan)
        add_stages(w, plan);
    hd_json_end(w, '}');
}

static const struct hd_plan_class *largest_of(const struct hd_plan *p, int32_t stage)
{
    const struct hd_plan_class *most = NULL;

    for (int32_t i = 0; i < p->class_count; i++)
        if (p->classes[i].stage == stage &&
            (!most || p->classes[i].device_bytes > most->device_bytes ||
             hd_memory_total(&p->classes[i].memory) > hd_memory_total(&most->memory)))
            most = &p->classes[i];
    return most;
}

static int64_t needed_by(const struct hd_plan_class *c)
{
    return c->device_bytes ? c->device_bytes : hd_memory_total(&c->memory);
}

/* Of the rank of each stage that takes most. `beside`: of the process, and rounding to pages. */
static void add_memory(struct hd_json_writer *w, const struct hd_plan *p)
{
    hd_json_begin(w, "memory_bytes", '[');
    for (int32_t stage = 0; stage < p->pipeline.stages; stage++) {
        const struct hd_plan_class *c = largest_of(p, stage);
        const struct hd_memory *m = &c->memory;
        const int64_t host = c->device_bytes ? m->host_bytes : 0;

        hd_json_begin(w, NULL, '{');
        hd_json_add_int64(w, "stage", stage);
        hd_json_add_int64(w, "weights", m->weights + m->copies);
        hd_json_add_int64(w, "gradients", m->gradients);
        hd_json_add_int64(w, "optimizer", m->moments + m->step_state);
        hd_json_add_int64(w, "activations", m->kept + m->deferred + m->boundary);
        hd_json_add_int64(w, "scratch", m->work + m->constants);
        hd_json_add_int64(w, "host", host);
        hd_json_add_int64(w, "beside",
                          needed_by(c) -
                              (m->weights + m->copies + m->gradients + m->moments + m->step_state +
                               m->kept + m->deferred + m->boundary + m->work + m->constants));
        hd_json_add_int64(w, "total", needed_by(c));
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void add_time(struct hd_json_writer *w, const struct hd_price *p)
{
    hd_json_begin(w, "time_s", '{');
    hd_json_add_real(w, "compute", p->compute_s);
    hd_json_add_real(w, "bubble", p->bubble_s);
    hd_json_begin(w, "communication", '{');
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        if (p->communication_s[g] > 0)
            hd_json_add_real(w, hd_group_name((enum hd_group_name)g), p->communication_s[g]);
    hd_json_end(w, '}');
    hd_json_add_real(w, "update", p->update_s);
    hd_json_end(w, '}');
}

/* The kernels are built for such GPUs. */
static bool has_kernels(const struct hd_traits *traits)
{
    return !hd_traits_is_cuda(traits) || traits->capability >= CAPABILITY_MIN;
}

/* An engine connects so many ranks, of devices that the kernels are built for. */
static bool runs_here(const struct plan_layouts *l)
{
    const struct hd_traits *t = &l->cluster->traits;

    return has_kernels(t) &&
           l->devices <= hd_plan_ranks_max(hd_traits_is_cuda(t) ? "cuda" : "cpu", NULL);
}

static void add_plan(struct hd_json_writer *w, const char *key, const struct plan_layouts *l,
                     const struct hd_search_plan *p, bool with_ranks)
{
    const bool priced = p->price.step_s > 0;

    hd_json_begin(w, key, '{');
    add_layout(w, &p->job.layout, &p->plan);
    show_known(w, "step_time_s", priced, p->price.step_s);
    show_known(w, "tokens_per_s", priced, p->price.tokens_per_s);
    show_known(w, "mfu", p->price.mfu > 0, p->price.mfu);
    show_known(w, "bubble_fraction", priced, p->price.bubble);
    show_known(w, "error_band", priced, l->cluster->rates.error_band);
    hd_json_add_bool(w, "fits", p->fits);
    hd_json_add_bool(w, "runnable", runs_here(l));
    add_memory(w, &p->plan);
    add_time(w, &p->price);
    if (with_ranks)
        plan_ranks_json(l, p, w);
    hd_json_end(w, '}');
}

/* "stage 0 needs at least 151 GiB of 139 GiB, 58% of it activations" */
static void add_reason(const struct plan_layouts *l, const struct hd_search_rejected *r,
                       struct hd_text *out)
{
    char needed[32], has[32], over[32];

    hd_text_format_bytes(r->needed_bytes, needed);
    hd_text_format_bytes(l->memory_bytes, has);
    hd_text_format_bytes(r->needed_bytes - l->memory_bytes, over);
    hd_text_add(out, "over memory by %s on stage %d: needs at least %s of %s, %.0f%% activations",
                over, (int)r->stage, needed, has, 100 * r->activations);
}

static void add_rejected(struct hd_json_writer *w, const char *key, const struct plan_layouts *l,
                         const struct hd_search_rejected *r)
{
    struct hd_text reason = {0};

    add_reason(l, r, &reason);
    hd_json_begin(w, key, '{');
    add_layout(w, &r->sizes, NULL);
    hd_json_add_string(w, "reason", reason.failed ? "over memory" : reason.data);
    hd_json_add_int64(w, "needed_bytes", r->needed_bytes);
    hd_json_end(w, '}');
    hd_text_free(&reason);
}

static void add_inputs(struct hd_json_writer *w, const struct plan_layouts_asked *asked,
                       const struct plan_layouts *l)
{
    struct hd_text identity = {0};
    char build[32];

    format_build(build);
    hd_json_begin(w, "inputs", '{');
    hd_json_add_string(w, "job", asked->spec->name);
    if (!hd_plan_identity(asked->spec, &identity))
        hd_json_add_string(w, "job_text", identity.data);
    hd_text_free(&identity);
    hd_json_add_string(w, "build", build);
    if (asked->cluster_file)
        hd_json_add_string(w, "cluster", asked->cluster_file);
    else
        hd_json_add_null(w, "cluster");
    hd_json_add_string(w, "group", l->cluster->name);
    hd_json_add_string(w, "device", l->cluster->device);
    hd_json_add_int64(w, "devices", l->devices);
    hd_json_add_int64(w, "devices_per_node", l->cluster->devices_per_node);
    hd_json_add_int64(w, "device_memory_bytes", l->memory_bytes);
    hd_json_add_bool(w, "rates_measured", l->cluster->rates.measured);
    hd_json_begin(w, "searched", '{');
    hd_json_add_int64(w, "families", l->search.families);
    hd_json_add_int64(w, "blocks", l->search.blocks);
    hd_json_add_int64(w, "walked", l->search.walked);
    hd_json_add_int64(w, "priced", l->search.priced);
    hd_json_add_int64(w, "laid_out", l->search.laid_out);
    hd_json_end(w, '}');
    hd_json_end(w, '}');
}

void plan_layouts_json(const struct plan_layouts_asked *asked, const struct plan_layouts *l,
                       struct hd_text *out)
{
    const struct hd_search *s = &l->search;
    struct hd_json_writer w = {.out = out};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "api_version", "heddle/v1");
    hd_json_add_string(&w, "kind", "Plan");
    add_inputs(&w, asked, l);
    if (s->plan_count)
        add_plan(&w, "chosen", l, &s->plans[0], true);
    else
        hd_json_add_null(&w, "chosen");
    hd_json_begin(&w, "alternatives", '[');
    for (int i = 1; i < s->plan_count; i++)
        add_plan(&w, NULL, l, &s->plans[i], false);
    hd_json_end(&w, ']');
    hd_json_begin(&w, "rejected", '[');
    for (int i = 0; i < s->rejected_count; i++)
        add_rejected(&w, NULL, l, &s->rejected[i]);
    hd_json_end(&w, ']');
    if (!s->plan_count && s->least.needed_bytes)
        add_rejected(&w, "least", l, &s->least);
    hd_json_end(&w, '}');
    hd_text_add(out, "\n");
}

/* ---- for people ---- */

static const struct table_column columns[] = {
    {"#", true},          {"TP", true},    {"PP", true},     {"DP", true},
    {"CP", true},         {"EP", true},    {"MICRO", true},  {"SCHEDULE", false},
    {"RECOMPUTE", false}, {"ZERO", false}, {"MEMORY", true}, {"STEP", true},
    {"TOK/S", true},      {"MFU", true},   {"BUBBLE", true}, {"WAITS", true}};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

static void add_sizes(struct table *t, const struct hd_layout_sizes *s)
{
    table_add(t, NULL, "%lld", (long long)s->tp);
    table_add(t, NULL, "%lld", (long long)s->pp);
    table_add(t, NULL, "%lld", (long long)s->dp);
    table_add(t, NULL, "%lld", (long long)s->cp);
    table_add(t, NULL, "%lld", (long long)s->ep);
    table_add(t, NULL, "%lld", (long long)s->micro_batch);
    if (s->virtual_stages > 1 && strcmp(s->schedule, "interleaved") == 0)
        table_add(t, NULL, "%s x%lld", s->schedule, (long long)s->virtual_stages);
    else
        table_add(t, NULL, "%s", s->schedule);
    table_add(t, NULL, "%s", s->recompute);
    if (s->zero_shard)
        table_add(t, NULL, "%lld of %lld", (long long)s->zero, (long long)s->zero_shard);
    else
        table_add(t, NULL, "%lld", (long long)s->zero);
}

static void format_seconds(double s, char text[32])
{
    if (s >= 1)
        (void)snprintf(text, 32, "%.3g s", s);
    else
        (void)snprintf(text, 32, "%.3g ms", 1e3 * s);
}

/* Time that nothing overlaps with. */
static double exposed(const struct hd_price *p)
{
    double s = 0;

    for (int g = 0; g < HD_GROUP_COUNT; g++)
        s += p->communication_s[g];
    return s;
}

static void add_row(struct table *t, int number, const struct hd_search_plan *p)
{
    char bytes[32], seconds[32], rate[32];

    hd_text_format_bytes(p->needed_bytes, bytes);
    format_seconds(p->price.step_s, seconds);
    cli_format_count(p->price.tokens_per_s, rate);
    table_begin_row(t);
    table_add(t, NULL, "%d", number);
    add_sizes(t, &p->job.layout);
    table_add(t, NULL, "%s%s", bytes, p->fits ? "" : " (too much)");
    table_add(t, NULL, "%s", seconds);
    table_add(t, NULL, "%s", rate);
    if (p->price.mfu > 0)
        table_add(t, NULL, "%.1f%%", 100 * p->price.mfu);
    else
        table_add(t, NULL, "-");
    table_add(t, NULL, "%.1f%%", 100 * p->price.bubble);
    table_add(t, NULL, "%.1f%%", 100 * exposed(&p->price) / p->price.step_s);
}

static void add_where(const struct hd_price *p, struct hd_text *out)
{
    char text[32];

    hd_text_add(out, "where the step goes, on the busiest stage:");
    format_seconds(p->compute_s, text);
    hd_text_add(out, " kernels %s", text);
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        if (p->communication_s[g] > 0) {
            format_seconds(p->communication_s[g], text);
            hd_text_add(out, ", waits for %s %s", hd_group_name((enum hd_group_name)g), text);
        }
    format_seconds(p->update_s, text);
    hd_text_add(out, ", update %s", text);
    format_seconds(p->bubble_s, text);
    hd_text_add(out, ", bubble %s\n", text);
}

static void add_rejects(const struct cli *cli, const struct plan_layouts *l, struct hd_text *out)
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

        table_begin_row(&t);
        add_sizes(&t, &l->search.rejected[i].sizes);
        add_reason(l, &l->search.rejected[i], &reason);
        table_add(&t, NULL, "%s", reason.failed ? "?" : reason.data);
        hd_text_free(&reason);
    }
    table_render(&t, cli->colour, 0, out);
    table_done(&t);
}

static void add_nothing_fits(const struct plan_layouts *l, struct hd_text *out)
{
    const struct hd_search_rejected *r = &l->search.least;

    hd_text_add(out,
                "no layout fits: the one that takes least is tp %lld x pp %lld x dp %lld x cp "
                "%lld with zero %lld and recompute %s%s, ",
                (long long)r->sizes.tp, (long long)r->sizes.pp, (long long)r->sizes.dp,
                (long long)r->sizes.cp, (long long)r->sizes.zero, r->sizes.recompute,
                strcmp(r->sizes.offload, "optimizer") == 0 ? ", the optimizer on the host" : "");
    add_reason(l, r, out);
    hd_text_add(out, "; give more devices, or devices with more memory%s\n",
                strcmp(r->sizes.offload, "optimizer") == 0 ||
                        !hd_traits_is_cuda(&l->cluster->traits)
                    ? ""
                    : ", or keep the optimizer on the host (parallel.offload: optimizer)");
}

void plan_layouts_people(const struct cli *cli, const struct plan_layouts_asked *asked,
                         const struct plan_layouts *l, bool explain, struct hd_text *out)
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
            add_row(&t, i + 1, &s->plans[i]);
        table_render(&t, cli->colour, 0, out);
        table_done(&t);
        hd_text_add(out,
                    "times are %s: give or take %.0f%%; WAITS: for communication that nothing "
                    "overlaps\n",
                    l->cluster->rates.measured
                        ? "by measured rates"
                        : "by data sheets and assumed shares of their peaks, not measured",
                    100 * l->cluster->rates.error_band);
    } else {
        add_nothing_fits(l, out);
    }
    if (explain) {
        if (s->plan_count) {
            add_where(&s->plans[0].price, out);
            plan_ranks_people(l, &s->plans[0], out);
        }
        add_rejects(cli, l, out);
        hd_text_add(out,
                    "\nsearched: %lld families of layouts, %lld of them compiled; %lld schedules "
                    "walked; %lld layouts priced, %lld laid out to the byte\n",
                    (long long)s->families, (long long)s->blocks, (long long)s->walked,
                    (long long)s->priced, (long long)s->laid_out);
    }
    if (!has_kernels(&l->cluster->traits))
        hd_text_add(
            out, "note: plans only: the kernels need compute capability %d.%d, and %s has %d.%d\n",
            CAPABILITY_MIN / 10, CAPABILITY_MIN % 10, l->cluster->device,
            l->cluster->traits.capability / 10, l->cluster->traits.capability % 10);
    else if (!runs_here(l) && !s->plan_count) /* else the chosen plan says so */
        hd_text_add(out, "note: it cannot run yet: the engine nccl connects at most %d ranks\n",
                    hd_plan_ranks_max("cuda", NULL));
}

void plan_layouts_time(const struct plan_layouts *l, struct hd_text *out)
{
    const struct hd_price *p = &l->search.plans[0].price;
    char seconds[32], rate[32];

    if (p->step_s <= 0)
        return;
    format_seconds(p->step_s, seconds);
    cli_format_count(p->tokens_per_s, rate);
    hd_text_add(out, "a step takes about %s, %s tokens/s, by %s: give or take %.0f%%\n", seconds,
                rate,
                l->cluster->rates.calibration ? "the calibration"
                                              : "this processor's peaks, measured just now",
                100 * l->cluster->rates.error_band);
}

/* ---- plan files ---- */

static enum hd_status add_override(struct hd_arena *arena, struct cli_list *overrides,
                                   const char *key, const char *value)
{
    const size_t size = strlen(key) + strlen(value) + 2;
    char *text = hd_arena_alloc(arena, size);

    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    if (overrides->count == sizeof overrides->items / sizeof overrides->items[0])
        return hd_err(HD_INVALID, "too many --set beside --plan; leave some out");
    (void)snprintf(text, size, "%s=%s", key, value);
    overrides->items[overrides->count++] = text;
    return HD_OK;
}

/* A number, word or truth of the layout, as an override of parallel.NAME. */
static enum hd_status take_member(const struct hd_json *layout, const char *name, const char *key,
                                  struct hd_arena *arena, struct cli_list *overrides)
{
    const struct hd_json *m = hd_json_member(layout, name);
    const char *value = !m                                                       ? NULL
                        : m->kind == HD_JSON_TRUE                                ? "true"
                        : m->kind == HD_JSON_FALSE                               ? "false"
                        : m->kind == HD_JSON_NUMBER || m->kind == HD_JSON_STRING ? m->text
                                                                                 : NULL;
    if (!value || strpbrk(value, "=\n{}[]"))
        return hd_err(HD_INVALID, "chosen.layout.%s is missing, or no value", name);
    return add_override(arena, overrides, key, value);
}

/* [10, 10, 9] as parallel.stages. */
static enum hd_status take_stages(const struct hd_json *layout, struct hd_arena *arena,
                                  struct cli_list *overrides)
{
    const struct hd_json *stages;
    struct hd_text text = {0};
    enum hd_status st = hd_json_need(layout, "stages", HD_JSON_ARRAY, &stages);

    if (st || stages->count < 2)
        return st;
    hd_text_add(&text, "[");
    for (const struct hd_json *n = stages->first; !st && n; n = n->next) {
        int64_t layers;

        st = hd_json_to_int64(n, 0, 1 << 20, &layers);
        hd_text_add(&text, "%s%lld", n == stages->first ? "" : ",", st ? 0LL : (long long)layers);
    }
    hd_text_add(&text, "]");
    if (!st)
        st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a plan")
                         : add_override(arena, overrides, "parallel.stages", text.data);
    hd_text_free(&text);
    return st;
}

static enum hd_status take_layout(const struct hd_json *root, struct hd_arena *arena,
                                  struct cli_list *overrides)
{
    static const char *const members[][2] = {{"tp", "parallel.tp"},
                                             {"pp", "parallel.pp"},
                                             {"dp", "parallel.dp"},
                                             {"cp", "parallel.cp"},
                                             {"ep", "parallel.ep"},
                                             {"micro_batch", "parallel.micro_batch"},
                                             {"recompute", "parallel.recompute"},
                                             {"zero", "parallel.zero"},
                                             {"offload", "parallel.offload"},
                                             {"sequence", "parallel.sequence"},
                                             {"precision", "train.precision"}};
    static const char *const of_stages[][2] = {{"schedule", "parallel.schedule"},
                                               {"virtual_stages", "parallel.virtual_stages"}};
    const struct hd_json *inputs, *chosen, *layout = NULL;
    int64_t pp = 1, zero = 0, devices = 1;
    char text[32];
    enum hd_status st = hd_json_need(root, "chosen", HD_JSON_OBJECT, &chosen);

    if (st)
        return hd_err(HD_INVALID, "nothing was chosen in it; plan again");
    st = hd_json_need(chosen, "layout", HD_JSON_OBJECT, &layout);
    if (!st)
        st = hd_json_need(root, "inputs", HD_JSON_OBJECT, &inputs);
    if (!st)
        st = hd_json_need_int64(inputs, "devices", 1, HD_PLAN_DEVICES_MAX, &devices);
    if (!st)
        st = hd_json_need_int64(layout, "pp", 1, HD_PLAN_DEVICES_MAX, &pp);
    if (!st)
        st = hd_json_need_int64(layout, "zero", 0, 3, &zero);
    for (size_t i = 0; !st && i < sizeof members / sizeof members[0]; i++)
        st = take_member(layout, members[i][0], members[i][1], arena, overrides);
    for (size_t i = 0; !st && pp > 1 && i < 2; i++)
        st = take_member(layout, of_stages[i][0], of_stages[i][1], arena, overrides);
    if (!st && pp > 1)
        st = take_stages(layout, arena, overrides);
    if (!st && zero > 0)
        st = take_member(layout, "zero_shard", "parallel.zero_shard", arena, overrides);
    (void)snprintf(text, sizeof text, "%lld", (long long)devices);
    if (!st)
        st = add_override(arena, overrides, "resources.devices", text);
    return st;
}

static enum hd_status check_build(const struct hd_json *root, const char **ret_job)
{
    const struct hd_json *inputs;
    const char *kind, *build;
    char own[32];
    enum hd_status st = hd_json_need_string(root, "kind", &kind);

    if (!st && strcmp(kind, "Plan") != 0)
        st = hd_err(HD_INVALID, "it is a '%.40s', not a Plan", kind);
    if (!st)
        st = hd_json_need(root, "inputs", HD_JSON_OBJECT, &inputs);
    if (!st)
        st = hd_json_need_string(inputs, "job_text", ret_job);
    if (!st)
        st = hd_json_need_string(inputs, "build", &build);
    if (st)
        return st;
    format_build(own);
    if (strcmp(own, build) != 0)
        return hd_err(HD_INVALID,
                      "another build made it (%.40s, this is %s), which may plan other "
                      "memory; plan again",
                      build, own);
    return HD_OK;
}

enum hd_status plan_layouts_read(const char *path, struct hd_arena *arena,
                                 struct cli_list *overrides, const char **ret_job)
{
    const struct hd_json_limits limits = {PLAN_VALUES_MAX, 16};
    const struct hd_json *root = NULL;
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, PLAN_FILE_BYTES_MAX, &text);

    if (!st)
        st = hd_json_parse(arena, text.data ? text.data : "", text.len_bytes, &limits, &root);
    if (!st)
        st = check_build(root, ret_job);
    if (!st)
        st = take_layout(root, arena, overrides);
    hd_text_free(&text);
    if (st && st != HD_NO_MEMORY && st != HD_NOT_FOUND && st != HD_IO)
        return hd_err_prefix(HD_INVALID, "--plan %s", path);
    return st;
}
