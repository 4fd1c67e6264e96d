/* The command line without a controller: flags, tables, the progress bar, the time left, lines of
 * steps, JSON forms, words. */
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
#include "controller/cli/debug.h"
#include "controller/cli/eta.h"
#include "controller/cli/lines.h"
#include "controller/cli/page.h"
#include "controller/cli/process.h"
#include "controller/cli/progress.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

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
        {"words", 0, CLI_FLAG_WORDS, &p->text, 0, 0},
    };
    (void)snprintf(p->words, sizeof p->words, "%s", line);
    for (char *word = strtok(p->words, " "); word; word = strtok(NULL, " "))
        p->argv[argc++] = word;
    return cli_parse(&p->cli, argc, p->argv, flags, 5, 0, 2);
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

    assert_int_equal(parse(&p, "--words="), CLI_CONTINUE);
    assert_string_equal(p.text, "");
    assert_int_equal(parse(&p, "-"), CLI_CONTINUE); /* standard input is an argument */
    assert_int_equal(p.cli.arg_count, 1);
}

static void wrong_flags_are_usage(void **state)
{
    static const char *const lines[] = {
        "--textt x", "-z",      "--text",  "--number 11",   "--number 0",    "--number x",
        "--yes=1",   "a b c",   "-o yaml", "--color maybe", "--tex x",       "--yesss",
        "--number=", "--text=", "-o",      "--set=",        "--token-file=",
    };
    static struct parsed p;

    (void)state;
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

    (void)state;
    for (size_t i = 0; i < sizeof twice / sizeof twice[0]; i++)
        assert_int_equal(parse(&p, twice[i]), CLI_USAGE);
    assert_int_equal(parse(&p, "--set a=1 --set a=2 -y --yes"), CLI_CONTINUE);
    assert_int_equal(p.list.count, 2);
    assert_int_equal(parse(&p, "-ta -- -tb"), CLI_CONTINUE); /* behind -- it is no flag */
}

