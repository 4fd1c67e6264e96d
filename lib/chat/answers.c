/* answers: finds the position of an answer in the rendered text of a conversation.
 *
 * The first method renders prefixes: (a) the messages before the answer, with the prompt for it,
 * and (b) the messages up to the answer. If both texts begin the whole text, the answer is the part
 * between them. This fails for a template that rewrites history (drops the thinking of earlier
 * answers, moves the tools to the last question). The second method then renders the conversation
 * with a mark, a character that the text does not contain, at the end of a message. If the text
 * after the mark equals the end of the whole text, the mark's position is the end of the
 * message. */
#include <string.h>

#include "base/arena.h"
#include "chat/render_internal.h"

enum { MARK_BYTES = 3, MARK_FIRST = 0xFDEF, MARKS = 32 }; /* noncharacters U+FDEF and below */

struct answer_search {
    const struct chat_rendering *r;
    const struct hd_text *whole;
    struct hd_arena arena;
    char mark[MARK_BYTES + 1];
    bool shown; /* whether a mark put into the answer appeared in the rendered text */
};

/* Renders a part of a conversation. If the template refuses that part, returns HD_OK and sets
 * *ret_there to false, because only this method of finding the answer fails. */
static enum hd_status try_render(const struct chat_rendering *r, const struct hd_json *list,
                                 size_t count, bool prompt, struct hd_template_output *output,
                                 bool *ret_there)
{
    const enum hd_status st = chat_render_messages(r, list, count, prompt, output);

    *ret_there = !st;
    return st == HD_INVALID ? HD_OK : st;
}

static bool starts(const char *text, size_t bytes, const struct hd_text *part)
{
    return part->len_bytes <= bytes && memcmp(text, part->data, part->len_bytes) == 0;
}

static bool begins(const struct hd_text *whole, const struct hd_text *part)
{
    return starts(whole->data, whole->len_bytes, part);
}

/* Returns the bytes of the common prefix of both texts, cut before an unfinished tag such as
 * <|end|> or [INST]. */
static size_t same_bytes(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t n = 0, whole;

    while (n < a_bytes && n < b_bytes && a[n] == b[n])
        n++;
    for (whole = n; whole > 0 && a[whole - 1] != '>' && a[whole - 1] != ']'; whole--)
        if (a[whole - 1] == '<' || a[whole - 1] == '[')
            return whole - 1;
    return n;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r\n", text[i]))
            return false;
    return true;
}

static enum hd_status by_prefixes(const struct answer_search *s, size_t index,
                                  struct hd_template_span *ret_span, bool *ret_found)
{
    struct hd_template_output before = {0}, upto = {0};
    const struct hd_json *list = &s->r->c->messages;
    bool there = false;
    enum hd_status st = try_render(s->r, list, index, true, &before, &there);

    if (!st && there)
        st = try_render(s->r, list, index + 1, false, &upto, &there);
    *ret_found = !st && there && begins(&upto.text, &before.text) && begins(s->whole, &upto.text) &&
                 before.text.len_bytes < upto.text.len_bytes;
    if (*ret_found)
        *ret_span = (struct hd_template_span){before.text.len_bytes, upto.text.len_bytes};
    hd_template_output_free(&before);
    hd_template_output_free(&upto);
    return st;
}

/* ---- a message with a mark ---- */

enum mark_place { AT_BEGIN, AT_END, IN_CALL };

static struct hd_json *copy_of(struct answer_search *s, const struct hd_json *v)
{
    struct hd_json *copy = hd_arena_alloc(&s->arena, sizeof *copy);

    if (copy)
        *copy = *v;
    return copy;
}

/* Replaces the child `old` of the JSON value `parent`, itself a copy, by `new`, and the children
 * before it by copies. */
