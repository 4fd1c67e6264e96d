/* core: who may have a node probed and when, what is kept of the answer, and slow devices. */
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/tells.h"
#include "tests/program/test.h"

enum { DEVICES = 2 };

/* A core with nodes of two CPU devices. */
struct bench {
    struct hd_core *core;
    struct hd_core_out out;
    struct hd_batch *batch; /* of the newest step */
    int64_t now_ms;
    uint64_t streams;
};

static enum hd_status step(struct bench *b, const struct hd_core_event *event)
{
    enum hd_status st;

    hd_batch_free(b->batch);
    hd_core_out_clear(&b->out);
    b->batch = b->out.batch = hd_batch_new();
    assert_non_null(b->batch);
    st = hd_core_step(b->core, event, (struct hd_now){b->now_ms, b->now_ms}, &b->out);
    if (hd_core_check(b->core))
        fail_msg("invariant broken");
    return st;
}

static struct bench open_bench(void)
{
    struct hd_core_config config = hd_core_config_default;
    struct bench b = {.now_ms = 1000};

    config.asks_layouts = true;
    b.core = hd_core_new(&config);
    assert_non_null(b.core);
    return b;
}

static void close_bench(struct bench *b)
{
    hd_batch_free(b->batch);
    hd_core_out_done(&b->out);
    hd_core_free(b->core);
}

/* A daemon says hello, with devices of these kinds; its stream is the newest. */
static void join_with(struct bench *b, const char *name, const char *compute, bool probes,
                      const enum hd_device_kind kinds[DEVICES])
{
    struct hd_device_record list[DEVICES];
    char uuid[32];
    struct hd_core_event hello = {.kind = HD_CORE_HELLO}, seen = {.kind = HD_CORE_OBSERVED};

    (void)snprintf(uuid, sizeof uuid, "uuid-%s", name);
    for (int d = 0; d < DEVICES; d++)
        list[d] = (struct hd_device_record){.index = d,
                                            .kind = kinds[d],
                                            .name = hd_device_kind_name(kinds[d]),
                                            .threads = 1,
                                            .memory_bytes = 1 << 30};
    for (int d = 0; d < DEVICES; d++)
        if (kinds[d] == HD_DEVICE_KIND_CUDA) /* cores of the host make no other GPU of it */
            list[d].threads = 4 + (int)b->streams;
    hello.hello.uuid = uuid;
    hello.hello.name = name;
    hello.hello.boot_id = "boot";
    hello.hello.build = "0.9";
    hello.hello.facts.data_address = "10.0.0.1";
    hello.hello.facts.compute[HD_DEVICE_KIND_CPU] = compute;
    hello.hello.facts.compute[HD_DEVICE_KIND_CUDA] = kinds[0] == HD_DEVICE_KIND_CUDA ? "H100" : "";
    hello.hello.probes = probes;
    hello.hello.stream = ++b->streams;
    hello.hello.devices = list;
    hello.hello.device_count = DEVICES;
    assert_int_equal(step(b, &hello), HD_OK);
    seen.observed.uuid = uuid;
    seen.observed.stream = b->streams;
    seen.observed.jobs_dir_visible = true;
    assert_int_equal(step(b, &seen), HD_OK);
}

static void join(struct bench *b, const char *name, const char *compute, bool probes)
{
    const enum hd_device_kind cores[DEVICES] = {HD_DEVICE_KIND_CPU, HD_DEVICE_KIND_CPU};

    join_with(b, name, compute, probes, cores);
}

static enum hd_status ask(struct bench *b, const char *node)
{
    const struct hd_core_event event = {.kind = HD_CORE_PROBE,
                                        .probe = {.node = node, .by = "ann"}};

    return step(b, &event);
}

