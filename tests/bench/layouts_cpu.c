/* layouts_cpu: what a layout of two ranks costs, beside plain data parallelism and beside PyTorch.
 *
 *   layouts_cpu [--engine shm|gloo] [--case NAME,..] [--precision fp32|bf16] [--runs 5] [--where]
 *               [--peer torch|none] [--python PYTHON] [--smoke] [--help]
 *
 * A GPT-2 model of 6 layers x 384 (train_cpu's case a), vocabulary 256, 16 sequences of 128 tokens
 * a step in every layout, AdamW, clipping at 1. Two processes of one thread each, but for `one`:
 *
 *   one              one rank of two threads                       PyTorch: one process
 *   dp               plain data parallelism                        PyTorch: DDP
 *   zero1, zero2     ZeRO 1 and 2
 *   zero3            ZeRO 3                                        PyTorch: FSDP
 *   selective, full  dp with recompute
 *   pp4, pp8         two stages, 1f1b, 4 and 8 micro-batches       PyTorch: pipelining,
 * Schedule1F1B
 *
 * --case takes some of them; dp always runs, and with PyTorch one. Without --engine: shm, then
 * gloo. PyTorch (over gloo) runs beside our engine gloo. Every run takes a few steps of each in
 * turn, all processes kept warm; a step takes as long as its slower rank. The table gives medians
 * over the runs with the smallest and largest; ratios are of one run. Where other work disturbs the
 * machine, also look at the ratios of the best steps of all runs.
 *
 * Memory of a rank: the peak that the system saw (VmHWM less what was resident before, less pages
 * of the other rank's memory that it reads), and our plan.
 *
 * A pipeline is held against its list: hd_schedule_walk with the times that the kernels of F and B
 * took in the same steps, plus those of the update. --where shows where a rank's time goes.
 * --smoke: one run of a small model, a test of this program.
 *
 * The figures of docs/PERFORMANCE.md come from here. Run by hand; nothing depends on PyTorch.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "pipeline/pipeline.h"
#include "plan/plan.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/bench_peer.h"
#include "tests/bench/layouts_cpu.h"

enum { VOCAB = 256, BATCH = 16, STEPS = 3 /* a run */, TORCH_NUMBERS_MAX = 16 };

/* The model's sizes; --smoke makes them small. */
static struct {
    int layers, hidden, heads, context;
} model = {6, 384, 6, 128};

static const char usage[] =
    "usage: layouts_cpu [--engine shm|gloo] [--case NAME,..] [--precision fp32|bf16] [--runs 5]\n"
    "                   [--where] [--peer torch|none] [--python PYTHON] [--smoke]\n"
    "cases: one dp zero1 zero2 zero3 selective full pp4 pp8; dp always runs\n"
    "PYTHON has torch; without --python it is $HEDDLE_PYTHON, or python3\n";

struct layout {
    const char *name;
    int world;
    int64_t pp, zero, micro_batches;
    const char *recompute;
    const char *torch; /* its layout in PyTorch, or NULL */
};

enum { ONE, DP, ZERO1, ZERO2, ZERO3, SELECTIVE, FULL, PP4, PP8, LAYOUTS };
static const struct layout layouts[LAYOUTS] = {
    [ONE] = {"one", 1, 1, 0, 1, "none", "one"},
    [DP] = {"dp", 2, 1, 0, 1, "none", "ddp"},
    [ZERO1] = {"zero1", 2, 1, 1, 1, "none", NULL},
    [ZERO2] = {"zero2", 2, 1, 2, 1, "none", NULL},
    [ZERO3] = {"zero3", 2, 1, 3, 1, "none", "fsdp"},
    [SELECTIVE] = {"selective", 2, 1, 0, 1, "selective", NULL},
    [FULL] = {"full", 2, 1, 0, 1, "full", NULL},
    [PP4] = {"pp4", 2, 2, 0, 4, "none", "pp"},
    [PP8] = {"pp8", 2, 2, 0, 8, "none", "pp"},
};

struct setting {
    const char *engine, *precision, *python; /* python NULL: no PyTorch */
    char dir[BENCH_DIR_MAX], corpus[BENCH_CORPUS_MAX];
    int runs;
    bool where, chosen[LAYOUTS];
};

