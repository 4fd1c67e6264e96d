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

/* What is chosen from. */
struct choice {
    const struct agent_devices_wish *wish;
    const struct hd_gpu_list *gpus;
    bool answered;
    const struct agent_known *known;
};

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

/* One that the machine has at `place` of its list, or that is only known from before. */
static void add_gpu(const char *uuid, const char *name, int64_t memory_bytes, int place,
                    const char *problem, struct agent_devices *devices)
{
    struct agent_one_device *d = &devices->list[devices->count++];

    *d = (struct agent_one_device){.cuda = true, .bf16 = true, .number = place};
    d->memory_bytes = memory_bytes < 0 ? 0 : memory_bytes;
    (void)snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
    (void)snprintf(d->name, sizeof d->name, "%s", name);
    (void)snprintf(d->problem, sizeof d->problem, "%s", problem);
    devices->gpu_count++;
}

static bool is_chosen(const struct agent_devices *devices, const char *uuid)
{
    for (int i = 0; i < devices->count; i++)
        if (strcmp(devices->list[i].uuid, uuid) == 0)
            return true;
    return false;
}

static int place_of(const struct hd_gpu_list *gpus, const char *uuid)
{
    for (int i = 0; i < gpus->count; i++)
        if (uuid[0] && strcmp(gpus->gpus[i].uuid, uuid) == 0)
            return i;
    return -1;
}

/* What has become of one that was offered before. One that is lost often tells no UUID: its story
 * is that of a nameless one. */
static void find_problem(const struct choice *c, const char *uuid, char ret_text[HD_GPU_STORY_MAX])
{
    const int place = place_of(c->gpus, uuid);
    const char *why = c->gpus->count ? "" : why_none(c->gpus);

    if (place >= 0) {
        (void)snprintf(ret_text, HD_GPU_STORY_MAX, "%.*s", HD_GPU_STORY_MAX - 1,
                       c->gpus->gpus[place].problem[0] ? c->gpus->gpus[place].problem
                                                       : c->gpus->plugin_problem);
        return;
    }
    for (int i = 0; i < c->gpus->count && !*why; i++)
        why = c->gpus->gpus[i].uuid[0] ? "" : c->gpus->gpus[i].problem;
    (void)snprintf(ret_text, HD_GPU_STORY_MAX, "%s%s%.300s",
                   c->answered ? "it is not there any more" : "how it fares is not known",
                   *why ? ": " : "", why);
}

/* It was offered before, so somebody may use it: it stays, and gets no new jobs. */
static void add_known(const struct choice *c, const struct agent_known_device *known,
                      struct agent_devices *devices)
{
    char problem[HD_GPU_STORY_MAX];

    find_problem(c, known->id, problem);
    add_gpu(known->id, known->name, known->memory_bytes, known->number, problem, devices);
}

static enum hd_status add_all(const struct choice *c, struct agent_devices *devices)
{
    const struct hd_gpu_list *gpus = c->gpus;
    struct hd_text left_out = {0};

    for (int i = 0; i < gpus->count && devices->count < HD_ATTEMPT_RANKS_MAX; i++) {
        const struct hd_gpu *gpu = &gpus->gpus[i];

        if (can_be_used(gpus, gpu))
            add_gpu(gpu->uuid, gpu->name, gpu->memory_bytes, i, "", devices);
        else if (gpu->problem[0] && !agent_known_find(c->known, gpu->uuid))
            hd_text_add(&left_out, "%sGPU %d (%s): %s", left_out.len_bytes ? "; " : "left out: ", i,
                        gpu->name, gpu->problem);
    }
    for (int i = 0; i < c->known->count && devices->count < HD_ATTEMPT_RANKS_MAX; i++)
        if (agent_known_is_gpu(&c->known->list[i]) && !is_chosen(devices, c->known->list[i].id))
            add_known(c, &c->known->list[i], devices);
    if (devices->gpu_count)
        (void)snprintf(devices->note, sizeof devices->note, "%s",
                       left_out.len_bytes ? left_out.data : "");
    else
        (void)snprintf(devices->note, sizeof devices->note, "no GPU can be used: %s",
                       why_none(gpus));
    hd_text_free(&left_out);
    if (!devices->gpu_count && c->wish->gpus_all)
        return hd_err(HD_UNSUPPORTED,
                      "--devices %s: %s; heddled --doctor tells more, device: cpu "
                      "needs no GPU",
                      c->wish->text, devices->note);
    return HD_OK;
}

/* The UUID of a GPU that is named by its number or by itself; "": there is none, or it tells none.
 */
static const char *uuid_of(const struct choice *c, const char *word, int *ret_place)
{
    const struct agent_known_device *known;
    int64_t number;

    *ret_place = place_of(c->gpus, word);
    if (hd_text_to_int64(word, 0, HD_GPU_MAX - 1, &number))
        return word;
    known = agent_known_at(c->known, (int)number);
    if (known && agent_known_is_gpu(known)) {
        *ret_place = place_of(c->gpus, known->id);
        return known->id;
    }
    *ret_place = number < c->gpus->count ? (int)number : -1;
    return *ret_place < 0 ? "" : c->gpus->gpus[number].uuid;
}

