/* writer: phase one of saving: writes the shard of one rank.
 *
 * Invariants (of this file and commit.c):
 *
 *  1. rank-*.safetensors and manifest.json always name whole files: bytes are written to
 *     NAME.part.PID and flushed, then the file is renamed. rank-*.hashes is written before its
 *     shard is renamed, and removed before the manifest is written.
 *  2. finish() and commit() return HD_OK only when the bytes, the name and the directory's own name
 *     are on disk.
 *  3. The manifest is written after every shard that it lists is durable, and only once: a
 *     directory with a manifest is never written to again.
 *  4. The manifest covers every element of every tensor that it names. It has the size of each
 *     shard, the hash of each block as computed by the writer, and its own hash.
 *  5. A failure at any time changes no other checkpoint; readers ignore the files that a failure
 *     leaves in this checkpoint's directory.
 *
 *     (absent) --writer_open--> NAME.part.PID --add..--> (all bytes) --finish--> NAME
 *                                     |                                  |
 *                                     +----- drop, or any failure -------+---> (absent)
 *
 *     all NAMEs --commit--> manifest.json.part.PID --(hd_file_write_atomic)--> manifest.json */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/order.h"
#include "checkpoint/checkpoint_internal.h"

enum { ENTRY_TEXT_BYTES = 512, REST_BYTES = 512 * 1024 };

struct hd_ckpt_writer {
    char *dir, *part, *path;
    int fd;
    enum hd_status failure; /* first failure of hd_ckpt_writer_add, which finish returns; HD_OK:
                               none */
    struct hd_error story;
    struct hd_ckpt_blocks blocks;
    struct hd_ckpt_shard shard;
    int64_t written_bytes;
};

/* ---- opening ---- */

/* Refuses entries with equal labels: they would be duplicate names in the table's JSON, which
 * readers refuse. */
static enum hd_status refuse_repeated_labels(const struct hd_ckpt_entry *entries, size_t count)
{
    struct hd_text all = {0};
    const char **labels = calloc(count, sizeof *labels);
    enum hd_status st = HD_OK;
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        hd_ckpt_add_label(&all, &entries[i]);
        hd_text_add_bytes(&all, "", 1);
    }
    if (!labels || all.failed) {
        st = hd_err(HD_NO_MEMORY, "no memory for the labels of %zu entries", count);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        labels[i] = all.data + at;
        at += strlen(labels[i]) + 1;
    }
    qsort(labels, count, sizeof *labels, hd_order_texts);
    for (size_t i = 1; !st && i < count; i++)
        if (strcmp(labels[i - 1], labels[i]) == 0)
            st = hd_err(HD_INVALID, "the entry %s is listed twice in one shard", labels[i]);
out:
    free(labels);
    hd_text_free(&all);
    return st;
}

static enum hd_status check_entries(const struct hd_ckpt_entry *entries, size_t count,
                                    int64_t *ret_data_bytes)
{
    int64_t bytes = 0;

    if (count < 1 || count > HD_CKPT_ENTRIES_MAX)
        return hd_err(HD_LIMIT, "%zu entries; a shard has 1 to %d", count, HD_CKPT_ENTRIES_MAX);
    for (size_t i = 0; i < count; i++) {
        enum hd_status st = hd_ckpt_check_entry(&entries[i]);

        if (st)
            return st;
        if (bytes % (int64_t)hd_dtype_size(entries[i].dtype))
            return hd_err(HD_INVALID,
                          "%s would not be aligned in its shard: order the entries by "
                          "hd_ckpt_sort_entries",
                          entries[i].name);
        if (hd_ckpt_entry_bytes(&entries[i]) > INT64_MAX / 4 - bytes)
            return hd_err(HD_LIMIT, "the entries are too large for one shard");
        bytes += hd_ckpt_entry_bytes(&entries[i]);
    }
    *ret_data_bytes = bytes;
    return refuse_repeated_labels(entries, count);
}

static char *path_in(const char *dir, const char *name)
{
    struct hd_text text = {0};

    hd_file_join(&text, dir, name);
    if (text.failed)
        hd_text_free(&text);
    return text.data;
}

static enum hd_status name_files(struct hd_ckpt_writer *writer, const char *dir, int rank)
{
    char part[HD_CKPT_FILE_MAX + 32];

