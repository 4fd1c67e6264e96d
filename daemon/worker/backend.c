#include <string.h>

#include "comm/local.h"
#include "kernels/plugin.h"
#include "link/job.h"
#include "train/train.h"
#include "worker/worker.h"

enum hd_status hd_worker_backend(const struct hd_job *job,
                                 const struct hd_backend_table **ret_table)
{
    enum hd_status st;

    if (strcmp(job->device, "cpu") == 0) {
        *ret_table = hd_backend_cpu();
        return HD_OK;
    }
    if (strcmp(job->device, "cuda") != 0)
        return hd_err(HD_UNSUPPORTED, "there is no device \"%s\"; it is cpu or cuda", job->device);
    st = hd_plugin_cuda(ret_table);
    return st ? hd_err_prefix(st, "device cuda") : HD_OK;
}

enum hd_status hd_worker_device_open(const struct hd_backend_table *table, const struct hd_job *job,
                                     int64_t world, struct hd_worker_device *ret_device,
                                     struct hd_comm **ret_comm)
{
    const struct hd_backend_options options = hd_trainer_backend_options(job);
    struct hd_comm_device device = {.table = table};
    enum hd_status st;

    *ret_device = (struct hd_worker_device){.table = table};
    if (world > 1)
        return hd_err(HD_UNSUPPORTED,
                      "a job on %lld GPUs is not supported yet; use "
                      "resources.devices: 1, or device: cpu",
                      (long long)world);
    st = table->open(&options, &ret_device->instance);
    device.backend = ret_device->instance;
    if (!st)
        st = hd_comm_hub_new(1, &ret_device->hub);
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
