/* probe_models: measures training steps of small models, launch by launch.
 *
 * The models are trained as any job is, so each kernel is launched with the same kinds of
 * arguments, and finds the caches in the same state, as in training. Their sizes are chosen so that
 * each kernel is measured at small and at large sizes; models over two ranks have the kernels that
 * tp, cp and ep add. The text is random bytes: no kernel takes longer for real text.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "job/family.h"
#include "program/dry.h"
#include "program/launch_times.h"
#include "train/train.h"
#include "worker/probe.h"

enum {
    STEPS_MIN = 2,
    STEPS_MAX = 12,
    STEPS_NS = 350 * 1000 * 1000, /* time limit of one model, after STEPS_MIN steps */
    PLAIN_STEPS = 4,              /* steps of a model on a GPU that are timed without events */
    NODES_MAX = 1 << 14,          /* most nodes (launches) of a step's programs; a power of two */
    KEYS_MAX = 512,
    TIMES_MAX = 192 /* newest times kept per kernel and sizes (key) */
};

struct probe_model {
    const char *family;
    int64_t layers, hidden, heads, kv_heads, ffn_hidden, vocab, context, batch, experts;
    int64_t tp, cp, ep; /* ranks for tensor, context and expert parallelism; 0: one rank */
    /* GiB of device memory that the model needs; it is skipped on a smaller device */
    int64_t memory_gib;
};

/* Models for CPUs; the small ones first, because they cover all kernels soonest. */
static const struct probe_model processor_models[] = {
    {"gpt2", 2, 128, 4, 4, 512, 256, 64, 4, 0, 0, 0, 0, 0},
    {"llama", 2, 128, 4, 2, 384, 256, 64, 4, 0, 0, 0, 0, 0},
    {"mixtral", 2, 128, 4, 2, 256, 256, 64, 4, 4, 0, 0, 0, 0},
    {"qwen3", 1, 128, 4, 2, 384, 256, 128, 4, 0, 0, 0, 0, 0},
    {"llama", 2, 128, 4, 2, 384, 512, 128, 4, 0, 2, 0, 0, 0},
    {"llama", 2, 128, 4, 2, 384, 256, 128, 4, 0, 0, 2, 0, 0},
    {"mixtral", 2, 128, 4, 2, 256, 256, 128, 4, 4, 0, 0, 2, 0},
    {"gpt2", 3, 256, 4, 4, 1024, 256, 128, 4, 0, 0, 0, 0, 0},
    {"llama", 3, 256, 4, 4, 768, 2048, 128, 4, 0, 0, 0, 0, 0},
    {"mixtral", 2, 256, 8, 4, 512, 256, 128, 4, 4, 0, 0, 0, 0},
    {"gpt2", 2, 384, 6, 6, 1536, 256, 128, 16, 0, 0, 0, 0, 0},
    {"llama", 2, 512, 8, 4, 1408, 512, 512, 1, 0, 0, 0, 0, 0},
    {"gpt2", 1, 512, 8, 8, 2048, 4096, 256, 2, 0, 2, 0, 0, 0},
    {"llama", 1, 512, 8, 8, 1408, 512, 512, 2, 0, 0, 2, 0, 0},
    {"mixtral", 1, 384, 6, 6, 768, 512, 256, 4, 8, 0, 0, 0, 0},
    {"mixtral", 1, 384, 6, 6, 768, 512, 256, 2, 8, 0, 0, 2, 0},
    {"gpt2", 1, 768, 12, 12, 3072, 4096, 512, 1, 0, 0, 0, 0, 0},
    {"qwen3", 1, 512, 4, 2, 1536, 512, 256, 2, 0, 0, 0, 0, 0},
};
enum { PROCESSOR_MODELS = sizeof processor_models / sizeof processor_models[0], QUICK_MODELS = 7 };

/* Models for GPUs, which are larger: heads of 64 and 128, 4k to 32k tokens at a time. The first
 * ones have all kernels in sizes that fill a GPU. They have few parameters: the host draws the
 * initial values, which is part of the probe's time. */
