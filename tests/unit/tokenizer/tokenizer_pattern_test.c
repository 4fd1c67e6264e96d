/* tokenizer_pattern: what Oniguruma matches with the patterns of patterns.txt in its texts, which
 * tests/interop/tokenizers/patterns.py recorded from Hugging Face tokenizers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "golden.h"
#include "tests/program/test.h"
#include "tokenizer/tokenizer_internal.h"

enum { TEXTS_MAX = 128, TEXT_BYTES_MAX = 256, FILE_BYTES_MAX = 1 << 20 };

static struct {
    unsigned char bytes[TEXT_BYTES_MAX];
    size_t count;
} texts[TEXTS_MAX];
static size_t text_count;
static struct hd_text file;

static void read_patterns(void)
{
    if (!hd_regex_is_present() || !hd_unicode_is_present())
        skip();
    if (file.data)
        return;
    assert_int_equal(hd_file_read(golden_path("../grid/patterns.txt"), FILE_BYTES_MAX, &file),
                     HD_OK);
    for (char *p = file.data; (p = strstr(p, "\ntext ")); text_count++) {
        unsigned byte = 0;

        assert_in_range(text_count, 0, TEXTS_MAX - 1);
        for (p += 6; *p != '\n'; p += 2) {
            assert_int_equal(sscanf(p, "%2x", &byte), 1);
            assert_in_range(texts[text_count].count, 0, TEXT_BYTES_MAX - 1);
            texts[text_count].bytes[texts[text_count].count++] = (unsigned char)byte;
        }
    }
}

static uint64_t fnv(uint64_t value, const uint32_t *numbers, size_t count)
{
    const unsigned char *p = (const unsigned char *)numbers;

    for (size_t i = 0; i < count * sizeof *numbers; i++)
        value = (value ^ p[i]) * UINT64_C(0x100000001B3);
    return value;
}

/* FNV-1a of: how many pieces the matches cut a text into, where each begins; how many matches are
 * not empty, from and to of each. */
static uint64_t digest_of_text(const struct hd_matcher *matcher, struct hd_regex_scratch *scratch,
                               size_t text, uint64_t value)
{
    uint32_t cuts[2 * TEXT_BYTES_MAX] = {0}, found[4 * TEXT_BYTES_MAX], counts[2] = {1, 0};
    const size_t n = texts[text].count;
    struct hd_match_walk walk = {
        .matcher = matcher, .scratch = scratch, .text = texts[text].bytes, .len_bytes = n};
    bool is = true;

    hd_regex_scratch_newer(scratch, hd_unicode_has_newer(texts[text].bytes, n));
    while (is) {
        size_t ends[2] = {0, 0};

        assert_int_equal(hd_match_next(&walk, &is, &ends[0], &ends[1]), HD_OK);
        for (int i = 0; is && i < 2; i++)
            if (ends[i] < n && ends[i] != cuts[counts[0] - 1])
                cuts[counts[0]++] = (uint32_t)ends[i];
        if (is && ends[0] < ends[1])
            for (int i = 0; i < 2; i++)
                found[2 * counts[1] + (uint32_t)i] = (uint32_t)ends[i];
        counts[1] += is && ends[0] < ends[1];
    }
    value = fnv(value, &counts[0], 1);
    value = fnv(value, cuts, counts[0]);
    value = fnv(value, &counts[1], 1);
    return fnv(value, found, 2 * (size_t)counts[1]);
}

static uint64_t digest_of(const char *pattern)
{
    struct hd_matcher matcher = {0};
    struct hd_regex_scratch *scratch = NULL;
    uint64_t value = UINT64_C(0xCBF29CE484222325);

    if (hd_regex_new(pattern, &matcher.regex))
        fail_msg("%s: %s", pattern, hd_err_message());
    assert_int_equal(hd_regex_scratch_new(&scratch), HD_OK);
    for (size_t i = 0; i < text_count; i++)
        value = digest_of_text(&matcher, scratch, i, value);
    hd_regex_scratch_free(scratch);
    hd_matcher_done(&matcher);
    return value;
}

/* The next line "WORD VALUE PATTERN"; NULL: there is none. */
static const char *next_line(const char *p, const char *word, char ret_value[32],
                             char ret_pattern[1024])
{
    for (; p && *p; p = strchr(p, '\n') + 1) {
        const char *end = strchr(p, '\n'), *value = p + strlen(word) + 1, *pattern;

        if (strncmp(p, word, strlen(word)) != 0)
            continue;
        pattern = strchr(value, ' ') + 1;
        (void)snprintf(ret_value, 32, "%.*s", (int)(pattern - 1 - value), value);
        (void)snprintf(ret_pattern, 1024, "%.*s", (int)(end - pattern), pattern);
        return end + 1;
    }
    return NULL;
}

static void patterns_match_what_oniguruma_matches(void **state)
{
    char value[32], pattern[1024];
    int count = 0, wrong = 0;

    read_patterns();
    for (const char *p = file.data; (p = next_line(p, "same", value, pattern)); count++)
        if (digest_of(pattern) != strtoull(value, NULL, 16)) {
            (void)printf("%s matches otherwise\n", pattern);
            wrong++;
        }
    assert_true(count > 200 && text_count > 40);
    assert_int_equal(wrong, 0);
}

static void expect_refusals(const char *word, int least)
{
    char value[32], pattern[1024];
    int count = 0;

    read_patterns();
    for (const char *p = file.data; (p = next_line(p, word, value, pattern)); count++) {
        struct hd_regex *regex = NULL;

        if (!hd_regex_new(pattern, &regex))
            fail_msg("%s is not refused", pattern);
        if (!strstr(hd_err_message(), "byte"))
            fail_msg("%s: '%s' does not say where", pattern, hd_err_message());
    }
    assert_true(count >= least);
}

static void what_is_not_supported_is_refused_at_its_byte(void **state)
{
    expect_refusals("refused", 40);
}

static void what_oniguruma_refuses_is_refused(void **state)
{
    expect_refusals("invalid", 18);
}

/* Goal: the quick test before the search of the table skips no character of it. Without it a text with such a
 * character is matched by the pattern for older Unicode. */
static void each_character_that_pcre2_lacks_is_noticed(void **state)
{
#define R(first, last) first, last,
#define HD_UNICODE_RANGES(set, ...) \
    static const uint32_t set[] __attribute__((unused)) = {__VA_ARGS__};
#define HD_UNICODE_SET(set, names, items)
#define HD_UNICODE_LOWER(code, first, second)
#include "tokenizer/unicode.def"
#undef R
    unsigned char text[5] = "a";

    for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i += 2)
        for (uint32_t code = newer[i]; code <= newer[i + 1]; code++) {
            const size_t n = hd_character_spell(code, text + 1);

            if (!hd_unicode_has_newer(text, n + 1))
                fail_msg("U+%04X is not noticed", (unsigned)code);
        }
    assert_false(hd_unicode_has_newer((const unsigned char *)"a\xCD\xA2", 3)); /* U+0362 */
}

static int free_file(void **state)
{
    hd_text_free(&file);
    return 0;
}

RUN_CASES_BETWEEN(NULL, free_file)
