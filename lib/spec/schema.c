/* schema: the flat list of job/keys.def as the groups of a job file; texts about keys for error
 * messages. Rules between keys are in check.c, defaults in defaults.c. */
#include <stdio.h>
#include <string.h>

#include "spec_internal.h"

bool spec_is_null(const struct yaml_node *node)
{
    return node->kind == YAML_KIND_SCALAR && node->plain &&
           (!*node->text || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

bool *spec_given(struct spec_draft *draft, const char *path)
{
    return &draft->given[hd_job_find_key(path) - hd_job_keys];
}

const struct hd_key *spec_find_key(const char *path)
{
    const struct hd_key *key = hd_job_find_key(path);

    return key && !key->hidden ? key : NULL;
}

/* Returns the part of a path after "GROUP."; NULL: the path is not in the group. */
static const char *below(const char *group, const char *path)
{
    size_t same = 0;

    if (!*group)
        return path;
    while (group[same] && group[same] == path[same])
        same++;
    return !group[same] && path[same] == '.' ? path + same + 1 : NULL;
}

bool spec_is_group(const char *path)
{
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (!hd_job_keys[i].hidden && below(path, hd_job_keys[i].path))
            return true;
    return false;
}

static bool holds(const struct spec_children *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->names[i], name) == 0)
            return true;
    return false;
}

void spec_list_children(const char *group, struct spec_children *ret_children)
{
    struct spec_children *c = ret_children;

    c->count = 0;
    for (size_t i = 0; i < hd_job_key_count && c->count < SPEC_CHILDREN_MAX; i++) {
        const char *rest = hd_job_keys[i].hidden ? NULL : below(group, hd_job_keys[i].path);
        char *name = c->texts[c->count];

        if (!rest)
            continue;
        (void)snprintf(name, sizeof c->texts[0], "%.*s", (int)strcspn(rest, "."), rest);
        if (!holds(c, name))
            c->names[c->count++] = name;
    }
}

bool spec_is_short_group(const char *group, const struct yaml_node *node)
{
    if (node->kind == YAML_KIND_LIST)
        return strcmp(group, "validate.samples") == 0;
    return node->kind == YAML_KIND_SCALAR && !spec_is_null(node);
}

bool spec_is_short_for(const char *group, const char *name)
{
    return strcmp(group, "train.dropout") == 0 ||
           (strcmp(group, "train.lr") == 0 && strcmp(name, "peak") == 0) ||
           (strcmp(group, "validate.samples") == 0 && strcmp(name, "prompts") == 0) ||
           (strcmp(group, "train.optimizer") == 0 && strcmp(name, "name") == 0);
}

bool spec_is_auto_group(const char *group, const struct yaml_node *node)
{
    return strcmp(group, "parallel") == 0 && node->kind == YAML_KIND_SCALAR && node->text &&
           strcmp(node->text, "auto") == 0;
}

/* Writes the values that the key allows: "a whole number from 1 to 16", "auto or a number from 1 to
 * 8". */
static const char *range_text(const struct hd_key *key, char ret_text[96])
{
    const char *what = key->kind == HD_KEY_REAL ? "a number" : "a whole number";
    const char *also = key->words && strstr(key->words, "auto") ? "auto or " : "";

    if (key->max >= 0x1p63)
        (void)snprintf(ret_text, 96, "a whole number from 0 to 9223372036854775807");
    else
        (void)snprintf(ret_text, 96, "%s%s from %.13g to %.13g", also, what, key->min, key->max);
    return ret_text;
}

enum hd_status spec_refuse_with(const struct hd_job *job, const char *key, const char *why)
{
    return hd_err(HD_INVALID, "%s: with train.objective: %s %s", key,
                  hd_job_objective_words[job->objective], why);
}

enum hd_status spec_err_range(const char *path, const struct hd_key *key, double value)
{
    char range[96];

    return hd_err(HD_INVALID, "%s: %.13g is not possible; give %s", path, value,
                  range_text(key, range));
}

enum hd_status spec_err_number(const char *path, const struct hd_key *key, const char *quoted)
{
    char range[96];

    return hd_err(HD_INVALID, "%s: %s is not possible; give %s", path, quoted,
                  range_text(key, range));
}

enum hd_status spec_err_missing(const char *path, const struct hd_key *key)
{
    char range[96];

    return hd_err(HD_INVALID, "%s: is missing; give %s", path, range_text(key, range));
}

/* Returns the length in bytes of the control character at the start of `text`: an ASCII one, or
 * U+0080 to U+009F, which some terminals obey, too. 0: not a control character. */
static size_t control_bytes(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;

    if ((c[0] && c[0] < 0x20) || c[0] == 0x7f)
        return 1;
    return c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f ? 2 : 0;
}

bool spec_has_control(const char *text)
{
    while (*text && !control_bytes(text))
        text++;
    return *text;
}

const char *spec_quote(const char *text, char ret_quoted[SPEC_QUOTE_MAX])
{
    /* most bytes of the text: without the quotes, three dots and NUL */
    size_t len = strlen(text), max = SPEC_QUOTE_MAX - 6;
    size_t n = len <= max ? len : max;
    char *out = ret_quoted;

    while (n < len && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--; /* moves back to the beginning of a UTF-8 character, so that none is split */
    *out++ = '\'';
    for (size_t i = 0, bytes; i < n; i += bytes ? bytes : 1) {
        bytes = control_bytes(text + i);
        *out++ = bytes ? '?' : text[i];
    }
    if (n < len) {
        memcpy(out, "...", 3);
        out += 3;
    }
    *out++ = '\'';
    *out = '\0';
    return ret_quoted;
}

static bool is_divisor(const void *about, int64_t number)
{
    return *(const int64_t *)about % number == 0;
}

void spec_list_divisors(int64_t n, int64_t max, int64_t wanted, char ret_list[HD_TEXT_LIST_MAX])
{
    hd_text_list_near(is_divisor, &n, max < n ? max : n, wanted, ret_list);
}
