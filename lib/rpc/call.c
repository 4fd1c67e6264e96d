/* Calls: sending, receiving and the end of a call, for server and client.
 *
 *      made --on_opened--> open --on_read/on_written ...--> final --nothing in flight--> done
 *             (settle)            (settle)                 (settle)                (end)
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>

#include "base/clock.h"
#include "base/text.h"
#include "rpc/rpc_internal.h"
#include "rpc/wire_check.h"

/* ---- memory ---- */

static void on_posted(struct hd_rpc_op *op, bool ok);
static void on_read(struct hd_rpc_op *op, bool ok);
static void on_written(struct hd_rpc_op *op, bool ok);

struct hd_rpc_call *hd_rpc_call_make(struct hd_rpc *rpc)
{
    struct hd_rpc_call *call = calloc(1, sizeof *call);

    if (!call) {
        (void)hd_err(HD_NO_MEMORY, "no memory for a call");
        return NULL;
    }
    call->rpc = rpc;
    call->refs = 1;
    call->out_last = &call->out_first;
    call->on_read.fn = on_read;
    call->on_written.fn = on_written;
    call->on_posted.fn = on_posted;
    call->deadline_ms = INT64_MAX;
    call->details = grpc_empty_slice();
    grpc_metadata_array_init(&call->received);
    grpc_metadata_array_init(&call->trailers);
    rpc->live++;
    return call;
}

struct hd_rpc_call *hd_rpc_call_ref(struct hd_rpc_call *call)
{
    call->refs++;
    return call;
}

static struct hd_rpc_out *dequeue(struct hd_rpc_call *call)
{
    struct hd_rpc_out *out = call->out_first;

    call->out_first = out->next;
    if (!out->next)
        call->out_last = &call->out_first;
    call->out_count--;
    call->out_bytes -= out->size_bytes;
    return out;
}

static void free_out(struct hd_rpc_out *out)
{
    grpc_byte_buffer_destroy(out->buffer);
    free(out);
}

void hd_rpc_call_drop_queue(struct hd_rpc_call *call)
{
    struct hd_rpc_out *in_flight = call->message_in_flight ? dequeue(call) : NULL;

    while (call->out_first)
        free_out(dequeue(call));
    if (in_flight) { /* the write batch uses the message's bytes */
        in_flight->next = NULL;
        call->out_first = in_flight;
        call->out_last = &in_flight->next;
        call->out_count = 1;
        call->out_bytes = in_flight->size_bytes;
    }
}

void hd_rpc_call_unref(struct hd_rpc_call *call)
{
    assert(call->refs > 0);
    if (--call->refs)
        return;
    assert(call->done && !call->call);
    for (size_t i = 0; i < call->pairs_count; i++) {
        free(call->pairs[i].key);
        free(call->pairs[i].value);
    }
    free(call->pairs);
    for (size_t i = 0; i < call->headers_count; i++) {
        grpc_slice_unref(call->headers[i].key);
        grpc_slice_unref(call->headers[i].value);
    }
    free(call->headers);
    grpc_metadata_array_destroy(&call->received);
    grpc_metadata_array_destroy(&call->trailers);
    grpc_slice_unref(call->details);
    hd_rpc_message_free(call->held);
    free(call->peer);
    free(call->path_copy);
    free(call->end_message);
    free(call->label);
    free(call->local);
    free(call->failure_text);
    free(call);
}

/* ---- batches ---- */

static bool is_over(const struct hd_rpc_call *call)
{
    return call->abandoned || call->final || call->done;
}

enum hd_status hd_rpc_call_start(struct hd_rpc_call *call, const grpc_op *ops, size_t count,
                                 struct hd_rpc_op *op)
{
    enum hd_status st = hd_rpc_expect(call->rpc);
    grpc_call_error error;

    if (st)
        return st;
    error = grpc_call_start_batch(call->call, ops, count, op, NULL);
    if (error != GRPC_CALL_OK) {
        hd_rpc_expect_cancel(call->rpc);
        return hd_err(HD_INTERNAL, "%s: gRPC refused a batch: %s", call->path,
                      grpc_call_error_to_string(error));
    }
    (void)hd_rpc_call_ref(call);
    return HD_OK;
}

void hd_rpc_call_give_up(struct hd_rpc_call *call, enum hd_status st)
{
    if (!call->local && !call->final) {
        call->local = malloc(sizeof *call->local);
        if (call->local)
            hd_err_save(st, call->local);
    }
    hd_rpc_call_cancel(call);
}

