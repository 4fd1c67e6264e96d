/* plan: what a job will take, before anything runs. Each rank's plan is built in this process, from
 * a description of the device: `heddle-worker device` measures one of this machine, a data sheet
 * describes a GPU that this machine does not have.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/cli/bar.h"
#include "controller/cli/data_look.h"
#include "controller/cli/plan_layouts.h"
#include "controller/cli/plan_show.h"
#include "controller/cli/process.h"
#include "controller/cli/submit.h"
#include "plan/calibration.h"
#include "plan/fit.h"
#include "spec/spec.h"

/* ---- the device ---- */

static int refuse_devices(const char *text)
{
    struct hd_text words = {0};
    size_t count;
    const struct hd_gpu_kind *kinds = hd_gpu_kinds(&count);
    int code;

    for (size_t i = 0; i < count; i++)
        hd_text_add(&words, "%s%s", i ? ", " : "", kinds[i].word);
    code = cli_usage(
        "plan: --devices %s is not understood; give cpu:N or cpu:N:T, N devices (1 to %d) of T "
        "threads, or KIND:N, N GPUs of one of these kinds: %s",
        text, HD_PLAN_DEVICES_MAX, words.failed ? "" : words.data);
    hd_text_free(&words);
    return code;
}

/* origin: what messages call it. False: there is no room. */
static bool add_override(struct cli_list *overrides, const char *text, const char *origin)
{
    if (overrides->count == sizeof overrides->items / sizeof overrides->items[0])
        return false;
    overrides->origins[overrides->count] = origin;
    overrides->items[overrides->count++] = text;
    return true;
}

/* --devices cpu:N[:T] or KIND:N; works like a last --set of resources.devices and resources.device,
 * so that the job file's rules are checked with it. */
static int read_devices(const char *text, struct plan_asked *a, struct cli_list *overrides)
{
    char copy[64], *rest = copy, *word, *count, *threads;
    bool cpu;

    if (!text)
        return CLI_CONTINUE;
    (void)snprintf(copy, sizeof copy, "%s", text);
    word = strsep(&rest, ":");
    count = strsep(&rest, ":");
    threads = strsep(&rest, ":");
    cpu = strcmp(word, "cpu") == 0;
    a->kind = hd_gpu_kind_find(word);
    if (rest || !(cpu || a->kind) || !count ||
        hd_text_to_int64(count, 1, HD_PLAN_DEVICES_MAX, &a->devices) ||
        (threads && (!cpu || hd_text_to_int64(threads, 1, 4096, &a->threads))))
        return refuse_devices(text);
    (void)snprintf(a->override, sizeof a->override, "resources.devices=%s", count);
    (void)snprintf(a->origin, sizeof a->origin, "--devices %s", text);
    if (!add_override(overrides, a->override, a->origin) ||
        !add_override(overrides, cpu ? "resources.device=cpu" : "resources.device=cuda", a->origin))
        return cli_usage(
            "plan: --devices takes the place of two --set, and there are too many; leave one out");
    return CLI_CONTINUE;
}

/* Without --devices: as many devices as the job may have, which share the usable cores as those of
 * heddled do. */
static void fill_devices(struct plan_asked *a)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;

    a->devices = hd_spec_most_devices(a->spec);
    if (!a->threads)
        a->threads = a->spec->threads         ? a->spec->threads
                     : cores / a->devices > 1 ? cores / a->devices
                                              : 1;
    a->spec->threads = a->threads;
    a->spec->devices_min = a->spec->devices_max = a->devices;
}

/* The answer of `heddle-worker device`; sets between_bytes. measure: also what takes time to find
 * out. */
static enum hd_status ask_about(struct plan_asked *a, const char *device, bool measure,
                                struct hd_text *ret_answer, int *ret_status)
{
    const int32_t connected = hd_plan_ranks_max(device, NULL);
    struct hd_text program = {0};
    enum hd_status st = process_find("heddle-worker", &program);
    char number[24], ranks[24];
    const char *word;

