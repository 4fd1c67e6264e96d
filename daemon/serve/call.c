/* call: handles one request, from its arrival to its answer.
 *
 *   checked, encoded --> items run by the model's thread --events--> all ended --> answered, freed
 *                          |                                          ^
 *                          '-- cancelled: client disconnected, ------'
 *                              timeout, or one of its items failed
 *
 * A call is freed when all of its items have ended, even if the client has disconnected.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "serve/serve.h"

/* ---- the end ---- */

static void free_call(struct serve_call *call)
{
    struct serve *s = call->serve;

    *(call->before ? &call->before->next : &s->calls) = call->next;
    if (call->next)
        call->next->before = call->before;
    for (int64_t i = 0; i < call->choice_count; i++) {
        struct serve_choice *c = &call->choices[i];

        hd_id_list_free(&c->item.prompt);
        hd_text_free(&c->text);
        free(c->tokens);
    }
    free(call->choices);
    hd_arena_done(&call->arena);
    free(call);
}

static void send_error(struct hd_http_request *request, int status, const char *word,
                       const char *param)
{
    struct hd_text text = {0};

    serve_write_error(&text, status, word, param, hd_err_message());
    hd_http_reply(request, status, "application/json", &text);
}

static void log_end(const struct serve_call *call, int status)
{
    int64_t drawn = 0;

    for (int64_t i = 0; i < call->choice_count; i++)
        drawn += call->choices[i].drawn;
    hd_log(HD_LOG_INFO, "%s %s: %d, %lld tokens read, %lld generated, %lld ms%s%s",
           call->ask.kind == HD_ASK_CHAT ? "chat" : "completion", call->id, status,
           (long long)call->prompt_tokens, (long long)drawn,
           (long long)(hd_clock_now_ms() - call->begun_ms), call->error.status ? ": " : "",
           call->error.status ? call->error.message : "");
}

static void end_stream(struct serve_call *call)
{
    struct hd_text text = {0};

    if (call->error.status) {
        hd_text_add(&text, "data: ");
        serve_write_error(&text, serve_status_of(call->error.status),
                          hd_status_name(call->error.status), NULL, call->error.message);
        hd_text_add(&text, "\n\n");
    } else {
        serve_write_stream_end(call, &text);
    }
    if (!text.failed) /* without memory the stream ends without its last event */
        (void)hd_http_stream_write(call->request, text.data, text.len_bytes);
    hd_http_stream_end(call->request);
    hd_text_free(&text);
}

/* Answers the call, whose items have all ended, and frees it. */
static void finish(struct serve_call *call)
{
    const int status = call->error.status ? serve_status_of(call->error.status) : 200;
    struct hd_text text = {0};
    bool failed = false;

    log_end(call, call->request ? status : 499);
    for (int64_t i = 0; i < call->choice_count; i++)
        failed |= call->choices[i].text.failed;
    if (!call->request) {
        /* the client has disconnected */
    } else if (call->is_streaming) {
        end_stream(call);
    } else if (call->error.status) {
        (void)hd_err_restore(&call->error);
        send_error(call->request, status, hd_status_name(call->error.status), NULL);
    } else {
        serve_write_answer(call, &text);
        text.failed |= failed;
        hd_http_reply(call->request, 200, "application/json", &text);
    }
    free_call(call);
}

/* Cancels the items of the call that still run. st: the failure that is reported in place of an
 * answer (the first one wins); HD_OK: the client has disconnected. */
static void cancel(struct serve_call *call, enum hd_status st)
{
    if (st && !call->error.status)
        hd_err_save(st, &call->error);
    if (call->is_cancelled)
        return;
    call->is_cancelled = true;
    for (int64_t i = 0; i < call->choice_count; i++)
        if (!call->choices[i].ended)
            serve_work_cancel(call->serve->work, &call->choices[i].item);
}

