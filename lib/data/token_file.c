/* token_file: reads tokens of any width; parses text and llm.c files. Other formats: npy.c,
 * megatron.c. */
#include "data/token_file.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "data/token_file_internal.h"
#include "records/kind.h"

enum { LLMC_HEAD_BYTES = 1024 };

int hd_token_type_bytes(enum hd_token_type type)
{
    static const int bytes[HD_TOKEN_TYPE_COUNT] = {1, 2, 2, 4, 4, 8};

    return bytes[type];
}

enum hd_status hd_token_index_name(const char *path, struct hd_text *ret_name)
{
    hd_text_clear(ret_name);
    hd_text_add(ret_name, "%s", "");
    if (hd_data_is_tokens(path) && hd_data_name_kind(path) == HD_DATA_BIN)
        hd_text_add(ret_name, "%.*sidx", (int)(strlen(path) - strlen("bin")), path);
    return ret_name->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

struct hd_token_view hd_token_view_text(const void *bytes, int64_t size_bytes)
{
    return (struct hd_token_view){
        .kind = "text", .type = HD_TOKEN_U8, .tokens = bytes, .count = size_bytes};
}

/* ---- llm.c ---- */

enum hd_status hd_token_view_llmc(const void *bytes, int64_t size_bytes,
                                  struct hd_token_view *ret_view)
{
    struct hd_token_view view = {.kind = "llm.c"};
    int64_t magic, version;

    if (size_bytes < LLMC_HEAD_BYTES)
        return hd_err(HD_INVALID,
                      "%" PRId64 " bytes are less than the header of llm.c; and there is no .idx "
                      "file beside it, as for Megatron",
                      size_bytes);
    magic = hd_load_i32(bytes);
    version = hd_load_i32((const unsigned char *)bytes + 4);
    view.count = hd_load_i32((const unsigned char *)bytes + 8);
    view.tokens = (const unsigned char *)bytes + LLMC_HEAD_BYTES;
    if (magic == 20240520 && version == 1)
        view.type = HD_TOKEN_U16;
    else if (magic == 20240801 && version == 7)
        view.type = HD_TOKEN_U32;
    else if (magic == 20240520 || magic == 20240801)
        return hd_err(HD_UNSUPPORTED,
                      "version %" PRId64 " of llm.c's token files; version 1 (20240520) and 7 "
                      "(20240801) are read",
                      version);
    else
        return hd_err(HD_INVALID,
                      "neither a token file of llm.c (it begins with %" PRId64
                      ", not with 20240520 or 20240801) nor of Megatron (no .idx file "
                      "is beside it)",
                      magic);
    if (view.count < 0 ||
        size_bytes - LLMC_HEAD_BYTES != view.count * hd_token_type_bytes(view.type))
        return hd_err(HD_INVALID,
                      "%" PRId64 " bytes, but the %" PRId64 " tokens of its header take "
                      "%" PRId64 "; it was truncated or is being written",
                      size_bytes, view.count,
                      LLMC_HEAD_BYTES + view.count * hd_token_type_bytes(view.type));
    *ret_view = view;
    return HD_OK;
}

/* ---- tokens ---- */

int64_t hd_token_at(const struct hd_token_view *view, int64_t place)
{
    const unsigned char *p = view->tokens + place * hd_token_type_bytes(view->type);

    assert(place >= 0 && place < view->count);
    switch (view->type) {
    case HD_TOKEN_U8:
        return *p;
    case HD_TOKEN_I16:
        return (int16_t)hd_load_u16(p);
    case HD_TOKEN_U16:
        return hd_load_u16(p);
    case HD_TOKEN_I32:
        return hd_load_i32(p);
    case HD_TOKEN_U32:
        return (uint32_t)hd_load_i32(p);
    case HD_TOKEN_I64:
        return hd_load_i64(p);
    case HD_TOKEN_TYPE_COUNT:
        break;
    }
    return -1;
}

/* Reads `count` tokens of one width in bytes; a separate loop for each width, so that compilers
 * vectorise it. */
#define READ(type, load)                                                                 \
    for (int64_t i = 0; i < count; i++) {                                                \
        const int64_t value = (type)load(p + i * (int64_t)sizeof(type));                 \
        const uint32_t id = (uint64_t)value <= INT32_MAX ? (uint32_t)value : UINT32_MAX; \
                                                                                         \
        ret_ids[i] = (int32_t)id;                                                        \
        largest = id > largest ? id : largest;                                           \
    }

uint32_t hd_token_read(const struct hd_token_view *view, int64_t first, int64_t count,
                       int32_t *ret_ids)
{
    const unsigned char *p = view->tokens + first * hd_token_type_bytes(view->type);
    uint32_t largest = 0;

    assert(first >= 0 && count >= 0 && count <= view->count - first);
    switch (view->type) {
    case HD_TOKEN_U8:
        READ(uint8_t, *);
        break;
    case HD_TOKEN_I16:
        READ(int16_t, hd_load_u16);
        break;
    case HD_TOKEN_U16:
        READ(uint16_t, hd_load_u16);
        break;
    case HD_TOKEN_I32:
        READ(int32_t, hd_load_i32);
        break;
    case HD_TOKEN_U32:
        READ(uint32_t, hd_load_i32);
        break;
    case HD_TOKEN_I64:
        READ(int64_t, hd_load_i64);
        break;
    case HD_TOKEN_TYPE_COUNT:
        break;
    }
    return largest;
}
