/* rank: one rank of an attempt, from the resolved job to the exit status.
 *
 *   connect to supervisor and peers (rank_connect.c) -> reserve, compile, bind -> weights from init or
 *   from the base checkpoint -> check the disk space -> [validate] [samples] step .. [validate]
 *   [samples] [checkpoint] .. -> last checkpoint -> exit
 *
 * At the first step of another span of data.stages (another length of windows), the ranks write a
 * checkpoint, free their trainers and go on from it in new ones. So a run that was killed there goes
 * on as one that was not: the span follows from the step of the checkpoint.
 *
 * A disk that accepts no writes does not end a run (docs/decisions/full-disks.md): before the first
 * step the ranks wait for disk space, a periodic checkpoint is skipped, the last one is retried
 * until it is written.
 *
 * Decisions that change what the ranks do together (stop, checkpoint now) travel with the exchange
 * that ends each step, so that all ranks decide alike after the same step.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "checkpoint/checkpoint.h"
#include "comm/gloo.h"
#include "hf/hf.h"
#include "job/batch_spans.h"
#include "job/data_stages.h"
#include "train/reserve.h"
#include "worker/rank_policy.h"

enum { READING_MS = 20 * 1000 }; /* ms between signs of life while weights are read */

void rank_say(struct rank *r, enum hd_link_level level, const char *text)
{
    rank_say_about(r, level, r->rank, text);
}

void rank_say_about(struct rank *r, enum hd_link_level level, int64_t about, const char *text)
{
    const bool warns = level != HD_LINK_LEVEL_INFO && level != HD_LINK_LEVEL_SAMPLE;

    hd_log(warns ? HD_LOG_WARN : HD_LOG_INFO, "%s", text);
    if (r->rank == 0)
        hd_link_report_event_about(r->link, level, about == r->rank ? NAN : (double)about, text);
}

void rank_say_set_up(void *rank)
{
    struct rank *r = rank;

    hd_link_report_phase(r->link, HD_LINK_PHASE_SETUP, 0);
}

/* ---- set-up ---- */

/* Warns about settings of a model directory that are ignored; its errors were reported when the job
 * was read. */
static void say_notes(struct rank *r)
{
    struct hd_text notes = {0};
    struct hd_job model;

    hd_job_init(&model, &r->arena);
    if (hd_hf_has_config(r->job.init_from) && !hd_source_is_checkpoint(r->job.init_from) &&
        !hd_hf_read_config(r->job.init_from, &model, &notes) && notes.len_bytes)
        rank_say(r, HD_LINK_LEVEL_WARN, notes.data);
    hd_text_free(&notes);
}

/* Finds out why the checkpoint to start from gave HD_NOT_FOUND. If it is gone and the attempt's own
 * folder, on the same file system, exists: no_base. If that folder is gone, too, the file system is
 * lost and may come back: HD_IO. If the checkpoint exists, a part of it is missing: bad_base,
 * unless the missing part is the base model, which every checkpoint of the job needs. */
static enum hd_status look_for_base(struct rank *r)
{
    struct hd_error error;
    bool there;

    hd_err_save(HD_NOT_FOUND, &error);
    there = hd_source_is_checkpoint(r->job.base_checkpoint);
    if (!there && !hd_file_exists(r->job.attempt_dir))
        return hd_err(HD_IO, "%s; %s does not exist either: is the file system mounted?",
                      error.message, r->job.attempt_dir);
    r->no_base = !there;
    r->bad_base = there && (r->job.checkpoint_base != HD_JOB_CHECKPOINT_BASE_OMIT ||
                            hd_file_exists(r->job.init_from));
    return hd_err_restore(&error);
}

/* Reports progress while text is tokenized; returns false when a peer has failed. */
static bool alive(void *context, int64_t done_bytes, int64_t total_bytes)
{
    struct rank *r = context;

    (void)done_bytes, (void)total_bytes;
    hd_link_report_phase(r->link, HD_LINK_PHASE_SETUP, hd_max(r->saved_step, 0));
    return hd_comm_failure(r->open.comm) == HD_OK;
}

