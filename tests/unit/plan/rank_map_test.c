/* Which device each rank takes: against all permutations, on machines whose devices are not alike.
 */
#include <math.h>
#include <string.h>

#include "plan/rank_map.h"
#include "tests/program/test.h"

enum { EIGHT = 8 };

/* ---- machines ---- */

/* Eight P100 on PCIe 3.0 x16 in two sockets: two under each switch, two switches per socket. Round
 * figures of such machines: 13 GB/s under a switch, 10 between switches, 9 between sockets; uplinks
 * of the switches 12, the sockets' link 9 GB/s for all. */
static struct hd_node_links eight_p100(void)
{
    struct hd_node_links l = {.devices = EIGHT};

    for (int a = 0; a < EIGHT; a++)
        for (int b = 0; b < a; b++)
            hd_node_links_set(&l, a, b,
                              a / 2 == b / 2   ? 13e9
                              : a / 4 == b / 4 ? 10e9
                                               : 9e9,
                              a / 4 == b / 4 ? 6e-6 : 9e-6, false);
    for (int s = 0; s < 4; s++)
        assert_int_equal(hd_node_links_share(&l, 3u << (2 * s), 12e9), HD_OK);
    assert_int_equal(hd_node_links_share(&l, 0xf, 9e9), HD_OK);
    return l;
}

/* A DGX-1V: six NVLinks of 25 GB/s per V100 in a hybrid cube mesh (NVIDIA, DGX-1 with V100 System
 * Architecture, white paper WP-08437), other pairs over PCIe. */
static struct hd_node_links dgx_1v(void)
{
    static const char lanes[EIGHT][EIGHT + 1] = {"01122000", "10210200", "12020010", "21200001",
                                                 "20000112", "02001021", "00101202", "00012120"};
    struct hd_node_links l = {.devices = EIGHT};

    for (int a = 0; a < EIGHT; a++)
        for (int b = 0; b < a; b++) {
            const int links = lanes[a][b] - '0';

            hd_node_links_set(&l, a, b, links ? 25e9 * links : 10e9, links ? 2e-6 : 9e-6, links);
        }
    for (int s = 0; s < 4; s++)
        assert_int_equal(hd_node_links_share(&l, 3u << (2 * s), 12e9), HD_OK);
    return l;
}

/* Two islands of four with a switch of NVLink each, joined by PCIe; numbered by turns. */
static struct hd_node_links two_islands(void)
{
    struct hd_node_links l = {.devices = EIGHT};

    for (int a = 0; a < EIGHT; a++)
        for (int b = 0; b < a; b++)
            hd_node_links_set(&l, a, b, a % 2 == b % 2 ? 200e9 : 20e9, 3e-6, false);
    assert_int_equal(hd_node_links_share(&l, 0x55, 20e9), HD_OK);
    return l;
}

/* PCIe 4.0 x16 and x8 slots, two pairs bridged by NVLink. */
static struct hd_node_links mixed_pcie(void)
{
    struct hd_node_links l = {.devices = EIGHT};

    for (int a = 0; a < EIGHT; a++)
        for (int b = 0; b < a; b++)
            hd_node_links_set(&l, a, b, a < 5 && b < 5 ? 25e9 : 12e9, 5e-6, false);
    hd_node_links_set(&l, 0, 7, 56e9, 3e-6, true);
    hd_node_links_set(&l, 2, 6, 56e9, 3e-6, true);
    assert_int_equal(hd_node_links_share(&l, 0x0f, 20e9), HD_OK);
    return l;
}

/* ---- layouts ---- */

static const struct hd_plan_request model = {.global_batch = 64,
                                             .layers = 32,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .hidden = 4096,
                                             .ffn_hidden = 14336,
                                             .context = 4096,
                                             .experts = 8,
                                             .vocab = 32000};

static struct hd_layout_sizes layout(int pp, int dp, int cp, int tp, int ep)
{
    return (struct hd_layout_sizes){
        .pp = pp, .dp = dp, .cp = cp, .tp = tp, .ep = ep, .micro_batch = 1};
}

