/* source: reads the weights of a model from directories, for a new run, to go on with one, for
 * generation or export.
 *
 * The directory is a checkpoint of Heddle (moments are ignored) or a model folder of Hugging Face.
 * Two more may belong to it:
 *
 *     base      a checkpoint may have only what trained (checkpoint.base), and never has codes
 *               (model.weights). The rest is read from what its job began with, a model folder or a
 *               checkpoint, whose identity the checkpoint's job has
 *     adapter   the factors of an adapter: a folder of PEFT, or a checkpoint of a run with one
 *
 * Used by: the files of lib/train, plan, worker.   Uses: checkpoint, hf, program (the registry).
 * Threads: one owner at a time. */
#ifndef HD_TRAIN_SOURCE_H
#define HD_TRAIN_SOURCE_H

#include "hf/hf.h"
#include "program/registry.h"

struct hd_source;

struct hd_source_dirs {
    const char *dir;
    const char *base;    /* where the base of a checkpoint is now; NULL or "": where it was */
    const char *adapter; /* NULL or "": only what dir has of the adapter */
};

/* HD_INVALID: the directories do not have exactly the parameters of the registry, in their shapes;
 * the message says what differs; or the base of the checkpoint is not where it was, is another one,
 * or is damaged. An adapter's may all be missing. Reads no values. */
enum hd_status hd_source_open(const struct hd_source_dirs *dirs, const struct hd_job *job,
                              const struct hd_registry *registry, struct hd_source **ret_source);
void hd_source_close(struct hd_source *source); /* NULL is fine */

/* False: the parameter is of an adapter that the directories do not have, or in codes, and its
 * values are those of hd_source_seed. */
bool hd_source_has(const struct hd_source *source, int param);

/* Of the run that wrote the checkpoint, or of its base's; else the job's. */
uint64_t hd_source_seed(const struct hd_source *source);

/* Whether the checkpoint itself has the parameter, as opposed to its base. */
bool hd_source_in_checkpoint(const struct hd_source *source, int param);

/* Reads the piece `want` of parameter `param` (index in the registry) as fp32. A value that is not
 * finite is an error that names the tensor: HD_INVALID of a folder, HD_CORRUPT of a checkpoint. */
enum hd_status hd_source_read(struct hd_source *source, int param, const struct hd_ckpt_entry *want,
                              float *ret_values);
/* The same from an open checkpoint. */
enum hd_status hd_source_read_checkpoint(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want,
                                         float *ret_values);
/* Whether a model folder has a matrix of the parameter (of an expert) in these codes. Then it need
 * not be read as numbers: *ret_whole points into the mapped files. */
bool hd_source_quantized(const struct hd_source *source, int param, int64_t expert,
                         enum hd_quant quant, struct hd_quant_whole *ret_whole);

/* HD_INVALID: `dir` has another identity (train.init_identity) than this one; "": any will do. */
enum hd_status hd_source_check_identity(const char *dir, const char *identity);
/* The same of an adapter (train.adapter.identity). */
enum hd_status hd_source_check_adapter(const char *dir, const char *identity);

#endif
