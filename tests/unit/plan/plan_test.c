/* Plans: what a job takes follows from its sizes by closed forms; nothing here can compute. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "comm/nccl.h"
#include "plan/plan.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { L = 3, C = 64, H = 4, F = 96, V = 256, S = 32 };

/* A device that this machine need not be. */
static const struct hd_traits traits = {.backend = "cpu",
                                        .isa = "avx2",
                                        .library = "own",
                                        .threads = 4,
                                        .vector_bytes = 32,
                                        .page_bytes = 4096};

static struct hd_job small_job(const char *precision, int64_t dp, int64_t global_batch,
                               int64_t micro_batch)
{
    struct hd_job job =
        HD_JOB(.layers = L, .hidden = C, .heads = H, .kv_heads = H, .head_width = C / H,
               .rope_factor = 1, .ffn_hidden = F, .vocab = V, .context = S, .rope_theta = 1e4,
               .norm_eps = 1e-5, .steps = 10, .global_batch = global_batch,
               .micro_batch = micro_batch, .lr_peak = 1e-3, .beta1 = 0.9, .beta2 = 0.95,
               .adam_eps = 1e-8, .clip = 1, .threads = 4, .pp = 1, .dp = dp, .cp = 1, .tp = 1);

    job.name = "small";
    job.family = "llama";
    job.tokenizer = "bytes";
    job.order = HD_JOB_ORDER_SEQUENTIAL;
    job.rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    job.positions = HD_JOB_POSITIONS_ROPE;
    job.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    (void)snprintf(job.stages, sizeof job.stages, "auto");
    (void)snprintf(job.recompute, sizeof job.recompute, "none");
    job.lr_decay = HD_JOB_LR_DECAY_CONSTANT;
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    job.device = HD_JOB_DEVICE_CPU;
    return job;
}

static struct hd_plan build(struct hd_arena *arena, const struct hd_job *job)
{
    struct hd_plan plan = {0};

    if (hd_plan_build(job, &traits, arena, &plan))
        fail_msg("%s", hd_err_message());
    return plan;
}

/* embedding and head V C each, per block 4 C^2 + 3 C F and two norms, one norm at the end */
static int64_t parameters(void)
{
    return 2 * V * C + L * (4 * C * C + 3 * C * F + 2 * C) + C;
}

static void parts_of_the_memory_follow_from_the_sizes(void **state)
{
    struct hd_job job = small_job("bf16", 2, 8, 2);
    const struct hd_memory *m;
    struct hd_arena arena;
    struct hd_plan plan;
    int64_t sum = 0;

    hd_arena_init(&arena, 0);
    plan = build(&arena, &job);
    assert_int_equal(plan.mesh.world, 2);
    assert_int_equal(plan.micro_batches, 2); /* 8 sequences, 2 ranks, 2 at a time */
    assert_int_equal(plan.parameters, parameters());
    m = &hd_plan_rank(&plan, 1)->memory;
    /* each tensor here is a multiple of 64 bytes long, so nothing is rounded up */
    assert_int_equal(m->weights, 4 * parameters());
    assert_int_equal(m->gradients, 4 * parameters());
    assert_int_equal(m->moments, 2 * 4 * parameters());
    assert_int_equal(m->copies, 2 * parameters());
#define X(name, meaning) sum += m->name;
    HD_MEMORY_LIST(X)
#undef X
    assert_int_equal(sum, hd_memory_total(m)); /* no part is counted twice or left out */
    hd_arena_done(&arena);
}

static void fp32_needs_no_copies_and_keeps_twice_as_much(void **state)
{
    struct hd_job narrow = small_job("bf16", 1, 8, 2), keep_fp32 = small_job("fp32", 1, 8, 2);
    struct hd_arena arena;
    struct hd_plan a, b;

    hd_arena_init(&arena, 0);
    a = build(&arena, &narrow);
    b = build(&arena, &keep_fp32);
    assert_int_equal(hd_plan_rank(&b, 0)->memory.copies, 0);
    assert_true(hd_plan_rank(&b, 0)->memory.kept > hd_plan_rank(&a, 0)->memory.kept);
    assert_true(hd_plan_rank(&b, 0)->memory.kept <= 2 * hd_plan_rank(&a, 0)->memory.kept);
    hd_arena_done(&arena);
}

