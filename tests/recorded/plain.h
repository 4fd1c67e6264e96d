/* plain: messages as their bytes alone, by the field numbers of an old build.
 *
 * A recorded conversation must be read without the code that is generated of today's .proto files:
 * a field that was given another number today would be read by that number on both sides, and no
 * test would notice. So messages cross lib/rpc here as the type `plain_message`, which knows no
 * field and keeps all bytes, and are read by a *protocol*: a text that lists every message, field,
 * enum and RPC of the build that was recorded (`recorded_player protocol` prints it).
 *
 * Used by: tests/recorded.   Uses: base, proto, protobuf-c.   Threads: none of its own.
 */
#ifndef HD_TESTS_RECORDED_PLAIN_H
#define HD_TESTS_RECORDED_PLAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/text.h"

/* ---- a message without known fields ---- */

extern const ProtobufCMessageDescriptor plain_message;

struct plain_bytes {
    uint8_t *data;
    size_t size_bytes;
};

/* The bytes of a message of type plain_message, as they came. The caller frees `data`. */
struct plain_bytes plain_pack(const ProtobufCMessage *message);
/* The reverse; the caller frees it with protobuf_c_message_free_unpacked(.., NULL). */
ProtobufCMessage *plain_unpack(const struct plain_bytes *bytes);

/* ---- the protocol of an old build ---- */

struct protocol;

/* Reads a file that plain_write_protocol wrote. A failure ends the program. */
struct protocol *protocol_read(const char *path);
void protocol_free(struct protocol *protocol);

struct protocol_rpc {
    char path[96], request[96], response[96];
};
const struct protocol_rpc *protocol_find_rpc(const struct protocol *protocol, const char *path);
const struct protocol_rpc *protocol_rpcs(const struct protocol *protocol, size_t *ret_count);

/* All messages, enums and RPCs of this build, as text. */
void plain_write_protocol(struct hd_text *text);

/* Appends a line `PATH=VALUE` for each field: `job.attempts[0].number=1`. A field that the protocol
 * does not know is left out; a field of another wire type than the protocol's is the line
 * `PATH=(wire type N)`; bytes that are no message are `PATH=(malformed)`. Fields of one message are
 * in the order of their numbers. */
void plain_print(const struct protocol *protocol, const char *message,
                 const struct plain_bytes *bytes, struct hd_text *text);

/* A field that may be changed: a number, or a string or bytes. */
struct plain_field {
    const char *path; /* as plain_print says it, without [indices] */
    bool is_text;
    uint64_t number;     /* may be changed */
    struct hd_text text; /* may be changed */
};

/* A copy of the message in which `edit` has changed what it wanted. Unknown fields are copied. The
 * caller frees `data`. */
struct plain_bytes plain_edit(const struct protocol *protocol, const char *message,
                              const struct plain_bytes *bytes,
                              void (*edit)(void *user, struct plain_field *field), void *user);

#endif
