/* wire_check: bytes that are safe to unpack.
 *
 * protobuf-c unpacks what it gets: it recurses as deep as the message says, allocates for every
 * element that the message claims, and hands out strings without looking at them. So every received
 * message is walked here first, against its descriptor, without recursion and without allocating:
 *
 *   - sub-messages nest at most HD_RPC_WIRE_DEPTH_MAX deep (the stack stays bounded),
 *   - fields and packed elements, known or not, are at most HD_RPC_WIRE_ELEMENTS_MAX
 *     (each may cost an allocation many times its bytes),
 *   - a field that holds one message comes once (protobuf-c merges repeats at quadratic cost),
 *   - strings are UTF-8 without NUL (a peer in another language would refuse them; C would cut).
 *
 * A message that passes may still be refused by protobuf-c, e.g. for a wrong wire type.
 *
 * Used by: rpc, and others that unpack stored messages.   Uses: base, protobuf-c.   Threads: any.
 */
#ifndef HD_RPC_WIRE_CHECK_H
#define HD_RPC_WIRE_CHECK_H

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "base/status.h"

enum {
    HD_RPC_WIRE_DEPTH_MAX = 32,
    HD_RPC_WIRE_ELEMENTS_MAX = 100000,
    HD_RPC_WIRE_FIELDS_MAX = 256, /* fields that one message type may have */
};

/* HD_INVALID: malformed, or a string that is not text. HD_LIMIT: too deep or too many elements. */
enum hd_status hd_rpc_wire_check(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                                 size_t size_bytes);

/* Checks and unpacks. ret_msg is freed with protobuf_c_message_free_unpacked(msg, NULL). */
enum hd_status hd_rpc_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                                  size_t size_bytes, ProtobufCMessage **ret_msg);

#endif
