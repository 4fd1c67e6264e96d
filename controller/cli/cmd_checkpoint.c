/* generate, checkpoint: what lies on disk. A JOB is asked of the controller; a DIR may be a
 * checkpoint, an attempt's folder, a job's folder, or the folder of a `heddle local` run.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/hf.h"
#include "controller/cli/process.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"

enum { ATTEMPTS_MAX = 100000 };

/* What was found, oldest first; strings in the arena. */
struct found {
    struct hd_arena arena;
    Heddle__V1__CheckpointInfo *items;
    size_t count, room;
};

static enum hd_status no_memory(void)
{
    return hd_err(HD_NO_MEMORY, "no memory for the list of checkpoints");
}

static enum hd_status found_add(struct found *f, const Heddle__V1__CheckpointInfo *info)
{
    Heddle__V1__CheckpointInfo *copy;

    if (f->count == f->room) {
        size_t room = f->room ? 2 * f->room : 16;
        Heddle__V1__CheckpointInfo *items = realloc(f->items, room * sizeof *items);

        if (!items)
            return no_memory();
        f->items = items;
        f->room = room;
    }
    copy = &f->items[f->count];
    *copy = *info;
    copy->path = hd_arena_strdup(&f->arena, info->path);
    copy->manifest_hash = hd_arena_strdup(&f->arena, info->manifest_hash);
    if (!copy->path || !copy->manifest_hash)
        return no_memory();
    f->count++;
    return HD_OK;
}

static void found_done(struct found *f)
{
    hd_arena_done(&f->arena);
    free(f->items);
}

/* ---- on disk ---- */

static bool is_dir(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* A folder as transformers makes it, and no checkpoint of ours. */
static bool is_model_dir(const char *dir)
{
    return is_dir(dir) && hd_hf_has_config(dir) && !hd_source_is_checkpoint(dir);
}

/* The same, or what is left of one that export wrote. */
static bool is_export(const char *dir)
{
    return is_model_dir(dir) ||
           (is_dir(dir) && hd_hf_has_hashes(dir) && !hd_source_is_checkpoint(dir));
}

/* Reads the manifest only; the tensors are not touched. */
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
        return st;
    manifest = hd_ckpt_manifest(ckpt);
    info.attempt = manifest->attempt;
    info.step = manifest->step;
    for (size_t i = 0; i < manifest->shard_count; i++)
        info.size_bytes += manifest->shards[i].size_bytes;
    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hd_ckpt_hash(ckpt));
    info.manifest_hash = hash;
    info.path = (char *)dir;
    hd_text_add(&path, "%s/manifest.json", dir);
    if (!path.failed && stat(path.data, &file) == 0)
        info.time_unix_ms = (int64_t)file.st_mtim.tv_sec * 1000 + file.st_mtim.tv_nsec / 1000000;
    hd_text_free(&path);
    st = found_add(f, &info);
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
    if (!path.failed && is_dir(path.data))
        st = add_attempt(f, dir);
    for (int attempt = 1; attempt < ATTEMPTS_MAX && !st; attempt++) {
        hd_text_clear(&path);
        hd_text_add(&path, "%s/attempt-%d", dir, attempt);
        if (path.failed || !is_dir(path.data))
            break;
        st = add_attempt(f, path.data);
    }
    hd_text_clear(&path);
    hd_text_add(&path, "%s/1/attempt-1", dir);
    if (!st && !f->count && !path.failed && is_dir(path.data)) { /* a run of `heddle local` */
        path.data[path.len_bytes - strlen("/attempt-1")] = '\0';
        st = scan_dir(f, path.data);
    }
    if (!st && path.failed)
        st = no_memory();
    hd_text_free(&path);
    return st;
}

/* ---- from the controller ---- */

static int ask_controller(struct cli *cli, const char *name, struct found *f)
{
    Heddle__V1__ListCheckpointsRequest request = HEDDLE__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Heddle__V1__ListCheckpointsResponse *response = NULL;
    enum hd_status st = HD_OK;
    int code = cli_parse_job(name, &request.job);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "ListCheckpoints", &heddle__v1__list_checkpoints_response__descriptor,
                        &request.base, &response);
    if (code != CLI_CONTINUE)
        return code;
    for (size_t i = 0; i < response->n_checkpoints && !st; i++)
        st = found_add(f, response->checkpoints[i]);
    hd_rpc_message_free(&response->base);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

static enum hd_status need_dir(const char *name)
{
    struct stat info;

