/* services: every RPC x every role x own and others' job: its status, and its row of the audit log;
 * and what the answers say of jobs that the caller may not see.
 *
 * The RPCs come from the descriptors of the services, so a new one fails this test until it has a
 * line below. What each role may is written here by hand, once more than in rpcs.def. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/fleet.pb-c.h"
#include "services_callers.h"
#include "tests/program/test.h"

/* who: V viewer, U user, O operator, A admin, N node, I invited. job: it is about one job. kept:
 * each call has a row; else only one that was refused or asked for a job that is not there. */
static const struct rule_of_call {
    const char *method, *who;
    bool job, kept;
} rules[] = {
    {"SubmitJob", "UOA", false, true},
    {"ValidateJob", "UOA", false, false},
    {"GetJob", "VUOA", true, false},
    {"ListJobs", "VUOA", false, false},
    {"CancelJob", "UOA", true, true},
    {"ResumeJob", "UOA", true, true},
    {"RequeueJob", "UOA", true, true},
    {"CheckpointJob", "UOA", true, true},
    {"HoldJob", "UOA", true, true},
    {"ReleaseJob", "UOA", true, true},
    {"ExplainJob", "VUOA", true, false},
    {"PlanJob", "UOA", false, false},
    {"ListQueues", "VUOA", false, false},
    {"SetQueue", "A", false, true},
    {"RemoveQueue", "A", false, true},
    {"RemoveJob", "UOA", true, true},
    {"WatchJob", "VUOA", true, false},
    {"ListEvents", "VUOA", true, false},
    {"ListNodes", "VUOA", false, false},
    {"GetTopology", "VUOA", false, false},
    {"ProbeNode", "OA", false, true},
    {"DrainNode", "OA", false, true},
    {"UndrainNode", "OA", false, true},
    {"RemoveNode", "OA", false, true},
    {"ListCheckpoints", "VUOA", true, false},
    {"ReadLog", "VUOA", true, false},
    {"GetServerInfo", "VUOA", false, false},
    {"Connect", "N", false, false},
    {"Logs", "N", false, false},
    {"Join", "I", false, true},
    {"Renew", "N", false, true},
    {"WhoAmI", "VUOA", false, false},
    {"CreateToken", "A", false, true},
    {"ListCredentials", "A", false, false},
    {"RevokeToken", "A", false, true},
    {"InviteNode", "A", false, true},
    {"RevokeNode", "A", false, true},
    {"SignPerson", "A", false, true},
    {"ListAudit", "A", false, false},
    {"GetLimits", "VUOA", false, false},
};

static const struct rule_of_call *find_rule(const char *method)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strcmp(rules[i].method, method) == 0)
            return &rules[i];
    fail_msg("the RPC %s has no line in this test", method);
    return NULL;
}

struct cell {
    const struct rule_of_call *rule;
    enum caller who;
    bool others;
    enum hd_status st, own; /* of this call; with `others`, of the one about its own job */
};

static void fail_cell(const struct cell *cell, const char *what)
{
    fail_msg("%s by %c of %s job: %s; its status is %s: %s", cell->rule->method,
             caller_letters[cell->who], cell->others ? "another's" : "its own", what,
             hd_status_name(cell->st), cell->st ? hd_err_message() : "");
}

/* Refused by role; hidden; or let through, whatever comes of an empty request. Join lets the
 * invited node in and refuses the name nx, for which it is not; Renew is for nodes with a
 * certificate. */
static void check_status(const struct cell *cell)
{
    const bool may = strchr(cell->rule->who, caller_letters[cell->who]) != NULL;
    const bool hidden = cell->rule->job && cell->others && cell->who < CALLER_OPERATOR;
    const bool refuses_itself =
        strcmp(cell->rule->method, "Join") == 0 || strcmp(cell->rule->method, "Renew") == 0;

    if (!may && cell->st != HD_DENIED)
        fail_cell(cell, "it must be denied");
    if (may && hidden && cell->st != HD_NOT_FOUND)
        fail_cell(cell, "it must be hidden");
    if (may && !hidden && !refuses_itself && cell->st == HD_DENIED)
        fail_cell(cell, "it must be let through");
    if (may && !hidden && cell->rule->job && cell->st == HD_NOT_FOUND &&
        strcmp(cell->rule->method, "ReadLog") != 0) /* of a job that has not started */
        fail_cell(cell, "the job must be found");
}

/* A node has no job: it asks for two of others. */
static uint64_t job_of(const struct callers *all, const struct cell *cell)
{
    return all->jobs[cell->others ? 3 - cell->who % 4 : cell->who % 4];
}

/* Whether a cell fails like one before it, but about no other object: it is counted
 * (refusals_test). */
