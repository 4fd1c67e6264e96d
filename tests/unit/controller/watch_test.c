/* Watchers miss nothing: services/watch.c alone, beside a store whose answers tell what was true
 * when they were asked for, and arrive as late as the test wants, and a client that reads as slowly
 * as the test wants.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "controller/services/control.h"
#include "tests/program/test.h"

enum { JOB = 7, ENTRIES_MAX = 700, QUEUE_MAX = 5 };

/* ---- the world --------------------------------------------------------------------------------*/

struct hd_rpc_call {
    void *user;
    int queued;     /* messages that the client has not read */
    bool drain_due; /* a write was refused since the queue was last empty */
    bool finished;
    uint64_t last_entry; /* sequence of the newest entry sent; 0: none */
    bool sent_end, out_of_order;
};

static struct world {
    struct controller c;
    struct hd_rpc_call call;
    uint64_t entries; /* of the job's history, numbered from 1 */
    enum hd_job_state state;
    struct hd_query *asked; /* the query whose answer is held back */
    struct {
        uint64_t entries;
        enum hd_job_state state;
    } then; /* when it was asked */
} world;

struct hd_query *hd_query_new(enum hd_query_kind kind)
{
    struct hd_query *query = calloc(1, sizeof *query);

    if (query) {
        query->kind = kind;
        hd_arena_init(&query->arena, 0);
    }
    return query;
}

void hd_query_free(struct hd_query *query)
{
    free(query->jobs);
    free(query->entries);
    hd_arena_done(&query->arena);
    free(query);
}

void hd_store_query(struct hd_job_store *store, struct hd_query *query)
{
    assert_null(world.asked); /* a watcher has one query at a time */
    world.asked = query;
    world.then.entries = world.entries;
    world.then.state = world.state;
}

/* The answer arrives, as of the time at which it was asked for. */
static void answer(void)
{
    struct hd_query *query = world.asked;
    const uint64_t left = world.then.entries > query->after ? world.then.entries - query->after : 0;

    world.asked = NULL;
    if (query->kind == HD_QUERY_JOB) {
        query->jobs = calloc(1, sizeof *query->jobs);
        query->jobs[0].record = (struct hd_job_record){
            .job = JOB, .state = world.then.state, .reason = "", .owner = "ann"};
        query->jobs[0].sequence = world.then.entries;
        query->job_count = 1;
    } else {
        query->entry_count = left < (uint64_t)query->limit ? left : (size_t)query->limit;
        query->more = left > query->entry_count;
        query->entries = calloc(query->entry_count + 1, sizeof *query->entries);
        for (size_t i = 0; i < query->entry_count; i++) {
            query->entries[i].kind = HD_OP_STEP;
            query->entries[i].sequence = query->after + 1 + i;
        }
    }
    query->done(query, HD_OK);
}

/* The client reads all that is queued. */
static void read_all(void)
{
    world.call.queued = 0;
    if (world.call.drain_due) {
        world.call.drain_due = false;
        watch_drain(&world.call);
    }
}

static void append_entry(void)
{
    world.entries++;
    watch_announce(&world.c, JOB);
}

static void end_job(void)
{
    world.state = HD_JOB_STATE_SUCCEEDED;
    watch_announce(&world.c, JOB);
}

/* ---- what watch.c calls -----------------------------------------------------------------------*/

enum hd_status hd_rpc_call_write(struct hd_rpc_call *call, const ProtobufCMessage *message)
{
    const Heddle__V1__WatchJobResponse *m = (const void *)message;

    if (call->queued == QUEUE_MAX) {
        call->drain_due = true;
        return HD_LIMIT;
    }
    call->queued++;
    if (m->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP) {
        call->out_of_order |= m->sequence != call->last_entry + 1;
        call->last_entry = m->sequence;
    }
    call->sent_end |= m->body_case == HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END;
    return HD_OK;
}

void hd_rpc_call_finish(struct hd_rpc_call *call)
{
    call->finished = true;
}

void hd_rpc_call_fail(struct hd_rpc_call *call, enum hd_status st)
{
    fail_msg("the call failed with %d: %s", (int)st, hd_err_message());
}

void *hd_rpc_call_user(const struct hd_rpc_call *call)
{
    return call->user ? call->user : &world.c;
}

void hd_rpc_call_set_user(struct hd_rpc_call *call, void *user)
{
    call->user = user;
}

const struct hd_rpc_principal *hd_rpc_call_principal(const struct hd_rpc_call *call)
{
    static const struct hd_rpc_principal ann = {.name = "ann"};

    return &ann;
}

