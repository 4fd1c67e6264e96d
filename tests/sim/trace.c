/* trace: see trace.h. */
#include "tests/sim/trace.h"

#include <math.h>
#include <stdlib.h>

#include "base/random.h"

#define LIMITED       0.5
#define LENGTH_MAX_MS (36 * SIM_HOUR_MS)

/* ---- numbers ----------------------------------------------------------------------------------*/

struct draws {
    uint64_t key, index;
};

static double uniform(struct draws *d)
{
    return hd_random_uniform(d->key, d->index++);
}

static int64_t between(struct draws *d, int64_t from, int64_t to)
{
    return from + (int64_t)(uniform(d) * (double)(to - from + 1));
}

static double log_normal(struct draws *d, double median, double sigma)
{
    const double u = 1 - uniform(d), v = uniform(d);

    return median * exp(sigma * sqrt(-2 * log(u)) * cos(2 * M_PI * v));
}

/* ---- queues -----------------------------------------------------------------------------------*/

static const struct {
    const char *name;
    int32_t weight, all, user;
} queues[SIM_QUEUES] = {
#define X(name, text, weight, all, user) {text, weight, all, user},
    SIM_QUEUE_LIST(X)
#undef X
};

const char *sim_queue_name(enum sim_queue queue)
{
    return queues[queue].name;
}

int32_t sim_queue_weight(enum sim_queue queue)
{
    return queues[queue].weight;
}

int32_t sim_queue_limit(enum sim_queue queue, int32_t nodes, bool of_user)
{
    const int32_t part = of_user ? queues[queue].user : queues[queue].all;

    return part ? nodes * SIM_DEVICES / part : 0;
}

/* ---- jobs -------------------------------------------------------------------------------------*/

static const struct {
    const char *name;
    int32_t from;
} classes[SIM_CLASSES] = {
#define X(name, text, from) {text, from},
    SIM_CLASS_LIST(X)
#undef X
};

const char *sim_class_name(enum sim_class class)
{
    return classes[class].name;
}

int64_t sim_job_length_ms(const struct sim_job *job)
{
    return job->steps * job->step_ms;
}

/* Parts of 10,000 jobs: nearly half use one device, one in twelve 128 or more, which have nearly
 * all of the device-time. */
static int32_t draw_devices(struct draws *d, int32_t most)
{
    static const struct {
        int32_t devices, parts;
    } sizes[] = {{1, 4500},  {2, 800},   {4, 800},   {8, 1800},  {16, 500},  {32, 400}, {64, 400},
                 {128, 300}, {256, 220}, {512, 150}, {1024, 90}, {2048, 35}, {4096, 5}};

    for (;;) {
        int64_t left = between(d, 0, 9999);
        size_t k = 0;

        while (left >= sizes[k].parts)
            left -= sizes[k++].parts;
        if (sizes[k].devices <= most)
            return sizes[k].devices;
    }
}

static void draw_length(struct draws *d, struct sim_job *job)
{
    static const struct {
        double median_minutes, sigma;
    } lengths[SIM_CLASSES] = {{8, 1.6}, {25, 1.4}, {60, 1.2}, {120, 1.0}};
    double minutes = log_normal(d, lengths[job->class].median_minutes, lengths[job->class].sigma);

    minutes = fmin(fmax(minutes, 1), (double)LENGTH_MAX_MS / (double)SIM_MINUTE_MS);
    job->step_ms = between(d, 500, 8000);
    job->steps = (int64_t)(minutes * 60000) / job->step_ms;
    job->steps = job->steps > 8 ? job->steps : 8;
    job->save_steps = 30 * SIM_MINUTE_MS / job->step_ms;
}

/* People round up to a number that they like. */
static void draw_estimate(struct draws *d, struct sim_job *job)
{
    static const int32_t usual_minutes[] = {15,  30,  60,   120,  180,  240, 360,
                                            480, 720, 1080, 1440, 2160, 2880};
    const double minutes =
        (double)sim_job_length_ms(job) / 60000 / (0.1 + 0.9 * uniform(d)) + 5; /* and its start */
    size_t k = 0;

    while (k + 1 < sizeof usual_minutes / sizeof usual_minutes[0] && usual_minutes[k] < minutes)
        k++;
    job->estimate_ms =
        (usual_minutes[k] > minutes ? usual_minutes[k] : (int64_t)minutes + 1) * SIM_MINUTE_MS;
}

