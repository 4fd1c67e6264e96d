/* checkpoint: saves and loads a training state; any layout can load the state that any other layout
 * has saved.
 *
 *     JOB/attempt-1/checkpoints/step-00000100/rank-00000.safetensors    one shard per rank
 *                                             rank-00001.safetensors
 *                                             manifest.json             written last
 *
 * A tensor has a global name and a global shape. An entry is a piece of a tensor: an n-d box of the
 * global shape, and a range of that box's elements in row-major order. So a column shard of a
 * tensor-parallel weight, split again by ZeRO into flat ranges, is one entry, without padding. A
 * reader may request any piece; the piece is assembled from all entries that overlap it.
 *
 * Saving has two phases. Each rank writes its shard and gets {file, size, hash}. The ranks exchange
 * these, and one rank commits: it writes the manifest. A directory without a manifest is not a
 * checkpoint. Shards are safetensors files. An entry that is a whole tensor has the tensor's name;
 * another is named NAME@START:END/LENGTH,... (one per dimension; LENGTH of the whole tensor), then
 * +FIRST:END if it is a range of that box.
 *
 * Used by: train, worker, generation.   Uses: base.
 * Threads: one thread at a time uses a writer or a checkpoint. */
#ifndef HD_CHECKPOINT_CHECKPOINT_H
#define HD_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/status.h"

enum {
    HD_CKPT_FORMAT_VERSION = 2, /* format version of new checkpoints; version 1 can be read, too */
    HD_CKPT_DIMS_MAX = 4,
    HD_CKPT_NAME_MAX = 200, /* bytes of a tensor's name: printable ASCII without space " \ @ */
    HD_CKPT_FILE_MAX = 32,  /* bytes of a file name, such as "rank-00000.safetensors" */
    HD_CKPT_ENTRIES_MAX = 1 << 20,
    HD_CKPT_SHARDS_MAX = 1 << 16,
};

/* ---- entries ---- */

struct hd_ckpt_entry {
    const char *name; /* global name, such as blocks.3.attention.q.weight */
    enum hd_dtype dtype;
    int dim_count;                    /* 0 (a scalar: one element) to HD_CKPT_DIMS_MAX */
    int64_t shape[HD_CKPT_DIMS_MAX];  /* shape of the whole tensor */
    int64_t start[HD_CKPT_DIMS_MAX];  /* first coordinate of the box in each dimension; the box ends
                                         before start + extent */
    int64_t extent[HD_CKPT_DIMS_MAX]; /* length of the box in each dimension, at least 1 */
    int64_t flat_first, flat_count;   /* the part of the box that this entry has: first element and
                                         number of elements, in row-major order; flat_count at least
                                         1 */
};

/* Returns the entry of a whole tensor. Narrow it with hd_ckpt_entry_cut, one dimension per call,
 * then by setting flat_first and flat_count (each cut resets them to the whole box). */
struct hd_ckpt_entry hd_ckpt_entry_whole(const char *name, enum hd_dtype dtype, int dim_count,
                                         const int64_t *shape);
void hd_ckpt_entry_cut(struct hd_ckpt_entry *entry, int dim, int64_t start, int64_t extent);
int64_t hd_ckpt_entry_bytes(const struct hd_ckpt_entry *entry);

/* Sorts entries by the size of their elements, largest first, and keeps the order of equal ones.
 * hd_ckpt_writer_open needs this order, so that each entry's data are aligned in the shard. */
void hd_ckpt_sort_entries(struct hd_ckpt_entry *entries, size_t count);

/* ---- saving, phase one: each rank writes its shard ---- */

struct hd_ckpt_shard { /* plain bytes, which the ranks exchange */
    char file[HD_CKPT_FILE_MAX];
    int64_t size_bytes;
    uint64_t hash; /* XXH64 of the hashes of the shard's blocks; in format version 1 XXH64 of the
                      whole file */
};

struct hd_ckpt_writer;

/* Begins the shard of `rank` in the directory `dir`, which is created with its parents if absent.
 * All entries are declared here, because a safetensors file begins with its table;
 * hd_ckpt_writer_add then adds their data in the same order as `entries`. count >= 1: a rank
 * without entries writes no shard. HD_EXISTS: `dir` is already a complete checkpoint. */
enum hd_status hd_ckpt_writer_open(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                   size_t count, struct hd_ckpt_writer **ret_writer);

/* Adds the next `size_bytes` of the entries' data, which may end within an entry or span several.
 * Writes them to the shard's file at once, without a buffer. */
enum hd_status hd_ckpt_writer_add(struct hd_ckpt_writer *writer, const void *data,
                                  size_t size_bytes);

