/* step: the step state, the chunk sums of the gradient norm, the records of the step's exchange.
 *
 * Bytes: square_sums reads 4 N in packs of 16 bytes, four per thread in flight, with one block per
 * chunk; it is the only kernel here that takes time. A conversion and a double addition per element
 * use a quarter of the double rate of a multiprocessor (with full-rate fp64) in the time of the
 * bytes. The others are single blocks over a few kilobytes.
 *
 * Order of additions: in a chunk, thread t adds the groups of four elements at 4t, 4 (t + 256), ...
 * in four sums, for any alignment; the four are added in pairs, threads as in block.cuh. A record
 * adds the chunk sums t, t + 1024, ... per thread, then over threads. The same shape gives the same
 * bits.
 *
 * The step state is written by one thread of a launch, or atomically with equal values. */
#include "kernels/cuda/block.cuh"
#include "kernels/policy.h"

enum { SQUARE_THREADS = 256, SQUARE_UNROLL = 4, RECORD_THREADS = 1024 };

static __global__ void step_begin(struct hd_step_state *block)
{
    block->loss_sum = 0;
    block->target_count = 0;
    block->overflow = 0;
    block->too_many_rows = 0;
    block->margin_sum = 0;
    block->correct_pairs = 0;
    block->answer_targets = 0;
    block->reward_sum = 0;
    block->z_sum = 0;
    for (int i = 0; i < HD_POLICY_WORDS; i++)
        block->policy[i] = 0;
    block->distill_sum = 0;
    block->distill_rows = 0;
}

extern "C" enum hd_status hd_cuda_step_begin(struct hd_cuda_stream *s,
                                             const struct hd_step_begin_args *a)
{
    return HD_LAUNCH(s, step_begin, dim3(1), dim3(1), 0, a->block);
}

template <bool WIDE>
static __device__ __forceinline__ float4 load_four(const float *grad, int64_t i, int64_t end)
{
    if (WIDE && i + 4 <= end)
        return __ldg(reinterpret_cast<const float4 *>(grad + i));
    return make_float4(i < end ? grad[i] : 0, i + 1 < end ? grad[i + 1] : 0,
                       i + 2 < end ? grad[i + 2] : 0, i + 3 < end ? grad[i + 3] : 0);
}

/* Adds the squares of the elements of one chunk of the gradient. WIDE: grad is aligned to 16 bytes.
 */
template <bool WIDE>
static __global__ void __launch_bounds__(SQUARE_THREADS)
    square_chunk(double *sums, struct hd_step_state *block, const float *grad, int64_t N)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    constexpr int STEP = SQUARE_THREADS * 4;
    const int64_t begin = (int64_t)blockIdx.x * HD_GRAD_CHUNK;
    const int64_t end = begin + HD_GRAD_CHUNK < N ? begin + HD_GRAD_CHUNK : N;
    double x = 0, y = 0, z = 0, w = 0, sum;

    for (int64_t i = begin + threadIdx.x * 4; i < end; i += SQUARE_UNROLL * STEP) {
        float4 four[SQUARE_UNROLL];

#pragma unroll
        for (int u = 0; u < SQUARE_UNROLL; u++)
            four[u] = load_four<WIDE>(grad, i + u * STEP, end);
#pragma unroll
        for (int u = 0; u < SQUARE_UNROLL; u++) {
            x += (double)four[u].x * (double)four[u].x;
            y += (double)four[u].y * (double)four[u].y;
            z += (double)four[u].z * (double)four[u].z;
            w += (double)four[u].w * (double)four[u].w;
        }
    }
    sum = block_add((x + y) + (z + w), shared);
    if (threadIdx.x > 0)
        return;
    sums[blockIdx.x] = sum;
    /* a gradient value is not finite: squares of floats do not overflow a double */
    if (!isfinite(sum))
        (void)atomicExch(reinterpret_cast<unsigned long long *>(&block->overflow), 1ull);
}

extern "C" enum hd_status hd_cuda_square_sums(struct hd_cuda_stream *s,
                                              const struct hd_square_sums_args *a)
{
    const dim3 chunks((unsigned)((a->N + HD_GRAD_CHUNK - 1) / HD_GRAD_CHUNK));

    if (a->N == 0)
        return HD_OK;
    if ((uintptr_t)a->grad % 16 == 0)
        return HD_LAUNCH(s, square_chunk<true>, chunks, dim3(SQUARE_THREADS), 0, a->sums, a->block,
                         a->grad, a->N);
    return HD_LAUNCH(s, square_chunk<false>, chunks, dim3(SQUARE_THREADS), 0, a->sums, a->block,
                     a->grad, a->N);
}

static __global__ void __launch_bounds__(RECORD_THREADS)
    step_record(double *record, const struct hd_step_state *block, const double *sums,
                int64_t chunks, bool counts_loss)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    double squares = 0;

