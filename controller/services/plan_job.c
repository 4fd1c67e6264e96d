/* plan_job: PlanJob: the layouts that `heddle plan` would print for the nodes of this cluster.
 *
 *   group the nodes by kind and number of their devices, on the loop
 *   -> search layouts in libuv's thread pool, one call at a time, at most SEARCH_MS
 *   -> the object Plan
 *
 * The core does not change. Groups contain all nodes that are neither lost nor drained, busy or
 * not. Of nodes with CPU devices only the probed one with most devices is used
 * (docs/decisions/planner-costs.md).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "controller/services/control.h"
#include "plan/report.h"
#include "spec/spec.h"

enum {
    PLANS_WAITING_MAX = 32, /* limit of waiting PlanJob calls; further ones are refused */
    TOP_DEFAULT = 3,
    SEARCH_MS = 10 * 1000,
};

/* Nodes with equally many devices of one GPU kind. */
struct node_group {
    const struct hd_gpu_kind *kind;
    /* number of devices per node; number of nodes; memory of the device with the least memory */
    int64_t devices, nodes, memory_bytes;
    /* calibration text of one of the group's nodes; NULL: none was probed */
    const char *calibration;
};

struct job_plan {
    uv_work_t work;
    struct controller *c; /* NULL: the controller was freed; the result is dropped */
    struct job_plan *next;
    bool started;
    struct hd_rpc_call *call; /* the call to answer; holds a reference */
    struct prepared *prepared;
    struct hd_arena arena;
    const char *cluster_file;    /* path of cluster.yaml, in arena; NULL: none */
    struct hd_cluster *clusters; /* clusters to search layouts for, [count], in arena */
    /* group of each cluster, [count], in arena; NULL: the cluster has CPU devices */
    const struct node_group *gpus;
    int count, top;
    /* calibration text and CPU traits of the probed node with most CPU devices; calibration NULL:
     * no such node */
    const char *calibration, *traits;
    int64_t cpu_devices, cpu_threads, cpu_memory_bytes;
    struct hd_text json;
    struct hd_error error;
};

/* ---- grouping the nodes, on the loop ----------------------------------------------------------*/

static void count_gpus(const struct hd_node_record *node, struct node_group *ret_group)
{
    *ret_group = (struct node_group){.nodes = 1};
    for (int32_t d = 0; d < node->device_count; d++) {
        const struct hd_device_record *device = &node->devices[d];
        const struct hd_gpu_kind *kind =
            device->kind == HD_DEVICE_KIND_CUDA ? hd_gpu_kind_of_name(device->name) : NULL;

        if (!kind || (device->problem && *device->problem) ||
            (ret_group->kind && ret_group->kind != kind))
            continue;
        ret_group->kind = kind;
        ret_group->devices++;
        if (!ret_group->memory_bytes || device->memory_bytes < ret_group->memory_bytes)
            ret_group->memory_bytes = device->memory_bytes;
    }
}

static void add_to_groups(struct node_group *groups, int *count, const struct node_group *node)
{
    for (int g = 0; g < *count; g++)
        if (groups[g].kind == node->kind && groups[g].devices == node->devices) {
            groups[g].nodes++;
            if (node->memory_bytes < groups[g].memory_bytes)
                groups[g].memory_bytes = node->memory_bytes;
            if (!groups[g].calibration)
                groups[g].calibration = node->calibration;
            return;
        }
    if (*count < HD_CLUSTER_GROUPS_MAX)
        groups[(*count)++] = *node;
}

/* Sets the network levels above a node from the cluster file; without a file keeps the kind's usual
 * ones. */
static void set_network(const struct hd_node_tree *tree, struct hd_cluster *cluster)
{
    const int64_t all = hd_cluster_devices(cluster);
    int level = cluster->level_count - 1;

    if (cluster->nodes < 2 || !tree || !tree->tier_count)
        return;
    for (int t = 0; t < tree->tier_count && level < HD_CLUSTER_LEVELS_MAX; t++) {
        struct hd_cluster_level *l = &cluster->levels[level++];

        *l = tree->tiers[t];
        l->devices = tree->tier_nodes[t] * cluster->devices_per_node;
        /* cluster.yaml has no switch above this tier */
        if (l->devices >= all || t + 1 == tree->tier_count) {
            l->devices = all;
            break;
        }
    }
    cluster->level_count = level;
}

