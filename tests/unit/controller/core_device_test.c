/* core: which jobs go to GPUs, and what people read who wait for one. */
#include <stdio.h>

#include "sim.h"
#include "tests/program/test.h"

/* Nodes of two devices each, of which the first gpus[n] are GPUs. */
static struct sim *sim_with_gpus(const int *gpus, int node_count)
{
    struct sim *sim = sim_new(1, node_count);

    for (int n = 0; n < node_count; n++)
        sim->nodes[n].gpus = gpus[n];
    sim_run(sim, 2);
    return sim;
}

static struct hd_job_needs ask_for(enum hd_device_kind kind, int devices, int steps)
{
    struct hd_job_needs needs = sim_needs(devices, steps);

    needs.device = kind;
    return needs;
}

static void a_cuda_job_takes_gpus_and_leaves_cores_alone(void **state)
{
    const int gpus[] = {0, 1};
    struct sim *sim = sim_with_gpus(gpus, 2);
    struct hd_job_needs cuda = ask_for(HD_DEVICE_KIND_CUDA, 1, 20);
    struct hd_job_needs cpu = ask_for(HD_DEVICE_KIND_CPU, 1, 20);
    uint64_t a = sim_submitted(sim, &cuda), b = sim_submitted(sim, &cuda);
    uint64_t c = sim_submitted(sim, &cpu);

    sim_assert_places(sim, a, 1, "cuda n2:0");
    /* the GPU computes bf16, so that is its precision; its rank has a thread of the host */
    assert_int_equal(sim_attempt(sim, a, 1)->plan.layout.threads, 1);
    assert_int_equal(sim_attempt(sim, a, 1)->plan.layout.precision, HD_JOB_PRECISION_BF16);
    assert_int_equal(sim_job(sim, b)->state, HD_JOB_STATE_QUEUED);
    sim_assert_reason(sim, b,
                      "needs 1 cuda device; n1 has 0, n2 has 0 of 1 free "
                      "(reserved for it)");
    sim_assert_places(sim, c, 1, "cpu n2:1"); /* only the GPU of n2 is kept */
    assert_int_equal(sim_attempt(sim, c, 1)->plan.layout.threads, 1);
    assert_int_equal(sim_attempt(sim, c, 1)->plan.layout.precision, HD_JOB_PRECISION_FP32);
    sim_run_until_ended(sim, b, 120);
    sim_assert_places(sim, b, 1, "cuda n2:0");
    sim_free(sim);
}

static void auto_is_gpus_where_there_are_some(void **state)
{
    const int none[] = {0}, both[] = {0, 2};
    struct sim *without = sim_with_gpus(none, 1), *with = sim_with_gpus(both, 2);
    struct hd_job_needs any = ask_for(HD_DEVICE_KIND_ANY, 2, 10);
    uint64_t job = sim_submitted(without, &any);

    sim_assert_places(without, job, 1, "cpu n1:0 n1:1");
    job = sim_submitted(with, &any);
    sim_assert_places(with, job, 1, "cuda n2:0 n2:1");
    sim_free(without);
    sim_free(with);
}

/* Nobody who has no GPU is told of GPUs that his job does not need. */
static void a_reason_names_the_kinds_that_there_are(void **state)
{
    const int none[] = {0, 0}, one[] = {0, 1};
    struct sim *without = sim_with_gpus(none, 2), *with = sim_with_gpus(one, 2);
    struct hd_job_needs cuda = ask_for(HD_DEVICE_KIND_CUDA, 2, 10);
    struct hd_job_needs any = ask_for(HD_DEVICE_KIND_ANY, 8, 10);
    uint64_t a = sim_submitted(without, &cuda), b = sim_submitted(without, &any);

    sim_assert_reason(without, a,
                      "needs 2 cuda devices; no node has a cuda device (heddled "
                      "--doctor on a node with GPUs says why)");
    sim_assert_reason(without, b, "needs 8 cpu devices; n1 has 2, n2 has 2");
    b = sim_submitted(with, &any);
    sim_assert_reason(with, b, "needs 8 cuda devices or 8 cpu devices; n1 has 2, n2 has 2");
    sim_free(without);
    sim_free(with);
}

/* The rule of the CPU: one node if one is enough, whole tp groups on each node else. */
static void a_cuda_job_uses_the_gpus_of_several_nodes(void **state)
{
    const int one[] = {1, 0, 1}, two[] = {1, 2, 2};
    struct sim *small = sim_with_gpus(one, 3), *large = sim_with_gpus(two, 3);
    struct hd_job_needs pair = ask_for(HD_DEVICE_KIND_CUDA, 2, 10);
    struct hd_job_needs four = ask_for(HD_DEVICE_KIND_CUDA, 4, 10);
    uint64_t job = sim_submitted(small, &pair);

    sim_assert_places(small, job, 1, "cuda n1:0 n3:0");
    sim_run_until_ended(small, job, 60);
    sim_assert_undisturbed(small, job, 10);
    job = sim_submitted(large, &pair);
    sim_assert_places(large, job, 1, "cuda n2:0 n2:1");
    sim_run_until_ended(large, job, 60);
    four.wish.sizes.tp = 2;
    job = sim_submitted(large, &four);
    sim_assert_places(large, job, 1, "cuda n2:0 n2:1 n3:0 n3:1");
    assert_int_equal(sim_attempt(large, job, 1)->plan.layout.dp, 2);
    sim_free(small);
    sim_free(large);
}

