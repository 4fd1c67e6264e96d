/* fixture: the state of a controller that has seen much: what the dashboard's scenario looks at.
 *
 *   browser_fixture STATE_DIR STEPS
 *
 * Job 1 has STEPS steps, of which one, two thirds in, has a loss of 9.5 among losses below 6, and
 * one a fifth in is the lowest: 0.5. Job 2 has failed by a hang of rank 3 on node gpu-03. Numbers
 * are a function of the step, so that every run shows the same. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "controller/core/core.h"
#include "controller/store/store.h"

enum { STEPS_PER_BATCH = 5000, STEP_MS = 480 };

struct fixture {
    uv_loop_t loop;
    struct hd_job_store *store;
    int waiting;
    int64_t now_ms;
    uint64_t sequence[3]; /* of the newest entry, by job */
};

static void die(const char *what)
{
    (void)fprintf(stderr, "browser_fixture: %s: %s\n", what, hd_err_message());
    exit(1);
}

static void on_done(void *user, enum hd_status st)
{
    struct fixture *f = user;

    if (st)
        die("a batch was not stored");
    f->waiting--;
}

static void commit(struct fixture *f, struct hd_batch *batch)
{
    if (hd_batch_failed(batch))
        die("no memory");
    f->waiting++;
    hd_store_commit(f->store, batch, on_done, f);
    while (f->waiting > 0)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
}

static void add_event(struct fixture *f, struct hd_batch *batch, uint64_t job, int64_t time_ms,
                      int32_t attempt, int32_t rank, const char *kind, const char *node,
                      const char *message)
{
    const struct hd_event_record event = {.job = job,
                                          .sequence = ++f->sequence[job],
                                          .time_ms = time_ms,
                                          .attempt = attempt,
                                          .rank = rank,
                                          .kind = kind,
                                          .node = node,
                                          .message = message};

    hd_batch_add_event(batch, &event);
}

/* Between -1 and 1, without a pattern that an eye would see. */
static double noise(int64_t step)
{
    const double x = sin((double)step * 12.9898) * 43758.5453;

    return 2 * (x - floor(x)) - 1;
}

static double loss_at(int64_t step, int64_t steps)
{
    const double part = (double)step / (double)steps;

    if (step == steps * 2 / 3)
        return 9.5;
    if (step == steps / 5)
        return 0.5;
    return 2.1 + 3.6 * exp(-part * 22) + 0.9 * exp(-part * 3) + 0.07 * noise(step);
}

static void add_step(struct fixture *f, struct hd_batch *batch, uint64_t job, int32_t attempt,
                     int64_t step, int64_t steps, int64_t time_ms)
{
    const double part = (double)step / (double)steps;
    const double ms = STEP_MS * (1 + 0.02 * noise(step * 7)) * (step % 5000 == 17 ? 2.2 : 1);
    const struct hd_step_record record = {
        .job = job,
        .sequence = ++f->sequence[job],
        .attempt = attempt,
        .step = step,
        .time_ms = time_ms,
        .metrics = {.loss = loss_at(step, steps),
                    .grad_norm = 0.4 + 2 * exp(-part * 30) + 0.1 * fabs(noise(step * 3)) +
                                 (step == steps * 2 / 3 ? 14 : 0),
                    .lr = 3e-4 * (part < 0.02 ? part / 0.02 : 0.55 + 0.45 * cos(part * 3.14159)),
                    .tokens = 524288,
                    .tokens_per_s = 524288 / (ms / 1e3),
                    .step_ms = ms,
                    .mfu = 0.436 * STEP_MS / ms}};

    hd_batch_add_step(batch, &record);
}

static struct hd_attempt_record attempt_of(uint64_t job, int32_t attempt, int32_t ranks,
                                           struct hd_rank_location *places)
{
    struct hd_attempt_record record = {.job = job,
                                       .attempt = attempt,
                                       .state = HD_ATTEMPT_STATE_ENDED,
                                       .plan = {.ranks = places, .rank_count = ranks}};

