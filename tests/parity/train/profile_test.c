/* Profiles: the trace holds each launch of the steps that were asked for, once, within its program
 * and step, with the work that the dry fold says; the table adds up to the step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "harness.h"
#include "program/dry.h"
#include "runs.h"
#include "tests/program/test.h"

enum { DP = 2, STEPS = 6, FIRST = 2, LAST = 5, PROFILED = LAST - FIRST + 1, EVENTS_MAX = 65536 };

/* A trace event, its times in nanoseconds. */
struct event {
    char phase;
    const char *category, *name, *unit;
    int64_t begin, end, id, micro_batch, step; /* step: index of the one that contains it */
    int track;
    double flops;
    int64_t read_bytes, write_bytes, group_bytes;
};

struct trace {
    struct hd_arena arena;
    struct event *list;
    int count;
};

static struct hd_job profiled_job(const struct harness *h)
{
    struct hd_job job = harness_job(h, "llama", DP);

    job.steps = STEPS;
    job.profile_first = FIRST;
    job.profile_last = LAST;
    return job;
}

static enum hd_status run_steps(struct harness_rank *r)
{
    struct hd_text *notes = r->context;
    struct hd_step_result result;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    for (int s = 0; !st && s < STEPS; s++) {
        st = hd_trainer_step(t, 0, &result);
        if (!st)
            st = hd_trainer_write_profile(t, s + 1 == STEPS, &notes[r->rank]);
    }
    hd_trainer_free(t);
    return st;
}

/* ---- reading ---- */

static int64_t to_ns(const struct hd_json *object, const char *key)
{
    const struct hd_json *v = hd_json_member(object, key);
    long long whole = 0, rest = 0;

    if (!v)
        return 0;
    assert_int_equal(v->kind, HD_JSON_NUMBER);
    assert_int_equal(sscanf(v->text, "%lld.%3lld", &whole, &rest), 2); /* microseconds */
    return whole * 1000 + rest;
}

static const char *text_of(const struct hd_json *object, const char *key)
{
    const struct hd_json *v = object ? hd_json_member(object, key) : NULL;

    return v && v->kind == HD_JSON_STRING ? v->text : "";
}

static double number_of(const struct hd_json *object, const char *key)
{
    const struct hd_json *v = object ? hd_json_member(object, key) : NULL;

    return v && v->kind == HD_JSON_NUMBER ? strtod(v->text, NULL) : 0;
}

static void read_event(const struct hd_json *v, struct event *e)
{
    const struct hd_json *args = hd_json_member(v, "args");

    *e = (struct event){.phase = text_of(v, "ph")[0],
                        .category = text_of(v, "cat"),
                        .name = text_of(v, "name"),
                        .unit = text_of(args, "unit"),
                        .begin = to_ns(v, "ts"),
                        .id = (int64_t)number_of(v, "id"),
                        .micro_batch = (int64_t)number_of(args, "micro_batch"),
                        .step = -1,
                        .track = (int)number_of(v, "tid"),
                        .flops = number_of(args, "flops"),
                        .read_bytes = (int64_t)number_of(args, "read_bytes"),
                        .write_bytes = (int64_t)number_of(args, "write_bytes"),
                        .group_bytes = (int64_t)number_of(args, "group_bytes")};
    e->end = e->begin + to_ns(v, "dur");
}

static void read_trace(const struct harness *h, int rank, struct trace *t)
{
    const struct hd_json_limits limits = {.values_max = 40 * EVENTS_MAX, .depth_max = 8};
    const struct hd_json *root, *events;
    struct hd_text text = {0};
    char path[256];
    int steps = 0;

    (void)snprintf(path, sizeof path, "%s/attempt-1/profile/rank-%d.json", h->dir, rank);
    hd_arena_init(&t->arena, 0);
    t->count = 0;
    t->list = hd_arena_array(&t->arena, EVENTS_MAX, sizeof *t->list);
    assert_int_equal(hd_file_read(path, 64 << 20, &text), HD_OK);
    if (hd_json_parse(&t->arena, text.data, text.len_bytes, &limits, &root))
        fail_msg("%s", hd_err_message());
    assert_int_equal(hd_json_need(root, "traceEvents", HD_JSON_ARRAY, &events), HD_OK);
    for (const struct hd_json *v = events->first; v; v = v->next) {
        if (strcmp(text_of(v, "ph"), "M") == 0)
            continue;
        assert_int_equal(number_of(v, "pid"), rank);
        assert_in_range(t->count, 0, EVENTS_MAX - 1);
        read_event(v, &t->list[t->count]);
        steps += strcmp(t->list[t->count].category, "step") == 0;
        t->list[t->count++].step = steps - 1; /* a step stands before what it contains */
    }
    assert_int_equal(steps, PROFILED);
    hd_text_free(&text);
}

