/* Goal: output of the command line, without a controller: tables, the progress bar, the time left,
 * lines of steps, JSON forms. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/cli/cli.h"
#include "controller/cli/eta.h"
#include "controller/cli/lines.h"
#include "controller/cli/progress.h"
#include "controller/cli/rows.h"
#include "controller/cli/say.h"
#include "controller/cli/table.h"
#include "tests/program/test.h"

/* ---- tables ---- */

static const struct table_column columns[] = {{"N", true}, {"NAME", false}, {"REASON", false}};

static char *render(int columns_max, bool colour)
{
    struct hd_text out = {0};
    struct table table;

    table_init(&table, columns, 3);
    table_begin_row(&table);
    table_add(&table, NULL, "%d", 7);
    table_add(&table, "32", "tiny");
    table_add(&table, NULL, "%s", "");
    table_begin_row(&table);
    table_add(&table, NULL, "%d", 1234);
    table_add(&table, NULL, "a");
    table_add(&table, NULL, "waits for 4 devices, 2 are free\033[2J");
    table_end(&table, colour, columns_max, &out);
    return out.data;
}

static void columns_are_aligned_and_nothing_is_cut_without_a_terminal(void **state)
{
    char *text = render(0, false);

    assert_string_equal(text, "   N  NAME  REASON\n"
                              "   7  tiny  -\n"
                              "1234  a     waits for 4 devices, 2 are free?[2J\n");
    free(text);
}

static void the_last_column_is_cut_to_the_terminal(void **state)
{
    char *text = render(30, false);

    /* 4 + 2 + 4 + 2 columns are before it: 18 are left, three of them for the dots */
    assert_string_equal(text, "   N  NAME  REASON\n"
                              "   7  tiny  -\n"
                              "1234  a     waits for 4 dev...\n");
    free(text);
}

static void colour_does_not_disturb_alignment(void **state)
{
    char *text = render(0, true);

    assert_non_null(strstr(text, "   7  \033[32mtiny\033[0m  -\n"));
    free(text);
}

/* ---- progress ---- */

static char *render_progress(const struct progress *p, int columns_max, bool utf8)
{
    const struct progress_style style = {.columns = columns_max, .utf8 = utf8};
    struct hd_text out = {0};

    progress_render(p, &style, &out);
    return out.data;
}

static const struct progress halfway = {.step = 250,
                                        .steps = 500,
                                        .loss = 2.31416,
                                        .lr = 0.0003,
                                        .grad_norm = 0.8125,
                                        .tokens_per_s = 98123,
                                        .mfu = 0.436,
                                        .validations = {{.loss = 2.40123}},
                                        .validation_count = 1,
                                        .left_ms = 125000};

/* Goal: each width has the parts that its columns hold, and no column too many. Method: the parts
 * in the order of progress.h with the columns they take, and below each the sum; a line may have
 * one column less than the terminal. The bar takes what is left, from 8 cells to 40.
 *
 *     percent 4   step 1+7   loss 2+11   ETA 2+10   bar 2+8   val 2+10   rate 2+11   lr 2+11
 *           4         12          25          37         47         59          72        85
 *     grad 2+10   mfu 2+7
 *           97        106
 *
 * A terminal of 106 columns has 105 for the line: too few for mfu, and 105 - 97 = 8 cells more for
 * the bar. */
