#include "daemon/devices/inventory.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/order.h"
#include "base/proc.h"
#include "base/text.h"

enum { BRIDGES_MAX = 12, WORD_MAX = 64 };

/* ---- sysfs ---- */

static double read_number(const char *folder, const char *name, double otherwise)
{
    char path[PATH_MAX + 32], line[WORD_MAX];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return hd_proc_line(path, line, sizeof line) ? strtod(line, NULL) : otherwise;
}

/* Path in the PCIe tree from a host bridge to a device: root such as "pci0000:3a", then the
 * addresses of bridges, and last the device's own. */
struct pci_path {
    char folder[PATH_MAX]; /* sysfs folder of the device */
    char root[WORD_MAX];
    char steps[BRIDGES_MAX][16];
    size_t folder_bytes[BRIDGES_MAX]; /* the folder of step i is the first folder_bytes[i] bytes of
                                         `folder` */
    int count;                        /* number of steps; 0: unknown */
    int numa;
};

static bool is_address(const char *text, size_t len)
{
    return len == 12 && text[4] == ':' && text[7] == ':' && text[10] == '.';
}

static void take_path(const char *folder, struct pci_path *ret_path)
{
    struct pci_path *p = ret_path;
    const char *at;

    memset(p, 0, sizeof *p);
    p->numa = -1;
    if (!realpath(folder, p->folder))
        return;
    for (at = strchr(p->folder, '/'); at; at = strchr(at + 1, '/')) {
        const size_t len = strcspn(at + 1, "/");

        if (strncmp(at + 1, "pci", 3) == 0 && len < WORD_MAX && !p->root[0])
            (void)snprintf(p->root, sizeof p->root, "%.*s", (int)len, at + 1);
        if (!p->root[0] || !is_address(at + 1, len) || p->count == BRIDGES_MAX)
            continue;
        (void)snprintf(p->steps[p->count], sizeof p->steps[0], "%.*s", (int)len, at + 1);
        p->folder_bytes[p->count++] = (size_t)(at + 1 - p->folder) + len;
    }
    p->numa = (int)read_number(p->folder, "numa_node", -1);
}

/* Returns the number of steps from the host bridge on that both paths have in common. */
static int common_steps(const struct pci_path *a, const struct pci_path *b)
{
    int same = 0;

    if (strcmp(a->root, b->root) != 0)
        return 0;
    while (same < a->count && same < b->count && strcmp(a->steps[same], b->steps[same]) == 0)
        same++;
    return same;
}

/* How near two devices are in the PCIe tree; the largest value is the nearest. */
enum near { NEAR_SYS, NEAR_NODE, NEAR_PHB, NEAR_PXB, NEAR_PIX };
static const char *const near_words[] = {"sys", "node", "phb", "pxb", "pix"};

static enum near near_of(const struct pci_path *a, const struct pci_path *b)
{
    const int same = common_steps(a, b);

    /* One PCIe switch: below the common bridge each path has at most a port of the switch and the
     * device. */
    if (same > 0)
        return a->count - same <= 2 && b->count - same <= 2 ? NEAR_PIX : NEAR_PXB;
    if (strcmp(a->root, b->root) == 0)
        return NEAR_PHB;
    return a->numa == b->numa ? NEAR_NODE : NEAR_SYS;
}

/* Returns bytes per second of one lane for its GT/s, after encoding (8b/10b, 128b/130b; in
 * generation 6 flits, 236 of 256 bytes). */
static double lane_bytes_per_s(double transfers)
{
    static const double lanes[][2] = {{2.5, 0.25e9}, {5, 0.5e9},    {8, 0.985e9},
                                      {16, 1.969e9}, {32, 3.938e9}, {64, 7.375e9}};

    for (size_t i = 0; i < sizeof lanes / sizeof lanes[0]; i++)
        if (transfers == lanes[i][0])
            return lanes[i][1];
    return 0;
}

/* Returns the rate of the link between a step of the path and the bridge above it. Uses the speed
 * that both ends support, because idle GPUs lower their links' current speed, but the current
 * width, which stays. */
static double link_bytes_per_s(const struct pci_path *p, int step)
{
    char folder[PATH_MAX];
    double speed, width;

    (void)snprintf(folder, sizeof folder, "%.*s", (int)p->folder_bytes[step], p->folder);
    speed = read_number(folder, "max_link_speed", 0);
    width = read_number(folder, "current_link_width", 0);
    if (step > 0) {
        double above;

        folder[p->folder_bytes[step - 1]] = '\0';
        above = read_number(folder, "max_link_speed", speed);
        speed = above < speed ? above : speed;
    }
    return lane_bytes_per_s(speed) * width;
}

/* ---- GPUs ---- */

static double lower(double a, double b)
{
    return a < b ? a : b;
}

