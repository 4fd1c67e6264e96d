#include "daemon/agent/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/attempt/spool.h"

struct sent {
    int64_t rank, seq;
    struct hd_spool_position at; /* position of the report in the spool */
    bool acked;
};

struct agent_outbox {
    char *run_dir;
    struct hd_spool_reader *reader;
    int64_t removed_before; /* number of the spool's first segment that is not yet removed */
    /* first entry and number of entries of the ring of unacknowledged reports */
    size_t first, count;
    struct sent ring[AGENT_IN_FLIGHT_MAX];
};

enum hd_status agent_outbox_open(const char *run_dir, struct agent_outbox **ret_outbox)
{
    struct agent_outbox *o = calloc(1, sizeof *o);
    enum hd_status st;

    if (o)
        o->run_dir = strdup(run_dir);
    if (!o || !o->run_dir)
        st = hd_err(HD_NO_MEMORY, "no memory for reports");
    else
        st = hd_spool_reader_open(run_dir, &o->reader);
    if (st) {
        agent_outbox_close(o);
        return st;
    }
    *ret_outbox = o;
    return HD_OK;
}

void agent_outbox_close(struct agent_outbox *outbox)
{
    if (!outbox)
        return;
    hd_spool_reader_close(outbox->reader);
    free(outbox->run_dir);
    free(outbox);
}

static struct sent *at(struct agent_outbox *o, size_t index)
{
    return &o->ring[(o->first + index) % AGENT_IN_FLIGHT_MAX];
}

enum hd_status agent_outbox_next(struct agent_outbox *outbox, struct hd_link_report *ret_report)
{
    struct hd_spool_position before;
    enum hd_status st;

    if (outbox->count == AGENT_IN_FLIGHT_MAX)
        return hd_err(HD_LIMIT, "%d reports wait to be acknowledged", AGENT_IN_FLIGHT_MAX);
    before = hd_spool_get_pos(outbox->reader);
    st = hd_spool_read(outbox->reader, ret_report);
    if (st)
        return st;
    if (hd_spool_get_pos(outbox->reader).segment != before.segment)
        before = (struct hd_spool_position){hd_spool_get_pos(outbox->reader).segment, 0};
    *at(outbox, outbox->count++) =
        (struct sent){.rank = ret_report->rank, .seq = ret_report->seq, .at = before};
    return HD_OK;
}

void agent_outbox_unsend(struct agent_outbox *outbox)
{
    hd_spool_seek(outbox->reader, at(outbox, --outbox->count)->at);
}

void agent_outbox_ack(struct agent_outbox *outbox, int64_t rank, int64_t seq)
{
    int64_t needed;

    for (size_t i = 0; i < outbox->count; i++)
        if (at(outbox, i)->rank == rank && at(outbox, i)->seq <= seq)
            at(outbox, i)->acked = true;
    while (outbox->count && at(outbox, 0)->acked) {
        outbox->first = (outbox->first + 1) % AGENT_IN_FLIGHT_MAX;
        outbox->count--;
    }
    needed = outbox->count ? at(outbox, 0)->at.segment : hd_spool_get_pos(outbox->reader).segment;
    if (needed > outbox->removed_before) {
        hd_spool_remove_before(outbox->run_dir, needed);
        outbox->removed_before = needed;
    }
}

void agent_outbox_rewind(struct agent_outbox *outbox)
{
    if (outbox->count)
        hd_spool_seek(outbox->reader, at(outbox, 0)->at);
    outbox->count = 0;
}

bool agent_outbox_is_empty(struct agent_outbox *outbox)
{
    struct hd_link_report report;
    enum hd_status st;

    if (outbox->count)
        return false;
    st = agent_outbox_next(outbox, &report);
    if (!st)
        agent_outbox_unsend(outbox);
    return st == HD_UNAVAILABLE;
}
