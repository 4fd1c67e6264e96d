/* translate_args: arguments of Megatron-LM, in a file of arguments or in a script that starts it: each
 * --NAME VALUE.. becomes a setting NAME. Variables that the script sets by NAME=VALUE are replaced;
 * nothing is run. */
#include <ctype.h>
#include <string.h>

#include "base/words.h"
#include "translate_internal.h"

enum {
    ARGUMENTS_MIN = 3,     /* arguments of a file that has any */
    WORD_BYTES_MAX = 1024, /* of one word */
    VARIABLES_MAX = 128,
    EXPANDED_WORD_BYTES_MAX = 16 * WORD_BYTES_MAX, /* of a word whose variables are replaced */
    EXPANDED_BYTES_MAX =
        4
        << 20 /* limit of what all variables of a file are replaced by; variables beyond it stay */
};

/* Arguments that a file of Megatron-LM has some of. */
static const char *const marks[] = {"--num-layers",          "--hidden-size",
                                    "--num-attention-heads", "--train-iters",
                                    "--train-samples",       "--tensor-model-parallel-size",
                                    "--micro-batch-size",    "--global-batch-size",
                                    "--lr-decay-style",      "--seq-length"};

/* Returns the bytes of a line before its comment: a # at its beginning or after white space. */
static size_t code_bytes(const char *line, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++)
        if (line[i] == '#' && (i == 0 || isspace((unsigned char)line[i - 1])))
            return i;
    return size_bytes;
}

bool spec_has_arguments(const char *bytes, size_t size_bytes)
{
    bool has[sizeof marks / sizeof marks[0]] = {false};
    const char *const end = bytes + size_bytes;
    int found = 0;

    for (const char *line = bytes, *next; line < end; line = next) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        size_t code;

        next = line_end ? line_end + 1 : end;
        code = code_bytes(line, (size_t)(next - line));
        for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
            has[i] = has[i] || memmem(line, code, marks[i], strlen(marks[i])) != NULL;
    }
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        found += has[i];
    return found >= ARGUMENTS_MIN;
}

struct script {
    const char *at, *end;
    struct hd_arena *arena;
    struct {
        const char *name, *value;
    } variables[VARIABLES_MAX];
    size_t variable_count;
    size_t expanded_bytes; /* of the values that were put in place of variables */
};

static const char *variable_of(const struct script *s, const char *name, size_t len)
{
    for (size_t i = s->variable_count; i-- > 0;)
        if (strlen(s->variables[i].name) == len && strncmp(s->variables[i].name, name, len) == 0)
            return s->variables[i].value;
    return NULL;
}

/* Replaces $NAME and ${NAME} and ${NAME:-VALUE}; what the script does not set stays as it is. The
 * result is cut at a limit: a variable may hold others many times. */
static const char *expand_word(struct script *s, const char *word)
{
    struct hd_text out = {0};
    const char *copy;

    while (*word && out.len_bytes < EXPANDED_WORD_BYTES_MAX) {
        const bool braces = word[0] == '$' && word[1] == '{';
        const char *name = word + 1 + braces;
        const size_t len = word[0] == '$' ? strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                         "abcdefghijklmnopqrstuvwxyz0123456789_")
                                          : 0;
        const char *close = braces ? strchr(name, '}') : name + len;
        const char *value = len ? variable_of(s, name, len) : NULL;

        if (!value && len && braces && close && name[len] == ':' && name[len + 1] == '-')
            value = hd_arena_printf(s->arena, "%.*s", (int)(close - name - (long)len - 2),
                                    name + len + 2);
        if (!value || !close || s->expanded_bytes > EXPANDED_BYTES_MAX) {
            hd_text_add(&out, "%c", *word++);
            continue;
        }
        hd_text_add(&out, "%.*s", (int)(EXPANDED_WORD_BYTES_MAX - out.len_bytes), value);
        s->expanded_bytes += strlen(value);
        word = close + braces;
    }
    copy = hd_arena_strdup(s->arena, out.data ? out.data : "");
    hd_text_free(&out);
    return copy ? copy : "";
}

/* Reads the next word: up to a blank, with quotes and the sign of a continued line taken away. NULL:
 * the end. *ret_begins: the word is the first of its line. */
static const char *next_word(struct script *s, bool *ret_begins)
{
    char word[WORD_BYTES_MAX];
    size_t n = 0;
    char quote = 0;

    *ret_begins = false;
    for (;;) {
        while (s->at < s->end && (isspace((unsigned char)*s->at) || *s->at == '\\')) {
            *ret_begins |= *s->at == '\n';
            s->at++;
        }
        if (s->at == s->end || *s->at != '#')
            break;
        while (s->at < s->end && *s->at != '\n') /* a comment */
            s->at++;
    }
    if (s->at == s->end)
        return NULL;
    for (; s->at < s->end && n < sizeof word - 1; s->at++) {
        if (!quote && (isspace((unsigned char)*s->at) || *s->at == '(' || *s->at == ')'))
            break;
        if (quote ? *s->at == quote : *s->at == '"' || *s->at == '\'')
            quote = quote ? 0 : *s->at;
        else if (*s->at != '\0')
            word[n++] = *s->at;
        if (quote && isspace((unsigned char)*s->at))
            break; /* a list of arguments in quotes: its words count one by one */
    }
    if (s->at < s->end && (*s->at == '(' || *s->at == ')' || isspace((unsigned char)*s->at)))
        s->at++;
    while (n && isspace((unsigned char)word[n - 1]))
        n--;
    word[n] = '\0';
    return hd_arena_strdup(s->arena, word);
}

