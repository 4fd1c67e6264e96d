#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/checkpoint_internal.h"

#define STEP_PREFIX    "step-"
#define ATTEMPT_PREFIX "attempt-"

enum { STEP_DIGITS = 8 }; /* minimum digits of a step in a name, so that names sort by step */

enum hd_status hd_ckpt_format_dir(const char *attempt_dir, int64_t step, char *ret_path,
                                  size_t path_max)
{
    int n = snprintf(ret_path, path_max, "%s/checkpoints/" STEP_PREFIX "%0*" PRId64, attempt_dir,
                     STEP_DIGITS, step);

    if (n < 0 || (size_t)n >= path_max)
        return hd_err(HD_LIMIT, "the path of a checkpoint below %s is too long", attempt_dir);
    return HD_OK;
}

/* Parses a name that is `prefix` followed by digits and nothing else; sets *ret_number to the
 * digits' value. Returns false if the name differs from that. */
static bool parse_number_after(const char *name, const char *prefix, int64_t *ret_number)
{
    const char *digits = name + strlen(prefix);
    int64_t number = 0;

    if (!hd_text_starts(name, prefix) || !*digits || strlen(digits) > 18)
        return false;
    for (const char *p = digits; *p; p++) {
        if (*p < '0' || *p > '9')
            return false;
        number = number * 10 + (*p - '0');
    }
    *ret_number = number;
    return true;
}

static enum hd_status join_path(const char *dir, const char *name, char **ret_path)
{
    struct hd_text text = {0};

    hd_file_join(&text, dir, name);
    if (text.failed)
        return hd_err(HD_NO_MEMORY, "no memory for a path");
    *ret_path = text.data;
    return HD_OK;
}

/* Lists the directories DIR/PREFIXnumber, with the number as step, unsorted; an empty list if DIR
 * is absent. The caller frees with hd_ckpt_places_free. */
static enum hd_status list_numbered(const char *dir, const char *prefix,
                                    struct hd_ckpt_place **ret_places, size_t *ret_count)
{
    struct hd_ckpt_place *places = NULL;
    enum hd_status st = HD_OK;
    struct dirent *item;
    DIR *stream = opendir(dir);
    size_t count = 0;
    int64_t number;

    *ret_places = NULL;
    *ret_count = 0;
    if (!stream)
        return errno == ENOENT ? HD_OK : hd_err(HD_IO, "cannot list %s: %s", dir, strerror(errno));
    while (!st && (errno = 0, item = readdir(stream))) {
        struct hd_ckpt_place *more;

        if (!parse_number_after(item->d_name, prefix, &number))
            continue;
        more = realloc(places, (count + 1) * sizeof *places);
        if (!more) {
            st = hd_err(HD_NO_MEMORY, "no memory to list %s", dir);
            break;
        }
        places = more;
        places[count] = (struct hd_ckpt_place){.step = number};
        st = join_path(dir, item->d_name, &places[count].path);
        count += !st;
    }
    if (!st && errno)
        st = hd_err(HD_IO, "cannot list %s: %s", dir, strerror(errno));
    (void)closedir(stream);
    if (st) {
        hd_ckpt_places_free(places, count);
        return st;
    }
    *ret_places = places;
    *ret_count = count;
    return HD_OK;
}

void hd_ckpt_places_free(struct hd_ckpt_place *places, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(places[i].path);
    free(places);
}

static int compare_steps(const void *a, const void *b)
{
    const struct hd_ckpt_place *x = a, *y = b;

    return x->step < y->step ? -1 : x->step > y->step;
}

/* Sets *ret_complete to whether `dir` has a manifest. Only ENOENT and ENOTDIR mean that it has
 * none; any other error is returned, because a checkpoint that looked incomplete would be
 * removed. */
static enum hd_status look_for_manifest(const char *dir, bool *ret_complete)
{
    char *path = NULL;
    struct stat info;
    enum hd_status st = join_path(dir, HD_CKPT_MANIFEST_FILE, &path);

    if (st)
        return st;
    *ret_complete = lstat(path, &info) == 0;
    if (!*ret_complete && errno != ENOENT && errno != ENOTDIR)
        st = hd_err(HD_IO, "cannot examine %s: %s", path, strerror(errno));
    free(path);
    return st;
}

