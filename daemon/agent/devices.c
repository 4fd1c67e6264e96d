#include "daemon/agent/devices.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { CPUINFO_MAX = 16 << 20, THREADS_MAX = 4096 };

/* ---- what is wanted ---- */

static enum hd_status refuse(const struct agent_devices_wish *wish)
{
    return hd_err(HD_INVALID,
                  "--devices %s: say auto, cpu:N or cpu:N:T (N devices, 1 to %d, of T threads), "
                  "cuda, cuda:0,2 or cuda:GPU-UUID, and + between several of them",
                  wish->text, HD_ATTEMPT_RANKS_MAX);
}

static enum hd_status parse_cpu(char *rest, struct agent_devices_wish *wish)
{
    char *count = strsep(&rest, ":"), *threads = strsep(&rest, ":");
    int64_t n, t = 0;

    if (rest || !count || wish->cpu_count || hd_text_to_int64(count, 1, HD_ATTEMPT_RANKS_MAX, &n) ||
        (threads && hd_text_to_int64(threads, 1, THREADS_MAX, &t)))
        return refuse(wish);
    wish->cpu_count = (int)n;
    wish->threads = (int)t;
    return HD_OK;
}

static enum hd_status parse_gpus(char *rest, struct agent_devices_wish *wish)
{
    if (wish->gpus_all || wish->gpu_count)
        return refuse(wish);
    wish->gpus_all = !rest;
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        int64_t number;

        if (wish->gpu_count == HD_ATTEMPT_RANKS_MAX || strlen(word) >= HD_GPU_UUID_MAX ||
            (strncmp(word, "GPU-", 4) != 0 && hd_text_to_int64(word, 0, HD_GPU_MAX - 1, &number)))
            return refuse(wish);
        for (int i = 0; i < wish->gpu_count; i++)
            if (strcmp(wish->gpus[i], word) == 0)
                return hd_err(HD_INVALID, "--devices %s: %s stands twice", wish->text, word);
        (void)snprintf(wish->gpus[wish->gpu_count++], HD_GPU_UUID_MAX, "%s", word);
    }
    return HD_OK;
}

enum hd_status agent_devices_parse(const char *text, struct agent_devices_wish *ret_wish)
{
    char copy[sizeof ret_wish->text], *rest = copy;
    enum hd_status st = HD_OK;

    text = text ? text : "auto";
    *ret_wish = (struct agent_devices_wish){.cpu_count = 0};
    (void)snprintf(ret_wish->text, sizeof ret_wish->text, "%.300s", text);
    if (strlen(text) >= sizeof copy)
        return refuse(ret_wish);
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *part; !st && (part = strsep(&rest, "+")) != NULL;) {
        char *kind = strsep(&part, ":");

        if (strcmp(kind, "cpu") == 0)
            st = parse_cpu(part, ret_wish);
        else if (strcmp(kind, "cuda") == 0)
            st = parse_gpus(part, ret_wish);
        else if (strcmp(kind, "auto") == 0 && !part && !ret_wish->gpus_if_any)
            ret_wish->gpus_if_any = true;
        else
            st = refuse(ret_wish);
    }
    if (!st && ret_wish->gpus_if_any && (ret_wish->gpus_all || ret_wish->gpu_count))
        st = refuse(ret_wish);
    return st;
}

bool agent_devices_wants_gpus(const struct agent_devices_wish *wish)
{
    return wish->gpus_if_any || wish->gpus_all || wish->gpu_count;
}

/* ---- GPUs ---- */

/* Why none can be used: what stands in the way first. */
static const char *why_none(const struct hd_gpu_list *gpus)
{
    if (!gpus->count && gpus->nvml_problem[0])
        return gpus->nvml_problem;
    if (gpus->plugin_problem[0])
        return gpus->plugin_problem;
    return gpus->count ? gpus->gpus[0].problem : "there is none in this machine";
}

static bool can_be_used(const struct hd_gpu_list *gpus, const struct hd_gpu *gpu)
{
    return !gpus->plugin_problem[0] && !gpu->problem[0];
}

static void add_gpu(const struct hd_gpu *gpu, struct agent_devices *devices)
{
    struct agent_one_device *d = &devices->list[devices->count++];

    *d = (struct agent_one_device){.cuda = true, .bf16 = true, .memory_bytes = gpu->memory_bytes};
    if (d->memory_bytes < 0)
        d->memory_bytes = 0;
    (void)snprintf(d->uuid, sizeof d->uuid, "%s", gpu->uuid);
    (void)snprintf(d->name, sizeof d->name, "%s", gpu->name);
    devices->gpu_count++;
}

static enum hd_status add_all(const struct agent_devices_wish *wish, const struct hd_gpu_list *gpus,
                              struct agent_devices *devices)
{
    struct hd_text left_out = {0};