static void make_profile(struct harness *h, struct hd_job *ret_job, struct hd_text notes[DP])
{
    harness_setup(h, 20000);
    *ret_job = profiled_job(h);
    memset(notes, 0, DP * sizeof *notes);
    assert_int_equal(hd_file_make_dirs(ret_job->attempt_dir, 0700),
                     HD_OK); /* as heddled makes it */
    if (harness_threads(ret_job, DP, notes, run_steps))
        fail_msg("%s", hd_err_message());
}

static void free_profile(struct harness *h, struct hd_text notes[DP])
{
    for (int r = 0; r < DP; r++)
        hd_text_free(&notes[r]);
    harness_teardown(h);
}

static bool is(const struct event *e, const char *category)
{
    return strcmp(e->category, category) == 0;
}

/* ---- tests ---- */

/* Per step: what the step plan runs of each program, by its variants, and what the fold says. */
static void each_step_holds_the_programs_launches_with_the_folds_work(void **state)
{
    struct hd_text notes[DP];
    struct hd_rank_program layout;
    struct hd_arena arena;
    struct hd_job job;
    struct harness h;

    make_profile(&h, &job, notes);
    hd_arena_init(&arena, 0);
    for (int rank = 0; rank < DP; rank++) {
        struct trace t;

        run_layout_of(&job, rank, &(struct hd_rank_program_options){0}, &arena, &layout);
        assert_int_equal(layout.micro_batches, 2); /* 8 sequences on 2 ranks, 2 at a time */

        read_trace(&h, rank, &t);
        for (int step = 0; step < PROFILED; step++) {
            int kernels = 0, collectives = 0, expected[2] = {0}, programs = 0;
            int64_t read_bytes = 0, write_bytes = 0, group_bytes = 0, folded_bytes = 0;
            struct hd_dry dry = {0};
            double flops = 0;

            for (int i = 0; i < layout.plan.count; i++) {
                const struct hd_instruction *in = &layout.plan.list[i];
                const bool last = in->kind != HD_DO_RUN || in->last;
                const struct hd_program *p;
                int64_t constants;

                if (in->kind == HD_DO_SYNCHRONIZE || in->kind == HD_DO_FEED)
                    continue;
                programs++;
                hd_rank_program_fold(&layout, in, &dry);
                p = &hd_rank_program_get(&layout, in, &constants)->program[in->call];
                for (int n = 0; n < p->count; n++)
                    if (last || !p->nodes[n]->only_last)
                        expected[p->nodes[n]->is_comm]++;
            }
            for (int i = 0; i < t.count; i++) {
                const struct event *e = &t.list[i];

                if (e->step != step)
                    continue;
                kernels += is(e, "op");
                collectives += is(e, "launch");
                programs -= is(e, "program");
                flops += e->flops;
                read_bytes += e->read_bytes;
                write_bytes += e->write_bytes;
                group_bytes += e->group_bytes;
            }
            for (int g = 0; g < HD_GROUP_COUNT; g++)
                for (int k = 0; k < HD_COMM_KIND_COUNT; k++)
                    folded_bytes += dry.group_bytes[g][k];
            assert_int_equal(kernels, expected[0]);
            assert_int_equal(collectives, expected[1]);
            assert_true(expected[1] > 0);
            assert_int_equal(programs, 0);
            /* whole numbers below 2^53: no order of adding changes the sum */
            assert_true(flops == dry.costs.flops);
            assert_int_equal(read_bytes, dry.costs.read_bytes);
            assert_int_equal(write_bytes, dry.costs.write_bytes);
            assert_int_equal(group_bytes, folded_bytes);
        }
        hd_arena_done(&t.arena);
    }
    hd_arena_done(&arena);
    free_profile(&h, notes);
}

static int by_begin(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return y->end > x->end ? 1 : y->end < x->end ? -1 : 0; /* what contains comes first */
}

/* A viewer draws slices of one track inside each other: none may overlap another by half. And what
 * is not inside a leaf is the runner's own work: between two leaves it looks at the clock twice,
 * writes a record of 64 bytes and asks which collectives are done. */
