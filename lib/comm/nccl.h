/* nccl: collectives between GPUs, by NCCL.
 *
 * Ranks first connect on the host, by shm or gloo. The nccl endpoint keeps that host endpoint: it
 * broadcasts NCCL's unique id, reports failures and deaths to all ranks, and has the flight record.
 *
 *     hd_comm_open_shm(..., &host)  or  hd_comm_open_gloo(..., &host);
 *     hd_comm_open_nccl(host, &device, &options, &comm);   // owns host, also when it fails
 *     ... comm.h; hd_comm_alloc_registered gives memory of the device ...
 *
 * Sums are ordered, as on every engine: an all-to-all, then each rank adds its slice in rank order
 * in fp32 and rounds once. Results are bitwise identical to shm. A large sum is split into pieces,
 * two at a time on two device streams: while one is added, the next is exchanged
 * (docs/decisions/gradient-reduction.md). With the option `native` NCCL computes the sums; it adds
 * bf16 in bf16 and rounds at every hop.
 *
 * Communicators are blocking; their creation has a deadline, and another thread aborts a blocked
 * call on them (docs/decisions/nccl.md). From NCCL 2.26.2 on, NCCL allocates the registered memory
 * and the staging buffers, and they are registered with every communicator.
 *
 * Differences from the other engines:
 *  - A send waits on the device for its receive and delays everything after it on the stream. Put
 *    sends and receives that cross between hd_comm_begin and hd_comm_end.
 *  - If members launch different operations, they hang until the deadline. The message then names
 *    both operations, if this rank can read the flight records of both.
 *  - all_to_all_v: counts and flag are device memory. The host reads the counts, so its launch
 *    waits for all earlier operations of the stream.
 *  - An operation is complete for the host when it is enqueued on the device. Every 100 ms a
 *    watchdog checks NCCL and the device for errors, the other ranks for failures, a blocked
 *    launch, and the deadline of the oldest operation that has not run (time in which it waits for
 *    compute does not count). A second thread, the listener, checks the other ranks and never calls
 *    the driver. On any failure they report it to all ranks and then abort every communicator,
 *    which ends the kernels that wait on the device. An operation ended by an abort is never
 *    reported as complete.
 *  - hd_comm_free waits, up to the deadline, until the device has run everything.
 *
 * Used by: worker, tests.   Uses: kernels.
 * Threads: as in comm.h; the endpoint has a watchdog thread and a listener thread. */
#ifndef HD_COMM_NCCL_H
#define HD_COMM_NCCL_H

#include "comm/comm.h"
#include "comm/device.h"

struct hd_comm_nccl_options {
    const struct hd_mesh *mesh; /* mesh for whose groups communicators are created when the endpoint
                                   opens; NULL: none */
    bool native;                /* true: NCCL computes the sums of reductions; false: they are
                                   ordered sums */
    int64_t piece_bytes;        /* bytes per piece of an ordered sum (tests); 0:
                                   HD_COMM_NCCL_PIECE */
    int64_t deadline_ms;        /* milliseconds; deadline of waits, and of creating communicators */
};

/* Sets the environment variables that CUDA and NCCL need in a process with several ranks. A value
 * that the user has set is kept, except NCCL_COMM_BLOCKING. Returns false if there is no memory.
 * Must run before CUDA and NCCL are loaded; may run in a child before its exec. */
bool hd_comm_nccl_set_environment(void);

enum hd_status hd_comm_open_nccl(struct hd_comm *host, const struct hd_comm_device *device,
                                 const struct hd_comm_nccl_options *options,
                                 struct hd_comm **ret_comm);

enum {
    HD_COMM_NCCL_PIECE = 32 << 20,     /* bytes of a piece on the streams gather and reduce */
    HD_COMM_NCCL_SMALL_PIECE_PART = 8, /* divisor of HD_COMM_NCCL_PIECE for the other streams, which
                                          rarely sum */
    HD_COMM_NCCL_HALVES = 2            /* pieces of one ordered sum that are in flight at the same
                                          time */
};

/* Returns the bytes of device memory that an endpoint of `world` ranks allocates beside its
 * registered memory: per stream a staging buffer for each piece in flight, and a scratch buffer.
 * NCCL's own memory is hd_traits.communicator_bytes and hd_comm_nccl_connection_bytes. */
int64_t hd_comm_nccl_bytes(int world);

/* ---- what NCCL takes ----
 *
 * A block of a NCCL kernel has 640 threads of 96 registers, so it takes a multiprocessor for itself
 * as long as it waits. Each communicator gets a limit on the blocks of its kernels
 * (ncclConfig_t.maxCTAs): receives of a pipeline, which are posted one program ahead and wait all
 * that time, must never keep a gather or a sum from starting.
 *
 * NCCL has a channel per block, and a connection per channel and peer, which is made when it is
 * first needed: by the rings of gathers, and by sends and receives, of which an ordered sum makes
 * one with each other member. So the limits bound the memory, too. Sends and receives have at most
 * HD_NCCL_P2P_CHANNELS channels a peer (NCCL_MAX_P2P_NCHANNELS, set by
 * hd_comm_nccl_set_environment). Sizes are those of NCCL 2.22 to 2.28 with default buffers: the
 * receiving end has buffers of three protocols (4, 4.7 and 0.5 MiB) in pages of 2 MiB, the sending
 * end a page. */
enum {
    HD_NCCL_P2P_CHANNELS = 8,
    HD_NCCL_SEND_BYTES = 2 << 20,     /* bytes of the sending end of a connection */
    HD_NCCL_RECEIVE_BYTES = 10 << 20, /* bytes of the receiving end of a connection */
    HD_NCCL_TREES = 4,                /* peers of a rank in NCCL's trees, at most (native sums) */
    HD_NCCL_NODE_RANKS = 8,           /* ranks of one node, at most, whose memory a rank reaches */
    HD_NCCL_NETWORK_BYTES = 64 << 20  /* bytes of the buffers that sends and receives of one
                                        communicator share for all peers on other nodes */
};

/* Returns the most blocks of a kernel of a communicator, a power of two: of transfers between
 * pipeline stages (a channel), or of gathers and sums. multiprocessors: of the device, equal on all
 * ranks. */
int hd_comm_nccl_blocks(bool transfers, int multiprocessors);

/* Returns the most channels of its sends and receives with one peer. */
int hd_comm_nccl_channels(int blocks);

/* A communicator, as far as its memory depends on it. */
struct hd_comm_nccl_shape {
    unsigned uses; /* flags of hd_comm_use */
    int size;      /* number of members */
    int stride;    /* distance in ranks of neighbouring members */
    int blocks;    /* hd_comm_nccl_blocks */
    bool native;   /* true: NCCL computes the sums */
};

/* Returns the bytes of the connections that hd_comm_connect makes with these uses. Peers on one
 * node have connections of their own: at most HD_NCCL_NODE_RANKS consecutive ranks are on a node. */
int64_t hd_comm_nccl_connection_bytes(const struct hd_comm_nccl_shape *shape);

#endif
