#include "data/conversations.h"

#include <stdlib.h>
#include <string.h>

#include "chat/guard.h"
#include "data/data_internal.h"

struct hd_conversation_encoder {
    struct hd_conversation_rules rules;
    struct hd_encoder *encoder;
    struct hd_template_output output;
    struct hd_chat_guard guard;
    struct hd_encoder_mark *marks; /* two marks per span: at its first and at its last byte */
    size_t mark_capacity;
};

enum hd_status hd_conversation_encoder_new(const struct hd_conversation_rules *rules,
                                           struct hd_conversation_encoder **ret_encoder)
{
    struct hd_conversation_encoder *e = calloc(1, sizeof *e);
    enum hd_status st;

    if (!e)
        return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    e->rules = *rules;
    st = hd_encoder_new(rules->tokenizer, &e->encoder);
    if (st)
        hd_conversation_encoder_free(e);
    else
        *ret_encoder = e;
    return st;
}

void hd_conversation_encoder_free(struct hd_conversation_encoder *encoder)
{
    if (!encoder)
        return;
    hd_encoder_free(encoder->encoder);
    hd_template_output_free(&encoder->output);
    hd_chat_guard_free(&encoder->guard);
    free(encoder->marks);
    free(encoder);
}

static bool find_special(const void *context, const char *text, size_t text_bytes, size_t *at)
{
    return hd_tokenizer_find_special(context, text, text_bytes, at);
}

static enum hd_status set_marks(struct hd_conversation_encoder *e, size_t *ret_count)
{
    const struct hd_template_output *o = &e->output;
    size_t n = 0;

    if (2 * o->span_count > e->mark_capacity) {
        free(e->marks);
        e->mark_capacity = 0;
        e->marks = calloc(o->span_count, 2 * sizeof *e->marks);
        if (!e->marks)
            return hd_err(HD_NO_MEMORY, "no memory for a conversation");
        e->mark_capacity = 2 * o->span_count;
    }
    for (size_t i = 0; i < o->span_count; i++) {
        if (o->spans[i].begin == o->spans[i].end)
            continue;
        e->marks[n++] = (struct hd_encoder_mark){.at = o->spans[i].begin};
        e->marks[n++] = (struct hd_encoder_mark){.at = o->spans[i].end - 1, .is_end = true};
    }
    *ret_count = n;
    return HD_OK;
}

/* Encodes the rendered text in e->output: appends its ids to `ids`, and to `counts` one byte per
 * id. */
static enum hd_status encode_text(struct hd_conversation_encoder *e, struct hd_id_list *ids,
                                  struct hd_text *counts)
{
    static const char zeros[256];
    const size_t first = ids->count, base = counts->len_bytes;
    struct hd_encoder_places places = {.guards = e->guard.places, .guard_count = e->guard.count};
    enum hd_status st = set_marks(e, &places.mark_count);

    places.marks = e->marks;
    if (!st)
        st = hd_encoder_add_places(e->encoder, e->output.text.data ? e->output.text.data : "",
                                   e->output.text.len_bytes, &places, ids);
    for (size_t at = first; !st && at < ids->count; at += sizeof zeros)
        hd_text_add_bytes(counts, zeros,
                          ids->count - at < sizeof zeros ? ids->count - at : sizeof zeros);
    if (!st && counts->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a conversation");
    for (size_t i = 0; !st && i < places.mark_count; i += 2)
        for (size_t t = e->marks[i].token; t <= e->marks[i + 1].token && t < ids->count; t++)
            counts->data[base + t - first] = 1;
    return st;
}

/* Adds the ids that the tokenizer puts in front of a text with add_special_tokens, as TRL does for
 * texts without a template. */
static enum hd_status add_begin(const struct hd_conversation_encoder *e, struct hd_id_list *ids,
                                struct hd_text *counts)
{
    int count;
    const int32_t *before = hd_tokenizer_before(e->rules.tokenizer, &count);
    enum hd_status st = hd_id_list_reserve(ids, (size_t)count);

    for (int i = 0; !st && i < count; i++) {
        ids->ids[ids->count++] = before[i];
        hd_text_add_bytes(counts, "", 1);
    }
    return !st && counts->failed ? hd_err(HD_NO_MEMORY, "no memory for a conversation") : st;
}

static enum hd_status add_end(const struct hd_conversation_encoder *e, struct hd_id_list *ids,
                              struct hd_text *counts)
{
    enum hd_status st;

