#include "worker/probe.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/order.h"
#include "comm/nccl.h"
#include "flags/flags.h"
#include "kernels/plugin.h"
#include "worker/worker.h"

enum {
    SECONDS_MAX = 600,
    GRACE_MS = 4000, /* ms in which a measurement must end that began before the time was over */
    WAIT_NS = 20 * 1000 * 1000
};

/* ---- in all processes ---- */

double probe_lower_quartile(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, hd_order_numbers);
    return values[(count - 1) / 4];
}

double probe_mean(double *values, int count)
{
    const int kept = count - count / 10;
    double sum = 0;

    qsort(values, (size_t)count, sizeof *values, hd_order_numbers);
    for (int i = 0; i < kept; i++)
        sum += values[i];
    return sum / kept;
}

void probe_keep(struct probe *p, const struct probe_record *record)
{
    if (*p->record_count < PROBE_RECORDS_MAX)
        p->records[(*p->record_count)++] = *record;
}

enum hd_status probe_agree(struct probe *p, bool *ret_goes_on)
{
    const struct probe_record nothing = {.what = PROBE_NOTHING};
    float most[2]; /* [0]: 1 if this process's time is over, else 0; [1]: its number of records */
    enum hd_status st;

    *ret_goes_on = hd_clock_now_ns() < p->end_ns;
    if (!p->peers.comm)
        return HD_OK;
    most[0] = *ret_goes_on ? 0 : 1;
    most[1] = (float)*p->record_count;
    st = probe_most(p, most, 2);
    *ret_goes_on = !st && most[0] == 0;
    while (!st && *p->record_count < (int)most[1])
        probe_keep(p, &nothing);
    return st;
}

/* ---- a measuring process ---- */

static enum hd_status join_all(struct probe *p)
{
    int32_t ranks[PROBE_DEVICES_MAX];
    void *registered;
    enum hd_status st;

    if (!p->all)
        return HD_OK;
    for (int i = 0; i < p->world; i++)
        ranks[i] = i;
    st = probe_meet(p, p->all, p->rank, p->world, &p->peers);
    if (!st)
        st = hd_comm_alloc_registered(
            p->peers.comm, ((size_t)PROBE_VISIBLE_MIB << 20) + PROBE_COUNTS_BYTES, &registered);
    if (st)
        return st;
    p->registered = registered;
    return hd_comm_open_group(p->peers.comm, "all", ranks, p->world, &p->group);
}

/* Writes the device's name; called in the measuring process, because the driver may hang, and would
 * hang the parent as well. */
static enum hd_status name_device(struct probe *p, const struct hd_traits *traits)
{
    struct hd_plugin_gpu gpus[HD_PLUGIN_GPUS_MAX];
    enum hd_status st = HD_OK;
    int count = 0;

    if (p->rank > 0)
        return HD_OK;
    if (p->is_gpu)
        st = hd_plugin_cuda_gpus(gpus, &count);
    if (st)
        return st;
    (void)snprintf(p->name->device, sizeof p->name->device, "%.63s",
                   count ? gpus[0].name : traits->backend);
    (void)snprintf(p->name->isa, sizeof p->name->isa, "%s", traits->isa);
    (void)snprintf(p->name->library, sizeof p->name->library, "%s", traits->library);
    return HD_OK;
}

/* Runs all measurements, the most important ones first, so that a short time omits only the
 * others. */
static enum hd_status measure_device(struct probe *p)
{
    const struct hd_backend_options options = probe_options(p);
    enum hd_status st = p->is_gpu ? probe_open(p) : HD_OK;
    struct hd_traits traits;
    bool half = true;

    if (!st) {
        p->table->describe(&options, &traits);
        p->memory_bytes = traits.memory_bytes;
        half = traits.bf16_fast;
        st = name_device(p, &traits);
    }
    if (!st)
        st = join_all(p);
    if (!st)
        st = probe_collectives(p);
    if (!st)
        st = probe_pairs(p);
    if (!st)
        st = probe_memory(p);
    if (!st)
        st = probe_models(p, half);
    if (!st)
        st = probe_products(p, half);
    if (!st)
        st = probe_write(p);
    if (!st)
        st = probe_models(p, !half);
    if (!st)
        st = probe_products(p, !half);
    if (st && p->peers.comm)
        hd_comm_abort(p->peers.comm, hd_err_message());
    hd_rank_close(&p->peers);
    if (p->is_gpu)
        probe_close(p);
    return st;
}

