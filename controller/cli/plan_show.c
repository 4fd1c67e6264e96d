#include "controller/cli/plan_command.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "controller/cli/rows.h"
#include "plan/inter_node.h"
#include "plan/rollout_profile.h"

/* Predicted times of a step's matrix products and memory traffic at data-sheet rates, ms. */
struct sheet_times {
    double products, memory;
};

/* Returns the rate of matrix products with factors of this type, FLOP/s. */
static double sheet_rate(const struct plan_asked *a, enum hd_dtype dtype)
{
    return hd_gpu_kind_rate(a->kind, dtype, a->job.tf32);
}

static struct sheet_times make_sheet_times(const struct plan_asked *a, const struct hd_dry *step)
{
    const double bytes = (double)(step->costs.read_bytes + step->costs.write_bytes);
    double seconds = (step->gemm_flops - step->fp8_flops) /
                     sheet_rate(a, hd_rank_program_compute_dtype(&a->job));

    if (step->fp8_flops > 0)
        seconds += step->fp8_flops / sheet_rate(a, HD_U8);
    return (struct sheet_times){1e3 * seconds, 1e3 * bytes / (1e9 * a->kind->memory_gb_per_s)};
}

/* ---- for programs ---- */

/* Returns the bytes of this rank's traffic in a group that cross between nodes. */
static int64_t crossing_bytes(const struct plan_asked *a, int rank, int group, int kind)
{
    return a->devices_per_node ? hd_inter_node_bytes(&a->plan, rank, (enum hd_group_name)group,
                                                     (enum hd_comm_kind)kind, a->devices_per_node,
                                                     a->job.native_reduction)
                               : 0;
}

static void show_communication(struct hd_json_writer *w, const struct plan_asked *a, int rank,
                               const struct hd_dry *step)
{
    hd_json_begin(w, "communication", '[');
    for (int g = 0; g < HD_GROUP_COUNT; g++)
        for (int k = 0; k < HD_COMM_KIND_COUNT; k++) {
            if (!step->calls[g][k])
                continue;
            hd_json_begin(w, NULL, '{');
            hd_json_add_string(w, "group", hd_group_text((enum hd_group_name)g));
            hd_json_add_string(w, "kind", hd_comm_kind_name((enum hd_comm_kind)k));
            hd_json_add_int64(w, "calls", step->calls[g][k]);
            hd_json_add_int64(w, "group_bytes", step->group_bytes[g][k]);
            hd_json_add_int64(w, "crossing_bytes", crossing_bytes(a, rank, g, k));
            hd_json_end(w, '}');
        }
    hd_json_end(w, ']');
}

static void add_communicators(struct hd_json_writer *w, const struct hd_gpu_overhead *overhead)
{
    hd_json_begin(w, "communicator_list", '[');
    for (int i = 0; i < overhead->communicators; i++) {
        const struct hd_gpu_communicator *c = &overhead->list[i];

        hd_json_begin(w, NULL, '{');
        hd_json_add_string(w, "name", c->name);
        hd_json_add_int64(w, "ranks", c->members);
        hd_json_add_int64(w, "blocks", c->blocks);
        hd_json_add_int64(w, "channels", c->channels);
        hd_json_add_int64(w, "bytes", c->bytes);
        hd_json_end(w, '}');
    }
    hd_json_end(w, ']');
}