/* Each gradient crosses once a step: 2 (P - 1) times its bytes, whatever the micro-batches. */
static void gradients_cross_once_a_step(void **state)
{
    for (int64_t micro_batch = 1; micro_batch <= 4; micro_batch *= 2)
        for (int64_t dp = 1; dp <= 4; dp *= 2) {
            struct hd_job job = small_job("bf16", dp, 16, micro_batch);
            struct hd_arena arena;
            struct hd_plan plan;

            hd_arena_init(&arena, 0);
            plan = build(&arena, &job);
            assert_int_equal(
                hd_plan_rank(&plan, 0)->step.group_bytes[HD_GROUP_DP_CP][HD_COMM_ALL_REDUCE],
                dp == 1 ? 0 : 2 * (dp - 1) * 4 * parameters());
            hd_arena_done(&arena);
        }
}

/* Per token: 2 operations forward and 4 backward for each weight of a matrix (the embedding's
 * look-up is none). What is above that is attention, the same for each sequence. */
static void work_is_proportional_to_sequences(void **state)
{
    const int64_t matrices = V * C + L * (4 * C * C + 3 * C * F);
    struct hd_arena arena;
    double attention[3];

    hd_arena_init(&arena, 0);
    for (int i = 0; i < 3; i++) {
        const int64_t sequences = 4 << i; /* of a rank: 4, 8, 16, in 1, 2, 4 micro-batches */
        struct hd_job job = small_job("bf16", 2, 2 * sequences, 4);
        struct hd_plan plan = build(&arena, &job);

        attention[i] =
            hd_plan_rank(&plan, 0)->step.gemm_flops - 6.0 * (double)(matrices * sequences * S);
        attention[i] /= (double)sequences;
        /* scores and mix, forward and twice that backward, over the visible half or all of S x S,
         * with the scores once more in backward */
        assert_true(attention[i] >= 6.0 * L * H * (C / H) * S * (S + 1));
        assert_true(attention[i] <= 7.0 * L * H * (C / H) * 2 * S * S);
    }
    assert_true(attention[0] == attention[1] && attention[1] == attention[2]);
    hd_arena_done(&arena);
}

/* An engine connects fewer ranks than can be planned; ranks beyond all sense are refused. */
static void a_plan_is_of_more_ranks_than_an_engine_connects(void **state)
{
    struct hd_job job = small_job("bf16", 2, 8, 2);
    struct hd_arena arena;
    struct hd_plan plan;

    hd_arena_init(&arena, 0);
    job.dp = 4 * HD_COMM_GLOO_RANKS_MAX;
    job.global_batch = 2 * job.dp;
    plan = build(&arena, &job);
    assert_int_equal(plan.mesh.world, 16384);
    assert_int_equal(plan.class_count, 2); /* one rank squares the gradients for all */
    job.dp = HD_PLAN_DEVICES_MAX + 1;
    assert_int_equal(hd_plan_build(&job, &traits, &arena, &plan), HD_LIMIT);
    assert_non_null(strstr(hd_err_message(), "a plan is for 1 to 65536 ranks, not 65537"));
    job.dp = 3;
    assert_int_equal(hd_plan_build(&job, &traits, &arena, &plan), HD_INVALID);
    hd_arena_done(&arena);
}

static int64_t profile_of(struct hd_arena *arena, const struct hd_job *job)
{
    const struct hd_plan plan = build(arena, job);

    return hd_plan_rank(&plan, 0)->memory.profile;
}

/* The records of a profile are memory like any other: planned, and refused where they are absurd.
 */
