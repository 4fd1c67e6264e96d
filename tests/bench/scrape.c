/* scrape: what a page of metrics costs the controller, beside its floor.
 *
 *   scrape [NODES [JOBS [ROUNDS]]]        1,000 nodes of 8 devices, 10,000 live jobs, 21 rounds
 *   scrape --fill DIR NODES JOBS          only makes the store, for build/dev/bench/page_load
 *
 * A controller is started from a store that has these nodes and jobs; each job has made steps, has
 * a checkpoint, and waits, so that it has every series. Each round makes the page as a scrape does,
 * and prints the same numbers by a bare loop: for each line of the page, its name with its labels
 * and its number by printf into one buffer. The median of the rounds' ratios counts; the bar is 2.
 * Exit code 1: it is missed; 2: it failed. Run it on a quiet machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "controller/services/internal.h"
#include "controller/services/metrics.h"
#include "spec/spec.h"
#include "tests/sorted.h"
#include "tests/temporary.h"

enum { ROUNDS_MAX = 1000, DEVICES = 8 };

static const double bar = 2;

static void stop(const char *what)
{
    (void)fprintf(stderr, "scrape: %s: %s\n", what, hd_err_message());
    exit(2);
}

static void need(enum hd_status st)
{
    if (st)
        stop("failed");
}

/* ---- the store --------------------------------------------------------------------------------*/

static const char job_file[] =
    "name: bench\n"
    "model: {family: llama, layers: 2, hidden: 64, heads: 4, context: 64}\n"
    "data: {train: [text.txt], tokenizer: bytes}\n"
    "train: {steps: 100000, global_batch: 8, lr: 3e-3}\n"
    "resources: {devices: 8, device_type: cuda}\n";

static void on_done(void *user, enum hd_status st)
{
    need(st);
    --*(int *)user;
}

static void add_node(struct hd_batch *batch, int n)
{
    struct hd_device_record devices[DEVICES];
    char uuid[32], name[32], gpu[DEVICES][40];

    (void)snprintf(uuid, sizeof uuid, "uuid-%d", n);
    (void)snprintf(name, sizeof name, "node-%04d", n);
    for (int d = 0; d < DEVICES; d++) {
        (void)snprintf(gpu[d], sizeof gpu[d], "GPU-%d-%d", n, d);
        devices[d] = (struct hd_device_record){.index = d,
                                               .kind = HD_DEVICE_KIND_CUDA,
                                               .name = "H100",
                                               .uuid = gpu[d],
                                               .memory_bytes = 85899345920};
    }
    hd_batch_add_node(batch, &(struct hd_node_record){.uuid = uuid,
                                                      .name = name,
                                                      .boot_id = "b",
                                                      .build = "b",
                                                      .state = HD_NODE_STATE_LOST,
                                                      .seen_ms = hd_clock_wall_ms(),
                                                      .devices = devices,
                                                      .device_count = DEVICES});
}

