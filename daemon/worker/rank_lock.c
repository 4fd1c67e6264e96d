/* rank_lock: puts a rank into a sandbox, before it reads a user's data
 * (daemon/isolation/sandbox.h).
 *
 * What it may open afterwards:
 *   read    what the job names (data, tokenizer, template, weights to start from), each checked by
 *           hd_roots_open; the job's folder; system libraries, /proc, /sys, a few files of /etc
 *   write   in the job's folder what a rank makes: checkpoints, tokens, tensorboard, profile; the
 *           node's choices among algorithms
 *   device  /dev/null and its like; on GPUs NVIDIA's devices, RDMA and /dev/shm
 * Not: the supervisor's records (nodes/), folders of other jobs, /tmp, homes.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "checkpoint/checkpoint.h"
#include "daemon/isolation/roots.h"
#include "daemon/isolation/sandbox.h"
#include "data/token_file.h"
#include "hf/hf.h"
#include "job/choice_sets.h"
#include "job/frozen_model.h"
#include "job/sample_prompts.h"
#include "kernels/library.h"
#include "kernels/plugin.h"
#include "train/job_chat.h"
#include "worker/rank_policy.h"

enum { BASES_MAX = 8 };

struct lock {
    const struct rank *r;
    struct hd_sandbox *sandbox;
    /* allowed folders, including the jobs directory; empty: all paths are allowed */
    struct hd_text roots;
    enum hd_status st; /* first failure to allow a path */
};

static void allow(struct lock *l, enum hd_sandbox_access access, const char *path)
{
    if (!l->st)
        l->st = hd_sandbox_allow(l->sandbox, path, access);
}

/* ---- inputs that the job names ---- */

/* Allows reading the targets of links in a model's folder: its files may be links to one copy for
 * all versions. */
static void allow_links_of(struct lock *l, int folder_fd, const char *path)
{
    const int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    char link[PATH_MAX], target[PATH_MAX];
    struct stat info;

    while (!l->st && folder && (entry = readdir(folder))) {
        int at = -1;

        if (entry->d_name[0] == '.' || (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) ||
            snprintf(link, sizeof link, "%s/%s", path, entry->d_name) >= (int)sizeof link ||
            !realpath(link, target) || stat(target, &info) < 0 || !S_ISREG(info.st_mode))
            continue;
        /* a target outside the allowed folders stays forbidden */
        if (hd_roots_open(l->roots.data, target, &at) == HD_OK) {
            l->st = hd_sandbox_allow_at(l->sandbox, at, HD_SANDBOX_READ);
            (void)close(at);
        }
    }
    if (folder)
        (void)closedir(folder);
    else if (fd >= 0)
        (void)close(fd);
}

static void allow_named(struct lock *l, const char *key, const char *path)
{
    int fd;

    if (l->st || path[0] != '/') /* not a path: a word such as `bytes`, or "" */
        return;
    l->st = hd_roots_open(l->roots.data, path, &fd);
    if (l->st == HD_DENIED || l->st == HD_NOT_FOUND) {
        /* a path that cannot be opened is no failure here: the code that reads the path reports the
         * error */
        l->st = HD_OK;
        return;
    }
    if (l->st) {
        l->st = hd_err_prefix(l->st, "%s", key);
        return;
    }
    l->st = hd_sandbox_allow_at(l->sandbox, fd, HD_SANDBOX_READ);
    allow_links_of(l, fd, path);
    (void)close(fd);
}

/* Allows reading the bases of a checkpoint: the directory that its job began with, which may be a
 * checkpoint with a base, too. */
static void allow_bases(struct lock *l, const char *checkpoint)
{
    struct hd_arena arena;
    struct hd_job then;

    hd_arena_init(&arena, 0);
    for (int depth = 0; depth < BASES_MAX && !l->st && hd_source_is_checkpoint(checkpoint);
         depth++) {
        /* a checkpoint that cannot be opened is no failure here: the code that loads it reports the
         * error */
        if (hd_stored_job_in(checkpoint, &arena, &then))
            break;
        allow_named(l, "the base of a checkpoint", then.init_from);
        checkpoint = then.init_from;
    }
    hd_arena_done(&arena);
}

