/* comm_bench: collectives beside what carries them.
 *
 *   comm_bench [-w RANKS] [-r ROUNDS] [-t SECONDS]
 *
 *   RANKS processes (2), ROUNDS of each measurement (15); the ranks are killed and the exit status is 1
 *   if the measurements are not complete after SECONDS (300), or a rank ends early
 *
 * For shm the floor is memcpy, for gloo plain TCP over the loopback (each rank sends to its right
 * neighbour what it receives from its left one): the bytes that a rank moves in the operation, by
 * all ranks at once. Operation and floor alternate in one run. A round takes as long as its slowest
 * rank, and the best round counts; the ratio is that of the floor's time to the operation's. Run it
 * on a quiet machine with a processor per rank (per rank twice, for gloo).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/gloo.h"
#include "comm/shm_control.h"

enum { RANKS_MAX = 16, ROUNDS_MAX = 100, SIZES = 6, SECONDS_MAX = 86400 };
enum { DEADLINE_MS = 60000, LOOK_US = 20000 };

static const size_t sizes[SIZES] = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

enum what { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, WHAT_COUNT };
static const char *const what_names[] = {"all_reduce", "reduce_scatter", "all_gather"};

struct shared { /* between the ranks of one engine */
    _Atomic int arrived;
    _Atomic int what, size; /* the measurement under way; size: an index of sizes */
    int64_t op_ns[RANKS_MAX][ROUNDS_MAX], floor_ns[RANKS_MAX][ROUNDS_MAX];
};

struct bench {
    bool gloo;
    int rank, world, rounds;
    struct shared *shared;
    struct hd_shm_control *ctl;
    struct hd_gloo_listener *doors[RANKS_MAX];
    struct hd_gloo_endpoint cards[RANKS_MAX];
    int right[RANKS_MAX], left[RANKS_MAX]; /* plain sockets to the neighbours, by rank */
    struct hd_comm *comm;
    struct hd_comm_group *group;
    char *send, *recv;
    int meetings;
};

static void stop(struct bench *b, const char *what)
{
    (void)fprintf(stderr, "comm_bench: rank %d: %s: %s\n", b->rank, what, hd_err_message());
    exit(1);
}

/* Waits for all ranks, without the engine. The wait has no end of its own: watch() kills the ranks
 * that wait for one that has ended. */
static void meet(struct bench *b)
{
    const int all = ++b->meetings * b->world;

    atomic_fetch_add(&b->shared->arrived, 1);
    while (atomic_load(&b->shared->arrived) < all)
        (void)sched_yield();
}

/* ---- the operations ---- */

static int64_t moved_bytes(const struct bench *b, enum what what, size_t bytes)
{
    const int64_t part = (int64_t)bytes / b->world * (b->world - 1);

    return what == ALL_REDUCE ? 2 * part : part;
}

static void operate(struct bench *b, enum what what, size_t bytes)
{
    struct hd_comm_stream *s = hd_comm_get_stream(b->comm, HD_COMM_STREAM_REDUCE);
    const int64_t all = (int64_t)bytes / 4, part = all / b->world;
    enum hd_status st;

    if (what == ALL_REDUCE)
        st = hd_comm_launch(b->group, s, HD_COMM_ALL_REDUCE,
                            HD_COLLECTIVE(b->send, b->recv, all, HD_F32, .reduce = HD_COMM_SUM));
    else if (what == REDUCE_SCATTER)
        st = hd_comm_launch(b->group, s, HD_COMM_REDUCE_SCATTER,
                            HD_COLLECTIVE(b->send, b->recv, part, HD_F32, .reduce = HD_COMM_SUM,
                                          .keep_fp32 = false));
    else
        st = hd_comm_launch(b->group, s, HD_COMM_ALL_GATHER,
                            HD_COLLECTIVE(b->send, b->recv, part, HD_F32));
    if (!st)
        st = hd_comm_wait(s, hd_comm_record(s));
    if (st)
        stop(b, what_names[what]);
}

/* ---- the floors ---- */

