/* A model goes out as a directory of transformers' form and comes back the same, bit for bit: as
 * logits and as the weights that a new run starts from.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
#include "data/token_writer.h"
#include "decoding.h"
#include "hf/hf.h"
#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { CORPUS_BYTES = 20000, TOKENS = 12, VOCAB = 256 };

struct model {
    struct harness h;
    struct hd_job job;
    struct hd_saved saved;
    char out[256];
};

static void adapted_setup(struct model *m, const char *family, bool tied, const char *adapter)
{
    harness_setup(&m->h, CORPUS_BYTES);
    m->job = harness_job(&m->h, family, 1);
    m->job.tie_embeddings = tied;
    m->job.adapter_dora = strcmp(adapter, "dora") == 0;
    m->job.adapter = hd_job_find_word(hd_job_adapter_words, m->job.adapter_dora ? "lora" : adapter);
    m->job.adapter_rank = 4;
    m->job.adapter_alpha = 6;
    must(harness_threads(&m->job, 1, &m->saved, harness_save_trained));
    (void)snprintf(m->out, sizeof m->out, "%s/out", m->h.dir);
}

static void model_setup(struct model *m, const char *family, bool tied)
{
    adapted_setup(m, family, tied, "none");
}

static struct hd_hf_export export_of(const struct model *m, enum hd_dtype dtype, int64_t shard)
{
    return (struct hd_hf_export){.checkpoint_dir = m->saved.path,
                                 .out_dir = m->out,
                                 .dtype = dtype,
                                 .shard_bytes_max = shard};
}

static void read_logits(const char *dir, float *ret_logits)
{
    struct decoding d = decoding_open(dir);

    assert_string_equal(hd_decoder_tokenizer(d.decoder), "bytes");
    for (int i = 0; i < TOKENS; i++) {
        const int32_t token = (int32_t)(hd_random_hash("token") + (uint64_t)i * 37) & 0x7f;

        memcpy(ret_logits + (size_t)i * VOCAB, decoding_next(&d, token),
               VOCAB * sizeof *ret_logits);
    }
    decoding_close(&d);
}

static void round_trip(const char *family, bool tied, int64_t shard_bytes, bool has_index)
{
    struct model m = {.out = ""};
    float *before = malloc(2 * TOKENS * VOCAB * sizeof *before), *after = before + TOKENS * VOCAB;
    struct hd_hf_export options;
    char index[300];

    assert_non_null(before);
    model_setup(&m, family, tied);
    options = export_of(&m, HD_F32, shard_bytes);
    must(hd_hf_export_run(&options));
    (void)snprintf(index, sizeof index, "%s/model.safetensors.index.json", m.out);
    assert_int_equal(hd_file_exists(index), has_index);
    read_logits(m.saved.path, before);
    read_logits(m.out, after);
    assert_memory_equal(before, after, TOKENS * VOCAB * sizeof *before);
    free(before);
    harness_teardown(&m.h);
}

static void export_and_import_give_the_same_logits_bit_for_bit(void **state)
{
    round_trip("llama", false, 1 << 30, false);
    round_trip("llama", true, 20000, true);
    round_trip("gpt2", true, 1 << 30, false);
    round_trip("gpt2", false, 1, true); /* a file for each tensor */
    round_trip("mistral", false, 1 << 30, false);
    round_trip("qwen2", true, 1 << 30, false);
    round_trip("qwen3", false, 1 << 30, false);
}

/* Goal: a model goes out with its adapter added up. Method: logits of the checkpoint, which has the
 * factors beside the weights, and of the folder, which has none; both far from the base's. */
