/* Experts in transformers' model directories: one tensor of ours is a tensor for each expert there,
 * or, fused, gate and up of all experts in one. Any box of ours is read from either, and what any
 * layout saved goes out and comes back to the bit. */
#include "tests/job_text.h"
#include "tests/unit/checkpoint/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/hf_internal.h"

enum { C = 4, F = 6, E = 4, V = 8, PARAMS = 12 };

static struct hd_ckpt_entry entry(const char *name, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[3] = {a, b, c};

    return hd_ckpt_entry_whole(name, HD_F32, c ? 3 : b ? 2 : 1, shape);
}

/* One block of a mixture of experts. */
static void list_params(struct hd_ckpt_entry ret_params[PARAMS])
{
    struct hd_ckpt_entry *p = ret_params;

    *p++ = entry("embedding.weight", V, C, 0);
    *p++ = entry("blocks.0.norm1.weight", C, 0, 0);
    *p++ = entry("blocks.0.attention.q.weight", C, C, 0);
    *p++ = entry("blocks.0.attention.k.weight", C, C, 0);
    *p++ = entry("blocks.0.attention.v.weight", C, C, 0);
    *p++ = entry("blocks.0.attention.out.weight", C, C, 0);
    *p++ = entry("blocks.0.norm2.weight", C, 0, 0);
    *p++ = entry("blocks.0.moe.router.weight", E, C, 0);
    *p++ = entry("blocks.0.moe.gate.weight", E, F, C);
    *p++ = entry("blocks.0.moe.up.weight", E, F, C);
    *p++ = entry("blocks.0.moe.down.weight", E, C, F);
    *p++ = entry("head.norm.weight", C, 0, 0); /* the head is the embedding */
    assert_int_equal(p - ret_params, PARAMS);
}

static struct hd_job *new_job(void)
{
    static const char config[] =
        "{\"model_type\":\"mixtral\",\"vocab_size\":8,\"hidden_size\":4,\"intermediate_size\":6,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":2,"
        "\"head_dim\":8,\"max_position_embeddings\":16,\"num_local_experts\":4,\"tie_word_"
        "embeddings\":true}";
    struct hd_job *job = job_new();

    assert_non_null(job);
    hd_job_set_defaults(job);
    job->arena = job_arena();
    must(hd_hf_parse_config(config, sizeof config - 1, job, NULL));
    return job;
}

/* ---- boxes ---- */

/* make_data's bits as finite numbers: no exponent is all ones. */
static unsigned char *make_finite(const struct hd_ckpt_entry *tensor)
{
    unsigned char *data = make_data(tensor);

    for (int64_t i = 3; i < hd_ckpt_entry_bytes(tensor); i += 4) /* little endian */
        data[i] &= 0xbf;
    return data;
}

/* A file of these tensors, data made of their own names. */
static void write_tensors(const char *dir, const struct hd_ckpt_entry *tensors, size_t count)
{
    struct hd_text head = {0}, path = {0}, file = {0};
    struct hd_json_writer w = {.out = &head};
    uint64_t length;
    int64_t at = 0;

    hd_json_begin(&w, NULL, '{');
    for (size_t i = 0; i < count; i++) {
        hd_json_begin(&w, tensors[i].name, '{');
        hd_json_add_string(&w, "dtype", "F32");
        hd_json_begin(&w, "shape", '[');
        for (int d = 0; d < tensors[i].dim_count; d++)
            hd_json_add_int64(&w, NULL, tensors[i].shape[d]);
        hd_json_end(&w, ']');
        hd_json_begin(&w, "data_offsets", '[');
        hd_json_add_int64(&w, NULL, at);
        at += hd_ckpt_entry_bytes(&tensors[i]);
        hd_json_add_int64(&w, NULL, at);
        hd_json_end(&w, ']');
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, '}');
    length = head.len_bytes; /* little endian, as the machines that we build for */
    hd_text_add_bytes(&file, (const char *)&length, sizeof length);
    hd_text_add_bytes(&file, head.data, head.len_bytes);
    for (size_t i = 0; i < count; i++) {
        unsigned char *data = make_finite(&tensors[i]);

        hd_text_add_bytes(&file, (const char *)data, (size_t)hd_ckpt_entry_bytes(&tensors[i]));
        free(data);
    }
    must(hd_file_make_dirs(dir, 0755));
    hd_file_join(&path, dir, "model.safetensors");
    write_whole_file(path.data, file.data, file.len_bytes);
    hd_text_free(&head);
    hd_text_free(&path);
    hd_text_free(&file);
}

/* One element of one tensor of theirs. */
static float element(const struct hd_ckpt_entry *tensor, int64_t index)
{
    struct hd_ckpt_entry one = *tensor;
    unsigned char *data;
    float value;

    one.flat_first = index;
    one.flat_count = 1;
    data = make_finite(&one);
    memcpy(&value, data, sizeof value);
    free(data);
    return value;
}

