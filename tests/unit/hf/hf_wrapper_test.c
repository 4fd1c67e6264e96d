/* Folders of models of text and images: the text model in them is read, and an export has the rest of
 * the folder unchanged. */
#include "tests/unit/checkpoint/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "hf/hf_internal.h"
#include "tests/job_text.h"

#define SMALL                                                                             \
    "\"vocab_size\":8,\"hidden_size\":4,\"intermediate_size\":6,\"num_hidden_layers\":1," \
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"head_dim\":8,\"max_position_"  \
    "embeddings\":16,\"sliding_window\":null"
#define VISION "\"vision_config\":{\"hidden_size\":3,\"odd\":[1,2]},\"image_token_index\":7"
/* one block whose head is not tied; the text model does not name its type, as some files */
#define MISTRAL3                                                                                \
    "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"model_type\":"                 \
    "\"mistral3\",\"dtype\":\"bfloat16\",\"tie_word_embeddings\":false,\"text_config\":{" SMALL \
    "}," VISION "}"

static enum hd_status parse(const char *text, struct hd_job *ret_job)
{
    hd_job_set_defaults(ret_job);
    ret_job->arena = job_arena();
    return hd_hf_parse_config(text, strlen(text), ret_job, NULL);
}

/* The published file of the 4B model has six keys; its class has 8 heads, 4 of keys and values, of
 * 256 channels, 262208 tokens and a context of 131072. The file's dtype rules how sqrt(2560) = 50.596
 * is rounded: the next bf16 numbers are 50.5 and 50.75. */
static void a_file_without_sizes_has_those_of_its_class(void **state)
{
    static const char file[] =
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"boi_token_index\":255999,"
        "\"eoi_token_index\":256000,\"eos_token_id\":[1,106],\"image_token_index\":262144,"
        "\"initializer_range\":0.02,\"mm_tokens_per_image\":256,\"model_type\":\"gemma3\","
        "\"text_config\":{\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":"
        "\"gemma3_text\",\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":"
        "\"linear\"},\"sliding_window\":1024},\"torch_dtype\":\"bfloat16\","
        "\"transformers_version\":\"4.50.0.dev0\",\"vision_config\":{\"hidden_size\":1152}}";
    struct hd_job *job = job_new();

    (void)state;
    assert_non_null(job);
    must(parse(file, job));
    assert_string_equal(job->family, "gemma3_text");
    assert_int_equal(job->layers, 34);
    assert_int_equal(job->heads, 8);
    assert_int_equal(job->kv_heads, 4);
    assert_int_equal(job->head_width, 256);
    assert_int_equal(job->vocab, 262208);
    assert_int_equal(job->context, 131072);
    assert_true(job->tie_embeddings);
    assert_int_equal(job->rope_scaling, HD_JOB_ROPE_SCALING_LINEAR);
    assert_true(job->embedding_scale == 50.5);
    free(job);
}

/* Right: the classes of transformers 5.24. */
static void an_absent_tie_is_that_of_the_wrapper(void **state)
{
    static const struct {
        const char *text;
        bool tied;
    } rows[] = {
        {"{\"model_type\":\"mistral3\",\"text_config\":{" SMALL "}}", true},
        {"{\"model_type\":\"qwen3_5\",\"text_config\":{" SMALL "}}", false},
        {"{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":true,\"text_config\":{" SMALL "}}",
         true},
    };
    struct hd_job *job = job_new();

    (void)state;
    assert_non_null(job);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        must(parse(rows[i].text, job));
        assert_int_equal(job->tie_embeddings, rows[i].tied);
    }
    free(job);
}

static void what_would_be_another_model_is_refused_by_name(void **state)
{
    static const char *const rows[][2] = {
        {"{\"model_type\":\"mistral3\",\"text_config\":{" SMALL "},\"odd_key\":1}", "odd_key"},
        {"{\"model_type\":\"mistral3\",\"text_config\":{" SMALL ",\"odd_key\":1}}",
         "text_config: key \"odd_key\""},
        {"{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"gemma2\"," SMALL "}}",
         "text_config: model_type"},
        {"{\"model_type\":\"mistral3\",\"architectures\":[\"Mistral3Model\"],\"text_config\":"
         "{" SMALL "}}",
         "architectures"},
        {"{\"model_type\":\"gemma3\"," SMALL "}", "text_config"},
    };
    struct hd_job *job = job_new();

    (void)state;
    assert_non_null(job);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_not_equal(parse(rows[i][0], job), HD_OK);
        if (!strstr(hd_err_message(), rows[i][1]))
            fail_msg("'%s' does not say '%s'", hd_err_message(), rows[i][1]);
    }
    free(job);
}

/* ---- exports ---- */

static struct hd_ckpt_entry entry(const char *name, int64_t a, int64_t b)
{
    const int64_t shape[2] = {a, b};

    return hd_ckpt_entry_whole(name, HD_F32, b ? 2 : 1, shape);
}

