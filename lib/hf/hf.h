/* hf: imports and exports model directories in the format of Hugging Face transformers.
 *
 *     DIR/config.json                      the architecture
 *         model.safetensors                the weights, or
 *         model.safetensors.index.json     the map from tensors to several files
 *         tokenizer.json
 *         heddle-hashes.json               hashes of an export's files, for hd_hf_verify
 *     DIR/adapter_config.json              an adapter in PEFT's form, with
 *         adapter_model.safetensors        its factors
 *
 * Three layers: `hd_weights` maps any set of safetensors files and checks their heads. The config
 * functions translate config.json to the model.* members of a resolved job and back. `hd_hf_map`
 * finds each of our parameters in their tensors, by one table of names per family for both
 * directions. A setting or tensor that cannot be translated is an error that names it; none is
 * ignored.
 *
 * "Ours" means Heddle's, "theirs" that of transformers. Our names are those of the model's
 * parameters (blocks.3.attention.q.weight), whole tensors in [out, in] order. gpt2 of transformers
 * has matrices as [in, out], and q, k, v in one tensor.
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
#include "checkpoint/safetensors.h"
#include "job/job.h"

/* ---- safetensors files ---- */

enum {
    HD_WEIGHTS_FILES_MAX = 4096,
    HD_HF_CONFIG_BYTES_MAX = 1 << 20,  /* bytes of a config.json */
    HD_HF_INDEX_BYTES_MAX = 128 << 20, /* bytes of a model.safetensors.index.json */
};

struct hd_weights;

/* Opens model.safetensors of a directory, else the files of model.safetensors.index.json. Reads and
 * checks the files' headers: sizes, bounds, overlaps, gaps, duplicate names, and the index. Maps
 * the tensors' data without reading it. HD_NOT_FOUND: neither file exists. HD_CORRUPT: the message
 * names the file and the tensor. */
enum hd_status hd_weights_open(const char *dir, struct hd_weights **ret_weights);
/* Opens one safetensors file as hd_weights_open opens those of a directory. */
enum hd_status hd_weights_open_file(const char *path, struct hd_weights **ret_weights);
void hd_weights_close(struct hd_weights *weights); /* `weights` may be NULL */

size_t hd_weights_count(const struct hd_weights *weights);
/* Returns a tensor by its index in the order of names. */
const struct hd_weight *hd_weights_at(const struct hd_weights *weights, size_t index);
const struct hd_weight *hd_weights_find(const struct hd_weights *weights, const char *name);

/* Returns the XXH64 of the name, dtype and shape of every tensor and of the first and last 4 KiB of
 * its data, in the order of names. It is equal for a copy of the weights, also when they are split
 * into files differently, and differs for a model that was trained further. A later attempt
 * compares it to check that it starts from the same weights. */
uint64_t hd_weights_identity(const struct hd_weights *weights);

/* Computes the identity of any directory that a run may start from: of a model directory
 * hd_weights_identity, of a Heddle checkpoint the hash of its manifest. */
enum hd_status hd_source_identity(const char *dir, uint64_t *ret_identity);
bool hd_source_is_checkpoint(const char *dir); /* returns whether dir has a manifest.json */
/* Read the job that a checkpoint has in its manifest: of an open one, or of the one in a folder. Texts
 * and lists are in `arena`. The message of an error names the folder. */
enum hd_status hd_stored_job_of(const struct hd_ckpt *ckpt, struct hd_arena *arena,
                                struct hd_job *ret_job);
enum hd_status hd_stored_job_in(const char *dir, struct hd_arena *arena, struct hd_job *ret_job);

/* Parses the header of a safetensors file whose bytes are in memory; used by hd_weights_open, and
 * by tests of hostile input. Names live in the arena, data points into `bytes`. */
enum hd_status hd_weights_parse(struct hd_arena *arena, const void *bytes, int64_t size_bytes,
                                struct hd_weight **ret_weights, size_t *ret_count);

/* ---- config.json ---- */

bool hd_hf_has_config(const char *dir);

/* Reads DIR/config.json into the model.* and train.dropout.* members of `ret_job`; for a reward
 * model (a class for sequence classification) also sets train.objective. Changes no other member;
 * the job needs an arena (hd_job_init).
 * Each key is either used, or has no effect on training, or must have the one supported value; any
 * other key is HD_UNSUPPORTED and named. ret_notes (may be NULL) gets a sentence for each setting
 * that is accepted but not applied (router jitter). */
