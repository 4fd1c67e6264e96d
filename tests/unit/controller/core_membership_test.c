/* core: whom the controller takes nodes for: their names, streams and devices, drains, and removal.
 */
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

static enum hd_status remove_node(struct sim *sim, const char *name)
{
    const struct hd_core_event event = {.kind = HD_CORE_REMOVE_NODE,
                                        .remove = {.node = name, .by = "ann"}};

    return sim_event(sim, &event);
}

static void assert_refused(struct sim *sim, const char *name, const char *why)
{
    assert_int_equal(remove_node(sim, name), HD_CONFLICT);
    if (!strstr(hd_err_message(), why))
        fail_msg("%s", hd_err_message());
}

/* A checkpoint on a disk that only n1 sees: the job waits for n1 although n2 is free, also after a
 * start of the controller. */
static void a_private_checkpoint_ties_the_job_to_its_node(void **state)
{
    for (int crash = 0; crash < 2; crash++) {
        struct sim *sim = sim_new(1, 2);
        struct hd_job_needs needs = sim_needs(2, 30);
        uint64_t job;

        sim->shared_disk = false;
        sim_run(sim, 2);
        job = sim_submitted(sim, &needs);
        sim_run(sim, 9);
        sim->nodes[0].cut = true;
        sim_run(sim, 185);
        if (crash) {
            sim_controller_crash(sim);
            sim_run(sim, 5);
        }
        assert_int_equal(sim_job(sim, job)->attempt_count, 1);
        sim_assert_reason(sim, job,
                          "attempt 1 ended (node_lost on n1); needs 2 cpu devices on one node; its "
                          "checkpoint of step 5 is on n1 only; n1 is lost, n2 has 2");
        assert_refused(sim, "n1", "job 1 waits for n1, because its newest checkpoint is on that");
        sim_reboot(sim, &sim->nodes[0]);
        sim->nodes[0].cut = false;
        sim_run_until_ended(sim, job, 100);
        assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
        assert_string_equal(sim_attempt(sim, job, 2)->plan.ranks[0].node_name, "n1");
        sim_free(sim);
    }
}

/* ---- identity ---------------------------------------------------------------------------------*/

static void a_taken_name_is_refused_until_its_owner_is_lost(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_device_record device = {.kind = HD_DEVICE_KIND_CPU, .threads = 1};
    const struct hd_core_event hello = {.kind = HD_CORE_HELLO,
                                        .hello = {.uuid = "another",
                                                  .name = "n1",
                                                  .boot_id = "b",
                                                  .stream = 1000,
                                                  .devices = &device,
                                                  .device_count = 1}};

    assert_int_equal(sim_event(sim, &hello), HD_EXISTS);
    assert_non_null(strstr(hd_err_message(), "--node-name"));
    sim->nodes[0].cut = true;
    sim_run(sim, 181);
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    assert_int_equal(hd_core_node_count(sim->core), 2);
    sim_free(sim);
}

static void a_node_with_work_or_a_connection_is_not_removed(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 40);
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n1", .reason = ""}};
    uint64_t job = sim_submitted(sim, &needs);

    sim_run(sim, 3);
    assert_int_equal(remove_node(sim, "n9"), HD_NOT_FOUND);
    assert_refused(sim, "n2", "n2 is connected; stop its heddled");
    assert_refused(sim, "n1", "n1 runs attempt 1 of job 1; heddle drain n1");
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    assert_refused(sim, "n1", "n1 runs attempt 1 of job 1");
    sim->nodes[0].cut = true;
    sim_run(sim, 20);
    assert_refused(sim, "n1",
                   "is unreachable and may still be training job 1; wait until it is "
                   "lost, at ");
    sim->nodes[0].cut = false;
    sim_run_until_ended(sim, job, 100);
    assert_int_equal(remove_node(sim, "n1"), HD_OK); /* it is drained */
    assert_int_equal(hd_core_node_count(sim->core), 1);
    assert_int_equal(remove_node(sim, "n1"), HD_NOT_FOUND);
    assert_int_equal(sim_count_events(sim, 0, "removed"), 1);
    sim_free(sim);
}

