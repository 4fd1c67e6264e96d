#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"

int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char job_dir[] = "/tmp/heddle-ckpt-XXXXXX";

    if (!f || !mkdtemp(job_dir))
        return -1;
    (void)snprintf(f->job_dir, sizeof f->job_dir, "%s", job_dir);
    (void)snprintf(f->attempt_dir, sizeof f->attempt_dir, "%s/attempt-1", job_dir);
    *state = f;
    return hd_ckpt_format_dir(f->attempt_dir, 100, f->dir, sizeof f->dir) ? -1 : 0;
}

int tear_down(void **state)
{
    struct fixture *f = *state;

    (void)hd_file_remove_tree(f->job_dir);
    free(f);
    return 0;
}

/* Written without lib/checkpoint's arithmetic: coordinates are counted up like an odometer. */
unsigned char *make_data(const struct hd_ckpt_entry *piece)
{
    const size_t item = hd_dtype_size(piece->dtype);
    const uint64_t key = hd_random_key(1, hd_random_hash(piece->name));
    unsigned char *data = malloc((size_t)hd_ckpt_entry_bytes(piece));
    int64_t at[HD_CKPT_DIMS_MAX] = {0};

    assert_non_null(data);
    for (int64_t i = 0; i < piece->flat_first + piece->flat_count; i++) {
        int64_t place = 0;
        uint64_t value;

        for (int d = 0; d < piece->dim_count; d++)
            place = place * piece->shape[d] + piece->start[d] + at[d];
        value = hd_random_u64(key, (uint64_t)place);
        if (i >= piece->flat_first)
            memcpy(data + (size_t)(i - piece->flat_first) * item, &value, item);
        for (int d = piece->dim_count - 1; d >= 0 && ++at[d] == piece->extent[d]; d--)
            at[d] = 0;
    }
    return data;
}

enum hd_status bytes_in_array(void *context, size_t entry, int64_t at, int64_t left_bytes,
                              const void **ret_bytes, int64_t *ret_size_bytes)
{
    const int64_t piece = left_bytes / 2 + 1; /* in several, of odd sizes */

    *ret_bytes = ((unsigned char **)context)[entry] + at;
    *ret_size_bytes = piece < left_bytes ? piece : left_bytes;
    return HD_OK;
}

struct hd_ckpt_shard write_shard(const char *dir, int rank, const struct hd_ckpt_entry *entries,
                                 size_t count)
{
    unsigned char **data = calloc(count, sizeof *data);
    struct hd_ckpt_shard shard = {0};

    assert_non_null(data);
    for (size_t i = 0; i < count; i++)
        data[i] = make_data(&entries[i]);
    assert_int_equal(hd_ckpt_write_shard(dir, rank, entries, count, bytes_in_array, data, &shard),
                     HD_OK);
    for (size_t i = 0; i < count; i++)
        free(data[i]);
    free(data);
    return shard;
}

struct hd_ckpt_manifest make_manifest(const struct hd_ckpt_shard *shards, size_t count)
{
    static const struct hd_ckpt_fact layout[] = {{"dp", "2"}, {"zero", "1"}};
    static const struct hd_ckpt_fact determinism[] = {{"backend", "cpu"}, {"threads", "1"}};
    static const struct hd_ckpt_counter counters[] = {{"sampler_step", 100}, {"adam_step", 99}};

    return (struct hd_ckpt_manifest){
        .job = "42",
        .attempt = 1,
        .step = 100,
        .tokens_seen = 6400,
        .config = "name \"tiny\"\nend\n",
        .layout = layout,
        .layout_count = 2,
        .determinism = determinism,
        .determinism_count = 2,
        .counters = counters,
        .counter_count = 2,
        .shards = shards,
        .shard_count = count,
    };
}

void assert_reads(struct hd_ckpt *ckpt, const struct hd_ckpt_entry *piece)
{
    const size_t size = (size_t)hd_ckpt_entry_bytes(piece);
    unsigned char *expected = make_data(piece), *data = malloc(size);

    assert_non_null(data);
    memset(data, 0xA5, size);
    if (hd_ckpt_read(ckpt, piece, data))
        fail_msg("%s", hd_err_message());
    assert_memory_equal(data, expected, size);
    free(expected);
    free(data);
}

static const int64_t w_shape[] = {4, 6}, b_shape[] = {5};

void write_small_checkpoint(const char *dir)
{
    struct hd_ckpt_entry first[2], second[2];
    struct hd_ckpt_shard shards[2];
    struct hd_ckpt_manifest manifest;

    first[0] = second[0] = hd_ckpt_entry_whole("w", HD_F32, 2, w_shape);
    hd_ckpt_entry_cut(&first[0], 0, 0, 2);
    hd_ckpt_entry_cut(&second[0], 0, 2, 2);
    first[1] = hd_ckpt_entry_whole("b", HD_BF16, 1, b_shape);
    second[1] = hd_ckpt_entry_whole("n", HD_U8, 0, NULL);
    shards[0] = write_shard(dir, 0, first, 2);
    shards[1] = write_shard(dir, 1, second, 2);
    manifest = make_manifest(shards, 2);
    assert_int_equal(hd_ckpt_commit(dir, &manifest, NULL), HD_OK);
}

void assert_small_checkpoint(const char *dir)
{
    const struct hd_ckpt_entry whole[] = {hd_ckpt_entry_whole("w", HD_F32, 2, w_shape),
                                          hd_ckpt_entry_whole("b", HD_BF16, 1, b_shape),
                                          hd_ckpt_entry_whole("n", HD_U8, 0, NULL)};
    struct hd_ckpt *ckpt = NULL;

    assert_int_equal(hd_ckpt_verify(dir), HD_OK);
    assert_int_equal(hd_ckpt_open(dir, &ckpt), HD_OK);
    for (int i = 0; i < 3; i++)
        assert_reads(ckpt, &whole[i]);
    hd_ckpt_close(ckpt);
}

void read_whole_file(const char *path, struct hd_text *ret_text)
{
    assert_int_equal(hd_file_read(path, 1 << 20, ret_text), HD_OK);
}

void write_whole_file(const char *path, const void *data, size_t size_bytes)
{
    FILE *file;

    (void)unlink(
        path); /* some file systems flush a file that is cut to nothing and written again */
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size_bytes, file), size_bytes);
    assert_int_equal(fclose(file), 0);
}
