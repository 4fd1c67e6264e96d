/* Downloads from an imitation of the hub into a cache, and what is done about each misbehaviour. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "hub/hub.h"
#include "tests/imitation_hub/imitation.h"
#include "tests/program/test.h"
#include "tests/temporary.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define LATER  "89abcdef0123456789abcdef0123456789abcdef"

enum { WEIGHTS_BYTES = 300000 };

struct fixture {
    struct imitation hub;
    struct imitation_repo *model; /* org/model: config.json and model.safetensors */
    struct hd_hub_settings settings;
    struct hd_hub_name name;
    struct hd_hub_request request;
    struct hd_hub_result result;
    struct hd_arena arena;
    char dir[TEMPORARY_BYTES];
    char weights[WEIGHTS_BYTES];
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    *state = f;
    for (size_t i = 0; i < WEIGHTS_BYTES; i++)
        f->weights[i] = (char)(i * 31 >> 4);
    hd_arena_init(&f->arena, 0);
    temporary_dir(f->dir, "hub");
    f->model = &f->hub.repos[f->hub.repo_count++];
    f->model->id = "org/model";
    f->model->commit = COMMIT;
    imitation_add(f->model, "config.json", "hello\n", 6, false);
    imitation_add(f->model, "model.safetensors", f->weights, WEIGHTS_BYTES, true);
    imitation_start(&f->hub);
    (void)snprintf(f->settings.endpoint, sizeof f->settings.endpoint, "http://127.0.0.1:%d",
                   f->hub.port);
    (void)snprintf(f->settings.cache, sizeof f->settings.cache, "%s/cache", f->dir);
    f->settings.pause_ms = 2;
    must(hd_hub_parse("hf://org/model", false, false, &f->name));
    f->request.settings = &f->settings;
    f->request.name = &f->name;
    f->request.mode = HD_HUB_NEWEST;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    imitation_stop(&f->hub);
    hd_arena_done(&f->arena);
    (void)hd_file_remove_tree(f->dir);
    free(f);
    return 0;
}

static enum hd_status get(struct fixture *f)
{
    return hd_hub_get(&f->request, &f->arena, &f->result);
}

static int64_t sent_bytes(const struct fixture *f)
{
    return __atomic_load_n(&f->hub.sent_bytes, __ATOMIC_RELAXED);
}

static int request_count(const struct fixture *f)
{
    return __atomic_load_n(&f->hub.requests, __ATOMIC_RELAXED);
}

static void expect_failure(struct fixture *f, enum hd_status st, const char *words)
{
    assert_int_equal(get(f), st);
    if (!strstr(hd_err_message(), words))
        fail_msg("'%s' does not say '%s'", hd_err_message(), words);
}

/* Reads a file of the cache's folder of org/model. */
static void expect_bytes(const struct fixture *f, const char *below, const void *bytes,
                         size_t count)
{
    struct hd_text text = {0};
    char path[512];

    (void)snprintf(path, sizeof path, "%s/cache/models--org--model/%s", f->dir, below);
    must(hd_file_read(path, 1 << 20, &text));
    assert_int_equal(text.len_bytes, count);
    assert_memory_equal(text.data, bytes, count);
    hd_text_free(&text);
}

static void expect_weights(const struct fixture *f)
{
    expect_bytes(f, "snapshots/" COMMIT "/model.safetensors", f->weights, WEIGHTS_BYTES);
}

static bool cache_has(const struct fixture *f, const char *below)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/cache/models--org--model/%s", f->dir, below);
    return access(path, F_OK) == 0;
}

/* Writes a file into the cache's folder of org/model. */
static void put(const struct fixture *f, const char *below, const char *text)
{
    char path[512], *slash;

    (void)snprintf(path, sizeof path, "%s/cache/models--org--model/%s", f->dir, below);
    slash = strrchr(path, '/');
    *slash = '\0';
    must(hd_file_make_dirs(path, 0777));
    *slash = '/';
    must(hd_file_write_atomic(path, text, strlen(text), 0644));
}

