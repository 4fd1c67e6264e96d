/* eval: computes loss and perplexity, or multiple-choice accuracy, of a trained model;
 * heddle-worker does the work. */
#include <stdlib.h>
#include <string.h>

#include "controller/cli/found.h"
#include "controller/cli/process.h"

/* Flags, passed to heddle-worker under the same names. NULL: not given. */
struct eval {
    struct cli_list data, choices;
    const char *val; /* flag for the job's validation data only */
    const char *windows, *context, *precision, *threads, *base, *adapter;
    const char *limit, *weights, *device, *tp, *pp; /* flags for --choices only */
};

/* Collects the files and starts heddle-worker. Words after JOB|DIR are files, too: a shell expands
 * a pattern after --data to several words. */
static enum hd_status exec_eval(const struct eval *e, const struct cli *cli, const char *model)
{
    const struct {
        const char *flag, *value;
    } values[] = {{"--val", e->val},         {"--windows", e->windows},
                  {"--context", e->context}, {"--precision", e->precision},
                  {"--threads", e->threads}, {"--base", e->base},
                  {"--adapter", e->adapter}, {"--limit", e->limit},
                  {"--weights", e->weights}, {"--device", e->device},
                  {"--tp", e->tp},           {"--pp", e->pp}};
    const struct cli_list *files = e->choices.count ? &e->choices : &e->data;
    const char **argv = calloc((size_t)cli->arg_count + files->count + 32, sizeof *argv);
    size_t n = 1;
    enum hd_status st;

    if (!argv)
        return hd_err(HD_NO_MEMORY, "no memory for the arguments");
    argv[n++] = e->choices.count ? "choices" : "eval";
    argv[n++] = "--checkpoint";
    argv[n++] = model;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (values[i].value) {
            argv[n++] = values[i].flag;
            argv[n++] = values[i].value;
        }
    if (cli->format >= CLI_JSON)
        argv[n++] = cli->format == CLI_JSONL ? "--jsonl" : "--json";
    argv[n++] = "--";
    for (size_t i = 0; i < files->count; i++)
        argv[n++] = files->items[i];
    for (int i = 1; i < cli->arg_count; i++)
        argv[n++] = cli->args[i];
    st = process_become("heddle-worker", argv);
    free(argv);
    return st;
}

static int check_eval_flags(const struct eval *e, const struct cli *cli)
{
    int64_t i;

    if (cli->arg_count > 1 && !e->data.count && !e->choices.count)
        return cli_usage("eval: \"%s\" is one word too many; --data names the data files",
                         cli->args[1]);
    if (e->choices.count && (e->data.count || e->windows || e->val))
        return cli_usage("eval: --choices has questions of its own; without --data, --val and "
                         "--windows");
    if (e->data.count && e->val)
        return cli_usage(
            "eval: --val names validation data of the job; give either --val or --data");
    if (!e->choices.count && (e->limit || e->weights || e->device || e->tp || e->pp))
        return cli_usage("eval: --limit, --weights, --device, --tp and --pp are for --choices");
    if (e->limit && hd_text_to_int64(e->limit, 1, INT64_C(1) << 40, &i))
        return cli_usage("eval: --limit: %s", hd_err_message());
    if (e->windows && hd_text_to_int64(e->windows, 1, INT64_C(1) << 40, &i))
        return cli_usage("eval: --windows: %s", hd_err_message());
    if (e->context && hd_text_to_int64(e->context, 1, 1 << 24, &i))
        return cli_usage("eval: --context: %s", hd_err_message());
    if (e->threads && hd_text_to_int64(e->threads, 1, 4096, &i))
        return cli_usage("eval: --threads: %s", hd_err_message());
    if (e->precision && strcmp(e->precision, "fp32") != 0 && strcmp(e->precision, "bf16") != 0 &&
        strcmp(e->precision, "fp16") != 0)
        return cli_usage("eval: --precision %s is not fp32, bf16 or fp16", e->precision);
    return CLI_CONTINUE;
}

int cli_eval(struct cli *cli, int argc, char **argv)
{
    struct eval e = {.val = NULL};
    const char *step_text = NULL, *model;
    struct found f;
    const struct cli_flag flags[] = {
        {"data", 0, CLI_FLAG_LIST, &e.data, 0, 0},
        {"choices", 0, CLI_FLAG_LIST, &e.choices, 0, 0},
        {"limit", 0, CLI_FLAG_TEXT, &e.limit, 0, 0},
        {"weights", 0, CLI_FLAG_TEXT, &e.weights, 0, 0},
        {"device", 0, CLI_FLAG_TEXT, &e.device, 0, 0},
        {"tp", 0, CLI_FLAG_TEXT, &e.tp, 0, 0},
        {"pp", 0, CLI_FLAG_TEXT, &e.pp, 0, 0},
        {"val", 0, CLI_FLAG_TEXT, &e.val, 0, 0},
        {"step", 0, CLI_FLAG_TEXT, &step_text, 0, 0},
        {"windows", 0, CLI_FLAG_TEXT, &e.windows, 0, 0},
        {"context", 0, CLI_FLAG_TEXT, &e.context, 0, 0},
        {"precision", 0, CLI_FLAG_TEXT, &e.precision, 0, 0},
        {"threads", 0, CLI_FLAG_TEXT, &e.threads, 0, 0},
        {"base", 0, CLI_FLAG_TEXT, &e.base, 0, 0},
        {"adapter", 0, CLI_FLAG_TEXT, &e.adapter, 0, 0},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1 << 20);

    if (code == CLI_CONTINUE)
        code = check_eval_flags(&e, cli);
    if (code != CLI_CONTINUE)
        return code;
    code = found_model(cli, step_text, &f, &model);
    if (code == CLI_CONTINUE)
        code = cli_fail(exec_eval(&e, cli, model));
    found_done(&f);
    return code;
}
