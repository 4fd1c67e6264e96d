/* Goal: rows are the same whatever container holds them, and a damaged container is an error that
 * says where. Method: files that other programs wrote (make_records.py), beside the rows that those
 * programs read from them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "records/kind.h"
#include "records/source.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"
#include "tests/temporary.h"

static const char *path_of(const char *file)
{
    static char path[2][4096];
    static int turn;
    const char *root = getenv("HEDDLE_SOURCE_DIR");

    turn = !turn;
    (void)snprintf(path[turn], sizeof path[turn], "%s/tests/unit/records/files/%s",
                   root ? root : ".", file);
    return path[turn];
}

static char folder[TEMPORARY_BYTES];

static int make_folder(void **state)
{
    temporary_dir(folder, "records");
    return 0;
}

static int drop_folder(void **state)
{
    return hd_file_remove_tree(folder);
}

/* Writes a file into the test's folder; the path is good until the next call. */
static const char *make(const char *name, const char *bytes, size_t count)
{
    static char path[TEMPORARY_BYTES + 64];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* Reads all of a file, `step` bytes at a time. */
static enum hd_status read_all(const char *path, const char *columns, size_t step,
                               struct hd_text *ret_text)
{
    char *buffer = malloc(step);
    struct hd_records *records = NULL;
    size_t n = step;
    enum hd_status st = hd_records_open(path, columns, &records);

    assert_non_null(buffer);
    hd_text_clear(ret_text);
    while (!st && n == step) {
        st = hd_records_read(records, buffer, step, &n);
        if (!st)
            hd_text_add_bytes(ret_text, buffer, n);
    }
    hd_records_close(records);
    free(buffer);
    return st;
}

/* Skips the case if the build lacks a library that unpacks the file. */
static void skip_unbuilt(enum hd_status st)
{
    if (st == HD_INVALID && strstr(hd_err_message(), "built without its library")) {
        (void)printf("%s\n", hd_err_message());
        skip();
    }
}

/* Rewrites lines of JSON so that equal values have equal text; drops blank lines. */
static void normalise(struct hd_text *text)
{
    static const struct hd_json_limits limits = {.values_max = 100000, .depth_max = 64};
    struct hd_text out = {0};
    char *rest = text->data, *line;

    while (rest && (line = strsep(&rest, "\n"))) {
        struct hd_json_writer w = {.out = &out};
        const struct hd_json *root;
        struct hd_arena arena;

        if (strspn(line, " \r\t") == strlen(line))
            continue;
        hd_arena_init(&arena, 0);
        if (hd_json_parse(&arena, line, strlen(line), &limits, &root))
            fail_msg("%s: %s", line, hd_err_message());
        hd_json_add_value(&w, NULL, root);
        hd_text_add_bytes(&out, "\n", 1);
        hd_arena_done(&arena);
    }
    hd_text_free(text);
    *text = out;
}

static void same_rows(const char *file, const char *rows)
{
    struct hd_text got = {0}, wanted = {0};

    assert_int_equal(hd_file_read(path_of(rows), 1 << 20, &wanted), HD_OK);
    normalise(&wanted);
    for (int i = 0; i < 2; i++) {
        const enum hd_status st = read_all(path_of(file), NULL, i ? 7 : 1 << 16, &got);

        skip_unbuilt(st);
        if (st)
            fail_msg("%s: %s", file, hd_err_message());
        normalise(&got);
        if (strcmp(got.data ? got.data : "", wanted.data ? wanted.data : "") != 0)
            fail_msg("%s has other rows:\n%s\nnot\n%s", file, got.data ? got.data : "",
                     wanted.data);
    }
    hd_text_free(&got);
    hd_text_free(&wanted);
}

static void rows_are_the_same_in_every_container(void **state)
{
    static const char *const files[][2] = {
        {"chat.jsonl.gz", "chat.rows"},
        {"chat.JSONL.zst", "chat.rows"},
        {"marked.ndjson", "chat.rows"},
        {"array.json", "chat.rows"},
        {"array.jsonl.gz", "chat.rows"},
        {"wrapped.json", "chat.rows"},
        {"objects.json", "chat.rows"},
        {"table.csv", "table.rows"},
        {"table.tsv", "table.rows"},
        {"table.csv.zst", "table.rows"},
        {"table.tsv.zst", "table.rows"},
        {"deep-none-v1.parquet", "deep.rows"},
        {"deep-none-v2.parquet", "deep.rows"},
        {"deep-snappy-v1.parquet", "deep.rows"},
        {"deep-snappy-v2.parquet", "deep.rows"},
        {"deep-gzip-v1.parquet", "deep.rows"},
        {"deep-gzip-v2.parquet", "deep.rows"},
        {"deep-zstd-v1.parquet", "deep.rows"},
        {"deep-zstd-v2.parquet", "deep.rows"},
        {"deep-lz4-v1.parquet", "deep.rows"},
        {"deep-lz4-v2.parquet", "deep.rows"},
        {"deep-delta_length_byte_array-v1.parquet", "deep.rows"},
        {"deep-delta_length_byte_array-v2.parquet", "deep.rows"},
        {"deep-delta_byte_array-v1.parquet", "deep.rows"},
        {"deep-delta_byte_array-v2.parquet", "deep.rows"},
        {"deep-plain-v1.parquet", "deep.rows"},
        {"deep-plain-v2.parquet", "deep.rows"},
        {"deep-old.parquet", "deep.rows"},
        {"deep-pages.parquet", "deep.rows"},
        {"deep-overflow.parquet", "deep.rows"},
        {"empty.parquet", "empty.rows"},
        {"numbers-v1.parquet", "numbers.rows"},
        {"numbers-v2.parquet", "numbers.rows"},
        {"numbers-split.parquet", "numbers.rows"},
        {"text-pandas.parquet", "text.rows"},
        {"text-fastparquet.parquet", "text.rows"},
        {"text-polars.parquet", "text.rows"},
        {"text-datasets.parquet", "text.rows"},
        {"text-duckdb-v1.parquet", "text.rows"},
        {"text-duckdb-v2.parquet", "text.rows"},
        {"required.parquet", "required.rows"},
        {"deep-None.arrow", "deep.rows"},
        {"deep-lz4.arrow", "deep.rows"},
        {"deep-zstd.arrow", "deep.rows"},
        {"deep-stream.arrow", "deep.rows"},
        {"numbers.arrow", "numbers.rows"},
        {"text-views.arrow", "text.rows"},
        {"text-words.arrow", "text.rows"},
        {"fixed.arrow", "fixed.rows"},
        {"required.arrow", "required.rows"},
    };

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        same_rows(files[i][0], files[i][1]);
}

static void has_columns(const char *file, const char *columns, const char *wanted)
{
    struct hd_text got = {0};

    if (read_all(path_of(file), columns, 7, &got))
        fail_msg("%s: %s", file, hd_err_message());
    normalise(&got);
    if (!hd_text_starts(got.data, wanted))
        fail_msg("%s has %s, not %s", file, got.data, wanted);
    hd_text_free(&got);
}

static void lacks_columns(const char *file, const char *columns, const char *says)
{
    struct hd_text got = {0};

    assert_int_equal(read_all(path_of(file), columns, 1 << 16, &got), HD_INVALID);
    if (!strstr(hd_err_message(), says))
        fail_msg("'%s' does not say '%s'", hd_err_message(), says);
    hd_text_free(&got);
}

/* Goal: columns of any names are read, whatever holds them, and no others. Method: columns of a
 * table, a stream of lines and a columnar file, under other names; a null one is no member. */
static void named_columns_are_the_record(void **state)
{
    has_columns("table.csv", "text=label", "{\"text\":\"1\"}\n{\"text\":\"two\"}\n");
    has_columns("table.tsv", "prompt=text,answer=label",
                "{\"instruction\":\"plain\",\"output\":\"1\"}\n");
    has_columns("marked.ndjson", "prompt=messages", "{\"prompt\":[{\"role\":\"user\",");
    has_columns("numbers-v2.parquet", "system=i8,text=u32",
                "{\"text\":4294967295}\n{\"system\":-1,\"text\":4294967294}\n");
    has_columns("numbers.arrow", "text=b", "{\"text\":true}\n{\"text\":false}\n");
    lacks_columns("table.csv", "text=body",
                  "the first record has nothing in column 'body'; it has: text, label");
    lacks_columns("table.csv", "txt=label", "'txt' is not messages, text, prompt");
    lacks_columns("table.csv", "text=label,prompt=label", "'label' is there twice");
    lacks_columns("table.csv", "text", "'text' is not NAME=COLUMN");
    /* the text beside a picture is read only if the job names it, as of lines */
    lacks_columns("picture.parquet", NULL, "it has a column 'image', and Heddle trains on text");
    lacks_columns("picture.arrow", NULL, "it has a column 'image', and Heddle trains on text");
    has_columns("picture.parquet", "text=text", "{\"text\":\"a cat\"}\n");
    has_columns("picture.arrow", "text=text", "{\"text\":\"a cat\"}\n");
}

/* A null in the first record says nothing of the column; a name that no record has does. */
static void the_first_record_may_have_nulls(void **state)
{
    static const char table[] = "text,n\n,1\n,2\nx,3\n";
    struct hd_text got = {0};

    must(read_all(make("null.csv", table, sizeof table - 1), "text=text", 7, &got));
    hd_text_add_bytes(&got, "", 1);
    assert_string_equal(got.data, "{}\n{}\n{\"text\":\"x\"}\n");
    assert_int_equal(read_all(make("null.csv", table, sizeof table - 1), "text=body", 7, &got),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "the first record has nothing in column 'body'; it "
                                             "has: n"));
    hd_text_free(&got);
}

