/* data: makes token files from text and conversations, makes a tokenizer, and shows samples of a
 * job. heddle-worker does the work. */
#include <stdlib.h>
#include <string.h>

#include "controller/cli/data_check.h"
#include "controller/cli/process.h"
#include "controller/cli/submit.h"

/* Starts the words for heddle-worker: the verb, the flags that were given, the format, and a last
 * "--". NULL: no memory. */
static const char **begin_words(const struct cli *cli, size_t more, size_t *ret_count)
{
    const char **argv = calloc((size_t)cli->arg_count + more + 2 * CLI_FLAGS_MAX + 8, sizeof *argv);

    *ret_count = 2;
    if (!argv)
        return NULL;
    argv[0] = "heddle-worker";
    argv[1] = cli->args[0];
    *ret_count = cli_pass_flags(cli, argv, *ret_count);
    if (cli->format == CLI_JSON)
        argv[(*ret_count)++] = "--json";
    return argv;
}

/* Replaces this process by heddle-worker; returns only on failure. */
static enum hd_status exec_tokenize(const struct cli *cli)
{
    size_t n;
    const char **argv = begin_words(cli, 0, &n);
    enum hd_status st;

    if (!argv)
        return hd_err(HD_NO_MEMORY, "no memory for the arguments");
    argv[n++] = "--";
    for (int i = 1; i < cli->arg_count; i++)
        argv[n++] = cli->args[i];
    st = process_become(argv);
    free(argv);
    return st;
}

/* ---- train-tokenizer ---- */

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

/* Adds a flag that the job file answers, where the command line has not. */
static size_t add_from_job(const char **argv, size_t n, const char *flag, const char *value)
{
    if (!*value)
        return n;
    argv[n++] = flag;
    argv[n++] = value;
    return n;
}

/* Replaces this process by heddle-worker; returns only on failure. job NULL: the files are the
 * arguments. */
static enum hd_status exec_train(const struct cli *cli, const struct cli_list *specials,
                                 const struct hd_job *job)
{
    size_t n;
    const char **argv =
        begin_words(cli, 2 * specials->count + (job ? (size_t)job->train_count : 0) + 8, &n);
    enum hd_status st;

    if (!argv)
        return hd_err(HD_NO_MEMORY, "no memory for the arguments");
    if (job && !cli_given(cli, "columns"))
        n = add_from_job(argv, n, "--columns", job->columns);
    if (job) {
        n = add_from_job(argv, n, "--roles", job->roles);
        n = add_from_job(argv, n, "--bad-rows", job->bad_rows);
    }
    for (size_t i = 0; i < specials->count; i++) {
        argv[n++] = "--special";
        argv[n++] = specials->items[i];
    }
    argv[n++] = "--";
    for (int64_t i = 0; job && i < job->train_count; i++)
        argv[n++] = job->train[i].path;
    for (int i = 1; !job && i < cli->arg_count; i++)
        argv[n++] = cli->args[i];
    st = process_become(argv);
    free(argv);
    return st;
}

/* Runs `heddle data train-tokenizer`: makes a tokenizer from text files, or from a job's data. */
static int data_train(struct cli *cli, const struct cli_list *specials,
                      const struct cli_list *overrides)
{
    const bool has_job = cli->arg_count == 2 && is_job_file(cli->args[1]);
    struct hd_job *job = NULL;
    struct hd_arena arena;
    int code = CLI_CONTINUE;

    for (int i = 1; !has_job && i < cli->arg_count; i++)
        if (is_job_file(cli->args[i]))
            return cli_usage("data train-tokenizer: %s is a job file; give it alone", cli->args[i]);
    if (!cli_given(cli, "vocab"))
        return cli_usage("data train-tokenizer: --vocab is missing; give the number of ids, such "
                         "as 32000");
    if (!cli_given(cli, "out"))
        return cli_usage("data train-tokenizer: --out is missing; give the folder to make");
    if (overrides->count && !has_job)
        return cli_usage("data train-tokenizer: --set is for a job file");
    hd_arena_init(&arena, 0);
    if (has_job)
        code = read_training_job(cli->args[1], overrides, &arena, &job);
    if (code == CLI_CONTINUE)
        code = cli_fail(exec_train(cli, specials, job));
    hd_arena_done(&arena);
    return code;
}

/* ---- show ---- */

/* Runs `heddle data show FILE`: prints samples and marks the tokens that count for the loss. */
static int data_show(struct cli *cli, const struct cli_list *overrides)
{
    const char *first = cli_given(cli, "first"), *count = cli_given(cli, "samples");
    struct hd_job *job = NULL;
    struct hd_arena arena;
    int code;

    hd_arena_init(&arena, 0);
    code = cli_read_spec(cli->args[1], overrides, &arena, &job);
    if (code == CLI_CONTINUE)
        code = data_check_show(job, first ? first : "0", count ? count : "3",
                               cli->format >= CLI_JSON, cli->colour);
    hd_arena_done(&arena);
    return code;
}

static int check_tokenize_flags(const struct cli *cli)
{
    if (!cli_given(cli, "out"))
        return cli_usage(
            "data tokenize: --out is missing; give the file to make, .npy, .bin or .idx");
    if (!cli_given(cli, "tokenizer"))
        return cli_usage("data tokenize: --tokenizer is missing; give a tokenizer.json, a "
                         "tokenizer.model, or bytes");
    if (cli_given(cli, "end-of-text") && cli_given(cli, "no-append-eot"))
        return cli_usage("data tokenize: --end-of-text and --no-append-eot exclude each other");
    return CLI_CONTINUE;
}

