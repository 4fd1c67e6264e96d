/* Goal: the ranks of a training job continue prompts as `heddle generate` does from the checkpoint
 * of the same weights, in every layout, and training goes on as if they had not.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "decoding.h"
#include "generate/generator.h"
#include "harness.h"
#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"
#include "train/prompts.h"
#include "train/rollout.h"

enum { CONTEXT = 64, PROMPTS = 7, TOKENS = 24 };

/* 8 of the 256 bytes end a text, so that about half of the texts end before 24 tokens. */
static const struct hd_stops stop_bytes = {.ids = {7, 39, 71, 103, 135, 167, 199, 231}, .count = 8};

/* Tokens that a rollout, or the decoder, wrote behind each prompt. */
struct texts {
    int32_t ids[PROMPTS][TOKENS];
    float log_probabilities[PROMPTS][TOKENS];
    int64_t count[PROMPTS];
    bool stopped[PROMPTS];
};

struct trip {
    struct harness h;
    struct hd_job job;
    double temperature;
    int32_t prompts[PROMPTS][CONTEXT];
    int64_t lengths[PROMPTS];
    struct hd_saved saved;
    struct texts texts[HARNESS_WORLD_MAX];
};

/* Prompts of 1 to 61 bytes of the corpus, in groups that are not sorted by length: the last one ends
 * where the context is full, before its tokens are all drawn. */
static void trip_setup(struct trip *t, const char *family, int dp)
{
    static const int64_t lengths[PROMPTS] = {5, 33, 1, 16, 12, 20, 61};

    harness_setup(&t->h, 4000);
    for (int i = 0; i < PROMPTS; i++) {
        t->lengths[i] = lengths[i];
        for (int k = 0; k < lengths[i]; k++)
            t->prompts[i][k] =
                "the quick brown fox jumps over a lazy dog and then sleeps "[(7 * i + k) % 58];
    }
    t->job = harness_job(&t->h, family, dp);
    t->job.context = CONTEXT;
    t->job.micro_batch = 2;
    t->job.samples = "text\tx";
}

static struct hd_sampling sampling_of(const struct trip *t, int prompt)
{
    return (struct hd_sampling){
        .temperature = t->temperature, .top_p = 0.9, .seed = 100 + (uint64_t)prompt};
}

static enum hd_status roll_out(struct trip *t, struct hd_trainer *trainer, struct texts *texts)
{
    struct hd_rollout_sequence sequences[PROMPTS];
    const struct hd_rollout rollout = {.sequences = sequences,
                                       .count = PROMPTS,
                                       .group = 1,
                                       .max_tokens = TOKENS,
                                       .sampling = sampling_of(t, 0),
                                       .stops = &stop_bytes};
    enum hd_status st;

    for (int i = 0; i < PROMPTS; i++)
        sequences[i] =
            (struct hd_rollout_sequence){.prompt = t->prompts[i],
                                         .prompt_count = t->lengths[i],
                                         .seed = sampling_of(t, i).seed,
                                         .ids = texts->ids[i],
                                         .log_probabilities = texts->log_probabilities[i]};
    st = hd_trainer_rollout(trainer, &rollout);
    for (int i = 0; i < PROMPTS; i++) {
        texts->count[i] = sequences[i].count;
        texts->stopped[i] = sequences[i].end == HD_ROLLOUT_STOP;
    }
    return st;
}

static enum hd_status travel(struct harness_rank *r)
{
    struct trip *t = r->context;
    struct hd_trainer *trainer = NULL;
    enum hd_status st = harness_trained(r, &trainer);

    if (!st)
        st = roll_out(t, trainer, &t->texts[r->rank]);
    if (!st)
        st = hd_trainer_save(trainer, r->rank ? &(struct hd_saved){0} : &t->saved);
    hd_trainer_free(trainer);
    return st;
}

/* ---- the texts of the decoder ---- */

struct writer {
    struct texts *texts;
    int prompt;
};

static bool on_token(void *user, const struct hd_generated *token)
{
    struct writer *w = user;
    const int64_t at = w->texts->count[w->prompt]++;

    w->texts->ids[w->prompt][at] = token->id;
    w->texts->log_probabilities[w->prompt][at] = (float)token->log_probability;
    w->texts->stopped[w->prompt] = token->is_stop;
    return true;
}

