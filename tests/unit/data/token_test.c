/* Token files: what each format's bytes mean, and what is said of damaged ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/data.h"
#include "data/token_file.h"
#include "tests/program/test.h"

/* ---- files by hand ---- */

static void add_number(struct hd_text *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) { /* little-endian, whatever this machine is */
        const unsigned char byte = (unsigned char)(value >> 8 * i);

        hd_text_add_bytes(out, &byte, 1);
    }
}

static void add_numbers(struct hd_text *out, const int64_t *values, int count, int bytes)
{
    for (int i = 0; i < count; i++)
        add_number(out, (uint64_t)values[i], bytes);
}

/* Writes a file as numpy.save does: the dictionary, blanks to a multiple of 64, a newline. */
static void add_npy(struct hd_text *out, int major, const char *dictionary)
{
    const size_t head = major == 1 ? 10 : 12,
                 length = (head + strlen(dictionary) + 64) / 64 * 64 - head;

    hd_text_add_bytes(out, "\x93NUMPY", 6);
    add_number(out, (uint64_t)major, 1);
    add_number(out, 0, 1);
    add_number(out, length, major == 1 ? 2 : 4);
    hd_text_add(out, "%-*s\n", (int)length - 1, dictionary);
}

static void add_llmc(struct hd_text *out, int magic, int version, int count)
{
    add_number(out, (uint64_t)magic, 4);
    add_number(out, (uint64_t)version, 4);
    add_number(out, (uint64_t)count, 4);
    for (int i = 3; i < 256; i++)
        add_number(out, 0, 4);
}

/* An index of `sequences` lengths of `width` bytes a token and of `entries` document entries. */
static void add_index(struct hd_text *out, int type, int width, const int64_t *lengths,
                      int sequences, const int64_t *documents, int entries)
{
    int64_t at = 0;

    hd_text_add_bytes(out, "MMIDIDX\0", 9);
    add_number(out, 1, 8);
    add_number(out, (uint64_t)type, 1);
    add_number(out, (uint64_t)sequences, 8);
    add_number(out, (uint64_t)entries, 8);
    add_numbers(out, lengths, sequences, 4);
    for (int i = 0; i < sequences; at += width * lengths[i++])
        add_number(out, (uint64_t)at, 8);
    add_numbers(out, documents, entries, 8);
}

static void expect_ids(const struct hd_token_view *v, const int64_t *ids, int count)
{
    int32_t read[8];

    assert_int_equal(v->count, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(hd_token_at(v, i), ids[i]);
        (void)hd_token_read(v, i, 1, read);
        assert_int_equal(read[0], ids[i] < 0 || ids[i] > INT32_MAX ? -1 : ids[i]);
    }
    assert_true(hd_token_read(v, 0, count, read) == (v->type == HD_TOKEN_U8    ? 3
                                                     : v->type == HD_TOKEN_U16 ? 65535
                                                                               : UINT32_MAX));
}

/* ---- npy ---- */

/* Goal: every type and version reads as what it is. Method: for each type the least and the largest
 * value, in headers of each version, with keys in two orders. */
CASE_WITH(NULL, NULL)
static void arrays_of_each_type_and_version_are_read(void **state)
{
    static const struct {
        const char *descr;
        int bytes;
        int64_t ids[3];
    } cases[] = {{"|u1", 1, {0, 1, 3}},
                 {"<u2", 2, {0, 258, 65535}},
                 {"<i4", 4, {-1, 1 << 20, INT32_MAX}},
                 {"<u4", 4, {0, 1 << 20, UINT32_MAX}},
                 {"<i8", 8, {INT64_MIN, 7, INT64_MAX}}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int major = 1; major <= 3; major++) {
            struct hd_text file = {0};
            struct hd_token_view view;
            char text[128];

            (void)snprintf(text, sizeof text,
                           major == 2 ? "{\"shape\":(3),\"descr\":\"%s\",\"fortran_order\":False}"
                                      : "{'descr': '%s', 'fortran_order': False, 'shape': (3,), }",
                           cases[i].descr);
            add_npy(&file, major, text);
            add_numbers(&file, cases[i].ids, 3, cases[i].bytes);
            assert_int_equal(hd_token_view_npy(file.data, (int64_t)file.len_bytes, &view), HD_OK);
            expect_ids(&view, cases[i].ids, 3);
            hd_text_free(&file);
        }
}

