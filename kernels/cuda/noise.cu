/* noise: adds uniform noise to embeddings, as ops.h defines it.
 *
 * Bytes: 2 R C e. A call of the generator (random.cuh) gives four channels, as in dropout; with
 * rows that are not a whole number of packs there is one call per channel. Not yet measured on a
 * GPU. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/random.cuh"

template <typename T>
struct cuda_noise {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
        uint32_t sample, index;
        float factor;
    };
    T *out;
    const T *inp;
    const int32_t *sample, *index, *length;
    const struct hd_step_state *block;
    uint64_t key;
    int64_t R, C;
    float alpha;

    __device__ int64_t rows() const
    {
        return R;
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.x = pack_load<V>(inp + r * C + c);
        x.sample = (uint32_t)sample[r];
        x.index = (uint32_t)index[r];
        x.factor = length[r] > 0 ? alpha / sqrtf((float)length[r] * (float)C) : 0.0f;
    }
    /* Returns x with the noise of a random word. */
    static __device__ T noisy(T x, uint32_t word, float factor)
    {
        const float u = (float)(2 * (int32_t)(word >> 8) + 1 - (1 << 24)) * 0x1p-24f;

        return from_float<T>(to_float(x) + u * factor);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t c) const
    {
        const uint64_t step_key = random_key(key, (uint64_t)block->step);
        pack<T, V> y;

        if (V == 1) {
            const uint4 words = philox(step_key, (uint32_t)(c / 4), x.index, 0, x.sample);

            y.at[0] = noisy(x.x.at[0], philox_word(words, (uint32_t)(c % 4)), x.factor);
        } else {
#pragma unroll
            for (int j = 0; j < V; j += 4) {
                const uint4 words = philox(step_key, (uint32_t)((c + j) / 4), x.index, 0, x.sample);

                y.at[j % V] = noisy(x.x.at[j % V], words.x, x.factor);
                y.at[(j + 1) % V] = noisy(x.x.at[(j + 1) % V], words.y, x.factor);
                y.at[(j + 2) % V] = noisy(x.x.at[(j + 2) % V], words.z, x.factor);
                y.at[(j + 3) % V] = noisy(x.x.at[(j + 3) % V], words.w, x.factor);
            }
        }
        pack_store(out + r * C + c, y);
    }
};

extern "C" enum hd_status hd_cuda_noise(struct hd_cuda_stream *s, const struct hd_noise_args *a)
{
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_noise<T> op = {
            (T *)a->out, (const T *)a->inp, a->sample, a->index, a->length, a->block, a->key, a->R,
                a->C, a->alpha
        };

        HD_PACK_WIDTH((pack_fits_wide<T>(a->C, a->out, a->inp)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->C));
    });
}
