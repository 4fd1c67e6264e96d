#include "chat/columns.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "chat/conversation.h"

enum { NAMES_SHOWN = 12 };

/* Names of one thing; the first is the usual one, and wins over the others. */
static const char *const PROMPTS[] = {"instruction", "question", "query",
                                      "problem",     "prompt",   NULL};
static const char *const ANSWERS[] = {"output", "response", "answer", "solution", NULL};
static const char *const INPUTS[] = {"input", "context", NULL};
static const char *const SYSTEMS[] = {"system", "system_prompt", NULL};

static bool is_there(const struct hd_json *root, const char *name)
{
    const struct hd_json *m = hd_json_member(root, name);

    return m && m->kind != HD_JSON_NULL;
}

static const char *first_of(const struct hd_json *root, const char *const *names)
{
    while (*names && !is_there(root, *names))
        names++;
    return *names;
}

bool chat_columns_have_turn(const struct hd_json *root)
{
    return first_of(root, PROMPTS) && first_of(root, ANSWERS);
}

/* Finds the one member with one of the names. HD_INVALID: there are several, and none has the usual
 * name. what: the name of data.columns for it. *ret_text NULL: there is none. */
static enum hd_status find_text(const struct hd_json *root, const char *const *names,
                                const char *what, const char **ret_text)
{
    const char *name = first_of(root, names);

    *ret_text = NULL;
    if (!name)
        return HD_OK;
    for (size_t i = 1; name != names[0] && names[i]; i++)
        if (strcmp(names[i], name) != 0 && is_there(root, names[i]))
            return hd_err(HD_INVALID,
                          "'%s' and '%s' could both be meant; say which in the job file: "
                          "data.columns: {%s: %s, ..}",
                          name, names[i], what, name);
    return hd_json_need_string(root, name, ret_text);
}

/* Finds a text that may be missing or empty. */
static enum hd_status find_optional(const struct hd_json *root, const char *const *names,
                                    const char *what, const char **ret_text)
{
    const char *name = first_of(root, names);
    enum hd_status st = HD_OK;

    *ret_text = NULL;
    if (name && hd_json_member(root, name)->kind == HD_JSON_STRING)
        st = find_text(root, names, what, ret_text);
    if (*ret_text && !**ret_text)
        *ret_text = NULL;
    return st;
}

enum hd_status chat_columns_read_prompt(const struct hd_json *root, struct chat_turn *ret_turn,
                                        bool *ret_found)
{
    struct chat_turn t = {.prompt = NULL};
    enum hd_status st = find_text(root, PROMPTS, "prompt", &t.prompt);

    if (!st)
        st = find_optional(root, INPUTS, "input", &t.input);
    if (!st)
        st = find_optional(root, SYSTEMS, "system", &t.system);
    *ret_found = !st && t.prompt;
    *ret_turn = t;
    return st;
}

enum hd_status chat_columns_read_turn(const struct hd_json *root, struct chat_turn *ret_turn)
{
    const char *answer = NULL;
    bool found;
    enum hd_status st = chat_columns_read_prompt(root, ret_turn, &found);

    if (!st && !found)
        st = hd_json_need_string(root, PROMPTS[0], &ret_turn->prompt);
    if (!st)
        st = find_text(root, ANSWERS, "answer", &answer);
    if (!st && !answer)
        st = hd_json_need_string(root, ANSWERS[0], &answer);
    ret_turn->answer = answer;
    return st;
}

enum hd_status chat_columns_unknown(const struct hd_json *root)
{
    struct hd_text has = {0};
    enum hd_status st;
    int shown = 0;

    if (!root->first)
        return hd_err(HD_INVALID,
                      "the record is empty: each of its columns that could be used is null; remove "
                      "such records, or name other columns as data.columns: {text: NAME}");
    for (const struct hd_json *m = root->first; m && shown < NAMES_SHOWN; m = m->next)
        hd_text_add(&has, "%s%.40s", shown++ ? ", " : "", m->key);
    st = hd_err(HD_INVALID,
                "no known form: it has %s%s; say in the job file which of them has what, as "
                "data.columns: {text: NAME}, {messages: NAME}, or {prompt: NAME, answer: NAME}",
                has.data ? has.data : "", root->count > NAMES_SHOWN ? " and others" : "");
    hd_text_free(&has);
    return st;
}

