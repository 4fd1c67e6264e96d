/* checkpoint: lists, verifies and exports the checkpoints of a job or in a folder. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/cli/found.h"
#include "controller/cli/process.h"
#include "controller/cli/rows.h"
#include "hf/hf.h"

enum { SAVE_PAUSE_MS = 300, COPY_MARK_BYTES_MAX = 8192 };

/* ---- checkpoint ls, verify ---- */

/* Appends the name of the checkpoint's copy in an object store (checkpoint.copy_to), which heddled
 * marks in its folder. */
static void add_copy(const char *path, struct hd_text *out)
{
    struct hd_text file = {0};

    hd_text_add(&file, "%s/.copied-to", path);
    if (!file.failed)
        (void)hd_file_read(file.data, COPY_MARK_BYTES_MAX, out);
    hd_text_add(out, "%s", "");
    hd_text_free(&file);
}

static void add_copy_cell(struct cli_rows *rows, const void *item)
{
    const Heddle__V1__CheckpointInfo *c = item;
    struct hd_text copy = {0};

    add_copy(c->path, &copy);
    rows_text_cell(rows, NULL, &copy);
}

static void show_checkpoint_item(struct hd_json_writer *w, const void *item)
{
    const Heddle__V1__CheckpointInfo *c = item;
    struct hd_text copy = {0};

    show_members(w, &c->base, show_checkpoint_form);
    add_copy(c->path, &copy);
    if (copy.len_bytes)
        hd_json_add_string(w, "copy", copy.data);
    hd_text_free(&copy);
}

static const struct rows_column checkpoint_columns[] = {
    {"ATTEMPT", ROWS_OF(Heddle__V1__CheckpointInfo, attempt)},
    {"STEP", ROWS_OF(Heddle__V1__CheckpointInfo, step)},
    {"SIZE", ROWS_OF(Heddle__V1__CheckpointInfo, size_bytes), .form = ROWS_SOME_BYTES},
    {"TIME", ROWS_OF(Heddle__V1__CheckpointInfo, time_unix_ms), .form = ROWS_TIME},
    {"VAL LOSS", .text = "{val_loss:4}[{best?} best]"},
    {"PATH", .text = "{path}[{missing?} (missing)]"},
    {"COPY", .cell = add_copy_cell},
};
static const struct rows_kind checkpoint_rows = {"CheckpointList", "checkpoint",
                                                 ROWS_COLUMNS(checkpoint_columns),
                                                 .show = show_checkpoint_item, .is_uncut = true};

/* Results of `checkpoint verify`, printed in the command's format. */
struct verdicts {
    struct cli_rows rows;
    /* exit code of the worst result so far: damaged, then unreadable, then CLI_CONTINUE (all
     * intact) */
    int code;
    bool damaged, unreadable;
};

/* Returns whether the checkpoint could not be read, so that it may still be intact. */
static bool is_unreadable(enum hd_status st)
{
    return st == HD_IO || st == HD_DENIED || st == HD_STORAGE;
}

static const char *outcome_of(enum hd_status st)
{
    return !st ? "ok" : is_unreadable(st) ? "unreadable" : "bad";
}

struct checkpoint_verdict {
    enum hd_status st;
    const char *path, *problem;
    const Heddle__V1__CheckpointInfo *checkpoint; /* NULL: a model folder */
};

static void show_checkpoint_verdict(struct hd_json_writer *w, const void *item)
{
    const struct checkpoint_verdict *verdict = item;

    hd_json_add_string(w, "path", verdict->path);
    if (verdict->checkpoint) {
        hd_json_add_int64(w, "attempt", verdict->checkpoint->attempt);
        hd_json_add_int64(w, "step", verdict->checkpoint->step);
    }
    hd_json_add_bool(w, "ok", !verdict->st);
    if (verdict->st)
        hd_json_add_string(w, "problem", verdict->problem);
    else
        hd_json_add_null(w, "problem");
    hd_json_add_string(w, "outcome", outcome_of(verdict->st));
}

static void add_checkpoint_verdict(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct checkpoint_verdict *verdict = item;

    (void)cli;
    hd_text_add(out, "%s  ",
                !verdict->st                 ? "ok "
                : is_unreadable(verdict->st) ? "cannot be read"
                                             : "bad");
    cli_add_clean(out, verdict->path);
    hd_text_add(out, "\n");
}

static const struct rows_kind verdict_rows = {
    "VerdictList", "verdict", .show = show_checkpoint_verdict, .line = add_checkpoint_verdict};

