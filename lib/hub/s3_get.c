/* s3_get: finds out which objects a name means, and gets them into the cache.
 *
 *     name --look up--> objects --filter--> wanted --download--> objects/ID/NAME
 *                                                  --a folder's--> folders/ID
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/folder.h"
#include "s3_internal.h"

enum { NAMES_BYTES_MAX = 256 << 20 };

struct s3_fetch {
    const struct hd_s3_request *request;
    const struct hd_s3_settings *settings;
    const struct hd_s3_name *name;
    struct hd_s3 *s3;
    struct hd_arena *arena;
    struct hd_s3_result *result;
    char cache[PATH_MAX];
    struct s3_list list; /* objects that the name means, with those that are not wanted */
    size_t below;        /* bytes of a key in front of its path in the folder */
    bool is_one;         /* the name is that of one object */
    bool is_folder;      /* the result is a folder: a model, a checkpoint, a saved set */
    struct s3_want *wants;
    size_t count;
    const struct s3_want **missing;
    size_t missing_count;

    struct hub_pool pool;
};

/* ---- which objects ---- */

static bool has_wildcards(const char *key)
{
    return strpbrk(key, "*?[");
}

/* Adds the objects of a pattern. */
static enum hd_status list_pattern(struct s3_fetch *g, struct hub_client *client)
{
    const char *key = g->name->key;
    const char *prefix = hd_arena_printf(g->arena, "%.*s", (int)strcspn(key, "*?[\\"), key);
    struct s3_list all = {.count = 0};
    enum hd_status st =
        prefix ? s3_list_objects(g->s3, client, g->name->bucket, prefix, g->arena, &all)
               : hd_err(HD_NO_MEMORY, "no memory for a list of objects");

    /* the .idx files are kept for the .bin files that the pattern matches */
    for (int i = 0; i < all.count && !st; i++)
        if (fnmatch(key, all.items[i].key, FNM_PATHNAME | FNM_PERIOD) == 0 ||
            hd_text_ends(all.items[i].key, ".idx"))
            st = s3_list_add(&g->list, all.items[i].key, all.items[i].etag, all.items[i].size_bytes,
                             g->arena);
    return st;
}

/* Adds the object of this key. HD_NOT_FOUND, without a message: there is none. */
static enum hd_status add_head(struct s3_fetch *g, struct hub_client *client, const char *key)
{
    const struct s3_call call = {
        .method = "HEAD", .bucket = g->name->bucket, .key = key, .may_lack = true};
    struct hub_answer answer;
    enum hd_status st = s3_send(g->s3, client, &call, &answer);

    if (!st && (answer.length < 0 || !*answer.etag))
        st = hd_err(HD_CORRUPT, "%s tells neither size nor ETag of s3://%s/%s", answer.host,
                    g->name->bucket, key);
    return st ? st : s3_list_add(&g->list, key, answer.etag, answer.length, g->arena);
}

/* Adds one object, and the index of a .bin file. HD_NOT_FOUND: there is none. */
static enum hd_status list_one(struct s3_fetch *g, struct hub_client *client)
{
    const char *key = g->name->key;
    enum hd_status st = add_head(g, client, key);

    g->is_one = !st;
    if (!st && hd_text_ends(key, ".bin")) {
        const char *index = hd_arena_printf(g->arena, "%.*s.idx", (int)strlen(key) - 4, key);

        st = index ? add_head(g, client, index)
                   : hd_err(HD_NO_MEMORY, "no memory for a list of objects");
        if (st == HD_NOT_FOUND || st == HD_DENIED) /* a .bin of llm.c has none */
            st = HD_OK;
    }
    return st;
}

static enum hd_status s3_list_folder(struct s3_fetch *g, struct hub_client *client)
{
    const char *key = g->name->key;
    const char *prefix =
        hd_arena_printf(g->arena, "%s%s", key, !*key || hd_text_ends(key, "/") ? "" : "/");

    if (!prefix)
        return hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    g->below = strlen(prefix);
    return s3_list_objects(g->s3, client, g->name->bucket, prefix, g->arena, &g->list);
}

