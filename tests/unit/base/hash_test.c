/* hash: XXH64, whoever computes it. */
#include "base/hash.h"
#include "base/hash_own.h"
#include "base/random.h"
#include "tests/program/test.h"

enum { LEN_MAX = 300 };

static uint64_t own_of(const void *data, size_t size_bytes)
{
    struct hd_hash hash;

    hd_hash_own_begin(&hash);
    hd_hash_own_add(&hash, data, size_bytes);
    return hd_hash_own_value(&hash);
}

/* The test buffer of xxHash's own sanity check: the top bytes of a multiplied sequence. */
static void fill(unsigned char bytes[LEN_MAX])
{
    uint64_t x = 2654435761u;

    for (int i = 0; i < LEN_MAX; i++) {
        bytes[i] = (unsigned char)(x >> 56);
        x *= UINT64_C(11400714785074694797);
    }
}

/* Goal: the hash is the published one. Method: the known answers that xxHash ships for seed 0. */
static void hash_gives_the_published_answers(void **state)
{
    static const struct {
        size_t len;
        uint64_t value;
    } known[] = {
        {0, UINT64_C(0xEF46DB3751D8E999)},   {1, UINT64_C(0xE934A84ADB052768)},
        {4, UINT64_C(0x9136A0DCA57457EE)},   {14, UINT64_C(0x8282DCC4994E35C8)},
        {222, UINT64_C(0xB641AE8CB691C174)},
    };
    unsigned char bytes[LEN_MAX];

    fill(bytes);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_true(hd_hash_bytes(bytes, known[i].len) == known[i].value);
        assert_true(own_of(bytes, known[i].len) == known[i].value);
    }
    assert_true(own_of("abc", 3) == UINT64_C(0x44BC2CF5AD770999));
}

static void own_code_and_library_agree_at_every_length(void **state)
{
    unsigned char bytes[LEN_MAX];

    fill(bytes);
    for (size_t len = 0; len <= LEN_MAX; len++)
        assert_true(own_of(bytes, len) == hd_hash_bytes(bytes, len));
}

static void pieces_give_the_hash_of_the_whole(void **state)
{
    unsigned char bytes[LEN_MAX];

    fill(bytes);
    for (uint64_t trial = 0; trial < 500; trial++) {
        struct hd_hash one, two;
        size_t at = 0;

        hd_hash_begin(&one);
        hd_hash_own_begin(&two);
        for (uint64_t i = 0; at < LEN_MAX; i++) {
            size_t n = hd_random_u64(trial, i) % 70;

            n = n < LEN_MAX - at ? n : LEN_MAX - at;
            hd_hash_add(&one, bytes + at, n);
            hd_hash_own_add(&two, bytes + at, n);
            at += n;
        }
        assert_true(hd_hash_value(&one) == hd_hash_bytes(bytes, LEN_MAX));
        assert_true(hd_hash_own_value(&two) == hd_hash_bytes(bytes, LEN_MAX));
    }
}

static void hash_text_has_one_form(void **state)
{
    char text[HD_HASH_TEXT_MAX];
    uint64_t value = 0;

    hd_hash_format(0xABC, text);
    assert_string_equal(text, "0000000000000abc");
    assert_true(hd_hash_parse(text, &value));
    assert_int_equal(value, 0xABC);
    assert_false(hd_hash_parse("0000000000000ABC", &value));
    assert_false(hd_hash_parse("0000000000000ab", &value));
    assert_false(hd_hash_parse("0000000000000abc0", &value));
    assert_false(hd_hash_parse("", &value));
}

RUN_CASES()
