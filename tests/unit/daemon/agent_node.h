/* agent_node: one node of the stub's controller, with an attempt of two ranks. */
#ifndef TESTS_UNIT_DAEMON_AGENT_NODE_H
#define TESTS_UNIT_DAEMON_AGENT_NODE_H

#include <stdio.h>
#include <stdlib.h>

#include "controller_stub.h"
#include "tests/program/test.h"

#define RUNNING  HEDDLE__V1__WANTED__WANTED_RUNNING
#define STOPPING HEDDLE__V1__WANTED__WANTED_STOPPING
#define STOPPED  HEDDLE__V1__WANTED__WANTED_STOPPED
#define NOTHING  HEDDLE__V1__WANTED__WANTED_UNSPECIFIED

static struct stub stub; /* large; one test at a time uses it */

static inline bool is(int node, Heddle__V1__AttemptState state)
{
    return stub.nodes[node].listed && stub.nodes[node].state == state;
}

static inline bool runs(int node)
{
    return is(node, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_RUNNING);
}

static inline bool ended(int node)
{
    return is(node, HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED);
}

static inline void mode(int rank, const char *text)
{
    char name[32];

    (void)snprintf(name, sizeof name, "FAKE_%d", rank);
    assert_int_equal(setenv(name, text, 1), 0);
}

/* One node, two ranks that go on until they are told to stop. */
static inline void begin_waiting(char *flag)
{
    stub_open(&stub, 1);
    mode(0, "wait");
    mode(1, "wait");
    stub_start_node(&stub, 0, flag, NULL);
    stub_until(&stub, stub.nodes[0].observed_count);
    stub_want(&stub, RUNNING, 2);
    stub_until(&stub, runs(0) && stub.steps > 0);
}

static inline void stop_and_close(void)
{
    stub_want(&stub, STOPPING, 2);
    stub_until(&stub, ended(0));
    assert_int_equal(stub.nodes[0].cause, HEDDLE__V1__END_CAUSE__END_CAUSE_USER);
    stub_want(&stub, NOTHING, 0);
    stub_until(&stub, !stub.nodes[0].listed);
    stub_close(&stub);
}

#endif
