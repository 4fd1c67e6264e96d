#include "plan/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/words.h"
#include "kernels/plugin.h"
#include "plan/calibration.h"
#include "plan/identity.h"
#include "plan/rank_map.h"

enum { RANKS_SHOWN_MAX = 65536 };

/* ---- the search ---- */

/* Returns the largest number of devices, within the job's bounds and the group's size, that has a
 * legal layout; 0: none. */
static int32_t devices_of(const struct hd_job *spec, const struct hd_plan_request *request,
                          const struct hd_cluster *c)
{
    const int64_t has = hd_cluster_devices(c);
    const int64_t most = spec->devices_max < has ? spec->devices_max : has;

    return hd_plan_most(request, (int32_t)spec->devices_min, (int32_t)most);
}

/* Returns the deadline of the next group's search: the remaining time divided by the number of
 * groups not yet searched. */
static int64_t share_of_time(int64_t deadline_ns, int groups)
{
    const int64_t now_ns = hd_clock_now_ns();

    return deadline_ns ? now_ns + (deadline_ns - now_ns) / groups : 0;
}

static enum hd_status search_group(const struct hd_report_asked *asked,
                                   const struct hd_cluster *cluster, int64_t deadline_ns,
                                   struct hd_arena *arena, struct hd_report *l)
{
    const struct hd_gpu_kind *kind = hd_gpu_kind_find(cluster->device);
    const enum hd_job_precision precision = asked->spec->precision;
    const bool cuda = hd_traits_is_cuda(&cluster->traits);
    struct hd_plan_request request = *asked->request;
    struct hd_search_asked question = {.spec = asked->spec,
                                       .request = &request,
                                       .cluster = cluster,
                                       .threads = asked->threads,
                                       .bf16_fast = cluster->traits.bf16_fast,
                                       .memory_bytes = asked->memory_bytes,
                                       .top = asked->top,
                                       .deadline_ns = deadline_ns,
                                       .tell = asked->tell,
                                       .about = asked->about};

    request.sizes.device = cuda ? HD_JOB_DEVICE_CUDA : HD_JOB_DEVICE_CPU;
    if (cuda && (!question.memory_bytes || question.memory_bytes > cluster->traits.memory_bytes))
        question.memory_bytes = cluster->traits.memory_bytes;
    if (kind)
        question.peak_flops = hd_gpu_kind_rate(kind,
                                               precision == HD_JOB_PRECISION_FP32  ? HD_F32
                                               : precision == HD_JOB_PRECISION_FP8 ? HD_U8
                                                                                   : HD_BF16,
                                               asked->spec->tf32);
    question.devices = devices_of(asked->spec, &request, cluster);
    *l = (struct hd_report){
        .cluster = cluster, .devices = question.devices, .memory_bytes = question.memory_bytes};
    if (!question.devices)
        return hd_plan_check(&request, (int32_t)asked->spec->devices_min,
                             (int32_t)asked->spec->devices_max);
    return hd_search_layouts(&question, arena, &l->search);
}

/* Returns whether group a is better than b: the step of its best layout takes less time. If neither
 * has a layout that fits, the group that lacks less memory is better. */
static bool is_better(const struct hd_report *a, const struct hd_report *b)
{
    if (!a->search.plan_count && !b->search.plan_count)
        return a->search.least.needed_bytes - a->memory_bytes <
               b->search.least.needed_bytes - b->memory_bytes;
    if (!a->search.plan_count || !b->search.plan_count)
        return a->search.plan_count > b->search.plan_count;
    return a->search.plans[0].cost.step_s < b->search.plans[0].cost.step_s;
}

enum hd_status hd_report_find(const struct hd_report_asked *asked, struct hd_arena *arena,
                              struct hd_report *ret_layouts)
{
    int64_t most = 0;
    enum hd_status st = HD_OK;
    int left = 0, unsearched = 0;
    bool any = false, found = false;

    for (int i = 0; i < asked->cluster_count; i++)
        left += hd_cluster_devices(&asked->clusters[i]) >= asked->spec->devices_min;
    for (int i = 0; i < asked->cluster_count; i++) {
        const struct hd_cluster *c = &asked->clusters[i];
        struct hd_report l;

        most = hd_cluster_devices(c) > most ? hd_cluster_devices(c) : most;
        if (hd_cluster_devices(c) < asked->spec->devices_min)
            continue;
        st = search_group(asked, c, share_of_time(asked->deadline_ns, left--), arena, &l);
        any = true;
        unsearched += st == HD_TIMEOUT;
        if (st || (found && !is_better(&l, ret_layouts)))
            continue; /* this group has no layout, or none better than the one found */
        *ret_layouts = l;
        found = true;
    }
    if (found)
        ret_layouts->unsearched = unsearched;
    if (!any)
        return hd_err(HD_INVALID,
                      "resources.devices: %lld, but the largest group of equal devices in %s has "
                      "%lld; ask for fewer, or describe more",
                      (long long)asked->spec->devices_min, asked->machines, (long long)most);
    return found ? HD_OK : st;
}

