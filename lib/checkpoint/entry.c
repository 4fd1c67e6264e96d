#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"

struct hd_ckpt_entry hd_ckpt_entry_whole(const char *name, enum hd_dtype dtype, int dim_count,
                                         const int64_t *shape)
{
    struct hd_ckpt_entry entry = {
        .name = name, .dtype = dtype, .dim_count = dim_count, .flat_count = 1};

    assert(dim_count >= 0 && dim_count <= HD_CKPT_DIMS_MAX);
    for (int d = 0; d < dim_count; d++) {
        entry.shape[d] = entry.extent[d] = shape[d];
        entry.flat_count *= shape[d];
    }
    return entry;
}

void hd_ckpt_entry_cut(struct hd_ckpt_entry *entry, int dim, int64_t start, int64_t extent)
{
    assert(dim >= 0 && dim < entry->dim_count);
    entry->start[dim] = start;
    entry->extent[dim] = extent;
    entry->flat_first = 0;
    entry->flat_count = hd_ckpt_box_elements(entry);
}

int64_t hd_ckpt_box_elements(const struct hd_ckpt_entry *entry)
{
    int64_t elements = 1;

    for (int d = 0; d < entry->dim_count; d++)
        elements *= entry->extent[d];
    return elements;
}

int64_t hd_ckpt_entry_bytes(const struct hd_ckpt_entry *entry)
{
    return entry->flat_count * (int64_t)hd_dtype_size(entry->dtype);
}

bool hd_ckpt_entry_is_whole(const struct hd_ckpt_entry *entry)
{
    for (int d = 0; d < entry->dim_count; d++)
        if (entry->start[d] != 0 || entry->extent[d] != entry->shape[d])
            return false;
    return entry->flat_first == 0 && entry->flat_count == hd_ckpt_box_elements(entry);
}

void hd_ckpt_sort_entries(struct hd_ckpt_entry *entries, size_t count)
{
    /* Insertion sort: stable, and fast because entries are nearly sorted. */
    for (size_t i = 1; i < count; i++) {
        const struct hd_ckpt_entry entry = entries[i];
        size_t at = i;

        while (at > 0 && hd_dtype_size(entries[at - 1].dtype) < hd_dtype_size(entry.dtype)) {
            entries[at] = entries[at - 1];
            at--;
        }
        entries[at] = entry;
    }
}

/* ---- checks ---- */

static bool is_name(const char *name)
{
    return hd_safetensors_is_name(name, HD_CKPT_NAME_MAX + 1) && !strpbrk(name, "\"\\@") &&
           strcmp(name, "__metadata__") != 0;
}

enum hd_status hd_ckpt_check_entry(const struct hd_ckpt_entry *entry)
{
    int64_t whole = 1;

    if (!entry->name || !is_name(entry->name))
        return hd_err(HD_INVALID,
                      "'%.*s' is not a name for a tensor: use 1 to %d printable ASCII characters "
                      "without space, \", \\ and @",
                      HD_CKPT_NAME_MAX, entry->name ? entry->name : "", HD_CKPT_NAME_MAX);
    if ((unsigned)entry->dtype >= HD_DTYPE_COUNT)
        return hd_err(HD_INVALID, "%s: unknown dtype %d", entry->name, (int)entry->dtype);
    if (entry->dim_count < 0 || entry->dim_count > HD_CKPT_DIMS_MAX)
        return hd_err(HD_INVALID, "%s: %d dimensions; at most %d are supported", entry->name,
                      entry->dim_count, HD_CKPT_DIMS_MAX);
    for (int d = 0; d < entry->dim_count; d++) {
        const int64_t length = entry->shape[d];

        if (length < 1 || length > HD_CKPT_ELEMENTS_MAX / whole)
            return hd_err(HD_INVALID,
                          "%s: dimension %d of length %" PRId64 " makes it empty or too large",
                          entry->name, d, length);
        whole *= length;
        if (entry->start[d] < 0 || entry->start[d] >= length || entry->extent[d] < 1 ||
            entry->extent[d] > length - entry->start[d])
            return hd_err(HD_INVALID,
                          "%s: the box takes %" PRId64 " from %" PRId64
                          " on in dimension %d, which "
                          "has %" PRId64,
                          entry->name, entry->extent[d], entry->start[d], d, length);
    }
    if (entry->flat_count < 1 || entry->flat_first < 0 ||
        entry->flat_first > hd_ckpt_box_elements(entry) - entry->flat_count)
        return hd_err(
            HD_INVALID, "%s: %" PRId64 " elements from %" PRId64 " on are not in a box of %" PRId64,
            entry->name, entry->flat_count, entry->flat_first, hd_ckpt_box_elements(entry));
    return HD_OK;
}

