/* waits: publishes the rank for which this rank waits on the host, in memory that its supervisor
 * can read. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "comm/shm_layout.h"

static void wait_report(struct hd_comm_wait_slot *slot, uint64_t launch, int peer, int64_t since_ms,
                        int64_t now_ms)
{
    if (atomic_load_explicit(&slot->launch, memory_order_relaxed) != launch)
        atomic_store(&slot->launch, 0);
    atomic_store(&slot->peer, peer);
    atomic_store(&slot->since_ms, since_ms);
    atomic_store(&slot->seen_ms, now_ms);
    atomic_store(&slot->launch, launch);
}

void hd_comm_wait_report(struct hd_comm *comm, uint64_t launch, int peer, int64_t since_ms,
                         int64_t now_ms)
{
    wait_report(comm->wait, launch, peer, since_ms, now_ms);
}

void hd_comm_wait_end(struct hd_comm *comm)
{
    if (atomic_load_explicit(&comm->wait->launch, memory_order_relaxed))
        atomic_store(&comm->wait->launch, 0);
}

bool hd_comm_is_patient(const struct hd_comm *comm)
{
    return hd_clock_now_ms() < atomic_load(&comm->wait->patient_until_ms);
}

void hd_comm_wait_read(const struct hd_comm_wait_slot *slot, const struct hd_comm_flight *flight,
                       struct hd_flight_wait *ret_wait)
{
    const uint64_t launch = atomic_load(&slot->launch);
    struct hd_flight_record records[HD_FLIGHT_MAX];
    int count;

    *ret_wait = (struct hd_flight_wait){.is_reported = atomic_load(&slot->reports) != 0,
                                        .rank = atomic_load(&slot->peer),
                                        .since_ms = atomic_load(&slot->since_ms),
                                        .seen_ms = atomic_load(&slot->seen_ms)};
    ret_wait->waits = launch && atomic_load(&slot->launch) == launch;
    if (!ret_wait->waits)
        return;
    count = hd_comm_flight_read(flight, records);
    for (int i = 0; i < count && !ret_wait->has_record; i++)
        if (records[i].launch == launch) {
            ret_wait->has_record = true;
            ret_wait->record = records[i];
        }
}

struct hd_comm_status_page {
    void *block; /* mapping of the control block */
    size_t size_bytes;
    struct shm_area *area; /* area of this rank */
    int waited_for;        /* rank that was reported last as waited for; -1: none */
    int64_t since_ms;
};

enum { CONNECTING = 1 }; /* operation number while connecting: no record exists yet */

enum hd_status hd_comm_status_page_open(int control_fd, int index, int world_here,
                                        struct hd_comm_status_page **ret_status_page)
{
    const size_t size_bytes = shm_block_bytes(world_here);
    enum hd_status st = shm_block_check(control_fd, world_here);
    struct hd_comm_status_page *status_page = st ? NULL : calloc(1, sizeof *status_page);

    if (st)
        return st;
    if (!status_page)
        return hd_err(HD_NO_MEMORY, "comm: no memory for the waits of a rank");
    status_page->block = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (status_page->block == MAP_FAILED) {
        free(status_page);
        return hd_err(HD_NO_MEMORY, "comm: cannot map the control block: %s", strerror(errno));
    }
    status_page->size_bytes = size_bytes;
    status_page->area = shm_block_area(status_page->block, index);
    status_page->waited_for = -1;
    *ret_status_page = status_page;
    return HD_OK;
}

void hd_comm_status_page_close(struct hd_comm_status_page *status_page)
{
    if (!status_page)
        return;
    (void)munmap(status_page->block, status_page->size_bytes);
    free(status_page);
}

void hd_comm_status_page_waiting_on(struct hd_comm_status_page *status_page, int rank)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (rank != status_page->waited_for)
        status_page->since_ms = now_ms;
    status_page->waited_for = rank;
    wait_report(&status_page->area->wait, rank < 0 ? 0 : CONNECTING, rank, status_page->since_ms,
                now_ms);
    atomic_store(&status_page->area->wait.reports, 1);
}

void hd_comm_show_in(struct hd_comm *comm, struct hd_comm_status_page *status_page)
{
    comm->shown = status_page->block;
    comm->shown_bytes = status_page->size_bytes;
    comm->flight = &status_page->area->flight;
    comm->wait = &status_page->area->wait;
    atomic_store(&comm->wait->reports, 1);
    free(status_page);
}

bool hd_comm_take_waited(struct hd_comm *comm, struct hd_comm_waited *ret_waited)
{
    struct hd_comm_waited waited = {.ns = comm->waited_ns, .rank = -1};

    for (int r = 0; r < comm->world; r++) {
        if (comm->waited_for_ns[r] > waited.rank_ns) {
            waited.rank = r;
            waited.rank_ns = comm->waited_for_ns[r];
        }
        comm->waited_for_ns[r] = 0;
    }
    comm->waited_ns = 0;
    *ret_waited = waited;
    return !comm->device_streams;
}
