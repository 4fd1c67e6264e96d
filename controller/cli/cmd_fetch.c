/* fetch: downloads a model or data set of the hub into the cache that Python tools share, or objects of
 * a store into the cache of these. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/copy.h"
#include "base/file.h"
#include "base/folder.h"
#include "controller/cli/fetch.h"
#include "controller/cli/rows.h"

struct fetch_flags {
    bool is_dataset, offline;
    const char *revision, *out;
    struct cli_list include, exclude;
};

/* ---- --out ---- */

/* Copies the file `from` to out/path, under its name only when it is whole. A copy and no link,
 * since changing it must not change the cache. */
static enum hd_status copy_file(const char *from, const char *path, const char *out)
{
    char to[PATH_MAX], part[PATH_MAX];
    enum hd_status st;

    if (snprintf(to, sizeof to, "%s/%s", out, path) >= (int)sizeof to ||
        snprintf(part, sizeof part, "%s.part", to) >= (int)sizeof part)
        return hd_err(HD_INVALID, "%s/%s: the path is too long", out, path);
    st = hd_folder_make_of(to, 0777);
    if (!st)
        st = hd_file_copy(from, part, 0666);
    if (!st && rename(part, to) < 0) {
        st = hd_err(hd_file_write_status(errno), "cannot rename %s: %s", part,
                    hd_file_error_text(errno));
        (void)unlink(part);
    }
    return st;
}

/* Makes the folder of --out, where there is space for the files. */
static enum hd_status make_out(const char *out, int64_t size_bytes)
{
    const enum hd_status st = hd_file_make_dirs(out, 0777);

    return st ? st : hd_file_check_space(out, size_bytes);
}

static enum hd_status copy_out(const struct hd_hub_result *result, const char *out)
{
    char from[PATH_MAX];
    enum hd_status st = make_out(out, result->size_bytes);

    for (size_t i = 0; i < result->file_count && !st; i++)
        st = snprintf(from, sizeof from, "%s/%s", result->snapshot, result->files[i].path) <
                     (int)sizeof from
                 ? copy_file(from, result->files[i].path, out)
                 : hd_err(HD_INVALID, "%s: the path is too long", result->files[i].path);
    return st;
}

static enum hd_status copy_objects_out(const struct hd_s3_result *result, const char *out)
{
    enum hd_status st = make_out(out, result->size_bytes);

    for (size_t i = 0; i < result->file_count && !st; i++)
        st = copy_file(result->files[i].path, result->files[i].rel, out);
    return st;
}

/* ---- output ---- */

struct fetched {
    const struct hd_hub_name *name;
    const struct hd_hub_result *result;
    const char *folder;
};

static void show_file(struct hd_json_writer *w, const char *path, int64_t size_bytes)
{
    hd_json_begin(w, NULL, '{');
    hd_json_add_string(w, "path", path);
    hd_json_add_int64(w, "size_bytes", size_bytes);
    hd_json_end(w, '}');
}

static void show_fetched(struct hd_json_writer *w, const void *item)
{
    const struct fetched *f = item;

    hd_json_add_string(w, "kind", f->name->is_dataset ? "dataset" : "model");
    hd_json_add_string(w, "name", f->name->repo);
    hd_json_add_string(w, "revision", f->name->revision);
    hd_json_add_string(w, "commit", f->result->commit);
    hd_json_add_string(w, "folder", f->folder);
    hd_json_add_int64(w, "size_bytes", f->result->size_bytes);
    hd_json_add_int64(w, "fetched_bytes", f->result->fetched_bytes);
    hd_json_begin(w, "files", '[');
    for (size_t i = 0; i < f->result->file_count; i++)
        show_file(w, f->result->files[i].path, f->result->files[i].size_bytes);
    hd_json_end(w, ']');
}

static void add_fetched_line(const struct cli *cli, struct hd_text *out, const void *item)
{
    (void)cli;
    hd_text_add(out, "%s\n", ((const struct fetched *)item)->folder);
}

static const struct rows_kind fetched_rows = {"FetchList", "fetch", .show = show_fetched,
                                              .line = add_fetched_line};

