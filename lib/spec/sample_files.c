/* sample_files: finds the file of prompts of validate.samples. */
#include "job/sample_prompts.h"
#include "spec_internal.h"

enum hd_status spec_find_samples(struct spec_draft *draft, const char *folder, bool look)
{
    struct hd_sample_file samples;
    const struct spec_file file = {
        .key = "validate.samples",
        .relative =
            "a text is a prompt only in a list, [..]; the path of a file is relative to the "
            "job file's folder",
        .kind = "one with a prompt in each line",
        .content = "write a prompt into each line",
        .path = samples.path,
        .size_bytes = &samples.size_bytes,
        .fingerprint = samples.fingerprint};
    enum hd_status st;

    if (!hd_job_samples_in_file(draft->job))
        return HD_OK;
    st = hd_job_read_sample_file(draft->job, &samples);
    if (!st)
        st = spec_find_file(&file, folder, look);
    return st ? st : hd_job_set_sample_file(&samples, draft->job);
}
