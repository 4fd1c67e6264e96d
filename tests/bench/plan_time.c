/* plan_time: how near the planner's times come to those of real steps.
 *
 *   plan_time [--model NAME,..] [--every 1] [--rounds 3] [--steps 4] [--worker HEDDLE_WORKER]
 *             [--one FILE --two FILE] [--beside 0.05] [--wait 600] [--minutes 60] [--least]
 *             [--where]
 *   plan_time --smoke [--model NAME,..]    a few layouts, one step of each, no probe: a test
 *
 * Every legal layout of one rank of two threads and of two ranks of one thread, of three small
 * models, that is, dp, tp, cp, pp and ep of two, ZeRO 0 to 3, all policies of recompute, all
 * schedules and two or three micro-batches: each is priced (plan/search.h) after a probe of
 * this machine, and run as ranks run it, over the engine shm. --every N takes each N-th of them.
 * The layouts that the search chooses of all there are, on one device and on two, are always among
 * them.
 *
 * The probes (`heddle-worker probe`, one of two devices and one of a device of two threads) come
 * first; --one and --two take files of earlier ones instead. Then rounds: in each, every layout
 * starts, takes one step to warm up and --steps measured ones, and ends; so what disturbs the
 * machine for a while disturbs all layouts alike. A step takes as long as its slower rank; a
 * layout's time is the median over the rounds of the lower quartile of a round's steps; with
 * --least the least over the rounds, for a machine that others use. After --minutes no further
 * round is begun. In a quarter of an hour:
 *
 *   build/dev/bench/plan_time --every 3 --minutes 12 --wait 60 --worker build/dev/bin/heddle-worker
 *
 * While a probe or a layout runs, other programs (and the hypervisor) may take at most --beside of
 * the processors' time; else what it measured is thrown away and it runs again, as long as --wait
 * seconds in all are not spent so. Then the last result counts, and the number of such is printed.
 *
 * Prints a table and the three figures of merit with their aims, and MISSED where one is not met:
 * the mean error (15%), Spearman's rank correlation over all layouts of a model (0.9; beside it
 * that of two rounds with one another: no prediction of both can be nearer), and the time of the
 * layout with the least predicted time beside the fastest measured one (10%, beyond the spread of
 * its rounds); and the first two over the layouts of all models. --where prints where the predicted
 * step goes. Run by hand, on a quiet machine with two cores; nothing is fitted to what it measures.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "plan/calibration.h"
#include "plan/search.h"
#include "tests/bench/bench_job.h"
#include "tests/bench/bench_peer.h"
#include "tests/bench/layouts_cpu.h"

enum { CASES_MAX = 1024, ROUNDS_MAX = 16, STEPS_MAX = 16, CORES = 2 };

static const char usage[] =
    "usage: plan_time [--model gpt2,llama,mixtral] [--every 1] [--rounds 3] [--steps 4]\n"
    "                 [--worker HEDDLE_WORKER] [--one FILE --two FILE] [--beside 0.05] [--wait "
    "600]\n"
    "                 [--minutes 60] [--least] [--where] [--smoke]\n";

/* ---- models and layouts ---- */

static const struct model {
    const char *name;
    int64_t layers, hidden, heads, kv_heads, ffn_hidden, vocab, context, batch, experts;
} models[] = {{"gpt2", 4, 256, 4, 4, 1024, 512, 128, 16, 0},
              {"llama", 4, 320, 8, 4, 896, 1024, 256, 8, 0},
              {"mixtral", 4, 192, 6, 2, 384, 512, 128, 16, 4}};
enum { MODELS = sizeof models / sizeof models[0] };

struct time_case {
    const struct model *model;
    struct hd_layout_sizes sizes;
    int world;
    double predicted_s, round_s[ROUNDS_MAX];
    struct hd_step_cost cost;
    int rounds;
    bool chosen;                /* by the search, of all layouts of its number of devices */
    struct bench_spread spread; /* of the rounds */
};

struct setting {
    const char *names, *worker, *one, *two;
    int every, rounds, steps;
    double beside, wait_s; /* wait_s: what is left */
    int disturbed;         /* results that count although others took more than `beside` */
    int64_t end_ns;        /* no round begins after it */
    bool where, least, smoke;
    char dir[BENCH_DIR_MAX], corpus[BENCH_CORPUS_MAX];
    struct hd_cluster clusters[CORES + 1]; /* of one device, of two */
    struct hd_arena arena;
};

