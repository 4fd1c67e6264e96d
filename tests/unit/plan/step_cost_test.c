/* Goal: costs of collectives, programs and steps, against formulas and against whole programs. */
#include <math.h>

#include "fixture.h"
#include "job/frozen_model.h"
#include "plan/links.h"
#include "tests/program/test.h"

static void is_near(double value, double wanted, double share)
{
    if (fabs(value - wanted) > share * fabs(wanted))
        fail_msg("%.9g is not within %g of %.9g", value, share, wanted);
}

/* ---- links ---- */

enum { NODES = 4, PER_NODE = 8 };
static const double fast = 4e11, slow = 5e10;

static struct hd_link_group group_of(const struct hd_cluster *c, int32_t pp, int32_t dp, int32_t tp,
                                     enum hd_group_name name)
{
    struct hd_mesh mesh;

    assert_int_equal(
        hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.pp = pp, .dp = dp, .cp = 1, .tp = tp}), HD_OK);
    return hd_links_group(c, &mesh, name, NULL);
}

static void a_ring_within_a_node(void **state)
{
    const struct hd_cluster c = priced_cluster(NODES, PER_NODE, fast, slow);
    const struct hd_link_group g = group_of(&c, 1, 4, 8, HD_GROUP_TP);

    assert_int_equal(g.top, 0);
    is_near(hd_links_collective(&c, &g, HD_COMM_ALL_GATHER, 1e9, false),
            7e9 / fast + 7 * c.levels[0].latency_s, 1e-12);
}

/* Two members of each group per node: what leaves a node takes both their links. */
static void a_ring_over_nodes_takes_all_links_of_a_node(void **state)
{
    const struct hd_cluster c = priced_cluster(NODES, PER_NODE, fast, slow);
    const struct hd_link_group g = group_of(&c, 1, 8, 4, HD_GROUP_DP);

    assert_int_equal(g.top, 1);
    assert_int_equal(g.near[0], 2);
    is_near(hd_links_collective(&c, &g, HD_COMM_ALL_GATHER, 1e9, false),
            7e9 / (2 * slow) + 4 * c.levels[0].latency_s + 3 * c.levels[1].latency_s, 1e-12);
}

/* An ordered sum sends to each member directly: to 6 of 7 over the network. */
static void an_ordered_sum_is_an_exchange(void **state)
{
    const struct hd_cluster c = priced_cluster(NODES, PER_NODE, fast, slow);
    const struct hd_link_group g = group_of(&c, 1, 8, 4, HD_GROUP_DP);
    const double ordered = hd_links_collective(&c, &g, HD_COMM_REDUCE_SCATTER, 1e9, false),
                 native = hd_links_collective(&c, &g, HD_COMM_REDUCE_SCATTER, 1e9, true);

    is_near(ordered, 6e9 / slow + c.levels[1].latency_s, 1e-12);
    is_near(native, hd_links_collective(&c, &g, HD_COMM_ALL_GATHER, 1e9, false), 1e-12);
    is_near(hd_links_collective(&c, &g, HD_COMM_ALL_REDUCE, 8e9, false), ordered + native, 1e-12);
}

static void one_member_sends_nothing(void **state)
{
    const struct hd_cluster c = priced_cluster(NODES, PER_NODE, fast, slow);
    const struct hd_link_group g = group_of(&c, 1, 32, 1, HD_GROUP_TP);

    assert_true(hd_links_collective(&c, &g, HD_COMM_ALL_REDUCE, 1e9, false) == 0);
    is_near(hd_links_transfer(&c, NULL, 7, 8, 1e9), 1e9 / slow + c.levels[1].latency_s, 1e-12);
    is_near(hd_links_transfer(&c, NULL, 6, 7, 1e9), 1e9 / fast + c.levels[0].latency_s, 1e-12);
}

/* ---- programs ---- */

static struct hd_job laid_out(struct hd_job job, int32_t devices)
{
    const struct hd_plan_request request = priced_request(&job);

