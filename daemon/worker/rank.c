/* rank: one rank of an attempt, from the resolved job to the exit status.
 *
 *   open the link, meet the peers -> reserve, compile, bind -> weights from init or from the base
 *   checkpoint -> room for a checkpoint -> [validate] step .. [validate] [checkpoint] .. -> last
 *   checkpoint -> exit
 *
 * A disk that takes no writes ends nothing (record 43): before the first step the ranks wait for
 * room, a periodic checkpoint is left out, the last one is tried again until it is written.
 *
 * Decisions that change what the ranks do together (stop, checkpoint now) travel with the exchange
 * that ends each step, so that all ranks decide alike after the same step.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/gloo.h"
#include "comm/shm_control.h"
#include "hf/hf.h"
#include "link/link.h"
#include "metrics/tensorboard.h"
#include "train/reserve.h"
#include "train/train.h"
#include "train/trend.h"
#include "worker/card.h"
#include "worker/flags.h"
#include "worker/storage.h"
#include "worker/worker.h"

enum {
    RENDEZVOUS_TIMEOUT_MS = 60 * 1000,
    NODES_TIMEOUT_MS = 5 * 60 * 1000, /* until the ranks of all nodes have met */
    SKIPS_MAX = 20,                   /* steps in a row without an update; then the run ends */
    OVERFLOWS_SUSPECT = 3,            /* in a row: a single one may be a bad batch */
};

/* What a rank asks for in a step's exchange, or says there; the largest wins. */
enum rank_request { REQUEST_NONE, REQUEST_WRITING, REQUEST_CHECKPOINT, REQUEST_STOP };

struct rank {
    struct hd_arena arena;
    struct hd_job job;
    int64_t rank, world;
    int link_fd;
    struct hd_shm_fds fds;
    const struct hd_backend_table *backend;
    struct hd_worker_device device;  /* where backend has memory of its own */
    const char *node, *data_address; /* with ranks on other nodes, else NULL */
    struct hd_link *link;
    struct hd_comm *comm;
    struct hd_trainer *trainer;
    bool bad_base; /* the checkpoint to start from could not be loaded as it was written */
    struct hd_tensorboard *board; /* rank 0 */
    enum rank_request request;    /* of this rank */
    int64_t saved_step;           /* of the newest checkpoint; -1: none */
    int64_t skips;                /* steps in a row that changed no weight */
    int64_t overflows;            /* steps in a row whose gradient was not finite */
    bool improved;                /* a step since saved_step had a finite gradient */
    bool finite;                  /* the newest loss */
    bool diverged;                /* the reason for which the run is given up */
    bool fails_alike;             /* all ranks give it up for what they all know */
    struct hd_trend trend;
    bool said_stuck;
    bool data_changed; /* and said so */
    bool board_failed; /* and said so */
    bool said_memory;  /* of the device */
    bool stopped;
    bool unsaved; /* stopped without the last checkpoint, which could not be written */
    struct storage storage;
};

/* ---- set-up ---- */

static enum hd_status read_flags(struct rank *r, int argc, char **argv, const char **ret_job_path)
{
    struct hd_flag f[] = {
        {"--job", true, false, NULL},         {"--rank", true, false, NULL},
        {"--world", true, false, NULL},       {"--link-fd", true, false, NULL},
        {"--shm-control", true, false, NULL}, {"--shm-ranks", true, false, NULL},
        {"--node", false, false, NULL},       {"--data-address", false, false, NULL}};
    char fds[HD_SHM_FDS_TEXT_MAX];
    int64_t link_fd = -1;
    enum hd_status st = hd_flags_read(argc, argv, f, sizeof f / sizeof f[0]);

    if (!st)
        st = hd_flag_int(&f[2], 1, HD_COMM_RANKS_MAX, 1, &r->world);
    if (!st)
        st = hd_flag_int(&f[1], 0, r->world - 1, 0, &r->rank);
    if (!st)
        st = hd_flag_int(&f[3], 0, 1 << 20, 0, &link_fd);
    r->link_fd = (int)link_fd;
    if (st)
        return st;
    (void)snprintf(fds, sizeof fds, "%s,%s", f[4].value, f[5].value);
    st = hd_shm_control_parse(fds, &r->fds);
    r->node = f[6].value;
    r->data_address = f[7].value;
    if (!st && r->data_address && !r->node)
        st = hd_err(HD_INVALID, "--data-address needs --node");
    if (!st && r->fds.world != r->world && !r->data_address)
        st = hd_err(HD_INVALID, "--shm-ranks names %d ranks, --world %lld", r->fds.world,
                    (long long)r->world);
    if (!st)
        *ret_job_path = f[0].value;
    return st;
}

