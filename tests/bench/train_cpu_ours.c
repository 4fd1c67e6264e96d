/* Our peer of train_cpu: one rank that trains, and, when asked, where its time goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/bench/train_cpu.h"
#include "train/train.h"

/* Time and costs by kernel, from the calls before each launch. */
struct ops {
    int64_t ns[HD_KERNEL_COUNT], last_ns, count[HD_KERNEL_COUNT];
    struct hd_costs costs[HD_KERNEL_COUNT];
    const struct hd_node *last;
};

static void end_last(struct ops *o)
{
    const int64_t now_ns = hd_clock_now_ns();

    if (o->last && !o->last->is_comm) {
        o->ns[o->last->kernel] += now_ns - o->last_ns;
        o->count[o->last->kernel]++;
        hd_kernel_cost_add(&o->costs[o->last->kernel], o->last->kernel, o->last->args);
    }
    o->last = NULL;
}

static void observe(void *context, const struct hd_launch_event *event)
{
    struct ops *o = context;

    end_last(o);
    o->last = event->node;
    o->last_ns = hd_clock_now_ns();
}

static void print_ops(const struct ops *o, int steps)
{
    int64_t total_ns = 0;

    for (int k = 0; k < HD_KERNEL_COUNT; k++)
        total_ns += o->ns[k];
    for (int k = 0; k < HD_KERNEL_COUNT; k++)
        if (o->count[k])
            fprintf(stderr, "    %-26s %5lld launches %9.3f ms %5.1f%%  %8.1f GF/s %7.1f GB/s\n",
                    hd_kernel_get_info((enum hd_kernel)k)->name, (long long)(o->count[k] / steps),
                    (double)o->ns[k] * 1e-6 / steps, 100.0 * (double)o->ns[k] / (double)total_ns,
                    o->costs[k].flops / (double)o->ns[k],
                    (double)(o->costs[k].read_bytes + o->costs[k].write_bytes) / (double)o->ns[k]);
}

static int fail(void)
{
    fprintf(stderr, "train_cpu: %s\n", hd_err_message());
    return 1;
}

static enum hd_status run_steps(struct hd_trainer *t, int count, struct ops *ops)
{
    for (int i = 0; i < count; i++) {
        struct hd_step_result result;
        enum hd_status st = hd_trainer_step(t, 0, &result);

        if (st)
            return st;
        if (ops)
            end_last(ops);
        printf("%.3f ", result.step_ms);
    }
    printf("\n");
    (void)fflush(stdout);
    return HD_OK;
}

int train_cpu_ours(const struct hd_job *job, bool show_ops)
{
    struct hd_trainer_options options = {.backend = hd_backend_cpu()};
    struct hd_trainer *t = NULL;
    struct hd_step_result warm;
    struct ops ops = {.last = NULL};
    struct hd_traits traits;
    char line[64];
    int steps = 0;

    if (hd_comm_open_self(&options.comm) || hd_trainer_new(job, &options, &t) ||
        hd_trainer_init(t) || hd_trainer_step(t, 0, &warm))
        return fail();
    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = (int)job->threads}, &traits);
    printf("heddle, %s, %s, %d threads\n", traits.isa, traits.library, traits.threads);
    (void)fflush(stdout);
    if (show_ops)
        hd_runner_observe(hd_trainer_runner(t), observe, &ops);
    while (fgets(line, sizeof line, stdin)) {
        const int count = atoi(line + strlen("run "));

        if (run_steps(t, count, show_ops ? &ops : NULL))
            return fail();
        steps += count;
    }
    if (show_ops && steps)
        print_ops(&ops, steps);
    hd_trainer_free(t);
    hd_comm_free(options.comm);
    return 0;
}
