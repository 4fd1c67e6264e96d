/* comm: the engine nccl over gloo, whose word of peers nobody brings into this rank's memory: it is
 * heard although the thread that owns the endpoint stands in a call that does not return. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/gloo.h"
#include "comm/nccl.h"
#include "device.h"
#include "tests/cudasim/nccl_stand_in.h"
#include "tests/program/test.h"

enum { WORLD = 2, DEADLINE_MS = 60000, SOON_MS = 30000 };

struct rank {
    int rank;
    struct hd_gloo_listener *listener;
    const struct hd_gloo_endpoint *endpoints;
    const char *reason; /* rank 1 aborts with it */
    pthread_t thread;
    _Atomic int *blocked;
    enum hd_status status; /* HD_OK: also what should not happen */
    char message[HD_ERR_MAX];
    int64_t took_ms;
};

static enum hd_status open_rank(const struct rank *self, struct hd_comm_device *device,
                                struct hd_comm **ret_comm)
{
    const struct hd_backend_options options = {.threads = 1};
    struct hd_comm *host;
    enum hd_status st;

    *device = (struct hd_comm_device){.table = ranks_device(), .host_reachable = true};
    st = device->table->open(&options, &device->backend);
    if (!st)
        st = hd_comm_open_gloo(self->listener, self->endpoints, self->rank, WORLD, DEADLINE_MS,
                               &host);
    return st ? st
              : hd_comm_open_nccl(host, device,
                                  &(struct hd_comm_nccl_options){.deadline_ms = DEADLINE_MS},
                                  ret_comm);
}

static enum hd_status sum_once(struct hd_comm *comm, struct hd_comm_group *group, int32_t *x)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(comm, HD_COMM_STREAM_REDUCE);
    const enum hd_status st = hd_comm_launch(group, stream, HD_COMM_ALL_REDUCE,
                                             HD_COLLECTIVE(x, x, 1, HD_I32, .reduce = HD_COMM_SUM));

    return st ? st : hd_comm_wait(stream, hd_comm_record(stream));
}

/* Both sum once; then rank 0 stands in its second sum, and rank 1 fails. */
static enum hd_status fail_beside_a_blocked_owner(struct rank *self, struct hd_comm *comm)
{
    static const int32_t everybody[] = {0, 1};
    struct hd_comm_group *group;
    void *base;
    enum hd_status st = hd_comm_alloc_registered(comm, 4096, &base);

    if (!st)
        st = hd_comm_open_group(comm, "world", everybody, WORLD, &group);
    if (!st)
        st = sum_once(comm, group, base);
    if (st) {
        self->took_ms = SOON_MS; /* too early */
        return st;
    }
    if (self->rank == 0) {
        const int64_t begin_ms = hd_clock_now_ms();

        hd_nccl_stand_in_defect(0, HD_NCCL_BLOCKED);
        atomic_store(self->blocked, 1);
        st = sum_once(comm, group, base);
        self->took_ms = hd_clock_now_ms() - begin_ms;
        return st;
    }
    while (!atomic_load(self->blocked))
        (void)usleep(500);
    (void)usleep(50000); /* it is in its call by now, or will be */
    hd_comm_abort(comm, self->reason);
    return hd_comm_failure(comm);
}

static void *run_rank(void *arg)
{
    struct rank *self = arg;
    struct hd_comm_device device;
    struct hd_comm *comm = NULL;

    self->status = open_rank(self, &device, &comm);
    if (!self->status)
        self->status = fail_beside_a_blocked_owner(self, comm);
    (void)snprintf(self->message, sizeof self->message, "%s", self->status ? hd_err_message() : "");
    hd_comm_free(comm);
    device.table->close(device.backend);
    return NULL;
}

static void a_peers_failure_is_heard_beside_a_blocked_owner(void **state)
{
    struct hd_gloo_endpoint endpoints[WORLD];
    struct rank ranks[WORLD];
    _Atomic int blocked = 0;

    for (int r = 0; r < WORLD; r++) {
        ranks[r] = (struct rank){.rank = r,
                                 .endpoints = endpoints,
                                 .reason = "the loss is not a number",
                                 .blocked = &blocked};
        assert_int_equal(hd_gloo_listener_open("127.0.0.1", "here", &ranks[r].listener), HD_OK);
        endpoints[r] = *hd_gloo_listener_endpoint(ranks[r].listener);
    }
    for (int r = 0; r < WORLD; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
        hd_gloo_listener_close(ranks[r].listener);
    }
    hd_nccl_stand_in_defect(0, HD_NCCL_WELL);
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(ranks[r].status, HD_ABORTED);
        assert_non_null(strstr(ranks[r].message, "rank 1 failed first: the loss is not a number"));
        assert_true(ranks[r].took_ms < SOON_MS);
    }
    assert_int_equal(hd_nccl_stand_in_open(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};

    ranks_device_seed(42);
    return cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
}
