/* network: what NCCL is told of the data address, in a sysfs made of files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/devices/network.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

static char sys[TEMPORARY_BYTES];

static void make_folders(const char *path)
{
    char part[256];

    for (size_t i = strlen(sys) + 1; path[i]; i++) {
        if (path[i] != '/')
            continue;
        (void)snprintf(part, sizeof part, "%.*s", (int)i, path);
        (void)mkdir(part, 0755);
    }
}

static void write_file(const char *path, const char *text)
{
    char whole[256];
    FILE *file;

    (void)snprintf(whole, sizeof whole, "%s/%s", sys, path);
    make_folders(whole);
    file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void add_adapter(const char *name, const char *interface, const char *state,
                        const char *layer)
{
    char path[128];

    (void)snprintf(path, sizeof path, "class/infiniband/%s/ports/1/state", name);
    write_file(path, state);
    (void)snprintf(path, sizeof path, "class/infiniband/%s/ports/1/link_layer", name);
    write_file(path, layer);
    (void)snprintf(path, sizeof path, "class/infiniband/%s/device/net/%s", name, interface);
    write_file(path, "");
}

static int make_sys(void **state)
{
    temporary_dir(sys, "network");
    return 0;
}

static int remove_sys(void **state)
{
    char command[96];

    (void)snprintf(command, sizeof command, "rm -r '%s'", sys);
    return system(command);
}

/* An address that no adapter serves: sockets only, whatever other adapters there are. */
static void without_an_adapter_there_are_sockets_only(void **state)
{
    struct hd_network network;

    add_adapter("mlx5_0", "ib0", "4: ACTIVE\n", "InfiniBand\n");
    assert_int_equal(hd_network_find("127.0.0.1", sys, &network), HD_OK);
    assert_string_equal(network.interface, "lo");
    assert_string_equal(network.adapters, "");
    assert_string_equal(network.left_out, "mlx5_0:1"); /* and it is said that it is not used */
    assert_int_equal(hd_network_count_left_out(&network), 1);
    assert_int_equal(setenv("NCCL_IB_HCA", "mlx5_0", 1), 0);
    assert_int_equal(hd_network_count_left_out(&network), 0); /* the operator has chosen */
    assert_int_equal(unsetenv("NCCL_IB_HCA"), 0);
    assert_false(network.is_ipv6);
    assert_int_equal(hd_network_find("127.0.0.7", sys, &network), HD_OK); /* all of 127/8 is lo */
    assert_string_equal(network.interface, "lo");
}

/* The address is on a RoCE adapter, behind a bond: all active Ethernet adapters are used. */
static void adapters_of_the_same_kind_are_used(void **state)
{
    struct hd_network network;
    size_t names;

    add_adapter("mlx5_0", "rail0", "4: ACTIVE\n", "Ethernet\n");
    add_adapter("mlx5_1", "rail1", "4: ACTIVE\n", "Ethernet\n");
    add_adapter("mlx5_2", "rail2", "1: DOWN\n", "Ethernet\n");
    add_adapter("mlx5_3", "ib0", "4: ACTIVE\n", "InfiniBand\n");
    write_file("class/net/lo/lower_rail0", "");
    assert_int_equal(hd_network_find("127.0.0.1", sys, &network), HD_OK);
    names = strlen(network.adapters); /* in any order */
    assert_non_null(strstr(network.adapters, "mlx5_0:1"));
    assert_non_null(strstr(network.adapters, "mlx5_1:1"));
    assert_int_equal(names, 2 * strlen("mlx5_0:1") + 1);
    assert_string_equal(network.left_out, "");
}

static void an_address_of_another_machine_is_refused(void **state)
{
    struct hd_network network;

    assert_int_equal(hd_network_find("192.0.2.1", sys, &network), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), "192.0.2.1"));
}

RUN_EACH_CASE_WITH(make_sys, remove_sys)
