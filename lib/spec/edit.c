/* edit: writes --set KEY=VALUE into the text of a job file.
 *
 * The text is parsed for the place of each value (yaml_node.begin), so that comments, order and
 * layout of the file stay. Each override is one replacement or insertion, after which the text is
 * parsed again. At the end the new text must mean what the old one means with its overrides
 * (override.c); a file for which it does not is refused. */
#include <string.h>

#include "base/json.h"
#include "spec_internal.h"

struct edit {
    const char *name, *origin; /* name of the job file; the override, for messages */
    struct hd_arena *arena;
    struct hd_text text;
};

/* Returns the bytes of the first `characters` characters of the text; libyaml does not count a byte
 * order mark. */
static size_t byte_of(const struct hd_text *text, size_t characters)
{
    size_t at = hd_text_starts(text->data, "\xef\xbb\xbf") ? 3 : 0;

    while (at < text->len_bytes && characters) {
        at++;
        while (at < text->len_bytes && ((unsigned char)text->data[at] & 0xc0) == 0x80)
            at++;
        characters--;
    }
    return at;
}

/* Replaces the bytes from `from` to `to` of the text. */
static void splice(struct edit *e, size_t from, size_t to, const struct hd_text *by)
{
    struct hd_text text = {0};

    hd_text_add_bytes(&text, e->text.data, from);
    hd_text_add_bytes(&text, by->data ? by->data : "", by->len_bytes);
    hd_text_add_bytes(&text, e->text.data + to, e->text.len_bytes - to);
    text.failed |= by->failed;
    hd_text_free(&e->text);
    e->text = text;
}

static enum hd_status parse_text(struct edit *e, struct yaml_node **ret_root)
{
    return e->text.failed ? hd_err(HD_NO_MEMORY, "no memory to change %s", e->name)
                          : spec_yaml_parse(e->name, NULL, e->text.data, e->text.len_bytes,
                                            e->arena, ret_root);
}

/* ---- values in one line ---- */

/* Returns whether a text without quotes keeps its meaning inside brackets. */
static bool is_plain_word(const struct yaml_node *node)
{
    return node->plain && *node->text && !strpbrk(node->text, ",[]{}\n\"'") &&
           !strstr(node->text, ": ") && !strstr(node->text, " #");
}

static void add_flow_value(const struct yaml_node *node, struct hd_text *out)
{
    struct hd_json_writer writer = {.out = out};
    const char *comma = "";

    if (node->kind == YAML_KIND_SCALAR && is_plain_word(node)) {
        hd_text_add(out, "%s", node->text);
    } else if (node->kind == YAML_KIND_SCALAR) {
        hd_json_add_string(&writer, NULL, node->text); /* YAML reads what JSON writes */
    } else {
        hd_text_add(out, node->kind == YAML_KIND_MAP ? "{" : "[");
        for (const struct yaml_node *c = node->first; c; c = c->next, comma = ", ") {
            hd_text_add(out, "%s", comma);
            if (node->kind == YAML_KIND_MAP)
                hd_text_add(out, "%s: ", c->key);
            add_flow_value(c, out);
        }
        hd_text_add(out, node->kind == YAML_KIND_MAP ? "}" : "]");
    }
}

/* ---- one override ---- */

/* Adds "a: {b: VALUE}" for the path a.b. */
static void add_entry(const char *path, const struct yaml_node *value, struct hd_text *out)
{
    int open = 0;

    for (const char *dot = strchr(path, '.'); dot; path = dot + 1, dot = strchr(path, '.'), open++)
        hd_text_add(out, "%.*s: {", (int)(dot - path), path);
    hd_text_add(out, "%s: ", path);
    add_flow_value(value, out);
    while (open--)
        hd_text_add(out, "}");
}

/* Inserts an entry as the last one of a map. */
static void insert_entry(struct edit *e, const struct yaml_node *map, const char *path,
                         const struct yaml_node *value)
{
    struct hd_text entry = {0};
    const size_t begin = byte_of(&e->text, map->begin);
    size_t at = byte_of(&e->text, map->last ? map->last->end : map->begin + 1), line = begin;

    if (map->flow) {
        hd_text_add(&entry, "%s", map->last ? ", " : "");
    } else {
        while (line && e->text.data[line - 1] != '\n')
            line--;
        at += strcspn(e->text.data + at, "\n");
        hd_text_add(&entry, "\n%*s", (int)(begin - line), "");
    }
    add_entry(path, value, &entry);
    splice(e, at, at, &entry);
    hd_text_free(&entry);
}

/* Appends to `text`, which replaces the bytes from `begin` to `end`, the blanks that keep a comment
 * behind them in its column, at least two. Returns the end of the blanks that are there; `end` if no
 * comment follows, or the value has several lines. */
static size_t keep_column(const struct edit *e, size_t begin, size_t end, struct hd_text *text)
{
    const char *rest = e->text.data + end;
    const size_t blanks = strspn(rest, " "), column = end - begin + blanks;

    if (blanks < 2 || rest[blanks] != '#' || memchr(e->text.data + begin, '\n', end - begin))
        return end;
    hd_text_add(text, "%*s", column > text->len_bytes + 2 ? (int)(column - text->len_bytes) : 2,
                "");
    return end + blanks;
}

