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

/* Goal: no damaged byte passes. Method: each byte of each file, one at a time: one bit of it,
 * another one from byte to byte, then all of them. */
static void every_flipped_bit_is_found_and_its_file_named(void **state)
{
    struct fixture *f = *state;

    write_small_checkpoint(f->dir);
    for (int i = 0; i < FILES; i++) {
        struct hd_text whole = {0};
        char path[224];

        path_of(f, files[i], path);
        read_whole_file(path, &whole);
        for (size_t at = 0; at < whole.len_bytes; at++) {
            const int flips[] = {1 << at % 8, 0xFF};

            for (int k = 0; k < 2; k++) {
                whole.data[at] ^= (char)flips[k];
                write_whole_file(path, whole.data, whole.len_bytes);
                assert_found(f, files[i], at, "flipped");
                whole.data[at] ^= (char)flips[k];
            }
        }
        write_whole_file(path, whole.data, whole.len_bytes);
        hd_text_free(&whole);
    }
    assert_small_checkpoint(f->dir);
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
    assert_refused(f, "\"version\":1", "\"version\":2", HD_UNSUPPORTED,
                   "format version 2, this build reads version 1");
    assert_refused(f, "heddle-checkpoint", "other", HD_CORRUPT, "format");
    assert_refused(f, "\"rank-00000.safetensors\"", "\"../../x.safetensors\"", HD_CORRUPT,
                   "no name of a shard");
    assert_refused(f, "\"rank-00000.safetensors\"", "\"rank-0000/.safetensors\"", HD_CORRUPT,
                   "no name of a shard");
    assert_refused(f, "\"rank-00000.safetensors\"", "\"rank-00009.safetensors\"", HD_CORRUPT,
                   "rank-00009.safetensors");
    assert_refused(f, "\"shard\":1", "\"shard\":2", HD_CORRUPT, "'shard'");
    assert_refused(f, "\"shard\":1", "\"shard\":-1", HD_CORRUPT, "'shard'");
    assert_refused(f, "\"step\":100", "\"step\":1.5", HD_CORRUPT, "'step'");
    assert_refused(f, "\"step\":100", "\"step\":\"100\"", HD_CORRUPT, "'step'");
    assert_refused(f, "\"step\":100", "\"step\":100,\"step\":100", HD_CORRUPT, "twice");
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
    assert_non_null(strstr(hd_err_message(), "not what the manifest lists"));
    hd_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_folder(every_flipped_bit_is_found_and_its_file_named),
        with_folder(every_cut_and_every_added_byte_is_found),
        with_folder(a_lost_or_swapped_shard_is_found),
        with_folder(a_manifest_that_lies_is_refused),
        with_folder(a_manifest_against_the_shards_table_is_found),
    };
    return cmocka_run_group_tests_name("checkpoint_damage", tests, NULL, NULL);
}
