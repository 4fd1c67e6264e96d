/* sample_files: finds the file of prompts of validate.samples. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "data/fingerprint.h"
#include "job/sample_prompts.h"
#include "spec_internal.h"

/* Looks the file up: it must be a regular file that can be read. */
static enum hd_status look_up_prompts(struct hd_sample_file *file)
{
    char hint[SPEC_PATH_TEXT_MAX];
    struct stat info;
    int64_t places;

    if (stat(file->path, &info) < 0)
        return hd_err(HD_INVALID,
                      "validate.samples: cannot find %s: %s; a text is a prompt only in a list, "
                      "[..]; the path of a file is relative to the job file's folder%s",
                      file->path, strerror(errno), spec_explain_name(file->path, true, hint));
    if (!S_ISREG(info.st_mode))
        return hd_err(HD_INVALID,
                      "validate.samples: %s is not a regular file; give one with a "
                      "prompt in each line",
                      file->path);
    if (access(file->path, R_OK) < 0)
        return hd_err(HD_INVALID, "validate.samples: cannot read %s: %s; change its permissions",
                      file->path, strerror(errno));
    if (!info.st_size)
        return hd_err(HD_INVALID, "validate.samples: %s is empty; write a prompt into each line",
                      file->path);
    file->size_bytes = info.st_size;
    places = (info.st_size + HD_FINGERPRINT_PLACE_BYTES - 1) / HD_FINGERPRINT_PLACE_BYTES;
    if (places > HD_FINGERPRINT_PLACES_MAX)
        places = HD_FINGERPRINT_SHARE_MAX;
    return hd_fingerprint(file->path, places, file->fingerprint)
               ? hd_err_prefix(HD_INVALID, "validate.samples")
               : HD_OK;
}

enum hd_status spec_find_samples(struct spec_draft *draft, const char *folder, bool look)
{
    struct hd_sample_file file;
    struct hd_text path = {0};
    enum hd_status st;

    if (!hd_job_samples_in_file(draft->job))
        return HD_OK;
    st = hd_job_read_sample_file(draft->job, &file);
    if (st)
        return st;
    hd_file_join(&path, folder, file.path);
    if (path.failed || path.len_bytes >= sizeof file.path)
        st = hd_err(HD_INVALID, "validate.samples: the path is longer than %zu bytes",
                    sizeof file.path - 1);
    else if (spec_has_control(path.data))
        st = hd_err(HD_INVALID,
                    "validate.samples: the path has a control character; rename the file");
    else
        (void)snprintf(file.path, sizeof file.path, "%s", path.data);
    hd_text_free(&path);
    if (!st && look)
        st = look_up_prompts(&file);
    return st ? st : hd_job_set_sample_file(&file, draft->job);
}
