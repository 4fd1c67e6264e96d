/* serve: a model by HTTP, with the API of OpenAI: /v1/completions, /v1/chat/completions,
 * /v1/models, and /health.
 *
 *     door (lib/http) --> ask.h --> call: a request, an item for each of its choices --> work.h
 *          ^                          |
 *          '---- reply.h <------------'
 *
 * Bounds: bytes of a body, choices of a request, choices that wait or run, time of a request. What
 * is over one is refused by an error that names it.
 *
 * Used by: main.   Uses: http, generate, rpc (token files), uv.
 * Threads: the loop's, the door's (lib/http) and the model's (work.h).
 */
#ifndef HD_SERVE_SERVE_H
#define HD_SERVE_SERVE_H

#include <uv.h>

#include "http/http.h"
#include "rpc/rpc.h"
#include "serve/ask.h"
#include "serve/work.h"

struct serve_options {
    struct serve_work_options work; /* without on_event and user */
    struct hd_http_options http;    /* address, hosts, TLS, body_bytes_max */
    const char *name;               /* of the model, in answers and requests; NULL: its job's, or
                                       that of its folder */
    const char *token_file;         /* NULL: none is asked for */
    int64_t queue_max;              /* choices that wait or run */
    int64_t timeout_ms;             /* of a request */
    int64_t grace_ms;               /* for requests under way, when the program is to end */
};

/* Loads the model, opens the door, prints its address on stdout, and serves until SIGTERM or
 * SIGINT: requests under way are then answered, within grace_ms; a second signal ends them at once.
 */
enum hd_status serve_run(const struct serve_options *options);

/* ---- shared by the files of this folder ---- */

struct serve_token { /* with its odds */
    int32_t id;
    double log_probability;
    struct hd_likely top[HD_GENERATE_TOP_MAX];
    int top_count;
};

struct serve_choice {
    struct serve_item item;
    struct serve_call *call;
    struct hd_text text;        /* UTF-8; of a stream what is not sent yet */
    struct serve_token *tokens; /* of a stream those that are not sent yet */
    size_t token_count, context_tokens_left;
    int64_t characters; /* of the tokens before those: text_offset */
    int64_t drawn;
    bool ended, has_begun; /* has_begun: a stream has sent something of it */
    enum serve_end end;
};

struct serve_call {
    struct serve *serve;
    struct serve_call *before, *next;
    struct hd_http_request *request; /* NULL: the client has gone, or is answered */
    struct hd_arena arena;           /* of the texts of ask.stops */
    struct hd_ask ask;               /* model, prompt and messages only until the call has begun */
    char id[48];
    int64_t created; /* seconds since 1970 */
    int64_t begun_ms, deadline_ms;
    struct serve_choice *choices;
    int64_t choice_count, running, prompt_tokens;
    bool is_streaming, is_cancelled;
    struct hd_error error; /* HD_OK: none */
};

enum { SERVE_SIGNALS = 3 }; /* to end, and to read certificate and tokens again */

struct serve {
    struct serve_options options;
    char name[256]; /* of a folder */
    uv_loop_t loop;
    uv_timer_t timer;
    uv_signal_t signals[SERVE_SIGNALS];
    struct hd_http *http;
    struct serve_work *work;
    struct hd_rpc_tokens tokens;
    struct serve_call *calls;
    int64_t choices; /* that wait or run */
    bool stopping, closed;
    int64_t stop_ms;  /* when what still runs is ended */
    int64_t quiet_ms; /* since when no call was left; 0: one is */
};

/* call.c */
void serve_call_begin(struct serve *serve, struct hd_http_request *request, enum hd_ask_kind kind);
void serve_call_event(void *user, const struct serve_event *event);
/* Ends the calls whose time is up, and all of them with `all`. */
void serve_calls_end(struct serve *serve, int64_t now_ms, bool all);

/* reply.c: JSON of answers */
void serve_write_failure(struct hd_text *out, int status, const char *word, const char *message);
void serve_write_error(struct hd_text *out, int status, const char *word, const char *param,
                       const char *message);
void serve_write_models(const struct serve *serve, struct hd_text *out, bool one);
/* The whole answer. */
void serve_write_answer(struct serve_call *call, struct hd_text *out);
/* A line of a stream with what a choice has that is not sent yet; then it has been. */
void serve_write_chunk(struct serve_choice *choice, struct hd_text *out);
/* The last lines of a stream. */
void serve_write_stream_end(const struct serve_call *call, struct hd_text *out);
int serve_status_of(enum hd_status st); /* of HTTP */

#endif
