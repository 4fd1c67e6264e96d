/* ask: parses requests for text: the bodies of /v1/completions and /v1/chat/completions, in the
 * format of OpenAI's API.
 *
 * An unsupported setting that would change the answer is an error that names the setting, as is an
 * unknown key. Keys that do not change the answer (user, metadata ..) are ignored.
 *
 * Used by: serve, its tests.   Uses: base, generate (the forms of settings).   Threads: any; pure.
 */
#ifndef HD_SERVE_ASK_H
#define HD_SERVE_ASK_H

#include "base/json.h"
#include "generate/written.h"
#include "train/sample.h"

enum {
    HD_ASK_CHOICES_MAX = 1024,  /* limit of the choices of one request (prompts times n) */
    HD_ASK_VALUES_MAX = 1 << 19 /* limit of JSON values in a body, mostly token ids */
};

enum hd_ask_kind { HD_ASK_COMPLETION, HD_ASK_CHAT };

/* A parsed request; its strings and values live in the arena. */
struct hd_ask {
    enum hd_ask_kind kind;
    const char *model;            /* name of the model; NULL: the request names none */
    const struct hd_json *prompt; /* completion: a text, a list of texts, of ids, or of lists of
                                     ids; chat: NULL */
    int64_t prompt_count;
    const struct hd_json *messages; /* chat: list of messages; completion: NULL */
    /* chat: list of tools that the model may call; NULL: none, or tool_choice is "none" */
    const struct hd_json *tools;
    bool one_call; /* parallel_tool_calls is false: an answer has at most one call */
    /* the answer begins with a call (tool_choice); must_call NULL: of any tool, if must_call_any */
    bool must_call_any;
    const char *must_call; /* name of the tool that is called; NULL: none is named */
    int64_t n;             /* choices per prompt */
    /* limit of tokens to generate per choice; -1: up to the end of the context */
    int64_t max_tokens;
    struct hd_sampling sampling;
    bool has_seed;
    const char *stops[HD_STOP_TEXTS_MAX];
    int stop_count;
    bool echo, stream, include_usage;
    bool reports_odds; /* the reply has log-probabilities, also of the `top` most likely tokens */
    int top;
};

/* Parses the body of a request. HD_INVALID, HD_LIMIT, HD_UNSUPPORTED: the message says what is
 * wrong; *ret_param is the key with the error, or NULL if the error belongs to no key. */
enum hd_status hd_ask_read(struct hd_arena *arena, enum hd_ask_kind kind, const char *body,
                           size_t body_bytes, struct hd_ask *ret_ask, const char **ret_param);

/* Returns prompt `index` of a completion: a text, or a list of ids. */
const struct hd_json *hd_ask_prompt(const struct hd_ask *ask, int64_t index);

/* Writes the messages as JSON for a chat template; content that is a list of text parts becomes one
 * text, and the arguments of tool calls, a text with JSON, an object, as templates expect them. With
 * tools the result is an object of messages and tools. HD_INVALID: arguments are no object. */
enum hd_status hd_ask_write_messages(struct hd_arena *arena, const struct hd_ask *ask,
                                     struct hd_text *ret_json);

#endif
