/* mesh: properties of all meshes of up to 64 ranks, and the few meanings that properties miss. */
#include <string.h>

#include "mesh/mesh.h"
#include "mesh/zigzag.h"
#include "tests/program/test.h"

enum { WORLD_SMALL = 16, WORLD_MAX = 64 }; /* a set of ranks is a uint64_t */

/* Calls visit for every mesh with every possible division, worlds 1..world_max. Returns how many.
 */
static int for_each_mesh(int32_t world_max, void (*visit)(const struct hd_mesh *mesh))
{
    int count = 0;

    for (int32_t pp = 1; pp <= world_max; pp++)
        for (int32_t dp = 1; pp * dp <= world_max; dp++)
            for (int32_t cp = 1; pp * dp * cp <= world_max; cp++)
                for (int32_t tp = 1; pp * dp * cp * tp <= world_max; tp++)
                    for (int32_t ep = 1; ep <= dp * cp; ep++)
                        for (int32_t zero = 1; zero <= dp * cp; zero++)
                            for (int32_t kv = 1; kv <= tp; kv++) {
                                const struct hd_mesh_sizes sizes = {pp, dp,   cp, tp,
                                                                    ep, zero, kv, true};
                                struct hd_mesh mesh;

                                if (dp * cp % ep || dp * cp % zero || zero % ep || tp % kv)
                                    continue;
                                assert_int_equal(hd_mesh_init(&mesh, &sizes), HD_OK);
                                visit(&mesh);
                                count++;
                            }
    return count;
}

static void check_coords(const struct hd_mesh *mesh)
{
    int32_t rank = 0;

    /* the order of the axes is the order of these loops: tp fastest */
    for (int32_t pp = 0; pp < mesh->sizes.pp; pp++)
        for (int32_t dp = 0; dp < mesh->sizes.dp; dp++)
            for (int32_t cp = 0; cp < mesh->sizes.cp; cp++)
                for (int32_t tp = 0; tp < mesh->sizes.tp; tp++, rank++) {
                    const struct hd_mesh_coord c = hd_mesh_coord_of(mesh, rank);

                    assert_int_equal(hd_mesh_rank(mesh, c), rank);
                    assert_true(c.pp == pp && c.dp == dp && c.cp == cp && c.tp == tp);
                }
    assert_int_equal(rank, mesh->world);
}

static void ranks_and_coordinates_are_one_to_one(void **state)
{
    assert_true(for_each_mesh(WORLD_SMALL, check_coords) > 500);
}

/* Goal: the groups of a name partition the world. Method: every member that a rank's group lists
 * must list the same group, with its own index; then "in the same group" is an equivalence, and
 * each rank is in exactly one class. */
static void check_partition(const struct hd_mesh *mesh)
{
    for (int n = 0; n < HD_GROUP_COUNT; n++) {
        for (int32_t rank = 0; rank < mesh->world; rank++) {
            const struct hd_mesh_group g = hd_mesh_find_group(mesh, (enum hd_group_name)n, rank);

            assert_true(g.size >= 1 && g.index >= 0 && g.index < g.size);
            assert_int_equal(hd_mesh_member(&g, g.index), rank);
            for (int32_t m = 0; m < g.size; m++) {
                const int32_t member = hd_mesh_member(&g, m);
                struct hd_mesh_group same;

                assert_true(member >= 0 && member < mesh->world);
                assert_true(m == 0 || member > hd_mesh_member(&g, m - 1));
                same = hd_mesh_find_group(mesh, (enum hd_group_name)n, member);
                assert_int_equal(same.size, g.size);
                assert_int_equal(same.index, m);
                for (int32_t k = 0; k < g.size; k++)
                    assert_int_equal(hd_mesh_member(&same, k), hd_mesh_member(&g, k));
            }
        }
    }
}

static void every_rank_is_in_exactly_one_group_of_each_name(void **state)
{
    assert_true(for_each_mesh(WORLD_SMALL, check_partition) > 500);
}

static int32_t size_of(const struct hd_mesh *mesh, enum hd_group_name name, int32_t rank)
{
    return hd_mesh_find_group(mesh, name, rank).size;
}

/* Goal: a group is what its name says. Method: the coordinates that its members share, and sizes.
 */
