/* frame: the encoding of one message, on a local socket or in an append-only file.
 *
 *     offset  0         4         6         8          12
 *             size u32  type u16  zero u16  check u32  payload, `size` bytes
 *
 * Numbers are little-endian. `check` is a checksum of type and payload. On SOCK_SEQPACKET sockets
 * one packet is one frame; in files the checksum detects a frame that a crash left incomplete.
 * Payloads are packed and unpacked field by field. An error there is sticky and is checked once, by
 * hd_pack_end or hd_unpack_end. All input is treated as untrusted.
 *
 * Used by: link's own files, supervisor, heddled.   Uses: base.   Threads: none of its own.
 */
#ifndef HD_LINK_FRAME_H
#define HD_LINK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

enum {
    HD_FRAME_HEAD_BYTES = 12,
    HD_FRAME_BYTES_MAX = 64 << 10, /* most bytes of one frame, head and payload together */
    HD_FRAME_PAYLOAD_MAX = HD_FRAME_BYTES_MAX - HD_FRAME_HEAD_BYTES,
};

/* A decoded frame; `payload` points into the bytes given to hd_frame_decode. */
struct hd_frame {
    uint16_t type;
    const uint8_t *payload;
    size_t payload_bytes;
};

/* A frame being written into the caller's memory: hd_pack_begin reserves the head, the other
 * functions append fields. */
struct hd_pack {
    uint8_t *bytes;
    size_t len_bytes, size_bytes;
    bool failed; /* true: a field did not fit into the caller's memory */
};

void hd_pack_begin(struct hd_pack *pack, void *bytes, size_t size_bytes);
void hd_pack_int(struct hd_pack *pack, int64_t value);
void hd_pack_real(struct hd_pack *pack, double value);
void hd_pack_bytes(struct hd_pack *pack, const void *bytes, size_t count);
void hd_pack_text(struct hd_pack *pack, const char *text);
/* Writes the frame's head, after all fields. Returns the bytes of the whole frame; 0: a field did
 * not fit. */
size_t hd_pack_end(struct hd_pack *pack, uint16_t type);

/* A frame whose fields are being read, in the order of packing. After a failure every field is 0 or
 * empty. */
struct hd_unpack {
    const uint8_t *bytes;
    size_t at_bytes, len_bytes;
    bool failed;
};

void hd_unpack_begin(struct hd_unpack *unpack, const struct hd_frame *frame);
int64_t hd_unpack_int(struct hd_unpack *unpack);
double hd_unpack_real(struct hd_unpack *unpack);
/* Returns the address, inside the frame, of the next field's bytes, and sets *ret_count to their
 * number. NULL: a failure, such as a field of more than `max` bytes. */
const uint8_t *hd_unpack_bytes(struct hd_unpack *unpack, size_t max, size_t *ret_count);
/* Copies the next field, a text, to ret_text[size_bytes]. A text that is too long, or contains a
 * NUL, is a failure. */
void hd_unpack_text(struct hd_unpack *unpack, char *ret_text, size_t size_bytes);
/* Checks that all fields of the frame were read. HD_CORRUPT: reading a field failed, or the payload
 * has more fields. */
enum hd_status hd_unpack_end(const struct hd_unpack *unpack);

/* Decodes the frame at the start of `bytes`. HD_OK: *ret_size is the frame's size in bytes.
 * HD_UNAVAILABLE: the frame is incomplete, more bytes are needed. HD_CORRUPT: the frame is
 * damaged. */
enum hd_status hd_frame_decode(const uint8_t *bytes, size_t count, struct hd_frame *ret_frame,
                               size_t *ret_size);

/* Sends one frame as one packet. If the socket buffer is full: timeout_ms 0 returns HD_UNAVAILABLE
 * at once, else HD_TIMEOUT after timeout_ms. HD_ABORTED: the peer closed. Never raises SIGPIPE. */
enum hd_status hd_frame_send(int fd, const void *frame, size_t frame_bytes, int timeout_ms);

/* Receives one packet into bytes[HD_FRAME_BYTES_MAX] and decodes it. If there is no packet:
 * timeout_ms 0 returns HD_UNAVAILABLE at once, else HD_TIMEOUT after timeout_ms. HD_ABORTED: the
 * peer closed. HD_CORRUPT: the packet is not one valid frame; close the connection. */
enum hd_status hd_frame_receive(int fd, uint8_t *bytes, int timeout_ms, struct hd_frame *ret_frame);

/* Listen on and connect to a Unix socket DIR/NAME. DIR may be longer than sun_path (107 bytes): the
 * address uses /proc/self/fd. hd_frame_listen replaces an old socket. The descriptors are
 * close-on-exec and non-blocking. `other`: the one user besides this one and root who may connect;
 * (uid_t)-1: none. The socket file has mode 0600, or with `other` 0660 whatever the umask is: the
 * folder's access list admits that user, as far as its mask, the group bits, allows. */
enum hd_status hd_frame_listen(const char *dir, const char *name, uid_t other, int *ret_fd);
enum hd_status hd_frame_connect(const char *dir, const char *name, int *ret_fd);
/* Accepts a connection. HD_UNAVAILABLE: no connection is waiting. HD_DENIED: the peer is neither
 * this user, nor root, nor `other`; its connection was closed. */
enum hd_status hd_frame_accept(int listen_fd, uid_t other, int *ret_fd);

#endif
