/* nodes, show-node, drain, undrain, node: lists, shows and manages the machines of the cluster. */
#include <string.h>

#include "base/clock.h"
#include "controller/cli/rows.h"
#include "controller/cli/say.h"

/* Fills the jobs of a node, "7,9", each once, in the order of its devices; "another" replaces
 * jobs that the caller may not see. */
static void add_jobs_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    struct hd_text out = {0};
    uint64_t last = 0;
    bool others = false;

    for (size_t i = 0; i < n->n_devices; i++) {
        uint64_t job = n->devices[i]->job;

        if (job && job != last)
            hd_text_add(&out, "%s%llu", last ? "," : "", (unsigned long long)job);
        last = job ? job : last;
        others |= !job && n->devices[i]->held;
    }
    if (others)
        hd_text_add(&out, "%sanother", last ? "," : "");
    rows_text_cell(rows, NULL, &out);
}

/* Fills "cpu", or for a node with several kinds "2 cuda, 4 cpu", in the order of their first
 * devices. */
static void add_kinds_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    struct hd_text out = {0};
    char word[CLI_WORD_MAX];

    for (size_t i = 0; i < n->n_devices; i++) {
        size_t before = 0, count = 0;

        for (size_t k = 0; k < n->n_devices; k++) {
            before += k < i && n->devices[k]->kind == n->devices[i]->kind;
            count += n->devices[k]->kind == n->devices[i]->kind;
        }
        if (before)
            continue;
        if (count < n->n_devices)
            hd_text_add(&out, "%s%zu ", i ? ", " : "", count);
        hd_text_add(&out, "%s", cli_device_kind(n->devices[i]->kind, word));
    }
    rows_text_cell(rows, NULL, &out);
}

/* Fills the number of threads of a node's CPU devices; GPUs have none. */
static void add_threads_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    int threads = 0;

    for (size_t i = 0; i < n->n_devices && !threads; i++)
        threads = n->devices[i]->threads;
    rows_cell(rows, NULL, "%d", threads);
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

/* Returns whether the node's reason says no more than its state: "is lost". */
static bool is_state(const Heddle__V1__NodeStatus *n)
{
    char word[CLI_WORD_MAX];

    return strncmp(n->reason, "is ", 3) == 0 &&
           strcmp(n->reason + 3, cli_node_state(n->state, word)) == 0;
}

/* Fills why the node, or some of its devices, get no jobs; and when its running jobs will leave it.
 * The remedy is shown by show-node and in the wide table. */
static void add_reason_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    const struct cli *cli = rows->cli;
    struct hd_text out = {0};
    const char *reason = !*n->reason ? n->jobs_dir_problem : is_state(n) ? "" : n->reason;
    const size_t length = cli->format == CLI_WIDE ? strlen(reason) : first_clause(reason);
    const Heddle__V1__DeviceInfo *first = NULL;
    size_t broken = 0;

    for (size_t i = 0; i < n->n_devices; i++) {
        first = first || !*n->devices[i]->problem ? first : n->devices[i];
        broken += *n->devices[i]->problem != '\0';
    }
    hd_text_add(&out, "%.*s", (int)length, reason);
    if (reason[length])
        hd_text_add(&out, " (heddle show-node %s)", n->name);
    if (n->drain_deadline_unix_ms && n->state != HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINED) {
        hd_text_add(&out, "%s", out.len_bytes ? "; " : "");
        cli_add_deadline(cli, n->drain_deadline_unix_ms, &out);
    }
    if (broken)
        hd_text_add(&out, "%sdevice %d: %s", out.len_bytes ? "; " : "", first->index,
                    first->problem);
    if (broken > 1)
        hd_text_add(&out, " (and %zu more)", broken - 1);
    rows_text_cell(rows, NULL, &out);
}

static bool is_ready(const Heddle__V1__NodeStatus *n)
{
    return n->state == HEDDLE__V1__NODE_STATE__NODE_STATE_READY;
}

