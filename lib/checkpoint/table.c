/* table: writes and parses the head of a shard, a safetensors file whose data are at a multiple of 8
 * and whose tensors are labelled pieces. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "checkpoint/checkpoint_internal.h"

/* bytes of a label: a name, four ranges of three numbers, a range of two */
enum { LABEL_MAX = HD_CKPT_NAME_MAX + 14 * 18 };

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

enum hd_status hd_ckpt_write_table(const struct hd_ckpt_entry *entries, size_t count,
                                   struct hd_text *ret_head)
{
    struct hd_safetensors_head head;
    struct hd_text label = {0};
    enum hd_status st;

    hd_safetensors_begin(&head, ret_head);
    for (size_t i = 0; i < count; i++) {
        int64_t shape[HD_CKPT_DIMS_MAX];
        const int dim_count = visible_shape(&entries[i], shape);
        char dtype[16];

        hd_text_clear(&label);
        hd_ckpt_add_label(&label, &entries[i]);
        if (!label.failed)
            hd_safetensors_add(&head, label.data, hd_ckpt_dtype_name(entries[i].dtype, dtype),
                               shape, dim_count, hd_ckpt_entry_bytes(&entries[i]));
    }
    ret_head->failed = ret_head->failed || label.failed;
    hd_text_free(&label);
    st = hd_safetensors_end(&head);
    return st ? hd_err_prefix(st, "%zu entries", count) : HD_OK;
}

/* ---- reading ---- */

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

/* Parses one tensor of the table. */
static enum hd_status parse_piece(struct hd_arena *arena, const struct hd_weight *tensor,
                                  struct hd_ckpt_entry *ret_entry)
{
    struct hd_ckpt_entry entry = {.dtype = tensor->dtype, .dim_count = tensor->dim_count};
    enum hd_status st;

    if (tensor->dtype == HD_DTYPE_COUNT || tensor->dim_count > HD_CKPT_DIMS_MAX)
        return hd_err(HD_INVALID, "dtype %s of %d dimensions is not one of checkpoints",
                      tensor->form, tensor->dim_count);
    memcpy(entry.shape, tensor->shape, sizeof entry.shape);
    st = hd_ckpt_parse_label(arena, tensor->name, &entry);
    if (!st && !has_visible_shape(&entry, tensor->shape, tensor->dim_count))
        st = hd_err(HD_INVALID, "its shape is not that of its piece");
    *ret_entry = entry;
    return st;
}

enum hd_status hd_ckpt_parse_table(struct hd_arena *arena, const char *json, size_t json_bytes,
                                   int64_t data_at, int64_t data_bytes,
                                   struct hd_ckpt_stored **ret_stored, size_t *ret_count)
{
    struct hd_weight *tensors = NULL;
    struct hd_ckpt_stored *stored;
    size_t count = 0;
    enum hd_status st =
        hd_safetensors_parse(arena, json, json_bytes, data_bytes, LABEL_MAX, &tensors, &count);

    if (!st && count == 0)
        st = hd_err(HD_INVALID, "it has no tensors");
    if (st)
        return st;
    stored = hd_arena_array(arena, count, sizeof *stored);
    if (!stored)
        return hd_err(HD_NO_MEMORY, "no memory for %zu entries", count);
    for (size_t i = 0; i < count; i++) {
        st = parse_piece(arena, &tensors[i], &stored[i].entry);
        if (st)
            return hd_err_prefix(st, "entry '%.300s'", tensors[i].name);
        stored[i].offset_bytes = data_at + tensors[i].offset_bytes;
    }
    *ret_stored = stored;
    *ret_count = count;
    return HD_OK;
}

enum hd_status hd_ckpt_open_file(const char *dir, const char *file, int *ret_fd, int64_t *ret_size)
{
    struct hd_text path = {0};
    enum hd_status st = hd_folder_path(&path, dir, file);
    struct stat info;
    int fd = -1;

    if (st)
        goto out;
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

enum hd_status hd_ckpt_read_table(struct hd_arena *arena, const char *dir,
                                  const struct hd_ckpt_shard *shard,
                                  struct hd_ckpt_stored **ret_stored, size_t *ret_count)
{
    unsigned char length[8];
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
    st = hd_file_pread_all(fd, length, sizeof length, 0);
    if (!st)
        st = hd_safetensors_length(length, size, &json_bytes);
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
out:
    if (st == HD_INVALID || st == HD_LIMIT)
        st = HD_CORRUPT;
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