void hd_report_note_other_kernels(const struct hd_report *l, struct hd_text *notes)
{
    static const struct {
        const char *name, *values; /* of a setting; its values that choose such kernels */
    } settings[] = {{HD_ATTENTION_ENV, "cudnn wgmma"}, {HD_GLU_ENV, "wgmma"}};

    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const char *value = getenv(settings[i].name);

        if (value && hd_traits_is_cuda(&l->cluster->traits) &&
            hd_words_have(settings[i].values, value))
            hd_text_add(notes,
                        "note: %s=%s is outside this plan, whose bytes and times are those of "
                        "Heddle's own kernels for all GPUs (docs/planning.md)\n",
                        settings[i].name, value);
    }
}

/* ---- JSON ---- */

static void add_known(struct hd_json_writer *w, const char *key, bool known, double value)
{
    if (known)
        hd_json_add_real(w, key, value);
    else
        hd_json_add_null(w, key);
}

static void add_stages(struct hd_json_writer *w, const struct hd_plan *p)
{
    hd_json_begin(w, "stages", '[');
    for (int32_t c = 0; c < p->pipeline.chunks; c++)
        hd_json_add_int64(w, NULL, p->chunks[c].layers);
    hd_json_end(w, ']');
}

/* plan: NULL if the layout was not built. */
static void write_layout(struct hd_json_writer *w, const struct hd_layout_sizes *s,
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
    hd_json_add_string(w, "offload", hd_job_offload_words[s->offload]);
    hd_json_add_bool(w, "sequence", s->sequence);
    hd_json_add_string(w, "cp_exchange", hd_job_cp_exchange_words[s->cp_exchange]);
    if (s->expert_rows > 0)
        hd_json_add_real(w, "expert_rows", s->expert_rows);
    else
        hd_json_add_string(w, "expert_rows", "auto");
    hd_json_add_string(w, "precision", hd_job_precision_words[s->precision]);
    if (plan)
        add_stages(w, plan);
    hd_json_end(w, '}');
}

/* Adds to the JSON the memory of each pipeline stage's rank that needs most. "beside": memory of
 * the process, a frozen model, and rounding to pages. */
