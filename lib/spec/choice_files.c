/* choice_files: finds the files of validate.choices and validate.tasks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "data/fingerprint.h"
#include "job/choice_sets.h"
#include "spec_internal.h"

/* Looks a file up: it must be a regular file that can be read. */
static enum hd_status look_up(const char *key, struct hd_choice_set *set)
{
    char hint[SPEC_PATH_TEXT_MAX];
    struct stat info;
    int64_t places;

    if (stat(set->path, &info) < 0)
        return hd_err(HD_INVALID,
                      "%s: cannot find %s: %s; check the path, which is relative to the job file's "
                      "folder%s",
                      key, set->path, strerror(errno), spec_explain_name(set->path, true, hint));
    if (!S_ISREG(info.st_mode))
        return hd_err(HD_INVALID, "%s: %s is not a regular file; give a file of questions", key,
                      set->path);
    if (access(set->path, R_OK) < 0)
        return hd_err(HD_INVALID, "%s: cannot read %s: %s; change its permissions", key, set->path,
                      strerror(errno));
    if (!info.st_size)
        return hd_err(HD_INVALID,
                      "%s: %s is empty; a line of it is a question, {\"prompt\": .., ..}", key,
                      set->path);
    set->size_bytes = info.st_size;
    places = (info.st_size + HD_FINGERPRINT_PLACE_BYTES - 1) / HD_FINGERPRINT_PLACE_BYTES;
    if (places > HD_FINGERPRINT_PLACES_MAX)
        places = HD_FINGERPRINT_SHARE_MAX;
    return hd_fingerprint(set->path, places, set->fingerprint)
               ? hd_err_prefix(HD_INVALID, "%s", key)
               : HD_OK;
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
        struct hd_text path = {0};

        st = hd_choice_set_read(&was, kind, i, &set);
        if (st)
            break;
        hd_file_join(&path, folder, set.path);
        (void)snprintf(key, sizeof key, "%s.%s", hd_choice_set_key(kind), set.name);
        if (path.failed || path.len_bytes >= sizeof set.path)
            st = hd_err(HD_INVALID, "%s: the path is longer than %zu bytes", key,
                        sizeof set.path - 1);
        else if (spec_has_control(path.data))
            st = hd_err(HD_INVALID, "%s: the path has a control character; rename the file", key);
        else
            (void)snprintf(set.path, sizeof set.path, "%s", path.data);
        if (!st && look)
            st = look_up(key, &set);
        if (!st)
            st = hd_choice_set_add(&set, kind, draft->job);
        hd_text_free(&path);
    }
    return st;
}

enum hd_status spec_find_choices(struct spec_draft *draft, const char *folder, bool look)
{
    enum hd_status st = find_files(draft, HD_QUESTIONS_CHOICES, folder, look);

    return st ? st : find_files(draft, HD_QUESTIONS_TASKS, folder, look);
}
