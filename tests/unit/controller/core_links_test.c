/* core: which devices an attempt takes where they are not alike, and nodes of one switch. */
#include <stdio.h>
#include <string.h>

#include "sim.h"
#include "tests/program/test.h"

enum { DEVICES = 8 };

/* A core with nodes of eight GPUs. */
struct bench {
    struct hd_core *core;
    struct hd_core_out out;
    uint64_t streams, requests;
};

static void step(struct bench *b, const struct hd_core_event *event)
{
    b->out.batch = hd_batch_new();
    assert_non_null(b->out.batch);
    if (hd_core_step(b->core, event, (struct hd_now){1000, 1000}, &b->out))
        fail_msg("%s", hd_err_message());
    hd_batch_free(b->out.batch);
    b->out.batch = NULL;
    if (hd_core_check(b->core))
        fail_msg("%s", hd_err_message());
}

static struct bench open_bench(const struct hd_node_tree *tree)
{
    struct hd_core_config config = hd_core_config_default;
    struct bench b = {.streams = 0};

    config.tree = tree;
    b.core = hd_core_new(&config);
    assert_non_null(b.core);
    return b;
}

static void close_bench(struct bench *b)
{
    hd_core_out_done(&b->out);
    hd_core_free(b->core);
}

static void join(struct bench *b, const char *name, int devices, const struct hd_node_links *links)
{
    struct hd_device_record list[DEVICES];
    char uuid[32];
    struct hd_core_event hello = {.kind = HD_CORE_HELLO}, seen = {.kind = HD_CORE_OBSERVED};

    (void)snprintf(uuid, sizeof uuid, "uuid-%s", name);
    for (int d = 0; d < devices; d++)
        list[d] = (struct hd_device_record){
            .index = d, .kind = HD_DEVICE_KIND_CUDA, .name = "GPU", .threads = 1};
    hello.hello.uuid = uuid;
    hello.hello.name = name;
    hello.hello.boot_id = uuid;
    hello.hello.build = "1";
    hello.hello.facts.data_address = "10.0.0.1";
    hello.hello.facts.compute[HD_DEVICE_KIND_CPU] = "cpu";
    hello.hello.facts.compute[HD_DEVICE_KIND_CUDA] = "GPU, NCCL";
    hello.hello.stream = ++b->streams;
    hello.hello.devices = list;
    hello.hello.device_count = devices;
    hello.hello.links = links;
    step(b, &hello);
    seen.observed.uuid = uuid;
    seen.observed.stream = b->streams;
    seen.observed.jobs_dir_visible = true;
    step(b, &seen);
}

/* tp 0: auto */
static uint64_t submit(struct bench *b, int devices, int tp)
{
    struct hd_core_event event = {.kind = HD_CORE_SUBMIT};
    char request[32];

    (void)snprintf(request, sizeof request, "request-%llu", (unsigned long long)++b->requests);
    event.submit.request_id = request;
    event.submit.owner = "ann";
    event.submit.needs = sim_needs(devices, 10);
    event.submit.needs.device = HD_DEVICE_KIND_CUDA;
    event.submit.needs.wish.sizes.tp = tp;
    event.submit.needs.wish.heads = event.submit.needs.wish.kv_heads = 8;
    event.submit.needs.wish.hidden = 512;
    event.submit.needs.wish.layers = 4;
    event.submit.needs.wish.global_batch = 48;
    event.submit.spec = "";
    step(b, &event);
    return b->out.job;
}

/* "n1:0 n1:1": where its ranks are; "": it waits. */
static void is_on(const struct bench *b, uint64_t job, const char *expected)
{
    const struct hd_attempt_record *attempt = hd_core_attempt(b->core, job, 0);
    char places[512] = "";

    for (int32_t r = 0; attempt && r < attempt->plan.rank_count; r++)
        (void)snprintf(places + strlen(places), sizeof places - strlen(places), "%s%s:%d",
                       r ? " " : "", attempt->plan.ranks[r].node_name,
                       (int)attempt->plan.ranks[r].device);
    assert_string_equal(places, expected);
}

