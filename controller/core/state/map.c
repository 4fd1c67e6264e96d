/* map: open addressing with linear probing; at most 3/4 full; keys are never removed. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "controller/core/state/state.h"

void core_map_done(struct core_map *map)
{
    for (size_t i = 0; i < map->size; i++)
        free(map->slots[i].key);
    free(map->slots);
    *map = (struct core_map){0};
}

/* Returns the slot of `key`, which has this hash, or the empty slot where it belongs. */
static struct core_map_slot *find(const struct core_map *map, const char *key, uint64_t hash)
{
    size_t i = hash & (map->size - 1);

    while (map->slots[i].key && (map->slots[i].hash != hash || strcmp(map->slots[i].key, key) != 0))
        i = (i + 1) & (map->size - 1);
    return &map->slots[i];
}

bool core_map_get(const struct core_map *map, const char *key, uint64_t *ret_value)
{
    const struct core_map_slot *slot = map->size ? find(map, key, hd_random_hash(key)) : NULL;

    if (!slot || !slot->key)
        return false;
    *ret_value = slot->value;
    return true;
}

static bool grow_map(struct core_map *map)
{
    struct core_map bigger = {.size = map->size ? map->size * 2 : 64, .count = map->count};

    bigger.slots = calloc(bigger.size, sizeof *bigger.slots);
    if (!bigger.slots)
        return false;
    for (size_t i = 0; i < map->size; i++) {
        if (map->slots[i].key)
            *find(&bigger, map->slots[i].key, map->slots[i].hash) = map->slots[i];
    }
    free(map->slots);
    *map = bigger;
    return true;
}

bool core_map_put(struct core_map *map, const char *key, uint64_t value)
{
    const uint64_t hash = hd_random_hash(key);
    struct core_map_slot *slot;

    if (map->count * 4 >= map->size * 3 && !grow_map(map))
        return false;
    slot = find(map, key, hash);
    if (!slot->key) {
        slot->hash = hash;
        slot->key = strdup(key);
        if (!slot->key)
            return false;
        map->count++;
    }
    slot->value = value;
    return true;
}