enum hd_status hd_ckpt_list(const char *attempt_dir, struct hd_ckpt_place **ret_places,
                            size_t *ret_count)
{
    struct hd_ckpt_place *places = NULL;
    size_t count = 0, kept = 0;
    char *dir = NULL;
    enum hd_status st = join_path(attempt_dir, "checkpoints", &dir);

    if (st)
        return st;
    st = list_numbered(dir, STEP_PREFIX, &places, &count);
    free(dir);
    if (st)
        return st;
    for (size_t i = 0; i < count; i++) {
        bool complete = false;

        if (!st)
            st = look_for_manifest(places[i].path, &complete);
        if (complete)
            places[kept++] = places[i];
        else
            free(places[i].path);
    }
    if (st) {
        hd_ckpt_places_free(places, kept);
        return st;
    }
    if (kept)
        qsort(places, kept, sizeof *places, compare_steps);
    *ret_places = places;
    *ret_count = kept;
    return HD_OK;
}

/* Sets *ret_path to the checkpoint of an attempt with the highest step; NULL: it has none. */
static enum hd_status find_highest(const char *attempt_dir, char **ret_path)
{
    struct hd_ckpt_place *places = NULL;
    size_t count = 0;
    enum hd_status st = hd_ckpt_list(attempt_dir, &places, &count);

    *ret_path = NULL;
    if (!st && count) {
        *ret_path = places[count - 1].path;
        places[count - 1].path = NULL;
    }
    hd_ckpt_places_free(places, count);
    return st;
}

/* Sets *ret_path to the newest checkpoint of a job's folder; NULL: it has none. */
static enum hd_status find_of_job(const char *job_dir, char **ret_path)
{
    struct hd_ckpt_place *attempts = NULL;
    size_t count = 0;
    enum hd_status st = list_numbered(job_dir, ATTEMPT_PREFIX, &attempts, &count);

    *ret_path = NULL;
    if (count)
        qsort(attempts, count, sizeof *attempts, compare_steps);
    for (size_t i = count; !st && !*ret_path && i > 0; i--)
        st = find_highest(attempts[i - 1].path, ret_path);
    hd_ckpt_places_free(attempts, count);
    return st;
}

enum hd_status hd_ckpt_find_newest(const char *dir, char **ret_path)
{
    char *of_run = NULL;
    bool complete = false;
    enum hd_status st = look_for_manifest(dir, &complete);

    *ret_path = NULL;
    if (!st && complete) {
        *ret_path = strdup(dir);
        return *ret_path ? HD_OK : hd_err(HD_NO_MEMORY, "no memory for a path");
    }
    if (!st)
        st = find_highest(dir, ret_path);
    if (!st && !*ret_path)
        st = find_of_job(dir, ret_path);
    if (!st && !*ret_path)
        st = join_path(dir, "1", &of_run); /* the folder of a run of `heddle local` */
    if (of_run)
        st = find_of_job(of_run, ret_path);
    free(of_run);
    if (!st && !*ret_path)
        st =
            hd_err(HD_NOT_FOUND,
                   "%s is no checkpoint (step-N) and has none; give a checkpoint, or the folder of "
                   "a run or attempt that has written one",
                   dir);
    return st;
}

enum { MANIFEST_BYTES_MAX = 64 << 20 };

static int64_t folder_bytes(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *entry;
    struct stat info;
    int64_t sum = 0;

    while (d && (entry = readdir(d)))
        if (fstatat(dirfd(d), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode))
            sum += info.st_size;
    if (d)
        (void)closedir(d);
    return sum;
}

/* Returns the validation loss in the text of a manifest; NaN: the text has none. Searches for a
 * line that begins with the key: JSON strings contain no line breaks, so the line is the member. */
static double find_val_loss(const char *manifest)
{
    static const char begin[] = "\n\"" HD_CKPT_VAL_LOSS "\":";
    const char *at = strstr(manifest, begin);

    return at ? strtod(at + sizeof begin - 1, NULL) : NAN;
}

enum hd_status hd_ckpt_summarize(const char *dir, struct hd_ckpt_summary *ret_summary)
{
    struct hd_text manifest = {0};
    struct stat info;
    char *path = NULL;
    enum hd_status st = join_path(dir, HD_CKPT_MANIFEST_FILE, &path);