static bool reference_goes_on(void *context, int64_t done_windows, int64_t windows)
{
    (void)done_windows, (void)windows;
    return alive(context, 0, 0);
}

/* Reports that the rank reads weights. Rarely: many short silences would teach the supervisor a limit that
 * other parts of a start exceed. */
static void say_reading(void *user)
{
    struct rank *r = user;
    const int64_t now_ms = hd_clock_now_ms();

    if (now_ms - r->read_ms < READING_MS)
        return;
    r->read_ms = now_ms;
    hd_link_report_alive(r->link);
}

/* Keeps the weights with which the run began as the reference of train.policy.kl, before an attempt that
 * goes on loads its checkpoint. */
static enum hd_status keep_start(struct rank *r)
{
    struct hd_text said = {0}, note = {0};
    enum hd_status st;

    if (!hd_job_has_reference(&r->job))
        return HD_OK;
    st = r->job.continue_from[0] ? hd_trainer_continue(r->trainer, &said, &note)
                                 : hd_trainer_init(r->trainer);
    if (!st)
        st = hd_trainer_keep_reference(r->trainer);
    hd_text_free(&said);
    hd_text_free(&note);
    if (!st)
        return HD_OK;
    return hd_err_prefix(st,
                         "the reference of train.policy.kl, the weights with which the run began");
}

/* Prepares DPO's reference; does nothing for other objectives. *ret_initial: the trainer now has
 * the initial weights. */
static enum hd_status prepare_reference(struct rank *r, bool *ret_initial)
{
    const struct hd_reference_watch watch = {reference_goes_on, r};
    const int64_t begin = hd_clock_now_ns();
    char text[128];
    const enum hd_status st = hd_trainer_prepare_reference(r->trainer, &watch, ret_initial);

    if (st || !*ret_initial)
        return st;
    (void)snprintf(text, sizeof text, "computed the log-probabilities of the reference in %.1f s",
                   (double)(hd_clock_now_ns() - begin) * 1e-9);
    rank_say(r, HD_LINK_LEVEL_INFO, text);
    return HD_OK;
}

/* Goes on from the checkpoint of another run (train.continue_from). */
static enum hd_status go_on(struct rank *r)
{
    struct hd_text said = {0}, note = {0}, text = {0};
    const enum hd_status st = hd_trainer_continue(r->trainer, &said, &note);

    if (!st)
        hd_text_add(&text, "goes on from step %lld (%s), %s",
                    (long long)hd_trainer_steps_done(r->trainer), r->job.continue_from,
                    said.data ? said.data : "");
    if (!st && text.data && !text.failed)
        rank_say(r, HD_LINK_LEVEL_INFO, text.data);
    if (!st && note.len_bytes)
        rank_say(r, HD_LINK_LEVEL_WARN, note.data);
    hd_text_free(&said);
    hd_text_free(&note);
    hd_text_free(&text);
    return st;
}

static enum hd_status load_weights(struct rank *r)
{
    struct hd_text note = {0};
    char text[HD_JOB_PATH_MAX + 128];
    bool initial = false;
    enum hd_status st = prepare_reference(r, &initial);