#pragma unroll 4
    for (int64_t i = threadIdx.x; i < chunks; i += RECORD_THREADS)
        squares += sums[i];
    squares = block_add(squares, shared);
    if (threadIdx.x > 0)
        return;
    record[HD_EXCHANGE_LOSS] = counts_loss ? block->loss_sum : 0;
    record[HD_EXCHANGE_TARGETS] = counts_loss ? (double)block->target_count : 0;
    record[HD_EXCHANGE_OVERFLOW] =
        (block->overflow ? 1 : 0) + (block->too_many_rows ? HD_EXCHANGE_TOO_MANY_ROWS : 0);
    record[HD_EXCHANGE_REQUEST] = (double)block->request; /* exact below 2^53 */
    record[HD_EXCHANGE_BUSY_MS] = block->busy_ms;
    record[HD_EXCHANGE_AWAITED] = (double)block->awaited;
    record[HD_EXCHANGE_SQUARES] = squares;
    record[HD_EXCHANGE_MARGIN] = counts_loss ? block->margin_sum : 0;
    record[HD_EXCHANGE_CORRECT] = counts_loss ? block->correct_pairs : 0;
    record[HD_EXCHANGE_ANSWER_TARGETS] = counts_loss ? block->answer_targets : 0;
    record[HD_EXCHANGE_REWARD] = counts_loss ? block->reward_sum : 0;
    record[HD_EXCHANGE_Z] = counts_loss ? block->z_sum : 0;
    for (int i = 0; i < HD_POLICY_WORDS; i++)
        record[HD_EXCHANGE_POLICY + i] = counts_loss ? block->policy[i] : 0;
    record[HD_EXCHANGE_DISTILL] = counts_loss ? block->distill_sum : 0;
    record[HD_EXCHANGE_DISTILL_ROWS] = counts_loss ? block->distill_rows : 0;
}

extern "C" enum hd_status hd_cuda_step_record(struct hd_cuda_stream *s,
                                              const struct hd_step_record_args *a)
{
    return HD_LAUNCH(s, step_record, dim3(1), dim3(RECORD_THREADS), 0, a->record, a->block, a->sums,
                     a->chunks, a->counts_loss);
}

/* Finishes the training step from the records of all ranks, in one thread and in rank order, with
 * the operations of the CPU, so that every rank gets the same bits. */
static __global__ void step_finish(struct hd_step_state *block, const double *records,
                                   int64_t ranks)
{
    double loss = 0, targets = 0, overflow = 0, squares = 0, scale, norm;
    double margin = 0, correct = 0, answers = 0, reward = 0, z = 0, distill = 0, distilled = 0;

    for (int i = 0; i < HD_POLICY_WORDS; i++)
        block->policy_total[i] = 0;
    for (int64_t r = 0; r < ranks; r++) {
        const double *record = records + r * HD_EXCHANGE_WORDS;

        hd_policy_add(block->policy_total, record + HD_EXCHANGE_POLICY);
        loss += record[HD_EXCHANGE_LOSS];
        targets += record[HD_EXCHANGE_TARGETS];
        overflow += record[HD_EXCHANGE_OVERFLOW];
        squares += record[HD_EXCHANGE_SQUARES];
        margin += record[HD_EXCHANGE_MARGIN];
        correct += record[HD_EXCHANGE_CORRECT];
        answers += record[HD_EXCHANGE_ANSWER_TARGETS];
        reward += record[HD_EXCHANGE_REWARD];
        z += record[HD_EXCHANGE_Z];
        distill += record[HD_EXCHANGE_DISTILL];
        distilled += record[HD_EXCHANGE_DISTILL_ROWS];
    }
    scale = targets > 0 ? 1.0 / (targets * (double)block->loss_scale) : 0;
    norm = sqrt(squares) * scale;
    block->total_targets = targets;
    block->mean_loss = targets > 0 ? loss / targets : 0;
    block->mean_margin = targets > 0 ? margin / targets : 0;
    block->pair_accuracy = targets > 0 ? correct / targets : 0;
    block->pair_targets = answers;
    block->mean_reward = targets > 0 ? reward / targets : 0;
    block->mean_z = targets > 0 ? z / targets : 0;
    block->mean_distill = distilled > 0 ? distill / distilled : 0;
    block->grad_norm = norm;
    if (block->max_grad_norm > 0 && norm > (double)block->max_grad_norm)
        scale *= (double)block->max_grad_norm / norm;
    block->grad_factor = (float)scale;
    block->skip_update = overflow != 0 || !(targets > 0) || !isfinite(norm);
    block->spike =
        !block->skip_update && ((block->loss_limit > 0 && block->mean_loss > block->loss_limit) ||
                                (block->norm_limit > 0 && norm > block->norm_limit));
    block->skip_update |= block->spike;
}

extern "C" enum hd_status hd_cuda_step_finish(struct hd_cuda_stream *s,
                                              const struct hd_step_finish_args *a)
{
    return HD_LAUNCH(s, step_finish, dim3(1), dim3(1), 0, a->block, a->records, a->ranks);
}