static void expect_npy(enum hd_status status, const char *message, const char *dictionary,
                       int elements)
{
    struct hd_text file = {0};
    struct hd_token_view view;
    enum hd_status st;

    add_npy(&file, 1, dictionary);
    for (int i = 0; i < elements; i++)
        add_number(&file, 1, 2);
    st = hd_token_view_npy(file.data, (int64_t)file.len_bytes, &view);
    assert_int_equal(st, status);
    if (st && !strstr(hd_err_message(), message))
        fail_msg("'%s' does not say '%s'", hd_err_message(), message);
    hd_text_free(&file);
}

CASE_WITH(NULL, NULL)
static void an_array_that_is_no_token_file_says_what_to_save(void **state)
{
    struct hd_token_view view;

    expect_npy(HD_OK, "", "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", 4);
    expect_npy(HD_UNSUPPORTED, "save a.astype('<u2')",
               "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 4);
    expect_npy(HD_UNSUPPORTED, "type '>u2'",
               "{'descr': '>u2', 'fortran_order': False, 'shape': (4,), }", 4);
    expect_npy(HD_UNSUPPORTED, "2 dimensions; token files have one: save a.reshape(-1)",
               "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 2), }", 4);
    expect_npy(HD_UNSUPPORTED, "0 dimensions",
               "{'descr': '<u2', 'fortran_order': False, 'shape': (), }", 1);
    expect_npy(HD_UNSUPPORTED, "Fortran",
               "{'descr': '<u2', 'fortran_order': True, 'shape': (4,), }", 4);
    expect_npy(HD_INVALID, "8 bytes after the header, but its 5 elements",
               "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }", 4);
    expect_npy(HD_INVALID, "not one that NumPy writes",
               "{'descr': '<u2', 'fortran_order': False, 'fortran_order': False, 'shape': (4,)}",
               4);
    expect_npy(HD_INVALID, "not one that NumPy writes",
               "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (4,), }", 4);
    expect_npy(HD_INVALID, "not one that NumPy writes", "{'descr': '<u2', 'shape': (4,), }", 4);
    assert_int_equal(hd_token_view_npy("\x93NUMPY\x04\0\0\0\0\0", 12, &view), HD_UNSUPPORTED);
    assert_int_equal(hd_token_view_npy("\x93NUMPY\x01\0\xff\0\0\0", 12, &view), HD_INVALID);
    assert_int_equal(hd_token_view_npy("plain text..", 12, &view), HD_INVALID);
    assert_int_equal(hd_token_view_npy("\x93NUMPY\x01\0", 8, &view), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "it ends in its header, after 8 bytes"));
}

/* ---- llm.c ---- */

CASE_WITH(NULL, NULL)
static void both_formats_of_llm_c_are_read(void **state)
{
    static const int64_t small[] = {50256, 0, 65535}, large[] = {128000, 1, UINT32_MAX};

    for (int wide = 0; wide < 2; wide++) {
        struct hd_text file = {0};
        struct hd_token_view view;

        add_llmc(&file, wide ? 20240801 : 20240520, wide ? 7 : 1, 3);
        add_numbers(&file, wide ? large : small, 3, wide ? 4 : 2);
        assert_int_equal(hd_token_view_llmc(file.data, (int64_t)file.len_bytes, &view), HD_OK);
        expect_ids(&view, wide ? large : small, 3);
        assert_int_equal(hd_token_view_llmc(file.data, (int64_t)file.len_bytes - 1, &view),
                         HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "the 3 tokens of its header"));
        assert_int_equal(hd_token_view_llmc(file.data, 1000, &view), HD_INVALID);
        file.data[4] = 9;
        assert_int_equal(hd_token_view_llmc(file.data, (int64_t)file.len_bytes, &view),
                         HD_UNSUPPORTED);
        file.data[0]++;
        assert_int_equal(hd_token_view_llmc(file.data, (int64_t)file.len_bytes, &view), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "nor of Megatron"));
        hd_text_free(&file);
    }
}