static enum hd_status s3_look_up(struct s3_fetch *g)
{
    struct hub_client *client = NULL;
    const char *key = g->name->key;
    enum hd_status st = hub_client_new(&g->s3->http, g->request->stop, &client);

    if (st)
        return st;
    if (g->request->is_data && has_wildcards(key)) {
        st = list_pattern(g, client);
    } else if (!g->request->is_data || !*key || hd_text_ends(key, "/")) {
        st = s3_list_folder(g, client);
    } else {
        st = list_one(g, client);
        if (st == HD_NOT_FOUND)
            st = s3_list_folder(g, client);
    }
    hub_client_free(client);
    return st;
}

/* ---- what the cache remembers of a name ---- */

static char *names_path(struct s3_fetch *g)
{
    struct hd_text identity = {0};
    char id[S3_ID_MAX];

    hd_text_add(&identity, "%s\n%s\n%s\n%d", g->settings->endpoint, g->name->bucket, g->name->key,
                g->request->is_data);
    s3_make_id(&identity, id);
    hd_text_free(&identity);
    return hd_arena_printf(g->arena, "%s/names/%s", g->cache, id);
}

static enum hd_status remember(struct s3_fetch *g)
{
    struct hd_text text = {0};
    const char *path = names_path(g);
    enum hd_status st;

    hd_text_add(&text, "%d %zu\n", g->is_one, g->below);
    for (int i = 0; i < g->list.count; i++)
        hd_text_add(&text, "%lld %s %s\n", (long long)g->list.items[i].size_bytes,
                    g->list.items[i].etag, g->list.items[i].key);
    st = text.failed || !path ? hd_err(HD_NO_MEMORY, "no memory for a list of objects")
                              : hub_write_file(path, text.data, text.len_bytes);
    hd_text_free(&text);
    return st;
}

/* Reads the objects that the name meant when it was last looked up. HD_NOT_FOUND: it never was. */
static enum hd_status recall(struct s3_fetch *g)
{
    const char *path = names_path(g);
    struct hd_text text = {0};
    enum hd_status st = path ? hd_file_read(path, NAMES_BYTES_MAX, &text)
                             : hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    char *line = text.data;
    int is_one;

    g->list.count = 0;
    if (!st && (!line || sscanf(line, "%d %zu", &is_one, &g->below) != 2))
        st = HD_NOT_FOUND;
    g->is_one = !st && is_one;
    for (line = st ? NULL : strchr(line, '\n'); !st && line && line[1]; line = strchr(line, '\n')) {
        char *end = strchr(++line, '\n'), etag[160];
        long long size;
        int at = 0;

        if (!end || sscanf(line, "%lld %159s %n", &size, etag, &at) != 2 || !at) {
            st = HD_NOT_FOUND;
            break;
        }
        *end = '\0';
        st = s3_list_add(&g->list, line + at, etag, size, g->arena);
        *end = '\n';
    }
    hd_text_free(&text);
    return st && st != HD_NO_MEMORY ? HD_NOT_FOUND : st;
}

/* ---- which of them are wanted ---- */

static const char *rel_of(const struct s3_fetch *g, const struct s3_object *o)
{
    return o->key + g->below;
}

static const struct s3_object *find_rel(const struct s3_fetch *g, const char *rel)
{
    for (int i = 0; i < g->list.count; i++)
        if (strcmp(rel_of(g, &g->list.items[i]), rel) == 0)
            return &g->list.items[i];
    return NULL;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct s3_object *)a)->key, ((const struct s3_object *)b)->key);
}

/* Returns the .idx beside a .bin file; NULL: there is none. */
static const struct s3_object *find_index(const struct s3_fetch *g, const struct s3_object *o)
{
    char key[HD_S3_KEY_MAX];
    const struct s3_object wanted = {.key = key};

    if (!hd_text_ends(o->key, ".bin") || strlen(o->key) >= sizeof key)
        return NULL;
    (void)snprintf(key, sizeof key, "%.*s.idx", (int)strlen(o->key) - 4, o->key);
    return bsearch(&wanted, g->list.items, (size_t)g->list.count, sizeof wanted, by_key);
}

