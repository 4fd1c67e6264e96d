#include <stdlib.h>

#include "comm/gloo_internal.h"

/* ---- tickets over data memory: a free list that grows on demand ---- */

struct gloo_data *gloo_data_take(struct hd_comm *comm)
{
    struct gloo_state *gloo = gloo_of(comm);
    struct gloo_data *data = gloo->free_data;

    if (data) {
        gloo->free_data = data->next_free;
    } else {
        data = calloc(1, sizeof *data);
        if (!data)
            return NULL;
        data->next = gloo->all_data;
        gloo->all_data = data;
    }
    if (data->ticket && data->base == gloo->data)
        return data;
    hd_gloo_ticket_free(data->ticket); /* the old ticket does not cover the region that
                                          hd_comm_alloc_registered has allocated since */
    data->ticket = NULL;
    data->base = gloo->data;
    if (hd_gloo_ticket_new(gloo->link, gloo->data, gloo->data_bytes, &data->ticket) == HD_OK)
        return data;
    gloo_data_give(comm, data);
    return NULL;
}

void gloo_data_give(struct hd_comm *comm, struct gloo_data *data)
{
    data->next_free = gloo_of(comm)->free_data;
    gloo_of(comm)->free_data = data;
}

void gloo_data_free(struct gloo_state *gloo)
{
    while (gloo->all_data) {
        struct gloo_data *data = gloo->all_data;

        gloo->all_data = data->next;
        hd_gloo_ticket_free(data->ticket);
        free(data);
    }
    gloo->free_data = NULL;
}

/* ---- flows ---- */

static int64_t chunk_bytes(const struct gloo_flow *flow, int64_t begin)
{
    return flow->bytes - begin < flow->chunk ? flow->bytes - begin : flow->chunk;
}

static size_t place_of(const struct gloo_flow *flow, int64_t begin)
{
    const int64_t index = begin / flow->chunk;

    return flow->at + (size_t)(flow->addresses ? index % flow->addresses * flow->chunk : begin);
}

static struct gloo_data **in_flight_at(struct gloo_flow *flow, int64_t begin)
{
    return &flow->in_flight[begin / flow->chunk % GLOO_WINDOW];
}

/* Posts the next chunk of a flow with gloo. Sets *ret_posted to false if the connection has ended,
 * which read_abort_message reports. */
static enum hd_status post(struct hd_comm *comm, struct gloo_flow *flow, bool *ret_posted)
{
    const int64_t n = chunk_bytes(flow, flow->posted);
    struct gloo_data *data = gloo_data_take(comm);

    if (!data)
        return hd_comm_fail(comm, HD_NO_MEMORY, "gloo: no memory for a message to rank %d",
                            flow->peer);
    *ret_posted = (flow->sends ? hd_gloo_send : hd_gloo_recv)(
        data->ticket, flow->peer, flow->slot, place_of(flow, flow->posted), (size_t)n);
    if (!*ret_posted) {
        gloo_data_give(comm, data);
        return HD_OK;
    }
    *in_flight_at(flow, flow->posted) = data;
    flow->posted += n;
    return HD_OK;
}

enum hd_status gloo_flow_step(struct hd_comm *comm, struct gloo_flow *flow, bool *moved)
{
    const int64_t ready = flow->ready < flow->bytes ? flow->ready : flow->bytes;

    while (flow->done < flow->posted) {
        struct gloo_data *data = *in_flight_at(flow, flow->done);

        if ((flow->sends ? hd_gloo_sent : hd_gloo_received)(data->ticket) != HD_GLOO_DONE)
            break;
        flow->done += chunk_bytes(flow, flow->done);
        gloo_data_give(comm, data);
        *moved = true;
    }
    while (flow->posted < ready && flow->posted - flow->done <= (GLOO_WINDOW - 1) * flow->chunk &&
           chunk_bytes(flow, flow->posted) <= ready - flow->posted) {
        bool posted = false;
        const enum hd_status st = post(comm, flow, &posted);

        if (st || !posted)
            return st;
        *moved = true;
    }
    return HD_OK;
}
