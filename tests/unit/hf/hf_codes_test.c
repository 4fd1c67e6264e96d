/* Matrices that bitsandbytes has encoded, in the form in which transformers saves them: they are
 * taken as they are, or read as numbers, bit for bit; what is of another form is refused by name.
 */
#include "tests/job_text.h"
#include "tests/unit/checkpoint/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/hf_internal.h"

enum { N = 40, K = 96, COUNT = N * K, BLOCKS = COUNT / 64, STATE_MAX = 256 };

#define NAME "model.layers.0.self_attn.q_proj.weight"
#define STATE                                                                                     \
    "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [40, 96], " \
    "\"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": %.17g}"

/* A tensor of a folder. */
struct part {
    const char *name, *dtype;
    int64_t shape[2];
    int dims;
    const void *data;
    size_t bytes;
};

static void write_parts(const char *dir, const struct part *parts, int count)
{
    struct hd_text head = {0}, path = {0}, file = {0};
    struct hd_json_writer w = {.out = &head};
    uint64_t length;
    int64_t at = 0;

    hd_json_begin(&w, NULL, '{');
    for (int i = 0; i < count; i++) {
        hd_json_begin(&w, parts[i].name, '{');
        hd_json_add_string(&w, "dtype", parts[i].dtype);
        hd_json_begin(&w, "shape", '[');
        for (int d = 0; d < parts[i].dims; d++)
            hd_json_add_int64(&w, NULL, parts[i].shape[d]);
        hd_json_end(&w, ']');
        hd_json_begin(&w, "data_offsets", '[');
        hd_json_add_int64(&w, NULL, at);
        at += (int64_t)parts[i].bytes;
        hd_json_add_int64(&w, NULL, at);
        hd_json_end(&w, ']');
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, '}');
    length = head.len_bytes; /* little endian, as the machines that we build for */
    hd_text_add_bytes(&file, (const char *)&length, sizeof length);
    hd_text_add_bytes(&file, head.data, head.len_bytes);
    for (int i = 0; i < count; i++)
        hd_text_add_bytes(&file, parts[i].data, parts[i].bytes);
    must(hd_file_make_dirs(dir, 0755));
    hd_file_join(&path, dir, "model.safetensors");
    write_whole_file(path.data, file.data, file.len_bytes);
    hd_text_free(&head);
    hd_text_free(&path);
    hd_text_free(&file);
}

static enum hd_status read_values(void *context, int64_t first, int64_t count, float *ret_values)
{
    for (int64_t i = 0; i < count; i++)
        ret_values[i] = (float)((first + i) * 7919 % 1000 - 500) / 3000;
    return HD_OK;
}

/* A matrix in codes, and its tensors in a folder. */
struct coded_folder {
    struct hd_quant_box box;
    struct hd_quant_layout layout;
    char *record, *state; /* state: behind the record */
    struct part parts[8];
    int count;
};

static void add(struct coded_folder *f, const char *name, const char *dtype, int64_t rows,
                int64_t columns, const void *data, size_t bytes)
{
    f->parts[f->count++] =
        (struct part){name, dtype, {rows, columns}, columns ? 2 : rows ? 1 : 0, data, bytes};
}

static struct coded_folder make_folder(enum hd_quant quant)
{
    static const uint8_t zero;
    struct coded_folder f = {
        .box = {quant, .rows = N, .columns = K, .box_rows = N, .box_columns = K}};
    const float *second;

    f.layout = hd_quant_lay_out(&f.box);
    f.record = calloc(1, (size_t)f.layout.size_bytes + STATE_MAX);
    assert_non_null(f.record);
    f.state = f.record + f.layout.size_bytes;
    must(hd_quant_encode(&f.box, read_values, NULL, f.record));
    second = (const float *)(f.record + f.layout.second);
    if (quant == HD_QUANT_INT8) {
        add(&f, NAME, "I8", N, K, f.record, COUNT);
        add(&f, "model.layers.0.self_attn.q_proj.SCB", "F32", N, 0, f.record + f.layout.scales,
            4 * N);
        add(&f, NAME "_format", "U8", 0, 0, &zero, 1);
        return f;
    }
    (void)snprintf(f.state, STATE_MAX, STATE, (double)second[0]);
    add(&f, NAME, "U8", COUNT / 2, 1, f.record, COUNT / 2);
    add(&f, NAME ".absmax", "U8", BLOCKS, 0, f.record + f.layout.scales, BLOCKS);
    add(&f, NAME ".nested_absmax", "F32", 1, 0, second + HD_NF4_SECOND_SCALES, 4);
    add(&f, NAME ".nested_quant_map", "F32", HD_QUANT_MAP, 0, second + HD_NF4_SECOND_MAP,
        4 * HD_QUANT_MAP);
    add(&f, NAME ".quant_map", "F32", HD_NF4_VALUES, 0, hd_nf4_values(), 4 * HD_NF4_VALUES);
    add(&f, NAME ".quant_state.bitsandbytes__nf4", "U8", (int64_t)strlen(f.state), 0, f.state,
        strlen(f.state));
    return f;
}

