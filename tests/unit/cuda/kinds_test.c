/* kinds: what is planned for a kind of GPU where there is none is what such a GPU would be given.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "plan/plan.h"
#include "tests/cudasim/cudasim.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

static struct hd_job some_job(const char *family, const char *precision)
{
    struct hd_job job =
        HD_JOB(.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 4, .head_width = 16,
               .rope_factor = 1, .ffn_hidden = 128, .vocab = 256, .context = 64, .rope_theta = 1e4,
               .norm_eps = 1e-5, .steps = 10, .global_batch = 8, .micro_batch = 2, .lr_peak = 1e-3,
               .beta1 = 0.9, .beta2 = 0.95, .adam_eps = 1e-8, .clip = 1, .threads = 1, .pp = 1,
               .dp = 1, .cp = 1, .tp = 1, .ep = 1);

    job.name = "some";
    job.family = job_text("%s", family);
    job.tokenizer = "bytes";
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    job.rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    job.positions =
        hd_job_find_word(hd_job_positions_words, strcmp(family, "gpt2") == 0 ? "learned" : "rope");
    job.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    (void)snprintf(job.stages, sizeof job.stages, "auto");
    (void)snprintf(job.recompute, sizeof job.recompute, "none");
    job.lr_decay = HD_JOB_LR_DECAY_CONSTANT;
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    job.device = HD_JOB_DEVICE_CUDA;
    return job;
}

static struct hd_plan build(struct hd_arena *arena, const struct hd_job *job,
                            const struct hd_traits *traits)
{
    struct hd_plan plan = {0};

    if (hd_plan_build(job, traits, arena, &plan))
        fail_msg("%s", hd_err_message());
    return plan;
}

static void check_equal_plans(const struct hd_job *job, const struct hd_traits *of_kind,
                              const struct hd_traits *of_device)
{
    struct hd_arena arena;
    struct hd_plan planned, real;

    hd_arena_init(&arena, 0);
    planned = build(&arena, job, of_kind);
    real = build(&arena, job, of_device);
    assert_int_equal(planned.mesh.world, real.mesh.world);
    assert_int_equal(planned.class_count, real.class_count);
    for (int32_t r = 0; r < planned.mesh.world; r++) {
        const struct hd_plan_class *one = hd_plan_rank(&planned, r),
                                   *other = hd_plan_rank(&real, r);

        assert_true(one->memory.work > 0 && one->memory.host_bytes > 0);
        assert_memory_equal(&one->memory, &other->memory, sizeof one->memory);
        assert_int_equal(one->step.costs.read_bytes, other->step.costs.read_bytes);
    }
    hd_arena_done(&arena);
}

/* Goal: no byte of a plan depends on anything that only a device knows. Method: the emulated device
 * says that it is a GPU of each kind; layouts on every axis, both encodings. */
static void a_kind_is_planned_as_a_device_of_it(void **state)
{
    static const struct {
        const char *family, *precision;
        int64_t dp, cp, tp;
        bool deterministic;
    } layouts[] = {{"llama", "bf16", 1, 1, 1, false},
                   {"llama", "fp32", 2, 1, 1, false},
                   {"gpt2", "bf16", 1, 1, 2, false},
                   {"gpt2", "bf16", 1, 1, 1, true},
                   {"qwen2", "bf16", 2, 2, 2, false}};
    const struct hd_gpu_kind *kinds;
    size_t count;

    kinds = hd_gpu_kinds(&count);
    assert_true(count > 10);
    for (size_t k = 0; k < count; k++) {
        struct hd_backend_options options = {.threads = 1};
        struct hd_traits of_kind, of_device;

        hd_gpu_kind_traits(&kinds[k], &of_kind);
        hd_cudasim_kind(kinds[k].multiprocessors, kinds[k].capability);
        hd_cudasim_memory((size_t)of_kind.memory_bytes);
        hd_backend_cuda()->describe(&options, &of_device);
        assert_int_equal(of_device.multiprocessors, kinds[k].multiprocessors);
        assert_int_equal(of_device.capability, kinds[k].capability);
        assert_int_equal(of_device.memory_bytes, of_kind.memory_bytes);
        assert_int_equal(of_device.page_bytes, of_kind.page_bytes);
        assert_int_equal(of_device.bf16_fast, of_kind.bf16_fast);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            struct hd_job job = some_job(layouts[i].family, layouts[i].precision);

            job.dp = layouts[i].dp;
            job.cp = layouts[i].cp;
            job.tp = layouts[i].tp;
            job.qkv_bias = job.out_bias = job.mlp_bias = !strcmp(layouts[i].family, "gpt2");
            job.deterministic = options.deterministic = layouts[i].deterministic;
            hd_backend_cuda()->describe(&options, &of_device); /* as its backend is opened */
            check_equal_plans(&job, &of_kind, &of_device);
        }
    }
}

