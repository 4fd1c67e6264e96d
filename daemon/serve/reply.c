/* reply: writes answers as JSON, in the format of OpenAI's API. */
#include <math.h>
#include <string.h>

#include "serve/serve.h"

/* ---- failures and models ---- */

int serve_status_of(enum hd_status st)
{
    /* the model times out, not this server; HD_DENIED concerns the server's files, not the caller */
    return st == HD_TIMEOUT ? 504 : st == HD_DENIED ? 500 : hd_http_status(st);
}

void serve_write_error(struct hd_text *out, int status, const char *word, const char *param,
                       const char *message)
{
    struct hd_json_writer w = {.out = out};

    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "error", '{');
    hd_json_add_string(&w, "message", message);
    hd_json_add_string(&w, "type",
                       status == 401 || status == 403 ? "authentication_error"
                       : status == 404                ? "not_found_error"
                       : status >= 500                ? "server_error"
                                                      : "invalid_request_error");
    if (param)
        hd_json_add_string(&w, "param", param);
    else
        hd_json_add_null(&w, "param");
    hd_json_add_string(&w, "code", status == 401 ? "invalid_api_key" : word);
    hd_json_end(&w, '}');
    hd_json_end(&w, '}');
}

void serve_write_failure(struct hd_text *out, int status, const char *word, const char *message)
{
    serve_write_error(out, status, word, NULL, message);
}

static void write_model(const struct serve *s, struct hd_json_writer *w)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "id", s->options.name);
    hd_json_add_string(w, "object", "model");
    hd_json_add_int64(w, "created", 0);
    hd_json_add_string(w, "owned_by", "heddle");
    hd_json_add_int64(w, "max_model_len", hd_decoder_context(serve_work_decoder(s->work)));
    hd_json_end(w, '}');
}

void serve_write_models(const struct serve *s, struct hd_text *out, bool one)
{
    struct hd_json_writer w = {.out = out};

    if (one) {
        write_model(s, &w);
        return;
    }
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "object", "list");
    hd_json_begin(&w, "data", '[');
    write_model(s, &w);
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
}

/* ---- log-probabilities ---- */

static const struct hd_tokenizer *tokenizer_of(const struct serve_call *call)
{
    return hd_language_tokenizer(serve_work_language(call->serve->work));
}

static int64_t count_characters(const struct hd_text *bytes)
{
    int64_t count = 0;

    for (size_t i = 0; i < bytes->len_bytes; i++)
        count += ((unsigned char)bytes->data[i] & 0xc0) != 0x80;
    return count;
}

/* Writes the text of a token; "bytes:\xe2\x82" if its bytes are not UTF-8. Sets *ret_bytes to the
 * token's bytes. */
static void token_text(const struct serve_call *call, int32_t id, struct hd_text *ret_bytes,
                       struct hd_text *ret_text)
{
    hd_text_clear(ret_bytes);
    hd_text_clear(ret_text);
    hd_text_add(ret_text, "%s", "");
    if (hd_tokenizer_decode_next(tokenizer_of(call), id, ret_bytes)) {
        hd_text_add(ret_text, "token:%d", (int)id); /* the tokenizer has no such id */
        return;
    }
    if (hd_text_is_utf8(ret_bytes->data ? ret_bytes->data : "", ret_bytes->len_bytes)) {
        hd_text_add_bytes(ret_text, ret_bytes->data, ret_bytes->len_bytes);
        return;
    }
    hd_text_add(ret_text, "bytes:");
    for (size_t i = 0; i < ret_bytes->len_bytes; i++)
        hd_text_add(ret_text, "\\x%02x", (unsigned char)ret_bytes->data[i]);
}

static void add_odds(struct hd_json_writer *w, const char *key, double log_probability)
{
    if (isnan(log_probability))
        hd_json_add_null(w, key);
    else
        hd_json_add_real(w, key, log_probability);
}

/* Writes the log-probabilities of the most likely tokens and of the token itself, with their texts
 * as keys; of tokens with equal text only the most likely one. */
