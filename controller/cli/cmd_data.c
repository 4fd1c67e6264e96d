/* data: makes token files of text. heddle-worker does the work. */
#include <stdlib.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/process.h"

struct tokenize {
    const char *out, *format, *tokenizer, *threads, *key;
    bool no_append_eot;
};

/* Replaces this process; returns only with a failure. */
static enum hd_status exec_tokenize(const struct tokenize *t, const struct cli *cli)
{
    const struct {
        const char *flag, *value;
    } values[] = {{"--out", t->out},
                  {"--format", t->format},
                  {"--tokenizer", t->tokenizer},
                  {"--threads", t->threads},
                  {"--key", t->key}};
    const char **argv = calloc((size_t)cli->arg_count + 16, sizeof *argv);
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

int cli_data(struct cli *cli, int argc, char **argv)
{
    struct tokenize t = {.out = NULL};
    const struct cli_flag flags[] = {
        {"out", 0, CLI_FLAG_TEXT, &t.out, 0, 0},
        {"format", 0, CLI_FLAG_TEXT, &t.format, 0, 0},
        {"tokenizer", 0, CLI_FLAG_TEXT, &t.tokenizer, 0, 0},
        {"threads", 0, CLI_FLAG_TEXT, &t.threads, 0, 0},
        {"key", 0, CLI_FLAG_TEXT, &t.key, 0, 0},
        {"no-append-eot", 0, CLI_FLAG_BOOL, &t.no_append_eot, 0, 0},
    };
    int64_t threads;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1 << 20);

    if (code != CLI_CONTINUE)
        return code;
    if (strcmp(cli->args[0], "tokenize") != 0)
        return cli_usage("data: '%s' is not a command of heddle data; the only one is tokenize",
                         cli->args[0]);
    if (cli->arg_count < 2)
        return cli_usage("data tokenize: the input files are missing; give at least one text file");
    if (!t.out)
        return cli_usage(
            "data tokenize: --out is missing; give the file to make, .npy, .bin or .idx");
    if (!t.tokenizer)
        return cli_usage("data tokenize: --tokenizer is missing; give a tokenizer.json, or bytes");
    if (t.threads && hd_text_to_int64(t.threads, 1, 256, &threads))
        return cli_usage("data tokenize: --threads: %s", hd_err_message());
    return cli_fail(exec_tokenize(&t, cli));
}
