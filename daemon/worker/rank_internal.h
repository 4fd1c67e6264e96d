/* rank_internal: shared by the files of a rank (rank*.c). Only for daemon/worker.
 *
 *   rank.c         set-up, the loop over steps, the exit status
 *   rank_connect.c the command line, the connections to supervisor and peers, the device
 *   rank_save.c    disk space and checkpoints, also those written in the background
 *   rank_validate.c   validations and their reports
 *   rank_samples.c    texts behind the prompts of validate.samples
 *   rank_policy.c  answers that the model writes for a step, and their files
 *   rank_tasks.c   answers to the tasks of validations
 *   rank_rewards.c    their rewards
 *   rank_check.c   steps that change no weight, and losses that do not fall
 *   rank_guard.c   steps whose loss or gradient norm is a spike
 *   rank_peers.c   ranks that are slower than their peers
 *   rank_tensorboard.c   numbers for TensorBoard
 *   rank_lock.c    the sandbox that a rank enters before it reads data
 *
 * Threads: the rank's.
 */
#ifndef HD_WORKER_RANK_INTERNAL_H
#define HD_WORKER_RANK_INTERNAL_H

#include "base/arena.h"
#include "comm/comm.h"
#include "comm/shm_control.h"
#include "job/job.h"
#include "job/metrics.h"
#include "kernels/kernels.h"
#include "link/link.h"
#include "metrics/tensorboard.h"
#include "train/guard.h"
#include "train/job_tokenizer.h"
#include "train/opened_rank.h"
#include "train/straggler.h"
#include "train/train.h"
#include "train/trend.h"
#include "worker/storage.h"
#include "worker/worker.h"

/* steps in a row with overflowed gradients that suggest damaged weights; a single one may be a bad
 * batch */
enum { OVERFLOWS_SUSPECT = 3 };

/* Request or state of a rank, exchanged with all ranks in each step; the largest one of all ranks
 * takes effect. */
enum rank_request { REQUEST_NONE, REQUEST_WRITING, REQUEST_CHECKPOINT, REQUEST_STOP };

/* Action of a rank if the kernel lacks a sandbox feature. TRY: continues without the feature;
 * REQUIRE: refuses to start. OFF: there is no sandbox at all. */
enum rank_isolation { RANK_ISOLATION_TRY, RANK_ISOLATION_REQUIRE, RANK_ISOLATION_OFF };

struct hd_rewards;
struct rank_policy;
struct rank_tasks;

struct rank {
    struct hd_arena arena;
    struct hd_job job;
    int64_t rank, world;
    int link_fd;
    int64_t here; /* index of this rank among the ranks of its node */
    /* ms: the longest wait for other ranks that the supervisor has learned to expect; 0: unknown */
    int64_t wait_limit_ms;
    int64_t step_deadline_ms, save_deadline_ms;
    int64_t read_ms; /* time of the newest sign of life while weights are read; 0: none yet */
    struct hd_shm_fds fds;
    const struct hd_backend_table *backend;
    /* communicator of the ranks; the device, if the backend has its own memory (a GPU): else each
     * trainer opens its own backend */
    struct hd_opened_rank open;
    /* name and address of this node, by which ranks of other nodes connect; NULL: all ranks are on
     * this node */
    const char *node, *data_address;
    /* the node's folder for stored choices of GEMM algorithms; NULL: choices are not stored */
    const char *choices_dir;
    enum rank_isolation isolation;
    /* allowed folders, separated by ':', in which the job's data may be; NULL: all paths are
     * allowed */
    const char *data_roots;
    struct hd_link *link;
    int nccl_log;               /* file descriptor of NCCL's log (comm/nccl_log.h); -1: none */
    struct hd_trainer *trainer; /* of the present span of data.stages (job/data_stages.h) */
    /* true: the checkpoint to start from is damaged or incomplete */
    bool bad_base;
    bool no_base;                       /* true: the checkpoint to start from is not on the disk */
    struct hd_tensorboard *tensorboard; /* open TensorBoard files, on rank 0; NULL: none */
    /* request of this rank, to be exchanged with the next step */
    enum rank_request request;
    int64_t saved_step;    /* step of the newest checkpoint; -1: none */
    struct hd_saved saved; /* the newest checkpoint of this attempt; path "": none */
    int64_t skips;         /* steps in a row that changed no weight */
    int64_t spikes;        /* steps in a row that were spikes */
    int64_t went_back;     /* rollbacks since the newest checkpoint */
    int64_t overflows;     /* steps in a row whose gradient was not finite */
    bool improved;         /* true: a step since saved_step had a finite gradient */
    bool finite;           /* true: the newest loss is finite */
    bool diverged;         /* true: the run ends because it has diverged */
    /* true: all ranks end the run, for a reason that all of them have */
    bool fails_alike;
    struct hd_trend trend;
    bool said_stuck;
    bool data_changed;       /* true: data files have changed, and a warning was given */
    bool tensorboard_failed; /* true: writing TensorBoard files failed, and a warning was given */
    bool said_memory;        /* true: the event about device memory in use was sent */
    bool stopped;
    bool ends_early; /* true: validate.stop ends the run before its last step */
    bool said_cut;   /* true: the warning about questions that are cut was given */
    /* true: the rank stopped without its last checkpoint, which could not be written */
    bool unsaved;
    struct hd_job_tokenizer tokenizer; /* on rank 0 of a job with validate.samples */
    /* step of the newest samples, if any were written in this attempt */
    int64_t sampled_step;
    bool sampled;
    struct rank_policy *policy; /* rank_policy.h; NULL: the job trains on files */
    struct rank_tasks *tasks;   /* rank_tasks.c; NULL: the job has no validate.tasks */
    struct storage storage;
    /* state that finds slow ranks, on rank 0 of several ranks; else NULL */
    struct hd_stragglers *stragglers;
};

