/* The command line without a controller: flags, tables, the progress line, JSON forms, words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "controller/cli/cli.h"
#include "controller/cli/process.h"
#include "controller/cli/progress.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"
#include "controller/cli/watch.h"

/* ---- flags ---- */

static int nothing(struct cli *cli, int argc, char **argv)
{
    (void)cli;
    (void)argc;
    (void)argv;
    return CLI_OK;
}

static const struct cli_command command = {"test", "tests", "Usage: heddle test\n", nothing, false};

/* Parses one line of words, at most two of them arguments, with a flag of each kind. */
struct parsed {
    struct cli cli;
    bool yes;
    const char *text;
    int64_t number;
    struct cli_list list;
    char words[256], *argv[16];
};

static int parse(struct parsed *p, const char *line)
{
    int argc = 0;

    *p = (struct parsed){.cli = {.command = &command}};
    const struct cli_flag flags[] = {
        {"yes", 'y', CLI_FLAG_BOOL, &p->yes, 0, 0},
        {"text", 't', CLI_FLAG_TEXT, &p->text, 0, 0},
        {"number", 0, CLI_FLAG_INT, &p->number, 1, 10},
        {"set", 0, CLI_FLAG_LIST, &p->list, 0, 0},
    };
    (void)snprintf(p->words, sizeof p->words, "%s", line);
    for (char *word = strtok(p->words, " "); word; word = strtok(NULL, " "))
        p->argv[argc++] = word;
    return cli_parse(&p->cli, argc, p->argv, flags, 4, 0, 2);
}

static void flags_may_stand_anywhere_and_take_values_both_ways(void **state)
{
    static struct parsed p;

    (void)state;
    assert_int_equal(parse(&p, "a --text x -y b --number=7 --set k=1 --set=l=2 -o wide"),
                     CLI_CONTINUE);
    assert_true(p.yes);
    assert_string_equal(p.text, "x");
    assert_int_equal(p.number, 7);
    assert_int_equal(p.list.count, 2);
    assert_string_equal(p.list.items[0], "k=1");
    assert_string_equal(p.list.items[1], "l=2");
    assert_int_equal(p.cli.format, CLI_WIDE);
    assert_int_equal(p.cli.arg_count, 2);
    assert_string_equal(p.cli.args[0], "a");
    assert_string_equal(p.cli.args[1], "b");

    assert_int_equal(parse(&p, "-tx -- -y"), CLI_CONTINUE); /* behind -- nothing is a flag */
    assert_string_equal(p.text, "x");
    assert_false(p.yes);
    assert_string_equal(p.cli.args[0], "-y");

    assert_int_equal(parse(&p, "-"), CLI_CONTINUE); /* standard input is an argument */
    assert_int_equal(p.cli.arg_count, 1);
}

static void wrong_flags_are_usage(void **state)
{
    static const char *const lines[] = {
        "--textt x",  "-z",      "--text",    "--number 11", "--number 0",
        "--number x", "--yes=1", "a b c",     "-o yaml",     "--color maybe",
        "--tex x",    "--yesss", "--number=",
    };
    static struct parsed p;

    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_int_equal(parse(&p, lines[i]), CLI_USAGE);
}

static void colour_is_for_terminals_unless_asked_for(void **state)
{
    static struct parsed p;

    (void)state;
    assert_int_equal(parse(&p, "--color always"), CLI_CONTINUE);
    assert_true(p.cli.colour);
    assert_int_equal(parse(&p, "--color never"), CLI_CONTINUE);
    assert_false(p.cli.colour);
    (void)setenv("NO_COLOR", "1", 1);
    assert_int_equal(parse(&p, ""), CLI_CONTINUE);
    assert_false(p.cli.colour);
    (void)unsetenv("NO_COLOR");
}

static void every_verb_has_help_with_an_example(void **state)
{
    (void)state;
    for (size_t i = 0; i < cli_command_count; i++) {
        char usage[64];

        (void)snprintf(usage, sizeof usage, "Usage: heddle %s ", cli_commands[i].name);
        assert_true(hd_text_starts(cli_commands[i].help, usage));
        (void)snprintf(usage, sizeof usage, "\nExample:\n  heddle %s ", cli_commands[i].name);
        assert_non_null(strstr(cli_commands[i].help, usage));
    }
}

