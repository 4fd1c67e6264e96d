/* get: finds a repository's files in the cache, looks up the hub, and downloads what is missing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "hub_internal.h"

enum {
    INDEX_VALUES_MAX = 4000000,
    /* tries of a request to which no answer comes at all: the machine has no network */
    NO_ANSWER_TRIES = 3
};

struct hub_fetch {
    struct hd_hub_request request;   /* the caller's, but for `stop`: the pool's */
    struct hd_hub_settings settings; /* the caller's, with the cache's real path */
    struct hd_arena *arena;
    struct hd_hub_result *result;
    struct hd_text folder; /* folder of the repository in the cache */
    struct hub_tree tree;
    struct hd_hub_file *files; /* wanted */
    size_t file_count;
    bool nothing_matches; /* the commit that the cache has is without a wanted file */
    const struct hd_hub_file **missing;
    size_t missing_count;

    struct hub_pool pool;
};

static enum hd_status set_snapshot(struct hub_fetch *g, const char *commit)
{
    struct hd_hub_result *r = g->result;

    memcpy(r->commit, commit, HD_HUB_COMMIT_MAX);
    memcpy(g->tree.commit, commit, HD_HUB_COMMIT_MAX);
    if (snprintf(r->snapshot, sizeof r->snapshot, "%s/snapshots/%s", g->folder.data, commit) >=
        (int)sizeof r->snapshot - HD_HUB_PATH_MAX)
        return hd_err(HD_INVALID, "%s: the path of the cache is too long; set HF_HUB_CACHE",
                      g->settings.cache);
    return HD_OK;
}

static char *tree_path(const struct hub_fetch *g)
{
    return hd_arena_printf(g->arena, "%s/trees/%s.json", g->folder.data, g->tree.commit);
}

/* Picks the wanted files of the tree. */
static enum hd_status pick_wanted(struct hub_fetch *g)
{
    const enum hd_status st = hub_pick(&g->request, &g->tree, g->arena, &g->files, &g->file_count);

    g->result->size_bytes = 0;
    for (size_t i = 0; i < g->file_count && !st; i++) /* no overflow: each has 50 GB at most */
        g->result->size_bytes += g->files[i].size_bytes;
    return st;
}

/* ---- the cache ---- */

static bool has_all(const struct hub_fetch *g)
{
    for (size_t i = 0; i < g->file_count; i++)
        if (!hub_has_file(g->result->snapshot, g->files[i].path, g->files[i].size_bytes))
            return false;
    return true;
}

/* Checks that the snapshot has all files of the index of its weights. */
static bool has_weights(const struct hub_fetch *g)
{
    static const struct hd_json_limits limits = {.values_max = INDEX_VALUES_MAX, .depth_max = 8};
    const char *snapshot = g->result->snapshot;
    const struct hd_json *root = NULL, *map = NULL;
    struct hd_arena arena;
    bool has = hub_has_file(snapshot, "model.safetensors", -1) ||
               hub_has_file(snapshot, "adapter_model.safetensors", -1);

    hd_arena_init(&arena, 0);
    if (!has &&
        !hd_folder_read_json(&arena, snapshot, "model.safetensors.index.json", HUB_API_BYTES_MAX,
                             &limits, &root) &&
        root && !hd_json_need(root, "weight_map", HD_JSON_OBJECT, &map)) {
        has = map->first;
        for (const struct hd_json *m = map->first; m && has; m = m->next)
            has = m->kind == HD_JSON_STRING && hub_path_is_safe(m->text) &&
                  hub_has_file(snapshot, m->text, -1);
    }
    hd_arena_done(&arena);
    return has;
}

/* Returns whether a snapshot without a list of its commit's files has all that is wanted: what is
 * named without a pattern, or a model's settings and weights. */
static bool is_whole(const struct hub_fetch *g)
{
    const struct hd_hub_request *r = &g->request;

    for (size_t i = 0; i < r->include_count; i++)
        if (!hub_has_file(g->result->snapshot, r->include[i], -1))
            return false;
    if (r->include_count)
        return true;
    return !r->name->is_dataset &&
           (hub_has_file(g->result->snapshot, "config.json", -1) ||
            hub_has_file(g->result->snapshot, "adapter_config.json", -1)) &&
           has_weights(g);
}

