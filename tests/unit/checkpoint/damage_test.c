/* damage: whatever happens to the bytes of a checkpoint, it is found and named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "fixture.h"

static const char *const files[] = {"manifest.json", "rank-00000.safetensors",
                                    "rank-00001.safetensors"};
enum { FILES = 3 };

static void path_of(const struct fixture *f, const char *file, char ret_path[224])
{
    (void)snprintf(ret_path, 224, "%s/%s", f->dir, file);
}

static void assert_found(const struct fixture *f, const char *file, size_t at, const char *what)
{
    enum hd_status st = hd_ckpt_verify(f->dir);

    if (st == HD_OK)
        fail_msg("%s, byte %zu %s: not found", file, at, what);
    if (!strstr(hd_err_message(), file))
        fail_msg("%s, byte %zu %s: not named in '%s'", file, at, what, hd_err_message());
}

/* A message about shards has to say where: "bytes A to B" with the flipped byte in it and no more
 * than block_max others, and what lies there. */
static void assert_place_told(size_t at, const char *what, size_t block_max)
{
    const char *bytes = strstr(hd_err_message(), "bytes ");
    size_t first = 0, last = 0;

    if (!bytes || sscanf(bytes, "bytes %zu to %zu", &first, &last) != 2 || at < first ||
        at > last || last - first >= block_max || !strstr(hd_err_message(), what))
        fail_msg("byte %zu, of %s: not said in '%s'", at, what, hd_err_message());
}

/* Finds content where the fixture put it: the head, then in shard 0 two rows of w and b, in shard 1
 * two rows of w and n. Read from the file's first 8 bytes, not from lib/checkpoint. */
static const char *content_at(int shard, const struct hd_text *file, size_t at)
{
    const size_t data =
        8 + (unsigned char)file->data[0] + 256 * (size_t)(unsigned char)file->data[1];

    if (at < data)
        return "of its header";
    if (at < data + 2 * 6 * sizeof(float))
        return "tensor w,";
    return shard == 0 ? "tensor b," : "tensor n,";
}

/* Goal: no damaged byte passes, and one in a shard is told with its place. Method: each byte of
 * each file, one at a time: one bit of it, another one from byte to byte, then all of them. */
static void every_flipped_bit_is_found_and_its_place_named(void **state)
{
    struct fixture *f = *state;

    write_small_checkpoint(f->dir);
    for (int i = 0; i < FILES; i++) {
        struct hd_text whole = {0};
        char path[224];

        path_of(f, files[i], path);
        read_whole_file(path, &whole);
        for (size_t at = 0; at < whole.len_bytes; at++) {
            const char *content = i ? content_at(i - 1, &whole, at) : NULL;
            const int flips[] = {1 << at % 8, 0xFF};

            for (int k = 0; k < 2; k++) {
                whole.data[at] ^= (char)flips[k];
                write_whole_file(path, whole.data, whole.len_bytes);
                assert_found(f, files[i], at, "flipped");
                if (content)
                    assert_place_told(at, content, 64);
                whole.data[at] ^= (char)flips[k];
            }
        }
        write_whole_file(path, whole.data, whole.len_bytes);
        hd_text_free(&whole);
    }
    assert_small_checkpoint(f->dir);
}

enum { MIB = 1 << 20 };

/* a: 2 MiB and a half; c: 100 bytes behind it */
static size_t write_large_checkpoint(const struct fixture *f, struct hd_text *ret_file)
{
    const int64_t a_shape[] = {5, MIB / 2}, c_shape[] = {100};
    const struct hd_ckpt_entry entries[] = {hd_ckpt_entry_whole("a", HD_U8, 2, a_shape),
                                            hd_ckpt_entry_whole("c", HD_U8, 1, c_shape)};
    struct hd_ckpt_shard shard = write_shard(f->dir, 0, entries, 2);
    const struct hd_ckpt_manifest manifest = make_manifest(&shard, 1);
    char path[224];

    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_OK);
    path_of(f, "rank-00000.safetensors", path);
    assert_int_equal(hd_file_read(path, 8 * MIB, ret_file), HD_OK);
    return ret_file->len_bytes - 5 * MIB / 2 - 100;
}

static void flip_and_verify(const struct fixture *f, struct hd_text *file, const size_t *at,
                            size_t count)
{
    char path[224];

    path_of(f, "rank-00000.safetensors", path);
    for (size_t i = 0; i < count; i++)
        file->data[at[i]] ^= 1;
    write_whole_file(path, file->data, file->len_bytes);
    assert_int_equal(hd_ckpt_verify(f->dir), HD_CORRUPT);
    for (size_t i = 0; i < count; i++)
        file->data[at[i]] ^= 1;
}

