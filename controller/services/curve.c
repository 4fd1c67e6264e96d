/* curve: a job's training curve, downsampled (downsample.h) for display.
 *
 *   request -> read new history, one query at a time -> reply when all is read, or after 0.3 s
 *
 * The most recently requested curves are cached. A query takes the store's thread milliseconds, and
 * commits run between two queries.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "controller/services/downsample.h"
#include "controller/services/web.h"
#include "controller/show/show.h"
#include "job/job.h"

enum {
    CURVES_MAX = 16,
    STEPS_PER_QUERY = 4000,
    /* longest time that a request waits for its curve, ms; then the reply has the steps read so far
     * and "complete": false */
    ANSWER_MS = 300,
    WAITERS_MAX = 32,
};

struct curve {
    struct controller *c; /* NULL: the listener was closed while a query was in flight */
    struct curve *next;   /* next curve of the list, which was requested longer ago */
    /* job's number; sequence number of the newest entry of its history that was read */
    uint64_t job, after;
    bool busy; /* a query for the job's history is in flight */
    struct downsample downsample;
    struct {
        struct hd_http_request *request;
        int64_t since_ms, buckets;
    } waiters[WAITERS_MAX];
    size_t waiter_count;
};

static void fold(struct curve *curve, const struct hd_query *query)
{
    for (size_t i = 0; i < query->entry_count; i++) {
        const struct hd_history_entry *entry = &query->entries[i];

        if (entry->kind == HD_OP_STEP)
            downsample_add_step(&curve->downsample, &entry->step);
        else
            downsample_add_validation(&curve->downsample, &entry->validation);
        curve->after = entry->sequence;
    }
}

/* ---- answers ----------------------------------------------------------------------------------*/

/* Appends a number with the precision that curves are shown with; null if it is not finite. */
static void add_number(struct hd_text *out, bool comma, double value)
{
    if (isfinite(value))
        hd_text_add(out, "%s%.6g", comma ? "," : "", value);
    else
        hd_text_add(out, "%snull", comma ? "," : "");
}

static void add_series(struct hd_json_writer *w, const struct downsample_bucket *buckets,
                       size_t count, int metric)
{
    static const char *const keys[] = {"min", "max", "last"};

    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "name", hd_metrics[metric].name);
    for (int k = 0; k < 3; k++) {
        hd_json_begin(w, keys[k], '[');
        for (size_t i = 0; i < count; i++)
            add_number(w->out, i > 0,
                       k == 0   ? buckets[i].metrics[metric].min
                       : k == 1 ? buckets[i].metrics[metric].max
                                : buckets[i].metrics[metric].last);
        hd_json_end(w, ']');
    }
    hd_json_end(w, '}');
}