enum hd_status hd_hf_read_config(const char *dir, struct hd_job *ret_job,
                                 struct hd_text *ret_notes);
/* Parses the text of a config.json as hd_hf_read_config does; error messages do not name the
 * file. */
enum hd_status hd_hf_parse_config(const char *text, size_t text_bytes, struct hd_job *ret_job,
                                  struct hd_text *ret_notes);

/* Appends the config.json of a resolved job to ret_text. HD_UNSUPPORTED: the message names what
 * config.json cannot express. */
enum hd_status hd_hf_write_config(const struct hd_job *job, enum hd_dtype dtype,
                                  struct hd_text *ret_text);

/* ---- names ---- */

/* Returns whether the folder has layers that predict further tokens, with names that its family's
 * files have for those of model.mtp. */
bool hd_hf_has_further(const struct hd_weights *weights, const struct hd_job *job);
/* Returns whether the weights are those of a reward model, transformers' class for sequence
 * classification: they have a tensor score.weight. */
bool hd_hf_has_score(const struct hd_weights *weights);

struct hd_hf_map;

/* Finds every wanted parameter (whole entries with Heddle's names and shapes) among transformers'
 * tensors. HD_INVALID, with names: tensors are missing, unused, or have another shape. `weights`
 * and the strings of `wanted` must outlive the map. */
enum hd_status hd_hf_map_open(const struct hd_weights *weights, const struct hd_job *job,
                              const struct hd_ckpt_entry *wanted, size_t count,
                              struct hd_hf_map **ret_map);
void hd_hf_map_close(struct hd_hf_map *map); /* `map` may be NULL */

/* Reads the part `want` of parameter wanted[index] as fp32; the file may store it as F32, F16, BF16
 * or F64. HD_INVALID: a value is not finite; the message names the tensor and the file. */
enum hd_status hd_hf_read(const struct hd_hf_map *map, size_t index,
                          const struct hd_ckpt_entry *want, float *ret_values);

/* Returns whether the matrix of wanted[index] (or of one expert in it) is quantized in this
 * encoding, in the form in which transformers saves models that bitsandbytes quantized. *ret_whole
 * points into the mapped files. hd_hf_read dequantizes such a matrix. */
bool hd_hf_get_quantized(const struct hd_hf_map *map, size_t index, int64_t expert,
                         enum hd_quant quant, struct hd_quant_whole *ret_whole);

/* ---- adapters ---- */

/* Reads the adapter of a directory, which is a PEFT folder or a checkpoint of a run with an
 * adapter: its form into the members of ret_job that describe it (type, rank, alpha, rsLoRA,
 * targets; the targets of a PEFT folder are the modules of its tensors). Changes no other member;
 * the job needs an arena.
 * ret_identity (may be NULL) changes with the adapter's factors, as hd_source_identity does.
 * HD_INVALID: there is no adapter. HD_UNSUPPORTED: it has a setting that no job can have; the
 * message names it. */
enum hd_status hd_adapter_read(const char *dir, struct hd_job *ret_job, uint64_t *ret_identity);

/* Checks that the adapter of the checkpoint `dir` was trained beside `base`, a model folder or a
 * checkpoint; else HD_INVALID. A PEFT folder does not record its base and is accepted. */
enum hd_status hd_adapter_check_base(const char *dir, const char *base);

/* Parses the text of an adapter_config.json into ret_job; error messages do not name the file. */
enum hd_status hd_hf_parse_adapter_config(const char *text, size_t text_bytes,
                                          struct hd_job *ret_job);

/* Adapters whose weighted sum is to become one adapter. */
struct hd_adapter_combination {
    const char *const *dirs; /* [count], folders of LoRA adapters in PEFT's form, of one base */
    const double *weights;   /* [count] */
    size_t count;
    const char *out_dir; /* folder to make; its rank is the sum of all ranks */
};
/* Makes one LoRA adapter in PEFT's form that computes the weighted sum of several (combine.c). Sets
 * *ret_rank (may be NULL) to its rank. HD_UNSUPPORTED: a folder has something else than factors of
 * linear modules. HD_INVALID: shapes differ. HD_EXISTS: out_dir exists. The messages name folder and
 * tensor. */
enum hd_status hd_adapter_combine(const struct hd_adapter_combination *asked, int64_t *ret_rank);

