/* planner: searches the layouts that the core requests (hd_core_out.asked), in threads.
 *
 * A search takes from a millisecond to seconds (plan/best.h), in libuv's thread pool. At most
 * SEARCHES_MAX run at a time, so that the pool keeps free threads, and each has a deadline, so that
 * a job does not wait long. The answer enters the core as an event. Validations of jobs that are
 * not submitted wait here for their layouts.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/services/control.h"
#include "controller/services/internal.h"
#include "plan/best.h"
#include "plan/calibration_report.h"

enum {
    SEARCHES_MAX = 2, /* limit of concurrent layout searches */
    /* deadline of a search, ms after its request; afterwards a layout is chosen by memory alone. A
     * search that starts late still gets SEARCH_MIN_MS. */
    ANSWER_MS = 10 * 1000,
    SEARCH_MIN_MS = 1000,
};

struct planning {
    uv_work_t work;
    struct controller *c; /* NULL: the controller was freed; the result is dropped */
    struct planning *next;
    bool started;
    int64_t asked_ms; /* time from which the deadline ANSWER_MS counts (monotonic) */
    struct hd_arena arena;
    struct hd_core_asked asked;      /* request of the core; its strings and spec are in arena */
    const char *calibration;         /* the node's calibration text, in arena; NULL: none */
    struct hd_cluster_level network; /* links between the nodes, from the cluster file */
    bool knows_network;
    struct hd_core_answer answer;
    struct hd_text why;
};

/* ---- the search, in a thread of the pool ------------------------------------------------------*/

/* Sets *ret_traits to the traits of the devices that a layout is searched for (CPU: as the node
 * reported them; GPU: those of its kind, with the node's device memory). Returns false if they are
 * unknown, so that no layout can be found. */
static bool find_traits(const struct hd_core_asked *asked, const struct hd_gpu_kind *kind,
                        struct hd_traits *ret_traits)
{
    if (asked->wish.sizes.device == HD_JOB_DEVICE_CPU)
        return hd_traits_read(asked->traits, ret_traits) == HD_OK;
    if (!kind)
        return false;
    hd_gpu_kind_traits(kind, ret_traits);
    ret_traits->memory_bytes = asked->memory_bytes;
    return true;
}

void planner_calibrate(struct hd_arena *arena, const char *calibration,
                       const struct hd_gpu_kind *kind, struct hd_cluster *cluster)
{
    struct hd_calibration *cal = hd_arena_alloc(arena, sizeof *cal);

    if (cal && !hd_calibration_read(calibration, strlen(calibration), arena, cal) &&
        !hd_calibration_check_gpu(cal, kind))
        hd_rates_calibrate(&cluster->rates, cal);
}

/* Sets up the cluster of GPUs for the search: rates and links from the table of kinds, replaced by
 * the cluster file's network and by measured rates where available. */
static void find_cluster(struct planning *p, const struct hd_gpu_kind *kind,
                         const struct hd_job *spec, struct hd_cluster *cluster,
                         struct hd_best_asked *question)
{
    const struct hd_core_asked *asked = &p->asked;
    const enum hd_dtype factors = spec->precision == HD_JOB_PRECISION_FP32  ? HD_F32
                                  : spec->precision == HD_JOB_PRECISION_FP8 ? HD_U8
                                                                            : HD_BF16;

    hd_cluster_of_gpus(kind, asked->devices, asked->together, spec->tf32, cluster);
    /* no daemon reports host memory, so no layout offloads the optimizer unless the job requests it
     */
    cluster->host_memory_bytes = 0;
    if (p->knows_network && cluster->nodes > 1) {
        struct hd_cluster_level *between = &cluster->levels[cluster->level_count - 1];

        between->bytes_per_s = p->network.bytes_per_s;
        between->latency_s = p->network.latency_s;
    }
    cluster->traits.memory_bytes = asked->memory_bytes;
    if (p->calibration)
        planner_calibrate(&p->arena, p->calibration, kind, cluster);
    question->cluster = cluster;
    question->peak_flops = hd_gpu_kind_rate(kind, factors, spec->tf32);
}