static enum hd_status read_job(struct rank *r, const char *path)
{
    enum hd_status st = hd_job_read_file(path, &r->arena, &r->job);

    if (!st && r->job.pp * r->job.dp * r->job.cp * r->job.tp != r->world)
        st =
            hd_err(HD_INVALID, "the plan is for %lld ranks, --world says %lld",
                   (long long)(r->job.pp * r->job.dp * r->job.cp * r->job.tp), (long long)r->world);
    return st;
}

/* All ranks are on this node and exchange through shared memory. Each sends its name, and waits for
 * the names of all others. */
static enum hd_status meet_here(struct rank *r)
{
    struct hd_link_values values;
    char me[64];
    enum hd_status st = hd_comm_open_shm(r->fds.control_fd, r->fds.rank_fds, (int)r->rank,
                                         (int)r->world, HD_STEP_DEADLINE_MS, &r->comm);

    if (st)
        return st;
    (void)snprintf(me, sizeof me, "rank %lld pid %d", (long long)r->rank, (int)getpid());
    st = hd_link_rendezvous(r->link, me, strlen(me), RENDEZVOUS_TIMEOUT_MS, &values);
    if (!st)
        hd_link_values_free(&values);
    return st;
}

/* Ranks are on several nodes: each listens on a port, and the rendezvous exchanges the cards of
 * all. */
static enum hd_status meet_at_doors(struct rank *r)
{
    struct hd_gloo_card *cards = hd_arena_array(&r->arena, (size_t)r->world, sizeof *cards);
    struct hd_link_values values = {0};
    struct hd_gloo_door *door = NULL;
    uint8_t mine[CARD_BYTES];
    struct hd_traits traits;
    enum hd_status st = cards ? hd_gloo_door_open(r->data_address, r->node, &door)
                              : hd_err(HD_NO_MEMORY, "no memory for the cards of the ranks");

    if (!st) {
        r->backend->describe(&(struct hd_backend_options){.threads = (int)r->job.threads}, &traits);
        card_write(hd_gloo_door_card(door), &traits, mine);
        st = hd_link_rendezvous(r->link, mine, sizeof mine, NODES_TIMEOUT_MS, &values);
    }
    if (!st)
        st = card_read_all(&values, r->rank, &traits, cards);
    if (!st)
        st = hd_comm_open_gloo(door, cards, (int)r->rank, (int)r->world, RENDEZVOUS_TIMEOUT_MS,
                               &r->comm);
    if (!st)
        hd_comm_set_deadline(r->comm, HD_STEP_DEADLINE_MS);
    hd_link_values_free(&values);
    if (door)
        hd_gloo_door_close(door);
    return st;
}

/* The node has offered the device: a failure to open it is not the job's fault, and the next
 * attempt may get another one. */
static enum hd_status blame_the_node(enum hd_status st)
{
    return st == HD_UNSUPPORTED || st == HD_INVALID
               ? hd_err(HD_UNAVAILABLE, "%s; see heddled --doctor on this node", hd_err_message())
               : st;
}

/* The link is opened first: the message of any later failure reaches the supervisor. */
static enum hd_status connect(struct rank *r, const char *job_path)
{
    enum hd_status st = hd_link_worker_open(r->link_fd, r->rank, r->world, &r->link);

    if (st)
        return st;
    hd_link_report_phase(r->link, HD_LINK_PHASE_SETUP, 0);
    st = read_job(r, job_path);
    if (!st)
        st = blame_the_node(hd_worker_backend(&r->job, &r->backend));
    if (st)
        return st;
    if (!r->backend->device || r->world > 1)
        st = r->data_address ? meet_at_doors(r) : meet_here(r);
    if (!st && r->backend->device)
        st = blame_the_node(
            hd_worker_device_open(r->backend, &r->job, r->comm, &r->fds, &r->device, &r->comm));
    return st;
}

static void say(struct rank *r, enum hd_link_level level, const char *text)
{
    hd_log(level == HD_LINK_LEVEL_INFO ? HD_LOG_INFO : HD_LOG_WARN, "%s", text);
    if (r->rank == 0)
        hd_link_report_event(r->link, level, text);
}