/* Devices k and k + 4 are under one switch; 0, 1, 4, 5 are of one socket. */
static struct hd_node_links two_sockets(void)
{
    struct hd_node_links l = {.devices = DEVICES};

    for (int a = 0; a < DEVICES; a++)
        for (int b = 0; b < a; b++)
            hd_node_links_set(&l, a, b,
                              a % 4 == b % 4           ? 13e9
                              : a % 4 / 2 == b % 4 / 2 ? 10e9
                                                       : 9e9,
                              5e-6, false);
    assert_int_equal(hd_node_links_share(&l, 0x33, 9e9), HD_OK);
    return l;
}

static void ranks_have_the_devices_of_the_map(void **state)
{
    const struct hd_node_links l = two_sockets();
    struct bench b = open_bench(NULL);

    join(&b, "n1", DEVICES, &l);
    join(&b, "n2", DEVICES, NULL);
    is_on(&b, submit(&b, 8, 2), "n1:0 n1:4 n1:1 n1:5 n1:2 n1:6 n1:3 n1:7");
    is_on(&b, submit(&b, 8, 2), "n2:0 n2:1 n2:2 n2:3 n2:4 n2:5 n2:6 n2:7");
    close_bench(&b);
}

/* The first free devices are not the nearest ones. */
static void a_part_of_a_node_is_taken_by_its_links(void **state)
{
    const struct hd_node_links l = two_sockets();
    struct bench b = open_bench(NULL);

    join(&b, "n1", DEVICES, &l);
    is_on(&b, submit(&b, 1, 1), "n1:0");
    is_on(&b, submit(&b, 2, 2), "n1:1 n1:5"); /* not 1 and 2 */
    is_on(&b, submit(&b, 2, 2), "n1:2 n1:6");
    is_on(&b, submit(&b, 2, 2), "n1:3 n1:7");
    is_on(&b, submit(&b, 1, 1), "n1:4");
    is_on(&b, submit(&b, 1, 1), "");
    close_bench(&b);
}

/* Links are of the devices that the node offers now. */
static void a_new_hello_replaces_the_links(void **state)
{
    const struct hd_node_links l = two_sockets();
    struct bench b = open_bench(NULL);

    join(&b, "n1", DEVICES, &l);
    join(&b, "n1", DEVICES, NULL);
    is_on(&b, submit(&b, 2, 2), "n1:0 n1:1");
    join(&b, "n2", DEVICES, &l);
    join(&b, "n2", DEVICES, &l);
    is_on(&b, submit(&b, 8, 8), "n2:0 n2:1 n2:2 n2:3 n2:6 n2:7 n2:4 n2:5");
    close_bench(&b);
}

/* ---- switches ---- */

/* Two nodes at each leaf, two leaves at each spine: a1 a2 | a3 a4 || a5 a6 | a7 a8. */
static struct hd_node_tree leaves_of_two(void)
{
    return (struct hd_node_tree){
        .tier_count = 2, .tier_nodes = {2, 4}, .group_count = 1, .groups = {{.names = "a[1-8]"}}};
}

static void join_all(struct bench *b, const char *const *names)
{
    for (; *names; names++)
        join(b, *names, 2, NULL);
}

static void a_gang_takes_nodes_of_one_switch(void **state)
{
    static const char *const names[] = {"a2", "a3", "a4", "a7", NULL};
    const struct hd_node_tree tree = leaves_of_two();
    struct bench b = open_bench(&tree);

    join_all(&b, names);
    is_on(&b, submit(&b, 4, 1), "a3:0 a3:1 a4:0 a4:1"); /* not a2 and a3 */
    is_on(&b, submit(&b, 4, 1), "a2:0 a2:1 a7:0 a7:1"); /* nothing else is left */
    close_bench(&b);
}

