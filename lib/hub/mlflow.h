/* mlflow: a run in a tracking server of MLflow, by its REST API (2.0).
 *
 *     hd_mlflow_read_settings -> hd_mlflow_new -> hd_mlflow_open (experiment, run)
 *         -> hd_mlflow_log (metrics, parameters, tags; at most a call's limits) -> hd_mlflow_end
 *
 * A run is found again by the tag `heddle.run`, so a caller that was interrupted, or whose answer was
 * lost, goes on in the same run. Metrics that are sent twice are one: the server tells them apart by
 * key, step, time and value.
 * Nothing here retries: a caller that keeps what was not sent calls again later.
 *
 * Used by: the heddle command.   Uses: base, libcurl (request.c).   Threads: one owner at a time.
 */
#ifndef HD_HUB_MLFLOW_H
#define HD_HUB_MLFLOW_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_MLFLOW_METRICS_MAX = 900, /* of a call; the server takes 1,000 entries in all */
    HD_MLFLOW_PARAMS_MAX = 100,  /* parameters of a call, and tags */
    HD_MLFLOW_KEY_MAX = 250,     /* bytes of a key */
    HD_MLFLOW_VALUE_MAX = 500    /* bytes of a parameter that every version takes */
};

struct hd_mlflow_settings {
    char uri[512];   /* https://HOST, or http://, without a slash at its end */
    char token[512]; /* bearer token; "": none */
    char user[128];  /* "": no user and password */
    char password[256];
    char ca_file[4096]; /* certificates of authorities; "": those of the system */
};

/* Reads MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME, _PASSWORD,
 * _SERVER_CERT_PATH. uri: in place of the variable; NULL: none. HD_INVALID: no server is named, its
 * name is none, or a secret would be sent in plain text to another machine. */
enum hd_status hd_mlflow_read_settings(const char *uri, struct hd_mlflow_settings *ret_settings);

struct hd_mlflow;
/* stop: a flag that ends a request (HD_ABORTED); NULL: none. HD_UNSUPPORTED: built without libcurl. */
enum hd_status hd_mlflow_new(const struct hd_mlflow_settings *settings,
                             const volatile sig_atomic_t *stop, struct hd_mlflow **ret_mlflow);
void hd_mlflow_free(struct hd_mlflow *mlflow); /* NULL: does nothing */

struct hd_mlflow_pair {
    const char *key, *value;
};
struct hd_mlflow_metric {
    char key[HD_MLFLOW_KEY_MAX];
    double value;
    int64_t step, time_ms; /* time: since 1970 */
};

/* Finds the run with this identity in the experiment, or makes both. *ret_is_new: hd_mlflow_begin was
 * not called for it yet. May be called again after a failure: it makes no second run. Fails
 * with HD_UNAVAILABLE or HD_TIMEOUT if the server is away or busy, HD_DENIED if it refuses the token,
 * HD_INVALID if it refuses the request. */
enum hd_status hd_mlflow_open(struct hd_mlflow *mlflow, const char *experiment,
                              const char *identity, const char *name, int64_t start_ms,
                              bool *ret_is_new);
const char *hd_mlflow_run_id(const struct hd_mlflow *mlflow); /* of the open run */

/* Sends metrics, parameters and tags of the open run in one call. Fails like hd_mlflow_open. */
enum hd_status hd_mlflow_log(struct hd_mlflow *mlflow, const struct hd_mlflow_metric *metrics,
                             size_t metric_count, const struct hd_mlflow_pair *params,
                             size_t param_count, const struct hd_mlflow_pair *tags,
                             size_t tag_count);

/* Records on the server that the run has its tags and parameters. Fails like hd_mlflow_open. */
enum hd_status hd_mlflow_begin(struct hd_mlflow *mlflow);

/* Sets the state of the run: RUNNING, FINISHED, FAILED or KILLED. end_ms 0: it has not ended. */
enum hd_status hd_mlflow_end(struct hd_mlflow *mlflow, const char *state, int64_t end_ms);

#endif
