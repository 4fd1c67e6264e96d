/* train_cpu: our training step beside PyTorch's and beside its own floor, in one go.
 *
 *   train_cpu [--case a|b|full|lora|qlora] [--precision fp32|bf16] [--runs 5] [--ops]
 *             [--peer torch|peft --python PYTHON [--compile]]
 *   train_cpu --smoke [--case NAME] [--peer ...]   every case at its smallest, one run: a test
 *
 * Cases, one rank of 2 threads, GPT-2 models, AdamW, clipping at 1:
 *   a   6 layers x 384 x 6 heads, vocabulary 256, 16 sequences of 256 tokens a step
 *   b   GPT-2 124M, 4 sequences of 256 tokens a step
 * and, when they are named, fine-tuning of a Qwen2.5-0.5B shape, 2 sequences of 256 tokens a step:
 *   full    all of it
 *   lora    rank 16 on all linears, beside full
 *   qlora   the same on a base of nf4, beside lora
 * With --peer peft the last two also beside PEFT on transformers and PyTorch (and bitsandbytes).
 *
 * Every run takes a few steps of each peer in turn (ours, the floor, PyTorch), all of them kept
 * warm; the table gives the median over the runs with the smallest and largest, the median of the
 * ratios within a run, and the peak resident memory of each process. On a busy machine ratios
 * within a run are what to look at. --ops adds where our time goes. --compile adds torch.compile.
 *
 * The floor takes each product of the step at the best rate that it reaches alone, on plain
 * weights. The figures of docs/PERFORMANCE.md come from here. Run by hand; nothing depends on
 * PyTorch.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/bench_peer.h"
#include "tests/bench/train_cpu.h"

enum { PEERS_MAX = 4, ARGS_MAX = 16, STEPS_MAX = 16 };

static const struct train_case cases[] = {
#define QWEN                                                                                      \
    .layers = 24, .hidden = 896, .heads = 14, .kv_heads = 2, .ffn_hidden = 4864, .vocab = 151936, \
    .context = 256, .batch = 2, .steps = 1
    {"a", "6 layers x 384, vocabulary 256, S 256, B 16", 6, 384, 6, 256, 256, 16, .steps = 4},
    {"b", "GPT-2 124M, S 256, B 4", 12, 768, 12, 50257, 256, 4, .steps = 2},
    {"full", "Qwen2.5-0.5B, S 256, B 2", QWEN},
    {"lora", "Qwen2.5-0.5B, S 256, B 2, LoRA 16", QWEN, .beside = "full", .adapter = true},
    {"qlora", "Qwen2.5-0.5B, S 256, B 2, LoRA 16 on nf4", QWEN, .beside = "lora", .adapter = true,
     .weights = "nf4"},
};

/* Set in the environment of peers, too, which find their case by name. */
static const char smoke_variable[] = "HEDDLE_BENCH_SMOKE";

static bool is_smoke(void)
{
    return getenv(smoke_variable) != NULL;
}

/* Returns a case at its smallest: every kernel and pass of it, in milliseconds. */
static struct train_case smallest(struct train_case c)
{
    c.layers = 2;
    c.hidden = 64;
    c.heads = 4;
    c.vocab = 256;
    c.context = 32;
    c.batch = 2;
    c.steps = 1;
    if (c.ffn_hidden) {
        c.kv_heads = 2;
        c.ffn_hidden = 96;
    }
    return c;
}

const struct train_case *train_case_find(const char *name)
{
    static struct train_case small[sizeof cases / sizeof cases[0]];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(cases[i].name, name) != 0)
            continue;
        small[i] = smallest(cases[i]);
        return is_smoke() ? &small[i] : &cases[i];
    }
    return NULL;
}

struct hd_job train_case_job(const struct train_case *c, const char *precision,
                             struct hd_job_file *file)
{
    struct hd_job j = bench_job(c->ffn_hidden ? "qwen2" : "gpt2", precision, "cpu", file);