/* ---- messages ---- */

static const char *const ROLES[] = {"system", "developer", "user", "assistant", "tool"};
enum { ROLE_COUNT = sizeof ROLES / sizeof *ROLES, ROLES_SHOWN = 8 };

/* Returns the role with this name; NULL: there is none. */
static const char *find_role(const char *name, size_t bytes)
{
    for (size_t i = 0; i < ROLE_COUNT; i++)
        if (strlen(ROLES[i]) == bytes && memcmp(ROLES[i], name, bytes) == 0)
            return ROLES[i];
    return NULL;
}

enum hd_status hd_chat_check_roles(const char *roles)
{
    for (const char *p = roles; *p;) {
        const size_t all = strcspn(p, ","), name = strcspn(p, "=,");

        if (!name || name == all || name + 1 == all)
            return hd_err(HD_INVALID, "'%.*s' is not NAME=ROLE, in a job file {NAME: ROLE}",
                          (int)(all < 80 ? all : 80), p);
        if (!find_role(p + name + 1, all - name - 1))
            return hd_err(HD_INVALID,
                          "'%.*s' is no role; write system, developer, user, assistant or tool",
                          (int)(all - name - 1 < 80 ? all - name - 1 : 80), p + name + 1);
        for (const char *q = roles; q < p; q += strcspn(q, ",") + 1)
            if (strncmp(q, p, name + 1) == 0)
                return hd_err(HD_INVALID, "the name '%.*s' is given twice; remove one",
                              (int)(name < 80 ? name : 80), p);
        p += all + (p[all] == ',');
    }
    return HD_OK;
}

/* Returns the role that the text of data.roles gives a name; NULL: it does not have the name. */
static const char *given_role(const char *roles, const char *name)
{
    const size_t n = strlen(name);

    for (const char *p = roles; p && *p; p += *p == ',') {
        const size_t all = strcspn(p, ",");

        if (n && all > n && p[n] == '=' && memcmp(p, name, n) == 0)
            return find_role(p + n + 1, all - n - 1);
        p += all;
    }
    return NULL;
}

const char *chat_columns_role(const char *given, const char *name)
{
    static const char *const roles[][2] = {
        {"user", "user"},        {"human", "user"},          {"assistant", "assistant"},
        {"gpt", "assistant"},    {"chatgpt", "assistant"},   {"bot", "assistant"},
        {"bard", "assistant"},   {"model", "assistant"},     {"function_call", "assistant"},
        {"system", "system"},    {"developer", "developer"}, {"tool", "tool"},
        {"observation", "tool"}, {"tool_response", "tool"},  {"function", "tool"},
        {"ipython", "tool"}};

    if (given_role(given, name))
        return given_role(given, name);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcasecmp(name, roles[i][0]) == 0)
            return roles[i][1];
    return NULL;
}

bool chat_columns_is_call(const char *given, const char *name)
{
    return strcasecmp(name, "function_call") == 0 && !given_role(given, name);
}

/* Returns whether a message before `until` has the speaker `name`. */
static bool spoke_before(const struct hd_json *messages, const struct hd_json *until,
                         const char *key, const char *name)
{
    for (const struct hd_json *m = messages->first; m != until; m = m->next) {
        const struct hd_json *role = hd_json_member(m, key);

        if (role && role->kind == HD_JSON_STRING && strcmp(role->text, name) == 0)
            return true;
    }
    return false;
}

enum hd_status chat_columns_refuse_role(const struct hd_json *messages, const char *key,
                                        const char *name)
{
    struct hd_text seen = {0};
    enum hd_status st;
    int shown = 0;

    for (const struct hd_json *m = messages->first; m && shown < ROLES_SHOWN; m = m->next) {
        const struct hd_json *role = hd_json_member(m, key);

        if (role && role->kind == HD_JSON_STRING && !spoke_before(messages, m, key, role->text))
            hd_text_add(&seen, "%s%.40s", shown++ ? ", " : "", role->text);
    }
    st = hd_err(HD_INVALID,
                "'%s' is '%.40s', which is no known role; the conversation has %s; say in the job "
                "file what it is, as data.roles: {%.40s: user}, or assistant, system, developer, "
                "tool",
                key, name, seen.data ? seen.data : "none", name);
    hd_text_free(&seen);
    return st;
}