static void check_meaning(const struct hd_mesh *mesh)
{
    const struct hd_mesh_sizes *s = &mesh->sizes;

    for (int32_t a = 0; a < mesh->world; a++) {
        const struct hd_mesh_coord ca = hd_mesh_coord_of(mesh, a);

        for (int32_t b = 0; b < mesh->world; b++) {
            const struct hd_mesh_coord cb = hd_mesh_coord_of(mesh, b);
            const bool pp = ca.pp == cb.pp, dp = ca.dp == cb.dp, cp = ca.cp == cb.cp,
                       tp = ca.tp == cb.tp;
            const int32_t ja = ca.dp * s->cp + ca.cp, jb = cb.dp * s->cp + cb.cp;
            bool together[HD_GROUP_COUNT];

            for (int n = 0; n < HD_GROUP_COUNT; n++) {
                const struct hd_mesh_group g = hd_mesh_find_group(mesh, (enum hd_group_name)n, a);

                /* a rank is in one group of each name (check_partition) */
                together[n] = hd_mesh_find_group(mesh, (enum hd_group_name)n, b).first == g.first;
            }
            assert_true(together[HD_GROUP_WORLD]);
            assert_int_equal(together[HD_GROUP_TP], pp && dp && cp);
            assert_int_equal(together[HD_GROUP_CP], pp && dp && tp);
            assert_int_equal(together[HD_GROUP_DP], pp && cp && tp);
            assert_int_equal(together[HD_GROUP_PP], dp && cp && tp);
            assert_int_equal(together[HD_GROUP_DP_CP], pp && tp);
            /* a block of experts is `ep` neighbours; across blocks the same experts meet */
            assert_int_equal(together[HD_GROUP_EP], pp && tp && ja / s->ep == jb / s->ep);
            assert_int_equal(together[HD_GROUP_EXPERT_DP], pp && tp && ja % s->ep == jb % s->ep);
            assert_int_equal(together[HD_GROUP_ZERO_SHARD],
                             pp && tp && ja / s->zero_shard == jb / s->zero_shard);
            assert_int_equal(together[HD_GROUP_ZERO_REPLICATE],
                             pp && tp && ja % s->zero_shard == jb % s->zero_shard);
            assert_int_equal(together[HD_GROUP_EXPERT_SHARD],
                             together[HD_GROUP_ZERO_SHARD] && together[HD_GROUP_EXPERT_DP]);
            assert_int_equal(together[HD_GROUP_KV_REPLICA],
                             pp && dp && cp && ca.tp / s->kv_replica == cb.tp / s->kv_replica);
            assert_int_equal(together[HD_GROUP_EMBEDDING],
                             a == b || (dp && cp && tp && !pp && ca.pp % (s->pp - 1) == 0 &&
                                        cb.pp % (s->pp - 1) == 0));
        }
        assert_int_equal(size_of(mesh, HD_GROUP_EP, a) * size_of(mesh, HD_GROUP_EXPERT_DP, a),
                         s->dp * s->cp);
    }
}

static void members_share_the_coordinates_that_the_name_says(void **state)
{
    assert_true(for_each_mesh(WORLD_SMALL, check_meaning) > 500);
}

/* The largest world that an engine connects, laid out as a real job would be: tensor-parallel
 * groups of eight neighbours, four stages, the rest data-parallel. Every partition that is split
 * off the world covers it, with each rank in the group that its own members name. */
static void four_thousand_ranks_are_in_one_group_of_each_kind(void **state)
{
    static const struct hd_mesh_sizes layouts[] = {
        {.pp = 4, .dp = 128, .cp = 1, .tp = 8, .ep = 64, .kv_replica = 1},
        {.pp = 1, .dp = 512, .cp = 4, .tp = 2, .ep = 1, .kv_replica = 2},
        {.pp = 1, .dp = 4096, .cp = 1, .tp = 1, .ep = 1, .kv_replica = 1},
    };

    for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++) {
        enum hd_group_name names[HD_GROUP_COUNT];
        struct hd_mesh mesh;
        int count;

        assert_int_equal(hd_mesh_init(&mesh, &layouts[l]), HD_OK);
        assert_int_equal(mesh.world, 4096);
        count = hd_mesh_divisions(&mesh, names);
        for (int g = 0; g < count; g++) {
            int32_t covered = 0;

            for (int32_t rank = 0; rank < mesh.world; rank++) {
                const struct hd_mesh_group group = hd_mesh_find_group(&mesh, names[g], rank);

                assert_int_equal(hd_mesh_member(&group, group.index), rank);
                for (int32_t m = 1; m < group.size; m++) /* ascending, as hd_comm_open_group
                                                            wants */
                    assert_true(hd_mesh_member(&group, m - 1) < hd_mesh_member(&group, m));
                assert_true(hd_mesh_member(&group, group.size - 1) < mesh.world);
                covered += group.index == 0 ? group.size : 0;
            }
            assert_int_equal(covered, mesh.world);
        }
        for (int32_t rank = 0; rank < mesh.world; rank++) {
            const struct hd_mesh_group tp = hd_mesh_find_group(&mesh, HD_GROUP_TP, rank);

            assert_int_equal(hd_mesh_member(&tp, 0) / 8, rank / 8); /* on a node of eight GPUs */
        }
    }
}

