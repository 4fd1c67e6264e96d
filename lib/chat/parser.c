#include <stdlib.h>
#include <string.h>

#include "chat/template_internal.h"

/* Parses statements up to a tag whose word is in `ends` (separated by blanks), which is not
 * consumed. "": up to the end of the template. */
static enum hd_status parse_nodes(struct chat_parser *p, const char *ends, struct chat_node **ret);

static bool is_one_of(const char *word, const char *words)
{
    const size_t n = strlen(word);

    for (const char *at = strstr(words, word); at; at = strstr(at + 1, word))
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static enum hd_status end_block(struct chat_parser *p)
{
    if (p->token->kind != CHAT_TOKEN_BLOCK_END)
        return chat_unexpected(p, "the end of the tag");
    p->token++;
    return HD_OK;
}

/* Parses the rest of an opening tag, its statements, and the closing tag `end`. */
static enum hd_status parse_body(struct chat_parser *p, const char *end, struct chat_node **ret)
{
    enum hd_status st = end_block(p);

    if (!st)
        st = parse_nodes(p, end, ret);
    if (!st)
        st = chat_need_name(p, end);
    return st ? st : end_block(p);
}

/* Parses a body like parse_body, for a block whose text is captured: break and {% generation %}
 * must not reach outside it. */
static enum hd_status parse_captured(struct chat_parser *p, const char *end, struct chat_node **ret)
{
    const int loops = p->loops;
    enum hd_status st;

    p->loops = 0;
    p->outputs++;
    st = parse_body(p, end, ret);
    p->outputs--;
    p->loops = loops;
    return st;
}

/* Parses the body of a macro or call block, and finds which special names it reads. As in Jinja2, a
 * name that is set before it is read is an ordinary variable. */
static enum hd_status parse_macro_body(struct chat_parser *p, const char *end,
                                       struct chat_node *node)
{
    const unsigned reads = p->reads, sets = p->sets;
    unsigned parameters = 0;
    bool has_default = true;
    enum hd_status st;

    for (const struct chat_node *n = node->named; n; n = n->next) {
        parameters |= chat_special(n->name);
        has_default &= n->a || chat_special(n->name) != CHAT_CALLER;
    }
    p->reads = p->sets = 0;
    st = parse_captured(p, end, &node->list);
    if (!st && (p->reads & CHAT_CALLER) && !has_default)
        st = chat_fail(node->at, HD_INVALID, "the parameter 'caller' of a macro needs a default");
    node->specials = (unsigned char)(p->reads & ~parameters);
    p->reads = reads | (p->reads & ~(sets | parameters));
    p->sets |= sets | parameters;
    return st;
}

static enum hd_status parse_target(struct chat_parser *p, bool attributes, struct chat_node **ret)
{
    enum hd_status st = HD_OK;
    struct chat_node **link, *first = NULL;
    const bool bracket = chat_take_operator(p, "(");
    bool several = false;

    for (link = &first;; link = &(*link)->next) {
        if (p->token->kind != CHAT_TOKEN_NAME)
            return chat_unexpected(p, "the name of a variable");
        *link = chat_new_node(p, CHAT_NAME, &st);
        if (st)
            return st;
        (*link)->name = p->token++->text;
        p->sets |= chat_special((*link)->name);
        if (attributes && chat_take_operator(p, ".")) {
            struct chat_node *inner = *link;

            *link = chat_new_node(p, CHAT_ATTRIBUTE, &st);
            if (st)
                return st;
            if (p->token->kind != CHAT_TOKEN_NAME)
                return chat_unexpected(p, "a name");
            (*link)->a = inner;
            (*link)->name = p->token++->text;
        }
        if (!chat_take_operator(p, ","))
            break;
        several = true;
        if (p->token->kind != CHAT_TOKEN_NAME)
            break;
    }
    if (bracket && (st = chat_need_operator(p, ")")))
        return st;
    *ret = first;
    if (!several)
        return HD_OK;
    *ret = chat_new_node(p, CHAT_ITEMS, &st);
    if (*ret)
        (*ret)->list = first;
    return st;
}

static enum hd_status parse_if(struct chat_parser *p, struct chat_node *node)
{
    struct chat_node **link = &node->list;
    enum hd_status st = HD_OK;
    bool has_condition = true;

    for (;;) {
        *link = chat_new_node(p, CHAT_BRANCH, &st);
        if (!st && has_condition)
            st = chat_parse_tuple(p, false, &(*link)->a);
        if (!st)
            st = end_block(p);
        if (!st)
            st = parse_nodes(p, has_condition ? "elif else endif" : "endif", &(*link)->list);
        if (st || chat_take_name(p, "endif"))
            return st ? st : end_block(p);
        has_condition = chat_at_name(p, "elif");
        p->token++;
        link = &(*link)->next;
    }
}

static enum hd_status parse_for(struct chat_parser *p, struct chat_node *node)
{
    enum hd_status st = parse_target(p, false, &node->a);

    if (!st)
        st = chat_need_name(p, "in");
    if (!st)
        st = chat_parse_tuple(p, false, &node->b);
    if (!st && chat_take_name(p, "if"))
        st = chat_parse_expression(p, true, &node->c);
    if (!st && chat_at_name(p, "recursive"))
        st = chat_fail(p->token->at, HD_UNSUPPORTED, "a recursive loop is not supported");
    if (!st)
        st = end_block(p);
    p->loops++;
    if (!st)
        st = parse_nodes(p, "else endfor", &node->list);
    p->loops--;
    if (!st && chat_take_name(p, "else")) {
        st = end_block(p);
        if (!st)
            st = parse_nodes(p, "endfor", &node->named);
    }
    if (!st)
        st = chat_need_name(p, "endfor");
    return st ? st : end_block(p);
}

static enum hd_status parse_set(struct chat_parser *p, struct chat_node *node)
{
    enum hd_status st = parse_target(p, true, &node->a);

    if (!st && chat_take_operator(p, "=")) {
        st = chat_parse_tuple(p, true, &node->b);
        return st ? st : end_block(p);
    }
    node->kind = CHAT_SET_BLOCK;
    if (!st && chat_take_operator(p, "|"))
        st = chat_parse_filter(p, NULL, &node->b);
    return st ? st : parse_captured(p, "endset", &node->list);
}

/* Parses the parameters `(name, name = value, ...)` of a macro or call block. */
static enum hd_status parse_parameters(struct chat_parser *p, struct chat_node *node)
{
    struct chat_node **link = &node->named;
    enum hd_status st = chat_need_operator(p, "(");
    int count = 0;

    for (; !st && !chat_take_operator(p, ")"); link = &(*link)->next) {
        if (count && (st = chat_need_operator(p, ",")))
            break;
        if (chat_take_operator(p, ")"))
            break;
        if (p->token->kind != CHAT_TOKEN_NAME)
            return chat_unexpected(p, "the name of a parameter");
        if (++count > CHAT_ARGS_MAX)
            return chat_fail(p->token->at, HD_LIMIT, "more than %d parameters", CHAT_ARGS_MAX);
        st = chat_need_new_name(p, node->named, p->token->text);
        if (st)
            break;
        *link = chat_new_node(p, CHAT_ARGUMENT, &st);
        if (st)
            break;
        (*link)->name = p->token++->text;
        if (chat_take_operator(p, "="))
            st = chat_parse_expression(p, true, &(*link)->a);
        if (st)
            break;
    }
    return st;
}

static enum hd_status parse_macro(struct chat_parser *p, struct chat_node *node)
{
    enum hd_status st;

    if (p->token->kind != CHAT_TOKEN_NAME)
        return chat_unexpected(p, "the name of the macro");
    node->name = p->token++->text;
    st = parse_parameters(p, node);
    return st ? st : parse_macro_body(p, "endmacro", node);
}

static enum hd_status parse_call(struct chat_parser *p, struct chat_node *node)
{
    enum hd_status st = HD_OK;

    node->name = "caller";
    if (chat_at_operator(p, "("))
        st = parse_parameters(p, node);
    if (!st)
        st = chat_parse_expression(p, true, &node->a);
    if (!st && node->a->kind != CHAT_CALL)
        st = chat_fail(node->at, HD_INVALID, "{%% call %%} needs the call of a macro");
    if (!st) /* the block itself is the argument `caller` */
        st = chat_need_new_name(p, node->a->named, "caller");
    return st ? st : parse_macro_body(p, "endcall", node);
}

static enum hd_status parse_with(struct chat_parser *p, struct chat_node *node)
{
    struct chat_node **link = &node->named;
    enum hd_status st = HD_OK;

    while (!st && p->token->kind != CHAT_TOKEN_BLOCK_END) {
        if (node->named && (st = chat_need_operator(p, ",")))
            break;
        if (p->token->kind != CHAT_TOKEN_NAME)
            return chat_unexpected(p, "the name of a variable");
        *link = chat_new_node(p, CHAT_ARGUMENT, &st);
        if (st)
            break;
        (*link)->name = p->token++->text;
        p->sets |= chat_special((*link)->name);
        st = chat_need_operator(p, "=");
        if (!st)
            st = chat_parse_expression(p, true, &(*link)->a);
        link = &(*link)->next;
    }
    return st ? st : parse_body(p, "endwith", &node->list);
}

static enum hd_status parse_generation(struct chat_parser *p, struct chat_node *node)
{
    const int loops = p->loops;
    enum hd_status st;

    p->has_generation = true;
    if (p->outputs)
        return chat_fail(node->at, HD_UNSUPPORTED,
                         "{%% generation %%} inside a macro, a call or a set block is not "
                         "supported: its place in the output is not known");
    p->loops = 0;
    st = parse_body(p, "endgeneration", &node->list);
    p->loops = loops;
    return st;
}

static enum hd_status parse_filter_block(struct chat_parser *p, struct chat_node *node)
{
    enum hd_status st = chat_parse_filter(p, NULL, &node->b);

    return st ? st : parse_captured(p, "endfilter", &node->list);
}

static enum hd_status parse_jump(struct chat_parser *p, struct chat_node *node)
{
    if (!p->loops)
        return chat_fail(node->at, HD_INVALID, "break and continue belong inside a loop");
    return end_block(p);
}

static enum hd_status parse_statement(struct chat_parser *p, struct chat_node **ret)
{
    static const struct {
        const char *word;
        enum chat_node_kind kind;
        enum hd_status (*parse)(struct chat_parser *p, struct chat_node *node);
    } statements[] = {
        {"if", CHAT_IF, parse_if},
        {"for", CHAT_FOR, parse_for},
        {"set", CHAT_SET, parse_set},
        {"macro", CHAT_DEFINE, parse_macro},
        {"call", CHAT_CALL_BLOCK, parse_call},
        {"with", CHAT_WITH, parse_with},
        {"filter", CHAT_FILTER_BLOCK, parse_filter_block},
        {"generation", CHAT_GENERATION, parse_generation},
        {"break", CHAT_BREAK, parse_jump},
        {"continue", CHAT_CONTINUE, parse_jump},
    };

    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (chat_at_name(p, statements[i].word)) {
            enum hd_status st = HD_OK;

            *ret = chat_new_node(p, statements[i].kind, &st);
            p->token++;
            return st ? st : statements[i].parse(p, *ret);
        }
    if (p->token->kind == CHAT_TOKEN_NAME &&
        is_one_of(p->token->text, "block extends include import from do autoescape trans debug"))
        return chat_fail(p->token->at, HD_UNSUPPORTED, "{%% %s %%} is not supported",
                         p->token->text);
    return chat_unexpected(p, "a statement");
}

static enum hd_status parse_print(struct chat_parser *p, struct chat_node **ret)
{
    enum hd_status st = HD_OK;

    *ret = chat_new_node(p, CHAT_PRINT, &st);
    p->token++;
    if (!st)
        st = chat_parse_tuple(p, true, &(*ret)->a);
    if (!st && p->token->kind != CHAT_TOKEN_PRINT_END)
        st = chat_unexpected(p, "'}}'");
    p->token++;
    return st;
}

static enum hd_status parse_nodes(struct chat_parser *p, const char *ends, struct chat_node **ret)
{
    enum hd_status st = HD_OK;

    if (++p->depth > p->depth_max)
        return chat_fail(p->token->at, HD_LIMIT, "nested deeper than %d", p->depth_max);
    while (!st) {
        if (p->token->kind == CHAT_TOKEN_END) {
            if (*ends)
                st = chat_unexpected(p, ends);
            break;
        }
        if (p->token->kind == CHAT_TOKEN_TEXT) {
            *ret = chat_new_node(p, CHAT_TEXT, &st);
            if (*ret)
                (*ret)->value = chat_part(p->token->text, p->token->bytes);
            p->token++;
        } else if (p->token->kind == CHAT_TOKEN_PRINT_BEGIN) {
            st = parse_print(p, ret);
        } else {
            p->token++;
            if (p->token->kind == CHAT_TOKEN_NAME && is_one_of(p->token->text, ends))
                break;
            st = parse_statement(p, ret);
        }
        if (!st)
            ret = &(*ret)->next;
    }
    p->depth--;
    return st;
}

enum hd_status chat_parse(struct chat_parser *p, struct chat_node **ret_body)
{
    return parse_nodes(p, "", ret_body);
}

void hd_template_free(struct hd_template *t)
{
    if (!t)
        return;
    hd_arena_done(&t->arena);
    free(t);
}

bool hd_template_has_generation(const struct hd_template *t)
{
    return t->has_generation;
}

bool hd_template_asks_date(const struct hd_template *t)
{
    return t->asks_date;
}

bool hd_template_writes_calls(const struct hd_template *t)
{
    return t->writes_calls;
}

/* Returns an error that names the line and the first byte of the template that is not UTF-8. */
static enum hd_status not_utf8(const char *source, size_t source_bytes)
{
    const size_t bad = hd_text_find_not_utf8(source, source_bytes);
    int line = 1;

    for (size_t i = 0; i < bad; i++)
        line += source[i] == '\n';
    return hd_err(HD_INVALID, "%d:1: byte %zu (0x%02X) of the chat template is not UTF-8%s", line,
                  bad, (unsigned)(unsigned char)source[bad],
                  hd_text_explain_not_utf8(source, source_bytes, bad));
}

enum hd_status hd_template_parse(const char *source, size_t source_bytes,
                                 const struct hd_template_limits *limits,
                                 struct hd_template **ret_template)
{
    const size_t bytes_max =
        limits && limits->source_bytes_max ? limits->source_bytes_max : 1 << 20;
    const int depth_max = limits && limits->depth_max ? limits->depth_max : 300;
    struct hd_template *t;
    struct chat_token *tokens = NULL;
    struct chat_parser p = {.depth_max = depth_max};
    enum hd_status st;

    if (source_bytes > bytes_max)
        return hd_err(HD_LIMIT, "1:1: the chat template has %zu bytes; at most %zu are read",
                      source_bytes, bytes_max);
    if (!hd_text_is_utf8(source, source_bytes))
        return not_utf8(source, source_bytes);
    t = calloc(1, sizeof *t);
    if (!t)
        return hd_err(HD_NO_MEMORY, "no memory for the chat template");
    hd_arena_init(&t->arena, 0);
    st = chat_lex(&t->arena, source, source_bytes, &tokens);
    p.arena = &t->arena;
    p.token = tokens;
    if (!st)
        st = chat_parse(&p, &t->body);
    t->has_generation = p.has_generation;
    t->asks_date = p.asks_date;
    t->writes_calls = memmem(source, source_bytes, "tool_calls", strlen("tool_calls")) != NULL;
    if (st)
        hd_template_free(t);
    else
        *ret_template = t;
    return st;
}
