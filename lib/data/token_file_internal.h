/* token_file_internal: loads little-endian numbers from unaligned addresses. */
#ifndef HD_DATA_TOKEN_FILE_INTERNAL_H
#define HD_DATA_TOKEN_FILE_INTERNAL_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian; big-endian machines are not supported"
#endif

static inline uint16_t hd_load_u16(const unsigned char *p)
{
    uint16_t value;

    memcpy(&value, p, sizeof value);
    return value;
}

static inline int32_t hd_load_i32(const unsigned char *p)
{
    int32_t value;

    memcpy(&value, p, sizeof value);
    return value;
}

static inline int64_t hd_load_i64(const unsigned char *p)
{
    int64_t value;

    memcpy(&value, p, sizeof value);
    return value;
}

#endif