static void a_profile_is_part_of_the_memory_and_bounded(void **state)
{
    struct hd_job job = small_job("bf16", 1, 64, 1);
    int64_t one, three;
    struct hd_arena arena;
    struct hd_plan plan;

    hd_arena_init(&arena, 0);
    job.profile_first = job.profile_last = 5;
    one = profile_of(&arena, &job);
    job.profile_last = 7;
    three = profile_of(&arena, &job);
    assert_true(one > 64 * HD_PROFILE_RECORD_BYTES); /* 64 micro-batches, each of many launches */
    assert_true(three >= 3 * one - 3 * HD_TENSOR_ALIGN && three <= 3 * one);
    job.profile_last = 1000;
    assert_true(profile_of(&arena, &job) <= 6 * one); /* the job has 10 steps */
    job.steps = 1000;
    job.profile_last = 104;
    job.global_batch = 4096;
    assert_int_equal(hd_plan_build(&job, &traits, &arena, &plan), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "train.profile.steps: "));
    hd_arena_done(&arena);
}

/* Goal: the program that plans gets each trait of the device. Method: there and back; what another
 * build or a torn pipe says is refused. */
static void traits_travel_as_a_word(void **state)
{
    char word[HD_TRAITS_TEXT_MAX], cut[HD_TRAITS_TEXT_MAX];
    struct hd_traits back;

    hd_traits_write(&traits, word);
    memset(&back, 0xff, sizeof back);
    assert_int_equal(hd_traits_read(word, &back), HD_OK);
    assert_memory_equal(&back, &traits, sizeof back);
    for (size_t i = 0; word[i]; i++) {
        memcpy(cut, word, i);
        cut[i] = '\0';
        assert_int_equal(hd_traits_read(cut, &back), HD_INVALID);
    }
    memcpy(cut, word, sizeof cut);
    cut[0] = word[0] == '0' ? '1' : '0'; /* another list of kernels */
    assert_int_equal(hd_traits_read(cut, &back), HD_INVALID);
    memcpy(cut, word, sizeof cut);
    cut[strlen(cut) - 1] = 'g';
    assert_int_equal(hd_traits_read(cut, &back), HD_INVALID);
}

/* Returns the bytes of an H100's connections: 16 channels of a ring, and with 8 channels each of the
 * peers of ordered sums; the ends of a connection take 2 and 10 MiB. */
static int64_t connections(int64_t peers)
{
    return (16 + 8 * peers) * (12 << 20);
}

/* A page is 2 MiB, of each of the two reservations; a process takes what is stated; so does each
 * communicator of NCCL beside its connections; the engine stages 2 pieces of 32 MiB on two streams,
 * of 4 MiB on two more, and has 64 KiB of scratch on each. With two axes the world only gathers. */
static void a_gpu_holds_the_plan_and_what_is_stated(void **state)
{
    const int64_t page = 2 << 20, engine_pages = ((144 << 20) + 4 * (64 << 10) + page - 1) / page;
    struct hd_traits gpu;
    struct hd_arena arena;

    hd_gpu_kind_traits(hd_gpu_kind_find("h100"), &gpu);
    gpu.process_bytes = 1000; /* as if measured */
    gpu.communicator_bytes = 77;
    hd_arena_init(&arena, 0);
    for (int64_t dp = 1; dp <= 4; dp *= 2)
        for (int64_t tp = 1; tp <= 2; tp++) {
            const int communicators = dp * tp == 1 ? 0 : dp > 1 && tp > 1 ? 3 : 1;
            const int64_t connected = communicators == 1
                                          ? connections(dp * tp - 1)
                                          : connections(0) + connections(1) + connections(dp - 1);
            struct hd_job job = small_job("bf16", dp, 8, 2);
            const struct hd_plan_class *r;
            struct hd_plan plan = {0};
            int64_t pages;

            job.tp = tp;
            if (hd_plan_build(&job, &gpu, &arena, &plan))
                fail_msg("%s", hd_err_message());
            r = hd_plan_rank(&plan, 0);
            pages = (r->memory.private_bytes + page - 1) / page +
                    (r->memory.registered_bytes + page - 1) / page;
            assert_int_equal(r->reserved_bytes, pages * page);
            assert_int_equal(r->overhead.process_bytes, 1000);
            assert_int_equal(r->overhead.communicators, communicators);
            assert_int_equal(r->overhead.communicators_bytes,
                             communicators ? 77 * communicators + connected + engine_pages * page
                                           : 0);
            assert_int_equal(r->device_bytes, r->reserved_bytes + r->overhead.process_bytes +
                                                  r->overhead.communicators_bytes);
            gpu.memory_bytes = r->device_bytes; /* the edge */
            assert_true(hd_plan_fits(r, &gpu));
            gpu.memory_bytes--;
            assert_false(hd_plan_fits(r, &gpu));
        }
    hd_arena_done(&arena);
}

