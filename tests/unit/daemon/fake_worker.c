/* A stand-in for heddle-worker, with its command line and its link, that behaves as it is told by
 * the environment: FAKE_R=MODE for rank R. It trains nothing, so that the supervisor and heddled
 * can be tested alone.
 *
 *   finish     reports FAKE_STEPS steps and a checkpoint, ends well
 *   wait       goes on until it is told to stop; then reports a checkpoint and ends with 10
 *   late       says hello half a second after it was started; then as wait
 *   meet       meets its peers at a rendezvous, prints their values, ends well
 *   exit3      ends with status 3        badinput  ends with status 2
 *   fail       says why, ends with 1     killself  dies by SIGKILL
 *   stubborn   ignores SIGTERM           silent    trains without a word
 *   saved      trains on after a checkpoint, without a word after the first step
 *   echo       says that a rank elsewhere left, with FAKE_ECHO_LAST when rank 1 has ended; ends
 *              with 1
 *   stopped    ends with 10, though nobody told it to stop
 *   frozen     stops itself by SIGSTOP
 *   hog        has a plan of 1 MiB, takes FAKE_HOG bytes, then as wait
 *   planned    has a plan of 1 MiB, then as wait
 *   oomkilled  is killed as the kernel does for want of memory in the group whose memory.events is
 *              FAKE_EVENTS
 *   chatty     prints 16 MiB of lines, then as finish
 *   parent     starts a process of its own session that ignores SIGTERM, then as wait
 *
 * A file FAKE_BROKEN/UUID breaks that GPU: a rank that has it and waits fails as one does whose GPU
 * has gone.
 *
 * As a probe of devices it measures "figures" at once, or with FAKE_PROBE=hang never ends.
 *
 * FAKE_GPUS is what it says of GPUs: a list as JSON, or the file that has it, which may be another
 * each time. "hang" is a driver that does not answer.
 */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "link/link.h"

enum { PAUSE_US = 20000, RENDEZVOUS_MS = 20000 };

static const char *flag(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    fprintf(stderr, "fake worker: no %s\n", name);
    exit(99);
}

static void report_step(struct hd_link *link, int64_t number)
{
    const struct hd_link_step step = {.step = number,
                                      .metrics = {.loss = 1.0 / (double)number, .tokens = 64}};

    hd_link_report_step(link, &step);
}

/* ATTEMPT_DIR is three folders above the job file: ATTEMPT_DIR/nodes/NODE/job. */
static char attempt_dir[1024] = "";

static void find_attempt_dir(const char *job_file)
{
    (void)snprintf(attempt_dir, sizeof attempt_dir, "%s", job_file);
    for (int i = 0; i < 3 && strrchr(attempt_dir, '/'); i++)
        *strrchr(attempt_dir, '/') = '\0';
}

static void report_checkpoint(struct hd_link *link, int64_t step)
{
    char path[1100];

    (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08lld", attempt_dir, (long long)step);
    hd_link_report_checkpoint(link, step, path, "00000000000000ff", 7, NAN);
}

static int finish(struct hd_link *link)
{
    const char *steps = getenv("FAKE_STEPS");

    for (int64_t n = 1; n <= (steps ? atoll(steps) : 3); n++)
        report_step(link, n);
    report_checkpoint(link, steps ? atoll(steps) : 3);
    return HD_LINK_EXIT_COMPLETED;
}

static bool gpu_is_broken(void)
{
    const char *folder = getenv("FAKE_BROKEN"), *uuid = getenv("CUDA_VISIBLE_DEVICES");
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", folder ? folder : "", uuid ? uuid : "");
    return folder && uuid && access(path, F_OK) == 0;
}

static int wait_for_stop(struct hd_link *link)
{
    int64_t step = 0;

    while (hd_link_poll(link) != HD_LINK_COMMAND_STOP) {
        if (gpu_is_broken()) {
            hd_link_report_failure(link, HD_UNAVAILABLE, -1, "", "the GPU is gone");
            return HD_LINK_EXIT_FAILED;
        }
        report_step(link, ++step);
        (void)usleep(PAUSE_US);
    }
    report_checkpoint(link, step);
    return HD_LINK_EXIT_STOPPED;
}

static int meet(struct hd_link *link, const char *rank)
{
    struct hd_link_values values;

    for (int round = 0; round < 2; round++) {
        char mine[32];
        const int n = snprintf(mine, sizeof mine, "%s.%d", rank, round);

        if (hd_link_rendezvous(link, mine, (size_t)n, RENDEZVOUS_MS, &values)) {
            fprintf(stderr, "fake worker: %s\n", hd_err_message());
            return HD_LINK_EXIT_FAILED;
        }
        for (int64_t i = 0; i < values.world; i++)
            printf("%.*s ", (int)values.size_bytes[i], (const char *)values.value[i]);
        hd_link_values_free(&values);
    }
    printf("met\n");
    return HD_LINK_EXIT_COMPLETED;
}

static void start_runaway(void)
{
    if (fork() == 0) {
        (void)prctl(PR_SET_PDEATHSIG, 0);
        (void)setsid();
        (void)signal(SIGTERM, SIG_IGN);
        for (;;)
            (void)pause();
    }
}

static int tell_gpus(void)
{
    const char *states = getenv("FAKE_GPUS");
    char text[8192] = "";
    FILE *file = states && states[0] == '/' ? fopen(states, "re") : NULL;

    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        (void)fclose(file);
        states = text;
    }
    while (states && strncmp(states, "hang", 4) == 0)
        (void)pause();
    return puts(states ? states : "") < 0;
}