static void the_progress_line_has_what_fits(void **state)
{
    static const struct {
        int columns;
        const char *line;
    } rows[] = {
        {200, " 50% ####################....................  250/500  loss 2.3142  val 2.4012  "
              "lr 3.00e-04  grad 0.812  98.1k tok/s  mfu 44%  ETA 2m05s "},
        {107, " 50% ####....  250/500  loss 2.3142  val 2.4012  "
              "lr 3.00e-04  grad 0.812  98.1k tok/s  mfu 44%  ETA 2m05s "},
        {106, " 50% ########........  250/500  loss 2.3142  val 2.4012  "
              "lr 3.00e-04  grad 0.812  98.1k tok/s  ETA 2m05s "},
        {98, " 50% ####....  250/500  loss 2.3142  val 2.4012  "
             "lr 3.00e-04  grad 0.812  98.1k tok/s  ETA 2m05s "},
        {97, " 50% #########..........  250/500  loss 2.3142  val 2.4012  "
             "lr 3.00e-04  98.1k tok/s  ETA 2m05s "},
        {80, " 50% #######........  250/500  loss 2.3142  val 2.4012  98.1k tok/s  ETA 2m05s "},
        {72, " 50% ##########..........  250/500  loss 2.3142  val 2.4012  ETA 2m05s "},
        {59, " 50% #########..........  250/500  loss 2.3142  ETA 2m05s "},
        {48, " 50% ####....  250/500  loss 2.3142  ETA 2m05s "},
        {47, " 50% 250/500  loss 2.3142  ETA 2m05s "},
        {38, " 50% 250/500  loss 2.3142  ETA 2m05s "},
        {37, " 50% 250/500  loss 2.3142"},
        {26, " 50% 250/500  loss 2.3142"},
        {25, " 50% 250/500"},
        {20, " 50% 250/500"},
        {12, " 50%"},
        {4, ""},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *line = render_progress(&halfway, rows[i].columns, false);

        assert_string_equal(line, rows[i].line);
        free(line);
    }
}

/* Goal: the line never wraps, whatever the numbers and the characters are. Method: every width up
 * to 300; what was dropped on a wider terminal does not come back on a narrower one. */
static void no_width_makes_the_line_wrap(void **state)
{
    static const char *const parts[] = {"mfu", "grad", "lr", "tok/s", "val", "ETA", "loss", "/"};
    const struct progress large = {.step = 999999999,
                                   .steps = 1000000000,
                                   .loss = -1.0 / 3 * 1e9,
                                   .lr = 1e-30,
                                   .grad_norm = 1e30,
                                   .tokens_per_s = 1e15,
                                   .mfu = 1,
                                   .validations = {{.loss = 1e9}},
                                   .validation_count = 1,
                                   .left_ms = INT64_C(99) * 86400000};
    const struct progress *const rows[] = {&halfway, &large};

    for (size_t r = 0; r < 2; r++) {
        bool gone[8] = {false};

        for (int width = 300; width >= 1; width--) {
            for (int utf8 = 0; utf8 < 2; utf8++) {
                char *line = render_progress(rows[r], width, utf8);
                int columns_used = 0;

                for (const char *p = line; *p; p++) /* no byte of a character but its first */
                    columns_used += ((unsigned char)*p & 0xC0) != 0x80;
                assert_true(columns_used < width);
                for (int i = 0; i < 8; i++) {
                    const bool here = strstr(line, parts[i]) != NULL;

                    assert_false(here && gone[i]);
                    gone[i] = !here;
                    assert_false(i > 0 && gone[i] && !gone[i - 1]); /* in this order */
                }
                free(line);
            }
        }
        assert_true(gone[7]);
    }
}

static void blocks_count_as_one_column_each(void **state)
{
    char *line = render_progress(&halfway, 48, true);

    assert_string_equal(line, " 50% ████░░░░  250/500  loss 2.3142  ETA 2m05s ");
    free(line);
}

static void what_was_not_reported_has_no_place(void **state)
{
    const struct progress none = {.steps = 500, .left_ms = -1};
    const struct progress some = {.step = 7, .steps = 500, .loss = 5.5, .lr = 0, .left_ms = -1};
    char *line = render_progress(&none, 60, false);

    assert_string_equal(line, "  0% ........................................    0/500");
    free(line);
    line = render_progress(&some, 100, false);
    assert_string_equal(line,
                        "  1% ........................................    7/500  loss 5.5000  "
                        "lr 0.00e+00  ETA -     ");
    free(line);
}

/* ---- the time left ---- */

/* Steps first + 1 to last, one each `ms` milliseconds. */
static void take_steps(struct eta *eta, int64_t first, int64_t last, int64_t ms, int64_t *now_ms)
{
    for (int64_t step = first; step <= last; step++)
        eta_step(eta, step, *now_ms += ms);
}

