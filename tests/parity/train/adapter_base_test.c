/* adapter_base: a checkpoint of a run with an adapter leaves out the model folder that the run
 * began with, and goes on from both as if it held everything; an adapter goes on beside its base.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "decoding.h"
#include "hf/hf.h"
#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/source.h"

enum { CORPUS_BYTES = 20000, STEPS = 2, MORE = 2 };

struct tuning {
    struct harness h;
    struct hd_job job; /* with an adapter, beside the model in `folder` */
    char folder[256];
};

/* Exports; returns whether a note says that PEFT leaves out factors. */
static bool export_to(const struct hd_saved *saved, const char *dir, bool adapter)
{
    struct hd_text notes = {0};
    const struct hd_hf_export options = {.checkpoint_dir = saved->path,
                                         .out_dir = dir,
                                         .dtype = HD_F32,
                                         .shard_bytes_max = 1 << 30,
                                         .adapter = adapter,
                                         .notes = &notes};
    bool said;

    must(hd_hf_export_run(&options));
    said = notes.len_bytes && strstr(notes.data, "PEFT leaves out factors");
    hd_text_free(&notes);
    return said;
}

/* Makes a job of harness_job's sizes; with qwen3_moe the first block is dense, the second has
 * experts. */
static struct hd_job job_of(const struct harness *h, const char *family, int dp)
{
    struct hd_job job = harness_job(h, family, dp);

    if (strcmp(family, "qwen3_moe") == 0) {
        job.experts = 4;
        job.experts_per_token = 2;
        job.renormalize = job.qk_norm = true;
        job.dense_ffn_hidden = 40;
        job.experts_layers = "0:1:1";
    }
    return job;
}

/* Trains a model for two steps and puts it out as a folder; then the job of an adapter beside it.
 */
static void setup(struct tuning *t, const char *family, const char *base)
{
    struct run *run = run_new(0);
    struct hd_saved saved;
    uint64_t identity = 0;
    struct hd_job job;

    harness_setup(&t->h, CORPUS_BYTES);
    job = job_of(&t->h, family, 1);
    (void)snprintf(t->folder, sizeof t->folder, "%s/model", t->h.dir);
    run_save(&job, STEPS, run, &saved);
    (void)export_to(&saved, t->folder, false);
    run_free(run);

    t->job = job_of(&t->h, family, 2);
    t->job.attempt_dir = job_text("%s/tuning", t->h.dir);
    t->job.precision = HD_JOB_PRECISION_BF16;
    t->job.adapter = HD_JOB_ADAPTER_LORA;
    t->job.adapter_targets = "all-linear";
    t->job.adapter_rank = 4;
    t->job.adapter_alpha = 6;
    t->job.init_from = job_text("%s", t->folder);
    t->job.checkpoint_base = hd_job_find_word(hd_job_checkpoint_base_words, base);
    must(hd_source_identity(t->folder, &identity));
    t->job.init_identity = job_text("%016" PRIx64, identity);
}

/* ---- what a checkpoint holds ---- */

static bool is_factor(const char *name)
{
    return strstr(name, ".lora_a") || strstr(name, ".lora_b") || strstr(name, ".lora_m") ||
           strstr(name, ".adapter") || strstr(name, ".prefix_");
}

static size_t count_weights(const char *dir, bool factors)
{
    struct hd_ckpt *ckpt = NULL;
    size_t count = 0;

    must(hd_ckpt_open(dir, &ckpt));
    for (size_t i = 0; i < hd_ckpt_tensor_count(ckpt); i++) {
        const char *name = hd_ckpt_get_tensor(ckpt, i)->name;

        count += hd_ckpt_is_weight(name) && is_factor(name) == factors;
    }
    hd_ckpt_close(ckpt);
    return count;
}

/* Goal: without the base nothing is lost. Method: the same run, once with the base in its
 * checkpoints and once without, goes on from a checkpoint: weights, moments and later losses have
 * equal bits. llama has 7 matrices in a block, each with two factors. */