/* What a model directory asks for and is not done; its failures were told when the job was read. */
static void say_notes(struct rank *r)
{
    struct hd_text notes = {0};
    struct hd_job model = {0};

    if (hd_hf_has_config(r->job.init_from) && !hd_source_is_checkpoint(r->job.init_from) &&
        !hd_hf_read_config(r->job.init_from, &model, &notes) && notes.len_bytes)
        say(r, HD_LINK_LEVEL_WARN, notes.data);
    hd_text_free(&notes);
}

/* The checkpoint does not exist, and its parent folder does: so it is not merely unmounted. */
static bool is_gone(const char *checkpoint)
{
    const char *slash = strrchr(checkpoint, '/');
    struct hd_text parent = {0};
    bool there;

    hd_text_add(&parent, "%.*s", slash ? (int)(slash - checkpoint) : 0, checkpoint);
    there = !parent.failed && hd_file_exists(parent.data);
    hd_text_free(&parent);
    return there;
}

static enum hd_status load_weights(struct rank *r)
{
    struct hd_text note = {0};
    char text[HD_JOB_PATH_MAX + 128];
    enum hd_status st;

    if (!r->job.base_checkpoint[0]) {
        st = hd_trainer_init(r->trainer);
        if (!st && r->job.init_from[0]) {
            (void)snprintf(text, sizeof text, "starts from the weights of %s", r->job.init_from);
            say(r, HD_LINK_LEVEL_INFO, text);
            say_notes(r);
        }
        return st;
    }
    st = hd_trainer_load(r->trainer, r->job.base_checkpoint, r->job.base_manifest_hash, &note);
    r->bad_base = st == HD_CORRUPT || (st == HD_NOT_FOUND && is_gone(r->job.base_checkpoint));
    if (!st) {
        r->saved_step = hd_trainer_steps_done(r->trainer);
        (void)snprintf(text, sizeof text, "resumed from step %lld (%s)",
                       (long long)hd_trainer_steps_done(r->trainer), r->job.base_checkpoint);
        say(r, HD_LINK_LEVEL_INFO, text);
    }
    if (!st && note.len_bytes)
        say(r, HD_LINK_LEVEL_WARN, note.data);
    hd_text_free(&note);
    return st;
}

/* Reports progress while text becomes tokens; false when a peer has ended. */
static bool alive(void *context, int64_t done_bytes, int64_t total_bytes)
{
    struct rank *r = context;

    (void)done_bytes, (void)total_bytes;
    hd_link_report_phase(r->link, HD_LINK_PHASE_SETUP, 0);
    return hd_comm_failure(r->comm) == HD_OK;
}

/* Text that is not read byte by byte becomes token files, once for all attempts. */
static enum hd_status make_tokens(struct rank *r, struct hd_job_tokenizer *tokenizer,
                                  struct hd_token_cache *ret_tokens)
{
    const struct hd_token_cache_watch watch = {
        .rank = (int)r->rank, .world = (int)r->world, .alive = alive, .context = r};
    const int64_t begin = hd_clock_now_ns();
    char text[128];
    enum hd_status st = hd_token_cache_fill(&r->job, tokenizer, &watch, &r->arena, ret_tokens);

    if (!st && ret_tokens->made) {
        (void)snprintf(text, sizeof text, "tokenized %lld file%s in %.1f s",
                       (long long)ret_tokens->made, ret_tokens->made == 1 ? "" : "s",
                       (double)(hd_clock_now_ns() - begin) * 1e-9);
        say(r, HD_LINK_LEVEL_INFO, text);
    }
    return st;
}

static enum hd_status set_up(struct rank *r)
{
    struct hd_job_tokenizer tokenizer = {.opened = NULL};
    struct hd_token_cache tokens;
    const struct hd_trainer_options options = {.backend = r->backend,
                                               .instance = r->device.instance,
                                               .comm = r->comm,
                                               .rank = (int)r->rank,
                                               .tokenizer = &tokenizer,
                                               .tokens = &tokens};
    enum hd_status st = make_tokens(r, &tokenizer, &tokens);
    char text[160], bytes[32], huge[32], where[64];
    const struct hd_reservation *m;
    struct hd_text data = {0};

