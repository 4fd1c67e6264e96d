#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template_internal.h"

/* ---- errors and limits ---- */

enum hd_status chat_wrong(struct chat_run *run, const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return chat_fail(run->at, HD_INVALID, "%s", text);
}

enum hd_status chat_unsupported(struct chat_run *run, const char *fmt, ...)
{
    char text[HD_ERR_MAX];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return chat_fail(run->at, HD_UNSUPPORTED, "not supported: %s", text);
}

enum hd_status chat_no_memory(struct chat_run *run)
{
    return chat_fail(run->at, HD_LIMIT,
                     "the chat template needs more memory than there is, or than the %zu bytes "
                     "that one rendering may use",
                     run->limits.memory_bytes_max);
}

enum hd_status chat_steps(struct chat_run *run, size_t count)
{
    if (count > (size_t)(run->limits.steps_max - run->steps)) {
        run->steps = run->limits.steps_max;
        return chat_fail(run->at, HD_LIMIT, "the chat template takes more than %lld steps",
                         (long long)run->limits.steps_max);
    }
    run->steps += (int64_t)count;
    return HD_OK;
}

static enum hd_status enter_nested(struct chat_run *run)
{
    if (++run->depth > run->limits.depth_max)
        return chat_fail(run->at, HD_LIMIT, "the chat template nests deeper than %d",
                         run->limits.depth_max);
    return HD_OK;
}

static enum hd_status check_output(struct chat_run *run)
{
    if (run->out->failed)
        return chat_no_memory(run);
    if (run->out->len_bytes > run->limits.output_bytes_max)
        return chat_fail(run->at, HD_LIMIT, "the chat template writes more than %zu bytes",
                         run->limits.output_bytes_max);
    return HD_OK;
}

/* ---- scopes ---- */

enum hd_status chat_push(struct chat_run *run, struct chat_scope *outer)
{
    struct chat_scope *scope = hd_arena_alloc(&run->arena, sizeof *scope);

    if (!scope)
        return chat_no_memory(run);
    scope->outer = outer;
    run->scope = scope;
    return HD_OK;
}

enum hd_status chat_bind(struct chat_run *run, const char *name, struct chat_value value)
{
    struct chat_binding *b;

    for (b = run->scope->first; b; b = b->next)
        if (strcmp(b->name, name) == 0) {
            b->value = value;
            return HD_OK;
        }
    b = hd_arena_alloc(&run->arena, sizeof *b);
    if (!b)
        return chat_no_memory(run);
    *b = (struct chat_binding){.name = name, .value = value, .next = run->scope->first};
    run->scope->first = b;
    return HD_OK;
}

/* ---- assignment ---- */

static enum hd_status assign(struct chat_run *run, const struct chat_node *target,
                             struct chat_value value)
{
    const struct chat_value *items;
    struct chat_value object;
    enum hd_status st;
    size_t count;

    if (target->kind == CHAT_NAME)
        return chat_bind(run, target->name, value);
    if (target->kind == CHAT_ATTRIBUTE) {
        st = chat_eval(run, target->a, &object);
        if (st)
            return st;
        run->at = target->at;
        if (object.kind != CHAT_NAMESPACE)
            return chat_wrong(run, "an attribute can only be set on a namespace, not on a %s",
                              chat_kind_name(&object));
        if (target->name[0] == '_')
            return chat_wrong(run, "a namespace has no attribute that begins with _");
        return chat_dict_set(run, object.dict, chat_literal(target->name), value);
    }
    st = chat_iterate(run, &value, &items, &count);
    for (const struct chat_node *t = target->list; !st && t; t = t->next) {
        if (count-- == 0)
            return chat_wrong(run, "there are fewer values than variables to take them");
        st = assign(run, t, *items++);
    }
    if (!st && count)
        return chat_wrong(run, "there are more values than variables to take them");
    return st;
}

/* ---- statements ---- */

