/* template_internal: tokens, nodes and values of the interpreter of chat templates.
 *
 * lexer.c turns the source into tokens; parser.c and parser_expression.c turn tokens into a tree of
 * nodes; run.c executes statements, eval.c expressions, call.c functions and macros. value.c,
 * repr.c and to_json.c implement values and their text forms; filters.c, list_filters.c, methods.c
 * and tests.c implement filters, methods and tests by name; unicode.c has character properties.
 *
 * Used by: the files of lib/chat alone.
 */
#ifndef HD_CHAT_TEMPLATE_INTERNAL_H
#define HD_CHAT_TEMPLATE_INTERNAL_H

#include "base/arena.h"
#include "chat/template.h"

struct chat_place {
    /* position in the template's source, both from 1; a column counts code points */
    int line, column;
};

/* ---- values ---- */

enum chat_kind {
    CHAT_UNDEFINED, /* text: name of the undefined variable */
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_REAL,
    CHAT_STRING, /* text: `count` bytes, not NUL-terminated */
    CHAT_LIST,   /* items, count */
    CHAT_TUPLE,
    CHAT_DICT,
    CHAT_NAMESPACE, /* an object of namespace(); in `dict` */
    CHAT_LOOP,
    CHAT_MACRO,
    CHAT_METHOD,
    CHAT_FUNCTION, /* text: its name */
    /* items, count: sequences of Python that are no lists. A loop takes them like a list; as text,
     * and in ==, + and JSON, they differ from a list or are refused */
    CHAT_RANGE,
    CHAT_VIEW, /* keys(), values() or items() of a mapping */
    CHAT_LAZY, /* the result of map, select ..: a loop can go through it once; true even if
                  empty; items[-1]: whether a loop has gone through it */
};

struct chat_value {
    enum chat_kind kind;
    bool safe;    /* true: a string marked by the filter `safe`: `+` escapes the other operand */
    size_t count; /* string: bytes; list, tuple: items */
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *text;
        const struct chat_value *items;
        struct chat_dict *dict;
        const struct chat_loop *loop;
        const struct chat_macro *macro;
        const struct chat_method *method;
    };
};

struct chat_pair {
    struct chat_value key, value;
};

struct chat_dict { /* a dictionary, in the order of insertion */
    struct chat_pair *pairs;
    int count, capacity;
};

struct chat_loop {
    const struct chat_value *items;
    size_t index, count;
    int depth;
};

struct chat_macro {
    const struct chat_node *node; /* definition: a macro or a call block */
    struct chat_scope *scope;     /* scope in which the macro was defined */
};

struct chat_method {
    struct chat_value self;
    const char *name;
};

/* ---- tokens and nodes ---- */

enum chat_token_kind {
    CHAT_TOKEN_TEXT,
    CHAT_TOKEN_PRINT_BEGIN,
    CHAT_TOKEN_PRINT_END,
    CHAT_TOKEN_BLOCK_BEGIN,
    CHAT_TOKEN_BLOCK_END,
    CHAT_TOKEN_NAME,
    CHAT_TOKEN_STRING,
    CHAT_TOKEN_INT,
    CHAT_TOKEN_REAL,
    CHAT_TOKEN_OPERATOR,
    CHAT_TOKEN_END,
};

struct chat_token {
    enum chat_token_kind kind;
    struct chat_place at;
    /* NUL-terminated text of the token: text, name, decoded string, or operator */
    const char *text;
    size_t bytes;
    int64_t integer;
    double real;
};

