#include <math.h>
#include <string.h>

#include "chat/template_internal.h"

static enum hd_status wrong_kinds(struct chat_run *run, const char *op, const struct chat_value *a,
                                  const struct chat_value *b)
{
    const struct chat_value *u = a->kind == CHAT_UNDEFINED ? a : b;

    if (u->kind == CHAT_UNDEFINED)
        return chat_wrong(run, "'%s' is not defined", u->text);
    return chat_wrong(run, "'%s' between a %s and a %s", op, chat_kind_name(a), chat_kind_name(b));
}

/* Appends a value as text escaped for HTML: `+` with a string marked `safe` escapes the other
 * operand, as in Jinja2. */
static void add_escaped(struct hd_text *out, const struct chat_value *v)
{
    static const char special[] = "&<>'\"";
    static const char *const escapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};

    for (size_t i = 0; i < v->count; i++) {
        const char *found = v->text[i] ? strchr(special, v->text[i]) : NULL;

        if (found && !v->safe)
            hd_text_add(out, "%s", escapes[found - special]);
        else
            hd_text_add_bytes(out, &v->text[i], 1);
    }
}

static enum hd_status add_strings(struct chat_run *run, const struct chat_value *a,
                                  const struct chat_value *b, struct chat_value *ret)
{
    struct hd_text text = {0};
    enum hd_status st;

    if (a->safe || b->safe) {
        add_escaped(&text, a);
        add_escaped(&text, b);
    } else {
        hd_text_add_bytes(&text, a->text, a->count);
        hd_text_add_bytes(&text, b->text, b->count);
    }
    st = chat_take_text(run, &text, ret);
    ret->safe = a->safe || b->safe;
    return st;
}

/* Sets *ret to a list of the items of a, then those of b. */
static enum hd_status add_lists(struct chat_run *run, const struct chat_value *a,
                                const struct chat_value *b, struct chat_value *ret)
{
    struct chat_value *items;
    enum hd_status st = chat_array(run, a->count + b->count, &items);

    if (st)
        return st;
    if (a->count)
        memcpy(items, a->items, a->count * sizeof *items);
    if (b->count)
        memcpy(items + a->count, b->items, b->count * sizeof *items);
    *ret = *a;
    ret->items = items;
    ret->count = a->count + b->count;
    return HD_OK;
}

static enum hd_status repeat(struct chat_run *run, const struct chat_value *v, int64_t times,
                             struct chat_value *ret)
{
    struct hd_text text = {0};
    enum hd_status st = HD_OK;

    if (times < 0)
        times = 0;
    if (v->count && (size_t)times > run->limits.memory_bytes_max / v->count)
        return chat_no_memory(run);
    if (v->kind == CHAT_STRING) {
        for (int64_t i = 0; i < times && v->count; i++)
            hd_text_add_bytes(&text, v->text, v->count);
        return chat_take_text(run, &text, ret);
    }
    *ret = *v;
    ret->count = 0;
    for (int64_t i = 0; !st && i < times && v->count; i++)
        st = add_lists(run, ret, v, ret);
    return st;
}

static enum hd_status divide(struct chat_run *run, const char *op, int64_t a, int64_t b,
                             struct chat_value *ret)
{
    int64_t quotient, rest;

    if (b == 0)
        return chat_wrong(run, "division by zero");
    if (a == INT64_MIN && b == -1)
        return chat_unsupported(run, "a number beyond 64 bits");
    quotient = a / b;
    rest = a % b;
    if (rest && (rest < 0) != (b < 0)) { /* Python rounds towards minus infinity */
        quotient--;
        rest += b;
    }
    *ret = chat_int(*op == '/' ? quotient : rest);
    return HD_OK;
}

static enum hd_status power(struct chat_run *run, int64_t a, int64_t b, struct chat_value *ret)
{
    int64_t product = 1;

    if (b < 0) {
        *ret = chat_real(pow((double)a, (double)b));
        return HD_OK;
    }
    for (int64_t i = 0; i < b; i++) {
        if (i > 64 && (a == 0 || a == 1 || a == -1)) {
            product = a == -1 && b % 2 ? -1 : a * a;
            break;
        }
        if (__builtin_mul_overflow(product, a, &product))
            return chat_unsupported(run, "a number beyond 64 bits");
    }
    *ret = chat_int(product);
    return HD_OK;
}

static enum hd_status of_integers(struct chat_run *run, const char *op, int64_t a, int64_t b,
                                  struct chat_value *ret)
{
    bool over = false;

    *ret = chat_int(0);
    if (strcmp(op, "/") == 0) {
        if (b == 0)
            return chat_wrong(run, "division by zero");
        *ret = chat_real((double)a / (double)b);
    } else if (strcmp(op, "**") == 0) {
        return power(run, a, b, ret);
    } else if (strcmp(op, "//") == 0 || strcmp(op, "%") == 0) {
        return divide(run, op, a, b, ret);
    } else if (*op == '+') {
        over = __builtin_add_overflow(a, b, &ret->integer);
    } else if (*op == '-') {
        over = __builtin_sub_overflow(a, b, &ret->integer);
    } else {
        over = __builtin_mul_overflow(a, b, &ret->integer);
    }
    return over ? chat_unsupported(run, "a number beyond 64 bits") : HD_OK;
}

static enum hd_status of_reals(struct chat_run *run, const char *op, double a, double b,
                               struct chat_value *ret)
{
    double rest;

