#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/gloo.h"
#include "comm/local.h"
#include "comm/nccl.h"
#include "device.h"
#include "tests/program/test.h"

enum ranks_engine ranks_engine = ENGINE_SHM;

void ranks_read_engine(int argc, char **argv)
{
    static const char *const names[] = {"shm", "gloo", "local", "nccl", "nodes"};
    int engine = 0;

    if (argc < 3 || strcmp(argv[1], "--engine") != 0)
        return;
    while (engine < 5 && strcmp(argv[2], names[engine]) != 0)
        engine++;
    if (engine == 5) {
        (void)fprintf(stderr, "there is no engine %s; it is shm, gloo, local, nccl or nodes\n",
                      argv[2]);
        exit(2);
    }
    ranks_engine = (enum ranks_engine)engine;
}

void rank_failed(struct rank *self, const char *file, int line, const char *what)
{
    (void)snprintf(self->report->failed, sizeof self->report->failed, "rank %d: %s:%d: %s [%.200s]",
                   self->rank, file, line, what, hd_err_message());
}

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

/* How the ranks come together. */
struct meeting {
    enum ranks_engine engine;
    bool native;                               /* nccl */
    int64_t piece_bytes;                       /* nccl */
    struct hd_shm_control *ctl;                /* shm, nccl, local */
    struct hd_comm_hub *hub;                   /* local */
    struct hd_gloo_listener *doors[RANKS_MAX]; /* gloo: opened before the ranks start */
    struct hd_gloo_endpoint endpoints[RANKS_MAX];
};

struct start {
    const struct ranks *ranks;
    const struct meeting *meeting;
    int rank;
    struct report *report;
};

static void prepare(struct meeting *meeting, enum ranks_engine engine, int world)
{
    *meeting = (struct meeting){.engine = engine};
    if (engine == ENGINE_SHM || engine == ENGINE_NCCL) {
        assert_int_equal(hd_shm_control_new(world, &meeting->ctl), HD_OK);
        return;
    }
    if (engine == ENGINE_LOCAL) {
        assert_int_equal(hd_comm_hub_new(world, &meeting->hub), HD_OK);
        meeting->ctl = hd_comm_hub_control(meeting->hub);
        return;
    }
    for (int r = 0; r < world; r++) {
        assert_int_equal(hd_gloo_listener_open("127.0.0.1", "here", &meeting->doors[r]), HD_OK);
        meeting->endpoints[r] = *hd_gloo_listener_endpoint(meeting->doors[r]);
    }
}

static void clean_up(struct meeting *meeting)
{
    if (meeting->hub)
        hd_comm_hub_free(meeting->hub);
    else
        hd_shm_control_free(meeting->ctl);
    for (int r = 0; r < RANKS_MAX && meeting->doors[r]; r++)
        hd_gloo_listener_close(meeting->doors[r]);
}

static enum hd_status attach_device(const struct meeting *meeting, struct rank *self,
                                    int64_t deadline_ms, struct hd_comm **ret_comm)
{
    const struct hd_backend_options options = {.threads = 1};
    struct hd_comm_device device = {.table = ranks_device(), .host_reachable = true};
    enum hd_status st;

    if (meeting->engine == ENGINE_NODES)
        ranks_device_on_node(self->rank < self->world / 2 ? "one" : "other");
    st = device.table->open(&options, &device.backend);
    self->table = device.table;
    self->backend = device.backend;
    if (!st && meeting->engine >= ENGINE_NCCL) {
        const struct hd_comm_nccl_options nccl = {.native = meeting->native,
                                                  .piece_bytes = meeting->piece_bytes,
                                                  .deadline_ms = deadline_ms};
        struct hd_comm *host;

        st = meeting->engine == ENGINE_NODES
                 ? hd_comm_open_gloo(meeting->doors[self->rank], meeting->endpoints, self->rank,
                                     self->world, deadline_ms, &host)
                 : hd_comm_open_shm(hd_shm_control_fd(meeting->ctl),
                                    hd_shm_control_rank_fds(meeting->ctl), self->rank, self->world,
                                    deadline_ms, &host);
        return st ? st : hd_comm_open_nccl(host, &device, &nccl, ret_comm);
    }
    return st ? st : hd_comm_open_local(meeting->hub, self->rank, &device, deadline_ms, ret_comm);
}

static enum hd_status attach(const struct meeting *meeting, struct rank *self, int64_t deadline_ms,
                             struct hd_comm **ret_comm)
{
    if (meeting->engine >= ENGINE_LOCAL)
        return attach_device(meeting, self, deadline_ms, ret_comm);
    if (meeting->engine == ENGINE_GLOO)
        return hd_comm_open_gloo(meeting->doors[self->rank], meeting->endpoints, self->rank,
                                 self->world, deadline_ms, ret_comm);
    return hd_comm_open_shm(hd_shm_control_fd(meeting->ctl), hd_shm_control_rank_fds(meeting->ctl),
                            self->rank, self->world, deadline_ms, ret_comm);
}

