/* The search finds what trying every layout finds, on random small clusters. */
#include "base/random.h"
#include "fixture.h"
#include "job/frozen_model.h"
#include "plan/best.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

#ifdef __SANITIZE_ADDRESS__ /* some of them have all addresses */
enum { CLUSTERS = 12, LAYOUTS_MAX = 4096 };
#else
enum { CLUSTERS = 40, LAYOUTS_MAX = 4096 };
#endif

static uint64_t draws;

/* A whole number from 0 to n - 1. */
static int64_t draw(int64_t n)
{
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((draws >> 33) % (uint64_t)n);
}

/* ---- every layout ---- */

struct tried {
    const struct hd_search_asked *asked; /* without a limit of memory */
    int legal, count;                    /* layouts; those that can be laid out */
    struct {
        double step_s;
        int64_t bytes;
        unsigned uses; /* what it uses beside dp, less for what is simpler */
    } all[LAYOUTS_MAX];
};

/* Whether the host has memory for what the job itself does not put there. */
static bool fits_host(const struct tried *t, const struct hd_layout_sizes *sizes,
                      const struct hd_plan *plan)
{
    if (t->asked->spec->offload != HD_JOB_OFFLOAD_AUTO || sizes->offload == HD_JOB_OFFLOAD_NONE)
        return true;
    for (int32_t i = 0; i < plan->class_count; i++)
        if (plan->classes[i].memory.host_bytes > t->asked->cluster->host_memory_bytes)
            return false;
    return true;
}

/* The order in which the documents name them, the simplest first (planning.md). */
static unsigned uses_of(const struct hd_layout_sizes *s)
{
    const bool uses[] = {s->pp > 1, s->tp > 1, s->ep > 1, s->cp > 1,
                         s->offload == HD_JOB_OFFLOAD_OPTIMIZER};
    unsigned sum = 0;

    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++)
        sum += uses[i] ? 1u << i : 0;
    return sum;
}

static void try_sizes(struct tried *t, const struct hd_plan_request *request)
{
    struct hd_layout_sizes sizes;
    struct hd_search_plan plan;
    struct hd_arena arena;

    if (hd_plan_size(request, t->asked->devices, &sizes))
        return;
    hd_plan_decide_device(HD_JOB_DEVICE_CUDA, true, 1, &sizes);
    t->legal++;
    hd_arena_init(&arena, 0);
    assert_true(t->count < LAYOUTS_MAX);
    if (!hd_search_cost(t->asked, &sizes, &arena, &plan) && fits_host(t, &sizes, &plan.plan)) {
        t->all[t->count].step_s = plan.cost.step_s;
        t->all[t->count].uses = uses_of(&sizes);
        t->all[t->count++].bytes = plan.needed_bytes;
    }
    hd_arena_done(&arena);
}

/* The optimizer on the host where that is open, and how much memory the host has is known. */
static void try_offloads(struct tried *t, struct hd_plan_request r)
{
    const bool any = r.sizes.offload == HD_JOB_OFFLOAD_AUTO && t->asked->cluster->host_memory_bytes;

    try_sizes(t, &r);
    if (any) {
        r.sizes.offload = HD_JOB_OFFLOAD_OPTIMIZER;
        try_sizes(t, &r);
    }
}

/* Every cut of the blocks where they are few: chunk after chunk. */
static void try_cuts(struct tried *t, struct hd_plan_request *r, int64_t chunk, int64_t left,
                     int64_t *blocks)
{
    const int64_t chunks = r->sizes.pp * r->sizes.virtual_stages;
    const int64_t least = chunk == 0 ? 0 : 1;

    if (chunk == chunks - 1) {
        blocks[chunk] = left;
        assert_int_equal(hd_stages_write(blocks, chunks, r->sizes.stages), HD_OK);
        try_offloads(t, *r);
        return;
    }
    for (int64_t n = least; n <= left; n++) {
        blocks[chunk] = n;
        try_cuts(t, r, chunk + 1, left - n, blocks);
    }
}

