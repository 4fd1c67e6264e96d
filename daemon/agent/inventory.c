/* inventory: converts the inventory of links to a message. GPUs are named by their indexes in the
 * list of devices. */
#include <string.h>

#include "daemon/agent/convert.h"
#include "daemon/agent/identity.h"

struct writer {
    struct hd_arena *arena;
    int device_of
        /* index in the list of offered devices of each GPU of the inventory; -1: not offered */
        [HD_INVENTORY_GPUS_MAX];
};

static int find_device(const struct hd_devices *devices, const char *uuid)
{
    for (int i = 0; i < devices->gpu_count; i++)
        if (strcmp(devices->list[i].uuid, uuid) == 0)
            return i;
    return -1;
}

/* Lists the devices of a bit set of GPUs. *ret_devices: [HD_INVENTORY_GPUS_MAX] */
static size_t list_devices(const struct writer *w, uint64_t gpus, int32_t **ret_devices)
{
    size_t count = 0;

    *ret_devices = hd_arena_array(w->arena, HD_INVENTORY_GPUS_MAX, sizeof **ret_devices);
    for (int g = 0; *ret_devices && g < HD_INVENTORY_GPUS_MAX; g++)
        if ((gpus >> g & 1) && w->device_of[g] >= 0)
            (*ret_devices)[count++] = w->device_of[g];
    return count;
}

static void add_links(const struct writer *w, const struct hd_inventory *v,
                      Heddle__V1__NodeInventory *m)
{
    m->links = hd_arena_array(w->arena, (size_t)v->pair_count + 1, sizeof *m->links);
    for (int i = 0; m->links && i < v->pair_count; i++) {
        const struct hd_inventory_pair *p = &v->pairs[i];
        const int a = w->device_of[p->a], b = w->device_of[p->b];
        Heddle__V1__DeviceLink *link = hd_arena_alloc(w->arena, sizeof *link);

        if (!link)
            return;
        if (a < 0 || b < 0)
            continue;
        heddle__v1__device_link__init(link);
        link->a = a < b ? a : b;
        link->b = a < b ? b : a;
        link->kind = (char *)p->kind;
        link->bytes_per_s = p->bytes_per_s;
        link->direct = p->direct;
        m->links[m->n_links++] = link;
    }
}

static void add_shared(const struct writer *w, const struct hd_inventory *v,
                       Heddle__V1__NodeInventory *m)
{
    m->shared = hd_arena_array(w->arena, (size_t)v->shared_count + 1, sizeof *m->shared);
    for (int i = 0; m->shared && i < v->shared_count; i++) {
        Heddle__V1__SharedLink *shared = hd_arena_alloc(w->arena, sizeof *shared);

        if (!shared)
            return;
        heddle__v1__shared_link__init(shared);
        shared->name = (char *)v->shared[i].name;
        shared->bytes_per_s = v->shared[i].bytes_per_s;
        shared->n_devices = list_devices(w, v->shared[i].gpus, &shared->devices);
        m->shared[m->n_shared++] = shared;
    }
}

static void add_adapters(const struct writer *w, const struct hd_inventory *v,
                         Heddle__V1__NodeInventory *m)
{
    m->adapters = hd_arena_array(w->arena, (size_t)v->adapter_count + 1, sizeof *m->adapters);
    for (int i = 0; m->adapters && i < v->adapter_count; i++) {
        Heddle__V1__NetworkAdapter *adapter = hd_arena_alloc(w->arena, sizeof *adapter);

        if (!adapter)
            return;
        heddle__v1__network_adapter__init(adapter);
        adapter->name = (char *)v->adapters[i].name;
        adapter->numa_node = v->adapters[i].numa;
        adapter->bytes_per_s = v->adapters[i].bytes_per_s;
        adapter->n_devices = list_devices(w, v->adapters[i].nearest, &adapter->devices);
        m->adapters[m->n_adapters++] = adapter;
    }
}

Heddle__V1__NodeInventory *convert_inventory(struct hd_arena *arena, const struct hd_inventory *v,
                                             const struct hd_devices *devices)
{
    Heddle__V1__NodeInventory *m = hd_arena_alloc(arena, sizeof *m);
    struct writer w = {.arena = arena};

    if (!m)
        return NULL;
    heddle__v1__node_inventory__init(m);
    m->taken_unix_ms = v->taken_ms;
    for (int g = 0; g < HD_INVENTORY_GPUS_MAX; g++)
        w.device_of[g] = g < v->gpu_count ? find_device(devices, v->gpus[g].uuid) : -1;
    add_links(&w, v, m);
    add_shared(&w, v, m);
    add_adapters(&w, v, m);
    return m;
}
