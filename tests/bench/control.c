/* control: what a submission costs the controller, however many jobs wait, beside its floor.
 *
 *   control [-d JOBS] [-r ROUNDS] [-n COUNT]
 *           JOBS wait in the deep queue (19000), ROUNDS of each measurement (7), COUNT submissions
 *           of a measurement (2000)
 *
 * A controller of its own for each queue, and a client of one connection with 64 submissions in
 * flight. Each round measures the rate on an empty queue (of a controller that has just started),
 * on the deep one, and of the floor: a bare loop that inserts the same bytes into SQLite, a commit
 * per 64, into a table as deep, and of calls that do nothing (GetServerInfo, 64 in flight on the
 * same connection). They alternate, so that a disk that changes its mind changes all four; the
 * median of the rounds' ratios counts. A submission is a call and an insert, so no controller
 * behind this RPC library can do better than both, one after the other: that floor has a line of
 * its own, and one by processor time, in which the waiting for the disk is not counted. Then `heddle
 * submit` as a process beside `heddle --version` and one submission, and lists that find nothing
 * among all these jobs beside one that ends at its first row. The last column of a line is the bar. Exit code 1: some bar is missed;
 * 2: it failed. Run it on a quiet machine.
 */
#include "control.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "controller/identity/identity.h"
#include "heddle/v1/control.pb-c.h"
#include "pki/pki.h"
#include "rpc/rpc.h"
#include "spec/spec.h"
#include "tests/sorted.h"
#include "tests/temporary.h"

enum { ROUNDS_MAX = 100, PROCESSES = 21, CALLS = 201, TIMEOUT_MS = 60000 };

/* A controller and a client of it. */
struct side {
    char dir[TEMPORARY_BYTES], state[TEMPORARY_BYTES + 8], address[TEMPORARY_BYTES + 16];
    pid_t pid;
    struct hd_rpc_client *client;
};

struct bench {
    uv_loop_t loop;
    struct hd_rpc *rpc;
    char dir[TEMPORARY_BYTES], job_file[TEMPORARY_BYTES + 16];
    Heddle__V1__JobSpec *spec;
    struct hd_arena arena;
    int missed; /* bars */
};

static void stop(const char *what)
{
    (void)fprintf(stderr, "control: %s\n", what);
    exit(2);
}

static void need(enum hd_status st)
{
    if (st)
        stop(hd_err_message());
}

static double best(double *values, int count)
{
    (void)sorted_median(values, count); /* puts them in order */
    return values[0];
}

/* ---- the job ----------------------------------------------------------------------------------*/

static void make_job(struct bench *b)
{
    char text[1024], train[TEMPORARY_BYTES + 16];
    struct hd_spec_source source = {.name = "job.yaml", .folder = b->dir, .bytes = text};
    struct hd_job job;

    (void)snprintf(train, sizeof train, "%s/train.txt", b->dir);
    (void)snprintf(b->job_file, sizeof b->job_file, "%s/job.yaml", b->dir);
    need(hd_file_write_atomic(train, "some text for training and, its other half, for validation",
                              58, 0644));
    (void)snprintf(text, sizeof text,
                   "name: tiny\n"
                   "model: {family: llama, layers: 1, hidden: 16, heads: 2, kv_heads: 2,"
                   " ffn_hidden: 16, vocab: 256, context: 8}\n"
                   "data: {train: [%s], val_split: 0.5, tokenizer: bytes}\n"
                   "train: {steps: 10, global_batch: 8, lr: 1e-3, precision: fp32}\n"
                   "resources: {device_type: cpu, devices: 2}\n",
                   train);
    source.size_bytes = strlen(text);
    need(hd_file_write_atomic(b->job_file, text, source.size_bytes, 0644));
    need(hd_spec_read_yaml(&source, &b->arena, &job));
    b->spec = hd_spec_to_message(&job, &b->arena);
    if (!b->spec)
        stop("no memory for a job");
}

/* ---- controllers ------------------------------------------------------------------------------*/