/* ---- labels ---- */

void hd_ckpt_add_label(struct hd_text *ret_text, const struct hd_ckpt_entry *entry)
{
    hd_text_add(ret_text, "%s", entry->name);
    if (hd_ckpt_entry_is_whole(entry))
        return;
    for (int d = 0; d < entry->dim_count; d++)
        hd_text_add(ret_text, "%c%" PRId64 ":%" PRId64 "/%" PRId64, d ? ',' : '@', entry->start[d],
                    entry->start[d] + entry->extent[d], entry->shape[d]);
    if (entry->flat_count != hd_ckpt_box_elements(entry))
        hd_text_add(ret_text, "+%" PRId64 ":%" PRId64, entry->flat_first,
                    entry->flat_first + entry->flat_count);
}

/* Parses a number up to HD_CKPT_ELEMENTS_MAX without leading zeros, and advances *p. */
static bool take_number(const char **p, int64_t *ret_value)
{
    const char *from = *p;
    int64_t value = 0;

    for (; **p >= '0' && **p <= '9'; ++*p) {
        value = value * 10 + (**p - '0');
        if (value > HD_CKPT_ELEMENTS_MAX || (*from == '0' && *p > from))
            return false;
    }
    *ret_value = value;
    return *p > from;
}

static bool take_range(const char **p, int64_t *ret_start, int64_t *ret_length)
{
    int64_t end;

    if (!take_number(p, ret_start) || *(*p)++ != ':' || !take_number(p, &end))
        return false;
    *ret_length = end - *ret_start;
    return true;
}

/* Parses the part of an entry's label after '@' (box, and range of the box if *ret_flat) into
 * *entry. hd_ckpt_check_entry checks its numbers afterwards. */
static bool take_piece(const char *p, struct hd_ckpt_entry *entry, bool *ret_flat)
{
    int dim_count = 0;

    memset(entry->shape, 0, sizeof entry->shape);
    memset(entry->start, 0, sizeof entry->start);
    memset(entry->extent, 0, sizeof entry->extent);
    do {
        const int d = dim_count++;

        if (d == HD_CKPT_DIMS_MAX || !take_range(&p, &entry->start[d], &entry->extent[d]) ||
            *p++ != '/' || !take_number(&p, &entry->shape[d]))
            return false;
    } while (*p++ == ',');
    p--;
    entry->dim_count = dim_count;
    *ret_flat = *p == '+';
    if (*ret_flat) {
        p++;
        if (!take_range(&p, &entry->flat_first, &entry->flat_count))
            return false;
    }
    return !*p;
}

/* Sets the entry's flat range to its whole box if the box is valid; if it is not,
 * hd_ckpt_check_entry reports that afterwards. */
static void take_whole_box(struct hd_ckpt_entry *entry)
{
    entry->flat_first = 0;
    entry->flat_count = 1;
    if (hd_ckpt_check_entry(entry) == HD_OK)
        entry->flat_count = hd_ckpt_box_elements(entry);
}

enum hd_status hd_ckpt_parse_label(struct hd_arena *arena, const char *label,
                                   struct hd_ckpt_entry *entry)
{
    const char *at = strchr(label, '@');
    bool flat = false;
    char *name;

    name = at ? hd_arena_printf(arena, "%.*s", (int)(at - label), label)
              : hd_arena_strdup(arena, label);
    if (!name)
        return hd_err(HD_NO_MEMORY, "no memory for the name of a tensor");
    entry->name = name;
    for (int d = 0; d < entry->dim_count; d++) {
        entry->start[d] = 0;
        entry->extent[d] = entry->shape[d];
    }
    if (at && !take_piece(at + 1, entry, &flat))
        return hd_err(HD_INVALID, "'%.300s' is not a label of a piece", label);
    if (!flat)
        take_whole_box(entry);
    return hd_ckpt_check_entry(entry);
}

bool hd_ckpt_is_weight(const char *name)
{
    /* prefixes of the rules of program/optimizer.c, which this package may not include */
    static const char *const of_others[] = {"adamw.", "lion.", "muon.", HD_CKPT_BUFFER_PREFIX,
                                            HD_CKPT_EMA_PREFIX};

    for (size_t i = 0; i < sizeof of_others / sizeof of_others[0]; i++)
        if (hd_text_starts(name, of_others[i]))
            return false;
    return true;
}
