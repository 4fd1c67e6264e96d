/* Orders: each schedule's, against orders written by hand, published idle times; as text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipeline/pipeline.h"
#include "tests/program/test.h"

static bool is_folded(enum hd_schedule_kind schedule_kind)
{
    return schedule_kind == HD_SCHEDULE_ZB_V;
}

static void build(struct hd_arena *arena, enum hd_schedule_kind schedule_kind, int32_t P, int32_t V,
                  int32_t M, struct hd_schedule *ret_schedule)
{
    const struct hd_pipeline pipeline = {P, P * V, is_folded(schedule_kind)};

    if (hd_schedule_build(schedule_kind, &pipeline, M, false, arena, ret_schedule))
        fail_msg("%s", hd_err_message());
}

static void check_schedule(enum hd_schedule_kind schedule_kind, const struct hd_pipeline *pipeline,
                           int32_t M, bool split, const char *expected)
{
    struct hd_text text = {0};
    struct hd_arena arena;
    struct hd_schedule schedule;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_schedule_build(schedule_kind, pipeline, M, split, &arena, &schedule),
                     HD_OK);
    hd_schedule_write(&schedule, &text);
    assert_string_equal(text.data, expected);
    hd_text_free(&text);
    hd_arena_done(&arena);
}

/* ---- orders by hand ---- */

static void one_stage_runs_each_micro_batch_to_its_end(void **state)
{
    const struct hd_pipeline one = {1, 1, false};

    check_schedule(HD_SCHEDULE_1F1B, &one, 3, false, "0: F0.0 B0.0 F0.1 B0.1 F0.2 B0.2\n");
    check_schedule(HD_SCHEDULE_1F1B, &one, 2, true, "0: F0.0 B0.0 W0.0 F0.1 B0.1 W0.1\n");
    check_schedule(HD_SCHEDULE_GPIPE, &one, 2, true, "0: F0.0 F0.1 B0.0 B0.1 W0.0 W0.1\n");
    check_schedule(HD_SCHEDULE_ZB_H1, &one, 2, false, "0: F0.0 B0.0 W0.0 F0.1 B0.1 W0.1\n");
}

/* Stage s of 3 runs 2 - s F ahead. With 2 micro-batches stage 0 never runs F and B in turns. */
static void the_textbook_1f1b(void **state)
{
    const struct hd_pipeline three = {3, 3, false};

    check_schedule(HD_SCHEDULE_1F1B, &three, 4, false,
                   "0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3\n"
                   "1: F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3\n"
                   "2: F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3\n");
    check_schedule(HD_SCHEDULE_1F1B, &three, 2, false,
                   "0: F0.0 F0.1 B0.0 B0.1\n"
                   "1: F1.0 F1.1 B1.0 B1.1\n"
                   "2: F2.0 B2.0 F2.1 B2.1\n");
}

/* Stage 0 has chunks 0 and 2 and runs 2 + 2 F ahead, stage 1 has 1 and 3 and runs 2 ahead. With 3
 * micro-batches the second group has one. */
static void interleaved_runs_groups_chunk_by_chunk(void **state)
{
    const struct hd_pipeline two = {2, 4, false};

    check_schedule(HD_SCHEDULE_INTERLEAVED, &two, 2, false,
                   "0: F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1\n"
                   "1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1\n");
    check_schedule(HD_SCHEDULE_INTERLEAVED, &two, 3, false,
                   "0: F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 B2.1 F2.2 B0.0 B0.1 B2.2 B0.2\n"
                   "1: F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 B1.1 F3.2 B3.2 B1.2\n");
}

/* Stage s of P puts off s W (zb-h1). zb-v: Qi et al. 2024, figure of V-ZB, for two stages. */
static void zero_bubble_puts_w_where_a_stage_would_wait(void **state)
{
    const struct hd_pipeline two = {2, 2, false}, v = {2, 4, true};

    check_schedule(HD_SCHEDULE_ZB_H1, &two, 3, false,
                   "0: F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2\n"
                   "1: F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2\n");
    check_schedule(HD_SCHEDULE_ZB_V, &v, 3, false,
                   "0: F0.0 F0.1 F0.2 F3.0 B3.0 W3.0 F3.1 B3.1 W3.1 B0.0 W0.0 F3.2 B3.2 W3.2 "
                   "B0.1 W0.1 B0.2 W0.2\n"
                   "1: F1.0 F2.0 F1.1 F2.1 B2.0 W2.0 F1.2 B1.0 W1.0 F2.2 B2.1 W2.1 "
                   "B1.1 B2.2 B1.2 W1.1 W2.2 W1.2\n");
}

