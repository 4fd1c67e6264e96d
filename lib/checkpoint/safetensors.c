#include "checkpoint/safetensors.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian; big-endian machines are not supported"
#endif

/* JSON values of a head: at most 11 per tensor */
enum { VALUES_MAX = 12 * HD_CKPT_ENTRIES_MAX };

/* ---- dtypes ---- */

const char *hd_ckpt_dtype_name(enum hd_dtype dtype, char ret_name[16])
{
    (void)snprintf(ret_name, 16, "%s", hd_dtype_name(dtype));
    for (char *p = ret_name; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    return ret_name;
}

bool hd_ckpt_parse_dtype(const char *name, enum hd_dtype *ret_dtype)
{
    char known[16];

    for (int d = 0; d < HD_DTYPE_COUNT; d++)
        if (strcmp(hd_ckpt_dtype_name((enum hd_dtype)d, known), name) == 0) {
            *ret_dtype = (enum hd_dtype)d;
            return true;
        }
    return false;
}

/* Sets *ret_dtype and *ret_bytes to the dtype that a file's name for it means and the size of its
 * elements; false: unknown name. Tensors of dtypes that hd_dtype lacks are listed, but cannot be
 * read. */
static bool find_dtype(const char *name, enum hd_dtype *ret_dtype, int64_t *ret_bytes)
{
    static const struct {
        const char *name;
        int64_t bytes;
    } others[] = {{"BOOL", 1}, {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                  {"I16", 2},  {"U16", 2}, {"U32", 4},     {"U64", 8}};

    if (hd_ckpt_parse_dtype(name, ret_dtype)) {
        *ret_bytes = (int64_t)hd_dtype_size(*ret_dtype);
        return true;
    }
    *ret_dtype = HD_DTYPE_COUNT;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(name, others[i].name) == 0) {
            *ret_bytes = others[i].bytes;
            return true;
        }
    return false;
}

/* ---- reading ---- */

bool hd_safetensors_is_name(const char *name, size_t name_max)
{
    const size_t n = strnlen(name, name_max);

    for (size_t i = 0; i < n; i++)
        if (name[i] <= ' ' || name[i] > '~')
            return false;
    return n > 0 && n < name_max;
}

enum hd_status hd_safetensors_length(const unsigned char bytes[8], int64_t file_bytes,
                                     size_t *ret_json_bytes)
{
    uint64_t length = 0;

    memcpy(&length, bytes, sizeof length);
    if (length > HD_CKPT_TABLE_BYTES_MAX || (int64_t)length > file_bytes - 8)
        return hd_err(HD_INVALID, "its head cannot have %" PRIu64 " bytes", length);
    *ret_json_bytes = (size_t)length;
    return HD_OK;
}

enum hd_status hd_safetensors_shape(const struct hd_json *list, int dims_max, int64_t *ret_shape,
                                    int *ret_dim_count, int64_t *ret_elements)
{
    int64_t elements = 1;
    int n = 0;

    if (list->count > (size_t)dims_max)
        return hd_err(HD_INVALID, "%zu dimensions; at most %d are supported", list->count,
                      dims_max);
    for (const struct hd_json *v = list->first; v; v = v->next) {
        enum hd_status st = hd_json_to_int64(v, 0, HD_CKPT_ELEMENTS_MAX, &ret_shape[n]);

        if (st)
            return st;
        if (elements && ret_shape[n] > HD_CKPT_ELEMENTS_MAX / elements)
            return hd_err(HD_INVALID, "its shape has too many elements");
        elements *= ret_shape[n++];
    }
    *ret_dim_count = n;
    *ret_elements = elements;
    return HD_OK;
}

/* Reads data_offsets, which must be those of a tensor of `expected` bytes. */
static enum hd_status read_offsets(const struct hd_json *offsets, int64_t data_bytes,
                                   int64_t expected, struct hd_weight *ret_tensor)
{
    int64_t from = 0, to = 0;
    enum hd_status st = HD_OK;

    if (offsets->count != 2)
        st = hd_err(HD_INVALID, "data_offsets must be two numbers");
    if (!st)
        st = hd_json_to_int64(offsets->first, 0, INT64_MAX / 2, &from);
    if (!st)
        st = hd_json_to_int64(offsets->first->next, 0, INT64_MAX / 2, &to);
    if (!st && (from > to || to > data_bytes))
        st = hd_err(HD_INVALID,
                    "its data at %" PRId64 " to %" PRId64 " are outside the %" PRId64
                    " bytes of data that the file has behind its head: it was cut off, or is "
                    "damaged",
                    from, to, data_bytes);
    if (!st && to - from != expected)
        st = hd_err(HD_INVALID, "its data take %" PRId64 " bytes, its dtype and shape %" PRId64,
                    to - from, expected);
    ret_tensor->offset_bytes = from;
    ret_tensor->size_bytes = to - from;
    return st;
}

static enum hd_status parse_tensor(const struct hd_json *object, int64_t data_bytes,
                                   struct hd_weight *ret_tensor)
{
    const struct hd_json *shape = NULL, *offsets = NULL;
    int64_t elements = 0, element_bytes = 0;
    const char *dtype = NULL;
    enum hd_status st = hd_json_need_string(object, "dtype", &dtype);

    if (!st && !find_dtype(dtype, &ret_tensor->dtype, &element_bytes))
        st = hd_err(HD_INVALID, "its dtype %.16s is none that this program knows", dtype);
    if (!st)
        st = hd_json_need(object, "shape", HD_JSON_ARRAY, &shape);
    if (!st)
        st = hd_json_need(object, "data_offsets", HD_JSON_ARRAY, &offsets);
    if (st)
        return st;
    (void)snprintf(ret_tensor->form, sizeof ret_tensor->form, "%s", dtype);
    ret_tensor->name = object->key;
    st = hd_safetensors_shape(shape, HD_WEIGHT_DIMS_MAX, ret_tensor->shape, &ret_tensor->dim_count,
                              &elements);
    return st ? st : read_offsets(offsets, data_bytes, elements * element_bytes, ret_tensor);
}

/* Orders tensors by offset; of two that begin at one offset, the one without elements comes
 * first. */
static int by_offset(const void *a, const void *b)
{
    const struct hd_weight *x = a, *y = b;

    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

static enum hd_status check_cover(const struct hd_weight *tensors, size_t count, int64_t data_bytes)
{
    int64_t at = 0;

    for (size_t i = 0; i < count; i++) {
        const struct hd_weight *w = &tensors[i];

        if (w->offset_bytes < at)
            return hd_err(HD_INVALID, "tensor %s: its data overlap those of %s", w->name,
                          tensors[i - 1].name);
        if (w->offset_bytes > at)
            return hd_err(HD_INVALID,
                          "tensor %s: %" PRId64 " bytes before its data belong to no tensor",
                          w->name, w->offset_bytes - at);
        at = w->offset_bytes + w->size_bytes;
    }
    if (at != data_bytes)
        return hd_err(HD_INVALID, "%" PRId64 " bytes at its end belong to no tensor",
                      data_bytes - at);
    return HD_OK;
}

enum hd_status hd_safetensors_parse(struct hd_arena *arena, const char *json, size_t json_bytes,
                                    int64_t data_bytes, size_t name_max,
                                    struct hd_weight **ret_tensors, size_t *ret_count)
{
    const struct hd_json_limits limits = {.values_max = VALUES_MAX, .depth_max = 3};
    const struct hd_json *root = NULL;
    struct hd_weight *tensors;
    size_t n = 0;
    enum hd_status st = hd_json_parse(arena, json, json_bytes, &limits, &root);

    if (st)
        return hd_err_prefix(st, "its head is damaged, or it is no safetensors file");
    if (root->kind != HD_JSON_OBJECT || root->count > HD_CKPT_ENTRIES_MAX)
        return hd_err(HD_INVALID, "the head is not an object, or has more than %d tensors",
                      HD_CKPT_ENTRIES_MAX);
    tensors = hd_arena_array(arena, root->count + 1, sizeof *tensors);
    if (!tensors)
        return hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    for (const struct hd_json *object = root->first; object; object = object->next) {
        if (strcmp(object->key, "__metadata__") == 0)
            continue;
        if (!hd_safetensors_is_name(object->key, name_max))
            return hd_err(HD_INVALID,
                          "tensor number %zu has no name of 1 to %zu printable characters", n + 1,
                          name_max - 1);
        st = parse_tensor(object, data_bytes, &tensors[n++]);
        if (st)
            return hd_err_prefix(st, "tensor %s", object->key);
    }
    if (n)
        qsort(tensors, n, sizeof *tensors, by_offset);
    *ret_tensors = tensors;
    *ret_count = n;
    return check_cover(tensors, n, data_bytes);
}

/* ---- writing ---- */

void hd_safetensors_begin(struct hd_safetensors_head *head, struct hd_text *out)
{
    *head = (struct hd_safetensors_head){.out = out, .writer = {.out = out}};
    hd_text_add_bytes(out, "\0\0\0\0\0\0\0\0", 8);
    hd_json_begin(&head->writer, NULL, '{');
    hd_json_begin(&head->writer, "__metadata__", '{');
    hd_json_add_string(&head->writer, "format", "pt"); /* the transformers library requires it */
    hd_json_end(&head->writer, '}');
}

void hd_safetensors_add(struct hd_safetensors_head *head, const char *name, const char *dtype,
                        const int64_t *shape, int dim_count, int64_t size_bytes)
{
    struct hd_json_writer *w = &head->writer;

    hd_json_begin(w, name, '{');
    hd_json_add_string(w, "dtype", dtype);
    hd_json_begin(w, "shape", '[');
    for (int d = 0; d < dim_count; d++)
        hd_json_add_int64(w, NULL, shape[d]);
    hd_json_end(w, ']');
    hd_json_begin(w, "data_offsets", '[');
    hd_json_add_int64(w, NULL, head->data_bytes);
    head->data_bytes += size_bytes;
    hd_json_add_int64(w, NULL, head->data_bytes);
    hd_json_end(w, ']');
    hd_json_end(w, '}');
}

enum hd_status hd_safetensors_end(struct hd_safetensors_head *head)
{
    struct hd_text *out = head->out;
    uint64_t json_bytes;

    hd_json_end(&head->writer, '}');
    while (!out->failed && out->len_bytes % 8)
        hd_text_add_bytes(out, " ", 1);
    if (out->failed)
        return hd_err(HD_NO_MEMORY, "no memory for the head of a safetensors file");
    json_bytes = out->len_bytes - 8;
    if (json_bytes > HD_CKPT_TABLE_BYTES_MAX)
        return hd_err(HD_LIMIT,
                      "the head of a safetensors file would have %" PRIu64
                      " bytes; readers accept at most %d",
                      json_bytes, HD_CKPT_TABLE_BYTES_MAX);
    memcpy(out->data, &json_bytes, sizeof json_bytes);
    return HD_OK;
}
