/* train.native_reduction, from the job to the checkpoint: ranks that meet as a worker's do, on the
 * plug-in's sources over the emulator and the stand-in for NCCL, whose own sums go from the last
 * rank to the first and are rounded at every hop. */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "comm/shm_control.h"
#include "kernels/cuda/choices.h"
#include "runs.h"
#include "tests/cudasim/nccl_stand_in.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/opened_rank.h"

enum { STEPS = 3, WORLD = 4 };

/* A run on WORLD ranks, and what came of it. */
struct trained {
    struct hd_job job;
    struct hd_shm_control *ctl;
    const struct hd_saved *from; /* a checkpoint to go on from; NULL: from the seed */
    double loss[STEPS];
    uint64_t hash; /* of rank 0's state */
    struct hd_saved saved;
    char note[256];
    int native_sums;     /* calls of NCCL that reduced */
    const char *choices; /* each rank's folder of choices is in here, and nothing is trained; NULL:
                            no such folder */
};

static enum hd_status train(struct hd_trainer *t, struct trained *run, int rank)
{
    struct hd_text note = {0};
    struct hd_step_result result;
    struct hd_saved saved;
    enum hd_status st = run->from ? hd_trainer_load(t, run->from->path, run->from->hash, &note)
                                  : hd_trainer_init(t);

    if (rank == 0 && note.len_bytes)
        (void)snprintf(run->note, sizeof run->note, "%s", note.data);
    hd_text_free(&note);
    for (int s = 0; !st && s < STEPS; s++) {
        st = hd_trainer_step(t, 0, &result);
        if (rank == 0)
            run->loss[s] = result.loss;
    }
    if (!st)
        st = hd_trainer_save(t, &saved);
    if (!st && rank == 0) {
        run->hash = run_hash_state(t);
        run->saved = saved;
    }
    return st;
}

/* On an endpoint that was opened for the job. */
static enum hd_status train_on(struct trained *run, int rank, struct hd_comm *comm,
                               struct hd_backend *instance)
{
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = instance,
                                               .comm = comm,
                                               .rank = rank};
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(&run->job, &options, &t);

    if (st)
        return st;
    st = run->choices ? HD_OK : train(t, run, rank);
    hd_trainer_free(t);
    return st;
}

struct starting {
    struct trained *run;
    int rank;
    pthread_t thread;
    struct hd_error error;
};

/* Begins as a worker's rank does: first on the host, then on its device. */
static void *run_rank(void *arg)
{
    struct starting *s = arg;
    struct trained *run = s->run;
    struct hd_opened_rank opened = {0};
    struct hd_comm *host;
    char choices_dir[PATH_MAX];
    enum hd_status st =
        hd_comm_open_shm(hd_shm_control_fd(run->ctl), hd_shm_control_rank_fds(run->ctl), s->rank,
                         WORLD, 60000, &host);

    (void)snprintf(choices_dir, sizeof choices_dir, "%s/%d", run->choices ? run->choices : "",
                   s->rank);
    if (!st)
        st = hd_trainer_open_rank(harness_backend(), &run->job, run->choices ? choices_dir : NULL,
                                  host, NULL, &opened);
    if (!st)
        st = train_on(run, s->rank, opened.comm, opened.backend);
    hd_err_save(st, &s->error);
    if (st && opened.comm)
        hd_comm_abort(opened.comm, hd_err_message());
    hd_rank_close(&opened);
    return NULL;
}