/* Goal: a slip in the table shows. Method: each rate against the multiprocessors: what one of its
 * generation multiplies per cycle gives the clock that the rate stands for. No such GPU has more
 * than 2.7 GHz; for fp32, which no seller throttles, none has less than 1 GHz either. */
static void rates_fit_the_multiprocessors(void **state)
{
    const struct hd_gpu_kind *kinds;
    size_t count;

    kinds = hd_gpu_kinds(&count);
    for (size_t k = 0; k < count; k++)
        for (int e = 0; e < 4 && kinds[k].capability >= 80; e++) { /* older: peak.c knows none */
            static const enum hd_dtype dtypes[] = {HD_BF16, HD_F32, HD_F32, HD_U8};
            const enum hd_dtype dtype = dtypes[e];
            const double rate = hd_gpu_kind_rate(&kinds[k], dtype, e == 1);
            const double hz = rate / hd_cuda_peak("nobody's", kinds[k].capability,
                                                  kinds[k].multiprocessors, 1, dtype, e == 1);

            if (e == 3 && kinds[k].capability < HD_GPU_FP8_FROM) {
                assert_true(rate == 0); /* hz: 0 / 0 */
                continue;
            }
            if (hz > 2.7e9 || (e == 2 && hz < 1e9) || !(rate > 0))
                fail_msg("%s: %.4g operations per second are %.2f GHz", kinds[k].word, rate,
                         hz * 1e-9);
        }
}

static void a_kind_is_found_by_its_word_alone(void **state)
{
    const struct hd_gpu_kind *kinds;
    size_t count;

    kinds = hd_gpu_kinds(&count);
    for (size_t k = 0; k < count; k++)
        assert_ptr_equal(hd_gpu_kind_find(kinds[k].word),
                         &kinds[k]); /* so no word is there twice */
    assert_null(hd_gpu_kind_find("cpu"));
    assert_null(hd_gpu_kind_find("h100-"));
    assert_null(hd_gpu_kind_find(""));
}

/* Goal: a plan for boards that are not here neither refuses what fits there nor promises what does
 * not. Method: the memory that programs are offered on some of them, in GiB as PyTorch prints it:
 * planned is less, by no more than a GiB; and of none more than it reports. */
static void a_kind_has_the_memory_that_programs_are_offered(void **state)
{
    static const struct {
        const char *word;
        double gib;
    } offered[] = {{"h100", 79.1}, {"h200", 139.7}, {"gh200", 94.5}, {"gb200", 184.31}};
    const struct hd_gpu_kind *kinds;
    struct hd_traits t;
    size_t count;

    for (size_t i = 0; i < sizeof offered / sizeof offered[0]; i++) {
        hd_gpu_kind_traits(hd_gpu_kind_find(offered[i].word), &t);
        assert_true((double)t.memory_bytes <= offered[i].gib * 0x1p30);
        assert_true((double)t.memory_bytes >= (offered[i].gib - 1) * 0x1p30);
    }
    kinds = hd_gpu_kinds(&count);
    for (size_t k = 0; k < count; k++) {
        const char *gb = strrchr(kinds[k].text, ' ') - 3; /* "H100 PCIe 80 GB", "A10 24 GB" */
        const double named = 1e9 * (double)strtol(gb, NULL, 10);
        const double reported = 0x1p20 * kinds[k].memory_mib;

        hd_gpu_kind_traits(&kinds[k], &t);
        assert_true((double)t.memory_bytes < reported);
        assert_true(reported <= 1.08 * named);
        assert_true(reported >= 0.9999 * named);
    }
}

/* Other chips that have the words of a kind in their names. */
static void a_variant_of_a_kind_is_not_that_kind(void **state)
{
    static const char *const variants[] = {
        "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 40900"};

    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        assert_null(hd_gpu_kind_of_name(variants[i]));
    assert_string_equal(hd_gpu_kind_of_name("NVIDIA GeForce RTX 4090")->word, "rtx4090");
    assert_string_equal(hd_gpu_kind_of_name("NVIDIA RTX 6000 Ada Generation")->word, "rtx6000-ada");
    assert_string_equal(hd_gpu_kind_of_name("NVIDIA H100 80GB HBM3")->word, "h100");
}

RUN_CASES()
