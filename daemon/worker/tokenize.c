/* tokenize: `heddle-worker tokenize`, makes a token file from text files. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "chat/date.h"
#include "data/data.h"
#include "data/tokenize.h"
#include "flags/flags.h"
#include "records/kind.h"
#include "records/saved_set.h"
#include "records/source.h"
#include "tokenizer/special.h"
#include "worker/worker.h"

enum { PROGRESS_MS = 200, LINE_MS = 10000, INTERRUPTED = 130, TERMINATED = 143 };

struct tokenize_bar {
    bool shown;
    int64_t begin_ms, last_ms;
};

/* Shows the progress: on a terminal one line that is overwritten, else a new line every LINE_MS.
 * Returns false after a signal. */
static bool show_tokenize_progress(void *context, const struct hd_tokenize_counts *c)
{
    struct tokenize_bar *bar = context;
    const int64_t now = hd_clock_now_ms(), spent = now - bar->begin_ms;
    const bool is_terminal = isatty(STDERR_FILENO);
    char done[32], total[32], rate[32], left[HD_CLOCK_TEXT_MAX];

    if (hd_worker_stop_signal())
        return false;
    if (!c->read_bytes || !spent || now - bar->last_ms < (is_terminal ? PROGRESS_MS : LINE_MS))
        return true;
    bar->last_ms = now;
    bar->shown = is_terminal;
    hd_text_format_bytes(c->read_bytes, done);
    hd_text_format_bytes(c->total_bytes, total);
    hd_text_format_bytes((int64_t)((double)c->read_bytes * 1000 / (double)spent), rate);
    hd_clock_format_span(
        (int64_t)((double)(c->total_bytes - c->read_bytes) * (double)spent / (double)c->read_bytes),
        left);
    (void)fprintf(stderr, "%s%s of %s, %s/s, %s left%s", is_terminal ? "\r\033[K" : "", done, total,
                  rate, left, is_terminal ? "" : "\n");
    return true;
}

struct options {
    const char *out, *format, *tokenizer, *template, *form, *loss, *date;
    /* id of the token that ends each document; -1: the token that the files beside the tokenizer
     * name */
    int64_t end_of_text;
    bool ends_documents, as_json;
    struct hd_arena arena;
    const char **inputs; /* [input_count] files, in the arena */
    int input_count, input_room;
    char columns[1024]; /* --columns, or text=KEY for --key KEY; "": neither */
};

/* Adds an input: a file, or the files of a folder that save_to_disk of `datasets` wrote. */
static enum hd_status add_input(struct options *o, const char *path)
{
    const struct hd_json *files = NULL;
    struct hd_text file = {0};
    struct stat info;
    enum hd_status st = HD_OK;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        st = hd_records_read_saved_set(path, &o->arena, &files);
    for (const struct hd_json *f = files ? files->first : NULL; !st && f; f = f->next) {
        hd_text_clear(&file);
        hd_file_join(&file, path, hd_json_member(f, "filename")->text);
        st = file.failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : add_input(o, file.data);
    }
    hd_text_free(&file);
    if (st || files)
        return st;
    o->inputs =
        hd_arena_grow(&o->arena, o->inputs, o->input_count, &o->input_room, sizeof *o->inputs);
    path = hd_arena_strdup(&o->arena, path);
    if (!o->inputs || !path)
        return hd_err(HD_NO_MEMORY, "no memory for the names of files");
    o->inputs[o->input_count++] = path;
    return HD_OK;
}

static enum hd_status check_inputs(char *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (hd_data_is_tokens(inputs[i]) || hd_text_ends(inputs[i], ".idx"))
            return hd_err(HD_INVALID,
                          "%s: a name that ends in %s is one of a token file, and the inputs "
                          "are text; a job reads token files as they are (data.train)",
                          inputs[i], inputs[i] + strlen(inputs[i]) - strlen(".npy"));
    return HD_OK;
}