    if (stat(name, &info) < 0)
        return hd_err(HD_NOT_FOUND, "there is no folder %s: %s", name, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return hd_err(HD_INVALID,
                      "%s is no folder; give that of a checkpoint, of a job or of a run", name);
    return HD_OK;
}

/* JOB or DIR: digits are a job unless there is such a folder; `./7` is always a folder. */
static int find_checkpoints(struct cli *cli, const char *name, struct found *f)
{
    enum hd_status st;

    if (name[strspn(name, "0123456789")] == '\0' && *name && !is_dir(name))
        return ask_controller(cli, name, f);
    st = need_dir(name);
    if (!st)
        st = scan_dir(f, name);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

/* ---- checkpoint ls, verify ---- */

static const struct table_column checkpoint_columns[] = {
    {"ATTEMPT", true}, {"STEP", true}, {"SIZE", true}, {"TIME", false}, {"PATH", false},
};

static void list_checkpoints(struct cli *cli, const struct found *f)
{
    char size[32], when[HD_CLOCK_TEXT_MAX];
    struct hd_text out = {0};
    struct show_list list;
    struct table table;

    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "CheckpointList", "checkpoint");
        for (size_t i = 0; i < f->count; i++) {
            show_item_begin(&list);
            show_checkpoint(&list.writer, &f->items[i]);
            show_item_end(&list);
        }
        show_list_end(&list);
    } else {
        table_init(&table, checkpoint_columns,
                   sizeof checkpoint_columns / sizeof checkpoint_columns[0]);
        for (size_t i = 0; i < f->count; i++) {
            const Heddle__V1__CheckpointInfo *c = &f->items[i];

            hd_text_format_bytes(c->size_bytes, size);
            hd_clock_format_utc(c->time_unix_ms, when);
            table_begin_row(&table);
            table_add(&table, NULL, "%d", c->attempt);
            table_add(&table, NULL, "%lld", (long long)c->step);
            table_add(&table, NULL, "%s", c->size_bytes ? size : "");
            table_add(&table, NULL, "%s", c->time_unix_ms ? when : "");
            table_add(&table, NULL, "%s", c->path);
        }
        table_render(&table, cli->colour, 0, &out); /* a path that is cut is of no use */
        table_done(&table);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}

static int show_verdict(enum hd_status st, const char *path)
{
    struct hd_text out = {0};

    hd_text_add(&out, "%s  ", st ? "bad" : "ok ");
    cli_add_clean(&out, path);
    hd_text_add(&out, "\n");
    (void)cli_out(&out);
    hd_text_free(&out);
    return st ? cli_fail(st) : CLI_CONTINUE;
}

/* Reads every byte of every checkpoint; goes on after a bad one and ends with its code. */
static int verify_checkpoints(const struct found *f)
{
    int code = CLI_CONTINUE;
    bool damaged = false;

    for (size_t i = 0; i < f->count; i++) {
        const enum hd_status st = hd_ckpt_verify(f->items[i].path);
        const int one = show_verdict(st, f->items[i].path);

        damaged |= st == HD_CORRUPT;
        code = one == CLI_CONTINUE ? code : one;
    }
    if (damaged)
        cli_note("heddle: what is damaged cannot be mended; use an older checkpoint (--step N), "
                 "heddle checkpoint ls lists them");
    return code;
}

/* A model directory, as export writes it. */
static int verify_model_dir(const char *dir)
{
    const enum hd_status st = hd_hf_verify(dir);
    const int code = st == HD_NOT_FOUND ? cli_fail(st) : show_verdict(st, dir);

    if (st == HD_CORRUPT)
        cli_note("heddle: what is damaged cannot be mended; export it again: heddle checkpoint "
                 "export JOB|DIR --out %s --force",
                 dir);
    return code;
}

/* ---- checkpoint export ---- */

/* The flags of `checkpoint`; export's have the names that heddle-worker takes. */
struct checkpoint_flags {
    int64_t step; /* 0: all of them, or the newest */
    const char *out, *dtype, *max_shard_size;
    bool force;
};

/* Replaces this process; returns only with a failure. argv is closed by NULL, its first place free.
 */
static enum hd_status exec_worker(const char **argv)
{
    struct hd_text program = {0};
    enum hd_status st = process_find("heddle-worker", &program);

