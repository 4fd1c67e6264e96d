/* step: the step state, the chunk sums of the gradient norm, and the records that ranks
 * exchange. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"
#include "kernels/policy.h"

enum hd_status KERNEL(step_begin)(struct hd_backend *cpu, const struct hd_step_begin_args *args)
{
    (void)cpu;
    args->block->loss_sum = 0;
    args->block->target_count = 0;
    args->block->overflow = 0;
    args->block->too_many_rows = 0;
    args->block->margin_sum = 0;
    args->block->correct_pairs = 0;
    args->block->answer_targets = 0;
    args->block->reward_sum = 0;
    args->block->z_sum = 0;
    memset(args->block->policy, 0, sizeof args->block->policy);
    args->block->distill_sum = 0;
    args->block->distill_rows = 0;
    return HD_OK;
}

/* Sums the squares of each chunk in two vectors of doubles, whose lanes are then added in order. */
static void square_chunks(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct hd_square_sums_args *a = args;

    (void)thread;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        const int64_t first = chunk * HD_GRAD_CHUNK;
        const int64_t last = first + HD_GRAD_CHUNK < a->N ? first + HD_GRAD_CHUNK : a->N;
        vd low = {0}, high = {0};
        double sum = 0;

        FOR_VECTORS (i, n, first, last) {
            const vf x = vf_load_f32(a->grad + i, n);
            vf_half half[2];
            vd wide;

            memcpy(half, &x, sizeof x);
            wide = __builtin_convertvector(half[0], vd);
            low += wide * wide;
            wide = __builtin_convertvector(half[1], vd);
            high += wide * wide;
        }
        low += high;
        for (int i = 0; i < VL / 2; i++)
            sum += low[i];
        a->sums[chunk] = sum;
    }
}

enum hd_status KERNEL(square_sums)(struct hd_backend *cpu, const struct hd_square_sums_args *args)
{
    const int64_t chunks = (args->N + HD_GRAD_CHUNK - 1) / HD_GRAD_CHUNK;

    hd_cpu_parallel(cpu, chunks, 1, square_chunks, args);
    for (int64_t i = 0; i < chunks; i++)
        if (!isfinite(
                args->sums[i])) /* then a gradient is not finite: squares of floats do not overflow
                                   a double */
            args->block->overflow = 1;
    return HD_OK;
}

enum hd_status KERNEL(step_record)(struct hd_backend *cpu, const struct hd_step_record_args *args)
{
    double *record = args->record;

    (void)cpu;
    memset(record, 0, HD_EXCHANGE_WORDS * sizeof *record);
    record[HD_EXCHANGE_OVERFLOW] = args->block->overflow ? 1 : 0;
    record[HD_EXCHANGE_OVERFLOW] += args->block->too_many_rows ? HD_EXCHANGE_TOO_MANY_ROWS : 0;
    record[HD_EXCHANGE_REQUEST] = (double)args->block->request; /* a double holds the number exactly
                                                                   below 2^53 */
    record[HD_EXCHANGE_BUSY_MS] = args->block->busy_ms;
    record[HD_EXCHANGE_AWAITED] = (double)args->block->awaited;
    if (args->counts_loss) {
        record[HD_EXCHANGE_LOSS] = args->block->loss_sum;
        record[HD_EXCHANGE_TARGETS] = (double)args->block->target_count;
        record[HD_EXCHANGE_MARGIN] = args->block->margin_sum;
        record[HD_EXCHANGE_CORRECT] = args->block->correct_pairs;
        record[HD_EXCHANGE_ANSWER_TARGETS] = args->block->answer_targets;
        record[HD_EXCHANGE_REWARD] = args->block->reward_sum;
        record[HD_EXCHANGE_Z] = args->block->z_sum;
        memcpy(record + HD_EXCHANGE_POLICY, args->block->policy, sizeof args->block->policy);
        record[HD_EXCHANGE_DISTILL] = args->block->distill_sum;
        record[HD_EXCHANGE_DISTILL_ROWS] = args->block->distill_rows;
    }
    for (int64_t i = 0; i < args->chunks; i++)
        record[HD_EXCHANGE_SQUARES] += args->sums[i];
    return HD_OK;
}

enum hd_status KERNEL(step_finish)(struct hd_backend *cpu, const struct hd_step_finish_args *args)
{
    struct hd_step_state *block = args->block;
    double loss = 0, targets = 0, overflow = 0, squares = 0, scale, norm;
    double margin = 0, correct = 0, answers = 0, reward = 0, z = 0, distill = 0, distilled = 0;

    (void)cpu;
    memset(block->policy_total, 0, sizeof block->policy_total);
    for (int64_t r = 0; r < args->ranks; r++) {
        const double *record = args->records + r * HD_EXCHANGE_WORDS;

        loss += record[HD_EXCHANGE_LOSS];
        targets += record[HD_EXCHANGE_TARGETS];
        overflow += record[HD_EXCHANGE_OVERFLOW];
        squares += record[HD_EXCHANGE_SQUARES];
        margin += record[HD_EXCHANGE_MARGIN];
        correct += record[HD_EXCHANGE_CORRECT];
        answers += record[HD_EXCHANGE_ANSWER_TARGETS];
        reward += record[HD_EXCHANGE_REWARD];
        z += record[HD_EXCHANGE_Z];
        hd_policy_add(block->policy_total, record + HD_EXCHANGE_POLICY);
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
    return HD_OK;
}
