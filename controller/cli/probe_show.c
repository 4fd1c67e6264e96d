#include "controller/cli/probe_show.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "controller/cli/cli.h"
#include "controller/show/form.h"

int32_t probe_show_number(const Heddle__V1__NodeTopology *n, int64_t slot)
{
    return slot >= 0 && (size_t)slot < n->n_devices ? n->devices[slot]->index : (int32_t)slot;
}

/* ---- JSON -------------------------------------------------------------------------------------*/

void probe_show_json(struct hd_json_writer *w, const Heddle__V1__NodeTopology *n)
{
    const Heddle__V1__NodeProbe *m = n ? n->probe : NULL;

    if (!m) {
        hd_json_add_null(w, "probe");
        return;
    }
    hd_json_begin(w, "probe", '{');
    show_members(w, &m->base,
                 "pending ended_at=ended_unix_ms@ problem measured_at=measured_unix_ms@ "
                 "measured_on engine checkpoint_bytes_per_s");
    hd_json_begin(w, "devices", '[');
    for (size_t i = 0; i < m->n_devices; i++) {
        hd_json_begin(w, NULL, '{');
        show_members(w, &m->devices[i]->base, "device");
        hd_json_add_int64(w, "number", probe_show_number(n, m->devices[i]->device));
        show_members(w, &m->devices[i]->base,
                     "fp32_flops=single_flops bf16_flops=half_flops memory_bytes_per_s slow");
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    show_members(w, &m->base,
                 "pairs(a b latency_s bytes_per_s) products(precision shape flops) "
                 "collectives(kind members alpha_s bytes_per_s)");
    hd_json_end(w, '}');
}

/* ---- text -------------------------------------------------------------------------------------*/

static void add_age(struct hd_text *out, int64_t unix_ms, int64_t now_ms)
{
    char age[HD_CLOCK_TEXT_MAX];

    cli_format_age(unix_ms, now_ms, age);
    hd_text_add(out, "%s ago", age);
}

void probe_show_age(const Heddle__V1__NodeProbe *m, bool silent, int64_t now_ms,
                    struct hd_text *out)
{
    if (!m || !m->measured_unix_ms) {
        hd_text_add(out, "not probed");
    } else {
        hd_text_add(out, "probed ");
        add_age(out, m->measured_unix_ms, now_ms);
    }
    if (m && m->pending)
        hd_text_add(out, silent ? ", a probe was asked for, and the node does not answer"
                                : ", a probe is under way");
}

void probe_show_trouble(const Heddle__V1__NodeTopology *n, int64_t now_ms, struct hd_text *out)
{
    const Heddle__V1__NodeProbe *m = n->probe;

    if (m && *m->problem) {
        hd_text_add(out, "  the probe ");
        add_age(out, m->ended_unix_ms, now_ms);
        hd_text_add(out, " measured nothing, plans keep using %s: ",
                    m->measured_unix_ms ? "its earlier figures" : "built-in figures");
        cli_add_clean(out, m->problem);
        hd_text_add(out, "\n");
    }
    for (size_t i = 0; m && i < m->n_devices; i++)
        if (*m->devices[i]->slow) {
            hd_text_add(out, "  device %d is slow: ", probe_show_number(n, m->devices[i]->device));
            cli_add_clean(out, m->devices[i]->slow);
            hd_text_add(out, "\n");
        }
}

/* Appends a rate in units of 1e9, without an exponent for large GPU rates; "-": unknown. */
static void add_giga(struct hd_text *out, int width, double rate)
{
    if (rate <= 0)
        hd_text_add(out, " %*s", width, "-");
    else if (rate < 9.9995e12)
        hd_text_add(out, " %*.4g", width, rate / 1e9);
    else
        hd_text_add(out, " %*.0f", width, rate / 1e9);
}

static void add_device_rates(const Heddle__V1__NodeTopology *n, struct hd_text *out)
{
    const Heddle__V1__NodeProbe *m = n->probe;

    hd_text_add(out, "  devices, all at once   fp32 GFLOP/s   bf16 GFLOP/s   memory GB/s\n");
    for (size_t i = 0; i < m->n_devices; i++) {
        hd_text_add(out, "  %22d", probe_show_number(n, m->devices[i]->device));
        add_giga(out, 13, m->devices[i]->single_flops);
        add_giga(out, 14, m->devices[i]->half_flops);
        add_giga(out, 13, m->devices[i]->memory_bytes_per_s);
        hd_text_add(out, "\n");
    }
}

static void add_products(const Heddle__V1__NodeProbe *m, struct hd_text *out)
{
    hd_text_add(out, "  products (usual GFLOP/s by shape)\n");
    for (size_t i = 0; i < m->n_products; i++) {
        const bool begins =
            i == 0 || strcmp(m->products[i]->precision, m->products[i - 1]->precision) != 0;

        hd_text_add(out, "%s", begins && i > 0 ? "\n" : "");
        hd_text_add(out, "%s", begins ? "    " : ",");
        if (begins)
            cli_add_clean(out, m->products[i]->precision);
        hd_text_add(out, " ");
        cli_add_clean(out, m->products[i]->shape);
        add_giga(out, 0, m->products[i]->flops);
    }
    hd_text_add(out, "\n");
}

static const Heddle__V1__DevicePair *find_pair(const Heddle__V1__NodeProbe *m, size_t a, size_t b)
{
    for (size_t i = 0; i < m->n_pairs; i++)
        if ((size_t)m->pairs[i]->a == (a < b ? a : b) && (size_t)m->pairs[i]->b == (a < b ? b : a))
            return m->pairs[i];
    return NULL;
}

/* Appends the matrix of message times between pairs; a pair's indexes count only the devices that
 * were measured. */
static void add_message_matrix(const Heddle__V1__NodeTopology *n, struct hd_text *out)
{
    const Heddle__V1__NodeProbe *m = n->probe;

    hd_text_add(out, "  messages between devices (us of a short one, GB/s of a long one)\n     ");
    for (size_t b = 0; b < m->n_devices; b++)
        hd_text_add(out, " %12d", probe_show_number(n, m->devices[b]->device));
    for (size_t a = 0; a < m->n_devices; a++) {
        hd_text_add(out, "\n  %3d", probe_show_number(n, m->devices[a]->device));
        for (size_t b = 0; b < m->n_devices; b++) {
            const Heddle__V1__DevicePair *p = find_pair(m, a, b);
            char cell[32] = "?";

            if (p)
                (void)snprintf(cell, sizeof cell, "%.3g %.3g", p->latency_s * 1e6,
                               p->bytes_per_s / 1e9);
            hd_text_add(out, " %12s", a == b ? "X" : cell);
        }
    }
    hd_text_add(out, "\n");
}

static void add_collectives(const Heddle__V1__NodeProbe *m, struct hd_text *out)
{
    hd_text_add(out, "  collectives (");
    cli_add_clean(out, m->engine);
    hd_text_add(out, ")         members     alpha us        GB/s\n");
    for (size_t i = 0; i < m->n_collectives; i++) {
        const Heddle__V1__CollectiveFigures *f = m->collectives[i];
        struct hd_text name = {0};

        cli_add_clean(&name, f->kind);
        hd_text_add(out, "    %-20s %7lld %12.3g", name.data ? name.data : "?",
                    (long long)f->members, f->alpha_s * 1e6);
        add_giga(out, 11, f->bytes_per_s);
        hd_text_add(out, "\n");
        hd_text_free(&name);
    }
}

void probe_show_figures(const Heddle__V1__NodeTopology *n, struct hd_text *out)
{
    const Heddle__V1__NodeProbe *m = n->probe;

    if (!m || !m->measured_unix_ms)
        return;
    if (m->n_devices)
        add_device_rates(n, out);
    if (m->n_products)
        add_products(m, out);
    if (m->n_pairs)
        add_message_matrix(n, out);
    if (m->n_collectives)
        add_collectives(m, out);
    if (m->checkpoint_bytes_per_s > 0)
        hd_text_add(out,
                    "  writing to heddled's state directory: %.4g MB/s a device, while all write\n",
                    m->checkpoint_bytes_per_s / 1e6);
    hd_text_add(out, "  measured on ");
    cli_add_clean(out, m->measured_on);
    hd_text_add(out, "\n");
}
