#include "controller/cli/found.h"
#include "base/grow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "controller/cli/fetch.h"
#include "controller/cli/process.h"
#include "hf/hf.h"

enum { ATTEMPTS_MAX = 100000 };

static enum hd_status no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for the list of checkpoints");
}

static enum hd_status add(struct found *f, const Heddle__V1__CheckpointInfo *info)
{
    Heddle__V1__CheckpointInfo *copy;

    if (!hd_grow(&f->items, f->count, &f->capacity, sizeof *f->items))
        return no_memory();
    copy = &f->items[f->count];
    *copy = *info;
    copy->path = hd_arena_strdup(&f->arena, info->path);
    copy->manifest_hash = hd_arena_strdup(&f->arena, info->manifest_hash);
    if (!copy->path || !copy->manifest_hash)
        return no_memory();
    f->count++;
    return HD_OK;
}

void found_done(struct found *f)
{
    hd_arena_done(&f->arena);
    free(f->items);
}

/* ---- on disk ---- */

/* Returns whether the folder is a transformers model and no checkpoint of Heddle. */
static bool is_model(const char *dir)
{
    return hd_file_is_dir(dir) && hd_hf_has_config(dir) && !hd_source_is_checkpoint(dir);
}

bool found_is_export(const char *dir)
{
    return is_model(dir) ||
           (hd_file_is_dir(dir) && hd_hf_has_hashes(dir) && !hd_source_is_checkpoint(dir));
}

/* Returns the step in a folder's name "step-00000100"; 0: the folder has another name. */
static int64_t step_of(const char *dir)
{
    const char *name = strrchr(dir, '/');
    int64_t step;

    name = name ? name + 1 : dir;
    return hd_text_starts(name, "step-") &&
                   !hd_text_to_int64(name + strlen("step-"), 0, INT64_MAX, &step)
               ? step
               : 0;
}

static enum hd_status add_unopened(struct found *f, const char *dir)
{
    Heddle__V1__CheckpointInfo info = HEDDLE__V1__CHECKPOINT_INFO__INIT;

    info.path = (char *)dir;
    info.step = step_of(dir);
    return add(f, &info);
}

/* Adds a checkpoint to the list. Reads its manifest only, no tensors. */
static enum hd_status add_checkpoint(struct found *f, const char *dir)
{
    Heddle__V1__CheckpointInfo info = HEDDLE__V1__CHECKPOINT_INFO__INIT;
    const struct hd_ckpt_manifest *manifest;
    struct hd_text path = {0};
    struct hd_ckpt *ckpt;
    struct stat file;
    char hash[17];
    enum hd_status st = hd_ckpt_open(dir, &ckpt);

    if (st)
        return f->damaged_too && st != HD_NO_MEMORY ? add_unopened(f, dir) : st;
    manifest = hd_ckpt_get_manifest(ckpt);
    info.attempt = manifest->attempt;
    info.step = manifest->step;
    for (size_t i = 0; i < manifest->shard_count; i++)
        info.size_bytes += manifest->shards[i].size_bytes;
    if (manifest->has_val_loss) {
        info._val_loss_case = HEDDLE__V1__CHECKPOINT_INFO___VAL_LOSS_VAL_LOSS;
        info.val_loss = manifest->val_loss;
    }
    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hd_ckpt_hash(ckpt));
    info.manifest_hash = hash;
    info.path = (char *)dir;
    hd_text_add(&path, "%s/manifest.json", dir);
    if (!path.failed && stat(path.data, &file) == 0)
        info.time_unix_ms = (int64_t)file.st_mtim.tv_sec * 1000 + file.st_mtim.tv_nsec / 1000000;
    hd_text_free(&path);
    st = add(f, &info);
    hd_ckpt_close(ckpt);
    return st;
}

static enum hd_status add_attempt(struct found *f, const char *attempt_dir)
{
    struct hd_ckpt_place *places = NULL;
    size_t count = 0;
    enum hd_status st = hd_ckpt_list(attempt_dir, &places, &count);

    for (size_t i = 0; i < count && !st; i++)
        st = add_checkpoint(f, places[i].path);
    hd_ckpt_places_free(places, count);
    return st;
}

static enum hd_status scan_dir(struct found *f, const char *dir)
{
    struct hd_text path = {0};
    enum hd_status st = HD_OK;

    hd_text_add(&path, "%s/manifest.json", dir);
    if (!path.failed && hd_file_exists(path.data)) {
        st = add_checkpoint(f, dir);
        hd_text_free(&path);
        return st;
    }
    hd_text_clear(&path);
    hd_text_add(&path, "%s/checkpoints", dir);
    if (!path.failed && hd_file_is_dir(path.data))
        st = add_attempt(f, dir);
    for (int attempt = 1; attempt < ATTEMPTS_MAX && !st; attempt++) {
        hd_text_clear(&path);
        hd_text_add(&path, "%s/attempt-%d", dir, attempt);
        if (path.failed || !hd_file_is_dir(path.data))
            break;
        st = add_attempt(f, path.data);
    }
    hd_text_clear(&path);
    hd_text_add(&path, "%s/1/attempt-1", dir);
    /* the folder of a `heddle local` run */
    if (!st && !f->count && !path.failed && hd_file_is_dir(path.data)) {
        path.data[path.len_bytes - strlen("/attempt-1")] = '\0';
        st = scan_dir(f, path.data);
    }
    if (!st && !f->count && f->damaged_too && step_of(dir)) /* a checkpoint without its manifest */
        st = add_unopened(f, dir);
    if (!st && path.failed)
        st = no_memory();
    hd_text_free(&path);
    return st;
}

