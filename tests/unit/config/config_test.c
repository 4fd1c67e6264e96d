/* Settings of a program: flags, a file, which of them wins, and what people are told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "tests/program/test.h"

enum { CONFIG = 1, DIR, LIMIT, QUIET, EPHEMERAL, OUTPUT, HELP, VERSION };

static const char *const usages[] = {"[OPTION]...", NULL};
static const struct hd_setting settings[] = {
    {CONFIG, "config", 0, "FILE", 0, NULL, "file"},
    {DIR, "state-dir", 0, "DIR", HD_SETTING_FILE | HD_SETTING_PATH, NULL, "where"},
    {LIMIT, "limit", 0, "N", HD_SETTING_FILE | HD_SETTING_LIVE, "7", "how many"},
    {QUIET, "quiet", 'q', NULL, HD_SETTING_FILE, NULL, "say less"},
    {EPHEMERAL, "ephemeral", 0, NULL, 0, NULL, "for a test"},
    {OUTPUT, "output", 'o', "FORMAT", 0, NULL, "table or json"},
    {HELP, "help", 0, NULL, 0, NULL, "this"},
    {VERSION, "version", 0, NULL, 0, NULL, "that"},
};
static const struct hd_program_table program = {
    .name = "prog",
    .summary = "does a thing",
    .usages = usages,
    .settings = settings,
    .setting_count = sizeof settings / sizeof settings[0],
    .notes = "A note.\n",
    .example = "prog --limit 3",
    .config_path = "/etc/prog.yaml",
};

static enum hd_status read_text(struct hd_config *c, const char *text)
{
    return hd_config_read_text(c, &program, "f.yaml", text, strlen(text));
}

static void assert_refused(const char *text, const char *message)
{
    struct hd_config c;

    assert_int_equal(read_text(&c, text), HD_INVALID);
    assert_string_equal(hd_err_message(), message);
    hd_config_done(&c);
}

static void a_mistake_in_the_file_has_its_line_and_a_remedy(void **state)
{
    assert_refused(
        "# one\nstate_dri: /x\n",
        "f.yaml:2: unknown key state_dri; did you mean state_dir? Else remove this line");
    assert_refused("zebra: 1\n",
                   "f.yaml:1: unknown key zebra; remove this line (config show lists the keys)");
    assert_refused("ephemeral: true\n", "f.yaml:1: ephemeral: can be given as the flag --ephemeral "
                                        "only; remove this line");
    assert_refused("limit: 1\nquiet: true\nlimit: 2\n",
                   "f.yaml:3: limit is given twice, first in line 1; remove one");
    assert_refused("limit: [1, 2]\n", "f.yaml:1: limit: expected one value, as in limit: N");
    assert_refused("quiet: yes\n", "f.yaml:1: quiet: say true or false");
    assert_refused("state_dir: here\n",
                   "f.yaml:1: state_dir: here is no absolute path; begin it with /");
    assert_refused("limit:\n", "f.yaml:1: limit: has no value; give one, or remove this line");
    assert_refused("- limit\n", "f.yaml:1: expected lines KEY: VALUE");
    assert_refused("limit: *a\n",
                   "f.yaml:1: aliases (*name) are not allowed; write the value again");
}

static void a_file_of_comments_says_nothing_and_is_fine(void **state)
{
    struct hd_text example = {0};
    struct hd_config c;

    assert_int_equal(read_text(&c, ""), HD_OK);
    hd_config_done(&c);
    hd_program_example_file(&program, &example);
    assert_non_null(strstr(example.data, "\n#limit: 7\n"));
    assert_null(strstr(example.data, "ephemeral"));
    assert_int_equal(read_text(&c, example.data), HD_OK);
    for (size_t i = 0; i < program.setting_count; i++)
        assert_null(c.values[i].text);
    hd_config_done(&c);
    hd_text_free(&example);
}

static enum hd_status refuse_limit(void *user, int key, const char *value)
{
    *(const char **)user = value;
    return key == LIMIT ? hd_err(HD_INVALID, "%s: too many", value) : HD_OK;
}

static void all_mistakes_are_kept_in_the_order_of_their_lines(void **state)
{
    static const char *const expected[] = {
        "f.yaml:1: limit: 9: too many",
        "f.yaml:2: unknown key zebra; remove this line (config show lists the keys)",
        "f.yaml:3: quiet: say true or false",
    };
    const char *seen = NULL;
    struct hd_config c;

    assert_int_equal(read_text(&c, "limit: 9\nzebra: 1\nquiet: yes\n"), HD_INVALID);
    assert_int_equal(hd_config_apply(&c, refuse_limit, &seen), HD_OK);
    assert_int_equal(c.mistake_count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(c.mistakes[i].text, expected[i]);
    assert_int_equal(hd_config_verdict(&c), HD_INVALID);
    assert_string_equal(hd_err_message(), expected[0]);
    hd_config_done(&c);
}

static void of_too_many_mistakes_those_of_the_first_lines_are_kept(void **state)
{
    enum { UNKNOWN = 22, FIRST = HD_CONFIG_MISTAKES_MAX - 2 };
    struct hd_text text = {0};
    const char *seen = NULL;
    struct hd_config c;

    for (int i = 0; i < UNKNOWN; i++)
        hd_text_add(&text, "%szebra%d: 1\n", i == FIRST ? "limit: 9\n" : "", i);
    assert_int_equal(read_text(&c, text.data), HD_INVALID);
    assert_int_equal(hd_config_apply(&c, refuse_limit, &seen), HD_OK);
    assert_int_equal(c.mistake_count, HD_CONFIG_MISTAKES_MAX);
    assert_int_equal(c.mistakes_left_out, UNKNOWN + 1 - HD_CONFIG_MISTAKES_MAX);
    /* the value's mistake was found last, in the last line but one of those that are told */
    assert_string_equal(c.mistakes[FIRST].text, "f.yaml:19: limit: 9: too many");
    assert_int_equal(c.mistakes[FIRST + 1].line, 20);
    hd_config_done(&c);
    hd_text_free(&text);
}

