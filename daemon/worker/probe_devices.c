/* probe_devices: measures the bandwidth of a device's memory, and latency and bandwidth between
 * each two devices.
 *
 * Memory: sums of arrays that are larger than a device's share of the caches, all devices at the
 * same time. Pairs: a round-robin tournament; in each round every device has one partner, and after
 * world - 1 rounds (world, if that is odd) it has had all of them. The best time counts.
 */

#include "base/clock.h"
#include "worker/probe.h"

enum {
    ARRAY_BYTES = 32 << 20,
    GPU_ARRAY_BYTES = 256 << 20,
    SUMS = 5,
    SHORT_BYTES = 256,
    LONG_BYTES = 8 << 20,
    SHORT_TIMES = 200,
    ROUNDS = 5
};

/* ---- memory ---- */

static int64_t array_bytes(const struct probe *p)
{
    const int64_t bytes = p->is_gpu ? GPU_ARRAY_BYTES : ARRAY_BYTES;

    return p->quick ? ARRAY_BYTES / 16 : bytes;
}

static enum hd_status time_sums(struct probe *p, void *const arrays[3])
{
    const int64_t count = array_bytes(p) / (int64_t)sizeof(float);
    const struct hd_add_args args = {
        .out = arrays[0], .a = arrays[1], .b = arrays[2], .N = count, .dtype = HD_F32};
    struct probe_record r = {.what = PROBE_MEMORY, .bytes = 3.0 * (double)count * sizeof(float)};
    double best_s = 0;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i <= SUMS; i++) {
        double s = 0;

        st = probe_begin(p);
        if (!st)
            st = hd_launch(p->stream, HD_K_add, &args);
        if (!st)
            st = probe_end(p, &s);
        /* the first sum is not counted: it touches the pages */
        if (i > 0 && (best_s == 0 || s < best_s))
            best_s = s;
    }
    if (!st && best_s > 0) {
        r.seconds = r.bytes / best_s;
        probe_keep(p, &r);
    }
    return st;
}

enum hd_status probe_memory(struct probe *p)
{
    void *arrays[3] = {NULL, NULL, NULL};
    bool goes_on;
    enum hd_status st = probe_agree(p, &goes_on);

    if (st || !goes_on)
        return st;
    st = probe_open(p);
    for (int i = 0; !st && i < 3; i++) {
        st = probe_reserve(p, array_bytes(p), &arrays[i]);
        if (!st)
            st = probe_fill(p, arrays[i], array_bytes(p));
    }
    if (!st)
        st = time_sums(p, arrays);
    for (int i = 0; i < 3; i++)
        probe_release(p, arrays[i]);
    probe_close(p);
    return st;
}

/* ---- pairs ---- */

/* Returns the partner of `rank` in this round of a round-robin tournament of `players` (even), by
 * the circle method; player `players` - 1 is the fixed one. */
static int partner_of(int rank, int round, int players)
{
    const int last = players - 1;
    int other;

    if (rank == last)
        return round;
    other = (2 * round - rank + 2 * last) % last;
    return other == rank ? last : other;
}

/* Sends one message to the partner, or receives one, and waits. */
static enum hd_status message(struct probe *p, struct hd_comm_stream *s, int partner, bool sends,
                              int64_t bytes)
{
    enum hd_status st;

    if (sends)
        st = hd_comm_send(p->group, s,
                          &(struct hd_comm_send_args){p->registered, bytes / 4, HD_F32, partner});
    else
        st = hd_comm_recv(p->group, s,
                          &(struct hd_comm_recv_args){p->registered, bytes / 4, HD_F32, partner});
    return st ? st : probe_wait(p, s);
}

/* Measures half the round trip of a message of `bytes`, in seconds. */
static enum hd_status time_messages(struct probe *p, int partner, int64_t bytes, int times,
                                    double *ret_seconds)
{
    struct hd_comm_stream *s = hd_comm_get_stream(p->peers.comm, HD_COMM_STREAM_REDUCE);
    const bool first = p->rank < partner;
    double best = 0;
    enum hd_status st = HD_OK;

    for (int round = -1; !st && round < ROUNDS; round++) {
        const int64_t begin_ns = hd_clock_now_ns();
        double seconds;

        for (int i = 0; !st && i < times; i++) {
            st = message(p, s, partner, first, bytes);
            if (!st)
                st = message(p, s, partner, !first, bytes);
        }
        seconds = 0.5e-9 * (double)(hd_clock_now_ns() - begin_ns) / times;
        /* the first round is not counted: it warms up */
        if (round >= 0 && (best == 0 || seconds < best))
            best = seconds;
    }
    *ret_seconds = best > 1e-9 ? best : 1e-9;
    return st;
}

static enum hd_status time_pair(struct probe *p, int partner)
{
    struct probe_record r = {.what = PROBE_PAIR, .members = partner};
    double longer;
    enum hd_status st =
        time_messages(p, partner, SHORT_BYTES, p->quick ? 4 : SHORT_TIMES, &r.seconds);

    if (!st)
        st = time_messages(p, partner, LONG_BYTES, 1, &longer);
    if (st || p->rank > partner)
        return st;
    r.bandwidth = longer > r.seconds ? LONG_BYTES / (longer - r.seconds) : LONG_BYTES / longer;
    probe_keep(p, &r);
    return HD_OK;
}

enum hd_status probe_pairs(struct probe *p)
{
    const int players = p->world + p->world % 2;
    enum hd_status st = HD_OK;
    bool goes_on = true;

    for (int round = 0; p->world > 1 && !st && round < players - 1; round++) {
        const int partner = partner_of(p->rank, round, players);

        st = probe_agree(p, &goes_on);
        if (st || !goes_on)
            return st;
        if (partner < p->world)
            st = time_pair(p, partner);
    }
    return st;
}
