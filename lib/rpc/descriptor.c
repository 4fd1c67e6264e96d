#include "rpc/descriptor.h"

#include <stdio.h>
#include <string.h>

/* Field numbers of google/protobuf/descriptor.proto. */
enum {
    SET_FILE = 1,
    FILE_NAME = 1,
    FILE_PACKAGE = 2,
    FILE_IMPORT = 3,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    NAME = 1, /* field `name` of every declaration */
    MESSAGE_FIELD = 2,
    MESSAGE_MESSAGE = 3,
    MESSAGE_ENUM = 4,
    MESSAGE_ONEOF = 8,
    ENUM_VALUE = 2,
    SERVICE_METHOD = 2,
};

enum { NESTING_MAX = 32 };

/* ---- the wire ---- */

static bool take_varint(struct hd_rpc_bytes *rest, uint64_t *ret_value)
{
    uint64_t value = 0;

    for (int shift = 0; rest->size_bytes && shift < 64; shift += 7) {
        uint8_t byte = *rest->data++;

        rest->size_bytes--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret_value = value;
            return true;
        }
    }
    return false;
}

static bool skip(struct hd_rpc_bytes *rest, uint64_t size_bytes)
{
    if (size_bytes > rest->size_bytes)
        return false;
    rest->data += size_bytes;
    rest->size_bytes -= (size_t)size_bytes;
    return true;
}

/* Takes the next length-delimited field (wire type 2) from *rest; skips fields of other wire types.
 * Returns false at the end. */
static bool take_field(struct hd_rpc_bytes *rest, uint64_t *ret_number, struct hd_rpc_bytes *ret)
{
    uint64_t tag, value;

    while (take_varint(rest, &tag)) {
        switch (tag & 7) {
        case 0:
            if (!take_varint(rest, &value))
                return false;
            break;
        case 1:
            if (!skip(rest, 8))
                return false;
            break;
        case 2:
            if (!take_varint(rest, &value) || value > rest->size_bytes)
                return false;
            *ret_number = tag >> 3;
            *ret = (struct hd_rpc_bytes){rest->data, (size_t)value};
            return skip(rest, value);
        case 5:
            if (!skip(rest, 4))
                return false;
            break;
        default:
            return false;
        }
    }
    return false;
}

/* Finds the index-th occurrence of field `number` in a message. Returns false if there is none. */
static bool find_field(struct hd_rpc_bytes message, uint64_t number, size_t index,
                       struct hd_rpc_bytes *ret)
{
    uint64_t found;

    while (take_field(&message, &found, ret))
        if (found == number && index-- == 0)
            return true;
    return false;
}

static bool is_text(struct hd_rpc_bytes bytes, const char *text)
{
    return strlen(text) == bytes.size_bytes && memcmp(bytes.data, text, bytes.size_bytes) == 0;
}

/* ---- files ---- */

bool hd_rpc_descriptor_next(struct hd_rpc_bytes set, struct hd_rpc_bytes *at,
                            struct hd_rpc_bytes *ret_file)
{
    uint64_t number;

    if (!at->data)
        *at = set;
    while (take_field(at, &number, ret_file))
        if (number == SET_FILE)
            return true;
    return false;
}

bool hd_rpc_descriptor_find_file(struct hd_rpc_bytes set, const char *name,
                                 struct hd_rpc_bytes *ret_file)
{
    struct hd_rpc_bytes at = {0}, own;

    while (hd_rpc_descriptor_next(set, &at, ret_file))
        if (find_field(*ret_file, FILE_NAME, 0, &own) && is_text(own, name))
            return true;
    return false;
}

bool hd_rpc_descriptor_import(struct hd_rpc_bytes file, size_t index, char ret_name[256])
{
    struct hd_rpc_bytes name;

    if (!find_field(file, FILE_IMPORT, index, &name))
        return false;
    (void)snprintf(ret_name, 256, "%.*s", (int)name.size_bytes, (const char *)name.data);
    return true;
}

/* ---- symbols ---- */