static void replace_value(struct edit *e, const struct yaml_node *old,
                          const struct yaml_node *value)
{
    const size_t begin = byte_of(&e->text, old->begin);
    size_t end = byte_of(&e->text, old->end);
    struct hd_text text = {0};

    while (end > begin &&
           strchr(" \r\n", e->text.data[end - 1])) /* behind a text of several lines */
        end--;
    hd_text_add(&text, "%s", begin == end ? " " : ""); /* "lr:" has no value */
    add_flow_value(value, &text);
    end = keep_column(e, begin, end, &text);
    splice(e, begin, end, &text);
    hd_text_free(&text);
}

/* Writes the value of one path. The override has been applied to the tree before, so it is one that
 * the file can take. */
static enum hd_status write_value(struct edit *e, const char *path, const struct yaml_node *value)
{
    const char *rest = path;
    struct yaml_node *map = NULL;
    enum hd_status st = parse_text(e, &map);

    while (!st) {
        const size_t len = strcspn(rest, ".");
        const char *name = hd_arena_printf(e->arena, "%.*s", (int)len, rest);
        const char *group = hd_arena_printf(e->arena, "%.*s", (int)(rest - path) + (int)len, path);
        struct yaml_node *child = name && group ? hd_yaml_find(map, name) : NULL;

        if (!name || !group)
            return hd_err(HD_NO_MEMORY, "no memory to change %s", e->name);
        if (!child) {
            insert_entry(e, map, rest, value);
            return HD_OK;
        }
        if (!rest[len]) {
            replace_value(e, child, value);
            return HD_OK;
        }
        if (child->kind == YAML_KIND_SCALAR) { /* a short form: its group in full, then once more */
            const struct yaml_node *full = spec_yaml_expand(e->arena, group, child);

            if (!full)
                return hd_err(HD_NO_MEMORY, "no memory to change %s", e->name);
            replace_value(e, child, full);
            st = parse_text(e, &map);
            rest = path;
            continue;
        }
        map = child;
        rest += len + 1;
    }
    return st;
}

static enum hd_status write_override(struct edit *e, const struct hd_spec_source *source, size_t i)
{
    const char *override = source->overrides[i], *equals = strchr(override, '=');
    char origin[SPEC_ORIGIN_MAX];
    struct yaml_node *value = NULL;
    const char *path;
    enum hd_status st;

    spec_override_origin(source, i, origin);
    path = hd_arena_printf(e->arena, "%.*s", (int)(equals - override), override);
    if (!path)
        return hd_err(HD_NO_MEMORY, "no memory to change %s", e->name);
    st = spec_yaml_parse(e->name, origin, equals + 1, strlen(equals + 1), e->arena, &value);
    return st ? st : write_value(e, path, value);
}

/* ---- the proof ---- */

static bool means_the_same(const struct yaml_node *a, const struct yaml_node *b)
{
    const struct yaml_node *x = a->first, *y = b->first;

    if (a->kind != b->kind || (a->kind == YAML_KIND_SCALAR && strcmp(a->text, b->text) != 0))
        return false;
    for (; x && y; x = x->next, y = y->next)
        if ((a->kind == YAML_KIND_MAP && strcmp(x->key, y->key) != 0) || !means_the_same(x, y))
            return false;
    return !x && !y;
}

/* Checks keys and values of the text, each by itself. */
static enum hd_status check_only_keys(const struct hd_spec_source *source, struct hd_arena *arena)
{
    struct hd_spec_source keys = *source;
    struct hd_job *job = hd_arena_alloc(arena, sizeof *job);

    keys.only_keys = true;
    return job ? hd_spec_read_yaml(&keys, arena, job)
               : hd_err(HD_NO_MEMORY, "no memory to change %s", source->name);
}

static enum hd_status prove(struct edit *e, const struct hd_spec_source *source)
{
    const struct hd_spec_source changed = {.name = source->name,
                                           .folder = source->folder,
                                           .bytes = e->text.data,
                                           .size_bytes = e->text.len_bytes};
    struct yaml_node *wanted = NULL, *written = NULL;
    enum hd_status st =
        spec_yaml_parse(source->name, NULL, source->bytes, source->size_bytes, e->arena, &wanted);

    if (!st)
        st = spec_apply_overrides(source, source->name, e->arena, wanted);
    if (!st && (parse_text(e, &written) || !means_the_same(wanted, written) ||
                check_only_keys(&changed, e->arena)))
        st = hd_err(HD_INVALID,
                    "%s: cannot be written into %s as it is laid out; leave it out and change the "
                    "file by hand",
                    source->override_count == 1 ? source->overrides[0] : "these --set",
                    source->name);
    return st;
}

enum hd_status hd_spec_write_overrides(const struct hd_spec_source *source,
                                       struct hd_text *ret_text)
{
    struct hd_spec_source renamed = *source;
    struct hd_arena arena;
    struct edit e = {.name = source->name, .arena = &arena};
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = check_only_keys(source, &arena);
    if (!st)
        st = spec_rename_overrides(&renamed, &arena);
    hd_text_add_bytes(&e.text, source->bytes, source->size_bytes);
    for (size_t i = 0; i < source->override_count && !st; i++)
        st = write_override(&e, &renamed, i);
    if (!st)
        st = prove(&e, &renamed);
    if (!st)
        hd_text_add_bytes(ret_text, e.text.data, e.text.len_bytes);
    hd_text_free(&e.text);
    hd_arena_done(&arena);
    return st;
}