/* n1 is installed anew: its daemon has the old name and another uuid. */
static void the_name_of_a_removed_node_is_free(void **state)
{
    struct hd_device_record device = {.kind = HD_DEVICE_KIND_CPU, .threads = 1};
    struct hd_core_event hello = {.kind = HD_CORE_HELLO,
                                  .hello = {.uuid = "another",
                                            .name = "n1",
                                            .boot_id = "b",
                                            .stream = 1000,
                                            .devices = &device,
                                            .device_count = 1}};
    struct sim *sim = sim_joined(2);
    struct hd_node_view view;
    size_t index;

    sim->nodes[0].cut = true;
    sim_run(sim, 16);
    assert_int_equal(sim_event(sim, &hello), HD_EXISTS);
    assert_non_null(strstr(hd_err_message(), "which is unreachable; if that daemon is gone for "
                                             "good, because this machine was installed anew, run: "
                                             "heddle node rm n1;"));
    assert_int_equal(remove_node(sim, "n1"), HD_OK);
    /* the removed node is behind n2 although its name sorts first */
    assert_true(hd_core_node_find(sim->core, "n2", &index));
    assert_false(hd_core_node_find(sim->core, "n1", &index));
    sim_commit(sim);
    sim_controller_crash(sim);
    assert_int_equal(hd_core_node_count(sim->core), 1); /* it is forgotten on disk, too */
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_string_equal(view.record->name, "n1");
    assert_string_equal(view.record->uuid, "another");
    sim_free(sim);
}

/* The network breaks without an error: the connection stays open, but no message arrives. */
static void a_drained_node_that_is_silent_says_both(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n1", .reason = "disk"}};
    struct hd_text reason = {0};

    assert_int_equal(sim_event(sim, &drain), HD_OK);
    sim->nodes[0].cut = true;
    sim_run(sim, 20);
    hd_core_node_reason(sim->core, 0, sim->now, &reason);
    assert_non_null(strstr(reason.data, "is drained: disk; it has been unreachable for "));
    hd_text_free(&reason);
    sim_free(sim);
}

/* Its ranks may still be training, so the node must not be called drained. */
static void a_silent_node_that_has_a_job_is_not_called_drained(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 400);
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n1", .reason = "disk"}};
    struct hd_text reason = {0};

    (void)sim_submitted(sim, &needs);
    sim_run(sim, 9);
    sim->nodes[0].cut = true;
    sim_run(sim, 20);
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    hd_core_node_reason(sim->core, 0, sim->now, &reason);
    assert_non_null(strstr(reason.data, "is draining: disk; it has been unreachable for "));
    hd_text_free(&reason);
    sim_free(sim);
}

/* It was lost with a job, and is back with its ranks: it is not empty at any moment. */
static void a_drained_node_that_is_back_is_not_called_drained(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 400);
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n1", .reason = "disk"}};
    uint64_t job;

    job = sim_submitted(sim, &needs);
    sim_run(sim, 9);
    assert_int_equal(sim_event(sim, &drain), HD_OK);
    sim->nodes[0].cut = true;
    sim_run(sim, 190);
    assert_int_equal(sim_count_events(sim, 0, "lost"), 1);
    sim->nodes[0].cut = false;
    sim_run(sim, 10);
    assert_int_equal(sim_count_events(sim, job, "attempt_back"), 1);
    assert_int_equal(sim_count_events(sim, 0, "drained"), 0);
    assert_int_equal(sim_count_events(sim, 0, "draining"), 2);
    sim_free(sim);
}

/* A node that was removed too early is a new one, and takes jobs. */
static void a_removed_node_may_come_again(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    struct hd_core_event drain = {.kind = HD_CORE_DRAIN, .drain = {.node = "n1", .reason = "x"}};
    struct hd_node_view view;
    uint64_t job;

    assert_int_equal(sim_event(sim, &drain), HD_OK);
    assert_int_equal(remove_node(sim, "n1"), HD_OK);
    assert_int_equal(hd_core_node_count(sim->core), 0);
    sim_run(sim, 5);
    assert_int_equal(hd_core_node_count(sim->core), 1);
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_READY);
    assert_false(view.record->drain || view.record->retired || view.record->removed);
    job = sim_submitted(sim, &needs);
    sim_run_until_ended(sim, job, 60);
    sim_assert_undisturbed(sim, job, 12);
    sim_free(sim);
}

/* Checkpoints on the disk of n1 alone are deleted by n1; with n1 gone they count as deleted, so
 * that the ended job is not kept for them. */
