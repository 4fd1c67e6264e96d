/* Job files: the files that they name by paths, patterns and names of the hub. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/file.h"

static void refuse_files(int line, const char *text, const char *fmt)
{
    char *yaml = with_line(line, text), message[512];
    struct hd_job *spec = NULL;

    (void)snprintf(message, sizeof message, "%s", "");
    assert_int_not_equal(read_bytes(yaml, strlen(yaml), NULL, &spec), HD_OK);
    for (const char *p = fmt; *p; p++) { /* @ is replaced by the folder's path */
        size_t len = strlen(message);

        if (*p == '@')
            (void)snprintf(message + len, sizeof message - len, "%s", folder);
        else
            (void)snprintf(message + len, sizeof message - len, "%c", *p);
    }
    assert_string_equal(hd_err_message(), message);
    free(yaml);
}

static void a_file_that_cannot_be_used_is_named(void **state)
{
    refuse_files(9, "  train:\n  - corpus/a.txt\n  - corpus/none.txt",
                 "job.yaml:11: data.train[1]: cannot find @/corpus/none.txt: No such file or "
                 "directory; check the path, which is relative to the job file's folder");
    refuse_files(9, "  train: empty/*",
                 "job.yaml:9: data.train[0]: 'empty/*' matches no file; it is searched as "
                 "@/empty/*");
    refuse_files(9, "  train: corpus/folder.tx*",
                 "job.yaml:9: data.train[0]: 'corpus/folder.tx*' matches no file; it is searched "
                 "as @/corpus/folder.tx*");
    refuse_files(9, "  train: corpus",
                 "job.yaml:9: data.train[0]: @/corpus is a folder; name the files in it, such as "
                 "*.txt");
    refuse_files(9, "  train: /dev/null",
                 "job.yaml:9: data.train[0]: /dev/null is not a regular file; copy its data "
                 "to one");
    refuse_files(9, "  train: [\"a\\nb\"]",
                 "job.yaml:9: data.train[0]: '@/a?b' has a control character in its name (a "
                 "line break, an escape ...); rename it");
    refuse_files(
        9, "  train: corpus/x.idx",
        "job.yaml:9: data.train[0]: @/corpus/x.idx is an index; give its .bin file instead");
    put_text("bad.jsonl", "\nno json, and more than the thirty-three bytes of a sequence\n");
    refuse_files(9, "  train: bad.jsonl",
                 "job.yaml:9: data.train[0]: @/bad.jsonl:2: the line is no JSON object; write {..} "
                 "around its keys");
    refuse_files(9, "  train: short.txt",
                 "job.yaml:9: data.train: 32 bytes are less than one sequence of model.context + 1 "
                 "= 33; give more text or lower model.context");
    refuse_files(9, "  train: [corpus/a.txt, corpus/val.txt]",
                 "job.yaml:9: data.train: @/corpus/val.txt is in data.val too; remove it from one");
}

/* A folder that names itself among its files would be read again without end. */
static void a_saved_set_has_its_files_in_its_folder(void **state)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/set", folder);
    assert_int_equal(hd_file_make_dirs(path, 0755), HD_OK);
    put_text("set/state.json", "{\"_data_files\":[{\"filename\":\".\"}]}");
    refuse_files(9, "  train: set",
                 "job.yaml:9: data.train[0]: @/set/state.json: 'filename' is '.', which names no "
                 "file of the folder");
}

/* Names of roles, and what becomes of bad records, are checked and kept as text. */
static void roles_and_bad_rows_are_maps_or_words(void **state)
{
    static const struct mistake rows[] = {
        {9, "  train: chat.jsonl\n  roles: {Bob: narrator}",
         "job.yaml:10: data.roles: 'narrator' is no role; write system, developer, user, assistant "
         "or "
         "tool"},
        {9, "  train: chat.jsonl\n  bad_rows: {drop: 3}",
         "job.yaml:10: data.bad_rows: expected error, skip or {skip: COUNT}"},
        {9, "  train: chat.jsonl\n  bad_rows: ignore",
         "job.yaml:10: data.bad_rows: 'ignore' is not error, skip or skip: COUNT"},
        {9, "  train: corpus/*.txt\n  bad_rows: skip",
         "job.yaml:10: data.bad_rows: no file of this job has records, so it would change nothing; "
         "remove the line"},
        {9, "  train: corpus/*.txt\n  roles: {Bob: user}",
         "job.yaml:10: data.roles: no file of this job has conversations, so it would change "
         "nothing; remove the line, or name files of conversations in data.train"},
    };
    struct hd_job *job = NULL;
    char *yaml;

    put_text("chat.jsonl", "no record\n{\"text\": \"of a text that is longer than a window\"}\n");
    expect_refusals(rows, sizeof rows / sizeof rows[0], HD_INVALID);
    yaml = with_line(9, "  train: chat.jsonl\n  bad_rows: {skip: 3}");
    must(read_bytes(yaml, strlen(yaml), NULL, &job));
    assert_string_equal(job->bad_rows, "skip:3");
    free(yaml);
    yaml = with_line(9, "  train: chat.jsonl");
    assert_int_equal(read_bytes(yaml, strlen(yaml), NULL, &job), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "chat.jsonl:1: the line is no JSON object"));
    free(yaml);
}

