/* probe_collectives: measures how long each collective takes among 2, 4, 8 .. of the devices, by
 * bytes, and how fast a checkpoint is written. All groups of a size communicate at the same time,
 * as those of a mesh do.
 *
 * A round is several operations one after the other, each of which is waited for. So a time
 * contains what the engine needs to begin and to wake the members up (alpha) and what the bytes
 * need (beta). The best round counts: if another program delays one member for a moment, all
 * members wait.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/math.h"
#include "worker/probe.h"

enum {
    ROUNDS = 9,
    /* bytes of each half of the registered memory: the first is sent from, the second received
     * to */
    HALF_BYTES = (int64_t)PROBE_VISIBLE_MIB << 19,
    ROWS = 64, /* rows to each member of an all_to_all_v */
    WRITE_BYTES = 24 << 20
};

static const int64_t sizes[] = {256, 4 << 10, 64 << 10, 1 << 20, 8 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], QUICK_SIZES = 2 };

static const enum hd_comm_kind kinds[] = {
    HD_COMM_ALL_REDUCE, HD_COMM_ALL_GATHER,   HD_COMM_REDUCE_SCATTER,
    HD_COMM_ALL_TO_ALL, HD_COMM_ALL_TO_ALL_V, HD_COMM_BROADCAST,
    HD_COMM_SHIFT,      HD_COMM_SEND,         HD_COMM_BARRIER};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Launches one collective of `bytes`, counted as in plan/links.h; the bytes are equal on all
 * members. */
static enum hd_status launch(struct probe *p, struct hd_comm_group *g, struct hd_comm_stream *s,
                             enum hd_comm_kind kind, int64_t bytes)
{
    const int P = hd_comm_group_size(g), own = hd_comm_group_index(g);
    /* numbers in a row of an all_to_all_v, such that a member sends `bytes` to all others together */
    const int64_t count = bytes / 4, row = P > 1 ? hd_max(count / (ROWS * (P - 1)), 1) : 1;
    float *send = (float *)p->registered, *recv = (float *)(p->registered + HALF_BYTES);
    const bool in_place = kind == HD_COMM_ALL_REDUCE || kind == HD_COMM_BROADCAST;

    if (kind == HD_COMM_BARRIER)
        return hd_comm_barrier(g, s);
    if (kind == HD_COMM_SEND && own % 2 == 0)
        return hd_comm_send(g, s, &(struct hd_comm_send_args){send, count, HD_F32, own + 1});
    if (kind == HD_COMM_SEND)
        return hd_comm_recv(g, s, &(struct hd_comm_recv_args){recv, count, HD_F32, own - 1});
    return hd_comm_launch(
        g, s, kind,
        &(struct hd_collective_args){.send = send,
                                     .recv = in_place ? send : recv,
                                     .count = kind == HD_COMM_ALL_TO_ALL_V ? row : count,
                                     .dtype = HD_F32,
                                     .reduce = HD_COMM_SUM,
                                     .send_counts = p->counts,
                                     .recv_counts = p->counts + PROBE_DEVICES_MAX,
                                     .overflow = p->counts + 2 * (ptrdiff_t)PROBE_DEVICES_MAX,
                                     .send_rows_max = (int64_t)ROWS * P,
                                     .recv_rows_max = (int64_t)ROWS * P});
}

static enum hd_status time_one(struct probe *p, struct hd_comm_group *g, enum hd_comm_kind kind,
                               int64_t bytes)
{
    struct hd_comm_stream *s = hd_comm_get_stream(p->peers.comm, HD_COMM_STREAM_REDUCE);
    const int times = p->quick ? 2 : bytes <= 64 << 10 ? 40 : bytes <= 1 << 20 ? 8 : 3;
    struct probe_record r = {.what = PROBE_COLLECTIVE, .kind = kind, .bytes = (double)bytes};
    double best = 0;
    enum hd_status st = HD_OK;

    for (int round = -1; !st && round < ROUNDS; round++) {
        int64_t begin_ns;
        double seconds;

        st = hd_comm_barrier(g, s);
        if (!st)
            st = probe_wait(p, s);
        begin_ns = hd_clock_now_ns();
        for (int i = 0; !st && i < times; i++) {
            st = launch(p, g, s, kind, bytes);
            if (!st)
                st = probe_wait(p, s);
        }
        if (round < 0) /* the first round is not counted: it warms up */
            continue;
        seconds = 1e-9 * (double)(hd_clock_now_ns() - begin_ns) / times;
        best = best == 0 || seconds < best ? seconds : best;
    }
    if (st)
        return st;
    r.members = hd_comm_group_size(g);
    r.seconds = best > 1e-9 ? best : 1e-9;
    probe_keep(p, &r);
    return HD_OK;
}