    if (!st)
        st = hd_trainer_new(&r->job, &options, &r->trainer);
    hd_job_tokenizer_close(&tokenizer);
    if (st)
        return st;
    m = hd_trainer_reservation(r->trainer);
    hd_text_format_bytes(m->private_bytes + m->visible_bytes, bytes);
    (void)snprintf(where, sizeof where, "on the GPU");
    if (!r->backend->device) {
        hd_text_format_bytes(hd_memory_huge_bytes(m->private_base, m->private_bytes) +
                                 hd_memory_huge_bytes(m->visible_base, m->visible_bytes),
                             huge);
        (void)snprintf(where, sizeof where, "%s of it on huge pages", huge);
    }
    (void)snprintf(text, sizeof text, "%lld parameters, %s reserved per rank, %s",
                   (long long)hd_registry_global_count(&hd_trainer_layout(r->trainer)->registry),
                   bytes, where);
    say(r, HD_LINK_LEVEL_INFO, text);
    if (r->data_address) {
        hd_text_format_bytes((int64_t)hd_gloo_memory_bytes((int)r->world), bytes);
        (void)snprintf(text, sizeof text, "%s more per rank, for messages between nodes", bytes);
        say(r, HD_LINK_LEVEL_INFO, text);
    }
    hd_trainer_describe_data(r->trainer, &data);
    say(r, HD_LINK_LEVEL_INFO, data.failed ? "" : data.data);
    hd_text_free(&data);
    return load_weights(r);
}

/* ---- numbers for TensorBoard ---- */

/* Beside the attempts' folders: one run of one job. Opened late if its disk takes no writes now. */
static enum hd_status open_board(struct rank *r)
{
    const char *slash = strrchr(r->job.attempt_dir, '/');
    struct hd_text dir = {0};
    enum hd_status st;

    if (r->rank != 0 || !slash)
        return HD_OK;
    hd_text_add(&dir, "%.*s/tensorboard", (int)(slash - r->job.attempt_dir), r->job.attempt_dir);
    st = dir.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : hd_tensorboard_open(dir.data, r->job.attempt,
                                          hd_trainer_steps_done(r->trainer), &r->board);
    hd_text_free(&dir);
    return st;
}

static void board_fails(struct rank *r)
{
    if (!r->board_failed)
        say(r, HD_LINK_LEVEL_WARN, hd_err_message());
    r->board_failed = true;
}

/* One warning when they cannot be written; training goes on. */
static void show(struct rank *r, int64_t step, const struct hd_scalar *scalars, size_t count)
{
    enum hd_status st = r->board ? HD_OK : open_board(r);

    if (!st && r->board)
        st = hd_tensorboard_add(r->board, step, scalars, count);
    if (st)
        board_fails(r);
}

/* Of a NaN, which would be printed. */
static double without_sign(double value)
{
    return isnan(value) ? NAN : value;
}

static struct hd_step_metrics metrics_of(const struct rank *r, const struct hd_step_result *s)
{
    struct hd_step_metrics metrics = {.loss = without_sign(s->loss),
                                      .grad_norm = without_sign(s->grad_norm),
                                      .lr = s->lr,
                                      .tokens = r->job.global_batch * r->job.context,
                                      .tokens_per_s = s->tokens_per_s,
                                      .step_ms = s->step_ms,
                                      .mfu = s->mfu,
                                      .loss_scale = (double)s->loss_scale};

    if (s->router.present) {
        metrics.router_balance = s->router.balance;
        metrics.router_z = s->router.z;
        metrics.router_dropped = s->router.dropped;
    }
    return metrics;
}

/* The busiest expert in even shares, as `heddle watch` tells it. */
static double busiest_expert(const struct hd_router_result *router)
{
    int64_t sum = 0, most = 0;

    for (int64_t e = 0; e < router->experts; e++) {
        sum += router->load[e];
        most = router->load[e] > most ? router->load[e] : most;
    }
    return sum ? (double)most * (double)router->experts / (double)sum : 0;
}

static void show_step(struct rank *r, const struct hd_step_result *s)
{
    const struct hd_step_metrics metrics = metrics_of(r, s);
    struct hd_scalar scalars[HD_METRIC_COUNT + 1];
    size_t count = 0;

    for (int i = 0; i < HD_METRIC_COUNT; i++)
        if (*hd_metrics[i].tag && hd_metric_is_present(&metrics, i, s->router.present))
            scalars[count++] = (struct hd_scalar){hd_metrics[i].tag, hd_metric_get(&metrics, i)};
    if (s->router.present)
        scalars[count++] = (struct hd_scalar){"router/busiest_expert", busiest_expert(&s->router)};
    show(r, s->step, scalars, count);
}

/* ---- the profile ---- */

static void write_profile(struct rank *r, bool ended)
{
    struct hd_text note = {0};

    if (hd_trainer_write_profile(r->trainer, ended, &note))
        say(r, HD_LINK_LEVEL_WARN, hd_err_message());
    else if (note.len_bytes)
        say(r, HD_LINK_LEVEL_INFO, note.data);
    hd_text_free(&note);
}

