/* The command line without a controller: flags, pages of help, words, processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controller/cli/cli.h"
#include "controller/cli/debug.h"
#include "controller/cli/page.h"
#include "controller/cli/process.h"
#include "controller/show/form.h"
#include "tests/program/test.h"

/* ---- flags ---- */

static int nothing(struct cli *cli, int argc, char **argv)
{
    return CLI_OK;
}

static const struct cli_body test_body = {
    .usage = "Usage: heddle test\n", .examples = "", .run = nothing};
static const struct cli_command command = {.name = "test", .body = &test_body};

/* Parses one line of words, at most two of them arguments, with a flag of each kind. */
struct parsed {
    struct cli cli;
    bool yes;
    const char *text;
    int64_t number, span_ms;
    struct cli_list list;
    char words[256], *argv[16];
};

static int parse_for(struct parsed *p, const struct cli_command *of, const char *line)
{
    int argc = 0;

    *p = (struct parsed){.cli = {.command = of}};
    const struct cli_flag flags[] = {
        {"yes", 'y', CLI_FLAG_BOOL, &p->yes, .help = "does not ask"},
        {"text", 't', CLI_FLAG_TEXT, &p->text, "T", .joins = true},
        {"number", 0, CLI_FLAG_INT, &p->number, "N", "of both\nof them", .min = 1, .max = 10},
        {"set", 0, CLI_FLAG_LIST, &p->list, "KEY=VALUE", .help = "a key"},
        {"words", 0, CLI_FLAG_WORDS, &p->text, "W", .help = NULL},
        {"real", .kind = CLI_FLAG_REAL, .min = 0, .max = 1},
        {"span", 0, CLI_FLAG_SPAN, &p->span_ms, "TIME", .min = 1000, .max = 60000},
        {"form", .kind = CLI_FLAG_TEXT, .choices = "fp32|bf16|fp16"},
        {"only-set", .kind = CLI_FLAG_BOOL, .of = "set|rm"},
    };
    (void)snprintf(p->words, sizeof p->words, "%s", line);
    for (char *word = strtok(p->words, " "); word; word = strtok(NULL, " "))
        p->argv[argc++] = word;
    return cli_parse(&p->cli, argc, p->argv, flags, sizeof flags / sizeof flags[0], 0, 2);
}

static int parse(struct parsed *p, const char *line)
{
    return parse_for(p, &command, line);
}

static void flags_may_stand_anywhere_and_take_values_both_ways(void **state)
{
    static struct parsed p;

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

    assert_int_equal(parse(&p, "--words="), CLI_CONTINUE);
    assert_string_equal(p.text, "");
    assert_int_equal(parse(&p, "-"), CLI_CONTINUE); /* standard input is an argument */
    assert_int_equal(p.cli.arg_count, 1);
}

static void wrong_flags_are_usage(void **state)
{
    static const char *const lines[] = {
        "--textt x", "-z",        "--text",   "--number 11",   "--number 0",    "--number x",
        "--yes=1",   "a b c",     "-o yaml",  "--color maybe", "--tex x",       "--yesss",
        "--number=", "--text=",   "-o",       "--set=",        "--token-file=", "--real 2",
        "--real x",  "--span 2m", "--span 5", "--form fp8",
    };
    static struct parsed p;

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_int_equal(parse(&p, lines[i]), CLI_USAGE);
}

/* The last of two values would count, and the other one be lost without a word. */
static void an_option_with_one_value_is_given_once(void **state)
{
    static const char *const twice[] = {"--text a --text b",     "-ta --text=b",
                                        "--number 1 --number 1", "--words a --words b",
                                        "-o json -o wide",       "--context a --context b"};
    static struct parsed p;

    for (size_t i = 0; i < sizeof twice / sizeof twice[0]; i++)
        assert_int_equal(parse(&p, twice[i]), CLI_USAGE);
    assert_int_equal(parse(&p, "--set a=1 --set a=2 -y --yes"), CLI_CONTINUE);
    assert_int_equal(p.list.count, 2);
    assert_int_equal(parse(&p, "-ta -- -tb"), CLI_CONTINUE); /* behind -- it is no flag */
}

/* An empty argument comes from an unset variable in quotes: no node, queue or file has this name.
 */
