#include "bench.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "daemon/attempt/attempt.h"
#include "daemon/attempt/spool.h"
#include "job/job.h"
#include "link/frame.h"
#include "link/hello.h"
#include "link/link.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { TICK_US = 5000 };

/* A resolved job that the text form accepts; the fake worker reads none of it. */
static void write_job(const struct bench *bench)
{
    struct hd_text text = {0};
    struct hd_job job;
    char path[256];

    hd_job_set_defaults(&job);
    for (size_t i = 0; i < hd_job_key_count; i++) {
        const struct hd_key *key = &hd_job_keys[i];

        if (key->kind == HD_KEY_NAME && !key->text)
            job_set(key, "word", &job);
        else if (key->kind == HD_KEY_WORD)
            *(unsigned *)hd_job_member(key, &job) = 1;
        else if (key->kind == HD_KEY_INT && key->min > 0 && !key->words)
            *(int64_t *)hd_job_member(key, &job) = (int64_t)key->min;
        else if (key->kind == HD_KEY_REAL && !key->number)
            *(double *)hd_job_member(key, &job) = key->min;
    }
    job.job_id = 7;
    job.attempt = 1;
    job.threads = 3;
    job.attempt_dir = job_text("%s", bench->attempt_dir);
    assert_int_equal(hd_job_write(&job, &text), HD_OK);
    (void)snprintf(path, sizeof path, "%s/" HD_ATTEMPT_JOB_FILE, bench->run_dir);
    assert_int_equal(hd_file_write_atomic(path, text.data, text.len_bytes, 0600), HD_OK);
    hd_text_free(&text);
}

void bench_init(struct bench *bench)
{
    *bench = (struct bench){.began_ms = hd_clock_wall_ms()};
    temporary_dir(bench->root, "heddle-bench");
    (void)snprintf(bench->attempt_dir, sizeof bench->attempt_dir, "%s/7/attempt-1", bench->root);
    (void)snprintf(bench->run_dir, sizeof bench->run_dir, "%s/nodes/n1", bench->attempt_dir);
    assert_int_equal(hd_file_make_dirs(bench->run_dir, 0755), HD_OK);
    write_job(bench);
    assert_int_equal(setenv("HEDDLE_PASS_ENV", "FAKE_*", 1), 0);
    for (int rank = 0; rank < 8; rank++)
        bench_mode(rank, "finish");
}

void bench_done(struct bench *bench)
{
    assert_int_equal(bench_processes(bench, NULL), 0);
    assert_int_equal(hd_file_remove_tree(bench->root), HD_OK);
}

void bench_mode(int rank, const char *mode)
{
    char name[32];

    (void)snprintf(name, sizeof name, "FAKE_%d", rank);
    assert_int_equal(setenv(name, mode, 1), 0);
}

static void exec_supervisor(const struct bench *bench, int ranks, char **more)
{
    char job[256], list[64] = "0", world[16], program[512], worker[512];
    const char *build = getenv("HEDDLE_BUILD_DIR");
    char *argv[32];
    int n = 0;

    for (int r = 1; r < ranks; r++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), ",%d", r);
    (void)snprintf(world, sizeof world, "%d", ranks);
    (void)snprintf(job, sizeof job, "%s/" HD_ATTEMPT_JOB_FILE, bench->run_dir);
    (void)snprintf(program, sizeof program, "%s/bin/heddle-supervisor",
                   build ? build : "build/dev");
    (void)snprintf(worker, sizeof worker, "%s/tests/fake_worker", build ? build : "build/dev");
    argv[n++] = program;
    argv[n++] = (char *)"--job";
    argv[n++] = job;
    argv[n++] = (char *)"--run-dir";
    argv[n++] = (char *)bench->run_dir;
    argv[n++] = (char *)"--ranks";
    argv[n++] = list;
    argv[n++] = (char *)"--world";
    argv[n++] = world;
    argv[n++] = (char *)"--node";
    argv[n++] = (char *)"n1";
    argv[n++] = (char *)"--worker";
    argv[n++] = worker;
    while (*more && n < 31)
        argv[n++] = *more++;
    argv[n] = NULL;
    (void)setenv("HEDDLE_LOG", "error", 0);
    (void)execv(program, argv);
    _exit(97);
}

void bench_start(struct bench *bench, int ranks, ...)
{
    char *more[16];
    int n = 0;
    va_list ap;

    va_start(ap, ranks);
    while (n < 15 && (more[n] = va_arg(ap, char *)))
        n++;
    va_end(ap);
    more[n] = NULL;
    bench->supervisor = fork();
    assert_true(bench->supervisor >= 0);
    if (bench->supervisor == 0)
        exec_supervisor(bench, ranks, more);
}

