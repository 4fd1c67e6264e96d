#include "harness.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "comm/gloo.h"
#include "comm/local.h"
#include "comm/shm_control.h"
#include "tests/job_text.h"

enum { DEADLINE_MS = 60000 };

/* Words in a fixed but irregular order: there is something to learn and no short cycle. */
static void write_corpus(const char *path, int64_t bytes)
{
    static const char *const words[] = {"warp ",    "weft ", "thread ",   "heddle ",
                                        "shuttle ", "loom ", "the ",      "a ",
                                        "lifts ",   "and ",  "crosses.\n"};
    struct hd_text text = {0};

    for (uint64_t i = 0; (int64_t)text.len_bytes < bytes; i++)
        hd_text_add(&text, "%s", words[hd_random_u64(5, i) % (sizeof words / sizeof words[0])]);
    if (hd_file_write_atomic(path, text.data, (size_t)bytes, 0600))
        abort();
    hd_text_free(&text);
}

void harness_setup(struct harness *h, int64_t corpus_bytes)
{
    const char *const place = getenv("TMPDIR");

    (void)harness_backend(); /* skips where there is none, before anything is made */
    (void)snprintf(h->dir, sizeof h->dir, "%s/heddle-train-XXXXXX",
                   place && strlen(place) < sizeof h->dir - 32 ? place : "/tmp");
    if (!mkdtemp(h->dir))
        abort();
    (void)snprintf(h->corpus, sizeof h->corpus, "%s/corpus.txt", h->dir);
    write_corpus(h->corpus, corpus_bytes);
    h->file = (struct hd_job_file){.path = h->corpus, .size_bytes = corpus_bytes};
}

void harness_teardown(struct harness *h)
{
    (void)hd_file_remove_tree(h->dir);
}

static void word(char *ret_word, const char *text)
{
    (void)snprintf(ret_word, HD_JOB_WORD_MAX, "%s", text);
}

/* Gives keys of the job's version 16 and later that a test leaves empty their defaults: a stored job must be valid. */
static void set_new_keys(struct hd_job *job)
{
    const struct hd_job empty = HD_JOB(.arena = job_arena());

    for (size_t i = 0; i < hd_job_key_count; i++)
        if (hd_job_keys[i].kind != HD_KEY_FORM && hd_job_keys[i].since >= 16 &&
            hd_job_members_equal(&hd_job_keys[i], job, &empty))
            hd_job_set_default(&hd_job_keys[i], job);
}

struct hd_job harness_job(const struct harness *h, const char *family, int dp)
{
    const struct hd_family *f = hd_family_named(family);
    const bool windowed = f->window == HD_WINDOW_ALL || f->window == HD_WINDOW_TYPES;
    struct hd_job j =
        HD_JOB(.arena = job_arena(), .layers = 2, .hidden = 32, .heads = 4,
               .kv_heads = f->learned ? 4 : 2, .head_width = 8, .qkv_bias = f->qkv_bias,
               .out_bias = f->out_bias, .mlp_bias = f->mlp_bias, .qk_norm = f->qk_norm,
               .window = windowed && !f->experts ? 5 : 0,
               .attention_chunk = f->window == HD_WINDOW_CHUNKS ? 5 : 0,
               .query_factor = f->query_factor_unrotated ? 0.5 : 0,
               .query_factor_step = f->query_factor_unrotated ? 4 : 0,
               .rope_local_theta = f->local_theta > 0 ? 50 : 0,
               .rope_fraction = f->rope_fraction > 0 ? f->rope_fraction : 1,
               .attention_cap = f->attention_cap > 0 ? 2 : 0, .logit_cap = f->logit_cap > 0 ? 2 : 0,
               .embedding_scale = f->scales_embedding ? 1.5 : 1, .rope_factor = 1,
               .router_groups = 1, .router_groups_kept = 1, .router_scale = 1, .ffn_hidden = 48,
               .vocab = 256, .context = 16, .rope_theta = 10000, .norm_eps = 1e-5,
               .tie_embeddings = f->tied, .end_of_text = -1, .val_split = 0.1, .steps = 20,
               .global_batch = 8, .lr_peak = 3e-3, .lr_min = 3e-4, .lr_warmup_steps = 2,
               .beta1 = 0.9, .beta2 = 0.95, .adam_eps = 1e-6, .weight_decay = 0.1, .clip = 1,
               .seed = 7, .validate_every = 10, .validate_batches = 2, .checkpoint_every = 0,
               .threads = 1, .pp = 1, .dp = dp, .cp = 1, .tp = 1, .ep = 1, .micro_batch = 2,
               .job_id = 1, .devices_min = dp, .devices_max = dp, .attempt = 1, .train_count = 1,
               /* fp16: a factor of 1 on the sums over 8 x 16 tokens */
               .loss_scale_initial = 128, .loss_scale_interval = 2000, .loss_scale_floor = 1,
               .fp8_history = 16);

