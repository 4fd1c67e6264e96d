/* Goal: the kind of a data file: text, lines, tokens, or something that is refused by its kind; and
 * what is checked of it before a job runs. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "data/data_internal.h"
#include "data/survey.h"
#include "data/tokenize.h"
#include "records/kind.h"
#include "tests/program/test.h"
#include "tests/sanitized.h"
#include "tests/unit/tokenizer/golden.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)snprintf(folder, sizeof folder, "%s/heddle-kind-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        (void)unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        (void)closedir(dir);
    return rmdir(folder);
}

/* The path of a file with these bytes; good until the next call. */
static const char *put(const char *name, const void *bytes, size_t count)
{
    static char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hd_file_write_atomic(path, bytes, count, 0600), HD_OK);
    return path;
}

#define PUT(name, text) put(name, text, sizeof(text) - 1)

static void is(const char *path, enum hd_data_kind kind)
{
    struct hd_data_facts facts;

    if (hd_data_look(path, &facts))
        fail_msg("%s", hd_err_message());
    if (hd_data_kind_of(path) != kind || facts.kind != kind)
        fail_msg("%s is of kind %d, not %d", path, (int)hd_data_kind_of(path), (int)kind);
}

static void names_tell_in_either_case(void **state)
{
    is(PUT("a.jsonl", "{}\n"), HD_DATA_LINES);
    is(PUT("a.JSONL", "{}\n"), HD_DATA_LINES);
    is(PUT("a.ndjson", "{}\n"), HD_DATA_LINES);
    is(PUT("a.NdJson", "{}\n"), HD_DATA_LINES);
    is(PUT("a.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), HD_DATA_LINES);
    is(PUT("one.json", " {\"text\": \"a\"} "), HD_DATA_LINES);
    is(PUT("a.NPY", ""), HD_DATA_NPY);
    is(PUT("a.Bin", ""), HD_DATA_BIN);
    is(PUT("a.txt", "{}\n"), HD_DATA_TEXT);
    is(PUT("README", "text"), HD_DATA_TEXT);
    is(PUT("a.c", "int x;"), HD_DATA_TEXT);
    is(PUT("page.html", "<!DOCTYPE html><p>x"), HD_DATA_TEXT);
    is(PUT("empty.txt", ""), HD_DATA_TEXT);
    is(PUT("empty.jsonl", ""), HD_DATA_LINES);
    is(PUT("a.json", "[\n{\"text\": \"a\"}]"), HD_DATA_JSON);
    is(PUT("a.jsonl", " [{\"text\": \"a\"}]"), HD_DATA_JSON);
    is(PUT("a.json", "{\n  \"text\": \"a\"\n}\n"), HD_DATA_JSON);
    is(PUT("a.jsonl", "{\n  \"text\": \"a\"\n}\n"), HD_DATA_JSON);
    is(PUT("a.json", "{\"data\": [{\"text\": \"a\"}]}"), HD_DATA_JSON);
    is(PUT("a.jsonl", "\xef\xbb\xbf{\"text\": \"a\"}\n"), HD_DATA_LINES);
    is(PUT("a.csv", "text,label\na,1\n"), HD_DATA_CSV);
    is(PUT("a.TSV", "a\tb\n"), HD_DATA_TSV);
    /* they begin as an encrypted Parquet file and an MP3 do */
    is(PUT("a.txt", "PARENTS AND CHILDREN\n"), HD_DATA_TEXT);
    is(PUT("a.txt", "ID3\n"), HD_DATA_TEXT);
}

/* Goal: what is not text is not trained on as if it were. Method: the beginnings of published
 * formats, under their own name and under one of text: both are refused, by kind. */
static void what_is_not_text_is_refused_by_its_kind(void **state)
{
    static const struct {
        const char *name, *head;
        size_t bytes;
        const char *says;
    } rows[] = {
#define ROW(name, head, says) {name, head, sizeof(head) - 1, says}
        ROW("a.gz", "\x1f\x8b\x08\0\0", "cut"),
        ROW("a.jsonl.zst", "\x28\xb5\x2f\xfd\x04", "cut"),
        ROW("a.xz",
            "\xfd"
            "7zXZ\0\0",
            "xz -dc FILE | zstd"),
        ROW("a.bz2", "BZh91AY&SY..", "bzip2 -dc FILE | zstd"),
        ROW("a.parquet", "PARE\x15\x04", "an encrypted Parquet file"),
        ROW("a.feather", "FEA1", "a Feather file of version 1"),
        ROW("a.zip", "PK\x03\x04\x14", "a ZIP archive"),
        ROW("a.zip", "PK\x05\x06", "an empty ZIP archive"),
        ROW("a.7z", "7z\xbc\xaf\x27\x1c", "a 7z archive"),
        ROW("a.gguf", "GGUF\x03", "a GGUF model"),
        ROW("a.safetensors", "\x40\0\0\0\0\0\0\0{\"a\"", "a safetensors file"),
        ROW("b.idx", "MMIDIDX\0\0", "an index of Megatron"),
        ROW("a.mp3", "ID3\x04", "a sound"),
        ROW("a.wav", "RIFF\x24\0\0\0WAVEfmt ", "a sound"),
        ROW("a.pkl", "\x80\x04\x95\x10", "a pickle"),
        ROW("a.avro", "Obj\x01\x04", "an Avro file"),
        ROW("a.h5", "\x89HDF\r\n\x1a\n", "an HDF5 file"),
        ROW("a.sqlite", "SQLite format 3\0", "an SQLite database"),
        ROW("a.png", "\x89PNG\r\n\x1a\n", "a picture"),
        ROW("a.jpg", "\xff\xd8\xff\xe0", "a picture"),
        ROW("a.pdf", "%PDF-1.7\n", "a PDF"),
        ROW("a.dat", "\xff\xfeh\0i\0", "text in UTF-16"),
        ROW("a.dat", "\xff\xfe\0\0h\0\0\0", "text in UTF-32"),
        ROW("a.dat", "\xfe\xff\0h\0i", "text in UTF-16"),
        ROW("a.dat", "h\0e\0l\0l\0o\0", "iconv -f UTF-16LE"),
        ROW("a.dat", "\0h\0e\0l\0l\0o", "iconv -f UTF-16BE"),
        ROW("a.dat", "version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ROW("a.dat", "\n<!DOCTYPE html><html>", "a page of HTML"),
        ROW("a.dat", "\x93NUMPY\x01\0v\0", "a NumPy array"),
#undef ROW
    };
    static const char *const names[] = {"a.txt", "a.jsonl", "a.json", "a"};
    struct hd_data_facts facts;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t n = 0; n <= sizeof names / sizeof names[0]; n++) {
            const char *name = n ? names[n - 1] : rows[i].name;
            const char *path = put(name, rows[i].head, rows[i].bytes);

            assert_int_equal(hd_data_look(path, &facts), HD_INVALID);
            if (!strstr(hd_err_message(), path) ||
                (!strstr(hd_err_message(), rows[i].says) &&
                 !strstr(hd_err_message(), "built without its library")))
                fail_msg("%s: '%s' does not say '%s'", name, hd_err_message(), rows[i].says);
        }
}

static void refuses(const char *path, const char *says)
{
    struct hd_data_facts facts;

    assert_int_equal(hd_data_look(path, &facts), HD_INVALID);
    if (!strstr(hd_err_message(), says) && !strstr(hd_err_message(), "built without its library"))
        fail_msg("'%s' does not say '%s'", hd_err_message(), says);
}

/* "abc" as a gzip file */
#define GZIPPED "\x1f\x8b\x08\0\0\0\0\0\x02\x03\x4b\x4c\x4a\x06\0\xc2\x41\x24\x35\x03\0\0\0"

static void names_that_promise_another_kind_are_refused(void **state)
{
    refuses(PUT("a.txt", "some text and a \0"), "a.txt:1: has a NUL byte (byte 16 of the file)");
    refuses(PUT("a.jsonl", "{}\n{}\n\0\0"), "a.jsonl:3: has a NUL byte (byte 6 of the file)");
    refuses(PUT("a.gz", "{\"text\": \"a\"}\n"), "does not begin like one");
    refuses(PUT("a.tfrecord", "abc"), "a TFRecord file");
    refuses(PUT("a.json", "just words"), "no file of JSON objects");
    refuses(PUT("a.parquet", "just words"), "does not begin like one");
    refuses(PUT("a.parquet", ""), "is empty, and its name promises a Parquet file");
    refuses(PUT("a.bin.gz", GZIPPED), "is named as a .bin in a gzip file");
    refuses(PUT("a.parquet.gz", GZIPPED), "is named as a .parquet in a gzip file");
    refuses(PUT("a.parquet", "<html>404</html>"), "is a page of HTML");
}

/* Goal: a token file that is another kind is told as that, with what to do. */
static void what_is_no_token_file_is_told_by_its_kind(void **state)
{
    static const struct {
        const char *name, *head, *says;
    } rows[] = {
        {"a.npy", "PK\x03\x04\x14", "a ZIP archive, and no token file; np.savez writes such"},
        {"a.npy", "\x1f\x8b\x08", "a gzip file, and no token file; unpack it"},
        {"a.bin", "PK\x03\x04\x14", "a ZIP archive, and no token file; unpack it"},
        {"a.bin", "\x93NUMPY\x01", "a NumPy array, and no token file; name it .npy"},
        /* a damaged one of its own kind, by what is damaged */
        {"a.bin", "\x88\xd8\x34\x01", "4 bytes are less than the header of llm.c"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *path = put(rows[i].name, rows[i].head, strlen(rows[i].head));
        const struct hd_corpus_file file = {.path = path, .size_bytes = -1};
        struct hd_corpus *corpus = NULL;

        assert_int_equal(hd_corpus_open(&file, 1, &corpus), HD_INVALID);
        if (!strstr(hd_err_message(), rows[i].says) || !strstr(hd_err_message(), path))
            fail_msg("'%s' does not say '%s'", hd_err_message(), rows[i].says);
    }
}

/* ---- what is checked of it ---- */

static enum hd_status survey(const char *path, const struct hd_tokenizer *tokenizer,
                             enum hd_chat_form form, int64_t encode_left, int64_t read_left,
                             struct hd_survey *ret)
{
    const struct hd_corpus_file file = {.path = path, .size_bytes = -1};
    struct hd_survey_rules rules = {.tokenizer = tokenizer,
                                    .end_of_text = -1,
                                    .vocab = 300,
                                    .form = form,
                                    .threads = 2,
                                    .encode_left = encode_left,
                                    .read_left = read_left};

    return hd_survey_run(&file, 1, &rules, ret);
}

/* Goal: a line that a rank would refuse is found before the job runs, wherever it is. Method: each
 * kind of wrong line as the second of two, for text, conversations and pairs; checked by encoding,
 * and by the form alone, as of files too large for that. */
static void a_wrong_line_is_found_wherever_it_is(void **state)
{
    static const char *const good[] = {
        "{\"text\": \"a\"}", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}",
        "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}"};
    static const enum hd_chat_form forms[] = {HD_CHAT_AUTO, HD_CHAT_AUTO, HD_CHAT_PREFERENCE};
    static const char *const bad[] = {"{\"txt\": \"a\"}",
                                      "{\"text\": 5}",
                                      "5",
                                      "[]",
                                      "{\"text\": \"a\"",
                                      "{\"text\": \"\xff\"}",
                                      "{\"text\": null}",
                                      "{\"text\": \"a\"} x",
                                      "{\"text\": \"\\u00\"}"};
    struct hd_tokenizer *bytes = NULL;
    struct hd_survey s;
    char says[160];

    assert_int_equal(hd_tokenizer_open("bytes", &bytes), HD_OK);
    for (size_t g = 0; g < 3; g++)
        for (size_t b = 0; b < 2 * sizeof bad / sizeof bad[0]; b++) {
            struct hd_text text = {0};
            const char *path;

            hd_text_add(&text, "%s\n\n%s\n", good[g], bad[b / 2]);
            path = put("lines.jsonl", text.data, text.len_bytes);
            hd_text_free(&text);
            (void)snprintf(says, sizeof says, "%s:3: ", path);
            if (survey(path, bytes, forms[g], b % 2 ? 1 << 20 : 0, 1 << 20, &s) != HD_INVALID)
                fail_msg("%s behind %s is taken", bad[b / 2], good[g]);
            if (!strstr(hd_err_message(), says))
                fail_msg("'%s' does not say %s", hd_err_message(), says);
        }
    assert_int_equal(survey(PUT("good.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}"), bytes,
                            HD_CHAT_AUTO, 1 << 20, 1 << 20, &s),
                     HD_OK);
    assert_int_equal(s.documents, 2);
    assert_int_equal(s.checked, s.bytes);
    hd_tokenizer_close(bytes);
}

/* Goal: bad records are told together, and of a large file a sample is checked. Method: 30 bad ones
 * among 100; then the first, the third and the last of a file of which one in two is checked. */
static void bad_records_are_told_together(void **state)
{
    struct hd_tokenizer *bytes = NULL;
    struct hd_text text = {0};
    struct hd_bad_rows bad = {.count = 0};
    int64_t documents;
    const char *path;

    assert_int_equal(hd_tokenizer_open("bytes", &bytes), HD_OK);
    for (int i = 0; i < 100; i++)
        hd_text_add(&text, "%s\n", i && i < 31 ? "{\"text\": 5}" : "{\"text\": \"a\"}");
    path = put("told.jsonl", text.data, text.len_bytes);
    for (int way = 0; way < 2; way++) { /* encoded, and by the form alone */
        const struct hd_corpus_file file = {.path = path, .size_bytes = -1};
        struct hd_survey_rules rules = {.tokenizer = way ? bytes : NULL,
                                        .end_of_text = -1,
                                        .vocab = 300,
                                        .threads = 2,
                                        .bad = &bad,
                                        .encode_left = 1 << 20,
                                        .read_left = 1 << 20};
        struct hd_survey s;
        int lines = 0;

        assert_int_equal(hd_survey_run(&file, 1, &rules, &s), HD_OK);
        assert_true(bad.count >= HD_BAD_ROWS_SHOWN);
        for (const char *c = bad.reasons.data; *c; c++)
            lines += *c == '\n';
        assert_int_equal(lines, HD_BAD_ROWS_SHOWN);
        assert_non_null(strstr(bad.reasons.data, "told.jsonl:21: "));
        hd_bad_rows_free(&bad);
    }
    path = PUT("few.jsonl", "1\n2\n3\n\n4\n");
    must(hd_jsonl_check(path, NULL, HD_CHAT_TEXT, (struct hd_jsonl_sample){INT64_MAX, 2}, &bad,
                        &documents));
    assert_int_equal(documents, 4);
    assert_int_equal(bad.count, 3);
    assert_null(strstr(bad.reasons.data, "few.jsonl:2:"));
    assert_non_null(strstr(bad.reasons.data, "few.jsonl:3:"));
    assert_non_null(strstr(bad.reasons.data, "few.jsonl:5:"));
    hd_bad_rows_free(&bad);
    hd_text_free(&text);
    hd_tokenizer_close(bytes);
}

/* Goal: a record without an end is refused soon, with little memory, and with its row. Method:
 * strings of 128 MiB, packed to 4 KB, in each container that has records in text; read by validate
 * and by the tokenizing of a job. */
static void a_record_without_an_end_is_refused(void **state)
{
    static const char *const names[] = {"endless.jsonl.zst", "endless.json.zst", "endless.csv.zst",
                                        "endless.tsv.zst"};
    static const char *const says[] = {"endless.jsonl.zst:1: ", "endless.json.zst: row 1: ",
                                       "endless.csv.zst:2: ", "endless.tsv.zst:2: "};
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    struct hd_tokenizer *bytes = NULL;

    assert_int_equal(hd_tokenizer_open("bytes", &bytes), HD_OK);
    for (int i = 0; i < 8; i++) {
        const clock_t begin = clock();
        char path[4096];
        const char *const input = path;
        const struct hd_tokenize how = {.tokenizer = bytes,
                                        .end_of_text = -1,
                                        .inputs = &input,
                                        .input_count = 1,
                                        .rows.bad_rows = "skip",
                                        .threads = 2};
        struct rusage usage;
        int64_t documents;
        enum hd_status st;

        (void)snprintf(path, sizeof path, "%s/tests/unit/records/files/%s", root ? root : ".",
                       names[i / 2]);
        st = i % 2 ? hd_tokenize_run(&how, NULL)
                   : hd_jsonl_check(path, NULL, HD_CHAT_TEXT,
                                    (struct hd_jsonl_sample){INT64_MAX, 1}, NULL, &documents);
        assert_int_equal(st, HD_INVALID);
        if (strstr(hd_err_message(), "built without its library")) {
            (void)printf("built without zlib or libzstd\n");
            skip();
        }
        if (!strstr(hd_err_message(), says[i / 2]) || !strstr(hd_err_message(), "more than 64"))
            fail_msg("'%s' does not say '%s'", hd_err_message(), says[i / 2]);
        assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
        if (!HD_TEST_SANITIZED) {
            assert_true(usage.ru_maxrss < 256 << 10);
            assert_true(clock() - begin < 2 * CLOCKS_PER_SEC);
        }
    }
    hd_tokenizer_close(bytes);
}

/* Goal: documents are counted whichever part of a file is checked. Method: 2 MiB of lines, each
 * behind a blank one, of text and of conversations; within the bound of a survey and beyond it,
 * with a tokenizer and without one. A file of text is one document, also an empty one. */
static void all_documents_are_counted(void **state)
{
    static const char *const before[] = {
        "{\"text\": \"", "{\"messages\": [{\"role\": \"assistant\", \"content\": \""};
    static const char *const behind[] = {"\"}", "\"}]}"};
    struct hd_tokenizer *bytes = NULL, *bpe = NULL;
    struct hd_survey s;

    assert_int_equal(hd_tokenizer_open("bytes", &bytes), HD_OK);
    assert_int_equal(golden_open(golden_path("qwen2.json"), &bpe), HD_OK);
    for (size_t l = 0; l < 2; l++) {
        struct hd_text text = {0};
        int64_t documents = 0;
        const char *path;

        for (; text.len_bytes < 2 << 20; documents++)
            hd_text_add(&text, "\n%s%0500d%s\n", before[l], 7, behind[l]);
        path = put("counted.jsonl", text.data, text.len_bytes);
        for (int how = 0; how < 4; how++) {
            assert_int_equal(
                survey(path, how & 1 ? bytes : NULL, HD_CHAT_AUTO, 0, how & 2 ? INT64_MAX : 0, &s),
                HD_OK);
            assert_int_equal(s.documents, documents);
            assert_int_equal(s.checked, how & 2 ? s.bytes : 1 << 20);
        }
        hd_text_free(&text);
    }
    assert_int_equal(survey(PUT("a.txt", "a"), bpe, HD_CHAT_AUTO, 99, 99, &s), HD_OK);
    assert_int_equal(s.documents, 1);
    assert_int_equal(survey(PUT("empty.txt", ""), bpe, HD_CHAT_AUTO, 99, 99, &s), HD_OK);
    assert_int_equal(s.documents, 1);
    hd_tokenizer_close(bpe);
    hd_tokenizer_close(bytes);
}

/* Goal: an engineer mends a wrong line without reading the source. Method: mistakes of people and
 * of programs, as line 3; the byte is counted from 0 in the line. */
static void a_wrong_line_says_what_is_wrong_and_what_to_write(void **state)
{
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"just words", "the line is no JSON object; write {..}"},
        {"\"text\"", "the line is no JSON object"},
        {"[1]", "the line is a JSON array, not an object"},
        {"{}", "the record is empty: its text is null, or missing"},
        {"{\"content\": 1, \"id\": 2}",
         "'text' is missing, and there is 'content', 'id'; name the member"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "duplicate name 'text'"},
        {"{\"text\": \"a\", \"n\": NaN}",
         "byte 19: a value is expected here; JSON has neither NaN"},
        {"{\"text\": \"a\", \"n\": -Infinity}",
         "byte 19: a value is expected here; JSON has neither"},
        {"{\"text\": \"a\", \"n\": None}", "JSON has true, false and null"},
        {"{\"text\": \"a\", \"n\": 01}", "byte 20: ',' or '}' is expected here; a number has no 0"},
        {"{\"text\": \"a\",}", "byte 13: a member's name is expected here; remove the comma"},
        {"{'text': 'a'}", "JSON has double quotes"},
        {"{\xE2\x80\x9Ctext\xE2\x80\x9D: 1}", "no typographic quotes"},
        {"{\"text\": \"a\tb\"}",
         "byte 11: the control character 0x09 inside a string; write it \\u0009"},
        {"{\"text\": \"C:\\path\"}", "a backslash itself is written"},
        {"{\"text\": \"caf\xE9.\"}", "byte 13 (0xE9) is not UTF-8; if the text is in Latin-1"},
        {"{\"text\": \"\x93\xFA\x96\x7B\"}",
         "byte 10 (0x93) is not UTF-8; if the text is in another"},
        {"{\"text\": \"\xED\xA0\xBD\"}", "half of a surrogate pair"},
        {"{\"text\": \"a\\u0000\"}", "a NUL inside a string, is not supported; remove it"},
        {"{\"text\": \"a\"} {}", "byte 14: nothing more is expected behind the value"},
    };
    char says[160];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_text text = {0};
        int64_t documents;
        const char *path;

        hd_text_add(&text, "{\"text\": \"a\"}\n\n%s\n", rows[i].line);
        path = put("lines.jsonl", text.data, text.len_bytes);
        hd_text_free(&text);
        (void)snprintf(says, sizeof says, "%s:3: ", path);
        assert_int_equal(hd_jsonl_check(path, NULL, HD_CHAT_TEXT,
                                        (struct hd_jsonl_sample){INT64_MAX, 1}, NULL, &documents),
                         HD_INVALID);
        if (!strstr(hd_err_message(), says) || !strstr(hd_err_message(), rows[i].says))
            fail_msg("'%s' does not say %s%s", hd_err_message(), says, rows[i].says);
    }
}