/* ---- groups as sets ---- */

static uint64_t set_of(const struct hd_mesh *mesh, enum hd_group_name name, int32_t rank)
{
    const struct hd_mesh_group g = hd_mesh_find_group(mesh, name, rank);
    uint64_t set = 0;

    for (int32_t k = 0; k < g.size; k++)
        set |= UINT64_C(1) << hd_mesh_member(&g, k);
    return set;
}

/* The ranks that a step within `a` and then one within `b` leads to. */
static uint64_t product_of(const struct hd_mesh *mesh, enum hd_group_name a, enum hd_group_name b,
                           int32_t rank)
{
    const struct hd_mesh_group g = hd_mesh_find_group(mesh, a, rank);
    uint64_t set = 0;

    for (int32_t k = 0; k < g.size; k++)
        set |= set_of(mesh, b, hd_mesh_member(&g, k));
    return set;
}

/* Every group of a name lists its members ascending, each of them at its index, and the sets of a
 * name are the world cut into pieces. */
static void check_pieces(const struct hd_mesh *mesh, enum hd_group_name name)
{
    uint64_t seen = 0;

    for (int32_t rank = 0; rank < mesh->world; rank++) {
        const struct hd_mesh_group g = hd_mesh_find_group(mesh, name, rank);
        const uint64_t set = set_of(mesh, name, rank);

        assert_int_equal(hd_mesh_member(&g, g.index), rank);
        assert_int_equal(__builtin_popcountll(set), g.size); /* no member stands twice */
        assert_true(g.size == 1 || g.stride > 0);
        if (g.index == 0) {
            assert_true((seen & set) == 0);
            seen |= set;
            continue;
        }
        assert_true(set_of(mesh, name, g.first) == set);
        assert_int_equal(hd_mesh_find_group(mesh, name, g.first).index, 0);
    }
    assert_int_equal(__builtin_popcountll(seen), mesh->world);
}

/* Goal: a place in a group and a place in the other is one place in what both divide. Method: the
 * product of their sets is that set, and is as large as their sizes say. */
static void check_tiles(const struct hd_mesh *mesh, enum hd_group_name a, enum hd_group_name b,
                        enum hd_group_name whole, int32_t rank)
{
    const uint64_t set = set_of(mesh, whole, rank);

    assert_true(product_of(mesh, a, b, rank) == set);
    assert_true(product_of(mesh, b, a, rank) == set);
    assert_int_equal(size_of(mesh, a, rank) * size_of(mesh, b, rank), size_of(mesh, whole, rank));
}

