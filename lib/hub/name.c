/* name: names of repositories, their paths and URLs. */
#include <ctype.h>
#include <string.h>

#include "base/digits.h"
#include "hub_internal.h"

#define SCHEME "hf://"

bool hd_hub_is_name(const char *text)
{
    return hd_text_starts(text, SCHEME);
}

static bool is_hex(const char *text, size_t count)
{
    return strspn(text, HD_HEX_DIGITS) >= count;
}

bool hub_is_commit(const char *revision)
{
    return strlen(revision) == 40 && is_hex(revision, 40);
}

bool hub_is_hash(const char *text)
{
    const size_t count = strlen(text);

    return (count == 40 || count == 64) && is_hex(text, count);
}

/* Returns whether a part of a path, between slashes, names a file or folder and nothing else. */
static bool part_is_safe(const char *part, size_t count)
{
    if (count == 0 || (count == 1 && part[0] == '.') || (count == 2 && memcmp(part, "..", 2) == 0))
        return false;
    for (size_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)part[i];

        if (c < 0x20 || c == 0x7f || c == '\\')
            return false;
        if (c == '%' && count - i > 2 && (part[i + 1] == '2' || part[i + 1] == '5') &&
            strchr("eEfFcC5", part[i + 2])) /* %2e, %2f, %5c, %25: dots and slashes of a decoder */
            return false;
    }
    return true;
}

bool hub_path_is_safe(const char *path)
{
    if (strlen(path) >= HD_HUB_PATH_MAX || !hd_text_is_utf8(path, strlen(path)))
        return false;
    for (const char *at = path;; at++) {
        const size_t n = strcspn(at, "/");

        if (!part_is_safe(at, n))
            return false;
        at += n;
        if (!*at)
            return true;
    }
}

/* Checks ORG or NAME by the hub's rule. It has no "--", because the cache writes ORG/NAME as
 * ORG--NAME. */
static bool part_of_repo_is_possible(const char *text, size_t count)
{
    if (count == 0 || count > 96 || text[0] == '.' || text[0] == '-' || text[count - 1] == '.' ||
        text[count - 1] == '-')
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i]))
            return false;
        if (i && text[i] == text[i - 1] && (text[i] == '.' || text[i] == '-'))
            return false;
    }
    return true;
}

bool hd_hub_is_repo(const char *text)
{
    const char *slash = strchr(text, '/');

    return slash && strlen(text) < HD_HUB_REPO_MAX &&
           part_of_repo_is_possible(text, (size_t)(slash - text)) &&
           part_of_repo_is_possible(slash + 1, strlen(slash + 1));
}