/* Allows reading the job's data files; for Megatron's NAME.bin also its index NAME.idx. */
static void allow_data(struct lock *l, const char *key, const struct hd_job_file *files,
                       int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        struct hd_text index = {0};

        allow_named(l, key, files[i].path);
        if (!hd_token_index_name(files[i].path, &index) && index.len_bytes)
            allow_named(l, key, index.data);
        hd_text_free(&index);
    }
}

/* Allows reading the files that name special tokens, beside the tokenizer or in the model's
 * folder. */
static void allow_chat(struct lock *l, const struct hd_job *job)
{
    static const char *const files[] = {"tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "config.json",
                                        "generation_config.json",
                                        "chat_template.jinja",
                                        "additional_chat_templates/tool_use.jinja"};
    char folder[HD_JOB_PATH_MAX], path[HD_JOB_PATH_MAX + 64];

    hd_job_chat_folder(job, folder);
    for (size_t i = 0; *folder && i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        allow_named(l, "data.template", path);
    }
}

/* Allows reading the bases of the reward model, and the files with which it reads texts. */
static void allow_reward_model(struct lock *l)
{
    struct hd_arena arena;
    struct hd_job model;

    allow_bases(l, l->r->job.reward_dir);
    hd_arena_init(&arena, 0);
    if (!hd_job_of_reward_model(&l->r->job, &arena,
                                &model)) { /* else the code that loads it reports the error */
        allow_named(l, "train.rewards.model", model.tokenizer);
        allow_named(l, "train.rewards.model", model.template);
        allow_named(l, "train.rewards.model", model.from_dir);
        allow_chat(l, &model);
    }
    hd_arena_done(&arena);
}

static void allow_inputs(struct lock *l)
{
    const struct hd_job *job = &l->r->job;
    struct hd_choice_set questions;
    struct hd_sample_file prompts;

    allow_data(l, "data.train", job->train, job->train_count);
    allow_data(l, "data.val", job->val, job->val_count);
    for (int k = 0; k < HD_QUESTION_KINDS; k++)
        for (int64_t i = 0; i < hd_choice_set_count(job, (enum hd_question_kind)k); i++)
            if (!hd_choice_set_read(job, (enum hd_question_kind)k, i, &questions))
                allow_named(l, hd_choice_set_key((enum hd_question_kind)k), questions.path);
    if (hd_job_samples_in_file(job) && !hd_job_read_sample_file(job, &prompts))
        allow_named(l, "validate.samples", prompts.path);
    allow_chat(l, job);
    for (size_t i = 0; i < hd_job_key_count; i++)
        if (hd_job_keys[i].kind == HD_KEY_PATH && strcmp(hd_job_keys[i].path, "attempt.dir") != 0)
            allow_named(l, hd_job_keys[i].path, hd_job_text(&hd_job_keys[i], job));
    allow_bases(l, job->init_from);
    allow_bases(l, job->base_checkpoint);
    allow_bases(l, job->adapter_from);
    if (hd_job_has_teacher_model(job))
        allow_bases(l, job->distill_teacher);
    if (hd_job_has_reward_model(job))
        allow_reward_model(l);
}

/* ---- outputs ---- */

/* Allows writing to a folder, which is created first, so that the right covers that folder alone.
 * If it cannot be created now because the disk is full, the right covers its parent, and it is
 * created later. */
static void allow_output(struct lock *l, const char *dir, const char *name)
{
    struct hd_text path = {0};

    hd_text_add(&path, "%s/%s", dir, name);
    if (!l->st && path.failed)
        l->st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (!l->st) {
        allow(l, HD_SANDBOX_WRITE,
              hd_file_make_dirs(path.data, HD_FILE_JOB_DIR_MODE) ? dir : path.data);
    }
    hd_text_free(&path);
}

