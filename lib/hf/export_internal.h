/* export_internal: declarations that export.c (a model folder) and export_adapter.c (an adapter,
 * alone or added to its weights) share. Threads: those of one export. */
#ifndef HD_HF_EXPORT_INTERNAL_H
#define HD_HF_EXPORT_INTERNAL_H

#include "hf/hf_internal.h"

enum { HD_EXPORT_PARTS_MAX = 3 };
#define HD_EXPORT_POSITIONS "embedding.positions"

struct hd_export_tensor { /* one tensor of the export, and its parts in the checkpoint */
    char name[HD_WEIGHTS_NAME_MAX];
    const struct hd_ckpt_entry *parts[HD_EXPORT_PARTS_MAX];
    int part_count, dim_count;
    int64_t expert; /* index in dimension 0 of the part; -1: the whole part */
    bool transposed;
    bool prefix;  /* the keys and values of all blocks, joined along columns; it has no parts */
    int64_t rest; /* rows of the base after those of the parts */
    int64_t shape[2], elements;
    int file; /* index of the file that contains it */
};

struct hd_exporter {
    const struct hd_hf_export *options;
    struct hd_arena arena;
    struct hd_job job;
    struct hd_ckpt *ckpt;
    struct hd_hf_positions positions; /* learned positions of the base after those of the run */
    struct hd_export_tensor *tensors;
    size_t count;
    int file_count;
    int64_t total_bytes, done_bytes;
    /* buffers for the largest tensor: one part as stored; the whole tensor as exported */
    float *part, *whole;
    char *part_dir;
    struct hd_hf_hashes hashes;
};

static inline enum hd_status hd_export_no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory to export a model");
}

/* Adds a part to a tensor, as its next rows. */
void hd_export_add_part(struct hd_export_tensor *tensor, const struct hd_ckpt_entry *entry);

/* Returns a parameter of the checkpoint, else of its base; NULL: neither has it. */
const struct hd_ckpt_entry *hd_export_find(const struct hd_exporter *x, const char *name);

/* Returns whether a tensor of a checkpoint is a factor of an adapter. */
bool hd_export_is_factor(const char *name);
/* Refuses adapters that neither a model of transformers nor PEFT can hold. HD_UNSUPPORTED: the
 * message says which export can take the adapter. */
enum hd_status hd_export_check_adapter(const struct hd_exporter *x);
/* Adds to w, the values of `weight`, the product of its adapter's factors; with DoRA also sets the
 * rows' norms to the magnitudes. Does nothing if the weight has no adapter. */
enum hd_status hd_export_merge(struct hd_exporter *x, const struct hd_ckpt_entry *weight, float *w);

/* Lists the tensors of PEFT's adapter_model.safetensors. HD_INVALID: the run has no adapter, or
 * trained more than one. */
enum hd_status hd_export_list_adapter(struct hd_exporter *x, const struct hd_hf_row *rows,
                                      size_t row_count, const char *prefix);
/* Fills x->whole with a prefix. Uses x->part as a buffer for the keys or values of one block. */
enum hd_status hd_export_assemble_prefix(struct hd_exporter *x, const struct hd_export_tensor *t);
/* Writes adapter_config.json. */
enum hd_status hd_export_adapter_config(const struct hd_exporter *x, struct hd_text *ret_text);
/* Merges adapter_config.json: the text `before`, of the adapter from which the run started, with
 * the keys that the run changed. */
enum hd_status hd_export_merge_adapter(const struct hd_text *before, const struct hd_text *now,
                                       struct hd_text *ret_text);

#endif
