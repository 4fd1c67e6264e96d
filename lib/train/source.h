/* source: the weights of a model from a directory, for a new run or for generation. Either one of
 * our checkpoints (any step; moments are left where they are) or a model directory of transformers.
 *
 * Used by: the files of lib/train.   Uses: checkpoint, program (the registry).
 * Threads: one owner at a time.
 */
#ifndef HD_TRAIN_SOURCE_H
#define HD_TRAIN_SOURCE_H

#include "hf/hf.h"
#include "program/registry.h"

struct hd_source;

/* Every parameter of the registry is there with its shape, and nothing else, or HD_INVALID names
 * what is not. */
enum hd_status hd_source_open(const char *dir, const struct hd_job *job,
                              const struct hd_registry *registry, struct hd_source **ret_source);
void hd_source_close(struct hd_source *source); /* NULL is fine */

/* The piece `want` of parameter number `param`. A value that is not finite is an error that names
 * the tensor: no training goes on from it. */
enum hd_status hd_source_read(struct hd_source *source, int param, const struct hd_ckpt_entry *want,
                              float *ret_values);

/* The same of an open checkpoint. HD_CORRUPT names a tensor with a NaN or an infinity. */
enum hd_status hd_source_read_checkpoint(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want,
                                         float *ret_values);

/* Is `dir` still what had this identity (16 hex digits; "": any)? HD_INVALID when not. */
enum hd_status hd_source_check_identity(const char *dir, const char *identity);

#endif