/* Reads the command-line flags; they come before "--", input files after it. */
static enum hd_status read_tokenize_options(int argc, char **argv, struct hd_tokenize *ret_how,
                                            struct options *ret_options)
{
    struct hd_tokenize how = {.threads = hd_flags_threads(HD_TOKENIZE_THREADS_MAX)};
    struct options o = {.end_of_text = -1};
    const char *key = NULL, *columns = "";
    bool no_end = false;
    struct hd_flag f[] = {HD_FLAG_NEEDED("--out", o.out),
                          HD_FLAG_NEEDED("--tokenizer", o.tokenizer),
                          HD_FLAG_INT("--threads", how.threads, 1, HD_TOKENIZE_THREADS_MAX),
                          HD_FLAG_TEXT("--key", key),
                          HD_FLAG_SWITCH("--no-append-eot", no_end),
                          HD_FLAG_SWITCH("--json", o.as_json),
                          HD_FLAG_TEXT("--format", o.format),
                          HD_FLAG_TEXT("--form", o.form),
                          HD_FLAG_TEXT("--template", o.template),
                          HD_FLAG_TEXT("--loss", o.loss),
                          HD_FLAG_INT64("--end-of-text", o.end_of_text, 0, INT32_MAX),
                          HD_FLAG_TEXT("--date", o.date),
                          HD_FLAG_TEXT("--columns", columns),
                          HD_FLAG_TEXT("--roles", how.rows.roles),
                          HD_FLAG_TEXT("--bad-rows", how.rows.bad_rows)};
    struct hd_bad_rule rule;
    const int inputs = hd_flags_count(argc, argv);
    enum hd_status st = HD_FLAGS_READ(inputs, argv, f);

    if (!st && inputs + 1 >= argc)
        st = hd_err(HD_INVALID, "no input files; give them after --");
    if (!st)
        st = check_inputs(argv + inputs + 1, argc - inputs - 1);
    if (!st && *columns && key)
        st = hd_err(HD_INVALID, "--key KEY is --columns text=KEY; give one of the two");
    if (!st && o.end_of_text >= 0 && no_end)
        st = hd_err(HD_INVALID, "--end-of-text and --no-append-eot exclude each other");
    if (st)
        return st;
    o.ends_documents = !no_end;
    *ret_options = o;
    how.rows.columns = ret_options->columns;
    *ret_how = how;
    if (snprintf(ret_options->columns, sizeof ret_options->columns, "%s%s", key ? "text=" : "",
                 key ? key : columns) >= (int)sizeof ret_options->columns)
        st = hd_err(HD_INVALID, "longer than %zu bytes; rename columns in the file",
                    sizeof ret_options->columns - 1);
    else
        st = hd_records_check_columns(ret_options->columns);
    if (st)
        return hd_err_prefix(st, key ? "--key" : "--columns");
    for (int i = inputs + 1; !st && i < argc; i++)
        st = add_input(ret_options, argv[i]);
    if (st)
        return st;
    ret_how->inputs = ret_options->inputs;
    ret_how->input_count = (size_t)ret_options->input_count;
    st = hd_chat_check_roles(how.rows.roles ? how.rows.roles : "");
    if (st)
        return hd_err_prefix(st, "--roles");
    st = hd_bad_rule_read(how.rows.bad_rows, &rule);
    return st ? hd_err_prefix(st, "--bad-rows") : HD_OK;
}

/* Chooses the format by --format, else by the ending of --out. The ending is removed from
 * Megatron's name, because there are two files. */
static enum hd_status choose_format(const struct options *o, struct hd_text *out,
                                    struct hd_tokenize *how)
{
    const bool is_npy = hd_text_ends(o->out, ".npy"), is_bin = hd_text_ends(o->out, ".bin"),
               is_idx = hd_text_ends(o->out, ".idx");
    const char *format = o->format ? o->format : is_npy ? "npy" : is_bin ? "bin" : "megatron";

