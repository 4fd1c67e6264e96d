#include "comm/local.h"
#include "comm/nccl.h"
#include "job/job.h"
#include "model/model.h"
#include "optim/optim.h"
#include "train/train.h"
#include "worker/worker.h"

/* Opens NCCL, the transport for GPU memory, over the host communicator that the ranks have opened.
 * Takes over `host`, also on failure. */
static enum hd_status open_nccl(const struct hd_comm_device *device, const struct hd_job *job,
                                struct hd_comm *host, struct hd_comm **ret_comm)
{
    struct hd_mesh mesh;
    struct hd_comm_nccl_options options = {
        .mesh = &mesh, .native = job->native_reduction, .deadline_ms = HD_STEP_DEADLINE_MS};
    struct hd_model_config config;
    enum hd_status st = hd_model_config_from_job(job, &config);

    if (!st)
        st = hd_mesh_init(
            &mesh, &(struct hd_mesh_sizes){.pp = (int32_t)job->pp,
                                           .dp = (int32_t)job->dp,
                                           .cp = (int32_t)job->cp,
                                           .tp = (int32_t)job->tp,
                                           .ep = (int32_t)job->ep,
                                           .stages_meet = hd_optimizer_needs_matrices(job),
                                           .kv_replica = hd_model_kv_replica(&config, job->tp)});
    if (st) {
        hd_comm_free(host);
        return st;
    }
    return hd_comm_open_nccl(host, device, &options, ret_comm);
}

enum hd_status hd_worker_device_open(const struct hd_backend_table *table, const struct hd_job *job,
                                     const char *choices_dir, struct hd_comm *host,
                                     const struct hd_shm_fds *fds,
                                     struct hd_worker_device *ret_device, struct hd_comm **ret_comm)
{
    struct hd_backend_options options = hd_trainer_backend_options(job);
    struct hd_comm_device device = {.table = table};
    enum hd_status st;

    *ret_comm = NULL;
    *ret_device = (struct hd_worker_device){.table = table};
    options.choices_dir = choices_dir;
    st = table->open(&options, &ret_device->instance);
    if (st) {
        hd_comm_free(host);
        return st;
    }
    device.backend = ret_device->instance;
    if (host)
        return open_nccl(&device, job, host, ret_comm);
    st = hd_comm_hub_on(fds, &ret_device->hub);
    if (!st)
        st = hd_comm_open_local(ret_device->hub, 0, &device, HD_STEP_DEADLINE_MS, ret_comm);
    return st;
}

void hd_worker_device_close(struct hd_worker_device *device)
{
    if (device->hub)
        hd_comm_hub_free(device->hub);
    if (device->instance)
        device->table->close(device->instance);
}
