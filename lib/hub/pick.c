/* pick: chooses the files of a repository that are wanted.
 *
 * A model: the files that lib/hf reads and an export copies, which are weights as safetensors,
 * settings, tokenizer, templates and licences, at the top of the repository. A data set: all files.
 * Neither: code, and files that run code when they are loaded (pickles).
 */
#include <fnmatch.h>
#include <string.h>
#include <strings.h>

#include "hub_internal.h"

/* Patterns of a model's files, without folders but that of further templates. */
static const char *const model_files[] = {
    "*.safetensors", "*.json",   "*.jinja", "tokenizer.model", "merges.txt",
    "vocab.txt",     "LICENSE*", "NOTICE*", "USE_POLICY.md",   "additional_chat_templates/*.jinja"};

/* Suffixes that are never downloaded: code, and files that may run code when they are loaded. */
static const char *const code[] = {".py", ".pyc", ".so", ".dll", ".dylib", ".sh", ".exe", ".ipynb"};
static const char *const pickles[] = {".pkl",    ".pickle", ".pt", ".pth",   ".ckpt",
                                      ".joblib", ".npz",    ".h5", ".keras", ".msgpack"};
/* Suffix that is a pickle in a model and tokens in a data set. */
#define MODEL_PICKLE ".bin"

static bool ends_in_any(const char *path, const char *const *endings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (hd_text_ends(path, endings[i]))
            return true;
    return false;
}

static bool is_pickle(const char *path, bool is_dataset)
{
    return ends_in_any(path, pickles, sizeof pickles / sizeof pickles[0]) ||
           (!is_dataset && hd_text_ends(path, MODEL_PICKLE));
}

bool hub_is_forbidden(const char *path, bool is_dataset)
{
    return is_pickle(path, is_dataset) || ends_in_any(path, code, sizeof code / sizeof code[0]);
}

/* Returns whether a pattern matches a path; "dir/" matches all below it. */
static bool matches(const char *pattern, const char *path, bool by_folder)
{
    const size_t n = strlen(pattern);

    if (n && pattern[n - 1] == '/')
        return strncmp(pattern, path, n) == 0;
    if (!strpbrk(pattern, "*?[\\")) /* no pattern: spares fnmatch, which is slow */
        return strcmp(pattern, path) == 0;
    return strcmp(pattern, path) == 0 ||
           fnmatch(pattern, path, by_folder ? FNM_PATHNAME | FNM_PERIOD : 0) == 0;
}

static bool matches_any(const char *const *patterns, size_t count, const char *path, bool by_folder)
{
    for (size_t i = 0; i < count; i++)
        if (matches(patterns[i], path, by_folder))
            return true;
    return false;
}

/* Returns whether a file holds a second copy of the weights: Mistral's consolidated files and
 * precisions beside model.safetensors. transformers does not load them either. */
static bool is_second_copy(const struct hub_tree *tree, const char *path)
{
    const bool is_numbered = hd_text_starts(path, "model-") && strstr(path, "-of-");

    if (!hd_text_ends(path, ".safetensors") || hd_text_starts(path, "adapter_"))
        return false;
    if (hub_tree_find(tree, "model.safetensors"))
        return strcmp(path, "model.safetensors") != 0;
    return hub_tree_find(tree, "model.safetensors.index.json") && !is_numbered &&
           hd_text_starts(path, "consolidated");
}

bool hub_is_model_file(const struct hub_tree *tree, const char *path)
{
    return !hub_is_forbidden(path, false) &&
           matches_any(model_files, sizeof model_files / sizeof model_files[0], path, true) &&
           !is_second_copy(tree, path);
}

bool hub_is_data_file(const char *path)
{
    static const char *const suffixes[] = {".parquet", ".arrow", ".jsonl", ".ndjson", ".json",
                                           ".csv",     ".tsv",   ".txt",   ".npy",    ".bin"};
    static const char *const others[] = {"readme",       "license",      "requirements.txt",
                                         "dataset_info", "dataset_dict", "state.json"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    bool is_data = false;

    if (strstr(path, "/.") || path[0] == '.' || name[0] == '_')
        return false;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncasecmp(name, others[i], strlen(others[i])) == 0)
            return false;
    n -= hd_text_ends(name, ".gz") ? 3 : hd_text_ends(name, ".zst") ? 4 : 0;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0] && !is_data; i++)
        is_data = n > strlen(suffixes[i]) && strncasecmp(name + n - strlen(suffixes[i]),
                                                         suffixes[i], strlen(suffixes[i])) == 0;
    return is_data;
}