/* Returns true if a collective of `bytes` fits the send and receive buffers. */
static bool fits(enum hd_comm_kind kind, int64_t bytes, int members)
{
    const bool of_each = kind == HD_COMM_ALL_GATHER || kind == HD_COMM_REDUCE_SCATTER ||
                         kind == HD_COMM_ALL_TO_ALL || kind == HD_COMM_ALL_TO_ALL_V;

    return bytes * (of_each ? members : 1) <= HALF_BYTES;
}

static enum hd_status time_group(struct probe *p, int members)
{
    const int count = p->quick ? QUICK_SIZES : SIZES, first = p->rank / members * members;
    int32_t ranks[PROBE_DEVICES_MAX];
    struct hd_comm_group *g = NULL;
    enum hd_status st = HD_OK;
    bool goes_on = true;

    for (int i = 0; i < members; i++)
        ranks[i] = first + i;
    if (first + members <= p->world)
        st = hd_comm_open_group(p->peers.comm, "probe", ranks, members, &g);
    for (int k = 0; !st && k < KINDS; k++) {
        st = probe_agree(p, &goes_on);
        if (st || !goes_on)
            return st;
        for (int i = 0; !st && g && i < (kinds[k] == HD_COMM_BARRIER ? 1 : count); i++)
            if (fits(kinds[k], sizes[i], members) && (kinds[k] != HD_COMM_SEND || members == 2))
                st = time_one(p, g, kinds[k], sizes[i]);
    }
    return st;
}

/* Sets the row counts of all_to_all_v, equal for all members, in memory of the device. */
static enum hd_status set_counts(struct probe *p)
{
    int32_t counts[PROBE_DEVICES_MAX];

    p->counts = (int32_t *)(p->registered + ((int64_t)PROBE_VISIBLE_MIB << 20));
    for (int i = 0; i < PROBE_DEVICES_MAX; i++)
        counts[i] = ROWS;
    if (p->is_gpu)
        return p->table->device->write(p->stream, p->counts, counts, sizeof counts);
    memcpy(p->counts, counts, sizeof counts);
    return HD_OK;
}

enum hd_status probe_collectives(struct probe *p)
{
    enum hd_status st = p->world > 1 ? set_counts(p) : HD_OK;

    for (int members = 2; !st && members < p->world; members *= 2)
        st = time_group(p, members);
    return st || p->world < 2 ? st : time_group(p, p->world);
}

enum hd_status probe_write(struct probe *p)
{
    struct probe_record r = {.what = PROBE_WRITE};
    const int64_t bytes = p->quick ? 1 << 20 : WRITE_BYTES;
    char path[PROBE_DIR_MAX + 32], *data = calloc(1, (size_t)bytes);
    bool goes_on;
    enum hd_status st = data ? probe_agree(p, &goes_on)
                             : hd_err(HD_NO_MEMORY, "no memory for a checkpoint's piece");
    int fd = -1;

    (void)snprintf(path, sizeof path, "%s/written-%d", p->dir, p->rank);
    if (!st && goes_on) {
        const int64_t begin_ns = hd_clock_now_ns();

        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd >= 0 && !hd_file_write_all(fd, data, (size_t)bytes) && fsync(fd) == 0) {
            r.seconds = 1e9 * (double)bytes / (double)(hd_clock_now_ns() - begin_ns);
            probe_keep(p, &r);
        } /* after a failure the write speed stays unknown; a plan works without it */
        if (fd >= 0)
            (void)close(fd);
        (void)unlink(path);
    }
    free(data);
    return st;
}
