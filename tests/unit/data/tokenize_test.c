/* tokenize: what becomes of text files, for `heddle data tokenize` and for jobs. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "data/token_file.h"
#include "data/tokenize.h"
#include "records/kind.h"
#include "tests/program/test.h"
#include "tests/unit/tokenizer/golden.h"

enum { LINES = 40000, OUT_BYTES_MAX = 64 << 20 };

static char dir[64];

static struct hd_tokenizer *bytes;

static int make_dir(void **state)
{
    if (hd_tokenizer_open("bytes", &bytes))
        return -1;
    (void)snprintf(dir, sizeof dir, "/tmp/tokenize_test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    hd_tokenizer_close(bytes);
    return hd_file_remove_tree(dir) ? -1 : 0;
}

static char *in_dir(const char *name)
{
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];

    (void)snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static const char *put(const char *name, const char *text)
{
    const char *path = in_dir(name);

    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0600), HD_OK);
    return path;
}

/* The file's ids as bytes, for the tokenizer bytes; the caller frees. */
static char *ids_of(const char *path, int64_t *ret_count)
{
    struct hd_text file = {0};
    struct hd_token_view view;
    char *ids;

    assert_int_equal(hd_file_read(path, OUT_BYTES_MAX, &file), HD_OK);
    assert_int_equal(strstr(path, ".npy")
                         ? hd_token_view_npy(file.data, (int64_t)file.len_bytes, &view)
                         : hd_token_view_llmc(file.data, (int64_t)file.len_bytes, &view),
                     HD_OK);
    assert_int_equal(hd_token_type_bytes(view.type), 2); /* 256 tokens fit 16 bits */
    ids = calloc((size_t)view.count + 1, 1);
    assert_non_null(ids);
    for (int64_t i = 0; i < view.count; i++)
        ids[i] = (char)hd_token_at(&view, i);
    *ret_count = view.count;
    hd_text_free(&file);
    return ids;
}

static void documents_stand_in_the_order_of_the_inputs(void **state)
{
    const char *outs[] = {"out.npy", "out.bin"};

    for (int i = 0; i < 2; i++) {
        const char *inputs[] = {put("b.txt", "second\n"), put("empty.txt", ""),
                                put("a.jsonl", "{\"text\": \"fir\\u0073t\", \"n\": 1}\n\n"
                                               "{\"text\": \"\"}\n{\"text\": \"last\"}")};
        const char *out = in_dir(outs[i]);
        const struct hd_tokenize job = {.tokenizer = bytes,
                                        .end_of_text = -1,
                                        .inputs = inputs,
                                        .input_count = 3,
                                        .out = out,
                                        .format = i ? HD_TOKEN_FORMAT_LLMC : HD_TOKEN_FORMAT_NPY,
                                        .threads = 2};
        struct hd_tokenize_counts counts;
        int64_t count = 0;
        char *ids;

        assert_int_equal(hd_tokenize_run(&job, &counts), HD_OK);
        ids = ids_of(out, &count);
        assert_string_equal(ids, "second\nfirstlast");
        assert_int_equal(count, 7 + 5 + 4);
        assert_int_equal(counts.tokens, count);
        assert_int_equal(counts.documents, 2 + 3); /* two files, three lines; the blank is none */
        free(ids);
    }
}

/* Tokenizes one file of records; returns the tokens as bytes, or NULL. */
static char *tokens_with(const char *path, const char *bad_rows, int threads,
                         struct hd_bad_rows *ret_bad, struct hd_tokenize_counts *ret_counts)
{
    const struct hd_tokenize job = {.tokenizer = bytes,
                                    .end_of_text = '.',
                                    .inputs = &path,
                                    .input_count = 1,
                                    .out = in_dir("good.npy"),
                                    .format = HD_TOKEN_FORMAT_NPY,
                                    .rows.bad_rows = bad_rows,
                                    .bad = ret_bad,
                                    .threads = threads};
    int64_t count;

    return hd_tokenize_run(&job, ret_counts) ? NULL : ids_of(job.out, &count);
}

