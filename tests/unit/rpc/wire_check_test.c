/* rpc: bytes that are safe to unpack, and bytes that are not. */
#include <stdlib.h>
#include <string.h>

#include "echo.pb-c.h"
#include "rpc/wire_check.h"
#include "tests/program/test.h"

static const ProtobufCMessageDescriptor *const type = &heddle__test__echo_request__descriptor;

/* Field keys of EchoRequest: number << 3 | wire type. */
enum {
    KEY_TEXT = 1 << 3 | 2,
    KEY_COUNT = 2 << 3 | 0,
    KEY_LINES = 3 << 3 | 2,
    KEY_NUMBERS = 4 << 3 | 2,
    KEY_BLOB = 5 << 3 | 2,
    KEY_NEST = 6 << 3 | 2,
    KEY_WIDE = 7 << 3 | 2,
    KEY_NARROW = 8 << 3 | 2,
    KEY_UNKNOWN = 15 << 3, /* no field has this number */
};

#define CHECK(...) \
    hd_rpc_wire_check(type, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static void honest_messages_pass_and_come_back_equal(void **state)
{
    Heddle__Test__EchoRequest sent = HEDDLE__TEST__ECHO_REQUEST__INIT, *got;
    Heddle__Test__Nest inner = HEDDLE__TEST__NEST__INIT, nest = HEDDLE__TEST__NEST__INIT;
    int64_t numbers[] = {0, -1, INT64_MAX};
    char *lines[] = {"", "grüße", "\xf0\x9f\xa7\xb5"};
    ProtobufCMessage *msg = NULL;
    uint8_t bytes[512];
    size_t size_bytes;

    sent.text = "text";
    sent.count = -5;
    sent.n_lines = 3;
    sent.lines = lines;
    sent.n_numbers = 3;
    sent.numbers = numbers;
    sent.blob = (ProtobufCBinaryData){4, (uint8_t *)"\xff\x00\xfe\x01"}; /* bytes may be anything */
    nest.inner = &inner;
    sent.nest = &nest;
    size_bytes = protobuf_c_message_pack(&sent.base, bytes);
    assert_true(size_bytes <= sizeof bytes);
    assert_int_equal(hd_rpc_wire_unpack(type, bytes, size_bytes, &msg), HD_OK);
    got = (Heddle__Test__EchoRequest *)msg;
    assert_string_equal(got->lines[2], lines[2]);
    assert_true(got->numbers[2] == INT64_MAX);
    assert_int_equal(got->blob.len, 4);
    assert_non_null(got->nest->inner);
    hd_rpc_wire_free(msg);
    assert_int_equal(hd_rpc_wire_check(type, NULL, 0), HD_OK); /* all fields at their default */
}

static void every_cut_of_an_honest_message_is_handled(void **state)
{
    Heddle__Test__EchoRequest sent = HEDDLE__TEST__ECHO_REQUEST__INIT;
    ProtobufCMessage *msg;
    uint8_t bytes[64], *cut;
    size_t size_bytes;
    int refused = 0;

    sent.text = "abcdef";
    sent.count = 1 << 20;
    size_bytes = protobuf_c_message_pack(&sent.base, bytes);
    for (size_t keep = 0; keep <= size_bytes; keep++) {
        cut = malloc(keep ? keep : 1); /* of exactly this size: a read beyond it is seen */
        assert_non_null(cut);
        memcpy(cut, bytes, keep);
        if (hd_rpc_wire_unpack(type, cut, keep, &msg) == HD_OK)
            hd_rpc_wire_free(msg);
        else
            refused++;
        free(cut);
    }
    /* whole are only: nothing, the text field (2 + 6 bytes), and both fields */
    assert_int_equal(refused, (int)size_bytes + 1 - 3);
}

static void malformed_bytes_are_invalid(void **state)
{
    assert_int_equal(CHECK(0x00), HD_INVALID);                               /* field number 0 */
    assert_int_equal(CHECK(0x80), HD_INVALID);                               /* a key that is cut */
    assert_int_equal(CHECK(0xff, 0xff, 0xff, 0xff, 0xff, 0x01), HD_INVALID); /* a key of 6 bytes */
    assert_int_equal(CHECK(0xf8, 0xff, 0xff, 0xff, 0x1f, 0x00),
                     HD_INVALID);                          /* a key over 32 bits */
    assert_int_equal(CHECK(KEY_TEXT), HD_INVALID);         /* no length */
    assert_int_equal(CHECK(KEY_TEXT, 2, 'a'), HD_INVALID); /* a length too far */
    assert_int_equal(CHECK(KEY_TEXT, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
                     HD_INVALID); /* a length of 2^64 - 1 must not wrap around */
    assert_int_equal(
        CHECK(KEY_COUNT, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
        HD_INVALID);                                                 /* a number of 11 bytes */
    assert_int_equal(CHECK(2 << 3 | 1, 1, 2, 3), HD_INVALID);        /* 8 bytes announced */
    assert_int_equal(CHECK(2 << 3 | 5, 1, 2, 3), HD_INVALID);        /* 4 bytes announced */
    assert_int_equal(CHECK(1 << 3 | 3, 1 << 3 | 4), HD_INVALID);     /* a group */
    assert_int_equal(CHECK(1 << 3 | 6), HD_INVALID);                 /* wire type 6 */
    assert_int_equal(CHECK(KEY_NEST, 2, 1 << 3 | 2, 1), HD_INVALID); /* inner runs over outer */
}

static void unknown_fields_are_let_through(void **state)
{
    assert_int_equal(CHECK(KEY_UNKNOWN | 0, 7, KEY_UNKNOWN | 2, 2, 0xff, 0xfe), HD_OK);
}

static void strings_must_be_text_and_bytes_need_not(void **state)
{
    assert_int_equal(CHECK(KEY_TEXT, 2, 0xc3, 0xbc), HD_OK); /* ü */
    assert_int_equal(CHECK(KEY_TEXT, 1, 0xc3), HD_INVALID);
    assert_int_equal(CHECK(KEY_TEXT, 2, 0xc0, 0xaf), HD_INVALID);       /* '/' in two bytes */
    assert_int_equal(CHECK(KEY_TEXT, 3, 0xed, 0xa0, 0x80), HD_INVALID); /* half a surrogate pair */
    assert_int_equal(CHECK(KEY_TEXT, 3, 'a', 0, 'b'), HD_INVALID);      /* C would read "a" */
    assert_int_equal(CHECK(KEY_LINES, 1, 'a', KEY_LINES, 1, 0xff), HD_INVALID);
    assert_int_equal(CHECK(KEY_BLOB, 3, 0xff, 0, 0xfe), HD_OK);
}

static void one_message_field_comes_once(void **state)
{
    assert_int_equal(CHECK(KEY_NEST, 0), HD_OK);
    assert_int_equal(CHECK(KEY_NEST, 0, KEY_NEST, 0), HD_INVALID);
    /* the repeated field `many` of Nest may, and each of its elements has its own `inner` */
    assert_int_equal(CHECK(KEY_NEST, 8, 2 << 3 | 2, 2, 1 << 3 | 2, 0, 2 << 3 | 2, 2, 1 << 3 | 2, 0),
                     HD_OK);
}

/* `levels` messages around each other, the outermost an EchoRequest. */
static enum hd_status check_nesting(int levels)
{
    uint8_t bytes[128];
    size_t begin = sizeof bytes;

    for (int i = 1; i < levels; i++) {
        size_t size_bytes = sizeof bytes - begin; /* below 128: a length of one byte */

        bytes[--begin] = (uint8_t)size_bytes;
        bytes[--begin] = i == levels - 1 ? KEY_NEST : 1 << 3 | 2;
    }
    return hd_rpc_wire_check(type, bytes + begin, sizeof bytes - begin);
}

static void depth_has_a_sharp_limit(void **state)
{
    assert_int_equal(check_nesting(1), HD_OK);
    assert_int_equal(check_nesting(HD_RPC_WIRE_DEPTH_MAX), HD_OK);
    assert_int_equal(check_nesting(HD_RPC_WIRE_DEPTH_MAX + 1), HD_LIMIT);
}

/* A message whose one field holds `count` bytes, each `fill`. */
static enum hd_status check_filled(uint8_t key, size_t count, uint8_t fill)
{
    uint8_t *bytes = malloc(count + 5);
    enum hd_status st;

    assert_non_null(bytes);
    bytes[0] = key;
    for (int i = 0; i < 4; i++) /* a length of four bytes, leading zeros included */
        bytes[1 + i] = (uint8_t)((count >> (7 * i) & 0x7f) | (i < 3 ? 0x80 : 0));
    memset(bytes + 5, fill, count);
    st = hd_rpc_wire_check(type, bytes, count + 5);
    free(bytes);
    return st;
}

static void packed_numbers_count_as_elements(void **state)
{
    /* one element for the field, one for each of its one-byte numbers */
    assert_int_equal(check_filled(KEY_NUMBERS, HD_RPC_WIRE_ELEMENTS_MAX - 1, 1), HD_OK);
    assert_int_equal(check_filled(KEY_NUMBERS, HD_RPC_WIRE_ELEMENTS_MAX, 1), HD_LIMIT);
    assert_int_equal(check_filled(KEY_BLOB, 2000000, 1), HD_OK); /* bytes are one element */
}

/* One element for the field, one for each of its numbers, whatever their bytes say: in 100,000
 * numbers of 8 bytes are more than 400,000 bytes that could be the end of a varint. */
static void packed_numbers_of_fixed_width_count_as_elements(void **state)
{
    static const struct {
        uint8_t key;
        size_t width_bytes;
    } kinds[] = {{KEY_WIDE, 8}, {KEY_NARROW, 4}};

    for (size_t i = 0; i < 2; i++) {
        for (int fill = 0; fill < 256; fill += 255) {
            const size_t width = kinds[i].width_bytes;

            assert_int_equal(
                check_filled(kinds[i].key, width * (HD_RPC_WIRE_ELEMENTS_MAX - 1), (uint8_t)fill),
                HD_OK);
            assert_int_equal(
                check_filled(kinds[i].key, width * HD_RPC_WIRE_ELEMENTS_MAX, (uint8_t)fill),
                HD_LIMIT);
        }
    }
}

static void unknown_fields_count_as_elements(void **state)
{
    const size_t count = HD_RPC_WIRE_ELEMENTS_MAX + 1;
    uint8_t *bytes = malloc(2 * count);

    assert_non_null(bytes);
    for (size_t i = 0; i < count; i++) {
        bytes[2 * i] = KEY_UNKNOWN;
        bytes[2 * i + 1] = 0;
    }
    assert_int_equal(hd_rpc_wire_check(type, bytes, 2 * (count - 1)), HD_OK);
    assert_int_equal(hd_rpc_wire_check(type, bytes, 2 * count), HD_LIMIT);
    free(bytes);
}

RUN_CASES()
