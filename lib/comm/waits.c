/* waits: for whom a rank waits on the host, told where its supervisor can read it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "comm/shm_layout.h"

static void wait_tell(struct hd_comm_wait_slot *slot, uint64_t launch, int peer, int64_t since_ms,
                      int64_t now_ms)
{
    if (atomic_load_explicit(&slot->launch, memory_order_relaxed) != launch)
        atomic_store(&slot->launch, 0);
    atomic_store(&slot->peer, peer);
    atomic_store(&slot->since_ms, since_ms);
    atomic_store(&slot->seen_ms, now_ms);
    atomic_store(&slot->launch, launch);
}

void hd_comm_wait_tell(struct hd_comm *comm, uint64_t launch, int peer, int64_t since_ms,
                       int64_t now_ms)
{
    wait_tell(comm->wait, launch, peer, since_ms, now_ms);
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

    *ret_wait = (struct hd_flight_wait){.is_told = atomic_load(&slot->tells) != 0,
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

struct hd_comm_board {
    void *block; /* the mapping */
    size_t size_bytes;
    struct shm_area *area; /* of this rank */
    int awaited;           /* -1: none */
    int64_t since_ms;
};

enum { CONNECTING = 1 }; /* as if in an operation that has no record yet */

enum hd_status hd_comm_board_open(int control_fd, int index, int world_here,
                                  struct hd_comm_board **ret_board)
{
    const size_t size_bytes = shm_block_bytes(world_here);
    enum hd_status st = shm_block_check(control_fd, world_here);
    struct hd_comm_board *board = st ? NULL : calloc(1, sizeof *board);

    if (st)
        return st;
    if (!board)
        return hd_err(HD_NO_MEMORY, "comm: no memory for the waits of a rank");
    board->block = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
    if (board->block == MAP_FAILED) {
        free(board);
        return hd_err(HD_NO_MEMORY, "comm: cannot map the control block: %s", strerror(errno));
    }
    board->size_bytes = size_bytes;
    board->area = shm_block_area(board->block, index);
    board->awaited = -1;
    *ret_board = board;
    return HD_OK;
}

void hd_comm_board_close(struct hd_comm_board *board)
{
    if (!board)
        return;
    (void)munmap(board->block, board->size_bytes);
    free(board);
}

void hd_comm_board_awaits(struct hd_comm_board *board, int rank)
{
    const int64_t now_ms = hd_clock_now_ms();

    if (rank != board->awaited)
        board->since_ms = now_ms;
    board->awaited = rank;
    wait_tell(&board->area->wait, rank < 0 ? 0 : CONNECTING, rank, board->since_ms, now_ms);
    atomic_store(&board->area->wait.tells, 1);
}

void hd_comm_show_in(struct hd_comm *comm, struct hd_comm_board *board)
{
    comm->shown = board->block;
    comm->shown_bytes = board->size_bytes;
    comm->flight = &board->area->flight;
    comm->wait = &board->area->wait;
    atomic_store(&comm->wait->tells, 1);
    free(board);
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
    return !comm->side;
}