static bool replace_child(struct answer_search *s, struct hd_json *parent,
                          const struct hd_json *old, struct hd_json *new)
{
    const struct hd_json *c = parent->first;
    struct hd_json *last = NULL;

    for (bool done = false; !done; c = c->next) {
        struct hd_json *copy = c == old ? new : copy_of(s, c);

        if (!copy)
            return false;
        done = c == old;
        if (last)
            last->next = copy;
        else
            parent->first = copy;
        last = copy;
    }
    return true;
}

/* Returns a copy of a JSON string with the mark at its beginning or end. */
static struct hd_json *marked_string(struct answer_search *s, const struct hd_json *v,
                                     enum mark_place place)
{
    struct hd_json *copy = copy_of(s, v);

    if (copy)
        copy->text = place == AT_BEGIN ? hd_arena_printf(&s->arena, "%s%s", s->mark, v->text)
                                       : hd_arena_printf(&s->arena, "%s%s", v->text, s->mark);
    return copy && copy->text ? copy : NULL;
}

static const struct hd_json *last_child(const struct hd_json *v)
{
    const struct hd_json *last = NULL;

    for (const struct hd_json *c = v ? v->first : NULL; c; c = c->next)
        last = c;
    return last;
}

/* Sets ret_path to the JSON values from a message down to the string into which the mark is put;
 * returns their number; 0: the message has no such string. */
static size_t path_to_string(const struct hd_json *message, enum mark_place place,
                             const struct hd_json *ret_path[6])
{
    const struct hd_json *v = hd_json_member(message, place == IN_CALL ? "tool_calls" : "content");
    size_t n = 0;

    ret_path[n++] = message;
    if (!v)
        return 0;
    ret_path[n++] = v;
    if (place == IN_CALL) {
        const struct hd_json *call = last_child(v);
        const struct hd_json *function = call ? hd_json_member(call, "function") : NULL;

        if (!call)
            return 0;
        ret_path[n++] = call;
        if (function)
            ret_path[n++] = function;
        v = hd_json_member(function ? function : call, "name");
    } else if (v->kind == HD_JSON_ARRAY) {
        const struct hd_json *part = NULL;

        for (const struct hd_json *c = v->first; c; c = c->next)
            if (hd_json_member(c, "text") && (place == AT_END || !part))
                part = c;
        if (!part)
            return 0;
        ret_path[n++] = part;
        v = hd_json_member(part, "text");
    } else {
        return v->kind == HD_JSON_STRING ? n : 0;
    }
    if (v)
        ret_path[n++] = v;
    return v && v->kind == HD_JSON_STRING ? n : 0;
}

/* Copies the list of messages with a mark in messages[index]; ret_list->first is NULL if that
 * message has no string for the mark. */
static enum hd_status mark_message(struct answer_search *s, size_t index, enum mark_place place,
                                   struct hd_json *ret_list)
{
    const struct hd_json *path[6], *message = s->r->c->messages.first;
    struct hd_json *child;
    size_t n;

    *ret_list = s->r->c->messages;
    for (size_t i = 0; i < index; i++)
        message = message->next;
    n = path_to_string(message, place, path);
    if (!n) {
        ret_list->first = NULL;
        return HD_OK;
    }
    child = marked_string(s, path[n - 1], place);
    while (child && n-- > 1) {
        struct hd_json *parent = copy_of(s, path[n - 1]);

        if (!parent || !replace_child(s, parent, path[n], child))
            return hd_err(HD_NO_MEMORY, "no memory for the answers of a conversation");
        child = parent;
    }
    if (!child || !replace_child(s, ret_list, message, child))
        return hd_err(HD_NO_MEMORY, "no memory for the answers of a conversation");
    return HD_OK;
}

/* Returns the position of the mark in a text; NULL: there is none, or more than one. */
static const char *find_mark(const struct answer_search *s, const struct hd_text *text)
{
    const char *at = memmem(text->data, text->len_bytes, s->mark, MARK_BYTES);
    const char *behind = at ? at + MARK_BYTES : NULL;

    if (!at || memmem(behind, (size_t)(text->data + text->len_bytes - behind), s->mark, MARK_BYTES))
        return NULL;
    return at;
}

