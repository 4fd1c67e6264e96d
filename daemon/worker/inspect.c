/* inspect: verbs that examine a resolved job or a device without training. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/gloo.h"
#include "flags/flags.h"
#include "kernels/plugin.h"
#include "train/job_data.h"
#include "train/rank_program.h"
#include "train/train.h"
#include "worker/measure.h"
#include "worker/worker.h"

/* ---- bigram ---- */

static enum hd_status print_bigram(const struct hd_job *job, struct hd_arena *arena)
{
    struct hd_job_data data = {.validation_count = 0};
    struct hd_bigram *model = NULL;
    double nats;
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    struct hd_token_cache tokens;
    enum hd_status st = hd_token_cache_fill(
        job, &tokenizer, &(struct hd_token_cache_watch){.world = 1}, arena, &tokens);

    if (!st)
        st = hd_job_data_open(job, &tokenizer, &tokens, arena, &data);
    hd_job_tokenizer_close(&tokenizer);

    if (!st && !data.validation_count)
        st = hd_err(HD_INVALID, "the job names no validation data");
    if (!st)
        st = hd_bigram_fit(data.train, job->vocab, &model);
    if (!st)
        st = hd_bigram_entropy(model, &data.validations[hd_job_val_set_best(job)], &nats);
    if (!st)
        (void)printf("%.4f\n", nats);
    hd_bigram_free(model);
    hd_job_data_close(&data);
    return st;
}

int hd_worker_bigram(int argc, char **argv)
{
    const char *path = NULL;
    struct hd_flag f[] = {HD_FLAG_NEEDED("--job", path)};
    struct hd_arena arena;
    struct hd_job job;
    enum hd_status st = HD_FLAGS_READ(argc, argv, f);

    hd_arena_init(&arena, 0);
    if (!st)
        st = hd_job_read_file(path, &arena, &job);
    if (!st)
        st = print_bigram(&job, &arena);
    hd_arena_done(&arena);
    return hd_worker_finish("bigram", st);
}

/* ---- memory and program ---- */

static void print_memory(const struct hd_memory *m)
{
#define X(name, meaning) (void)printf("%14lld  %-11s %s\n", (long long)m->name, #name, meaning);
    HD_MEMORY_LIST(X)
#undef X
    (void)printf("%14lld  total       private %lld + registered %lld\n",
                 (long long)(m->private_bytes + m->registered_bytes), (long long)m->private_bytes,
                 (long long)m->registered_bytes);
}

static enum hd_status print_programs(const struct hd_rank_program *l)
{
    struct hd_text text = {0};

    for (int k = 0; k < l->chunk_count; k++) {
        char which[32] = "";

        if (l->pipeline.chunks > 1)
            (void)snprintf(which, sizeof which, ", chunk %d", hd_rank_program_chunk(l, k));
        hd_text_add(&text, "# training, micro-batch of %lld%s\n", (long long)l->job.micro_batch,
                    which);
        hd_chunk_list(l->train[k], &text);
        hd_text_add(&text, "# validation%s\n", which);
        hd_chunk_list(l->eval[k], &text);
    }
    hd_text_add(&text, "# start and update\n");
    hd_chunk_list(l->update, &text);
    if (text.failed) {
        hd_text_free(&text);
        return hd_err(HD_NO_MEMORY, "no memory to list the programs");
    }
    (void)fputs(text.data, stdout);
    hd_text_free(&text);
    return HD_OK;
}

static int with_layout(const char *verb, int argc, char **argv, bool programs)
{
    const char *path = NULL;
    int64_t rank = 0;
    struct hd_flag f[] = {HD_FLAG_NEEDED("--job", path),
                          HD_FLAG_INT64("--rank", rank, 0, HD_COMM_RANKS_MAX - 1)};
    const struct hd_backend_table *backend;
    struct hd_traits traits;
    struct hd_rank_program layout;
    struct hd_arena arena;
    struct hd_job job;
    enum hd_status st = HD_FLAGS_READ(argc, argv, f);

    hd_arena_init(&arena, 0);
    if (!st)
        st = hd_job_read_file(path, &arena, &job);
    if (!st && rank >= job.pp * job.dp * job.cp * job.tp)
        st = hd_err(HD_INVALID, "--rank: the job has %lld ranks",
                    (long long)(job.pp * job.dp * job.cp * job.tp));
    if (!st)
        st = hd_plugin_backend(hd_job_device_words[job.device], &backend);
    if (!st) {
        const struct hd_backend_options options = hd_trainer_backend_options(&job);

        backend->describe(&options, &traits);
        st = hd_rank_program_build(&job, (int)rank, &traits, &(struct hd_rank_program_options){0},
                                   &arena, &layout);
    }
    if (!st && programs)
        st = print_programs(&layout);
    else if (!st)
        print_memory(&layout.memory);
    hd_arena_done(&arena);
    return hd_worker_finish(verb, st);
}

