/* Memory has three witnesses: a rank lives in exactly the memory that was predicted for it, no step
 * asks for any more, and the system says the same of the process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/program/test.h"
#include "train/reserve.h"
#include "witness.h"

enum { MICRO_BATCHES = 4 };

/* ---- the reservation is the prediction ---- */

static int64_t sum_of_purposes(const struct hd_memory *m)
{
    int64_t sum = 0;

#define X(name, meaning) sum += m->name;
    HD_MEMORY_LIST(X)
#undef X
    return sum;
}

struct size {
    int64_t layers, hidden, heads, kv_heads, ffn, context;
};

static const struct size sizes[] = {
    {1, 32, 4, 4, 48, 16}, {2, 64, 4, 2, 176, 32}, {3, 96, 6, 1, 200, 48}};

/* Parts are cut at 64 bytes: each unit's elements are a multiple of 16, so nothing is added.
 * Embedding and head V*C each; a block C (2 norms + q, out C + k, v G*D + 3 F); the last norm. */
static int64_t llama_elements(const struct size *s)
{
    const int64_t kv = s->hidden / s->heads * s->kv_heads;
    const int64_t block = s->hidden * (2 + 2 * s->hidden + 2 * kv + 3 * s->ffn);

    return 2 * 256 * s->hidden + s->layers * block + s->hidden;
}

static struct hd_job sized_job(const struct harness *h, const struct size *s, const char *precision)
{
    struct hd_job job = harness_job(h, "llama", 1);

    job.layers = s->layers;
    job.hidden = s->hidden;
    job.heads = s->heads;
    job.head_width = s->hidden / s->heads;
    job.kv_heads = s->kv_heads;
    job.ffn_hidden = s->ffn;
    job.context = s->context;
    job.micro_batch = job.global_batch / MICRO_BATCHES;
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    return job;
}

static void check_prediction(const struct hd_memory *m, const struct size *s, bool bf16)
{
    const int64_t elements = llama_elements(s);

    assert_int_equal(m->weights, 4 * elements);
    assert_int_equal(m->gradients, 4 * elements);
    assert_int_equal(m->moments, 2 * 4 * elements);
    assert_int_equal(m->copies, bf16 ? 2 * elements : 0);
    assert_int_equal(sum_of_purposes(m), m->private_bytes + m->registered_bytes);
}

/* All sizes, encodings and schedules; the prediction is made before any device is opened. */
static void a_rank_lives_in_exactly_what_was_predicted(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int v = 0; v < 8; v++) {
            const struct hd_rank_program_options options = {
                .schedule = v & 1 ? HD_SCHEDULE_GPIPE : HD_SCHEDULE_1F1B, .split_backward = v & 2};
            const struct hd_job job = sized_job(&h, &sizes[s], v & 4 ? "bf16" : "fp32");
            const struct hd_memory m = witness_predict(&job, &options, 0);

            check_prediction(&m, &sizes[s], v & 4);
            if (witness_edges(&job, &(struct witness_cut){.layout = options}))
                fail_msg("%s", hd_err_message());
        }
    harness_teardown(&h);
}

/* With moments in blocks (moments_test has their bytes by hand). */
static void so_does_a_rank_with_moments_of_8_bits(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct hd_job job = sized_job(&h, &sizes[s], "bf16");
        struct hd_memory fp32, blocks;

        fp32 = witness_predict(&job, &(struct hd_rank_program_options){0}, 0);
        job.moments = HD_JOB_MOMENTS_INT8;
        blocks = witness_predict(&job, &(struct hd_rank_program_options){0}, 0);
        assert_int_equal(sum_of_purposes(&blocks), blocks.private_bytes + blocks.registered_bytes);
        assert_true(blocks.moments < fp32.moments);
        if (witness_edges(&job, &(struct witness_cut){0}))
            fail_msg("%s", hd_err_message());
    }
    harness_teardown(&h);
}