    if (!st && r->job.base_checkpoint[0])
        st = keep_start(r);
    if (st)
        return st;
    if (!r->job.base_checkpoint[0] && r->job.continue_from[0]) {
        st = go_on(r);
        return st ? st : hd_trainer_keep_reference(r->trainer);
    }
    if (!r->job.base_checkpoint[0]) {
        st = initial ? HD_OK : hd_trainer_init(r->trainer);
        if (!st)
            st = hd_trainer_keep_reference(r->trainer);
        if (!st && r->job.init_from[0]) {
            (void)snprintf(text, sizeof text, "starts from the weights of %s", r->job.init_from);
            rank_say(r, HD_LINK_LEVEL_INFO, text);
            say_notes(r);
        }
        return st;
    }
    st = hd_trainer_load(r->trainer, r->job.base_checkpoint, r->job.base_manifest_hash, &note);
    r->bad_base = st == HD_CORRUPT;
    if (st == HD_NOT_FOUND)
        st = look_for_base(r);
    if (!st) {
        r->saved_step = hd_trainer_steps_done(r->trainer);
        (void)snprintf(text, sizeof text, "%s from step %lld (%s)",
                       r->saved.path[0] ? "goes on" : "resumed",
                       (long long)hd_trainer_steps_done(r->trainer), r->job.base_checkpoint);
        rank_say(r, HD_LINK_LEVEL_INFO, text);
    }
    if (!st && note.len_bytes)
        rank_say(r, HD_LINK_LEVEL_WARN, note.data);
    hd_text_free(&note);
    return st;
}

/* Warns, on rank 0, about special tokens that the tokenizer's files leave open or contradict each
 * other in. */
static void say_tokenizer_notes(struct rank *r, struct hd_job_tokenizer *tokenizer)
{
    struct hd_text notes = {0};
    char *rest, *line;

    if (!r->rank && !hd_job_tokenizer_notes(tokenizer, &r->job, &notes))
        for (rest = notes.data; rest && (line = strsep(&rest, "\n")) && *line;)
            rank_say(r, HD_LINK_LEVEL_WARN, line);
    hd_text_free(&notes);
}

/* Tokenizes text that is not read byte by byte, once for all attempts. */
static enum hd_status make_tokens(struct rank *r, struct hd_job_tokenizer *tokenizer,
                                  struct hd_token_cache *ret_tokens)
{
    const struct hd_token_cache_watch watch = {
        .rank = (int)r->rank, .world = (int)r->world, .alive = alive, .context = r};
    const int64_t begin = hd_clock_now_ns();
    char text[400];
    enum hd_status st = hd_token_cache_fill(&r->job, tokenizer, &watch, &r->arena, ret_tokens);

    if (!st && ret_tokens->train) /* the job has text to tokenize */
        say_tokenizer_notes(r, tokenizer);
    if (!st && ret_tokens->made) {
        (void)snprintf(text, sizeof text, "tokenized %lld file%s in %.1f s",
                       (long long)ret_tokens->made, ret_tokens->made == 1 ? "" : "s",
                       (double)(hd_clock_now_ns() - begin) * 1e-9);
        rank_say(r, HD_LINK_LEVEL_INFO, text);
    }
    if (!st && *r->job.date) {
        (void)snprintf(text, sizeof text, "the chat template gets %.40s as the day that it is",
                       r->job.date);
        rank_say(r, HD_LINK_LEVEL_INFO, text);
    }
    if (!st && ret_tokens->spelled) {
        (void)snprintf(
            text, sizeof text,
            "in %lld conversations a message spells a special token: that is ordinary text",
            (long long)ret_tokens->spelled);
        rank_say(r, HD_LINK_LEVEL_WARN, text);
    }
    if (!st && ret_tokens->left_out) {
        (void)snprintf(text, sizeof text,
                       "left out %lld of %lld records that cannot be used (data.bad_rows); the "
                       "first: %.250s",
                       (long long)ret_tokens->left_out, (long long)ret_tokens->records,
                       ret_tokens->first_left_out);
        hd_log(HD_LOG_WARN, "%s", text);
        /* each rank has files of its own, so that each reports */
        hd_link_report_event(r->link, HD_LINK_LEVEL_WARN, text);
    }
    return st;
}

/* Reports the host memory in the plan. A rank of a job on several nodes has additional buffers for
 * messages between nodes. */
