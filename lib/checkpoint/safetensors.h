/* safetensors: heads of safetensors files, read and written. A file is 8 bytes of length
 * (little-endian), a JSON object {name: {dtype, shape, data_offsets: [from, to]}} of that length, and
 * the data, which the tensors cover without gap or overlap.
 *
 * Used by: the shards of checkpoints; hf, for model folders and adapters.   Uses: base.
 * Threads: any. */
#ifndef HD_CHECKPOINT_SAFETENSORS_H
#define HD_CHECKPOINT_SAFETENSORS_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/json.h"

enum {
    HD_WEIGHTS_NAME_MAX = 256, /* bytes of a tensor's name in a model folder */
    /* most dimensions of a tensor in a file: those of a convolution that cuts a video into patches;
     * a tensor that is read has fewer */
    HD_WEIGHT_DIMS_MAX = 5,
};

struct hd_weight {
    const char *name, *file; /* name of the tensor; name of its file in the directory */
    /* dtype of the tensor; HD_DTYPE_COUNT: one that cannot be read as numbers */
    enum hd_dtype dtype;
    char form[8]; /* dtype as the file spells it: "BF16", "I8" */
    int dim_count;
    int64_t shape[HD_WEIGHT_DIMS_MAX];
    const void *data; /* data of the tensor in the mapped file; may be unaligned */
    int64_t offset_bytes, size_bytes;
};

/* Decodes the first 8 bytes of a file of file_bytes. HD_INVALID: no file has a head of that length. */
enum hd_status hd_safetensors_length(const unsigned char bytes[8], int64_t file_bytes,
                                     size_t *ret_json_bytes);

/* Returns whether a name is printable ASCII without blanks, of less than name_max bytes: names appear
 * in messages and files. */
bool hd_safetensors_is_name(const char *name, size_t name_max);

/* Parses the JSON of a head. The tensors are ordered by offset, which counts from the first byte of
 * data. Names live in the arena. HD_INVALID: the head is damaged; the message names the tensor. */
enum hd_status hd_safetensors_parse(struct hd_arena *arena, const char *json, size_t json_bytes,
                                    int64_t data_bytes, size_t name_max,
                                    struct hd_weight **ret_tensors, size_t *ret_count);

/* Reads a shape of at most dims_max dimensions, each 0 or more, and multiplies its lengths. */
enum hd_status hd_safetensors_shape(const struct hd_json *list, int dims_max, int64_t *ret_shape,
                                    int *ret_dim_count, int64_t *ret_elements);

/* Convert between a dtype and its name in safetensors files, such as "F32" for HD_F32. */
const char *hd_ckpt_dtype_name(enum hd_dtype dtype, char ret_name[16]);
bool hd_ckpt_parse_dtype(const char *name, enum hd_dtype *ret_dtype);

/* A head that is being written to `out`, which is empty: begin, add each tensor in the order of their
 * data, end. A failed allocation sets out->failed. */
struct hd_safetensors_head {
    struct hd_text *out;
    struct hd_json_writer writer;
    int64_t data_bytes; /* bytes of the tensors added so far */
};
void hd_safetensors_begin(struct hd_safetensors_head *head, struct hd_text *out);
void hd_safetensors_add(struct hd_safetensors_head *head, const char *name, const char *dtype,
                        const int64_t *shape, int dim_count, int64_t size_bytes);
/* Ends the head, padded so that the data begin at a multiple of 8 bytes. HD_LIMIT: the head is larger
 * than readers accept. */
enum hd_status hd_safetensors_end(struct hd_safetensors_head *head);

#endif
