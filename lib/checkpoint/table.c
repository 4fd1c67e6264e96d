/* table: writes and parses the head of a shard. A shard is a safetensors file: 8 bytes of length
 * (little-endian), a JSON object, data. The object begins at byte 8 with '{' and is padded with
 * blanks so that the data start at a multiple of 8; data_offsets are relative to the start of the
 * data. The data of the tensors are contiguous, little-endian, and end with the file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint_internal.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "shards are little-endian; big-endian machines are not supported"
#endif

/* ---- writing ---- */

/* Sets ret_shape to the shape that the safetensors table gives for an entry, and returns its number
 * of dimensions: the shape of the box, or [flat_count] for a range of the box. */
static int visible_shape(const struct hd_ckpt_entry *entry, int64_t ret_shape[HD_CKPT_DIMS_MAX])
{
    if (entry->flat_count != hd_ckpt_box_elements(entry)) {
        ret_shape[0] = entry->flat_count;
        return 1;
    }
    memcpy(ret_shape, entry->extent, sizeof entry->extent);
    return entry->dim_count;
}

static void add_tensor(struct hd_json_writer *w, const struct hd_ckpt_entry *entry,
                       int64_t offset_bytes)
{
    int64_t shape[HD_CKPT_DIMS_MAX];
    const int dim_count = visible_shape(entry, shape);
    struct hd_text label = {0};
    char dtype[16];

    hd_ckpt_add_label(&label, entry);
    w->out->failed = w->out->failed || label.failed;
    if (w->out->failed)
        goto out;
    hd_json_begin(w, label.data, '{');
    hd_json_add_string(w, "dtype", hd_ckpt_dtype_name(entry->dtype, dtype));
    hd_json_begin(w, "shape", '[');
    for (int d = 0; d < dim_count; d++)
        hd_json_add_int64(w, NULL, shape[d]);
    hd_json_end(w, ']');
    hd_json_begin(w, "data_offsets", '[');
    hd_json_add_int64(w, NULL, offset_bytes);
    hd_json_add_int64(w, NULL, offset_bytes + hd_ckpt_entry_bytes(entry));
    hd_json_end(w, ']');
    hd_json_end(w, '}');
out:
    hd_text_free(&label);
}

enum hd_status hd_ckpt_write_table(const struct hd_ckpt_entry *entries, size_t count,
                                   struct hd_text *ret_head)
{
    struct hd_json_writer w = {.out = ret_head};
    unsigned char length[8] = {0};
    int64_t offset_bytes = 0;
    uint64_t json_bytes;

    hd_text_add_bytes(ret_head, length, sizeof length);
    hd_json_begin(&w, NULL, '{');
    hd_json_begin(&w, "__metadata__", '{');
    hd_json_add_string(&w, "format", "pt"); /* the transformers library requires this metadata */
    hd_json_end(&w, '}');
    for (size_t i = 0; i < count; i++) {
        add_tensor(&w, &entries[i], offset_bytes);
        offset_bytes += hd_ckpt_entry_bytes(&entries[i]);
    }
    hd_json_end(&w, '}');
    while (!ret_head->failed && ret_head->len_bytes % 8)
        hd_text_add_bytes(ret_head, " ", 1);
    if (ret_head->failed)
        return hd_err(HD_NO_MEMORY, "no memory for the table of %zu entries", count);
    json_bytes = ret_head->len_bytes - sizeof length;
    if (json_bytes > HD_CKPT_TABLE_BYTES_MAX)
        return hd_err(HD_LIMIT,
                      "the table of %zu entries takes %" PRIu64 " bytes; at most %d are "
                      "allowed in one shard",
                      count, json_bytes, HD_CKPT_TABLE_BYTES_MAX);
    for (int i = 0; i < 8; i++)
        ret_head->data[i] = (char)(json_bytes >> (8 * i));
    return HD_OK;
}

/* ---- reading ---- */

enum hd_status hd_ckpt_parse_shape(const struct hd_json *list, int64_t *ret_shape,
                                   int *ret_dim_count)
{
    int dim_count = 0;

    if (list->count > HD_CKPT_DIMS_MAX)
        return hd_err(HD_INVALID, "%zu dimensions; at most %d are supported", list->count,
                      HD_CKPT_DIMS_MAX);
    for (const struct hd_json *v = list->first; v; v = v->next) {
        enum hd_status st = hd_json_to_int64(v, 1, HD_CKPT_ELEMENTS_MAX, &ret_shape[dim_count++]);

        if (st)
            return st;
    }
    *ret_dim_count = dim_count;
    return HD_OK;
}

