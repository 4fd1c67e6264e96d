/* config: prints the settings of configuration files, environment and flags, each with its origin.
 */
#include <stdio.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/contexts.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

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

static const struct table_column columns[] = {{"KEY", false}, {"VALUE", false}, {"FROM", false}};

static void add_value(struct table *table, struct show_list *list, const char *key,
                      const struct context_value *value)
{
    if (list) {
        show_item_begin(list);
        hd_json_add_string(&list->writer, "key", key);
        if (value->text)
            hd_json_add_string(&list->writer, "value", value->text);
        else
            hd_json_add_null(&list->writer, "value");
        hd_json_add_string(&list->writer, "from", value->from);
        show_item_end(list);
        return;
    }
    table_begin_row(table);
    table_add(table, NULL, "%s", key);
    table_add(table, NULL, "%s", value->text ? value->text : "-");
    table_add(table, NULL, "%s", value->from);
}

static int config_show(struct cli *cli)
{
    const char *const given[CONTEXT_KEY_COUNT] = {cli->controller, cli->token_file, cli->tls_ca,
                                                  cli->tls_cert};
    const bool json = cli->format >= CLI_JSON;
    struct hd_text out = {0};
    struct contexts found;
    struct show_list list;
    struct table table;
    enum hd_status st = contexts_find(cli->context, given, &found);

    if (st) {
        contexts_done(&found);
        return cli_fail(st);
    }
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    if (json)
        show_list_begin(&list, &out, cli->format, "Configuration", "setting");
    add_value(&table, json ? &list : NULL, "context", &found.context);
    for (int key = 0; key < CONTEXT_KEY_COUNT; key++)
        add_value(&table, json ? &list : NULL, context_key_names[key], &found.values[key]);
    if (json)
        show_list_end(&list);
    else
        table_render(&table, cli->colour, 0, &out);
    (void)cli_out(&out);
    table_done(&table);
    hd_text_free(&out);
    contexts_done(&found);
    return cli_out_end(CLI_OK);
}

int cli_config(struct cli *cli, int argc, char **argv)
{
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    if (strcmp(cli->args[0], "show") == 0)
        return config_show(cli);
    if (strcmp(cli->args[0], "example") != 0)
        return cli_usage("config: %s is not show or example", cli->args[0]);
    (void)fputs(example_file, stdout);
    return cli_out_end(CLI_OK);
}