/* Looks for all wanted files of a commit in the cache. HD_NOT_FOUND: it does not have them all. */
static enum hd_status find_commit(struct hub_fetch *g, const char *commit)
{
    enum hd_status st = set_snapshot(g, commit);
    const char *path = st ? NULL : tree_path(g);

    if (st)
        return st;
    if (!path)
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    g->tree.is_partial = false;
    st = hub_tree_read(path, g->arena, &g->tree);
    if (st == HD_NOT_FOUND)
        st = hub_list_snapshot(g->result->snapshot, g->arena, &g->tree);
    if (!st && g->tree.is_partial && (g->request.list_only || !is_whole(g)))
        return HD_NOT_FOUND;
    if (!st) {
        st = pick_wanted(g);
        g->nothing_matches = st == HD_NOT_FOUND;
    }
    if (!st && !g->request.list_only && !has_all(g))
        st = HD_NOT_FOUND;
    return st;
}

/* Looks for the repository in the cache, without network. HD_NOT_FOUND, without a message unless
 * nothing_matches: it is not there, or not whole. */
static enum hd_status find_cached(struct hub_fetch *g)
{
    const char *revision = g->request.name->revision;
    char commit[HD_HUB_COMMIT_MAX];
    enum hd_status st = HD_OK;

    if (hub_is_commit(revision))
        memcpy(commit, revision, sizeof commit);
    else
        st = hub_read_ref(g->folder.data, revision, commit);
    return st ? st : find_commit(g, commit);
}

static enum hd_status not_in_cache(const struct hub_fetch *g, const char *why)
{
    const struct hd_hub_request *r = &g->request;
    const struct hd_hub_name *n = r->name;
    struct hd_text command = {0};
    enum hd_status st;

    hd_text_add(&command, "heddle fetch %s%s", n->is_dataset ? "--dataset " : "", n->repo);
    if (strcmp(n->revision, "main") != 0)
        hd_text_add(&command, " --revision %s", n->revision);
    for (size_t i = 0; i < r->include_count; i++)
        hd_text_add(&command, " --include '%s'", r->include[i]);
    st = hd_err(HD_NOT_FOUND, "%s@%s is not, or not whole, in the cache %s%s; to fetch it: %s",
                n->repo, n->revision, g->settings.cache, why, command.failed ? "" : command.data);
    hd_text_free(&command);
    return st;
}

/* ---- the hub ---- */

/* Asks the API, `tries` times at most. */
static enum hd_status ask_api(struct hub_fetch *g, struct hub_client *client, const char *url,
                              int tries, struct hub_answer *ret_answer, struct hd_text *ret_text)
{
    enum hd_status st = HD_OK;

    for (int try = 1; !st; try++) {
        bool may_retry;
        int most;

        hd_text_clear(ret_text);
        *ret_answer = (struct hub_answer){.retry_after_s = -1};
        st = hub_get(client, url, 0, hub_take_text, ret_text, ret_answer);
        may_retry = st == HD_UNAVAILABLE || st == HD_TIMEOUT;
        if (!st && ret_answer->status == 200)
            return HD_OK;
        if (!st) {
            may_retry = hub_may_retry(ret_answer);
            st = hub_explain(&g->settings, g->request.name, ret_answer, NULL);
        }
        most = ret_answer->status || tries < NO_ANSWER_TRIES ? tries : NO_ANSWER_TRIES;
        if (!may_retry || try >= most)
            return st;
        if (hub_pause(&g->settings, try, ret_answer->status ? ret_answer : NULL, g->pool.stop))
            return hub_is_stopped(g->pool.stop) ? hd_err(HD_ABORTED, "interrupted") : st;
        st = HD_OK;
    }
    return st;
}

