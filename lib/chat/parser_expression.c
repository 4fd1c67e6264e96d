#include <string.h>

#include "chat/template_internal.h"

/* parser_expression: parses expressions. Precedence as in Jinja2, from weak to strong: x if y else
 * z, or, and, not, comparisons, + -, ~, * / // %, **, signs, then . [] () and last | and `is`. */

static enum hd_status parse_or(struct chat_parser *p, struct chat_node **ret);
static enum hd_status parse_unary(struct chat_parser *p, bool with_filter, struct chat_node **ret);

static bool at_token(const struct chat_parser *p, enum chat_token_kind kind, const char *text)
{
    return p->token->kind == kind && strcmp(p->token->text, text) == 0;
}

bool chat_at_operator(const struct chat_parser *p, const char *text)
{
    return at_token(p, CHAT_TOKEN_OPERATOR, text);
}

bool chat_at_name(const struct chat_parser *p, const char *text)
{
    return at_token(p, CHAT_TOKEN_NAME, text);
}

bool chat_take_operator(struct chat_parser *p, const char *text)
{
    const bool is = chat_at_operator(p, text);

    p->token += is;
    return is;
}

bool chat_take_name(struct chat_parser *p, const char *text)
{
    const bool is = chat_at_name(p, text);

    p->token += is;
    return is;
}

enum hd_status chat_unexpected(const struct chat_parser *p, const char *wanted)
{
    const struct chat_token *t = p->token;

    if (t->kind == CHAT_TOKEN_END)
        return chat_fail(t->at, HD_INVALID, "the template ends where %s is expected", wanted);
    return chat_fail(t->at, HD_INVALID, "%s is expected here, not '%.40s'", wanted, t->text);
}

enum hd_status chat_need_operator(struct chat_parser *p, const char *text)
{
    char wanted[8] = "'";

    if (chat_take_operator(p, text))
        return HD_OK;
    (void)strncat(wanted, text, 2);
    (void)strncat(wanted, "'", 2);
    return chat_unexpected(p, wanted);
}

enum hd_status chat_need_name(struct chat_parser *p, const char *text)
{
    return chat_take_name(p, text) ? HD_OK : chat_unexpected(p, text);
}

struct chat_node *chat_new_node(struct chat_parser *p, enum chat_node_kind kind,
                                enum hd_status *ret_st)
{
    struct chat_node *node = hd_arena_alloc(p->arena, sizeof *node);

    if (!node) {
        *ret_st = hd_err(HD_NO_MEMORY, "no memory for the chat template");
        return NULL;
    }
    node->kind = kind;
    node->at = p->token->at;
    return node;
}

/* Makes a node of the tree with the child `a`, at the position of the current token. */
static enum hd_status over(struct chat_parser *p, enum chat_node_kind kind, struct chat_node *a,
                           struct chat_node **ret)
{
    enum hd_status st = HD_OK;

    *ret = chat_new_node(p, kind, &st);
    if (*ret)
        (*ret)->a = a;
    return st;
}

/* Counts the nesting depth, which is limited because nested expressions use stack. */
static enum hd_status enter_expression(struct chat_parser *p)
{
    if (++p->depth > p->depth_max)
        return chat_fail(p->token->at, HD_LIMIT, "nested deeper than %d", p->depth_max);
    return HD_OK;
}

static enum hd_status need_any_name(struct chat_parser *p, const char **ret_name)
{
    if (p->token->kind != CHAT_TOKEN_NAME)
        return chat_unexpected(p, "a name");
    *ret_name = p->token++->text;
    return HD_OK;
}

/* ---- arguments, filters, tests ---- */

enum hd_status chat_need_new_name(const struct chat_parser *p, const struct chat_node *list,
                                  const char *name)
{
    for (; list; list = list->next)
        if (strcmp(list->name, name) == 0)
            return chat_fail(p->token->at, HD_INVALID, "'%.40s' is given twice", name);
    return HD_OK;
}

