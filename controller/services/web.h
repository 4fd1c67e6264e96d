/* web: what the files of the HTTP listener share (web.c, web_api.c, web_param.c, curve.c).
 *
 *   GET /  /app.js  /app.css  /icon.svg      the dashboard; no data, so no token
 *   GET /metrics                             metrics.c
 *   GET /api/v1/...                          web_api.c: the objects of `heddle ... -o json`
 *   GET /api/v1/jobs/N/curve                 curve.c: the steps of a job, thinned
 *   GET /api/v1/stream                       web.c: a line when something has changed
 *
 * Nothing here changes anything.   Used by: these files.   Threads: the loop's.
 */
#ifndef HD_CONTROLLER_SERVICES_WEB_H
#define HD_CONTROLLER_SERVICES_WEB_H

#include "controller/services/internal.h"
#include "http/http.h"

/* Who asks, and what of the jobs of others they see. */
struct web_reader {
    char name[HD_CTL_NAME_BYTES_MAX + 1];
    enum hd_visibility visibility;
};

struct web {
    struct hd_http *http;
    bool tls;
    bool asks_tokens; /* when it was opened: a reload may take tokens away, and the listener stays
                         closed */
    struct web_reader reader; /* of the request that is being answered */
    struct web_stream *streams;
    struct curve *curves;
    size_t curve_count;
    uint64_t cluster_changes; /* that streams were told of */
};

/* Answers a request for /api/v1/... */
void web_api(struct controller *c, struct hd_http_request *request, const char *path);

/* ---- web_param.c ------------------------------------------------------------------------------*/

/* The parameter as a number; `otherwise` if it is not given. HD_INVALID: it is none. */
enum hd_status web_number(const struct hd_http_request *request, const char *name, int64_t min,
                          int64_t max, int64_t otherwise, int64_t *ret_value);

/* Refuses parameters that are not in `known`, which has spaces between the names. */
enum hd_status web_check_params(const struct hd_http_request *request, const char *known);

/* ---- web_api.c, curve.c
 * ------------------------------------------------------------------------*/

/* Lets the query find only the reader's own jobs, if seeing those of others needs more than the
 * reader has; control_see for a reader. */
void web_see(const struct web_reader *reader, enum hd_visibility needed, struct hd_query *query);
/* Returns the veil of answers to the reader; guard_veil for a reader. */
struct veil web_veil(const struct controller *c, const struct web_reader *reader);

void curve_answer(struct controller *c, struct hd_http_request *request, uint64_t job);
void curve_free_all(struct controller *c); /* queries in progress end without post-commit action */

#endif
