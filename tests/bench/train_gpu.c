/* train_gpu: a training step on a GPU: tokens per second, MFU, memory, and where the time goes.
 *
 *   train_gpu [--case 124m|1558m|qwen|llama|toy] [--precision bf16|fp32] [--warm-up 3] [--steps 10]
 *             [--micro N] [--global N] [--epilogues fused|apart]
 *             [--peer torch] [--peer torch-cudnn] [--python PYTHON]
 *
 * Without --case the first four, one after the other: GPT-2 124M and 1558M, the shape of
 * Qwen2.5-1.5B (1024 tokens), and 1.2B of the Llama type (4096 tokens). One GPU, random tokens,
 * AdamW, clipping at 1. The table has the median step with the smallest and largest; then, of one
 * further step with events around its launches, the device's time by class of kernel, and by kernel
 * and shape of product, beside what its launches would take at the measured bandwidth (an addition
 * over three large arrays) and, for products and attention, at the peak that MFU is quoted against.
 * --epilogues apart: GELU is a pass of its own behind the library's products and
 * not within. --peer torch lets PyTorch (compiled, with the attention that it chooses, which its line
 * names) take the same steps afterwards, in a process of its own; --peer torch-cudnn with cuDNN's
 * attention.
 *
 * Behind each case stand the clocks, as nvidia-smi tells them. Where there is no GPU it says why,
 * and has nothing to do. Run by hand.
 */
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/plugin.h"
#include "tests/bench/gpu_clocks.h"
#include "tests/bench/train_gpu.h"

extern char **environ;

enum { NUMBER_CHARS = 24, TORCH_NUMBERS = 12, TORCH_ARGS = 5 + TORCH_NUMBERS + 1 };

static const char *const torches[] = {"torch", "torch-cudnn"};
enum { TORCHES = sizeof torches / sizeof torches[0] };

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "train_gpu: %s: %s\n", what, why);
    exit(1);
}

/* ---- PyTorch ---- */

/* Starts it; returns what it prints. */
static FILE *start_torch(const char *python, const char *which, const struct gpu_case *c,
                         const struct gpu_run *run, pid_t *ret_pid)
{
    const int64_t values[TORCH_NUMBERS] = {
        c->layers, c->hidden,  c->heads,       c->kv_heads,     c->head_width, c->ffn_hidden,
        c->vocab,  c->context, c->micro_batch, c->global_batch, run->warm_up,  run->steps};
    char numbers[TORCH_NUMBERS][NUMBER_CHARS], precision[8], family[16], peer[16];
    char script[] = HEDDLE_BENCH_TORCH, program[4096];
    char *argv[TORCH_ARGS] = {program, script, family, precision, peer};
    posix_spawn_file_actions_t actions;
    int ends[2], error;

    (void)snprintf(program, sizeof program, "%s", python);
    (void)snprintf(family, sizeof family, "%s", c->family);
    (void)snprintf(precision, sizeof precision, "%s", run->precision);
    (void)snprintf(peer, sizeof peer, "%s", which);
    for (int i = 0; i < TORCH_NUMBERS; i++) {
        (void)snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)values[i]);
        argv[5 + i] = numbers[i];
    }
    if (pipe(ends))
        die("pipe", strerror(errno));
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addclose(&actions, ends[0]);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    error = posix_spawnp(ret_pid, program, &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    if (error)
        die(python, strerror(error));
    return fdopen(ends[0], "r");
}

/* The report of PyTorch's run: what it is, then its steps' milliseconds, then its peak in MiB and
 * its loss. */
struct torch_report {
    char about[256];
    double ms[TRAIN_GPU_STEPS_MAX], mib, loss;
};

static bool read_torch(FILE *from, int steps, struct torch_report *ret_report)
{
    struct torch_report *r = ret_report;

    if (!from || !fgets(r->about, sizeof r->about, from))
        return false;
    r->about[strcspn(r->about, "\n")] = '\0';
    for (int i = 0; i < steps; i++)
        if (fscanf(from, "%lf", &r->ms[i]) != 1)
            return false;
    return fscanf(from, "%lf %lf", &r->mib, &r->loss) == 2;
}