/* ---- the parent process ---- */

/* Memory shared by all processes, mapped before they are forked. */
struct probe_shared {
    struct probe_name name;
    int counts[PROBE_DEVICES_MAX];
    /* text that says why a process failed; "": it did not fail */
    char why[PROBE_DEVICES_MAX][PROBE_WHY_MAX];
    /* [world][PROBE_RECORDS_MAX], records of each process; pages that are never touched use no
     * memory */
    struct probe_record records[];
};

static size_t shared_bytes(int world)
{
    return sizeof(struct probe_shared) +
           (size_t)world * PROBE_RECORDS_MAX * sizeof(struct probe_record);
}

static enum hd_status make_controls(struct probe *p, struct hd_shm_control **controls)
{
    const int pairs = p->world / 2;
    enum hd_status st = HD_OK;

    if (p->world > 1)
        st = hd_shm_control_new(p->world, &p->all);
    for (int i = 0; !st && i < pairs * PROBE_CONTROLS; i++)
        st = hd_shm_control_new(2, &controls[i]);
    return st;
}

static void free_controls(struct probe *p, struct hd_shm_control **controls)
{
    for (int i = 0; i < p->world / 2 * PROBE_CONTROLS; i++)
        hd_shm_control_free(controls[i]);
    hd_shm_control_free(p->all);
    free(controls);
}

/* Restricts this process to its own GPU, as daemon/supervisor/ranks.c does for a rank. */
static enum hd_status show_gpu(const struct probe *p)
{
    const bool shown = setenv("CUDA_VISIBLE_DEVICES", p->gpus[p->rank], 1) == 0 &&
                       (p->world == 1 || hd_comm_nccl_set_environment());

    return shown ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the environment of a GPU");
}

static _Noreturn void serve(struct probe *p, pid_t parent)
{
    enum hd_status st;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        _exit(HD_WORKER_FAILED);
    st = p->is_gpu ? show_gpu(p) : HD_OK;
    if (!st)
        st = measure_device(p);
    if (st)
        (void)snprintf(p->why, PROBE_WHY_MAX, "%s", hd_err_message());
    _exit(st ? HD_WORKER_FAILED : HD_WORKER_OK);
}

static void set_of_ends(sigset_t *ret_set)
{
    (void)sigemptyset(ret_set);
    (void)sigaddset(ret_set, SIGTERM);
    (void)sigaddset(ret_set, SIGINT);
}

static void kill_all(const pid_t *pids, const bool *ended, int count)
{
    for (int i = 0; i < count; i++)
        if (!ended[i])
            (void)kill(pids[i], SIGKILL);
}

/* Returns whether the text names a GPU by identity and not by index: by its UUID, by that of a MIG slice,
 * or, for a GPU without a UUID, by its PCI address (daemon/devices/gpu.h). */
static bool is_uuid(const char *gpu)
{
    return hd_text_starts(gpu, "GPU-") || hd_text_starts(gpu, "MIG-") ||
           hd_text_starts(gpu, "PCI-");
}

/* Returns the failure of a process, from its message or exit status. A GPU is named by its UUID,
 * because its index among the probed GPUs may differ from the node's. */
static enum hd_status tell_failure(const struct probe *p, int device, int status, const char *why)
{
    const char *uuid = p->is_gpu && is_uuid(p->gpus[device]) ? p->gpus[device] : NULL;
    char name[PROBE_GPU_MAX];

    (void)snprintf(name, sizeof name, "device %d", device);
    if (*why)
        return hd_err(HD_IO, "%s: %s", uuid ? uuid : name, why);
    if (WIFSIGNALED(status))
        return hd_err(HD_IO,
                      "the process of %s was killed by signal %d (%s); dmesg says whether memory "
                      "has run out",
                      uuid ? uuid : name, WTERMSIG(status), strsignal(WTERMSIG(status)));
    return hd_err(HD_IO, "the process of %s ended with status %d and gave no reason",
                  uuid ? uuid : name, WEXITSTATUS(status));
}

