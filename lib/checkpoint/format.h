/* format: elements of the file formats of checkpoints and of model directories: dtype names, block
 * hashes that locate damage, and the hash at the end of a JSON file.
 *
 * Used by: checkpoint, hf.   Uses: base.
 * Threads: any; a struct hd_ckpt_blocks belongs to the thread that writes the file. */
#ifndef HD_CHECKPOINT_FORMAT_H
#define HD_CHECKPOINT_FORMAT_H

#include "base/arena.h"
#include "base/hash.h"
#include "base/pieces.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"

#define HD_CKPT_MANIFEST_FILE "manifest.json"
#define HD_CKPT_VAL_LOSS      "val_loss" /* key of the validation loss in the manifest */

enum {
    HD_CKPT_TABLE_BYTES_MAX = 100 * 1000 * 1000, /* most bytes of a shard's JSON table; the limit of
                                                    the safetensors library */
    HD_CKPT_MANIFEST_BYTES_MAX = 512 * 1024 * 1024,
    /* bytes of the buffer through which shards are read; a multiple of the largest element's */
    HD_CKPT_WINDOW_BYTES = HD_PIECE(1024 * 1024, 184),
    HD_CKPT_BLOCK_BYTES = 1024 * 1024, /* bytes of each hashed block of tensor data; part of the
                                           format */
    HD_CKPT_HEAD_BLOCK_BYTES = 64,     /* bytes of each hashed block of a shard's head; part of the
                                           format */
};
#define HD_CKPT_ELEMENTS_MAX (INT64_C(1) << 50) /* limit of elements per tensor */

/* ---- pieces and dtypes ---- */

enum hd_status hd_ckpt_check_entry(const struct hd_ckpt_entry *entry);
int64_t hd_ckpt_box_elements(const struct hd_ckpt_entry *entry);

/* ---- files ---- */

/* Opens DIR/FILE for reading and sets *ret_size (ret_size may be NULL) to its size in bytes. Error
 * messages name the path. */
enum hd_status hd_ckpt_open_file(const char *dir, const char *file, int *ret_fd, int64_t *ret_size);

/* Files of one JSON object whose last line is its hash: hd_ckpt_begin_sealed opens the object and
 * writes its format and version; hd_ckpt_parse_sealed checks the hash, parses the text and checks both.
 * HD_CORRUPT: the last line has another hash. HD_UNSUPPORTED: a version above version_max. */
void hd_ckpt_begin_sealed(struct hd_json_writer *writer, const char *format, int version);
enum hd_status hd_ckpt_parse_sealed(struct hd_arena *arena, const char *text, size_t text_bytes,
                                    const char *format, int64_t version_max,
                                    const struct hd_json **ret_root, int64_t *ret_version);
/* hd_ckpt_seal appends a last line with the hash of all bytes before it to `text`, a JSON object
 * that is still open and ends with a comma, and closes the object. */
enum hd_status hd_ckpt_seal(struct hd_text *text);

/* ---- hashes of a file, block by block ---- */

struct hd_ckpt_region { /* consecutive bytes of a file */
    const char *name;   /* name of the tensor whose data these are; NULL: the file's head; "": the
                           file has no tensors */
    int64_t size_bytes, block_bytes; /* bytes of the region; bytes of its hashed blocks, 1 to
                                        HD_CKPT_BLOCK_BYTES */
};

struct hd_ckpt_hash_list { /* XXH64 of each block of one file, in file order */
    const uint64_t *hashes;
    size_t count;
};

struct hd_ckpt_blocks { /* hashes a file while it is written; initialise with {0} */
    struct hd_ckpt_region *regions;
    size_t region_count, region; /* number of regions of the file; index of the one that is being
                                    hashed */
    int64_t in_region;           /* bytes of the current region added so far */
    struct hd_hash hash;         /* hash of the current block */
    uint64_t *hashes;
    size_t count;
};

size_t hd_ckpt_count_blocks(const struct hd_ckpt_region *regions, size_t count);

/* Hash the blocks of a file while it is written. hd_ckpt_blocks_begin copies the regions of the
 * whole file, none of them empty. hd_ckpt_blocks_add hashes the next bytes of the file, any number
 * at a time. hd_ckpt_blocks_done frees the memory; it must also be called after a failure. */
enum hd_status hd_ckpt_blocks_begin(struct hd_ckpt_blocks *ret_blocks,
                                    const struct hd_ckpt_region *regions, size_t count);
void hd_ckpt_blocks_add(struct hd_ckpt_blocks *blocks, const void *data, size_t size_bytes);
void hd_ckpt_blocks_done(struct hd_ckpt_blocks *blocks);

/* Returns hashes as text, 16 hexadecimal digits each, which the caller frees; NULL: no memory. */
char *hd_ckpt_format_hashes(const uint64_t *hashes, size_t count);
enum hd_status hd_ckpt_parse_hashes(struct hd_arena *arena, const char *text,
                                    struct hd_ckpt_hash_list *ret_list);

/* Reads all of DIR/FILE, which is open as fd, and compares the hash of each block with
 * hashes[hd_ckpt_count_blocks]. HD_CORRUPT: one differs; the message names the file, the tensor and
 * the first damaged range of bytes. */
enum hd_status hd_ckpt_check_blocks(const char *dir, const char *file, int fd,
                                    const struct hd_ckpt_region *regions, size_t count,
                                    const uint64_t *hashes);

#endif