static void patterns_give_files_in_bytewise_order_with_sizes(void **state)
{
    struct hd_job *spec = read_good(NULL);
    static const char *const names[] = {"B.txt", "a.txt", "b.txt"};
    static const int64_t sizes[] = {200, 300, 100};

    /* B before a, whatever the locale; not folder.txt, a folder; not val.txt, which data.val has */
    assert_int_equal(spec->train_count, 3);
    for (size_t i = 0; i < 3; i++) {
        char path[128];

        (void)snprintf(path, sizeof path, "%s/corpus/%s", folder, names[i]);
        assert_string_equal(spec->train[i].path, path);
        assert_int_equal(spec->train[i].size_bytes, sizes[i]);
    }
    assert_int_equal(spec->val_count, 1);
    assert_int_equal(spec->val[0].size_bytes, 50);
}

/* A name without a suffix may be one of the hub; a path with a suffix is none. */
static void a_name_of_the_hub_is_told_from_a_path(void **state)
{
    static const char *const pages[][2] = {
        {"datasets/org/set/tree/main", "; write hf://datasets/org/set"},
        {"datasets/org/set/blob/main/d/a.txt", "; write hf://datasets/org/set/d/a.txt"},
        {"datasets/org/set/resolve/v1/tree/a.txt#L1",
         "; write hf://datasets/org/set@v1/tree/a.txt"},
    };

    refuse_files(9, "  train: org/set",
                 "job.yaml:9: data.train[0]: cannot find @/org/set: No such file or directory; "
                 "check the path, which is relative to the job file's folder; files of a data set "
                 "of the Hugging Face hub are written hf://datasets/ORG/NAME/FILE");
    refuse_files(9, "  train: ['https://huggingface.co/datasets/org/set']",
                 "job.yaml:9: data.train[0]: cannot find @/https://huggingface.co/datasets/org/"
                 "set: No such file or directory; check the path, which is relative to the job "
                 "file's folder; write hf://datasets/org/set");
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        struct hd_job *job = NULL;
        char line[128], *yaml;

        (void)snprintf(line, sizeof line, "  train: ['https://huggingface.co/%s']", pages[i][0]);
        yaml = with_line(9, line);
        assert_int_equal(read_bytes(yaml, strlen(yaml), NULL, &job), HD_INVALID);
        if (!hd_text_ends(hd_err_message(), pages[i][1]))
            fail_msg("%s", hd_err_message());
        free(yaml);
    }
    refuse_files(
        9, "  train: ['hf://datasets/org/set/a.txt']",
        "job.yaml:9: data.train[0]: names such as hf:// and s3:// cannot be looked up here; give "
        "a path");
}

/* Names become the paths that the caller finds: a file's and, below a folder, a pattern; or several, a
 * line each. */
static enum hd_status locate_corpus(void *user, const char *name, bool is_data,
                                    struct hd_text *ret_path)
{
    assert_true(is_data);
    if (strcmp(name, "s3://bucket/two/") == 0) {
        hd_text_add(ret_path, "%s/corpus/[b].txt\n%s/corpus/B.txt", (const char *)user,
                    (const char *)user);
        return HD_OK;
    }
    assert_int_equal(strncmp(name, "hf://datasets/org/set/", 22), 0);
    if (strcmp(name + 22, "gone") == 0)
        return hd_err(HD_UNAVAILABLE, "the hub cannot be reached");
    hd_text_add(ret_path, "%s/corpus/%s", (const char *)user, name + 22);
    return HD_OK;
}

