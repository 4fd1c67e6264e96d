#include "comm/shm_control.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "comm/comm_internal.h"
#include "comm/shm_layout.h"

struct hd_shm_control {
    int world, control_fd;
    struct shm_block *block;
    int rank_fds[]; /* [world]; descriptors of the regions of the ranks */
};

/* ---- the block ---- */

void shm_fail(struct shm_block *block, int reason_index, enum hd_status st, const char *text)
{
    struct shm_reason *reason = &block->reasons[reason_index];
    uint32_t none = 0;

    if (atomic_load(&block->failure) == 0 && !atomic_exchange(&reason->claimed, 1)) {
        reason->status = (uint32_t)st;
        (void)snprintf(reason->text, sizeof reason->text, "%s", text);
        (void)atomic_compare_exchange_strong(&block->failure, &none, 1 + (uint32_t)reason_index);
    }
    for (int r = 0; r < (int)block->world; r++) /* wake, not ring: also wakes ranks that are about
                                                   to sleep */
        hd_comm_doorbell_wake(&shm_block_area(block, r)->doorbell);
}

enum hd_status shm_failure(const struct shm_block *block, int *ret_reason_index,
                           const char **ret_text)
{
    const uint32_t failure = atomic_load(&block->failure);

    if (failure == 0)
        return HD_OK;
    *ret_reason_index = (int)failure - 1;
    *ret_text = block->reasons[failure - 1].text;
    return (enum hd_status)block->reasons[failure - 1].status;
}

/* ---- the parent's side ---- */

enum hd_status hd_shm_control_new(int world, struct hd_shm_control **ret_ctl)
{
    struct hd_shm_control *ctl;
    enum hd_status st = hd_comm_check_world(HD_COMM_BY_SHM, 0, world);

    if (st)
        return st;
    ctl = calloc(1, sizeof *ctl + (size_t)world * sizeof ctl->rank_fds[0]);
    if (!ctl)
        return hd_err(HD_NO_MEMORY, "shm: no memory for the control of %d ranks", world);
    ctl->world = world;
    ctl->block = MAP_FAILED;
    for (int r = 0; r < world; r++)
        ctl->rank_fds[r] = -1;

    ctl->control_fd = memfd_create("heddle-control", MFD_CLOEXEC);
    if (ctl->control_fd < 0 || ftruncate(ctl->control_fd, (off_t)shm_block_bytes(world)) < 0)
        st = hd_err(HD_IO, "shm: cannot create the control block: %s", strerror(errno));
    for (int r = 0; r < world && !st; r++) {
        char name[32];

        (void)snprintf(name, sizeof name, "heddle-rank-%d", r);
        ctl->rank_fds[r] = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (ctl->rank_fds[r] < 0)
            st = hd_err(HD_IO, "shm: cannot create the memory of rank %d: %s", r, strerror(errno));
    }
    if (!st) {
        ctl->block = mmap(NULL, shm_block_bytes(world), PROT_READ | PROT_WRITE, MAP_SHARED,
                          ctl->control_fd, 0);
        if (ctl->block == MAP_FAILED)
            st = hd_err(HD_NO_MEMORY, "shm: cannot map the control block: %s", strerror(errno));
    }
    if (st) {
        hd_shm_control_free(ctl);
        return st;
    }
    shm_block_init(ctl->block, world);
    *ret_ctl = ctl;
    return HD_OK;
}

void hd_shm_control_free(struct hd_shm_control *ctl)
{
    if (!ctl)
        return;
    if (ctl->block != MAP_FAILED)
        (void)munmap(ctl->block, shm_block_bytes(ctl->world));
    for (int r = 0; r < ctl->world; r++) {
        if (ctl->rank_fds[r] >= 0)
            (void)close(ctl->rank_fds[r]);
    }
    if (ctl->control_fd >= 0)
        (void)close(ctl->control_fd);
    free(ctl);
}

int hd_shm_control_world(const struct hd_shm_control *ctl)
{
    return ctl->world;
}

int hd_shm_control_fd(const struct hd_shm_control *ctl)
{
    return ctl->control_fd;
}

