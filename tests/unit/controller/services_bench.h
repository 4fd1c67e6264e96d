/* services_bench: the whole controller behind its socket, with a client for people and a daemon
 * that says what the test wants, all on one loop. A function that returns no status fails the
 * test when it cannot do what its name says. */
#ifndef HD_TEST_SERVICES_BENCH_H
#define HD_TEST_SERVICES_BENCH_H

#include "base/clock.h"
#include "controller/services/controller.h"
#include "heddle/v1/control.pb-c.h"
#include "heddle/v1/fleet.pb-c.h"
#include "rpc/rpc.h"
#include "tests/temporary.h"

enum { WAIT_MS = 20000, ENTRIES_MAX = 256, DEVICES_MAX = 64 };

struct bench {
    struct hd_arena arena; /* of specs */
    uv_loop_t loop;
    uv_timer_t beat; /* so that a wait sees the clock */
    char dir[TEMPORARY_BYTES], address[96], train[96];
    const char *vfs;
    int64_t self_check_ms;                    /* of the next start_controller; 0: the default */
    const struct hd_core_config *core_config; /* of the next start_controller; NULL: the usual */
    const struct hd_rpc_tokens *tokens;       /* likewise; NULL: none */
    const char *cluster_file;                 /* likewise; NULL: none */
    const char *policy_file;                  /* likewise; NULL: none */
    int64_t certificate_ms;                   /* likewise; 0: the default */
    int64_t reserve_bytes;                    /* likewise; 0: none */
    int64_t jobs_dir_check_ms;                /* likewise; 0: the default */
    int devices;                              /* of daemons that connect, up to 4; 0: 2 */
    Heddle__V1__NodeInventory *inventory;     /* that they send; NULL: none */
    const char *gpu;                          /* what their devices are; NULL: CPU devices */
    struct controller *controller;
    struct hd_error fatal;
    struct hd_rpc *rpc;
    struct hd_rpc_client *client;
    bool stopped, closed;
};

/* Runs the loop until `what` holds. */
#define WAIT_FOR(b, what)                                                     \
    do {                                                                      \
        const int64_t end_ms = hd_clock_now_ms() + WAIT_MS;                   \
                                                                              \
        while (!(what)) {                                                     \
            (void)uv_run(&(b)->loop, UV_RUN_ONCE);                            \
            if (hd_clock_now_ms() > end_ms)                                   \
                fail_msg("line %d: waited in vain for: %s", __LINE__, #what); \
        }                                                                     \
    } while (0)

/* A controller in a new folder, on the SQLite VFS of this name (NULL: the usual one). */
void start(struct bench *b, const char *vfs);
/* Starts one with a reserve on its disk. */
void start_on(struct bench *b, const char *vfs, int64_t reserve_bytes);
void finish(struct bench *b);
enum hd_status start_controller(struct bench *b);
void stop_controller(struct bench *b);
/* One unary call; the response is the caller's. */
enum hd_status call(struct bench *b, const char *method, const ProtobufCMessageDescriptor *response,
                    const ProtobufCMessage *request, void *ret_response);

/* ---- jobs ---- */

/* A small job with a row of the batch for each device; `more` is added to its file. */
/* It lives as long as the bench. */
Heddle__V1__JobSpec *new_spec(struct bench *b, int devices, const char *more);
enum hd_status submit_as(struct bench *b, const char *request_id, Heddle__V1__JobSpec *spec,
                         uint64_t *ret_job, bool *ret_repeated);
uint64_t submit(struct bench *b, int devices);
Heddle__V1__GetJobResponse *get_job(struct bench *b, uint64_t job);
Heddle__V1__JobState state_of(struct bench *b, uint64_t job);

/* ---- a daemon ---- */

struct daemon {
    struct bench *b;
    struct hd_rpc_call *call, *logs;
    char uuid[32], name[16];
    int devices;                  /* set before it connects; 0: two */
    const char *instance;         /* likewise: of its process; NULL: "instance" */
    Heddle__V1__Welcome *welcome; /* inside `kept` */
    Heddle__V1__ControllerMessage *kept, *desired, *set;
    int desired_count, sets;
    uint64_t acked;
    uint64_t answered; /* nonce of the last heartbeat */
    int heartbeats;    /* so many have come */
    uint64_t probe;    /* the newest question for a probe; 0: none came on this stream */
    bool done;
    enum hd_status end;
    char message[HD_ERR_MAX];
    char removed_by[64]; /* "": it is not removed */
    Heddle__V1__LogRequest log_request;
    int log_requests;
};

void connect_as(struct daemon *d, struct bench *b, const char *name, const char *uuid,
                int protocol);
/* The daemon uuid-1. */
void connect_daemon(struct daemon *d, struct bench *b, const char *name, int protocol);
void free_daemon(struct daemon *d);
/* `part`: the member of the message that `body` (its case) says. */
void say(struct daemon *d, int body, void *part);
/* Reports the daemon's attempts: at most one attempt. */
void observe(struct daemon *d, uint64_t job, Heddle__V1__AttemptState state,
             Heddle__V1__EndReport *end);
/* A daemon that is welcome and has said that it is empty. */
void join(struct daemon *d, struct bench *b, const char *name);
void join_as(struct daemon *d, struct bench *b, const char *name, const char *uuid);
void send_step(struct daemon *d, uint64_t job, uint64_t seq, int64_t step);
void send_checkpoint(struct daemon *d, uint64_t job, uint64_t seq, int64_t step, const char *dir);

/* ---- a watcher ---- */

struct watch {
    struct hd_rpc_call *call;
    uint64_t sequences[ENTRIES_MAX];
    int bodies[ENTRIES_MAX];
    int64_t steps[ENTRIES_MAX];
    int count;
    Heddle__V1__JobState status, end;
    bool ended, done;
    bool stale; /* the newest status says that it may be old */
    enum hd_status st;
};

void watch(struct watch *w, struct bench *b, uint64_t job, uint64_t after, bool new_only);

#endif
