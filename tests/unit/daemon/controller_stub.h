/* controller_stub: a controller that wants exactly what a test tells it, and remembers what nodes
 * say. It speaks the real protocol over the real RPC layer, in the test's process, so that heddled
 * can be tested against every order of events without a scheduler in between. */
#ifndef HD_TEST_DAEMON_CONTROLLER_STUB_H
#define HD_TEST_DAEMON_CONTROLLER_STUB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <uv.h>

#include "heddle/v1/fleet.pb-c.h"
#include "rpc/rpc.h"
#include "tests/temporary.h"

enum {
    STUB_NODES_MAX = 2,
    STUB_RANKS_MAX = 4,
    STUB_SEQ_MAX = 4096,
    STUB_SLOW_MS = 60000,
    STUB_DEVICES_MAX = 8
};

#define STUB_TOKEN "0123456789abcdef0123456789abcdef"

struct stub_node {
    pid_t daemon; /* heddled; 0: not running */
    char name[8], state_dir[96], uuid[40], instance_id[40], boot_id[40];
    int devices, threads, gpus;
    /* of the newest hello, in its order; without a place in it, -1 */
    int numbers[STUB_DEVICES_MAX];
    char uuids[STUB_DEVICES_MAX][48], problems[STUB_DEVICES_MAX][400];
    struct hd_rpc_call *stream, *logs;
    int hellos, observed_count;
    /* of job 7 attempt 1, in the newest observed set */
    bool listed;
    Heddle__V1__AttemptState state;
    Heddle__V1__EndCause cause;
    int end_rank, end_signal;
    bool bad_input;
    char end_message[512], problem[256];
    int64_t checkpoint_step;               /* the newest shown in the set; 0: none */
    uint64_t generation, first_generation; /* newest, and of the first set of the stream */
    bool first_of_stream;                  /* the next set is that */
    size_t attempts, deleted;
    char probe[64], probe_problem[512], no_room[512];
    /* the newest report of a probe */
    int probe_reports;
    uint64_t probe_request;
    char probe_text[64], probe_said[512], probe_on[512];
};

struct stub {
    char root[TEMPORARY_BYTES], address[128], jobs_dir[96];
    int port; /* on 127.0.0.1, for who has STUB_TOKEN */
    uv_loop_t loop;
    struct hd_rpc *rpc;
    struct hd_rpc_server *server;
    struct stub_node nodes[STUB_NODES_MAX];
    int node_count;
    bool cuda; /* what is wanted is for GPUs: of a node's ranks the last one gets the first */
    bool hold_acks, refuse;
    const char *cluster; /* its name, as a welcome says it */
    uint64_t generation;
    /* reports, over all nodes */
    bool seen[STUB_RANKS_MAX][STUB_SEQ_MAX]; /* by rank and seq */
    int reports, steps, exits, checkpoints;  /* first copies only */
    int repeated;
    /* the rendezvous */
    ProtobufCBinaryData put[STUB_RANKS_MAX];
    uint32_t put_round;
    int put_count, put_repeated;
    /* logs */
    char log_text[4096], log_error[256];
    uint64_t log_answered;
};

void stub_open(struct stub *stub, int nodes);
void stub_close(struct stub *stub); /* stops every heddled, and asserts that no process is left */

/* heddled of node `index`; more arguments, NULL ends them. */
void stub_start_node(struct stub *stub, int index, ...);
int stub_wait_node(struct stub *stub, int index); /* its wait status */
void stub_signal_node(struct stub *stub, int index, int signal);
void stub_remove(struct stub *stub); /* says to every heddled that its node was removed */
void stub_ask_probe(struct stub *stub, uint64_t request); /* of node 0 */
void stub_serve(struct stub *stub);                       /* takes calls; stub_open does it once */
void stub_unserve(struct stub *stub); /* goes away, as a controller that is restarted */

/* Runs the loop until the condition holds; fails after STUB_SLOW_MS. */
#define stub_until(stub, condition)                                \
    do {                                                           \
        const int64_t stub_end_ms_ = stub_now_ms() + STUB_SLOW_MS; \
        while (!(condition)) {                                     \
            stub_turn(stub);                                       \
            if (stub_now_ms() > stub_end_ms_)                      \
                stub_fail(stub, #condition, __FILE__, __LINE__);   \
        }                                                          \
    } while (0)
int64_t stub_now_ms(void);
void stub_turn(struct stub *stub);
void stub_fail(struct stub *stub, const char *condition, const char *file, int line);
void stub_run_for(struct stub *stub, int ms);

/* Wants job 7 attempt 1 with `ranks` ranks on each of the nodes; wanted 0: wants nothing. */
void stub_want(struct stub *stub, Heddle__V1__Wanted wanted, int ranks_a_node);
/* Wants the same attempt, with one deletion. */
void stub_want_deleted(struct stub *stub, const char *path, const char *hash);
/* And with the removal of the job's folder. */
void stub_want_removed(struct stub *stub, const char *job_dir);
void stub_acknowledge(struct stub *stub); /* everything that was seen */
void stub_complete_rendezvous(struct stub *stub);
void stub_ask_log(struct stub *stub, int rank, int64_t offset, int wait_ms);

int stub_processes(const struct stub *stub); /* ranks, and what they started */

#endif
