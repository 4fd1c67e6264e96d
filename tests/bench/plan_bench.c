/* plan_bench: how long planning takes for many ranks.
 *
 *   plan_bench [--runs 5] [--case NAME]
 *
 * A llama of 96 layers of width 12,288 (175 billion parameters), vocabulary 50,257 (which tp 8
 * pads), 1536 sequences of 2048 tokens a step in micro-batches of one, bf16, on H100s by their data
 * sheet:
 *
 *   pp16     1024 ranks: tp 8 x pp 16 x dp 8, zero 0
 *   pp8      1024 ranks: tp 8 x pp 8 x dp 16, zero 3
 *   fsdp     1024 ranks: dp 1024, zero 3, 2048 sequences
 *   async    pp16 with checkpoint.async, which needs the owners of all entries
 *
 * Prints the best and the median processor time of hd_plan_build, and how many ranks were laid out. The goal
 * for pp16 and pp8 is 2 s.
 *
 *   1t       searches the fastest layout (plan/search.h) of a llama of 160 layers of width 24,576
 *            on 512 H200, 1024 sequences of 8192 tokens; goal: 1 s
 *   405b     of 126 layers of width 16,384 on 16,384 H100, 2048 sequences; goal: 5 s
 *   671b     a model of the shape of DeepSeek V3 (61 layers, of which 58 with 256 experts) on 2,048
 *            H100, 15,360 sequences of 4,096 tokens; goal: 2 s
 *
 * Prints the processor time of the search, the best time of laying out what it finds (the goal for
 * 1t is at most 8 times that), and the most memory that the process has had (goal for 1t: 200 MB, if
 * it is the only case). Run by hand.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "plan/search.h"
#include "tests/bench/bench_job.h"

enum { RUNS_MAX = 99 };

/* Returns the processor time of this process in ms: the clock would count what other programs of the
 * machine take. */
static double processor_ms(void)
{
    return 1e3 * (double)clock() / CLOCKS_PER_SEC;
}

static const struct setting {
    const char *name;
    int64_t tp, pp, dp, zero, batch;
    bool async;
} settings[] = {{"pp16", 8, 16, 8, 0, 1536, false},
                {"pp8", 8, 8, 16, 3, 1536, false},
                {"fsdp", 1, 1, 1024, 3, 2048, false},
                {"async", 8, 16, 8, 0, 1536, true}};

static struct hd_job job_of(const struct setting *s, struct hd_job_file *file)
{
    struct hd_job job = bench_job("llama", "bf16", "cuda", file);

    job.layers = 96;
    job.hidden = 12288;
    job.heads = job.kv_heads = 96;
    job.head_width = 128;
    job.ffn_hidden = 32768;
    job.vocab = 50257;
    job.context = 2048;
    job.rope_theta = 1e4;
    job.tie_embeddings = false;
    job.global_batch = s->batch;
    job.micro_batch = 1;
    job.tp = s->tp;
    job.pp = s->pp;
    job.dp = s->dp;
    job.zero = s->zero;
    job.sequence = s->tp > 1;
    job.virtual_stages = 1;
    job.checkpoint_async = s->async;
    if (s->pp > 1)
        bench_job_word(job.schedule, "1f1b");
    return job;
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static int measure(const struct setting *s, int runs)
{
    struct hd_job_file file = {0};
    const struct hd_job job = job_of(s, &file);
    double ms[RUNS_MAX];
    int laid_out = 0;
    struct hd_traits traits;

    hd_gpu_kind_traits(hd_gpu_kind_find("h100"), &traits);
    for (int i = 0; i < runs; i++) {
        const double begin_ms = processor_ms();
        struct hd_arena arena;
        struct hd_plan plan;

        hd_arena_init(&arena, 0);
        if (hd_plan_build(&job, &traits, &arena, &plan)) {
            (void)fprintf(stderr, "plan_bench: %s: %s\n", s->name, hd_err_message());
            hd_arena_done(&arena);
            return EXIT_FAILURE;
        }
        laid_out = plan.class_count;
        hd_arena_done(&arena);
        ms[i] = processor_ms() - begin_ms;
    }
    qsort(ms, (size_t)runs, sizeof *ms, by_time);
    printf("%-6s tp %lld x pp %lld x dp %lld, zero %lld: %d of %lld ranks laid out; best %.0f ms, "
           "median %.0f ms\n",
           s->name, (long long)s->tp, (long long)s->pp, (long long)s->dp, (long long)s->zero,
           laid_out, (long long)(s->tp * s->pp * s->dp), ms[0], ms[runs / 2]);
    return EXIT_SUCCESS;
}

/* ---- searches ---- */

static const struct searched {
    const char *name, *kind;
    int64_t layers, hidden, heads, kv_heads, ffn_hidden, batch;
    int32_t devices;
    bool latent_experts; /* the attention and the experts of DeepSeek V3 */
} searches[] = {{"1t", "h200", 160, 24576, 192, 16, 65536, 1024, 512, false},
                {"405b", "h100", 126, 16384, 128, 8, 53248, 2048, 16384, false},
                {"671b", "h100", 61, 7168, 128, 128, 2048, 15360, 2048, true}};

static void give_latent_experts(struct hd_job *job)
{
    job->family = "deepseek_v3";
    job->mla_q_rank = 1536;
    job->mla_kv_rank = 512;
    job->mla_nope = job->mla_value = 128;
    job->mla_rope = 64;
    job->experts = 256;
    job->experts_per_token = 8;
    job->dense_ffn_hidden = 18432;
    job->shared_ffn_hidden = 2048;
    job->experts_layers = "0:3:58";
    job->router_groups = 8;
    job->router_groups_kept = 4;
    job->router_scale = 2.5;
    job->router_bias_rate = 0.001;
    job->balance = 0.0001;
    job->renormalize = true;
    job->vocab = 129280;
    job->context = 4096;
}

static struct hd_job job_of_search(const struct searched *s, struct hd_job_file *file)
{
    struct hd_job job = bench_job("llama", "bf16", "cuda", file);

