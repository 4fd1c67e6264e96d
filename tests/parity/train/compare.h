/* compare: how far two training runs of one model may lie apart.
 *
 * Layouts differ only in the order in which terms are added, so gradients agree to rounding, tensor
 * by tensor. All comparisons give HD_OK, or a story that names the tensor and both numbers.
 */
#ifndef HD_TESTS_TRAIN_COMPARE_H
#define HD_TESTS_TRAIN_COMPARE_H

#include "runs.h"

/* How far two gradients of parameter p may lie apart, in units of their length. */
typedef double bound_fn(const struct hd_rank_program *layout, const struct hd_param *p);
double fp32_bound(const struct hd_rank_program *layout, const struct hd_param *p); /* 1e-5 */
/* With train.grad_reduce_dtype: bf16. Rounding to bf16 moves a number by at most 2^-9 of it. n
 * terms whose directions have nothing to do with each other are together sqrt(n) times as long as
 * their sum, so rounding them moves it by at most 2^-9 sqrt(n): n is P ranks, or with ZeRO 2 and 3,
 * where each of M micro-batches is summed, P M. Parts of one sequence (cp) are no such terms: over
 * its keys the gradients of softmax add up to zero, so they cancel, and get twice as much. So do
 * those of pairs, differences of two answers, which have no direction in common; with both, four
 * times as much: cp may part two answers, and what their gradients have in common then cancels
 * behind the rounding. What travels back is rounded once more, 2^-9; with blocks of shards the sums
 * of the blocks, and then what travels back between them. */
double reduce_bound(const struct hd_rank_program *layout, const struct hd_param *p);
/* In the job's bf16 or fp16, k C^(L+1-l) eps with k = 4, C = 1.03 (the bound by which Megatron
 * compares layouts): errors of the layers above add up on the way down. l counts units from the
 * embedding; eps, the distance of the numbers from 1 on, is 2^-7 for bf16 and 2^-10 for fp16. */
double half_bound(const struct hd_rank_program *layout, const struct hd_param *p);

/* In fp8, two layouts: sums that differ by an eps of bf16 lie apart by one unit of an 8-bit format,
 * its eps, where they round to different codes, which is a share eps_bf16 / eps of them: the root
 * of the mean square is sqrt(eps_bf16 eps), with the eps of E5M2, the coarser one, 2^-2. The rest
 * is as above. */
double fp8_bound(const struct hd_rank_program *layout, const struct hd_param *p);
/* In fp8 against fp32: rounding to the nearest errs by eps / sqrt(12) in the root of the mean
 * square.
 */
double fp8_rounding_bound(const struct hd_rank_program *layout, const struct hd_param *p);

/* How far two losses at the initial weights may lie apart. The loss is a mean of
 * log-sum-exp(z) - z[target], so it moves by at most twice the error of a logit. A logit is a
 * product of C terms x w with |x| about 1 (normed) and w of 0.02, so of size 0.02 sqrt(C), and
 * carries a rounding, eps of itself, per unit that it came through; in fp8 that of E4M3, 2^-3. */
double half_loss_bound(const struct hd_job *job);

/* Gradients of all parameters, whole (runs.h). ret_worst, if given: the largest distance found. */
enum hd_status compare_gradients(const struct hd_job *job, const float *mine,
                                 const float *reference, bound_fn *bound, double *ret_worst);

/* No rank's share differs in a bit from what the others hold of it. */
enum hd_status compare_ranks_agree(const struct run *run, int world);

/* Trains `job` on threads and holds it against a reference run of the same steps: first gradients,
 * losses and targets of the steps and of a validation, total weight change (1e-4), norms, and the
 * gradients of the last step. That one is taken at the reference's weights, all before it at its
 * own. */
enum hd_status compare_with(const struct hd_job *job, const struct run *reference,
                            double *ret_worst);
/* traffic: counts the run's second step and validation; NULL: they are not counted. */
enum hd_status compare_layout(const struct hd_job *job,
                              const struct hd_rank_program_options *options,
                              const struct run *reference, struct traffic *traffic,
                              double *ret_worst);

#endif