/* Writes the file that --config names. */
static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fputs(text, f) < 0, 0);
    assert_int_equal(fclose(f), 0);
}

static const char *temporary(void)
{
    static char path[256];

    (void)snprintf(path, sizeof path, "%s/config-test.yaml",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return path;
}

static void add_line(void *user, const char *line)
{
    hd_text_add(user, "%s\n", line);
}

static void a_flag_wins_and_each_value_knows_where_it_came_from(void **state)
{
    const char *path = temporary(), *seen = NULL;
    char *flags[] = {"--config", (char *)path, "-q", "word"};
    char *more[] = {"--config", (char *)path, "--limit=4", "--limit", "5"};
    char expected[512];
    struct hd_text out = {0};
    struct hd_config c;

    write_file(path, "state_dir: /x\nlimit: 3\n");
    assert_int_equal(hd_config_read(&c, &program, 4, flags), HD_OK);
    assert_int_equal(c.arg_count, 1);
    assert_string_equal(hd_config_get(&c, LIMIT), "3");
    assert_true(hd_config_is_on(&c, QUIET));
    assert_int_equal(hd_config_apply(&c, refuse_limit, &seen), HD_OK);
    assert_int_equal(hd_config_verdict(&c), HD_INVALID);
    (void)snprintf(expected, sizeof expected, "%s:2: limit: 3: too many", path);
    assert_string_equal(hd_err_message(), expected);
    hd_config_show(&c, false, &out);
    (void)snprintf(expected, sizeof expected,
                   "KEY        VALUE   FROM\n"
                   "state_dir  /x      %s:1\n"
                   "limit      3       %s:2\n"
                   "quiet      true    flag\n",
                   path, path);
    assert_string_equal(out.data, expected);
    hd_config_done(&c);

    assert_int_equal(hd_config_read(&c, &program, 5, more), HD_OK); /* beside limit: 3 */
    assert_string_equal(hd_config_get(&c, LIMIT), "5");             /* of two flags the last */
    assert_int_equal(hd_config_apply(&c, refuse_limit, &seen), HD_OK);
    assert_int_equal(hd_config_verdict(&c), HD_INVALID);
    assert_string_equal(hd_err_message(), "--limit: 5: too many");
    hd_text_clear(&out);
    hd_config_log_replaced(&c, add_line, &out);
    assert_string_equal(out.data, "--limit is given twice: 5 counts, and 4 does not\n");
    hd_config_done(&c);
    hd_text_free(&out);
    (void)remove(path);
}

static void wrong_flags_are_told_with_the_nearest(void **state)
{
    static const struct {
        char *words[2];
        const char *message;
    } cases[] = {
        {{"--stat-dir", "/x"}, "unknown flag --stat-dir; did you mean --state-dir?"},
        {{"-z", "/x"}, "unknown flag -z; see prog --help"},
        {{"--quiet=3", "/x"}, "--quiet is a switch: say --quiet, or --quiet=false"},
        {{"/x", "--limit"}, "--limit needs a value: N"},
        {{"--config", "/does/not/exist"},
         "--config /does/not/exist: no such file; give another one, or make it: an empty file is "
         "fine"},
    };
    struct hd_config c;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(hd_config_read(&c, &program, 2, (char *const *)cases[i].words),
                         HD_INVALID);
        assert_string_equal(hd_err_message(), cases[i].message);
        hd_config_done(&c);
    }
}

static void a_reload_says_what_changed_and_what_waits(void **state)
{
    struct hd_text said = {0};
    struct hd_config before, after;

    assert_int_equal(read_text(&before, "state_dir: /x\nlimit: 3\n"), HD_OK);
    assert_int_equal(read_text(&after, "state_dir: /y\nlimit: 3\n"), HD_OK);
    assert_int_equal(hd_config_compare(&before, &after, add_line, &said), 1);
    assert_string_equal(said.data, "state_dir: /x -> /y, waits for a restart\n");
    hd_config_done(&after);
    hd_text_clear(&said);
    assert_int_equal(read_text(&after, "state_dir: /x\n"), HD_OK);
    assert_int_equal(hd_config_compare(&before, &after, add_line, &said), 0);
    assert_string_equal(said.data, "limit: 3 -> (default), in force now\n");
    hd_text_clear(&said);
    assert_int_equal(hd_config_compare(&before, &before, add_line, &said), 0);
    assert_string_equal(said.data, "no setting of flags and configuration file has changed\n");
    hd_config_done(&before);
    hd_config_done(&after);
    hd_text_free(&said);
}

static void help_is_made_of_the_table(void **state)
{
    struct hd_text out = {0};

    hd_program_help(&program, &out);
    assert_string_equal(out.data, "Usage: prog [OPTION]...\n"
                                  "\n"
                                  "prog: does a thing\n"
                                  "\n"
                                  "  --config FILE       file\n"
                                  "  --state-dir DIR     where\n"
                                  "  --limit N           how many (default: 7)\n"
                                  "  -q, --quiet         say less\n"
                                  "  --ephemeral         for a test\n"
                                  "  -o, --output FORMAT table or json\n"
                                  "  --help              this\n"
                                  "  --version           that\n"
                                  "\n"
                                  "A note.\n"
                                  "\n"
                                  "Example:\n"
                                  "  prog --limit 3\n");
    hd_text_free(&out);
}

RUN_CASES()
