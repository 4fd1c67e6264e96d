/* day: a simulated day of a cluster, or four policies over the same days.
 *
 *   day [-n NODES] [-h HOURS] [-s SEED] [-l LOAD] [-e PART] [-t TAIL] [-p POLICY] [-c]
 *
 * One policy (heddle) over one trace; -c: with the core's own invariants. Exit code 1: a rule of
 * tests/sim/watch.h did not hold.
 *
 *   day --policies [-k SEEDS] [...]
 *
 * All policies over SEEDS traces, as a table, and the bars. Exit code 1: one is missed.
 *
 * PART: of the jobs of 16 devices or more, how many also run on a quarter of them.
 * Defaults: 10000 nodes of 8 devices, 24 h, seed 1, load 1.05, part 0.1; with --policies 1000
 * nodes, 10 seeds. TAIL: hours after which a day is over although jobs still run (48). It needs no
 * network and no disk, and one core.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/sim/day.h"

enum { SEEDS_MAX = 100 };

struct options {
    struct sim_trace_job wish;
    int seeds;
    enum sim_policy_kind policy;
    bool policies, checks_core;
};

static void print_score(const struct sim_score *s)
{
    printf("  utilisation %.4f  goodput %.4f  bounded slowdown %.2f  leaf switches %.3f\n"
           "  lost %.0f device-hours: starts %.0f, dead %.0f, repeated or slow %.0f\n",
           s->utilisation, s->goodput, s->slowdown, s->leaves_spanned, s->lost_hours,
           s->starting_hours, s->dead_hours, s->lost_hours - s->starting_hours - s->dead_hours);
    printf("  jobs %zu: done %zu, failed %zu, cancelled %zu, unfinished %zu\n", s->jobs, s->done,
           s->failed, s->cancelled, s->unfinished);
    printf("  jobs that were told a start %zu, kept %.3f, off by %.0f min\n", s->told, s->kept,
           s->told_off);
    for (int c = 0; c < SIM_CLASSES; c++)
        printf("  wait of %-7s devices (%5zu jobs): p50 %7.1f min  p95 %7.1f min\n",
               sim_class_name((enum sim_class)c), s->counted[c], s->wait_p50[c], s->wait_p95[c]);
}

static int live_one(const struct options *o)
{
    struct sim_trace *trace = sim_trace_new(&o->wish);
    const int64_t begun_ns = hd_clock_now_ns();
    struct sim_score score;
    bool lived = trace && sim_day(trace, o->policy, o->checks_core, &score);

    if (!lived) {
        fprintf(stderr, "day: out of memory\n");
        sim_trace_free(trace);
        return 2;
    }
    printf("%s: %d nodes of %d devices, %.1f h, seed %llu, load %.2f: %zu jobs, %zu faults\n",
           sim_policy_text(o->policy), o->wish.nodes, SIM_DEVICES,
           (double)o->wish.horizon_ms / (double)SIM_HOUR_MS, (unsigned long long)o->wish.seed,
           o->wish.load, trace->job_count, trace->fault_count);
    print_score(&score);
    if (o->policy == SIM_BY_HEDDLE)
        printf("  starts %zu, preempted %zu, grown %zu, expected starts moved %zu\n"
               "  core: %llu steps in %.1f s, longest %.1f ms; digest %016llx\n",
               score.starts, score.preempted, score.grown, score.starts_moved,
               (unsigned long long)score.core_steps, score.core_seconds, score.core_longest_ms,
               (unsigned long long)score.digest);
    printf("  %llu events in %.1f s\n", (unsigned long long)score.events,
           (double)(hd_clock_now_ns() - begun_ns) / 1e9);
    if (*score.broken)
        printf("BROKEN: %s\n", score.broken);
    sim_trace_free(trace);
    return *score.broken != '\0';
}

/* ---- policies ---------------------------------------------------------------------------------*/

/* A mean over the seeds, or a ratio of two means, with its standard error (0: unknown) by the jackknife (Efron and
 * Stein 1981): ratios of days are paired, because both policies lived through the same traces. */
struct estimate {
    double value, error;
};

static double measure(const struct sim_score *score, size_t offset)
{
    double value;

    memcpy(&value, (const char *)score + offset, sizeof value);
    return value;
}

