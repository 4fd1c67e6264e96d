/* choice_files: finds a file that a key names; those of validate.choices and validate.tasks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/math.h"
#include "data/fingerprint.h"
#include "job/choice_sets.h"
#include "spec_internal.h"

static enum hd_status look_up(const struct spec_file *f)
{
    char hint[SPEC_PATH_TEXT_MAX];
    struct stat info;
    int64_t places;

    if (stat(f->path, &info) < 0)
        return hd_err(HD_INVALID, "%s: cannot find %s: %s; %s%s", f->key, f->path, strerror(errno),
                      f->relative, spec_explain_name(f->path, true, hint));
    if (!S_ISREG(info.st_mode))
        return hd_err(HD_INVALID, "%s: %s is not a regular file; give %s", f->key, f->path,
                      f->kind);
    if (access(f->path, R_OK) < 0)
        return hd_err(HD_INVALID, "%s: cannot read %s: %s; change its permissions", f->key, f->path,
                      strerror(errno));
    if (!info.st_size)
        return hd_err(HD_INVALID, "%s: %s is empty; %s", f->key, f->path, f->content);
    *f->size_bytes = info.st_size;
    places = hd_divide_up(info.st_size, HD_FINGERPRINT_PLACE_BYTES);
    if (places > HD_FINGERPRINT_PLACES_MAX)
        places = HD_FINGERPRINT_SHARE_MAX;
    return hd_fingerprint(f->path, places, f->fingerprint) ? hd_err_prefix(HD_INVALID, "%s", f->key)
                                                           : HD_OK;
}

enum hd_status spec_find_file(const struct spec_file *f, const char *folder, bool look)
{
    struct hd_text path = {0};
    enum hd_status st = HD_OK;

    hd_file_join(&path, folder, f->path);
    if (path.failed || path.len_bytes >= HD_JOB_PATH_MAX)
        st =
            hd_err(HD_INVALID, "%s: the path is longer than %d bytes", f->key, HD_JOB_PATH_MAX - 1);
    else if (spec_has_control(path.data))
        st = hd_err(HD_INVALID, "%s: the path has a control character; rename the file", f->key);
    else
        memcpy(f->path, path.data, path.len_bytes + 1);
    hd_text_free(&path);
    return !st && look ? look_up(f) : st;
}

static enum hd_status find_files(struct spec_draft *draft, enum hd_question_kind kind,
                                 const char *folder, bool look)
{
    struct hd_job was = *draft->job;
    enum hd_status st = HD_OK;

    *(kind == HD_QUESTIONS_TASKS ? &draft->job->tasks : &draft->job->choices) = "";
    for (int64_t i = 0; !st && i < hd_choice_set_count(&was, kind); i++) {
        char key[SPEC_LIST_KEY_MAX];
        struct hd_choice_set set;
        const struct spec_file file = {
            .key = key,
            .relative = "check the path, which is relative to the job file's folder",
            .kind = "a file of questions",
            .content = "a line of it is a question, {\"prompt\": .., ..}",
            .path = set.path,
            .size_bytes = &set.size_bytes,
            .fingerprint = set.fingerprint};

        st = hd_choice_set_read(&was, kind, i, &set);
        if (st)
            break;
        (void)snprintf(key, sizeof key, "%s.%s", hd_choice_set_key(kind), set.name);
        st = spec_find_file(&file, folder, look);
        if (!st)
            st = hd_choice_set_add(&set, kind, draft->job);
    }
    return st;
}

enum hd_status spec_find_choices(struct spec_draft *draft, const char *folder, bool look)
{
    enum hd_status st = find_files(draft, HD_QUESTIONS_CHOICES, folder, look);

    return st ? st : find_files(draft, HD_QUESTIONS_TASKS, folder, look);
}
