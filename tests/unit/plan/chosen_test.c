/* The search chooses the best layout on clusters whose best one is known, and keeps what a job pins. */
#include "fixture.h"
#include "plan/best.h"

/* ---- what is chosen where ---- */

/* The model does not fit one device; over slow links between nodes it is cut where little is sent:
 * tp, which exchanges all rows twice a block, stays within a node. */
static void tp_stays_within_a_node(void **state)
{
    const struct hd_cluster c = priced_cluster(4, 2, 4e11, 1e9);
    struct hd_job job = priced_job(16, 1024, 256);
    struct hd_arena arena;
    struct hd_search found = priced_search(&job, &c, (int64_t)7 << 29, 3, &arena);

    assert_int_equal(found.plan_count, 3);
    assert_in_range(found.plans[0].job.tp, 1, 2);
    for (int i = 0; i < 3; i++) {
        assert_true(found.plans[i].fits);
        assert_true(i < 2 || found.plans[i].cost.step_s >= found.plans[i - 1].cost.step_s);
    }
    hd_arena_done(&arena);
}

/* Method: dp 2 sends all gradients through the link between two devices, pp 2 almost nothing. The link
 * is made slower until pp is faster: at first by less than the 2% that a prediction does not tell
 * apart, where dp is taken and pp named; then by more. */
static void between_near_equal_times_dp_goes_before_pp(void **state)
{
    struct hd_job job = priced_job(4, 1024, 256);
    int near = 0;
    double gain = 0;

    job.tp = job.cp = 1;
    for (double rate = 3e10; rate > 1e8 && gain < HD_SEARCH_NEAR; rate /= 1.1) {
        const struct hd_cluster c = priced_cluster(1, 2, rate, 1e9);
        struct hd_text why = {0};
        struct hd_arena arena;
        const struct hd_search found = priced_search(&job, &c, 0, 1, &arena);
        const double step_s = found.plans[0].cost.step_s;

        gain = found.fastest.pp > 1 ? 1 - found.fastest_s / step_s : 0;
        hd_best_explain(&found, &why);
        if (found.fastest.pp > 1 && found.plans[0].job.pp > 1) { /* pp gains more than 2% */
            assert_true(near > 0 && step_s == found.fastest_s && !why.len_bytes);
            hd_arena_done(&arena);
            return;
        }
        assert_int_equal(found.plans[0].job.dp, 2);
        assert_true(step_s <= 1.02 * found.fastest_s);
        assert_int_equal(found.fastest.pp > 1, why.len_bytes > 0);
        if (why.len_bytes)
            assert_non_null(strstr(why.data, "pp 2"));
        near += found.fastest.pp > 1;
        hd_text_free(&why);
        hd_arena_done(&arena);
    }
    fail_msg("pp is never taken");
}

/* Ends the search's time when it has found a layout. */
static void end_time(void *about, const struct hd_search *found)
{
    struct hd_search_asked *asked = about;

    asked->deadline_ns = found->plan_count ? 1 : 0;
}

/* Method: links as above, and no time behind the first layout. A search that still had simpler layouts
 * to look at says so, and has the fastest. */
static void a_search_that_ends_before_simpler_layouts_says_so(void **state)
{
    struct hd_job job = priced_job(4, 1024, 256);
    int cut = 0;

    for (double rate = 3e10; rate > 1e9; rate /= 2) {
        const struct hd_cluster c = priced_cluster(1, 4, rate, 1e9);
        const struct hd_plan_request request = priced_request(&job);
        struct hd_search_asked asked = {.spec = &job,
                                        .request = &request,
                                        .cluster = &c,
                                        .devices = 4,
                                        .threads = 1,
                                        .bf16_fast = true,
                                        .top = 1,
                                        .tell = end_time};
        struct hd_search found;
        struct hd_arena arena;

        asked.about = &asked;
        hd_arena_init(&arena, 0);
        must(hd_search_layouts(&asked, &arena, &found));
        assert_int_equal(found.plan_count, 1);
        if (found.is_cut)
            assert_true(hd_search_axes(&found.plans[0].job.layout) > 0);
        cut += found.is_cut;
        hd_arena_done(&arena);
        found = priced_search(&job, &c, 0, 1, &arena);
        assert_false(found.is_cut);
        hd_arena_done(&arena);
    }
    assert_true(cut > 0);
}