static void an_adapter_goes_out_added_to_the_weights(void **state)
{
    static const char *const families[] = {"llama", "gpt2", "qwen2"};
    float *logits = malloc(3 * TOKENS * VOCAB * sizeof *logits), *after = logits + TOKENS * VOCAB;
    float *base = after + TOKENS * VOCAB;

    assert_non_null(logits);
    for (int f = 0; f < 3; f++) {
        struct model m = {.out = ""}, plain = {.out = ""};
        struct hd_hf_export options;
        double apart = 0, moved = 0;

        adapted_setup(&m, families[f], f == 1, f == 2 ? "dora" : "lora");
        options = export_of(&m, HD_F32, 1 << 30);
        must(hd_hf_export_run(&options));
        read_logits(m.saved.path, logits);
        read_logits(m.out, after);
        harness_teardown(&m.h);
        harness_setup(&plain.h, CORPUS_BYTES);
        plain.job = m.job;
        plain.job.adapter = HD_JOB_ADAPTER_NONE;
        plain.job.adapter_dora = false;
        plain.job.lr_peak = plain.job.lr_min = 1e-12; /* the initial weights, which are the base */
        plain.job.train = harness_job(&plain.h, families[f], 1).train;
        must(harness_threads(&plain.job, 1, &plain.saved, harness_save_trained));
        read_logits(plain.saved.path, base);
        harness_teardown(&plain.h);
        for (int i = 0; i < TOKENS * VOCAB; i++) {
            const double a = fabs((double)logits[i] - (double)after[i]);
            const double b = fabs((double)logits[i] - (double)base[i]);

            apart = a > apart ? a : apart;
            moved = b > moved ? b : moved;
        }
        assert_true(apart <= 1e-5);
        assert_true(moved > 1e-3);
    }
    free(logits);
}

/* bf16 on disk: each weight is within half a unit of its last place (7 bits behind the leading
 * one), 2^-8 of itself. */
