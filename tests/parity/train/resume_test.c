/* Checkpoints of training: going on from one gives the bits of a run that never stopped, any number
 * of ranks reads what any other wrote, and damage or a failed write is told to everybody.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "runs.h"
#include "tests/job_text.h"
#include "tests/program/test.h"

enum { STEPS = 12, HALF = 6 };

/* One rank count's way through a test; filled by rank 0, hashes by every rank. */
struct channel {
    int from, to;           /* steps; from > 0: load the checkpoint `saved` first */
    int save_at;            /* after so many steps; 0: never */
    const char *expected;   /* hash to ask for when loading */
    struct hd_saved saved;  /* written by a save, read by a load */
    double loss[STEPS + 1]; /* by step, 1-based */
    double lr[STEPS + 1];
    double validation;
    uint64_t hash[HARNESS_WORLD_MAX];        /* of weights and moments in the end */
    uint64_t loaded_hash[HARNESS_WORLD_MAX]; /* right behind the load */
    uint64_t saved_hash;                     /* when it was saved */
    char note[512];
    enum hd_status refused[HARNESS_WORLD_MAX]; /* a load that failed, with its story */
    char story[HARNESS_WORLD_MAX][512];
};

/* Gradients are no part of the state: the last step's are gone after a load. */
static uint64_t hash_saved_state(struct hd_trainer *t)
{
    harness_clear_gradients(t);
    return run_hash_state(t);
}

static enum hd_status begin(struct hd_trainer *t, struct channel *w, int rank)
{
    struct hd_text note = {0};
    enum hd_status st;

    if (!w->from)
        return hd_trainer_init(t);
    if (hd_trainer_rank_program(t)->job.continue_from[0])
        st = hd_trainer_continue(t, &note, &note);
    else
        st = hd_trainer_load(t, w->saved.path, w->expected ? w->expected : w->saved.hash, &note);
    if (!st && rank == 0 && note.len_bytes)
        (void)snprintf(w->note, sizeof w->note, "%s", note.data);
    hd_text_free(&note);
    if (!st && hd_trainer_steps_done(t) != w->from)
        st = hd_err(HD_INTERNAL, "loaded step %lld", (long long)hd_trainer_steps_done(t));
    w->loaded_hash[rank] = hash_saved_state(t);
    return st;
}

static enum hd_status take_steps(struct hd_trainer *t, struct channel *w, bool speaks)
{
    enum hd_status st = HD_OK;

    for (int s = w->from + 1; !st && s <= w->to; s++) {
        struct hd_step_result result = {0};
        struct hd_saved saved;

        st = hd_trainer_step(t, 0, &result);
        if (speaks)
            w->loss[s] = result.loss, w->lr[s] = result.lr;
        if (st || s != w->save_at)
            continue;
        st = hd_trainer_save(t, &saved);
        if (speaks) {
            w->saved = saved;
            w->saved_hash = hash_saved_state(t);
        }
    }
    return st;
}

/* Takes the steps of the way as a rank does: at the end of a span of data.stages in another trainer, on
 * the same communicator, from a checkpoint. */
static enum hd_status take_spans(struct harness_rank *r, struct hd_trainer_options *options,
                                 struct hd_trainer **t, struct channel *w)
{
    struct channel part = *w;
    enum hd_status st = HD_OK;

    while (!st && part.from < w->to) {
        struct hd_saved saved;

        if (part.from == hd_trainer_span_end(*t)) {
            st = hd_trainer_save(*t, &saved);
            hd_trainer_free(*t);
            *t = NULL;
            options->layout.step = part.from + 1;
            if (!st)
                st = hd_trainer_new(r->job, options, t);
            if (!st)
                st = hd_trainer_load(*t, saved.path, saved.hash, NULL);
        }
        part.to = st ? part.from : (int)hd_trainer_span_end(*t);
        if (part.to > w->to)
            part.to = w->to;
        if (!st)
            st = take_steps(*t, &part, r->rank == 0);
        part.from = part.to;
    }
    if (r->rank == 0) {
        memcpy(w->loss, part.loss, sizeof w->loss);
        memcpy(w->lr, part.lr, sizeof w->lr);
        w->saved = part.saved;
        w->saved_hash = part.saved_hash;
    }
    return st;
}