    j.layers = c->layers;
    j.hidden = c->hidden;
    j.heads = j.kv_heads = c->heads;
    j.head_width = c->hidden / c->heads;
    j.qkv_bias = j.out_bias = j.mlp_bias = true;
    j.ffn_hidden = 4 * c->hidden;
    j.vocab = c->vocab;
    j.context = c->context;
    j.rope_theta = 10000;
    j.global_batch = j.micro_batch = c->batch;
    j.threads = TRAIN_CPU_THREADS;
    j.tokenizer = "bytes";
    j.order = HD_JOB_ORDER_SHUFFLED;
    j.model_weights =
        hd_job_find_word(hd_job_model_weights_words, c->weights ? c->weights : "plain");
    j.adapter = c->adapter ? HD_JOB_ADAPTER_LORA : HD_JOB_ADAPTER_NONE;
    if (c->ffn_hidden) {
        j.kv_heads = c->kv_heads;
        j.ffn_hidden = c->ffn_hidden;
        j.out_bias = j.mlp_bias = false;
        j.tie_embeddings = true;
    }
    j.adapter_rank = 16;
    j.adapter_alpha = 32;
    j.adapter_b_lr = 1;
    j.adapter_targets = "all-linear";
    return j;
}

/* ---- peers ---- */

struct peer {
    struct bench_peer process;
    double ms[BENCH_RUNS_MAX], parts[BENCH_RUNS_MAX][3]; /* parts: of the floor */
};

static void start(struct peer *p, const char *name, const char *const *argv)
{
    char about[BENCH_ABOUT_MAX];

    bench_peer_exec(&p->process, name, argv);
    bench_peer_about(&p->process, about);
    printf("%-14s %s", name, about);
    (void)fflush(stdout);
}

static void run(struct peer *p, int round, int steps, bool is_floor)
{
    double numbers[STEPS_MAX];
    char line[32];
    int count;

    (void)snprintf(line, sizeof line, "run %d", steps);
    bench_peer_tell(&p->process, line);
    count = bench_peer_hear(&p->process, numbers, STEPS_MAX);
    if (is_floor) {
        p->ms[round] = numbers[0];
        memcpy(p->parts[round], numbers + 1, sizeof p->parts[round]);
    } else {
        p->ms[round] = bench_spread(numbers, count).median;
    }
}

/* ---- the table ---- */

static double ratio(const struct peer *above, const struct peer *below, int runs)
{
    double ratios[BENCH_RUNS_MAX];

    for (int i = 0; i < runs; i++)
        ratios[i] = above->ms[i] / below->ms[i];
    return bench_spread(ratios, runs).median;
}

static void print_peer(const struct train_case *c, const struct peer *p, int runs)
{
    const double tokens = (double)(c->batch * c->context);
    const struct bench_spread ms = bench_spread(p->ms, runs);

    printf("  %-14s %9.1f ms a step (%.1f .. %.1f) %9.0f tokens/s  peak %6.0f MiB\n",
           p->process.name, ms.median, ms.least, ms.most, tokens / ms.median * 1e3,
           bench_peak_mib(p->process.pid));
}

struct setting {
    const char *python, *script;
    const char *peft; /* the script of that peer; NULL: it is not asked for */
    int runs;
    bool compile, ops;
};

static void start_torch(struct peer *p, const struct setting *s, const struct train_case *c,
                        const char *precision, bool compile)
{
    char text[6][24], threads[24];
    const int64_t sizes[6] = {c->layers, c->hidden, c->heads, c->vocab, c->context, c->batch};
    const char *argv[ARGS_MAX] = {s->python, s->script};

    for (int i = 0; i < 6; i++) {
        (void)snprintf(text[i], sizeof text[i], "%lld", (long long)sizes[i]);
        argv[2 + i] = text[i];
    }
    (void)snprintf(threads, sizeof threads, "%d", TRAIN_CPU_THREADS);
    argv[8] = precision;
    argv[9] = threads;
    argv[10] = compile ? "compile" : "eager";
    start(p, compile ? "torch.compile" : "torch", argv);
}