    if (hd_plan_decide(&request, devices, &job.layout))
        fail_msg("%s", hd_err_message());
    hd_plan_decide_device(HD_JOB_DEVICE_CUDA, true, 1, &job.layout);
    return job;
}

/* A chunk of six blocks compiled whole, and added up from pieces. */
static void compare_chunk(struct hd_job job, int32_t devices, int first, int end)
{
    /* a base is measured with a chunk whose first and last block are of one kind */
    const double kernels = job.dense_ffn_hidden ? 0.003 : 0.001;
    /* stage 3 of ZeRO: what is gathered first in a chunk depends on what is in it */
    const double share = job.zero == 3 ? 0.03 : kernels;
    const struct hd_cluster c = priced_cluster(1, devices, fast, slow);
    struct hd_model_config config;
    struct hd_layer_profiles profiles;
    struct hd_layer_profile whole;

    job = laid_out(job, devices);
    assert_int_equal(hd_model_config_from_job(&job, &config), HD_OK);
    if (hd_layer_profiles_build(&job, &c, &profiles) ||
        hd_layer_profiles_whole(&job, &c, (struct hd_units){first, end}, &whole))
        fail_msg("%s", hd_err_message());
    for (int call = 0; call < HD_LAYER_PROFILE_CALLS; call++)
        for (int last = 0; last < 2; last++) {
            const struct hd_program_time t = hd_step_cost_program(
                &profiles, &config, (struct hd_units){first, end}, hd_layer_profile_segment(&job),
                (enum hd_layer_profile_call)call, last);

            is_near(t.run, whole.time[call][last].run, share);
            is_near(t.compute, whole.time[call][last].compute, kernels);
            is_near(t.reduce, whole.time[call][last].reduce, 0.001);
        }
}

static void profiles_add_up_to_chunks(void **state)
{
    struct hd_job job = priced_job(6, 1024, 16);

    compare_chunk(job, 1, 0, 8);
    compare_chunk(job, 1, 1, 7);
    job.tp = 2;
    compare_chunk(job, 4, 0, 8);
    job.zero = 1;
    compare_chunk(job, 4, 0, 8);
    job.zero = 3;
    compare_chunk(job, 4, 0, 8);
    priced_set(job.recompute, "full");
    job.cp = 2;
    compare_chunk(job, 8, 0, 8);
    job.window = 64;
    job.window_from = 4;
    compare_chunk(job, 8, 0, 8);
    priced_set(job.recompute, "full:2");
    compare_chunk(job, 8, 0, 8);
}

/* Blocks of four kinds, by layer: dense with a window; experts; experts with a window; experts
 * without positions; the first and the second kind once more. */
static void profiles_of_several_kinds_add_up_to_chunks(void **state)
{
    struct hd_job job = priced_job(6, 1024, 16);

    (void)state;
    job.family = "mixtral";
    job.experts = 4;
    job.experts_per_token = 2;
    job.dense_ffn_hidden = 3072;
    job.window = 64;
    job.window_layers = "1:1";
    job.rope_layers = "3:1";
    job.experts_layers = "0:1:3";
    compare_chunk(job, 1, 0, 8);
    compare_chunk(job, 1, 1, 7);
    job.tp = 2;
    job.ep = 2;
    compare_chunk(job, 4, 0, 8);
    job.zero = 1;
    compare_chunk(job, 4, 0, 8);
    priced_set(job.recompute, "full");
    compare_chunk(job, 4, 0, 8);
    priced_set(job.recompute, "full:2");
    compare_chunk(job, 4, 0, 8);
}

/* The weights of a teacher are whole on each rank, whatever ZeRO does with the student's: nothing is
 * gathered for its forward pass. */