    if (!o->format && !is_npy && !is_bin && !is_idx)
        return hd_err(HD_INVALID,
                      "%s: the name must end in .npy, .bin (llm.c's) or .idx (Megatron's .bin and "
                      ".idx), or give --format npy, bin or megatron",
                      o->out);
    how->format = strcmp(format, "npy") == 0   ? HD_TOKEN_FORMAT_NPY
                  : strcmp(format, "bin") == 0 ? HD_TOKEN_FORMAT_LLMC
                                               : HD_TOKEN_FORMAT_MEGATRON;
    if (how->format == HD_TOKEN_FORMAT_MEGATRON && strcmp(format, "megatron") != 0)
        return hd_err(HD_INVALID, "--format: '%.20s' is not npy, bin or megatron", format);
    if ((how->format == HD_TOKEN_FORMAT_NPY && !is_npy) ||
        (how->format == HD_TOKEN_FORMAT_LLMC && !is_bin) ||
        (how->format == HD_TOKEN_FORMAT_MEGATRON && is_npy))
        return hd_err(HD_INVALID,
                      "%s: a reader would not take this name for the format %s; end it "
                      "in .%s",
                      o->out, format, how->format == HD_TOKEN_FORMAT_NPY ? "npy" : "bin");
    if (how->format == HD_TOKEN_FORMAT_MEGATRON && (is_bin || is_idx))
        hd_text_add(out, "%.*s", (int)(strlen(o->out) - strlen(".bin")), o->out);
    else
        hd_text_add(out, "%s", o->out);
    how->out = out->data;
    return out->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

/* ---- conversations ---- */

static enum hd_status read_loss(const char *name, enum hd_chat_loss *ret_loss)
{
    static const char *const names[] = {"answers", "last", "all"};

    *ret_loss = HD_CHAT_ANSWERS;
    for (int i = 0; name && i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret_loss = (enum hd_chat_loss)i;
            return HD_OK;
        }
    return name ? hd_err(HD_INVALID, "--loss: '%.40s' is not answers, last or all", name) : HD_OK;
}

/* Finds the form of the inputs: --form, else the form of the first record of the first file. */
static enum hd_status find_form(const struct hd_tokenize *how, const struct options *o,
                                enum hd_chat_form *ret_form)
{
    *ret_form = HD_CHAT_AUTO;
    if (o->form && !hd_chat_form_find(o->form, ret_form))
        return hd_err(HD_INVALID,
                      "--form: '%.40s' is not auto, text, messages, sharegpt, alpaca or "
                      "prompt_completion",
                      o->form);
    if (*ret_form != HD_CHAT_AUTO)
        return HD_OK;
    *ret_form = HD_CHAT_TEXT;
    return hd_data_has_records(how->inputs[0])
               ? hd_jsonl_look(how->inputs[0], &how->rows, HD_CHAT_AUTO, ret_form)
               : HD_OK;
}

/* Sets the date: --date, else today's; only for a template that asks for it. */
static enum hd_status set_date(const struct options *o, struct hd_chat *chat)
{
    char today[HD_CHAT_DATE_MAX];

    if (!hd_chat_asks_date(chat))
        return o->date ? hd_err(HD_INVALID, "--date: the chat template does not ask for the date "
                                            "(strftime_now); leave it out")
                       : HD_OK;
    hd_chat_date_today(today);
    return hd_chat_set_date(chat, o->date ? o->date : today);
}

/* Opens the template of --template, else the one beside the tokenizer. */
static enum hd_status open_chat(const struct options *o, struct hd_chat **ret_chat)
{
    const bool is_path = strcmp(o->tokenizer, "bytes") != 0;
    struct hd_text path = {0}, dir = {0};
    enum hd_status st = HD_OK;

