#include "daemon/devices/devices.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

enum { CPUINFO_MAX = 16 << 20, THREADS_MAX = 4096 };

/* ---- what is wanted ---- */

static enum hd_status refuse_selection(const struct hd_device_selection *selection)
{
    return hd_err(HD_INVALID,
                  "%s: say auto, cpu:N or cpu:N:T (N devices, 1 to %d, of T threads), "
                  "cuda, cuda:0,2 or cuda:GPU-UUID, and + between several of them",
                  selection->text, HD_ATTEMPT_RANKS_MAX);
}

static enum hd_status parse_cpu(char *rest, struct hd_device_selection *selection)
{
    char *count = strsep(&rest, ":"), *threads = strsep(&rest, ":");
    int64_t n, t = 0;

    if (rest || !count || selection->cpu_count ||
        hd_text_to_int64(count, 1, HD_ATTEMPT_RANKS_MAX, &n) ||
        (threads && hd_text_to_int64(threads, 1, THREADS_MAX, &t)))
        return refuse_selection(selection);
    selection->cpu_count = (int)n;
    selection->threads = (int)t;
    return HD_OK;
}

static enum hd_status parse_gpus(char *rest, struct hd_device_selection *selection)
{
    if (selection->gpus_all || selection->gpu_count)
        return refuse_selection(selection);
    selection->gpus_all = !rest;
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        int64_t number;

        if (selection->gpu_count == HD_ATTEMPT_RANKS_MAX || strlen(word) >= HD_GPU_UUID_MAX ||
            (strncmp(word, "GPU-", 4) != 0 && hd_text_to_int64(word, 0, HD_GPU_MAX - 1, &number)))
            return refuse_selection(selection);
        for (int i = 0; i < selection->gpu_count; i++)
            if (strcmp(selection->gpus[i], word) == 0)
                return hd_err(HD_INVALID, "%s: %s is named twice", selection->text, word);
        (void)snprintf(selection->gpus[selection->gpu_count++], HD_GPU_UUID_MAX, "%s", word);
    }
    return HD_OK;
}

enum hd_status hd_device_selection_parse(const char *text,
                                         struct hd_device_selection *ret_selection)
{
    char copy[sizeof ret_selection->text], *rest = copy;
    enum hd_status st = HD_OK;

    text = text ? text : "auto";
    *ret_selection = (struct hd_device_selection){.cpu_count = 0};
    (void)snprintf(ret_selection->text, sizeof ret_selection->text, "%.300s", text);
    if (strlen(text) >= sizeof copy)
        return refuse_selection(ret_selection);
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *part; !st && (part = strsep(&rest, "+")) != NULL;) {
        char *kind = strsep(&part, ":");

        if (strcmp(kind, "cpu") == 0)
            st = parse_cpu(part, ret_selection);
        else if (strcmp(kind, "cuda") == 0)
            st = parse_gpus(part, ret_selection);
        else if (strcmp(kind, "auto") == 0 && !part && !ret_selection->gpus_if_any)
            ret_selection->gpus_if_any = true;
        else
            st = refuse_selection(ret_selection);
    }
    if (!st && ret_selection->gpus_if_any && (ret_selection->gpus_all || ret_selection->gpu_count))
        st = refuse_selection(ret_selection);
    return st;
}

bool hd_device_selection_has_gpus(const struct hd_device_selection *selection)
{
    return selection->gpus_if_any || selection->gpus_all || selection->gpu_count;
}

/* ---- GPUs ---- */

struct device_choice {
    const struct hd_device_selection *selection;
    const struct hd_gpu_list *list;
    struct hd_numbers *numbers;
    const char *named[HD_ATTEMPT_RANKS_MAX]; /* UUIDs of the GPUs that --devices names */
};

static bool is_wished(const struct device_choice *c, const char *uuid)
{
    for (int i = 0; i < c->selection->gpu_count; i++)
        if (strcmp(c->named[i], uuid) == 0)
            return true;
    return !c->selection->gpu_count;
}