    (void)snprintf(number, sizeof number, "%lld", (long long)a->threads);
    (void)snprintf(ranks, sizeof ranks, "%lld",
                   (long long)(a->devices < connected ? a->devices : connected));
    if (!st) {
        const char *const argv[] = {program.data, "device",  "--threads",
                                    number,       "--world", ranks,
                                    "--device",   device,    measure ? "--measure" : NULL,
                                    NULL};

        st = process_ask(argv, NULL, ret_answer, NULL, ret_status);
    }
    hd_text_free(&program);
    word = !st && ret_answer->data ? strstr(ret_answer->data, "\ngloo_bytes ") : NULL;
    a->between_bytes = word ? strtoll(word + strlen("\ngloo_bytes "), NULL, 10) : 0;
    return st;
}

/* A line "NAME NUMBER" of an answer; 0: there is none. */
static double number_of(const char *answer, const char *name)
{
    const char *word = answer ? strstr(answer, name) : NULL;

    return word ? strtod(word + strlen(name), NULL) : 0;
}

static void find_rates(struct plan_asked *a, const char *answer)
{
    const double half = number_of(answer, "\npeak_bf16 "),
                 single = number_of(answer, "\npeak_fp32 "),
                 copy = number_of(answer, "\ncopy_bytes_per_s ");

    if (half > 0 && single > 0 && copy > 0)
        hd_rates_of_peaks(half, single, copy, 0, &a->rates);
}

static enum hd_status ask_worker(struct plan_asked *a)
{
    struct hd_text answer = {0};
    int status = 0;
    enum hd_status st = ask_about(a, a->spec->device, true, &answer, &status);
    char *word;

    if (!st && status && strcmp(a->spec->device, "cuda") == 0)
        st = hd_err(HD_UNSUPPORTED, "resources.device: cuda: no GPU of this machine can be used; "
                                    "run heddle plan where there is one, or give --devices KIND:N, "
                                    "such as h100:8, or --devices cpu:N");
    else if (!st && status)
        st = hd_err(HD_IO, "heddle-worker could not describe the device; its message is above");
    if (!st) {
        find_rates(a, answer.data);
        word = answer.data ? strstr(answer.data, "\ntraits ") : NULL;
        if (word) {
            word += strlen("\ntraits ");
            word[strcspn(word, "\n")] = '\0';
        }
        st = hd_traits_read(word ? word : "", &a->traits);
        if (st)
            st = hd_err_prefix(st, "heddle-worker");
    }
    hd_text_free(&answer);
    return st;
}

/* What messages between nodes take is the same on every machine; not known without heddle-worker.
 */
static void find_between(struct plan_asked *a)
{
    struct hd_text answer = {0};
    int status;

    if (a->devices > 1)
        (void)ask_about(a, "cpu", false, &answer, &status);
    hd_text_free(&answer);
}

static void note_too_much(int64_t given_bytes, int64_t own_bytes, const char *whose)
{
    char given[32], own[32];

    if (!own_bytes || given_bytes <= own_bytes)
        return;
    hd_text_format_bytes(given_bytes, given);
    hd_text_format_bytes(own_bytes, own);
    cli_note("heddle: --device-memory: %s is more than %s, which is %s", given, whose, own);
}

/* What a rank may take: of a GPU its memory; of CPU devices that share this machine their share of
 * its memory, as heddled offers it; of other CPU devices it is not known. */
static void find_memory(struct plan_asked *a, bool other_machines)
{
    const int64_t machine = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    const bool cuda = hd_traits_is_cuda(&a->traits);
    const int64_t own = cuda ? a->traits.memory_bytes : other_machines ? 0 : machine / a->devices;

    if (cuda || !other_machines)
        note_too_much(a->memory_bytes, cuda ? own : machine,
                      cuda ? "such a GPU has" : "this machine has");
    if (!a->memory_bytes || (cuda && own < a->memory_bytes))
        a->memory_bytes = own;
    if (cuda)
        a->traits.memory_bytes = a->memory_bytes; /* what is said of fitting is said of this */
}