static void on_gone(void *user)
{
    struct serve_call *call = user;

    call->request = NULL;
    cancel(call, HD_OK);
}

void serve_calls_end(struct serve *s, int64_t now_ms, bool all)
{
    for (struct serve_call *call = s->calls; call; call = call->next)
        if (all)
            cancel(call, hd_err(HD_ABORTED, "the server is stopping"));
        else if (now_ms >= call->deadline_ms && !call->is_cancelled)
            cancel(call, hd_err(HD_TIMEOUT,
                                "the request took more than %lld s, the limit of this server "
                                "(--timeout); ask for fewer tokens or choices at once",
                                (long long)(s->options.timeout_ms / 1000)));
}

/* ---- events ---- */

static bool add_token(struct serve_choice *c, const struct serve_event *e)
{
    struct serve_token *t;

    if (c->token_count == c->token_capacity) {
        const size_t room = c->token_capacity ? 2 * c->token_capacity : 16;

        t = realloc(c->tokens, room * sizeof *t);
        if (!t)
            return false;
        c->tokens = t;
        c->token_capacity = room;
    }
    t = &c->tokens[c->token_count++];
    t->id = e->id;
    t->log_probability = e->log_probability;
    t->top_count = e->top_count;
    memcpy(t->top, e->top, (size_t)e->top_count * sizeof t->top[0]);
    return true;
}

/* Sends new text and tokens of a choice, if there are any: text is held back while it may become a
 * stop text or is an incomplete character. */
static void send_chunk(struct serve_choice *c)
{
    struct serve_call *call = c->call;
    struct hd_text text = {0};

    if (!call->request || (!c->ended && serve_unsent(c) == 0 && !c->token_count &&
                           (c->has_begun || call->ask.kind != HD_ASK_CHAT)))
        return;
    serve_write_chunk(c, &text);
    if (text.failed)
        cancel(call, hd_err(HD_NO_MEMORY, "no memory for an answer"));
    else if (hd_http_stream_write(call->request, text.data, text.len_bytes))
        cancel(call, HD_LIMIT); /* the client reads too slowly; hd_http_stream_write has set the
                                   message */
    hd_text_free(&text);
}

static void end_choice(struct serve_choice *c, const struct serve_event *e)
{
    struct serve_call *call = c->call;

    c->ended = true;
    c->end = e->end;
    call->running--;
    call->serve->choices--;
    if (e->end == SERVE_FAILED)
        cancel(call, hd_err_restore(&e->error));
}

void serve_call_event(void *user, const struct serve_event *e)
{
    struct serve_choice *c = e->item->user;
    struct serve_call *call = c->call;

    (void)user;
    hd_written_to_utf8(e->bytes, e->byte_count, &c->text);
    c->drawn += e->id >= 0 && !e->of_prompt;
    if (e->id >= 0 && call->ask.reports_odds && !call->is_cancelled && !add_token(c, e))
        cancel(call, hd_err(HD_NO_MEMORY, "no memory for log-probabilities"));
    if (e->ended)
        end_choice(c, e);
    if (call->is_streaming && !call->is_cancelled)
        send_chunk(c);
    if (!call->running)
        finish(call);
}

/* ---- the beginning ---- */

static enum hd_status encode_ids(const struct hd_json *list, struct hd_id_list *ids)
{
    enum hd_status st = hd_id_list_reserve(ids, list->count);
    int64_t id;

    for (const struct hd_json *v = list->first; !st && v; v = v->next) {
        st = hd_json_to_int64(v, 0, INT32_MAX, &id);
        ids->ids[ids->count++] = (int32_t)id;
    }
    return st;
}

/* Encodes a text to token ids; an empty text becomes the token with which the model begins a text.
 */
static enum hd_status encode_text(struct hd_language *language, const char *text,
                                  struct hd_id_list *ids)
{
    enum hd_status st = HD_OK;