static void write_top(const struct serve_call *call, const struct serve_token *t,
                      struct hd_json_writer *w)
{
    struct hd_text bytes = {0}, texts[HD_GENERATE_TOP_MAX + 1] = {{0}};
    int count = 0;

    if (isnan(t->log_probability)) {
        hd_json_add_null(w, NULL);
        return;
    }
    hd_json_begin(w, NULL, '{');
    for (int i = 0; i <= t->top_count; i++) {
        const bool own = i == t->top_count;
        bool is_there = false;

        token_text(call, own ? t->id : t->top[i].id, &bytes, &texts[count]);
        for (int j = 0; j < count; j++)
            is_there |= texts[j].len_bytes == texts[count].len_bytes &&
                        memcmp(texts[j].data, texts[count].data, texts[j].len_bytes) == 0;
        if (!is_there && texts[count].data) {
            hd_json_add_real(w, texts[count].data,
                             own ? t->log_probability : t->top[i].log_probability);
            count++;
        }
    }
    hd_json_end(w, '}');
    for (int i = 0; i <= HD_GENERATE_TOP_MAX; i++)
        hd_text_free(&texts[i]);
    hd_text_free(&bytes);
}

static void write_completion_odds(struct serve_choice *c, struct hd_json_writer *w)
{
    struct hd_text bytes = {0}, text = {0};

    hd_json_begin(w, "logprobs", '{');
    hd_json_begin(w, "tokens", '[');
    for (size_t i = 0; i < c->token_count; i++) {
        token_text(c->call, c->tokens[i].id, &bytes, &text);
        hd_json_add_string(w, NULL, text.data ? text.data : "");
    }
    hd_json_end(w, ']');
    hd_json_begin(w, "token_logprobs", '[');
    for (size_t i = 0; i < c->token_count; i++)
        add_odds(w, NULL, c->tokens[i].log_probability);
    hd_json_end(w, ']');
    hd_json_begin(w, "top_logprobs", '[');
    for (size_t i = 0; i < c->token_count; i++)
        write_top(c->call, &c->tokens[i], w);
    hd_json_end(w, ']');
    hd_json_begin(w, "text_offset", '[');
    for (size_t i = 0; i < c->token_count; i++) {
        token_text(c->call, c->tokens[i].id, &bytes, &text);
        hd_json_add_int64(w, NULL, c->characters);
        c->characters += count_characters(&bytes);
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
    hd_text_free(&bytes);
    hd_text_free(&text);
}

static void write_chat_token(const struct serve_call *call, int32_t id, double log_probability,
                             struct hd_json_writer *w)
{
    struct hd_text bytes = {0}, text = {0};

    token_text(call, id, &bytes, &text);
    hd_json_add_string(w, "token", text.data ? text.data : "");
    add_odds(w, "logprob", log_probability);
    hd_json_begin(w, "bytes", '[');
    for (size_t i = 0; i < bytes.len_bytes; i++)
        hd_json_add_int64(w, NULL, (unsigned char)bytes.data[i]);
    hd_json_end(w, ']');
    hd_text_free(&bytes);
    hd_text_free(&text);
}

static void write_chat_odds(const struct serve_choice *c, struct hd_json_writer *w)
{
    hd_json_begin(w, "logprobs", '{');
    hd_json_begin(w, "content", '[');
    for (size_t i = 0; i < c->token_count; i++) {
        const struct serve_token *t = &c->tokens[i];

        hd_json_begin(w, NULL, '{');
        write_chat_token(c->call, t->id, t->log_probability, w);
        hd_json_begin(w, "top_logprobs", '[');
        for (int k = 0; k < t->top_count; k++) {
            hd_json_begin(w, NULL, '{');
            write_chat_token(c->call, t->top[k].id, t->top[k].log_probability, w);
            hd_json_end(w, '}');
        }
        hd_json_end(w, ']');
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

static void write_odds(struct serve_choice *c, struct hd_json_writer *w)
{
    if (!c->call->ask.reports_odds)
        hd_json_add_null(w, "logprobs");
    else if (c->call->ask.kind == HD_ASK_CHAT)
        write_chat_odds(c, w);
    else
        write_completion_odds(c, w);
}

/* ---- answers ---- */

static void begin_answer(const struct serve_call *call, const char *object,
                         struct hd_json_writer *w)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "id", call->id);
    hd_json_add_string(w, "object", object);
    hd_json_add_int64(w, "created", call->created);
    hd_json_add_string(w, "model", call->serve->options.name);
}

static const char *text_of(const struct serve_choice *c)
{
    return c->text.data ? c->text.data : "";
}

/* calls: number of tool calls of the answer. */
static void write_finish(const struct serve_choice *c, size_t calls, struct hd_json_writer *w)
{
    if (!c->ended)
        hd_json_add_null(w, "finish_reason");
    else
        hd_json_add_string(w, "finish_reason",
                           c->end != SERVE_STOP ? "length"
                           : calls              ? "tool_calls"
                                                : "stop");
}

/* ---- tool calls ---- */

size_t serve_unsent(const struct serve_choice *c)
{
    const size_t n = c->text.len_bytes;

    if (!c->call->tools || c->ended)
        return n - c->sent_bytes;
    return hd_chat_calls_safe(c->call->call_form, text_of(c), n) - c->sent_bytes;
}

/* Finds the calls in the whole text of a choice. An answer that was cut off has those that are
 * whole. */
static enum hd_status find_calls(const struct serve_choice *c, struct hd_arena *arena,
                                 struct hd_chat_calls *ret)
{
    enum hd_status st = HD_OK;

    *ret = (struct hd_chat_calls){.content = text_of(c)};
    if (c->call->tools && c->ended)
        st = hd_chat_calls_find(arena, c->call->call_form, text_of(c), c->call->tools, ret);
    if (!st && c->call->ask.one_call && ret->count > 1)
        ret->count = 1;
    return st;
}

/* Writes tool_calls; the id of a call is unique among the answers of this server. Indices are those
 * of parts of a stream. */
static void write_calls(const struct serve_choice *c, const struct hd_chat_calls *calls,
                        bool in_stream, struct hd_json_writer *w)
{
    hd_json_begin(w, "tool_calls", '[');
    for (size_t i = 0; i < calls->count; i++) {
        struct hd_text arguments = {0}, id = {0};
        struct hd_json_writer inner = {.out = &arguments};

        hd_json_add_value(&inner, NULL, calls->calls[i].arguments);
        hd_text_add(&id, "call_%s_%lld_%zu", strchr(c->call->id, '-') + 1,
                    (long long)(c - c->call->choices), i);
        hd_json_begin(w, NULL, '{');
        if (in_stream)
            hd_json_add_int64(w, "index", (int64_t)i);
        hd_json_add_string(w, "id", id.data ? id.data : "");
        hd_json_add_string(w, "type", "function");
        hd_json_begin(w, "function", '{');
        hd_json_add_string(w, "name", calls->calls[i].name);
        hd_json_add_string(w, "arguments", arguments.data ? arguments.data : "");
        hd_json_end(w, '}');
        hd_json_end(w, '}');
        w->out->failed |= arguments.failed || id.failed;
        hd_text_free(&arguments);
        hd_text_free(&id);
    }
    hd_json_end(w, ']');
}

/* Writes the message of a whole answer; returns the number of its tool calls. */
static size_t write_chat_message(const struct serve_choice *c, struct hd_json_writer *w)
{
    struct hd_chat_calls calls;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    w->out->failed |= find_calls(c, &arena, &calls) != HD_OK;
    hd_json_begin(w, "message", '{');
    hd_json_add_string(w, "role", "assistant");
    if (calls.count && !*calls.content)
        hd_json_add_null(w, "content");
    else
        hd_json_add_string(w, "content", calls.content);
    if (calls.count)
        write_calls(c, &calls, false, w);
    hd_json_end(w, '}');
    hd_arena_done(&arena);
    return calls.count;
}

/* Writes the unsent part of a chat's choice; returns the number of tool calls in it. */
static size_t write_chat_delta(struct serve_choice *c, struct hd_json_writer *w)
{
    struct hd_chat_calls calls;
    struct hd_arena arena;
    const char *text;
    size_t n = serve_unsent(c);

    hd_arena_init(&arena, 0);
    w->out->failed |= find_calls(c, &arena, &calls) != HD_OK;
    if (calls.count) /* text in front of the calls is sent, text behind them is not */
        n = hd_chat_calls_safe(c->call->call_form, text_of(c), c->text.len_bytes) - c->sent_bytes;
    text = hd_arena_printf(&arena, "%.*s", (int)n, text_of(c) + c->sent_bytes);
    hd_json_begin(w, "delta", '{');
    if (!c->has_begun)
        hd_json_add_string(w, "role", "assistant");
    if (!c->has_begun || n)
        hd_json_add_string(w, "content", text ? text : "");
    if (calls.count)
        write_calls(c, &calls, true, w);
    hd_json_end(w, '}');
    w->out->failed |= !text;
    c->sent_bytes += n;
    hd_arena_done(&arena);
    return calls.count;
}

static void write_usage(const struct serve_call *call, struct hd_json_writer *w)
{
    int64_t drawn = 0;

    for (int64_t i = 0; i < call->choice_count; i++)
        drawn += call->choices[i].drawn;
    hd_json_begin(w, "usage", '{');
    hd_json_add_int64(w, "prompt_tokens", call->prompt_tokens);
    hd_json_add_int64(w, "completion_tokens", drawn);
    hd_json_add_int64(w, "total_tokens", call->prompt_tokens + drawn);
    hd_json_end(w, '}');
}

void serve_write_answer(struct serve_call *call, struct hd_text *out)
{
    const bool is_chat = call->ask.kind == HD_ASK_CHAT;
    struct hd_json_writer w = {.out = out};

    begin_answer(call, is_chat ? "chat.completion" : "text_completion", &w);
    hd_json_begin(&w, "choices", '[');
    for (int64_t i = 0; i < call->choice_count; i++) {
        struct serve_choice *c = &call->choices[i];
        size_t calls = 0;

        hd_json_begin(&w, NULL, '{');
        hd_json_add_int64(&w, "index", i);
        if (is_chat)
            calls = write_chat_message(c, &w);
        else
            hd_json_add_string(&w, "text", text_of(c));
        write_odds(c, &w);
        write_finish(c, calls, &w);
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    write_usage(call, &w);
    hd_json_end(&w, '}');
    hd_text_add(out, "\n");
}

/* ---- streams (Server-Sent Events) ---- */

void serve_write_chunk(struct serve_choice *c, struct hd_text *out)
{
    const struct serve_call *call = c->call;
    const bool is_chat = call->ask.kind == HD_ASK_CHAT;
    struct hd_json_writer w = {.out = out};
    size_t calls = 0;

    hd_text_add(out, "data: ");
    begin_answer(call, is_chat ? "chat.completion.chunk" : "text_completion", &w);
    hd_json_begin(&w, "choices", '[');
    hd_json_begin(&w, NULL, '{');
    hd_json_add_int64(&w, "index", c - call->choices);
    if (is_chat)
        calls = write_chat_delta(c, &w);
    else
        hd_json_add_string(&w, "text", text_of(c));
    write_odds(c, &w);
    write_finish(c, calls, &w);
    hd_json_end(&w, '}');
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(out, "\n\n");
    c->has_begun = true;
    c->token_count = 0;
    out->failed |= c->text.failed;
    if (call->tools)
        return;
    hd_text_clear(&c->text);
    c->sent_bytes = 0;
}

void serve_write_stream_end(const struct serve_call *call, struct hd_text *out)
{
    struct hd_json_writer w = {.out = out};

    if (call->ask.include_usage) {
        hd_text_add(out, "data: ");
        begin_answer(
            call, call->ask.kind == HD_ASK_CHAT ? "chat.completion.chunk" : "text_completion", &w);
        hd_json_begin(&w, "choices", '[');
        hd_json_end(&w, ']');
        write_usage(call, &w);
        hd_json_end(&w, '}');
        hd_text_add(out, "\n\n");
    }
    hd_text_add(out, "data: [DONE]\n\n");
}