enum chat_node_kind {
    /* expressions; beside each, the members of struct chat_node that hold its parts */
    CHAT_CONSTANT,
    CHAT_NAME,      /* the variable `name` */
    CHAT_ITEMS,     /* [list] or, if `tuple`, (list) */
    CHAT_MAPPING,   /* {..} with a list of pairs a: b */
    CHAT_ATTRIBUTE, /* a.name */
    CHAT_ITEM,      /* a[b] */
    CHAT_SLICE,     /* a[first:second:third], each may be NULL: b, c, d */
    CHAT_CALL,      /* a(list, named) */
    CHAT_FILTER,    /* a | name(list, named); a NULL: filters the text of a block */
    CHAT_TEST,      /* a is name(list) */
    CHAT_NOT,       /* not a */
    CHAT_NEGATIVE,  /* -a */
    CHAT_POSITIVE,  /* +a */
    CHAT_AND,       /* a and b */
    CHAT_OR,        /* a or b */
    CHAT_BINARY,    /* a name b, where name is + - * / // % or ** */
    CHAT_CONCAT,    /* items of list, joined by ~ */
    CHAT_COMPARE,   /* a, then for each node of list: its name (operator) and a */
    CHAT_CONDITION, /* b if a else c; c may be NULL */
    CHAT_ARGUMENT,  /* name = a: in `named`, and in the parameters of a macro */
    /* statements; beside each, the members of struct chat_node that hold its parts */
    CHAT_TEXT,  /* text outside of tags: value */
    CHAT_PRINT, /* {{ a }} */
    CHAT_IF,    /* {% if %} with branches in list, each a (NULL: else) and list */
    CHAT_BRANCH,
    CHAT_FOR,          /* {% for a in b if c %} list {% else %} named */
    CHAT_SET,          /* {% set a = b %} */
    CHAT_SET_BLOCK,    /* {% set a %} list, through the filters b (may be NULL) */
    CHAT_FILTER_BLOCK, /* {% filter b %} list */
    CHAT_DEFINE,       /* {% macro name(named) %} list */
    CHAT_CALL_BLOCK,   /* {% call(named) a %} list */
    CHAT_WITH,         /* {% with named %} list */
    CHAT_GENERATION,   /* {% generation %} list */
    CHAT_BREAK,
    CHAT_CONTINUE,
};

/* Names that Jinja2 binds for a macro or call block whose body reads them. */
enum chat_special_name { CHAT_VARARGS = 1, CHAT_KWARGS = 2, CHAT_CALLER = 4 };

struct chat_node {
    enum chat_node_kind kind;
    bool tuple;
    /* bits of enum chat_special_name: names that the body of a macro or call block reads */
    unsigned char specials;
    struct chat_place at;
    const char *name;
    struct chat_value value;
    struct chat_node *a, *b, *c, *d;
    struct chat_node *list, *named, *next;
};

struct hd_template {
    struct hd_arena arena;
    struct chat_node *body;
    bool has_generation, asks_date, writes_calls;
};