static void check_sets(const struct hd_mesh *mesh)
{
    static const enum hd_group_name axes[] = {HD_GROUP_TP, HD_GROUP_CP, HD_GROUP_DP, HD_GROUP_PP};
    const int32_t ranks[] = {0, mesh->world / 2, mesh->world - 1}; /* the pieces are alike */

    for (int n = 0; n < HD_GROUP_COUNT; n++)
        check_pieces(mesh, (enum hd_group_name)n);
    for (int i = 0; i < 3; i++) {
        const int32_t rank = ranks[i];
        const uint64_t tp = set_of(mesh, HD_GROUP_TP, rank),
                       kv = set_of(mesh, HD_GROUP_KV_REPLICA, rank);

        for (int a = 0; a < 4; a++)
            for (int b = 0; b < a; b++)
                assert_true((set_of(mesh, axes[a], rank) & set_of(mesh, axes[b], rank)) ==
                            UINT64_C(1) << rank);
        check_tiles(mesh, HD_GROUP_DP, HD_GROUP_CP, HD_GROUP_DP_CP, rank);
        check_tiles(mesh, HD_GROUP_EP, HD_GROUP_EXPERT_DP, HD_GROUP_DP_CP, rank);
        check_tiles(mesh, HD_GROUP_ZERO_SHARD, HD_GROUP_ZERO_REPLICATE, HD_GROUP_DP_CP, rank);
        check_tiles(mesh, HD_GROUP_EXPERT_SHARD, HD_GROUP_ZERO_REPLICATE, HD_GROUP_EXPERT_DP, rank);
        assert_true((kv & ~tp) == 0);
        assert_int_equal(
            size_of(mesh, HD_GROUP_TP, rank) % size_of(mesh, HD_GROUP_KV_REPLICA, rank), 0);
        assert_int_equal(size_of(mesh, HD_GROUP_TP, rank) * size_of(mesh, HD_GROUP_DP_CP, rank) *
                             size_of(mesh, HD_GROUP_PP, rank),
                         mesh->world);
    }
}

static void groups_cut_the_world_and_tile_each_other(void **state)
{
    assert_true(for_each_mesh(WORLD_MAX, check_sets) > 20000);
}

static void unset_sizes_mean_no_division(void **state)
{
    const struct hd_mesh_sizes sizes = {.dp = 4, .cp = 2};
    struct hd_mesh mesh;

    assert_int_equal(hd_mesh_init(&mesh, &sizes), HD_OK);
    assert_int_equal(mesh.world, 8);
    assert_int_equal(size_of(&mesh, HD_GROUP_TP, 3), 1);
    assert_int_equal(size_of(&mesh, HD_GROUP_EP, 3), 1);
    assert_int_equal(size_of(&mesh, HD_GROUP_ZERO_SHARD, 3), 8); /* all of dp*cp hold one copy */
    assert_int_equal(size_of(&mesh, HD_GROUP_ZERO_REPLICATE, 3), 1);
}

static void sizes_that_do_not_divide_are_named(void **state)
{
    static const struct {
        struct hd_mesh_sizes sizes;
        const char *says;
    } wrong[] = {
        {{.dp = 4, .ep = 3}, "ep = 3 does not divide dp * cp = 4"},
        {{.dp = 4, .cp = 2, .zero_shard = 3}, "zero_shard = 3 does not divide dp * cp = 8"},
        {{.dp = 8, .ep = 4, .zero_shard = 2}, "ep = 4 does not divide zero_shard = 2"},
        {{.tp = 4, .kv_replica = 8}, "kv_replica = 8 does not divide tp = 4"},
        {{.pp = -1}, "pp = -1; use 1 or more"},
        {{.pp = 65536, .tp = 65536}, "too many ranks"},
    };
    struct hd_mesh mesh;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(hd_mesh_init(&mesh, &wrong[i].sizes), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), wrong[i].says));
    }
}

/* By hand: a name counts when some of its groups are of several ranks and none is the world, and no
 * name before it has the same groups. */
static void divisions_are_counted_once(void **state)
{
    static const struct {
        struct hd_mesh_sizes sizes;
        int count;
        enum hd_group_name names[5];
    } cases[] = {
        {{.dp = 1}, 0, {0}},
        {{.dp = 8}, 0, {0}},                                 /* dp is the world */
        {{.dp = 4, .tp = 2}, 2, {HD_GROUP_TP, HD_GROUP_DP}}, /* dp_cp is dp */
        {{.dp = 2, .cp = 2, .tp = 2}, 4, {HD_GROUP_TP, HD_GROUP_CP, HD_GROUP_DP, HD_GROUP_DP_CP}},
        {{.dp = 4, .ep = 2}, 2, {HD_GROUP_EP, HD_GROUP_EXPERT_DP}}, /* pairs, and across them */
        {{.tp = 4, .kv_replica = 2}, 1, {HD_GROUP_KV_REPLICA}},     /* tp is the world */
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum hd_group_name names[HD_GROUP_COUNT];
        struct hd_mesh mesh;

        assert_int_equal(hd_mesh_init(&mesh, &cases[i].sizes), HD_OK);
        assert_int_equal(hd_mesh_divisions(&mesh, names), cases[i].count);
        for (int n = 0; n < cases[i].count; n++)
            assert_int_equal(names[n], cases[i].names[n]);
    }
}

