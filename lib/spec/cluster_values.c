/* cluster_values: reads words, numbers with units, and links of a cluster file. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster_internal.h"

enum hd_status cluster_fail(const struct cluster_reader *r, const struct yaml_node *node,
                            const char *key, const char *problem, ...)
{
    char text[HD_ERR_MAX];
    va_list args;

    va_start(args, problem);
    (void)vsnprintf(text, sizeof text, problem, args);
    va_end(args);
    return hd_err(HD_INVALID, "%s:%d: %s: %s", r->name, node ? node->line : 1, key, text);
}

/* ---- words ---- */

enum hd_status cluster_check_keys(const struct cluster_reader *r, const struct yaml_node *map,
                                  const char *what, const char *const *keys, size_t count)
{
    char list[512] = "";

    for (size_t i = 0; i < count; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                       keys[i]);
    if (map->kind != YAML_KIND_MAP)
        return hd_err(HD_INVALID, "%s:%d: %s: expected the keys %s", r->name, map->line, what,
                      list);
    for (const struct yaml_node *n = map->first; n; n = n->next) {
        bool known = false;
        const char *nearest;
        char quoted[SPEC_QUOTE_MAX];

        for (const struct yaml_node *o = map->first; o != n; o = o->next)
            if (strcmp(o->key, n->key) == 0)
                return hd_err(HD_INVALID, "%s:%d: %s: is given twice, first in line %d; remove one",
                              r->name, n->line, spec_quote(n->key, quoted), o->line);
        for (size_t i = 0; i < count; i++)
            known |= strcmp(n->key, keys[i]) == 0;
        if (known)
            continue;
        nearest = hd_text_nearest(n->key, keys, count);
        return hd_err(HD_INVALID, "%s:%d: %s: unknown key %s%s%s%s; the keys are %s", r->name,
                      n->line, what, spec_quote(n->key, quoted), nearest ? "; did you mean " : "",
                      nearest ? nearest : "", nearest ? "?" : "", list);
    }
    return HD_OK;
}

const char *cluster_text(const struct yaml_node *node)
{
    return node->kind == YAML_KIND_SCALAR && node->text ? node->text : "";
}

const struct yaml_node *cluster_find(const struct cluster_reader *r, const struct yaml_node *group,
                                     const char *key)
{
    const struct yaml_node *node = hd_yaml_find(group, key);

    return node ? node : hd_yaml_find(r->root, key);
}

/* ---- numbers with units ---- */

struct unit {
    const char *text;
    double factor;
};

/* Reads a number with one of the units. range: `min` and `max` as text for the error message. */
static enum hd_status read_quantity(const struct cluster_reader *r, const struct yaml_node *node,
                                    const char *key, const struct unit *units, size_t count,
                                    double min, double max, const char *range, const char *example,
                                    double *ret_value)
{
    const char *text = cluster_text(node);
    char *end;
    const double number = strtod(text, &end);
    char list[96] = "", quoted[SPEC_QUOTE_MAX];

    while (*end == ' ')
        end++;
    for (size_t i = 0; end != text && i < count; i++) {
        const double value = number * units[i].factor;

        if (strcmp(end, units[i].text) != 0)
            continue;
        *ret_value = value;
        return value >= min && value <= max
                   ? HD_OK
                   : cluster_fail(r, node, key, "%s is out of range; give a value from %s",
                                  spec_quote(text, quoted), range);
    }
    /* the last unit may be "": a plain number */
    for (size_t i = 0; i < count && *units[i].text; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                       units[i].text);
    if (node->kind != YAML_KIND_SCALAR)
        return cluster_fail(r, node, key, "expected a number with a unit, such as %s", example);
    return cluster_fail(r, node, key,
                        "%s is not possible; give a number with a unit, such as %s (units: %s)",
                        spec_quote(text, quoted), example, list);
}

enum hd_status cluster_read_bandwidth(const struct cluster_reader *r, const struct yaml_node *node,
                                      const char *key, double *ret_bytes_per_s)
{
    static const struct unit units[] = {{"TB/s", 1e12},    {"GB/s", 1e9},     {"MB/s", 1e6},
                                        {"GiB/s", 0x1p30}, {"MiB/s", 0x1p20}, {"Tb/s", 1e12 / 8},
                                        {"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}};

    return read_quantity(r, node, key, units, sizeof units / sizeof units[0], 1e3, 1e16,
                         "0.001MB/s to 10000TB/s", "450GB/s (bytes) or 400Gb/s (bits)",
                         ret_bytes_per_s);
}

enum hd_status cluster_read_time(const struct cluster_reader *r, const struct yaml_node *node,
                                 const char *key, double *ret_seconds)
{
    static const struct unit units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

    return read_quantity(r, node, key, units, sizeof units / sizeof units[0], 0, 10, "0s to 10s",
                         "3us", ret_seconds);
}

enum hd_status cluster_read_flops(const struct cluster_reader *r, const struct yaml_node *node,
                                  const char *key, double *ret_flops)
{
    static const struct unit units[] = {{"TFLOPS", 1e12}, {"TFLOP/s", 1e12}, {"PFLOPS", 1e15},
                                        {"GFLOPS", 1e9},  {"T", 1e12},       {"", 1}};

    return read_quantity(r, node, key, units, sizeof units / sizeof units[0], 1e9, 1e18,
                         "1GFLOPS to 1000PFLOPS", "989TFLOPS", ret_flops);
}

enum hd_status cluster_read_memory(const struct cluster_reader *r, const struct yaml_node *node,
                                   const char *key, int64_t *ret_bytes)
{
    static const struct unit units[] = {
        {"GiB", 0x1p30}, {"GB", 1e9}, {"MiB", 0x1p20}, {"TiB", 0x1p40}, {"TB", 1e12}};
    double bytes = 0;
    const enum hd_status st =
        read_quantity(r, node, key, units, sizeof units / sizeof units[0], 0x1p28, 0x1p50,
                      "256MiB to 1024TiB", "80GiB or 80GB", &bytes);

    *ret_bytes = (int64_t)bytes;
    return st;
}

enum hd_status cluster_read_count(const struct cluster_reader *r, const struct yaml_node *node,
                                  const char *key, int64_t max, int64_t *ret_count)
{
    char quoted[SPEC_QUOTE_MAX];

    if (!hd_text_to_int64(cluster_text(node), 1, max, ret_count))
        return HD_OK;
    return cluster_fail(r, node, key, "%s is not possible; give a whole number from 1 to %lld",
                        spec_quote(cluster_text(node), quoted), (long long)max);
}

enum hd_status cluster_read_link(const struct cluster_reader *r, const struct yaml_node *node,
                                 const char *what, struct hd_cluster_level *level)
{
    const struct yaml_node *bandwidth = hd_yaml_find(node, "bandwidth"),
                           *latency = hd_yaml_find(node, "latency");
    char path[64];
    enum hd_status st = HD_OK;

    if (!bandwidth)
        return cluster_fail(r, node, what, "needs bandwidth: of one device, in one direction");
    (void)snprintf(path, sizeof path, "%s.bandwidth", what);
    st = cluster_read_bandwidth(r, bandwidth, path, &level->bytes_per_s);
    (void)snprintf(path, sizeof path, "%s.latency", what);
    return st || !latency ? st : cluster_read_time(r, latency, path, &level->latency_s);
}
