/* base: the promises of the bottom room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"

/* Goal: the generator is the published one. Method: the known answers of Random123 for
 * Philox4x32-10. */
static void philox_gives_the_published_answers(void **state)
{
    uint32_t r[4];

    (void)state;
    hd_random_philox(0, 0, 0, r);
    assert_int_equal(r[0], 0x6627e8d5);
    assert_int_equal(r[1], 0xe169c58d);
    assert_int_equal(r[2], 0xbc57ac4c);
    assert_int_equal(r[3], 0x9b00dbd8);
    hd_random_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, r);
    assert_int_equal(r[0], 0x408f276d);
    assert_int_equal(r[1], 0x41c83b0e);
    assert_int_equal(r[2], 0xa20bc7c6);
    assert_int_equal(r[3], 0x6d5451fd);
}

static void permutation_visits_everything_once(void **state)
{
    static const uint64_t counts[] = {1, 2, 3, 5, 17, 64, 1000, 4097};

    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        unsigned char *seen = calloc(counts[c], 1);

        assert_non_null(seen);
        for (uint64_t i = 0; i < counts[c]; i++) {
            uint64_t p = hd_random_permute(7, counts[c], i);

            assert_true(p < counts[c]);
            assert_int_equal(seen[p]++, 0);
        }
        free(seen);
    }
}

/* Goal: weights start with the spread that was asked for. Method: moments of 100000 samples; the
 * standard error of the mean is 1/316, of the variance sqrt(2)/316; five of them are allowed. */
static void normal_numbers_have_mean_0_and_variance_1(void **state)
{
    double sum = 0, squares = 0;
    const int n = 100000;

    (void)state;
    for (int i = 0; i < n; i++) {
        double x = hd_random_normal(hd_random_key(1, hd_random_hash("w")), (uint64_t)i);

        sum += x;
        squares += x * x;
    }
    assert_true(sum / n < 5 / 316.0 && sum / n > -5 / 316.0);
    assert_true(squares / n - 1 < 5 * 1.42 / 316 && squares / n - 1 > -5 * 1.42 / 316);
}

static void utf8_refuses_what_the_rfc_refuses(void **state)
{
    (void)state;
    assert_true(hd_text_is_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10));
    assert_false(hd_text_is_utf8("\xff\xfe", 2));
    assert_false(hd_text_is_utf8("\xC0\x80", 2));         /* overlong */
    assert_false(hd_text_is_utf8("\xED\xA0\x80", 3));     /* surrogate */
    assert_false(hd_text_is_utf8("\xF4\x90\x80\x80", 4)); /* above U+10FFFF */
    assert_false(hd_text_is_utf8("\xE2\x82", 2));         /* cut short */
    assert_false(hd_text_is_utf8("a\0b", 3));
}

static void an_end_is_found_at_the_end_alone(void **state)
{
    (void)state;
    assert_true(hd_text_ends("a.npy", ".npy"));
    assert_false(hd_text_ends("a.npyx", ".npy"));
    assert_false(hd_text_ends("npy", ".npy")); /* shorter than what is looked for */
}

static void arena_keeps_its_limit_and_remembers_failure(void **state)
{
    struct hd_arena arena;

    (void)state;
    hd_arena_init(&arena, 1000);
    assert_non_null(hd_arena_alloc(&arena, 900));
    assert_null(hd_arena_alloc(&arena, 200));
    assert_true(hd_arena_failed(&arena));
    assert_null(hd_arena_alloc(&arena, 1));
    hd_arena_done(&arena);
    assert_null(hd_arena_array(&arena, SIZE_MAX / 2, 4));
    hd_arena_done(&arena);
}

static void atomic_write_replaces_whole_files(void **state)
{
    char dir[] = "/tmp/heddle-base-XXXXXX", path[64];
    struct hd_text text = {0};
    int a, b;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/x/y", dir);
    assert_int_equal(hd_file_make_dirs(path, 0700), HD_OK);
    (void)snprintf(path, sizeof path, "%s/x/y/f", dir);
    assert_int_equal(hd_file_write_atomic(path, "one", 3, 0600), HD_OK);
    assert_int_equal(hd_file_write_atomic(path, "two!", 4, 0600), HD_OK);
    assert_int_equal(hd_file_read(path, 100, &text), HD_OK);
    assert_string_equal(text.data, "two!");
    hd_text_clear(&text);
    assert_int_equal(hd_file_read(path, 3, &text), HD_LIMIT);
    assert_int_equal(hd_file_lock(path, &a), HD_OK);
    assert_int_equal(hd_file_lock(path, &b), HD_CONFLICT);
    close(a);
    hd_text_free(&text);
    assert_int_equal(hd_file_remove_tree(dir), HD_OK);
    assert_false(hd_file_exists(dir));
}

static void numbers_are_read_whole_or_not_at_all(void **state)
{
    int64_t i = 0;
    double d = 0;

    (void)state;
    assert_int_equal(hd_text_to_int64("42", 0, 100, &i), HD_OK);
    assert_int_equal(i, 42);
    assert_int_equal(hd_text_to_int64("42x", 0, 100, &i), HD_INVALID);
    assert_int_equal(hd_text_to_int64("", 0, 100, &i), HD_INVALID);
    assert_int_equal(hd_text_to_int64("101", 0, 100, &i), HD_INVALID);
    assert_int_equal(hd_text_to_double("1e-3", 0, 1, &d), HD_OK);
    assert_int_equal(hd_text_to_double("nan", 0, 1, &d), HD_INVALID);
}

static void spans_and_times_read_like_a_person_says_them(void **state)
{
    char text[HD_CLOCK_TEXT_MAX];

    (void)state;
    hd_clock_format_span(245000, text);
    assert_string_equal(text, "4m05s");
    hd_clock_format_utc(1700000000123, text); /* date -u -d @1700000000 */
    assert_string_equal(text, "2023-11-14T22:13:20.123Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(permutation_visits_everything_once),
        cmocka_unit_test(normal_numbers_have_mean_0_and_variance_1),
        cmocka_unit_test(utf8_refuses_what_the_rfc_refuses),
        cmocka_unit_test(an_end_is_found_at_the_end_alone),
        cmocka_unit_test(arena_keeps_its_limit_and_remembers_failure),
        cmocka_unit_test(atomic_write_replaces_whole_files),
        cmocka_unit_test(numbers_are_read_whole_or_not_at_all),
        cmocka_unit_test(spans_and_times_read_like_a_person_says_them),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
