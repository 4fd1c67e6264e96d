#include <string.h>

#include "chat/template_internal.h"

static const char STRING_METHODS[] =
    " strip lstrip rstrip split rsplit splitlines startswith endswith replace upper lower title "
    "capitalize find rfind count join format removeprefix removesuffix isdigit isspace ";
static const char DICT_METHODS[] = " items keys values get ";
/* Further string methods of Python, which are not supported. */
static const char OTHER_STRING_METHODS[] =
    " casefold center encode expandtabs format_map index isalnum isalpha isascii isdecimal "
    "isidentifier islower isnumeric isprintable istitle isupper ljust maketrans partition rindex "
    "rjust rpartition swapcase translate zfill ";
static const char OTHER_LIST_METHODS[] =
    " append clear copy count extend index insert pop remove reverse sort ";
static const char OTHER_DICT_METHODS[] = " clear copy fromkeys pop popitem setdefault update ";

static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = words; n && (at = strstr(at, word)); at++)
        if (at[-1] == ' ' && at[n] == ' ')
            return true;
    return false;
}

bool chat_has_method(enum chat_kind kind, const char *name)
{
    if (kind == CHAT_STRING)
        return has_word(STRING_METHODS, name);
    return kind == CHAT_DICT ? has_word(DICT_METHODS, name)
                             : kind == CHAT_LOOP && strcmp(name, "cycle") == 0;
}

bool chat_has_foreign_method(enum chat_kind kind, const char *name)
{
    switch (kind) {
    case CHAT_STRING:
        return has_word(OTHER_STRING_METHODS, name);
    case CHAT_LIST:
        return has_word(OTHER_LIST_METHODS, name);
    case CHAT_DICT:
        return has_word(OTHER_DICT_METHODS, name);
    default:
        return false;
    }
}

/* ---- strings ---- */

static bool is_among(const struct chat_value *set, const char *p)
{
    if (set->kind != CHAT_STRING)
        return chat_is_space(chat_code_point(p));
    for (size_t i = 0; i < set->count; i += chat_code_point_bytes(set->text + i))
        if (chat_code_point(set->text + i) == chat_code_point(p))
            return true;
    return false;
}

static enum hd_status strip(struct chat_run *run, const struct chat_method *m,
                            const struct chat_args *args, struct chat_value *ret)
{
    size_t from = 0, to = m->self.count;
    struct chat_value set;
    enum hd_status st = chat_take(run, m->name, args, "chars", &set);

    if (!st && set.kind != CHAT_UNDEFINED && set.kind != CHAT_NONE)
        st = chat_need_string(run, m->name, &set);
    if (!st)
        st = chat_steps(run, to / 16);
    if (st)
        return st;
    while (*m->name != 'r' && from < to && is_among(&set, m->self.text + from))
        from += chat_code_point_bytes(m->self.text + from);
    while (*m->name != 'l' && from < to) {
        size_t at = to - 1;

        while (((unsigned char)m->self.text[at] & 0xC0) == 0x80)
            at--;
        if (!is_among(&set, m->self.text + at))
            break;
        to = at;
    }
    *ret = chat_part(m->self.text + from, to - from);
    return HD_OK;
}

/* Returns the first offset >= `from` at which `part` occurs in the text; the text's size if there
 * is none. */
static size_t find(const struct chat_value *text, size_t from, const struct chat_value *part)
{
    const char *found = part->count
                            ? memmem(text->text + from, text->count - from, part->text, part->count)
                            : text->text + from;

    return found ? (size_t)(found - text->text) : text->count;
}

static size_t count_of(const struct chat_value *text, const struct chat_value *part)
{
    size_t n = 0;

    for (size_t at = find(text, 0, part); at < text->count; n++)
        at = find(text, at + part->count, part);
    return n;
}

/* Makes the list of a text's parts between white space, split at most `most` times; the rest stays
 * whole. */
static enum hd_status split_words(struct chat_run *run, const struct chat_value *text, int64_t most,
                                  struct chat_value *ret)
{
    struct chat_value *items;
    size_t n = 0, at = 0;
    enum hd_status st = chat_array(run, text->count / 2 + 1, &items);