/* Opens adapter_model.safetensors of a PEFT folder. */
enum hd_status hd_hf_open_adapter(const char *dir, struct hd_weights **ret_weights);
/* Opens a map for the factors of an adapter, as hd_hf_map_open does: `wanted` are parameters named
 * *.lora_a, *.lora_b. */
enum hd_status hd_hf_map_open_adapter(const struct hd_weights *weights, const struct hd_job *job,
                                      const struct hd_ckpt_entry *wanted, size_t count,
                                      struct hd_hf_map **ret_map);

/* ---- export ---- */

/* The weights that a checkpoint leaves out (checkpoint.frozen), from its base model. */
struct hd_hf_base {
    void *context;
    const struct hd_ckpt_entry *entries; /* [count] every parameter of the model, each whole */
    size_t count;
    /* Reads the part `want` of entries[index] as fp32. */
    enum hd_status (*read)(void *context, size_t index, const struct hd_ckpt_entry *want,
                           float *ret_values);
    /* Reads the part `want` of entries[index], a factor of a PiSSA adapter (train.adapter.init), as it was
     * at the start of the run, as fp32. */
    enum hd_status (*read_first)(void *context, size_t index, const struct hd_ckpt_entry *want,
                                 float *ret_values);
};

/* Ids of the tokens with which the texts of a run begin, end and are filled; -1: unknown, or
 * none. */
struct hd_hf_ends {
    int64_t end, bos, pad;
    const char *end_token, *bos_token, *pad_token, *unk_token; /* their texts; NULL: none */
};

struct hd_hf_export {
    const char *checkpoint_dir; /* a checkpoint of Heddle, whose hashes the export verifies first */
    /* weights that the checkpoint leaves out; NULL: it has all weights */
    const struct hd_hf_base *base;
    /* folder in which the base model lies now; NULL: the one that the job names */
    const char *base_dir;
    const char *out_dir;
    const struct hd_hf_ends *ends; /* tokens that begin and end texts; NULL: unknown */
    enum hd_dtype dtype;           /* dtype of the exported weights: HD_F32 or HD_BF16 */
    /* bytes of tensor data per file; more data makes several files and an index */
    int64_t shard_bytes_max;
    bool ema;       /* exports the moving averages of the weights (train.ema) in place of them */
    bool adapter;   /* exports only the adapter, in PEFT's form, in one file */
    bool text_only; /* true: exports the text model of a base with a vision tower as a model of its
                       own; false: the tower and the rest of the base's tensors are copied */
    bool force;     /* true: the export may replace out_dir if that is a model directory */
    void (*progress)(void *context, int64_t done_bytes,
                     int64_t total_bytes); /* called during the export; may be NULL */
    void *context;
    /* gets a sentence if PEFT computes another model from the adapter, or if layers of the base
     * that predict further tokens are left out; NULL: none is wanted */
    struct hd_text *notes;
};

/* Copies into the folder of a checkpoint, below `base`, the files that an export of it takes from
 * the job's base and tokenizer, so that a later export needs neither. earlier: a checkpoint of the
 * job that already has these files, which are then hard-linked; "": none. Files that cannot be read
 * are left out. HD_STORAGE: the disk takes no writes. */
enum hd_status hd_hf_keep(const char *checkpoint_dir, const struct hd_job *job,
                          const char *earlier);

/* Returns whether the base of a checkpoint, by its copy of config.json, is a model of text and
 * images, from whose folder an export copies the tensors beside the text model. */
bool hd_hf_is_wrapped(const char *checkpoint_dir);

/* returns whether the checkpoint has the files that hd_hf_keep copies */
bool hd_hf_has_kept(const char *checkpoint_dir);

/* Exports a checkpoint's model with the adapter added to its weights in fp32, or the adapter alone
 * (HD_INVALID: the run has no adapter). Writes the directory atomically: to a temporary directory
 * beside out_dir, which is flushed and renamed. HD_EXISTS: out_dir exists and force is not set.
 * HD_CONFLICT: out_dir is a folder from which the job started. */
enum hd_status hd_hf_export_run(const struct hd_hf_export *options);

/* Verifies a model directory of hd_hf_export_run by its hashes. HD_CORRUPT: the message names the
 * file, the tensor and the range of bytes, as hd_ckpt_verify does. HD_NOT_FOUND: the directory has
 * no heddle-hashes.json. */
enum hd_status hd_hf_verify(const char *dir);

/* Returns whether the directory has a heddle-hashes.json. */
bool hd_hf_has_hashes(const char *dir);

#endif