/* The contract of DESIGN, in its order. */
static void exit_codes_are_what_scripts_rely_on(void **state)
{
    (void)state;
    assert_int_equal(cli_exit_of(HD_OK), 0);
    assert_int_equal(cli_exit_of_state(HEDDLE__V1__JOB_STATE__JOB_STATE_SUCCEEDED), 0);
    assert_int_equal(cli_exit_of_state(HEDDLE__V1__JOB_STATE__JOB_STATE_FAILED), 1);
    assert_int_equal(cli_exit_of_state(HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED), 1);
    assert_int_equal(cli_exit_of(HD_INVALID), 2);
    assert_int_equal(cli_exit_of(HD_UNSUPPORTED), 2);
    assert_int_equal(cli_exit_of(HD_UNAVAILABLE), 3);
    assert_int_equal(cli_exit_of(HD_TIMEOUT), 3);
    assert_int_equal(cli_exit_of(HD_NOT_FOUND), 4);
    assert_int_equal(cli_exit_of(HD_DENIED), 5);
    assert_int_equal(cli_exit_of(HD_IO), 6);
    assert_int_equal(cli_exit_of(HD_INTERNAL), 6);
}

/* ---- words ---- */

static void states_are_the_words_of_the_api(void **state)
{
    char word[CLI_WORD_MAX];

    (void)state;
    assert_string_equal(cli_job_state(HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED, word), "queued");
    assert_string_equal(cli_job_state(HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED, word),
                        "cancelled");
    assert_string_equal(cli_attempt_state(HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STARTING, word),
                        "starting");
    assert_string_equal(cli_end_cause(HEDDLE__V1__END_CAUSE__END_CAUSE_NODE_LOST, word),
                        "node_lost");
    assert_string_equal(cli_node_state(HEDDLE__V1__NODE_STATE__NODE_STATE_UNREACHABLE, word),
                        "unreachable");
    assert_string_equal(cli_job_state((Heddle__V1__JobState)77, word), "unknown(77)");
}

