#include "yaml/yaml.h"

#include <stdio.h>
#include <string.h>

#include <yaml.h>

#include "base/text.h"

struct yaml_parse {
    yaml_parser_t yaml;
    const char *name, *origin;
    struct hd_arena *arena;
};

static enum hd_status fail(const struct yaml_parse *p, size_t line, const char *what)
{
    if (p->origin)
        return hd_err(HD_INVALID, "%s: %s", p->origin, what);
    return hd_err(HD_INVALID, "%s:%zu: %s", p->name, line + 1, what);
}

static enum hd_status no_memory(const struct yaml_parse *p)
{
    return hd_err(HD_NO_MEMORY, "no memory to read %s", p->name);
}

/* Makes the error message of libyaml, in one line. */
static enum hd_status fail_syntax(const struct yaml_parse *p)
{
    char what[256];
    const char *context = p->yaml.context, *problem = p->yaml.problem;
    size_t line = p->yaml.problem_mark.line;
    int n;

    if (p->yaml.error == YAML_MEMORY_ERROR)
        return no_memory(p);
    if (p->yaml.error == YAML_READER_ERROR)
        line = p->yaml.mark.line;
    if (strcmp(problem ? problem : "", "found character that cannot start any token") == 0)
        problem = "a line may not be indented by tabs, and no value may begin with @, ` or %";
    if (strstr(context ? context : "", "an alias") || strstr(context ? context : "", "an anchor"))
        problem = "a value that begins with * or & must be in quotes";
    if (strcmp(problem ? problem : "", "mapping values are not allowed in this context") == 0)
        problem =
            "a second ': ' in a line; put the value in quotes, or the key on a line of its own";
    n = snprintf(what, sizeof what, "not YAML: %s%s%s", problem ? problem : "cannot be understood",
                 context ? ", " : "", context ? context : "");
    if (context && n > 0 && (size_t)n < sizeof what && p->yaml.context_mark.line != line)
        (void)snprintf(what + n, sizeof what - (size_t)n, " that begins in line %zu",
                       p->yaml.context_mark.line + 1);
    return fail(p, line, what);
}

struct yaml_node *hd_yaml_new(struct hd_arena *arena, enum yaml_kind kind, const char *key,
                              int line, const char *origin)
{
    struct yaml_node *node = hd_arena_alloc(arena, sizeof *node);

    if (node)
        *node = (struct yaml_node){.kind = kind, .line = line, .origin = origin, .key = key};
    return node;
}

void hd_yaml_append(struct yaml_node *parent, struct yaml_node *child)
{
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
}

struct yaml_node *hd_yaml_find(const struct yaml_node *map, const char *key)
{
    if (map->kind != YAML_KIND_MAP)
        return NULL;
    for (struct yaml_node *node = map->first; node; node = node->next)
        if (strcmp(node->key, key) == 0)
            return node;
    return NULL;
}

static enum hd_status next_event(struct yaml_parse *p, yaml_event_t *ret_event)
{
    return yaml_parser_parse(&p->yaml, ret_event) ? HD_OK : fail_syntax(p);
}

static bool has_anchor_or_tag(const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return e->data.scalar.anchor || e->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return e->data.sequence_start.anchor || e->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return e->data.mapping_start.anchor || e->data.mapping_start.tag;
    default:
        return false;
    }
}

static enum hd_status copy_scalar(struct yaml_parse *p, const yaml_event_t *e,
                                  const char **ret_text)
{
    const char *value = (const char *)e->data.scalar.value;

    if (memchr(value, '\0', e->data.scalar.length))
        return fail(p, e->start_mark.line, "a text holds the character NUL; remove it");
    *ret_text = hd_arena_strdup(p->arena, value);
    return *ret_text ? HD_OK : no_memory(p);
}

/* Adds the node that begins with this event; if it is a list or a map, later events become its
 * children. */
static enum hd_status begin_node(struct yaml_parse *p, const yaml_event_t *e, const char *key,
                                 struct yaml_node **ret_node)
{
    enum yaml_kind kind = e->type == YAML_SCALAR_EVENT           ? YAML_KIND_SCALAR
                          : e->type == YAML_SEQUENCE_START_EVENT ? YAML_KIND_LIST
                                                                 : YAML_KIND_MAP;
    struct yaml_node *node;

    if (e->type == YAML_ALIAS_EVENT)
        return fail(p, e->start_mark.line,
                    "aliases (*name) are not allowed; write the value again");
    if (has_anchor_or_tag(e))
        return fail(p, e->start_mark.line,
                    "anchors (&name) and tags (!type) are not allowed; write the plain value");
    node = hd_yaml_new(p->arena, kind, key, p->origin ? 0 : (int)e->start_mark.line + 1, p->origin);
    if (!node)
        return no_memory(p);
    *ret_node = node;
    node->begin = e->start_mark.index;
    node->end = e->end_mark.index;
    node->flow =
        (kind == YAML_KIND_LIST && e->data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE) ||
        (kind == YAML_KIND_MAP && e->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE);
    if (kind != YAML_KIND_SCALAR)
        return HD_OK;
    node->plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return copy_scalar(p, e, &node->text);
}

static enum hd_status read_key(struct yaml_parse *p, const yaml_event_t *e, const char **ret_key)
{
    if (e->type != YAML_SCALAR_EVENT || has_anchor_or_tag(e))
        return fail(p, e->start_mark.line, "a key must be a plain word");
    return copy_scalar(p, e, ret_key);
}