static void weights_exported_as_bf16_are_rounded_once(void **state)
{
    struct model m = {.out = ""};
    struct hd_hf_export options;
    const struct hd_ckpt_entry *whole;
    struct hd_weights *w = NULL;
    const struct hd_weight *t;
    struct hd_ckpt *ckpt = NULL;
    float *values;

    model_setup(&m, "llama", false);
    options = export_of(&m, HD_BF16, 1 << 30);
    must(hd_hf_export_run(&options));
    must(hd_weights_open(m.out, &w));
    must(hd_ckpt_open(m.saved.path, &ckpt));
    whole = hd_ckpt_find_tensor(ckpt, "blocks.1.mlp.down.weight");
    t = hd_weights_find(w, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(whole);
    assert_non_null(t);
    assert_int_equal(t->dtype, HD_BF16);
    values = malloc((size_t)hd_ckpt_entry_bytes(whole));
    assert_non_null(values);
    must(hd_ckpt_read(ckpt, whole, values));
    for (int64_t i = 0; i < whole->flat_count; i++) {
        uint16_t bits;
        float error;

        memcpy(&bits, (const char *)t->data + 2 * i, sizeof bits);
        error = hd_bf16_to_f32(bits) - values[i];
        assert_true(error <= 0x1p-8f * (values[i] < 0 ? -values[i] : values[i]));
        assert_true(-error <= 0x1p-8f * (values[i] < 0 ? -values[i] : values[i]));
    }
    free(values);
    hd_ckpt_close(ckpt);
    hd_weights_close(w);
    harness_teardown(&m.h);
}

/* ---- a new run from weights ---- */

struct start {
    const char *checkpoint; /* whose weights the new run must have */
    bool differs;
};

static enum hd_status start_anew(struct harness_rank *r)
{
    struct start *s = r->context;
    struct hd_ckpt *ckpt = NULL;
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_ckpt_open(s->checkpoint, &ckpt);
    for (int i = 0; !st && i < hd_trainer_rank_program(t)->registry.param_count; i++) {
        const struct hd_param *p = &hd_trainer_rank_program(t)->registry.params[i];
        const struct hd_ckpt_entry whole =
            hd_ckpt_entry_whole(p->name, HD_F32, p->dim_count, p->shape);

        float *weight, *m, *v, *values;

        if (p->adapter) /* begins anew beside them */
            continue;
        weight = harness_take(t, i, HD_STATE_WEIGHT);
        m = harness_take(t, i, HD_STATE_MOMENT1);
        v = harness_take(t, i, HD_STATE_MOMENT2);
        values = malloc((size_t)hd_ckpt_entry_bytes(&whole));

        st = values ? hd_ckpt_read(ckpt, &whole, values) : HD_NO_MEMORY;
        if (!st && memcmp(values, weight, (size_t)hd_ckpt_entry_bytes(&whole)) != 0)
            s->differs = true;
        for (int64_t k = 0; !st && p->trainable && k < p->count; k++)
            if (m[k] != 0 || v[k] != 0)
                s->differs = true;
        free(weight);
        free(m);
        free(v);
        free(values);
    }
    if (!st && hd_trainer_steps_done(t) != 0)
        s->differs = true;
    hd_ckpt_close(ckpt);
    hd_trainer_free(t);
    return st;
}

static void set_source(struct hd_job *job, const char *dir)
{
    char text[HD_HASH_TEXT_MAX];
    uint64_t identity = 0;

    must(hd_source_identity(dir, &identity));
    hd_hash_format(identity, text);
    job->init_from = job_text("%s", dir);
    job->init_identity = job_text("%s", text);
}

static void a_new_run_starts_from_weights_with_fresh_moments(void **state)
{
    static const char *const names[] = {"llama", "gpt2"};

    for (int i = 0; i < 2; i++) {
        struct model m = {.out = ""};
        struct start s = {.differs = false};
        struct hd_hf_export options;
        struct hd_job job;

        model_setup(&m, names[i], i == 1);
        options = export_of(&m, HD_F32, 1 << 30);
        must(hd_hf_export_run(&options));
        s.checkpoint = m.saved.path;
        job = m.job;
        job.dp = 2;
        set_source(&job, m.out);
        must(harness_threads(&job, 2, &s, start_anew));
        assert_false(s.differs);
        set_source(&job, m.saved.path); /* one of ours */
        must(harness_threads(&job, 2, &s, start_anew));
        assert_false(s.differs);
        job.adapter = HD_JOB_ADAPTER_LORA; /* beside either */
        must(harness_threads(&job, 2, &s, start_anew));
        set_source(&job, m.out);
        must(harness_threads(&job, 2, &s, start_anew));
        assert_false(s.differs);
        harness_teardown(&m.h);
    }
}

/* Two tensors of a folder have the same bytes. */
static void assert_copy(const struct hd_weights *w, const char *copy, const char *original)
{
    const struct hd_weight *a = hd_weights_find(w, copy), *b = hd_weights_find(w, original);

    if (!a || !b)
        fail_msg("there is no %s", a ? original : copy);
    assert_int_equal(a->size_bytes, b->size_bytes);
    assert_memory_equal(a->data, b->data, (size_t)b->size_bytes);
}

/* Reads the logits of a draft behind three tokens. */
static void read_draft(const char *dir, float *ret_logits)
{
    static const int32_t tokens[] = {84, 104, 101, 32};
    const struct hd_decoder_rows rows = {.tokens = tokens, .count = 3};
    const struct hd_draft_rows draft = {.tokens = tokens + 1, .count = 3};
    struct decoding d = decoding_open_as(dir, (struct hd_decoder_options){.drafts = 1});
    const float *logits;

    must(hd_decoder_run(d.decoder, &rows, 1));
    must(hd_decoder_draft(d.decoder, &draft, 1));
    must(hd_decoder_draft_logits(d.decoder, 0, &logits));
    memcpy(ret_logits, logits, VOCAB * sizeof *ret_logits);
    decoding_close(&d);
}

static int count_aside(const struct hd_weights *w)
{
    int count = 0;

    for (size_t i = 0; i < hd_weights_count(w); i++)
        count += strncmp(hd_weights_at(w, i)->name, "mtp.", 4) == 0;
    return count;
}

/* Goal: layers for further tokens go out under the names of the hub's files and come back; a run that
 * does not ask for them leaves them out, and one that asks where none are has new ones. Decoding does
 * not see them. */
static void layers_for_further_tokens_go_out_and_come_back(void **state)
{
    static const struct {
        const char *family;
        int layers;
        const char *up;
    } all[] = {
        {"deepseek_v3", 2, "model.layers.3.mlp.experts.0.up_proj.weight"},
        {"glm4_moe", 2, "model.layers.3.mlp.experts.0.up_proj.weight"},
        {"qwen3_next", 1, "mtp.layers.0.mlp.experts.0.up_proj.weight"},
        {"qwen3_5_text", 1, "mtp.layers.0.mlp.up_proj.weight"},
    };
    float *before = malloc(2 * TOKENS * VOCAB * sizeof *before), *after = before + TOKENS * VOCAB;

    assert_non_null(before);

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const bool behind = all[i].layers > 1;
        struct model m = {.out = ""};
        struct start s = {.differs = false};
        struct hd_hf_export options;
        struct hd_weights *w = NULL;
        struct hd_job job = HD_JOB(.arena = job_arena());

        harness_setup(&m.h, CORPUS_BYTES);
        m.job = harness_job(&m.h, all[i].family, 1);
        if (behind)
            m.job.shared_ffn_hidden = m.job.ffn_hidden;
        m.job.mtp_layers = all[i].layers;
        m.job.mtp_weight = 0.3;
        must(harness_threads(&m.job, 1, &m.saved, harness_save_trained));
        (void)snprintf(m.out, sizeof m.out, "%s/out", m.h.dir);
        options = export_of(&m, HD_F32, 1 << 30);
        must(hd_hf_export_run(&options));
        must(hd_hf_read_config(m.out, &job, NULL));
        assert_int_equal(job.mtp_layers, all[i].layers);
        read_logits(m.saved.path, before);
        read_logits(m.out, after);
        assert_memory_equal(before, after, TOKENS * VOCAB * sizeof *before);
        must(hd_weights_open(m.out, &w));
        if (behind) {
            read_draft(m.saved.path, before);
            read_draft(m.out, after);
            assert_memory_equal(before, after, VOCAB * sizeof *before);
            assert_copy(w, "model.layers.3.embed_tokens.weight", "model.embed_tokens.weight");
            assert_copy(w, "model.layers.3.shared_head.head.weight", "lm_head.weight");
        }
        assert_non_null(hd_weights_find(w, all[i].up));
        if (!m.job.experts) /* fc, three norms, a block's two norms, q with its gate, k, v, o, the
                               norms of q and k, and three matrices */
            assert_int_equal(count_aside(w), 4 + 2 + 4 + 2 + 3);
        hd_weights_close(w);

        s.checkpoint = m.saved.path;
        job = m.job;
        set_source(&job, m.out);
        must(harness_threads(&job, 1, &s, start_anew));
        job.mtp_layers = 0;
        must(harness_threads(&job, 1, &s, start_anew));
        set_source(&job, m.saved.path);
        must(harness_threads(&job, 1, &s, start_anew));
        assert_false(s.differs);
        job.attempt_dir = job_text("%s/attempt-2", m.h.dir);
        must(harness_threads(&job, 1, &m.saved, harness_save_trained)); /* without these layers */
        options.checkpoint_dir = m.saved.path;
        (void)snprintf(m.out, sizeof m.out, "%s/plain", m.h.dir);
        m.job.mtp_layers = 0;
        must(hd_hf_export_run(&options));
        must(hd_hf_read_config(m.out, &job, NULL));
        assert_int_equal(job.mtp_layers, 0);
        job = m.job;
        job.mtp_layers = 1;
        set_source(&job, m.out);
        job.attempt_dir = job_text("%s/attempt-3", m.h.dir);
        must(harness_threads(&job, 1, &m.saved, harness_save_trained));
        harness_teardown(&m.h);
    }
    free(before);
}