/* Adds the losses of validations, or the scores of questions, whose names have a slash. */
static void add_dots(struct hd_json_writer *w, const struct downsample *downsample, bool scores)
{
    hd_json_begin(w, scores ? "scores" : "validations", '[');
    for (size_t i = 0; i < downsample->validation_count; i++) {
        const char *set = downsample->validations[i].set;

        if (hd_job_val_report_is_score(set) != scores)
            continue;
        hd_json_begin(w, NULL, '{');
        hd_json_add_int64(w, "step", downsample->validations[i].step);
        hd_json_add_real(w, scores ? "score" : "loss", downsample->validations[i].loss);
        if (*set)
            hd_json_add_string(w, "set", set);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void add_curve(struct hd_json_writer *w, const struct curve *curve, int64_t wish,
                      bool complete, struct downsample_bucket *buckets, int64_t *first)
{
    const struct downsample *downsample = &curve->downsample;
    const size_t stride = downsample_stride(downsample, (size_t)wish);
    const size_t count = downsample_row(downsample, stride, buckets, first);

    show_envelope_begin(w, "Curve");
    hd_json_add_int64(w, "job", (int64_t)curve->job);
    hd_json_add_bool(w, "complete", complete);
    hd_json_add_int64(w, "sequence", (int64_t)curve->after);
    hd_json_add_int64(w, "steps", downsample->steps);
    hd_json_add_int64(w, "last_step", downsample->last_step);
    hd_json_add_int64(w, "bucket_steps", downsample->width * (int64_t)stride);
    hd_json_begin(w, "first_steps", '[');
    for (size_t i = 0; i < count; i++)
        hd_json_add_int64(w, NULL, first[i]);
    hd_json_end(w, ']');
    hd_json_begin(w, "series", '[');
    for (int i = 0; i < HD_METRIC_COUNT; i++)
        if (downsample->present & UINT64_C(1) << i)
            add_series(w, buckets, count, i);
    hd_json_end(w, ']');
    add_dots(w, downsample, false);
    add_dots(w, downsample, true);
    hd_json_end(w, '}');
    hd_text_add(w->out, "\n");
}

static void answer_one(const struct curve *curve, struct hd_http_request *request, int64_t wish,
                       bool complete)
{
    struct downsample_bucket *buckets = malloc(DOWNSAMPLE_BUCKETS * sizeof *buckets);
    int64_t *first = malloc(DOWNSAMPLE_BUCKETS * sizeof *first);
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};

    if (buckets && first)
        add_curve(&w, curve, wish, complete, buckets, first);
    else
        text.failed = true;
    hd_http_reply(request, 200, "application/json", &text);
    free(buckets);
    free(first);
}

/* Replies to the requests that have waited ANSWER_MS for the curve; to all of them if the curve is
 * complete. */
static void answer_waiters(struct curve *curve, bool complete)
{
    const int64_t now_ms = hd_clock_now_ms();
    size_t left = 0;

    for (size_t i = 0; i < curve->waiter_count; i++) {
        if (complete || now_ms - curve->waiters[i].since_ms >= ANSWER_MS)
            answer_one(curve, curve->waiters[i].request, curve->waiters[i].buckets, complete);
        else
            curve->waiters[left++] = curve->waiters[i];
    }
    curve->waiter_count = left;
}

static void fail_waiters(struct curve *curve, enum hd_status st)
{
    for (size_t i = 0; i < curve->waiter_count; i++)
        hd_http_fail(curve->waiters[i].request, st);
    curve->waiter_count = 0;
}

/* ---- reading ----------------------------------------------------------------------------------*/

static void free_curve(struct curve *curve)
{
    downsample_done(&curve->downsample);
    free(curve);
}

static void drop(struct controller *c, struct curve *curve)
{
    struct curve **at = &c->web->curves;

    while (*at != curve)
        at = &(*at)->next;
    *at = curve->next;
    c->web->curve_count--;
    free_curve(curve);
}

static void read_more(struct curve *curve);

static void on_steps(struct hd_query *query, enum hd_status st)
{
    struct curve *curve = query->user;
    bool more;

    curve->busy = false;
    if (!st)
        fold(curve, query);
    more = query->more;
    hd_query_free(query);
    if (!curve->c) { /* the listener was closed */
        fail_waiters(curve, hd_err(HD_UNAVAILABLE, "the controller is stopping"));
        free_curve(curve);
        return;
    }
    if (st) {
        fail_waiters(curve, st);
        drop(curve->c, curve);
        return;
    }
    answer_waiters(curve, !more);
    if (more && curve->waiter_count)
        read_more(curve);
}

static void read_more(struct curve *curve)
{
    struct hd_query *query = hd_query_new(HD_QUERY_STEPS);

    if (!query) {
        fail_waiters(curve, hd_err(HD_NO_MEMORY, "no memory for a curve"));
        return;
    }
    query->job = curve->job;
    query->after = curve->after;
    query->limit = STEPS_PER_QUERY;
    query->done = on_steps;
    query->user = curve;
    curve->busy = true;
    hd_store_query(curve->c->store, query);
}

/* Returns the job's cached or new curve, moved to the front of the list. A new one replaces the
 * least recently requested one. NULL: out of memory, or all curves are busy. */
static struct curve *find_curve(struct controller *c, uint64_t job)
{
    struct web *web = c->web;
    struct curve *curve, *oldest = NULL;

    for (struct curve **at = &web->curves; (curve = *at) != NULL; at = &curve->next) {
        if (curve->job == job) {
            *at = curve->next;
            curve->next = web->curves;
            web->curves = curve;
            return curve;
        }
        oldest = curve->busy ? oldest : curve;
    }
    if (web->curve_count == CURVES_MAX) {
        if (!oldest)
            return NULL;
        drop(c, oldest);
    }
    curve = calloc(1, sizeof *curve);
    if (!curve)
        return NULL;
    *curve = (struct curve){.c = c, .next = web->curves, .job = job};
    if (!downsample_init(&curve->downsample)) {
        free(curve);
        return NULL;
    }
    web->curves = curve;
    web->curve_count++;
    return curve;
}

void curve_answer(struct controller *c, struct hd_http_request *request, uint64_t job)
{
    enum hd_status st = web_check_params(request, "buckets");
    struct curve *curve;
    int64_t buckets = 0;

    if (!st)
        st = web_number(request, "buckets", 16, DOWNSAMPLE_BUCKETS, DOWNSAMPLE_BUCKETS / 2,
                        &buckets);
    if (st) {
        hd_http_fail(request, st);
        return;
    }
    curve = find_curve(c, job);
    if (!curve || curve->waiter_count == WAITERS_MAX) {
        hd_http_fail(request, hd_err(HD_LIMIT, "too many curves are asked for; try again"));
        return;
    }
    curve->waiters[curve->waiter_count].request = request;
    curve->waiters[curve->waiter_count].buckets = buckets;
    curve->waiters[curve->waiter_count++].since_ms = hd_clock_now_ms();
    if (!curve->busy)
        read_more(curve);
}

void curve_free_all(struct controller *c)
{
    for (struct curve *curve = c->web->curves, *next; curve; curve = next) {
        next = curve->next;
        curve->c = NULL; /* a busy curve is freed when its query ends */
        if (!curve->busy)
            free_curve(curve);
    }
    c->web->curves = NULL;
}