static int cli_data(struct cli *cli, int argc, char **argv)
{
    struct cli_list overrides = {.count = 0}, specials = {.count = 0};
    const struct cli_flag flags[] = {
        {"out", 0, CLI_FLAG_TEXT, NULL, "OUT", .joins = true, .of = "tokenize|train-tokenizer"},
        {"format", 0, CLI_FLAG_TEXT, NULL, "F",
         .help = ".npy, .bin (llm.c) or .idx (Megatron), or by F", .of = "tokenize"},
        {"tokenizer", 0, CLI_FLAG_TEXT, NULL, "T",
         .help = "a tokenizer.json or .model; bytes: every byte", .of = "tokenize"},
        {"columns", 0, CLI_FLAG_TEXT, NULL, "C", .joins = true, .of = "tokenize|train-tokenizer"},
        {"key", 0, CLI_FLAG_TEXT, NULL, "K",
         .help = "as data.columns: prompt=NAME,answer=NAME; K: text=K", .of = "tokenize"},
        {"end-of-text", 0, CLI_FLAG_INT, NULL, "ID", .joins = true, .min = 0, .max = INT32_MAX,
         .of = "tokenize"},
        {"no-append-eot", 0, CLI_FLAG_BOOL, NULL, .help = "after each document; else the eos_token",
         .of = "tokenize"},
        {"form", 0, CLI_FLAG_TEXT, NULL, "F", .joins = true, .of = "tokenize"},
        {"template", 0, CLI_FLAG_TEXT, NULL, "T", .joins = true, .of = "tokenize"},
        {"loss", 0, CLI_FLAG_TEXT, NULL, "L", .joins = true, .of = "tokenize"},
        {"date", 0, CLI_FLAG_TEXT, NULL, "D", .joins = true, .of = "tokenize"},
        {"roles", 0, CLI_FLAG_TEXT, NULL, "R", .joins = true, .of = "tokenize"},
        {"bad-rows", 0, CLI_FLAG_TEXT, NULL, "B", .help = "as keys", .of = "tokenize"},
        {"vocab", 0, CLI_FLAG_INT, NULL, "N", .joins = true, .min = 1, .max = 1 << 22,
         .of = "train-tokenizer"},
        {"special", 0, CLI_FLAG_LIST, &specials, "T",
         .help = "ids in all; one of the first (else <|endoftext|>)", .of = "train-tokenizer"},
        {"eos", 0, CLI_FLAG_TEXT, NULL, "T", .joins = true, .of = "train-tokenizer"},
        {"bos", 0, CLI_FLAG_TEXT, NULL, "T", .joins = true, .of = "train-tokenizer"},
        {"pad", 0, CLI_FLAG_TEXT, NULL, "T",
         .help = "special tokens that end, begin and fill texts", .of = "train-tokenizer"},
        {"min-count", 0, CLI_FLAG_INT, NULL, "N", .joins = true, .min = 1, .max = INT64_C(1) << 40,
         .of = "train-tokenizer"},
        {"force", 0, CLI_FLAG_BOOL, NULL,
         .help = "a rarer pair is no token (2); replaces one in DIR", .of = "train-tokenizer"},
        {"pattern", 0, CLI_FLAG_TEXT, NULL, "P", .help = NULL, .of = "train-tokenizer"},
        {"threads", 0, CLI_FLAG_INT, NULL, "N", .help = NULL, .min = 1, .max = 256,
         .of = "tokenize|train-tokenizer"},
        {"set", 0, CLI_FLAG_LIST, &overrides, "KEY=VALUE", .help = NULL,
         .of = "show|train-tokenizer"},
        {"samples", 0, CLI_FLAG_INT, NULL, "N", .help = NULL, .min = 1, .max = 100000,
         .of = "show"},
        {"first", 0, CLI_FLAG_INT, NULL, "K", .help = NULL, .min = 0, .max = INT64_C(1) << 40,
         .of = "show"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1 << 20);

    if (code != CLI_CONTINUE)
        return code;
    if (cli_is_verb(cli, "train-tokenizer"))
        return data_train(cli, &specials, &overrides);
    if (cli_is_verb(cli, "show"))
        return data_show(cli, &overrides);
    code = check_tokenize_flags(cli);
    return code == CLI_CONTINUE ? cli_fail(exec_tokenize(cli)) : code;
}

static const struct cli_verb data_verbs[] = {
    {"show", 1, 1, "the job file"},
    {"tokenize", 1, 1 << 20, "the name of a text file"},
    {"train-tokenizer", 1, 1 << 20, "the name of a text file or a job file"},
};

const struct cli_body cli_body_data = {
    .usage = "Usage: heddle data show FILE [--samples N] [--first K] [--set KEY=VALUE]...\n"
             "       heddle data tokenize IN... --out OUT --tokenizer T [--threads N]\n"
             "           [--format npy|bin|megatron] [--key NAME | --columns C] [--form F]\n"
             "           [--end-of-text ID | --no-append-eot] [--date D] [--template FILE]\n"
             "           [--loss answers|last|all] [--roles R] [--bad-rows B] [-o json]\n"
             "       heddle data train-tokenizer IN...|FILE --out DIR --vocab N\n"
             "           [--special T]... [--eos T] [--bos T] [--pad T] [--threads N]\n"
             "           [--pattern cl100k|gpt2] [--min-count N] [--columns C] [--force]\n",
    .about = "show: samples of a job as its ranks read them. tokenize: a token file of text\n"
             "or conversations. train-tokenizer: a byte-level BPE of text, or of a job's.\n",
    .examples = "heddle data tokenize corpus/*.jsonl --out corpus.npy --tokenizer bytes\n"
                "heddle data train-tokenizer corpus/*.jsonl --out tok --vocab 32000",
    CLI_VERBS(data_verbs),
    .run = cli_data,
};