const struct hd_json *chat_columns_first_role(const struct hd_json *message)
{
    const struct hd_json *role = hd_json_member(message, "role");

    return role ? role : hd_json_member(message, "from");
}

enum hd_status chat_columns_weight(const struct hd_json *message, bool *ret_weighs)
{
    const struct hd_json *weight = hd_json_member(message, "weight");
    const struct hd_json *train = hd_json_member(message, "train");
    double number;

    *ret_weighs = true;
    if (is_there(message, "train_detail"))
        return hd_err(HD_INVALID, "'train_detail' is not read; write parts that are learned as "
                                  "messages of their own, with weight 0 or 1");
    if (train && (train->kind == HD_JSON_TRUE || train->kind == HD_JSON_FALSE))
        *ret_weighs = train->kind == HD_JSON_TRUE;
    if (!weight || weight->kind == HD_JSON_NULL)
        return HD_OK;
    if (weight->kind == HD_JSON_TRUE || weight->kind == HD_JSON_FALSE) {
        *ret_weighs = weight->kind == HD_JSON_TRUE;
        return HD_OK;
    }
    number = weight->kind == HD_JSON_NUMBER ? strtod(weight->text, NULL) : -1;
    if (number != 0 && number != 1)
        return hd_err(HD_INVALID, "'weight' is %.40s; it must be 0 or 1",
                      weight->kind == HD_JSON_NUMBER ? weight->text : "no number");
    *ret_weighs = number != 0;
    return HD_OK;
}

enum hd_status chat_columns_check_content(const struct hd_json *message)
{
    static const char *const types[] = {"image", "image_url", "video", "audio", "input_audio"};
    const struct hd_json *content = hd_json_member(message, "content");
    const bool has_parts = content && content->kind == HD_JSON_ARRAY;

    for (const struct hd_json *p = has_parts ? content->first : NULL; p; p = p->next) {
        const struct hd_json *type = p->kind == HD_JSON_OBJECT ? hd_json_member(p, "type") : NULL;

        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (type && type->kind == HD_JSON_STRING && strcmp(type->text, types[i]) == 0)
                return hd_err(HD_INVALID,
                              "its content has a part of type '%s', and Heddle trains on text",
                              types[i]);
    }
    return HD_OK;
}

enum hd_status chat_columns_refuse_media(const struct hd_json *root)
{
    static const char *const names[] = {"image", "images", "video", "videos", "audio", "audios"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct hd_json *m = hd_json_member(root, names[i]);

        if (m &&
            (m->kind == HD_JSON_OBJECT || m->kind == HD_JSON_ARRAY ||
             (m->kind == HD_JSON_STRING && *m->text)) &&
            (m->count || m->kind == HD_JSON_STRING))
            return hd_err(HD_INVALID,
                          "it has '%s', and Heddle trains on text; leave such records out, or "
                          "remove the member",
                          names[i]);
    }
    return HD_OK;
}

enum hd_status chat_columns_refuse_rated(const struct hd_json *root)
{
    static const char *const names[] = {"label", "kto_tag"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct hd_json *m = hd_json_member(root, names[i]);

        if (m && (m->kind == HD_JSON_TRUE || m->kind == HD_JSON_FALSE))
            return hd_err(HD_INVALID,
                          "its answer is rated ('%s'); train on rated answers with "
                          "train.objective: kto, or remove the bad ones and the column",
                          names[i]);
    }
    return HD_OK;
}