/* ---- places in the whole text ---- */

/* Sets *ret_at to the offset in the whole text at which the content of messages[index] begins. */
static enum hd_status content_begin(struct answer_search *s, size_t index, size_t *ret_at,
                                    bool *ret_found)
{
    struct hd_template_output marked = {0};
    struct hd_json list;
    bool there = false;
    enum hd_status st = mark_message(s, index, AT_BEGIN, &list);

    *ret_found = false;
    if (!st && list.first)
        st = try_render(s->r, &list, list.count, false, &marked, &there);
    if (!st && there) {
        const char *at = find_mark(s, &marked.text);
        const size_t bytes = at ? (size_t)(at - marked.text.data) : 0;

        *ret_found = at && bytes <= s->whole->len_bytes &&
                     memcmp(marked.text.data, s->whole->data, bytes) == 0;
        *ret_at = bytes;
    }
    hd_template_output_free(&marked);
    return st;
}

/* Appends the text that the template writes after the mark in messages[index] when that message is
 * the last one. */
static enum hd_status add_tail(struct answer_search *s, size_t index, const struct hd_json *list,
                               struct hd_text *tail, bool *ret_found)
{
    struct hd_template_output output = {0};
    bool there = false;
    enum hd_status st = try_render(s->r, list, index + 1, false, &output, &there);
    const char *at = !st && there ? find_mark(s, &output.text) : NULL;

    *ret_found = at != NULL;
    if (at) {
        at += MARK_BYTES;
        hd_text_add_bytes(tail, at, (size_t)(output.text.data + output.text.len_bytes - at));
        if (tail->failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the answers of a conversation");
    }
    hd_template_output_free(&output);
    return st;
}

struct message_end {
    bool has_content, is_found;
    /* offset in the whole text after the message's content, or after the name of its last tool
     * call; valid if has_content */
    size_t content;
    /* offset in the whole text after all text that the template writes for the message; valid if
     * is_found */
    size_t at;
};

/* Returns whether the whole text continues at `from` with the tail or with its first part: after
 * the last message a template may add a token, such as <|endoftext|>. Sets *ret_end to the offset
 * after it. */
static bool takes_tail(const struct answer_search *s, const struct hd_text *tail, size_t from,
                       size_t *ret_end)
{
    const char *text = s->whole->data + from;
    const size_t left = s->whole->len_bytes - from;
    size_t same = tail->len_bytes;

    if (tail->len_bytes && !starts(text, left, tail)) {
        same = same_bytes(tail->data, tail->len_bytes, text, left);
        if (is_blank(text, same))
            return false;
    }
    *ret_end = from + same;
    return true;
}

static enum hd_status end_by_mark(struct answer_search *s, size_t index, enum mark_place place,
                                  struct message_end *ret_end)
{
    const struct hd_text *whole = s->whole;
    struct hd_template_output marked = {0};
    struct hd_text tail = {0};
    struct hd_json list;
    bool there = false;
    enum hd_status st = mark_message(s, index, place, &list);

    *ret_end = (struct message_end){.is_found = false};
    if (!st && list.first)
        st = try_render(s->r, &list, list.count, false, &marked, &there);
    if (!st && there) {
        const char *at = find_mark(s, &marked.text);
        const size_t rest =
            at ? (size_t)(marked.text.data + marked.text.len_bytes - at) - MARK_BYTES : 0;

        ret_end->has_content =
            at && rest <= whole->len_bytes &&
            memcmp(at + MARK_BYTES, whole->data + whole->len_bytes - rest, rest) == 0;
        ret_end->content = whole->len_bytes - rest;
    }
    if (!st && ret_end->has_content && index + 1 == s->r->c->messages.count) {
        ret_end->is_found = true;
        ret_end->at = whole->len_bytes;
    } else if (!st && ret_end->has_content) {
        st = add_tail(s, index, &list, &tail, &there);
        if (!st && there)
            ret_end->is_found = takes_tail(s, &tail, ret_end->content, &ret_end->at);
    }
    hd_template_output_free(&marked);
    hd_text_free(&tail);
    return st;
}

/* Sets *ret_end to the end of messages[index] in the whole text, found by a mark in its content or,
 * if the template does not write the content, in its last tool call. */
static enum hd_status end_of(struct answer_search *s, size_t index, struct message_end *ret_end)
{
    struct message_end by_call;
    enum hd_status st = end_by_mark(s, index, AT_END, ret_end);