/* ---- the plan ---- */

/* The layout that the controller, too, gets from plan/fit.h, and the plan of each rank in it. */
static enum hd_status resolve(struct plan_asked *a)
{
    const struct hd_spec_attempt attempt = {.job_id = 1, .number = 1, .dir = "/"};
    const bool cuda = hd_traits_is_cuda(&a->traits);
    struct hd_layout_sizes layout;
    struct hd_plan_request wish;
    const struct hd_fit_asked asked = {.spec = a->spec,
                                       .request = &wish,
                                       .devices = (int32_t)a->devices,
                                       .threads = a->threads,
                                       .bf16_fast = a->traits.bf16_fast,
                                       .traits = &a->traits,
                                       .memory_bytes = a->memory_bytes};
    struct hd_fit fit;
    enum hd_status st = hd_spec_check(a->spec);

    if (st)
        return st;
    hd_spec_plan_request(a->spec, &wish);
    (void)snprintf(wish.sizes.device, sizeof wish.sizes.device, "%s", cuda ? "cuda" : "cpu");
    st = hd_fit_choose(&asked, &fit);
    if (st)
        return st;
    hd_fit_explain(&asked, &fit, &a->choice);
    layout = fit.sizes;
    hd_plan_decide_device(cuda ? "cuda" : "cpu", a->traits.bf16_fast, a->threads, &layout);
    st = hd_spec_resolve(a->spec, &layout, &attempt, &a->job);
    return st ? st : hd_plan_build(&a->job, &a->traits, &a->arena, &a->plan);
}

/* ---- layouts of a cluster ---- */

/* The next of the pins at *at, which ends before a comma outside brackets: "stages=[7,8]" is one.
 */
static char *next_pin(char **at)
{
    char *pin = *at, *end = pin;
    int depth = 0;

    if (!pin)
        return NULL;
    for (; *end && (*end != ',' || depth > 0); end++)
        depth += (*end == '[' || *end == '{') - (*end == ']' || *end == '}');
    *at = *end ? end + 1 : NULL;
    *end = '\0';
    return pin;
}

/* A name that two pins give: the second would win without a word. */
static int check_once(const struct cli_list *overrides, size_t first, const char *override)
{
    const size_t len_bytes = strcspn(override, "=") + 1;

    for (size_t i = first; i < overrides->count; i++)
        if (strncmp(overrides->items[i], override, len_bytes) == 0)
            return cli_usage("plan: --pin gives %.*s twice, as %s and as %s; leave one out",
                             (int)(len_bytes - 1), override, overrides->items[i] + len_bytes,
                             override + len_bytes);
    return CLI_CONTINUE;
}

/* --pin tp=8,pp=2: each the key parallel.NAME, as by --set; precision is one of train. The texts
 * live in the arena. */
static int read_pins(const struct cli_list *pins, struct hd_arena *arena,
                     struct cli_list *overrides)
{
    const size_t first = overrides->count;

    for (size_t i = 0; i < pins->count; i++) {
        char *copy = hd_arena_strdup(arena, pins->items[i]), *pin;

        while ((pin = next_pin(&copy)) != NULL) {
            const char *group = strncmp(pin, "precision=", 10) == 0 ? "train" : "parallel";
            const size_t size = strlen(pin) + sizeof "parallel.";
            char *override = hd_arena_alloc(arena, size);
            const char *origin = hd_arena_printf(arena, "--pin %s", pin);

            if (!strchr(pin, '='))
                return cli_usage("plan: --pin %s is not understood; give NAME=VALUE,.. of the keys "
                                 "below parallel, such as tp=8,pp=2",
                                 pins->items[i]);
            if (!override || !origin)
                break;
            (void)snprintf(override, size, "%s.%s", group, pin);
            if (check_once(overrides, first, override) != CLI_CONTINUE)
                return CLI_USAGE;
            if (!add_override(overrides, override, origin))
                return cli_usage("plan: too many --set and --pin; leave some out");
        }
    }
    return hd_arena_failed(arena) ? cli_fail(hd_err(HD_NO_MEMORY, "no memory for a plan"))
                                  : CLI_CONTINUE;
}

