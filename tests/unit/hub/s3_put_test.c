/* Copies of checkpoints to an imitation of an object store: in parts, interrupted, killed, refused. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "hub/s3.h"
#include "tests/imitation_s3/s3.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

/* The shard has three parts of 128 KiB and one of 1 KiB. */
enum { PART = 128 << 10, SHARD_BYTES = 3 * PART + 1024 };

struct fixture {
    struct imitation_s3 s3;
    struct hd_s3_settings settings;
    struct hd_s3_name name;
    struct hd_s3_copy copy;
    int64_t sent_bytes;
    char dir[TEMPORARY_BYTES];
    char shard[SHARD_BYTES];
};

static void write_file(const struct fixture *f, const char *name, const void *bytes, size_t count)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/step-5/%s", f->dir, name);
    must(hd_file_write_atomic(path, bytes, count, 0644));
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char path[PATH_MAX];

    assert_non_null(f);
    *state = f;
    for (size_t i = 0; i < SHARD_BYTES; i++)
        f->shard[i] = (char)(i * 37 >> 5);
    temporary_dir(f->dir, "s3-put");
    (void)snprintf(path, sizeof path, "%s/step-5/base", f->dir);
    must(hd_file_make_dirs(path, 0755));
    write_file(f, "rank-0.safetensors", f->shard, SHARD_BYTES);
    write_file(f, "base/tokenizer.json", "tokens", 6);
    write_file(f, "manifest.json", "manifest", 8);
    f->s3.id = "AKIDOFTHETEST";
    f->s3.secret = "secret";
    f->s3.part_bytes_min = PART;
    imitation_s3_start(&f->s3);
    (void)snprintf(f->settings.endpoint, sizeof f->settings.endpoint, "http://127.0.0.1:%d",
                   f->s3.port);
    (void)snprintf(f->settings.keys.id, sizeof f->settings.keys.id, "%s", f->s3.id);
    (void)snprintf(f->settings.keys.secret, sizeof f->settings.keys.secret, "%s", f->s3.secret);
    (void)snprintf(f->settings.keys_from, sizeof f->settings.keys_from, "the test");
    f->settings.pause_ms = 1;
    f->settings.part_bytes = PART;
    must(hd_s3_parse("s3://bucket/runs/attempt-1/step-5", &f->name));
    (void)snprintf(path, sizeof path, "%s/step-5", f->dir);
    f->copy = (struct hd_s3_copy){.settings = &f->settings,
                                  .name = &f->name,
                                  .dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                  .origin = "0123456789abcdef",
                                  .sent_bytes = &f->sent_bytes};
    assert_true(f->copy.dir_fd >= 0);
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    imitation_s3_stop(&f->s3);
    (void)close(f->copy.dir_fd);
    (void)hd_file_remove_tree(f->dir);
    free(f);
    return 0;
}

static const struct s3_stored *stored(const struct fixture *f, const char *below)
{
    char key[256];

    (void)snprintf(key, sizeof key, "runs/attempt-1/step-5/%s", below);
    return imitation_s3_find(&f->s3, "bucket", key);
}

static void expect_copy(const struct fixture *f)
{
    const struct s3_stored *shard = stored(f, "rank-0.safetensors");

    assert_non_null(shard);
    assert_int_equal(shard->size_bytes, SHARD_BYTES);
    assert_memory_equal(shard->bytes, f->shard, SHARD_BYTES);
    assert_non_null(stored(f, "base/tokenizer.json"));
    assert_non_null(stored(f, "manifest.json"));
}

static void expect_failure(struct fixture *f, enum hd_status st, const char *words)
{
    assert_int_equal(hd_s3_copy_folder(&f->copy), st);
    if (!strstr(hd_err_message(), words))
        fail_msg("'%s' does not say '%s'", hd_err_message(), words);
    assert_null(stored(f, "manifest.json"));
}