bool planner_measured(struct hd_arena *arena, const char *calibration,
                      const struct hd_traits *traits, int64_t devices, int32_t threads,
                      int64_t memory_bytes, struct hd_cluster *ret_cluster)
{
    struct hd_calibration *cal = hd_arena_alloc(arena, sizeof *cal);
    struct hd_calibration_device peaks;
    struct hd_rates rates;

    if (!cal || hd_calibration_read(calibration, strlen(calibration), arena, cal) ||
        hd_calibration_check(cal, traits, threads) || !hd_calibration_report_peaks(cal, &peaks))
        return false;
    hd_rates_of_peaks(peaks.half_flops, peaks.single_flops, peaks.memory_bytes_per_s, 0, 0, &rates);
    hd_rates_calibrate(&rates, cal);
    hd_cluster_of_cpu(traits, devices, &rates, ret_cluster);
    ret_cluster->traits.memory_bytes = memory_bytes;
    return true;
}

static enum hd_status choose(struct planning *p, const struct hd_gpu_kind *kind,
                             const struct hd_traits *traits, struct hd_best *ret_best)
{
    const struct hd_core_asked *asked = &p->asked;
    struct hd_job *spec = hd_arena_alloc(&p->arena, sizeof *spec);
    struct hd_cluster *cluster = hd_arena_alloc(&p->arena, sizeof *cluster);
    const int64_t due_ms = p->asked_ms + ANSWER_MS, least_ms = hd_clock_now_ms() + SEARCH_MIN_MS;
    struct hd_best_asked question = {.fit = {.spec = spec,
                                             .request = &asked->wish,
                                             .devices = asked->devices,
                                             .threads = asked->threads,
                                             .bf16_fast = asked->bf16,
                                             .traits = traits,
                                             .memory_bytes = asked->memory_bytes},
                                     .deadline_ns =
                                         1000000 * (due_ms > least_ms ? due_ms : least_ms)};
    enum hd_status st = spec && cluster
                            ? convert_unpack_spec(asked->spec, asked->spec_bytes, &p->arena, spec)
                            : hd_err(HD_NO_MEMORY, "no memory for a job");

    if (st)
        return st;
    if (kind && hd_traits_is_cuda(traits))
        find_cluster(p, kind, spec, cluster, &question);
    else if (!hd_traits_is_cuda(traits) && p->calibration &&
             planner_measured(&p->arena, p->calibration, traits, asked->devices, asked->threads,
                              asked->memory_bytes, cluster))
        question.cluster = cluster; /* without measured rates layouts are chosen by memory alone */
    return hd_best_choose(&question, ret_best, &p->why);
}

static void search(uv_work_t *work)
{
    struct planning *p = work->data;
    const struct hd_gpu_kind *kind = hd_gpu_kind_of_name(p->asked.device_name);
    struct hd_traits traits;
    struct hd_best best = {.fits = true};
    enum hd_status st = HD_OK;
    const bool known = find_traits(&p->asked, kind, &traits);

    if (known)
        st = choose(p, kind, &traits, &best);
    if (st) /* the ranks of the job report what is wrong */
        hd_log(HD_LOG_WARN, "cannot choose a layout that fits: %s", hd_err_message());
    p->answer = (struct hd_core_answer){.key = p->asked.key,
                                        .failed = !known || st,
                                        .fits = best.fits,
                                        .layout = best.sizes,
                                        .step_s = best.step_s,
                                        .memory_bytes = best.needed_bytes,
                                        .preliminary = best.hasty,
                                        .why = p->why.failed ? "" : p->why.data};
}

/* ---- on the loop ------------------------------------------------------------------------------*/

static void free_planning(struct planning *p)
{
    hd_arena_done(&p->arena);
    hd_text_free(&p->why);
    free(p);
}

static void unlink_planning(struct planning *p)
{
    struct planning **at = &p->c->plannings;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
}

static void begin_some(struct controller *c);