enum { TOP_SHOWN = 3 }; /* layouts, without --top */

/* The flags of a plan. */
struct plan_flags {
    const char *devices, *memory, *cluster, *out, *calibration;
    struct cli_list overrides, pins;
    bool explain, live;
    int64_t top; /* 0: not given */
};

/* What the times of a calibration do not tell of so many devices on a machine. */
static void note_measured(const struct hd_calibration *cal, int64_t together)
{
    if (together > cal->devices)
        cli_note("heddle: plan: %lld device%s at once were measured, and %lld of a machine are "
                 "planned: what they share, memory and links, is taken as it was with %lld; "
                 "heddle-worker probe measures more",
                 (long long)cal->devices, cal->devices == 1 ? "" : "s", (long long)together,
                 (long long)cal->devices);
    else if (together > 1 && !cal->curve_count)
        cli_note("heddle: plan: the calibration has no collectives: theirs are not measured times");
}

/* From now on times are those that `heddle-worker probe` measured. together: devices of a machine.
 */
static enum hd_status calibrate(struct plan_asked *a, const char *path, int64_t together,
                                struct hd_rates *rates)
{
    struct hd_calibration *cal = hd_arena_alloc(&a->arena, sizeof *cal);

    if (!cal)
        return hd_err(HD_NO_MEMORY, "no memory for a calibration");
    if (hd_calibration_read_file(path, &a->arena, cal)) /* it names the file */
        return hd_err(HD_INVALID, "--%s", hd_err_message());
    if (a->kind ? hd_calibration_check_gpu(cal, a->kind)
                : hd_calibration_check(cal, &a->traits, a->threads))
        return hd_err(HD_INVALID, "--calibration %s: %s", path, hd_err_message());
    hd_rates_calibrate(rates, cal);
    note_measured(cal, together);
    return HD_OK;
}

/* The machines: of --cluster, or usual ones of a kind of GPU. */
static enum hd_status find_clusters(const struct plan_flags *f, struct plan_asked *a,
                                    struct hd_report_asked *l)
{
    struct hd_cluster *clusters =
        hd_arena_array(&a->arena, HD_CLUSTER_GROUPS_MAX, sizeof *clusters);

    if (!clusters)
        return hd_err(HD_NO_MEMORY, "no memory for a cluster");
    l->clusters = clusters;
    if (f->cluster)
        return hd_spec_read_cluster(f->cluster, &a->arena, clusters, &l->cluster_count, NULL);
    hd_cluster_of_kind(a->kind, a->devices, a->spec->tf32, &clusters[0]);
    l->cluster_count = 1;
    return f->calibration
               ? calibrate(a, f->calibration, clusters[0].devices_per_node, &clusters[0].rates)
               : HD_OK;
}

/* The chosen plan in the form in which one plan of given devices is shown. */
static void show_chosen(const struct hd_report *l, struct plan_asked *a)
{
    const struct hd_search_plan *p = &l->search.plans[0];
    const bool cuda = hd_traits_is_cuda(&l->cluster->traits);

    a->devices = l->devices;
    a->threads = cuda ? 1 : a->threads;
    a->kind = hd_gpu_kind_find(l->cluster->device);
    a->traits = l->cluster->traits;
    a->memory_bytes = l->memory_bytes;
    if (cuda)
        a->traits.memory_bytes = l->memory_bytes;
    a->job = p->job;
    a->plan = p->plan;
    a->devices_per_node =
        l->devices > l->cluster->devices_per_node ? l->cluster->devices_per_node : 0;
}