/* 0 of 0 is 0: a class without jobs, or whose jobs do not wait under either. */
static double ratio(double ours, double other)
{
    return other > 0 ? ours / other : ours > 0 ? HUGE_VAL : 0;
}

/* Returns the ratio of the means of the member at `offset`, or with `other` NULL the mean. */
static struct estimate estimate(const struct sim_score *ours, const struct sim_score *other,
                                int seeds, size_t offset)
{
    struct estimate result = {0};
    double sum = 0, sum_other = 0, without[SEEDS_MAX], mean = 0;

    for (int i = 0; i < seeds; i++) {
        sum += measure(&ours[i], offset);
        sum_other += other ? measure(&other[i], offset) : 1;
    }
    result.value = ratio(sum, sum_other);
    for (int i = 0; seeds > 1 && i < seeds; i++) {
        without[i] = ratio(sum - measure(&ours[i], offset),
                           sum_other - (other ? measure(&other[i], offset) : 1));
        mean += without[i] / seeds;
    }
    for (int i = 0; seeds > 1 && i < seeds; i++)
        result.error += (without[i] - mean) * (without[i] - mean) * (seeds - 1) / seeds;
    result.error = isfinite(result.error) ? sqrt(result.error) : 0;
    return result;
}

static void print_mean(const struct sim_score *scores, int seeds, size_t offset, int digits)
{
    const struct estimate e = estimate(scores, NULL, seeds, offset);

    printf(" | %.*f ± %.*f", digits, e.value, digits, e.error);
}

static void print_policies(struct sim_score (*scores)[SEEDS_MAX], int seeds)
{
    printf("| policy | devices held | goodput | bounded slowdown | starts as told | off by | leaf "
           "switches");
    for (int c = 0; c < SIM_CLASSES; c++)
        printf(" | p95 of waits, %s", sim_class_name((enum sim_class)c));
    printf(" |\n");
    for (int p = 0; p < SIM_POLICIES; p++) {
        static const struct {
            size_t offset;
            int digits;
        } columns[] = {{offsetof(struct sim_score, utilisation), 4},
                       {offsetof(struct sim_score, goodput), 4},
                       {offsetof(struct sim_score, slowdown), 2},
                       {offsetof(struct sim_score, kept), 3},
                       {offsetof(struct sim_score, told_off), 0},
                       {offsetof(struct sim_score, leaves_spanned), 3}};

        printf("| %s", sim_policy_word((enum sim_policy_kind)p));
        for (size_t k = 0; k < sizeof columns / sizeof columns[0]; k++)
            print_mean(scores[p], seeds, columns[k].offset, columns[k].digits);
        for (int c = 0; c < SIM_CLASSES; c++)
            print_mean(scores[p], seeds, offsetof(struct sim_score, wait_p95[c]), 0);
        printf(" |\n");
    }
}

static int check_bar(const char *what, struct estimate is, double bar, bool at_least)
{
    const bool met = at_least ? is.value >= bar : is.value <= bar;

    printf("%-44s %7.3f ± %.3f, bar %s %.2f%s\n", what, is.value, is.error,
           at_least ? ">=" : "<=", bar, met ? "" : "  MISSED");
    return !met;
}

static int check_bars(struct sim_score (*scores)[SEEDS_MAX], int seeds)
{
    const struct sim_score *fifo = scores[SIM_BY_FIFO], *easy = scores[SIM_BY_EASY];
    const struct sim_score *ours = scores[SIM_BY_HEDDLE];
    int missed = 0;

#define OVER(other, member) estimate(ours, other, seeds, offsetof(struct sim_score, member))
    missed += check_bar("goodput over FIFO's", OVER(fifo, goodput), 1.15, true);
    missed += check_bar("goodput over EASY's", OVER(easy, goodput), 1.05, true);
    missed += check_bar("bounded slowdown over EASY's", OVER(easy, slowdown), 0.8, false);
    for (int c = 0; c < SIM_CLASSES; c++) {
        char what[64];

        (void)snprintf(what, sizeof what, "p95 of the wait of %s devices over EASY's",
                       sim_class_name((enum sim_class)c));
        missed += check_bar(what, OVER(easy, wait_p95[c]), 1.1, false);
    }
    return missed;
}

