/* checkpoint: a training state on disk that any layout can save and any other can load.
 *
 *     JOB/attempt-1/checkpoints/step-00000100/rank-00000.safetensors    one shard per rank
 *                                             rank-00001.safetensors
 *                                             manifest.json             written last
 *
 * A tensor has a global name and a global shape. An entry is a piece of it: an n-d box of the
 * global shape, and a range of that box's elements in row-major order. So a column of a
 * tensor-parallel weight, cut again by ZeRO into flat ranges, is one entry, without padding. A
 * reader asks for any such piece and gets it assembled from whatever entries there are.
 *
 * Saving takes two phases. Each rank writes its shard and learns {file, size, hash}; the ranks
 * exchange these; then one rank commits the manifest. A directory without manifest is not a
 * checkpoint. The shards are safetensors files: an entry that is a whole tensor keeps its plain
 * name, a piece is named NAME@START:END/LENGTH,... (one per dimension, LENGTH that of the whole
 * tensor) with +FIRST:END behind it when it is a range of that box.
 *
 * Used by: train, worker, generation.   Uses: base.
 * Threads: one owner at a time for a writer and for a checkpoint.
 */
#ifndef HD_CHECKPOINT_CHECKPOINT_H
#define HD_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum {
    HD_CKPT_FORMAT_VERSION = 2, /* written; 1 is read too */
    HD_CKPT_DIMS_MAX = 4,
    HD_CKPT_NAME_MAX = 200, /* bytes of a tensor's name: printable ASCII without space " \ @ */
    HD_CKPT_FILE_MAX = 32,  /* "rank-00000.safetensors" */
    HD_CKPT_ENTRIES_MAX = 1 << 20,
    HD_CKPT_SHARDS_MAX = 1 << 16,
};

/* ---- entries ---- */

struct hd_ckpt_entry {
    const char *name; /* global, such as blocks.3.attention.q.weight */
    enum hd_dtype dtype;
    int dim_count;                    /* 0 (one element) to HD_CKPT_DIMS_MAX */
    int64_t shape[HD_CKPT_DIMS_MAX];  /* of the whole tensor */
    int64_t start[HD_CKPT_DIMS_MAX];  /* the box: start .. start + extent in each dimension */
    int64_t extent[HD_CKPT_DIMS_MAX]; /* at least 1 each */
    int64_t flat_first, flat_count;   /* elements of the box, row-major; flat_count at least 1 */
};

/* The entry that is a whole tensor; narrow it by hd_ckpt_entry_cut (one dimension) and by setting
 * flat_first and flat_count (after the cuts: a cut resets them to the whole box). */
struct hd_ckpt_entry hd_ckpt_entry_whole(const char *name, enum hd_dtype dtype, int dim_count,
                                         const int64_t *shape);
void hd_ckpt_entry_cut(struct hd_ckpt_entry *entry, int dim, int64_t start, int64_t extent);
int64_t hd_ckpt_entry_bytes(const struct hd_ckpt_entry *entry);

/* Puts wider dtypes first (keeping the order otherwise), as a shard needs them for alignment. */
void hd_ckpt_sort_entries(struct hd_ckpt_entry *entries, size_t count);

/* ---- saving, phase one: each rank its shard ---- */

struct hd_ckpt_shard { /* what the ranks exchange: plain bytes, the same on every machine of a job
                        */
    char file[HD_CKPT_FILE_MAX];
    int64_t size_bytes;
    uint64_t hash; /* XXH64 of the hashes of its blocks; in version 1 of the whole file */
};

struct hd_ckpt_writer;

/* Begins the shard of `rank` in the directory `dir` (made if absent, with its parents). The entries
 * are declared first, because a safetensors file begins with its table; then their data follow in
 * the same order. HD_EXISTS when `dir` is already a complete checkpoint. A rank with no entry of
 * its own writes no shard. */
enum hd_status hd_ckpt_writer_open(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                   size_t count, struct hd_ckpt_writer **ret_writer);

/* The next bytes, in pieces of any size: within an entry or across entries. From the caller's
 * memory straight to the file; nothing is staged. */
enum hd_status hd_ckpt_writer_add(struct hd_ckpt_writer *writer, const void *data,
                                  size_t size_bytes);

/* Makes the shard durable under its name and tells what to put into the manifest. Frees the writer,
 * also on failure. */
enum hd_status hd_ckpt_writer_finish(struct hd_ckpt_writer *writer,
                                     struct hd_ckpt_shard *ret_shard);
void hd_ckpt_writer_drop(struct hd_ckpt_writer *writer); /* gives up: nothing stays; NULL is fine */

/* Bytes of entry number `entry` from byte `at` of it on, of which `left_bytes` are still to come:
 * where they are, until the next call, and how many of them, at least one. */
typedef enum hd_status hd_ckpt_bytes_fn(void *context, size_t entry, int64_t at, int64_t left_bytes,
                                        const void **ret_bytes, int64_t *ret_size_bytes);

/* Open, add every entry piece by piece, finish. */
enum hd_status hd_ckpt_write_shard(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                   size_t count, hd_ckpt_bytes_fn *bytes_of, void *context,
                                   struct hd_ckpt_shard *ret_shard);

