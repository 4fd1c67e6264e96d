#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

const char good[] = "name: tiny\n"                             /*  1 */
                    "model:\n"                                 /*  2 */
                    "  family: llama\n"                        /*  3 */
                    "  layers: 2\n"                            /*  4 */
                    "  hidden: 64\n"                           /*  5 */
                    "  heads: 8\n"                             /*  6 */
                    "  context: 32\n"                          /*  7 */
                    "data:\n"                                  /*  8 */
                    "  train: [corpus/*.txt]\n"                /*  9 */
                    "  val: [corpus/val.txt]\n"                /* 10 */
                    "train:\n"                                 /* 11 */
                    "  steps: 100\n"                           /* 12 */
                    "  global_batch: 8\n"                      /* 13 */
                    "  lr: 1e-3\n"                             /* 14 */
                    "parallel: {tp: auto}\n"                   /* 15 */
                    "resources: {device: auto, devices: 2}\n"; /* 16 */

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

int make_corpus(void **state)
{
    char path[128];

    (void)state;
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
    put_file("corpus/x.jsonl", 50);
    put_file("corpus/x.idx", 50);
    put_file("short.txt", 32);
    return 0;
}

int drop_corpus(void **state)
{
    (void)state;
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