static void a_teacher_takes_the_same_time_with_any_zero(void **state)
{
    const struct hd_cluster c = priced_cluster(1, 4, fast, slow);
    struct hd_job job = priced_job(4, 256, 16), teacher = priced_job(8, 512, 16);
    double seconds = 0;

    if (hd_job_set_teacher_model(&teacher, &job))
        fail_msg("%s", hd_err_message());
    job.distill_top_k = 8;
    job.pp = job.tp = job.cp = 1;
    job.micro_batch = 1;
    for (job.zero = 0; job.zero <= 3; job.zero += 3) {
        const struct hd_job laid = laid_out(job, 4);
        struct hd_layer_profiles profiles;

        if (hd_layer_profiles_build(&laid, &c, &profiles))
            fail_msg("%s", hd_err_message());
        assert_true(profiles.frozen > 0);
        seconds = job.zero ? seconds : profiles.frozen;
        is_near(profiles.frozen, seconds, 1e-12);
    }
}

/* Method: memory takes all of the time, Two groups of four answers, of 8 at a
 * time on one replica and 4 on each of two: a call for the prompts, of (256 - 128) tokens each, and 127
 * for tokens, which read all matrices but the table, and of each answer keys and values of its prompt and
 * the half of it. tp ranks read a half each. */
static void a_token_takes_the_time_to_read_the_weights(void **state)
{
    struct hd_cluster c = priced_cluster(1, 2, 1e15, 1e15);
    struct hd_job job = priced_answers(2048, 128);
    /* a block: q and o, k and v, and the three of the feed-forward layer; the head; 2 bytes each */
    const double matrices = 4 * (2 * 2048 + 2 * 1024 + 3 * 4096) * 2048.0 + 512 * 2048;
    const double caches = 4 * 2 * 1024.0 * (128 + 64); /* of an answer */
    struct hd_rollout_profile r;

    c.rates.launch_s = 0;
    c.rates.half_flops *= 10;
    c.levels[0].latency_s = c.levels[1].latency_s = 0;
    job.pp = job.cp = job.micro_batch = 1;
    for (job.tp = 1; job.tp <= 2; job.tp++) {
        const struct hd_job laid = laid_out(job, 2);

        assert_int_equal(hd_rollout_profile_build(&laid, &c, &r), HD_OK);
        assert_int_equal(r.calls.slots, 4 * job.tp);
        assert_int_equal(r.calls.count[HD_DECODE_PROMPTS], 1);
        assert_int_equal(r.calls.count[HD_DECODE_TOKENS], 127);
        is_near(r.call_s[HD_DECODE_TOKENS],
                2 * (matrices / (double)job.tp + 4 * caches) / c.rates.memory_bytes_per_s, 0.04);
        is_near(hd_rollout_seconds(&r, &laid, &c),
                127 * r.call_s[HD_DECODE_TOKENS] + r.call_s[HD_DECODE_PROMPTS] + 128 * r.draw_s,
                1e-9);
    }
}

/* Segments begin at multiples of K and with the chunk, so blocks 1 to 6 of 8 are (1, 2), (3, 4, 5),
 * (6) with K = 3. What a chunk keeps is that of the blocks that begin a segment. */
static void segments_add_up_to_chunks(void **state)
{
    const struct hd_units units = {HD_UNIT_FIRST_BLOCK + 1, HD_UNIT_FIRST_BLOCK + 7};
    const struct hd_cluster c = priced_cluster(1, 4, fast, slow);
    struct hd_job job = priced_job(8, 1024, 16);
    struct hd_layer_profiles profiles;
    struct hd_layer_profile whole;

    for (int k = 2; k <= 4; k++) {
        (void)snprintf(job.recompute, sizeof job.recompute, "full:%d", k);
        compare_chunk(job, 1, units.first, units.end);
        compare_chunk(job, 1, 0, 10);
        job.zero = 3;
        compare_chunk(job, 4, units.first, units.end);
        job.zero = -1;
    }
    priced_set(job.recompute, "full:3");
    job = laid_out(job, 1);
    assert_int_equal(hd_layer_profiles_build(&job, &c, &profiles), HD_OK);
    assert_int_equal(hd_layer_profiles_whole(&job, &c, units, &whole), HD_OK);
    assert_int_equal(whole.saved_bytes, profiles.kind[0].base.saved_bytes +
                                            3 * profiles.kind[0].block.saved_bytes +
                                            3 * profiles.kind[0].inner.saved_bytes);
    /* a block inside a segment is computed once more up to its last product, and keeps nothing */
    assert_true(profiles.kind[0].inner.time[HD_LAYER_PROFILE_B][0].run >
                profiles.kind[0].block.time[HD_LAYER_PROFILE_B][0].run);
    assert_int_equal(profiles.kind[0].inner.saved_bytes, 0);
}

