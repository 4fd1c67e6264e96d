#include "daemon/isolation/environment.h"

#include <string.h>

extern char **environ;

static const char *const travels[] = {"HEDDLE_*", "NCCL_*", "CUDA_*",  "OMP_*",  "DNNL_*",
                                      "GLOO_*",   "TMPDIR", "LANG",    "LC_ALL", "TZ",
                                      "UCX_*",    "FI_*",   "RDMAV_*", "MLX5_*", NULL};
/* variables that a supervisor which is heddled's child keeps in addition, for heddled's own loader,
 * home and tools */
static const char *const stays[] = {
    "PATH",         "HOME",         "VIRTUAL_ENV",   "LD_*",     "NVIDIA_*",
    "GOMP_*",       "KMP_*",        "ONEDNN_*",      "MALLOC_*", "ASAN_OPTIONS",
    "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", NULL};
static const char *const own[] = {"HEDDLE_CONTROLLER", "HEDDLE_TOKEN*", NULL};

static bool matches(const char *pattern, size_t pattern_bytes, const char *variable)
{
    const size_t n = strcspn(variable, "=");

    if (pattern_bytes && pattern[pattern_bytes - 1] == '*')
        return n >= pattern_bytes - 1 && memcmp(pattern, variable, pattern_bytes - 1) == 0;
    return n == pattern_bytes && memcmp(pattern, variable, n) == 0;
}

static bool is_among(const char *const *patterns, const char *variable)
{
    for (; *patterns; patterns++)
        if (matches(*patterns, strlen(*patterns), variable))
            return true;
    return false;
}

bool hd_environment_may_travel(const char *variable)
{
    return is_among(travels, variable) && !is_among(own, variable);
}

static bool is_named(const char *names, const char *variable)
{
    while (names && *names) {
        const size_t n = strcspn(names, ",");

        if (matches(names, n, variable))
            return true;
        names += n + (names[n] == ',');
    }
    return false;
}

void hd_environment_clean(const char *names)
{
    size_t kept = 0;

    for (char **at = environ; at && *at; at++)
        if (hd_environment_may_travel(*at) || is_among(stays, *at) || is_named(names, *at))
            environ[kept++] = *at;
    if (environ)
        environ[kept] = NULL;
}
