/* Goal: a model directory is read correctly, or a clear error: safetensors heads, the index of
 * several files. All from the hands of strangers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/hf.h"
#include "tests/program/test.h"

/* ---- heads ---- */

enum { FILE_MAX = 4096 };

/* A file with this JSON and `data_bytes` bytes of data behind it; returns its size. */
static size_t make_file(const char *json, size_t data_bytes, unsigned char *ret_bytes)
{
    const size_t n = strlen(json);

    assert_true(8 + n + data_bytes <= FILE_MAX);
    for (int i = 0; i < 8; i++)
        ret_bytes[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(ret_bytes + 8, json, n);
    for (size_t i = 0; i < data_bytes; i++)
        ret_bytes[8 + n + i] = (unsigned char)i;
    return 8 + n + data_bytes;
}

static void refused(const char *json, size_t data_bytes, const char *story)
{
    unsigned char bytes[FILE_MAX];
    const size_t size = make_file(json, data_bytes, bytes);
    struct hd_weight *weights = NULL;
    struct hd_arena arena;
    size_t count = 0;

    hd_arena_init(&arena, 0);
    assert_int_equal(hd_weights_parse(&arena, bytes, (int64_t)size, &weights, &count), HD_INVALID);
    if (!strstr(hd_err_message(), story))
        fail_msg("'%s' does not say '%s'", hd_err_message(), story);
    hd_arena_done(&arena);
}

static void a_head_in_any_order_is_read(void **state)
{
    unsigned char bytes[FILE_MAX];
    struct hd_weight *weights = NULL;
    struct hd_arena arena;
    size_t count = 0, size;

    /* b stands first in the text and second in the data; padding behind the JSON is blanks */
    size = make_file("{\"__metadata__\":{\"format\":\"pt\"},"
                     "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]},"
                     "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                     "\"c\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[22,23]}}   ",
                     23, bytes);
    hd_arena_init(&arena, 0);
    must(hd_weights_parse(&arena, bytes, (int64_t)size, &weights, &count));
    assert_int_equal(count, 3);
    assert_string_equal(weights[0].name, "a");
    assert_string_equal(weights[1].name, "b");
    assert_string_equal(weights[2].name, "c");
    assert_int_equal(weights[1].dtype, HD_BF16);
    assert_int_equal(weights[1].dim_count, 1);
    assert_int_equal(weights[1].shape[0], 3);
    assert_int_equal(*(const unsigned char *)weights[1].data, 16); /* data are 0, 1, 2, .. */
    assert_int_equal(weights[2].dtype, HD_DTYPE_COUNT); /* not one that is computed with */
    hd_arena_done(&arena);
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

/* torch saves parameters that were never filled: they have a place and no bytes. */
static void a_tensor_without_elements_is_read(void **state)
{
    static const char *const heads[] = {
        "{" T("a", "F32", "[2]", "0", "8") "," T("z", "F32", "[0,4]", "8",
                                                 "8") "," T("b", "F32", "[1]", "8", "12") "}",
        "{" T("z", "F32", "[4,0]", "0", "0") "," T("a", "F32", "[3]", "0", "12") "}",
        "{" T("a", "F32", "[3]", "0", "12") "," T("z", "BF16", "[0]", "12", "12") "}",
        "{" T("z", "F32", "[0,562949953421312,562949953421312]", "0", "0") "," T("a", "F32", "[3]",
                                                                                 "0", "12") "}",
    };
    unsigned char bytes[FILE_MAX];

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const size_t size = make_file(heads[i], 12, bytes);
        struct hd_weight *weights = NULL;
        struct hd_arena arena;
        size_t count = 0;

        hd_arena_init(&arena, 0);
        must(hd_weights_parse(&arena, bytes, (int64_t)size, &weights, &count));
        assert_int_equal(count, i ? 2 : 3);
        hd_arena_done(&arena);
    }
    refused("{" T("z", "F32", "[0,4]", "0", "4") "," T("a", "F32", "[2]", "4", "12") "}", 12,
            "take 4 bytes, its dtype and shape 0");
}

static void hostile_heads_are_refused(void **state)
{
    refused("{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "4", "12") "}", 12,
            "tensor b: its data overlap those of a");
    refused("{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "12", "20") "}", 20,
            "tensor b: 4 bytes before its data belong to no tensor");
    refused("{" T("a", "F32", "[2]", "0", "8") "}", 12, "4 bytes at its end belong to no tensor");
    refused("{" T("a", "F32", "[2]", "0", "8") "}", 4,
            "are outside the 4 bytes of data that the file has");
    refused("{" T("a", "F32", "[3]", "0", "8") "}", 8, "take 8 bytes, its dtype and shape 12");
    refused("{" T("a", "F32", "[2]", "8", "0") "}", 8, "are outside");
    refused("{" T("a", "F32", "[2]", "0", "8") "," T("a", "F32", "[2]", "0", "8") "}", 8, "a");
    refused("{" T("a", "F33", "[2]", "0", "8") "}", 8,
            "its dtype F33 is none that this program knows");
    refused("{" T("a", "F32", "[-2]", "0", "8") "}", 8, "tensor a");
    refused("{" T("a", "F32", "[1,1,1,1,1,2]", "0", "8") "}", 8, "6 dimensions");
    /* 2^49 * 2^49 overflows 64 bits to 0 */
    refused("{" T("a", "F32", "[562949953421312,562949953421312]", "0", "0") "}", 0,
            "too many elements");
    refused("{" T("a b", "F32", "[2]", "0", "8") "}", 8, "has no name");
    refused("{" T("", "F32", "[2]", "0", "8") "}", 8, "has no name");
    refused("[]", 0, "not an object");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets");
}