/* Makes {"type": "function", "function": TOOL} of each tool that has a name itself. */
static enum hd_status wrap_tools(struct hd_arena *arena, const struct hd_json *tools,
                                 const struct hd_json **ret_tools)
{
    struct hd_json *list = hd_arena_alloc(arena, sizeof *list), *last = NULL;

    if (!list)
        return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    *list = *tools;
    list->first = NULL;
    for (const struct hd_json *t = tools->first; t; t = t->next) {
        const bool is_bare = t->kind == HD_JSON_OBJECT && is_there(t, "name") &&
                             !is_there(t, "function") && !is_there(t, "type");
        struct hd_json *parts = hd_arena_array(arena, 3, sizeof *parts);

        if (!parts)
            return hd_err(HD_NO_MEMORY, "no memory for a conversation");
        parts[0] = *t;
        if (is_bare) {
            parts[0] = (struct hd_json){.kind = HD_JSON_OBJECT, .count = 2, .first = &parts[1]};
            parts[1] = (struct hd_json){
                .kind = HD_JSON_STRING, .key = "type", .text = "function", .next = &parts[2]};
            parts[2] = *t;
            parts[2].key = "function";
            parts[2].next = NULL;
        }
        parts[0].next = NULL;
        if (last)
            last->next = parts;
        else
            list->first = parts;
        last = parts;
    }
    *ret_tools = list;
    return HD_OK;
}

enum hd_status chat_columns_tools(struct hd_arena *arena, const struct hd_json *root, bool wraps,
                                  const struct hd_json **ret_tools)
{
    static const struct hd_json_limits limits = {.values_max = 100000, .depth_max = 64};
    const struct hd_json *tools = hd_json_member(root, "tools");
    enum hd_status st;

    *ret_tools = NULL;
    if (!tools || tools->kind == HD_JSON_NULL ||
        (tools->kind == HD_JSON_STRING && strspn(tools->text, " \t\r\n") == strlen(tools->text)))
        return HD_OK;
    if (tools->kind == HD_JSON_STRING) {
        st = hd_json_parse_repeated(arena, tools->text, strlen(tools->text), &limits, &tools);
        if (st && st != HD_NO_MEMORY)
            return hd_err_prefix(HD_INVALID, "tools, written as text");
        if (st)
            return st;
    }
    if (tools->kind != HD_JSON_ARRAY)
        return hd_err(HD_INVALID, "tools must be a list");
    *ret_tools = tools;
    return wraps ? wrap_tools(arena, tools, ret_tools) : HD_OK;
}

/* Returns the length of the lists in an object; SIZE_MAX: they differ, or it has another member. */
static size_t common_length(const struct hd_json *object)
{
    const size_t count = object->first ? object->first->count : SIZE_MAX;

    for (const struct hd_json *m = object->first; m; m = m->next)
        if (m->kind != HD_JSON_ARRAY || m->count != count)
            return SIZE_MAX;
    return count;
}

enum hd_status chat_columns_unzip(struct hd_arena *arena, const struct hd_json *value,
                                  const struct hd_json **ret_list)
{
    const size_t count = value && value->kind == HD_JSON_OBJECT ? common_length(value) : SIZE_MAX;
    const size_t width = count != SIZE_MAX ? value->count : 0;
    struct hd_json *list, *objects, *cells;
    size_t k = 0;

    *ret_list = value;
    if (count == SIZE_MAX)
        return HD_OK;
    list = hd_arena_alloc(arena, sizeof *list);
    objects = hd_arena_array(arena, count + 1, sizeof *objects);
    cells = hd_arena_array(arena, count * width + 1, sizeof *cells);
    if (!list || !objects || !cells)
        return hd_err(HD_NO_MEMORY, "no memory for a conversation");
    for (const struct hd_json *m = value->first; m; m = m->next, k++) {
        const struct hd_json *v = m->first;

        for (size_t i = 0; i < count; i++, v = v->next) {
            struct hd_json *cell = &cells[i * width + k];

            *cell = *v;
            cell->key = m->key;
            cell->next = k + 1 < width ? cell + 1 : NULL;
        }
    }
    for (size_t i = 0; i < count; i++)
        objects[i] = (struct hd_json){.kind = HD_JSON_OBJECT,
                                      .count = width,
                                      .first = &cells[i * width],
                                      .next = i + 1 < count ? &objects[i + 1] : NULL};
    *list = (struct hd_json){.kind = HD_JSON_ARRAY,
                             .key = value->key,
                             .count = count,
                             .first = count ? objects : NULL,
                             .next = value->next};
    *ret_list = list;
    return HD_OK;
}