static enum hd_status go(struct harness_rank *r)
{
    struct channel *w = r->context;
    struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                         .backend = harness_backend(),
                                         .instance = r->instance,
                                         .comm = r->comm,
                                         .rank = r->rank,
                                         .layout = {.step = w->from + 1}};
    struct hd_trainer *t;
    int64_t targets;
    double validation;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = begin(t, w, r->rank);
    if (st && w->from) {
        w->refused[r->rank] = st;
        (void)snprintf(w->story[r->rank], sizeof w->story[0], "%s", hd_err_message());
        hd_trainer_free(t);
        return HD_OK;
    }
    if (!st)
        st = take_spans(r, &options, &t, w);
    if (!st)
        st = hd_trainer_validate(t, &validation, &targets);
    if (!st && r->rank == 0)
        w->validation = validation;
    if (t)
        w->hash[r->rank] = hash_saved_state(t);
    hd_trainer_free(t);
    return st;
}

static void try_way(struct hd_job job, int dp, struct channel *w)
{
    job.dp = dp;
    if (harness_threads(&job, dp, w, go))
        fail_msg("%d ranks: %s", dp, hd_err_message());
}

static void run_way(struct hd_job job, int dp, struct channel *w)
{
    try_way(job, dp, w);
    for (int r = 0; r < dp; r++) {
        if (w->refused[r])
            fail_msg("rank %d of %d: %s", r, dp, w->story[r]);
        assert_true(w->hash[r] == w->hash[0]);
    }
}

/* Every rank refuses to load the checkpoint and says both. */
static void check_refused(struct hd_job job, int dp, struct channel *w, const char *a,
                          const char *b)
{
    try_way(job, dp, w);
    for (int r = 0; r < dp; r++) {
        assert_int_equal(w->refused[r], HD_CORRUPT);
        assert_non_null(strstr(w->story[r], a));
        assert_non_null(strstr(w->story[r], b));
    }
}

static struct hd_job resume_job(const struct harness *h, const char *family, const char *precision)
{
    struct hd_job job = harness_job(h, family, 1);

    job.steps = STEPS;
    job.precision = hd_job_find_word(hd_job_precision_words, precision);
    return job;
}

/* ---- going on ---- */

/* Compares a run that is saved after step `at` and resumed with an undisturbed one. */
static void resume_at(struct hd_job job, int dp, int at, const struct channel *straight)
{
    struct channel first = {.to = at, .save_at = at}, second;

    run_way(job, dp, &first);
    second = (struct channel){.from = at, .to = STEPS, .saved = first.saved};
    run_way(job, dp, &second);
    assert_string_equal(second.note, "");
    assert_true(second.loaded_hash[0] == first.saved_hash);
    assert_true(second.hash[0] == straight->hash[0]);
    for (int s = 1; s <= STEPS; s++)
        assert_true(straight->loss[s] == (s <= at ? first.loss[s] : second.loss[s]));
    assert_true(second.validation == straight->validation);
}

static void resume_case(const char *family, const char *precision, int dp, double dropout,
                        int64_t further)
{
    struct channel straight = {.to = STEPS};
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = resume_job(&h, family, precision);
    job.dropout_embedding = job.dropout_attention = job.dropout_residual = dropout;
    job.mtp_layers = further;
    job.mtp_weight = 0.3;
    run_way(job, dp, &straight);
    resume_at(job, dp, HALF, &straight);
    harness_teardown(&h);
}

static void a_resumed_run_is_the_undisturbed_run_bit_for_bit(void **state)
{
    resume_case("llama", "fp32", 2, 0, 0);
    resume_case("gpt2", "fp32", 1, 0, 0);
    resume_case("gpt2", "fp32", 2, 0.2, 0);
    resume_case("llama", "bf16", 2, 0, 2);
    resume_case("llama", "fp16", 2, 0, 0);
}

/* Makes the job go on from a checkpoint, as lib/spec does. */
static void continue_from(struct hd_job *job, const struct hd_saved *saved)
{
    job->continue_from = job_text("%s", saved->path);
    job->init_from = job_text("%s", saved->path);
    job->init_identity = job_text("%s", saved->hash);
}

/* Goal: a new job that goes on from a checkpoint is the undisturbed run, bit for bit, while data,
 * batch and schedule are the same; a batch of other size reads on behind what was read; other data
 * begin at their first sample. Method: 6 steps of 8 sequences read 48, with which the 13th batch of
 * 4 begins, and so at step 7 the fourth of 16. The other data are the same file in its own order. */
