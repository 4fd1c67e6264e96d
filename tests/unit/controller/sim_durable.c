#include "sim_internal.h"
#include "tests/program/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

/* ---- what is durable --------------------------------------------------------------------------*/

enum { DB_ROWS = 20000 };

struct sim_db {
    struct hd_arena arena;
    struct hd_job_record jobs[SIM_JOBS];
    int moves[SIM_JOBS], moves_seen[SIM_JOBS]; /* events of the expected start's moves */
    uint64_t sequences[SIM_JOBS];              /* [0]: the cluster's */
    struct hd_attempt_record attempts[DB_ROWS];
    struct hd_node_record nodes[8];
    struct hd_queue_record queues[8];
    struct hd_checkpoint_record checkpoints[DB_ROWS];
    struct hd_position_record positions[DB_ROWS];
    struct {
        uint64_t job;
        char kind[32];
    } events[DB_ROWS];
    struct {
        uint64_t job;
        int32_t attempt;
        int64_t step, time_ms;
    } steps[DB_ROWS];
    size_t queue_count, attempt_count, node_count, checkpoint_count, position_count, event_count,
        step_count;
    uint64_t last_job;
    const int64_t *now_ms; /* the simulated wall clock */
};

/* I9: entries of a history are numbered without a gap. */
static void expect_next(struct sim_db *db, uint64_t job, uint64_t sequence)
{
    assert_true(job < SIM_JOBS);
    assert_int_equal(sequence, db->sequences[job] + 1);
    db->sequences[job] = sequence;
}

/* An expected start is kept, or moved with an event that says why. Up to a minute is no movement;
 * another minute is for batches that become durable late. */
static void expect_promise(struct sim_db *db, const struct hd_job_record *old,
                           const struct hd_job_record *new)
{
    if (old->state != HD_JOB_STATE_QUEUED || !old->planned_start_ms ||
        old->planned_start_ms == new->planned_start_ms)
        return;
    if (new->state == HD_JOB_STATE_QUEUED) {
        assert_true(db->moves[new->job] > db->moves_seen[new->job]);
        db->moves_seen[new->job] = db->moves[new->job];
    } else if (new->state == HD_JOB_STATE_RUNNING) {
        assert_true(*db->now_ms <= old->planned_start_ms + 2 * 60 * 1000);
    }
}

static void db_put_job(struct sim_db *db, bool is_new, const struct hd_job_record *job)
{
    struct hd_job_record *row = &db->jobs[job->job], old = *row;

    assert_true(job->job < SIM_JOBS);
    assert_int_equal(is_new, old.job == 0);
    if (old.job) /* I8 */
        assert_true(old.state <= HD_JOB_STATE_STOPPING || old.state == job->state ||
                    job->resumed_attempt == old.attempt_count);
    if (old.job)
        expect_promise(db, &old, job);
    *row = hd_record_copy_job(&db->arena, job);
    if (!is_new && !job->spec_changed) {
        row->spec = old.spec;
        row->spec_bytes = old.spec_bytes;
    }
    if (job->job > db->last_job)
        db->last_job = job->job;
    for (size_t i = 0; job->removal && i < db->checkpoint_count; i++)
        if (db->checkpoints[i].job == job->job)
            db->checkpoints[i].state = HD_CHECKPOINT_STATE_DELETED;
}

static void db_put_attempt(struct sim_db *db, const struct hd_attempt_record *attempt)
{
    size_t i = 0;

    while (i < db->attempt_count &&
           (db->attempts[i].job != attempt->job || db->attempts[i].attempt != attempt->attempt))
        i++;
    assert_true(i < DB_ROWS);
    if (i == db->attempt_count)
        db->attempt_count++;
    else /* I8, but for an attempt that goes on because its lost node is back */
        assert_true(db->attempts[i].state != HD_ATTEMPT_STATE_ENDED ||
                    (db->attempts[i].end.cause == HD_END_CAUSE_NODE_LOST &&
                     attempt->attempt + 1 >= db->jobs[attempt->job].attempt_count));
    db->attempts[i] = hd_record_copy_attempt(&db->arena, attempt);
}

static void db_put_node(struct sim_db *db, const struct hd_node_record *node)
{
    size_t i = 0;

    while (i < db->node_count && strcmp(db->nodes[i].uuid, node->uuid) != 0)
        i++;
    assert_true(i < 8);
    if (node->removed) {
        db->nodes[i] = db->nodes[db->node_count -= i < db->node_count];
        return;
    }
    db->node_count += i == db->node_count;
    db->nodes[i] = hd_record_copy_node(&db->arena, node);
}