/* Returns the place of element [e, row, column] of a kind of matrix, by hand. */
enum what { GATE, UP, DOWN };
typedef float (*place_function)(enum what what, int64_t e, int64_t row, int64_t column);

static float in_own_tensors(enum what what, int64_t e, int64_t row, int64_t column)
{
    static const char *const names[] = {"w1", "w3", "w2"};
    const int64_t width = what == DOWN ? F : C;
    struct hd_ckpt_entry tensor;
    char name[96];

    (void)snprintf(name, sizeof name, "model.layers.0.block_sparse_moe.experts.%d.%s.weight",
                   (int)e, names[what]);
    tensor = entry(name, what == DOWN ? C : F, width, 0);
    return element(&tensor, row * width + column);
}

static float in_fused_tensors(enum what what, int64_t e, int64_t row, int64_t column)
{
    const struct hd_ckpt_entry pair =
        entry("model.layers.0.mlp.experts.gate_up_proj", E, 2 * (int64_t)F, C);
    const struct hd_ckpt_entry down = entry("model.layers.0.mlp.experts.down_proj", E, C, F);

    if (what == DOWN)
        return element(&down, (e * C + row) * F + column);
    return element(&pair, (e * 2 * F + (what == UP ? F : 0) + row) * C + column);
}

/* Every box of E, rows and columns that two ranks of ep and tp could have, and flat ranges of it.
 */
static void check_boxes(const struct hd_hf_map *map, size_t index,
                        const struct hd_ckpt_entry *whole, enum what what, place_function place)
{
    const int64_t *shape = whole->shape;

    for (int cut = 0; cut < 8; cut++)
        for (int64_t first = 0; first < 5; first += 4) {
            struct hd_ckpt_entry want = *whole;
            int64_t n;
            float *got;

            for (int d = 0; d < 3; d++)
                if (cut >> d & 1)
                    hd_ckpt_entry_cut(&want, d, shape[d] / 2, shape[d] / 2);
            n = hd_ckpt_box_elements(&want);
            want.flat_first = first;
            want.flat_count = n - first;
            got = malloc((size_t)n * sizeof *got);
            assert_non_null(got);
            must(hd_hf_read(map, index, &want, got));
            for (int64_t i = 0; i < n - first; i++) {
                const int64_t at = first + i, column = at % want.extent[2];
                const int64_t row = at / want.extent[2] % want.extent[1];
                const int64_t e = at / want.extent[2] / want.extent[1];
                const float is =
                    place(what, want.start[0] + e, want.start[1] + row, want.start[2] + column);

                assert_memory_equal(&got[i], &is, sizeof is);
            }
            free(got);
        }
}

static void read_boxes(const char *dir, place_function place)
{
    const struct hd_ckpt_entry wanted[] = {
        entry("blocks.0.moe.gate.weight", E, F, C), entry("blocks.0.moe.up.weight", E, F, C),
        entry("blocks.0.moe.down.weight", E, C, F), entry("blocks.0.moe.router.weight", E, C, 0)};
    struct hd_job *job = new_job();
    struct hd_weights *weights = NULL;
    struct hd_hf_map *map = NULL;

    must(hd_weights_open(dir, &weights));
    must(hd_hf_map_open(weights, job, wanted, 4, &map));
    for (int what = GATE; what <= DOWN; what++)
        check_boxes(map, (size_t)what, &wanted[what], (enum what)what, place);
    hd_hf_map_close(map);
    hd_weights_close(weights);
    free(job);
}

static void a_box_is_read_from_a_tensor_for_each_expert(void **state)
{
    const struct fixture *f = *state;
    struct hd_ckpt_entry tensors[3 * E + 1];
    char names[3 * E][96];
    size_t n = 0;

    for (int e = 0; e < E; e++)
        for (int w = 1; w <= 3; w++) {
            (void)snprintf(names[n], sizeof names[n],
                           "model.layers.0.block_sparse_moe.experts.%d.w%d.weight", e, w);
            tensors[n] = entry(names[n], w == 2 ? C : F, w == 2 ? F : C, 0);
            n++;
        }
    tensors[n++] = entry("model.layers.0.block_sparse_moe.gate.weight", E, C, 0);
    write_tensors(f->dir, tensors, n);
    read_boxes(f->dir, in_own_tensors);
}

static void a_box_is_read_from_fused_experts(void **state)
{
    const struct hd_ckpt_entry tensors[] = {
        entry("model.layers.0.mlp.gate.weight", E, C, 0),
        entry("model.layers.0.mlp.experts.gate_up_proj", E, 2 * (int64_t)F, C),
        entry("model.layers.0.mlp.experts.down_proj", E, C, F)};
    const struct fixture *f = *state;

    write_tensors(f->dir, tensors, 3);
    read_boxes(f->dir, in_fused_tensors);
}

