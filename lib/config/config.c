/* config: reads the values of settings from flags and a configuration file. */
#include "config/config_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "yaml/yaml.h"

/* ---- the table --------------------------------------------------------------------------------*/

void hd_setting_key_name(const struct hd_setting *setting, char ret_name[64])
{
    (void)snprintf(ret_name, 64, "%s", setting->name);
    for (char *c = ret_name; *c; c++)
        if (*c == '-')
            *c = '_';
}

static int find_setting(const struct hd_program_table *program, const char *name, size_t len)
{
    for (size_t i = 0; i < program->setting_count; i++)
        if (strlen(program->settings[i].name) == len &&
            memcmp(program->settings[i].name, name, len) == 0)
            return (int)i;
    return -1;
}

static int find_key(const struct hd_program_table *program, int key)
{
    for (size_t i = 0; i < program->setting_count; i++)
        if (program->settings[i].key == key)
            return (int)i;
    return -1;
}

/* ---- flags ------------------------------------------------------------------------------------*/

static enum hd_status unknown_flag(const struct hd_program_table *program, const char *word,
                                   size_t len)
{
    const char *names[HD_SETTINGS_MAX], *nearest;
    char name[64];

    for (size_t i = 0; i < program->setting_count; i++)
        names[i] = program->settings[i].name;
    (void)snprintf(name, sizeof name, "%.*s", (int)len, word);
    nearest = hd_text_nearest(name, names, program->setting_count);
    if (nearest)
        return hd_err(HD_INVALID, "unknown flag --%s; did you mean --%s?", name, nearest);
    return hd_err(HD_INVALID, "unknown flag --%s; see %s --help", name, program->name);
}

/* Finds the setting of the flag `word`: --name, --name=VALUE, -n or -nVALUE. *ret_value: the value
 * joined to it, or NULL. */
static enum hd_status find_flag(const struct hd_program_table *program, const char *word,
                                int *ret_index, const char **ret_value)
{
    const char *equals = strchr(word, '=');
    size_t len;

    if (word[1] != '-') {
        for (size_t i = 0; i < program->setting_count; i++) {
            if (program->settings[i].letter != word[1])
                continue;
            *ret_index = (int)i;
            *ret_value = word[2] ? word + 2 : NULL;
            return HD_OK;
        }
        return hd_err(HD_INVALID, "unknown flag %s; see %s --help", word, program->name);
    }
    len = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
    *ret_index = find_setting(program, word + 2, len);
    *ret_value = equals ? equals + 1 : NULL;
    return *ret_index < 0 ? unknown_flag(program, word + 2, len) : HD_OK;
}

/* Reads the flag at argv[*at] with its value, and moves *at behind both. */
static enum hd_status take_flag(struct hd_config *config, int argc, char *const *argv, int *at)
{
    const struct hd_setting *setting;
    const char *joined = NULL, *before;
    int i = 0;
    enum hd_status st = find_flag(config->program, argv[*at], &i, &joined);

    if (st)
        return st;
    ++*at;
    setting = &config->program->settings[i];
    if (!setting->value && joined && strcmp(joined, "true") != 0 && strcmp(joined, "false") != 0)
        return hd_err(HD_INVALID, "--%s is a switch: say --%s, or --%s=false", setting->name,
                      setting->name, setting->name);
    if (setting->value && !joined && *at == argc)
        return hd_err(HD_INVALID, "--%s needs a value: %s", setting->name, setting->value);
    before = config->values[i].text;
    config->values[i] = (struct hd_setting_value){.source = HD_SETTING_BY_FLAG,
                                                  .text = joined            ? joined
                                                          : !setting->value ? "true"
                                                                            : argv[(*at)++]};
    if (before && strcmp(before, config->values[i].text) != 0)
        config->values[i].replaced = before;
    return HD_OK;
}

static enum hd_status read_flags(struct hd_config *config, int argc, char *const *argv)
{
    bool only_args = false;
    enum hd_status st = HD_OK;
    int at = 0;

    while (!st && at < argc) {
        const char *word = argv[at];

        if (!only_args && strcmp(word, "--") == 0) {
            only_args = true;
            at++;
        } else if (!only_args && word[0] == '-' && word[1]) {
            st = take_flag(config, argc, argv, &at);
        } else if (config->arg_count == HD_CONFIG_ARGS_MAX) {
            st = hd_err(HD_INVALID, "\"%s\" is one word too many; see %s --help", word,
                        config->program->name);
        } else {
            config->args[config->arg_count++] = word;
            at++;
        }
    }
    return st;
}

/* ---- the file ---------------------------------------------------------------------------------*/

