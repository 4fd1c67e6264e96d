#include "train/opened_rank.h"

#include "comm/local.h"
#include "comm/nccl.h"

/* Opens the communicator of a rank that is alone. On a device it works on device memory, by the engine
 * `local`. */
static enum hd_status open_alone(const struct hd_rank_opening *how,
                                 const struct hd_comm_device *device, struct hd_opened_rank *o)
{
    enum hd_status st;

    if (!o->table->device)
        return hd_comm_open_self(&o->comm);
    st = how->fds ? hd_comm_hub_on(how->fds, &o->hub) : hd_comm_hub_new(1, &o->hub);
    return st ? st : hd_comm_open_local(o->hub, 0, device, how->deadline_ms, &o->comm);
}

static enum hd_status open_comm(const struct hd_rank_opening *how, struct hd_opened_rank *o)
{
    const struct hd_comm_device device = {.table = o->table, .backend = o->backend};
    const struct hd_comm_nccl_options nccl = {
        .mesh = how->nccl_mesh, .native = how->native, .deadline_ms = how->deadline_ms};
    struct hd_comm *host = how->host;
    enum hd_status st = HD_OK;

    if (!host && how->shm)
        st = hd_comm_open_shm(hd_shm_control_fd(how->shm), hd_shm_control_rank_fds(how->shm),
                              how->rank, how->world, how->deadline_ms, &host);
    else if (!host && how->alone)
        return open_alone(how, &device, o);
    if (!st && host && o->table->device)
        return hd_comm_open_nccl(host, &device, &nccl, &o->comm);
    o->comm = host;
    return st;
}

enum hd_status hd_rank_open(const struct hd_rank_opening *how, struct hd_opened_rank *ret_opened)
{
    struct hd_opened_rank *o = ret_opened;
    enum hd_status st = HD_OK;

    *o = (struct hd_opened_rank){.table = how->table,
                                 .backend = how->instance,
                                 .comm = how->comm,
                                 .borrows_backend = how->instance,
                                 .borrows_comm = how->comm};
    if (!o->backend)
        st = o->table->open(&how->options, &o->backend);
    if (st)
        hd_comm_free(how->host);
    else if (!o->comm)
        st = open_comm(how, o);
    if (st || !how->mesh)
        return st;
    st = hd_runner_new(o->table, o->backend, o->comm, how->mesh, &o->runner);
    return st ? st : hd_staging_init(o->table, hd_runner_stream(o->runner), &o->staging);
}

enum hd_status hd_rank_open_channel(const struct hd_opened_rank *o, const struct hd_mesh *mesh,
                                    int rank, int from_stage, int to_stage, bool backward,
                                    struct hd_comm_group **ret_channel)
{
    struct hd_mesh_coord from = hd_mesh_coord_of(mesh, rank), to = from;

    from.pp = from_stage;
    to.pp = to_stage;
    return hd_comm_open_channel(o->comm, backward ? "grad" : "pp", hd_mesh_rank(mesh, from),
                                hd_mesh_rank(mesh, to), ret_channel);
}

void hd_rank_settle(const struct hd_opened_rank *o)
{
    if (o->runner && o->table->device)
        (void)o->table->synchronize(hd_runner_stream(o->runner));
}

void hd_rank_close(struct hd_opened_rank *o)
{
    hd_rank_settle(o);
    hd_staging_done(&o->staging);
    hd_runner_free(o->runner);
    if (!o->borrows_comm)
        hd_comm_free(o->comm); /* waits until the device has run what uses the memory */
    hd_rank_release(o);
    hd_comm_hub_free(o->hub);
    if (o->backend && !o->borrows_backend)
        o->table->close(o->backend);
    *o = (struct hd_opened_rank){.table = o->table};
}
