/* plugin: the functions that the shared library exports (kernels/plugin.h). */
#include "kernels/plugin.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cuda/cuda.h"

/* Returns the oldest release of the driver that runs programs of this major version of CUDA. */
static int driver_for(int major)
{
    static const struct {
        int major, driver;
    } oldest[] = {{11, 450}, {12, 525}, {13, 580}};
    int driver = oldest[0].driver;

    for (size_t i = 0; i < sizeof oldest / sizeof oldest[0]; i++)
        if (major >= oldest[i].major)
            driver = oldest[i].driver;
    return driver;
}

void hd_cuda_read_release(char ret_text[HD_CUDA_RELEASE_MAX])
{
    struct hd_text text = {0};

    ret_text[0] = '\0';
    if (!hd_file_read("/sys/module/nvidia/version", 64, &text) && text.len_bytes)
        (void)sscanf(text.data, "%31[0-9.]", ret_text);
    hd_text_free(&text);
}

/* Reports that the driver is older than the CUDA runtime, with both versions. */
static enum hd_status refuse_driver(void)
{
    char release[HD_CUDA_RELEASE_MAX], driver_text[64] = "";
    int driver = 0, runtime = 0;

    (void)cudaGetLastError(); /* clears the error, which the next launch would report again */
    if (cudaDriverGetVersion(&driver) || cudaRuntimeGetVersion(&runtime) || !driver)
        return hd_cuda_check(cudaErrorInsufficientDriver, "cannot initialize CUDA");
    hd_cuda_read_release(release);
    if (release[0])
        (void)snprintf(driver_text, sizeof driver_text, " %s", release);
    return hd_err(HD_UNSUPPORTED,
                  "NVIDIA's driver%s (CUDA %d.%d) is older than CUDA %d.%d of this plug-in, which "
                  "needs driver %d or newer; install it, or a plug-in that was built with an older "
                  "CUDA",
                  driver_text, driver / 1000, driver % 1000 / 10, runtime / 1000,
                  runtime % 1000 / 10, driver_for(runtime / 1000));
}

static enum hd_status count_devices(int *ret_count)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    enum hd_status st = error == cudaErrorInsufficientDriver
                            ? refuse_driver()
                            : hd_cuda_check(error, "cannot initialize CUDA");

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

bool hd_cuda_is_slice(const char *name)
{
    return strstr(name, " MIG ") != NULL;
}

void hd_cuda_spell_uuid(const unsigned char bytes[16], bool is_slice,
                        char ret_text[HD_CUDA_UUID_MAX])
{
    char *out = ret_text + snprintf(ret_text, HD_CUDA_UUID_MAX, is_slice ? "MIG-" : "GPU-");

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
        hd_cuda_spell_uuid((const unsigned char *)device.uuid.bytes, hd_cuda_is_slice(device.name),
                           gpu->uuid);
        gpu->memory_bytes = (int64_t)device.totalGlobalMem;
        gpu->capability = device.major * 10 + device.minor;
        (*ret_count)++;
    }
    return *ret_count ? HD_OK : st;
}