/* Waits until all processes have ended; kills those that run beyond the time, whose measurements
 * until then count. HD_ABORTED: SIGTERM or SIGINT arrived (both are blocked); all are killed. */
static enum hd_status wait_for(const struct probe *p, const pid_t *pids, int count, int64_t end_ns,
                               const struct probe_shared *shared)
{
    const struct timespec pause = {.tv_nsec = WAIT_NS};
    bool ended[PROBE_DEVICES_MAX] = {false}, late = false, stopped = false;
    int left = count, failed = -1, failed_status = 0;
    sigset_t ends;

    set_of_ends(&ends);
    while (left > 0) {
        if (!late && hd_clock_now_ns() > end_ns + GRACE_MS * 1000000LL) {
            late = true;
            kill_all(pids, ended, count);
        }
        for (int i = 0; i < count; i++) {
            int status = 0;

            if (ended[i] || waitpid(pids[i], &status, WNOHANG) != pids[i])
                continue;
            ended[i] = true;
            left--;
            if (failed < 0 && !late && !stopped && (!WIFEXITED(status) || WEXITSTATUS(status))) {
                failed = i;
                failed_status = status;
                /* a failed measurement stores no calibration, so the other processes need not go
                 * on */
                kill_all(pids, ended, count);
            }
        }
        if (left > 0 && sigtimedwait(&ends, NULL, &pause) > 0) {
            stopped = true;
            kill_all(pids, ended, count);
        }
    }
    if (stopped)
        return hd_err(HD_ABORTED, "it was stopped by a signal");
    return failed < 0 ? HD_OK : tell_failure(p, failed, failed_status, shared->why[failed]);
}

static enum hd_status start_and_wait(struct probe *p, struct probe_shared *shared,
                                     struct hd_shm_control **controls)
{
    const pid_t parent = getpid();
    pid_t pids[PROBE_DEVICES_MAX];
    sigset_t ends, before;

    set_of_ends(&ends);
    (void)sigprocmask(SIG_BLOCK, &ends, &before);
    for (int r = 0; r < p->world; r++) {
        pids[r] = fork();
        if (pids[r] < 0) {
            const int error = errno;

            (void)wait_for(p, pids, r, 0, shared); /* kills them at once */
            return hd_err(HD_IO, "cannot start a process: %s", strerror(error));
        }
        if (pids[r] == 0) {
            (void)sigprocmask(SIG_SETMASK, &before, NULL);
            p->rank = r;
            p->records = shared->records + (size_t)r * PROBE_RECORDS_MAX;
            p->record_count = &shared->counts[r];
            p->why = shared->why[r];
            p->name = &shared->name;
            for (int k = 0; k < PROBE_CONTROLS; k++)
                p->pairs[k] = r / 2 < p->world / 2 ? controls[r / 2 * PROBE_CONTROLS + k] : NULL;
            serve(p, parent);
        }
    }
    return wait_for(p, pids, p->world, p->end_ns, shared);
}

/* ---- the calibration ---- */

static bool same_work(const struct probe_record *a, const struct probe_record *b)
{
    return a->what == b->what && a->kind == b->kind && a->members == b->members &&
           a->bytes == b->bytes && memcmp(&a->key, &b->key, sizeof a->key) == 0;
}

/* Returns the mean of record `index` over the processes that measured the same as process 0; sets
 * *ret_count to their number. */
static double mean_of(const struct probe_shared *shared, int world, int index, int *ret_count)
{
    const struct probe_record *first = &shared->records[index];
    double sum = 0;
    int count = 0;

    for (int r = 0; r < world; r++) {
        const struct probe_record *own = shared->records + (size_t)r * PROBE_RECORDS_MAX;

        if (index < shared->counts[r] && same_work(first, &own[index])) {
            sum += own[index].seconds;
            count++;
        }
    }
    *ret_count = count;
    return sum / count;
}