static void add_pairs(const struct pci_path *paths, struct hd_inventory *v)
{
    for (int b = 1; b < v->gpu_count; b++)
        for (int a = 0; a < b; a++) {
            const enum near near = near_of(&paths[a], &paths[b]);
            struct hd_inventory_pair *pair = &v->pairs[v->pair_count++];

            *pair = (struct hd_inventory_pair){
                .a = (uint8_t)a,
                .b = (uint8_t)b,
                .bytes_per_s = lower(v->gpus[a].pcie_bytes_per_s, v->gpus[b].pcie_bytes_per_s)};
            (void)snprintf(pair->kind, sizeof pair->kind, "%s", near_words[near]);
            if (near == NEAR_SYS)
                pair->bytes_per_s = lower(pair->bytes_per_s, INVENTORY_SOCKET_BYTES_PER_S);
        }
}

/* Adds a link that a set of GPUs shares; of two links with equal sets keeps the slower one. */
static void add_shared(struct hd_inventory *v, const char *name, uint64_t gpus, double bytes_per_s)
{
    if (bytes_per_s <= 0 || !(gpus & (gpus - 1))) /* single GPU: its link is not shared */
        return;
    for (int i = 0; i < v->shared_count; i++)
        if (v->shared[i].gpus == gpus) {
            v->shared[i].bytes_per_s = lower(v->shared[i].bytes_per_s, bytes_per_s);
            return;
        }
    if (v->shared_count == HD_INVENTORY_SHARED_MAX)
        return;
    v->shared[v->shared_count] =
        (struct hd_inventory_shared){.gpus = gpus, .bytes_per_s = bytes_per_s};
    (void)snprintf(v->shared[v->shared_count].name, HD_INVENTORY_NAME_MAX, "%s", name);
    v->shared_count++;
}

/* Adds the uplinks of bridges that more than one GPU, but not all, are behind. */
static void add_bridges(const struct pci_path *paths, struct hd_inventory *v)
{
    const uint64_t all = v->gpu_count < 64 ? (1ull << v->gpu_count) - 1 : ~0ull;

    for (int a = 0; a < v->gpu_count; a++)
        for (int step = 0; step < paths[a].count - 1; step++) {
            uint64_t set = 0;

            for (int b = 0; b < v->gpu_count; b++)
                set |= (uint64_t)(common_steps(&paths[a], &paths[b]) > step) << b;
            /* a root port has no link above it; the link below it is that of the next step */
            if (set != all && step > 0)
                add_shared(v, paths[a].steps[step], set, link_bytes_per_s(&paths[a], step));
        }
}

static void add_sockets(struct hd_inventory *v)
{
    const uint64_t all = v->gpu_count < 64 ? (1ull << v->gpu_count) - 1 : ~0ull;

    for (int a = 0; a < v->gpu_count; a++) {
        char name[HD_INVENTORY_NAME_MAX];
        uint64_t set = 0;

        for (int b = 0; b < v->gpu_count; b++)
            set |= (uint64_t)(v->gpus[b].numa == v->gpus[a].numa) << b;
        (void)snprintf(name, sizeof name, "numa %d", v->gpus[a].numa);
        if (set != all)
            add_shared(v, name, set, INVENTORY_SOCKET_BYTES_PER_S);
    }
}

void hd_inventory_add_nvlink(struct hd_inventory *v, int a, int b, int links, double bytes_per_s,
                             bool by_switch)
{
    for (int i = 0; i < v->pair_count; i++) {
        struct hd_inventory_pair *pair = &v->pairs[i];

        if (pair->a != (a < b ? a : b) || pair->b != (a < b ? b : a) ||
            pair->bytes_per_s >= links * bytes_per_s)
            continue;
        pair->bytes_per_s = links * bytes_per_s;
        pair->direct = !by_switch;
        (void)snprintf(pair->kind, sizeof pair->kind, "nv%d", links);
    }
}

/* ---- adapters ---- */

static void take_nearest(const struct pci_path *gpus, const struct pci_path *adapters,
                         struct hd_inventory *v)
{
    for (int g = 0; g < v->gpu_count; g++) {
        enum near best = NEAR_SYS;

        for (int i = 0; i < v->adapter_count; i++) {
            const enum near near = near_of(&gpus[g], &adapters[i]);

            best = near > best ? near : best;
        }
        for (int i = 0; i < v->adapter_count; i++)
            if (near_of(&gpus[g], &adapters[i]) == best)
                v->adapters[i].nearest |= 1ull << g;
    }
}

static void add_adapter(struct hd_inventory *v, struct pci_path *paths, const char *name,
                        const char *folder, double bytes_per_s)
{
    struct hd_inventory_adapter *adapter = &v->adapters[v->adapter_count];
    char device[PATH_MAX + 16];

    if (v->adapter_count == HD_INVENTORY_ADAPTERS_MAX || bytes_per_s <= 0)
        return;
    (void)snprintf(device, sizeof device, "%s/device", folder);
    take_path(device, &paths[v->adapter_count]);
    if (!paths[v->adapter_count].count)
        return; /* a virtual interface, not on PCIe */
    *adapter = (struct hd_inventory_adapter){.numa = paths[v->adapter_count].numa,
                                             .bytes_per_s = bytes_per_s};
    (void)snprintf(adapter->name, sizeof adapter->name, "%s", name);
    v->adapter_count++;
}