/* Finds a GPU that --devices names by number or UUID, first among those that have numbers, then in
 * the list. */
static enum hd_status find_named(const struct device_choice *c, const char *word,
                                 const char **ret_uuid)
{
    const struct hd_gpu_list *list = c->list;
    int64_t number = -1;

    (void)hd_text_to_int64(word, 0, HD_GPU_MAX - 1, &number);
    for (int i = 0; i < c->numbers->count; i++) {
        const struct hd_numbered *d = &c->numbers->list[i];

        if (hd_numbered_is_gpu(d) && (d->number == number || strcmp(d->id, word) == 0)) {
            *ret_uuid = d->id;
            return HD_OK;
        }
    }
    for (int64_t i = 0; i < list->count; i++)
        if (i == number || strcmp(list->gpus[i].uuid, word) == 0) {
            *ret_uuid = list->gpus[i].uuid;
            return HD_OK;
        }
    return hd_err(HD_UNSUPPORTED, "--devices %s: there is no GPU %s; this machine has %d%s%s",
                  c->selection->text, word, (int)list->count, list->problem[0] ? ": " : "",
                  list->problem);
}

const char *hd_devices_visible(void)
{
    return getenv("CUDA_VISIBLE_DEVICES");
}

static void add_gpu(const struct hd_gpu_list *list, const struct hd_numbered *known,
                    struct hd_devices *devices)
{
    const struct hd_gpu *gpu = hd_gpu_find(list, known->id);
    const char *visible = hd_devices_visible();
    struct hd_device *d = &devices->list[devices->count++];

    devices->gpu_count++;
    d->number = known->number;
    d->cuda = d->bf16 = true;
    d->memory_bytes = gpu ? gpu->memory_bytes : 0;
    (void)snprintf(d->uuid, sizeof d->uuid, "%s", known->id);
    (void)snprintf(d->name, sizeof d->name, "%s", gpu ? gpu->name : "unknown");
    if (gpu && gpu->problem[0])
        (void)snprintf(d->problem, sizeof d->problem, "%s", gpu->problem);
    else if (list->problem[0])
        (void)snprintf(d->problem, sizeof d->problem, "%.399s", list->problem);
    else if (!gpu)
        (void)snprintf(d->problem, sizeof d->problem,
                       "CUDA no longer lists it; see nvidia-smi and dmesg%s%.200s%s",
                       visible ? "; heddled was started with CUDA_VISIBLE_DEVICES=" : "",
                       visible ? visible : "", visible ? ", which hides the others" : "");
    else if (known->fault[0])
        (void)snprintf(d->problem, sizeof d->problem,
                       "the kernel's log has %s; after the repair send SIGHUP to heddled",
                       known->fault);
}

/* Gives a GPU its number, and withdraws it if the kernel's log has a new fatal error since
 * heddled's first check. */
static void take_note(struct hd_numbers *numbers, const struct hd_gpu *gpu, int place)
{
    struct hd_numbered *known = hd_numbers_give(numbers, gpu->uuid, place);

    if (known && known->fault_at >= 0 && gpu->fault_at > known->fault_at)
        (void)snprintf(known->fault, sizeof known->fault, "%s", gpu->fault);
    if (known && gpu->fault_at > known->fault_at)
        known->fault_at = gpu->fault_at;
}

static enum hd_status add_gpus(struct device_choice *c, struct hd_devices *devices)
{
    const struct hd_gpu_list *list = c->list;
    bool any = false; /* a GPU was offered before, or works */