static void add_node_state_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    char word[CLI_WORD_MAX];

    rows_cell(rows, is_ready(n) ? "32" : "33", "%s", cli_node_state(n->state, word));
}

static void add_free_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    size_t free_devices = 0;

    for (size_t i = 0; i < n->n_devices; i++)
        free_devices += !show_is_held(n->devices[i]) && !*n->devices[i]->problem;
    rows_cell(rows, NULL, "%zu", is_ready(n) ? free_devices : 0);
}

static const struct rows_column node_columns[] = {
    {"NODE", ROWS_OF(Heddle__V1__NodeStatus, name)},
    {"STATE", .cell = add_node_state_cell},
    {"DEVICES", .text = "{devices}", .right = true},
    {"FREE", .cell = add_free_cell, .right = true},
    {"JOBS", .cell = add_jobs_cell},
    {"SEEN", ROWS_OF(Heddle__V1__NodeStatus, seen_unix_ms), .form = ROWS_WHEN},
    {"KIND", .cell = add_kinds_cell, .in_width = ROWS_WIDE_ONLY},
    {"THREADS", .cell = add_threads_cell, .right = true, .in_width = ROWS_WIDE_ONLY},
    {"UUID", ROWS_OF(Heddle__V1__NodeStatus, node_uuid), .in_width = ROWS_WIDE_ONLY},
    {"BUILD", ROWS_OF(Heddle__V1__NodeStatus, build), .in_width = ROWS_WIDE_ONLY},
    {"DATA ADDRESS", ROWS_OF(Heddle__V1__NodeStatus, data_address), .in_width = ROWS_WIDE_ONLY},
    {"ISOLATION", .text = "{isolation.tier|isolation.mode}", .in_width = ROWS_WIDE_ONLY},
    {"REASON", .cell = add_reason_cell},
};
static const struct rows_kind node_rows = {"NodeList", "node", ROWS_COLUMNS(node_columns),
                                           .json = show_node_form};

static int cli_nodes(struct cli *cli, int argc, char **argv)
{
    const Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, 0);

    return code == CLI_CONTINUE ? rows_ask(cli, "ListNodes", &request.base, "nodes", &node_rows)
                                : code;
}

const struct cli_body cli_body_nodes = {
    .usage = "Usage: heddle nodes [-o FORMAT]\n",
    .about = "Lists the nodes of the cluster with their devices and the jobs on them.\n",
    .examples = "heddle nodes -o wide",
    .run = cli_nodes,
};

/* ---- one node ---- */

static void add_device_job_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__DeviceInfo *d = item;

    if (d->job)
        rows_cell(rows, NULL, "%llu", (unsigned long long)d->job);
    else
        rows_cell(rows, NULL, "%s", d->held ? "another" : "");
}

static void add_problem_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__DeviceInfo *d = item;

    rows_cell(rows, *d->problem ? "33" : NULL, "%s", d->problem);
}

static const struct rows_column device_columns[] = {
    {"DEVICE", ROWS_OF(Heddle__V1__DeviceInfo, index)},
    {"KIND", .text = "{kind}"},
    {"MODEL", ROWS_OF(Heddle__V1__DeviceInfo, name)},
    {"MEMORY", ROWS_OF(Heddle__V1__DeviceInfo, memory_bytes), .form = ROWS_SOME_BYTES},
    {"THREADS", ROWS_OF(Heddle__V1__DeviceInfo, threads)},
    {"JOB", .cell = add_device_job_cell, .right = true},
    {"ATTEMPT", ROWS_OF(Heddle__V1__DeviceInfo, attempt), .form = ROWS_SOME},
    {"PROBLEM", .cell = add_problem_cell},
};
static const struct rows_kind device_rows = {NULL, NULL, ROWS_COLUMNS(device_columns)};