static int echo(struct hd_link *link)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/rank-1.exit", getenv("HEDDLE_RUN_DIR"));
    while (getenv("FAKE_ECHO_LAST") && access(path, F_OK) < 0)
        (void)usleep(PAUSE_US);
    hd_link_report_failure(link, HD_ABORTED, -1, "all_reduce", "rank 2 on n2 left");
    return HD_LINK_EXIT_FAILED;
}

static int take_memory(struct hd_link *link, const char *mode)
{
    const size_t bytes = strcmp(mode, "hog") == 0 ? (size_t)atoll(getenv("FAKE_HOG")) : 0;
    char *taken = bytes ? malloc(bytes) : NULL;
    int code;

    hd_link_report_planned(link, 1 << 20);
    for (size_t i = 0; taken && i < bytes; i += 4096)
        ((volatile char *)taken)[i] = 1;
    code = wait_for_stop(link);
    free(taken);
    return code;
}

static void end_for_memory(void)
{
    FILE *events = fopen(getenv("FAKE_EVENTS"), "w");

    (void)(events && fputs("max 7\noom 1\noom_kill 1\n", events) >= 0 && fclose(events) == 0);
    (void)kill(getpid(), SIGKILL);
}

static int behave(struct hd_link *link, const char *rank, const char *mode)
{
    if (strcmp(mode, "chatty") == 0) {
        for (int i = 0; i < 1 << 20; i++)
            (void)printf("%15d\n", i);
        (void)fflush(stdout);
        return finish(link);
    }
    if (strcmp(mode, "finish") == 0)
        return finish(link);
    if (strcmp(mode, "wait") == 0 || strcmp(mode, "late") == 0)
        return wait_for_stop(link);
    if (strcmp(mode, "meet") == 0)
        return meet(link, rank);
    if (strcmp(mode, "exit3") == 0)
        return 3;
    if (strcmp(mode, "badinput") == 0)
        return HD_LINK_EXIT_BAD_INPUT;
    if (strcmp(mode, "fail") == 0) {
        hd_link_report_failure(link, HD_IO, atoi(rank), "all_reduce", "the disk is full");
        return HD_LINK_EXIT_FAILED;
    }
    if (strcmp(mode, "echo") == 0)
        return echo(link);
    if (strcmp(mode, "stopped") == 0)
        return HD_LINK_EXIT_STOPPED;
    if (strcmp(mode, "frozen") == 0)
        (void)raise(SIGSTOP);
    if (strcmp(mode, "killself") == 0)
        (void)kill(getpid(), SIGKILL);
    if (strcmp(mode, "hog") == 0 || strcmp(mode, "planned") == 0)
        return take_memory(link, mode);
    if (strcmp(mode, "oomkilled") == 0)
        end_for_memory();
    if (strcmp(mode, "stubborn") == 0)
        (void)signal(SIGTERM, SIG_IGN);
    if (strcmp(mode, "parent") == 0) {
        start_runaway();
        return wait_for_stop(link);
    }
    if (strcmp(mode, "saved") == 0) {
        hd_link_report_phase(link, HD_LINK_PHASE_CHECKPOINTING, 1);
        report_step(link, 2);
    }
    for (;;) {
        (void)usleep(PAUSE_US);
        if (strcmp(mode, "silent") != 0 && strcmp(mode, "saved") != 0)
            hd_link_report_phase(link, HD_LINK_PHASE_TRAINING, 1);
    }
}

/* FAKE_PROBE=hang: does not end by itself. */
static int probe(const char *out)
{
    FILE *f = fopen(out, "w");

    while (getenv("FAKE_PROBE") && strcmp(getenv("FAKE_PROBE"), "hang") == 0)
        (void)usleep(PAUSE_US);
    return !f || fputs("figures", f) < 0 || fclose(f) != 0 || puts("measured") < 0;
}

int main(int argc, char **argv)
{
    const char *rank, *mode;
    struct hd_link *link;
    char name[32];
    int code;

    if (argc > 1 && strcmp(argv[1], "device") == 0) /* what heddled asks first */
        return puts("isa none\nbf16_fast 0\ngloo 1") < 0;
    if (argc > 1 && strcmp(argv[1], "gpus") == 0) /* and of a machine with GPUs, this */
        return tell_gpus();
    if (argc > 1 && strcmp(argv[1], "probe") == 0)
        return probe(flag(argc, argv, "--out"));
    rank = flag(argc, argv, "--rank");
    (void)snprintf(name, sizeof name, "FAKE_%s", rank);
    mode = getenv(name);
    find_attempt_dir(flag(argc, argv, "--job"));
    (void)flag(argc, argv, "--shm-control");
    (void)flag(argc, argv, "--shm-ranks");
    printf("rank %s of %s: %s, %s threads\n", rank, flag(argc, argv, "--world"),
           mode ? mode : "finish", getenv("OMP_NUM_THREADS"));
    if (getenv("CUDA_VISIBLE_DEVICES"))
        printf("sees %s, modules %s, order %s, blocking %s\n", getenv("CUDA_VISIBLE_DEVICES"),
               getenv("CUDA_MODULE_LOADING"), getenv("NCCL_LAUNCH_ORDER_IMPLICIT"),
               getenv("NCCL_COMM_BLOCKING"));
    (void)fflush(stdout);
    if (mode && strcmp(mode, "late") == 0)
        (void)usleep(500000);
    if (hd_link_worker_open(atoi(flag(argc, argv, "--link-fd")), atoll(rank),
                            atoll(flag(argc, argv, "--world")), &link)) {
        fprintf(stderr, "fake worker: %s\n", hd_err_message());
        return 98;
    }
    hd_link_report_phase(link, HD_LINK_PHASE_TRAINING, 0);
    code = behave(link, rank, mode ? mode : "finish");
    (void)fflush(stdout);
    hd_link_close(link);
    return code;
}
