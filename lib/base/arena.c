#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of an arena's first block; each next one doubles, up to the last size. Most arenas hold one
 * small message. */
enum { BLOCK_FIRST_BYTES = 2 * 1024, BLOCK_LAST_BYTES = 64 * 1024 };

struct hd_arena_block {
    struct hd_arena_block *older;
    size_t used_bytes, size_bytes;
    max_align_t data[];
};

void hd_arena_init(struct hd_arena *arena, size_t limit_bytes)
{
    *arena = (struct hd_arena){.limit_bytes = limit_bytes};
}

void hd_arena_done(struct hd_arena *arena)
{
    struct hd_arena_block *block = arena->newest;

    while (block) {
        struct hd_arena_block *older = block->older;

        free(block);
        block = older;
    }
    hd_arena_init(arena, arena->limit_bytes);
}

static struct hd_arena_block *add_block(struct hd_arena *arena, size_t piece_bytes)
{
    size_t size = arena->newest ? arena->newest->size_bytes * 2 : BLOCK_FIRST_BYTES;
    struct hd_arena_block *block;

    size = size < BLOCK_LAST_BYTES ? size : BLOCK_LAST_BYTES;
    size = size > piece_bytes ? size : piece_bytes;
    block = calloc(1, sizeof *block + size);
    if (!block)
        return NULL;
    block->size_bytes = size;
    block->older = arena->newest;
    arena->newest = block;
    return block;
}

void *hd_arena_alloc(struct hd_arena *arena, size_t size_bytes)
{
    const size_t align = _Alignof(max_align_t);
    struct hd_arena_block *block = arena->newest;
    char *piece;

    if (size_bytes > SIZE_MAX / 2 || arena->failed)
        goto fail;
    size_bytes = (size_bytes + align - 1) / align * align;
    if (arena->limit_bytes && size_bytes > arena->limit_bytes - arena->used_bytes)
        goto fail;
    if (!block || block->size_bytes - block->used_bytes < size_bytes)
        block = add_block(arena, size_bytes);
    if (!block)
        goto fail;
    piece = (char *)block->data + block->used_bytes;
    block->used_bytes += size_bytes;
    arena->used_bytes += size_bytes;
    return piece;

fail:
    arena->failed = true;
    return NULL;
}

void *hd_arena_array(struct hd_arena *arena, size_t count, size_t item_bytes)
{
    if (item_bytes && count > SIZE_MAX / item_bytes) {
        arena->failed = true;
        return NULL;
    }
    return hd_arena_alloc(arena, count * item_bytes);
}

void *hd_arena_grow(struct hd_arena *arena, void *items, int count, int *capacity,
                    size_t item_bytes)
{
    void *more;

    if (count < *capacity)
        return items;
    more = hd_arena_array(arena, (size_t)(*capacity ? 2 * *capacity : 64), item_bytes);
    if (!more)
        return NULL;
    *capacity = *capacity ? 2 * *capacity : 64;
    if (count)
        memcpy(more, items, (size_t)count * item_bytes);
    return more;
}

char *hd_arena_strdup(struct hd_arena *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = hd_arena_alloc(arena, size);

    return copy ? memcpy(copy, text, size) : NULL;
}

char *hd_arena_printf(struct hd_arena *arena, const char *fmt, ...)
{
    va_list ap;
    char *text;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    text = n < 0 ? NULL : hd_arena_alloc(arena, (size_t)n + 1);
    if (!text)
        return NULL;
    va_start(ap, fmt);
    (void)vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return text;
}

bool hd_arena_failed(const struct hd_arena *arena)
{
    return arena->failed;
}