static void check_goes_on_without_its_base(enum hd_job_adapter_init init)
{
    struct run *saving[2], *loading[2];
    struct hd_saved saved[2];

    for (int omit = 0; omit < 2; omit++) {
        struct tuning t;

        saving[omit] = run_new(MORE);
        loading[omit] = run_new(MORE);
        setup(&t, "llama", omit ? "omit" : "save");
        t.job.adapter_init = init;
        run_save(&t.job, STEPS, saving[omit], &saved[omit]);
        assert_int_equal(count_weights(saved[omit].path, true), 2 * 7 * t.job.layers);
        assert_int_equal(count_weights(saved[omit].path, false) == 0, omit);
        run_load(&t.job, &saved[omit], loading[omit]);
        harness_teardown(&t.h);
    }
    run_compare_state(saving[0], saving[1]);
    run_compare_state(saving[1], loading[1]);
    run_compare_state(loading[0], loading[1]);
    for (int i = 0; i < MORE; i++) {
        assert_true(loading[0]->loss[i] == loading[1]->loss[i]);
        assert_true(saving[1]->loss[i] == loading[1]->loss[i]);
    }
    for (int omit = 0; omit < 2; omit++) {
        run_free(saving[omit]);
        run_free(loading[omit]);
    }
}

static void a_checkpoint_without_its_base_goes_on_bit_for_bit(void **state)
{
    (void)state;
    check_goes_on_without_its_base(HD_JOB_ADAPTER_INIT_ZERO);
}

/* The base is the rest of the folder's weights: it is computed again when the run goes on. */
static void so_does_one_of_singular_directions(void **state)
{
    (void)state;
    check_goes_on_without_its_base(HD_JOB_ADAPTER_INIT_PISSA);
}

/* ---- singular directions (train.adapter.init: pissa) ---- */

struct begins {
    const char *family;
    int dp, tp, pp, zero;
    bool nf4;
};

/* Runs two steps of an adapter that begins so beside a new model. */
static void begin(const struct begins *b, enum hd_job_adapter_init init, double ret_loss[2])
{
    struct run *run = run_new(2);
    struct hd_saved saved;
    struct tuning t;

    setup(&t, b->family, "omit");
    t.job.dp = b->dp;
    t.job.tp = b->tp;
    t.job.pp = b->pp;
    t.job.zero = b->zero;
    if (b->pp > 1)
        memcpy(t.job.schedule, "1f1b", sizeof "1f1b");
    t.job.precision = HD_JOB_PRECISION_FP32;
    t.job.adapter_init = init;
    if (b->nf4)
        t.job.model_weights = HD_JOB_MODEL_WEIGHTS_NF4;
    run_save(&t.job, 0, run, &saved);
    memcpy(ret_loss, run->loss, 2 * sizeof *ret_loss);
    run_free(run);
    harness_teardown(&t.h);
}

/* Goal: the rest of a weight and its first directions are the weight, in every layout and in codes, and the
 * directions train. Method: the first loss is that of an adapter of zeros, the second another one, the same
 * in all layouts. The parts of gpt2's c_attn are decomposed as one matrix. */
static void an_adapter_of_singular_directions_begins_as_its_base(void **state)
{
    static const struct begins cases[] = {
        {"llama", 1, 1, 1, 0, false}, {"llama", 1, 2, 1, 0, false}, {"llama", 2, 1, 1, 3, false},
        {"llama", 1, 1, 2, 0, false}, {"llama", 1, 1, 1, 0, true},  {"gpt2", 1, 1, 1, 0, false}};
    double zeros[2], first[2] = {0}, loss[2];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (i == 0 || strcmp(cases[i].family, cases[i - 1].family) != 0) {
            begin(&(struct begins){cases[i].family, 1, 1, 1, 0, false}, HD_JOB_ADAPTER_INIT_ZERO,
                  zeros);
            begin(&cases[i], HD_JOB_ADAPTER_INIT_PISSA, first);
            assert_true(fabs(first[1] - zeros[1]) > 1e-4);
        }
        begin(&cases[i], HD_JOB_ADAPTER_INIT_PISSA, loss);
        if (fabs(loss[0] - zeros[0]) > (cases[i].nf4 ? 2e-2 : 1e-5) ||
            fabs(loss[1] - first[1]) > (cases[i].nf4 ? 2e-2 : 1e-5))
            fail_msg("case %zu: losses %.7f %.7f, of the base %.7f, then %.7f", i, loss[0], loss[1],
                     zeros[0], first[1]);
    }
}

