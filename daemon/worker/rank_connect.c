/* rank_connect: a rank from its command line to its supervisor, its peers and its device.
 *
 *   the link, so that every later failure is told -> the job -> what starts processes of its own ->
 *   the sandbox -> the rendezvous of all ranks -> the device
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/math.h"
#include "comm/gloo.h"
#include "comm/nccl_log.h"
#include "flags/flags.h"
#include "kernels/nccl.h"
#include "kernels/plugin.h"
#include "worker/peer_info.h"
#include "worker/rank_policy.h"

enum {
    RENDEZVOUS_TIMEOUT_MS = 60 * 1000,
    NODES_TIMEOUT_MS = 5 * 60 * 1000, /* ms until the ranks of all nodes must have connected */
};

/* ---- the command line and the job ---- */

/* Reads --isolation; without it isolation is off, because a rank started by hand reads what its
 * user may read. */
static enum hd_status read_isolation(struct rank *r, const char *word)
{
    static const struct {
        const char *word;
        enum rank_isolation isolation;
    } words[] = {{"off", RANK_ISOLATION_OFF},
                 {"try", RANK_ISOLATION_TRY},
                 {"require", RANK_ISOLATION_REQUIRE}};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i].word) == 0) {
            r->isolation = words[i].isolation;
            return HD_OK;
        }
    return hd_err(HD_INVALID, "--isolation: say require, try or off, not %s", word);
}

enum hd_status rank_read_flags(struct rank *r, int argc, char **argv, const char **ret_job_path)
{
    const char *control = NULL, *ranks = NULL, *isolation = "off";
    struct hd_flag f[] = {
        HD_FLAG_NEEDED("--job", *ret_job_path),
        HD_FLAG_INT64("--rank", r->rank, 0, HD_COMM_RANKS_MAX - 1, .required = true),
        HD_FLAG_INT64("--world", r->world, 1, HD_COMM_RANKS_MAX, .required = true),
        HD_FLAG_INT("--link-fd", r->link_fd, 0, 1 << 20, .required = true),
        HD_FLAG_NEEDED("--shm-control", control),
        HD_FLAG_NEEDED("--shm-ranks", ranks),
        HD_FLAG_TEXT("--node", r->node),
        HD_FLAG_TEXT("--data-address", r->data_address),
        HD_FLAG_TEXT("--choices-dir", r->choices_dir),
        HD_FLAG_INT64("--here", r->here, 0, HD_COMM_RANKS_MAX - 1),
        HD_FLAG_INT64("--wait-limit-ms", r->wait_limit_ms, 0, INT64_MAX / 2),
        HD_FLAG_TEXT("--isolation", isolation),
        HD_FLAG_TEXT("--data-roots", r->data_roots)};
    char fds[HD_SHM_FDS_TEXT_MAX];
    enum hd_status st;

    r->here = -1;
    st = HD_FLAGS_READ(argc, argv, f);
    if (!st && (r->rank >= r->world || r->here >= r->world))
        st = hd_err(HD_INVALID, "--rank and --here are from 0 to %lld", (long long)r->world - 1);
    if (st)
        return st;
    if (r->here < 0)
        r->here = r->rank;
    (void)snprintf(fds, sizeof fds, "%s,%s", control, ranks);
    st = hd_shm_control_parse(fds, &r->fds);
    if (!st)
        st = read_isolation(r, isolation);
    if (!st && r->data_address && !r->node)
        st = hd_err(HD_INVALID, "--data-address needs --node");
    if (!st && r->here >= r->fds.world)
        st = hd_err(HD_INVALID, "--here %lld: --shm-ranks names %d ranks", (long long)r->here,
                    r->fds.world);
    if (!st && r->fds.world != r->world && !r->data_address)
        st = hd_err(HD_INVALID, "--shm-ranks names %d ranks, --world %lld", r->fds.world,
                    (long long)r->world);
    return st;
}

/* Sets how long waits for peers may last, in steps and validations, and in saves and loads: longer
 * than the supervisor takes to find the rank to blame (1.5 times its limit). With hang.action tell
 * waits have no limit. */
static enum hd_status set_deadlines(struct rank *r)
{
    int64_t step_ms, validation_ms, checkpoint_ms, setup_ms;
    enum hd_status st = hd_hang_limit_read(r->job.hang_step, &step_ms);