enum { TENSORS = 12, OTHERS = 2 };
static const struct {
    const char *ours, *published, *of_modules;
    int64_t rows, columns;
} tensors[TENSORS + OTHERS] = {
#define BLOCK(our, their, rows, columns)                                             \
    {                                                                                \
        "blocks.0." our ".weight", "language_model.model.layers.0." their ".weight", \
            "model.language_model.layers.0." their ".weight", rows, columns          \
    }
    {"embedding.weight", "language_model.model.embed_tokens.weight",
     "model.language_model.embed_tokens.weight", 8, 4},
    BLOCK("norm1", "input_layernorm", 4, 0),
    BLOCK("norm2", "post_attention_layernorm", 4, 0),
    BLOCK("attention.q", "self_attn.q_proj", 16, 4),
    BLOCK("attention.k", "self_attn.k_proj", 16, 4),
    BLOCK("attention.v", "self_attn.v_proj", 16, 4),
    BLOCK("attention.out", "self_attn.o_proj", 4, 16),
    BLOCK("mlp.gate", "mlp.gate_proj", 6, 4),
    BLOCK("mlp.up", "mlp.up_proj", 6, 4),
    BLOCK("mlp.down", "mlp.down_proj", 4, 6),
    {"head.norm.weight", "language_model.model.norm.weight", "model.language_model.norm.weight", 4,
     0},
    {"head.weight", "language_model.lm_head.weight", "lm_head.weight", 8, 4},
    {NULL, "vision_tower.layers.0.self_attn.q_proj.weight",
     "model.vision_tower.layers.0.self_attn.q_proj.weight", 3, 3},
    {NULL, "multi_modal_projector.linear_1.weight", "model.multi_modal_projector.linear_1.weight",
     4, 3},
};

/* Writes a folder of the model with its text model's tensors 1.0 and the others 2.0, in bf16. */
static void write_base(const char *dir, bool of_modules)
{
    struct hd_text head = {0}, file = {0}, path = {0};
    struct hd_json_writer w = {.out = &head};
    int64_t at = 0;
    uint64_t length;

    hd_json_begin(&w, NULL, '{');
    for (int i = 0; i < TENSORS + OTHERS; i++) {
        hd_json_begin(&w, of_modules ? tensors[i].of_modules : tensors[i].published, '{');
        hd_json_add_string(&w, "dtype", "BF16");
        hd_json_begin(&w, "shape", '[');
        hd_json_add_int64(&w, NULL, tensors[i].rows);
        if (tensors[i].columns)
            hd_json_add_int64(&w, NULL, tensors[i].columns);
        hd_json_end(&w, ']');
        hd_json_begin(&w, "data_offsets", '[');
        hd_json_add_int64(&w, NULL, at);
        at += 2 * tensors[i].rows * (tensors[i].columns ? tensors[i].columns : 1);
        hd_json_add_int64(&w, NULL, at);
        hd_json_end(&w, ']');
        hd_json_end(&w, '}');
    }
    hd_json_end(&w, '}');
    length = head.len_bytes; /* little endian, as the machines that we build for */
    hd_text_add_bytes(&file, (const char *)&length, sizeof length);
    hd_text_add_bytes(&file, head.data, head.len_bytes);
    for (int i = 0; i < TENSORS + OTHERS; i++)
        for (int64_t k = 0; k < tensors[i].rows * (tensors[i].columns ? tensors[i].columns : 1);
             k++) {
            const uint16_t value = hd_f32_to_bf16(tensors[i].ours ? 1 : 2);

            hd_text_add_bytes(&file, (const char *)&value, sizeof value);
        }
    must(hd_file_make_dirs(dir, 0755));
    hd_file_join(&path, dir, "model.safetensors");
    write_whole_file(path.data, file.data, file.len_bytes);
    hd_text_clear(&path);
    hd_file_join(&path, dir, "config.json");
    write_whole_file(path.data, MISTRAL3, strlen(MISTRAL3));
    hd_text_free(&path);
    hd_text_free(&head);
    hd_text_free(&file);
}

/* Commits a checkpoint of a run that began with the folder `base`. */
static void save_run(const char *dir, const char *base)
{
    struct hd_ckpt_entry entries[TENSORS];
    struct hd_job *job = job_new();
    struct hd_ckpt_shard shard;
    struct hd_ckpt_manifest manifest;
    struct hd_text config = {0};

    assert_non_null(job);
    must(parse(MISTRAL3, job));
    job->steps = job->global_batch = job->threads = job->micro_batch = 1;
    job->pp = job->dp = job->cp = job->tp = job->ep = 1;
    job->lr_peak = job->adam_eps = 1e-3;
    job->name = "wrapped";
    job->tokenizer = "none";
    job->device = HD_JOB_DEVICE_CPU;
    job->cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    job->order = HD_JOB_ORDER_SHUFFLED;
    job->documents = HD_JOB_DOCUMENTS_JOINED;
    job->lr_decay = HD_JOB_LR_DECAY_COSINE;
    job->precision = HD_JOB_PRECISION_FP32;
    (void)strcpy(job->stages, "auto");
    job->base_manifest_hash = "-";
    job->attempt_dir = "/j/attempt-1";
    job->from_dir = job_text("%s", base);
    job->init_from = job_text("%s", base);
    must(hd_job_write(job, &config));
    for (int i = 0; i < TENSORS; i++)
        entries[i] = entry(tensors[i].ours, tensors[i].rows, tensors[i].columns);
    shard = write_shard(dir, 0, entries, TENSORS);
    manifest = make_manifest(&shard, 1);
    manifest.config = config.data;
    must(hd_ckpt_commit(dir, &manifest, NULL));
    must(hd_hf_keep(dir, job, ""));
    hd_text_free(&config);
    free(job);
}

