/* config: prints the settings of configuration files, environment and flags, each with its origin.
 */
#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/contexts.h"
#include "controller/cli/rows.h"

static const char example_file[] =
    "# client.yaml: how heddle finds its controller. For all users /etc/heddle/client.yaml, for "
    "one\n"
    "# ~/.config/heddle/client.yaml, which comes first. Flags and the environment "
    "(HEDDLE_CONTEXT,\n"
    "# HEDDLE_CONTROLLER, HEDDLE_TOKEN_FILE, HEDDLE_TLS_CA) win. See it with  heddle config show\n"
    "\n"
    "# the context that is taken where --context names none\n"
    "#context: prod\n"
    "\n"
    "# a controller each, with what goes to no other: the token, and who signed its certificate\n"
    "#contexts:\n"
    "#  prod:\n"
    "#    controller: 10.0.0.1:7070\n"
    "#    token_file: ~/.config/heddle/prod-token\n"
    "#    tls_ca: /etc/heddle/ca.pem\n"
    "#    tls_cert: ~/.config/heddle/prod.pem\n"
    "\n"
    "# without contexts, the same keys stand alone\n"
    "#controller: unix:/run/heddle/controller.sock\n"
    "#token_file: ~/.config/heddle/token\n"
    "#tls_ca: /etc/heddle/ca.pem\n";

struct setting {
    const char *key, *value, *from;
};

static const struct rows_column columns[] = {
    {"KEY", ROWS_OF(struct setting, key), .json = "key"},
    {"VALUE", ROWS_OF(struct setting, value), .json = "value"},
    {"FROM", ROWS_OF(struct setting, from), .json = "from"},
};
static const struct rows_kind setting_rows = {"Configuration", "setting", ROWS_COLUMNS(columns),
                                              .is_uncut = true};

static void add_value(struct cli_rows *rows, const char *key, const struct context_value *value)
{
    rows_add(rows, &(struct setting){key, value->text, value->from});
}

static int config_show(struct cli *cli)
{
    const char *const given[CONTEXT_KEY_COUNT] = {cli->controller, cli->token_file, cli->tls_ca,
                                                  cli->tls_cert};
    struct contexts found;
    struct cli_rows rows;
    enum hd_status st = contexts_find(cli->context, given, &found);
    int code;

    rows_begin(&rows, cli, &setting_rows);
    if (!st) {
        add_value(&rows, "context", &found.context);
        for (int key = 0; key < CONTEXT_KEY_COUNT; key++)
            add_value(&rows, context_key_names[key], &found.values[key]);
    }
    code = rows_end(&rows, st ? cli_fail(st) : CLI_CONTINUE);
    contexts_done(&found);
    return code;
}

static int cli_config(struct cli *cli, int argc, char **argv)
{
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    if (cli_is_verb(cli, "show"))
        return config_show(cli);
    (void)fputs(example_file, stdout);
    return cli_out_end(CLI_OK);
}

static const struct cli_verb config_verbs[] = {
    {"show", 0, 0, NULL},
    {"example", 0, 0, NULL},
};

const struct cli_body cli_body_config = {
    .usage = "Usage: heddle config show [-o FORMAT]\n"
             "       heddle config example\n",
    .about = "show prints which controller, token and authority a command would use, and where\n"
             "each value came from: a flag, the environment, or a line of a configuration file\n"
             "(~/.config/heddle/client.yaml, then /etc/heddle/client.yaml; HEDDLE_CONFIG names\n"
             "another). example prints a file with all keys.\n",
    .examples = "heddle config show --context prod",
    CLI_VERBS(config_verbs),
    .run = cli_config,
};