static const struct hd_layout_sizes of_eight[] = {
    {.pp = 1, .dp = 4, .cp = 1, .tp = 2, .ep = 1, .micro_batch = 1},
    {.pp = 2, .dp = 2, .cp = 1, .tp = 2, .ep = 2, .micro_batch = 1},
    {.pp = 1, .dp = 2, .cp = 1, .tp = 4, .ep = 1, .micro_batch = 1},
    {.pp = 4, .dp = 1, .cp = 1, .tp = 2, .ep = 1, .micro_batch = 1},
    {.pp = 1, .dp = 2, .cp = 2, .tp = 2, .ep = 1, .micro_batch = 1},
};

struct asked {
    const struct hd_node_links *links;
    struct hd_mesh mesh;
    struct hd_traffic traffic;
};

static struct asked ask(const struct hd_node_links *links, const struct hd_layout_sizes *s)
{
    struct asked a = {.links = links};

    assert_int_equal(hd_mesh_init(&a.mesh, &(struct hd_mesh_sizes){.pp = (int32_t)s->pp,
                                                                   .dp = (int32_t)s->dp,
                                                                   .cp = (int32_t)s->cp,
                                                                   .tp = (int32_t)s->tp,
                                                                   .ep = (int32_t)s->ep}),
                     HD_OK);
    hd_traffic_of(s, &model, &a.traffic);
    return a;
}

static void choose(const struct hd_node_links *links, const struct hd_layout_sizes *s,
                   int32_t *ret_devices)
{
    static const int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct asked a = ask(links, s);
    const struct hd_rank_node node = {
        .links = links, .devices = all, .device_count = links->devices, .ranks = a.mesh.world};

    if (hd_rank_map_choose(s, &a.traffic, &node, 1, ret_devices))
        fail_msg("%s", hd_err_message());
}

/* ---- all permutations ---- */

/* The least of all, by Heap's algorithm. */
static double least_of_all(const struct asked *a)
{
    int32_t p[EIGHT] = {0, 1, 2, 3, 4, 5, 6, 7}, at[EIGHT] = {0};
    double least = hd_rank_map_seconds(a->links, &a->mesh, &a->traffic, p);

    for (int i = 1; i < EIGHT;) {
        const int other = i % 2 ? at[i] : 0;
        int32_t swap;
        double seconds;

        if (at[i] >= i) {
            at[i++] = 0;
            continue;
        }
        swap = p[i];
        p[i] = p[other];
        p[other] = swap;
        seconds = hd_rank_map_seconds(a->links, &a->mesh, &a->traffic, p);
        least = seconds < least ? seconds : least;
        at[i]++;
        i = 1;
    }
    return least;
}

static void equals_all_permutations(const struct hd_node_links *links, size_t layouts)
{
    for (size_t i = 0; i < layouts; i++) {
        const struct asked a = ask(links, &of_eight[i]);
        const double least = least_of_all(&a);
        int32_t devices[EIGHT];
        double seconds;

        choose(links, &of_eight[i], devices);
        seconds = hd_rank_map_seconds(links, &a.mesh, &a.traffic, devices);
        if (fabs(seconds - least) > 1e-6 * least)
            fail_msg("layout %zu: %.9g s, the best of all permutations has %.9g s", i, seconds,
                     least);
    }
}

static void eight_p100_get_the_best_of_all_permutations(void **state)
{
    const struct hd_node_links l = eight_p100();

    equals_all_permutations(&l, 5);
}

static void a_hybrid_cube_mesh_gets_the_best_of_all_permutations(void **state)
{
    const struct hd_node_links l = dgx_1v();

    for (int a = 0; a < EIGHT; a++) { /* six links of 25 GB/s leave each */
        double sum = 0;

        for (int b = 0; b < EIGHT; b++)
            sum += a != b && hd_node_links_is_direct(&l, a, b) ? hd_node_links_rate(&l, a, b) : 0;
        assert_true(fabs(sum - 150e9) < 1e6);
    }
    equals_all_permutations(&l, 3);
}

static void two_islands_get_the_best_of_all_permutations(void **state)
{
    const struct hd_node_links l = two_islands();

    equals_all_permutations(&l, 3);
}

static void mixed_pcie_gets_the_best_of_all_permutations(void **state)
{
    const struct hd_node_links l = mixed_pcie();

    equals_all_permutations(&l, 4);
}

/* ---- what people expect ---- */

/* Devices 2k and 2k + 1 share a switch: so each tp group of two is one of those pairs, also when
 * the machine numbers them otherwise. */