/* The node of the newest stream answers: devices of these rates, or a problem. */
static void answer(struct bench *b, const char *name, uint64_t request, double first, double second,
                   const char *problem)
{
    struct hd_device_figures devices[DEVICES] = {{first, 2e9, 3e9}, {second, 2e9, 3e9}};
    char uuid[32];
    struct hd_core_event event = {.kind = HD_CORE_PROBED};

    (void)snprintf(uuid, sizeof uuid, "uuid-%s", name);
    event.probed.stream = b->streams;
    event.probed.request = request;
    event.probed.record = (struct hd_probe_record){.node_uuid = uuid,
                                                   .ended_ms = b->now_ms,
                                                   .problem = problem,
                                                   .measured_on = "this build",
                                                   .measured_ms = first > 0 ? b->now_ms : 0,
                                                   .calibration = "text",
                                                   .calibration_bytes = first > 0 ? 4 : 0,
                                                   .devices = devices,
                                                   .device_count = DEVICES};
    assert_int_equal(step(b, &event), HD_OK);
}

/* The newest step's event of this kind; NULL: none. */
static const char *event_of(const struct bench *b, const char *kind)
{
    for (const struct hd_batch_op *op = b->batch->first; op; op = op->next)
        if (op->kind == HD_OP_EVENT && strcmp(op->event.kind, kind) == 0)
            return op->event.message;
    return NULL;
}

static const struct hd_probe_record *stored(const struct bench *b)
{
    for (const struct hd_batch_op *op = b->batch->first; op; op = op->next)
        if (op->kind == HD_OP_PROBE)
            return &op->probe;
    return NULL;
}

static void who_asked_is_recorded(void **state)
{
    struct bench b = open_bench();

    join(&b, "n1", "avx2", true);
    assert_int_equal(hd_core_probe_asked(b.core, "uuid-n1"), 0);
    assert_int_equal(ask(&b, "n1"), HD_OK);
    assert_string_equal(event_of(&b, "probe"), "a probe of n1 was asked for by ann");
    assert_true(hd_core_probe_asked(b.core, "uuid-n1") > 0);
    close_bench(&b);
}

static void what_cannot_be_probed_is_refused_with_the_reason(void **state)
{
    struct bench b = open_bench();
    struct hd_core_event gone = {.kind = HD_CORE_DISCONNECTED};

    assert_int_equal(ask(&b, "n9"), HD_NOT_FOUND);
    join(&b, "n1", "avx2", false);
    assert_int_equal(ask(&b, "n1"), HD_UNSUPPORTED);
    assert_string_equal(hd_err_message(),
                        "the heddled of n1 (build 0.9) cannot probe its devices; upgrade it");
    join(&b, "n1", "avx2", true);
    gone.node.uuid = "uuid-n1";
    gone.node.stream = b.streams;
    assert_int_equal(step(&b, &gone), HD_OK);
    assert_int_equal(ask(&b, "n1"), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "n1 is not connected"));
    close_bench(&b);
}

/* Goal: the user is not told to start a heddled that is running already and about to connect. */
static void a_node_that_has_not_come_back_yet_is_told(void **state)
{
    struct sim *sim = sim_joined(1);
    const struct hd_core_event event = {.kind = HD_CORE_PROBE,
                                        .probe = {.node = "n1", .by = "ann"}};

    sim_controller_crash(sim);
    assert_int_equal(sim_event(sim, &event), HD_CONFLICT);
    assert_non_null(
        strstr(hd_err_message(), "n1 has not connected since the controller was started"));
    sim_free(sim);
}

/* Goal: a probe never slows a job down. */
static void a_node_with_a_job_is_refused(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(1, 50);
    const struct hd_core_event event = {.kind = HD_CORE_PROBE,
                                        .probe = {.node = "n1", .by = "ann"}};

    (void)sim_submitted(sim, &needs);
    sim_run(sim, 2);
    assert_int_equal(sim_event(sim, &event), HD_CONFLICT);
    assert_non_null(strstr(hd_err_message(), "n1 runs attempt 1 of job 1"));
    sim_free(sim);
}

/* A question outlives the stream that it was sent on; an older answer does not end it. */
static void a_question_stays_until_it_is_answered(void **state)
{
    struct bench b = open_bench();
    uint64_t first, second;

    join(&b, "n1", "avx2", true);
    assert_int_equal(ask(&b, "n1"), HD_OK);
    first = hd_core_probe_asked(b.core, "uuid-n1");
    join(&b, "n1", "avx2", true);
    assert_int_equal(hd_core_probe_asked(b.core, "uuid-n1"), first);
    assert_int_equal(ask(&b, "n1"), HD_OK);
    second = hd_core_probe_asked(b.core, "uuid-n1");
    assert_true(second > first);
    answer(&b, "n1", first, 1e9, 1e9, "");
    assert_int_equal(hd_core_probe_asked(b.core, "uuid-n1"), second);
    b.now_ms += 1000;
    answer(&b, "n1", second, 1e9, 1e9, "");
    assert_int_equal(hd_core_probe_asked(b.core, "uuid-n1"), 0);
    close_bench(&b);
}