static void db_put_queue(struct sim_db *db, const struct hd_queue_record *queue)
{
    size_t i = 0;

    while (i < db->queue_count && strcmp(db->queues[i].name, queue->name) != 0)
        i++;
    assert_true(i < 8);
    if (queue->removed) {
        assert_true(i < db->queue_count);
        db->queues[i] = db->queues[--db->queue_count];
        return;
    }
    db->queue_count += i == db->queue_count;
    db->queues[i] = *queue;
    db->queues[i].name = hd_arena_strdup(&db->arena, queue->name);
}

static void db_put_checkpoint(struct sim_db *db, const struct hd_checkpoint_record *checkpoint)
{
    size_t i = 0;

    while (i < db->checkpoint_count && (db->checkpoints[i].job != checkpoint->job ||
                                        db->checkpoints[i].attempt != checkpoint->attempt ||
                                        db->checkpoints[i].step != checkpoint->step))
        i++;
    assert_true(i < DB_ROWS);
    /* one that was deleted, and is reported once more by a node that was away, is a new entry */
    if (i == db->checkpoint_count || db->checkpoints[i].sequence != checkpoint->sequence)
        expect_next(db, checkpoint->job, checkpoint->sequence);
    db->checkpoint_count += i == db->checkpoint_count;
    db->checkpoints[i] = *checkpoint;
    for (size_t f = 0; f < hd_table_checkpoints.count; f++) {
        const char **text =
            (void *)((char *)&db->checkpoints[i] + hd_table_checkpoints.fields[f].offset);

        if (hd_table_checkpoints.fields[f].type == HD_FIELD_TEXT)
            *text = hd_arena_strdup(&db->arena, *text ? *text : "");
    }
}

static void db_put_position(struct sim_db *db, const struct hd_position_record *position)
{
    size_t i = 0;

    while (i < db->position_count && (db->positions[i].job != position->job ||
                                      db->positions[i].attempt != position->attempt ||
                                      db->positions[i].rank != position->rank))
        i++;
    assert_true(i < DB_ROWS);
    db->position_count += i == db->position_count;
    db->positions[i] = *position;
}

void sim_db_put(struct sim_db *db, const struct hd_batch_op *op)
{
    switch (op->kind) {
    case HD_OP_JOB_NEW:
    case HD_OP_JOB:
        db_put_job(db, op->kind == HD_OP_JOB_NEW, &op->job);
        break;
    case HD_OP_ATTEMPT:
        db_put_attempt(db, &op->attempt);
        break;
    case HD_OP_NODE:
        db_put_node(db, &op->node);
        break;
    case HD_OP_QUEUE:
        db_put_queue(db, &op->queue);
        break;
    case HD_OP_CHECKPOINT:
        db_put_checkpoint(db, &op->checkpoint);
        break;
    case HD_OP_EVENT:
        expect_next(db, op->event.job, op->event.sequence);
        db->moves[op->event.job] += strcmp(op->event.kind, "start_moved") == 0;
        assert_true(db->event_count < DB_ROWS);
        db->events[db->event_count].job = op->event.job;
        (void)snprintf(db->events[db->event_count++].kind, 32, "%s", op->event.kind);
        break;
    case HD_OP_STEP:
        expect_next(db, op->step.job, op->step.sequence);
        assert_true(db->step_count < DB_ROWS);
        db->steps[db->step_count].job = op->step.job;
        db->steps[db->step_count].attempt = op->step.attempt;
        db->steps[db->step_count].time_ms = op->step.time_ms;
        db->steps[db->step_count++].step = op->step.step;
        break;
    case HD_OP_VALIDATION:
        expect_next(db, op->validation.job, op->validation.sequence);
        break;
    case HD_OP_POSITION:
        db_put_position(db, &op->position);
        break;
    case HD_OP_PROBE: /* no node of the simulation answers */
        break;
    case HD_OP_CREDENTIAL:
    case HD_OP_AUDIT:
    case HD_OP_PRUNE:
    case HD_OP_META:
        fail_msg("the core does not write this");
    }
}