/* With codes and histories of fp8 (fp8_training_test has the latter by hand). */
static void so_does_a_rank_with_products_in_fp8(void **state)
{
    struct harness h;

    harness_setup(&h, 20000);
    for (int v = 0; v < 4; v++) {
        const struct hd_rank_program_options options = {.split_backward = v & 1};
        struct hd_job job = sized_job(&h, &sizes[1], "fp8");
        struct hd_memory fp8;

        job.fp8_scaling = hd_job_find_word(hd_job_fp8_scaling_words, v & 2 ? "current" : "delayed");
        fp8 = witness_predict(&job, &options, 0);
        check_prediction(&fp8, &sizes[1], true);
        if (witness_edges(&job, &(struct witness_cut){.layout = options}))
            fail_msg("%s", hd_err_message());
    }
    harness_teardown(&h);
}

/* With all micro-batches in flight what forward keeps is there once for each; with W behind them so
 * is what it needs from B. The rest does not know the schedule. */
static void slots_scale_with_the_micro_batches_in_flight(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = sized_job(&h, &sizes[1], "bf16");
    for (int split = 0; split < 2; split++) {
        const struct hd_rank_program_options one = {.schedule = HD_SCHEDULE_1F1B,
                                                    .split_backward = split};
        const struct hd_rank_program_options all = {.schedule = HD_SCHEDULE_GPIPE,
                                                    .split_backward = split};
        const struct hd_memory a = witness_predict(&job, &one, 0),
                               b = witness_predict(&job, &all, 0);

        assert_true(a.kept > 0);
        assert_int_equal(b.kept, MICRO_BATCHES * a.kept);
        assert_int_equal(a.deferred > 0, split);
        assert_int_equal(b.deferred, MICRO_BATCHES * a.deferred);
        assert_int_equal(b.work, a.work);
        assert_int_equal(b.private_bytes + b.registered_bytes - b.kept - b.deferred,
                         a.private_bytes + a.registered_bytes - a.kept - a.deferred);
    }
    harness_teardown(&h);
}

static void check_too_small(const struct hd_job *job, int64_t less_private, int64_t less_visible)
{
    const struct witness_cut cut = {.less_private = less_private, .less_visible = less_visible};
    const struct hd_memory m = witness_predict(job, &cut.layout, 0);
    char given[64], needed[64];

    (void)snprintf(given, sizeof given, "the %s reservation of %lld bytes",
                   less_private ? "private" : "registered",
                   (long long)(less_private ? m.private_bytes - less_private
                                            : m.registered_bytes - less_visible));
    (void)snprintf(needed, sizeof needed, "smaller than the %lld that the plan needs",
                   (long long)(less_private ? m.private_bytes : m.registered_bytes));
    assert_int_equal(witness_edges(job, &cut), HD_NO_MEMORY);
    assert_non_null(strstr(hd_err_message(), given));
    assert_non_null(strstr(hd_err_message(), needed));
}

static void a_page_less_is_refused_by_name(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = harness_job(&h, "llama", 1);
    check_too_small(&job, witness_page_bytes(), 0);
    check_too_small(&job, 1, 0);
    check_too_small(&job, 0, witness_page_bytes());
    check_too_small(&job, 0, 1);
    harness_teardown(&h);
}

/* ---- what the system says ---- */

enum { SYSTEM_SIZES = 3, SLACK_BYTES = 64 << 20, HUGE_BYTES = 2 << 20 };

struct seen {
    int64_t predicted, before, peak, of_peers; /* bytes */
    int64_t huge, huge_seen;                   /* of the private half */
    bool aligned, advised;
} __attribute__((aligned(64)));

static int64_t high_water_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    long long kib = 0;
    char line[256];

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (file)
        (void)fclose(file);
    return kib * 1024;
}

/* Adds what smaps says of the peers' registered memory and of the mapping at `base`. */
static void read_smaps(int rank, const unsigned char *base, struct seen *seen)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    bool of_peer = false, at_base = false;
    unsigned long from, to;
    char line[512], own[32];
    long long kib;

    (void)snprintf(own, sizeof own, "heddle-rank-%d ", rank);
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            of_peer = strstr(line, "memfd:heddle-rank-") && !strstr(line, own);
            at_base = from <= (unsigned long)base && (unsigned long)base < to;
        } else if (of_peer && sscanf(line, "Rss: %lld", &kib) == 1) {
            seen->of_peers += kib * 1024;
        } else if (at_base && sscanf(line, "AnonHugePages: %lld", &kib) == 1) {
            seen->huge_seen += kib * 1024;
        } else if (at_base && strncmp(line, "VmFlags:", 8) == 0) {
            seen->advised = strstr(line, " hg") != NULL;
        }
    }
    if (file)
        (void)fclose(file);
}

