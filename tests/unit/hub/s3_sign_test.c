/* Signature version 4 against the examples that Amazon publishes, and names of objects. */
#include <string.h>

#include "hub/s3_internal.h"
#include "tests/program/test.h"

/* Keys of the examples of "Authenticating Requests: Using the Authorization Header", S3 API. */
static const struct hd_s3_keys s3_keys = {.id = "AKIAIOSFODNN7EXAMPLE",
                                          .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};

enum { MAY_24_2013 = 1369353600, AUGUST_30_2015 = 1440938160 };

static void expect_signature(const struct s3_signing *signing, const char *signature)
{
    struct hd_text text = {0};
    const char *is;

    s3_sign(signing, &text);
    is = strstr(text.data, "Signature=");
    assert_non_null(is);
    assert_string_equal(is + strlen("Signature="), signature);
    hd_text_free(&text);
}

static struct s3_signing s3_example(const char *method, const char *path, const char *query)
{
    return (struct s3_signing){.method = method,
                               .path = path,
                               .query = query,
                               .payload_hash = S3_EMPTY_HASH,
                               .region = "us-east-1",
                               .service = "s3",
                               .keys = &s3_keys,
                               .time = MAY_24_2013};
}

#define HOST                                     \
    {                                            \
        "host", "examplebucket.s3.amazonaws.com" \
    }
#define DATE                             \
    {                                    \
        "x-amz-date", "20130524T000000Z" \
    }

/* Goal: the published signatures of GET Object with a range, PUT Object, GET Bucket Lifecycle and GET
 * Bucket (List Objects). */
static void the_examples_of_s3_are_signed_as_published(void **state)
{
    static const char put_hash[] =
        "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    const struct s3_pair get[] = {
        HOST, {"range", "bytes=0-9"}, {"x-amz-content-sha256", S3_EMPTY_HASH}, DATE};
    const struct s3_pair put[] = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                  HOST,
                                  {"x-amz-content-sha256", put_hash},
                                  DATE,
                                  {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
    const struct s3_pair list[] = {HOST, {"x-amz-content-sha256", S3_EMPTY_HASH}, DATE};
    struct s3_signing s = s3_example("GET", "/test.txt", "");

    (void)state;
    s.headers = get;
    s.header_count = 4;
    expect_signature(&s, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    s = s3_example("PUT", "/test%24file.text", "");
    s.headers = put;
    s.header_count = 5;
    s.payload_hash = put_hash;
    expect_signature(&s, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    s = s3_example("GET", "/", "lifecycle=");
    s.headers = list;
    s.header_count = 3;
    expect_signature(&s, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    s = s3_example("GET", "/", "max-keys=2&prefix=J");
    s.headers = list;
    s.header_count = 3;
    expect_signature(&s, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* Goal: cases of Amazon's test suite for signature version 4: get-vanilla and
 * get-vanilla-query-order-key-case, of another service and region rules. */
static void cases_of_the_test_suite_are_signed_as_published(void **state)
{
    static const struct hd_s3_keys keys = {.id = "AKIDEXAMPLE",
                                           .secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
    const struct s3_pair headers[] = {{"host", "example.amazonaws.com"},
                                      {"x-amz-date", "20150830T123600Z"}};
    struct s3_signing s = s3_example("GET", "/", "");

    (void)state;
    s.headers = headers;
    s.header_count = 2;
    s.service = "service";
    s.keys = &keys;
    s.time = AUGUST_30_2015;
    expect_signature(&s, "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
    s.query = "Param1=value1&Param2=value2";
    expect_signature(&s, "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

static void a_name_has_a_bucket_and_a_key(void **state)
{
    static const char *const wrong[] = {
        "s3://",          "s3://ab/x",     "s3://buc ket/x", "s3://bucket/../x", "s3://bucket/a//b",
        "/s3://bucket/x", "s3://-bucket/x"};
    struct hd_s3_name name;

    (void)state;
    must(hd_s3_parse("s3://my.bucket-1/a/b c.jsonl", &name));
    assert_string_equal(name.bucket, "my.bucket-1");
    assert_string_equal(name.key, "a/b c.jsonl");
    must(hd_s3_parse("s3://bucket/folder/", &name));
    assert_string_equal(name.key, "folder/");
    must(hd_s3_parse("s3://bucket", &name));
    assert_string_equal(name.key, "");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(hd_s3_parse(wrong[i], &name), HD_INVALID);
}

/* Goal: entities and elements of a store's answers. */
static void text_of_xml_is_found_and_decoded(void **state)
{
    static const char page[] = "<A><KeyCount>1</KeyCount><Key>a&amp;b&#x2f;&lt;</Key></A>";
    struct hd_text text = {0};

    (void)state;
    assert_non_null(s3_find_text(page, page + strlen(page), "Key", &text));
    assert_string_equal(text.data, "a&b/<");
    assert_null(s3_find_text(page, page + strlen(page), "Ke", &text));
    assert_null(s3_find_text(page, page + 40, "Key", &text)); /* its end is cut */
    hd_text_free(&text);
}

RUN_CASES()
