/* arena: an allocator whose allocations are all freed together, by hd_arena_done.
 *
 * An arena grows by blocks. An allocation never moves and is never freed alone. Failure is sticky:
 * after the first failed allocation every later one returns NULL and hd_arena_failed is true, so
 * code that builds a structure may check once, at its end.
 *
 * Used by: everything.   Uses: libc.   Threads: one owner at a time.
 */
#ifndef HD_BASE_ARENA_H
#define HD_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct hd_arena_block;

struct hd_arena {
    struct hd_arena_block *newest;
    size_t used_bytes, limit_bytes; /* limit_bytes 0: no limit */
    bool failed;
};

/* limit_bytes bounds the memory that hostile input can make the arena allocate; 0: no limit. */
void hd_arena_init(struct hd_arena *arena, size_t limit_bytes);
void hd_arena_done(struct hd_arena *arena); /* frees everything; the arena is empty and usable */

/* Zeroed memory, aligned for any type. NULL when there is no memory or limit_bytes is reached. */
void *hd_arena_alloc(struct hd_arena *arena, size_t size_bytes);
void *hd_arena_array(struct hd_arena *arena, size_t count, size_t item_bytes); /* overflow: NULL */
/* An array with room for more than `count` items: `items` itself, or a copy with twice the capacity
 * (64 items at first). The old copy is freed with the arena. NULL without memory; *room, the
 * capacity in items, is then unchanged. */
void *hd_arena_grow(struct hd_arena *arena, void *items, int count, int *capacity,
                    size_t item_bytes);
char *hd_arena_strdup(struct hd_arena *arena, const char *text);
char *hd_arena_printf(struct hd_arena *arena, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool hd_arena_failed(const struct hd_arena *arena);

#endif
