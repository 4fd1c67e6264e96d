/* checkpoint: lists, verifies and exports the checkpoints of a job or in a folder. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "controller/cli/found.h"
#include "controller/cli/process.h"
#include "controller/cli/show.h"
#include "controller/cli/table.h"
#include "hf/hf.h"

enum { SAVE_PAUSE_MS = 300, COPY_MARK_BYTES_MAX = 8192 };

/* ---- checkpoint ls, verify ---- */

static const struct table_column checkpoint_columns[] = {
    {"ATTEMPT", true},   {"STEP", true},  {"SIZE", true},  {"TIME", false},
    {"VAL LOSS", false}, {"PATH", false}, {"COPY", false},
};

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

static void list_checkpoints(struct cli *cli, const struct found *f)
{
    char size[32], when[HD_CLOCK_TEXT_MAX];
    struct hd_text out = {0}, copy = {0};
    struct show_list list;
    struct table table;

    if (cli->format >= CLI_JSON) {
        show_list_begin(&list, &out, cli->format, "CheckpointList", "checkpoint");
        for (size_t i = 0; i < f->count; i++) {
            show_item_begin(&list);
            show_checkpoint(&list.writer, &f->items[i]);
            hd_text_clear(&copy);
            add_copy(f->items[i].path, &copy);
            if (copy.len_bytes)
                hd_json_add_string(&list.writer, "copy", copy.data);
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
            if (c->_val_loss_case)
                table_add(&table, NULL, "%.4f%s", c->val_loss, c->best ? " best" : "");
            else
                table_add(&table, NULL, "%s", "");
            table_add(&table, NULL, "%s%s", c->path, c->missing ? " (missing)" : "");
            hd_text_clear(&copy);
            add_copy(c->path, &copy);
            table_add(&table, NULL, "%s", copy.data ? copy.data : "");
        }
        table_render(&table, cli->colour, 0, &out); /* unlimited width: a path must not be cut */
        table_done(&table);
    }
    (void)cli_out(&out);
    hd_text_free(&out);
    hd_text_free(&copy);
}

