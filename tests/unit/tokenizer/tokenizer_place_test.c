/* tokenizer_place: places of a text followed through steps that change it. Each tokenizer has a
 * token per character and no merges, so that the tokens can be counted by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "golden.h"
#include "tests/program/test.h"

enum { MARKS_MAX = 8 };

#define NORMAL(type) "\"normalizer\":{\"type\":\"" type "\"},"
#define REPLACE(from, to)                                                                          \
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to \
    "\"},"
#define META(scheme)                                                                               \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme \
    "\"},"
#define ADDED(content)                                                                          \
    "\"added_tokens\":[{\"id\":12,\"content\":\"" content "\",\"special\":true,\"normalized\":" \
    "true,\"lstrip\":true}],"
#define ACUTE "\xCC\x81" /* U+0301 */

static void open_steps(const char *steps, struct hd_tokenizer **ret_tokenizer)
{
    char path[] = "/tmp/tokenizer_place_test.XXXXXX.json";
    const int fd = mkstemps(path, 5);
    struct hd_text json = {0};

    hd_text_add(&json,
                "{%s\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,\"vocab\":{"
                "\"?\":0,\"a\":1,\"b\":2,\"e\":3,\"" ACUTE
                "\":4,\"i\":5,\"\\u0307\":6,\"_\":7,\" \":8,\"<\":9,\"s\":10,\">\":11},"
                "\"merges\":[]}}",
                steps);
    assert_true(fd >= 0);
    assert_int_equal(hd_file_write_all(fd, json.data, json.len_bytes), HD_OK);
    assert_int_equal(golden_open(path, ret_tokenizer), HD_OK);
    (void)close(fd);
    (void)unlink(path);
    hd_text_free(&json);
}

/* marks: "b0 e2 b3": beginnings and ends, by byte, and in `want` the token of each. */
static void check(const char *steps, const char *text, const char *marks, const size_t *want,
                  size_t guard, size_t tokens)
{
    struct hd_encoder_mark list[MARKS_MAX] = {0};
    struct hd_encoder_places places = {.guards = &guard, .guard_count = guard < 99, .marks = list};
    struct hd_tokenizer *t = NULL;
    struct hd_encoder *e = NULL;
    struct hd_id_list ids = {0};

    for (const char *p = marks; *p; p += 2 + (p[2] == ' '))
        list[places.mark_count++] =
            (struct hd_encoder_mark){.at = (size_t)(p[1] - '0'), .is_end = p[0] == 'e'};
    open_steps(steps, &t);
    assert_int_equal(hd_encoder_new(t, &e), HD_OK);
    assert_int_equal(hd_encoder_add_places(e, text, strlen(text), &places, &ids), HD_OK);
    assert_int_equal(ids.count, tokens);
    for (size_t i = 0; i < places.mark_count; i++)
        if (list[i].token != want[i])
            fail_msg("%s %s: mark %zu of %s is in token %zu, not %zu", steps, text, i, marks,
                     list[i].token, want[i]);
    hd_id_list_free(&ids);
    hd_encoder_free(e);
    hd_tokenizer_close(t);
}

#define CHECK(steps, text, marks, tokens, ...) \
    check(steps, text, marks, (const size_t[]){__VA_ARGS__}, 99, tokens)

static void a_character_that_becomes_several_is_held_by_all(void **state)
{
    /* a, e, U+0301, b: the letter begins in token 1 and ends in token 2 */
    CHECK(NORMAL("NFD"),
          "a\xC3\xA9"
          "b",
          "b0 e0 b1 e2 b3 e3", 4, 0, 0, 1, 2, 3, 3);
    /* U+0130 becomes i, U+0307 */
    CHECK(NORMAL("Lowercase"),
          "\xC4\xB0"
          "A",
          "b0 e1 b2", 3, 0, 1, 2);
    /* unknown characters that are joined are one token */
    CHECK("",
          "xyz"
          "a",
          "b0 b1 e2 b3", 2, 0, 0, 0, 1);
}

static void characters_that_become_one_are_in_its_token(void **state)
{
    /* e, U+0301 become one character, which is unknown */
    CHECK(NORMAL("NFC"), "ae" ACUTE "b", "b0 b1 b2 e3 b4", 3, 0, 1, 1, 1, 2);
}

static void what_is_put_in_front_belongs_to_the_first_character(void **state)
{
    /* _, a, b, _, a: the space is replaced, and another is in front */
    CHECK(META("always"), "ab a", "b0 e0 b1 b2 b3", 5, 0, 1, 2, 3, 4);
    CHECK(REPLACE("a", "bb"), "eae", "b0 b1 e1 b2", 4, 0, 1, 2, 3);
}

static void what_is_taken_away_is_in_the_next_token(void **state)
{
    CHECK(REPLACE("s", ""), "asb", "b0 b1 e1 b2", 2, 0, 1, 1, 1);
    CHECK("\"normalizer\":{\"type\":\"Strip\"},", " a ", "b0 b1 b2", 1, 0, 0, 1);
    CHECK("\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},", "a b", "b0 b1 b2", 2, 0, 1, 1);
}

static void a_guard_holds_where_a_special_token_is_normalized(void **state)
{
    /* <S> becomes the special token <s>, with the space in front of it: a, <s>, b */
    check(NORMAL("Lowercase") ADDED("<S>"), "a <S>b", "b0 b1 b2 b5", (const size_t[]){0, 1, 1, 2},
          99, 3);
    /* with a guard at its first byte it is spelt: a, space, <, s, >, b */
    check(NORMAL("Lowercase") ADDED("<S>"), "a <S>b", "b0 b1 b2 b5", (const size_t[]){0, 1, 2, 5},
          2, 6);
}

RUN_CASES()