static void a_length_beyond_the_file_is_refused(void **state)
{
    unsigned char bytes[FILE_MAX];
    const size_t size = make_file("{" T("a", "F32", "[2]", "0", "8") "}", 8, bytes);
    struct hd_weight *weights = NULL;
    struct hd_arena arena;
    size_t count = 0;

    hd_arena_init(&arena, 0);
    for (int64_t cut = 0; cut < (int64_t)size; cut++) /* cut short anywhere */
        assert_int_equal(hd_weights_parse(&arena, bytes, cut, &weights, &count), HD_INVALID);
    bytes[7] = 0x80; /* 2^63 */
    assert_int_equal(hd_weights_parse(&arena, bytes, (int64_t)size, &weights, &count), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "its head cannot have"));
    assert_non_null(strstr(hd_err_message(), "it was cut off, or is no safetensors file"));
    hd_arena_done(&arena);
}

/* ---- several files ---- */

struct folder {
    char path[64];
};

static void folder_setup(struct folder *f)
{
    (void)snprintf(f->path, sizeof f->path, "%s/weights-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(f->path));
}

static void put(const struct folder *f, const char *name, const void *bytes, size_t size)
{
    char path[160];

    (void)snprintf(path, sizeof path, "%s/%s", f->path, name);
    must(hd_file_write_atomic(path, bytes, size, 0644));
}

static void put_weights(const struct folder *f, const char *name, const char *json, size_t data)
{
    unsigned char bytes[FILE_MAX];

    put(f, name, bytes, make_file(json, data, bytes));
}

static void index_case(const struct folder *f, const char *index, const char *story)
{
    struct hd_weights *w = NULL;
    enum hd_status st;

    put(f, "model.safetensors.index.json", index, strlen(index));
    st = hd_weights_open(f->path, &w);
    if (!story) {
        must(st);
        assert_int_equal(hd_weights_count(w), 2);
        assert_string_equal(hd_weights_find(w, "b")->file, "two.safetensors");
        assert_null(hd_weights_find(w, "c"));
        hd_weights_close(w);
        return;
    }
    assert_int_equal(st, HD_CORRUPT);
    if (!strstr(hd_err_message(), story))
        fail_msg("'%s' does not say '%s'", hd_err_message(), story);
}

/* A fetch without Git LFS leaves a pointer, one that broke off an index of absent files. */
static void files_that_were_not_fetched_are_told(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
                      index[] = "{\"weight_map\": {\"a\": \"one.safetensors\"}}";
    struct hd_weights *w = NULL;
    struct folder f;

    folder_setup(&f);
    put(&f, "model.safetensors.index.json", index, sizeof index - 1);
    assert_int_equal(hd_weights_open(f.path, &w), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), "; model.safetensors.index.json names it: fetch it"));
    put(&f, "model.safetensors", pointer, sizeof pointer - 1);
    assert_int_equal(hd_weights_open(f.path, &w), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), "no safetensors file; it is a pointer of Git LFS"));
    must(hd_file_remove_tree(f.path));
}

