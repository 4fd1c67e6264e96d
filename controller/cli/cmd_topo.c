/* topo: shows switches between nodes, links between devices, and network adapters. */
#include <string.h>

#include "base/clock.h"
#include "controller/cli/probe_show.h"
#include "controller/cli/rows.h"

/* ---- JSON -------------------------------------------------------------------------------------*/

struct topology_row {
    const Heddle__V1__GetTopologyResponse *all;
    const Heddle__V1__NodeTopology *node;
};

static void show_topology(struct hd_json_writer *w, const void *item)
{
    const Heddle__V1__GetTopologyResponse *t = ((const struct topology_row *)item)->all;
    const Heddle__V1__NodeTopology *n = ((const struct topology_row *)item)->node;

    hd_json_add_string(w, "node", n->node);
    hd_json_add_bool(w, "in_cluster_file", n->n_switches > 0);
    hd_json_begin(w, "switches", '[');
    for (size_t k = 0; k < n->n_switches && k < t->n_tiers; k++) {
        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "tier", t->tiers[k]->name);
        hd_json_add_int64(w, "switch", n->switches[k]);
        hd_json_add_real(w, "bytes_per_s", t->tiers[k]->bytes_per_s);
        hd_json_add_real(w, "latency_s", t->tiers[k]->latency_s);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    show_members(w, &n->base,
                 "devices[name] device_numbers=devices[index] silent_ms "
                 "inventory(taken_at=taken_unix_ms@ links(a b kind bytes_per_s direct) "
                 "shared(name devices bytes_per_s) adapters(name numa_node bytes_per_s devices))");
    probe_show_json(w, n);
}

static const struct rows_kind topology_rows = {"TopologyList", "node", .show = show_topology};

static int print_topology(const struct cli *cli, const Heddle__V1__GetTopologyResponse *t)
{
    struct cli_rows rows;

    rows_begin(&rows, cli, &topology_rows);
    for (size_t i = 0; i < t->n_nodes; i++)
        rows_add(&rows, &(struct topology_row){t, t->nodes[i]});
    return rows_end(&rows, CLI_CONTINUE);
}

/* ---- text -------------------------------------------------------------------------------------*/

static void add_rate(struct hd_text *out, double bytes_per_s)
{
    hd_text_add(out, "%.4g GB/s", bytes_per_s / 1e9);
}

static void add_numbers(const Heddle__V1__NodeTopology *n, const int32_t *device_indices,
                        size_t count, struct hd_text *out)
{
    for (size_t i = 0; i < count; i++)
        hd_text_add(out, "%s%d", i ? " " : "", probe_show_number(n, device_indices[i]));
}

/* Returns whether the node has the same switches above the first tier as the node before it. */
static bool is_beside(const Heddle__V1__NodeTopology *a, const Heddle__V1__NodeTopology *b)
{
    return a->n_switches && a->n_switches == b->n_switches &&
           memcmp(a->switches, b->switches, a->n_switches * sizeof a->switches[0]) == 0;
}

/* Appends "spine 0, leaf 1: a3 a4", one line per switch of the lowest tier. */
static void add_switches(const Heddle__V1__GetTopologyResponse *t, struct hd_text *out)
{
    bool far = false;

    hd_text_add(out, "switches by %s:\n", t->cluster_file);
    for (size_t i = 0; i < t->n_nodes; i++) {
        const Heddle__V1__NodeTopology *n = t->nodes[i];
        bool shown = false;

        far = far || !n->n_switches;
        for (size_t k = 0; k < i; k++)
            shown = shown || is_beside(t->nodes[k], n);
        if (shown || !n->n_switches)
            continue;
        for (size_t k = n->n_switches; k > 0; k--) {
            hd_text_add(out, "%s", k == n->n_switches ? "  " : ", ");
            cli_add_clean(out, t->tiers[k - 1]->name);
            hd_text_add(out, " %lld", (long long)n->switches[k - 1]);
        }
        hd_text_add(out, ":");
        for (size_t k = i; k < t->n_nodes; k++)
            if (is_beside(t->nodes[k], n)) {
                hd_text_add(out, " ");
                cli_add_clean(out, t->nodes[k]->node);
            }
        hd_text_add(out, "\n");
    }
    if (far)
        hd_text_add(out, "  not in the file, so far from all:");
    for (size_t i = 0; far && i < t->n_nodes; i++)
        if (!t->nodes[i]->n_switches) {
            hd_text_add(out, " ");
            cli_add_clean(out, t->nodes[i]->node);
        }
    hd_text_add(out, "%s\n", far ? "\n" : "");
}

/* Returns the link between two devices, in either order; NULL: unknown. */
static const Heddle__V1__DeviceLink *find_link(const Heddle__V1__NodeInventory *v, int32_t a,
                                               int32_t b)
{
    for (size_t i = 0; i < v->n_links; i++)
        if (v->links[i]->a == (a < b ? a : b) && v->links[i]->b == (a < b ? b : a))
            return v->links[i];
    return NULL;
}