/* ---- Megatron ---- */

static const int64_t lengths[] = {2, 1, 0, 3}, documents[] = {0, 2, 3, 4};

/* Goal: documents begin where the index says. Method: sequences of 2, 1, 0 and 3 tokens in the
 * documents {2, 1}, {0} and {3}: tokens 0-2, none, and 3-5. */
CASE_WITH(NULL, NULL)
static void an_index_of_megatron_tells_where_documents_begin(void **state)
{
    static const int64_t ids[] = {5, 6, 65535, 8, 9, 10}, next[] = {3, 3, 3, 6, 6, 6};
    struct hd_text file = {0}, index = {0};
    struct hd_token_view view;

    add_numbers(&file, ids, 6, 2);
    add_index(&index, 8, 2, lengths, 4, documents, 4);
    assert_int_equal(
        hd_token_view_megatron(file.data, 12, index.data, (int64_t)index.len_bytes, &view), HD_OK);
    expect_ids(&view, ids, 6);
    for (int64_t i = 0; i < 6; i++)
        assert_int_equal(hd_token_next_document(&view, i), next[i]);
    add_numbers(&index, ids, 4, 1); /* with a mode for each sequence */
    assert_int_equal(
        hd_token_view_megatron(file.data, 12, index.data, (int64_t)index.len_bytes, &view), HD_OK);
    hd_text_free(&file);
    hd_text_free(&index);
}

/* One byte of the index set to `value`, or its size cut. */
static void expect_index(size_t at, unsigned char value, int64_t cut, enum hd_status status,
                         const char *message)
{
    static const unsigned char tokens[12] = {0};
    struct hd_text index = {0};
    struct hd_token_view view;
    enum hd_status st;

    add_index(&index, 8, 2, lengths, 4, documents, 4);
    index.data[at] = (char)value;
    st = hd_token_view_megatron(tokens, 12, index.data, (int64_t)index.len_bytes - cut, &view);
    assert_int_equal(st, status);
    if (!strstr(hd_err_message(), message))
        fail_msg("'%s' does not say '%s'", hd_err_message(), message);
    hd_text_free(&index);
}

CASE_WITH(NULL, NULL)
static void a_damaged_index_is_told_from_a_sound_one(void **state)
{
    enum { LENGTHS = 34, POINTERS = LENGTHS + 16, DOCUMENTS = POINTERS + 32 };

    expect_index(0, 'X', 0, HD_INVALID, "does not begin with MMIDIDX");
    expect_index(9, 3, 0, HD_UNSUPPORTED, "version 3");
    expect_index(9, 2, 0, HD_INVALID, "its tables take"); /* without the bits of version 2 */
    expect_index(17, 7, 0, HD_UNSUPPORTED, "elements of type 7");
    expect_index(18, 5, 0, HD_INVALID, "its tables take");
    expect_index(24, 1, 0, HD_INVALID, "it was truncated");
    expect_index(0, 'M', 1, HD_INVALID, "its tables take");
    expect_index(LENGTHS, 3, 0, HD_INVALID, "sequence 1 of 1 tokens at byte 4, after 6");
    expect_index(LENGTHS + 12, 4, 0, HD_INVALID, "do not belong together");
    expect_index(LENGTHS + 12, 2, 0, HD_INVALID, "the index describes 10 bytes");
    expect_index(LENGTHS + 15, 0x80, 0, HD_INVALID, "do not belong together");
    expect_index(POINTERS + 8, 2, 0, HD_INVALID, "sequence 1 of 1 tokens at byte 2, after 4");
    expect_index(DOCUMENTS, 1, 0, HD_INVALID, "entry 0 of the document index is 1");
    expect_index(DOCUMENTS + 8, 4, 0, HD_INVALID, "entry 2 of the document index is 3");
    expect_index(DOCUMENTS + 24, 3, 0, HD_INVALID, "entry 3 of the document index is 3");
}

/* ---- files of a corpus ---- */

