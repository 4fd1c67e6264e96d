#include "thrift.h"

enum { DEPTH_MAX = 16 };

static unsigned read_byte(struct thrift *t)
{
    if (t->at == t->end) {
        t->failed = true;
        return 0;
    }
    return *t->at++;
}

uint64_t thrift_varint(struct thrift *t)
{
    uint64_t value = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        const unsigned byte = read_byte(t);

        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80))
            return value;
    }
    t->failed = true;
    return 0;
}

static int64_t zigzag(struct thrift *t)
{
    const uint64_t v = thrift_varint(t);

    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

bool thrift_next(struct thrift *t, struct thrift_field *f)
{
    const unsigned head = t->failed ? 0 : read_byte(t);

    if (t->failed || !(head & 15))
        return false;
    f->type = head & 15;
    f->id = head >> 4 ? (int)((unsigned)f->id + (head >> 4)) : (int)(int16_t)zigzag(t);
    return !t->failed;
}

static void skip_bytes(struct thrift *t, uint64_t count)
{
    if (count > (uint64_t)(t->end - t->at))
        t->failed = true;
    else
        t->at += count;
}

static void skip_value(struct thrift *t, enum thrift_type type, bool in_list, int depth)
{
    struct thrift_field f = {.id = 0};
    enum thrift_type of;
    uint64_t count;

    if (depth > DEPTH_MAX) {
        t->failed = true;
        return;
    }
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        if (in_list)
            skip_bytes(t, 1);
        return;
    case THRIFT_I8:
        skip_bytes(t, 1);
        return;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        (void)thrift_varint(t);
        return;
    case THRIFT_DOUBLE:
        skip_bytes(t, 8);
        return;
    case THRIFT_BYTES:
        skip_bytes(t, thrift_varint(t));
        return;
    case THRIFT_LIST:
    case THRIFT_SET:
        count = thrift_list(t, (struct thrift_field){.type = THRIFT_LIST}, &of);
        while (count-- && !t->failed)
            skip_value(t, of, true, depth + 1);
        return;
    case THRIFT_MAP:
        count = thrift_varint(t);
        of = count ? read_byte(t) : 0;
        while (count-- && !t->failed) {
            skip_value(t, of >> 4, true, depth + 1);
            skip_value(t, of & 15, true, depth + 1);
        }
        return;
    case THRIFT_STRUCT:
        while (thrift_next(t, &f))
            skip_value(t, f.type, false, depth + 1);
        return;
    default:
        t->failed = true;
    }
}

void thrift_skip(struct thrift *t, struct thrift_field f)
{
    skip_value(t, f.type, false, 0);
}

int64_t thrift_int(struct thrift *t, struct thrift_field f)
{
    if (f.type == THRIFT_I16 || f.type == THRIFT_I32 || f.type == THRIFT_I64)
        return zigzag(t);
    if (f.type == THRIFT_I8)
        return (signed char)read_byte(t);
    thrift_skip(t, f);
    return 0;
}

bool thrift_bool(struct thrift *t, struct thrift_field f)
{
    if (f.type != THRIFT_TRUE && f.type != THRIFT_FALSE)
        thrift_skip(t, f);
    return f.type == THRIFT_TRUE;
}

const char *thrift_bytes(struct thrift *t, struct thrift_field f, size_t *ret_count)
{
    const unsigned char *at;
    uint64_t count;

    *ret_count = 0;
    if (f.type != THRIFT_BYTES) {
        thrift_skip(t, f);
        return "";
    }
    count = thrift_varint(t);
    at = t->at;
    skip_bytes(t, count);
    if (t->failed)
        return "";
    *ret_count = (size_t)count;
    return (const char *)at;
}

size_t thrift_list(struct thrift *t, struct thrift_field f, enum thrift_type *ret_type)
{
    unsigned head;
    uint64_t count;

    *ret_type = THRIFT_STOP;
    if (f.type != THRIFT_LIST) {
        thrift_skip(t, f);
        return 0;
    }
    head = read_byte(t);
    count = head >> 4 == 15 ? thrift_varint(t) : head >> 4;
    *ret_type = head & 15;
    if (count > (uint64_t)(t->end - t->at))
        t->failed = true;
    return t->failed ? 0 : (size_t)count;
}