static void add_link_matrix(const Heddle__V1__NodeTopology *n, struct hd_text *out)
{
    const Heddle__V1__NodeInventory *v = n->inventory;

    hd_text_add(out, "  links between devices (GB/s)\n     ");
    for (size_t b = 0; b < n->n_devices; b++)
        hd_text_add(out, " %10d", n->devices[b]->index);
    for (size_t a = 0; a < n->n_devices; a++) {
        hd_text_add(out, "\n  %3d", n->devices[a]->index);
        for (size_t b = 0; b < n->n_devices; b++) {
            const Heddle__V1__DeviceLink *l = find_link(v, (int32_t)a, (int32_t)b);
            struct hd_text cell = {0};

            cli_add_clean(&cell, a == b ? "X" : l ? l->kind : "?");
            if (l && a != b)
                hd_text_add(&cell, " %.4g", l->bytes_per_s / 1e9);
            hd_text_add(out, " %10s", cell.data ? cell.data : "?");
            hd_text_free(&cell);
        }
    }
    hd_text_add(out, "\n");
    for (size_t i = 0; i < v->n_shared; i++) {
        hd_text_add(out, "  ");
        cli_add_clean(out, v->shared[i]->name);
        hd_text_add(out, ", shared by devices ");
        add_numbers(n, v->shared[i]->devices, v->shared[i]->n_devices, out);
        hd_text_add(out, ": ");
        add_rate(out, v->shared[i]->bytes_per_s);
        hd_text_add(out, "\n");
    }
}

static void add_node(const Heddle__V1__NodeTopology *n, int64_t now_ms, bool whole,
                     struct hd_text *out)
{
    const Heddle__V1__NodeInventory *v = n->inventory;
    char age[HD_CLOCK_TEXT_MAX], silent[HD_CLOCK_TEXT_MAX];

    cli_add_clean(out, n->node);
    hd_text_add(out, ": %zu device%s", n->n_devices, n->n_devices == 1 ? "" : "s");
    if (n->silent_ms > 0) {
        hd_clock_format_span(n->silent_ms, silent);
        hd_text_add(out, ", silent for %s", silent);
    }
    if (v) {
        cli_format_age(v->taken_unix_ms, now_ms, age);
        hd_text_add(out, ", inventory %s old, ", age);
    } else {
        hd_text_add(out, ", no inventory, ");
    }
    probe_show_age(n->probe, n->silent_ms > 0, now_ms, out);
    hd_text_add(out, "\n");
    probe_show_trouble(n, now_ms, out);
    for (size_t i = 0; v && i < v->n_adapters; i++) {
        hd_text_add(out, "  adapter ");
        cli_add_clean(out, v->adapters[i]->name);
        hd_text_add(out, " ");
        add_rate(out, v->adapters[i]->bytes_per_s);
        hd_text_add(out, "%s", v->adapters[i]->n_devices ? ", nearest to devices " : "");
        add_numbers(n, v->adapters[i]->devices, v->adapters[i]->n_devices, out);
        hd_text_add(out, "\n");
    }
    if (whole && v && v->n_links)
        add_link_matrix(n, out);
    if (whole)
        probe_show_figures(n, out);
}

static int cli_topo(struct cli *cli, int argc, char **argv)
{
    Heddle__V1__GetTopologyRequest request = HEDDLE__V1__GET_TOPOLOGY_REQUEST__INIT;
    Heddle__V1__GetTopologyResponse *t = NULL;
    struct hd_text out = {0};
    int code = cli_parse(cli, argc, argv, NULL, 0, 0, 1);

    if (code != CLI_CONTINUE)
        return code;
    if (cli->arg_count)
        request.node = (char *)cli->args[0];
    code = cli_call(cli, "GetTopology", &request.base, &t);
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format >= CLI_JSON) {
        code = print_topology(cli, t);
    } else {
        if (*t->cluster_file)
            add_switches(t, &out);
        for (size_t i = 0; i < t->n_nodes; i++)
            add_node(t->nodes[i], cli_now_ms(cli), cli->arg_count || cli->format == CLI_WIDE, &out);
        code = cli_print(&out, CLI_OK);
    }
    hd_rpc_message_free(&t->base);
    return code;
}

const struct cli_body cli_body_topo = {
    .usage = "Usage: heddle topo [NODE] [-o FORMAT]\n",
    .about = "Shows which nodes share a switch, as the controller's --cluster file says, and\n"
             "of each node its adapters, the age of its inventory, when its devices were\n"
             "measured (heddle probe), and devices that are more than 10% slower than others\n"
             "of their kind. Of NODE, or with -o wide, also how its devices reach one another:\n"
             "nv4: four NVLinks; pix, pxb: one PCIe switch, several; phb: a host bridge; node,\n"
             "sys: within a NUMA node, between two, at nominal rates of one direction; and\n"
             "what was measured.\n",
    .examples = "heddle topo n1",
    .run = cli_topo,
};
