/* controller: core and store on one event loop, with three gRPC services and an HTTP listener.
 *
 *   Control        calls of users                  control.c watch.c read_log.c
 *   Fleet          streams of daemons              fleet.c fleet_send.c fleet_receive.c copies.c
 *                                                  fence.c rendezvous.c
 *   Identity       callers and their credentials   credential.c audit.c limits.c
 *   guard.c        access by role (rpcs.def), and the audit log
 *   transaction.c  core step -> store -> post-commit actions; every reply waits for the commit
 *   convert.c      records <-> messages
 *   web.c          metrics, dashboard and its data by HTTP; with web_api.c curve.c metrics.c
 *                  job_stats.c
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
    const char *state_dir; /* folder of the database; created if absent */
    /* folder of the jobs' files, created if absent; NULL: "jobs" in state_dir */
    const char *jobs_dir;
    /* address of the gRPC listener, unix:PATH or HOST:PORT */
    const char *listen;
    const char *listens[CONTROLLER_LISTENS_MAX]; /* further gRPC addresses; NULL ends the list */
    mode_t socket_mode;                          /* permission bits of Unix sockets; 0: 0600 */
    gid_t socket_group; /* group of Unix sockets that a group may use; 0: the process's group */
    const char *policy_file; /* path of the policy (identity.h); NULL: none */
    int64_t certificate_ms; /* life of node and user certificates, ms; 0: HD_PKI_CERTIFICATE_DAYS */
    /* tokens of users and nodes, required at addresses HOST:PORT; copied; NULL: none */
    const struct hd_rpc_tokens *tokens;
    const struct hd_rpc_tls *tls;
    const char
        /* unix:PATH or HOST:PORT of the HTTP listener, which uses `tls` and the users' tokens;
         * NULL: none */
        *http;
    const char *const *http_hosts; /* further names that a Host header may have (http/http.h) */
    size_t http_host_count;
    const char *build; /* version of this build, shown to users */
    /* settings of the scheduler core; NULL: the default */
    const struct hd_core_config *core_config;
    const char *cluster_file; /* path of cluster.yaml with the network switches; NULL: none */
    const char *vfs;          /* SQLite VFS of the store; NULL: the system's */
    /* disk space kept in state_dir for when the disk is full, bytes (store.h); 0: none */
    int64_t reserve_bytes;
    /* reason for which all jobs that have not ended fail when the controller starts; the nodes of
     * the last run are deleted as well. NULL: jobs and nodes are kept */
    const char *end_jobs;
    /* period of the check that the jobs directory is usable, ms; 0: 5 s */
    int64_t jobs_dir_check_ms;
    /* period of test connections to the controller's own address, ms; 0: 10 s */
    int64_t self_check_ms;
    /* Called once when the controller cannot continue; must log the error, call controller_stop and
     * exit. */
    void (*on_fatal)(void *user, const struct hd_error *error);
    void *user;
};

/* Opens the store, rebuilds the core from it, and listens. The strings of `options` must outlive
 * the controller. After a failure the caller runs the loop until it is empty: that frees the rest.
 */
enum hd_status controller_new(uv_loop_t *loop, const struct controller_options *options,
                              struct controller **ret_controller);

/* Replaces tokens, certificates and policy; calls in progress continue. After a failure nothing has
 * changed. HD_DENIED: the new options have no tokens, but the controller listens at HOST:PORT. */
enum hd_status controller_reload(struct controller *controller,
                                 const struct controller_options *options);

/* Returns the TCP port of the gRPC listener; with HOST:0, the port that the system chose; 0 for a
 * Unix socket. */
int controller_port(const struct controller *controller);
/* Returns the TCP port of the HTTP listener; 0: there is none. */
int controller_http_port(const struct controller *controller);
bool controller_http_is_tls(const struct controller *controller);
/* Returns the absolute path of the jobs directory. */
const char *controller_jobs_dir(const struct controller *controller);

/* Ends all calls, commits the pending transactions and frees the controller; on_stopped (may be
 * NULL) is called last. */
void controller_stop(struct controller *controller, void (*on_stopped)(void *user), void *user);

#endif