static enum hd_status add_named(const struct choice *c, const char *word,
                                struct agent_devices *devices)
{
    const struct hd_gpu_list *gpus = c->gpus;
    const struct hd_gpu *gpu;
    int place;
    const char *uuid = uuid_of(c, word, &place);
    const struct agent_known_device *known = agent_known_find(c->known, uuid);

    gpu = place < 0 ? NULL : &gpus->gpus[place];
    if (!gpu && !known)
        return hd_err(HD_UNSUPPORTED, "--devices %s: there is no GPU %s; this machine has %d%s%s",
                      c->wish->text, word, (int)gpus->count, gpus->count ? "" : ": ",
                      gpus->count ? "" : why_none(gpus));
    if (!known && !can_be_used(gpus, gpu))
        return hd_err(HD_UNSUPPORTED, "--devices %s: GPU %s (%s) cannot be used: %s", c->wish->text,
                      word, gpu->name, gpu->problem[0] ? gpu->problem : gpus->plugin_problem);
    if (is_chosen(devices, uuid))
        return hd_err(HD_INVALID, "--devices %s: GPU %s is named twice", c->wish->text, word);
    if (gpu && can_be_used(gpus, gpu))
        add_gpu(gpu->uuid, gpu->name, gpu->memory_bytes, place, "", devices);
    else
        add_known(c, known, devices);
    return HD_OK;
}

/* ---- the processor ---- */

const struct agent_one_device *agent_devices_at(const struct agent_devices *devices, int number)
{
    for (int i = 0; i < devices->count; i++)
        if (devices->list[i].number == number)
            return &devices->list[i];
    return NULL;
}

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

/* The GPUs' places in the machine's list are their numbers where they are not taken, and those of
 * CPU devices stand behind them. */
static void give_numbers(const struct hd_gpu_list *gpus, struct agent_known *known,
                         struct agent_devices *devices)
{
    const int gpu_count = gpus ? (int)gpus->count : 0;
    int cpu = 0;

    for (int i = 0; i < devices->count; i++) {
        struct agent_one_device *d = &devices->list[i];
        char id[HD_GPU_UUID_MAX];

        (void)snprintf(id, sizeof id, "cpu-%d", cpu);
        d->number =
            d->cuda
                ? agent_known_number(known, d->uuid, d->number, d->name, d->memory_bytes)
                : agent_known_number(known, id, cpu + (devices->gpu_count ? gpu_count : 0), "", 0);
        cpu += !d->cuda;
    }
}

/* The controller takes no node back that lacks a device which an attempt uses. */
static void hold_cpus(const struct choice *c, int cores, struct agent_devices *devices)
{
    for (int i = 0; i < c->known->count && devices->count < HD_ATTEMPT_RANKS_MAX; i++) {
        const struct agent_known_device *known = &c->known->list[i];
        struct agent_one_device *d = &devices->list[devices->count];

        if (agent_known_is_gpu(known) || agent_devices_at(devices, known->number))
            continue;
        add_cpus(1, cores, devices);
        d->number = known->number;
        d->held = true;
        (void)snprintf(d->problem, sizeof d->problem,
                       "--devices %.200s gives it no more; what runs on it may end", c->wish->text);
    }
}

enum hd_status agent_devices_choose(const struct agent_devices_wish *wish,
                                    const struct hd_gpu_list *gpus, bool answered, int cores,
                                    bool in_use, struct agent_known *known,
                                    struct agent_devices *ret_devices)
{
    const struct choice c = {wish, gpus, answered, known};
    int cpu_count = wish->cpu_count, threads = wish->threads;
    struct agent_known for_now = *known;
    enum hd_status st = HD_OK;
    bool waits;

    *ret_devices = (struct agent_devices){.count = 0};
    if (gpus && (wish->gpus_all || wish->gpus_if_any))
        st = add_all(&c, ret_devices);
    for (int i = 0; !st && i < wish->gpu_count; i++)
        st = add_named(&c, wish->gpus[i], ret_devices);
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
    waits = !answered && wish->gpus_if_any && !ret_devices->gpu_count;
    for (int i = 0; waits && i < cpu_count; i++)
        (void)snprintf(ret_devices->list[i].problem, sizeof ret_devices->list[i].problem,
                       "it waits until this node's GPUs are known: %.300s", why_none(gpus));
    /* cores that wait leave the first numbers to the GPUs: nobody uses them, but for those that
     * were known before */
    give_numbers(gpus, waits ? &for_now : known, ret_devices);
    if (in_use)
        hold_cpus(&c, cores, ret_devices);
    return HD_OK;
}

bool agent_devices_let_go(struct agent_devices *devices)
{
    const int count = devices->count;

    devices->count = 0;
    for (int i = 0; i < count; i++)
        if (!devices->list[i].held)
            devices->list[devices->count++] = devices->list[i];
    return devices->count < count;
}