static void draw_queue(struct draws *d, const struct sim_trace_job *wish, struct sim_job *job)
{
    const int32_t all = wish->nodes * SIM_DEVICES;
    const double u = uniform(d), v = uniform(d);

    if (v < 0.02 && job->devices_max <= all / 50) {
        job->priority = SIM_PRIORITY_URGENT;
        job->queue = SIM_QUEUE_URGENT;
    } else if (job->devices_max >= 64 && job->devices_max > all / 40) {
        job->queue = SIM_QUEUE_PRETRAIN;
    } else if (job->devices_max <= 8 && u < 0.3) {
        job->queue = SIM_QUEUE_EVAL;
    } else {
        job->queue = u < 0.75 ? SIM_QUEUE_RESEARCH : SIM_QUEUE_DEFAULT;
        job->priority = v > 0.97 ? SIM_PRIORITY_LOW : 0;
    }
}

/* Everything but when it comes. */
static void draw_job(struct draws *d, const struct sim_trace_job *wish, struct sim_job *job)
{
    const double u = uniform(d);

    *job = (struct sim_job){.after = -1};
    job->devices_max = draw_devices(d, wish->nodes * SIM_DEVICES / 2);
    for (int c = 0; c < SIM_CLASSES; c++)
        if (job->devices_max >= classes[c].from)
            job->class = (enum sim_class)c;
    job->devices_min = job->devices_max >= 16 && uniform(d) < wish->elastic ? job->devices_max / 4
                                                                            : job->devices_max;
    draw_length(d, job);
    draw_estimate(d, job);
    draw_queue(d, wish, job);
    job->owner = (int32_t)(SIM_OWNERS * u * u);
    if (uniform(d) < LIMITED)
        job->time_limit_ms = job->estimate_ms;
    if (uniform(d) < 0.01) /* its user was wrong: it will be ended */
        job->time_limit_ms = sim_job_length_ms(job) * 7 / 10;
}

/* Twice as many come at two in the afternoon as at two in the morning. */
static int64_t draw_arrival(struct draws *d, int64_t horizon_ms)
{
    for (;;) {
        const double at = uniform(d) * (double)horizon_ms;
        const double hour = fmod(at / (double)SIM_HOUR_MS + 8, 24);

        if (uniform(d) * 4 < 3 + cos((hour - 14) * M_PI / 12))
            return (int64_t)at;
    }
}

static int by_submission(const void *left, const void *right)
{
    const struct sim_job *a = left, *b = right;

    if (a->submit_ms != b->submit_ms)
        return a->submit_ms < b->submit_ms ? -1 : 1;
    return a->steps != b->steps ? (a->steps < b->steps ? -1 : 1) : a->owner - b->owner;
}

/* Links and cancellations, which need the order of jobs. */
static void relate(struct draws *d, struct sim_trace *trace)
{
    for (size_t j = 0; j < trace->job_count; j++) {
        struct sim_job *job = &trace->jobs[j];

        if (j > 20 && uniform(d) < 0.03)
            job->after = (int32_t)(j - 1 - (size_t)between(d, 0, 19));
        if (uniform(d) < 0.05)
            job->cancel_ms = job->submit_ms + (int64_t)log_normal(d, 60, 1) * SIM_MINUTE_MS;
    }
}

static struct sim_job *add_job(struct sim_trace *trace, size_t *capacity)
{
    if (trace->job_count == *capacity) {
        struct sim_job *bigger;

        *capacity = *capacity ? *capacity * 2 : 1024;
        bigger = realloc(trace->jobs, *capacity * sizeof *bigger);
        if (!bigger)
            return NULL;
        trace->jobs = bigger;
    }
    return &trace->jobs[trace->job_count++];
}

/* Draws a job that is running at a given moment. A running job was met by chance in the midst of
 * its time: a job is met the more often the longer it is, and a part of it is left. */
static void draw_running_job(struct draws *d, const struct sim_trace_job *wish, struct sim_job *job)
{
    do
        draw_job(d, wish, job);
    while (uniform(d) * (double)LENGTH_MAX_MS > (double)sim_job_length_ms(job));
    job->steps = 1 + (int64_t)((double)job->steps * uniform(d));
}

/* Jobs on so many devices, which run when the day begins. False: no memory. */
static bool add_running(struct draws *d, struct sim_trace *trace, size_t *capacity, double devices)
{
    while (devices > 0) {
        struct sim_job *job = add_job(trace, capacity);

        if (!job)
            return false;
        draw_running_job(d, &trace->wish, job);
        job->submit_ms = (int64_t)trace->job_count; /* a submission a millisecond */
        devices -= job->devices_max;
    }
    return true;
}

