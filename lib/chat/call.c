#include <string.h>
#include <time.h>

#include "chat/template_internal.h"

/* ---- arguments ---- */

enum hd_status chat_take(struct chat_run *run, const char *what, const struct chat_args *args,
                         const char *names, struct chat_value *ret_values)
{
    size_t count = 0;

    for (const char *p = names; *p; count++) {
        const size_t n = strcspn(p, " ");

        ret_values[count] = count < args->count ? args->items[count] : chat_undefined("argument");
        for (size_t i = 0; i < args->named_count; i++)
            if (strlen(args->named[i].name) == n && memcmp(args->named[i].name, p, n) == 0)
                ret_values[count] = args->named[i].value;
        p += n + (p[n] == ' ');
    }
    if (args->count > count)
        return chat_wrong(run, "%s takes at most %zu arguments", what, count);
    for (size_t i = 0; i < args->named_count; i++) {
        const char *name = args->named[i].name;
        const size_t n = strlen(name);
        const char *p = names;

        while (*p && !(strcspn(p, " ") == n && memcmp(p, name, n) == 0))
            p += strcspn(p, " ") + (p[strcspn(p, " ")] == ' ');
        if (!*p)
            return chat_unsupported(run, "the argument '%s' of %s", name, what);
    }
    return HD_OK;
}

enum hd_status chat_need_int(struct chat_run *run, const char *what, const struct chat_value *v,
                             int64_t *ret)
{
    if (v->kind != CHAT_INT && v->kind != CHAT_BOOL)
        return chat_wrong(run, "%s needs an integer, not a %s", what, chat_kind_name(v));
    *ret = chat_to_int(v);
    return HD_OK;
}

enum hd_status chat_need_string(struct chat_run *run, const char *what, const struct chat_value *v)
{
    if (v->kind == CHAT_STRING)
        return HD_OK;
    if (v->kind == CHAT_UNDEFINED)
        return chat_wrong(run, "%s needs a string; '%s' is not defined", what, v->text);
    return chat_wrong(run, "%s needs a string, not a %s", what, chat_kind_name(v));
}

/* ---- functions ---- */

static enum hd_status make_range(struct chat_run *run, const struct chat_args *args,
                                 struct chat_value *ret)
{
    int64_t bounds[3] = {0, 0, 1}, count = 0;
    struct chat_value *items;
    enum hd_status st = HD_OK;

    if (args->count < 1 || args->count > 3 || args->named_count)
        return chat_wrong(run, "range takes one to three integers");
    for (size_t i = 0; !st && i < args->count; i++)
        st = chat_need_int(run, "range", &args->items[i], &bounds[args->count == 1 ? 1 : i]);
    if (st)
        return st;
    if (bounds[2] == 0)
        return chat_wrong(run, "range by steps of 0");
    for (int i = 0; i < 3; i++)
        if (bounds[i] > INT32_MAX || bounds[i] < -INT32_MAX)
            return chat_fail(run->at, HD_LIMIT, "range beyond 32 bits");
    if (bounds[2] > 0 && bounds[1] > bounds[0])
        count = (bounds[1] - bounds[0] + bounds[2] - 1) / bounds[2];
    else if (bounds[2] < 0 && bounds[1] < bounds[0])
        count = (bounds[0] - bounds[1] - bounds[2] - 1) / -bounds[2];
    if (count > 100000) /* MAX_RANGE, the limit of range() in Jinja2's sandbox */
        return chat_fail(run->at, HD_LIMIT, "a range of more than 100000 numbers");
    st = chat_array(run, (size_t)count, &items);
    for (int64_t i = 0; !st && i < count; i++)
        items[i] = chat_int(bounds[0] + i * bounds[2]);
    if (!st)
        *ret = (struct chat_value){.kind = CHAT_RANGE, .items = items, .count = (size_t)count};
    return st;
}

/* Makes namespace(...) or dict(...) from a mapping and named arguments. */
static enum hd_status make_dict(struct chat_run *run, const struct chat_args *args, bool is_space,
                                struct chat_value *ret)
{
    enum hd_status st = chat_new_dict(run, ret);

    if (args->count > 1 || (args->count == 1 && args->items[0].kind != CHAT_DICT))
        return chat_unsupported(run, "%s() of anything but a mapping and names",
                                is_space ? "namespace" : "dict");
    for (int i = 0; !st && args->count && i < args->items[0].dict->count; i++)
        st = chat_dict_set(run, ret->dict, args->items[0].dict->pairs[i].key,
                           args->items[0].dict->pairs[i].value);
    for (size_t i = 0; !st && i < args->named_count; i++)
        st = chat_dict_set(run, ret->dict, chat_literal(args->named[i].name), args->named[i].value);
    for (int i = 0; !st && is_space && i < ret->dict->count; i++)
        if (ret->dict->pairs[i].key.kind == CHAT_STRING && ret->dict->pairs[i].key.count &&
            ret->dict->pairs[i].key.text[0] == '_')
            st = chat_wrong(run, "a namespace has no attribute that begins with _");
    if (is_space)
        ret->kind = CHAT_NAMESPACE;
    return st;
}