static bool is_there(const char *folder, const char *name)
{
    char path[PATH_MAX + 32];
    DIR *dir;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    dir = opendir(path);
    if (dir)
        (void)closedir(dir);
    return dir != NULL;
}

/* Adds an InfiniBand adapter if its port is active. The rate reads "200 Gb/sec (4X HDR)". */
static void list_infiniband(struct hd_inventory *v, struct pci_path *paths, const char *name,
                            const char *folder)
{
    char path[PATH_MAX + 32], state[WORD_MAX];

    (void)snprintf(path, sizeof path, "%s/ports/1/state", folder);
    if (hd_proc_line(path, state, sizeof state) && strstr(state, "ACTIVE"))
        add_adapter(v, paths, name, folder, 1e9 / 8 * read_number(folder, "ports/1/rate", 0));
}

/* Adds a network interface, unless InfiniBand lists it, too. Its speed is in Mb/s, -1 if the link
 * is down. */
static void list_net(struct hd_inventory *v, struct pci_path *paths, const char *name,
                     const char *folder)
{
    if (!is_there(folder, "device/infiniband"))
        add_adapter(v, paths, name, folder, 1e6 / 8 * read_number(folder, "speed", 0));
}

static void
each_of_class(const char *sys, const char *class, struct hd_inventory *v, struct pci_path *paths,
              void (*scan)(struct hd_inventory *, struct pci_path *, const char *, const char *))
{
    char folder[PATH_MAX], *names[2 * HD_INVENTORY_ADAPTERS_MAX];
    const int most = (int)(sizeof names / sizeof names[0]);
    int count = 0;
    DIR *dir;

    (void)snprintf(folder, sizeof folder, "%s/class/%s", sys, class);
    dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && count < most; e = readdir(dir))
        if (e->d_name[0] != '.' && (names[count] = strdup(e->d_name)) != NULL)
            count++;
    if (dir)
        (void)closedir(dir);
    qsort(names, (size_t)count, sizeof names[0], hd_order_texts);
    for (int i = 0; i < count; i++) {
        (void)snprintf(folder, sizeof folder, "%s/class/%s/%s", sys, class, names[i]);
        scan(v, paths, names[i], folder);
        free(names[i]);
    }
}

/* ---- all ---- */

static void find_gpu(const char *sys, const char *bus, struct pci_path *ret_path)
{
    char folder[PATH_MAX];
    size_t len;

    (void)snprintf(folder, sizeof folder, "%s/bus/pci/devices/%s", sys, bus);
    len = strlen(folder);
    for (size_t i = len - strlen(bus); i < len; i++)
        folder[i] = (char)tolower((unsigned char)folder[i]);
    take_path(folder, ret_path);
}

void hd_inventory_read(const char *sys, const char *const *uuids, const char *const *buses,
                       int count, struct hd_inventory *ret_inventory)
{
    struct hd_inventory *v = ret_inventory;
    struct pci_path *paths =
        calloc(HD_INVENTORY_GPUS_MAX + HD_INVENTORY_ADAPTERS_MAX + 1, sizeof *paths);
    struct pci_path *adapters = paths + HD_INVENTORY_GPUS_MAX;
    bool known = true;

    memset(v, 0, sizeof *v);
    v->taken_ms = hd_clock_wall_ms();
    if (!paths)
        return; /* out of memory: leaves the inventory empty, as if sysfs were not readable */
    v->gpu_count = count < HD_INVENTORY_GPUS_MAX ? count : HD_INVENTORY_GPUS_MAX;
    for (int g = 0; g < v->gpu_count; g++) {
        find_gpu(sys, buses[g], &paths[g]);
        (void)snprintf(v->gpus[g].uuid, sizeof v->gpus[g].uuid, "%s", uuids[g]);
        v->gpus[g].numa = paths[g].numa;
        if (paths[g].count)
            v->gpus[g].pcie_bytes_per_s = link_bytes_per_s(&paths[g], paths[g].count - 1);
        known = known && v->gpus[g].pcie_bytes_per_s > 0;
    }
    if (known) {
        add_pairs(paths, v);
        add_bridges(paths, v);
        add_sockets(v);
    }
    each_of_class(sys, "infiniband", v, adapters, list_infiniband);
    each_of_class(sys, "net", v, adapters, list_net);
    take_nearest(paths, adapters, v);
    free(paths);
}

bool hd_inventory_equal(const struct hd_inventory *a, const struct hd_inventory *b)
{
    return memcmp((const char *)a + sizeof a->taken_ms, (const char *)b + sizeof b->taken_ms,
                  sizeof *a - sizeof a->taken_ms) == 0;
}