/* As of an unset variable in quotes: no node, queue or file has this name. */
static void an_empty_argument_is_usage(void **state)
{
    static struct parsed p;
    char job[] = "7", empty[] = "", *argv[] = {job, empty};

    (void)state;
    assert_int_equal(parse(&p, ""), CLI_CONTINUE);
    assert_int_equal(cli_parse(&p.cli, 2, argv, NULL, 0, 0, 2), CLI_USAGE);
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

static struct cli_flag taken[64];
static size_t taken_count;

static void keep_flags(const struct cli_flag *flags, size_t count)
{
    taken_count = count;
    if (count)
        memcpy(taken, flags, count * sizeof flags[0]);
}

static bool takes(const struct page_flag *flag)
{
    static const char *const shared[] = {"controller", "token-file", "tls-ca", "tls-cert",
                                         "help",       "output",     "color",  "context"};

    for (size_t i = 0; i < taken_count; i++)
        if (flag->name[0] ? strcmp(taken[i].name, flag->name) == 0
                          : taken[i].letter == flag->letter)
            return (taken[i].kind == CLI_FLAG_BOOL) == !flag->value[0];
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (strcmp(shared[i], flag->name) == 0)
            return true;
    return !flag->name[0] && flag->letter == 'o';
}

static bool mentions(const struct page *page, const struct cli_flag *flag)
{
    char name[64];

    for (size_t i = 0; i < page->flag_count; i++)
        if (strcmp(page->flags[i].name, flag->name) == 0)
            return true;
    (void)snprintf(name, sizeof name, "--%s", flag->name);
    return strstr(page->help, name) != NULL; /* in the usage or a paragraph */
}

/* Goal: manual pages and completion, which are made of the help, say what a command takes. Method:
 * each flag of a help is one that some form of the command takes, with or without a value as the
 * help says, and each flag that a form takes is in its help. */
static void every_help_has_the_flags_that_its_command_takes(void **state)
{
    (void)state;
    for (size_t i = 0; i < cli_command_count; i++) {
        const struct cli_command *verb = &cli_commands[i];
        struct page page;
        bool found[PAGE_FLAGS_MAX] = {false};
        char name[64];

        (void)snprintf(name, sizeof name, "heddle %s", verb->name);
        page_read(name, verb->help, &page);
        for (size_t s = 0; s < (page.subcommand_count ? page.subcommand_count : 1); s++) {
            struct cli cli = {.command = verb, .tell_flags = keep_flags};
            char *words[] = {page.subcommands[s], (char *)"x", NULL};
            const int argc = page.subcommand_count ? 2 : 0;

            taken_count = SIZE_MAX;
            (void)verb->run(&cli, argc, words);
            if (taken_count == SIZE_MAX)
                fail_msg("%s %s parses no flags", verb->name, page.subcommands[s]);
            for (size_t f = 0; f < taken_count; f++)
                if (!mentions(&page, &taken[f]))
                    fail_msg("heddle %s takes --%s, which its help lacks", verb->name,
                             taken[f].name);
            for (size_t f = 0; f < page.flag_count; f++)
                found[f] |= takes(&page.flags[f]);
        }
        for (size_t f = 0; f < page.flag_count; f++)
            if (!found[f])
                fail_msg("heddle %s does not take --%s %s", verb->name, page.flags[f].name,
                         page.flags[f].value);
    }
}

static void a_page_is_taken_apart(void **state)
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
    struct page page;

    (void)state;
    page_read("heddle queue", help, &page);
    assert_int_equal(page.subcommand_count, 3);
    assert_string_equal(page.subcommands[2], "set");
    assert_int_equal(page.flag_count, 4); /* --watch, --a, --b, -o */
    assert_int_equal(page.flags[0].letter, 'w');
    assert_string_equal(page.flags[0].text, "then follow the job");
    assert_string_equal(page.flags[1].value, "FILE");
    assert_string_equal(page.flags[2].name, "b");
    assert_string_equal(page.flags[3].value, "json");
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

    (void)state;
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
    (void)state;
    for (size_t i = 0; i < cli_command_count; i++) {
        int lines = 0;

        for (const char *p = cli_commands[i].help, *end; *p; p = end + 1, lines++) {
            end = strchr(p, '\n');
            assert_non_null(end);
            assert_in_range(end - p, 0, 80);
        }
        assert_in_range(lines, 5, 24);
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

static void a_word_is_written_as_a_shell_reads_it(void **state)
{
    static const char *const rows[][2] = {{"/a/b-1.2_c", "/a/b-1.2_c"},
                                          {"a b", "'a b'"},
                                          {"it's", "'it'\\''s'"},
                                          {"", "''"},
                                          {"$x;*", "'$x;*'"}};

    (void)state;
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

    (void)state;
    cli_add_clean(&out, "a\033[31mb\r\n\x7f"
                        "caf\xc3\xa9\xc2\x9b"
                        "d");
    assert_string_equal(out.data, "a?[31mb???"
                                  "caf\xc3\xa9?d");
    hd_text_free(&out);
}

static void users_are_named_where_they_are_known(void **state)
{
    struct hd_text out = {0};

    (void)state;
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

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_text out = {0};

        cli_add_cut(&out, "caf\xc3\xa9 au lait", rows[i].columns);
        assert_string_equal(out.data, rows[i].text);
        hd_text_free(&out);
    }
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
                                        .validated = true,
                                        .validation_loss = 2.40123,
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

    (void)state;
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
                                   .validated = true,
                                   .validation_loss = 1e9,
                                   .left_ms = INT64_C(99) * 86400000};
    const struct progress *const rows[] = {&halfway, &large};

    (void)state;
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

    (void)state;
    assert_string_equal(line, " 50% ████░░░░  250/500  loss 2.3142  ETA 2m05s ");
    free(line);
}

