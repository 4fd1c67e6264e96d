/* checkpoint_internal: what the files of this folder share.
 *
 *     entry      is a piece well formed; its label in a shard
 *     table      the head of a shard (a safetensors file) from entries, and back
 *     blocks     hashes of the pieces of a file; where a damaged file is damaged
 *     writer     phase one: a shard made durable
 *     overlap    which runs of elements two pieces of one tensor have in common; what is covered
 *     manifest   manifest.json as text, and back
 *     commit     phase two: check, then the manifest
 *     reader     a checkpoint opened, pieces assembled
 *     verify     every byte read and hashed
 *     places     directories: list, newest, clean
 */
#ifndef HD_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define HD_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "base/arena.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format.h"

/* ---- entry ---- */

bool hd_ckpt_entry_is_whole(const struct hd_ckpt_entry *entry);
/* NAME, or NAME@START:END/LENGTH,... with +FIRST:END behind it when it is a range of the box:
 * unique in a shard, and all there is to say but the dtype and the shape of a whole tensor. */
void hd_ckpt_add_label(struct hd_text *ret_text, const struct hd_ckpt_entry *entry);

/* Takes a label apart into *entry, whose dtype the caller has set, and dim_count and shape for the
 * case that it is a whole tensor. The result has passed hd_ckpt_check_entry. */
enum hd_status hd_ckpt_parse_label(struct hd_arena *arena, const char *label,
                                   struct hd_ckpt_entry *entry);

/* ---- table ---- */

struct hd_ckpt_stored { /* an entry and where its bytes are */
    struct hd_ckpt_entry entry;
    int64_t offset_bytes; /* from the start of the shard's file */
    int32_t shard;        /* index into the manifest's shards */
};

/* The head of a shard: length, JSON, blanks up to a multiple of 8. */
enum hd_status hd_ckpt_write_table(const struct hd_ckpt_entry *entries, size_t count,
                                   struct hd_text *ret_head);

/* The JSON of a head whose file continues with data_bytes of data; data_at is where they start. */
enum hd_status hd_ckpt_parse_table(struct hd_arena *arena, const char *json, size_t json_bytes,
                                   int64_t data_at, int64_t data_bytes,
                                   struct hd_ckpt_stored **ret_stored, size_t *ret_count);

/* The same from DIR/shard->file, which must have the stated size. */
enum hd_status hd_ckpt_read_table(struct hd_arena *arena, const char *dir,
                                  const struct hd_ckpt_shard *shard,
                                  struct hd_ckpt_stored **ret_stored, size_t *ret_count);

bool hd_ckpt_is_shard_name(const char *file); /* rank-00000.safetensors and nothing else */

/* ---- blocks ---- */

uint64_t hd_ckpt_hash_of_hashes(const uint64_t *hashes, size_t count);
/* rank-00000.hashes: what a rank leaves beside its shard for the one that commits, which takes it
 * into the manifest and removes it. */
enum hd_status hd_ckpt_write_hashes(const char *dir, const char *shard_file,
                                    const struct hd_ckpt_blocks *blocks);
enum hd_status hd_ckpt_read_hashes(struct hd_arena *arena, const char *dir,
                                   const struct hd_ckpt_shard *shard,
                                   struct hd_ckpt_hash_list *ret_list);
enum hd_status hd_ckpt_remove_hashes(const char *dir, const char *shard_file);

/* ---- overlap ---- */

/* Elements entry_index .. + count of the piece `entry` are elements want_index .. + count of the
 * piece `want`; both counted from their flat_first. */
typedef enum hd_status hd_ckpt_run_fn(void *context, int64_t entry_index, int64_t want_index,
                                      int64_t count);

/* Calls run for each run of elements that both pieces of one tensor hold. */
enum hd_status hd_ckpt_overlap(const struct hd_ckpt_entry *entry, const struct hd_ckpt_entry *want,
                               hd_ckpt_run_fn *run, void *context);

struct hd_ckpt_run {
    int64_t first, end;
};

struct hd_ckpt_cover { /* runs of a wanted piece that were found; start with {0} */
    struct hd_ckpt_run *runs;
    size_t count, max;
};

enum hd_status hd_ckpt_cover_add(struct hd_ckpt_cover *cover, int64_t first, int64_t count);
void hd_ckpt_cover_free(struct hd_ckpt_cover *cover);

/* Is every element of `want` covered? HD_CORRUPT names the tensor and the first range that is not.
 * ret_overlaps: some element was covered more than once. */
enum hd_status hd_ckpt_cover_check(struct hd_ckpt_cover *cover, const struct hd_ckpt_entry *want,
                                   bool *ret_overlaps);

/* ---- the tensors of a checkpoint ---- */

struct hd_ckpt_tensor {
    struct hd_ckpt_entry whole;
    size_t first, count; /* its entries among the stored ones */
};

/* Sorts `stored` by name and lists the tensors. HD_CORRUPT when the entries of one tensor differ in
 * dtype or shape. */
enum hd_status hd_ckpt_index(struct hd_arena *arena, struct hd_ckpt_stored *stored, size_t count,
                             struct hd_ckpt_tensor **ret_tensors, size_t *ret_tensor_count);

/* ---- manifest ---- */

/* `lists`: the hashes of each shard's blocks; NULL writes format version 1, which has none. */
enum hd_status hd_ckpt_write_manifest(const struct hd_ckpt_manifest *manifest,
                                      const struct hd_ckpt_hash_list *lists,
                                      const struct hd_ckpt_stored *stored, size_t count,
                                      struct hd_text *ret_text);

/* Everything lives in `arena`; `scratch` may go afterwards. *ret_lists: one per shard, or NULL
 * where the manifest is of version 1; then a shard's hash is that of its whole file. */
enum hd_status hd_ckpt_parse_manifest(struct hd_arena *arena, struct hd_arena *scratch,
                                      const char *text, size_t text_bytes,
                                      struct hd_ckpt_manifest *ret_manifest,
                                      struct hd_ckpt_hash_list **ret_lists,
                                      struct hd_ckpt_stored **ret_stored, size_t *ret_count);

/* HD_EXISTS where `dir` has a manifest. */
enum hd_status hd_ckpt_refuse_complete(const char *dir);

/* ---- reader ---- */

const struct hd_ckpt_stored *hd_ckpt_stored(const struct hd_ckpt *ckpt); /* sorted by name */
size_t hd_ckpt_stored_count(const struct hd_ckpt *ckpt);
const struct hd_ckpt_hash_list *hd_ckpt_hash_lists(const struct hd_ckpt *ckpt); /* or NULL */

#endif