/* Sets ret_commit to the commit of the revision. */
static enum hd_status look_up_commit(struct hub_fetch *g, struct hub_client *client, int tries,
                                     char ret_commit[HD_HUB_COMMIT_MAX])
{
    static const struct hd_json_limits limits = {.values_max = INDEX_VALUES_MAX, .depth_max = 64};
    const char *revision = g->request.name->revision, *sha = NULL;
    const struct hd_json *root = NULL;
    struct hub_answer answer;
    struct hd_text url = {0}, text = {0};
    enum hd_status st = HD_OK;

    if (hub_is_commit(revision)) {
        memcpy(ret_commit, revision, HD_HUB_COMMIT_MAX);
        return HD_OK;
    }
    hub_add_api(&url, g->settings.endpoint, g->request.name);
    hd_text_add(&url, "revision/");
    hub_add_encoded(&url, revision, "");
    st = url.failed ? hd_err(HD_NO_MEMORY, "no memory for a path")
                    : ask_api(g, client, url.data, tries, &answer, &text);
    if (!st)
        st = hd_json_parse_repeated(g->arena, text.data ? text.data : "", text.len_bytes, &limits,
                                    &root);
    if (!st && (hd_json_need_string(root, "sha", &sha) || !hub_is_commit(sha)))
        st = HD_INVALID;
    if (st == HD_INVALID)
        st = hd_err(HD_CORRUPT, "%s does not answer as a hub does: no commit of %s", answer.host,
                    g->request.name->repo);
    if (!st)
        memcpy(ret_commit, sha, HD_HUB_COMMIT_MAX);
    hd_text_free(&url);
    hd_text_free(&text);
    return st;
}

/* Gets the list of the commit's files from the hub, page by page, and keeps it in the cache. */
static enum hd_status look_up_tree(struct hub_fetch *g, struct hub_client *client)
{
    char url[HUB_URL_MAX];
    struct hub_answer answer = {.status = 0};
    struct hd_text text = {0};
    const char *path = tree_path(g);
    enum hd_status st;

    hub_add_api(&text, g->settings.endpoint, g->request.name);
    hd_text_add(&text, "tree/%s?recursive=true&expand=false", g->tree.commit);
    st = text.failed || !path ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
    (void)snprintf(url, sizeof url, "%s", text.data ? text.data : "");
    g->tree.count = 0;
    g->tree.is_partial = false;
    while (!st) {
        st = ask_api(g, client, url, HUB_TRIES, &answer, &text);
        if (!st)
            st = hub_tree_add_page(&g->tree, text.data ? text.data : "", text.len_bytes, g->arena);
        if (st || !*answer.next)
            break;
        st = hub_next_page(url, &answer, &g->settings);
    }
    hub_tree_sort(&g->tree);
    if (!st)
        st = hub_tree_write(path, &g->tree);
    hd_text_free(&text);
    return st;
}

/* Asks the hub for commit and files. tries: number of tries of the first request. */
static enum hd_status look_up(struct hub_fetch *g, int tries)
{
    struct hub_client *client = NULL;
    char commit[HD_HUB_COMMIT_MAX];
    const char *path;
    enum hd_status st = hub_client_new(&g->settings, g->pool.stop, &client);

    if (!st)
        st = look_up_commit(g, client, tries, commit);
    if (!st)
        st = set_snapshot(g, commit);
    if (!st) {
        g->tree.is_partial = false;
        path = tree_path(g);
        st = path ? hub_tree_read(path, g->arena, &g->tree)
                  : hd_err(HD_NO_MEMORY, "no memory for a path");
        if (st == HD_NOT_FOUND)
            st = look_up_tree(g, client);
    }
    if (!st)
        st = pick_wanted(g);
    hub_client_free(client);
    return st;
}

/* ---- downloading ---- */

/* Lists the files that are not in the snapshot and checks that there is space for them. */
static enum hd_status find_missing(struct hub_fetch *g)
{
    int64_t needed = 0;

    g->missing = hd_arena_array(g->arena, g->file_count + 1, sizeof(const struct hd_hub_file *));
    if (!g->missing)
        return hd_err(HD_NO_MEMORY, "no memory for the list of files");
    for (size_t i = 0; i < g->file_count; i++) {
        const struct hd_hub_file *f = &g->files[i];
        char blob[PATH_MAX];
        struct stat info;

        if (hub_has_file(g->result->snapshot, f->path, f->size_bytes)) {
            g->pool.meter.bytes += f->size_bytes;
            g->pool.meter.files++;
            continue;
        }
        g->missing[g->missing_count++] = f;
        (void)snprintf(blob, sizeof blob, "%s/blobs/%s", g->folder.data, hub_etag(f));
        if (stat(blob, &info) == 0 && info.st_size == f->size_bytes)
            continue;
        needed += f->size_bytes;
        (void)snprintf(blob, sizeof blob, "%s/blobs/%s.incomplete", g->folder.data, hub_etag(f));
        if (stat(blob, &info) == 0 && info.st_size <= f->size_bytes)
            needed -= info.st_size;
    }
    return needed ? hd_file_check_space(g->folder.data, needed) : HD_OK;
}

