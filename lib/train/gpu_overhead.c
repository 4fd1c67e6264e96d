/* gpu_overhead: what a rank's process uses of a GPU's memory besides its plan: the process, and
 * NCCL's communicators with the connections that the rank's programs need. */
#include <stdio.h>

#include "base/math.h"
#include "comm/nccl.h"
#include "train/rank_program.h"

/* Returns what a program does on this rank's groups that have the members of `where`. */
static unsigned program_uses(const struct hd_program *p, const struct hd_mesh *mesh, int32_t rank,
                             const struct hd_mesh_group *where)
{
    unsigned uses = 0;

    for (int i = 0; i < p->count; i++) {
        const struct hd_node *node = p->nodes[i];
        struct hd_mesh_group group;

        if (!node->is_comm)
            continue;
        group = hd_mesh_find_group(mesh, node->group, rank);
        if (group.first == where->first && group.stride == where->stride &&
            group.size == where->size)
            uses |= hd_comm_use_of(node->comm);
    }
    return uses;
}

/* Returns what steps and validations do on this rank's groups that have the members of `where`. */
static unsigned members_uses(const struct hd_rank_program *l, const struct hd_mesh_group *where)
{
    const struct hd_mesh_group tp = hd_mesh_find_group(&l->mesh, HD_GROUP_TP, l->rank);
    /* the ranks gather messages in the world; for samples tp ranks gather logits */
    const bool gathers =
        where->size == l->mesh.world || (l->decode.slots && where->first == tp.first &&
                                         where->stride == tp.stride && where->size == tp.size);
    unsigned uses = gathers ? HD_COMM_USE_GATHER : 0;

    if (l->frozen_program)
        uses |= members_uses(l->frozen_program, where);
    for (int k = -1; k < l->chunk_count; k++)
        for (int c = 0; c < HD_CALL_COUNT; c++) {
            const struct hd_chunk *train = k < 0 ? l->update : l->train[k];

            uses |= program_uses(&train->program[c], &l->mesh, l->rank, where);
            if (k >= 0)
                uses |= program_uses(&l->eval[k]->program[c], &l->mesh, l->rank, where);
            for (int p = 0; k >= 0 && l->decode.slots && p < HD_DECODE_PROGRAMS; p++)
                uses |= program_uses(&l->decode.chunks[p][k]->program[c], &l->mesh, l->rank, where);
        }
    return uses;
}

unsigned hd_rank_program_group_uses(const struct hd_rank_program *l, enum hd_group_name name)
{
    const struct hd_mesh_group where = hd_mesh_find_group(&l->mesh, name, l->rank);

    return members_uses(l, &where);
}

static void add_communicator(const struct hd_traits *traits, const char *name,
                             const struct hd_comm_nccl_shape *shape, struct hd_gpu_overhead *b)
{
    struct hd_gpu_communicator *c = &b->list[b->communicators++];

    *c = (struct hd_gpu_communicator){.members = shape->size,
                                      .blocks = shape->blocks,
                                      .channels = hd_comm_nccl_channels(shape->blocks),
                                      .bytes = traits->communicator_bytes +
                                               hd_comm_nccl_connection_bytes(shape)};
    (void)snprintf(c->name, sizeof c->name, "%s", name);
    b->communicators_bytes += c->bytes;
}

/* Adds the communicators of the world and of the mesh's groups. */
static void add_group_communicators(const struct hd_rank_program *l, const struct hd_traits *traits,
                                    struct hd_gpu_overhead *b)
{
    enum hd_group_name names[HD_GROUP_COUNT];
    const int count = hd_mesh_divisions(&l->mesh, names);

    for (int g = -1; g < count; g++) {
        const enum hd_group_name name = g < 0 ? HD_GROUP_WORLD : names[g];
        const struct hd_mesh_group where = hd_mesh_find_group(&l->mesh, name, l->rank);
        const struct hd_comm_nccl_shape shape = {
            .uses = members_uses(l, &where),
            .size = where.size,
            .stride = where.stride,
            .blocks = hd_comm_nccl_blocks(false, traits->multiprocessors),
            .native = l->job.native_reduction};

        add_communicator(traits, hd_group_text(name), &shape, b);
    }
}

/* Adds the communicators of the channels of the instruction stream. A channel is a pair of stages
 * in one direction, for hidden rows or for gradients. */
static void add_channels(const struct hd_rank_program *l, const struct hd_traits *traits,
                         struct hd_gpu_overhead *b)
{
    const struct hd_instruction *seen[HD_GPU_CHANNELS_MAX];
    int count = 0;

    for (int32_t i = 0; i < l->plan.count && count < HD_GPU_CHANNELS_MAX; i++) {
        const struct hd_instruction *in = &l->plan.list[i];
        const bool sends = in->kind == HD_DO_SEND;
        bool known = !sends && in->kind != HD_DO_RECEIVE;
        const struct hd_comm_nccl_shape shape = {
            .uses = sends ? HD_COMM_USE_SEND : HD_COMM_USE_RECEIVE,
            .size = 2,
            .stride = 1,
            .blocks = hd_comm_nccl_blocks(true, traits->multiprocessors)};
        char name[24];

        for (int k = 0; k < count && !known; k++)
            known =
                seen[k]->kind == in->kind && seen[k]->call == in->call && seen[k]->peer == in->peer;
        if (known)
            continue;
        seen[count++] = in;
        (void)snprintf(name, sizeof name, "%s %s stage %d", in->call == HD_CALL_B ? "grad" : "pp",
                       sends ? "to" : "from", (int)in->peer);
        add_communicator(traits, name, &shape, b);
    }
}

struct hd_gpu_overhead hd_rank_program_gpu_overhead(const struct hd_rank_program *l,
                                                    const struct hd_traits *traits)
{
    struct hd_gpu_overhead b = {.process_bytes = traits->process_bytes};

    if (l->mesh.world == 1)
        return b;
    add_group_communicators(l, traits, &b);
    add_channels(l, traits, &b);
    b.buffers_bytes =
        hd_divide_up(hd_comm_nccl_bytes(l->mesh.world), traits->page_bytes) * traits->page_bytes;
    b.communicators_bytes += b.buffers_bytes;
    return b;
}