static void put_link(const struct fixture *f, const char *below, const char *target)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/cache/models--org--model/%s", f->dir, below);
    assert_int_equal(symlink(target, path), 0);
}

/* ---- the layout ---- */

/* The hash of "hello\n": `printf 'hello\n' | git hash-object --stdin`. */
static void files_arrive_in_the_layout_of_huggingface_hub(void **state)
{
    static const char hello[] = "ce013625030ba8dba906f756967f9e9ca394464a";
    struct fixture *f = *state;
    char path[512], target[512] = "", blob[256];

    must(get(f));
    assert_string_equal(f->result.commit, COMMIT);
    assert_int_equal(f->result.file_count, 2);
    assert_int_equal(f->result.size_bytes, 6 + WEIGHTS_BYTES);
    assert_int_equal(f->result.fetched_bytes, 6 + WEIGHTS_BYTES);
    expect_bytes(f, "refs/main", COMMIT, 40);
    expect_bytes(f, "snapshots/" COMMIT "/config.json", "hello\n", 6);
    expect_weights(f);
    (void)snprintf(blob, sizeof blob, "blobs/%s", hello);
    expect_bytes(f, blob, "hello\n", 6);
    (void)snprintf(blob, sizeof blob, "blobs/%s", f->model->files[1].sha256);
    expect_bytes(f, blob, f->weights, WEIGHTS_BYTES);
    (void)snprintf(path, sizeof path, "%s/config.json", f->result.snapshot);
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    (void)snprintf(path, sizeof path, "../../blobs/%s", hello);
    assert_string_equal(target, path);
    assert_true(cache_has(f, "trees/" COMMIT ".json"));
    (void)snprintf(path, sizeof path, "../.locks/models--org--model/%s.lock", hello);
    assert_true(cache_has(f, path));
}

static void a_second_time_no_file_is_downloaded(void **state)
{
    struct fixture *f = *state;
    int requests;

    must(get(f));
    requests = request_count(f);
    must(get(f));
    assert_int_equal(f->result.fetched_bytes, 0);
    assert_int_equal(request_count(f) - requests, 1); /* which commit is main? */
    assert_int_equal(sent_bytes(f), 6 + WEIGHTS_BYTES);
    must(hd_hub_parse("hf://org/model@" COMMIT, false, false, &f->name));
    must(get(f));
    assert_int_equal(request_count(f) - requests, 1); /* a commit cannot change */
}

static void the_cache_is_read_without_a_network(void **state)
{
    struct fixture *f = *state;

    f->settings.offline = true;
    expect_failure(f, HD_NOT_FOUND, "heddle fetch org/model");
    assert_int_equal(request_count(f), 0);
    f->settings.offline = false;
    must(get(f));
    (void)snprintf(f->settings.endpoint, sizeof f->settings.endpoint, "http://127.0.0.1:1");
    must(get(f));
    assert_true(f->result.unreachable);
    f->settings.offline = true;
    must(get(f));
    assert_false(f->result.unreachable);
    assert_string_equal(f->result.commit, COMMIT);
}

/* A branch that has moved: the old commit counts until the new one is whole. */
static void a_branch_is_the_commit_that_is_whole(void **state)
{
    struct fixture *f = *state;

    must(get(f));
    f->model->commit = LATER;
    imitation_add(f->model, "tokenizer.json", "{}", 2, false);
    f->request.mode = HD_HUB_CACHE_FIRST;
    must(get(f));
    assert_string_equal(f->result.commit, COMMIT);
    f->request.mode = HD_HUB_NEWEST;
    must(get(f));
    assert_string_equal(f->result.commit, LATER);
    assert_int_equal(f->result.fetched_bytes, 2); /* the other blobs are there */
    f->request.mode = HD_HUB_CACHE_ONLY;
    must(get(f));
    assert_string_equal(f->result.commit, LATER);
}

/* A cache as older versions of huggingface_hub leave it, or newer ones with a store shared by all
 * repositories: no list of the commit's files, and blobs that are links. */