    if (*text)
        return hd_language_encode(language, text, strlen(text), ids);
    if (hd_language_begin(language) < 0)
        return hd_err(HD_INVALID, "the prompt is empty, and the model has no token to begin with");
    st = hd_id_list_reserve(ids, 1);
    if (!st)
        ids->ids[ids->count++] = hd_language_begin(language);
    return st;
}

/* Copies the names of the tools out of the body, and finds the form in which the model calls. */
static enum hd_status keep_tools(struct serve_call *call)
{
    struct hd_json *list = hd_arena_alloc(&call->arena, sizeof *list), *items, *next;

    items = hd_arena_array(&call->arena, 2 * call->ask.tools->count, sizeof *items);
    if (!list || !items)
        return hd_err(HD_NO_MEMORY, "no memory for tools");
    *list = (struct hd_json){.kind = HD_JSON_ARRAY, .first = items};
    next = items;
    for (const struct hd_json *t = call->ask.tools->first; t; t = t->next, next += 2) {
        const struct hd_json *name = hd_json_member(hd_json_member(t, "function"), "name");

        next[0] = (struct hd_json){.kind = HD_JSON_OBJECT,
                                   .count = 1,
                                   .first = &next[1],
                                   .next = t->next ? next + 2 : NULL};
        next[1] = (struct hd_json){.kind = HD_JSON_STRING, .key = "name"};
        next[1].text = hd_arena_strdup(&call->arena, name->text);
        if (!next[1].text)
            return hd_err(HD_NO_MEMORY, "no memory for tools");
    }
    call->tools = list;
    return hd_language_call_form(serve_work_language(call->serve->work), &call->call_form);
}

/* Puts the beginning of a call behind the prompt, for tool_choice: the model goes on in it. */
static enum hd_status encode_call_begin(struct serve_call *call, struct hd_id_list *ids)
{
    call->call_begin = hd_chat_calls_begin(&call->arena, call->call_form, call->ask.must_call);
    return call->call_begin ? hd_language_encode(serve_work_language(call->serve->work),
                                                 call->call_begin, strlen(call->call_begin), ids)
                            : hd_err(HD_NO_MEMORY, "no memory for a call");
}

static enum hd_status encode_chat(struct serve_call *call, struct hd_id_list *ids)
{
    struct serve_work *work = call->serve->work;
    struct hd_text messages = {0};
    enum hd_status st = serve_work_chat(work);

    if (!st && call->ask.tools)
        st = keep_tools(call);
    if (!st)
        st = hd_ask_write_messages(&call->arena, &call->ask, &messages);
    if (!st)
        st = hd_language_encode_chat(serve_work_language(work), messages.data, messages.len_bytes,
                                     ids);
    if (!st && (call->ask.must_call_any || call->ask.must_call))
        st = encode_call_begin(call, ids);
    hd_text_free(&messages);
    return st;
}

/* Puts the prompt in front of the choice's text, for the setting `echo`: as given, or decoded if it
 * was given as ids. */
static enum hd_status echo_prompt(struct serve_choice *c, const struct hd_json *prompt)
{
    struct hd_language *language = serve_work_language(c->call->serve->work);
    struct hd_text bytes = {0};
    enum hd_status st = HD_OK;

    if (prompt->kind == HD_JSON_STRING) {
        hd_text_add(&c->text, "%s", prompt->text);
        return HD_OK;
    }
    st = hd_tokenizer_decode(hd_language_tokenizer(language), c->item.prompt.ids,
                             c->item.prompt.count, &bytes);
    if (!st)
        hd_written_to_utf8(bytes.data, bytes.len_bytes, &c->text);
    hd_text_free(&bytes);
    return st;
}

/* Checks the prompt's length and ids against context and vocabulary of the model before the answer
 * begins, so that an error gets an HTTP status. */