static void an_empty_argument_is_usage(void **state)
{
    static struct parsed p;
    char job[] = "7", empty[] = "", *argv[] = {job, empty};

    assert_int_equal(parse(&p, ""), CLI_CONTINUE);
    assert_int_equal(cli_parse(&p.cli, 2, argv, NULL, 0, 0, 2), CLI_USAGE);
}

static void colour_is_for_terminals_unless_asked_for(void **state)
{
    static struct parsed p;

    assert_int_equal(parse(&p, "--color always"), CLI_CONTINUE);
    assert_true(p.cli.colour);
    assert_int_equal(parse(&p, "--color never"), CLI_CONTINUE);
    assert_false(p.cli.colour);
    (void)setenv("NO_COLOR", "1", 1);
    assert_int_equal(parse(&p, ""), CLI_CONTINUE);
    assert_false(p.cli.colour);
    (void)unsetenv("NO_COLOR");
}

/* Goal: a program that does the work gets the flags it knows. Method: those without a destination are
 * passed on, in their order, and found by name. */
static void flags_without_a_destination_are_passed_on(void **state)
{
    static struct parsed p;
    const char *argv[16] = {"worker"};

    assert_int_equal(parse(&p, "--form bf16 --text x --only-set --real=0.5 --span 2s"),
                     CLI_CONTINUE);
    assert_int_equal(cli_pass_flags(&p.cli, argv, 1), 6);
    assert_string_equal(argv[1], "--form");
    assert_string_equal(argv[2], "bf16");
    assert_string_equal(argv[3], "--only-set");
    assert_string_equal(argv[4], "--real");
    assert_string_equal(argv[5], "0.5");
    assert_int_equal(p.span_ms, 2000);
    assert_string_equal(cli_given(&p.cli, "text"), "x");
    assert_string_equal(cli_given(&p.cli, "only-set"), "");
    assert_null(cli_given(&p.cli, "number"));
}

static void a_verb_has_its_own_arguments_and_flags(void **state)
{
    static const struct cli_verb verbs[] = {
        {"ls", 0, 0, NULL}, {"set", 1, 1, "the name"}, {"rm", 1, 2, "the name"}};
    static const struct cli_body body = {
        .usage = "Usage: heddle test ls\n", .examples = "", .run = nothing, CLI_VERBS(verbs)};
    static const struct cli_command of_verbs = {.name = "test", .body = &body};
    static const char *const right[] = {"ls", "set a --only-set", "rm a b", "--only-set rm a"};
    static const char *const wrong[] = {"",        "lss",      "ls a",         "set",
                                        "set a b", "rm a b c", "ls --only-set"};
    static struct parsed p;

    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++)
        assert_int_equal(parse_for(&p, &of_verbs, right[i]), CLI_CONTINUE);
    assert_true(cli_is_verb(&p.cli, "rm"));
    for (size_t i = 1; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(parse_for(&p, &of_verbs, wrong[i]), CLI_USAGE);
}

static int run_described(struct cli *cli, int argc, char **argv)
{
    static struct parsed p;
    struct cli_described *described = cli->described;

    p.cli.described = described;
    const struct cli_flag flags[] = {
        {"yes", 'y', CLI_FLAG_BOOL, &p.yes, .help = "does not ask"},
        {"text", 't', CLI_FLAG_TEXT, &p.text, "T", .joins = true},
        {"number", 0, CLI_FLAG_INT, &p.number, "N", "of both\nof them", .min = 1, .max = 10},
        {"hidden", 0, CLI_FLAG_TEXT, &p.text, "H", .help = NULL},
        {"-o json", .kind = CLI_FLAG_NOTE, .help = "whole"},
    };
    return cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 0, 2);
}

static void a_help_text_is_made_of_the_flags(void **state)
{
    static const struct cli_body body = {.usage = "Usage: heddle test\n",
                                         .about = "Tests.\n",
                                         .notes = "More.\n",
                                         .examples = "heddle test\nheddle test -y",
                                         .run = run_described};
    static const struct cli_command described = {.name = "test", .body = &body};
    struct hd_text out = {0};

    cli_add_help(&described, &out);
    /* the widest label of one flag has 9 columns; that of two flags begins its text 2 behind it */
    assert_string_equal(out.data, "Usage: heddle test\n\nTests.\n\n"
                                  "  -y, --yes  does not ask\n"
                                  "  -t, --text T, --number N  of both\n"
                                  "             of them\n"
                                  "  -o json    whole\n"
                                  "\nMore.\n\nExample:\n  heddle test\n  heddle test -y\n");
    hd_text_free(&out);
}

