#include "kernels/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take_list(hd_library_take *take, void *context)
{
    const char *list = getenv(HD_LIBRARY_FOLDERS_ENV);
    char folder[PATH_MAX];

    while (list && *list) {
        const size_t n = strcspn(list, ":");

        (void)snprintf(folder, sizeof folder, "%.*s", (int)(n < PATH_MAX ? n : 0), list);
        if (folder[0] == '/') /* others would depend on where the process began */
            take(context, folder);
        list += n + (list[n] == ':');
    }
}

/* Takes the folders of libraries of Python's packages below `prefix`. */
static void take_python(const char *prefix, hd_library_take *take, void *context)
{
    static const char *const below[] = {"lib/python3*/site-packages", "lib/python3*/dist-packages"};
    char pattern[PATH_MAX];
    glob_t found;

    for (size_t b = 0; b < sizeof below / sizeof below[0]; b++) {
        (void)snprintf(pattern, sizeof pattern, "%s/%s/nvidia/*/lib", prefix, below[b]);
        if (glob(pattern, 0, NULL, &found) == 0)
            for (size_t i = 0; i < found.gl_pathc; i++)
                take(context, found.gl_pathv[i]);
        globfree(&found);
    }
}

void hd_library_folders(hd_library_take *take, void *context)
{
    const char *environment = getenv("VIRTUAL_ENV");

    take_list(take, context);
    if (environment && environment[0] == '/')
        take_python(environment, take, context);
    take_python("/usr/local", take, context);
    take_python("/usr", take, context);
}

struct library_search {
    const char *name;
    void *library;
};

static void try_folder(void *context, const char *folder)
{
    struct library_search *search = context;
    char path[PATH_MAX];

    if (search->library ||
        (size_t)snprintf(path, sizeof path, "%s/%s", folder, search->name) >= sizeof path)
        return;
    search->library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

void *hd_library_open(const char *name)
{
    struct library_search search = {.name = name, .library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)};

    if (!search.library)
        hd_library_folders(try_folder, &search);
    if (!search.library) /* dlerror tells of the search by the loader's rules */
        search.library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    return search.library;
}