/* Goal: an adapter's products, and the backward that frozen weights leave, are priced as they are
 * compiled. Method: chunks compiled whole; q and v of rank 8 in each block. */
static void an_adapter_adds_up_to_chunks(void **state)
{
    struct hd_job job = priced_job(6, 1024, 16);

    job.adapter = HD_JOB_ADAPTER_LORA;
    job.adapter_targets = "q_proj,v_proj";
    job.adapter_rank = 8;
    job.adapter_alpha = 16;
    job.adapter_b_lr = 1;
    compare_chunk(job, 1, 1, 7);
    compare_chunk(job, 1, 0, 8);
    job.tp = 2;
    job.zero = 1;
    compare_chunk(job, 4, 1, 7);
    job.adapter_dora = true;
    compare_chunk(job, 4, 1, 7);
}

static void bottlenecks_add_up_to_chunks(void **state)
{
    struct hd_job job = priced_job(6, 1024, 16);

    job.adapter = HD_JOB_ADAPTER_BOTTLENECK;
    job.adapter_width = 32;
    compare_chunk(job, 1, 1, 7);
    job.tp = 2;
    job.zero = 1;
    compare_chunk(job, 4, 1, 7);
}

static void prefixes_add_up_to_chunks(void **state)
{
    struct hd_job job = priced_job(6, 1024, 16);

    job.adapter = HD_JOB_ADAPTER_PREFIX;
    job.adapter_tokens = 32;
    compare_chunk(job, 1, 1, 7);
    job.tp = 2;
    job.zero = 1;
    compare_chunk(job, 4, 1, 7);
}

/* ---- steps ---- */

static struct hd_search_plan price_of(const struct hd_job *job, const struct hd_cluster *c,
                                      struct hd_arena *arena)
{
    const struct hd_plan_request request = priced_request(job);
    const struct hd_search_asked asked = {.spec = job,
                                          .request = &request,
                                          .cluster = c,
                                          .devices = (int32_t)hd_layout_world(&job->layout),
                                          .bf16_fast = true,
                                          .threads = 1,
                                          .top = 1};
    struct hd_search_plan plan;

    if (hd_search_cost(&asked, &job->layout, arena, &plan))
        fail_msg("%s", hd_err_message());
    return plan;
}

/* The whole order, without the shortcut by its period. */
static double whole_walk(const struct hd_job *job, const struct hd_cluster *c)
{
    struct hd_model_config config;
    struct hd_rank_program_shared shared;
    struct hd_layer_profiles profiles;
    struct hd_arena arena;
    struct hd_step_cost price;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_model_config_from_job(job, &config), HD_OK);
    assert_int_equal(hd_layer_profiles_build(job, c, &profiles), HD_OK);
    assert_int_equal(hd_rank_program_schedule(job, NULL, &arena, &shared), HD_OK);
    assert_int_equal(hd_step_cost_of_layout(
                         &profiles,
                         &(struct hd_step_cost_layout){shared.pipeline, shared.units, &shared.order,
                                                       &config, job->dp * job->cp * job->tp,
                                                       hd_layer_profile_segment(job), NULL},
                         c, &arena, &price),
                     HD_OK);
    hd_arena_done(&arena);
    return price.step_s;
}

