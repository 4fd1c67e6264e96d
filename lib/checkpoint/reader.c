#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/hash.h"
#include "checkpoint/checkpoint_internal.h"

struct hd_ckpt {
    struct hd_arena arena;
    char *dir;
    struct hd_ckpt_manifest manifest;
    struct hd_ckpt_hash_list *hash_lists; /* block hashes of each shard; NULL in format version 1 */
    uint64_t hash;
    struct hd_ckpt_stored *stored;
    size_t stored_count;
    struct hd_ckpt_tensor *tensors;
    size_t tensor_count;

    /* Index of the shard whose file is open as `fd`, one at a time; -1: none. `window` buffers part
     * of that file for short runs. */
    int32_t shard;
    int fd;
    unsigned char *window;
    int64_t window_at, window_bytes;
};

/* ---- opening ---- */

static enum hd_status read_manifest(struct hd_ckpt *ckpt)
{
    struct hd_text text = {0};
    struct hd_arena scratch;
    enum hd_status st =
        hd_folder_read(ckpt->dir, HD_CKPT_MANIFEST_FILE, HD_CKPT_MANIFEST_BYTES_MAX, &text);

    if (st == HD_NOT_FOUND)
        st = hd_file_exists(ckpt->dir)
                 ? hd_err(st, "%s is not a complete checkpoint: there is no %s", ckpt->dir,
                          HD_CKPT_MANIFEST_FILE)
                 : hd_err(st, "there is no checkpoint %s: the folder is gone", ckpt->dir);
    if (st) {
        hd_text_free(&text);
        return st;
    }
    hd_arena_init(&scratch, 0);
    ckpt->hash = hd_hash_bytes(text.data, text.len_bytes);
    st = hd_ckpt_parse_manifest(&ckpt->arena, &scratch, text.data, text.len_bytes, &ckpt->manifest,
                                &ckpt->hash_lists, &ckpt->stored, &ckpt->stored_count);
    if (!st)
        st = hd_ckpt_index(&ckpt->arena, ckpt->stored, ckpt->stored_count, &ckpt->tensors,
                           &ckpt->tensor_count);
    if (st)
        (void)hd_err_prefix(st, "%s/" HD_CKPT_MANIFEST_FILE, ckpt->dir);
    hd_arena_done(&scratch);
    hd_text_free(&text);
    return st;
}

static enum hd_status check_sizes(const struct hd_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->manifest.shard_count; i++) {
        const struct hd_ckpt_shard *shard = &ckpt->manifest.shards[i];
        int64_t size = 0;
        int fd;
        enum hd_status st = hd_ckpt_open_file(ckpt->dir, shard->file, &fd, &size);

        if (st)
            /* the manifest lists the file, so a missing one is damage */
            return st == HD_NOT_FOUND ? HD_CORRUPT : st;
        (void)close(fd);
        if (size != shard->size_bytes)
            return hd_err(HD_CORRUPT, "%s/%s has %" PRId64 " bytes, not %" PRId64, ckpt->dir,
                          shard->file, size, shard->size_bytes);
    }
    return HD_OK;
}

enum hd_status hd_ckpt_open(const char *dir, struct hd_ckpt **ret_ckpt)
{
    struct hd_ckpt *ckpt = calloc(1, sizeof *ckpt);
    enum hd_status st;

    if (!ckpt)
        return hd_err(HD_NO_MEMORY, "no memory for a checkpoint");
    hd_arena_init(&ckpt->arena, 0);
    ckpt->fd = -1;
    ckpt->shard = -1;
    ckpt->dir = strdup(dir);
    ckpt->window = malloc(HD_CKPT_WINDOW_BYTES);
    st = ckpt->dir && ckpt->window ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a checkpoint");
    if (!st)
        st = read_manifest(ckpt);
    if (!st)
        st = check_sizes(ckpt);
    if (st)
        hd_ckpt_close(ckpt);
    else
        *ret_ckpt = ckpt;
    return st;
}

void hd_ckpt_close(struct hd_ckpt *ckpt)
{
    if (!ckpt)
        return;
    if (ckpt->fd >= 0)
        (void)close(ckpt->fd);
    hd_arena_done(&ckpt->arena);
    free(ckpt->window);
    free(ckpt->dir);
    free(ckpt);
}

/* ---- access ---- */

const struct hd_ckpt_manifest *hd_ckpt_get_manifest(const struct hd_ckpt *ckpt)
{
    return &ckpt->manifest;
}

const char *hd_ckpt_dir(const struct hd_ckpt *ckpt)
{
    return ckpt->dir;
}

uint64_t hd_ckpt_hash(const struct hd_ckpt *ckpt)
{
    return ckpt->hash;
}