/* Both ends of the pipe `gone` would be too much for a bench: an end of the bench ends it, too. */
static pid_t spawn(const char *program, const char *const argv[])
{
    const pid_t pid = fork();

    if (pid < 0)
        stop("cannot fork");
    if (pid)
        return pid;
    (void)dup2(open("/dev/null", O_RDWR | O_CLOEXEC), STDOUT_FILENO);
    (void)dup2(STDOUT_FILENO, STDERR_FILENO);
    (void)execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static void start(struct bench *b, struct side *side)
{
    const struct hd_rpc_client_options options = {.reconnect_min_ms = 20, .reconnect_max_ms = 50};
    const char *const argv[] = {"heddle-controller", "--state-dir", side->state, "--listen",
                                side->address,       "--ephemeral", NULL};
    Heddle__V1__GetServerInfoRequest request = HEDDLE__V1__GET_SERVER_INFO_REQUEST__INIT;
    ProtobufCMessage *response = NULL;

    temporary_dir(side->dir, "heddle-bench");
    (void)snprintf(side->state, sizeof side->state, "%s/state", side->dir);
    (void)snprintf(side->address, sizeof side->address, "unix:%s/c", side->dir);
    side->pid = spawn(HEDDLE_BENCH_BIN "/heddle-controller", argv);
    need(hd_rpc_client_new(b->rpc, side->address, &options, &side->client));
    for (int try = 0; hd_rpc_call_wait(side->client, "/heddle.v1.Control/GetServerInfo",
                                       &heddle__v1__get_server_info_response__descriptor, 1000,
                                       &request.base, &response);
         try++) {
        if (try == 1000)
            stop(hd_err_message());
        (void)usleep(20000);
    }
    hd_rpc_message_free(response);
}

static void end(struct side *side)
{
    hd_rpc_client_close(side->client);
    (void)kill(side->pid, SIGTERM);
    (void)waitpid(side->pid, NULL, 0);
    (void)hd_file_remove_tree(side->dir);
}

/* ---- submissions ------------------------------------------------------------------------------*/

struct flight {
    struct bench *b;
    struct side *side;
    void (*start)(struct flight *flight);
    int64_t to_start, to_end;
};

static void on_answered(struct hd_rpc_call *call, enum hd_status status, const char *message)
{
    struct flight *flight = hd_rpc_call_user(call);

    if (status)
        stop(message);
    flight->to_end--;
    if (flight->to_start)
        flight->start(flight);
}

static void ask_one(struct flight *flight)
{
    const struct hd_rpc_call_options options = {
        .path = "/heddle.v1.Control/GetServerInfo",
        .response = &heddle__v1__get_server_info_response__descriptor,
        .timeout_ms = TIMEOUT_MS,
        .handler = {.on_done = on_answered},
        .user = flight};
    Heddle__V1__GetServerInfoRequest request = HEDDLE__V1__GET_SERVER_INFO_REQUEST__INIT;

    flight->to_start--;
    need(hd_rpc_client_call(flight->side->client, &options, &request.base, NULL));
}

static void submit_one(struct flight *flight)
{
    const struct hd_rpc_call_options options = {.path = "/heddle.v1.Control/SubmitJob",
                                                .response =
                                                    &heddle__v1__submit_job_response__descriptor,
                                                .timeout_ms = TIMEOUT_MS,
                                                .handler = {.on_done = on_answered},
                                                .user = flight};
    Heddle__V1__SubmitJobRequest request = HEDDLE__V1__SUBMIT_JOB_REQUEST__INIT;
    unsigned char bytes[16];
    char id[33];

    need(hd_random_bytes(bytes, sizeof bytes));
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    request.request_id = id;
    request.spec = flight->b->spec;
    flight->to_start--;
    need(hd_rpc_client_call(flight->side->client, &options, &request.base, NULL));
}

/* Calls per second. */
static double call(struct bench *b, struct side *side, void (*start_one)(struct flight *),
                   int64_t count, int in_flight)
{
    struct flight flight = {
        .b = b, .side = side, .start = start_one, .to_start = count, .to_end = count};
    const int64_t begin_ns = hd_clock_now_ns();

    for (int i = 0; i < in_flight && flight.to_start; i++)
        start_one(&flight);
    while (flight.to_end)
        (void)uv_run(&b->loop, UV_RUN_ONCE);
    return (double)count * 1e9 / (double)(hd_clock_now_ns() - begin_ns);
}

static double submit(struct bench *b, struct side *side, int64_t count, int in_flight)
{
    return call(b, side, submit_one, count, in_flight);
}

/* Microseconds of processors that all threads of the controller have taken so far. */
static double cpu_us(const struct side *side)
{
    char path[64];
    double sum_ns = 0;
    struct dirent *entry;
    DIR *tasks;

    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)side->pid);
    tasks = opendir(path);
    while (tasks && (entry = readdir(tasks)) != NULL) {
        char task[320];
        double ns = 0;
        FILE *file;

        (void)snprintf(task, sizeof task, "%s/%s/schedstat", path, entry->d_name);
        file = fopen(task, "r");
        if (file && fscanf(file, "%lf", &ns) == 1)
            sum_ns += ns;
        if (file)
            (void)fclose(file);
    }
    if (tasks)
        (void)closedir(tasks);
    return sum_ns / 1e3;
}

