/* commit: phase two of saving: checks all shards and writes the manifest. The invariants are at the
 * top of writer.c. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/hash.h"
#include "checkpoint/checkpoint_internal.h"

/* ---- the tensors of a checkpoint ---- */

static int compare_stored(const void *a, const void *b)
{
    const struct hd_ckpt_stored *x = a, *y = b;
    int order = strcmp(x->entry.name, y->entry.name);

    if (!order)
        order = x->shard < y->shard ? -1 : x->shard > y->shard;
    if (!order)
        order = x->offset_bytes < y->offset_bytes ? -1 : x->offset_bytes > y->offset_bytes;
    return order;
}

static bool is_same_tensor(const struct hd_ckpt_entry *a, const struct hd_ckpt_entry *b)
{
    return a->dtype == b->dtype && a->dim_count == b->dim_count &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

enum hd_status hd_ckpt_index(struct hd_arena *arena, struct hd_ckpt_stored *stored, size_t count,
                             struct hd_ckpt_tensor **ret_tensors, size_t *ret_tensor_count)
{
    struct hd_ckpt_tensor *tensors;
    size_t n = 0;

    qsort(stored, count, sizeof *stored, compare_stored);
    tensors = hd_arena_array(arena, count, sizeof *tensors);
    if (!tensors)
        return hd_err(HD_NO_MEMORY, "no memory for the list of tensors");
    for (size_t i = 0; i < count; i++) {
        const struct hd_ckpt_entry *entry = &stored[i].entry;

        if (n && strcmp(tensors[n - 1].whole.name, entry->name) == 0) {
            if (!is_same_tensor(&tensors[n - 1].whole, entry))
                return hd_err(HD_CORRUPT, "%s: its entries differ in dtype or shape", entry->name);
            tensors[n - 1].count++;
            continue;
        }
        tensors[n++] = (struct hd_ckpt_tensor){
            .whole = hd_ckpt_entry_whole(entry->name, entry->dtype, entry->dim_count, entry->shape),
            .first = i,
            .count = 1,
        };
    }
    *ret_tensors = tensors;
    *ret_tensor_count = n;
    return HD_OK;
}

/* ---- committing ---- */

static enum hd_status note_run(void *context, int64_t entry_index, int64_t want_index,
                               int64_t count)
{
    (void)entry_index;
    return hd_ckpt_cover_add(context, want_index, count);
}

static enum hd_status check_complete(const struct hd_ckpt_tensor *tensor,
                                     const struct hd_ckpt_stored *stored)
{
    struct hd_ckpt_cover cover = {0};
    enum hd_status st = HD_OK;
    bool overlaps;

    for (size_t i = 0; !st && i < tensor->count; i++)
        st = hd_ckpt_overlap(&stored[tensor->first + i].entry, &tensor->whole, note_run, &cover);
    if (!st)
        st = hd_ckpt_cover_check(&cover, &tensor->whole, &overlaps);
    hd_ckpt_cover_free(&cover);
    return st;
}

static int compare_shards(const void *a, const void *b)
{
    const struct hd_ckpt_shard *x = a, *y = b;

    return strcmp(x->file, y->file);
}

/* Sets *ret_shards to a copy of the manifest's shards, sorted by file name, so that the manifest
 * does not depend on the order of the ranks. HD_INVALID: there is no shard, or a shard's file name
 * is wrong or occurs twice. */
static enum hd_status sort_shards(struct hd_arena *arena, const struct hd_ckpt_manifest *manifest,
                                  struct hd_ckpt_shard **ret_shards)
{
    const size_t count = manifest->shard_count;
    struct hd_ckpt_shard *shards;

    if (count < 1 || count > HD_CKPT_SHARDS_MAX)
        return hd_err(HD_INVALID, "%zu shards; a checkpoint has 1 to %d", count,
                      HD_CKPT_SHARDS_MAX);
    for (size_t i = 0; i < count; i++)
        if (!hd_ckpt_is_shard_name(manifest->shards[i].file))
            return hd_err(HD_INVALID, "'%.*s' is not a name of a shard", HD_CKPT_FILE_MAX,
                          manifest->shards[i].file);
    shards = hd_arena_array(arena, count, sizeof *shards);
    if (!shards)
        return hd_err(HD_NO_MEMORY, "no memory for %zu shards", count);
    memcpy(shards, manifest->shards, count * sizeof *shards);
    qsort(shards, count, sizeof *shards, compare_shards);
    for (size_t i = 1; i < count; i++)
        if (compare_shards(&shards[i - 1], &shards[i]) == 0)
            return hd_err(HD_INVALID, "the shard %s is listed twice", shards[i].file);
    *ret_shards = shards;
    return HD_OK;
}

/* Reads the tables of all shards into one list of stored entries. The caller frees the list, also
 * on failure. */
static enum hd_status read_tables(struct hd_arena *arena, const char *dir,
                                  const struct hd_ckpt_shard *shards, size_t shard_count,
                                  struct hd_ckpt_stored **ret_stored, size_t *ret_count)
{
    struct hd_ckpt_stored *all = NULL;
    enum hd_status st = HD_OK;
    size_t total = 0;

    for (size_t s = 0; !st && s < shard_count; s++) {
        struct hd_ckpt_stored *some = NULL, *more;
        size_t n = 0;

        st = hd_ckpt_read_table(arena, dir, &shards[s], &some, &n);
        if (st)
            break;
        if (n > HD_CKPT_ENTRIES_MAX - total) {
            st = hd_err(HD_LIMIT, "more than %d entries in all shards", HD_CKPT_ENTRIES_MAX);
            break;
        }
        more = realloc(all, (total + n) * sizeof *all);
        if (!more) {
            st = hd_err(HD_NO_MEMORY, "no memory for %zu entries", total + n);
            break;
        }
        all = more;
        for (size_t i = 0; i < n; i++) {
            all[total] = some[i];
            all[total++].shard = (int32_t)s;
        }
    }
    *ret_stored = all;
    *ret_count = total;
    return st;
}

/* Reads the block hashes of each shard from its rank-*.hashes file. */
static enum hd_status read_hashes(struct hd_arena *arena, const char *dir,
                                  const struct hd_ckpt_shard *shards, size_t count,
                                  struct hd_ckpt_hash_list **ret_lists)
{
    struct hd_ckpt_hash_list *lists = hd_arena_array(arena, count, sizeof *lists);
    enum hd_status st = lists ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for %zu shards", count);

    for (size_t s = 0; !st && s < count; s++)
        st = hd_ckpt_read_hashes(arena, dir, &shards[s], &lists[s]);
    *ret_lists = lists;
    return st;
}

/* Removes the rank-*.hashes files. Called before the manifest is written, so that a complete
 * checkpoint has no other files. */
static enum hd_status remove_hashes(const char *dir, const struct hd_ckpt_shard *shards,
                                    size_t count)
{
    enum hd_status st = HD_OK;

    for (size_t s = 0; !st && s < count; s++)
        st = hd_ckpt_remove_hashes(dir, shards[s].file);
    return st;
}

enum hd_status hd_ckpt_refuse_complete(const char *dir)
{
    struct hd_text path = {0};
    enum hd_status st = hd_folder_path(&path, dir, HD_CKPT_MANIFEST_FILE);

    if (!st && hd_file_exists(path.data))
        st = hd_err(HD_EXISTS, "%s is a complete checkpoint already; it is never changed", dir);
    hd_text_free(&path);
    return st;
}

static enum hd_status publish(const char *dir, const struct hd_text *text)
{
    struct hd_text path = {0}, parent = {0};
    enum hd_status st = hd_folder_path(&path, dir, HD_CKPT_MANIFEST_FILE);

    if (!st)
        st = hd_folder_path(&parent, dir, "..");
    if (!st)
        st = hd_file_sync_dir(parent.data); /* another rank may have created `dir`, so its name is
                                               made durable here */
    if (!st) {
        st = hd_file_write_atomic(path.data, text->data, text->len_bytes, 0644);
        if (st) /* the name may exist without being durable: remove it, so that the directory is not
                   a checkpoint */
            (void)unlink(path.data);
    }
    hd_text_free(&path);
    hd_text_free(&parent);
    return st;
}

enum hd_status hd_ckpt_commit(const char *dir, const struct hd_ckpt_manifest *manifest,
                              uint64_t *ret_hash)
{
    struct hd_ckpt_manifest sorted = *manifest;
    struct hd_ckpt_tensor *tensors = NULL;
    struct hd_ckpt_stored *stored = NULL;
    struct hd_ckpt_shard *shards = NULL;
    struct hd_ckpt_hash_list *lists = NULL;
    size_t stored_count = 0, tensor_count = 0;
    struct hd_text text = {0};
    struct hd_arena arena;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_ckpt_refuse_complete(dir);
    if (!st)
        st = sort_shards(&arena, manifest, &shards);
    if (st)
        goto out;
    sorted.shards = shards;
    st = read_tables(&arena, dir, shards, sorted.shard_count, &stored, &stored_count);
    if (!st)
        st = hd_ckpt_index(&arena, stored, stored_count, &tensors, &tensor_count);
    for (size_t i = 0; !st && i < tensor_count; i++)
        st = check_complete(&tensors[i], stored);
    if (!st)
        st = read_hashes(&arena, dir, shards, sorted.shard_count, &lists);
    if (!st)
        st = hd_ckpt_write_manifest(&sorted, lists, stored, stored_count, &text);
    if (!st)
        st = remove_hashes(dir, shards, sorted.shard_count);
    if (!st)
        st = publish(dir, &text);
    if (!st && ret_hash)
        *ret_hash = hd_hash_bytes(text.data, text.len_bytes);
out:
    free(stored);
    hd_text_free(&text);
    hd_arena_done(&arena);
    return st;
}