enum hd_status chat_iterate(struct chat_run *run, const struct chat_value *v,
                            const struct chat_value **ret_items, size_t *ret_count)
{
    struct chat_value *items;
    enum hd_status st;
    size_t n = 0;

    *ret_items = NULL;
    *ret_count = 0;
    if (v->kind == CHAT_UNDEFINED)
        return HD_OK;
    if (v->kind == CHAT_LAZY) {
        struct chat_value *taken = (struct chat_value *)(uintptr_t)&v->items[-1];

        if (taken->truth)
            return chat_unsupported(run, "going twice through a %s", chat_kind_name(v));
        *taken = chat_bool(true);
    }
    if (v->kind == CHAT_LIST || v->kind == CHAT_TUPLE || v->kind >= CHAT_RANGE) {
        *ret_items = v->items;
        *ret_count = v->count;
        return HD_OK;
    }
    if (v->kind == CHAT_DICT) {
        st = chat_array(run, (size_t)v->dict->count, &items);
        for (; !st && n < (size_t)v->dict->count; n++)
            items[n] = v->dict->pairs[n].key;
    } else if (v->kind == CHAT_STRING) {
        st = chat_array(run, chat_code_points(v->text, v->count), &items);
        for (size_t i = 0, size; !st && i < v->count; i += size) {
            size = chat_code_point_bytes(v->text + i);
            items[n++] = chat_part(v->text + i, size);
        }
    } else {
        return chat_wrong(run, "a %s has no items to go through", chat_kind_name(v));
    }
    if (!st) {
        *ret_items = items;
        *ret_count = n;
    }
    return st;
}

static enum hd_status run_if(struct chat_run *run, const struct chat_node *node)
{
    for (const struct chat_node *b = node->list; b; b = b->next) {
        struct chat_value condition = chat_bool(true);
        enum hd_status st = b->a ? chat_eval(run, b->a, &condition) : HD_OK;

        if (st)
            return st;
        if (chat_true(&condition))
            return chat_run_list(run, b->list);
    }
    return HD_OK;
}

/* Removes the items of a loop for which its condition is not true. */
static enum hd_status filter_loop_items(struct chat_run *run, const struct chat_node *node,
                                        struct chat_scope *outer, const struct chat_value **items,
                                        size_t *count)
{
    struct chat_value *chosen, is;
    enum hd_status st = chat_array(run, *count, &chosen);
    size_t n = 0;

    for (size_t i = 0; !st && i < *count; i++) {
        st = chat_push(run, outer);
        if (!st)
            st = assign(run, node->a, (*items)[i]);
        if (!st)
            st = chat_eval(run, node->c, &is);
        if (!st && chat_true(&is))
            chosen[n++] = (*items)[i];
    }
    run->scope = outer;
    if (!st) {
        *items = chosen;
        *count = n;
    }
    return st;
}

/* Runs one iteration of a loop, in its own scope: variables that the body sets end with it. */
static enum hd_status run_round(struct chat_run *run, const struct chat_node *node,
                                struct chat_scope *outer, const struct chat_loop *loop)
{
    enum hd_status st = chat_push(run, outer);

    if (!st)
        st = chat_bind(run, "loop", (struct chat_value){.kind = CHAT_LOOP, .loop = loop});
    if (!st)
        st = assign(run, node->a, loop->items[loop->index]);
    if (!st)
        st = chat_run_list(run, node->list);
    run->scope = outer;
    return st;
}

static enum hd_status run_for(struct chat_run *run, const struct chat_node *node)
{
    struct chat_scope *outer = run->scope;
    struct chat_value whole;
    const struct chat_value *items;
    struct chat_loop *loop;
    size_t count;
    enum hd_status st = chat_eval(run, node->b, &whole);

