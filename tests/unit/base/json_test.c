/* json: what is accepted, what is refused, and that written text reads back. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tests/program/test.h"

static const struct hd_json_limits limits = {.values_max = 20, .depth_max = 4};

static enum hd_status status_of_bytes(const char *text, size_t size_bytes)
{
    const struct hd_json *root;
    struct hd_arena arena;
    enum hd_status st;
    char *exact =
        malloc(size_bytes + !size_bytes); /* so that a sanitizer sees reads past the end */

    assert_non_null(exact);
    memcpy(exact, text, size_bytes);
    hd_arena_init(&arena, 1 << 20);
    st = hd_json_parse(&arena, exact, size_bytes, &limits, &root);
    hd_arena_done(&arena);
    free(exact);
    return st;
}

static enum hd_status status_of(const char *text)
{
    return status_of_bytes(text, strlen(text));
}

static void values_of_every_kind_are_read(void **state)
{
    static const char text[] =
        " {\"a\": [1, -2.5e+3, true, false, null], \"b\": {}, \"c\": \"x\"} ";
    const struct hd_json *root = NULL, *a;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, text, sizeof text - 1, &limits, &root), HD_OK);
    assert_int_equal(root->kind, HD_JSON_OBJECT);
    assert_int_equal(root->count, 3);
    a = hd_json_member(root, "a");
    assert_int_equal(a->count, 5);
    assert_string_equal(a->first->next->text, "-2.5e+3");
    assert_int_equal(a->first->next->next->kind, HD_JSON_TRUE);
    assert_int_equal(a->first->next->next->next->kind, HD_JSON_FALSE);
    assert_int_equal(a->first->next->next->next->next->kind, HD_JSON_NULL);
    assert_null(hd_json_member(root, "b")->first);
    assert_string_equal(hd_json_member(root, "c")->text, "x");
    assert_null(hd_json_member(root, "d"));
    hd_arena_done(&arena);
    assert_int_equal(status_of("\xef\xbb\xbf{}"), HD_OK); /* a byte order mark */
}

static void what_the_grammar_forbids_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        " ",
        "\xef\xbb\xbf",
        "{} \xef\xbb\xbf",
        "{",
        "[1,]",
        "[1 2]",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "01",
        "-",
        "1.",
        ".5",
        "+1",
        "1e",
        "nul",
        "tru",
        "\"a",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\\u0000\"",
        "\"a\nb\"",
        "1 1",
        "[1]]",
        "'a'",
        "NaN",
        "Infinity",
        "{\"a\":1,\"b\":2,\"a\":3}",
        "\"\xC0\x80\"",
        "\"\xff\"",
        "\"\xE2\x82\"",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(status_of(bad[i]), HD_INVALID);
    assert_int_equal(status_of_bytes("\"a\0b\"", 5), HD_INVALID);
    assert_int_equal(status_of_bytes("1\0", 2), HD_INVALID);
}

static void limits_hold_exactly(void **state)
{
    assert_int_equal(status_of("[[[[]]]]"), HD_OK); /* depth 4 */
    assert_int_equal(status_of("[[[[[]]]]]"), HD_LIMIT);
    /* the array and 19 numbers are 20 values */
    assert_int_equal(status_of("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]"), HD_OK);
    assert_int_equal(status_of("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]"), HD_LIMIT);
}

static void every_cut_of_a_good_text_is_refused(void **state)
{
    static const char text[] = "{\"k\\u20ac\":[1,-2e5,\"\\ud83d\\ude00\",null,true]}";

    assert_int_equal(status_of(text), HD_OK);
    for (size_t n = 0; n < sizeof text - 1; n++)
        assert_int_equal(status_of_bytes(text, n), HD_INVALID);
}

static void escapes_are_decoded(void **state)
{
    static const char text[] = "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"";
    const struct hd_json *root = NULL;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, text, sizeof text - 1, &limits, &root), HD_OK);
    assert_string_equal(root->text, "\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
    hd_arena_done(&arena);
}

static void numbers_become_int64_only_when_they_are(void **state)
{
    static const char text[] =
        "{\"max\":9223372036854775807,\"over\":9223372036854775808,\"half\":0.5,\"text\":\"1\"}";
    const struct hd_json *root = NULL;
    struct hd_arena arena;
    int64_t value = 0;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, text, sizeof text - 1, &limits, &root), HD_OK);
    assert_int_equal(hd_json_need_int64(root, "max", 0, INT64_MAX, &value), HD_OK);
    assert_true(value == INT64_MAX);
    assert_int_equal(hd_json_need_int64(root, "max", 0, 10, &value), HD_INVALID);
    assert_int_equal(hd_json_need_int64(root, "over", 0, INT64_MAX, &value), HD_INVALID);
    assert_int_equal(hd_json_need_int64(root, "half", 0, 10, &value), HD_INVALID);
    assert_int_equal(hd_json_need_int64(root, "text", 0, 10, &value), HD_INVALID);
    assert_int_equal(hd_json_need_int64(root, "none", 0, 10, &value), HD_INVALID);
    assert_string_equal(hd_err_message(), "'none' is missing");
    hd_arena_done(&arena);
}

