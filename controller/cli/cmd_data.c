/* data: makes token files from text and conversations, makes a tokenizer, and shows samples of a
 * job. heddle-worker does the work. */
#include <stdlib.h>
#include <string.h>

#include "controller/cli/data_check.h"
#include "controller/cli/process.h"
#include "controller/cli/submit.h"

struct tokenize {
    const char *out, *format, *tokenizer, *threads, *key, *columns, *form, *template, *date, *loss;
    const char *roles, *bad_rows;
    const char *end_of_text;
    bool no_append_eot;
};

/* Replaces this process by heddle-worker; returns only on failure. */
static enum hd_status exec_tokenize(const struct tokenize *t, const struct cli *cli)
{
    const struct {
        const char *flag, *value;
    } values[] = {{"--out", t->out},
                  {"--format", t->format},
                  {"--tokenizer", t->tokenizer},
                  {"--threads", t->threads},
                  {"--key", t->key},
                  {"--columns", t->columns},
                  {"--form", t->form},
                  {"--template", t->template},
                  {"--date", t->date},
                  {"--loss", t->loss},
                  {"--roles", t->roles},
                  {"--bad-rows", t->bad_rows},
                  {"--end-of-text", t->end_of_text}};
    const char **argv = calloc((size_t)cli->arg_count + 32, sizeof *argv);
    size_t n = 1;
    enum hd_status st;

    if (!argv)
        return hd_err(HD_NO_MEMORY, "no memory for the arguments");
    argv[n++] = "tokenize";
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (values[i].value) {
            argv[n++] = values[i].flag;
            argv[n++] = values[i].value;
        }
    if (t->no_append_eot)
        argv[n++] = "--no-append-eot";
    if (cli->format == CLI_JSON)
        argv[n++] = "--json";
    argv[n++] = "--";
    for (int i = 1; i < cli->arg_count; i++)
        argv[n++] = cli->args[i];
    st = process_become("heddle-worker", argv);
    free(argv);
    return st;
}

/* ---- train-tokenizer ---- */

struct train_flags {
    const char *out, *vocab, *pattern, *min_count, *bos, *eos, *pad, *threads, *columns;
    struct cli_list specials;
    bool force;
};

static bool is_job_file(const char *name)
{
    return hd_text_ends(name, ".yaml") || hd_text_ends(name, ".yml");
}

/* Reads the job file whose training data a tokenizer is made from. The job may name the tokenizer
 * that does not exist yet, so it is read as one of bytes. */
static int read_training_job(const char *path, const struct cli_list *overrides,
                             struct hd_arena *arena, struct hd_job **ret_job)
{
    static const char *const extra[] = {"data.tokenizer=bytes", "model.vocab=256",
                                        "data.end_of_text=auto"};
    struct cli_list all = *overrides;

    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        if (all.count == sizeof all.items / sizeof all.items[0])
            return cli_usage("data train-tokenizer: too many --set");
        all.origins[all.count] = NULL;
        all.items[all.count++] = extra[i];
    }
    return cli_read_spec(path, &all, arena, ret_job);
}

/* Replaces this process by heddle-worker; returns only on failure. job NULL: the files are the
 * arguments. */
static enum hd_status exec_train(const struct train_flags *t, const struct cli *cli,
                                 const struct hd_job *job)
{
    const struct {
        const char *flag, *value;
    } values[] = {{"--out", t->out},
                  {"--vocab", t->vocab},
                  {"--pattern", t->pattern},
                  {"--min-count", t->min_count},
                  {"--bos", t->bos},
                  {"--eos", t->eos},
                  {"--pad", t->pad},
                  {"--threads", t->threads},
                  {"--columns", t->columns             ? t->columns
                                : job && *job->columns ? job->columns
                                                       : NULL},
                  {"--roles", job && *job->roles ? job->roles : NULL},
                  {"--bad-rows", job ? job->bad_rows : NULL}};
    const size_t files = job ? (size_t)job->train_count : (size_t)cli->arg_count;
    const char **argv = calloc(files + 2 * t->specials.count + 40, sizeof *argv);
    size_t n = 1;
    enum hd_status st;

    if (!argv)
        return hd_err(HD_NO_MEMORY, "no memory for the arguments");
    argv[n++] = "train-tokenizer";
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (values[i].value) {
            argv[n++] = values[i].flag;
            argv[n++] = values[i].value;
        }
    for (size_t i = 0; i < t->specials.count; i++) {
        argv[n++] = "--special";
        argv[n++] = t->specials.items[i];
    }
    if (t->force)
        argv[n++] = "--force";
    if (cli->format == CLI_JSON)
        argv[n++] = "--json";
    argv[n++] = "--";
    for (int64_t i = 0; job && i < job->train_count; i++)
        argv[n++] = job->train[i].path;
    for (int i = 1; !job && i < cli->arg_count; i++)
        argv[n++] = cli->args[i];
    st = process_become("heddle-worker", argv);
    free(argv);
    return st;
}