/* Blocks are powers of two, a sixth of the multiprocessors at most for gathers and sums, a 24th for
 * transfers. Of members that are 4 ranks apart a node of 8 has two; of 64 neighbours, eight. */
static void nccl_takes_channels_times_peers(void **state)
{
    const struct {
        int multiprocessors, sums, transfers;
    } devices[] = {{132, 16, 4}, {108, 16, 4}, {82, 8, 2}, {58, 8, 2}, {14, 2, 1}, {2, 1, 1}};
    const int64_t mib = 1 << 20;
    const struct {
        struct hd_comm_nccl_shape shape;
        int64_t mib;
    } shapes[] = {
        {{HD_COMM_USE_GATHER, 64, 1, 16, false}, 16 * 12},
        {{HD_COMM_USE_SUM, 8, 1, 16, false}, 16 * 12 + 7 * 8 * 12},
        {{HD_COMM_USE_SUM, 8, 4, 16, false}, 16 * 12 + 8 * 12 + 64},
        {{HD_COMM_USE_EXCHANGE, 64, 1, 4, false}, 4 * 12 + 7 * 4 * 12 + 64},
        {{HD_COMM_USE_SUM, 8, 1, 16, true}, 16 * 12 * 5},
        {{HD_COMM_USE_SHIFT, 4, 1, 16, false}, 16 * 12 + 8 * 12},
        {{HD_COMM_USE_SEND, 2, 1, 4, false}, 4 * 2},
        {{HD_COMM_USE_RECEIVE, 2, 1, 4, false}, 4 * 10},
        {{HD_COMM_USE_SUM, 1, 1, 16, false}, 0},
        {{0, 8, 1, 16, false}, 0},
    };

    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        assert_int_equal(hd_comm_nccl_blocks(false, devices[i].multiprocessors), devices[i].sums);
        assert_int_equal(hd_comm_nccl_blocks(true, devices[i].multiprocessors),
                         devices[i].transfers);
    }
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        assert_int_equal(hd_comm_nccl_connection_bytes(&shapes[i].shape), shapes[i].mib * mib);
}

/* ---- the weights that a job starts from ---- */

struct named_shape {
    const char *name;
    int dims, shape[2];
};