enum hd_status chat_parse_arguments(struct chat_parser *p, struct chat_node *call)
{
    struct chat_node **link = &call->list, **named = &call->named;
    enum hd_status st = chat_need_operator(p, "(");
    int count = 0;

    while (!st && !chat_take_operator(p, ")")) {
        if (count && (st = chat_need_operator(p, ",")))
            break;
        if (chat_take_operator(p, ")"))
            break;
        if (chat_at_operator(p, "*") || chat_at_operator(p, "**"))
            return chat_fail(p->token->at, HD_UNSUPPORTED,
                             "arguments by * and ** are not supported");
        if (++count > CHAT_ARGS_MAX)
            return chat_fail(p->token->at, HD_LIMIT, "a call has more than %d arguments",
                             CHAT_ARGS_MAX);
        if (p->token->kind == CHAT_TOKEN_NAME && p->token[1].kind == CHAT_TOKEN_OPERATOR &&
            strcmp(p->token[1].text, "=") == 0) {
            st = chat_need_new_name(p, call->named, p->token->text);
            if (st)
                break;
            *named = chat_new_node(p, CHAT_ARGUMENT, &st);
            if (st)
                break;
            (*named)->name = p->token->text;
            p->token += 2;
            st = chat_parse_expression(p, true, &(*named)->a);
            named = &(*named)->next;
        } else {
            if (call->named)
                return chat_unexpected(p, "an argument with a name");
            st = chat_parse_expression(p, true, link);
            if (!st)
                link = &(*link)->next;
        }
    }
    return st;
}

enum hd_status chat_parse_filter(struct chat_parser *p, struct chat_node *inner,
                                 struct chat_node **ret)
{
    struct chat_node *node = inner;
    enum hd_status st = HD_OK;
    int chain = 0;

    do {
        if (++chain > p->depth_max)
            return chat_fail(p->token->at, HD_LIMIT, "more than %d filters", p->depth_max);
        st = over(p, CHAT_FILTER, node, &node);
        if (!st)
            st = need_any_name(p, &node->name);
        if (!st && chat_at_operator(p, "("))
            st = chat_parse_arguments(p, node);
    } while (!st && chat_take_operator(p, "|"));
    *ret = node;
    return st;
}

static bool begins_argument(const struct chat_parser *p)
{
    switch (p->token->kind) {
    case CHAT_TOKEN_NAME:
        return !chat_at_name(p, "else") && !chat_at_name(p, "or") && !chat_at_name(p, "and") &&
               !chat_at_name(p, "is") && !chat_at_name(p, "if");
    case CHAT_TOKEN_STRING:
    case CHAT_TOKEN_INT:
    case CHAT_TOKEN_REAL:
        return true;
    default:
        return chat_at_operator(p, "[") || chat_at_operator(p, "{");
    }
}

static enum hd_status parse_test(struct chat_parser *p, struct chat_node **node)
{
    const bool negated = chat_take_name(p, "not");
    struct chat_node *test = NULL;
    enum hd_status st = over(p, CHAT_TEST, *node, &test);

    if (!st)
        st = need_any_name(p, &test->name);
    if (!st && chat_at_operator(p, "(")) {
        st = chat_parse_arguments(p, test);
    } else if (!st && begins_argument(p)) {
        st = chat_parse_primary(p, &test->list);
        if (!st)
            st = chat_parse_postfix(p, &test->list);
    }
    if (!st && negated)
        st = over(p, CHAT_NOT, test, &test);
    *node = test;
    return st;
}

/* ---- primaries ---- */

static enum hd_status parse_list_literal(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st = HD_OK;
    struct chat_node *node = chat_new_node(p, CHAT_ITEMS, &st), **link;

    if (st)
        return st;
    p->token++;
    for (link = &node->list; !st && !chat_take_operator(p, "]"); link = &(*link)->next) {
        if (node->list && (st = chat_need_operator(p, ",")))
            break;
        if (chat_take_operator(p, "]"))
            break;
        st = chat_parse_expression(p, true, link);
        if (st)
            break;
    }
    *ret = node;
    return st;
}