static void a_cache_of_others_is_read(void **state)
{
    static const char index[] =
        "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}";
    struct fixture *f = *state;

    f->request.mode = HD_HUB_CACHE_ONLY;
    put(f, "refs/main", COMMIT);
    put(f, "snapshots/" COMMIT "/config.json", "{}");
    assert_int_equal(get(f), HD_NOT_FOUND); /* config.json alone was wanted */
    put(f, "snapshots/" COMMIT "/model.safetensors.index.json", index);
    put(f, "snapshots/" COMMIT "/m-1.safetensors", "1");
    assert_int_equal(get(f), HD_NOT_FOUND); /* its second file is missing */
    put(f, "../shared", "2");
    put_link(f, "snapshots/" COMMIT "/m-2.safetensors", "../../blobs/x");
    assert_int_equal(get(f), HD_NOT_FOUND); /* a broken link is not downloaded */
    put(f, "blobs/y", "");
    put_link(f, "blobs/x", "../../shared");
    must(get(f));
    assert_int_equal(f->result.file_count, 4);
}

/* ---- the token ---- */

static void the_token_does_not_go_to_another_host(void **state)
{
    struct fixture *f = *state;

    f->model->token = "hf_right";
    (void)snprintf(f->settings.token, sizeof f->settings.token, "hf_right");
    must(get(f));
    expect_weights(f);
    assert_int_equal(__atomic_load_n(&f->hub.tokens_at_hub, __ATOMIC_RELAXED),
                     4); /* commit, list, two files */
    assert_int_equal(__atomic_load_n(&f->hub.tokens_elsewhere, __ATOMIC_RELAXED), 0);
}

static void redirects_to_unprotected_hosts_are_not_followed(void **state)
{
    struct fixture *f = *state;

    f->hub.redirect = "http://192.0.2.1/file";
    expect_failure(f, HD_DENIED, "not followed");
    f->hub.redirect = "http://localhost:1@192.0.2.1/file"; /* "localhost" is a user's name here */
    expect_failure(f, HD_DENIED, "not followed");
    f->hub.redirect = "file:///etc/passwd";
    expect_failure(f, HD_DENIED, "not followed");
    f->hub.redirect = "/org/model/resolve/" COMMIT "/model.safetensors"; /* to itself */
    expect_failure(f, HD_CORRUPT, "more than 10 times");
}

static void refusals_say_what_to_do(void **state)
{
    struct fixture *f = *state;

    must(hd_hub_parse("hf://org/other", false, false, &f->name));
    expect_failure(f, HD_NOT_FOUND, "there is no model org/other");
    must(hd_hub_parse("hf://org/model@v9", false, false, &f->name));
    expect_failure(f, HD_NOT_FOUND, "has no branch, tag or commit v9");
    must(hd_hub_parse("hf://org/model", false, false, &f->name));
    f->model->token = "hf_right";
    expect_failure(f, HD_NOT_FOUND, "set HF_TOKEN");
    (void)snprintf(f->settings.token, sizeof f->settings.token, "hf_other");
    (void)snprintf(f->settings.token_from, sizeof f->settings.token_from, "HF_TOKEN");
    expect_failure(f, HD_DENIED, "has no right to read");
    f->model->is_gated = true;
    expect_failure(f, HD_DENIED, "/org/model with your account");
    assert_non_null(strstr(hd_err_message(), "Access to it is restricted"));
    (void)snprintf(f->settings.token, sizeof f->settings.token, "wrong");
    expect_failure(f, HD_DENIED, "does not accept the token of HF_TOKEN");
}

static void a_renamed_repository_is_found(void **state)
{
    struct fixture *f = *state;

    f->model->old_id = "org/old";
    f->model->token = "hf_right";
    (void)snprintf(f->settings.token, sizeof f->settings.token, "hf_right");
    must(hd_hub_parse("hf://org/old", false, false, &f->name));
    f->request.include = (const char *const[]){"nothing"};
    f->request.include_count = 1; /* the imitation renames its API alone */
    expect_failure(f, HD_NOT_FOUND, "it has config.json, model.safetensors");
}