static enum hd_status take(const struct probe *p, const struct probe_shared *shared,
                           struct hd_arena *arena, struct hd_calibration *cal)
{
    double launches[64], steps[64];
    struct hd_calibration_waits waits[64];
    int launch_count = 0, step_count = 0, wait_count = 0, count, kernels = 0, by_all = 0;
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < shared->counts[0]; i++) {
        const struct probe_record *r = &shared->records[i];
        const double seconds = mean_of(shared, p->world, i, &count);

        kernels += r->what == PROBE_KERNEL;
        by_all += r->what == PROBE_KERNEL && count == p->world;
        if (r->what == PROBE_KERNEL)
            st = hd_calibration_add(cal, arena, &r->key, seconds > 1e-9 ? seconds : 1e-9);
        else if (r->what == PROBE_COLLECTIVE)
            st = hd_calibration_add_collective(cal, arena, r->kind, r->members, r->bytes, seconds);
        else if (r->what == PROBE_LAUNCH && launch_count < 64)
            launches[launch_count++] = seconds;
        else if (r->what == PROBE_STEP && step_count < 64)
            steps[step_count++] = seconds;
        else if (r->what == PROBE_WAIT && wait_count < 64)
            waits[wait_count++] = (struct hd_calibration_waits){seconds, r->bandwidth};
        else if (r->what == PROBE_WRITE)
            cal->checkpoint_bytes_per_s = seconds;
    }
    hd_log(HD_LOG_INFO, "%d of %d measurements of kernels were made on all %d devices", by_all,
           kernels, p->world);
    if (launch_count)
        cal->launch_s = probe_lower_quartile(launches, launch_count);
    if (step_count)
        cal->step_s = probe_lower_quartile(steps, step_count);
    hd_calibration_set_waits(cal, waits, wait_count);
    if (!st && !cal->class_count)
        st = hd_err(HD_TIMEOUT, "the time was over before the first kernel was measured: a device "
                                "does not answer, or other programs use the devices; see heddled "
                                "--doctor, and probe an idle machine");
    return st;
}

/* Copies the measurements that a process made of its own device (records `own`) to the device's
 * calibration. */
static void take_own(const struct probe_record *own, int count, struct hd_calibration_device *ret)
{
    for (int i = 0; i < count; i++) {
        const struct probe_record *r = &own[i];
        double *rate;

        if (r->what == PROBE_MEMORY)
            ret->memory_bytes_per_s = r->seconds;
        if (r->what != PROBE_KERNEL || r->key.kernel != HD_K_gemm || r->seconds <= 0)
            continue;
        rate = r->key.variant[0] == 'f' ? &ret->single_flops : &ret->half_flops;
        *rate = r->key.work / r->seconds > *rate ? r->key.work / r->seconds : *rate;
    }
}

/* Copies the measurements of single devices and of pairs of devices to the calibration; a pair is
 * measured by the device of the lower number. */
static enum hd_status take_devices(const struct probe *p, const struct probe_shared *shared,
                                   struct hd_arena *arena, struct hd_calibration *cal)
{
    struct hd_calibration_device each[PROBE_DEVICES_MAX] = {{0}};
    struct hd_calibration_pair *pairs =
        hd_arena_array(arena, HD_CALIBRATION_PAIRS_MAX, sizeof *pairs);
    int pair_count = 0;

    if (!pairs)
        return hd_err(HD_NO_MEMORY, "no memory for a calibration");
    for (int r = 0; r < p->world; r++) {
        const struct probe_record *own = shared->records + (size_t)r * PROBE_RECORDS_MAX;

        take_own(own, shared->counts[r], &each[r]);
        for (int b = r + 1; b < p->world; b++)
            for (int i = 0; i < shared->counts[r]; i++)
                if (own[i].what == PROBE_PAIR && own[i].members == b)
                    pairs[pair_count++] =
                        (struct hd_calibration_pair){r, b, own[i].seconds, own[i].bandwidth};
    }
    return hd_calibration_set_devices(cal, arena, each, p->world, pairs, pair_count);
}

static enum hd_status write_corpus(const char *dir)
{
    char path[PROBE_DIR_MAX + 16], *bytes = malloc(PROBE_CORPUS_BYTES);
    uint32_t x = 1;
    enum hd_status st;

    if (!bytes)
        return hd_err(HD_NO_MEMORY, "no memory for a text");
    for (int i = 0; i < PROBE_CORPUS_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (char)(x >> 24);
    }
    (void)snprintf(path, sizeof path, "%s/corpus", dir);
    st = hd_file_write_atomic(path, bytes, PROBE_CORPUS_BYTES, 0600);
    free(bytes);
    return st;
}