static struct hd_job job_of(const struct setting *s, const struct model *m,
                            struct hd_job_file *file)
{
    struct hd_job j = bench_job(m->name, "fp32", "cpu", file);
    const bool gpt2 = strcmp(m->name, "gpt2") == 0;

    *file = (struct hd_job_file){.path = (char *)s->corpus, .size_bytes = BENCH_CORPUS_BYTES};
    j.layers = m->layers;
    j.hidden = m->hidden;
    j.heads = m->heads;
    j.kv_heads = m->kv_heads;
    j.head_width = m->hidden / m->heads;
    j.ffn_hidden = m->ffn_hidden;
    j.vocab = m->vocab;
    j.context = m->context;
    j.rope_theta = 10000;
    j.global_batch = m->batch;
    j.tie_embeddings = j.qkv_bias = j.out_bias = j.mlp_bias = gpt2;
    if (m->experts) {
        j.experts = m->experts;
        j.experts_per_token = 2;
        j.renormalize = true;
        j.balance = 0.01;
    }
    j.tokenizer = "bytes";
    j.order = HD_JOB_ORDER_SHUFFLED;
    j.moments = HD_JOB_MOMENTS_FP32;
    j.adapter = HD_JOB_ADAPTER_NONE;
    j.model_weights = HD_JOB_MODEL_WEIGHTS_PLAIN;
    j.offload = HD_JOB_OFFLOAD_NONE;
    j.reduce = HD_JOB_REDUCE_FP32;
    return j;
}

static struct hd_plan_request request_of(const struct hd_job *j)
{
    return (struct hd_plan_request){.sizes = j->layout,
                                    .global_batch = j->global_batch,
                                    .layers = j->layers,
                                    .heads = j->heads,
                                    .kv_heads = j->kv_heads,
                                    .ffn_hidden = j->ffn_hidden,
                                    .context = j->context,
                                    .experts = j->experts,
                                    .vocab = j->vocab};
}

/* Adds the layout if it is legal and something that can be priced. */
static void add_case(struct setting *s, const struct model *m, const struct hd_layout_sizes *sizes,
                     struct time_case *cases, int *count)
{
    const int world = (int)(sizes->tp * sizes->pp * sizes->dp * sizes->cp);
    struct hd_job_file file;
    struct hd_job job = job_of(s, m, &file);
    struct hd_search_asked asked = {
        .spec = &job, .cluster = &s->clusters[world], .devices = world, .threads = CORES / world};
    struct time_case *c = &cases[*count];
    struct hd_plan_request request;
    struct hd_layout_sizes legal;
    struct hd_search_plan plan;
    struct hd_arena arena;

    job.layout = *sizes;
    job.layout.threads = CORES / world;
    request = request_of(&job);
    if (*count == CASES_MAX || hd_plan_size(&request, world, &legal))
        return;
    hd_plan_decide_device(HD_JOB_DEVICE_CPU, false, CORES / world, &legal);
    job.layout = legal;
    asked.request = &request;
    hd_arena_init(&arena, 0);
    if (!hd_search_cost(&asked, &legal, &arena, &plan)) {
        *c = (struct time_case){.model = m,
                                .sizes = plan.job.layout,
                                .world = world,
                                .predicted_s = plan.cost.step_s,
                                .cost = plan.cost};
        (*count)++;
    }
    hd_arena_done(&arena);
}

static void add_variants(struct setting *s, const struct model *m, struct hd_layout_sizes z,
                         struct time_case *cases, int *count)
{
    static const char *const policies[] = {"none", "selective", "full"};
    const int64_t replicas = z.dp * z.cp, most = m->batch / z.dp;
    const int zeros = replicas > 1 ? 4 : 1;

    for (int64_t mb = most; mb >= 1 && mb >= most / 8; mb /= 4)
        for (int zero = 0; zero < zeros; zero++)
            for (int p = 0; p < 3; p++) {
                if (z.pp > 1 && mb == most)
                    continue; /* one micro-batch is no pipeline */
                z.micro_batch = mb;
                z.zero = zero;
                bench_job_word(z.recompute, policies[p]);
                add_case(s, m, &z, cases, count);
            }
}