/* Allows writing to the checkpoints of earlier attempts, of which partial ones are removed. */
static void allow_earlier(struct lock *l, const char *job_dir)
{
    char dir[PATH_MAX];

    for (int64_t k = 1; k < l->r->job.attempt; k++)
        if (snprintf(dir, sizeof dir, "%s/attempt-%lld/checkpoints", job_dir, (long long)k) <
            (int)sizeof dir)
            allow(l, HD_SANDBOX_WRITE, dir);
}

static void allow_outputs(struct lock *l, const char *job_dir)
{
    const struct hd_job *job = &l->r->job;

    allow(l, HD_SANDBOX_READ, job_dir);
    allow_output(l, job->attempt_dir, "checkpoints");
    if (job->profile_first)
        allow_output(l, job->attempt_dir, "profile");
    allow_output(l, job_dir, "tokens");
    if (hd_job_has_policy(job))
        allow_output(l, job_dir, "rollouts");
    allow_output(l, job_dir, "tensorboard");
    allow_earlier(l, job_dir);
    if (l->r->choices_dir && !hd_file_make_dirs(l->r->choices_dir, HD_FILE_JOB_DIR_MODE))
        allow(l, HD_SANDBOX_WRITE, l->r->choices_dir);
}

/* ---- system files ---- */

/* Allows reading the folders of loaded libraries, because libraries loaded later are in the same
 * folders. */
static void allow_libraries(struct lock *l)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char *line = NULL, before[PATH_MAX] = "";
    size_t size = 0;

    while (maps && getline(&line, &size, maps) > 0) {
        char *path = strchr(line, '/'), *slash = path ? strrchr(path, '/') : NULL;

        if (!slash || slash == path || !strstr(line, " r-xp ") || slash - path >= PATH_MAX)
            continue;
        *slash = '\0';
        if (strcmp(path, before) != 0)
            allow(l, HD_SANDBOX_READ, path);
        (void)snprintf(before, sizeof before, "%s", path);
    }
    free(line);
    if (maps)
        (void)fclose(maps);
}

/* Allows the use of the folders of a list, as that in LD_LIBRARY_PATH; NULL: there are none. */
static void allow_list(struct lock *l, enum hd_sandbox_access access, const char *list)
{
    char folder[PATH_MAX];

    while (list && *list) {
        const size_t n = strcspn(list, ":");

        (void)snprintf(folder, sizeof folder, "%.*s", (int)(n < PATH_MAX ? n : 0), list);
        if (folder[0] == '/')
            allow(l, access, folder);
        list += n + (list[n] == ':');
    }
}

/* Loads the GPU plug-in before the sandbox, which allows neither the target of a linked plug-in nor
 * CUDA libraries outside the system's folders. If it cannot be loaded, opening the device reports
 * why. */
static void load_plugin(const struct lock *l)
{
    if (l->r->job.device == HD_JOB_DEVICE_CUDA)
        (void)hd_plugin_load();
}

static void allow_system(struct lock *l)
{
    static const char *const read[] = {"/usr",
                                       "/lib",
                                       "/lib64",
                                       "/proc",
                                       "/sys",
                                       "/etc/ld.so.cache",
                                       "/etc/ld.so.preload",
                                       "/etc/localtime",
                                       "/etc/hosts",
                                       "/etc/host.conf",
                                       "/etc/nsswitch.conf",
                                       "/etc/resolv.conf",
                                       "/etc/gai.conf",
                                       "/etc/passwd",
                                       "/etc/group",
                                       "/etc/services",
                                       "/etc/protocols"};
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                          "/dev/urandom"};

    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        allow(l, HD_SANDBOX_READ, read[i]);
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        allow(l, HD_SANDBOX_DEVICE, devices[i]);
    allow_libraries(l);
    allow_list(l, HD_SANDBOX_READ, getenv("LD_LIBRARY_PATH"));
}

/* ---- GPUs ---- */