static void validation_runs_e_alone(void **state)
{
    const struct hd_pipeline two = {2, 4, false}, v = {2, 4, true};

    check_schedule(HD_SCHEDULE_FORWARD, &two, 3, true,
                   "0: E0.0 E0.1 E2.0 E2.1 E0.2 E2.2\n"
                   "1: E1.0 E1.1 E3.0 E3.1 E1.2 E3.2\n");
    check_schedule(HD_SCHEDULE_FORWARD, &v, 2, false,
                   "0: E0.0 E0.1 E3.0 E3.1\n"
                   "1: E1.0 E2.0 E1.1 E2.1\n");
    check_schedule(HD_SCHEDULE_GPIPE, &v, 2, false,
                   "0: F0.0 F0.1 F3.0 F3.1 B3.0 B3.1 B0.0 B0.1\n"
                   "1: F1.0 F2.0 F1.1 F2.1 B2.0 B1.0 B2.1 B1.1\n");
}

static void a_schedule_that_does_not_fit_is_refused_with_its_key(void **state)
{
    static const struct {
        enum hd_schedule_kind schedule_kind;
        struct hd_pipeline pipeline;
        int32_t M;
        const char *message;
    } cases[] = {
        {HD_SCHEDULE_INTERLEAVED, {2, 2, false}, 4, "parallel.virtual_stages: "},
        {HD_SCHEDULE_INTERLEAVED, {2, 4, true}, 4, "parallel.schedule: "},
        {HD_SCHEDULE_1F1B, {2, 4, false}, 4, "parallel.virtual_stages: "},
        {HD_SCHEDULE_ZB_H1, {2, 4, false}, 4, "parallel.virtual_stages: "},
        {HD_SCHEDULE_ZB_V, {2, 4, false}, 4, "parallel.schedule: "},
        {HD_SCHEDULE_ZB_V, {2, 6, false}, 4, "parallel.virtual_stages: "},
        {HD_SCHEDULE_GPIPE, {2, 3, false}, 4, "3 chunks cannot lie on 2 pipeline stages"},
        {HD_SCHEDULE_GPIPE, {2, 6, true}, 4, "6 chunks cannot lie on 2 pipeline stages as a V"},
        {HD_SCHEDULE_GPIPE, {0, 0, false}, 4, "0 chunks cannot lie on 0"},
        {HD_SCHEDULE_GPIPE, {1, 1, false}, 0, "a step of 0 micro-batches"},
    };
    struct hd_arena arena;
    struct hd_schedule schedule;

    hd_arena_init(&arena, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(hd_schedule_build(cases[i].schedule_kind, &cases[i].pipeline, cases[i].M,
                                           false, &arena, &schedule),
                         HD_INVALID);
        if (strstr(hd_err_message(), cases[i].message) != hd_err_message())
            fail_msg("\"%s\" does not begin with \"%s\"", hd_err_message(), cases[i].message);
    }
    assert_int_equal(hd_schedule_build(HD_SCHEDULE_GPIPE, &(struct hd_pipeline){1, 1, false},
                                       INT32_MAX, false, &arena, &schedule),
                     HD_LIMIT);
    hd_arena_done(&arena);
}

static void schedules_have_names(void **state)
{
    enum hd_schedule_kind schedule_kind;

    for (int i = 0; i < HD_SCHEDULE_COUNT; i++) {
        const char *name = hd_schedule_name((enum hd_schedule_kind)i);

        assert_int_equal(hd_schedule_from_name(name, &schedule_kind), i != HD_SCHEDULE_FORWARD);
        if (i != HD_SCHEDULE_FORWARD)
            assert_int_equal(schedule_kind, i);
    }
    assert_false(hd_schedule_from_name("1F1B", &schedule_kind));
}

