#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

const char good[] = "name: tiny\n"                                  /*  1 */
                    "model:\n"                                      /*  2 */
                    "  family: llama\n"                             /*  3 */
                    "  layers: 2\n"                                 /*  4 */
                    "  hidden: 64\n"                                /*  5 */
                    "  heads: 8\n"                                  /*  6 */
                    "  context: 32\n"                               /*  7 */
                    "data:\n"                                       /*  8 */
                    "  train: [corpus/*.txt]\n"                     /*  9 */
                    "  val: [corpus/val.txt]\n"                     /* 10 */
                    "train:\n"                                      /* 11 */
                    "  steps: 100\n"                                /* 12 */
                    "  global_batch: 8\n"                           /* 13 */
                    "  lr: 1e-3\n"                                  /* 14 */
                    "parallel: {tp: auto}\n"                        /* 15 */
                    "resources: {device_type: auto, devices: 2}\n"; /* 16 */

const size_t good_bytes = sizeof good - 1;

char folder[64];

struct hd_arena jobs;

void put_file(const char *name, size_t size_bytes)
{
    char path[128], data[1024];

    memset(data, 'x', sizeof data);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hd_file_write_atomic(path, data, size_bytes, 0644), HD_OK);
}

void put_text(const char *name, const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0644), HD_OK);
}

void put_array(const char *name, const char *type, int count, int last)
{
    static const char version_1[] = "\x93NUMPY\1\0\x76"; /* 0x76 = 118 bytes follow, as u16 */
    char path[128], descr[96], head[119];
    struct hd_text bytes = {0};

    (void)snprintf(descr, sizeof descr, "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }",
                   type, count);
    (void)snprintf(head, sizeof head, "%-117s\n", descr);
    hd_text_add_bytes(&bytes, version_1, 10);
    hd_text_add_bytes(&bytes, head, 118);
    for (int i = 0; i < count; i++) {
        const uint16_t id = (uint16_t)(i + 1 < count ? i % 100 : last);

        hd_text_add_bytes(&bytes, (const char *)&id, sizeof id);
    }
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hd_file_write_atomic(path, bytes.data, bytes.len_bytes, 0644), HD_OK);
    hd_text_free(&bytes);
}

void change_text(const char *name, const char *from, const char *to)
{
    struct hd_text bytes = {0};
    char path[128], *at;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(hd_file_read(path, 1 << 16, &bytes), HD_OK);
    at = memmem(bytes.data, bytes.len_bytes, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    assert_int_equal(hd_file_write_atomic(path, bytes.data, bytes.len_bytes, 0644), HD_OK);
    hd_text_free(&bytes);
}

int make_corpus(void **state)
{
    char path[128];

    hd_arena_init(&jobs, 0);
    (void)snprintf(folder, sizeof folder, "%s/heddle-spec-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(folder))
        return -1;
    (void)snprintf(path, sizeof path, "%s/corpus/folder.txt", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    (void)snprintf(path, sizeof path, "%s/empty", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_file("corpus/b.txt", 100);
    put_file("corpus/a.txt", 300);
    put_file("corpus/B.txt", 200);
    put_file("corpus/val.txt", 50);
    put_text("corpus/x.jsonl", "{\"text\": \"a document of more than thirty-two bytes\"}\n");
    put_file("corpus/x.idx", 50);
    put_file("short.txt", 32);
    put_file("long.txt", 33);
    return 0;
}

int drop_corpus(void **state)
{
    hd_arena_done(&jobs);
    return hd_file_remove_tree(folder) ? -1 : 0;
}

enum hd_status read_bytes(const void *bytes, size_t size_bytes, const char *override,
                          struct hd_job **ret_job)
{
    const struct hd_spec_source source = {
        .name = "job.yaml",
        .folder = folder,
        .bytes = bytes,
        .size_bytes = size_bytes,
        .overrides = &override,
        .override_count = override != NULL,
    };

    struct hd_job *job = hd_arena_alloc(&jobs, sizeof *job);
    enum hd_status st;

    assert_non_null(job);
    st = hd_spec_read_yaml(&source, &jobs, job);
    if (!st)
        *ret_job = job;
    return st;
}

struct hd_job *read_good(const char *override)
{
    struct hd_job *spec = NULL;
    enum hd_status st = read_bytes(good, good_bytes, override, &spec);

    if (st)
        fail_msg("%s", hd_err_message());
    return spec;
}

char *with_line(int line, const char *text)
{
    struct hd_text out = {0};
    const char *p = good;

    for (int i = 1; *p; i++) {
        const char *end = strchr(p, '\n') + 1;

        if (i == line)
            hd_text_add(&out, "%s\n", text);
        else
            hd_text_add_bytes(&out, p, (size_t)(end - p));
        p = end;
    }
    return out.data;
}

void expect_refusals(const struct mistake *rows, size_t count, enum hd_status status)
{
    for (size_t i = 0; i < count; i++) {
        char *text = with_line(rows[i].line, rows[i].text);
        struct hd_job *spec = NULL;
        enum hd_status st = read_bytes(text, strlen(text), NULL, &spec);

        if (spec)
            fail_msg("row %zu: %s", i, rows[i].message);
        assert_string_equal(hd_err_message(), rows[i].message);
        assert_int_equal(st, status);
        free(text);
    }
}
