#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "chat/template_internal.h"

/* filters: filters of one value; list_filters.c has those that iterate over a list. */

typedef enum hd_status filter_fn(struct chat_run *run, const struct chat_value *v,
                                 const struct chat_args *args, struct chat_value *ret);

/* Applies the string method of the filter's name to a value, converted to text. */
static enum hd_status by_method(struct chat_run *run, const char *name, const struct chat_value *v,
                                const struct chat_args *args, struct chat_value *ret)
{
    struct chat_method method = {.name = name};
    enum hd_status st = chat_str(run, v, &method.self);

    return st ? st : chat_call_method(run, &method, args, ret);
}

static enum hd_status trim(struct chat_run *run, const struct chat_value *v,
                           const struct chat_args *args, struct chat_value *ret)
{
    return by_method(run, "strip", v, args, ret);
}

static enum hd_status replace_by_method(struct chat_run *run, const struct chat_value *v,
                                        const struct chat_args *args, struct chat_value *ret)
{
    return by_method(run, "replace", v, args, ret);
}

static enum hd_status upper(struct chat_run *run, const struct chat_value *v,
                            const struct chat_args *args, struct chat_value *ret)
{
    return by_method(run, "upper", v, args, ret);
}

static enum hd_status lower(struct chat_run *run, const struct chat_value *v,
                            const struct chat_args *args, struct chat_value *ret)
{
    return by_method(run, "lower", v, args, ret);
}

static enum hd_status capitalize(struct chat_run *run, const struct chat_value *v,
                                 const struct chat_args *args, struct chat_value *ret)
{
    return by_method(run, "capitalize", v, args, ret);
}

static enum hd_status title(struct chat_run *run, const struct chat_value *v,
                            const struct chat_args *args, struct chat_value *ret)
{
    struct chat_value text;
    enum hd_status st = chat_str(run, v, &text);

    (void)args;
    return st ? st : chat_change_case(run, &text, CHAT_TITLE_FILTER, ret);
}

static enum hd_status as_string(struct chat_run *run, const struct chat_value *v,
                                const struct chat_args *args, struct chat_value *ret)
{
    (void)args;
    return chat_str(run, v, ret);
}

static enum hd_status safe(struct chat_run *run, const struct chat_value *v,
                           const struct chat_args *args, struct chat_value *ret)
{
    enum hd_status st = chat_str(run, v, ret);

    (void)args;
    ret->safe = !st;
    return st;
}

static enum hd_status length_of_value(struct chat_run *run, const struct chat_value *v,
                                      const struct chat_args *args, struct chat_value *ret)
{
    (void)args;
    if (v->kind == CHAT_STRING)
        *ret = chat_int((int64_t)chat_code_points(v->text, v->count));
    else if (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE || v->kind == CHAT_RANGE ||
             v->kind == CHAT_VIEW)
        *ret = chat_int((int64_t)v->count);
    else if (v->kind == CHAT_DICT)
        *ret = chat_int(v->dict->count);
    else if (v->kind == CHAT_UNDEFINED)
        *ret = chat_int(0);
    else
        return chat_wrong(run, "a %s has no length", chat_kind_name(v));
    return HD_OK;
}

static enum hd_status use_default(struct chat_run *run, const struct chat_value *v,
                                  const struct chat_args *args, struct chat_value *ret)
{
    struct chat_value a[2];
    enum hd_status st = chat_take(run, "default", args, "default_value boolean", a);

    if (st)
        return st;
    if (a[0].kind == CHAT_UNDEFINED && !args->count && !args->named_count)
        a[0] = CHAT_EMPTY;
    *ret = v->kind == CHAT_UNDEFINED || (chat_true(&a[1]) && !chat_true(v)) ? a[0] : *v;
    return HD_OK;
}

/* Refuses a value of which Python makes another number than the code below: undefined raises an
 * error there, and text may have digits of other scripts, underscores or words. */
static enum hd_status check_number(struct chat_run *run, const char *name,
                                   const struct chat_value *v, const struct chat_value *text)
{
    const char *word;

    if (v->kind == CHAT_UNDEFINED)
        return chat_wrong(run, "'%s' is not defined, so it has no %s", v->text, name);
    if (!text)
        return HD_OK;
    for (size_t i = 0; i < text->count; i++)
        if ((unsigned char)text->text[i] >= 0x80)
            return chat_unsupported(run, "%s of text with other characters than ASCII's", name);
    word = text->text + strspn(text->text, " +-");
    if (memchr(text->text, '_', text->count) && strspn(word, ".0123456789eE_") == strlen(word))
        return chat_unsupported(run, "%s of a number with underscores", name);
    if (strcasecmp(word, "nan") == 0 || strcasecmp(word, "inf") == 0 ||
        strcasecmp(word, "infinity") == 0)
        return chat_unsupported(run, "%s of %s", name, word);
    return HD_OK;
}