/* ---- where the base is ---- */

static enum hd_status open_source(const struct tuning *t, const char *dir, const char *base)
{
    const struct hd_source_dirs dirs = {.dir = dir, .base = base};
    struct hd_source *source = NULL;
    struct hd_arena arena;
    struct hd_rank_program layout;
    enum hd_status st;

    hd_arena_init(&arena, 0);
    run_layout(&t->job, &(struct hd_rank_program_options){0}, &arena, &layout);
    st = hd_source_open(&dirs, &t->job, &layout.registry, &source);
    hd_source_close(source);
    hd_arena_done(&arena);
    return st;
}

static void change_a_weight(const char *folder)
{
    struct hd_weights *weights = NULL;
    char path[300];
    int64_t at;
    FILE *file;

    must(hd_weights_open(folder, &weights));
    at = hd_weights_at(weights, 0)->offset_bytes;
    hd_weights_close(weights);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite("\x3f", 1, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static void a_base_may_move_and_must_not_change(void **state)
{
    struct run *run = run_new(0);
    struct hd_saved saved;
    struct tuning t;
    char moved[300];

    setup(&t, "gpt2", "omit");
    run_save(&t.job, STEPS, run, &saved);
    must(open_source(&t, saved.path, NULL));
    assert_int_equal(hd_hf_export_run(&(struct hd_hf_export){.checkpoint_dir = saved.path,
                                                             .out_dir = t.folder,
                                                             .shard_bytes_max = 1 << 30,
                                                             .force = true}),
                     HD_CONFLICT);
    must(hd_adapter_check_base(saved.path, t.folder));
    (void)snprintf(moved, sizeof moved, "%s-moved", t.folder);
    assert_int_equal(rename(t.folder, moved), 0);
    assert_int_equal(open_source(&t, saved.path, NULL), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "say where it is now (--base DIR"));
    must(open_source(&t, saved.path, moved));
    change_a_weight(moved);
    assert_int_equal(open_source(&t, saved.path, moved), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "is not the model that"));
    assert_int_equal(hd_adapter_check_base(saved.path, moved), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "is the adapter of another model than"));
    run_free(run);
    harness_teardown(&t.h);
}

/* ---- what trained once ---- */

static enum hd_status load_only(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    struct hd_text note = {0};
    enum hd_status st = harness_trainer(r, &t);

    if (!st)
        st = hd_trainer_load(t, r->context, "-", &note);
    hd_text_free(&note);
    hd_trainer_free(t);
    return st;
}

/* The head trained, and would be in no checkpoint: its values are not the base's. */
static void what_trained_is_never_left_out(void **state)
{
    struct run *run = run_new(0);
    struct hd_saved saved;
    struct tuning t;

    setup(&t, "llama", "omit");
    t.job.dp = 1;
    t.job.adapter_also = "head";
    run_save(&t.job, STEPS, run, &saved);
    assert_true(count_weights(saved.path, false) > 0);
    t.job.adapter_also = "";
    assert_int_equal(harness_threads(&t.job, 1, saved.path, load_only), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "set checkpoint.frozen: save, or keep it trainable"));
    t.job.checkpoint_base = HD_JOB_CHECKPOINT_BASE_SAVE;
    must(harness_threads(&t.job, 1, saved.path, load_only));
    run_free(run);
    harness_teardown(&t.h);
}

