/* template_internal: tokens, nodes and values of the interpreter of chat templates.
 *
 * lexer.c makes tokens of the source, parser.c and parser_expression.c a tree of nodes; run.c runs
 * statements, eval.c expressions, call.c functions and macros. value.c, repr.c and to_json.c hold
 * what a value is and how it is written; filters.c, list_filters.c, methods.c and tests.c are what
 * the names in a template mean; unicode.c knows characters.
 *
 * Used by: the files of lib/chat alone.
 */
#ifndef HD_CHAT_TEMPLATE_INTERNAL_H
#define HD_CHAT_TEMPLATE_INTERNAL_H

#include "base/arena.h"
#include "chat/template.h"

struct chat_place {
    int line, column; /* from 1; a column counts code points */
};

/* ---- values ---- */

enum chat_kind {
    CHAT_UNDEFINED, /* text: the name that has no value */
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_REAL,
    CHAT_STRING, /* text, count bytes, not NUL-terminated */
    CHAT_LIST,   /* items, count */
    CHAT_TUPLE,
    CHAT_DICT,
    CHAT_NAMESPACE, /* dict */
    CHAT_LOOP,
    CHAT_MACRO,
    CHAT_METHOD,
    CHAT_FUNCTION, /* text: its name */
};

struct chat_value {
    enum chat_kind kind;
    bool safe;    /* a string behind the filter `safe`: `+` escapes the other string */
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

struct chat_dict { /* in order of insertion */
    struct chat_pair *pairs;
    int count, capacity;
};

struct chat_loop {
    const struct chat_value *items;
    size_t index, count;
    int depth;
};

struct chat_macro {
    const struct chat_node *node; /* a macro or a call block */
    struct chat_scope *scope;     /* where it was defined */
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
    const char *text; /* NUL-terminated: the text, the name, the decoded string, the operator */
    size_t bytes;
    int64_t integer;
    double real;
};

enum chat_node_kind {
    /* expressions */
    CHAT_CONSTANT,
    CHAT_NAME,      /* name */
    CHAT_ITEMS,     /* list; tuple says which */
    CHAT_MAPPING,   /* list: pairs a: b */
    CHAT_ATTRIBUTE, /* a.name */
    CHAT_ITEM,      /* a[b] */
    CHAT_SLICE,     /* a[first:second:third], each may be NULL: b, c, d */
    CHAT_CALL,      /* a(list, named) */
    CHAT_FILTER,    /* a | name(list, named); a NULL: the text of the block */
    CHAT_TEST,      /* a is name(list) */
    CHAT_NOT,       /* a */
    CHAT_NEGATIVE,  /* -a */
    CHAT_POSITIVE,  /* +a */
    CHAT_AND,       /* a, b */
    CHAT_OR,        /* a, b */
    CHAT_BINARY,    /* a name b: + - * / // % ** */
    CHAT_CONCAT,    /* list */
    CHAT_COMPARE,   /* a, then each of list: name, a */
    CHAT_CONDITION, /* b if a else c, which may be NULL */
    CHAT_ARGUMENT,  /* name = a: in `named` and in the parameters of a macro */
    /* statements */
    CHAT_TEXT,  /* value */
    CHAT_PRINT, /* a */
    CHAT_IF,    /* list: branches, each a (NULL: else) and list */
    CHAT_BRANCH,
    CHAT_FOR,          /* for a in b if c: list, else named */
    CHAT_SET,          /* a = b */
    CHAT_SET_BLOCK,    /* a = list, through the filters b, which may be NULL */
    CHAT_FILTER_BLOCK, /* list through b */
    CHAT_DEFINE,       /* macro name(named): list */
    CHAT_CALL_BLOCK,   /* call(named) a: list */
    CHAT_WITH,         /* named: arguments; list */
    CHAT_GENERATION,   /* list */
    CHAT_BREAK,
    CHAT_CONTINUE,
};

/* Names that Jinja2 gives a macro or a call block whose body reads them. */
enum chat_special_name { CHAT_VARARGS = 1, CHAT_KWARGS = 2, CHAT_CALLER = 4 };

struct chat_node {
    enum chat_node_kind kind;
    bool tuple;
    unsigned char specials; /* macro, call block: those that it gets (enum chat_special_name) */
    struct chat_place at;
    const char *name;
    struct chat_value value;
    struct chat_node *a, *b, *c, *d;
    struct chat_node *list, *named, *next;
};

struct hd_template {
    struct hd_arena arena;
    struct chat_node *body;
    bool has_generation, asks_date;
};

enum hd_status chat_fail(struct chat_place at, enum hd_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The tokens of the source, the last of kind CHAT_TOKEN_END. */
enum hd_status chat_lex(struct hd_arena *arena, const char *source, size_t source_bytes,
                        struct chat_token **ret_tokens);

struct chat_parser {
    struct hd_arena *arena;
    const struct chat_token *token; /* the next one */
    int depth, depth_max;
    int loops;   /* for loops around this place */
    int outputs; /* macros, call blocks and block sets around this place */
    /* names (enum chat_special_name) that the body of the macro around this place has read before it set
     * them; that it has set */
    unsigned reads, sets;
    bool has_generation, asks_date;
};

enum hd_status chat_parse(struct chat_parser *p, struct chat_node **ret_body);

/* parser_expression.c */
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
/* One expression, or several with commas between them: a tuple. */
enum hd_status chat_parse_tuple(struct chat_parser *p, bool condition, struct chat_node **ret);
enum hd_status chat_parse_arguments(struct chat_parser *p, struct chat_node *call);
/* `name(arguments) | name ...`; `inner` is what the first one filters, NULL for a block. */
enum hd_status chat_parse_filter(struct chat_parser *p, struct chat_node *inner,
                                 struct chat_node **ret);
enum hd_status chat_parse_postfix(struct chat_parser *p, struct chat_node **node);
enum hd_status chat_parse_primary(struct chat_parser *p, struct chat_node **ret);
unsigned chat_special(const char *name); /* a bit of enum chat_special_name, or 0 */

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
    struct hd_text *out; /* where text goes: output->text, or that of a macro */
    struct chat_scope *scope;
    struct chat_place at;         /* for messages */
    const struct chat_node *call; /* the call of a {% call %}, which gets `caller`, too */
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
enum hd_status chat_no_memory(struct chat_run *run); /* HD_LIMIT where the limit is the reason */
enum hd_status chat_steps(struct chat_run *run, size_t count);

/* run.c */
enum hd_status chat_run_list(struct chat_run *run, const struct chat_node *list);
/* Runs the list in a scope of its own, with its text in *ret_text. */
enum hd_status chat_run_captured(struct chat_run *run, const struct chat_node *list,
                                 struct chat_value *ret_text);
enum hd_status chat_push(struct chat_run *run, struct chat_scope *outer);
enum hd_status chat_bind(struct chat_run *run, const char *name, struct chat_value value);
enum hd_status chat_iterate(struct chat_run *run, const struct chat_value *v,
                            const struct chat_value **ret_items, size_t *ret_count);

/* eval.c */
enum hd_status chat_eval(struct chat_run *run, const struct chat_node *node,
                         struct chat_value *ret);
enum hd_status chat_eval_filter(struct chat_run *run, const struct chat_node *node,
                                const struct chat_value *text, struct chat_value *ret);
/* operators.c */
enum hd_status chat_binary(struct chat_run *run, const char *op, const struct chat_value *a,
                           const struct chat_value *b, struct chat_value *ret);
enum hd_status chat_compare(struct chat_run *run, const char *op, const struct chat_value *a,
                            const struct chat_value *b, bool *ret);
enum hd_status chat_order(struct chat_run *run, const struct chat_value *a,
                          const struct chat_value *b, int *ret); /* < 0, 0, > 0 */
enum hd_status chat_contains(struct chat_run *run, const struct chat_value *whole,
                             const struct chat_value *part, bool *ret);
/* access.c */
enum hd_status chat_attribute(struct chat_run *run, const struct chat_value *v, const char *name,
                              struct chat_value *ret);
enum hd_status chat_item(struct chat_run *run, const struct chat_value *v,
                         const struct chat_value *key, struct chat_value *ret);
enum hd_status chat_slice(struct chat_run *run, const struct chat_value *v,
                          const struct chat_value bounds[3], struct chat_value *ret);
/* call.c */
enum hd_status chat_call(struct chat_run *run, const struct chat_value *f,
                         const struct chat_args *args, struct chat_value *ret);
enum hd_status chat_macro_attribute(struct chat_run *run, const struct chat_macro *macro,
                                    const char *name, struct chat_value *ret);
bool chat_is_function(const char *name);
/* The arguments of `what` by the names in `names` ("width first"); those that are not given are
 * undefined. */
enum hd_status chat_take(struct chat_run *run, const char *what, const struct chat_args *args,
                         const char *names, struct chat_value *ret_values);
enum hd_status chat_need_int(struct chat_run *run, const char *what, const struct chat_value *v,
                             int64_t *ret);
enum hd_status chat_need_string(struct chat_run *run, const char *what, const struct chat_value *v);
/* filters.c, list_filters.c, methods.c, tests.c */
enum hd_status chat_filter(struct chat_run *run, const char *name, const struct chat_value *v,
                           const struct chat_args *args, struct chat_value *ret);
enum hd_status chat_list_filter(struct chat_run *run, const char *name, const struct chat_value *v,
                                const struct chat_args *args, struct chat_value *ret, bool *found);
bool chat_has_method(enum chat_kind kind, const char *name);
bool chat_has_foreign_method(enum chat_kind kind, const char *name); /* Python has it, we do not */
enum hd_status chat_call_method(struct chat_run *run, const struct chat_method *method,
                                const struct chat_args *args, struct chat_value *ret);
enum hd_status chat_test(struct chat_run *run, const char *name, const struct chat_value *v,
                         const struct chat_args *args, bool *ret);

/* value.c */
extern const struct chat_value CHAT_EMPTY; /* "" */
struct chat_value chat_bool(bool truth);
struct chat_value chat_int(int64_t integer);
struct chat_value chat_real(double real);
struct chat_value chat_undefined(const char *name);
struct chat_value chat_literal(const char *text); /* which must outlive the rendering */
struct chat_value chat_part(const char *text, size_t bytes);
enum hd_status chat_copy(struct chat_run *run, const char *text, size_t bytes,
                         struct chat_value *ret);
/* Takes what `text` holds and frees it. */
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
bool chat_is_number(const struct chat_value *v); /* also true and false */
double chat_to_real(const struct chat_value *v);
int64_t chat_to_int(const struct chat_value *v);
enum hd_status chat_equal(struct chat_run *run, const struct chat_value *a,
                          const struct chat_value *b, bool *ret);
bool chat_is(const struct chat_value *v, const char *text); /* this string */
const char *chat_kind_name(const struct chat_value *v);
/* repr.c, to_json.c: appended to `out`; str is what {{ }} writes */
enum hd_status chat_add_str(struct chat_run *run, struct hd_text *out, const struct chat_value *v);
enum hd_status chat_add_repr(struct chat_run *run, struct hd_text *out, const struct chat_value *v);
enum hd_status chat_str(struct chat_run *run, const struct chat_value *v, struct chat_value *ret);
void chat_add_real(struct hd_text *out, double real);
enum hd_status chat_to_json(struct chat_run *run, const struct chat_value *v,
                            const struct chat_args *args, struct chat_value *ret);

/* unicode.c */
size_t chat_code_points(const char *text, size_t bytes);
size_t chat_code_point_bytes(const char *text); /* of the character at `text`, valid UTF-8 */
uint32_t chat_code_point(const char *text);
size_t chat_put_code_point(uint32_t code, char ret_text[4]);
bool chat_is_space(uint32_t code);     /* Python's str.isspace */
bool chat_is_printable(uint32_t code); /* Python's str.isprintable, without unassigned ones */
size_t chat_skip_spaces(const char *text, size_t bytes);
size_t chat_trim_end(const char *text, size_t bytes); /* the bytes that are left */
enum chat_case { CHAT_UPPER, CHAT_LOWER, CHAT_TITLE, CHAT_CAPITALIZE, CHAT_TITLE_FILTER };
enum hd_status chat_change_case(struct chat_run *run, const struct chat_value *v,
                                enum chat_case how, struct chat_value *ret);

#endif
