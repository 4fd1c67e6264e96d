/* Parses flags: --name VALUE, --name=VALUE, -n VALUE, -nVALUE, at any position; after `--` no word
 * is a flag. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/cli.h"

/* Unparsed texts of the flags that every command has. */
struct shared {
    const char *output, *colour;
    bool help;
};

struct parse {
    struct cli_described all;
    /* flags given so far, except lists; a flag that is repeated is refused */
    bool given[CLI_FLAGS_MAX];
    int argc;
    char **argv;
    int at;
};

static void add_shared(struct cli_described *all, struct cli *cli, struct shared *shared)
{
    const struct cli_flag flags[] = {
        {"controller", 0, CLI_FLAG_TEXT, &cli->controller, "ADDR",
         .help = "address of the controller"},
        {"context", 0, CLI_FLAG_TEXT, &cli->context, "NAME",
         .help = "a context of the configuration file"},
        {"token-file", 0, CLI_FLAG_TEXT, &cli->token_file, "FILE", .help = "your token"},
        {"tls-ca", 0, CLI_FLAG_TEXT, &cli->tls_ca, "FILE",
         .help = "the authority of the controller's certificate"},
        {"tls-cert", 0, CLI_FLAG_TEXT, &cli->tls_cert, "FILE", .help = "your certificate and key"},
        {"help", 'h', CLI_FLAG_BOOL, &shared->help, .help = "what the command does"},
        /* the last two are left out if is_raw */
        {"output", 'o', CLI_FLAG_TEXT, &shared->output, "FORMAT",
         .help = "table, wide, json or jsonl"},
        {"color", 0, CLI_FLAG_TEXT, &shared->colour, "WHEN", .help = "auto, always or never"},
    };
    const size_t count = sizeof flags / sizeof flags[0] - (cli->command->body->is_raw ? 2 : 0);

    memcpy(all->flags + all->count, flags, count * sizeof flags[0]);
    all->count += count;
}

const char *cli_flag_habit(const char *word)
{
    static const struct {
        const char *word, *here;
    } habits[] = {{"--json", "-o json"},
                  {"--jsonl", "-o jsonl"},
                  {"--wide", "-o wide"},
                  {"--format", "-o json"},
                  {"--no-color", "--color never"}};

    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++)
        if (hd_text_starts(word, habits[i].word) &&
            !isalpha((unsigned char)word[strlen(habits[i].word)]))
            return habits[i].here;
    return NULL;
}

static int unknown_flag(const struct cli *cli, const struct parse *p, const char *word)
{
    const char *names[CLI_FLAGS_MAX], *nearest;
    char name[64];

    for (size_t i = 0; i < p->all.count; i++)
        names[i] = p->all.flags[i].name;
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 1 + (word[1] == '-'), "="),
                   word + 1 + (word[1] == '-'));
    if (cli_flag_habit(word) && !cli->command->body->is_raw)
        return cli_usage("%s: unknown flag %s; write %s", cli->command->name, word,
                         cli_flag_habit(word));
    nearest = hd_text_nearest(name, names, p->all.count);
    if (nearest)
        return cli_usage("%s: unknown flag %s; did you mean --%s?", cli->command->name, word,
                         nearest);
    return cli_usage("%s: unknown flag %s; see heddle %s --help", cli->command->name, word,
                     cli->command->name);
}

/* Appends "set", "set or rm", "ls, set or rm" of the words in "ls|set|rm". */
static void add_words(struct hd_text *out, const char *words, const char *last)
{
    for (const char *w = words, *end; *w; w = *end ? end + 1 : end) {
        end = w + strcspn(w, "|");
        hd_text_add(out, "%s%.*s", w == words ? "" : *end ? ", " : last, (int)(end - w), w);
    }
}

static bool is_among(const char *words, const char *word)
{
    const size_t len = strlen(word);

    for (const char *w = words; w; w = strchr(w, '|') ? strchr(w, '|') + 1 : NULL)
        if (strncmp(w, word, len) == 0 && (w[len] == '|' || !w[len]))
            return true;
    return false;
}

static int check_choice(const struct cli *cli, const struct cli_flag *flag, const char *value)
{
    struct hd_text words = {0};
    int code;

    if (!flag->choices || is_among(flag->choices, value))
        return CLI_CONTINUE;
    add_words(&words, flag->choices, " or ");
    code = cli_usage("%s: --%s %s is not %s", cli->command->name, flag->name, value,
                     words.failed ? flag->choices : words.data);
    hd_text_free(&words);
    return code;
}

/* Keeps a flag that was given, for cli_given and cli_pass_flags. */
static void keep_given(struct cli *cli, const struct cli_flag *flag, const char *value)
{
    struct cli_given_flag *given = &cli->given[cli->given_count];

    if (flag->kind == CLI_FLAG_LIST || cli->given_count == CLI_FLAGS_MAX)
        return;
    (void)snprintf(given->flag, sizeof given->flag, "--%s", flag->name);
    given->value = value;
    given->passes = !flag->value;
    cli->given_count++;
}