/* With ends that may be empty there are L + 1 over chunks - 1. */
static void try_stages(struct tried *t, struct hd_plan_request r)
{
    int64_t blocks[64], chunks, ways = 1;

    if (!r.sizes.virtual_stages)
        r.sizes.virtual_stages =
            strcmp(r.sizes.schedule, "zb-v") == 0 || strcmp(r.sizes.schedule, "interleaved") == 0
                ? 2
                : 1;
    chunks = r.sizes.pp * r.sizes.virtual_stages;
    for (int64_t k = 1; k < chunks; k++)
        ways = ways * (r.layers + 2 - k) / k;
    if (chunks > 1 && chunks < 64 && ways <= HD_SEARCH_PARTITIONS_MAX &&
        strcmp(t->asked->spec->only, "last:1") != 0 && !t->asked->spec->adapter &&
        strcmp(r.sizes.stages, "auto") == 0)
        try_cuts(t, &r, 0, r.layers, blocks);
    else
        try_offloads(t, r);
}

static void try_words(struct tried *t, struct hd_plan_request r)
{
    static const char *const recomputes[] = {"none", "selective", "full"};
    const bool any = strcmp(r.sizes.recompute, "auto") == 0;

    for (int i = 0; i < (any ? 3 : 1); i++) {
        if (any)
            priced_set(r.sizes.recompute, recomputes[i]);
        try_stages(t, r);
    }
    for (int64_t k = 2; any && k <= r.layers; k++) {
        (void)snprintf(r.sizes.recompute, sizeof r.sizes.recompute, "full:%d", (int)k);
        try_stages(t, r);
    }
}

static void try_zeros(struct tried *t, struct hd_plan_request r)
{
    const bool any = r.sizes.zero < 0;
    const int64_t shard = r.sizes.zero_shard;

    for (int64_t zero = 0; zero <= (any ? 3 : 0); zero++) {
        if (any)
            r.sizes.zero = zero;
        r.sizes.zero_shard = shard;
        try_words(t, r);
        for (int64_t s = 2; r.sizes.zero && !shard && s < t->asked->devices; s++) {
            r.sizes.zero_shard = s;
            try_words(t, r);
        }
    }
}

static void try_schedules(struct tried *t, struct hd_plan_request r)
{
    if (strcmp(r.sizes.schedule, "auto") != 0 || r.sizes.pp == 1) {
        try_zeros(t, r);
        return;
    }
    priced_set(r.sizes.schedule, "1f1b");
    try_zeros(t, r);
    priced_set(r.sizes.schedule, "gpipe");
    try_zeros(t, r);
    priced_set(r.sizes.schedule, "zb-h1");
    try_zeros(t, r);
    priced_set(r.sizes.schedule, "zb-v");
    try_zeros(t, r);
    priced_set(r.sizes.schedule, "interleaved");
    for (r.sizes.virtual_stages = 2; r.sizes.virtual_stages <= 8; r.sizes.virtual_stages++)
        try_zeros(t, r);
}

/* Every number of ranks that share the experts, if there are any. */
static void try_experts(struct tried *t, struct hd_plan_request r)
{
    const int64_t pinned = r.sizes.ep;

    if (!r.experts)
        try_schedules(t, r);
    for (int64_t ep = 1; ep <= r.experts; ep++)
        if (!pinned || ep == pinned) {
            r.sizes.ep = ep;
            try_schedules(t, r);
        }
}

static void try_all(struct tried *t, struct hd_plan_request r)
{
    const struct hd_layout_sizes pinned = r.sizes;
    const int32_t N = t->asked->devices;

    for (int64_t tp = 1; tp <= N; tp++)
        for (int64_t pp = 1; pp <= N; pp++)
            for (int64_t cp = 1; cp <= N; cp++)
                for (int64_t micro = 1; micro <= HD_SEARCH_MICRO_BATCH_MAX; micro++) {
                    if ((pinned.tp ? tp != pinned.tp
                                   : !hd_cluster_keeps_tp(t->asked->cluster, N, tp)) ||
                        (pinned.pp && pp != pinned.pp) || (pinned.cp && cp != pinned.cp) ||
                        (pinned.micro_batch && micro != pinned.micro_batch))
                        continue;
                    r.sizes.tp = tp;
                    r.sizes.pp = pp;
                    r.sizes.cp = cp;
                    r.sizes.micro_batch = micro;
                    try_experts(t, r);
                }
}