static void a_new_job_goes_on_from_a_checkpoint_bit_for_bit(void **state)
{
    struct channel straight = {.to = STEPS}, first = {.to = HALF, .save_at = HALF}, second, other;
    struct harness h;
    struct hd_job job, next;

    harness_setup(&h, 20000);
    job = resume_job(&h, "llama", "bf16");
    run_way(job, 2, &straight);
    run_way(job, 2, &first);
    next = job;
    continue_from(&next, &first.saved);
    next.attempt = 2; /* a folder of its own for what it saves */
    second = (struct channel){.from = HALF, .to = STEPS, .save_at = 9, .saved = first.saved};
    run_way(next, 2, &second);
    assert_string_equal(second.note, "reads on in its data behind 48 sequences");
    assert_true(second.loaded_hash[0] == first.saved_hash);
    assert_true(second.hash[0] == straight.hash[0]);
    for (int s = HALF + 1; s <= STEPS; s++)
        assert_true(second.loss[s] == straight.loss[s] && second.lr[s] == straight.lr[s]);

    next.global_batch = 4;
    next.lr_after = HALF; /* the warm-up of 2 steps begins anew */
    other = (struct channel){.from = HALF, .to = STEPS, .saved = first.saved};
    run_way(next, 2, &other);
    assert_string_equal(other.note, "reads on in its data behind 48 sequences");
    assert_true(other.loss[HALF + 1] != straight.loss[HALF + 1]); /* of half as many sequences */
    assert_true(fabs(other.lr[HALF + 1] - 1.5e-3) < 1e-9);

    next = job;
    continue_from(&next, &first.saved);
    next.order = HD_JOB_ORDER_SEQUENTIAL;
    other = (struct channel){.from = HALF, .to = STEPS, .saved = first.saved};
    run_way(next, 2, &other);
    assert_string_equal(other.note, "begins with other data at their first sequence");
    job.steps = HALF;
    continue_from(&job, &first.saved);
    other = (struct channel){.from = HALF, .saved = first.saved};
    try_way(job, 1, &other);
    assert_int_equal(other.refused[0], HD_INVALID);
    assert_non_null(strstr(other.story[0], "has taken 6 steps; train.steps is 6"));
    job.init_identity = "0123456789abcdef";
    try_way(job, 1, &other);
    assert_int_equal(other.refused[0], HD_INVALID);
    harness_teardown(&h);
}

/* Goal: a run in stages resumes exactly in any stage and at a border. Method: the corpus for six
 * steps, then a mixture with another text under a schedule of its own; resumed in the first stage,
 * at the border, and in the second. The first stage is a run without stages; the second falls from
 * 1e-3 to 0 in its six steps. */
static void a_run_in_stages_resumes_in_any_stage_and_at_their_border(void **state)
{
    static const int places[] = {3, HALF, 8};
    struct channel plain = {.to = STEPS}, straight = {.to = STEPS};
    double weights[] = {1, 1, 0, 3}; /* [source, stage] */
    struct hd_job_file files[2];
    char other[256], text[4000];
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('0' + i * i % 11);
    (void)snprintf(other, sizeof other, "%s/other.txt", h.dir);
    assert_int_equal(hd_file_write_atomic(other, text, sizeof text, 0644), HD_OK);
    job = resume_job(&h, "llama", "fp32");
    files[0] = (struct hd_job_file){.path = h.corpus, .size_bytes = 20000};
    files[1] = (struct hd_job_file){.path = other, .size_bytes = sizeof text, .source = 1};
    job.train = job.val = files;
    job.train_count = job.val_count = 1;
    job.val_split = 0;
    run_way(job, 2, &plain);
    job.train_count = job.weight_count = 2;
    job.weights = weights;
    job.data_stages = "6 -;0 1e-3 0 linear 0 0";
    run_way(job, 2, &straight);
    for (int s = 1; s <= STEPS; s++) {
        if (s <= HALF)
            assert_true(straight.loss[s] == plain.loss[s] && straight.lr[s] == plain.lr[s]);
        else
            assert_true(fabs(straight.lr[s] - 1e-3 * (STEPS - s) / (STEPS - HALF)) < 1e-9);
    }
    assert_true(straight.loss[HALF + 1] != plain.loss[HALF + 1]); /* of another text */
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        resume_at(job, 2, places[i], &straight);
    harness_teardown(&h);
}

