/* page: writes a program's table of settings as text: --help, config show, an example file. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "config/config.h"

enum { COLUMNS = 80, HELP_COLUMN = 22, FILE_COLUMNS = 78 };

/* Adds words of `text`, broken before `columns`; `indent` begins each new line; *column is the
 * current column. */
static void add_wrapped(struct hd_text *out, const char *text, const char *indent, size_t columns,
                        size_t *column)
{
    while (*text) {
        const size_t word = strcspn(text, " ");

        if (*column > strlen(indent) && *column + 1 + word > columns) {
            hd_text_add(out, "\n%s", indent);
            *column = strlen(indent);
        } else if (*column > strlen(indent)) {
            hd_text_add(out, " ");
            ++*column;
        }
        hd_text_add(out, "%.*s", (int)word, text);
        *column += word;
        text += word + (text[word] == ' ');
    }
    hd_text_add(out, "\n");
}

/* Adds "  --state-dir DIR     help ...". */
static void add_setting(struct hd_text *out, const struct hd_setting *setting)
{
    char flag[96], indent[HELP_COLUMN + 1], help[2048];
    size_t column = HELP_COLUMN;

    memset(indent, ' ', HELP_COLUMN);
    indent[HELP_COLUMN] = '\0';
    (void)snprintf(flag, sizeof flag, "  %.*s--%s%s%s", setting->letter ? 4 : 0,
                   (const char[]){'-', setting->letter, ',', ' ', '\0'}, setting->name,
                   setting->value ? " " : "", setting->value ? setting->value : "");
    if (strlen(flag) < HELP_COLUMN)
        hd_text_add(out, "%-*s", HELP_COLUMN, flag);
    else
        hd_text_add(out, "%s\n%s", flag, indent);
    (void)snprintf(help, sizeof help, "%s%s%s%s", setting->help,
                   setting->fallback ? " (default: " : "",
                   setting->fallback ? setting->fallback : "", setting->fallback ? ")" : "");
    add_wrapped(out, help, indent, COLUMNS, &column);
}

void hd_program_help(const struct hd_program_table *program, struct hd_text *out)
{
    size_t column = strlen(program->name) + 1;

    for (size_t i = 0; program->usages[i]; i++)
        hd_text_add(out, "%s %s %s\n", i ? "      " : "Usage:", program->name, program->usages[i]);
    hd_text_add(out, "\n%s:", program->name);
    add_wrapped(out, program->summary, "", COLUMNS, &column);
    hd_text_add(out, "\n");
    for (size_t i = 0; i < program->setting_count; i++)
        add_setting(out, &program->settings[i]);
    hd_text_add(out, "\n");
    for (const char *p = program->notes; *p;) { /* the notes are paragraphs, one line each */
        char line[2048];

        (void)snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        column = 0;
        add_wrapped(out, line, "", COLUMNS, &column);
        p += strcspn(p, "\n");
        p += *p == '\n';
    }
    hd_text_add(out, "\nExample:\n  %s\n", program->example);
}

/* ---- the configuration file -------------------------------------------------------------------*/

void hd_program_example_file(const struct hd_program_table *program, struct hd_text *out)
{
    hd_text_add(out,
                "# %s: settings of %s.\n"
                "#\n"
                "# Each key is a flag of %s, and a flag wins. What is commented out has its\n"
                "# default value. Check a change with  %s --check-config --config FILE\n",
                program->config_path, program->name, program->name, program->name);
    for (size_t i = 0; i < program->setting_count; i++) {
        const struct hd_setting *setting = &program->settings[i];
        size_t column = 2;
        char name[64];

        if (!(setting->use & HD_SETTING_FILE))
            continue;
        hd_setting_key_name(setting, name);
        hd_text_add(out, "\n# ");
        add_wrapped(out, setting->help, "# ", FILE_COLUMNS, &column);
        if (!(setting->use & HD_SETTING_LIVE))
            hd_text_add(out, "# A change takes a restart.\n");
        hd_text_add(out, "#%s: %s\n", name,
                    setting->fallback ? setting->fallback
                    : setting->value  ? setting->value
                                      : "false");
    }
}

/* Writes the origin of setting i's value: "flag", "FILE:7" or "default". */
static void describe_source(const struct hd_config *config, size_t i, char *ret_text, size_t size)
{
    const struct hd_setting_value *value = &config->values[i];

    if (value->source == HD_SETTING_BY_FILE)
        (void)snprintf(ret_text, size, "%s:%d", config->path, value->line);
    else
        (void)snprintf(ret_text, size, "%s",
                       value->source == HD_SETTING_BY_FLAG ? "flag" : "default");
}

