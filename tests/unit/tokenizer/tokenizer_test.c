/* tokenizers: the ids of Hugging Face tokenizers for three files of its own making, and files that
 * are refused. tests/interop/tokenizers/make_tokenizers.py says what the golden files are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "golden.h"
#include "tests/program/test.h"
#include "tokenizer/special.h"

enum { FILE_BYTES_MAX = 1 << 20 };

struct fixture {
    struct hd_tokenizer *tokenizer;
    struct hd_encoder *encoder;
    struct hd_id_list list;
    struct hd_text bytes, corpus, ids;
};

static void open_golden(struct fixture *f, const char *name)
{
    char file[64];

    *f = (struct fixture){0};
    (void)snprintf(file, sizeof file, "%s.json", name);
    assert_int_equal(golden_open(golden_path(file), &f->tokenizer), HD_OK);
    assert_int_equal(hd_encoder_new(f->tokenizer, &f->encoder), HD_OK);
}

static void close_golden(struct fixture *f)
{
    hd_encoder_free(f->encoder);
    hd_tokenizer_close(f->tokenizer);
    hd_id_list_free(&f->list);
    hd_text_free(&f->bytes);
    hd_text_free(&f->corpus);
    hd_text_free(&f->ids);
}

static uint32_t take(const struct hd_text *from, size_t *at)
{
    uint32_t value;

    assert_true(from->len_bytes - *at >= sizeof value);
    memcpy(&value, from->data + *at, sizeof value);
    *at += sizeof value;
    return value;
}

/* Goal: what was trained elsewhere on ids reads our files. Method: the golden ids of each text, and
 * back; round_trip: no normaliser changes the text. */
static void check_golden(const char *name, bool round_trip)
{
    struct fixture f;
    char file[64];
    size_t at = 0, ids_at = 0;

    open_golden(&f, name);
    assert_int_equal(hd_file_read(golden_path("corpus.bin"), FILE_BYTES_MAX, &f.corpus), HD_OK);
    (void)snprintf(file, sizeof file, "%s.ids", name);
    assert_int_equal(hd_file_read(golden_path(file), FILE_BYTES_MAX, &f.ids), HD_OK);
    while (at < f.corpus.len_bytes) {
        const uint32_t size_bytes = take(&f.corpus, &at);
        const char *text = f.corpus.data + at;
        uint32_t count;

        at += size_bytes;
        f.list.count = 0;
        assert_int_equal(hd_encoder_add(f.encoder, text, size_bytes, &f.list), HD_OK);
        count = take(&f.ids, &ids_at);
        assert_int_equal(f.list.count, count);
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(f.list.ids[i], take(&f.ids, &ids_at));
        hd_text_clear(&f.bytes);
        assert_int_equal(hd_tokenizer_decode(f.tokenizer, f.list.ids, f.list.count, &f.bytes),
                         HD_OK);
        if (round_trip) {
            assert_int_equal(f.bytes.len_bytes, size_bytes);
            if (size_bytes)
                assert_memory_equal(f.bytes.data, text, size_bytes);
        }
    }
    assert_int_equal(ids_at, f.ids.len_bytes);
    close_golden(&f);
}

static void gpt2_gives_the_golden_ids(void **state)
{
    check_golden("gpt2", true);
}

static void llama3_gives_the_golden_ids(void **state)
{
    check_golden("llama3", false); /* its tokens that strip take spaces with them */
}

static void qwen2_gives_the_golden_ids(void **state)
{
    check_golden("qwen2", false);
}

static void llama2_gives_the_golden_ids(void **state)
{
    check_golden("llama2", false); /* the space in front of a text comes back */
}

static void mistral_gives_the_golden_ids(void **state)
{
    check_golden("mistral", false);
}

/* Goal: no token is the end of a text because of what it is called. Method: the files alone, which
 * have tokens of all usual names. */