/* ---- going on with an adapter ---- */

static void begin_from(struct tuning *t, const char *adapter, struct run *run, const char *attempt)
{
    struct hd_job form = HD_JOB(.arena = job_arena());
    uint64_t identity = 0;
    struct hd_saved saved;

    must(hd_adapter_read(adapter, &form, &identity));
    assert_int_equal(form.adapter_rank, 4);
    assert_true(form.adapter_alpha == 6 && !form.adapter_rslora);
    assert_true(form.adapter_dora == t->job.adapter_dora);
    t->job.adapter_targets = job_text("%s", form.adapter_targets);
    t->job.adapter_from = job_text("%s", adapter);
    t->job.adapter_identity = job_text("%016" PRIx64, identity);
    t->job.attempt_dir = job_text("%s/%s", t->h.dir, attempt);
    run_save(&t->job, 0, run, &saved);
}

/* Goal: a new run has the factors of another one, bit for bit, and moments of zero. Method: the
 * adapter of a trained run, as its checkpoint and as a folder of PEFT, begins a run. */
static void an_adapter_begins_another_run(void **state)
{
    static const struct {
        const char *family;
        bool dora;
    } cases[] = {{"llama", false}, {"gpt2", false},       {"gpt2", true},
                 {"phi3", true},   {"starcoder2", false}, {"qwen3_moe", false}};

    for (size_t f = 0; f < sizeof cases / sizeof *cases; f++) {
        struct run *trained = run_new(0), *from[2] = {run_new(0), run_new(0)};
        struct hd_saved saved;
        struct tuning t;
        char peft[300];

        setup(&t, cases[f].family, "omit");
        t.job.adapter_dora = cases[f].dora;
        run_save(&t.job, STEPS, trained, &saved);
        (void)snprintf(peft, sizeof peft, "%s/peft", t.h.dir);
        assert_true(export_to(&saved, peft, true) == (strcmp(cases[f].family, "qwen3_moe") == 0));
        begin_from(&t, saved.path, from[0], "from-checkpoint");
        begin_from(&t, peft, from[1], "from-peft");
        for (int k = 0; k < 2; k++) {
            assert_int_equal(from[k]->count, trained->count);
            assert_memory_equal(from[k]->weights, trained->weights,
                                (size_t)trained->count * sizeof(float));
            for (int64_t i = 0; i < trained->count; i++)
                assert_true(from[k]->moments[0][i] == 0 && from[k]->moments[1][i] == 0);
            run_free(from[k]);
        }
        run_free(trained);
        harness_teardown(&t.h);
    }
}

/* A checkpoint of an adapter of this type, beside the folder of a model of 16 positions, of which a
 * prefix takes 4. */
static void tune(struct tuning *t, const char *family, const char *type, struct run *trained,
                 struct hd_saved *ret_saved)
{
    setup(t, family, "omit");
    t->job.adapter = hd_job_find_word(hd_job_adapter_words, type);
    t->job.adapter_width = 5;
    t->job.adapter_tokens = 4;
    if (strcmp(type, "prefix") == 0)
        t->job.context -= 4;
    run_save(&t->job, STEPS, trained, ret_saved);
    /* D and U behind both halves of a block; or keys and values */
    assert_int_equal(count_weights(ret_saved->path, true),
                     t->job.layers * (strcmp(type, "prefix") == 0 ? 2 : 4));
    assert_int_equal(count_weights(ret_saved->path, false), 0);
}

static void check_refused(const struct hd_saved *saved, bool adapter)
{
    assert_int_equal(hd_hf_export_run(&(struct hd_hf_export){.checkpoint_dir = saved->path,
                                                             .out_dir = "/nowhere/out",
                                                             .dtype = HD_F32,
                                                             .shard_bytes_max = 1 << 30,
                                                             .adapter = adapter}),
                     HD_UNSUPPORTED);
    assert_non_null(strstr(hd_err_message(), "give the checkpoint itself to --adapter"));
}

