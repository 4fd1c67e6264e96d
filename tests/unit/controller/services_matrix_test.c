/* services: every RPC x every role x own and others' job: its status, and its row of the audit log.
 *
 * The RPCs come from the descriptors of the services, so a new one fails this test until it has a
 * line below. What each role may is written here by hand, once more than in rpcs.def. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/fleet.pb-c.h"
#include "services_callers.h"

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

/* The same failure once more, about no other object: it is counted (refusals_test). */
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

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_cell_has_its_status_and_its_row)};

    return cmocka_run_group_tests_name("services: matrix", tests, NULL, NULL);
}