static void flip(const char *path, int64_t at)
{
    FILE *file = fopen(path, "r+b");
    int byte;

    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    byte = fgetc(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 4, file), byte ^ 4);
    assert_int_equal(fclose(file), 0);
}

/* Every byte of small files; of weights the head, and each tensor's first and last byte. */
static void assert_flips_are_found(const struct model *m, const char *name,
                                   const struct hd_weights *w)
{
    struct hd_text file = {0};
    char path[320], tensor[300];
    int64_t head = 0;

    (void)snprintf(path, sizeof path, "%s/%s", m->out, name);
    must(hd_file_read(path, 1 << 26, &file));
    head = (int64_t)file.len_bytes;
    for (size_t i = 0; w && i < hd_weights_count(w); i++) {
        const struct hd_weight *t = hd_weights_at(w, i);
        const int64_t ends[] = {t->offset_bytes, t->offset_bytes + t->size_bytes - 1};

        if (strcmp(t->file, name) != 0)
            continue;
        head = t->offset_bytes < head ? t->offset_bytes : head;
        (void)snprintf(tensor, sizeof tensor, "tensor %s, bytes 0 to", t->name);
        for (int k = 0; k < 2; k++) {
            flip(path, ends[k]);
            assert_int_equal(hd_hf_verify(m->out), HD_CORRUPT);
            flip(path, ends[k]);
            assert_non_null(strstr(hd_err_message(), tensor));
            assert_non_null(strstr(hd_err_message(), name));
        }
    }
    for (int64_t at = 0; at < head; at++) {
        flip(path, at);
        assert_int_equal(hd_hf_verify(m->out), HD_CORRUPT);
        flip(path, at);
        assert_non_null(strstr(hd_err_message(), name));
    }
    must(hd_hf_verify(m->out));
    hd_text_free(&file);
}

