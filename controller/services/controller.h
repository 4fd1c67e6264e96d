/* controller: core and store on one event loop, behind two gRPC services.
 *
 *   Control    calls of users                  control.c watch.c read_log.c
 *   Fleet      streams of daemons              fleet.c fleet_send.c fleet_receive.c copies.c
 *                                              rendezvous.c
 *   Identity   callers and their credentials   credential.c audit.c limits.c
 *   guard.c    who may call what (rpcs.def), and the audit log
 *   transaction.c     core step -> store -> post-commit actions   everything that waits for the commit
 *   convert.c  records <-> messages
 *   web.c      metrics, dashboard and its data by HTTP    web_api.c curve.c metrics.c job_stats.c
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

enum { CONTROLLER_LISTENS_MAX = 4 };

struct controller_options {
    const char *state_dir;                       /* created if absent */
    const char *jobs_dir;                        /* NULL: "jobs" in state_dir; created if absent */
    const char *listen;                          /* unix:PATH or HOST:PORT */
    const char *listens[CONTROLLER_LISTENS_MAX]; /* more of them; NULL: no more */
    mode_t socket_mode;                          /* of Unix sockets; 0: 0600 */
    gid_t socket_group;      /* of a socket that its group may use; 0: the process's */
    const char *policy_file; /* identity.h; NULL: none */
    int64_t certificate_ms; /* life of the certificates that it signs; 0: HD_PKI_CERTIFICATE_DAYS */
    const struct hd_rpc_tokens *tokens; /* of users and nodes, for HOST:PORT; copied; NULL: none */
    const struct hd_rpc_tls *tls;
    const char
        *http; /* unix:PATH or HOST:PORT of the HTTP listener, with `tls` and the users' tokens;
                       * NULL: none */
    const char *const *http_hosts; /* further names by which it may be asked (http/http.h) */
    size_t http_host_count;
    const char *build;                        /* version, shown to users */
    const struct hd_core_config *core_config; /* NULL: the default */
    const char *cluster_file;                 /* that names the switches; NULL: none */
    const char *vfs;                          /* SQLite VFS of the store; NULL: the system's */
    int64_t reserve_bytes; /* on the disk of state_dir, for when it is full (store.h); 0: none */
    /* Not NULL: jobs that have not ended when the controller starts have failed, with this reason,
     * and no node of before exists any more. */
    const char *end_jobs;
    int64_t jobs_dir_check_ms; /* from one look at the jobs directory to the next; 0: 5 s */
    int64_t self_check_ms;     /* between two test connections to the own address; 0: 10 s */
    /* The controller has failed: log the error, call controller_stop and exit. */
    void (*on_fatal)(void *user, const struct hd_error *error);
    void *user;
};

/* Opens the store, rebuilds the core from it, and listens. The strings of `options` are not copied.
 * After a failure, run the loop until it is empty: that frees the rest. */
enum hd_status controller_new(uv_loop_t *loop, const struct controller_options *options,
                              struct controller **ret_controller);

/* A reload: from now on these tokens, certificates and this policy are in force, and no others;
 * calls that are open go on. After a failure all is as before. HD_DENIED: there are no tokens, and
 * the controller listens at HOST:PORT. */
enum hd_status controller_reload(struct controller *controller,
                                 const struct controller_options *options);

/* The port of HOST:PORT (with HOST:0, the one chosen by the system); 0 for a Unix socket. */
int controller_port(const struct controller *controller);
int controller_http_port(const struct controller *controller); /* the same of the HTTP listener */
bool controller_http_is_tls(const struct controller *controller);
const char *controller_jobs_dir(const struct controller *controller); /* absolute */

/* Ends all calls, writes what is queued and frees the controller; on_stopped (may be NULL) is
 * called last. */
void controller_stop(struct controller *controller, void (*on_stopped)(void *user), void *user);

#endif