    if (f->latent.kv_rank) { /* widths that differ from one another; values narrower than keys */
        j.kv_heads = 4;
        j.mla_q_rank = f->latent.q_rank ? 12 : 0;
        j.mla_kv_rank = 20;
        j.mla_nope = 16;
        j.mla_rope = 8;
        j.mla_value = 16;
        j.head_width = 24;
    }
    if (f->delta.layers) { /* sizes that differ from one another */
        j.delta_key_heads = 4;
        j.delta_value_heads = 8;
        j.delta_key_width = 8;
        j.delta_value_width = 16;
        j.delta_conv_width = 3;
    }
    if (f->conv.layers) {
        j.conv_width = 3;
        j.conv_bias = true;
    }
    if (f->experts) {
        j.experts = 4;
        j.experts_per_token = 2;
        j.renormalize = f->renormalize;
        j.shared_ffn_hidden = f->shared_gated || f->gate_input ? 40 : 0;
        j.balance = 0.01;
        j.z_loss = 0.001;
    }
    j.name = "test";
    j.rope_scaling = HD_JOB_ROPE_SCALING_NONE;
    j.positions = hd_family_positions(f);
    j.window_layers = f->window_layers ? "1:1" : "all";
    if (f->parallel)
        j.parallel_residual = f->parallel;
    j.rope_layers = f->rope_layers ? "1:1" : "all";
    j.delta_layers = f->delta.layers ? "1:1" : "none";
    j.conv_layers = f->conv.layers ? "1:1" : "none";
    j.cp_exchange = HD_JOB_CP_EXCHANGE_RING;
    word(j.schedule, "none");
    word(j.stages, "auto");
    j.virtual_stages = 1;
    word(j.recompute, "none");
    j.offload = HD_JOB_OFFLOAD_NONE;
    j.family = family;
    j.tokenizer = "bytes";
    j.order = HD_JOB_ORDER_SHUFFLED;
    j.documents = HD_JOB_DOCUMENTS_JOINED;
    j.data_format = HD_JOB_DATA_FORMAT_AUTO;
    j.data_loss = HD_JOB_DATA_LOSS_ANSWERS;
    j.bad_rows = "error";
    j.too_long = HD_JOB_TOO_LONG_ERROR;
    j.objective = HD_JOB_OBJECTIVE_NEXT_TOKEN;
    j.preference_loss = HD_JOB_PREFERENCE_LOSS_SIGMOID;
    j.preference_beta = 0.1;
    j.lr_decay = HD_JOB_LR_DECAY_COSINE;
    j.precision = HD_JOB_PRECISION_FP32;
    j.moments = HD_JOB_MOMENTS_FP32;
    j.optimizer = HD_JOB_OPTIMIZER_ADAMW;
    j.muon_scale = HD_JOB_MUON_SCALE_MOONLIGHT;
    j.muon_momentum = 0.95;
    j.muon_nesterov = true;
    j.muon_iterations = 5;
    j.muon_adamw_lr = 1;
    j.reduce = HD_JOB_REDUCE_FP32;
    j.fp8_scaling = HD_JOB_FP8_SCALING_DELAYED;
    j.adapter = HD_JOB_ADAPTER_NONE;
    j.model_weights = HD_JOB_MODEL_WEIGHTS_PLAIN;
    j.checkpoint_base = HD_JOB_CHECKPOINT_BASE_SAVE;
    j.guard_action = HD_JOB_GUARD_ACTION_SKIP;
    j.hang_setup = "auto";
    j.hang_step = "auto";
    j.hang_validation = "auto";
    j.hang_checkpoint = "auto";
    j.hang_ending = "auto";
    j.hang_action = HD_JOB_HANG_ACTION_END;
    j.adapter_targets = "all-linear";
    j.adapter_rank = 16;
    j.adapter_alpha = 32;
    j.adapter_width = 64;
    j.adapter_tokens = 20;
    j.adapter_b_lr = 1;
    j.queue = "default";
    j.after = "none";
    j.time_limit = "none";
    j.device = HD_JOB_DEVICE_CPU;
    j.base_manifest_hash = "-";
    j.attempt_dir = job_text("%s/attempt-1", h->dir);
    j.train = (struct hd_job_file *)&h->file;
    set_new_keys(&j);
    return j;
}

