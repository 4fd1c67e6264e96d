/* on_cuda: the kernel tests on a GPU, by the plug-in. Tensors lie in one reservation that the host
 * reaches, too: a stack of pieces, one after the other. */
#include <string.h>

#include "kernels/plugin.h"
#include "tests/unit/kernels/harness.h"

#define ARENA_BYTES ((size_t)2 << 30)
enum { PIECES_MAX = 8192 };

const struct setting settings[] = {
    {.threads = 1},        {.threads = 1, .deterministic = true}, {.threads = 1},
    {.force_plain = true}, {.gemm_by = HD_GEMM_BY_OWN},
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

void on_open(struct hd_backend *backend, const struct setting *setting)
{
    (void)backend;
    (void)setting;
}

void *on_memory(size_t size_bytes)
{
    const struct hd_backend_options options = {0};
    const size_t whole = (size_bytes + 255) / 256 * 256;
    size_t begin;

    if (!arena.memory) {
        void *base = NULL;

        if (on_backend()->open(&options, &arena.backend) ||
            on_backend()->device->reserve(arena.backend, (int64_t)ARENA_BYTES, true, &base))
            fail_msg("%s", hd_err_message());
        arena.memory = base;
    }
    begin = arena.pieces ? arena.ends[arena.pieces - 1] : 0;
    assert_true(begin + whole <= ARENA_BYTES && arena.pieces < PIECES_MAX);
    arena.freed[arena.pieces] = false;
    arena.ends[arena.pieces++] = begin + whole;
    return arena.memory + begin;
}

void on_memory_free(void *memory)
{
    const size_t begin = (size_t)((char *)memory - arena.memory);

    for (int i = arena.pieces - 1; i >= 0; i--)
        if ((i ? arena.ends[i - 1] : 0) == begin) {
            arena.freed[i] = true;
            break;
        }
    while (arena.pieces && arena.freed[arena.pieces - 1])
        arena.pieces--;
}