static bool db_is_live(const struct sim_db *db, uint64_t job)
{
    if (!db->jobs[job].job)
        return false;
    if (db->jobs[job].removal)
        return db->jobs[job].removal == HD_REMOVAL_BEGUN;
    if (db->jobs[job].state <= HD_JOB_STATE_STOPPING)
        return true;
    for (size_t i = 0; i < db->checkpoint_count; i++) {
        if (db->checkpoints[i].job == job &&
            db->checkpoints[i].state == HD_CHECKPOINT_STATE_DELETING)
            return true;
    }
    return false;
}

static void restore_job(struct sim *sim, uint64_t job)
{
    const struct sim_db *db = sim->db;
    struct hd_job_needs needs;

    memcpy(&needs, db->jobs[job].spec,
           sizeof needs); /* the simulation stores `needs` as the spec */
    needs.name = "restored";
    assert_int_equal(hd_core_restore_job(sim->core, &db->jobs[job], &needs, db->sequences[job]), 0);
    for (int32_t k = 1; k <= db->jobs[job].attempt_count; k++)
        assert_int_equal(hd_core_restore_attempt(sim->core, sim_attempt(sim, job, k)), HD_OK);
    for (size_t i = 0; i < db->checkpoint_count; i++) {
        if (db->checkpoints[i].job == job &&
            db->checkpoints[i].state != HD_CHECKPOINT_STATE_DELETED)
            assert_int_equal(hd_core_restore_checkpoint(sim->core, &db->checkpoints[i]), HD_OK);
    }
    for (size_t i = 0; i < db->position_count; i++) {
        if (db->positions[i].job == job)
            assert_int_equal(hd_core_restore_position(sim->core, &db->positions[i]), HD_OK);
    }
    for (size_t i = db->step_count; i > 0; i--) {
        if (db->steps[i - 1].job != job)
            continue;
        assert_int_equal(
            hd_core_restore_step(sim->core,
                                 &(struct hd_step_record){.job = job,
                                                          .attempt = db->steps[i - 1].attempt,
                                                          .step = db->steps[i - 1].step,
                                                          .time_ms = db->steps[i - 1].time_ms}),
            HD_OK);
        break;
    }
}

void sim_restore(struct sim *sim)
{
    const struct sim_db *db = sim->db;

    for (size_t i = 0; i < db->node_count; i++)
        assert_int_equal(hd_core_restore_node(sim->core, &db->nodes[i]), HD_OK);
    for (size_t i = 0; i < db->queue_count; i++)
        assert_int_equal(hd_core_restore_queue(sim->core, &db->queues[i]), HD_OK);
    for (uint64_t job = 1; job < SIM_JOBS; job++) {
        if (db->jobs[job].job)
            assert_int_equal(
                hd_core_restore_request(sim->core, db->jobs[job].request_id, db->jobs[job].owner,
                                        job, db->jobs[job].request_hash, db->jobs[job].state),
                HD_OK);
    }
    for (uint64_t job = 1; job < SIM_JOBS; job++) {
        if (db_is_live(db, job))
            restore_job(sim, job);
    }
    assert_int_equal(hd_core_restored(sim->core, db->last_job, db->sequences[0], sim->now), HD_OK);
}

/* ---- the disk that all nodes share ------------------------------------------------------------*/

struct sim_disk {
    struct {
        char path[64];
        uint64_t job, value;
        int64_t step;
        int32_t attempt;
        bool there;
    } dirs[DB_ROWS];
    size_t count;
};

void sim_path_of(char ret_path[64], uint64_t job, int32_t attempt, int64_t step)
{
    (void)snprintf(ret_path, 64, "/jobs/%llu/attempt-%d/checkpoints/step-%lld",
                   (unsigned long long)job, attempt, (long long)step);
}

void sim_disk_write(struct sim *sim, const struct sim_attempt *a)
{
    struct sim_disk *disk = sim->disk;

    assert_true(disk->count < DB_ROWS);
    sim_path_of(disk->dirs[disk->count].path, a->job, a->attempt, a->step);
    disk->dirs[disk->count].job = a->job;
    disk->dirs[disk->count].attempt = a->attempt;
    disk->dirs[disk->count].step = a->step;
    disk->dirs[disk->count].value = a->value;
    disk->dirs[disk->count++].there = true;
}

bool sim_disk_read(const struct sim *sim, const char *path, uint64_t *ret_value)
{
    for (size_t i = 0; i < sim->disk->count; i++) {
        if (sim->disk->dirs[i].there && strcmp(sim->disk->dirs[i].path, path) == 0) {
            *ret_value = sim->disk->dirs[i].value;
            return true;
        }
    }
    return false;
}