static void run_case(const struct setting *s, const struct train_case *c, const char *precision,
                     const char *corpus)
{
    const char *ours[] = {"/proc/self/exe", "--serve",           "ours", c->name, precision,
                          corpus,           s->ops ? "ops" : "", NULL};
    const char *bottom[] = {"/proc/self/exe", "--serve",           "floor", c->name, precision,
                            corpus,           s->ops ? "ops" : "", NULL};
    struct peer peers[PEERS_MAX];
    double parts[3];
    int count = 2;

    printf("\ncase %s, %s, %s\n", c->name, precision, c->what);
    start(&peers[0], "ours", ours);
    start(&peers[1], "floor", bottom);
    if (s->python)
        start_torch(&peers[count++], s, c, precision, false);
    if (s->python && s->compile)
        start_torch(&peers[count++], s, c, precision, true);
    for (int i = 0; i < s->runs; i++)
        for (int p = 0; p < count; p++)
            run(&peers[p], i, c->steps, p == 1);
    for (int p = 0; p < count; p++)
        print_peer(c, &peers[p], s->runs);
    for (int k = 0; k < 3; k++) {
        double values[BENCH_RUNS_MAX];

        for (int i = 0; i < s->runs; i++)
            values[i] = peers[1].parts[i][k];
        parts[k] = bench_spread(values, s->runs).median;
    }
    printf("  the floor: products %.1f ms, attention's products %.1f ms, bytes %.1f ms\n", parts[0],
           parts[1], parts[2]);
    printf("  floor / ours %.2f", ratio(&peers[1], &peers[0], s->runs));
    for (int p = 2; p < count; p++)
        printf("   %s / ours %.2f", peers[p].process.name, ratio(&peers[p], &peers[0], s->runs));
    printf("\n");
    (void)fflush(stdout);
    for (int p = 0; p < count; p++)
        bench_peer_stop(&peers[p].process);
}

static void start_peft(struct peer *p, const struct setting *s, const struct train_case *c,
                       const char *precision)
{
    char text[8][24], threads[24];
    const int64_t sizes[8] = {c->layers,     c->hidden, c->heads,   c->kv_heads,
                              c->ffn_hidden, c->vocab,  c->context, c->batch};
    const char *argv[ARGS_MAX] = {s->python, s->peft};

    for (int i = 0; i < 8; i++) {
        (void)snprintf(text[i], sizeof text[i], "%lld", (long long)sizes[i]);
        argv[2 + i] = text[i];
    }
    (void)snprintf(threads, sizeof threads, "%d", TRAIN_CPU_THREADS);
    argv[10] = precision;
    argv[11] = threads;
    argv[12] = c->weights ? c->weights : "plain";
    start(p, "peft", argv);
}

static void start_ours(struct peer *p, const struct setting *s, const struct train_case *c,
                       const char *what, const char *precision, const char *corpus)
{
    const char *argv[] = {"/proc/self/exe", "--serve",           what, c->name, precision,
                          corpus,           s->ops ? "ops" : "", NULL};

    start(p, !strcmp(what, "ours") ? c->name : what, argv);
}