/* Without PyTorch, ours stands alone. */
static void torch(const char *python, const char *which, const struct gpu_case *c,
                  const struct gpu_run *run, double ours_ms)
{
    const double tokens = (double)(c->global_batch * c->context);
    struct torch_report r = {.mib = 0};
    double least = 1e30, most = 0, median;
    pid_t pid;
    FILE *from = start_torch(python, which, c, run, &pid);
    const bool complete = read_torch(from, run->steps, &r);
    int status;

    if (from)
        (void)fclose(from);
    (void)waitpid(pid, &status, 0);
    if (!complete) {
        printf("  %-14s did not get through its steps; what it said is above\n", which);
        return;
    }
    for (int i = 0; i < run->steps; i++) {
        least = r.ms[i] < least ? r.ms[i] : least;
        most = r.ms[i] > most ? r.ms[i] : most;
    }
    median = train_gpu_median(r.ms, run->steps);
    printf("  %-14s %9.2f ms a step (%.2f .. %.2f) %9.0f tokens/s  peak %.0f MiB  "
           "loss %.4f\n",
           which, median, least, most, tokens / median * 1e3, r.mib, r.loss);
    printf("  %s is %s; torch / ours %.3f\n", which, r.about, median / ours_ms);
}

/* ---- the command ---- */

static int torch_of_name(const char *name)
{
    for (int i = 0; i < TORCHES; i++)
        if (!strcmp(name, torches[i]))
            return i;
    die("--peer", "is torch or torch-cudnn");
}

static int number(const char *option, const char *text, int most)
{
    char *end;
    const long value = strtol(text, &end, 10);

    if (*end || end == text || value < 1 || value > most)
        die(option, "is not a number that it can be");
    return (int)value;
}

static void run_case(const struct gpu_case *c, const struct gpu_run *run, const char *bus,
                     const char *python, const bool peers[TORCHES])
{
    double ms;

    printf("\ncase %s, %s, %s: steps of %lld x %lld tokens, %lld sequences at a time\n", c->name,
           run->precision, c->what, (long long)c->global_batch, (long long)c->context,
           (long long)c->micro_batch);
    if (train_gpu_ours(c, run, stdout, &ms))
        die(c->name, hd_err_message());
    gpu_clocks_print(bus, stdout);
    (void)fflush(stdout);
    for (int i = 0; i < TORCHES; i++)
        if (peers[i])
            torch(python, torches[i], c, run, ms);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    struct gpu_run run = {.precision = "bf16", .warm_up = 3, .steps = 10};
    const char *name = NULL, *python = "python3";
    bool peers[TORCHES] = {false};
    struct hd_plugin_gpu gpus[HD_PLUGIN_GPUS_MAX];
    int64_t micro = 0, global = 0;
    struct hd_traits traits;
    int count;

    for (int i = 1; i < argc; i += 2) {
        const char *option = argv[i], *value = argv[i + 1];

        if (!value)
            die(option, "wants a value; see the first comment of train_gpu.c");
        if (!strcmp(option, "--case"))
            name = value;
        else if (!strcmp(option, "--precision"))
            run.precision = value;
        else if (!strcmp(option, "--warm-up"))
            run.warm_up = number(option, value, TRAIN_GPU_STEPS_MAX);
        else if (!strcmp(option, "--steps"))
            run.steps = number(option, value, TRAIN_GPU_STEPS_MAX);
        else if (!strcmp(option, "--micro"))
            micro = number(option, value, 1 << 20);
        else if (!strcmp(option, "--global"))
            global = number(option, value, 1 << 20);
        else if (!strcmp(option, "--peer"))
            peers[torch_of_name(value)] = true;
        else if (!strcmp(option, "--epilogues") && !strcmp(value, "apart"))
            run.apart = true;
        else if (!strcmp(option, "--epilogues") && !strcmp(value, "fused"))
            run.apart = false;
        else if (!strcmp(option, "--python"))
            python = value;
        else
            die(option, "is not known; see the first comment of train_gpu.c");
    }
    if (name && !gpu_case_find(name))
        die(name, "there is no such case");
    if (hd_plugin_cuda(&run.table) || hd_plugin_cuda_gpus(gpus, &count)) {
        printf("SKIPPED: %s\n", hd_err_message());
        return 0;
    }
    run.table->describe(&(struct hd_backend_options){.threads = 1}, &traits);
    printf("%s, %lld MiB, capability %d, %s\n", gpus[0].name,
           (long long)(gpus[0].memory_bytes >> 20), gpus[0].capability, traits.library);
    for (int i = 0; gpu_case_at(i); i++) {
        struct gpu_case c = *gpu_case_at(i);

        if (name ? strcmp(name, c.name) != 0 : !strcmp(c.name, "toy"))
            continue;
        c.micro_batch = micro ? micro : c.micro_batch;
        c.global_batch = global ? global : c.global_batch;
        run_case(&c, &run, gpus[0].bus, python, peers);
    }
    return 0;
}