/* ---- broken transfers ---- */

/* Half of 200,000 bytes arrive, then half of the rest, then the rest: none twice. */
static void a_cut_download_goes_on_where_it_stopped(void **state)
{
    struct fixture *f = *state;

    imitation_add(f->model, "big.safetensors.json", f->weights, 200000, true);
    f->request.include = (const char *const[]){"big*"};
    f->request.include_count = 1;
    f->hub.cuts = 2;
    must(get(f));
    assert_int_equal(sent_bytes(f), 200000);
    expect_bytes(f, "snapshots/" COMMIT "/big.safetensors.json", f->weights, 200000);
}

static void a_host_without_ranges_is_asked_from_the_beginning(void **state)
{
    struct fixture *f = *state;

    f->hub.cuts = 1;
    f->hub.ignored_ranges = 1;
    must(get(f));
    expect_weights(f);
    f->hub.cuts = 1;
    f->hub.other_ranges = 1;
    (void)snprintf(f->settings.cache, sizeof f->settings.cache, "%s/cache2", f->dir);
    must(get(f));
}

static void wrong_bytes_are_thrown_away(void **state)
{
    struct fixture *f = *state;

    f->hub.wrong_bytes = 1;
    must(get(f));
    expect_weights(f);
    expect_bytes(f, "snapshots/" COMMIT "/config.json", "hello\n", 6);
    (void)hd_file_remove_tree(f->settings.cache);
    f->hub.wrong_bytes = 1000;
    expect_failure(f, HD_CORRUPT, "other bytes than the hub lists");
    assert_false(cache_has(f, "snapshots/" COMMIT "/model.safetensors"));
    assert_false(cache_has(f, "refs/main"));
    f->hub.wrong_bytes = 0;
    must(get(f));
    expect_weights(f);
}

static void a_file_of_another_length_is_not_kept(void **state)
{
    struct fixture *f = *state;

    f->hub.short_bytes = 2;
    must(get(f));
    expect_weights(f);
    (void)hd_file_remove_tree(f->settings.cache);
    f->hub.long_bytes = 1000;
    expect_failure(f, HD_CORRUPT, "sent more than the");
    assert_false(cache_has(f, "refs/main"));
}

/* A loop of redirects says nothing about the bytes that an earlier download has left. */
static void a_part_outlives_other_failures(void **state)
{
    struct fixture *f = *state;
    char part[256];

    (void)snprintf(part, sizeof part, "blobs/%s.incomplete", f->model->files[1].sha256);
    put(f, part, "begun");
    f->hub.redirect = "/org/model/resolve/" COMMIT "/model.safetensors"; /* to itself */
    expect_failure(f, HD_CORRUPT, "more than 10 times");
    expect_bytes(f, part, "begun", 5);
}

/* A part that another version, or a bad disk, has left is found out by its hash. */
static void a_wrong_part_does_no_harm(void **state)
{
    struct fixture *f = *state;
    char part[256];

    (void)snprintf(part, sizeof part, "blobs/%s.incomplete", f->model->files[1].sha256);
    put(f, part, "something else");
    must(get(f));
    expect_weights(f);
}

static void a_busy_hub_is_asked_again(void **state)
{
    struct fixture *f = *state;

    f->hub.busy = 2;
    f->hub.retry_after = "0";
    f->hub.broken = 2;
    f->hub.expired = 1;
    must(get(f));
    expect_weights(f);
    f->hub.busy = 1000;
    f->hub.retry_after = "9999"; /* longer than a download waits */
    (void)hd_file_remove_tree(f->settings.cache);
    expect_failure(f, HD_UNAVAILABLE, "for another 9999 s");
    f->hub.retry_after = "9223372036854775807"; /* in milliseconds it overflows */
    expect_failure(f, HD_UNAVAILABLE, "for another 9223372036854775807 s");
}