void control_see(const struct controller *c, const struct hd_rpc_call *call,
                 enum hd_visibility needed, struct hd_query *query)
{
}

bool credential_is_valid(const struct controller *c, const struct hd_rpc_principal *caller)
{
    return true;
}

struct hd_now controller_now(void)
{
    return (struct hd_now){0};
}

void hd_core_explain(const struct hd_core *core, uint64_t job, struct hd_now now,
                     struct hd_text *ret_text)
{
}

size_t hd_record_fit(const char *text, size_t most)
{
    return strnlen(text, most);
}

const char *convert_stale(const struct controller *c)
{
    return "";
}

struct veil guard_veil(const struct controller *c, const struct hd_rpc_call *call)
{
    return (struct veil){.jobs_dir = ""};
}

void veil_text(const struct veil *veil, struct hd_text *text)
{
}

const char *veil_copy(const struct veil *veil, struct hd_arena *arena, const char *text)
{
    return text;
}

Heddle__V1__JobStatus *convert_job(struct hd_arena *arena, const struct controller *c,
                                   const struct veil *veil, const struct hd_job_row *row)
{
    static Heddle__V1__JobStatus status;

    heddle__v1__job_status__init(&status);
    status.state = (Heddle__V1__JobState)row->record.state;
    return &status;
}

Heddle__V1__StepReport *convert_step(struct hd_arena *arena, const struct hd_step_record *step)
{
    static Heddle__V1__StepReport report;

    heddle__v1__step_report__init(&report);
    return &report;
}

/* Never called: the history here has steps alone. */
Heddle__V1__ValidationReport *convert_validation(struct hd_arena *arena,
                                                 const struct hd_validation_record *validation)
{
    return NULL;
}

Heddle__V1__CheckpointInfo *convert_checkpoint(struct hd_arena *arena,
                                               const struct hd_checkpoint_record *checkpoint)
{
    return NULL;
}

Heddle__V1__Event *convert_event(struct hd_arena *arena, const struct veil *veil,
                                 const struct hd_event_record *event)
{
    return NULL;
}

/* ---- the tests --------------------------------------------------------------------------------*/

static void begin(void)
{
    Heddle__V1__WatchJobRequest request = HEDDLE__V1__WATCH_JOB_REQUEST__INIT;

    memset(&world, 0, sizeof world);
    world.state = HD_JOB_STATE_RUNNING;
    request.job = JOB;
    watch_open(&world.call, &request.base);
}

static void end(void)
{
    assert_null(world.asked);
    watch_done(&world.call, HD_OK, "");
    assert_null(world.c.watchers);
}

/* Everything that was held back arrives, and the client reads all. */
static void settle(void)
{
    for (int i = 0; i < 10000 && (world.asked || world.call.queued || world.call.drain_due); i++) {
        read_all();
        if (world.asked)
            answer();
    }
}

/* A change is announced while each of the two queries is in flight, and nothing is announced later:
 * the watcher hears of it. */
static void a_change_while_a_query_is_in_flight_is_not_missed(void **state)
{
    for (int query = 0; query < 2; query++) {
        for (int last = 0; last < 2; last++) {
            begin();
            if (query == 1)
                answer(); /* the job is read, its history is asked for */
            if (last)
                end_job();
            else
                append_entry();
            settle();
            assert_int_equal(world.call.last_entry, last ? 0 : 1);
            assert_int_equal(world.call.sent_end, last);
            end();
        }
    }
}

/* Entries are made, answers held back and released, and the client stops and reads, in random
 * order; in the end it has each entry once, in order, and the job's end. */
static void a_watcher_gets_every_entry_and_the_end(void **state)
{
    for (uint64_t seed = 0; seed < 400; seed++) {
        begin();
        for (uint64_t n = 0; n < 300; n++) {
            const uint64_t bits = hd_random_key(seed, n);

            switch (bits % 4) {
            case 0:
                for (uint64_t i = 0; i < 1 + (bits >> 8) % (1 + seed % 9); i++)
                    if (world.entries < ENTRIES_MAX)
                        append_entry();
                break;
            case 1:
                read_all();
                break;
            default:
                if (world.asked)
                    answer();
            }
        }
        end_job();
        if (seed % 2)
            read_all();
        settle();
        assert_int_equal(world.call.last_entry, world.entries);
        assert_false(world.call.out_of_order);
        assert_true(world.call.sent_end && world.call.finished);
        end();
    }
}

RUN_CASES()
