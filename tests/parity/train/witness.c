#include "witness.h"

#include "pairs.h"
#include "tests/program/test.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TAIL_BYTE = 0xA5 };

int64_t witness_page_bytes(void)
{
    return sysconf(_SC_PAGESIZE);
}

static int64_t whole_pages(int64_t bytes)
{
    const int64_t page = witness_page_bytes();

    return (bytes + page - 1) / page * page;
}

struct hd_memory witness_predict(const struct hd_job *job,
                                 const struct hd_rank_program_options *options, int rank)
{
    struct hd_arena arena;
    struct hd_rank_program layout;
    struct hd_memory memory;

    hd_arena_init(&arena, 0);
    run_layout_of(job, rank, options, &arena, &layout);
    memory = layout.memory;
    hd_arena_done(&arena);
    return memory;
}

/* ---- the reservation is the prediction ---- */

/* Returns the signal that ends a child process which touches this byte; 0: none. */
static int signal_of_touching(volatile unsigned char *byte)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer would answer it */
        *byte = 1;
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Between the last byte that was asked for and the end of its page nothing may be written. */
static void mark_tail(unsigned char *base, int64_t bytes)
{
    memset(base + bytes, TAIL_BYTE, (size_t)(whole_pages(bytes) - bytes));
}

static bool tail_is_kept(const unsigned char *base, int64_t bytes)
{
    for (int64_t i = bytes; i < whole_pages(bytes); i++)
        if (base[i] != TAIL_BYTE)
            return false;
    return true;
}

enum hd_status witness_use_everything(struct hd_trainer *t)
{
    struct hd_step_result result;
    int64_t targets;
    double loss;
    enum hd_status st = harness_init(t);

    for (int s = 0; !st && s < 2; s++)
        st = pairs_step(t, &result);
    /* the data of grpo are prompts, and it validates nothing */
    return st || hd_job_has_policy(&hd_trainer_rank_program(t)->job)
               ? st
               : hd_trainer_validate(t, &loss, &targets);
}

/* Checks the tail of one half: base, bytes and pages are those of the reservation. */
static enum hd_status check_tail(const char *which, const unsigned char *base, int64_t bytes)
{
    if (tail_is_kept(base, bytes))
        return HD_OK;
    return hd_err(HD_INVALID, "something was written behind the %s reservation of %lld bytes",
                  which, (long long)bytes);
}

static enum hd_status check_edge(unsigned char *base, int64_t bytes)
{
    if (signal_of_touching(base + bytes - 1) != 0)
        return hd_err(HD_INVALID, "the last byte of %lld cannot be used", (long long)bytes);
    if (signal_of_touching(base + whole_pages(bytes)) != SIGSEGV)
        return hd_err(HD_INVALID, "the page behind %lld bytes can be used", (long long)bytes);
    return HD_OK;
}

/* Every page of the half is in use, as the system counts. */
static enum hd_status check_resident(const char *which, unsigned char *base, int64_t bytes)
{
    const int64_t page = witness_page_bytes(), count = whole_pages(bytes) / page;
    int64_t used = 0;

    for (int64_t i = 0; i < count; i++) {
        unsigned char resident = 0;

        if (mincore(base + i * page, (size_t)page, &resident) < 0)
            return hd_err(HD_IO, "the system does not say which pages are in use");
        used += resident & 1;
    }
    if (used == count)
        return HD_OK;
    return hd_err(HD_INVALID, "of the %lld pages of the %s reservation %lld are in use",
                  (long long)count, which, (long long)used);
}