/* Processor time of this process, in us. */
static double own_cpu_us(void)
{
    struct rusage used;

    (void)getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* ---- lists and processes ----------------------------------------------------------------------*/

/* Milliseconds of a list of one job at most. */
static double list_ms(struct side *side, Heddle__V1__JobState state, const char *owner)
{
    Heddle__V1__ListJobsRequest request = HEDDLE__V1__LIST_JOBS_REQUEST__INIT;
    double ms[CALLS];

    request.limit = 1;
    request.states = &state;
    request.n_states = state != HEDDLE__V1__JOB_STATE__JOB_STATE_UNSPECIFIED;
    if (owner)
        request.owner = (char *)(uintptr_t)owner;
    for (int i = 0; i < CALLS; i++) {
        const int64_t begin_ns = hd_clock_now_ns();
        ProtobufCMessage *response = NULL;

        need(hd_rpc_call_wait(side->client, "/heddle.v1.Control/ListJobs",
                              &heddle__v1__list_jobs_response__descriptor, TIMEOUT_MS,
                              &request.base, &response));
        ms[i] = (double)(hd_clock_now_ns() - begin_ns) / 1e6;
        hd_rpc_message_free(response);
    }
    return sorted_median(ms, CALLS);
}

static double process_ms(const char *const argv[])
{
    const int64_t begin_ns = hd_clock_now_ns();
    int status = 0;
    const pid_t pid = spawn(HEDDLE_BENCH_BIN "/heddle", argv);

    (void)waitpid(pid, &status, 0);
    if (status)
        stop("heddle failed");
    return (double)(hd_clock_now_ns() - begin_ns) / 1e6;
}

/* ---- the table --------------------------------------------------------------------------------*/

/* at_least: the bar is a lower one. */
static void tell(struct bench *b, const char *what, double ratio, double bar, bool at_least)
{
    const bool holds = at_least ? ratio >= bar : ratio <= bar;

    (void)printf("  %-58s %6.2f  (%s %.1f)%s\n", what, ratio, at_least ? "at least" : "at most",
                 bar, holds ? "" : "  MISSED");
    b->missed += !holds;
}

/* Rates of each round: submissions/s, and microseconds of the controller's processor time for one.
 */
struct rates {
    double per_s[ROUNDS_MAX], cpu_us[ROUNDS_MAX];
};

static void measure_rate(struct bench *b, struct side *side, void (*start_one)(struct flight *),
                         int64_t count, struct rates *rates, int round)
{
    const double before_us = cpu_us(side);

    rates->per_s[round] = call(b, side, start_one, count, IN_FLIGHT);
    rates->cpu_us[round] = (cpu_us(side) - before_us) / (double)count;
}

static void measure_inserts(struct floor *floor, int64_t count, struct rates *rates, int round)
{
    const double before_us = own_cpu_us();
    const int64_t begin_ns = hd_clock_now_ns();

    floor_insert(floor, count);
    rates->per_s[round] = (double)count * 1e9 / (double)(hd_clock_now_ns() - begin_ns);
    rates->cpu_us[round] = (own_cpu_us() - before_us) / (double)count;
}

/* Returns the microseconds that the controller's checks take for each submission, without the rest:
 * a token is hashed and found among 1000, its limits are looked up and taken, and a row of the
 * audit log is linked and inserted. Of the time of a submission, the controller's own. */
static double guard_us(struct floor *floor, int64_t count)
{
    static const char secret[] = "90f8450c2d87577f66006059d971dd2d805a4304831fd6d1d953f2af608a56b6";
    struct hd_credentials *all = hd_credentials_new();
    struct hd_usages *usages = hd_usages_new();
    struct hd_policy *policy = hd_policy_new();
    struct hd_credential_record made = {
        .kind = HD_CREDENTIAL_KIND_TOKEN, .name = "ann", .role = "user", .expires_ms = INT64_MAX};
    struct hd_identity who;
    double before;

    for (int i = 0; i < 1000; i++) {
        hd_pki_hash(i ? (const void *)&i : secret, i ? sizeof i : strlen(secret), made.hash);
        need(hd_credentials_add(all, &made));
    }
    before = own_cpu_us();
    for (int64_t i = 0; i < count; i++) {
        need(hd_identity_of_token(all, secret, 0, &who));
        need(hd_usages_take(usages, who.name, HD_LIMIT_SUBMISSIONS, INT64_MAX - 1, 1000 + i));
        (void)hd_policy_limit(policy, who.name, who.role, HD_LIMIT_JOBS_LIVE);
    }
    floor_audit(floor, count);
    before = own_cpu_us() - before;
    hd_credentials_free(all);
    hd_usages_free(usages);
    hd_policy_free(policy);
    return before / (double)count;
}

/* The order within a round turns, and nothing is removed before the end, since the removal of files
 * slows down whoever writes next. */
static void measure_rates(struct bench *b, struct side *deep, struct floor *floor, int rounds,
                          int64_t count)
{
    static struct side empty[ROUNDS_MAX];
    static struct rates on_empty, on_deep, bare, asked;
    double to_empty[ROUNDS_MAX], to_bare[ROUNDS_MAX], to_floor[ROUNDS_MAX], guard[ROUNDS_MAX];
    double cpu_floor[ROUNDS_MAX];

    for (int r = 0; r < rounds; r++)
        start(b, &empty[r]);
    for (int r = 0; r < rounds; r++) {
        for (int turn = r; turn < r + 4; turn++) {
            sync();
            if (turn % 4 == 0)
                measure_rate(b, &empty[r], submit_one, count, &on_empty, r);
            else if (turn % 4 == 1)
                measure_rate(b, deep, submit_one, count, &on_deep, r);
            else if (turn % 4 == 2)
                measure_rate(b, deep, ask_one, count, &asked, r);
            else
                measure_inserts(floor, count, &bare, r);
        }
    }
    for (int r = 0; r < rounds; r++) {
        end(&empty[r]);
        guard[r] = guard_us(floor, count) / on_deep.cpu_us[r];
        to_empty[r] = on_deep.per_s[r] / on_empty.per_s[r];
        to_bare[r] = on_deep.per_s[r] / bare.per_s[r];
        to_floor[r] = on_deep.per_s[r] * (1 / bare.per_s[r] + 1 / asked.per_s[r]);
        cpu_floor[r] = (asked.cpu_us[r] + bare.cpu_us[r]) / on_deep.cpu_us[r];
    }
    (void)printf(
        "durable submissions/s, %d in flight: %.0f on an empty queue, %.0f on the deep one, "
        "%.0f bare inserts, %.0f calls that do nothing\n",
        IN_FLIGHT, sorted_median(on_empty.per_s, rounds), sorted_median(on_deep.per_s, rounds),
        sorted_median(bare.per_s, rounds), sorted_median(asked.per_s, rounds));
    (void)printf("processor time of the controller for one: %.0f us on an empty queue, %.0f us on "
                 "the deep one, %.0f us of a call that does nothing, %.0f us of a bare insert\n",
                 sorted_median(on_empty.cpu_us, rounds), sorted_median(on_deep.cpu_us, rounds),
                 sorted_median(asked.cpu_us, rounds), sorted_median(bare.cpu_us, rounds));
    tell(b, "deep / empty", sorted_median(to_empty, rounds), 0.9, true);
    (void)printf("  %-58s %6.2f\n", "deep / bare inserts of the same bytes",
                 sorted_median(to_bare, rounds));
    (void)printf("  %-58s %6.2f\n", "processor time of (call, then bare insert) / deep",
                 sorted_median(cpu_floor, rounds));
    tell(b, "authorization and audit / processor time of a submission",
         sorted_median(guard, rounds), 0.1, false);
    tell(b, "deep / (a call that does nothing, then a bare insert)",
         sorted_median(to_floor, rounds), 0.5, true);
}

static void measure_lists(struct bench *b, struct side *deep)
{
    const double any = list_ms(deep, HEDDLE__V1__JOB_STATE__JOB_STATE_UNSPECIFIED, NULL);
    const double failed = list_ms(deep, HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED, NULL);
    const double nobody = list_ms(deep, HEDDLE__V1__JOB_STATE__JOB_STATE_UNSPECIFIED, "nobody");
    const double both = list_ms(deep, HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED, "nobody");

    (void)printf("lists on the deep queue: %.2f ms for one job; none found by state %.2f ms, by "
                 "owner %.2f ms, by both %.2f ms\n",
                 any, failed, nobody, both);
    tell(b, "none of a state / one job", failed / any, 1.5, false);
    tell(b, "none of an owner / one job", nobody / any, 1.5, false);
    tell(b, "none of both / one job", both / any, 1.5, false);
}

static void measure_processes(struct bench *b, struct side *deep)
{
    const char *const version[] = {"heddle", "--version", NULL};
    const char *const submission[] = {"heddle",      "submit",    "-q", "--controller",
                                      deep->address, b->job_file, NULL};
    double version_ms[PROCESSES], submit_ms[PROCESSES], call_ms[PROCESSES];
    double version_is, submit_is, call_is;

    for (int i = 0; i < PROCESSES; i++) { /* the best counts: other programs only make it longer */
        version_ms[i] = process_ms(version);
        call_ms[i] = 1e3 / submit(b, deep, 1, 1);
        submit_ms[i] = process_ms(submission);
    }
    version_is = best(version_ms, PROCESSES);
    submit_is = best(submit_ms, PROCESSES);
    call_is = best(call_ms, PROCESSES);
    (void)printf("processes: heddle --version %.1f ms, one submission %.1f ms, heddle submit %.1f "
                 "ms\n",
                 version_is, call_is, submit_is);
    tell(b, "heddle submit / (heddle --version + one submission)",
         submit_is / (version_is + call_is), 1.5, false);
}

static void run(struct bench *b, int64_t deep_jobs, int rounds, int64_t count)
{
    const size_t spec_bytes = heddle__v1__job_spec__get_packed_size(b->spec);
    uint8_t *spec = malloc(spec_bytes + 1);
    struct side deep = {.pid = 0};
    struct floor *floor;

    if (!spec)
        stop("no memory");
    (void)heddle__v1__job_spec__pack(b->spec, spec);
    floor = floor_open(b->dir, spec, spec_bytes);
    start(b, &deep);
    (void)printf("a job of %zu bytes; the deep queue has %lld jobs and grows\n", spec_bytes,
                 (long long)deep_jobs);
    (void)submit(b, &deep, deep_jobs, IN_FLIGHT);
    floor_insert(floor, deep_jobs);
    measure_rates(b, &deep, floor, rounds, count);
    measure_lists(b, &deep);
    measure_processes(b, &deep);
    end(&deep);
    floor_close(floor);
    free(spec);
}

int main(int argc, char **argv)
{
    struct bench b = {.missed = 0};
    int64_t deep_jobs = 19000, count = 2000;
    int rounds = 7, key;

    while ((key = getopt(argc, argv, "d:r:n:")) != -1) {
        if (key == 'd')
            deep_jobs = atoll(optarg);
        else if (key == 'r')
            rounds = atoi(optarg);
        else if (key == 'n')
            count = atoll(optarg);
        else
            return 2;
    }
    if (rounds < 1 || rounds > ROUNDS_MAX || count < 1 || deep_jobs < 0)
        stop("see the first comment of tests/bench/control.c");
    hd_arena_init(&b.arena, 0);
    temporary_dir(b.dir, "heddle-bench");
    make_job(&b);
    if (uv_loop_init(&b.loop))
        stop("cannot make an event loop");
    need(hd_rpc_new(&b.loop, &b.rpc));
    run(&b, deep_jobs, rounds, count);
    hd_rpc_close(b.rpc, NULL, NULL);
    (void)uv_run(&b.loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&b.loop);
    (void)hd_file_remove_tree(b.dir);
    hd_arena_done(&b.arena);
    return b.missed ? 1 : 0;
}
