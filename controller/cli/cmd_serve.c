/* serve: serves a trained model over HTTP, by heddle-serve. */
#include "controller/cli/found.h"
#include "controller/cli/process.h"

enum { FLAG_COUNT = 23 };

/* Flags, passed to heddle-serve under the same names; heddle-serve checks them. */
static const char *const names[FLAG_COUNT] = {
    "listen",    "name",     "base",     "adapter", "precision", "weights", "device",    "context",
    "sequences", "template", "threads",  "cert",    "key",       "tokens",  "http-host", "queue",
    "timeout",   "grace",    "body-max", "tp",      "pp",        "date",    "draft"};

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
    const char *values[FLAG_COUNT] = {NULL}, *step_text = NULL, *model;
    struct cli_flag flags[FLAG_COUNT + 1] = {
        {"step", 0, CLI_FLAG_TEXT, &step_text, 0, 0},
    };
    struct found f;
    int code;

    for (int i = 0; i < FLAG_COUNT; i++)
        flags[1 + i] = (struct cli_flag){names[i], 0, CLI_FLAG_TEXT, &values[i], 0, 0};
    code = cli_parse(cli, argc, argv, flags, FLAG_COUNT + 1, 1, 1);
    if (code != CLI_CONTINUE)
        return code;
    code = found_model(cli, step_text, &f, &model);
    if (code == CLI_CONTINUE)
        code = cli_fail(exec_serve(values, model));
    found_done(&f);
    return code;
}