/* Writes a line to the log, and on rank 0 an event of the job. */
void rank_say(struct rank *r, enum hd_link_level level, const char *text);
/* Like rank_say, for an event about rank `about`, which may be another one. */
void rank_say_about(struct rank *r, enum hd_link_level level, int64_t about, const char *text);
/* Reads the supervisor's newest command (stop, checkpoint) and sets r->request. */
void rank_listen(struct rank *r);
/* Reports that this rank, a struct rank, sets up before its first step. */
void rank_say_set_up(void *rank);

/* ---- rank_connect.c ---- */

/* Reads the command line into r. */
enum hd_status rank_read_flags(struct rank *r, int argc, char **argv, const char **ret_job_path);
/* Reads the job and connects to the supervisor and the peers. The link is opened first, so that the
 * message of any later failure reaches the supervisor. */
enum hd_status rank_connect(struct rank *r, const char *job_path);
/* Tells, once the ranks are connected, how NCCL connects them, once per node, and its warnings.
 * Sockets in place of adapters that it was given are a warning: they are many times slower, and
 * nothing fails. */
void rank_say_transports(struct rank *r);

/* ---- rank_lock.c ---- */

/* Restricts this process to the sandbox (rank_lock.c). Call it when the job has been read, while
 * this thread is the only one. HD_INVALID: the job names a path that this node does not allow;
 * HD_UNAVAILABLE, HD_UNSUPPORTED: a restriction cannot be applied, although it is required or the
 * kernel supports it. */
enum hd_status rank_lock_in(const struct rank *r);
/* Restricts the process that runs the reward programs of a rank, and its children: they may start
 * programs, but make no sockets, and write in the attempt's folder `rewards` alone. */
enum hd_status rank_lock_rewards(const struct rank *r, const struct hd_rewards *rewards);
/* Forbids this process new network connections; called when the ranks have connected, unless a
 * library connects later (NCCL does). */
enum hd_status rank_close_network(const struct rank *r);

/* ---- rank_save.c ---- */

/* Waits until the disk has space for one checkpoint. Call it before the first step, because work
 * without space for a checkpoint could not be saved. */
enum hd_status rank_make_room(struct rank *r);
/* Writes a checkpoint. must: the last checkpoint, without which the work would be lost. Periodic
 * checkpoints are skipped while all steps are skipped: such a checkpoint would count as progress,
 * and replace a sound one in time. */
enum hd_status rank_save(struct rank *r, bool must);
/* Finishes a checkpoint that is being written in the background. A failure is only a warning; the
 * next checkpoint is tried when it is due. */
enum hd_status rank_end_save(struct rank *r);
/* Finishes a checkpoint that is being written in the background when the run fails with `st` on all
 * ranks, so that the checkpoint is not lost. */
void rank_keep_save(struct rank *r, enum hd_status st);

/* ---- rank_validate.c ---- */

