#include "kernels/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "kernels/library.h"

#define CUBLAS "libcublasLt.so."
enum { LIBRARY_NAME_MAX = 32 }; /* bytes of the name of a library */

/* Returns FOLDER_OF_PROGRAM/../lib/libheddle_cuda.so, which is right in a build tree and when
 * installed. */
static enum hd_status default_path(char ret_path[PATH_MAX])
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    if (n < 0)
        return hd_err(HD_IO, "cannot read the link /proc/self/exe to find the CUDA plug-in");
    self[n] = '\0';
    slash = strrchr(self, '/');
    if (snprintf(ret_path, PATH_MAX, "%.*s/../lib/" HD_PLUGIN_FILE, (int)(slash - self), self) >=
        PATH_MAX)
        return hd_err(HD_LIMIT, "the path of this program is too long: \"%.200s..\"", self);
    return HD_OK;
}

static enum hd_status find(char ret_path[PATH_MAX])
{
    const char *given = getenv(HD_PLUGIN_ENV);
    enum hd_status st;

    if (given && strcmp(given, "none") == 0)
        return hd_err(HD_UNSUPPORTED, "GPUs are switched off: " HD_PLUGIN_ENV " is \"none\"");
    if (given && *given) {
        if (strlen(given) >= PATH_MAX || !strchr(given, '/')) /* without a '/' dlopen would search
                                                                 by the loader's rules */
            return hd_err(HD_UNSUPPORTED, HD_PLUGIN_ENV ": \"%.200s\" is not a path with a '/'",
                          given);
        (void)snprintf(ret_path, PATH_MAX, "%s", given);
        return hd_file_exists(given)
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED, HD_PLUGIN_ENV ": no such file: %s", given);
    }
    st = default_path(ret_path);
    if (!st && !hd_file_exists(ret_path))
        st = hd_err(HD_UNSUPPORTED,
                    "no CUDA plug-in: no such file: %s; build it where nvcc is (cmake "
                    "-DHEDDLE_CUDA=ON, target heddle_cuda), or "
                    "set " HD_PLUGIN_ENV " to the plug-in's path",
                    ret_path);
    /* without a driver the plug-in and its libraries, hundreds of megabytes, are not loaded */
    if (!st && !dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL))
        st = hd_err(HD_UNSUPPORTED, "no NVIDIA driver: cannot load libcuda.so.1");
    return st;
}

static enum hd_status refuse(const char *path, const char *what)
{
    const char *why = dlerror();

    return hd_err(HD_UNSUPPORTED, "%s: %s%s%s", path, what, why ? ": " : "", why ? why : "");
}

/* Copies the name of the cuBLASLt that the loader's message says is missing; returns false if the
 * message is about something else. */
static bool name_missing(const char *message, char ret_name[LIBRARY_NAME_MAX])
{
    const char *begin = message ? strstr(message, CUBLAS) : NULL;
    const size_t n = begin ? strspn(begin, CUBLAS "0123456789") : 0;

    if (!begin || n >= LIBRARY_NAME_MAX || !strstr(begin, "cannot open shared object file"))
        return false;
    (void)snprintf(ret_name, LIBRARY_NAME_MAX, "%.*s", (int)n, begin);
    return true;
}

/* Reports that cuBLASLt `name` (libcublasLt.so.13) cannot be loaded, with the packages that have
 * it. */
static enum hd_status refuse_without(const char *path, const char *name)
{
    const char *version = name + strlen(CUBLAS);
    const char *why = dlerror();

    return hd_err(HD_UNSUPPORTED,
                  "%s: cannot load it: %s; install cuBLAS of CUDA %s (NVIDIA's package "
                  "libcublas-%s-*, or pip install nvidia-cublas), or name its folder in %s",
                  path, why ? why : name, version, version, HD_LIBRARY_FOLDERS_ENV);
}

static enum hd_status load(void **ret_library, char ret_path[PATH_MAX])
{
    enum hd_status st = find(ret_path);
    char name[LIBRARY_NAME_MAX];
    const char *why;

    if (st)
        return st;
    *ret_library = dlopen(ret_path, RTLD_NOW | RTLD_LOCAL);
    if (*ret_library)
        return HD_OK;
    why = dlerror();
    if (!name_missing(why, name))
        return hd_err(HD_UNSUPPORTED, "%s: cannot load it: %s", ret_path, why ? why : "?");
    /* a library that is loaded already is found by its name */
    if (hd_library_open(name))
        *ret_library = dlopen(ret_path, RTLD_NOW | RTLD_LOCAL);
    return *ret_library ? HD_OK : refuse_without(ret_path, name);
}

enum hd_status hd_plugin_load(void)
{
    char path[PATH_MAX];
    void *library;

    return load(&library, path);
}

enum hd_status hd_plugin_cuda(const struct hd_backend_table **ret_table)
{
    static const struct hd_plugin_host host = {.abi = HD_PLUGIN_ABI, .error_place = hd_err_place};
    const struct hd_backend_table *table = NULL;
    hd_cuda_plugin_fn *get;
    char path[PATH_MAX];
    void *library;
    enum hd_status st = load(&library, path);

    if (st)
        return st;
    *(void **)&get = dlsym(library, "hd_cuda_plugin");
    if (!get)
        return refuse(path, "not a Heddle plug-in: it has no function hd_cuda_plugin");
    /* sets the message for a plug-in of another ABI, which cannot write one itself */
    (void)hd_err(HD_UNSUPPORTED,
                 "it refuses this program's plug-in ABI %d; build both from one source",
                 HD_PLUGIN_ABI);
    st = get(&host, &table);
    if (!st)
        st = hd_backend_check(table);
    if (st)
        return hd_err_prefix(HD_UNSUPPORTED, "%s", path);
    *ret_table = table;
    return HD_OK;
}

enum hd_status hd_plugin_cuda_gpus(struct hd_plugin_gpu ret_gpus[HD_PLUGIN_GPUS_MAX],
                                   int *ret_count)
{
    hd_cuda_plugin_gpus_fn *list;
    char path[PATH_MAX];
    void *library;
    enum hd_status st = load(&library, path); /* dlopen returns the library that was loaded
                                                 before */

    if (st)
        return st;
    *(void **)&list = dlsym(library, "hd_cuda_plugin_gpus");
    if (!list)
        return refuse(path, "it has no function hd_cuda_plugin_gpus");
    st = list(ret_gpus, ret_count);
    return st ? hd_err_prefix(st, "%s", path) : HD_OK;
}
