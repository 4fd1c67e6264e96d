/* Both imitations behind TLS with a certificate of an authority that the machine does not know: it must
 * be named, and then all goes through it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hub/s3.h"
#include "tests/imitation_hub/imitation.h"
#include "tests/imitation_s3/s3.h"
#include "tests/program/test.h"
#include "tests/temporary.h"
#include "tests/tls_front.h"

static void expect_refused(enum hd_status st)
{
    assert_int_equal(st, HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "its certificate is not accepted"));
}

static void a_store_with_a_private_authority_is_read(void **state)
{
    static struct imitation_s3 s3 = {.id = "AKIDOFTHETEST", .secret = "secret"};
    struct hd_s3_settings *settings = calloc(1, sizeof *settings);
    struct hd_s3_name name;
    const struct hd_s3_request request = {.settings = settings, .name = &name, .is_data = true};
    struct hd_s3_result result;
    struct tls_front front;
    struct hd_arena arena;
    char dir[TEMPORARY_BYTES], ca[TEMPORARY_BYTES + 16];

    assert_non_null(settings);
    temporary_dir(dir, "tls");
    (void)snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    hd_arena_init(&arena, 0);
    imitation_s3_put(&s3, "bucket", "a.txt", "text", 4);
    imitation_s3_start(&s3);
    tls_front_start(&front, s3.port, ca);
    (void)snprintf(settings->endpoint, sizeof settings->endpoint, "https://127.0.0.1:%d",
                   front.port);
    (void)snprintf(settings->cache, sizeof settings->cache, "%s/cache", dir);
    (void)snprintf(settings->keys.id, sizeof settings->keys.id, "%s", s3.id);
    (void)snprintf(settings->keys.secret, sizeof settings->keys.secret, "%s", s3.secret);
    must(hd_s3_parse("s3://bucket/a.txt", &name));
    expect_refused(hd_s3_get(&request, &arena, &result));
    assert_int_equal(s3.requests, 0);
    (void)snprintf(settings->ca_file, sizeof settings->ca_file, "%s", ca);
    must(hd_s3_get(&request, &arena, &result));
    assert_int_equal(result.fetched_bytes, 4);
    tls_front_stop(&front);
    imitation_s3_stop(&s3);
    hd_arena_done(&arena);
    (void)hd_file_remove_tree(dir);
    free(settings);
}

static void a_hub_with_a_private_authority_is_read(void **state)
{
    static struct imitation hub;
    struct imitation_repo *repo = &hub.repos[hub.repo_count++];
    struct hd_hub_settings *settings = calloc(1, sizeof *settings);
    struct hd_hub_name name;
    const struct hd_hub_request request = {
        .settings = settings, .name = &name, .mode = HD_HUB_NEWEST};
    struct hd_hub_result result;
    struct tls_front front;
    struct hd_arena arena;
    char dir[TEMPORARY_BYTES], ca[TEMPORARY_BYTES + 16];

    assert_non_null(settings);
    temporary_dir(dir, "tls");
    (void)snprintf(ca, sizeof ca, "%s/ca.pem", dir);
    hd_arena_init(&arena, 0);
    repo->id = "org/model";
    repo->commit = "0123456789abcdef0123456789abcdef01234567";
    imitation_add(repo, "config.json", "hello\n", 6, false);
    imitation_start(&hub);
    tls_front_start(&front, hub.port, ca);
    (void)snprintf(settings->endpoint, sizeof settings->endpoint, "https://127.0.0.1:%d",
                   front.port);
    (void)snprintf(settings->cache, sizeof settings->cache, "%s/cache", dir);
    must(hd_hub_parse("hf://org/model", false, false, &name));
    expect_refused(hd_hub_get(&request, &arena, &result));
    assert_int_equal(hub.requests, 0);
    (void)snprintf(settings->ca_file, sizeof settings->ca_file, "%s", ca);
    must(hd_hub_get(&request, &arena, &result));
    assert_int_equal(result.fetched_bytes, 6);
    /* a large file is at another host, without TLS: its bytes could be changed on their way */
    imitation_add(repo, "model.safetensors", "weights", 7, true);
    repo->commit = "1123456789abcdef0123456789abcdef01234567";
    assert_int_equal(hd_hub_get(&request, &arena, &result), HD_DENIED);
    assert_non_null(strstr(hd_err_message(), "without TLS"));
    tls_front_stop(&front);
    imitation_stop(&hub);
    hd_arena_done(&arena);
    (void)hd_file_remove_tree(dir);
    free(settings);
}

RUN_CASES()