static void the_time_left_is_not_known_before_a_step_was_timed(void **state)
{
    const struct eta_plan plan = {.steps = 100};
    int64_t now_ms = 1000;
    struct eta eta;

    eta_init(&eta, &plan);
    assert_int_equal(eta_left_ms(&eta), -1);
    take_steps(&eta, 1, 1, 5000, &now_ms);
    assert_int_equal(eta_left_ms(&eta), -1); /* the first step is not counted */
    take_steps(&eta, 2, 2, 100, &now_ms);
    assert_int_equal(eta_left_ms(&eta), 98 * 100);
    eta_step(&eta, 3, now_ms - 60000); /* a clock was set back: nothing is learnt from it */
    assert_int_equal(eta_left_ms(&eta), 97 * 100);
    eta_restart(&eta);
    assert_int_equal(eta_left_ms(&eta), -1);
    take_steps(&eta, 51, 52, 300, &now_ms); /* the next attempt began at a checkpoint of step 50 */
    assert_int_equal(eta_left_ms(&eta), 48 * 300);
}

/* Goal: a validation and a checkpoint do not count as slow steps, and those still due are in the
 * time left. Method: 100 ms a step, 1000 ms a validation after each 10 steps, 400 ms a checkpoint
 * after each 20, and both after the last step, 45. */
static void pauses_are_counted_by_how_many_are_due(void **state)
{
    const struct eta_plan plan = {.steps = 45,
                                  .validate_every = 10,
                                  .checkpoint_every = 20,
                                  .validates = true,
                                  .checkpoints = true};
    int64_t now_ms = 1000;
    struct eta eta;

    eta_init(&eta, &plan);
    eta_validation(&eta, 0, now_ms); /* nothing came before it: what it took is not known */
    take_steps(&eta, 1, 9, 100, &now_ms);
    assert_int_equal(eta_left_ms(&eta), 36 * 100);
    take_steps(&eta, 10, 10, 100, &now_ms);
    eta_validation(&eta, 10, now_ms += 1000);
    /* 20, 30, 40 and 45 are to come */
    assert_int_equal(eta_left_ms(&eta), 35 * 100 + 4 * 1000);
    take_steps(&eta, 11, 20, 100, &now_ms);
    assert_int_equal(eta_left_ms(&eta), 25 * 100 + 4 * 1000); /* that of step 20 is due */
    eta_validation(&eta, 20, now_ms += 1000);
    eta_checkpoint(&eta, 20, now_ms += 400);
    assert_int_equal(eta_left_ms(&eta), 25 * 100 + 3 * 1000 + 2 * 400);
    take_steps(&eta, 21, 45, 100, &now_ms);
    assert_int_equal(eta_left_ms(&eta), 1000 + 400);
    eta_checkpoint(&eta, 45, now_ms += 400);
    eta_validation(&eta, 45, now_ms += 1000);
    assert_int_equal(eta_left_ms(&eta), 0);
}

/* Goal: the time left is of the recent speed, not of the whole run's. Method: 1000 steps of 1 s,
 * then of 3 s: ten seconds are fewer than 20 steps, so that each new step weighs 1/20 of the mean.
 */
static void a_change_of_speed_shows_within_some_twenty_steps(void **state)
{
    const struct eta_plan plan = {.steps = 2000};
    int64_t now_ms = 1;
    struct eta eta;

    eta_init(&eta, &plan);
    take_steps(&eta, 1, 1000, 1000, &now_ms);
    assert_int_equal(eta_left_ms(&eta), 1000 * 1000);
    take_steps(&eta, 1001, 1060, 3000, &now_ms);
    /* 3000 - 2000 * 0.95^60 = 2907.9; times 940 steps */
    assert_in_range(eta_left_ms(&eta), 940 * 2907, 940 * 2909);
}

/* Steps of 1 ms: the mean is of a thousand, so that one of 100 ms adds no more than 0.1 ms. */
static void one_slow_step_among_fast_ones_is_no_change_of_speed(void **state)
{
    const struct eta_plan plan = {.steps = 10000};
    int64_t now_ms = 1;
    struct eta eta;

    eta_init(&eta, &plan);
    take_steps(&eta, 1, 4999, 1, &now_ms);
    take_steps(&eta, 5000, 5000, 100, &now_ms);
    assert_in_range(eta_left_ms(&eta), 5000, 5500);
}

/* ---- lines ---- */

/* The steps of which a line is printed, as text. */
static char *logged_steps(int64_t steps, int64_t every)
{
    struct hd_text out = {0};

    for (int64_t step = 1; step <= steps; step++)
        if (hd_cli_log_step(step, steps, every))
            hd_text_add(&out, "%s%lld", step > 1 ? " " : "", (long long)step);
    return out.data;
}