static void names_of_the_hub_become_paths(void **state)
{
    char *yaml = with_line(9, "  train: ['hf://datasets/org/set/[ab].txt', corpus/B.txt]");
    struct hd_spec_source source = {.name = "job.yaml",
                                    .folder = folder,
                                    .bytes = yaml,
                                    .size_bytes = strlen(yaml),
                                    .locate = locate_corpus,
                                    .locate_user = folder};
    struct hd_job *job = hd_arena_alloc(&jobs, sizeof *job);

    must(hd_spec_read_yaml(&source, &jobs, job));
    assert_int_equal(job->train_count, 3);
    assert_true(hd_text_ends(job->train[0].path, "/corpus/a.txt"));
    assert_true(hd_text_ends(job->train[1].path, "/corpus/b.txt"));
    assert_true(hd_text_ends(job->train[2].path, "/corpus/B.txt"));
    free(yaml);
    yaml = with_line(9, "  train: ['s3://bucket/two/', corpus/a.txt]");
    source.bytes = yaml;
    source.size_bytes = strlen(yaml);
    must(hd_spec_read_yaml(&source, &jobs, job));
    assert_int_equal(job->train_count, 3);
    assert_true(hd_text_ends(job->train[0].path, "/corpus/b.txt"));
    assert_true(hd_text_ends(job->train[1].path, "/corpus/B.txt"));
    assert_true(hd_text_ends(job->train[2].path, "/corpus/a.txt"));
    free(yaml);
    yaml = with_line(9, "  train: ['hf://datasets/org/set/gone']");
    source.bytes = yaml;
    source.size_bytes = strlen(yaml);
    assert_int_equal(hd_spec_read_yaml(&source, &jobs, job), HD_UNAVAILABLE);
    assert_string_equal(hd_err_message(), "job.yaml:9: data.train[0]: the hub cannot be reached");
    free(yaml);
}

/* Counts and takes the opens of files that a watch of their folder has seen. The watch sees them
 * closed, too, as the kernel joins equal events that follow each other. */
static int count_opens(int watch)
{
    char bytes[16384] __attribute__((aligned(__alignof__(struct inotify_event))));
    int count = 0;
    ssize_t n;

    while ((n = read(watch, bytes, sizeof bytes)) > 0)
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *e = (const struct inotify_event *)(bytes + at);

            assert_false(e->mask & IN_Q_OVERFLOW);
            count += (e->mask & IN_OPEN) && !(e->mask & IN_ISDIR);
            at += (ssize_t)sizeof *e + e->len;
        }
    return count;
}

/* On a file system of a network each open is a message. 20 files of one entry: 16 are read for
 * their kind and, if they have records, for their form, and all for their fingerprint. */
static void each_look_at_a_file_of_many_opens_it_once(void **state)
{
    static const struct {
        const char *ending;
        int opens;
    } rows[] = {{"txt", 16 * 2 + 4}, {"jsonl", 16 * 3 + 4}};

    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        char name[128], line[64], *yaml;
        struct hd_job *job = NULL;

        (void)snprintf(name, sizeof name, "%s/%s", folder, rows[r].ending);
        assert_int_equal(hd_file_make_dirs(name, 0755), HD_OK);
        assert_true(watch >= 0 && inotify_add_watch(watch, name, IN_OPEN | IN_CLOSE) >= 0);
        for (int i = 0; i < 20; i++) {
            (void)snprintf(name, sizeof name, "%s/%d.%s", rows[r].ending, i, rows[r].ending);
            put_text(name, "{\"text\": \"a document of more than thirty-two bytes\"}\n");
        }
        (void)count_opens(watch);
        (void)snprintf(line, sizeof line, "  train: %s/*", rows[r].ending);
        yaml = with_line(9, line);
        must(read_bytes(yaml, strlen(yaml), NULL, &job));
        assert_int_equal(count_opens(watch), rows[r].opens);
        assert_false(hd_spec_has_conversations(job)); /* one file tells it, by two opens at most */
        assert_true(count_opens(watch) <= 2);
        assert_int_equal(job->documents, r ? HD_JOB_DOCUMENTS_BOUNDED : HD_JOB_DOCUMENTS_JOINED);
        free(yaml);
        (void)close(watch);
    }
}

RUN_CASES_BETWEEN(make_corpus, drop_corpus)