void sim_disk_hash(const struct sim *sim, const char *path, char ret_hash[24])
{
    ret_hash[0] = '\0';
    for (size_t i = 0; i < sim->disk->count; i++) {
        if (strcmp(sim->disk->dirs[i].path, path) == 0)
            (void)snprintf(ret_hash, 24, "%016llx", (unsigned long long)sim->disk->dirs[i].value);
    }
}

size_t sim_disk_list(const struct sim *sim, const struct hd_core_search *asked,
                     struct hd_checkpoint_record ret_list[HD_CTL_CHECKPOINTS_MAX])
{
    static char hashes[HD_CTL_CHECKPOINTS_MAX][24];
    const struct sim_disk *disk = sim->disk;
    size_t count = 0;

    for (size_t i = 0; i < disk->count && count < HD_CTL_CHECKPOINTS_MAX; i++) {
        if (!disk->dirs[i].there || disk->dirs[i].job != asked->job ||
            (disk->dirs[i].attempt != asked->attempt && !asked->whole))
            continue;
        sim_disk_hash(sim, disk->dirs[i].path, hashes[count]);
        ret_list[count] = (struct hd_checkpoint_record){.attempt = disk->dirs[i].attempt,
                                                        .step = disk->dirs[i].step,
                                                        .path = disk->dirs[i].path,
                                                        .hash = hashes[count]};
        count++;
    }
    return count;
}

void sim_move_checkpoint(struct sim *sim, uint64_t job, int32_t attempt, int64_t step, bool there)
{
    const struct sim_attempt writer = {
        .job = job, .attempt = attempt, .step = step, .value = sim_undisturbed_value(job, step)};
    bool known = false;

    sim->loses_checkpoints = true;
    for (size_t i = 0; i < sim->disk->count; i++) {
        if (sim->disk->dirs[i].job != job || sim->disk->dirs[i].attempt != attempt ||
            sim->disk->dirs[i].step != step)
            continue;
        sim->disk->dirs[i].there = there;
        known = true;
    }
    if (there && !known)
        sim_disk_write(sim, &writer);
}

void sim_disk_delete(struct sim *sim, const char *path)
{
    for (size_t i = 0; i < sim->disk->count; i++) {
        if (strcmp(sim->disk->dirs[i].path, path) == 0)
            sim->disk->dirs[i].there = false;
    }
}

void sim_disk_delete_job(struct sim *sim, uint64_t job)
{
    for (size_t i = 0; i < sim->disk->count; i++)
        sim->disk->dirs[i].there &= sim->disk->dirs[i].job != job;
}

size_t sim_count_on_disk(const struct sim *sim, uint64_t job)
{
    size_t count = 0;

    for (size_t i = 0; i < sim->disk->count; i++)
        count += sim->disk->dirs[i].there && sim->disk->dirs[i].job == job;
    return count;
}

uint64_t sim_train(uint64_t value, int64_t step)
{
    return hd_random_u64(value, (uint64_t)step);
}

uint64_t sim_undisturbed_value(uint64_t job, int64_t steps)
{
    uint64_t value = job;

    for (int64_t step = 1; step <= steps; step++)
        value = sim_train(value, step);
    return value;
}

uint64_t sim_final_value(const struct sim *sim, uint64_t job)
{
    uint64_t value = 0;
    int64_t step = -1;

    for (size_t i = 0; i < sim->disk->count; i++) {
        if (sim->disk->dirs[i].there && sim->disk->dirs[i].job == job &&
            sim->disk->dirs[i].step > step) {
            step = sim->disk->dirs[i].step;
            value = sim->disk->dirs[i].value;
        }
    }
    return value;
}

void sim_durable_init(struct sim *sim)
{
    sim->db = calloc(1, sizeof *sim->db);
    sim->disk = calloc(1, sizeof *sim->disk);
    assert_non_null(sim->db);
    assert_non_null(sim->disk);
    sim->db->now_ms = &sim->now.wall_ms;
}

void sim_durable_done(struct sim *sim)
{
    hd_arena_done(&sim->db->arena);
    free(sim->db);
    free(sim->disk);
}

/* ---- looking ----------------------------------------------------------------------------------*/