static bool is_repeated(const struct cell *cell)
{
    return cell->others && cell->st && cell->st == cell->own &&
           (cell->st == HD_DENIED || !cell->rule->job);
}

static void check_row(struct callers *all, const struct cell *cell)
{
    Heddle__V1__ListAuditResponse *audit = callers_audit(all);
    const bool kept =
        cell->rule->kept || cell->st == HD_DENIED || (cell->rule->job && cell->st == HD_NOT_FOUND);
    const bool expected = kept && !is_repeated(cell);
    const char *name = caller_names[cell->who];
    char who[32], object[32];
    const Heddle__V1__AuditRow *row = audit->n_rows ? audit->rows[0] : NULL;

    (void)snprintf(who, sizeof who, "%s%s", cell->who >= CALLER_NODE ? "node:" : "", name);
    if (audit->n_rows != (expected ? 1 : 0))
        fail_cell(cell, expected ? "one row of the audit log is missing" : "it must leave no row");
    if (row) {
        assert_string_equal(row->who, who);
        assert_string_equal(row->method, cell->rule->method);
        assert_string_equal(row->result, cell->st ? hd_status_name(cell->st) : "ok");
        assert_non_null(strstr(row->source, "127.0.0.1"));
        if (cell->rule->job && cell->st != HD_DENIED) { /* denied before the request was read */
            (void)snprintf(object, sizeof object, "job %llu",
                           (unsigned long long)job_of(all, cell));
            assert_string_equal(row->object, object);
        }
    }
    hd_rpc_message_free(&audit->base);
}

/* Returns the call's status. own: that of the call about the caller's own job. */
static enum hd_status check_cell(struct callers *all, const ProtobufCServiceDescriptor *service,
                                 const ProtobufCMethodDescriptor *method, enum caller who,
                                 bool others, enum hd_status own)
{
    struct cell cell = {.rule = find_rule(method->name), .who = who, .others = others, .own = own};

    cell.st = callers_ask(all, service, method, job_of(all, &cell));
    check_status(&cell);
    check_row(all, &cell);
    return cell.st;
}

static void each_cell_has_its_status_and_its_row(void **state)
{
    const ProtobufCServiceDescriptor *const services[] = {&heddle__v1__control__descriptor,
                                                          &heddle__v1__fleet__descriptor,
                                                          &heddle__v1__identity__descriptor};
    enum hd_status own = HD_OK;
    struct callers all;
    size_t calls = 0;

    callers_start(&all);
    for (int who = 0; who < CALLERS; who++) {
        callers_be(&all, all.secrets[who]);
        for (size_t s = 0; s < sizeof services / sizeof services[0]; s++)
            for (unsigned m = 0; m < 2 * services[s]->n_methods; m++, calls++)
                own = check_cell(&all, services[s], &services[s]->methods[m / 2], (enum caller)who,
                                 m % 2, own);
    }
    assert_int_equal(calls, sizeof rules / sizeof rules[0] * CALLERS * 2);
    callers_finish(&all);
}

/* ---- jobs of others in answers ----------------------------------------------------------------*/

/* Counts what answers say of jobs that are not the listener's: members that number or name one, and
 * texts that have such a number or name in them. */
struct listener {
    uint64_t own;
    const char *others[2]; /* names of two people with jobs, which are in no other word */
    int found;
    char last[200]; /* where it was found */
};

static void note(struct listener *l, const char *field, const char *what)
{
    l->found++;
    (void)snprintf(l->last, sizeof l->last, "%s: %.150s", field, what);
}

static void look_at_text(struct listener *l, const char *field, const char *text)
{
    static const char *const words[] = {"job ", "jobs "};

    for (size_t i = 0; i < 2; i++)
        for (const char *at = text; (at = strstr(at, words[i])); at++) {
            const uint64_t job = strtoull(at + strlen(words[i]), NULL, 10);

            if (job && job != l->own)
                note(l, field, text);
        }
    for (size_t i = 0; i < 2; i++) { /* "oli" */
        const size_t length = strlen(l->others[i]);
        const char *at = strstr(text, l->others[i]);

        if (at && !isalpha((unsigned char)at[length]) &&
            (at == text || !isalpha((unsigned char)at[-1])))
            note(l, field, text);
    }
}

static void look_at_number(struct listener *l, const char *field, uint64_t number)
{
    char text[32];

    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    if ((strcmp(field, "job") == 0 || strcmp(field, "users") == 0) && number && number != l->own)
        note(l, field, text);
}

static void listen_to(void *user, const ProtobufCMessage *message);