static void a_lost_node_ends_its_question(void **state)
{
    const struct hd_core_event tick = {.kind = HD_CORE_TICK};
    struct bench b = open_bench();
    const char *told = NULL;

    join(&b, "n1", "avx2", true);
    assert_int_equal(ask(&b, "n1"), HD_OK);
    for (int s = 0; s < 200 && !told; s++) {
        assert_true(hd_core_probe_asked(b.core, "uuid-n1") > 0);
        b.now_ms += 1000;
        assert_int_equal(step(&b, &tick), HD_OK);
        told = event_of(&b, "probe_failed");
    }
    assert_tells(told, "n1", "the node is lost", "heddle probe n1");
    assert_int_equal(hd_core_probe_asked(b.core, "uuid-n1"), 0);
    close_bench(&b);
}

static void a_result_is_stored_once(void **state)
{
    struct bench b = open_bench();
    struct hd_node_view view;

    join(&b, "n1", "avx2", true);
    answer(&b, "n1", 0, 1e9, 1e9, "");
    assert_non_null(stored(&b));
    assert_memory_equal(stored(&b)->calibration, "text", 4);
    assert_string_equal(event_of(&b, "probed"), "n1 has measured its devices");
    hd_core_node_at(b.core, 0, &view);
    assert_int_equal(view.probe_measured_ms, 1000);
    assert_string_equal(view.probe_measured_on, "this build");
    answer(&b, "n1", 0, 1e9, 1e9, "");
    assert_null(stored(&b));
    assert_null(event_of(&b, "probed"));
    close_bench(&b);
}

static void a_failed_probe_is_told(void **state)
{
    struct bench b = open_bench();

    join(&b, "n1", "avx2", true);
    answer(&b, "n1", 0, 0, 0, "no memory for products");
    assert_tells(event_of(&b, "probe_failed"), "n1", "built-in figures", "no memory for products");
    assert_null(event_of(&b, "probed"));
    assert_int_equal(stored(&b)->measured_ms, 0);
    close_bench(&b);
}

static struct hd_text slow(struct bench *b, const char *node, int32_t place)
{
    struct hd_text why = {0};
    size_t index;

    assert_true(hd_core_node_find(b->core, node, &index));
    hd_text_add(&why, "%s", "");
    hd_core_slow_device(b->core, index, place, &why);
    return why;
}

static void assert_slow(struct bench *b, const char *node, int32_t place, const char *expected)
{
    struct hd_text why = slow(b, node, place);

    assert_string_equal(why.data, expected);
    hd_text_free(&why);
}

/* The median of the rates 8.9, 9.1, 10 and 10 is 9.55, and nine tenths of it are 8.595. With
 * another 10 and 10 the median is 10: below 9 is slow. */
static void a_device_far_below_its_kind_is_named(void **state)
{
    struct bench b = open_bench();

    join(&b, "n1", "avx2", true);
    answer(&b, "n1", 0, 8.9e9, 9.1e9, "");
    join(&b, "n2", "avx2", true);
    answer(&b, "n2", 0, 10e9, 10e9, "");
    assert_slow(&b, "n1", 0, "");
    join(&b, "n3", "avx2", true);
    answer(&b, "n3", 0, 10e9, 10e9, "");
    assert_slow(&b, "n1", 0, "fp32 products at 8.9 of 10 GFLOP/s, the median of 6 such devices");
    assert_slow(&b, "n1", 1, "");
    assert_slow(&b, "n2", 0, "");
    join(&b, "n4", "avx2", true);
    answer(&b, "n4", 0, 10e9, 5e9, "");
    assert_tells(event_of(&b, "device_slow"), "device 1 of n4", "fp32", "5 of 10 GFLOP/s", "8");
    close_bench(&b);
}