/* Results of `checkpoint verify`, printed in the command's format. */
struct verdicts {
    struct cli *cli;
    struct hd_text out;
    struct show_list list;
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

static void verdicts_begin(struct verdicts *v, struct cli *cli)
{
    *v = (struct verdicts){.cli = cli, .code = CLI_CONTINUE};
    if (cli->format >= CLI_JSON)
        show_list_begin(&v->list, &v->out, cli->format, "VerdictList", "verdict");
}

/* Prints the result of verifying one checkpoint, or (NULL) a model folder, as soon as it is known:
 * reading one may take minutes. */
static void add_verdict(struct verdicts *v, enum hd_status st, const char *path,
                        const Heddle__V1__CheckpointInfo *checkpoint)
{
    struct hd_error error;

    hd_err_save(st, &error);
    if (v->cli->format >= CLI_JSON) {
        show_item_begin(&v->list);
        hd_json_add_string(&v->list.writer, "path", path);
        if (checkpoint) {
            hd_json_add_int64(&v->list.writer, "attempt", checkpoint->attempt);
            hd_json_add_int64(&v->list.writer, "step", checkpoint->step);
        }
        hd_json_add_bool(&v->list.writer, "ok", !st);
        if (st)
            hd_json_add_string(&v->list.writer, "problem", error.message);
        else
            hd_json_add_null(&v->list.writer, "problem");
        hd_json_add_string(&v->list.writer, "outcome", outcome_of(st));
        show_item_end(&v->list);
    } else {
        hd_text_add(&v->out, "%s  ", !st ? "ok " : is_unreadable(st) ? "cannot be read" : "bad");
        cli_add_clean(&v->out, path);
        hd_text_add(&v->out, "\n");
    }
    (void)cli_out(&v->out);
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
    if (v->cli->format >= CLI_JSON)
        show_list_end(&v->list);
    (void)cli_out(&v->out);
    hd_text_free(&v->out);
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

/* Flags of `checkpoint`; those of export have the names of heddle-worker's flags. */
struct checkpoint_flags {
    /* value of --step as in found.h; FOUND_NEWEST: not given: all checkpoints, or the newest */
    int64_t step;
    const char *out, *dtype, *max_shard_size, *base;
    bool adapter, text_only, force, yes;
    int64_t timeout_s; /* value of the flag --timeout of `checkpoint save`, s */
};

static int export_checkpoint(const struct cli *cli, const struct checkpoint_flags *flags,
                             const char *checkpoint)
{
    const char *argv[18] = {NULL, "export", "--checkpoint", checkpoint, "--out", flags->out};
    size_t n = 6;

    if (flags->dtype) {
        argv[n++] = "--dtype";
        argv[n++] = flags->dtype;
    }
    if (flags->max_shard_size) {
        argv[n++] = "--max-shard-size";
        argv[n++] = flags->max_shard_size;
    }
    if (flags->base) {
        argv[n++] = "--base";
        argv[n++] = flags->base;
    }
    if (flags->adapter)
        argv[n++] = "--adapter";
    if (flags->text_only)
        argv[n++] = "--text-only";
    if (flags->force)
        argv[n++] = "--force";
    if (cli->format >= CLI_JSON)
        argv[n++] = cli->format == CLI_JSONL ? "--jsonl" : "--json";
    return cli_fail(process_become("heddle-worker", argv));
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

static void print_saved(enum cli_format format, uint64_t job, int64_t attempt, int64_t step,
                        const char *path)
{
    struct hd_text out = {0};
    struct show_list list;

    if (format >= CLI_JSON) {
        show_list_begin(&list, &out, format, "SavedCheckpointList", "saved_checkpoint");
        show_item_begin(&list);
        hd_json_add_int64(&list.writer, "job", (int64_t)job);
        hd_json_add_int64(&list.writer, "attempt", attempt);
        hd_json_add_int64(&list.writer, "step", step);
        hd_json_add_string(&list.writer, "path", path);
        show_item_end(&list);
        show_list_end(&list);
    } else {
        hd_text_add(&out, "step %lld  ", (long long)step);
        cli_add_clean(&out, path);
        hd_text_add(&out, "\n");
    }
    (void)cli_out(&out);
    hd_text_free(&out);
}

static int save_now(struct cli *cli, const char *job, int64_t timeout_s)
{
    const int64_t end_ms = hd_clock_now_ms() + timeout_s * 1000;
    Heddle__V1__CheckpointJobRequest request = HEDDLE__V1__CHECKPOINT_JOB_REQUEST__INIT;
    Heddle__V1__CheckpointJobResponse *response = NULL;
    int64_t attempt_before = 0, step_before = 0, attempt, step;
    struct hd_text path = {0};
    int code = cli_find_job(cli, job, &request.job);

    if (code == CLI_CONTINUE)
        code = cli_connect(cli);
    if (code == CLI_CONTINUE)
        code = find_newest_checkpoint(cli, job, &attempt_before, &step_before, &path);
    if (code == CLI_CONTINUE)
        code = cli_call(cli, "CheckpointJob", &heddle__v1__checkpoint_job_response__descriptor,
                        &request.base, &response);
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
        print_saved(cli->format, request.job, attempt, step, path.failed ? "" : path.data);
    hd_text_free(&path);
    return code;
}

/* ---- checkpoint ---- */

enum checkpoint_verb { VERB_LS, VERB_VERIFY, VERB_EXPORT, VERB_SAVE, VERB_RM, VERB_NONE };

static enum checkpoint_verb find_verb(const char *name)
{
    static const char *const names[] = {"ls", "verify", "export", "save", "rm"};
    int verb = VERB_LS;

    while (verb < VERB_NONE && strcmp(names[verb], name) != 0)
        verb++;
    return (enum checkpoint_verb)verb;
}

static int check_checkpoint_flags(enum checkpoint_verb verb, const struct checkpoint_flags *f)
{
    const bool has_export_flag = f->out || f->dtype || f->max_shard_size || f->base || f->adapter ||
                                 f->text_only || f->force;
    int64_t mb;

    if (verb == VERB_EXPORT && !f->out)
        return cli_usage("checkpoint export: --out is missing; give the folder to make, such as "
                         "--out my-model");
    if (verb != VERB_EXPORT && has_export_flag)
        return cli_usage("checkpoint: --out, --dtype, --max-shard-size, --base, --adapter, "
                         "--text-only and --force are flags of checkpoint export; leave them out "
                         "here");
    if (verb != VERB_RM && f->yes)
        return cli_usage("checkpoint: --yes is a flag of checkpoint rm; leave it out here");
    if (f->dtype && strcmp(f->dtype, "fp32") != 0 && strcmp(f->dtype, "bf16") != 0)
        return cli_usage("checkpoint: --dtype %s is not fp32 or bf16", f->dtype);
    if (f->max_shard_size && hd_text_to_int64(f->max_shard_size, 1, 1 << 20, &mb))
        return cli_usage("checkpoint: --max-shard-size: %s", hd_err_message());
    return CLI_CONTINUE;
}

static int run_verb(struct cli *cli, enum checkpoint_verb verb,
                    const struct checkpoint_flags *flags, struct found *f)
{
    enum hd_status st = HD_OK;

    if (flags->step != FOUND_NEWEST || verb == VERB_EXPORT)
        st = found_keep(f, cli->args[1], flags->step);
    else if (verb != VERB_LS && !f->count)
        st = hd_err(HD_NOT_FOUND, "%s has no complete checkpoint yet", cli->args[1]);
    if (st)
        return cli_fail(st);
    if (verb == VERB_EXPORT) {
        cli_disconnect(cli);
        return export_checkpoint(cli, flags, f->items[0].path);
    }
    if (verb == VERB_VERIFY)
        return verify_checkpoints(cli, f);
    list_checkpoints(cli, f);
    return CLI_CONTINUE;
}

int cli_checkpoint(struct cli *cli, int argc, char **argv)
{
    struct checkpoint_flags f = {.timeout_s = 300};
    const char *step = NULL;
    const struct cli_flag flags[] = {
        {"step", 0, CLI_FLAG_TEXT, &step, 0, 0},
        {"out", 0, CLI_FLAG_TEXT, &f.out, 0, 0},
        {"dtype", 0, CLI_FLAG_TEXT, &f.dtype, 0, 0},
        {"max-shard-size", 0, CLI_FLAG_TEXT, &f.max_shard_size, 0, 0},
        {"base", 0, CLI_FLAG_TEXT, &f.base, 0, 0},
        {"adapter", 0, CLI_FLAG_BOOL, &f.adapter, 0, 0},
        {"text-only", 0, CLI_FLAG_BOOL, &f.text_only, 0, 0},
        {"force", 0, CLI_FLAG_BOOL, &f.force, 0, 0},
        {"timeout", 0, CLI_FLAG_INT, &f.timeout_s, 1, 24 * 3600},
        {"yes", 'y', CLI_FLAG_BOOL, &f.yes, 0, 0},
    };
    struct found found;
    enum checkpoint_verb verb;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 2, 2);

    if (code != CLI_CONTINUE)
        return code;
    verb = find_verb(cli->args[0]);
    if (verb == VERB_NONE)
        return cli_usage(
            "checkpoint: %s is not ls, verify, export, save or rm; see heddle checkpoint --help",
            cli->args[0]);
    code = check_checkpoint_flags(verb, &f);
    if (code == CLI_CONTINUE)
        code = found_parse_step("checkpoint", step, &f.step);
    if (code != CLI_CONTINUE)
        return code;
    if (verb == VERB_RM)
        return cli_remove_checkpoint(cli, cli->args[1], f.step, f.yes);
    if (verb == VERB_SAVE) {
        code = save_now(cli, cli->args[1], f.timeout_s);
        return code == CLI_CONTINUE ? cli_out_end(CLI_OK) : code;
    }
    if (verb == VERB_VERIFY && found_is_export(cli->args[1])) {
        if (f.step)
            return cli_usage("checkpoint: --step: %s is a model folder, which has no steps",
                             cli->args[1]);
        code = verify_model_dir(cli, cli->args[1]);
        return cli_out_end(code == CLI_CONTINUE ? CLI_OK : code);
    }
    code = found_open(cli, cli->args[1], verb == VERB_VERIFY, &found);
    if (code == CLI_CONTINUE)
        code = run_verb(cli, verb, &f, &found);
    found_done(&found);
    return cli_out_end(code == CLI_CONTINUE ? CLI_OK : code);
}
