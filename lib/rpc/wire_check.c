#include "rpc/wire_check.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* A message or sub-message that is being checked; like a stack frame of a recursion. */
struct frame {
    const ProtobufCMessageDescriptor *descriptor;
    const uint8_t *end;
    /* set of bits: singular message fields that occurred already */
    uint8_t seen[HD_RPC_WIRE_FIELDS_MAX / 8];
};

struct wire_walk {
    const uint8_t *begin, *at;
    size_t elements;
    size_t depth; /* number of frames in use */
    struct frame frames[HD_RPC_WIRE_DEPTH_MAX];
};

static enum hd_status malformed(const struct wire_walk *walk, const char *what)
{
    return hd_err(HD_INVALID, "malformed %s message: %s at byte %td",
                  walk->frames[walk->depth - 1].descriptor->name, what, walk->at - walk->begin);
}

static enum hd_status push(struct wire_walk *walk, const ProtobufCMessageDescriptor *descriptor,
                           const uint8_t *end)
{
    struct frame *frame;

    if (walk->depth == HD_RPC_WIRE_DEPTH_MAX)
        return hd_err(HD_LIMIT, "message %s is nested deeper than the limit of %d",
                      walk->frames[0].descriptor->name, HD_RPC_WIRE_DEPTH_MAX);
    if (descriptor->n_fields > HD_RPC_WIRE_FIELDS_MAX)
        return hd_err(HD_INTERNAL, "message type %s has %u fields; the limit is %d",
                      descriptor->name, descriptor->n_fields, HD_RPC_WIRE_FIELDS_MAX);
    frame = &walk->frames[walk->depth++];
    frame->descriptor = descriptor;
    frame->end = end;
    memset(frame->seen, 0, sizeof frame->seen);
    return HD_OK;
}

static enum hd_status count(struct wire_walk *walk, size_t elements)
{
    walk->elements += elements;
    if (walk->elements > HD_RPC_WIRE_ELEMENTS_MAX)
        return hd_err(HD_LIMIT, "message %s has more elements than the limit of %d",
                      walk->frames[0].descriptor->name, HD_RPC_WIRE_ELEMENTS_MAX);
    return HD_OK;
}

/* Reads a varint at *at. Returns false if it is longer than max_bytes or does not end before `end`.
 */
static bool read_varint(const uint8_t **at, const uint8_t *end, int max_bytes, uint64_t *ret_value)
{
    uint64_t value = 0;
    const uint8_t *p = *at;

    for (int i = 0; i < max_bytes && p < end; i++, p++) {
        value |= (uint64_t)(*p & 0x7f) << (7 * i);
        if (!(*p & 0x80)) {
            *at = p + 1;
            *ret_value = value;
            return true;
        }
    }
    return false;
}

static size_t packed_elements(ProtobufCType type, const uint8_t *bytes, size_t size_bytes)
{
    size_t elements = 0;

    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return size_bytes / 4;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return size_bytes / 8;
    default: /* packed varints: each ends with a byte whose top bit is clear */
        for (size_t i = 0; i < size_bytes; i++)
            elements += !(bytes[i] & 0x80);
        return elements;
    }
}

/* Checks one field of wire type 2 (length-delimited): a string, bytes or packed numbers; a
 * sub-message is entered, so that its fields are checked next. */
static enum hd_status walk_sized(struct wire_walk *walk, const ProtobufCFieldDescriptor *field)
{
    struct frame *frame = &walk->frames[walk->depth - 1];
    const uint8_t *bytes;
    uint64_t size_bytes;
    size_t index;

    if (!read_varint(&walk->at, frame->end, 10, &size_bytes) ||
        size_bytes > (size_t)(frame->end - walk->at))
        return malformed(walk, "a length beyond the end");
    bytes = walk->at;
    if (field && field->type == PROTOBUF_C_TYPE_MESSAGE) {
        index = (size_t)(field - frame->descriptor->fields);
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            if (frame->seen[index / 8] & (1u << index % 8))
                return malformed(walk, "a second value of a field that holds one message");
            frame->seen[index / 8] |= (uint8_t)(1u << index % 8);
        }
        /* the sub-message begins at walk->at */
        return push(walk, field->descriptor, bytes + size_bytes);
    }

    walk->at += size_bytes;
    if (!field || field->type == PROTOBUF_C_TYPE_BYTES)
        return HD_OK;
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return hd_text_is_utf8(bytes, size_bytes)
                   ? HD_OK
                   : hd_err(HD_INVALID, "%s.%s is not UTF-8 text without NUL",
                            frame->descriptor->name, field->name);
    return count(walk, packed_elements(field->type, bytes, size_bytes));
}

