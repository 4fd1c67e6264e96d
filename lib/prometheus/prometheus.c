#include "prometheus/prometheus.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const struct hd_prom_row hd_prom_families[HD_PROM_COUNT] = {
#define F(id, program_, kind_, labels_, help_)       \
    [HD_PROM_##id] = {.name = "heddle_" #id,         \
                      .kind = HD_PROM_##kind_,       \
                      .program = HD_PROM_##program_, \
                      .labels = labels_,             \
                      .help = help_},
#include "prometheus/families.def"
#undef F
};

const struct hd_prom_bounds hd_prom_latencies = {
    .upper = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
              2.5, 10},
    .count = 15,
};
const struct hd_prom_bounds hd_prom_waits = {
    .upper = {1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 3 * 86400,
              7 * 86400},
    .count = 13,
};

static const char *const kinds[] = {"gauge", "counter", "histogram"};

void hd_prom_begin(struct hd_text *out, enum hd_prom_family family)
{
    const struct hd_prom_row *row = &hd_prom_families[family];

    hd_text_add(out, "# HELP %s %s\n# TYPE %s %s\n", row->name, row->help, row->name,
                kinds[row->kind]);
}

/* Writes a number as text. Most are whole and are written without printf, which is slow for a page
 * of a hundred thousand. */
static size_t format(double value, char ret_digits[32])
{
    char digits[24];
    size_t count = 0, used = 0;
    uint64_t whole;

    if (isnan(value) || isinf(value))
        return (size_t)snprintf(ret_digits, 32, "%s",
                                isnan(value)  ? "NaN"
                                : value > 0.0 ? "+Inf"
                                              : "-Inf");
    if (value != floor(value) || fabs(value) >= 1e15)
        return (size_t)snprintf(ret_digits, 32, "%.12g", value);
    whole = (uint64_t)fabs(value);
    do {
        digits[count++] = (char)('0' + whole % 10);
        whole /= 10;
    } while (whole);
    if (value < 0)
        ret_digits[used++] = '-';
    while (count)
        ret_digits[used++] = digits[--count];
    return used;
}

static void add_line(struct hd_text *out, const char *name, const char *suffix, const char *labels,
                     double value)
{
    char number[32];
    const size_t count = format(value, number);

    hd_text_add_bytes(out, name, strlen(name));
    if (*suffix)
        hd_text_add_bytes(out, suffix, strlen(suffix));
    if (*labels) {
        hd_text_add_bytes(out, "{", 1);
        hd_text_add_bytes(out, labels, strlen(labels));
        hd_text_add_bytes(out, "}", 1);
    }
    number[count] = '\n';
    hd_text_add_bytes(out, " ", 1);
    hd_text_add_bytes(out, number, count + 1);
}

void hd_prom_add(struct hd_text *out, enum hd_prom_family family, const char *labels, double value)
{
    add_line(out, hd_prom_families[family].name, "", labels, value);
}

void hd_prom_add_one(struct hd_text *out, enum hd_prom_family family, double value)
{
    hd_prom_begin(out, family);
    hd_prom_add(out, family, "", value);
}

static void add_pair(struct hd_text *out, const struct hd_prom_pair *pair, bool first)
{
    hd_text_add(out, "%s%s=\"", first ? "" : ",", pair->name);
    for (const char *p = pair->value ? pair->value : ""; *p; p++) {
        const char escape = *p == '\n' ? 'n' : *p;

        if (*p == '\\' || *p == '"' || *p == '\n')
            hd_text_add_bytes(out, "\\", 1);
        hd_text_add_bytes(out, &escape, 1);
    }
    hd_text_add_bytes(out, "\"", 1);
}

void hd_prom_add_labels(struct hd_text *out, enum hd_prom_family family, const char *before,
                        const struct hd_prom_pair *pairs, int count, double value)
{
    char number[32];
    const size_t digits = format(value, number);

    hd_text_add(out, "%s{%s", hd_prom_families[family].name, before);
    for (int i = 0; i < count; i++)
        if (pairs[i].name)
            add_pair(out, &pairs[i], i == 0 && !*before);
    hd_text_add(out, "} %.*s\n", (int)digits, number);
}

void hd_prom_add_label(struct hd_text *out, enum hd_prom_family family, const char *name,
                       const char *label, double value)
{
    hd_prom_add_labels(out, family, "", &(struct hd_prom_pair){name, label}, 1, value);
}

/* ---- histograms ----------------------------------------------------------------------------- */

void hd_prom_observe(struct hd_prom_histogram *h, double value)
{
    int i = 0;

    while (i < h->bounds->count && value > h->bounds->upper[i])
        i++;
    h->counts[i]++;
    h->sum += value;
}

void hd_prom_add_histogram(struct hd_text *out, enum hd_prom_family family,
                           const struct hd_prom_histogram *h)
{
    const char *name = hd_prom_families[family].name;
    uint64_t count = 0;
    char label[48];

    hd_prom_begin(out, family);
    for (int i = 0; i < h->bounds->count; i++) {
        count += h->counts[i];
        (void)snprintf(label, sizeof label, "le=\"%g\"", h->bounds->upper[i]);
        add_line(out, name, "_bucket", label, (double)count);
    }
    count += h->counts[h->bounds->count];
    add_line(out, name, "_bucket", "le=\"+Inf\"", (double)count);
    add_line(out, name, "_sum", "", h->sum);
    add_line(out, name, "_count", "", (double)count);
}