/* Returns whether `symbol` is the declaration's name, or begins with that name and a dot. Sets
 * *ret_rest to the part of `symbol` behind "NAME.", or to "". */
static bool enters(struct hd_rpc_bytes declaration, const char *symbol, const char **ret_rest)
{
    struct hd_rpc_bytes name;
    char after;

    if (!find_field(declaration, NAME, 0, &name) ||
        strncmp(symbol, (const char *)name.data, name.size_bytes) != 0)
        return false;
    after = symbol[name.size_bytes];
    *ret_rest = symbol + name.size_bytes + (after == '.');
    return after == '\0' || (after == '.' && **ret_rest);
}

/* Returns whether the declaration has a member of this name in its repeated field `number`. */
static bool has_member(struct hd_rpc_bytes declaration, uint64_t number, const char *name)
{
    struct hd_rpc_bytes member, own;
    uint64_t found;

    while (take_field(&declaration, &found, &member))
        if (found == number && find_field(member, NAME, 0, &own) && is_text(own, name))
            return true;
    return false;
}

/* Returns whether the symbol is the enum or one of its values, whose scope is the enum's parent. */
static bool is_enum(struct hd_rpc_bytes declaration, const char *symbol)
{
    struct hd_rpc_bytes name;

    return (find_field(declaration, NAME, 0, &name) && is_text(name, symbol)) ||
           has_member(declaration, ENUM_VALUE, symbol);
}

static enum hd_rpc_symbol find_in_message(struct hd_rpc_bytes message, const char *symbol,
                                          int nesting)
{
    enum hd_rpc_symbol found = HD_RPC_SYMBOL_NONE;
    struct hd_rpc_bytes inner;
    const char *rest;
    uint64_t number;

    if (nesting > NESTING_MAX || !enters(message, symbol, &rest))
        return HD_RPC_SYMBOL_NONE;
    if (!*rest)
        return HD_RPC_SYMBOL_MESSAGE;
    if (has_member(message, MESSAGE_FIELD, rest) || has_member(message, MESSAGE_ONEOF, rest))
        return HD_RPC_SYMBOL_OTHER;
    while (!found && take_field(&message, &number, &inner)) {
        if (number == MESSAGE_MESSAGE)
            found = find_in_message(inner, rest, nesting + 1);
        else if (number == MESSAGE_ENUM && is_enum(inner, rest))
            found = HD_RPC_SYMBOL_OTHER;
    }
    return found;
}

static enum hd_rpc_symbol find_in_file(struct hd_rpc_bytes file, const char *symbol)
{
    enum hd_rpc_symbol found = HD_RPC_SYMBOL_NONE;
    struct hd_rpc_bytes package, inner;
    const char *rest = symbol;
    uint64_t number;

    if (find_field(file, FILE_PACKAGE, 0, &package) && package.size_bytes) {
        if (strncmp(symbol, (const char *)package.data, package.size_bytes) != 0 ||
            symbol[package.size_bytes] != '.')
            return HD_RPC_SYMBOL_NONE;
        symbol += package.size_bytes + 1;
    }
    while (!found && take_field(&file, &number, &inner)) {
        if (number == FILE_MESSAGE)
            found = find_in_message(inner, symbol, 0);
        else if (number == FILE_ENUM && is_enum(inner, symbol))
            found = HD_RPC_SYMBOL_OTHER;
        else if (number == FILE_SERVICE && enters(inner, symbol, &rest) &&
                 (!*rest || has_member(inner, SERVICE_METHOD, rest)))
            found = HD_RPC_SYMBOL_OTHER;
    }
    return found;
}

enum hd_rpc_symbol hd_rpc_descriptor_find_symbol(struct hd_rpc_bytes set, const char *symbol,
                                                 struct hd_rpc_bytes *ret_file)
{
    enum hd_rpc_symbol found = HD_RPC_SYMBOL_NONE;
    struct hd_rpc_bytes at = {0};

    while (!found && hd_rpc_descriptor_next(set, &at, ret_file))
        found = find_in_file(*ret_file, symbol);
    return found;
}
