#include "controller/cli/fetch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controller/cli/bar.h"
#include "controller/cli/cli.h"

enum {
    QUIET_MS = 30000, /* time between lines of progress without a terminal, ms */
    /* bytes of a download that is told at its beginning, too, without a terminal */
    LARGE_BYTES = 64 << 20
};

/* ---- progress ---- */

struct fetch_view {
    struct bar bar;
    bool has_terminal;
    int64_t told_ms;            /* time of the last line without a terminal; 0: none */
    struct sigaction before[2]; /* actions of SIGINT and SIGTERM before the download */
};

static void add_rest(const struct hd_hub_progress *p, struct hd_text *line)
{
    char rate[32], span[HD_CLOCK_TEXT_MAX];

    if (p->bytes_per_s <= 0 || p->done_bytes == p->total_bytes)
        return;
    hd_text_format_bytes(p->bytes_per_s, rate);
    hd_clock_format_span((p->total_bytes - p->done_bytes) / p->bytes_per_s * 1000, span);
    hd_text_add(line, "  %s/s  ETA %s", rate, span);
}

static void show_fetch(void *user, const struct hd_hub_progress *p)
{
    struct fetch_view *view = user;
    const int64_t now_ms = hd_clock_now_ms();
    char done[32], total[32];
    struct hd_text line = {0};

    if (!view->has_terminal && view->told_ms && now_ms - view->told_ms < QUIET_MS)
        return;
    hd_text_format_bytes(p->done_bytes, done);
    hd_text_format_bytes(p->total_bytes, total);
    hd_text_add(&line, "fetching: %zu of %zu files, %s of %s", p->done_files, p->total_files, done,
                total);
    add_rest(p, &line);
    if (p->note)
        hd_text_add(&line, "  (%s)", p->note);
    if (!line.failed && view->has_terminal) {
        const int columns = bar_terminal_columns() - 1;

        if ((int)line.len_bytes > columns)
            line.data[columns > 0 ? columns : 0] = '\0';
        bar_put(&view->bar, line.data, (int)strlen(line.data));
    } else if (!line.failed && (view->told_ms || p->total_bytes - p->done_bytes > LARGE_BYTES)) {
        cli_note("heddle: %s", line.data);
    }
    view->told_ms = now_ms;
    hd_text_free(&line);
}

