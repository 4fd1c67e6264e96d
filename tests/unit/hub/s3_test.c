/* Downloads from an imitation of an object store, and what is done about each misbehaviour. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "hub/s3.h"
#include "tests/imitation_s3/s3.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

enum { LARGE_BYTES = 300000 };

#define ID     "AKIDOFTHETEST"
#define SECRET "Secret/Never+Seen"

struct fixture {
    struct imitation_s3 s3;
    struct hd_s3_settings settings;
    struct hd_s3_name name;
    struct hd_s3_request request;
    struct hd_s3_result result;
    struct hd_arena arena;
    char dir[TEMPORARY_BYTES];
    char large[LARGE_BYTES];
};

static void put(struct fixture *f, const char *key, const char *text)
{
    imitation_s3_put(&f->s3, "bucket", key, text, strlen(text));
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    *state = f;
    for (size_t i = 0; i < LARGE_BYTES; i++)
        f->large[i] = (char)(i * 31 >> 4);
    hd_arena_init(&f->arena, 0);
    temporary_dir(f->dir, "s3");
    f->s3.id = ID;
    f->s3.secret = SECRET;
    put(f, "data/a.jsonl", "{\"text\": \"a\"}\n");
    put(f, "data/b+ c&d.jsonl", "{\"text\": \"b\"}\n");
    put(f, "data/deep/c.jsonl", "{\"text\": \"c\"}\n");
    put(f, "data/README.md", "words\n");
    put(f, "data/_SUCCESS", "");
    imitation_s3_put(&f->s3, "bucket", "large.txt", f->large, LARGE_BYTES);
    imitation_s3_start(&f->s3);
    (void)snprintf(f->settings.endpoint, sizeof f->settings.endpoint, "http://127.0.0.1:%d",
                   f->s3.port);
    (void)snprintf(f->settings.cache, sizeof f->settings.cache, "%s/cache", f->dir);
    (void)snprintf(f->settings.keys.id, sizeof f->settings.keys.id, "%s", ID);
    (void)snprintf(f->settings.keys.secret, sizeof f->settings.keys.secret, "%s", SECRET);
    (void)snprintf(f->settings.keys_from, sizeof f->settings.keys_from, "the test");
    f->settings.pause_ms = 1;
    f->request.settings = &f->settings;
    f->request.name = &f->name;
    f->request.is_data = true;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    imitation_s3_stop(&f->s3);
    hd_arena_done(&f->arena);
    (void)hd_file_remove_tree(f->dir);
    free(f);
    return 0;
}

static enum hd_status get(struct fixture *f, const char *name)
{
    must(hd_s3_parse(name, &f->name));
    return hd_s3_get(&f->request, &f->arena, &f->result);
}

static void expect_failure(struct fixture *f, const char *name, enum hd_status st,
                           const char *words)
{
    assert_int_equal(get(f, name), st);
    if (!strstr(hd_err_message(), words))
        fail_msg("'%s' does not say '%s'", hd_err_message(), words);
    if (strstr(hd_err_message(), SECRET))
        fail_msg("'%s' has the secret key", hd_err_message());
}

static void expect_file(const char *path, const void *bytes, size_t count)
{
    struct hd_text text = {0};

    must(hd_file_read(path, 1 << 20, &text));
    assert_int_equal(text.len_bytes, count);
    assert_memory_equal(text.data ? text.data : "", bytes, count);
    hd_text_free(&text);
}

static void expect_large(struct fixture *f)
{
    must(get(f, "s3://bucket/large.txt"));
    assert_int_equal(f->result.file_count, 1);
    assert_true(hd_text_ends(f->result.paths, "/large.txt"));
    expect_file(f->result.paths, f->large, LARGE_BYTES);
}

static int request_count(const struct fixture *f)
{
    return __atomic_load_n(&f->s3.requests, __ATOMIC_RELAXED);
}

/* Goal: a folder means the files of data below it, a pattern its matches in one folder, and each page
 * of a list, each odd key is read. */
