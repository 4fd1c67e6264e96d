/* imitation_mlflow: a tracking server of MLflow on loopback, for tests: it records each request and answers
 * what MLflow does to those that Heddle sends.
 *
 * Used by: hub_mlflow_test, cli_track_test.   Uses: base.
 * Threads: one for the socket; set the members before a request, read them after its answer.
 */
#ifndef HD_TESTS_IMITATION_MLFLOW_H
#define HD_TESTS_IMITATION_MLFLOW_H

#include <pthread.h>

#include "base/text.h"

struct imitation_mlflow {
    int fd, port;
    pthread_t thread;
    volatile int busy;            /* answers of 503 that are left */
    const char *volatile busy_at; /* target of one answer of 503; NULL: none */
    volatile int denies;          /* 1: answers 401 */
    volatile int has_experiment;  /* 1: get-by-name finds it */
    volatile int has_run;         /* 1: search finds the run "old"; 2: "lost", without tags */
    /* answers to runs/create that are lost; after the last of them search finds the run */
    volatile int loses;
    volatile int is_late; /* 1: search finds the lost run only after the next runs/create */
    const char *bad;      /* an answer in place of all others; NULL: none */
    struct hd_text said;  /* "METHOD TARGET BODY\n" of each request */
    char authorization[256];
};

/* Starts the server, whose members are 0, on a free port; returns 0, or -1 on failure. */
int imitation_mlflow_start(struct imitation_mlflow *server);
void imitation_mlflow_stop(struct imitation_mlflow *server);

#endif