static void a_hub_that_does_not_answer_is_named(void **state)
{
    struct fixture *f = *state;

    f->hub.broken = 1000;
    expect_failure(f, HD_UNAVAILABLE, "HTTP status 500");
    (void)snprintf(f->settings.endpoint, sizeof f->settings.endpoint, "http://127.0.0.1:1");
    expect_failure(f, HD_UNAVAILABLE, "127.0.0.1 cannot be reached");
}

static void an_interrupted_download_ends_at_once(void **state)
{
    static const volatile sig_atomic_t stop = 1;
    struct fixture *f = *state;

    f->request.stop = &stop;
    assert_int_equal(get(f), HD_ABORTED);
    f->request.stop = NULL;
    must(get(f));
}

/* ---- several at once ---- */

static void *get_in_thread(void *user)
{
    const struct fixture *f = user;
    struct hd_hub_result result;
    struct hd_arena arena;

    hd_arena_init(&arena, 0);
    must(hd_hub_get(&f->request, &arena, &result));
    hd_arena_done(&arena);
    return NULL;
}

static void two_downloads_share_the_work(void **state)
{
    struct fixture *f = *state;
    pthread_t threads[2];

    f->hub.pace_ms = 5;
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_in_thread, f), 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(sent_bytes(f), 6 + WEIGHTS_BYTES);
    expect_weights(f);
}

/* The lock is that of filelock, the package that huggingface_hub uses: flock on the same file. */
static void the_lock_of_another_process_is_waited_for(void **state)
{
    static volatile sig_atomic_t stop;
    struct fixture *f = *state;
    pthread_t thread;
    char path[512];
    int lock;

    (void)snprintf(path, sizeof path, "%s/cache/.locks/models--org--model", f->dir);
    must(hd_file_make_dirs(path, 0777));
    (void)snprintf(path, sizeof path, "%s/cache/.locks/models--org--model/%s.lock", f->dir,
                   f->model->files[1].sha256);
    must(hd_file_lock(path, &lock));
    stop = 0;
    f->request.stop = &stop;
    assert_int_equal(pthread_create(&thread, NULL, get_in_thread, f), 0);
    while (!cache_has(f, "snapshots/" COMMIT "/config.json"))
        (void)usleep(1000);
    assert_false(cache_has(f, "snapshots/" COMMIT "/model.safetensors"));
    (void)close(lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    expect_weights(f);
}

/* ---- what is in a repository ---- */

static void a_list_of_several_pages_is_read_whole(void **state)
{
    struct fixture *f = *state;

    imitation_add(f->model, "generation_config.json", "{}", 2, false);
    imitation_add(f->model, "tokenizer.json", "[]", 2, false);
    imitation_add(f->model, "LICENSE", "MIT", 3, false);
    f->hub.page_files = 2;
    must(get(f));
    assert_int_equal(f->result.file_count, 5);
}

/* Only what Heddle reads: no code, no pickles, no second copy of the weights, no other
 * formats in folders. */
static void of_a_model_only_what_is_read_is_downloaded(void **state)
{
    static const char *const others[] = {
        "pytorch_model.bin",      "modeling_x.py",    "consolidated.safetensors",
        "model.fp16.safetensors", "onnx/config.json", "original/params.json",
        "training_args.bin",      "README.md",        "flax_model.msgpack"};
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        imitation_add(f->model, others[i], "x", 1, false);
    imitation_add(f->model, "additional_chat_templates/tool_use.jinja", "t", 1, false);
    must(get(f));
    assert_int_equal(f->result.file_count, 3);
    assert_true(cache_has(f, "snapshots/" COMMIT "/additional_chat_templates/tool_use.jinja"));
    f->request.include = (const char *const[]){"*.py"};
    f->request.include_count = 1;
    expect_failure(f, HD_INVALID, "modeling_x.py of org/model is code");
    f->request.include = (const char *const[]){"onnx/", "README.md"};
    f->request.include_count = 2;
    must(get(f));
    assert_int_equal(f->result.file_count, 2);
    f->request.exclude = (const char *const[]){"*.md"};
    f->request.exclude_count = 1;
    must(get(f));
    assert_int_equal(f->result.file_count, 1);
}

static void a_model_of_pickles_is_refused(void **state)
{
    struct fixture *f = *state;
    int64_t sent;

    f->model->files[1].path = "train.sh"; /* code is no weights, and is only left out */
    must(get(f));
    (void)hd_file_remove_tree(f->settings.cache);
    sent = sent_bytes(f);
    f->model->files[1].path = "pytorch_model.bin";
    expect_failure(f, HD_INVALID, "pytorch_model.bin alone");
    assert_non_null(strstr(hd_err_message(), "org/model@refs/pr/N"));
    assert_int_equal(sent_bytes(f), sent);
    put(f, "refs/main", COMMIT); /* another program wanted it nevertheless */
    f->model->files[1].path = "model.safetensors";
    f->model->commit = LATER; /* its owner has converted it */
    must(get(f));
    assert_string_equal(f->result.commit, LATER);
}

static void files_that_plain_http_does_not_serve_are_refused_first(void **state)
{
    struct fixture *f = *state;

    f->model->files[1].claimed_bytes = 50000000001;
    expect_failure(f, HD_UNSUPPORTED, "more than 50 GB");
    assert_int_equal(sent_bytes(f), 0);
}

static void a_full_disk_is_noticed_first(void **state)
{
    static char paths[60][32];
    struct fixture *f = *state;

    for (size_t i = 0; i < 60; i++) { /* 60 x 49 GB: 2.9 TB */
        (void)snprintf(paths[i], sizeof paths[i], "m-%zu.json", i);
        imitation_add(f->model, paths[i], f->weights, 1000 + i, true);
        f->model->files[f->model->file_count - 1].claimed_bytes = 49000000000;
    }
    f->request.include = (const char *const[]){"*"};
    f->request.include_count = 1;
    f->hub.page_files = 7;
    if (get(f) != HD_STORAGE) { /* 3 TB are free here: then the wrong length is found */
        assert_int_equal(sent_bytes(f) > 0, true);
        return;
    }
    assert_int_equal(sent_bytes(f), 0);
}

static void paths_that_lead_out_are_refused(void **state)
{
    static const char *const evil[] = {"../config.json",    "/etc/config.json", "a/../../x.json",
                                       "%2e%2e/x.json",     "a//x.json",        "./x.json",
                                       "a\\\\..\\\\x.json", "a\\u0001.json",    ".."};
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof evil / sizeof evil[0]; i++) {
        f->model->files[0].path = evil[i];
        expect_failure(f, HD_CORRUPT, "could lead out of its folder");
    }
    assert_int_equal(sent_bytes(f), 0);
}

