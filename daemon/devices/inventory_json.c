/* inventory_json: writes and parses the inventory as JSON, which `heddle-worker gpus` sends to
 * heddled. */
#include "daemon/devices/inventory.h"

#include <string.h>

#include "base/fields.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the halves of a set of GPUs are addressed as on little-endian machines"
#endif

#define RATE(key, type, member) HD_JSON_FIELD(key, WHOLE, type, member, .least = 0, .most = 1e15)
#define NUMA(type)              HD_JSON_FIELD("numa", INT, type, numa, .min = -1, .max = INT32_MAX)
/* A half of a set of GPUs: JSON numbers are exact only up to 2^53. */
#define HALF(key_, type, member, at)                                                       \
    {                                                                                      \
        .key = (key_), .kind = HD_JSON_FIELD_INT, .offset = offsetof(type, member) + (at), \
        .size_bytes = sizeof(uint32_t), .max = UINT32_MAX                                  \
    }

static const struct hd_json_field gpu_fields[] = {
    HD_JSON_FIELD("uuid", WORD, struct hd_inventory_gpu, uuid),
    NUMA(struct hd_inventory_gpu),
    RATE("pcie", struct hd_inventory_gpu, pcie_bytes_per_s),
};
static const struct hd_json_field pair_fields[] = {
    HD_JSON_FIELD("a", INT, struct hd_inventory_pair, a, .max = HD_INVENTORY_GPUS_MAX - 1),
    HD_JSON_FIELD("b", INT, struct hd_inventory_pair, b, .max = HD_INVENTORY_GPUS_MAX - 1),
    HD_JSON_FIELD("direct", INT, struct hd_inventory_pair, direct, .max = 1),
    HD_JSON_FIELD("kind", WORD, struct hd_inventory_pair, kind),
    RATE("rate", struct hd_inventory_pair, bytes_per_s),
};
static const struct hd_json_field shared_fields[] = {
    HD_JSON_FIELD("name", WORD, struct hd_inventory_shared, name),
    HALF("low", struct hd_inventory_shared, gpus, 0),
    HALF("high", struct hd_inventory_shared, gpus, 4),
    RATE("rate", struct hd_inventory_shared, bytes_per_s),
};
static const struct hd_json_field adapter_fields[] = {
    HD_JSON_FIELD("name", WORD, struct hd_inventory_adapter, name),
    NUMA(struct hd_inventory_adapter),
    HALF("low", struct hd_inventory_adapter, nearest, 0),
    HALF("high", struct hd_inventory_adapter, nearest, 4),
    RATE("rate", struct hd_inventory_adapter, bytes_per_s),
};
#define LIST(key, member, count, value, fields, most) \
    HD_JSON_FIELD_LIST(key, struct hd_inventory, member, count, value, fields, most)
static const struct hd_json_field inventory_fields[] = {
    HD_JSON_FIELD("taken_ms", INT, struct hd_inventory, taken_ms, .max = INT64_MAX),
    LIST("gpus", gpus, gpu_count, struct hd_inventory_gpu, gpu_fields, HD_INVENTORY_GPUS_MAX),
    LIST("pairs", pairs, pair_count, struct hd_inventory_pair, pair_fields, HD_INVENTORY_PAIRS_MAX),
    LIST("shared", shared, shared_count, struct hd_inventory_shared, shared_fields,
         HD_INVENTORY_SHARED_MAX),
    LIST("adapters", adapters, adapter_count, struct hd_inventory_adapter, adapter_fields,
         HD_INVENTORY_ADAPTERS_MAX),
};

void hd_inventory_write(const struct hd_inventory *v, const char *key, struct hd_json_writer *w)
{
    hd_json_begin(w, key, '{');
    hd_fields_write(w, inventory_fields, HD_JSON_FIELD_COUNT(inventory_fields), v);
    hd_json_end(w, '}');
}

enum hd_status hd_inventory_parse(const struct hd_json *object, struct hd_inventory *ret_inventory)
{
    struct hd_inventory *v = ret_inventory;
    enum hd_status st;

    memset(v, 0, sizeof *v);
    st = hd_fields_read(object, inventory_fields, HD_JSON_FIELD_COUNT(inventory_fields), NULL, v);
    for (int i = 0; !st && i < v->pair_count; i++)
        if (v->pairs[i].a >= v->pairs[i].b || v->pairs[i].b >= v->gpu_count)
            st = hd_err(HD_INVALID, "a pair of a GPU that is not listed");
    return st;
}