    if (e->rules.end_of_text < 0)
        return HD_OK;
    st = hd_id_list_reserve(ids, 1);
    if (st)
        return st;
    ids->ids[ids->count++] = (int32_t)e->rules.end_of_text;
    hd_text_add_bytes(counts, "\1", 1);
    return counts->failed ? hd_err(HD_NO_MEMORY, "no memory for a conversation") : HD_OK;
}

/* Renders the conversation into e->output, with special tokens in messages guarded
 * (chat/guard.h). */
static enum hd_status render(struct hd_conversation_encoder *e, struct hd_arena *arena,
                             const char *line, size_t line_bytes, struct hd_conversation *c)
{
    const struct hd_template *template =
        e->rules.chat ? hd_chat_template_for(e->rules.chat, c->tools != NULL) : NULL;
    const struct hd_template_input input =
        e->rules.chat ? hd_chat_input(e->rules.chat) : (struct hd_template_input){0};
    enum hd_status st = HD_OK;

    if (!c->answer && !template)
        return hd_err(HD_INVALID,
                      "it has messages, and the model has no chat template; put a "
                      "chat_template.jinja into the model's folder, or name one in the job file: "
                      "data.template");
    st = hd_chat_guard_new(arena, line, line_bytes, find_special, e->rules.tokenizer, c, &e->guard);
    if (!st)
        st = hd_chat_render(template, c, e->rules.loss, &input, &e->output);
    /* the template exceeded its limit of steps or bytes: HD_INVALID, as for its other errors */
    if (st == HD_LIMIT)
        st = HD_INVALID;
    return st ? st : hd_chat_unguard(&e->guard, &e->output);
}

/* Renders the text of a conversation, then tokenizes it. */
static enum hd_status encode_any(struct hd_conversation_encoder *e, struct hd_arena *arena,
                                 const char *line, size_t line_bytes, struct hd_conversation *c,
                                 struct hd_id_list *ids, struct hd_text *counts)
{
    enum hd_status st = render(e, arena, line, line_bytes, c);

    if (!st && c->answer && c->form != HD_CHAT_TEXT)
        st = add_begin(e, ids, counts);
    if (!st)
        st = encode_text(e, ids, counts);
    if (!st && c->answer)
        st = add_end(e, ids, counts);
    return st;
}

/* Encodes one conversation of a line, of which a token must count for the loss. */
static enum hd_status encode_conversation(struct hd_conversation_encoder *e, struct hd_arena *arena,
                                          const char *line, size_t line_bytes,
                                          struct hd_conversation *c, struct hd_id_list *ids,
                                          struct hd_text *counts, bool *ret_spelled)
{
    const size_t first = ids->count, base = counts->len_bytes;
    enum hd_status st = encode_any(e, arena, line, line_bytes, c, ids, counts);

    /* the first token is never a target: no token predicts it */
    if (!st && (ids->count - first < 2 ||
                !memchr(counts->data + base + 1, 1, counts->len_bytes - base - 1)))
        st = hd_err(HD_INVALID, "no token of it counts for the loss: the answer's text is empty");
    *ret_spelled = !st && e->guard.count > 0;
    return st;
}

enum hd_status hd_conversation_encode(struct hd_conversation_encoder *e, const char *line,
                                      size_t line_bytes, struct hd_id_list *ids,
                                      struct hd_text *counts, bool *ret_spelled)
{
    struct hd_conversation c;
    struct hd_arena arena;
    enum hd_status st;

    *ret_spelled = false;
    hd_arena_init(&arena, 0);
    st = hd_conversation_read(&arena, line, line_bytes, e->rules.form, e->rules.roles, &c);
    if (!st)
        st = encode_conversation(e, &arena, line, line_bytes, &c, ids, counts, ret_spelled);
    hd_arena_done(&arena);
    return st;
}

/* Appends the document of an answer that is not there: two ids that count for nothing. */
static enum hd_status add_absent(struct hd_id_list *ids, struct hd_text *counts)
{
    enum hd_status st = hd_id_list_reserve(ids, 2);