/* ---- random jobs ---- */

/* Leaves two members auto and pins the others, so that some tens of layouts are left. */
static void pin_most(struct hd_job *job, int64_t devices)
{
    static const char *const recomputes[] = {"none", "selective", "full", "full:2"};
    const int64_t open = draw(6), other = draw(6);
    const bool opens[6] = {open == 0 || other == 0, open == 1 || other == 1,
                           open == 2 || other == 2, open == 3 || other == 3,
                           open == 4 || other == 4, open == 5 || other == 5};
    const bool splits = !opens[0] && devices > 1 && draw(2); /* over tp, else over pp */

    job->tp = opens[0] ? 0 : splits ? 2 : 1;
    job->pp = opens[1] ? 0 : !splits && devices > 1 && draw(2) ? 2 : 1;
    job->cp = !opens[0] && !opens[1] && devices > 4 && draw(2) ? 2 : 1;
    job->micro_batch = opens[2] ? 0 : 1;
    job->zero = opens[3] ? -1 : draw(4);
    if (!opens[4])
        priced_set(job->recompute, recomputes[draw(4)]);
    if (!draw(2))
        job->offload = HD_JOB_OFFLOAD_AUTO;
    if (!opens[5] && job->pp == 2) {
        priced_set(job->schedule, "1f1b");
        if (draw(4)) /* a first stage that keeps little, however many micro-batches it has */
            (void)snprintf(job->stages, sizeof job->stages, "1,%d", (int)job->layers - 1);
    }
}

/* The least time of those that need at most so many bytes; 0: no limit. */
static double best_within(const struct tried *t, int64_t bytes)
{
    double best = 0;

    for (int i = 0; i < t->count; i++)
        if ((!bytes || t->all[i].bytes <= bytes) && (best == 0 || t->all[i].step_s < best))
            best = t->all[i].step_s;
    return best;
}

/* The one that is taken: of those that are within 2% of the best the simplest, the fastest of these. */
static double simplest_within(const struct tried *t, int64_t bytes)
{
    const double most = 1.02 * best_within(t, bytes);
    int taken = -1;

    for (int i = 0; i < t->count; i++)
        if ((!bytes || t->all[i].bytes <= bytes) && t->all[i].step_s <= most &&
            (taken < 0 || t->all[i].uses < t->all[taken].uses ||
             (t->all[i].uses == t->all[taken].uses && t->all[i].step_s < t->all[taken].step_s)))
            taken = i;
    return taken < 0 ? 0 : t->all[taken].step_s;
}

static int64_t least_bytes(const struct tried *t)
{
    int64_t least = t->all[0].bytes;

    for (int i = 1; i < t->count; i++)
        least = t->all[i].bytes < least ? t->all[i].bytes : least;
    return least;
}

/* How often the best layout has what is rarely the best. */
static struct {
    int segments, offload, gpipe, cuts, simpler;
} rare;

static void note_rare(const struct hd_search *found, const struct hd_job *asked)
{
    const struct hd_job *best = &found->plans[0].job;

    rare.simpler += found->plans[0].cost.step_s > found->fastest_s;
    rare.segments +=
        strcmp(asked->recompute, "auto") == 0 && strncmp(best->recompute, "full:", 5) == 0;
    rare.offload += asked->offload == HD_JOB_OFFLOAD_AUTO && best->offload != HD_JOB_OFFLOAD_NONE;
    rare.cuts += strcmp(asked->stages, "auto") == 0 && strcmp(best->stages, "auto") != 0;
    rare.gpipe += strcmp(asked->schedule, "auto") == 0 && strcmp(best->schedule, "gpipe") == 0;
}