    while (!st) {
        size_t end;

        at += chat_skip_spaces(text->text + at, text->count - at);
        if (at == text->count)
            break;
        for (end = at; end < text->count && !chat_is_space(chat_code_point(text->text + end));)
            end += chat_code_point_bytes(text->text + end);
        if (most >= 0 && n == (size_t)most) {
            end = at + chat_trim_end(text->text + at, text->count - at);
            items[n++] = chat_part(text->text + at, end - at);
            break;
        }
        items[n++] = chat_part(text->text + at, end - at);
        at = end;
    }
    if (!st)
        *ret = chat_list(items, n);
    return st;
}

static enum hd_status split(struct chat_run *run, const struct chat_method *m,
                            const struct chat_args *args, struct chat_value *ret)
{
    const struct chat_value *text = &m->self;
    struct chat_value a[2], *items;
    size_t parts, skip = 0, n = 0, at = 0;
    int64_t most = -1;
    enum hd_status st = chat_take(run, m->name, args, "sep maxsplit", a);

    if (!st && a[1].kind != CHAT_UNDEFINED)
        st = chat_need_int(run, m->name, &a[1], &most);
    if (st)
        return st;
    if (a[0].kind == CHAT_UNDEFINED || a[0].kind == CHAT_NONE) {
        if (*m->name == 'r' && most >= 0)
            return chat_unsupported(run, "rsplit at white space with a limit");
        return split_words(run, text, most, ret);
    }
    st = chat_need_string(run, m->name, &a[0]);
    if (!st && a[0].count == 0)
        st = chat_wrong(run, "%s at an empty string", m->name);
    if (st)
        return st;
    parts = count_of(text, &a[0]) + 1;
    if (most >= 0 && (size_t)most + 1 < parts) {
        if (*m->name == 'r')
            skip = parts - (size_t)most - 1;
        parts = (size_t)most + 1;
    }
    st = chat_array(run, parts + text->count / 64, &items);
    while (!st && n + 1 < parts) {
        size_t end = find(text, at, &a[0]);

        for (; skip > 0; skip--)
            end = find(text, end + a[0].count, &a[0]);
        items[n++] = chat_part(text->text + at, end - at);
        at = end + a[0].count;
    }
    if (st)
        return st;
    items[n++] = chat_part(text->text + at, text->count - at);
    *ret = chat_list(items, n);
    return HD_OK;
}

static enum hd_status split_lines(struct chat_run *run, const struct chat_value *text,
                                  struct chat_value *ret)
{
    struct chat_value *items;
    size_t n = 0, from = 0;
    enum hd_status st = chat_array(run, text->count + 1, &items);