/* Gives the job a folder of its own for what it saves. */
static void set_folder(const struct harness *h, const char *name, struct hd_job *job)
{
    job->attempt_dir = job_text("%s/%s", h->dir, name);
    assert_int_equal(mkdir(job->attempt_dir, 0755), 0);
}

/* Goal: a run whose stages have windows of two lengths is two runs by hand, of which the second goes on
 * from the first one's checkpoint; and it resumes exactly in either and at their border. Method: six
 * steps of 8 windows of 16 tokens, then six of 4 windows of 32 of another text, with other angles: in
 * one run, in two, and resumed. By hand a micro-batch has 4 windows of 16 tokens, as many tokens as 2
 * of 32. */
static void a_run_with_two_contexts_is_two_runs_by_hand(void **state)
{
    static const int places[] = {3, HALF, 8};
    struct channel straight = {.to = STEPS}, first = {.to = HALF, .save_at = HALF}, second;
    double weights[] = {1, 0, 0, 1}; /* [source, stage] */
    struct hd_job_file files[2];
    char other[256], text[4000];
    struct harness h;
    struct hd_job job, hand;

    harness_setup(&h, 20000);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('0' + i * i % 11);
    (void)snprintf(other, sizeof other, "%s/other.txt", h.dir);
    assert_int_equal(hd_file_write_atomic(other, text, sizeof text, 0644), HD_OK);
    job = resume_job(&h, "llama", "bf16");
    files[0] = (struct hd_job_file){.path = h.corpus, .size_bytes = 20000};
    files[1] = (struct hd_job_file){.path = other, .size_bytes = sizeof text, .source = 1};
    job.train = job.val = files;
    job.train_count = job.weight_count = 2;
    job.val_count = 1;
    job.val_split = 0;
    job.context = 32;
    job.global_batch = 4;
    job.rope_theta = 500;
    job.weights = weights;
    job.data_stages = "6@16,8,10000 -;0@32,4,500 -";
    run_way(job, 2, &straight);

    hand = job;
    set_folder(&h, "hand", &hand);
    hand.data_stages = "";
    hand.weights = NULL;
    hand.weight_count = 0;
    hand.train_count = 1;
    hand.context = 16;
    hand.global_batch = 8;
    hand.micro_batch = 4;
    hand.rope_theta = 10000;
    run_way(hand, 2, &first);
    hand.context = 32;
    hand.global_batch = 4;
    hand.micro_batch = 2;
    hand.rope_theta = 500;
    hand.train = &files[1];
    files[1].source = 0;
    continue_from(&hand, &first.saved);
    second = (struct channel){.from = HALF, .to = STEPS, .saved = first.saved};
    run_way(hand, 2, &second);
    files[1].source = 1;
    for (int s = 1; s <= STEPS; s++)
        assert_true(straight.loss[s] == (s <= HALF ? first.loss[s] : second.loss[s]));
    assert_true(straight.hash[0] == second.hash[0] && straight.validation == second.validation);

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        set_folder(&h, (const char *[]){"a", "b", "c"}[i], &job);
        resume_at(job, 2, places[i], &straight);
    }
    harness_teardown(&h);
}

/* Saving is no part of the mathematics. */
static void saving_changes_nothing(void **state)
{
    struct harness h;
    struct hd_job job;
    struct channel quiet = {.to = STEPS}, saving = {.to = STEPS, .save_at = HALF};

    harness_setup(&h, 20000);
    job = resume_job(&h, "llama", "bf16");
    run_way(job, 2, &quiet);
    run_way(job, 2, &saving);
    /* hash_saved_state clears gradients, which the next step stores anew */
    assert_true(quiet.hash[0] == saving.hash[0]);
    assert_int_equal(hd_ckpt_verify(saving.saved.path), HD_OK);
    harness_teardown(&h);
}

/* The state is the same to the bit on every number of ranks; the steps that follow differ only in
 * rounding, and the note says that they do. */
static void what_two_ranks_saved_one_and_four_ranks_load(void **state)
{
    static const int worlds[] = {1, 4};
    struct harness h;
    struct hd_job job;
    struct channel saved = {.to = STEPS, .save_at = HALF};

    harness_setup(&h, 20000);
    job = resume_job(&h, "llama", "fp32");
    run_way(job, 2, &saved);
    for (int i = 0; i < 2; i++) {
        struct channel other = {.from = HALF, .to = STEPS, .saved = saved.saved};

        run_way(job, worlds[i], &other);
        for (int r = 0; r < worlds[i]; r++)
            assert_true(other.loaded_hash[r] == saved.saved_hash);
        assert_non_null(strstr(other.note, "dp was 2, is"));
        for (int s = HALF + 1; s <= STEPS; s++)
            assert_true(fabs(other.loss[s] - saved.loss[s]) <= 1e-4);
    }
    harness_teardown(&h);
}