/* Goal: the range is one MiB of the tensor at most, also at its bounds. */
static void damage_in_a_large_tensor_is_told_to_the_mib(void **state)
{
    struct fixture *f = *state;
    struct hd_text file = {0};
    const size_t data = write_large_checkpoint(f, &file);
    const size_t at[] = {0, MIB - 1, MIB, 2 * MIB - 1, 2 * MIB, 5 * MIB / 2 - 1};
    char expected[64];

    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        const size_t first = at[i] / MIB * MIB;
        const size_t last = first + MIB < 5 * MIB / 2 ? first + MIB - 1 : 5 * MIB / 2 - 1;
        const size_t place = data + at[i];

        flip_and_verify(f, &file, &place, 1);
        assert_place_told(place, "tensor a,", MIB);
        (void)snprintf(expected, sizeof expected, "bytes %zu to %zu of its %d here", first, last,
                       5 * MIB / 2);
        if (!strstr(hd_err_message(), expected))
            fail_msg("'%s' is not in '%s'", expected, hd_err_message());
    }
    hd_text_free(&file);
}

/* Goal: neighbouring blocks are one range, others are counted. */
static void several_damaged_blocks_are_told_together(void **state)
{
    struct fixture *f = *state;
    struct hd_text file = {0};
    const size_t data = write_large_checkpoint(f, &file);
    const size_t at[] = {data + 5, data + MIB + 5, data + 5 * MIB / 2 + 99};

    flip_and_verify(f, &file, at, 3);
    assert_non_null(strstr(hd_err_message(), "tensor a, bytes 0 to 2097151 of its 2621440 here; 1 "
                                             "more blocks are damaged"));
    hd_text_free(&file);
}

static void every_cut_and_every_added_byte_is_found(void **state)
{
    struct fixture *f = *state;

    write_small_checkpoint(f->dir);
    for (int i = 0; i < FILES; i++) {
        struct hd_text whole = {0};
        char path[224];

        path_of(f, files[i], path);
        read_whole_file(path, &whole);
        for (size_t n = 0; n < whole.len_bytes; n++) {
            write_whole_file(path, whole.data, n);
            assert_found(f, files[i], n, "cut");
        }
        hd_text_add_bytes(&whole, "\n", 1);
        write_whole_file(path, whole.data, whole.len_bytes);
        assert_found(f, files[i], whole.len_bytes, "added");
        write_whole_file(path, whole.data, whole.len_bytes - 1);
        hd_text_free(&whole);
    }
    assert_small_checkpoint(f->dir);
}

static void a_lost_or_swapped_shard_is_found(void **state)
{
    struct fixture *f = *state;
    struct hd_ckpt *ckpt = NULL;
    char one[224], two[224], aside[224];

    write_small_checkpoint(f->dir);
    path_of(f, files[1], one);
    path_of(f, files[2], two);
    path_of(f, "aside", aside);
    assert_int_equal(rename(one, aside), 0);
    assert_int_equal(hd_ckpt_open(f->dir, &ckpt), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), files[1]));
    assert_int_equal(rename(two, one), 0);
    assert_int_equal(rename(aside, two), 0);
    assert_int_equal(hd_ckpt_verify(f->dir), HD_CORRUPT);
}

/* It is seen when the checkpoint is opened, before anything is read: one byte less or more. */
static void a_shard_of_another_size_is_not_opened(void **state)
{
    struct fixture *f = *state;
    struct hd_ckpt *ckpt = NULL;
    struct hd_text file = {0};
    char path[224];

    write_small_checkpoint(f->dir);
    path_of(f, files[1], path);
    read_whole_file(path, &file);
    hd_text_add_bytes(&file, "x", 1);
    for (size_t size = file.len_bytes - 2; size <= file.len_bytes; size++) {
        enum hd_status st;

        write_whole_file(path, file.data, size);
        st = hd_ckpt_open(f->dir, &ckpt);
        assert_int_equal(st, size == file.len_bytes - 1 ? HD_OK : HD_CORRUPT);
        if (!st)
            hd_ckpt_close(ckpt);
        else
            assert_non_null(strstr(hd_err_message(), files[1]));
    }
    hd_text_free(&file);
}

/* ---- manifests that are wrong but whole: their last line has the right hash ---- */

static void replace(struct hd_text *text, const char *from, const char *to)
{
    struct hd_text out = {0};
    char *at = strstr(text->data, from);

    assert_non_null(at);
    hd_text_add_bytes(&out, text->data, (size_t)(at - text->data));
    hd_text_add(&out, "%s%s", to, at + strlen(from));
    hd_text_free(text);
    *text = out;
}