    (void)snprintf(writer->shard.file, sizeof writer->shard.file, "rank-%05d.safetensors", rank);
    (void)snprintf(part, sizeof part, "%s.part.%d", writer->shard.file, (int)getpid());
    writer->dir = strdup(dir);
    writer->path = path_in(dir, writer->shard.file);
    writer->part = path_in(dir, part);
    if (!writer->dir || !writer->path || !writer->part)
        return hd_err(HD_NO_MEMORY, "no memory for the names of a shard");
    return HD_OK;
}

static enum hd_status create_part(struct hd_ckpt_writer *writer)
{
    writer->fd = open(writer->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (writer->fd < 0)
        return hd_err(hd_file_write_status(errno), "cannot create %s: %s", writer->part,
                      strerror(errno));
    return HD_OK;
}

static enum hd_status put(struct hd_ckpt_writer *writer, const void *data, size_t size_bytes)
{
    enum hd_status st = hd_file_write_all(writer->fd, data, size_bytes);

    if (st)
        return hd_err_prefix(st, "%s", writer->part);
    hd_ckpt_blocks_add(&writer->blocks, data, size_bytes);
    writer->written_bytes += (int64_t)size_bytes;
    return HD_OK;
}

/* Starts hashing the regions of the shard: its head, then each entry. */
static enum hd_status begin_blocks(struct hd_ckpt_writer *writer, size_t head_bytes,
                                   const struct hd_ckpt_entry *entries, size_t count)
{
    struct hd_ckpt_region *regions = calloc(count + 1, sizeof *regions);
    enum hd_status st;

    if (!regions)
        return hd_err(HD_NO_MEMORY, "no memory for a checkpoint writer");
    regions[0] = (struct hd_ckpt_region){NULL, (int64_t)head_bytes, HD_CKPT_HEAD_BLOCK_BYTES};
    for (size_t i = 0; i < count; i++)
        regions[i + 1] =
            (struct hd_ckpt_region){NULL, hd_ckpt_entry_bytes(&entries[i]), HD_CKPT_BLOCK_BYTES};
    st = hd_ckpt_blocks_begin(&writer->blocks, regions, count + 1);
    free(regions);
    return st;
}

/* Creates a checkpoint's directory. If the attempt's folder is gone (it is created before the ranks
 * start), says so: the rank's sandbox denies creating it, and "permission denied" would not name
 * the cause. */
static enum hd_status make_dir(const char *dir)
{
    enum hd_status st = hd_file_make_dirs(dir, HD_FILE_JOB_DIR_MODE);
    size_t n = strlen(dir);
    char attempt[PATH_MAX];

    for (int parts = 0; parts < 2; parts++) /* strips the last two parts of
                                               ATTEMPT/checkpoints/step-00000100 */
        while (n > 1 && dir[--n] != '/')
            ;
    (void)snprintf(attempt, sizeof attempt, "%.*s", (int)n, dir);
    if (!st || hd_file_exists(attempt))
        return st;
    return hd_err(st,
                  "the attempt's folder %s is gone: it was removed, or its file system is not "
                  "mounted; this attempt cannot write checkpoints any more; a new attempt "
                  "(heddle requeue) starts from the newest remaining one",
                  attempt);
}

enum hd_status hd_ckpt_writer_open(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                   size_t count, struct hd_ckpt_writer **ret_writer)
{
    struct hd_ckpt_writer *writer;
    struct hd_text head = {0};
    int64_t data_bytes = 0;
    enum hd_status st;

    if (rank < 0 || rank >= HD_CKPT_SHARDS_MAX)
        return hd_err(HD_LIMIT, "rank %d; at most %d shards are supported", rank,
                      HD_CKPT_SHARDS_MAX);
    st = check_entries(entries, count, &data_bytes);
    if (st)
        return st;
    writer = calloc(1, sizeof *writer);
    if (!writer)
        return hd_err(HD_NO_MEMORY, "no memory for a checkpoint writer");
    writer->fd = -1;