static bool is_same_file(const char *path, const struct stat *out)
{
    struct stat info;

    return stat(path, &info) == 0 && info.st_dev == out->st_dev && info.st_ino == out->st_ino;
}

static int refuse_out(const char *out, const char *path)
{
    return cli_usage("plan: --out %s would overwrite %s; give another file", out, path);
}

/* --out that is a file of the job, or that the plan reads, would lose it. spec: NULL: not read yet.
 */
static int check_out(const struct plan_flags *f, const char *job_file, const struct hd_job *spec)
{
    const char *const read[] = {job_file, f->cluster, f->calibration, spec ? spec->tokenizer : NULL,
                                spec ? spec->template : NULL};
    struct stat out;

    if (!f->out || stat(f->out, &out) < 0)
        return CLI_CONTINUE;
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        if (read[i] && is_same_file(read[i], &out))
            return refuse_out(f->out, read[i]);
    for (int64_t i = 0; spec && i < spec->train_count; i++)
        if (is_same_file(spec->train[i].path, &out))
            return refuse_out(f->out, spec->train[i].path);
    for (int64_t i = 0; spec && i < spec->val_count; i++)
        if (is_same_file(spec->val[i].path, &out))
            return refuse_out(f->out, spec->val[i].path);
    return CLI_CONTINUE;
}