static void pairs_under_a_switch_are_the_groups_of_two(void **state)
{
    static const int number[EIGHT] = {3, 7, 0, 5,
                                      1, 4, 6, 2}; /* of what eight_p100 calls 0, 1 .. */
    const struct hd_node_links l = eight_p100();
    struct hd_node_links other = {.devices = EIGHT};
    const struct hd_layout_sizes two = layout(1, 4, 1, 2, 1);
    int32_t devices[EIGHT], back[EIGHT];

    choose(&l, &two, devices);
    for (int r = 0; r < EIGHT; r++)
        assert_int_equal(devices[r], r);
    for (int a = 0; a < EIGHT; a++) {
        back[number[a]] = a;
        for (int b = 0; b < a; b++)
            hd_node_links_set(&other, number[a], number[b], hd_node_links_rate(&l, a, b),
                              hd_node_links_latency(&l, a, b), false);
    }
    for (int s = 0; s < l.shared_count; s++) {
        uint64_t set = 0;

        for (int a = 0; a < EIGHT; a++)
            set |= (l.shared[s].devices >> a & 1) << number[a];
        assert_int_equal(hd_node_links_share(&other, set, l.shared[s].bytes_per_s), HD_OK);
    }
    choose(&other, &two, devices);
    for (int r = 0; r < EIGHT; r += 2)
        assert_int_equal(back[devices[r]] / 2, back[devices[r + 1]] / 2);
}

/* tp 4 takes an island, and of a part of the devices those that are nearest. */
static void a_part_of_the_devices_is_a_near_part(void **state)
{
    static const int32_t free_ones[] = {0, 1, 3, 4, 5, 6, 7};
    const struct hd_node_links l = two_islands(), p = eight_p100();
    const struct hd_layout_sizes four = layout(1, 1, 1, 4, 1), two = layout(1, 1, 1, 2, 1);
    const struct asked a = ask(&l, &four), b = ask(&p, &two);
    struct hd_rank_node node = {.links = &l, .devices = free_ones, .device_count = 7, .ranks = 4};
    int32_t devices[4];

    assert_int_equal(hd_rank_map_choose(&four, &a.traffic, &node, 1, devices), HD_OK);
    for (int r = 0; r < 4; r++)
        assert_int_equal(devices[r] % 2, 1);
    node =
        (struct hd_rank_node){.links = &p, .devices = free_ones + 1, .device_count = 3, .ranks = 2};
    assert_int_equal(hd_rank_map_choose(&two, &b.traffic, &node, 1, devices), HD_OK);
    assert_int_equal(devices[0] / 4, devices[1] / 4);
    assert_int_equal(devices[0], 1); /* of 1, 3 and 4: 1 and 3 are on one socket */
    assert_int_equal(devices[1], 3);
}

/* Each device of a node of alike ones is as good as another: nothing is moved. */
static void alike_devices_keep_their_order(void **state)
{
    struct hd_node_links l = {.devices = 16};
    const struct hd_layout_sizes s = layout(2, 1, 1, 8, 1);
    int32_t devices[16];

    for (int a = 0; a < 16; a++)
        for (int b = 0; b < a; b++)
            hd_node_links_set(&l, a, b, 450e9, 3e-6, false);
    assert_true(hd_node_links_are_even(&l));
    choose(&l, &s, devices);
    for (int r = 0; r < 16; r++)
        assert_int_equal(devices[r], r);
}

/* Sixteen devices in eight pairs, numbered so that partners are eight apart. */
static void larger_nodes_find_their_pairs(void **state)
{
    struct hd_node_links l = {.devices = 16};
    const struct hd_layout_sizes s = layout(1, 8, 1, 2, 1);
    int32_t devices[16];
    uint32_t seen = 0;

    for (int a = 0; a < 16; a++)
        for (int b = 0; b < a; b++)
            hd_node_links_set(&l, a, b, a % 8 == b % 8 ? 56e9 : 12e9, 3e-6, a % 8 == b % 8);
    choose(&l, &s, devices);
    for (int r = 0; r < 16; r += 2)
        assert_int_equal(devices[r] % 8, devices[r + 1] % 8);
    for (int r = 0; r < 16; r++)
        seen |= 1u << devices[r];
    assert_int_equal(seen, 0xffff);
}

