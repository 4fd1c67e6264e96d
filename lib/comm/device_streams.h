/* device_streams: the device streams of an endpoint whose registered memory is device memory
 * (engines local and nccl): one device stream per communication stream, and events that order them
 * with compute.
 *
 * On these engines an operation is COMPLETE for the host when it is enqueued on its device stream
 * with everything that it waits for. A completion event is then recorded, so that compute streams
 * and the host can wait until the device has run it. Tickets are those of comm.h.
 *
 * Used by: lib/comm only.   Threads: the endpoint's, unless a function says any thread. */
#ifndef HD_COMM_DEVICE_STREAMS_H
#define HD_COMM_DEVICE_STREAMS_H

#include "comm/comm_internal.h"
#include "comm/device.h"

enum {
    EVENT_RING = 256,  /* completion events per stream; waiting for an older ticket waits for the
                          newer event in its slot, which is later and therefore safe */
    FOLLOW_RING = 512, /* compute events per stream; more than EVENT_RING, because incomplete
                          tickets have one, too */
};

struct hd_comm_device_streams {
    struct hd_comm_device device;
    struct hd_stream *streams[HD_COMM_STREAM_COUNT];
    /* Per stream, ticket t at index t % EVENT_RING: completion event, operation number, group, and
     * 0. For an HD_COMM_AFTER: event, 0, NULL, and 1 + the stream that it waits for. */
    struct hd_event *ended[HD_COMM_STREAM_COUNT][EVENT_RING];
    _Atomic uint64_t launches[HD_COMM_STREAM_COUNT][EVENT_RING];
    _Atomic(struct hd_comm_group *) groups[HD_COMM_STREAM_COUNT][EVENT_RING];
    _Atomic uint8_t after[HD_COMM_STREAM_COUNT][EVENT_RING];
    /* Per stream, ticket t at index t % FOLLOW_RING: the compute event that t waits for; valid if
     * followed_by is t. */
    struct hd_event *followed[HD_COMM_STREAM_COUNT][FOLLOW_RING];
    _Atomic uint64_t followed_by[HD_COMM_STREAM_COUNT][FOLLOW_RING];
    _Atomic uint64_t newest[HD_COMM_STREAM_COUNT]; /* newest ticket that is complete for the host */
    _Atomic uint64_t seen[HD_COMM_STREAM_COUNT];   /* newest ticket that any thread has found run by
                                                      the device */
    uint64_t marked_run[HD_COMM_STREAM_COUNT];     /* newest ticket that the flight record shows as
                                                      run */
    uint64_t abort_ticket[HD_COMM_STREAM_COUNT];   /* next ticket to run when the abort began; 0:
                                                      none */
    _Atomic bool abort_begun;                      /* abort_ticket is valid */
};

/* The progress of a device stream as one thread sees it. Initialise with {.still_since_ms = now}.
 */
struct hd_comm_stream_clock {
    uint64_t run;           /* newest ticket that has run */
    uint64_t others;        /* sum of the next tickets of the streams that it waits for; 0: none; a
                               change means progress */
    int64_t still_since_ms; /* time of the last progress or wait for compute */
    bool is_guess;          /* true: the event of ticket `run` was overwritten, so the ticket may
                               not have run */
};

enum hd_status hd_comm_streams_open(const struct hd_comm_device *device,
                                    struct hd_comm_device_streams **ret_device_streams);
/* Waits until the streams have run everything, and frees them. NULL is fine. */
void hd_comm_streams_close(struct hd_comm_device_streams *device_streams);

static inline const struct hd_device_table *
hd_comm_streams_calls(const struct hd_comm_device_streams *device_streams)
{
    return device_streams->device.table->device;
}

/* Returns the device stream of an operation. */
static inline struct hd_stream *hd_comm_device_stream(const struct hd_comm_op *op)
{
    return op->stream->comm->device_streams->streams[op->stream->name];
}

/* Returns the number of the operation that a ticket waits for: its own, or, for HD_COMM_AFTER, the
 * next one of the stream that it waits for. 0: unknown. The ticket must be among the newest
 * EVENT_RING. Any thread may call this. */
uint64_t hd_comm_streams_launch(const struct hd_comm_device_streams *device_streams,
                                enum hd_comm_stream_name stream, uint64_t ticket);

/* Opens the device stream on first use. Must not run earlier, because the first stream that a
 * backend opens must be the one for compute. */
enum hd_status hd_comm_streams_need(const struct hd_comm_stream *stream);
/* Implement hd_comm_follow, hd_comm_wait_on and hd_comm_done for tickets that are complete for the
 * host. */
enum hd_status hd_comm_streams_follow(struct hd_comm_stream *stream, struct hd_stream *compute);
enum hd_status hd_comm_streams_wait_on(const struct hd_comm_stream *stream, uint64_t ticket,
                                       struct hd_stream *compute);
enum hd_status hd_comm_streams_done(const struct hd_comm_stream *stream, uint64_t ticket,
                                    bool *ret_done);
/* Records the completion event of a ticket. */
enum hd_status hd_comm_streams_note_end(struct hd_comm_stream *stream, uint64_t ticket);
/* Queries the events and updates the clock and the flight record. Returns an error of the device.
 * Any thread may call this, each with its own clock. */
enum hd_status hd_comm_streams_query(struct hd_comm *comm, enum hd_comm_stream_name stream,
                                     struct hd_comm_stream_clock *clock, int64_t now_ms);
/* Saves the next ticket of each stream, because the abort ends all operations. Uses `seen` and does
 * not query the device, whose driver may block. Must be called once, before the abort, by any
 * thread. */
void hd_comm_streams_begin_abort(struct hd_comm *comm);
/* Returns the next ticket that the device has to run, or the saved one after an abort; 0: none. Any
 * thread may call this. */
uint64_t hd_comm_streams_next_ticket(struct hd_comm *comm, enum hd_comm_stream_name stream);

/* Marks all tickets up to `ticket` as complete in the flight record: the device has run them. */
void hd_comm_streams_mark_run(struct hd_comm_stream *stream, uint64_t ticket);

#endif
