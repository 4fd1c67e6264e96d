/* Which device file is a GPU's, from what a driver's folder says; a folder stands in for /proc. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "daemon/devices/gpu_file.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

static void put(const char *proc, const char *bus, const char *text)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/driver/nvidia/gpus/%s", proc, bus);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    (void)snprintf(path, sizeof path, "%s/driver/nvidia/gpus/%s/information", proc, bus);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
}

static void a_gpu_is_found_by_its_uuid(void **state)
{
    char proc[TEMPORARY_BYTES], file[HD_GPU_FILE_MAX];

    temporary_dir(proc, "heddle-gpu-file");
    assert_int_equal(hd_gpu_device_file(proc, "GPU-b", file), HD_NOT_FOUND);
    put(proc, "0000:01:00.0", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-a\nDevice Minor: \t 0\n");
    put(proc, "0000:02:00.0", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-b\nDevice Minor: \t 7\n");
    put(proc, "0000:03:00.0", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-c\n");
    assert_int_equal(hd_gpu_device_file(proc, "GPU-b", file), HD_OK);
    assert_string_equal(file, "/dev/nvidia7");
    assert_int_equal(hd_gpu_device_file(proc, "GPU-c", file), HD_INVALID); /* it does not say */
    assert_int_equal(hd_gpu_device_file(proc, "GPU", file), HD_NOT_FOUND);
    assert_int_equal(hd_file_remove_tree(proc), HD_OK);
}

RUN_CASES()