static void what_only_a_removed_node_could_delete_is_gone(void **state)
{
    struct sim *sim = sim_new(1, 2);
    struct hd_job_needs needs = sim_needs(2, 30);
    uint64_t job;

    sim->shared_disk = false;
    needs.keep = 1;
    sim_run(sim, 2);
    job = sim_submitted(sim, &needs);
    while (!sim_count_checkpoints(sim, job, HD_CHECKPOINT_STATE_DELETING))
        sim_second(sim);
    sim->nodes[0].cut = true;
    sim_run(sim, 185);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_count_checkpoints(sim, job, HD_CHECKPOINT_STATE_DELETING), 1);
    assert_int_equal(remove_node(sim, "n1"), HD_OK);
    sim_commit(sim);
    assert_int_equal(sim_count_checkpoints(sim, job, HD_CHECKPOINT_STATE_DELETING), 0);
    sim_controller_crash(sim); /* nothing refers to what is not there */
    assert_int_equal(hd_core_check(sim->core), HD_OK);
    sim_free(sim);
}

static void a_second_stream_of_a_node_replaces_the_first(void **state)
{
    struct sim *sim = sim_joined(2);
    struct sim_node *node = &sim->nodes[0];
    const uint64_t old = node->stream;
    struct hd_core_event alive = {.kind = HD_CORE_ALIVE, .node = {.uuid = "uuid-1", .stream = old}};
    struct hd_core_event gone = {.kind = HD_CORE_DISCONNECTED,
                                 .node = {.uuid = "uuid-1", .stream = old}};
    struct hd_node_view view;

    node->stream = 0;
    sim_second(sim); /* says hello again */
    assert_int_not_equal(node->stream, old);
    assert_int_equal(sim_event(sim, &alive), HD_CONFLICT);
    assert_int_equal(sim_event(sim, &gone), HD_OK); /* late news of the old stream: ignored */
    hd_core_node_at(sim->core, 0, &view);
    assert_int_equal(view.record->state, HD_NODE_STATE_READY);
    alive.node.stream = node->stream;
    assert_int_equal(sim_event(sim, &alive), HD_OK);
    sim_free(sim);
}

/* Goal: a new hello replaces all that the daemon said before. */
static void a_new_hello_is_the_one_that_counts(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_device_record device = {.kind = HD_DEVICE_KIND_CPU, .name = "new", .threads = 9};
    struct hd_core_event hello = sim_hello(&device);
    struct hd_node_view view;

    hello.hello.build = "next";
    hello.hello.boot_id = "boot-9";
    hello.hello.facts.data_address = "10.9.9.9";
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_string_equal(view.record->build, "next");
    assert_string_equal(view.record->boot_id, "boot-9");
    assert_string_equal(view.facts->data_address, "10.9.9.9");
    assert_int_equal(view.record->device_count, 1);
    assert_int_equal(view.record->devices[0].threads, 9);
    assert_string_equal(view.record->devices[0].name, "new");
    sim_controller_crash(sim); /* and is remembered, but for the address */
    hd_core_node_at(sim->core, 0, &view);
    assert_string_equal(view.record->build, "next");
    assert_string_equal(view.record->boot_id, "boot-9");
    assert_int_equal(view.record->devices[0].threads, 9);
    sim_free(sim);
}

static void a_daemon_may_not_come_back_without_a_device_in_use(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 100);
    struct hd_device_record device = {.kind = HD_DEVICE_KIND_CPU, .threads = 1};
    struct hd_core_event hello = sim_hello(&device);

    (void)sim_submitted(sim, &needs);
    assert_int_equal(sim_event(sim, &hello), HD_CONFLICT);
    hello.hello.boot_id = "boot-9"; /* after a restart of the machine nothing runs there */
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    sim_free(sim);
}

/* A machine that was renamed, or a daemon that was given another name: the jobs there go on under
 * the old one, and the new one is taken when they have ended. */
static void a_node_keeps_its_name_while_jobs_run_there(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 12);
    struct hd_device_record devices[SIM_DEVICES] = {0};
    struct hd_core_event hello = sim_hello(devices);
    struct hd_node_view view;
    uint64_t job;

    hd_core_node_at(sim->core, 0, &view);
    memcpy(devices, view.record->devices, (size_t)view.record->device_count * sizeof devices[0]);
    hello.hello.device_count = view.record->device_count;
    hello.hello.name = "web2";
    job = sim_submitted(sim, &needs);
    sim_run(sim, 3);
    hello.hello.boot_id = sim->nodes[0].boot_id;
    hello.hello.stream = sim->nodes[0].stream; /* its answers go on over it */
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    hd_core_node_at(sim->core, 0, &view);
    assert_string_equal(view.record->name, "n1");
    assert_string_equal(view.asked_name, "web2");
    assert_int_equal(sim_count_events(sim, 0, "rename_waits"), 1);
    sim->nodes[0].changed = true;
    sim_run_until_ended(sim, job, 60);
    assert_int_equal(sim_job(sim, job)->attempt_count, 1);
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    sim->nodes[0].changed = true;
    sim_run(sim, 3);
    hd_core_node_at(sim->core, 0, &view);
    assert_string_equal(view.record->name, "web2");
    assert_string_equal(view.asked_name, "");
    assert_int_equal(sim_count_events(sim, 0, "renamed"), 1);
    sim_free(sim);
}

