/* A rank of ours in layouts_cpu. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/bench/layouts_cpu.h"
#include "train/train.h"

enum { DEADLINE_MS = 120 * 1000 };

struct clocks {
    enum hd_call call; /* of the last launch */
    int64_t ns[LAYOUTS_PARTS];
};

static void observe(void *context, const struct hd_launch_event *event)
{
    struct clocks *c = context;

    c->call = event->call;
}

static enum layouts_part part_of(const struct clocks *c, const struct hd_span *span)
{
    const bool passes = c->call == HD_CALL_F || c->call == HD_CALL_B || c->call == HD_CALL_W;

    if (span->kind == HD_SPAN_LAUNCH && span->node->is_comm)
        return LAYOUTS_LAUNCH;
    if (span->kind == HD_SPAN_LAUNCH)
        return c->call == HD_CALL_F ? LAYOUTS_FORWARD : passes ? LAYOUTS_BACKWARD : LAYOUTS_UPDATE;
    if (span->kind == HD_SPAN_POLL)
        return LAYOUTS_POLL;
    return span->kind == HD_SPAN_WAIT && passes ? LAYOUTS_WAIT : LAYOUTS_END;
}

static void add_span(void *context, const struct hd_span *span)
{
    struct clocks *c = context;

    c->ns[part_of(c, span)] += span->end_ns - span->begin_ns;
}

/* ---- memory ---- */

static int64_t high_water_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    long long kib = 0;
    char line[256];

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (file)
        (void)fclose(file);
    return kib * 1024;
}

/* Resident pages of the registered memory of other ranks, which are also counted there. */
static int64_t bytes_of_peers(int rank)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    unsigned long from, to;
    char line[512], own[32];
    bool of_peer = false;
    int64_t bytes = 0;
    long long kib;

    (void)snprintf(own, sizeof own, "heddle-rank-%d ", rank);
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            of_peer = strstr(line, "memfd:heddle-rank-") && !strstr(line, own);
        else if (of_peer && sscanf(line, "Rss: %lld", &kib) == 1)
            bytes += kib * 1024;
    }
    if (file)
        (void)fclose(file);
    return bytes;
}

static void say_memory(const struct hd_trainer *t, int rank)
{
    const struct hd_reservation *r = hd_trainer_reservation(t);
    const struct hd_memory *m = &hd_trainer_rank_program(t)->memory;

    printf("%lld %lld\n",
           (long long)(high_water_bytes() - r->resident_before_bytes - bytes_of_peers(rank)),
           (long long)(m->private_bytes + m->registered_bytes));
}

/* ---- steps ---- */

static enum hd_status run_steps(struct hd_trainer *t, int count, struct clocks *clocks)
{
    memset(clocks->ns, 0, sizeof clocks->ns);
    for (int i = 0; i < count; i++) {
        const int64_t begin_ns = hd_clock_now_ns();
        struct hd_step_result result;
        const enum hd_status st = hd_trainer_step(t, 0, &result);

        if (st)
            return st;
        printf("%.3f ", (double)(hd_clock_now_ns() - begin_ns) * 1e-6);
    }
    for (int k = 0; k < LAYOUTS_PARTS; k++)
        printf("%.4f ", (double)clocks->ns[k] * 1e-6 / count);
    printf("\n");
    return HD_OK;
}

static enum hd_status serve(struct hd_trainer *t, const struct layouts_rank *r)
{
    struct clocks clocks = {.call = HD_CALL_S};
    enum hd_status st = HD_OK;
    char line[64];

    hd_runner_observe(hd_trainer_runner(t), observe, &clocks);
    hd_runner_profile(hd_trainer_runner(t),
                      &(struct hd_profiler){.span = add_span, .context = &clocks});
    while (!st && fgets(line, sizeof line, stdin) && strncmp(line, "end", 3)) {
        if (!strncmp(line, "memory", 6))
            say_memory(t, r->rank);
        else
            st = run_steps(t, atoi(line + strlen("run ")), &clocks);
        (void)fflush(stdout);
    }
    return st;
}

static enum hd_status open_comm(const struct layouts_rank *r, struct hd_comm **ret_comm)
{
    if (r->world == 1)
        return hd_comm_open_self(ret_comm);
    if (r->shm)
        return hd_comm_open_shm(hd_shm_control_fd(r->shm), hd_shm_control_rank_fds(r->shm), r->rank,
                                r->world, DEADLINE_MS, ret_comm);
    return hd_comm_open_gloo(r->door, r->cards, r->rank, r->world, DEADLINE_MS, ret_comm);
}

int layouts_cpu_rank(void *context)
{
    const struct layouts_rank *r = context;
    struct hd_trainer_options options = {.backend = hd_backend_cpu(), .rank = r->rank};
    struct hd_trainer *t = NULL;
    struct hd_step_result warm;
    struct hd_traits traits;
    enum hd_status st = open_comm(r, &options.comm);

    if (!st)
        st = hd_trainer_new(r->job, &options, &t);
    if (!st)
        st = hd_trainer_init(t);
    if (!st)
        st = hd_trainer_step(t, 0, &warm);
    if (!st) {
        hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = (int)r->job->threads},
                                   &traits);
        printf("heddle, %s, %s, %s\n", hd_comm_engine_name(options.comm), traits.isa,
               traits.library);
        (void)fflush(stdout);
        st = serve(t, r);
    }
    if (st)
        fprintf(stderr, "layouts_cpu: rank %d: %s\n", r->rank, hd_err_message());
    if (st && options.comm)
        hd_comm_abort(options.comm, hd_err_message());
    hd_trainer_free(t);
    hd_comm_free(options.comm);
    return st ? 1 : 0;
}