/* Fills `ops` with the operations of a write batch: initial metadata before the first message, the
 * message, the status after the last message. Returns the number of operations. */
static size_t fill_write(struct hd_rpc_call *call, grpc_op ops[3], grpc_metadata *trailer,
                         grpc_slice *details)
{
    bool message, end;
    size_t count = 0;

    if (call->ending == HD_RPC_ENDING_FAIL)
        hd_rpc_call_drop_queue(call);
    message = call->out_first != NULL;
    end = call->ending == HD_RPC_ENDING_FAIL ||
          (call->ending == HD_RPC_ENDING_FINISH && call->out_count <= 1);
    if (!call->headers_sent) {
        ops[count].op = GRPC_OP_SEND_INITIAL_METADATA;
        if (call->wait_for_ready)
            ops[count].flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                               GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
        ops[count].data.send_initial_metadata.count = call->headers_count;
        ops[count++].data.send_initial_metadata.metadata = call->headers;
    }
    if (message) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = call->out_first->buffer;
    }
    if (end && call->client) {
        ops[count++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    } else if (end) {
        *details = grpc_slice_from_copied_string(call->end_message ? call->end_message : "");
        trailer->key = grpc_slice_from_static_string(HD_RPC_STATUS_TRAILER);
        trailer->value = grpc_slice_from_static_string(hd_status_name(call->end_status));
        ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[count].data.send_status_from_server.status =
            call->unauthenticated ? GRPC_STATUS_UNAUTHENTICATED
                                  : (grpc_status_code)hd_rpc_status_to_grpc(call->end_status);
        ops[count].data.send_status_from_server.status_details = details;
        ops[count].data.send_status_from_server.trailing_metadata = trailer;
        ops[count++].data.send_status_from_server.trailing_metadata_count =
            call->end_status != HD_OK;
    }
    if (!count)
        return 0;
    call->message_in_flight = message;
    call->headers_sent = true;
    if (end)
        call->ending = HD_RPC_ENDING_SENT;
    return count;
}

void hd_rpc_call_send(struct hd_rpc_call *call)
{
    grpc_slice details = grpc_empty_slice();
    grpc_op ops[3] = {0};
    grpc_metadata trailer;
    enum hd_status st;
    size_t count;

    /* A unary reply is one batch: headers, message and status are sent together. */
    if (call->writing || is_over(call) ||
        (call->server && call->kind == HD_RPC_UNARY && call->ending == HD_RPC_ENDING_NONE))
        return;
    count = fill_write(call, ops, &trailer, &details);
    if (!count)
        return;
    call->writing = true;
    st = hd_rpc_call_start(call, ops, count, &call->on_written);
    grpc_slice_unref(details);
    if (st) {
        call->writing = call->message_in_flight = false;
        hd_rpc_call_give_up(call, st);
    }
}

static void on_written(struct hd_rpc_op *op, bool ok)
{
    struct hd_rpc_call *call = HD_RPC_OWNER(op, struct hd_rpc_call, on_written);
    bool sent_message = call->message_in_flight;

    call->writing = call->message_in_flight = false;
    if (sent_message)
        free_out(dequeue(call));
    if (ok && call->ending == HD_RPC_ENDING_SENT)
        call->status_delivered = true;
    if (ok && sent_message && !call->out_first && hd_rpc_call_alive(call) && call->handler.on_drain)
        call->handler.on_drain(call);
    hd_rpc_call_settle(call);
    hd_rpc_call_unref(call);
}

/* ---- receiving ---- */

bool hd_rpc_slice_is(grpc_slice slice, const char *text)
{
    size_t len_bytes = strlen(text);

    return GRPC_SLICE_LENGTH(slice) == len_bytes &&
           memcmp(GRPC_SLICE_START_PTR(slice), text, len_bytes) == 0;
}

enum hd_status hd_rpc_unpack_buffer(const ProtobufCMessageDescriptor *descriptor,
                                    grpc_byte_buffer *buffer, ProtobufCMessage **ret_msg)
{
    grpc_byte_buffer_reader reader;
    enum hd_status st;
    grpc_slice bytes;

    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE ||
        !grpc_byte_buffer_reader_init(&reader, buffer)) {
        st = hd_err(HD_INVALID, "compressed messages are not accepted");
    } else {
        const grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;

        bytes = slices->count == 1 ? grpc_slice_ref(slices->slices[0])
                                   : grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
        st = hd_rpc_wire_unpack(descriptor, GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes),
                                ret_msg);
        grpc_slice_unref(bytes);
    }
    grpc_byte_buffer_destroy(buffer);
    return st;
}