    if (!st && !ret_end->is_found) {
        st = end_by_mark(s, index, IN_CALL, &by_call);
        if (!st && (by_call.is_found || !ret_end->has_content))
            *ret_end = by_call;
    }
    return st;
}

/* Sets `prompt` to the text that the template writes before an answer to the first `index`
 * messages; to "" if the template refuses to render that, or writes nothing. */
static enum hd_status find_prompt(struct answer_search *s, size_t index, struct hd_text *prompt)
{
    static const struct hd_json content = {.kind = HD_JSON_STRING, .key = "content", .text = "x"};
    static const struct hd_json role = {
        .kind = HD_JSON_STRING, .key = "role", .text = "user", .next = (struct hd_json *)&content};
    static const struct hd_json user = {
        .kind = HD_JSON_OBJECT, .count = 2, .first = (struct hd_json *)&role};
    static const struct hd_json only = {
        .kind = HD_JSON_ARRAY, .count = 1, .first = (struct hd_json *)&user};
    const struct hd_json *lists[] = {&s->r->c->messages, &only};
    const size_t counts[] = {index, 1};
    struct hd_template_output with = {0}, without = {0};
    enum hd_status st = HD_OK;

    for (int i = index ? 0 : 1; !st && i < 2; i++) {
        bool there = false;
        size_t same;

        st = try_render(s->r, lists[i], counts[i], true, &with, &there);
        if (!st && there)
            st = try_render(s->r, lists[i], counts[i], false, &without, &there);
        if (st || !there)
            continue;
        if (begins(&with.text, &without.text))
            same = without.text.len_bytes;
        else
            same = same_bytes(with.text.data, with.text.len_bytes, without.text.data,
                              without.text.len_bytes);
        hd_text_add_bytes(prompt, with.text.data + same, with.text.len_bytes - same);
        if (prompt->failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the answers of a conversation");
        break;
    }
    hd_template_output_free(&with);
    hd_template_output_free(&without);
    return st;
}

/* Sets *ret_at to the offset after the prompt in the whole text, searched from `from` on. A prompt
 * may be longer than what the template writes before a past answer, for example by <think>; then
 * the offset after their common text. */
static bool behind_prompt(const struct answer_search *s, const struct hd_text *prompt, size_t from,
                          bool exact, size_t *ret_at)
{
    const char *text = s->whole->data + from, *found;
    const size_t left = s->whole->len_bytes - from;
    size_t same = 0;

    if (!prompt->len_bytes) {
        *ret_at = from;
        return exact;
    }
    if (exact)
        same = starts(text, left, prompt) ? prompt->len_bytes
                                          : same_bytes(prompt->data, prompt->len_bytes, text, left);
    if (same) {
        *ret_at = from + same;
        return true;
    }
    found = memmem(text, left, prompt->data, prompt->len_bytes);
    if (found)
        *ret_at = (size_t)(found - s->whole->data) + prompt->len_bytes;
    return found != NULL;
}

static enum hd_status begin_of(struct answer_search *s, size_t index, size_t end, size_t *ret_begin,
                               bool *ret_found)
{
    struct message_end before = {.is_found = false};
    struct hd_text prompt = {0};
    size_t content = 0;
    bool has_content = false;
    enum hd_status st = find_prompt(s, index, &prompt);

    *ret_begin = 0;
    *ret_found = false;
    if (!st && index)
        st = end_of(s, index - 1, &before);
    if (!st)
        st = content_begin(s, index, &content, &has_content);
    if (!st && before.is_found)
        *ret_found = behind_prompt(s, &prompt, before.at, true, ret_begin);
    if (!st && !*ret_found && (before.has_content || !index))
        *ret_found = behind_prompt(s, &prompt, before.content, false, ret_begin);
    if (!st && has_content && (!*ret_found || *ret_begin > content)) {
        *ret_found = true;
        *ret_begin = content;
    }
    *ret_found &= *ret_begin < end;
    hd_text_free(&prompt);
    return st;
}

static enum hd_status by_marks(struct answer_search *s, size_t index,
                               struct hd_template_span *ret_span, bool *ret_found)
{
    struct message_end end;
    enum hd_status st = end_of(s, index, &end);

