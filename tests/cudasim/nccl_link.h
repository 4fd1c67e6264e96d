/* nccl_link: the connection of the emulated NCCL to one other process, and the messages on it.
 *
 * Within a node bytes go through shared memory (nccl_ring.h) beside a local socket, between nodes
 * through a TCP socket. What cannot be sent at once is queued. When the other process has ended,
 * what had arrived from it is taken first, then the link says that it has ended.
 *
 * Used by: nccl_wire.c.   Threads: none of its own; nccl_wire.c holds its lock.
 */
#ifndef HD_CUDASIM_NCCL_LINK_H
#define HD_CUDASIM_NCCL_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_ring.h"
#include "nccl_wire.h"

enum hd_link_type { HD_LINK_DATA = 1, HD_LINK_COLOR, HD_LINK_BYE };

struct hd_link_header {
    uint32_t magic, type; /* magic is the link's business */
    uint64_t comm, number, bytes;
    int32_t kind, from; /* `from`: rank in comm */
};

struct hd_link {
    int fd;                 /* -1: none */
    struct hd_rings *rings; /* NULL: TCP */
    bool ended;             /* the other process has closed it, or sent what is no message */
    bool has_said_bye;      /* for nccl_wire.c */
    uint64_t sent;          /* bytes */
    struct hd_link_out *first, **last;
    struct hd_link_header header;
    size_t got;                      /* of the message that is coming: header and bytes */
    struct hd_wire_message *message; /* whose header has come */
};

void hd_link_init(struct hd_link *link);
/* Takes the descriptor, and the rings of a process of this node. */
void hd_link_set(struct hd_link *link, int fd, struct hd_rings *rings);
void hd_link_close(struct hd_link *link); /* drops what was not sent */

/* Copies; sends what can be sent at once. Without a connection nothing happens. */
void hd_link_send(struct hd_link *link, const struct hd_link_header *header, const void *bytes);
void hd_link_flush(struct hd_link *link);
bool hd_link_is_flushed(const struct hd_link *link);
short hd_link_events(const struct hd_link *link); /* what poll is to wait for */

/* The next whole message, which the caller frees, and its header. NULL: none has come yet, or
 * link->ended. */
struct hd_wire_message *hd_link_take(struct hd_link *link, struct hd_link_header *ret_header);

#endif
