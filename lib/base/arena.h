/* arena: memory with one lifetime. Pieces are taken one by one and go all at once.
 *
 * An arena grows by blocks; a piece is never moved and never freed alone. Running out of memory is
 * remembered: hd_arena_alloc then returns NULL, and hd_arena_failed tells it once at the end, so
 * that code which builds a structure checks once.
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
    size_t used_bytes, limit_bytes; /* limit 0: none */
    bool failed;
};

/* limit_bytes bounds what hostile input can make the arena take; 0 means no bound. */
void hd_arena_init(struct hd_arena *arena, size_t limit_bytes);
void hd_arena_done(struct hd_arena *arena); /* frees all; the arena may be initialised again */

/* Zeroed memory, aligned for any type. NULL when memory or the limit is used up. */
void *hd_arena_alloc(struct hd_arena *arena, size_t size_bytes);
void *hd_arena_array(struct hd_arena *arena, size_t count, size_t item_bytes); /* overflow: NULL */
/* Room for one more item behind `count`: `items` itself, or a copy in an array of twice the room
 * (64 at first); the old copy stays behind until the arena goes. NULL without memory, *room then as
 * it was. */
void *hd_arena_grow(struct hd_arena *arena, void *items, int count, int *room, size_t item_bytes);
char *hd_arena_strdup(struct hd_arena *arena, const char *text);
char *hd_arena_printf(struct hd_arena *arena, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool hd_arena_failed(const struct hd_arena *arena);

#endif