static void exchange(struct bench *b, int64_t bytes)
{
    int64_t sent = 0, received = 0;

    while (sent < bytes || received < bytes) {
        struct pollfd polled[2] = {
            {.fd = sent < bytes ? b->right[b->rank] : -1, .events = POLLOUT},
            {.fd = received < bytes ? b->left[b->rank] : -1, .events = POLLIN}};
        ssize_t n;

        (void)poll(polled, 2, -1);
        if (polled[0].revents) {
            n = send(polled[0].fd, b->send + sent % (int64_t)sizes[SIZES - 1],
                     (size_t)(bytes - sent < 1 << 20 ? bytes - sent : 1 << 20), MSG_NOSIGNAL);
            sent += n > 0 ? n : 0;
            if (n < 0 && errno != EAGAIN)
                stop(b, "plain TCP");
        }
        if (polled[1].revents) {
            n = recv(polled[1].fd, b->recv + received % (int64_t)sizes[SIZES - 1],
                     (size_t)(bytes - received < 1 << 20 ? bytes - received : 1 << 20), 0);
            received += n > 0 ? n : 0;
            if (n == 0 || (n < 0 && errno != EAGAIN))
                stop(b, "plain TCP");
        }
    }
}

static void copy(struct bench *b, int64_t bytes)
{
    for (int64_t at = 0; at < bytes;) {
        const int64_t n =
            bytes - at < (int64_t)sizes[SIZES - 1] ? bytes - at : (int64_t)sizes[SIZES - 1];

        memcpy(b->recv, b->send, (size_t)n);
        at += n;
    }
}

/* ---- one rank ---- */

static void open_rank(struct bench *b)
{
    int32_t members[RANKS_MAX];
    void *base = NULL;
    enum hd_status st;

    for (int r = 0; r < b->world; r++)
        members[r] = r;
    if (b->gloo)
        st = hd_comm_open_gloo(b->doors[b->rank], b->cards, b->rank, b->world, DEADLINE_MS,
                               &b->comm);
    else
        st = hd_comm_open_shm(hd_shm_control_fd(b->ctl), hd_shm_control_rank_fds(b->ctl), b->rank,
                              b->world, DEADLINE_MS, &b->comm);
    /* plain TCP reads and writes up to 1 MiB past where it wraps around */
    if (!st)
        st = hd_comm_alloc_registered(b->comm, 2 * (sizes[SIZES - 1] + (2 << 20)), &base);
    if (!st)
        st = hd_comm_open_group(b->comm, "world", members, b->world, &b->group);
    if (st)
        stop(b, "cannot open");
    b->send = base;
    b->recv = b->send + sizes[SIZES - 1] + (2 << 20);
}

static int64_t best_of_slowest(const struct bench *b, int64_t times[RANKS_MAX][ROUNDS_MAX])
{
    int64_t best = INT64_MAX;

    for (int n = 0; n < b->rounds; n++) {
        int64_t slowest = 0;

        for (int r = 0; r < b->world; r++)
            slowest = times[r][n] > slowest ? times[r][n] : slowest;
        best = slowest < best ? slowest : best;
    }
    return best;
}

static void measure(struct bench *b, enum what what, size_t bytes)
{
    const int64_t moved = moved_bytes(b, what, bytes);

    operate(b, what, bytes); /* once to warm up */
    for (int n = 0; n < b->rounds; n++) {
        int64_t begin;

        meet(b);
        begin = hd_clock_now_ns();
        operate(b, what, bytes);
        b->shared->op_ns[b->rank][n] = hd_clock_now_ns() - begin;
        meet(b);
        begin = hd_clock_now_ns();
        if (b->gloo)
            exchange(b, moved);
        else
            copy(b, moved);
        b->shared->floor_ns[b->rank][n] = hd_clock_now_ns() - begin;
    }
    meet(b);
    if (b->rank == 0) {
        const double op = (double)best_of_slowest(b, b->shared->op_ns);
        const double least = (double)best_of_slowest(b, b->shared->floor_ns);

        (void)printf("%-5s %-15s %9zu KiB %11.1f us %8.2f GB/s   floor %8.2f GB/s   ratio %.2f\n",
                     b->gloo ? "gloo" : "shm", what_names[what], bytes >> 10, op / 1e3,
                     (double)moved / op, (double)moved / least, least / op);
        (void)fflush(stdout);
    }
    meet(b);
}

static void run_rank(struct bench *b)
{
    open_rank(b);
    for (int what = 0; what < WHAT_COUNT; what++) {
        for (int s = 0; s < SIZES; s++) {
            atomic_store(&b->shared->what, what);
            atomic_store(&b->shared->size, s);
            measure(b, (enum what)what, sizes[s]);
        }
    }
    hd_comm_free(b->comm);
}

/* ---- all ranks ---- */

