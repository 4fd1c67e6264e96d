/* debug: collects one file for a support request, without secrets.
 *
 *   heddle debug bundle   runs other commands of heddle and puts each output into a tar file
 *
 * Possible secrets are replaced before they are written: any word that looks like a token (16 or
 * more letters and digits, at least four of each, and few other characters), and the values of keys
 * whose names say that they are secret. Manifest hashes and uuids are replaced, too.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/cli/debug.h"
#include "controller/cli/process.h"
#include "controller/cli/rows.h"
#include "version/version.h"

enum { BLOCK = 512, LOG_BYTES = 256 << 10, TOKEN_MIN = 16 /* minimum of letters and digits */ };

/* ---- secrets ----------------------------------------------------------------------------------*/

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '+' || c == '/' || c == '_' || c == '-';
}

static bool may_be_secret(const char *word, size_t len)
{
    size_t digits = 0, letters = 0, others = 0;

    for (size_t i = 0; i < len; i++) {
        digits += isdigit((unsigned char)word[i]) != 0;
        letters += isalpha((unsigned char)word[i]) != 0;
        others += word[i] == '/' || word[i] == '-' || word[i] == '_';
    }
    return digits + letters >= TOKEN_MIN && digits >= 4 && letters >= 4 && others * 8 < len;
}

/* Returns whether the word before `at` names a secret, as in "password: x" and "token=x". */
static bool is_after_secret_key(const char *text, size_t at)
{
    static const char *const keys[] = {"password",   "passwd",      "secret",
                                       "token",      "api_key",     "apikey",
                                       "access_key", "private_key", "authorization"};
    size_t end = at, begin;

    while (end && strchr(" \"':=", text[end - 1]))
        end--;
    if (end == at ||
        (memchr(text + end, ':', at - end) == NULL && memchr(text + end, '=', at - end) == NULL))
        return false;
    for (begin = end; begin && is_word(text[begin - 1]); begin--)
        ;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const size_t len = strlen(keys[i]);

        if (end - begin >= len && strncasecmp(text + end - len, keys[i], len) == 0)
            return true;
    }
    return false;
}

/* Returns whether `at` follows a bearer scheme: "Authorization: Bearer x". */
static bool is_after_bearer(const char *text, size_t at)
{
    return at >= 7 && strncasecmp(text + at - 7, "bearer ", 7) == 0;
}

/* Returns the length of the value after a secret's name: up to its closing quote, else up to a
 * blank, comma or bracket. */
static size_t value_length(const char *text, size_t at, size_t count)
{
    const char quote = at && (text[at - 1] == '"' || text[at - 1] == '\'') ? text[at - 1] : 0;
    size_t end = at;

    while (end < count && text[end] != '\n' &&
           (quote ? text[end] != quote : !strchr(" \t,}]", text[end])))
        end++;
    return end - at;
}

void debug_redact(const char *text, size_t count, struct hd_text *out)
{
    size_t i = 0;

    while (i < count) {
        size_t len = 0;

        while (i + len < count && is_word(text[i + len]))
            len++;
        if (!len) {
            hd_text_add_bytes(out, text + i++, 1);
            continue;
        }
        if (is_after_secret_key(text, i) || is_after_bearer(text, i)) {
            len = value_length(text, i, count);
            hd_text_add(out, "[removed]");
        } else if (may_be_secret(text + i, len)) {
            hd_text_add(out, "[removed]");
        } else {
            hd_text_add_bytes(out, text + i, len);
        }
        i += len;
    }
}

/* ---- the tar file -----------------------------------------------------------------------------*/