static enum hd_status parse_mapping(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st = HD_OK;
    struct chat_node *node = chat_new_node(p, CHAT_MAPPING, &st), **link;

    if (st)
        return st;
    p->token++;
    for (link = &node->list; !st && !chat_take_operator(p, "}"); link = &(*link)->next) {
        if (node->list && (st = chat_need_operator(p, ",")))
            break;
        if (chat_take_operator(p, "}"))
            break;
        *link = chat_new_node(p, CHAT_ARGUMENT, &st);
        if (!st)
            st = chat_parse_expression(p, true, &(*link)->a);
        if (!st)
            st = chat_need_operator(p, ":");
        if (!st)
            st = chat_parse_expression(p, true, &(*link)->b);
        if (st)
            break;
    }
    *ret = node;
    return st;
}

static enum hd_status parse_strings(struct chat_parser *p, struct chat_node *node)
{
    size_t bytes = 0;
    char *text;

    for (int i = 0; p->token[i].kind == CHAT_TOKEN_STRING; i++)
        bytes += p->token[i].bytes;
    text = hd_arena_alloc(p->arena, bytes + 1);
    if (!text)
        return hd_err(HD_NO_MEMORY, "no memory for the chat template");
    node->value = chat_part(text, bytes);
    for (; p->token->kind == CHAT_TOKEN_STRING; p->token++) {
        memcpy(text, p->token->text, p->token->bytes);
        text += p->token->bytes;
    }
    return HD_OK;
}

unsigned chat_special(const char *name)
{
    if (strcmp(name, "varargs") == 0)
        return CHAT_VARARGS;
    if (strcmp(name, "kwargs") == 0)
        return CHAT_KWARGS;
    return strcmp(name, "caller") == 0 ? CHAT_CALLER : 0;
}

/* Parses true, false and none, in either case of the first letter, or a variable. */
static void parse_word(struct chat_parser *p, struct chat_node *node)
{
    const char *word = p->token++->text;

    if (strcmp(word, "true") == 0 || strcmp(word, "True") == 0) {
        node->value = chat_bool(true);
    } else if (strcmp(word, "false") == 0 || strcmp(word, "False") == 0) {
        node->value = chat_bool(false);
    } else if (strcmp(word, "none") == 0 || strcmp(word, "None") == 0) {
        node->value.kind = CHAT_NONE;
    } else {
        node->kind = CHAT_NAME;
        node->name = word;
        p->asks_date |= strcmp(word, "strftime_now") == 0;
        p->reads |= chat_special(word) & ~p->sets;
    }
}

enum hd_status chat_parse_primary(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st = HD_OK;

    if (chat_at_operator(p, "["))
        return parse_list_literal(p, ret);
    if (chat_at_operator(p, "{"))
        return parse_mapping(p, ret);
    if (chat_take_operator(p, "(")) {
        if (chat_at_operator(p, ")")) {
            *ret = chat_new_node(p, CHAT_ITEMS, &st);
            if (*ret)
                (*ret)->tuple = true;
        } else {
            st = chat_parse_tuple(p, true, ret);
        }
        return st ? st : chat_need_operator(p, ")");
    }
    *ret = chat_new_node(p, CHAT_CONSTANT, &st);
    if (st)
        return st;
    switch (p->token->kind) {
    case CHAT_TOKEN_STRING:
        return parse_strings(p, *ret);
    case CHAT_TOKEN_INT:
        (*ret)->value = chat_int(p->token++->integer);
        return HD_OK;
    case CHAT_TOKEN_REAL:
        (*ret)->value = chat_real(p->token++->real);
        return HD_OK;
    case CHAT_TOKEN_NAME:
        parse_word(p, *ret);
        return HD_OK;
    default:
        return chat_unexpected(p, "a value");
    }
}