static void find_gpus(struct job_plan *p, const struct node_group *groups, int count)
{
    struct node_group *kept = hd_arena_array(&p->arena, (size_t)count + 1, sizeof *kept);

    p->clusters = hd_arena_array(&p->arena, (size_t)count + 1, sizeof *p->clusters);
    if (!kept)
        return;
    memcpy(kept, groups, (size_t)count * sizeof *kept);
    p->gpus = kept;
    for (int g = 0; p->clusters && g < count; g++) {
        struct hd_cluster *cluster = &p->clusters[p->count++];

        hd_cluster_of_gpus(groups[g].kind, groups[g].nodes * groups[g].devices, groups[g].devices,
                           p->prepared->job.tf32, cluster);
        cluster->host_memory_bytes = 0; /* unknown: no daemon reports host memory */
        if (groups[g].memory_bytes > 0)
            cluster->traits.memory_bytes = groups[g].memory_bytes;
        (void)snprintf(cluster->name, sizeof cluster->name, "%lld node%s of %lld",
                       (long long)groups[g].nodes, groups[g].nodes == 1 ? "" : "s",
                       (long long)groups[g].devices);
        set_network(p->c->tree, cluster);
    }
}

static void find_cpus(struct job_plan *p, const struct hd_node_view *view)
{
    int64_t devices = 0, threads = INT64_MAX, memory_bytes = INT64_MAX;

    for (int32_t d = 0; d < view->record->device_count; d++) {
        const struct hd_device_record *device = &view->record->devices[d];

        if (device->kind != HD_DEVICE_KIND_CPU || (device->problem && *device->problem))
            continue;
        devices++;
        threads = device->threads < threads ? device->threads : threads;
        memory_bytes = device->memory_bytes < memory_bytes ? device->memory_bytes : memory_bytes;
    }
    if (!view->probe_measured_ms || devices <= p->cpu_devices ||
        hd_probed_kind(view->record) != HD_DEVICE_KIND_CPU)
        return;
    p->calibration = probe_calibration(p->c, &p->arena, view->record->uuid);
    p->traits = hd_arena_strdup(&p->arena, view->facts->traits);
    p->cpu_devices = devices;
    p->cpu_threads = threads;
    p->cpu_memory_bytes = memory_bytes;
}

static void find_nodes(struct job_plan *p)
{
    const enum hd_job_device device = p->prepared->job.device;
    struct node_group groups[HD_CLUSTER_GROUPS_MAX], group;
    int count = 0;

    for (size_t i = 0; i < hd_core_node_count(p->c->core); i++) {
        struct hd_node_view view;

        hd_core_node_at(p->c->core, i, &view);
        if (view.record->state == HD_NODE_STATE_LOST || view.record->drain)
            continue;
        count_gpus(view.record, &group);
        if (group.kind && view.probe_measured_ms)
            group.calibration = probe_calibration(p->c, &p->arena, view.record->uuid);
        if (group.kind && device != HD_JOB_DEVICE_CPU)
            add_to_groups(groups, &count, &group);
        if (device != HD_JOB_DEVICE_CUDA)
            find_cpus(p, &view);
    }
    find_gpus(p, groups, count);
}

/* ---- the search, in a thread ------------------------------------------------------------------*/

/* Replaces predicted rates of GPUs by measured ones, for groups with a probed node. */
static void calibrate_gpus(struct job_plan *p)
{
    for (int g = 0; p->gpus && g < p->count; g++)
        if (p->gpus[g].calibration)
            planner_calibrate(&p->arena, p->gpus[g].calibration, p->gpus[g].kind, &p->clusters[g]);
}

/* Adds the CPU devices of the chosen node to the search if the cluster has no GPUs. */
static void add_cpus(struct job_plan *p)
{
    struct hd_traits traits;

    if (p->count || !p->calibration || !p->traits || hd_traits_read(p->traits, &traits))
        return;
    p->count = planner_measured(&p->arena, p->calibration, &traits, p->cpu_devices,
                                (int32_t)p->cpu_threads, p->cpu_memory_bytes, &p->clusters[0]);
}

static enum hd_status search_layout(struct job_plan *p)
{
    struct hd_plan_request request;
    struct hd_report_asked asked = {.machines = "this cluster",
                                    .cluster_file = p->cluster_file,
                                    .spec = &p->prepared->job,
                                    .request = &request,
                                    .clusters = p->clusters,
                                    .threads = p->cpu_threads ? p->cpu_threads : 1,
                                    .threads_given = p->prepared->job.threads,
                                    .top = p->top,
                                    .deadline_ns =
                                        hd_clock_now_ns() + (int64_t)SEARCH_MS * 1000000};
    struct hd_report report;
    enum hd_status st;

