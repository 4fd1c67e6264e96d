#include <string.h>

#include "kernels/plugin.h"

enum hd_status hd_plugin_backend(const char *device, const struct hd_backend_table **ret_table)
{
    enum hd_status st;

    if (strcmp(device, "cpu") == 0) {
        *ret_table = hd_backend_cpu();
        return HD_OK;
    }
    if (strcmp(device, "cuda") != 0)
        return hd_err(HD_UNSUPPORTED, "there is no device \"%s\"; it is cpu or cuda", device);
    st = hd_plugin_cuda(ret_table);
    return st ? hd_err_prefix(st, "device cuda") : HD_OK;
}