/* Goal: a file that is no JSON at all is told by what it is. */
static void what_is_no_json_is_told_by_its_beginning(void **state)
{
    static const char *const rows[][2] = {
        {"", "the text is empty"},
        {"version https://git-lfs.github.com/spec/v1", "git lfs pull"},
        {"<html>", "a page of HTML"},
        {"\xff\xfe{", "text in UTF-16"},
        {"\x1f\x8b\x08", "a gzip file"},
        {"{\"a\": <", "byte 6: a value is expected here"},
    };
    const struct hd_json_limits few = {.values_max = 10, .depth_max = 4};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hd_json *root = NULL;
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        assert_int_equal(hd_json_parse(&arena, rows[i][0], strlen(rows[i][0]), &few, &root),
                         HD_INVALID);
        if (!strstr(hd_err_message(), rows[i][1]))
            fail_msg("'%s' does not say '%s'", hd_err_message(), rows[i][1]);
        hd_arena_done(&arena);
    }
}

static void written_text_reads_back(void **state)
{
    static const char odd[] = "a\"b\\c\nd\te\x01\x1f\xE2\x82\xAC";
    const struct hd_json *root = NULL;
    struct hd_text out = {0};
    struct hd_json_writer w = {.out = &out};
    struct hd_arena arena;

    hd_json_begin(&w, NULL, '{');
    hd_json_add_string(&w, odd, odd);
    hd_json_begin(&w, "list", '[');
    hd_json_add_line(&w);
    hd_json_add_int64(&w, NULL, INT64_MIN);
    hd_json_add_line(&w);
    hd_json_begin(&w, NULL, '[');
    hd_json_end(&w, ']');
    hd_json_end(&w, ']');
    hd_json_add_int64(&w, "last", 7);
    hd_json_end(&w, '}');
    assert_false(out.failed);
    assert_non_null(strstr(out.data, "\"list\":[\n-9223372036854775808,\n[]],\"last\":7}"));

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_json_parse(&arena, out.data, out.len_bytes, &limits, &root), HD_OK);
    assert_string_equal(root->first->key, odd);
    assert_string_equal(root->first->text, odd);
    hd_arena_done(&arena);
    hd_text_free(&out);
}

static void reals_are_written_short_and_exact(void **state)
{
    struct hd_text out = {0};
    struct hd_json_writer writer = {.out = &out};

    hd_json_begin(&writer, NULL, '[');
    hd_json_add_real(&writer, NULL, 0.1);
    hd_json_add_real(&writer, NULL, 1.0 / 3); /* needs 16 digits */
    hd_json_add_real(&writer, NULL, -1e300 * 1e300);
    hd_json_add_bool(&writer, NULL, true);
    hd_json_add_bool(&writer, NULL, false);
    hd_json_add_null(&writer, NULL);
    hd_json_end(&writer, ']');
    assert_string_equal(out.data, "[0.1,0.3333333333333333,null,true,false,null]");
    hd_text_free(&out);
}

static void arena_limit_bounds_what_hostile_text_takes(void **state)
{
    const struct hd_json_limits wide = {.values_max = 1000000, .depth_max = 4};
    const struct hd_json *root;
    struct hd_text text = {0};
    struct hd_arena arena;

    hd_text_add(&text, "[1");
    for (int i = 0; i < 100000; i++)
        hd_text_add(&text, ",1");
    hd_text_add(&text, "]");
    hd_arena_init(&arena, 100000);
    assert_int_equal(hd_json_parse(&arena, text.data, text.len_bytes, &wide, &root), HD_NO_MEMORY);
    hd_arena_done(&arena);
    hd_text_free(&text);
}

/* Right: Python's json.loads, and json.dumps of what it read. */
static void the_last_of_one_name_counts_where_the_caller_says_so(void **state)
{
    static const struct json_repeated {
        const char *text, *read;
        bool overrode; /* the last member in the list */
    } cases[] = {
        {"{\"a\":1,\"a\":2}", "{\"a\":2}", true},
        {"{\"a\":1,\"b\":3,\"a\":2}", "{\"b\":3,\"a\":2}", true},
        {"{\"a\":1,\"a\":2,\"a\":[{\"b\":1,\"b\":null}],\"c\":0}", "{\"a\":[{\"b\":null}],\"c\":0}",
         false},
        {"{\"a\":1e-05,\"b\":-0.50}", "{\"a\":1e-05,\"b\":-0.50}", false},
        {"{\"\\u0061\":1,\"a\":true}", "{\"a\":true}", true},
    };
    const struct hd_json_limits last = {.values_max = 99, .depth_max = 9};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_text text = {0};
        struct hd_json_writer w = {.out = &text};
        const struct hd_json *root = NULL, *end;
        struct hd_arena arena;

        hd_arena_init(&arena, 0);
        assert_int_equal(
            hd_json_parse_repeated(&arena, cases[i].text, strlen(cases[i].text), &last, &root),
            HD_OK);
        hd_json_add_value(&w, NULL, root);
        assert_string_equal(text.data, cases[i].read);
        for (end = root->first; end->next; end = end->next)
            ;
        assert_int_equal(end->overrode, cases[i].overrode);
        hd_text_free(&text);
        hd_arena_done(&arena);
    }
    assert_int_equal(status_of(cases[0].text), HD_INVALID); /* elsewhere it is an error */
}

RUN_CASES()
