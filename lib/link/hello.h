/* hello: the first message on every link, in both directions: protocol versions, build and rank.
 *
 * Used by: link.c, supervisor, heddled.   Uses: frame.   Threads: none of its own.
 */
#ifndef HD_LINK_HELLO_H
#define HD_LINK_HELLO_H

#include <stdint.h>

#include "base/status.h"
#include "link/frame.h"

struct hd_hello {
    int64_t protocol_min, protocol_max;
    char build[64];
    int64_t rank; /* rank of the sender; -1: the sender is not a rank */
};

enum hd_status hd_hello_send(int fd, int64_t rank, int timeout_ms);
enum hd_status hd_hello_receive(int fd, int timeout_ms, struct hd_hello *ret_hello);
enum hd_status hd_hello_decode(const struct hd_frame *frame, struct hd_hello *ret_hello);

/* Checks that both sides of a link have a protocol version in common. HD_UNSUPPORTED: they have
 * none; the message names versions and builds of both sides. */
enum hd_status hd_hello_check(const struct hd_hello *theirs, const char *peer);

#endif