static void add_node_text(const struct cli *cli, struct hd_text *out, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    const bool is_past = n->drain_deadline_unix_ms <= cli_now_ms(cli);
    const char *const facts[][2] = {
        {"  reason", "{reason:people}"},
        {"  build", "{build}"},
        {"  uuid", "{node_uuid}"},
        {"  data address", "{data_address}"},
        {"  jobs folder", "[{jobs_dir_visible?}seen]{jobs_dir_problem}"},
        {"  isolation", "{isolation.mode}"},
        {"  bounded by", "{isolation.tier}"},
        {"  locks", "{isolation.locks}"},
        {"  lacks", "{isolation.lacks}"},
        {"  users", "{isolation.users}"},
        {"  last message", "[{seen_unix_ms:utc}]"},
        {is_past ? "  jobs left by" : "  jobs leave by", "[{drain_deadline_unix_ms:utc}]"},
    };
    struct cli_rows devices;

    cli_say(out, n, "node {name} {state}\n");
    cli_say_facts(out, 16, n, CLI_FACTS(facts));
    if (!n->n_devices)
        return;
    hd_text_add(out, "\n");
    rows_begin(&devices, cli, &device_rows);
    for (size_t i = 0; i < n->n_devices; i++)
        rows_add(&devices, n->devices[i]);
    rows_end_in(&devices, out);
}

static const struct rows_kind one_node_rows = {"NodeList", "node", .json = show_node_form,
                                               .line = add_node_text};

static int cli_show_node(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__ListNodesRequest request = HEDDLE__V1__LIST_NODES_REQUEST__INIT;
    Heddle__V1__ListNodesResponse *response = NULL;
    const Heddle__V1__NodeStatus *found = NULL;
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code == CLI_CONTINUE)
        code = cli_call(cli, "ListNodes", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    cli_warn(response->warning);
    for (size_t i = 0; i < response->n_nodes; i++)
        if (strcmp(response->nodes[i]->name, cli->args[0]) == 0)
            found = response->nodes[i];
    code = found ? rows_print_one(cli, &one_node_rows, found)
                 : cli_fail(hd_err(HD_NOT_FOUND, "there is no node %.64s; heddle nodes lists them",
                                   cli->args[0]));
    hd_rpc_message_free(&response->base);
    return code;
}

const struct cli_body cli_body_show_node = {
    .usage = "Usage: heddle show-node NODE [-o FORMAT]\n",
    .about = "Shows one node: its state and why it is not ready, its build, and each device\n"
             "with the job that has it, or with its problem.\n",
    .examples = "heddle show-node n1",
    .run = cli_show_node,
};

/* ---- drain and undrain ---- */

#define MINUTE_MS INT64_C(60000)

/* Appends "node n1 draining; DEADLINE"; of a node that does not answer, and so may not be drained
 * yet, its reason, which is a clause about it: "node n1 is lost; it is drained: disk". */
static void add_node_line(const struct cli *cli, struct hd_text *out, const void *item)
{
    const Heddle__V1__NodeStatus *n = item;
    const bool drained = n->state == HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINED;

    if (*n->reason && n->state != HEDDLE__V1__NODE_STATE__NODE_STATE_DRAINING && !drained)
        cli_say(out, n,
                is_ready(n) ? "node {name} {state}: {reason:people}"
                            : "node {name} {reason:people}");
    else
        cli_say(out, n, "node {name} {state}");
    if (n->drain_deadline_unix_ms && !drained) {
        hd_text_add(out, "; ");
        cli_add_deadline(cli, n->drain_deadline_unix_ms, out);
    }
    hd_text_add(out, "\n");
}

static const struct rows_kind changed_rows = {"NodeList", "node", .json = show_node_form,
                                              .line = add_node_line};