/* Marks the best checkpoint by the controller's rule: lowest validation loss, the oldest if equal.
 */
static void mark_best(struct found *f)
{
    Heddle__V1__CheckpointInfo *best = NULL;

    for (size_t i = 0; i < f->count; i++)
        if (f->items[i]._val_loss_case &&
            (!best || f->items[i].val_loss < best->val_loss ||
             (f->items[i].val_loss == best->val_loss && f->items[i].step < best->step)))
            best = &f->items[i];
    if (best)
        best->best = true;
}

/* ---- one of them ---- */

int found_parse_step(const char *verb, const char *text, int64_t *ret_step)
{
    *ret_step = text && strcmp(text, "best") == 0 ? FOUND_BEST : FOUND_NEWEST;
    if (text && !*ret_step && hd_text_to_int64(text, 1, INT64_C(1) << 40, ret_step))
        return cli_usage("%s: --step: %s; give the number of a step, or best", verb,
                         hd_err_message());
    return CLI_CONTINUE;
}

static bool is_peft_folder(const char *name)
{
    struct hd_text path = {0};
    bool is;

    hd_text_add(&path, "%s/adapter_config.json", name);
    is = !path.failed && hd_file_exists(path.data);
    hd_text_free(&path);
    return is;
}

enum hd_status found_keep(struct found *f, const char *name, int64_t step)
{
    size_t at = f->count;

    if (!f->count && is_peft_folder(name))
        return hd_err(HD_NOT_FOUND,
                      "%s is an adapter of PEFT, which has no model: give the model's folder, and "
                      "--adapter %s",
                      name, name);
    if (!f->count)
        return hd_err(HD_NOT_FOUND, "%s has no complete checkpoint yet", name);
    if (step == FOUND_NEWEST)
        at = f->count - 1;
    while (step == FOUND_NEWEST && at > 0 && f->items[at].missing)
        at--;
    for (size_t i = 0; i < f->count; i++)
        if (step == FOUND_BEST ? f->items[i].best : f->items[i].step == step)
            at = i;
    if (at == f->count && step == FOUND_BEST)
        return hd_err(HD_NOT_FOUND,
                      "%s has no best checkpoint: a job keeps one with checkpoint.best: true, once "
                      "it has validated",
                      name);
    if (at == f->count)
        return hd_err(HD_NOT_FOUND,
                      "%s has no checkpoint of step %lld; heddle checkpoint ls %s lists its steps",
                      name, (long long)step, name);
    f->items[0] = f->items[at];
    f->count = 1;
    return HD_OK;
}

/* ---- from the controller ---- */

static int ask_for_checkpoints(struct cli *cli, const char *name, struct found *f)
{
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    enum hd_status st = HD_OK;
    int code = cli_find_job(cli, name, &request.job);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "ListCheckpoints", &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    for (size_t i = 0; i < response->n_checkpoints && !st; i++)
        st = add(f, response->checkpoints[i]);
    hd_rpc_message_free(&response->base);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

static enum hd_status need_dir(const char *name)
{
    struct stat info;

    if (stat(name, &info) < 0)
        return hd_err(
            HD_NOT_FOUND,
            "cannot open the folder %s: %s; give a job's number or name, or the folder of "
            "a model, of a checkpoint, of a job or of a run",
            name, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return hd_err(
            HD_INVALID,
            "%s is no folder; give the folder of a model, of a checkpoint, of a job or of "
            "a run",
            name);
    return HD_OK;
}

static int find_checkpoints(struct cli *cli, const char *name, struct found *f)
{
    enum hd_status st;

    if (*name && !strchr(name, '/') && !hd_file_exists(name))
        return ask_for_checkpoints(cli, name, f);
    st = need_dir(name);
    if (!st)
        st = scan_dir(f, name);
    if (!st)
        mark_best(f);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

int found_open(struct cli *cli, const char *name, bool damaged_too, struct found *f)
{
    *f = (struct found){.damaged_too = damaged_too};
    hd_arena_init(&f->arena, 0);
    return find_checkpoints(cli, name, f);
}

int found_model(struct cli *cli, const char *step_text, struct found *f, const char **ret_path)
{
    int64_t step = FOUND_NEWEST;
    enum hd_status st;
    int code;

    *f = (struct found){.count = 0};
    hd_arena_init(&f->arena, 0);
    code = found_parse_step(cli->command->name, step_text, &step);
    if (code == CLI_CONTINUE)
        code = fetch_argument(cli, f->model);
    if (code != CLI_CONTINUE)
        return code;
    *ret_path = cli->args[0];
    if (is_model(cli->args[0]))
        return step_text ? cli_usage("%s: --step: %s is a model folder, which has no steps",
                                     cli->command->name, cli->args[0])
                         : CLI_CONTINUE;
    code = find_checkpoints(cli, cli->args[0], f);
    if (code == CLI_CONTINUE) {
        st = found_keep(f, cli->args[0], step);
        code = st ? cli_fail(st) : CLI_CONTINUE;
    }
    cli_disconnect(cli);
    if (code == CLI_CONTINUE)
        *ret_path = f->items[0].path;
    return code;
}

int found_become(struct cli *cli, const char *program, const char *verb, const char *step_text)
{
    const char *argv[8 + 2 * CLI_FLAGS_MAX] = {program, verb};
    const char *model = NULL;
    size_t n = verb ? 2 : 1;
    struct found f;
    int code = found_model(cli, step_text, &f, &model);

    argv[n++] = "--checkpoint";
    argv[n++] = model;
    (void)cli_pass_flags(cli, argv, n);
    if (code == CLI_CONTINUE)
        code = cli_fail(process_become(argv));
    found_done(&f);
    return code;
}