/* The file of --out. */
static int write_plan(const char *path, const struct hd_report_asked *asked,
                      const struct hd_report *l)
{
    struct hd_text json = {0};
    enum hd_status st;

    hd_report_json(asked, l, &json);
    st = json.failed ? hd_err(HD_NO_MEMORY, "no memory for a plan")
                     : hd_file_write_atomic(path, json.data, json.len_bytes, 0644);
    hd_text_free(&json);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

static int show_layouts(const struct cli *cli, const struct plan_flags *f,
                        const struct hd_report_asked *asked, const struct hd_report *l,
                        struct plan_asked *a)
{
    struct hd_text out = {0};
    int code = CLI_CONTINUE;

    if (l->search.plan_count)
        show_chosen(l, a);
    if (f->out)
        code = write_plan(f->out, asked, l);
    if (code == CLI_CONTINUE) {
        if (cli->format != CLI_JSON && l->search.plan_count)
            find_between(a);
        if (cli->format == CLI_JSON)
            hd_report_json(asked, l, &out);
        else if (cli->format == CLI_JSONL && l->search.plan_count)
            plan_show_json(cli, a, &out);
        else if (cli->format <= CLI_WIDE) {
            plan_layouts_people(cli, asked, l, f->explain, &out);
            if (l->search.plan_count) {
                hd_text_add(&out, "\n");
                plan_show_people(cli, a, &out);
            }
        }
        (void)cli_out(&out);
        code = cli_out_end(l->search.plan_count ? CLI_OK : CLI_USAGE);
        if (!l->search.plan_count && cli->format >= CLI_JSON)
            cli_note(
                "heddle: plan: no layout fits the memory of the devices; %s what is over, by how "
                "much, and where",
                cli->format == CLI_JSON ? "least.reason says" : "without -o it says");
    }
    hd_text_free(&out);
    return code;
}

/* Devices of this machine, as the calibration measured them. */
static enum hd_status measured_cluster(const struct plan_flags *f, struct plan_asked *a,
                                       struct hd_report_asked *l)
{
    struct hd_cluster *cluster = hd_arena_alloc(&a->arena, sizeof *cluster);
    const struct hd_gpu_kind *kind;
    struct hd_rates measured;
    enum hd_status st;

    if (!cluster)
        return hd_err(HD_NO_MEMORY, "no memory for a cluster");
    fill_devices(a);
    st = ask_worker(a);
    measured = a->rates;
    if (!st)
        st = calibrate(a, f->calibration, a->devices, &measured);
    if (st)
        return st;
    find_memory(a, f->devices != NULL);
    a->traits.threads = (int)a->threads;
    kind = hd_traits_is_cuda(&a->traits) ? hd_gpu_kind_of_name(measured.calibration->device) : NULL;
    if (kind) { /* links, and what was not measured, by the data sheet */
        hd_cluster_of_kind(kind, a->devices, a->spec->tf32, cluster);
        cluster->traits = a->traits;
        hd_rates_calibrate(&cluster->rates, measured.calibration);
    } else
        hd_cluster_of_cpu(&a->traits, a->devices, &measured, cluster);
    l->clusters = cluster;
    l->cluster_count = 1;
    return HD_OK;
}

/* A job file without resources.devices asks for one. */
static void note_few(const struct hd_job *spec, const struct hd_report_asked *asked)
{
    int64_t most = 0;

    for (int i = 0; i < asked->cluster_count; i++)
        if (hd_cluster_devices(&asked->clusters[i]) > most)
            most = hd_cluster_devices(&asked->clusters[i]);
    if (spec->devices_max == 1 && most > 1)
        cli_note("heddle: plan: the job asks for 1 device, and %s has %lld alike; "
                 "--set resources.devices=%lld plans for all of them",
                 asked->machines, (long long)most, (long long)most);
}

/* A line on the terminal while a search takes long. */
struct search_bar {
    struct bar bar;
    int64_t begin_ms, drawn_ms;
};

static void show_search(void *about, const struct hd_search *so_far)
{
    enum { SILENT_MS = 1000, EVERY_MS = 200 };
    struct search_bar *b = about;
    const int64_t now_ms = hd_clock_now_ms();
    const int columns = bar_terminal_columns() - 1;
    struct hd_text line = {0};
    char text[128];

    if (now_ms < b->begin_ms + SILENT_MS || now_ms < b->drawn_ms + EVERY_MS)
        return;
    b->drawn_ms = now_ms;
    (void)snprintf(text, sizeof text,
                   "searching for %lld s: %lld families of layouts, %lld layouts priced, %lld laid "
                   "out",
                   (long long)(now_ms - b->begin_ms) / 1000, (long long)so_far->families,
                   (long long)so_far->priced, (long long)so_far->laid_out);
    cli_add_cut(&line, text, columns);
    bar_put(&b->bar, line.failed ? "" : line.data, columns);
    hd_text_free(&line);
}

static int plan_layouts(const struct cli *cli, const struct plan_flags *f, struct plan_asked *a)
{
    struct hd_plan_request request;
    struct hd_report_asked asked = {.machines = f->cluster ? f->cluster : "--devices",
                                    .cluster_file = f->cluster,
                                    .spec = a->spec,
                                    .request = &request,
                                    .top = f->top ? (int)f->top : TOP_SHOWN};
    struct search_bar bar = {.begin_ms = hd_clock_now_ms()};
    struct hd_report layouts;
    enum hd_status st =
        f->calibration && !a->kind ? measured_cluster(f, a, &asked) : find_clusters(f, a, &asked);

    hd_spec_plan_request(a->spec, &request); /* after fill_devices, which changes the spec */
    request.only_planned = true;
    for (int i = 0; !st && i < asked.cluster_count; i++)
        note_too_much(a->memory_bytes, asked.clusters[i].traits.memory_bytes, "such a device has");
    if (!st && f->cluster)
        note_few(a->spec, &asked);
    asked.memory_bytes = a->memory_bytes;
    asked.threads = a->threads > 0 ? a->threads : 1;
    if (bar_is_possible()) {
        asked.tell = show_search;
        asked.about = &bar;
    }
    if (!st)
        st = hd_report_find(&asked, &a->arena, &layouts);
    bar_clear(&bar.bar);
    return st ? cli_fail(st) : show_layouts(cli, f, &asked, &layouts, a);
}

/* ---- one layout, on devices of this machine or CPU devices ---- */

/* The one layout in the form of a search that found it; priced, where the rates are known. */
static enum hd_status price_layout(struct plan_asked *a, struct hd_report_asked *ret_asked,
                                   struct hd_report *l)
{
    struct hd_cluster *cluster = hd_arena_alloc(&a->arena, sizeof *cluster);
    struct hd_search_plan *p = hd_arena_alloc(&a->arena, sizeof *p);
    const struct hd_search_asked question = {.spec = &a->job,
                                             .cluster = cluster,
                                             .devices = (int32_t)a->devices,
                                             .threads = a->threads,
                                             .bf16_fast = a->traits.bf16_fast,
                                             .memory_bytes = a->memory_bytes,
                                             .top = 1};
    enum hd_status st = HD_OK;

    if (!cluster || !p)
        return hd_err(HD_NO_MEMORY, "no memory for a plan");
    hd_cluster_of_cpu(&a->traits, a->devices, &a->rates, cluster);
    if (hd_traits_is_cuda(&a->traits))
        (void)snprintf(cluster->device, sizeof cluster->device, "cuda");
    if (a->rates.half_flops > 0)
        st = hd_search_price(&question, &a->job.layout, &a->arena, p);
    p->job = a->job;
    p->plan = a->plan;
    p->fits = plan_show_fits(a);
    *ret_asked = (struct hd_report_asked){.spec = a->spec, .top = 1};
    *l = (struct hd_report){.cluster = cluster,
                            .devices = (int32_t)a->devices,
                            .memory_bytes = a->memory_bytes,
                            .search = {.plans = p, .plan_count = 1}};
    return st;
}

static int plan_devices(const struct cli *cli, const struct plan_flags *f, struct plan_asked *a)
{
    struct hd_report_asked asked;
    struct hd_report layouts;
    struct hd_text out = {0};
    enum hd_status st;
    int code;

    fill_devices(a);
    st = ask_worker(a);
    if (!st) {
        find_memory(a, f->devices != NULL); /* before resolve, which chooses what fits */
        st = resolve(a);
    }
    if (!st)
        st = price_layout(a, &asked, &layouts);
    if (st)
        return cli_fail(st);
    code = f->out ? write_plan(f->out, &asked, &layouts) : CLI_CONTINUE;
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format == CLI_JSONL)
        plan_show_json(cli, a, &out);
    else if (cli->format == CLI_JSON)
        hd_report_json(&asked, &layouts, &out);
    else {
        plan_show_people(cli, a, &out);
        plan_layouts_time(&layouts, &out);
    }
    (void)cli_out(&out);
    code = cli_out_end(plan_show_fits(a) ? CLI_OK : CLI_JOB_FAILED);
    if (code == CLI_JOB_FAILED && cli->format >= CLI_JSON)
        cli_note("heddle: plan: a rank takes more memory than its device has; heddle plan "
                 "without -o says how much, and what to change");
    hd_text_free(&out);
    return code;
}