static void an_expert_that_is_missing_or_too_many_is_named(void **state)
{
    struct hd_ckpt_entry wanted[] = {entry("blocks.0.moe.down.weight", 2, C, F)};
    const struct hd_ckpt_entry tensors[] = {
        entry("model.layers.0.block_sparse_moe.experts.0.w2.weight", C, F, 0),
        entry("model.layers.0.block_sparse_moe.experts.2.w2.weight", C, F, 0)};
    const struct fixture *f = *state;
    struct hd_job *job = new_job();
    struct hd_weights *weights = NULL;
    struct hd_hf_map *map = NULL;

    write_tensors(f->dir, tensors, 2);
    must(hd_weights_open(f->dir, &weights));
    assert_int_equal(hd_hf_map_open(weights, job, wanted, 1, &map), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "are missing: model.layers.0.block_sparse_moe."
                                             "experts.1.w2.weight"));
    hd_weights_close(weights);

    wanted[0] = entry("blocks.0.moe.down.weight", 1, C, F); /* expert 0 alone */
    must(hd_weights_open(f->dir, &weights));
    assert_int_equal(hd_hf_map_open(weights, job, wanted, 1, &map), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "are not part of the model of config.json: "
                                             "model.layers.0.block_sparse_moe.experts.2"));
    hd_weights_close(weights);
    free(job);
}

/* ---- out and back ---- */

#define word(member, text) (void)snprintf(member, sizeof(member), "%s", text)

static void write_job(double residual_scale, struct hd_text *ret_text)
{
    struct hd_job *job = new_job();

    job->steps = job->global_batch = job->threads = job->micro_batch = 1;
    job->pp = job->dp = job->cp = job->tp = job->ep = 1;
    job->lr_peak = job->adam_eps = 1e-3;
    job->residual_scale = residual_scale;
    job->name = "experts";
    job->tokenizer = "bytes";
    job->order = HD_JOB_ORDER_SHUFFLED;
    job->documents = HD_JOB_DOCUMENTS_JOINED;
    job->lr_decay = HD_JOB_LR_DECAY_COSINE;
    job->precision = HD_JOB_PRECISION_FP32;
    job->device = HD_JOB_DEVICE_CPU;
    job->cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    word(job->stages, "auto");
    job->base_manifest_hash = "-";
    job->attempt_dir = "/j/attempt-1";
    must(hd_job_write(job, ret_text));
    free(job);
}

/* Saves as four ranks of ep 2 x tp 2 do: rank 0 what has no experts, each its quarter of them. */
static void save_quarters(const char *dir, const char *config)
{
    struct hd_ckpt_entry params[PARAMS], mine[PARAMS];
    struct hd_ckpt_shard shards[4];
    struct hd_ckpt_manifest manifest;

    list_params(params);
    for (int rank = 0; rank < 4; rank++) {
        size_t n = 0;

        for (int i = 0; i < PARAMS; i++) {
            const struct hd_ckpt_entry *p = &params[i];
            const int along_f = strstr(p->name, "down") ? 2 : 1;

            if (p->dim_count < 3 && rank > 0)
                continue;
            mine[n] = *p;
            if (p->dim_count == 3) {
                hd_ckpt_entry_cut(&mine[n], 0, rank / 2 * (E / 2), E / 2);
                hd_ckpt_entry_cut(&mine[n], along_f, rank % 2 * (F / 2), F / 2);
            }
            n++;
        }
        shards[rank] = write_shard(dir, rank, mine, n);
    }
    manifest = make_manifest(shards, 4);
    manifest.config = config;
    must(hd_ckpt_commit(dir, &manifest, NULL));
}