/* Names in transformers of the small Llama with one block. */
static const struct named_shape tensors[] = {
    {"model.embed_tokens.weight", 2, {V, C}},
    {"model.layers.0.input_layernorm.weight", 1, {C}},
    {"model.layers.0.self_attn.q_proj.weight", 2, {C, C}},
    {"model.layers.0.self_attn.k_proj.weight", 2, {C, C}},
    {"model.layers.0.self_attn.v_proj.weight", 2, {C, C}},
    {"model.layers.0.self_attn.o_proj.weight", 2, {C, C}},
    {"model.layers.0.post_attention_layernorm.weight", 1, {C}},
    {"model.layers.0.mlp.gate_proj.weight", 2, {F, C}},
    {"model.layers.0.mlp.up_proj.weight", 2, {F, C}},
    {"model.layers.0.mlp.down_proj.weight", 2, {C, F}},
    {"model.norm.weight", 1, {C}},
    {"lm_head.weight", 2, {V, C}},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

/* A model.safetensors with these tensors, of zeros in bf16, and `missing` bytes less. */
static void write_weights(const char *dir, const struct named_shape *list, size_t count,
                          size_t missing)
{
    struct hd_text head = {0}, file = {0}, path = {0};
    size_t at = 0;
    uint64_t length;

    for (size_t i = 0; i < count; i++) {
        const bool matrix = list[i].dims == 2;
        const size_t bytes = 2 * (size_t)list[i].shape[0] * (size_t)(matrix ? list[i].shape[1] : 1);
        char second[24] = "";

        if (matrix)
            (void)snprintf(second, sizeof second, ",%d", list[i].shape[1]);
        hd_text_add(&head,
                    "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%d%s],\"data_offsets\":[%zu,%zu]}",
                    i ? "," : "{", list[i].name, list[i].shape[0], second, at, at + bytes);
        at += bytes;
    }
    hd_text_add(&head, "}");
    length = head.len_bytes;
    hd_text_add_bytes(&file, (const char *)&length, sizeof length);
    hd_text_add_bytes(&file, head.data, head.len_bytes);
    for (size_t i = 0; i + missing < at; i++)
        hd_text_add_bytes(&file, "", 1);
    hd_file_join(&path, dir, "model.safetensors");
    assert_int_equal(hd_file_write_atomic(path.data, file.data, file.len_bytes, 0644), HD_OK);
    hd_text_free(&head);
    hd_text_free(&file);
    hd_text_free(&path);
}

static void weights_say(const struct hd_job *job, enum hd_status expected, const char *story)
{
    assert_int_equal(hd_plan_check_weights(job), expected);
    if (expected && !strstr(hd_err_message(), story))
        fail_msg("'%s' does not say '%s'", hd_err_message(), story);
}

/* Goal: weights that do not fit the model are known before a rank reads them. Method: a model
 * folder that fits, and each way in which one does not. */
static void weights_are_compared_with_the_model(void **state)
{
    struct hd_job job = small_job("fp32", 1, 4, 4);
    struct named_shape other[TENSORS + 1];
    char dir[64];

    (void)snprintf(dir, sizeof dir, "%s/heddle-plan-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(dir));
    job.layers = 1;
    weights_say(&job, HD_OK, ""); /* it starts from random weights */
    job.init_from = "none";
    weights_say(&job, HD_OK, "");
    job.init_from = job_text("%s", dir);
    weights_say(&job, HD_INVALID, "train.init_from: ");
    write_weights(dir, tensors, TENSORS, 0);
    weights_say(&job, HD_OK, "");

    write_weights(dir, tensors, TENSORS, 1);
    weights_say(&job, HD_INVALID, "model.safetensors");
    memcpy(other, tensors, sizeof tensors);
    other[7].shape[0] = F + 8;
    write_weights(dir, other, TENSORS, 0);
    weights_say(&job, HD_INVALID, "train.init_from: ");
    weights_say(&job, HD_INVALID,
                "tensor model.layers.0.mlp.gate_proj.weight has the shape [104, 64], the model "
                "needs [96, 64]");
    write_weights(dir, tensors, TENSORS - 1, 0);
    weights_say(&job, HD_INVALID,
                "1 of the tensors that config.json requires are missing: lm_head.weight");
    memcpy(other, tensors, sizeof tensors);
    other[TENSORS] = (struct named_shape){"model.layers.1.input_layernorm.weight", 1, {C}};
    write_weights(dir, other, TENSORS + 1, 0);
    job.from_dir = job_text("%s", dir);
    weights_say(&job, HD_INVALID, "model.from: "); /* the key that the user wrote */
    weights_say(&job, HD_INVALID, "1 tensors are not part of the model of config.json");
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

RUN_CASES()
