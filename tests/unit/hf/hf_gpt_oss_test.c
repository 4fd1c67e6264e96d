/* GPT-OSS's stacks of experts: transposed matrices whose gates and up projections alternate, and the
 * codes of mxfp4. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/hf_internal.h"
#include "tests/program/test.h"

enum { FILE_MAX = 4096 };

struct folder {
    char path[64];
    struct hd_weights *weights;
    struct hd_hf_map *map;
};

#define EXPERTS "\"model.layers.0.mlp.experts."
#define TENSOR(name, dtype, shape, from, to)                                                      \
    EXPERTS name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to \
                 "]}"

/* Writes a safetensors file with this head and data, and opens it; returns the status of finding the
 * wanted tensors. */
static enum hd_status open_folder(struct folder *f, const char *head, const void *data, size_t size,
                                  const struct hd_ckpt_entry *want, size_t count)
{
    const struct hd_job job = HD_JOB(.family = "gpt_oss", .layers = 1);
    const size_t n = strlen(head);
    unsigned char bytes[FILE_MAX];
    char path[128];

    (void)snprintf(f->path, sizeof f->path, "%s/gpt-oss-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(f->path));
    assert_true(8 + n + size <= FILE_MAX);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(bytes + 8, head, n);
    memcpy(bytes + 8 + n, data, size);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f->path);
    must(hd_file_write_atomic(path, bytes, 8 + n + size, 0644));
    must(hd_weights_open(f->path, &f->weights));
    f->map = NULL;
    return hd_hf_map_open(f->weights, &job, want, count, &f->map);
}

static void close_folder(struct folder *f)
{
    hd_hf_map_close(f->map);
    hd_weights_close(f->weights);
    must(hd_file_remove_tree(f->path));
}

/* E = 2 experts, C = 2, F = 3; the value of every element is its index among all data: gate_up_proj
 * [e, c, j] is 12 e + 6 c + j, its bias [e, j] 24 + 6 e + j, down_proj [e, f, c] 36 + 6 e + 2 f + c.
 * The gate of channel f is column j = 2 f, its up projection 2 f + 1. */
static void alternating_columns_of_turned_stacks_are_found(void **state)
{
    static const char head[] = "{" TENSOR("gate_up_proj", "F32", "[2,2,6]", "0", "96") "," TENSOR(
        "gate_up_proj_bias", "F32", "[2,6]", "96", "144") "," TENSOR("down_proj", "F32", "[2,3,2]",
                                                                     "144", "192") "}";
    const struct hd_ckpt_entry want[] = {
        hd_ckpt_entry_whole("blocks.0.moe.gate.weight", HD_F32, 3, (const int64_t[]){2, 3, 2}),
        hd_ckpt_entry_whole("blocks.0.moe.up.weight", HD_F32, 3, (const int64_t[]){2, 3, 2}),
        hd_ckpt_entry_whole("blocks.0.moe.gate.bias", HD_F32, 2, (const int64_t[]){2, 3}),
        hd_ckpt_entry_whole("blocks.0.moe.up.bias", HD_F32, 2, (const int64_t[]){2, 3}),
        hd_ckpt_entry_whole("blocks.0.moe.down.weight", HD_F32, 3, (const int64_t[]){2, 2, 3})};
    struct hd_ckpt_entry piece = want[3];
    struct folder f;
    float data[48], got[5][12];

    for (int i = 0; i < 48; i++)
        data[i] = (float)i;
    must(open_folder(&f, head, data, sizeof data, want, 5));
    for (size_t i = 0; i < 5; i++)
        must(hd_hf_read(f.map, i, &want[i], got[i]));
    for (int e = 0; e < 2; e++)
        for (int k = 0; k < 3; k++) {
            assert_true(got[2][3 * e + k] == (float)(24 + 6 * e + 2 * k));
            assert_true(got[3][3 * e + k] == (float)(24 + 6 * e + 2 * k + 1));
            for (int c = 0; c < 2; c++) {
                assert_true(got[0][6 * e + 2 * k + c] == (float)(12 * e + 6 * c + 2 * k));
                assert_true(got[1][6 * e + 2 * k + c] == (float)(12 * e + 6 * c + 2 * k + 1));
                assert_true(got[4][6 * e + 3 * c + k] == (float)(36 + 6 * e + 2 * k + c));
            }
        }
    hd_ckpt_entry_cut(&piece, 1, 2, 1); /* the bias of the last channel alone, as tp cuts */
    must(hd_hf_read(f.map, 3, &piece, got[3]));
    assert_true(got[3][0] == 29 && got[3][1] == 35);
    close_folder(&f);
}

/* One expert, C = 32, F = 2: rows 0 and 2 of the codes are the gates, 1 and 3 the up projections. All
 * codes of row r are the byte 0x10 r + 0x9, but the first, 0x7f: its lower half comes first, code 15
 * is -6, code 7 is 6; the lower half 9 is -0.5, the upper halves 0 to 3 are 0, 0.5, 1 and 1.5. The
 * scale of row r is 2^(r - 1), stored as r + 126. */
static void codes_of_mxfp4_are_decoded(void **state)
{
    static const char head[] =
        "{" TENSOR("gate_up_proj_blocks", "U8", "[1,4,1,16]", "0",
                   "64") "," TENSOR("gate_up_proj_scales", "U8", "[1,4,1]", "64", "68") "}";
    static const float upper[] = {0, 0.5F, 1, 1.5F}, scale[] = {0.5F, 1, 2, 4};
    const struct hd_ckpt_entry want[] = {
        hd_ckpt_entry_whole("blocks.0.moe.gate.weight", HD_F32, 3, (const int64_t[]){1, 2, 32}),
        hd_ckpt_entry_whole("blocks.0.moe.up.weight", HD_F32, 3, (const int64_t[]){1, 2, 32})};
    unsigned char data[68];
    float got[64];
    struct folder f;

    for (int r = 0; r < 4; r++) {
        memset(data + 16 * r, 0x10 * r + 0x9, 16);
        data[16 * r] = 0x7f;
        data[64 + r] = (unsigned char)(r + 126);
    }
    must(open_folder(&f, head, data, sizeof data, want, 2));
    for (int part = 0; part < 2; part++) {
        must(hd_hf_read(f.map, (size_t)part, &want[part], got));
        for (int i = 0; i < 64; i++) {
            const int r = 2 * (i / 32) + part, c = i % 32;
            const float value = c == 0 ? -6 : c == 1 ? 6 : c % 2 ? upper[r] : -0.5F;

            assert_true(got[i] == value * scale[r]);
        }
    }
    close_folder(&f);
    data[65] = 255; /* not a number */
    assert_int_equal(open_folder(&f, head, data, sizeof data, want, 2), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "gate_up_proj_scales"));
    close_folder(&f);
}

RUN_CASES()