struct fixture {
    char dir[32], path[4][64];
    struct hd_corpus_file files[4];
    struct hd_corpus *corpus;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    if (!f)
        return -1;
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/heddle-tokens-XXXXXX");
    *state = f;
    return mkdtemp(f->dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    hd_corpus_close(f->corpus);
    (void)hd_file_remove_tree(f->dir);
    free(f);
    return 0;
}

static void name_file(struct fixture *f, int slot, const char *name)
{
    struct hd_text path = {0};

    hd_text_add(&path, "%s/%s", f->dir, name);
    memcpy(f->path[slot], path.data, path.len_bytes + 1);
    f->files[slot] = (struct hd_corpus_file){.path = f->path[slot], .size_bytes = -1};
    hd_text_free(&path);
}

static void put(struct fixture *f, int slot, const char *name, struct hd_text *bytes)
{
    name_file(f, slot, name);
    assert_int_equal(hd_file_write_atomic(f->path[slot], bytes->data, bytes->len_bytes, 0600),
                     HD_OK);
    f->files[slot].size_bytes = (int64_t)bytes->len_bytes;
    hd_text_free(bytes);
}

/* Text "ab", an array of 300 and 301, llm.c's 302 and 303, Megatron's documents {304, 305, 306} and
 * {307, 308, 309}. */
static void put_one_of_each(struct fixture *f)
{
    static const int64_t ids[] = {300, 301, 302, 303, 304, 305, 306, 307, 308, 309};
    struct hd_text bytes = {0};

    hd_text_add(&bytes, "ab");
    put(f, 0, "a.txt", &bytes);
    add_npy(&bytes, 1, "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }");
    add_numbers(&bytes, ids, 2, 2);
    put(f, 1, "b.npy", &bytes);
    add_llmc(&bytes, 20240520, 1, 2);
    add_numbers(&bytes, ids + 2, 2, 2);
    put(f, 2, "c.bin", &bytes);
    add_index(&bytes, 4, 4, lengths, 4, documents, 4);
    put(f, 3, "d.idx", &bytes);
    add_numbers(&bytes, ids + 4, 6, 4);
    put(f, 3, "d.bin", &bytes);
}

static void files_of_all_kinds_read_as_one_sequence(void **state)
{
    struct fixture *f = *state;
    int32_t tokens[12];

    put_one_of_each(f);
    assert_int_equal(hd_corpus_open(f->files, 4, &f->corpus), HD_OK);
    assert_int_equal(hd_corpus_token_count(f->corpus), 12);
    assert_true(hd_corpus_has_text(f->corpus));
    assert_int_equal(hd_corpus_read(f->corpus, 0, 12, tokens), HD_OK);
    for (int i = 0; i < 12; i++)
        assert_int_equal(tokens[i], i < 2 ? 'a' + i : 298 + i);
}

static void a_changed_index_is_noticed(void **state)
{
    struct fixture *f = *state;
    struct hd_text bytes = {0};

    put_one_of_each(f);
    assert_int_equal(hd_corpus_open(f->files + 3, 1, &f->corpus), HD_OK);
    assert_int_equal(hd_corpus_check(f->corpus), HD_OK);
    hd_text_add(&bytes, "other");
    put(f, 3, "d.idx", &bytes);
    assert_int_equal(hd_corpus_check(f->corpus), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "d.idx"));
}

static void an_id_outside_the_vocabulary_is_named_at_once(void **state)
{
    struct fixture *f = *state;
    char expected[200];

    put_one_of_each(f);
    assert_int_equal(hd_corpus_open(f->files, 4, &f->corpus), HD_OK);
    assert_int_equal(hd_corpus_set_vocab(f->corpus, 310), HD_OK);
    assert_int_equal(hd_corpus_set_vocab(f->corpus, 303), HD_INVALID);
    (void)snprintf(expected, sizeof expected,
                   "%s: token 1 is 303, but model.vocab allows 0 to 302;", f->path[2]);
    assert_non_null(strstr(hd_err_message(), expected));
}

/* Goal: what the first look passes over is found when it is read. Method: a file of 8 Mi tokens, of
 * which the look sees stretches, with one bad id between them. */