enum hd_status hd_ckpt_get_counter(const struct hd_ckpt *ckpt, const char *name, int64_t *ret_value)
{
    for (size_t i = 0; i < ckpt->manifest.counter_count; i++)
        if (strcmp(ckpt->manifest.counters[i].name, name) == 0) {
            *ret_value = ckpt->manifest.counters[i].value;
            return HD_OK;
        }
    return hd_err(HD_NOT_FOUND, "%s has no counter '%s'", ckpt->dir, name);
}

static const char *find_fact(const struct hd_ckpt_fact *facts, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(facts[i].name, name) == 0)
            return facts[i].value;
    return NULL;
}

const char *hd_ckpt_layout(const struct hd_ckpt *ckpt, const char *name)
{
    return find_fact(ckpt->manifest.layout, ckpt->manifest.layout_count, name);
}

const char *hd_ckpt_determinism(const struct hd_ckpt *ckpt, const char *name)
{
    return find_fact(ckpt->manifest.determinism, ckpt->manifest.determinism_count, name);
}

size_t hd_ckpt_tensor_count(const struct hd_ckpt *ckpt)
{
    return ckpt->tensor_count;
}

const struct hd_ckpt_entry *hd_ckpt_get_tensor(const struct hd_ckpt *ckpt, size_t index)
{
    return &ckpt->tensors[index].whole;
}

static int compare_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct hd_ckpt_tensor *)tensor)->whole.name);
}

static const struct hd_ckpt_tensor *find_tensor(const struct hd_ckpt *ckpt, const char *name)
{
    return bsearch(name, ckpt->tensors, ckpt->tensor_count, sizeof *ckpt->tensors, compare_name);
}

const struct hd_ckpt_entry *hd_ckpt_find_tensor(const struct hd_ckpt *ckpt, const char *name)
{
    const struct hd_ckpt_tensor *tensor = find_tensor(ckpt, name);

    return tensor ? &tensor->whole : NULL;
}

/* ---- reading a piece ---- */

static enum hd_status use_shard(struct hd_ckpt *ckpt, int32_t shard)
{
    enum hd_status st;
    int fd = -1;

    if (ckpt->shard == shard)
        return HD_OK;
    st = hd_ckpt_open_file(ckpt->dir, ckpt->manifest.shards[shard].file, &fd, NULL);
    if (st)
        return st == HD_NOT_FOUND ? HD_CORRUPT : st; /* the manifest lists the file, so a missing
                                                        one is damage */
    if (ckpt->fd >= 0)
        (void)close(ckpt->fd);
    ckpt->fd = fd;
    ckpt->shard = shard;
    ckpt->window_bytes = 0;
    return HD_OK;
}

static enum hd_status pread_shard(struct hd_ckpt *ckpt, void *ret_data, int64_t size_bytes,
                                  int64_t offset_bytes)
{
    enum hd_status st = hd_file_pread_all(ckpt->fd, ret_data, (size_t)size_bytes, offset_bytes);

    return st ? hd_err_prefix(st, "%s/%s", ckpt->dir, ckpt->manifest.shards[ckpt->shard].file)
              : HD_OK;
}

struct assembly { /* the wanted piece while it is assembled, from one entry at a time */
    struct hd_ckpt *ckpt;
    const struct hd_ckpt_stored *stored;
    size_t item_bytes;
    unsigned char *out;
    struct hd_ckpt_cover cover;
    bool compare; /* true: the entries are read a second time and compared with `out`, because some
                     overlap */
};

static enum hd_status differs(const struct assembly *a)
{
    return hd_err(HD_CORRUPT, "%s: two entries in %s hold different values for the same elements",
                  a->stored->entry.name, a->ckpt->dir);
}

/* Sets *ret_bytes to the address, in the read buffer (window), of size_bytes of the open shard at
 * offset_bytes; reads them into the window first if it does not contain them. */
static enum hd_status move_window(struct assembly *a, int64_t offset_bytes, int64_t size_bytes,
                                  const unsigned char **ret_bytes)
{
    struct hd_ckpt *ckpt = a->ckpt;
    const int64_t end = a->stored->offset_bytes + hd_ckpt_entry_bytes(&a->stored->entry);
    enum hd_status st;

    if (offset_bytes < ckpt->window_at ||
        offset_bytes + size_bytes > ckpt->window_at + ckpt->window_bytes) {
        const int64_t left = end - offset_bytes;
        const int64_t n = left < HD_CKPT_WINDOW_BYTES ? left : HD_CKPT_WINDOW_BYTES;

        ckpt->window_bytes = 0;
        st = pread_shard(ckpt, ckpt->window, n, offset_bytes);
        if (st)
            return st;
        ckpt->window_at = offset_bytes;
        ckpt->window_bytes = n;
    }
    *ret_bytes = ckpt->window + (offset_bytes - ckpt->window_at);
    return HD_OK;
}