static void what_was_not_reported_has_no_place(void **state)
{
    const struct progress none = {.steps = 500, .left_ms = -1};
    const struct progress some = {.step = 7, .steps = 500, .loss = 5.5, .lr = 0, .left_ms = -1};
    char *line = render_progress(&none, 60, false);

    (void)state;
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

    (void)state;
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

    (void)state;
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

    (void)state;
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

    (void)state;
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

    (void)state;
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

/* What is known of job 7 where these entries come. */
static const struct progress known = {.step = 120,
                                      .steps = 500,
                                      .loss = 2.5,
                                      .validated = true,
                                      .validation_step = 120,
                                      .validation_loss = 2.25};
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

    (void)state;
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

    (void)state;
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

    (void)state;
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
    lines_add_place(&out, &here, &attempt);
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
    lines_add_place(&out, &here, &attempt);
    assert_string_equal(out.data, "running on 1 cuda device: dp 1, micro-batch 4 x 3, bf16");
    hd_text_free(&out);
}

static void colour_marks_errors_and_ends(void **state)
{
    Heddle__V1__WatchJobResponse entry = HEDDLE__V1__WATCH_JOB_RESPONSE__INIT;
    Heddle__V1__JobEnd end = HEDDLE__V1__JOB_END__INIT;
    Heddle__V1__Event event = HEDDLE__V1__EVENT__INIT;
    struct lines coloured = timed;

    (void)state;
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
    assert_string_equal(hd_err_message(), "sh ended with status 3; its log is /dev/null");
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
    (void)snprintf(
        expected, sizeof expected,
        "program ended with status 127; its log is %s: cannot start program: No such file or "
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
        cmocka_unit_test(an_option_with_one_value_is_given_once),
        cmocka_unit_test(an_empty_argument_is_usage),
        cmocka_unit_test(colour_is_for_terminals_unless_asked_for),
        cmocka_unit_test(every_verb_has_help_with_an_example),
        cmocka_unit_test(every_help_fits_one_screen),
        cmocka_unit_test(every_help_has_the_flags_that_its_command_takes),
        cmocka_unit_test(a_page_is_taken_apart),
        cmocka_unit_test(a_bundle_has_no_secrets),
        cmocka_unit_test(exit_codes_are_what_scripts_rely_on),
        cmocka_unit_test(states_are_the_words_of_the_api),
        cmocka_unit_test(counts_are_short),
        cmocka_unit_test(a_word_is_written_as_a_shell_reads_it),
        cmocka_unit_test(control_characters_never_reach_a_terminal),
        cmocka_unit_test(columns_are_aligned_and_nothing_is_cut_without_a_terminal),
        cmocka_unit_test(the_last_column_is_cut_to_the_terminal),
        cmocka_unit_test(colour_does_not_disturb_alignment),
        cmocka_unit_test(users_are_named_where_they_are_known),
        cmocka_unit_test(text_is_cut_by_columns),
        cmocka_unit_test(the_progress_line_has_what_fits),
        cmocka_unit_test(no_width_makes_the_line_wrap),
        cmocka_unit_test(blocks_count_as_one_column_each),
        cmocka_unit_test(what_was_not_reported_has_no_place),
        cmocka_unit_test(the_time_left_is_not_known_before_a_step_was_timed),
        cmocka_unit_test(pauses_are_counted_by_how_many_are_due),
        cmocka_unit_test(a_change_of_speed_shows_within_some_twenty_steps),
        cmocka_unit_test(one_slow_step_among_fast_ones_is_no_change_of_speed),
        cmocka_unit_test(steps_are_logged_by_their_number),
        cmocka_unit_test(an_envelope_has_version_kind_and_items),
        cmocka_unit_test(a_step_is_a_line_with_all_its_numbers),
        cmocka_unit_test(a_step_of_experts_tells_how_tokens_fell_on_them),
        cmocka_unit_test(validation_events_and_end_have_their_types),
        cmocka_unit_test(people_are_told_what_concerns_them),
        cmocka_unit_test(an_attempt_is_placed_in_one_line),
        cmocka_unit_test(colour_marks_errors_and_ends),
        cmocka_unit_test(what_a_newer_controller_says_is_passed_over),
        cmocka_unit_test(a_child_and_what_it_left_behind_are_ended),
        cmocka_unit_test(a_program_that_is_not_there_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
