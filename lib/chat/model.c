#include "chat/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "chat/date.h"
#include "tokenizer/companions.h"

static const struct hd_json_limits LIMITS = {.values_max = 1 << 20, .depth_max = 64};

struct hd_chat {
    struct hd_arena arena;
    struct hd_template *template;
    struct hd_template *tool_use; /* template for conversations with tools; NULL: the same as
                                     `template` */
    const char *path;             /* path of the file with the template */
    bool has_date;
    int64_t date_s;
    struct hd_companions companions;
    struct hd_template_variable *variables; /* [count] names of special tokens */
    size_t count;
};

/* Returns the template in the member "chat_template" of a JSON object: a string or, in a list, the
 * entry named `wanted`; NULL: none. */
static const char *template_of(const struct hd_json *root, const char *wanted)
{
    const struct hd_json *m = hd_json_member(root, "chat_template");
    const char *name, *text;

    if (m && m->kind == HD_JSON_STRING)
        return strcmp(wanted, "default") == 0 ? m->text : NULL;
    for (const struct hd_json *t = m && m->kind == HD_JSON_ARRAY ? m->first : NULL; t; t = t->next)
        if (!hd_json_need_string(t, "name", &name) && strcmp(name, wanted) == 0 &&
            !hd_json_need_string(t, "template", &text))
            return text;
    return NULL;
}

enum hd_status hd_chat_find(const char *dir, struct hd_text *ret_path)
{
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    enum hd_status st;

    st = hd_folder_path(ret_path, dir, "chat_template.jinja");
    if (!st && hd_file_exists(ret_path->data))
        return HD_OK;
    hd_arena_init(&arena, 0);
    if (!st)
        st = hd_folder_read_json(&arena, dir, "tokenizer_config.json", HD_CHAT_FILE_BYTES_MAX,
                                 &LIMITS, &root);
    hd_text_clear(ret_path);
    if (!st && root && template_of(root, "default"))
        st = hd_folder_path(ret_path, dir, "tokenizer_config.json");
    hd_arena_done(&arena);
    return st;
}

/* Makes template variables of the special tokens' names. */
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
        return hd_err(HD_NO_MEMORY, "no memory for a chat template");
    for (; c->count < count; c->count++) {
        const struct hd_companion_name *name = &c->companions.names[c->count];

        values[c->count] = (struct hd_json){.kind = HD_JSON_STRING, .text = name->token.content};
        c->variables[c->count] = (struct hd_template_variable){name->name, &values[c->count]};
    }
    return HD_OK;
}

/* Puts "PATH:" in front of an error message that begins with "LINE:COLUMN:". */
static enum hd_status at_place(enum hd_status st, const char *path)
{
    char message[512];

    (void)snprintf(message, sizeof message, "%s", hd_err_message());
    return hd_err(st, "%s:%s", path, message);
}

static enum hd_status parse(const char *source, size_t bytes, const char *path,
                            struct hd_template **ret_template)
{
    const enum hd_status st = hd_template_parse(source, bytes, NULL, ret_template);

    return st ? at_place(st, path) : HD_OK;
}

/* Reads the default and the tool_use template in a tokenizer_config.json. */
static enum hd_status read_config(struct hd_chat *c, const char *path, const struct hd_text *text)
{
    const struct hd_json *root = NULL;
    const char *source, *tools;
    enum hd_status st =
        hd_json_parse_repeated(&c->arena, text->data, text->len_bytes, &LIMITS, &root);

    if (st)
        return hd_err_prefix(st, "%s", path);
    source = template_of(root, "default");
    tools = template_of(root, "tool_use");
    if (!source)
        return hd_err(HD_INVALID, "%s: has no chat_template", path);
    st = parse(source, strlen(source), path, &c->template);
    return st || !tools ? st : parse(tools, strlen(tools), path, &c->tool_use);
}