/* Appends a POSIX (ustar) member: a header of 512 bytes, the bytes, zeros up to a full block. */
void debug_add_member(struct hd_text *tar, const char *name, const char *bytes, size_t count,
                      int64_t unix_s)
{
    static const char zeros[BLOCK];
    char header[BLOCK] = {0};
    unsigned sum = 0;

    (void)snprintf(header, 100, "%s", name);
    (void)snprintf(header + 100, 8, "%07o", 0600);
    (void)snprintf(header + 108, 8, "%07o", 0);
    (void)snprintf(header + 116, 8, "%07o", 0);
    (void)snprintf(header + 124, 12, "%011llo", (unsigned long long)count);
    (void)snprintf(header + 136, 12, "%011llo", (unsigned long long)unix_s);
    memset(header + 148, ' ', 8); /* the checksum counts its own field as blanks */
    header[156] = '0';
    memcpy(header + 257, "ustar\00000", 8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += (unsigned char)header[i];
    (void)snprintf(header + 148, 7, "%06o", sum);
    hd_text_add_bytes(tar, header, BLOCK);
    hd_text_add_bytes(tar, bytes, count);
    hd_text_add_bytes(tar, zeros, (BLOCK - count % BLOCK) % BLOCK);
}

/* ---- what goes in -----------------------------------------------------------------------------*/

struct bundle {
    struct cli *cli;
    struct hd_text tar;
    int64_t unix_s;
    char self[4096];
    struct hd_text failures;
    struct hd_text
        token;    /* token from a pipe, which delivers it only once; empty: not from a pipe */
    int code;     /* exit code of the newest command that the bundle ran */
    bool gave_up; /* a job that the user named does not exist, or no controller answers */
    struct hd_text told;  /* lines that commands wrote to standard error, each once */
    struct hd_text stems; /* names of the folders of jobs and runs, a line each */
};

/* Returns the start of the next line after `at`, so that a secret is never cut in two: half of one
 * would not be recognized. */
static size_t line_behind(const struct hd_text *text, size_t at)
{
    const char *end = memchr(text->data + at, '\n', text->len_bytes - at);

    return end ? (size_t)(end + 1 - text->data) : text->len_bytes;
}

/* Returns whether the text has this line. */
static bool has_line(const struct hd_text *text, const char *line, size_t len)
{
    const char *at = text->data, *end;

    for (; at && *at; at = end + 1) {
        end = strchr(at, '\n');
        if ((size_t)(end - at) == len && memcmp(at, line, len) == 0)
            return true;
    }
    return false;
}

/* Prints the lines that a command wrote to standard error, except for those that an earlier command
 * wrote, too. */
static void tell_errors(struct bundle *b, const struct hd_text *errors)
{
    const char *line = errors->data;

    while (line && *line) {
        const size_t len = strcspn(line, "\n");

        if (len && !has_line(&b->told, line, len)) {
            cli_note("%.*s", (int)len, line);
            hd_text_add(&b->told, "%.*s\n", (int)len, line);
        }
        line += len + (line[len] == '\n');
    }
}

/* Appends the redacted output of `heddle WORDS...` as a member. A command that fails is noted in
 * it. */
static enum hd_status bundle_command(struct bundle *b, const char *member, const char *const *words)
{
    const char *argv[24] = {b->self};
    struct hd_text output = {0}, errors = {0}, clean = {0};
    size_t n = 1;
    int code = 0;
    char name[160];
    enum hd_status st;

    for (; *words && n < 12; words++)
        argv[n++] = *words;
    if (b->cli->controller)
        argv[n++] = "--controller", argv[n++] = b->cli->controller;
    if (b->cli->context)
        argv[n++] = "--context", argv[n++] = b->cli->context;
    if (b->token.len_bytes)
        argv[n++] = "--token-file", argv[n++] = "/dev/stdin";
    else if (b->cli->token_file)
        argv[n++] = "--token-file", argv[n++] = b->cli->token_file;
    if (b->cli->tls_ca)
        argv[n++] = "--tls-ca", argv[n++] = b->cli->tls_ca;
    if (b->cli->tls_cert)
        argv[n++] = "--tls-cert", argv[n++] = b->cli->tls_cert;
    st = process_ask(argv, &b->token, PROCESS_QUESTION_MS, &output, &errors, &code);
    b->code = code;
    tell_errors(b, &errors);
    if (!st && code)
        hd_text_add(&b->failures, "%s: heddle %s ended with %d\n", member, argv[1], code);
    if (!st && output.len_bytes) {
        const size_t from = output.len_bytes > LOG_BYTES && strncmp(argv[1], "logs", 4) == 0
                                ? line_behind(&output, output.len_bytes - LOG_BYTES)
                                : 0;

        debug_redact(output.data + from, output.len_bytes - from, &clean);
        (void)snprintf(name, sizeof name, "heddle-debug/%s", member);
        if (!clean.failed)
            debug_add_member(&b->tar, name, clean.data, clean.len_bytes, b->unix_s);
    }
    if (!st && (clean.failed || b->tar.failed || b->told.failed))
        st = hd_err(HD_NO_MEMORY, "no memory for the bundle");
    hd_text_free(&errors);
    hd_text_free(&output);
    hd_text_free(&clean);
    return st;
}

/* Appends what is known of this program and, unless only runs of heddle local are asked for, of the
 * cluster: a run has none. */
static enum hd_status bundle_cluster(struct bundle *b, bool only_runs)
{
    const struct {
        const char *member, *words[6];
    } commands[] = {
        {"version.txt", {"version", only_runs ? NULL : "--check"}},
        {"config.txt", {"config", "show"}},
        {"top.txt", {"top", "--once"}},
        {"nodes.json", {"nodes", "-o", "json"}},
        {"topology.json", {"topo", "-o", "json"}},
        {"queues.json", {"queue", "ls", "-o", "json"}},
        {"jobs.json", {"jobs", "-o", "json"}},
        {"events.jsonl", {"events", "-o", "jsonl"}},
    };
    const size_t count = sizeof commands / sizeof commands[0];
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && !b->gave_up && i < (only_runs ? 2 : count); i++) {
        st = bundle_command(b, commands[i].member, commands[i].words);
        b->gave_up = !st && b->code == CLI_UNREACHABLE;
    }
    return st;
}