/* Runs `heddle data train-tokenizer`: makes a tokenizer from text files, or from a job's data. */
static int data_train(struct cli *cli, const struct train_flags *t,
                      const struct cli_list *overrides)
{
    const bool has_job = cli->arg_count == 2 && is_job_file(cli->args[1]);
    struct hd_job *job = NULL;
    struct hd_arena arena;
    int64_t number;
    int code = CLI_CONTINUE;

    if (cli->arg_count < 2)
        return cli_usage("data train-tokenizer: give text files, or a job file (.yaml)");
    for (int i = 1; !has_job && i < cli->arg_count; i++)
        if (is_job_file(cli->args[i]))
            return cli_usage("data train-tokenizer: %s is a job file; give it alone", cli->args[i]);
    if (!t->vocab)
        return cli_usage("data train-tokenizer: --vocab is missing; give the number of ids, such "
                         "as 32000");
    if (!t->out)
        return cli_usage("data train-tokenizer: --out is missing; give the folder to make");
    if (overrides->count && !has_job)
        return cli_usage("data train-tokenizer: --set is for a job file");
    if (hd_text_to_int64(t->vocab, 1, 1 << 22, &number))
        return cli_usage("data train-tokenizer: --vocab: %s", hd_err_message());
    if (t->threads && hd_text_to_int64(t->threads, 1, 256, &number))
        return cli_usage("data train-tokenizer: --threads: %s", hd_err_message());
    if (t->min_count && hd_text_to_int64(t->min_count, 1, INT64_C(1) << 40, &number))
        return cli_usage("data train-tokenizer: --min-count: %s", hd_err_message());
    hd_arena_init(&arena, 0);
    if (has_job)
        code = read_training_job(cli->args[1], overrides, &arena, &job);
    if (code == CLI_CONTINUE)
        code = cli_fail(exec_train(t, cli, job));
    hd_arena_done(&arena);
    return code;
}

/* ---- show ---- */

/* Runs `heddle data show FILE`: prints samples and marks the tokens that count for the loss. */
static int data_show(struct cli *cli, const struct cli_list *overrides, const char *first,
                     const char *count)
{
    struct hd_job *job = NULL;
    struct hd_arena arena;
    int64_t number;
    int code;

    if (cli->arg_count != 2)
        return cli_usage("data show: give one job file");
    if (first && hd_text_to_int64(first, 0, INT64_C(1) << 40, &number))
        return cli_usage("data show: --first: %s", hd_err_message());
    if (count && hd_text_to_int64(count, 1, 100000, &number))
        return cli_usage("data show: --samples: %s", hd_err_message());
    hd_arena_init(&arena, 0);
    code = cli_read_spec(cli->args[1], overrides, &arena, &job);
    if (code == CLI_CONTINUE)
        code = data_check_show(job, first ? first : "0", count ? count : "3",
                               cli->format >= CLI_JSON, cli->colour);
    hd_arena_done(&arena);
    return code;
}