static void on_searched(uv_work_t *work, int status)
{
    struct planning *p = work->data;
    struct controller *c = p->c;
    const struct hd_core_event event = {.kind = HD_CORE_PLANNED, .planned = p->answer};

    if (c)
        unlink_planning(p);
    if (c && !c->stopping && !status) {
        transaction_begin(c);
        (void)transaction_step(c, &event);
        transaction_end(c);
        control_go_on_validating(c);
        begin_some(c);
    }
    free_planning(p);
}

/* Starts queued layout searches: first those for which a job waits, then prefetches. */
static void begin_some(struct controller *c)
{
    int running = 0;

    for (struct planning *p = c->plannings; p; p = p->next)
        running += p->started;
    for (int ahead = 0; ahead < 2; ahead++)
        for (struct planning *p = c->plannings; p && running < SEARCHES_MAX; p = p->next)
            if (!p->started && p->asked.ahead == (ahead > 0)) {
                if (p->asked.ahead) /* a prefetch: its search time starts now */
                    p->asked_ms = hd_clock_now_ms();
                p->started = uv_queue_work(c->loop, &p->work, search, on_searched) == 0;
                running += p->started;
            }
}

/* Finds in cluster.yaml the links between nodes under one switch of the requested tier. Nodes under
 * several switches of the highest tier get that tier's links. */
static void find_network(struct planning *p, const struct hd_node_tree *tree)
{
    const int32_t tiers = tree ? tree->tier_count : 0, tier = p->asked.tier;

    p->knows_network = tier > 0 && tiers > 0;
    if (p->knows_network)
        p->network = tree->tiers[(tier < tiers ? tier : tiers) - 1];
}

static bool copy_asked(struct planning *p, const struct hd_core_asked *asked)
{
    void *spec = hd_arena_alloc(&p->arena, asked->spec_bytes + 1);

    p->asked = *asked;
    p->asked.key = hd_arena_strdup(&p->arena, asked->key);
    p->asked.device_name = hd_arena_strdup(&p->arena, asked->device_name);
    p->asked.traits = hd_arena_strdup(&p->arena, asked->traits);
    p->asked.spec = spec;
    if (*asked->probe_uuid)
        p->calibration = probe_calibration(p->c, &p->arena, asked->probe_uuid);
    p->asked.probe_uuid = NULL; /* belongs to the core */
    find_network(p, p->c->tree);
    if (spec)
        memcpy(spec, asked->spec, asked->spec_bytes);
    return spec && p->asked.key && p->asked.device_name && p->asked.traits;
}

/* Returns whether the layout is being searched already. A prefetch for which a job waits now
 * becomes an ordinary request. */
static bool hurry(const struct controller *c, const struct hd_core_asked *asked)
{
    for (struct planning *p = c->plannings; p; p = p->next)
        if (strcmp(p->asked.key, asked->key) == 0) {
            if (p->asked.ahead && !asked->ahead) /* a job waits for it: its time starts now */
                p->asked_ms = hd_clock_now_ms();
            p->asked.ahead = asked->ahead;
            return true;
        }
    return false;
}

void planner_ask(struct controller *c, const struct hd_core_out *out)
{
    struct planning **end = &c->plannings;

    while (*end)
        end = &(*end)->next;
    for (size_t i = 0; i < out->asked_count; i++) {
        struct planning *p;

        if (hurry(c, &out->asked[i]))
            continue;
        p = calloc(1, sizeof *p);
        if (p) {
            hd_arena_init(&p->arena, 0);
            p->work.data = p;
            p->c = c;
            p->asked_ms = hd_clock_now_ms();
        }
        if (!p || !copy_asked(p, &out->asked[i])) {
            if (p)
                free_planning(p);
            controller_fail(c, hd_err(HD_NO_MEMORY, "no memory to plan a job"));
            return;
        }
        *end = p;
        end = &p->next;
    }
    begin_some(c);
}

void planner_forget_all(struct controller *c)
{
    for (struct planning *p = c->plannings, *next; p; p = next) {
        next = p->next;
        p->c = NULL;
        if (!p->started)
            free_planning(p);
    }
    c->plannings = NULL;
}

size_t planner_count(const struct controller *c)
{
    size_t count = 0;

    for (const struct planning *p = c->plannings; p; p = p->next)
        count++;
    return count;
}