    calibrate_gpus(p);
    add_cpus(p);
    asked.cluster_count = p->count;
    if (!p->count)
        return hd_err(HD_UNSUPPORTED,
                      "no node has GPUs of a kind whose speed is known, nor CPU devices that were "
                      "measured, which the job may use; heddle probe NODE measures those, and "
                      "heddle plan --cluster FILE plans for machines that are described");
    hd_plan_request_of(&p->prepared->job, &request);
    if (!hd_traits_is_cuda(&p->clusters[0].traits))
        asked.memory_bytes = p->cpu_memory_bytes;
    st = hd_report_find(&asked, &p->arena, &report);
    if (!st)
        hd_report_json(&asked, &report, &p->json);
    return p->json.failed ? hd_err(HD_NO_MEMORY, "no memory for a plan") : st;
}

static void make_plan(uv_work_t *work)
{
    struct job_plan *p = work->data;

    hd_err_save(search_layout(p), &p->error);
}

/* ---- calls ------------------------------------------------------------------------------------*/

static void free_plan(struct job_plan *p)
{
    hd_rpc_call_unref(p->call);
    control_free_prepared(p->prepared);
    hd_arena_done(&p->arena);
    hd_text_free(&p->json);
    free(p);
}

static void begin_next(struct controller *c);

/* Removes PlanJob calls whose client has gone from the list, except the one whose search runs. */
static void drop_gone(struct controller *c)
{
    struct job_plan **at = &c->job_plans;

    while (*at) {
        struct job_plan *p = *at;

        if (p->started || hd_rpc_call_alive(p->call)) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        free_plan(p);
    }
}

static void on_plan_made(uv_work_t *work, int status)
{
    struct job_plan *p = work->data;
    struct controller *c = p->c;
    Heddle__V1__PlanJobResponse response = HEDDLE__V1__PLAN_JOB_RESPONSE__INIT;

    if (c && !c->stopping) {
        response.plan = p->json.data;
        if (status)
            hd_rpc_call_fail(p->call, hd_err(HD_UNAVAILABLE, "the controller is stopping"));
        else if (p->error.status)
            hd_rpc_call_fail(p->call, hd_err(p->error.status, "%s", p->error.message));
        else
            (void)hd_rpc_call_reply(p->call, &response.base);
    }
    if (c) {
        c->job_plans = p->next;
        begin_next(c);
    }
    free_plan(p);
}

/* Starts the search of the first call whose client is still connected. */
static void begin_next(struct controller *c)
{
    struct job_plan *p;

    drop_gone(c);
    p = c->job_plans;
    if (p && !p->started && !c->stopping)
        p->started = uv_queue_work(c->loop, &p->work, make_plan, on_plan_made) == 0;
}

void plan_job_forget_all(struct controller *c)
{
    for (struct job_plan *p = c->job_plans, *next; p; p = next) {
        next = p->next;
        p->c = NULL;
        if (!p->started)
            free_plan(p);
    }
    c->job_plans = NULL;
}

static enum hd_status add_job_plan(struct controller *c, struct job_plan *p)
{
    struct job_plan **end = &c->job_plans;
    int waiting = 0;

    drop_gone(c); /* ended calls do not count */
    for (; *end; end = &(*end)->next)
        waiting++;
    if (waiting >= PLANS_WAITING_MAX)
        return hd_err(HD_LIMIT, "%d plans are being made, which is the limit; repeat the request",
                      waiting);
    find_nodes(p);
    if (c->options.cluster_file)
        p->cluster_file = hd_arena_strdup(&p->arena, c->options.cluster_file);
    if (hd_arena_failed(&p->arena))
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    *end = p;
    begin_next(c);
    return HD_OK;
}

void control_plan_job(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__PlanJobRequest *m = (const void *)message;
    struct job_plan *p = calloc(1, sizeof *p);
    enum hd_status st = p ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a plan");

    if (p) {
        hd_arena_init(&p->arena, 0);
        p->work.data = p;
        p->c = hd_rpc_call_user(call);
        p->call = hd_rpc_call_ref(call);
        p->top = m->top > 0 ? m->top < HD_SEARCH_TOP_MAX ? m->top : HD_SEARCH_TOP_MAX : TOP_DEFAULT;
    }
    if (!st)
        st = control_prepare(m->spec, &p->prepared);
    if (!st)
        st = add_job_plan(p->c, p);
    if (!st)
        return;
    hd_rpc_call_fail(call, st);
    if (p)
        free_plan(p);
}