/* Goal: large files go in parts, all are there, and a second copy sends nothing. */
static void a_checkpoint_is_copied_once(void **state)
{
    struct fixture *f = *state;

    must(hd_s3_copy_folder(&f->copy));
    expect_copy(f);
    assert_true(hd_text_ends(stored(f, "rank-0.safetensors")->etag, "-4")); /* four parts */
    assert_int_equal(f->sent_bytes, SHARD_BYTES + 6 + 8);
    must(hd_s3_copy_folder(&f->copy));
    assert_int_equal(f->sent_bytes, SHARD_BYTES + 6 + 8);
    assert_int_equal(f->s3.refused_signatures, 0);
}

/* Goal: a copy of another checkpoint under the same name is replaced. */
static void an_older_copy_is_no_copy_of_this_one(void **state)
{
    struct fixture *f = *state;

    must(hd_s3_copy_folder(&f->copy));
    f->shard[0] ^= 1;
    write_file(f, "rank-0.safetensors", f->shard, SHARD_BYTES);
    f->copy.origin = "fedcba9876543210";
    must(hd_s3_copy_folder(&f->copy));
    expect_copy(f);
}

static void a_store_that_is_busy_gets_it_all(void **state)
{
    struct fixture *f = *state;

    f->s3.slow = 3;
    f->s3.cut_uploads = 3;
    f->s3.complete_errors = 2;
    must(hd_s3_copy_folder(&f->copy));
    expect_copy(f);
    assert_int_equal(imitation_s3_uploads(&f->s3), 0);
}

/* Goal: a copy that fails has no manifest, leaves no parts, and goes on later. */
static void a_copy_that_fails_is_not_whole(void **state)
{
    struct fixture *f = *state;

    f->s3.complete_errors = 100;
    expect_failure(f, HD_UNAVAILABLE, "InternalError");
    assert_int_equal(imitation_s3_uploads(&f->s3), 0);
    f->s3.complete_errors = 0;
    f->s3.lost_parts = 1;
    expect_failure(f, HD_INVALID, "InvalidPart");
    f->s3.expired = 100;
    expect_failure(f, HD_DENIED, "the keys of the test may not"); /* HEAD has no text */
    f->s3.expired = 0;
    must(hd_s3_copy_folder(&f->copy));
    expect_copy(f);
}

/* Copies in a child, which is killed when the store has a part of the shard. Returns when the store
 * has answered all that the child sent: a part that is stored later would replace a newer one. */
static void kill_in_the_middle(struct fixture *f)
{
    pid_t child;

    f->s3.pace_ms = 20; /* about two parts a tenth of a second */
    child = fork();
    if (!child) {
        (void)hd_s3_copy_folder(&f->copy);
        _exit(0);
    }
    for (int i = 0; i < 4000 && !imitation_s3_parts(&f->s3); i++)
        (void)usleep(5000);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (int i = 0; i < 1000 && imitation_s3_is_busy(&f->s3); i++)
        (void)usleep(5000);
    assert_false(imitation_s3_is_busy(&f->s3));
    assert_null(stored(f, "manifest.json"));
    assert_int_equal(imitation_s3_uploads(&f->s3), 1);
    f->s3.pace_ms = 0;
}

/* Goal: a process that is killed in the middle of a file leaves no manifest; the next copy goes on in
 * that file, and sends only what is not there. */
static void a_killed_copy_goes_on(void **state)
{
    struct fixture *f = *state;

    kill_in_the_middle(f);
    must(hd_s3_copy_folder(&f->copy));
    expect_copy(f);
    assert_in_range(f->sent_bytes, 6 + 8, SHARD_BYTES + 6 + 8 - 1024);
    assert_int_equal(imitation_s3_uploads(&f->s3), 0);
}

/* Goal: parts of other bytes are not joined. */
static void parts_of_another_file_are_sent_again(void **state)
{
    struct fixture *f = *state;

    kill_in_the_middle(f);
    for (size_t at = 0; at < SHARD_BYTES; at += PART)
        f->shard[at] ^= 1;
    write_file(f, "rank-0.safetensors", f->shard, SHARD_BYTES);
    must(hd_s3_copy_folder(&f->copy));
    expect_copy(f);
    assert_int_equal(f->sent_bytes, SHARD_BYTES + 6 + 8);
}