    job.layers = s->layers;
    job.hidden = s->hidden;
    job.heads = s->heads;
    job.kv_heads = s->kv_heads;
    job.head_width = 128;
    job.ffn_hidden = s->ffn_hidden;
    job.vocab = 128256;
    job.context = 8192;
    job.rope_theta = 5e5;
    job.tie_embeddings = false;
    job.global_batch = s->batch;
    job.tp = job.pp = job.dp = job.cp = job.ep = job.micro_batch = job.virtual_stages = 0;
    job.zero = job.sequence = -1;
    job.zero_shard = 0;
    bench_job_word(job.schedule, "auto");
    bench_job_word(job.recompute, "auto");
    if (s->latent_experts)
        give_latent_experts(&job);
    return job;
}

/* Prints the layout that was found, so that two builds can be compared. */
static void print_found(const struct searched *s, const struct hd_search_plan *plan)
{
    struct hd_text layout = {0};

    if (!hd_layout_write(&plan->job.layout, &layout))
        printf("%-6s %s: %.17g s, %lld bytes\n", s->name, layout.data ? layout.data : "?",
               plan->cost.step_s, (long long)plan->needed_bytes);
    hd_text_free(&layout);
}

static int measure_search(const struct searched *s, int runs)
{
    const struct hd_gpu_kind *kind = hd_gpu_kind_find(s->kind);
    struct hd_job_file file = {0};
    const struct hd_job job = job_of_search(s, &file);
    const struct hd_plan_request request = {.sizes = job.layout,
                                            .global_batch = job.global_batch,
                                            .layers = job.layers,
                                            .heads = job.heads,
                                            .kv_heads = job.kv_heads,
                                            .ffn_hidden = job.ffn_hidden,
                                            .context = job.context,
                                            .vocab = job.vocab,
                                            .experts = job.experts,
                                            .shared_ffn_hidden = job.shared_ffn_hidden,
                                            .dense_ffn_hidden = job.dense_ffn_hidden,
                                            .only_planned = true,
                                            .searched = true};
    double ms[RUNS_MAX], laid_ms[RUNS_MAX];
    struct rusage usage;
    static struct hd_cluster cluster;
    struct hd_search_asked asked = {.spec = &job,
                                    .request = &request,
                                    .cluster = &cluster,
                                    .devices = s->devices,
                                    .threads = 1,
                                    .bf16_fast = true,
                                    .top = 1};

    hd_cluster_of_kind(kind, s->devices, false, &cluster);
    asked.memory_bytes = cluster.traits.memory_bytes;
    for (int i = 0; i < runs; i++) {
        const double begin_ms = processor_ms();
        struct hd_search found;
        struct hd_arena arena;
        struct hd_plan plan;

        hd_arena_init(&arena, 0);
        if (hd_search_layouts(&asked, &arena, &found) || !found.plan_count) {
            (void)fprintf(stderr, "plan_bench: %s: %s\n", s->name, hd_err_message());
            hd_arena_done(&arena);
            return EXIT_FAILURE;
        }
        ms[i] = processor_ms() - begin_ms;
        if (i == 0)
            printf("%-6s %lld families, %lld compiled, %lld walked, %lld priced, %lld laid out\n",
                   s->name, (long long)found.families, (long long)found.blocks,
                   (long long)found.walked, (long long)found.costed, (long long)found.laid_out);
        if (i == 0)
            print_found(s, &found.plans[0]);
        if (hd_plan_build(&found.plans[0].job, &cluster.traits, &arena, &plan))
            return EXIT_FAILURE;
        laid_ms[i] = processor_ms() - begin_ms - ms[i];
        hd_arena_done(&arena);
    }
    qsort(ms, (size_t)runs, sizeof *ms, by_time);
    qsort(laid_ms, (size_t)runs, sizeof *laid_ms, by_time);
    (void)getrusage(RUSAGE_SELF, &usage);
    printf(
        "%-6s searched on %d %s: best %.0f ms, median %.0f ms, %.1f x the layout alone (%.0f ms); "
        "%.0f MB\n",
        s->name, (int)s->devices, s->kind, ms[0], ms[runs / 2], ms[0] / laid_ms[0], laid_ms[0],
        (double)usage.ru_maxrss / 1e3);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *name = NULL;
    int runs = 5, code = EXIT_SUCCESS;

    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--runs") == 0)
            runs = atoi(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--case") == 0)
            name = argv[i + 1];
        else
            runs = 0;
    }
    if (runs < 1 || runs > RUNS_MAX) {
        (void)fprintf(stderr,
                      "usage: plan_bench [--runs 5] [--case pp16|pp8|fsdp|async|1t|405b|671b]\n");
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (!name || strcmp(settings[i].name, name) == 0)
            code |= measure(&settings[i], runs);
    for (size_t i = 0; i < sizeof searches / sizeof searches[0]; i++)
        if (!name || strcmp(searches[i].name, name) == 0)
            code |= measure_search(&searches[i], runs);
    return code;
}
