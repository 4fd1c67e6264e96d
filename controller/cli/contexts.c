#include "controller/cli/contexts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "yaml/yaml.h"

const char *const context_key_names[CONTEXT_KEY_COUNT] = {"controller", "token_file", "tls_ca",
                                                          "tls_cert"};
static const char *const environment[CONTEXT_KEY_COUNT] = {"HEDDLE_CONTROLLER", "HEDDLE_TOKEN_FILE",
                                                           "HEDDLE_TLS_CA", "HEDDLE_TLS_CERT"};
enum { FILES = 2, NAMES_MAX = 64 };

struct file {
    const char *path;
    struct yaml_node *root; /* parsed file; NULL: no such file, or an empty one */
};

/* ---- reading ----------------------------------------------------------------------------------*/

static enum hd_status unknown_key(const char *path, const struct yaml_node *node,
                                  const char *const *names, size_t count)
{
    const char *nearest = hd_text_nearest(node->key, names, count);

    return hd_err(HD_INVALID, "%s:%d: unknown key %.64s; %s%s%s", path, node->line, node->key,
                  nearest ? "did you mean " : "remove this line",
                  nearest ? nearest : " (heddle config example lists the keys)",
                  nearest ? "?" : "");
}

static enum hd_status check_scalar(const char *path, const struct yaml_node *node)
{
    return node->kind == YAML_KIND_SCALAR && *node->text
               ? HD_OK
               : hd_err(HD_INVALID, "%s:%d: %s: expected one value", path, node->line, node->key);
}

static enum hd_status check_map(const char *path, const struct yaml_node *map, const char *what,
                                const char *const *names, size_t count)
{
    enum hd_status st = HD_OK;

    if (map->kind != YAML_KIND_MAP)
        return hd_err(HD_INVALID, "%s:%d: %s: expected lines KEY: VALUE", path, map->line, what);
    for (const struct yaml_node *n = map->first; !st && n; n = n->next) {
        bool known = false;

        for (size_t i = 0; i < count; i++)
            known |= strcmp(names[i], n->key) == 0;
        for (const struct yaml_node *m = map->first; m != n; m = m->next)
            if (strcmp(m->key, n->key) == 0)
                return hd_err(HD_INVALID, "%s:%d: %s is given twice, first in line %d", path,
                              n->line, n->key, m->line);
        if (!known)
            st = unknown_key(path, n, names, count);
        else if (strcmp(n->key, "contexts") != 0)
            st = check_scalar(path, n);
    }
    return st;
}

static enum hd_status check_file(const struct file *file)
{
    static const char *const names[] = {"controller", "token_file", "tls_ca",
                                        "tls_cert",   "context",    "contexts"};
    const struct yaml_node *contexts;
    enum hd_status st =
        check_map(file->path, file->root, "the file", names, sizeof names / sizeof names[0]);

    contexts = st ? NULL : hd_yaml_find(file->root, "contexts");
    if (contexts && contexts->kind != YAML_KIND_MAP)
        return hd_err(HD_INVALID, "%s:%d: contexts: expected NAME: {controller: ADDR, ..}",
                      file->path, contexts->line);
    for (const struct yaml_node *n = contexts ? contexts->first : NULL; !st && n; n = n->next)
        st = check_map(file->path, n, n->key, context_key_names, CONTEXT_KEY_COUNT);
    return st;
}

/* Reads one configuration file. If it is not required, a path that cannot be reached (also because
 * HOME is no folder, or is not accessible) counts as an empty file. */
static enum hd_status read_file(struct contexts *c, const char *path, bool required,
                                struct file *ret_file)
{
    struct hd_text bytes = {0};
    const bool absent = !path || (!required && access(path, F_OK) < 0);
    const int patience_ms = required ? HD_FILE_PATIENCE_MS : 0; /* HEDDLE_CONFIG may name a pipe */
    enum hd_status st =
        !absent ? hd_file_read_stream(path, HD_YAML_BYTES_MAX, patience_ms, &bytes) : HD_NOT_FOUND;

    *ret_file = (struct file){0};
    if (st == HD_NOT_FOUND && !required)
        return HD_OK;
    if (!st) {
        const struct hd_yaml_source source = {.name = path,
                                              .kind = "configuration file",
                                              .bytes = bytes.data ? bytes.data : "",
                                              .size_bytes = bytes.len_bytes};

        st = hd_yaml_parse(&source, &c->arena, &ret_file->root);
        ret_file->path = path;
    }
    hd_text_free(&bytes);
    if (!st && ret_file->root)
        st = check_file(ret_file);
    return st ? hd_err(HD_INVALID, "%s", hd_err_message()) : HD_OK;
}

static const char *user_path(struct hd_arena *arena)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");

    if (config && *config == '/')
        return hd_arena_printf(arena, "%s/heddle/client.yaml", config);
    return home && *home == '/' ? hd_arena_printf(arena, "%s/.config/heddle/client.yaml", home)
                                : NULL;
}

static enum hd_status read_files(struct contexts *c, struct file files[FILES])
{
    const char *named = getenv("HEDDLE_CONFIG");
    enum hd_status st;