/* Goal: an export can be verified where it was copied to, without the checkpoint. */
static void every_flipped_byte_of_an_export_is_found_and_its_tensor_named(void **state)
{
    struct model m = {.out = ""};
    struct hd_hf_export options;
    struct hd_weights *w = NULL;
    char path[320];

    model_setup(&m, "llama", true);
    options = export_of(&m, HD_BF16, 20000); /* several files, and an index */
    must(hd_hf_export_run(&options));
    must(hd_weights_open(m.out, &w));
    assert_string_not_equal(hd_weights_at(w, 0)->file, "model.safetensors");
    assert_flips_are_found(&m, "config.json", NULL);
    assert_flips_are_found(&m, "model.safetensors.index.json", NULL);
    assert_flips_are_found(&m, "heddle-hashes.json", NULL);
    assert_flips_are_found(&m, hd_weights_at(w, 0)->file, w);
    (void)snprintf(path, sizeof path, "%s/%s", m.out, hd_weights_at(w, 0)->file);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(hd_hf_verify(m.out), HD_CORRUPT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hd_hf_verify(m.out), HD_CORRUPT);
    (void)snprintf(path, sizeof path, "%s/heddle-hashes.json", m.out);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hd_hf_verify(m.out), HD_NOT_FOUND);
    hd_weights_close(w);
    harness_teardown(&m.h);
}

static void a_source_that_changed_since_submission_is_refused(void **state)
{
    struct model m = {.out = ""};
    struct start s = {.differs = false};
    struct hd_hf_export options;
    struct hd_job job;

    model_setup(&m, "llama", false);
    options = export_of(&m, HD_F32, 1 << 30);
    must(hd_hf_export_run(&options));
    s.checkpoint = m.saved.path;
    job = m.job;
    set_source(&job, m.out);
    options.dtype = HD_BF16;
    options.force = true;
    must(hd_hf_export_run(&options));
    assert_int_equal(harness_threads(&job, 1, &s, start_anew), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "has changed since the job was submitted"));
    harness_teardown(&m.h);
}

static void another_model_is_refused_by_the_name_of_a_tensor(void **state)
{
    struct model m = {.out = ""};
    struct start s = {.differs = false};
    struct hd_hf_export options;
    struct hd_job job;

    model_setup(&m, "llama", false);
    options = export_of(&m, HD_F32, 1 << 30);
    must(hd_hf_export_run(&options));
    s.checkpoint = m.saved.path;
    job = m.job;
    set_source(&job, m.out);
    job.ffn_hidden += 8;
    assert_int_equal(harness_threads(&job, 1, &s, start_anew), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "tensor model.layers.0.mlp.gate_proj.weight has the "
                                             "shape [48, 32], the model needs [56, 32]"));
    job = m.job;
    set_source(&job, m.out);
    job.layers = 3;
    assert_int_equal(harness_threads(&job, 1, &s, start_anew), HD_INVALID);
    /* 9 tensors of a block: 2 norms, q, k, v, out, gate, up, down */
    assert_non_null(strstr(hd_err_message(), "9 of the tensors that config.json requires are "
                                             "missing: model.layers.2.input_layernorm.weight"));
    job.layers = 1;
    assert_int_equal(harness_threads(&job, 1, &s, start_anew), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "9 tensors are not part of the model of config.json: "
                                             "model.layers.1.input_layernorm.weight"));
    harness_teardown(&m.h);
}

/* ---- the directory ---- */

