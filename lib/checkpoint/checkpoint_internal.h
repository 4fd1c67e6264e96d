/* checkpoint_internal: declarations shared by the files of this package.
 *
 *     entry      checks of entries; their labels in a shard
 *     safetensors  heads of safetensors files of any origin
 *     table      writes and parses the head of a shard (a safetensors file)
 *     blocks     hashes of the blocks of a file; locates damage
 *     writer     phase one: writes a shard durably
 *     overlap    the elements that two pieces of a tensor have in common; coverage of a piece
 *     manifest   writes and parses manifest.json
 *     commit     phase two: checks the shards, writes the manifest
 *     reader     opens a checkpoint and assembles pieces
 *     verify     reads and hashes every byte
 *     places     directories: lists checkpoints, removes unfinished ones */
#ifndef HD_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define HD_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "base/arena.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format.h"

/* ---- entry ---- */

bool hd_ckpt_entry_is_whole(const struct hd_ckpt_entry *entry);
/* Appends the label of an entry: its name in the shard's safetensors table (checkpoint.h), unique
 * in the shard. The label does not contain the dtype, nor the shape if the entry is a whole
 * tensor. */
void hd_ckpt_add_label(struct hd_text *ret_text, const struct hd_ckpt_entry *entry);

/* Parses the label of an entry and sets *entry from it. The caller must have set the entry's dtype,
 * and its dim_count and shape in case the label is that of a whole tensor. The result has passed
 * hd_ckpt_check_entry; its name is in the arena. */
enum hd_status hd_ckpt_parse_label(struct hd_arena *arena, const char *label,
                                   struct hd_ckpt_entry *entry);

/* ---- table ---- */

struct hd_ckpt_stored { /* an entry and the position of its bytes */
    struct hd_ckpt_entry entry;
    int64_t offset_bytes; /* offset from the start of the shard's file */
    int32_t shard;        /* index of the shard in the manifest's list */
};

/* Appends the head of a shard to ret_head: 8 bytes of length, the JSON table of its entries,
 * padding to a multiple of 8 bytes. */
enum hd_status hd_ckpt_write_table(const struct hd_ckpt_entry *entries, size_t count,
                                   struct hd_text *ret_head);

/* Parses the JSON table in a shard's head into a list of stored entries. data_at: offset in bytes
 * at which the data begin in the file; data_bytes: their size. */
enum hd_status hd_ckpt_parse_table(struct hd_arena *arena, const char *json, size_t json_bytes,
                                   int64_t data_at, int64_t data_bytes,
                                   struct hd_ckpt_stored **ret_stored, size_t *ret_count);

/* Reads the JSON table of the shard DIR/shard->file and parses it into a list of stored entries.
 * The file must have shard->size_bytes bytes. Fails with HD_CORRUPT where hd_ckpt_parse_table gives
 * HD_INVALID or HD_LIMIT. */
enum hd_status hd_ckpt_read_table(struct hd_arena *arena, const char *dir,
                                  const struct hd_ckpt_shard *shard,
                                  struct hd_ckpt_stored **ret_stored, size_t *ret_count);

bool hd_ckpt_is_shard_name(const char *file); /* returns true for names such as
                                                 rank-00000.safetensors, with 5 to 7 digits */

/* ---- blocks ---- */

uint64_t hd_ckpt_hash_of_hashes(const uint64_t *hashes, size_t count);
/* Write, read and remove rank-00000.hashes: the block hashes of a shard, which its rank writes. The
 * rank that commits copies them into the manifest and removes the file. */
enum hd_status hd_ckpt_write_hashes(const char *dir, const char *shard_file,
                                    const struct hd_ckpt_blocks *blocks);
enum hd_status hd_ckpt_read_hashes(struct hd_arena *arena, const char *dir,
                                   const struct hd_ckpt_shard *shard,
                                   struct hd_ckpt_hash_list *ret_list);
