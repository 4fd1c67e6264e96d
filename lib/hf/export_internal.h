/* export_internal: what export.c (a model folder) and export_adapter.c (an adapter, alone or added
 * to its weights) share. Threads: those of one export. */
#ifndef HD_HF_EXPORT_INTERNAL_H
#define HD_HF_EXPORT_INTERNAL_H

#include "hf/hf_internal.h"

enum { HD_EXPORT_PARTS_MAX = 3 };
#define HD_EXPORT_POSITIONS "embedding.positions"

struct hd_export_tensor { /* a tensor of the export, and its parts in the checkpoint */
    char name[HD_WEIGHTS_NAME_MAX];
    const struct hd_ckpt_entry *parts[HD_EXPORT_PARTS_MAX];
    int part_count, dim_count;
    int64_t expert; /* index in dimension 0 of the part; -1: all of it */
    bool transposed;
    bool prefix;  /* keys and values of all blocks, as columns; it has no parts */
    int64_t rest; /* rows of the base behind those of the parts */
    int64_t shape[2], elements;
    int file; /* index of the file that contains it */
};

struct hd_exporter {
    const struct hd_hf_export *options;
    struct hd_arena arena;
    struct hd_job job;
    struct hd_ckpt *ckpt;
    struct hd_hf_positions positions; /* of the base, behind the run's */
    struct hd_export_tensor *tensors;
    size_t count;
    int file_count;
    int64_t total_bytes, done_bytes;
    float *part, *whole; /* buffers for the largest tensor: one part as stored; all as exported */
    char *part_dir;
    struct hd_hf_hashes hashes;
};

static inline enum hd_status hd_export_no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory to export a model");
}

/* Adds rows to a tensor. */
void hd_export_add_part(struct hd_export_tensor *tensor, const struct hd_ckpt_entry *entry);

/* A parameter of the checkpoint or of its base; NULL: neither has it. */
const struct hd_ckpt_entry *hd_export_find(const struct hd_exporter *x, const char *name);

/* Whether a tensor of a checkpoint is a factor of an adapter. */
bool hd_export_is_factor(const char *name);
/* HD_UNSUPPORTED: the checkpoint has an adapter that is neither part of a model of transformers nor
 * of a form of PEFT; the message says what takes it. */
enum hd_status hd_export_check_adapter(const struct hd_exporter *x);
/* Adds to w, which are the values of `weight`, what its adapter adds to it, if it has one. */
enum hd_status hd_export_merge(struct hd_exporter *x, const struct hd_ckpt_entry *weight, float *w);

/* The tensors of PEFT's adapter_model.safetensors. HD_INVALID: there is no adapter, or more than an
 * adapter trained. */
enum hd_status hd_export_list_adapter(struct hd_exporter *x, const struct hd_hf_row *rows,
                                      size_t row_count, const char *prefix);
/* Fills x->whole with a prefix; x->part holds the keys or values of a block. */
enum hd_status hd_export_assemble_prefix(struct hd_exporter *x, const struct hd_export_tensor *t);
/* adapter_config.json. */
enum hd_status hd_export_adapter_config(const struct hd_exporter *x, struct hd_text *ret_text);
/* Writes adapter_config.json as the file `before`, of the adapter from which the run went on, with
 * the keys that the run changed. */
enum hd_status hd_export_merge_adapter(const struct hd_text *before, const struct hd_text *now,
                                       struct hd_text *ret_text);

#endif
