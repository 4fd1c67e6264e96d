/* gloo_internal: shared by the files of the engine gloo.
 *
 *   gloo.c             open and close, headers, failures
 *   gloo_head.c        message headers: fill, send, store, find
 *   gloo_collective.c  one collective of a group, step by step
 *   gloo_pair.c        one send or receive, step by step
 *   gloo_flow.c        a transfer of bytes to or from one peer, in chunks
 *   gloo_listener.c    connecting the ranks, before the endpoint is open
 *   gloo_link.cc       the C interface of the library gloo
 *
 * A rank that begins an operation sends a header to every other member: which operation it is, its
 * sizes, and the slot (gloo's message tag) on which its bytes will come. Headers of one peer arrive
 * in order and stay in its inbox until the operation begins here. Bytes are sent only when the
 * headers of both sides agree, so a message never arrives at a buffer of another size.
 *
 * Invariants
 *  1. At most GLOO_SENDS_MAX sends to one peer are not received yet.
 *  2. A stream has one collective in progress, and none ends before all members have entered, so a
 *     peer is at most one collective per stream ahead. With 1., an inbox never holds more than
 *     GLOO_SENDS_MAX + 2 * HD_COMM_COLLECTIVE_STREAMS headers. For the same reason a rank that has
 *     received all its answers has at most 2 * HD_COMM_COLLECTIVE_STREAMS headers in flight. That
 *     is fewer than GLOO_HEADERS_IN, so its abort message cannot overtake a header.
 *  3. A rank sends at most one abort message: that it failed (with the first reason it knows), or
 *     that it left. A connection that ends without an abort message means that the peer died.
 *
 * Used by: gloo*.c. */
#ifndef HD_COMM_GLOO_INTERNAL_H
#define HD_COMM_GLOO_INTERNAL_H

#include <pthread.h>

#include "base/pieces.h"
#include "comm/comm_internal.h"
#include "comm/gloo_link.h"
#include "comm/gloo_listener.h"

enum {
    GLOO_HEADERS_IN = 10,  /* receives posted with gloo for headers of one peer */
    GLOO_HEADERS_OUT = 48, /* headers to one peer that may be queued but unsent */
    GLOO_SENDS_MAX = 32,   /* sends to one peer that the peer has not received */
    /* headers of one peer stored until their operation begins here */
    GLOO_INBOX = GLOO_SENDS_MAX + 2 * HD_COMM_COLLECTIVE_STREAMS,
    GLOO_WINDOW = 4, /* chunks of one flow that may be in flight */
    /* most bytes of one chunk of a flow, which is one message of gloo */
    GLOO_CHUNK_MAX = HD_PIECE(512 * 1024, 5 * 1024),
    GLOO_STAGE_MAX = 4 << 20, /* bytes of a stream's staging buffer for reductions */
    GLOO_STAGES = 2, /* chunks per peer in the staging buffer: one is summed while one arrives */
    GLOO_STEP_BYTES = HD_PIECE(128 * 1024, 1024), /* bytes read by one step that copies or adds */
    GLOO_LINGER_MS = 2000, /* milliseconds that closing waits at most until the peers have closed
                              their connections */
};

_Static_assert((int)GLOO_HEADERS_IN > 2 * (int)HD_COMM_COLLECTIVE_STREAMS, "see invariant 2");

enum { GLOO_SLOT_HEADER = 0, GLOO_SLOT_ABORT_MESSAGE = 1, GLOO_SLOT_FIRST = 16 };

/* A message header, which describes one operation to a peer. In an array of headers, space for the
 * counts of the largest all_to_all_v follows each header; the counts are sent only with the header
 * of an all_to_all_v. */
struct gloo_header {
    uint64_t group_id, seq, slot; /* gloo's message tag for the operation's bytes; the sums of an
                                     all_reduce use slot + 1 */
    char group[HD_COMM_GROUP_NAME_MAX];
    struct hd_comm_signature signature;
};
struct gloo_headers {
    char *at;
    size_t each_bytes;
};

