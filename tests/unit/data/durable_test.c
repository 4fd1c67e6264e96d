/* A crash between any two steps of a publication: of token files, and of a file that is written
 * atomically, as calibrations, identities, lists of names and references are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "data/data.h"
#include "data/token_writer.h"
#include "tests/program/test.h"
#include "tests/unit/checkpoint/disk.h"

enum { OLD = 3, NEW = 5, COMPLAINED = 78 }; /* so many ids, each of that value */

static char folder[64];

static int make_folder(void **state)
{
    (void)snprintf(folder, sizeof folder, "%s/durable-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    return hd_file_remove_tree(folder) ? -1 : 0;
}

static const char *at(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Runs `publish` in a child that ends at the given call; 0: at none. Returns its exit status. */
static int cut(void (*publish)(const void *what), const void *what, int call)
{
    int status = 0;
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        disk_watch_below("/durable-");
        disk_cut_at(call);
        publish(what);
        if (disk_complaint_count()) {
            (void)fprintf(stderr, "%s\n", disk_complaint());
            _exit(COMPLAINED);
        }
        _exit(disk_pending_count() ? COMPLAINED : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- token files ---- */

struct tokens {
    enum hd_token_format format;
    const char *out, *bin; /* of the writer; of readers */
    int32_t count;         /* OLD or NEW */
};

static void write_tokens(const void *what)
{
    const struct tokens *t = what;
    static const char counts[NEW] = {1, 1, 1, 1, 1};
    struct hd_token_writer *w = NULL;
    int32_t ids[NEW];
    enum hd_status st = hd_token_writer_open(t->out, t->format, 2, &w);

    for (int i = 0; i < t->count; i++)
        ids[i] = t->count;
    if (!st && t->format == HD_TOKEN_FORMAT_COUNTS)
        st = hd_token_writer_add_document(w, ids, counts, t->count);
    else if (!st)
        st = hd_token_writer_add(w, ids, t->count);
    if (!st && t->format != HD_TOKEN_FORMAT_COUNTS)
        st = hd_token_writer_end_document(w);
    if (!st)
        st = hd_token_writer_finish(w);
    if (st) {
        (void)fprintf(stderr, "%s\n", hd_err_message());
        _exit(COMPLAINED);
    }
}

/* OLD or NEW, if the file is whole and nothing of the other one; 0: it is refused. */
static int32_t read_tokens(const char *bin)
{
    const struct hd_corpus_file file = {.path = bin, .size_bytes = -1};
    struct hd_corpus *corpus = NULL;
    int32_t ids[NEW] = {0};
    int64_t count;

    if (hd_corpus_open(&file, 1, &corpus))
        return 0;
    count = hd_corpus_token_count(corpus);
    assert_true(count == OLD || count == NEW);
    assert_int_equal(hd_corpus_read(corpus, 0, count, ids), HD_OK);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(ids[i], count);
    hd_corpus_close(corpus);
    return (int32_t)count;
}

/* Goal: a crash at any instant leaves the old tokens, the new ones, or a file that readers refuse
 * and the next try replaces: never an index beside the ids of another file. Method: cut at every
 * call of a publication, with and without a former file, in each format. */
static void a_crash_at_any_instant_mixes_no_token_files(void **state)
{
    static const struct {
        enum hd_token_format format;
        const char *out, *bin;
        bool has_index;
    } formats[] = {{HD_TOKEN_FORMAT_NPY, "a.npy", "a.npy", false},
                   {HD_TOKEN_FORMAT_LLMC, "l.bin", "l.bin", false},
                   {HD_TOKEN_FORMAT_MEGATRON, "m", "m.bin", true},
                   {HD_TOKEN_FORMAT_COUNTS, "c", "c.bin", true}};

    for (size_t f = 0; f < 2 * sizeof formats / sizeof formats[0]; f++) {
        const bool had = f % 2;
        const char *bin = at(formats[f / 2].bin), *out = at(formats[f / 2].out);
        struct tokens t = {formats[f / 2].format, out, bin, NEW}, old = t;
        int seen[NEW + 1] = {0}, call = 1, status;
        char idx[160];

        old.count = OLD;
        for (;; call++) {
            assert_int_equal(hd_file_remove_tree(folder), HD_OK);
            assert_int_equal(hd_file_make_dirs(folder, 0700), HD_OK);
            if (had)
                write_tokens(&old);
            status = cut(write_tokens, &t, call);
            if (status != DISK_CUT_STATUS)
                break;
            seen[read_tokens(bin)]++;
            (void)snprintf(idx, sizeof idx, "%s.idx", out);
            if (formats[f / 2].has_index && hd_file_exists(idx)) /* it is taken for the whole */
                assert_int_not_equal(read_tokens(bin), 0);
            write_tokens(&t); /* the next try */
            assert_int_equal(read_tokens(bin), NEW);
        }
        assert_int_equal(status, 0);
        assert_true(call > 4);
        assert_true(seen[had ? OLD : 0] > 0 && seen[NEW] > 0);
        /* a former file is refused for a while only where it has an index */
        assert_true(!had || formats[f / 2].has_index || !seen[0]);
    }
}

/* ---- one file ---- */

static void write_text(const void *what)
{
    if (hd_file_write_atomic(at("file"), what, strlen(what), 0600))
        _exit(COMPLAINED);
}

/* Goal: what is published as one file is the old one or the new one after a crash. */
static void a_crash_leaves_an_atomic_file_old_or_new(void **state)
{
    int old = 0, new = 0, status;

    for (int call = 1;; call++) {
        struct hd_text text = {0};

        write_text("the old text");
        status = cut(write_text, "a new text, and longer", call);
        if (status != DISK_CUT_STATUS)
            break;
        assert_int_equal(hd_file_read(at("file"), 100, &text), HD_OK);
        old += strcmp(text.data, "the old text") == 0;
        new += strcmp(text.data, "a new text, and longer") == 0;
        assert_int_equal(old + new, call);
        hd_text_free(&text);
    }
    assert_int_equal(status, 0);
    assert_true(old > 1 && new > 0);
}

RUN_CASES_BETWEEN(make_folder, drop_folder)
