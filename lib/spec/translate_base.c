/* translate_base: what the files of the translation have in common: the keys and lines that it makes,
 * and the values of their settings. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "translate_internal.h"

/* Characters of a name of the hub that needs no quotes. */
#define PLAIN_NAME "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@"

enum {
    FILL_DEPTH_MAX = 4,  /* ${..} in the value of ${..} */
    PATH_BYTES_MAX = 160 /* of a dotted setting in ${..} */
};

/* Returns the text with '?' for control characters: it becomes a comment, which ends at a line break. */
static const char *clean(struct translated_file *t, const char *text)
{
    char *copy;

    if (!text || !spec_has_control(text))
        return text ? text : "";
    copy = hd_arena_strdup(t->arena, text);
    for (char *at = copy; at && *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?';
    return copy ? copy : "";
}

void translate_tell(struct translated_file *t, const char *theirs, const char *ours,
                    const char *note)
{
    if (t->line_count < TRANSLATE_LINES_MAX)
        t->lines[t->line_count++] =
            (struct translated){clean(t, theirs), ours, note ? clean(t, note) : ""};
}

void translate_drop(struct translated_file *t, const char *path)
{
    for (size_t i = 0; i < t->key_count; i++)
        if (strcmp(t->keys[i].path, path) == 0) {
            t->keys[i] = t->keys[--t->key_count];
            return;
        }
}

void translate_leave(struct translated_file *t, const char *path, const char *why)
{
    const char *note = hd_arena_printf(t->arena, "left out: %s", why);

    for (size_t i = 0; i < t->line_count && translate_get(t, path); i++)
        if (strcmp(t->lines[i].ours, path) == 0)
            t->lines[i].note = note ? note : "left out";
    translate_drop(t, path);
}

void translate_put(struct translated_file *t, const char *path, const char *text, const char *note)
{
    translate_drop(t, path);
    if (text && t->key_count < TRANSLATE_KEYS_MAX)
        t->keys[t->key_count++] = (struct translated_key){path, text, note};
}

const char *translate_get(const struct translated_file *t, const char *path)
{
    for (size_t i = 0; i < t->key_count; i++)
        if (strcmp(t->keys[i].path, path) == 0)
            return t->keys[i].text;
    return NULL;
}

void translate_lack(struct translated_file *t, const char *theirs, const char *note)
{
    if (t->lack_count < TRANSLATE_LINES_MAX)
        t->lacks[t->lack_count++] = clean(t, hd_arena_printf(t->arena, "%s: %s", theirs, note));
}

/* Returns the text with each ${a.b} replaced by the value that the file has there. */
static const char *fill_in(struct translated_file *t, const char *text, int depth)
{
    const char *begin = strstr(text, "${"), *end = begin ? strchr(begin, '}') : NULL;
    const struct yaml_node *node = t->root;
    char path[PATH_BYTES_MAX], *rest, *name;

    if (!end || depth == FILL_DEPTH_MAX || (size_t)(end - begin) >= sizeof path)
        return text;
    (void)snprintf(path, sizeof path, "%.*s", (int)(end - begin) - 2, begin + 2);
    for (name = strtok_r(path, ".", &rest); name && node; name = strtok_r(NULL, ".", &rest))
        node = hd_yaml_find(node, name);
    if (!node || node->kind != YAML_KIND_SCALAR)
        return text;
    text = hd_arena_printf(t->arena, "%.*s%s%s", (int)(begin - text), text, node->text, end + 1);
    return text ? fill_in(t, text, depth + 1) : "";
}

const char *translate_text(struct translated_file *t, const struct yaml_node *node)
{
    return node->kind == YAML_KIND_SCALAR && node->text ? fill_in(t, node->text, 0) : "";
}

bool translate_is_null(struct translated_file *t, const struct yaml_node *node)
{
    const char *text = translate_text(t, node);

    if (node->kind != YAML_KIND_SCALAR)
        return !node->first;
    return !*text || strcmp(text, "null") == 0 || strcmp(text, "~") == 0 ||
           strcmp(text, "None") == 0;
}

bool translate_is_true(struct translated_file *t, const struct yaml_node *node)
{
    const char *text = translate_text(t, node);

    return strcasecmp(text, "true") == 0 || strcasecmp(text, "yes") == 0 ||
           strcasecmp(text, "on") == 0 || strcmp(text, "1") == 0;
}

bool translate_is_false(struct translated_file *t, const struct yaml_node *node)
{
    const char *text = translate_text(t, node);

    return strcasecmp(text, "false") == 0 || strcasecmp(text, "no") == 0 ||
           strcasecmp(text, "off") == 0 || strcasecmp(text, "none") == 0 || strcmp(text, "0") == 0;
}

double translate_number(struct translated_file *t, const struct yaml_node *node, double otherwise)
{
    char digits[64], *out = digits, *end;
    const char *text = translate_text(t, node);
    double value;

    for (; *text && out < digits + sizeof digits - 1; text++)
        if (*text != '_' && *text != ',') /* 1_000 */
            *out++ = *text;
    *out = '\0';
    value = strtod(digits, &end);
    return *digits && !*end && isfinite(value) ? value : otherwise;
}

void translate_clean_name(const char *text, char ret_name[TRANSLATE_NAME_MAX])
{
    size_t n = 0;

    for (; *text && n < TRANSLATE_NAME_MAX - 1; text++)
        if (isalnum((unsigned char)*text) || (n && strchr("-_.", *text)))
            ret_name[n++] = *text;
    ret_name[n] = '\0';
}

const char *translate_quote(struct translated_file *t, const char *text)
{
    const bool is_plain = *text && !strpbrk(text, ":#{}[],&*!|>'\"%@`") &&
                          !isspace((unsigned char)*text) && *text != '-' && *text != '?';
    struct hd_text out = {0};
    const char *copy;

    if ((is_plain && !spec_has_control(text)) ||
        (hd_text_starts(text, "hf://") && !text[strspn(text, PLAIN_NAME)]))
        return text;
    hd_text_add(&out, "'");
    for (; *text; text++)
        hd_text_add(&out, *text == '\'' ? "''" : "%c", (unsigned char)*text < ' ' ? '?' : *text);
    hd_text_add(&out, "'");
    copy = hd_arena_strdup(t->arena, out.data ? out.data : "''");
    hd_text_free(&out);
    return copy ? copy : "''";
}