static inline size_t gloo_header_bytes(int world)
{
    const size_t counts =
        world < HD_COMM_ROW_MEMBERS_MAX ? (size_t)world : (size_t)HD_COMM_ROW_MEMBERS_MAX;

    return sizeof(struct gloo_header) + (counts + 1) / 2 * 2 * sizeof(int32_t);
}

static inline struct gloo_header *gloo_header_of(const struct gloo_headers *headers, size_t i)
{
    return (struct gloo_header *)(headers->at + i * headers->each_bytes);
}

static inline int32_t *gloo_counts_of(const struct gloo_header *header)
{
    return (int32_t *)(header + 1);
}

enum gloo_abort_message_kind { GLOO_FAILED = 1, GLOO_DIED, GLOO_LEFT };

struct gloo_abort_message {
    uint32_t kind, status;
    int32_t rank; /* the rank that failed or died first */
    char text[HD_COMM_REASON_MAX];
};

/* A ticket (a buffer known to gloo, gloo_link.h) that covers all of this rank's data memory: the
 * registered region and the staging buffers. */
struct gloo_data {
    struct hd_gloo_ticket *ticket;
    const char *base; /* the start of the memory that the ticket covers */
    struct gloo_data *next_free, *next;
};

/* A transfer of bytes to or from one peer, in chunks that are sent in order under one slot (gloo's
 * message tag). */
struct gloo_flow {
    bool sends;
    int peer; /* rank of the other end */
    uint64_t slot;
    size_t at;            /* offset of the first byte in data memory */
    int64_t bytes, chunk; /* bytes of the flow; bytes of each chunk but the last */
    int64_t ready;        /* bytes of the flow, from its start, that may be posted with gloo now */
    int addresses;        /* number of chunks in the staging ring: chunk k is at index k %
                             addresses; 0: there is no ring, the chunks are contiguous */
    int64_t posted, done; /* bytes posted with gloo; bytes whose transfer has completed */
    struct gloo_data *in_flight[GLOO_WINDOW]; /* tickets in use; that of chunk k is at k %
                                                 GLOO_WINDOW */
};

/* The collective that a stream has in progress. Its arrays have an entry per member, by the
 * member's index in the group. */
struct gloo_run {
    struct gloo_headers headers;
    struct gloo_flow *out, *in, *result_out, *result_in;
    uint64_t *slots;              /* gloo's message tag under which this rank sends to each
                                     member */
    int64_t begin, summed, bytes; /* reductions: the slice that this rank sums, in bytes of send */
};

struct gloo_peer {
    struct gloo_headers in, out, inbox; /* arrays of GLOO_HEADERS_IN, GLOO_HEADERS_OUT and
                                           GLOO_INBOX headers */
    bool used[GLOO_INBOX];              /* used[i]: entry i of the inbox holds a header */
    struct hd_gloo_ticket *in_ticket[GLOO_HEADERS_IN], *out_ticket[GLOO_HEADERS_OUT];
    bool out_pending[GLOO_HEADERS_OUT];
    uint64_t in_next, out_next;     /* number of headers received from the peer; number sent to
                                       it */
    struct gloo_header latest;      /* last header received from the peer, without counts; kind
                                       HD_COMM_KIND_COUNT: none yet */
    struct hd_comm_entered entered; /* newest collective per group that the peer's headers have
                                       announced */
    uint64_t slot_next;
    int sends; /* number of sends to this peer that it has not received yet */
    struct gloo_abort_message abort_message;
    struct hd_gloo_ticket *abort_message_ticket, *abort_message_out_ticket;
    _Atomic bool abort_message_done; /* true: the peer's abort message has arrived, or its
                                        connection has ended without one */
    bool left;                       /* set by the thread that owns the endpoint: the peer has
                                        closed its endpoint (abort message GLOO_LEFT) */
    bool ended; /* while closing: all bytes for this peer are sent, and the sending side of the
                   connection is shut down */
};

