#include "mesh/mesh.h"

#include <assert.h>

static const char *const group_names[] = {
#define X(code, name, meaning) name,
    HD_GROUP_LIST(X)
#undef X
};

const char *hd_group_text(enum hd_group_name name)
{
    return (unsigned)name < HD_GROUP_COUNT ? group_names[name] : "unknown";
}

/* Sets *ret_size to the size that the caller gave, or to `fallback` if that is 0. HD_INVALID: the
 * size is negative. */
static enum hd_status take_size(const char *what, int32_t size, int32_t fallback, int32_t *ret_size)
{
    if (size < 0)
        return hd_err(HD_INVALID, "mesh: %s = %d; use 1 or more", what, (int)size);
    *ret_size = size ? size : fallback;
    return HD_OK;
}

static enum hd_status check_divides(const char *what, int32_t part, const char *of, int32_t whole)
{
    if (whole % part != 0)
        return hd_err(HD_INVALID, "mesh: %s = %d does not divide %s = %d", what, (int)part, of,
                      (int)whole);
    return HD_OK;
}

enum hd_status hd_mesh_init(struct hd_mesh *mesh, const struct hd_mesh_sizes *sizes)
{
    struct hd_mesh m = {0};
    int64_t world = 1;
    enum hd_status st;

    st = take_size("pp", sizes->pp, 1, &m.sizes.pp);
    if (!st)
        st = take_size("dp", sizes->dp, 1, &m.sizes.dp);
    if (!st)
        st = take_size("cp", sizes->cp, 1, &m.sizes.cp);
    if (!st)
        st = take_size("tp", sizes->tp, 1, &m.sizes.tp);
    if (st)
        return st;
    const int32_t axes[] = {m.sizes.pp, m.sizes.dp, m.sizes.cp, m.sizes.tp};
    for (int i = 0; i < 4; i++) {
        world *= axes[i]; /* both factors are below 2^31, so the product fits */
        if (world > INT32_MAX)
            return hd_err(HD_INVALID,
                          "mesh: pp x dp x cp x tp = %d x %d x %d x %d is too many ranks",
                          (int)axes[0], (int)axes[1], (int)axes[2], (int)axes[3]);
    }
    m.world = (int32_t)world;

    const int32_t dp_cp = m.sizes.dp * m.sizes.cp;
    st = take_size("ep", sizes->ep, 1, &m.sizes.ep);
    if (!st)
        st = check_divides("ep", m.sizes.ep, "dp * cp", dp_cp);
    if (!st)
        st = take_size("zero_shard", sizes->zero_shard, dp_cp, &m.sizes.zero_shard);
    if (!st)
        st = check_divides("zero_shard", m.sizes.zero_shard, "dp * cp", dp_cp);
    if (!st)
        st = check_divides("ep", m.sizes.ep, "zero_shard", m.sizes.zero_shard);
    if (!st)
        st = take_size("kv_replica", sizes->kv_replica, 1, &m.sizes.kv_replica);
    if (!st)
        st = check_divides("kv_replica", m.sizes.kv_replica, "tp", m.sizes.tp);
    m.sizes.stages_meet = sizes->stages_meet;
    if (!st)
        *mesh = m;
    return st;
}

struct hd_mesh_coord hd_mesh_coord_of(const struct hd_mesh *mesh, int32_t rank)
{
    const struct hd_mesh_sizes *s = &mesh->sizes;
    struct hd_mesh_coord c;

    assert(rank >= 0 && rank < mesh->world);
    c.tp = rank % s->tp;
    rank /= s->tp;
    c.cp = rank % s->cp;
    rank /= s->cp;
    c.dp = rank % s->dp;
    c.pp = rank / s->dp;
    return c;
}

int32_t hd_mesh_rank(const struct hd_mesh *mesh, struct hd_mesh_coord coord)
{
    const struct hd_mesh_sizes *s = &mesh->sizes;

    assert(coord.pp >= 0 && coord.pp < s->pp && coord.dp >= 0 && coord.dp < s->dp);
    assert(coord.cp >= 0 && coord.cp < s->cp && coord.tp >= 0 && coord.tp < s->tp);
    return ((coord.pp * s->dp + coord.dp) * s->cp + coord.cp) * s->tp + coord.tp;
}