static char *help_of(const struct cli_command *of)
{
    struct hd_text help = {0};

    cli_add_help(of, &help);
    assert_false(help.failed);
    return help.data;
}

static void every_verb_has_help_with_an_example(void **state)
{
    for (size_t i = 0; i < cli_command_count; i++) {
        char usage[64], *help = help_of(&cli_commands[i]);

        (void)snprintf(usage, sizeof usage, "Usage: heddle %s ", cli_commands[i].name);
        assert_true(hd_text_starts(help, usage));
        (void)snprintf(usage, sizeof usage, "\nExample:\n  heddle %s ", cli_commands[i].name);
        assert_non_null(strstr(help, usage));
        free(help);
    }
}

/* Goal: nothing that a command takes is a secret. Method: a flag without a line of its own is in the
 * usage or in a paragraph, and so is each verb. */
static void every_help_names_each_flag_and_verb(void **state)
{
    for (size_t i = 0; i < cli_command_count; i++) {
        struct cli_described d = {.count = 0};
        char word[96], *help = help_of(&cli_commands[i]);

        cli_describe(&cli_commands[i], &d);
        assert_true(d.count >= 6); /* those of every command */
        for (size_t f = 0; f < d.own_count; f++) {
            (void)snprintf(word, sizeof word, "--%s", d.flags[f].name);
            if (d.flags[f].kind != CLI_FLAG_NOTE && !strstr(help, word))
                fail_msg("heddle %s takes %s, which its help lacks", cli_commands[i].name, word);
            if (d.flags[f].kind != CLI_FLAG_NOTE && d.flags[f].kind != CLI_FLAG_BOOL)
                assert_non_null(d.flags[f].word);
        }
        for (size_t v = 0; v < cli_commands[i].body->verb_count; v++) {
            (void)snprintf(word, sizeof word, "heddle %s %s", cli_commands[i].name,
                           cli_commands[i].body->verbs[v].name);
            assert_non_null(strstr(cli_commands[i].body->usage, word));
            assert_true(cli_commands[i].body->verbs[v].missing ||
                        !cli_commands[i].body->verbs[v].min_args);
        }
        free(help);
    }
}

static void a_help_text_is_a_manual_page(void **state)
{
    static const char help[] = "Usage: heddle queue ls|rm NAME\n"
                               "       heddle queue set NAME\n"
                               "\n"
                               "Words.\n"
                               "\n"
                               "  -w, --watch        then follow\n"
                               "                     the job\n"
                               "  --a FILE, --b X    two\n"
                               "  -o json            one\n"
                               "\n"
                               "Example:\n"
                               "  heddle queue ls -x\n";
    struct hd_text out = {0};

    page_manual("heddle-queue", 1, "sets queues", help, "", "1.2", &out);
    assert_string_equal(out.data, ".TH HEDDLE-QUEUE 1 \"\" \"Heddle 1.2\" \"Heddle\"\n"
                                  ".SH NAME\nheddle\\-queue \\- sets queues\n"
                                  ".SH SYNOPSIS\n.nf\nheddle queue ls|rm NAME\n"
                                  "heddle queue set NAME\n.fi\n"
                                  ".SH DESCRIPTION\n.PP\nWords.\n.SH OPTIONS\n"
                                  ".TP\n\\fB\\-w, \\-\\-watch\\fR\nthen follow\nthe job\n"
                                  ".TP\n\\fB\\-\\-a FILE, \\-\\-b X\\fR\ntwo\n"
                                  ".TP\n\\fB\\-o json\\fR\none\n"
                                  ".SH EXAMPLE\n.nf\nheddle queue ls \\-x\n.fi\n");
    hd_text_free(&out);
}