static const struct probe_model gpu_models[] = {
    {"gpt2", 1, 768, 12, 12, 3072, 50257, 1024, 8, 0, 0, 0, 0, 6},
    {"llama", 1, 1024, 16, 4, 2816, 8192, 1024, 8, 0, 0, 0, 0, 4},
    {"mixtral", 1, 1024, 8, 4, 1024, 8192, 1024, 8, 8, 0, 0, 0, 8},
    {"qwen3", 1, 1024, 8, 4, 3072, 8192, 1024, 8, 0, 0, 0, 0, 4},
    {"llama", 1, 1024, 16, 8, 2816, 8192, 2048, 4, 0, 2, 0, 0, 4},
    {"llama", 1, 1024, 16, 8, 2816, 8192, 2048, 4, 0, 0, 2, 0, 4},
    {"mixtral", 1, 1024, 8, 4, 1024, 8192, 1024, 8, 8, 0, 0, 2, 8},
    {"gpt2", 1, 256, 4, 4, 1024, 2048, 512, 8, 0, 0, 0, 0, 2},
    {"gpt2", 1, 768, 12, 12, 3072, 8192, 1024, 32, 0, 0, 0, 0, 8},
    {"llama", 1, 2048, 16, 8, 5632, 8192, 4096, 2, 0, 0, 0, 0, 8},
    {"llama", 1, 1024, 16, 8, 2816, 8192, 4096, 4, 0, 0, 0, 0, 6},
    {"gpt2", 1, 1600, 25, 25, 6400, 8192, 1024, 16, 0, 0, 0, 0, 10},
    {"qwen3", 1, 1024, 8, 4, 3072, 8192, 8192, 2, 0, 0, 0, 0, 6},
    {"gpt2", 1, 1024, 8, 8, 4096, 8192, 2048, 8, 0, 2, 0, 0, 8},
    {"mixtral", 1, 2048, 16, 8, 1024, 8192, 2048, 4, 8, 0, 0, 0, 12},
};
enum { GPU_MODELS = sizeof gpu_models / sizeof gpu_models[0] };

/* Models for `quick` with an emulated GPU. */
static const struct probe_model least_models[] = {
    {"llama", 1, 64, 1, 1, 128, 256, 16, 2, 0, 0, 0, 0, 0},
    {"gpt2", 1, 64, 1, 1, 128, 256, 16, 2, 0, 0, 0, 0, 0},
    {"llama", 1, 128, 2, 2, 128, 256, 16, 2, 0, 2, 0, 0, 0},
    {"mixtral", 1, 64, 1, 1, 64, 256, 16, 2, 2, 0, 0, 2, 0},
};
enum { LEAST_MODELS = sizeof least_models / sizeof least_models[0] };

static const struct probe_model *models_of(const struct probe *p, int *ret_count)
{
    *ret_count = p->is_gpu  ? (p->quick ? LEAST_MODELS : GPU_MODELS)
                 : p->quick ? QUICK_MODELS
                            : PROCESSOR_MODELS;
    return !p->is_gpu ? processor_models : p->quick ? least_models : gpu_models;
}

static bool takes_two(const struct probe_model *m)
{
    return m->tp > 1 || m->cp > 1 || m->ep > 1;
}

static void set(char *member, const char *word)
{
    (void)snprintf(member, HD_JOB_WORD_MAX, "%s", word);
}

static void set_model(const struct probe_model *m, struct hd_job *j)
{
    const struct hd_family *family = hd_family_named(m->family);

    j->family = m->family;
    j->positions = hd_family_positions(family);
    j->tokenizer = "bytes";
    j->layers = m->layers;
    j->hidden = m->hidden;
    j->heads = m->heads;
    j->kv_heads = m->kv_heads;
    j->head_width = m->hidden / m->heads;
    j->ffn_hidden = m->ffn_hidden;
    j->vocab = m->vocab;
    j->context = m->context;
    j->rope_theta = 1e4;
    j->norm_eps = 1e-5;
    j->tie_embeddings = family->tied;
    j->qkv_bias = family->qkv_bias;
    j->out_bias = family->out_bias;
    j->mlp_bias = family->mlp_bias;
    j->qk_norm = family->qk_norm;
    if (m->experts) {
        j->experts = m->experts;
        j->experts_per_token = 2;
        j->renormalize = family->renormalize;
        j->balance = 0.01;
    }
}

static void set_layout(const struct probe *p, const struct probe_model *m, bool half,
                       struct hd_job *j)
{
    j->tp = m->tp ? m->tp : 1;
    j->cp = m->cp ? m->cp : 1;
    j->ep = m->ep ? m->ep : 1;
    j->dp = m->ep ? m->ep : 1;
    j->pp = j->virtual_stages = 1;
    j->zero = 0;
    j->sequence = j->tp > 1;
    j->micro_batch = m->batch;
    j->global_batch = m->batch * j->dp;
    j->threads = p->threads;
    set(j->schedule, "none");
    set(j->recompute, "none");
    j->cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    j->precision = half ? HD_JOB_PRECISION_BF16 : HD_JOB_PRECISION_FP32;
    j->device = p->table->device ? HD_JOB_DEVICE_CUDA : HD_JOB_DEVICE_CPU;
    j->devices_min = j->devices_max = takes_two(m) ? 2 : 1;
}