static void sign(struct hd_text *text)
{
    char *line = strstr(text->data, "\n\"self_xxh64\":\"");
    char hash[HD_HASH_TEXT_MAX];

    assert_non_null(line);
    hd_hash_format(hd_hash_bytes(text->data, (size_t)(line - text->data)), hash);
    memcpy(line + strlen("\n\"self_xxh64\":\""), hash, 16);
}

static void assert_refused(struct fixture *f, const char *from, const char *to,
                           enum hd_status status, const char *words)
{
    struct hd_text good = {0}, text = {0};
    struct hd_ckpt *ckpt = NULL;
    enum hd_status st;
    char path[224];

    path_of(f, "manifest.json", path);
    read_whole_file(path, &good);
    hd_text_add_bytes(&text, good.data, good.len_bytes);
    replace(&text, from, to);
    sign(&text);
    write_whole_file(path, text.data, text.len_bytes);
    st = hd_ckpt_open(f->dir, &ckpt);
    if (st != status || !strstr(hd_err_message(), words))
        fail_msg("%s -> %s: %s, '%s'", from, to, hd_status_name(st), hd_err_message());
    write_whole_file(path, good.data, good.len_bytes);
    hd_text_free(&text);
    hd_text_free(&good);
}

static void a_manifest_that_lies_is_refused(void **state)
{
    struct fixture *f = *state;

    write_small_checkpoint(f->dir);
    assert_refused(f, "\"version\":2", "\"version\":3", HD_UNSUPPORTED,
                   "format version 3, this build reads versions 1 to 2");
    assert_refused(f, "\"version\":2", "\"version\":0", HD_UNSUPPORTED, "format version 0");
    assert_refused(f, "\"blocks\":\"", "\"blocks\":\"0", HD_CORRUPT, "16 digits");
    assert_refused(f, "\"blocks\":\"", "\"blocks\":\"0123456789abcdef", HD_CORRUPT, "'blocks'");
    assert_refused(f, "\"blocks\":\"", "\"blocks\":\"0123456789abcdeX", HD_CORRUPT, "hexadecimal");
    assert_refused(f, "\"blocks\":\"", "\"pieces\":\"", HD_CORRUPT, "'blocks'");
    assert_refused(f, "heddle-checkpoint", "other", HD_CORRUPT, "format");
    assert_refused(f, "\"rank-00000.safetensors\"", "\"../../x.safetensors\"", HD_CORRUPT,
                   "is not a name of a shard");
    assert_refused(f, "\"rank-00000.safetensors\"", "\"rank-0000/.safetensors\"", HD_CORRUPT,
                   "is not a name of a shard");
    assert_refused(f, "\"rank-00000.safetensors\"", "\"rank-00009.safetensors\"", HD_CORRUPT,
                   "rank-00009.safetensors");
    assert_refused(f, "\"shard\":1", "\"shard\":2", HD_CORRUPT, "'shard'");
    assert_refused(f, "\"shard\":1", "\"shard\":-1", HD_CORRUPT, "'shard'");
    assert_refused(f, "\"step\":100", "\"step\":1.5", HD_CORRUPT, "'step'");
    assert_refused(f, "\"step\":100", "\"step\":\"100\"", HD_CORRUPT, "'step'");
    assert_refused(f, "\"step\":100", "\"step\":100,\"step\":100", HD_CORRUPT, "duplicate name");
    assert_refused(f, "\"w@0:2/4,0:6/6\"", "\"w@0:5/4,0:6/6\"", HD_CORRUPT, "box");
    assert_refused(f, "\"w@0:2/4,0:6/6\"", "\"w@0:2/4\"", HD_CORRUPT, "shape");
    assert_refused(f, "\"w@0:2/4,0:6/6\"", "\"w@2:0/4,0:6/6\"", HD_CORRUPT, "box");
    assert_refused(f, "\"w@0:2/4,0:6/6\"", "\"w@0:2/4,0:6/6+0:13\"", HD_CORRUPT, "elements");
    assert_refused(f, "\"w@0:2/4,0:6/6\"", "\"w@0:2/4,0:6/6+0:11\"", HD_CORRUPT, "bytes");
    assert_refused(f, "\"w@0:2/4,0:6/6\"", "\"w\"", HD_CORRUPT, "bytes");
    assert_refused(f, "\"shape\":[5]", "\"shape\":[9000000000000000000]", HD_CORRUPT, "outside");
    assert_refused(f, "\"shape\":[5]", "\"shape\":[1,1,1,1,5]", HD_CORRUPT, "dimensions");
    assert_refused(f, "\"offset_bytes\":", "\"offset_bytes\":9", HD_CORRUPT, "not inside");
    assert_refused(f, "\"dtype\":\"BF16\"", "\"dtype\":\"F32\"", HD_CORRUPT, "bytes");
    assert_refused(f, "\"dtype\":\"BF16\"", "\"dtype\":\"Q4\"", HD_CORRUPT, "dtype");
    assert_refused(f, "\"adam_step\":99", "\"adam_step\":null", HD_CORRUPT, "adam_step");
    assert_refused(f, "\"shards\":[", "\"shards\":[[[[", HD_CORRUPT, "manifest.json");
    assert_small_checkpoint(f->dir);
}