/* RESUME or REMOVE, with all that is durable of an ended job. */
static enum hd_status recall(struct sim *sim, enum hd_core_event_kind kind, uint64_t job,
                             const struct hd_job_needs *needs, int64_t checkpoint_step)
{
    const struct sim_db *db = sim->db;
    struct hd_core_event event = {.kind = kind,
                                  .resume = {.job = sim_job(sim, job),
                                             .sequence = db->sequences[job],
                                             .needs = *needs,
                                             .spec = needs,
                                             .spec_bytes = sizeof *needs,
                                             .checkpoint_step = checkpoint_step,
                                             .by = "ann"}};
    struct hd_attempt_record *attempts = calloc(db->attempt_count + 1, sizeof *attempts);
    struct hd_checkpoint_record *checkpoints =
        calloc(db->checkpoint_count + 1, sizeof *checkpoints);
    enum hd_status st;

    assert_true(attempts && checkpoints);
    for (int32_t k = 1; k <= db->jobs[job].attempt_count; k++)
        attempts[event.resume.attempt_count++] = *sim_attempt(sim, job, k);
    for (size_t i = 0; i < db->checkpoint_count; i++)
        if (db->checkpoints[i].job == job &&
            db->checkpoints[i].state == HD_CHECKPOINT_STATE_PRESENT)
            checkpoints[event.resume.checkpoint_count++] = db->checkpoints[i];
    event.resume.attempts = attempts;
    event.resume.checkpoints = checkpoints;
    st = sim_event(sim, &event);
    free(attempts);
    free(checkpoints);
    return st;
}

enum hd_status sim_resume(struct sim *sim, uint64_t job, const struct hd_job_needs *needs)
{
    return recall(sim, HD_CORE_RESUME, job, needs, 0);
}

enum hd_status sim_remove(struct sim *sim, uint64_t job, const struct hd_job_needs *needs)
{
    return recall(sim, HD_CORE_REMOVE, job, needs, 0);
}

enum hd_status sim_remove_checkpoint(struct sim *sim, uint64_t job,
                                     const struct hd_job_needs *needs, int64_t step)
{
    return recall(sim, HD_CORE_REMOVE, job, needs, step);
}

const struct hd_job_record *sim_job(const struct sim *sim, uint64_t job)
{
    assert_true(job < SIM_JOBS && sim->db->jobs[job].job == job);
    return &sim->db->jobs[job];
}

const struct hd_attempt_record *sim_attempt(const struct sim *sim, uint64_t job, int32_t attempt)
{
    for (size_t i = 0; i < sim->db->attempt_count; i++) {
        if (sim->db->attempts[i].job == job && sim->db->attempts[i].attempt == attempt)
            return &sim->db->attempts[i];
    }
    fail_msg("attempt %d of job %llu is not stored", attempt, (unsigned long long)job);
    return NULL;
}

void sim_assert_places(const struct sim *sim, uint64_t job, int32_t attempt, const char *expected)
{
    const struct hd_plan_record *plan = &sim_attempt(sim, job, attempt)->plan;
    struct hd_text text = {0};

    hd_text_add(&text, "%s", hd_job_device_words[plan->layout.device]);
    for (int32_t r = 0; r < plan->rank_count; r++)
        hd_text_add(&text, " %s:%d", plan->ranks[r].node_name, plan->ranks[r].device);
    assert_non_null(text.data);
    assert_string_equal(text.data, expected);
    hd_text_free(&text);
}

void sim_assert_undisturbed(const struct sim *sim, uint64_t job, int64_t steps)
{
    assert_int_equal(sim_job(sim, job)->state, HD_JOB_STATE_SUCCEEDED);
    assert_int_equal(sim_final_value(sim, job), sim_undisturbed_value(job, steps));
}

size_t sim_count_events(const struct sim *sim, uint64_t job, const char *kind)
{
    size_t count = 0;

    for (size_t i = 0; i < sim->db->event_count; i++)
        count += sim->db->events[i].job == job && strcmp(sim->db->events[i].kind, kind) == 0;
    return count;
}

size_t sim_count_steps(const struct sim *sim, uint64_t job, int64_t step)
{
    size_t count = 0;

    for (size_t i = 0; i < sim->db->step_count; i++)
        count += sim->db->steps[i].job == job && sim->db->steps[i].step == step;
    return count;
}

size_t sim_count_checkpoints(const struct sim *sim, uint64_t job, enum hd_checkpoint_state state)
{
    size_t count = 0;

    for (size_t i = 0; i < sim->db->checkpoint_count; i++)
        count += sim->db->checkpoints[i].job == job && sim->db->checkpoints[i].state == state;
    return count;
}
