#include "flatbuffer.h"

#include <string.h>

/* Returns whether `bytes` bytes lie at a place. */
static bool is_inside(struct flatbuffer *b, size_t place, size_t bytes)
{
    if (place < b->count && bytes <= b->count - place && !b->failed)
        return true;
    b->failed = true;
    return false;
}

int64_t flatbuffer_read(struct flatbuffer *b, size_t place, int bytes)
{
    uint64_t value = 0;

    if (!is_inside(b, place, (size_t)bytes))
        return 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)b->bytes[place + (size_t)i] << (8 * i);
    if (bytes == 4)
        return (int32_t)value;
    return bytes == 2 ? (int16_t)value : (int64_t)value;
}

/* Follows the offset at a place. */
static size_t follow(struct flatbuffer *b, size_t place)
{
    const size_t offset = (size_t)(uint32_t)flatbuffer_read(b, place, 4);

    return is_inside(b, place + offset, 4) && offset ? place + offset : 0;
}

size_t flatbuffer_root(struct flatbuffer *b)
{
    return follow(b, 0);
}

size_t flatbuffer_field(struct flatbuffer *b, size_t table, int field)
{
    const int64_t back = flatbuffer_read(b, table, 4), names = (int64_t)table - back;
    size_t at;

    if (!table || b->failed || names < 0 || !is_inside(b, (size_t)names, 4))
        return 0;
    if (4 + 2 * field + 2 > (uint16_t)flatbuffer_read(b, (size_t)names, 2))
        return 0;
    at = (uint16_t)flatbuffer_read(b, (size_t)names + 4 + 2 * (size_t)field, 2);
    return at && is_inside(b, table + at, 1) ? table + at : 0;
}

size_t flatbuffer_ref(struct flatbuffer *b, size_t table, int field)
{
    const size_t at = flatbuffer_field(b, table, field);

    return at ? follow(b, at) : 0;
}

int64_t flatbuffer_number(struct flatbuffer *b, size_t table, int field, int bytes, int64_t absent)
{
    const size_t at = flatbuffer_field(b, table, field);

    return at ? flatbuffer_read(b, at, bytes) : absent;
}

size_t flatbuffer_list(struct flatbuffer *b, size_t list, size_t item_bytes, size_t *ret_count)
{
    size_t count = list ? (size_t)(uint32_t)flatbuffer_read(b, list, 4) : 0;

    if (count > b->count / item_bytes || (count && !is_inside(b, list + 4, count * item_bytes))) {
        b->failed = true;
        count = 0;
    }
    *ret_count = count;
    return count ? list + 4 : 0;
}

size_t flatbuffer_table(struct flatbuffer *b, size_t first, size_t index)
{
    return follow(b, first + 4 * index);
}

const char *flatbuffer_string(struct flatbuffer *b, size_t table, int field, size_t *ret_count)
{
    const size_t at = flatbuffer_list(b, flatbuffer_ref(b, table, field), 1, ret_count);

    return at ? (const char *)b->bytes + at : "";
}
