/* chat: a conversation with a trained model, on a terminal or line by line from a pipe.
 *
 * The answers are those of a heddle-serve (chat_server.h). The conversation is kept here and sent whole
 * with each message; the server reads only what is new in it.
 *
 *     /reset           forgets the conversation, but not the system message
 *     /system [TEXT]   sets the system message, or shows it
 *     /save FILE       writes the conversation as a line of training data
 *     /quit, Ctrl-D    ends        Ctrl-C   stops an answer
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/grow.h"
#include "base/json.h"
#include "controller/cli/chat_server.h"
#include "controller/cli/found.h"

/* Flags that heddle-serve takes under the same names; it checks them. */
enum { MESSAGE_BYTES_MAX = 1 << 20 };

struct chat_message {
    const char *role; /* "user" or "assistant" */
    char *text;
};

struct chat {
    struct cli *cli;
    struct chat_server server;
    char *system; /* system message; NULL: none */
    struct chat_message *messages;
    size_t count, capacity;
    struct hd_text answer; /* the answer that arrives */
    double temperature, top_p;
    int64_t top_k, max_tokens, seed;
    bool is_terminal; /* of input and output */
};

/* ---- the conversation ---- */

static enum hd_status no_memory_for_chat(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for the conversation");
}

static enum hd_status add_message(struct chat *c, const char *role, const char *text)
{
    if (!hd_grow(&c->messages, c->count, &c->capacity, sizeof *c->messages))
        return no_memory_for_chat();
    c->messages[c->count] = (struct chat_message){.role = role, .text = strdup(text)};
    return c->messages[c->count].text ? (c->count++, HD_OK) : no_memory_for_chat();
}

static void drop_last(struct chat *c)
{
    free(c->messages[--c->count].text);
}

static void write_messages(const struct chat *c, struct hd_json_writer *w)
{
    hd_json_begin(w, "messages", '[');
    if (c->system) {
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "role", "system");
        hd_json_add_string(w, "content", c->system);
        hd_json_end(w, '}');
    }
    for (size_t i = 0; i < c->count; i++) {
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "role", c->messages[i].role);
        hd_json_add_string(w, "content", c->messages[i].text);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

/* Writes the request for the next answer. */
static void write_request(const struct chat *c, struct hd_text *out)
{
    struct hd_json_writer w = {.out = out};

    hd_json_begin(&w, NULL, '{');
    write_messages(c, &w);
    hd_json_add_bool(&w, "stream", true);
    hd_json_add_real(&w, "temperature", c->temperature);
    if (cli_given(c->cli, "top-p"))
        hd_json_add_real(&w, "top_p", c->top_p);
    if (cli_given(c->cli, "top-k"))
        hd_json_add_int64(&w, "top_k", c->top_k);
    if (cli_given(c->cli, "max-tokens"))
        hd_json_add_int64(&w, "max_tokens", c->max_tokens);
    if (cli_given(c->cli, "seed"))
        hd_json_add_int64(&w, "seed", c->seed);
    hd_json_end(&w, '}');
}

/* ---- an answer ---- */