static enum hd_status walk_field(struct wire_walk *walk)
{
    const struct frame *frame = &walk->frames[walk->depth - 1];
    const ProtobufCFieldDescriptor *field;
    uint64_t key, value;
    enum hd_status st;

    /* a key is 29 bits of field number and 3 of wire type: five bytes */
    if (!read_varint(&walk->at, frame->end, 5, &key) || key > UINT32_MAX || key >> 3 == 0)
        return malformed(walk, "no field number");
    st = count(walk, 1);
    if (st)
        return st;
    field = protobuf_c_message_descriptor_get_field(frame->descriptor, (unsigned)(key >> 3));

    switch (key & 7) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        return read_varint(&walk->at, frame->end, 10, &value)
                   ? HD_OK
                   : malformed(walk, "a varint without end");
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        if (frame->end - walk->at < 8)
            return malformed(walk, "a truncated number");
        walk->at += 8;
        return HD_OK;
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        if (frame->end - walk->at < 4)
            return malformed(walk, "a truncated number");
        walk->at += 4;
        return HD_OK;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        return walk_sized(walk, field);
    default: /* groups: obsolete, not supported by protobuf-c */
        return malformed(walk, "an unknown wire type");
    }
}

enum hd_status hd_rpc_wire_check(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                                 size_t size_bytes)
{
    struct wire_walk walk;
    enum hd_status st;

    walk.begin = walk.at = bytes;
    walk.elements = walk.depth = 0;
    st = push(&walk, descriptor, walk.begin + size_bytes);
    while (!st && walk.depth) {
        if (walk.at == walk.frames[walk.depth - 1].end)
            walk.depth--;
        else
            st = walk_field(&walk);
    }
    return st;
}

/* ---- memory of a message ---- */

/* Memory for the parts of one message. The message itself lies directly behind the first block. */
struct message_block {
    struct message_block *next;
    size_t used_bytes, size_bytes; /* of what follows */
};
struct blocks {
    struct message_block *first, *last;
};
enum { SMALL_BYTES = 64 << 10 };
_Static_assert(sizeof(struct message_block) % 8 == 0,
               "what follows a block is aligned for any field");

static struct message_block *add_block(struct blocks *blocks, size_t size_bytes)
{
    struct message_block *block = malloc(sizeof *block + size_bytes);

    if (!block)
        return NULL;
    *block = (struct message_block){.size_bytes = size_bytes};
    if (blocks->last)
        blocks->last->next = block;
    else
        blocks->first = block;
    blocks->last = block;
    return block;
}

static void *allocate(void *user, size_t size_bytes)
{
    struct blocks *blocks = user;
    struct message_block *block = blocks->last;
    void *part;

    size_bytes = (size_bytes + 7) & ~(size_t)7;
    if (block->size_bytes - block->used_bytes < size_bytes)
        block = add_block(blocks, size_bytes > block->size_bytes ? size_bytes : block->size_bytes);
    if (!block)
        return NULL;
    part = (char *)(block + 1) + block->used_bytes;
    block->used_bytes += size_bytes;
    return part;
}

static void keep(void *user, void *part)
{
    (void)user;
    (void)part;
}

static void free_blocks(struct message_block *block)
{
    while (block) {
        struct message_block *next = block->next;

        free(block);
        block = next;
    }
}

void hd_rpc_wire_free(ProtobufCMessage *msg)
{
    if (msg)
        free_blocks((struct message_block *)(void *)msg - 1);
}

enum hd_status hd_rpc_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                                  size_t size_bytes, ProtobufCMessage **ret_msg)
{
    struct blocks blocks = {0};
    ProtobufCAllocator allocator = {.alloc = allocate, .free = keep, .allocator_data = &blocks};
    enum hd_status st = hd_rpc_wire_check(descriptor, bytes, size_bytes);
    ProtobufCMessage *msg;

    if (st)
        return st;
    /* small fields become up to four times as large, so that most messages need one block */
    if (!add_block(&blocks, descriptor->sizeof_message + size_bytes +
                                3 * (size_bytes < SMALL_BYTES ? size_bytes : SMALL_BYTES)))
        return hd_err(HD_NO_MEMORY, "no memory for a %s message", descriptor->name);
    msg = protobuf_c_message_unpack(descriptor, &allocator, size_bytes, bytes);
    if (!msg) {
        free_blocks(blocks.first);
        return hd_err(HD_INVALID, "malformed %s message: a field has the wrong type",
                      descriptor->name);
    }
    assert((void *)msg == (void *)(blocks.first + 1));
    *ret_msg = msg;
    return HD_OK;
}