static enum hd_status to_int(struct chat_run *run, const struct chat_value *v,
                             const struct chat_args *args, struct chat_value *ret)
{
    struct chat_value otherwise, text;
    enum hd_status st = chat_take(run, "int", args, "default", &otherwise);
    char *end;

    if (st)
        return st;
    *ret = otherwise.kind == CHAT_UNDEFINED ? chat_int(0) : otherwise;
    if (v->kind == CHAT_REAL && fabs(v->real) < 9e18)
        *ret = chat_int((int64_t)v->real);
    else if (chat_is_number(v) && v->kind != CHAT_REAL)
        *ret = chat_int(chat_to_int(v));
    if (v->kind != CHAT_STRING)
        return check_number(run, "int", v, NULL);
    st = chat_copy(run, v->text, chat_trim_end(v->text, v->count), &text);
    if (!st)
        st = check_number(run, "int", v, &text);
    if (st || !text.count)
        return st;
    if (strspn(text.text, " +-.0123456789eE") != text.count)
        return HD_OK;
    if (strpbrk(text.text, ".eE")) {
        const double real = strtod(text.text, &end);

        if (!*end && fabs(real) < 9e18)
            *ret = chat_int((int64_t)real);
    } else {
        int64_t integer;

        errno = 0;
        integer = strtoll(text.text, &end, 10);
        if (!*end && errno == ERANGE)
            return chat_unsupported(run, "a number beyond 64 bits");
        if (!*end)
            *ret = chat_int(integer);
    }
    return HD_OK;
}

static enum hd_status to_real(struct chat_run *run, const struct chat_value *v,
                              const struct chat_args *args, struct chat_value *ret)
{
    struct chat_value otherwise, text;
    enum hd_status st = chat_take(run, "float", args, "default", &otherwise);
    char *end;

    if (st)
        return st;
    *ret = otherwise.kind == CHAT_UNDEFINED ? chat_real(0) : otherwise;
    if (chat_is_number(v))
        *ret = chat_real(chat_to_real(v));
    if (v->kind != CHAT_STRING)
        return check_number(run, "float", v, NULL);
    st = chat_copy(run, v->text, chat_trim_end(v->text, v->count), &text);
    if (!st)
        st = check_number(run, "float", v, &text);
    if (!st && text.count && strspn(text.text, " +-.0123456789eE") == text.count) {
        const double real = strtod(text.text, &end);

        if (!*end)
            *ret = chat_real(real);
    }
    return st;
}

static enum hd_status absolute(struct chat_run *run, const struct chat_value *v,
                               const struct chat_args *args, struct chat_value *ret)
{
    (void)args;
    if (!chat_is_number(v) || (v->kind == CHAT_INT && v->integer == INT64_MIN))
        return chat_wrong(run, "abs of a %s", chat_kind_name(v));
    *ret = v->kind == CHAT_REAL ? chat_real(fabs(v->real)) : chat_int(llabs(chat_to_int(v)));
    return HD_OK;
}

/* Returns whether str.splitlines ends a line at this character, other than a newline. */
static bool ends_a_line_too(uint32_t code)
{
    return (code >= 0x0b && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

/* Indents each line but the first; empty lines only if `blank` is set. Python ends lines also at
 * other characters, and writes them all as \n: such text is refused. */
static enum hd_status indent(struct chat_run *run, const struct chat_value *v,
                             const struct chat_args *args, struct chat_value *ret)
{
    struct chat_value a[3], text;
    struct hd_text out = {0};
    int64_t width = 4;
    bool starts;
    enum hd_status st = chat_take(run, "indent", args, "width first blank", a);

    if (!st && a[0].kind != CHAT_UNDEFINED && a[0].kind != CHAT_STRING)
        st = chat_need_int(run, "indent", &a[0], &width);
    if (!st && (width < 0 || width > 1024))
        st = chat_wrong(run, "indent takes 0 to 1024 blanks");
    if (!st)
        st = chat_str(run, v, &text);
    if (st)
        return st;
    for (size_t i = 0; i < text.count; i += chat_code_point_bytes(text.text + i))
        if (ends_a_line_too(chat_code_point(text.text + i)))
            return chat_unsupported(run, "indent of text with other ends of lines than \\n");
    starts = chat_true(&a[1]);
    for (size_t i = 0; i < text.count; i++) {
        if (starts && (text.text[i] != '\n' || chat_true(&a[2]) || i == 0)) {
            if (a[0].kind == CHAT_STRING)
                hd_text_add_bytes(&out, a[0].text, a[0].count);
            else
                hd_text_add(&out, "%*s", (int)width, "");
        }
        hd_text_add_bytes(&out, text.text + i, 1);
        starts = text.text[i] == '\n';
        if (out.len_bytes > run->limits.memory_bytes_max)
            break;
    }
    return chat_take_text(run, &out, ret);
}

enum hd_status chat_filter(struct chat_run *run, const char *name, const struct chat_value *v,
                           const struct chat_args *args, struct chat_value *ret)
{
    static const struct {
        const char *name;
        filter_fn *filter;
    } filters[] = {
        {"trim", trim},
        {"replace", replace_by_method},
        {"upper", upper},
        {"lower", lower},
        {"title", title},
        {"capitalize", capitalize},
        {"string", as_string},
        {"safe", safe},
        {"tojson", chat_to_json},
        {"length", length_of_value},
        {"count", length_of_value},
        {"default", use_default},
        {"d", use_default},
        {"int", to_int},
        {"float", to_real},
        {"abs", absolute},
        {"indent", indent},
    };
    bool found = false;
    enum hd_status st;

    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strcmp(name, filters[i].name) == 0)
            return filters[i].filter(run, v, args, ret);
    st = chat_list_filter(run, name, v, args, ret, &found);
    return found ? st : chat_unsupported(run, "the filter '%s'", name);
}