/* Windows programs begin text with a byte order mark, which is no character of it. */
static void a_byte_order_mark_is_no_text(void **state)
{
    static const char *const texts[][2] = {
        {"\xef\xbb\xbf", ""}, {"\xef\xbb\xbfone\n", "one\n"}, {"\xef\xbb", "\xef\xbb"}};

    for (int i = 0; i < 3; i++) {
        struct hd_text got = {0};

        must(read_all(make("a.txt", texts[i][0], strlen(texts[i][0])), NULL, 1, &got));
        hd_text_add_bytes(&got, "", 1);
        assert_string_equal(got.data, texts[i][1]);
        hd_text_free(&got);
    }
}

/* Python's json.dumps escapes all letters but those of ASCII, in names too. */
static void an_escaped_name_is_the_name(void **state)
{
    static const char line[] = "{\"fr\\u00e4ge\": \"a\", \"b\": 1}\n";
    struct hd_text got = {0};

    must(read_all(make("a.jsonl", line, sizeof line - 1), "text=fr\xc3\xa4ge", 7, &got));
    hd_text_add_bytes(&got, "", 1);
    assert_string_equal(got.data, "{\"text\":\"a\"}\n");
    hd_text_free(&got);
}

/* A page of 96 MiB of zeros, which pack 10,000 times. */
static void a_page_that_fills_the_memory_is_refused(void **state)
{
    /* as 5,000 groups would be read for hours of a file of a few MB */
    lacks_columns("shared.parquet", NULL, "parts of the file are used twice");
    lacks_columns("bomb.parquet", NULL, "which no text does");
}