static void counts_are_short(void **state)
{
    static const struct {
        double count;
        const char *text;
    } rows[] = {{0, "0"},         {7.25, "7.2"},    {42, "42"},       {999, "999"},
                {999.6, "1.0k"},  {98123, "98.1k"}, {123456, "123k"}, {1.5e6, "1.5M"},
                {2.34e9, "2.3G"}, {1e18, "1000P"}};
    char text[32];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cli_format_count(rows[i].count, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void control_characters_never_reach_a_terminal(void **state)
{
    struct hd_text out = {0};

    (void)state;
    cli_add_clean(&out, "a\033[31mb\r\n\x7f"
                        "caf\xc3\xa9\xc2\x9b"
                        "d");
    assert_string_equal(out.data, "a?[31mb???"
                                  "caf\xc3\xa9?d");
    hd_text_free(&out);
}

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
    table_render(&table, colour, columns_max, &out);
    table_done(&table);
    return out.data;
}

static void columns_are_aligned_and_nothing_is_cut_without_a_terminal(void **state)
{
    char *text = render(0, false);

    (void)state;
    assert_string_equal(text, "   N  NAME  REASON\n"
                              "   7  tiny  -\n"
                              "1234  a     waits for 4 devices, 2 are free?[2J\n");
    free(text);
}

static void the_last_column_is_cut_to_the_terminal(void **state)
{
    char *text = render(30, false);

    (void)state;
    /* 4 + 2 + 4 + 2 columns are before it: 18 are left, three of them for the dots */
    assert_string_equal(text, "   N  NAME  REASON\n"
                              "   7  tiny  -\n"
                              "1234  a     waits for 4 dev...\n");
    free(text);
}

static void colour_does_not_disturb_alignment(void **state)
{
    char *text = render(0, true);

    (void)state;
    assert_non_null(strstr(text, "   7  \033[32mtiny\033[0m  -\n"));
    free(text);
}

/* ---- progress ---- */

static char *render_progress(const struct progress *p, int columns_max)
{
    const struct progress_style style = {.columns = columns_max};
    struct hd_text out = {0};

    progress_render(p, &style, &out);
    return out.data;
}

static const struct progress halfway = {.step = 250,
                                        .steps = 500,
                                        .loss = 2.31416,
                                        .tokens_per_s = 98123,
                                        .mfu = 0.436,
                                        .ms_per_step = 500};

static void the_progress_line_tells_all_on_a_wide_terminal(void **state)
{
    char *line = render_progress(&halfway, 120);

    (void)state;
    /* half of 40 cells; 250 steps of 0.5 s are left */
    assert_string_equal(line,
                        " 50% ####################....................  250/500  loss 2.3142  "
                        "98.1k tok/s  mfu 44%  2m05s left");
    free(line);
}

/* Goal: a line that never wraps. Method: every width; step and loss stay, the rest may go, and what
 * was gone on a wider terminal does not come back on a narrower one. */
static void a_narrow_terminal_loses_the_least_important_first(void **state)
{
    static const char *const parts[] = {"mfu", "tok/s", "left", "#"};
    bool gone[4] = {false};

    (void)state;
    for (int width = 120; width >= 30; width--) {
        char *line = render_progress(&halfway, width);

        assert_true(strlen(line) < (size_t)width);
        assert_non_null(strstr(line, "250/500  loss 2.3142"));
        for (int i = 0; i < 4; i++) {
            bool here = strstr(line, parts[i]) != NULL;

            assert_false(here && gone[i]);
            gone[i] = !here;
            assert_false(i > 0 && i < 3 && gone[i] && !gone[i - 1]); /* in this order */
        }
        free(line);
    }
    assert_true(gone[0] && gone[1] && gone[2] && gone[3]);
}

static void before_the_first_step_there_is_only_the_count(void **state)
{
    const struct progress p = {.steps = 500};
    char *line = render_progress(&p, 60);

    (void)state;
    assert_string_equal(line, "  0% ........................................  0/500");
    free(line);
}

static void the_pace_follows_the_steps(void **state)
{
    struct progress p = {.steps = 100};

    (void)state;
    progress_step(&p, 1, 1000);
    assert_int_equal(progress_left_ms(&p), -1); /* one report is no pace */
    progress_step(&p, 2, 1100);
    progress_step(&p, 11, 2000);
    assert_int_equal(progress_left_ms(&p), 89 * 100); /* 1000 ms for 10 steps */
    progress_restart(&p);
    assert_int_equal(progress_left_ms(&p), -1);
    progress_step(&p, 5, 9000); /* the next attempt began at a checkpoint */
    progress_step(&p, 6, 9300);
    assert_int_equal(progress_left_ms(&p), 94 * 300);
}

static void a_change_of_pace_shows_within_some_twenty_steps(void **state)
{
    struct progress p = {.steps = 1000};
    int64_t now = 1;

    (void)state;
    for (int64_t step = 1; step <= 100; step++)
        progress_step(&p, step, now += 100);
    for (int64_t step = 101; step <= 160; step++)
        progress_step(&p, step, now += 300);
    /* 300 - 200 * 0.95^60 = 290.8 */
    assert_in_range((int64_t)p.ms_per_step, 285, 300);
}

/* ---- JSON ---- */

static void an_envelope_has_version_kind_and_items(void **state)
{
    struct hd_text out = {0};
    struct show_list list;

    (void)state;
    show_list_begin(&list, &out, CLI_JSON, "JobList", "job");
    for (int i = 1; i <= 2; i++) {
        show_item_begin(&list);
        hd_json_add_int64(&list.writer, "job", i);
        show_item_end(&list);
    }
    show_list_end(&list);
    assert_string_equal(out.data,
                        "{\"api_version\":\"heddle/v1\",\"kind\":\"JobList\",\"items\":[\n"
                        "{\"job\":1},\n{\"job\":2}]}\n");
    hd_text_clear(&out);
    show_list_begin(&list, &out, CLI_JSONL, "JobList", "job");
    show_item_begin(&list);
    hd_json_add_int64(&list.writer, "job", 1);
    show_item_end(&list);
    show_list_end(&list);
    assert_string_equal(out.data, "{\"type\":\"job\",\"job\":1}\n");
    hd_text_free(&out);
}

static void expect_history(const Heddle__V1__WatchJobResponse *entry, const char *json,
                           const char *line)
{
    struct hd_text out = {0};
    struct hd_json_writer writer = {.out = &out};

    assert_true(show_history(&writer, 7, entry));
    assert_string_equal(out.data, json);
    hd_text_clear(&out);
    watch_add_line(&out, 7, 500, entry);
    assert_string_equal(out.data, line);
    hd_text_free(&out);
}

static void a_step_is_a_line_with_all_its_numbers(void **state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__StepReport step = HEDDLE__V1__STEP_REPORT__INIT;

    (void)state;
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
                   "\"step_ms\":167.25,\"mfu\":0.5,\"time\":\"1970-01-01T00:00:01.500Z\"}",
                   "step 3/500  loss 2.5000  grad_norm 0.75  lr 0.001  98.0k tok/s  167.2 ms  "
                   "mfu 50.0%");
}

/* Loads of 300, 100, 100 and 100: a mean of 150, so that the busiest has two of it. */
static void a_step_of_experts_tells_how_tokens_fell_on_them(void **state)
{
    int64_t load[4] = {300, 100, 100, 100};
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__StepReport step = HEDDLE__V1__STEP_REPORT__INIT;

    (void)state;
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
                   "\"expert_load\":[300,100,100,100],\"time\":null}",
                   "step 3/500  loss 2.5000  grad_norm 0  lr 0  0 tok/s  0.0 ms  balance 1.250  "
                   "busiest expert 2.00x  dropped 7");
}