static void an_id_that_the_first_look_misses_is_named_when_it_is_read(void **state)
{
    enum { COUNT = 8 << 20, PLACE = 4096 + 17, S = 64 };
    struct fixture *f = *state;
    struct hd_text bytes = {0};
    struct hd_sampler sampler;
    int32_t tokens[S];
    uint16_t *ids = calloc(COUNT, sizeof *ids);
    enum hd_status st = HD_OK;

    assert_non_null(ids);
    ids[PLACE] = 777;
    add_npy(&bytes, 1, "{'descr': '<u2', 'fortran_order': False, 'shape': (8388608,), }");
    hd_text_add_bytes(&bytes, ids, COUNT * sizeof *ids);
    free(ids);
    put(f, 0, "a.npy", &bytes);
    assert_int_equal(hd_corpus_open(f->files, 1, &f->corpus), HD_OK);
    assert_int_equal(hd_corpus_set_vocab(f->corpus, 777), HD_OK);
    assert_int_equal(
        hd_sampler_init(&sampler, hd_corpus_all(f->corpus), S, 1, HD_DATA_SEQUENTIAL, 1), HD_OK);
    for (int64_t step = 0; step <= PLACE / S; step++) {
        assert_int_equal(st, HD_OK); /* until now */
        st = hd_sampler_fill(&sampler, step, 0, 1, &(struct hd_data_batch){.tokens = tokens});
    }
    assert_int_equal(st, HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "token 4113 is 777"));
}

/* ---- documents ---- */

/* Goal: a batch knows its documents. Method: 13 tokens in windows of 4: text "a|bc" (| is the id
 * that ends), llm.c's 302 303, Megatron's {304 305 306} {307 308 309}, text "d". */
static void a_batch_knows_where_its_documents_begin(void **state)
{
    enum { S = 4, WINDOWS = 3 };
    /*                                  a  |  b  c   302 303 304 305  306 307 308 309 */
    static const int32_t bounds[] = {0, 0, 2, 2, 0, 0, 2, 2, 0, 1, 1, 1};
    static const int32_t positions[] = {0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 2};
    static const bool last[] = {0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1};
    struct fixture *f = *state;
    int32_t tokens[12], targets[12], places[12], index[12], bound[12], begin[12], length[12];
    int32_t all[13], ahead[2][12], further[2][12];
    const struct hd_data_batch batch = {.tokens = tokens,
                                        .ahead = {ahead[0], ahead[1]},
                                        .further = {further[0], further[1]},
                                        .empty_token = -7,
                                        .targets = targets,
                                        .positions = places,
                                        .index = index,
                                        .bounds = bound,
                                        .begins = begin,
                                        .lengths = length};
    struct hd_text bytes = {0};
    struct hd_sampler sampler;
    int64_t count = 0;

    put_one_of_each(f);
    hd_text_add(&bytes, "a|bc");
    put(f, 0, "a.txt", &bytes);
    hd_text_add(&bytes, "d");
    name_file(f, 1, "c.bin");
    name_file(f, 2, "d.bin");
    put(f, 3, "e.txt", &bytes);
    assert_int_equal(hd_corpus_open(f->files, 4, &f->corpus), HD_OK);
    hd_corpus_set_bounds(f->corpus, '|');
    assert_int_equal(hd_corpus_read(f->corpus, 0, 13, all), HD_OK);
    assert_int_equal(
        hd_sampler_init(&sampler, hd_corpus_all(f->corpus), S, WINDOWS, HD_DATA_SEQUENTIAL, 1),
        HD_OK);
    assert_int_equal(hd_sampler_fill(&sampler, 0, 0, WINDOWS, &batch), HD_OK);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(tokens[i], all[i]);
        assert_int_equal(targets[i], last[i] ? HD_DATA_TARGET_NONE : all[i + 1]);
        assert_int_equal(places[i], positions[i]);
        assert_int_equal(index[i], i % S);
        assert_int_equal(bound[i], bounds[i]);
        assert_int_equal(begin[i], 0); /* routers see the window as one */
        assert_int_equal(length[i], S);
    }
    assert_false(hd_sampler_fills_windows(&sampler));
    assert_int_equal(hd_sampler_tokens(&sampler, 0, WINDOWS), 12);
    assert_int_equal(hd_sampler_targets(&sampler, 0, 0, WINDOWS, 0, &count), HD_OK);
    assert_int_equal(count, 12 - 5); /* of `last` */
    for (int k = 1; k <= 2; k++)
        for (int i = 0; i < 12; i++) {
            const bool has = i % S + k < S && bounds[i + k] == bounds[i];

            assert_int_equal(ahead[k - 1][i], has ? all[i + k] : -7);
            assert_int_equal(further[k - 1][i],
                             has && !last[i + k] ? all[i + k + 1] : HD_DATA_TARGET_NONE);
        }
    assert_int_equal(hd_sampler_targets(&sampler, 0, 0, WINDOWS, 1, &count), HD_OK);
    assert_int_equal(count, 2); /* of 304 and of 307 */
    assert_int_equal(hd_sampler_targets(&sampler, 0, 0, WINDOWS, 2, &count), HD_OK);
    assert_int_equal(count, 0);
}

