/* show-node: one machine of the cluster with its devices. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

static const struct table_column columns[] = {
    {"DEVICE", true},  {"KIND", false}, {"MODEL", false},  {"MEMORY", true},
    {"THREADS", true}, {"JOB", true},   {"ATTEMPT", true}, {"PROBLEM", false},
};

static void add_line(struct hd_text *out, const char *name, const char *value)
{
    if (!*value)
        return;
    hd_text_add(out, "  %-13s ", name);
    cli_add_people(out, value);
    hd_text_add(out, "\n");
}

static void add_device(struct table *table, const Heddle__V1__DeviceInfo *d)
{
    char word[CLI_WORD_MAX], memory[32] = "";

    if (d->memory_bytes)
        hd_text_format_bytes(d->memory_bytes, memory);
    table_begin_row(table);
    table_add(table, NULL, "%d", d->index);
    table_add(table, NULL, "%s", cli_device_kind(d->kind, word));
    table_add(table, NULL, "%s", d->name);
    table_add(table, NULL, "%s", memory);
    table_add(table, NULL, "%d", d->threads);
    if (d->job) {
        table_add(table, NULL, "%" PRIu64, d->job);
        table_add(table, NULL, "%d", d->attempt);
    } else {
        table_add(table, NULL, "%s", d->held ? "another" : "");
        table_add(table, NULL, "%s", "");
    }
    table_add(table, *d->problem ? "33" : NULL, "%s", d->problem);
}

static void add_node_text(const struct cli *cli, const Heddle__V1__NodeStatus *n,
                          struct hd_text *out)
{
    char word[CLI_WORD_MAX], when[HD_CLOCK_TEXT_MAX] = "";
    struct table table;

    hd_text_add(out, "node ");
    cli_add_clean(out, n->name);
    hd_text_add(out, " %s\n", cli_node_state(n->state, word));
    add_line(out, "reason", n->reason);
    add_line(out, "build", n->build);
    add_line(out, "uuid", n->node_uuid);
    add_line(out, "data address", n->data_address);
    add_line(out, "jobs folder", n->jobs_dir_visible ? "seen" : n->jobs_dir_problem);
    if (n->isolation) {
        add_line(out, "isolation", n->isolation->mode);
        add_line(out, "bounded by", n->isolation->tier);
        add_line(out, "locks", n->isolation->locks);
        add_line(out, "lacks", n->isolation->lacks);
        add_line(out, "users", n->isolation->users);
    }
    if (n->seen_unix_ms)
        hd_clock_format_utc(n->seen_unix_ms, when);
    add_line(out, "last message", when);
    if (n->drain_deadline_unix_ms) {
        hd_clock_format_utc(n->drain_deadline_unix_ms, when);
        add_line(out,
                 n->drain_deadline_unix_ms > cli_now_ms(cli) ? "jobs leave by" : "jobs left by",
                 when);
    }
    if (!n->n_devices)
        return;
    hd_text_add(out, "\n");
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < n->n_devices; i++)
        add_device(&table, n->devices[i]);
    table_render(&table, cli->colour, cli->format == CLI_WIDE ? 0 : table_terminal_columns(), out);
    table_done(&table);
}

static void print_one_node(const struct cli *cli, const Heddle__V1__NodeStatus *node)
{
    struct hd_text out = {0};
    struct show_list list;

    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "NodeList", "node");
        show_item_begin(&list);
        show_node(&list.writer, node);
        show_item_end(&list);
        show_list_end(&list);
    } else {
        add_node_text(cli, node, &out);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}

int cli_show_node(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *response = NULL;
    const Heddle__V1__NodeStatus *found = NULL;
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                        &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    cli_warn(response->warning);
    for (size_t i = 0; i < response->n_nodes; i++)
        if (strcmp(response->nodes[i]->name, cli->args[0]) == 0)
            found = response->nodes[i];
    if (found)
        print_one_node(cli, found);
    else
        code = cli_fail(
            hd_err(HD_NOT_FOUND, "there is no node %.64s; heddle nodes lists them", cli->args[0]));
    hd_rpc_message_free(&response->base);
    return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
}
