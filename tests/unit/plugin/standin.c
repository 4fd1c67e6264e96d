/* A plug-in that computes nothing, in every state that one can be found in. STANDIN_* chooses. */
#include <string.h>

#include "kernels/plugin.h"

#ifdef STANDIN_NO_PLUGIN
HD_PLUGIN_EXPORT int hd_something_else;
int hd_something_else = 1;
#else
static void describe(const struct hd_backend_options *options, struct hd_traits *ret_traits)
{
    *ret_traits = (struct hd_traits){
        .threads = options->threads, .multiprocessors = 4, .capability = 90, .bf16_fast = true};
}

enum hd_status hd_cuda_plugin(const struct hd_plugin_host *host,
                              const struct hd_backend_table **ret_table)
{
    static struct hd_backend_table table = {
        .abi = HD_KERNEL_ABI, .table_bytes = sizeof table, .name = "cuda", .describe = describe};

#ifdef STANDIN_OTHER_PLUGIN_ABI
    if (host->abi != HD_PLUGIN_ABI + 1)
        return HD_UNSUPPORTED; /* what else is in *host is not known, so no words */
#endif
    hd_err_share(host->error_place);
    table.kernel_list_hash = hd_kernel_list_hash();
#ifdef STANDIN_NO_DRIVER
    return hd_err(HD_UNSUPPORTED, "no NVIDIA driver: libcuda.so.1 is not there");
#endif
#ifdef STANDIN_OTHER_ABI
    table.abi = HD_KERNEL_ABI + 7;
#endif
#ifdef STANDIN_OTHER_TABLE
    table.table_bytes += 8;
#endif
#ifdef STANDIN_OTHER_LIST
    table.kernel_list_hash ^= 1;
#endif
    *ret_table = &table;
    return HD_OK;
}

enum hd_status hd_cuda_plugin_gpus(struct hd_plugin_gpu ret_gpus[HD_PLUGIN_GPUS_MAX],
                                   int *ret_count)
{
    ret_gpus[0] = (struct hd_plugin_gpu){.name = "Stand-in 9000",
                                         .uuid = "GPU-00000000-0000-0000-0000-000000000001",
                                         .bus = "0000:01:00.0",
                                         .memory_bytes = INT64_C(8) << 30,
                                         .capability = 90};
    *ret_count = 1;
    return HD_OK;
}
#endif