/* Jobs with so much device-time in all, which come in the day, or wait when it begins. */
static bool add_jobs(struct draws *d, struct sim_trace *trace, size_t *capacity, double device_time,
                     bool wait)
{
    while (device_time > 0) {
        struct sim_job *job = add_job(trace, capacity);

        if (!job)
            return false;
        draw_job(d, &trace->wish, job);
        job->submit_ms = wait ? (int64_t)trace->job_count
                              : SIM_MINUTE_MS + draw_arrival(d, trace->wish.horizon_ms);
        device_time -= (double)job->devices_max * (double)sim_job_length_ms(job);
    }
    return true;
}

/* Makes the jobs that run when the day begins, on as many devices as there are; what a day before
 * it of the same load has left waiting; and what comes in the day. */
static bool make_jobs(struct sim_trace *trace)
{
    const struct sim_trace_job *wish = &trace->wish;
    const double all = (double)wish->nodes * SIM_DEVICES;
    struct draws d = {.key = hd_random_key(wish->seed, 1)};
    size_t capacity = 0;

    if (!add_running(&d, trace, &capacity, all) ||
        !add_jobs(&d, trace, &capacity, (wish->load - 1) * all * 24 * (double)SIM_HOUR_MS, true) ||
        !add_jobs(&d, trace, &capacity, wish->load * all * (double)wish->horizon_ms, false))
        return false;
    qsort(trace->jobs, trace->job_count, sizeof *trace->jobs, by_submission);
    for (size_t j = 1; j < trace->job_count; j++)
        if (trace->jobs[j].submit_ms <= trace->jobs[j - 1].submit_ms)
            trace->jobs[j].submit_ms = trace->jobs[j - 1].submit_ms + 1;
    relate(&d, trace);
    return true;
}

/* ---- faults -----------------------------------------------------------------------------------*/

static int by_time(const void *left, const void *right)
{
    const struct sim_fault *a = left, *b = right;

    if (a->at_ms != b->at_ms)
        return a->at_ms < b->at_ms ? -1 : 1;
    return a->node - b->node;
}

/* `count` faults of one kind; a node has at most one at a time. */
static void add_faults(struct draws *d, struct sim_trace *trace, enum sim_fault_kind kind,
                       size_t count)
{
    const int64_t until_ms = trace->wish.horizon_ms + trace->wish.tail_ms;

    for (size_t i = 0; i < count; i++) {
        struct sim_fault fault = {.kind = kind,
                                  .node = (int32_t)between(d, 0, trace->wish.nodes - 1),
                                  .at_ms = between(d, SIM_MINUTE_MS, until_ms),
                                  .deadline_ms = between(d, 10, 60) * SIM_MINUTE_MS};
        bool is_free = true;

        fault.back_ms = fault.at_ms + (int64_t)log_normal(d, 90, 0.7) * SIM_MINUTE_MS +
                        (kind == SIM_NODE_DRAINED ? fault.deadline_ms : 10 * SIM_MINUTE_MS);
        for (size_t k = 0; k < trace->fault_count; k++)
            is_free &= trace->faults[k].node != fault.node ||
                       trace->faults[k].at_ms > fault.back_ms + SIM_HOUR_MS ||
                       fault.at_ms > trace->faults[k].back_ms + SIM_HOUR_MS;
        if (is_free)
            trace->faults[trace->fault_count++] = fault;
    }
}

static bool make_faults(struct sim_trace *trace)
{
    const double node_days = (double)trace->wish.nodes *
                             (double)(trace->wish.horizon_ms + trace->wish.tail_ms) /
                             (double)(24 * SIM_HOUR_MS);
    struct draws d = {.key = hd_random_key(trace->wish.seed, 2)};
    const double failures = 3.8 * node_days / 1000, drains = 2 * node_days / 1000;
    const size_t failing = (size_t)failures + (uniform(&d) < failures - floor(failures));
    const size_t drained = (size_t)drains + (uniform(&d) < drains - floor(drains));

    trace->faults = calloc(failing + drained + 1, sizeof *trace->faults);
    if (!trace->faults)
        return false;
    add_faults(&d, trace, SIM_NODE_FAILS, failing);
    add_faults(&d, trace, SIM_NODE_DRAINED, drained);
    qsort(trace->faults, trace->fault_count, sizeof *trace->faults, by_time);
    return true;
}

struct sim_trace *sim_trace_new(const struct sim_trace_job *wish)
{
    struct sim_trace *trace = calloc(1, sizeof *trace);

    if (!trace)
        return NULL;
    trace->wish = *wish;
    if (make_jobs(trace) && make_faults(trace))
        return trace;
    sim_trace_free(trace);
    return NULL;
}

void sim_trace_free(struct sim_trace *trace)
{
    if (!trace)
        return;
    free(trace->jobs);
    free(trace->faults);
    free(trace);
}