/* A case of fine-tuning beside another one of ours, and beside its floor and PEFT. */
static void run_tuning(const struct setting *s, const struct train_case *c, const char *precision,
                       const char *corpus)
{
    const struct train_case *all[] = {c, c->beside ? train_case_find(c->beside) : NULL};
    struct peer peers[PEERS_MAX];
    int count = 0, bottom = -1;

    printf("\ncase %s, %s, %s\n", c->name, precision, c->what);
    for (int p = 0; p < 2 && all[p]; p++)
        start_ours(&peers[count++], s, all[p], "ours", precision, corpus);
    if (c->adapter && s->peft) {
        start_ours(&peers[bottom = count++], s, c, "floor", precision, corpus);
        start_peft(&peers[count++], s, c, precision);
    }
    for (int i = 0; i < s->runs; i++)
        for (int p = 0; p < count; p++)
            run(&peers[p], i, c->steps, p == bottom);
    for (int p = 0; p < count; p++)
        print_peer(c, &peers[p], s->runs);
    if (all[1])
        printf("  %s / %s %.2f\n", c->name, c->beside, ratio(&peers[0], &peers[1], s->runs));
    for (int p = 2; p < count; p++)
        printf("  %s / %s %.2f\n", peers[p].process.name, c->name,
               ratio(&peers[p], &peers[0], s->runs));
    (void)fflush(stdout);
    for (int p = 0; p < count; p++)
        bench_peer_stop(&peers[p].process);
}

/* ---- the command ---- */

static int serve(char **argv)
{
    struct hd_job_file file = {.path = argv[3], .size_bytes = BENCH_CORPUS_BYTES};
    const struct train_case *c = train_case_find(argv[1]);
    const struct hd_job job = train_case_job(c, argv[2], &file);

    return !strcmp(argv[0], "ours") ? train_cpu_ours(&job, argv[4][0]) : train_cpu_floor(&job);
}

/* Sets one environment for all peers; the allocator's part helps PyTorch, ours allocates nothing in
 * a step. */
static void set_environment(void)
{
    char threads[24];

    (void)snprintf(threads, sizeof threads, "%d", TRAIN_CPU_THREADS);
    (void)setenv("OMP_NUM_THREADS", threads, 1);
    (void)setenv("OMP_PROC_BIND", "close", 1);
    (void)setenv("OMP_PLACES", "cores", 1);
    bench_keep_memory();
}

int main(int argc, char **argv)
{
    static const char *const precisions[] = {"fp32", "bf16"};
    char dir[BENCH_DIR_MAX], corpus[BENCH_CORPUS_MAX];
    const char *only_case = bench_value_of(argc, argv, "--case", NULL);
    const char *only_precision = bench_value_of(argc, argv, "--precision", NULL);
    struct setting s = {.python = bench_value_of(argc, argv, "--python", NULL),
                        .script = HEDDLE_BENCH_TORCH,
                        .runs = atoi(bench_value_of(argc, argv, "--runs", "5")),
                        .compile = bench_has(argc, argv, "--compile"),
                        .ops = bench_has(argc, argv, "--ops")};

    if (argc == 7 && !strcmp(argv[1], "--serve"))
        return serve(argv + 2);
    if (s.runs < 1 || s.runs > BENCH_RUNS_MAX)
        bench_die("--runs", "give 1 to 64");
    if (bench_has(argc, argv, "--smoke")) {
        (void)setenv(smoke_variable, "1", 1);
        s.runs = 1;
        s.ops = true;
    }
    if (only_case && !train_case_find(only_case))
        bench_die("--case", "use a, b, full, lora or qlora");
    if (!strcmp(bench_value_of(argc, argv, "--peer", ""), "peft"))
        s.peft = HEDDLE_BENCH_PEFT;
    if (*bench_value_of(argc, argv, "--peer", "") && !s.python)
        s.python = "python3";
    (void)signal(SIGPIPE, SIG_IGN);
    set_environment();
    if (bench_make_dir(dir) || bench_write_corpus(dir, corpus))
        bench_die("corpus", hd_err_message());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = 0; k < sizeof precisions / sizeof precisions[0]; k++)
            if ((only_case ? !strcmp(only_case, cases[i].name)
                           : is_smoke() || !cases[i].ffn_hidden) &&
                (!only_precision || !strcmp(only_precision, precisions[k])))
                (cases[i].ffn_hidden ? run_tuning : run_case)(&s, train_case_find(cases[i].name),
                                                              precisions[k], corpus);
    (void)hd_file_remove_tree(dir);
    return 0;
}