/* Parses an index or a slice of a value, after its '['. */
static enum hd_status parse_subscript(struct chat_parser *p, struct chat_node *node)
{
    struct chat_node **parts[] = {&node->b, &node->c, &node->d};
    enum hd_status st = HD_OK;
    int colons = 0;

    for (;;) {
        if (!chat_at_operator(p, ":") && !chat_at_operator(p, "]"))
            st = chat_parse_expression(p, true, parts[colons]);
        if (st || colons == 2 || !chat_take_operator(p, ":"))
            break;
        colons++;
    }
    if (!st && chat_at_operator(p, ","))
        st = chat_fail(p->token->at, HD_UNSUPPORTED, "an index of several parts is not supported");
    if (!st && !colons && !node->b)
        st = chat_unexpected(p, "an index");
    node->kind = colons ? CHAT_SLICE : CHAT_ITEM;
    return st ? st : chat_need_operator(p, "]");
}

enum hd_status chat_parse_postfix(struct chat_parser *p, struct chat_node **node)
{
    enum hd_status st = HD_OK;
    int chain = 0;

    while (!st) {
        const bool dot = chat_at_operator(p, "."), bracket = chat_at_operator(p, "[");

        if (!dot && !bracket && !chat_at_operator(p, "("))
            break;
        if (++chain > p->depth_max)
            return chat_fail(p->token->at, HD_LIMIT, "nested deeper than %d", p->depth_max);
        st = over(p, dot ? CHAT_ATTRIBUTE : bracket ? CHAT_ITEM : CHAT_CALL, *node, node);
        if (st)
            break;
        if (!dot && !bracket) {
            st = chat_parse_arguments(p, *node);
        } else {
            p->token++;
            if (bracket) {
                st = parse_subscript(p, *node);
            } else if (p->token->kind == CHAT_TOKEN_INT) {
                (*node)->kind = CHAT_ITEM;
                st = chat_parse_primary(p, &(*node)->b);
            } else {
                st = need_any_name(p, &(*node)->name);
            }
        }
    }
    return st;
}

static enum hd_status parse_filters(struct chat_parser *p, struct chat_node **node)
{
    enum hd_status st = HD_OK;
    int chain = 0;

    while (!st) {
        if (++chain > p->depth_max)
            return chat_fail(p->token->at, HD_LIMIT, "nested deeper than %d", p->depth_max);
        if (chat_take_operator(p, "|")) {
            st = chat_parse_filter(p, *node, node);
        } else if (chat_take_name(p, "is")) {
            st = parse_test(p, node);
        } else if (chat_at_operator(p, "(")) {
            st = over(p, CHAT_CALL, *node, node);
            if (!st)
                st = chat_parse_arguments(p, *node);
        } else {
            break;
        }
    }
    return st;
}

/* ---- operators ---- */

static enum hd_status parse_unary(struct chat_parser *p, bool with_filter, struct chat_node **ret)
{
    const bool minus = chat_at_operator(p, "-"), plus = chat_at_operator(p, "+");
    enum hd_status st = enter_expression(p);

    if (!st && (minus || plus)) {
        st = over(p, minus ? CHAT_NEGATIVE : CHAT_POSITIVE, NULL, ret);
        p->token++;
        if (!st)
            st = parse_unary(p, false, &(*ret)->a);
    } else if (!st) {
        st = chat_parse_primary(p, ret);
    }
    if (!st)
        st = chat_parse_postfix(p, ret);
    if (!st && with_filter)
        st = parse_filters(p, ret);
    p->depth--;
    return st;
}

