/* arena: an allocator whose allocations are all freed together, by hd_arena_done.
 *
 * An arena grows by blocks. An allocation never moves and is never freed alone. Failure is sticky:
 * after the first failed allocation every later one returns NULL and hd_arena_failed is true, so
 * code that builds a structure may check once, at its end.
 *
 * Used by: everything.   Uses: libc.   Threads: one owner at a time. */
#ifndef HD_BASE_ARENA_H
#define HD_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct hd_arena_block;

struct hd_arena {
    struct hd_arena_block *newest;
    size_t used_bytes, limit_bytes; /* bytes allocated so far; the most that may be allocated, 0: no
                                       limit */
    bool failed;
};

/* Initialises an arena. limit_bytes: the memory that hostile input can make it allocate; 0: no
 * limit. */
void hd_arena_init(struct hd_arena *arena, size_t limit_bytes);
void hd_arena_done(struct hd_arena *arena); /* frees all memory; the arena is then empty and
                                               usable */

/* Returns zeroed memory, aligned for any type; NULL when there is no memory or limit_bytes is
 * reached. */
void *hd_arena_alloc(struct hd_arena *arena, size_t size_bytes);
/* Allocates a zeroed array; NULL also if its size overflows. */
void *hd_arena_array(struct hd_arena *arena, size_t count, size_t item_bytes);
/* Returns an array with capacity for more than `count` items: `items` itself, or a copy with twice
 * the capacity (64 items at first), which is written to *capacity. The old array is freed with the
 * arena. Returns NULL without memory; *capacity is then unchanged. */
void *hd_arena_grow(struct hd_arena *arena, void *items, int count, int *capacity,
                    size_t item_bytes);
char *hd_arena_strdup(struct hd_arena *arena, const char *text);
char *hd_arena_printf(struct hd_arena *arena, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool hd_arena_failed(const struct hd_arena *arena);

#endif
