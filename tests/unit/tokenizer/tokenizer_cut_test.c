/* tokenizer_cut: a text that is cut where it may be gives the ids of the whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "golden.h"
#include "tests/program/test.h"

enum { TEXTS = 400, PARTS_MAX = 24 };

static const char *const parts[] = {
    "a", "b", "s", "ab", "E", "7", "12", "!", "'s", "'ll", "/", "_", ".", "<x>", "<|endoftext|>",
    "\xc3\xa9", "\xd0\xb6", "\xe4\xb8\xad", "\xe3\x80\x82", "\xcc\x81", "\xea\xb0\x80",
    "\xe1\x86\xa8", "\xd9\x83", "\xc2\xa0", "\xe3\x80\x80", "\xf0\x9f\x98\x80",
    /* often: what cuts stand at */
    " ", " ", " ", "\n", "\n", "\n", "\t", "\r\n", "\r", "  ", "\n\n", "a ", "b\n", "a b", "ab\nb"};

static void make_text(uint64_t number, struct hd_text *ret_text)
{
    const uint64_t key = hd_random_key(7, number);
    const int count = (int)(hd_random_u64(key, 0) % PARTS_MAX) + 2;

    hd_text_clear(ret_text);
    for (int i = 1; i <= count; i++)
        hd_text_add(ret_text, "%s",
                    parts[hd_random_u64(key, (uint64_t)i) % (sizeof parts / sizeof parts[0])]);
}

struct counts {
    int cuts, at_space;
};

/* The ids of both parts of each text, for each place where it may be cut, beside those of the
 * whole.
 */
static struct counts try_all_cuts(const struct hd_tokenizer *t)
{
    struct hd_encoder *encoder = NULL;
    struct hd_id_list whole = {0}, both = {0};
    struct hd_text text = {0};
    struct counts counts = {0, 0};

    assert_int_equal(hd_encoder_new(t, &encoder), HD_OK);
    for (uint64_t i = 0; i < TEXTS; i++) {
        make_text(i, &text);
        whole.count = 0;
        assert_int_equal(hd_encoder_add(encoder, text.data, text.len_bytes, &whole), HD_OK);
        for (size_t at = 0; (at = hd_tokenizer_cut(t, text.data, text.len_bytes, at + 1));
             counts.cuts++) {
            both.count = 0;
            counts.at_space += text.data[at] == ' ';
            assert_in_range(at, 1, text.len_bytes - 1);
            assert_int_equal(hd_encoder_add(encoder, text.data, at, &both), HD_OK);
            assert_int_equal(hd_encoder_add(encoder, text.data + at, text.len_bytes - at, &both),
                             HD_OK);
            if (both.count != whole.count ||
                memcmp(both.ids, whole.ids, both.count * sizeof *both.ids) != 0)
                fail_msg("cut at byte %zu, '%s' has other ids", at, text.data);
        }
    }
    hd_encoder_free(encoder);
    hd_id_list_free(&whole);
    hd_id_list_free(&both);
    hd_text_free(&text);
    return counts;
}

static void the_tokenizers_in_use_are_cut_behind_words(void **state)
{
    static const char *const names[] = {"gpt2.json", "llama3.json", "qwen2.json"};

    for (int i = 0; i < 3; i++) {
        struct hd_tokenizer *t = NULL;
        struct counts counts;

        assert_int_equal(golden_open(golden_path(names[i]), &t), HD_OK);
        counts = try_all_cuts(t);
        assert_true(counts.cuts > TEXTS && counts.at_space > TEXTS / 4);
        hd_tokenizer_close(t);
    }
}

static void bytes_are_cut_anywhere(void **state)
{
    struct hd_tokenizer *t = NULL;

    assert_int_equal(hd_tokenizer_open("bytes", &t), HD_OK);
    assert_int_equal(hd_tokenizer_cut(t, "abcd", 4, 0), 1);
    assert_int_equal(hd_tokenizer_cut(t, "abcd", 4, 3), 3);
    assert_int_equal(hd_tokenizer_cut(t, "abcd", 4, 4), 0);
    assert_true(try_all_cuts(t).cuts > TEXTS);
    hd_tokenizer_close(t);
}