/* The median of GPUs at 700, 700, 700 and 350 TFLOP/s is 700. */
static void a_gpu_far_below_its_kind_is_named(void **state)
{
    const enum hd_device_kind gpus[DEVICES] = {HD_DEVICE_KIND_CUDA, HD_DEVICE_KIND_CUDA};
    struct bench b = open_bench();

    join_with(&b, "n1", "avx2", true, gpus);
    answer(&b, "n1", 0, 700e12, 700e12, "");
    join_with(&b, "n2", "avx2", true, gpus);
    answer(&b, "n2", 0, 700e12, 350e12, "");
    assert_tells(event_of(&b, "device_slow"), "device 1 of n2", "fp32", "350000 of 700000 GFLOP/s",
                 "4");
    assert_slow(&b, "n2", 0, "");
    close_bench(&b);
}

/* Goal: where a node has GPUs, the figures are theirs. Method: its CPU device, beside CPU devices
 * at 10, would be slow by the figures of the GPU before it, at 5. */
static void a_cpu_device_is_not_judged_by_figures_of_a_gpu(void **state)
{
    const enum hd_device_kind both[DEVICES] = {HD_DEVICE_KIND_CUDA, HD_DEVICE_KIND_CPU};
    struct bench b = open_bench();

    join(&b, "n1", "avx2", true);
    answer(&b, "n1", 0, 10e9, 10e9, "");
    join(&b, "n2", "avx2", true);
    answer(&b, "n2", 0, 10e9, 10e9, "");
    join_with(&b, "n3", "avx2", true, both);
    answer(&b, "n3", 0, 5e9, 5e9, "");
    assert_null(event_of(&b, "device_slow"));
    assert_slow(&b, "n3", 1, "");
    close_bench(&b);
}

static void devices_of_another_kind_do_not_count(void **state)
{
    struct bench b = open_bench();

    join(&b, "n1", "avx512", true);
    answer(&b, "n1", 0, 20e9, 20e9, "");
    join(&b, "n2", "avx512", true);
    answer(&b, "n2", 0, 20e9, 20e9, "");
    join(&b, "n3", "avx2", true);
    answer(&b, "n3", 0, 10e9, 10e9, "");
    assert_null(event_of(&b, "device_slow"));
    assert_slow(&b, "n3", 0, "");
    close_bench(&b);
}

/* Two devices do not tell which of them is the odd one. */
static void two_devices_are_not_compared(void **state)
{
    struct bench b = open_bench();

    join(&b, "n1", "avx2", true);
    answer(&b, "n1", 0, 5e9, 10e9, "");
    assert_slow(&b, "n1", 0, "");
    close_bench(&b);
}

static enum hd_status submit(struct bench *b)
{
    struct hd_core_event event = {.kind = HD_CORE_SUBMIT};

    event.submit.request_id = "0123456789abcdef";
    event.submit.owner = "ann";
    event.submit.needs = sim_needs(2, 10);
    event.submit.needs.shape = 7;
    return step(b, &event);
}

/* Goal: layouts are priced by what was measured, and anew by the next result. */
static void questions_about_layouts_name_the_probe(void **state)
{
    struct bench b = open_bench();
    char key[512];

    join(&b, "n1", "avx2", true);
    answer(&b, "n1", 0, 1e9, 1e9, "");
    assert_int_equal(submit(&b), HD_OK);
    assert_int_equal(b.out.asked_count, 1);
    assert_string_equal(b.out.asked[0].probe_uuid, "uuid-n1");
    (void)snprintf(key, sizeof key, "%s", b.out.asked[0].key);
    b.now_ms += 1000;
    answer(&b, "n1", 0, 2e9, 2e9, "");
    assert_int_equal(b.out.asked_count, 1);
    assert_string_not_equal(b.out.asked[0].key, key);
    close_bench(&b);
}

static void without_a_probe_a_question_names_none(void **state)
{
    struct bench b = open_bench();

    join(&b, "n1", "avx2", true);
    answer(&b, "n1", 0, 0, 0, "no memory for products");
    assert_int_equal(submit(&b), HD_OK);
    assert_int_equal(b.out.asked_count, 1);
    assert_string_equal(b.out.asked[0].probe_uuid, "");
    close_bench(&b);
}

RUN_CASES()