    if (!st)
        st = hd_hang_limit_read(r->job.hang_validation, &validation_ms);
    if (!st)
        st = hd_hang_limit_read(r->job.hang_checkpoint, &checkpoint_ms);
    if (!st)
        st = hd_hang_limit_read(r->job.hang_setup, &setup_ms);
    if (st)
        return st;
    r->step_deadline_ms =
        hd_max(hd_max(HD_STEP_DEADLINE_MS, r->wait_limit_ms), 2 * hd_max(step_ms, validation_ms));
    r->save_deadline_ms = hd_max(hd_max(HD_SAVE_DEADLINE_MS, r->step_deadline_ms),
                                 2 * hd_max(checkpoint_ms, setup_ms));
    if (r->job.hang_action == HD_JOB_HANG_ACTION_TELL)
        r->step_deadline_ms = r->save_deadline_ms = INT64_MAX / 2;
    return HD_OK;
}

static enum hd_status read_rank_job(struct rank *r, const char *path)
{
    enum hd_status st = hd_job_read_file(path, &r->arena, &r->job);

    if (!st && r->job.pp * r->job.dp * r->job.cp * r->job.tp != r->world)
        st =
            hd_err(HD_INVALID, "the plan is for %lld ranks, --world says %lld",
                   (long long)(r->job.pp * r->job.dp * r->job.cp * r->job.tp), (long long)r->world);
    return st ? st : set_deadlines(r);
}

/* ---- the peers ---- */

/* Connects through shared memory; all ranks are on this node. Each rank sends its name, and waits
 * for the names of all others. */
static enum hd_status meet_here(struct rank *r)
{
    struct hd_link_values values;
    char me[64];
    enum hd_status st = hd_comm_open_shm(r->fds.control_fd, r->fds.rank_fds, (int)r->rank,
                                         (int)r->world, r->step_deadline_ms, &r->open.comm);

    if (st)
        return st;
    (void)snprintf(me, sizeof me, "rank %lld pid %d", (long long)r->rank, (int)getpid());
    st = hd_link_rendezvous(r->link, me, strlen(me), RENDEZVOUS_TIMEOUT_MS, &values);
    if (!st)
        hd_link_values_free(&values);
    return st;
}

/* Turns a failure to open the device into HD_UNAVAILABLE: the node offered the device, so it is not
 * the job's fault, and the next attempt may get another one. */
static enum hd_status blame_the_node(enum hd_status st)
{
    return st == HD_UNSUPPORTED || st == HD_INVALID
               ? hd_err(HD_UNAVAILABLE, "%s; see heddled --doctor on this node", hd_err_message())
               : st;
}

/* Writes the instruction set and libraries that this rank's results depend on; on a GPU also NCCL,
 * and the CPU if the optimizer runs on it. */
static enum hd_status describe_compute(const struct rank *r, struct peer_compute *ret_compute)
{
    const struct hd_backend_options options = {.threads = (int)r->job.threads};
    const struct hd_device_table *device = r->backend->device;
    const struct hd_nccl_table *nccl = NULL;
    const char *without = getenv("NCCL_IB_DISABLE"); /* set by the supervisor if no adapter serves
                                                        the data address */
    char version[HD_NCCL_VERSION_MAX];
    const bool offloads = r->job.layout.offload != HD_JOB_OFFLOAD_NONE;
    struct hd_traits traits, host;
    enum hd_status st;

    memset(ret_compute, 0, sizeof *ret_compute);
    r->backend->describe(&options, &traits);
    memcpy(ret_compute->isa, traits.isa, sizeof ret_compute->isa);
    memcpy(ret_compute->library, traits.library, sizeof ret_compute->library);
    if (!device)
        return HD_OK;
    st = device->nccl ? device->nccl(&nccl)
                      : hd_err(HD_UNSUPPORTED, "backend %s was built without NCCL", traits.backend);
    if (st)
        return blame_the_node(st);
    hd_backend_cpu()->describe(&options, &host);
    hd_nccl_name(nccl->version, version);
    /* an end with adapters and one without would wait for each other until the deadline */
    (void)snprintf(ret_compute->engine, sizeof ret_compute->engine, "%s%s%s%s", version,
                   without && strcmp(without, "1") == 0 ? "+TCP" : "+RDMA", offloads ? " " : "",
                   offloads ? host.isa : "");
    return HD_OK;
}

static void tell_awaited(void *of, int rank)
{
    hd_comm_status_page_waiting_on(of, rank);
}

/* Connects ranks on several nodes: each listens on a port, and the rendezvous exchanges the
 * endpoints of all. */
