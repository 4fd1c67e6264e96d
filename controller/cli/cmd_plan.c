/* plan: shows the time and memory of a job before it runs. Each rank's plan is built in this
 * process from a description of the device: `heddle-worker device` measures one of this machine, a
 * data sheet describes a GPU that this machine does not have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/clock.h"
#include "base/file.h"
#include "controller/cli/bar.h"
#include "controller/cli/data_check.h"
#include "controller/cli/plan_command.h"
#include "controller/cli/stage_table.h"
#include "controller/cli/submit.h"
#include "plan/calibration.h"
#include "plan/fit.h"
#include "spec/spec.h"

/* ---- the plan ---- */

/* Finds the layout with the controller's function (plan/fit.h), and the plan of each rank in it. */
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
    hd_plan_request_of(a->spec, &wish);
    wish.sizes.device = cuda ? HD_JOB_DEVICE_CUDA : HD_JOB_DEVICE_CPU;
    st = hd_fit_choose(&asked, &fit);
    if (st)
        return st;
    hd_fit_explain(&asked, &fit, &a->choice);
    layout = fit.sizes;
    hd_plan_decide_device(cuda ? HD_JOB_DEVICE_CUDA : HD_JOB_DEVICE_CPU, a->traits.bf16_fast,
                          a->threads, &layout);
    st = hd_spec_resolve(a->spec, &layout, &attempt, &a->job);
    return st ? st : hd_plan_build(&a->job, &a->traits, &a->arena, &a->plan);
}

/* ---- layouts of a cluster ---- */

enum { TOP_SHOWN = 3 }; /* number of layouts shown without --top */

/* Warns of times that the calibration lacks: for this number of devices at once, or for
 * collectives. */
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

/* Replaces the data-sheet rates by those that `heddle-worker probe` measured. together: number of
 * devices on one machine. */
static enum hd_status calibrate(struct plan_asked *a, const char *path, int64_t together,
                                struct hd_rates *rates)
{
    struct hd_calibration *cal = hd_arena_alloc(&a->arena, sizeof *cal);

    if (!cal)
        return hd_err(HD_NO_MEMORY, "no memory for a calibration");
    if (hd_calibration_read_file(path, &a->arena, cal)) /* the error message names the file */
        return hd_err(HD_INVALID, "--%s", hd_err_message());
    if (a->kind ? hd_calibration_check_gpu(cal, a->kind)
                : hd_calibration_check(cal, &a->traits, a->threads))
        return hd_err(HD_INVALID, "--calibration %s: %s", path, hd_err_message());
    hd_rates_calibrate(rates, cal);
    note_measured(cal, together);
    return HD_OK;
}

/* Describes the machines to plan for: those of --cluster, or typical ones with the given kind of
 * GPU. */
static enum hd_status find_clusters(const struct plan_flags *f, struct plan_asked *a,
                                    struct hd_report_asked *l)
{
    struct hd_cluster *clusters =
        hd_arena_array(&a->arena, HD_CLUSTER_GROUPS_MAX, sizeof *clusters);

    if (!clusters)
        return hd_err(HD_NO_MEMORY, "no memory for a cluster");
    l->clusters = clusters;
    if (f->cluster) {
        const enum hd_status st =
            hd_spec_read_cluster(f->cluster, &a->arena, clusters, &l->cluster_count, NULL);

        for (int i = 0; !st && a->spec->tf32 && i < l->cluster_count; i++)
            hd_cluster_use_tf32(&clusters[i]);
        return st;
    }
    hd_cluster_of_kind(a->kind, a->devices, a->spec->tf32, &clusters[0]);
    l->cluster_count = 1;
    return f->calibration
               ? calibrate(a, f->calibration, clusters[0].devices_per_node, &clusters[0].rates)
               : HD_OK;
}

/* Copies the chosen plan into the form in which the plan for given devices is shown. */
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