/* Checks the exported folder: names, shapes, the other tensors' bytes, and the rest of config.json. */
static void check_whole(const char *dir, bool of_modules)
{
    struct hd_weights *weights = NULL;
    struct hd_text path = {0}, config = {0};
    const uint16_t two = hd_f32_to_bf16(2);

    must(hd_hf_verify(dir));
    must(hd_weights_open(dir, &weights));
    assert_int_equal(hd_weights_count(weights), TENSORS + OTHERS);
    for (int i = 0; i < TENSORS + OTHERS; i++) {
        const struct hd_weight *w =
            hd_weights_find(weights, of_modules ? tensors[i].of_modules : tensors[i].published);

        assert_non_null(w);
        assert_int_equal(w->shape[0], tensors[i].rows);
        assert_string_equal(w->form, tensors[i].ours ? "F32" : "BF16");
        for (int64_t k = 0; !tensors[i].ours && k < w->size_bytes; k += 2)
            assert_memory_equal((const char *)w->data + k, &two, sizeof two);
    }
    hd_weights_close(weights);
    hd_file_join(&path, dir, "config.json");
    must(hd_file_read(path.data, HD_HF_CONFIG_BYTES_MAX, &config));
    assert_non_null(strstr(config.data, VISION));
    assert_non_null(strstr(config.data, "\"text_config\":{" SMALL "}"));
    assert_non_null(strstr(config.data, "\"torch_dtype\":\"float32\""));
    assert_null(strstr(config.data, "bfloat16"));
    hd_text_free(&path);
    hd_text_free(&config);
}

static void an_export_is_the_whole_folder_in_its_form_of_names(void **state)
{
    const struct fixture *f = *state;

    for (int of_modules = 0; of_modules < 2; of_modules++) {
        struct hd_hf_export options = {.dtype = HD_F32, .shard_bytes_max = 1 << 20};
        struct hd_text base = {0}, run = {0}, out = {0};

        hd_text_add(&base, "%s/base-%d", f->job_dir, of_modules);
        hd_text_add(&run, "%s/run-%d", f->job_dir, of_modules);
        hd_text_add(&out, "%s/out-%d", f->job_dir, of_modules);
        must(hd_file_make_dirs(run.data, 0755));
        write_base(base.data, of_modules);
        save_run(run.data, base.data);
        assert_true(hd_hf_is_wrapped(run.data));
        options.checkpoint_dir = run.data;
        options.out_dir = out.data;
        must(hd_hf_export_run(&options));
        check_whole(out.data, of_modules);
        hd_text_free(&base);
        hd_text_free(&run);
        hd_text_free(&out);
    }
}

static void without_the_base_the_text_model_is_exported_when_it_is_asked_for(void **state)
{
    const struct fixture *f = *state;
    struct hd_text base = {0}, out = {0};
    struct hd_hf_export options = {
        .checkpoint_dir = f->dir, .dtype = HD_F32, .shard_bytes_max = 1 << 20};
    struct hd_weights *weights = NULL;
    struct hd_job *job = job_new();

    assert_non_null(job);
    hd_text_add(&base, "%s/base", f->job_dir);
    hd_text_add(&out, "%s/out", f->job_dir);
    write_base(base.data, false);
    save_run(f->dir, base.data);
    must(hd_file_remove_tree(base.data));
    options.out_dir = out.data;
    assert_int_equal(hd_hf_export_run(&options), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "--base DIR"));
    assert_non_null(strstr(hd_err_message(), "--text-only"));
    options.text_only = true;
    must(hd_hf_export_run(&options));
    must(hd_hf_read_config(out.data, job, NULL));
    assert_string_equal(job->family, "mistral");
    assert_false(job->tie_embeddings);
    must(hd_weights_open(out.data, &weights));
    assert_int_equal(hd_weights_count(weights), TENSORS);
    assert_non_null(hd_weights_find(weights, "model.layers.0.mlp.up_proj.weight"));
    hd_weights_close(weights);
    hd_text_free(&base);
    hd_text_free(&out);
    free(job);
}

RUN_EACH_CASE_WITH(set_up, tear_down)