static void a_folder_and_a_pattern_mean_their_objects(void **state)
{
    struct fixture *f = *state;

    f->s3.page_keys = 2;
    must(get(f, "s3://bucket/data/"));
    assert_int_equal(f->result.file_count, 3); /* not README.md, _SUCCESS */
    expect_file(f->result.files[1].path, "{\"text\": \"b\"}\n", 14);
    assert_string_equal(f->result.files[1].rel, "b+ c&d.jsonl");
    must(get(f, "s3://bucket/data"));
    assert_int_equal(f->result.file_count, 3);
    must(get(f, "s3://bucket/data/*.jsonl"));
    assert_int_equal(f->result.file_count, 2);
    assert_int_equal(f->result.fetched_bytes, 0);
    assert_non_null(strstr(f->result.paths, "/[a].jsonl\n"));
    assert_int_equal(f->s3.refused_signatures, 0);
    expect_failure(f, "s3://bucket/data/*.parquet", HD_NOT_FOUND, "data/*.parquet");
    expect_failure(f, "s3://bucket/none/", HD_NOT_FOUND, "nothing at s3://bucket/none/");
    expect_failure(f, "s3://other/x.txt", HD_NOT_FOUND, "no bucket other");
}

/* Goal: an object that was changed has another path, and the old one keeps its bytes. */
static void a_path_means_the_same_bytes_for_ever(void **state)
{
    struct fixture *f = *state;
    const char *before;

    must(get(f, "s3://bucket/data/a.jsonl"));
    before = f->result.paths;
    put(f, "data/a.jsonl", "{\"text\": \"z\"}\n");
    must(get(f, "s3://bucket/data/a.jsonl"));
    assert_string_not_equal(before, f->result.paths);
    expect_file(before, "{\"text\": \"a\"}\n", 14);
    expect_file(f->result.paths, "{\"text\": \"z\"}\n", 14);
}

static void expect_tree(const char *folder, const char *file, const char *text)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    if (text)
        expect_file(path, text, strlen(text));
    else
        assert_int_equal(access(path, F_OK), -1);
}

