/* Goal: bytes of a step that cross between nodes, against counts by hand: 32 ranks on nodes of 8.
 */
#include <math.h>
#include <string.h>

#include "plan/inter_node.h"
#include "tests/program/test.h"

enum { WORLD = 32, PER_NODE = 8 };

static struct hd_mesh mesh_of(int32_t pp, int32_t dp, int32_t tp)
{
    struct hd_mesh mesh;

    assert_int_equal(
        hd_mesh_init(&mesh, &(struct hd_mesh_sizes){.pp = pp, .dp = dp, .cp = 1, .tp = tp}), HD_OK);
    return mesh;
}

static void is_share(const struct hd_mesh *mesh, enum hd_group_name name, enum hd_comm_kind kind,
                     bool native, double wanted)
{
    const struct hd_mesh_group group = hd_mesh_find_group(mesh, name, 0);
    const double share = hd_inter_node_share(&group, PER_NODE, kind, native);

    if (fabs(share - wanted) > 1e-12)
        fail_msg("%s of %s: %.9g, not %.9g", hd_comm_kind_name(kind), hd_group_text(name), share,
                 wanted);
}

/* tp 4 stays in its node. The 8 members of dp are ranks 0, 4 | 8, 12 | 16, 20 | 24, 28: of the 8
 * hops of a ring the 4 between nodes, and of the 8 x 7 pairs all but the 2 of each node. */
static void of_a_ring_the_hops_count_and_of_an_exchange_the_pairs(void **state)
{
    const struct hd_mesh mesh = mesh_of(1, 8, 4);
    const double hops = 4.0 / 8, pairs = (56 - 4 * 2) / 56.0;

    is_share(&mesh, HD_GROUP_TP, HD_COMM_ALL_REDUCE, false, 0);
    is_share(&mesh, HD_GROUP_TP, HD_COMM_ALL_GATHER, false, 0);
    is_share(&mesh, HD_GROUP_DP, HD_COMM_ALL_GATHER, false, hops);
    is_share(&mesh, HD_GROUP_DP, HD_COMM_REDUCE_SCATTER, false, pairs);
    is_share(&mesh, HD_GROUP_DP, HD_COMM_REDUCE_SCATTER, true, hops);
    is_share(&mesh, HD_GROUP_DP, HD_COMM_ALL_REDUCE, false, (hops + pairs) / 2);
    is_share(&mesh, HD_GROUP_DP, HD_COMM_ALL_TO_ALL, false, pairs);
    is_share(&mesh, HD_GROUP_PP, HD_COMM_RECV, false, 0); /* alone */
}

/* pp 2: stages of 16 ranks, so each rank's other stage is two nodes away. */
static void stages_send_to_their_neighbours(void **state)
{
    const struct hd_mesh mesh = mesh_of(2, 4, 4);

    is_share(&mesh, HD_GROUP_PP, HD_COMM_RECV, false, 1);
}

/* Every group once: 4 groups of dp with 5600 B in ordered sums, of which 48 / 56 cross; 8 groups of
 * tp, which do not cross; and 300 B that each rank receives from a stage on another node. */
static void all_groups_are_counted_once(void **state)
{
    static int32_t class_of[WORLD];
    struct hd_plan_class class;
    struct hd_plan plan = {
        .mesh = mesh_of(1, 8, 4), .classes = &class, .class_count = 1, .class_of = class_of};

    memset(&class, 0, sizeof class);
    class.step.group_bytes[HD_GROUP_DP][HD_COMM_REDUCE_SCATTER] = 5600;
    class.step.group_bytes[HD_GROUP_TP][HD_COMM_ALL_REDUCE] = 1000;
    assert_int_equal(
        hd_inter_node_bytes(&plan, 5, HD_GROUP_DP, HD_COMM_REDUCE_SCATTER, PER_NODE, false), 4800);
    assert_int_equal(hd_inter_node_bytes_all(&plan, PER_NODE, false), 4 * 4800);
    assert_int_equal(hd_inter_node_bytes_all(&plan, WORLD, false), 0); /* one node */

    memset(&class, 0, sizeof class);
    plan.mesh = mesh_of(2, 4, 4);
    class.step.group_bytes[HD_GROUP_PP][HD_COMM_RECV] = 300;
    assert_int_equal(hd_inter_node_bytes_all(&plan, PER_NODE, false), WORLD * 300);
}

RUN_CASES()