/* The processes of one layout, ours or PyTorch's. */
struct side {
    bool runs;
    struct bench_peer ranks[LAYOUTS_RANKS];
    double ms[BENCH_RUNS_MAX], best_ms;                         /* best_ms: of all single steps */
    double parts[LAYOUTS_RANKS][LAYOUTS_PARTS][BENCH_RUNS_MAX]; /* ours only */
    double taken_mib, planned_mib;                              /* of the rank with the most */
};

struct measured {
    struct side ours[LAYOUTS], torch[LAYOUTS];
    double walked[LAYOUTS][BENCH_RUNS_MAX]; /* ms; pipelines only */
    double planned_wait[LAYOUTS], list_wait[LAYOUTS][BENCH_RUNS_MAX];
};

/* ---- our ranks ---- */

static int threads_of(const struct layout *l)
{
    return LAYOUTS_RANKS / l->world;
}

static struct hd_job job_of(const struct setting *s, const struct layout *l,
                            struct hd_job_file *file)
{
    struct hd_job j = bench_job("gpt2", s->precision, "cpu", file);

    *file = (struct hd_job_file){.path = (char *)s->corpus, .size_bytes = BENCH_CORPUS_BYTES};
    j.layers = model.layers;
    j.hidden = model.hidden;
    j.heads = j.kv_heads = model.heads;
    j.head_width = model.hidden / model.heads;
    j.qkv_bias = j.out_bias = j.mlp_bias = true;
    j.ffn_hidden = 4L * model.hidden;
    j.vocab = VOCAB;
    j.context = model.context;
    j.rope_theta = 10000;
    j.threads = threads_of(l);
    j.pp = l->pp;
    j.dp = l->world / l->pp;
    j.zero = l->zero;
    j.devices_min = j.devices_max = l->world;
    j.global_batch = BATCH;
    j.micro_batch = BATCH / j.dp / l->micro_batches;
    bench_job_word(j.recompute, l->recompute);
    bench_job_word(j.schedule, l->pp > 1 ? "1f1b" : "none");
    j.tokenizer = "bytes";
    j.order = HD_JOB_ORDER_SHUFFLED;
    return j;
}

static void start_ours(struct side *side, const struct setting *s, const struct layout *l)
{
    struct hd_job_file file;
    const struct hd_job job = job_of(s, l, &file);
    struct layouts_rank rank = {.job = &job, .world = l->world};
    struct hd_gloo_listener *doors[LAYOUTS_RANKS] = {NULL};
    struct hd_gloo_endpoint cards[LAYOUTS_RANKS];
    char about[BENCH_ABOUT_MAX];

    if (l->world > 1 && !strcmp(s->engine, "shm") && hd_shm_control_new(l->world, &rank.shm))
        bench_die(l->name, hd_err_message());
    for (int r = 0; l->world > 1 && !rank.shm && r < l->world; r++) {
        if (hd_gloo_listener_open("127.0.0.1", "here", &doors[r]))
            bench_die(l->name, hd_err_message());
        cards[r] = *hd_gloo_listener_endpoint(doors[r]);
    }
    rank.cards = cards;
    for (rank.rank = 0; rank.rank < l->world; rank.rank++) {
        rank.door = doors[rank.rank];
        bench_peer_fork(&side->ranks[rank.rank], l->name, layouts_cpu_rank, &rank);
    }
    for (int r = 0; r < l->world; r++) {
        bench_peer_about(&side->ranks[r], about);
        hd_gloo_listener_close(doors[r]);
    }
    hd_shm_control_free(rank.shm);
    side->runs = true;
    printf("%-10s %s", l->name, about);
    (void)fflush(stdout);
}

/* ---- PyTorch's ---- */

static void bind_threads(const struct layout *l)
{
    const bool one = l->world == 1;

    (void)setenv("OMP_NUM_THREADS", one ? "2" : "1", 1);
    (void)setenv("OMP_PROC_BIND", one ? "close" : "false", 1); /* two processes: not to one core */
    (void)setenv("OMP_PLACES", "cores", 1);
    (void)setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    bench_keep_memory();
}