static enum hd_status look_at_the_process(struct harness_rank *r)
{
    struct seen *seen = (struct seen *)r->shared + r->rank;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank};
    const struct hd_reservation *given;
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = witness_use_everything(t);
    given = hd_trainer_reservation(t);
    seen->before = given->resident_before_bytes;
    seen->huge = hd_memory_huge_bytes(given->private_base, given->private_bytes);
    seen->predicted = given->private_bytes + given->registered_bytes;
    seen->aligned = (uintptr_t)hd_trainer_reservation(t)->private_base % HUGE_BYTES == 0;
    read_smaps(r->rank, hd_trainer_reservation(t)->private_base, seen);
    seen->peak = high_water_bytes();
    hd_trainer_free(t);
    return st;
}

static void check_seen(const struct seen *s)
{
    const double used = (double)(s->peak - s->before - s->of_peers);

    print_message("predicted %.1f MB, the system says %.1f MB\n", (double)s->predicted * 1e-6,
                  used * 1e-6);
    assert_true(s->before > 0 && s->peak > s->before);
    assert_true(used >= 0.98 * (double)s->predicted - SLACK_BYTES);
    assert_true(used <= 1.02 * (double)s->predicted + SLACK_BYTES);
}

/* A model of about 60, 180 or 420 million bytes: fp32 masters, gradients and both moments are 16
 * bytes of each of 12 C^2 parameters of a layer. */
static struct hd_job large_job(const struct harness *h, int size, int dp)
{
    static const int64_t layers[SYSTEM_SIZES] = {1, 3, 7};
    struct hd_job job = harness_job(h, "gpt2", dp);

    job.layers = layers[size];
    job.hidden = 512;
    job.heads = job.kv_heads = 8;
    job.head_width = 64;
    job.ffn_hidden = 2048;
    job.context = 8; /* few rows: what they compute is not looked at */
    return job;
}

static bool cannot_look(void)
{
    if (interpose_works() && high_water_bytes() > 0)
        return false;
    print_message("a sanitizer brings its own memory, or /proc does not tell\n");
    return true;
}

/* Goal: what is not planned is small and does not grow with the model. Method: three sizes, each in
 * a process of its own; the line through the three points has the slope 1. */
static void the_system_sees_what_was_predicted(void **state)
{
    double x = 0, y = 0, xx = 0, xy = 0, slope;

    if (cannot_look())
        skip();
    for (int size = 0; size < SYSTEM_SIZES; size++) {
        struct seen *seen = harness_shared(sizeof *seen);
        struct harness h;
        struct hd_job job;
        double predicted, used;

        harness_setup(&h, 20000);
        job = large_job(&h, size, 1);
        if (harness_processes(&job, 1, seen, look_at_the_process))
            fail_msg("%s", hd_err_message());
        check_seen(seen);
        assert_int_equal(seen->of_peers, 0);
        predicted = (double)seen->predicted * 1e-6;
        used = (double)(seen->peak - seen->before) * 1e-6;
        x += predicted;
        y += used;
        xx += predicted * predicted;
        xy += predicted * used;
        harness_shared_free(seen, sizeof *seen);
        harness_teardown(&h);
    }
    slope = (SYSTEM_SIZES * xy - x * y) / (SYSTEM_SIZES * xx - x * x);
    print_message("slope %.4f\n", slope);
    assert_true(slope > 0.98 && slope < 1.02);
}