static const char *shown_value(const struct hd_config *config, size_t i)
{
    const struct hd_setting *setting = &config->program->settings[i];

    return config->values[i].text ? config->values[i].text
           : setting->fallback    ? setting->fallback
           : setting->value       ? NULL
                                  : "false";
}

static void show_json(const struct hd_config *config, struct hd_text *out)
{
    struct hd_json_writer w = {.out = out};

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "api_version", "heddle/v1");
    hd_json_add_string(&w, "kind", "Configuration");
    hd_json_begin(&w, "items", '[');
    for (size_t i = 0; i < config->program->setting_count; i++) {
        char name[64], source[PATH_MAX + 16];

        if (!(config->program->settings[i].use & HD_SETTING_FILE))
            continue;
        hd_setting_key_name(&config->program->settings[i], name);
        describe_source(config, i, source, sizeof source);
        hd_json_add_line(&w);
        hd_json_begin(&w, NULL, '{');
        hd_json_add_string(&w, "key", name);
        if (shown_value(config, i))
            hd_json_add_string(&w, "value", shown_value(config, i));
        else
            hd_json_add_null(&w, "value");
        hd_json_add_string(&w, "from", source);
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(out, "\n");
}

void hd_config_show(const struct hd_config *config, bool json, struct hd_text *out)
{
    size_t key_width = 4, value_width = 6;
    char name[64], source[PATH_MAX + 16];

    if (json) {
        show_json(config, out);
        return;
    }
    for (size_t i = 0; i < config->program->setting_count; i++) {
        const char *value = shown_value(config, i);

        if (!(config->program->settings[i].use & HD_SETTING_FILE))
            continue;
        if (strlen(config->program->settings[i].name) > key_width)
            key_width = strlen(config->program->settings[i].name);
        if (value && strlen(value) > value_width)
            value_width = strlen(value);
    }
    hd_text_add(out, "%-*s  %-*s  FROM\n", (int)key_width, "KEY", (int)value_width, "VALUE");
    for (size_t i = 0; i < config->program->setting_count; i++) {
        if (!(config->program->settings[i].use & HD_SETTING_FILE))
            continue;
        hd_setting_key_name(&config->program->settings[i], name);
        describe_source(config, i, source, sizeof source);
        hd_text_add(out, "%-*s  %-*s  %s\n", (int)key_width, name, (int)value_width,
                    shown_value(config, i) ? shown_value(config, i) : "-", source);
    }
}

/* ---- pages of a command line ------------------------------------------------------------------*/

static enum hd_status config_page(const struct hd_config *config, const char *output,
                                  struct hd_text *out)
{
    const char *word = config->arg_count > 1 ? config->args[1] : "";

    if (config->arg_count > 2)
        return hd_err(HD_INVALID, "config: \"%s\" is one word too many", config->args[2]);
    if (strcmp(output, "json") != 0 && strcmp(output, "table") != 0)
        return hd_err(HD_INVALID, "-o %s: say table or json", output);
    if (strcmp(word, "show") == 0)
        hd_config_show(config, strcmp(output, "json") == 0, out);
    else if (strcmp(word, "example") == 0)
        hd_program_example_file(config->program, out);
    else
        return hd_err(HD_INVALID, "config: say config show or config example");
    return HD_OK;
}

bool hd_config_page(const struct hd_config *config, int help_key, int version_key, int output_key,
                    const char *version, int *ret_code)
{
    enum { USAGE = 2, CANNOT = 6 };
    const char *output = hd_config_get(config, output_key);
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (hd_config_is_on(config, help_key))
        hd_program_help(config->program, &text);
    else if (hd_config_is_on(config, version_key))
        hd_text_add(&text, "%s %s\n", config->program->name, version);
    else if (config->arg_count && strcmp(config->args[0], "config") == 0)
        st = config_page(config, output ? output : "table", &text);
    else
        return false;
    *ret_code = st ? USAGE : 0;
    if (!st && text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the text");
    if (!st)
        st = hd_file_print(text.data);
    if (st) {
        (void)fprintf(stderr, "%s: %s\n", config->program->name, hd_err_message());
        *ret_code = *ret_code ? *ret_code : CANNOT;
    }
    hd_text_free(&text);
    return true;
}
