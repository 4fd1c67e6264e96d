/* dropout: sets values to zero by the mask that ops.h defines, scales the others.
 *
 * Bytes: 2 R C e. A call of the generator (random.cuh), some 80 instructions, gives four channels:
 * 20 per channel, while an H100 issues 39 in the time of a bf16 value's 4 bytes. If first_channel
 * is not a multiple of 4, or rows are not a whole number of packs, there is one call per channel.
 * On an H100 71% of a copy's rate. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/random.cuh"

template <typename T>
struct cuda_dropout {
    static constexpr int UNROLL = 4;
    template <int V>
    struct in {
        pack<T, V> x;
        uint32_t sample, index, head;
    };
    T *out;
    const T *inp;
    const int32_t *sample, *index, *counts;
    int64_t R, C, first_channel, groups, first_group;
    struct cuda_drop drop;

    __device__ int64_t rows() const
    {
        return rows_in_use(counts, groups, R);
    }
    /* Returns the expert that a row belongs to; 0 without experts. A rank has few experts, whose
     * counts stay in a cache. */
    __device__ uint32_t head_of(int64_t r) const
    {
        int64_t group = 0;

        if (!counts)
            return 0;
        for (int64_t end = counts[0]; r >= end && group + 1 < groups; end += counts[group])
            group++;
        return (uint32_t)(first_group + group);
    }
    template <int V>
    __device__ void load(in<V> &x, int64_t r, int64_t c) const
    {
        x.x = pack_load<V>(inp + r * C + c);
        x.sample = (uint32_t)sample[r];
        x.index = (uint32_t)index[r];
        x.head = head_of(r);
    }
    template <int V>
    __device__ void store(const in<V> &x, int64_t r, int64_t c) const
    {
        const uint64_t key = drop_step_key(drop);
        const int64_t channel = first_channel + c;
        pack<T, V> y;

        if (V == 1) {
            const uint4 words = drop_words(key, (uint32_t)(channel / 4), x.index, x.head, x.sample);
            const float factor = drop_factor(drop, philox_word(words, (uint32_t)(channel % 4)));

            y.at[0] = kept(x.x.at[0], factor);
        } else {
#pragma unroll
            for (int j = 0; j < V; j += 4) {
                const uint4 words =
                    drop_words(key, (uint32_t)((channel + j) / 4), x.index, x.head, x.sample);

                y.at[j % V] = kept(x.x.at[j % V], drop_factor(drop, words.x));
                y.at[(j + 1) % V] = kept(x.x.at[(j + 1) % V], drop_factor(drop, words.y));
                y.at[(j + 2) % V] = kept(x.x.at[(j + 2) % V], drop_factor(drop, words.z));
                y.at[(j + 3) % V] = kept(x.x.at[(j + 3) % V], drop_factor(drop, words.w));
            }
        }
        pack_store(out + r * C + c, y);
    }
    /* Returns x * factor for a kept value; a dropped value becomes 0, even if it is NaN or
     * infinite. */
    static __device__ T kept(T x, float factor)
    {
        return from_float<T>(factor == 0.0f ? 0.0f : to_float(x) * factor);
    }
};

extern "C" enum hd_status hd_cuda_dropout(struct hd_cuda_stream *s, const struct hd_dropout_args *a)
{
    struct cuda_drop drop = {};
    const enum hd_status st = drop_of("dropout", a->key, a->block, a->p, &drop);

    if (st)
        return st;
    HD_CUDA_FLOATS(a->dtype, T, {
        const struct cuda_dropout<T> op = {
            (T *)a->out, (const T *)a->inp, a->sample, a->index, a->counts, a->R, a->C,
                a->first_channel, a->groups, a->first_group, drop
        };

        HD_PACK_WIDTH((a->first_channel % 4 == 0 && pack_fits_wide<T>(a->C, a->out, a->inp)), T, V,
                      return map_launch_rows<V>(s, op, a->R, a->C));
    });
}
