#include "serve/ask.h"

#include <string.h>

#include "generate/generator.h"

enum { N_MAX = 128, COMPLETION_TOKENS = 16 /* OpenAI's default of max_tokens */ };

struct ask_reading {
    const struct hd_json *value; /* value of the key being read; never NULL */
    struct hd_ask *ask;
    bool hides_tools; /* tool_choice is "none" */
};

/* ---- values of one kind ---- */

static enum hd_status wrong(const char *what)
{
    return hd_err(HD_INVALID, "must be %s", what);
}

static enum hd_status read_bool(const struct hd_json *v, bool *ret)
{
    if (v->kind != HD_JSON_TRUE && v->kind != HD_JSON_FALSE)
        return wrong("true or false");
    *ret = v->kind == HD_JSON_TRUE;
    return HD_OK;
}

static enum hd_status read_int(const struct hd_json *v, int64_t min, int64_t max, int64_t *ret)
{
    if (v->kind != HD_JSON_NUMBER || hd_json_to_int64(v, min, max, ret))
        return hd_err(HD_INVALID, "must be a whole number from %lld to %lld", (long long)min,
                      (long long)max);
    return HD_OK;
}

static enum hd_status read_real(const struct hd_json *v, double min, double max, double *ret)
{
    if (v->kind != HD_JSON_NUMBER || hd_text_to_double(v->text, min, max, ret))
        return hd_err(HD_INVALID, "must be a number from %g to %g", min, max);
    return HD_OK;
}

/* ---- the keys ---- */

static bool all_are(const struct hd_json *list, enum hd_json_kind kind)
{
    for (const struct hd_json *v = list->first; v; v = v->next)
        if (v->kind != kind)
            return false;
    return true;
}

static enum hd_status check_ids(const struct hd_json *list)
{
    int64_t id;

    if (!list->count)
        return hd_err(HD_INVALID, "a list of token ids is empty");
    for (const struct hd_json *v = list->first; v; v = v->next)
        if (v->kind != HD_JSON_NUMBER || hd_json_to_int64(v, 0, INT32_MAX, &id))
            return hd_err(HD_INVALID, "\"%.20s\" is no token id", v->text ? v->text : "");
    return HD_OK;
}

static enum hd_status read_prompt(struct ask_reading *r)
{
    const struct hd_json *v = r->value;
    enum hd_status st = HD_OK;

    r->ask->prompt = v;
    r->ask->prompt_count = 1;
    if (v->kind == HD_JSON_STRING)
        return HD_OK;
    if (v->kind != HD_JSON_ARRAY || !v->count)
        return wrong("a text, a list of texts, a list of token ids, or a list of such lists");
    if (v->first->kind == HD_JSON_NUMBER)
        return check_ids(v);
    r->ask->prompt_count = (int64_t)v->count;
    if (all_are(v, HD_JSON_STRING))
        return HD_OK;
    if (!all_are(v, HD_JSON_ARRAY))
        return wrong("a text, a list of texts, a list of token ids, or a list of such lists");
    for (const struct hd_json *list = v->first; !st && list; list = list->next)
        st = check_ids(list);
    return st;
}

static enum hd_status check_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i]) == 0)
            return HD_OK;
    return hd_err(HD_INVALID,
                  "the role \"%.30s\" is none of system, developer, user, assistant, tool", role);
}

/* Checks the content of a message: a text, or a list of parts {"type": "text", "text": ..}. Only an
 * assistant's message may lack it. */
static enum hd_status check_content(const struct hd_json *content, const char *role)
{
    const char *text;

    if (!content || content->kind == HD_JSON_NULL)
        return strcmp(role, "assistant") == 0 ? HD_OK : hd_err(HD_INVALID, "it needs content");
    if (content->kind == HD_JSON_STRING)
        return HD_OK;
    if (content->kind != HD_JSON_ARRAY)
        return hd_err(HD_INVALID, "content must be a text or a list of parts");
    for (const struct hd_json *part = content->first; part; part = part->next) {
        const struct hd_json *type = hd_json_member(part, "type");

        if (part->kind != HD_JSON_OBJECT || !type || type->kind != HD_JSON_STRING)
            return hd_err(HD_INVALID, "a part of content has no type");
        if (strcmp(type->text, "text") != 0)
            return hd_err(HD_UNSUPPORTED,
                          "a part of content is of type \"%.30s\"; only \"text\" is "
                          "supported",
                          type->text);
        if (hd_json_need_string(part, "text", &text))
            return hd_err(HD_INVALID, "a part of content has no text");
    }
    return HD_OK;
}

