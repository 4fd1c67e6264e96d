/* source: reads the weights of a model from a directory, for a new run or for generation. The
 * directory is a checkpoint of Heddle (moments are ignored) or a Hugging Face model.
 *
 * Used by: the files of lib/train, plan.   Uses: checkpoint, program (the registry).
 * Threads: one owner at a time. */
#ifndef HD_TRAIN_SOURCE_H
#define HD_TRAIN_SOURCE_H

#include "hf/hf.h"
#include "program/registry.h"

struct hd_source;

/* HD_INVALID: the directory does not have exactly the parameters of the registry, in their shapes;
 * the message says what differs. An adapter's may all be missing. Reads no values. */
enum hd_status hd_source_open(const char *dir, const struct hd_job *job,
                              const struct hd_registry *registry, struct hd_source **ret_source);
void hd_source_close(struct hd_source *source); /* NULL is fine */

/* False: the parameter is of an adapter that the directory does not have. */
bool hd_source_has(const struct hd_source *source, int param);

/* Reads the piece `want` of parameter `param` (index in the registry) as fp32. A value that is not
 * finite is an error that names the tensor: HD_INVALID of a model folder, HD_CORRUPT of a
 * checkpoint. */
enum hd_status hd_source_read(struct hd_source *source, int param, const struct hd_ckpt_entry *want,
                              float *ret_values);
/* The same from an open checkpoint. */
enum hd_status hd_source_read_checkpoint(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want,
                                         float *ret_values);
/* Whether a model folder has a matrix of the parameter (of an expert) in these codes. Then it need
 * not be read as numbers: *ret_whole points into the mapped files. */
bool hd_source_codes(const struct hd_source *source, int param, int64_t expert, enum hd_quant quant,
                     struct hd_quant_whole *ret_whole);

/* HD_INVALID: `dir` has another identity (train.init_identity) than this one; "": any will do. */
enum hd_status hd_source_check_identity(const char *dir, const char *identity);

#endif