/* Chunks 0 .. 5 of 3 stages: in turns, or down and up the V. */
static void chunks_lie_on_stages(void **state)
{
    const struct hd_pipeline rows = {3, 6, false}, v = {3, 6, true};
    static const int32_t on_rows[] = {0, 1, 2, 0, 1, 2}, on_v[] = {0, 1, 2, 2, 1, 0};

    for (int32_t c = 0; c < 6; c++) {
        assert_int_equal(hd_pipeline_stage(&rows, c), on_rows[c]);
        assert_int_equal(hd_pipeline_stage(&v, c), on_v[c]);
        assert_int_equal(hd_pipeline_chunk(&rows, on_rows[c], hd_pipeline_index(&rows, c)), c);
        assert_int_equal(hd_pipeline_chunk(&v, on_v[c], hd_pipeline_index(&v, c)), c);
    }
}

/* ---- times ---- */

/* The idle time of each stage, which all have the same work. */
static double idle_of(enum hd_schedule_kind schedule_kind, int32_t P, int32_t V, int32_t M,
                      double forward, double backward, double weights)
{
    double f[64], b[64], w[64], idle;
    struct hd_schedule_times times;
    struct hd_arena arena;
    struct hd_schedule schedule;

    assert_true(P * V <= 64);
    for (int i = 0; i < P * V; i++) {
        f[i] = forward;
        b[i] = backward;
        w[i] = weights;
    }
    hd_arena_init(&arena, 0);
    build(&arena, schedule_kind, P, V, M, &schedule);
    assert_int_equal(
        hd_schedule_walk(&schedule, &(struct hd_schedule_costs){f, b, w, 0}, &arena, &times),
        HD_OK);
    for (int32_t s = 0; s < P; s++)
        assert_true(times.busy[s] == M * V * (forward + backward + (schedule.split ? weights : 0)));
    idle = times.total - times.busy[0];
    assert_true(fabs(times.bubble - idle / times.total) < 1e-12);
    hd_arena_done(&arena);
    return idle;
}

/* tF = 3, tB = 5 of all chunks of a stage together. Published: (P - 1)(tF + tB), and with V chunks
 * per stage a V-th of it, if the micro-batches fill whole groups. */
static void idle_times_are_the_published_ones(void **state)
{
    for (int32_t P = 1; P <= 8; P++)
        for (int32_t M = 1; M <= 20; M++) {
            assert_true(idle_of(HD_SCHEDULE_GPIPE, P, 1, M, 3, 5, 0) == (P - 1) * 8);
            assert_true(idle_of(HD_SCHEDULE_1F1B, P, 1, M, 3, 5, 0) == (P - 1) * 8);
            for (int32_t V = 2; V <= 4 && M % P == 0; V++) { /* times of a chunk: 3, 5 */
                assert_true(idle_of(HD_SCHEDULE_INTERLEAVED, P, V, M, 3, 5, 0) == (P - 1) * 8);
                assert_true(idle_of(HD_SCHEDULE_GPIPE, P, V, M, 3, 5, 0) == (P - 1) * 8);
            }
        }
}

/* Unit times. zb-h1: (P - 1)(tF + tB - tW) = P - 1; each micro-batch that lacks to P costs 1 more.
 * zb-v: the last stage cannot begin before time P - 1, so P - 1 chunk times is the least that any
 * schedule reaches: half of zb-h1's in stage times. Fewer micro-batches than 2P - 1: 4P - 2 - 2M.
 */
static void zero_bubble_waits_only_to_fill_the_pipeline(void **state)
{
    for (int32_t P = 1; P <= 16; P++)
        for (int32_t M = 1; M <= 40; M++) {
            const int32_t h1 = M < P ? 2 * P - 1 - M : P - 1;
            const int32_t v = 4 * P - 2 - 2 * M > P - 1 ? 4 * P - 2 - 2 * M : P - 1;

            assert_true(idle_of(HD_SCHEDULE_ZB_H1, P, 1, M, 1, 1, 1) == h1);
            assert_true(idle_of(HD_SCHEDULE_ZB_V, P, 2, M, 1, 1, 1) == v);
        }
}

/* A last group that is not full takes no longer than a full one. */
static void a_group_that_is_not_full_takes_no_longer(void **state)
{
    for (int32_t P = 2; P <= 8; P++)
        for (int32_t V = 2; V <= 4; V++)
            for (int32_t M = 1; M <= 20; M++) {
                const int32_t full = (M + P - 1) / P * P;

                assert_true(idle_of(HD_SCHEDULE_INTERLEAVED, P, V, M, 1, 2, 0) + 3 * M * V <=
                            (P - 1) * 3 + 3 * full * V);
            }
}