static void slices_nest_and_leave_little_of_a_step_uncovered(void **state)
{
    enum { STACK_MAX = 8, GAP_NS = 5000 };
    struct hd_text notes[DP];
    struct hd_job job;
    struct harness h;

    make_profile(&h, &job, notes);
    for (int rank = 0; rank < DP; rank++) {
        const struct event *stack[STACK_MAX];
        int64_t covered[PROFILED] = {0}, leaves[PROFILED] = {0}, whole[PROFILED] = {0};
        bool one_is_tight = false;
        int depth = 0, slices = 0;
        struct trace t;

        read_trace(&h, rank, &t);
        for (int i = 0; i < t.count; i++)
            if (t.list[i].phase == 'X' && t.list[i].track == 0)
                t.list[slices++] = t.list[i];
        qsort(t.list, (size_t)slices, sizeof *t.list, by_begin);
        for (int i = 0; i < slices; i++) {
            const struct event *e = &t.list[i];

            while (depth > 0 && e->begin >= stack[depth - 1]->end)
                depth--;
            if (depth > 0)
                assert_true(e->end <= stack[depth - 1]->end);
            else
                assert_true(is(e, "step"));
            if (is(e, "step")) {
                assert_int_equal(depth, 0);
                whole[e->step] = e->end - e->begin;
            } else if (is(e, "program")) {
                assert_int_equal(depth, 1);
            } else {
                assert_true(depth >= 1 && !is(stack[depth - 1], "op"));
                covered[e->step] += e->end - e->begin;
                leaves[e->step]++;
            }
            assert_in_range(depth, 0, STACK_MAX - 1);
            stack[depth++] = e;
        }
        for (int s = 0; s < PROFILED; s++) {
            assert_true(covered[s] <= whole[s]);
            /* a busy machine may take any step away from us, but hardly all of them; beside a
             * device the host does nothing that a leaf would tell of */
            one_is_tight |=
                harness_backend()->device || whole[s] - covered[s] <= GAP_NS * (leaves[s] + 2);
        }
        assert_true(one_is_tight);
        hd_arena_done(&t.arena);
    }
    free_profile(&h, notes);
}

/* On a device one launch or wait comes behind the other, as often as the host enqueued one, within
 * the step that enqueued it. */
static void a_devices_track_is_one_thing_after_the_other(void **state)
{
    struct hd_text notes[DP];
    struct hd_job job;
    struct harness h;

    make_profile(&h, &job, notes);
    for (int rank = 0; rank < DP; rank++) {
        const struct event *step = NULL, *before = NULL;
        int on_device = 0, ops = 0;
        struct trace t;

        read_trace(&h, rank, &t);
        for (int i = 0; i < t.count; i++) {
            const struct event *e = &t.list[i];

            ops += is(e, "op");
            if (is(e, "step"))
                step = e;
            if (e->phase != 'X' || e->track == 0)
                continue;
            assert_true(step && e->begin >= step->begin && e->end <= step->end);
            assert_true(e->begin <= e->end && (!before || e->begin >= before->end));
            before = e;
            on_device += is(e, "op");
        }
        assert_true(ops > 0);
        assert_int_equal(on_device, harness_backend()->device ? ops : 0);
        hd_arena_done(&t.arena);
    }
    free_profile(&h, notes);
}

/* A collective is under way from its launch to a completion that some poll or wait has seen, before
 * its step ends. Whoever launches it first cannot see it complete at once. */
static void each_collective_begins_with_its_launch_and_ends(void **state)
{
    struct hd_text notes[DP];
    struct hd_job job;
    struct harness h;
    int later = 0;

    make_profile(&h, &job, notes);
    for (int rank = 0; rank < DP; rank++) {
        const struct event *step = NULL;
        int launches = 0, pairs = 0;
        struct trace t;

        read_trace(&h, rank, &t);
        for (int i = 0; i < t.count; i++) {
            const struct event *e = &t.list[i];

            if (is(e, "step"))
                step = e;
            launches += is(e, "launch");
            if (e->phase != 'b')
                continue;
            assert_true(i > 0 && is(&t.list[i - 1], "launch"));
            assert_int_equal(e->begin, t.list[i - 1].begin);
            assert_true(i + 1 < t.count && t.list[i + 1].phase == 'e');
            assert_int_equal(t.list[i + 1].id, e->id);
            assert_true(t.list[i + 1].begin >= t.list[i - 1].end);
            later += t.list[i + 1].begin > t.list[i - 1].end;
            assert_true(step && t.list[i + 1].begin <= step->end);
            pairs++;
        }
        assert_true(pairs > 0);
        assert_int_equal(pairs, launches);
        hd_arena_done(&t.arena);
    }
    assert_true(later > 0);
    free_profile(&h, notes);
}