/* Prints a piece of an answer; on a terminal unsafe characters become '?'. */
static void on_piece(void *user, const char *text)
{
    struct chat *c = user;
    struct hd_text out = {0};
    bool harmless;

    hd_text_add(&c->answer, "%s", text);
    for (size_t left = strlen(text), n; left; text += n, left -= n) {
        n = hd_text_character(text, left, &harmless);
        harmless |= !c->is_terminal || *text == '\n' || *text == '\t';
        hd_text_add_bytes(&out, harmless ? text : "?", harmless ? n : 1);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}

/* Sends the user's message and prints the answer. A message that has no answer is dropped from the
 * conversation, one whose answer was stopped stays with what there is of it. */
static enum hd_status answer_to(struct chat *c, const char *text)
{
    struct chat_request request = {.on_text = on_piece, .user = c, .interrupted = &cli_stopped_by};
    struct hd_text body = {0}, end = {0};
    char reason[32];
    enum hd_status st = add_message(c, "user", text);

    if (st)
        return st;
    cli_stopped_by = 0;
    hd_text_clear(&c->answer);
    write_request(c, &body);
    request.body = body.data;
    st = body.failed ? no_memory_for_chat() : chat_server_ask(&c->server, &request, reason);
    hd_text_free(&body);
    if (c->answer.len_bytes || !st) {
        hd_text_add(&end, "\n%s", c->is_terminal ? "\n" : "");
        (void)cli_out(&end);
        hd_text_free(&end);
    }
    if (!st && c->answer.len_bytes)
        st = c->answer.failed ? no_memory_for_chat() : add_message(c, "assistant", c->answer.data);
    else
        drop_last(c);
    if (!st && cli_stopped_by)
        cli_note("(stopped)");
    else if (!st && strcmp(reason, "length") == 0)
        cli_note("(cut: %s)", cli_given(c->cli, "max-tokens")
                                  ? "--max-tokens was reached"
                                  : "the context is full; /reset begins anew");
    else if (!st && !c->answer.len_bytes)
        cli_note("(the answer is empty)");
    cli_stopped_by = 0;
    return st;
}

/* ---- commands ---- */

static void reset(struct chat *c)
{
    while (c->count)
        drop_last(c);
    cli_note("(a new conversation%s)", c->system ? ", with the same system message" : "");
}

static enum hd_status set_system(struct chat *c, const char *text)
{
    char *copy;

    if (!*text) {
        cli_note(c->system ? "system: %s" : "there is no system message%s",
                 c->system ? c->system : "; /system TEXT sets one");
        return HD_OK;
    }
    copy = strdup(text);
    if (!copy)
        return no_memory_for_chat();
    free(c->system);
    c->system = copy;
    cli_note("(from now on; /reset begins anew)");
    return HD_OK;
}

/* Writes {"messages": [..]} to a new file: one line of data for training. */
static enum hd_status save(const struct chat *c, const char *path)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    enum hd_status st;
    int fd;

    if (!*path)
        return hd_err(HD_INVALID, "/save FILE: the name is missing");
    if (!c->count)
        return hd_err(HD_INVALID, "/save: there is no conversation yet");
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return hd_err(HD_INVALID, "/save: cannot create %s: %s%s", path, strerror(errno),
                      errno == EEXIST ? "; give another name" : "");
    hd_json_begin(&w, NULL, '{');
    write_messages(c, &w);
    hd_json_end(&w, '}');
    hd_text_add(&text, "\n");
    st = text.failed ? no_memory_for_chat() : hd_file_write_all(fd, text.data, text.len_bytes);
    if (close(fd) < 0 && !st)
        st = hd_err(HD_IO, "%s", strerror(errno));
    hd_text_free(&text);
    if (st)
        return hd_err_prefix(st, "/save: %s", path);
    cli_note("(%zu messages in %s)", c->count + (c->system != NULL), path);
    return HD_OK;
}

static void help(void)
{
    cli_note("/reset           begin a new conversation");
    cli_note("/system [TEXT]   set the system message, or show it");
    cli_note("/save FILE       write the conversation as a line of training data");
    cli_note("/quit            end; Ctrl-D, too. Ctrl-C stops an answer");
    cli_note("A line that ends in \\ goes on in the next one; // begins a text with a slash.");
}

/* Takes a line that begins with a slash. *ret_end: the conversation ends. */
static enum hd_status take_command(struct chat *c, char *line, bool *ret_end)
{
    char *word = line + 1, *rest = word + strcspn(word, " \t");

    if (*rest)
        *rest++ = '\0';
    rest += strspn(rest, " \t");
    if (strcmp(word, "quit") == 0 || strcmp(word, "exit") == 0 || strcmp(word, "bye") == 0)
        *ret_end = true;
    else if (strcmp(word, "reset") == 0 || strcmp(word, "clear") == 0 || strcmp(word, "new") == 0)
        reset(c);
    else if (strcmp(word, "system") == 0)
        return set_system(c, rest);
    else if (strcmp(word, "save") == 0)
        return save(c, rest);
    else if (strcmp(word, "help") == 0 || strcmp(word, "?") == 0)
        help();
    else
        return hd_err(HD_INVALID,
                      "there is no /%s; /help lists what there is, and // begins a text "
                      "with a slash",
                      word);
    return HD_OK;
}

/* ---- lines ---- */

static void prompt(const struct chat *c, const char *text)
{
    if (c->is_terminal)
        (void)fputs(text, stderr);
    (void)fflush(stderr);
}

