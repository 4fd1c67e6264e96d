/* hf: imports and exports model directories in the format of Hugging Face transformers.
 *
 *     DIR/config.json                      the architecture
 *         model.safetensors                the weights, or
 *         model.safetensors.index.json     which of several files holds which tensor
 *         tokenizer.json
 *         heddle-hashes.json               hashes of an export's files, for hd_hf_verify
 *     DIR/adapter_config.json              an adapter as PEFT keeps it, with
 *         adapter_model.safetensors        its factors
 *
 * Three layers: `hd_weights` maps any set of safetensors files and checks their heads. The config
 * functions translate config.json to the model.* members of a resolved job and back. `hd_hf_map`
 * finds each of our parameters in their tensors, by one table of names per family for both
 * directions. Anything that cannot be translated is an error that names it; nothing is ignored.
 *
 * Our names are those of the model's parameters (blocks.3.attention.q.weight), whole tensors in
 * [out, in] order. gpt2 of transformers has matrices as [in, out], and q, k, v in one tensor.
 *
 * Used by: spec (config), train, worker.   Uses: base, checkpoint, job.
 * Threads: any; a set of weights and a map are immutable after opening.
 */
#ifndef HD_HF_H
#define HD_HF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/quant.h"
#include "base/status.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "job/job.h"

/* ---- safetensors files ---- */

enum {
    HD_WEIGHTS_FILES_MAX = 4096,
    HD_WEIGHTS_NAME_MAX = 256,         /* bytes of a tensor's name */
    HD_HF_CONFIG_BYTES_MAX = 1 << 20,  /* config.json */
    HD_HF_INDEX_BYTES_MAX = 128 << 20, /* model.safetensors.index.json */
};

struct hd_weight {
    const char *name, *file; /* file: its name in the directory */
    enum hd_dtype dtype;     /* HD_DTYPE_COUNT: one that cannot be read as numbers */
    char form[8];            /* the dtype as the file has it: "BF16", "I8" */
    int dim_count;
    int64_t shape[HD_CKPT_DIMS_MAX];
    const void *data; /* mapped, may be unaligned */
    int64_t offset_bytes, size_bytes;
};

struct hd_weights;

/* Opens model.safetensors of a directory, else the files of model.safetensors.index.json. Reads and
 * checks the heads: sizes, bounds, overlaps, gaps, duplicate names, and the index. Maps the data
 * and does not read it. HD_NOT_FOUND: neither file exists. HD_CORRUPT names the file and the
 * tensor. */
enum hd_status hd_weights_open(const char *dir, struct hd_weights **ret_weights);
/* The same for one file. */
enum hd_status hd_weights_open_file(const char *path, struct hd_weights **ret_weights);
void hd_weights_close(struct hd_weights *weights); /* NULL is fine */

size_t hd_weights_count(const struct hd_weights *weights);
const struct hd_weight *hd_weights_at(const struct hd_weights *weights, size_t index); /* sorted */
const struct hd_weight *hd_weights_find(const struct hd_weights *weights, const char *name);

/* XXH64 over the name, dtype and shape of every tensor and the first and last 4 KiB of its data, by
 * name: the same for a copy of the files, in whatever files the tensors are, and another for a
 * model that was trained further. A later attempt compares it to check that it starts from the same
 * weights. */
uint64_t hd_weights_identity(const struct hd_weights *weights);

/* The same for any directory that a run may start from: a model directory, or a checkpoint of
 * Heddle (then the hash of its manifest). */
enum hd_status hd_source_identity(const char *dir, uint64_t *ret_identity);
bool hd_source_is_checkpoint(const char *dir); /* it has a manifest.json */

/* Parses the head of a safetensors file whose bytes are in memory; hd_weights_open uses it, and
 * tests of hostile input. The names are in the arena, data points into `bytes`. */
enum hd_status hd_weights_parse(struct hd_arena *arena, const void *bytes, int64_t size_bytes,
                                struct hd_weight **ret_weights, size_t *ret_count);

/* ---- config.json ---- */

bool hd_hf_has_config(const char *dir);

/* Reads DIR/config.json into the model.* and train.dropout.* members of `ret_job`; of a reward
 * model (a class for sequence classification) train.objective is set, too. Changes no others. A key
 * is used, or is irrelevant for training, or must have the one value that is supported; any other
 * key is HD_UNSUPPORTED and named. ret_notes (may be NULL) gets a sentence for each setting that is
 * accepted but not applied (router jitter). */
enum hd_status hd_hf_read_config(const char *dir, struct hd_job *ret_job,
                                 struct hd_text *ret_notes);
/* The same from text; error messages do not name the file. */
enum hd_status hd_hf_parse_config(const char *text, size_t text_bytes, struct hd_job *ret_job,
                                  struct hd_text *ret_notes);

/* Writes config.json of a resolved job. HD_UNSUPPORTED names what config.json cannot express. */
enum hd_status hd_hf_write_config(const struct hd_job *job, enum hd_dtype dtype,
                                  struct hd_text *ret_text);

/* ---- names ---- */

/* Whether it is a reward model's: transformers' class for sequence classification. */
bool hd_hf_has_score(const struct hd_weights *weights);

struct hd_hf_map;

/* Finds every wanted parameter (whole entries with our names and shapes) in their tensors.
 * HD_INVALID, with names: tensors are missing, unused, or have another shape. `weights` and the
 * strings of `wanted` must outlive the map. */