static void says(const char *text)
{
    if (!strstr(hd_err_message(), text))
        fail_msg("'%s' does not say '%s'", hd_err_message(), text);
}

/* Goal: bad records are left out as if they were not in the file, are counted, and are an error
 * beyond the limit. Method: 40,000 records, so several pieces, of which each 150th is bad: 267 are
 * fewer than 1 in 100, and more than 266. */
static void bad_records_are_left_out_and_counted(void **state)
{
    static const char *const wrong[] = {"{\"text\": null}", "{\"text\": 5}", "no",
                                        "{\"txt\": \"a\"}"};
    struct hd_text text = {0}, want = {0};
    struct hd_bad_rows bad = {.count = 0};
    struct hd_tokenize_counts counts;
    const char *path, *wide;
    char *got;

    for (int i = 0; i < LINES; i++) {
        const bool is_bad = i % 150 == 149 || i == 0;

        if (is_bad)
            hd_text_add(&text, "%s\n", wrong[i % 4]);
        else
            hd_text_add(&text, "{\"text\": \"%d and some words to fill a piece\"}\n", i);
        if (!is_bad)
            hd_text_add(&want, "%d and some words to fill a piece.", i);
    }
    path = put("bad.jsonl", text.data);
    for (int threads = 1; threads < 4; threads += 2) {
        got = tokens_with(path, "skip", threads, &bad, &counts);
        assert_non_null(got);
        assert_string_equal(got, want.data);
        free(got);
        assert_int_equal(bad.count, 267); /* 40000 / 150 = 266, and the first */
        assert_int_equal(bad.records, LINES);
        assert_int_equal(counts.left_out, 267);
        assert_int_equal(counts.documents, LINES - 267);
        assert_non_null(strstr(bad.reasons.data, "bad.jsonl:1: its text is null\n"));
        assert_non_null(strstr(bad.reasons.data, "bad.jsonl:300: 'text' is missing"));
        assert_null(strstr(bad.reasons.data, "bad.jsonl:3000:")); /* the 21st */
        hd_bad_rows_free(&bad);
    }
    got = tokens_with(path, "skip:267", 2, NULL, &counts);
    assert_non_null(got);
    free(got);
    assert_null(tokens_with(path, "skip:266", 2, NULL, &counts));
    says(
        "data.bad_rows leaves out at most 266; mend the data, or write data.bad_rows: {skip: 267}; "
        "the first: ");
    assert_null(tokens_with(path, NULL, 2, NULL, &counts));
    says("bad.jsonl:1: its text is null");
    /* an error, and those that are shown are wanted: the piece with the 20th ends it */
    assert_null(tokens_with(path, "error", 2, &bad, &counts));
    says("cannot be used; mend or remove them, or leave them out: data.bad_rows: skip");
    assert_true(bad.count >= HD_BAD_ROWS_SHOWN && bad.count < 267);
    hd_bad_rows_free(&bad);
    /* one record in 150 is looked at: the first is bad, and the others are those behind a bad one */
    must(hd_tokenize_run(&(struct hd_tokenize){.tokenizer = bytes,
                                               .end_of_text = -1,
                                               .inputs = &path,
                                               .input_count = 1,
                                               .rows.bad_rows = "skip:1",
                                               .bad = &bad,
                                               .every = 150,
                                               .threads = 2},
                         &counts));
    assert_int_equal(bad.count, 1);
    assert_int_equal(bad.records, (LINES + 149) / 150);
    hd_bad_rows_free(&bad);
    /* 1 of 3 is 1 in 100, rounded up; a row of a table with too many fields is one */
    wide = put("wide.csv", "text,n\na,1\nb,2,3\nc,3\n");
    got = tokens_with(wide, "skip", 1, &bad, &counts);
    assert_non_null(got);
    assert_string_equal(got, "a.c.");
    assert_non_null(strstr(bad.reasons.data,
                           "wide.csv: row 2: the row, which begins in line 3, has "
                           "3 fields, and the first row has 2"));
    free(got);
    hd_bad_rows_free(&bad);
    hd_text_free(&text);
    hd_text_free(&want);
}