static bool force_plain;

void harness_plain(bool plain)
{
    force_plain = plain;
}

enum hd_status harness_meet(struct harness_rank *r)
{
    struct hd_comm_stream *stream = hd_comm_get_stream(r->comm, HD_COMM_STREAM_REDUCE);
    struct hd_comm_group *world;
    int32_t members[HARNESS_WORLD_MAX];
    enum hd_status st;

    for (int i = 0; i < r->world; i++)
        members[i] = i;
    st = hd_comm_open_group(r->comm, "world", members, r->world, &world);
    if (!st)
        st = hd_comm_barrier(world, stream);
    return st ? st : hd_comm_wait(stream, hd_comm_record(stream));
}

enum hd_status harness_init(struct hd_trainer *t)
{
    const struct hd_reference_watch watch = {.alive = NULL};
    bool made;
    const enum hd_status st = hd_trainer_prepare_reference(t, &watch, &made);

    return st || made ? st : hd_trainer_init(t);
}

enum hd_status harness_trainer(struct harness_rank *r, struct hd_trainer **ret_trainer)
{
    const struct hd_trainer_options options = {.peak = HARNESS_PEAK,
                                               .backend = harness_backend(),
                                               .instance = r->instance,
                                               .comm = r->comm,
                                               .rank = r->rank,
                                               .force_plain = force_plain};
    enum hd_status st = hd_trainer_new(r->job, &options, ret_trainer);

    return st ? st : harness_init(*ret_trainer);
}

enum hd_status harness_trained(struct harness_rank *r, struct hd_trainer **ret_trainer)
{
    struct hd_step_result result;
    const struct hd_registry *registry;
    enum hd_status st = harness_trainer(r, ret_trainer);

    for (int s = 0; !st && s < 2; s++)
        st = hd_trainer_step(*ret_trainer, 0, &result);
    if (st)
        return st;
    registry = &hd_trainer_rank_program(*ret_trainer)->registry;
    for (int i = 0; i < registry->param_count; i++) {
        const struct hd_param *p = &registry->params[i];
        float *w = harness_take(*ret_trainer, i, HD_STATE_WEIGHT);

        for (int64_t k = 0; k < p->count; k++)
            w[k] += 0.2f * hd_random_normal(hd_random_hash(p->name), (uint64_t)k);
        harness_put(*ret_trainer, i, HD_STATE_WEIGHT, w);
    }
    return HD_OK;
}

float *harness_take(struct hd_trainer *t, int param, enum hd_state_kind kind)
{
    const int64_t count = hd_trainer_rank_program(t)->registry.params[param].count;
    float *values = malloc((size_t)count * sizeof *values);

    if (!values || hd_trainer_read_state(t, param, kind, values))
        abort();
    return values;
}