static void an_index_and_its_files_say_the_same_or_are_refused(void **state)
{
    struct folder f;
    struct hd_weights *w = NULL;

    folder_setup(&f);
    assert_int_equal(hd_weights_open("/no/such/folder", &w), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), "there is no folder /no/such/folder"));
    assert_int_equal(hd_weights_open(f.path, &w), HD_NOT_FOUND);
    assert_non_null(strstr(hd_err_message(), "has neither model.safetensors nor"));
    put_weights(&f, "one.safetensors", "{" T("a", "F32", "[2]", "0", "8") "}", 8);
    put_weights(&f, "two.safetensors", "{" T("b", "F32", "[2]", "0", "8") "}", 8);
    put_weights(&f, "both.safetensors",
                "{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "4", "8") "}", 8);
    index_case(&f,
               "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"a\":\"one.safetensors\","
               "\"b\":\"two.safetensors\"}}",
               NULL);
    /* a tied head and constants are listed by versions that do not save them */
    index_case(&f,
               "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\","
               "\"lm_head.weight\":\"two.safetensors\"}}",
               NULL);
    index_case(&f,
               "{\"weight_map\":{\"model.layers.3.self_attn.rotary_emb.inv_freq\":"
               "\"one.safetensors\",\"a\":\"one.safetensors\",\"b\":\"two.safetensors\","
               "\"transformer.h.0.attn.masked_bias\":\"two.safetensors\"}}",
               NULL);
    index_case(&f,
               "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\","
               "\"model.norm.weight\":\"two.safetensors\"}}",
               "there is no tensor model.norm.weight in two.safetensors");
    index_case(&f, "{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}",
               "there is no tensor a in two.safetensors");
    index_case(&f, "{\"weight_map\":{\"a\":\"both.safetensors\"}}",
               "it names 1 tensors, the files have 2");
    index_case(&f, "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"both.safetensors\"}}",
               "tensor a is both in both.safetensors and in one.safetensors");
    index_case(&f, "{\"weight_map\":{\"a\":\"../one.safetensors\"}}",
               "does not name a .safetensors file of this folder");
    index_case(&f, "{\"weight_map\":{\"a\":7}}", "does not name a .safetensors file");
    index_case(&f, "{\"weight_map\":{}}", "names 0 files");
    index_case(&f, "{}", "weight_map");
    index_case(&f, "{", "byte");
    must(hd_file_remove_tree(f.path));
}

static void the_identity_follows_heads_sizes_and_names(void **state)
{
    struct folder f;
    uint64_t first = 0, again = 0, other = 0;

    folder_setup(&f);
    put_weights(&f, "model.safetensors", "{" T("a", "F32", "[2]", "0", "8") "}", 8);
    must(hd_source_identity(f.path, &first));
    must(hd_source_identity(f.path, &again));
    assert_true(first == again);
    put_weights(&f, "model.safetensors", "{" T("b", "F32", "[2]", "0", "8") "}", 8);
    must(hd_source_identity(f.path, &other));
    assert_true(first != other);
    must(hd_file_remove_tree(f.path));
}