/* Writes the file of --out. */
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
    const bool has_plan = l->search.plan_count;
    struct hd_text out = {0};
    int code;

    if (has_plan)
        show_chosen(l, a);
    code = f->out ? write_plan(f->out, asked, l) : CLI_CONTINUE;
    if (code != CLI_CONTINUE)
        return code;
    if (cli->format != CLI_JSON && has_plan)
        plan_machine_find_between(a);
    if (cli->format == CLI_JSON)
        hd_report_json(asked, l, &out);
    else if (cli->format == CLI_JSONL && has_plan)
        plan_show_json(cli, a, &out);
    else if (cli->format <= CLI_WIDE)
        plan_layouts_people(cli, asked, l, f->explain, &out);
    if (cli->format <= CLI_WIDE && has_plan) {
        hd_text_add(&out, "\n");
        plan_show_people(cli, a, &out);
        plan_layouts_spans(l, a->threads > 0 ? a->threads : 1, &out);
        if (f->explain && hd_plan_owners(&a->job, &a->traits, &out))
            cli_note("heddle: plan: %s", hd_err_message());
    }
    code = cli_print(&out, has_plan ? CLI_OK : CLI_USAGE);
    if (!has_plan && cli->format >= CLI_JSON)
        cli_note("heddle: plan: no layout fits the memory of the devices; %s what is over, by how "
                 "much, and where",
                 cli->format == CLI_JSON ? "least.reason says" : "without -o it says");
    return code;
}

/* Describes this machine's devices as the calibration measured them. */
static enum hd_status measured_cluster(const struct plan_flags *f, struct plan_asked *a,
                                       struct hd_report_asked *l)
{
    struct hd_cluster *cluster = hd_arena_alloc(&a->arena, sizeof *cluster);
    const struct hd_gpu_kind *kind;
    struct hd_rates measured;
    enum hd_status st;

    if (!cluster)
        return hd_err(HD_NO_MEMORY, "no memory for a cluster");
    plan_machine_divide(a);
    st = plan_machine_measure(a);
    measured = a->rates;
    if (!st)
        st = calibrate(a, f->calibration, a->devices, &measured);
    if (st)
        return st;
    plan_machine_find_memory(a, f->devices != NULL);
    a->traits.threads = (int)a->threads;
    kind = hd_traits_is_cuda(&a->traits) ? hd_gpu_kind_of_name(measured.calibration->device) : NULL;
    if (kind) { /* links, and rates that were not measured, come from the data sheet */
        hd_cluster_of_kind(kind, a->devices, a->spec->tf32, cluster);
        cluster->traits = a->traits;
        hd_rates_calibrate(&cluster->rates, measured.calibration);
    } else
        hd_cluster_of_cpu(&a->traits, a->devices, &measured, cluster);
    l->clusters = cluster;
    l->cluster_count = 1;
    return HD_OK;
}

/* Warns that a job file without resources.devices requests one device. */
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

/* State of the progress line on the terminal during a long layout search. */
struct search_bar {
    struct bar bar;
    int64_t begin_ms, drawn_ms;
};

