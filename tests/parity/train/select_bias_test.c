/* select_bias: the bias by which routers choose follows the load, and is kept in checkpoints.
 */
#include <stdio.h>
#include <string.h>

#include "runs.h"
#include "tests/program/test.h"

enum { EXPERTS = 4, STEPS = 6 };
static const double RATE = 0.125; /* a power of two: sums of it are exact */

/* One block with experts, after one without. */
static struct hd_job job_of(const struct harness *h, const char *family, int dp)
{
    struct hd_job job = harness_job(h, family, dp);

    job.experts = EXPERTS;
    job.router_bias_rate = RATE;
    job.z_loss = 0;
    job.dense_ffn_hidden = 64;
    job.experts_layers = "0:1:1000";
    return job;
}

/* The place of the one select bias in the arrays of a run. */
struct place {
    int64_t first;
    int count;
    bool trainable;
};

static void find_bias(const struct hd_param *p, int64_t first, void *context)
{
    struct place *place = context;

    if (strcmp(p->name, "blocks.1.moe.select_bias") != 0)
        return;
    place->first = first;
    place->count++;
    place->trainable = p->trainable;
}

static const float *bias_of(const struct hd_job *job, const struct run *run)
{
    struct place place = {0};

    run_for_params(job, find_bias, &place);
    assert_int_equal(place.count, 1);
    assert_false(place.trainable);
    return run->weights + place.first;
}

/* The first step's load is that of biases of zero. */
static void a_step_moves_it_towards_the_mean_load(void **state)
{
    static const char *const families[] = {"glm4_moe", "ernie4_5_moe"};

    for (int f = 0; f < 2; f++) {
        struct run *run = run_new(1);
        struct harness h;
        struct hd_job job;
        const float *bias;
        int64_t sum = 0;
        int moved = 0;

        harness_setup(&h, 20000);
        job = job_of(&h, families[f], 1);
        run_threads(job, 2, run);
        bias = bias_of(&job, run);
        for (int e = 0; e < EXPERTS; e++)
            sum += run->routers.load[e];
        assert_true(sum > 0);
        for (int e = 0; e < EXPERTS; e++) {
            const int64_t lack = sum - EXPERTS * run->routers.load[e];
            const double want = lack > 0 ? RATE : lack < 0 ? -RATE : 0;

            assert_true((double)bias[e] == want);
            moved += want != 0;
        }
        assert_true(moved > 0);
        run_free(run);
        harness_teardown(&h);
    }
}

/* A rate of 0 leaves them alone. */
static void without_a_rate_it_stays(void **state)
{
    struct run *run = run_new(STEPS);
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = job_of(&h, "glm4_moe", 1);
    job.router_bias_rate = 0;
    run_threads(job, 1, run);
    for (int e = 0; e < EXPERTS; e++)
        assert_true(bias_of(&job, run)[e] == 0);
    run_free(run);
    harness_teardown(&h);
}

/* Goal: a checkpoint resumes under any layout with its biases. Method: what is loaded has equal
 * bits; so have the next steps in the layout that saved. */
static void a_checkpoint_takes_it_to_any_layout(void **state)
{
    struct run *whole = run_new(STEPS), *resumed = run_new(STEPS);
    struct hd_saved saved;
    struct harness h;
    struct hd_job from, job;
    float want[EXPERTS];
    int apart = 0;

    harness_setup(&h, 20000);
    from = job_of(&h, "glm4_moe", 2);
    from.ep = 2;
    from.zero = 3;
    run_save(&from, 5, whole, &saved);
    memcpy(want, bias_of(&from, whole), sizeof want);
    for (int e = 1; e < EXPERTS; e++)
        apart += want[e] != want[0];
    assert_true(apart > 0);
    for (int i = 0; i < 3; i++) {
        struct run *run = run_new(0);

        job = job_of(&h, "glm4_moe", 1);
        job.tp = i == 0 ? 2 : 1;
        job.pp = i == 1 ? 2 : 1;
        if (i == 1)
            (void)snprintf(job.schedule, sizeof job.schedule, "1f1b");
        job.cp = i == 2 ? 2 : 1;
        run_load(&job, &saved, run);
        assert_memory_equal(bias_of(&job, run), want, sizeof want);
        run_free(run);
    }
    run_load(&from, &saved, resumed);
    assert_memory_equal(resumed->loss, whole->loss, sizeof whole->loss);
    run_compare_state(resumed, whole);
    run_free(whole);
    run_free(resumed);
    harness_teardown(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_moves_it_towards_the_mean_load),
        cmocka_unit_test(without_a_rate_it_stays),
        cmocka_unit_test(a_checkpoint_takes_it_to_any_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