static enum hd_status write_calibration(const struct probe *p, const struct probe_shared *shared,
                                        const char *out)
{
    struct hd_calibration cal = {
        .threads = p->threads, .devices = p->world, .made_unix_s = hd_clock_wall_ms() / 1000};
    struct hd_text text = {0};
    struct hd_arena arena;
    enum hd_status st;

    (void)snprintf(cal.device, sizeof cal.device, "%s", shared->name.device);
    (void)snprintf(cal.isa, sizeof cal.isa, "%s", shared->name.isa);
    (void)snprintf(cal.library, sizeof cal.library, "%s", shared->name.library);
    (void)snprintf(cal.engine, sizeof cal.engine, "%s",
                   p->world == 1 ? ""
                   : p->is_gpu   ? "nccl"
                                 : "shm");
    hd_arena_init(&arena, 0);
    hd_calibration_build(cal.build);
    st = take(p, shared, &arena, &cal);
    if (!st)
        st = take_devices(p, shared, &arena, &cal);
    if (!st)
        hd_calibration_write(&cal, &text);
    if (!st && text.failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a calibration");
    if (!st && text.len_bytes > HD_CALIBRATION_BYTES_MAX)
        st = hd_err(HD_LIMIT, "the calibration has more than %d bytes",
                    (int)HD_CALIBRATION_BYTES_MAX);
    if (!st && hd_calibration_read(text.data, text.len_bytes, &arena, &cal))
        /* an unreadable calibration must not replace a good one */
        st = hd_err_prefix(HD_CORRUPT, "the measurements are not plausible");
    if (!st)
        st = hd_file_write_atomic(out, text.data, text.len_bytes, 0644);
    hd_text_free(&text);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status probe_devices(struct probe *p, const char *out)
{
    struct hd_shm_control **controls =
        calloc((size_t)(p->world / 2) * PROBE_CONTROLS + 1, sizeof(struct hd_shm_control *));
    struct probe_shared *shared = mmap(NULL, shared_bytes(p->world), PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    enum hd_status st = HD_OK;

    if (!controls || shared == MAP_FAILED)
        st = hd_err(HD_NO_MEMORY, "no memory for what is measured");
    if (!st)
        st = write_corpus(p->dir);
    if (!st)
        st = make_controls(p, controls);
    if (!st)
        st = start_and_wait(p, shared, controls);
    if (!st)
        st = write_calibration(p, shared, out);
    if (controls)
        free_controls(p, controls);
    if (shared != MAP_FAILED)
        (void)munmap(shared, shared_bytes(p->world));
    return st;
}

/* Reads a list of GPUs: N, for the first N GPUs that this process sees, or UUIDs. */
static enum hd_status read_gpus(char *list, struct probe *p)
{
    int64_t count = 0;
    bool slices = false;
    char *word;

    p->is_gpu = true;
    p->gpus = calloc(PROBE_DEVICES_MAX, sizeof *p->gpus);
    if (!p->gpus)
        return hd_err(HD_NO_MEMORY, "no memory for a list of GPUs");
    if (hd_text_to_int64(list, 1, PROBE_DEVICES_MAX, &count) == HD_OK) {
        for (int i = 0; i < count; i++)
            (void)snprintf(p->gpus[i], PROBE_GPU_MAX, "%d", i);
        p->world = (int)count;
        return HD_OK;
    }
    while ((word = strsep(&list, ","))) {
        if (p->world == PROBE_DEVICES_MAX || !is_uuid(word) || strlen(word) >= PROBE_GPU_MAX)
            return HD_INVALID;
        slices = slices || hd_text_starts(word, "MIG-");
        (void)snprintf(p->gpus[p->world++], PROBE_GPU_MAX, "%s", word);
    }
    return slices && p->world > 1
               ? hd_err(HD_UNSUPPORTED, "--devices names several GPUs, of which some are slices "
                                        "(MIG), which do not connect; name one slice")
               : HD_OK;
}

/* Reads N or N:T; without T a device has its share of the usable cores, as in heddle plan. */
static enum hd_status read_cpus(char *rest, struct probe *p)
{
    char *count = strsep(&rest, ":"), *threads = strsep(&rest, ":");
    int64_t devices = 0;
    cpu_set_t set;

    if (rest || hd_text_to_int64(count, 1, PROBE_DEVICES_MAX, &devices) ||
        (threads && hd_text_to_int64(threads, 1, 4096, &p->threads)))
        return HD_INVALID;
    p->world = (int)devices;
    if (!threads && sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > p->world)
        p->threads = CPU_COUNT(&set) / p->world;
    return HD_OK;
}

/* Reads which devices to measure: "cpu:N", "cpu:N:T", "cuda:N" or "cuda:UUID,UUID..". */
static enum hd_status read_devices(const char *text, struct probe *p)
{
    char *copy = strdup(text);
    enum hd_status st = copy ? HD_INVALID : hd_err(HD_NO_MEMORY, "no memory for --devices");

    p->threads = 1;
    if (copy && hd_text_starts(copy, "cpu:"))
        st = read_cpus(copy + strlen("cpu:"), p);
    else if (copy && hd_text_starts(copy, "cuda:"))
        st = read_gpus(copy + strlen("cuda:"), p);
    free(copy);
    return st != HD_INVALID
               ? st
               : hd_err(HD_INVALID,
                        "--devices %s is not understood; give cpu:N or cpu:N:T, N devices (1 to "
                        "%d) of T threads, or cuda:N, the first N GPUs, or cuda:UUID,UUID..",
                        text, (int)PROBE_DEVICES_MAX);
}

static enum hd_status make_dir(char ret_dir[PROBE_DIR_MAX], const char *out)
{
    struct stat info;

    if (stat(out, &info) == 0 && S_ISDIR(info.st_mode))
        return hd_err(HD_INVALID, "--out %s is a folder; name a file in it", out);
    if (snprintf(ret_dir, PROBE_DIR_MAX, "%s.probe-XXXXXX", out) >= PROBE_DIR_MAX)
        return hd_err(HD_INVALID, "--out is a path of more than %d bytes", (int)PROBE_DIR_MAX - 16);
    if (!mkdtemp(ret_dir))
        return hd_err(HD_IO, "cannot make a folder %s: %s", ret_dir, strerror(errno));
    return HD_OK;
}

/* Makes the kernel kill this process when the process that started it ends (--answer). */
static enum hd_status tie_to_heddled(void)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return hd_err(HD_IO, "cannot tie the probe to heddled: %s", strerror(errno));
    return HD_OK;
}

int hd_worker_probe(int argc, char **argv)
{
    struct probe p = {.table = hd_backend_cpu()};
    const char *devices = "cpu:1", *out = NULL;
    bool answer = false;
    int64_t seconds = PROBE_SECONDS;
    struct hd_flag f[] = {HD_FLAG_TEXT("--devices", devices),
                          HD_FLAG_INT64("--seconds", seconds, 1, SECONDS_MAX),
                          HD_FLAG_NEEDED("--out", out), HD_FLAG_SWITCH("--quick", p.quick),
                          HD_FLAG_SWITCH("--answer", answer)};
    enum hd_status st = HD_FLAGS_READ(argc, argv, f);

    if (!st)
        st = read_devices(devices, &p);
    if (!st)
        st = make_dir(p.dir, out);
    if (st) {
        free(p.gpus);
        return hd_worker_finish("probe", st);
    }
    /* GRACE_MS is part of the time: the whole probe takes at most `seconds` */
    p.end_ns =
        hd_clock_now_ns() + seconds * 1000000000LL - (seconds > 8 ? GRACE_MS : 0) * 1000000LL;
    st = answer ? tie_to_heddled() : HD_OK;
    if (!st)
        st = probe_devices(&p, out);
    (void)hd_file_remove_tree(p.dir); /* best effort: a folder that is left only uses disk space */
    free(p.gpus);
    if (answer)
        (void)printf("%s\n", st ? hd_err_message() : "measured");
    if (st)
        st = hd_err_prefix(st, answer ? "nothing was measured" : "nothing was stored");
    return hd_worker_finish("probe", st);
}