/* ---- data sets ---- */

static void the_files_of_a_job_get_names_that_are_no_links(void **state)
{
    static const char *const pattern[] = {"data/train-*.jsonl"};
    struct fixture *f = *state;
    struct imitation_repo *data = &f->hub.repos[f->hub.repo_count++];
    char path[PATH_MAX + 32], folder[PATH_MAX];
    struct stat named, blob;

    data->id = "org/set";
    data->commit = COMMIT;
    data->is_dataset = true;
    imitation_add(data, "data/train-1.jsonl", f->weights, 5000, true);
    imitation_add(data, "data/train-2.jsonl", "{}\n", 3, false);
    imitation_add(data, "data/train-old/3.jsonl", "{}\n", 3, false);
    imitation_add(data, "set.py", "x", 1, false);
    must(hd_hub_parse("hf://datasets/org/set", false, false, &f->name));
    must(get(f));
    assert_int_equal(f->result.file_count, 3);
    f->request.include = pattern;
    f->request.include_count = 1;
    must(get(f));
    assert_int_equal(f->result.file_count, 3); /* `*` crosses folders, as for huggingface_hub */
    f->request.by_folder = true;
    must(get(f));
    assert_int_equal(f->result.file_count, 2);
    hd_hub_name_files(&f->result, folder);
    assert_true(hd_text_ends(folder, "/datasets--org--set/named/" COMMIT));
    (void)snprintf(path, sizeof path, "%s/data/train-1.jsonl", folder);
    assert_int_equal(lstat(path, &named), 0);
    assert_true(S_ISREG(named.st_mode));
    (void)snprintf(path, sizeof path, "%s/data/train-1.jsonl", f->result.snapshot);
    assert_int_equal(stat(path, &blob), 0);
    assert_int_equal(named.st_ino, blob.st_ino);
    hd_hub_name_files(&f->result, folder); /* once more */
    assert_true(hd_text_ends(folder, "/datasets--org--set/named/" COMMIT));
    f->request.include = (const char *const[]){"nothing.csv"};
    f->request.mode = HD_HUB_CACHE_ONLY;
    expect_failure(f, HD_NOT_FOUND, "it has data/train-1.jsonl");
    f->request.mode = HD_HUB_NEWEST;
    expect_failure(f, HD_NOT_FOUND,
                   "it has data/train-1.jsonl, data/train-2.jsonl, data/train-old/3.jsonl");
}