static void show_search(void *about, const struct hd_search *so_far)
{
    enum { SILENT_MS = 1000, EVERY_MS = 200 };
    struct search_bar *b = about;
    const int64_t now_ms = hd_clock_now_ms();
    char text[128];

    if (now_ms < b->begin_ms + SILENT_MS || now_ms < b->drawn_ms + EVERY_MS)
        return;
    b->drawn_ms = now_ms;
    (void)snprintf(text, sizeof text,
                   "searching for %lld s: %lld families of layouts, %lld layouts priced, %lld laid "
                   "out",
                   (long long)(now_ms - b->begin_ms) / 1000, (long long)so_far->families,
                   (long long)so_far->costed, (long long)so_far->laid_out);
    bar_put_cut(&b->bar, text);
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

    hd_plan_request_of(a->spec, &request); /* after plan_machine_divide, which changes the spec */
    request.only_planned = true;
    for (int i = 0; !st && i < asked.cluster_count; i++)
        plan_machine_note_memory(a->memory_bytes, asked.clusters[i].traits.memory_bytes,
                                 "such a device has");
    if (!st && f->cluster)
        note_few(a->spec, &asked);
    asked.memory_bytes = a->memory_bytes;
    asked.threads = a->threads > 0 ? a->threads : 1;
    asked.threads_given = a->threads_given;
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

/* Puts the one layout into the form of a search result, with times if the device's rates are known.
 */
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
        st = hd_search_cost(&question, &a->job.layout, &a->arena, p);
    p->job = a->job;
    p->plan = a->plan;
    p->fits = plan_show_fits(a);
    *ret_asked =
        (struct hd_report_asked){.spec = a->spec, .threads_given = a->threads_given, .top = 1};
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

    plan_machine_divide(a);
    st = plan_machine_measure(a);
    if (!st) {
        plan_machine_find_memory(a,
                                 /* must precede resolve, which chooses what fits */
                                 f->devices != NULL);
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
        plan_layouts_spans(&layouts, a->threads, &out);
    }
    code = cli_print(&out, plan_show_fits(a) ? CLI_OK : CLI_JOB_FAILED);
    if (code == CLI_JOB_FAILED && cli->format >= CLI_JSON)
        cli_note("heddle: plan: a rank takes more memory than its device has; heddle plan "
                 "without -o says how much, and what to change");
    return code;
}

/* Prints the stages of the data, and the contents of an epoch of conversations; NULL: it has none. */
static void print_data(const struct hd_job *job, const struct hd_json *epoch)
{
    int64_t tokens[HD_JOB_SOURCES_MAX];
    struct hd_text out = {0};

    for (int64_t k = 0; hd_job_stage_count(job) && k < job->weight_count; k++)
        tokens[k] = hd_spec_source_tokens(job, k);
    stage_table_add(job, tokens, &out);
    if (epoch)
        data_check_describe(job, epoch, &out);
    (void)cli_print(&out, CLI_OK);
}

static int plan(struct cli *cli, struct plan_flags *f, struct plan_asked *a)
{
    const struct hd_json *epoch = NULL;
    struct hd_text missing = {0}, problem = {0}, prompts = {0};
    /* the job is planned for another machine; a layout search is made; data files may be missing
     * here */
    bool elsewhere, searched, away;
    int code = f->live && (f->devices || f->cluster || f->memory || f->calibration || f->explain)
                   ? cli_usage("plan: --live is of the nodes that the controller knows; leave out "
                               "--devices, --cluster, --device-memory, --calibration and "
                               "--explain")
               : f->devices && f->cluster
                   ? cli_usage("plan: --devices and --cluster both say what the devices are; give "
                               "one of them")
                   : plan_flags_read(f, a);

    a->explain = f->explain;
    elsewhere = f->cluster || a->kind;
    searched = elsewhere || f->calibration || f->live;
    away = searched || f->devices;
    if (code == CLI_CONTINUE)
        code = plan_flags_check_out(f, cli->args[0], NULL);
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
        a->threads_given = a->threads ? a->threads : a->spec->threads;
    if (code == CLI_CONTINUE)
        code = plan_flags_check_out(f, cli->args[0], a->spec);
    if (code == CLI_CONTINUE && missing.len_bytes)
        cli_note("heddle: plan: without the data: %s", missing.failed ? "?" : missing.data);
    if (code == CLI_CONTINUE && !missing.len_bytes && !epoch)
        code = data_check_epoch(a->spec, &a->arena, &epoch, &problem);
    if (code == CLI_CONTINUE && !missing.len_bytes && hd_job_has_policy(a->spec))
        code = data_check_questions(a->spec, &prompts, &problem);
    if (problem.len_bytes)
        cli_print_problem(cli->args[0], &f->overrides, searched, &problem);
    if (code == CLI_CONTINUE && cli->format <= CLI_WIDE)
        print_data(a->spec, epoch);
    if (code == CLI_CONTINUE && cli->format <= CLI_WIDE)
        (void)cli_out(&prompts);
    if (code == CLI_CONTINUE && f->live)
        code = plan_live(cli, a->spec, (int)f->top, f->out, &a->arena);
    else if (code == CLI_CONTINUE)
        code = searched ? plan_layouts(cli, f, a) : plan_devices(cli, f, a);
    hd_text_free(&missing);
    hd_text_free(&prompts);
    return code;
}