static void by_decoder(const struct trip *t, struct texts *texts)
{
    struct decoding d = decoding_open_as(t->saved.path, (struct hd_decoder_options){.slots = 2});
    struct hd_generator *generator = NULL;
    struct writer writers[PROMPTS];
    bool busy = true;

    must(hd_generator_new(d.decoder, 0, &generator));
    for (int i = 0; i < PROMPTS; i++) {
        writers[i] = (struct writer){texts, i};
        must(hd_generator_add(generator,
                              &(struct hd_generation){.prompt = t->prompts[i],
                                                      .prompt_count = t->lengths[i],
                                                      .max_tokens = TOKENS,
                                                      .sampling = sampling_of(t, i),
                                                      .stops = &stop_bytes,
                                                      .reports_odds = true,
                                                      .on_token = on_token,
                                                      .user = &writers[i]},
                              NULL));
    }
    while (busy)
        must(hd_generator_step(generator, &busy));
    hd_generator_free(generator);
    decoding_close(&d);
}

static void check_equal(const struct texts *got, const struct texts *want, float most)
{
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(got->count[i], want->count[i]);
        assert_int_equal(got->stopped[i], want->stopped[i]);
        for (int k = 0; k < want->count[i]; k++) {
            assert_int_equal(got->ids[i][k], want->ids[i][k]);
            assert_true(fabsf(got->log_probabilities[i][k] - want->log_probabilities[i][k]) <=
                        most);
        }
    }
}

struct layout {
    const char *family;
    int tp, pp, dp, cp, ep, zero, chunks; /* chunks: of a stage, of one layer each; 0: one */
    bool sequence;
    double temperature;
    const char *schedule, *targets, *weights; /* targets: of LoRA; NULL: no adapter */
    bool dora;
};

static void set_layout(struct hd_job *job, const struct layout *l)
{
    job->tp = l->tp ? l->tp : 1;
    job->pp = l->pp ? l->pp : 1;
    job->cp = l->cp ? l->cp : 1;
    job->ep = l->ep ? l->ep : 1;
    job->zero = l->zero;
    job->sequence = l->sequence;
    job->virtual_stages = l->chunks ? l->chunks : 1;
    job->layers = l->chunks ? l->pp * l->chunks : job->layers;
    (void)snprintf(job->schedule, sizeof job->schedule, "%s", l->schedule ? l->schedule : "none");
    job->adapter = l->targets ? HD_JOB_ADAPTER_LORA : HD_JOB_ADAPTER_NONE;
    job->adapter_targets = job_text("%s", l->targets ? l->targets : "");
    job->adapter_rank = 4;
    job->adapter_alpha = 6;
    job->adapter_dora = l->dora;
    if (l->weights)
        job->model_weights = hd_job_find_word(hd_job_model_weights_words, l->weights);
}

/* Goal: every layout writes what heddle generate writes from its checkpoint, greedily and drawn, with
 * log-probabilities that differ by rounding. Method: the decoder on the checkpoint: other programs,
 * other numbers of slots and other pieces of prompts. Prompts are more than slots, so that slots are
 * refilled; some texts end at a stop token, or the test could not fail. */
static void every_layout_writes_what_generate_writes(void **state)
{
    static const struct layout layouts[] = {
        {"llama", .tp = 1},
        {"llama", .tp = 2, .sequence = true, .temperature = 0.8},
        {"llama", .pp = 2, .dp = 2, .zero = 1, .schedule = "1f1b"},
        {"llama", .pp = 2, .chunks = 2, .schedule = "zb-v", .temperature = 1},
        {"gpt2", .tp = 2, .dp = 2, .zero = 3, .temperature = 0.7},
        {"mixtral", .cp = 2, .ep = 2, .zero = 3, .temperature = 0.9},
        {"qwen3_next", .dp = 2},
        {"llama", .dp = 2, .targets = "q_proj,down_proj", .dora = true, .temperature = 0.5},
        {"llama", .tp = 2, .targets = "q_proj,o_proj", .weights = "int8"},
    };

    int stopped = 0;

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout *l = &layouts[i];
        struct trip t = {.temperature = l->temperature};
        struct texts want = {.count = {0}};
        int world;

        trip_setup(&t, l->family, l->dp ? l->dp : 1);
        set_layout(&t.job, l);
        world = (int)(t.job.tp * t.job.pp * t.job.dp * t.job.cp);
        if (harness_threads(&t.job, world, &t, travel))
            fail_msg("layout %zu: %s", i, hd_err_message());
        by_decoder(&t, &want);
        for (int p = 0; p < PROMPTS; p++)
            stopped += want.stopped[p];
        for (int r = 0; r < world; r++)
            check_equal(&t.texts[r], &want, 2e-4f);
        harness_teardown(&t.h);
    }
    assert_true(stopped > 0);
}