/* The database was restored from a backup in which the job waited; the node has its third attempt.
 * The numbers up to that one are taken, so that no folder is used twice, and the job goes on from
 * what that attempt has left on the disk: a node lists it only when the attempt has ended. The first
 * search of the disk fails and the controller starts anew: the folder is searched again. */
static void an_attempt_that_began_after_a_backup_leaves_its_checkpoints(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 60);
    struct hd_observed seen = {
        .attempt = 3, .state = HD_ATTEMPT_STATE_RUNNING, .end = {.rank = -1}};
    struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                     .observed = {.jobs_dir_visible = true,
                                                  .jobs_dir_problem = "",
                                                  .attempts = &seen,
                                                  .attempt_count = 1}};

    sim->nodes[0].obeyed_before = true;
    sim_daemon_restart(sim, &sim->nodes[0]);
    sim->nodes[0].full = sim->nodes[0].changed = true; /* so that the job waits, as in the backup */
    sim_run(sim, 3);
    seen.job = sim_submitted(sim, &needs);
    assert_int_equal(seen.job, 1);
    sim_move_checkpoint(sim, 1, 3, 40, true);
    sim_run(sim, 3);
    assert_int_equal(sim_job(sim, 1)->attempt_count, 0);
    observed.observed.uuid = sim->nodes[0].uuid;
    observed.observed.stream = sim->nodes[0].stream;
    sim->unlistable = "Stale file handle";
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    sim_run(sim, 1);
    assert_int_equal(sim_count_events(sim, 1, "search_failed"), 1);
    assert_int_equal(sim_count_checkpoints(sim, 1, HD_CHECKPOINT_STATE_PRESENT), 0);
    sim->unlistable = NULL;
    assert_int_equal(sim_job(sim, 1)->attempt_count, 3);
    assert_int_equal(sim_count_events(sim, 1, "attempt_unknown"), 1);
    assert_int_equal(sim_count_events(sim, 1, "attempt_refused"), 0);
    sim_controller_crash(sim); /* and it can be loaded again */
    sim_run(sim, 5);
    assert_int_equal(sim_job(sim, 1)->attempt_count, 3); /* the next one is the fourth */
    assert_int_equal(sim_count_checkpoints(sim, 1, HD_CHECKPOINT_STATE_PRESENT), 1);
    assert_int_equal(sim_count_checkpoints(sim, 1, HD_CHECKPOINT_STATE_DELETING), 0);
    sim->nodes[0].full = false;
    sim->nodes[0].changed = true;
    sim_run_until_ended(sim, 1, 100);
    assert_int_equal(sim_attempt(sim, 1, 4)->base_step, 40);
    sim_assert_undisturbed(sim, 1, 60);
    sim_free(sim);
}

/* No database was restored, so that the job cannot have had an attempt that is not known: its
 * number is not taken, and one event for the stream says that the node has it. */
static void an_attempt_that_was_never_started_takes_no_number(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 60);
    struct hd_device_record devices[SIM_DEVICES] = {{.kind = HD_DEVICE_KIND_CPU, .threads = 1},
                                                    {.kind = HD_DEVICE_KIND_CPU, .threads = 1}};
    struct hd_core_event hello = sim_hello(devices);
    struct hd_observed seen = {
        .job = 1, .attempt = 3, .state = HD_ATTEMPT_STATE_RUNNING, .end = {.rank = -1}};
    struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                     .observed = {.uuid = "uuid-1",
                                                  .stream = 1000, /* of the hello */
                                                  .jobs_dir_visible = true,
                                                  .jobs_dir_problem = "",
                                                  .attempts = &seen,
                                                  .attempt_count = 1}};

    devices[1].index = 1;
    hello.hello.device_count = SIM_DEVICES;
    sim->nodes[0].full = sim->nodes[0].changed = true;
    sim_run(sim, 3);
    assert_int_equal(sim_submitted(sim, &needs), 1);
    assert_int_equal(sim_event(sim, &hello), HD_OK);
    observed.observed.refuses_attempts = "takes no new jobs";
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_int_equal(sim_job(sim, 1)->attempt_count, 0);
    assert_int_equal(sim_count_events(sim, 1, "attempt_unknown"), 0);
    assert_int_equal(sim_count_events(sim, 1, "attempt_refused"), 1);
    sim_free(sim);
}

