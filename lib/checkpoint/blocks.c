/* blocks: hashes of the blocks of a file, which locate damage.
 *
 * A file is a sequence of regions: its head, then each tensor. Each region is split into blocks
 * from its own start; no block spans two regions. So a block with a wrong hash belongs to exactly
 * one tensor. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/checkpoint_internal.h"

static size_t region_blocks(const struct hd_ckpt_region *region)
{
    return (size_t)((region->size_bytes + region->block_bytes - 1) / region->block_bytes);
}

size_t hd_ckpt_count_blocks(const struct hd_ckpt_region *regions, size_t count)
{
    size_t blocks = 0;

    for (size_t i = 0; i < count; i++)
        blocks += region_blocks(&regions[i]);
    return blocks;
}

/* ---- while writing ---- */

enum hd_status hd_ckpt_blocks_begin(struct hd_ckpt_blocks *ret_blocks,
                                    const struct hd_ckpt_region *regions, size_t count)
{
    const size_t blocks = hd_ckpt_count_blocks(regions, count);
    struct hd_ckpt_blocks b = {.regions = malloc((count + 1) * sizeof *regions),
                               .region_count = count,
                               .hashes = malloc((blocks + 1) * sizeof *b.hashes)};

    for (size_t i = 0; i < count; i++)
        assert(regions[i].size_bytes > 0 && regions[i].block_bytes > 0);
    *ret_blocks = b;
    if (!b.regions || !b.hashes)
        return hd_err(HD_NO_MEMORY, "no memory for the hashes of %zu blocks", blocks);
    if (count)
        memcpy(b.regions, regions, count * sizeof *regions);
    hd_hash_begin(&ret_blocks->hash);
    return HD_OK;
}

void hd_ckpt_blocks_add(struct hd_ckpt_blocks *b, const void *data, size_t size_bytes)
{
    const unsigned char *bytes = data;

    while (size_bytes && b->region < b->region_count) {
        const struct hd_ckpt_region *region = &b->regions[b->region];
        const int64_t region_left = region->size_bytes - b->in_region;
        const int64_t block_left = region->block_bytes - b->in_region % region->block_bytes;
        const int64_t left = region_left < block_left ? region_left : block_left;
        const size_t n = size_bytes < (size_t)left ? size_bytes : (size_t)left;

        hd_hash_add(&b->hash, bytes, n);
        bytes += n;
        size_bytes -= n;
        b->in_region += (int64_t)n;
        if ((int64_t)n == left) { /* end of the block or of the region */
            b->hashes[b->count++] = hd_hash_value(&b->hash);
            hd_hash_begin(&b->hash);
        }
        if (b->in_region == region->size_bytes) {
            b->region++;
            b->in_region = 0;
        }
    }
}

void hd_ckpt_blocks_done(struct hd_ckpt_blocks *b)
{
    free(b->regions);
    free(b->hashes);
    *b = (struct hd_ckpt_blocks){.regions = NULL};
}

/* ---- as text ---- */

uint64_t hd_ckpt_hash_of_hashes(const uint64_t *hashes, size_t count)
{
    return hd_hash_bytes(hashes, count * sizeof *hashes); /* little-endian, as table.c asserts */
}

char *hd_ckpt_format_hashes(const uint64_t *hashes, size_t count)
{
    char *text = malloc(count * (HD_HASH_TEXT_MAX - 1) + 1);

    for (size_t i = 0; text && i < count; i++)
        hd_hash_format(hashes[i], text + i * (HD_HASH_TEXT_MAX - 1));
    if (text)
        text[count * (HD_HASH_TEXT_MAX - 1)] = '\0';
    return text;
}

enum hd_status hd_ckpt_parse_hashes(struct hd_arena *arena, const char *text,
                                    struct hd_ckpt_hash_list *ret_list)
{
    const size_t digits = HD_HASH_TEXT_MAX - 1, len = strlen(text);
    uint64_t *hashes = hd_arena_array(arena, len / digits + 1, sizeof *hashes);
    char one[HD_HASH_TEXT_MAX] = "";

    if (!hashes)
        return hd_err(HD_NO_MEMORY, "no memory for %zu hashes", len / digits);
    if (len % digits)
        return hd_err(HD_INVALID, "the hashes of blocks are not of %zu digits each", digits);
    for (size_t i = 0; i < len / digits; i++) {
        memcpy(one, text + i * digits, digits);
        if (!hd_hash_parse(one, &hashes[i]))
            return hd_err(HD_INVALID, "'%s' is not %zu hexadecimal digits", one, digits);
    }
    *ret_list = (struct hd_ckpt_hash_list){hashes, len / digits};
    return HD_OK;
}

/* ---- while verifying ---- */

struct damage {                          /* the first run of damaged blocks, within one region */
    const struct hd_ckpt_region *region; /* region with the damage; NULL: no damage found */
    int64_t region_at, first, end; /* offset in bytes of the region in the file; the damaged bytes
                                      are first to end - 1 of the region */
    size_t others;                 /* number of damaged blocks of the file outside of this run */
};

static void note_damage(struct damage *d, const struct hd_ckpt_region *region, int64_t region_at,
                        int64_t first, int64_t end)
{
    if (!d->region)
        *d = (struct damage){region, region_at, first, end, 0};
    else if (d->region == region && d->end == first)
        d->end = end;
    else
        d->others++;
}

