/* nccl_limits: how many blocks NCCL's kernels may have, and how much memory its connections take. */
#include "comm/nccl.h"

enum {
    /* Blocks of gathers and sums: with 16, six communicators and four channels of transfers fit on
     * the 132 multiprocessors of an H100 at the same time. A channel moves about 20 GB/s. */
    COLLECTIVE_BLOCKS = 16,
    COLLECTIVE_SHARE = 6, /* a communicator gets at most one of so many multiprocessors */
    TRANSFER_BLOCKS = 4,
    TRANSFER_SHARE = 24
};

int hd_comm_nccl_blocks(bool transfers, int multiprocessors)
{
    const int share = multiprocessors / (transfers ? TRANSFER_SHARE : COLLECTIVE_SHARE);
    int blocks = transfers ? TRANSFER_BLOCKS : COLLECTIVE_BLOCKS;

    while (blocks > 1 && blocks > share)
        blocks /= 2;
    return blocks;
}

int hd_comm_nccl_channels(int blocks)
{
    return blocks < HD_NCCL_P2P_CHANNELS ? blocks : HD_NCCL_P2P_CHANNELS;
}

int64_t hd_comm_nccl_connection_bytes(const struct hd_comm_nccl_shape *s)
{
    const bool exchanges =
        s->uses & HD_COMM_USE_EXCHANGE || (s->uses & HD_COMM_USE_SUM && !s->native);
    const int64_t both = HD_NCCL_SEND_BYTES + HD_NCCL_RECEIVE_BYTES;
    const int channels = hd_comm_nccl_channels(s->blocks);
    const int near = (HD_NCCL_NODE_RANKS + s->stride - 1) / s->stride;
    const int peers = (s->size < near ? s->size : near) - 1;
    int64_t bytes = 0;

    if (s->size < 2)
        return 0;
    if (s->uses & (HD_COMM_USE_GATHER | HD_COMM_USE_SUM | HD_COMM_USE_EXCHANGE | HD_COMM_USE_SHIFT))
        bytes += s->blocks * both; /* a ring: hd_comm_connect ends with a gather */
    if (s->uses & HD_COMM_USE_SUM && s->native)
        bytes += HD_NCCL_TREES * s->blocks * both;
    if (exchanges)
        bytes += peers * channels * both + (peers < s->size - 1 ? HD_NCCL_NETWORK_BYTES : 0);
    else if (s->uses & HD_COMM_USE_SHIFT)
        bytes += channels * both;
    if (s->uses & HD_COMM_USE_SEND)
        bytes += channels * (int64_t)HD_NCCL_SEND_BYTES;
    if (s->uses & HD_COMM_USE_RECEIVE)
        bytes += channels * (int64_t)HD_NCCL_RECEIVE_BYTES;
    return bytes;
}
