/* NCCL's memory, on the plug-in's sources over the emulator and the stand-in for NCCL, which takes
 * memory as NCCL does, in its own words: each rank has a device of its own. A plan knows it to the
 * byte, all of it is in use before the plan is compared with what is free, and no step takes more. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/nccl.h"
#include "comm/shm_control.h"
#include "harness.h"
#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/nccl_stand_in.h"
#include "tests/program/test.h"
#include "train/opened_rank.h"

enum { WORLD = 2, STEPS = 2 };

static const int64_t mib = 1 << 20;

/* Results of one rank. */
struct found {
    enum hd_status status;
    char message[512];
    int64_t planned_bytes, nccl_bytes;   /* of the plan */
    int64_t opened_bytes, trained_bytes; /* in use when the trainer was open, and after the steps */
};

struct run {
    struct hd_job job;
    struct hd_shm_control *ctl;
    struct found found[WORLD];
};

struct starting {
    struct run *run;
    int rank;
    pthread_t thread;
};

static int64_t in_use(struct hd_backend *backend)
{
    struct hd_device_memory memory = {0};

    if (harness_backend()->device->memory(backend, &memory))
        return -1;
    return memory.total_bytes - memory.free_bytes;
}

static enum hd_status train(struct hd_trainer *t, struct hd_backend *backend, struct found *found)
{
    struct hd_step_result result;
    enum hd_status st = hd_trainer_init(t);

    found->opened_bytes = in_use(backend);
    for (int s = 0; !st && s < STEPS; s++)
        st = hd_trainer_step(t, 0, &result);
    found->trained_bytes = in_use(backend);
    return st;
}

static enum hd_status open_and_train(struct run *run, int rank, struct hd_opened_rank *opened)
{
    const struct hd_mesh_sizes sizes = {.dp = (int32_t)run->job.dp, .pp = (int32_t)run->job.pp};
    struct hd_trainer_options options = {
        .peak = HARNESS_PEAK, .backend = harness_backend(), .rank = rank};
    struct found *found = &run->found[rank];
    struct hd_backend_options described = hd_trainer_backend_options(&run->job);
    struct hd_gpu_overhead overhead;
    struct hd_traits traits;
    struct hd_trainer *t;
    struct hd_mesh mesh;
    enum hd_status st = hd_mesh_init(&mesh, &sizes);

    if (!st)
        st = hd_rank_open(&(struct hd_rank_opening){.table = harness_backend(),
                                                    .options = {.threads = 1, .device = rank},
                                                    .shm = run->ctl,
                                                    .rank = rank,
                                                    .world = WORLD,
                                                    .nccl_mesh = &mesh,
                                                    .deadline_ms = 60000},
                          opened);
    options.instance = opened->backend;
    options.comm = opened->comm;
    if (!st)
        st = hd_trainer_new(&run->job, &options, &t);
    if (st)
        return st;
    harness_backend()->describe(&described, &traits);
    overhead = hd_rank_program_gpu_overhead(hd_trainer_rank_program(t), &traits);
    found->planned_bytes = hd_memory_on_device(&hd_trainer_rank_program(t)->memory, &traits);
    found->nccl_bytes = overhead.communicators_bytes;
    st = train(t, opened->backend, found);
    hd_trainer_free(t);
    return st;
}

static void *run_rank(void *arg)
{
    struct starting *s = arg;
    struct found *found = &s->run->found[s->rank];
    struct hd_opened_rank opened = {.comm = NULL};

    found->status = open_and_train(s->run, s->rank, &opened);
    (void)snprintf(found->message, sizeof found->message, "%s",
                   found->status ? hd_err_message() : "");
    if (found->status && opened.comm)
        hd_comm_abort(opened.comm, found->message);
    hd_rank_close(&opened);
    return NULL;
}

static void run_ranks(struct run *run, const struct harness *h, int64_t pp)
{
    struct starting ranks[WORLD];

    *run = (struct run){.job = harness_job(h, "llama", (int)(WORLD / pp))};
    run->job.pp = pp;
    (void)snprintf(run->job.schedule, sizeof run->job.schedule, "%s", pp > 1 ? "1f1b" : "none");
    run->job.layers = 2;
    run->job.steps = STEPS;
    run->job.device = HD_JOB_DEVICE_CUDA;
    assert_int_equal(hd_shm_control_new(WORLD, &run->ctl), HD_OK);
    for (int r = 0; r < WORLD; r++) {
        ranks[r] = (struct starting){.run = run, .rank = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < WORLD; r++)
        (void)pthread_join(ranks[r].thread, NULL);
    hd_shm_control_free(run->ctl);
}

/* With the sizes of the real NCCL, on devices like an H100. */
static void charge(int64_t more_bytes)
{
    const struct hd_nccl_charges charges = {2 * mib, 10 * mib, 64 * mib + more_bytes};

    hd_nccl_stand_in_charge(charges);
}

static void what_nccl_takes_is_planned_to_the_byte(void **state)
{
    struct harness h;
    struct run run;

    harness_setup(&h, 20000);
    charge(0);
    for (int64_t pp = 1; pp <= WORLD; pp++) {
        run_ranks(&run, &h, pp);
        for (int r = 0; r < WORLD; r++) {
            const struct found *f = &run.found[r];

            if (f->status)
                fail_msg("rank %d: %s", r, f->message);
            assert_int_equal(f->opened_bytes, f->planned_bytes + f->nccl_bytes);
            assert_int_equal(f->trained_bytes, f->opened_bytes);
        }
    }
    harness_teardown(&h);
}

/* NCCL takes 1 GiB and a byte more than is assumed: with what is assumed of the process, of which
 * the emulator has nothing in use, that is a byte too much. */
static void nccl_that_takes_more_is_noticed_before_the_first_step(void **state)
{
    struct harness h;
    struct run run;
    int64_t total_bytes;
    bool told = false;

    harness_setup(&h, 20000);
    charge(0);
    run_ranks(&run, &h, 1);
    if (run.found[0].status)
        fail_msg("%s", run.found[0].message);
    total_bytes = run.found[0].planned_bytes + run.found[0].nccl_bytes + HD_GPU_PROCESS_BYTES;
    hd_cudasim_memory((size_t)total_bytes);
    charge(HD_GPU_PROCESS_BYTES); /* exactly enough */
    run_ranks(&run, &h, 1);
    if (run.found[0].status)
        fail_msg("%s", run.found[0].message);
    charge(HD_GPU_PROCESS_BYTES + 1);
    run_ranks(&run, &h, 1);
    for (int r = 0; r < WORLD; r++) { /* the first that says so ends the others */
        assert_int_equal(run.found[r].opened_bytes, 0);
        told |= run.found[r].status == HD_UNAVAILABLE &&
                strstr(run.found[r].message, "its connections of NCCL") != NULL;
    }
    assert_true(told);
    hd_cudasim_memory((size_t)64 << 30);
    harness_teardown(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    assert_true(hd_comm_nccl_set_environment());
    hd_cudasim_devices(WORLD);
    hd_cudasim_kind(132, 90);
    hd_cudasim_memory((size_t)64 << 30);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
