/* grow: arrays of malloc that grow by doubling. (hd_arena_grow does it in an arena.)
 *
 * Used by: controller/cli.   Uses: libc.   Threads: a pure function of its arguments.
 */
#ifndef HD_BASE_GROW_H
#define HD_BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for one more item behind the `count` that an array has. array: address of the pointer to its
 * first item, NULL when the array is empty; the caller frees it. Returns false if there is no memory; the
 * array is then as it was. */
static inline bool hd_grow(void *array, size_t count, size_t *capacity, size_t item_bytes)
{
    const size_t more = *capacity ? 2 * *capacity : 16;
    void *items;

    if (count < *capacity)
        return true;
    memcpy(&items, array, sizeof items);
    items = reallocarray(items, more, item_bytes);
    if (!items)
        return false;
    memcpy(array, &items, sizeof items);
    *capacity = more;
    return true;
}

#endif