static void verdicts_begin(struct verdicts *v, struct cli *cli)
{
    *v = (struct verdicts){.code = CLI_CONTINUE};
    rows_begin(&v->rows, cli, &verdict_rows);
}

/* Prints the result of verifying one checkpoint, or (NULL) a model folder, as soon as it is known:
 * reading one may take minutes. */
static void add_verdict(struct verdicts *v, enum hd_status st, const char *path,
                        const Heddle__V1__CheckpointInfo *checkpoint)
{
    struct hd_error error;

    hd_err_save(st, &error);
    rows_add(&v->rows,
             &(struct checkpoint_verdict){
                 .st = st, .path = path, .problem = error.message, .checkpoint = checkpoint});
    (void)rows_flush(&v->rows);
    if (!st)
        return;
    (void)cli_fail(hd_err_restore(&error));
    v->unreadable |= is_unreadable(st);
    v->damaged |= st == HD_CORRUPT;
    if (!is_unreadable(st))
        v->code = cli_exit_of(st);
    else if (v->code == CLI_CONTINUE)
        v->code = CLI_DENIED;
}

static int verdicts_end(struct verdicts *v)
{
    if (v->unreadable)
        cli_note(
            "heddle: what cannot be read may be sound: mend what the message names, or verify as a "
            "user who may read it");
    (void)rows_end(&v->rows, CLI_CONTINUE);
    return v->code;
}

/* Verifies every checkpoint by reading all its bytes, also after a damaged one. Returns the exit
 * code of the worst result. */
static int verify_checkpoints(struct cli *cli, const struct found *f)
{
    struct verdicts verdicts;

    verdicts_begin(&verdicts, cli);
    for (size_t i = 0; i < f->count; i++) {
        enum hd_status st = hd_ckpt_verify(f->items[i].path);
        struct hd_error gone;

        hd_err_save(st, &gone);
        if (st == HD_NOT_FOUND) /* it was listed as complete, so some of its files were lost */
            st = hd_err(HD_CORRUPT, "%s", gone.message);
        add_verdict(&verdicts, st, f->items[i].path, &f->items[i]);
    }
    if (verdicts.damaged)
        cli_note(
            "heddle: a damaged checkpoint cannot be repaired; use an older checkpoint (--step N); "
            "heddle checkpoint ls lists them");
    return verdicts_end(&verdicts);
}

/* Verifies a model directory that export wrote. */
static int verify_model_dir(struct cli *cli, const char *dir)
{
    const enum hd_status st = hd_hf_verify(dir);
    struct verdicts verdicts;

    if (st == HD_NOT_FOUND)
        return cli_fail(st);
    verdicts_begin(&verdicts, cli);
    add_verdict(&verdicts, st, dir, NULL);
    if (st == HD_CORRUPT)
        cli_note("heddle: a damaged export cannot be repaired; export it again: heddle checkpoint "
                 "export JOB|DIR --out %s --force",
                 dir);
    return verdicts_end(&verdicts);
}

/* ---- checkpoint export ---- */

/* Flags of `checkpoint`, without those that export passes on to heddle-worker. */
struct checkpoint_flags {
    /* value of --step as in found.h; FOUND_NEWEST: not given: all checkpoints, or the newest */
    int64_t step;
    const char *out;
    bool yes;
    int64_t timeout_s; /* value of the flag --timeout of `checkpoint save`, s */
};

static int export_checkpoint(const struct cli *cli, const struct checkpoint_flags *flags,
                             const char *checkpoint)
{
    const char *argv[20] = {"heddle-worker", "export", "--checkpoint",
                            checkpoint,      "--out",  flags->out};
    size_t n = cli_pass_flags(cli, argv, 6);

    if (cli->format >= CLI_JSON)
        argv[n++] = cli->format == CLI_JSONL ? "--jsonl" : "--json";
    return cli_fail(process_become(argv));
}

/* ---- checkpoint combine ---- */

enum { COMBINED_MAX = 16 };

/* Splits "DIR" or "DIR:WEIGHT" in place. A folder whose name has a colon needs a weight behind it. */
static int split_weight(char *text, double *ret_weight)
{
    char *colon = strrchr(text, ':');

    *ret_weight = 1;
    if (!colon)
        return CLI_CONTINUE;
    if (hd_text_to_double(colon + 1, -1e6, 1e6, ret_weight))
        return cli_usage(
            "checkpoint combine: %s: %s is no weight; write DIR, or DIR:WEIGHT such as "
            "my-adapter:0.5",
            text, colon + 1);
    *colon = '\0';
    return CLI_CONTINUE;
}