enum hd_status hd_chat_find_tool_use(const char *template_path, struct hd_text *ret_path)
{
    static const char name[] = "chat_template.jinja";
    const size_t bytes = strlen(template_path);

    hd_text_clear(ret_path);
    if (hd_text_ends(template_path, name) &&
        (bytes == sizeof name - 1 || template_path[bytes - sizeof name] == '/'))
        hd_text_add(ret_path, "%.*sadditional_chat_templates/tool_use.jinja",
                    (int)(bytes - (sizeof name - 1)), template_path);
    if (!ret_path->failed && ret_path->len_bytes && !hd_file_exists(ret_path->data))
        hd_text_clear(ret_path);
    return ret_path->failed ? hd_err(HD_NO_MEMORY, "no memory for a chat template") : HD_OK;
}

/* Reads the template for conversations with tools, if it is a separate file. */
static enum hd_status read_beside(struct hd_chat *c, const char *path)
{
    struct hd_text beside = {0}, text = {0};
    enum hd_status st = hd_chat_find_tool_use(path, &beside);

    if (!st && beside.len_bytes) {
        st = hd_file_read(beside.data, HD_CHAT_FILE_BYTES_MAX, &text);
        if (!st)
            st = parse(text.data, text.len_bytes, beside.data, &c->tool_use);
    }
    hd_text_free(&beside);
    hd_text_free(&text);
    return st;
}

static enum hd_status read_template(struct hd_chat *c, const char *path)
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(path, HD_CHAT_FILE_BYTES_MAX, &text);

    c->path = hd_arena_strdup(&c->arena, path);
    if (!st && !c->path)
        st = hd_err(HD_NO_MEMORY, "no memory for a chat template");
    if (!st && hd_text_ends(path, ".json"))
        st = read_config(c, path, &text);
    else if (!st) {
        st = parse(text.data, text.len_bytes, path, &c->template);
        if (!st)
            st = read_beside(c, path);
    }
    hd_text_free(&text);
    return st;
}

enum hd_status hd_chat_open(const char *path, const char *dir, struct hd_chat **ret_chat)
{
    struct hd_chat *c = calloc(1, sizeof *c);
    struct hd_text own = {0};
    enum hd_status st = HD_OK;

    if (!c)
        return hd_err(HD_NO_MEMORY, "no memory for a chat template");
    hd_arena_init(&c->arena, 0);
    hd_folder_of(path, &own);
    if (own.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a chat template");
    if (!st && *path)
        st = read_template(c, path);
    if (!st)
        st = read_names(c, dir ? dir : own.data);
    hd_text_free(&own);
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
    hd_template_free(chat->tool_use);
    hd_arena_done(&chat->arena);
    free(chat);
}

const struct hd_template *hd_chat_template(const struct hd_chat *chat)
{
    return chat->template;
}

const struct hd_template *hd_chat_template_for(const struct hd_chat *chat, bool has_tools)
{
    return has_tools && chat->tool_use ? chat->tool_use : chat->template;
}

bool hd_chat_asks_date(const struct hd_chat *chat)
{
    return (chat->template && hd_template_asks_date(chat->template)) ||
           (chat->tool_use && hd_template_asks_date(chat->tool_use));
}

enum hd_status hd_chat_set_date(struct hd_chat *chat, const char *date)
{
    chat->has_date = *date != '\0';
    return chat->has_date ? hd_chat_date_read(date, &chat->date_s) : HD_OK;
}

struct hd_template_input hd_chat_input(const struct hd_chat *chat)
{
    return (struct hd_template_input){.variables = chat->variables,
                                      .count = chat->count,
                                      .has_clock = chat->has_date,
                                      .now_s = chat->date_s,
                                      .name = chat->path};
}

const char *hd_chat_token(const struct hd_chat *chat, const char *name)
{
    const struct hd_companion_name *row = hd_companions_find(&chat->companions, name);

    return row ? row->token.content : NULL;
}
