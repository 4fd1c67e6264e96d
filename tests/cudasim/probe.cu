/* probe: small kernels that use every feature of the emulator, correctly and wrongly. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vec.cuh"
#include "tests/cudasim/probe.h"

/* ---- Built-in variables and arguments ---- */

__global__ void index_kernel(int *out, int first)
{
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;

    out[at] = first + (int)at;
}

enum hd_status probe_index(struct hd_cuda_stream *s, int *out, int first, const unsigned grid[3],
                           const unsigned block[3])
{
    return HD_LAUNCH(s, index_kernel, dim3(grid[0], grid[1], grid[2]),
                     dim3(block[0], block[1], block[2]), 0, out, first);
}

/* ---- Barriers: a tree sum over the block; `barriers` false leaves them out ---- */

__global__ void sum_kernel(float *out, const float *inp, bool barriers)
{
    HD_SHARED(float, part, 256);

    part[threadIdx.x] = inp[threadIdx.x];
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
        if (barriers)
            __syncthreads();
        if (threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x == 0)
        *out = part[0];
}

enum hd_status probe_sum(struct hd_cuda_stream *s, float *out, const float *inp, unsigned n,
                         bool barriers)
{
    return HD_LAUNCH(s, sum_kernel, dim3(1), dim3(n), 0, out, inp, barriers);
}

/* ---- Mistakes that the emulator must see ---- */

__global__ void mistake_kernel(enum probe_mistake mistake, float *out)
{
    HD_SHARED(float, array, 5);
    HD_SHARED_DYNAMIC(float, dynamic);
    const unsigned lane = threadIdx.x % 32;
    uint32_t r[4];

    switch (mistake) {
    case PROBE_BARRIERS_OF_TWO_PLACES:
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __syncthreads();
        break;
    case PROBE_BARRIER_AND_SHUFFLE:
        if (lane == 3)
            __syncthreads();
        out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (float)lane, 1);
        break;
    case PROBE_LANE_NOT_IN_MASK:
        out[threadIdx.x] = __shfl_sync(0x0000ffffu, (float)lane, 0);
        break;
    case PROBE_LANES_IN_TWO_OPERATIONS:
        if (lane < 16)
            out[threadIdx.x] = __shfl_sync(0xffffffffu, (float)lane, 0);
        else
            out[threadIdx.x] = (float)__ballot_sync(0xffffffffu, 1);
        break;
    case PROBE_SHARED_OVERRUN:
        array[threadIdx.x == 0 ? out == nullptr ? 0 : 5 : 1] = 1.0f;
        break;
    case PROBE_DYNAMIC_OVERRUN:
        dynamic[threadIdx.x] = 1.0f;
        break;
    case PROBE_MISALIGNED_VECTOR: {
        float four[4] = {1, 2, 3, 4};

        store_vec(out + 1, four);
        break;
    }
    case PROBE_MISALIGNED_LDMATRIX:
        ldmatrix_x4(r, dynamic + 4 * lane + 1);
        out[threadIdx.x] = (float)r[0];
        break;
    case PROBE_COPY_TO_GLOBAL:
        cp_async_16(out, dynamic, true);
        break;
    case PROBE_PART_OF_A_WARP_MULTIPLIES: {
        float d[4] = {0};
        const uint32_t zero[4] = {0};

        if (lane < 16)
            return;
        mma_m16n8k16<bf16>(d, zero, zero);
        out[threadIdx.x] = d[0];
        break;
    }
    case PROBE_CONSTANT_WRITTEN:
        out[threadIdx.x] = __ldg(out + threadIdx.x) == 0.0f ? 1.0f : 0.0f;
        break;
    }
}

enum hd_status probe_mistake(struct hd_cuda_stream *s, enum probe_mistake mistake, float *out,
                             size_t shared_bytes)
{
    return HD_LAUNCH(s, mistake_kernel, dim3(1), dim3(64), shared_bytes, mistake, out);
}

/* ---- Barriers with counts and votes ---- */

__global__ void votes_kernel(int *out, unsigned leave_from)
{
    const unsigned t = threadIdx.x;

    if (t >= leave_from)
        return; /* barriers do not wait for threads that have returned */
    out[t] = __syncthreads_count(t % 3 == 0) | __syncthreads_or(t == 5) << 16 |
             __syncthreads_and(t < leave_from) << 20 | __syncthreads_and(t != 7) << 24;
}

