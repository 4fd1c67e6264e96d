/* answer: makes responses, with headers that forbid the browser to load anything from other sites.
 * Threads: any. */
#include "http/http_internal.h"

#include <stdlib.h>

#include "base/json.h"

static const char *const headers[][2] = {
    {"Connection", "close"},
    {"Cache-Control", "no-store"},
    {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; "
                                "connect-src 'self'; img-src 'self'; base-uri 'none'; "
                                "form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
};

void http_add_headers(const struct hd_http *http, struct MHD_Response *response, int status,
                      const char *type)
{
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++)
        (void)MHD_add_response_header(response, headers[i][0], headers[i][1]);
    (void)MHD_add_response_header(response, "Content-Type", type);
    if (status == MHD_HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"heddle\"");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(
            response, "Allow", http->options.body_bytes_max ? "GET, HEAD, POST" : "GET, HEAD");
}

struct MHD_Response *http_make_response(const struct hd_http *http, int status, const char *type,
                                        struct hd_text *text)
{
    struct MHD_Response *response;

    if (text->failed) {
        hd_text_free(text);
        return NULL;
    }
    response = MHD_create_response_from_buffer(text->len_bytes, text->data ? text->data : "",
                                               text->data ? MHD_RESPMEM_MUST_FREE
                                                          : MHD_RESPMEM_PERSISTENT);
    if (!response)
        free(text->data);
    *text = (struct hd_text){0};
    if (response)
        http_add_headers(http, response, status, type);
    return response;
}

static void write_failure(struct hd_text *out, int status, const char *word, const char *message)
{
    struct hd_json_writer w = {.out = out};

    (void)status;
    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "error", '{');
    hd_json_add_string(&w, "status", word);
    hd_json_add_string(&w, "message", message);
    hd_json_end(&w, '}');
    hd_json_end(&w, '}');
    hd_text_add(out, "\n");
}

struct MHD_Response *http_make_failure(const struct hd_http *http, int status, const char *word,
                                       const char *message)
{
    struct hd_text text = {0};

    (http->options.write_failure ? http->options.write_failure : write_failure)(&text, status, word,
                                                                                message);
    return http_make_response(http, status, "application/json", &text);
}

int hd_http_status(enum hd_status st)
{
    switch (st) {
    case HD_NOT_FOUND:
        return MHD_HTTP_NOT_FOUND;
    case HD_INVALID:
    case HD_UNSUPPORTED:
        return MHD_HTTP_BAD_REQUEST;
    case HD_DENIED:
        return MHD_HTTP_FORBIDDEN; /* caller is authorised; others get 401 (request.c: handle) */
    case HD_LIMIT:
    case HD_NO_MEMORY:
    case HD_UNAVAILABLE:
    case HD_ABORTED:
    case HD_TIMEOUT:
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    default:
        return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
}