void hub_copy_clean(const char *text, char *ret_text, size_t size)
{
    size_t n = 0;

    for (; text[n] && n + 1 < size; n++)
        ret_text[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    ret_text[n] = '\0';
}

static enum hd_status refuse(const char *text, const char *why)
{
    char clean[HD_HUB_PATH_MAX];

    hub_copy_clean(text, clean, sizeof clean);
    return hd_err(HD_INVALID, "%.300s: %s", clean, why);
}

/* Copies a revision, with %2F as a slash. */
static bool copy_revision(const char *text, size_t count, char ret_revision[HD_HUB_REVISION_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        char c = text[i];

        if (c == '%' && count - i > 2 && hd_hex_digit(text[i + 1]) >= 0 &&
            hd_hex_digit(text[i + 2]) >= 0) {
            c = (char)(hd_hex_digit(text[i + 1]) << 4 | hd_hex_digit(text[i + 2]));
            i += 2;
        }
        if (n + 1 == HD_HUB_REVISION_MAX)
            return false;
        ret_revision[n++] = c;
    }
    ret_revision[n] = '\0';
    return strlen(ret_revision) == n && hub_path_is_safe(ret_revision);
}

/* Returns the bytes of the revision at `at`: up to a slash, but refs/pr/N and refs/convert/N
 * whole. */
static size_t revision_length(const char *at)
{
    size_t n = strcspn(at, "/");

    if (hd_text_starts(at, "refs/pr/"))
        n = 8 + strcspn(at + 8, "/");
    else if (hd_text_starts(at, "refs/convert/"))
        n = 13 + strcspn(at + 13, "/");
    return n;
}

enum hd_status hd_hub_parse(const char *text, bool bare, bool is_dataset,
                            struct hd_hub_name *ret_name)
{
    struct hd_hub_name name = {.is_dataset = is_dataset, .revision = "main"};
    const char *at = text, *slash;
    size_t first, second = 0, n;

    if (hd_hub_is_name(text)) {
        at += strlen(SCHEME);
        name.is_dataset = hd_text_starts(at, "datasets/");
        at += name.is_dataset ? strlen("datasets/") : 0;
        at += !name.is_dataset && hd_text_starts(at, "models/") ? strlen("models/") : 0;
    } else if (!bare) {
        return refuse(text, "is no name of the hub; write hf://ORG/NAME");
    }
    if (hd_text_starts(at, "spaces/") || hd_text_starts(at, "buckets/"))
        return refuse(text, "only models (hf://ORG/NAME) and data sets (hf://datasets/ORG/NAME) "
                            "are read");
    first = strcspn(at, "/@");
    slash = at[first] == '/' ? at + first + 1 : NULL;
    if (slash)
        second = strcspn(slash, "/@");
    n = slash ? first + 1 + second : first;
    if (!part_of_repo_is_possible(at, first) ||
        (slash && !part_of_repo_is_possible(slash, second)) || n >= HD_HUB_REPO_MAX)
        return refuse(text, "is no name of the hub: ORG and NAME are letters, digits, '-', '_' and "
                            "'.'; write hf://ORG/NAME, or hf://datasets/ORG/NAME/FILE");
    if (!slash && name.is_dataset)
        return refuse(text, "names no organisation; write hf://datasets/ORG/NAME");
    memcpy(name.repo, at, n);
    at += n;
    if (*at == '@') {
        n = revision_length(++at);
        if (!copy_revision(at, n, name.revision))
            return refuse(text, "behind the '@' belongs a branch, a tag or a commit");
        at += n;
    }
    if (*at == '/' && at[1]) {
        n = strlen(++at);
        if (n >= sizeof name.path)
            return refuse(text, "its path is longer than a path of the hub");
        memcpy(name.path, at, n + 1);
        if (name.is_dataset && at[n - 1] == '/') /* a folder */
            name.path[n - 1] = '\0';
        if (!hub_path_is_safe(name.path))
            return refuse(text,
                          "its path has an empty part, '..', or a character that paths of the "
                          "hub do not have");
        memcpy(name.path, at, n + 1);
    }
    *ret_name = name;
    return HD_OK;
}

void hd_hub_write(const struct hd_hub_name *name, const char *revision, struct hd_text *out)
{
    hd_text_add(out, SCHEME "%s%s@%s", name->is_dataset ? "datasets/" : "", name->repo, revision);
}

/* Returns the part of `path` behind the folder of a repository in a cache, such as
 * models--ORG--NAME, and sets *ret_repo to what is behind "models--"; NULL: it has no such
 * folder. */
static const char *behind_repo(const char *path, bool *ret_is_dataset, const char **ret_repo)
{
    for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/')) {
        const bool is_dataset = hd_text_starts(at, "/datasets--");

        if (!is_dataset && !hd_text_starts(at, "/models--"))
            continue;
        *ret_is_dataset = is_dataset;
        *ret_repo = at + (is_dataset ? strlen("/datasets--") : strlen("/models--"));
        return strchr(*ret_repo, '/');
    }
    return NULL;
}

bool hd_hub_describe(const char *path, struct hd_text *out)
{
    struct hd_hub_name name = {.is_dataset = false};
    const char *repo, *rest = behind_repo(path, &name.is_dataset, &repo), *dashes;
    char commit[HD_HUB_COMMIT_MAX];
    size_t n;

    if (!rest || (size_t)(rest - repo) >= sizeof name.repo)
        return false;
    memcpy(name.repo, repo, (size_t)(rest - repo));
    dashes = strstr(name.repo, "--");
    if (dashes) { /* ORG--NAME is ORG/NAME */
        n = (size_t)(dashes - name.repo);
        name.repo[n] = '/';
        memmove(name.repo + n + 1, name.repo + n + 2, strlen(name.repo + n + 2) + 1);
    }
    rest++;
    if (hd_text_starts(rest, "snapshots/"))
        rest += strlen("snapshots/");
    else if (hd_text_starts(rest, "named/"))
        rest += strlen("named/");
    else
        return false;
    n = strcspn(rest, "/");
    if (n != sizeof commit - 1)
        return false;
    memcpy(commit, rest, n);
    commit[n] = '\0';
    if (!hub_is_commit(commit))
        return false;
    hd_hub_write(&name, commit, out);
    return true;
}

void hub_add_encoded(struct hd_text *out, const char *text, const char *kept)
{
    for (const char *at = text; *at; at++) {
        if (isalnum((unsigned char)*at) || strchr("-_.~", *at) || strchr(kept, *at))
            hd_text_add(out, "%c", *at);
        else
            hd_text_add(out, "%%%02X", (unsigned)(unsigned char)*at);
    }
}

void hub_add_api(struct hd_text *out, const char *endpoint, const struct hd_hub_name *name)
{
    hd_text_add(out, "%s/api/%s/%s/", endpoint, name->is_dataset ? "datasets" : "models",
                name->repo);
}

void hub_add_resolve(struct hd_text *out, const char *endpoint, const struct hd_hub_name *name,
                     const char *commit, const char *path)
{
    hd_text_add(out, "%s/%s%s/resolve/%s/", endpoint, name->is_dataset ? "datasets/" : "",
                name->repo, commit);
    hub_add_encoded(out, path, "/");
}