/* ---- names: a matrix of gpt2 is turned, and a third of a joined one ---- */

static void parts_of_a_joined_and_turned_tensor_are_found(void **state)
{
    /* c_attn [in 2, out 3 * 2], row-major: element (i, o) = 6 i + o. Our k [2, 2] has
     * k(o, i) = c_attn(i, 2 + o). */
    static const float attn[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const float k[4] = {2, 8, 3, 9}; /* (0,0)=2 (0,1)=6+2 (1,0)=3 (1,1)=6+3 */
    const struct hd_ckpt_entry want =
        hd_ckpt_entry_whole("blocks.0.attention.k.weight", HD_F32, 2, (const int64_t[]){2, 2});
    struct hd_ckpt_entry piece = want;
    struct hd_job job = HD_JOB(.family = "gpt2");
    struct hd_weights *w = NULL;
    struct hd_hf_map *map = NULL;
    unsigned char bytes[FILE_MAX];
    struct folder f;
    float got[4];
    size_t size;

    folder_setup(&f);
    size = make_file("{" T("h.0.attn.c_attn.weight", "F32", "[2,6]", "0", "48") "}", 48, bytes);
    memcpy(bytes + size - 48, attn, 48);
    put(&f, "model.safetensors", bytes, size);
    must(hd_weights_open(f.path, &w));
    /* the prefix is "transformer." unless the embedding stands without it: here nothing does */
    assert_int_equal(hd_hf_map_open(w, &job, &want, 1, &map), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "transformer.h.0.attn.c_attn.weight"));
    hd_weights_close(w);

    size = make_file("{" T("transformer.h.0.attn.c_attn.weight", "F32", "[2,6]", "0", "48") "}", 48,
                     bytes);
    memcpy(bytes + size - 48, attn, 48);
    put(&f, "model.safetensors", bytes, size);
    must(hd_weights_open(f.path, &w));
    must(hd_hf_map_open(w, &job, &want, 1, &map));
    must(hd_hf_read(map, 0, &want, got));
    assert_memory_equal(got, k, sizeof k);
    hd_ckpt_entry_cut(&piece, 0, 1, 1); /* the share of the second of two tensor-parallel ranks */
    must(hd_hf_read(map, 0, &piece, got));
    assert_memory_equal(got, k + 2, 2 * sizeof *k);
    piece = want; /* a flat range, as ZeRO cuts */
    piece.flat_first = 1;
    piece.flat_count = 2;
    must(hd_hf_read(map, 0, &piece, got));
    assert_memory_equal(got, k + 1, 2 * sizeof *k);
    hd_hf_map_close(map);
    hd_weights_close(w);
    must(hd_file_remove_tree(f.path));
}

