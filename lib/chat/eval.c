#include <string.h>

#include "chat/template_internal.h"

static enum hd_status eval_name(struct chat_run *run, const char *name, struct chat_value *ret)
{
    for (const struct chat_scope *s = run->scope; s; s = s->outer)
        for (const struct chat_binding *b = s->first; b; b = b->next)
            if (strcmp(b->name, name) == 0) {
                *ret = b->value;
                return HD_OK;
            }
    *ret = chat_undefined(name);
    if (strcmp(name, "self") == 0)
        return chat_unsupported(run, "'self', the blocks of the template");
    if (chat_is_function(name))
        ret->kind = CHAT_FUNCTION;
    return HD_OK;
}

static size_t count_nodes(const struct chat_node *list)
{
    size_t n = 0;

    for (; list; list = list->next)
        n++;
    return n;
}

static enum hd_status eval_list(struct chat_run *run, const struct chat_node *list,
                                const struct chat_value **ret_items, size_t *ret_count)
{
    const size_t count = count_nodes(list);
    struct chat_value *items;
    enum hd_status st = chat_array(run, count, &items);

    for (size_t i = 0; !st && list; list = list->next)
        st = chat_eval(run, list, &items[i++]);
    if (!st) {
        *ret_items = items;
        *ret_count = count;
    }
    return st;
}

static enum hd_status eval_args(struct chat_run *run, const struct chat_node *node,
                                struct chat_args *ret)
{
    struct chat_named *named;
    enum hd_status st = eval_list(run, node->list, &ret->items, &ret->count);

    if (st)
        return st;
    ret->named_count = count_nodes(node->named);
    named = hd_arena_array(&run->arena, ret->named_count + 1, sizeof *named);
    if (!named)
        return chat_no_memory(run);
    ret->named = named;
    if (node == run->call)
        named[ret->named_count++] = (struct chat_named){"caller", run->caller};
    for (const struct chat_node *n = node->named; !st && n; n = n->next, named++) {
        named->name = n->name;
        st = chat_eval(run, n->a, &named->value);
    }
    return st;
}

static enum hd_status eval_mapping(struct chat_run *run, const struct chat_node *node,
                                   struct chat_value *ret)
{
    enum hd_status st = chat_new_dict(run, ret);

    for (const struct chat_node *p = node->list; !st && p; p = p->next) {
        struct chat_value key, value;

        st = chat_eval(run, p->a, &key);
        if (!st)
            st = chat_eval(run, p->b, &value);
        if (!st)
            st = chat_dict_set(run, ret->dict, key, value);
    }
    return st;
}

static enum hd_status eval_slice(struct chat_run *run, const struct chat_node *node,
                                 struct chat_value *ret)
{
    const struct chat_node *parts[3] = {node->b, node->c, node->d};
    struct chat_value whole, bounds[3];
    enum hd_status st = chat_eval(run, node->a, &whole);

    for (int i = 0; !st && i < 3; i++) {
        bounds[i] = (struct chat_value){.kind = CHAT_NONE};
        if (parts[i])
            st = chat_eval(run, parts[i], &bounds[i]);
    }
    run->at = node->at;
    return st ? st : chat_slice(run, &whole, bounds, ret);
}

static enum hd_status eval_item(struct chat_run *run, const struct chat_node *node,
                                struct chat_value *ret)
{
    struct chat_value whole, key;
    enum hd_status st = chat_eval(run, node->a, &whole);

    if (!st)
        st = chat_eval(run, node->b, &key);
    run->at = node->at;
    return st ? st : chat_item(run, &whole, &key, ret);
}

static enum hd_status eval_attribute(struct chat_run *run, const struct chat_node *node,
                                     struct chat_value *ret)
{
    struct chat_value whole;
    enum hd_status st = chat_eval(run, node->a, &whole);

    run->at = node->at;
    return st ? st : chat_attribute(run, &whole, node->name, ret);
}

static enum hd_status eval_call(struct chat_run *run, const struct chat_node *node,
                                struct chat_value *ret)
{
    struct chat_args args = {0};
    struct chat_value f;
    enum hd_status st = chat_eval(run, node->a, &f);

    if (!st)
        st = eval_args(run, node, &args);
    run->at = node->at;
    return st ? st : chat_call(run, &f, &args, ret);
}

enum hd_status chat_eval_filter(struct chat_run *run, const struct chat_node *node,
                                const struct chat_value *text, struct chat_value *ret)
{
    struct chat_args args = {0};
    struct chat_value v = *text;
    enum hd_status st = HD_OK;

    if (node->a)
        st = chat_eval_filter(run, node->a, text, &v);
    if (!st)
        st = eval_args(run, node, &args);
    run->at = node->at;
    return st ? st : chat_filter(run, node->name, &v, &args, ret);
}

static enum hd_status eval_filter(struct chat_run *run, const struct chat_node *node,
                                  struct chat_value *ret)
{
    struct chat_args args = {0};
    struct chat_value v;
    enum hd_status st = chat_eval(run, node->a, &v);

    if (!st)
        st = eval_args(run, node, &args);
    run->at = node->at;
    return st ? st : chat_filter(run, node->name, &v, &args, ret);
}

static enum hd_status eval_test(struct chat_run *run, const struct chat_node *node,
                                struct chat_value *ret)
{
    struct chat_args args = {0};
    struct chat_value v;
    enum hd_status st = chat_eval(run, node->a, &v);
    bool is = false;

