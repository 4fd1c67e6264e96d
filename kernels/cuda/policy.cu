/* policy: losses of completions that the model has sampled.
 *
 * Bytes: some 30 per row, negligible beside a row of logits. One thread computes a row's weight. One
 * block adds the losses and the numbers of the step; thread t adds rows t, t + 256, ..., then threads
 * as in block.cuh. The same shape gives the same bits.
 *
 * Not yet measured on a GPU.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/policy.h"

enum { POLICY_THREADS = 256 };

static __device__ __forceinline__ bool counts_row(const struct hd_policy_args &a, int64_t r)
{
    return a.answer[r] >= 0 && a.target[r] >= 0;
}

static __device__ __forceinline__ struct hd_policy_row row_at(const struct hd_policy_args &a,
                                                              int64_t r)
{
    const double *sums = a.sums + 2 * (r / a.S * a.A + a.answer[r]);
    struct hd_policy_token t;

    t.logp = (double)a.logp[r];
    t.sampled = (double)a.sampled[r];
    t.reference = a.reference ? (double)a.reference[r] : 0;
    t.advantage = (double)a.advantage[r];
    t.difference_sum = sums[0];
    t.count = sums[1];
    return hd_policy_of(&a.factors, &t);
}

static __global__ void __launch_bounds__(POLICY_THREADS) weigh_tokens(struct hd_policy_args a)
{
    const int64_t r = (int64_t)blockIdx.x * POLICY_THREADS + threadIdx.x;

    if (r < a.R)
        a.weight[r] = counts_row(a, r) ? (float)row_at(a, r).weight : 0.0f;
}

static __global__ void __launch_bounds__(POLICY_THREADS) add_tokens(struct hd_policy_args a)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    HD_SHARED(float, shared_max, BLOCK_WARPS);
    double words[HD_POLICY_WORDS] = {0}, loss = 0, answers = 0;

    for (int64_t r = threadIdx.x; r < a.R; r += POLICY_THREADS)
        if (counts_row(a, r)) {
            struct hd_policy_row row = row_at(a, r);

            if (a.spread)
                row.words[HD_POLICY_ENTROPY_SUM] = hd_policy_entropy(a.spread, a.P, a.R, r);
            loss += row.loss;
            hd_policy_add(words, row.words);
        }
    for (int64_t i = threadIdx.x; a.counts_answers && i < a.R / a.S * a.A; i += POLICY_THREADS)
        answers += a.sums[2 * i + 1] > 0;
    loss = block_add(loss, shared);
    answers = block_add(answers, shared);
    for (int i = 0; i < HD_POLICY_WORDS; i++)
        words[i] = i < HD_POLICY_MAXIMA ? block_add(words[i], shared)
                                        : (double)block_max((float)words[i], shared_max);
    if (threadIdx.x > 0)
        return;
    words[HD_POLICY_COMPLETIONS] = answers;
    a.block->loss_sum += loss;
    a.block->target_count += (int64_t)answers * hd_policy_terms(&a.factors);
    if (a.factors.mean == HD_POLICY_MEAN_TOKENS)
        a.block->target_count += (int64_t)words[HD_POLICY_TOKENS];
    hd_policy_add(a.block->policy, words);
}

extern "C" enum hd_status hd_cuda_policy(struct hd_cuda_stream *s, const struct hd_policy_args *a)
{
    enum hd_status st = HD_OK;

    if (a->R == 0)
        return HD_OK;
    if (a->weight)
        st = HD_LAUNCH(s, weigh_tokens,
                       dim3((unsigned)((a->R + POLICY_THREADS - 1) / POLICY_THREADS)),
                       dim3(POLICY_THREADS), 0, *a);
    return st ? st : HD_LAUNCH(s, add_tokens, dim3(1), dim3(POLICY_THREADS), 0, *a);
}
