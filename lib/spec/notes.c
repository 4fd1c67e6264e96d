/* notes: what a valid job file says that its writer may not mean. A note is no error: the job runs. */
#include "base/file.h"
#include "job/frozen_model.h"
#include "spec_internal.h"

/* Numbers where a typo is likely, and what is usual: a note beyond the usual range. */
static const struct usual {
    enum hd_key_index key;
    double least, most, range[2]; /* least and most without a note; the range that the note names */
    const char *effect;
} usual[] = {
    {HD_KEY_INDEX_lr_peak, 1e-8, 0.1, {1e-5, 1e-2}, "a run may learn nothing, or diverge"},
    {HD_KEY_INDEX_weight_decay, 0, 1, {0, 0.3}, "weights may shrink faster than they learn"},
    {HD_KEY_INDEX_dropout_embedding, 0, 0.5, {0, 0.3}, "little of the embedding is left"},
    {HD_KEY_INDEX_dropout_attention, 0, 0.5, {0, 0.3}, "little of the attention is left"},
    {HD_KEY_INDEX_dropout_residual, 0, 0.5, {0, 0.3}, "little of each layer's output is left"},
    {HD_KEY_INDEX_adapter_dropout, 0, 0.5, {0, 0.3}, "little of the adapter's input is left"},
    {HD_KEY_INDEX_init_std, 1e-4, 0.2, {0.005, 0.05}, "a run may learn nothing, or diverge"},
};

static void note_unusual(const struct hd_job *job, struct hd_text *notes)
{
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        const struct usual *u = &usual[i];
        const struct hd_key *key = &hd_job_keys[u->key];
        const double value = *(const double *)hd_job_const_member(key, job);

        if (value < u->least || value > u->most)
            hd_text_add(notes, "%s: %g is far from the usual %g to %g: %s\n", key->path, value,
                        u->range[0], u->range[1], u->effect);
    }
}

/* Notes settings that change nothing in this job. */
static void note_idle(struct spec_draft *draft, struct hd_text *notes)
{
    static const char *const stop[] = {"validate.stop.metric", "validate.stop.min_delta"};
    const struct hd_job *job = draft->job;

    for (size_t i = 0; !job->stop_patience && i < sizeof stop / sizeof stop[0]; i++)
        if (*spec_given(draft, stop[i]))
            hd_text_add(notes,
                        "%s: changes nothing, as no run is stopped early without "
                        "validate.stop.patience; give it, or remove the line\n",
                        stop[i]);
    if (job->precision == HD_JOB_PRECISION_FP8 && job->device == HD_JOB_DEVICE_CPU)
        hd_text_add(notes, "train.precision: fp8 saves no time on a CPU: it shows what fp8 does to "
                           "a model\n");
    if (job->profile_first > job->steps)
        hd_text_add(notes,
                    "train.profile.steps: begins at step %lld, and the job has %lld steps: nothing "
                    "is profiled unless it goes on with more\n",
                    (long long)job->profile_first, (long long)job->steps);
}

static enum hd_status note_teacher(const struct hd_job *job, struct hd_text *notes)
{
    struct hd_text path = {0};
    enum hd_status st;

    if (!hd_job_has_teacher(job) || hd_job_has_teacher_model(job))
        return HD_OK;
    st = hd_job_teacher_file(job, &path);
    if (!st && !hd_file_exists(path.data))
        hd_text_add(
            notes,
            "train.distill.teacher: %s is neither a model folder nor a checkpoint now, and so "
            "is taken for a teacher's file: a job with train.distill.write must have made %s "
            "before this one starts. To learn from the model of a run, name one of its "
            "checkpoints\n",
            job->distill_teacher, path.data);
    hd_text_free(&path);
    return st;
}

enum hd_status spec_note(struct spec_draft *draft, struct hd_text *notes)
{
    note_unusual(draft->job, notes);
    note_idle(draft, notes);
    return note_teacher(draft->job, notes);
}

void spec_note_copies(const struct hd_job *job, struct hd_text *notes)
{
    for (int64_t v = 0; v < job->val_count; v++) {
        const struct hd_job_file *val = &job->val[v];
        int64_t t = 0;

        while (t < job->train_count && (!val->fingerprint || !job->train[t].fingerprint ||
                                        val->size_bytes != job->train[t].size_bytes ||
                                        strcmp(val->fingerprint, job->train[t].fingerprint) != 0))
            t++;
        if (t < job->train_count)
            hd_text_add(notes,
                        "data.val: %s has the bytes of %s of data.train: its loss is that of text "
                        "that was trained on\n",
                        val->path, job->train[t].path);
    }
}