    for (int i = 0; i < c->selection->gpu_count; i++)
        if (find_named(c, c->selection->gpus[i], &c->named[i]))
            return HD_UNSUPPORTED;
    for (int i = 0; i < c->numbers->count; i++)
        any |= hd_numbered_is_gpu(&c->numbers->list[i]);
    for (int64_t i = 0; i < list->count; i++)
        any |= is_wished(c, list->gpus[i].uuid) && !list->problem[0] && !list->gpus[i].problem[0];
    if (!any) {
        (void)snprintf(devices->note, sizeof devices->note, "no GPU can be used: %s",
                       list->problem[0] || !list->count ? list->problem : list->gpus[0].problem);
        return c->selection->gpus_if_any
                   ? HD_OK
                   : hd_err(HD_UNSUPPORTED,
                            "--devices %s: %s; heddled --doctor tells more, device: cpu needs no "
                            "GPU",
                            c->selection->text, devices->note);
    }
    for (int64_t i = 0; i < list->count; i++)
        take_note(c->numbers, &list->gpus[i], (int)i);
    for (int i = 0; i < c->numbers->count && devices->count < HD_ATTEMPT_RANKS_MAX; i++)
        if (hd_numbered_is_gpu(&c->numbers->list[i]) && is_wished(c, c->numbers->list[i].id))
            add_gpu(list, &c->numbers->list[i], devices);
    return HD_OK;
}

/* Returns whether a GPU before this one in the list works and is of the same model. */
static bool is_named_before(const struct hd_devices *devices, int index)
{
    for (int i = 0; i < index; i++)
        if (!devices->list[i].problem[0] &&
            strcmp(devices->list[i].name, devices->list[index].name) == 0)
            return true;
    return false;
}

/* Writes devices->compute, such as "NVIDIA H100 80GB HBM3, sm_90_cuda_13.0, cuBLASLt-13.1.0, NCCL
 * 2.28.9". */
static void name_compute(const struct hd_gpu_list *list, struct hd_devices *devices)
{
    const size_t size = sizeof devices->compute;
    size_t used = 0;

    if (!list->libraries[0])
        return;
    for (int i = 0; i < devices->gpu_count; i++)
        if (!devices->list[i].problem[0] && !is_named_before(devices, i) && used < size)
            used += (size_t)snprintf(devices->compute + used, size - used, "%s%s",
                                     used ? " and " : "", devices->list[i].name);
    if (used < size)
        (void)snprintf(devices->compute + used, size - used, "%s%s", used ? ", " : "",
                       list->libraries);
}

/* ---- the processor ---- */

const struct hd_device *hd_devices_at(const struct hd_devices *devices, int number)
{
    for (int i = 0; i < devices->count; i++)
        if (devices->list[i].number == number)
            return &devices->list[i];
    return NULL;
}

int hd_devices_cores(void)
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
    if (!hd_text_is_utf8(ret_name, strlen(ret_name))) /* the copy ends inside a character */
        (void)snprintf(ret_name, 96, "cpu");
    hd_text_free(&text);
}

