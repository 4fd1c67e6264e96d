/* comm: the engine nccl on a GPU, 2 and 4 processes on one: NCCL takes each for a node of its own
 * (NCCL_HOSTID) and goes through sockets, one time slice of the device per step of a ring. So the
 * numbers are small, and the deadline is what a test needs, not what a step would. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/nccl.h"
#include "comm/shm_control.h"
#include "kernels/plugin.h"
#include "tests/program/test.h"

enum { WORLD_MAX = 4, COUNT = 1001, DEADLINE_MS = 60000, CANNOT = 77, REGISTERED = 1 << 20 };

struct seen { /* shared with the parent */
    char failed[256];
    bool finished;
    _Atomic int mark;
    int64_t failed_at_ms;
};

struct self {
    int rank, world;
    struct seen *seen;
    const struct hd_backend_table *table;
    struct hd_backend *backend;
    struct hd_comm *comm;
    struct hd_comm_group *group;
    struct hd_comm_stream *comm_stream;
    struct hd_stream *stream;
    char *base;
};

#define MUST(self, condition)                                                               \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            (void)snprintf((self)->seen->failed, sizeof(self)->seen->failed, "%d: %s [%s]", \
                           __LINE__, #condition, hd_err_message());                         \
            return;                                                                         \
        }                                                                                   \
    } while (0)