/* Allows the folder of the file that an environment variable names. A value without a folder is the
 * name of a library, which the loader finds. */
static void allow_beside(struct lock *l, enum hd_sandbox_access access, const char *variable)
{
    char path[PATH_MAX];
    const char *value = getenv(variable);
    char *slash;

    if (!value || (size_t)snprintf(path, sizeof path, "%s", value) >= sizeof path)
        return;
    slash = strrchr(path, '/');
    if (slash && slash != path) {
        *slash = '\0';
        allow(l, access, path);
    }
}

/* Allows the driver's device files, of all GPUs: ranks access their peers' GPU memory through them.
 * The job's systemd unit limits which GPUs it has. */
static void allow_nvidia(struct lock *l)
{
    DIR *dev = opendir("/dev");
    const struct dirent *entry;
    char path[PATH_MAX];

    while (dev && (entry = readdir(dev)))
        if (hd_text_starts(entry->d_name, "nvidia") || strcmp(entry->d_name, "infiniband") == 0) {
            (void)snprintf(path, sizeof path, "/dev/%s", entry->d_name);
            allow(l, HD_SANDBOX_DEVICE, path);
        }
    if (dev)
        (void)closedir(dev);
}

static void allow_folder(void *context, const char *folder)
{
    allow(context, HD_SANDBOX_READ, folder);
}

static void allow_gpus(struct lock *l)
{
    /* files that NCCL reads and writes if a variable names them; without them it goes on, slower */
    static const char *const read[] = {
        "NCCL_CONF_FILE",    "NCCL_TOPO_FILE",         "NCCL_GRAPH_FILE",     "NCCL_NET_PLUGIN",
        "NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE", "NCCL_PROFILER_PLUGIN"};
    static const char *const written[] = {"NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE",
                                          "NCCL_GRAPH_DUMP_FILE"};
    const char *home = getenv("HOME"), *cache = getenv("CUDA_CACHE_PATH");
    char path[PATH_MAX];

    if (l->r->job.device != HD_JOB_DEVICE_CUDA)
        return;
    allow_nvidia(l);
    allow(l, HD_SANDBOX_WRITE, "/proc/self/task"); /* allows the driver to name its threads */
    /* allows NCCL shared memory between ranks of this node */
    allow(l, HD_SANDBOX_WRITE, "/dev/shm");
    allow(l, HD_SANDBOX_READ, "/etc/nccl.conf");
    allow(l, HD_SANDBOX_READ, "/etc/nvidia");
    allow(l, HD_SANDBOX_READ, "/etc/libibverbs.d");
    allow_beside(l, HD_SANDBOX_READ, "HEDDLE_CUDA_PLUGIN");
    allow_beside(l, HD_SANDBOX_READ, "HEDDLE_NCCL");
    allow_beside(l, HD_SANDBOX_READ, "HEDDLE_CUDNN");
    hd_library_folders(allow_folder,
                       l); /* of NCCL and cuDNN, which are loaded when they are needed */
    /* a virtual machine's topology, which NCCL looks for by itself */
    allow(l, HD_SANDBOX_READ, "/var/run/nvidia-topologyd");
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        allow_beside(l, HD_SANDBOX_READ, read[i]);
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++)
        allow_beside(l, HD_SANDBOX_WRITE, written[i]);
    if (home && home[0] == '/') {
        (void)snprintf(path, sizeof path, "%s/.nccl.conf", home);
        allow(l, HD_SANDBOX_READ, path);
        (void)snprintf(path, sizeof path, "%s/.nv", home);
        allow(l, HD_SANDBOX_WRITE, path);
    }
    if (cache && cache[0] == '/')
        allow(l, HD_SANDBOX_WRITE, cache); /* allows the driver its cache of compiled kernels */
}

/* ---- the sandbox ---- */

/* Allows reading ../lib, relative to the program, where the GPU plug-in is searched. */
static void allow_own_folder(struct lock *l)
{
    char path[PATH_MAX];

    if (!hd_process_find_beside("../lib", path))
        allow(l, HD_SANDBOX_READ, path);
}

