/* frame: bytes that carry one message, on a local socket or in a file.
 *
 *     offset  0         4      6       8       12
 *             size u32  type   zero    check   size bytes of payload
 *
 * `size` counts the payload alone, `check` is a hash of type and payload, all numbers are little
 * endian. The same form goes over SOCK_SEQPACKET sockets, one frame a packet, and into files that
 * are only appended to, where the check finds the torn end that a crash leaves. Payloads are packed
 * field by field; reading past the end or a text without its bytes is remembered, not fatal, and
 * asked once at the end. Nothing here trusts a byte that it reads.
 *
 * Used by: link's own files, supervisor, heddled.   Uses: base.   Threads: none of its own.
 */
#ifndef HD_LINK_FRAME_H
#define HD_LINK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    HD_FRAME_HEAD_BYTES = 12,
    HD_FRAME_BYTES_MAX = 64 << 10, /* head and payload */
    HD_FRAME_PAYLOAD_MAX = HD_FRAME_BYTES_MAX - HD_FRAME_HEAD_BYTES,
};

/* A received frame; `payload` points into the bytes that were given to the decoder. */
struct hd_frame {
    uint16_t type;
    const uint8_t *payload;
    size_t payload_bytes;
};

/* Writes fields one after the other into the caller's memory, behind room for the head. */
struct hd_pack {
    uint8_t *bytes;
    size_t len_bytes, size_bytes;
    bool failed; /* the memory was too small */
};

void hd_pack_begin(struct hd_pack *pack, void *bytes, size_t size_bytes);
void hd_pack_int(struct hd_pack *pack, int64_t value);
void hd_pack_real(struct hd_pack *pack, double value);
void hd_pack_bytes(struct hd_pack *pack, const void *bytes, size_t count);
void hd_pack_text(struct hd_pack *pack, const char *text);
/* Fills in the head. Returns the length of the whole frame, 0 when it did not fit. */
size_t hd_pack_end(struct hd_pack *pack, uint16_t type);

/* Reads fields back in the same order. After a failure every field reads as 0 or empty. */
struct hd_unpack {
    const uint8_t *bytes;
    size_t at_bytes, len_bytes;
    bool failed;
};

void hd_unpack_begin(struct hd_unpack *unpack, const struct hd_frame *frame);
int64_t hd_unpack_int(struct hd_unpack *unpack);
double hd_unpack_real(struct hd_unpack *unpack);
/* The next counted bytes, in place; NULL after a failure. More than `max` is a failure. */
const uint8_t *hd_unpack_bytes(struct hd_unpack *unpack, size_t max, size_t *ret_count);
/* The next text into ret_text[size_bytes]; longer than that, or with a NUL inside, is a failure. */
void hd_unpack_text(struct hd_unpack *unpack, char *ret_text, size_t size_bytes);
/* HD_OK when every field was there and nothing is left over, else HD_CORRUPT. */
enum hd_status hd_unpack_end(const struct hd_unpack *unpack);

/* Looks at the front of `bytes`. HD_OK: a whole, sound frame of *ret_size bytes. HD_UNAVAILABLE: it
 * may become one when more bytes come. HD_CORRUPT: it never will. */
enum hd_status hd_frame_decode(const uint8_t *bytes, size_t count, struct hd_frame *ret_frame,
                               size_t *ret_size);

/* Sends one frame as one packet. timeout_ms 0 never waits: HD_UNAVAILABLE when the peer is behind;
 * > 0 waits that long for room (HD_TIMEOUT). HD_ABORTED: the peer is gone. No SIGPIPE. */
enum hd_status hd_frame_send(int fd, const void *frame, size_t frame_bytes, int timeout_ms);

/* Receives one packet into bytes[HD_FRAME_BYTES_MAX] and decodes it. timeout_ms 0 never waits:
 * HD_UNAVAILABLE when there is none; > 0: HD_TIMEOUT. HD_ABORTED: the peer closed its end.
 * HD_CORRUPT: the packet is not one sound frame; the connection is best closed. */
enum hd_status hd_frame_receive(int fd, uint8_t *bytes, int timeout_ms, struct hd_frame *ret_frame);

/* Unix sockets whose directory may have any length: they are reached through a descriptor of the
 * directory, since sun_path holds 107 bytes. The socket file gets mode 0600. The descriptors are
 * close-on-exec and do not block. */
enum hd_status hd_frame_listen(const char *dir, const char *name, int *ret_fd);
enum hd_status hd_frame_connect(const char *dir, const char *name, int *ret_fd);
/* HD_UNAVAILABLE when nobody waits; HD_DENIED when the peer runs as another user (it is closed). */
enum hd_status hd_frame_accept(int listen_fd, int *ret_fd);

#endif
