/* log: each line of JSON is one object, whatever the message is; the journal gets the level. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "tests/program/test.h"

static FILE *file, *before; /* `before` stays open: its number must not be that of the next */
static int saved;

/* From here on standard error is a file. */
static void catch (void)
{
    file = tmpfile();
    assert_non_null(file);
    saved = dup(STDERR_FILENO);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
}

static size_t caught(char *ret_text, size_t size)
{
    size_t count;

    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    rewind(file);
    count = fread(ret_text, 1, size - 1, file);
    ret_text[count] = '\0';
    if (before)
        (void)fclose(before);
    before = file;
    return count;
}

/* Returns a member of the one object that the line is. It lives until the next call. */
static const char *member(const char *line, const char *key)
{
    static struct hd_arena arena;
    const struct hd_json_limits limits = {.values_max = 5, .depth_max = 1};
    const struct hd_json *object = NULL;
    const char *value = NULL;

    hd_arena_done(&arena);
    hd_arena_init(&arena, 0);
    if (hd_json_parse(&arena, line, strlen(line), &limits, &object) ||
        hd_json_need_string(object, key, &value))
        fail_msg("%s: %s", line, hd_err_message());
    return value;
}

static void a_line_of_json_is_one_object(void **state)
{
    char text[8192], longest[4096];

    hd_log_init("heddled", HD_LOG_INFO);
    hd_log_set_json(true);
    catch ();
    hd_log(HD_LOG_WARN, "a \"quote\", a \\, a line\nbreak, \x01, gr\xc3\xbc\xc3\x9f"
                        "e, and \xff");
    (void)caught(text, sizeof text);
    assert_int_equal(strchr(text, '\n') - text, strlen(text) - 1);
    assert_string_equal(member(text, "message"),
                        "a \"quote\", a \\, a line\nbreak, \x01, gr\xc3\xbc\xc3\x9f"
                        "e, and ?");
    assert_string_equal(member(text, "level"), "warn");
    assert_string_equal(member(text, "program"), "heddled");
    assert_int_equal(strlen(member(text, "time")), strlen("2026-03-01T12:00:00.123Z"));

    memset(longest, '\n', sizeof longest - 1); /* six bytes each in JSON */
    longest[sizeof longest - 1] = '\0';
    catch ();
    hd_log(HD_LOG_ERROR, "%s", longest);
    (void)caught(text, sizeof text);
    assert_true(strlen(member(text, "message")) > 500); /* cut, and still an object */
    hd_log_set_json(false);
}

static void the_journal_gets_the_level_and_other_files_the_time(void **state)
{
    char stream[64], text[256];
    struct stat info;

    catch ();
    assert_int_equal(fstat(STDERR_FILENO, &info), 0);
    (void)snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)info.st_dev,
                   (unsigned long long)info.st_ino);
    assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
    hd_log_init("heddled", HD_LOG_INFO);
    hd_log(HD_LOG_ERROR, "lost");
    (void)caught(text, sizeof text);
    assert_string_equal(text, "<3>lost\n");

    catch (); /* the variable is inherited, and this is another file */
    hd_log_init("heddled", HD_LOG_INFO);
    hd_log(HD_LOG_ERROR, "lost");
    (void)caught(text, sizeof text);
    assert_non_null(strstr(text, "Z error heddled: lost\n"));
}

static void a_message_makes_no_line_and_no_colour(void **state)
{
    char text[256];

    assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
    catch ();
    hd_log_init("heddled", HD_LOG_INFO);
    hd_log(HD_LOG_ERROR, "a\tgr\xc3\xbc\xc3\x9f"
                         "e \x1b[31m\x7f\r\nb \xe2\x80\xae" /* U+202E: right to left from here */
                         "c\xe2\x80\x8b\xc2\x9b\xff" /* U+200B, U+009B, no UTF-8 */);
    (void)caught(text, sizeof text);
    assert_non_null(strstr(text, "Z error heddled: a\tgr\xc3\xbc\xc3\x9f"
                                 "e ?[31m???b ?c???\n"));
}

RUN_CASES()