    for (size_t i = 0; !st && i < text->count;) {
        const uint32_t c = chat_code_point(text->text + i);
        const size_t begin = i;

        i += chat_code_point_bytes(text->text + i);
        if (!((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
              c == 0x2029))
            continue;
        if (c == '\r' && i < text->count && text->text[i] == '\n')
            i++;
        items[n++] = chat_part(text->text + from, begin - from);
        from = i;
    }
    if (!st && from < text->count)
        items[n++] = chat_part(text->text + from, text->count - from);
    if (!st)
        *ret = chat_list(items, n);
    return st;
}

static bool at_edge(const struct chat_value *text, const struct chat_value *part, bool start)
{
    return part->count <= text->count &&
           memcmp(text->text + (start ? 0 : text->count - part->count), part->text, part->count) ==
               0;
}

static enum hd_status edge(struct chat_run *run, const struct chat_method *m,
                           const struct chat_args *args, struct chat_value *ret)
{
    const bool start = strcmp(m->name, "startswith") == 0 || strcmp(m->name, "removeprefix") == 0;
    const bool removes = *m->name == 'r';
    struct chat_value part;
    const struct chat_value *parts = &part;
    size_t count = 1;
    enum hd_status st = chat_take(run, m->name, args, "prefix", &part);
    bool is = false;

    if (!st && part.kind == CHAT_TUPLE && !removes) {
        parts = part.items;
        count = part.count;
    }
    for (size_t i = 0; !st && i < count; i++) {
        st = chat_need_string(run, m->name, &parts[i]);
        is |= !st && at_edge(&m->self, &parts[i], start);
    }
    *ret = chat_bool(is);
    if (!st && removes) {
        *ret = m->self;
        if (is)
            *ret = chat_part(m->self.text + (start ? part.count : 0), m->self.count - part.count);
    }
    return st;
}

static enum hd_status replace_in_string(struct chat_run *run, const struct chat_method *m,
                                        const struct chat_args *args, struct chat_value *ret)
{
    const struct chat_value *text = &m->self;
    struct hd_text out = {0};
    struct chat_value a[3];
    int64_t most = -1;
    size_t at = 0;
    enum hd_status st = chat_take(run, m->name, args, "old new count", a);

    if (!st)
        st = chat_need_string(run, m->name, &a[0]);
    if (!st)
        st = chat_need_string(run, m->name, &a[1]);
    if (!st && a[2].kind != CHAT_UNDEFINED && a[2].kind != CHAT_NONE)
        st = chat_need_int(run, m->name, &a[2], &most);
    if (!st)
        st = chat_steps(run, text->count / 64);
    if (st)
        return st;
    if (a[0].count == 0)
        return chat_unsupported(run, "replace of an empty string");
    for (;;) {
        const size_t found = most == 0 ? text->count : find(text, at, &a[0]);

        hd_text_add_bytes(&out, text->text + at, found - at);
        if (found == text->count || out.len_bytes > run->limits.memory_bytes_max)
            break;
        hd_text_add_bytes(&out, a[1].text, a[1].count);
        at = found + a[0].count;
        most -= most > 0;
    }
    return chat_take_text(run, &out, ret);
}

static enum hd_status search(struct chat_run *run, const struct chat_method *m,
                             const struct chat_args *args, struct chat_value *ret)
{
    struct chat_value part;
    size_t at;
    enum hd_status st = chat_take(run, m->name, args, "sub", &part);

    if (!st)
        st = chat_need_string(run, m->name, &part);
    if (!st)
        st = chat_steps(run, m->self.count / 16);
    if (st)
        return st;
    if (part.count == 0)
        return chat_unsupported(run, "%s of an empty string", m->name);
    if (*m->name == 'c') {
        *ret = chat_int((int64_t)count_of(&m->self, &part));
        return HD_OK;
    }
    at = find(&m->self, 0, &part);
    if (at == m->self.count) {
        *ret = chat_int(-1);
        return HD_OK;
    }
    for (size_t next = at; *m->name == 'r' && next < m->self.count;) {
        at = next;
        next = find(&m->self, at + 1, &part);
    }
    *ret = chat_int((int64_t)chat_code_points(m->self.text, at));
    return HD_OK;
}

static enum hd_status join_strings(struct chat_run *run, const struct chat_value *between,
                                   const struct chat_args *args, struct chat_value *ret)
{
    const struct chat_value *items;
    struct hd_text out = {0};
    struct chat_value whole;
    size_t count;
    enum hd_status st = chat_take(run, "join", args, "iterable", &whole);

    if (!st)
        st = chat_iterate(run, &whole, &items, &count);
    for (size_t i = 0; !st && i < count; i++) {
        if (i)
            hd_text_add_bytes(&out, between->text, between->count);
        st = chat_need_string(run, "join", &items[i]);
        if (!st)
            hd_text_add_bytes(&out, items[i].text, items[i].count);
    }
    if (!st)
        return chat_take_text(run, &out, ret);
    hd_text_free(&out);
    return st;
}

/* Implements str.format with {}, {0} and {name}; a format specification after a colon is not
 * supported. */
static enum hd_status format(struct chat_run *run, const struct chat_value *text,
                             const struct chat_args *args, struct chat_value *ret)
{
    struct hd_text out = {0};
    size_t next = 0;
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < text->count; i++) {
        const char c = text->text[i];
        const char *name = text->text + i + 1, *close;
        const struct chat_value *v = NULL;
        size_t n, index;

        if ((c != '{' && c != '}') || (i + 1 < text->count && *name == c)) {
            hd_text_add_bytes(&out, &c, 1);
            i += c == '{' || c == '}';
            continue;
        }
        close = memchr(name, '}', text->count - i - 1);
        n = close ? (size_t)(close - name) : 0;
        index = n == 1 && *name >= '0' && *name <= '9' ? (size_t)(*name - '0') : args->count;
        if (c == '{' && close && n == 0)
            index = next++;
        for (size_t j = 0; j < args->named_count && n; j++)
            if (strlen(args->named[j].name) == n && memcmp(args->named[j].name, name, n) == 0)
                v = &args->named[j].value;
        if (!v && index < args->count)
            v = &args->items[index];
        if (c != '{' || !v)
            st = chat_unsupported(run, "format with a field that is not {}, {0} or {name} of an "
                                       "argument");
        else
            st = chat_add_str(run, &out, v);
        i += n + 1;
    }
    if (!st)
        return chat_take_text(run, &out, ret);
    hd_text_free(&out);
    return st;
}