/* No leaf has enough: two leaves of one spine rather than of two; and whole leaves. */
static void the_next_tier_is_second_best(void **state)
{
    static const char *const names[] = {"a2", "a3", "a5", "a6", "a7", NULL};
    const struct hd_node_tree tree = leaves_of_two();
    struct bench b = open_bench(&tree);

    join_all(&b, names);
    is_on(&b, submit(&b, 6, 1), "a5:0 a5:1 a6:0 a6:1 a7:0 a7:1");
    is_on(&b, submit(&b, 4, 1), "a2:0 a2:1 a3:0 a3:1");
    close_bench(&b);
}

/* A switch with just enough is taken before one with more. */
static void large_switches_stay_whole(void **state)
{
    static const char *const names[] = {"a1", "a2", "a3", "a4", "a5", "a6", NULL};
    struct hd_node_tree tree = leaves_of_two();
    struct bench b;

    tree.tier_nodes[0] = 4;
    tree.tier_count = 1;
    b = open_bench(&tree);
    join_all(&b, names);
    is_on(&b, submit(&b, 4, 1), "a5:0 a5:1 a6:0 a6:1");
    is_on(&b, submit(&b, 8, 1), "a1:0 a1:1 a2:0 a2:1 a3:0 a3:1 a4:0 a4:1");
    close_bench(&b);
}

/* The leaf of a7 and a8 is as full as that of a1 and a2, and the spine above it is fuller. */
static void large_switches_of_each_tier_stay_whole(void **state)
{
    static const char *const names[] = {"a1", "a2", "a3", "a4", "a7", "a8", NULL};
    const struct hd_node_tree tree = leaves_of_two();
    struct bench b = open_bench(&tree);

    join_all(&b, names);
    is_on(&b, submit(&b, 4, 1), "a7:0 a7:1 a8:0 a8:1");
    is_on(&b, submit(&b, 8, 1), "a1:0 a1:1 a2:0 a2:1 a3:0 a3:1 a4:0 a4:1");
    close_bench(&b);
}

/* A job of one node goes where least is free, so that the whole leaf is there for the gang. */
static void small_jobs_leave_switches_whole(void **state)
{
    static const char *const names[] = {"a1", "a2", "a3", NULL};
    const struct hd_node_tree tree = leaves_of_two();
    struct bench b = open_bench(&tree);

    join_all(&b, names);
    is_on(&b, submit(&b, 2, 1), "a3:0 a3:1"); /* not a1, the first */
    is_on(&b, submit(&b, 4, 1), "a1:0 a1:1 a2:0 a2:1");
    close_bench(&b);
}

/* A node that the file does not name is at no switch, though its name sorts between others. */
static void a_node_without_a_position_is_far(void **state)
{
    static const char *const names[] = {"a10", "a11", "a1", "a3", NULL}, *const more[] = {"a4",
                                                                                          NULL};
    const struct hd_node_tree tree = leaves_of_two();
    struct bench b = open_bench(&tree);

    join_all(&b, names);
    is_on(&b, submit(&b, 4, 1), "a1:0 a1:1 a3:0 a3:1"); /* not a10 and a11, as without a tree */
    join_all(&b, more);
    is_on(&b, submit(&b, 4, 1), "a4:0 a4:1 a10:0 a10:1");
    close_bench(&b);
}

/* Ranks follow the switches, not the order of letters: a9 is before a10. */
static void ranks_follow_the_tree(void **state)
{
    static const char *const names[] = {"a10", "a9", "b", NULL};
    const struct hd_node_tree tree = {.tier_count = 1,
                                      .tier_nodes = {4},
                                      .group_count = 2,
                                      .groups = {{.names = "b"}, {.names = "a[9-10]", .first = 4}}};
    struct bench b = open_bench(&tree);

    join_all(&b, names);
    is_on(&b, submit(&b, 6, 1), "b:0 b:1 a9:0 a9:1 a10:0 a10:1");
    close_bench(&b);
}

RUN_CASES()