int hd_worker_memory(int argc, char **argv)
{
    return with_layout("memory", argc, argv, false);
}

int hd_worker_program(int argc, char **argv)
{
    return with_layout("program", argc, argv, true);
}

/* ---- device ---- */

enum { COPY_BYTES = 64 << 20, COPY_MS = 60 };

/* Returns the bytes per second that one thread reads and writes when it copies; 0: not enough
 * memory to measure. */
static double measure_copy(void)
{
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    int64_t bytes = 0, spent_ns = 0;
    double rate = 0;

    if (from && to) {
        int64_t begin;

        memset(from, 1, COPY_BYTES);
        memset(to, 0, COPY_BYTES);
        begin = hd_clock_now_ns();
        while (spent_ns < COPY_MS * 1000000LL) {
            memcpy(to, from, COPY_BYTES);
            from[bytes % COPY_BYTES] = to[0]; /* keeps the compiler from removing a copy */
            bytes += 2LL * COPY_BYTES;
            spent_ns = hd_clock_now_ns() - begin;
        }
        rate = 1e9 * (double)bytes / (double)spent_ns;
    }
    free(from);
    free(to);
    return rate;
}

/* Prints the peaks that a plan's times are relative to (plan/rates.h): of matrix products on all
 * threads, and of copies on one. For a CPU only; a GPU's peaks are in its data sheet. */
static void print_peaks(const struct hd_backend_table *table, int threads)
{
    const struct hd_backend_options options = {.threads = threads};
    struct hd_backend *backend;

    if (table->device || table->open(&options, &backend))
        return;
    (void)printf("peak_fp32 %.6g\npeak_bf16 %.6g\ncopy_bytes_per_s %.6g\n",
                 table->measure_peak(backend, HD_F32), table->measure_peak(backend, HD_BF16),
                 measure_copy());
    table->close(backend);
}

int hd_worker_device_verb(int argc, char **argv)
{
    const struct hd_backend_table *backend = hd_backend_cpu();
    const char *device = "cpu";
    bool measure = false, hold = false;
    int threads = 1, world = 1;
    struct hd_flag f[] = {HD_FLAG_INT("--threads", threads, 1, HD_FLAG_THREADS_MAX),
                          HD_FLAG_INT("--world", world, 1, HD_COMM_RANKS_MAX),
                          HD_FLAG_TEXT("--device", device), HD_FLAG_SWITCH("--measure", measure),
                          HD_FLAG_SWITCH("--hold", hold)};
    char word[HD_TRAITS_TEXT_MAX];
    struct hd_traits traits;
    enum hd_status st = HD_FLAGS_READ(argc, argv, f);

    if (!st && strcmp(device, "auto") == 0)
        /* on failure the CPU's backend stays: the CUDA plug-in is missing or does not work */
        (void)hd_plugin_cuda(&backend);
    else if (!st && strcmp(device, "cuda") == 0)
        st = hd_plugin_cuda(&backend);
    else if (!st && strcmp(device, "cpu") != 0)
        st = hd_err(HD_INVALID, "--device %s: say cpu, cuda or auto", device);
    /* runs the second process, which the process of --measure starts (measure.h) */
    if (!st && hold)
        return hd_worker_finish("device", backend->device ? hd_measure_hold(backend) : HD_OK);
    if (!st) {
        backend->describe(&(struct hd_backend_options){.threads = threads}, &traits);
        if (measure && backend->device)
            hd_measure_process(backend, HD_MEASURE_MS, &traits);
        hd_traits_write(&traits, word);
        (void)printf(
            "backend %s\nisa %s\nthreads %d\nbf16_fast %d\ngloo %d\ngloo_bytes %lld\nlibrary "
            "%s\ntraits %s\n",
            traits.backend, traits.isa, traits.threads, traits.bf16_fast, hd_gloo_built_in(),
            world > 1 ? (long long)hd_gloo_memory_bytes(world) : 0LL, traits.library, word);
        if (measure)
            print_peaks(backend, threads);
    }
    return hd_worker_finish("device", st);
}