static void start_torch(struct side *side, const struct setting *s, const struct layout *l)
{
    const int64_t shape[] = {model.layers, model.hidden, model.heads, VOCAB, model.context, BATCH};
    enum { SHAPE = sizeof shape / sizeof shape[0] };
    char numbers[TORCH_NUMBERS_MAX][24], store[BENCH_DIR_MAX + 32], about[BENCH_ABOUT_MAX];
    const char *argv[TORCH_NUMBERS_MAX + 4] = {s->python, HEDDLE_BENCH_TORCH};
    int n = 2;

    (void)snprintf(store, sizeof store, "%s/store-%s", s->dir, l->name);
    for (int i = 0; i < SHAPE; i++, n++) {
        (void)snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)shape[i]);
        argv[n] = numbers[i];
    }
    (void)snprintf(numbers[SHAPE], sizeof *numbers, "%d", threads_of(l));
    (void)snprintf(numbers[SHAPE + 1], sizeof *numbers, "%d", l->world);
    (void)snprintf(numbers[SHAPE + 2], sizeof *numbers, "%d", (int)l->micro_batches);
    argv[n++] = s->precision;
    argv[n++] = numbers[SHAPE];
    argv[n++] = l->torch;
    argv[n++] = numbers[SHAPE + 3]; /* the rank */
    argv[n++] = numbers[SHAPE + 1];
    argv[n++] = numbers[SHAPE + 2];
    argv[n++] = store;
    argv[n] = NULL;
    bind_threads(l);
    for (int r = 0; r < l->world; r++) {
        (void)snprintf(numbers[SHAPE + 3], sizeof *numbers, "%d", r);
        bench_peer_exec(&side->ranks[r], l->torch, argv);
    }
    for (int r = 0; r < l->world; r++)
        bench_peer_about(&side->ranks[r], about);
    side->runs = true;
    printf("%-10s %s", l->name, about);
    (void)fflush(stdout);
}

/* ---- a run ---- */

static void run_side(struct side *side, const struct layout *l, int run)
{
    double slowest[STEPS] = {0};
    char line[32];

    (void)snprintf(line, sizeof line, "run %d", STEPS);
    for (int r = 0; r < l->world; r++)
        bench_peer_tell(&side->ranks[r], line);
    for (int r = 0; r < l->world; r++) {
        double numbers[STEPS + LAYOUTS_PARTS] = {0};

        if (bench_peer_hear(&side->ranks[r], numbers, STEPS + LAYOUTS_PARTS) < STEPS)
            bench_die(l->name, "answered less than its steps");
        for (int i = 0; i < STEPS; i++)
            slowest[i] = numbers[i] > slowest[i] ? numbers[i] : slowest[i];
        for (int k = 0; k < LAYOUTS_PARTS; k++)
            side->parts[r][k][run] = numbers[STEPS + k];
    }
    side->ms[run] = bench_spread(slowest, STEPS).median;
    if (run == 0 || bench_spread(slowest, STEPS).least < side->best_ms)
        side->best_ms = bench_spread(slowest, STEPS).least;
}

static void read_memory(struct side *side, const struct layout *l)
{
    const double mib = 1 << 20;

    for (int r = 0; r < l->world; r++) {
        double bytes[2] = {0, 0};

        bench_peer_tell(&side->ranks[r], "memory");
        if (bench_peer_hear(&side->ranks[r], bytes, 2) < 1)
            bench_die(l->name, "does not say its memory");
        if (bytes[0] / mib > side->taken_mib) {
            side->taken_mib = bytes[0] / mib;
            side->planned_mib = bytes[1] / mib;
        }
    }
}

/* The step that the list of a pipeline gives, of the times of its programs in this run. */
static void walk(struct measured *m, int k, int run)
{
    const struct layout *l = &layouts[k];
    const struct hd_pipeline pipeline = {.stages = LAYOUTS_RANKS, .chunks = LAYOUTS_RANKS};
    double forward[LAYOUTS_RANKS], backward[LAYOUTS_RANKS], update = 0;
    struct hd_schedule_times times;
    struct hd_schedule order;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    for (int r = 0; r < LAYOUTS_RANKS; r++) {
        const double own = m->ours[k].parts[r][LAYOUTS_UPDATE][run];

        forward[r] = m->ours[k].parts[r][LAYOUTS_FORWARD][run] / (double)l->micro_batches;
        backward[r] = m->ours[k].parts[r][LAYOUTS_BACKWARD][run] / (double)l->micro_batches;
        update = own > update ? own : update;
    }
    if (hd_schedule_build(HD_SCHEDULE_1F1B, &pipeline, (int32_t)l->micro_batches, false, &arena,
                          &order) ||
        hd_schedule_walk(&order, &(struct hd_schedule_costs){forward, backward, NULL, 0}, &arena,
                         &times))
        bench_die(l->name, hd_err_message());
    m->walked[k][run] = times.total + update;
    m->list_wait[k][run] = times.bubble;
    hd_arena_done(&arena);
}

