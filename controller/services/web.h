/* web: the HTTP listener; what its files share (web.c, web_api.c, web_param.c, curve.c).
 *
 *   GET /  /app.js  /app.css  /icon.svg    the dashboard; contains no data, so it needs no token
 *   GET /metrics                           metrics.c
 *   GET /api/v1/...                        web_api.c: the objects of `heddle ... -o json`
 *   GET /api/v1/jobs/N/curve               curve.c: a job's training curve, downsampled
 *   GET /api/v1/jobs/N/log                 read_log.c: a piece of a rank's log
 *   GET /api/v1/jobs/N/resolved            web_api.c: the job as an attempt's ranks read it
 *   GET /api/v1/stream                     web.c: a line after each change
 *
 * All requests are read-only.   Used by: these files.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_WEB_H
#define HD_CONTROLLER_SERVICES_WEB_H

#include "controller/services/internal.h"
#include "http/http.h"

/* The user of a request, and which jobs of other users it sees. */
struct web_reader {
    char name[HD_CTL_NAME_BYTES_MAX + 1];
    enum hd_visibility visibility;
};

struct web {
    struct hd_http *http;
    bool tls;
    /* Tokens were required when the listener opened. If a reload removes all tokens, requests are
     * refused rather than served without one. */
    bool asks_tokens;
    struct web_reader reader; /* user of the current request */
    struct web_stream *streams;
    struct curve *curves;
    size_t curve_count;
    /* value of stats.cluster_changes when the open streams last got a line */
    uint64_t cluster_changes;
};

/* Replies to a request for /api/v1/<path>. */
void web_api(struct controller *c, struct hd_http_request *request, const char *path);

/* ---- web_param.c ------------------------------------------------------------------------------*/

/* Sets the result to the request's parameter `name`, parsed as a number; to `otherwise` if the
 * parameter is absent. HD_INVALID: it is not a number from min to max. */
enum hd_status web_number(const struct hd_http_request *request, const char *name, int64_t min,
                          int64_t max, int64_t otherwise, int64_t *ret_value);

/* Returns HD_INVALID if the request has a parameter whose name is not in `known`, a list of names
 * separated by spaces. */
enum hd_status web_check_params(const struct hd_http_request *request, const char *known);

/* ---- web_api.c, curve.c, read_log.c -----------------------------------------------------------*/

/* Restricts the query to the reader's own jobs if the reader's visibility (identity.h) is lower
 * than `needed`. Does for HTTP what control_see does for gRPC. */
void web_see(const struct web_reader *reader, enum hd_visibility needed, struct hd_query *query);
/* Returns the filter that hides other users' jobs in replies to the reader (veil.h). */
struct veil web_veil(const struct controller *c, const struct web_reader *reader);

/* Answers with a piece of a rank's log (read_log.c). Takes the query, which finds the job if the
 * reader may see it; NULL: out of memory. */
void read_log_answer(struct controller *c, struct hd_http_request *request, struct hd_query *query);

void curve_answer(struct controller *c, struct hd_http_request *request, uint64_t job);
/* Detaches the curves' queries in progress: their results are dropped. */
void curve_free_all(struct controller *c);

#endif