/* A rank also maps what its peers show; that is their memory, and theirs alone is counted. */
static void the_system_sees_it_of_each_of_two_ranks(void **state)
{
    struct seen *seen = harness_shared(2 * sizeof *seen);
    struct harness h;
    struct hd_job job;

    if (cannot_look())
        skip();
    harness_setup(&h, 20000);
    job = large_job(&h, 1, 2);
    if (harness_processes(&job, 2, seen, look_at_the_process))
        fail_msg("%s", hd_err_message());
    for (int r = 0; r < 2; r++) {
        check_seen(&seen[r]);
        assert_true(seen[r].of_peers > 0);
    }
    harness_teardown(&h);
    harness_shared_free(seen, 2 * sizeof *seen);
}

/* The kernel gives huge pages where they were asked for before the first touch, at a bound of their
 * size. How many it had is what the log says. */
static void huge_pages_are_asked_for_and_counted(void **state)
{
    struct seen *seen = harness_shared(sizeof *seen);
    struct harness h;
    struct hd_job job;

    if (cannot_look())
        skip();
    harness_setup(&h, 20000);
    job = large_job(&h, 0, 1);
    job.threads = 2; /* touched by two threads */
    if (harness_processes(&job, 1, seen, look_at_the_process))
        fail_msg("%s", hd_err_message());
    print_message("%.1f MB on huge pages\n", (double)seen->huge * 1e-6);
    assert_true(seen->aligned);
    assert_true(seen->advised);
    assert_int_equal(seen->huge, seen->huge_seen);
    assert_true(seen->huge >= 0 && seen->huge <= seen->predicted);
    harness_teardown(&h);
    harness_shared_free(seen, sizeof *seen);
}

/* ---- no step allocates ---- */

/* With two threads the model is large enough that kernels share their work. */
static void quiet_case(const char *family, const char *precision, int dp, int threads,
                       struct hd_rank_program_options layout)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = harness_job(&h, family, dp);
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    job.threads = threads;
    if (threads > 1) {
        job.hidden = 128;
        job.ffn_hidden = 512;
        job.context = 64;
    }
    witness_quiet(&job, &layout);
    harness_teardown(&h);
}

/* First in the list: see witness_quiet. */
static void no_step_allocates(void **state)
{
    const struct hd_rank_program_options sequential = {0}, gpipe = {.schedule = HD_SCHEDULE_GPIPE,
                                                                    .split_backward = true};

    if (!interpose_works()) {
        print_message("a sanitizer brings its own malloc\n");
        skip();
    }
    quiet_case("llama", "fp32", 1, 1, sequential);
    quiet_case("llama", "fp32", 2, 1, sequential);
    quiet_case("gpt2", "bf16", 2, 1, sequential);
    quiet_case("llama", "bf16", 2, 1, gpipe);
    quiet_case("llama", "fp32", 1, 2, sequential);
    quiet_case("gpt2", "bf16", 2, 2, sequential);
}

/* The witness is awake: a call of each kind is counted, also one that libc makes for us. */
static void the_witness_sees_calls_of_every_kind(void **state)
{
    struct interpose_count before, after;
    void *volatile memory[5];
    void *mapped;

    if (!interpose_works()) {
        print_message("a sanitizer brings its own malloc\n");
        skip();
    }
    interpose_get(&before);
    interpose_start();
    memory[0] = malloc(3);
    memory[1] = calloc(3, 5);
    memory[2] = realloc(NULL, 7);
    memory[3] = aligned_alloc(64, 128);
    memory[4] = strdup("a call by libc");
    mapped =
        mmap(NULL, (size_t)witness_page_bytes(), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    interpose_stop();
    free(malloc(1)); /* not counted any more */
    interpose_get(&after);
    for (int i = 0; i < 5; i++)
        free(memory[i]);
    assert_true(mapped != MAP_FAILED);
    (void)munmap(mapped, (size_t)witness_page_bytes());
    assert_int_equal(after.calls[INTERPOSE_HEDDLE] - before.calls[INTERPOSE_HEDDLE], 6);
    assert_int_equal(after.bytes[INTERPOSE_HEDDLE] - before.bytes[INTERPOSE_HEDDLE],
                     3 + 3 * 5 + 7 + 128 + sizeof "a call by libc" + (size_t)witness_page_bytes());
}

RUN_CASES()