static void look_at_value(struct listener *l, const ProtobufCFieldDescriptor *field, const void *at)
{
    if (field->type == PROTOBUF_C_TYPE_STRING && *(char *const *)at)
        look_at_text(l, field->name, *(char *const *)at);
    else if (field->type == PROTOBUF_C_TYPE_UINT64)
        look_at_number(l, field->name, *(const uint64_t *)at);
    else if (field->type == PROTOBUF_C_TYPE_MESSAGE && *(ProtobufCMessage *const *)at)
        listen_to(l, *(ProtobufCMessage *const *)at);
}

static void listen_to(void *user, const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const char *at = (const char *)message + field->offset;
        const size_t size = field->type == PROTOBUF_C_TYPE_UINT64 ? 8 : sizeof(void *);
        size_t count;

        if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) &&
            *(const uint32_t *)((const char *)message + field->quantifier_offset) != field->id)
            continue;
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            look_at_value(user, field, at);
            continue;
        }
        memcpy(&count, (const char *)message + field->quantifier_offset, sizeof count);
        for (size_t k = 0; k < count && field->type != PROTOBUF_C_TYPE_ENUM; k++)
            look_at_value(user, field, *(const char *const *)at + k * size);
    }
}

/* Calls what people may call, about this job; with `changes` also what changes it, but for its end.
 */
static void hear_all(struct callers *all, struct listener *l, const char *secret, uint64_t job,
                     bool changes)
{
    const ProtobufCServiceDescriptor *const services[] = {&heddle__v1__control__descriptor,
                                                          &heddle__v1__identity__descriptor};

    l->own = job;
    l->found = 0;
    all->heard = listen_to;
    all->heard_user = l;
    callers_be(all, secret);
    for (size_t s = 0; s < 2; s++)
        for (unsigned m = 0; m < services[s]->n_methods; m++) {
            const struct rule_of_call *rule = find_rule(services[s]->methods[m].name);

            if ((!rule->kept || changes) && rule->who[0] != 'A' &&
                strcmp(rule->method, "CancelJob") != 0)
                (void)callers_ask(all, services[s], &services[s]->methods[m], job);
        }
    (void)callers_ask(all, services[0], /* events of the cluster */
                      protobuf_c_service_descriptor_get_method_by_name(services[0], "ListEvents"),
                      0);
    all->heard = NULL;
}

/* Vic's job runs and gives way to a job of oli, for which the node is kept; a job of ada was
 * cancelled and removed; ann's job waits behind oli's. */
static void crowd(struct callers *all, struct daemon *d)
{
    const ProtobufCServiceDescriptor *control = &heddle__v1__control__descriptor;
    uint64_t job;
    bool repeated;

    callers_be(all, all->secrets[CALLER_NODE]);
    join(d, &all->b, "n1"); /* the daemon's stream goes on behind the next client */
    all->b.client = callers_client(all, all->secrets[CALLER_ADMIN]);
    WAIT_FOR(&all->b, state_of(&all->b, all->jobs[CALLER_VIEWER]) ==
                          HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING);
    observe(d, all->jobs[CALLER_VIEWER], HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING, NULL);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "RemoveJob" : "CancelJob";

        assert_int_equal(
            callers_ask(all, control,
                        protobuf_c_service_descriptor_get_method_by_name(control, name),
                        all->jobs[CALLER_ADMIN]),
            HD_OK);
    }
    callers_be(all, all->submitter[CALLER_OPERATOR]);
    assert_int_equal(submit_as(&all->b, "0123456789abcdef", new_spec(&all->b, 2, "priority: 9\n"),
                               &job, &repeated),
                     HD_OK);
}

/* Goal: in every answer, a job that the reader may not see is "another job"; an operator, who sees
 * all jobs, reads the numbers, which shows that the test finds them. */
static void no_answer_names_a_job_that_is_hidden(void **state)
{
    static const enum caller readers[] = {CALLER_VIEWER, CALLER_USER};
    struct listener l = {.others = {"oli", "ada"}};
    struct daemon d = {.b = NULL};
    struct callers all;

    callers_start(&all);
    crowd(&all, &d);
    for (size_t i = 0; i < 2; i++) {
        const uint64_t job = all.jobs[readers[i]];

        hear_all(&all, &l, all.secrets[CALLER_OPERATOR], job, false);
        if (l.found < 5)
            fail_msg("an operator must hear of other jobs: %d times: %s", l.found, l.last);
        hear_all(&all, &l, all.secrets[readers[i]], job, true);
        if (l.found)
            fail_msg("%s heard of another job %d times, the last time in %s",
                     caller_names[readers[i]], l.found, l.last);
    }
    free_daemon(&d);
    callers_finish(&all);
}

RUN_CASES()