    memset(files, 0, FILES * sizeof *files);
    if (named && strcmp(named, "none") == 0)
        return HD_OK;
    if (named && *named)
        return read_file(c, named, true, &files[0]);
    st = read_file(c, user_path(&c->arena), false, &files[0]);
    return st ? st : read_file(c, "/etc/heddle/client.yaml", false, &files[1]);
}

/* ---- choosing ---------------------------------------------------------------------------------*/

/* Takes a value from a configuration file; expands a leading ~/ to the home folder. */
static enum hd_status take_context(struct contexts *c, const struct file *file,
                                   const struct yaml_node *node, struct context_value *ret_value)
{
    const char *home = getenv("HOME");

    ret_value->text = strncmp(node->text, "~/", 2) == 0 && home
                          ? hd_arena_printf(&c->arena, "%s%s", home, node->text + 1)
                          : node->text;
    ret_value->from = hd_arena_printf(&c->arena, "%s:%d", file->path, node->line);
    return ret_value->text && ret_value->from ? HD_OK : hd_err(HD_NO_MEMORY, "no memory");
}

static const struct yaml_node *find_context(const struct file *file, const char *name)
{
    const struct yaml_node *all = file->root ? hd_yaml_find(file->root, "contexts") : NULL;

    return all ? hd_yaml_find(all, name) : NULL;
}

static enum hd_status unknown_context(const struct contexts *c, const struct file files[FILES])
{
    struct hd_text list = {0};
    enum hd_status st;

    for (int i = 0; i < FILES; i++) {
        const struct yaml_node *all =
            files[i].root ? hd_yaml_find(files[i].root, "contexts") : NULL;

        for (const struct yaml_node *n = all ? all->first : NULL; n; n = n->next)
            hd_text_add(&list, "%s%.64s", list.len_bytes ? ", " : "", n->key);
    }
    st = hd_err(HD_INVALID, "there is no context %.64s (%s); %s%s", c->context.text,
                c->context.from, list.len_bytes ? "the files have " : "the files have none",
                list.len_bytes ? list.data : "");
    hd_text_free(&list);
    return st;
}

static enum hd_status choose_context(struct contexts *c, const char *flag,
                                     const struct file files[FILES])
{
    const char *named = getenv("HEDDLE_CONTEXT");
    enum hd_status st = HD_OK;

    if (flag) {
        c->context = (struct context_value){flag, "flag"};
    } else if (named && *named) {
        c->context = (struct context_value){named, "HEDDLE_CONTEXT"};
    } else {
        for (int i = 0; i < FILES && !c->context.text && !st; i++) {
            const struct yaml_node *node =
                files[i].root ? hd_yaml_find(files[i].root, "context") : NULL;

            if (node)
                st = take_context(c, &files[i], node, &c->context);
        }
    }
    for (int i = 0; !st && i < FILES; i++)
        if (c->context.text && find_context(&files[i], c->context.text))
            return HD_OK;
    return st || !c->context.text ? st : unknown_context(c, files);
}

/* Finds the value of a key in the files: in the context, else outside contexts. */
static enum hd_status find_in_files(struct contexts *c, const struct file files[FILES],
                                    const char *key, struct context_value *ret_value)
{
    const struct yaml_node *node;

    for (int i = 0; c->context.text && i < FILES; i++) {
        const struct yaml_node *context = find_context(&files[i], c->context.text);

        if (!context) /* the user's context hides the system-wide one with this name */
            continue;
        node = hd_yaml_find(context, key);
        if (node)
            return take_context(c, &files[i], node, ret_value);
        break;
    }
    for (int i = 0; !c->context.text && i < FILES; i++) {
        node = files[i].root ? hd_yaml_find(files[i].root, key) : NULL;
        if (node)
            return take_context(c, &files[i], node, ret_value);
    }
    return HD_OK;
}

enum hd_status contexts_find(const char *context, const char *const given[CONTEXT_KEY_COUNT],
                             struct contexts *ret_contexts)
{
    struct contexts *c = ret_contexts;
    struct file files[FILES];
    bool elsewhere = false; /* the controller was given by flag or environment */
    enum hd_status st;

    *c = (struct contexts){.context.from = "default"};
    hd_arena_init(&c->arena, 0);
    st = read_files(c, files);
    if (!st)
        st = choose_context(c, context, files);
    for (int key = 0; !st && key < CONTEXT_KEY_COUNT; key++) {
        const char *variable = getenv(environment[key]);
        struct context_value *value = &c->values[key];

        value->from = "default";
        if (given[key])
            *value = (struct context_value){given[key], "flag"};
        else if (variable && *variable)
            *value = (struct context_value){variable, environment[key]};
        else if (!elsewhere || context)
            st = find_in_files(c, files, context_key_names[key], value);
        if (key == CONTEXT_CONTROLLER)
            elsewhere = given[key] || (variable && *variable);
    }
    return st;
}

void contexts_done(struct contexts *contexts)
{
    hd_arena_done(&contexts->arena);
}