static void a_bundle_has_no_secrets(void **state)
{
    static const char text[] =
        "ann 3f9a0c1d2e4b5a6978f0e1d2c3b4a5960718293a4b5c6d7e8f9012345678abcd\n"
        "{\"token\": \"hunter2\", \"token_file\": \"/etc/heddle/users\"}\n"
        "API_KEY=abc password: x y\n"
        "password=p@ssw0rd, secret: \"a b.c\", Authorization: Bearer ab.c-1\n"
        "a token of 16: 0a1b2c3d4e5f6071\n"
        "tokens per second 98123.4, rank 3 of job 7 on gpu-node-17: a sentence without secrets\n";
    struct hd_text out = {0}, tar = {0};

    debug_redact(text, sizeof text - 1, &out);
    assert_string_equal(
        out.data, "ann [removed]\n"
                  "{\"token\": \"[removed]\", \"token_file\": \"/etc/heddle/users\"}\n"
                  "API_KEY=[removed] password: [removed] y\n"
                  "password=[removed], secret: \"[removed]\", Authorization: [removed] [removed]\n"
                  "a token of 16: [removed]\n"
                  "tokens per second 98123.4, rank 3 of job 7 on gpu-node-17: a sentence without "
                  "secrets\n");
    debug_add_member(&tar, "a", "xyz", 3, 0);
    assert_int_equal(tar.len_bytes, 1024); /* a header and one block */
    assert_memory_equal(tar.data + 257,
                        "ustar\0"
                        "00",
                        8);
    assert_memory_equal(tar.data + 512, "xyz\0", 4);
    hd_text_free(&out);
    hd_text_free(&tar);
}

/* 24 lines of 80 columns: the smallest terminal that people use. */
static void every_help_fits_one_screen(void **state)
{
    for (size_t i = 0; i < cli_command_count; i++) {
        char *help = help_of(&cli_commands[i]);
        int lines = 0;

        for (const char *p = help, *end; *p; p = end + 1, lines++) {
            end = strchr(p, '\n');
            assert_non_null(end);
            assert_in_range(end - p, 0, 80);
        }
        assert_in_range(lines, 5, 24);
        free(help);
    }
}