/* ---- the run ---- */

static enum hd_status validate(struct rank *r)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    double loss;
    int64_t targets;
    enum hd_status st;

    hd_link_report_phase(r->link, HD_LINK_PHASE_VALIDATING, step);
    st = hd_trainer_validate(r->trainer, &loss, &targets);
    if (st == HD_LIMIT) { /* on every rank: no loss this time, the work goes on */
        char text[256];

        (void)snprintf(text, sizeof text, "no validation at step %lld: %s", (long long)step,
                       hd_err_message());
        say(r, HD_LINK_LEVEL_WARN, text);
        return HD_OK;
    }
    if (st)
        return st;
    r->finite = isfinite(loss) || targets == 0;
    hd_log(HD_LOG_INFO, "step %lld: val_loss %.4f over %lld targets", (long long)step, loss,
           (long long)targets);
    if (r->rank == 0)
        hd_link_report_validation(r->link, step, loss, targets);
    show(r, step, &(struct hd_scalar){"validation/loss", loss}, 1);
    return HD_OK;
}

/* Warns once when data files have changed: training goes on, but no later run will repeat it. */
static void check_data(struct rank *r)
{
    if (!r->data_changed && hd_trainer_check_data(r->trainer)) {
        r->data_changed = true;
        say(r, HD_LINK_LEVEL_WARN, hd_err_message());
    }
}

static void listen(struct rank *r)
{
    switch (hd_link_poll(r->link)) {
    case HD_LINK_COMMAND_NONE:
        break;
    case HD_LINK_COMMAND_STOP:
        r->request = REQUEST_STOP;
        break;
    case HD_LINK_COMMAND_CHECKPOINT:
        if (r->request < REQUEST_CHECKPOINT)
            r->request = REQUEST_CHECKPOINT;
        break;
    }
}

/* ---- checkpoints ---- */

static bool hear_stop(void *user)
{
    struct rank *r = user;

    listen(r);
    return r->request == REQUEST_STOP;
}

/* Tries until a disk takes it. A run that is told to stop does not wait: then r->unsaved. */
static enum hd_status until_done(struct rank *r, storage_act_fn *act, const char *what)
{
    char text[128];
    int64_t waited_ms;
    enum hd_status st =
        storage_until_done(&r->storage, act, what, &r->stopped, &r->unsaved, &waited_ms);

    if (st || r->unsaved || waited_ms < 0)
        return st;
    (void)snprintf(text, sizeof text, "goes on after it waited %lld s for the disk",
                   (long long)(waited_ms / 1000));
    say(r, HD_LINK_LEVEL_INFO, text);
    return HD_OK;
}

static void report_saved(struct rank *r, const struct hd_saved *saved)
{
    r->saved_step = saved->step;
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

/* A failure of a save is a warning; the next one is tried when it is due, and training goes on. */
static enum hd_status leave_out(struct rank *r, enum hd_status st)
{
    char text[HD_LINK_TEXT_MAX];

    if (st && hd_comm_failure(r->comm))
        return st;
    if (!st) {
        (void)storage_report(&r->storage, NULL, NULL);
        return HD_OK;
    }
    (void)snprintf(text, sizeof text, "%.900s", hd_err_message());
    (void)storage_report(&r->storage, "trains on without a new checkpoint", text);
    say(r, HD_LINK_LEVEL_WARN, text);
    return HD_OK;
}

/* must: the last checkpoint, without which the work would be lost. No periodic one is written of a
 * run that only skips steps: it would count as progress, and in time take the place of a sound one.
 */
static enum hd_status save(struct rank *r, bool must)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);
    enum hd_status st = HD_OK;

    if (hd_trainer_is_saving(r->trainer)) {
        hd_link_report_phase(r->link, HD_LINK_PHASE_CHECKPOINTING, step);
        st = leave_out(r, finish_save(r));
    }
    if (st || r->saved_step == step)
        return st;
    if (!must && r->overflows && (!r->improved || r->overflows >= OVERFLOWS_SUSPECT)) {
        char text[128];

        (void)snprintf(text, sizeof text,
                       "no checkpoint at step %lld: the gradients of the last %lld steps were not "
                       "finite",
                       (long long)step, (long long)r->overflows);
        say(r, HD_LINK_LEVEL_WARN, text);
        return HD_OK;
    }
    check_data(r);
    if (must)
        return until_done(r, save_now, "waits to write the last checkpoint");
    return leave_out(r, r->job.checkpoint_async ? begin_to_save(r) : save_now(r));
}