/* ---- what must be refused ---- */

static void another_manifest_than_expected_is_refused(void **state)
{
    struct harness h;
    struct hd_job job;
    struct channel saved = {.to = HALF, .save_at = HALF}, other;

    harness_setup(&h, 20000);
    job = resume_job(&h, "llama", "fp32");
    run_way(job, 1, &saved);
    other = (struct channel){
        .from = HALF, .to = STEPS, .saved = saved.saved, .expected = "0123456789abcdef"};
    check_refused(job, 2, &other, "0123456789abcdef", saved.saved.hash);
    other = (struct channel){
        .from = HALF, .to = STEPS, .saved = saved.saved, .expected = "-"}; /* any */
    run_way(job, 1, &other);
    harness_teardown(&h);
}

/* Turns over one bit in the middle of a file: in tensor data, far from its table. */
static void damage(const char *path)
{
    struct stat file;
    unsigned char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &file), 0);
    assert_int_equal(pread(fd, &byte, 1, file.st_size / 2), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, file.st_size / 2), 1);
    assert_int_equal(close(fd), 0);
}

static void a_damaged_shard_is_named_and_not_loaded(void **state)
{
    struct harness h;
    struct hd_job job;
    struct channel saved = {.to = HALF, .save_at = HALF}, other;
    const struct hd_ckpt_manifest *manifest;
    struct hd_ckpt *ckpt;
    char path[HD_JOB_PATH_MAX + 128], name[128];

    harness_setup(&h, 20000);
    job = resume_job(&h, "llama", "fp32");
    run_way(job, 2, &saved);
    assert_int_equal(hd_ckpt_verify(saved.saved.path), HD_OK);
    assert_int_equal(hd_ckpt_open(saved.saved.path, &ckpt), HD_OK);
    manifest = hd_ckpt_get_manifest(ckpt);
    assert_int_equal(manifest->shard_count, 2);
    (void)snprintf(name, sizeof name, "%s", manifest->shards[1].file);
    hd_ckpt_close(ckpt);
    (void)snprintf(path, sizeof path, "%s/%s", saved.saved.path, name);
    damage(path);
    assert_int_equal(hd_ckpt_verify(saved.saved.path), HD_CORRUPT);
    assert_non_null(strstr(hd_err_message(), name));
    for (int dp = 1; dp <= 4; dp *= 4) {
        other = (struct channel){.from = HALF, .to = STEPS, .saved = saved.saved};
        check_refused(job, dp, &other, name, "rank 0: ");
    }
    harness_teardown(&h);
}

/* ---- a save that fails ---- */

struct blocked {
    char wall[HD_JOB_PATH_MAX]; /* a file where rank 1's shard should go */
    enum hd_status status[HARNESS_WORLD_MAX];
    char story[HARNESS_WORLD_MAX][512];
    uint64_t hash[HARNESS_WORLD_MAX], undisturbed;
};

/* A directory in the place of the file keeps even root from writing the shard. */
static enum hd_status save_against_a_wall(struct harness_rank *r)
{
    struct blocked *b = r->context;
    struct hd_trainer *t;
    struct hd_step_result result;
    struct hd_saved saved;
    enum hd_status st = harness_trainer(r, &t);

    if (st)
        return st;
    for (int s = 0; !st && s < HALF; s++)
        st = hd_trainer_step(t, 0, &result);
    if (st)
        return st;
    b->status[r->rank] = hd_trainer_save(t, &saved);
    (void)snprintf(b->story[r->rank], sizeof b->story[r->rank], "%s", hd_err_message());
    st = hd_trainer_step(t, 0, &result); /* behind this exchange rank 0 has removed the folder: */
    if (!st && hd_file_exists(b->wall))
        st = hd_err(HD_INTERNAL, "%s is left", b->wall);
    for (int s = HALF + 1; !st && s < STEPS; s++)
        st = hd_trainer_step(t, 0, &result);
    if (!st)
        st = hd_trainer_save(t, &saved);
    if (!st)
        st = hd_ckpt_verify(saved.path);
    b->hash[r->rank] = hash_saved_state(t);
    hd_trainer_free(t);
    return st;
}