static void tell_plan(void *user, int64_t host_bytes)
{
    const struct rank *r = user;

    if (r->data_address)
        host_bytes += (int64_t)hd_gloo_memory_bytes((int)r->world);
    hd_link_report_planned(r->link, host_bytes);
}

/* Returns the first step that the attempt trains, 1 if its checkpoint cannot be read: loading it then
 * tells why. */
static int64_t first_step(const struct rank *r)
{
    const char *dir = *r->job.base_checkpoint ? r->job.base_checkpoint : r->job.continue_from;
    struct hd_ckpt *ckpt = NULL;
    int64_t step = 0;

    if (!*dir || !hd_job_has_spans(&r->job) || hd_ckpt_open(dir, &ckpt))
        return 1;
    if (hd_ckpt_get_counter(ckpt, "step", &step))
        step = 0;
    hd_ckpt_close(ckpt);
    return step + 1;
}

/* Says the length of windows and the batch of the trainer's span, if the job has several. */
static void say_span(struct rank *r)
{
    const struct hd_job *job = &hd_trainer_rank_program(r->trainer)->job;
    char text[160];

    if (!hd_job_has_spans(&r->job))
        return;
    (void)snprintf(text, sizeof text,
                   "to step %lld it trains on windows of %lld tokens, %lld in a step, %lld in a "
                   "micro-batch, with model.rope_theta = %g",
                   (long long)hd_trainer_span_end(r->trainer), (long long)job->context,
                   (long long)job->global_batch, (long long)job->micro_batch, job->rope_theta);
    rank_say(r, HD_LINK_LEVEL_INFO, text);
}

/* Opens the trainer of the span in which the job's base checkpoint goes on, and loads it. */
static enum hd_status set_up(struct rank *r)
{
    const struct hd_batch_spans batches = hd_job_batch_spans(&r->job);
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    struct hd_token_cache tokens;
    const struct hd_trainer_options options = {.layout = {.step = first_step(r)},
                                               .backend = r->backend,
                                               .instance = r->open.backend,
                                               .comm = r->open.comm,
                                               .rank = (int)r->rank,
                                               .tokenizer = &tokenizer,
                                               .tokens = &tokens,
                                               .planned = tell_plan,
                                               .planned_user = r,
                                               .alive = say_reading,
                                               .alive_user = r};
    enum hd_status st = make_tokens(r, &tokenizer, &tokens);
    char text[160], bytes[32], huge[32], where[64];
    const struct hd_reservation *m;
    struct hd_text data = {0};

    if (!st)
        st = hd_trainer_new(&r->job, &options, &r->trainer);
    if (!st && r->rank == 0 && hd_trainer_sample_count(r->trainer)) {
        r->tokenizer = tokenizer; /* for the texts of samples; closed with the rank */
        tokenizer = (struct hd_job_tokenizer){.opened = NULL};
    }
    hd_job_tokenizer_close(&tokenizer);
    rank_say_transports(r);
    if (st)
        return st;
    hd_trainer_set_deadlines(r->trainer, r->step_deadline_ms, r->save_deadline_ms);
    m = hd_trainer_reservation(r->trainer);
    hd_text_format_bytes(m->private_bytes + m->registered_bytes, bytes);
    (void)snprintf(where, sizeof where, "on the GPU");
    if (!r->backend->device) {
        hd_text_format_bytes(hd_memory_huge_bytes(m->private_base, m->private_bytes) +
                                 hd_memory_huge_bytes(m->registered_base, m->registered_bytes),
                             huge);
        (void)snprintf(where, sizeof where, "%s of it on huge pages", huge);
    }
    (void)snprintf(
        text, sizeof text, "%lld parameters, %s reserved per rank, %s",
        (long long)hd_registry_global_count(&hd_trainer_rank_program(r->trainer)->registry), bytes,
        where);
    rank_say(r, HD_LINK_LEVEL_INFO, text);
    if (r->data_address) {
        hd_text_format_bytes((int64_t)hd_gloo_memory_bytes((int)r->world), bytes);
        (void)snprintf(text, sizeof text, "%s more per rank, for messages between nodes", bytes);
        rank_say(r, HD_LINK_LEVEL_INFO, text);
    }
    say_span(r);
    hd_trainer_describe_data(r->trainer, hd_batch_spans_before(&batches, r->job.steps), &data);
    rank_say(r, HD_LINK_LEVEL_INFO, data.failed ? "" : data.data);
    hd_text_free(&data);
    st = rank_policy_open(r);
    if (!st)
        st = rank_tasks_open(r);
    if (!st)
        st = load_weights(r);
    if (!st && hd_job_has_spans(&r->job) &&
        hd_trainer_steps_done(r->trainer) + 1 != options.layout.step)
        st =
            hd_err(HD_IO, "the checkpoint of step %lld could not be read when the trainer was made",
                   (long long)hd_trainer_steps_done(r->trainer));
    return st ? st : hd_trainer_open_teacher(r->trainer);
}

