#include "train/decoder_link.h"

/* Connects both channels. The first operation on a channel must be a collective (comm.h). All ranks
 * connect the channel to the previous stage first, so none waits for another in a circle. */
static enum hd_status connect_ranks(struct hd_inference_rank *m, const struct decoder_link *l)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(m->open.comm, HD_COMM_STREAM_REDUCE);
    enum hd_status st = HD_OK;

    if (l->from)
        st = hd_comm_connect(l->from, stream, HD_COMM_USE_RECEIVE);
    if (!st && l->to)
        st = hd_comm_connect(l->to, stream, HD_COMM_USE_SEND);
    return st ? st : hd_comm_wait(stream, hd_comm_record(stream));
}

enum hd_status decoder_link_open(struct hd_inference_rank *m, int micro_batches,
                                 struct decoder_link *ret_link)
{
    const int stage = hd_mesh_coord_of(&m->mesh, m->rank).pp;
    struct decoder_link l = {.from = NULL};
    enum hd_status st = HD_OK;

    *ret_link = l;
    if (m->pp == 1)
        return HD_OK;
    l.arrivals = hd_arena_array(&m->arena, (size_t)micro_batches, sizeof *l.arrivals);
    if (!l.arrivals)
        return hd_err(HD_NO_MEMORY, "no memory for transfers");
    if (stage > 0)
        st = hd_rank_open_channel(&m->open, &m->mesh, m->rank, stage - 1, stage, false, &l.from);
    if (!st && stage < m->pp - 1)
        st = hd_rank_open_channel(&m->open, &m->mesh, m->rank, stage, stage + 1, false, &l.to);
    if (!st)
        st = connect_ranks(m, &l);
    *ret_link = l;
    return st;
}

static enum hd_status transfer(struct hd_inference_rank *m, const struct hd_chunk *chunk,
                               int micro_batch, enum hd_stage_io stage_io,
                               struct hd_comm_group *group, struct hd_transfer *slot)
{
    const struct hd_bases bases = hd_inference_rank_bases(m, micro_batch);
    const struct hd_store *rows = hd_chunk_find_stage_io(chunk, stage_io);
    const bool sends = stage_io == HD_STAGE_OUTPUT;
    const struct hd_transfer_args args = {
        .sends = sends,
        .group = group,
        .stream = hd_comm_get_stream(m->open.comm, sends ? HD_COMM_STREAM_SEND_NEXT
                                                         : HD_COMM_STREAM_RECEIVE_PREVIOUS),
        .buffer = hd_store_address(&bases, rows),
        .count = rows->rows * rows->columns,
        .dtype = rows->dtype};

    return hd_runner_transfer(m->open.runner, &args, slot);
}

enum hd_status decoder_link_receive(struct decoder_link *l, struct hd_inference_rank *m,
                                    const struct hd_chunk *chunk, int micro_batch)
{
    return l->from
               ? transfer(m, chunk, micro_batch, HD_STAGE_INPUT, l->from, &l->arrivals[micro_batch])
               : HD_OK;
}

enum hd_status decoder_link_await(struct decoder_link *l, struct hd_inference_rank *m,
                                  int micro_batch)
{
    return l->from ? hd_runner_await(m->open.runner, &l->arrivals[micro_batch]) : HD_OK;
}

enum hd_status decoder_link_send(struct decoder_link *l, struct hd_inference_rank *m,
                                 const struct hd_chunk *chunk, int micro_batch)
{
    /* not stored: the join at the end of the run waits for this send */
    struct hd_transfer departure = {.stream = NULL};

    return l->to ? transfer(m, chunk, micro_batch, HD_STAGE_OUTPUT, l->to, &departure) : HD_OK;
}
