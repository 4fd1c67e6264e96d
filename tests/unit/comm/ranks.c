#include "ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

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

struct start {
    const struct ranks *ranks;
    const struct hd_shm_control *ctl;
    int rank;
    struct report *report;
};

static void run_rank(const struct start *start)
{
    const struct ranks *ranks = start->ranks;
    struct rank self = {
        .rank = start->rank, .world = ranks->world, .report = start->report, .arg = ranks->arg};
    const int64_t deadline_ms = ranks->deadline_ms ? ranks->deadline_ms : 20000;
    const size_t bytes = ranks->visible_bytes ? ranks->visible_bytes : 1 << 20;
    void *base;

    CHECK_OK(&self,
             hd_comm_open_shm(hd_shm_control_fd(start->ctl), hd_shm_control_rank_fds(start->ctl),
                              self.rank, self.world, deadline_ms, &self.comm));
    if (hd_comm_visible(self.comm, bytes, &base) == HD_OK) {
        self.base = base;
        ranks->body(&self);
    } else {
        rank_failed(&self, __FILE__, __LINE__, "visible memory");
    }
    hd_comm_free(self.comm);
    self.report->finished = true;
}

static void *run_thread(void *arg)
{
    run_rank(arg);
    return NULL;
}

static void run_threads(struct start *starts, const struct ranks *ranks, struct hd_shm_control *ctl,
                        struct report *reports)
{
    pthread_t threads[RANKS_MAX];

    for (int r = 0; r < ranks->world; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_thread, &starts[r]), 0);
    if (ranks->parent)
        ranks->parent(ctl, NULL, reports);
    for (int r = 0; r < ranks->world; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static void run_processes(struct start *starts, const struct ranks *ranks,
                          struct hd_shm_control *ctl, struct report *reports)
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
        ranks->parent(ctl, pids, reports);
    for (int r = 0; r < ranks->world; r++)
        (void)waitpid(pids[r], &how, 0); /* one that the parent function reaped is gone already */
}

struct report *ranks_run(const struct ranks *ranks, bool may_die)
{
    struct start starts[RANKS_MAX];
    struct hd_shm_control *ctl;
    struct report *reports;

    assert_true(ranks->world <= RANKS_MAX);
    reports = mmap(NULL, RANKS_MAX * sizeof *reports, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(reports != MAP_FAILED);
    assert_int_equal(hd_shm_control_new(ranks->world, &ctl), HD_OK);
    for (int r = 0; r < ranks->world; r++)
        starts[r] = (struct start){ranks, ctl, r, &reports[r]};
    if (ranks->as == AS_THREADS)
        run_threads(starts, ranks, ctl, reports);
    else
        run_processes(starts, ranks, ctl, reports);
    for (int r = 0; r < ranks->world; r++) {
        if (reports[r].failed[0])
            print_error("%s\n", reports[r].failed);
    }
    for (int r = 0; r < ranks->world; r++) {
        assert_string_equal(reports[r].failed, "");
        assert_true(may_die || reports[r].finished);
    }
    hd_shm_control_free(ctl);
    return reports;
}

void ranks_free(struct report *reports)
{
    (void)munmap(reports, RANKS_MAX * sizeof *reports);
}
