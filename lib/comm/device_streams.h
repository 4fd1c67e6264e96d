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
    /* Rings per stream; the entry of ticket t is at index t % EVENT_RING: its completion event,
     * operation number, group, and 0. For a ticket of HD_COMM_AFTER: event, 0, NULL, and 1 + the
     * stream that the ticket waits for. */
    struct hd_event *ended[HD_COMM_STREAM_COUNT][EVENT_RING];
    _Atomic uint64_t launches[HD_COMM_STREAM_COUNT][EVENT_RING];
    _Atomic(struct hd_comm_group *) groups[HD_COMM_STREAM_COUNT][EVENT_RING];
    _Atomic uint8_t after[HD_COMM_STREAM_COUNT][EVENT_RING];
    /* Per stream, ticket t at index t % FOLLOW_RING: the event of a compute stream that t waits
     * for; valid if `followed_by` at that index is t. */
    struct hd_event *followed[HD_COMM_STREAM_COUNT][FOLLOW_RING];
    _Atomic uint64_t followed_by[HD_COMM_STREAM_COUNT][FOLLOW_RING];
    _Atomic uint64_t newest[HD_COMM_STREAM_COUNT]; /* newest ticket that is complete for the host */
    _Atomic uint64_t seen[HD_COMM_STREAM_COUNT];   /* newest ticket that any thread has found run by
                                                      the device */
    uint64_t marked_run[HD_COMM_STREAM_COUNT];     /* newest ticket that the flight record shows as
                                                      run */
    uint64_t abort_ticket[HD_COMM_STREAM_COUNT];   /* next ticket to run when the abort began; 0:
                                                      none */
    _Atomic bool abort_begun;                      /* true: abort_ticket is set, because an abort
                                                      has begun */
};

/* The progress of a device stream as one thread (the owner or the watchdog) has last seen it.
 * Initialise with {.still_since_ms = now}. */
struct hd_comm_stream_clock {
    uint64_t run;           /* newest ticket that the device has run */
    uint64_t others;        /* sum of the next tickets of the streams that this stream waits for; 0:
                               none; a change means that one of them made progress */
    int64_t still_since_ms; /* hd_clock_now_ms when the stream last made progress or waited for a
                               compute stream */
    bool is_guess;          /* true: the event of ticket `run` was overwritten, so the ticket may
                               not have run */
};

enum hd_status hd_comm_streams_open(const struct hd_comm_device *device,
                                    struct hd_comm_device_streams **ret_device_streams);
/* Waits until the device has run all launches on the device streams, and frees the streams. NULL is
 * fine. */
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

/* Opens the device stream of a communication stream on first use. Must not run earlier, because the
 * first stream that a backend opens must be its compute stream. */
enum hd_status hd_comm_streams_need(const struct hd_comm_stream *stream);
/* Implement hd_comm_follow, hd_comm_wait_on and hd_comm_done on device engines, for tickets whose
 * operations are already enqueued on the device. */
enum hd_status hd_comm_streams_follow(struct hd_comm_stream *stream, struct hd_stream *compute);
enum hd_status hd_comm_streams_wait_on(const struct hd_comm_stream *stream, uint64_t ticket,
                                       struct hd_stream *compute);
enum hd_status hd_comm_streams_done(const struct hd_comm_stream *stream, uint64_t ticket,
                                    bool *ret_done);
/* Records on the device stream the event that completes when the device has run the ticket. */
enum hd_status hd_comm_streams_note_end(struct hd_comm_stream *stream, uint64_t ticket);
/* Queries the completion events of a stream, and updates `clock` and the flight record by the
 * tickets that the device has run. Returns an error of the device, if there is one. Any thread may
 * call this, each with its own clock. */
enum hd_status hd_comm_streams_query(struct hd_comm *comm, enum hd_comm_stream_name stream,
                                     struct hd_comm_stream_clock *clock, int64_t now_ms);
/* Saves the next ticket that the device has to run of each stream (abort_ticket), because after the
 * abort the events of all tickets are complete. Uses `seen` and does not query the device, whose
 * driver may block. Must be called once, before the abort, by any thread. */
void hd_comm_streams_begin_abort(struct hd_comm *comm);
/* Returns the next ticket of a stream that the device has to run; once an abort has begun, the one
 * saved then; 0: none. Any thread may call this. */
uint64_t hd_comm_streams_next_ticket(struct hd_comm *comm, enum hd_comm_stream_name stream);

/* Marks all tickets up to `ticket` as complete in the flight record: the device has run them. */
void hd_comm_streams_mark_run(struct hd_comm_stream *stream, uint64_t ticket);

#endif