static enum hd_status read_messages(struct ask_reading *r)
{
    int number = 0;
    enum hd_status st = HD_OK;

    if (r->value->kind != HD_JSON_ARRAY || !r->value->count)
        return wrong("a list of messages, of at least one");
    for (const struct hd_json *m = r->value->first; !st && m; m = m->next, number++) {
        const char *role;

        if (m->kind != HD_JSON_OBJECT || hd_json_need_string(m, "role", &role))
            st = hd_err(HD_INVALID, "it needs a role, such as \"user\"");
        if (!st)
            st = check_role(role);
        if (!st)
            st = check_content(hd_json_member(m, "content"), role);
        if (st)
            st = hd_err_prefix(st, "message %d", number);
    }
    r->ask->messages = r->value;
    r->ask->prompt_count = 1;
    return st;
}

static enum hd_status read_model(struct ask_reading *r)
{
    if (r->value->kind != HD_JSON_STRING)
        return wrong("a text");
    r->ask->model = r->value->text;
    return HD_OK;
}

static enum hd_status read_n(struct ask_reading *r)
{
    return read_int(r->value, 1, N_MAX, &r->ask->n);
}

static enum hd_status read_max_tokens(struct ask_reading *r)
{
    return read_int(r->value, 0, INT32_MAX, &r->ask->max_tokens);
}

static enum hd_status read_temperature(struct ask_reading *r)
{
    return read_real(r->value, 0, 100, &r->ask->sampling.temperature);
}

static enum hd_status read_top_p(struct ask_reading *r)
{
    return read_real(r->value, 0, 1, &r->ask->sampling.top_p);
}

static enum hd_status read_top_k(struct ask_reading *r)
{
    int64_t k = 0;
    enum hd_status st = read_int(r->value, -1, INT32_MAX, &k); /* -1: all tokens */

    r->ask->sampling.top_k = k < 0 ? 0 : k;
    return st;
}

static enum hd_status read_seed(struct ask_reading *r)
{
    int64_t seed = 0;
    enum hd_status st = read_int(r->value, INT64_MIN, INT64_MAX, &seed);

    r->ask->has_seed = true;
    r->ask->sampling.seed = (uint64_t)seed;
    return st;
}

static enum hd_status add_stop(struct hd_ask *ask, const struct hd_json *v)
{
    if (v->kind != HD_JSON_STRING || !*v->text)
        return hd_err(HD_INVALID, "must be a text, or a list of texts, none of them empty");
    if (strlen(v->text) > HD_STOP_TEXT_BYTES_MAX)
        return hd_err(HD_INVALID, "a text has more than %d bytes", HD_STOP_TEXT_BYTES_MAX);
    if (ask->stop_count == HD_STOP_TEXTS_MAX)
        return hd_err(HD_INVALID, "more than %d texts", HD_STOP_TEXTS_MAX);
    ask->stops[ask->stop_count++] = v->text;
    return HD_OK;
}

static enum hd_status read_stop(struct ask_reading *r)
{
    enum hd_status st = HD_OK;

    if (r->value->kind != HD_JSON_ARRAY)
        return add_stop(r->ask, r->value);
    for (const struct hd_json *v = r->value->first; !st && v; v = v->next)
        st = add_stop(r->ask, v);
    return st;
}

static enum hd_status read_echo(struct ask_reading *r)
{
    return read_bool(r->value, &r->ask->echo);
}

static enum hd_status read_stream(struct ask_reading *r)
{
    return read_bool(r->value, &r->ask->stream);
}

static enum hd_status read_stream_options(struct ask_reading *r)
{
    const struct hd_json *usage = hd_json_member(r->value, "include_usage");

    if (r->value->kind != HD_JSON_OBJECT)
        return wrong("an object");
    return usage && usage->kind != HD_JSON_NULL ? read_bool(usage, &r->ask->include_usage) : HD_OK;
}

static enum hd_status read_top(struct ask_reading *r)
{
    int64_t top = 0;
    enum hd_status st = read_int(r->value, 0, HD_GENERATE_TOP_MAX, &top);

    r->ask->top = (int)top;
    return st;
}

/* Parses the key logprobs: a number for a completion, a boolean for a chat. */
static enum hd_status read_logprobs(struct ask_reading *r)
{
    if (r->ask->kind == HD_ASK_CHAT)
        return read_bool(r->value, &r->ask->reports_odds);
    r->ask->reports_odds = true;
    return read_top(r);
}

static enum hd_status ignore(struct ask_reading *r)
{
    (void)r;
    return HD_OK;
}

/* Accepts an unsupported setting if its value is the one that changes nothing. */
static enum hd_status need_zero(struct ask_reading *r)
{
    double x;