int cli_data(struct cli *cli, int argc, char **argv)
{
    struct tokenize t = {.out = NULL};
    struct cli_list overrides = {.count = 0};
    struct train_flags train = {.out = NULL};
    const char *samples = NULL, *first = NULL;
    const struct cli_flag flags[] = {
        {"out", 0, CLI_FLAG_TEXT, &t.out, 0, 0},
        {"vocab", 0, CLI_FLAG_TEXT, &train.vocab, 0, 0},
        {"special", 0, CLI_FLAG_LIST, &train.specials, 0, 0},
        {"bos", 0, CLI_FLAG_TEXT, &train.bos, 0, 0},
        {"eos", 0, CLI_FLAG_TEXT, &train.eos, 0, 0},
        {"pad", 0, CLI_FLAG_TEXT, &train.pad, 0, 0},
        {"pattern", 0, CLI_FLAG_TEXT, &train.pattern, 0, 0},
        {"min-count", 0, CLI_FLAG_TEXT, &train.min_count, 0, 0},
        {"force", 0, CLI_FLAG_BOOL, &train.force, 0, 0},
        {"format", 0, CLI_FLAG_TEXT, &t.format, 0, 0},
        {"tokenizer", 0, CLI_FLAG_TEXT, &t.tokenizer, 0, 0},
        {"threads", 0, CLI_FLAG_TEXT, &t.threads, 0, 0},
        {"key", 0, CLI_FLAG_TEXT, &t.key, 0, 0},
        {"columns", 0, CLI_FLAG_TEXT, &t.columns, 0, 0},
        {"no-append-eot", 0, CLI_FLAG_BOOL, &t.no_append_eot, 0, 0},
        {"end-of-text", 0, CLI_FLAG_TEXT, &t.end_of_text, 0, 0},
        {"form", 0, CLI_FLAG_TEXT, &t.form, 0, 0},
        {"template", 0, CLI_FLAG_TEXT, &t.template, 0, 0},
        {"date", 0, CLI_FLAG_TEXT, &t.date, 0, 0},
        {"loss", 0, CLI_FLAG_TEXT, &t.loss, 0, 0},
        {"roles", 0, CLI_FLAG_TEXT, &t.roles, 0, 0},
        {"bad-rows", 0, CLI_FLAG_TEXT, &t.bad_rows, 0, 0},
        {"set", 0, CLI_FLAG_LIST, &overrides, 0, 0},
        {"samples", 0, CLI_FLAG_TEXT, &samples, 0, 0},
        {"first", 0, CLI_FLAG_TEXT, &first, 0, 0},
    };
    int64_t threads, id;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1 << 20);

    if (code != CLI_CONTINUE)
        return code;
    if (strcmp(cli->args[0], "train-tokenizer") == 0) {
        if (t.format || t.tokenizer || t.key || t.no_append_eot || t.form || t.template || t.date ||
            t.loss || t.end_of_text || t.roles || t.bad_rows || samples || first)
            return cli_usage("data train-tokenizer: takes --out, --vocab, --special, --bos, --eos, "
                             "--pad, --pattern, --min-count, --columns, --threads, --force and "
                             "--set");
        train.out = t.out;
        train.threads = t.threads;
        train.columns = t.columns;
        return data_train(cli, &train, &overrides);
    }
    if (train.vocab || train.specials.count || train.bos || train.eos || train.pad ||
        train.pattern || train.min_count || train.force)
        return cli_usage("data %s: --vocab, --special, --bos, --eos, --pad, --pattern, --min-count "
                         "and --force are for data train-tokenizer",
                         cli->args[0]);
    if (strcmp(cli->args[0], "show") == 0) {
        if (t.out || t.format || t.tokenizer || t.threads || t.key || t.columns ||
            t.no_append_eot || t.form || t.template || t.date || t.loss || t.end_of_text ||
            t.roles || t.bad_rows)
            return cli_usage(
                "data show: takes --samples, --first and --set; the rest is in the job "
                "file");
        return data_show(cli, &overrides, first, samples);
    }
    if (strcmp(cli->args[0], "tokenize") != 0)
        return cli_usage("data: '%s' is not a command of heddle data; they are tokenize, show and "
                         "train-tokenizer",
                         cli->args[0]);
    if (samples || first || overrides.count)
        return cli_usage("data tokenize: --samples, --first and --set are for data show");
    if (cli->arg_count < 2)
        return cli_usage("data tokenize: the input files are missing; give at least one text file");
    if (!t.out)
        return cli_usage(
            "data tokenize: --out is missing; give the file to make, .npy, .bin or .idx");
    if (!t.tokenizer)
        return cli_usage("data tokenize: --tokenizer is missing; give a tokenizer.json, a "
                         "tokenizer.model, or bytes");
    if (t.threads && hd_text_to_int64(t.threads, 1, 256, &threads))
        return cli_usage("data tokenize: --threads: %s", hd_err_message());
    if (t.end_of_text && hd_text_to_int64(t.end_of_text, 0, INT32_MAX, &id))
        return cli_usage("data tokenize: --end-of-text: %s", hd_err_message());
    if (t.end_of_text && t.no_append_eot)
        return cli_usage("data tokenize: --end-of-text and --no-append-eot exclude each other");
    return cli_fail(exec_tokenize(&t, cli));
}