/* ---- the command ---- */

/* Sets the name from the argument and the flags. The path of hf://.../PATH is one more pattern. */
static enum hd_status read_name(const char *text, struct fetch_flags *f,
                                struct hd_hub_name *ret_name)
{
    enum hd_status st = hd_hub_parse(text, true, f->is_dataset, ret_name);

    if (!st && f->is_dataset && !ret_name->is_dataset)
        return hd_err(HD_INVALID, "%s is a model, and --dataset says a data set; write %s", text,
                      ret_name->repo);
    if (!st && f->revision) {
        char whole[HD_HUB_REPO_MAX + HD_HUB_REVISION_MAX];
        struct hd_hub_name with;

        if (snprintf(whole, sizeof whole, "%s@%s", ret_name->repo, f->revision) >=
            (int)sizeof whole)
            return hd_err(HD_INVALID, "--revision: is too long");
        st = hd_hub_parse(whole, true, ret_name->is_dataset, &with);
        if (st)
            return hd_err_prefix(st, "--revision");
        if (*with.path)
            return hd_err(HD_INVALID, "--revision: %s has a slash; write it as %%2F", f->revision);
        memcpy(ret_name->revision, with.revision, sizeof with.revision);
    }
    if (!st && *ret_name->path) {
        if (f->include.count == sizeof f->include.items / sizeof f->include.items[0])
            return hd_err(HD_INVALID, "--include: too many");
        f->include.items[f->include.count++] = ret_name->path;
    }
    return st;
}

static int run_fetch(struct cli *cli, struct fetch_flags *f, struct hd_arena *arena)
{
    struct hd_hub_settings settings;
    struct hd_hub_name name;
    struct hd_hub_result result;
    struct hd_hub_request request = {.settings = &settings, .name = &name, .mode = HD_HUB_NEWEST};
    enum hd_status st = read_name(cli->args[0], f, &name);

    if (!st)
        st = hd_hub_read_settings(&settings);
    if (st)
        return cli_fail(st);
    settings.offline |= f->offline;
    request.include = f->include.items;
    request.include_count = f->include.count;
    request.exclude = f->exclude.items;
    request.exclude_count = f->exclude.count;
    st = fetch_get(&request, false, arena, &result);
    if (!st && f->out)
        st = copy_out(&result, f->out);
    explicit_bzero(&settings, sizeof settings);
    if (st) {
        (void)cli_fail(st);
        return fetch_exit_of(st);
    }
    return rows_print_one(cli, &fetched_rows,
                          &(struct fetched){&name, &result, f->out ? f->out : result.snapshot});
}

/* ---- objects ---- */

struct fetched_objects {
    const struct hd_s3_name *name;
    const struct hd_s3_result *result;
    const char *folder; /* NULL: the objects are files of their own */
    bool is_data;
};

static void show_objects(struct hd_json_writer *w, const void *item)
{
    const struct fetched_objects *f = item;

    hd_json_add_string(w, "kind", f->is_data ? "dataset" : "model");
    hd_json_add_string(w, "bucket", f->name->bucket);
    hd_json_add_string(w, "key", f->name->key);
    if (f->folder)
        hd_json_add_string(w, "folder", f->folder);
    hd_json_add_int64(w, "size_bytes", f->result->size_bytes);
    hd_json_add_int64(w, "fetched_bytes", f->result->fetched_bytes);
    hd_json_begin(w, "files", '[');
    for (size_t i = 0; i < f->result->file_count; i++)
        show_file(w, f->folder ? f->result->files[i].rel : f->result->files[i].path,
                  f->result->files[i].size_bytes);
    hd_json_end(w, ']');
}

static void add_objects(const struct cli *cli, struct hd_text *out, const void *item)
{
    const struct fetched_objects *f = item;

    (void)cli;
    if (f->folder)
        hd_text_add(out, "%s\n", f->folder);
    for (size_t i = 0; !f->folder && i < f->result->file_count; i++)
        hd_text_add(out, "%s\n", f->result->files[i].path);
}