/* With the memory of `asked` the search finds the best of all that fit. */
static void compare_within(struct hd_search_asked *asked, const struct tried *tried, int number)
{
    const double best = best_within(tried, asked->memory_bytes),
                 taken = simplest_within(tried, asked->memory_bytes);
    struct hd_search found;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_search_layouts(asked, &arena, &found);
    if (!tried->legal)
        assert_int_not_equal(st, HD_OK);
    else if (st || !found.plan_count)
        fail_msg("cluster %d: %d layouts are legal, but: %s", number, tried->legal,
                 st ? hd_err_message() : "none was found");
    else if (tried->legal > 1 && found.fastest_s != best)
        fail_msg("cluster %d: found %.9g s, the best of %d takes %.9g s", number, found.fastest_s,
                 tried->count, best);
    else if (found.plans[0].cost.step_s != taken)
        fail_msg("cluster %d: took %.9g s, the simplest of those near %.9g s takes %.9g s", number,
                 found.plans[0].cost.step_s, best, taken);
    else
        note_rare(&found, asked->spec);
    hd_arena_done(&arena);
}

/* Without a limit, and with exactly the memory that some of the layouts need, or the one that needs
 * least: a bound of memory above what a layout takes drops it. */
static void compare_search(struct hd_search_asked *asked, int number)
{
    enum { LIMITS = 4 };
    static struct tried tried;

    tried = (struct tried){.asked = asked};
    try_all(&tried, *asked->request);
    for (int i = 0; i < LIMITS; i++) {
        if (i && tried.count)
            asked->memory_bytes = i == 1 ? least_bytes(&tried) : tried.all[draw(tried.count)].bytes;
        compare_within(asked, &tried, number);
    }
}

/* Varies a job so that blocks keep more or less, of them other things than the rest. */
static void vary(struct hd_job *job)
{
    static const char *const adapters[] = {"lora", "bottleneck"}, *const weights[] = {
                                                                      "plain", "nf4", "int8"};

    job->hidden = 512; /* so that nf4 has whole blocks on two ranks */
    job->head_width = 64;
    job->ffn_hidden = 1024;
    if (draw(2)) {
        job->adapter = hd_job_find_word(hd_job_adapter_words, adapters[draw(2)]);
        job->adapter_rank = 8;
        job->adapter_alpha = 16;
        job->adapter_width = 64;
        job->adapter_targets = "all-linear";
        job->model_weights = hd_job_find_word(hd_job_model_weights_words, weights[draw(3)]);
    } else if (draw(2)) {
        job->moments = HD_JOB_MOMENTS_INT8;
    }
    if (!draw(3))
        job->precision = HD_JOB_PRECISION_FP32;
    if (!draw(3)) {
        job->window = 128;
        job->window_from = draw(2);
    }
    if (!draw(3))
        job->sequence = 0;
}

/* Makes a mixture of experts of the job. */
static void mix(struct hd_job *job)
{
    static const double rows[] = {0, 1, 1.5};

    job->family = "mixtral";
    job->experts = 2 << draw(3);
    job->experts_per_token = 1 + draw(2);
    job->renormalize = job->experts_per_token > 1;
    job->expert_rows = rows[draw(3)];
    job->shared_ffn_hidden = draw(2) * 256;
    job->ep = draw(3) ? 0 : 2;
}

/* Makes blocks of several kinds of the job, which has experts. */
static void mix_kinds(struct hd_job *job)
{
    static const char *const rules[] = {"all", "1:1", "0:1:3", "2:1"};

    job->window = draw(2) * 128;
    job->dense_ffn_hidden = 256 << draw(3);
    job->window_layers = job_text("%s", rules[draw(4)]);
    job->rope_layers = job_text("%s", rules[draw(4)]);
    job->experts_layers = job_text("%s", rules[1 + draw(3)]);
}

enum blocks { DENSE, EXPERTS, KINDS };