/* Lists the allowed folders. The jobs directory is one, because weights and base checkpoints of
 * other jobs are in it. */
static enum hd_status take_roots(struct lock *l, const char *job_dir)
{
    const char *slash = strrchr(job_dir, '/');

    if (!l->r->data_roots)
        return HD_OK;
    hd_text_add(&l->roots, "%s:%.*s", l->r->data_roots,
                slash && slash > job_dir ? (int)(slash - job_dir) : 1, job_dir);
    return l->roots.failed ? hd_err(HD_NO_MEMORY, "no memory for a list of folders") : HD_OK;
}

/* Begins the sandbox. Ranks on several nodes, CUDA and NCCL need sockets. */
static enum hd_status begin(struct lock *l)
{
    const struct rank *r = l->r;
    const bool gpu = r->job.device == HD_JOB_DEVICE_CUDA;

    return hd_sandbox_begin((r->data_address || gpu ? HD_SANDBOX_NETWORK : 0) |
                                (gpu ? HD_SANDBOX_GPU : 0),
                            &l->sandbox);
}

static enum hd_status enter(struct lock *l)
{
    struct hd_text has = {0}, lacks = {0};
    enum hd_status st = hd_sandbox_enter(l->sandbox, &has, &lacks);

    if (!st && lacks.len_bytes && l->r->isolation == RANK_ISOLATION_REQUIRE)
        st = hd_err(HD_UNAVAILABLE, "this node requires isolation (isolation: require): %s",
                    lacks.data);
    else if (!st)
        hd_log(HD_LOG_INFO, "locked in: %s%s%s", has.len_bytes ? has.data : "no new privileges",
               lacks.len_bytes ? "; " : "", lacks.len_bytes ? lacks.data : "");
    hd_text_free(&has);
    hd_text_free(&lacks);
    return st;
}

/* ---- reward programs ---- */

/* folders that every reward program may read, and whose files it may start */
static const char *const program_folders[] = {"/usr", "/bin", "/lib", "/lib64", "/opt"};

/* Allows reading a folder and starting what is in it. HD_INVALID: it is outside data_roots. */
static enum hd_status allow_program_folder(struct lock *l, const char *folder)
{
    int fd;
    enum hd_status st;

    if (!l->r->data_roots) {
        allow(l, HD_SANDBOX_RUN, folder);
        return HD_OK;
    }
    st = hd_roots_open(l->roots.data, folder, &fd);
    if (st)
        return st;
    if (!l->st)
        l->st = hd_sandbox_allow_at(l->sandbox, fd, HD_SANDBOX_RUN);
    (void)close(fd);
    return HD_OK;
}

/* Allows the folder of a file that a program needs; for the program itself in a folder `bin` also the
 * folder above, with what an environment of Python has. HD_INVALID: it is outside data_roots. */
static enum hd_status allow_beside_file(struct lock *l, const char *path, bool is_program)
{
    char folder[PATH_MAX];

    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return HD_OK;
    *strrchr(folder, '/') = '\0';
    if (is_program && hd_text_ends(folder, "/bin") && strcmp(folder, "/bin") != 0) {
        char above[PATH_MAX];

        (void)snprintf(above, sizeof above, "%.*s", (int)(strrchr(folder, '/') - folder), folder);
        if (allow_program_folder(l, above) == HD_OK)
            return HD_OK;
    }
    return allow_program_folder(l, *folder ? folder : path);
}

static bool is_in_program_folder(const char *path)
{
    for (size_t i = 0; i < sizeof program_folders / sizeof program_folders[0]; i++) {
        const size_t n = strlen(program_folders[i]);

        if (strncmp(path, program_folders[i], n) == 0 && path[n] == '/')
            return true;
    }
    return false;
}

/* Does so with the file that an argument names and, where that is a link, with its target: the
 * interpreter of a virtual environment is a link to another installation, which has its library. With
 * data_roots an argument outside them is refused, as other files that a job names are. */
