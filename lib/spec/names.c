/* names: names in a job file of models and data elsewhere: hf://ORG/NAME, hf://datasets/ORG/NAME/FILE,
 * s3://BUCKET/KEY. The caller of the reader finds the paths (hd_spec_source.locate); the job has
 * these alone. */
#include <stdio.h>
#include <string.h>

#include "hub/hub.h"
#include "spec_internal.h"

static bool is_name(const char *text)
{
    return hd_text_starts(text, "hf://") || hd_text_starts(text, "s3://");
}

/* Returns the bytes of the longest line. */
static size_t longest_line(const char *text)
{
    size_t longest = 0;

    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        if (strcspn(text, "\n") > longest)
            longest = strcspn(text, "\n");
    return longest;
}

/* Finds the path of one name, or of data several, a line each. Puts "KEY: " in front of a message. */
static enum hd_status locate(const struct spec_reader *r, const char *key, const char *name,
                             bool is_data, struct hd_text *ret_path)
{
    const struct hd_spec_source *source = r->source;
    enum hd_status st =
        source->locate
            ? source->locate(source->locate_user, name, is_data, ret_path)
            : hd_err(HD_INVALID,
                     "names such as hf:// and s3:// cannot be looked up here; give a path");

    if (!st && ret_path->failed)
        st = hd_err(HD_NO_MEMORY, "no memory for a path");
    if (!st && longest_line(ret_path->data) >= HD_JOB_PATH_MAX)
        st = hd_err(HD_INVALID, "%s: its path in the cache is longer than %d bytes", name,
                    HD_JOB_PATH_MAX - 1);
    return st ? hd_err_prefix(st, "%s", key) : HD_OK;
}

static enum hd_status locate_folder(struct spec_reader *r, const char *key, const char **path)
{
    struct hd_text found = {0};
    enum hd_status st;

    if (!is_name(*path))
        return HD_OK;
    st = locate(r, key, *path, false, &found);
    if (!st)
        st = hd_job_take_text(r->draft.job, path, &found);
    hd_text_free(&found);
    return st;
}

/* A list of files in the arena that grows. */
struct found_paths {
    struct hd_arena *arena;
    struct hd_job_file *items;
    int count, room;
};

static enum hd_status add_found(struct found_paths *found, const struct hd_job_file *file,
                                const char *path, size_t bytes)
{
    struct hd_job_file *items =
        hd_arena_grow(found->arena, found->items, found->count, &found->room, sizeof *items);

    if (!items)
        return hd_err(HD_NO_MEMORY, "no memory for names of files");
    found->items = items;
    items[found->count] = *file;
    items[found->count].path = hd_arena_printf(found->arena, "%.*s", (int)bytes, path);
    return items[found->count++].path ? HD_OK
                                      : hd_err(HD_NO_MEMORY, "no memory for names of files");
}

/* Replaces the names in a list by what they mean. With hd_spec_source.missing_data, names that are not
 * in the cache stay. */
static enum hd_status locate_files(struct spec_reader *r, bool is_train)
{
    struct hd_job *job = r->draft.job;
    struct hd_job_file **files = is_train ? &job->train : &job->val;
    int64_t *count = is_train ? &job->train_count : &job->val_count;
    struct found_paths all = {.arena = r->draft.arena};
    bool any = false;
    enum hd_status st = HD_OK;

    for (int64_t i = 0; i < *count; i++)
        any |= is_name((*files)[i].path);
    for (int64_t i = 0; any && i < *count && !st; i++) {
        const struct hd_job_file *file = &(*files)[i];
        struct hd_text found = {0};
        char key[SPEC_LIST_KEY_MAX];

        spec_list_key(job, is_train, i, key);
        if (is_name(file->path))
            st = locate(r, key, file->path, true, &found);
        if (st == HD_NOT_FOUND && r->source->missing_data) {
            if (!r->source->missing_data->len_bytes)
                hd_text_add(r->source->missing_data, "%s", hd_err_message());
            st = HD_OK;
        }
        if (!st && !found.len_bytes)
            hd_text_add(&found, "%s", file->path);
        if (!st && found.failed)
            st = hd_err(HD_NO_MEMORY, "no memory for names of files");
        for (const char *at = found.data; !st && *at; at += *at == '\n') {
            const size_t n = strcspn(at, "\n");

            st = add_found(&all, file, at, n);
            at += n;
        }
        hd_text_free(&found);
    }
    if (!st && any) {
        *files = all.items;
        *count = all.count;
    }
    return st;
}

enum hd_status spec_locate_names(struct spec_reader *r)
{
    struct hd_job *job = r->draft.job;
    enum hd_status st = locate_folder(r, "model.from", &job->from_dir);

    if (!st)
        st = locate_folder(r, "train.init_from", &job->init_from);
    if (!st)
        st = locate_folder(r, "train.continue_from", &job->continue_from);
    if (!st)
        st = locate_folder(r, "train.adapter.from", &job->adapter_from);
    if (!st)
        st = locate_folder(r, "train.distill.teacher", &job->distill_teacher);
    if (!st)
        st = locate_folder(r, "train.rewards.model", &job->reward_dir);
    if (!st)
        st = locate_files(r, true);
    return st ? st : locate_files(r, false);
}

/* Names what a page of the hub shows: ORG/NAME/blob/REVISION/FILE is hf://ORG/NAME@REVISION/FILE, without
 * @REVISION for main. page: the URL behind the host. */
static void explain_page(const char *page, char ret_text[SPEC_PATH_TEXT_MAX])
{
    static const char *const views[] = {"/blob/", "/resolve/", "/tree/", "/raw/"};
    const char *repo_end = page + strcspn(page, "?#"), *revision = repo_end, *path;
    bool is_main;

    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        const char *view = strstr(page, views[i]);

        if (view && view < repo_end) {
            repo_end = view;
            revision = view + strlen(views[i]);
        }
    }
    path = revision + strcspn(revision, "/?#");
    is_main = path == revision || (path - revision == 4 && hd_text_starts(revision, "main"));
    (void)snprintf(ret_text, SPEC_PATH_TEXT_MAX, "; write hf://%.*s%s%.*s%.*s",
                   (int)(repo_end - page), page, is_main ? "" : "@",
                   is_main ? 0 : (int)(path - revision), revision, (int)strcspn(path, "?#"), path);
}

const char *spec_explain_name(const char *text, bool is_data, char ret_text[SPEC_PATH_TEXT_MAX])
{
    static const char hub[] = "https://huggingface.co/", file[] = "file://";

    ret_text[0] = '\0';
    if (hd_text_starts(text, hub))
        explain_page(text + strlen(hub), ret_text);
    else if (hd_text_starts(text, file))
        (void)snprintf(ret_text, SPEC_PATH_TEXT_MAX, "; write the path alone: %s",
                       text + strlen(file));
    else if (strstr(text, "://"))
        (void)snprintf(ret_text, SPEC_PATH_TEXT_MAX,
                       "; only hf:// and s3:// are downloaded: get it with another program first");
    else if (hd_hub_is_repo(text) && is_data && strchr(strchr(text, '/'), '.'))
        return ret_text; /* a file with a suffix */
    else if (hd_hub_is_repo(text) && is_data)
        (void)snprintf(ret_text, SPEC_PATH_TEXT_MAX,
                       "; files of a data set of the Hugging Face hub are written "
                       "hf://datasets/ORG/NAME/FILE");
    else if (hd_hub_is_repo(text))
        (void)snprintf(ret_text, SPEC_PATH_TEXT_MAX,
                       "; a model of the Hugging Face hub is written hf://%s", text);
    return ret_text;
}
