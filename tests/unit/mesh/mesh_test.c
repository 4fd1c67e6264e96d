/* mesh: properties of all meshes of up to 16 ranks, and the few meanings that properties miss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "mesh/mesh.h"

enum { WORLD_MAX = 16 };

/* Calls visit for every mesh with every possible division, worlds 1..16. Returns how many. */
static int for_each_mesh(void (*visit)(const struct hd_mesh *mesh))
{
    int count = 0;

    for (int32_t pp = 1; pp <= WORLD_MAX; pp++)
        for (int32_t dp = 1; pp * dp <= WORLD_MAX; dp++)
            for (int32_t cp = 1; pp * dp * cp <= WORLD_MAX; cp++)
                for (int32_t tp = 1; pp * dp * cp * tp <= WORLD_MAX; tp++)
                    for (int32_t ep = 1; ep <= dp * cp; ep++)
                        for (int32_t zero = 1; zero <= dp * cp; zero++)
                            for (int32_t kv = 1; kv <= tp; kv++) {
                                const struct hd_mesh_sizes sizes = {pp, dp, cp, tp, ep, zero, kv};
                                struct hd_mesh mesh;

                                if (dp * cp % ep || dp * cp % zero || tp % kv)
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
                    const struct hd_mesh_coord c = hd_mesh_coord(mesh, rank);

                    assert_int_equal(hd_mesh_rank(mesh, c), rank);
                    assert_true(c.pp == pp && c.dp == dp && c.cp == cp && c.tp == tp);
                }
    assert_int_equal(rank, mesh->world);
}

static void ranks_and_coordinates_are_one_to_one(void **state)
{
    (void)state;
    assert_true(for_each_mesh(check_coords) > 500);
}

/* Goal: the groups of a name partition the world. Method: every member that a rank's group lists
 * must list the same group, with its own index; then "in the same group" is an equivalence, and
 * each rank is in exactly one class. */
static void check_partition(const struct hd_mesh *mesh)
{
    for (int n = 0; n < HD_GROUP_COUNT; n++) {
        for (int32_t rank = 0; rank < mesh->world; rank++) {
            const struct hd_mesh_group g = hd_mesh_find_group(mesh, (enum hd_group_name)n, rank);
            int32_t listed = 0;

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
            for (int32_t other = 0; other < mesh->world; other++)
                listed += hd_mesh_has_member(&g, other);
            assert_int_equal(listed, g.size);
        }
    }
}

static void every_rank_is_in_exactly_one_group_of_each_name(void **state)
{
    (void)state;
    assert_true(for_each_mesh(check_partition) > 500);
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
        const struct hd_mesh_coord ca = hd_mesh_coord(mesh, a);

        for (int32_t b = 0; b < mesh->world; b++) {
            const struct hd_mesh_coord cb = hd_mesh_coord(mesh, b);
            const bool pp = ca.pp == cb.pp, dp = ca.dp == cb.dp, cp = ca.cp == cb.cp,
                       tp = ca.tp == cb.tp;
            const int32_t ja = ca.dp * s->cp + ca.cp, jb = cb.dp * s->cp + cb.cp;
            bool together[HD_GROUP_COUNT];

            for (int n = 0; n < HD_GROUP_COUNT; n++) {
                const struct hd_mesh_group g = hd_mesh_find_group(mesh, (enum hd_group_name)n, a);

                together[n] = hd_mesh_has_member(&g, b);
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
    (void)state;
    assert_true(for_each_mesh(check_meaning) > 500);
}

static void unset_sizes_mean_no_division(void **state)
{
    const struct hd_mesh_sizes sizes = {.dp = 4, .cp = 2};
    struct hd_mesh mesh;

    (void)state;
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
        {{.tp = 4, .kv_replica = 8}, "kv_replica = 8 does not divide tp = 4"},
        {{.pp = -1}, "pp = -1; use 1 or more"},
        {{.pp = 65536, .tp = 65536}, "too many ranks"},
    };
    struct hd_mesh mesh;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(hd_mesh_init(&mesh, &wrong[i].sizes), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), wrong[i].says));
    }
}

static void names_of_groups_read_back(void **state)
{
    enum hd_group_name name;

    (void)state;
    for (int n = 0; n < HD_GROUP_COUNT; n++) {
        assert_true(hd_group_from_name(hd_group_name((enum hd_group_name)n), &name));
        assert_int_equal(name, n);
    }
    assert_false(hd_group_from_name("dpcp", &name));
    assert_string_equal(hd_group_name(HD_GROUP_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_and_coordinates_are_one_to_one),
        cmocka_unit_test(every_rank_is_in_exactly_one_group_of_each_name),
        cmocka_unit_test(members_share_the_coordinates_that_the_name_says),
        cmocka_unit_test(unset_sizes_mean_no_division),
        cmocka_unit_test(sizes_that_do_not_divide_are_named),
        cmocka_unit_test(names_of_groups_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