/* Goal: a file that is refused leaves the old output untouched. */
static void files_without_a_token_may_be_refused(void **state)
{
    const char *inputs[] = {put("none.txt", "")};
    struct hd_tokenize job = {.tokenizer = bytes,
                              .end_of_text = -1,
                              .inputs = inputs,
                              .input_count = 1,
                              .needs_tokens = true,
                              .out = put("kept.npy", "kept"),
                              .format = HD_TOKEN_FORMAT_NPY,
                              .threads = 1};
    struct hd_text kept = {0};

    assert_int_equal(hd_tokenize_run(&job, NULL), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "none.txt: the text has no token"));
    assert_int_equal(hd_file_read(job.out, 100, &kept), HD_OK);
    assert_string_equal(kept.data, "kept");
    hd_text_free(&kept);
    job.needs_tokens = false; /* one of several files of a job may be empty */
    assert_int_equal(hd_tokenize_run(&job, NULL), HD_OK);
}

/* Method: many pieces of work, one thread beside four. */
static void the_number_of_threads_changes_no_byte(void **state)
{
    struct hd_text text = {0}, files[2] = {{0}, {0}};
    const char *input;

    for (int i = 0; i < LINES; i++)
        hd_text_add(&text, "{\"body\": \"%d %0*d\"}\n", i, i % 300, i);
    input = put("many.jsonl", text.data);
    for (int i = 0; i < 2; i++) {
        const char *out = in_dir("many.npy");
        struct hd_tokenize job = {.tokenizer = bytes,
                                  .end_of_text = -1,
                                  .inputs = &input,
                                  .input_count = 1,
                                  .out = out,
                                  .rows.columns = "text=body",
                                  .threads = i ? 4 : 1};
        struct hd_tokenize_counts counts;

        assert_int_equal(hd_tokenize_run(&job, &counts), HD_OK);
        assert_int_equal(counts.documents, LINES);
        assert_int_equal(counts.read_bytes, text.len_bytes);
        assert_int_equal(hd_file_read(out, OUT_BYTES_MAX, &files[i]), HD_OK);
    }
    assert_true(files[0].len_bytes > 4 << 20); /* several pieces for each thread */
    assert_int_equal(files[0].len_bytes, files[1].len_bytes);
    assert_memory_equal(files[0].data, files[1].data, files[0].len_bytes);
    hd_text_free(&text);
    hd_text_free(&files[0]);
    hd_text_free(&files[1]);
}

static int files_in_dir(void)
{
    DIR *d = opendir(dir);
    int count = 0;

    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        count += e->d_name[0] != '.';
    (void)closedir(d);
    return count;
}

static bool never_on(void *context, const struct hd_tokenize_counts *so_far)
{
    return false;
}

/* Goal: a failure says where, and leaves what was there. */
static void a_failure_names_the_line_and_leaves_nothing_behind(void **state)
{
    const char *good = put("good.jsonl", "{\"text\": \"a\"}\n");
    const struct {
        const char *text, *story;
    } cases[] = {{"{\"text\": \"a\"}\n\n{\"text\": 7}\n", "bad.jsonl:3"},
                 {"{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", "bad.jsonl:2"},
                 {"{\"text\"\n", "bad.jsonl:1"}};
    struct hd_tokenize_counts counts;
    int before;

    (void)put("kept.npy", "what was there");
    for (size_t i = 0; i <= sizeof cases / sizeof cases[0]; i++) {
        const bool stops = i == sizeof cases / sizeof cases[0];
        const char *inputs[] = {good, stops ? good : put("bad.jsonl", cases[i].text)};
        struct hd_tokenize job = {.tokenizer = bytes,
                                  .end_of_text = -1,
                                  .inputs = inputs,
                                  .input_count = 2,
                                  .out = in_dir("kept.npy"),
                                  .threads = 3,
                                  .progress = stops ? never_on : NULL};
        struct hd_text kept = {0};

        before = files_in_dir();
        assert_int_equal(hd_tokenize_run(&job, &counts), stops ? HD_ABORTED : HD_INVALID);
        if (!stops)
            assert_non_null(strstr(hd_err_message(), cases[i].story));
        assert_int_equal(files_in_dir(), before);
        assert_int_equal(hd_file_read(in_dir("kept.npy"), 100, &kept), HD_OK);
        assert_string_equal(kept.data, "what was there");
        hd_text_free(&kept);
    }
}