static void compare_one(int number, enum blocks blocks)
{
    static const int32_t sizes[] = {1, 2, 4, 4, 8};
    const double node = (double)(1 + draw(400)) * 1e9, network = (double)(1 + draw(50)) * 1e9;
    struct hd_cluster c = priced_cluster(1 + draw(2) * 3, 2 + draw(2) * 2, node, network);
    struct hd_job job = priced_job(2 + draw(4), 256, 8 << draw(2));
    struct hd_plan_request request;
    struct hd_search_asked asked = {.spec = &job,
                                    .request = &request,
                                    .cluster = &c,
                                    .devices = sizes[draw(5)],
                                    .threads = 1,
                                    .bf16_fast = true,
                                    .top = 1};

    if (asked.devices > hd_cluster_devices(&c))
        asked.devices = (int32_t)hd_cluster_devices(&c);
    pin_most(&job, asked.devices);
    if (!job.pp) /* few blocks: each number of stages has all its cuts */
        job.layers = 2 + draw(2);
    if (draw(2)) /* of hosts that have room for all of it, or for a part */
        c.host_memory_bytes = (int64_t)1 << (20 + 3 * draw(4));
    job.context = 1024;              /* so that what backward keeps counts */
    job.vocab = 64 << (5 * draw(3)); /* and, of some, that embedding and head do */
    if (blocks != DENSE)
        mix(&job);
    else if (!draw(3))
        job.only = "last:1";
    else if (draw(2))
        vary(&job);
    if (blocks == KINDS)
        mix_kinds(&job);
    request = priced_request(&job);
    compare_search(&asked, number);
}

static void the_search_finds_the_best_of_all(void **state)
{
    for (int i = 0; i < CLUSTERS; i++) {
        draws = 1040 + (uint64_t)i;
        (void)draw(2);
        compare_one(i, DENSE);
    }
    print_message("the best has segments of recompute %d times, an offloaded optimizer %d times, "
                  "gpipe %d times, "
                  "uneven stages %d times; a simpler layout is taken %d times\n",
                  rare.segments, rare.offload, rare.gpipe, rare.cuts, rare.simpler);
    if (CLUSTERS >= 40)
        /* uneven stages are too rare here: an_uneven_cut_that_alone_fits_is_found has them */
        assert_true(rare.offload > 0 && rare.simpler > 0);
}

static void the_search_finds_the_best_of_experts(void **state)
{
    for (int i = 0; i < CLUSTERS / 4; i++) {
        draws = 2000 + (uint64_t)i;
        (void)draw(2);
        compare_one(i, EXPERTS);
    }
}

static void the_search_finds_the_best_of_several_kinds(void **state)
{
    (void)state;
    for (int i = 0; i < CLUSTERS / 4; i++) {
        draws = 4000 + (uint64_t)i;
        (void)draw(2);
        compare_one(i, KINDS);
    }
}

/* The case above where only recompute is open. With many micro-batches in flight segments of
 * several blocks keep least, as what enters a block is kept more often than backward needs a whole
 * segment. */
static void segments_are_as_long_as_the_memory_demands(void **state)
{
    rare.segments = 0;
    for (int i = 0; i < 20; i++) {
        struct hd_cluster c = priced_cluster(1, 2, 4e11, 1e10);
        struct hd_job job;
        struct hd_plan_request request;
        struct hd_search_asked asked = {.spec = &job,
                                        .request = &request,
                                        .cluster = &c,
                                        .devices = 2,
                                        .threads = 1,
                                        .bf16_fast = true,
                                        .top = 1};

        draws = 3000 + (uint64_t)i;
        (void)draw(2);
        job = priced_job(5 + draw(6), 256, 8 << draw(3));
        job.context = 1024;
        job.tp = job.cp = 1;
        job.pp = 2;
        job.micro_batch = 1;
        job.zero = 0;
        priced_set(job.schedule, draw(3) ? "gpipe" : "1f1b");
        (void)snprintf(job.stages, sizeof job.stages, "%d,%d", (int)job.layers / 2,
                       (int)(job.layers - job.layers / 2));
        request = priced_request(&job);
        compare_search(&asked, i);
    }
    print_message("the best has segments %d times\n", rare.segments);
    assert_true(rare.segments >= 5);
}

/* With exactly the memory that a layout needs it is found, or a faster one: no bound of memory is
 * above what a layout takes. */