void hd_rpc_call_open(struct hd_rpc_call *call, ProtobufCMessage *msg)
{
    call->opened = true;
    call->delivery = msg;
    if (call->handler.on_open && !(call->client && call->kind == HD_RPC_UNARY))
        call->handler.on_open(call, msg);
    hd_rpc_message_free(call->delivery);
    call->delivery = NULL;
}

static void deliver(struct hd_rpc_call *call, ProtobufCMessage *msg)
{
    if (!call->opened) /* the server sends no HD_RPC_ACCEPTED_HEADER */
        hd_rpc_call_open(call, NULL);
    call->received_count++;
    call->delivery = msg;
    if (call->handler.on_msg && !call->abandoned &&
        (call->kind != HD_RPC_UNARY || call->received_count == 1))
        call->handler.on_msg(call, msg);
    hd_rpc_message_free(call->delivery);
    call->delivery = NULL;
}

ProtobufCMessage *hd_rpc_call_take(struct hd_rpc_call *call)
{
    ProtobufCMessage *msg = call->delivery;

    call->delivery = NULL;
    return msg;
}

void hd_rpc_message_free(ProtobufCMessage *msg)
{
    hd_rpc_wire_free(msg);
}

void hd_rpc_call_read(struct hd_rpc_call *call)
{
    grpc_op ops[1] = {{.op = GRPC_OP_RECV_MESSAGE}};
    enum hd_status st;

    if (call->opening || call->reading || call->read_ended || call->paused || call->held ||
        call->done)
        return;
    ops[0].data.recv_message.recv_message = &call->read_buffer;
    call->reading = true;
    st = hd_rpc_call_start(call, ops, 1, &call->on_read);
    if (st) {
        call->reading = false;
        call->read_ended = true;
        hd_rpc_call_give_up(call, st);
    }
}

static void refuse_message(struct hd_rpc_call *call, enum hd_status st)
{
    call->read_ended = true;
    (void)hd_err_prefix(st, "%s", call->path);
    if (call->server)
        hd_rpc_call_fail(call, st);
    else
        hd_rpc_call_give_up(call, st);
}

static void on_read(struct hd_rpc_op *op, bool ok)
{
    struct hd_rpc_call *call = HD_RPC_OWNER(op, struct hd_rpc_call, on_read);
    grpc_byte_buffer *buffer = call->read_buffer;
    ProtobufCMessage *msg;
    enum hd_status st;

    call->reading = false;
    call->read_buffer = NULL;
    if (!ok || !buffer) {
        if (buffer)
            grpc_byte_buffer_destroy(buffer);
        call->read_ended = true;
        if (ok && call->awaits_request && hd_rpc_call_alive(call))
            hd_rpc_server_requested(call, NULL);
        else if (ok && call->opened && call->server && hd_rpc_call_alive(call) &&
                 call->handler.on_half_close)
            call->handler.on_half_close(call);
    } else if (call->abandoned ||
               (call->server && (call->final || call->ending != HD_RPC_ENDING_NONE))) {
        grpc_byte_buffer_destroy(buffer); /* the call was ended on this side */
        call->read_ended = true;
    } else {
        st = hd_rpc_unpack_buffer(call->incoming, buffer, &msg);
        if (st)
            refuse_message(call, st);
        else if (call->awaits_request)
            hd_rpc_server_requested(call, msg);
        else if (call->paused)
            call->held = msg;
        else
            deliver(call, msg);
    }
    hd_rpc_call_settle(call);
    hd_rpc_call_unref(call);
}

void hd_rpc_call_pause(struct hd_rpc_call *call)
{
    call->paused = true;
}

/* Queues an event that runs on_posted, because callbacks may not run inside a function that the
 * user called. */
static void post(struct hd_rpc_call *call)
{
    if (call->posted || call->done)
        return;
    if (hd_rpc_post(call->rpc, &call->on_posted))
        return; /* no memory: the next event of the call does this instead */
    call->posted = true;
    (void)hd_rpc_call_ref(call);
}