/* ---- groups ---- */

enum { GROUPED = 6 };

/* Continues sequences of prompts 0, 0, 1, 1, 2, 2 with seeds 0 to 5; order[i]: the one that is
 * number i of the rollout. */
static enum hd_status roll_out_grouped(const struct trip *t, struct hd_trainer *trainer,
                                       const int order[GROUPED], int64_t group, struct texts *texts)
{
    struct hd_rollout_sequence sequences[GROUPED];
    const struct hd_rollout rollout = {.sequences = sequences,
                                       .count = GROUPED,
                                       .group = group,
                                       .max_tokens = TOKENS,
                                       .sampling = {.temperature = 1, .top_p = 1},
                                       .stops = &stop_bytes};
    enum hd_status st;

    for (int i = 0; i < GROUPED; i++)
        sequences[i] =
            (struct hd_rollout_sequence){.prompt = t->prompts[order[i] / 2],
                                         .prompt_count = t->lengths[order[i] / 2],
                                         .seed = (uint64_t)order[i],
                                         .ids = texts->ids[order[i]],
                                         .log_probabilities = texts->log_probabilities[order[i]]};
    st = hd_trainer_rollout(trainer, &rollout);
    for (int i = 0; i < GROUPED; i++)
        texts->count[order[i]] = sequences[i].count;
    return st;
}

static enum hd_status roll_out_groups(struct harness_rank *r)
{
    static const int in_order[GROUPED] = {0, 1, 2, 3, 4, 5}, mixed[GROUPED] = {5, 2, 0, 4, 1, 3};
    const struct trip *t = r->context;
    static struct texts texts[2][3]; /* [rank][rollout]; what is not written stays zero */
    struct texts *own = texts[r->rank];
    struct hd_trainer *trainer = NULL;
    enum hd_status st = harness_trained(r, &trainer);

    memset(own, 0, sizeof texts[0]);
    if (!st)
        st = roll_out_grouped(t, trainer, in_order, 1, &own[0]);
    if (!st)
        st = roll_out_grouped(t, trainer, in_order, 2, &own[1]);
    if (!st)
        st = roll_out_grouped(t, trainer, mixed, 1, &own[2]);
    if (!st && (memcmp(&own[0], &own[1], sizeof own[0]) != 0 ||
                memcmp(&own[0], &own[2], sizeof own[0]) != 0))
        st = hd_err(HD_INTERNAL, "tokens depend on groups or order");
    if (!st && memcmp(own[0].ids[0], own[0].ids[1], sizeof own[0].ids[0]) == 0)
        st = hd_err(HD_INTERNAL, "two seeds draw the same tokens");
    hd_trainer_free(trainer);
    return st;
}

/* Goal: tokens and log-probabilities of a sequence are a function of its prompt and seed, bit for bit,
 * whatever rank, slot and neighbours it has. Method: the sequences of two ranks by single ones, by
 * groups, which lie on other ranks, and in another order. */
static void neighbours_change_no_bit(void **state)
{
    struct trip t = {.temperature = 0};

    trip_setup(&t, "llama", 2);
    if (harness_threads(&t.job, 2, &t, roll_out_groups))
        fail_msg("%s", hd_err_message());
    harness_teardown(&t.h);
}

/* ---- training goes on ---- */

enum { STEPS = 4 };

struct going_on {
    struct trip trip;
    bool samples; /* whether this run writes samples behind each step */
    double loss[2][STEPS];
    uint64_t hash[2][HARNESS_WORLD_MAX];
};

static enum hd_status go_on(struct harness_rank *r)
{
    struct going_on *g = r->context;
    struct hd_trainer *trainer = NULL;
    struct hd_step_result result;
    struct texts texts;
    enum hd_status st = harness_trainer(r, &trainer);

    if (!st && g->samples)
        st = roll_out(&g->trip, trainer, &texts);
    for (int s = 0; !st && s < STEPS; s++) {
        st = hd_trainer_step(trainer, 0, &result);
        if (!st && r->rank == 0)
            g->loss[g->samples][s] = result.loss;
        if (!st && g->samples)
            st = roll_out(&g->trip, trainer, &texts);
    }
    if (!st)
        g->hash[g->samples][r->rank] = run_hash_state(trainer);
    hd_trainer_free(trainer);
    return st;
}

