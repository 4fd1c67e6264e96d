/* Loading the plug-in of the GPUs: one that fits is used, and of every other a person reads in one
 * line what is wrong with it. The plug-ins are stand-ins (standin.c); no GPU is needed. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/plugin.h"
#include "tests/program/test.h"

static enum hd_status load(const char *path, const struct hd_backend_table **ret_table)
{
    assert_int_equal(setenv(HD_PLUGIN_ENV, path, 1), 0);
    return hd_plugin_cuda(ret_table);
}

/* It is refused, and the line has all these words and no second line. */
static void refused(const char *path, const char *const words[], int count)
{
    const struct hd_backend_table *table = NULL;

    assert_int_equal(load(path, &table), HD_UNSUPPORTED);
    assert_null(table);
    for (int i = 0; i < count; i++)
        if (!strstr(hd_err_message(), words[i]))
            fail_msg("\"%s\" does not say \"%s\"", hd_err_message(), words[i]);
    assert_null(strchr(hd_err_message(), '\n'));
}
#define REFUSED(path, ...)                            \
    refused(path, (const char *const[]){__VA_ARGS__}, \
            (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

static void one_that_fits_is_used(void **state)
{
    struct hd_plugin_gpu gpus[HD_PLUGIN_GPUS_MAX];
    const struct hd_backend_table *table = NULL;
    struct hd_traits traits;
    int count = 0;

    assert_int_equal(load(STANDIN_good, &table), HD_OK);
    assert_string_equal(table->name, "cuda");
    table->describe(&(struct hd_backend_options){.threads = 3}, &traits);
    assert_true(traits.threads == 3 && hd_traits_is_cuda(&traits));
    assert_int_equal(hd_plugin_cuda_gpus(gpus, &count), HD_OK);
    assert_int_equal(count, 1);
    assert_string_equal(gpus[0].name, "Stand-in 9000");
}

/* Both numbers are named: without them nobody knows which side is the old one. */
static void one_of_another_build_is_refused_by_name(void **state)
{
    char there[32], here[32];

    (void)snprintf(there, sizeof there, "ABI %d", HD_KERNEL_ABI + 7);
    (void)snprintf(here, sizeof here, "this build has %d", HD_KERNEL_ABI);
    REFUSED(STANDIN_other_abi, STANDIN_other_abi, there, here, "build both from one source");
    (void)snprintf(there, sizeof there, "%zu bytes", sizeof(struct hd_backend_table) + 8);
    (void)snprintf(here, sizeof here, "%zu", sizeof(struct hd_backend_table));
    REFUSED(STANDIN_other_table, there, here);
    (void)snprintf(there, sizeof there, "%016llx", (unsigned long long)hd_kernel_list_hash() ^ 1);
    (void)snprintf(here, sizeof here, "%016llx", (unsigned long long)hd_kernel_list_hash());
    REFUSED(STANDIN_other_list, there, here);
}

/* Without cuBLASLt the line names its packages and the variable; with the folder in the variable the
 * plug-in is used. The loader keeps the library, so this is one case. */
static void cublas_is_found_in_the_named_folder_or_named(void **state)
{
    const struct hd_backend_table *table = NULL;

    (void)unsetenv("HEDDLE_CUDA_LIBRARIES");
    REFUSED(STANDIN_needs_cublas, STANDIN_needs_cublas, "libcublasLt.so.99", "cuBLAS of CUDA 99",
            "package libcublas-99-", "HEDDLE_CUDA_LIBRARIES");
    assert_int_equal(setenv("HEDDLE_CUDA_LIBRARIES", "relative::/no/such/folder:" CUBLAS_DIR, 1),
                     0);
    assert_int_equal(load(STANDIN_needs_cublas, &table), HD_OK);
    assert_int_equal(unsetenv("HEDDLE_CUDA_LIBRARIES"), 0);
}

static void one_that_cannot_say_why_is_refused_in_words(void **state)
{
    (void)hd_err(HD_IO, "an older story");
    REFUSED(STANDIN_other_plugin_abi, "plug-in ABI 1");
}

/* Each side has its own copy of status.c; the words must cross. */
static void words_of_the_plugin_reach_the_program(void **state)
{
    REFUSED(STANDIN_no_driver, STANDIN_no_driver, "no NVIDIA driver: libcuda.so.1 is not there");
}

static void what_is_no_plugin_is_refused(void **state)
{
    REFUSED(STANDIN_no_plugin, "not a Heddle plug-in", "hd_cuda_plugin");
    REFUSED("/nowhere/libheddle_cuda.so", "no such file: /nowhere/libheddle_cuda.so");
    REFUSED("/proc/self/status", "cannot load it");
    REFUSED("libheddle_cuda.so", "not a path with a '/'");
    REFUSED("none", "switched off");
}

/* Without the variable: ../lib of the program, which is <build>/tests here. */
static void it_lies_beside_the_program(void **state)
{
    const struct hd_backend_table *table = NULL;
    enum hd_status st;

    assert_int_equal(unsetenv(HD_PLUGIN_ENV), 0);
    st = hd_plugin_cuda(&table);
    if (st) /* none is built there, or there is no driver or GPU here: it says which file it means
             */
        assert_true(strstr(hd_err_message(), "/../lib/libheddle_cuda.so") ||
                    strcmp(hd_err_message(), "no NVIDIA driver: cannot load libcuda.so.1") == 0);
    else
        assert_string_equal(table->name, "cuda");
}

RUN_CASES()