/* Makes the shard durable under its name, and sets *ret_shard to the shard's line for the manifest.
 * Frees the writer, also on failure. */
enum hd_status hd_ckpt_writer_finish(struct hd_ckpt_writer *writer,
                                     struct hd_ckpt_shard *ret_shard);
/* Removes the unfinished shard and frees the writer; NULL is fine. */
void hd_ckpt_writer_drop(struct hd_ckpt_writer *writer);

/* A function of the caller that provides data of entries[entry] from byte offset `at` in the
 * entry's data on. It sets *ret_bytes to memory that stays valid until the next call, and
 * *ret_size_bytes to 1 to left_bytes. */
typedef enum hd_status hd_ckpt_bytes_fn(void *context, size_t entry, int64_t at, int64_t left_bytes,
                                        const void **ret_bytes, int64_t *ret_size_bytes);

/* Returns an upper bound of the bytes of a checkpoint whose entries have `data_bytes` together,
 * including tables, hashes and manifest. */
int64_t hd_ckpt_bound_bytes(int64_t data_bytes, int64_t entry_count);

/* Writes the whole shard of a rank: opens a writer, adds the data of all entries as bytes_of
 * provides them, and finishes the shard. */
enum hd_status hd_ckpt_write_shard(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                   size_t count, hd_ckpt_bytes_fn *bytes_of, void *context,
                                   struct hd_ckpt_shard *ret_shard);

/* ---- saving, phase two: one rank commits ---- */

struct hd_ckpt_fact { /* a named text in the manifest: a fact of the layout, or a condition on which
                         bitwise equal results depend */
    const char *name, *value;
};

struct hd_ckpt_counter { /* a named number, such as step, sampler position or Adam's step */
    const char *name;
    int64_t value;
};

struct hd_ckpt_manifest {
    const char *job;
    int attempt;
    int64_t step, tokens_seen;
    bool has_val_loss; /* true: val_loss is set, the validation loss of the weights in this
                          checkpoint (checkpoint.best) */
    double val_loss;
    bool has_lowest_val_loss; /* true: lowest_val_loss is the lowest of the run so far, also of
                                 earlier checkpoints */
    double lowest_val_loss;
    const char *config; /* text of the resolved job file */
    const struct hd_ckpt_fact *layout;
    size_t layout_count;
    const struct hd_ckpt_fact
        *determinism; /* facts that results depend on: backend, instruction set, threads, library
                         versions */
    size_t determinism_count;
    const struct hd_ckpt_counter *counters;
    size_t counter_count;
    const struct hd_ckpt_shard *shards; /* shards of all ranks that wrote one */
    size_t shard_count;
};

/* Checks the shards and writes the manifest: reads the table of every shard and checks its size,
 * that all shards agree on the dtype and shape of every tensor, and that no element is missing.
 * HD_OK: the checkpoint is complete and durable. ret_hash (may be NULL) gets the XXH64 of the
 * manifest, which identifies this checkpoint. */
enum hd_status hd_ckpt_commit(const char *dir, const struct hd_ckpt_manifest *manifest,
                              uint64_t *ret_hash);

/* ---- loading ---- */

struct hd_ckpt;

/* Opens a checkpoint. Does not read tensor data: hd_ckpt_verify does. HD_NOT_FOUND: `dir` has no
 * complete checkpoint. HD_UNSUPPORTED: another format version. HD_CORRUPT: the manifest is damaged,
 * or a shard has the wrong size. */
enum hd_status hd_ckpt_open(const char *dir, struct hd_ckpt **ret_ckpt);
void hd_ckpt_close(struct hd_ckpt *ckpt); /* NULL is fine */

/* Returns the committed manifest; ckpt owns its strings and arrays. */
const struct hd_ckpt_manifest *hd_ckpt_get_manifest(const struct hd_ckpt *ckpt);
uint64_t hd_ckpt_hash(const struct hd_ckpt *ckpt); /* hash of the manifest */

/* Sets *ret_value to a counter of the manifest. HD_NOT_FOUND: the manifest has no counter of this
 * name; the message names it. */
enum hd_status hd_ckpt_get_counter(const struct hd_ckpt *ckpt, const char *name,
                                   int64_t *ret_value);
const char *hd_ckpt_dir(const struct hd_ckpt *ckpt); /* path as passed to hd_ckpt_open */
/* Returns the value of a fact in the manifest's layout; NULL: the layout has no fact of this
 * name. */
const char *hd_ckpt_layout(const struct hd_ckpt *ckpt, const char *name);
/* Returns the value of a fact in the manifest's determinism section; NULL: the section has no fact
 * of this name. */