/* Validates on each set of data.val, first on the one whose loss checkpoint.best compares, answers
 * the questions of validate.choices and the tasks of validate.tasks, and reports losses and scores.
 * Collective. */
enum hd_status rank_validate(struct rank *r);
/* Reports that this rank, a struct rank, validates, or writes or rates texts. Answers of a policy have the
 * phase of validations, too: a call for one token is so much shorter than a step that a limit of silence
 * that the supervisor learned from both would end the attempt in its first long step. */
void rank_say_alive(void *rank);
/* Reports a score of the weights of now, of as many questions. */
void rank_report_score(struct rank *r, struct hd_val_metric metric, double score,
                       int64_t questions);
/* Sets r->ends_early if validate.stop ends the run, and reports the reason. */
void rank_check_stop(struct rank *r);
/* Sends the supervisor the reason of that end, for the record of the attempt. */
void rank_tell_why_early(struct rank *r);

/* ---- rank_tasks.c ---- */

/* Makes the keeper of programs that check answers to validate.tasks, before rank_lock_in. Does nothing for
 * other jobs, as the functions below. */
enum hd_status rank_tasks_begin(struct rank *r);
/* Reads the tasks; the trainer must be open. */
enum hd_status rank_tasks_open(struct rank *r);
void rank_tasks_close(struct rank *r);
/* Answers all tasks, checks the answers, and reports and notes pass@1 and pass@K. If a rank is told to stop
 * meanwhile, the files that are left have no scores. Collective. */
enum hd_status rank_answer_tasks(struct rank *r);

/* ---- rank_samples.c ---- */

/* Returns whether samples are to be written behind this step; the caller also does so before the
 * first and behind the last one. */
bool rank_samples_are_due(const struct rank *r, int64_t step);
/* Writes a text behind each prompt of validate.samples and reports them; does nothing if the job has
 * none, or those of the current weights were written. Collective. */
enum hd_status rank_write_samples(struct rank *r);

/* Appends the text of ids as UTF-8 that is safe to print. tokenizer: opened if it is not yet. */
enum hd_status rank_decode(const struct rank *r, struct hd_job_tokenizer *tokenizer,
                           const int32_t *ids, int64_t count, struct hd_text *out);
/* Reports one sample as events, and shows it; `text` is UTF-8, `end` says why it ends. */
void rank_say_sample(struct rank *r, int64_t step, int64_t index, int64_t count, const char *prompt,
                     const char *text, const char *end);

/* ---- rank_check.c ---- */

/* Counts steps in a row that change no weight. Returns a failure if there are too many; the run
 * then ends. Collective. */
enum hd_status rank_check_skip(struct rank *r, const struct hd_step_result *s);
/* Warns, without ending the run, if the losses are finite but show that the model learns
 * nothing. */
void rank_check_trend(struct rank *r, const struct hd_step_result *s);
void rank_check_trend_at_end(struct rank *r);
/* Returns a failure if the run ends with a loss or gradients that are not finite: it has diverged,
 * however many steps it did. */
enum hd_status rank_check_end(struct rank *r);

/* ---- rank_guard.c ---- */

/* Acts on a spike (loss or gradient norm far above those before), after each step. A failure ends
 * the run. Sets *ret_went_back to true if the trainer was rolled back to an earlier step; the
 * caller then skips the rest of its work for this step. Collective. */
enum hd_status rank_check_spike(struct rank *r, const struct hd_step_result *s,
                                bool *ret_went_back);

/* ---- rank_peers.c ---- */

enum hd_status rank_watch_peers(struct rank *r);
/* Updates, after each step, which ranks are slower than their peers, and reports changes. */
void rank_look_at_peers(struct rank *r, const struct hd_step_result *s);

/* ---- rank_tensorboard.c ---- */

/* Opens TensorBoard's files or continues those of an earlier attempt. The first failure gives a
 * warning; training continues. */
void rank_open_tensorboard(struct rank *r);
void rank_end_tensorboard(struct rank *r); /* the job has ended with success */
struct hd_step_metrics rank_metrics(const struct rank *r, const struct hd_step_result *s);
void rank_show(struct rank *r, int64_t step, const struct hd_scalar *scalars, size_t count);
/* Shows the text behind prompt `index`. */
void rank_show_sample(struct rank *r, int64_t index, const char *prompt, const char *text);
void rank_show_step(struct rank *r, const struct hd_step_result *s);

#endif
