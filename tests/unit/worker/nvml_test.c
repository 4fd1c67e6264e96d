/* nvml: slices of GPUs, of which CUDA lists one to a process, are all offered, with a stand-in for NVIDIA's
 * management library. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/program/test.h"
#include "worker/nvml.h"

static void every_slice_and_whole_gpu_is_listed_once_and_judged(void **state)
{
    static const struct {
        const char *uuid, *bus;
        int64_t memory_bytes;
    } wanted[] = {{"MIG-0", "0000:1A:00.0", 5},
                  {"MIG-2", "0000:1a:00.0", 5}, /* as CUDA told it */
                  {"MIG-3", "0000:1A:00.0", 5},
                  {"GPU-whole", "0000:3B:00.0", 40},
                  {"GPU-old", "0000:5E:00.0", 40}};
    struct hd_gpu_list *list = calloc(1, sizeof *list);

    assert_non_null(dlopen(NVML_STAND_IN, RTLD_NOW)); /* found by its name from now on */
    list->count = 1;
    list->gpus[0] = (struct hd_gpu){.uuid = "MIG-2",
                                    .name = "NVIDIA A100 MIG 1g.5gb",
                                    .bus = "0000:1a:00.0",
                                    .memory_bytes = 5};
    hd_nvml_add_slices(list);
    assert_int_equal(list->count, 5);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(list->gpus[i].uuid, wanted[i].uuid);
        assert_string_equal(list->gpus[i].bus, wanted[i].bus);
        assert_int_equal(list->gpus[i].memory_bytes, wanted[i].memory_bytes);
        assert_string_equal(list->gpus[i].problem,
                            i < 4 ? ""
                                  : "compute capability 7.5 is older than 8.0, which the kernels "
                                    "need");
    }
    /* CUDA spelled its slice otherwise */
    list->count = 1;
    list->gpus[0] = (struct hd_gpu){.uuid = "MIG-GPU-a/1/0", .bus = "0000:1a:00.0"};
    hd_nvml_add_slices(list);
    assert_int_equal(list->count, 5);
    assert_string_equal(list->gpus[0].uuid, "MIG-0");
    free(list);
}

static void a_list_without_slices_stays(void **state)
{
    struct hd_gpu_list *list = calloc(1, sizeof *list);

    assert_non_null(dlopen(NVML_STAND_IN, RTLD_NOW));
    list->count = 1;
    list->gpus[0] = (struct hd_gpu){.uuid = "GPU-a", .bus = "0000:3b:00.0"};
    hd_nvml_add_slices(list);
    assert_int_equal(list->count, 1);
    free(list);
}

RUN_CASES()