/* Reads a message: a line, with those that follow while each ends in a backslash. Returns false at the
 * end of input. An interrupt gives an empty message. */
static bool read_message(const struct chat *c, struct hd_text *message)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    bool more = true;

    hd_text_clear(message);
    prompt(c, "> ");
    while (more && (errno = 0, n = getline(&line, &size, stdin)) > 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = '\0';
        more = n > 0 && line[n - 1] == '\\';
        hd_text_add_bytes(message, line, (size_t)(n - more));
        if (more) {
            hd_text_add(message, "\n");
            prompt(c, "  ");
        }
    }
    free(line);
    if (more && errno == EINTR) {
        clearerr(stdin);
        cli_stopped_by = 0;
        hd_text_clear(message);
        prompt(c, "\n(Ctrl-D or /quit ends)\n");
        return true;
    }
    return !more || message->len_bytes;
}

/* Returns whether a text is a command: one slash begins it, two a message with a slash. */
static bool is_command(const char *text)
{
    return text[0] == '/' && text[1] != '/';
}

/* Takes one message of the user. */
static enum hd_status take_message(struct chat *c, struct hd_text *message, bool *ret_end)
{
    char *text = message->data;

    if (message->failed)
        return no_memory_for_chat();
    if (message->len_bytes > MESSAGE_BYTES_MAX)
        return hd_err(HD_INVALID, "the message is longer than 1 MiB");
    if (strlen(text) != message->len_bytes || !hd_text_is_utf8(text, message->len_bytes))
        return hd_err(HD_INVALID, "the message is not UTF-8");
    if (text[strspn(text, " \t")] == '\0')
        return HD_OK;
    if (is_command(text))
        return take_command(c, text, ret_end);
    return answer_to(c, text + (text[0] == '/'));
}

static int converse(struct chat *c)
{
    struct hd_text message = {0};
    enum hd_status st = HD_OK;
    bool end = false;
    int code = CLI_OK;

    if (c->is_terminal)
        cli_catch_stop(SIGINT,
                       NULL); /* Ctrl-C: clears the line that is typed, or stops the answer */
    while (!end && read_message(c, &message)) {
        st = message.len_bytes ? take_message(c, &message, &end) : HD_OK;
        /* on a terminal a failure concerns one message, unless the server is gone */
        if (st)
            code = cli_fail(st);
        if (st && (!c->is_terminal || st == HD_UNAVAILABLE || st == HD_IO))
            break;
        if (st == HD_INVALID && c->count && !is_command(message.data))
            cli_note("(/reset begins anew)");
        code = cli_out_end(CLI_OK);
        if (code != CLI_OK)
            break;
    }
    if (!end && c->is_terminal)
        prompt(c, "\n");
    hd_text_free(&message);
    return code;
}

/* ---- all ---- */

/* Starts heddle-serve with the model of the first argument; it takes the flags of a model. */
static int start_server(struct chat *c, const char *step)
{
    const char *argv[4 + 2 * CLI_FLAGS_MAX] = {"--checkpoint", NULL, "--sequences", "1"};
    const char *model = NULL;
    struct found f;
    enum hd_status st;
    int code = found_model(c->cli, step, &f, &model);

    argv[1] = model;
    if (code == CLI_CONTINUE) {
        if (c->is_terminal)
            cli_note("heddle: loading %s", model);
        st = chat_server_start(&c->server, argv, cli_pass_flags(c->cli, argv, 4));
        code = st ? cli_fail(st) : CLI_CONTINUE;
    }
    found_done(&f);
    return code;
}

