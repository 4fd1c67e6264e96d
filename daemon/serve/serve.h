/* serve: serves a model by HTTP, with the API of OpenAI: /v1/completions, /v1/chat/completions,
 * /v1/models, and /health.
 *
 *     listener (lib/http) --> ask.h --> call: a request, with an item for each choice --> work.h
 *          ^                              |
 *          '---- reply.h <----------------'
 *
 * Limits: bytes of a body, choices of a request, choices that wait or run, duration of a request. A
 * request over a limit is refused with an error that names the limit.
 *
 * Used by: main.   Uses: http, generate, rpc (token files), uv.
 * Threads: those of the loop, of the listener (lib/http) and of the model (work.h).
 */
#ifndef HD_SERVE_SERVE_H
#define HD_SERVE_SERVE_H

#include <uv.h>

#include "http/http.h"
#include "rpc/rpc.h"
#include "serve/ask.h"
#include "serve/work.h"

struct serve_options {
    struct serve_work_options work; /* set except on_event and user */
    struct hd_http_options http;    /* address, hosts, TLS, body_bytes_max */
    const char *name;               /* name of the model in answers and requests; NULL: the name of
                                       its job, or of its folder */
    /* file with the tokens of users; NULL: requests need no token */
    const char *token_file;
    int64_t queue_max;  /* choices that may wait or run */
    int64_t timeout_ms; /* limit of the time of one request, ms */
    /* time for running requests after the first signal to stop, ms */
    int64_t grace_ms;
};

/* Loads the model, opens the listener, prints its address on stdout, and serves requests until
 * SIGTERM or SIGINT. Running requests may then finish within grace_ms; a second signal ends them at
 * once. */
enum hd_status serve_run(const struct serve_options *options);

/* ---- shared by the files of this folder ---- */

struct serve_token { /* one token with its log-probability */
    int32_t id;
    double log_probability;
    struct hd_likely top[HD_GENERATE_TOP_MAX];
    int top_count;
};

struct serve_choice {
    struct serve_item item;
    struct serve_call *call;
    /* text of the choice, UTF-8; in a stream only the part that is not sent yet */
    struct hd_text text;
    struct serve_token *tokens; /* in a stream, those not sent yet; token_capacity is the
                                   capacity of this array */
    size_t token_count, token_capacity;
    int64_t characters; /* number of characters of earlier tokens, for text_offset */
    int64_t drawn;
    /* all tokens are generated; has_begun: a part of the choice was sent in a stream */
    bool ended, has_begun;
    enum serve_end end;
    /* in a stream of a chat with tools: bytes of `text` that were sent; such a text is kept, as the
     * calls in it are found at the end */
    size_t sent_bytes;
};

struct serve_call {
    struct serve *serve;
    struct serve_call *before, *next;
    struct hd_http_request *request; /* NULL: the client has disconnected, or got its answer */
    struct hd_arena arena;           /* memory of the texts of ask.stops */
    struct hd_ask ask;               /* model, prompt and messages are valid only until the call has
                                        begun */
    struct hd_json *tools;       /* copy of ask.tools, names only; NULL: the model gets no tools */
    enum hd_call_form call_form; /* form of calls, if there are tools */
    const char *call_begin;      /* text that begins each answer (tool_choice); NULL: none */
    char id[48];
    int64_t created; /* time when the request arrived, seconds since 1970 */
    int64_t begun_ms, deadline_ms;
    struct serve_choice *choices;
    int64_t choice_count, running, prompt_tokens;
    bool is_streaming, is_cancelled;
    struct hd_error error; /* why the call fails; HD_OK: it does not */
};

/* number of signal handles: two to stop, one to read certificate and tokens again */
enum { SERVE_SIGNALS = 3 };

struct serve {
    struct serve_options options;
    char name[256]; /* name of the model's folder */
    uv_loop_t loop;
    uv_timer_t timer;
    uv_signal_t signals[SERVE_SIGNALS];
    struct hd_http *http;
    struct serve_work *work;
    struct hd_rpc_tokens tokens;
    struct serve_call *calls;
    int64_t choices; /* choices that wait or run */
    bool stopping, closed;
    int64_t stop_ms;  /* monotonic time (ms) at which running requests are cancelled */
    int64_t quiet_ms; /* monotonic time (ms) at which the last call ended; 0: not set */
};

/* ---- call.c ---- */
void serve_call_begin(struct serve *serve, struct hd_http_request *request, enum hd_ask_kind kind);
void serve_call_event(void *user, const struct serve_event *event);
/* Cancels the calls past their deadline or, if `all` is set, all calls. */
void serve_calls_end(struct serve *serve, int64_t now_ms, bool all);

/* reply.c: writes JSON of answers */
void serve_write_failure(struct hd_text *out, int status, const char *word, const char *message);
void serve_write_error(struct hd_text *out, int status, const char *word, const char *param,
                       const char *message);
void serve_write_models(const struct serve *serve, struct hd_text *out, bool one);
/* Writes the JSON of the whole answer to a call. */
void serve_write_answer(struct serve_call *call, struct hd_text *out);
/* Returns how many bytes of a choice's text can be sent now: in a chat with tools those that belong
 * to no call. */
size_t serve_unsent(const struct serve_choice *choice);
/* Writes the unsent part of a choice as one event of a stream, and marks it as sent. */
void serve_write_chunk(struct serve_choice *choice, struct hd_text *out);
/* Writes the last events of a stream. */
void serve_write_stream_end(const struct serve_call *call, struct hd_text *out);
int serve_status_of(enum hd_status st); /* returns the HTTP status for st */

#endif