static void show_rank(struct hd_json_writer *w, int rank, const struct plan_asked *a)
{
    const struct hd_plan_class *r = hd_plan_rank(&a->plan, rank);
    const struct hd_mesh_coord coord = hd_mesh_coord_of(&a->plan.mesh, rank);
    const struct hd_memory *m = &r->memory;

    hd_json_add_int64(w, "rank", rank);
    hd_json_begin(w, "coordinates", '{');
    hd_json_add_int64(w, "pp", coord.pp);
    hd_json_add_int64(w, "dp", coord.dp);
    hd_json_add_int64(w, "cp", coord.cp);
    hd_json_add_int64(w, "tp", coord.tp);
    /* position in a block of experts (mesh.h) */
    hd_json_add_int64(w, "ep", (coord.dp * a->job.cp + coord.cp) % a->job.ep);
    hd_json_end(w, '}');
    if (a->choice.len_bytes)
        hd_json_add_string(w, "choice", a->choice.data);
    else
        hd_json_add_null(w, "choice");
    hd_json_begin(w, "slots", '{');
    hd_json_add_int64(w, "kept", r->saved_slots);
    hd_json_add_int64(w, "deferred", r->deferred_slots);
    hd_json_add_int64(w, "boundary", r->stage_io_slots);
    hd_json_end(w, '}');
    if (a->plan.pipeline.stages > 1) {
        hd_json_begin(w, "pipeline", '{');
        hd_json_add_string(w, "schedule", a->job.schedule);
        hd_json_add_int64(w, "stages", a->plan.pipeline.stages);
        hd_json_add_int64(w, "chunks", a->plan.pipeline.chunks);
        hd_json_add_real(w, "bubble", a->plan.bubble);
        hd_json_add_real(w, "stage_busy", a->plan.stages[coord.pp].busy);
        hd_json_end(w, '}');
    }
    hd_json_begin(w, "memory", '{');
#define X(name, meaning) hd_json_add_int64(w, #name "_bytes", m->name);
    HD_MEMORY_LIST(X)
#undef X
    hd_json_add_int64(w, "private_bytes", m->private_bytes);
    hd_json_add_int64(w, "comm_visible_bytes", m->registered_bytes);
    if (hd_traits_is_cuda(&a->traits))
        hd_json_add_int64(w, "host_bytes", m->host_bytes); /* included in the total */
    hd_json_add_int64(w, "total_bytes", hd_memory_total(m));
    hd_json_add_int64(w, "between_nodes_bytes", a->between_bytes); /* not included in the total */
    if (r->sample_slots) { /* both are included in the total */
        hd_json_add_int64(w, "samples_bytes", r->sample_bytes);
        hd_json_add_int64(w, "samples_beyond_bytes", r->sample_beyond_bytes);
    }
    hd_json_end(w, '}');
    if (hd_traits_is_cuda(&a->traits)) {
        hd_json_begin(w, "device", '{');
        hd_json_add_int64(w, "reserved_bytes", r->reserved_bytes);
        hd_json_add_int64(w, "process_bytes", r->overhead.process_bytes);
        hd_json_add_bool(w, "process_measured", a->traits.process_measured);
        hd_json_add_int64(w, "communicators", r->overhead.communicators);
        hd_json_add_int64(w, "communicators_bytes", r->overhead.communicators_bytes);
        add_communicators(w, &r->overhead);
        hd_json_add_int64(w, "memory_bytes", a->traits.memory_bytes);
        hd_json_add_bool(w, "fits", hd_plan_fits(r, &a->traits));
        hd_json_end(w, '}');
    }
    hd_json_begin(w, "step", '{');
    hd_json_add_real(w, "flops", r->step.costs.flops);
    hd_json_add_real(w, "matrix_flops", r->step.gemm_flops);
    hd_json_add_int64(w, "read_bytes", r->step.costs.read_bytes);
    hd_json_add_int64(w, "write_bytes", r->step.costs.write_bytes);
    show_communication(w, a, rank, &r->step);
    if (a->kind) {
        const struct sheet_times t = make_sheet_times(a, &r->step);

        hd_json_add_real(w, "data_sheet_products_ms", t.products);
        hd_json_add_real(w, "data_sheet_memory_ms", t.memory);
    }
    hd_json_end(w, '}');
}

struct rank_row {
    const struct plan_asked *asked;
    int rank;
};

static void show_rank_row(struct hd_json_writer *w, const void *item)
{
    const struct rank_row *row = item;

    show_rank(w, row->rank, row->asked);
}

static const struct rows_kind rank_rows = {"RankPlanList", "rank_plan", .show = show_rank_row};

void plan_show_json(const struct cli *cli, const struct plan_asked *a, struct hd_text *out)
{
    struct cli_rows rows;

    rows_begin(&rows, cli, &rank_rows);
    for (int r = 0; r < a->plan.mesh.world; r++)
        rows_add(&rows, &(struct rank_row){a, r});
    rows_end_in(&rows, out);
}

/* ---- for people ---- */