enum { LOGITS_MAX = 512 };

/* Logits behind a few tokens, in bf16. */
static void look(const char *dir, const char *adapter, float ret_logits[LOGITS_MAX])
{
    const int32_t tokens[] = {72, 101, 100};
    struct decoding d = {0};

    must(hd_decoder_open(&(struct hd_decoder_options){.dirs = {.dir = dir, .adapter = adapter},
                                                      .backend = harness_backend(),
                                                      .precision = "bf16",
                                                      .threads = 1},
                         &d.decoder));
    assert_true(hd_decoder_vocab(d.decoder) <= LOGITS_MAX);
    memset(ret_logits, 0, LOGITS_MAX * sizeof *ret_logits);
    memcpy(ret_logits, decoding_prompt(&d, tokens, 3),
           (size_t)hd_decoder_vocab(d.decoder) * sizeof *ret_logits);
    decoding_close(&d);
}

/* Another run begins with the adapter of a directory, bit for bit; so does a decoder beside the
 * model folder, whose logits are those of the checkpoint by itself. */
static void check_goes_on(struct tuning *t, const struct run *trained, const struct hd_saved *saved,
                          const char *adapter, const char *attempt)
{
    static float alone[LOGITS_MAX], beside[LOGITS_MAX];
    struct run *from = run_new(0);
    struct hd_job form = HD_JOB(.arena = job_arena());
    uint64_t identity = 0;
    struct hd_saved again;

    must(hd_adapter_read(adapter, &form, &identity));
    assert_int_equal(form.adapter, t->job.adapter);
    if (form.adapter == HD_JOB_ADAPTER_PREFIX)
        assert_int_equal(form.adapter_tokens, 4);
    else
        assert_int_equal(form.adapter_width, 5);
    t->job.adapter_from = job_text("%s", adapter);
    t->job.adapter_identity = job_text("%016" PRIx64, identity);
    t->job.attempt_dir = job_text("%s/%s", t->h.dir, attempt);
    run_save(&t->job, 0, from, &again);
    assert_memory_equal(from->weights, trained->weights, (size_t)trained->count * sizeof(float));
    run_free(from);
    look(saved->path, NULL, alone);
    look(t->folder, adapter, beside);
    assert_memory_equal(alone, beside, sizeof alone);
}

/* Goal: what no folder of transformers and no form of PEFT can hold is refused with what takes it,
 * and the checkpoint is the adapter. */
static void a_bottleneck_goes_on_from_its_checkpoint(void **state)
{
    struct run *trained = run_new(0);
    struct hd_saved saved;
    struct tuning t;

    tune(&t, "llama", "bottleneck", trained, &saved);
    check_refused(&saved, false);
    check_refused(&saved, true);
    check_goes_on(&t, trained, &saved, saved.path, "from");
    run_free(trained);
    harness_teardown(&t.h);
}

/* Goal: the same of a prefix, and of its folder in PEFT's form (tests/interop: PEFT loads it). */
static void a_prefix_goes_on_from_its_checkpoint_and_folder(void **state)
{
    static const char *const families[] = {"llama", "gpt2"};

    for (int f = 0; f < 2; f++) {
        struct run *trained = run_new(0);
        struct hd_saved saved;
        struct tuning t;
        char peft[300];

        tune(&t, families[f], "prefix", trained, &saved);
        check_refused(&saved, false);
        (void)snprintf(peft, sizeof peft, "%s/peft", t.h.dir);
        (void)export_to(&saved, peft, true);
        check_goes_on(&t, trained, &saved, saved.path, "from-checkpoint");
        check_goes_on(&t, trained, &saved, peft, "from-peft");
        run_free(trained);
        harness_teardown(&t.h);
    }
}

RUN_CASES()
