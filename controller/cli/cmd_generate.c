/* generate: generates text with a trained model; heddle-worker does the work. */
#include "controller/cli/found.h"
#include "controller/cli/process.h"

enum { CLI_DRAFTS_MAX = 8 }; /* HD_DECODER_DRAFTS_MAX */

/* Flags, passed to heddle-worker under the same names. NULL: not given. */
struct generate {
    const char *prompt, *max_tokens, *temperature, *top_k, *top_p, *seed, *base, *adapter;
    const char *system, *template, *date, *precision, *weights, *device, *tp, *pp, *draft;
    bool greedy, chat;
};

static enum hd_status exec_generate(const struct generate *g, const char *checkpoint)
{
    const struct {
        const char *flag, *value;
    } values[] = {
        {"--prompt", g->prompt},
        {"--max-tokens", g->max_tokens},
        {"--temperature", g->temperature},
        {"--top-k", g->top_k},
        {"--top-p", g->top_p},
        {"--seed", g->seed},
        {"--system", g->system},
        {"--template", g->template},
        {"--date", g->date},
        {"--base", g->base},
        {"--adapter", g->adapter},
        {"--precision", g->precision},
        {"--weights", g->weights},
        {"--device", g->device},
        {"--tp", g->tp},
        {"--pp", g->pp},
        {"--draft", g->draft},
    };
    const char *argv[44] = {NULL, "generate", "--checkpoint", checkpoint};
    size_t n = 4;

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (!values[i].value)
            continue;
        argv[n++] = values[i].flag;
        argv[n++] = values[i].value;
    }
    if (g->greedy)
        argv[n++] = "--greedy";
    if (g->chat)
        argv[n++] = "--chat";
    return process_become("heddle-worker", argv);
}

static int check_numbers(const struct generate *g)
{
    int64_t i;
    double d;

    if (g->max_tokens && hd_text_to_int64(g->max_tokens, 1, 1 << 24, &i))
        return cli_usage("generate: --max-tokens: %s", hd_err_message());
    if (g->temperature && hd_text_to_double(g->temperature, 0, 100, &d))
        return cli_usage("generate: --temperature: %s", hd_err_message());
    if (g->top_k && hd_text_to_int64(g->top_k, 0, 1 << 24, &i))
        return cli_usage("generate: --top-k: %s", hd_err_message());
    if (g->top_p && hd_text_to_double(g->top_p, 0, 1, &d))
        return cli_usage("generate: --top-p: %s", hd_err_message());
    if (g->seed && hd_text_to_int64(g->seed, 0, INT64_MAX, &i))
        return cli_usage("generate: --seed: %s", hd_err_message());
    if (g->draft && hd_text_to_int64(g->draft, 0, CLI_DRAFTS_MAX, &i))
        return cli_usage("generate: --draft: %s", hd_err_message());
    if (!g->chat && (g->system || g->template || g->date))
        return cli_usage("generate: --system, --template and --date are for --chat");
    if (g->greedy && (g->temperature || g->top_k || g->top_p))
        return cli_usage(
            "generate: --greedy takes the most likely token, so --temperature, --top-k and "
            "--top-p have no effect; leave them or --greedy out");
    return CLI_CONTINUE;
}

int cli_generate(struct cli *cli, int argc, char **argv)
{
    struct generate g = {.prompt = NULL};
    const char *step_text = NULL, *model;
    struct found f;
    const struct cli_flag flags[] = {
        {"prompt", 0, CLI_FLAG_WORDS, &g.prompt, 0, 0},
        {"max-tokens", 0, CLI_FLAG_TEXT, &g.max_tokens, 0, 0},
        {"temperature", 0, CLI_FLAG_TEXT, &g.temperature, 0, 0},
        {"top-k", 0, CLI_FLAG_TEXT, &g.top_k, 0, 0},
        {"top-p", 0, CLI_FLAG_TEXT, &g.top_p, 0, 0},
        {"seed", 0, CLI_FLAG_TEXT, &g.seed, 0, 0},
        {"greedy", 0, CLI_FLAG_BOOL, &g.greedy, 0, 0},
        {"chat", 0, CLI_FLAG_BOOL, &g.chat, 0, 0},
        {"system", 0, CLI_FLAG_WORDS, &g.system, 0, 0},
        {"template", 0, CLI_FLAG_TEXT, &g.template, 0, 0},
        {"date", 0, CLI_FLAG_TEXT, &g.date, 0, 0},
        {"base", 0, CLI_FLAG_TEXT, &g.base, 0, 0},
        {"adapter", 0, CLI_FLAG_TEXT, &g.adapter, 0, 0},
        {"precision", 0, CLI_FLAG_TEXT, &g.precision, 0, 0},
        {"weights", 0, CLI_FLAG_TEXT, &g.weights, 0, 0},
        {"device", 0, CLI_FLAG_TEXT, &g.device, 0, 0},
        {"tp", 0, CLI_FLAG_TEXT, &g.tp, 0, 0},
        {"pp", 0, CLI_FLAG_TEXT, &g.pp, 0, 0},
        {"draft", 0, CLI_FLAG_TEXT, &g.draft, 0, 0},
        {"step", 0, CLI_FLAG_TEXT, &step_text, 0, 0},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE && !g.prompt)
        code = cli_usage(
            "generate: --prompt is missing; give the text to continue, such as --prompt 'Once'");
    if (code == CLI_CONTINUE)
        code = check_numbers(&g);
    if (code != CLI_CONTINUE)
        return code;
    code = found_model(cli, step_text, &f, &model);
    if (code == CLI_CONTINUE)
        code = cli_fail(exec_generate(&g, model));
    found_done(&f);
    return code;
}