/* Makes a tree of the folder, for the rules about a model's files. */
static enum hd_status make_tree(struct s3_fetch *g, struct hub_tree *tree)
{
    enum hd_status st = HD_OK;

    for (int i = 0; i < g->list.count && !st; i++) {
        const struct hd_hub_file file = {.path = rel_of(g, &g->list.items[i])};

        st = hub_tree_add(tree, &file, g->arena);
    }
    hub_tree_sort(tree);
    return st;
}

static enum hd_status s3_found_nothing(const struct s3_fetch *g)
{
    const struct hd_s3_name *n = g->name;

    if (!g->list.count)
        return hd_err(HD_NOT_FOUND, "there is nothing at s3://%s/%s", n->bucket, n->key);
    if (g->request->is_data)
        return hd_err(HD_NOT_FOUND,
                      "s3://%s/%s has %d objects, and none that looks like data, such as %s; name "
                      "them by a pattern, such as s3://%s/%s*.jsonl",
                      n->bucket, n->key, g->list.count, g->list.items[0].key, n->bucket, n->key);
    if (strstr(n->key, "step-"))
        return hd_err(HD_NOT_FOUND,
                      "s3://%s/%s is no whole copy of a checkpoint: it has no manifest.json, which "
                      "is written last; heddle checkpoint ls shows the copies of a job",
                      n->bucket, n->key);
    return hd_err(HD_NOT_FOUND,
                  "s3://%s/%s is no model: it has neither config.json nor manifest.json, but "
                  "objects such as %s",
                  n->bucket, n->key, g->list.items[0].key);
}

/* Chooses the files of a model or of a checkpoint; *ret_takes: by index. */
static enum hd_status choose_model(struct s3_fetch *g, bool *takes)
{
    const bool is_checkpoint = find_rel(g, "manifest.json");
    const bool is_model = find_rel(g, "config.json") || find_rel(g, "adapter_config.json") ||
                          find_rel(g, "params.json");
    struct hub_tree tree = {.count = 0};
    enum hd_status st = is_checkpoint ? HD_OK : make_tree(g, &tree);

    g->is_folder = true;
    if (!is_checkpoint && !is_model)
        return st ? st : s3_found_nothing(g);
    for (int i = 0; i < g->list.count && !st; i++) {
        const char *rel = rel_of(g, &g->list.items[i]);

        takes[i] = hub_path_is_safe(rel) && (is_checkpoint || hub_is_model_file(&tree, rel));
    }
    return st;
}

static void choose_data(struct s3_fetch *g, bool *takes)
{
    const bool is_pattern = has_wildcards(g->name->key) && !g->is_one && !g->below;
    const bool is_set = g->below && find_rel(g, "state.json");

    g->is_folder = is_set;
    for (int i = 0; i < g->list.count; i++) {
        const char *rel = rel_of(g, &g->list.items[i]);

        if (hd_text_ends(rel, ".idx") && (g->is_one ? i > 0 : !is_set))
            continue;
        takes[i] = g->is_one || is_pattern ? true
                   : is_set                ? !strchr(rel, '/') && hub_path_is_safe(rel)
                                           : hub_is_data_file(rel);
    }
}

static enum hd_status s3_choose(struct s3_fetch *g)
{
    bool *takes = hd_arena_array(g->arena, (size_t)g->list.count + 1, sizeof *takes);
    enum hd_status st = HD_OK;

