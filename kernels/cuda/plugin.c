/* plugin: the functions that the shared library exports (kernels/plugin.h). */
#include "kernels/plugin.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

static enum hd_status count_devices(int *ret_count)
{
    int count = 0;
    enum hd_status st = hd_cuda_check(cudaGetDeviceCount(&count), "cannot initialize CUDA");

    if (!st && count == 0)
        st = hd_cuda_check(cudaErrorNoDevice, "cannot initialize CUDA");
    if (!st)
        *ret_count = count;
    return st;
}

enum hd_status hd_cuda_plugin(const struct hd_plugin_host *host,
                              const struct hd_backend_table **ret_table)
{
    enum hd_status st;
    int count;

    if (host->abi != HD_PLUGIN_ABI) /* return no message: hd_err_share needs a matching ABI */
        return HD_UNSUPPORTED;
    hd_err_share(host->error_place);
    /* CUDA loads a kernel at its first launch, unless CUDA_MODULE_LOADING is EAGER. Loading may
     * wait for all streams; two ranks could deadlock if each loads a kernel while the other waits
     * in a collective. So the supervisor sets EAGER for ranks of jobs with several ranks. A single
     * rank loads lazily, which saves the memory of unused kernels. */
    st = count_devices(&count);
    if (!st)
        *ret_table = hd_backend_cuda();
    return st;
}

_Static_assert(sizeof(((struct hd_plugin_gpu *)0)->uuid) == HD_CUDA_UUID_MAX, "a UUID fits");

void hd_cuda_spell_uuid(const unsigned char bytes[16], char ret_text[HD_CUDA_UUID_MAX])
{
    char *out = ret_text + snprintf(ret_text, HD_CUDA_UUID_MAX, "GPU-");

    for (int i = 0; i < 16; i++)
        out += snprintf(out, (size_t)(ret_text + HD_CUDA_UUID_MAX - out), "%s%02x",
                        i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

enum hd_status hd_cuda_plugin_gpus(struct hd_plugin_gpu ret_gpus[HD_PLUGIN_GPUS_MAX],
                                   int *ret_count)
{
    int count;
    enum hd_status st = count_devices(&count);

    if (st)
        return st;
    if (count > HD_PLUGIN_GPUS_MAX)
        return hd_err(HD_LIMIT,
                      "%d GPUs are visible, at most %d are supported; set "
                      "CUDA_VISIBLE_DEVICES",
                      count, HD_PLUGIN_GPUS_MAX);
    *ret_count = 0;
    for (int i = 0; i < count; i++) {
        struct hd_plugin_gpu *gpu = &ret_gpus[*ret_count];
        struct cudaDeviceProp device;

        memset(gpu, 0, sizeof *gpu);
        st = hd_cuda_check(cudaGetDeviceProperties(&device, i), "cannot read a GPU's properties");
        if (!st)
            st = hd_cuda_check(cudaDeviceGetPCIBusId(gpu->bus, (int)sizeof gpu->bus, i),
                               "cannot read a GPU's PCI bus id");
        if (st)
            continue; /* skip a broken GPU: the others can be used */
        (void)snprintf(gpu->name, sizeof gpu->name, "%s", device.name);
        hd_cuda_spell_uuid((const unsigned char *)device.uuid.bytes, gpu->uuid);
        gpu->memory_bytes = (int64_t)device.totalGlobalMem;
        gpu->capability = device.major * 10 + device.minor;
        (*ret_count)++;
    }
    return *ret_count ? HD_OK : st;
}