enum hd_status probe_votes(struct hd_cuda_stream *s, int *out, unsigned n, unsigned leave_from)
{
    return HD_LAUNCH(s, votes_kernel, dim3(1), dim3(n), 0, out, leave_from);
}

/* ---- Shuffles ---- */

__global__ void shuffles_kernel(struct probe_lane *out)
{
    const unsigned lane = threadIdx.x % 32;
    struct probe_lane *o = &out[threadIdx.x];

    o->from_three = __shfl_sync(0xffffffffu, 100 + (int)lane, 3);
    o->from_three_of_eight = __shfl_sync(0xffffffffu, 100 + (int)lane, 3, 8);
    o->up_two = __shfl_up_sync(0xffffffffu, 100 + (int)lane, 2, 16);
    o->down_two = __shfl_down_sync(0xffffffffu, 100 + (int)lane, 2, 16);
    o->swapped = __shfl_xor_sync(0xffffffffu, 0.5 + lane, 16);
    o->odd = __ballot_sync(0xffffffffu, lane & 1);
    o->any = __any_sync(0xffffffffu, lane == 31) && !__any_sync(0xffffffffu, lane == 32);
    o->all = __all_sync(0xffffffffu, lane < 32) && !__all_sync(0xffffffffu, lane < 31);
    if (lane % 2) /* odd and even lanes shuffle separately; odd lanes twice */
        o->of_its_half = __shfl_sync(0xaaaaaaaau, __shfl_sync(0xaaaaaaaau, (int)lane, 5) * 2, 7);
    else
        o->of_its_half = __shfl_sync(0x55555555u, (int)lane, 4);
    o->from_outside = 0;
    if (lane < 8)
        o->from_outside = __shfl_sync(0xffu, (float)lane, 20);
}

enum hd_status probe_shuffles(struct hd_cuda_stream *s, struct probe_lane *out, unsigned n)
{
    return HD_LAUNCH(s, shuffles_kernel, dim3(1), dim3(n), 0, out);
}

/* ---- Asynchronous copies: each thread passes a row to its neighbour through shared memory ---- */

__global__ void copies_kernel(float *out, const float *inp, unsigned n, bool wait, bool barrier)
{
    HD_SHARED_DYNAMIC(float, rows);
    const unsigned t = threadIdx.x, from = (t + 1) % blockDim.x;

    cp_async_16(rows + 4 * t, inp + 4 * t, 4 * t < n);
    cp_async_commit();
    cp_async_commit(); /* an empty group */
    if (wait)
        cp_async_wait<1>();
    if (barrier)
        __syncthreads();
    for (unsigned i = 0; i < 4; i++)
        out[4 * t + i] = rows[4 * from + i];
}

enum hd_status probe_copies(struct hd_cuda_stream *s, float *out, const float *inp, unsigned n,
                            unsigned threads, bool wait, bool barrier)
{
    return HD_LAUNCH(s, copies_kernel, dim3(1), dim3(threads), 16 * threads, out, inp, n, wait,
                     barrier);
}

/* ---- Matrices: d[16,8] = c + a[16,16] b[16,8], by ldmatrix and mma ---- */