static enum hd_status unknown_key(const struct hd_config *config, const char *path,
                                  const struct yaml_node *node)
{
    const struct hd_program_table *program = config->program;
    char texts[HD_SETTINGS_MAX][64];
    const char *names[HD_SETTINGS_MAX], *nearest;
    size_t count = 0;

    for (size_t i = 0; i < program->setting_count; i++) {
        hd_setting_key_name(&program->settings[i], texts[count]);
        if (strcmp(texts[count], node->key) == 0)
            return hd_err(HD_INVALID,
                          "%s:%d: %s: can be given as the flag --%s only; remove this line", path,
                          node->line, node->key, program->settings[i].name);
        if (program->settings[i].use & HD_SETTING_FILE) {
            names[count] = texts[count];
            count++;
        }
    }
    nearest = hd_text_nearest(node->key, names, count);
    return hd_err(HD_INVALID, "%s:%d: unknown key %.64s; %s%s%s%s", path, node->line, node->key,
                  nearest ? "did you mean " : "", nearest ? nearest : "", nearest ? "? " : "",
                  nearest ? "Else remove this line"
                          : "remove this line (config show lists the keys)");
}

static const struct hd_setting *setting_of(const struct hd_config *config, const char *key,
                                           size_t *ret_index)
{
    char name[64];

    for (size_t i = 0; i < config->program->setting_count; i++) {
        hd_setting_key_name(&config->program->settings[i], name);
        if (config->program->settings[i].use & HD_SETTING_FILE && strcmp(name, key) == 0) {
            *ret_index = i;
            return &config->program->settings[i];
        }
    }
    return NULL;
}

static enum hd_status check_value(const struct hd_setting *setting, const struct yaml_node *node,
                                  const char *path)
{
    if (node->kind != YAML_KIND_SCALAR)
        return hd_err(HD_INVALID, "%s:%d: %s: expected one value, as in %s: %s", path, node->line,
                      node->key, node->key, setting->value ? setting->value : "true");
    if (!*node->text)
        return hd_err(HD_INVALID, "%s:%d: %s: has no value; give one, or remove this line", path,
                      node->line, node->key);
    if (!setting->value && strcmp(node->text, "true") != 0 && strcmp(node->text, "false") != 0)
        return hd_err(HD_INVALID, "%s:%d: %s: say true or false", path, node->line, node->key);
    if (setting->use & HD_SETTING_PATH && node->text[0] != '/')
        return hd_err(HD_INVALID, "%s:%d: %s: %.200s is no absolute path; begin it with /", path,
                      node->line, node->key, node->text);
    return HD_OK;
}

/* Refuses a key that an earlier line of `map` has too. */
static enum hd_status check_first(const char *path, const struct yaml_node *map,
                                  const struct yaml_node *node)
{
    for (const struct yaml_node *n = map->first; n != node; n = n->next)
        if (strcmp(n->key, node->key) == 0)
            return hd_err(HD_INVALID, "%s:%d: %s is given twice, first in line %d; remove one",
                          path, node->line, node->key, n->line);
    return HD_OK;
}

static enum hd_status take_key(struct hd_config *config, const char *path,
                               const struct yaml_node *map, const struct yaml_node *node)
{
    const struct hd_setting *setting;
    struct hd_setting_value *value;
    enum hd_status st = check_first(path, map, node);
    size_t i;

    if (st)
        return st;
    setting = setting_of(config, node->key, &i);
    if (!setting)
        return unknown_key(config, path, node);
    st = check_value(setting, node, path);
    value = &config->values[i];
    if (st || value->source == HD_SETTING_BY_FLAG)
        return st;
    value->text = hd_arena_strdup(&config->arena, node->text);
    value->source = HD_SETTING_BY_FILE;
    value->line = node->line;
    return value->text ? HD_OK : hd_err(HD_NO_MEMORY, "no memory to read %s", path);
}