    return read_real(r->value, 0, 0, &x) ? hd_err(HD_UNSUPPORTED, "is not supported; leave it out, "
                                                                  "or give 0")
                                         : HD_OK;
}

static enum hd_status need_one(struct ask_reading *r)
{
    double x;

    return read_real(r->value, 1, 1, &x) ? hd_err(HD_UNSUPPORTED, "is not supported; leave it out, "
                                                                  "or give 1")
                                         : HD_OK;
}

static enum hd_status need_empty(struct ask_reading *r)
{
    const struct hd_json *v = r->value;

    if (v->kind == HD_JSON_FALSE || (v->kind == HD_JSON_STRING && !*v->text) ||
        ((v->kind == HD_JSON_ARRAY || v->kind == HD_JSON_OBJECT) && !v->count))
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "is not supported; leave it out");
}

static enum hd_status need_text_format(struct ask_reading *r)
{
    const struct hd_json *type = hd_json_member(r->value, "type");

    if (r->value->kind == HD_JSON_OBJECT && type && type->kind == HD_JSON_STRING &&
        strcmp(type->text, "text") == 0)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "only {\"type\": \"text\"} is supported");
}

/* Checks the tools: {"type": "function", "function": {"name": ..}}. */
static enum hd_status read_tools(struct ask_reading *r)
{
    int number = 0;

    if (r->value->kind != HD_JSON_ARRAY)
        return wrong("a list of tools");
    for (const struct hd_json *t = r->value->first; t; t = t->next, number++) {
        const struct hd_json *function = NULL;
        const char *type, *name;

        if (hd_json_need_string(t, "type", &type) || strcmp(type, "function") != 0)
            return hd_err(HD_INVALID, "tool %d: its type is not \"function\"", number);
        if (hd_json_need(t, "function", HD_JSON_OBJECT, &function) ||
            hd_json_need_string(function, "name", &name) || !*name)
            return hd_err(HD_INVALID, "tool %d: it has no function with a name", number);
    }
    r->ask->tools = r->value->count ? r->value : NULL;
    return HD_OK;
}

/* Reads tool_choice: the model may choose, gets no tools, or begins its answer with a call. */
static enum hd_status read_tool_choice(struct ask_reading *r)
{
    const struct hd_json *v = r->value, *function;
    const char *type;

    if (v->kind == HD_JSON_OBJECT) {
        if (hd_json_need_string(v, "type", &type) || strcmp(type, "function") != 0 ||
            hd_json_need(v, "function", HD_JSON_OBJECT, &function) ||
            hd_json_need_string(function, "name", &r->ask->must_call))
            return wrong("auto, none, required, or {\"type\": \"function\", \"function\": "
                         "{\"name\": NAME}}");
        return HD_OK;
    }
    if (v->kind != HD_JSON_STRING)
        return wrong("auto, none, required, or an object that names a function");
    r->hides_tools = strcmp(v->text, "none") == 0;
    r->ask->must_call_any = strcmp(v->text, "required") == 0;
    if (r->hides_tools || r->ask->must_call_any || strcmp(v->text, "auto") == 0)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED, "only \"auto\", \"none\", \"required\" and the name of a "
                                  "function are supported");
}

/* Checks that a call that is asked for is one of the request's tools. Of a single tool, `required`
 * is its name. */
static enum hd_status check_must_call(struct hd_ask *ask)
{
    const struct hd_json *tools = ask->tools;

    if (!ask->must_call_any && !ask->must_call)
        return HD_OK;
    if (!tools)
        return hd_err(HD_INVALID, "a call is asked for, and the request has no tools");
    for (const struct hd_json *t = tools->first; ask->must_call && t; t = t->next)
        if (strcmp(hd_json_member(hd_json_member(t, "function"), "name")->text, ask->must_call) ==
            0)
            return HD_OK;
    if (ask->must_call)
        return hd_err(HD_INVALID, "no tool of the request is called \"%.60s\"", ask->must_call);
    if (tools->count == 1)
        ask->must_call = hd_json_member(hd_json_member(tools->first, "function"), "name")->text;
    return HD_OK;
}

static enum hd_status read_parallel(struct ask_reading *r)
{
    bool many = true;
    enum hd_status st = read_bool(r->value, &many);

    r->ask->one_call = !many;
    return st;
}

enum { IN_COMPLETION = 1, IN_CHAT = 2, IN_BOTH = 3 };

