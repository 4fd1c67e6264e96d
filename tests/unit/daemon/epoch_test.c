/* The controller that a node obeys, and the name by which its cluster knows it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "daemon/agent/identity.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

static struct agent_epoch of(const char *cluster, uint64_t number, const char *instance)
{
    struct agent_epoch epoch = {.number = number, .progress = 3};

    (void)snprintf(epoch.cluster, sizeof epoch.cluster, "%s", cluster);
    (void)snprintf(epoch.instance, sizeof epoch.instance, "%s", instance);
    (void)snprintf(epoch.place, sizeof epoch.place, "/state/%s on host %s", instance, instance);
    memset(epoch.proof, (int)number, sizeof epoch.proof);
    return epoch;
}

static void the_newest_controller_is_obeyed(void **state)
{
    static const struct {
        const char *cluster, *instance;
        uint64_t number;
        enum hd_status st;
        bool changed;
    } cases[] = {
        {"c1", "a", 7, HD_OK, false},       /* a reconnection */
        {"c1", "b", 8, HD_OK, true},        /* it was started again */
        {"c1", "b", 9000, HD_OK, true},     /* another took over */
        {"c1", "b", 6, HD_CONFLICT, false}, /* an older one */
        {"c1", "b", 7, HD_CONFLICT, false}, /* a twin, started on a copy */
        {"c2", "b", 1, HD_OK, true},        /* of another cluster, to which the node went */
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct agent_epoch known = of("c1", 7, "a");
        const struct agent_epoch seen = of(cases[i].cluster, cases[i].number, cases[i].instance);
        bool changed;

        assert_int_equal(agent_epoch_compare(&known, &seen, &changed), cases[i].st);
        assert_int_equal(changed, cases[i].changed);
        assert_int_equal(known.number, cases[i].st ? 7 : cases[i].number);
        if (cases[i].st) { /* both are named */
            assert_non_null(strstr(hd_err_message(), "/state/a on host a"));
            assert_non_null(strstr(hd_err_message(), "/state/b on host b"));
        }
    }
}

static void it_is_known_to_the_next_heddled(void **state)
{
    char dir[TEMPORARY_BYTES], path[TEMPORARY_BYTES + 16];
    struct agent_epoch epoch = of("c1", 70000000000, "a"), read;

    temporary_dir(dir, "heddle-epoch");
    agent_epoch_read(dir, &read);
    assert_int_equal(read.number, 0);
    assert_int_equal(agent_epoch_write(dir, &epoch), HD_OK);
    agent_epoch_read(dir, &read);
    assert_true(read.number == epoch.number);
    assert_true(read.progress == epoch.progress);
    assert_string_equal(read.cluster, epoch.cluster);
    assert_string_equal(read.instance, epoch.instance);
    assert_string_equal(read.place, epoch.place);
    assert_memory_equal(read.proof, epoch.proof, sizeof read.proof);
    (void)snprintf(path, sizeof path, "%s/epoch", dir);
    assert_int_equal(hd_file_write_atomic(path, "cluster c1\nnumber 9\n", 20, 0600), HD_OK);
    agent_epoch_read(dir, &read); /* damaged */
    assert_int_equal(read.number, 0);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

static void a_node_keeps_the_name_that_it_was_known_by(void **state)
{
    char dir[TEMPORARY_BYTES];
    struct agent_identity id;

    temporary_dir(dir, "heddle-name");
    assert_int_equal(agent_identity_open(dir, "old-host", &id), HD_OK);
    assert_string_equal(id.node_name, "old-host");
    agent_identity_keep_name(&id);
    agent_identity_close(&id);
    assert_int_equal(agent_identity_open(dir, NULL, &id), HD_OK); /* this host has another name */
    assert_string_equal(id.node_name, "old-host");
    assert_string_not_equal(id.host, "old-host");
    agent_identity_close(&id);
    assert_int_equal(agent_identity_open(dir, "new-name", &id), HD_OK); /* as asked for */
    assert_string_equal(id.node_name, "new-name");
    assert_string_equal(id.host, "");
    agent_identity_close(&id);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
}

RUN_CASES()