enum hd_status hd_ckpt_remove_hashes(const char *dir, const char *shard_file);

/* ---- overlap ---- */

/* A function of the caller that receives one run of `count` consecutive elements, common to both
 * pieces, which begins at entry_index of the piece `entry` and at want_index of the piece `want`,
 * both relative to flat_first. */
typedef enum hd_status hd_ckpt_run_fn(void *context, int64_t entry_index, int64_t want_index,
                                      int64_t count);

/* Calls `run` once for each run of consecutive elements that `entry` and `want`, two pieces of one
 * tensor, have in common. */
enum hd_status hd_ckpt_overlap(const struct hd_ckpt_entry *entry, const struct hd_ckpt_entry *want,
                               hd_ckpt_run_fn *run, void *context);

struct hd_ckpt_run {
    int64_t first, end;
};

struct hd_ckpt_cover { /* the runs of elements of a wanted piece that the entries read so far
                          contain; initialise with {0} */
    struct hd_ckpt_run *runs;
    size_t count, max;
};

enum hd_status hd_ckpt_cover_add(struct hd_ckpt_cover *cover, int64_t first, int64_t count);
void hd_ckpt_cover_free(struct hd_ckpt_cover *cover);

/* Checks that the runs of `cover` contain every element of `want`. HD_CORRUPT: some are missing;
 * the message names the tensor and the first missing range. Sets *ret_overlaps to whether some
 * element is in more than one run. */
enum hd_status hd_ckpt_cover_check(struct hd_ckpt_cover *cover, const struct hd_ckpt_entry *want,
                                   bool *ret_overlaps);

/* ---- the tensors of a checkpoint ---- */

struct hd_ckpt_tensor {
    struct hd_ckpt_entry whole;
    size_t first, count; /* the tensor's entries: range of the sorted array `stored` */
};

/* Sorts `stored` by tensor name and lists the tensors with their entries. HD_CORRUPT: entries of
 * one tensor differ in dtype or shape. */
enum hd_status hd_ckpt_index(struct hd_arena *arena, struct hd_ckpt_stored *stored, size_t count,
                             struct hd_ckpt_tensor **ret_tensors, size_t *ret_tensor_count);

/* ---- manifest ---- */

/* Appends the text of manifest.json to ret_text. `lists`: the block hashes of each shard; NULL:
 * writes format version 1, which has none. */
enum hd_status hd_ckpt_write_manifest(const struct hd_ckpt_manifest *manifest,
                                      const struct hd_ckpt_hash_list *lists,
                                      const struct hd_ckpt_stored *stored, size_t count,
                                      struct hd_text *ret_text);

/* Parses a manifest. The results are in `arena`; `scratch` may be freed afterwards. *ret_lists: one
 * per shard; NULL: format version 1, in which a shard's hash is that of its whole file. */
enum hd_status hd_ckpt_parse_manifest(struct hd_arena *arena, struct hd_arena *scratch,
                                      const char *text, size_t text_bytes,
                                      struct hd_ckpt_manifest *ret_manifest,
                                      struct hd_ckpt_hash_list **ret_lists,
                                      struct hd_ckpt_stored **ret_stored, size_t *ret_count);

/* Returns HD_EXISTS if `dir` has a manifest, so it is a complete checkpoint; HD_OK otherwise. */
enum hd_status hd_ckpt_refuse_complete(const char *dir);

/* ---- reader ---- */

const struct hd_ckpt_stored *hd_ckpt_get_stored(const struct hd_ckpt *ckpt); /* entries of all
                                                                                shards, sorted by
                                                                                tensor name */
size_t hd_ckpt_stored_count(const struct hd_ckpt *ckpt);
/* Returns the block hashes of each shard, in the manifest's order; NULL: format version 1, which
 * has none. */
const struct hd_ckpt_hash_list *hd_ckpt_hash_lists(const struct hd_ckpt *ckpt);

#endif