/* Two stages, one micro-batch: F 1, transfer 1/2, F 4, B 6, transfer 1/2, B 2; stage 0 is busy for
 * 3 of 14, stage 1 for 10. */
static void a_walk_counts_unequal_stages_and_transfers(void **state)
{
    const double f[] = {1, 4}, b[] = {2, 6};
    struct hd_schedule_times times;
    struct hd_arena arena;
    struct hd_schedule schedule;

    hd_arena_init(&arena, 0);
    build(&arena, HD_SCHEDULE_1F1B, 2, 1, 1, &schedule);
    assert_int_equal(
        hd_schedule_walk(&schedule, &(struct hd_schedule_costs){f, b, NULL, 0.5}, &arena, &times),
        HD_OK);
    assert_true(times.total == 14 && times.busy[0] == 3 && times.busy[1] == 10);
    assert_true(fabs(times.bubble - 15. / 28) < 1e-12);
    hd_arena_done(&arena);
}

/* ---- text ---- */

static void a_drawing_shows_waits(void **state)
{
    struct hd_text text = {0};
    struct hd_arena arena;
    struct hd_schedule schedule;

    hd_arena_init(&arena, 0);
    build(&arena, HD_SCHEDULE_1F1B, 2, 1, 2, &schedule);
    hd_schedule_draw(&schedule, &text);
    build(&arena, HD_SCHEDULE_ZB_V, 1, 2, 1, &schedule);
    hd_schedule_draw(&schedule, &text);
    assert_string_equal(text.data, "0  F0 F1 .  .  B0 -  .  B1 -\n"
                                   "1  .  F0 B0 -  F1 B1 -  .  .\n"
                                   "0  F0.0 F1.0 B1.0 W1.0 B0.0 W0.0\n");
    hd_text_free(&text);
    hd_arena_done(&arena);
}

static void what_is_written_is_read_again(void **state)
{
    for (int schedule_kind = 0; schedule_kind < HD_SCHEDULE_FORWARD; schedule_kind++) {
        const int32_t V =
            schedule_kind == HD_SCHEDULE_1F1B || schedule_kind == HD_SCHEDULE_ZB_H1 ? 1 : 2;
        struct hd_text first = {0}, second = {0};
        struct hd_schedule schedule, copy;
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        build(&arena, (enum hd_schedule_kind)schedule_kind, 3, V, 5, &schedule);
        hd_schedule_write(&schedule, &first);
        assert_int_equal(hd_schedule_read(first.data, &schedule.pipeline, 5, &arena, &copy), HD_OK);
        assert_int_equal(copy.split, schedule.split);
        hd_schedule_write(&copy, &second);
        assert_string_equal(first.data, second.data);
        hd_text_free(&first);
        hd_text_free(&second);
        hd_arena_done(&arena);
    }
}

/* Two stages, two micro-batches. */
static void check_text(const char *text, const char *message)
{
    const struct hd_pipeline two = {2, 2, false};
    struct hd_arena arena;
    struct hd_schedule schedule;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_schedule_read(text, &two, 2, &arena, &schedule);
    hd_arena_done(&arena);
    assert_int_equal(st, message ? HD_INVALID : HD_OK);
    if (message && strcmp(hd_err_message(), message) != 0)
        fail_msg("\"%s\", not \"%s\"", hd_err_message(), message);
}

#define ONE "1: F1.0 B1.0 F1.1 B1.1\n"