static struct hd_job job_of(const struct probe *p, const struct probe_model *m, bool half,
                            struct hd_job_file *file)
{
    struct hd_job j;

    hd_job_set_defaults(&j);
    j.name = "probe";
    j.steps = 1000000;
    j.lr_peak = j.lr_min = 1e-4;
    j.validate_batches = 0;
    j.job_id = j.attempt = 1;
    j.base_manifest_hash = "-";
    j.lr_decay = HD_JOB_LR_DECAY_CONSTANT;
    set_model(m, &j);
    set_layout(p, m, half, &j);
    j.train = file;
    j.train_count = 1;
    return j;
}

/* ---- times of launches ---- */

struct key_times {
    struct hd_calibration_key key;
    double seconds[TIMES_MAX];
    int count;
};

struct times {
    struct node_key {
        const struct hd_node *node;
        /* index in `keys`; -1: the node is not measured, because all KEYS_MAX keys are used */
        int key;
    } nodes[NODES_MAX];
    struct key_times keys[KEYS_MAX];
    int key_count;
    double gaps[TIMES_MAX], rests[STEPS_MAX];
    int gap_count, rest_count;
    int64_t launch_ns, last_end_ns;
    int launches, turn;
    /* for a model over two ranks: times of collectives that ran without other work; NULL:
     * unknown */
    const struct hd_calibration *alone;
    int64_t kernels_ns, collectives_ns, collectives;
    /* per step and second of kernels: seconds of waits for the other rank; number of collectives */
    double alone_s, waits[STEPS_MAX], each[STEPS_MAX];
    int wait_count;
};

static int find_key(struct times *t, const struct hd_node *node)
{
    struct hd_calibration_key key;
    struct hd_costs costs = {0};

    hd_dry_node_costs(&costs, node);
    hd_calibration_key_of(node->kernel, node->args, &costs, &key);
    for (int i = 0; i < t->key_count; i++)
        if (memcmp(&t->keys[i].key, &key, sizeof key) == 0)
            return i;
    if (t->key_count == KEYS_MAX)
        return -1;
    t->keys[t->key_count].key = key;
    t->keys[t->key_count].count = 0;
    return t->key_count++;
}

static int key_of(struct times *t, const struct hd_node *node)
{
    size_t at = ((uintptr_t)node >> 4) % NODES_MAX;

    for (int i = 0; i < NODES_MAX && t->nodes[at].node && t->nodes[at].node != node; i++)
        at = (at + 1) % NODES_MAX;
    if (t->nodes[at].node == node)
        return t->nodes[at].key;
    if (t->nodes[at].node)
        return -1;
    t->nodes[at].node = node;
    t->nodes[at].key = find_key(t, node);
    return t->nodes[at].key;
}

/* Adds the time of a launch of a collective, or of a wait for one or for all collectives, to
 * `t`. */
static void note_collective(struct times *t, const struct hd_span *span)
{
    const struct hd_node *node = span->node;
    int64_t members;
    double bytes, seconds;

    t->collectives_ns += span->end_ns - span->begin_ns;
    if (!t->alone || span->kind != HD_SPAN_LAUNCH)
        return;
    t->collectives++;
    bytes = (double)node->count * (double)hd_dtype_size(node->dtype);
    /* counted as in plan/layer_profile.c, for two members */
    if (node->comm == HD_COMM_ALL_TO_ALL_V)
        bytes = (double)(node->rows.even * node->rows.elements) *
                (double)hd_dtype_size(node->dtype) / 2;
    if (hd_calibration_collective(t->alone, node->comm, 2, bytes, &seconds, &members))
        t->alone_s += seconds;
}

static void keep_launch(struct times *t, const struct hd_node *node, double seconds)
{
    const int key = key_of(t, node);
    struct key_times *k = &t->keys[key < 0 ? 0 : key];

    t->launch_ns += (int64_t)(1e9 * seconds);
    t->launches++;
    if (key < 0)
        return;
    if (k->count < TIMES_MAX)
        k->seconds[k->count++] = seconds;
    else /* newer times replace older ones */
        k->seconds[t->turn++ % TIMES_MAX] = seconds;
}