void harness_put(struct hd_trainer *t, int param, enum hd_state_kind kind, float *values)
{
    if (hd_trainer_write_state(t, param, kind, values))
        abort();
    free(values);
}

void harness_clear_gradients(struct hd_trainer *t)
{
    const struct hd_registry *r = &hd_trainer_rank_program(t)->registry;

    for (int i = 0; i < r->param_count; i++) {
        float *values = calloc((size_t)r->params[i].count, sizeof *values);

        if (!values)
            abort();
        harness_put(t, i, HD_STATE_GRAD, values);
    }
}

static const struct hd_backend_table *used;

void harness_use(const struct hd_backend_table *backend)
{
    used = backend;
}

const struct hd_backend_table *harness_backend(void)
{
    return used ? used : on_backend();
}

/* ---- ranks
 * ------------------------------------------------------------------------------------------ */

/* How the ranks come together: by shm, on one device, or by gloo where the doors are open. */
struct meeting {
    struct hd_shm_control *ctl;
    struct hd_comm_hub *hub; /* of a device */
    struct hd_gloo_listener *doors[HARNESS_WORLD_MAX];
    struct hd_gloo_endpoint cards[HARNESS_WORLD_MAX];
};

static enum hd_status attach(const struct meeting *m, struct harness_rank *r)
{
    const struct hd_comm_device device = {.table = harness_backend(), .backend = r->instance};

    if (m->hub)
        return hd_comm_open_local(m->hub, r->rank, &device, DEADLINE_MS, &r->comm);
    if (m->doors[r->rank])
        return hd_comm_open_gloo(m->doors[r->rank], m->cards, r->rank, r->world, DEADLINE_MS,
                                 &r->comm);
    return hd_comm_open_shm(hd_shm_control_fd(m->ctl), hd_shm_control_rank_fds(m->ctl), r->rank,
                            r->world, DEADLINE_MS, &r->comm);
}

static enum hd_status run_rank(struct harness_rank *r, const struct meeting *m,
                               enum hd_status (*body)(struct harness_rank *r))
{
    const struct hd_backend_options options = hd_trainer_backend_options(r->job);
    enum hd_status st = m->hub ? harness_backend()->open(&options, &r->instance) : HD_OK;

    if (!st)
        st = attach(m, r);
    if (!st)
        st = body(r);
    if (st && r->comm)
        hd_comm_abort(r->comm, hd_err_message());
    hd_comm_free(r->comm);
    if (r->instance)
        harness_backend()->close(r->instance);
    return st;
}

struct thread {
    struct harness_rank rank;
    const struct meeting *meeting;
    enum hd_status (*body)(struct harness_rank *r);
    struct hd_error error;
    pthread_t id;
};

static void *thread_main(void *argument)
{
    struct thread *t = argument;
    enum hd_status st = run_rank(&t->rank, t->meeting, t->body);

    if (st)
        hd_err_save(st, &t->error);
    return NULL;
}

static enum hd_status run_threads(const struct harness_rank *like,
                                  enum hd_status (*body)(struct harness_rank *r))
{
    const int world = like->world;
    struct thread threads[HARNESS_WORLD_MAX] = {0};
    struct meeting meeting = {0};
    enum hd_status st = harness_backend()->device ? hd_comm_hub_new(world, &meeting.hub)
                                                  : hd_shm_control_new(world, &meeting.ctl);

    if (st)
        return st;
    for (int i = 0; i < world; i++) {
        threads[i] = (struct thread){.rank = *like, .meeting = &meeting, .body = body};
        threads[i].rank.rank = i;
        if (pthread_create(&threads[i].id, NULL, thread_main, &threads[i]))
            abort();
    }
    for (int i = 0; i < world; i++)
        (void)pthread_join(threads[i].id, NULL);
    hd_shm_control_free(meeting.ctl);
    hd_comm_hub_free(meeting.hub);
    for (int i = 0; i < world; i++)
        if (threads[i].error.status)
            return hd_err_restore(&threads[i].error);
    return HD_OK;
}