static enum hd_status parse_offsets(const struct hd_json *tensor, int64_t ret_bounds[2])
{
    const struct hd_json *offsets = NULL;
    enum hd_status st = hd_json_need(tensor, "data_offsets", HD_JSON_ARRAY, &offsets);

    if (!st && offsets->count != 2)
        st = hd_err(HD_INVALID, "data_offsets must be two numbers");
    if (!st)
        st = hd_json_to_int64(offsets->first, 0, INT64_MAX / 2, &ret_bounds[0]);
    if (!st)
        st = hd_json_to_int64(offsets->first->next, 0, INT64_MAX / 2, &ret_bounds[1]);
    return st;
}

static bool has_visible_shape(const struct hd_ckpt_entry *entry, const int64_t *shape,
                              int dim_count)
{
    int64_t expected[HD_CKPT_DIMS_MAX];

    if (visible_shape(entry, expected) != dim_count)
        return false;
    for (int d = 0; d < dim_count; d++)
        if (shape[d] != expected[d])
            return false;
    return true;
}

/* Parses one tensor of the table. offset_bytes: the end of the previous tensor's data, where this
 * one's must start. */
static enum hd_status parse_tensor(struct hd_arena *arena, const struct hd_json *tensor,
                                   int64_t offset_bytes, struct hd_ckpt_entry *ret_entry)
{
    struct hd_ckpt_entry entry = {0};
    int64_t shape[HD_CKPT_DIMS_MAX] = {0}, bounds[2] = {0, 0};
    const struct hd_json *list = NULL;
    const char *dtype = NULL;
    enum hd_status st;
    int dim_count = 0;

    st = hd_json_need_string(tensor, "dtype", &dtype);
    if (!st && !hd_ckpt_parse_dtype(dtype, &entry.dtype))
        st = hd_err(HD_INVALID, "unknown dtype '%.16s'", dtype);
    if (!st)
        st = hd_json_need(tensor, "shape", HD_JSON_ARRAY, &list);
    if (!st)
        st = hd_ckpt_parse_shape(list, shape, &dim_count);
    if (st)
        return st;
    memcpy(entry.shape, shape, sizeof shape);
    entry.dim_count = dim_count;
    st = hd_ckpt_parse_label(arena, tensor->key, &entry);
    if (!st && !has_visible_shape(&entry, shape, dim_count))
        st = hd_err(HD_INVALID, "its shape is not that of its piece");
    if (!st)
        st = parse_offsets(tensor, bounds);
    if (!st && (bounds[0] != offset_bytes || bounds[1] - bounds[0] != hd_ckpt_entry_bytes(&entry)))
        st = hd_err(HD_INVALID,
                    "its data are at %" PRId64 " to %" PRId64 ", not at %" PRId64 " to %" PRId64,
                    bounds[0], bounds[1], offset_bytes, offset_bytes + hd_ckpt_entry_bytes(&entry));
    if (!st)
        *ret_entry = entry;
    return st;
}

enum hd_status hd_ckpt_parse_table(struct hd_arena *arena, const char *json, size_t json_bytes,
                                   int64_t data_at, int64_t data_bytes,
                                   struct hd_ckpt_stored **ret_stored, size_t *ret_count)
{
    const struct hd_json_limits limits = {.values_max = json_bytes / 2 + 1, .depth_max = 3};
    const struct hd_json *root = NULL;
    struct hd_ckpt_stored *stored;
    int64_t offset_bytes = 0;
    enum hd_status st;
    size_t n = 0;

