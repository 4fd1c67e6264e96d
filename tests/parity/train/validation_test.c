/* Validation on more ranks and rows than there are windows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

struct check {
    double loss[HARNESS_WORLD_MAX];
    int64_t targets[HARNESS_WORLD_MAX];
};

static enum hd_status check_rank(struct harness_rank *r)
{
    struct check *check = r->context;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_validate(t, &check->loss[r->rank], &check->targets[r->rank]);
    hd_trainer_free(t);
    return st;
}

static struct check validate_few(int dp)
{
    struct harness h;
    struct hd_job job;
    struct check check = {0};
    enum hd_status st;

    harness_setup(&h, 640); /* a tenth is 64 bytes: windows at 0, 16 and 32, the fourth lacks one */
    job = harness_job(&h, "llama", dp);
    st = harness_threads(&job, dp, &check, check_rank);
    harness_teardown(&h);
    if (st)
        fail_msg("%s", hd_err_message());
    return check;
}

/* Goal: padding counts for nothing. Method: 3 windows of 16 targets on 4 ranks with micro-batches
 * of 2: rank 0 has two, rank 1 one and a row of padding, the others none. */
static void fewer_validation_windows_than_places_give_the_same_loss(void **state)
{
    const struct check one = validate_few(1), four = validate_few(4);

    (void)state;
    assert_int_equal(one.targets[0], 3 * 16);
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(four.targets[rank], 3 * 16);
        assert_true(fabs(four.loss[rank] - one.loss[0]) <= 1e-6 * one.loss[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_validation_windows_than_places_give_the_same_loss),
    };
    return cmocka_run_group_tests_name("validation", tests, NULL, NULL);
}