/* ---- long texts ---- */

/* 3 MiB of words and lines, so that there are several pieces. */
static void make_long_text(struct hd_text *text)
{
    static const char *const lines[] = {"some words in a line\n", "  indented, 12 of them\n",
                                        "\xc3\xa9t\xc3\xa9\r\n", "\n\n",
                                        "\xe4\xb8\xad\xe6\x96\x87\n"};

    for (int i = 0; text->len_bytes < 3 << 20; i++)
        hd_text_add(text, "%s", lines[(i * 7 + i / 11) % 5]);
}

struct largest {
    int64_t step, before;
    int calls;
};

/* The ids that came out at once, in bytes of text. */
static bool see_steps(void *context, const struct hd_tokenize_counts *c)
{
    struct largest *l = context;

    if (c->read_bytes - l->before > l->step)
        l->step = c->read_bytes - l->before;
    l->before = c->read_bytes;
    l->calls++;
    return true;
}

/* Goal: a long text goes through in pieces, by several threads, and its ids are those of the whole.
 * Method: beside an encoder that gets all of it at once. */
static void a_long_text_has_the_ids_of_the_whole(void **state)
{
    struct hd_tokenizer *gpt2 = NULL;
    struct hd_encoder *encoder = NULL;
    struct hd_id_list whole = {0};
    struct hd_text text = {0};
    const char *input;

    assert_int_equal(golden_open(golden_path("gpt2.json"), &gpt2), HD_OK);
    make_long_text(&text);
    input = put("long.txt", text.data);
    assert_int_equal(hd_encoder_new(gpt2, &encoder), HD_OK);
    assert_int_equal(hd_encoder_add(encoder, text.data, text.len_bytes, &whole), HD_OK);
    for (int threads = 1; threads <= 4; threads += 3) {
        struct largest largest = {0};
        const struct hd_tokenize job = {.tokenizer = gpt2,
                                        .end_of_text = 7,
                                        .inputs = &input,
                                        .input_count = 1,
                                        .out = in_dir("long.npy"),
                                        .format = HD_TOKEN_FORMAT_NPY,
                                        .threads = threads,
                                        .progress = see_steps,
                                        .context = &largest};
        struct hd_text file = {0};
        struct hd_token_view view;

        assert_int_equal(hd_tokenize_run(&job, NULL), HD_OK);
        assert_int_equal(hd_file_read(job.out, OUT_BYTES_MAX, &file), HD_OK);
        assert_int_equal(hd_token_view_npy(file.data, (int64_t)file.len_bytes, &view), HD_OK);
        assert_int_equal(view.count, whole.count + 1);
        for (size_t i = 0; i < whole.count; i++)
            if (hd_token_at(&view, (int64_t)i) != whole.ids[i])
                fail_msg("id %zu is %d, of the whole text %d", i,
                         (int)hd_token_at(&view, (int64_t)i), whole.ids[i]);
        assert_int_equal(hd_token_at(&view, view.count - 1), 7);
        assert_true(largest.step < 3 << 19); /* a MiB and a half: no piece is the whole */
        hd_text_free(&file);
    }
    hd_encoder_free(encoder);
    hd_id_list_free(&whole);
    hd_tokenizer_close(gpt2);
    hd_text_free(&text);
}

/* ---- Megatron's two files ---- */

