/* gloo_internal: what the files of the engine gloo share.
 *
 *   gloo.c             open and close, heads, failing
 *   gloo_collective.c  one collective of a group, step by step
 *   gloo_pair.c        one send or receive, step by step
 *   gloo_flow.c        a run of bytes to or from one peer, in chunks
 *   gloo_door.c        how ranks find each other, before there is an endpoint
 *   gloo_link.cc       gloo itself, for C
 *
 * A rank that begins an operation sends a head to everybody in it: which operation it is, its
 * sizes, and the slot on which its bytes will come. Heads of one peer arrive in order and wait in
 * its inbox until the operation begins here. Bytes move only when the heads of both sides agree, so
 * no message ever meets a buffer of another size.
 *
 * Invariants
 *  1. At most GLOO_SENDS_MAX sends to one peer are not received yet.
 *  2. A stream has one collective under way, and none ends before all members have entered, so a
 *     peer is at most one collective per stream ahead: with 1., an inbox never holds more than
 *     GLOO_SENDS_MAX + 2 * HD_COMM_STREAM_COUNT heads.
 *     By the same count no more than 2 * HD_COMM_STREAM_COUNT heads of a rank that has received all
 *     its answers are on their way, fewer than GLOO_HEADS_IN, so none is behind its notice.
 *  3. A rank sends at most one notice: that it failed (with the first reason it knows), or that it
 *     left. A connection that ends without a notice is a death.
 *
 * Used by: gloo*.c.
 */
#ifndef HD_COMM_GLOO_INTERNAL_H
#define HD_COMM_GLOO_INTERNAL_H

#include <pthread.h>

#include "comm/comm_internal.h"
#include "comm/gloo_door.h"
#include "comm/gloo_link.h"

enum {
    GLOO_HEADS_IN = 8,   /* heads of one peer that gloo may write before this rank looks */
    GLOO_HEADS_OUT = 48, /* heads to one peer that are not written yet */
    GLOO_SENDS_MAX = 32, /* sends to one peer that it has not received */
    GLOO_INBOX = GLOO_SENDS_MAX + 2 * HD_COMM_STREAM_COUNT,
    GLOO_WINDOW = 4,              /* chunks of one flow under way at once */
    GLOO_CHUNK_MAX = 512 * 1024,  /* bytes of one message of a collective */
    GLOO_STAGE_MAX = 4 << 20,     /* bytes in which one stream collects what is to be summed */
    GLOO_STAGES = 2,              /* chunks per peer in it: one is summed while one arrives */
    GLOO_STEP_BYTES = 128 * 1024, /* what one step copies or adds, in bytes read */
    GLOO_LINGER_MS = 2000,        /* how long closing waits for peers to see that it closes */
};

_Static_assert((int)GLOO_HEADS_IN >= 2 * (int)HD_COMM_STREAM_COUNT, "see invariant 2");

enum { GLOO_SLOT_HEAD = 0, GLOO_SLOT_NOTICE = 1, GLOO_SLOT_FIRST = 16 };

/* Heads lie in arrays with room for the counts of an all_to_all_v behind each, for every rank of
 * the world; they are sent for an all_to_all_v alone. */
struct gloo_head {
    uint64_t group_id, seq, slot; /* data come on slot, results of an all_reduce on slot + 1 */
    char group[HD_COMM_GROUP_NAME_MAX];
    struct hd_comm_offer offer;
};
struct gloo_heads {
    char *at;
    size_t each_bytes;
};

static inline size_t gloo_head_bytes(int world)
{
    return sizeof(struct gloo_head) + ((size_t)world + 1) / 2 * 2 * sizeof(int32_t);
}

static inline struct gloo_head *gloo_head_of(const struct gloo_heads *heads, size_t i)
{
    return (struct gloo_head *)(heads->at + i * heads->each_bytes);
}

static inline int32_t *gloo_counts_of(const struct gloo_head *head)
{
    return (int32_t *)(head + 1);
}

enum gloo_notice_kind { GLOO_FAILED = 1, GLOO_DIED, GLOO_LEFT };

struct gloo_notice {
    uint32_t kind, status;
    int32_t rank; /* who failed or died first */
    char text[HD_COMM_REASON_MAX];
};

/* One ticket over this rank's data memory. */
struct gloo_data {
    struct hd_gloo_ticket *ticket;
    const char *base; /* what it is over */
    struct gloo_data *next_free, *next;
};

