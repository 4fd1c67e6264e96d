/* http: which heads are let in, and how a target is read. */
#include <stdio.h>
#include <string.h>

#include "http/check.h"
#include "http/target.h"
#include "tests/program/test.h"

static const struct hd_http_names names = {.name = {"node7", "heddle.example.org"}, .count = 2};

static size_t body_bytes; /* of the last check */

static int check(struct hd_http_head head)
{
    char message[HD_HTTP_REFUSAL_MAX];
    int status;

    head.method = head.method ? head.method : "GET";
    head.version = head.version ? head.version : "HTTP/1.1";
    status = hd_http_check_head(&head, &names, &body_bytes, message);
    assert_int_equal(status == 0, message[0] == '\0'); /* a refusal says why */
    return status;
}

static int check_host(const char *host)
{
    return check((struct hd_http_head){.host = host});
}

static void addresses_and_own_names_are_let_in(void **state)
{
    static const char *const own[] = {
        "localhost",  "localhost:9460", "LOCALHOST:9460", "127.0.0.1:1", "10.0.0.7:9460",
        "[::1]:9460", "[fe80::1]",      "node7",          "Node7:9460",  "heddle.example.org"};

    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        assert_int_equal(check_host(own[i]), 0);
}

/* DNS rebinding: a page of evil.example asks evil.example, whose name now leads to this machine. */
static void another_sites_name_is_misdirected(void **state)
{
    static const char *const foreign[] = {"evil.example",
                                          "evil.example:9460",
                                          "localhost.evil.example",
                                          "127.0.0.1.evil.example",
                                          "node7.evil.example",
                                          "127.0.0.1x",
                                          "2130706433",
                                          "0x7f.1"};

    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        assert_int_equal(check_host(foreign[i]), 421);
}

static void a_malformed_host_is_refused(void **state)
{
    static const char *const bad[] = {NULL,          "",
                                      ":9460",       "localhost:",
                                      "[::1",        "[::1]9460",
                                      "localhost:x", "localhost:99999",
                                      "[]",          "localhost:1:2",
                                      "localhost:-1"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(check_host(bad[i]), 400);
}

static void only_a_page_of_the_door_itself_may_ask(void **state)
{
    const char *host = "localhost:9460";

    assert_int_equal(check((struct hd_http_head){.host = host, .origin = "http://localhost:9460"}),
                     0);
    assert_int_equal(check((struct hd_http_head){.host = host, .origin = "https://localhost:9460"}),
                     403); /* the scheme differs: another site */
    assert_int_equal(
        check((struct hd_http_head){.host = host, .origin = "https://localhost:9460", .tls = true}),
        0);
    assert_int_equal(check((struct hd_http_head){.host = host, .origin = "http://localhost:8000"}),
                     403);
    assert_int_equal(check((struct hd_http_head){.host = host, .origin = "http://evil.example"}),
                     403);
    assert_int_equal(check((struct hd_http_head){.host = host, .origin = "null"}), 403);
    assert_int_equal(check((struct hd_http_head){.host = host, .fetch_site = "none"}), 0);
    assert_int_equal(check((struct hd_http_head){.host = host, .fetch_site = "same-origin"}), 0);
    assert_int_equal(check((struct hd_http_head){.host = host, .fetch_site = "cross-site"}), 403);
    assert_int_equal(check((struct hd_http_head){.host = host, .fetch_site = "same-site"}), 403);
}

/* A link in a wiki opens the dashboard; a frame, a script, a form or a fetch of the same page does
 * not reach it. */
static void a_link_from_another_site_may_be_followed(void **state)
{
    static const struct {
        const char *method, *mode, *dest, *origin;
        int status;
    } cases[] = {
        {"GET", "navigate", "document", NULL, 0},
        {"GET", "navigate", "iframe", NULL, 403},
        {"GET", "navigate", "frame", NULL, 403},
        {"GET", "navigate", NULL, NULL, 403},
        {"GET", "no-cors", "image", NULL, 403},
        {"GET", "no-cors", "script", NULL, 403},
        {"GET", "cors", "empty", NULL, 403},
        {"GET", "websocket", "document", NULL, 403},
        {"GET", "navigate", "document", "http://evil.example", 403},
        {"POST", "navigate", "document", NULL, 405},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const char *const sites[] = {"cross-site", "same-site"};

        for (size_t k = 0; k < 2; k++)
            assert_int_equal(check((struct hd_http_head){.method = cases[i].method,
                                                         .host = "localhost:9460",
                                                         .fetch_site = sites[k],
                                                         .fetch_mode = cases[i].mode,
                                                         .fetch_dest = cases[i].dest,
                                                         .origin = cases[i].origin}),
                             cases[i].status);
    }
}

static void what_changes_something_or_carries_something_is_refused(void **state)
{
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "get", "head", ""};

    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        assert_int_equal(check((struct hd_http_head){.host = "localhost", .method = methods[i]}),
                         405);
    assert_int_equal(check((struct hd_http_head){.host = "localhost", .length = "1"}), 400);
    assert_int_equal(check((struct hd_http_head){.host = "localhost", .length = "0"}), 0);
    assert_int_equal(check((struct hd_http_head){.host = "localhost", .is_coded = true}), 400);
    assert_int_equal(check((struct hd_http_head){.host = "localhost", .repeated = true}), 400);
    assert_int_equal(check((struct hd_http_head){.host = "localhost", .version = "HTTP/2.0"}), 505);
}