    if ((*op == '/' || *op == '%') && b == 0)
        return chat_wrong(run, "division by zero");
    if (strcmp(op, "**") == 0) {
        *ret = chat_real(pow(a, b));
    } else if (strcmp(op, "//") == 0) {
        *ret = chat_real(floor(a / b));
    } else if (*op == '%') {
        rest = fmod(a, b);
        *ret = chat_real(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
    } else {
        *ret = chat_real(*op == '+' ? a + b : *op == '-' ? a - b : *op == '*' ? a * b : a / b);
    }
    return HD_OK;
}

enum hd_status chat_binary(struct chat_run *run, const char *op, const struct chat_value *a,
                           const struct chat_value *b, struct chat_value *ret)
{
    const bool sequence_a = a->kind == CHAT_STRING || a->kind == CHAT_LIST || a->kind == CHAT_TUPLE;
    const bool sequence_b = b->kind == CHAT_STRING || b->kind == CHAT_LIST || b->kind == CHAT_TUPLE;

    if (chat_is_number(a) && chat_is_number(b)) {
        if (a->kind == CHAT_REAL || b->kind == CHAT_REAL)
            return of_reals(run, op, chat_to_real(a), chat_to_real(b), ret);
        return of_integers(run, op, chat_to_int(a), chat_to_int(b), ret);
    }
    if (strcmp(op, "+") == 0 && sequence_a && a->kind == b->kind)
        return a->kind == CHAT_STRING ? add_strings(run, a, b, ret) : add_lists(run, a, b, ret);
    if (strcmp(op, "*") == 0 && sequence_a && (b->kind == CHAT_INT || b->kind == CHAT_BOOL))
        return repeat(run, a, chat_to_int(b), ret);
    if (strcmp(op, "*") == 0 && sequence_b && (a->kind == CHAT_INT || a->kind == CHAT_BOOL))
        return repeat(run, b, chat_to_int(a), ret);
    if (strcmp(op, "%") == 0 && a->kind == CHAT_STRING)
        return chat_unsupported(run, "formatting by %%; use ~");
    return wrong_kinds(run, op, a, b);
}

enum hd_status chat_order(struct chat_run *run, const struct chat_value *a,
                          const struct chat_value *b, int *ret)
{
    if (chat_is_number(a) && chat_is_number(b)) {
        const double x = chat_to_real(a), y = chat_to_real(b);

        if (a->kind != CHAT_REAL && b->kind != CHAT_REAL)
            *ret = (chat_to_int(a) > chat_to_int(b)) - (chat_to_int(a) < chat_to_int(b));
        else
            *ret = (x > y) - (x < y);
        return HD_OK;
    }
    if (a->kind == CHAT_STRING && b->kind == CHAT_STRING) {
        const size_t n = a->count < b->count ? a->count : b->count;

        *ret = n ? memcmp(a->text, b->text, n) : 0; /* UTF-8 sorts like code points */
        if (*ret == 0)
            *ret = (a->count > b->count) - (a->count < b->count);
        return chat_steps(run, n / 64);
    }
    if ((a->kind == CHAT_TUPLE && b->kind == CHAT_TUPLE) ||
        (a->kind == CHAT_LIST && b->kind == CHAT_LIST))
        return chat_unsupported(run, "the order of lists");
    return wrong_kinds(run, "<", a, b);
}

enum hd_status chat_contains(struct chat_run *run, const struct chat_value *whole,
                             const struct chat_value *part, bool *ret)
{
    const struct chat_value *found, *items = NULL;
    size_t count = 0;
    enum hd_status st = chat_steps(run, whole->kind == CHAT_STRING ? whole->count / 64 : 1);

    *ret = false;
    switch (whole->kind) {
    case CHAT_UNDEFINED:
        return st;
    case CHAT_STRING:
        if (part->kind != CHAT_STRING)
            return wrong_kinds(run, "in", part, whole);
        *ret =
            part->count == 0 || memmem(whole->text, whole->count, part->text, part->count) != NULL;
        return st;
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_RANGE:
    case CHAT_VIEW:
    case CHAT_LAZY:
        if (!st)
            st = chat_iterate(run, whole, &items, &count);
        for (size_t i = 0; !st && !*ret && i < count; i++) {
            st = chat_steps(run, 1);
            if (!st)
                st = chat_equal(run, &items[i], part, ret);
        }
        return st;
    case CHAT_DICT:
        if (!st)
            st = chat_dict_find(run, whole->dict, part, &found);
        *ret = !st && found;
        return st;
    default:
        return wrong_kinds(run, "in", part, whole);
    }
}

enum hd_status chat_compare(struct chat_run *run, const char *op, const struct chat_value *a,
                            const struct chat_value *b, bool *ret)
{
    enum hd_status st;
    int order = 0;

    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0) {
        st = chat_equal(run, a, b, ret);
        *ret = *ret == (*op == '=');
        return st;
    }
    if (strcmp(op, "in") == 0 || strcmp(op, "not in") == 0) {
        st = chat_contains(run, b, a, ret);
        *ret = *ret == (*op == 'i');
        return st;
    }
    st = chat_order(run, a, b, &order);
    if (op[1] == '=')
        *ret = *op == '<' ? order <= 0 : order >= 0;
    else
        *ret = *op == '<' ? order < 0 : order > 0;
    return st;
}