/* Goal: what is not looked at is said. Method: two MiB of lines with a wrong one at the end, within
 * and beyond the bound. */
static void what_was_not_checked_is_told(void **state)
{
    struct hd_tokenizer *bytes = NULL;
    struct hd_text text = {0};
    struct hd_survey s;
    const char *path;

    assert_int_equal(hd_tokenizer_open("bytes", &bytes), HD_OK);
    while (text.len_bytes < 2 << 20)
        hd_text_add(&text, "{\"text\": \"%0500d\"}\n", 7);
    hd_text_add(&text, "5\n");
    path = put("long.jsonl", text.data, text.len_bytes);
    assert_int_equal(survey(path, bytes, HD_CHAT_AUTO, 0, INT64_MAX, &s), HD_INVALID);
    assert_int_equal(survey(path, bytes, HD_CHAT_AUTO, 0, 1 << 20, &s), HD_OK);
    assert_int_equal(s.checked, 1 << 20);
    hd_text_free(&text);
    hd_tokenizer_close(bytes);
}

/* Goal: text that a tokenizer cannot take is found. Method: a byte that is no UTF-8, at the end of
 * the file, and so that a character lies over the end of a chunk of 65536 bytes. */
static void text_that_is_not_utf8_is_found(void **state)
{
    struct hd_tokenizer *bpe = NULL;
    struct hd_survey s;
    struct hd_text text = {0};
    const char *path;

    assert_int_equal(golden_open(golden_path("qwen2.json"), &bpe), HD_OK);
    for (int i = 0; i < 40000; i++)
        hd_text_add(&text, "%s", i % 2 ? "\xC3\xA9" : "a"); /* 60000 bytes, odd offsets */
    hd_text_add(&text, "%s", "b\xC3\xA9\xC3\xA9");
    while (text.len_bytes < 200000)
        hd_text_add(&text, "%s", "\xE6\x9D\xB1"); /* one of three bytes lies over each end */
    for (int64_t room = 0; room < 2; room++) {
        path = put("good.txt", text.data, text.len_bytes);
        assert_int_equal(survey(path, bpe, HD_CHAT_AUTO, room * INT32_MAX, INT32_MAX, &s), HD_OK);
        assert_int_equal(s.checked, s.bytes);
    }
    hd_text_add_bytes(&text, "\xE6\x9D", 2);
    for (int64_t room = 0; room < 2; room++) {
        path = put("bad.txt", text.data, text.len_bytes);
        assert_int_equal(survey(path, bpe, HD_CHAT_AUTO, room * INT32_MAX, INT32_MAX, &s),
                         HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "is not UTF-8"));
    }
    hd_text_free(&text);
    hd_tokenizer_close(bpe);
}