static void a_tokenizer_alone_names_no_end_of_a_text(void **state)
{
    static const struct {
        const char *file, *listed;
    } cases[] = {{"gpt2", "<|endoftext|> "},
                 {"llama3", "<|end_of_text|> "},
                 {"qwen2", "<|endoftext|> "},
                 {"llama2", "</s> "}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_special special;
        struct hd_text text = {0};
        struct fixture f;

        open_golden(&f, cases[i].file);
        assert_int_equal(hd_special_resolve(f.tokenizer, NULL, &special), HD_OK);
        assert_int_equal(special.end.id, -1);
        assert_int_equal(special.stop_count, 0);
        hd_special_explain_end(f.tokenizer, "data.end_of_text", &text);
        assert_non_null(strstr(text.data, "write data.end_of_text ("));
        assert_non_null(strstr(text.data, cases[i].listed));
        hd_text_free(&text);
        close_golden(&f);
    }
}

/* Goal: nobody trains on replacement characters without knowing. */
static void text_that_is_not_utf8_is_refused_at_its_byte(void **state)
{
    static const struct {
        const char *text;
        size_t size_bytes;
        const char *story;
    } cases[] = {
        {"abc\xFF", 4, "byte 3 (0xFF)"},
        {"12345678\xC3", 9, "byte 8 (0xC3)"},     /* ends inside a character */
        {"\xED\xA0\x80", 3, "byte 0 (0xED)"},     /* a surrogate */
        {"ab\xC0\x80", 4, "byte 2 (0xC0)"},       /* overlong */
        {"\xF4\x90\x80\x80", 4, "byte 0 (0xF4)"}, /* above U+10FFFF */
        {"abcdefgh\x80", 9, "byte 8 (0x80)"},     /* no beginning */
    };
    struct fixture f;

    open_golden(&f, "gpt2");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(hd_encoder_add(f.encoder, cases[i].text, cases[i].size_bytes, &f.list),
                         HD_INVALID);
        assert_non_null(strstr(hd_err_message(), cases[i].story));
        assert_int_equal(f.list.count, 0);
    }
    close_golden(&f);
}

/* Returns this thread's time: others on the machine do not count. */
static int64_t cpu_time_ns(void)
{
    struct timespec now;

    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Goal: hostile text costs no more than honest text. Method: eight times the letters of one word
 * may take thirty times as long and a second; a square would take 64 times, which for a million
 * letters is minutes. */
static void a_word_of_a_million_letters_takes_no_square_of_time(void **state)
{
    enum { SHORT = 1 << 17, FACTOR = 8 };
    char *text = malloc((size_t)SHORT * FACTOR);
    struct fixture f;
    int64_t took[2];

    assert_non_null(text);
    open_golden(&f, "llama3");
    memset(text, 'x', (size_t)SHORT * FACTOR);
    for (int i = 0; i < 2; i++) {
        const size_t n = i ? (size_t)SHORT * FACTOR : SHORT;
        const int64_t begin = cpu_time_ns();

        f.list.count = 0;
        assert_int_equal(hd_encoder_add(f.encoder, text, n, &f.list), HD_OK);
        took[i] = cpu_time_ns() - begin;
        assert_int_equal(hd_tokenizer_decode(f.tokenizer, f.list.ids, f.list.count, &f.bytes),
                         HD_OK);
        assert_int_equal(f.bytes.len_bytes, n);
        hd_text_clear(&f.bytes);
    }
    assert_true(took[1] < 30 * took[0] + INT64_C(1000000000));
    free(text);
    close_golden(&f);
}

/* ---- files ---- */

#define FILE_OF(normalizer, pre, model, more)                                        \
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[]," \
    "\"normalizer\":" normalizer ",\"pre_tokenizer\":" pre                           \
    ",\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":\"BPE\"," model "}" more "}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SMALL                                                       \
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0" \
    "a\":4}"

static enum hd_status open_text(const char *text, struct hd_tokenizer **ret_tokenizer)
{
    char path[] = "/tmp/tokenizer_test.XXXXXX.json";
    const int fd = mkstemps(path, 5);
    enum hd_status st;

    assert_true(fd >= 0);
    assert_int_equal(hd_file_write_all(fd, text, strlen(text)), HD_OK);
    st = golden_open(path, ret_tokenizer);
    (void)close(fd);
    (void)unlink(path);
    if (st)
        assert_non_null(strstr(hd_err_message(), path)); /* every refusal names the file */
    return st;
}

static void merges_are_read_in_both_spellings(void **state)
{
    static const char *const spellings[] = {
        FILE_OF("null", BYTE_LEVEL, SMALL ",\"merges\":[\"a b\",\"\xC4\xA0 a\"]", ""),
        FILE_OF("null", BYTE_LEVEL, SMALL ",\"merges\":[[\"a\",\"b\"],[\"\xC4\xA0\",\"a\"]]", ""),
    };

    for (int i = 0; i < 2; i++) {
        struct hd_tokenizer *t = NULL;
        struct hd_encoder *e = NULL;
        struct hd_id_list list = {0};

        assert_int_equal(open_text(spellings[i], &t), HD_OK);
        assert_int_equal(hd_encoder_new(t, &e), HD_OK);
        /* "ab" first has rank 0; in " ab" the pair a b goes before the space and a */
        assert_int_equal(hd_encoder_add(e, "ab ab a", 7, &list), HD_OK);
        assert_int_equal(list.count, 4);
        assert_int_equal(list.ids[0], 2);
        assert_int_equal(list.ids[1], 3);
        assert_int_equal(list.ids[2], 2);
        assert_int_equal(list.ids[3], 4);
        assert_int_equal(hd_encoder_add(e, "abc", 3, &list), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "byte 0x63"));
        hd_id_list_free(&list);
        hd_encoder_free(e);
        hd_tokenizer_close(t);
    }
}