/* Goal: equal parts of an upload of another checkpoint do not keep its mark. */
static void the_mark_of_another_checkpoint_is_replaced(void **state)
{
    struct fixture *f = *state;

    f->copy.origin = "fedcba9876543210";
    kill_in_the_middle(f);
    f->copy.origin = "0123456789abcdef";
    must(hd_s3_copy_folder(&f->copy));
    expect_copy(f);
    assert_int_equal(imitation_s3_uploads(&f->s3), 0);
    must(hd_s3_copy_folder(&f->copy)); /* all is there with this mark */
    assert_true(f->sent_bytes < 2 * SHARD_BYTES + 6 + 8);
}

/* Goal: a link in a checkpoint leads heddled, which may be root, to no other file. */
static void links_are_not_followed(void **state)
{
    struct fixture *f = *state;
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/step-5/link", f->dir);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    must(hd_s3_copy_folder(&f->copy));
    assert_null(stored(f, "link"));
    (void)snprintf(path, sizeof path, "%s/step-5/manifest.json", f->dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hd_s3_copy_folder(&f->copy), HD_NOT_FOUND);
}

static void put_copy(struct fixture *f, const char *name, bool is_whole)
{
    char key[128];

    (void)snprintf(key, sizeof key, "runs/%s/rank-0.safetensors", name);
    imitation_s3_put(&f->s3, "bucket", key, "x", 1);
    (void)snprintf(key, sizeof key, "runs/%s/manifest.json", name);
    if (is_whole)
        imitation_s3_put(&f->s3, "bucket", key, "x", 1);
}

/* Goal: whole copies are listed newest first; one is removed with all its objects; the folder of
 * copies belongs to one job. */
static void copies_are_listed_removed_and_owned(void **state)
{
    struct fixture *f = *state;
    struct hd_s3_checkpoint *items = NULL;
    struct hd_s3_name runs;
    struct hd_arena arena;
    size_t count = 0;

    hd_arena_init(&arena, 0);
    must(hd_s3_parse("s3://bucket/runs", &runs));
    put_copy(f, "attempt-1/step-00000010", true);
    put_copy(f, "attempt-1/step-00000020", true);
    put_copy(f, "attempt-2/step-00000020", true);
    put_copy(f, "attempt-2/step-00000030", false);
    must(hd_s3_list_copies(&f->settings, &runs, NULL, &arena, &items, &count));
    assert_int_equal(count, 3);
    assert_string_equal(items[0].name, "attempt-2/step-00000020");
    assert_string_equal(items[2].name, "attempt-1/step-00000010");
    must(hd_s3_parse("s3://bucket/runs/attempt-1/step-00000010", &f->name));
    must(hd_s3_remove_copy(&f->settings, &f->name, NULL));
    must(hd_s3_list_copies(&f->settings, &runs, NULL, &arena, &items, &count));
    assert_int_equal(count, 2);
    assert_null(
        imitation_s3_find(&f->s3, "bucket", "runs/attempt-1/step-00000010/rank-0.safetensors"));
    must(hd_s3_claim(&f->settings, &runs, "cluster a job 1", NULL));
    must(hd_s3_claim(&f->settings, &runs, "cluster a job 1", NULL));
    assert_int_equal(hd_s3_claim(&f->settings, &runs, "cluster b job 1", NULL), HD_CONFLICT);
    f->s3.hidden = 1; /* another job claims between the question and the claim */
    assert_int_equal(hd_s3_claim(&f->settings, &runs, "cluster b job 1", NULL), HD_CONFLICT);
    must(hd_s3_claim(&f->settings, &runs, "cluster a job 1", NULL));
    hd_arena_done(&arena);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