static void steps_are_logged_by_their_number(void **state)
{
    static const struct {
        int64_t steps, every;
        const char *logged;
    } rows[] = {
        {1, 0, "1"}, {5, 0, "1 2 3 4 5"}, {7, 3, "1 3 6 7"}, {10, 5, "1 5 10"}, {11, 100, "1 11"},
    };
    /* at most 100 lines at round steps: 100 steps every one, 101 and 200 every second, 201 and 500
     * every fifth, 501 every tenth, 100001 every 2000th */
    static const struct {
        int64_t steps, every;
    } spacings[] = {{100, 1},   {101, 2},   {200, 2},   {203, 5},       {500, 5},      {509, 10},
                    {1000, 10}, {2000, 20}, {5000, 50}, {100000, 1000}, {101000, 2000}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *logged = logged_steps(rows[i].steps, rows[i].every);

        assert_string_equal(logged, rows[i].logged);
        free(logged);
    }
    for (size_t i = 0; i < sizeof spacings / sizeof spacings[0]; i++)
        for (int64_t step = 1; step <= spacings[i].steps; step++)
            assert_int_equal(hd_cli_log_step(step, spacings[i].steps, 0),
                             step == 1 || step == spacings[i].steps ||
                                 step % spacings[i].every == 0);
    assert_true(hd_cli_log_step(1, 0, 0)); /* the number of steps is not known yet */
}

/* ---- JSON ---- */

struct numbered {
    int64_t job;
};

static const struct rows_column numbered_columns[] = {
    {"JOB", ROWS_OF(struct numbered, job), .json = "job"},
    {"ALWAYS", ROWS_OF(struct numbered, job), .form = ROWS_SOME},
    {"NARROW", ROWS_OF(struct numbered, job), .in_width = ROWS_NARROW_ONLY},
    {"WIDE", ROWS_OF(struct numbered, job), .in_width = ROWS_WIDE_ONLY},
};
static const struct rows_kind numbered_rows = {"JobList", "job", ROWS_COLUMNS(numbered_columns)};

/* Compares the list of the jobs first to last in a format. */
static void expect_rows(enum cli_format format, int64_t first, int64_t last, const char *expected)
{
    const struct cli cli = {.format = format};
    struct hd_text out = {0};
    struct cli_rows rows;

    rows_begin(&rows, &cli, &numbered_rows);
    for (int64_t i = first; i <= last; i++)
        rows_add(&rows, &(struct numbered){i});
    rows_end_in(&rows, &out);
    assert_string_equal(out.data, expected);
    hd_text_free(&out);
}

static void an_envelope_has_version_kind_and_items(void **state)
{
    expect_rows(CLI_JSON, 1, 2,
                "{\"api_version\":\"heddle/v1\",\"kind\":\"JobList\",\"items\":[\n"
                "{\"job\":1},\n{\"job\":2}]}\n");
    expect_rows(CLI_JSONL, 1, 1, "{\"type\":\"job\",\"job\":1}\n");
}

static void a_row_has_the_columns_of_its_width(void **state)
{
    expect_rows(CLI_TABLE, 0, 1,
                "JOB  ALWAYS  NARROW\n"
                "  0       -       0\n"
                "  1       1       1\n");
    expect_rows(CLI_WIDE, 7, 7,
                "JOB  ALWAYS  WIDE\n"
                "  7       7     7\n");
}

/* State of job 7 before these entries. */
static const struct progress known = {.step = 120,
                                      .steps = 500,
                                      .loss = 2.5,
                                      .validation_step = 120,
                                      .validations = {{.loss = 2.25}},
                                      .validation_count = 1};
static const struct lines plain = {.job = 7, .directory = "/jobs/7", .progress = &known};
static const struct lines timed = {.directory = "", .times = true, .progress = &known};

static void expect_line(const struct lines *lines, const Heddle__V1__WatchJobResponse *entry,
                        const char *line, bool on_stdout)
{
    struct hd_text out = {0};

    assert_int_equal(lines_add(&out, lines, entry), on_stdout);
    assert_string_equal(out.data ? out.data : "", line);
    hd_text_free(&out);
}