static enum hd_status open_folder(const char *dir, const struct coded_folder *f,
                                  const struct hd_ckpt_entry *want, struct hd_weights **ret_weights,
                                  struct hd_hf_map **ret_map)
{
    const struct hd_job job = HD_JOB(.family = "llama", .layers = 1);
    enum hd_status st;

    write_parts(dir, f->parts, f->count);
    must(hd_weights_open(dir, ret_weights));
    st = hd_hf_map_open(*ret_weights, &job, want, 1, ret_map);
    if (st)
        hd_weights_close(*ret_weights);
    return st;
}

static struct hd_ckpt_entry wanted(void)
{
    return hd_ckpt_entry_whole("blocks.0.attention.q.weight", HD_F32, 2, (const int64_t[]){N, K});
}

static void a_folder_in_codes_is_taken_bit_for_bit(void **state)
{
    const struct fixture *fixture = *state;

    for (int q = HD_QUANT_NF4; q <= HD_QUANT_INT8; q++) {
        struct coded_folder f = make_folder((enum hd_quant)q);
        const struct hd_quant_factor factor = {.quant = (enum hd_quant)q,
                                               .count = 1,
                                               .columns = K,
                                               .matrix = {hd_quant_matrix_at(&f.box, 0)}};
        char *taken = calloc(1, (size_t)f.layout.size_bytes);
        struct hd_ckpt_entry want = wanted();
        struct hd_weights *weights;
        struct hd_hf_map *map;
        struct hd_quant_whole whole;
        float values[COUNT], read[COUNT];

        assert_non_null(taken);
        must(open_folder(fixture->dir, &f, &want, &weights, &map));
        assert_false(hd_hf_get_quantized(map, 0, 0, HD_QUANT_FP8, &whole));
        assert_true(hd_hf_get_quantized(map, 0, 0, (enum hd_quant)q, &whole));
        hd_quant_take(&f.box, &whole, taken);
        assert_memory_equal(taken, f.record, (size_t)f.layout.size_bytes);
        hd_quant_decode(&factor, f.record, 0, COUNT, values);
        must(hd_hf_read(map, 0, &want, read));
        assert_memory_equal(read, values, sizeof values);
        want.flat_first = 1001; /* a piece that begins within a block, at an odd code */
        want.flat_count = 333;
        must(hd_hf_read(map, 0, &want, read));
        assert_memory_equal(read, values + 1001, 333 * sizeof *values);
        hd_hf_map_close(map);
        hd_weights_close(weights);
        free(taken);
        free(f.record);
    }
}

static void refused(const char *dir, struct coded_folder *f, const char *message)
{
    const struct hd_ckpt_entry want = wanted();
    struct hd_weights *weights;
    struct hd_hf_map *map;

    assert_int_not_equal(open_folder(dir, f, &want, &weights, &map), HD_OK);
    if (!strstr(hd_err_message(), message))
        fail_msg("%s", hd_err_message());
    free(f->record);
}

static void another_form_is_refused_by_name(void **state)
{
    static const float other[HD_NF4_VALUES] = {-1};
    const char *dir = ((const struct fixture *)*state)->dir;
    struct coded_folder f = make_folder(HD_QUANT_NF4);

    f.parts[1] = f.parts[--f.count];
    refused(dir, &f, NAME " is codes, and " NAME ".absmax is missing");
    f = make_folder(HD_QUANT_NF4);
    f.parts[1].bytes = f.parts[1].shape[0] = BLOCKS - 1;
    refused(dir, &f, NAME ".absmax is not 60 numbers of u8");
    f = make_folder(HD_QUANT_NF4);
    f.parts[4].data = other;
    refused(dir, &f, NAME ".quant_map has other values than those of nf4");
    f = make_folder(HD_QUANT_NF4);
    memcpy(strstr(f.state, "[40"), "[41", 3);
    refused(dir, &f, "shape: is [41, 96], the model needs [40, 96]");
    f = make_folder(HD_QUANT_NF4);
    memcpy(strstr(f.state, "nested_bl"), "nestless_", 9);
    refused(dir, &f, "only double quantisation is supported");
    f = make_folder(HD_QUANT_NF4);
    memcpy(strstr(f.state, "64"), "32", 2);
    refused(dir, &f, "blocksize: 32 is not supported, only 64");
    f = make_folder(HD_QUANT_NF4);
    f.count = 1;
    refused(dir, &f, "is codes of no known kind");
    f = make_folder(HD_QUANT_INT8);
    f.parts[1] = f.parts[--f.count];
    refused(dir, &f, "self_attn.q_proj.SCB is missing");
    f = make_folder(HD_QUANT_INT8);
    f.parts[0].shape[1] = K / 2;
    f.parts[0].bytes = COUNT / 2;
    refused(dir, &f, NAME " does not have the shape [40, 96]");
    f = make_folder(HD_QUANT_INT8);
    f.parts[2].data = "\1"; /* a layout of GPUs */
    refused(dir, &f, NAME "_format is not 0");
}