static void add_layouts(struct setting *s, const struct model *m, struct time_case *cases,
                        int *count)
{
    static const struct {
        int64_t tp, pp, dp, cp, ep, virtual_stages;
        const char *schedule;
    } shapes[] = {{1, 1, 1, 1, 1, 1, "none"},  {1, 1, 2, 1, 1, 1, "none"},
                  {2, 1, 1, 1, 1, 1, "none"},  {1, 1, 1, 2, 1, 1, "none"},
                  {1, 1, 2, 1, 2, 1, "none"},  {1, 2, 1, 1, 1, 1, "1f1b"},
                  {1, 2, 1, 1, 1, 1, "gpipe"}, {1, 2, 1, 1, 1, 2, "interleaved"},
                  {1, 2, 1, 1, 1, 1, "zb-h1"}, {1, 2, 1, 1, 1, 2, "zb-v"}};

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct hd_layout_sizes z = {.tp = shapes[i].tp,
                                    .pp = shapes[i].pp,
                                    .dp = shapes[i].dp,
                                    .cp = shapes[i].cp,
                                    .ep = shapes[i].ep,
                                    .virtual_stages = shapes[i].virtual_stages,
                                    .sequence = shapes[i].tp > 1};

        if (shapes[i].ep > 1 && !m->experts)
            continue;
        bench_job_word(z.schedule, shapes[i].schedule);
        bench_job_word(z.stages, "auto");
        z.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
        z.precision = HD_JOB_PRECISION_FP32;
        z.device = HD_JOB_DEVICE_CPU;
        z.offload = HD_JOB_OFFLOAD_NONE;
        add_variants(s, m, z, cases, count);
    }
}

/* Adds the layouts that the search chooses where every key is open. */
static void add_chosen(struct setting *s, const struct model *m, int world, struct time_case *cases,
                       int *count)
{
    struct hd_job_file file;
    struct hd_job job = job_of(s, m, &file);
    struct hd_plan_request request;
    const struct hd_search_asked asked = {.spec = &job,
                                          .request = &request,
                                          .cluster = &s->clusters[world],
                                          .devices = world,
                                          .threads = CORES / world,
                                          .top = 1};
    struct hd_search found;
    struct hd_arena arena;

    job.layout = (struct hd_layout_sizes){.zero = -1, .sequence = -1, .threads = CORES / world};
    job.precision = HD_JOB_PRECISION_FP32;
    job.device = HD_JOB_DEVICE_CPU;
    bench_job_word(job.schedule, "auto");
    bench_job_word(job.stages, "auto");
    bench_job_word(job.recompute, "auto");
    job.offload = HD_JOB_OFFLOAD_NONE;
    job.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    request = request_of(&job);
    hd_arena_init(&arena, 0);
    if (*count < CASES_MAX && !hd_search_layouts(&asked, &arena, &found) && found.plan_count)
        cases[(*count)++] = (struct time_case){.model = m,
                                               .sizes = found.plans[0].job.layout,
                                               .world = world,
                                               .predicted_s = found.plans[0].cost.step_s,
                                               .cost = found.plans[0].cost,
                                               .chosen = true};
    hd_arena_done(&arena);
}

/* ---- what other programs do ---- */

struct usage {
    double machine_s, own_s; /* processor time since boot, and of the children that have ended */
    int64_t at_ns;
};

static double seconds_of(const struct timeval *t)
{
    return (double)t->tv_sec + 1e-6 * (double)t->tv_usec;
}

/* The first line of /proc/stat: user nice system idle iowait irq softirq steal. */
static struct usage usage_now(void)
{
    FILE *file = fopen("/proc/stat", "re");
    struct usage u = {.at_ns = hd_clock_now_ns()};
    struct rusage self, children;
    unsigned long long n[8] = {0};

    if (file && fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &n[0], &n[1], &n[2],
                       &n[3], &n[4], &n[5], &n[6], &n[7]) == 8)
        u.machine_s =
            (double)(n[0] + n[1] + n[2] + n[5] + n[6] + n[7]) / (double)sysconf(_SC_CLK_TCK);
    if (file)
        (void)fclose(file);
    (void)getrusage(RUSAGE_SELF, &self);
    (void)getrusage(RUSAGE_CHILDREN, &children);
    u.own_s = seconds_of(&self.ru_utime) + seconds_of(&self.ru_stime) +
              seconds_of(&children.ru_utime) + seconds_of(&children.ru_stime);
    return u;
}