    st = name_files(writer, dir, rank);
    if (!st)
        st = hd_ckpt_refuse_complete(dir);
    if (!st)
        st = hd_ckpt_write_table(entries, count, &head);
    if (!st)
        st = begin_blocks(writer, head.len_bytes, entries, count);
    if (!st)
        st = make_dir(dir);
    if (!st)
        st = create_part(writer);
    if (!st)
        st = put(writer, head.data, head.len_bytes);
    writer->shard.size_bytes = (int64_t)head.len_bytes + data_bytes;
    hd_text_free(&head);
    if (st)
        hd_ckpt_writer_drop(writer);
    else
        *ret_writer = writer;
    return st;
}

int64_t hd_ckpt_bound_bytes(int64_t data_bytes, int64_t entry_count)
{
    const int64_t blocks = data_bytes / HD_CKPT_BLOCK_BYTES + entry_count;

    /* An entry is in the table of its shard and in the manifest; a hash is in two files, as 8 bytes
     * and as 16 digits; REST_BYTES is for the manifest's other texts and for partly used disk
     * blocks. */
    return data_bytes + entry_count * 2 * ENTRY_TEXT_BYTES + blocks * (8 + 16) + REST_BYTES;
}

/* ---- writing ---- */

enum hd_status hd_ckpt_writer_add(struct hd_ckpt_writer *writer, const void *data,
                                  size_t size_bytes)
{
    enum hd_status st;

    if (writer->failure)
        return hd_err_restore(&writer->story);
    if ((int64_t)size_bytes > writer->shard.size_bytes - writer->written_bytes)
        st = hd_err(HD_INVALID, "%s: more bytes than the declared entries have", writer->path);
    else
        st = put(writer, data, size_bytes);
    if (st) {
        writer->failure = st;
        hd_err_save(st, &writer->story);
    }
    return st;
}

static enum hd_status make_durable(struct hd_ckpt_writer *writer)
{
    int fd = writer->fd;
    enum hd_status st;

    if (fsync(fd) < 0)
        return hd_err(hd_file_write_status(errno), "cannot flush %s: %s", writer->part,
                      strerror(errno));
    writer->fd = -1;
    if (close(fd) < 0)
        return hd_err(hd_file_write_status(errno), "cannot close %s: %s", writer->part,
                      strerror(errno));
    st = hd_ckpt_write_hashes(writer->dir, writer->shard.file, &writer->blocks);
    if (st)
        return st;
    if (rename(writer->part, writer->path) < 0)
        return hd_err(hd_file_write_status(errno), "cannot rename %s to %s: %s", writer->part,
                      writer->path, strerror(errno));
    return hd_file_sync_dir(writer->dir); /* the new name is durable only when its directory is */
}

enum hd_status hd_ckpt_writer_finish(struct hd_ckpt_writer *writer, struct hd_ckpt_shard *ret_shard)
{
    enum hd_status st = writer->failure;

    if (st)
        st = hd_err_restore(&writer->story);
    else if (writer->written_bytes != writer->shard.size_bytes)
        st = hd_err(HD_INVALID, "%s: %" PRId64 " bytes of the declared entries were never added",
                    writer->path, writer->shard.size_bytes - writer->written_bytes);
    else
        st = make_durable(writer);
    if (!st) {
        writer->shard.hash = hd_ckpt_hash_of_hashes(writer->blocks.hashes, writer->blocks.count);
        *ret_shard = writer->shard;
    }
    hd_ckpt_writer_drop(writer);
    return st;
}

void hd_ckpt_writer_drop(struct hd_ckpt_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        (void)close(writer->fd);
    if (writer->part)
        (void)unlink(writer->part); /* after the rename there is nothing to unlink */
    hd_ckpt_blocks_done(&writer->blocks);
    free(writer->dir);
    free(writer->part);
    free(writer->path);
    free(writer);
}

static enum hd_status add_bytes_of_entry(struct hd_ckpt_writer *writer, size_t entry,
                                         int64_t size_bytes, hd_ckpt_bytes_fn *bytes_of,
                                         void *context)
{
    enum hd_status st = HD_OK;

    for (int64_t at = 0, piece = 0; !st && at < size_bytes; at += piece) {
        const void *bytes;

        st = bytes_of(context, entry, at, size_bytes - at, &bytes, &piece);
        if (!st)
            st = hd_ckpt_writer_add(writer, bytes, (size_t)piece);
    }
    return st;
}

enum hd_status hd_ckpt_write_shard(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                   size_t count, hd_ckpt_bytes_fn *bytes_of, void *context,
                                   struct hd_ckpt_shard *ret_shard)
{
    struct hd_ckpt_writer *writer = NULL;
    enum hd_status st = hd_ckpt_writer_open(dir, rank, entries, count, &writer);

    if (st)
        return st;
    for (size_t i = 0; !st && i < count; i++)
        st = add_bytes_of_entry(writer, i, hd_ckpt_entry_bytes(&entries[i]), bytes_of, context);
    if (st) {
        hd_ckpt_writer_drop(writer);
        return st;
    }
    return hd_ckpt_writer_finish(writer, ret_shard);
}