/* A model's folder is what other tools take as a tokenizer. */
static void a_folder_is_answered_by_the_file_in_it(void **state)
{
    struct hd_tokenizer *t = NULL;

    (void)state;
    assert_int_equal(hd_tokenizer_open("/", &t), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "give the tokenizer.json or tokenizer.model in it"));
}

/* ---- tokenizers of our own ---- */

/* Adds a byte as byte-level BPE spells it: itself where that can be seen, else a letter from U+0100
 * on. */
static void add_letter(struct hd_text *json, int byte)
{
    const bool is_seen =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    uint32_t code = (uint32_t)byte;

    if (!is_seen) {
        code = 256;
        for (int b = 0; b < byte; b++)
            code += !((b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE);
    }
    if (code == '"' || code == '\\')
        hd_text_add(json, "\\%c", (char)code);
    else
        hd_text_add(json, "\\u%04x", (unsigned)code);
}

/* All bytes, and a token for each pair of those on whose sides cuts stand: a bound of words that is
 * lost or added between them changes the ids. */
static void make_json(const char *pre_tokenizer, const char *added, struct hd_text *json)
{
    static const char pairs[] = "ab 7!\n\r/'";
    int id = 256;

    hd_text_clear(json);
    hd_text_add(json,
                "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],"
                "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":%s,\"post_processor\":null,"
                "\"decoder\":null,\"model\":{\"type\":\"BPE\",\"vocab\":{",
                added, pre_tokenizer);
    for (int b = 0; b < 256; b++) {
        hd_text_add(json, "%s\"", b ? "," : "");
        add_letter(json, b);
        hd_text_add(json, "\":%d", b);
    }
    for (const char *p = pairs; *p; p++)
        for (const char *q = pairs; *q; q++) {
            hd_text_add(json, ",\"");
            add_letter(json, (unsigned char)*p);
            add_letter(json, (unsigned char)*q);
            hd_text_add(json, "\":%d", id++);
        }
    hd_text_add(json, "},\"merges\":[");
    for (const char *p = pairs; *p; p++)
        for (const char *q = pairs; *q; q++) {
            hd_text_add(json, "%s[\"", p == pairs && q == pairs ? "" : ",");
            add_letter(json, (unsigned char)*p);
            hd_text_add(json, "\",\"");
            add_letter(json, (unsigned char)*q);
            hd_text_add(json, "\"]");
        }
    hd_text_add(json, "]}}");
}

static struct counts try_json(const char *pre_tokenizer, const char *added)
{
    char path[] = "/tmp/tokenizer_cut_test.XXXXXX.json";
    const int fd = mkstemps(path, 5);
    struct hd_tokenizer *t = NULL;
    struct hd_text json = {0};
    struct counts counts;
    enum hd_status st;

    make_json(pre_tokenizer, added, &json);
    assert_true(fd >= 0);
    assert_int_equal(hd_file_write_all(fd, json.data, json.len_bytes), HD_OK);
    st = golden_open(path, &t);
    (void)close(fd);
    (void)unlink(path);
    if (st)
        fail_msg("%s", hd_err_message());
    counts = try_all_cuts(t);
    hd_tokenizer_close(t);
    hd_text_free(&json);
    return counts;
}

#define LEVEL(prefix, regex)                               \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" prefix \
    ",\"trim_offsets\":true,\"use_regex\":" regex "}"
#define SPLIT(regex, behavior, invert)                                                   \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior \
    "\",\"invert\":" invert "}"
#define SEQUENCE(steps) "{\"type\":\"Sequence\",\"pretokenizers\":[" steps "]}"
#define GPT4                                                                       \
    "'(?i:[sdmt]|ll|ve|re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|" \
    " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]|\\\\s+(?!\\\\S)|\\\\s+"
#define O200K                                                                            \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*"      \
    "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"               \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+"      \
    "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\\\p{N}{1,3}|" \
    " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

enum place { NOWHERE, LINES, SPACES };

static void expect(const char *pre_tokenizer, const char *added, enum place place)
{
    const struct counts counts = try_json(pre_tokenizer, added);

    if ((counts.cuts > 0) != (place != NOWHERE) || (counts.at_space > 0) != (place == SPACES))
        fail_msg("%s with [%s]: %d cuts, %d of them at spaces", pre_tokenizer, added, counts.cuts,
                 counts.at_space);
}

/* Goal: what is known is cut, what is not known is not; and wherever a text is cut, the ids stay.
 */
static void patterns_that_are_known_are_cut_and_no_others(void **state)
{
    expect(LEVEL("false", "true"), "", SPACES);
    expect(SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true}," LEVEL("false", "true")), "",
           SPACES);
    expect(SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":false}," LEVEL("false", "true")),
           "", SPACES);
    expect(SEQUENCE(SPLIT(GPT4, "Removed", "true") "," LEVEL("false", "false")), "", SPACES);
    expect(SEQUENCE(SPLIT(O200K, "Isolated", "false") "," LEVEL("false", "false")), "", SPACES);
    /* DeepSeek's: \s?\p{L}+ joins a line break and a word, but only where the first step did not
     * part them */
    expect(SEQUENCE(SPLIT("[\\\\r\\\\n]", "Isolated", "false") "," SPLIT(
               "\\\\s?\\\\p{L}+", "Isolated", "false") "," LEVEL("false", "false")),
           "", LINES);
    expect(SEQUENCE(SPLIT("\\\\s?\\\\p{L}+", "Isolated", "false") "," LEVEL("false", "true")), "",
           SPACES);

    expect(LEVEL("true", "true"), "", NOWHERE);
    expect(LEVEL("false", "false"), "", NOWHERE);
    expect(SEQUENCE(SPLIT("\\\\p{L}+ ?", "Isolated", "false") "," LEVEL("false", "true")), "",
           NOWHERE);
    expect(SEQUENCE(SPLIT("[^!]+", "Isolated", "false") "," LEVEL("false", "true")), "", NOWHERE);
    expect(SEQUENCE(SPLIT("\\\\s+", "MergedWithPrevious", "false") "," LEVEL("false", "false")), "",
           NOWHERE);
    expect(SEQUENCE(SPLIT("\\\\s+", "Contiguous", "false") "," LEVEL("false", "false")), "",
           NOWHERE);
}

#define ADDED(content, lstrip, rstrip, single)                                              \
    "{\"id\":900,\"content\":\"" content "\",\"single_word\":" single ",\"lstrip\":" lstrip \
    ",\"rstrip\":" rstrip ",\"normalized\":false,\"special\":true}"

static void added_tokens_that_could_reach_over_a_cut_forbid_them(void **state)
{
    static const char gpt2[] = LEVEL("false", "true");

    expect(gpt2, ADDED("<x>", "true", "true", "true"), SPACES);
    expect(gpt2, ADDED("  ", "false", "false", "false"), SPACES);
    expect(gpt2, ADDED("\\n\\n", "true", "false", "false"), SPACES);
    expect(gpt2, ADDED("ab", "true", "false", "true"), SPACES);
    expect(gpt2, ADDED("a b", "false", "false", "false"), NOWHERE);
    expect(gpt2, ADDED("\xc3\xa9\\nb", "false", "false", "false"), NOWHERE);
    expect(gpt2, ADDED("ab", "false", "true", "false"), NOWHERE);
    expect(gpt2, ADDED(" b", "false", "false", "true"), NOWHERE);
}

RUN_CASES()