/* The ratio of waiting that `heddle plan` predicts, in FLOPs. */
static void plan_wait(struct measured *m, const struct setting *s, int k)
{
    struct hd_job_file file;
    const struct hd_job job = job_of(s, &layouts[k], &file);
    struct hd_traits traits;
    struct hd_arena arena;
    struct hd_plan plan;

    hd_arena_init(&arena, 0);
    hd_backend_cpu()->describe(&(struct hd_backend_options){.threads = (int)job.threads}, &traits);
    if (hd_plan_build(&job, &traits, &arena, &plan))
        bench_die(layouts[k].name, hd_err_message());
    m->planned_wait[k] = plan.bubble;
    hd_arena_done(&arena);
}

/* ---- the table ---- */

static struct bench_spread ratio(const double *above, const double *below, int runs)
{
    double ratios[BENCH_RUNS_MAX];

    for (int i = 0; i < runs; i++)
        ratios[i] = above[i] / below[i];
    return bench_spread(ratios, runs);
}

static void print_spread(int decimals, struct bench_spread s)
{
    char text[96];

    (void)snprintf(text, sizeof text, "%.*f (%.*f .. %.*f)", decimals, s.median, decimals, s.least,
                   decimals, s.most);
    printf(" | %-22s", text);
}

static void print_table(const struct measured *m, const struct setting *s)
{
    printf("\n%-9s | %-22s | %8s | %-22s | %-10s | %-23s | %-22s | %-22s | %-10s | %s\n", "layout",
           "ms a step", "tokens/s", "tokens/s, of dp's", "best steps", "MiB a rank, and planned",
           "PyTorch, ms a step", "PyTorch / ours", "best steps", "PyTorch, MiB a rank");
    for (int k = 0; k < LAYOUTS; k++) {
        const struct side *o = &m->ours[k], *t = &m->torch[k];
        const struct bench_spread ms = bench_spread(o->ms, s->runs);

        if (!o->runs)
            continue;
        printf("%-9s", layouts[k].name);
        print_spread(1, ms);
        printf(" | %8.0f", BATCH * model.context / ms.median * 1e3);
        print_spread(3, ratio(m->ours[DP].ms, o->ms, s->runs));
        printf(" | %10.3f", m->ours[DP].best_ms / o->best_ms);
        printf(" | %9.1f / %-11.1f", o->taken_mib, o->planned_mib);
        if (t->runs) {
            print_spread(1, bench_spread(t->ms, s->runs));
            print_spread(2, ratio(t->ms, o->ms, s->runs));
            printf(" | %10.2f | %.1f", t->best_ms / o->best_ms, t->taken_mib);
        }
        printf("\n");
    }
}

static void print_pipelines(const struct measured *m, const struct setting *s)
{
    for (int k = PP4; k <= PP8; k++) {
        const struct side *o = &m->ours[k];
        const struct bench_spread walked = bench_spread(m->walked[k], s->runs);
        const struct bench_spread over = ratio(o->ms, m->walked[k], s->runs);

        if (!o->runs)
            continue;
        printf("%-9s walked list %.1f ms (%.1f .. %.1f); step / list %.3f (%.3f .. %.3f); a stage "
               "waits %.1f%% of the list, by FLOPs %.1f%%\n",
               layouts[k].name, walked.median, walked.least, walked.most, over.median, over.least,
               over.most, 100 * bench_spread(m->list_wait[k], s->runs).median,
               100 * m->planned_wait[k]);
        for (int r = 0; r < LAYOUTS_RANKS; r++)
            printf("%-9s stage %d: F %.2f ms, B %.2f ms a micro-batch, update %.2f ms\n", "", r,
                   bench_spread(o->parts[r][LAYOUTS_FORWARD], s->runs).median /
                       (double)layouts[k].micro_batches,
                   bench_spread(o->parts[r][LAYOUTS_BACKWARD], s->runs).median /
                       (double)layouts[k].micro_batches,
                   bench_spread(o->parts[r][LAYOUTS_UPDATE], s->runs).median);
    }
}