static void add_memory(struct hd_json_writer *w, const struct hd_plan *p)
{
    hd_json_begin(w, "memory_bytes", '[');
    for (int32_t stage = 0; stage < p->pipeline.stages; stage++) {
        const struct hd_plan_class *c = hd_plan_fullest(p, stage);
        const struct hd_memory *m = &c->memory;
        const bool device = c->device_bytes > 0; /* true: a GPU, which has memory of its own */
        const int64_t weights =
            m->weights + m->copies + m->reference - (device ? m->host_weights : 0);
        const int64_t optimizer = m->moments + m->ema + m->step_state -
                                  (device ? m->host_moments + m->host_ema + m->host_ranges : 0);
        const int64_t activations = m->kept + m->deferred + m->boundary;
        const int64_t scratch = m->work + m->constants;

        hd_json_begin(w, NULL, '{');
        hd_json_add_int64(w, "stage", stage);
        hd_json_add_int64(w, "weights", weights);
        hd_json_add_int64(w, "gradients", m->gradients);
        hd_json_add_int64(w, "optimizer", optimizer);
        hd_json_add_int64(w, "activations", activations);
        hd_json_add_int64(w, "scratch", scratch);
        hd_json_add_int64(w, "host", device ? m->host_bytes : 0);
        hd_json_add_int64(w, "beside",
                          hd_plan_class_bytes(c) - weights - m->gradients - optimizer -
                              activations - scratch);
        hd_json_add_int64(w, "total", hd_plan_class_bytes(c));
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void add_time(struct hd_json_writer *w, const struct hd_step_cost *p)
{
    hd_json_begin(w, "time_s", '{');
    hd_json_add_real(w, "compute", p->compute_s);
    hd_json_add_real(w, "bubble", p->bubble_s);
    hd_json_begin(w, "communication", '{');
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        if (p->communication_s[g] > 0)
            hd_json_add_real(w, hd_group_text((enum hd_group_name)g), p->communication_s[g]);
    hd_json_end(w, '}');
    hd_json_add_real(w, "update", p->update_s);
    if (p->rollout_s > 0)
        hd_json_add_real(w, "answers", p->rollout_s);
    hd_json_end(w, '}');
}

bool hd_report_has_kernels(const struct hd_traits *traits)
{
    return !hd_traits_is_cuda(traits) || traits->capability >= HD_REPORT_CAPABILITY_MIN;
}

bool hd_report_keeps_tp(const struct hd_report *l, const struct hd_search_plan *p)
{
    return hd_cluster_keeps_tp(l->cluster, l->devices, p->job.tp > 0 ? p->job.tp : 1);
}

bool hd_report_runs(const struct hd_report *l, const struct hd_search_plan *p)
{
    const struct hd_traits *t = &l->cluster->traits;

    return hd_report_has_kernels(t) && (!p || hd_report_keeps_tp(l, p)) &&
           l->devices <= hd_plan_ranks_max(
                             hd_traits_is_cuda(t) ? HD_JOB_DEVICE_CUDA : HD_JOB_DEVICE_CPU, NULL);
}

int32_t *hd_report_map(const struct hd_report *l, const struct hd_search_plan *p)
{
    int32_t *map = l->cluster->links ? calloc((size_t)l->devices, sizeof *map) : NULL;

    if (map && hd_rank_map_of_job(l->cluster, &p->job, map)) {
        free(map);
        return NULL;
    }
    return map;
}

static void add_ranks(const struct hd_report *l, const struct hd_search_plan *p,
                      struct hd_json_writer *w)
{
    int32_t *map = hd_report_map(l, p);

    hd_json_begin(w, "ranks", '[');
    for (int32_t rank = 0; rank < l->devices && rank < RANKS_SHOWN_MAX; rank++) {
        hd_json_begin(w, NULL, '[');
        hd_json_add_int64(w, NULL, rank / l->cluster->devices_per_node);
        hd_json_add_int64(w, NULL, map ? map[rank] : rank % l->cluster->devices_per_node);
        hd_json_end(w, ']');
    }
    hd_json_end(w, ']');
    free(map);
}

static void add_plan(struct hd_json_writer *w, const char *key, const struct hd_report *l,
                     const struct hd_search_plan *p, bool with_ranks)
{
    const bool costed = p->cost.step_s > 0;

    hd_json_begin(w, key, '{');
    write_layout(w, &p->job.layout, &p->plan);
    add_known(w, "step_time_s", costed, p->cost.step_s);
    add_known(w, "tokens_per_s", costed, p->cost.tokens_per_s);
    add_known(w, "mfu", p->cost.mfu > 0, p->cost.mfu);
    add_known(w, "bubble_fraction", costed, p->cost.bubble);
    add_known(w, "error_band", costed, l->cluster->rates.error_band);
    hd_json_add_bool(w, "fits", p->fits);
    hd_json_add_bool(w, "runnable", hd_report_runs(l, p));
    add_memory(w, &p->plan);
    add_time(w, &p->cost);
    if (with_ranks)
        add_ranks(l, p, w);
    hd_json_end(w, '}');
}

void hd_report_reason(const struct hd_report *l, const struct hd_search_rejected *r,
                      struct hd_text *out)
{
    char needed[32], has[32], over[32];

    hd_text_format_bytes(r->needed_bytes, needed);
    hd_text_format_bytes(l->memory_bytes, has);
    hd_text_format_bytes(r->needed_bytes - l->memory_bytes, over);
    hd_text_add(out, "over memory by %s on stage %d: needs %s%s of %s, %.0f%% activations", over,
                (int)r->stage, r->exact ? "" : "at least ", needed, has, 100 * r->activations);
}

static void add_rejected(struct hd_json_writer *w, const char *key, const struct hd_report *l,
                         const struct hd_search_rejected *r)
{
    struct hd_text reason = {0};

    hd_report_reason(l, r, &reason);
    hd_json_begin(w, key, '{');
    write_layout(w, &r->sizes, NULL);
    hd_json_add_string(w, "reason", reason.failed ? "over memory" : reason.data);
    hd_json_add_int64(w, "needed_bytes", r->needed_bytes);
    hd_json_end(w, '}');
    hd_text_free(&reason);
}

static void add_inputs(struct hd_json_writer *w, const struct hd_report_asked *asked,
                       const struct hd_report *l)
{
    struct hd_text identity = {0};
    char build[HD_CALIBRATION_WORD_MAX];

    hd_calibration_build(build);
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
    if (asked->threads_given)
        hd_json_add_int64(w, "threads", asked->threads_given);
    else
        hd_json_add_null(w, "threads");
    hd_json_add_int64(w, "device_memory_bytes", l->memory_bytes);
    hd_json_add_bool(w, "rates_measured", l->cluster->rates.measured);
    hd_json_add_int64(w, "groups_unsearched", l->unsearched);
    hd_json_begin(w, "searched", '{');
    hd_json_add_int64(w, "families", l->search.families);
    hd_json_add_int64(w, "blocks", l->search.blocks);
    hd_json_add_int64(w, "walked", l->search.walked);
    hd_json_add_int64(w, "priced", l->search.costed);
    hd_json_add_int64(w, "laid_out", l->search.laid_out);
    hd_json_end(w, '}');
    hd_json_end(w, '}');
}

void hd_report_json(const struct hd_report_asked *asked, const struct hd_report *l,
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
    if (s->plan_count && s->plans[0].cost.step_s > s->fastest_s && s->fastest_s > 0) {
        hd_json_begin(&w, "fastest", '{');
        write_layout(&w, &s->fastest, NULL);
        hd_json_add_real(&w, "step_time_s", s->fastest_s);
        hd_json_end(&w, '}');
    }
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