static void compare_all_limits(struct hd_job *job, struct hd_cluster *cluster, int32_t devices)
{
    static struct tried tried;
    const struct hd_plan_request request = priced_request(job);
    struct hd_search_asked asked = {.spec = job,
                                    .request = &request,
                                    .cluster = cluster,
                                    .devices = devices,
                                    .threads = 1,
                                    .bf16_fast = true,
                                    .top = 1};

    tried = (struct tried){.asked = &asked};
    try_all(&tried, request);
    assert_true(tried.count > 0);
    for (int i = 0; i < tried.count; i++) {
        asked.memory_bytes = tried.all[i].bytes;
        compare_within(&asked, &tried, i);
    }
}

/* With W apart backward has a segment's values where it keeps what W waits for, not in work memory
 * besides. */
static void segments_with_w_apart_that_just_fit_are_found(void **state)
{
    static const char *const stages[] = {"auto", "6,1"};

    for (int i = 0; i < 2; i++) {
        struct hd_cluster c = priced_cluster(1, 2, 4e11, 1e10);
        struct hd_job job = priced_job(7, 256, 8);

        job.ffn_hidden = 1024;
        job.context = 1024;
        job.tp = job.cp = 1;
        job.pp = job.micro_batch = 2;
        job.zero = 0;
        priced_set(job.schedule, "zb-h1");
        priced_set(job.stages, stages[i]);
        compare_all_limits(&job, &c, 2);
    }
}

/* A teacher's weights are on the ranks besides, and its forward pass is a part of the step. */
static void teachers_that_just_fit_are_found(void **state)
{
    struct hd_cluster c = priced_cluster(1, 2, 4e11, 1e10);
    struct hd_job job = priced_job(4, 256, 4), teacher = priced_job(6, 1024, 4);

    teacher.family = "mixtral";
    teacher.experts = 4;
    teacher.experts_per_token = 2;
    if (hd_job_set_teacher_model(&teacher, &job))
        fail_msg("%s", hd_err_message());
    job.distill_top_k = 8;
    job.cp = job.micro_batch = 1;
    job.zero = 1;
    priced_set(job.recompute, "none");
    compare_all_limits(&job, &c, 2);
}

/* The first block's backward ends at its adapters, so it keeps less than others. */
static void adapters_that_just_fit_are_found(void **state)
{
    struct hd_cluster c = priced_cluster(1, 4, 4e11, 1e10);
    struct hd_job job = priced_job(6, 1024, 8);

    job.heads = 16;
    job.head_width = 64;
    job.ffn_hidden = 2752;
    job.qk_norm = true;
    job.context = 4096;
    job.adapter_width = 64;
    job.adapter = HD_JOB_ADAPTER_BOTTLENECK;
    job.model_weights = HD_JOB_MODEL_WEIGHTS_NF4;
    job.precision = HD_JOB_PRECISION_FP32;
    job.cp_exchange = HD_JOB_CP_EXCHANGE_ALL_GATHER;
    job.tp = 1;
    job.pp = job.cp = 2;
    job.micro_batch = 4;
    job.zero = 1;
    priced_set(job.stages, "3,3");
    priced_set(job.schedule, "1f1b");
    compare_all_limits(&job, &c, 4);
}

/* With nothing trainable before the last stage, no gradient is sent back: one communicator less. */
static void stages_that_only_run_forward_and_just_fit_are_found(void **state)
{
    struct hd_cluster c = priced_cluster(1, 4, 4e11, 1e10);
    struct hd_job job = priced_job(4, 256, 8);

    c.traits.communicator_bytes = (int64_t)256 << 20;
    job.only = "last:1";
    job.tp = job.cp = 1;
    job.pp = 2;
    job.micro_batch = 1;
    priced_set(job.schedule, "1f1b");
    compare_all_limits(&job, &c, 4);
}

/* Two stages, of which the first keeps two micro-batches and the second one, and any micro-batch:
 * of 4 blocks the even cut keeps 2 x 2 of them, 1 + 3 keeps 3. Nearly all memory is what is kept
 * (small blocks, long sequences), so with what the best cut needs the even one is known not to fit
 * before it is laid out. */