static void an_export_is_whole_or_not_there(void **state)
{
    struct model m = {.out = ""};
    struct hd_hf_export options;
    struct hd_weights *w = NULL;
    char path[300];

    model_setup(&m, "llama", false);
    options = export_of(&m, HD_F32, 1 << 30);
    must(hd_hf_export_run(&options));
    assert_int_equal(hd_hf_export_run(&options), HD_EXISTS);
    options.force = true;
    must(hd_hf_export_run(&options)); /* a model directory is replaced when asked for */
    must(hd_weights_open(m.out, &w));
    hd_weights_close(w);

    (void)snprintf(path, sizeof path, "%s/notes.txt", m.out); /* of a user */
    must(hd_file_write_atomic(path, "x", 1, 0644));
    assert_int_equal(hd_hf_export_run(&options), HD_EXISTS);
    assert_non_null(strstr(hd_err_message(), "no export has written, such as notes.txt;"));
    options.out_dir = path;
    assert_int_equal(hd_hf_export_run(&options), HD_INVALID); /* a file is no folder to replace */
    assert_int_equal(unlink(path), 0);
    options.out_dir = m.out;
    (void)snprintf(path, sizeof path, "%s/config.json", m.out);
    assert_int_equal(unlink(path), 0);
    must(hd_hf_export_run(&options)); /* also what is left of one */
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/heddle-hashes.json", m.out);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hd_hf_export_run(&options), HD_EXISTS); /* any other folder is not */

    /* a damaged checkpoint gets no new name */
    (void)snprintf(path, sizeof path, "%s/rank-00000.safetensors", m.saved.path);
    assert_int_equal(truncate(path, 1000), 0);
    (void)snprintf(path, sizeof path, "%s/other", m.h.dir);
    options.out_dir = path;
    assert_int_equal(hd_hf_export_run(&options), HD_CORRUPT);
    assert_false(hd_file_exists(path));
    harness_teardown(&m.h);
}

/* Goal: the tokenizer goes along as it was when the checkpoint was made, and an empty one is no
 * tokenizer. Method: a job on token files, which never opens it; an older checkpoint keeps none. */
static void a_tokenizer_is_that_of_the_checkpoint_unless_it_is_empty(void **state)
{
    struct model m = {.out = ""};
    struct hd_token_writer *tokens = NULL;
    struct hd_job_file file = {.size_bytes = 128 + 2000 * 2}; /* a head, and ids of 16 bits */
    struct hd_hf_export options;
    struct hd_text text = {0};
    int32_t ids[2000];
    char npy[256], path[300];

    harness_setup(&m.h, CORPUS_BYTES);
    (void)snprintf(npy, sizeof npy, "%s/ids.npy", m.h.dir);
    for (int i = 0; i < 2000; i++)
        ids[i] = i * 37 % VOCAB;
    must(hd_token_writer_open(npy, HD_TOKEN_FORMAT_NPY, 2, &tokens));
    must(hd_token_writer_add(tokens, ids, 2000));
    must(hd_token_writer_finish(tokens));
    m.job = harness_job(&m.h, "llama", 1);
    file.path = npy;
    m.job.train = &file;
    m.job.tokenizer = job_text("%s/tokenizer.json", m.h.dir);
    must(hd_file_write_atomic(m.job.tokenizer, "{}", 2, 0600));
    must(harness_threads(&m.job, 1, &m.saved, harness_save_trained));
    (void)snprintf(m.out, sizeof m.out, "%s/out", m.h.dir);
    options = export_of(&m, HD_F32, 1 << 30);
    must(hd_hf_export_run(&options));
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", m.out);
    assert_true(hd_file_exists(path));
    must(hd_hf_verify(m.out));

    assert_int_equal(truncate(m.job.tokenizer, 0), 0);
    options.force = true;
    must(hd_hf_export_run(&options)); /* the checkpoint has it */
    must(hd_file_read(path, 16, &text));
    assert_string_equal(text.data, "{}");
    hd_text_free(&text);

    (void)snprintf(path, sizeof path, "%s/base", m.saved.path);
    must(hd_file_remove_tree(path));
    (void)snprintf(path, sizeof path, "%s/other", m.h.dir);
    options.out_dir = path;
    assert_int_equal(hd_hf_export_run(&options), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "tokenizer.json, the tokenizer of the job, is empty"));
    assert_false(hd_file_exists(path));
    harness_teardown(&m.h);
}

/* ---- what a base said ---- */

enum { ROWS = 16, SHORT = 8, WIDTH = 32 }; /* positions of the base and of the run, channels */

static void put_text(const char *dir, const char *name, const char *text)
{
    char path[400];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    must(hd_file_write_atomic(path, text, strlen(text), 0644));
}

