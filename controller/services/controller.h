/* controller: the running controller: core and store put on one loop, behind two gRPC services.
 *
 *   Control   people's calls                  control.c watch.c read_log.c
 *   Fleet     daemons' streams                fleet.c rendezvous.c logs.c
 *   turn.c    core step -> store -> effects   everything that must wait for the disk
 *   convert.c records <-> messages
 *
 * Used by: main.c, tests.   Uses: core, store, rpc, spec, libuv.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_CONTROLLER_H
#define HD_CONTROLLER_SERVICES_CONTROLLER_H

#include <uv.h>

#include "base/status.h"
#include "controller/core/core.h"
#include "rpc/rpc.h"

struct controller;

struct controller_options {
    const char *state_dir; /* made if absent */
    const char *jobs_dir;  /* NULL: "jobs" in state_dir; made if absent */
    const char *listen;    /* unix:PATH or HOST:PORT */
    const char *token;     /* for HOST:PORT */
    const struct hd_rpc_tls *tls;
    const char *build;                        /* version, for people */
    const struct hd_core_config *core_config; /* NULL: the default */
    const char *vfs;                          /* for the store; NULL: the system's */
    int64_t self_check_ms; /* between two looks whether the own door still opens; 0: 10 s */
    /* The controller cannot go on; the program should say why and exit. */
    void (*on_fatal)(void *user, const struct hd_error *error);
    void *user;
};

/* Opens the state, rebuilds the core, and listens. */
enum hd_status controller_new(uv_loop_t *loop, const struct controller_options *options,
                              struct controller **ret_controller);

/* The port of HOST:0, 0 for a socket. */
int controller_port(const struct controller *controller);
const char *controller_jobs_dir(const struct controller *controller);

/* Ends calls, writes what is queued, and frees all; on_stopped (may be NULL) runs last. */
void controller_stop(struct controller *controller, void (*on_stopped)(void *user), void *user);

#endif