static void a_save_that_fails_on_one_rank_is_told_to_all_and_training_goes_on(void **state)
{
    struct harness h;
    struct hd_job job;
    struct channel straight = {.to = STEPS};
    struct blocked blocked = {0};
    char dir[HD_JOB_PATH_MAX - 64];

    harness_setup(&h, 20000);
    job = resume_job(&h, "llama", "fp32");
    run_way(job, 4, &straight);

    (void)mkdir(job.attempt_dir, 0700);
    (void)snprintf(dir, sizeof dir, "%s/checkpoints", job.attempt_dir);
    (void)mkdir(dir, 0700);
    assert_int_equal(hd_ckpt_format_dir(job.attempt_dir, HALF, dir, sizeof dir), HD_OK);
    assert_int_equal(mkdir(dir, 0700), 0);
    (void)snprintf(blocked.wall, sizeof blocked.wall, "%s/rank-00001.safetensors", dir);
    assert_int_equal(mkdir(blocked.wall, 0700), 0);
    job.dp = 4;
    if (harness_threads(&job, 4, &blocked, save_against_a_wall))
        fail_msg("%s", hd_err_message());
    for (int r = 0; r < 4; r++) {
        assert_int_equal(blocked.status[r], HD_IO);
        assert_non_null(strstr(blocked.story[r], "checkpoint of step 6: rank 1: "));
        assert_non_null(strstr(blocked.story[r], "rank-00001.safetensors"));
        assert_true(blocked.hash[r] == straight.hash[0]);
    }
    assert_int_equal(hd_ckpt_verify(dir), HD_NOT_FOUND); /* nothing was committed */
    harness_teardown(&h);
}

/* Every byte is as it was written, and yet nothing can be trained from it. */
static enum hd_status load_a_nan(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    struct hd_saved saved;
    float *values;
    enum hd_status st = harness_trained(r, &t);

    if (st)
        return st;
    values = harness_take(t, 1, HD_STATE_MOMENT2);
    values[2] = NAN;
    harness_put(t, 1, HD_STATE_MOMENT2, values);
    st = hd_trainer_save(t, &saved);
    if (!st && hd_trainer_load(t, saved.path, saved.hash, NULL) != HD_CORRUPT)
        st = hd_err(HD_INTERNAL, "it was loaded");
    else if (!st &&
             (!strstr(hd_err_message(), saved.path) ||
              !strstr(hd_err_message(), hd_trainer_rank_program(t)->registry.params[1].name) ||
              !strstr(hd_err_message(), "adamw.v.")))
        st = hd_err_prefix(HD_INTERNAL, "unnamed");
    hd_trainer_free(t);
    return st;
}

static void a_checkpoint_with_a_nan_is_named_and_not_loaded(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 20000);
    job = resume_job(&h, "llama", "fp32");
    if (harness_threads(&job, 1, NULL, load_a_nan))
        fail_msg("%s", hd_err_message());
    harness_teardown(&h);
}

/* ---- ranks that read for long ---- */

enum { STEP_MS = 1500 }; /* that a rank waits for the other one in a step */

struct reading {
    int64_t signs;
    bool slow; /* true: it has just read something that takes longer than a step may */
};

static void note_sign(void *user)
{
    struct reading *reading = user;

    if (reading->slow)
        (void)usleep((STEP_MS + 1000) * 1000);
    reading->slow = false;
    reading->signs++;
}

/* Runs a load that the second rank takes long for, and a step behind it. */
static enum hd_status read_for_long(struct harness_rank *r)
{
    struct reading reading = {.slow = r->rank == 1};
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .alive = note_sign,
                                               .alive_user = &reading};
    const struct hd_registry *registry;
    struct hd_trainer *t;
    struct hd_step_result step;
    struct hd_saved saved;
    int64_t local = 0;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    hd_trainer_set_deadlines(t, STEP_MS, 60 * 1000);
    registry = &hd_trainer_rank_program(t)->registry;
    for (int i = 0; i < registry->param_count; i++)
        local += hd_param_is_local(registry, i);
    st = hd_trainer_init(t);
    if (!st && reading.signs != local)
        st = hd_err(HD_INTERNAL, "%lld signs of %lld parameters", (long long)reading.signs,
                    (long long)local);
    if (!st)
        st = hd_trainer_step(t, 0, &step);
    if (!st)
        st = hd_trainer_save(t, &saved);
    reading = (struct reading){.slow = r->rank == 1};
    if (!st)
        st = hd_trainer_load(t, saved.path, saved.hash, NULL);
    if (!st && reading.signs != local)
        st = hd_err(HD_INTERNAL, "%lld signs of a load of %lld parameters",
                    (long long)reading.signs, (long long)local);
    if (!st)
        st = hd_trainer_step(t, 0, &step);
    hd_trainer_free(t);
    return st;
}

