/* source: reads the weights of a model from directories: to begin or resume a run, to generate, or
 * to export.
 *
 * The directory is a checkpoint of Heddle (moments are ignored) or a model folder of Hugging Face.
 * Two more directories may belong to it:
 *
 *     base      a checkpoint may contain only trained parameters (checkpoint.frozen), and never
 *               quantized ones (model.quantization). The others are read from the model folder or
 *               checkpoint that its job began with, whose identity is in the checkpoint's job
 *     adapter   the factors of an adapter: a folder of PEFT, or a checkpoint of such a run
 *
 * Used by: the files of lib/train, plan, worker.   Uses: checkpoint, hf, program (the registry).
 * Threads: one owner at a time.
 */
#ifndef HD_TRAIN_SOURCE_H
#define HD_TRAIN_SOURCE_H

#include "hf/hf.h"
#include "program/registry.h"

struct hd_source;

struct hd_source_dirs {
    const char *dir;
    /* directory in which the base of checkpoint `dir` is now; NULL or "": the directory named in
     * the checkpoint's job */
    const char *base;
    /* directory of an adapter; NULL or "": adapter factors come from `dir` only */
    const char *adapter;
};

/* Opens the directories and maps each parameter to its file; reads no values. HD_INVALID: the
 * directories do not have exactly the parameters of the registry, in their shapes (the message says
 * what differs); or the base of the checkpoint is missing, another model, or damaged. An adapter's
 * factors may be missing, if all of them are. */
enum hd_status hd_source_open(const struct hd_source_dirs *dirs, const struct hd_job *job,
                              const struct hd_registry *registry, struct hd_source **ret_source);
void hd_source_close(struct hd_source *source); /* NULL is ignored */

/* Returns false if no directory has the parameter, which may be a factor of an adapter, a reward
 * model's vector, or a quantized parameter. Its values are then initial ones, drawn by
 * hd_source_seed. */
bool hd_source_has(const struct hd_source *source, int param);

/* Returns the seed of initial values: that of the run that wrote the checkpoint, or of its base's
 * run; without a checkpoint the job's. */
uint64_t hd_source_seed(const struct hd_source *source);

/* Returns true if the checkpoint itself has the parameter, false if its base has it. */
bool hd_source_in_checkpoint(const struct hd_source *source, int param);

/* Reads the part of parameter `param` (index in the registry) that `want` describes, as fp32. A
 * value that is not finite is an error that names the tensor: HD_INVALID in a model folder,
 * HD_CORRUPT in a checkpoint. */
enum hd_status hd_source_read(struct hd_source *source, int param, const struct hd_ckpt_entry *want,
                              float *ret_values);
/* Reads the part of a factor with which the adapter of the checkpoint's run began (train.adapter.init:
 * pissa). HD_INVALID: the weights of its base are not in a model folder. */
enum hd_status hd_source_read_first(struct hd_source *source, int param,
                                    const struct hd_ckpt_entry *want, float *ret_values);
/* Reads the part of a tensor that `want` describes from an open checkpoint, with the errors of
 * hd_source_read. */
enum hd_status hd_source_read_checkpoint(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want,
                                         float *ret_values);
/* Returns true if the model folder stores the matrix of the parameter (of one expert) in the codes
 * of `quant`, so that it need not be decoded: *ret_whole then points into the mapped files. */
bool hd_source_quantized(const struct hd_source *source, int param, int64_t expert,
                         enum hd_quant quant, struct hd_quant_whole *ret_whole);

/* Checks that the model in `dir` still has the identity that the job recorded
 * (train.init_identity); HD_INVALID if not. identity "": no check. */
enum hd_status hd_source_check_identity(const char *dir, const char *identity);
/* Checks that the adapter in `dir` still has the identity that the job recorded
 * (train.adapter.identity); errors as in hd_source_check_identity. */
enum hd_status hd_source_check_adapter(const char *dir, const char *identity);

#endif
