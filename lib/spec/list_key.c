/* list_key: writes the keys of data files for messages: "data.train[2]", "data.stages[1].train",
 * "data.val.web[0]". */
#include <stdio.h>

#include "spec_internal.h"

/* Writes the key of the first stage that has a source: "data.stages[1].train". */
static void stage_key(const struct hd_job *job, int64_t source, char ret_key[SPEC_LIST_KEY_MAX])
{
    int64_t stage = 0;

    while (stage + 1 < hd_job_stage_count(job) && !(hd_job_weight(job, stage, source) > 0))
        stage++;
    (void)snprintf(ret_key, SPEC_LIST_KEY_MAX, "data.stages[%lld].train", (long long)stage);
}

void spec_list_key(const struct hd_job *job, bool is_train, int64_t index,
                   char ret_key[SPEC_LIST_KEY_MAX])
{
    const struct hd_job_file *files = is_train ? job->train : job->val;
    char set[HD_JOB_VAL_NAME_MAX];
    int64_t first = index;

    if (is_train && hd_job_stage_count(job)) {
        stage_key(job, files[index].source, ret_key);
        return;
    }
    if (is_train || !*job->val_sets) {
        (void)snprintf(ret_key, SPEC_LIST_KEY_MAX, "data.%s[%lld]", is_train ? "train" : "val",
                       (long long)(is_train && job->weight_count ? files[index].source : index));
        return;
    }
    while (first > 0 && files[first - 1].source == files[index].source)
        first--;
    hd_job_val_set_name(job, files[index].source, set);
    (void)snprintf(ret_key, SPEC_LIST_KEY_MAX, "data.val.%s[%lld]", set,
                   (long long)(index - first));
}

void spec_source_key(const struct hd_job *job, bool is_train, int64_t source,
                     char ret_key[SPEC_LIST_KEY_MAX])
{
    char set[HD_JOB_VAL_NAME_MAX];

    if (is_train && hd_job_stage_count(job))
        stage_key(job, source, ret_key);
    else if (is_train && job->weight_count)
        (void)snprintf(ret_key, SPEC_LIST_KEY_MAX, "data.train[%lld]", (long long)source);
    else {
        hd_job_val_set_name(job, source, set);
        (void)snprintf(ret_key, SPEC_LIST_KEY_MAX, "data.%s%s%s", is_train ? "train" : "val",
                       !is_train && *set ? "." : "", is_train ? "" : set);
    }
}