/* Goal: samples change no bit of training. Method: runs with and without, whose losses, weights,
 * moments and gradients are equal. The run without has no programs of decoding either. */
static void samples_leave_training_as_it_is(void **state)
{
    static const struct layout layouts[] = {
        {"mixtral", .dp = 2, .ep = 2, .zero = 2},
        {"llama", .tp = 2, .pp = 2, .schedule = "1f1b"},
    };

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct going_on g = {.samples = false};
        int world;

        trip_setup(&g.trip, layouts[i].family, layouts[i].dp ? layouts[i].dp : 1);
        set_layout(&g.trip.job, &layouts[i]);
        g.trip.job.precision = HD_JOB_PRECISION_BF16;
        world = run_world(&g.trip.job);
        g.samples = true;
        assert_int_equal(harness_threads(&g.trip.job, world, &g, go_on), HD_OK);
        g.samples = false;
        g.trip.job.samples = "";
        assert_int_equal(harness_threads(&g.trip.job, world, &g, go_on), HD_OK);
        assert_memory_equal(g.loss[0], g.loss[1], sizeof g.loss[0]);
        assert_memory_equal(g.hash[0], g.hash[1], sizeof g.hash[0]);
        harness_teardown(&g.trip.h);
    }
}

/* ---- memory ---- */

static struct hd_rank_program program_of(struct hd_job *job, bool samples, struct hd_arena *arena)
{
    struct hd_rank_program program;

    job->samples = job_text("%s", samples ? "text\tx" : "");
    run_layout(job, &(struct hd_rank_program_options){0}, arena, &program);
    return program;
}

/* Goal: samples take no memory as long as their caches fit into what steps leave free, and else the
 * bytes beyond it. Method: the plans of jobs with and without, for a model of which steps save all
 * activations, and for one of many layers of which they save one row a token and layer, with 4 heads of keys
 * in place of 2. A cache has keys and values, of 2 heads 2 x 16 numbers of 4 bytes, for each token of the
 * context, layer and slot; the tables are angles, 8 numbers a token, and indices, one a token and slot. */
static void caches_lie_in_the_memory_of_a_step(void **state)
{
    for (int many = 0; many < 2; many++) {
        struct hd_arena arena;
        struct hd_rank_program with, without;
        struct trip t = {.temperature = 0};

        trip_setup(&t, "llama", 1);
        hd_arena_init(&arena, 0);
        t.job.layers = many ? 32 : 2;
        t.job.kv_heads = many ? 4 : 2;
        (void)snprintf(t.job.recompute, sizeof t.job.recompute, "%s", many ? "full" : "none");
        with = program_of(&t.job, true, &arena);
        without = program_of(&t.job, false, &arena);
        assert_int_equal(with.decode.slots, t.job.micro_batch);
        assert_int_equal(with.decode.cache_bytes,
                         with.decode.slots * t.job.layers * CONTEXT * 2 * 8 * t.job.kv_heads * 4 +
                             CONTEXT * 8 * 4 + with.decode.slots * CONTEXT * 4);
        assert_true(many ? with.decode.beyond_bytes > 0 : with.decode.beyond_bytes == 0);
        assert_int_equal(with.memory.private_bytes + with.memory.registered_bytes,
                         without.memory.private_bytes + without.memory.registered_bytes +
                             with.decode.beyond_bytes);
        assert_int_equal(with.memory.work, without.memory.work + with.decode.beyond_bytes);
        hd_arena_done(&arena);
        harness_teardown(&t.h);
    }
}

/* ---- the prompts of a job ---- */

struct drawn {
    int32_t ids[4][2][TOKENS]; /* [call][prompt] */
};

static void take_samples(struct hd_trainer *trainer, struct drawn *drawn, int call)
{
    must(hd_trainer_write_samples(trainer, NULL, NULL));
    for (int64_t i = 0; i < 2; i++) {
        const struct hd_sample_text s = hd_trainer_sample(trainer, i);

        assert_string_equal(s.prompt, "a\tb");
        assert_int_equal(s.count, TOKENS);
        memcpy(drawn->ids[call][i], s.ids, sizeof drawn->ids[call][i]);
    }
}

static enum hd_status draw_samples(struct harness_rank *r)
{
    struct hd_trainer *trainer = NULL;
    struct hd_step_result result;
    enum hd_status st = harness_trainer(r, &trainer);