static int compare(const struct options *o)
{
    static struct sim_score scores[SIM_POLICIES][SEEDS_MAX];
    int broken = 0;

    for (int s = 0; s < o->seeds; s++) {
        struct sim_trace_job wish = o->wish;
        struct sim_trace *trace;

        wish.seed += (uint64_t)s;
        trace = sim_trace_new(&wish);
        for (int p = 0; p < SIM_POLICIES; p++) {
            struct sim_score *score = &scores[p][s];

            if (!trace || !sim_day(trace, (enum sim_policy_kind)p, false, score)) {
                fprintf(stderr, "day: out of memory\n");
                return 2;
            }
            if (*score->broken)
                printf("BROKEN: seed %llu: %s\n", (unsigned long long)wish.seed, score->broken);
            broken += *score->broken != '\0';
        }
        sim_trace_free(trace);
    }
    printf("%d nodes of %d devices, %.1f h, load %.2f; means of seeds %llu to %llu, with standard "
           "errors; waits in minutes\n",
           o->wish.nodes, SIM_DEVICES, (double)o->wish.horizon_ms / (double)SIM_HOUR_MS,
           o->wish.load, (unsigned long long)o->wish.seed,
           (unsigned long long)o->wish.seed + (unsigned)o->seeds - 1);
    print_policies(scores, o->seeds);
    return broken + check_bars(scores, o->seeds) > 0;
}

static enum sim_policy_kind read_policy(const char *word)
{
    for (int p = 0; p < SIM_POLICIES; p++)
        if (strcmp(word, sim_policy_word((enum sim_policy_kind)p)) == 0)
            return (enum sim_policy_kind)p;
    fprintf(stderr, "day: there is no policy %s\n", word);
    exit(2);
}

static struct options read_options(int argc, char **argv)
{
    static const struct option words[] = {{"policies", no_argument, NULL, 'P'}, {0}};
    struct options o = {.wish = {.seed = 1,
                                 .horizon_ms = 24 * SIM_HOUR_MS,
                                 .tail_ms = 48 * SIM_HOUR_MS,
                                 .load = 1.05,
                                 .elastic = 0.1},
                        .seeds = 10,
                        .policy = SIM_BY_HEDDLE};
    int option;

    while ((option = getopt_long(argc, argv, "n:h:s:l:e:t:p:k:c", words, NULL)) != -1) {
        switch (option) {
        case 'n':
            o.wish.nodes = atoi(optarg);
            break;
        case 'h':
            o.wish.horizon_ms = (int64_t)(atof(optarg) * (double)SIM_HOUR_MS);
            break;
        case 's':
            o.wish.seed = strtoull(optarg, NULL, 10);
            break;
        case 'l':
            o.wish.load = atof(optarg);
            break;
        case 'e':
            o.wish.elastic = atof(optarg);
            break;
        case 't':
            o.wish.tail_ms = (int64_t)(atof(optarg) * (double)SIM_HOUR_MS);
            break;
        case 'p':
            o.policy = read_policy(optarg);
            break;
        case 'k':
            o.seeds = atoi(optarg);
            break;
        case 'c':
            o.checks_core = true;
            break;
        case 'P':
            o.policies = true;
            break;
        default:
            exit(2);
        }
    }
    if (!o.wish.nodes)
        o.wish.nodes = o.policies ? 1000 : 10000;
    return o;
}

int main(int argc, char **argv)
{
    const struct options o = read_options(argc, argv);

    if (o.wish.nodes < 4 || o.wish.nodes > 10000 || o.wish.load <= 0 || !(o.wish.elastic >= 0) ||
        o.wish.elastic > 1 || o.wish.horizon_ms <= 0 || o.wish.tail_ms < 0 || o.seeds < 1 ||
        o.seeds > SEEDS_MAX) {
        fprintf(
            stderr,
            "day: 4 to 10000 nodes, a load and hours above 0, a part of 0 to 1, 1 to %d seeds\n",
            SEEDS_MAX);
        return 2;
    }
    return o.policies ? compare(&o) : live_one(&o);
}