/* Makes one adapter that computes the weighted sum of several. */
static int combine_adapters(const struct cli *cli, const char *out)
{
    char *dirs[COMBINED_MAX] = {NULL};
    double weights[COMBINED_MAX];
    const size_t count = (size_t)cli->arg_count - 1;
    struct hd_text text = {0};
    enum hd_status st = HD_OK;
    int64_t rank;
    int code = CLI_CONTINUE;

    for (size_t i = 0; i < count && code == CLI_CONTINUE; i++) {
        dirs[i] = strdup(cli->args[1 + i]);
        code = dirs[i] ? split_weight(dirs[i], &weights[i])
                       : cli_fail(hd_err(HD_NO_MEMORY, "no memory for names of folders"));
    }
    if (code == CLI_CONTINUE) {
        st = hd_adapter_combine(&(struct hd_adapter_combination){.dirs = (const char *const *)dirs,
                                                                 .weights = weights,
                                                                 .count = count,
                                                                 .out_dir = out},
                                &rank);
        if (st)
            code = cli_fail(st);
    }
    if (code == CLI_CONTINUE) {
        cli_add_clean(&text, out);
        hd_text_add(&text, ": an adapter of rank %lld from %zu\n", (long long)rank, count);
        code = cli_print(&text, CLI_OK);
    }
    for (size_t i = 0; i < count; i++)
        free(dirs[i]);
    return code;
}

/* ---- checkpoint save ---- */

/* Finds the newest checkpoint of a job; *ret_attempt and *ret_step 0: none. Attempts and steps only
 * grow. Returns CLI_CONTINUE or an exit code. */
static int find_newest_checkpoint(struct cli *cli, const char *job, int64_t *ret_attempt,
                                  int64_t *ret_step, struct hd_text *ret_path)
{
    struct found f;
    int code = found_open(cli, job, false, &f);

    *ret_attempt = *ret_step = 0;
    for (size_t i = 0; code == CLI_CONTINUE && i < f.count; i++) {
        if (f.items[i].attempt < *ret_attempt ||
            (f.items[i].attempt == *ret_attempt && f.items[i].step <= *ret_step))
            continue;
        *ret_attempt = f.items[i].attempt;
        *ret_step = f.items[i].step;
        hd_text_clear(ret_path);
        hd_text_add(ret_path, "%s", f.items[i].path);
    }
    found_done(&f);
    return code;
}

struct saved {
    uint64_t job;
    int64_t attempt, step;
    const char *path;
};

static void add_saved_line(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct saved *saved = item;

    (void)cli;
    hd_text_add(out, "step %lld  ", (long long)saved->step);
    cli_add_clean(out, saved->path);
    hd_text_add(out, "\n");
}

static const struct rows_column saved_columns[] = {
    {.json = "job", ROWS_OF(struct saved, job)},
    {.json = "attempt", ROWS_OF(struct saved, attempt)},
    {.json = "step", ROWS_OF(struct saved, step)},
    {.json = "path", ROWS_OF(struct saved, path)},
};
static const struct rows_kind saved_rows = {"SavedCheckpointList", "saved_checkpoint",
                                            ROWS_COLUMNS(saved_columns), .line = add_saved_line};

static int save_now(struct cli *cli, const char *job, int64_t timeout_s)
{
    const int64_t end_ms = hd_clock_now_ms() + timeout_s * 1000;
    Heddle__V1__CheckpointJobRequest request = HEDDLE__V1__CHECKPOINT_JOB_REQUEST__INIT;
    Heddle__V1__CheckpointJobResponse *response = NULL;
    int64_t attempt_before = 0, step_before = 0, attempt, step;
    struct hd_text path = {0};
    int code = cli_find_job(cli, job, &request.job);

    if (code == CLI_CONTINUE)
        code = find_newest_checkpoint(cli, job, &attempt_before, &step_before, &path);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "CheckpointJob", &request.base, &response);
    if (code == CLI_CONTINUE)
        hd_rpc_message_free(&response->base);
    attempt = attempt_before;
    step = step_before;
    while (code == CLI_CONTINUE && attempt == attempt_before && step == step_before) {
        if (hd_clock_now_ms() >= end_ms) {
            code = cli_fail(hd_err(HD_LIMIT,
                                   "job %s has written no checkpoint within %lld s; it was asked "
                                   "for, see heddle events %s",
                                   job, (long long)timeout_s, job));
            break;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = SAVE_PAUSE_MS * 1000000L}, NULL);
        code = find_newest_checkpoint(cli, job, &attempt, &step, &path);
    }
    if (code == CLI_CONTINUE)
        code = rows_print_one(
            cli, &saved_rows,
            &(struct saved){request.job, attempt, step, path.failed ? "" : path.data});
    hd_text_free(&path);
    return code;
}

