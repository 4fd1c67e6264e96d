/* rank_save: a rank's checkpoints. A disk that accepts no writes does not end a run
 * (docs/decisions/full-disks.md). */
#include <stdio.h>

#include "base/log.h"
#include "worker/rank_internal.h"

/* Warns once when data files have changed: training continues, but no later run can reproduce
 * it. */
static void check_data(struct rank *r)
{
    if (!r->data_changed && hd_trainer_check_data(r->trainer)) {
        r->data_changed = true;
        rank_say(r, HD_LINK_LEVEL_WARN, hd_err_message());
    }
}

static bool hear_stop(void *user)
{
    struct rank *r = user;

    rank_listen(r);
    return r->request == REQUEST_STOP;
}

/* Retries `act` (writing a checkpoint) until the disk accepts it. A run that is told to stop does
 * not wait: then r->unsaved is set. */
static enum hd_status until_done(struct rank *r, storage_act_fn *act, const char *what,
                                 const char *left)
{
    char text[128];
    int64_t waited_ms;
    enum hd_status st =
        storage_until_done(&r->storage, act, what, left, &r->stopped, &r->unsaved, &waited_ms);

    if (st || r->unsaved || waited_ms < 0)
        return st;
    (void)snprintf(text, sizeof text, "continues after it waited %lld s for the disk",
                   (long long)(waited_ms / 1000));
    rank_say(r, HD_LINK_LEVEL_INFO, text);
    return HD_OK;
}

static void report_saved(struct rank *r, const struct hd_saved *saved)
{
    r->saved_step = saved->step;
    r->saved = *saved;
    r->went_back = 0;
    hd_log(HD_LOG_INFO, "step %lld: checkpoint %s (%s)", (long long)saved->step, saved->path,
           saved->hash);
    if (r->rank == 0)
        hd_link_report_checkpoint(r->link, saved->step, saved->path, saved->hash, saved->bytes,
                                  saved->val_loss);
}

static enum hd_status save_now(void *user)
{
    struct rank *r = user;
    struct hd_saved saved;
    enum hd_status st;

    hd_link_report_phase(r->link, HD_LINK_PHASE_CHECKPOINTING, hd_trainer_steps_done(r->trainer));
    st = hd_trainer_save(r->trainer, &saved);
    if (st)
        return st;
    r->improved = false;
    report_saved(r, &saved);
    return HD_OK;
}

static enum hd_status begin_to_save(struct rank *r)
{
    const enum hd_status st = hd_trainer_save_begin(r->trainer);

    r->improved &= st != HD_OK;
    return st;
}

static enum hd_status finish_save(struct rank *r)
{
    struct hd_saved saved;
    const enum hd_status st = hd_trainer_save_finish(r->trainer, &saved);

    if (!st)
        report_saved(r, &saved);
    return st;
}

/* Handles the result `st` of a periodic save. A failure is a warning; training continues and the
 * next checkpoint is tried when it is due. One event reports failures until a save succeeds; the
 * log names each checkpoint. */
static enum hd_status leave_out(struct rank *r, enum hd_status st)
{
    const bool is_new = !r->storage.problem;
    char text[HD_LINK_TEXT_MAX];

    if (st && hd_comm_failure(r->open.comm))
        return st;
    if (!st) {
        (void)storage_report(&r->storage, NULL, NULL);
        return HD_OK;
    }
    (void)snprintf(text, sizeof text, "%.900s", hd_err_message());
    (void)storage_report(&r->storage, "continues without a new checkpoint", text);
    if (is_new)
        rank_say(r, HD_LINK_LEVEL_WARN, text);
    else
        hd_log(HD_LOG_WARN, "%s", text);
    return HD_OK;
}

enum hd_status rank_end_save(struct rank *r)
{
    return leave_out(r, finish_save(r));
}

enum hd_status rank_save(struct rank *r, bool must)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    enum hd_status st = HD_OK;

    if (hd_trainer_is_saving(r->trainer)) {
        hd_link_report_phase(r->link, HD_LINK_PHASE_CHECKPOINTING, step);
        st = rank_end_save(r);
    }
    if (st || r->saved_step == step)
        return st;
    if (!must && r->overflows && (!r->improved || r->overflows >= OVERFLOWS_SUSPECT)) {
        char text[128];

        (void)snprintf(text, sizeof text,
                       "no checkpoint at step %lld: the gradients of the last %lld steps were not "
                       "finite",
                       (long long)step, (long long)r->overflows);
        rank_say(r, HD_LINK_LEVEL_WARN, text);
        return HD_OK;
    }
    check_data(r);
    if (must)
        return until_done(r, save_now, "waits to write the last checkpoint",
                          "stopped without a last checkpoint");
    if (r->job.checkpoint_async) { /* a save that began has not succeeded: rank_end_save tells */
        st = begin_to_save(r);
        return st ? leave_out(r, st) : HD_OK;
    }
    return leave_out(r, save_now(r));
}

static enum hd_status check_room(void *user)
{
    return hd_trainer_check_space(((struct rank *)user)->trainer);
}

enum hd_status rank_make_room(struct rank *r)
{
    r->storage = (struct storage){
        .rank = r->rank, .link = r->link, .trainer = r->trainer, .hear_stop = hear_stop, .user = r};
    if (r->rank == 0)
        storage_clean_up(r->job.attempt_dir, r->job.attempt);
    if (hd_trainer_steps_done(r->trainer) >= r->job.steps)
        return HD_OK;
    return until_done(r, check_room, "waits for disk space before it trains",
                      "stopped while it waited for disk space");
}

void rank_keep_save(struct rank *r, enum hd_status st)
{
    struct hd_error error;

    if (!hd_trainer_is_saving(r->trainer) || !r->fails_alike || hd_comm_failure(r->open.comm))
        return;
    hd_err_save(st, &error);
    (void)rank_end_save(r);
    (void)hd_err_restore(&error);
}
