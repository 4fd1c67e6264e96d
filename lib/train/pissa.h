/* pissa: adapters that begin with the largest singular directions of their weights (train.adapter.init:
 * pissa; Meng et al. 2024, "PiSSA: Principal Singular Values and Singular Vectors Adaptation").
 *
 *     weight W of the model folder --principal.h--> s B0 A0, the part with its r largest singular values
 *         A and B begin with A0 and B0;  the base is W - s B0 A0, and of a quantized base the codes
 *         of that
 *
 * Targets with one A (GPT-2's c_attn) are decomposed as the one matrix that they are. A0 and B0 are functions
 * of W alone, to the bit, so no checkpoint has them: who reads W from the folder subtracts them again.
 * Each matrix is decomposed when it is first needed, as a whole on each rank that needs a part of it.
 *
 * Used by: source.   Uses: principal, program (the registry).   Threads: the caller's.
 */
#ifndef HD_TRAIN_PISSA_H
#define HD_TRAIN_PISSA_H

#include "checkpoint/checkpoint.h"
#include "job/job.h"
#include "program/registry.h"

struct hd_pissa;

/* Reads all of parameter `param` of the model folder, as it is there. */
typedef enum hd_status hd_pissa_read_fn(void *from, int param, float *ret_values);

/* Finds the matrices that have factors. `registry` must outlive the result. HD_UNSUPPORTED: an expert
 * has factors. HD_INVALID: the rank is above that of a weight. */
enum hd_status hd_pissa_new(const struct hd_registry *registry, const struct hd_job *job,
                            hd_pissa_read_fn *read, void *from, struct hd_pissa **ret_pissa);
void hd_pissa_free(struct hd_pissa *pissa); /* NULL is ignored */

/* Returns whether the parameter is a weight with factors, or such a factor. */
bool hd_pissa_is_weight(const struct hd_pissa *pissa, int param);
bool hd_pissa_is_factor(const struct hd_pissa *pissa, int param);

/* Sets ret_values to the part of a factor's first values that `want` describes. */
enum hd_status hd_pissa_factor(struct hd_pissa *pissa, int param, const struct hd_ckpt_entry *want,
                               float *ret_values);
/* Subtracts s B0 A0 from the part of a weight that `want` describes. */
enum hd_status hd_pissa_subtract(struct hd_pissa *pissa, int param,
                                 const struct hd_ckpt_entry *want, float *values);

#endif
