/* nccl_memory: device memory that NCCL moves, the registered region and the staging buffers. If the
 * NCCL version allows, the memory is allocated by NCCL and registered once with every communicator,
 * so that NCCL reads and writes it in place instead of copying through its own buffers. Otherwise
 * it is ordinary device memory. */
#include "comm/nccl_internal.h"

static bool comes_from_nccl(const struct hd_comm *comm)
{
    return nccl_of(comm)->calls->reserve && !comm->device_streams->device.host_reachable;
}

static enum hd_status register_one(struct hd_comm *comm, struct nccl_communicator *communicator,
                                   enum nccl_buffer buffer)
{
    struct nccl_state *nccl = nccl_of(comm);
    enum hd_status st = nccl_lock_calls(nccl);

    if (st)
        return st;
    st = nccl->calls->register_buffer(communicator->comm, nccl->memory[buffer].base,
                                      nccl->memory[buffer].size_bytes,
                                      &communicator->buffers[buffer]);
    nccl_unlock_calls(nccl);
    return nccl_end_call(comm, st, "ncclCommRegister");
}

enum hd_status nccl_reserve(struct hd_comm *comm, enum nccl_buffer buffer, int64_t size_bytes,
                            void **ret_base)
{
    struct nccl_state *nccl = nccl_of(comm);
    const struct hd_comm_device *device = &comm->device_streams->device;
    const bool registers = comes_from_nccl(comm);
    enum hd_status st = registers
                            ? nccl->calls->reserve(device->backend, size_bytes, ret_base)
                            : device->table->device->reserve(device->backend, size_bytes,
                                                             device->host_reachable, ret_base);

    if (st)
        return st;
    nccl->memory[buffer].base = *ret_base;
    nccl->memory[buffer].size_bytes = size_bytes;
    nccl->memory[buffer].registers = registers;
    for (int i = 0; i < nccl->communicator_count && registers && !st; i++)
        st = register_one(comm, &nccl->communicators[i], buffer);
    return st;
}

enum hd_status nccl_register_all(struct hd_comm *comm, struct nccl_communicator *communicator)
{
    const struct nccl_state *nccl = nccl_of(comm);
    enum hd_status st = HD_OK;

    for (int b = 0; b < NCCL_BUFFERS && !st; b++)
        if (nccl->memory[b].registers)
            st = register_one(comm, communicator, (enum nccl_buffer)b);
    return st;
}

void nccl_deregister_all(struct nccl_state *nccl)
{
    for (int i = 0; i < nccl->communicator_count; i++)
        for (int b = 0; b < NCCL_BUFFERS; b++) {
            struct nccl_communicator *communicator = &nccl->communicators[i];

            if (communicator->buffers[b])
                nccl->calls->deregister(communicator->comm, communicator->buffers[b]);
            communicator->buffers[b] = NULL;
        }
}

void nccl_release_memory(struct nccl_state *nccl, const struct hd_comm_device *device)
{
    for (int b = 0; b < NCCL_BUFFERS; b++) {
        device->table->device->release(device->backend, nccl->memory[b].base);
        nccl->memory[b].base = NULL;
        nccl->memory[b].registers = false;
    }
}