/* Goal: verify sees a manifest that points at other bytes than the shard's own table says. */
static void a_manifest_against_the_shards_table_is_found(void **state)
{
    struct fixture *f = *state;
    struct hd_text text = {0};
    char path[224];
    char *at;

    write_small_checkpoint(f->dir);
    path_of(f, "manifest.json", path);
    read_whole_file(path, &text);
    at = strstr(text.data, "\"label\":\"b\"");
    assert_non_null(at);
    memcpy(at, "\"label\":\"c\"", 11); /* a tensor of another name, otherwise sound */
    sign(&text);
    write_whole_file(path, text.data, text.len_bytes);
    assert_int_equal(hd_ckpt_verify(f->dir), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "differs from the manifest"));
    hd_text_free(&text);
}

/* Makes a checkpoint of the first version: no blocks, and the hash of the whole file. */
static void make_version_1(const struct fixture *f)
{
    struct hd_text text = {0}, shard = {0};
    char path[224], hash[HD_HASH_TEXT_MAX];

    path_of(f, "manifest.json", path);
    read_whole_file(path, &text);
    replace(&text, "\"version\":2", "\"version\":1");
    for (int i = 1; i < FILES; i++) {
        char *at = strstr(text.data, files[i]), *blocks = strstr(at, ",\n\"blocks\":\""), *end;

        path_of(f, files[i], path);
        hd_text_clear(&shard);
        read_whole_file(path, &shard);
        hd_hash_format(hd_hash_bytes(shard.data, shard.len_bytes), hash);
        memcpy(strstr(at, "\"xxh64\":\"") + strlen("\"xxh64\":\""), hash, 16);
        assert_non_null(blocks);
        end = strchr(blocks + strlen(",\n\"blocks\":\""), '"') + 1;
        memmove(blocks, end, strlen(end) + 1);
        text.len_bytes -= (size_t)(end - blocks);
    }
    sign(&text);
    path_of(f, "manifest.json", path);
    write_whole_file(path, text.data, text.len_bytes);
    hd_text_free(&shard);
    hd_text_free(&text);
}

static void a_checkpoint_of_version_1_is_read_and_verified(void **state)
{
    struct fixture *f = *state;
    struct hd_text whole = {0};
    char path[224];

    write_small_checkpoint(f->dir);
    make_version_1(f);
    assert_small_checkpoint(f->dir);
    path_of(f, files[1], path);
    read_whole_file(path, &whole);
    for (size_t at = 0; at < whole.len_bytes; at++) {
        whole.data[at] ^= 1;
        write_whole_file(path, whole.data, whole.len_bytes);
        assert_found(f, files[1], at, "flipped");
        whole.data[at] ^= 1;
    }
    hd_text_free(&whole);
}

/* Goal: a shard's hashes come from the rank that wrote it, or there is no checkpoint. */
static void hashes_that_are_not_the_ranks_own_are_refused(void **state)
{
    const int64_t shape[] = {4};
    struct fixture *f = *state;
    const struct hd_ckpt_entry entry = hd_ckpt_entry_whole("a", HD_F32, 1, shape);
    struct hd_ckpt_shard shard = write_shard(f->dir, 0, &entry, 1);
    const struct hd_ckpt_manifest manifest = make_manifest(&shard, 1);
    struct hd_text bytes = {0};
    char path[224];

    path_of(f, "rank-00000.hashes", path);
    read_whole_file(path, &bytes);
    bytes.data[3] ^= 1;
    write_whole_file(path, bytes.data, bytes.len_bytes);
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "rank-00000.hashes is damaged"));
    bytes.data[3] ^= 1;
    write_whole_file(path, bytes.data, bytes.len_bytes);
    assert_int_equal(hd_ckpt_commit(f->dir, &manifest, NULL), HD_OK);
    assert_false(hd_file_exists(path)); /* it is in the manifest */
    hd_text_free(&bytes);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