static void on_span(void *context, const struct hd_span *span)
{
    struct times *t = context;

    /* a poll counts as part of the gap between launches: ranks poll between any two launches */
    if (span->kind == HD_SPAN_POLL) {
        /* a collective may proceed inside a poll */
        t->collectives_ns += span->end_ns - span->begin_ns;
        return;
    }
    if (span->kind != HD_SPAN_LAUNCH || span->node->is_comm) {
        note_collective(t, span);
        t->last_end_ns = 0;
        return;
    }
    t->kernels_ns += span->end_ns - span->begin_ns;
    if (t->last_end_ns)
        t->gaps[t->gap_count++ % TIMES_MAX] = 1e-9 * (double)(span->begin_ns - t->last_end_ns);
    t->last_end_ns = span->end_ns;
    keep_launch(t, span->node, 1e-9 * (double)(span->end_ns - span->begin_ns));
}

/* Turns all times of a model into records for the plan. alone: the model runs on one rank. */
static void keep_times(struct probe *p, struct times *t, bool alone)
{
    struct probe_record r = {.what = PROBE_KERNEL};

    for (int i = 0; i < t->key_count; i++) {
        r.key = t->keys[i].key;
        r.seconds = probe_mean(t->keys[i].seconds, t->keys[i].count);
        probe_keep(p, &r);
    }
    /* lower quartile: waits of a usual step, because the times of kernels exclude delayed launches,
     * too */
    if (t->wait_count) {
        r = (struct probe_record){.what = PROBE_WAIT};
        r.seconds = probe_lower_quartile(t->waits, t->wait_count);
        r.bandwidth = probe_lower_quartile(t->each, t->wait_count);
        probe_keep(p, &r);
    }
    if (!alone)
        return;
    r = (struct probe_record){.what = PROBE_LAUNCH};
    if (t->gap_count) {
        r.seconds =
            probe_lower_quartile(t->gaps, t->gap_count < TIMES_MAX ? t->gap_count : TIMES_MAX);
        probe_keep(p, &r);
        /* subtracts the gaps between launches from the rest of each step */
        for (int i = 0; i < t->rest_count; i++)
            t->rests[i] -= r.seconds * t->launches / (double)t->rest_count;
    }
    r.what = PROBE_STEP;
    r.seconds = probe_lower_quartile(t->rests, t->rest_count);
    if (r.seconds > 0)
        probe_keep(p, &r);
}

/* ---- a model ---- */

/* Stores, for the step that has ended, how long the rank waited for the other rank beyond the time
 * of the collectives alone, per second of kernels. */
static void note_waits(struct times *t)
{
    const double waited = 1e-9 * (double)t->collectives_ns - t->alone_s;
    const double kernels = 1e-9 * (double)t->kernels_ns;

    if (!t->alone || t->kernels_ns <= 0)
        return;
    t->waits[t->wait_count] = waited > 0 ? waited / kernels : 0;
    t->each[t->wait_count++] = (double)t->collectives / kernels;
}

static enum hd_status run_steps(struct probe *p, struct hd_trainer *t, struct times *times)
{
    int64_t spent_ns = 0;
    struct hd_step_result result;
    const int steps_min = p->quick ? 1 : STEPS_MIN;
    enum hd_status st = hd_trainer_step(t, 0, &result);

    hd_runner_profile(hd_trainer_runner(t),
                      &(struct hd_profiler){.span = on_span, .context = times});
    for (int i = 0; !st && i < STEPS_MAX && (i < steps_min || (spent_ns < STEPS_NS && !p->quick));
         i++) {
        const int64_t begin_ns = hd_clock_now_ns();
        int64_t step_ns;
        int64_t request;

        times->launch_ns = times->last_end_ns = times->kernels_ns = times->collectives_ns = 0;
        times->collectives = 0;
        times->alone_s = 0;
        st = hd_trainer_step(t, 0, &result);
        step_ns = hd_clock_now_ns() - begin_ns;
        times->rests[times->rest_count++] = 1e-9 * (double)(step_ns - times->launch_ns);
        spent_ns += step_ns;
        note_waits(times);
        if (!st) /* the ranks of one model stop after the same step */
            st = hd_trainer_agree(t, spent_ns, &request);
        if (!st)
            spent_ns = request;
    }
    hd_runner_profile(hd_trainer_runner(t), NULL);
    return st;
}

/* Measures the kernels of a GPU: one step whose events time each launch, after a step that creates
 * the events. The rest of a step without events, minus its kernels, is the gap between launches and
 * the host's work at the end of the step. */
static enum hd_status run_gpu_steps(struct probe *p, struct hd_trainer *t, struct times *times)
{
    struct hd_launch_times *launches = NULL;
    double step_s = 0, rest_s;
    struct hd_step_result result;
    struct hd_profiler profiler;
    enum hd_status st = hd_launch_times_new(p->table, p->backend,
                                            hd_runner_stream(hd_trainer_runner(t)), &launches);