/* 1.5 = 1.1b: in each encoding sign 0, exponent as its bias, fraction .1b; -2 has fraction 0. */
static void every_encoding_is_read_as_fp32(void **state)
{
    static const struct {
        const char *dtype;
        int size;
        unsigned char bytes[16];                               /* 1.5, -2, little endian */
    } rows[] = {{"F32", 4, {0, 0, 0xC0, 0x3F, 0, 0, 0, 0xC0}}, /* 3FC00000 C0000000 */
                {"BF16", 2, {0xC0, 0x3F, 0, 0xC0}},            /* 3FC0 C000 */
                {"F16", 2, {0, 0x3E, 0, 0xC0}},                /* 3E00 C000 */
                {"F64", 8, {0, 0, 0, 0, 0, 0, 0xF8, 0x3F, 0, 0, 0, 0, 0, 0, 0, 0xC0}}};
    const struct hd_ckpt_entry want =
        hd_ckpt_entry_whole("head.norm.weight", HD_F32, 1, (const int64_t[]){2});
    struct hd_job job = HD_JOB(.family = "llama");
    struct folder f;

    folder_setup(&f);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_weights *w = NULL;
        struct hd_hf_map *map = NULL;
        unsigned char bytes[FILE_MAX];
        float got[2] = {0};
        char json[128];
        size_t size;

        (void)snprintf(json, sizeof json, "{" T("model.norm.weight", "%s", "[2]", "0", "%d") "} ",
                       rows[i].dtype, 2 * rows[i].size);
        size = make_file(json, (size_t)rows[i].size * 2, bytes);
        memcpy(bytes + size - (size_t)rows[i].size * 2, rows[i].bytes, (size_t)rows[i].size * 2);
        put(&f, "model.safetensors", bytes, size);
        must(hd_weights_open(f.path, &w));
        must(hd_hf_map_open(w, &job, &want, 1, &map));
        must(hd_hf_read(map, 0, &want, got));
        assert_true(got[0] == 1.5f && got[1] == -2.0f);
        hd_hf_map_close(map);
        hd_weights_close(w);
    }
    put_weights(&f, "model.safetensors", "{" T("model.norm.weight", "I32", "[2]", "0", "8") "}", 8);
    {
        struct hd_weights *w = NULL;
        struct hd_hf_map *map = NULL;

        must(hd_weights_open(f.path, &w));
        assert_int_equal(hd_hf_map_open(w, &job, &want, 1, &map), HD_UNSUPPORTED);
        hd_weights_close(w);
    }
    must(hd_file_remove_tree(f.path));
}

/* Constants that older versions saved, and a head that config.json says is the embedding, may be
 * there; anything else is named. */
static void only_known_extras_may_stay_unused(void **state)
{
    const struct hd_ckpt_entry want =
        hd_ckpt_entry_whole("embedding.weight", HD_F32, 1, (const int64_t[]){2});
    struct hd_job job = HD_JOB(.family = "llama", .tie_embeddings = true);
    struct hd_weights *w = NULL;
    struct hd_hf_map *map = NULL;
    struct folder f;

    folder_setup(&f);
    put_weights(&f, "model.safetensors",
                "{" T("model.embed_tokens.weight", "F32", "[2]", "0", "8") "," T(
                    "lm_head.weight", "F32", "[2]", "8",
                    "16") "," T("model.layers.7.self_attn.rotary_emb.inv_freq", "F32", "[1]", "16",
                                "20") "," T("model.layers.7.self_attn.rotary_emb.cos_"
                                            "cached",
                                            "F32", "[1,1,1]", "20",
                                            "24") "," T("model.rotary_emb.inv_freq", "F16", "[2]",
                                                        "24", "28") "," T("model.nothing", "F32",
                                                                          "[0,4]", "28", "28") "}",
                28);
    must(hd_weights_open(f.path, &w));
    must(hd_hf_map_open(w, &job, &want, 1, &map));
    hd_hf_map_close(map);
    job.tie_embeddings = false; /* then the head is a weight that the model would not get */
    assert_int_equal(hd_hf_map_open(w, &job, &want, 1, &map), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "1 tensors are not part of the model of config.json: "
                                             "lm_head.weight"));
    hd_weights_close(w);
    must(hd_file_remove_tree(f.path));
}

/* A layer after the last one predicts further tokens if it has eh_proj; else config.json has too few
 * layers, and the model would lose one. */