static int use_server(struct chat *c, const char *step, const char *address)
{
    const struct cli *cli = c->cli;
    enum hd_status st;

    if (cli->arg_count)
        return cli_usage("chat: --server %s has its model; leave %s out", address, cli->args[0]);
    if (step)
        return cli_usage("chat: --server %s has its model; leave --step out", address);
    for (size_t i = 0; i < cli->given_count; i++)
        if (cli->given[i].passes)
            return cli_usage("chat: --server %s has its model; leave %s out", address,
                             cli->given[i].flag);
    st = chat_server_use(&c->server, address, cli->token_file);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

static int run_chat(struct chat *c, const char *step, const char *server)
{
    int code = server ? use_server(c, step, server) : start_server(c, step);

    if (code == CLI_CONTINUE && c->is_terminal)
        cli_note("heddle: write a message; /help lists commands, Ctrl-D ends");
    if (code == CLI_CONTINUE)
        code = converse(c);
    chat_server_stop(&c->server);
    while (c->count)
        drop_last(c);
    free(c->messages);
    free(c->system);
    hd_text_free(&c->answer);
    return code;
}

static int cli_chat(struct cli *cli, int argc, char **argv)
{
    struct chat c = {.cli = cli, .temperature = 0.8};
    const char *step = NULL, *server = NULL, *system = NULL;
    const struct cli_flag flags[] = {
        {"server", 0, CLI_FLAG_TEXT, &server, "ADDR",
         .help = "HOST:PORT or unix:PATH of a heddle serve that runs"},
        {"system", 0, CLI_FLAG_WORDS, &system, "TEXT", .help = "the system message"},
        {"temperature", 0, CLI_FLAG_REAL, &c.temperature, "T",
         "below 1: likely tokens are chosen more often; else 0.8", .min = 0, .max = 100},
        {"top-k", 0, CLI_FLAG_INT, &c.top_k, "K", .min = 0, .max = 1 << 24, .joins = true},
        {"top-p", 0, CLI_FLAG_REAL, &c.top_p, "P",
         "among the K most likely, or those that add up to P", .min = 0, .max = 1},
        {"max-tokens", 0, CLI_FLAG_INT, &c.max_tokens, "N",
         "of an answer; else as many as there is room for", .min = 1, .max = 1 << 24},
        {"seed", 0, CLI_FLAG_INT, &c.seed, "S", "the same seed gives the same answers", .min = 0,
         .max = INT64_MAX},
        {"context", 0, CLI_FLAG_TEXT, NULL, "N",
         .help = "tokens of the conversation; else as of heddle serve"},
        {"draft", 0, CLI_FLAG_TEXT, NULL, "N",
         .help = "up to N tokens are guessed by the model's MTP layer; else 0"},
        {"step", 0, CLI_FLAG_TEXT, &step, "N|best", .joins = true},
        {"adapter", 0, CLI_FLAG_TEXT, NULL, "DIR", .joins = true},
        {"base", 0, CLI_FLAG_TEXT, NULL, "DIR", .joins = true},
        {"precision", 0, CLI_FLAG_TEXT, NULL, "P", .joins = true},
        {"weights", 0, CLI_FLAG_TEXT, NULL, "W", .joins = true},
        {"device", 0, CLI_FLAG_TEXT, NULL, "D", .joins = true},
        {"tp", 0, CLI_FLAG_TEXT, NULL, "N", .joins = true},
        {"pp", 0, CLI_FLAG_TEXT, NULL, "M", .joins = true},
        {"template", 0, CLI_FLAG_TEXT, NULL, "FILE", .joins = true},
        {"date", 0, CLI_FLAG_TEXT, NULL, "D", .help = "as of heddle generate"},
        {"threads", 0, CLI_FLAG_TEXT, NULL, "N", .help = "of the CPU; else one for each core"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 1);

    if (code == CLI_CONTINUE && !server && !cli->arg_count)
        code = cli_usage("chat: what to chat with is missing: a job, a run, a model's folder, "
                         "hf://ORG/NAME, or --server ADDR");
    if (code != CLI_CONTINUE)
        return code;
    c.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    c.system = system && *system ? strdup(system) : NULL;
    return run_chat(&c, step, server);
}

const struct cli_body cli_body_chat = {
    .usage = "Usage: heddle chat JOB|DIR [--system TEXT] [--temperature T] [...]\n"
             "       heddle chat --server ADDR [--system TEXT] [...]\n",
    .about = "A conversation with a trained model, found as by heddle generate, or with a\n"
             "heddle serve of this machine. Lines of a pipe are messages, too. /reset begins\n"
             "anew, /system TEXT sets the system message, /save FILE writes the conversation\n"
             "as training data, /quit or Ctrl-D ends, Ctrl-C stops an answer.\n",
    .examples = "heddle chat heddle-runs/tune --system 'Answer in one sentence.'",
    .run = cli_chat,
    .is_raw = true,
};