/* The share was put back to a snapshot: of an attempt that has ended its node tells a checkpoint
 * that was deleted long ago. It is not deleted again, as it may be all that is left; one that came
 * after those that are known, when the next attempt had begun, is. */
static void a_checkpoint_that_is_there_again_is_not_deleted(void **state)
{
    struct sim *sim = sim_joined(1);
    struct hd_job_needs needs = sim_needs(2, 60);
    struct hd_checkpoint_record checkpoint = {.job = 1,
                                              .attempt = 1,
                                              .step = 2,
                                              .path = "/jobs/1/attempt-1/checkpoints/step-2",
                                              .hash = "abc",
                                              .shared = true};
    struct hd_observed seen[2] = {
        {.job = 1,
         .attempt = 1,
         .state = HD_ATTEMPT_STATE_ENDED,
         .end = {.rank = -1, .cause = HD_END_CAUSE_USER},
         .checkpoints = &checkpoint,
         .checkpoint_count = 1},
        {.job = 1, .attempt = 2, .state = HD_ATTEMPT_STATE_RUNNING, .end = {.rank = -1}}};
    struct hd_core_event observed = {.kind = HD_CORE_OBSERVED,
                                     .observed = {.jobs_dir_visible = true,
                                                  .jobs_dir_problem = "",
                                                  .attempts = seen,
                                                  .attempt_count = 2}};

    needs.keep = 3;
    assert_int_equal(sim_submitted(sim, &needs), 1);
    sim_run(sim, 15);
    assert_int_equal(sim_requeue(sim, 1), HD_OK);
    while (sim_job(sim, 1)->attempt_count < 2 || sim_job(sim, 1)->state != HD_JOB_STATE_RUNNING)
        sim_second(sim);
    assert_true(sim_count_checkpoints(sim, 1, HD_CHECKPOINT_STATE_PRESENT) > 0);
    while (sim_count_checkpoints(sim, 1, HD_CHECKPOINT_STATE_DELETING))
        sim_second(sim);
    observed.observed.uuid = sim->nodes[0].uuid;
    observed.observed.stream = sim->nodes[0].stream;
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    assert_int_equal(sim_count_checkpoints(sim, 1, HD_CHECKPOINT_STATE_DELETING), 0);
    checkpoint.step = 1000;
    assert_int_equal(sim_event(sim, &observed), HD_OK);
    sim_commit(sim);
    assert_int_equal(sim_count_checkpoints(sim, 1, HD_CHECKPOINT_STATE_DELETING), 1);
    sim_free(sim);
}

static void a_repeated_request_is_the_same_job(void **state)
{
    struct sim *sim = sim_joined(2);
    struct hd_job_needs needs = sim_needs(2, 3), other = sim_needs(1, 9);
    uint64_t first, again;
    bool repeated;

    assert_int_equal(sim_submit_as(sim, &needs, "r-1", &first, &repeated), HD_OK);
    assert_false(repeated);
    assert_int_equal(sim_submit_as(sim, &needs, "r-1", &again, &repeated), HD_OK);
    assert_true(repeated);
    assert_int_equal(again, first);
    assert_int_equal(sim_submit_as(sim, &other, "r-1", &again, &repeated), HD_EXISTS);
    assert_non_null(strstr(hd_err_message(), "was used for job 1, with another job file"));
    sim_run_until_ended(sim, first, 60);
    sim_controller_crash(sim);
    assert_int_equal(sim_submit_as(sim, &other, "r-1", &again, &repeated), HD_EXISTS);
    assert_int_equal(sim_submit_as(sim, &needs, "r-1", &again, &repeated), HD_OK);
    assert_true(repeated);
    assert_int_equal(again, first);
    assert_int_equal(hd_core_live_jobs(sim->core), 0);
    sim_free(sim);
}

RUN_CASES()