static void add_job(struct hd_batch *batch, uint64_t job, const void *spec, size_t spec_bytes)
{
    const int64_t now_ms = hd_clock_wall_ms();
    struct hd_rank_location place = {.node_uuid = "uuid-0", .node_name = "node-0000"};
    char request[32], name[32];

    (void)snprintf(request, sizeof request, "request-%016llu", (unsigned long long)job);
    (void)snprintf(name, sizeof name, "train-%llu", (unsigned long long)job);
    hd_batch_add_job(batch, true,
                     &(struct hd_job_record){.job = job,
                                             .request_id = request,
                                             .owner = "ann",
                                             .name = name,
                                             .queue = "default",
                                             .state = HD_JOB_STATE_QUEUED,
                                             .attempt_count = 1,
                                             .steps = 100000,
                                             .devices = 8,
                                             .submitted_ms = now_ms - 9000000,
                                             .started_ms = now_ms - 8000000,
                                             .spec = spec,
                                             .spec_bytes = spec_bytes});
    hd_batch_add_attempt(batch, &(struct hd_attempt_record){
                                    .job = job,
                                    .attempt = 1,
                                    .state = HD_ATTEMPT_STATE_ENDED,
                                    .end = {.cause = HD_END_CAUSE_NODE_LOST, .rank = -1},
                                    .plan = {.layout = {.precision = HD_JOB_PRECISION_BF16,
                                                        .device = HD_JOB_DEVICE_CUDA,
                                                        .schedule = "1f1b",
                                                        .recompute = "none",
                                                        .offload = HD_JOB_OFFLOAD_NONE,
                                                        .cp_exchange = HD_JOB_CP_EXCHANGE_RING,
                                                        .stages = "auto",
                                                        .tp = 1,
                                                        .cp = 1,
                                                        .dp = 1,
                                                        .pp = 1,
                                                        .ep = 1,
                                                        .micro_batch = 1,
                                                        .threads = 1},
                                             .ranks = &place,
                                             .rank_count = 1}});
    hd_batch_add_step(batch, &(struct hd_step_record){.job = job,
                                                      .sequence = 1,
                                                      .attempt = 1,
                                                      .step = (int64_t)(job % 9000) + 1,
                                                      .time_ms = now_ms - 1000,
                                                      .metrics = {.loss = 2.5 + (double)job * 1e-7,
                                                                  .grad_norm = 0.731,
                                                                  .lr = 3e-4,
                                                                  .tokens = 524288,
                                                                  .tokens_per_s = 1087654.321,
                                                                  .step_ms = 481.25,
                                                                  .mfu = 0.4312}});
    hd_batch_add_checkpoint(batch,
                            &(struct hd_checkpoint_record){.job = job,
                                                           .attempt = 1,
                                                           .step = 1,
                                                           .path = "/shared/c",
                                                           .hash = "00",
                                                           .node_uuid = "uuid-0",
                                                           .shared = true,
                                                           .time_ms = now_ms - 60000,
                                                           .size_bytes = 1,
                                                           .state = HD_CHECKPOINT_STATE_PRESENT,
                                                           .val_loss = NAN,
                                                           .sequence = 2});
}

