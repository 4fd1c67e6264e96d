#include "traffic.h"

#include <stdio.h>

#include "kernels/stream.h"
#include "pairs.h"
#include "tests/program/test.h"

/* The transfers between stages, which have a group for each way (lib/train/execute.c), count as
 * those of group pp. */
static enum hd_status read_transfers(struct harness_rank *r, const struct hd_mesh *mesh,
                                     struct counted *ret_counted)
{
    const struct hd_mesh_group pp = hd_mesh_find_group(mesh, HD_GROUP_PP, r->rank);

    for (int other = 0; other < pp.size; other++)
        for (int channel = 0; channel < 4 && other != pp.index; channel++) {
            const int32_t peer = hd_mesh_member(&pp, other);
            struct hd_comm_group *group;
            const enum hd_status st = hd_comm_open_channel(r->comm, channel / 2 ? "grad" : "pp",
                                                           channel % 2 ? peer : r->rank,
                                                           channel % 2 ? r->rank : peer, &group);

            if (st)
                return st;
            for (int k = HD_COMM_SEND; k <= HD_COMM_RECV; k++) {
                struct hd_comm_count count;

                hd_comm_count_get(group, (enum hd_comm_kind)k, &count);
                ret_counted->of[HD_GROUP_PP][k].calls += count.calls;
                ret_counted->of[HD_GROUP_PP][k].moved_bytes += count.moved_bytes;
            }
        }
    return HD_OK;
}

/* Endpoints know only the groups that the job's programs use; the others have size 1. */
static enum hd_status read_counters(struct harness_rank *r, const struct hd_mesh *mesh,
                                    struct counted *ret_counted)
{
    for (int g = 0; g < HD_GROUP_COUNT; g++) {
        struct hd_comm_group *group;
        enum hd_status st = hd_comm_mesh_group(r->comm, mesh, (enum hd_group_name)g, &group);

        for (int k = 0; !st && k < HD_COMM_KIND_COUNT; k++)
            hd_comm_count_get(group, (enum hd_comm_kind)k, &ret_counted->of[g][k]);
        if (st)
            return st;
    }
    return read_transfers(r, mesh, ret_counted);
}

/* ---- what routers did ---- */

enum { ROUTES_MAX = 1024 };

/* The current step of this thread's rank: rows that each router sent to other ranks, in the order
 * of the launches of F: run by run as the step plan says, block by block. */
struct routes {
    const struct hd_rank_program *layout; /* NULL: nobody asks */
    int64_t moved_rows[ROUTES_MAX];
    int count;
    const struct hd_instruction *now; /* that the fold is at */
};
static _Thread_local struct routes routes;

static struct hd_backend_table watched; /* the CPU's, but for these */

static enum hd_status launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args)
{
    const enum hd_status st = hd_backend_cpu()->launch(stream, kernel, args);
    const struct hd_assign_args *a = args;
    const struct hd_rank_program *l = routes.layout;
    int me;

    if (st || kernel != HD_K_assign || !l || routes.count == ROUTES_MAX)
        return st;
    me = hd_mesh_find_group(&l->mesh, HD_GROUP_EP, l->rank).index;
    routes.moved_rows[routes.count] = 0;
    for (int64_t p = 0; p < a->P; p++)
        routes.moved_rows[routes.count] += p == me ? 0 : a->sent[p];
    routes.count++;
    return st;
}

static enum hd_status stream_open(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream)
{
    const enum hd_status st = hd_backend_cpu()->stream_open(backend, purpose, ret_stream);

    if (!st)
        (*ret_stream)->table = &watched;
    return st;
}

/* Returns the number of routers in units first to end - 1, which may include embedding and head. A
 * model has at most one in the unit of its head. */
static int routers_in(const struct hd_rank_program *l, int first, int end)
{
    const struct hd_model_config *c = &l->model.config;
    int count = 0;

    for (int u = first; u < end; u++)
        count += u > HD_UNIT_EMBEDDING && (u < l->model.unit_head || c->further) &&
                 hd_model_layer(c, u - HD_UNIT_FIRST_BLOCK).experts;
    return count;
}

/* The fold asks for all members of a group together, and dry_bytes divides by their number again:
 * so this rank's, times that. What one sends another receives, so the way back is as much. */
static int64_t moved_rows(void *context, const struct hd_node *node)
{
    const struct hd_rank_program *l = context;
    int at = 0;

    for (int32_t i = 0; i < l->plan.count; i++) {
        const struct hd_instruction *in = &l->plan.list[i];
        const struct hd_units units = l->units[in->chunk > 0 ? in->chunk : 0];

        if (in->kind != HD_DO_RUN || in->call != HD_CALL_F)
            continue;
        if (in->chunk == routes.now->chunk && in->micro_batch == routes.now->micro_batch)
            return routes.moved_rows[at + routers_in(l, units.first, node->unit)] *
                   l->mesh.sizes.ep;
        at += routers_in(l, units.first, units.end);
    }
    return 0;
}

/* Folds the step plan over the programs that it names. */
static void fold_step(const struct hd_rank_program *l, struct hd_dry *ret_dry)
{
    *ret_dry = (struct hd_dry){.moved_rows = moved_rows, .context = (void *)l};
    for (int i = 0; i < l->plan.count; i++) {
        routes.now = &l->plan.list[i];
        hd_rank_program_fold(l, routes.now, ret_dry);
    }
}