/* Writes the teacher's file (train.distill.write), in place of training. */
static enum hd_status teach(struct rank *r)
{
    const struct hd_reference_watch watch = {reference_goes_on, r};
    struct hd_text said = {0};
    const enum hd_status st = hd_trainer_write_teacher(r->trainer, &watch, &said);

    hd_link_report_phase(r->link, HD_LINK_PHASE_ENDING, 0);
    r->ends_early = true;
    if (!st) {
        rank_say(r, HD_LINK_LEVEL_INFO, said.failed ? "" : said.data);
        hd_link_report_failure(r->link, HD_OK, -1, "",
                               said.failed ? "wrote the teacher's file" : said.data);
    }
    hd_text_free(&said);
    return st;
}

/* ---- the profile ---- */

static void write_profile(struct rank *r, bool ended)
{
    struct hd_text note = {0};

    if (hd_trainer_write_profile(r->trainer, ended, &note))
        rank_say(r, HD_LINK_LEVEL_WARN, hd_err_message());
    else if (note.len_bytes)
        rank_say(r, HD_LINK_LEVEL_INFO, note.data);
    hd_text_free(&note);
}

/* ---- the run ---- */

/* Raises the deadlines of waits for peers when steps become longer, as the supervisor does: the
 * supervisor's limit grows with the longest silence of this attempt, to at most 8 times that
 * silence; a rank's deadline is 16 steps. */
static void follow_steps(struct rank *r, const struct hd_step_result *s)
{
    const int64_t needed_ms = 16 * (int64_t)s->step_ms;

    if (needed_ms <= r->step_deadline_ms)
        return;
    r->step_deadline_ms = needed_ms;
    hd_trainer_set_deadlines(r->trainer, r->step_deadline_ms,
                             hd_max(r->save_deadline_ms, needed_ms));
}

void rank_listen(struct rank *r)
{
    switch (hd_link_poll(r->link)) {
    case HD_LINK_COMMAND_NONE:
        break;
    case HD_LINK_COMMAND_STOP:
        r->request = REQUEST_STOP;
        break;
    /* all ranks receive the command, but in different steps: only rank 0 requests the checkpoint */
    case HD_LINK_COMMAND_CHECKPOINT:
        if (r->rank == 0 && r->request < REQUEST_CHECKPOINT)
            r->request = REQUEST_CHECKPOINT;
        break;
    }
}

static void add_loads(const struct hd_router_result *router, struct hd_link_step *step)
{
    step->expert_load_count =
        router->experts < HD_LINK_LOADS_MAX ? router->experts : HD_LINK_LOADS_MAX;
    for (int64_t e = 0; e < step->expert_load_count; e++)
        step->expert_load[e] = router->load[e];
}