static const struct rows_kind object_rows = {"FetchList", "fetch", .show = show_objects,
                                             .line = add_objects};

static int run_fetch_s3(struct cli *cli, const struct fetch_flags *f, struct hd_arena *arena)
{
    struct hd_s3_settings *settings = hd_arena_alloc(arena, sizeof *settings);
    struct hd_s3_name name;
    struct hd_s3_result result;
    struct hd_s3_request request = {
        .settings = settings, .name = &name, .is_data = f->is_dataset, .cache_only = f->offline};
    enum hd_status st = settings ? hd_s3_parse(cli->args[0], &name)
                                 : hd_err(HD_NO_MEMORY, "no memory for an object store");

    if (f->revision || f->include.count || f->exclude.count)
        return cli_usage("fetch: --revision, --include and --exclude are flags of the hub's names; "
                         "for s3:// give a pattern, such as s3://BUCKET/FOLDER/*.parquet");
    if (!st)
        st = hd_s3_read_settings(settings);
    if (st)
        return cli_fail(st);
    st = fetch_get_s3(&request, arena, &result);
    explicit_bzero(settings, sizeof *settings);
    if (!st && f->out)
        st = copy_objects_out(&result, f->out);
    if (st) {
        (void)cli_fail(st);
        return fetch_exit_of(st);
    }
    return rows_print_one(cli, &object_rows,
                          &(struct fetched_objects){.name = &name,
                                                    .result = &result,
                                                    .folder = f->out          ? f->out
                                                              : f->is_dataset ? NULL
                                                                              : result.paths,
                                                    .is_data = f->is_dataset});
}

static int cli_fetch(struct cli *cli, int argc, char **argv)
{
    struct fetch_flags f = {.is_dataset = false};
    const struct cli_flag flags[] = {
        {"dataset", 0, CLI_FLAG_BOOL, &f.is_dataset,
         .help = "a data set; or name it hf://datasets/ORG/NAME"},
        {"revision", 0, CLI_FLAG_TEXT, &f.revision, "R",
         .help = "a branch, a tag or a commit; else main"},
        {"include", 0, CLI_FLAG_LIST, &f.include, "P",
         .help = "only files that match, such as 'data/train-*'; else what\n"
                 "Heddle reads of a model, of a data set all"},
        {"exclude", 0, CLI_FLAG_LIST, &f.exclude, "P", .help = "not files that match"},
        {"out", 0, CLI_FLAG_TEXT, &f.out, "DIR", .help = "copy the files to DIR, too"},
        {"offline", 0, CLI_FLAG_BOOL, &f.offline, .help = "only look into the cache"},
    };
    struct hd_arena arena;
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code != CLI_CONTINUE)
        return code;
    hd_arena_init(&arena, 0);
    code = hd_s3_is_name(cli->args[0]) ? run_fetch_s3(cli, &f, &arena) : run_fetch(cli, &f, &arena);
    hd_arena_done(&arena);
    return code;
}

const struct cli_body cli_body_fetch = {
    .usage = "Usage: heddle fetch NAME [--dataset] [--revision R] [--include P]...\n"
             "                    [--exclude P]... [--out DIR] [--offline] [-o FORMAT]\n",
    .about = "Downloads a model of the Hugging Face hub, ORG/NAME, or a data set, into the\n"
             "cache that Python tools share, and prints its folder; or objects of a store,\n"
             "s3://BUCKET/KEY: a model's folder, or with --dataset files. What was interrupted\n"
             "goes on. Sizes and hashes are checked. No pickles and code of the hub.\n",
    .notes = "A token for private and gated ones: HF_TOKEN, or the file of hf auth login. The\n"
             "cache: HF_HUB_CACHE or HF_HOME. Job files may say model.from: hf://ORG/NAME.\n"
             "For s3://: AWS_PROFILE or AWS_ACCESS_KEY_ID .., AWS_ENDPOINT_URL, AWS_REGION.\n",
    .examples = "heddle fetch Qwen/Qwen2.5-0.5B",
    .run = cli_fetch,
};