static enum hd_status meet_at_doors(struct rank *r)
{
    struct hd_gloo_endpoint *cards = hd_arena_array(&r->arena, (size_t)r->world, sizeof *cards);
    struct hd_link_values values = {0};
    struct hd_gloo_listener *door = NULL;
    struct hd_comm_status_page *tensorboard = NULL;
    uint8_t mine[PEER_INFO_BYTES];
    struct peer_compute compute;
    enum hd_status st = cards ? hd_gloo_listener_open(r->data_address, r->node, &door)
                              : hd_err(HD_NO_MEMORY, "no memory for the cards of the ranks");

    if (!st)
        st = describe_compute(r, &compute);
    if (!st) {
        peer_info_write(hd_gloo_listener_endpoint(door), &compute, mine);
        st = hd_link_rendezvous(r->link, mine, sizeof mine, NODES_TIMEOUT_MS, &values);
    }
    if (!st)
        st = peer_info_read_all(&values, r->rank, &compute, cards);
    if (!st)
        st = hd_comm_status_page_open(r->fds.control_fd, (int)r->here, r->fds.world, &tensorboard);
    if (!st) {
        hd_gloo_listener_report(door, tell_awaited, tensorboard);
        st = hd_comm_open_gloo(door, cards, (int)r->rank, (int)r->world, RENDEZVOUS_TIMEOUT_MS,
                               &r->open.comm);
    }
    if (!st) {
        hd_comm_show_in(r->open.comm, tensorboard);
        tensorboard = NULL;
        hd_comm_set_deadline(r->open.comm, r->step_deadline_ms);
    }
    hd_comm_status_page_close(tensorboard);
    hd_link_values_free(&values);
    if (door)
        hd_gloo_listener_close(door);
    return st;
}

enum hd_status rank_connect(struct rank *r, const char *job_path)
{
    enum hd_status st = hd_link_worker_open(r->link_fd, r->rank, r->world, &r->link);

    if (st)
        return st;
    hd_link_report_phase(r->link, HD_LINK_PHASE_SETUP, 0);
    st = read_rank_job(r, job_path);
    r->nccl_log =
        !st && r->world > 1 && r->job.device == HD_JOB_DEVICE_CUDA ? hd_comm_nccl_log_open() : -1;
    if (!st)
        st = rank_policy_begin(r);
    if (!st)
        st = rank_tasks_begin(r);
    if (!st)
        st = rank_lock_in(r);
    if (!st)
        st = blame_the_node(hd_plugin_backend(hd_job_device_words[r->job.device], &r->backend));
    if (st)
        return st;
    if (!r->backend->device || r->world > 1)
        st = r->data_address ? meet_at_doors(r) : meet_here(r);
    if (!st && r->data_address)
        st = rank_close_network(r);
    if (!st && r->backend->device)
        st = blame_the_node(hd_trainer_open_rank(r->backend, &r->job, r->choices_dir, r->open.comm,
                                                 &r->fds, &r->open));
    return st;
}

void rank_say_transports(struct rank *r)
{
    const char *adapters = getenv("NCCL_IB_HCA");
    struct hd_text transports = {0}, warnings = {0}, text = {0};
    bool slow;

    hd_comm_nccl_log_take(r->nccl_log, &transports, &warnings);
    r->nccl_log = -1; /* told once: all spans of data.stages use the same connections */
    slow = transports.len_bytes && adapters && !getenv("NCCL_IB_DISABLE") &&
           strstr(transports.data, "NET/Socket");
    hd_text_add(&text, "NCCL connects by %s (channels)%s%s%s",
                transports.len_bytes ? transports.data : "nothing",
                slow ? "; sockets are many times slower than the adapters that it was given, " : "",
                slow ? adapters : "",
                slow ? ": look at NCCL_IB_GID_INDEX, the locked memory (heddled --doctor), and the "
                       "switches"
                     : "");
    if (transports.len_bytes && !text.failed && (slow || r->here == 0))
        rank_say(r, slow ? HD_LINK_LEVEL_WARN : HD_LINK_LEVEL_INFO, text.data);
    hd_text_clear(&text);
    hd_text_add(&text, "NCCL warns: %s", warnings.len_bytes ? warnings.data : "");
    if (warnings.len_bytes && !text.failed)
        rank_say(r, HD_LINK_LEVEL_WARN, text.data);
    hd_text_free(&transports);
    hd_text_free(&warnings);
    hd_text_free(&text);
}