    for (int32_t r = 0; r < ranks; r++) {
        static char names[16][16], uuids[16][16];
        const int node = r / 2;

        (void)snprintf(names[node], sizeof names[node], "gpu-%02d", node + 1);
        (void)snprintf(uuids[node], sizeof uuids[node], "uuid-%02d", node + 1);
        places[r] = (struct hd_rank_location){uuids[node], names[node], r % 2};
    }
    record.plan.layout = (struct hd_layout_sizes){.precision = HD_JOB_PRECISION_BF16,
                                                  .device = HD_JOB_DEVICE_CUDA,
                                                  .schedule = "1f1b",
                                                  .recompute = "none",
                                                  .offload = HD_JOB_OFFLOAD_NONE,
                                                  .cp_exchange = HD_JOB_CP_EXCHANGE_RING,
                                                  .stages = "auto",
                                                  .tp = 2,
                                                  .cp = 1,
                                                  .dp = ranks / 2,
                                                  .pp = 1,
                                                  .ep = 1,
                                                  .micro_batch = 4,
                                                  .zero = 1,
                                                  .threads = 1};
    return record;
}

static void add_nodes(struct hd_batch *batch, int64_t now_ms)
{
    for (int n = 1; n <= 4; n++) {
        struct hd_device_record devices[2];
        char name[16], uuid[16], gpu[2][48];

        (void)snprintf(name, sizeof name, "gpu-%02d", n);
        (void)snprintf(uuid, sizeof uuid, "uuid-%02d", n);
        for (int d = 0; d < 2; d++) {
            (void)snprintf(gpu[d], sizeof gpu[d], "GPU-0000000%d-000%d", n, d);
            devices[d] = (struct hd_device_record){.index = d,
                                                   .kind = HD_DEVICE_KIND_CUDA,
                                                   .name = "NVIDIA H100 80GB HBM3",
                                                   .uuid = gpu[d],
                                                   .memory_bytes = 85899345920,
                                                   .precisions = 3};
        }
        hd_batch_add_node(batch, &(struct hd_node_record){.uuid = uuid,
                                                          .name = name,
                                                          .boot_id = "boot",
                                                          .build = "0.1.0",
                                                          .state = HD_NODE_STATE_LOST,
                                                          .seen_ms = now_ms - 3600000 * n,
                                                          .devices = devices,
                                                          .device_count = 2});
    }
}

/* ---- job 1: a long run ------------------------------------------------------------------------*/

static void add_long_job(struct fixture *f, int64_t steps)
{
    const int64_t begin_ms = f->now_ms - steps * STEP_MS - 3600000;
    struct hd_rank_location places[8];
    struct hd_attempt_record attempt = attempt_of(1, 1, 8, places);
    struct hd_job_record job = {.job = 1,
                                .request_id = "fixture-000000000001",
                                .owner = "ann",
                                .name = "llama-8b-pretrain",
                                .queue = "research",
                                .state = HD_JOB_STATE_SUCCEEDED,
                                .attempt_count = 1,
                                .steps = steps,
                                .devices = 8,
                                .submitted_ms = begin_ms - 95000,
                                .started_ms = begin_ms,
                                .ended_ms = begin_ms + steps * STEP_MS,
                                .spec = "",
                                .spec_bytes = 0};
    struct hd_batch *batch = hd_batch_new();

    hd_batch_add_job(batch, true, &job);
    attempt.created_ms = attempt.running_ms = begin_ms;
    attempt.ended_ms = job.ended_ms;
    attempt.end = (struct hd_end_record){.cause = HD_END_CAUSE_COMPLETED, .rank = -1};
    hd_batch_add_attempt(batch, &attempt);
    add_event(f, batch, 1, job.submitted_ms, 0, -1, "submitted", "", "by ann");
    add_event(f, batch, 1, begin_ms, 1, -1, "running", "", "on 8 devices of gpu-01 to gpu-04");
    commit(f, batch);
    for (int64_t first = 1; first <= steps; first += STEPS_PER_BATCH) {
        batch = hd_batch_new();
        for (int64_t s = first; s < first + STEPS_PER_BATCH && s <= steps; s++) {
            add_step(f, batch, 1, 1, s, steps, begin_ms + s * STEP_MS);
            if (s % (steps / 40) == 0) {
                const struct hd_validation_record v = {.job = 1,
                                                       .sequence = ++f->sequence[1],
                                                       .attempt = 1,
                                                       .step = s,
                                                       .tokens = 1 << 20,
                                                       .time_ms = begin_ms + s * STEP_MS,
                                                       .loss = loss_at(s + 1, steps) + 0.06};

                hd_batch_add_validation(batch, &v);
            }
        }
        commit(f, batch);
    }
    batch = hd_batch_new();
    hd_batch_add_checkpoint(batch,
                            &(struct hd_checkpoint_record){.job = 1,
                                                           .attempt = 1,
                                                           .step = steps,
                                                           .path = "/shared/heddle/1",
                                                           .hash = "00",
                                                           .node_uuid = "uuid-01",
                                                           .shared = true,
                                                           .time_ms = job.ended_ms,
                                                           .size_bytes = 96000000000,
                                                           .state = HD_CHECKPOINT_STATE_PRESENT,
                                                           .val_loss = NAN,
                                                           .sequence = ++f->sequence[1]});
    add_event(f, batch, 1, job.ended_ms, 1, -1, "succeeded", "", "all steps are done");
    commit(f, batch);
}