/* ---- members of messages ---- */

/* Goal: what is not known is null and never 0, and what is 0 is not null. Method: each mark of a form
 * at a field that is empty, and at one that is not. */
static void a_form_tells_unknown_from_zero(void **state)
{
    Heddle__V1__CheckpointInfo base = HEDDLE__V1__CHECKPOINT_INFO__INIT;
    Heddle__V1__AttemptStatus a = HEDDLE__V1__ATTEMPT_STATUS__INIT;
    Heddle__V1__EndReport end = HEDDLE__V1__END_REPORT__INIT;
    struct hd_text out = {0};
    struct hd_json_writer writer = {.out = &out};

    base._val_loss_case = HEDDLE__V1__CHECKPOINT_INFO___VAL_LOSS_VAL_LOSS; /* and it is 0 */
    a.base_checkpoint = &base;
    a.end = &end;
    a.state = HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_ENDED;
    end.rank = -1;
    end.signal = 9;
    hd_json_begin(&writer, NULL, '{');
    show_members(&writer, &a.base,
                 "attempt state run_as? none=run_as! at=created_unix_ms@ plan(micro_batches) "
                 "left_out=plan!(micro_batches) end(rank- signal- node=signal/exit_code "
                 "any=bad_input|signal) base_checkpoint(val_loss size_bytes~) same{n=attempt}");
    base._val_loss_case = HEDDLE__V1__CHECKPOINT_INFO___VAL_LOSS__NOT_SET;
    show_members(&writer, &base.base, "val_loss");
    hd_json_end(&writer, '}');
    assert_string_equal(out.data,
                        "{\"attempt\":0,\"state\":\"ended\",\"run_as\":null,\"at\":null,"
                        "\"plan\":null,\"end\":{\"rank\":null,\"signal\":9,\"node\":null,"
                        "\"any\":true},\"base_checkpoint\":{\"val_loss\":0,\"size_bytes\":null},"
                        "\"same\":{\"n\":0},\"val_loss\":null}");
    hd_text_free(&out);
}

static void a_text_leaves_out_what_is_empty_in_brackets(void **state)
{
    Heddle__V1__JobStatus j = HEDDLE__V1__JOB_STATUS__INIT;
    char *nodes[] = {(char *)"n1", (char *)"n\0332"};
    struct hd_text out = {0};

    j.job = 7;
    j.nodes = nodes;
    j.n_nodes = 2;
    j.step = 3;
    j.tokens_per_s = 98123;
    cli_say(&out, &j,
            "{job} {state}[: {reason}] {nodes}[ {mfu:percent}][{step?} {loss:4}] "
            "{tokens_per_s:count} {reason|priority}[{steps?}!]\n");
    /* the loss of a step may be 0 */
    assert_string_equal(out.data, "7 unspecified n1,n?2 0.0000 98.1k 0\n");
    hd_text_free(&out);
}

static void expect_history(const Heddle__V1__WatchJobResponse *entry, const char *json)
{
    struct hd_text out = {0};
    struct hd_json_writer writer = {.out = &out};

    assert_true(show_history(&writer, 7, entry));
    assert_string_equal(out.data, json);
    hd_text_free(&out);
}

static void a_step_is_a_line_with_all_its_numbers(void **state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__StepReport step = HEDDLE__V1__STEP_REPORT__INIT;

    entry.attempt = 2;
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP;
    entry.step = &step;
    step.step = 3;
    step.loss = 2.5;
    step.grad_norm = 0.75;
    step.lr = 0.001;
    step.tokens = 16384;
    step.tokens_per_s = 98000;
    step.step_ms = 167.25;
    step.mfu = 0.5;
    step.time_unix_ms = 1500;
    expect_history(&entry,
                   "{\"type\":\"step\",\"job\":7,\"attempt\":2,\"step\":3,\"loss\":2.5,"
                   "\"grad_norm\":0.75,\"lr\":0.001,\"tokens\":16384,\"tokens_per_s\":98000,"
                   "\"step_ms\":167.25,\"mfu\":0.5,\"time\":\"1970-01-01T00:00:01.500Z\"}");
    expect_line(&plain, &entry, "step 3/500  loss 2.500000  grad_norm 0.75  lr 0.001", true);
    expect_line(&timed, &entry,
                "step 3/500  loss 2.500000  grad_norm 0.75  lr 0.001  98.0k tok/s  167.2 ms  "
                "mfu 50.0%",
                true);
}

