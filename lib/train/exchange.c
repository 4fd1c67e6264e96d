/* exchange: gathers small messages of each rank on every rank. */
#include <assert.h>
#include <string.h>

#include "train/trainer.h"

enum hd_status hd_trainer_exchange(struct hd_trainer *t, const void *mine, size_t size_bytes,
                                   const char **ret_all)
{
    const int64_t all_bytes = t->rank_program.mesh.world * (int64_t)HD_EXCHANGE_SLOT_BYTES;
    struct hd_comm_stream *stream = hd_comm_get_stream(t->open.comm, HD_COMM_STREAM_REDUCE);
    char *all = t->registered_base + t->rank_program.exchange, *own = all + all_bytes;
    char slot[HD_EXCHANGE_SLOT_BYTES] = {0};
    enum hd_status st;

    assert(size_bytes <= sizeof slot);
    memcpy(slot, mine, size_bytes);
    st = hd_staging_write(&t->open.staging, own, slot, sizeof slot);
    if (!st)
        st = hd_comm_follow(stream, hd_runner_stream(t->open.runner));
    if (!st)
        st = hd_comm_launch(t->world, stream, HD_COMM_ALL_GATHER,
                            HD_COLLECTIVE(own, all, (int64_t)HD_EXCHANGE_SLOT_BYTES, HD_U8));
    if (!st)
        st = hd_comm_wait(stream, hd_comm_record(stream));
    if (!st)
        st = hd_staging_read(&t->open.staging, t->messages, all, all_bytes);
    *ret_all = t->messages;
    return st;
}

enum hd_status hd_trainer_agree(struct hd_trainer *t, int64_t request, int64_t *ret_request)
{
    const char *all;
    enum hd_status st = hd_trainer_exchange(t, &request, sizeof request, &all);

    if (st)
        return st;
    *ret_request = request;
    for (int r = 0; r < t->rank_program.mesh.world; r++) {
        int64_t one;

        memcpy(&one, all + r * (int64_t)HD_EXCHANGE_SLOT_BYTES, sizeof one);
        *ret_request = one > *ret_request ? one : *ret_request;
    }
    return HD_OK;
}

enum hd_status hd_trainer_share(struct hd_trainer *t, double *values, int64_t count,
                                int64_t (*owner)(const void *of, int64_t index), const void *of)
{
    enum { EACH = HD_EXCHANGE_SLOT_BYTES / sizeof(double) };
    enum hd_status st = HD_OK;

    for (int64_t at = 0; !st && at < count; at += EACH) {
        const int64_t n = count - at < EACH ? count - at : EACH;
        const char *all;

        st = hd_trainer_exchange(t, values + at, (size_t)n * sizeof *values, &all);
        for (int64_t i = 0; !st && i < n; i++)
            memcpy(&values[at + i],
                   all + owner(of, at + i) * (int64_t)HD_EXCHANGE_SLOT_BYTES +
                       i * (int64_t)sizeof *values,
                   sizeof *values);
    }
    return st;
}