/* Goal: a sequence for each document, its end of text within. */
static void each_document_is_a_sequence_of_megatrons(void **state)
{
    const char *inputs[] = {put("one.txt", "first\n"), put("two.jsonl", "{\"text\": \"ab\"}\n"
                                                                        "{\"text\": \"\"}\n")};
    const struct hd_tokenize job = {.tokenizer = bytes,
                                    .end_of_text = 65536, /* which takes 32 bits */
                                    .inputs = inputs,
                                    .input_count = 2,
                                    .out = in_dir("mega"),
                                    .format = HD_TOKEN_FORMAT_MEGATRON,
                                    .threads = 2};
    static const int32_t expected[] = {'f',   'i', 'r', 's',   't',  '\n',
                                       65536, 'a', 'b', 65536, 65536};
    struct hd_text bin = {0}, idx = {0};
    struct hd_token_view view;

    assert_int_equal(hd_tokenize_run(&job, NULL), HD_OK);
    assert_int_equal(hd_file_read(in_dir("mega.bin"), OUT_BYTES_MAX, &bin), HD_OK);
    assert_int_equal(hd_file_read(in_dir("mega.idx"), OUT_BYTES_MAX, &idx), HD_OK);
    assert_int_equal(hd_token_view_megatron(bin.data, (int64_t)bin.len_bytes, idx.data,
                                            (int64_t)idx.len_bytes, &view),
                     HD_OK);
    assert_int_equal(hd_token_type_bytes(view.type), 4);
    assert_int_equal(view.count, 11);
    assert_int_equal(view.sequence_count, 3);
    assert_int_equal(view.document_count, 3);
    for (int i = 0; i < 11; i++)
        assert_int_equal(hd_token_at(&view, i), expected[i]);
    assert_int_equal(hd_token_next_document(&view, 0), 7);
    assert_int_equal(hd_token_next_document(&view, 7), 10);
    hd_text_free(&bin);
    hd_text_free(&idx);
}

/* ---- a full disk ---- */

/* Goal: it is said, and what was there stays. Method: the kernel lets no file grow past 64 KiB. */
static void a_full_disk_is_said_and_leaves_what_was_there(void **state)
{
    static const struct {
        enum hd_token_format format;
        const char *out, *kept;
    } cases[] = {{HD_TOKEN_FORMAT_NPY, "full.npy", "full.npy"},
                 {HD_TOKEN_FORMAT_LLMC, "full.bin", "full.bin"},
                 {HD_TOKEN_FORMAT_MEGATRON, "full", "full.idx"}};
    struct hd_text text = {0};
    struct rlimit before, small;
    void (*handler)(int);
    const char *input;

    make_long_text(&text);
    input = put("large.txt", text.data);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 64 * 1024;
    handler = signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        const char *kept = put(cases[i].kept, "what was there");
        const struct hd_tokenize job = {.tokenizer = bytes,
                                        .end_of_text = -1,
                                        .inputs = &input,
                                        .input_count = 1,
                                        .out = in_dir(cases[i].out),
                                        .format = cases[i].format,
                                        .threads = 2};
        const int files = files_in_dir();
        struct hd_text file = {0};

        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        assert_int_equal(hd_tokenize_run(&job, NULL), HD_STORAGE);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_non_null(strstr(hd_err_message(), job.out));
        assert_non_null(strstr(hd_err_message(), strerror(EFBIG)));
        assert_int_equal(files_in_dir(), files);
        assert_int_equal(hd_file_read(kept, 100, &file), HD_OK);
        assert_string_equal(file.data, "what was there");
        hd_text_free(&file);
    }
    (void)signal(SIGXFSZ, handler);
    hd_text_free(&text);
}

/* Also by a name of tokens, whose first bytes are not looked at. */
static void an_input_that_is_a_pipe_is_refused_without_waiting(void **state)
{
    static const char *const names[] = {"pipe.txt", "pipe.jsonl", "pipe.npy"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *input = in_dir(names[i]);
        const struct hd_tokenize job = {.tokenizer = bytes,
                                        .end_of_text = -1,
                                        .inputs = &input,
                                        .input_count = 1,
                                        .threads = 1};

        assert_int_equal(mkfifo(input, 0600), 0);
        assert_int_equal(hd_tokenize_run(&job, NULL), HD_INVALID);
        assert_non_null(strstr(hd_err_message(), "is not a regular file"));
    }
}