const int *hd_shm_control_rank_fds(const struct hd_shm_control *ctl)
{
    return ctl->rank_fds;
}

void hd_shm_control_keep_over_exec(const struct hd_shm_control *ctl)
{
    (void)fcntl(ctl->control_fd, F_SETFD, 0);
    for (int r = 0; r < ctl->world; r++)
        (void)fcntl(ctl->rank_fds[r], F_SETFD, 0);
}

enum hd_status hd_shm_control_format(const struct hd_shm_control *ctl, char *ret_text,
                                     size_t size_bytes)
{
    size_t len = 0;

    for (int i = -1; i < ctl->world; i++) {
        const int n = snprintf(ret_text + len, size_bytes - len, "%s%d", i < 0 ? "" : ",",
                               i < 0 ? ctl->control_fd : ctl->rank_fds[i]);

        if (n < 0 || (size_t)n >= size_bytes - len)
            return hd_err(HD_LIMIT, "shm: the descriptors of %d ranks do not fit %zu bytes",
                          ctl->world, size_bytes);
        len += (size_t)n;
    }
    return HD_OK;
}

enum hd_status hd_shm_control_parse(const char *text, struct hd_shm_fds *ret_fds)
{
    struct hd_shm_fds fds = {.control_fd = -1, .world = -1};
    const char *at = text;

    while (*at) {
        char word[16];
        const size_t len = strcspn(at, ",");
        int64_t fd;

        if (len >= sizeof word || fds.world == HD_COMM_SHM_RANKS_MAX)
            break;
        memcpy(word, at, len);
        word[len] = '\0';
        if (hd_text_to_int64(word, 0, INT32_MAX, &fd) != HD_OK)
            break;
        if (fds.world < 0)
            fds.control_fd = (int)fd;
        else
            fds.rank_fds[fds.world] = (int)fd;
        fds.world++;
        at += len;
        if (*at == ',' && at[1])
            at++;
    }
    if (*at || fds.world < 1)
        return hd_err(HD_INVALID,
                      "shm: \"%s\" is not a list of descriptors; expected CONTROL,RANK0,RANK1...",
                      text);
    *ret_fds = fds;
    return HD_OK;
}

void hd_shm_control_mark_dead(struct hd_shm_control *ctl, int rank, const char *reason)
{
    if (rank >= 0 && rank < ctl->world)
        shm_fail(ctl->block, shm_reason_of_death(ctl->world, rank), HD_ABORTED, reason);
}

void hd_shm_control_abort(struct hd_shm_control *ctl, const char *reason)
{
    shm_fail(ctl->block, shm_reason_of_parent(ctl->world), HD_ABORTED, reason);
}

bool hd_shm_control_failure(const struct hd_shm_control *ctl, int *ret_rank,
                            enum hd_status *ret_status, char ret_reason[HD_SHM_REASON_MAX])
{
    const char *text = "";
    int index = 0;
    const enum hd_status st = shm_failure(ctl->block, &index, &text);

    if (!st)
        return false;
    *ret_rank = index == shm_reason_of_parent(ctl->world) ? -1 : index % ctl->world;
    *ret_status = st;
    (void)snprintf(ret_reason, HD_SHM_REASON_MAX, "%s", text);
    return true;
}

/* ---- the flight record ---- */

int hd_shm_control_flight(const struct hd_shm_control *ctl, int rank,
                          struct hd_flight_record ret_records[HD_FLIGHT_MAX])
{
    return hd_comm_flight_read(&shm_block_area(ctl->block, rank)->flight, ret_records);
}

void hd_shm_control_wait(const struct hd_shm_control *ctl, int rank,
                         struct hd_flight_wait *ret_wait)
{
    const struct shm_area *area = shm_block_area(ctl->block, rank);

    hd_comm_wait_read(&area->wait, &area->flight, ret_wait);
}

void hd_shm_control_be_patient(struct hd_shm_control *ctl, int64_t until_ms)
{
    for (int r = 0; r < ctl->world; r++)
        atomic_store(&shm_block_area(ctl->block, r)->wait.patient_until_ms, until_ms);
}
