/* tokenize_files: what `heddle data tokenize` writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "data/token_file.h"
#include "data/tokenize_files.h"

enum { LINES = 40000, OUT_BYTES_MAX = 64 << 20 };

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/tokenize_files_test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
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
    char *bytes;

    assert_int_equal(hd_file_read(path, OUT_BYTES_MAX, &file), HD_OK);
    assert_int_equal(strstr(path, ".npy")
                         ? hd_token_view_npy(file.data, (int64_t)file.len_bytes, &view)
                         : hd_token_view_llmc(file.data, (int64_t)file.len_bytes, &view),
                     HD_OK);
    assert_int_equal(hd_token_type_bytes(view.type), 2); /* 256 tokens fit 16 bits */
    bytes = calloc((size_t)view.count + 1, 1);
    assert_non_null(bytes);
    for (int64_t i = 0; i < view.count; i++)
        bytes[i] = (char)hd_token_at(&view, i);
    *ret_count = view.count;
    hd_text_free(&file);
    return bytes;
}

static void documents_stand_in_the_order_of_the_inputs(void **state)
{
    const char *outs[] = {"out.npy", "out.bin"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *inputs[] = {put("b.txt", "second\n"), put("empty.txt", ""),
                                put("a.jsonl", "{\"text\": \"fir\\u0073t\", \"n\": 1}\n\n"
                                               "{\"text\": \"\"}\n{\"text\": \"last\"}")};
        const char *out = in_dir(outs[i]);
        struct hd_tokenize_job job = {
            .inputs = inputs, .input_count = 3, .out = out, .tokenizer = "bytes", .threads = 2};
        struct hd_tokenize_counts counts;
        int64_t count = 0;
        char *ids;

        assert_int_equal(hd_tokenize_files(&job, &counts), HD_OK);
        ids = ids_of(out, &count);
        assert_string_equal(ids, "second\nfirstlast");
        assert_int_equal(count, 7 + 5 + 4);
        assert_int_equal(counts.tokens, count);
        assert_int_equal(counts.documents, 2 + 3); /* two files, three lines; the blank is none */
        free(ids);
    }
}

/* Method: many pieces of work, one thread beside four. */
static void the_number_of_threads_changes_no_byte(void **state)
{
    struct hd_text text = {0}, files[2] = {{0}, {0}};
    const char *input;

    (void)state;
    for (int i = 0; i < LINES; i++)
        hd_text_add(&text, "{\"body\": \"%d %0*d\"}\n", i, i % 300, i);
    input = put("many.jsonl", text.data);
    for (int i = 0; i < 2; i++) {
        const char *out = in_dir("many.npy");
        struct hd_tokenize_job job = {.inputs = &input,
                                      .input_count = 1,
                                      .out = out,
                                      .tokenizer = "bytes",
                                      .key = "body",
                                      .threads = i ? 4 : 1};
        struct hd_tokenize_counts counts;

        assert_int_equal(hd_tokenize_files(&job, &counts), HD_OK);
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
    (void)context;
    (void)so_far;
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

    (void)state;
    (void)put("kept.npy", "what was there");
    for (size_t i = 0; i <= sizeof cases / sizeof cases[0]; i++) {
        const bool stops = i == sizeof cases / sizeof cases[0];
        const char *inputs[] = {good, stops ? good : put("bad.jsonl", cases[i].text)};
        struct hd_tokenize_job job = {.inputs = inputs,
                                      .input_count = 2,
                                      .out = in_dir("kept.npy"),
                                      .tokenizer = "bytes",
                                      .threads = 3,
                                      .progress = stops ? never_on : NULL};
        struct hd_text kept = {0};

        before = files_in_dir();
        assert_int_equal(hd_tokenize_files(&job, &counts), stops ? HD_ABORTED : HD_INVALID);
        if (!stops)
            assert_non_null(strstr(hd_err_message(), cases[i].story));
        assert_int_equal(files_in_dir(), before);
        assert_int_equal(hd_file_read(in_dir("kept.npy"), 100, &kept), HD_OK);
        assert_string_equal(kept.data, "what was there");
        hd_text_free(&kept);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_stand_in_the_order_of_the_inputs),
        cmocka_unit_test(the_number_of_threads_changes_no_byte),
        cmocka_unit_test(a_failure_names_the_line_and_leaves_nothing_behind),
    };

    return cmocka_run_group_tests_name("tokenize_files", tests, make_dir, remove_dir);
}