static void what_does_not_fit_is_named(void **state)
{
    const struct hd_cluster c = priced_cluster(1, 2, 4e11, 1e9);
    struct hd_job job = priced_job(16, 1024, 16);
    struct hd_arena arena;
    struct hd_search found = priced_search(&job, &c, (int64_t)1 << 30, 1, &arena);

    assert_int_equal(found.plan_count, 0);
    assert_true(found.least.needed_bytes > (int64_t)1 << 30);
    assert_in_range(found.rejected_count, 1, HD_SEARCH_REJECTED_MAX);
    hd_arena_done(&arena);
}

/* Method: with long sequences nearly all memory is what backward of one block works with, and what
 * zero-bubble schedules keep for W: where that alone is too much, layouts are not laid out one by
 * one. Only the lowest are, to name the one that needs least. */
static void what_cannot_fit_is_not_laid_out(void **state)
{
    struct hd_cluster c = priced_cluster(1, 8, 4e11, 1e9);
    struct hd_job job = priced_job(8, 256, 16);
    struct hd_arena arena;
    struct hd_search found;

    c.host_memory_bytes = (int64_t)1 << 40;
    job.offload = HD_JOB_OFFLOAD_AUTO;
    job.context = 1 << 19;
    found = priced_search(&job, &c, (int64_t)1200 << 20, 1, &arena);
    print_message("%d laid out of %d priced, %d families; the least needs %.0f MiB\n",
                  (int)found.laid_out, (int)found.costed, (int)found.families,
                  (double)found.least.needed_bytes / (1 << 20));
    assert_int_equal(found.plan_count, 0);
    assert_true(found.least.exact);
    assert_in_range(found.laid_out, 1, 100);
    hd_arena_done(&arena);
}

static void a_pinned_layout_is_priced_even_if_too_large(void **state)
{
    const struct hd_cluster c = priced_cluster(1, 1, 4e11, 1e9);
    struct hd_job job = priced_job(16, 1024, 16);
    struct hd_arena arena;
    struct hd_search found;

    job.tp = job.pp = job.cp = job.micro_batch = 1;
    job.zero = 0;
    priced_set(job.recompute, "none");
    found = priced_search(&job, &c, (int64_t)1 << 30, 1, &arena);
    assert_int_equal(found.plan_count, 1);
    assert_false(found.plans[0].fits);
    assert_true(found.plans[0].cost.step_s > 0);
    hd_arena_done(&arena);
}

/* ---- what is pinned stays ---- */

/* With a limit of memory, so that its bounds are asked for, too. */
static struct hd_search search_pinned(const struct hd_job *job, int32_t devices,
                                      struct hd_arena *arena)
{
    const struct hd_cluster c = priced_cluster(1, devices, 4e11, 1e9);

    return priced_search(job, &c, (int64_t)1 << 33, 3, arena);
}

/* Blocks are priced as one stage, on which two chunks would not lie as a V. */
static void a_pinned_v_is_searched(void **state)
{
    struct hd_job job = priced_job(16, 256, 16);
    struct hd_arena arena;
    struct hd_search found;

    priced_set(job.schedule, "zb-v");
    found = search_pinned(&job, 4, &arena);
    assert_int_equal(found.plan_count, 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(found.plans[i].job.schedule, "zb-v");
    hd_arena_done(&arena);
}

/* With one stage the best layout would have no schedule; with one device there is no other. */
static void a_pinned_schedule_has_stages(void **state)
{
    static const char *const names[] = {"1f1b", "gpipe", "zb-h1"};
    struct hd_job job = priced_job(16, 256, 16);
    struct hd_arena arena;
    struct hd_search found;

    for (int i = 0; i < 3; i++) {
        priced_set(job.schedule, names[i]);
        found = search_pinned(&job, 4, &arena);
        assert_int_equal(found.plan_count, 3);
        for (int k = 0; k < 3; k++)
            assert_string_equal(found.plans[k].job.schedule, names[i]);
        hd_arena_done(&arena);

        found = search_pinned(&job, 1, &arena);
        assert_true(found.plan_count > 0);
        assert_string_equal(found.plans[0].job.schedule, "none");
        hd_arena_done(&arena);
    }
}

/* The search itself tries 8 at most. 16 blocks and two ends are 18 chunks: 9 on each of 2 stages,
 * and no more. */
static void more_chunks_than_are_tried_may_be_pinned(void **state)
{
    const struct hd_cluster c = priced_cluster(1, 4, 4e11, 1e9);
    struct hd_job job = priced_job(16, 256, 16);
    struct hd_plan_request request;
    const struct hd_search_asked asked = {.spec = &job,
                                          .request = &request,
                                          .cluster = &c,
                                          .devices = 4,
                                          .threads = 1,
                                          .bf16_fast = true,
                                          .top = 1};
    struct hd_arena arena;
    struct hd_search found;

    job.virtual_stages = 9;
    found = search_pinned(&job, 4, &arena);
    assert_true(found.plan_count > 0);
    assert_int_equal(found.plans[0].job.virtual_stages, 9);
    assert_int_equal(found.plans[0].job.pp, 2);
    hd_arena_done(&arena);

    job.virtual_stages = 10;
    request = priced_request(&job);
    request.searched = true;
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_search_layouts(&asked, &arena, &found), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "2 stages x 10 virtual_stages are more chunks than "
                                             "the 18 units"));
    hd_arena_done(&arena);
}

