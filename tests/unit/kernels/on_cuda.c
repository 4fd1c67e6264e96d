/* on_cuda: the kernel tests on a GPU, by the plug-in. Tensors lie in one reservation that the host
 * reaches, too (mapped host memory): a stack of pieces, one after the other. Under
 * compute-sanitizer (`tests/run
 * --sanitizer`) each is an allocation of its own, so that it sees where a tensor ends. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plugin.h"
#include "tests/unit/kernels/harness.h"

#define ARENA_BYTES ((size_t)1 << 30)
enum { PIECES_MAX = 8192 };

const struct setting settings[] = {
    {.threads = 1}, /* three times: the same bits */
    {.threads = 1},
    {.threads = 1},
    {.force_plain = true},
    {.gemm_by = HD_GEMM_BY_OWN},
    {.gemm_by = HD_GEMM_BY_OWN, .deterministic = true},
    {.deterministic = true},
};
const int setting_count = 4, gemm_setting_count = sizeof settings / sizeof settings[0];
const int attention_setting_count = 4;
const enum hd_dtype float_types[] = {HD_F32, HD_BF16, HD_F16};
const int float_type_count = 3;

static struct {
    struct hd_backend *backend; /* that holds the memory; never closed */
    char *memory;
    size_t ends[PIECES_MAX]; /* of each piece; the next one begins there */
    bool freed[PIECES_MAX];
    int pieces;
} arena;

const struct hd_backend_table *on_backend(void)
{
    static const struct hd_backend_table *table;

    if (!table && hd_plugin_cuda(&table)) {
        print_message("%s\n", hd_err_message());
        skip();
    }
    return table;
}

bool on_takes(int s, int64_t number, int64_t of)
{
    return number % of == s % of;
}

void on_device(const struct setting *setting)
{
}

void on_open(struct hd_backend *backend, const struct setting *setting)
{
}

/* The driver's calls for mapped host memory; the backend's context is the current one. */
static struct {
    int (*allocate)(void **ret_memory, size_t size_bytes, unsigned flags); /* cuMemHostAlloc */
    int (*release)(void *memory);                                          /* cuMemFreeHost */
} driver;

static bool is_sanitized(void)
{
    return getenv("HEDDLE_TEST_SANITIZED") != NULL;
}

static void *own_memory(size_t size_bytes)
{
    enum { FOR_THE_DEVICE = 2 }; /* CU_MEMHOSTALLOC_DEVICEMAP */
    void *memory = NULL;
    int error;

    if (!driver.allocate) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);

        assert_non_null(library);
        *(void **)&driver.allocate = dlsym(library, "cuMemHostAlloc");
        *(void **)&driver.release = dlsym(library, "cuMemFreeHost");
        assert_non_null(driver.allocate);
        assert_non_null(driver.release);
    }
    error = driver.allocate(&memory, size_bytes, FOR_THE_DEVICE);
    if (error)
        fail_msg("cuMemHostAlloc of %zu bytes: error %d", size_bytes, error);
    return memory;
}

static void need_backend(void)
{
    const struct hd_backend_options options = {0};

    if (!arena.backend && on_backend()->open(&options, &arena.backend))
        fail_msg("%s", hd_err_message());
}

void *on_memory(size_t size_bytes)
{
    const size_t whole = (size_bytes + 255) / 256 * 256;
    size_t begin;

    need_backend();
    if (is_sanitized())
        return own_memory(size_bytes);
    if (!arena.memory) {
        void *base = NULL;

        if (on_backend()->device->reserve(arena.backend, (int64_t)ARENA_BYTES, true, &base))
            fail_msg("%s", hd_err_message());
        arena.memory = base;
    }
    begin = arena.pieces ? arena.ends[arena.pieces - 1] : 0;
    if (begin + whole > ARENA_BYTES || arena.pieces == PIECES_MAX)
        fail_msg("tensors of %zu bytes in %d pieces, and %zu bytes more: make ARENA_BYTES or "
                 "PIECES_MAX larger",
                 begin, arena.pieces, whole);
    arena.freed[arena.pieces] = false;
    arena.ends[arena.pieces++] = begin + whole;
    return arena.memory + begin;
}

void on_memory_free(void *memory)
{
    const size_t begin = (size_t)((char *)memory - arena.memory);

    if (is_sanitized()) {
        if (driver.release(memory))
            fail_msg("cuMemFreeHost failed");
        return;
    }
    for (int i = arena.pieces - 1; i >= 0; i--)
        if ((i ? arena.ends[i - 1] : 0) == begin) {
            arena.freed[i] = true;
            break;
        }
    while (arena.pieces && arena.freed[arena.pieces - 1])
        arena.pieces--;
}