static void an_uneven_cut_that_alone_fits_is_found(void **state)
{
    rare.cuts = 0;
    for (int i = 0; i < 2; i++) {
        struct hd_cluster c = priced_cluster(1, 2, 4e11, 1e10);
        struct hd_job job = priced_job(20 + 4 * i, 256, 4);
        struct hd_plan_request request;
        struct hd_search_asked asked = {.spec = &job,
                                        .request = &request,
                                        .cluster = &c,
                                        .devices = 2,
                                        .threads = 1,
                                        .bf16_fast = true,
                                        .top = 1};
        static struct tried tried;

        job.context = 8192;
        job.vocab = 64;
        job.tp = job.cp = 1;
        job.pp = 2;
        job.zero = 0;
        priced_set(job.recompute, "none");
        priced_set(job.schedule, "1f1b");
        request = priced_request(&job);
        tried = (struct tried){.asked = &asked};
        try_all(&tried, request);
        asked.memory_bytes = least_bytes(&tried);
        compare_within(&asked, &tried, i);
    }
    assert_int_equal(rare.cuts, 2);
}

/* ---- what is chosen where ---- */

/* Method: training alone takes stages, between which little is sent. A call for a token reads all weights,
 * stage after stage, and however few of the two groups a replica has; tp ranks read a part each. The
 * fastest whole step is that of trying all layouts. */
static void answers_decide_between_layouts(void **state)
{
    static struct tried tried;
    const struct hd_cluster c = priced_cluster(1, 4, 4e11, 1e10);
    struct hd_job job = priced_answers(2048, 128), learns;
    struct hd_plan_request request;
    struct hd_search_asked asked = {.spec = &job,
                                    .request = &request,
                                    .cluster = &c,
                                    .devices = 4,
                                    .threads = 1,
                                    .bf16_fast = true,
                                    .top = 1};
    struct hd_search_plan whole, training;
    struct hd_arena arena;

    job.cp = job.micro_batch = 1;
    priced_set(job.recompute, "none");
    for (int open = 0; open < 2; open++) { /* ZeRO, which has to gather in each call; then pp */
        job.pp = !open;
        job.zero = open - 1;
        request = priced_request(&job);
        tried = (struct tried){.asked = &asked};
        try_all(&tried, request);
        compare_within(&asked, &tried, open);
    }
    whole = priced_search(&job, &c, 0, 1, &arena).plans[0];
    hd_arena_done(&arena);
    learns = job;
    learns.objective = HD_JOB_OBJECTIVE_NEXT_TOKEN;
    training = priced_search(&learns, &c, 0, 1, &arena).plans[0];
    hd_arena_done(&arena);
    assert_int_equal(training.job.tp, 1);
    assert_int_equal(whole.job.tp, 4);
    assert_true(whole.cost.rollout_s > training.cost.step_s && training.cost.rollout_s == 0);
}

/* On faster links, memory or processors the best layout takes no longer: everything is open. */
static void more_bandwidth_is_never_slower(void **state)
{
    for (int i = 0; i < 4; i++) {
        struct hd_job job;
        double before = 0;

        draws = 5000 + (uint64_t)i;
        (void)draw(2);
        job = priced_job(2 + draw(2), 256 << draw(2), 8);
        for (int step = 0; step < 4; step++) {
            struct hd_cluster c = priced_cluster(2, 2, (step > 0 ? 3 : 1) * (double)(1 + i) * 1e9,
                                                 (step > 1 ? 3 : 1) * (double)(1 + i) * 1e8);
            struct hd_search found;
            struct hd_arena arena;

            if (step > 2)
                c.rates.memory_bytes_per_s *= 3;
            found = priced_search(&job, &c, (int64_t)1 << (28 + i), 1, &arena);
            assert_true(step == 0 || (found.plan_count > 0) == (before > 0));
            if (found.plan_count && before > 0)
                assert_true(found.fastest_s <= before * (1 + 1e-12));
            before = found.fastest_s;
            hd_arena_done(&arena);
        }
    }
}

RUN_CASES()