static int64_t machine_memory(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

static void add_cpus(int count, int threads, struct hd_devices *devices)
{
    const int64_t memory = machine_memory();
    char name[96];

    find_processor(name);
    for (int i = 0; i < count; i++) {
        struct hd_device *d = &devices->list[devices->count++];

        d->threads = threads;
        d->memory_bytes = memory / count;
        (void)snprintf(d->name, sizeof d->name, "%s", name);
    }
}

/* Applies --device-memory. A CPU device may get more than its share, but not more than the machine
 * has; a GPU gets not more than it has. */
static enum hd_status limit_memory(const struct hd_device_selection *selection,
                                   struct hd_devices *devices)
{
    const int64_t machine = machine_memory();
    const int64_t memory_bytes = selection->memory_bytes;
    char given[32], own[32];

    if (selection->cpu_count && memory_bytes > machine) {
        hd_text_format_bytes(memory_bytes, given);
        hd_text_format_bytes(machine, own);
        return hd_err(HD_INVALID,
                      "--device-memory: %s is more than this machine has, which is %s: give less, "
                      "or leave it out",
                      given, own);
    }
    for (int i = 0; memory_bytes && i < devices->count; i++) {
        struct hd_device *d = &devices->list[i];

        if (!d->cuda || !d->memory_bytes || d->memory_bytes > memory_bytes)
            d->memory_bytes = !d->cuda && memory_bytes > machine ? machine : memory_bytes;
    }
    return HD_OK;
}

/* Divides the cores that CPU devices do not use among the ranks of the GPUs. */
static void share_cores(int cores, int cpu_threads, struct hd_devices *devices)
{
    const int left = cores > cpu_threads ? cores - cpu_threads : 0;
    int threads = devices->gpu_count ? left / devices->gpu_count : 0;

    threads = threads > HD_GPU_RANK_THREADS_MAX ? HD_GPU_RANK_THREADS_MAX
              : threads < 1                     ? 1
                                                : threads;
    for (int i = 0; i < devices->gpu_count; i++)
        devices->list[i].threads = threads;
}

/* Numbers the CPU devices. unknown: reason why it is not known yet whether the node has GPUs (NULL:
 * known); then the CPU devices get it as their problem and no lasting number, so that no job uses
 * them and the GPUs get the first numbers. */
static enum hd_status number_cpus(struct hd_numbers *numbers, const char *unknown,
                                  struct hd_devices *devices)
{
    for (int i = devices->gpu_count; i < devices->count; i++) {
        struct hd_device *d = &devices->list[i];
        const struct hd_numbered *known;
        char id[HD_GPU_UUID_MAX];

        (void)snprintf(id, sizeof id, "cpu-%d", i - devices->gpu_count);
        known = unknown ? NULL : hd_numbers_give(numbers, id, 0);
        d->number = known ? known->number : i;
        if (unknown)
            (void)snprintf(d->problem, sizeof d->problem,
                           "it waits until this node's GPUs are known: %.340s", unknown);
        else if (!known)
            return hd_err(HD_LIMIT, "this node has had %d devices since the machine was started",
                          HD_NUMBERS_MAX);
    }
    return HD_OK;
}

enum hd_status hd_devices_choose(const struct hd_device_selection *selection,
                                 const struct hd_gpu_list *list, bool answered, int cores,
                                 struct hd_numbers *numbers, struct hd_devices *ret_devices)
{
    struct device_choice c = {selection, list, numbers, {NULL}};
    int cpu_count = selection->cpu_count, threads = selection->threads;
    enum hd_status st = HD_OK;
    bool waits;

    memset(ret_devices, 0, sizeof *ret_devices); /* clears padding as well: callers compare bytes */
    if (hd_device_selection_has_gpus(selection))
        st = add_gpus(&c, ret_devices);
    if (st)
        return st;
    name_compute(list, ret_devices);
    if (selection->gpus_if_any && !ret_devices->count && !cpu_count)
        cpu_count = 1;
    if (ret_devices->count + cpu_count > HD_ATTEMPT_RANKS_MAX)
        return hd_err(HD_LIMIT, "--devices %s: %d devices; a node has at most %d", selection->text,
                      ret_devices->count + cpu_count, HD_ATTEMPT_RANKS_MAX);
    if (cpu_count && !threads)
        threads = cores / cpu_count > 1 ? cores / cpu_count : 1;
    /* with `auto` and no thread count, CPU devices only serve jobs that need more devices than
     * there are GPUs, so they take no cores from the GPUs' ranks */
    share_cores(cores, selection->gpus_if_any && !selection->threads ? 0 : cpu_count * threads,
                ret_devices);
    if (cpu_count)
        add_cpus(cpu_count, threads, ret_devices);
    st = limit_memory(selection, ret_devices);
    if (st)
        return st;
    waits = !answered && selection->gpus_if_any && !ret_devices->gpu_count;
    return number_cpus(numbers, waits ? list->problem : NULL, ret_devices);
}