#define LLAMA                                                                                 \
    "{\"model_type\":\"llama\",\"vocab_size\":8,\"hidden_size\":16,\"intermediate_size\":16," \
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"max_position_embeddings\":16,"       \
    "\"quantization_config\":{\"quant_method\":\"bitsandbytes\""

CASE_WITH(NULL, NULL)
static void config_says_what_is_in_codes(void **state)
{
    static const struct {
        const char *members, *word, *message;
    } cases[] = {{",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\",\"bnb_4bit_use_double_"
                  "quant\":true,"
                  "\"bnb_4bit_quant_storage\":\"uint8\",\"llm_int8_skip_modules\":[\"lm_head\"],"
                  "\"llm_int8_has_fp16_weight\":false}}",
                  "nf4", NULL},
                 {",\"_load_in_4bit\":false,\"_load_in_8bit\":true,\"load_in_8bit\":true,"
                  "\"bnb_4bit_quant_type\":\"fp4\",\"llm_int8_threshold\":6.0}}",
                  "int8", NULL},
                 {",\"load_in_4bit\":true,\"bnb_4bit_magic\":1}}", NULL,
                  "quantization_config: bnb_4bit_magic: this key is not known"},
                 {",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"fp4\"}}", NULL,
                  "bnb_4bit_quant_type: only nf4 is supported"},
                 {",\"load_in_4bit\":true,\"bnb_4bit_use_double_quant\":false}}", NULL,
                  "bnb_4bit_use_double_quant: only true is supported"},
                 {",\"load_in_8bit\":true,\"llm_int8_skip_modules\":[\"q_proj\"]}}", NULL,
                  "llm_int8_skip_modules: names modules of blocks"},
                 {"}}", NULL, "only weights of bitsandbytes are read"},
                 {",\"load_in_4bit\":true,\"load_in_8bit\":true}}", NULL,
                  "only weights of bitsandbytes are read"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hd_job *job = job_new();
        char text[1024];
        int length = snprintf(text, sizeof text, LLAMA "%s", cases[i].members);
        enum hd_status st;

        assert_non_null(job);
        hd_job_set_defaults(job);
        job->arena = job_arena();
        st = hd_hf_parse_config(text, (size_t)length, job, NULL);
        if (cases[i].word) {
            must(st);
            assert_string_equal(hd_job_model_weights_words[job->model_weights], cases[i].word);
        } else {
            assert_int_equal(st, HD_UNSUPPORTED);
            if (!strstr(hd_err_message(), cases[i].message))
                fail_msg("%s", hd_err_message());
        }
        free(job);
    }
}

/* Codes of fp8 are numbers times the scale of their block of 128 x 128; the last blocks are short.
 * Code 0x38 is 1, so every value is the sign of its code times its block's scale. */
static void blocks_of_fp8_are_read_with_their_scales(void **state)
{
    enum { ROWS = 130, COLUMNS = 200 };
    static const float scales[2][2] = {{1, 2}, {3, 5}};
    static uint8_t codes[ROWS][COLUMNS];
    const struct fixture *fixture = *state;
    struct coded_folder f = {.count = 0};
    struct hd_ckpt_entry want = hd_ckpt_entry_whole("blocks.0.attention.q.weight", HD_F32, 2,
                                                    (const int64_t[]){ROWS, COLUMNS});
    static float read[ROWS * COLUMNS];
    struct hd_weights *weights;
    struct hd_hf_map *map;
    struct hd_quant_whole whole;

    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < COLUMNS; k++)
            codes[r][k] = (r + k) % 3 ? 0x38 : 0xb8;
    add(&f, NAME, "F8_E4M3", ROWS, COLUMNS, codes, sizeof codes);
    add(&f, NAME "_scale_inv", "F32", 2, 2, scales, sizeof scales);
    must(open_folder(fixture->dir, &f, &want, &weights, &map));
    assert_false(hd_hf_get_quantized(map, 0, 0, HD_QUANT_FP8, &whole));
    must(hd_hf_read(map, 0, &want, read));
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < COLUMNS; k++)
            assert_true(read[r * COLUMNS + k] ==
                        scales[r / 128][k / 128] * ((r + k) % 3 ? 1.0f : -1.0f));
    hd_hf_map_close(map);
    hd_weights_close(weights);
    f.count = 1;
    assert_int_equal(open_folder(fixture->dir, &f, &want, &weights, &map), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "q_proj.weight_scale_inv is missing"));
}

RUN_EACH_CASE_WITH(set_up, tear_down)