/* Downloads a missing file, by its index. */
static enum hd_status get_missing(void *owner, struct hub_client *client, size_t i)
{
    struct hub_fetch *g = owner;

    return hub_download(client, &g->request, g->folder.data, g->tree.commit, g->missing[i],
                        &g->pool.meter);
}

static enum hd_status download_missing(struct hub_fetch *g)
{
    enum hd_status st;

    g->request.stop = &g->pool.end;
    g->pool.total_bytes = g->result->size_bytes;
    g->pool.total_files = g->file_count;
    st = hub_pool_run(&g->pool, g->missing_count);
    g->result->fetched_bytes = g->pool.meter.fetched;
    return st;
}

static enum hd_status download_wanted(struct hub_fetch *g)
{
    enum hd_status st = hd_file_make_dirs(g->folder.data, 0777);

    if (!st)
        st = find_missing(g);
    if (!st && g->missing_count)
        st = download_missing(g);
    /* last: until then the old commit of a branch is the one that is whole */
    if (!st)
        st = hub_write_ref(g->folder.data, g->request.name->revision, g->tree.commit);
    return st;
}

/* ---- all of it ---- */

/* Looks into the cache alone. cached: what find_cached returned. */
static enum hd_status take_cached(const struct hub_fetch *g, enum hd_status cached)
{
    if (cached != HD_NOT_FOUND || g->nothing_matches)
        return cached;
    return not_in_cache(g, g->settings.offline ? ", and HF_HUB_OFFLINE or --offline keeps from the "
                                                 "network"
                                               : "");
}

static enum hd_status find_or_download(struct hub_fetch *g)
{
    const bool is_commit = hub_is_commit(g->request.name->revision);
    const bool is_first = g->request.mode == HD_HUB_CACHE_FIRST;
    struct hd_error error;
    enum hd_status cached = find_cached(g), st;

    if (g->request.mode == HD_HUB_CACHE_ONLY || g->settings.offline)
        return take_cached(g, cached);
    if ((!cached && (is_first || is_commit || !hd_hub_can_download())) || cached == HD_NO_MEMORY)
        return cached;
    st = look_up(g, cached ? HUB_TRIES : 1);
    if (!st)
        return g->request.list_only ? HD_OK : download_wanted(g);
    if (st != HD_UNAVAILABLE && st != HD_TIMEOUT)
        return st;
    if (cached)
        return hd_err(st, "%s; and the cache %s has no whole copy of %s", hd_err_message(),
                      g->settings.cache, g->request.name->repo);
    hd_err_save(st, &error); /* the hub cannot be reached: what the cache has is whole */
    st = find_cached(g);
    g->result->unreachable = !st;
    (void)hd_err_restore(&error);
    return st;
}

/* Sets the real path of the cache, without links on the way; it need not exist. */
static enum hd_status settle_cache(struct hub_fetch *g)
{
    char real[PATH_MAX];

    if (realpath(g->settings.cache, real))
        memcpy(g->settings.cache, real, sizeof real);
    else if (errno != ENOENT)
        return hd_err(HD_IO, "the cache %s cannot be used: %s", g->settings.cache, strerror(errno));
    hub_add_folder(&g->folder, g->settings.cache, g->request.name);
    return g->folder.failed ? hd_err(HD_NO_MEMORY, "no memory for a path") : HD_OK;
}

enum hd_status hd_hub_get(const struct hd_hub_request *request, struct hd_arena *arena,
                          struct hd_hub_result *ret_result)
{
    struct hub_fetch *g = calloc(1, sizeof *g);
    enum hd_status st;

    if (!g)
        return hd_err(HD_NO_MEMORY, "no memory for a download");
    *ret_result = (struct hd_hub_result){.file_count = 0};
    g->request = *request;
    g->settings = *request->settings;
    g->request.settings = &g->settings;
    g->pool = (struct hub_pool){.settings = &g->settings,
                                .get = get_missing,
                                .owner = g,
                                .progress = request->progress,
                                .user = request->user,
                                .stop = request->stop};
    g->arena = arena;
    g->result = ret_result;
    st = settle_cache(g);
    if (!st)
        st = find_or_download(g);
    if (!st) {
        ret_result->files = g->files;
        ret_result->file_count = g->file_count;
    }
    explicit_bzero(&g->settings, sizeof g->settings);
    hd_text_free(&g->folder);
    free(g);
    return st;
}