static enum hd_status take_run(void *context, int64_t entry_index, int64_t want_index,
                               int64_t count)
{
    struct assembly *a = context;
    const int64_t item = (int64_t)a->item_bytes;
    int64_t offset = a->stored->offset_bytes + entry_index * item, left = count * item;
    unsigned char *out = a->out + want_index * item;
    enum hd_status st;

    if (!a->compare && left >= HD_CKPT_WINDOW_BYTES) { /* long runs are read directly into `out` */
        st = pread_shard(a->ckpt, out, left, offset);
        return st ? st : hd_ckpt_cover_add(&a->cover, want_index, count);
    }
    while (left) {
        const int64_t n = left < HD_CKPT_WINDOW_BYTES ? left : HD_CKPT_WINDOW_BYTES;
        const unsigned char *bytes = NULL;

        st = move_window(a, offset, n, &bytes);
        if (st)
            return st;
        if (a->compare && memcmp(out, bytes, (size_t)n) != 0)
            return differs(a);
        if (!a->compare)
            memcpy(out, bytes, (size_t)n);
        offset += n;
        out += n;
        left -= n;
    }
    return a->compare ? HD_OK : hd_ckpt_cover_add(&a->cover, want_index, count);
}

static enum hd_status pass_over(struct assembly *a, const struct hd_ckpt_tensor *tensor,
                                const struct hd_ckpt_entry *want)
{
    enum hd_status st = HD_OK;

    for (size_t i = 0; !st && i < tensor->count; i++) {
        a->stored = &a->ckpt->stored[tensor->first + i];
        st = use_shard(a->ckpt, a->stored->shard);
        if (!st)
            st = hd_ckpt_overlap(&a->stored->entry, want, take_run, a);
    }
    return st;
}

static void add_shape(struct hd_text *text, const struct hd_ckpt_entry *entry)
{
    hd_text_add(text, "%s[", hd_dtype_name(entry->dtype));
    for (int d = 0; d < entry->dim_count; d++)
        hd_text_add(text, "%s%" PRId64, d ? "," : "", entry->shape[d]);
    hd_text_add(text, "]");
}

static enum hd_status check_same(const struct hd_ckpt *ckpt, const struct hd_ckpt_entry *whole,
                                 const struct hd_ckpt_entry *want)
{
    struct hd_text is = {0}, wanted = {0};
    enum hd_status st;

    if (whole->dtype == want->dtype && whole->dim_count == want->dim_count &&
        memcmp(whole->shape, want->shape, (size_t)whole->dim_count * sizeof want->shape[0]) == 0)
        return HD_OK;
    add_shape(&is, whole);
    add_shape(&wanted, want);
    st = hd_err(HD_INVALID, "%s: the checkpoint %s has %s, expected %s", want->name, ckpt->dir,
                is.data ? is.data : "?", wanted.data ? wanted.data : "?");
    hd_text_free(&is);
    hd_text_free(&wanted);
    return st;
}

enum hd_status hd_ckpt_read(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *want, void *ret_data)
{
    struct assembly a = {.ckpt = ckpt, .item_bytes = hd_dtype_size(want->dtype), .out = ret_data};
    const struct hd_ckpt_tensor *tensor;
    bool overlaps = false;
    enum hd_status st = hd_ckpt_check_entry(want);

    if (st)
        return st;
    tensor = find_tensor(ckpt, want->name);
    if (!tensor)
        return hd_err(HD_NOT_FOUND, "the checkpoint %s has no tensor %s", ckpt->dir, want->name);
    st = check_same(ckpt, &tensor->whole, want);
    if (!st)
        st = pass_over(&a, tensor, want);
    if (!st) {
        st = hd_ckpt_cover_check(&a.cover, want, &overlaps);
        if (st)
            (void)hd_err_prefix(st, "%s", ckpt->dir);
    }
    if (!st && overlaps) {
        a.compare = true;
        st = pass_over(&a, tensor, want);
    }
    hd_ckpt_cover_free(&a.cover);
    return st;
}

/* ---- for verify ---- */

const struct hd_ckpt_stored *hd_ckpt_get_stored(const struct hd_ckpt *ckpt)
{
    return ckpt->stored;
}

size_t hd_ckpt_stored_count(const struct hd_ckpt *ckpt)
{
    return ckpt->stored_count;
}

const struct hd_ckpt_hash_list *hd_ckpt_hash_lists(const struct hd_ckpt *ckpt)
{
    return ckpt->hash_lists;
}
