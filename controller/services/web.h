/* web: the HTTP listener; what its files share (web.c, web_api.c, web_param.c, curve.c).
 *
 *   GET /  /app.js  /app.css  /icon.svg    the dashboard; contains no data, so it needs no token
 *   GET /metrics                           metrics.c
 *   GET /api/v1/...                        web_api.c: the objects of `heddle ... -o json`
 *   GET /api/v1/jobs/N/curve               curve.c: a job's training curve, downsampled
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
    /* tokens were required when the listener opened; if a reload removes all tokens, requests are
     * refused rather than served without one */
    bool asks_tokens;
    struct web_reader reader; /* user of the current request */
    struct web_stream *streams;
    struct curve *curves;
    size_t curve_count;
    uint64_t cluster_changes; /* stats.cluster_changes when streams were last notified */
};

/* Replies to a request for /api/v1/<path>. */
void web_api(struct controller *c, struct hd_http_request *request, const char *path);

/* ---- web_param.c ------------------------------------------------------------------------------*/

/* Parses the parameter as a number; sets `otherwise` if it is absent. HD_INVALID: it is not a
 * number from min to max. */
enum hd_status web_number(const struct hd_http_request *request, const char *name, int64_t min,
                          int64_t max, int64_t otherwise, int64_t *ret_value);

/* Refuses parameters that are not in `known`, a list of names separated by spaces. */
enum hd_status web_check_params(const struct hd_http_request *request, const char *known);

/* ---- web_api.c, curve.c
 * ------------------------------------------------------------------------- */

/* Restricts the query to the reader's own jobs if the reader's visibility is lower than `needed`;
 * control_see for HTTP. */
void web_see(const struct web_reader *reader, enum hd_visibility needed, struct hd_query *query);
/* Returns the veil for replies to the reader; guard_veil for HTTP. */
struct veil web_veil(const struct controller *c, const struct web_reader *reader);

void curve_answer(struct controller *c, struct hd_http_request *request, uint64_t job);
/* Detaches queries in progress: their results are dropped. */
void curve_free_all(struct controller *c);

#endif