    if (st)
        return st;
    take_samples(trainer, r->context, 0);
    take_samples(trainer, r->context, 1);
    must(hd_trainer_step(trainer, 0, &result));
    take_samples(trainer, r->context, 2);
    must(hd_trainer_init(trainer)); /* the weights of step 0 again, as of a run that starts anew */
    take_samples(trainer, r->context, 3);
    hd_trainer_free(trainer);
    return HD_OK;
}

/* Goal: a sample is drawn by numbers that are a function of seed, step and prompt alone. Method: one
 * prompt twice, at random weights and temperature 1. */
static void samples_are_drawn_by_step_and_prompt(void **state)
{
    struct trip t = {.temperature = 0};
    struct drawn d;

    trip_setup(&t, "llama", 1);
    t.job.samples = "text\ta\\tb\ta\\tb";
    t.job.samples_tokens = TOKENS;
    t.job.samples_temperature = t.job.samples_top_p = 1;
    assert_int_equal(harness_threads(&t.job, 1, &d, draw_samples), HD_OK);
    assert_memory_not_equal(d.ids[0][0], d.ids[0][1], sizeof d.ids[0][0]);
    assert_memory_equal(d.ids[0], d.ids[1], sizeof d.ids[0]);
    assert_memory_not_equal(d.ids[0][0], d.ids[2][0], sizeof d.ids[0][0]);
    assert_memory_equal(d.ids[0], d.ids[3], sizeof d.ids[0]);
    harness_teardown(&t.h);
}

/* Checks that prompt `index` has the bytes of a text as ids, and is shown as `shown`. */
static void check_prompt(const struct hd_prompts *prompts, int64_t index, const char *text,
                         const char *shown)
{
    const struct hd_prompt *p = &prompts->list[index];

    assert_string_equal(p->text, shown);
    assert_int_equal(p->count, (int64_t)strlen(text));
    for (int64_t i = 0; i < p->count; i++)
        assert_int_equal(p->ids[i], text[i]);
}

static void write_file(const struct trip *t, const char *name, const char *text, char path[256])
{
    (void)snprintf(path, 256, "%s/%s", t->h.dir, name);
    assert_int_equal(hd_file_write_atomic(path, text, strlen(text), 0644), HD_OK);
}

static void name_prompts(struct hd_job *job, const char *path)
{
    struct hd_sample_file file = {.size_bytes = -1};

    (void)snprintf(file.path, sizeof file.path, "%s", path);
    assert_int_equal(hd_job_set_sample_file(&file, job), HD_OK);
}

/* Goal: a line of a file is a text, a prompt or messages, and a chat template is applied to each.
 * Method: the tokenizer of bytes, and a template that writes roles before contents. */
static void prompts_are_texts_or_messages(void **state)
{
    static const char lines[] = "one\n\n{\"prompt\": \"two\\n\"}\n{\"messages\": [{\"role\": "
                                "\"system\", \"content\": \"x\"}, {\"role\": \"user\", "
                                "\"content\": \"three\"}]}\n";
    struct trip t = {.temperature = 0};
    struct hd_prompts prompts;
    char path[256];

    trip_setup(&t, "llama", 1);
    write_file(&t, "prompts", lines, path);
    name_prompts(&t.job, path);
    assert_int_equal(hd_prompts_open(&t.job, NULL, &prompts), HD_INVALID);
    assert_non_null(strstr(hd_err_message(), "prompts:4: it has messages, and the job has no chat "
                                             "template"));
    hd_prompts_close(&prompts);
    write_file(&t, "template",
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
               "{% if add_generation_prompt %}<a>{% endif %}",
               path);
    t.job.template = job_text("%s", path);
    must(hd_prompts_open(&t.job, NULL, &prompts));
    assert_int_equal(prompts.count, 3);
    check_prompt(&prompts, 0, "<user>one<a>", "one");
    check_prompt(&prompts, 1, "<user>two\n<a>", "two\n");
    check_prompt(&prompts, 2, "<system>x<user>three<a>", "three");
    hd_prompts_close(&prompts);
    t.job.context = 11; /* the first prompt has 12 bytes */
    assert_int_equal(hd_prompts_open(&t.job, NULL, &prompts), HD_INVALID);
    assert_non_null(
        strstr(hd_err_message(), "prompts:1: it has 12 tokens, and model.context is 11"));
    hd_prompts_close(&prompts);
    harness_teardown(&t.h);
}

RUN_CASES()
