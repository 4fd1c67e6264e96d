#include "base/encoding.h"

#include <assert.h>

void hd_encode(enum hd_map map, int64_t block, int64_t count, const float *values,
               float *ret_scales, uint8_t *ret_codes)
{
    assert(count % block == 0);
    for (int64_t at = 0; at < count; at += block) {
        float largest = 0, smallest = 0, divisor;

        for (int64_t i = at; i < at + block; i++) {
            largest = values[i] > largest ? values[i] : largest;
            smallest = values[i] < smallest ? values[i] : smallest;
        }
        ret_scales[at / block] = hd_encoding_scale(map, largest, smallest);
        divisor = hd_encoding_divisor(ret_scales[at / block]);
        for (int64_t i = at; i < at + block; i++)
            ret_codes[i] = hd_encoding_code(hd_encoding_quotient(values[i], divisor), map);
    }
}

void hd_decode(enum hd_map map, int64_t block, int64_t count, const float *scales,
               const uint8_t *codes, float *ret_values)
{
    float table[256];

    assert(count % block == 0);
    for (int code = 0; code < 256; code++)
        table[code] = hd_encoding_value((uint8_t)code, map);
    for (int64_t i = 0; i < count; i++)
        ret_values[i] = table[codes[i]] * scales[i / block];
}