static void report_step(struct rank *r, const struct hd_step_result *s)
{
    struct hd_link_step step = {.step = s->step, .metrics = rank_metrics(r, s)};

    hd_log(HD_LOG_INFO, "step %lld: loss %.4f grad_norm %.4f lr %.3g tokens/s %.0f step_ms %.1f",
           (long long)s->step, s->loss, s->grad_norm, s->lr, s->tokens_per_s, s->step_ms);
    if (r->rank != 0) {
        hd_link_report_phase(r->link, HD_LINK_PHASE_TRAINING, s->step);
        return;
    }
    if (s->router.present)
        add_loads(&s->router, &step);
    hd_link_report_step(r->link, &step);
}

/* Reports the device memory in use, next to the planned and the assumed amounts, after the first
 * step: by then all kernels of a step are loaded and all groups connected. */
static void say_memory(struct rank *r)
{
    char planned[32], beside[32], assumed[32], total[32], text[256];
    struct hd_device_use use;

    if (!r->backend->device || r->said_memory || hd_trainer_device_use(r->trainer, &use))
        return;
    r->said_memory = true;
    hd_text_format_bytes(use.planned_bytes, planned);
    hd_text_format_bytes(use.other_bytes, beside);
    hd_text_format_bytes(use.assumed_bytes, assumed);
    hd_text_format_bytes(use.total_bytes, total);
    (void)snprintf(
        text, sizeof text,
        "of the GPU's memory of %s the plan has reserved %s; %s more are in use, by this process "
        "and others (%s were assumed for this process and its communicators)",
        total, planned, beside, assumed);
    rank_say(r, use.other_bytes > use.assumed_bytes ? HD_LINK_LEVEL_WARN : HD_LINK_LEVEL_INFO,
             text);
}