static void on_posted(struct hd_rpc_op *op, bool ok)
{
    struct hd_rpc_call *call = HD_RPC_OWNER(op, struct hd_rpc_call, on_posted);
    ProtobufCMessage *msg;

    (void)ok;
    call->posted = false;
    if (call->held && !call->paused && !call->done) {
        msg = call->held;
        call->held = NULL;
        deliver(call, msg);
    }
    hd_rpc_call_settle(call);
    hd_rpc_call_unref(call);
}

void hd_rpc_call_resume(struct hd_rpc_call *call)
{
    if (!call->paused)
        return;
    call->paused = false;
    post(call);
}

/* ---- sending ---- */

static enum hd_status pack(const ProtobufCMessage *msg, size_t size_bytes, struct hd_rpc_out **ret)
{
    struct hd_rpc_out *out = calloc(1, sizeof *out);
    grpc_slice slice;

    if (!out)
        return hd_err(HD_NO_MEMORY, "no memory for a message of %zu bytes", size_bytes);
    slice = grpc_slice_malloc(size_bytes);
    (void)protobuf_c_message_pack(msg, GRPC_SLICE_START_PTR(slice));
    out->buffer = grpc_raw_byte_buffer_create(&slice, 1);
    out->size_bytes = size_bytes;
    grpc_slice_unref(slice);
    *ret = out;
    return HD_OK;
}

enum hd_status hd_rpc_call_enqueue(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    size_t size_bytes = protobuf_c_message_get_packed_size(msg);
    struct hd_rpc_out *out = NULL;
    enum hd_status st;

    if (size_bytes > call->message_bytes_max)
        return hd_err(HD_INVALID, "%s: a message of %zu bytes is larger than the limit of %zu",
                      call->path, size_bytes, call->message_bytes_max);
    if (call->out_count >= call->queue_len_max ||
        (call->out_count && call->out_bytes + size_bytes > call->queue_bytes_max))
        return hd_err(HD_LIMIT, "%s: the peer reads too slowly, %zu messages of %zu bytes wait",
                      call->path, call->out_count, call->out_bytes);
    st = pack(msg, size_bytes, &out);
    if (st)
        return st;
    *call->out_last = out;
    call->out_last = &out->next;
    call->out_count++;
    call->out_bytes += size_bytes;
    return HD_OK;
}

static enum hd_status check_open(const struct hd_rpc_call *call)
{
    if (hd_rpc_call_alive(call))
        return HD_OK;
    return hd_err(HD_ABORTED, "%s: the call has ended", call->path);
}

enum hd_status hd_rpc_call_write(struct hd_rpc_call *call, const ProtobufCMessage *msg)
{
    enum hd_status st = check_open(call);

    assert(call->kind != HD_RPC_UNARY);
    if (!st)
        st = hd_rpc_call_enqueue(call, msg);
    if (!st)
        hd_rpc_call_send(call);
    return st;
}

enum hd_status hd_rpc_call_reply(struct hd_rpc_call *call, const ProtobufCMessage *response)
{
    enum hd_status st = check_open(call);

    assert(call->server || call->done);
    if (st)
        return st;
    st = hd_rpc_call_enqueue(call, response);
    if (st) {
        hd_rpc_call_fail(call, st == HD_INVALID ? HD_LIMIT : st);
        return HD_LIMIT;
    }
    hd_rpc_call_finish(call);
    return HD_OK;
}

void hd_rpc_call_finish(struct hd_rpc_call *call)
{
    if (!hd_rpc_call_alive(call))
        return;
    call->ending = HD_RPC_ENDING_FINISH;
    if (call->server)
        hd_rpc_server_answered(call, HD_OK);
    hd_rpc_call_send(call);
}

/* Copies an error message for gRPC, which needs UTF-8; a message may quote a user's input. */
static char *as_text(const char *message)
{
    char *text = strdup(message);

    if (text && !hd_text_is_utf8(text, strlen(text)))
        for (char *p = text; *p; p++)
            if (*p & 0x80)
                *p = '?';
    return text;
}

void hd_rpc_call_fail(struct hd_rpc_call *call, enum hd_status st)
{
    assert(st != HD_OK && (call->server || call->done));
    if (is_over(call) || call->ending == HD_RPC_ENDING_SENT || call->ending == HD_RPC_ENDING_FAIL)
        return;
    call->ending = HD_RPC_ENDING_FAIL;
    call->end_status = st;
    call->end_message = as_text(hd_err_message());
    if (call->server)
        hd_rpc_server_answered(call, st);
    hd_rpc_call_send(call);
}