int bench_wait(struct bench *bench, int timeout_ms)
{
    const int64_t deadline_ms = hd_clock_now_ms() + timeout_ms;
    int status;

    while (waitpid(bench->supervisor, &status, WNOHANG) == 0) {
        if (hd_clock_now_ms() > deadline_ms) {
            (void)kill(bench->supervisor, SIGKILL);
            (void)waitpid(bench->supervisor, &status, 0);
            fail_msg("the supervisor did not end within %d ms", timeout_ms);
        }
        (void)usleep(TICK_US);
    }
    return status;
}

void bench_wait_exists(const struct bench *bench, const char *name, int timeout_ms)
{
    const int64_t deadline_ms = hd_clock_now_ms() + timeout_ms;
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", bench->run_dir, name);
    while (!hd_file_exists(path)) {
        if (hd_clock_now_ms() > deadline_ms)
            fail_msg("%s did not appear within %d ms", path, timeout_ms);
        (void)usleep(TICK_US);
    }
}

void bench_end(const struct bench *bench, struct hd_link_report *ret_end)
{
    assert_int_equal(hd_attempt_read_end(bench->run_dir, ret_end), HD_OK);
    assert_int_equal(ret_end->job, 7);
    assert_int_equal(ret_end->attempt, 1);
}

void bench_exit(const struct bench *bench, int rank, struct hd_link_report *ret_exit)
{
    assert_int_equal(hd_attempt_read_exit(bench->run_dir, rank, ret_exit), HD_OK);
    assert_int_equal(ret_exit->rank, rank);
}

char *bench_log(const struct bench *bench, int rank)
{
    struct hd_text path = {0}, text = {0};

    hd_attempt_log_path(&path, bench->attempt_dir, rank);
    assert_int_equal(hd_file_read(path.data, 1 << 20, &text), HD_OK);
    hd_text_free(&path);
    return text.data;
}

int bench_spooled(const struct bench *bench, enum hd_link_kind kind, int rank)
{
    struct hd_spool_reader *reader;
    struct hd_link_report report;
    int64_t seq[8] = {0};
    int count = 0;

    assert_int_equal(hd_spool_reader_open(bench->run_dir, &reader), HD_OK);
    while (hd_spool_read(reader, &report) == HD_OK) {
        assert_int_equal(report.job, 7);
        assert_int_equal(report.attempt, 1);
        assert_in_range(report.rank, 0, 7);
        assert_int_equal(report.seq, ++seq[report.rank]);
        count += report.kind == kind && (rank < 0 || report.rank == rank);
    }
    hd_spool_reader_close(reader);
    return count;
}

void bench_spooled_exit(const struct bench *bench, int rank, struct hd_link_report *ret_exit)
{
    struct hd_spool_reader *reader;
    struct hd_link_report report;
    int count = 0;

    assert_int_equal(hd_spool_reader_open(bench->run_dir, &reader), HD_OK);
    while (hd_spool_read(reader, &report) == HD_OK)
        if (report.kind == HD_LINK_EXIT && report.rank == rank) {
            *ret_exit = report;
            count++;
        }
    hd_spool_reader_close(reader);
    assert_int_equal(count, 1);
}

int bench_processes(const struct bench *bench, pid_t ret_pids[16])
{
    char want[256], path[64];
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    int count = 0;

    (void)snprintf(want, sizeof want, HD_ATTEMPT_DIR_ENV "=%s", bench->run_dir);
    assert_non_null(proc);
    while ((entry = readdir(proc))) {
        struct hd_text text = {0};

        (void)snprintf(path, sizeof path, "/proc/%.16s/environ", entry->d_name);
        if (atoi(entry->d_name) > 0 && hd_file_read(path, 1 << 20, &text) == HD_OK)
            for (size_t at = 0; at < text.len_bytes; at += strlen(text.data + at) + 1)
                if (strcmp(text.data + at, want) == 0) {
                    if (ret_pids && count < 16)
                        ret_pids[count] = atoi(entry->d_name);
                    count++;
                }
        hd_text_free(&text);
    }
    (void)closedir(proc);
    return count;
}

int bench_connect(const struct bench *bench, int timeout_ms)
{
    const int64_t deadline_ms = hd_clock_now_ms() + timeout_ms;
    struct hd_hello hello;
    int fd;

    while (hd_frame_connect(bench->run_dir, HD_ATTEMPT_SOCKET, &fd)) {
        if (hd_clock_now_ms() > deadline_ms)
            fail_msg("the supervisor does not answer: %s", hd_err_message());
        (void)usleep(TICK_US);
    }
    assert_int_equal(hd_hello_send(fd, -1, 1000), HD_OK);
    assert_int_equal(hd_hello_receive(fd, 5000, &hello), HD_OK);
    return fd;
}

void bench_send(int fd, int type, int64_t number)
{
    uint8_t bytes[64];
    struct hd_pack pack;

    hd_pack_begin(&pack, bytes, sizeof bytes);
    if (number >= 0)
        hd_pack_int(&pack, number);
    assert_int_equal(hd_frame_send(fd, bytes, hd_pack_end(&pack, (uint16_t)type), 1000), HD_OK);
}