static int check_post(const char *type, const char *length, bool is_coded)
{
    return check((struct hd_http_head){.host = "localhost",
                                       .method = "POST",
                                       .type = type,
                                       .length = length,
                                       .is_coded = is_coded,
                                       .body_bytes_max = 100});
}

/* Pages that take a body: JSON, of a length that the head says. A page can send other types without
 * the browser asking first. */
static void a_body_is_json_of_a_length_that_is_said(void **state)
{
    static const char json[] = "application/json";
    static const char *const lengths[] = {
        "", "+1", "-1", "1 ", "0x1", "1,1", "99999999999999999999"};

    assert_int_equal(check_post(json, "100", false), 0);
    assert_int_equal(body_bytes, 100);
    assert_int_equal(check_post("Application/JSON; charset=utf-8", "0", false), 0);
    assert_int_equal(body_bytes, 0);
    assert_int_equal(check_post(json, "101", false), 413);
    assert_int_equal(check_post(json, NULL, false), 411);
    assert_int_equal(check_post(json, NULL, true), 411);
    assert_int_equal(check_post(json, "5", true), 411);
    assert_int_equal(check_post(NULL, "5", false), 415);
    assert_int_equal(check_post("text/plain", "5", false), 415);
    assert_int_equal(check_post("application/jsonp", "5", false), 415);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        assert_int_equal(check_post(json, lengths[i], false), 400);
    assert_int_equal(check((struct hd_http_head){
                         .host = "localhost", .method = "DELETE", .body_bytes_max = 100}),
                     405);
}

/* ---- targets ----------------------------------------------------------------------------------*/

static void a_target_is_decoded_once(void **state)
{
    struct hd_http_target t;

    assert_int_equal(
        hd_http_target_parse("/api/v1/jobs?state=running&owner=uid%3A1000&q=%25%32%35", &t), HD_OK);
    assert_string_equal(t.text, "/api/v1/jobs");
    assert_int_equal(t.param_count, 3);
    assert_string_equal(hd_http_target_param(&t, "state"), "running");
    assert_string_equal(hd_http_target_param(&t, "owner"), "uid:1000");
    assert_string_equal(hd_http_target_param(&t, "q"), "%25"); /* "%25" "%32" "%35": % 2 5 */
    assert_null(hd_http_target_param(&t, "limit"));
    assert_int_equal(hd_http_target_parse("/", &t), HD_OK);
    assert_int_equal(hd_http_target_parse("/a?flag", &t), HD_OK);
    assert_string_equal(hd_http_target_param(&t, "flag"), "");
}

static void an_ambiguous_target_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "x",
        "http://localhost/",
        "*",
        "//evil.example/",
        "/a//b",
        "/a/../b",
        "/a/%2e%2e/b",
        "/./a",
        "/a/",
        "/a%2fb",
        "/a%00b",
        "/a%0ab",
        "/a%",
        "/a%4",
        "/a%zz",
        "/a b",
        "/a\\b",
        "/a#b",
        "/a\xc3\xa9",
        "/%ff",
        "/a?=x",
        "/a?x=1&x=2",
        "/a?x=%0d",
        "/a?x=1&",
        "/a?&x=1",
        "/a\tb",
        "/a?x=\x7f",
        "/%c3",
    };
    struct hd_http_target t;
    char raw[HD_HTTP_TARGET_MAX + 2];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (hd_http_target_parse(bad[i], &t) != HD_INVALID)
            fail_msg("\"%s\" was not refused", bad[i]);
    memset(raw, 'a', sizeof raw);
    raw[0] = '/';
    raw[HD_HTTP_TARGET_MAX] = '\0';
    assert_int_equal(hd_http_target_parse(raw, &t), HD_OK); /* just as long as allowed */
    raw[HD_HTTP_TARGET_MAX] = 'a';
    raw[HD_HTTP_TARGET_MAX + 1] = '\0';
    assert_int_equal(hd_http_target_parse(raw, &t), HD_LIMIT);
    /* 17 parameters, one more than allowed */
    assert_int_equal(hd_http_target_parse("/?a&b&c&d&e&f&g&h&i&j&k&l&m&n&o&p&q", &t), HD_LIMIT);
}

RUN_CASES()