    for (int64_t i = 0; i < gpus->count && devices->count < HD_ATTEMPT_RANKS_MAX; i++) {
        if (can_be_used(gpus, &gpus->gpus[i]))
            add_gpu(&gpus->gpus[i], devices);
        else if (gpus->gpus[i].problem[0])
            hd_text_add(&left_out, "%sGPU %d (%s): %s",
                        left_out.len_bytes ? "; " : "left out: ", (int)i, gpus->gpus[i].name,
                        gpus->gpus[i].problem);
    }
    if (devices->gpu_count)
        (void)snprintf(devices->note, sizeof devices->note, "%s",
                       left_out.len_bytes ? left_out.data : "");
    else
        (void)snprintf(devices->note, sizeof devices->note, "no GPU can be used: %s",
                       why_none(gpus));
    hd_text_free(&left_out);
    if (!devices->gpu_count && wish->gpus_all)
        return hd_err(HD_UNSUPPORTED,
                      "--devices %s: %s; heddled --doctor tells more, device: cpu "
                      "needs no GPU",
                      wish->text, devices->note);
    return HD_OK;
}

static enum hd_status add_named(const struct agent_devices_wish *wish, const char *word,
                                const struct hd_gpu_list *gpus, struct agent_devices *devices)
{
    const struct hd_gpu *gpu = NULL;
    int64_t number = -1;

    for (int64_t i = 0; i < gpus->count; i++)
        if (strcmp(gpus->gpus[i].uuid, word) == 0)
            gpu = &gpus->gpus[i];
    if (!gpu && !hd_text_to_int64(word, 0, HD_GPU_MAX - 1, &number) && number < gpus->count)
        gpu = &gpus->gpus[number];
    if (!gpu)
        return hd_err(HD_UNSUPPORTED, "--devices %s: there is no GPU %s; this machine has %d%s%s",
                      wish->text, word, (int)gpus->count, gpus->count ? "" : ": ",
                      gpus->count ? "" : why_none(gpus));
    if (!can_be_used(gpus, gpu))
        return hd_err(HD_UNSUPPORTED, "--devices %s: GPU %s (%s) cannot be used: %s", wish->text,
                      word, gpu->name, gpu->problem[0] ? gpu->problem : gpus->plugin_problem);
    for (int i = 0; i < devices->count; i++)
        if (strcmp(devices->list[i].uuid, gpu->uuid) == 0)
            return hd_err(HD_INVALID, "--devices %s: GPU %s is named twice", wish->text, word);
    add_gpu(gpu, devices);
    return HD_OK;
}

/* ---- the processor ---- */

int agent_devices_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void find_processor(char ret_name[96])
{
    struct hd_text text = {0};
    const char *at = NULL;

    (void)snprintf(ret_name, 96, "cpu");
    if (hd_file_read("/proc/cpuinfo", CPUINFO_MAX, &text) == HD_OK)
        at = strstr(text.data, "model name");
    at = at ? strchr(at, ':') : NULL;
    if (at && hd_text_is_utf8(at, strcspn(at, "\n")))
        (void)snprintf(ret_name, 96, "%.*s", (int)strcspn(at + 1 + strspn(at + 1, " "), "\n"),
                       at + 1 + strspn(at + 1, " "));
    if (!hd_text_is_utf8(ret_name, strlen(ret_name))) /* cut inside a character */
        (void)snprintf(ret_name, 96, "cpu");
    hd_text_free(&text);
}

static void add_cpus(int count, int threads, struct agent_devices *devices)
{
    const int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    struct agent_one_device d = {.threads = threads, .memory_bytes = memory / count};

    find_processor(d.name);
    for (int i = 0; i < count; i++)
        devices->list[devices->count++] = d;
}

/* GPUs' ranks share the cores that CPU devices leave. */
static void share_cores(int cores, int cpu_threads, struct agent_devices *devices)
{
    const int left = cores > cpu_threads ? cores - cpu_threads : 0;
    int threads = devices->gpu_count ? left / devices->gpu_count : 0;

    threads = threads > AGENT_GPU_THREADS_MAX ? AGENT_GPU_THREADS_MAX : threads < 1 ? 1 : threads;
    for (int i = 0; i < devices->gpu_count; i++)
        devices->list[i].threads = threads;
}

enum hd_status agent_devices_choose(const struct agent_devices_wish *wish,
                                    const struct hd_gpu_list *gpus, int cores,
                                    struct agent_devices *ret_devices)
{
    int cpu_count = wish->cpu_count, threads = wish->threads;
    enum hd_status st = HD_OK;

    *ret_devices = (struct agent_devices){.count = 0};
    if (gpus && (wish->gpus_all || wish->gpus_if_any))
        st = add_all(wish, gpus, ret_devices);
    for (int i = 0; !st && i < wish->gpu_count; i++)
        st = add_named(wish, wish->gpus[i], gpus, ret_devices);
    if (st)
        return st;
    if (wish->gpus_if_any && !ret_devices->count && !cpu_count)
        cpu_count = 1;
    if (ret_devices->count + cpu_count > HD_ATTEMPT_RANKS_MAX)
        return hd_err(HD_LIMIT, "--devices %s: %d devices; a node has at most %d", wish->text,
                      ret_devices->count + cpu_count, HD_ATTEMPT_RANKS_MAX);
    if (cpu_count && !threads)
        threads = cores / cpu_count > 1 ? cores / cpu_count : 1;
    /* CPU devices that `auto` has beside it, and that nobody gave threads, are for jobs that want
     * more devices than there are GPUs: they take nothing from the GPUs' ranks */
    share_cores(cores, wish->gpus_if_any && !wish->threads ? 0 : cpu_count * threads, ret_devices);
    if (cpu_count)
        add_cpus(cpu_count, threads, ret_devices);
    return HD_OK;
}