/* Before anything of CUDA is loaded. */
static void set_environment(int rank)
{
    static const char *const recipe[][2] = {{"NCCL_NET", "Socket"},
                                            {"NCCL_SOCKET_IFNAME", "lo"},
                                            {"NCCL_SOCKET_FAMILY", "AF_INET"},
                                            {"NCCL_IB_DISABLE", "1"},
                                            {"NCCL_P2P_DISABLE", "1"},
                                            {"NCCL_SHM_DISABLE", "1"},
                                            {"NCCL_MNNVL_ENABLE", "0"},
                                            {"NCCL_NVLS_ENABLE", "0"},
                                            {"NCCL_COLLNET_ENABLE", "0"},
                                            {"NCCL_ALGO", "Ring"},
                                            {"NCCL_PROTO", "Simple"},
                                            {"NCCL_MAX_CTAS", "1"},
                                            {"NCCL_BUFFSIZE", "1048576"},
                                            {"NCCL_CUMEM_ENABLE", "0"},
                                            {"NCCL_CUMEM_HOST_ENABLE", "0"},
                                            {"NCCL_WIN_ENABLE", "0"},
                                            {"NCCL_RAS_ENABLE", "0"},
                                            {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
                                            {"CUDA_MODULE_LOADING", "EAGER"},
                                            {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};
    char host[32];

    (void)snprintf(host, sizeof host, "heddle-rank-%d", rank);
    (void)setenv("NCCL_HOSTID", host, 1);
    for (size_t i = 0; i < sizeof recipe / sizeof recipe[0]; i++)
        (void)setenv(recipe[i][0], recipe[i][1], 1);
}

/* ---- what a rank does ---- */

static float input(int rank, int i) /* sums of these are exact in fp32 whatever the order */
{
    return (float)((rank * 37 + i * 11) % 101 - 50);
}

static void fill(struct self *self, int count)
{
    float x[4 * COUNT];

    for (int i = 0; i < count; i++)
        x[i] = input(self->rank, i);
    MUST(self, self->table->device->write(self->stream, self->base, x, count * 4) == HD_OK);
    MUST(self, hd_comm_follow(self->comm_stream, self->stream) == HD_OK);
}

/* Recv lies behind room for 4 x COUNT; reads `count` of it when the launch is through. */
static void fetch(struct self *self, enum hd_status launched, int count, float *ret)
{
    MUST(self, launched == HD_OK);
    MUST(self, hd_comm_wait_on(self->comm_stream, hd_comm_record(self->comm_stream),
                               self->stream) == HD_OK);
    MUST(self, self->table->device->read(self->stream, ret, self->base + 4 * COUNT * 4,
                                         count * 4) == HD_OK);
}

static float sum_at(const struct self *self, int i)
{
    float sum = 0;

    for (int r = 0; r < self->world; r++)
        sum += input(r, i);
    return sum;
}

static void every_collective(struct self *self)
{
    const int P = self->world, me = self->rank, left = (me + P - 1) % P;
    struct hd_comm_stream *s = self->comm_stream;
    struct hd_comm_group *g = self->group;
    void *in = self->base, *out = self->base + 4 * COUNT * 4;
    float x[4 * COUNT];
    enum hd_status st;

    fill(self, COUNT);
    fetch(self,
          hd_comm_launch(g, s, HD_COMM_ALL_REDUCE,
                         HD_COLLECTIVE(in, out, COUNT, HD_F32, .reduce = HD_COMM_SUM)),
          COUNT, x);
    for (int i = 0; i < COUNT && !self->seen->failed[0]; i++)
        MUST(self, x[i] == sum_at(self, i));
    fetch(self, hd_comm_launch(g, s, HD_COMM_ALL_GATHER, HD_COLLECTIVE(in, out, COUNT, HD_F32)),
          P * COUNT, x);
    for (int i = 0; i < P * COUNT && !self->seen->failed[0]; i++)
        MUST(self, x[i] == input(i / COUNT, i % COUNT));
    fill(self, P * COUNT);
    fetch(self,
          hd_comm_launch(
              g, s, HD_COMM_REDUCE_SCATTER,
              HD_COLLECTIVE(in, out, COUNT, HD_F32, .reduce = HD_COMM_SUM, .keep_fp32 = false)),
          COUNT, x);
    for (int i = 0; i < COUNT && !self->seen->failed[0]; i++)
        MUST(self, x[i] == sum_at(self, me * COUNT + i));
    fetch(self, hd_comm_launch(g, s, HD_COMM_ALL_TO_ALL, HD_COLLECTIVE(in, out, COUNT, HD_F32)),
          P * COUNT, x);
    for (int i = 0; i < P * COUNT && !self->seen->failed[0]; i++)
        MUST(self, x[i] == input(i / COUNT, me * COUNT + i % COUNT));
    st = hd_comm_begin(s);
    if (!st)
        st = hd_comm_send(g, s, &(struct hd_comm_send_args){in, COUNT, HD_F32, (me + 1) % P});
    if (!st)
        st = hd_comm_recv(g, s, &(struct hd_comm_recv_args){out, COUNT, HD_F32, left});
    fetch(self, st ? st : hd_comm_end(s), COUNT, x);
    for (int i = 0; i < COUNT && !self->seen->failed[0]; i++)
        MUST(self, x[i] == input(left, i));
    MUST(self, hd_comm_barrier(g, s) == HD_OK);
    MUST(self, hd_comm_wait_all(self->comm) == HD_OK);
}

/* Until a peer is gone. */
static void sum_for_ever(struct self *self)
{
    enum hd_status st = HD_OK;

    while (!st) {
        st = hd_comm_launch(
            self->group, self->comm_stream, HD_COMM_ALL_REDUCE,
            HD_COLLECTIVE(self->base, self->base, COUNT, HD_F32, .reduce = HD_COMM_SUM));
        if (!st)
            st = hd_comm_wait_all(self->comm);
        atomic_store(&self->seen->mark, 1);
    }
    self->seen->failed_at_ms = hd_clock_now_ms();
    MUST(self, strstr(hd_err_message(), "rank 1 died first"));
}

static void be_a_rank(struct hd_shm_control *ctl, int rank, int world, struct seen *seen,
                      void (*body)(struct self *self))
{
    static const int32_t everybody[] = {0, 1, 2, 3};
    struct self self = {.rank = rank, .world = world, .seen = seen};
    const struct hd_backend_options options = {.threads = 1};
    const struct hd_nccl_table *calls;
    struct hd_comm_device device;
    struct hd_comm *host;
    void *base;

    set_environment(rank);
    if (hd_plugin_cuda(&self.table) || !self.table->device->nccl ||
        self.table->device->nccl(&calls)) {
        (void)snprintf(seen->failed, sizeof seen->failed, "%s",
                       self.table && !self.table->device->nccl ? "the plug-in has no NCCL"
                                                               : hd_err_message());
        _exit(CANNOT);
    }
    MUST(&self, self.table->open(&options, &self.backend) == HD_OK);
    MUST(&self,
         self.table->stream_open(self.backend, HD_STREAM_FOR_COMPUTE, &self.stream) == HD_OK);
    MUST(&self, hd_comm_open_shm(hd_shm_control_fd(ctl), hd_shm_control_rank_fds(ctl), rank, world,
                                 DEADLINE_MS, &host) == HD_OK);
    device = (struct hd_comm_device){self.table, self.backend, false};
    MUST(&self, hd_comm_open_nccl(host, &device,
                                  &(struct hd_comm_nccl_options){.deadline_ms = DEADLINE_MS},
                                  &self.comm) == HD_OK);
    MUST(&self, hd_comm_alloc_registered(self.comm, REGISTERED, &base) == HD_OK);
    self.base = base;
    MUST(&self, hd_comm_open_group(self.comm, "world", everybody, world, &self.group) == HD_OK);
    self.comm_stream = hd_comm_get_stream(self.comm, HD_COMM_STREAM_REDUCE);
    body(&self);
    self.table->stream_close(self.stream);
    hd_comm_free(self.comm);
    self.table->close(self.backend);
    seen->finished = true;
}

/* ---- the parent ---- */

/* In the order in which they end, as a supervisor does: of one that failed the others are told, so
 * that they do not wait for it. */
static void wait_for_all(struct hd_shm_control *ctl, const pid_t *pids, int world, int *ret_how)
{
    for (int left = world; left > 0; left--) {
        int how = 0, r = 0;
        const pid_t pid = wait(&how);

        while (r < world - 1 && pids[r] != pid)
            r++;
        ret_how[r] = how;
        if (how)
            hd_shm_control_mark_dead(ctl, r, "it failed, or was killed");
    }
}

static void run(int world, void (*body)(struct self *self),
                int64_t (*parent)(struct hd_shm_control *ctl, const pid_t *pids, struct seen *seen))
{
    static bool broken; /* what two ranks cannot do needs not be waited for again */
    struct seen *seen = mmap(NULL, WORLD_MAX * sizeof *seen, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct hd_shm_control *ctl;
    pid_t pids[WORLD_MAX];
    int how[WORLD_MAX] = {0};
    int64_t killed_at_ms = 0;
    bool failed = false;

    assert_true(seen != MAP_FAILED);
    if (broken)
        fail_msg("not tried: see the case before");
    assert_int_equal(hd_shm_control_new(world, &ctl), HD_OK);
    for (int r = 0; r < world; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            be_a_rank(ctl, r, world, &seen[r], body);
            _exit(seen[r].failed[0] ? 1 : 0);
        }
    }
    if (parent)
        killed_at_ms = parent(ctl, pids, seen);
    wait_for_all(ctl, pids, world, how);
    hd_shm_control_free(ctl);
    if (WIFEXITED(how[0]) && WEXITSTATUS(how[0]) == CANNOT) {
        print_message("%s\n", seen[0].failed);
        skip();
    }
    for (int r = 0; r < world; r++) {
        const int64_t took_ms = seen[r].failed_at_ms - killed_at_ms;

        if (killed_at_ms && r == 1)
            continue;
        if (seen[r].failed[0] || !seen[r].finished)
            print_error("rank %d of %d: %s (status %x)\n", r, world,
                        seen[r].failed[0] ? seen[r].failed : "ended without a word", how[r]);
        else if (killed_at_ms && took_ms >= 5000) /* long before a deadline */
            print_error("rank %d of %d: it took %lld ms to leave\n", r, world, (long long)took_ms);
        else
            continue;
        failed = true;
    }
    (void)munmap(seen, WORLD_MAX * sizeof *seen);
    broken = failed && !killed_at_ms;
    assert_false(failed);
}

static void two_processes_do_every_collective(void **state)
{
    run(2, every_collective, NULL);
}

static void four_processes_do_every_collective(void **state)
{
    run(4, every_collective, NULL);
}

/* Plays the supervisor. A child without a GPU is gone before it makes its mark. */
static int64_t kill_the_second(struct hd_shm_control *ctl, const pid_t *pids, struct seen *seen)
{
    int64_t at_ms;

    for (int r = 0; r < 3; r++) {
        while (!atomic_load(&seen[r].mark)) {
            siginfo_t gone = {0};

            (void)waitid(P_PID, (id_t)pids[r], &gone, WEXITED | WNOHANG | WNOWAIT);
            if (gone.si_pid)
                return 0;
            (void)usleep(1000);
        }
    }
    (void)kill(pids[1], SIGKILL);
    at_ms = hd_clock_now_ms();
    hd_shm_control_mark_dead(ctl, 1, "killed by signal 9");
    return at_ms;
}

static void a_killed_rank_frees_the_others_within_5_s(void **state)
{
    run(3, sum_for_ever, kill_the_second);
}

RUN_CASES()
