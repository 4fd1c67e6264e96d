/* probe: requests that nodes measure their devices, waits, and shows the results. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/cli/bar.h"
#include "controller/cli/probe_show.h"
#include "controller/cli/rows.h"

enum {
    POLL_MS = 300,
    POLL_MANY_MS = 900, /* poll interval for many nodes, ms: their answer is long */
    MANY = 16,
    PROBE_S = 60,    /* seconds after which a node kills its probe */
    PATIENCE_S = 90, /* seconds after which the node must have reported the end */
    GONE_MS = 1500,  /* time for a restarting or reconnecting heddled to return, ms */
    COLUMNS_MAX = 120
};

/* A node that was asked to measure its devices. */
struct asked_node {
    char *name;
    int64_t ended_before_ms; /* end of its newest probe before the request, node's clock; 0: none */
    bool was_gone;           /* the node did not answer at the latest poll */
};

/* Requests a probe from one node. Returns CLI_CONTINUE if the node measures; else prints its
 * refusal and returns an exit code. */
static int request_probe(struct cli *cli, struct asked_node *node)
{
    Heddle__V1__ProbeNodeRequest request = HEDDLE__V1__PROBE_NODE_REQUEST__INIT;
    Heddle__V1__ProbeNodeResponse *response = NULL;
    int code;

    request.node = node->name;
    code = cli_call(cli, "ProbeNode", &request.base, &response);
    if (response) {
        node->ended_before_ms = response->probe ? response->probe->ended_unix_ms : 0;
        hd_rpc_message_free(&response->base);
    }
    return code;
}

static int read_topology(struct cli *cli, const char *name, Heddle__V1__GetTopologyResponse **ret)
{
    Heddle__V1__GetTopologyRequest request = HEDDLE__V1__GET_TOPOLOGY_REQUEST__INIT;

    if (name)
        request.node = (char *)name;
    return cli_call(cli, "GetTopology", &request.base, ret);
}

static const Heddle__V1__NodeTopology *find_probed(const Heddle__V1__GetTopologyResponse *t,
                                                   const char *name)
{
    for (size_t i = 0; i < t->n_nodes; i++)
        if (strcmp(t->nodes[i]->node, name) == 0)
            return t->nodes[i];
    return NULL;
}

/* Returns whether the node's heddled is gone or does not answer, so that no result will come. */
static bool is_gone(const Heddle__V1__NodeTopology *n)
{
    return n->probe && n->probe->pending && n->silent_ms >= GONE_MS;
}

/* Returns whether the controller has restarted since the request for a probe and lost it. */
static bool is_forgotten(const Heddle__V1__NodeTopology *n, const struct asked_node *node)
{
    return !n->probe || (!n->probe->pending && n->probe->ended_unix_ms == node->ended_before_ms);
}

/* Returns whether the controller dropped the request for a probe because the node is lost. */
static bool was_given_up(const Heddle__V1__NodeTopology *n, const struct asked_node *node)
{
    return is_forgotten(n, node) && node->was_gone && n->silent_ms >= GONE_MS;
}

static size_t count_pending(const Heddle__V1__GetTopologyResponse *t, struct asked_node *nodes,
                            size_t count)
{
    size_t pending = 0;

    for (size_t i = 0; i < count; i++) {
        const Heddle__V1__NodeTopology *n = find_probed(t, nodes[i].name);

        if (!n || !n->probe || !n->probe->pending)
            continue;
        nodes[i].was_gone = is_gone(n);
        pending += !nodes[i].was_gone;
    }
    return pending;
}

static void draw(struct bar *bar, size_t pending, size_t count, int64_t spent_ms)
{
    char line[COLUMNS_MAX];
    int columns;

    if (!bar_is_possible())
        return;
    columns = snprintf(line, sizeof line, "probing: %zu of %zu node%s done, %lld s of at most %d",
                       count - pending, count, count == 1 ? "" : "s", (long long)(spent_ms / 1000),
                       (int)PROBE_S);
    if (columns >= bar_terminal_columns())
        columns = bar_terminal_columns() - 1;
    line[columns > 0 ? columns : 0] = '\0';
    bar_put(bar, line, columns);
}