    hd_folder_of(o->tokenizer, &dir);
    if (o->template)
        hd_text_add(&path, "%s", o->template);
    else if (is_path && !dir.failed)
        st = hd_chat_find(dir.data, &path);
    if (!st && (path.failed || dir.failed))
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (!st)
        st = hd_chat_open(path.data ? path.data : "", is_path ? dir.data : NULL, ret_chat);
    if (!st)
        st = set_date(o, *ret_chat);
    hd_text_free(&path);
    hd_text_free(&dir);
    return st;
}

/* Sets the rules that turn conversations into tokens, if the inputs are conversations. */
static enum hd_status find_rules(const struct options *o, struct hd_tokenize *how,
                                 struct hd_conversation_rules *rules, struct hd_chat **ret_chat)
{
    enum hd_status st = find_form(how, o, &rules->form);

    if (!st && rules->form == HD_CHAT_TEXT && (o->template || o->loss || o->date))
        st = hd_err(HD_INVALID, "--template, --date and --loss are for conversations, and the "
                                "inputs are text");
    if (st || rules->form == HD_CHAT_TEXT)
        return st;
    if (how->format != HD_TOKEN_FORMAT_MEGATRON)
        return hd_err(HD_INVALID,
                      "%s: conversations need --format megatron: the others have no place for the "
                      "tokens that count for the loss",
                      o->out);
    how->format = HD_TOKEN_FORMAT_COUNTS;
    how->conversations = rules;
    rules->tokenizer = how->tokenizer;
    rules->roles = how->rows.roles;
    rules->end_of_text = how->end_of_text;
    st = read_loss(o->loss, &rules->loss);
    if (!st)
        st = open_chat(o, ret_chat);
    rules->chat = *ret_chat;
    return st;
}

static enum hd_status print_summary(const struct hd_tokenize *how,
                                    const struct hd_tokenize_counts *c, int64_t spent_ms,
                                    bool as_json)
{
    const double per_token = c->tokens ? (double)c->text_bytes / (double)c->tokens : 0;
    const double rate = (double)c->text_bytes / 1e3 / (double)(spent_ms ? spent_ms : 1);
    const char *ending =
        how->format == HD_TOKEN_FORMAT_MEGATRON || how->conversations ? ".bin" : "";
    struct hd_text text = {0}, path = {0};
    struct hd_json_writer w = {.out = &text};

    hd_text_add(&path, "%s%s", how->out, ending);
    if (!as_json) {
        (void)printf("%s: %lld document%s, %lld tokens, %.2f bytes/token, %.1f MB/s\n",
                     path.data ? path.data : "", (long long)c->documents,
                     c->documents == 1 ? "" : "s", (long long)c->tokens, per_token, rate);
        if (how->conversations)
            (void)printf("%lld tokens count for the loss\n", (long long)c->targets);
        if (c->left_out)
            (void)printf("records left out (--bad-rows): %lld\n", (long long)c->left_out);
        if (c->spelled)
            (void)printf("in %lld conversations a message spells a special token: that is ordinary "
                         "text\n",
                         (long long)c->spelled);
        hd_text_free(&path);
        return HD_OK;
    }
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "api_version", "heddle/v1");
    hd_json_add_string(&w, "kind", "TokenFile");
    hd_json_begin(&w, "items", '[');
    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, "path", path.data ? path.data : "");
    hd_json_add_int64(&w, "documents", c->documents);
    hd_json_add_int64(&w, "tokens", c->tokens);
    hd_json_add_int64(&w, "targets", c->targets);
    hd_json_add_int64(&w, "left_out", c->left_out);
    hd_json_add_int64(&w, "read_bytes", c->read_bytes);
    hd_json_add_int64(&w, "text_bytes", c->text_bytes);
    hd_json_add_real(&w, "bytes_per_token", per_token);
    hd_json_add_real(&w, "mb_per_s", rate);
    hd_json_end(&w, '}');
    hd_json_end(&w, ']');
    hd_json_end(&w, '}');
    hd_text_add(&text, "\n");
    hd_text_free(&path);
    return hd_worker_print(HD_OK, &text);
}