static bool is_turn(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* Returns true if the last validation comes before the last checkpoint. With checkpoint.best it
 * does, so that the checkpoint has its loss; else the checkpoint comes first, so that the work is
 * saved. */
static bool validates_before_last_save(const struct rank *r)
{
    return r->job.checkpoint_best && !r->stopped && hd_trainer_can_validate(r->trainer);
}

/* Returns true if a checkpoint is to be written after this step and its validation. */
static bool is_due(const struct rank *r, const struct hd_step_result *s)
{
    if (s->step == r->job.steps && s->request != REQUEST_STOP && validates_before_last_save(r))
        return false; /* the last checkpoint is written after the last validation */
    return s->request >= REQUEST_CHECKPOINT || hd_trainer_is_best(r->trainer) ||
           is_turn(r->job.checkpoint_every, s->step);
}

/* Says that the next step begins a stage of the data, and forgets the losses of the one before,
 * whose data were others. */
static void begin_stage(struct rank *r)
{
    const int64_t stage = hd_trainer_begins_stage(r->trainer);
    char text[128];

    if (!stage)
        return;
    r->trend = (struct hd_trend){0};
    (void)snprintf(text, sizeof text, "stage %lld of %lld of the data begins with step %lld",
                   (long long)stage, (long long)hd_job_stage_count(&r->job),
                   (long long)hd_trainer_steps_done(r->trainer) + 1);
    rank_say(r, HD_LINK_LEVEL_INFO, text);
}

static enum hd_status one_step(struct rank *r)
{
    enum rank_request request;
    struct hd_step_result s;
    bool went_back = false;
    /* true: a validation or a save reported another phase to the supervisor than training */
    bool left = false;
    enum hd_status st;

    begin_stage(r);
    rank_listen(r);
    request = r->request;
    if (request == REQUEST_NONE && !hd_trainer_has_written(r->trainer))
        request = REQUEST_WRITING;
    st = rank_policy_prepare(r);
    if (st || r->stopped)
        return st;
    st = hd_trainer_step(r->trainer, request, &s);
    if (st)
        return st;
    rank_policy_note(r, &s);
    report_step(r, &s);
    follow_steps(r, &s);
    rank_show_step(r, &s);
    say_memory(r);
    write_profile(r, false);
    rank_look_at_peers(r, &s);
    if (!s.spiked && !r->policy)
        rank_check_trend(r, &s);
    st = rank_check_skip(r, &s);
    if (!st)
        st = rank_check_spike(r, &s, &went_back);
    r->fails_alike = st && !hd_comm_failure(r->open.comm);
    if (went_back)
        return st;
    if (!st && is_turn(r->job.validate_every, s.step) && s.step < r->job.steps &&
        hd_trainer_can_validate(r->trainer)) {
        left = true;
        st = rank_validate(r);
    }
    if (!st && s.step < r->job.steps && s.request != REQUEST_STOP &&
        rank_samples_are_due(r, s.step)) {
        left = true;
        st = rank_write_samples(r);
    }
    r->stopped = s.request == REQUEST_STOP;
    if (!st && s.request == REQUEST_NONE && hd_trainer_is_saving(r->trainer))
        st = rank_end_save(r); /* all ranks have written their shards */
    if (!st && is_due(r, &s)) {
        left = true;
        st = rank_save(r, r->stopped);
    }
    if (!st && left) /* reports training again, because the validation or save is over */
        hd_link_report_phase(r->link, HD_LINK_PHASE_TRAINING, s.step);
    if (s.request == REQUEST_CHECKPOINT)
        r->request = REQUEST_NONE;
    return st;
}

/* Goes on in the next span, from a checkpoint of the last step of the one before. Collective. */
static enum hd_status begin_span(struct rank *r)
{
    enum hd_status st = rank_save(r, true);

    if (st || r->unsaved || r->stopped)
        return st;
    write_profile(r, true);
    st = hd_job_set_text(&r->job, &r->job.base_checkpoint, r->saved.path);
    if (!st)
        st = hd_job_set_text(&r->job, &r->job.base_manifest_hash, r->saved.hash);
    if (st)
        return st;
    hd_job_tokenizer_close(&r->tokenizer);
    r->tokenizer = (struct hd_job_tokenizer){.opened = NULL};
    hd_trainer_free(r->trainer);
    r->trainer = r->storage.trainer = NULL;
    hd_link_report_phase(r->link, HD_LINK_PHASE_SETUP, r->saved_step);
    st = set_up(r);
    r->storage.trainer = r->trainer;
    if (!st)
        hd_link_report_phase(r->link, HD_LINK_PHASE_TRAINING, hd_trainer_steps_done(r->trainer));
    return st;
}

/* Trains one step, the first one of a span in a new trainer. */
static enum hd_status next_step(struct rank *r)
{
    enum hd_status st = HD_OK;

    if (hd_trainer_steps_done(r->trainer) == hd_trainer_span_end(r->trainer))
        st = begin_span(r);
    return st || r->unsaved || r->stopped ? st : one_step(r);
}

static enum hd_status train(struct rank *r)
{
    bool validates = hd_trainer_can_validate(r->trainer), early;
    enum hd_status st;

    r->finite = true;
    st = rank_make_room(r);
    if (!st && !r->stopped && validates && hd_trainer_steps_done(r->trainer) == 0)
        st = rank_validate(r);
    if (!st && !r->stopped && hd_trainer_steps_done(r->trainer) == 0)
        st = rank_write_samples(r);
    hd_link_report_phase(r->link, HD_LINK_PHASE_TRAINING, hd_trainer_steps_done(r->trainer));
    rank_check_stop(r); /* for a run that starts from its last checkpoint again */
    while (!st && !r->stopped && !r->ends_early && hd_trainer_steps_done(r->trainer) < r->job.steps)
        st = next_step(r);
    validates &= !r->ends_early; /* the newest validation is of these weights */
    if (!st)
        write_profile(r, true);
    if (!st) {
        st = rank_check_end(r);
        r->fails_alike = st != HD_OK;
    }
    if (st)
        rank_keep_save(r, st);
    early = validates && validates_before_last_save(r);
    if (!st && early)
        st = rank_validate(r);
    if (!st && !r->unsaved)
        st = rank_save(r, true);
    if (!st && validates && !early && !r->stopped)
        st = rank_validate(r);
    if (!st && !r->stopped)
        st = rank_write_samples(r);
    if (!st)
        st = rank_check_end(r);
    if (!st)
        rank_check_trend_at_end(r);
    hd_link_report_phase(r->link, HD_LINK_PHASE_ENDING, hd_trainer_steps_done(r->trainer));
    r->stopped = r->unsaved || (r->stopped && hd_trainer_steps_done(r->trainer) < r->job.steps);
    if (!st && r->ends_early && !r->stopped)
        rank_tell_why_early(r);
    if (!st && !r->stopped)
        rank_end_tensorboard(r);
    return st;
}

/* ---- exit ---- */

static int exit_status(const struct rank *r, enum hd_status st)
{
    if (st && r->bad_base) /* the controller then falls back to the checkpoint before */
        return HD_LINK_EXIT_BAD_BASE;
    if (st && r->no_base) /* the controller then checks which checkpoints are on the disk */
        return HD_LINK_EXIT_NO_BASE;
    if (st && r->diverged)
        return HD_LINK_EXIT_DIVERGED;
    switch (st) {
    case HD_OK:
        return r->stopped      ? HD_LINK_EXIT_STOPPED
               : r->ends_early ? HD_LINK_EXIT_EARLY
                               : HD_LINK_EXIT_COMPLETED;
    case HD_INVALID:
    case HD_NOT_FOUND:
    case HD_DENIED: /* a file may not be read; a restart would not change that */
    case HD_UNSUPPORTED:
        return HD_LINK_EXIT_BAD_INPUT;
    case HD_STORAGE:
        return HD_LINK_EXIT_STORAGE;
    default:
        return HD_LINK_EXIT_FAILED;
    }
}

/* Logs what this rank did last with its peers, line by line. */
static void log_flight(const struct hd_comm *comm)
{
    struct hd_text text = {0};

    hd_comm_flight_text(comm, &text);
    for (char *line = text.failed ? NULL : text.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n'); /* every line has one */
        *end = '\0';
        hd_log(HD_LOG_INFO, "%s", line);
    }
    hd_text_free(&text);
}

static void report_failure(struct rank *r, enum hd_status st)
{
    char message[HD_ERR_MAX];
    int64_t blame = st == HD_ABORTED ? -1 : r->rank;

    (void)snprintf(message, sizeof message, "%s", hd_err_message());
    hd_log(HD_LOG_ERROR, "%s", message);
    if (r->open.comm) {
        hd_comm_abort(r->open.comm, message);
        log_flight(r->open.comm);
    }
    if (r->link)
        hd_link_report_failure(r->link, st, blame, r->trainer ? "training" : "setup", message);
}

int hd_worker_rank(int argc, char **argv)
{
    struct rank r = {.link_fd = -1, .saved_step = -1};
    const char *job_path = NULL;
    enum hd_status st;

    hd_arena_init(&r.arena, 0);
    st = rank_read_flags(&r, argc, argv, &job_path);
    if (!st)
        st = rank_connect(&r, job_path);
    if (!st)
        st = set_up(&r);
    if (!st) {
        rank_open_tensorboard(&r);
        st = rank_watch_peers(&r);
    }
    if (!st) {
        st = r.job.distill_write ? teach(&r) : train(&r);
    }
    if (st)
        report_failure(&r, st);
    rank_policy_close(&r);
    rank_tasks_close(&r);
    hd_stragglers_free(r.stragglers);
    hd_tensorboard_close(r.tensorboard);
    hd_job_tokenizer_close(&r.tokenizer);
    hd_trainer_free(r.trainer);
    hd_rank_close(&r.open);
    hd_link_close(r.link);
    hd_arena_done(&r.arena);
    return exit_status(&r, st);
}