    if (st)
        return st;
    argv[0] = program.data;
    (void)execvp(program.data, (char *const *)argv);
    st = hd_err(HD_IO, "cannot start %s: %s", program.data, strerror(errno));
    hd_text_free(&program);
    return st;
}

static int export_checkpoint(const struct checkpoint_flags *flags, const char *checkpoint)
{
    const char *argv[16] = {NULL, "export", "--checkpoint", checkpoint, "--out", flags->out};
    size_t n = 6;

    if (flags->dtype) {
        argv[n++] = "--dtype";
        argv[n++] = flags->dtype;
    }
    if (flags->max_shard_size) {
        argv[n++] = "--max-shard-size";
        argv[n++] = flags->max_shard_size;
    }
    if (flags->force)
        argv[n++] = "--force";
    return cli_fail(exec_worker(argv));
}

/* ---- checkpoint ---- */

enum checkpoint_verb { VERB_LS, VERB_VERIFY, VERB_EXPORT, VERB_NONE };

static enum checkpoint_verb find_verb(const char *name)
{
    static const char *const names[] = {"ls", "verify", "export"};
    int verb = VERB_LS;

    while (verb < VERB_NONE && strcmp(names[verb], name) != 0)
        verb++;
    return (enum checkpoint_verb)verb;
}

static int check_flags(enum checkpoint_verb verb, const struct checkpoint_flags *f)
{
    const bool has_export_flag = f->out || f->dtype || f->max_shard_size || f->force;
    int64_t mb;

    if (verb == VERB_EXPORT && !f->out)
        return cli_usage("checkpoint: export needs --out DIR, the folder to make");
    if (verb != VERB_EXPORT && has_export_flag)
        return cli_usage("checkpoint: --out, --dtype, --max-shard-size and --force are of export");
    if (f->dtype && strcmp(f->dtype, "fp32") != 0 && strcmp(f->dtype, "bf16") != 0)
        return cli_usage("checkpoint: --dtype is fp32 or bf16");
    if (f->max_shard_size && hd_text_to_int64(f->max_shard_size, 1, 1 << 20, &mb))
        return cli_usage("checkpoint: --max-shard-size: %s", hd_err_message());
    return CLI_CONTINUE;
}

/* Only the checkpoint of that step, the newest attempt's where several have one. */
static enum hd_status keep_step(struct found *f, const char *name, int64_t step)
{
    size_t at = f->count;

    for (size_t i = 0; i < f->count; i++)
        if (f->items[i].step == step)
            at = i;
    if (at == f->count)
        return hd_err(HD_NOT_FOUND,
                      "%s has no checkpoint of step %lld; heddle checkpoint ls lists "
                      "those there are",
                      name, (long long)step);
    f->items[0] = f->items[at];
    f->count = 1;
    return HD_OK;
}

static int run_verb(struct cli *cli, enum checkpoint_verb verb,
                    const struct checkpoint_flags *flags, struct found *f)
{
    enum hd_status st = HD_OK;

    if (flags->step)
        st = keep_step(f, cli->args[1], flags->step);
    else if (verb != VERB_LS && !f->count)
        st = hd_err(HD_NOT_FOUND, "there is no checkpoint of %s", cli->args[1]);
    if (st)
        return cli_fail(st);
    if (verb == VERB_EXPORT) { /* the newest stands last */
        cli_disconnect(cli);
        return export_checkpoint(flags, f->items[f->count - 1].path);
    }
    if (verb == VERB_VERIFY)
        return verify_checkpoints(f);
    list_checkpoints(cli, f);
    return CLI_CONTINUE;
}

int cli_checkpoint(struct cli *cli, int argc, char **argv)
{
    struct checkpoint_flags f = {.step = 0};
    const struct cli_flag flags[] = {
        {"step", 0, CLI_FLAG_INT, &f.step, 1, INT64_C(1) << 40},
        {"out", 0, CLI_FLAG_TEXT, &f.out, 0, 0},
        {"dtype", 0, CLI_FLAG_TEXT, &f.dtype, 0, 0},
        {"max-shard-size", 0, CLI_FLAG_TEXT, &f.max_shard_size, 0, 0},
        {"force", 0, CLI_FLAG_BOOL, &f.force, 0, 0},
    };
    struct found found = {.items = NULL};
    enum checkpoint_verb verb;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 2, 2);