/* Goal: of a model its files come, without pickles and others; of a checkpoint all, if it is whole. */
static void a_model_and_a_checkpoint_are_folders(void **state)
{
    struct fixture *f = *state;
    struct hd_text from = {0};
    struct stat info;

    f->request.is_data = false;
    put(f, "m/config.json", "{}");
    put(f, "m/model.safetensors", "weights");
    put(f, "m/pytorch_model.bin", "pickle");
    put(f, "m/notes.txt", "notes");
    must(get(f, "s3://bucket/m"));
    expect_tree(f->result.paths, "model.safetensors", "weights");
    expect_tree(f->result.paths, "pytorch_model.bin", NULL);
    expect_tree(f->result.paths, "notes.txt", NULL);
    assert_true(hd_s3_describe(f->result.paths, &from));
    assert_string_equal(from.data, "s3://bucket/m");
    hd_text_free(&from);
    put(f, "runs/step-5/rank-0.safetensors", "shard");
    put(f, "runs/step-5/base/tokenizer.json", "tokens");
    expect_failure(f, "s3://bucket/runs/step-5", HD_NOT_FOUND, "no whole copy of a checkpoint");
    put(f, "runs/step-5/manifest.json", "manifest");
    must(get(f, "s3://bucket/runs/step-5/"));
    expect_tree(f->result.paths, "base/tokenizer.json", "tokens");
    expect_tree(f->result.paths, "manifest.json", "manifest");
    assert_int_equal(stat(f->result.paths, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0755); /* ranks of other users read it */
    expect_failure(f, "s3://bucket/data", HD_NOT_FOUND, "is no model");
}

/* Goal: an index is beside its token file, which may be named alone. */
static void a_token_file_comes_with_its_index(void **state)
{
    struct fixture *f = *state;
    char index[PATH_MAX];

    put(f, "t/x.bin", "tokens");
    put(f, "t/x.idx", "index");
    for (int i = 0; i < 2; i++) {
        must(get(f, i ? "s3://bucket/t/*" : "s3://bucket/t/x.bin"));
        assert_int_equal(f->result.file_count, 1);
        (void)snprintf(index, sizeof index, "%.*s.idx", (int)strlen(f->result.files[0].path) - 4,
                       f->result.files[0].path);
        expect_file(index, "index", 5);
    }
}

/* ---- misbehaviour ---- */

static void a_busy_store_is_asked_again(void **state)
{
    struct fixture *f = *state;

    f->s3.slow = 3;
    f->s3.broken = 2;
    expect_large(f);
    f->s3.slow = 1000;
    put(f, "late.txt", "late");
    expect_failure(f, "s3://bucket/late.txt", HD_UNAVAILABLE, "HTTP status 503");
}

/* Goal: a download that is cut goes on where it was: half of 300,000 bytes, half of the rest, and the
 * rest are asked for, so at most one piece of 64 KiB comes twice. */
static void a_cut_download_goes_on(void **state)
{
    struct fixture *f = *state;

    f->s3.cuts = 2;
    expect_large(f);
    assert_in_range(f->s3.sent_bytes, LARGE_BYTES, LARGE_BYTES + 65536);
}

static void a_store_without_ranges_sends_all_again(void **state)
{
    struct fixture *f = *state;

    f->s3.cuts = 1;
    f->s3.ignored_ranges = 1;
    expect_large(f);
}

/* Goal: bytes that are wrong once are read again, bytes that differ each time are refused, and an
 * ETag that is no MD5 of the bytes is not. */
static void wrong_bytes_get_no_name(void **state)
{
    struct fixture *f = *state;
    struct s3_stored *o;

    f->s3.wrong_bytes = 1;
    expect_large(f);
    o = (struct s3_stored *)(uintptr_t)imitation_s3_find(&f->s3, "bucket", "large.txt");
    (void)snprintf(o->etag, sizeof o->etag, "0123456789abcdef0123456789abcdef");
    expect_large(f);
}

/* Goal: the bytes of two versions of an object are never mixed. */
static void an_object_that_changes_meanwhile_is_refused(void **state)
{
    struct fixture *f = *state;

    f->s3.wrong_etags = 1;
    expect_failure(f, "s3://bucket/large.txt", HD_CONFLICT, "was changed while it was read");
    expect_large(f);
}

static void the_region_that_a_store_names_is_taken(void **state)
{
    struct fixture *f = *state;

    f->s3.region = "eu-north-1";
    expect_large(f); /* HEAD: by a header */
    must(get(f, "s3://bucket/data/"));
}

/* Goal: each refusal says what to do, and none has the secret key. */
static void refusals_say_what_to_do(void **state)
{
    struct fixture *f = *state;

    f->s3.expired = 1;
    expect_failure(f, "s3://bucket/data/", HD_DENIED, "has expired");
    f->s3.skewed = 1;
    expect_failure(f, "s3://bucket/data/", HD_DENIED, "its clock says 2001-02-03T04:05:06Z");
    f->s3.session = "session";
    expect_failure(f, "s3://bucket/data/", HD_DENIED, "the test");
    (void)snprintf(f->settings.keys.session, sizeof f->settings.keys.session, "session");
    must(get(f, "s3://bucket/data/"));
    f->settings.keys.secret[0] = 'X';
    expect_failure(f, "s3://bucket/data/", HD_DENIED, "the secret key of the test");
    f->settings.anonymous = true;
    expect_failure(f, "s3://bucket/data/", HD_DENIED, "is not public");
    f->settings.anonymous = false;
    memset(&f->settings.keys, 0, sizeof f->settings.keys);
    expect_failure(f, "s3://bucket/data/", HD_DENIED, "set AWS_ACCESS_KEY_ID");
}

/* Goal: without a network the cache is used, if it has all that the name meant. */
static void the_cache_is_read_without_a_store(void **state)
{
    struct fixture *f = *state;
    const int before = request_count(f);

    f->request.cache_only = true;
    expect_failure(f, "s3://bucket/data/", HD_NOT_FOUND, "not whole, in the cache");
    assert_int_equal(request_count(f), before);
    f->request.cache_only = false;
    must(get(f, "s3://bucket/data/"));
    f->request.cache_only = true;
    must(get(f, "s3://bucket/data/"));
    assert_int_equal(f->result.file_count, 3);
    f->request.cache_only = false;
    f->s3.broken = 1000;
    must(get(f, "s3://bucket/data/"));
    assert_true(f->result.unreachable);
}

/* ---- settings ---- */

static void write_text(const struct fixture *f, const char *name, const char *text)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/%s", f->dir, name);
    must(hd_file_write_atomic(path, text, strlen(text), 0600));
    assert_int_equal(
        setenv(strcmp(name, "config") == 0 ? "AWS_CONFIG_FILE" : "AWS_SHARED_CREDENTIALS_FILE",
               path, 1),
        0);
}