/* Whether others left the processors alone since `before`, or no time is left to try again. */
static bool counts(struct setting *s, const struct usage *before)
{
    const struct usage now = usage_now();
    const double wall_s = 1e-9 * (double)(now.at_ns - before->at_ns);
    const double others_s = now.machine_s - before->machine_s - (now.own_s - before->own_s);

    if (others_s <= s->beside * wall_s * (double)sysconf(_SC_NPROCESSORS_ONLN))
        return true;
    if (s->wait_s > 0) {
        s->wait_s -= wall_s;
        return false;
    }
    s->disturbed++;
    return true;
}

/* ---- the probe ---- */

static void probe(const struct setting *s, int devices, char path[BENCH_DIR_MAX + 32])
{
    char word[32];
    int status = -1;
    pid_t pid;

    (void)snprintf(path, BENCH_DIR_MAX + 32, "%s/calibration-%d", s->dir, devices);
    (void)snprintf(word, sizeof word, "cpu:%d:%d", devices, CORES / devices);
    printf("probing %s, at most 60 s\n", word);
    (void)fflush(stdout);
    pid = fork();
    if (pid == 0) {
        (void)execlp(s->worker, s->worker, "probe", "--devices", word, "--out", path, NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        bench_die("the probe", "heddle-worker probe failed; --worker names the program");
}

/* Sets the cluster of so many devices to their probe; in a smoke test, which says nothing of times,
 * to round numbers. */
static void calibrate(struct setting *s, int devices, const char *given)
{
    const struct hd_backend_options options = {.threads = CORES / devices};
    struct hd_calibration *cal = hd_arena_alloc(&s->arena, sizeof *cal);
    char path[BENCH_DIR_MAX + 32];
    struct hd_traits traits;
    struct hd_rates rates;

    while (!given && !s->smoke) {
        const struct usage before = usage_now();

        probe(s, devices, path);
        if (counts(s, &before))
            break;
        printf("other programs run beside the probe; once more\n");
    }
    hd_backend_cpu()->describe(&options, &traits);
    hd_rates_of_peaks(1e11, 1e11, 1e10, 0, 0, &rates); /* of what was not measured */
    if (!s->smoke) {
        if (!cal || hd_calibration_read_file(given ? given : path, &s->arena, cal) ||
            hd_calibration_check(cal, &traits, CORES / devices))
            bench_die("the calibration", hd_err_message());
        hd_rates_calibrate(&rates, cal);
    }
    hd_cluster_of_cpu(&traits, devices, &rates, &s->clusters[devices]);
}

/* ---- runs ---- */

static double run_once(struct setting *s, const struct time_case *c)
{
    double slowest[STEPS_MAX] = {0};
    struct bench_peer peers[LAYOUTS_RANKS];
    char about[BENCH_ABOUT_MAX], line[32];
    struct hd_job_file file;
    struct hd_job job = job_of(s, c->model, &file);
    struct layouts_rank rank = {.job = &job, .world = c->world};

    job.layout = c->sizes;
    job.devices_min = job.devices_max = c->world;
    if (c->world > 1 && hd_shm_control_new(c->world, &rank.shm))
        bench_die("shm", hd_err_message());
    for (rank.rank = 0; rank.rank < c->world; rank.rank++)
        bench_peer_fork(&peers[rank.rank], c->model->name, layouts_cpu_rank, &rank);
    (void)snprintf(line, sizeof line, "run %d", s->steps);
    for (int r = 0; r < c->world; r++)
        bench_peer_about(&peers[r], about);
    for (int r = 0; r < c->world; r++)
        bench_peer_tell(&peers[r], line);
    for (int r = 0; r < c->world; r++) {
        double numbers[STEPS_MAX + LAYOUTS_PARTS] = {0};

        if (bench_peer_hear(&peers[r], numbers, s->steps + LAYOUTS_PARTS) < s->steps)
            bench_die(c->model->name, "answered less than its steps");
        for (int i = 0; i < s->steps; i++)
            slowest[i] = numbers[i] > slowest[i] ? numbers[i] : slowest[i];
    }
    for (int r = 0; r < c->world; r++)
        bench_peer_stop(&peers[r]);
    hd_shm_control_free(rank.shm);
    for (int i = 1; i < s->steps; i++) /* sorted by insertion: the lower quartile */
        for (int k = i; k > 0 && slowest[k] < slowest[k - 1]; k--) {
            const double x = slowest[k];

            slowest[k] = slowest[k - 1];
            slowest[k - 1] = x;
        }
    return 1e-3 * slowest[(s->steps - 1) / 4];
}

static double run_case(struct setting *s, const struct time_case *c)
{
    struct usage before;
    double seconds;

    do {
        before = usage_now();
        seconds = run_once(s, c);
    } while (!counts(s, &before));
    return seconds;
}

/* ---- figures of merit ---- */

/* Columns of a layout's row that are compared: a round's time, or one of these. */
enum { PREDICTED = -2, MEASURED = -1 };

static double time_of(const struct time_case *c, int round)
{
    return round == PREDICTED  ? c->predicted_s
           : round == MEASURED ? c->spread.median
                               : c->round_s[round];
}

static double rank_in(const struct time_case *cases, int first, int end, int self, int round)
{
    double less = 0;

    for (int i = first; i < end; i++) {
        const double a = time_of(&cases[i], round), b = time_of(&cases[self], round);

        less += a < b ? 1 : a == b && i != self ? 0.5 : 0;
    }
    return less;
}

/* Spearman (1904): the correlation of the ranks. */
static double spearman(const struct time_case *cases, int first, int end, int round, int other)
{
    const double mean = (end - first - 1) / 2.0;
    double xy = 0, xx = 0, yy = 0;

    for (int i = first; i < end; i++) {
        const double x = rank_in(cases, first, end, i, round) - mean;
        const double y = rank_in(cases, first, end, i, other) - mean;

        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xy / sqrt(xx * yy);
}

/* The mean over all pairs of rounds; 1 with one. */
static double spearman_of_rounds(const struct time_case *cases, int first, int end)
{
    double sum = 0;
    int pairs = 0;

    for (int a = 0; a < cases[first].rounds; a++)
        for (int b = 0; b < a; b++, pairs++)
            sum += spearman(cases, first, end, a, b);
    return pairs ? sum / pairs : 1;
}

static void describe(const struct time_case *c, char *text, size_t size)
{
    const struct hd_layout_sizes *z = &c->sizes;

    (void)snprintf(text, size, "%s%s tp%lld pp%lld dp%lld cp%lld ep%lld mb%-2lld %s zero%lld %s",
                   c->chosen ? "chosen: " : "", c->model->name, (long long)z->tp, (long long)z->pp,
                   (long long)z->dp, (long long)z->cp, (long long)z->ep, (long long)z->micro_batch,
                   z->recompute, (long long)z->zero, z->pp > 1 ? z->schedule : "");
}

static void print_case(const struct setting *s, const struct time_case *c)
{
    char text[160];

    describe(c, text, sizeof text);
    printf("%-66s %8.2f %8.2f (%.2f .. %.2f) %+6.1f%%\n", text, 1e3 * c->predicted_s,
           1e3 * c->spread.median, 1e3 * c->spread.least, 1e3 * c->spread.most,
           100 * (c->predicted_s / c->spread.median - 1));
    if (!s->where)
        return;
    printf("      kernels %.2f update %.2f bubble %.2f", 1e3 * c->cost.compute_s,
           1e3 * c->cost.update_s, 1e3 * c->cost.bubble_s);
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        if (c->cost.communication_s[g] > 0)
            printf(" %s %.2f", hd_group_text((enum hd_group_name)g),
                   1e3 * c->cost.communication_s[g]);
    printf("\n");
}

static bool judge(const struct time_case *cases, int first, int end)
{
    const struct time_case *chosen = &cases[first], *best = &cases[first];
    const double correlation = spearman(cases, first, end, MEASURED, PREDICTED);
    double error = 0, signed_error = 0, loss, noise;
    bool met[3];

    for (int i = first; i < end; i++) {
        const double e = cases[i].predicted_s / cases[i].spread.median - 1;

        error += fabs(e) / (end - first);
        signed_error += e / (end - first);
        if (cases[i].predicted_s < chosen->predicted_s)
            chosen = &cases[i];
        if (cases[i].spread.median < best->spread.median)
            best = &cases[i];
    }
    loss = chosen->spread.median / best->spread.median - 1;
    noise = (chosen->spread.most - chosen->spread.least) / chosen->spread.median;
    met[0] = error <= 0.15;
    met[1] = correlation >= 0.9;
    met[2] = loss <= 0.10 + noise;
    printf("%s, %d layouts: mean error %.1f%% (signed %+.1f%%; aim 15%%)%s; Spearman %.3f (aim "
           "0.9; rounds with one another %.3f)%s; the chosen plan takes %.1f%% more than the best "
           "(aim 10%% beyond its spread of "
           "%.1f%%)%s\n",
           cases[first].model->name, end - first, 100 * error, 100 * signed_error,
           met[0] ? "" : " MISSED", correlation, spearman_of_rounds(cases, first, end),
           met[1] ? "" : " MISSED", 100 * loss, 100 * noise, met[2] ? "" : " MISSED");
    return met[0] && met[1] && met[2];
}

static bool judge_all(const struct time_case *cases, int count)
{
    double error = 0;
    bool met = true;

    for (int i = 0; i < count; i++)
        error += fabs(cases[i].predicted_s / cases[i].spread.median - 1) / count;
    printf("all, %d layouts: mean error %.1f%%; Spearman %.3f\n", count, 100 * error,
           spearman(cases, 0, count, MEASURED, PREDICTED));
    for (int first = 0, end; first < count; first = end) {
        for (end = first; end < count && cases[end].model == cases[first].model; end++)
            ;
        met &= judge(cases, first, end);
    }
    return met;
}

/* ---- */

static int find_cases(struct setting *s, struct time_case *cases)
{
    int count = 0, kept = 0, first = 0;

    for (int m = 0; m < MODELS; m++) {
        if (!strstr(s->names, models[m].name))
            continue;
        count = kept;
        add_layouts(s, &models[m], cases, &count);
        for (int i = first = kept; i < count; i += s->every)
            cases[kept++] = cases[i];
        for (int world = 1; world <= CORES; world++)
            add_chosen(s, &models[m], world, cases, &kept);
    }
    return kept > first ? kept : 0;
}

int main(int argc, char **argv)
{
    static struct time_case cases[CASES_MAX];
    static struct setting s;
    int count;

    s.names = bench_value_of(argc, argv, "--model", "gpt2,llama,mixtral");
    s.worker = bench_value_of(argc, argv, "--worker", "heddle-worker");
    s.one = bench_value_of(argc, argv, "--one", NULL);
    s.two = bench_value_of(argc, argv, "--two", NULL);
    s.every = atoi(bench_value_of(argc, argv, "--every", "1"));
    s.rounds = atoi(bench_value_of(argc, argv, "--rounds", "3"));
    s.steps = atoi(bench_value_of(argc, argv, "--steps", "4"));
    s.beside = atof(bench_value_of(argc, argv, "--beside", "0.05"));
    s.wait_s = atof(bench_value_of(argc, argv, "--wait", "600"));
    s.end_ns =
        hd_clock_now_ns() + (int64_t)(60e9 * atof(bench_value_of(argc, argv, "--minutes", "60")));
    s.least = bench_has(argc, argv, "--least");
    s.smoke = bench_has(argc, argv, "--smoke");
    if (s.smoke) {
        s.every = 400; /* the first layout of a model, beside those that the search chooses */
        s.rounds = s.steps = 1;
        s.wait_s = 0;
    }
    s.where = bench_has(argc, argv, "--where");
    if (s.every < 1 || s.rounds < 1 || s.rounds > ROUNDS_MAX || s.steps < 1 ||
        s.steps > STEPS_MAX || bench_has(argc, argv, "--help")) {
        (void)fputs(usage, stderr);
        return EXIT_FAILURE;
    }
    hd_arena_init(&s.arena, 0);
    if (bench_make_dir(s.dir) || bench_write_corpus(s.dir, s.corpus))
        bench_die("the corpus", hd_err_message());
    calibrate(&s, 1, s.one);
    calibrate(&s, 2, s.two);
    count = find_cases(&s, cases);
    printf("%d layouts, %d rounds of %d steps\n", count, s.rounds, s.steps);
    for (int round = 0; round < s.rounds && (!round || hd_clock_now_ns() < s.end_ns); round++)
        for (int i = 0; i < count; i++)
            cases[i].round_s[cases[i].rounds++] = run_case(&s, &cases[i]);
    if (s.disturbed)
        printf("note: other programs ran beside %d of %d runs, which nevertheless count\n",
               s.disturbed, count * s.rounds);
    printf("%-66s %8s %8s\n", "layout", "plan ms", "ran ms");
    for (int i = 0; i < count; i++) {
        cases[i].spread = bench_spread(cases[i].round_s, cases[i].rounds);
        if (s.least)
            cases[i].spread.median = cases[i].spread.least;
        print_case(&s, &cases[i]);
    }
    hd_arena_done(&s.arena);
    return count && (judge_all(cases, count) || s.smoke) ? EXIT_SUCCESS : EXIT_FAILURE;
}