static void allow_argument(struct lock *l, const char *argument, bool is_program)
{
    char target[PATH_MAX];
    struct stat info;

    if (l->st || *argument != '/' || is_in_program_folder(argument) || stat(argument, &info) < 0 ||
        !S_ISREG(info.st_mode))
        return;
    if (allow_beside_file(l, argument, is_program) == HD_INVALID) {
        l->st = HD_INVALID;
        return;
    }
    if (realpath(argument, target) && strcmp(target, argument) != 0)
        (void)allow_beside_file(l, target, is_program);
}

enum hd_status rank_lock_rewards(const struct rank *r, const struct hd_rewards *rewards)
{
    const char *const slash = strrchr(r->job.attempt_dir, '/');
    struct lock l = {.r = r};
    struct hd_text scratch = {0};
    char job_dir[HD_JOB_PATH_MAX];

    if (r->isolation == RANK_ISOLATION_OFF)
        return hd_sandbox_close_network();
    (void)snprintf(job_dir, sizeof job_dir, "%.*s", slash ? (int)(slash - r->job.attempt_dir) : 0,
                   r->job.attempt_dir);
    l.st = take_roots(&l, job_dir);
    if (!l.st)
        l.st = hd_sandbox_begin(HD_SANDBOX_PROGRAMS, &l.sandbox);
    for (int64_t i = 0; !l.st && i < rewards->count; i++)
        for (int a = 0; rewards->list[i].argv[a]; a++)
            allow_argument(&l, rewards->list[i].argv[a], a == 0);
    if (!l.st) {
        allow_list(&l, HD_SANDBOX_RUN, r->data_roots);
        allow_system(&l);
        for (size_t i = 0; i < sizeof program_folders / sizeof program_folders[0]; i++)
            allow(&l, HD_SANDBOX_RUN, program_folders[i]);
        allow_list(&l, HD_SANDBOX_READ, getenv("PYTHONPATH"));
        allow_output(&l, r->job.attempt_dir, "rewards");
    }
    if (!l.st)
        l.st = enter(&l);
    hd_sandbox_free(l.sandbox);
    hd_text_free(&l.roots);
    hd_text_add(&scratch, "%s/rewards", r->job.attempt_dir);
    if (!l.st && (scratch.failed || setenv("TMPDIR", scratch.data, 1) < 0 ||
                  setenv("PYTHONDONTWRITEBYTECODE", "1", 0) < 0))
        l.st = hd_err(HD_NO_MEMORY, "no memory for the environment of a program");
    hd_text_free(&scratch);
    return l.st;
}

/* ---- locking in ---- */

enum hd_status rank_lock_in(const struct rank *r)
{
    struct lock l = {.r = r};
    char job_dir[HD_JOB_PATH_MAX];
    char *slash;

    if (r->isolation == RANK_ISOLATION_OFF)
        return HD_OK;
    (void)snprintf(job_dir, sizeof job_dir, "%s", r->job.attempt_dir);
    slash = strrchr(job_dir, '/');
    if (!slash || slash == job_dir)
        return hd_err(HD_INVALID, "the attempt's folder %s is in no job's folder", job_dir);
    *slash = '\0';
    l.st = take_roots(&l, job_dir);
    if (!l.st)
        l.st = begin(&l);
    if (!l.st) {
        load_plugin(&l);
        allow_inputs(&l);
        allow_outputs(&l, job_dir);
        allow_system(&l);
        allow_own_folder(&l);
        allow_gpus(&l);
    }
    if (!l.st)
        l.st = enter(&l);
    hd_sandbox_free(l.sandbox);
    hd_text_free(&l.roots);
    return l.st;
}

enum hd_status rank_close_network(const struct rank *r)
{
    return r->isolation == RANK_ISOLATION_OFF || r->backend->device ? HD_OK
                                                                    : hd_sandbox_close_network();
}