/* Loads of 300, 100, 100 and 100: a mean of 150, so that the busiest has two of it. */
static void a_step_of_experts_tells_how_tokens_fell_on_them(void **state)
{
    int64_t load[4] = {300, 100, 100, 100};
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__StepReport step = HEDDLE__V1__STEP_REPORT__INIT;

    entry.attempt = 1;
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STEP;
    entry.step = &step;
    step.step = 3;
    step.loss = 2.5;
    step.tokens = 300;
    step.router_balance = 1.25;
    step.router_z = 0.5;
    step.router_dropped = 7;
    step.expert_load = load;
    step.n_expert_load = 4;
    expect_history(&entry,
                   "{\"type\":\"step\",\"job\":7,\"attempt\":1,\"step\":3,\"loss\":2.5,"
                   "\"grad_norm\":0,\"lr\":0,\"tokens\":300,\"tokens_per_s\":0,\"step_ms\":0,"
                   "\"mfu\":null,\"router_balance\":1.25,\"router_z\":0.5,\"router_dropped\":7,"
                   "\"expert_load\":[300,100,100,100],\"time\":null}");
    expect_line(&timed, &entry,
                "step 3/500  loss 2.500000  grad_norm 0  lr 0  balance 1.2500  "
                "busiest expert 2.00x  dropped 7  0 tok/s  0.0 ms",
                true);
}

static void validation_events_and_end_have_their_types(void **state)
{
    struct progress earlier = known;
    const struct lines before = {.job = 7, .directory = "/jobs/7", .progress = &earlier};
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__ValidationReport validation = HEDDLE__V1__VALIDATION_REPORT__INIT;
    Heddle__V1__Event event = HEDDLE__V1__EVENT__INIT;
    Heddle__V1__JobEnd end = HEDDLE__V1__JOB_END__INIT;
    Heddle__V1__EndReport report = HEDDLE__V1__END_REPORT__INIT;

    entry.attempt = 1;
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_VALIDATION;
    entry.validation = &validation;
    validation.step = 100;
    validation.loss = 2.25;
    validation.tokens = 64;
    expect_history(&entry,
                   "{\"type\":\"validation\",\"job\":7,\"attempt\":1,\"step\":100,\"loss\":2.25,"
                   "\"tokens\":64,\"time\":null}");
    expect_line(&plain, &entry, "validation at step 100: loss 2.250000", true);
    validation.set = (char *)"code";
    expect_line(&plain, &entry, "validation at step 100: code loss 2.250000", true);
    expect_history(&entry,
                   "{\"type\":\"validation\",\"job\":7,\"attempt\":1,\"step\":100,\"loss\":2.25,"
                   "\"tokens\":64,\"set\":\"code\",\"time\":null}");
    validation.set = (char *)"arc/acc"; /* a score of questions */
    validation.loss = 0.25;
    expect_line(&plain, &entry, "validation at step 100: arc/acc 0.2500 of 64 questions", true);
    expect_history(&entry,
                   "{\"type\":\"validation\",\"job\":7,\"attempt\":1,\"step\":100,\"score\":0.25,"
                   "\"questions\":64,\"set\":\"arc/acc\",\"time\":null}");

    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT;
    entry.event = &event;
    event.sequence = 9;
    event.kind = (char *)"rank_exit";
    event.job = 7;
    event.attempt = 1;
    event.node = (char *)"n1";
    event.rank = 3;
    event.message = (char *)"killed\nby 9";
    expect_history(&entry,
                   "{\"type\":\"event\",\"sequence\":9,\"time\":null,\"kind\":\"rank_exit\","
                   "\"job\":7,\"attempt\":1,\"node\":\"n1\",\"rank\":3,"
                   "\"message\":\"killed\\nby 9\"}");
    expect_line(&plain, &entry, "", false); /* the failed attempt tells it */

    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END;
    entry.end = &end;
    end.state = HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED;
    end.reason = (char *)"rank 3 died";
    end.attempts = 4;
    end.step = 120;
    end.end = &report;
    report.cause = HEDDLE__V1__END_CAUSE__END_CAUSE_RANK_EXIT;
    report.rank = -1;
    report.message = (char *)"x";
    report.signal = 9;
    expect_history(&entry,
                   "{\"type\":\"end\",\"job\":7,\"attempt\":1,\"state\":\"failed\","
                   "\"reason\":\"rank 3 died\",\"attempts\":4,\"step\":120,"
                   "\"end\":{\"cause\":\"rank_exit\",\"rank\":null,\"node\":null,\"message\":\"x\","
                   "\"exit_code\":0,\"signal\":9,\"bad_input\":false}}");
    expect_line(&plain, &entry,
                "job 7 failed at step 120 in 4 attempts, loss 2.500000, validation loss 2.250000: "
                "rank 3 died",
                true);
    earlier.validation_step = 100;
    expect_line(&before, &entry,
                "job 7 failed at step 120 in 4 attempts, loss 2.500000, validation loss 2.250000 "
                "of step 100: rank 3 died",
                true);
    progress_validate(&earlier, 120, "code", 1.5);
    progress_validate(&earlier, 120, "web", 2);
    progress_validate(&earlier, 120, "code", 1.25); /* a later attempt repeats the step */
    expect_line(&before, &entry,
                "job 7 failed at step 120 in 4 attempts, loss 2.500000, validation loss code "
                "1.250000, web 2.000000: rank 3 died",
                true);
}