static enum hd_status check_context_space(const struct serve_call *call,
                                          const struct hd_id_list *ids)
{
    const struct hd_decoder *decoder = serve_work_decoder(call->serve->work);
    const int64_t context = hd_decoder_context(decoder), count = (int64_t)ids->count;

    if (count > context)
        return hd_err(HD_INVALID,
                      "the prompt has %lld tokens, and the context is %lld tokens; shorten it",
                      (long long)count, (long long)context);
    for (int64_t i = 0; i < count; i++)
        if (ids->ids[i] >= hd_decoder_vocab(decoder))
            return hd_err(HD_INVALID, "token %d is outside the vocabulary of %lld", ids->ids[i],
                          (long long)hd_decoder_vocab(decoder));
    return HD_OK;
}

static enum hd_status copy_ids(const struct hd_id_list *from, struct hd_id_list *to)
{
    enum hd_status st = hd_id_list_reserve(to, from->count);

    if (!st)
        memcpy(to->ids, from->ids, from->count * sizeof *to->ids);
    to->count = st ? 0 : from->count;
    return st;
}

static void set_item(struct serve_call *call, struct serve_choice *c, int64_t number)
{
    struct hd_language *language = serve_work_language(call->serve->work);
    const struct hd_ask *a = &call->ask;
    const bool is_chat = a->kind == HD_ASK_CHAT;

    c->item.max_tokens = a->max_tokens < 0 ? INT64_MAX : a->max_tokens;
    c->item.sampling = a->sampling;
    c->item.sampling.seed += (uint64_t)number;
    c->item.stops = is_chat ? hd_language_chat_stops(language) : hd_language_stops(language);
    c->item.stop_texts = a->stops;
    c->item.stop_text_count = a->stop_count;
    c->item.reports_prompt = a->echo && a->reports_odds;
    c->item.reports_odds = a->reports_odds;
    c->item.top = a->top;
    c->item.user = c;
}

/* Makes the choices of one prompt. */
static enum hd_status make_choices(struct serve_call *call, int64_t prompt)
{
    struct serve_choice *first = &call->choices[prompt * call->ask.n];
    const struct hd_json *json =
        call->ask.kind == HD_ASK_CHAT ? NULL : hd_ask_prompt(&call->ask, prompt);
    struct hd_id_list *ids = &first->item.prompt;
    enum hd_status st;

    st = !json ? encode_chat(call, ids)
         : json->kind == HD_JSON_STRING
             ? encode_text(serve_work_language(call->serve->work), json->text, ids)
             : encode_ids(json, ids);
    if (!st)
        st = check_context_space(call, ids);
    for (int64_t i = 0; !st && i < call->ask.n; i++) {
        struct serve_choice *c = first + i;

        c->call = call;
        if (i)
            st = copy_ids(ids, &c->item.prompt);
        if (!st && call->ask.echo)
            st = echo_prompt(c, json);
        if (!st && call->call_begin)
            hd_text_add(&c->text, "%s", call->call_begin);
        set_item(call, c, i);
    }
    call->prompt_tokens += (int64_t)ids->count;
    return st;
}

static enum hd_status check_model(const struct serve_call *call)
{
    const char *name = call->serve->options.name;

    if (!call->ask.model || strcmp(call->ask.model, name) == 0)
        return HD_OK;
    return hd_err(HD_NOT_FOUND, "there is no model \"%.100s\"; this server has \"%s\"",
                  call->ask.model, name);
}

static enum hd_status check_queue(const struct serve_call *call)
{
    const struct serve *s = call->serve;
    const int64_t more = call->ask.prompt_count * call->ask.n;

    if (s->stopping)
        return hd_err(HD_ABORTED, "the server is stopping");
    if (more > s->options.queue_max)
        return hd_err(HD_INVALID,
                      "the request asks for %lld choices, and at most %lld are allowed "
                      "(--queue)",
                      (long long)more, (long long)s->options.queue_max);
    if (s->choices + more > s->options.queue_max)
        return hd_err(HD_LIMIT,
                      "%lld choices wait or run, and at most %lld may (--queue); "
                      "retry later",
                      (long long)s->choices, (long long)s->options.queue_max);
    return HD_OK;
}

