/* serve: serves a trained model over HTTP, by heddle-serve. */
#include "controller/cli/fetch.h"
#include "controller/cli/found.h"
#include "controller/cli/process.h"

enum { FLAG_COUNT = 22 };

/* Flags, passed to heddle-serve under the same names; heddle-serve checks them. */
static const char *const names[FLAG_COUNT] = {
    "listen",    "name",     "base",     "adapter", "precision", "weights", "device",    "context",
    "sequences", "template", "threads",  "cert",    "key",       "tokens",  "http-host", "queue",
    "timeout",   "grace",    "body-max", "tp",      "pp",        "date"};

static enum hd_status exec_serve(const char *const values[FLAG_COUNT], const char *model)
{
    const char *argv[4 + 2 * FLAG_COUNT + 1] = {NULL, "--checkpoint", model};
    struct hd_text flags[FLAG_COUNT] = {{0}};
    size_t n = 3;
    enum hd_status st = HD_OK;

    for (int i = 0; i < FLAG_COUNT; i++) {
        if (!values[i])
            continue;
        hd_text_add(&flags[i], "--%s", names[i]);
        if (flags[i].failed)
            st = hd_err(HD_NO_MEMORY, "no memory for the arguments");
        argv[n++] = flags[i].data;
        argv[n++] = values[i];
    }
    if (!st)
        st = process_become("heddle-serve", argv);
    for (int i = 0; i < FLAG_COUNT; i++)
        hd_text_free(&flags[i]);
    return st;
}

int cli_serve(struct cli *cli, int argc, char **argv)
{
    const char *values[FLAG_COUNT] = {NULL}, *step_text = NULL;
    struct cli_flag flags[FLAG_COUNT + 1] = {
        {"step", 0, CLI_FLAG_TEXT, &step_text, 0, 0},
    };
    int64_t step = FOUND_NEWEST;
    struct found f;
    char model[PATH_MAX];
    int code;

    for (int i = 0; i < FLAG_COUNT; i++)
        flags[1 + i] = (struct cli_flag){names[i], 0, CLI_FLAG_TEXT, &values[i], 0, 0};
    code = cli_parse(cli, argc, argv, flags, FLAG_COUNT + 1, 1, 1);
    if (code == CLI_CONTINUE)
        code = found_parse_step("serve", step_text, &step);
    if (code == CLI_CONTINUE)
        code = fetch_argument(cli, model);
    if (code != CLI_CONTINUE)
        return code;
    if (found_is_model(cli->args[0])) {
        if (step_text)
            return cli_usage("serve: --step: %s is a model folder, which has no steps",
                             cli->args[0]);
        return cli_fail(exec_serve(values, cli->args[0]));
    }
    code = found_open(cli, cli->args[0], false, &f);
    if (code == CLI_CONTINUE) {
        const enum hd_status st = found_keep(&f, cli->args[0], step);

        code = st ? cli_fail(st) : CLI_CONTINUE;
    }
    cli_disconnect(cli);
    if (code == CLI_CONTINUE)
        code = cli_fail(exec_serve(values, f.items[0].path));
    found_done(&f);
    return code;
}