/* Waits until no node measures any more and gets the topology, in which the results are. */
static int wait_for(struct cli *cli, struct asked_node *nodes, size_t count,
                    Heddle__V1__GetTopologyResponse **ret)
{
    static const volatile sig_atomic_t never = 0; /* never set: Ctrl-C ends the process */
    const struct timespec pause = {.tv_nsec = (count > MANY ? POLL_MANY_MS : POLL_MS) * 1000000L};
    const int64_t begin_ms = hd_clock_now_ms();
    struct bar bar = {0};
    size_t pending;
    int code;

    cli->interrupted = &never; /* makes calls survive a short outage of the controller */
    for (;;) {
        code = read_topology(cli, count == 1 ? nodes[0].name : NULL, ret);
        if (code != CLI_CONTINUE)
            break;
        pending = count_pending(*ret, nodes, count);
        if (!pending || hd_clock_now_ms() - begin_ms > PATIENCE_S * 1000)
            break;
        draw(&bar, pending, count, hd_clock_now_ms() - begin_ms);
        hd_rpc_message_free(&(*ret)->base);
        *ret = NULL;
        (void)nanosleep(&pause, NULL);
    }
    bar_clear(&bar);
    return code;
}

struct probed {
    const Heddle__V1__NodeTopology *node; /* NULL: the node was removed meanwhile */
    const struct asked_node *asked;
};

static bool has_measured(const struct probed *p)
{
    return p->node && !is_forgotten(p->node, p->asked) && !p->node->probe->pending &&
           !*p->node->probe->problem && p->node->probe->measured_unix_ms;
}

static bool has_gone(const struct probed *p)
{
    return is_gone(p->node) || was_given_up(p->node, p->asked);
}

static void show_probed(struct hd_json_writer *w, const void *item)
{
    const struct probed *p = item;

    hd_json_add_string(w, "node", p->asked->name);
    probe_show_json(w, p->node);
    hd_json_add_int64(w, "silent_ms", p->node ? p->node->silent_ms : 0);
    hd_json_add_string(w, "result",
                       !p->node                          ? "removed"
                       : has_measured(p)                 ? "measured"
                       : has_gone(p)                     ? "no_answer"
                       : is_forgotten(p->node, p->asked) ? "forgotten"
                       : p->node->probe->pending         ? "pending"
                                                         : "failed");
}

static void add_probed(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct probed *p = item;

    cli_add_clean(out, p->asked->name);
    hd_text_add(out, ": ");
    if (!p->node) {
        hd_text_add(out, "no result: the node was removed meanwhile\n");
        return;
    }
    if (has_gone(p)) {
        hd_text_add(out,
                    "no result: it has not answered for %lld s; its heddled has stopped, or its "
                    "machine or network is down. Start heddled there, and probe again when heddle "
                    "nodes shows the node ready or drained\n",
                    (long long)(p->node->silent_ms / 1000));
        return;
    }
    if (is_forgotten(p->node, p->asked)) {
        hd_text_add(out, "no result: the controller was started anew meanwhile, or counted the "
                         "node as lost until it was back, and does not know of the question; "
                         "probe again\n");
        return;
    }
    probe_show_age(p->node->probe, false, cli_now_ms(cli), out);
    if (p->node->probe->pending)
        hd_text_add(out, ", for longer than %d s; heddle topo shows its result when there is one",
                    (int)PATIENCE_S);
    hd_text_add(out, "\n");
    probe_show_trouble(p->node, cli_now_ms(cli), out);
    if (has_measured(p))
        probe_show_figures(p->node, out);
}