/* ---- counting ---- */

const struct hd_backend_table *traffic_backend(void)
{
    watched = *hd_backend_cpu();
    watched.launch = launch;
    watched.stream_open = stream_open;
    return &watched;
}

void traffic_begin(struct harness_rank *r, struct hd_trainer *t)
{
    hd_comm_count_reset(r->comm);
    routes = (struct routes){.layout = hd_trainer_rank_program(t)};
}

enum hd_status traffic_end_step(struct harness_rank *r, struct hd_trainer *t,
                                struct traffic *traffic)
{
    const struct hd_rank_program *l = hd_trainer_rank_program(t);

    routes.layout = NULL;
    fold_step(l, &traffic->dry[r->rank]);
    return read_counters(r, &l->mesh, &traffic->step[r->rank]);
}

enum hd_status traffic_end_validation(struct harness_rank *r, struct hd_trainer *t,
                                      struct traffic *traffic)
{
    routes.layout = NULL;
    return read_counters(r, &hd_trainer_rank_program(t)->mesh, &traffic->validation[r->rank]);
}

static enum hd_status count_traffic(struct harness_rank *r)
{
    struct traffic *traffic = r->shared ? r->shared : r->context;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = &watched,
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .layout = traffic->layout};
    struct hd_step_result result;
    struct hd_trainer *t;
    double loss;
    int64_t targets;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = harness_init(t);
    if (!st)
        st = pairs_step(t, &result); /* any first-time traffic is not the step's */
    traffic_begin(r, t);
    if (!st)
        st = pairs_step(t, &result);
    if (!st)
        st = traffic_end_step(r, t, traffic);
    traffic_begin(r, t);
    if (!st && !hd_job_has_policy(&hd_trainer_rank_program(t)->job))
        st = hd_trainer_validate(t, &loss, &targets);
    if (!st)
        st = traffic_end_validation(r, t, traffic);
    hd_trainer_free(t);
    return st;
}

enum hd_status traffic_try_on_gloo(const struct hd_job *job, struct traffic *shared)
{
    (void)traffic_backend();
    return harness_gloo_processes(job, run_world(job), shared, count_traffic);
}

enum hd_status traffic_try(const struct hd_job *job, struct traffic *traffic)
{
    (void)traffic_backend();
    return harness_threads(job, run_world(job), traffic, count_traffic);
}

void traffic_count(const struct hd_job *job, struct traffic *traffic)
{
    if (traffic_try(job, traffic))
        fail_msg("%s", hd_err_message());
}

int64_t traffic_moved(const struct traffic *traffic, int world, enum hd_group_name group,
                      enum hd_comm_kind kind)
{
    int64_t bytes = 0;

    for (int r = 0; r < world; r++)
        bytes += (int64_t)traffic->step[r].of[group][kind].moved_bytes;
    return bytes;
}

/* A program says what the whole group moves; each of its members says it. A transfer is said by the
 * rank that receives. */
static double dry_bytes(const struct traffic *traffic, const struct hd_rank_program *layout,
                        int group, int kind)
{
    double bytes = 0;

    for (int r = 0; r < layout->mesh.world; r++)
        bytes += (double)traffic->dry[r].group_bytes[group][kind] /
                 (kind == HD_COMM_RECV
                      ? 1
                      : hd_mesh_find_group(&layout->mesh, (enum hd_group_name)group, r).size);
    return bytes;
}

static enum hd_status compare_kind(const struct traffic *traffic,
                                   const struct hd_rank_program *layout, int group, int kind)
{
    const int world = layout->mesh.world;
    const int64_t moved =
        traffic_moved(traffic, world, (enum hd_group_name)group, (enum hd_comm_kind)kind);
    const double said = dry_bytes(traffic, layout, group, kind);

    for (int r = 0; r < world; r++) {
        const uint64_t calls = traffic->step[r].of[group][kind].calls;

        if (calls != (uint64_t)traffic->dry[r].calls[group][kind])
            return hd_err(HD_INVALID, "rank %d: %llu times %s over %s, dry says %lld", r,
                          (unsigned long long)calls, hd_comm_kind_name((enum hd_comm_kind)kind),
                          hd_group_text((enum hd_group_name)group),
                          (long long)traffic->dry[r].calls[group][kind]);
    }
    if ((double)moved != said)
        return hd_err(HD_INVALID, "%lld bytes of %s over %s, dry says %.1f", (long long)moved,
                      hd_comm_kind_name((enum hd_comm_kind)kind),
                      hd_group_text((enum hd_group_name)group), said);
    return HD_OK;
}

enum hd_status traffic_compare_dry(const struct traffic *traffic, const struct hd_job *job)
{
    struct hd_rank_program layout;
    struct hd_arena arena;
    enum hd_status st = HD_OK;

    hd_arena_init(&arena, 0);
    run_layout(job, &traffic->layout, &arena, &layout);
    for (int g = 0; !st && g < HD_GROUP_COUNT; g++)
        for (int k = 0; !st && k < HD_COMM_KIND_COUNT; k++)
            st = compare_kind(traffic, &layout, g, k);
    hd_arena_done(&arena);
    return st;
}

void traffic_check_dry(const struct traffic *traffic, const struct hd_job *job)
{
    if (traffic_compare_dry(traffic, job))
        fail_msg("%s", hd_err_message());
}