    if (st)
        return st;
    run->at = node->at;
    st = chat_iterate(run, &whole, &items, &count);
    if (!st && node->c)
        st = filter_loop_items(run, node, outer, &items, &count);
    if (st)
        return st;
    if (count == 0) {
        st = chat_push(run, outer);
        if (!st)
            st = chat_run_list(run, node->named);
        run->scope = outer;
        return st;
    }
    run->loops++;
    for (size_t i = 0; !st && i < count; i++) {
        loop = hd_arena_alloc(&run->arena, sizeof *loop);
        if (!loop)
            return chat_no_memory(run);
        *loop = (struct chat_loop){.items = items, .index = i, .count = count, .depth = run->loops};
        st = run_round(run, node, outer, loop);
        if (run->signal == CHAT_BREAK_LOOP) {
            run->signal = CHAT_GO_ON;
            break;
        }
        run->signal = CHAT_GO_ON;
    }
    run->loops--;
    return st;
}

enum hd_status chat_run_captured(struct chat_run *run, const struct chat_node *list,
                                 struct chat_value *ret_text)
{
    struct chat_scope *scope = run->scope;
    struct hd_text text = {0}, *out = run->out;
    const int loops = run->loops;
    enum hd_status st = chat_push(run, scope);

    run->out = &text;
    run->loops = 0;
    if (!st)
        st = chat_run_list(run, list);
    run->loops = loops;
    run->out = out;
    run->scope = scope;
    if (!st)
        return chat_take_text(run, &text, ret_text);
    hd_text_free(&text);
    return st;
}

static enum hd_status run_block(struct chat_run *run, const struct chat_node *node)
{
    struct chat_value text;
    enum hd_status st = chat_run_captured(run, node->list, &text);

    if (!st && node->b)
        st = chat_eval_filter(run, node->b, &text, &text);
    if (st)
        return st;
    if (node->kind == CHAT_SET_BLOCK)
        return assign(run, node->a, text);
    return chat_add_str(run, run->out, &text);
}

static enum hd_status run_define(struct chat_run *run, const struct chat_node *node,
                                 struct chat_value *ret)
{
    struct chat_macro *macro = hd_arena_alloc(&run->arena, sizeof *macro);

    if (!macro)
        return chat_no_memory(run);
    *macro = (struct chat_macro){.node = node, .scope = run->scope};
    *ret = (struct chat_value){.kind = CHAT_MACRO, .macro = macro};
    return HD_OK;
}

/* Runs {% call m(x) %}: m gets `caller` as a named argument, as in Jinja2. */
static enum hd_status run_call_block(struct chat_run *run, const struct chat_node *node)
{
    const struct chat_node *call = run->call;
    const struct chat_value outer = run->caller;
    struct chat_value text;
    enum hd_status st = run_define(run, node, &run->caller);

    run->call = node->a;
    if (!st)
        st = chat_eval(run, node->a, &text);
    run->call = call;
    run->caller = outer;
    return st ? st : chat_add_str(run, run->out, &text);
}

static enum hd_status run_with(struct chat_run *run, const struct chat_node *node)
{
    struct chat_scope *outer = run->scope, *inner;
    enum hd_status st = chat_push(run, outer);

    inner = run->scope;
    for (const struct chat_node *v = node->named; !st && v; v = v->next) {
        struct chat_value value;

        /* values are evaluated outside the new scope, so that none can use other variables of the
         * same {% with %} */
        run->scope = outer;
        st = chat_eval(run, v->a, &value);
        run->scope = inner;
        if (!st)
            st = chat_bind(run, v->name, value);
    }
    if (!st)
        st = chat_run_list(run, node->list);
    run->scope = outer;
    return st;
}

static enum hd_status add_span(struct chat_run *run, size_t begin, size_t end)
{
    struct hd_template_output *o = run->output;

    if (o->span_count == o->span_capacity) {
        const size_t capacity = o->span_capacity ? 2 * o->span_capacity : 16;
        struct hd_template_span *spans = realloc(o->spans, capacity * sizeof *spans);

        if (!spans)
            return chat_no_memory(run);
        o->spans = spans;
        o->span_capacity = capacity;
    }
    o->spans[o->span_count++] = (struct hd_template_span){begin, end};
    return HD_OK;
}

/* Runs {% generation %}; the parser guarantees that run->out is the text of the output here. */
static enum hd_status run_generation(struct chat_run *run, const struct chat_node *node)
{
    struct chat_scope *scope = run->scope;
    const size_t begin = run->out->len_bytes;
    enum hd_status st = chat_push(run, scope);