static bool has_terminal(void)
{
    const char *term = getenv("TERM");

    return isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

/* Tells what was downloaded, or that the cache is used because nothing could be. name: of the model, the
 * data or the objects; freed. */
static void tell_result(struct hd_text *name, bool unreachable, size_t files, int64_t size_bytes,
                        int64_t fetched_bytes)
{
    const char *text = name->failed || !name->data ? "" : name->data;
    char fetched[32], total[32];

    hd_text_format_bytes(fetched_bytes, fetched);
    hd_text_format_bytes(size_bytes, total);
    if (unreachable)
        cli_note("heddle: %s; what the cache has is used: %s", hd_err_message(), text);
    else if (fetched_bytes)
        cli_note("heddle: %s: %zu file%s, %s; %s downloaded now", text, files,
                 files == 1 ? "" : "s", total, fetched);
    hd_text_free(name);
}

/* ---- getting ---- */

/* Enclose a download: signals end it, and its progress is shown. */
static void begin_view(struct fetch_view *view)
{
    *view = (struct fetch_view){.has_terminal = has_terminal()};
    cli_stopped_by = 0;
    cli_catch_stop(SIGINT, &view->before[0]);
    cli_catch_stop(SIGTERM, &view->before[1]);
}

static void end_view(struct fetch_view *view)
{
    (void)sigaction(SIGINT, &view->before[0], NULL);
    (void)sigaction(SIGTERM, &view->before[1], NULL);
    bar_clear(&view->bar);
}

enum hd_status fetch_get(struct hd_hub_request *request, bool chooses, struct hd_arena *arena,
                         struct hd_hub_result *ret_result)
{
    struct fetch_view view;
    struct hd_text name = {0};
    enum hd_status st;

    begin_view(&view);
    request->stop = &cli_stopped_by;
    request->progress = show_fetch;
    request->user = &view;
    st = chooses ? hd_hub_get_set(request, arena, ret_result)
                 : hd_hub_get(request, arena, ret_result);
    end_view(&view);
    if (st)
        return st;
    hd_hub_write(request->name, ret_result->commit, &name);
    tell_result(&name, ret_result->unreachable, ret_result->file_count, ret_result->size_bytes,
                ret_result->fetched_bytes);
    return HD_OK;
}

int fetch_exit_of(enum hd_status st)
{
    return st == HD_ABORTED && cli_stopped_by ? cli_exit_of_signal(cli_stopped_by)
                                              : cli_exit_of(st);
}

enum hd_status fetch_get_s3(struct hd_s3_request *request, struct hd_arena *arena,
                            struct hd_s3_result *ret_result)
{
    struct fetch_view view;
    struct hd_text name = {0};
    enum hd_status st;

    begin_view(&view);
    request->stop = &cli_stopped_by;
    request->progress = show_fetch;
    request->user = &view;
    st = hd_s3_get(request, arena, ret_result);
    end_view(&view);
    if (st)
        return st;
    hd_text_add(&name, "s3://%s/%s", request->name->bucket, request->name->key);
    tell_result(&name, ret_result->unreachable, ret_result->file_count, ret_result->size_bytes,
                ret_result->fetched_bytes);
    return HD_OK;
}

/* ---- names of a job file ---- */

struct fetch_known {
    struct fetch_known *next;
    const char *name;
    const char *path;
};

static const struct fetch_known *find_known(const struct fetch_names *names, const char *name)
{
    for (const struct fetch_known *k = names->known; k; k = k->next)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

static enum hd_status remember(struct fetch_names *names, const char *name, const char *path)
{
    struct fetch_known *known = hd_arena_alloc(names->arena, sizeof *known);

    if (known) {
        known->name = hd_arena_strdup(names->arena, name);
        known->path = hd_arena_strdup(names->arena, path);
    }
    if (!known || !known->name || !known->path)
        return hd_err(HD_NO_MEMORY, "no memory for a name");
    known->next = names->known;
    names->known = known;
    return HD_OK;
}

/* Checks that a name of data is one of a data set, and one of a model has no file. */
static enum hd_status check_form(const char *name, bool is_data, const struct hd_hub_name *n)
{
    if (is_data && !n->is_dataset)
        return hd_err(HD_INVALID, "%s is a model; data is named hf://datasets/ORG/NAME", name);
    if (!is_data && n->is_dataset)
        return hd_err(HD_INVALID, "%s is a data set; a model is named hf://ORG/NAME", name);
    if (!is_data && *n->path)
        return hd_err(HD_INVALID, "%s: a model is named without a file: hf://%s", name, n->repo);
    return HD_OK;
}

static enum hd_status locate(struct fetch_names *names, const char *name, bool is_data,
                             struct hd_text *ret_path)
{
    char folder[PATH_MAX];
    struct hd_hub_name n;
    struct hd_hub_result result;
    const char *include = n.path;
    bool is_list;
    struct hd_hub_request request = {.settings = &names->settings,
                                     .name = &n,
                                     .mode =
                                         names->downloads ? HD_HUB_CACHE_FIRST : HD_HUB_CACHE_ONLY,
                                     .include = &include,
                                     .by_folder = true};
    enum hd_status st = hd_hub_parse(name, false, false, &n);

    if (!st)
        st = check_form(name, is_data, &n);
    if (!st && !names->is_ready)
        st = hd_hub_read_settings(&names->settings);
    names->is_ready = !st;
    if (st)
        return st;
    is_list = is_data && (!*n.path || hd_text_ends(n.path, "/"));
    request.include_count = is_data && *n.path;
    st = fetch_get(&request, is_data && !*n.path, names->arena, &result);
    if (st == HD_NOT_FOUND && !names->downloads)
        return hd_err(st, "%s; local and submit fetch it, too", hd_err_message());
    if (st)
        return st;
    hd_hub_name_files(&result, folder);
    if (is_list) {
        st = hd_hub_add_paths(&result, folder, ret_path);
        return st ? hd_err_prefix(st, "%s", name) : HD_OK;
    }
    hd_text_add(ret_path, "%s%s%s", folder, is_data ? "/" : "", n.path);
    return HD_OK;
}

static enum hd_status locate_s3(struct fetch_names *names, const char *name, bool is_data,
                                struct hd_text *ret_path)
{
    struct hd_s3_settings *settings = malloc(sizeof *settings);
    struct hd_s3_name n;
    struct hd_s3_result result;
    struct hd_s3_request request = {
        .settings = settings, .name = &n, .is_data = is_data, .cache_only = !names->downloads};
    enum hd_status st =
        settings ? hd_s3_parse(name, &n) : hd_err(HD_NO_MEMORY, "no memory for an object store");

    if (!st)
        st = hd_s3_read_settings(settings);
    if (!st)
        st = fetch_get_s3(&request, names->arena, &result);
    if (st == HD_NOT_FOUND && !names->downloads)
        st = hd_err(st, "%s; local and submit fetch it", hd_err_message());
    if (!st)
        hd_text_add(ret_path, "%s", result.paths);
    if (settings)
        explicit_bzero(settings, sizeof *settings);
    free(settings);
    return st;
}

enum hd_status fetch_locate(void *user, const char *name, bool is_data, struct hd_text *ret_path)
{
    struct fetch_names *names = user;
    const struct fetch_known *known = find_known(names, name);
    enum hd_status st;

    if (known) {
        hd_text_add(ret_path, "%s", known->path);
        return HD_OK;
    }
    st = hd_s3_is_name(name) ? locate_s3(names, name, is_data, ret_path)
                             : locate(names, name, is_data, ret_path);
    if (!st && ret_path->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    return st ? st : remember(names, name, ret_path->data);
}

int fetch_argument(struct cli *cli, char path[PATH_MAX])
{
    struct hd_text found = {0};
    struct hd_arena arena;
    struct fetch_names names = {.arena = &arena, .downloads = true};
    enum hd_status st;

    if (!hd_hub_is_name(cli->args[0]) && !hd_s3_is_name(cli->args[0]))
        return CLI_CONTINUE;
    hd_arena_init(&arena, 0);
    st = fetch_locate(&names, cli->args[0], false, &found);
    if (!st) {
        (void)snprintf(path, PATH_MAX, "%s", found.data);
        cli->args[0] = path;
    }
    hd_text_free(&found);
    hd_arena_done(&arena);
    if (!st)
        return CLI_CONTINUE;
    (void)cli_fail(st);
    return fetch_exit_of(st);
}

/* ---- what a job reads ---- */

/* Appends a line with the repository of a path, unless it is the one of the line before. */
static void describe_path(const char *key, const char *path, struct hd_text *before,
                          struct hd_text *out)
{
    struct hd_text name = {0};

    if ((hd_hub_describe(path, &name) || hd_s3_describe(path, &name)) && !name.failed &&
        !(before->data && strcmp(before->data, name.data) == 0)) {
        hd_text_add(out, "%s: %s\n", key, name.data);
        hd_text_clear(before);
        hd_text_add(before, "%s", name.data);
    }
    hd_text_free(&name);
}

void fetch_describe(const struct hd_job *job, struct hd_text *out)
{
    struct hd_text before = {0};

    describe_path("model.from", job->from_dir, &before, out);
    if (*job->continue_from) /* the checkpoint that was found in the folder of a run */
        hd_text_add(out, "train.continue_from: goes on from %s\n", job->continue_from);
    else
        describe_path("train.init_from", job->init_from, &before, out);
    describe_path("train.adapter.from", job->adapter_from, &before, out);
    for (int64_t i = 0; i < job->train_count; i++)
        describe_path("data.train", job->train[i].path, &before, out);
    for (int64_t i = 0; i < job->val_count; i++)
        describe_path("data.val", job->val[i].path, &before, out);
    hd_text_free(&before);
}