static enum hd_status report_damage(const struct damage *d, const char *dir, const char *file)
{
    char others[64] = "";

    if (d->others)
        (void)snprintf(others, sizeof others, "; %zu more blocks are damaged", d->others);
    if (d->region->name && !d->region->name[0])
        return hd_err(HD_CORRUPT, "%s/%s is damaged in its bytes %" PRId64 " to %" PRId64 "%s", dir,
                      file, d->first, d->end - 1, others);
    if (d->region->name)
        return hd_err(HD_CORRUPT,
                      "%s/%s is damaged in its bytes %" PRId64 " to %" PRId64
                      ": tensor %s, bytes %" PRId64 " to %" PRId64 " of its %" PRId64 " here%s",
                      dir, file, d->region_at + d->first, d->region_at + d->end - 1,
                      d->region->name, d->first, d->end - 1, d->region->size_bytes, others);
    return hd_err(HD_CORRUPT,
                  "%s/%s is damaged in its bytes %" PRId64 " to %" PRId64 ", of the %" PRId64
                  " of its header%s",
                  dir, file, d->first, d->end - 1, d->region->size_bytes, others);
}

enum hd_status hd_ckpt_check_blocks(const char *dir, const char *file, int fd,
                                    const struct hd_ckpt_region *regions, size_t count,
                                    const uint64_t *hashes)
{
    unsigned char *buffer = malloc(HD_CKPT_BLOCK_BYTES);
    struct damage damage = {.region = NULL};
    enum hd_status st = HD_OK;
    int64_t region_at = 0;
    size_t block = 0;

    if (!buffer)
        return hd_err(HD_NO_MEMORY, "no memory to read %s", file);
    for (size_t i = 0; !st && i < count; i++) {
        const struct hd_ckpt_region *region = &regions[i];

        for (int64_t at = 0; !st && at < region->size_bytes;) {
            const int64_t left = region->size_bytes - at;
            const int64_t n = left < region->block_bytes ? left : region->block_bytes;

            st = hd_file_pread_all(fd, buffer, (size_t)n, region_at + at);
            if (st)
                (void)hd_err_prefix(st, "%s/%s", dir, file);
            else if (hd_hash_bytes(buffer, (size_t)n) != hashes[block++])
                note_damage(&damage, region, region_at, at, at + n);
            at += n;
        }
        region_at += region->size_bytes;
    }
    free(buffer);
    return !st && damage.region ? report_damage(&damage, dir, file) : st;
}

/* ---- rank-00000.hashes ---- */

/* Writes the path DIR/rank-00000.hashes for the shard rank-00000.safetensors. */
static enum hd_status name_hashes(const char *dir, const char *shard_file, struct hd_text *ret_path)
{
    const char *dot = strchr(shard_file, '.');

    hd_text_add(ret_path, "%s/%.*s.hashes", dir,
                dot ? (int)(dot - shard_file) : (int)strlen(shard_file), shard_file);
    return ret_path->failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

enum hd_status hd_ckpt_write_hashes(const char *dir, const char *shard_file,
                                    const struct hd_ckpt_blocks *blocks)
{
    struct hd_text path = {0};
    enum hd_status st = name_hashes(dir, shard_file, &path);

    if (!st)
        st = hd_file_write_atomic(path.data, blocks->hashes, blocks->count * sizeof *blocks->hashes,
                                  0644);
    hd_text_free(&path);
    return st;
}

enum hd_status hd_ckpt_read_hashes(struct hd_arena *arena, const char *dir,
                                   const struct hd_ckpt_shard *shard,
                                   struct hd_ckpt_hash_list *ret_list)
{
    struct hd_text path = {0}, bytes = {0};
    uint64_t *hashes = NULL;
    enum hd_status st = name_hashes(dir, shard->file, &path);

    if (!st)
        st = hd_file_read(path.data, HD_CKPT_MANIFEST_BYTES_MAX, &bytes);
    if (!st) {
        hashes = hd_arena_array(arena, bytes.len_bytes / sizeof *hashes + 1, sizeof *hashes);
        if (!hashes)
            st = hd_err(HD_NO_MEMORY, "no memory for the hashes of %s", shard->file);
    }
    if (!st && bytes.len_bytes)
        memcpy(hashes, bytes.data, bytes.len_bytes);
    if (!st &&
        (bytes.len_bytes % sizeof *hashes || hd_hash_bytes(hashes, bytes.len_bytes) != shard->hash))
        st = hd_err(HD_CORRUPT, "%s is damaged: its hash is not that of the shard", path.data);
    if (!st)
        *ret_list = (struct hd_ckpt_hash_list){hashes, bytes.len_bytes / sizeof *hashes};
    hd_text_free(&path);
    hd_text_free(&bytes);
    return st;
}

enum hd_status hd_ckpt_remove_hashes(const char *dir, const char *shard_file)
{
    struct hd_text path = {0};
    enum hd_status st = name_hashes(dir, shard_file, &path);

    if (!st && unlink(path.data) < 0 && errno != ENOENT)
        st =
            hd_err(hd_file_write_status(errno), "cannot remove %s: %s", path.data, strerror(errno));
    hd_text_free(&path);
    return st;
}