static void refuses(const char *name, const char *bytes, size_t count, const char *says)
{
    struct hd_text got = {0};
    const char *path = make(name, bytes, count);
    const enum hd_status st = read_all(path, NULL, 1 << 16, &got);

    skip_unbuilt(st);
    if (st != HD_INVALID)
        fail_msg("%s is taken: %s", bytes, got.data ? got.data : "");
    if (!strstr(hd_err_message(), says) || !strstr(hd_err_message(), path))
        fail_msg("'%s' does not say '%s'", hd_err_message(), says);
    hd_text_free(&got);
}

/* Goal: a mistake in a container is told with its place and what to write. */
static void a_wrong_container_says_where_and_what_to_write(void **state)
{
#define REFUSES(name, text, says) refuses(name, text, sizeof(text) - 1, says)
    REFUSES("a.json", "[{\"a\": 1},]", "row 2: a comma is before the end");
    REFUSES("a.json", "[{\"a\": 1} {\"a\": 2}]", "row 2: a comma is missing");
    REFUSES("a.json", "[{\"a\": 1}, {\"a\"", "row 2: the file ends inside it");
    REFUSES("a.json", "[{\"a\": 1}", "row 2: the file ends inside its array");
    REFUSES("a.json", "[{\"a\": 1}] {}", "more text follows the end of its JSON array");
    REFUSES("a.json", "[[1]]", "row 1: it is no JSON object");
    REFUSES("a.json", "[{\"a\": \"x\ny\"}]", "row 1: a line break inside a string");
    REFUSES("a.json", "{\"data\": [{\"a\": 1}], \"more\": []}", "other members beside its array");
    REFUSES("a.csv", "a,b\n1,\"2\n\n3\n", "a.csv:2: the row that begins here has a quote that");
    REFUSES("a.csv", "a,b\n\"x\n\",2\n1,\"a \\\"b\\\"\"\n", "a.csv:4: a quote inside a field in");
    REFUSES("a.csv", "a,b\n\"x\"y,2\n", "a.csv:2: the closing quote of a field is followed by");
    REFUSES("a.csv", "a,\n1,2\n", "column 2 has no name");
    REFUSES("a.csv", "a,b,a\n1,2,3\n", "a.csv:1: columns 1 and 3 are both named 'a'");
    REFUSES("a.csv", "a;b\n1;2\n", "are separated by semicolons");
    REFUSES("a.tsv", "a,b\n1,2\n", "are separated by commas");
#undef REFUSES
}

