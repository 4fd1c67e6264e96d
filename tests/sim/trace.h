/* trace: one seed's day of a cluster: which jobs come when, which nodes fail and are drained.
 *
 * A generator of our own with the shape of published traces of GPU clusters: most jobs are small
 * and short, most device-time is in the few large ones, arrivals follow the working day, lengths
 * are log-normal (Jeon et al. 2019, "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN
 * Training Workloads", Philly; Hu et al. 2021, "Characterization and Prediction of Deep Learning
 * Workloads in Large-Scale GPU Datacenters", Helios; Hu et al. 2024, "Characterization of Large
 * Language Model Development in the Datacenter", Acme). Its numbers are ours: none was fitted.
 *
 * Nodes fail 3.8 times per 1,000 node-days: 419 unexpected interruptions in 54 days of 2,048 nodes
 * (Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.3.4).
 *
 * What users say of a job's length is its length over an accuracy between 0.1 and 1, rounded up to
 * a usual number (Mu'alem and Feitelson 2001, "Utilization, Predictability, Workloads, and User
 * Runtime Estimates"; Tsafrir, Etsion and Feitelson 2007, "Backfilling Using System-Generated
 * Predictions Rather than User Runtime Estimates").
 *
 * Used by: the files of this folder.   Uses: base.   Threads: immutable once made.
 */
#ifndef HD_SIM_TRACE_H
#define HD_SIM_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SIM_DEVICES = 8, /* of a node */
    SIM_OWNERS = 200,
    SIM_PRIORITY_URGENT = 100,
    SIM_PRIORITY_LOW = -10,
};

#define SIM_MINUTE_MS ((int64_t)60 * 1000)
#define SIM_HOUR_MS   (60 * SIM_MINUTE_MS)

/* Classes of jobs, by the most devices that they ask for. */
#define SIM_CLASS_LIST(X)  \
    X(SMALL, "1-7", 1)     \
    X(NODES, "8-63", 8)    \
    X(LARGE, "64-511", 64) \
    X(HUGE, "512-", 512)
#define X(name, text, from) SIM_CLASS_##name,
enum sim_class { SIM_CLASS_LIST(X) SIM_CLASSES };
#undef X

/* Queues; limits in parts of all devices, 0: none. */
#define SIM_QUEUE_LIST(X)                                     \
    X(DEFAULT, "default", 1, 0, 0)   /* weight */             \
    X(RESEARCH, "research", 3, 0, 8) /* a user: one eighth */ \
    X(EVAL, "eval", 1, 10, 0)        /* in all: one tenth */  \
    X(PRETRAIN, "pretrain", 4, 0, 0)                          \
    X(URGENT, "urgent", 4, 0, 0)
#define X(name, text, weight, all, user) SIM_QUEUE_##name,
enum sim_queue { SIM_QUEUE_LIST(X) SIM_QUEUES };
#undef X

struct sim_job {
    int64_t submit_ms, cancel_ms; /* cancel_ms: a user cancels it then; 0: never */
    int32_t devices_min, devices_max;
    int64_t steps, step_ms; /* step_ms: on devices_max devices, as few nodes as possible */
    int64_t save_steps;     /* steps between checkpoints */
    int64_t estimate_ms;    /* what its user says of its length, at least its length */
    int64_t time_limit_ms;  /* 0: none */
    int32_t after;          /* the job that must succeed first; -1: none */
    int32_t priority, owner;
    enum sim_queue queue;
    enum sim_class class;
};

enum sim_fault_kind { SIM_NODE_FAILS, SIM_NODE_DRAINED };
struct sim_fault {
    enum sim_fault_kind kind;
    int32_t node;
    int64_t at_ms, back_ms; /* back: it takes jobs again */
    int64_t deadline_ms;    /* of a drain: jobs leave within so long */
};

struct sim_trace_job {
    uint64_t seed;
    int32_t nodes;
    int64_t horizon_ms; /* jobs come until then */
    int64_t tail_ms;    /* nodes fail until so long after that */
    double load;        /* device-time of the jobs that come until the horizon, over that of all
                         * devices; > 0. Beside these, as many devices as there are have jobs when
                         * the day begins; and where the load is above 1, jobs wait then: what a
                         * whole day of it leaves. */
    double elastic;     /* part of the jobs of 16 devices or more that also run on a quarter */
};

struct sim_trace {
    struct sim_trace_job wish;
    struct sim_job *jobs; /* by submit_ms */
    size_t job_count;
    struct sim_fault *faults; /* by at_ms */
    size_t fault_count;
};

struct sim_trace *sim_trace_new(const struct sim_trace_job *wish); /* NULL: no memory */
void sim_trace_free(struct sim_trace *trace);
const char *sim_class_name(enum sim_class class);
const char *sim_queue_name(enum sim_queue queue);
/* Devices that the queue, or one user in it, may hold on so many nodes; 0: no limit. */
int32_t sim_queue_limit(enum sim_queue queue, int32_t nodes, bool of_user);
int32_t sim_queue_weight(enum sim_queue queue);

/* The length of the job undisturbed, on devices_max devices. */
int64_t sim_job_length_ms(const struct sim_job *job);

#endif
