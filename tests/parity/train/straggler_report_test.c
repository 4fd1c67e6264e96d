/* Goal: ranks report about their steps: for how long each was busy, and for whom it waited. */
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "kernels/stream.h"
#include "tests/program/test.h"

enum { STEPS = 9, SLOW_RANK = 1, SLOW_MS = 40 };

/* ---- the CPU, with a rank that is slow ---- */

static struct hd_backend_table table;
static _Thread_local bool is_slow; /* a rank of the harness is a thread */

/* The start of a step's first program is launched once a step. */
static enum hd_status launch(struct hd_stream *stream, enum hd_kernel kernel, const void *args)
{
    if (kernel == HD_K_step_begin && is_slow)
        (void)usleep(SLOW_MS * 1000);
    return hd_backend_cpu()->launch(stream, kernel, args);
}

static enum hd_status stream_open(struct hd_backend *backend, enum hd_stream_purpose purpose,
                                  struct hd_stream **ret_stream)
{
    const enum hd_status st = hd_backend_cpu()->stream_open(backend, purpose, ret_stream);

    if (!st)
        (*ret_stream)->table = &table;
    return st;
}

/* Each step tells of the one before it. */
static enum hd_status train(struct harness_rank *r)
{
    int *told = r->context; /* [world] steps in which rank 0 waited for the slow one */
    struct hd_trainer *t = NULL;
    enum hd_status st;

    is_slow = r->rank == SLOW_RANK;
    st = harness_trainer(r, &t);
    for (int s = 0; !st && s < STEPS; s++) {
        struct hd_step_result result;
        const struct hd_reported_step *at = &result.reported;

        st = hd_trainer_step(t, 0, &result);
        if (st || s == 0) {
            st = st || !at->present ? st : hd_err(HD_INTERNAL, "the first step tells of another");
            continue;
        }
        if (!at->present || at->busy_ms[SLOW_RANK] < SLOW_MS || at->busy_ms[0] < 0)
            st = hd_err(HD_INTERNAL,
                        "step %d: the slow rank was busy for %.1f ms, the other %.1f ms", s,
                        at->busy_ms[SLOW_RANK], at->busy_ms[0]);
        /* unless this machine kept rank 0 from running all the while */
        told[r->rank] +=
            at->busy_ms[0] <= at->busy_ms[SLOW_RANK] - 0.5 * SLOW_MS && at->awaited[0] == SLOW_RANK;
    }
    hd_trainer_free(t);
    return st;
}

static void a_slow_rank_is_seen_by_all(void **state)
{
    int told[HARNESS_WORLD_MAX] = {0};
    struct harness h;
    struct hd_job job;

    table = *hd_backend_cpu();
    table.launch = launch;
    table.stream_open = stream_open;
    harness_setup(&h, 20000);
    harness_use(&table);
    job = harness_job(&h, "gpt2", 2);
    if (harness_threads(&job, 2, told, train))
        fail_msg("%s", hd_err_message());
    harness_use(NULL);
    harness_teardown(&h);
    assert_true(told[0] > 0);
    assert_int_equal(told[1], told[0]); /* both have the same records */
}

RUN_CASES()
