#include "traffic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

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
    return HD_OK;
}

/* What the step plan would send, folded over the programs that it names. */
static void fold_step(const struct hd_layout *l, struct hd_dry *ret_dry)
{
    for (int i = 0; i < l->plan.count; i++) {
        const struct hd_instruction *in = &l->plan.list[i];

        if (in->kind == HD_DO_RUN)
            hd_dry_add(ret_dry, l->train, in->call, in->first, in->last);
        else if (in->kind == HD_DO_UPDATE)
            hd_dry_add(ret_dry, l->update, HD_CALL_U, true, true);
    }
}

static enum hd_status count_traffic(struct harness_rank *r)
{
    struct traffic *traffic = r->context;
    const struct hd_trainer_options options = {
        .backend = hd_backend_cpu(), .comm = r->comm, .rank = r->rank, .layout = traffic->layout};
    struct hd_step_result result;
    struct hd_trainer *t;
    double loss;
    int64_t targets;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = hd_trainer_init(t);
    if (!st)
        st = hd_trainer_step(t, 0, &result); /* any first-time traffic is not the step's */
    hd_comm_count_reset(r->comm);
    if (!st)
        st = hd_trainer_step(t, 0, &result);
    if (!st)
        st = read_counters(r, &hd_trainer_layout(t)->mesh, &traffic->step[r->rank]);
    hd_comm_count_reset(r->comm);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    if (!st)
        st = read_counters(r, &hd_trainer_layout(t)->mesh, &traffic->validation[r->rank]);
    fold_step(hd_trainer_layout(t), &traffic->dry[r->rank]);
    hd_trainer_free(t);
    return st;
}

enum hd_status traffic_try(const struct hd_job *job, struct traffic *traffic)
{
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

/* A program says what the whole group moves; each of its members says it. */
static double dry_bytes(const struct traffic *traffic, const struct hd_layout *layout, int group,
                        int kind)
{
    double bytes = 0;

    for (int r = 0; r < layout->mesh.world; r++)
        bytes += (double)traffic->dry[r].group_bytes[group][kind] /
                 hd_mesh_find_group(&layout->mesh, (enum hd_group_name)group, r).size;
    return bytes;
}

static enum hd_status compare_kind(const struct traffic *traffic, const struct hd_layout *layout,
                                   int group, int kind)
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
                          hd_group_name((enum hd_group_name)group),
                          (long long)traffic->dry[r].calls[group][kind]);
    }
    if ((double)moved != said)
        return hd_err(HD_INVALID, "%lld bytes of %s over %s, dry says %.1f", (long long)moved,
                      hd_comm_kind_name((enum hd_comm_kind)kind),
                      hd_group_name((enum hd_group_name)group), said);
    return HD_OK;
}

enum hd_status traffic_compare_dry(const struct traffic *traffic, const struct hd_job *job)
{
    struct hd_layout layout;
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