/* Each rank updates its copy of the weights for itself: other GPUs or libraries round otherwise. */
static void gpus_that_compute_otherwise_are_not_mixed_in(void **state)
{
    static const char *const libraries[] = {"GPU, NCCL 2.28.9", "GPU, NCCL 2.27.5",
                                            "GPU, NCCL 2.28.9", ""};
    struct sim *sim = sim_new(1, 4);
    struct hd_job_needs two = ask_for(HD_DEVICE_KIND_CUDA, 2, 10);
    struct hd_job_needs three = ask_for(HD_DEVICE_KIND_CUDA, 3, 10);
    uint64_t a, b;

    for (int n = 0; n < 4; n++) {
        sim->nodes[n].gpus = 1;
        (void)snprintf(sim->nodes[n].compute_cuda, sizeof sim->nodes[n].compute_cuda, "%s",
                       libraries[n]);
    }
    sim_run(sim, 2);
    a = sim_submitted(sim, &two);
    sim_assert_places(sim, a, 1, "cuda n1:0 n3:0");
    three.wish.global_batch = 6;
    b = sim_submitted(sim, &three);
    sim_assert_reason(
        sim, b,
        "needs 3 cuda devices; n1 has 0 of 1 free (jobs only with nodes that compute with GPU, "
        "NCCL 2.28.9), n2 has 1 (jobs only with nodes that compute with GPU, NCCL 2.27.5), n3 has "
        "0 of 1 free (jobs only with nodes that compute with GPU, NCCL 2.28.9), n4 has 1 (no jobs "
        "with GPUs of other nodes: it has no NCCL, which heddled --doctor looks for)");
    sim_free(sim);
}

/* A driver that died, and a heddled that was started again and took the cores in the GPU's place.
 */
static void a_gpu_in_use_is_not_replaced_by_something_else(void **state)
{
    const int one[] = {1};
    struct sim *sim = sim_with_gpus(one, 1);
    struct hd_job_needs cuda = ask_for(HD_DEVICE_KIND_CUDA, 1, 100);
    struct hd_device_record device = {.kind = HD_DEVICE_KIND_CPU, .threads = 1};
    struct hd_core_event hello = sim_hello(&device);

    (void)sim_submitted(sim, &cuda);
    assert_int_equal(sim_event(sim, &hello), HD_CONFLICT);
    device = (struct hd_device_record){.kind = HD_DEVICE_KIND_CUDA, .uuid = "GPU-1"};
    assert_int_equal(sim_event(sim, &hello), HD_CONFLICT); /* another one */
    device.uuid = "GPU-0";
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    sim_free(sim);
}

/* A GPU that fails is out of the offer; what runs on it or beside it is not asked. */
static void a_gpu_out_of_order_gets_no_jobs_until_it_works_again(void **state)
{
    const int two[] = {2};
    struct sim *sim = sim_with_gpus(two, 1);
    struct hd_job_needs one = ask_for(HD_DEVICE_KIND_CUDA, 1, 20);
    struct hd_job_needs both = ask_for(HD_DEVICE_KIND_CUDA, 2, 5);
    struct hd_job_needs any = ask_for(HD_DEVICE_KIND_ANY, 1, 20);
    uint64_t on_first = sim_submitted(sim, &one), a, b, c;

    sim_assert_places(sim, on_first, 1, "cuda n1:0");
    sim->nodes[0].broken[0] = true;
    sim_daemon_restart(sim, &sim->nodes[0]); /* a new hello */
    sim_run(sim, 3);
    assert_int_equal(sim_count_events(sim, 0, "device_withdrawn"), 1);
    a = sim_submitted(sim, &both);
    sim_assert_reason(sim, a, "needs 2 cuda devices; n1 has 1 (1 cannot be used: it is lost)");
    b = sim_submitted(sim, &any); /* not behind it: it fits nowhere, as the cluster is */
    c = sim_submitted(sim, &one);
    sim_assert_places(sim, b, 1, "cuda n1:1");
    sim_run_until_ended(sim, on_first, 60);
    assert_int_equal(sim_job(sim, on_first)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_job(sim, on_first)->attempt_count, 1);
    assert_int_equal(sim_job(sim, c)->state, HD_JOB_STATE_QUEUED); /* 0 is free, and broken */
    sim_run_until_ended(sim, b, 60);
    sim_run(sim, 3);
    sim_assert_places(sim, c, 1, "cuda n1:1");
    sim->nodes[0].broken[0] = false;
    sim_daemon_restart(sim, &sim->nodes[0]);
    sim_run_until_ended(sim, a, 120);
    sim_assert_places(sim, a, 1, "cuda n1:0 n1:1");
    assert_int_equal(sim_count_events(sim, 0, "device_offered"), 1);
    sim_free(sim);
}

/* Nobody is told that there are no GPUs when there are only broken ones. */
static void a_reason_names_nodes_whose_gpus_are_out_of_order(void **state)
{
    struct sim *sim = sim_new(1, 1);
    struct hd_job_needs cuda = ask_for(HD_DEVICE_KIND_CUDA, 1, 10);
    uint64_t job;

    sim->nodes[0].gpus = 1;
    sim->nodes[0].broken[0] = true;
    sim_run(sim, 2);
    job = sim_submitted(sim, &cuda);
    sim_assert_reason(sim, job, "needs 1 cuda device; n1 has 0 (1 cannot be used: it is lost)");
    sim_free(sim);
}

RUN_CASES()