static void fill_store(const char *dir, int nodes, int jobs)
{
    const struct hd_spec_source source = {
        .name = "bench.yaml", .folder = dir, .bytes = job_file, .size_bytes = sizeof job_file - 1};
    static char text[4096], path[TEMPORARY_BYTES + 16];
    static struct hd_job job;
    Heddle__V1__JobSpec *message;
    struct hd_batch *batch = hd_batch_new();
    struct hd_job_store *store;
    struct hd_arena arena;
    uv_loop_t loop;
    int waiting = 1;
    size_t bytes;
    uint8_t *spec;

    hd_arena_init(&arena, 0);
    need(hd_file_make_dirs(dir, 0700));
    memset(text, 'a', sizeof text);
    (void)snprintf(path, sizeof path, "%s/text.txt", dir);
    need(hd_file_write_atomic(path, text, sizeof text, 0600));
    need(hd_spec_read_yaml(&source, &arena, &job));
    message = hd_spec_to_message(&job, &arena);
    bytes = message ? heddle__v1__job_spec__get_packed_size(message) : 0;
    spec = malloc(bytes + 1);
    if (!message || !spec)
        stop("no memory");
    (void)heddle__v1__job_spec__pack(message, spec);
    (void)uv_loop_init(&loop);
    need(hd_store_open(&loop, &(struct hd_store_options){.dir = dir}, &store));
    for (int n = 0; n < nodes; n++)
        add_node(batch, n);
    for (int j = 1; j <= jobs; j++)
        add_job(batch, (uint64_t)j, spec, bytes);
    hd_store_commit(store, batch, on_done, &waiting);
    while (waiting)
        (void)uv_run(&loop, UV_RUN_ONCE);
    hd_store_close(store, 10000, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    hd_arena_done(&arena);
    free(spec);
}

/* ---- the floor --------------------------------------------------------------------------------*/

struct line {
    char *name; /* with labels; of a comment the whole line */
    double value;
    bool comment;
};

static struct line *read_page(const char *page, size_t *ret_count)
{
    struct line *lines = NULL;
    size_t count = 0, room = 0;

    while (*page) {
        const size_t length = strcspn(page, "\n");
        const char *space = page + length;

        if (count == room) {
            room = room ? 2 * room : 1024;
            lines = realloc(lines, room * sizeof *lines);
            if (!lines)
                stop("no memory");
        }
        while (*page != '#' && *space != ' ')
            space--;
        lines[count] = (struct line){.name = strndup(page, (size_t)(space - page)),
                                     .value = *page == '#' ? 0 : strtod(space, NULL),
                                     .comment = *page == '#'};
        count++;
        page += length + 1;
    }
    *ret_count = count;
    return lines;
}

static size_t print_lines(const struct line *lines, size_t count, char *buffer)
{
    char *at = buffer;

    for (size_t i = 0; i < count; i++)
        at += lines[i].comment ? sprintf(at, "%s\n", lines[i].name)
                               : sprintf(at, "%s %.12g\n", lines[i].name, lines[i].value);
    return (size_t)(at - buffer);
}

/* ---- the rounds -------------------------------------------------------------------------------*/

static int measure(struct controller *c, int rounds)
{
    static double pages[ROUNDS_MAX], floors[ROUNDS_MAX], ratios[ROUNDS_MAX];
    struct hd_text page = {0};
    struct line *lines;
    size_t count, bytes;
    char *buffer;

    metrics_add(c, NULL, &page);
    if (page.failed)
        stop("no memory");
    lines = read_page(page.data, &count);
    bytes = page.len_bytes;
    buffer = malloc(2 * bytes);
    for (int r = 0; r < rounds; r++) {
        int64_t begin = hd_clock_now_ns();

        hd_text_free(&page);
        metrics_add(c, NULL, &page);
        pages[r] = 1e-6 * (double)(hd_clock_now_ns() - begin);
        begin = hd_clock_now_ns();
        if (print_lines(lines, count, buffer) < bytes / 2)
            stop("the floor printed less");
        floors[r] = 1e-6 * (double)(hd_clock_now_ns() - begin);
        ratios[r] = pages[r] / floors[r];
    }
    (void)printf("page       %8.2f ms   %zu lines, %.1f MB\n", sorted_median(pages, rounds), count,
                 1e-6 * (double)bytes);
    (void)printf("bare loop  %8.2f ms\n", sorted_median(floors, rounds));
    (void)printf("ratio      %8.2f      at most %g\n", sorted_median(ratios, rounds), bar);
    free(buffer);
    for (size_t i = 0; i < count; i++)
        free(lines[i].name);
    free(lines);
    hd_text_free(&page);
    return sorted_median(ratios, rounds) > bar;
}

int main(int argc, char **argv)
{
    const int nodes = argc > 1 ? atoi(argv[1]) : 1000, jobs = argc > 2 ? atoi(argv[2]) : 10000;
    const int rounds = argc > 3 ? atoi(argv[3]) : 21;
    char dir[TEMPORARY_BYTES], listen[TEMPORARY_BYTES + 16];
    struct controller_options options = {.build = "bench"};
    struct controller *c;
    uv_loop_t loop;
    int missed;

    if (argc == 5 && strcmp(argv[1], "--fill") == 0) {
        fill_store(argv[2], atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    if (nodes < 1 || jobs < 1 || rounds < 1 || rounds > ROUNDS_MAX)
        return 2;
    hd_log_init("scrape", HD_LOG_ERROR);
    temporary_dir(dir, "heddle-scrape");
    fill_store(dir, nodes, jobs);
    (void)snprintf(listen, sizeof listen, "unix:%s/c", dir);
    options.state_dir = dir;
    options.listen = listen;
    (void)uv_loop_init(&loop);
    need(controller_new(&loop, &options, &c));
    missed = measure(c, rounds);
    controller_stop(c, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    need(hd_file_remove_tree(dir));
    return missed;
}