/* ---- what stands at the place ---- */

/* Goal: what is no file, or would be read as another format, is refused before the work, and stays.
 */
static void a_place_that_is_taken_is_refused(void **state)
{
    const struct {
        enum hd_token_format format;
        const char *out, *story;
    } cases[] = {
        {HD_TOKEN_FORMAT_NPY, "folder.npy", "folder.npy exists and is not a regular file"},
        {HD_TOKEN_FORMAT_MEGATRON, "mega2", "mega2.bin exists and is not a regular file"},
        {HD_TOKEN_FORMAT_LLMC, "mega2.bin", "mega2.bin exists and is not a regular file"},
        {HD_TOKEN_FORMAT_LLMC, "stale.bin", "it would be read as one of Megatron's"},
        {HD_TOKEN_FORMAT_NPY, "none/a.npy",
         "none/a.npy: No such file or directory; create its folder"},
    };

    assert_int_equal(mkdir(in_dir("folder.npy"), 0700), 0);
    assert_int_equal(mkdir(in_dir("mega2.bin"), 0700), 0);
    (void)put("mega2.idx", "an old index");
    (void)put("stale.idx", "an old index");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *input = put("placed.txt", "text");
        const struct hd_tokenize job = {.tokenizer = bytes,
                                        .end_of_text = -1,
                                        .inputs = &input,
                                        .input_count = 1,
                                        .out = in_dir(cases[i].out),
                                        .format = cases[i].format,
                                        .threads = 1};
        const int files = files_in_dir();

        assert_int_equal(hd_tokenize_run(&job, NULL), i == 4 ? HD_IO : HD_INVALID);
        if (!strstr(hd_err_message(), cases[i].story))
            fail_msg("'%s' does not say '%s'", hd_err_message(), cases[i].story);
        assert_int_equal(files_in_dir(), files);
    }
    assert_true(hd_file_exists(in_dir("mega2.idx")));
}

/* Goal: whoever stops does not wait for all of a long line to be read. Method: one of more bytes
 * than a line may have; the length would be the failure if it were read to its end. */
static void a_stop_is_heard_while_a_line_is_read(void **state)
{
    char text[2 * HD_DATA_HEAD_BYTES] = {0};
    const char *input = put("endless.jsonl", memset(text, 'x', sizeof text - 1));
    const struct hd_tokenize job = {.tokenizer = bytes,
                                    .end_of_text = -1,
                                    .inputs = &input,
                                    .input_count = 1,
                                    .out = in_dir("endless.npy"),
                                    .format = HD_TOKEN_FORMAT_NPY,
                                    .threads = 1,
                                    .progress = never_on};

    assert_int_equal(truncate(input, (off_t)300 << 20), 0); /* takes no room */
    assert_int_equal(hd_tokenize_run(&job, NULL), HD_ABORTED);
}

/* Goal: progress is told to its end. */
static void the_last_that_is_told_is_all(void **state)
{
    struct largest largest = {0};
    struct hd_text text = {0};
    const char *input;
    struct hd_tokenize job = {.tokenizer = bytes,
                              .end_of_text = -1,
                              .inputs = &input,
                              .input_count = 1,
                              .out = in_dir("told.npy"),
                              .format = HD_TOKEN_FORMAT_NPY,
                              .threads = 2,
                              .progress = see_steps,
                              .context = &largest};
    struct hd_tokenize_counts counts;

    make_long_text(&text);
    input = put("told.txt", text.data);
    hd_text_free(&text);
    assert_int_equal(hd_tokenize_run(&job, &counts), HD_OK);
    assert_int_equal(counts.read_bytes, counts.total_bytes);
    assert_int_equal(largest.before, counts.total_bytes);
    assert_true(largest.calls >= 3); /* of 3 MiB in pieces of one */
}

RUN_CASES_BETWEEN(make_dir, remove_dir)