static void run_ranks(struct trained *run)
{
    struct starting ranks[WORLD];
    const int before = hd_nccl_stand_in_sums();

    assert_int_equal(hd_shm_control_new(WORLD, &run->ctl), HD_OK);
    for (int r = 0; r < WORLD; r++) {
        ranks[r] = (struct starting){.run = run, .rank = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < WORLD; r++)
        (void)pthread_join(ranks[r].thread, NULL);
    hd_shm_control_free(run->ctl);
    for (int r = 0; r < WORLD; r++)
        if (ranks[r].error.status)
            fail_msg("rank %d: %s", r, ranks[r].error.message);
    run->native_sums = hd_nccl_stand_in_sums() - before;
}

static void begin(struct trained *run, const struct harness *h, const char *attempt, bool native)
{
    *run = (struct trained){.job = harness_job(h, "llama", WORLD)};
    run->job.steps = STEPS;
    run->job.native_reduction = native;
    run->job.device = HD_JOB_DEVICE_CUDA;
    run->job.attempt_dir = job_text("%s/%s", h->dir, attempt);
}

static void assert_sums(const struct hd_saved *saved, const char *how)
{
    struct hd_ckpt *ckpt;

    assert_int_equal(hd_ckpt_open(saved->path, &ckpt), HD_OK);
    assert_string_equal(hd_ckpt_determinism(ckpt, "sums"), how);
    hd_ckpt_close(ckpt);
}

static void a_job_may_leave_its_sums_to_nccl(void **state)
{
    /* The loss of the first step is that of the same weights; it is a sum of one fp32 value of each
     * rank, and each addition rounds once, in either order. */
    const double rounding = (WORLD - 1) * ldexp(1, -24);
    static struct trained ordered, native, back;
    struct harness h;

    harness_setup(&h, 8000);
    begin(&ordered, &h, "ordered", false);
    begin(&native, &h, "native", true);
    run_ranks(&ordered);
    run_ranks(&native);
    assert_int_equal(ordered.native_sums, 0);
    assert_true(native.native_sums >= WORLD * STEPS);
    assert_true(fabs(native.loss[0] - ordered.loss[0]) <= 2 * rounding * ordered.loss[0]);
    /* Then gradients differ in their last bits. AdamW divides that out but where a gradient is
     * nothing but rounding: such a weight goes by the rate, 3e-3, this way or that, and hardly
     * matters to the loss. A wrong sum shows at once: these steps take the loss down by a tenth
     * each. */
    for (int s = 1; s < STEPS; s++)
        assert_true(fabs(native.loss[s] - ordered.loss[s]) < 1e-3);
    assert_true(native.hash != ordered.hash); /* another order shows somewhere */
    assert_sums(&ordered.saved, "ordered");
    assert_sums(&native.saved, "native");

    begin(&back, &h, "back", false);
    back.from = &native.saved;
    back.job.steps = 2 * STEPS;
    run_ranks(&back);
    assert_non_null(strstr(back.note, "sums was native, is ordered"));
    harness_teardown(&h);
}

static enum hd_status train_alone(struct harness_rank *r)
{
    return train_on(r->context, r->rank, r->comm, r->instance);
}

static void where_sums_are_always_ordered_the_checkpoint_says_so(void **state)
{
    static struct trained run;
    struct harness h;

    harness_setup(&h, 8000);
    begin(&run, &h, "alone", true);
    run.job.dp = 1;
    if (harness_threads(&run.job, 1, &run, train_alone))
        fail_msg("%s", hd_err_message());
    assert_sums(&run.saved, "ordered");
    harness_teardown(&h);
}

/* ---- choices among algorithms ---- */

/* The file of choices of a rank: each has a folder of its own, as if each were on its own node. */
static void read_choices(const struct trained *run, int rank, struct hd_choice *ret_choices,
                         int *ret_count, char ret_path[PATH_MAX],
                         char ret_device[HD_CUDA_CHOICES_DEVICE_MAX])
{
    struct hd_text text = {0};

    (void)snprintf(ret_path, PATH_MAX, "%.3000s/%d/GPU-68656464-6c65-2d63-7564-6173696d0000",
                   run->choices, rank);
    assert_int_equal(hd_file_read(ret_path, HD_CUDA_CHOICES_BYTES_MAX, &text), HD_OK);
    assert_int_equal(sscanf(text.data, "%*[^\n]\n%255[^\n]", ret_device), 1);
    assert_int_equal(
        hd_cuda_choices_parse(text.data, text.len_bytes, ret_device, ret_choices, ret_count),
        HD_OK);
    hd_text_free(&text);
}

/* Goal: ranks that have chosen otherwise agree on the lowest rank's choice. Method: each rank's
 * file, then the files of rank 0 and of rank 2 changed by hand to another choice for every product;
 * the emulator gives all algorithms the same time, so a file without the change has the first. */
static void ranks_agree_on_the_choices_of_the_lowest(void **state)
{
    static struct hd_choice first[HD_CUDA_CHOICES_MAX], other[HD_CUDA_CHOICES_MAX];
    static struct trained run;
    char path[PATH_MAX], device[HD_CUDA_CHOICES_DEVICE_MAX];
    int count, others;
    struct harness h;

    harness_setup(&h, 8000);
    begin(&run, &h, "choices", false);
    run.choices = run.job.attempt_dir;
    run_ranks(&run);
    for (int r = 0; r < WORLD; r += 2) {
        struct hd_text text = {0};

        read_choices(&run, r, first, &count, path, device);
        assert_true(count > 4);
        for (int i = 0; i < count; i++) {
            assert_int_equal(first[i].chosen, 0);
            first[i].chosen = r == 0 ? 1 : first[i].offered - 1;
        }
        hd_cuda_choices_format(first, count, device, &text);
        assert_int_equal(hd_file_write_atomic(path, text.data, text.len_bytes, 0644), HD_OK);
        hd_text_free(&text);
    }
    run_ranks(&run);
    read_choices(&run, 0, first, &count, path, device);
    for (int r = 0; r < WORLD; r++) {
        read_choices(&run, r, other, &others, path, device);
        assert_int_equal(others, count);
        for (int i = 0; i < count; i++) {
            const struct hd_choice *same = hd_cuda_choices_find(other, others, first[i].product);

            assert_non_null(same);
            assert_int_equal(same->chosen, 1);
        }
    }
    harness_teardown(&h);
}

RUN_CASES()
