/* The inventory of links, of machines that are only folders: a PCIe tree as sysfs shows it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/devices/inventory.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

static struct hd_inventory found, back; /* large; one test at a time uses them */
static char sys[TEMPORARY_BYTES];

/* ---- a machine --------------------------------------------------------------------------------*/

static void make_folders(const char *path)
{
    char folder[512];

    for (const char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
        (void)snprintf(folder, sizeof folder, "%.*s", at ? (int)(at - path) : (int)strlen(path),
                       path);
        (void)mkdir(folder, 0755);
        if (!at)
            return;
    }
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[512];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "%s\n", text) > 0);
    assert_int_equal(fclose(file), 0);
}

/* A device at the end of this way: "pci0000:3a/0000:3a:01.0/..". Each step gets speed and width, if
 * it has none. */
static void add_device(const char *way, const char *speed, const char *width, const char *numa)
{
    char folder[512], link[512], target[512];
    const char *address = strrchr(way, '/') + 1;

    (void)snprintf(folder, sizeof folder, "%s/devices/%s", sys, way);
    make_folders(folder);
    for (char *end = folder + strlen(folder); strstr(folder, "/0000:"); *end = '\0') {
        char path[600];

        (void)snprintf(path, sizeof path, "%s/max_link_speed", folder);
        if (access(path, F_OK) < 0) {
            put(folder, "max_link_speed", speed);
            put(folder, "current_link_width", width);
            put(folder, "numa_node", numa);
        }
        end = strrchr(folder, '/');
    }
    (void)snprintf(link, sizeof link, "%s/bus/pci/devices", sys);
    make_folders(link);
    (void)snprintf(link, sizeof link, "%s/bus/pci/devices/%s", sys, address);
    (void)snprintf(target, sizeof target, "%s/devices/%s", sys, way);
    assert_int_equal(symlink(target, link), 0);
}

/* infiniband/NAME or net/NAME of a device. */
static void add_adapter(const char *class, const char *name, const char *way)
{
    char folder[512], target[512];

    (void)snprintf(folder, sizeof folder, "%s/class/%s/%s", sys, class, name);
    make_folders(folder);
    (void)snprintf(target, sizeof target, "%s/devices/%s", sys, way);
    (void)snprintf(folder, sizeof folder, "%s/class/%s/%s/device", sys, class, name);
    assert_int_equal(symlink(target, folder), 0);
}

/* Two sockets. On the first one a switch with GPUs 0 and 1 and an adapter, and GPU 2 at a port of
 * its own, with 8 lanes; on the second GPU 3. */
static void have_four_gpus(void)
{
    char folder[512];

    temporary_dir(sys, "inventory");
    add_device("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0", "16.0 GT/s PCIe",
               "16", "0");
    add_device("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0", "16.0 GT/s PCIe",
               "16", "0");
    add_device("pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:02.0/0000:3f:00.0", "16.0 GT/s PCIe",
               "16", "0");
    add_device("pci0000:3a/0000:3a:02.0/0000:40:00.0", "16.0 GT/s PCIe", "8", "0");
    add_device("pci0000:b0/0000:b0:01.0/0000:b1:00.0", "8.0 GT/s PCIe", "16", "1");
    add_adapter("infiniband", "mlx5_0",
                "pci0000:3a/0000:3a:01.0/0000:3b:00.0/0000:3c:02.0/0000:3f:00.0");
    (void)snprintf(folder, sizeof folder, "%s/class/infiniband/mlx5_0/ports/1", sys);
    make_folders(folder);
    put(folder, "state", "4: ACTIVE");
    put(folder, "rate", "200 Gb/sec (4X HDR)");
    add_adapter("net", "eth0", "pci0000:b0/0000:b0:01.0/0000:b1:00.0");
    (void)snprintf(folder, sizeof folder, "%s/class/net/eth0", sys);
    put(folder, "speed", "25000");
    add_adapter("net", "eth1", "pci0000:b0/0000:b0:01.0/0000:b1:00.0");
    (void)snprintf(folder, sizeof folder, "%s/class/net/eth1", sys);
    put(folder, "speed", "-1"); /* it is down */
}

static void take(void)
{
    static const char *const uuids[] = {"GPU-0", "GPU-1", "GPU-2", "GPU-3"};
    static const char *const buses[] = {"0000:3D:00.0", "0000:3E:00.0", "0000:40:00.0",
                                        "0000:B1:00.0"}; /* as CUDA writes them */

    have_four_gpus();
    hd_inventory_read(sys, uuids, buses, 4, &found);
}