#define SPLIT_OF(regex)                                                                    \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"," \
    "\"invert\":false}"

/* Goal: a file that asks for more than is built here is never read as another tokenizer. */
static void what_is_not_known_is_refused_by_name(void **state)
{
#define M                       SMALL ",\"merges\":[]"
#define UNIGRAM_OF(vocab, more) "{\"model\":{\"type\":\"Unigram\",\"vocab\":" vocab more "}}"
    static const struct {
        const char *text, *story;
    } cases[] = {
        {FILE_OF("null", BYTE_LEVEL, M, ",\"extra\":1"), "extra"},
        {FILE_OF("null", BYTE_LEVEL, M ",\"extra\":1", ""), "model.extra"},
        {FILE_OF("{\"type\":\"Precompiled\"}", BYTE_LEVEL, M, ""), "precompiled_charsmap"},
        {FILE_OF("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"a*==\"}", BYTE_LEVEL, M, ""),
         "is no base64"},
        {FILE_OF("{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAA=\"}", BYTE_LEVEL, M,
                 ""),
         "precompiled_charsmap is damaged"},
        {FILE_OF("null", "{\"type\":\"UnicodeScripts\"}", M, ""), "UnicodeScripts"},
        {FILE_OF("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a*\"},\"content\":\"b\"}",
                 BYTE_LEVEL, M, ""),
         "can match nothing"},
        {FILE_OF("null", BYTE_LEVEL, M ",\"byte_fallback\":true,\"end_of_word_suffix\":\"</w>\"",
                 ""),
         "byte_fallback"},
        {FILE_OF("null", BYTE_LEVEL, M ",\"dropout\":0.1", ""), "dropout"},
        {FILE_OF("null", BYTE_LEVEL, SMALL ",\"merges\":[\"a c\"]", ""), "'c'"},
        {FILE_OF("null", BYTE_LEVEL, SMALL ",\"merges\":[\"b a\"]", ""), "model.merges[0]"},
        {FILE_OF("null", BYTE_LEVEL, SMALL ",\"merges\":[\"ab\"]", ""), "'ab'"},
        {FILE_OF("null", BYTE_LEVEL, "\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]", ""), "same id"},
        {FILE_OF("null", BYTE_LEVEL, "\"vocab\":{\"a\":-1},\"merges\":[]", ""), "the id of 'a'"},
        {FILE_OF("null", SPLIT_OF("(a)\\\\1"), M, ""), "at byte 3"},
        {FILE_OF("null", SPLIT_OF("(a"), M, ""), "not valid at byte 0"},
        {"{\"decoder\":{\"type\":\"CTC\"},\"model\":{\"type\":\"BPE\"," M "}}", "CTC"},
        {"{\"model\":{\"type\":\"WordPiece\"," M "}}", "WordPiece; only BPE and Unigram"},
        {"{\"model\":{\"type\":\"Unigram\"," M "}}", "model.merges"},
        {UNIGRAM_OF("[]", ""), "model.vocab has 0 tokens"},
        {UNIGRAM_OF("[[\"a\"]]", ""), "model.vocab[0] is not [\"TOKEN\", SCORE]"},
        {UNIGRAM_OF("[[\"a\",-1],[\"b\",1e999]]", ""), "model.vocab[1]: a score is no finite"},
        {UNIGRAM_OF("[[\"a\",-1]]", ",\"unk_id\":1"), "model.unk_id"},
        {UNIGRAM_OF("[[\"a\",-1]]", ",\"alpha\":0.1"), "model.alpha is not known"},
        {"[]", "an array is given, and an object with 'model' is expected"},
        {"{\"a\":0}", "so it is another file, such as a vocab.json"},
        {"{", "byte 1"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_tokenizer *t = NULL;

        assert_int_not_equal(open_text(cases[i].text, &t), HD_OK);
        if (!strstr(hd_err_message(), cases[i].story))
            fail_msg("case %zu: %s", i, hd_err_message());
    }
}

static void expect_ids(const struct hd_tokenizer *t, const char *text, const int32_t *ids,
                       size_t count)
{
    struct hd_encoder *e = NULL;
    struct hd_id_list list = {0};

    assert_int_equal(hd_encoder_new(t, &e), HD_OK);
    assert_int_equal(hd_encoder_add(e, text, strlen(text), &list), HD_OK);
    assert_int_equal(list.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(list.ids[i], ids[i]);
    hd_id_list_free(&list);
    hd_encoder_free(e);
}

#define U2581 "\xE2\x96\x81"

/* Goal: a step sees the text that the step before it left. Method: Gemma's file. Its normalizer
 * leaves no space, so its Split finds none, and the whole text is one word, in which "b", U+2581 is
 * merged; a Split that saw a space would end a word behind it, and there the pair U+2581, "a" has
 * no "a". */
static void a_split_sees_what_the_normalizer_left(void **state)
{
    static const char text[] =
        "{\"truncation\":{\"max_length\":2},\"padding\":{\"length\":8},\"normalizer\":{\"type\":"
        "\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" U2581 "\"},\"pre_tokenizer\":{"
        "\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\","
        "\"invert\":false},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"a\":0,"
        "\"b\":1,\"" U2581 "\":2,\"" U2581 "a\":3},\"merges\":[\"" U2581 " a\"]}}";
    const int32_t ids[] = {1, 3, 1, 3};
    struct hd_tokenizer *t = NULL;

    assert_int_equal(open_text(text, &t), HD_OK); /* truncation and padding are of calls */
    expect_ids(t, "b ab a", ids, 4);
    hd_tokenizer_close(t);
}

/* The reference gives an added token the id of the model's token with its content, else the next
 * one; the id in the file is not read. */
static void added_tokens_get_the_ids_of_the_reference(void **state)
{
    static const char text[] =
        "{\"added_tokens\":[{\"id\":9,\"content\":\"b\"},{\"id\":7,\"content\":\"<x>\"},{\"id\":3,"
        "\"content\":\"<y>\"},{\"id\":7,\"content\":\"<x>\",\"lstrip\":true}],\"pre_tokenizer\":"
        "null,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2},\"merges\":[]}}";
    const int32_t ids[] = {0, 3, 4, 1};
    struct hd_tokenizer *t = NULL;

    assert_int_equal(open_text(text, &t), HD_OK);
    assert_int_equal(hd_tokenizer_vocab(t), 5);
    expect_ids(t, "a <x><y>b", ids, 4); /* the last <x> of the list strips */
    hd_tokenizer_close(t);
}

RUN_CASES()
