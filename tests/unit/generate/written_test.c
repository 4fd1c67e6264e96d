/* Text comes out once, whole characters at a time, and never the beginning of a stop text. The
 * tokenizer has one token per byte. */
#include <string.h>

#include "generate/written.h"
#include "tests/program/test.h"

static struct hd_tokenizer *bytes;

/* Adds `text` byte by byte; `safe` says how many bytes are safe behind each, as digits. */
static void write_text(struct hd_written *w, const char *text, const char *safe)
{
    for (size_t i = 0; text[i]; i++) {
        assert_int_equal(hd_written_add(w, bytes, (unsigned char)text[i]), HD_OK);
        if (w->safe != (size_t)(safe[i] - '0'))
            fail_msg("%s: %zu bytes are safe behind byte %zu, not %c", text, w->safe, i, safe[i]);
    }
}

static void characters_are_sent_whole(void **state)
{
    struct hd_written w = {.stop_count = 0};

    write_text(&w, "a\xc3\xa9\xe2\x82\xac", "113336"); /* a, e acute, euro sign */
    hd_written_free(&w);
    w = (struct hd_written){.stop_count = 0};
    write_text(&w,
               "\x80\xff\xc3"
               "a",
               "1224"); /* no characters: they wait for nothing but C3 */
    hd_written_free(&w);
    w = (struct hd_written){.stop_count = 0};
    write_text(&w, "\xc3", "0");
    hd_written_end(&w);
    assert_int_equal(w.safe, 1);
    hd_written_free(&w);
}

static void what_may_begin_a_stop_text_is_kept_back(void **state)
{
    static const char *const stops[] = {"END", "NDX"};
    struct hd_written w = {.stops = stops, .stop_count = 2};

    write_text(&w, "aEENaN", "112255"); /* "E", "EE", "EN", "ENa", "N" */
    hd_written_end(&w);
    assert_int_equal(w.safe, 6);
    hd_written_free(&w);
}

static void the_first_stop_text_ends_the_text(void **state)
{
    static const char *const stops[] = {"long stop!", "top"};
    struct hd_written w = {.stops = stops, .stop_count = 2};

    write_text(&w, "a long st", "122222222");
    assert_false(w.stopped);
    write_text(&w, "op", "28"); /* "top" is whole; "long stop!" began before it, but is not */
    assert_true(w.stopped);
    hd_written_free(&w);
}

static void json_gets_utf8_and_no_nul(void **state)
{
    /* behind the e acute: C3 alone, a surrogate (three bytes that begin nothing), the first two
     * bytes of a euro sign, and the first three of a character of four, each of which is one */
    static const char mixed[] = "a\0\xc3\xa9\xc3\n\xed\xa0\x80|\xe2\x82|\xf0\x9f\x98";
    struct hd_text text = {0};

    hd_written_to_utf8(mixed, sizeof mixed - 1, &text);
#define NONE "\xef\xbf\xbd"
    assert_string_equal(text.data, "a" NONE "\xc3\xa9" NONE "\n" NONE NONE NONE "|" NONE "|" NONE);
    hd_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {ALL_CASES};
    int failed;

    if (hd_tokenizer_open("bytes", &bytes))
        return 1;
    failed = cmocka_run_group_tests_name(CASES_NAME, tests, NULL, NULL);
    hd_tokenizer_close(bytes);
    return failed;
}