template <typename T>
__global__ void product_kernel(float *d, const T *a, const T *b, const float *c)
{
    HD_SHARED(T, tile_a, 16 * 16);
    HD_SHARED(T, tile_b, 16 * 8);
    const unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4 * 2;
    uint32_t fragment_a[4], fragment_b[2], again[4], one[1];
    float sum[4];

    for (unsigned i = lane; i < 16 * 16; i += 32)
        tile_a[i] = a[i];
    for (unsigned i = lane; i < 16 * 8; i += 32)
        tile_b[i] = b[i];
    __syncwarp();
    ldmatrix_x4(fragment_a, tile_a + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x2_trans(fragment_b, tile_b + lane % 16 * 8);
    for (unsigned i = 0; i < 4; i++)
        sum[i] = c[(g + 8 * (i / 2)) * 8 + t + i % 2];
    mma_m16n8k16<T>(sum, fragment_a, fragment_b);
    for (unsigned i = 0; i < 4; i++)
        d[(g + 8 * (i / 2)) * 8 + t + i % 2] = sum[i];

    /* the other variants must give the same fragments */
    ldmatrix_x1(one, tile_a + lane % 8 * 16);
    ldmatrix_x2(again, tile_a + lane % 16 * 16);
    if (one[0] != fragment_a[0] || again[0] != fragment_a[0] || again[1] != fragment_a[1])
        d[0] = NAN;
    ldmatrix_x4_trans(again, tile_b + lane % 16 * 8);
    if (again[0] != fragment_b[0] || again[1] != fragment_b[1] || again[2] != fragment_b[0])
        d[0] = NAN;
}

enum hd_status probe_product(struct hd_cuda_stream *s, float *d, const void *a, const void *b,
                             const float *c, enum hd_dtype dtype)
{
    if (dtype == HD_BF16)
        return HD_LAUNCH(s, product_kernel<bf16>, dim3(1), dim3(32), 0, d, (const bf16 *)a,
                         (const bf16 *)b, c);
    return HD_LAUNCH(s, product_kernel<f16>, dim3(1), dim3(32), 0, d, (const f16 *)a,
                     (const f16 *)b, c);
}

/* ---- Shared memory, static and dynamic ---- */

__global__ void arrays_kernel(float *out, size_t dynamic_floats)
{
    HD_SHARED(float, first, 1024);
    HD_SHARED_DYNAMIC(float, second);

    first[1023] = 0.5f;
    second[dynamic_floats - 1] = 0.5f;
    *out = first[1023] + second[dynamic_floats - 1];
}

enum hd_status probe_arrays(struct hd_cuda_stream *s, float *out, size_t shared_bytes)
{
    return HD_LAUNCH(s, arrays_kernel, dim3(1), dim3(1), shared_bytes, out,
                     shared_bytes / sizeof *out);
}

/* ---- Atomics ---- */

__global__ void atomics_kernel(struct probe_sums *sums)
{
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned seen = atomicOr(&sums->by_cas, 0u);

    atomicAdd(&sums->ints, (int)at);
    atomicAdd(&sums->wides, (unsigned long long)at << 32);
    atomicAdd(&sums->floats, 0.5f);
    atomicAdd(&sums->doubles, 0.25);
    atomicMax(&sums->largest, (int)at);
    atomicMin(&sums->least, -(int)at);
    atomicOr(&sums->bits, 1u << at % 32);
    for (unsigned old = atomicCAS(&sums->by_cas, seen, seen + 1); old != seen;
         old = atomicCAS(&sums->by_cas, seen, seen + 1))
        seen = old;
    if (atomicExch(&sums->token, 0))
        atomicAdd(&sums->holders, 1);
}

enum hd_status probe_atomics(struct hd_cuda_stream *s, struct probe_sums *sums, unsigned grid,
                             unsigned block)
{
    return HD_LAUNCH(s, atomics_kernel, dim3(grid), dim3(block), 0, sums);
}

/* ---- Vectors: out = 2 inp, in accesses of 16 bytes if aligned ---- */

template <typename T>
__global__ void twice_kernel(T *out, const T *inp, int64_t n)
{
    constexpr int N = 2 * vec_width<T>();
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    int64_t done = 0;

    if (is_vec(out, 0) && is_vec(inp, 0)) {
        done = n / N * N;
        for (int64_t i = N * (blockIdx.x * (int64_t)blockDim.x + threadIdx.x); i < done;
             i += N * stride) {
            float x[N];

            load_vec(x, inp + i);
            for (int k = 0; k < N; k++)
                x[k] *= 2.0f;
            store_vec(out + i, x);
        }
    }
    for (int64_t i = done + blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += stride)
        out[i] = from_float<T>(2.0f * to_float(inp[i]));
}

enum hd_status probe_twice(struct hd_cuda_stream *s, void *out, const void *inp, int64_t n,
                           enum hd_dtype dtype)
{
    HD_CUDA_FLOATS(
        dtype, T,
        return HD_LAUNCH(s, twice_kernel<T>, dim3(3), dim3(32), 0, (T *)out, (const T *)inp, n));
}