void hd_rpc_call_cancel(struct hd_rpc_call *call)
{
    if (call->done)
        return;
    call->abandoned = true;
    if (call->final)
        post(call); /* no other event would settle the call */
    else
        (void)grpc_call_cancel(call->call, NULL);
}

/* ---- the end ---- */

static void end(struct hd_rpc_call *call)
{
    struct hd_rpc *rpc = call->rpc;
    const char *message;
    enum hd_status st;

    hd_rpc_call_drop_queue(call);
    hd_rpc_message_free(call->held);
    call->held = NULL;
    call->done = true;
    st = call->server ? hd_rpc_server_outcome(call, &message)
                      : hd_rpc_client_outcome(call, &message);
    if ((call->client || call->opened) && call->handler.on_done)
        call->handler.on_done(call, st, message);
    grpc_call_unref(call->call);
    call->call = NULL;
    if (call->server)
        hd_rpc_server_remove_call(call);
    else
        hd_rpc_client_remove_call(call);
    hd_rpc_live_drop(rpc);
    hd_rpc_call_unref(call);
}

void hd_rpc_call_settle(struct hd_rpc_call *call)
{
    bool drop;

    if (call->done)
        return;
    hd_rpc_call_send(call);
    /* A client reads to the end of the stream even after the status arrived, so that the handler
     * gets the messages sent before it; except if the call failed while paused. */
    drop = call->abandoned ||
           (call->final && (call->server || (call->paused && call->code != GRPC_STATUS_OK)));
    if (drop) {
        hd_rpc_message_free(call->held);
        call->held = NULL;
        if (!call->reading)
            call->read_ended = true;
    }
    hd_rpc_call_read(call);
    if (call->final && !call->opening && !call->reading && !call->writing && !call->posted &&
        call->read_ended && !call->held)
        end(call);
}

void hd_rpc_call_on_final(struct hd_rpc_op *op, bool ok)
{
    struct hd_rpc_call *call = HD_RPC_OWNER(op, struct hd_rpc_call, on_final);

    (void)ok; /* always true for this operation; the status has the result */
    call->final = true;
    hd_rpc_call_settle(call);
    hd_rpc_call_unref(call);
}

/* ---- members of a call ---- */

void *hd_rpc_call_user(const struct hd_rpc_call *call)
{
    return call->user;
}

void hd_rpc_call_set_user(struct hd_rpc_call *call, void *user)
{
    call->user = user;
}

const char *hd_rpc_call_path(const struct hd_rpc_call *call)
{
    return call->path;
}

const char *hd_rpc_call_peer(const struct hd_rpc_call *call)
{
    return call->peer ? call->peer : "unknown";
}

const struct hd_rpc_principal *hd_rpc_call_principal(const struct hd_rpc_call *call)
{
    return &call->principal;
}

const char *hd_rpc_call_metadata(const struct hd_rpc_call *call, const char *key)
{
    for (size_t i = 0; i < call->pairs_count; i++)
        if (strcmp(call->pairs[i].key, key) == 0)
            return call->pairs[i].value;
    return NULL;
}

void hd_rpc_call_set_label(struct hd_rpc_call *call, const char *label)
{
    free(call->label);
    call->label = label ? strdup(label) : NULL;
}

const char *hd_rpc_call_label(const struct hd_rpc_call *call)
{
    return call->label ? call->label : "";
}

void hd_rpc_call_set_mark(struct hd_rpc_call *call)
{
    call->mark = true;
}

bool hd_rpc_call_mark(const struct hd_rpc_call *call)
{
    return call->mark;
}

int64_t hd_rpc_call_time_left_ms(const struct hd_rpc_call *call)
{
    int64_t left_ms;

    if (call->deadline_ms == INT64_MAX)
        return INT64_MAX;
    left_ms = call->deadline_ms - hd_clock_now_ms();
    return left_ms > 0 ? left_ms : 0;
}

size_t hd_rpc_call_queued(const struct hd_rpc_call *call)
{
    return call->out_count;
}

bool hd_rpc_call_alive(const struct hd_rpc_call *call)
{
    return !is_over(call) && call->ending == HD_RPC_ENDING_NONE;
}