static bool is_wanted(const struct hd_hub_request *r, const struct hub_tree *tree, const char *path)
{
    const bool is_dataset = r->name->is_dataset;

    if (hub_is_forbidden(path, is_dataset) ||
        matches_any(r->exclude, r->exclude_count, path, r->by_folder))
        return false;
    if (r->include_count)
        return matches_any(r->include, r->include_count, path, r->by_folder);
    if (is_dataset)
        return strcmp(path, ".gitattributes") != 0;
    return hub_is_model_file(tree, path);
}

/* Lists up to eight files of the tree, for a message. */
static void list_some(const struct hub_tree *tree, bool is_dataset, struct hd_text *out)
{
    int shown = 0;

    for (int i = 0; i < tree->count; i++) {
        const char *path = tree->files[i].path;

        if (path[0] == '.' || hub_is_forbidden(path, is_dataset) || strcmp(path, "README.md") == 0)
            continue;
        if (shown++ < 8)
            hd_text_add(out, "%s%s", shown > 1 ? ", " : "", path);
    }
    if (shown > 8)
        hd_text_add(out, " and %d more", shown - 8);
    if (!shown)
        hd_text_add(out, "no files that could be read");
}

static enum hd_status found_nothing(const struct hd_hub_request *r, const struct hub_tree *tree)
{
    struct hd_text some = {0};
    enum hd_status st;

    list_some(tree, r->name->is_dataset, &some);
    st = hd_err(HD_NOT_FOUND, "%s@%s has no file %s%s; it has %s", r->name->repo, r->name->revision,
                r->include_count ? "that matches " : "that Heddle reads",
                r->include_count ? r->include[0] : "", some.failed ? "" : some.data);
    hd_text_free(&some);
    return st;
}

/* Refuses patterns that match forbidden files alone. */
static enum hd_status refuse_forbidden(const struct hd_hub_request *r, const struct hub_tree *tree)
{
    for (size_t k = 0; k < r->include_count; k++) {
        const char *forbidden = NULL;
        bool other = false;

        for (int i = 0; i < tree->count; i++) {
            const char *path = tree->files[i].path;

            if (!matches(r->include[k], path, r->by_folder))
                continue;
            if (hub_is_forbidden(path, r->name->is_dataset))
                forbidden = path;
            else
                other = true;
        }
        if (forbidden && !other)
            return hd_err(HD_INVALID,
                          "%s of %s is code, or runs code when it is loaded (a pickle), and is not "
                          "downloaded; convert it to safetensors or JSON where it is trusted",
                          forbidden, r->name->repo);
    }
    return HD_OK;
}

/* Refuses a model whose weights are pickles alone. */
static enum hd_status need_safetensors(const struct hd_hub_request *r, const struct hub_tree *tree,
                                       const struct hd_hub_file *files, size_t count)
{
    const char *pickle = NULL;

    for (size_t i = 0; i < count; i++)
        if (hd_text_ends(files[i].path, ".safetensors"))
            return HD_OK;
    for (int i = 0; i < tree->count && !pickle; i++) {
        const char *path = tree->files[i].path;

        if (!strchr(path, '/') && is_pickle(path, false))
            pickle = path;
    }
    if (pickle)
        return hd_err(HD_INVALID,
                      "%s@%s has its weights as %s alone, a format that runs code when it is "
                      "loaded. The hub's conversion bot may have made safetensors of it: look for "
                      "a pull request of the repository, and write %s@refs/pr/N; or convert it "
                      "with transformers (save_pretrained) where it is trusted",
                      r->name->repo, r->name->revision, pickle, r->name->repo);
    return HD_OK;
}

enum hd_status hub_pick(const struct hd_hub_request *request, const struct hub_tree *tree,
                        struct hd_arena *arena, struct hd_hub_file **ret_files, size_t *ret_count)
{
    struct hd_hub_file *files = hd_arena_array(arena, (size_t)tree->count + 1, sizeof *files);
    enum hd_status st = files ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for the list of files");
    size_t count = 0;

    if (!st)
        st = refuse_forbidden(request, tree);
    for (int i = 0; i < tree->count && !st; i++)
        if (is_wanted(request, tree, tree->files[i].path))
            files[count++] = tree->files[i];
    if (!st && !request->name->is_dataset && !request->include_count)
        st = need_safetensors(request, tree, files, count);
    if (!st && !count)
        st = found_nothing(request, tree);
    for (size_t i = 0; i < count && !st; i++)
        if (files[i].size_bytes > HUB_PLAIN_BYTES_MAX && !tree->is_partial && !request->list_only)
            st = hd_err(HD_UNSUPPORTED,
                        "%s of %s has more than 50 GB, which the hub does not serve by plain HTTP; "
                        "fetch it with huggingface_hub: hf download %s%s %s",
                        files[i].path, request->name->repo,
                        request->name->is_dataset ? "--repo-type dataset " : "",
                        request->name->repo, files[i].path);
    *ret_files = files;
    *ret_count = count;
    return st;
}