    g->wants = hd_arena_array(g->arena, (size_t)g->list.count + 1, sizeof *g->wants);
    if (!takes || !g->wants)
        return hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    memset(takes, 0, ((size_t)g->list.count + 1) * sizeof *takes);
    if (g->list.count)
        qsort(g->list.items, (size_t)g->list.count, sizeof g->list.items[0], by_key);
    if (g->is_one && g->list.count > 1 && hd_text_ends(g->list.items[1].key, ".bin"))
        return hd_err(HD_INTERNAL, "the index of a file comes in front of it");
    if (g->request->is_data)
        choose_data(g, takes);
    else
        st = choose_model(g, takes);
    g->count = 0;
    g->result->size_bytes = 0;
    for (int i = 0; i < g->list.count && !st; i++) {
        struct s3_want *want = &g->wants[g->count];

        if (!takes[i])
            continue;
        *want = (struct s3_want){.object = &g->list.items[i], .rel = rel_of(g, &g->list.items[i])};
        want->index = g->is_folder ? NULL : find_index(g, want->object);
        st = s3_name_want(g->settings, g->cache, g->name->bucket, want);
        g->result->size_bytes += want->object->size_bytes;
        g->count++;
    }
    return st ? st : g->count ? HD_OK : s3_found_nothing(g);
}

/* ---- downloading ---- */

/* Downloads the index of a .bin file, and links it beside that. */
static enum hd_status get_index(struct s3_fetch *g, struct hub_client *client,
                                const struct s3_want *want)
{
    struct s3_want index = {.object = want->index};
    char beside[PATH_MAX];
    enum hd_status st;

    if (!want->index)
        return HD_OK;
    st = s3_name_want(g->settings, g->cache, g->name->bucket, &index);
    if (!st && !s3_has(&index))
        st = s3_download(g->s3, client, g->cache, g->name->bucket, &index, &g->pool.meter,
                         &g->pool.end);
    (void)snprintf(beside, sizeof beside, "%.*s.idx", (int)strlen(want->path) - 4, want->path);
    if (!st && link(index.path, beside) < 0 && errno != EEXIST)
        st = hd_err(hd_file_write_status(errno), "cannot link %s to %s: %s", beside, index.path,
                    hd_file_error_text(errno));
    return st;
}

static bool has_index(const struct s3_want *want)
{
    char beside[PATH_MAX];

    (void)snprintf(beside, sizeof beside, "%.*s.idx", (int)strlen(want->path) - 4, want->path);
    return !want->index || hd_file_exists(beside);
}

/* Downloads a missing object and its index, by the object's index. */
static enum hd_status s3_get_missing(void *owner, struct hub_client *client, size_t i)
{
    struct s3_fetch *g = owner;
    const enum hd_status st = s3_download(g->s3, client, g->cache, g->name->bucket, g->missing[i],
                                          &g->pool.meter, &g->pool.end);

    return st ? st : get_index(g, client, g->missing[i]);
}

/* Runs threads until all missing objects are there, or one has failed. */
static enum hd_status s3_download_missing(struct s3_fetch *g)
{
    enum hd_status st;

    g->pool.settings = &g->s3->http;
    g->pool.slow = &g->s3->slow;
    g->pool.total_bytes = g->result->size_bytes;
    g->pool.total_files = g->count;
    st = hub_pool_run(&g->pool, g->missing_count);
    g->result->fetched_bytes = g->pool.meter.fetched;
    return st;
}

/* Lists what the cache lacks. */
static enum hd_status s3_find_missing(struct s3_fetch *g)
{
    int64_t needed = 0;

    g->missing_count = 0;
    g->missing = hd_arena_array(g->arena, g->count + 1, sizeof *g->missing);
    if (!g->missing)
        return hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    g->pool.meter.bytes = g->pool.meter.files = 0;
    for (size_t i = 0; i < g->count; i++) {
        if (s3_has(&g->wants[i]) && has_index(&g->wants[i])) {
            g->pool.meter.bytes += g->wants[i].object->size_bytes;
            g->pool.meter.files++;
        } else {
            g->missing[g->missing_count++] = &g->wants[i];
            needed += g->wants[i].object->size_bytes;
        }
    }
    if (needed && !g->request->cache_only)
        return hd_file_check_space(g->cache, needed);
    return HD_OK;
}