static enum hd_status check_room(void *user)
{
    return hd_trainer_check_room(((struct rank *)user)->trainer);
}

/* Before the first step, whose work could not be kept else. */
static enum hd_status make_room(struct rank *r)
{
    r->storage = (struct storage){
        .rank = r->rank, .link = r->link, .trainer = r->trainer, .hear_stop = hear_stop, .user = r};
    if (r->rank == 0)
        storage_clean_up(r->job.attempt_dir, r->job.attempt);
    if (hd_trainer_steps_done(r->trainer) >= r->job.steps)
        return HD_OK;
    return until_done(r, check_room, "waits for room before it trains");
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
    struct hd_link_step step = {.step = s->step, .metrics = metrics_of(r, s)};

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

/* As opposed to a step without targets, or one with more rows than an expert has room for. */
static bool is_overflow(const struct hd_step_result *s)
{
    return s->skipped && !s->too_many_rows && s->targets;
}

static const char *why_skipped(const struct hd_step_result *s)
{
    if (s->too_many_rows)
        return "routers sent more rows to the experts of a rank than parallel.expert_rows leaves "
               "room for; raise it, or set it to auto";
    return is_overflow(s) ? "a gradient was not finite; lower train.lr or look at the data"
                          : "no token has a target";
}

/* ": the gradient of TENSOR is NaN on rank 2", or nothing. All ranks call it. */
static enum hd_status name_gradient(struct rank *r, char ret_text[HD_NONFINITE_TEXT + 32])
{
    char found[HD_NONFINITE_TEXT];
    const enum hd_status st = hd_trainer_find_nonfinite(r->trainer, found);

    (void)snprintf(ret_text, HD_NONFINITE_TEXT + 32, "%s%s", *found ? ": the gradient of " : "",
                   found);
    return st;
}

/* With fp16 an overflow is how the scale is found; at the floor it is the end. */
static enum hd_status check_scale(struct rank *r, const struct hd_step_result *s)
{
    char text[160], gradient[HD_NONFINITE_TEXT + 32];
    enum hd_status st;

    if (s->rescaled) {
        r->overflows++;
        (void)snprintf(text, sizeof text,
                       "step %lld: gradients overflowed fp16; no weight was changed by this step, "
                       "and the loss scale is halved to %lld",
                       (long long)s->step, (long long)s->loss_scale / 2);
        say(r, HD_LINK_LEVEL_INFO, text);
        return HD_OK;
    }
    st = name_gradient(r, gradient);
    if (st)
        return st;
    if (r->finite && r->job.loss_scale_floor > 1)
        return hd_err(HD_INVALID,
                      "step %lld: gradients overflow fp16 with the loss scale at %lld, and "
                      "train.loss_scale.floor = %lld allows no lower one%s; lower the floor",
                      (long long)s->step, (long long)s->loss_scale,
                      (long long)r->job.loss_scale_floor, gradient);
    r->diverged = true;
    return hd_err(HD_INTERNAL,
                  "step %lld: gradients overflow fp16 even with the loss scale at its floor of "
                  "%lld%s; lower train.lr, look at the data, or take bf16",
                  (long long)s->step, (long long)s->loss_scale, gradient);
}

static enum hd_status check_skip(struct rank *r, const struct hd_step_result *s)
{
    char text[256 + HD_NONFINITE_TEXT], gradient[HD_NONFINITE_TEXT + 32] = "";
    enum hd_status st = HD_OK;