static enum hd_status is_of(struct chat_run *run, const struct chat_method *m,
                            struct chat_value *ret)
{
    bool is = m->self.count > 0;

    for (size_t i = 0; i < m->self.count; i += chat_code_point_bytes(m->self.text + i)) {
        const uint32_t c = chat_code_point(m->self.text + i);

        if (strcmp(m->name, "isdigit") == 0 && c >= 0x80)
            return chat_unsupported(run, "isdigit of U+%04X", (unsigned)c);
        is &= strcmp(m->name, "isdigit") == 0 ? c >= '0' && c <= '9' : chat_is_space(c);
    }
    *ret = chat_bool(is);
    return HD_OK;
}

static enum hd_status string_method(struct chat_run *run, const struct chat_method *m,
                                    const struct chat_args *args, struct chat_value *ret)
{
    static const struct {
        const char *names;
        enum hd_status (*run)(struct chat_run *run, const struct chat_method *m,
                              const struct chat_args *args, struct chat_value *ret);
    } methods[] = {
        {" strip lstrip rstrip ", strip},
        {" split rsplit ", split},
        {" replace ", replace_in_string},
        {" find rfind count ", search},
        {" startswith endswith removeprefix removesuffix ", edge},
    };
    static const struct {
        const char *name;
        enum chat_case how;
    } cases[] = {{"upper", CHAT_UPPER},
                 {"lower", CHAT_LOWER},
                 {"title", CHAT_TITLE},
                 {"capitalize", CHAT_CAPITALIZE}};

    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (has_word(methods[i].names, m->name))
            return methods[i].run(run, m, args, ret);
    if (strcmp(m->name, "join") == 0)
        return join_strings(run, &m->self, args, ret);
    if (strcmp(m->name, "format") == 0)
        return format(run, &m->self, args, ret);
    if (args->count || args->named_count)
        return chat_unsupported(run, "an argument of %s", m->name);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(m->name, cases[i].name) == 0)
            return chat_change_case(run, &m->self, cases[i].how, ret);
    if (strcmp(m->name, "splitlines") == 0)
        return split_lines(run, &m->self, ret);
    return is_of(run, m, ret);
}

/* ---- mappings ---- */

static enum hd_status dict_method(struct chat_run *run, const struct chat_method *m,
                                  const struct chat_args *args, struct chat_value *ret)
{
    const struct chat_dict *dict = m->self.dict;
    const struct chat_value *found;
    struct chat_value *items, *pair, a[2];
    enum hd_status st;

    if (strcmp(m->name, "get") == 0) {
        st = chat_take(run, "get", args, "key default", a);
        if (!st)
            st = chat_dict_find(run, dict, &a[0], &found);
        *ret = (struct chat_value){.kind = CHAT_NONE};
        if (!st && (found || args->count > 1 || args->named_count))
            *ret = found ? *found : a[1];
        return st;
    }
    if (args->count || args->named_count)
        return chat_wrong(run, "%s takes no argument", m->name);
    st = chat_array(run, (size_t)dict->count, &items);
    for (int i = 0; !st && i < dict->count; i++) {
        items[i] = *m->name == 'k' ? dict->pairs[i].key : dict->pairs[i].value;
        if (*m->name != 'i')
            continue;
        st = chat_array(run, 2, &pair);
        if (st)
            break;
        pair[0] = dict->pairs[i].key;
        pair[1] = dict->pairs[i].value;
        items[i] = (struct chat_value){.kind = CHAT_TUPLE, .items = pair, .count = 2};
    }
    if (!st)
        *ret = (struct chat_value){.kind = CHAT_VIEW, .items = items, .count = (size_t)dict->count};
    return st;
}

enum hd_status chat_call_method(struct chat_run *run, const struct chat_method *m,
                                const struct chat_args *args, struct chat_value *ret)
{
    if (m->self.kind == CHAT_STRING)
        return string_method(run, m, args, ret);
    if (m->self.kind == CHAT_DICT)
        return dict_method(run, m, args, ret);
    if (!args->count)
        return chat_wrong(run, "loop.cycle needs values");
    *ret = args->items[m->self.loop->index % args->count];
    return HD_OK;
}