    *ret_found = false;
    s->shown = !st && end.has_content;
    if (!st && end.is_found) {
        ret_span->end = end.at;
        st = begin_of(s, index, end.at, &ret_span->begin, ret_found);
    }
    return st;
}

/* ---- */

/* Returns the end of an error message, the advice for an answer that cannot be located. Weight 0
 * helps only if another answer remains to learn, and data.loss: last only if a later one does. */
static const char *remedy_of(const struct answer_search *s, size_t index)
{
    const struct hd_conversation *c = s->r->c;
    bool others = false, later = false;

    for (size_t i = 0; i < c->messages.count; i++) {
        others |= c->counts[i] && i != index;
        later |= c->counts[i] && i > index;
    }
    if (s->r->last || !others)
        return "or set data.loss: all";
    return later ? "give it \"weight\": 0, or set data.loss: last"
                 : "give it \"weight\": 0, or set data.loss: all";
}

static enum hd_status not_found(const struct answer_search *s, size_t index)
{
    const char *name = s->r->input->name ? s->r->input->name : "";
    const char *before = *name ? " " : "";
    const char *remedy = remedy_of(s, index);

    if (!s->shown)
        return hd_err(HD_INVALID,
                      "message %zu: the chat template%s%s does not show this answer in this "
                      "conversation, so it cannot be learned; use a template that shows it, %s",
                      index + 1, before, name, remedy);
    if (!index)
        return hd_err(HD_INVALID,
                      "message 1: the conversation begins with an answer, and the chat template"
                      "%s%s does not tell where its text begins; put a message of the role user in "
                      "front, %s",
                      before, name, remedy);
    return hd_err(HD_INVALID,
                  "message %zu: the chat template%s%s rewrites history, and its text does not tell "
                  "where this answer begins and ends; mark answers in it with {%% generation %%}, "
                  "%s",
                  index + 1, before, name, remedy);
}

static enum hd_status choose_mark(struct answer_search *s)
{
    for (unsigned i = 0; i < MARKS; i++) {
        const unsigned code = MARK_FIRST - i;

        s->mark[0] = (char)(0xE0 | code >> 12);
        s->mark[1] = (char)(0x80 | (code >> 6 & 0x3F));
        s->mark[2] = (char)(0x80 | (code & 0x3F));
        if (!memmem(s->whole->data, s->whole->len_bytes, s->mark, MARK_BYTES))
            return HD_OK;
    }
    return hd_err(HD_INVALID, "the text holds all of U+FDD0 to U+FDEF; remove these, which are no "
                              "characters");
}

enum hd_status chat_find_answer(const struct chat_rendering *r, size_t index,
                                const struct hd_text *whole, struct hd_template_span *ret_span)
{
    struct answer_search s = {.r = r, .whole = whole};
    bool found = false;
    enum hd_status st = by_prefixes(&s, index, ret_span, &found);

    if (st || found)
        return st;
    hd_arena_init(&s.arena, 0);
    st = choose_mark(&s);
    if (!st)
        st = by_marks(&s, index, ret_span, &found);
    hd_arena_done(&s.arena);
    return st || found ? st : not_found(&s, index);
}
