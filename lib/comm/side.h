/* side: the device's side of an endpoint whose visible memory lies on a device: one stream of the
 * device for each stream of the endpoint, and the events that order them with compute streams.
 *
 * On such an engine an operation is COMPLETE for the host when all of it is enqueued with all its
 * edges: what is enqueued on the device's stream behind it runs when it has run. `ended` notes that
 * point, so that compute streams and the host can wait for it.
 *
 * Used by: lib/comm alone.   Threads: the endpoint's.
 */
#ifndef HD_COMM_SIDE_H
#define HD_COMM_SIDE_H

#include "comm/comm_internal.h"
#include "comm/device.h"

enum { SIDE_EVENTS = 256 }; /* ends remembered per stream; for an older one the next round stands */
enum { SIDE_FOLLOWED = 512 }; /* of what may be remembered, and of what is launched next */

struct hd_comm_side {
    struct hd_comm_device device;
    struct hd_stream *streams[HD_COMM_STREAM_COUNT];
    struct hd_event *ended[HD_COMM_STREAM_COUNT][SIDE_EVENTS]; /* of ticket t at t % SIDE_EVENTS */
    /* what ticket t waits for of compute, at t % SIDE_FOLLOWED; for which t it is there */
    struct hd_event *followed[HD_COMM_STREAM_COUNT][SIDE_FOLLOWED];
    _Atomic uint64_t followed_by[HD_COMM_STREAM_COUNT][SIDE_FOLLOWED];
    /* for who watches from another thread: by ticket as `ended`, and the newest that has ended for
     * the host */
    _Atomic uint64_t launches[HD_COMM_STREAM_COUNT][SIDE_EVENTS], newest[HD_COMM_STREAM_COUNT];
    _Atomic(struct hd_comm_group *) groups[HD_COMM_STREAM_COUNT][SIDE_EVENTS]; /* NULL: no launch */
    /* of an operation that waits for another stream: that stream + 1; else 0 */
    _Atomic uint8_t after[HD_COMM_STREAM_COUNT][SIDE_EVENTS];
    uint64_t told[HD_COMM_STREAM_COUNT];         /* the flight record knows that these have run */
    _Atomic uint64_t seen[HD_COMM_STREAM_COUNT]; /* and whoever looked, that these have */
    /* where the streams stood when everything was made to end, by ticket; 0: nowhere */
    uint64_t stood[HD_COMM_STREAM_COUNT];
    _Atomic bool ending; /* `stood` is there */
};

/* How far one thread has seen a stream of the device come. */
struct hd_comm_side_clock {
    uint64_t run;           /* the ticket that has run last */
    uint64_t others;        /* where the streams stand that it waits for, summed up; 0: for none */
    int64_t still_since_ms; /* nothing has moved, and what is next waits for no compute of ours */
    bool is_guess;          /* `run` is too old to be asked about: it may not have run */
};

enum hd_status hd_comm_side_open(const struct hd_comm_device *device,
                                 struct hd_comm_side **ret_side);
/* Waits until the streams have run. NULL is fine. */
void hd_comm_side_close(struct hd_comm_side *side);

static inline const struct hd_device_table *hd_comm_side_calls(const struct hd_comm_side *side)
{
    return side->device.table->device;
}

/* The device's stream that an operation is enqueued on. */
static inline struct hd_stream *hd_comm_side_stream(const struct hd_comm_op *op)
{
    return op->stream->comm->side->streams[op->stream->name];
}

/* The launch that stands where this ticket does, which has ended for the host and is not older than
 * SIDE_EVENTS: its own, or that of another stream which it waits for; 0: it is not known. */
uint64_t hd_comm_side_launch(const struct hd_comm_side *side, enum hd_comm_stream_name stream,
                             uint64_t ticket);

/* What comm.c, launch.c and progress.c ask when an endpoint has a side. Tickets are complete for
 * the host. A stream of the device is opened when its stream is first used: a backend's first
 * stream is for computing, and an endpoint is there before whoever computes. */
enum hd_status hd_comm_side_need(const struct hd_comm_stream *stream);
enum hd_status hd_comm_side_follow(struct hd_comm_stream *stream, struct hd_stream *compute);
enum hd_status hd_comm_side_wait_on(const struct hd_comm_stream *stream, uint64_t ticket,
                                    struct hd_stream *compute);
enum hd_status hd_comm_side_done(const struct hd_comm_stream *stream, uint64_t ticket,
                                 bool *ret_done);
enum hd_status hd_comm_side_note_end(struct hd_comm_stream *stream, uint64_t ticket);
/* Looks how far the device has come, and moves the clock on. An error is the device's. Any thread,
 * each with a clock of its own. */
enum hd_status hd_comm_side_look(struct hd_comm *comm, enum hd_comm_stream_name stream,
                                 struct hd_comm_side_clock *clock, int64_t now_ms);
/* What is to run next on each stream, as far as anybody has looked, is noted: from then on that is
 * where it stood, though what is aborted ends. The device is not asked: its driver may not answer
 * before the abort. Once, before it. Any thread. */
void hd_comm_side_stand(struct hd_comm *comm);
/* The ticket that the device has to run next; 0: none. Any thread. */
uint64_t hd_comm_side_standing(struct hd_comm *comm, enum hd_comm_stream_name stream);

/* The device has run everything up to `ticket`: so says the flight record from now on. */
void hd_comm_side_tell(struct hd_comm_stream *stream, uint64_t ticket);

#endif