/* Finds the token that ends each document: --end-of-text, else the one named by the files beside
 * the tokenizer. */
static enum hd_status find_end(const struct options *o, const struct hd_tokenizer *tokenizer,
                               int64_t *ret_end)
{
    const bool is_bytes = strcmp(hd_tokenizer_name(tokenizer), "bytes") == 0;
    struct hd_special special;
    struct hd_text dir = {0}, text = {0};
    enum hd_status st = HD_OK;

    *ret_end = o->ends_documents ? o->end_of_text : -1;
    if (o->end_of_text >= hd_tokenizer_vocab(tokenizer))
        return hd_err(HD_INVALID, "--end-of-text: %lld is no token of %s, which has %d",
                      (long long)o->end_of_text, o->tokenizer, (int)hd_tokenizer_vocab(tokenizer));
    if (is_bytes || !o->ends_documents || o->end_of_text >= 0)
        return HD_OK;
    hd_folder_of(o->tokenizer, &dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : hd_special_resolve(tokenizer, dir.data, &special);
    hd_text_free(&dir);
    if (st)
        return st;
    *ret_end = special.end.id;
    hd_worker_note("tokenize", special.notes);
    if (special.end.id < 0) {
        hd_special_explain_end(tokenizer, "--end-of-text ID, or --no-append-eot", &text);
        hd_worker_note("tokenize", text.data ? text.data : "");
    }
    hd_text_free(&text);
    return HD_OK;
}

static enum hd_status tokenize_files(struct hd_tokenize *how, const struct options *o,
                                     struct tokenize_bar *bar,
                                     struct hd_tokenize_counts *ret_counts, struct hd_text *out)
{
    struct hd_tokenizer *tokenizer = NULL;
    struct hd_conversation_rules rules = {.form = HD_CHAT_TEXT};
    struct hd_chat *chat = NULL;
    enum hd_status st = choose_format(o, out, how);

    if (!st)
        st = hd_tokenizer_open(o->tokenizer, &tokenizer);
    if (st)
        return st;
    how->tokenizer = tokenizer;
    st = find_end(o, tokenizer, &how->end_of_text);
    how->needs_tokens = true;
    how->progress = show_tokenize_progress;
    how->context = bar;
    if (!st)
        st = find_rules(o, how, &rules, &chat);
    /* earlier, while the inputs are examined and no file exists yet, a signal ends the process */
    hd_worker_catch_stop();
    if (!st)
        st = hd_tokenize_run(how, ret_counts);
    hd_chat_close(chat);
    hd_tokenizer_close(tokenizer);
    return st;
}

int hd_worker_tokenize(int argc, char **argv)
{
    struct hd_tokenize how;
    struct options options = {0};
    struct hd_tokenize_counts counts = {0};
    struct hd_text out = {0};
    struct tokenize_bar bar = {.begin_ms = hd_clock_now_ms()};
    struct hd_bad_rows bad = {.count = 0};
    struct hd_error story;
    enum hd_status st = read_tokenize_options(argc, argv, &how, &options);

    how.bad = &bad;
    bar.last_ms = bar.begin_ms;
    if (!st)
        st = tokenize_files(&how, &options, &bar, &counts, &out);
    if (bar.shown)
        (void)fprintf(stderr, "\r\033[K");
    hd_err_save(st, &story);
    if (bad.count)
        hd_worker_list_bad(&bad);
    st = st ? hd_err_restore(&story) : HD_OK;
    if (!st)
        st = print_summary(&how, &counts, hd_clock_now_ms() - bar.begin_ms, options.as_json);
    hd_bad_rows_free(&bad);
    hd_text_free(&out);
    hd_arena_done(&options.arena);
    if (st == HD_ABORTED) {
        (void)hd_worker_finish("tokenize", st);
        return hd_worker_stop_signal() == SIGTERM ? TERMINATED : INTERRUPTED;
    }
    return hd_worker_finish("tokenize", st);
}