/* Goal: stdout has nothing that differs between equal runs, and stderr nothing that only the
 * machinery needs. */
static void people_are_told_what_concerns_them(void **state)
{
    static const struct {
        const char *kind, *message, *line;
    } rows[] = {
        {"submitted", "submitted by uid:0", ""},
        {"starting", "attempt 1 on local: 2 cpu devices", ""},
        {"running", "attempt 1: all 2 ranks are up", ""},
        {"rank_done", "rank 0 is done", ""},
        {"ended", "attempt 1 ended: completed", ""},
        {"succeeded", "job succeeded", ""},
        {"note", "139584 parameters", "139584 parameters"},
        {"warning", "slow\033[2J", "warning: slow?[2J (rank 3 on n1)"},
        {"attempt_failed", "attempt 1: rank 3 on n1: killed",
         "failed: attempt 1: rank 3 on n1: killed"},
        {"cancel", "cancel requested by uid:4294967294", "cancel requested by uid 4294967294"},
    };
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__CheckpointInfo checkpoint = HEDDLE__V1__CHECKPOINT_INFO__INIT;
    Heddle__V1__JobStatus status = HEDDLE__V1__JOB_STATUS__INIT;
    struct lines local = plain;
    Heddle__V1__Event event = HEDDLE__V1__EVENT__INIT;

    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT;
    entry.event = &event;
    event.node = (char *)"n1";
    event.rank = 3;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        event.kind = (char *)rows[i].kind;
        event.message = (char *)rows[i].message;
        expect_line(&plain, &entry, rows[i].line, false);
    }
    local.one_machine = true;
    expect_line(&local, &entry, "", false); /* the last row: this user has cancelled the job */
    event.kind = (char *)"warning";
    expect_line(&local, &entry, "warning: cancel requested by uid 4294967294 (rank 3)", false);

    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_CHECKPOINT;
    entry.checkpoint = &checkpoint;
    checkpoint.step = 10;
    checkpoint.path = (char *)"/jobs/7/attempt-1/checkpoints/step-00000010";
    expect_line(&plain, &entry, "checkpoint at step 10: attempt-1/checkpoints/step-00000010", true);
    checkpoint.path = (char *)"/jobs/77/step-00000010"; /* another folder of like name */
    expect_line(&plain, &entry, "checkpoint at step 10: /jobs/77/step-00000010", true);

    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_STATUS;
    entry.status = &status;
    status.state = HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED;
    status.reason = (char *)"needs 2 devices";
    expect_line(&plain, &entry, "queued: needs 2 devices", false);
    status.state = HEDDLE__V1__JOB_STATE__JOB_STATE_RUNNING;
    status.reason = (char *)"n1: heddle-supervisor does not answer";
    expect_line(&plain, &entry, "running: n1: heddle-supervisor does not answer", false);
    status.reason = (char *)"";
    expect_line(&plain, &entry, "", false);
}

