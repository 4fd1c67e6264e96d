/* eval: computes loss and perplexity, or multiple-choice accuracy, of a trained model;
 * heddle-worker does the work. */
#include <stdlib.h>
#include <string.h>

#include "controller/cli/found.h"
#include "controller/cli/process.h"

/* Collects the files and replaces this process by heddle-worker, which takes the flags; returns only
 * on failure. Words after JOB|DIR are files, too: a shell expands a pattern after --data to several
 * words. */
static enum hd_status exec_eval(const struct cli *cli, const struct cli_list *files,
                                bool with_choices, const char *model)
{
    const char **argv =
        calloc((size_t)cli->arg_count + files->count + 2 * CLI_FLAGS_MAX + 8, sizeof *argv);
    size_t n = 0;
    enum hd_status st;

    if (!argv)
        return hd_err(HD_NO_MEMORY, "no memory for the arguments");
    argv[n++] = "heddle-worker";
    argv[n++] = with_choices ? "choices" : "eval";
    argv[n++] = "--checkpoint";
    argv[n++] = model;
    n = cli_pass_flags(cli, argv, n);
    if (cli->format >= CLI_JSON)
        argv[n++] = cli->format == CLI_JSONL ? "--jsonl" : "--json";
    argv[n++] = "--";
    for (size_t i = 0; i < files->count; i++)
        argv[n++] = files->items[i];
    for (int i = 1; i < cli->arg_count; i++)
        argv[n++] = cli->args[i];
    st = process_become(argv);
    free(argv);
    return st;
}

static int check_eval_flags(const struct cli *cli, bool has_data, bool has_choices)
{
    if (cli->arg_count > 1 && !has_data && !has_choices)
        return cli_usage("eval: \"%s\" is one word too many; --data names the data files",
                         cli->args[1]);
    if (has_choices && (has_data || cli_given(cli, "windows") || cli_given(cli, "val")))
        return cli_usage("eval: --choices has questions of its own; without --data, --val and "
                         "--windows");
    if (has_data && cli_given(cli, "val"))
        return cli_usage(
            "eval: --val names validation data of the job; give either --val or --data");
    if (!has_choices && (cli_given(cli, "limit") || cli_given(cli, "weights") ||
                         cli_given(cli, "device") || cli_given(cli, "tp") || cli_given(cli, "pp")))
        return cli_usage("eval: --limit, --weights, --device, --tp and --pp are for --choices");
    return CLI_CONTINUE;
}

static int cli_eval(struct cli *cli, int argc, char **argv)
{
    struct cli_list data = {.count = 0}, choices = {.count = 0};
    const char *step_text = NULL, *model;
    struct found f;
    const struct cli_flag flags[] = {
        {"data", 0, CLI_FLAG_LIST, &data, "FILE...",
         .help = "text or records (.txt, .jsonl ..) or tokens (.npy, .bin);\n"
                 "else the validation data of the job, as much as it uses"},
        {"val", 0, CLI_FLAG_TEXT, NULL, "SET",
         .help = "one validation set; else that of checkpoint.best"},
        {"windows", 0, CLI_FLAG_INT, NULL, "N", "the first N windows; else all", .min = 1,
         .max = INT64_C(1) << 40},
        {"choices", 0, CLI_FLAG_LIST, &choices, "FILE...",
         .help = "lines {\"prompt\": P, \"choices\": [..], \"answer\": I}: acc by\n"
                 "each choice's log-likelihood, acc_norm by it per character"},
        {"limit", 0, CLI_FLAG_INT, NULL, "N", "the first N questions", .min = 1,
         .max = INT64_C(1) << 40},
        {"step", 0, CLI_FLAG_TEXT, &step_text, "N|best",
         .help = "of this step, or of the lowest validation loss; else newest"},
        {"context", 0, CLI_FLAG_INT, NULL, "N",
         "tokens of a window, or of a question at most; else the\n"
         "model's context, of a model folder at most 2048, or 4096",
         .min = 1, .max = 1 << 24},
        {"precision", 0, CLI_FLAG_TEXT, NULL, "P", .choices = "fp32|bf16|fp16",
         .help = "fp32, bf16 or fp16; else the job's, of a model folder fp32"},
        {"threads", 0, CLI_FLAG_INT, NULL, "N", "else one for each core", .min = 1, .max = 4096},
        {"adapter", 0, CLI_FLAG_TEXT, NULL, "DIR", .joins = true},
        {"base", 0, CLI_FLAG_TEXT, NULL, "DIR", .help = "as of heddle generate"},
        {"weights", 0, CLI_FLAG_TEXT, NULL, "W", .joins = true},
        {"device", 0, CLI_FLAG_TEXT, NULL, "D", .joins = true},
        {"tp", 0, CLI_FLAG_TEXT, NULL, "N", .joins = true},
        {"pp", 0, CLI_FLAG_TEXT, NULL, "M", .help = "likewise, with --choices"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1 << 20);

    if (code == CLI_CONTINUE)
        code = check_eval_flags(cli, data.count, choices.count);
    if (code != CLI_CONTINUE)
        return code;
    code = found_model(cli, step_text, &f, &model);
    if (code == CLI_CONTINUE)
        code = cli_fail(exec_eval(cli, choices.count ? &choices : &data, choices.count, model));
    found_done(&f);
    return code;
}

const struct cli_body cli_body_eval = {
    .usage = "Usage: heddle eval JOB|DIR [--data FILE... | --val SET] [--windows N] ...\n"
             "       heddle eval JOB|DIR --choices FILE... [--limit N] [--weights W] ...\n",
    .about = "Loss (nats per token) and perplexity per token and byte of a model, without\n"
             "training: of the newest checkpoint of a job or folder, or of a model folder.\n"
             "Windows are those of validation. Or how it answers multiple choice.\n",
    .examples = "heddle eval 7 --step best --data wikitext/test.txt",
    .run = cli_eval,
};