static void many_micro_batches_repeat(void **state)
{
    static const struct {
        const char *schedule;
        int64_t pp, virtual_stages, zero;
    } all[] = {{"1f1b", 4, 1, 0},        {"1f1b", 2, 1, 2},  {"interleaved", 4, 2, 1},
               {"interleaved", 2, 4, 3}, {"zb-h1", 4, 1, 0}, {"zb-v", 4, 2, 1},
               {"gpipe", 4, 1, 0},       {"none", 1, 1, 2}};
    const struct hd_cluster c = priced_cluster(2, 4, fast, 1e10);

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int64_t batch = 64; batch <= 66; batch += 2) {
            struct hd_job job = priced_job(8, 512, batch);
            struct hd_arena arena;

            job.pp = all[i].pp;
            job.virtual_stages = all[i].virtual_stages;
            job.zero = all[i].zero;
            job.dp = 2;
            job.micro_batch = 1;
            priced_set(job.schedule, all[i].schedule);
            job = laid_out(job, (int32_t)(2 * job.pp));
            hd_arena_init(&arena, 0);
            /* all F, then all B: the end of one still moves the begin of the other a little */
            is_near(price_of(&job, &c, &arena).cost.step_s, whole_walk(&job, &c),
                    strcmp(all[i].schedule, "gpipe") == 0 ? 5e-4 : 1e-9);
            hd_arena_done(&arena);
        }
}

/* Goal: an update is of what trains. Method: of eight equal blocks the last one trains, so of the
 * time that all of them take an eighth is left, beside what every update takes. */
static void updates_are_of_what_trains(void **state)
{
    const struct hd_cluster c = priced_cluster(1, 1, fast, slow);
    struct hd_job job = laid_out(priced_job(8, 1024, 4), 1);
    struct hd_layer_profiles profiles;
    struct hd_arena arena;
    double all, last;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_layer_profiles_build(&job, &c, &profiles), HD_OK);
    all = price_of(&job, &c, &arena).cost.update_s;
    job.only = "last:1";
    last = price_of(&job, &c, &arena).cost.update_s;
    hd_arena_done(&arena);
    is_near(all,
            profiles.update_base + 8 * profiles.kind[0].update + profiles.update_first +
                profiles.update_last,
            1e-9);
    is_near(last, profiles.update_base + profiles.kind[0].update, 1e-9);
}

/* Equal stages, links that cost nothing: 1f1b waits (p - 1) / m of its work, with v chunks a v-th
 * of that (Narayanan et al. 2021). */
static void bubbles_are_those_of_the_literature(void **state)
{
    struct hd_cluster c = priced_cluster(1, 8, 1e18, 1e18);

    c.levels[0].latency_s = 0;
    for (int64_t v = 1; v <= 2; v++) {
        struct hd_job job = priced_job(32, 1024, 32);
        struct hd_arena arena;
        double waits;

        job.vocab = 64;
        job.pp = 4;
        job.virtual_stages = v;
        job.zero = 0;
        job.micro_batch = 1;
        priced_set(job.schedule, v > 1 ? "interleaved" : "1f1b");
        job = laid_out(job, 4);
        hd_arena_init(&arena, 0);
        waits = price_of(&job, &c, &arena).cost.bubble;
        hd_arena_done(&arena);
        /* embedding and head make the first and last stage slower; 3/32/v in equal ones */
        is_near(waits / (1 - waits), 3.0 / 32 / (double)v, 0.35);
    }
}

/* Goal: the parts of a step add up to its cost. */
static void the_parts_of_a_step_are_the_step(void **state)
{
    const struct hd_cluster c = priced_cluster(2, 4, fast, slow);
    struct hd_job job = priced_job(8, 1024, 32);
    struct hd_arena arena;
    struct hd_step_cost p;
    double sum;

    job.tp = 2;
    job.pp = 2;
    job.zero = 1;
    job = laid_out(job, 8);
    hd_arena_init(&arena, 0);
    p = price_of(&job, &c, &arena).cost;
    hd_arena_done(&arena);
    sum = p.compute_s + p.update_s + p.bubble_s;
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        sum += p.communication_s[g];
    is_near(sum, p.step_s, 0.02);
    assert_true(p.communication_s[HD_GROUP_TP] > 0);
    is_near(p.tokens_per_s, 32 * 256 / p.step_s, 1e-9);
}