/* Goal: averaging gradients runs beside backward. Method: the order of the trace, no times: when
 * the last op of the first block's backward begins, the sums of the head's and of the last block's
 * gradients have been launched. */
static void gradients_are_on_their_way_while_backward_goes_on(void **state)
{
    struct hd_text notes[DP];
    struct hd_job job;
    struct harness h;

    make_profile(&h, &job, notes);
    for (int rank = 0; rank < DP; rank++) {
        int head[PROFILED] = {0}, last_block[PROFILED] = {0}, backward[PROFILED] = {0};
        struct trace t;

        read_trace(&h, rank, &t);
        for (int i = 0; i < t.count; i++) {
            const struct event *e = &t.list[i];

            if (is(e, "launch") && strcmp(e->unit, "head") == 0)
                head[e->step] = i;
            if (is(e, "launch") && strcmp(e->unit, "block.1") == 0)
                last_block[e->step] = i;
            if (is(e, "op") && strcmp(e->unit, "block.0") == 0 && e->micro_batch == 1)
                backward[e->step] = i; /* of 2 micro-batches; B stands behind F */
        }
        for (int s = 0; s < PROFILED; s++) {
            assert_true(head[s] > 0 && head[s] < last_block[s]);
            assert_true(last_block[s] < backward[s]);
        }
        hd_arena_done(&t.arena);
    }
    free_profile(&h, notes);
}

/* The shares of the first table, its ops and the rest, are all of the step: 100 %, each rounded to
 * a tenth. */
static void the_tables_shares_are_the_whole_step(void **state)
{
    struct hd_text notes[DP], text = {0};
    double sum = 0, total = 0;
    struct hd_job job;
    struct harness h;
    char path[256], *line, *rest;
    int lines = 0;

    make_profile(&h, &job, notes);
    (void)snprintf(path, sizeof path, "%s/attempt-1/profile/rank-0.txt", h.dir);
    assert_int_equal(hd_file_read(path, 1 << 20, &text), HD_OK);
    rest = strstr(text.data, "\nOP");
    assert_non_null(rest);
    rest = strchr(rest + 1, '\n') + 1;
    while ((line = strsep(&rest, "\n")) != NULL && *line) {
        const char *percent = strchr(line, '%'), *p = percent;

        assert_non_null(percent);
        while (p > line && p[-1] != ' ')
            p--;
        if (strncmp(line, "total", 5) == 0)
            total = strtod(p, NULL);
        else
            sum += strtod(p, NULL);
        lines++;
    }
    assert_true(lines > 10);
    assert_true(total == 100.0);
    assert_true(sum > 100 - 0.05 * lines && sum < 100 + 0.05 * lines);
    assert_non_null(strstr(notes[0].data, "/attempt-1/profile/rank-*.txt"));
    hd_text_free(&text);
    free_profile(&h, notes);
}

static void without_being_asked_nothing_is_reserved_or_written(void **state)
{
    struct hd_text notes[DP] = {0};
    struct hd_rank_program with, without;
    struct hd_arena arena;
    struct hd_job job;
    struct harness h;
    char path[256];

    harness_setup(&h, 20000);
    job = profiled_job(&h);
    hd_arena_init(&arena, 0);
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &with);
    job.profile_first = job.profile_last = 0;
    run_layout(&job, &(struct hd_rank_program_options){0}, &arena, &without);
    assert_true(with.memory.profile > 0);
    assert_int_equal(without.memory.profile, 0);
    assert_int_equal(with.memory.private_bytes + with.memory.host_bytes -
                         without.memory.private_bytes - without.memory.host_bytes,
                     with.memory.profile);
    if (harness_threads(&job, DP, notes, run_steps))
        fail_msg("%s", hd_err_message());
    assert_int_equal(notes[0].len_bytes, 0);
    (void)snprintf(path, sizeof path, "%s/attempt-1/profile", h.dir);
    assert_false(hd_file_exists(path));
    hd_arena_done(&arena);
    harness_teardown(&h);
}

RUN_CASES()
