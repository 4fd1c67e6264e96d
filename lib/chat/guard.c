#include "chat/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { FIRST = 0xFDD0, CANDIDATES = 32 }; /* U+FDD0 .. U+FDEF are noncharacters of Unicode */

struct guarding {
    struct hd_arena *arena;
    hd_chat_find_fn *find;
    const void *context;
    const char *guard;
};

/* ---- is there anything to guard ---- */

static bool spells(const struct guarding *g, const char *text)
{
    size_t at = 0;

    return text && *text && g->find(g->context, text, strlen(text), &at);
}

static bool value_spells(const struct guarding *g, const struct hd_json *v)
{
    if (v->kind == HD_JSON_STRING)
        return spells(g, v->text);
    for (const struct hd_json *c = v->first; c; c = c->next)
        if (value_spells(g, c) || spells(g, c->key))
            return true;
    return false;
}

/* ---- the guarded copy ---- */

/* Returns a copy of a message's text with guards, or the text itself if it needs none; NULL: no
 * memory. */
static const char *guard_text(const struct guarding *g, const char *text)
{
    struct hd_text out = {0};
    const size_t bytes = strlen(text);
    size_t done = 0, at = 0;
    const char *copy;

    if (!spells(g, text))
        return text;
    while (g->find(g->context, text, bytes, &at)) {
        hd_text_add_bytes(&out, text + done, at - done);
        hd_text_add_bytes(&out, g->guard, HD_CHAT_GUARD_BYTES);
        done = at++;
    }
    hd_text_add_bytes(&out, text + done, bytes - done);
    copy = out.failed ? NULL : hd_arena_strdup(g->arena, out.data);
    hd_text_free(&out);
    return copy;
}

static bool is_role(const struct hd_json *v)
{
    return v->key && strcmp(v->key, "role") == 0;
}

/* Returns a copy of a JSON value with guards in its strings. In a message (is_message) the keys and
 * the role get none. */
static struct hd_json *guard_value(const struct guarding *g, const struct hd_json *v,
                                   bool is_message)
{
    struct hd_json *copy = hd_arena_alloc(g->arena, sizeof *copy), *last = NULL;

    if (!copy)
        return NULL;
    *copy = *v;
    copy->next = copy->first = NULL;
    if (v->kind == HD_JSON_STRING && !(copy->text = guard_text(g, v->text)))
        return NULL;
    for (const struct hd_json *c = v->first; c; c = c->next) {
        const bool kept = is_message && is_role(c);
        struct hd_json *child =
            kept ? hd_arena_alloc(g->arena, sizeof *child) : guard_value(g, c, false);

        if (!child)
            return NULL;
        if (kept)
            *child = *c;
        child->next = NULL;
        if (!is_message && c->key && !(child->key = guard_text(g, c->key)))
            return NULL;
        if (last)
            last->next = child;
        else
            copy->first = child;
        last = child;
    }
    return copy;
}

static enum hd_status guard_messages(const struct guarding *g, struct hd_conversation *c)
{
    struct hd_json *last = NULL;
    const struct hd_json *m = c->messages.first;

    c->messages.first = NULL;
    for (; m; m = m->next) {
        struct hd_json *copy = guard_value(g, m, true);

        if (!copy)
            return hd_err(HD_NO_MEMORY, "no memory for a conversation");
        if (last)
            last->next = copy;
        else
            c->messages.first = copy;
        last = copy;
    }
    return HD_OK;
}

static enum hd_status guard_all(const struct guarding *g, struct hd_conversation *c)
{
    enum hd_status st = guard_messages(g, c);

    if (!st && c->tools && !(c->tools = guard_value(g, c->tools, false)))
        st = hd_err(HD_NO_MEMORY, "no memory for a conversation");
    if (!st && c->prompt && !(c->prompt = guard_text(g, c->prompt)))
        st = hd_err(HD_NO_MEMORY, "no memory for a conversation");
    if (!st && c->answer && !(c->answer = guard_text(g, c->answer)))
        st = hd_err(HD_NO_MEMORY, "no memory for a conversation");
    return st;
}

/* ---- the character ---- */

/* Returns whether the line of JSON has the guard character, as it is or as an escape. */
static bool has(const char *line, size_t bytes, const char *guard, unsigned code)
{
    char digits[8];

    if (memmem(line, bytes, guard, HD_CHAT_GUARD_BYTES))
        return true;
    (void)snprintf(digits, sizeof digits, "%04x", code);
    for (size_t i = 0; i + 4 <= bytes; i++)
        if (strncasecmp(line + i, digits, 4) == 0)
            return true;
    return false;
}