static enum hd_status take_text(struct hd_config *config, const char *path, const void *bytes,
                                size_t size_bytes)
{
    const struct hd_yaml_source source = {
        .name = path, .kind = "configuration file", .bytes = bytes, .size_bytes = size_bytes};
    struct yaml_node *root = NULL;
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_yaml_parse(&source, &arena, &root);
    if (!st && root && root->kind != YAML_KIND_MAP)
        st = hd_err(HD_INVALID, "%s:%d: expected lines KEY: VALUE", path, root->line);
    for (const struct yaml_node *n = !st && root ? root->first : NULL; !st && n; n = n->next)
        st = config_keep(config, n->line, take_key(config, path, root, n));
    if (!st)
        st = hd_config_verdict(config);
    config->path = hd_arena_strdup(&config->arena, path);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status read_file(struct hd_config *config, const char *path)
{
    struct hd_text bytes = {0};
    enum hd_status st = hd_file_read(path, HD_YAML_BYTES_MAX, &bytes);

    if (st == HD_LIMIT)
        st = hd_err(HD_INVALID, "%s: larger than 256 KiB, the limit of a configuration file", path);
    else if (st == HD_NOT_FOUND)
        st = hd_err(HD_INVALID,
                    "--config %s: no such file; give another one, or make it: an empty file is "
                    "fine",
                    path);
    else if (st)
        st = hd_err(HD_INVALID, "--config: %s", hd_err_message());
    if (!st && bytes.failed)
        st = hd_err(HD_NO_MEMORY, "no memory to read %s", path);
    if (!st)
        st = take_text(config, path, bytes.data ? bytes.data : "", bytes.len_bytes);
    hd_text_free(&bytes);
    return st;
}

/* ---- all --------------------------------------------------------------------------------------*/

static void begin(struct hd_config *config, const struct hd_program_table *program)
{
    *config = (struct hd_config){.program = program};
    hd_arena_init(&config->arena, 0);
}

enum hd_status hd_config_read(struct hd_config *config, const struct hd_program_table *program,
                              int argc, char *const *argv)
{
    enum hd_status st;
    int i;

    begin(config, program);
    st = read_flags(config, argc, argv);
    i = find_setting(program, "config", strlen("config"));
    if (!st && i >= 0 && config->values[i].text)
        st = read_file(config, config->values[i].text);
    return st;
}

enum hd_status hd_config_read_text(struct hd_config *config, const struct hd_program_table *program,
                                   const char *name, const void *bytes, size_t size_bytes)
{
    begin(config, program);
    return take_text(config, name, bytes, size_bytes);
}

void hd_config_done(struct hd_config *config)
{
    hd_arena_done(&config->arena);
    *config = (struct hd_config){.program = config->program};
}

const char *hd_config_get(const struct hd_config *config, int key)
{
    const int i = find_key(config->program, key);

    return i < 0 ? NULL : config->values[i].text;
}

bool hd_config_is_on(const struct hd_config *config, int key)
{
    const char *text = hd_config_get(config, key);

    return text && strcmp(text, "true") == 0;
}

enum hd_status hd_config_pass(struct hd_config *config, int key, enum hd_status st)
{
    const int i = find_key(config->program, key);
    const struct hd_setting_value *value = &config->values[i];
    char name[64];

    if (!st)
        return HD_OK;
    if (value->source == HD_SETTING_BY_FILE) {
        hd_setting_key_name(&config->program->settings[i], name);
        st = hd_err_prefix(st, "%s:%d: %s", config->path, value->line, name);
    } else {
        st = hd_err_prefix(st, "--%s", config->program->settings[i].name);
    }
    return config_keep(config, value->line, st);
}

enum hd_status hd_config_apply(struct hd_config *config,
                               enum hd_status (*take)(void *user, int key, const char *value),
                               void *user)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < config->program->setting_count; i++) {
        const struct hd_setting *setting = &config->program->settings[i];
        const char *text = config->values[i].text;

        if (text && (setting->value || strcmp(text, "true") == 0))
            st = hd_config_pass(config, setting->key, take(user, setting->key, text));
    }
    return st;
}

void hd_config_log_line(void *user, const char *line)
{
    hd_log(HD_LOG_INFO, "%s%s", user ? (const char *)user : "", line);
}

void hd_config_log_replaced(const struct hd_config *config,
                            void (*log)(void *user, const char *line), void *user)
{
    char line[2 * PATH_MAX + 128];

    for (size_t i = 0; i < config->program->setting_count; i++) {
        const struct hd_setting_value *value = &config->values[i];

        if (!value->replaced)
            continue;
        (void)snprintf(line, sizeof line, "--%s is given twice: %s counts, and %s does not",
                       config->program->settings[i].name, value->text, value->replaced);
        log(user, line);
    }
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

int hd_config_compare(const struct hd_config *before, const struct hd_config *after,
                      void (*log)(void *user, const char *line), void *user)
{
    const struct hd_program_table *program = before->program;
    int changed = 0, waiting = 0;
    char line[1024];

    for (size_t i = 0; i < program->setting_count; i++) {
        const struct hd_setting *setting = &program->settings[i];
        const char *old = before->values[i].text, *new = after->values[i].text;
        const bool live = setting->use & HD_SETTING_LIVE;
        char name[64];

        if (same(old, new))
            continue;
        hd_setting_key_name(setting, name);
        changed++;
        waiting += !live;
        (void)snprintf(line, sizeof line, "%s: %.400s -> %.400s, %s", name, old ? old : "(default)",
                       new ? new : "(default)", live ? "in force now" : "waits for a restart");
        log(user, line);
    }
    if (!changed)
        log(user, "no setting of flags and configuration file has changed");
    return waiting;
}