static void print_where(const struct measured *m, const struct setting *s)
{
    printf(
        "\nms a step      rank  forward backward   update   launch     poll     wait      end\n");
    for (int k = 0; k < LAYOUTS; k++)
        for (int r = 0; m->ours[k].runs && r < layouts[k].world; r++) {
            printf("%-14s %4d", layouts[k].name, r);
            for (int p = 0; p < LAYOUTS_PARTS; p++)
                printf(" %8.2f", bench_spread(m->ours[k].parts[r][p], s->runs).median);
            printf("\n");
        }
}

/* ---- the bars ---- */

/* By the median; `best`, of the best steps of either side, tells what a busy machine did to it. */
static void print_bar(const char *what, struct bench_spread value, double best, double bar)
{
    printf("bar: %-50s %.3f (%.3f .. %.3f), at least %.2f: %s; of best steps %.3f\n", what,
           value.median, value.least, value.most, bar, value.median >= bar ? "met" : "missed",
           best);
}

/* Tokens per second of a layout, of dp's. */
static void print_dp_bar(const struct measured *m, const struct setting *s, int k, double bar)
{
    char what[80];

    if (!m->ours[k].runs)
        return;
    (void)snprintf(what, sizeof what, "%s: tokens/s, of dp's", layouts[k].name);
    print_bar(what, ratio(m->ours[DP].ms, m->ours[k].ms, s->runs),
              m->ours[DP].best_ms / m->ours[k].best_ms, bar);
}

/* PyTorch / ours in this layout, over the same in one process. */
static void print_peer_bar(const struct measured *m, const struct setting *s, int k)
{
    double here[BENCH_RUNS_MAX];
    char what[80];

    if (!m->torch[k].runs || !m->torch[ONE].runs)
        return;
    for (int i = 0; i < s->runs; i++)
        here[i] = m->torch[k].ms[i] / m->ours[k].ms[i] / (m->torch[ONE].ms[i] / m->ours[ONE].ms[i]);
    (void)snprintf(what, sizeof what, "%s: PyTorch / ours, over that in one process",
                   layouts[k].name);
    print_bar(what, bench_spread(here, s->runs),
              m->torch[k].best_ms / m->ours[k].best_ms /
                  (m->torch[ONE].best_ms / m->ours[ONE].best_ms),
              1);
}

static void print_bars(const struct measured *m, const struct setting *s)
{
    if (!strcmp(s->engine, "shm")) {
        print_dp_bar(m, s, ZERO1, 0.95);
        print_dp_bar(m, s, ZERO3, 0.85);
    }
    for (int k = PP4; k <= PP8; k++)
        if (m->ours[k].runs) {
            const struct bench_spread over = ratio(m->ours[k].ms, m->walked[k], s->runs);

            printf("bar: %s: step / walked list %33.3f (%.3f .. %.3f), at most 1.10: %s\n",
                   layouts[k].name, over.median, over.least, over.most,
                   over.median <= 1.1 ? "met" : "missed");
        }
    print_peer_bar(m, s, DP);
    print_peer_bar(m, s, PP4);
    print_peer_bar(m, s, PP8);
}

/* ---- an engine ---- */

static void stop_side(struct side *side, const struct layout *l)
{
    for (int r = 0; side->runs && r < l->world; r++)
        bench_peer_stop(&side->ranks[r]);
}

/* All of ours start first: a copy of this process would keep the pipes of PyTorch's open. */
static void start_all(struct measured *m, const struct setting *s)
{
    for (int k = 0; k < LAYOUTS; k++)
        if (s->chosen[k])
            start_ours(&m->ours[k], s, &layouts[k]);
    for (int k = 0; s->python && !strcmp(s->engine, "gloo") && k < LAYOUTS; k++)
        if (s->chosen[k] && layouts[k].torch)
            start_torch(&m->torch[k], s, &layouts[k]);
    for (int k = PP4; k <= PP8; k++)
        if (s->chosen[k])
            plan_wait(m, s, k);
}