/* Bytes to or from one peer, in chunks that go one after the other on one slot. */
struct gloo_flow {
    bool sends;
    int peer; /* its rank */
    uint64_t slot;
    size_t at; /* of its first byte, in data memory */
    int64_t bytes, chunk;
    int64_t ready; /* bytes that may be posted by now */
    int places;    /* chunk k lies at k % places; 0: one after the other */
    int64_t posted, done;
    struct gloo_data *under_way[GLOO_WINDOW]; /* chunk k's is at k % GLOO_WINDOW */
};

/* The collective that a stream has under way. By group index. */
struct gloo_run {
    struct gloo_heads heads;
    struct gloo_flow *out, *in, *result_out, *result_in;
    uint64_t *slots;              /* that this rank named to them */
    int64_t begin, summed, bytes; /* this rank's share of a reduction; copied of a pull */
};

struct gloo_peer {
    struct gloo_heads in, out, inbox; /* GLOO_HEADS_IN, GLOO_HEADS_OUT, GLOO_INBOX of them */
    bool kept[GLOO_INBOX];            /* the inbox's place holds a head */
    struct hd_gloo_ticket *in_ticket[GLOO_HEADS_IN], *out_ticket[GLOO_HEADS_OUT];
    bool out_pending[GLOO_HEADS_OUT];
    uint64_t in_next, out_next;     /* heads ever taken, ever sent */
    struct gloo_head latest;        /* without counts; kind HD_COMM_KIND_COUNT while none came */
    struct hd_comm_entered entered; /* as its heads say */
    uint64_t slot_next;
    int sends; /* not received yet */
    struct gloo_notice notice;
    struct hd_gloo_ticket *notice_ticket, *notice_out_ticket;
    _Atomic bool noticed; /* its notice is here, or never comes; any thread may have seen to that */
    bool left;            /* the owner has seen that it left */
    bool ended;           /* while this rank closes: it has sent all to the peer */
};

struct gloo_state {
    struct hd_gloo_link *link; /* NULL in a world of one */
    struct hd_comm_bell bell;
    _Atomic uint64_t events; /* what gloo's thread has completed */
    uint64_t events_seen;    /* by the owner */
    _Atomic uint64_t heard;  /* by whoever asked last whether there is a failure */
    pthread_mutex_t hearing; /* of notices */
    _Atomic int noticing;    /* 0: no notice, 1: being written, 2: written */
    bool told; /* the notice was sent; owned by whoever made `noticing` 1, then by close */
    struct gloo_notice notice;
    char *data; /* visible memory, then the stages of the streams */
    size_t data_bytes, stage_at, stage_bytes;
    struct gloo_data *free_data, *all_data;
    struct hd_comm_flight flight;
    struct gloo_place *places; /* [world] */
    struct gloo_run runs[HD_COMM_STREAM_COUNT];
    struct gloo_peer
        peers[]; /* [world]; this rank's own holds its sends to itself. What points into
                    arrays of the world's size points behind them: gloo.c, lay_out */
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
    return at ? (size_t)(at - comm->visible) : 0;
}

/* ---- gloo.c ---- */

/* Whether a head can be sent to the peer now. */
bool gloo_head_may_go(struct gloo_peer *peer);

/* Sends the head of `op`; *ret_slot is where this rank's bytes will go. gloo_head_may_go is true.
 */
void gloo_head_send(const struct hd_comm_op *op, int rank, uint64_t *ret_slot);
enum hd_status gloo_head_fill(const struct hd_comm_op *op, struct gloo_head *ret_head);

/* The head of the peer for the operation `seq` of a group, a send if `send`; NULL: not here. It
 * stays until gloo_head_drop. */
struct gloo_head *gloo_head_find(struct gloo_peer *peer, uint64_t group_id, uint64_t seq,
                                 bool send);
void gloo_head_drop(struct gloo_peer *peer, struct gloo_head *head);
struct gloo_head *gloo_head_keep(struct gloo_peer *peer, const struct gloo_head *head);

/* ---- gloo_flow.c ---- */

/* A free ticket over data memory; NULL without memory for one. */
struct gloo_data *gloo_data_take(struct hd_comm *comm);
void gloo_data_give(struct hd_comm *comm, struct gloo_data *data);
void gloo_data_free(struct gloo_state *gloo);

/* Posts what may be posted, notes what is done; *moved becomes true when anything changed. */
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
const struct hd_comm_offer *gloo_offer(const struct hd_comm_op *op, int member);
const int32_t *gloo_send_counts(const struct hd_comm_op *op, int member);

#endif