static void clear_environment(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_PROFILE",
                                        "AWS_REGION",
                                        "AWS_DEFAULT_REGION",
                                        "AWS_ENDPOINT_URL",
                                        "AWS_ENDPOINT_URL_S3",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CA_BUNDLE"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unsetenv(names[i]);
}

/* Goal: the environment goes before a profile, and a profile that Heddle cannot use says so. */
static void keys_are_found_in_the_order_of_amazons_command(void **state)
{
    struct fixture *f = *state;
    struct hd_s3_settings *s = &f->settings;

    clear_environment();
    write_text(f, "credentials",
               "[default]\naws_access_key_id = A1\naws_secret_access_key=S1\n\n"
               "[other]\naws_access_key_id=A2\naws_secret_access_key=S2\naws_session_token = T2\n");
    write_text(
        f, "config",
        "[default]\nregion = eu-west-1\n[profile other]\nendpoint_url = https://minio:9000/\n"
        "[profile sso]\nsso_session = x\n");
    must(hd_s3_read_settings(s));
    assert_string_equal(s->keys.id, "A1");
    assert_string_equal(s->region, "eu-west-1");
    assert_int_equal(setenv("AWS_PROFILE", "other", 1), 0);
    must(hd_s3_read_settings(s));
    assert_string_equal(s->keys.secret, "S2");
    assert_string_equal(s->keys.session, "T2");
    assert_string_equal(s->endpoint, "https://minio:9000");
    assert_int_equal(setenv("AWS_PROFILE", "sso", 1), 0);
    must(hd_s3_read_settings(s));
    assert_non_null(strstr(s->keys_problem, "sso_session"));
    assert_int_equal(setenv("AWS_ACCESS_KEY_ID", "A3", 1), 0);
    assert_int_equal(hd_s3_read_settings(s), HD_INVALID);
    assert_int_equal(setenv("AWS_SECRET_ACCESS_KEY", "S3", 1), 0);
    must(hd_s3_read_settings(s));
    assert_string_equal(s->keys.id, "A3");
    assert_int_equal(setenv("AWS_ENDPOINT_URL", "http://minio:9000", 1), 0);
    assert_int_equal(hd_s3_read_settings(s), HD_INVALID); /* no TLS */
    clear_environment();
}

/* Starts a service of keys that expire at `expiration`, an object of a store without keys, and has `f` use it. */
static struct imitation_s3 *start_key_service(struct fixture *f, const char *expiration)
{
    struct imitation_s3 *service = calloc(1, sizeof *service);
    char keys[256];

    assert_non_null(service);
    (void)snprintf(keys, sizeof keys,
                   "{\"AccessKeyId\":\"" ID "\",\"SecretAccessKey\":\"" SECRET
                   "\",\"Token\":\"session\",\"Expiration\":\"%s\"}",
                   expiration);
    imitation_s3_put(service, "bucket", "keys", keys, strlen(keys));
    imitation_s3_start(service);
    f->s3.session = "session";
    memset(&f->settings.keys, 0, sizeof f->settings.keys);
    (void)snprintf(f->settings.container_url, sizeof f->settings.container_url,
                   "http://127.0.0.1:%d/bucket/keys", service->port);
    return service;
}

static void keys_of_a_container_come_from_its_service(void **state)
{
    struct fixture *f = *state;
    struct imitation_s3 *service = start_key_service(f, "2099-01-01T00:00:00Z");

    must(get(f, "s3://bucket/data/"));
    assert_int_equal(request_count(f) > 0 && service->requests == 1, 1); /* kept for all requests */
    imitation_s3_stop(service);
    free(service);
}

/* Goal: while keys are valid, a service that cannot renew them stops nothing. They expire in a minute, so every
 * request renews them, and the service ends behind the first. */
static void keys_sign_until_they_expire_if_their_service_is_away(void **state)
{
    struct fixture *f = *state;
    const time_t soon = time(NULL) + 60;
    struct imitation_s3 *service;
    struct tm utc;
    char text[32];

    assert_non_null(gmtime_r(&soon, &utc));
    assert_true(strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0);
    service = start_key_service(f, text);
    service->answers = 1;
    must(get(f, "s3://bucket/data/"));
    assert_true(service->requests > 1);
    imitation_s3_stop(service);
    free(service);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