/* ---- data sets without a file ---- */

static void add_set(struct fixture *f, const char *readme)
{
    static const char *const files[] = {"data/train-1.jsonl",
                                        "data/train-2.jsonl",
                                        "data/test-1.jsonl",
                                        "other/training_part.csv",
                                        "code.py",
                                        ".gitattributes"};
    struct imitation_repo *set = &f->hub.repos[f->hub.repo_count++];

    set->id = "org/set";
    set->commit = COMMIT;
    set->is_dataset = true;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        imitation_add(set, files[i], "{}\n", 3, false);
    if (readme)
        imitation_add(set, "README.md", readme, strlen(readme), false);
    must(hd_hub_parse("hf://datasets/org/set", false, false, &f->name));
}

/* Gets the set, and compares the paths of its files. */
static void expect_set(struct fixture *f, const char *paths)
{
    struct hd_text is = {0};

    must(hd_hub_get_set(&f->request, &f->arena, &f->result));
    for (size_t i = 0; i < f->result.file_count; i++)
        hd_text_add(&is, "%s%s", i ? " " : "", f->result.files[i].path);
    assert_string_equal(is.data, paths);
    hd_text_free(&is);
}

/* Goal: without a README the names decide, here those with the word train; also of a list in pages,
 * and without a network, as validate reads. */
static void files_of_a_set_are_chosen_by_name(void **state)
{
    struct fixture *f = *state;
    struct hd_text paths = {0};

    f->hub.page_files = 2;
    add_set(f, NULL);
    expect_set(f, "data/train-1.jsonl data/train-2.jsonl other/training_part.csv");
    f->request.mode = HD_HUB_CACHE_ONLY;
    expect_set(f, "data/train-1.jsonl data/train-2.jsonl other/training_part.csv");
    must(hd_hub_add_paths(&f->result, "/c", &paths));
    assert_string_equal(paths.data, "/c/data/[t]rain-1.jsonl\n/c/data/[t]rain-2.jsonl\n"
                                    "/c/other/[t]raining_part.csv");
    hd_text_free(&paths);
}

/* Goal: the default configuration of README.md decides; the rest of its head may be any YAML. */
static void files_of_a_set_are_chosen_by_its_readme(void **state)
{
    struct fixture *f = *state;

    add_set(f, "---\nlicense: &x mit\nconfigs:\n- config_name: small\n  data_files: other/*\n"
               "- config_name: large\n  default: true\n  data_files:\n  - split: train\n"
               "    path: data/train-*\n  - split: test\n    path: data/test-*\ntags: [x]\n---\n");
    expect_set(f, "data/train-1.jsonl data/train-2.jsonl");
}

static void configurations_without_a_default_are_listed(void **state)
{
    struct fixture *f = *state;

    add_set(f, "---\nconfigs:\n- config_name: a\n  data_files: {train: data/train-*}\n"
               "- config_name: b\n  data_files:\n  - split: train\n    path: [other/*]\n---\n");
    assert_int_equal(hd_hub_get_set(&f->request, &f->arena, &f->result), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "a (data/train-*) b (other/*)"));
}

RUN_EACH_CASE_WITH(set_up, tear_down)