static enum hd_status s3_download_wanted(struct s3_fetch *g)
{
    static const char *const folders[] = {"objects", "folders", "names", "locks"};
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && !st; i++) {
        const char *path = hd_arena_printf(g->arena, "%s/%s", g->cache, folders[i]);

        st = path ? hd_file_make_dirs(path, 0755)
                  : hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    }
    if (!st)
        st = s3_find_missing(g);
    /* threads end early at a store that is too busy: another round gets what they left */
    while (!st && g->missing_count) {
        st = s3_download_missing(g);
        if (!st)
            st = s3_find_missing(g);
    }
    return st ? st : remember(g);
}

/* ---- the result ---- */

static enum hd_status s3_link_file(struct s3_fetch *g, const char *part, const struct s3_want *want)
{
    char *path = hd_arena_printf(g->arena, "%s/%s", part, want->rel);
    enum hd_status st;

    if (!path)
        return hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    st = hd_folder_make_of(path, 0755);
    if (!st && link(want->path, path) < 0)
        st = hd_err(hd_file_write_status(errno),
                    "cannot link %s to %s: %s; the cache needs a file system with hard links: set "
                    "HEDDLE_S3_CACHE",
                    path, want->path, hd_file_error_text(errno));
    return st;
}

/* Makes folders/ID of the wanted files, whole or not at all. */
static enum hd_status make_folder(struct s3_fetch *g)
{
    struct hd_text identity = {0}, text = {0};
    char id[S3_ID_MAX], *folder, *part, *source;
    enum hd_status st = HD_OK;

    for (size_t i = 0; i < g->count; i++)
        hd_text_add(&identity, "%s %s\n", g->wants[i].id, g->wants[i].rel);
    s3_make_id(&identity, id);
    hd_text_add(&text, "s3://%s/%s\n", g->name->bucket, g->name->key);
    folder = hd_arena_printf(g->arena, "%s/folders/%s", g->cache, id);
    part = hd_arena_printf(g->arena, "%s/folders/part-XXXXXX", g->cache);
    source = hd_arena_printf(g->arena, "%s.source", folder ? folder : "");
    if (identity.failed || text.failed || !folder || !part || !source)
        st = hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    g->result->paths = folder;
    if (!st && !hd_file_exists(folder)) {
        if (!mkdtemp(part))
            st = hd_err(hd_file_write_status(errno), "cannot make a folder in %s/folders: %s",
                        g->cache, hd_file_error_text(errno));
        for (size_t i = 0; i < g->count && !st; i++)
            st = s3_link_file(g, part, &g->wants[i]);
        if (!st && chmod(part, 0755) < 0)
            st = hd_err(HD_IO, "cannot open %s to others: %s", part, strerror(errno));
        if (!st)
            st = hub_write_file(source, text.data, text.len_bytes);
        if (!st && rename(part, folder) < 0 && !hd_file_exists(folder))
            st = hd_err(hd_file_write_status(errno), "cannot make %s: %s", folder,
                        hd_file_error_text(errno));
        (void)hd_file_remove_tree(part); /* it is there if another process was faster */
    }
    hd_text_free(&identity);
    hd_text_free(&text);
    return st;
}

void hub_add_exact(struct hd_text *out, const char *path)
{
    const char *name = strrchr(path, '/') + 1;

    /* [!, [^ and [\ begin other sets, and a byte of a character of UTF-8 is no set */
    while (*name && (strchr("!^\\", *name) || (unsigned char)*name >= 0x80))
        name++;
    for (const char *at = path; *at; at++) {
        if (at == name || strchr("*?[", *at))
            hd_text_add(out, "[%c]", *at);
        else
            hd_text_add(out, *at == '\\' ? "\\%c" : "%c", *at);
    }
}

static enum hd_status list_paths(struct s3_fetch *g)
{
    struct hd_text out = {0};
    enum hd_status st;

    if (g->is_one)
        hd_text_add(&out, "%s", g->wants[0].path);
    for (size_t i = 0; i < g->count && !g->is_one; i++) {
        hd_text_add(&out, i ? "\n" : "%s", "");
        hub_add_exact(&out, g->wants[i].path);
    }
    g->result->paths = out.failed ? NULL : hd_arena_strdup(g->arena, out.data);
    st = g->result->paths ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    hd_text_free(&out);
    return st;
}