/* Copies the stop texts out of the body, because the items need them. The rest of the body, which
 * may be large, is freed when the call begins. */
static enum hd_status keep_stops(struct serve_call *call)
{
    for (int i = 0; i < call->ask.stop_count; i++)
        call->ask.stops[i] = hd_arena_printf(&call->arena, "%s", call->ask.stops[i]);
    return hd_arena_failed(&call->arena) ? hd_err(HD_NO_MEMORY, "no memory for a request") : HD_OK;
}

static enum hd_status make_call(struct serve_call *call, struct hd_arena *json,
                                enum hd_ask_kind kind, const char **ret_param)
{
    size_t bytes;
    const char *body = hd_http_body(call->request, &bytes);
    uint64_t numbers[2] = {0, 0};
    enum hd_status st = hd_ask_read(json, kind, body, bytes, &call->ask, ret_param);

    if (!st)
        st = keep_stops(call);

    if (!st) {
        *ret_param = "model";
        st = check_model(call);
    }
    if (!st) {
        *ret_param = NULL;
        st = check_queue(call);
    }
    if (!st)
        st = hd_random_bytes(numbers, sizeof numbers);
    if (st)
        return st;
    (void)snprintf(call->id, sizeof call->id, "%s-%016llx",
                   kind == HD_ASK_CHAT ? "chatcmpl" : "cmpl", (unsigned long long)numbers[0]);
    if (!call->ask.has_seed)
        call->ask.sampling.seed = numbers[1];
    call->choice_count = call->ask.prompt_count * call->ask.n;
    call->choices = calloc((size_t)call->choice_count, sizeof *call->choices);
    if (!call->choices) {
        call->choice_count = 0;
        return hd_err(HD_NO_MEMORY, "no memory for a request");
    }
    *ret_param = kind == HD_ASK_CHAT ? "messages" : "prompt";
    for (int64_t i = 0; !st && i < call->ask.prompt_count; i++)
        st = make_choices(call, i);
    return st;
}

static void start(struct serve_call *call)
{
    call->is_streaming = call->ask.stream;
    if (call->is_streaming)
        hd_http_stream_begin(call->request, "text/event-stream", on_gone, call);
    else
        hd_http_watch(call->request, on_gone, call);
    call->running = call->choice_count;
    call->serve->choices += call->choice_count;
    for (int64_t i = 0; i < call->choice_count; i++)
        serve_work_add(call->serve->work, &call->choices[i].item);
}

void serve_call_begin(struct serve *s, struct hd_http_request *request, enum hd_ask_kind kind)
{
    struct serve_call *call = calloc(1, sizeof *call);
    const char *param = NULL;
    struct hd_arena json;
    enum hd_status st;

    if (!call) {
        hd_http_fail(request, hd_err(HD_NO_MEMORY, "no memory for a request"));
        return;
    }
    call->serve = s;
    call->next = s->calls;
    if (call->next)
        call->next->before = call;
    s->calls = call;
    call->request = request;
    call->begun_ms = hd_clock_now_ms();
    call->deadline_ms = call->begun_ms + s->options.timeout_ms;
    call->created = hd_clock_wall_ms() / 1000;
    hd_arena_init(&call->arena, 0);
    hd_arena_init(&json, 0);
    st = make_call(call, &json, kind, &param);
    call->ask.model = NULL;
    call->ask.prompt = call->ask.messages = call->ask.tools = NULL;
    if (!st) {
        hd_arena_done(&json);
        start(call);
        return;
    }
    send_error(request, serve_status_of(st),
               st == HD_NOT_FOUND ? "model_not_found" : hd_status_name(st), param);
    hd_arena_done(&json); /* after the reply: `param` points into it */
    free_call(call);
}