static void run_all(struct measured *m, int run)
{
    for (int k = 0; k < LAYOUTS; k++) {
        if (m->ours[k].runs)
            run_side(&m->ours[k], &layouts[k], run);
        if (m->ours[k].runs && layouts[k].pp > 1)
            walk(m, k, run);
        if (m->torch[k].runs)
            run_side(&m->torch[k], &layouts[k], run);
    }
}

static void run_engine(const struct setting *s)
{
    static struct measured m;

    memset(&m, 0, sizeof m);
    printf("\nengine %s, %s, %d layers x %d, vocabulary %d, %d sequences of %d a step, %d runs of "
           "%d steps\n",
           s->engine, s->precision, model.layers, model.hidden, VOCAB, BATCH, model.context,
           s->runs, STEPS);
    start_all(&m, s);
    for (int i = 0; i < s->runs; i++)
        run_all(&m, i);
    for (int k = 0; k < LAYOUTS; k++) {
        if (m.ours[k].runs)
            read_memory(&m.ours[k], &layouts[k]);
        if (m.torch[k].runs)
            read_memory(&m.torch[k], &layouts[k]);
    }
    print_table(&m, s);
    print_pipelines(&m, s);
    if (s->where)
        print_where(&m, s);
    print_bars(&m, s);
    (void)fflush(stdout);
    for (int k = 0; k < LAYOUTS; k++) {
        stop_side(&m.ours[k], &layouts[k]);
        stop_side(&m.torch[k], &layouts[k]);
    }
}

/* ---- the command ---- */

static void choose(struct setting *s, const char *names)
{
    char copy[256], *rest = copy;

    (void)snprintf(copy, sizeof copy, "%s", names);
    for (char *name; (name = strtok_r(rest, ",", &rest));) {
        int k = 0;

        while (k < LAYOUTS && strcmp(name, layouts[k].name))
            k++;
        if (k == LAYOUTS)
            bench_die("--case", "use one dp zero1 zero2 zero3 selective full pp4 pp8");
        s->chosen[k] = true;
    }
    s->chosen[DP] = true;
    s->chosen[ONE] |= s->python != NULL;
}

int main(int argc, char **argv)
{
    static const char *const engines[] = {"shm", "gloo"};
    static const char all[] = "one,dp,zero1,zero2,zero3,selective,full,pp4,pp8";
    const char *only = bench_value_of(argc, argv, "--engine", NULL);
    const char *peer = bench_value_of(argc, argv, "--peer", "none");
    const char *python = getenv("HEDDLE_PYTHON");
    struct setting s = {.precision = bench_value_of(argc, argv, "--precision", "fp32"),
                        .runs = atoi(bench_value_of(argc, argv, "--runs", "5")),
                        .where = bench_has(argc, argv, "--where")};

    if (bench_has(argc, argv, "--smoke")) {
        model.layers = 2;
        model.hidden = 64;
        model.heads = 4;
        model.context = 32;
        s.runs = 1;
        s.where = true;
    }
    if (bench_has(argc, argv, "--help")) {
        (void)fputs(usage, stdout);
        return 0;
    }
    if (!strcmp(peer, "torch"))
        s.python = bench_value_of(argc, argv, "--python", python ? python : "python3");
    else if (strcmp(peer, "none"))
        bench_die("--peer", "use torch or none");
    if (s.runs < 1 || s.runs > BENCH_RUNS_MAX)
        bench_die("--runs", "give 1 to 64");
    if (strcmp(s.precision, "fp32") && strcmp(s.precision, "bf16"))
        bench_die("--precision", "use fp32 or bf16");
    if (only && strcmp(only, "shm") && strcmp(only, "gloo"))
        bench_die("--engine", "use shm or gloo");
    choose(&s, bench_value_of(argc, argv, "--case", all));
    (void)signal(SIGPIPE, SIG_IGN);
    if (bench_make_dir(s.dir) || bench_write_corpus(s.dir, s.corpus))
        bench_die("corpus", hd_err_message());
    for (int e = 0; e < 2; e++) {
        s.engine = engines[e];
        if (only && strcmp(only, s.engine))
            continue;
        if (e == 1 && !hd_gloo_built_in())
            printf("\nengine gloo: not in this build\n");
        else
            run_engine(&s);
    }
    (void)hd_file_remove_tree(s.dir);
    return 0;
}
