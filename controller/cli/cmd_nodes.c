/* nodes, drain, undrain, node: lists and manages the machines of the cluster. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "controller/cli/identity.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

static const struct table_column node_columns[] = {
    {"NODE", false}, {"STATE", false}, {"DEVICES", true}, {"FREE", true},
    {"JOBS", false}, {"SEEN", true},   {"REASON", false},
};
static const struct table_column node_wide_columns[] = {
    {"NODE", false},   {"STATE", false}, {"DEVICES", true},       {"FREE", true},
    {"JOBS", false},   {"SEEN", true},   {"KIND", false},         {"THREADS", true},
    {"UUID", false},   {"BUILD", false}, {"DATA ADDRESS", false}, {"ISOLATION", false},
    {"REASON", false},
};

/* Appends the jobs of a node, "7,9", each once, in the order of its devices; "another" replaces
 * jobs that the caller may not see. */
static void add_jobs(struct hd_text *out, const Heddle__V1__NodeStatus *n)
{
    uint64_t last = 0;
    bool others = false;

    hd_text_add(out, "%s", "");
    for (size_t i = 0; i < n->n_devices; i++) {
        uint64_t job = n->devices[i]->job;

        if (job && job != last)
            hd_text_add(out, "%s%llu", last ? "," : "", (unsigned long long)job);
        last = job ? job : last;
        others |= !job && n->devices[i]->held;
    }
    if (others)
        hd_text_add(out, "%sanother", last ? "," : "");
}

/* Appends "cpu", or for a node with several kinds "2 cuda, 4 cpu", in the order of their first
 * devices. */
static void add_kinds(struct hd_text *out, const Heddle__V1__NodeStatus *n)
{
    char word[CLI_WORD_MAX];

    hd_text_add(out, "%s", "");
    for (size_t i = 0; i < n->n_devices; i++) {
        size_t before = 0, count = 0;

        for (size_t k = 0; k < n->n_devices; k++) {
            before += k < i && n->devices[k]->kind == n->devices[i]->kind;
            count += n->devices[k]->kind == n->devices[i]->kind;
        }
        if (before)
            continue;
        if (count < n->n_devices)
            hd_text_add(out, "%s%zu ", i ? ", " : "", count);
        hd_text_add(out, "%s", cli_device_kind(n->devices[i]->kind, word));
    }
}

/* Returns the number of threads of a node's CPU devices; GPUs have none. */
static int threads_of(const Heddle__V1__NodeStatus *n)
{
    int threads = 0;

    for (size_t i = 0; i < n->n_devices && !threads; i++)
        threads = n->devices[i]->threads;
    return threads;
}

/* Returns the length of the first clause of a reason, up to "; " or ". " outside parentheses. */
static size_t first_clause(const char *reason)
{
    int depth = 0;
    size_t i = 0;

    for (; reason[i]; i++) {
        depth += (reason[i] == '(') - (reason[i] == ')');
        if (depth <= 0 && (reason[i] == ';' || reason[i] == '.') && reason[i + 1] == ' ')
            break;
    }
    return i;
}

/* Adds why the node, or some of its devices, get no jobs; and when its running jobs will leave it.
 * The remedy is shown by show-node and in the wide table. */
static void add_reason(const struct cli *cli, struct hd_text *out, const Heddle__V1__NodeStatus *n)
{
    const char *reason = *n->reason ? n->reason : n->jobs_dir_problem;
    const size_t length = cli->format == CLI_WIDE ? strlen(reason) : first_clause(reason);
    const Heddle__V1__DeviceInfo *first = NULL;
    size_t broken = 0;

    for (size_t i = 0; i < n->n_devices; i++) {
        first = first || !*n->devices[i]->problem ? first : n->devices[i];
        broken += *n->devices[i]->problem != '\0';
    }
    hd_text_add(out, "%.*s", (int)length, reason);
    if (reason[length])
        hd_text_add(out, " (heddle show-node %s)", n->name);
    if (n->drain_deadline_unix_ms && n->state != HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINED) {
        hd_text_add(out, "%s", out->len_bytes ? "; " : "");
        cli_add_deadline(cli, n->drain_deadline_unix_ms, out);
    }
    if (broken && out->data)
        hd_text_add(out, "%sdevice %d: %s", out->len_bytes ? "; " : "", first->index,
                    first->problem);
    if (broken > 1)
        hd_text_add(out, " (and %zu more)", broken - 1);
}