    for (int i = 0; !st && i < (p->quick ? 1 : PLAIN_STEPS); i++) {
        const int64_t begin_ns = hd_clock_now_ns();
        double s;

        st = hd_trainer_step(t, 0, &result);
        s = 1e-9 * (double)(hd_clock_now_ns() - begin_ns);
        step_s = i <= 1 || s < step_s ? s : step_s; /* the first step warms up */
    }
    if (launches)
        hd_launch_times_profiler(launches, &profiler);
    if (!st)
        hd_runner_profile(hd_trainer_runner(t), &profiler);
    for (int i = 0; !st && i < (p->quick ? 1 : 2); i++) {
        hd_launch_times_clear(launches);
        st = hd_trainer_step(t, 0, &result);
    }
    hd_runner_profile(hd_trainer_runner(t), NULL);
    for (int i = 0; !st && i < hd_launch_times_count(launches); i++) {
        const struct hd_node *node;
        double seconds;

        st = hd_launch_times_get(launches, i, &node, &seconds);
        if (!st)
            keep_launch(times, node, seconds);
    }
    rest_s = step_s - 1e-9 * (double)times->launch_ns;
    times->gaps[times->gap_count++] = rest_s > 0 && times->launches ? rest_s / times->launches : 0;
    times->rests[times->rest_count++] = rest_s;
    hd_launch_times_free(launches);
    return st;
}

/* Collects the times of collectives among two devices without other work, as this process measured
 * them. */
static enum hd_status collectives_alone(const struct probe *p, struct hd_arena *arena,
                                        struct hd_calibration *ret_alone)
{
    enum hd_status st = HD_OK;

    *ret_alone = (struct hd_calibration){.devices = p->world};
    for (int i = 0; !st && i < *p->record_count; i++) {
        const struct probe_record *r = &p->records[i];

        if (r->what == PROBE_COLLECTIVE && r->members == 2)
            st = hd_calibration_add_collective(ret_alone, arena, r->kind, 2, r->bytes, r->seconds);
    }
    return st;
}

static enum hd_status measure_model(struct probe *p, const struct probe_model *m, bool half,
                                    struct hd_shm_control *pair)
{
    char path[PROBE_DIR_MAX + 16];
    struct hd_job_file file = {.path = path, .size_bytes = PROBE_CORPUS_BYTES};
    const struct hd_job job = job_of(p, m, half, &file);
    struct hd_trainer_options options = {
        .backend = p->table, .instance = p->backend, .rank = pair ? p->rank % 2 : 0, .peak = 1};
    struct times *times = calloc(1, sizeof *times);
    struct hd_calibration alone;
    struct hd_arena arena;
    struct hd_opened_rank opened = {.table = p->table};
    struct hd_trainer *t = NULL;
    enum hd_status st = times ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the times of launches");

    (void)snprintf(path, sizeof path, "%s/corpus", p->dir);
    hd_arena_init(&arena, 0);
    if (!st && pair) {
        st = collectives_alone(p, &arena, &alone);
        times->alone = &alone;
    }
    if (!st)
        st = probe_meet(p, pair, p->rank % 2, 2, &opened);
    options.comm = opened.comm;
    if (!st)
        st = hd_trainer_new(&job, &options, &t);
    if (!st)
        st = hd_trainer_init(t);
    if (!st)
        st = p->is_gpu ? run_gpu_steps(p, t, times) : run_steps(p, t, times);
    if (!st)
        keep_times(p, times, !pair);
    if (st && options.comm)
        hd_comm_abort(options.comm, hd_err_message());
    hd_trainer_free(t);
    hd_rank_close(&opened);
    hd_arena_done(&arena);
    free(times);
    return st ? hd_err_prefix(st, "a %s of %lld x %lld", m->family, (long long)m->layers,
                              (long long)m->hidden)
              : HD_OK;
}

enum hd_status probe_models(struct probe *p, bool half)
{
    int count;
    const struct probe_model *models = models_of(p, &count);
    enum hd_status st = HD_OK;
    bool goes_on = true;
    int pair = half ? PROBE_CONTROLS / 2 : 0;

    for (int i = 0; !st && i < count; i++) {
        const struct probe_model *m = &models[i];

        st = probe_agree(p, &goes_on);
        if (st || !goes_on)
            return st;
        if (p->is_gpu && p->memory_bytes < m->memory_gib << 30)
            continue;
        if (!takes_two(m))
            st = measure_model(p, m, half, NULL);
        else if (pair < PROBE_CONTROLS / (half ? 1 : 2) && p->pairs[pair])
            st = measure_model(p, m, half, p->pairs[pair++]);
    }
    return st;
}