/* ---- checkpoint rm ---- */

/* Asks before the removal, unless --yes. Returns CLI_CONTINUE if the checkpoint may be removed,
 * else an exit code. */
static int confirm_checkpoint(struct cli *cli, uint64_t job, int64_t step)
{
    Heddle__V1__RemoveJobResponse *response = NULL;
    char size[32];
    int code = cli_remove(cli, &(struct cli_removal){job, step, true}, &response);

    if (code != CLI_CONTINUE)
        return code;
    hd_text_format_bytes(response->checkpoint_bytes, size);
    cli_note("job %llu: the checkpoint of step %lld, %s", (unsigned long long)job, (long long)step,
             size);
    hd_rpc_message_free(&response->base);
    return cli_confirm("remove it?", "nothing was removed", "to remove the checkpoint, add --yes");
}

struct removed_checkpoint {
    uint64_t job;
    int64_t step, checkpoint_bytes;
};

static void add_removed_checkpoint(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct removed_checkpoint *removed = item;

    (void)cli;
    hd_text_add(out, "job %llu: the checkpoint of step %lld is removed\n",
                (unsigned long long)removed->job, (long long)removed->step);
}

static const struct rows_column removed_columns[] = {
    {.json = "job", ROWS_OF(struct removed_checkpoint, job)},
    {.json = "step", ROWS_OF(struct removed_checkpoint, step)},
    {.json = "checkpoint_bytes", ROWS_OF(struct removed_checkpoint, checkpoint_bytes)},
};
static const struct rows_kind removed_rows = {"RemovedCheckpointList", "removed_checkpoint",
                                              ROWS_COLUMNS(removed_columns),
                                              .line = add_removed_checkpoint};

static int remove_checkpoint(struct cli *cli, const char *name, int64_t step, bool yes)
{
    struct removed_checkpoint removed = {.step = step};
    Heddle__V1__RemoveJobResponse *response = NULL;
    int code;

    if (step <= 0)
        return cli_usage("checkpoint rm: --step N is missing: which one");
    code = cli_find_job(cli, name, &removed.job);
    if (code == CLI_CONTINUE && !yes)
        code = confirm_checkpoint(cli, removed.job, step);
    if (code == CLI_CONTINUE)
        code = cli_remove(cli, &(struct cli_removal){removed.job, step, false}, &response);
    if (code != CLI_CONTINUE)
        return code;
    removed.checkpoint_bytes = response->checkpoint_bytes;
    hd_rpc_message_free(&response->base);
    return rows_print_one(cli, &removed_rows, &removed);
}

/* ---- checkpoint ---- */

static int run_verb(struct cli *cli, const struct checkpoint_flags *flags, struct found *f)
{
    const bool is_export = cli_is_verb(cli, "export");
    enum hd_status st = HD_OK;

    if (flags->step != FOUND_NEWEST || is_export)
        st = found_keep(f, cli->args[1], flags->step);
    else if (!cli_is_verb(cli, "ls") && !f->count)
        st = hd_err(HD_NOT_FOUND, "%s has no complete checkpoint yet", cli->args[1]);
    if (st)
        return cli_fail(st);
    if (is_export) {
        cli_disconnect(cli);
        return export_checkpoint(cli, flags, f->items[0].path);
    }
    if (cli_is_verb(cli, "verify"))
        return verify_checkpoints(cli, f);
    (void)rows_print_array(cli, &checkpoint_rows, f->items, f->count, sizeof f->items[0]);
    return CLI_CONTINUE;
}