static void add_node_row(const struct cli *cli, struct table *table,
                         const Heddle__V1__NodeStatus *n)
{
    char word[CLI_WORD_MAX], when[HD_CLOCK_TEXT_MAX];
    bool ready = n->state == HEDDLE__V1__NODE_STATE__NODE_STATE_READY;
    struct hd_text jobs = {0}, kinds = {0}, reason = {0};
    size_t free_devices = 0;

    for (size_t i = 0; i < n->n_devices; i++)
        free_devices += !show_is_held(n->devices[i]) && !*n->devices[i]->problem;
    add_jobs(&jobs, n);
    cli_format_when(cli, n->seen_unix_ms, cli->format, when);
    table_begin_row(table);
    table_add(table, NULL, "%s", n->name);
    table_add(table, ready ? "32" : "33", "%s", cli_node_state(n->state, word));
    table_add(table, NULL, "%zu", n->n_devices);
    table_add(table, NULL, "%zu", ready ? free_devices : 0);
    table_add(table, NULL, "%s", jobs.failed ? "?" : jobs.data);
    table_add(table, NULL, "%s", when);
    if (cli->format == CLI_WIDE) {
        add_kinds(&kinds, n);
        table_add(table, NULL, "%s", kinds.failed ? "?" : kinds.data);
        table_add(table, NULL, "%d", threads_of(n));
        table_add(table, NULL, "%s", n->node_uuid);
        table_add(table, NULL, "%s", n->build);
        table_add(table, NULL, "%s", n->data_address);
        table_add(table, NULL, "%s",
                  !n->isolation         ? ""
                  : *n->isolation->tier ? n->isolation->tier
                                        : n->isolation->mode);
    }
    add_reason(cli, &reason, n);
    table_add(table, NULL, "%s", reason.failed ? "?" : reason.data);
    hd_text_free(&reason);
    hd_text_free(&jobs);
    hd_text_free(&kinds);
}

static void print_table(struct cli *cli, const Heddle__V1__ListNodesResponse *response,
                        struct hd_text *out)
{
    bool wide = cli->format == CLI_WIDE;
    struct table table;

    table_init(&table, wide ? node_wide_columns : node_columns,
               wide ? sizeof node_wide_columns / sizeof node_wide_columns[0]
                    : sizeof node_columns / sizeof node_columns[0]);
    for (size_t i = 0; i < response->n_nodes; i++)
        add_node_row(cli, &table, response->nodes[i]);
    table_render(&table, cli->colour, wide ? 0 : table_terminal_columns(), out);
    table_done(&table);
}

int cli_nodes(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *response = NULL;
    struct hd_text out = {0};
    struct show_list list;
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, 0);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "ListNodes", &heddle__v1__list_nodes_response__descriptor,
                        &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    cli_warn(response->warning);
    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "NodeList", "node");
        for (size_t i = 0; i < response->n_nodes; i++) {
            show_item_begin(&list);
            show_node(&list.writer, response->nodes[i]);
            show_item_end(&list);
        }
        show_list_end(&list);
    } else {
        print_table(cli, response, &out);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    hd_rpc_message_free(&response->base);
    return cli_out_end(CLI_OK);
}

/* ---- drain and undrain ---- */

#define YEAR_MS ((int64_t)365 * 86400 * 1000)

static int print_node(struct cli *cli, const Heddle__V1__NodeStatus *node)
{
    char word[CLI_WORD_MAX];
    struct hd_text out = {0};
    struct show_list list;

    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "NodeList", "node");
        show_item_begin(&list);
        show_node(&list.writer, node);
        show_item_end(&list);
        show_list_end(&list);
    } else {
        hd_text_add(&out, "node %s %s", node->name, cli_node_state(node->state, word));
        if (node->drain_deadline_unix_ms &&
            node->state != HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINED) {
            hd_text_add(&out, "; ");
            cli_add_deadline(cli, node->drain_deadline_unix_ms, &out);
        }
        if (*node->reason && node->state != HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINING &&
            node->state != HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINED) {
            hd_text_add(&out, ": "); /* the node does not answer, so it may not be drained yet */
            cli_add_clean(&out, node->reason);
        }
        hd_text_add(&out, "\n");
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    return cli_out_end(CLI_OK);
}