static bool is_argument(const char *word)
{
    return hd_text_starts(word, "--") && isalpha((unsigned char)word[2]);
}

/* Returns whether the bytes of the word before `equals` are a name. */
static bool is_variable(const char *word, const char *equals)
{
    return equals > word &&
           strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") ==
               (size_t)(equals - word);
}

/* Remembers NAME=VALUE of a script. */
static bool take_variable(struct script *s, const char *word)
{
    const char *equals = strchr(word, '=');

    if (!equals || !is_variable(word, equals))
        return false;
    if (!equals[1])
        return true; /* an array begins */
    if (s->variable_count < VARIABLES_MAX) {
        s->variables[s->variable_count].name =
            hd_arena_printf(s->arena, "%.*s", (int)(equals - word), word);
        s->variables[s->variable_count].value = expand_word(s, equals + 1);
        s->variable_count += s->variables[s->variable_count].name != NULL;
    }
    return true;
}

/* Returns the first argument of NAME="--some-name ..", a list of arguments in quotes; else the word. */
static const char *first_of_list(const char *word)
{
    const char *equals = strchr(word, '=');

    return equals && is_variable(word, equals) && is_argument(equals + 1) ? equals + 1 : word;
}

/* Returns whether a word starts a program: the values of an argument before it are over. */
static bool is_command(const char *word)
{
    const char *slash = strrchr(word, '/');

    return hd_words_have("torchrun python python3 srun mpirun deepspeed accelerate exec export",
                         slash ? slash + 1 : word);
}

/* Begins a setting of the name --some-name. */
static struct yaml_node *begin_setting(struct script *s, struct yaml_node *root, const char *word)
{
    const size_t len = strcspn(word, "=");
    char *name = hd_arena_printf(s->arena, "%.*s", (int)len, word);
    struct yaml_node *node, *had;

    if (!name)
        return NULL;
    for (char *at = name; *at; at++)
        *at = *at == '-' ? '_' : *at;
    had = hd_yaml_find(root, name);
    if (had)
        had->key = ""; /* the last one counts */
    node = hd_yaml_new(s->arena, YAML_KIND_SCALAR, name, 1, NULL);
    if (!node)
        return NULL;
    node->plain = true;
    node->text = word[len] ? expand_word(s, word + len + 1) : "true";
    hd_yaml_append(root, node);
    return node;
}

/* Adds a value to a setting: the first replaces "true", a second makes a list of them. */
static void add_setting_value(struct script *s, struct yaml_node *node, const char *value,
                              int count)
{
    struct yaml_node *item;

    if (count == 0) {
        node->text = value;
        return;
    }
    if (count == 1) {
        item = hd_yaml_new(s->arena, YAML_KIND_SCALAR, NULL, 1, NULL);
        if (!item)
            return;
        item->text = node->text;
        node->kind = YAML_KIND_LIST;
        hd_yaml_append(node, item);
    }
    item = hd_yaml_new(s->arena, YAML_KIND_SCALAR, NULL, 1, NULL);
    if (!item)
        return;
    item->text = value;
    hd_yaml_append(node, item);
}

enum hd_status translate_read_arguments(const char *bytes, size_t size_bytes,
                                        struct hd_arena *arena, struct yaml_node **ret_root)
{
    struct yaml_node *root = hd_yaml_new(arena, YAML_KIND_MAP, NULL, 1, NULL), *setting = NULL;
    struct script s = {.at = bytes, .end = bytes + size_bytes, .arena = arena};
    int values = 0;
    bool begins;

    for (const char *word; root && (word = next_word(&s, &begins)) != NULL;) {
        word = first_of_list(word);
        if (is_argument(word)) {
            setting = begin_setting(&s, root, word + 2);
            values = 0;
            continue;
        }
        if (take_variable(&s, word) || !setting || !*word)
            continue;
        word = expand_word(&s, word);
        /* what follows the values of an argument is the script again: a command, an array's end */
        if (strchr("|;&", *word) || is_command(word) || hd_text_ends(word, ".py") ||
            strstr(word, "[@]") || strchr(word, '$')) {
            setting = strchr(word, '$') && !strstr(word, "[@]") ? setting : NULL;
            if (setting && setting->kind == YAML_KIND_SCALAR && values == 0)
                setting->text = ""; /* the value is known to who runs the script */
            continue;
        }
        add_setting_value(&s, setting, word, values++);
    }
    *ret_root = root;
    return root && !hd_arena_failed(arena) ? HD_OK
                                           : hd_err(HD_NO_MEMORY, "no memory for arguments");
}
