/* ask: what a request for text asks for: the bodies of /v1/completions and /v1/chat/completions,
 * which are those of OpenAI's API.
 *
 * A setting that would change the answer and is not supported is an error that names it, as is a
 * key that is not known; keys that change nothing (user, metadata ..) are taken.
 *
 * Used by: serve, its tests.   Uses: base, generate (the forms of settings).   Threads: any; pure.
 */
#ifndef HD_SERVE_ASK_H
#define HD_SERVE_ASK_H

#include "base/json.h"
#include "generate/sample.h"
#include "generate/written.h"

enum {
    HD_ASK_CHOICES_MAX = 1024,  /* prompts times n */
    HD_ASK_VALUES_MAX = 1 << 19 /* JSON values of a body: ids of prompts, mostly */
};

enum hd_ask_kind { HD_ASK_COMPLETION, HD_ASK_CHAT };

/* The strings and values live in the arena. */
struct hd_ask {
    enum hd_ask_kind kind;
    const char *model;            /* NULL: not named */
    const struct hd_json *prompt; /* completion: a text, a list of texts, of ids, or of lists of
                                     ids */
    int64_t prompt_count;
    const struct hd_json *messages; /* chat: a list */
    int64_t n;                      /* choices of each prompt */
    int64_t max_tokens;             /* -1: as many as the context has room for */
    struct hd_sampling sampling;
    bool has_seed;
    const char *stops[HD_STOP_TEXTS_MAX];
    int stop_count;
    bool echo, stream, include_usage;
    bool reports_odds; /* log-probabilities, with those of the `top` most likely tokens */
    int top;
};

/* HD_INVALID, HD_LIMIT, HD_UNSUPPORTED: the message says what is wrong; *ret_param, if not NULL, is
 * the key. */
enum hd_status hd_ask_read(struct hd_arena *arena, enum hd_ask_kind kind, const char *body,
                           size_t body_bytes, struct hd_ask *ret_ask, const char **ret_param);

/* Prompt `index` of a completion: a text, or a list of ids. */
const struct hd_json *hd_ask_prompt(const struct hd_ask *ask, int64_t index);

/* The messages as JSON for a chat template: content that is a list of texts becomes one text. */
void hd_ask_write_messages(const struct hd_json *messages, struct hd_text *ret_json);

#endif
