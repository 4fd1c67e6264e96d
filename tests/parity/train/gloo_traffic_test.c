/* The bytes of each axis over gloo: as many, per group and kind, as the programs say, which are
 * held against closed forms over shm (traffic_test, tensor_parallel_test, context_parallel_test,
 * experts_test); and as many as over shm.
 */
#include <stdio.h>
#include <string.h>

#include "tests/program/test.h"
#include "traffic.h"

static const struct {
    const char *family;
    int tp, cp, dp, ep;
    const char *exchange;
} layouts[] = {
    {"gpt2", 1, 1, 2, 1, "ring"},    {"gpt2", 2, 1, 1, 1, "ring"},
    {"llama", 4, 1, 1, 1, "ring"}, /* copies of key/value heads */
    {"llama", 1, 2, 1, 1, "ring"},   {"llama", 1, 4, 1, 1, "all_gather"},
    {"mixtral", 1, 1, 2, 2, "ring"}, {"mixtral", 2, 2, 2, 4, "ring"},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static struct hd_job job_of(const struct harness *h, int i)
{
    struct hd_job job = harness_job(h, layouts[i].family, layouts[i].dp);

    job.tp = layouts[i].tp;
    job.cp = layouts[i].cp;
    job.ep = layouts[i].ep;
    job.sequence = job.tp > 1;
    job.cp_exchange = hd_job_find_word(hd_job_cp_exchange_words, layouts[i].exchange);
    return job;
}

/* The processes first: the parent must not have had threads when it forks. */
static void gloo_moves_what_the_programs_say_and_shm_moves(void **state)
{
    struct traffic *gloo[LAYOUTS];
    struct harness h;

    harness_setup(&h, 20000);
    for (int i = 0; i < LAYOUTS; i++) {
        const struct hd_job job = job_of(&h, i);

        gloo[i] = harness_shared(sizeof *gloo[i]);
        if (traffic_try_on_gloo(&job, gloo[i]))
            fail_msg("layout %d: %s", i, hd_err_message());
    }
    for (int i = 0; i < LAYOUTS; i++) {
        const struct hd_job job = job_of(&h, i);
        struct traffic *shm = harness_shared(sizeof *shm);

        traffic_check_dry(gloo[i], &job);
        traffic_count(&job, shm);
        for (int g = 0; g < HD_GROUP_COUNT; g++)
            for (int k = 0; k < HD_COMM_KIND_COUNT; k++)
                assert_int_equal(traffic_moved(gloo[i], run_world(&job), (enum hd_group_name)g,
                                               (enum hd_comm_kind)k),
                                 traffic_moved(shm, run_world(&job), (enum hd_group_name)g,
                                               (enum hd_comm_kind)k));
        harness_shared_free(shm, sizeof *shm);
        harness_shared_free(gloo[i], sizeof *gloo[i]);
    }
    harness_teardown(&h);
}

RUN_CASES()