static const struct rows_kind probed_rows = {"ProbeList", "node", .show = show_probed,
                                             .line = add_probed};

static int show_all(const struct cli *cli, const Heddle__V1__GetTopologyResponse *t,
                    const struct asked_node *nodes, size_t count, int code)
{
    struct cli_rows rows;
    int end;

    rows_begin(&rows, cli, &probed_rows);
    for (size_t i = 0; i < count; i++) {
        const struct probed probed = {find_probed(t, nodes[i].name), &nodes[i]};

        rows_add(&rows, &probed);
        if (!has_measured(&probed))
            code = CLI_FAILED;
    }
    end = rows_end(&rows, CLI_CONTINUE);
    return code == CLI_OK ? end : code;
}

/* Probes nodes[count]; nodes that refuse are left out. */
static int probe(struct cli *cli, struct asked_node *nodes, size_t count)
{
    Heddle__V1__GetTopologyResponse *t = NULL;
    int code = CLI_OK, refused = CLI_OK;
    size_t asked = 0;

    for (size_t i = 0; i < count; i++) {
        code = request_probe(cli, &nodes[i]);
        if (code == CLI_CONTINUE)
            nodes[asked++] = nodes[i];
        else
            refused = code;
    }
    if (!asked)
        return refused;
    cli_note("heddle: %zu node%s measuring, for at most %d s", asked, asked == 1 ? " is" : "s are",
             (int)PROBE_S);
    code = wait_for(cli, nodes, asked, &t);
    if (code == CLI_CONTINUE)
        code = show_all(cli, t, nodes, asked, refused);
    if (t)
        hd_rpc_message_free(&t->base);
    return code;
}

/* Probes all nodes of the cluster. */
static int probe_all(struct cli *cli)
{
    Heddle__V1__GetTopologyResponse *t = NULL;
    int code = read_topology(cli, NULL, &t);
    struct asked_node *nodes;

    if (code != CLI_CONTINUE)
        return code;
    nodes = calloc(t->n_nodes + 1, sizeof *nodes);
    for (size_t i = 0; nodes && i < t->n_nodes; i++)
        nodes[i].name = t->nodes[i]->node;
    if (!nodes)
        code = cli_fail(hd_err(HD_NO_MEMORY, "no memory for a list of nodes"));
    else if (!t->n_nodes)
        code = cli_fail(hd_err(HD_NOT_FOUND, "there are no nodes; see heddle nodes"));
    else
        code = probe(cli, nodes, t->n_nodes);
    free(nodes);
    hd_rpc_message_free(&t->base);
    return code;
}

static int cli_probe(struct cli *cli, int argc, char **argv)
{
    bool all = false;
    const struct cli_flag flags[] = {
        {"all", 0, CLI_FLAG_BOOL, &all, .help = "all nodes at once"},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 1);

    if (code == CLI_CONTINUE && all == (cli->arg_count == 1))
        code = cli_usage("probe: give the name of a node, or --all");
    if (code != CLI_CONTINUE)
        return code;
    return all ? probe_all(cli) : probe(cli, &(struct asked_node){.name = cli->args[0]}, 1);
}

const struct cli_body cli_body_probe = {
    .usage = "Usage: heddle probe NODE|--all [-o FORMAT]\n",
    .about = "Lets nodes measure their GPUs, or their CPU devices where there are none, for at\n"
             "most 60 s, waits, and shows the figures: products by shape and precision,\n"
             "memory, messages between each two devices, collectives, checkpoints. Plans of\n"
             "the controller then go by them. Only idle devices are measured: a node with a\n"
             "job is refused, and a job that starts meanwhile ends the probe. A probe that\n"
             "fails changes nothing. A node whose heddled stops meanwhile is given up at once.\n"
             "A node measures by itself when it is new (heddled --probe). For operators.\n"
             "\n"
             "Exit code 6 if a node was not measured.\n",
    .examples = "heddle probe n1",
    .run = cli_probe,
};