static void an_attempt_is_placed_in_one_line(void **state)
{
    Heddle__V1__RankPlacement places[4] = {
        HEDDLE__V1__RANK_PLACEMENT__INIT, HEDDLE__V1__RANK_PLACEMENT__INIT,
        HEDDLE__V1__RANK_PLACEMENT__INIT, HEDDLE__V1__RANK_PLACEMENT__INIT};
    Heddle__V1__RankPlacement *ranks[4] = {&places[0], &places[1], &places[2], &places[3]};
    Heddle__V1__CheckpointInfo base = HEDDLE__V1__CHECKPOINT_INFO__INIT;
    Heddle__V1__AttemptStatus attempt = HEDDLE__V1__ATTEMPT_STATUS__INIT;
    Heddle__V1__Plan plan = HEDDLE__V1__PLAN__INIT;
    struct lines here = plain;
    struct hd_text out = {0};

    for (int i = 0; i < 4; i++)
        places[i].node = (char *)(i < 2 ? "n1" : "n2");
    plan.ranks = ranks;
    plan.n_ranks = 4;
    plan.device = HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CPU;
    plan.precision = HEDDLE__V1__PRECISION__PRECISION_BF16;
    plan.threads_per_device = 8;
    plan.tp = plan.dp = 2;
    plan.pp = plan.cp = plan.ep = 1;
    plan.micro_batch = 4;
    plan.micro_batches = 3;
    attempt.attempt = 2;
    attempt.plan = &plan;
    attempt.base_checkpoint = &base;
    base.step = 20;
    lines_add_placement(&out, &here, &attempt);
    assert_string_equal(out.data, "attempt 2 running on 4 cpu devices of n1, n2, 8 threads each: "
                                  "tp 2 x dp 2, micro-batch 4 x 3, bf16, from step 20");
    hd_text_clear(&out);
    here.one_machine = true;
    plan.n_ranks = 1;
    plan.device = HEDDLE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
    plan.threads_per_device = 0;
    plan.tp = plan.dp = 1;
    attempt.attempt = 1;
    attempt.base_checkpoint = NULL;
    lines_add_placement(&out, &here, &attempt);
    assert_string_equal(out.data, "running on 1 cuda device: dp 1, micro-batch 4 x 3, bf16");
    hd_text_free(&out);
}

static void colour_marks_errors_and_ends(void **state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__JobEnd end = HEDDLE__V1__JOB_END__INIT;
    Heddle__V1__Event event = HEDDLE__V1__EVENT__INIT;
    struct lines coloured = timed;

    coloured.colour = coloured.error_colour = true;
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_END;
    entry.end = &end;
    end.state = HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED;
    expect_line(&coloured, &entry, "job \033[31mfailed\033[0m", true);
    end.state = HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED;
    expect_line(&coloured, &entry, "job \033[32msucceeded\033[0m", true);
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_EVENT;
    entry.event = &event;
    event.kind = (char *)"error";
    event.message = (char *)"no room";
    event.rank = -1;
    expect_line(&coloured, &entry, "\033[31merror: \033[0mno room", false);
}

static void what_a_newer_controller_says_is_passed_over(void **state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    struct hd_text out = {0};
    struct hd_json_writer writer = {.out = &out};

    assert_false(show_history(&writer, 7, &entry));
    assert_null(out.data);
}

/* A log without a bar gets what the bar would say of the time. */
static void a_log_is_told_how_far_the_job_is(void **state)
{
    struct progress p = {.step = 250, .steps = 500, .tokens_per_s = 98123, .left_ms = 125000};
    struct hd_text out = {0};

    progress_summarize(&p, &out);
    assert_string_equal(out.data, "step 250 of 500 (50%), 98.1k tok/s, about 2m05s left");
    hd_text_clear(&out);
    p.left_ms = -1;
    p.tokens_per_s = 0;
    progress_summarize(&p, &out);
    assert_string_equal(out.data, "step 250 of 500 (50%)");
    hd_text_clear(&out);
    p.step = 0;
    progress_summarize(&p, &out);
    assert_int_equal(out.len_bytes, 0);
    hd_text_free(&out);
}

RUN_CASES()