/* What an epoch of conversations has. */
static void show_epoch(const struct hd_job *job, const struct hd_json *epoch)
{
    struct hd_text out = {0};

    data_look_describe(job, epoch, &out);
    (void)cli_out(&out);
    hd_text_free(&out);
}

static int plan(struct cli *cli, struct plan_flags *f, struct plan_asked *a)
{
    const struct hd_json *epoch = NULL;
    struct hd_text missing = {0}, problem = {0};
    bool elsewhere, searched, away; /* away: the data need not be here */
    int code = f->live && (f->devices || f->cluster || f->memory || f->calibration || f->explain)
                   ? cli_usage("plan: --live is of the nodes that the controller knows; leave out "
                               "--devices, --cluster, --device-memory, --calibration and "
                               "--explain")
               : f->devices && f->cluster
                   ? cli_usage("plan: --devices and --cluster both say what the devices are; give "
                               "one of them")
                   : read_devices(f->devices, a, &f->overrides);

    elsewhere = f->cluster || a->kind;
    searched = elsewhere || f->calibration || f->live;
    away = searched || f->devices;
    if (code == CLI_CONTINUE && f->cluster &&
        !add_override(&f->overrides, "resources.device=cuda", "--cluster"))
        code = cli_usage("plan: too many --set; leave some out");
    if (code == CLI_CONTINUE)
        code = check_out(f, cli->args[0], NULL);
    if (code == CLI_CONTINUE)
        code = read_pins(&f->pins, &a->arena, &f->overrides);
    if (code == CLI_CONTINUE && f->memory && hd_text_to_bytes(f->memory, 1 << 20, &a->memory_bytes))
        code = cli_usage("plan: --device-memory: %s", hd_err_message());
    a->memory_is_given = f->memory != NULL;
    if (code == CLI_CONTINUE && !searched && (f->explain || f->top))
        code = cli_usage("plan: %s is of a search among layouts; give --cluster FILE, --devices "
                         "KIND:N, --calibration FILE or --live",
                         f->explain ? "--explain" : "--top");
    if (code == CLI_CONTINUE && f->cluster && f->calibration)
        code = cli_usage("plan: --calibration is of devices of one kind; give --devices KIND:N "
                         "instead of --cluster, or leave --calibration out");
    if (code == CLI_CONTINUE)
        code = cli_read_spec_to_plan(cli->args[0], &f->overrides, away ? &missing : NULL, &a->arena,
                                     &a->spec, &epoch);
    if (code == CLI_CONTINUE)
        code = check_out(f, cli->args[0], a->spec);
    if (missing.len_bytes)
        cli_note("heddle: plan: without the data: %s", missing.failed ? "?" : missing.data);
    if (code == CLI_CONTINUE && !missing.len_bytes && !epoch)
        code = data_look_at_epoch(a->spec, &a->arena, &epoch, &problem);
    if (problem.len_bytes)
        cli_say_problem(cli->args[0], &f->overrides, searched, &problem);
    if (code == CLI_CONTINUE && epoch && cli->format <= CLI_WIDE)
        show_epoch(a->spec, epoch);
    if (code == CLI_CONTINUE && f->live)
        code = plan_live(cli, a->spec, (int)f->top, f->out, &a->arena);
    else if (code == CLI_CONTINUE)
        code = searched ? plan_layouts(cli, f, a) : plan_devices(cli, f, a);
    hd_text_free(&missing);
    return code;
}