    if (!st)
        st = hd_file_read(path, MANIFEST_BYTES_MAX, &manifest);
    if (!st && stat(path, &info) < 0)
        st = hd_err(HD_IO, "cannot examine %s: %s", path, strerror(errno));
    if (!st) {
        hd_hash_format(hd_hash_bytes(manifest.data, manifest.len_bytes), ret_summary->hash);
        ret_summary->time_ms = (int64_t)info.st_mtim.tv_sec * 1000;
        ret_summary->size_bytes = folder_bytes(dir);
        ret_summary->val_loss = find_val_loss(manifest.data);
    }
    hd_text_free(&manifest);
    free(path);
    return st;
}

/* ---- cleaning ---- */

/* Returns whether a file is unfinished: rank-00000.safetensors.part.123 or manifest.json.part.123.
 */
static bool is_part(const char *name)
{
    const char *part = strstr(name, ".part.");
    const char *digits = part ? part + strlen(".part.") : "";

    return *digits && digits[strspn(digits, "0123456789")] == '\0';
}

static enum hd_status remove_parts(const char *dir)
{
    enum hd_status st = HD_OK;
    struct dirent *item;
    DIR *stream = opendir(dir);

    if (!stream)
        return hd_err(HD_IO, "cannot list %s: %s", dir, strerror(errno));
    while (!st && (errno = 0, item = readdir(stream)))
        if (is_part(item->d_name) && unlinkat(dirfd(stream), item->d_name, 0) < 0 &&
            errno != ENOENT)
            st = hd_err(hd_file_write_status(errno), "cannot remove %s/%s: %s", dir, item->d_name,
                        strerror(errno));
    (void)closedir(stream);
    return st;
}

/* Renames a directory, so that a rank that is still writing there fails at its next rename: the
 * manifest cannot appear while files are being removed. HD_NOT_FOUND: there is no such directory.
 */
static enum hd_status move_aside(const char *dir, char aside[PATH_MAX])
{
    enum hd_status st;

    if (snprintf(aside, PATH_MAX, "%s.removed", dir) >= PATH_MAX)
        return hd_err(HD_LIMIT, "the path %s is too long", dir);
    st = hd_file_remove_tree(aside); /* a folder of this name that an earlier removal left */
    if (!st && rename(dir, aside) < 0)
        st = errno == ENOENT ? hd_err(HD_NOT_FOUND, "there is no %s", dir)
                             : hd_err(hd_file_write_status(errno), "cannot move %s aside: %s", dir,
                                      strerror(errno));
    return st;
}

enum hd_status hd_ckpt_remove_partial(const char *dir)
{
    char aside[PATH_MAX];
    bool complete = false;
    enum hd_status st = look_for_manifest(dir, &complete);

    if (!st && complete)
        st = hd_err(HD_EXISTS, "%s is a complete checkpoint", dir);
    if (!st)
        st = move_aside(dir, aside);
    if (st)
        return st == HD_NOT_FOUND ? HD_OK : st;
    st = look_for_manifest(aside, &complete); /* checked again: the manifest may have been written
                                                 just before the rename */
    if (!st && !complete)
        return hd_file_remove_tree(aside);
    if (rename(aside, dir) < 0)
        return hd_err(HD_IO, "cannot move %s back: %s", aside, strerror(errno));
    return st ? st : hd_err(HD_EXISTS, "%s is a complete checkpoint", dir);
}

enum hd_status hd_ckpt_clean_partial(const char *checkpoints_dir)
{
    struct hd_ckpt_place *places = NULL;
    size_t count = 0;
    enum hd_status st = list_numbered(checkpoints_dir, STEP_PREFIX, &places, &count);

    for (size_t i = 0; !st && i < count; i++) {
        st = hd_ckpt_remove_partial(places[i].path);
        if (st == HD_EXISTS)
            st = remove_parts(places[i].path);
    }
    hd_ckpt_places_free(places, count);
    return st;
}

enum hd_status hd_ckpt_clean_before(const char *job_dir, int64_t attempt)
{
    struct hd_ckpt_place *attempts = NULL;
    size_t count = 0;
    enum hd_status st = list_numbered(job_dir, ATTEMPT_PREFIX, &attempts, &count);

    for (size_t i = 0; !st && i < count; i++) {
        char *dir = NULL;

        if (attempts[i].step >= attempt)
            continue;
        st = join_path(attempts[i].path, "checkpoints", &dir);
        if (!st)
            st = hd_ckpt_clean_partial(dir);
        free(dir);
    }
    hd_ckpt_places_free(attempts, count);
    return st;
}
