/* preference: sums of log-probabilities by answer, and the losses of pairs of answers.
 *
 * Bytes: a few numbers per row, negligible beside a row of logits. The rows of an answer are
 * consecutive: the thread of the first one adds them, in order and in double, as the CPU does. One
 * block adds the losses; thread t adds pairs t, t + 256, ..., then threads as in block.cuh. The
 * same shape gives the same bits.
 *
 * Not yet measured on a GPU.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/pair.h"

enum { PREFERENCE_THREADS = 256, PAIR_THREADS = 256 };

static dim3 blocks_of(int64_t count)
{
    return dim3((unsigned)((count + PREFERENCE_THREADS - 1) / PREFERENCE_THREADS));
}

static __global__ void __launch_bounds__(PREFERENCE_THREADS) clear_sums(double *sums, int64_t count)
{
    const int64_t i = (int64_t)blockIdx.x * PREFERENCE_THREADS + threadIdx.x;

    if (i < count)
        sums[i] = 0;
}

/* Returns whether row r is the first one of its answer. */
static __device__ __forceinline__ bool begins(const int32_t *answer, int64_t r, int64_t S)
{
    return answer[r] >= 0 && (r % S == 0 || answer[r] != answer[r - 1]);
}

static __global__ void __launch_bounds__(PREFERENCE_THREADS)
    sum_answers(struct hd_answer_sums_args a)
{
    const int64_t r = (int64_t)blockIdx.x * PREFERENCE_THREADS + threadIdx.x;
    double sum = 0, count = 0;
    int64_t end;

    if (r >= a.R || !begins(a.answer, r, a.S))
        return;
    end = (r / a.S + 1) * a.S;
    for (int64_t i = r; i < end && a.answer[i] == a.answer[r]; i++)
        if (!a.target || a.target[i] >= 0) {
            sum += (double)a.logp[i] - (a.reference ? (double)a.reference[i] : 0);
            count += 1;
        }
    a.sums[2 * (r / a.S * a.A + a.answer[r])] = sum;
    a.sums[2 * (r / a.S * a.A + a.answer[r]) + 1] = count;
}

extern "C" enum hd_status hd_cuda_answer_sums(struct hd_cuda_stream *s,
                                              const struct hd_answer_sums_args *a)
{
    const int64_t count = a->R / a->S * a->A * 2;
    enum hd_status st;

    if (a->R == 0)
        return HD_OK;
    st = HD_LAUNCH(s, clear_sums, blocks_of(count), dim3(PREFERENCE_THREADS), 0, a->sums, count);
    return st ? st : HD_LAUNCH(s, sum_answers, blocks_of(a->R), dim3(PREFERENCE_THREADS), 0, *a);
}

static __global__ void __launch_bounds__(PREFERENCE_THREADS) weigh_rows(struct hd_preference_args a)
{
    const int64_t r = (int64_t)blockIdx.x * PREFERENCE_THREADS + threadIdx.x;
    struct hd_pair p;

    if (r >= a.R)
        return;
    if (a.answer[r] < 0) {
        a.weight[r] = 0;
        return;
    }
    p = hd_pair_of(a.objective, &a.factors, a.block->kl,
                   a.sums + 2 * (r / a.S * a.A + a.answer[r] / 2 * 2));
    a.weight[r] = (float)(a.answer[r] % 2 ? p.rejected : p.chosen);
}

static __global__ void __launch_bounds__(PAIR_THREADS) add_pairs(struct hd_preference_args a)
{
    HD_SHARED(double, shared, BLOCK_WARPS);
    const int pairs = (int)(a.A / 2), all = (int)(a.R / a.S) * pairs;
    double loss = 0, count = 0, margin = 0, correct = 0, targets = 0, reward = 0;

    for (int i = (int)threadIdx.x; i < all; i += PAIR_THREADS) {
        const double *sums = a.sums + 2 * (i / pairs * a.A + i % pairs * 2);
        const struct hd_pair p = hd_pair_of(a.objective, &a.factors, a.block->kl, sums);

        if (!p.present)
            continue;
        loss += p.loss;
        count += (double)hd_pair_terms(a.objective, sums);
        margin += p.margin;
        correct += hd_pair_correct(a.objective, &p, sums);
        targets += sums[1] + sums[3];
        reward += p.reward;
    }
    loss = block_add(loss, shared);
    count = block_add(count, shared);
    margin = block_add(margin, shared);
    correct = block_add(correct, shared);
    targets = block_add(targets, shared);
    reward = block_add(reward, shared);
    if (threadIdx.x > 0)
        return;
    a.block->loss_sum += loss;
    a.block->target_count += (int64_t)count;
    a.block->margin_sum += margin;
    a.block->correct_pairs += correct;
    a.block->answer_targets += targets;
    a.block->reward_sum += reward;
}

extern "C" enum hd_status hd_cuda_preference(struct hd_cuda_stream *s,
                                             const struct hd_preference_args *a)
{
    enum hd_status st = HD_OK;

    if (a->R == 0)
        return HD_OK;
    if (a->weight)
        st = HD_LAUNCH(s, weigh_rows, blocks_of(a->R), dim3(PREFERENCE_THREADS), 0, *a);
    if (!st && a->counts)
        st = HD_LAUNCH(s, add_pairs, dim3(1), dim3(PAIR_THREADS), 0, *a);
    return st;
}