static void run_rank(const struct start *start)
{
    const struct ranks *ranks = start->ranks;
    struct rank self = {
        .rank = start->rank, .world = ranks->world, .report = start->report, .arg = ranks->arg};
    const int64_t deadline_ms = ranks->deadline_ms ? ranks->deadline_ms : 60000;
    const size_t bytes = ranks->registered_bytes ? ranks->registered_bytes : 1 << 20;
    void *base;

    CHECK_OK(&self, attach(start->meeting, &self, deadline_ms, &self.comm));
    if (hd_comm_alloc_registered(self.comm, bytes, &base) == HD_OK) {
        self.base = base;
        self.counts = (int32_t *)(self.base + bytes) - 64;
        ranks->body(&self);
    } else {
        rank_failed(&self, __FILE__, __LINE__, "visible memory");
    }
    hd_comm_free(self.comm);
    if (self.backend)
        self.table->close(self.backend);
    self.report->finished = true;
}

static void *run_thread(void *arg)
{
    run_rank(arg);
    return NULL;
}

static void run_threads(struct start *starts, const struct ranks *ranks, struct report *reports)
{
    pthread_t threads[RANKS_MAX];

    for (int r = 0; r < ranks->world; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_thread, &starts[r]), 0);
    if (ranks->parent)
        ranks->parent(starts[0].meeting->ctl, NULL, reports);
    for (int r = 0; r < ranks->world; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static void run_processes(struct start *starts, const struct ranks *ranks, struct report *reports)
{
    pid_t pids[RANKS_MAX];
    int how;

    for (int r = 0; r < ranks->world; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            run_rank(&starts[r]);
            _exit(0);
        }
    }
    if (ranks->parent)
        ranks->parent(starts[0].meeting->ctl, pids, reports);
    for (int r = 0; r < ranks->world; r++)
        (void)waitpid(pids[r], &how, 0); /* one that the parent function reaped is gone already */
}

struct report *ranks_run_on(enum ranks_engine engine, const struct ranks *ranks, bool may_die)
{
    struct start starts[RANKS_MAX];
    struct meeting meeting;
    struct report *reports;

    assert_true(ranks->world <= RANKS_MAX);
    reports = mmap(NULL, RANKS_MAX * sizeof *reports, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(reports != MAP_FAILED);
    prepare(&meeting, engine, ranks->world);
    meeting.native = ranks->native;
    meeting.piece_bytes = ranks->piece_bytes ? ranks->piece_bytes : RANKS_PIECE;
    for (int r = 0; r < ranks->world; r++)
        starts[r] = (struct start){ranks, &meeting, r, &reports[r]};
    if (engine != ENGINE_NODES && (ranks->as == AS_THREADS || engine >= ENGINE_LOCAL))
        run_threads(starts, ranks, reports);
    else
        run_processes(starts, ranks, reports);
    for (int r = 0; r < ranks->world; r++) {
        if (reports[r].failed[0])
            print_error("%s\n", reports[r].failed);
    }
    for (int r = 0; r < ranks->world; r++) {
        assert_string_equal(reports[r].failed, "");
        assert_true(may_die || reports[r].finished);
    }
    clean_up(&meeting);
    return reports;
}

void ranks_free(struct report *reports)
{
    (void)munmap(reports, RANKS_MAX * sizeof *reports);
}

/* ---- for bodies and the parent ---- */

void note_end(struct rank *self, enum hd_status st, int64_t since_ms)
{
    self->report->took_ms = hd_clock_now_ms() - since_ms;
    self->report->status = st;
    (void)snprintf(self->report->message, HD_ERR_MAX, "%s", st ? hd_err_message() : "");
}

void set_deadline_together(struct rank *self, int64_t deadline_ms)
{
    atomic_store(&self->report->mark, 1);
    wait_for_marks(self->report - self->rank, self->world);
    hd_comm_set_deadline(self->comm, deadline_ms);
}

void meet_elsewhere(struct rank *self)
{
    static const int32_t first_two[] = {0, 1}, last[] = {2};
    struct hd_comm_stream *pipeline = hd_comm_get_stream(self->comm, HD_COMM_STREAM_PIPELINE);
    struct hd_comm_group *elsewhere;

    CHECK_OK(self, hd_comm_open_group(self->comm, self->rank < 2 ? "pair" : "alone",
                                      self->rank < 2 ? first_two : last, self->rank < 2 ? 2 : 1,
                                      &elsewhere));
    for (int i = 0; i < HD_FLIGHT_MAX + 10; i++) {
        CHECK_OK(self, hd_comm_barrier(elsewhere, pipeline));
        CHECK_OK(self, hd_comm_wait(pipeline, hd_comm_record(pipeline)));
    }
}

void wait_for_marks(struct report *reports, int count)
{
    for (int r = 0; r < count; r++)
        while (!atomic_load(&reports[r].mark))
            (void)usleep(500);
}

void assert_says(const struct report *report, const char *text)
{
    if (!strstr(report->message, text))
        print_error("\"%s\" is not in \"%s\"\n", text, report->message);
    assert_non_null(strstr(report->message, text));
}
