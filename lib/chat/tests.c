#include <string.h>

#include "chat/template_internal.h"

static bool is_sequence(const struct chat_value *v)
{
    switch (v->kind) {
    case CHAT_UNDEFINED: /* as in Jinja2, undefined is empty and can be iterated */
    case CHAT_STRING:
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
    case CHAT_RANGE:
        return true;
    default:
        return false;
    }
}

static bool has_case(const struct chat_value *v, struct chat_value changed)
{
    bool letters = false;

    for (size_t i = 0; i < v->count; i++)
        letters |= (v->text[i] >= 'a' && v->text[i] <= 'z') ||
                   (v->text[i] >= 'A' && v->text[i] <= 'Z') || (unsigned char)v->text[i] >= 0x80;
    return letters && changed.count == v->count && memcmp(changed.text, v->text, v->count) == 0;
}

/* Sets *ret to the result of a test without arguments, such as "defined"; returns false if the name
 * is no such test. */
static bool plain_test(const char *name, const struct chat_value *v, bool *ret)
{
    const struct {
        const char *name;
        bool is;
    } tests[] = {
        {"defined", v->kind != CHAT_UNDEFINED},
        {"undefined", v->kind == CHAT_UNDEFINED},
        {"none", v->kind == CHAT_NONE},
        {"string", v->kind == CHAT_STRING},
        {"mapping", v->kind == CHAT_DICT},
        {"iterable",
         is_sequence(v) || v->kind == CHAT_LOOP || v->kind == CHAT_VIEW || v->kind == CHAT_LAZY},
        {"sequence", is_sequence(v)},
        {"number", chat_is_number(v)},
        {"integer", v->kind == CHAT_INT},
        {"float", v->kind == CHAT_REAL},
        {"boolean", v->kind == CHAT_BOOL},
        {"true", v->kind == CHAT_BOOL && v->truth},
        {"false", v->kind == CHAT_BOOL && !v->truth},
        {"callable", v->kind == CHAT_MACRO || v->kind == CHAT_METHOD || v->kind == CHAT_FUNCTION ||
                         v->kind == CHAT_UNDEFINED},
        {"escaped", v->safe},
    };

    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(name, tests[i].name) == 0) {
            *ret = tests[i].is;
            return true;
        }
    return false;
}

static const char *operator_of(const char *name)
{
    static const char *const names[][2] = {
        {"equalto", "=="}, {"eq", "=="}, {"==", "=="},         {"ne", "!="},
        {"lt", "<"},       {"le", "<="}, {"lessthan", "<"},    {"gt", ">"},
        {"ge", ">="},      {"in", "in"}, {"greaterthan", ">"},
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

static enum hd_status remainder_of(struct chat_run *run, const struct chat_value *v,
                                   const struct chat_value *by, struct chat_value *ret)
{
    return chat_binary(run, "%", v, by, ret);
}

enum hd_status chat_test(struct chat_run *run, const char *name, const struct chat_value *v,
                         const struct chat_args *args, bool *ret)
{
    struct chat_value other, rest, zero = chat_int(0);
    const char *op;
    enum hd_status st;

    *ret = false;
    if (plain_test(name, v, ret))
        return args->count ? chat_wrong(run, "the test '%s' takes no argument", name) : HD_OK;
    op = operator_of(name);
    if (op || strcmp(name, "divisibleby") == 0) {
        st = chat_take(run, name, args, "other", &other);
        if (!st && !args->count && !args->named_count)
            return chat_wrong(run, "the test '%s' needs a value to compare with", name);
        if (st || op)
            return st ? st : chat_compare(run, op, v, &other, ret);
        st = remainder_of(run, v, &other, &rest);
        return st ? st : chat_equal(run, &rest, &zero, ret);
    }
    if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0) {
        other = chat_int(2);
        zero = chat_int(*name == 'o');
        st = remainder_of(run, v, &other, &rest);
        return st ? st : chat_equal(run, &rest, &zero, ret);
    }
    if (strcmp(name, "lower") == 0 || strcmp(name, "upper") == 0) {
        const enum chat_case how = *name == 'l' ? CHAT_LOWER : CHAT_UPPER;

        st = chat_str(run, v, &other);
        if (!st)
            st = chat_change_case(run, &other, how, &rest);
        *ret = !st && has_case(&other, rest);
        return st;
    }
    return chat_unsupported(run, "the test '%s'", name);
}
