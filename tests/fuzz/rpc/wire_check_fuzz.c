/* Promises: what passes the wire check can be unpacked, or is refused, without harm; what was
 * unpacked has text for strings, packs again, and passes the check again. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "echo.pb-c.h"
#include "rpc/wire_check.h"
#include "tests/fuzz/driver.h"

static const ProtobufCMessageDescriptor *const type = &heddle__test__echo_request__descriptor;

static void promise(int kept)
{
    if (!kept)
        abort();
}

static int depth_of(const Heddle__Test__Nest *nest)
{
    int deepest = 0, depth;

    if (!nest)
        return 0;
    deepest = depth_of(nest->inner);
    for (size_t i = 0; i < nest->n_many; i++) {
        depth = depth_of(nest->many[i]);
        deepest = depth > deepest ? depth : deepest;
    }
    return deepest + 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    const Heddle__Test__EchoRequest *request;
    ProtobufCMessage *msg = NULL;
    uint8_t *again;
    size_t again_bytes;

    if (hd_rpc_wire_unpack(type, bytes, size_bytes, &msg))
        return 0;
    request = (const Heddle__Test__EchoRequest *)msg;
    promise(hd_text_is_utf8(request->text, strlen(request->text)));
    for (size_t i = 0; i < request->n_lines; i++)
        promise(hd_text_is_utf8(request->lines[i], strlen(request->lines[i])));
    promise(depth_of(request->nest) < HD_RPC_WIRE_DEPTH_MAX);

    again_bytes = protobuf_c_message_get_packed_size(msg);
    again = malloc(again_bytes + 1);
    promise(again != NULL);
    promise(protobuf_c_message_pack(msg, again) == again_bytes);
    promise(hd_rpc_wire_check(type, again, again_bytes) == HD_OK);
    free(again);
    hd_rpc_wire_free(msg);
    return 0;
}

/* Four honest messages: flat, with lists, with binary data, and nested both ways. */
size_t hd_fuzz_seed(unsigned index, uint8_t *ret_bytes, size_t max_bytes)
{
    Heddle__Test__Nest leaf = HEDDLE__TEST__NEST__INIT, inner = HEDDLE__TEST__NEST__INIT,
                       nest = HEDDLE__TEST__NEST__INIT, *many[] = {&leaf, &inner, &leaf};
    Heddle__Test__EchoRequest request = HEDDLE__TEST__ECHO_REQUEST__INIT;
    int64_t numbers[] = {1, -1, 300, INT64_MIN};
    char *lines[] = {"one", "", "zwölf"};
    uint8_t blob[] = {0, 0xff, 0x80, 0x0a};

    request.text = "text";
    request.count = 1 << 20;
    inner.inner = &leaf;
    nest.inner = &inner;
    nest.n_many = 3;
    nest.many = many;
    if (index == 1) {
        request.n_lines = 3;
        request.lines = lines;
        request.n_numbers = 4;
        request.numbers = numbers;
    }
    if (index == 2)
        request.blob = (ProtobufCBinaryData){sizeof blob, blob};
    if (index == 3)
        request.nest = &nest;
    if (index > 3 || protobuf_c_message_get_packed_size(&request.base) > max_bytes)
        return 0;
    return protobuf_c_message_pack(&request.base, ret_bytes);
}