/* Writes the name of the folder in the tar file of a job or run: that of two runs of one name
 * differs, as in "run-tiny" and "run-tiny-2". */
static void name_folder(struct bundle *b, const char *kind, const char *name, char ret_stem[96])
{
    int number = 1;

    (void)snprintf(ret_stem, 96, "%s-%.60s", kind, name);
    while (has_line(&b->stems, ret_stem, strlen(ret_stem)))
        (void)snprintf(ret_stem, 96, "%s-%.60s-%d", kind, name, ++number);
    hd_text_add(&b->stems, "%s\n", ret_stem);
}

/* job: a number, a name, or the folder of a run, in which nothing waits and is to be explained. */
static enum hd_status bundle_job(struct bundle *b, const char *job)
{
    const struct {
        const char *member, *words[6];
    } commands[] = {
        {"show.json", {"show", job, "-o", "json"}},
        {"events.jsonl", {"events", job, "-o", "jsonl"}},
        {"checkpoints.json", {"checkpoint", "ls", job, "-o", "json"}},
        {"logs.txt", {"logs", job, "--rank", "all", "--tail=2000"}},
        {"explain.txt", {"explain", job}},
    };
    const bool is_run = cli_names_run(job);
    const size_t count = sizeof commands / sizeof commands[0] - is_run;
    char member[128], stem[96], folder[PATH_MAX];
    const char *slash = is_run && realpath(job, folder) ? strrchr(folder, '/') : NULL;
    enum hd_status st = HD_OK;

    name_folder(b, is_run ? "run" : "job", slash ? slash + 1 : job, stem);
    if (b->stems.failed)
        return hd_err(HD_NO_MEMORY, "no memory for the bundle");
    for (size_t i = 0; !st && !b->gave_up && i < count; i++) {
        (void)snprintf(member, sizeof member, "%s/%s", stem, commands[i].member);
        st = bundle_command(b, member, commands[i].words);
        b->gave_up = !st && ((i == 0 && (b->code == CLI_NOT_FOUND || b->code == CLI_USAGE)) ||
                             (!is_run && b->code == CLI_UNREACHABLE));
    }
    return st;
}

static enum hd_status find_self(struct bundle *b)
{
    const ssize_t n = readlink("/proc/self/exe", b->self, sizeof b->self - 1);

    if (n < 0)
        return hd_err(HD_IO, "cannot find this program's own file: %s", strerror(errno));
    b->self[n] = '\0';
    return HD_OK;
}

/* Reads the token if its file is a pipe: only the first of the commands could read it. */
static enum hd_status read_piped_token(struct bundle *b)
{
    const char *path = b->cli->token_file ? b->cli->token_file : getenv("HEDDLE_TOKEN_FILE");
    char token[HD_RPC_TOKEN_MAX + 1];
    struct stat info;
    enum hd_status st;