struct gloo_state {
    struct hd_gloo_link *link; /* link to the other ranks; NULL: a world of one, which has none */
    struct hd_comm_doorbell doorbell;
    _Atomic uint64_t events;            /* number of completions and ended connections */
    uint64_t events_seen;               /* `events` when the owner last checked the peers */
    _Atomic uint64_t events_checked;    /* `events` when any thread last checked for a failure */
    pthread_mutex_t abort_message_lock; /* held while abort messages of peers are read */
    _Atomic int abort_message_state;    /* state of `abort_message`: 0: none, 1: being written, 2:
                                           written */
    bool abort_message_sent;            /* true: this rank's abort message was sent; written by the
                                           thread that set abort_message_state to 1, later by
                                           engine_close */
    struct gloo_abort_message abort_message; /* this rank's only abort message */
    char *data; /* registered memory, then the staging buffers of the streams */
    size_t data_bytes, stage_at, stage_bytes;
    struct gloo_data *free_data, *all_data;
    struct hd_comm_flight flight;
    struct gloo_address *addresses; /* [world]; address and node name of each rank */
    struct gloo_run runs[HD_COMM_COLLECTIVE_STREAMS];
    struct gloo_peer peers[]; /* [world]; entry of this rank: messages to itself. The arrays to
                                 which lay_out of gloo.c points follow in memory */
};

static inline struct gloo_state *gloo_of(const struct hd_comm *comm)
{
    return comm->engine_state;
}

static inline struct gloo_peer *gloo_peer_of(const struct hd_comm *comm, int rank)
{
    return &gloo_of(comm)->peers[rank];
}

static inline size_t gloo_offset(const struct hd_comm *comm, const char *at)
{
    return at ? (size_t)(at - comm->registered) : 0;
}

/* ---- gloo.c ---- */

/* Returns whether a header can be sent to the peer now: fewer than GLOO_HEADERS_OUT are queued. */
bool gloo_header_may_go(struct gloo_peer *peer);

/* Sends the header of `op` to `rank`; sets *ret_slot to the slot (message tag) under which this
 * rank will send the operation's bytes. gloo_header_may_go must be true. */
void gloo_header_send(const struct hd_comm_op *op, int rank, uint64_t *ret_slot);
enum hd_status gloo_header_fill(const struct hd_comm_op *op, struct gloo_header *ret_header);

/* gloo_header_find returns the peer's header for operation `seq` of a group (with `send`: for send
 * number `seq` from the peer to this rank); NULL: it has not arrived. The header stays in the inbox
 * until gloo_header_drop. gloo_header_keep copies a header into the inbox; NULL: the inbox is
 * full. */
struct gloo_header *gloo_header_find(struct gloo_peer *peer, uint64_t group_id, uint64_t seq,
                                     bool send);
void gloo_header_drop(struct gloo_peer *peer, struct gloo_header *header);
struct gloo_header *gloo_header_keep(struct gloo_peer *peer, const struct gloo_header *header);

/* ---- gloo_flow.c ---- */

/* Returns a free gloo_data, which gives access to this rank's data memory; gloo_data_give puts it
 * back. NULL: no memory. */
struct gloo_data *gloo_data_take(struct hd_comm *comm);
void gloo_data_give(struct hd_comm *comm, struct gloo_data *data);
void gloo_data_free(struct gloo_state *gloo);

/* Posts the next chunks of a flow with gloo and counts those that have completed; sets *moved to
 * true if there was one of either. */
enum hd_status gloo_flow_step(struct hd_comm *comm, struct gloo_flow *flow, bool *moved);
static inline bool gloo_flow_done(const struct gloo_flow *flow)
{
    return flow->done == flow->bytes;
}

/* ---- operations ---- */

enum hd_status gloo_collective_step(struct hd_comm_op *op, bool *moved);
int gloo_collective_missing(struct hd_comm_op *op, const char **ret_what);
enum hd_status gloo_send_step(struct hd_comm_op *op, bool *moved);
enum hd_status gloo_recv_step(struct hd_comm_op *op, bool *moved);
int gloo_pair_missing(struct hd_comm_op *op, const char **ret_what);
const struct hd_comm_signature *gloo_signature(const struct hd_comm_op *op, int member);
const int32_t *gloo_send_counts(const struct hd_comm_op *op, int member);

#endif
