/* hf_internal: what the files of this folder share.
 *
 *     weights      safetensors files of any origin
 *     names     the table of names; parameters of ours found in their tensors
 *     config    config.json -> a resolved job
 *     describe  a resolved job -> config.json
 *     export    a model directory from a checkpoint
 */
#ifndef HD_HF_INTERNAL_H
#define HD_HF_INTERNAL_H

#include "base/json.h"
#include "checkpoint/format.h"
#include "hf/hf.h"

/* One line of the table: a parameter of ours in a tensor of theirs. '#' is the layer's number, '*'
 * in theirs an expert's: then each expert of our [E, ..] has a tensor of its own. */
struct hd_hf_row {
    const char *ours, *theirs;
    bool top;        /* theirs stands outside the base model: no prefix */
    bool transposed; /* theirs is [in, out]; of one or two dimensions */
    int place;       /* of parts joined in one tensor along its rows: 0 .. parts - 1 */
    int parts;       /* 1: not joined */
};

/* The rows of a family, as it is written; joined ones stand in a row. HD_UNSUPPORTED for a family
 * without a table. */
enum hd_status hd_hf_rows(const char *family, const struct hd_hf_row **ret_rows, size_t *ret_count,
                          const char **ret_prefix);

/* A name with the layer's number in place of '#' and the expert's in place of '*'. */
void hd_hf_format_name(const char *pattern, int64_t layer, int64_t expert,
                       char ret_name[HD_CKPT_NAME_MAX]);
/* Does each expert have a tensor of its own? */
bool hd_hf_per_expert(const struct hd_hf_row *row);

/* model.safetensors.index.json: its map {tensor: file}, and the distinct files, which are plain
 * names of this folder. Everything lives in the arena. */
enum hd_status hd_hf_parse_index(struct hd_arena *arena, const char *text, size_t text_bytes,
                                 const struct hd_json **ret_map, const char ***ret_names,
                                 size_t *ret_count);

/* The model types of transformers, as bits, in the order of hd_hf_types. */
enum {
    HD_HF_GPT2 = 1,
    HD_HF_LLAMA = 2,
    HD_HF_MISTRAL = 4,
    HD_HF_QWEN2 = 8,
    HD_HF_QWEN3 = 16,
    HD_HF_MIXTRAL = 32
};
enum { HD_HF_TYPE_COUNT = 6 };

/* architecture: the class that trains; base: without a head, its weights have no prefix */
struct hd_hf_type {
    const char *name, *architecture, *base;
    unsigned type;
};
extern const struct hd_hf_type hd_hf_types[HD_HF_TYPE_COUNT];

/* ---- heddle-hashes.json ---- */

#define HD_HF_HASHES_FILE "heddle-hashes.json"

struct hd_hf_hashes { /* in progress; it is not moved; free text */
    struct hd_text text;
    struct hd_json_writer writer;
};

void hd_hf_hashes_begin(struct hd_hf_hashes *ret_hashes);
/* A file whose blocks are complete. */
void hd_hf_hashes_add(struct hd_hf_hashes *hashes, const char *file,
                      const struct hd_ckpt_blocks *blocks);
enum hd_status hd_hf_hashes_end(struct hd_hf_hashes *hashes);

struct hd_hf_listed { /* a file as it was: consecutive regions, all hashes in their order */
    const char *file; /* a plain name */
    struct hd_ckpt_region *regions;
    size_t count;
    uint64_t *hashes;
    size_t hash_count;
    int64_t size_bytes;
};

/* What such a file lists; all in the arena. HD_CORRUPT, HD_UNSUPPORTED: another version. */
enum hd_status hd_hf_parse_hashes(struct hd_arena *arena, const char *text, size_t text_bytes,
                                  struct hd_hf_listed **ret_files, size_t *ret_count);

#endif
