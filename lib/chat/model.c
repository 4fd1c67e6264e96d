#include "chat/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tokenizer/companions.h"

static const struct hd_json_limits LIMITS = {.values_max = 1 << 20, .depth_max = 64};

struct hd_chat {
    struct hd_arena arena;
    struct hd_template *template;
    struct hd_companions companions;
    struct hd_template_variable *variables; /* [count] */
    size_t count;
};

static enum hd_status no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for a chat template");
}

/* *ret_root NULL: there is no such file. */
static enum hd_status read_json(struct hd_arena *arena, const char *dir, const char *name,
                                const struct hd_json **ret_root)
{
    struct hd_text path = {0}, text = {0};
    enum hd_status st;

    *ret_root = NULL;
    hd_file_join(&path, dir, name);
    if (path.failed)
        st = no_memory();
    else if (!hd_file_exists(path.data))
        st = HD_OK;
    else if (!(st = hd_file_read(path.data, HD_CHAT_FILE_BYTES_MAX, &text))) {
        st = hd_json_parse(arena, text.data ? text.data : "", text.len_bytes, &LIMITS, ret_root);
        st = st ? hd_err_prefix(st, "%s", path.data) : HD_OK;
    }
    hd_text_free(&path);
    hd_text_free(&text);
    return st;
}

/* The text of "chat_template", or NULL. */
static const char *template_of(const struct hd_json *root)
{
    const struct hd_json *m = hd_json_member(root, "chat_template");
    const char *name, *text;

    if (m && m->kind == HD_JSON_STRING)
        return m->text;
    for (const struct hd_json *t = m && m->kind == HD_JSON_ARRAY ? m->first : NULL; t; t = t->next)
        if (!hd_json_need_string(t, "name", &name) && strcmp(name, "default") == 0 &&
            !hd_json_need_string(t, "template", &text))
            return text;
    return NULL;
}

enum hd_status hd_chat_find(const char *dir, struct hd_text *ret_path)
{
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    enum hd_status st = HD_OK;

    hd_text_clear(ret_path);
    hd_file_join(ret_path, dir, "chat_template.jinja");
    if (!ret_path->failed && hd_file_exists(ret_path->data))
        return HD_OK;
    hd_arena_init(&arena, 0);
    st = read_json(&arena, dir, "tokenizer_config.json", &root);
    hd_text_clear(ret_path);
    if (!st && root && template_of(root))
        hd_file_join(ret_path, dir, "tokenizer_config.json");
    else
        hd_text_add(ret_path, "%s", "");
    hd_arena_done(&arena);
    return !st && ret_path->failed ? no_memory() : st;
}

/* The names of special tokens become variables. */
static enum hd_status read_names(struct hd_chat *c, const char *dir)
{
    enum hd_status st = hd_companions_read(dir, NULL, &c->companions);
    const size_t count = (size_t)c->companions.name_count;
    struct hd_json *values;

    if (st)
        return st;
    c->variables = hd_arena_array(&c->arena, count + 1, sizeof *c->variables);
    values = hd_arena_array(&c->arena, count + 1, sizeof *values);
    if (!c->variables || !values)
        return no_memory();
    for (; c->count < count; c->count++) {
        const struct hd_companion_name *name = &c->companions.names[c->count];

        values[c->count] = (struct hd_json){.kind = HD_JSON_STRING, .text = name->token.content};
        c->variables[c->count] = (struct hd_template_variable){name->name, &values[c->count]};
    }
    return HD_OK;
}

/* "PATH:LINE:COLUMN: ..." of a message that begins with the line. */
static enum hd_status at_place(enum hd_status st, const char *path)
{
    char message[512];

    (void)snprintf(message, sizeof message, "%s", hd_err_message());
    return hd_err(st, "%s:%s", path, message);
}

static enum hd_status read_template(struct hd_chat *c, const char *path)
{
    const struct hd_json *root = NULL;
    struct hd_text text = {0};
    const char *source;
    size_t bytes;
    enum hd_status st = hd_file_read(path, HD_CHAT_FILE_BYTES_MAX, &text);

    source = text.data ? text.data : "";
    bytes = text.len_bytes;
    if (!st && hd_text_ends(path, ".json")) {
        st = hd_json_parse(&c->arena, source, bytes, &LIMITS, &root);
        source = st ? NULL : template_of(root);
        bytes = source ? strlen(source) : 0;
        if (st)
            st = hd_err_prefix(st, "%s", path);
        else if (!source)
            st = hd_err(HD_INVALID, "%s: has no chat_template", path);
    }
    if (!st) {
        st = hd_template_parse(source, bytes, NULL, &c->template);
        st = st ? at_place(st, path) : HD_OK;
    }
    hd_text_free(&text);
    return st;
}

enum hd_status hd_chat_open(const char *path, const char *dir, struct hd_chat **ret_chat)
{
    struct hd_chat *c = calloc(1, sizeof *c);
    const char *slash = strrchr(path, '/');
    char *own = NULL;
    enum hd_status st = HD_OK;

    if (!c)
        return no_memory();
    hd_arena_init(&c->arena, 0);
    if (!dir) {
        own = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
        st = own ? HD_OK : no_memory();
    }
    if (!st && *path)
        st = read_template(c, path);
    if (!st)
        st = read_names(c, dir ? dir : own);
    free(own);
    if (st)
        hd_chat_close(c);
    else
        *ret_chat = c;
    return st;
}

void hd_chat_close(struct hd_chat *chat)
{
    if (!chat)
        return;
    hd_template_free(chat->template);
    hd_companions_done(&chat->companions);
    hd_arena_done(&chat->arena);
    free(chat);
}

const struct hd_template *hd_chat_template(const struct hd_chat *chat)
{
    return chat->template;
}

struct hd_template_input hd_chat_input(const struct hd_chat *chat)
{
    return (struct hd_template_input){.variables = chat->variables, .count = chat->count};
}

const char *hd_chat_token(const struct hd_chat *chat, const char *name)
{
    const struct hd_companion_name *row = hd_companions_find(&chat->companions, name);

    return row ? row->token.content : NULL;
}
