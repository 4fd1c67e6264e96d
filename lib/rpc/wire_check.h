/* wire_check: checks that the bytes of a message are safe to unpack.
 *
 * protobuf-c has no limits: it recurses as deep as the message is nested, allocates for every
 * element, and does not check strings. So every received message is first checked here against its
 * descriptor, without recursion or allocation:
 *
 *   1. Sub-messages nest at most HD_RPC_WIRE_DEPTH_MAX deep (bounds the stack).
 *   2. Fields and packed elements, known or not, are at most HD_RPC_WIRE_ELEMENTS_MAX (each may
 *      cost an allocation many times its bytes).
 *   3. A singular message field occurs once (protobuf-c merges repeats at quadratic cost).
 *   4. Strings are UTF-8 without NUL (other languages refuse invalid UTF-8; C strings end at NUL).
 *
 * protobuf-c may still refuse a message that passes, e.g. for a wrong wire type.
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
    HD_RPC_WIRE_FIELDS_MAX = 256, /* limit of fields in one message type */
};

/* Checks the bytes of a message (rules 1 to 4). HD_INVALID: malformed, a repeated singular message
 * field, or a string that is not UTF-8. HD_LIMIT: nested too deep or too many elements. */
enum hd_status hd_rpc_wire_check(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                                 size_t size_bytes);

/* Checks and unpacks a message. All its parts lie together in a few blocks of memory, which
 * hd_rpc_wire_free frees; protobuf_c_message_free_unpacked must not. */
enum hd_status hd_rpc_wire_unpack(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                                  size_t size_bytes, ProtobufCMessage **ret_msg);
void hd_rpc_wire_free(ProtobufCMessage *msg); /* NULL: does nothing */

#endif