static int set_value(struct cli *cli, const struct cli_flag *flag, const char *value)
{
    struct cli_list *list = flag->value;
    int64_t whole;
    double real;
    enum hd_status st = HD_OK;

    if (!*value && (flag->kind == CLI_FLAG_TEXT || flag->kind == CLI_FLAG_LIST))
        return cli_usage("%s: --%s has an empty value; leave it out, or give one",
                         cli->command->name, flag->name);
    switch (flag->kind) {
    case CLI_FLAG_BOOL:
    case CLI_FLAG_NOTE:
        break;
    case CLI_FLAG_WORDS:
        if (!hd_text_is_utf8(value, strlen(value)))
            return cli_usage("%s: --%s: the text is not UTF-8", cli->command->name, flag->name);
        /* fall through */
    case CLI_FLAG_TEXT:
        if (flag->value)
            *(const char **)flag->value = value;
        break;
    case CLI_FLAG_INT:
        st = hd_text_to_int64(value, flag->min, flag->max, flag->value ? flag->value : &whole);
        break;
    case CLI_FLAG_REAL:
        st = hd_text_to_double(value, (double)flag->min, (double)flag->max,
                               flag->value ? flag->value : &real);
        break;
    case CLI_FLAG_SPAN:
        st = hd_clock_read_span(value, flag->min, flag->max, flag->value ? flag->value : &whole);
        break;
    case CLI_FLAG_LIST:
        if (list->count == sizeof list->items / sizeof list->items[0])
            return cli_usage("%s: more than %zu --%s", cli->command->name, list->count, flag->name);
        list->items[list->count++] = value;
        break;
    }
    if (st)
        return cli_usage("%s: --%s: %s", cli->command->name, flag->name, hd_err_message());
    keep_given(cli, flag, value);
    return check_choice(cli, flag, value);
}

/* Finds the flag at argv[at] and takes its value from the same word or the next one. */
static int take_flag(struct cli *cli, struct parse *p)
{
    const char *word = p->argv[p->at], *value = NULL;
    const struct cli_flag *flag = NULL;

    for (size_t i = 0; i < p->all.count && !flag; i++) {
        const struct cli_flag *f = &p->all.flags[i];
        const size_t len = strlen(f->name);

        if (f->kind == CLI_FLAG_NOTE)
            continue;
        if (word[1] == '-' && strncmp(word + 2, f->name, len) == 0 &&
            (word[2 + len] == '\0' || word[2 + len] == '=')) {
            flag = f;
            value = word[2 + len] == '=' ? word + 3 + len : NULL;
        } else if (word[1] != '-' && f->letter && word[1] == f->letter) {
            flag = f;
            value = word[2] ? word + 2 : NULL;
        }
    }
    if (!flag)
        return unknown_flag(cli, p, word);
    p->at++;
    if (flag->kind == CLI_FLAG_BOOL) {
        if (value)
            return cli_usage("%s: --%s takes no value", cli->command->name, flag->name);
        if (!p->given[flag - p->all.flags])
            keep_given(cli, flag, NULL);
        p->given[flag - p->all.flags] = true;
        if (flag->value)
            *(bool *)flag->value = true;
        return CLI_CONTINUE;
    }
    if (!value && p->at == p->argc)
        return cli_usage("%s: --%s needs a value", cli->command->name, flag->name);
    if (p->given[flag - p->all.flags] && flag->kind != CLI_FLAG_LIST)
        return cli_usage("%s: --%s is given twice; give it once", cli->command->name, flag->name);
    p->given[flag - p->all.flags] = true;
    return set_value(cli, flag, value ? value : p->argv[p->at++]);
}

/* Finds a word in a list that ends with NULL; returns its number, -1: it is not in the list. */
static int find_word(const char *const *names, const char *text)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return -1;
}

/* Takes -o and --color. */
static int take_shared(struct cli *cli, const struct shared *shared)
{
    static const char *const formats[] = {"table", "wide", "json", "jsonl", NULL};
    static const char *const whens[] = {"auto", "always", "never", NULL};
    const int format = find_word(formats, shared->output), when = find_word(whens, shared->colour);

    if (format < 0)
        return cli_usage("%s: -o %s is not table, wide, json or jsonl", cli->command->name,
                         shared->output);
    if (when < 0)
        return cli_usage("%s: --color %s is not auto, always or never", cli->command->name,
                         shared->colour);
    cli->format = (enum cli_format)format;
    cli_set_colour((enum cli_colour_when)when);
    cli->colour = cli_has_colour(STDOUT_FILENO);
    return CLI_CONTINUE;
}