/* Parses the binary operators of one level of precedence, left to right. */
static enum hd_status parse_level(struct chat_parser *p, int level, struct chat_node **ret)
{
    static const char *const ops[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    enum hd_status st;
    int chain = 0;

    if (level == 4)
        return parse_unary(p, true, ret);
    st = parse_level(p, level + 1, ret);
    while (!st) {
        const char *op = NULL;
        struct chat_node *node;

        for (int i = 0; i < 4 && ops[level][i]; i++)
            if (chat_at_operator(p, ops[level][i]))
                op = ops[level][i];
        if (!op)
            break;
        if (++chain > p->depth_max)
            return chat_fail(p->token->at, HD_LIMIT, "more than %d values of one operator",
                             p->depth_max);
        st = over(p, level == 1 ? CHAT_CONCAT : CHAT_BINARY, *ret, &node);
        p->token++;
        if (st)
            break;
        node->name = op;
        st = parse_level(p, level + 1, &node->b);
        *ret = node;
    }
    return st;
}

static const char *take_comparison(struct chat_parser *p)
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (chat_take_operator(p, ops[i]))
            return ops[i];
    if (chat_take_name(p, "in"))
        return "in";
    if (chat_at_name(p, "not") && p->token[1].kind == CHAT_TOKEN_NAME &&
        strcmp(p->token[1].text, "in") == 0) {
        p->token += 2;
        return "not in";
    }
    return NULL;
}

static enum hd_status parse_compare(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st = parse_level(p, 0, ret);
    struct chat_node **link = NULL;
    const char *op;

    while (!st && (op = take_comparison(p))) {
        if (!link) {
            st = over(p, CHAT_COMPARE, *ret, ret);
            if (st)
                break;
            link = &(*ret)->list;
        }
        *link = chat_new_node(p, CHAT_ARGUMENT, &st);
        if (st)
            break;
        (*link)->name = op;
        st = parse_level(p, 0, &(*link)->a);
        link = &(*link)->next;
    }
    return st;
}

static enum hd_status parse_not(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st;

    if (!chat_at_name(p, "not"))
        return parse_compare(p, ret);
    st = enter_expression(p);
    if (!st)
        st = over(p, CHAT_NOT, NULL, ret);
    p->token++;
    if (!st)
        st = parse_not(p, &(*ret)->a);
    p->depth--;
    return st;
}

static enum hd_status parse_and(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st = parse_not(p, ret);

    while (!st && chat_at_name(p, "and")) {
        st = over(p, CHAT_AND, *ret, ret);
        p->token++;
        if (!st)
            st = parse_not(p, &(*ret)->b);
    }
    return st;
}

static enum hd_status parse_or(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st = parse_and(p, ret);

    while (!st && chat_at_name(p, "or")) {
        st = over(p, CHAT_OR, *ret, ret);
        p->token++;
        if (!st)
            st = parse_and(p, &(*ret)->b);
    }
    return st;
}

enum hd_status chat_parse_expression(struct chat_parser *p, bool condition, struct chat_node **ret)
{
    enum hd_status st = enter_expression(p);

    if (!st)
        st = parse_or(p, ret);
    while (!st && condition && chat_at_name(p, "if")) {
        struct chat_node *node;

        st = over(p, CHAT_CONDITION, NULL, &node);
        p->token++;
        if (st)
            break;
        node->b = *ret;
        *ret = node;
        st = parse_or(p, &node->a);
        if (!st && chat_take_name(p, "else"))
            st = chat_parse_expression(p, true, &node->c);
    }
    p->depth--;
    return st;
}

enum hd_status chat_parse_tuple(struct chat_parser *p, bool condition, struct chat_node **ret)
{
    struct chat_node *first = NULL, **link;
    enum hd_status st = chat_parse_expression(p, condition, &first);

    *ret = first;
    if (st || !chat_at_operator(p, ","))
        return st;
    *ret = chat_new_node(p, CHAT_ITEMS, &st);
    if (st)
        return st;
    (*ret)->tuple = true;
    (*ret)->list = first;
    for (link = &first->next; !st && chat_take_operator(p, ",");) {
        if (chat_at_operator(p, ")") || chat_at_operator(p, "=") ||
            p->token->kind == CHAT_TOKEN_PRINT_END || p->token->kind == CHAT_TOKEN_BLOCK_END)
            break;
        st = chat_parse_expression(p, condition, link);
        if (!st)
            link = &(*link)->next;
    }
    return st;
}
