/* probe: measured speeds of devices, and which devices are slow.
 *
 *   PROBE (a user's request) --> node->probe_asked --PROBED with that number or a newer--> 0
 *
 * A request stays open until its node has answered or is lost; it is not stored. The newest result
 * of each node is stored (HD_OP_PROBE). A device is slow if one of its rates is below slow_fraction
 * of the median over all devices with the same kind, name, threads and instruction set.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "controller/core/life/life.h"
#include "controller/core/state/texts.h"

static const double slow_fraction = 0.9;
/* Smallest number of equal devices that have a median: of two, it is unclear which one is slow. */
enum { KIND_LEAST = 3 };

static const struct core_rate {
    const char *name, *unit;
    size_t offset;
} rates[CORE_RATES] = {
    {"fp32 products", "GFLOP/s", offsetof(struct hd_device_figures, single_flops)},
    {"bf16 products", "GFLOP/s", offsetof(struct hd_device_figures, half_flops)},
    {"memory bandwidth", "GB/s", offsetof(struct hd_device_figures, memory_bytes_per_s)},
};

static double rate_of(const struct hd_device_figures *figures, int rate)
{
    return *(const double *)(const void *)((const char *)figures + rates[rate].offset);
}

/* ---- the request ------------------------------------------------------------------------------*/

static enum hd_status check_ask(const struct core_node *node)
{
    const char *name = node->rec.name;

    if (!core_node_has_come(node))
        return hd_err(HD_CONFLICT,
                      "%s has not connected since the controller was started, and its own heddled "
                      "measures; probe again when heddle nodes shows the node ready or drained; if "
                      "it stays away, start heddled there",
                      name);
    if (!node->connected)
        return hd_err(HD_CONFLICT,
                      "%s is not connected, and its own heddled measures; start heddled there, and "
                      "probe again when heddle nodes shows the node ready or drained",
                      name);
    if (!node->probes)
        return hd_err(HD_UNSUPPORTED,
                      "the heddled of %s (build %s) cannot probe its devices; upgrade it", name,
                      node->rec.build);
    for (int32_t d = 0; d < node->rec.device_count; d++)
        if (node->holds[d].job)
            return hd_err(HD_CONFLICT,
                          "%s runs attempt %d of job %" PRIu64
                          ", and only idle devices are measured; wait for the job's end, or: "
                          "heddle drain %s, and probe it when it is drained",
                          name, node->holds[d].attempt, node->holds[d].job, name);
    return HD_OK;
}

enum hd_status core_probe_ask(struct hd_core *core, const struct hd_core_event *event)
{
    struct core_node *node = core_find_node_named(core, event->probe.node);
    enum hd_status st =
        node ? check_ask(node)
             : hd_err(HD_NOT_FOUND, "there is no node '%s'; see heddle nodes", event->probe.node);

    if (st)
        return st;
    /* probe numbers are larger than those from before a restart, unless the clock was set back */
    core->probe_number = core->now.wall_ms > (int64_t)core->probe_number
                             ? (uint64_t)core->now.wall_ms
                             : core->probe_number + 1;
    node->probe_asked = core->probe_number;
    core_event_probe(core, node, event->probe.by ? event->probe.by : "");
    return HD_OK;
}

uint64_t hd_core_probe_asked(const struct hd_core *core, const char *uuid)
{
    const struct core_node *node = core_find_node(core, uuid);

    return node ? node->probe_asked : 0;
}

int64_t hd_core_probe_ended(const struct hd_core *core, const char *uuid)
{
    const struct core_node *node = core_find_node(core, uuid);

    return node ? node->probe.ended_ms : 0;
}

void core_probe_give_up(struct hd_core *core, struct core_node *node)
{
    if (!node->probe_asked)
        return;
    node->probe_asked = 0;
    core_event_probe_lost(core, node);
}

/* ---- results ----------------------------------------------------------------------------------*/

static void set_record(struct hd_core *core, struct core_node *node,
                       const struct hd_probe_record *record)
{
    const size_t count = record->measured_ms ? (size_t)record->device_count : 0;
    struct hd_device_figures *devices = calloc(count + 1, sizeof *devices);

    if (!devices) {
        core->no_memory = true;
        return;
    }
    if (count)
        memcpy(devices, record->devices, count * sizeof *devices);
    core_probe_drop(node);
    node->probe.ended_ms = record->ended_ms;
    node->probe.measured_ms = record->measured_ms;
    node->probe.devices = devices;
    node->probe.device_count = (int32_t)count;
    core_set_text(core, &node->probe.problem, record->problem);
    core_set_text(core, &node->probe.measured_on, record->measured_on);
    core->due |= CORE_DUE_MEDIANS;
}

void core_probe_restore(struct hd_core *core, struct core_node *node,
                        const struct hd_probe_record *record)
{
    set_record(core, node, record);
}

/* ---- slow devices -----------------------------------------------------------------------------*/

/* Returns the index in rec.devices of the device that the node's probe measured as number `index`;
 * -1: there is none. */
static int32_t find_device(const struct core_node *node, int32_t index)
{
    const enum hd_device_kind kind = hd_probed_kind(&node->rec);

    for (int32_t d = 0; d < node->rec.device_count; d++)
        if (node->rec.devices[d].kind == kind && index-- == 0)
            return d;
    return -1;
}

/* Returns whether two devices should have equal rates: same kind, name, threads and instruction
 * set. */
