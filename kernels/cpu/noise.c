#include <math.h>

#include "base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum { CHANNELS = 256 }; /* number of channels whose noise is computed at a time */

struct noise {
    const struct hd_noise_args *args;
    uint64_t key; /* key of the step */
};

/* Sets `ret_noise` to the noise of `count` channels of a row, from a multiple of 4 on, without its
 * factor; a whole number of fours is written. */
static void noise_of(const struct noise *f, int64_t r, int64_t first, int64_t count,
                     float *ret_noise)
{
    const struct hd_noise_args *a = f->args;
    const uint64_t index = (uint32_t)a->index[r], sample = (uint32_t)a->sample[r];
    uint32_t words[4];

    for (int64_t c = 0; c < count; c += 4) {
        hd_random_philox(f->key, (uint64_t)((first + c) / 4) | index << 32, sample << 32, words);
        for (int k = 0; k < 4; k++)
            ret_noise[c + k] = (float)(2 * (int32_t)(words[k] >> 8) + 1 - (1 << 24)) * 0x1p-24f;
    }
}

INLINE void add_noise_to_row(const struct noise *f, int64_t r, enum hd_dtype dtype)
{
    const struct hd_noise_args *a = f->args;
    const float factor = a->length[r] > 0 ? a->alpha / sqrtf((float)a->length[r] * (float)a->C) : 0;
    float line[CHANNELS + VL];

    for (int64_t first = 0; first < a->C; first += CHANNELS) {
        const int64_t count = a->C - first < CHANNELS ? a->C - first : CHANNELS;
        const int64_t at = r * a->C + first;

        noise_of(f, r, first, count, line);
        FOR_VECTORS (c, n, 0, count) {
            const vf x = vf_load(a->inp, at + c, n, dtype);

            vf_store(a->out, at + c, n, x + vf_load(line, c, n, HD_F32) * factor, dtype);
        }
    }
}

static void add_noise_to_rows(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct noise *f = args;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        WITH_FLOATS(f->args->dtype, T, add_noise_to_row(f, r, T));
}

enum hd_status KERNEL(noise)(struct hd_backend *cpu, const struct hd_noise_args *args)
{
    const struct noise f = {.args = args,
                            .key = hd_random_key(args->key, (uint64_t)args->block->step)};
    const enum hd_status st = hd_cpu_check_float("noise", args->dtype);

    if (!st)
        hd_cpu_parallel(cpu, args->R, hd_cpu_row_grain(args->C * 16), add_noise_to_rows, &f);
    return st;
}