static enum hd_status raise(struct chat_run *run, const struct chat_args *args,
                            struct chat_value *ret)
{
    struct chat_value message;
    enum hd_status st = chat_take(run, "raise_exception", args, "message", &message);

    if (!st)
        st = chat_str(run, &message, ret);
    return st ? st : chat_wrong(run, "the chat template refuses this: %.600s", ret->text);
}

/* Copies a strftime format with the values that Python writes for a time without zone and fraction:
 * nothing for %z, %:z and %Z, and zeros for %f, which C lacks. */
static void add_format(struct hd_text *out, const char *format)
{
    for (const char *at = format; *at;) {
        const size_t plain = strcspn(at, "%");

        hd_text_add_bytes(out, at, plain);
        at += plain;
        if (strncmp(at, "%:z", 3) == 0) {
            at += 3;
        } else if (*at) {
            if (at[1] == 'f')
                hd_text_add(out, "000000");
            else if (at[1] != 'z' && at[1] != 'Z')
                hd_text_add_bytes(out, at, at[1] ? 2 : 1);
            at += at[1] ? 2 : 1;
        }
    }
    hd_text_add_bytes(out, "", 0);
}

static enum hd_status format_time(struct chat_run *run, const char *format, const struct tm *tm,
                                  struct chat_value *ret)
{
    char text[512];
    struct hd_text full = {0};
    size_t n = 0;
    bool is_empty;

    add_format(&full, format);
    is_empty = full.failed || !full.len_bytes;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (!is_empty)
        n = strftime(text, sizeof text, full.data, tm);
#pragma GCC diagnostic pop
    hd_text_free(&full);
    *ret = CHAT_EMPTY;
    if (is_empty)
        return HD_OK;
    if (n == 0)
        return chat_fail(run->at, HD_LIMIT, "strftime_now writes at most %zu bytes", sizeof text);
    return chat_copy(run, text, n, ret);
}

static enum hd_status now(struct chat_run *run, const struct chat_args *args,
                          struct chat_value *ret)
{
    const time_t seconds = (time_t)run->input->now_s;
    struct chat_value format, copy;
    struct tm tm;
    enum hd_status st = chat_take(run, "strftime_now", args, "format", &format);

    if (!st)
        st = chat_need_string(run, "strftime_now", &format);
    if (!st)
        st = chat_copy(run, format.text, format.count, &copy);
    if (st)
        return st;
    if (!run->input->has_clock)
        return chat_wrong(run, "the chat template asks for the date (strftime_now) and none is "
                               "given; set data.date");
    if (!gmtime_r(&seconds, &tm))
        return chat_wrong(run, "the date that is given is out of range");
    return format_time(run, copy.text, &tm, ret);
}

