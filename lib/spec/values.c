/* values: reads single values of a job file: numbers and words. A number in another form, such as
 * 2k, 1e3 or 10%, is refused with the one to write. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec_internal.h"

/* Largest number of 13 digits, as many as a message shows of a double; a larger number is quoted as
 * it was written. */
static const long long EXACT_MAX = 9999999999999;

const char *spec_kind_text(const struct yaml_node *node)
{
    switch (node->kind) {
    case YAML_KIND_LIST:
        return "a list";
    case YAML_KIND_MAP:
        return "a group of keys";
    case YAML_KIND_SCALAR:
        break;
    }
    return node->plain ? "a plain value" : "a text in quotes";
}

enum hd_status spec_need_scalar(struct spec_reader *r, const struct yaml_node *node,
                                const char *what)
{
    if (spec_is_null(node))
        return hd_err(HD_INVALID, "%s: has no value; give %s or remove the line", r->path, what);
    if (node->kind != YAML_KIND_SCALAR)
        return hd_err(HD_INVALID, "%s: expected %s, not %s", r->path, what, spec_kind_text(node));
    return HD_OK;
}

enum hd_status spec_unknown_word(const char *path, const char *text, const char *const *names,
                                 size_t count)
{
    const char *theirs = spec_find_value(path, text);
    const char *nearest = theirs ? theirs : hd_text_nearest(text, names, count);
    char quoted[SPEC_QUOTE_MAX];
    char list[256] = "";
    size_t len = 0;

    for (size_t i = 0; i < count && len < sizeof list; i++)
        len += (size_t)snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", names[i]);
    if (nearest)
        return hd_err(HD_INVALID, "%s: %s is not one of %s; did you mean %s?", path,
                      spec_quote(text, quoted), list, nearest);
    return hd_err(HD_INVALID, "%s: %s is not one of %s; use one of them", path,
                  spec_quote(text, quoted), list);
}

struct word_list {
    const struct hd_key *key;
    char texts[16][HD_JOB_WORD_MAX];
    const char *names[16];
    size_t count;
};

static bool add_word(void *context, const char *word, double value)
{
    struct word_list *list = context;

    (void)value;
    (void)snprintf(list->texts[list->count], HD_JOB_WORD_MAX, "%s",
                   hd_job_word_in_file(list->key, word));
    list->names[list->count] = list->texts[list->count];
    return ++list->count == 16;
}

enum hd_status spec_refuse_word(struct spec_reader *r, const struct hd_key *key,
                                const struct yaml_node *node)
{
    struct word_list list = {.key = key};
    enum hd_status st = spec_need_scalar(r, node, "a word");

    if (st)
        return st;
    (void)hd_job_each_word(key, add_word, &list);
    return spec_unknown_word(r->path, node->text, list.names, list.count);
}

enum hd_status spec_need_number(struct spec_reader *r, const struct yaml_node *node,
                                const char *what)
{
    enum hd_status st = spec_need_scalar(r, node, what);

    if (!st && !node->plain)
        st = hd_err(HD_INVALID, "%s: expected %s, not a text; remove the quotes", r->path, what);
    return st;
}

/* Sets *ret_value to the whole number that 1e3, 2k or 1_000 mean. False: the text is another one, or
 * digits alone. */
static bool whole_number_of(const char *text, long long *ret_value)
{
    char digits[32], *end;
    size_t n = 0;
    double value;

    if (!text[strspn(text, "-0123456789")])
        return false;
    for (; *text && n < sizeof digits - 1; text++)
        if (*text != '_' && *text != ',')
            digits[n++] = *text;
    digits[n] = '\0';
    value = strtod(digits, &end);
    if (end == digits || digits[strspn(digits, "0123456789.eE+kKM")] || (*end && end[1]))
        return false;
    value *= *end == 'k' || *end == 'K' ? 1e3 : *end == 'M' ? 1e6 : 1;
    if (value != floor(value) || fabs(value) > 1e15)
        return false;
    *ret_value = (long long)value;
    return true;
}

enum hd_status spec_read_int(struct spec_reader *r, const struct hd_key *key,
                             const struct yaml_node *node, int64_t *ret_value)
{
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st;
    bool is_outside;
    long long value;
    double number;
    char *end;

    if (node->kind == YAML_KIND_SCALAR && hd_job_word_value(key, node->text, &number)) {
        *ret_value = (int64_t)number;
        return HD_OK;
    }
    if (key->min > key->max) /* the key allows only words */
        return spec_refuse_word(r, key, node);
    st = spec_need_number(r, node, "a whole number");
    if (st)
        return st;
    errno = 0;
    value = strtoll(node->text, &end, 10);
    if (!key->words && whole_number_of(node->text, &value))
        return hd_err(HD_INVALID, "%s: %s is not a whole number; write %lld", r->path,
                      spec_quote(node->text, quoted), value);
    if (*end || end == node->text || *node->text == '+')
        return key->words
                   ? spec_err_number(r->path, key, spec_quote(node->text, quoted))
                   : hd_err(HD_INVALID, "%s: %s is not a whole number; write %s", r->path,
                            spec_quote(node->text, quoted),
                            key->min < 0 ? "digits only, such as 10, and - in front below zero"
                                         : "digits only, such as 1000");
    is_outside = errno || (double)value < key->min || (double)value > key->max;
    if (is_outside && (errno || value > EXACT_MAX || value < -EXACT_MAX))
        return spec_err_number(r->path, key, node->text);
    if (is_outside)
        return spec_err_range(r->path, key, strtod(node->text, NULL));
    *ret_value = value;
    return HD_OK;
}

enum hd_status spec_read_real(struct spec_reader *r, const struct hd_key *key,
                              const struct yaml_node *node, double *ret_value)
{
    char quoted[SPEC_QUOTE_MAX];
    enum hd_status st;
    double value;
    char *end;

    if (node->kind == YAML_KIND_SCALAR && hd_job_word_value(key, node->text, ret_value))
        return HD_OK;
    st = spec_need_number(r, node, "a number");
    if (st)
        return st;
    value = strtod(node->text, &end);
    if (strcmp(end, "%") == 0 && end > node->text)
        return hd_err(HD_INVALID, "%s: %s is not a number; write %.6g", r->path,
                      spec_quote(node->text, quoted), value / 100);
    if (*end || end == node->text || node->text[strspn(node->text, "0123456789+-.eE")])
        return hd_err(HD_INVALID, "%s: %s is not a number; write it like 0.001 or 1e-3", r->path,
                      spec_quote(node->text, quoted));
    if (!(value >= key->min && value <= key->max)) /* this form of the condition also refuses NaN */
        return spec_err_range(r->path, key, value);
    *ret_value = value;
    return HD_OK;
}