static void assert_text(const char *dir, const char *name, const char *text)
{
    struct hd_text is = {0};
    char path[400];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    must(hd_file_read(path, 1 << 20, &is));
    assert_string_equal(is.data, text);
    hd_text_free(&is);
}

static void read_positions(const char *dir, float ret_values[ROWS * WIDTH])
{
    const struct hd_weight *table;
    struct hd_weights *w = NULL;

    must(hd_weights_open(dir, &w));
    table = hd_weights_find(w, "transformer.wpe.weight");
    assert_non_null(table);
    assert_int_equal(table->shape[0], ROWS);
    memcpy(ret_values, table->data, sizeof(float) * ROWS * WIDTH);
    hd_weights_close(w);
}

/* Files that a run does not know of, in the folder of a base. */
static const char *const of_base[][2] = {
    {"generation_config.json", "{\"eos_token_id\":[7,9],\"temperature\":0.6}"},
    {"LICENSE", "of the base"},
    {"chat_template.jinja", "{{ messages }}"},
    {"additional_chat_templates/tools.jinja", "{{ tools }}"},
};

/* The files, the rows of positions behind the run's context, bit for bit, and config.json but for
 * what the run changed: nothing. */
static void assert_says_all(const char *out, const float base[ROWS * WIDTH])
{
    float now[ROWS * WIDTH];
    struct hd_job job = HD_JOB(.arena = job_arena());

    for (size_t i = 0; i < sizeof of_base / sizeof of_base[0]; i++)
        assert_text(out, of_base[i][0], of_base[i][1]);
    must(hd_hf_read_config(out, &job, NULL));
    assert_int_equal(job.context, ROWS);
    read_positions(out, now);
    assert_memory_equal(now + SHORT * WIDTH, base + SHORT * WIDTH,
                        (ROWS - SHORT) * WIDTH * sizeof(float));
    assert_memory_not_equal(now, base, SHORT * WIDTH * sizeof(float)); /* these trained */
    must(hd_hf_verify(out));
}

/* Goal: an export says all that its base said, also when that is gone. Method: a run on half of a
 * base's positions; then the base's folder is removed. Beside it an older checkpoint, which keeps
 * nothing and looks into the folder. */
static void a_base_that_is_gone_is_still_told(void **state)
{
    struct model base = {.out = ""}, m = {.out = ""};
    struct hd_hf_export options;
    float rows[ROWS * WIDTH];
    char path[300];

    model_setup(&base, "gpt2", true);
    options = export_of(&base, HD_F32, 1 << 30);
    must(hd_hf_export_run(&options));
    (void)snprintf(path, sizeof path, "%s/additional_chat_templates", base.out);
    must(hd_file_make_dirs(path, 0755));
    for (size_t i = 0; i < sizeof of_base / sizeof of_base[0]; i++)
        put_text(base.out, of_base[i][0], of_base[i][1]);
    read_positions(base.out, rows);

    harness_setup(&m.h, CORPUS_BYTES);
    m.job = harness_job(&m.h, "gpt2", 1);
    m.job.context = SHORT;
    set_source(&m.job, base.out);
    m.job.from_dir = job_text("%s", base.out);
    m.job.checkpoint_base = HD_JOB_CHECKPOINT_BASE_OMIT;
    must(harness_threads(&m.job, 1, &m.saved, harness_save_trained));
    (void)snprintf(m.out, sizeof m.out, "%s/older", m.h.dir);
    (void)snprintf(path, sizeof path, "%s/base", m.saved.path);
    assert_int_equal(rename(path, m.out), 0); /* out of the way */
    (void)snprintf(m.out, sizeof m.out, "%s/out", m.h.dir);
    options = export_of(&m, HD_F32, 1 << 30);
    must(hd_hf_export_run(&options));
    assert_says_all(m.out, rows);

    (void)snprintf(m.out, sizeof m.out, "%s/older", m.h.dir);
    assert_int_equal(rename(m.out, path), 0);
    must(hd_file_remove_tree(base.out));
    (void)snprintf(m.out, sizeof m.out, "%s/out", m.h.dir);
    options.force = true;
    must(hd_hf_export_run(&options));
    assert_says_all(m.out, rows);
    harness_teardown(&m.h);
    harness_teardown(&base.h);
}

RUN_CASES()
