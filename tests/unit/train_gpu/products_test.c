/* products: who multiplies in a training step of the models that train_gpu knows. Own code is right
 * for every product, so no result tells when the library of the device was not taken; a step that
 * is ten times as long does. */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/train_gpu.h"
#include "tests/unit/kernels/harness.h"
#include "train/rank_program.h"

struct asked {
    struct device device;
    const char *what;
    int products, own, losses, residuals;
    int64_t work; /* where the region begins, which scratch is in */
};

/* Asks of a product in both of its variants, with addresses as bad as a plan makes them: every
 * region begins on a bound of HD_TENSOR_ALIGN and no better one. Nothing is launched. */
static void ask(struct asked *asked, const struct hd_node *node)
{
    const struct hd_kernel_info *info = hd_kernel_get_info(node->kernel);
    const struct hd_backend_table *table = on_backend();
    struct hd_gemm_args args = *(const struct hd_gemm_args *)node->args;

    for (int k = 0; k < info->operand_count; k++) {
        const struct hd_operand *o = &node->operands[k];
        char *address = NULL;

        if (o->store && info->operands[k].access == HD_SCRATCH &&
            (asked->work + o->store->offset + o->offset_bytes) % HD_SCRATCH_ALIGN)
            fail_msg("%s: a workspace at %lld", asked->what, (long long)o->store->offset);
        if (o->store)
            address =
                (char *)(uintptr_t)(4096 + HD_TENSOR_ALIGN) + o->store->offset + o->offset_bytes;
        memcpy((char *)&args + info->operands[k].offset, &address, sizeof address);
    }
    if (args.M % 2 || args.N % 2 || args.K % 2)
        fail_msg("%s: a product [%lld,%lld,%lld] has an odd extent", asked->what, (long long)args.M,
                 (long long)args.N, (long long)args.K);
    for (int variant = 0; variant < (node->contribution ? 2 : 1); variant++) {
        const char *by = NULL;

        args.accumulate = node->contribution ? variant : args.accumulate;
        if (table->computed_by(asked->device.backend, HD_K_gemm, &args, &by))
            fail_msg("%s: %s", asked->what, hd_err_message());
        asked->products++;
        asked->residuals += args.add != NULL;
        if (!strcmp(by, asked->device.traits.library))
            continue;
        asked->own++;
        print_message(
            "%s: %s%s [%lld,%lld,%lld] %s into %s, distances %lld, %lld, %lld%s%s%s: %s\n",
            asked->what, args.trans_a ? "T" : "N", args.trans_b ? "T" : "N", (long long)args.M,
            (long long)args.N, (long long)args.K, hd_dtype_name(args.ab_dtype),
            hd_dtype_name(args.c_dtype), (long long)args.lda, (long long)args.ldb,
            (long long)args.ldc, args.bias ? ", bias" : "",
            args.epilogue == HD_EPILOGUE_GELU            ? ", GELU"
            : args.epilogue == HD_EPILOGUE_GELU_BACKWARD ? ", GELU's derivative"
                                                         : "",
            args.accumulate ? ", added"
            : args.add      ? ", residual"
                            : "",
            by);
    }
}

static void ask_all(struct asked *asked, const struct hd_chunk *chunk)
{
    for (int call = 0; chunk && call < HD_CALL_COUNT; call++)
        for (int i = 0; i < chunk->program[call].count; i++) {
            const struct hd_node *node = chunk->program[call].nodes[i];

            if (!node->is_comm && node->kernel == HD_K_gemm)
                ask(asked, node);
            asked->losses += !node->is_comm && node->kernel == HD_K_cross_entropy;
        }
}

/* Goal: every product of a step is the library's. Method: the programs of each model are compiled
 * for this device, and the backend is asked of each of their products: forward, both gradients, the
 * loss's over a vocabulary that is odd (GPT-2; its weights are padded, so that no product is) and
 * one that is not, with what the fuse pass puts behind them (biases and their gradients, GELU and
 * its derivative, the two residuals of a layer) and without. A layer multiplies by four matrices
 * (q, k, v are one, gate and up are one) and the head by one, each three times, each gradient of a
 * weight is stored or added. */
static void a_step_multiplies_by_the_library(void **state)
{
    for (int i = 0; gpu_case_at(i / 2); i++) {
        const struct gpu_case *c = gpu_case_at(i / 2);
        const struct setting setting = {.threads = 1, .deterministic = i % 2};
        struct hd_job_file file = {.path = "none", .size_bytes = 1 << 20};
        const struct hd_job job = gpu_case_job(c, "bf16", &file);
        struct asked asked = {.what = c->name};
        struct hd_rank_program layout;
        struct hd_arena arena;

        if (!strcmp(c->name, "toy"))
            continue;
        asked.device = device_open(&setting);
        hd_arena_init(&arena, (size_t)4 << 30);
        if (hd_rank_program_build(&job, 0, &asked.device.traits,
                                  &(struct hd_rank_program_options){0}, &arena, &layout))
            fail_msg("%s: %s", c->name, hd_err_message());
        asked.work = layout.work[0];
        ask_all(&asked, layout.train[0]);
        assert_true(asked.products >= (3 + 1) * (4 * (int)c->layers + 1));
        /* a head of thousands of rows at once (hd_traits.head_rows) */
        assert_true(asked.losses >= 1);
        assert_true(asked.losses <= 1 + job.micro_batch * job.context / 3000);
        assert_int_equal(asked.residuals, 2 * c->layers);
        if (asked.own)
            fail_msg("%s: own code computes %d of %d products", c->name, asked.own, asked.products);
        hd_arena_done(&arena);
        device_close(&asked.device);
    }
}

/* The answer can be the other one: a backend without a library. */
static void own_code_is_named_where_it_computes(void **state)
{
    const struct hd_backend_options options = {.threads = 1, .gemm_by = HD_GEMM_BY_OWN};
    const struct hd_gemm_args args = {.M = 64,
                                      .N = 64,
                                      .K = 64,
                                      .lda = 64,
                                      .ldb = 64,
                                      .ldc = 64,
                                      .ab_dtype = HD_BF16,
                                      .c_dtype = HD_BF16};
    const struct hd_backend_table *table = on_backend();
    struct hd_backend *backend;
    const char *by = NULL;

    assert_int_equal(table->open(&options, &backend), HD_OK);
    assert_int_equal(table->computed_by(backend, HD_K_gemm, &args, &by), HD_OK);
    assert_string_equal(by, "own");
    table->close(backend);
}

RUN_CASES()
