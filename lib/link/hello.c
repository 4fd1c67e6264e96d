#include "link/hello.h"

#include <inttypes.h>

#include "link/link.h"

#ifndef HD_BUILD
#define HD_BUILD "unknown"
#endif

enum hd_status hd_hello_send(int fd, int64_t rank, int timeout_ms)
{
    uint8_t bytes[256];
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    hd_pack_int(&pack, HD_LINK_PROTOCOL_MIN);
    hd_pack_int(&pack, HD_LINK_PROTOCOL_MAX);
    hd_pack_text(&pack, HD_BUILD);
    hd_pack_int(&pack, rank);
    return hd_frame_send(fd, bytes, hd_pack_end(&pack, HD_LINK_MSG_HELLO), timeout_ms);
}

enum hd_status hd_hello_decode(const struct hd_frame *frame, struct hd_hello *ret_hello)
{
    struct hd_unpack unpack;
    struct hd_hello hello;
    enum hd_status st;

    if (frame->type != HD_LINK_MSG_HELLO)
        return hd_err(HD_CORRUPT, "the first message is of type %d, not a hello", frame->type);
    hd_unpack_begin(&unpack, frame);
    hello.protocol_min = hd_unpack_int(&unpack);
    hello.protocol_max = hd_unpack_int(&unpack);
    hd_unpack_text(&unpack, hello.build, sizeof hello.build);
    hello.rank = hd_unpack_int(&unpack);
    st = hd_unpack_end(&unpack);
    if (!st)
        *ret_hello = hello;
    return st;
}

enum hd_status hd_hello_receive(int fd, int timeout_ms, struct hd_hello *ret_hello)
{
    uint8_t bytes[HD_FRAME_BYTES_MAX];
    struct hd_frame frame;
    enum hd_status st = hd_frame_receive(fd, bytes, timeout_ms, &frame);

    return st ? st : hd_hello_decode(&frame, ret_hello);
}

enum hd_status hd_hello_check(const struct hd_hello *theirs, const char *peer)
{
    if (theirs->protocol_min <= HD_LINK_PROTOCOL_MAX &&
        theirs->protocol_max >= HD_LINK_PROTOCOL_MIN)
        return HD_OK;
    return hd_err(HD_UNSUPPORTED,
                  "%s (build %s) speaks link protocol %" PRId64 " to %" PRId64
                  ", this build (%s) speaks %d to %d; install one version of Heddle on this node",
                  peer, theirs->build, theirs->protocol_min, theirs->protocol_max, HD_BUILD,
                  HD_LINK_PROTOCOL_MIN, HD_LINK_PROTOCOL_MAX);
}
