#include "base/dtype.h"

#include "base/pieces.h"

static const struct {
    const char *name;
    size_t size_bytes;
} dtypes[] = {
#define X(code, name, size_bytes) {name, size_bytes},
    HD_DTYPE_LIST(X)
#undef X
};

size_t hd_dtype_size(enum hd_dtype dtype)
{
    return (unsigned)dtype < HD_DTYPE_COUNT ? dtypes[dtype].size_bytes : 0;
}

const char *hd_dtype_name(enum hd_dtype dtype)
{
    return (unsigned)dtype < HD_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

bool hd_dtype_from_name(const char *name, enum hd_dtype *ret_dtype)
{
    for (int i = 0; i < HD_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *ret_dtype = (enum hd_dtype)i;
            return true;
        }
    }
    return false;
}

int64_t hd_f32_find_nonfinite(const float *values, int64_t count)
{
    enum { BLOCK = HD_PIECE(4096, 37) };
    const uint32_t exponent = 0x7f800000u; /* all ones only in NaN and infinity */

    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t n = count - at < BLOCK ? count - at : BLOCK;
        uint32_t bits, found = 0;

        for (int64_t i = 0; i < n; i++) { /* no branch, so that the loop is vectorised */
            memcpy(&bits, values + at + i, sizeof bits);
            found |= (bits & exponent) == exponent;
        }
        for (int64_t i = 0; found && i < n; i++) {
            memcpy(&bits, values + at + i, sizeof bits);
            if ((bits & exponent) == exponent)
                return at + i;
        }
    }
    return -1;
}