static enum hd_status train_in_cut(struct harness_rank *r)
{
    const struct witness_cut *cut = r->context;
    const struct hd_memory m =
        cut->predicted ? cut->predicted[r->rank] : witness_predict(r->job, &cut->layout, r->rank);
    const struct hd_trainer_options options = {
        .peak = HARNESS_PEAK,
        .backend = harness_backend(),
        .instance = r->instance,
        .comm = r->comm,
        .rank = r->rank,
        .layout = cut->layout,
        .private_bytes = m.private_bytes - cut->less_private,
        .registered_bytes = m.registered_bytes - cut->less_visible,
    };
    unsigned char *private_base, *registered_base;
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    private_base = (unsigned char *)hd_trainer_reservation(t)->private_base;
    registered_base = (unsigned char *)hd_trainer_reservation(t)->registered_base;
    mark_tail(private_base, m.private_bytes);
    mark_tail(registered_base, m.registered_bytes);
    st = witness_use_everything(t);
    if (!st && memcmp(&hd_trainer_rank_program(t)->memory, &m, sizeof m) != 0)
        st = hd_err(HD_INVALID, "rank %d has another layout than was predicted", r->rank);
    if (!st)
        st = check_tail("private", private_base, m.private_bytes);
    if (!st)
        st = check_tail("registered", registered_base, m.registered_bytes);
    if (!st)
        st = check_resident("private", private_base, m.private_bytes);
    if (!st)
        st = check_resident("registered", registered_base, m.registered_bytes);
    if (!st)
        st = check_edge(private_base, m.private_bytes);
    hd_trainer_free(t);
    return st;
}

enum hd_status witness_edges(const struct hd_job *job, const struct witness_cut *cut)
{
    return harness_threads(job, run_world(job), (void *)cut, train_in_cut);
}

/* ---- no step allocates ---- */

/* oneDNN puts the tensors of each call, at most five, into a hash table of its own: a node for
 * each, the table, and what holds them. Small and gone when it returns, but not ours to mend. */
enum { STEPS = 6, ONEDNN_CALLS_MAX = 16, ONEDNN_BYTES_MAX = 1024 /* per product */ };

struct quiet {
    struct hd_rank_program_options layout;
    struct interpose_count count[HARNESS_WORLD_MAX];
    long products[HARNESS_WORLD_MAX]; /* launches of gemm */
};

static void count_product(void *context, const struct hd_launch_event *event)
{
    *(long *)context += !event->node->is_comm && event->node->kernel == HD_K_gemm;
}

static enum hd_status count_allocations(struct harness_rank *r)
{
    struct quiet *q = r->shared;
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .layout = q->layout};
    struct hd_step_result result;
    struct hd_trainer *t;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = harness_init(t);
    if (!st)
        st = pairs_step(t, &result); /* the first may settle in */
    if (!st)
        hd_runner_observe(hd_trainer_runner(t), count_product, &q->products[r->rank]);
    for (int s = 1; !st && s < STEPS; s++) {
        interpose_start();
        st = pairs_step(t, &result);
        interpose_stop();
    }
    interpose_get(&q->count[r->rank]);
    hd_trainer_free(t);
    return st;
}

static void check_quiet(const struct quiet *q, int rank, int threads)
{
    const struct interpose_count *c = &q->count[rank];

    print_message(
        "rank %d, %d threads: %ld products; %ld calls by Heddle, %ld by OpenMP, %ld inside "
        "oneDNN of %zu bytes together\n",
        rank, threads, q->products[rank], c->calls[INTERPOSE_HEDDLE], c->calls[INTERPOSE_OPENMP],
        c->calls[INTERPOSE_ONEDNN], c->bytes[INTERPOSE_ONEDNN]);
    assert_true(q->products[rank] > 0);
    assert_int_equal(c->calls[INTERPOSE_OPENMP], 0);
    assert_true(c->calls[INTERPOSE_ONEDNN] <= ONEDNN_CALLS_MAX * q->products[rank]);
    assert_true(c->bytes[INTERPOSE_ONEDNN] <= (size_t)(ONEDNN_BYTES_MAX * q->products[rank]));
    if (c->calls[INTERPOSE_HEDDLE])
        fail_msg("a step allocates: %s", c->first);
}

void witness_quiet(const struct hd_job *job, const struct hd_rank_program_options *options)
{
    struct quiet *q = harness_shared(sizeof *q);

    q->layout = *options;
    if (harness_processes(job, run_world(job), q, count_allocations))
        fail_msg("%s", hd_err_message());
    for (int r = 0; r < run_world(job); r++)
        check_quiet(q, r, (int)job->threads);
    harness_shared_free(q, sizeof *q);
}