static enum hd_status list_files(struct s3_fetch *g)
{
    struct hd_s3_file *files = hd_arena_array(g->arena, g->count + 1, sizeof *files);

    for (size_t i = 0; i < g->count && files; i++) {
        const char *key = g->wants[i].object->key, *slash = strrchr(key, '/');

        files[i] = (struct hd_s3_file){.rel = g->below ? g->wants[i].rel
                                              : slash  ? slash + 1
                                                       : key,
                                       .path = g->wants[i].path,
                                       .size_bytes = g->wants[i].object->size_bytes};
    }
    g->result->files = files;
    g->result->file_count = g->count;
    return files ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a list of objects");
}

/* ---- all of it ---- */

/* Takes what the cache remembers. HD_NOT_FOUND: it has not all of it. */
static enum hd_status s3_take_cached(struct s3_fetch *g)
{
    enum hd_status st = recall(g);

    if (!st)
        st = s3_choose(g);
    if (!st)
        st = s3_find_missing(g);
    return st ? st : g->missing_count ? HD_NOT_FOUND : HD_OK;
}

static enum hd_status s3_find_or_download(struct s3_fetch *g)
{
    struct hd_error error;
    enum hd_status st;

    if (g->request->cache_only) {
        st = s3_take_cached(g);
        return st == HD_NOT_FOUND ? hd_err(st, "s3://%s/%s is not, or not whole, in the cache %s",
                                           g->name->bucket, g->name->key, g->cache)
                                  : st;
    }
    st = s3_look_up(g);
    if (!st)
        st = s3_choose(g);
    if (!st)
        return s3_download_wanted(g);
    if (st != HD_UNAVAILABLE && st != HD_TIMEOUT && st != HD_UNSUPPORTED)
        return st;
    hd_err_save(st, &error); /* the store cannot be reached, or there is no libcurl: the cache may
                              * have all of it */
    st = s3_take_cached(g);
    g->result->unreachable = !st;
    return hd_err_restore(&error) && st ? error.status : st;
}

/* Sets the real path of the cache, without links on the way; it need not exist. */
static enum hd_status s3_settle_cache(struct s3_fetch *g)
{
    if (!*g->settings->cache)
        return hd_err(HD_INVALID, "neither HEDDLE_S3_CACHE nor HOME is set, so there is no folder "
                                  "for objects; set HEDDLE_S3_CACHE");
    if (!realpath(g->settings->cache, g->cache)) {
        if (errno != ENOENT)
            return hd_err(HD_IO, "the cache %s cannot be used: %s", g->settings->cache,
                          strerror(errno));
        memcpy(g->cache, g->settings->cache, sizeof g->cache);
    }
    return HD_OK;
}

enum hd_status hd_s3_get(const struct hd_s3_request *request, struct hd_arena *arena,
                         struct hd_s3_result *ret_result)
{
    struct s3_fetch *g = calloc(1, sizeof *g);
    enum hd_status st;

    if (!g)
        return hd_err(HD_NO_MEMORY, "no memory for a list of objects");
    *ret_result = (struct hd_s3_result){.file_count = 0};
    g->request = request;
    g->settings = request->settings;
    g->name = request->name;
    g->arena = arena;
    g->result = ret_result;
    g->pool = (struct hub_pool){.get = s3_get_missing,
                                .owner = g,
                                .progress = request->progress,
                                .user = request->user,
                                .stop = request->stop};
    st = s3_settle_cache(g);
    if (!st)
        st = hd_s3_new(request->settings, request->stop, &g->s3);
    if (!st)
        st = s3_find_or_download(g);
    if (!st)
        st = g->is_folder ? make_folder(g) : list_paths(g);
    if (!st)
        st = list_files(g);
    hd_s3_free(g->s3);
    free(g);
    return st;
}
