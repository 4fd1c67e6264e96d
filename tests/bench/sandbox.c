/* sandbox: what the locks of a rank cost (docs/isolation.md): steps of the same training in a
 * process that has locked itself in and in one that has not, in turns, in one run.
 *
 *     sandbox [--rounds 30] [--steps 4] [--threads 2] [--layers 6] [--context 128]
 *
 * Small steps make many calls of the system for what they compute: threads sleep and wake.
 * The two peers are equal but for the locks; which one goes first changes from round to round. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/isolation/sandbox.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/bench_peer.h"
#include "train/train.h"

enum { STEPS_MAX = 64 };

struct side {
    const struct hd_job *job;
    const char *dir;
    bool locked;
};

static int fail(const char *name)
{
    fprintf(stderr, "sandbox: %s: %s\n", name, hd_err_message());
    return 1;
}

static enum hd_status lock_in(const char *dir, struct hd_text *said)
{
    struct hd_sandbox *sandbox;
    enum hd_status st = hd_sandbox_begin(0, &sandbox);

    if (st)
        return st;
    st = hd_sandbox_allow(sandbox, dir, HD_SANDBOX_READ);
    for (int i = 0; !st && i < 4; i++)
        st = hd_sandbox_allow(sandbox, (const char *[]){"/usr", "/lib", "/proc", "/sys"}[i],
                              HD_SANDBOX_READ);
    if (!st)
        st = hd_sandbox_enter(sandbox, said, said);
    hd_sandbox_free(sandbox);
    return st;
}

static int serve(void *context)
{
    const struct side *side = context;
    const char *name = side->locked ? "locked in" : "bare";
    struct hd_trainer_options options = {.backend = hd_backend_cpu()};
    struct hd_trainer *t = NULL;
    struct hd_step_result result;
    struct hd_text said = {0};
    char line[64];

    if ((side->locked && lock_in(side->dir, &said)) || hd_comm_open_self(&options.comm) ||
        hd_trainer_new(side->job, &options, &t) || hd_trainer_init(t) ||
        hd_trainer_step(t, 0, &result))
        return fail(name);
    printf("%s\n", said.len_bytes ? said.data : "no locks");
    (void)fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n") != 0) {
        for (int i = atoi(line + strlen("run ")); i > 0; i--) {
            if (hd_trainer_step(t, 0, &result))
                return fail(name);
            printf("%.4f ", result.step_ms);
        }
        printf("\n");
        (void)fflush(stdout);
    }
    hd_trainer_free(t);
    hd_comm_free(options.comm);
    hd_text_free(&said);
    return 0;
}

/* Milliseconds of a step: the median of so many. */
static double run(struct bench_peer *peer, int steps)
{
    double ms[STEPS_MAX];
    char line[32];

    (void)snprintf(line, sizeof line, "run %d", steps);
    bench_peer_tell(peer, line);
    return bench_spread(ms, bench_peer_hear(peer, ms, STEPS_MAX)).median;
}

static struct hd_job make_job(int argc, char **argv, struct hd_job_file *file)
{
    struct hd_job j = bench_job("gpt2", "fp32", "cpu", file);

    j.layers = atoi(bench_value_of(argc, argv, "--layers", "6"));
    j.hidden = 384;
    j.heads = j.kv_heads = 6;
    j.head_width = 64;
    j.ffn_hidden = 4 * j.hidden;
    j.qkv_bias = j.out_bias = j.mlp_bias = true;
    j.vocab = 256;
    j.context = atoi(bench_value_of(argc, argv, "--context", "128"));
    j.rope_theta = 10000;
    j.global_batch = j.micro_batch = 4;
    j.threads = atoi(bench_value_of(argc, argv, "--threads", "2"));
    j.tokenizer = "bytes";
    j.order = HD_JOB_ORDER_SHUFFLED;
    j.model_weights = HD_JOB_MODEL_WEIGHTS_PLAIN;
    j.adapter = HD_JOB_ADAPTER_NONE;
    return j;
}

int main(int argc, char **argv)
{
    const int rounds = atoi(bench_value_of(argc, argv, "--rounds", "30"));
    const int steps = atoi(bench_value_of(argc, argv, "--steps", "4"));
    struct hd_job_file file = {.size_bytes = BENCH_CORPUS_BYTES};
    char dir[BENCH_DIR_MAX], corpus[BENCH_CORPUS_MAX], about[BENCH_ABOUT_MAX];
    double ratios[BENCH_RUNS_MAX];
    struct bench_peer peers[2];
    struct bench_spread spread;
    struct side sides[2];
    struct hd_job job;

    if (rounds < 1 || rounds > BENCH_RUNS_MAX || steps < 1 || steps > STEPS_MAX)
        bench_die("sandbox", "too many rounds or steps");
    if (bench_make_dir(dir) || bench_write_corpus(dir, corpus))
        bench_die("sandbox", hd_err_message());
    file.path = corpus;
    job = make_job(argc, argv, &file);
    for (int i = 0; i < 2; i++) {
        sides[i] = (struct side){.job = &job, .dir = dir, .locked = i == 1};
        bench_peer_fork(&peers[i], i ? "locked in" : "bare", serve, &sides[i]);
        bench_peer_about(&peers[i], about);
        printf("%-10s %s", i ? "locked in" : "bare", about);
    }
    for (int r = 0; r < rounds; r++) {
        double ms[2];

        ms[r % 2] = run(&peers[r % 2], steps);
        ms[1 - r % 2] = run(&peers[1 - r % 2], steps);
        ratios[r] = ms[0] / ms[1];
    }
    spread = bench_spread(ratios, rounds);
    printf("tokens/s, locked in / bare: %.4f (median of %d rounds of %d steps; %.4f to %.4f)\n",
           spread.median, rounds, steps, spread.least, spread.most);
    for (int i = 0; i < 2; i++)
        bench_peer_stop(&peers[i]);
    (void)remove(corpus);
    (void)remove(dir);
    return 0;
}