static const struct {
    const char *key;
    int where;
    enum hd_status (*read)(struct ask_reading *r);
} keys[] = {
    {"model", IN_BOTH, read_model},
    {"prompt", IN_COMPLETION, read_prompt},
    {"messages", IN_CHAT, read_messages},
    {"n", IN_BOTH, read_n},
    {"max_tokens", IN_BOTH, read_max_tokens},
    {"max_completion_tokens", IN_CHAT, read_max_tokens},
    {"temperature", IN_BOTH, read_temperature},
    {"top_p", IN_BOTH, read_top_p},
    {"top_k", IN_BOTH, read_top_k},
    {"seed", IN_BOTH, read_seed},
    {"stop", IN_BOTH, read_stop},
    {"echo", IN_COMPLETION, read_echo},
    {"stream", IN_BOTH, read_stream},
    {"stream_options", IN_BOTH, read_stream_options},
    {"logprobs", IN_BOTH, read_logprobs},
    {"top_logprobs", IN_CHAT, read_top},
    {"best_of", IN_COMPLETION, need_one},
    {"presence_penalty", IN_BOTH, need_zero},
    {"frequency_penalty", IN_BOTH, need_zero},
    {"repetition_penalty", IN_BOTH, need_one},
    {"logit_bias", IN_BOTH, need_empty},
    {"suffix", IN_COMPLETION, need_empty},
    {"tools", IN_CHAT, read_tools},
    {"functions", IN_CHAT, need_empty},
    {"tool_choice", IN_CHAT, read_tool_choice},
    {"response_format", IN_CHAT, need_text_format},
    {"parallel_tool_calls", IN_CHAT, read_parallel},
    {"user", IN_BOTH, ignore},
    {"metadata", IN_BOTH, ignore},
    {"store", IN_BOTH, ignore},
    {"service_tier", IN_BOTH, ignore},
    {"safety_identifier", IN_BOTH, ignore},
    {"prompt_cache_key", IN_BOTH, ignore},
};

/* ---- the body ---- */

static enum hd_status read_key(struct ask_reading *r)
{
    const int where = r->ask->kind == HD_ASK_CHAT ? IN_CHAT : IN_COMPLETION;
    enum hd_status st;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!(keys[i].where & where) || strcmp(keys[i].key, r->value->key) != 0)
            continue;
        if (r->value->kind == HD_JSON_NULL) /* null counts as absent */
            return HD_OK;
        st = keys[i].read(r);
        return st ? hd_err_prefix(st, "%s", keys[i].key) : HD_OK;
    }
    return hd_err(HD_INVALID, "\"%.60s\" is not a supported setting", r->value->key);
}

static enum hd_status check_together(const struct hd_ask *ask, const char **ret_param)
{
    const bool is_chat = ask->kind == HD_ASK_CHAT;

    *ret_param = is_chat ? "messages" : "prompt";
    if (is_chat ? !ask->messages : !ask->prompt)
        return hd_err(HD_INVALID, "%s is missing", *ret_param);
    if (ask->prompt_count * ask->n > HD_ASK_CHOICES_MAX)
        return hd_err(HD_INVALID, "prompts times n are %lld, and at most %d are allowed",
                      (long long)(ask->prompt_count * ask->n), HD_ASK_CHOICES_MAX);
    *ret_param = "top_logprobs";
    if (is_chat && ask->top && !ask->reports_odds)
        return hd_err(HD_INVALID, "top_logprobs needs logprobs: true");
    *ret_param = "max_tokens";
    if (ask->max_tokens == 0 && !ask->echo)
        return hd_err(HD_INVALID, "max_tokens is 0, and without echo the answer would be empty");
    *ret_param = NULL;
    return HD_OK;
}

enum hd_status hd_ask_read(struct hd_arena *arena, enum hd_ask_kind kind, const char *body,
                           size_t body_bytes, struct hd_ask *ret_ask, const char **ret_param)
{
    static const struct hd_json_limits limits = {.values_max = HD_ASK_VALUES_MAX, .depth_max = 32};
    struct ask_reading r = {.ask = ret_ask};
    const struct hd_json *root;
    enum hd_status st = hd_json_parse(arena, body, body_bytes, &limits, &root);

    *ret_param = NULL;
    *ret_ask = (struct hd_ask){.kind = kind,
                               .n = 1,
                               .max_tokens = kind == HD_ASK_CHAT ? -1 : COMPLETION_TOKENS,
                               .sampling = {.temperature = 1, .top_p = 1}};
    if (st) /* HD_LIMIT would ask the client to retry, but a body that is too large stays too
               large */
        return hd_err_prefix(st == HD_LIMIT ? HD_INVALID : st, "the body is not JSON%s",
                             st == HD_LIMIT ? " within the limits" : "");
    if (root->kind != HD_JSON_OBJECT)
        return hd_err(HD_INVALID, "the body must be a JSON object");
    for (r.value = root->first; !st && r.value; r.value = r.value->next) {
        *ret_param = r.value->key;
        st = read_key(&r);
    }
    if (r.hides_tools)
        ret_ask->tools = NULL;
    if (!st) {
        st = check_must_call(ret_ask);
        *ret_param = st ? "tool_choice" : *ret_param;
    }
    return st ? st : check_together(ret_ask, ret_param);
}