/* Sets where a list or map ends, by the event of its end. libyaml ends one without brackets only in
 * front of what follows, behind comments and empty lines. */
static void end_node(const yaml_event_t *e, struct yaml_node *node)
{
    if (node->flow)
        node->end = e->end_mark.index;
    else if (node->last)
        node->end = node->last->end;
}

static bool ends_collection(const yaml_event_t *e)
{
    return e->type == YAML_SEQUENCE_END_EVENT || e->type == YAML_MAPPING_END_EVENT;
}

/* Reads the tree of one document, without recursion; the stack limits the depth of the file. */
static enum hd_status read_tree(struct yaml_parse *p, struct yaml_node **ret_root)
{
    struct yaml_node *stack[HD_YAML_DEPTH_MAX], *root = NULL, *node = NULL;
    const char *key = NULL;
    enum hd_status st;
    int depth = 0, key_line = 0;

    do {
        yaml_event_t e;

        st = next_event(p, &e);
        if (st)
            return st;
        if (ends_collection(&e)) {
            end_node(&e, stack[--depth]);
        } else if (depth && stack[depth - 1]->kind == YAML_KIND_MAP && !key) {
            st = read_key(p, &e, &key);
            key_line = p->origin ? 0 : (int)e.start_mark.line + 1;
        } else {
            st = begin_node(p, &e, key, &node);
            if (!st && node->kind != YAML_KIND_SCALAR && depth == HD_YAML_DEPTH_MAX)
                st = fail(p, e.start_mark.line, "nested deeper than 16 levels");
            if (!st) {
                if (key)
                    node->line = key_line; /* the key's line; the value may begin in a later one */
                if (depth)
                    hd_yaml_append(stack[depth - 1], node);
                else
                    root = node;
                if (node->kind != YAML_KIND_SCALAR)
                    stack[depth++] = node;
                key = NULL;
            }
        }
        yaml_event_delete(&e);
    } while (!st && depth);
    if (!st)
        *ret_root = root;
    return st;
}

/* Takes the next event, which must be of `type`; otherwise fails with the message `otherwise`. */
static enum hd_status expect(struct yaml_parse *p, yaml_event_type_t type, const char *otherwise)
{
    enum hd_status st;
    yaml_event_t e;

    st = next_event(p, &e);
    if (st)
        return st;
    if (e.type != type)
        st = fail(p, e.start_mark.line, otherwise);
    yaml_event_delete(&e);
    return st;
}

/* Returns the line, from 0, of the first byte that is not UTF-8. */
static size_t line_of_bad_byte(const unsigned char *bytes, size_t size_bytes)
{
    size_t line = 0, begin = 0;

    for (size_t i = 0; i <= size_bytes; i++) {
        if (i < size_bytes && bytes[i] != '\n')
            continue;
        if (!hd_text_is_utf8(bytes + begin, i - begin))
            return line;
        begin = i + 1;
        line++;
    }
    return line;
}

/* Reads the document's tree; the stream must have begun. */
static enum hd_status read_document(struct yaml_parse *p, const struct hd_yaml_source *source,
                                    struct yaml_node **ret_root)
{
    char second[128];
    yaml_event_t e;
    yaml_event_type_t type;
    size_t line;
    enum hd_status st = next_event(p, &e);

    if (st)
        return st;
    type = e.type;
    line = e.start_mark.line;
    yaml_event_delete(&e);
    if (type == YAML_STREAM_END_EVENT && !source->empty) {
        *ret_root = NULL;
        return HD_OK;
    }
    if (type != YAML_DOCUMENT_START_EVENT)
        return fail(p, line, source->empty ? source->empty : "not YAML");
    st = read_tree(p, ret_root);
    if (!st)
        st = expect(p, YAML_DOCUMENT_END_EVENT, "not YAML");
    (void)snprintf(second, sizeof second, "a second document begins; a %s is one document",
                   source->kind);
    return st ? st : expect(p, YAML_STREAM_END_EVENT, second);
}

enum hd_status hd_yaml_parse(const struct hd_yaml_source *source, struct hd_arena *arena,
                             struct yaml_node **ret_root)
{
    struct yaml_parse p = {.name = source->name, .origin = source->origin, .arena = arena};
    enum hd_status st;

    if (source->size_bytes > HD_YAML_BYTES_MAX)
        return hd_err(HD_INVALID, "%s: larger than 256 KiB, the limit of a %s",
                      source->origin ? source->origin : source->name, source->kind);
    if (!hd_text_is_utf8(source->bytes, source->size_bytes))
        return fail(&p, line_of_bad_byte(source->bytes, source->size_bytes),
                    "not UTF-8 text; save the file as UTF-8");
    if (!yaml_parser_initialize(&p.yaml))
        return no_memory(&p);
    /* libyaml detects other encodings by a byte order mark; such a mark is not UTF-8 and was
     * refused above */
    yaml_parser_set_input_string(&p.yaml, source->bytes, source->size_bytes);
    st = expect(&p, YAML_STREAM_START_EVENT, "not YAML");
    if (!st)
        st = read_document(&p, source, ret_root);
    yaml_parser_delete(&p.yaml);
    return st;
}