    for (int i = 0; !st && i < 2; i++) {
        ids->ids[ids->count++] = 0;
        hd_text_add_bytes(counts, "", 1);
    }
    return !st && counts->failed ? hd_err(HD_NO_MEMORY, "no memory for a conversation") : st;
}

enum hd_status hd_conversation_encode_pair(struct hd_conversation_encoder *e, const char *line,
                                           size_t line_bytes, struct hd_id_list *ids,
                                           struct hd_text *counts, size_t *ret_second,
                                           bool *ret_spelled)
{
    static const char *const names[] = {"chosen", "rejected"};
    const size_t first = ids->count;
    struct hd_conversation pair[HD_CHAT_PAIR];
    bool has[HD_CHAT_PAIR] = {true, true};
    struct hd_arena arena;
    enum hd_status st;

    *ret_spelled = false;
    hd_arena_init(&arena, 0);
    if (e->rules.form == HD_CHAT_UNPAIRED)
        st = hd_conversation_read_unpaired(&arena, line, line_bytes, e->rules.roles, pair, has);
    else
        st = hd_conversation_read_pair(&arena, line, line_bytes, e->rules.roles, pair);
    if (!st && e->rules.rewards && pair[0].has_margin)
        st = hd_err(HD_INVALID, "the line has a margin, which train.objective: reward cannot take "
                                "off the difference of rewards yet; remove the key");
    for (int i = 0; !st && i < HD_CHAT_PAIR; i++) {
        bool spelled = false;

        *ret_second = ids->count;
        if (has[i])
            st = encode_conversation(e, &arena, line, line_bytes, &pair[i], ids, counts, &spelled);
        else
            st = add_absent(ids, counts);
        st = st && has[0] && has[1] ? hd_err_prefix(st, "%s", names[i]) : st;
        *ret_spelled |= !st && spelled;
    }
    if (!st && ids->count - *ret_second == *ret_second - first &&
        memcmp(ids->ids + first, ids->ids + *ret_second,
               (*ret_second - first) * sizeof *ids->ids) == 0)
        st = hd_err(HD_INVALID, "chosen and rejected are the same answer, token by token");
    hd_arena_done(&arena);
    return st;
}

/* ---- generation ---- */

static enum hd_status render_messages(struct hd_conversation_encoder *e, struct hd_arena *arena,
                                      const char *messages, size_t bytes, bool prompt)
{
    static const struct hd_json_limits limits = {.values_max = 100000, .depth_max = 64};
    struct hd_conversation c = {.prompt = ""};
    const struct hd_template_input input = hd_chat_input(e->rules.chat);
    const struct hd_json *root = NULL, *list, *tools = NULL;
    enum hd_status st;

    if (!hd_chat_template(e->rules.chat))
        return hd_err(HD_INVALID, "the model has no chat template; put a chat_template.jinja into "
                                  "its folder, or name one with --template");
    st = hd_json_parse(arena, messages, bytes, &limits, &root);
    list = root;
    if (!st && root->kind == HD_JSON_OBJECT) {
        tools = hd_json_member(root, "tools");
        st = hd_json_need(root, "messages", HD_JSON_ARRAY, &list);
    }
    if (!st)
        st = hd_conversation_of_messages(arena, list, &c);
    if (st)
        return st;
    c.tools = tools && tools->count ? tools : NULL;
    st = hd_chat_guard_new(arena, messages, bytes, find_special, e->rules.tokenizer, &c, &e->guard);
    if (!st)
        st = hd_chat_render_prompt(hd_chat_template_for(e->rules.chat, c.tools != NULL), &c, prompt,
                                   &input, &e->output);
    return st ? st : hd_chat_unguard(&e->guard, &e->output);
}

/* Encodes messages, of which no token is marked. prompt: asks for an answer behind them. */
static enum hd_status encode_messages(struct hd_conversation_encoder *e, const char *messages,
                                      size_t bytes, bool prompt, struct hd_id_list *ids)
{
    struct hd_text counts = {0};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = render_messages(e, &arena, messages, bytes, prompt);
    e->output.span_count = 0;
    if (!st)
        st = encode_text(e, ids, &counts);
    hd_text_free(&counts);
    hd_arena_done(&arena);
    return st;
}

enum hd_status hd_conversation_prompt(struct hd_conversation_encoder *e, const char *messages,
                                      size_t messages_bytes, struct hd_id_list *ids)
{
    return encode_messages(e, messages, messages_bytes, true, ids);
}

enum hd_status hd_conversation_whole(struct hd_conversation_encoder *e, const char *line,
                                     size_t line_bytes, struct hd_id_list *ids)
{
    static const struct hd_json_limits limits = {.values_max = 100000, .depth_max = 64};
    struct hd_conversation c = {.form = HD_CHAT_COMPLETION};
    const struct hd_json *root = NULL;
    struct hd_text counts = {0};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_json_parse(&arena, line, line_bytes, &limits, &root);
    if (!st && hd_json_member(root, "messages")) {
        st = encode_messages(e, line, line_bytes, false, ids);
    } else if (!st) {
        st = hd_json_need_string(root, "prompt", &c.prompt);
        if (!st)
            st = hd_json_need_string(root, "completion", &c.answer);
        if (!st)
            st = encode_any(e, &arena, line, line_bytes, &c, ids, &counts);
    }
    hd_text_free(&counts);
    hd_arena_done(&arena);
    return st;
}

enum hd_status hd_conversation_find_end(struct hd_conversation_encoder *e, int32_t *ret_id)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"x\"},"
                                   "{\"role\":\"assistant\",\"content\":\"Qzj\"}]";
    struct hd_id_list ids = {0};
    struct hd_arena arena;
    size_t at = 0;
    enum hd_status st;

    *ret_id = -1;
    hd_arena_init(&arena, 0);
    st = render_messages(e, &arena, messages, sizeof messages - 1, false);
    if (!st && e->output.text.data) {
        const char *text = e->output.text.data, *answer = strstr(text, "Qzj");

        at = answer ? (size_t)(answer - text) + 3 : e->output.text.len_bytes;
        if (hd_tokenizer_find_special(e->rules.tokenizer, text, e->output.text.len_bytes, &at))
            st = hd_encoder_add(e->encoder, text + at, e->output.text.len_bytes - at, &ids);
        if (!st && ids.count)
            *ret_id = ids.ids[0];
    }
    hd_id_list_free(&ids);
    hd_arena_done(&arena);
    return st;
}