/* Returns the group of `size` ranks that are `stride` apart, in which `rank` has index `index`. */
static struct hd_mesh_group around(int32_t rank, int32_t index, int32_t stride, int32_t size)
{
    return (struct hd_mesh_group){rank - index * stride, stride, size, index};
}

struct hd_mesh_group hd_mesh_find_group(const struct hd_mesh *mesh, enum hd_group_name name,
                                        int32_t rank)
{
    const struct hd_mesh_sizes *s = &mesh->sizes;
    const struct hd_mesh_coord c = hd_mesh_coord_of(mesh, rank);
    const int32_t data = c.dp * s->cp + c.cp;    /* index of the rank among the dp*cp ranks of one
                                                    (pp, tp) */
    const int32_t stage = s->dp * s->cp * s->tp; /* ranks of one pipeline stage */

    switch (name) {
    case HD_GROUP_WORLD:
        return around(rank, rank, 1, mesh->world);
    case HD_GROUP_TP:
        return around(rank, c.tp, 1, s->tp);
    case HD_GROUP_CP:
        return around(rank, c.cp, s->tp, s->cp);
    case HD_GROUP_DP:
        return around(rank, c.dp, s->cp * s->tp, s->dp);
    case HD_GROUP_PP:
        return around(rank, c.pp, stage, s->pp);
    case HD_GROUP_EP:
        return around(rank, data % s->ep, s->tp, s->ep);
    case HD_GROUP_DP_CP:
        return around(rank, data, s->tp, s->dp * s->cp);
    case HD_GROUP_EXPERT_DP:
        return around(rank, data / s->ep, s->ep * s->tp, s->dp * s->cp / s->ep);
    case HD_GROUP_EMBEDDING:
        if (s->pp == 1 || (c.pp > 0 && c.pp < s->pp - 1))
            return around(rank, 0, 1, 1);
        return around(rank, c.pp > 0, (s->pp - 1) * stage, 2);
    case HD_GROUP_KV_REPLICA:
        return around(rank, c.tp % s->kv_replica, 1, s->kv_replica);
    case HD_GROUP_ZERO_SHARD:
        return around(rank, data % s->zero_shard, s->tp, s->zero_shard);
    case HD_GROUP_EXPERT_SHARD:
        return around(rank, data % s->zero_shard / s->ep, s->ep * s->tp, s->zero_shard / s->ep);
    case HD_GROUP_ZERO_REPLICATE:
        return around(rank, data / s->zero_shard, s->zero_shard * s->tp,
                      s->dp * s->cp / s->zero_shard);
    case HD_GROUP_STAGE:
        return around(rank, rank % stage, 1, stage);
    case HD_GROUP_COUNT:
        break;
    }
    assert(!"unknown group name");
    return around(rank, 0, 1, 1);
}

int32_t hd_mesh_member(const struct hd_mesh_group *group, int32_t index)
{
    assert(index >= 0 && index < group->size);
    return group->first + index * group->stride;
}

/* ---- partitions ---- */

int hd_mesh_divisions(const struct hd_mesh *mesh, enum hd_group_name ret_names[HD_GROUP_COUNT])
{
    int count = 0;

    /* A name cuts the world into blocks of stride x size ranks, and each block into `stride`
     * groups, so size and stride of one group identify the partition. For `embedding`, whose other
     * groups may have one rank, the group of rank 0 identifies it: with more than two stages no
     * other name has its stride. */
    for (int g = 0; g < HD_GROUP_COUNT; g++) {
        const enum hd_group_name name = (enum hd_group_name)g;
        const struct hd_mesh_group own = hd_mesh_find_group(mesh, name, 0);
        bool is_listed = name == HD_GROUP_STAGE && !mesh->sizes.stages_meet;

        for (int i = 0; i < count && !is_listed; i++) {
            const struct hd_mesh_group other = hd_mesh_find_group(mesh, ret_names[i], 0);

            is_listed = own.size == other.size && own.stride == other.stride;
        }
        if (!is_listed && own.size > 1 && own.size < mesh->world)
            ret_names[count++] = name;
    }
    return count;
}
