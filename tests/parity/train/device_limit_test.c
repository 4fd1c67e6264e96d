/* Memory at its edge, on the emulator, whose devices have as much as a test says: a step asks for
 * none, exactly enough is enough, and what does not fit is refused before anything runs. Enough is
 * the plan and what is loaded later, of which the emulator has nothing.
 */
#include <stdio.h>
#include <string.h>

#include "device_memory.h"
#include "tests/cudasim/cudasim.h"
#include "tests/program/test.h"

static const struct device_case small = {"llama", "bf16",           1,    48, 1, 1, 1, 1,
                                         false,   HD_SCHEDULE_1F1B, false};

static const int64_t usual_bytes = (int64_t)8 << 30;

/* ---- no step allocates ---- */

static enum hd_status step_quietly(struct harness_rank *r)
{
    struct hd_step_result result;
    struct hd_trainer *t;
    int64_t targets;
    double loss;
    uint64_t before;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    before = hd_cudasim_allocations();
    for (int s = 0; !st && s < 3; s++)
        st = hd_trainer_step(t, 0, &result);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    if (!st && hd_cudasim_allocations() != before)
        st = hd_err(HD_INTERNAL, "steps asked %llu times for memory",
                    (unsigned long long)(hd_cudasim_allocations() - before));
    hd_trainer_free(t);
    return st;
}

static void no_step_asks_the_device_for_memory(void **state)
{
    const uint64_t before = hd_cudasim_allocations();
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = device_job(&h, &small);
    if (harness_threads(&job, 1, NULL, step_quietly))
        fail_msg("%s", hd_err_message());
    assert_true(hd_cudasim_allocations() > before); /* the count is awake: setting up asks */
    harness_teardown(&h);
}

/* ---- the edge ---- */

static enum hd_status train_on(const struct hd_job *job, int64_t device_bytes,
                               struct device_found *found)
{
    enum hd_status st;

    *found = (struct device_found){.in_use_bytes = 0};
    hd_cudasim_memory((size_t)device_bytes);
    st = device_train(job, found);
    hd_cudasim_memory((size_t)usual_bytes);
    return st;
}

static void exactly_enough_is_enough(void **state)
{
    struct device_found found;
    struct harness h;
    struct hd_job job;
    int64_t needed, enough;
    char text[32];

    harness_setup(&h, 20000);
    job = device_job(&h, &small);
    if (train_on(&job, usual_bytes, &found))
        fail_msg("%s", hd_err_message());
    needed = found.in_use_bytes;
    enough = needed + HD_GPU_PROCESS_BYTES; /* what heddle plan says: nothing of it is in use */
    if (train_on(&job, enough, &found))
        fail_msg("%s", hd_err_message());
    assert_int_equal(found.in_use_bytes, needed);

    /* a byte less, and the story says what is needed, of what most, what is there and what helps */
    assert_int_equal(train_on(&job, enough - 1, &found), HD_INVALID);
    assert_int_equal(found.in_use_bytes, 0);
    hd_text_format_bytes(needed, text);
    assert_non_null(strstr(hd_err_message(), text));
    hd_text_format_bytes(HD_GPU_PROCESS_BYTES, text);
    assert_non_null(strstr(hd_err_message(), text));
    assert_non_null(strstr(hd_err_message(), " takes "));
    assert_non_null(strstr(hd_err_message(), "parallel.micro_batch"));
    assert_int_equal(hd_cudasim_leaks(), 0);
    harness_teardown(&h);
}

/* Another process holds it: the same job may run later. */
static void what_others_hold_is_not_there(void **state)
{
    const struct hd_backend_options options = {.threads = 1};
    const struct hd_backend_table *table = harness_backend();
    struct device_found found;
    struct hd_backend *other;
    struct harness h;
    struct hd_job job;
    int64_t needed, enough;
    void *held;
    char text[32];

    harness_setup(&h, 20000);
    job = device_job(&h, &small);
    if (train_on(&job, usual_bytes, &found))
        fail_msg("%s", hd_err_message());
    needed = found.in_use_bytes;
    enough = HD_GPU_PROCESS_BYTES + needed + HD_GPU_LATE_BYTES;
    assert_int_equal(table->open(&options, &other), HD_OK);
    assert_int_equal(table->device->reserve(other, HD_GPU_PROCESS_BYTES, false, &held), HD_OK);
    assert_int_equal(train_on(&job, enough - 1, &found), HD_UNAVAILABLE);
    assert_int_equal(found.in_use_bytes, 0);
    hd_text_format_bytes(needed, text);
    assert_non_null(strstr(hd_err_message(), text));
    assert_non_null(strstr(hd_err_message(), "nvidia-smi"));
    if (train_on(&job, enough, &found)) /* beside the other there is just enough */
        fail_msg("%s", hd_err_message());
    assert_int_equal(found.in_use_bytes, HD_GPU_PROCESS_BYTES + needed);
    table->device->release(other, held);
    table->close(other);
    assert_int_equal(hd_cudasim_leaks(), 0);
    harness_teardown(&h);
}

/* ---- less in use than reserved ---- */

static enum hd_status all_is_free(struct hd_backend *backend, struct hd_device_memory *ret_memory)
{
    const enum hd_status st = harness_backend()->device->memory(backend, ret_memory);

    ret_memory->free_bytes = ret_memory->total_bytes;
    return st;
}

static enum hd_status look_beside(struct harness_rank *r)
{
    struct hd_device_table device = *harness_backend()->device;
    struct hd_backend_table table = *harness_backend();
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = &table,
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank};
    struct hd_device_use *use = r->context;
    struct hd_trainer *t;
    enum hd_status st;

    device.memory = all_is_free;
    table.device = &device;
    st = hd_trainer_new(r->job, &options, &t);
    if (st)
        return st;
    st = hd_trainer_device_use(t, use);
    hd_trainer_free(t);
    return st;
}

/* If the plan lies in host memory that the device reaches, less than the plan is in use on the
 * device: no reason to print a negative number of bytes. */
static void nothing_is_never_less_than_nothing(void **state)
{
    struct hd_device_use use = {0};
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = device_job(&h, &small);
    if (harness_threads(&job, 1, &use, look_beside))
        fail_msg("%s", hd_err_message());
    assert_true(use.planned_bytes > 0);
    assert_int_equal(use.other_bytes, 0);
    harness_teardown(&h);
}

RUN_CASES()