static void a_layer_after_the_last_is_one_that_predicts(void **state)
{
    static const char *const heads[] = {
        "{" T("model.embed_tokens.weight", "F32", "[2]", "0",
              "8") "," T("model.layers.2.input_layernorm.weight", "F32", "[2]", "8",
                         "16") "," T("model.layers.2.eh_proj.weight", "F32", "[2]", "16", "24") "}",
        "{" T("model.embed_tokens.weight", "F32", "[2]", "0",
              "8") "," T("model.layers.2.input_layernorm.weight", "F32", "[2]", "8",
                         "16") "," T("model.layers.3.eh_proj.weight", "F32", "[2]", "16", "24") "}",
    };
    const struct hd_ckpt_entry want =
        hd_ckpt_entry_whole("embedding.weight", HD_F32, 1, (const int64_t[]){2});
    const struct hd_job job = HD_JOB(.family = "deepseek_v3", .layers = 2, .tie_embeddings = true);
    struct folder f;

    folder_setup(&f);
    for (int i = 0; i < 2; i++) {
        struct hd_weights *w = NULL;
        struct hd_hf_map *map = NULL;

        put_weights(&f, "model.safetensors", heads[i], 24);
        must(hd_weights_open(f.path, &w));
        assert_int_equal(hd_hf_map_open(w, &job, &want, 1, &map), i ? HD_INVALID : HD_OK);
        if (i)
            assert_non_null(strstr(hd_err_message(), "model.layers.2.input_layernorm.weight"));
        hd_hf_map_close(map);
        hd_weights_close(w);
    }
    must(hd_file_remove_tree(f.path));
}

/* Goal: the layer for further tokens of Qwen3.5 is found where published folders have it: outside of
 * the text model's prefix, with its experts in stacks, or not, whatever the model's have.
 * Bytes are 0, 1, 2 ..: fp32 values of ours begin with the byte at which their tensor lies. */
static void a_layer_beside_a_wrapped_model_is_found(void **state)
{
    static const char *const heads[] = {
        "{" T("model.language_model.embed_tokens.weight", "F32", "[2]", "0",
              "8") "," T("mtp.fc.weight", "F32", "[2,4]", "8",
                         "40") "," T("mtp.norm.weight", "F32", "[2]", "40",
                                     "48") "," T("mtp.layers.0.mlp.experts.gate_up_proj", "F32",
                                                 "[2,2,2]", "48", "80") "}",
        "{" T("model.language_model.embed_tokens.weight", "F32", "[2]", "0", "8") "," T(
            "mtp.fc.weight", "F32", "[2,4]", "8",
            "40") "," T("mtp.norm.weight", "F32", "[2]", "40",
                        "48") "," T("mtp.layers.0.mlp.experts.0.up_proj.weight", "F32", "[1,2]",
                                    "48", "56") "," T("mtp.layers.0.mlp.experts.1.up_proj.weight",
                                                      "F32", "[1,2]", "56", "64") "}",
    };
    const struct hd_ckpt_entry want[] = {
        hd_ckpt_entry_whole("embedding.weight", HD_F32, 1, (const int64_t[]){2}),
        hd_ckpt_entry_whole("mtp.0.projection.weight", HD_F32, 2, (const int64_t[]){2, 4}),
        hd_ckpt_entry_whole("mtp.0.head_norm.weight", HD_F32, 1, (const int64_t[]){2}),
        hd_ckpt_entry_whole("mtp.0.moe.up.weight", HD_F32, 3, (const int64_t[]){2, 1, 2}),
    };
    /* up of an expert is the second row of a stack's two, or a tensor of its own */
    static const unsigned char begins[2][4] = {{0, 8, 40, 56}, {0, 8, 40, 48}};
    const struct hd_job job = HD_JOB(.family = "qwen3_5_moe_text", .layers = 2, .experts = 2);
    struct folder f;

    folder_setup(&f);
    for (int i = 0; i < 2; i++) {
        struct hd_weights *w = NULL;
        struct hd_hf_map *map = NULL;

        put_weights(&f, "model.safetensors", heads[i], i ? 64 : 80);
        must(hd_weights_open(f.path, &w));
        assert_true(hd_hf_has_further(w, &job));
        must(hd_hf_map_open(w, &job, want, 4, &map));
        for (size_t k = 0; k < 4; k++) {
            float values[8];

            must(hd_hf_read(map, k, &want[k], values));
            assert_int_equal(*(const unsigned char *)values, begins[i][k]);
        }
        hd_hf_map_close(map);
        hd_weights_close(w);
    }
    must(hd_file_remove_tree(f.path));
}

RUN_CASES()