int cli_drain(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__DrainNodeRequest request = HEDDLE__V1__DRAIN_NODE_REQUEST__INIT;
    Heddle__V1__DrainNodeResponse *response = NULL;
    const char *reason = NULL, *deadline = NULL;
    const struct cli_flag flags[] = {{"reason", 0, CLI_FLAG_WORDS, &reason, 0, 0},
                                     {"deadline", 0, CLI_FLAG_TEXT, &deadline, 0, 0}};
    int code = cli_parse(cli, argc, argv, flags, 2, 1, 1);

    if (code == CLI_CONTINUE && deadline &&
        hd_clock_read_span(deadline, 1000, YEAR_MS, &request.deadline_ms))
        code = cli_usage("drain: --deadline: %s", hd_err_message());
    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    request.node = (char *)cli->args[0];
    request.reason = reason ? (char *)reason : request.reason;
    code = cli_call(cli, "DrainNode", &heddle__v1__drain_node_response__descriptor, &request.base,
                    &response);
    if (code != CLI_CONTINUE)
        return code;
    code = print_node(cli, response->node);
    hd_rpc_message_free(&response->base);
    return code;
}

int cli_undrain(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__UndrainNodeRequest request = HEDDLE__V1__UNDRAIN_NODE_REQUEST__INIT;
    Heddle__V1__UndrainNodeResponse *response = NULL;
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    request.node = (char *)cli->args[0];
    code = cli_call(cli, "UndrainNode", &heddle__v1__undrain_node_response__descriptor,
                    &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    code = print_node(cli, response->node);
    hd_rpc_message_free(&response->base);
    return code;
}

/* ---- node rm ---- */

static void print_removed(const struct cli *cli, const Heddle__V1__RemoveNodeResponse *response)
{
    struct hd_text out = {0};
    struct show_list list;

    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "NodeList", "node");
        show_item_begin(&list);
        hd_json_add_string(&list.writer, "name", response->node);
        hd_json_add_string(&list.writer, "node_uuid", response->node_uuid);
        hd_json_add_string(&list.writer, "state", "removed");
        show_item_end(&list);
        show_list_end(&list);
    } else {
        hd_text_add(&out, "node %s removed\n", response->node);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}

int cli_node(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__RemoveNodeRequest request = HEDDLE__V1__REMOVE_NODE_REQUEST__INIT;
    Heddle__V1__RemoveNodeResponse *response = NULL;
    const char *address = NULL, *ttl = NULL;
    const struct cli_flag flags[] = {{"address", 0, CLI_FLAG_TEXT, &address, 0, 0},
                                     {"ttl", 0, CLI_FLAG_TEXT, &ttl, 0, 0}};
    int code = cli_parse(cli, argc, argv, flags, 2, 1, 2);

    if (code != CLI_CONTINUE)
        return code;
    if (strcmp(cli->args[0], "rm") != 0 && strcmp(cli->args[0], "invite") != 0 &&
        strcmp(cli->args[0], "revoke") != 0)
        return cli_usage("node: '%s' is not a command of heddle node; these are rm, invite and "
                         "revoke",
                         cli->args[0]);
    if (cli->arg_count < 2)
        return cli_usage("node %s: the node's name is missing; see heddle nodes", cli->args[0]);
    if (strcmp(cli->args[0], "invite") == 0)
        return cli_node_invite(cli, address, ttl);
    if (address || ttl)
        return cli_usage("node %s: --%s is for node invite", cli->args[0],
                         address ? "address" : "ttl");
    if (strcmp(cli->args[0], "revoke") == 0)
        return cli_node_revoke(cli);
    code = cli_connect(cli);
    if (code != CLI_CONTINUE)
        return code;
    request.node = (char *)cli->args[1];
    code = cli_call(cli, "RemoveNode", &heddle__v1__remove_node_response__descriptor, &request.base,
                    &response);
    if (code != CLI_CONTINUE)
        return code;
    print_removed(cli, response);
    hd_rpc_message_free(&response->base);
    return cli_out_end(CLI_OK);
}