/* Nodes of other machines have maps of their own; nodes that are alike have the same one. */
static void each_node_has_its_own_map(void **state)
{
    static const int32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const struct hd_node_links islands = two_islands(), p100 = eight_p100();
    const struct hd_layout_sizes s = layout(4, 2, 1, 4, 1);
    const struct hd_rank_node nodes[] = {
        {&islands, all, 8, 8}, {NULL, all, 8, 8}, {&p100, all, 8, 8}, {&islands, all, 8, 8}};
    struct hd_traffic traffic;
    int32_t devices[32];

    hd_traffic_of(&s, &model, &traffic);
    assert_int_equal(hd_rank_map_choose(&s, &traffic, nodes, 4, devices), HD_OK);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(devices[r] % 2, devices[0] % 2);
        assert_int_equal(devices[8 + r], r);
        assert_int_equal(devices[16 + r] / 4, devices[16] / 4);
    }
    assert_memory_equal(devices, devices + 24, 8 * sizeof devices[0]);
}

/* ---- rates ---- */

static struct hd_link_window window_of(int dp, int tp, enum hd_group_name name)
{
    const struct hd_layout_sizes s = layout(1, dp, 1, tp, 1);
    const struct asked a = ask(NULL, &s);
    struct hd_link_window w;

    hd_links_window(&a.mesh, name, 0, dp * tp, &w);
    return w;
}

/* dp 4 over tp 2 in the order of devices: rings 0-2-4-6 and 1-3-5-7. The uplink of a switch lies
 * before one neighbour of each ring, so two share its 12 GB/s; the sockets' link as well: 4.5. */
static void rings_share_the_link_between_sockets(void **state)
{
    static const int32_t devices[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const struct hd_link_window w = window_of(4, 2, HD_GROUP_DP);
    const struct hd_node_links l = eight_p100();
    struct hd_link_group g = {0};

    hd_links_ring_rate(&l, &w, devices, EIGHT, &g);
    assert_true(fabs(g.ring_bytes_per_s - 4.5e9) < 1e3);
    assert_true(fabs(g.latency_s - 9e-6) < 1e-9);
    hd_links_ring_rate(&l, &w, devices, 1, &g); /* one rank alone sends nothing */
    assert_true(isinf(g.ring_bytes_per_s));
}

/* tp 8: 4 x 4 pairs lie between the sockets, of 9 GB/s; 2 x 6 before each switch, of 12. So what
 * goes to each of 7 members takes 16 / 9e9 s per byte, as if each sent at 7 x 9e9 / 16. */
static void an_exchange_shares_the_link_between_sockets(void **state)
{
    static const int32_t devices[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const struct hd_link_window w = window_of(1, 8, HD_GROUP_TP);
    const struct hd_node_links l = eight_p100();
    struct hd_link_group g = {0};

    hd_links_exchange_rate(&l, &w, devices, EIGHT, &g);
    assert_true(fabs(g.exchange_bytes_per_s - 7 * 9e9 / 16) < 1e3);
}

/* The planner's group has these rates: a cluster of one such machine. */
static void a_cluster_is_priced_by_its_map(void **state)
{
    const struct hd_node_links l = two_islands();
    const struct hd_layout_sizes s = layout(1, 2, 1, 4, 1);
    const struct asked a = ask(&l, &s);
    const struct hd_cluster c = {.nodes = 1,
                                 .devices_per_node = EIGHT,
                                 .levels = {{.devices = EIGHT, .bytes_per_s = 1, .latency_s = 1}},
                                 .level_count = 1,
                                 .links = &l};
    static const int32_t as_numbered[] = {0, 1, 2, 3, 4, 5, 6, 7};
    int32_t devices[EIGHT];
    struct hd_link_group g;

    assert_int_equal(hd_rank_map_of_cluster(&c, &s, &a.traffic, devices), HD_OK);
    g = hd_links_group(&c, &a.mesh, HD_GROUP_TP, devices);
    assert_true(fabs(hd_links_collective(&c, &g, HD_COMM_ALL_GATHER, 1e9, false) -
                     (3e9 / 200e9 + 3 * 3e-6)) < 1e-9);
    g = hd_links_group(&c, &a.mesh, HD_GROUP_TP, as_numbered);
    /* two rings, each with 0-1, 1-2, 2-3, 3-0 between the islands: 4 each way on 20 GB/s */
    assert_true(fabs(hd_links_collective(&c, &g, HD_COMM_ALL_GATHER, 1e9, false) -
                     (3e9 / 5e9 + 3 * 3e-6)) < 1e-6);
}

RUN_CASES()