static void a_wrong_text_is_refused_by_line_and_word(void **state)
{
    check_text("# stages may come in any order\n\n" ONE "\t0:  F0.0 F0.1\tB0.0 B0.1 # all\r\n",
               NULL);
    check_text("0: F0.0 F0.1 B0.0 X0.1\n" ONE,
               "line 1, word 5: \"X0.1\" is not a program; write F, B or W, the chunk, a point and "
               "the micro-batch, like \"F0.1\"");
    check_text("0: F0.0 F0.1 B0.0 B0.\n" ONE,
               "line 1, word 5: \"B0.\" is not a program; write F, B or W, the chunk, a point and "
               "the micro-batch, like \"F0.1\"");
    check_text("\n0 F0.0\n",
               "line 2, word 1: \"0\" is not a pipeline stage; a line begins like \"0:\"");
    check_text("2: F0.0\n", "line 1, word 1: there is no stage 2; the last one is 1");
    check_text(ONE ONE, "line 2, word 1: stage 1 has line 1 already");
    check_text(ONE, "line 2: the text ends without a line for stage 0");
    check_text("0: F0.0 F0.1 B0.0\n" ONE, "line 1: B0.1 is missing");
    check_text("0: F0.0 F0.1 B0.0 B0.1 W0.0 W0.1\n" ONE, "line 2: W1.0 is missing");
    check_text("0: F0.0 F0.1 B0.1 B0.0\n" ONE,
               "B0.1 (line 1, word 4): B0.0 must come first; a chunk runs its micro-batches in "
               "ascending order");
    check_text("0: F0.0 F0.0 B0.0 B0.1\n" ONE, "F0.0 (line 1, word 3): it has run before");
    check_text("0: F0.0 F1.1 B0.0 B0.1\n" ONE, "F1.1 (line 1, word 3): chunk 1 is on stage 1");
    check_text("0: F0.0 F2.1\n" ONE,
               "F2.1 (line 1, word 3): there is no chunk 2; the last one is 1");
    check_text("0: F0.0 F0.1 F0.2\n" ONE,
               "F0.2 (line 1, word 4): there is no micro-batch 2; the last one is 1");
    check_text("0: F0.0 F0.0 F0.0 F0.0 F0.0 F0.0 F0.0\n" ONE,
               "line 1, word 8: 1 chunks with 2 micro-batches have no more programs than the words "
               "before");
}

/* Stage 0 wants the gradient of micro-batch 0 before it runs F of micro-batch 1, which stage 1
 * wants before it makes that gradient. */
static void a_circle_in_a_text_is_told_by_line(void **state)
{
    check_text("# a circle\n0: F0.0 B0.0 F0.1 B0.1\n1: F1.0 F1.1 B1.0 B1.1\n",
               "the schedule deadlocks: B0.0 (line 2, word 3) waits for B1.0 (line 3, word 4), "
               "which comes after F1.1 (line 3, word 3); F1.1 (line 3, word 3) waits for F0.1 "
               "(line 2, word 4), which comes after B0.0 (line 2, word 3)");
    check_text("0: F0.0 F0.1 B0.0 B0.1\n1: B1.0 F1.0 F1.1 B1.1\n",
               "the schedule deadlocks: B1.0 (line 2, word 2) waits for F1.0 (line 2, word 3), "
               "which comes after B1.0 (line 2, word 2)");
}

/* Each byte changed, dropped or doubled: the same order, or a message with a line. */
static void a_damaged_text_is_read_or_refused_with_its_line(void **state)
{
    static const char bytes[] = "0129.:FBWE# \n\t-\xff";
    const struct hd_pipeline v = {2, 4, true};
    struct hd_text text = {0}, again = {0};
    struct hd_schedule schedule, copy;
    struct hd_arena arena;
    char damaged[512];
    int refused = 0;

    hd_arena_init(&arena, 0);
    build(&arena, HD_SCHEDULE_ZB_V, 2, 2, 3, &schedule);
    hd_schedule_write(&schedule, &text);
    assert_true(text.len_bytes + 2 < sizeof damaged);
    for (size_t at = 0; at < text.len_bytes; at++)
        for (size_t kind = 0; kind <= 2 * (sizeof bytes - 1); kind++) {
            const size_t rest = kind % 2 ? at : at + 1; /* odd: added, even: changed; 0: dropped */
            size_t n = at;

            memcpy(damaged, text.data, at);
            if (kind)
                damaged[n++] = bytes[(kind - 1) / 2];
            memcpy(damaged + n, text.data + rest, text.len_bytes - rest + 1);
            if (hd_schedule_read(damaged, &v, 3, &arena, &copy) == HD_OK) {
                hd_text_clear(&again);
                hd_schedule_write(&copy, &again);
                assert_string_equal(again.data, text.data);
            } else {
                assert_non_null(strstr(hd_err_message(), "line "));
                refused++;
            }
        }
    assert_true(refused > 5000);
    hd_text_free(&text);
    hd_text_free(&again);
    hd_arena_done(&arena);
}

RUN_CASES()