enum hd_status chat_fail(struct chat_place at, enum hd_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Splits the source into tokens; the last one has the kind CHAT_TOKEN_END. */
enum hd_status chat_lex(struct hd_arena *arena, const char *source, size_t source_bytes,
                        struct chat_token **ret_tokens);

struct chat_parser {
    struct hd_arena *arena;
    const struct chat_token *token; /* the next token to parse */
    int depth, depth_max;
    int loops;   /* number of for loops around the current position */
    int outputs; /* number of macros, call blocks and block sets around the current position */
    /* bits of enum chat_special_name: names that the body of the enclosing macro read before it set
     * them; names that it set */
    unsigned reads, sets;
    bool has_generation, asks_date, writes_calls;
};

enum hd_status chat_parse(struct chat_parser *p, struct chat_node **ret_body);

/* ---- parser_expression.c ---- */
bool chat_at_operator(const struct chat_parser *p, const char *text);
bool chat_at_name(const struct chat_parser *p, const char *text);
bool chat_take_operator(struct chat_parser *p, const char *text);
bool chat_take_name(struct chat_parser *p, const char *text);
enum hd_status chat_need_operator(struct chat_parser *p, const char *text);
enum hd_status chat_need_name(struct chat_parser *p, const char *text);
enum hd_status chat_unexpected(const struct chat_parser *p, const char *wanted);
struct chat_node *chat_new_node(struct chat_parser *p, enum chat_node_kind kind,
                                enum hd_status *ret_st);
enum hd_status chat_parse_expression(struct chat_parser *p, bool condition, struct chat_node **ret);
/* Parses one expression; or several with commas between them, which make a tuple. */
enum hd_status chat_parse_tuple(struct chat_parser *p, bool condition, struct chat_node **ret);
/* Returns HD_INVALID if a node of the list of named arguments or parameters has this name. */
enum hd_status chat_need_new_name(const struct chat_parser *p, const struct chat_node *list,
                                  const char *name);
enum hd_status chat_parse_arguments(struct chat_parser *p, struct chat_node *call);
/* Parses a chain of filters, `name(arguments) | name ...`. inner: expression that the first filter
 * gets; NULL: the text of a {% filter %} block. */
enum hd_status chat_parse_filter(struct chat_parser *p, struct chat_node *inner,
                                 struct chat_node **ret);
enum hd_status chat_parse_postfix(struct chat_parser *p, struct chat_node **node);
enum hd_status chat_parse_primary(struct chat_parser *p, struct chat_node **ret);
/* returns the bit of enum chat_special_name of a name; 0: an ordinary name */
unsigned chat_special(const char *name);

/* ---- a rendering ---- */

struct chat_binding {
    const char *name;
    struct chat_value value;
    struct chat_binding *next;
};

struct chat_scope {
    struct chat_binding *first;
    struct chat_scope *outer;
};

struct chat_run {
    const struct hd_template *template;
    const struct hd_template_input *input;
    struct hd_template_limits limits;
    struct hd_template_output *output;
    struct hd_arena arena;
    struct hd_text *out; /* destination of text: output->text, or the text of a macro */
    struct chat_scope *scope;
    struct chat_place at; /* position in the template for error messages */
    /* call expression of the current {% call %}, whose macro also gets `caller`; NULL: none */
    const struct chat_node *call;
    struct chat_value caller;
    int64_t steps;
    int depth, loops;
    enum { CHAT_GO_ON, CHAT_BREAK_LOOP, CHAT_CONTINUE_LOOP } signal;
};

struct chat_named {
    const char *name;
    struct chat_value value;
};

struct chat_args {
    const struct chat_value *items;
    size_t count;
    const struct chat_named *named;
    size_t named_count;
};

enum { CHAT_ARGS_MAX = 32 };

enum hd_status chat_wrong(struct chat_run *run, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
enum hd_status chat_unsupported(struct chat_run *run, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* returns HD_LIMIT with a message that memory is short */
enum hd_status chat_no_memory(struct chat_run *run);
enum hd_status chat_steps(struct chat_run *run, size_t count);

/* ---- run.c ---- */
enum hd_status chat_run_list(struct chat_run *run, const struct chat_node *list);
/* Runs a list of statements in a new scope, and puts the text that they write in *ret_text. */
enum hd_status chat_run_captured(struct chat_run *run, const struct chat_node *list,
                                 struct chat_value *ret_text);
enum hd_status chat_push(struct chat_run *run, struct chat_scope *outer);
enum hd_status chat_bind(struct chat_run *run, const char *name, struct chat_value value);
enum hd_status chat_iterate(struct chat_run *run, const struct chat_value *v,
                            const struct chat_value **ret_items, size_t *ret_count);

/* ---- eval.c ---- */
enum hd_status chat_eval(struct chat_run *run, const struct chat_node *node,
                         struct chat_value *ret);
enum hd_status chat_eval_filter(struct chat_run *run, const struct chat_node *node,
                                const struct chat_value *text, struct chat_value *ret);
/* ---- operators.c ---- */
enum hd_status chat_binary(struct chat_run *run, const char *op, const struct chat_value *a,
                           const struct chat_value *b, struct chat_value *ret);
enum hd_status chat_compare(struct chat_run *run, const char *op, const struct chat_value *a,
                            const struct chat_value *b, bool *ret);
enum hd_status chat_order(struct chat_run *run, const struct chat_value *a,
                          /* sets *ret to < 0, 0 or > 0: a is less than, equal to or greater than
                           * b */
                          const struct chat_value *b, int *ret);
enum hd_status chat_contains(struct chat_run *run, const struct chat_value *whole,
                             const struct chat_value *part, bool *ret);
/* ---- access.c ---- */
enum hd_status chat_attribute(struct chat_run *run, const struct chat_value *v, const char *name,
                              struct chat_value *ret);
enum hd_status chat_item(struct chat_run *run, const struct chat_value *v,
                         const struct chat_value *key, struct chat_value *ret);
enum hd_status chat_slice(struct chat_run *run, const struct chat_value *v,
                          const struct chat_value bounds[3], struct chat_value *ret);
/* ---- call.c ---- */
enum hd_status chat_call(struct chat_run *run, const struct chat_value *f,
                         const struct chat_args *args, struct chat_value *ret);
enum hd_status chat_macro_attribute(struct chat_run *run, const struct chat_macro *macro,
                                    const char *name, struct chat_value *ret);
bool chat_is_function(const char *name);
/* Binds the arguments of a call of `what` to the parameters in `names` (such as "width first");
 * missing arguments become undefined. */
enum hd_status chat_take(struct chat_run *run, const char *what, const struct chat_args *args,
                         const char *names, struct chat_value *ret_values);
enum hd_status chat_need_int(struct chat_run *run, const char *what, const struct chat_value *v,
                             int64_t *ret);
enum hd_status chat_need_string(struct chat_run *run, const char *what, const struct chat_value *v);
/* ---- filters.c, list_filters.c, methods.c, tests.c ---- */
enum hd_status chat_filter(struct chat_run *run, const char *name, const struct chat_value *v,
                           const struct chat_args *args, struct chat_value *ret);
enum hd_status chat_list_filter(struct chat_run *run, const char *name, const struct chat_value *v,
                                const struct chat_args *args, struct chat_value *ret, bool *found);
bool chat_has_method(enum chat_kind kind, const char *name);
/* returns whether Python has this method for the kind of value, but the interpreter does not */
bool chat_has_foreign_method(enum chat_kind kind, const char *name);
enum hd_status chat_call_method(struct chat_run *run, const struct chat_method *method,
                                const struct chat_args *args, struct chat_value *ret);
enum hd_status chat_test(struct chat_run *run, const char *name, const struct chat_value *v,
                         const struct chat_args *args, bool *ret);

/* ---- value.c ---- */
extern const struct chat_value CHAT_EMPTY; /* the empty string */
struct chat_value chat_bool(bool truth);
struct chat_value chat_int(int64_t integer);
struct chat_value chat_real(double real);
struct chat_value chat_undefined(const char *name);
/* Makes a CHAT_LAZY of a copy of the items. */
enum hd_status chat_lazy(struct chat_run *run, const struct chat_value *items, size_t count,
                         struct chat_value *ret);
struct chat_value chat_literal(const char *text); /* `text` must outlive the rendering */
struct chat_value chat_part(const char *text, size_t bytes);
enum hd_status chat_copy(struct chat_run *run, const char *text, size_t bytes,
                         struct chat_value *ret);
/* Moves the contents of `text` into a value, and frees `text`. */
enum hd_status chat_take_text(struct chat_run *run, struct hd_text *text, struct chat_value *ret);
enum hd_status chat_array(struct chat_run *run, size_t count, struct chat_value **ret_items);
struct chat_value chat_list(const struct chat_value *items, size_t count);
enum hd_status chat_new_dict(struct chat_run *run, struct chat_value *ret);
enum hd_status chat_dict_set(struct chat_run *run, struct chat_dict *dict, struct chat_value key,
                             struct chat_value value);
enum hd_status chat_dict_find(struct chat_run *run, const struct chat_dict *dict,
                              const struct chat_value *key, const struct chat_value **ret);
const struct chat_value *chat_dict_name(const struct chat_dict *dict, const char *name);
enum hd_status chat_from_json(struct chat_run *run, const struct hd_json *json,
                              struct chat_value *ret);
bool chat_true(const struct chat_value *v);
/* returns whether v is a number; a boolean is one */
bool chat_is_number(const struct chat_value *v);
double chat_to_real(const struct chat_value *v);
int64_t chat_to_int(const struct chat_value *v);
enum hd_status chat_equal(struct chat_run *run, const struct chat_value *a,
                          const struct chat_value *b, bool *ret);
bool chat_is(const struct chat_value *v, const char *text); /* whether v is this string */
const char *chat_kind_name(const struct chat_value *v);
/* repr.c, to_json.c: append to `out`; str is the form that {{ }} writes */
enum hd_status chat_add_str(struct chat_run *run, struct hd_text *out, const struct chat_value *v);
enum hd_status chat_add_repr(struct chat_run *run, struct hd_text *out, const struct chat_value *v);
enum hd_status chat_str(struct chat_run *run, const struct chat_value *v, struct chat_value *ret);
void chat_add_real(struct hd_text *out, double real);
enum hd_status chat_to_json(struct chat_run *run, const struct chat_value *v,
                            const struct chat_args *args, struct chat_value *ret);

/* ---- unicode.c ---- */
size_t chat_code_points(const char *text, size_t bytes);
/* returns the bytes of the first character of a text that must be valid UTF-8 */
size_t chat_code_point_bytes(const char *text);
uint32_t chat_code_point(const char *text);
size_t chat_put_code_point(uint32_t code, char ret_text[4]);
bool chat_is_space(uint32_t code);     /* returns what Python's str.isspace returns */
bool chat_is_printable(uint32_t code); /* like Python's str.isprintable, but unassigned characters
                                          count as printable */
size_t chat_skip_spaces(const char *text, size_t bytes);
/* returns the number of bytes without trailing white space */
size_t chat_trim_end(const char *text, size_t bytes);
enum chat_case { CHAT_UPPER, CHAT_LOWER, CHAT_TITLE, CHAT_CAPITALIZE, CHAT_TITLE_FILTER };
enum hd_status chat_change_case(struct chat_run *run, const struct chat_value *v,
                                enum chat_case how, struct chat_value *ret);

#endif