    r->finite = isfinite(s->loss) || !s->targets;
    r->improved |= !is_overflow(s);
    if (is_overflow(s) && s->loss_scale)
        return check_scale(r, s);
    r->skips = s->skipped ? r->skips + 1 : 0;
    r->overflows = is_overflow(s) ? r->overflows + 1 : 0;
    if (!s->skipped)
        return HD_OK;
    r->diverged = r->skips >= SKIPS_MAX && is_overflow(s);
    if (r->overflows == 1 || r->diverged)
        st = name_gradient(r, gradient);
    if (st)
        return st;
    if (r->skips >= SKIPS_MAX)
        return hd_err(HD_INTERNAL, "step %lld: no weight was changed in %d steps in a row: %s%s",
                      (long long)s->step, SKIPS_MAX, why_skipped(s), gradient);
    (void)snprintf(text, sizeof text, "step %lld: %s; no weight was changed by this step%s",
                   (long long)s->step, why_skipped(s), gradient);
    say(r, HD_LINK_LEVEL_WARN, text);
    return HD_OK;
}

/* Losses that are finite and of no use: the run goes on and ends as it would, but says so. */
static void check_trend(struct rank *r, const struct hd_step_result *s)
{
    char text[320];
    bool stuck;

    if (!s->targets || s->too_many_rows)
        return;
    hd_trend_add(&r->trend, s->step, s->loss, s->grad_norm);
    stuck = hd_trend_is_stuck(&r->trend, r->job.vocab);
    if (stuck && !r->said_stuck) {
        (void)snprintf(text, sizeof text,
                       "step %lld: the loss has been %.4f for %d steps, with a gradient norm of "
                       "%.3g: the model is not learning (its lowest loss was %.4f at step %lld); a "
                       "lower train.lr, or train.clip, may prevent this",
                       (long long)s->step, s->loss, HD_TREND_STEPS, s->grad_norm, r->trend.lowest,
                       (long long)r->trend.lowest_step);
        say(r, HD_LINK_LEVEL_WARN, text);
    }
    r->said_stuck = stuck;
}

static void check_trend_at_end(struct rank *r)
{
    char text[320];

    if (!hd_trend_is_stuck(&r->trend, r->job.vocab) && !hd_trend_is_lost(&r->trend, r->job.vocab))
        return;
    (void)snprintf(text, sizeof text,
                   "the loss ended at %.4f, its lowest was %.4f at step %lld; a model that knows "
                   "nothing has %.4f: the last weights are probably of no use; lower train.lr, or "
                   "set train.clip",
                   r->trend.last, r->trend.lowest, (long long)r->trend.lowest_step,
                   log((double)r->job.vocab));
    say(r, HD_LINK_LEVEL_WARN, text);
}

/* What is in use of the device, beside what was planned and what is assumed for the rest. By now
 * what a step launches has been loaded and every group has met. */
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
        "of the GPU's memory of %s the plan has %s, as it said; %s are in use beside it, "
        "by this process and others (%s are assumed for it and its communicators)",
        total, planned, beside, assumed);
    say(r, use.other_bytes > use.assumed_bytes ? HD_LINK_LEVEL_WARN : HD_LINK_LEVEL_INFO, text);
}