static int cli_drain(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__DrainNodeRequest request = HEDDLE__V1__DRAIN_NODE_REQUEST__INIT;
    const char *reason = NULL;
    const struct cli_flag flags[] = {
        {"reason", 0, CLI_FLAG_WORDS, &reason, "TEXT", .help = "reason that heddle nodes shows"},
        {"deadline", 0, CLI_FLAG_SPAN, &request.deadline_ms, "TIME", .min = 1000,
         .max = CLI_YEAR_MS, .help = "from now, such as 30m or 2h"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    request.node = (char *)cli->args[0];
    request.reason = reason ? (char *)reason : request.reason;
    return rows_ask(cli, "DrainNode", &request.base, "node", &changed_rows);
}

const struct cli_body cli_body_drain = {
    .usage = "Usage: heddle drain NODE [--reason TEXT] [--deadline TIME] [-o FORMAT]\n",
    .about = "Gives a node no new attempts; those that it has go on to their end. With\n"
             "--deadline they write a checkpoint and leave as soon as they fit on other\n"
             "nodes, and then at the latest; their jobs go on from it where they fit.\n",
    .examples = "heddle drain n7 --reason 'new disk on Monday' --deadline 30m",
    .run = cli_drain,
};

static int cli_undrain(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__UndrainNodeRequest request = HEDDLE__V1__UNDRAIN_NODE_REQUEST__INIT;
    int code = cli_parse(cli, argc, argv, NULL, 0, 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    request.node = cli->args[0];
    return rows_ask(cli, "UndrainNode", &request.base, "node", &changed_rows);
}

const struct cli_body cli_body_undrain = {
    .usage = "Usage: heddle undrain NODE [-o FORMAT]\n",
    .about = "Gives a drained node new attempts again.\n",
    .examples = "heddle undrain n7",
    .run = cli_undrain,
};

/* ---- node rm ---- */

static void show_removed(struct hd_json_writer *w, const void *item)
{
    show_members(w, item, "name=node node_uuid");
    hd_json_add_string(w, "state", "removed");
}

static const struct rows_kind removed_rows = {"NodeList", "node", .show = show_removed,
                                              .text = "node {node} removed\n"};

static int cli_node(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__RemoveNodeRequest request = HEDDLE__V1__REMOVE_NODE_REQUEST__INIT;
    const char *address = NULL;
    int64_t ttl_ms = 0;
    const struct cli_flag flags[] = {
        {"address", 0, CLI_FLAG_TEXT, &address, "HOST:PORT",
         .help = "of the controller, as the node reaches it", .of = "invite"},
        {"ttl", 0, CLI_FLAG_SPAN, &ttl_ms, "TIME", .min = MINUTE_MS, .max = CLI_YEAR_MS,
         .help = "how long the line is valid, such as 90d; else an hour", .of = "invite"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 2);

    if (code != CLI_CONTINUE)
        return code;
    if (cli_is_verb(cli, "invite"))
        return cli_node_invite(cli, address, ttl_ms);
    if (cli_is_verb(cli, "revoke"))
        return cli_node_revoke(cli);
    request.node = (char *)cli->args[1];
    return rows_ask(cli, "RemoveNode", &request.base, NULL, &removed_rows);
}

static const struct cli_verb node_verbs[] = {
    {"rm", 1, 1, "the node's name"},
    {"invite", 1, 1, "the node's name"},
    {"revoke", 1, 1, "the node's name"},
};

const struct cli_body cli_body_node = {
    .usage = "Usage: heddle node rm NODE [-o FORMAT]\n"
             "       heddle node invite NODE [--address HOST:PORT] [--ttl TIME]\n"
             "       heddle node revoke NODE\n",
    .about = "rm removes a node that is gone for good from the list, so that another daemon\n"
             "may have its name: that of a machine that was installed anew, above all. A node\n"
             "with work is not removed, and neither is a connected one, unless it is drained.\n"
             "The heddled of a drained node ends; started again, it joins as a new node. A\n"
             "lost node gives up its name by itself.\n"
             "invite prints one line, with which one machine joins under this name within an\n"
             "hour: heddled join LINE. A NODE such as gpu-* invites any number of machines\n"
             "whose names begin so; each says its own (--node-name), and none can take the\n"
             "name of one that has joined. revoke ends certificates, streams and invitations\n"
             "of a name, or the invitation gpu-*, at once.\n",
    .examples = "heddle node rm n7",
    CLI_VERBS(node_verbs),
    .run = cli_node,
};