    if (code != CLI_CONTINUE)
        return code;
    verb = find_verb(cli->args[0]);
    if (verb == VERB_NONE)
        return cli_usage("checkpoint: %s is not ls, verify or export; see heddle checkpoint --help",
                         cli->args[0]);
    code = check_flags(verb, &f);
    if (code != CLI_CONTINUE)
        return code;
    if (verb == VERB_VERIFY && is_export(cli->args[1])) {
        if (f.step)
            return cli_usage("checkpoint: --step: %s is a model folder, which has no steps",
                             cli->args[1]);
        code = verify_model_dir(cli->args[1]);
        return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
    }
    hd_arena_init(&found.arena, 0);
    code = find_checkpoints(cli, cli->args[1], &found);
    if (code == CLI_CONTINUE)
        code = run_verb(cli, verb, &f, &found);
    found_done(&found);
    return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
}

/* ---- generate ---- */

/* The flags of generate, which heddle-worker takes under the same names. */
struct generate {
    const char *prompt, *max_tokens, *temperature, *top_k, *top_p, *seed;
    bool greedy;
};

static enum hd_status exec_generate(const struct generate *g, const char *checkpoint)
{
    const struct {
        const char *flag, *value;
    } values[] = {
        {"--prompt", g->prompt}, {"--max-tokens", g->max_tokens}, {"--temperature", g->temperature},
        {"--top-k", g->top_k},   {"--top-p", g->top_p},           {"--seed", g->seed},
    };
    const char *argv[24] = {NULL, "generate", "--checkpoint", checkpoint};
    size_t n = 4;

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (!values[i].value)
            continue;
        argv[n++] = values[i].flag;
        argv[n++] = values[i].value;
    }
    if (g->greedy)
        argv[n++] = "--greedy";
    return exec_worker(argv);
}

static int check_numbers(const struct generate *g)
{
    int64_t i;
    double d;

    if (g->max_tokens && hd_text_to_int64(g->max_tokens, 1, 1 << 24, &i))
        return cli_usage("generate: --max-tokens: %s", hd_err_message());
    if (g->temperature && hd_text_to_double(g->temperature, 0, 100, &d))
        return cli_usage("generate: --temperature: %s", hd_err_message());
    if (g->top_k && hd_text_to_int64(g->top_k, 0, 1 << 24, &i))
        return cli_usage("generate: --top-k: %s", hd_err_message());
    if (g->top_p && hd_text_to_double(g->top_p, 0, 1, &d))
        return cli_usage("generate: --top-p: %s", hd_err_message());
    if (g->seed && hd_text_to_int64(g->seed, 0, INT64_MAX, &i))
        return cli_usage("generate: --seed: %s", hd_err_message());
    if (g->greedy && (g->temperature || g->top_k || g->top_p))
        return cli_usage("generate: --greedy takes the most likely token; without --temperature, "
                         "--top-k and --top-p");
    return CLI_CONTINUE;
}

int cli_generate(struct cli *cli, int argc, char **argv)
{
    struct generate g = {.prompt = NULL};
    struct found f = {.items = NULL};
    const struct cli_flag flags[] = {
        {"prompt", 0, CLI_FLAG_TEXT, &g.prompt, 0, 0},
        {"max-tokens", 0, CLI_FLAG_TEXT, &g.max_tokens, 0, 0},
        {"temperature", 0, CLI_FLAG_TEXT, &g.temperature, 0, 0},
        {"top-k", 0, CLI_FLAG_TEXT, &g.top_k, 0, 0},
        {"top-p", 0, CLI_FLAG_TEXT, &g.top_p, 0, 0},
        {"seed", 0, CLI_FLAG_TEXT, &g.seed, 0, 0},
        {"greedy", 0, CLI_FLAG_BOOL, &g.greedy, 0, 0},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE && !g.prompt)
        code = cli_usage("generate: --prompt is missing; give the text to go on from");
    if (code == CLI_CONTINUE)
        code = check_numbers(&g);
    if (code != CLI_CONTINUE)
        return code;
    if (is_model_dir(cli->args[0]))
        return cli_fail(exec_generate(&g, cli->args[0]));
    hd_arena_init(&f.arena, 0);
    code = find_checkpoints(cli, cli->args[0], &f);
    if (code == CLI_CONTINUE && !f.count)
        code = cli_fail(hd_err(HD_NOT_FOUND, "%s has no complete checkpoint yet", cli->args[0]));
    cli_disconnect(cli);
    if (code == CLI_CONTINUE) /* the newest stands last */
        code = cli_fail(exec_generate(&g, f.items[f.count - 1].path));
    found_done(&f);
    return code;
}