/* The contract of DESIGN, in its order. */
static void exit_codes_are_what_scripts_rely_on(void **state)
{
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

    assert_string_equal(cli_job_state(HEDDLE__V1__JOB_STATE__JOB_STATE_QUEUED, word), "queued");
    assert_string_equal(cli_job_state(HEDDLE__V1__JOB_STATE__JOB_STATE_CANCELLED, word),
                        "cancelled");
    assert_string_equal(show_word(&heddle__v1__attempt_state__descriptor,
                                  HEDDLE__V1__ATTEMPT_STATE__ATTEMPT_STATE_STARTING, word),
                        "starting");
    assert_string_equal(show_word(&heddle__v1__end_cause__descriptor,
                                  HEDDLE__V1__END_CAUSE__END_CAUSE_NODE_LOST, word),
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

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cli_format_count(rows[i].count, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void a_word_is_written_as_a_shell_reads_it(void **state)
{
    static const char *const rows[][2] = {{"/a/b-1.2_c", "/a/b-1.2_c"},
                                          {"a b", "'a b'"},
                                          {"it's", "'it'\\''s'"},
                                          {"", "''"},
                                          {"$x;*", "'$x;*'"}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_text out = {0};

        cli_add_quoted(&out, rows[i][0]);
        assert_string_equal(out.data, rows[i][1]);
        hd_text_free(&out);
    }
}

static void control_characters_never_reach_a_terminal(void **state)
{
    struct hd_text out = {0};

    cli_add_clean(&out, "a\033[31mb\r\n\x7f"
                        "caf\xc3\xa9\xc2\x9b"
                        "d");
    assert_string_equal(out.data, "a?[31mb???"
                                  "caf\xc3\xa9?d");
    hd_text_free(&out);
}

/* Each of these moves, hides or ends what a terminal shows beside it; their neighbours stay. */
static void characters_that_reorder_or_hide_text_never_reach_a_terminal(void **state)
{
    static const char *const hidden[] = {"\u00AD", "\u061C",     "\u180E",    "\u200B", "\u200D",
                                         "\u200E", "\u200F",     "\u2028",    "\u2029", "\u202A",
                                         "\u202E", "\u2060",     "\u2066",    "\u2069", "\uFEFF",
                                         "\uFFF9", "\U000E0001", "\U000E007F"};
    static const char *const shown[] = {" ",      "\u00A0", "\u00AC", "\u061B", "\u200A",
                                        "\u2010", "\u2027", "\u2030", "\u20AC", "\U0001F600"};
    struct hd_text out = {0};

    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        hd_text_clear(&out);
        cli_add_clean(&out, hidden[i]);
        assert_string_equal(out.data, "?");
    }
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        hd_text_clear(&out);
        cli_add_clean(&out, shown[i]);
        assert_string_equal(out.data, shown[i]);
    }
    hd_text_free(&out);
}

static void users_are_named_where_they_are_known(void **state)
{
    struct hd_text out = {0};

    /* user 0 has this name on every system that the tests run on; 4294967294 has none */
    cli_add_people(&out, "uid:0 and uid:4294967294, uid:x\n");
    assert_string_equal(out.data, "uid 0 (root) and uid 4294967294, uid:x?");
    hd_text_free(&out);
}

static void text_is_cut_by_columns(void **state)
{
    static const struct {
        int columns;
        const char *text;
    } rows[] = {{12, "caf\xc3\xa9 au lait"},
                {11, "caf\xc3\xa9 au ..."},
                {7, "caf\xc3\xa9..."},
                {6, "caf..."},
                {3, "..."},
                {2, ".."},
                {0, ""}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_text out = {0};

        cli_add_cut(&out, "caf\xc3\xa9 au lait", rows[i].columns);
        assert_string_equal(out.data, rows[i].text);
        hd_text_free(&out);
    }
}

/* ---- processes ---- */

static void a_child_and_what_it_left_behind_are_ended(void **state)
{
    /* the shell leaves a sleep in a session of its own, which ignores SIGTERM */
    const char *argv[] = {"/bin/sh", "-c", "(trap '' TERM; setsid sleep 600 & ) ; exit 3", NULL};
    struct process child;

    assert_int_equal(process_adopt_orphans(), HD_OK);
    assert_int_equal(process_start(argv, "/dev/null", &child), HD_OK);
    while (!process_has_ended(&child))
        continue;
    assert_int_equal(process_explain(&child), HD_IO);
    assert_string_equal(hd_err_message(), "/bin/sh ended with status 3; its log is /dev/null");
    process_stop_all(200); /* returns only when there is no child left */
}

static void a_program_that_is_not_there_is_named(void **state)
{
    char log[256];
    const char *argv[] = {"/nonexistent/program", NULL};
    struct process child;
    char expected[512];
    int fd;

    (void)snprintf(log, sizeof log, "%.200s/log-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    fd = mkstemp(log);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(process_start(argv, log, &child), HD_OK);
    while (!process_has_ended(&child))
        continue;
    (void)process_explain(&child);
    (void)snprintf(expected, sizeof expected,
                   "/nonexistent/program ended with status 127; its log is %s: cannot start "
                   "/nonexistent/program: No such file or directory",
                   log);
    assert_string_equal(hd_err_message(), expected);
    (void)unlink(log);
}

/* The timeouts of tries are 1.5 s, 3 s, 4.5 s ...; after three tries that took all of theirs, 1 s
 * of the 10 s is left, and the fourth, of 6 s, gets no more. */
static void a_try_to_connect_ends_within_the_time_for_all_tries(void **state)
{
    assert_int_equal(cli_connect_timeout_ms(0, 10000), 1500);
    assert_int_equal(cli_connect_timeout_ms(1, 8500), 3000);
    assert_int_equal(cli_connect_timeout_ms(2, 5500), 4500);
    assert_int_equal(cli_connect_timeout_ms(3, 1000), 1000);
}

/* ---- other names of commands ---- */

static bool is_command(const char *name, size_t len)
{
    for (size_t i = 0; i < cli_command_count; i++)
        if (strlen(cli_commands[i].name) == len && memcmp(cli_commands[i].name, name, len) == 0)
            return true;
    return false;
}

static void words_of_other_tools_are_answered_with_the_command_that_does_it(void **state)
{
    static const struct {
        const char *words, *command;
    } cases[] = {
        {"train run torchrun accelerate deepspeed start launch pretrain sft", "heddle local"},
        {"train run sbatch srun qsub apply create", "heddle submit"},
        {"status ps ls list squeue qstat sacct get", "heddle jobs"},
        {"describe info inspect", "heddle show"},
        {"stop kill scancel qdel abort", "heddle cancel"},
        {"pause suspend", "heddle hold"},
        {"continue retry restart", "heddle resume"},
        {"delete remove", "heddle rm"},
        {"sinfo hosts", "heddle nodes"},
        {"cordon", "heddle drain"},
        {"uncordon", "heddle undrain"},
        {"log", "heddle logs"},
        {"tail follow monitor", "heddle watch"},
        {"talk converse", "heddle chat"},
        {"infer predict sample", "heddle generate"},
        {"vllm server", "heddle serve"},
        {"evaluate lm_eval benchmark", "heddle eval"},
        {"export convert merge save ckpt", "heddle checkpoint"},
        {"download pull hf", "heddle fetch"},
        {"tokenize preprocess dataset", "heddle data"},
        {"estimate memory dry-run", "heddle plan"},
        {"check lint", "heddle validate"},
        {"schema params", "heddle keys"},
        {"nvidia-smi dashboard ui gpus", "heddle top"},
        {"login", "heddle token"},
        {"sprio why", "heddle explain"},
        {"sshare quota", "heddle limits"},
        {"init", "heddle-controller init"},
        {"join", "heddled join"},
        {"doctor", "heddled --doctor"},
        {"context", "heddle config"},
        {"sweep array", "heddle submit"},
        {"bench nccl-test", "heddle probe"},
        {"disk df", "heddle du"},
        {"gc cleanup", "heddle checkpoint rm"},
        {"mlflow", "heddle track"},
        {"models", "heddle fetch"},
        {"qrls", "heddle release"},
    };
    char near[CLI_NEAREST_MAX];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (const char *word = cases[i].words; *word; word += strspn(word, " ")) {
            const size_t len = strcspn(word, " ");
            char name[32];

            (void)snprintf(name, sizeof name, "%.*s", (int)len, word);
            word += len;
            assert_non_null(cli_habit(name));
            if (!strstr(cli_habit(name), cases[i].command))
                fail_msg("%s: %s", name, cli_habit(name));
            assert_false(is_command(name, len));
            for (const char *at = cli_habit(name); (at = strstr(at, "heddle ")); at++)
                assert_true(is_command(at + 7, strcspn(at + 7, " ,;")));
        }
    assert_null(cli_habit("watch"));
    assert_null(cli_habit(""));
    assert_null(cli_habit("train run"));
    assert_string_equal(cli_nearest("sbumit", near), "submit");
    assert_string_equal(cli_nearest("shw", near), "show");
    assert_null(cli_nearest("proxy", near)); /* no probe */
    assert_null(cli_nearest("taint", near)); /* no train */
}

/* Goal: who mistypes behind "heddle node" is shown "drain", a command of one word, too. */
static void a_noun_has_the_verbs_of_its_own_and_of_commands(void **state)
{
    struct hd_text verbs = {0};

    (void)state;
    cli_add_verbs("node", &verbs);
    assert_non_null(strstr(verbs.data, " undrain"));
    assert_non_null(strstr(verbs.data, " revoke"));
    hd_text_free(&verbs);
    assert_string_equal(cli_flag_habit("--jsonl"), "-o jsonl");
    assert_string_equal(cli_flag_habit("--json=x"), "-o json");
    assert_null(cli_flag_habit("--jsonx"));
}

static void expect_alias(const char *noun, const char *verb, bool skips, const char *name)
{
    char *words[] = {(char *)(uintptr_t)noun, (char *)(uintptr_t)verb, (char *)"7"};

    assert_int_equal(cli_replace_alias(words), skips);
    assert_string_equal(words[2], "7");
    assert_string_equal(words[1], name);
}

static void a_noun_and_a_verb_are_a_command(void **state)
{
    struct hd_text verbs = {0};

    cli_add_verbs("job", &verbs);
    assert_non_null(strstr(verbs.data, "list ls show "));
    for (char *verb = strtok(verbs.data, " "); verb; verb = strtok(NULL, " ")) {
        char *words[] = {(char *)"job", verb};

        assert_true(cli_replace_alias(words));
        assert_true(is_command(words[1], strlen(words[1])));
    }
    hd_text_free(&verbs);
    expect_alias("node", "show", true, "show-node");
    expect_alias("node", "list", true, "nodes");
    expect_alias("checkpoint", "du", true, "du");
    expect_alias("queue", "list", false, "ls"); /* a verb of heddle queue */
    expect_alias("recipe", "cp", false, "copy");
    expect_alias("node", "rm", false, "rm");
    expect_alias("node", "list2", false, "list2");
    expect_alias("queue", "cp", false, "cp");
}

RUN_CASES()