/* Goal: a compressed file that was cut or damaged never gives fewer rows without an error. Method:
 * each file without its last bytes, and with each of its bytes changed. */
static void damaged_streams_are_refused(void **state)
{
    static const char *const files[] = {"chat.jsonl.gz", "chat.JSONL.zst"};

    for (int f = 0; f < 2; f++) {
        struct hd_text bytes = {0}, got = {0}, whole = {0};
        enum hd_status st = read_all(path_of(files[f]), NULL, 1 << 16, &whole);
        size_t count;

        skip_unbuilt(st);
        assert_int_equal(st, HD_OK);
        assert_int_equal(hd_file_read(path_of(files[f]), 1 << 20, &bytes), HD_OK);
        count = f ? bytes.len_bytes : bytes.len_bytes - 512;
        refuses(files[f], bytes.data, count - 1, "cut");
        refuses(files[f], bytes.data, count / 2, "behind byte");
        hd_text_add_bytes(&bytes, "x", 1);
        refuses(files[f], bytes.data, bytes.len_bytes, "behind byte");
        for (size_t i = 4; i < count; i += 3) { /* the same bytes are read, or there is an error */
            bytes.data[i] ^= 0x55;
            if (!read_all(make(files[f], bytes.data, count), NULL, 1 << 16, &got)) {
                assert_int_equal(got.len_bytes, whole.len_bytes);
                assert_memory_equal(got.data, whole.data, whole.len_bytes);
            }
            bytes.data[i] ^= 0x55;
        }
        hd_text_free(&whole);
        hd_text_free(&bytes);
        hd_text_free(&got);
    }
}

/* Goal: a damaged columnar file ends in an error, or in rows, soon and with little memory. Method:
 * 300 variants of files with every codec, encoding and version of pages: a byte changed in the
 * footer or anywhere, or the end cut off. */
static void damaged_tables_end_soon_with_little_memory(void **state)
{
    static const char *const files[] = {
        "deep-snappy-v1.parquet", "deep-zstd-v2.parquet",  "deep-lz4-v1.parquet",
        "deep-gzip-v2.parquet",   "numbers-split.parquet", "deep-delta_byte_array-v2.parquet",
        "deep-lz4.arrow",         "deep-stream.arrow",     "text-words.arrow",
        "deep-zstd.arrow",        "text-views.arrow",
    };
    const size_t count = sizeof files / sizeof *files;
    int refused = 0;

    for (size_t i = 0; i < 300; i++) {
        struct hd_text bytes = {0}, got = {0};
        const clock_t begin = clock();
        struct rusage usage;
        uint64_t dice;

        assert_int_equal(hd_file_read(path_of(files[i % count]), 1 << 20, &bytes), HD_OK);
        dice = hd_random_u64(7, i);
        if (i % 3 == 0)
            bytes.len_bytes = dice % bytes.len_bytes;
        else if (i % 3 == 1)
            bytes.data[bytes.len_bytes - 1 - dice % 600] = (char)(dice >> 32);
        else
            bytes.data[dice % bytes.len_bytes] ^= (char)(1 << (dice >> 32 & 7));
        refused += read_all(make("damaged.parquet", bytes.data, bytes.len_bytes), NULL, 1 << 16,
                            &got) == HD_INVALID;
        hd_text_free(&bytes);
        hd_text_free(&got);
        assert_true(clock() - begin < 2 * CLOCKS_PER_SEC);
        assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
        if (!HD_TEST_SANITIZED)
            assert_true(usage.ru_maxrss < 256 << 10);
    }
    assert_true(refused > 100); /* all that were cut, at least */
}

/* Goal: text in another encoding is not trained on unless that is asked for. Method: German in
 * Latin-1, of which 1 in 20 bytes is no UTF-8, and in UTF-8. */
static void text_that_is_not_utf8_is_refused(void **state)
{
    static const char latin[] = "Gr\xfc\xdf"
                                "e an alle V\xf6gel im Garten ..";
    struct hd_data_facts facts;
    struct hd_text text = {0};

    for (int i = 0; i < 100; i++)
        hd_text_add(&text, "%s", latin);
    assert_int_equal(hd_data_check_text(make("a.txt", text.data, text.len_bytes), &facts),
                     HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "data.tokenizer: bytes"));
    for (int i = 0; i < 1000; i++) /* 300 of 30000 bytes are one in a hundred */
        hd_text_add(&text, "%s", "Ein Satz in \xC3\xA4 allein ..... ");
    assert_int_equal(hd_data_check_text(make("a.txt", text.data, text.len_bytes), &facts), HD_OK);
    hd_text_free(&text);
}

RUN_CASES_BETWEEN(make_folder, drop_folder)