const char *hd_ckpt_determinism(const struct hd_ckpt *ckpt, const char *name);

/* Access the checkpoint's tensors, sorted by name, each as the entry of the whole tensor.
 * hd_ckpt_find_tensor returns NULL if no tensor has this name. */
size_t hd_ckpt_tensor_count(const struct hd_ckpt *ckpt);
const struct hd_ckpt_entry *hd_ckpt_get_tensor(const struct hd_ckpt *ckpt, size_t index);
const struct hd_ckpt_entry *hd_ckpt_find_tensor(const struct hd_ckpt *ckpt, const char *name);
/* Returns whether a tensor is a weight of the model, by its name: false for the optimizer's tensors
 * ("adamw.", "lion.", "muon."), for buffers (HD_CKPT_BUFFER_PREFIX) and for the moving averages of
 * weights (HD_CKPT_EMA_PREFIX and the weight's name). */
#define HD_CKPT_BUFFER_PREFIX "buffer."
#define HD_CKPT_EMA_PREFIX    "ema."
bool hd_ckpt_is_weight(const char *name);

/* Reads the piece of a tensor that `want` describes, hd_ckpt_entry_bytes(want) bytes, from all
 * stored entries that overlap it. HD_NOT_FOUND: the checkpoint has no tensor of this name.
 * HD_INVALID: dtype or shape differ from the stored ones. HD_CORRUPT: no entry has some of the
 * wanted elements, or two entries have different values for the same elements. */
enum hd_status hd_ckpt_read(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want, void *ret_data);

/* Reads and hashes every byte of a checkpoint, and compares every shard's table with the manifest.
 * HD_CORRUPT names the first damaged file, the tensor and the range of bytes, in blocks of 1 MiB
 * (of the head: 64 bytes); in format version 1 only the file. */
enum hd_status hd_ckpt_verify(const char *dir);

/* ---- directories ---- */

/* Writes the path ATTEMPT_DIR/checkpoints/step-00000100. HD_LIMIT: longer than path_max. */
enum hd_status hd_ckpt_format_dir(const char *attempt_dir, int64_t step, char *ret_path,
                                  size_t path_max);

struct hd_ckpt_place {
    int64_t step;
    char *path; /* path of the checkpoint's directory */
};

/* Facts that identify a complete checkpoint, obtained without reading its shards. */
struct hd_ckpt_summary {
    char hash[HD_HASH_TEXT_MAX]; /* hash of the manifest */
    int64_t time_ms;             /* modification time of the manifest, milliseconds since 1970 */
    int64_t size_bytes;          /* sum of the sizes of all files in the checkpoint's directory */
    double val_loss;             /* validation loss in the manifest; NaN: the manifest has none */
};
/* Sets *ret_summary to the facts of the checkpoint in `dir`. HD_NOT_FOUND: the manifest is missing.
 * HD_IO: the manifest cannot be read. */
enum hd_status hd_ckpt_summarize(const char *dir, struct hd_ckpt_summary *ret_summary);

/* Lists the complete checkpoints in ATTEMPT_DIR/checkpoints, lowest step first. An absent directory
 * gives an empty list. The caller frees with hd_ckpt_places_free. */
enum hd_status hd_ckpt_list(const char *attempt_dir, struct hd_ckpt_place **ret_places,
                            size_t *ret_count);
void hd_ckpt_places_free(struct hd_ckpt_place *places, size_t count);

/* Finds the newest complete checkpoint at `dir`, which is a checkpoint, or the folder of an attempt,
 * of a job, or of a run of `heddle local`: the highest step of the last attempt that has one. Sets
 * *ret_path, which the caller frees. HD_NOT_FOUND: there is none. */
enum hd_status hd_ckpt_find_newest(const char *dir, char **ret_path);

/* Removes the directory of an unfinished checkpoint; HD_OK also if there is none. HD_EXISTS: the
 * directory has a manifest and is not removed. A rank that is still writing to the directory fails,
 * so its checkpoint never becomes complete with files missing. */
enum hd_status hd_ckpt_remove_partial(const char *dir);

/* Removes unfinished files, and directories without a manifest, from CHECKPOINTS_DIR
 * (attempt-K/checkpoints). The attempt whose folder this is must have ended, because its ranks may
 * otherwise still be writing. */
enum hd_status hd_ckpt_clean_partial(const char *checkpoints_dir);

/* Calls hd_ckpt_clean_partial for each attempt of the job with a number below `attempt`
 * (JOB_DIR/attempt-K/checkpoints). */
enum hd_status hd_ckpt_clean_before(const char *job_dir, int64_t attempt);

#endif