bool chat_is_function(const char *name)
{
    static const char *const names[] = {"range",        "namespace", "dict",   "raise_exception",
                                        "strftime_now", "cycler",    "joiner", "lipsum"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static enum hd_status call_function(struct chat_run *run, const char *name,
                                    const struct chat_args *args, struct chat_value *ret)
{
    if (strcmp(name, "range") == 0)
        return make_range(run, args, ret);
    if (strcmp(name, "namespace") == 0)
        return make_dict(run, args, true, ret);
    if (strcmp(name, "dict") == 0)
        return make_dict(run, args, false, ret);
    if (strcmp(name, "raise_exception") == 0)
        return raise(run, args, ret);
    if (strcmp(name, "strftime_now") == 0)
        return now(run, args, ret);
    return chat_unsupported(run, "the function %s", name);
}

/* ---- macros ---- */

/* Binds a parameter to its positional or named argument, or to its default, which may use the
 * parameters before it. */
static enum hd_status bind_parameter(struct chat_run *run, const struct chat_node *parameter,
                                     size_t index, const struct chat_args *args)
{
    struct chat_value value = chat_undefined(parameter->name);
    bool given = false;

    if (index < args->count) {
        value = args->items[index];
        given = true;
    }
    for (size_t i = 0; !given && i < args->named_count; i++)
        if (strcmp(args->named[i].name, parameter->name) == 0) {
            value = args->named[i].value;
            given = true;
        }
    if (!given && parameter->a) {
        enum hd_status st = chat_eval(run, parameter->a, &value);

        if (st)
            return st;
    }
    return chat_bind(run, parameter->name, value);
}

/* Binds `varargs` to the positional arguments after the parameters. */
static enum hd_status bind_varargs(struct chat_run *run, const struct chat_macro *macro,
                                   size_t parameters, const struct chat_args *args)
{
    const size_t more = args->count > parameters ? args->count - parameters : 0;
    struct chat_value *items, tuple;
    enum hd_status st;

    if (!(macro->node->specials & CHAT_VARARGS))
        return more ? chat_wrong(run, "the macro '%s' takes at most %zu arguments",
                                 macro->node->name, parameters)
                    : HD_OK;
    st = chat_array(run, more, &items);
    if (st)
        return st;
    if (more)
        memcpy(items, args->items + parameters, more * sizeof *items);
    tuple = chat_list(items, more);
    tuple.kind = CHAT_TUPLE;
    return chat_bind(run, "varargs", tuple);
}

/* Returns whether a named argument is for a parameter that got no positional argument. */
static bool is_for_parameter(const struct chat_macro *macro, const char *name,
                             const struct chat_args *args)
{
    size_t index = 0;

    for (const struct chat_node *p = macro->node->named; p; p = p->next, index++)
        if (strcmp(p->name, name) == 0)
            return index >= args->count;
    return false;
}

/* Binds `caller`, and `kwargs` to the named arguments that no parameter takes. */
static enum hd_status bind_kwargs(struct chat_run *run, const struct chat_macro *macro,
                                  const struct chat_args *args)
{
    const unsigned specials = macro->node->specials;
    struct chat_value dict, caller = chat_undefined("caller");
    enum hd_status st = chat_new_dict(run, &dict);

    for (size_t i = 0; !st && i < args->named_count; i++) {
        const char *name = args->named[i].name;

        if (is_for_parameter(macro, name, args))
            continue;
        if ((specials & CHAT_CALLER) && strcmp(name, "caller") == 0)
            caller = args->named[i].value;
        else if (specials & CHAT_KWARGS)
            st = chat_dict_set(run, dict.dict, chat_literal(name), args->named[i].value);
        else if (strcmp(name, "caller") == 0)
            st = chat_wrong(run, "the macro '%s' is called by {%% call %%} and has no caller()",
                            macro->node->name);
        else
            st = chat_wrong(run, "the macro '%s' has no parameter '%s', or has a value for it",
                            macro->node->name, name);
    }
    if (!st && (specials & CHAT_CALLER))
        st = chat_bind(run, "caller", caller);
    if (!st && (specials & CHAT_KWARGS))
        st = chat_bind(run, "kwargs", dict);
    return st;
}

static enum hd_status call_macro(struct chat_run *run, const struct chat_macro *macro,
                                 const struct chat_args *args, struct chat_value *ret)
{
    struct chat_scope *scope = run->scope;
    const struct chat_place at = run->at;
    size_t count = 0;
    enum hd_status st = chat_push(run, macro->scope);

    for (const struct chat_node *p = macro->node->named; p; p = p->next)
        count++;
    if (!st) /* varargs, kwargs and caller are bound first: defaults of parameters may use them */
        st = bind_varargs(run, macro, count, args);
    if (!st)
        st = bind_kwargs(run, macro, args);
    count = 0;
    for (const struct chat_node *p = macro->node->named; !st && p; p = p->next)
        st = bind_parameter(run, p, count++, args);
    run->at = at;
    if (!st)
        st = chat_run_captured(run, macro->node->list, ret);
    run->scope = scope;
    return st;
}

enum hd_status chat_macro_attribute(struct chat_run *run, const struct chat_macro *macro,
                                    const char *name, struct chat_value *ret)
{
    const struct chat_node *node = macro->node;
    const bool is_anonymous = node->kind == CHAT_CALL_BLOCK;
    struct chat_value *items;
    bool takes_caller = false;
    size_t count = 0;
    enum hd_status st = HD_OK;

    for (const struct chat_node *p = node->named; p; p = p->next, count++)
        takes_caller |= strcmp(p->name, "caller") == 0;
    *ret = chat_undefined(name);
    if (strcmp(name, "name") == 0) {
        *ret = is_anonymous ? (struct chat_value){.kind = CHAT_NONE} : chat_literal(node->name);
    } else if (strcmp(name, "arguments") == 0) {
        st = chat_array(run, count, &items);
        count = 0;
        for (const struct chat_node *p = node->named; !st && p; p = p->next)
            items[count++] = chat_literal(p->name);
        if (!st)
            *ret = chat_list(items, count);
        ret->kind = CHAT_TUPLE;
    } else if (strcmp(name, "catch_varargs") == 0) {
        *ret = chat_bool(node->specials & CHAT_VARARGS);
    } else if (strcmp(name, "catch_kwargs") == 0) {
        *ret = chat_bool(node->specials & CHAT_KWARGS);
    } else if (strcmp(name, "caller") == 0) {
        *ret = chat_bool(node->specials & CHAT_CALLER);
    } else if (strcmp(name, "explicit_caller") == 0) {
        *ret = chat_bool(takes_caller);
    }
    return st;
}

enum hd_status chat_call(struct chat_run *run, const struct chat_value *f,
                         const struct chat_args *args, struct chat_value *ret)
{
    switch (f->kind) {
    case CHAT_FUNCTION:
        return call_function(run, f->text, args, ret);
    case CHAT_METHOD:
        return chat_call_method(run, f->method, args, ret);
    case CHAT_MACRO:
        return call_macro(run, f->macro, args, ret);
    case CHAT_UNDEFINED:
        return chat_wrong(run, "'%s' is not defined, so it cannot be called", f->text);
    default:
        return chat_wrong(run, "a %s cannot be called", chat_kind_name(f));
    }
}