static void is_pair(int a, int b, const char *kind, double bytes_per_s)
{
    for (int i = 0; i < found.pair_count; i++)
        if (found.pairs[i].a == a && found.pairs[i].b == b) {
            assert_string_equal(found.pairs[i].kind, kind);
            assert_true(found.pairs[i].bytes_per_s == bytes_per_s);
            return;
        }
    fail_msg("no pair of %d and %d", a, b);
}

/* ---- tests ------------------------------------------------------------------------------------*/

/* PCIe 4.0: 1.969 GB/s a lane. */
static void pairs_are_as_near_as_their_ways(void **state)
{
    take();
    assert_int_equal(found.gpu_count, 4);
    assert_int_equal(found.pair_count, 6);
    is_pair(0, 1, "pix", 16 * 1.969e9);
    is_pair(0, 2, "phb", 8 * 1.969e9);
    is_pair(2, 3, "sys", 16 * 0.985e9 < 8 * 1.969e9 ? 16 * 0.985e9 : 8 * 1.969e9);
    is_pair(0, 3, "sys", 16 * 0.985e9);
    assert_int_equal(found.gpus[3].numa, 1);
}

/* The switch's uplink, and what lies between the sockets; not the port of one GPU. */
static void uplinks_are_shared(void **state)
{
    take();
    assert_int_equal(found.shared_count, 2);
    assert_string_equal(found.shared[0].name, "0000:3b:00.0");
    assert_int_equal(found.shared[0].gpus, 3);
    assert_true(found.shared[0].bytes_per_s == 16 * 1.969e9);
    assert_string_equal(found.shared[1].name, "numa 0");
    assert_int_equal(found.shared[1].gpus, 7);
    assert_true(found.shared[1].bytes_per_s == INVENTORY_SOCKET_BYTES_PER_S);
}

static void adapters_are_near_the_gpus_of_their_switch(void **state)
{
    take();
    assert_int_equal(found.adapter_count, 2); /* without the one that is down */
    assert_string_equal(found.adapters[0].name, "mlx5_0");
    assert_true(found.adapters[0].bytes_per_s == 25e9);
    assert_int_equal(found.adapters[0].nearest, 7); /* GPU 2 is at the same host bridge */
    assert_string_equal(found.adapters[1].name, "eth0");
    assert_int_equal(found.adapters[1].nearest, 8);
}

static void nvlinks_replace_what_is_slower(void **state)
{
    take();
    hd_inventory_add_nvlink(&found, 3, 0, 4, 25e9, false);
    is_pair(0, 3, "nv4", 100e9);
    assert_true(found.pairs[3].direct); /* (0,1) (0,2) (1,2) (0,3) */
    hd_inventory_add_nvlink(&found, 0, 3, 2, 25e9, false);
    is_pair(0, 3, "nv4", 100e9);
    hd_inventory_add_nvlink(&found, 0, 1, 12, 25e9, true);
    is_pair(0, 1, "nv12", 300e9);
    assert_false(found.pairs[0].direct);
}

static void it_reads_back_as_it_was_written(void **state)
{
    struct hd_text text = {0};
    struct hd_json_writer w = {.out = &text};
    const struct hd_json_limits limits = {.values_max = 65536, .depth_max = 8};
    const struct hd_json *root = NULL;
    struct hd_arena arena;

    take();
    hd_json_begin(&w, NULL, '{');
    hd_inventory_write(&found, "inventory", &w);
    hd_json_end(&w, '}');
    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, text.data, text.len_bytes, &limits, &root), HD_OK);
    if (hd_inventory_parse(hd_json_member(root, "inventory"), &back))
        fail_msg("%s", hd_err_message());
    assert_true(hd_inventory_equal(&found, &back));
    assert_int_equal(back.taken_ms, found.taken_ms);
    back.adapters[0].numa = 7;
    assert_false(hd_inventory_equal(&found, &back));
    hd_arena_done(&arena);
    hd_text_free(&text);
}

/* Without a way of one GPU nothing is said of pairs: half a matrix would mislead. */
static void an_unknown_way_leaves_no_pairs(void **state)
{
    static const char *const uuids[] = {"GPU-0", "GPU-9"};
    static const char *const buses[] = {"0000:3D:00.0", "0000:99:00.0"};

    have_four_gpus();
    hd_inventory_read(sys, uuids, buses, 2, &found);
    assert_int_equal(found.gpu_count, 2);
    assert_int_equal(found.pair_count, 0);
    assert_int_equal(found.adapter_count, 2);
}

RUN_CASES()