/* A ring of plain connections: rank r's right end is rank r + 1's left end. */
static bool connect_ring(struct bench *b)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    const int door = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    if (door < 0 || bind(door, (struct sockaddr *)&at, sizeof at) < 0 || listen(door, 1) < 0 ||
        getsockname(door, (struct sockaddr *)&at, &bytes) < 0)
        return false;
    for (int r = 0; r < b->world; r++) {
        int *right = &b->right[r], *left = &b->left[(r + 1) % b->world];

        *right = socket(AF_INET, SOCK_STREAM, 0);
        if (*right < 0 || connect(*right, (struct sockaddr *)&at, sizeof at) < 0)
            return false;
        *left = accept(door, NULL, NULL);
        if (*left < 0 || fcntl(*right, F_SETFL, O_NONBLOCK) < 0 ||
            fcntl(*left, F_SETFL, O_NONBLOCK) < 0 ||
            setsockopt(*right, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
            return false;
    }
    (void)close(door);
    return true;
}

static bool prepare(struct bench *b)
{
    if (!b->gloo)
        return hd_shm_control_new(b->world, &b->ctl) == HD_OK;
    for (int r = 0; r < b->world; r++) {
        if (hd_gloo_listener_open("127.0.0.1", "here", &b->doors[r]) != HD_OK)
            return false;
        b->cards[r] = *hd_gloo_listener_endpoint(b->doors[r]);
    }
    return connect_ring(b);
}

/* Waits until the ranks have ended. If one fails, dies or takes too long, kills the others, which could
 * wait for it without end. Returns the exit status. */
static int watch(const struct bench *b, const pid_t *ranks, int64_t end_ns)
{
    bool ended[RANKS_MAX] = {false};
    int status = 0;

    for (int left = b->world; left;) {
        const bool late = hd_clock_now_ns() > end_ns;
        int how = 0;

        if (late && !status)
            (void)fprintf(stderr,
                          "comm_bench: the time is over, while %s's %s of %zu KiB was measured; "
                          "give more by -t SECONDS, or fewer rounds by -r\n",
                          b->gloo ? "gloo" : "shm", what_names[atomic_load(&b->shared->what)],
                          sizes[atomic_load(&b->shared->size)] >> 10);
        status |= late;
        for (int r = 0; r < b->world; r++) {
            if (ended[r])
                continue;
            if (status)
                (void)kill(ranks[r], SIGKILL);
            if (waitpid(ranks[r], &how, status ? 0 : WNOHANG) == 0)
                continue;
            ended[r] = true;
            left--;
            if (!status && WIFSIGNALED(how))
                (void)fprintf(stderr, "comm_bench: rank %d died by signal %d\n", r, WTERMSIG(how));
            status |= !WIFEXITED(how) || WEXITSTATUS(how) != 0;
        }
        (void)usleep(LOOK_US);
    }
    return status;
}

static int run_engine(bool gloo, int world, int rounds, int64_t end_ns)
{
    const pid_t parent = getpid();
    struct bench b = {.gloo = gloo, .world = world, .rounds = rounds};
    pid_t ranks[RANKS_MAX];

    b.shared =
        mmap(NULL, sizeof *b.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.shared == MAP_FAILED || !prepare(&b)) {
        (void)fprintf(stderr, "comm_bench: %s\n", hd_err_message());
        return 1;
    }
    (void)fflush(stdout);
    for (b.rank = 0; b.rank < world; b.rank++) {
        ranks[b.rank] = fork();
        if (ranks[b.rank] < 0) {
            perror("comm_bench: fork");
            return 1; /* ranks that run already die with this process */
        }
        if (ranks[b.rank] == 0) {
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
                exit(1);
            run_rank(&b);
            exit(0);
        }
    }
    return watch(&b, ranks, end_ns);
}

int main(int argc, char **argv)
{
    int world = 2, rounds = 15, seconds = 300, option, status;
    int64_t end_ns;

    while ((option = getopt(argc, argv, "w:r:t:")) != -1) {
        if (option == 'w')
            world = atoi(optarg);
        else if (option == 'r')
            rounds = atoi(optarg);
        else if (option == 't')
            seconds = atoi(optarg);
        else
            return 2;
    }
    if (world < 2 || world > RANKS_MAX || rounds < 1 || rounds > ROUNDS_MAX || seconds < 1 ||
        seconds > SECONDS_MAX) {
        (void)fprintf(stderr, "comm_bench: use 2 to %d ranks, 1 to %d rounds, 1 to %d seconds\n",
                      RANKS_MAX, ROUNDS_MAX, SECONDS_MAX);
        return 2;
    }
    end_ns = hd_clock_now_ns() + seconds * INT64_C(1000000000);
    status = run_engine(false, world, rounds, end_ns);
    if (!status && hd_gloo_built_in())
        status = run_engine(true, world, rounds, end_ns);
    return status;
}
