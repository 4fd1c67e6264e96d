/* tokenizer_train_test: tokenizers made from text. tests/interop/tokenizers/train.py made the golden
 * files, and compares random corpora. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "golden.h"
#include "tests/program/test.h"
#include "tokenizer/bpe_train.h"

enum { FILE_BYTES_MAX = 1 << 20 };

/* Adds the words of a text to the counts; skips the case in a build without PCRE2. */
static void count_text(struct hd_word_counts *counts, const char *text)
{
    struct hd_tokenizer *splitter = NULL;
    struct hd_encoder *encoder = NULL;
    struct hd_id_list list = {0};
    enum hd_status st = hd_tokenizer_open_words(HD_WORDS_CL100K, &splitter);

    if (st == HD_UNSUPPORTED)
        skip();
    assert_int_equal(st, HD_OK);
    assert_int_equal(hd_encoder_new(splitter, &encoder), HD_OK);
    assert_int_equal(hd_encoder_add(encoder, text, strlen(text), &list), HD_OK);
    assert_int_equal(hd_word_counts_add(counts, list.ids, list.count), HD_OK);
    hd_encoder_free(encoder);
    hd_tokenizer_close(splitter);
    hd_id_list_free(&list);
}

static int64_t count_of(const struct hd_word_counts *c, const char *word)
{
    for (uint64_t i = 0; c->rows && i <= c->mask; i++)
        if (c->rows[i].count && c->rows[i].len_bytes == strlen(word) &&
            memcmp(c->bytes + c->rows[i].at, word, strlen(word)) == 0)
            return c->rows[i].count;
    return 0;
}

/* Goal: words are those of the pattern: letters with a space before them, at most three digits. */
static void words_are_counted(void **state)
{
    struct hd_word_counts counts = {.rows = NULL};

    count_text(&counts, "to be or not to be, 12345");
    assert_int_equal(count_of(&counts, "to"), 1);
    assert_int_equal(count_of(&counts, " to"), 1);
    assert_int_equal(count_of(&counts, " be"), 2);
    assert_int_equal(count_of(&counts, "123"), 1);
    assert_int_equal(count_of(&counts, "45"), 1);
    assert_int_equal(counts.used, 9); /* also " or" " not" "," " " */
    hd_word_counts_free(&counts);
}

/* Goal: a table of bounded size keeps the words that occur often, and says what it forgot. Method:
 * one word 3,000 times among 3,000 that occur once, in a table of 256 KiB: 8,192 rows of 32 bytes
 * would leave no space for words, so there are 4,096, of which half are used, 2,048. */
static void rare_words_are_forgotten(void **state)
{
    struct hd_word_counts counts = {.bytes_max = 1 << 18};
    int64_t total = 0;

    for (int32_t i = 0; i < 3000; i++) {
        const int32_t ids[] = {'o', 'f', 't', 'e', 'n', HD_WORD_END, i & 0xFF, i >> 8, HD_WORD_END};

        assert_int_equal(hd_word_counts_add(&counts, ids, sizeof ids / sizeof ids[0]), HD_OK);
        assert_true((counts.mask + 1) * sizeof *counts.rows <= counts.bytes_max);
    }
    assert_int_equal(count_of(&counts, "often"), 3000);
    assert_true(counts.forgotten > 0);
    for (uint64_t i = 0; i <= counts.mask; i++)
        total += counts.rows[i].count;
    assert_int_equal(total + counts.forgotten, 6000);
    hd_word_counts_free(&counts);
}

/* Compares an array of merges, each two strings. */
static void compare_merges(const struct hd_json *ours, const struct hd_json *theirs)
{
    const struct hd_json *a = ours->first, *b = theirs->first;

    assert_int_equal(ours->count, theirs->count);
    for (; a; a = a->next, b = b->next) {
        assert_string_equal(a->first->text, b->first->text);
        assert_string_equal(a->first->next->text, b->first->next->text);
    }
}

/* Goal: vocabulary and merges are those of BpeTrainer, also where counts are equal and where a
 * token can be made in several ways. */
static void merges_are_those_of_the_reference(void **state)
{
    static const struct hd_json_limits limits = {1 << 16, 16};
    static const char *const specials[] = {"<s>"};
    const struct hd_bpe_training how = {
        .vocab = 320, .min_count = 2, .specials = specials, .special_count = 1};
    struct hd_word_counts counts = {.rows = NULL};
    struct hd_text text = {0}, wanted = {0}, json = {0};
    const struct hd_json *root = NULL, *theirs = NULL, *model, *vocab;
    struct hd_bpe_trained trained;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_file_read(golden_path("train.txt"), FILE_BYTES_MAX, &text), HD_OK);
    assert_int_equal(hd_file_read(golden_path("train.json"), FILE_BYTES_MAX, &wanted), HD_OK);
    count_text(&counts, text.data);
    assert_int_equal(hd_bpe_train(&how, &counts, &json, &trained), HD_OK);
    assert_int_equal(trained.ids, 320);
    assert_int_equal(hd_json_parse(&arena, json.data, json.len_bytes, &limits, &root), HD_OK);
    assert_int_equal(hd_json_parse(&arena, wanted.data, wanted.len_bytes, &limits, &theirs), HD_OK);
    model = hd_json_member(root, "model");
    compare_merges(hd_json_member(model, "merges"), hd_json_member(theirs, "merges"));
    vocab = hd_json_member(model, "vocab");
    assert_int_equal(vocab->count, 320);
    for (const struct hd_json *m = vocab->first; m; m = m->next)
        assert_string_equal(hd_json_member(hd_json_member(theirs, "vocab"), m->key)->text, m->text);
    hd_arena_done(&arena);
    hd_word_counts_free(&counts);
    hd_text_free(&text);
    hd_text_free(&wanted);
    hd_text_free(&json);
}

static bool stop_at_once(void *context, int32_t ids, int32_t vocab)
{
    *(int32_t *)context = vocab - ids;
    return false;
}

/* Goal: a vocabulary without room is refused with the least that is possible, too little text gives
 * fewer tokens, and an interrupted training gives none. Method: 256 letters and 1 special token;
 * "ab ab": the pairs (a, b), twice, and (space, a), once: one merge. */
static void limits_are_said(void **state)
{
    static const char *const specials[] = {"<s>"};
    struct hd_bpe_training how = {
        .vocab = 256, .min_count = 2, .specials = specials, .special_count = 1};
    struct hd_word_counts counts = {.rows = NULL};
    struct hd_bpe_trained trained;
    struct hd_text json = {0};
    int32_t left = 0;

    count_text(&counts, "ab ab");
    assert_int_equal(hd_bpe_train(&how, &counts, &json, &trained), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "at least 257"));
    how.vocab = 300;
    assert_int_equal(hd_bpe_train(&how, &counts, &json, &trained), HD_OK);
    assert_int_equal(trained.ids, 258);
    assert_int_equal(trained.merges, 1);
    how.progress = stop_at_once;
    how.context = &left;
    assert_int_equal(hd_bpe_train(&how, &counts, &json, &trained), HD_ABORTED);
    assert_int_equal(left, 300 - 257);
    hd_word_counts_free(&counts);
    hd_text_free(&json);
}

RUN_CASES()