static bool are_alike(const struct core_node *a, int32_t device_a, const struct core_node *b,
                      int32_t device_b)
{
    const struct hd_device_record *x = &a->rec.devices[device_a], *y = &b->rec.devices[device_b];

    return x->kind == y->kind && (x->kind != HD_DEVICE_KIND_CPU || x->threads == y->threads) &&
           core_same(x->name, y->name) &&
           core_same(a->facts.compute[x->kind], b->facts.compute[y->kind]);
}

/* Sets ret_values to the known values of a rate of all devices equal to this one; returns their
 * number. ret_values must hold the total number of measured devices. */
static size_t collect(const struct hd_core *core, const struct core_node *like, int32_t device,
                      int rate, double *ret_values)
{
    size_t count = 0;

    for (size_t n = 0; n < core->node_count; n++) {
        const struct core_node *node = core->nodes[n];

        for (int32_t i = 0; !node->rec.retired && i < node->probe.device_count; i++) {
            const int32_t d = find_device(node, i);
            const double value = rate_of(&node->probe.devices[i], rate);

            if (d >= 0 && value > 0 && are_alike(like, device, node, d))
                ret_values[count++] = value;
        }
    }
    return count;
}

static void add_medians(struct hd_core *core, const struct core_node *node, int32_t device,
                        double *scratch)
{
    struct core_median *m;

    for (size_t i = 0; i < core->median_count; i++)
        if (are_alike(core->medians[i].node, core->medians[i].device, node, device))
            return;
    if (!core_grow_array(core, &core->medians, core->median_count, &core->median_size, sizeof *m))
        return;
    m = &core->medians[core->median_count++];
    *m = (struct core_median){.node = node, .device = device};
    for (int r = 0; r < CORE_RATES; r++) {
        m->count[r] = collect(core, node, device, r, scratch);
        m->value[r] = m->count[r] ? hd_order_median(scratch, m->count[r]) : 0;
    }
}

/* Computes the median rates of each class of equal devices (core->medians), if stale. */
static void find_medians(struct hd_core *core)
{
    size_t devices = 0;
    double *scratch;

    if (!(core->due & CORE_DUE_MEDIANS))
        return;
    core->median_count = 0;
    for (size_t n = 0; n < core->node_count; n++)
        devices += (size_t)core->nodes[n]->probe.device_count;
    scratch = calloc(devices + 1, sizeof *scratch);
    for (size_t n = 0; scratch && n < core->node_count; n++)
        for (int32_t i = 0; i < core->nodes[n]->probe.device_count; i++)
            if (!core->nodes[n]->rec.retired && find_device(core->nodes[n], i) >= 0)
                add_medians(core, core->nodes[n], find_device(core->nodes[n], i), scratch);
    if (scratch)
        (void)core_take_due(core, CORE_DUE_MEDIANS);
    free(scratch);
}

static void add_slow(struct hd_core *core, const struct core_node *node, int32_t device,
                     struct hd_text *ret_why)
{
    const enum hd_device_kind kind = hd_probed_kind(&node->rec);
    const struct core_median *m = NULL;
    int32_t index = 0;

    find_medians(core);
    for (int32_t d = 0; d < device; d++)
        index += node->rec.devices[d].kind == kind;
    if (node->rec.devices[device].kind != kind || index >= node->probe.device_count)
        return;
    for (size_t i = 0; i < core->median_count && !m; i++)
        if (are_alike(core->medians[i].node, core->medians[i].device, node, device))
            m = &core->medians[i];
    for (int r = 0; m && r < CORE_RATES; r++) {
        const double value = rate_of(&node->probe.devices[index], r);

        if (m->count[r] < KIND_LEAST || value <= 0 || value >= slow_fraction * m->value[r])
            continue;
        core_add_slow_rate(&(struct core_slow_rate){.name = rates[r].name,
                                                    .unit = rates[r].unit,
                                                    .value = value,
                                                    .median = m->value[r],
                                                    .count = m->count[r]},
                           ret_why);
    }
}

void hd_core_slow_device(struct hd_core *core, size_t index, int32_t device,
                         struct hd_text *ret_why)
{
    add_slow(core, core->nodes[index], device, ret_why);
}

/* Adds an event for each slow device of a node that was just measured. */
static void report_slow(struct hd_core *core, const struct core_node *node)
{
    for (int32_t d = 0; d < node->rec.device_count; d++) {
        struct hd_text why = {0};

        add_slow(core, node, d, &why);
        if (why.len_bytes)
            core_event_device_slow(core, node, &node->rec.devices[d], why.data);
        hd_text_free(&why);
    }
}

/* ---- the answer -------------------------------------------------------------------------------*/

enum hd_status core_probed(struct hd_core *core, const struct hd_core_event *event)
{
    const struct hd_probe_record *record = &event->probed.record;
    struct core_node *node = core_find_node(core, record->node_uuid);

    if (!node || !node->connected || node->stream != event->probed.stream)
        return hd_err(HD_CONFLICT, "the node has a newer stream, or was lost; connect again");
    if (event->probed.request >= node->probe_asked)
        node->probe_asked = 0;
    if (record->ended_ms == node->probe.ended_ms)
        return HD_OK;
    set_record(core, node, record);
    hd_batch_add_probe(core->out->batch, record);
    if (record->problem && *record->problem)
        core_event_probe_failed(core, node, record);
    else if (record->ended_ms)
        core_event_probed(core, node);
    if (!record->problem || !*record->problem)
        report_slow(core, node);
    core->due |= CORE_DUE_PASS; /* layouts depend on the newly measured speeds */
    return HD_OK;
}