/* Keeps freed memory in the process. A search builds thousands of programs in turn; returning each
 * one's memory to the system would take up to half of the time. */
static void keep_memory(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
#endif
}

static int cli_plan(struct cli *cli, int argc, char **argv)
{
    struct plan_flags f = {.top = 0};
    const struct cli_flag flags[] = {
        {"cluster", 0, CLI_FLAG_TEXT, &f.cluster, "FILE",
         .help = "the machines, as docs/planning.md says"},
        {"devices", 0, CLI_FLAG_TEXT, &f.devices, "KIND:N",
         .help = "N GPUs of a kind, in usual machines: a100-80gb, h100 ..."},
        {"--devices cpu:N[:T]", .kind = CLI_FLAG_NOTE,
         .help = "N CPU devices of T threads, in the layout a controller\n"
                 "takes. Without either: the devices of this machine"},
        {"live", 0, CLI_FLAG_BOOL, &f.live,
         .help = "the nodes that the controller knows; it searches"},
        {"device-memory", 0, CLI_FLAG_TEXT, &f.memory, "SIZE",
         .help = "what a rank may take of a device, such as 24G or 512MiB"},
        {"calibration", 0, CLI_FLAG_TEXT, &f.calibration, "FILE",
         .help = "times are those that heddle-worker probe measured"},
        {"pin", 0, CLI_FLAG_LIST, &f.pins, "NAME=VALUE,..",
         .help = "fixes members of parallel: tp=8,stages=[7,9]"},
        {"top", 0, CLI_FLAG_INT, &f.top, "N", .min = 1, .max = HD_SEARCH_TOP_MAX,
         .help = "show N layouts; else 3"},
        {"explain", 0, CLI_FLAG_BOOL, &f.explain,
         .help = "also where the time goes, and what does not fit"},
        {"out", 0, CLI_FLAG_TEXT, &f.out, "FILE",
         .help = "write the plan, for heddle submit --plan FILE"},
        {"set", 0, CLI_FLAG_LIST, &f.overrides, "KEY=VALUE",
         .help = "in place of what the file says"},
        {"-o json", .kind = CLI_FLAG_NOTE, .help = "one object; -o jsonl: a line for each rank"},
    };
    struct plan_asked *a = calloc(1, sizeof *a);
    int code;

    if (!a)
        return cli_fail(hd_err(HD_NO_MEMORY, "no memory for a plan"));
    keep_memory();
    hd_arena_init(&a->arena, 0);
    code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);
    if (code == CLI_CONTINUE)
        code = plan(cli, &f, a);
    hd_text_free(&a->choice);
    hd_arena_done(&a->arena);
    free(a);
    return code;
}

const struct cli_body cli_body_plan = {
    .usage = "Usage: heddle plan FILE|- [--cluster FILE | --devices KIND:N | --devices cpu:N |\n"
             "                   --live] [--pin NAME=VALUE,..] [--set KEY=VALUE]... [...]\n",
    .about = "Searches the fastest layout of a job that fits machines, perhaps not here, and\n"
             "says what each rank takes, to the byte (docs/planning.md).\n",
    .notes = "Exit code 2 if nothing fits; of CPU devices 1 if a rank does not.\n",
    .examples = "heddle plan job.yaml --cluster cluster.yaml --pin tp=8 --explain",
    .run = cli_plan,
};