/* Blocks that share belong to ZeRO: with zero auto only layouts with both are left. */
static void blocks_of_zero_may_be_pinned(void **state)
{
    struct hd_job job = priced_job(4, 256, 16);
    struct hd_arena arena;
    struct hd_search found;

    job.zero_shard = 2;
    found = search_pinned(&job, 4, &arena);
    assert_int_equal(found.plan_count, 3);
    for (int i = 0; i < 3; i++) {
        assert_in_range(found.plans[i].job.zero, 1, 3);
        assert_int_equal(found.plans[i].job.zero_shard, 2);
    }
    hd_arena_done(&arena);
}

/* Goal: a large head, which recompute does not repeat, does not make one stage the slowest. Method:
 * 12 blocks in 3 stages, 13 over 2 = 78 cuts, more than are tried one by one; each is costed as a
 * pinned layout. The even cut, by FLOPs, counts a block as thrice its forward, not four times. */
static void stages_take_equal_seconds_with_a_large_head(void **state)
{
    struct hd_cluster c = priced_cluster(1, 4, 3e11, 5e10);
    struct hd_job job = priced_job(12, 256, 24);
    struct hd_search_asked asked = {
        .spec = &job, .cluster = &c, .devices = 3, .threads = 1, .bf16_fast = true, .top = 1};
    double best = 0, even = 0;
    struct hd_plan_request request;
    struct hd_search found;
    struct hd_arena arena;

    job.vocab = 8192;
    job.context = 1024;
    job.tp = job.cp = job.micro_batch = 1;
    job.pp = 3;
    job.zero = job.sequence = 0;
    priced_set(job.recompute, "full");
    priced_set(job.schedule, "1f1b");
    request = priced_request(&job);
    asked.request = &request;
    hd_arena_init(&arena, 0);
    for (int first = 0; first <= 11; first++)
        for (int second = 0; second <= 12 - first; second++) {
            const bool automatic = first + second == 0; /* a middle stage needs a block */
            struct hd_plan_request r = request;
            struct hd_layout_sizes sizes;
            struct hd_search_plan plan;

            (void)snprintf(r.sizes.stages, sizeof r.sizes.stages, "%d,%d,%d", first, second,
                           12 - first - second);
            if (automatic)
                priced_set(r.sizes.stages, "auto");
            if (hd_plan_size(&r, 3, &sizes))
                continue;
            hd_plan_decide_device(HD_JOB_DEVICE_CUDA, true, 1, &sizes);
            assert_int_equal(hd_search_cost(&asked, &sizes, &arena, &plan), HD_OK);
            best = best == 0 || plan.cost.step_s < best ? plan.cost.step_s : best;
            even = automatic ? plan.cost.step_s : even;
        }
    assert_int_equal(hd_search_layouts(&asked, &arena, &found), HD_OK);
    assert_int_equal(found.plan_count, 1);
    print_message("even %.4g ms, best %.4g ms, found %.4g ms by %s\n", 1e3 * even, 1e3 * best,
                  1e3 * found.plans[0].cost.step_s, found.plans[0].job.stages);
    assert_true(best < 0.98 * even);
    assert_true(found.plans[0].cost.step_s <= 1.005 * best);
    hd_arena_done(&arena);
}

RUN_CASES()