int cli_plan(struct cli *cli, int argc, char **argv)
{
    struct plan_flags f = {.top = 0};
    const struct cli_flag flags[] = {
        {"set", 0, CLI_FLAG_LIST, &f.overrides, 0, 0},
        {"pin", 0, CLI_FLAG_LIST, &f.pins, 0, 0},
        {"device-memory", 0, CLI_FLAG_TEXT, &f.memory, 0, 0},
        {"devices", 0, CLI_FLAG_TEXT, &f.devices, 0, 0},
        {"cluster", 0, CLI_FLAG_TEXT, &f.cluster, 0, 0},
        {"calibration", 0, CLI_FLAG_TEXT, &f.calibration, 0, 0},
        {"out", 0, CLI_FLAG_TEXT, &f.out, 0, 0},
        {"top", 0, CLI_FLAG_INT, &f.top, 1, HD_SEARCH_TOP_MAX},
        {"explain", 0, CLI_FLAG_BOOL, &f.explain, 0, 0},
        {"live", 0, CLI_FLAG_BOOL, &f.live, 0, 0},
    };
    struct plan_asked *a = calloc(1, sizeof *a);
    int code;

    if (!a)
        return cli_fail(hd_err(HD_NO_MEMORY, "no memory for a plan"));
    hd_arena_init(&a->arena, 0);
    code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);
    if (code == CLI_CONTINUE)
        code = plan(cli, &f, a);
    hd_text_free(&a->choice);
    hd_arena_done(&a->arena);
    free(a);
    return code;
}