    if (!path || stat(path, &info) < 0 || !S_ISFIFO(info.st_mode))
        return HD_OK;
    st = hd_rpc_read_token(path, HD_FILE_PATIENCE_MS, token);
    if (!st)
        hd_text_add(&b->token, "%s\n", token);
    explicit_bzero(token, sizeof token);
    return !st && b->token.failed ? hd_err(HD_NO_MEMORY, "no memory for a token") : st;
}

static void erase_token(struct bundle *b)
{
    if (b->token.data)
        explicit_bzero(b->token.data, b->token.size_bytes);
    hd_text_free(&b->token);
}

static int make_bundle(struct cli *cli, const char *path)
{
    struct bundle b = {.cli = cli, .unix_s = hd_clock_wall_ms() / 1000};
    static const char end[2 * BLOCK];
    enum hd_status st = find_self(&b);
    bool only_runs = cli->arg_count > 1;

    for (int i = 1; i < cli->arg_count; i++)
        only_runs &= cli_names_run(cli->args[i]);
    if (!st)
        st = read_piped_token(&b);
    if (!st)
        st = bundle_cluster(&b, only_runs);
    for (int i = 1; !st && !b.gave_up && i < cli->arg_count; i++)
        st = bundle_job(&b, cli->args[i]);
    erase_token(&b);
    hd_text_free(&b.told);
    hd_text_free(&b.stems);
    if (!st && b.gave_up) { /* the command that failed has told why */
        hd_text_free(&b.tar);
        hd_text_free(&b.failures);
        return b.code;
    }
    if (!st && b.failures.len_bytes)
        debug_add_member(&b.tar, "heddle-debug/failures.txt", b.failures.data, b.failures.len_bytes,
                         b.unix_s);
    hd_text_add_bytes(&b.tar, end, sizeof end);
    if (!st && b.tar.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for the bundle");
    if (!st && hd_file_exists(path))
        st = hd_err(HD_INVALID, "%s exists; give another name with --out", path);
    if (!st)
        st = hd_file_write_atomic(path, b.tar.data, b.tar.len_bytes, 0600);
    if (!st && b.failures.len_bytes)
        cli_note(
            "heddle: some parts could not be collected; failures.txt in the bundle lists them");
    hd_text_free(&b.tar);
    hd_text_free(&b.failures);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

struct bundle_row {
    const char *path;
};

static void add_bundle_line(const struct cli *cli, struct hd_text *out, const void *item)
{
    (void)cli;
    hd_text_add(out, "%s\n", ((const struct bundle_row *)item)->path);
}

static const struct rows_column bundle_columns[] = {
    {.json = "path", ROWS_OF(struct bundle_row, path)},
};
static const struct rows_kind bundle_rows = {"BundleList", "bundle", ROWS_COLUMNS(bundle_columns),
                                             .line = add_bundle_line};

static int cli_debug(struct cli *cli, int argc, char **argv)
{
    char name[64];
    const char *out_path = NULL;
    const struct cli_flag flags[] = {
        {"out", 0, CLI_FLAG_TEXT, &out_path, "FILE",
         .help = "the file to make; else heddle-debug-TIME.tar"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 64);
    struct bundle_row row;

    if (code != CLI_CONTINUE)
        return code;
    (void)snprintf(name, sizeof name, "heddle-debug-%lld.tar",
                   (long long)(hd_clock_wall_ms() / 1000));
    code = make_bundle(cli, out_path ? out_path : name);
    if (code != CLI_CONTINUE)
        return code;
    row.path = out_path ? out_path : name;
    if (cli->format < CLI_JSON)
        cli_note(
            "heddle: read it before you send it: names of people, machines and files are in it");
    return rows_print_one(cli, &bundle_rows, &row);
}

static const struct cli_verb debug_verbs[] = {
    {"bundle", 0, 63, NULL},
};

const struct cli_body cli_body_debug = {
    .usage = "Usage: heddle debug bundle [JOB|RUN]... [--out FILE] [-o FORMAT]\n",
    .about = "Collects a tar file for a support request: versions, configuration,\n"
             "nodes, links, queues, jobs and events, and of each JOB, or RUN of heddle local,\n"
             "its attempts, events, checkpoints and the last lines of its logs. What looks\n"
             "like a token, a key or a password is removed. Names of people, machines and\n"
             "files stay in it.\n",
    .examples = "heddle debug bundle 7\n"
                "heddle debug bundle heddle-runs/latest",
    CLI_VERBS(debug_verbs),
    .run = cli_debug,
};