/* Exports and reads back; the export is of this family and has so many tensors. */
static void go_out_and_come_back(const struct fixture *f, double residual_scale, const char *family,
                                 size_t tensors)
{
    struct hd_ckpt_entry params[PARAMS];
    struct hd_job *job = job_new();
    struct hd_text config = {0}, out = {0};
    struct hd_weights *weights = NULL;
    struct hd_hf_map *map = NULL;
    struct hd_hf_export options = {.checkpoint_dir = f->dir, .dtype = HD_F32};

    assert_non_null(job);
    write_job(residual_scale, &config);
    save_quarters(f->dir, config.data);
    hd_file_join(&out, f->job_dir, "model");
    options.out_dir = out.data;
    options.shard_bytes_max = 512; /* several files: an expert has 96 bytes three times */
    must(hd_hf_export_run(&options));

    must(hd_hf_verify(out.data));
    must(hd_hf_read_config(out.data, job, NULL));
    assert_int_equal(job->experts, E);
    assert_string_equal(job->family, family);
    must(hd_weights_open(out.data, &weights));
    assert_int_equal(hd_weights_count(weights), tensors);
    list_params(params);
    must(hd_hf_map_open(weights, job, params, PARAMS, &map));
    for (size_t i = 0; i < PARAMS; i++) {
        const size_t bytes = (size_t)hd_ckpt_entry_bytes(&params[i]);
        unsigned char *saved = make_data(&params[i]);
        float *got = malloc(bytes);

        assert_non_null(got);
        must(hd_hf_read(map, i, &params[i], got));
        assert_memory_equal(got, saved, bytes);
        free(got);
        free(saved);
    }
    hd_hf_map_close(map);
    hd_weights_close(weights);
    hd_text_free(&config);
    hd_text_free(&out);
    free(job);
}

static void what_a_layout_saved_goes_out_and_comes_back(void **state)
{
    /* nine of one tensor each, three of E */
    go_out_and_come_back(*state, 1, "mixtral", PARAMS - 3 + 3 * E);
}

/* Mixtral's config.json has no residual_multiplier; granitemoe's has, and two stacks of experts, which
 * hold three parameters. */
static void an_export_of_another_type_has_the_tensors_of_that_type(void **state)
{
    go_out_and_come_back(*state, 0.5, "granitemoe", PARAMS - 3 + 2);
}

/* Two experts: A [3, 4] below one another, of B [5, 3] the columns in turn; the other way round
 * their transposes, A in turn and B below one another. Last element of the second expert, by hand. */
static void factors_of_stacks_lie_as_peft_reshapes_them(void **state)
{
    static const struct {
        enum hd_hf_stack stack;
        bool turned;
        int64_t ours[3], shape[2], first, step;
    } cases[] = {{HD_HF_STACK_ROWS, false, {2, 3, 4}, {6, 4}, 5 * 4 + 3, 1},
                 {HD_HF_STACK_COLUMNS, false, {2, 5, 3}, {5, 6}, 4 * 6 + 5, 2},
                 {HD_HF_STACK_COLUMNS, true, {2, 3, 4}, {4, 6}, 3 * 6 + 5, 6},
                 {HD_HF_STACK_ROWS, true, {2, 5, 3}, {6, 5}, 5 * 5 + 4, 5}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t *ours = cases[i].ours;
        struct hd_hf_stack_place at;
        int64_t shape[2];

        hd_hf_stack_shape(cases[i].stack, cases[i].turned, ours, shape);
        assert_memory_equal(shape, cases[i].shape, sizeof shape);
        at = hd_hf_find_in_stack(cases[i].stack, cases[i].turned, 2, shape, 1, ours[1] - 1,
                                 ours[2] - 1);
        assert_int_equal(at.first, cases[i].first);
        assert_int_equal(at.step, cases[i].step);
    }
}

/* A name may begin with the block, or be its last part alone, which PEFT also matches. */
static void target_parameters_are_targets(void **state)
{
    static const char text[] =
        "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"target_parameters\":"
        "[\"model.layers.11.mlp.experts.gate_up_proj\",\"mlp.experts.gate_up_proj\",\"down_proj\"]"
        "}";
    struct hd_job *job = job_new();

    must(hd_hf_parse_adapter_config(text, sizeof text - 1, job));
    assert_string_equal(job->adapter_targets, "mlp.experts.gate_up_proj,experts.down_proj");
    free(job);
}

/* Each refusal names its key. A switch that is no boolean would be off, and the scale another one. */
static void a_setting_of_an_adapter_that_is_refused_is_named(void **state)
{
    static const char *const rows[][2] = {
        {"\"r\":0,\"lora_alpha\":8", "r: 0 is outside 1 to 1024"},
        {"\"r\":4,\"lora_alpha\":\"8\"", "lora_alpha: is not a number"},
        {"\"r\":4,\"lora_alpha\":8,\"use_rslora\":\"true\"", "use_rslora: must be true or false"},
        {"\"r\":4,\"lora_alpha\":8,\"use_dora\":1", "use_dora: must be true or false"},
        {"\"r\":4,\"lora_alpha\":8,\"bias\":\"all\"", "bias: must be \"none\""},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hd_job *job = job_new();
        struct hd_text text = {0};

        hd_text_add(&text, "{\"peft_type\":\"LORA\",%s}", rows[i][0]);
        assert_int_not_equal(hd_hf_parse_adapter_config(text.data, text.len_bytes, job), HD_OK);
        assert_string_equal(hd_err_message(), rows[i][1]);
        hd_text_free(&text);
        free(job);
    }
}

RUN_EACH_CASE_WITH(set_up, tear_down)
