/* hf: model directories in the form of Hugging Face's transformers, in and out.
 *
 *     DIR/config.json                      the architecture
 *         model.safetensors                the weights, or
 *         model.safetensors.index.json     which of several files holds which tensor
 *         tokenizer.json
 *         heddle-hashes.json               what an export was when it was written, to verify it by
 *
 * Three layers: `hd_weights` is any set of safetensors files, mapped, its heads checked; the config
 * functions translate config.json to the model.* members of a resolved job and back; `hd_hf_map`
 * finds each parameter of ours in their tensors, by one table of names per family that serves both
 * directions. What cannot be translated is an error that names it; nothing is passed over.
 *
 * Our side of a name is the registry's (blocks.3.attention.q.weight), whole tensors in [out, in]
 * order; gpt2 on their side keeps matrices as [in, out] and q, k, v in one.
 *
 * Used by: spec (config), train, worker.   Uses: base, checkpoint, job.
 * Threads: a set of weights and a map are immutable once opened.
 */
#ifndef HD_HF_H
#define HD_HF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
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
    const char *name, *file; /* file: as named in the directory */
    enum hd_dtype dtype;
    int dim_count;
    int64_t shape[HD_CKPT_DIMS_MAX];
    const void *data; /* mapped, perhaps unaligned */
    int64_t offset_bytes, size_bytes;
};

struct hd_weights;

/* Opens model.safetensors.index.json, or model.safetensors, of a directory. Heads are read and
 * checked: sizes, bounds, overlaps, gaps, repeated names, and the index against the files. Data are
 * mapped, not read. HD_NOT_FOUND: there is neither; HD_CORRUPT names the file and the tensor. */
enum hd_status hd_weights_open(const char *dir, struct hd_weights **ret_weights);
/* The same with one file. */
enum hd_status hd_weights_open_file(const char *path, struct hd_weights **ret_weights);
void hd_weights_close(struct hd_weights *weights); /* NULL is fine */

size_t hd_weights_count(const struct hd_weights *weights);
const struct hd_weight *hd_weights_at(const struct hd_weights *weights, size_t index); /* by name */
const struct hd_weight *hd_weights_find(const struct hd_weights *weights, const char *name);

/* XXH64 over the names, sizes, times of change and heads of the files: what a later attempt
 * compares to know that it starts from the same. Data are not read. */
uint64_t hd_weights_identity(const struct hd_weights *weights);

/* The same for any directory that a run may start from: a model directory or one of our
 * checkpoints (the hash of its manifest). */
enum hd_status hd_source_identity(const char *dir, uint64_t *ret_identity);
bool hd_source_is_checkpoint(const char *dir); /* one of ours: it has a manifest.json */

/* The head of a safetensors file that begins at `bytes`: what hd_weights_open does with each file,
 * for tests of hostile bytes. Names live in the arena, data point into `bytes`. */
enum hd_status hd_weights_parse(struct hd_arena *arena, const void *bytes, int64_t size_bytes,
                                struct hd_weight **ret_weights, size_t *ret_count);

/* ---- config.json ---- */

bool hd_hf_has_config(const char *dir);

/* Reads DIR/config.json into the model.* and train.dropout.* members of `ret_job`; other members
 * are left alone. Every key is either used, known to say nothing about training, or required to
 * have the one value that is built; any other key is HD_UNSUPPORTED and named. ret_notes gets a
 * sentence for each thing that is accepted but not done (jitter of a router), may be NULL. */
enum hd_status hd_hf_read_config(const char *dir, struct hd_job *ret_job,
                                 struct hd_text *ret_notes);
/* The same from text, for tests; failures have no file name in front. */
enum hd_status hd_hf_parse_config(const char *text, size_t text_bytes, struct hd_job *ret_job,
                                  struct hd_text *ret_notes);

/* config.json of a resolved job. HD_UNSUPPORTED names what transformers has no word for. */
enum hd_status hd_hf_write_config(const struct hd_job *job, enum hd_dtype dtype,
                                  struct hd_text *ret_text);

/* ---- names ---- */

struct hd_hf_map;

/* Finds every wanted parameter (whole entries with our names and shapes) in their tensors. Tensors
 * that are missing, that nobody wants, or that have another shape are HD_INVALID, by name.
 * The entries' strings must outlive the map; `weights` too. */
enum hd_status hd_hf_map_open(const struct hd_weights *weights, const struct hd_job *job,
                              const struct hd_ckpt_entry *wanted, size_t count,
                              struct hd_hf_map **ret_map);
void hd_hf_map_close(struct hd_hf_map *map); /* NULL is fine */

/* The piece `want` of parameter `index` of `wanted`, as fp32, from any of F32, F16, BF16, F64.
 * HD_INVALID names the tensor and the file of a value that is not finite. */
enum hd_status hd_hf_read(const struct hd_hf_map *map, size_t index,
                          const struct hd_ckpt_entry *want, float *ret_values);

/* ---- export ---- */

struct hd_hf_export {
    const char *checkpoint_dir; /* one of ours, verified first */
    const char *out_dir;
    enum hd_dtype dtype;     /* HD_F32 or HD_BF16 */
    int64_t shard_bytes_max; /* of tensor data in one file; more become several and an index */
    bool force;              /* replaces out_dir where it is a model directory */
    void (*progress)(void *context, int64_t done_bytes, int64_t total_bytes); /* may be NULL */
    void *context;
};

/* Writes a model directory: into a temporary folder beside out_dir, flushed, then renamed.
 * HD_EXISTS when out_dir is there and force is not set. */
enum hd_status hd_hf_export(const struct hd_hf_export *options);

/* Reads and hashes every file of a model directory that hd_hf_export wrote. HD_CORRUPT names the
 * file, the tensor and the range of bytes as hd_ckpt_verify does. HD_NOT_FOUND: it has no
 * heddle-hashes.json. */
enum hd_status hd_hf_verify(const char *dir);

/* Whether a folder has the list of hashes that hd_hf_export writes; it may have lost all else. */
bool hd_hf_has_hashes(const char *dir);

#endif