enum hd_status hd_hf_map_open(const struct hd_weights *weights, const struct hd_job *job,
                              const struct hd_ckpt_entry *wanted, size_t count,
                              struct hd_hf_map **ret_map);
void hd_hf_map_close(struct hd_hf_map *map); /* NULL is fine */

/* Reads the piece `want` of parameter wanted[index] as fp32; stored as F32, F16, BF16 or F64.
 * HD_INVALID names the tensor and the file of a value that is not finite. */
enum hd_status hd_hf_read(const struct hd_hf_map *map, size_t index,
                          const struct hd_ckpt_entry *want, float *ret_values);

/* Whether the matrix of wanted[index] (of an expert) is in these codes, in the form in which
 * transformers saves what bitsandbytes has encoded. The parts of *ret_whole are in the mapped
 * files. hd_hf_read decodes them. */
bool hd_hf_get_quantized(const struct hd_hf_map *map, size_t index, int64_t expert,
                         enum hd_quant quant, struct hd_quant_whole *ret_whole);

/* ---- adapters ---- */

/* The adapter of a directory: a folder of PEFT, or a checkpoint of a run with one. Reads its form
 * into the members of ret_job that describe it, and changes no others: type, rank, alpha, rsLoRA,
 * targets (of PEFT's folder: the modules of its tensors). ret_identity (may be NULL) changes with
 * its factors, as hd_source_identity does. HD_INVALID: there is no adapter. HD_UNSUPPORTED: it has
 * a setting that no job can have; the message names it. */
enum hd_status hd_adapter_read(const char *dir, struct hd_job *ret_job, uint64_t *ret_identity);

/* HD_INVALID: the adapter of the checkpoint `dir` trained beside another model than `base`, a model
 * folder or a checkpoint. A folder of PEFT does not say beside which; it is taken. */
enum hd_status hd_adapter_check_base(const char *dir, const char *base);

/* Only adapter_config.json, from text; error messages do not name the file. */
enum hd_status hd_hf_parse_adapter_config(const char *text, size_t text_bytes,
                                          struct hd_job *ret_job);

/* Opens adapter_model.safetensors of a folder of PEFT. */
enum hd_status hd_hf_open_adapter(const char *dir, struct hd_weights **ret_weights);
/* hd_hf_map_open for the factors of an adapter: `wanted` are parameters named *.lora_a, *.lora_b.
 */
enum hd_status hd_hf_map_open_adapter(const struct hd_weights *weights, const struct hd_job *job,
                                      const struct hd_ckpt_entry *wanted, size_t count,
                                      struct hd_hf_map **ret_map);

/* ---- export ---- */

/* Weights that a checkpoint leaves out (checkpoint.base), from its base. */
struct hd_hf_base {
    void *context;
    const struct hd_ckpt_entry *entries; /* every parameter of the model, whole */
    size_t count;
    /* Reads the piece `want` of entries[index] as fp32. */
    enum hd_status (*read)(void *context, size_t index, const struct hd_ckpt_entry *want,
                           float *ret_values);
};

/* The tokens with which a run's texts end and begin. -1: unknown, or none. */
struct hd_hf_ends {
    int64_t end, bos;
};

struct hd_hf_export {
    const char *checkpoint_dir;    /* a checkpoint of Heddle; verified first */
    const struct hd_hf_base *base; /* NULL: all weights are in the checkpoint */
    const char *base_dir;          /* where the base is now; NULL: where it was */
    const char *out_dir;
    const struct hd_hf_ends *ends; /* NULL: unknown */
    enum hd_dtype dtype;           /* HD_F32 or HD_BF16 */
    int64_t shard_bytes_max; /* bytes of tensor data per file; more: several files and an index */
    bool adapter;            /* the adapter alone, in PEFT's form, in one file */
    bool force;              /* may replace out_dir if it is a model directory */
    void (*progress)(void *context, int64_t done_bytes, int64_t total_bytes); /* may be NULL */
    void *context;
};

/* Keeps in the folder of a checkpoint, under `base`, the files that an export of it takes from the
 * job's base and tokenizer, so that it needs neither. earlier: a checkpoint of the job that has
 * them already ("": none), whose files are linked. What cannot be read is left out; HD_STORAGE: the
 * disk takes no writes. */
enum hd_status hd_hf_keep(const char *checkpoint_dir, const struct hd_job *job,
                          const char *earlier);

bool hd_hf_has_kept(const char *checkpoint_dir); /* the checkpoint keeps these files */

/* The weights of a model with their adapter added to them in fp32, or the adapter alone.
 * HD_INVALID: there is none. Writes the directory atomically: to a temporary directory beside
 * out_dir, which is flushed and renamed. HD_EXISTS: out_dir exists and force is not set.
 * HD_CONFLICT: it is a folder with which the job began. */
enum hd_status hd_hf_export_run(const struct hd_hf_export *options);

/* Verifies a model directory of hd_hf_export_run by its hashes. HD_CORRUPT names the file, the
 * tensor
 * and the range of bytes as hd_ckpt_verify does. HD_NOT_FOUND: it has no heddle-hashes.json. */
enum hd_status hd_hf_verify(const char *dir);

/* Whether the directory has a heddle-hashes.json. */
bool hd_hf_has_hashes(const char *dir);

#endif