static void add_part(struct table *table, const char *name, int64_t bytes, const char *meaning)
{
    char size[32];

    hd_text_format_bytes(bytes, size);
    table_add_row(table, "%s\t%lld\t%s\t%s", name, (long long)bytes, size, meaning);
}

/* Parts that this rank does not have are left out; -o json has them all. */
static void print_memory(const struct cli *cli, const struct hd_memory *m, struct hd_text *out)
{
    static const struct table_column columns[] = {
        {"PART", false}, {"BYTES", true}, {"", true}, {"WHAT", false}};
    struct table table;
    char parts[96];

    table_init(&table, columns, 4);
#define X(name, meaning) \
    if (m->name)         \
        add_part(&table, #name, m->name, meaning);
    HD_MEMORY_LIST(X)
#undef X
    (void)snprintf(parts, sizeof parts, "private %lld + registered %lld",
                   (long long)m->private_bytes, (long long)m->registered_bytes);
    add_part(&table, "total", hd_memory_total(m), parts);
    table_end(&table, cli->colour, 0, out);
}

static void print_sheet(const struct plan_asked *a, const struct hd_dry *step, struct hd_text *out)
{
    const struct sheet_times t = make_sheet_times(a, step);

    hd_text_add(out,
                "          at the rates of its data sheet, which nothing reaches: products %.3g ms "
                "(%.4g TFLOP/s, %s), bytes %.3g ms (%.4g GB/s)\n",
                t.products, 1e-12 * sheet_rate(a, hd_rank_program_peak_dtype(&a->job)),
                hd_job_precision_words[a->job.precision], t.memory, a->kind->memory_gb_per_s);
}

static void print_step(const struct plan_asked *a, int rank, const struct hd_dry *step, int world,
                       struct hd_text *out)
{
    char read_text[32], write_text[32], bytes[32];
    int64_t crossing;

    hd_text_format_bytes(step->costs.read_bytes, read_text);
    hd_text_format_bytes(step->costs.write_bytes, write_text);
    hd_text_add(out,
                "  a step: %.4g FLOP, of which %.4g in matrix products; at least %s read, "
                "%s written\n",
                step->costs.flops, step->gemm_flops, read_text, write_text);
    if (a->kind)
        print_sheet(a, step, out);
    for (int g = 0; world > 1 && g < HD_GROUP_COUNT; g++)
        for (int k = 0; k < HD_COMM_KIND_COUNT; k++) {
            if (!step->calls[g][k])
                continue;
            if (k == HD_COMM_SEND) {
                hd_text_add(out, "          %lld x send in %s, counted where they arrive\n",
                            (long long)step->calls[g][k], hd_group_text((enum hd_group_name)g));
                continue;
            }
            hd_text_format_bytes(step->group_bytes[g][k], bytes);
            hd_text_add(out, "          %lld x %s in %s, %s moved by its members together",
                        (long long)step->calls[g][k], hd_comm_kind_name((enum hd_comm_kind)k),
                        hd_group_text((enum hd_group_name)g), bytes);
            crossing = crossing_bytes(a, rank, g, k);
            hd_text_format_bytes(crossing, bytes);
            if (crossing)
                hd_text_add(out, ", %s of it between nodes", bytes);
            hd_text_add(out, "\n");
        }
}

/* Appends the layers of a pipeline chunk: "embedding, layers 0-3". */
static void add_chunk(const struct hd_plan_chunk *c, struct hd_text *out)
{
    const char *between = "";

    if (c->embedding) {
        hd_text_add(out, "embedding");
        between = ", ";
    }
    if (c->layers == 1)
        hd_text_add(out, "%slayer %lld", between, (long long)c->first_layer);
    else if (c->layers)
        hd_text_add(out, "%slayers %lld-%lld", between, (long long)c->first_layer,
                    (long long)(c->first_layer + c->layers - 1));
    if (c->head)
        hd_text_add(out, "%shead", c->embedding || c->layers ? ", " : "");
}

static void print_pipeline(const struct cli *cli, const struct plan_asked *a, struct hd_text *out)
{
    static const struct table_column columns[] = {
        {"STAGE", true}, {"HAS", false},     {"WORK", true},     {"BUSY", true},
        {"KEPT", true},  {"DEFERRED", true}, {"BOUNDARY", true}, {"MEMORY", true}};
    const struct hd_plan *p = &a->plan;
    const int32_t each = p->pipeline.chunks / p->pipeline.stages;
    struct table table;

    hd_text_add(out, "\npipeline %s: %d stages", a->job.schedule, (int)p->pipeline.stages);
    if (each > 1)
        hd_text_add(out, " of %d chunks", (int)each);
    hd_text_add(out, "; counted in FLOPs, a stage waits %.1f%% of a step on average\n",
                100 * p->bubble);
    table_init(&table, columns, 8);
    for (int32_t s = 0; s < p->pipeline.stages; s++) {
        const struct hd_plan_class *r = hd_plan_fullest(p, s);
        struct hd_text has = {0};
        char size[32];

        for (int32_t k = 0; k < each; k++) {
            hd_text_add(&has, "%s", k ? "; " : "");
            add_chunk(&p->chunks[hd_pipeline_chunk(&p->pipeline, s, k)], &has);
        }
        hd_text_format_bytes(hd_memory_total(&r->memory), size);
        table_add_row(&table, "%d\t%s\t%.2f\t%.0f%%\t%d\t%d\t%d\t%s", (int)s,
                      has.failed ? "?" : has.data, p->stages[s].work, 100 * p->stages[s].busy,
                      (int)r->saved_slots, (int)r->deferred_slots, (int)r->stage_io_slots, size);
        hd_text_free(&has);
    }
    table_end(&table, cli->colour, 0, out);
    hd_text_add(out, "work: 1 is an even share; kept, deferred, boundary: slots of that memory\n");
}

/* Returns whether two classes have equal memory, products and messages. FLOPs may differ slightly:
 * of several ranks with equal gradients only the first, which is shown, squares them for the norm.
 */
static bool take_the_same(const struct hd_plan_class *a, const struct hd_plan_class *b)
{
    return memcmp(&a->memory, &b->memory, sizeof a->memory) == 0 &&
           a->step.gemm_flops == b->step.gemm_flops &&
           memcmp(a->step.calls, b->step.calls, sizeof a->step.calls) == 0 &&
           memcmp(a->step.group_bytes, b->step.group_bytes, sizeof a->step.group_bytes) == 0;
}

enum { RUNS_NAMED = 8, KINDS_SHOWN = 8 };

/* Appends "ranks 0-2, 4, each:", all ranks with the costs of this class. */
static void name_ranks(const struct hd_plan *p, const struct hd_plan_class *kind,
                       struct hd_text *out)
{
    struct hd_text names = {0};
    int count = 0, runs = 0, named = 0;

    for (int first = kind->lowest, end; first < p->mesh.world; first = end) {
        end = first + 1;
        if (!take_the_same(hd_plan_rank(p, first), kind))
            continue;
        while (end < p->mesh.world && take_the_same(hd_plan_rank(p, end), kind))
            end++;
        count += end - first;
        if (++runs > RUNS_NAMED)
            continue;
        named += end - first;
        hd_text_add(&names, "%s%d", runs > 1 ? ", " : "", first);
        if (end - first > 1)
            hd_text_add(&names, "-%d", end - 1);
    }
    if (count > named)
        hd_text_add(&names, " and %d more", count - named);
    hd_text_add(out, count > 1 ? "\nranks %s, each:\n" : "\nrank %s:\n",
                names.failed ? "?" : names.data);
    hd_text_free(&names);
}

/* Returns whether a class of lower ranks has the costs of this class and was already printed. */
static bool is_named_before(const struct hd_plan *p, int32_t number)
{
    for (int32_t i = 0; i < number; i++)
        if (take_the_same(&p->classes[i], &p->classes[number]))
            return true;
    return false;
}

/* Prints the memory of samples, or of answers that the job trains on: the peak of a rank is the
 * larger of that of steps and that of writing them. */
static void print_samples_memory(const struct hd_plan_class *kind, bool answers,
                                 struct hd_text *out)
{
    char bytes[32], beyond[32];

    if (!kind->sample_slots)
        return;
    hd_text_format_bytes(kind->sample_bytes, bytes);
    hd_text_format_bytes(kind->sample_beyond_bytes, beyond);
    hd_text_add(out, "%s: %lld at a time take %s, in the memory of kept, deferred and work",
                answers ? "answers" : "samples", (long long)kind->sample_slots, bytes);
    if (kind->sample_beyond_bytes)
        hd_text_add(out, ", which is %s larger for them", beyond);
    hd_text_add(out, "\n");
}

/* Prints the work of writing a step's answers, if all of them have max_tokens and the longest prompt:
 * calls of the program of prompts and of that of tokens, for as many answers at a time as there are
 * slots. */
static void print_rollout(const struct plan_asked *a, const struct hd_plan_class *kind,
                          struct hd_text *out)
{
    const struct hd_rollout_calls calls = hd_rollout_count_calls(&a->job);
    const struct hd_costs *token = &kind->decode[HD_DECODE_TOKENS].costs;
    double seconds = 0, first = 0;
    char bytes[32];

    hd_text_format_bytes(token->read_bytes, bytes);
    hd_text_add(out,
                "  its answers, at most: %lld x a token of each of %lld, %.4g FLOP and %s read; "
                "%lld x up to %lld tokens of prompts, %.4g FLOP\n",
                (long long)calls.count[HD_DECODE_TOKENS], (long long)calls.slots, token->flops,
                bytes, (long long)calls.count[HD_DECODE_PROMPTS],
                (long long)(calls.rows[HD_DECODE_PROMPTS] * calls.slots),
                kind->decode[HD_DECODE_PROMPTS].costs.flops);
    for (int p = 0; a->kind && p < HD_DECODE_PROGRAMS; p++) {
        const struct sheet_times t = make_sheet_times(a, &kind->decode[p]);
        const double longer = t.products > t.memory ? t.products : t.memory;

        first = p == HD_DECODE_TOKENS ? longer : first;
        seconds += 1e-3 * longer * (double)calls.count[p];
    }
    if (a->kind)
        hd_text_add(out,
                    "          at the rates of its data sheet, which nothing reaches: a token of "
                    "each %.3g ms, all answers %.3g s\n",
                    first, seconds);
}

static void print_kind(const struct cli *cli, const struct plan_asked *a,
                       const struct hd_plan_class *kind, struct hd_text *out)
{
    name_ranks(&a->plan, kind, out);
    print_memory(cli, &kind->memory, out);
    print_samples_memory(kind, hd_job_has_policy(&a->job), out);
    print_step(a, kind->lowest, &kind->step, a->plan.mesh.world, out);
    if (kind->sample_slots && hd_job_has_policy(&a->job))
        print_rollout(a, kind, out);
}

/* Prints a table for each kind of rank; if there are many kinds, only for the one that takes the
 * most memory. */
static void print_kinds(const struct cli *cli, const struct plan_asked *a, struct hd_text *out)
{
    const struct hd_plan *p = &a->plan;
    int kinds = 0;

    for (int32_t i = 0; i < p->class_count; i++)
        kinds += !is_named_before(p, i);
    for (int32_t i = 0; kinds <= KINDS_SHOWN && i < p->class_count; i++)
        if (!is_named_before(p, i))
            print_kind(cli, a, &p->classes[i], out);
    if (kinds <= KINDS_SHOWN)
        return;
    print_kind(cli, a, hd_plan_fullest(p, -1), out);
    hd_text_add(out,
                "\nof %d kinds of ranks this one takes most memory; -o json shows every rank\n",
                kinds);
}

/* Warns that no communication engine connects this many ranks. */
static void print_limit(const struct plan_asked *a, struct hd_text *out)
{
    const char *engine;
    const int32_t most = hd_plan_ranks_max(a->job.device, &engine);

    if (a->plan.mesh.world > most)
        hd_text_add(out,
                    "note: it cannot run yet: the engine %s connects at most %d ranks, and the "
                    "plan is of %d\n",
                    engine, most, a->plan.mesh.world);
}

static const char *whose_memory(const struct hd_gpu_kind *kind)
{
    if (!kind)
        return "";
    return kind->memory_guessed ? " by its data sheet, the least that it can mean"
                                : ", a little less than such GPUs report";
}

bool plan_show_fits(const struct plan_asked *a)
{
    const struct hd_plan_class *fullest = hd_plan_fullest(&a->plan, -1);

    return hd_traits_is_cuda(&a->traits)
               ? hd_plan_fits(fullest, &a->traits)
               : !a->memory_is_given || hd_plan_class_bytes(fullest) <= a->memory_bytes;
}

static void print_cpu_fit(const struct plan_asked *a, struct hd_text *out)
{
    char most[32], given[32];

    if (plan_show_fits(a))
        return;
    hd_text_format_bytes(hd_plan_class_bytes(hd_plan_fullest(&a->plan, -1)), most);
    hd_text_format_bytes(a->memory_bytes, given);
    hd_text_add(out,
                "it does NOT fit: a rank takes %s of the %s of --device-memory; lower "
                "parallel.micro_batch, share more (parallel.zero: 3), keep less "
                "(parallel.recompute: full), or split the model (parallel.tp, parallel.pp)\n",
                most, given);
}

/* Prints what each communicator of a rank takes, and the most multiprocessors that it holds. */
static void print_communicators(const struct hd_plan_class *r, const struct hd_traits *traits,
                                struct hd_text *out)
{
    char bytes[32];
    int blocks = 0;

    for (int i = 0; i < r->overhead.communicators; i++) {
        const struct hd_gpu_communicator *c = &r->overhead.list[i];

        hd_text_format_bytes(c->bytes, bytes);
        hd_text_add(out, "  NCCL %-18s %4d ranks, at most %2d blocks, %d channels a peer: %s\n",
                    c->name, c->members, c->blocks, c->channels, bytes);
        blocks += c->blocks;
    }
    hd_text_format_bytes(r->overhead.buffers_bytes, bytes);
    hd_text_add(out,
                "  buffers of ordered sums: %s; NCCL holds at most %d of the %d multiprocessors\n",
                bytes, blocks < traits->multiprocessors ? blocks : traits->multiprocessors,
                traits->multiprocessors);
}

/* Prints the largest rank's memory beside the GPU's. */
static void print_fit(const struct plan_asked *a, struct hd_text *out)
{
    const struct hd_plan_class *r = hd_plan_fullest(&a->plan, -1);
    char all[32], reserved[32], process[32], communicators[32], device[32];

    hd_text_format_bytes(r->device_bytes, all);
    hd_text_format_bytes(r->reserved_bytes, reserved);
    hd_text_format_bytes(r->overhead.process_bytes, process);
    hd_text_format_bytes(r->overhead.communicators_bytes, communicators);
    hd_text_format_bytes(a->traits.memory_bytes, device);
    hd_text_add(out, "of a GPU's memory: %s planned + %s for the process", reserved, process);
    if (r->overhead.communicators)
        hd_text_add(out, " + %s for %d communicator%s of NCCL", communicators,
                    r->overhead.communicators, r->overhead.communicators == 1 ? "" : "s");
    hd_text_add(out, " = %s of %s%s\n", all, device, whose_memory(a->kind));
    hd_text_add(out, a->traits.process_measured
                         ? "the process's part was measured here; of communicators it is assumed\n"
                         : "what is added to the plan is assumed, not measured\n");
    if (a->explain && r->overhead.communicators)
        print_communicators(r, &a->traits, out);
    hd_text_format_bytes(r->memory.host_bytes, all);
    hd_text_add(out, "of the host's memory: %s for each rank (%s)\n", all,
                a->job.offload == HD_JOB_OFFLOAD_OPTIMIZER
                    ? "masters, moments, offload, sample, snapshot, profile"
                    : "sample, snapshot, profile");
    if (hd_plan_fits(r, &a->traits))
        return;
    hd_text_add(out, "it does NOT fit: lower parallel.micro_batch, share more (parallel.zero: 3), "
                     "keep less (parallel.recompute: full), keep the optimizer on the host "
                     "(parallel.offload: optimizer), split the model (parallel.tp, parallel.pp, "
                     "parallel.cp), or take GPUs with more memory\n");
}

/* Prints how many steps of matrices the ranks compute, and by which settings: other tools have other
 * defaults (Muon). */
static void print_matrices(const struct hd_job *job, const struct hd_plan *p, struct hd_text *out)
{
    int64_t least = INT64_MAX, most = 0, all = 0, rounds = 0;

    for (int32_t i = 0; i < p->class_count; i++) {
        const struct hd_plan_class *c = &p->classes[i];

        least = c->owned_matrices < least ? c->owned_matrices : least;
        most = c->owned_matrices > most ? c->owned_matrices : most;
        all += c->owned_matrices * c->ranks;
        rounds = c->matrix_rounds > rounds ? c->matrix_rounds : rounds;
    }
    if (!all)
        return;
    hd_text_add(out, "muon: steps of %lld matrices in %lld round%s; a rank computes ",
                (long long)all, (long long)rounds, rounds == 1 ? "" : "s");
    if (least == most)
        hd_text_add(out, "%lld of them\n", (long long)most);
    else
        hd_text_add(out, "%lld to %lld of them\n", (long long)least, (long long)most);
    hd_text_add(
        out,
        "muon: momentum %g, %s, %lld iterations, scale %s, decay %g, rate of what stays with "
        "AdamW x %g\n",
        job->muon_momentum, job->muon_nesterov ? "Nesterov's" : "plain",
        (long long)job->muon_iterations, hd_job_muon_scale_words[job->muon_scale],
        job->weight_decay, job->muon_adamw_lr);
}

void plan_show_people(const struct cli *cli, const struct plan_asked *a, struct hd_text *out)
{
    const struct hd_plan *p = &a->plan;
    char precision[CLI_WORD_MAX], count[32], trained[64] = "";
    int64_t all = 0, machine = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    char all_text[32], machine_text[32];

    cli_format_count((double)p->parameters, count);
    (void)snprintf(precision, sizeof precision, "%.20s", hd_job_precision_words[a->job.precision]);
    if (p->trained != p->parameters) {
        cli_format_count((double)p->trained, count);
        (void)snprintf(trained, sizeof trained, ", of which %s train", count);
        cli_format_count((double)p->parameters, count);
    }
    hd_text_add(out, "%s: %s parameters%s; %d rank%s on %s (%s)", a->job.name, count, trained,
                p->mesh.world, p->mesh.world == 1 ? "" : "s",
                a->kind ? a->kind->text : hd_job_device_words[a->job.device], a->traits.isa);
    if (!hd_traits_is_cuda(&a->traits))
        hd_text_add(out, ", %lld thread%s each", (long long)a->threads, a->threads == 1 ? "" : "s");
    hd_text_add(out, "; ");
    cli_add_layout(&a->job.layout, out);
    hd_text_add(out, ", %lld micro-batch%s of %lld, %s%s\n", (long long)p->micro_batches,
                p->micro_batches == 1 ? "" : "es", (long long)a->job.micro_batch, precision,
                a->job.moments == HD_JOB_MOMENTS_INT8 ? ", moments of 8 bits" : "");
    if (a->choice.len_bytes)
        hd_text_add(out, "%s\n", a->choice.data);
    if (p->pipeline.stages > 1)
        print_pipeline(cli, a, out);
    print_kinds(cli, a, out);
    print_matrices(&a->job, p, out);
    for (int32_t i = 0; i < p->class_count; i++)
        all += hd_memory_total(&p->classes[i].memory) * p->classes[i].ranks;
    hd_text_format_bytes(all, all_text);
    hd_text_add(out, "\nall ranks: %s", all_text);
    hd_text_format_bytes(machine, machine_text);
    if (hd_traits_is_cuda(&a->traits)) {
        hd_text_add(out, "\n");
        print_fit(a, out);
    } else {
        hd_text_add(out, "; this machine has %s\n", machine_text);
        print_cpu_fit(a, out);
    }
    if (a->devices_per_node) {
        hd_text_format_bytes(
            hd_inter_node_bytes_all(&a->plan, a->devices_per_node, a->job.native_reduction),
            all_text);
        hd_text_add(out,
                    "of all that ranks move in a step %s cross between nodes of %lld devices\n",
                    all_text, (long long)a->devices_per_node);
    }
    if (a->between_bytes) {
        hd_text_format_bytes(a->between_bytes, all_text);
        hd_text_add(out, "on several nodes each takes %s more%s, for messages between them\n",
                    all_text, hd_traits_is_cuda(&a->traits) ? " of its host's memory" : "");
    }
    print_limit(a, out);
}
