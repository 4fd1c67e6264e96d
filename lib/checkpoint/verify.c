#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/checkpoint_internal.h"

static enum hd_status hash_file(const char *dir, const char *file, int64_t size_bytes,
                                uint64_t *ret_hash)
{
    unsigned char *buffer = malloc(HD_CKPT_WINDOW_BYTES);
    struct hd_hash hash;
    enum hd_status st;
    int fd = -1;

    if (!buffer)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", file);
    hd_hash_begin(&hash);
    st = hd_ckpt_open_file(dir, file, &fd, NULL);
    for (int64_t at = 0; !st && at < size_bytes;) {
        const int64_t left = size_bytes - at;
        const size_t n = (size_t)(left < HD_CKPT_WINDOW_BYTES ? left : HD_CKPT_WINDOW_BYTES);

        st = hd_file_pread_all(fd, buffer, n, at);
        if (st)
            (void)hd_err_prefix(st, "%s/%s", dir, file);
        else
            hd_hash_add(&hash, buffer, n);
        at += (int64_t)n;
    }
    if (fd >= 0)
        (void)close(fd);
    free(buffer);
    if (!st)
        *ret_hash = hd_hash_value(&hash);
    return st;
}

static int compare_places(const void *a, const void *b)
{
    const struct hd_ckpt_stored *x = a, *y = b;

    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->offset_bytes < y->offset_bytes ? -1 : x->offset_bytes > y->offset_bytes;
}

static bool is_same_entry(const struct hd_ckpt_entry *a, const struct hd_ckpt_entry *b)
{
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->dim_count == b->dim_count &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           memcmp(a->start, b->start, sizeof a->start) == 0 &&
           memcmp(a->extent, b->extent, sizeof a->extent) == 0 && a->flat_first == b->flat_first &&
           a->flat_count == b->flat_count;
}

/* Compares the table in the shard's file with `listed`, the entries that the manifest has for this
 * shard, sorted by offset. */
static enum hd_status check_table(const char *dir, const struct hd_ckpt_shard *shard,
                                  const struct hd_ckpt_stored *listed, size_t listed_count)
{
    struct hd_ckpt_stored *found = NULL;
    struct hd_arena arena;
    size_t count = 0;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    st = hd_ckpt_read_table(&arena, dir, shard, &found, &count);
    if (!st && count != listed_count)
        st = hd_err(HD_CORRUPT, "%s/%s has %zu entries, the manifest lists %zu", dir, shard->file,
                    count, listed_count);
    for (size_t i = 0; !st && i < count; i++)
        if (!is_same_entry(&found[i].entry, &listed[i].entry) ||
            found[i].offset_bytes != listed[i].offset_bytes)
            st = hd_err(HD_CORRUPT, "%s/%s: its entry %s differs from the manifest", dir,
                        shard->file, found[i].entry.name);
    hd_arena_done(&arena);
    return st;
}

static enum hd_status check_hash(const char *dir, const struct hd_ckpt_shard *shard)
{
    char is[HD_HASH_TEXT_MAX], expected[HD_HASH_TEXT_MAX];
    uint64_t hash = 0;
    enum hd_status st = hash_file(dir, shard->file, shard->size_bytes, &hash);

    if (st || hash == shard->hash)
        return st;
    hd_hash_format(hash, is);
    hd_hash_format(shard->hash, expected);
    return hd_err(HD_CORRUPT, "%s/%s is damaged: its bytes have the hash %s, expected %s", dir,
                  shard->file, is, expected);
}

/* Lists the regions of a shard: its head and the listed entries. HD_CORRUPT: they do not cover the
 * whole file, or there is not one hash per block. */
static enum hd_status list_regions(const char *dir, const struct hd_ckpt_shard *shard,
                                   const struct hd_ckpt_hash_list *list,
                                   const struct hd_ckpt_stored *listed, size_t listed_count,
                                   struct hd_ckpt_region *ret_regions)
{
    int64_t at = listed_count ? listed[0].offset_bytes : 0;

    ret_regions[0] = (struct hd_ckpt_region){NULL, at, HD_CKPT_HEAD_BLOCK_BYTES};
    for (size_t i = 0; i < listed_count; i++) {
        const int64_t bytes = hd_ckpt_entry_bytes(&listed[i].entry);

        if (listed[i].offset_bytes != at)
            break;
        ret_regions[i + 1] =
            (struct hd_ckpt_region){listed[i].entry.name, bytes, HD_CKPT_BLOCK_BYTES};
        at += bytes;
    }
    if (at != shard->size_bytes ||
        hd_ckpt_count_blocks(ret_regions, listed_count + 1) != list->count)
        return hd_err(HD_CORRUPT, "%s/%s: its size or its blocks differ from the manifest", dir,
                      shard->file);
    return HD_OK;
}

static enum hd_status check_blocks(const char *dir, const struct hd_ckpt_shard *shard,
                                   const struct hd_ckpt_hash_list *list,
                                   const struct hd_ckpt_stored *listed, size_t listed_count)
{
    struct hd_ckpt_region *regions = calloc(listed_count + 1, sizeof *regions);
    enum hd_status st = HD_OK;
    int fd = -1;

    if (!regions)
        return hd_err(HD_NO_MEMORY, "no memory for the entries of %s", shard->file);
    st = list_regions(dir, shard, list, listed, listed_count, regions);
    if (!st)
        st = hd_ckpt_open_file(dir, shard->file, &fd, NULL);
    if (!st)
        st = hd_ckpt_check_blocks(dir, shard->file, fd, regions, listed_count + 1, list->hashes);
    if (fd >= 0)
        (void)close(fd);
    free(regions);
    return st;
}

enum hd_status hd_ckpt_verify(const char *dir)
{
    const struct hd_ckpt_hash_list *lists;
    const struct hd_ckpt_manifest *manifest;
    struct hd_ckpt_stored *listed = NULL;
    struct hd_ckpt *ckpt = NULL;
    size_t count = 0, at = 0;
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (st)
        return st;
    manifest = hd_ckpt_get_manifest(ckpt);
    lists = hd_ckpt_hash_lists(ckpt);
    listed = malloc(hd_ckpt_stored_count(ckpt) * sizeof *listed);
    if (!listed) {
        st = hd_err(HD_NO_MEMORY, "no memory for the entries of %s", dir);
        goto out;
    }
    count = hd_ckpt_stored_count(ckpt);
    memcpy(listed, hd_ckpt_get_stored(ckpt), count * sizeof *listed);
    qsort(listed, count, sizeof *listed, compare_places);
    for (size_t s = 0; !st && s < manifest->shard_count; s++) {
        size_t first = at;

        while (at < count && listed[at].shard == (int32_t)s)
            at++;
        st = lists ? check_blocks(dir, &manifest->shards[s], &lists[s], listed + first, at - first)
                   : check_hash(dir, &manifest->shards[s]);
        if (!st)
            st = check_table(dir, &manifest->shards[s], listed + first, at - first);
    }
out:
    free(listed);
    hd_ckpt_close(ckpt);
    return st;
}