    st = hd_json_parse(arena, json, json_bytes, &limits, &root);
    if (st)
        return st;
    if (root->kind != HD_JSON_OBJECT || root->count > HD_CKPT_ENTRIES_MAX)
        return hd_err(HD_INVALID, "the table is not an object, or has more than %d entries",
                      HD_CKPT_ENTRIES_MAX);
    stored = hd_arena_array(arena, root->count, sizeof *stored);
    if (!stored)
        return hd_err(HD_NO_MEMORY, "no memory for %zu entries", root->count);
    for (const struct hd_json *tensor = root->first; tensor; tensor = tensor->next) {
        if (strcmp(tensor->key, "__metadata__") == 0)
            continue;
        st = parse_tensor(arena, tensor, offset_bytes, &stored[n].entry);
        if (st)
            return hd_err_prefix(st, "entry '%.300s'", tensor->key);
        stored[n].offset_bytes = data_at + offset_bytes;
        offset_bytes += hd_ckpt_entry_bytes(&stored[n++].entry);
        if (offset_bytes > data_bytes)
            break;
    }
    if (n == 0 || offset_bytes != data_bytes)
        return hd_err(HD_INVALID,
                      "the entries take %" PRId64 " bytes or more, the file has %" PRId64
                      " for them",
                      offset_bytes, data_bytes);
    *ret_stored = stored;
    *ret_count = n;
    return HD_OK;
}

enum hd_status hd_ckpt_open_file(const char *dir, const char *file, int *ret_fd, int64_t *ret_size)
{
    struct hd_text path = {0};
    enum hd_status st = HD_OK;
    struct stat info;
    int fd = -1;

    hd_file_join(&path, dir, file);
    if (path.failed) {
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
        goto out;
    }
    fd = open(path.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        st = hd_err(errno == ENOENT ? HD_NOT_FOUND : HD_IO, "cannot open %s: %s", path.data,
                    strerror(errno));
    else if (fstat(fd, &info) < 0)
        st = hd_err(HD_IO, "cannot examine %s: %s", path.data, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        st = hd_err(HD_CORRUPT, "%s is not a regular file", path.data);
out:
    hd_text_free(&path);
    if (st) {
        if (fd >= 0)
            (void)close(fd);
        return st;
    }
    *ret_fd = fd;
    if (ret_size)
        *ret_size = info.st_size;
    return HD_OK;
}

/* Reads and checks the length of the JSON table, the first 8 bytes of a shard. */
static enum hd_status read_length(int fd, int64_t file_bytes, size_t *ret_json_bytes)
{
    unsigned char bytes[8];
    uint64_t length = 0;
    enum hd_status st;

    st = hd_file_pread_all(fd, bytes, sizeof bytes, 0);
    if (st)
        return st;
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)bytes[i] << (8 * i);
    if (length > HD_CKPT_TABLE_BYTES_MAX || (int64_t)length > file_bytes - 8 || length % 8)
        return hd_err(HD_CORRUPT, "its table cannot have %" PRIu64 " bytes", length);
    *ret_json_bytes = (size_t)length;
    return HD_OK;
}

enum hd_status hd_ckpt_read_table(struct hd_arena *arena, const char *dir,
                                  const struct hd_ckpt_shard *shard,
                                  struct hd_ckpt_stored **ret_stored, size_t *ret_count)
{
    size_t json_bytes = 0;
    char *json = NULL;
    enum hd_status st;
    int64_t size = 0;
    int fd;

    st = hd_ckpt_open_file(dir, shard->file, &fd, &size);
    if (st)
        return st;
    if (size != shard->size_bytes) {
        st = hd_err(HD_CORRUPT, "it has %" PRId64 " bytes, not %" PRId64, size, shard->size_bytes);
        goto out;
    }
    st = read_length(fd, size, &json_bytes);
    if (st)
        goto out;
    json = malloc(json_bytes + 1);
    if (!json) {
        st = hd_err(HD_NO_MEMORY, "no memory for its table of %zu bytes", json_bytes);
        goto out;
    }
    st = hd_file_pread_all(fd, json, json_bytes, 8);
    if (!st)
        st = hd_ckpt_parse_table(arena, json, json_bytes, (int64_t)json_bytes + 8,
                                 size - 8 - (int64_t)json_bytes, ret_stored, ret_count);
    if (st == HD_INVALID || st == HD_LIMIT)
        st = HD_CORRUPT;
out:
    free(json);
    (void)close(fd);
    return st ? hd_err_prefix(st, "%s/%s", dir, shard->file) : HD_OK;
}

bool hd_ckpt_is_shard_name(const char *file)
{
    static const char prefix[] = "rank-", suffix[] = ".safetensors";
    const char *digits = file + sizeof prefix - 1;
    size_t n;

    if (strnlen(file, HD_CKPT_FILE_MAX) >= HD_CKPT_FILE_MAX || !hd_text_starts(file, prefix))
        return false;
    n = strspn(digits, "0123456789");
    return n >= 5 && n <= 7 && strcmp(digits + n, suffix) == 0;
}