static bool divides_alike(const struct hd_mesh *mesh, enum hd_group_name a, enum hd_group_name b)
{
    for (int32_t r = 0; r < mesh->world; r++) {
        const struct hd_mesh_group one = hd_mesh_find_group(mesh, a, r),
                                   other = hd_mesh_find_group(mesh, b, r);

        if (one.size != other.size)
            return false;
        for (int32_t m = 0; m < one.size; m++)
            if (hd_mesh_member(&one, m) != hd_mesh_member(&other, m))
                return false;
    }
    return true;
}

/* Against comparing the members of all groups of all names. */
static void check_divisions(const struct hd_mesh *mesh)
{
    enum hd_group_name found[HD_GROUP_COUNT], listed[HD_GROUP_COUNT];
    int count = 0;

    for (int n = 0; n < HD_GROUP_COUNT; n++) {
        const enum hd_group_name name = (enum hd_group_name)n;
        int32_t largest = 0;
        bool is_new = true;

        for (int32_t r = 0; r < mesh->world; r++)
            largest = size_of(mesh, name, r) > largest ? size_of(mesh, name, r) : largest;
        for (int i = 0; i < count; i++)
            is_new &= !divides_alike(mesh, name, found[i]);
        if (is_new && largest > 1 && largest < mesh->world)
            found[count++] = name;
    }
    assert_int_equal(hd_mesh_divisions(mesh, listed), count);
    for (int i = 0; i < count; i++)
        assert_int_equal(listed[i], found[i]);
}

static void divisions_are_those_of_the_members(void **state)
{
    assert_true(for_each_mesh(WORLD_SMALL, check_divisions) > 500);
}

/* ---- zig-zag ---- */

/* Goal, for P up to 9 and chunks up to 5: every position is one rank's, rows ascend, the pairs of
 * all blocks are those of the whole sequence, and under a causal mask every rank has the same
 * number. */
static void a_zigzag_shares_positions_and_work(void **state)
{
    for (int32_t P = 1; P <= 9; P++)
        for (int64_t chunk = 1; chunk <= 5; chunk++) {
            const int64_t S = 2 * P * chunk;
            int owners[2 * 9 * 5] = {0};

            for (int32_t r = 0; r < P; r++) {
                const struct hd_zigzag mine = {S, P, r};
                int64_t pairs = 0;

                assert_int_equal(hd_zigzag_rows(&mine), S / P);
                for (int64_t row = 0; row < S / P; row++) {
                    const int64_t at = hd_zigzag_position(&mine, row);

                    assert_in_range(at, 0, S - 1);
                    owners[at]++;
                    if (row)
                        assert_true(at > hd_zigzag_position(&mine, row - 1));
                }
                for (int32_t k = 0; k < P; k++) {
                    const struct hd_zigzag theirs = {S, P, k};

                    pairs += hd_zigzag_pairs(&mine, &theirs, true, 0);
                }
                assert_int_equal(pairs * P, S * (S + 1) / 2);
            }
            for (int64_t i = 0; i < S; i++)
                assert_int_equal(owners[i], 1);
        }
}

/* Against counting one pair after the other. */
static int64_t count_pairs(const struct hd_zigzag *queries, const struct hd_zigzag *keys,
                           bool causal, int64_t window)
{
    int64_t pairs = 0;

    for (int64_t i = 0; i < hd_zigzag_rows(queries); i++)
        for (int64_t j = 0; j < hd_zigzag_rows(keys); j++) {
            const int64_t apart = hd_zigzag_position(queries, i) - hd_zigzag_position(keys, j);

            pairs += (!causal || apart >= 0) && (!window || apart < window);
        }
    return pairs;
}

static void pairs_are_those_that_the_mask_leaves(void **state)
{
    enum { S = 24, P = 3 };

    for (int32_t q = 0; q < P; q++)
        for (int32_t k = 0; k < P; k++)
            for (int64_t window = 0; window <= S; window += 5)
                for (int causal = 0; causal < 2; causal++) {
                    const struct hd_zigzag queries = {S, P, q}, keys = {S, P, k};

                    assert_int_equal(hd_zigzag_pairs(&queries, &keys, causal, window),
                                     count_pairs(&queries, &keys, causal, window));
                }
}

RUN_CASES()