/* Reports too few or too many arguments, with the usage of the command. */
static int wrong_count(const struct cli *cli, int min_args)
{
    int code;

    if (cli->arg_count < min_args)
        code = cli_usage("%s: an argument is missing", cli->command->name);
    else
        code = cli_usage("%s: unexpected argument: %s", cli->command->name,
                         cli->args[cli->arg_count - 1]);
    (void)fputs(cli->command->body->usage, stderr);
    return code;
}

static int unknown_verb(const struct cli *cli)
{
    return cli_usage("%s: '%s' is none of these: %s", cli->command->name, cli->args[0],
                     cli->verbs.len_bytes && !cli->verbs.failed ? cli->verbs.data : "?");
}

/* Refuses flags of another verb. */
static int check_flags_of(const struct cli *cli, const struct parse *p, const char *verb)
{
    struct hd_text verbs = {0};
    int code;

    for (size_t i = 0; i < p->all.count; i++) {
        const struct cli_flag *f = &p->all.flags[i];

        if (!p->given[i] || !f->of || is_among(f->of, verb))
            continue;
        add_words(&verbs, f->of, " and ");
        code = cli_usage("%s %s: --%s is for heddle %s %s", cli->command->name, verb, f->name,
                         cli->command->name, verbs.failed ? f->of : verbs.data);
        hd_text_free(&verbs);
        return code;
    }
    return CLI_CONTINUE;
}

/* Checks the verb in the first argument, the number of words behind it, and the flags. */
static int check_verb(const struct cli *cli, const struct parse *p)
{
    const struct cli_verb *verb = NULL;

    for (size_t i = 0; i < cli->command->body->verb_count && !verb; i++)
        if (strcmp(cli->command->body->verbs[i].name, cli->args[0]) == 0)
            verb = &cli->command->body->verbs[i];
    if (!verb)
        return unknown_verb(cli);
    if (cli->arg_count - 1 < verb->min_args)
        return cli_usage("%s %s: %s is missing; see heddle %s --help", cli->command->name,
                         verb->name, verb->missing, cli->command->name);
    if (cli->arg_count - 1 > verb->max_args)
        return cli_usage("%s %s: unexpected argument: %s", cli->command->name, verb->name,
                         cli->args[verb->max_args + 1]);
    return check_flags_of(cli, p, verb->name);
}

bool cli_is_verb(const struct cli *cli, const char *verb)
{
    return cli->arg_count && strcmp(cli->args[0], verb) == 0;
}

const char *cli_given(const struct cli *cli, const char *name)
{
    for (size_t i = 0; i < cli->given_count; i++)
        if (strcmp(cli->given[i].flag + 2, name) == 0)
            return cli->given[i].value ? cli->given[i].value : "";
    return NULL;
}

size_t cli_pass_flags(const struct cli *cli, const char **argv, size_t count)
{
    for (size_t i = 0; i < cli->given_count; i++) {
        if (!cli->given[i].passes)
            continue;
        argv[count++] = cli->given[i].flag;
        if (cli->given[i].value)
            argv[count++] = cli->given[i].value;
    }
    return count;
}

/* Parses all words; --help and mistakes end it. */
static int take_words(struct cli *cli, struct parse *p)
{
    bool only_args = false;
    int code = CLI_CONTINUE;

    while (p->at < p->argc && code == CLI_CONTINUE) {
        char *word = p->argv[p->at];

        if (!only_args && strcmp(word, "--") == 0) {
            only_args = true;
            p->at++;
        } else if (!only_args && word[0] == '-' && word[1]) {
            code = take_flag(cli, p);
        } else if (!*word) {
            code = cli_usage("%s: argument %d is empty; is a variable of the shell not set?",
                             cli->command->name, cli->arg_count + 1);
        } else {
            p->argv[cli->arg_count++] = word; /* writes behind the parser's read position */
            p->at++;
        }
    }
    return code;
}

int cli_parse(struct cli *cli, int argc, char **argv, const struct cli_flag *flags,
              size_t flag_count, int min_args, int max_args)
{
    struct parse p = {.argc = argc, .argv = argv};
    struct shared shared = {.output = "table", .colour = "auto"};
    struct hd_text help = {0};
    int code;

    if (flag_count)
        memcpy(p.all.flags, flags, flag_count * sizeof flags[0]);
    p.all.own_count = p.all.count = flag_count;
    add_shared(&p.all, cli, &shared);
    if (cli->described) {
        *cli->described = p.all;
        return CLI_OK;
    }
    cli->args = argv;
    cli->arg_count = 0;
    code = take_words(cli, &p);
    if (code == CLI_CONTINUE && shared.help) {
        cli_add_help(cli->command, &help);
        return cli_print(&help, CLI_OK);
    }
    if (code == CLI_CONTINUE)
        code = take_shared(cli, &shared);
    if (code == CLI_CONTINUE && cli->command->body->verbs && cli->arg_count)
        return check_verb(cli, &p);
    if (code == CLI_CONTINUE && (cli->arg_count < min_args || cli->arg_count > max_args))
        code = wrong_count(cli, min_args);
    return code;
}