static void joined_documents_are_one_text(void **state)
{
    struct fixture *f = *state;
    int32_t tokens[11], targets[11], places[11], bound[11];
    const struct hd_data_batch batch = {
        .tokens = tokens, .targets = targets, .positions = places, .bounds = bound};
    struct hd_sampler sampler;
    int64_t count = 0;

    put_one_of_each(f);
    assert_int_equal(hd_corpus_open(f->files, 4, &f->corpus), HD_OK);
    assert_int_equal(
        hd_sampler_init(&sampler, hd_corpus_all(f->corpus), 11, 1, HD_DATA_SEQUENTIAL, 1), HD_OK);
    assert_int_equal(hd_sampler_fill(&sampler, 0, 0, 1, &batch), HD_OK);
    for (int i = 0; i < 11; i++) {
        assert_int_equal(targets[i], i < 1 ? 'b' : 299 + i);
        assert_int_equal(places[i], i);
        assert_int_equal(bound[i], 0);
    }
    assert_true(hd_sampler_fills_windows(&sampler));
    assert_int_equal(hd_sampler_targets(&sampler, 0, 0, 1, 0, &count), HD_OK);
    assert_int_equal(count, 11);
    assert_int_equal(hd_sampler_targets(&sampler, 0, 0, 1, 3, &count), HD_OK);
    assert_int_equal(count, 11 - 3);
}

/* Goal: the bigram model learns and is measured within documents. Method: tokens 7 9 7 9 7, a
 * document ending with each 9: the pair 9 7 is never seen, and of four targets two count. */
static void a_bigram_of_ids_stays_within_documents(void **state)
{
    static const int64_t ids[] = {7, 9, 7, 9, 7};
    struct fixture *f = *state;
    struct hd_text bytes = {0};
    struct hd_bigram *model = NULL;
    struct hd_validation v;
    double nats = 0;

    add_npy(&bytes, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }");
    add_numbers(&bytes, ids, 5, 8);
    put(f, 0, "a.npy", &bytes);
    assert_int_equal(hd_corpus_open(f->files, 1, &f->corpus), HD_OK);
    hd_corpus_set_bounds(f->corpus, 9);
    assert_int_equal(hd_bigram_fit(hd_corpus_all(f->corpus), 1000, &model), HD_OK);
    /* N = 5, V = 1000: p(7) = 4/1005, p(9) = 3/1005; n(7,9) = 2 = n(7), n(9) = 0 */
    assert_true(hd_bigram_probability(model, 9, 7) == 4 / 1005.0);
    assert_true(hd_bigram_probability(model, 7, 9) == (2 + 3 / 1005.0) / 3);
    assert_int_equal(hd_validation_init(&v, hd_corpus_all(f->corpus), 4, 0), HD_OK);
    assert_int_equal(hd_bigram_entropy(model, &v, &nats), HD_OK);
    assert_true(fabs(nats + log((2 + 3 / 1005.0) / 3)) < 1e-12); /* each target is 9 after 7 */
    hd_bigram_free(model);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
