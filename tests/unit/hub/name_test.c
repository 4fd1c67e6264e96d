/* Names of the hub, settings from the environment, and what a path in a cache says. */
#include <stdlib.h>
#include <string.h>

#include "hub/hub.h"
#include "tests/program/test.h"

static void expect_name(const char *text, bool is_dataset, const char *repo, const char *revision,
                        const char *path)
{
    struct hd_hub_name name;

    must(hd_hub_parse(text, true, false, &name));
    assert_int_equal(name.is_dataset, is_dataset);
    assert_string_equal(name.repo, repo);
    assert_string_equal(name.revision, revision);
    assert_string_equal(name.path, path);
}

/* The grammar of huggingface_hub: special revisions keep their slashes, others write %2F. */
static void a_name_has_a_repository_a_revision_and_a_path(void **state)
{
    expect_name("hf://Qwen/Qwen2.5-0.5B", false, "Qwen/Qwen2.5-0.5B", "main", "");
    expect_name("Qwen/Qwen2.5-0.5B", false, "Qwen/Qwen2.5-0.5B", "main", "");
    expect_name("hf://gpt2", false, "gpt2", "main", "");
    expect_name("hf://a/b@v1.0", false, "a/b", "v1.0", "");
    expect_name("hf://a/b@refs/pr/7", false, "a/b", "refs/pr/7", "");
    expect_name("hf://a/b@feature%2Fx/config.json", false, "a/b", "feature/x", "config.json");
    expect_name("hf://datasets/a/b@refs/convert/parquet/default/train/0000.parquet", true, "a/b",
                "refs/convert/parquet", "default/train/0000.parquet");
    expect_name("hf://datasets/a/b/data/train-*.parquet", true, "a/b", "main",
                "data/train-*.parquet");
}

/* They could lead out of the cache, or be taken for another repository there ("--" is the slash). */
static void names_that_are_none_are_refused(void **state)
{
    static const char *const names[] = {"hf://",
                                        "hf://a/",
                                        "hf://../b",
                                        "hf://a/..",
                                        "hf://a--b/c",
                                        "hf://a/b--c",
                                        "hf://-a/b",
                                        "hf://a/b.",
                                        "hf://a/b c",
                                        "hf://a/b@",
                                        "hf://a/b@../../x",
                                        "hf://a/b@x%00y",
                                        "hf://a/b@%2e%2e",
                                        "hf://datasets/b",
                                        "hf://spaces/a/b",
                                        "hf://datasets/a/b/../c",
                                        "hf://datasets/a/b//c",
                                        "hf://datasets/a/b/%2e%2e/c",
                                        "hf://datasets/a/b/%2Fetc/passwd",
                                        "hf://datasets/a/b/x\ny",
                                        "hf://datasets/a/b/x\\y"};
    struct hd_hub_name name;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (hd_hub_parse(names[i], false, false, &name) != HD_INVALID)
            fail_msg("%s is accepted", names[i]);
    assert_int_equal(hd_hub_parse("a/b", false, false, &name), HD_INVALID);
}

static void a_path_in_a_cache_tells_its_commit(void **state)
{
    static const char model[] = "/home/x/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/"
                                "snapshots/0123456789abcdef0123456789abcdef01234567";
    static const char data[] = "/h/datasets--a--b/named/0123456789abcdef0123456789abcdef01234567/"
                               "data/train.jsonl";
    struct hd_text text = {0};

    assert_true(hd_hub_describe(model, &text));
    assert_string_equal(text.data,
                        "hf://Qwen/Qwen2.5-0.5B@0123456789abcdef0123456789abcdef01234567");
    hd_text_clear(&text);
    assert_true(hd_hub_describe(data, &text));
    assert_string_equal(text.data, "hf://datasets/a/b@0123456789abcdef0123456789abcdef01234567");
    hd_text_clear(&text);
    assert_false(hd_hub_describe("/data/models--a--b/x", &text));
    assert_false(hd_hub_describe("/data/corpus.txt", &text));
    assert_false(hd_hub_describe("/h/models--a--b/snapshots/main", &text));
    assert_int_equal(text.len_bytes, 0);
    hd_text_free(&text);
}

static int clear_environment(void **state)
{
    static const char *const names[] = {
        "HF_TOKEN",          "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",  "HF_HOME",
        "HF_HUB_CACHE",      "HUGGINGFACE_HUB_CACHE",  "HF_ENDPOINT",    "HF_HUB_OFFLINE",
        "SSL_CERT_FILE",     "CURL_CA_BUNDLE",         "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE",
        "REQUESTS_CA_BUNDLE"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unsetenv(names[i]);
    (void)setenv("HOME", "/nowhere/home", 1);
    return 0;
}

static void settings_come_from_the_environment(void **state)
{
    struct hd_hub_settings s;

    must(hd_hub_read_settings(&s));
    assert_string_equal(s.endpoint, "https://huggingface.co");
    assert_string_equal(s.cache, "/nowhere/home/.cache/huggingface/hub");
    assert_string_equal(s.token, "");
    assert_false(s.offline);
    (void)setenv("XDG_CACHE_HOME", "/nowhere/xdg", 1);
    must(hd_hub_read_settings(&s));
    assert_string_equal(s.cache, "/nowhere/xdg/huggingface/hub");
    (void)setenv("HF_HOME", "/nowhere/hf/", 1);
    must(hd_hub_read_settings(&s));
    assert_string_equal(s.cache, "/nowhere/hf/hub");
    (void)setenv("HF_HUB_CACHE", "/nowhere/cache", 1);
    (void)setenv("HF_ENDPOINT", "https://mirror.example/prefix/", 1);
    (void)setenv("HF_TOKEN", " hf_abc\n", 1);
    (void)setenv("HF_HUB_OFFLINE", "1", 1);
    (void)setenv("SSL_CERT_FILE", "/nowhere/ca.pem", 1);
    must(hd_hub_read_settings(&s));
    assert_string_equal(s.cache, "/nowhere/cache");
    assert_string_equal(s.endpoint, "https://mirror.example/prefix");
    assert_string_equal(s.token, "hf_abc");
    assert_string_equal(s.token_from, "HF_TOKEN");
    assert_string_equal(s.ca_file, "/nowhere/ca.pem");
    assert_true(s.offline);
}

/* A line break in a token would begin another header; a message must not show the token. */
static void a_token_that_is_none_is_refused_without_being_shown(void **state)
{
    struct hd_hub_settings s;

    (void)setenv("HF_TOKEN", "hf_secret\r\nX-Evil: 1", 1);
    assert_int_equal(hd_hub_read_settings(&s), HD_INVALID);
    assert_null(strstr(hd_err_message(), "hf_secret"));
}

static void http_is_for_this_machine_only(void **state)
{
    static const char *const bad[] = {"http://hub.example", "http://127.0.0.1.evil.example",
                                      "http://localhost@evil.example", "ftp://127.0.0.1", "hub"};
    struct hd_hub_settings s;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        (void)setenv("HF_ENDPOINT", bad[i], 1);
        if (hd_hub_read_settings(&s) != HD_INVALID)
            fail_msg("%s is accepted", bad[i]);
    }
    (void)setenv("HF_ENDPOINT", "http://127.0.0.1:8080", 1);
    must(hd_hub_read_settings(&s));
}

static int nothing(void **state)
{
    return 0;
}

RUN_EACH_CASE_WITH(clear_environment, nothing)