const struct hd_json *hd_ask_prompt(const struct hd_ask *ask, int64_t index)
{
    const struct hd_json *v = ask->prompt;

    if (v->kind == HD_JSON_STRING || v->first->kind == HD_JSON_NUMBER)
        return v;
    for (v = v->first; index > 0; index--)
        v = v->next;
    return v;
}

/* ---- messages ---- */

static void write_parts(struct hd_json_writer *w, const struct hd_json *parts)
{
    struct hd_text all = {0};

    for (const struct hd_json *part = parts->first; part; part = part->next)
        hd_text_add(&all, "%s", hd_json_member(part, "text")->text);
    hd_json_add_string(w, "content", all.data ? all.data : "");
    w->out->failed |= all.failed;
    hd_text_free(&all);
}

/* Writes the description of a call, {"name", "arguments"}, with the arguments as an object. */
static enum hd_status write_function(struct hd_arena *arena, struct hd_json_writer *w,
                                     const struct hd_json *function)
{
    static const struct hd_json_limits limits = {.values_max = HD_ASK_VALUES_MAX, .depth_max = 32};
    enum hd_status st = HD_OK;

    hd_json_begin(w, "function", '{');
    for (const struct hd_json *v = function->first; !st && v; v = v->next) {
        const struct hd_json *value = v;

        if (strcmp(v->key, "arguments") == 0 && v->kind == HD_JSON_STRING) {
            st = *v->text ? hd_json_parse(arena, v->text, strlen(v->text), &limits, &value) : HD_OK;
            if (st != HD_NO_MEMORY && (st || value->kind != HD_JSON_OBJECT))
                st = hd_err(HD_INVALID, "the arguments of a tool call are no JSON object");
        }
        if (!st)
            hd_json_add_value(w, v->key, value);
    }
    hd_json_end(w, '}');
    return st;
}

static enum hd_status write_asked_calls(struct hd_arena *arena, struct hd_json_writer *w,
                                        const struct hd_json *calls)
{
    enum hd_status st = HD_OK;

    hd_json_begin(w, "tool_calls", '[');
    for (const struct hd_json *call = calls->first; !st && call; call = call->next) {
        if (call->kind != HD_JSON_OBJECT)
            return hd_err(HD_INVALID, "a tool call is no object");
        hd_json_begin(w, NULL, '{');
        for (const struct hd_json *v = call->first; !st && v; v = v->next)
            if (v->kind == HD_JSON_OBJECT && strcmp(v->key, "function") == 0)
                st = write_function(arena, w, v);
            else
                hd_json_add_value(w, v->key, v);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    return st;
}

static enum hd_status write_message(struct hd_arena *arena, struct hd_json_writer *w,
                                    const struct hd_json *m)
{
    enum hd_status st = HD_OK;

    hd_json_begin(w, NULL, '{');
    for (const struct hd_json *v = m->first; !st && v; v = v->next)
        if (v->kind == HD_JSON_ARRAY && strcmp(v->key, "content") == 0)
            write_parts(w, v);
        else if (v->kind == HD_JSON_ARRAY && strcmp(v->key, "tool_calls") == 0)
            st = write_asked_calls(arena, w, v);
        else
            hd_json_add_value(w, v->key, v);
    hd_json_end(w, '}');
    return st;
}

enum hd_status hd_ask_write_messages(struct hd_arena *arena, const struct hd_ask *ask,
                                     struct hd_text *ret_json)
{
    struct hd_json_writer w = {.out = ret_json};
    int number = 0;
    enum hd_status st = HD_OK;

    if (ask->tools)
        hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, ask->tools ? "messages" : NULL, '[');
    for (const struct hd_json *m = ask->messages->first; !st && m; m = m->next, number++) {
        st = write_message(arena, &w, m);
        st = st ? hd_err_prefix(st, "message %d", number) : HD_OK;
    }
    hd_json_end(&w, ']');
    if (ask->tools) {
        hd_json_add_value(&w, "tools", ask->tools);
        hd_json_end(&w, '}');
    }
    if (!st && ret_json->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for messages");
    return st;
}