/* Two stages of one block each, F of 1 s, B of 2 s; what travels takes half a second. All F, then
 * all B of two micro-batches. */
static double two_stages(bool in_thread, double wait_share, double wait_s)
{
    struct hd_units units[] = {{HD_UNIT_FIRST_BLOCK, HD_UNIT_FIRST_BLOCK + 1},
                               {HD_UNIT_FIRST_BLOCK + 1, HD_UNIT_FIRST_BLOCK + 2}};
    const struct hd_pipeline pipeline = {.stages = 2, .chunks = 2};
    struct hd_cluster c = priced_cluster(1, 2, 2e9, 2e9);
    struct hd_layer_profiles profiles = {.stage_io_bytes = 1000000000};
    struct hd_job job = priced_job(2, 256, 2);
    struct hd_model_config config;
    struct hd_arena arena;
    struct hd_schedule order;
    struct hd_step_cost price;

    hd_arena_init(&arena, 0);
    c.levels[0].latency_s = 0;
    c.rates.collectives_take_thread = in_thread;
    c.rates.wait_share = wait_share;
    c.rates.wait_s = wait_s;
    for (int last = 0; last < 2; last++)
        for (int call = HD_LAYER_PROFILE_F; call <= HD_LAYER_PROFILE_B; call++) {
            struct hd_program_time *t = &profiles.kind[0].block.time[call][last];

            t->run = t->compute = call == HD_LAYER_PROFILE_F ? 1 : 2;
        }
    assert_int_equal(hd_model_config_from_job(&job, &config), HD_OK);
    assert_int_equal(hd_schedule_build(HD_SCHEDULE_GPIPE, &pipeline, 2, false, &arena, &order),
                     HD_OK);
    assert_int_equal(hd_step_cost_of_layout(&profiles,
                                            &(struct hd_step_cost_layout){.pipeline = pipeline,
                                                                          .units = units,
                                                                          .order = &order,
                                                                          .config = &config,
                                                                          .ranks_per_stage = 1},
                                            &c, &arena, &price),
                     HD_OK);
    hd_arena_done(&arena);
    return price.step_s;
}

/* Beside the kernels: stage 1 runs F at 1.5 and at 2.5, B at 3.5 and at 5.5; stage 0 runs B at 6
 * and at 8. In the thread of who receives: stage 1 takes the rows at 1 and at 2.5, so F at 1.5 and
 * at 3, B at 4 and at 6; stage 0 takes the gradients at 6 and at 8.5, so B at 6.5 and at 9. */
static void transfers_of_processors_take_the_receivers_thread(void **state)
{
    is_near(two_stages(false, 0, 0), 10, 1e-12);
    is_near(two_stages(true, 0, 0), 11, 1e-12);
}

/* A stage computes 2 F and 2 B, 6 s; of each second both wait for one another a tenth. With a
 * quarter of a second for each value that travels: stage 1 takes the rows at 1 and at 2.75, so F at
 * 1.75 and at 3.5, B at 4.5 and at 6.5; stage 0 takes the gradients at 6.5 and at 9.25, so B
 * at 7.25 and at 10. */
static void ranks_wait_for_one_another(void **state)
{
    is_near(two_stages(true, 0.1, 0), 11 + 0.6, 1e-12);
    is_near(two_stages(true, 0, 0.25), 12, 1e-12);
}

static void faster_links_and_memory_are_never_slower(void **state)
{
    struct hd_job job = priced_job(4, 512, 16);
    double before = 1e9;

    job.tp = 2;
    job.pp = 2;
    job.zero = 3;
    job = laid_out(job, 8);
    for (double rate = 1e9; rate < 1e13; rate *= 10) {
        const struct hd_cluster c = priced_cluster(2, 4, 4 * rate, rate);
        struct hd_arena arena;
        double seconds;

        hd_arena_init(&arena, 0);
        seconds = price_of(&job, &c, &arena).cost.step_s;
        hd_arena_done(&arena);
        assert_true(seconds <= before);
        before = seconds;
    }
}

RUN_CASES()