    if (!st)
        st = chat_run_list(run, node->list);
    run->scope = scope;
    return st ? st : add_span(run, begin, run->out->len_bytes);
}

static enum hd_status run_node(struct chat_run *run, const struct chat_node *node)
{
    struct chat_value value;
    enum hd_status st = HD_OK;

    switch (node->kind) {
    case CHAT_TEXT:
        return chat_add_str(run, run->out, &node->value);
    case CHAT_PRINT:
        st = chat_eval(run, node->a, &value);
        return st ? st : chat_add_str(run, run->out, &value);
    case CHAT_IF:
        return run_if(run, node);
    case CHAT_FOR:
        return run_for(run, node);
    case CHAT_SET:
        st = chat_eval(run, node->b, &value);
        return st ? st : assign(run, node->a, value);
    case CHAT_SET_BLOCK:
    case CHAT_FILTER_BLOCK:
        return run_block(run, node);
    case CHAT_DEFINE:
        st = run_define(run, node, &value);
        return st ? st : chat_bind(run, node->name, value);
    case CHAT_CALL_BLOCK:
        return run_call_block(run, node);
    case CHAT_WITH:
        return run_with(run, node);
    case CHAT_GENERATION:
        return run_generation(run, node);
    case CHAT_BREAK:
        run->signal = CHAT_BREAK_LOOP;
        return HD_OK;
    case CHAT_CONTINUE:
        run->signal = CHAT_CONTINUE_LOOP;
        return HD_OK;
    default:
        return chat_fail(node->at, HD_INTERNAL,
                         "the parser put an expression where a statement belongs");
    }
}

enum hd_status chat_run_list(struct chat_run *run, const struct chat_node *list)
{
    enum hd_status st = enter_nested(run);

    for (const struct chat_node *n = list; !st && n && run->signal == CHAT_GO_ON; n = n->next) {
        run->at = n->at;
        st = chat_steps(run, 1);
        if (!st)
            st = run_node(run, n);
        if (!st)
            st = check_output(run);
    }
    run->depth--;
    return st;
}

/* ---- a rendering ---- */

static enum hd_status bind_input(struct chat_run *run)
{
    enum hd_status st = chat_push(run, NULL);

    for (size_t i = 0; !st && i < run->input->count; i++) {
        struct chat_value value;

        st = chat_from_json(run, run->input->variables[i].value, &value);
        if (!st)
            st = chat_bind(run, run->input->variables[i].name, value);
    }
    return st ? st : chat_push(run, run->scope);
}

void hd_template_output_free(struct hd_template_output *output)
{
    hd_text_free(&output->text);
    free(output->spans);
    *output = (struct hd_template_output){0};
}

enum hd_status hd_template_render(const struct hd_template *t,
                                  const struct hd_template_input *input,
                                  const struct hd_template_limits *limits,
                                  struct hd_template_output *output)
{
    struct chat_run run = {.template = t, .input = input, .output = output, .at = {1, 1}};
    enum hd_status st;

    if (limits)
        run.limits = *limits;
    if (!run.limits.memory_bytes_max)
        run.limits.memory_bytes_max = (size_t)256 << 20;
    if (!run.limits.output_bytes_max)
        run.limits.output_bytes_max = (size_t)64 << 20;
    if (!run.limits.steps_max)
        run.limits.steps_max = 1 << 24;
    if (!run.limits.depth_max)
        run.limits.depth_max = 300;
    hd_text_clear(&output->text);
    output->span_count = 0;
    run.out = &output->text;
    hd_arena_init(&run.arena, run.limits.memory_bytes_max);
    st = bind_input(&run);
    if (!st)
        st = chat_run_list(&run, t->body);
    if (!st) {
        /* makes `data` a string even if the text is empty */
        hd_text_add_bytes(&output->text, "", 0);
        st = check_output(&run);
    }
    hd_arena_done(&run.arena);
    return st;
}
