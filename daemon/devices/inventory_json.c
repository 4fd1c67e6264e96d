/* inventory_json: writes and parses the inventory as JSON, which `heddle-worker gpus` sends to
 * heddled. */
#include "daemon/devices/inventory.h"

#include <stdio.h>
#include <string.h>

/* Writes a name with only printable ASCII: it comes from the file system and is shown in
 * messages. */
static void write_name(struct hd_json_writer *w, const char *key, const char *text)
{
    char copy[64];

    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    hd_json_add_string(w, key, copy);
}

/* Writes a set of GPUs as two 32-bit numbers, because JSON numbers are exact only up to 2^53. */
static void write_set(struct hd_json_writer *w, uint64_t set)
{
    hd_json_add_int64(w, "low", (int64_t)(set & 0xffffffff));
    hd_json_add_int64(w, "high", (int64_t)(set >> 32));
}

/* Writes a rate; 0 (unknown) if no link can have it, as drivers may report anything. */
static void write_rate(struct hd_json_writer *w, const char *key, double bytes_per_s)
{
    const bool possible = bytes_per_s > 0 && bytes_per_s < 1e15;

    hd_json_add_int64(w, key, possible ? (int64_t)bytes_per_s : 0);
}

void hd_inventory_write(const struct hd_inventory *v, const char *key, struct hd_json_writer *w)
{
    hd_json_begin(w, key, '{');
    hd_json_add_int64(w, "taken_ms", v->taken_ms);
    hd_json_begin(w, "gpus", '[');
    for (int i = 0; i < v->gpu_count; i++) {
        hd_json_begin(w, NULL, '{');
        write_name(w, "uuid", v->gpus[i].uuid);
        hd_json_add_int64(w, "numa", v->gpus[i].numa);
        write_rate(w, "pcie", v->gpus[i].pcie_bytes_per_s);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    hd_json_begin(w, "pairs", '[');
    for (int i = 0; i < v->pair_count; i++) {
        hd_json_begin(w, NULL, '{');
        hd_json_add_int64(w, "a", v->pairs[i].a);
        hd_json_add_int64(w, "b", v->pairs[i].b);
        hd_json_add_int64(w, "direct", v->pairs[i].direct);
        write_name(w, "kind", v->pairs[i].kind);
        write_rate(w, "rate", v->pairs[i].bytes_per_s);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    hd_json_begin(w, "shared", '[');
    for (int i = 0; i < v->shared_count; i++) {
        hd_json_begin(w, NULL, '{');
        write_name(w, "name", v->shared[i].name);
        write_set(w, v->shared[i].gpus);
        write_rate(w, "rate", v->shared[i].bytes_per_s);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    hd_json_begin(w, "adapters", '[');
    for (int i = 0; i < v->adapter_count; i++) {
        hd_json_begin(w, NULL, '{');
        write_name(w, "name", v->adapters[i].name);
        hd_json_add_int64(w, "numa", v->adapters[i].numa);
        write_set(w, v->adapters[i].nearest);
        write_rate(w, "rate", v->adapters[i].bytes_per_s);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

/* ---- reading ---- */

static enum hd_status read_int(const struct hd_json *object, const char *key, int64_t min,
                               int64_t max, int *ret_value)
{
    int64_t value = 0;
    const enum hd_status st = hd_json_need_int64(object, key, min, max, &value);

    *ret_value = (int)value;
    return st;
}

static enum hd_status read_rate(const struct hd_json *object, const char *key, double *ret_rate)
{
    int64_t value = 0;
    const enum hd_status st = hd_json_need_int64(object, key, 0, (int64_t)1 << 50, &value);

    *ret_rate = (double)value;
    return st;
}

static enum hd_status read_set(const struct hd_json *object, uint64_t *ret_set)
{
    int64_t low = 0, high = 0;
    enum hd_status st = hd_json_need_int64(object, "low", 0, UINT32_MAX, &low);

    if (!st)
        st = hd_json_need_int64(object, "high", 0, UINT32_MAX, &high);
    *ret_set = (uint64_t)low | (uint64_t)high << 32;
    return st;
}

static enum hd_status read_gpu_json(const struct hd_json *object, void *item)
{
    struct hd_inventory_gpu *gpu = item;
    enum hd_status st = hd_json_copy_string(object, "uuid", gpu->uuid, sizeof gpu->uuid);

    if (!st)
        st = read_int(object, "numa", -1, INT32_MAX, &gpu->numa);
    return st ? st : read_rate(object, "pcie", &gpu->pcie_bytes_per_s);
}

static enum hd_status read_pair(const struct hd_json *object, void *item)
{
    struct hd_inventory_pair *pair = item;
    int a = 0, b = 0, direct = 0;
    enum hd_status st = read_int(object, "a", 0, HD_INVENTORY_GPUS_MAX - 1, &a);

    if (!st)
        st = read_int(object, "b", a + 1, HD_INVENTORY_GPUS_MAX - 1, &b);
    if (!st)
        st = read_int(object, "direct", 0, 1, &direct);
    if (!st)
        st = hd_json_copy_string(object, "kind", pair->kind, sizeof pair->kind);
    pair->a = (uint8_t)a;
    pair->b = (uint8_t)b;
    pair->direct = direct;
    return st ? st : read_rate(object, "rate", &pair->bytes_per_s);
}

static enum hd_status read_shared(const struct hd_json *object, void *item)
{
    struct hd_inventory_shared *shared = item;
    enum hd_status st = hd_json_copy_string(object, "name", shared->name, sizeof shared->name);

    if (!st)
        st = read_set(object, &shared->gpus);
    return st ? st : read_rate(object, "rate", &shared->bytes_per_s);
}

static enum hd_status read_adapter(const struct hd_json *object, void *item)
{
    struct hd_inventory_adapter *adapter = item;
    enum hd_status st = hd_json_copy_string(object, "name", adapter->name, sizeof adapter->name);

    if (!st)
        st = read_int(object, "numa", -1, INT32_MAX, &adapter->numa);
    if (!st)
        st = read_set(object, &adapter->nearest);
    return st ? st : read_rate(object, "rate", &adapter->bytes_per_s);
}

static enum hd_status read_list(const struct hd_json *object, const char *key, void *items,
                                size_t item_bytes, int most,
                                enum hd_status (*read)(const struct hd_json *, void *),
                                int *ret_count)
{
    const struct hd_json *list = NULL;
    enum hd_status st = hd_json_need(object, key, HD_JSON_ARRAY, &list);

    *ret_count = 0;
    for (const struct hd_json *i = st ? NULL : list->first; !st && i; i = i->next) {
        if (*ret_count == most)
            return hd_err(HD_INVALID, "more than %d %s", most, key);
        st = read(i, (char *)items + (size_t)*ret_count * item_bytes);
        ++*ret_count;
    }
    return st;
}

enum hd_status hd_inventory_parse(const struct hd_json *object, struct hd_inventory *ret_inventory)
{
    struct hd_inventory *v = ret_inventory;
    enum hd_status st;

    memset(v, 0, sizeof *v);
    st = hd_json_need_int64(object, "taken_ms", 0, INT64_MAX, &v->taken_ms);
    if (!st)
        st = read_list(object, "gpus", v->gpus, sizeof v->gpus[0], HD_INVENTORY_GPUS_MAX,
                       read_gpu_json, &v->gpu_count);
    if (!st)
        st = read_list(object, "pairs", v->pairs, sizeof v->pairs[0], HD_INVENTORY_PAIRS_MAX,
                       read_pair, &v->pair_count);
    if (!st)
        st = read_list(object, "shared", v->shared, sizeof v->shared[0], HD_INVENTORY_SHARED_MAX,
                       read_shared, &v->shared_count);
    if (!st)
        st = read_list(object, "adapters", v->adapters, sizeof v->adapters[0],
                       HD_INVENTORY_ADAPTERS_MAX, read_adapter, &v->adapter_count);
    for (int i = 0; !st && i < v->pair_count; i++)
        if (v->pairs[i].b >= v->gpu_count)
            st = hd_err(HD_INVALID, "a pair of a GPU that is not listed");
    return st;
}
