/* nccl_hello: the first bytes on a connection between processes of the emulated NCCL, and the
 * connections whose first bytes have not all come.
 *
 * A hello says to whom: to the maker of a unique id, who sends the addresses of all ranks back, or
 * to a rank of the same world. It contains the id's random token; without it a connection is
 * closed. In a node the second kind carries the descriptor of shared memory (nccl_ring.h).
 *
 * Used by: nccl_wire.c.   Threads: none of its own; nccl_wire.c holds its lock.
 */
#ifndef HD_CUDASIM_NCCL_HELLO_H
#define HD_CUDASIM_NCCL_HELLO_H

#include <stdbool.h>
#include <stddef.h>

#include "nccl_address.h"

enum { HD_TOKEN_BYTES = 16 };
enum hd_purpose { HD_TO_MEET = 1, HD_TO_EXCHANGE };

struct hd_hello {
    uint32_t magic, purpose; /* magic is this file's business */
    uint8_t token[HD_TOKEN_BYTES];
    int32_t size, rank; /* of the sender in its world */
    int32_t to;         /* the rank of the world, as a process may have several; -1: to meet */
    struct hd_address address;
};

/* An accepted connection that has not said what it is. */
struct hd_guest {
    struct hd_guest *next;
    int fd, memory_fd; /* -1: none */
    size_t got;
    struct hd_hello hello;
};

/* memory_fd: sent along; -1: none. Blocks. */
bool hd_hello_send(int fd, const struct hd_hello *hello, int memory_fd);

/* Adds the connections that wait at a listener to the list. */
void hd_hello_accept(int listener, struct hd_guest **list);

enum hd_heard { HD_HEARD_PART, HD_HEARD_ALL, HD_HEARD_NONSENSE };
enum hd_heard hd_hello_hear(struct hd_guest *guest);

/* Closes what the guest still has. */
void hd_hello_free(struct hd_guest *guest);

#endif