/* Goal: an id outside the vocabulary is found wherever it is. Method: an array of 2^21 ids of which
 * one, between the places that are looked at when a job is submitted, is 300 of 300. */
static void a_wrong_id_is_found_wherever_it_is(void **state)
{
    enum { IDS = 1 << 21, HEAD = 128, WRONG = 1000003 };
    char *file = calloc(1, HEAD + 2 * IDS);
    struct hd_survey s;
    const char *path;

    assert_non_null(file);
    memcpy(file, "\x93NUMPY\x01\0\x76\0", 10);
    memset(file + 10, ' ', HEAD - 11);
    file[HEAD - 1] = '\n';
    (void)memcpy(file + 10, "{'descr': '<u2', 'fortran_order': False, 'shape': (2097152,), }",
                 sizeof "{'descr': '<u2', 'fortran_order': False, 'shape': (2097152,), }" - 1);
    path = put("ids.npy", file, HEAD + 2 * IDS);
    assert_int_equal(survey(path, NULL, HD_CHAT_AUTO, 0, 0, &s), HD_OK);
    assert_int_equal(s.tokens, IDS);
    file[HEAD + 2 * WRONG] = 300 & 0xFF;
    file[HEAD + 2 * WRONG + 1] = 300 >> 8;
    path = put("ids.npy", file, HEAD + 2 * IDS);
    assert_int_equal(survey(path, NULL, HD_CHAT_AUTO, 0, 0, &s), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "token 1000003 is 300"));
    free(file);
}

RUN_CASES_BETWEEN(make_folder, drop_folder)