static void validation_events_and_end_have_their_types(void **state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__ValidationReport validation = HEDDLE__V1__VALIDATION_REPORT__INIT;
    Heddle__V1__Event event = HEDDLE__V1__EVENT__INIT;
    Heddle__V1__JobEnd end = HEDDLE__V1__JOB_END__INIT;
    Heddle__V1__EndReport report = HEDDLE__V1__END_REPORT__INIT;

    (void)state;
    entry.attempt = 1;
    entry.body_case = HEDDLE__V1__WATCH_JOB_RESPONSE__BODY_VALIDATION;
    entry.validation = &validation;
    validation.step = 100;
    validation.loss = 2.25;
    validation.tokens = 64;
    expect_history(&entry,
                   "{\"type\":\"validation\",\"job\":7,\"attempt\":1,\"step\":100,\"loss\":2.25,"
                   "\"tokens\":64,\"time\":null}",
                   "validation at step 100: loss 2.2500");

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
                   "\"message\":\"killed\\nby 9\"}",
                   "rank_exit: killed?by 9 (node n1, rank 3)");

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
                   "\"exit_code\":0,\"signal\":9,\"bad_input\":false}}",
                   "job 7 failed at step 120 in 4 attempts: rank 3 died");
}

static void what_a_newer_controller_says_is_passed_over(void **state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    struct hd_text out = {0};
    struct hd_json_writer writer = {.out = &out};

    (void)state;
    assert_false(show_history(&writer, 7, &entry));
    assert_null(out.data);
}

/* ---- processes ---- */

static void a_child_and_what_it_left_behind_are_ended(void **state)
{
    /* the shell leaves a sleep in a session of its own, which ignores SIGTERM */
    char *const argv[] = {(char *)"/bin/sh", (char *)"-c",
                          (char *)"(trap '' TERM; setsid sleep 600 & ) ; exit 3", NULL};
    struct process child = {.name = "sh", .log = "/dev/null"};

    (void)state;
    assert_int_equal(process_adopt_orphans(), HD_OK);
    assert_int_equal(process_start(&child, argv), HD_OK);
    while (!process_has_ended(&child))
        continue;
    assert_int_equal(process_explain(&child), HD_IO);
    assert_string_equal(hd_err_message(), "sh ended with status 3; see /dev/null");
    process_stop_all(200); /* returns only when there is no child left */
}

static void a_program_that_is_not_there_is_named(void **state)
{
    char log[256];
    char *const argv[] = {(char *)"/nonexistent/program", NULL};
    struct process child = {.name = "program", .log = log};
    char expected[512];
    int fd;

    (void)state;
    (void)snprintf(log, sizeof log, "%.200s/log-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    fd = mkstemp(log);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(process_start(&child, argv), HD_OK);
    while (!process_has_ended(&child))
        continue;
    (void)process_explain(&child);
    (void)snprintf(expected, sizeof expected,
                   "program ended with status 127; see %s: cannot start program: No such file or "
                   "directory",
                   log);
    assert_string_equal(hd_err_message(), expected);
    (void)unlink(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_may_stand_anywhere_and_take_values_both_ways),
        cmocka_unit_test(wrong_flags_are_usage),
        cmocka_unit_test(colour_is_for_terminals_unless_asked_for),
        cmocka_unit_test(every_verb_has_help_with_an_example),
        cmocka_unit_test(exit_codes_are_what_scripts_rely_on),
        cmocka_unit_test(states_are_the_words_of_the_api),
        cmocka_unit_test(counts_are_short),
        cmocka_unit_test(control_characters_never_reach_a_terminal),
        cmocka_unit_test(columns_are_aligned_and_nothing_is_cut_without_a_terminal),
        cmocka_unit_test(the_last_column_is_cut_to_the_terminal),
        cmocka_unit_test(colour_does_not_disturb_alignment),
        cmocka_unit_test(the_progress_line_tells_all_on_a_wide_terminal),
        cmocka_unit_test(a_narrow_terminal_loses_the_least_important_first),
        cmocka_unit_test(before_the_first_step_there_is_only_the_count),
        cmocka_unit_test(the_pace_follows_the_steps),
        cmocka_unit_test(a_change_of_pace_shows_within_some_twenty_steps),
        cmocka_unit_test(an_envelope_has_version_kind_and_items),
        cmocka_unit_test(a_step_is_a_line_with_all_its_numbers),
        cmocka_unit_test(a_step_of_experts_tells_how_tokens_fell_on_them),
        cmocka_unit_test(validation_events_and_end_have_their_types),
        cmocka_unit_test(what_a_newer_controller_says_is_passed_over),
        cmocka_unit_test(a_child_and_what_it_left_behind_are_ended),
        cmocka_unit_test(a_program_that_is_not_there_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