static bool is_turn(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* With checkpoint.best the last checkpoint is written after the last validation, so that it has its
 * loss; without, before it, so that it is safe. */
static bool validates_before_last_save(const struct rank *r)
{
    return r->job.checkpoint_best && !r->stopped && hd_trainer_can_validate(r->trainer);
}

/* Whether a checkpoint is written after this step, and after its validation. */
static bool is_due(const struct rank *r, const struct hd_step_result *s)
{
    if (s->step == r->job.steps && s->request != REQUEST_STOP && validates_before_last_save(r))
        return false; /* it follows the last validation */
    return s->request >= REQUEST_CHECKPOINT || hd_trainer_is_best(r->trainer) ||
           is_turn(r->job.checkpoint_every, s->step);
}

static enum hd_status one_step(struct rank *r)
{
    enum rank_request request;
    struct hd_step_result s;
    enum hd_status st;

    listen(r);
    request = r->request;
    if (request == REQUEST_NONE && !hd_trainer_has_written(r->trainer))
        request = REQUEST_WRITING;
    st = hd_trainer_step(r->trainer, request, &s);
    if (st)
        return st;
    report_step(r, &s);
    show_step(r, &s);
    say_memory(r);
    write_profile(r, false);
    check_trend(r, &s);
    st = check_skip(r, &s);
    r->fails_alike = st && !hd_comm_failure(r->comm);
    if (!st && is_turn(r->job.validate_every, s.step) && s.step < r->job.steps &&
        hd_trainer_can_validate(r->trainer))
        st = validate(r);
    r->stopped = s.request == REQUEST_STOP;
    if (!st && s.request == REQUEST_NONE && hd_trainer_is_saving(r->trainer))
        st = leave_out(r, finish_save(r)); /* all ranks have written */
    if (!st && is_due(r, &s))
        st = save(r, r->stopped);
    if (s.request == REQUEST_CHECKPOINT)
        r->request = REQUEST_NONE;
    return st;
}

/* fp16: the last steps lowered the scale. If some step of the run changed the weights, that is how
 * scales are found; if none did, the run is worth nothing. */
static enum hd_status check_scale_at_end(struct rank *r)
{
    const int64_t updates = hd_trainer_updates_done(r->trainer);
    char text[160];

    if (!updates)
        return hd_err(HD_INVALID,
                      "no step changed a weight: their gradients overflowed fp16 while the loss "
                      "scale was lowered; lower train.loss_scale.initial (now %lld), or train more "
                      "steps",
                      (long long)r->job.loss_scale_initial);
    (void)snprintf(
        text, sizeof text,
        "the last %lld steps changed no weight, as their gradients overflowed fp16; %lld "
        "of all steps did",
        (long long)r->overflows, (long long)updates);
    say(r, HD_LINK_LEVEL_WARN, text);
    r->overflows = 0; /* said once */
    return HD_OK;
}

/* A run that ends with a loss that is not finite, or with gradients that are not, has diverged,
 * however many steps it did. */
static enum hd_status check_end(struct rank *r)
{
    const int64_t step = hd_trainer_steps_done(r->trainer);

    if (r->stopped || (r->finite && !r->overflows))
        return HD_OK;
    if (r->finite && strcmp(r->job.precision, "fp16") == 0)
        return check_scale_at_end(r);
    r->diverged = true;
    return hd_err(HD_INTERNAL,
                  "step %lld, the last one: the %s not finite; lower train.lr or look at the data",
                  (long long)step, r->finite ? "gradients of the last steps are" : "loss is");
}

/* A run that fails on all ranks alike keeps the checkpoint that is being written. */
static void keep_save(struct rank *r, enum hd_status st)
{
    struct hd_error error;

    if (!hd_trainer_is_saving(r->trainer) || !r->fails_alike || hd_comm_failure(r->comm))
        return;
    hd_err_save(st, &error);
    (void)leave_out(r, finish_save(r));
    (void)hd_err_restore(&error);
}

static enum hd_status run(struct rank *r)
{
    const bool validates = hd_trainer_can_validate(r->trainer) && r->job.validate_batches > 0;
    enum hd_status st;
    bool early;

    r->finite = true;
    st = make_room(r);
    if (!st && !r->stopped && validates && hd_trainer_steps_done(r->trainer) == 0)
        st = validate(r);
    hd_link_report_phase(r->link, HD_LINK_PHASE_TRAINING, hd_trainer_steps_done(r->trainer));
    while (!st && !r->stopped && hd_trainer_steps_done(r->trainer) < r->job.steps)
        st = one_step(r);
    if (!st)
        write_profile(r, true);
    if (!st) {
        st = check_end(r);
        r->fails_alike = st != HD_OK;
    }
    if (st)
        keep_save(r, st);
    early = validates && validates_before_last_save(r);
    if (!st && early)
        st = validate(r);
    if (!st && !r->unsaved)
        st = save(r, true);
    if (!st && validates && !early && !r->stopped)
        st = validate(r);
    if (!st)
        st = check_end(r);
    if (!st)
        check_trend_at_end(r);
    hd_link_report_phase(r->link, HD_LINK_PHASE_ENDING, hd_trainer_steps_done(r->trainer));
    r->stopped = r->unsaved || (r->stopped && hd_trainer_steps_done(r->trainer) < r->job.steps);
    return st;
}

/* ---- the end ---- */

static int exit_status(const struct rank *r, enum hd_status st)
{
    if (st && r->bad_base) /* the controller then goes back to the checkpoint before */
        return HD_LINK_EXIT_BAD_BASE;
    if (st && r->diverged)
        return HD_LINK_EXIT_DIVERGED;
    switch (st) {
    case HD_OK:
        return r->stopped ? HD_LINK_EXIT_STOPPED : HD_LINK_EXIT_COMPLETED;
    case HD_INVALID:
    case HD_NOT_FOUND:
    case HD_UNSUPPORTED:
        return HD_LINK_EXIT_BAD_INPUT;
    case HD_STORAGE:
        return HD_LINK_EXIT_STORAGE;
    default:
        return HD_LINK_EXIT_FAILED;
    }
}

/* For the log: what this rank did last with its peers, line by line. */
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
    if (r->comm) {
        hd_comm_abort(r->comm, message);
        log_flight(r->comm);
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
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is then an error of write */
    st = read_flags(&r, argc, argv, &job_path);
    if (!st)
        st = connect(&r, job_path);
    if (!st)
        st = set_up(&r);
    if (!st && open_board(&r))
        board_fails(&r);
    if (!st)
        st = run(&r);
    if (st)
        report_failure(&r, st);
    hd_tensorboard_close(r.board);
    hd_trainer_free(r.trainer);
    hd_comm_free(r.comm);
    hd_worker_device_close(&r.device);
    hd_link_close(r.link);
    hd_arena_done(&r.arena);
    return exit_status(&r, st);
}