/* Goal: a rank that reads for long is alive, and others wait for it. Method: of two ranks one takes longer
 * to read than a rank waits in a step; each parameter that was read is a sign of life. */
static void a_rank_that_reads_for_long_is_waited_for(void **state)
{
    struct harness h;
    struct hd_job job;

    harness_setup(&h, 4000);
    job = harness_job(&h, "llama", 2);
    if (harness_threads(&job, 2, NULL, read_for_long))
        fail_msg("%s", hd_err_message());
    harness_teardown(&h);
}

/* ---- checkpoint.best ---- */

/* Checkpoints that rank 0 found during the run. */
struct best {
    struct hd_saved validated, later;
    double first_loss;
    bool best_at_zero, best_first, best_unvalidated, best_again;
};

static enum hd_status find_best(struct harness_rank *r)
{
    struct best *b = r->context, found = {.first_loss = 0};
    const struct hd_trainer_options options = {.peak = 1, /* FLOP/s: slower than any machine */
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank};
    struct hd_trainer *t;
    struct hd_step_result step;
    double loss;
    int64_t targets;
    enum hd_status st = hd_trainer_new(r->job, &options, &t);

    if (st)
        return st;
    st = hd_trainer_init(t);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets);
    found.best_at_zero = hd_trainer_is_best(t);
    if (!st)
        st = hd_trainer_step(t, 0, &step);
    if (!st && step.mfu != 1) /* a peak that the run exceeds was measured wrongly */
        st = hd_err(HD_INTERNAL, "mfu is %g", step.mfu);
    if (!st)
        st = hd_trainer_validate(t, &found.first_loss, &targets);
    found.best_first = hd_trainer_is_best(t);
    if (!st)
        st = hd_trainer_save(t, &found.validated);
    if (!st)
        st = hd_trainer_step(t, 0, &step);
    found.best_unvalidated = hd_trainer_is_best(t);
    if (!st)
        st = hd_trainer_save(t, &found.later);
    if (!st)
        st = hd_trainer_load(t, found.validated.path, found.validated.hash, NULL);
    if (!st)
        st = hd_trainer_validate(t, &loss, &targets); /* the same loss: not a lower one */
    found.best_again = hd_trainer_is_best(t);
    if (!st && loss != found.first_loss)
        st = hd_err(HD_INTERNAL, "the loss was %.17g, is %.17g", found.first_loss, loss);
    hd_trainer_free(t);
    if (r->rank == 0)
        *b = found;
    return st;
}

/* Goal: the lowest validation loss is part of the state. Method: validate what was validated before
 * the checkpoint, from the checkpoint: without its memory this would be the lowest. */
static void the_lowest_validation_loss_is_kept_in_checkpoints(void **state)
{
    struct harness h;
    struct best b = {.first_loss = 0};
    struct hd_job job;
    struct hd_ckpt *ckpt = NULL;

    harness_setup(&h, 4000);
    job = harness_job(&h, "llama", 2);
    job.checkpoint_best = true;
    if (harness_threads(&job, 2, &b, find_best))
        fail_msg("%s", hd_err_message());
    assert_false(b.best_at_zero);
    assert_true(b.best_first);
    assert_false(b.best_unvalidated);
    assert_false(b.best_again);
    assert_true(b.validated.val_loss == b.first_loss);
    assert_true(isnan(b.later.val_loss));
    assert_int_equal(hd_ckpt_open(b.later.path, &ckpt), HD_OK);
    assert_false(hd_ckpt_get_manifest(ckpt)->has_val_loss);
    assert_true(hd_ckpt_get_manifest(ckpt)->lowest_val_loss == b.first_loss);
    hd_ckpt_close(ckpt);
    harness_teardown(&h);
}

RUN_CASES()