/* ---- job 2: a hang ----------------------------------------------------------------------------*/

static const char hang[] =
    "no step for 96 s (limit 88 s, 8 x the 99th percentile): rank 3 on gpu-03, device 1, has not "
    "entered all_reduce 118 of dp; ranks 0-2 and 4-7 wait in it since 14:02:11";

static void add_hung_job(struct fixture *f)
{
    const int64_t begin_ms = f->now_ms - 7200000;
    struct hd_rank_location places[8];
    struct hd_attempt_record attempt = attempt_of(2, 1, 8, places);
    struct hd_job_record job = {.job = 2,
                                .request_id = "fixture-000000000002",
                                .owner = "bob",
                                .name = "mixtral-ablation-router-z",
                                .queue = "default",
                                .state = HD_JOB_STATE_FAILED,
                                .reason = "attempt 1 has hung, and restart.max is 0",
                                .attempt_count = 1,
                                .steps = 20000,
                                .devices = 8,
                                .submitted_ms = begin_ms - 4000,
                                .started_ms = begin_ms,
                                .ended_ms = begin_ms + 1300000,
                                .spec = "",
                                .spec_bytes = 0};
    struct hd_batch *batch = hd_batch_new();

    hd_batch_add_job(batch, true, &job);
    attempt.created_ms = attempt.running_ms = begin_ms;
    attempt.ended_ms = job.ended_ms;
    attempt.end = (struct hd_end_record){
        .cause = HD_END_CAUSE_HANG, .rank = 3, .node = "gpu-03", .message = hang};
    hd_batch_add_attempt(batch, &attempt);
    add_event(f, batch, 2, job.submitted_ms, 0, -1, "submitted", "", "by bob");
    add_event(f, batch, 2, begin_ms, 1, -1, "running", "", "on 8 devices of gpu-01 to gpu-04");
    add_event(f, batch, 2, begin_ms + 900, 1, 0, "note", "gpu-01",
              "a rank may print anything: <b>bold</b>&amp;");
    for (int64_t s = 1; s <= 2400; s++)
        add_step(f, batch, 2, 1, s, 20000, begin_ms + s * STEP_MS);
    add_event(f, batch, 2, job.ended_ms, 1, 3, "hang", "gpu-03", hang);
    add_event(f, batch, 2, job.ended_ms + 20, 1, -1, "failed", "",
              "attempt 1 has hung, and restart.max is 0");
    commit(f, batch);
}

int main(int argc, char **argv)
{
    struct fixture f = {.now_ms = hd_clock_wall_ms()};
    const long long steps = argc == 3 ? atoll(argv[2]) : 0;
    struct hd_batch *batch;

    if (steps < 40) {
        (void)fprintf(stderr, "usage: browser_fixture STATE_DIR STEPS (40 or more)\n");
        return 2;
    }
    hd_log_init("browser_fixture", HD_LOG_WARN);
    (void)uv_loop_init(&f.loop);
    if (hd_file_make_dirs(argv[1], 0700) ||
        hd_store_open(&f.loop, &(struct hd_store_options){.dir = argv[1]}, &f.store))
        die("the store");
    batch = hd_batch_new();
    add_nodes(batch, f.now_ms);
    add_event(&f, batch, 0, f.now_ms - 7300000, 0, -1, "node_lost", "gpu-04",
              "node gpu-04 was silent for 180 s");
    commit(&f, batch);
    add_long_job(&f, steps);
    add_hung_job(&f);
    hd_store_close(f.store, 10000, NULL, NULL);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    return 0;
}