static enum hd_status choose_guard(const char *line, size_t bytes, char ret_guard[4])
{
    for (unsigned i = 0; i < CANDIDATES; i++) {
        const unsigned code = FIRST + i;

        ret_guard[0] = (char)(0xE0 | code >> 12);
        ret_guard[1] = (char)(0x80 | (code >> 6 & 0x3F));
        ret_guard[2] = (char)(0x80 | (code & 0x3F));
        ret_guard[3] = '\0';
        if (!has(line, bytes, ret_guard, code))
            return HD_OK;
    }
    return hd_err(HD_INVALID, "it spells special tokens and holds all of U+FDD0 to U+FDEF; remove "
                              "these, which are no characters");
}

enum hd_status hd_chat_guard_new(struct hd_arena *arena, const char *line, size_t line_bytes,
                                 hd_chat_find_fn *find, const void *context,
                                 struct hd_conversation *c, struct hd_chat_guard *guard)
{
    const struct guarding g = {arena, find, context, guard->text};
    enum hd_status st;

    guard->text[0] = '\0';
    guard->count = 0;
    if (!value_spells(&g, &c->messages) && !(c->tools && value_spells(&g, c->tools)) &&
        !spells(&g, c->prompt) && !spells(&g, c->answer))
        return HD_OK;
    st = choose_guard(line, line_bytes, guard->text);
    return st ? st : guard_all(&g, c);
}

/* ---- afterwards ---- */

/* Returns the number of bytes of a guard at p, a character or its escape \uXXXX as tojson may write
 * it; 0: there is no guard. */
static size_t guard_at(const struct hd_chat_guard *guard, const char *escaped, const char *p,
                       size_t left)
{
    if (left >= HD_CHAT_GUARD_BYTES && memcmp(p, guard->text, HD_CHAT_GUARD_BYTES) == 0)
        return HD_CHAT_GUARD_BYTES;
    return left >= 6 && memcmp(p, escaped, 6) == 0 ? 6 : 0;
}

static enum hd_status add_place(struct hd_chat_guard *guard, size_t place)
{
    if (guard->count == guard->capacity) {
        const size_t capacity = guard->capacity ? 2 * guard->capacity : 16;
        size_t *places = realloc(guard->places, capacity * sizeof *places);

        if (!places)
            return hd_err(HD_NO_MEMORY, "no memory for a conversation");
        guard->places = places;
        guard->capacity = capacity;
    }
    guard->places[guard->count++] = place;
    return HD_OK;
}

/* Moves the bounds of spans that are at or before offset `before` of the old text back by `at`
 * bytes. */
static void move_spans(struct hd_template_output *out, size_t *begin, size_t *end, size_t before,
                       size_t at)
{
    while (*begin < out->span_count && out->spans[*begin].begin <= before)
        out->spans[(*begin)++].begin -= at;
    while (*end < out->span_count && out->spans[*end].end <= before)
        out->spans[(*end)++].end -= at;
}

enum hd_status hd_chat_unguard(struct hd_chat_guard *guard, struct hd_template_output *out)
{
    const unsigned char *code = (const unsigned char *)guard->text;
    size_t kept = 0, begin = 0, end = 0;
    char escaped[8];
    enum hd_status st = HD_OK;

    guard->count = 0;
    if (!*guard->text)
        return HD_OK;
    (void)snprintf(escaped, sizeof escaped, "\\u%04x",
                   (code[0] & 0xFu) << 12 | (code[1] & 0x3Fu) << 6 | (code[2] & 0x3Fu));
    for (size_t i = 0; !st && i < out->text.len_bytes;) {
        const size_t bytes = guard_at(guard, escaped, out->text.data + i, out->text.len_bytes - i);

        if (!bytes) {
            move_spans(out, &begin, &end, i, i - kept);
            out->text.data[kept++] = out->text.data[i++];
            continue;
        }
        move_spans(out, &begin, &end, i, i - kept);
        st = add_place(guard, kept);
        i += bytes;
    }
    move_spans(out, &begin, &end, out->text.len_bytes, out->text.len_bytes - kept);
    out->text.len_bytes = kept;
    if (out->text.data)
        out->text.data[kept] = '\0';
    return st;
}

void hd_chat_guard_free(struct hd_chat_guard *guard)
{
    free(guard->places);
    *guard = (struct hd_chat_guard){0};
}