/* ---- saving, phase two: one rank commits ---- */

struct hd_ckpt_fact { /* a named text: the layout, what determinism depends on */
    const char *name, *value;
};

struct hd_ckpt_counter { /* a named number: step, sampler position, Adam's step */
    const char *name;
    int64_t value;
};

struct hd_ckpt_manifest {
    const char *job;
    int attempt;
    int64_t step, tokens_seen;
    const char *config; /* the resolved job file, as text */
    const struct hd_ckpt_fact *layout;
    size_t layout_count;
    const struct hd_ckpt_fact
        *determinism; /* backend, instruction set, threads, library versions */
    size_t determinism_count;
    const struct hd_ckpt_counter *counters;
    size_t counter_count;
    const struct hd_ckpt_shard *shards; /* of every rank that wrote one */
    size_t shard_count;
};

/* Reads the table of every shard back, checks its size, that all shards agree on every tensor's
 * dtype and shape and that no element of any tensor is missing; then writes the manifest. When it
 * returns HD_OK the checkpoint is whole and durable. ret_hash (may be NULL) is the XXH64 of the
 * manifest, which names this checkpoint for good. */
enum hd_status hd_ckpt_commit(const char *dir, const struct hd_ckpt_manifest *manifest,
                              uint64_t *ret_hash);

/* ---- loading ---- */

struct hd_ckpt;

/* HD_NOT_FOUND when `dir` holds no complete checkpoint; HD_UNSUPPORTED for another format version;
 * HD_CORRUPT when the manifest or a shard's size is not what it should be. Tensor data is not read;
 * hd_ckpt_verify does that. */
enum hd_status hd_ckpt_open(const char *dir, struct hd_ckpt **ret_ckpt);
void hd_ckpt_close(struct hd_ckpt *ckpt); /* NULL is fine */

/* What was committed. The strings and arrays live as long as ckpt. */
const struct hd_ckpt_manifest *hd_ckpt_manifest(const struct hd_ckpt *ckpt);
uint64_t hd_ckpt_hash(const struct hd_ckpt *ckpt); /* of the manifest */

/* HD_NOT_FOUND names what is missing. */
enum hd_status hd_ckpt_counter(const struct hd_ckpt *ckpt, const char *name, int64_t *ret_value);
const char *hd_ckpt_layout(const struct hd_ckpt *ckpt, const char *name);      /* or NULL */
const char *hd_ckpt_determinism(const struct hd_ckpt *ckpt, const char *name); /* or NULL */

/* The tensors, sorted by name, each as its whole entry. */
size_t hd_ckpt_tensor_count(const struct hd_ckpt *ckpt);
const struct hd_ckpt_entry *hd_ckpt_tensor(const struct hd_ckpt *ckpt, size_t index);
const struct hd_ckpt_entry *hd_ckpt_find_tensor(const struct hd_ckpt *ckpt, const char *name);

/* The wanted piece of a tensor, hd_ckpt_entry_bytes(want) bytes, from any entries that hold it.
 * Entries may overlap where they are equal. HD_NOT_FOUND: no such tensor; HD_INVALID: another dtype
 * or shape than stored; HD_CORRUPT: a missing range, or two entries that differ. */
enum hd_status hd_ckpt_read(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want, void *ret_data);

/* Reads and hashes every byte, and compares every shard's table with the manifest. HD_CORRUPT names
 * the first file that is not what was written, the tensor and the range of bytes (of up to 1 MiB;
 * in the header of 64 bytes); in a checkpoint of format version 1, only the file. */
enum hd_status hd_ckpt_verify(const char *dir);

/* ---- directories ---- */

/* ATTEMPT_DIR/checkpoints/step-00000100; HD_LIMIT when it does not fit. */
enum hd_status hd_ckpt_format_dir(const char *attempt_dir, int64_t step, char *ret_path,
                                  size_t path_max);

struct hd_ckpt_place {
    int attempt; /* 0 when unknown */
    int64_t step;
    char *path; /* of the checkpoint's directory */
};

/* Complete checkpoints in ATTEMPT_DIR/checkpoints, by step, oldest first. An absent folder is an
 * empty list. Free with hd_ckpt_places_free. */
enum hd_status hd_ckpt_list(const char *attempt_dir, struct hd_ckpt_place **ret_places,
                            size_t *ret_count);
void hd_ckpt_places_free(struct hd_ckpt_place *places, size_t count);

/* The last step of the highest attempt that has a complete checkpoint: what a person means by the
 * job's newest. HD_NOT_FOUND when there is none. What an attempt starts from is the controller's
 * stored decision, not this. */
enum hd_status hd_ckpt_find_newest(const char *job_dir, struct hd_ckpt_place *ret_place);

/* Removes what a crash left in CHECKPOINTS_DIR (attempt-K/checkpoints): unfinished files and
 * directories without manifest. Only for who knows that no rank is writing there. */
enum hd_status hd_ckpt_clean_partial(const char *checkpoints_dir);

#endif