static int cli_checkpoint(struct cli *cli, int argc, char **argv)
{
    struct checkpoint_flags f = {.timeout_s = 300};
    const char *step = NULL;
    const struct cli_flag flags[] = {
        {"step", 0, CLI_FLAG_TEXT, &step, "N|best",
         .help = "of this step, or with the lowest validation loss; else\n"
                 "all (ls, verify), or the newest (export)",
         .of = "ls|verify|export|rm"},
        {"out", 0, CLI_FLAG_TEXT, &f.out, "DIR", .joins = true, .of = "export|combine"},
        {"force", 0, CLI_FLAG_BOOL, NULL,
         .help = "the folder to make; replace a model folder that it is", .of = "export"},
        {"dtype", 0, CLI_FLAG_TEXT, NULL, "D", .choices = "fp32|bf16",
         .help = "of the weights: fp32, as trained, or bf16; else fp32", .of = "export"},
        {"max-shard-size", 0, CLI_FLAG_INT, NULL, "MB", .min = 1, .max = 1 << 20,
         .help = "of one file, in 10^6 bytes; else 5000", .of = "export"},
        {"adapter", 0, CLI_FLAG_BOOL, NULL,
         .help = "the adapter alone, in the form that PEFT loads", .of = "export"},
        {"base", 0, CLI_FLAG_TEXT, NULL, "DIR", .help = "where the base of the checkpoint is now",
         .of = "export"},
        {"ema", 0, CLI_FLAG_BOOL, NULL, .help = "the moving averages of the weights (train.ema)",
         .of = "export"},
        {"text-only", 0, CLI_FLAG_BOOL, NULL, .help = "without the vision tower of its base",
         .of = "export"},
        {"timeout", 0, CLI_FLAG_INT, &f.timeout_s, "S", .min = 1, .max = 24 * 3600, .joins = true,
         .of = "save"},
        {"yes", 'y', CLI_FLAG_BOOL, &f.yes, .help = "seconds of save (300); rm does not ask",
         .of = "rm"},
    };
    struct found found;
    int code =
        cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 2, 1 + COMBINED_MAX);

    if (code == CLI_CONTINUE && (cli_is_verb(cli, "export") || cli_is_verb(cli, "combine")) &&
        !f.out)
        code = cli_usage("checkpoint %s: --out is missing; give the folder to make, such as "
                         "--out my-model",
                         cli->args[0]);
    if (code == CLI_CONTINUE)
        code = found_parse_step("checkpoint", step, &f.step);
    if (code != CLI_CONTINUE)
        return code;
    if (cli_is_verb(cli, "combine"))
        return combine_adapters(cli, f.out);
    if (cli_is_verb(cli, "rm"))
        return remove_checkpoint(cli, cli->args[1], f.step, f.yes);
    if (cli_is_verb(cli, "save"))
        return save_now(cli, cli->args[1], f.timeout_s);
    if (cli_is_verb(cli, "verify") && found_is_export(cli->args[1])) {
        if (f.step)
            return cli_usage("checkpoint: --step: %s is a model folder, which has no steps",
                             cli->args[1]);
        code = verify_model_dir(cli, cli->args[1]);
        return cli_out_end(code == CLI_CONTINUE ? CLI_OK : code);
    }
    code = found_open(cli, cli->args[1], cli_is_verb(cli, "verify"), &found);
    if (code == CLI_CONTINUE)
        code = run_verb(cli, &f, &found);
    found_done(&found);
    return cli_out_end(code == CLI_CONTINUE ? CLI_OK : code);
}

static const struct cli_verb checkpoint_verbs[] = {
    {"ls", 1, 1, "a job or a folder"},
    {"verify", 1, 1, "a job or a folder"},
    {"export", 1, 1, "a job or a folder"},
    {"combine", 2, COMBINED_MAX, "two folders of adapters"},
    {"save", 1, 1, "a job"},
    {"rm", 1, 1, "a job"},
};

const struct cli_body cli_body_checkpoint = {
    .usage = "Usage: heddle checkpoint ls JOB|DIR [-o FORMAT]\n"
             "       heddle checkpoint verify JOB|DIR [--step N|best] [-o FORMAT]\n"
             "       heddle checkpoint export JOB|DIR --out DIR [--step N|best] [FLAGS]\n"
             "       heddle checkpoint combine DIR[:WEIGHT] DIR[:WEIGHT].. --out DIR\n"
             "       heddle checkpoint save JOB [--timeout SECONDS] [-o FORMAT]\n"
             "       heddle checkpoint rm JOB --step N [--yes] [-o FORMAT]\n",
    .about = "ls lists complete checkpoints and copies. verify reads all bytes, also of an\n"
             "export, and names what is damaged (exit code 6) or not read (5). export makes a\n"
             "folder for transformers, combine one LoRA adapter of several (PEFT's), weighted.\n",
    .examples = "heddle checkpoint export 7 --out my-model --dtype bf16",
    CLI_VERBS(checkpoint_verbs),
    .run = cli_checkpoint,
};