    if (!st)
        st = eval_args(run, node, &args);
    run->at = node->at;
    if (!st)
        st = chat_test(run, node->name, &v, &args, &is);
    *ret = chat_bool(is);
    return st;
}

static enum hd_status eval_sign(struct chat_run *run, const struct chat_node *node,
                                struct chat_value *ret)
{
    struct chat_value v;
    enum hd_status st = chat_eval(run, node->a, &v);

    if (st)
        return st;
    run->at = node->at;
    if (!chat_is_number(&v))
        return chat_wrong(run, "a sign in front of a %s", chat_kind_name(&v));
    if (v.kind == CHAT_REAL)
        *ret = chat_real(node->kind == CHAT_NEGATIVE ? -v.real : v.real);
    else if (node->kind == CHAT_POSITIVE)
        *ret = chat_int(chat_to_int(&v));
    else if (v.kind == CHAT_INT && v.integer == INT64_MIN)
        return chat_unsupported(run, "a number beyond 64 bits");
    else
        *ret = chat_int(-chat_to_int(&v));
    return HD_OK;
}

static enum hd_status eval_concat(struct chat_run *run, const struct chat_node *node,
                                  struct chat_value *ret)
{
    struct chat_value a, b;
    struct hd_text text = {0};
    enum hd_status st = chat_eval(run, node->a, &a);

    if (!st)
        st = chat_eval(run, node->b, &b);
    run->at = node->at;
    if (!st)
        st = chat_add_str(run, &text, &a);
    if (!st)
        st = chat_add_str(run, &text, &b);
    if (!st)
        return chat_take_text(run, &text, ret);
    hd_text_free(&text);
    return st;
}

/* Evaluates a < b < c as (a < b and b < c), with b evaluated once. */
static enum hd_status eval_compare(struct chat_run *run, const struct chat_node *node,
                                   struct chat_value *ret)
{
    struct chat_value left, right;
    bool is = true;
    enum hd_status st = chat_eval(run, node->a, &left);

    for (const struct chat_node *c = node->list; !st && is && c; c = c->next) {
        st = chat_eval(run, c->a, &right);
        run->at = c->at;
        if (!st)
            st = chat_compare(run, c->name, &left, &right, &is);
        left = right;
    }
    *ret = chat_bool(is);
    return st;
}

static enum hd_status eval_binary(struct chat_run *run, const struct chat_node *node,
                                  struct chat_value *ret)
{
    struct chat_value a, b;
    enum hd_status st = chat_eval(run, node->a, &a);

    if (!st)
        st = chat_eval(run, node->b, &b);
    run->at = node->at;
    return st ? st : chat_binary(run, node->name, &a, &b, ret);
}

static enum hd_status eval_choice(struct chat_run *run, const struct chat_node *node,
                                  struct chat_value *ret)
{
    enum hd_status st = chat_eval(run, node->a, ret);

    if (st)
        return st;
    if (node->kind == CHAT_CONDITION) {
        if (chat_true(ret))
            return chat_eval(run, node->b, ret);
        *ret = chat_undefined("the value of an `if` without `else`");
        return node->c ? chat_eval(run, node->c, ret) : HD_OK;
    }
    return chat_true(ret) == (node->kind == CHAT_AND) ? chat_eval(run, node->b, ret) : HD_OK;
}

static enum hd_status eval_node(struct chat_run *run, const struct chat_node *node,
                                struct chat_value *ret)
{
    enum hd_status st;

    switch (node->kind) {
    case CHAT_CONSTANT:
        *ret = node->value;
        return HD_OK;
    case CHAT_NAME:
        return eval_name(run, node->name, ret);
    case CHAT_ITEMS:
        *ret = (struct chat_value){.kind = node->tuple ? CHAT_TUPLE : CHAT_LIST};
        return eval_list(run, node->list, &ret->items, &ret->count);
    case CHAT_MAPPING:
        return eval_mapping(run, node, ret);
    case CHAT_ATTRIBUTE:
        return eval_attribute(run, node, ret);
    case CHAT_ITEM:
        return eval_item(run, node, ret);
    case CHAT_SLICE:
        return eval_slice(run, node, ret);
    case CHAT_CALL:
        return eval_call(run, node, ret);
    case CHAT_FILTER:
        return eval_filter(run, node, ret);
    case CHAT_TEST:
        return eval_test(run, node, ret);
    case CHAT_NOT:
        st = chat_eval(run, node->a, ret);
        *ret = chat_bool(!st && !chat_true(ret));
        return st;
    case CHAT_NEGATIVE:
    case CHAT_POSITIVE:
        return eval_sign(run, node, ret);
    case CHAT_AND:
    case CHAT_OR:
    case CHAT_CONDITION:
        return eval_choice(run, node, ret);
    case CHAT_BINARY:
        return eval_binary(run, node, ret);
    case CHAT_CONCAT:
        return eval_concat(run, node, ret);
    case CHAT_COMPARE:
        return eval_compare(run, node, ret);
    default:
        return chat_fail(node->at, HD_INTERNAL,
                         "the parser put a statement where an expression belongs");
    }
}

enum hd_status chat_eval(struct chat_run *run, const struct chat_node *node, struct chat_value *ret)
{
    enum hd_status st;

    run->at = node->at;
    st = chat_steps(run, 1);
    if (!st && ++run->depth > run->limits.depth_max)
        return chat_fail(run->at, HD_LIMIT, "the chat template nests deeper than %d",
                         run->limits.depth_max);
    if (!st)
        st = eval_node(run, node, ret);
    run->depth--;
    return st;
}