enum hd_status harness_threads(const struct hd_job *job, int world, void *context,
                               enum hd_status (*body)(struct harness_rank *r))
{
    return run_threads(&(struct harness_rank){.world = world, .job = job, .context = context},
                       body);
}

/* Adds what a killed rank was executing, as a supervisor adds it. */
static void add_flight(const struct hd_shm_control *ctl, int rank, char *reason, size_t size_bytes)
{
    struct hd_flight_record records[HD_FLIGHT_MAX];
    const int count = hd_shm_control_flight(ctl, rank, records);
    const size_t n = strlen(reason);

    hd_flight_describe_open(records, count, reason + n, size_bytes - n);
}

/* Starts the ranks and waits for all, in the order in which they end, as a supervisor would. */
static enum hd_status run_processes(const struct hd_job *job, int world, void *shared,
                                    const struct meeting *meeting,
                                    enum hd_status (*body)(struct harness_rank *r))
{
    pid_t pids[HARNESS_WORLD_MAX];
    char reason[HD_SHM_REASON_MAX];
    int failed = -1;

    for (int i = 0; i < world; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            struct harness_rank r = {.rank = i, .world = world, .job = job, .shared = shared};
            enum hd_status mine = run_rank(&r, meeting, body);

            if (mine)
                (void)fprintf(stderr, "rank %d: %s\n", i, hd_err_message());
            _exit(mine ? 1 : 0);
        }
    }
    for (int left = world; left > 0; left--) {
        int rank = 0, status;
        pid_t pid = wait(&status);

        while (rank < world && pids[rank] != pid)
            rank++;
        assert(rank < world);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        (void)snprintf(reason, sizeof reason,
                       WIFSIGNALED(status) ? "killed by signal %d" : "exited with %d",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (meeting->ctl && WIFSIGNALED(status))
            add_flight(meeting->ctl, rank, reason, sizeof reason);
        if (meeting->ctl)
            hd_shm_control_mark_dead(meeting->ctl, rank, reason);
        failed = rank;
    }
    return failed < 0 ? HD_OK : hd_err(HD_ABORTED, "rank %d failed", failed);
}

enum hd_status harness_processes(const struct hd_job *job, int world, void *shared,
                                 enum hd_status (*body)(struct harness_rank *r))
{
    struct meeting meeting = {0};
    enum hd_status st;

    if (harness_backend()->device)
        return run_threads(&(struct harness_rank){.world = world, .job = job, .shared = shared},
                           body);
    st = hd_shm_control_new(world, &meeting.ctl);
    if (!st)
        st = run_processes(job, world, shared, &meeting, body);
    hd_shm_control_free(meeting.ctl);
    return st;
}

enum hd_status harness_gloo_processes(const struct hd_job *job, int world, void *shared,
                                      enum hd_status (*body)(struct harness_rank *r))
{
    struct meeting meeting = {0};
    enum hd_status st = HD_OK;

    for (int i = 0; !st && i < world; i++) {
        st = hd_gloo_listener_open("127.0.0.1", "here", &meeting.doors[i]);
        if (!st)
            meeting.cards[i] = *hd_gloo_listener_endpoint(meeting.doors[i]);
    }
    if (!st)
        st = run_processes(job, world, shared, &meeting, body);
    for (int i = 0; i < world && meeting.doors[i]; i++)
        hd_gloo_listener_close(meeting.doors[i]);
    return st;
}

void *harness_shared(size_t size_bytes)
{
    void *memory =
        mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        abort();
    return memory;
}

void harness_shared_free(void *memory, size_t size_bytes)
{
    (void)munmap(memory, size_bytes);
}

enum hd_status harness_save_trained(struct harness_rank *r)
{
    struct hd_trainer *t = NULL;
    enum hd_status st = harness_trained(r, &t);

    if (!st)
        st = hd_trainer_save(t, r->context);
    hd_trainer_free(t);
    return st;
}
